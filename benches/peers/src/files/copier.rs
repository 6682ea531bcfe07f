//! Programs that copy the folder: Longhaul and its peers, each with a server of its own that is started on loopback for
//! the run and ended after it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::tree;
use crate::peer::{Process, first_line, start};

/// How long a server may take to listen, in steps of [`STEP`].
const STEPS: u32 = 500;
/// Pause between two looks at a server that is starting or ending.
const STEP: Duration = Duration::from_millis(10);
/// The cipher that OpenSSH is fastest with here.
const CIPHER: &str = "aes128-gcm@openssh.com";

/// Where a run finds everything.
pub struct Places<'a> {
    /// Holds the source folder.
    pub from: &'a Path,
    /// Takes the copy; empty.
    pub to: &'a Path,
    /// For keys and settings, kept from run to run.
    pub state: &'a Path,
    /// The folder of `longhaul`.
    pub programs: &'a Path,
}

impl Places<'_> {
    fn source(&self) -> PathBuf {
        self.from.join(tree::NAME)
    }
}

/// A server that listens, and the command that copies by it.
pub struct Ready {
    /// `None` where no server is needed.
    pub server: Option<Process>,
    /// The client.
    pub client: Command,
}

/// Starts what one run needs.
pub type Prepare = fn(&Places<'_>) -> Result<Ready>;

/// A program that copies.
pub struct Copier {
    /// In tables, and for `--peers`.
    pub name: &'static str,
    /// Programs that must be there, and the package they are in; none of Longhaul's.
    pub needs: &'static [(&'static str, &'static str)],
    /// One run.
    pub prepare: Prepare,
}

/// All of them.
pub const COPIERS: &[Copier] = &[
    Copier { name: "Longhaul put", needs: &[], prepare: |p| longhaul(p, true) },
    Copier { name: "Longhaul get", needs: &[], prepare: |p| longhaul(p, false) },
    Copier { name: super::REFERENCE, needs: &[("rsync", "rsync")], prepare: rsync_daemon },
    Copier { name: "cp", needs: &[], prepare: cp },
    Copier { name: "scp, AES-128-GCM", needs: SSH, prepare: scp },
    Copier { name: "rsync over ssh, AES-128-GCM", needs: RSYNC_SSH, prepare: rsync_over_ssh },
    Copier { name: "GridFTP, plain", needs: GRIDFTP, prepare: gridftp },
    Copier { name: "pipeline, no network", needs: &[], prepare: pipeline },
];
const SSH: &[(&str, &str)] = &[
    ("sshd", "openssh-server"),
    ("ssh-keygen", "openssh-client"),
    ("scp", "openssh-client"),
    ("ssh", "openssh-client"),
];
const RSYNC_SSH: &[(&str, &str)] = &[
    ("rsync", "rsync"),
    ("sshd", "openssh-server"),
    ("ssh-keygen", "openssh-client"),
    ("ssh", "openssh-client"),
];
const GRIDFTP: &[(&str, &str)] = &[
    ("globus-gridftp-server", "globus-gridftp-server-progs"),
    ("globus-url-copy", "globus-gass-copy-progs"),
];

impl Copier {
    /// Why it cannot be measured here.
    pub fn missing(&self) -> Option<String> {
        let (program, package) = self.needs.iter().find(|(p, _)| which(p).is_none())?;
        Some(format!("{} is left out: `{program}` is not installed (apt-get install {package})", self.name))
    }
}

/// The full path of a program; servers are looked for where `PATH` often lacks them.
fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|d| d.join(program)).find(|p| p.is_file())
}

fn command(program: &str) -> Command {
    quiet(Command::new(which(program).unwrap_or_else(|| program.into())))
}

