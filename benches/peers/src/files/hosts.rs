//! Where both ends of a copier run: on loopback, or on two hosts with an emulated path between them.

use std::ffi::OsStr;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use lab::{EMULATOR_ARGUMENT, Lab, LabError, TopologySpec};

/// The congestion control of the peers that use the kernel's TCP over an emulated path: the one that takes most there.
const CONGESTION_CONTROL: &str = "bbr";
const CLIENT: &str = "a";
const SERVER: &str = "b";

/// See the module.
pub struct Hosts {
    lab: Option<Lab>,
    /// Children of this process that emulate the path, and stay.
    pub emulators: Vec<u32>,
}

impl Hosts {
    /// This machine.
    pub fn loopback() -> Hosts {
        Hosts { lab: None, emulators: Vec::new() }
    }

    /// Two hosts, with a path between them in the words of `longhaul wan relay`; `longhaul` in `programs` emulates it.
    ///
    /// # Errors
    /// No root, a path that cannot be, or a kernel without BBR.
    pub fn with_path(path: &str, programs: &Path) -> Result<Hosts> {
        let emulator = Some((programs.join("longhaul"), vec![EMULATOR_ARGUMENT.to_owned()]));
        let options = lab::Options { emulator, ..lab::Options::default() };
        let name = format!("files{}", std::process::id());
        let lab = Lab::up_with(&name, &TopologySpec::path(path), 1, &options)?;
        for node in [CLIENT, SERVER] {
            let set = || std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", CONGESTION_CONTROL);
            lab.inside(node, set).with_context(|| format!("the kernel has no {CONGESTION_CONTROL}"))?;
        }
        Ok(Hosts { lab: Some(lab), emulators: super::memory::children() })
    }

    /// The server's address, at which the client reaches it.
    pub fn address(&self) -> Result<Ipv4Addr, LabError> {
        self.address_of(SERVER)
    }

    fn address_of(&self, node: &str) -> Result<Ipv4Addr, LabError> {
        self.lab.as_ref().map_or(Ok(Ipv4Addr::LOCALHOST), |lab| lab.address(node))
    }

    /// A program at the server's end that finds names for the addresses of both ends in a file.
    ///
    /// # Errors
    /// No such node, or the list in `folder` cannot be written.
    pub fn named_server(&self, program: &Path, folder: &Path) -> Result<Command> {
        const ENTER: &str = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        if self.lab.is_none() {
            return Ok(self.server(program)?);
        }
        let list = folder.join("hosts");
        let [client, server] = [CLIENT, SERVER].map(|node| self.address_of(node));
        let own = rustix::system::uname();
        let own = own.nodename().to_string_lossy();
        std::fs::write(
            &list,
            format!("127.0.0.1 localhost\n{} client\n{} server {own}\n", client?, server?),
        )?;
        let mut c = self.server("unshare")?;
        c.args(["--mount", "sh", "-c", ENTER]).arg(list).arg(program);
        Ok(c)
    }

    /// Addresses of client and server, and what `ip netns` calls their namespaces.
    ///
    /// # Errors
    /// There is no emulated path.
    pub fn namespaces(&self) -> Result<[(Ipv4Addr, String); 2]> {
        let lab = self.lab.as_ref().context("there is no emulated path")?;
        let of = |node| Ok::<_, LabError>((lab.address(node)?, lab.namespace(node)?));
        Ok([of(CLIENT)?, of(SERVER)?])
    }

    /// A program at the client's end.
    pub fn client(&self, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        self.command(CLIENT, program)
    }

    /// A program at the server's end.
    pub fn server(&self, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        self.command(SERVER, program)
    }

    fn command(&self, node: &str, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        match &self.lab {
            Some(lab) => lab.command(node, program),
            None => Ok(Command::new(program)),
        }
    }

    fn at_server<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> Result<T> {
        Ok(match &self.lab {
            Some(lab) => lab.inside(SERVER, work)?,
            None => work()?,
        })
    }

    /// A port of the server's that nobody listens on at present.
    pub fn free_port(&self) -> Result<u16> {
        let ip = self.address()?;
        self.at_server(|| Ok(TcpListener::bind((ip, 0))?.local_addr()?.port()))
    }

    /// Whether something listens on a port of the server's.
    pub fn is_listening(&self, port: u16) -> Result<bool> {
        let at = SocketAddr::from((self.address()?, port));
        self.at_server(|| Ok(TcpStream::connect(at).is_ok()))
    }
}
