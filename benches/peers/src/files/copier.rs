//! Programs that copy the folder: Longhaul and its peers, each with a server of its own that is started for the run and
//! ended after it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::hosts::Hosts;
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
    /// Where both ends run.
    pub hosts: &'a Hosts,
}

impl Places<'_> {
    fn source(&self) -> PathBuf {
        self.from.join(tree::NAME)
    }
    fn client(&self, program: &str) -> Result<Command> {
        Ok(quiet(self.hosts.client(full_path(program))?))
    }
    fn server(&self, program: &str) -> Result<Command> {
        Ok(quiet(self.hosts.server(full_path(program))?))
    }
    fn longhaul(&self) -> Result<PathBuf> {
        let program = std::path::absolute(self.programs.join("longhaul"))?;
        ensure!(program.exists(), "{} is missing: build it, or say --programs", program.display());
        Ok(program)
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
    /// The name of a second run, for those that leave out what is there.
    pub again: Option<&'static str>,
    /// Programs that must be there, and the package they are in; none of Longhaul's.
    pub needs: &'static [(&'static str, &'static str)],
    /// One run.
    pub prepare: Prepare,
}

/// All of them.
pub const COPIERS: &[Copier] = &[
    Copier {
        name: "Longhaul put",
        again: Some("Longhaul put, again"),
        needs: &[],
        prepare: |p| longhaul(p, true),
    },
    Copier {
        name: "Longhaul get",
        again: Some("Longhaul get, again"),
        needs: &[],
        prepare: |p| longhaul(p, false),
    },
    Copier {
        name: "Longhaul put over ssh, AES-128-GCM",
        again: Some("Longhaul put over ssh, again"),
        needs: SSH,
        prepare: longhaul_over_ssh,
    },
    Copier {
        name: super::REFERENCE,
        again: Some("rsync daemon, again"),
        needs: &[("rsync", "rsync")],
        prepare: rsync_daemon,
    },
    Copier { name: "cp", again: None, needs: &[], prepare: cp },
    Copier { name: "scp, AES-128-GCM", again: None, needs: SSH, prepare: scp },
    Copier {
        name: "rsync over ssh, AES-128-GCM",
        again: Some("rsync over ssh, again"),
        needs: RSYNC_SSH,
        prepare: rsync_over_ssh,
    },
    Copier {
        name: "rclone by sftp, AES-128-GCM",
        again: Some("rclone, again"),
        needs: RCLONE,
        prepare: rclone,
    },
    Copier { name: "GridFTP, plain", again: None, needs: GRIDFTP, prepare: gridftp },
    Copier { name: "pipeline, no network", again: None, needs: &[], prepare: pipeline },
];
const LOCAL: &[&str] = &["cp", "pipeline, no network"];
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
const RCLONE: &[(&str, &str)] = &[
    ("rclone", "rclone"),
    ("sshd", "openssh-server"),
    ("ssh-keygen", "openssh-client"),
    ("ssh", "openssh-client"),
];
const GRIDFTP: &[(&str, &str)] = &[
    ("globus-gridftp-server", "globus-gridftp-server-progs"),
    ("globus-url-copy", "globus-gass-copy-progs"),
];