fn quiet(mut c: Command) -> Command {
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    c
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A port of loopback that nobody listens on at present.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Lets other processes go on.
#[allow(clippy::disallowed_methods)] // not protocol code: it waits for programs that cannot be asked
fn pause() {
    std::thread::sleep(STEP);
}

/// A TCP server that takes connections.
fn listening(mut server: Command, port: u16) -> Result<Process> {
    let mut server = start(server.stdout(Stdio::null()).stderr(Stdio::null()))?;
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    for _ in 0..STEPS {
        if TcpStream::connect(at).is_ok() {
            return Ok(server);
        }
        if let Some(status) = server.0.try_wait()? {
            bail!("a server ended at once: {status}");
        }
        pause();
    }
    bail!("a server does not listen on {at} after {:?}", STEP * STEPS)
}

fn cp(p: &Places<'_>) -> Result<Ready> {
    let mut client = command("cp");
    client.arg("-r").arg(p.source()).arg(p.to);
    Ok(Ready { server: None, client })
}

/// What encrypting, hashing and verifying cost by themselves.
fn pipeline(p: &Places<'_>) -> Result<Ready> {
    let mut client = quiet(Command::new(std::env::current_exe()?));
    client.args(["end", "pipeline"]).args([p.from, p.to]);
    Ok(Ready { server: None, client })
}

fn longhaul(p: &Places<'_>, put: bool) -> Result<Ready> {
    let program = p.programs.join("longhaul");
    ensure!(program.exists(), "{} is missing: build it, or say --programs", program.display());
    let end = |name: &str| {
        let mut c = quiet(Command::new(&program));
        c.env("LONGHAUL_HOME", p.state.join(name));
        c
    };
    let mut server = end("server");
    server.stdout(Stdio::piped()).arg("serve").arg(if put { p.to } else { p.from });
    server.args(["--listen", "127.0.0.1:0", "--allow-any-key", "--json"]);
    let mut server = start(&mut server)?;
    // The other end of its output is kept open: it says something when it ends.
    let (line, rest) = first_line(&mut server)?;
    server.1 = Some(rest);
    let said: serde_json::Value = serde_json::from_str(&line)?;
    let url = format!(
        "longhaul://{}/",
        said["listening"].as_str().context("the server did not say where it listens")?
    );
    let mut client = end("client");
    match put {
        true => client.arg("put").arg(p.source()).arg(url),
        false => client.arg("get").arg(format!("{url}{}", tree::NAME)).arg(format!("{}/", text(p.to))),
    };
    client.args(["--accept-new", "--quiet"]);
    Ok(Ready { server: Some(server), client })
}

fn rsync_daemon(p: &Places<'_>) -> Result<Ready> {
    let port = free_port()?;
    let settings = p.state.join("rsyncd.conf");
    let me = rustix::process::getuid().as_raw();
    let ids = if me == 0 { "uid = 0\ngid = 0\n" } else { "" };
    let to = text(p.to);
    fs::write(
        &settings,
        format!("use chroot = no\naddress = 127.0.0.1\n{ids}[to]\npath = {to}\nread only = no\n"),
    )?;
    let mut server = command("rsync");
    server.args(["--daemon", "--no-detach", "--port", &port.to_string(), "--config"]).arg(&settings);
    let server = listening(server, port)?;
    let mut client = command("rsync");
    client.args(["-rt", "--whole-file"]).arg(p.source()).arg(format!("rsync://127.0.0.1:{port}/to/"));
    Ok(Ready { server: Some(server), client })
}

/// An SSH server of our own: its keys and settings are ours, and it lets in the one key that was made for it.
fn sshd(p: &Places<'_>) -> Result<(Process, Vec<String>)> {
    let folder = p.state.join("ssh");
    fs::create_dir_all(&folder)?;
    for name in ["host", "user"] {
        if !folder.join(name).exists() {
            let mut make = command("ssh-keygen");
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(name));
            ensure!(make.status()?.success(), "ssh-keygen failed");
        }
    }
    let port = free_port()?;
    let folder_text = text(&folder);
    let settings = folder.join("sshd_config");
    fs::write(
        &settings,
        format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {folder_text}/host\n\
             AuthorizedKeysFile {folder_text}/user.pub\nStrictModes no\nUsePAM no\nPidFile none\n\
             PasswordAuthentication no\nPermitRootLogin yes\nCiphers {CIPHER}\nSubsystem sftp internal-sftp\n"
        ),
    )?;
    if rustix::process::getuid().is_root() {
        // Where sshd locks its unprivileged part in; distributions make it when their own server starts.
        fs::create_dir_all("/run/sshd")?;
    }
    let mut server = command("sshd");
    server.arg("-D").arg("-f").arg(&settings);
    let server = listening(server, port)?;
    let options = [
        format!("Port={port}"),
        format!("IdentityFile={folder_text}/user"),
        "IdentitiesOnly=yes".to_owned(),
        "StrictHostKeyChecking=no".to_owned(),
        "UserKnownHostsFile=/dev/null".to_owned(),
        "LogLevel=ERROR".to_owned(),
        format!("Ciphers={CIPHER}"),
    ];
    let none = ["-F".to_owned(), "none".to_owned()];
    Ok((server, none.into_iter().chain(options.into_iter().flat_map(|o| ["-o".to_owned(), o])).collect()))
}

fn scp(p: &Places<'_>) -> Result<Ready> {
    let (server, options) = sshd(p)?;
    let mut client = command("scp");
    client.args(["-r", "-q"]).args(options).arg(p.source()).arg(format!("127.0.0.1:{}/", text(p.to)));
    Ok(Ready { server: Some(server), client })
}

fn rsync_over_ssh(p: &Places<'_>) -> Result<Ready> {
    let (server, options) = sshd(p)?;
    let mut client = command("rsync");
    client.args(["-rt", "--whole-file", "-e", &format!("ssh {}", options.join(" "))]);
    client.arg(p.source()).arg(format!("127.0.0.1:{}/", text(p.to)));
    Ok(Ready { server: Some(server), client })
}

fn gridftp(p: &Places<'_>) -> Result<Ready> {
    let port = free_port()?;
    let mut server = command("globus-gridftp-server");
    server.args(["-aa", "-control-interface", "127.0.0.1", "-data-interface", "127.0.0.1", "-p"]);
    server.arg(port.to_string());
    if rustix::process::getuid().is_root() {
        server.args(["-anonymous-user", "root", "-allow-root"]);
    }
    let server = listening(server, port)?;
    let mut client = command("globus-url-copy");
    client.args(["-fast", "-r", "-cd", "-pp", "-cc", "4"]);
    client.arg(format!("file://{}/", text(&p.source())));
    client.arg(format!("ftp://127.0.0.1:{port}{}/{}/", text(p.to), tree::NAME));
    Ok(Ready { server: Some(server), client })
}

/// Ends a server and waits for it and for what it left behind, so that their processor time is known.
pub fn end(server: Option<Process>) -> Result<()> {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};
    if let Some(mut s) = server {
        if let Some(pid) = i32::try_from(s.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM); // it may have ended by itself
        }
        s.0.wait()?;
    }
    // Orphans come to this process, which asked for them. An error says that there are none.
    for _ in 0..STEPS {
        match wait(WaitOptions::NOHANG) {
            Ok(None) => pause(),
            Ok(Some(_)) => {}
            Err(_) => return Ok(()),
        }
    }
    bail!("processes of a peer still run after {:?}", STEP * STEPS)
}