impl Copier {
    /// Whether it copies without a server.
    pub fn is_local(&self) -> bool {
        LOCAL.contains(&self.name)
    }

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

fn full_path(program: &str) -> PathBuf {
    which(program).unwrap_or_else(|| program.into())
}

fn quiet(mut c: Command) -> Command {
    c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    c
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Lets other processes go on.
#[allow(clippy::disallowed_methods)] // not protocol code: it waits for programs that cannot be asked
fn pause() {
    std::thread::sleep(STEP);
}

/// A TCP server that takes connections.
fn listening(hosts: &Hosts, mut server: Command, port: u16) -> Result<Process> {
    let mut server = start(server.stdout(Stdio::null()).stderr(Stdio::null()))?;
    for _ in 0..STEPS {
        if hosts.is_listening(port)? {
            return Ok(server);
        }
        if let Some(status) = server.0.try_wait()? {
            bail!("a server ended at once: {status}");
        }
        pause();
    }
    bail!("a server does not listen on port {port} after {:?}", STEP * STEPS)
}

fn cp(p: &Places<'_>) -> Result<Ready> {
    let mut client = p.client("cp")?;
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
    let program = p.longhaul()?;
    let mut server = quiet(p.hosts.server(&program)?);
    server.env("LONGHAUL_HOME", p.state.join("server"));
    server.stdout(Stdio::piped()).arg("serve").arg(if put { p.to } else { p.from });
    server.args(["--listen", &format!("{}:0", p.hosts.address()?), "--allow-any-key", "--json"]);
    let mut server = start(&mut server)?;
    // The other end of its output is kept open: it says something when it ends.
    let (line, rest) = first_line(&mut server)?;
    server.1 = Some(rest);
    let said: serde_json::Value = serde_json::from_str(&line)?;
    let url = format!(
        "longhaul://{}/",
        said["listening"].as_str().context("the server did not say where it listens")?
    );
    let mut client = quiet(p.hosts.client(&program)?);
    client.env("LONGHAUL_HOME", p.state.join("client"));
    match put {
        true => client.arg("put").arg(p.source()).arg(url),
        false => client.arg("get").arg(format!("{url}{}", tree::NAME)).arg(format!("{}/", text(p.to))),
    };
    client.args(["--accept-new", "--quiet"]);
    Ok(Ready { server: Some(server), client })
}

fn rsync_daemon(p: &Places<'_>) -> Result<Ready> {
    let (ip, port) = (p.hosts.address()?, p.hosts.free_port()?);
    let settings = p.state.join("rsyncd.conf");
    let me = rustix::process::getuid().as_raw();
    let ids = if me == 0 { "uid = 0\ngid = 0\n" } else { "" };
    let to = text(p.to);
    fs::write(
        &settings,
        format!("use chroot = no\naddress = {ip}\n{ids}[to]\npath = {to}\nread only = no\n"),
    )?;
    let mut server = p.server("rsync")?;
    server.args(["--daemon", "--no-detach", "--port", &port.to_string(), "--config"]).arg(&settings);
    let server = listening(p.hosts, server, port)?;
    let mut client = p.client("rsync")?;
    client.args(["-rt", "--whole-file"]).arg(p.source()).arg(format!("rsync://{ip}:{port}/to/"));
    Ok(Ready { server: Some(server), client })
}

/// An SSH server of our own: its keys and settings are ours, and it lets in the one key that was made for it.
fn sshd(p: &Places<'_>) -> Result<(Process, Vec<String>)> {
    let folder = p.state.join("ssh");
    fs::create_dir_all(&folder)?;
    for name in ["host", "user"] {
        if !folder.join(name).exists() {
            let mut make = p.client("ssh-keygen")?;
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.join(name));
            ensure!(make.status()?.success(), "ssh-keygen failed");
        }
    }
    let (ip, port) = (p.hosts.address()?, p.hosts.free_port()?);
    let folder_text = text(&folder);
    let settings = folder.join("sshd_config");
    fs::write(
        &settings,
        format!(
            "Port {port}\nListenAddress {ip}\nHostKey {folder_text}/host\n\
             AuthorizedKeysFile {folder_text}/user.pub\nStrictModes no\nUsePAM no\nPidFile none\n\
             PasswordAuthentication no\nPermitRootLogin yes\nCiphers {CIPHER}\nSubsystem sftp internal-sftp\n"
        ),
    )?;
    if rustix::process::getuid().is_root() {
        // Where sshd locks its unprivileged part in; distributions make it when their own server starts.
        fs::create_dir_all("/run/sshd")?;
    }
    let mut server = p.server("sshd")?;
    server.arg("-D").arg("-f").arg(&settings);
    let server = listening(p.hosts, server, port)?;
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
    let mut client = p.client("scp")?;
    let to = format!("{}:{}/", p.hosts.address()?, text(p.to));
    client.args(["-r", "-q"]).args(options).arg(p.source()).arg(to);
    Ok(Ready { server: Some(server), client })
}

fn rsync_over_ssh(p: &Places<'_>) -> Result<Ready> {
    let (server, options) = sshd(p)?;
    let mut client = p.client("rsync")?;
    client.args(["-rt", "--whole-file", "-e", &format!("ssh {}", options.join(" "))]);
    client.arg(p.source()).arg(format!("{}:{}/", p.hosts.address()?, text(p.to)));
    Ok(Ready { server: Some(server), client })
}

fn longhaul_over_ssh(p: &Places<'_>) -> Result<Ready> {
    let (server, options) = sshd(p)?;
    let program = p.longhaul()?;
    let mut client = quiet(p.hosts.client(&program)?);
    client.env("LONGHAUL_HOME", p.state.join("client")).args(["put", "--quiet"]).arg(p.source());
    client.arg(format!("{}:{}/", p.hosts.address()?, text(p.to)));
    client.args(["-e", &format!("ssh {}", options.join(" ")), "--remote-program", &text(&program)]);
    Ok(Ready { server: Some(server), client })
}

fn rclone(p: &Places<'_>) -> Result<Ready> {
    let (server, options) = sshd(p)?;
    let of = |name: &str| {
        let found = options.iter().find_map(|o| o.strip_prefix(name)?.strip_prefix('='));
        found.map(str::to_owned).with_context(|| format!("ssh has no {name}"))
    };
    let remote = format!(
        ":sftp,host={},port={},user=root,key_file={},ciphers={CIPHER},shell_type=unix:{}/{}",
        p.hosts.address()?,
        of("Port")?,
        of("IdentityFile")?,
        text(p.to),
        tree::NAME
    );
    let mut client = p.client("rclone")?;
    client.env("RCLONE_CONFIG", "/dev/null").args(["copy", "--transfers", "16", "--checkers", "16"]);
    client.arg(p.source()).arg(remote);
    Ok(Ready { server: Some(server), client })
}

fn gridftp(p: &Places<'_>) -> Result<Ready> {
    let (ip, port) = (p.hosts.address()?, p.hosts.free_port()?);
    // It asks for the names of addresses, and does not start without an answer.
    let mut server = quiet(p.hosts.named_server(&full_path("globus-gridftp-server"), p.state)?);
    let interface = ip.to_string();
    server.args(["-aa", "-control-interface", &interface, "-data-interface", &interface]);
    server.args(["-p", &port.to_string()]);
    if rustix::process::getuid().is_root() {
        server.args(["-anonymous-user", "root", "-allow-root"]);
    }
    let server = listening(p.hosts, server, port)?;
    let mut client = p.client("globus-url-copy")?;
    client.args(["-fast", "-r", "-cd", "-pp", "-cc", "4"]);
    client.arg(format!("file://{}/", text(&p.source())));
    client.arg(format!("ftp://{ip}:{port}{}/{}/", text(p.to), tree::NAME));
    Ok(Ready { server: Some(server), client })
}

/// Ends a server and waits for it and for what it left behind, so that their processor time is known.
pub fn end(server: Option<Process>, hosts: &Hosts) -> Result<()> {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    let pid_of = |pid: u32| i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let Some(mut s) = server {
        if let Some(pid) = pid_of(s.0.id()) {
            let _ = kill_process(pid, Signal::TERM); // it may have ended by itself
        }
        s.0.wait()?;
    }
    // Orphans come to this process, which asked for them.
    for _ in 0..STEPS {
        let left = super::memory::children().into_iter().filter(|pid| !hosts.emulators.contains(pid));
        let left: Vec<Pid> = left.filter_map(pid_of).collect();
        if left.is_empty() {
            return Ok(());
        }
        for pid in left {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG); // the next look says whether it has ended
        }
        pause();
    }
    bail!("processes of a peer still run after {:?}", STEP * STEPS)
}
