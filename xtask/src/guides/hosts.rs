//! The hosts of a guide: a network namespace each with a shell of its own, joined by a bridge, with files of their own in /srv and /etc.

use crate::process::{root, run, succeeds};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::parse::HERE;

/// Ends the output of a command; the status stands behind it.
const MARK: &str = "@@@guide-status";
/// A command that takes longer has failed.
const STUCK: Duration = Duration::from_secs(300);
/// What begins so serves until it is ended.
const SERVERS: &[&str] = &["longhaul serve", "longhaul perf server", "longhaul wan relay"];

/// Without it, nothing is done for ssh: what is tried with it has this as its condition.
const SSHD: &str = "/usr/sbin/sshd";
/// On the host that connects: a key, and settings in the place of the system's.
const SSH_FROM: &str = "ssh-keygen -q -t ed25519 -N '' -f user.key && \
    printf 'IdentityFile %s/user.key\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n' $PWD > ssh.conf && \
    mount --bind ssh.conf /etc/ssh/ssh_config";
/// On the other one: a server that lets that key in, to a home folder of the guide's.
const SSH_TO: &str = "mkdir -p /run/sshd && ssh-keygen -q -t ed25519 -N '' -f host.key && \
    { /usr/sbin/sshd -D -f /dev/null -o HostKey=$PWD/host.key -o AuthorizedKeysFile=$PWD/user.key.pub -o StrictModes=no \
    -o PidFile=none -o \"ForceCommand export HOME=$HOME PATH=$PATH; cd; eval \\\"\\$SSH_ORIGINAL_COMMAND\\\"\" \
    >/dev/null 2>&1 & } && sleep 1";

/// All hosts of a guide.
pub struct Hosts {
    folder: PathBuf,
    /// Where `longhaul` is.
    programs: PathBuf,
    hosts: Vec<Host>,
    /// The host that no prompt names has this machine's network.
    pub own_network: bool,
}

struct Host {
    name: String,
    shell: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

fn ip(args: &[&str]) -> Result<()> {
    run(Command::new("ip").args(args))
}

/// Whether hosts can be made here.
pub fn supported() -> bool {
    let name = format!("lhg{}try", std::process::id());
    let made = succeeds(Command::new("ip").args(["netns", "add", &name]));
    made && succeeds(Command::new("ip").args(["netns", "del", &name]))
}

impl Hosts {
    /// No host yet; they are made when they are named first.
    pub fn new(folder: &Path, programs: &Path) -> Result<Hosts> {
        fs::create_dir_all(folder)?;
        let hosts =
            Hosts { folder: folder.into(), programs: programs.into(), hosts: Vec::new(), own_network: false };
        ip(&["netns", "add", &hosts.namespace("switch")])?;
        ip(&["-n", &hosts.namespace("switch"), "link", "add", "br0", "type", "bridge"])?;
        ip(&["-n", &hosts.namespace("switch"), "link", "set", "br0", "up"])?;
        Ok(hosts)
    }

    fn namespace(&self, host: &str) -> String {
        format!("lhg{}{host}", std::process::id())
    }

    /// Writes a file where every host finds it.
    pub fn write(&self, name: &str, content: &str) -> Result<()> {
        ensure!(!name.contains('/'), "a file of a guide has a name without folders, not {name}");
        fs::write(self.folder.join(name), content)?;
        Ok(())
    }

    fn host(&mut self, name: &str) -> Result<&mut Host> {
        let at = match self.hosts.iter().position(|h| h.name == name) {
            Some(at) => at,
            None => {
                let host = self.make(name)?;
                self.hosts.push(host);
                self.hosts.len() - 1
            }
        };
        Ok(&mut self.hosts[at])
    }

    /// A host with an address, as the others know it.
    fn connect(&self, name: &str, n: usize) -> Result<()> {
        let (ns, switch) = (self.namespace(name), self.namespace("switch"));
        ip(&["netns", "add", &ns])?;
        let port = format!("p{n}");
        ip(&["link", "add", "eth0", "netns", &ns, "type", "veth", "peer", "name", &port, "netns", &switch])?;
        ip(&["-n", &switch, "link", "set", &port, "master", "br0", "up"])?;
        ip(&["-n", &ns, "addr", "add", &format!("10.77.0.{n}/24"), "dev", "eth0"])?;
        ip(&["-n", &ns, "link", "set", "eth0", "up"])?;
        ip(&["-n", &ns, "link", "set", "lo", "up"])?;
        // Names are known everywhere: the file is one.
        let names = self.folder.join("hosts");
        let mut text = fs::read_to_string(&names).unwrap_or_else(|_| "127.0.0.1 localhost\n".to_owned());
        text.push_str(&format!("10.77.0.{n} {name} {name}.example\n"));
        fs::write(&names, text)?;
        Ok(())
    }

    fn make(&self, name: &str) -> Result<Host> {
        let mut c = if self.own_network && name == HERE {
            fs::write(self.folder.join("hosts"), fs::read("/etc/hosts")?)?;
            Command::new("unshare")
        } else {
            self.connect(name, self.hosts.len() + 1)?;
            let mut c = Command::new("ip");
            c.args(["netns", "exec", &self.namespace(name), "unshare"]);
            c
        };
        let home = self.folder.join(format!("home-{name}"));
        fs::create_dir_all(&home)?;
        c.args(["--mount", "--propagation", "private", "bash"]);
        c.env("HOME", &home)
            .env("LONGHAUL_HOME", home.join(".longhaul"))
            .env("LONGHAUL_RUN", home.join(".run"));
        let path = std::env::var("PATH").unwrap_or_default();
        c.env("PATH", format!("{}:{path}", self.programs.display()))
            .env_remove("RUST_LOG")
            .env("LC_ALL", "C.UTF-8")
            .env("EXAMPLES", root().join("docs/examples"));
        c.current_dir(&self.folder).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut shell = c.spawn().context("cannot start a shell")?;
        let (to, from) = (shell.stdin.take(), shell.stdout.take().context("piped")?);
        let mut host = Host { name: name.into(), shell, to, from: BufReader::new(from) };
        let prepare = format!(
            "mount --bind {names} /etc/hosts && mount -t tmpfs tmpfs /srv && mkdir -p $LONGHAUL_RUN && \
             sudo() {{ [ \"$1\" = -E ] && shift; \"$@\"; }}",
            names = self.folder.join("hosts").display()
        );
        let (said, status) = host.type_in(&prepare)?;
        ensure!(status == 0, "host {name} cannot be made: {said}");
        Ok(host)
    }

    /// Runs a command as it is typed; what it prints, and its status. A server goes on, and what it prints until it is ready counts.
    pub fn run(&mut self, host: &str, command: &str, answer: Option<&str>) -> Result<(String, i32)> {
        let folder = self.folder.clone();
        let h = self.host(host)?;
        let bare = command.split('#').next().unwrap_or_default().trim();
        if SERVERS.iter().any(|s| bare.starts_with(s)) {
            return h.start(bare, &folder);
        }
        match answer {
            Some(text) => {
                let file = folder.join("typed.sh");
                fs::write(&file, format!("{command}\n"))?;
                h.type_in(&format!("echo '{text}' | script -qec 'sh {}' /dev/null", file.display()))
            }
            None => h.type_in(command),
        }
    }

    /// Has ssh get from one host into another.
    pub fn let_in_by_ssh(&mut self, from: &str, to: &str) -> Result<()> {
        if !Path::new(SSHD).is_file() {
            return Ok(());
        }
        for (host, command) in [(from, SSH_FROM), (to, SSH_TO)] {
            let (said, status) = self.host(host)?.type_in(command)?;
            ensure!(status == 0, "ssh from {from} to {to} cannot be prepared: {said}");
        }
        Ok(())
    }

    /// Ends what runs in the background.
    pub fn stop(&mut self) -> Result<()> {
        for h in &mut self.hosts {
            h.type_in("kill $(jobs -p) 2>/dev/null; wait 2>/dev/null; true")?;
        }
        Ok(())
    }
}

impl Host {
    /// Starts a server; what it has said once it is ready.
    fn start(&mut self, command: &str, folder: &Path) -> Result<(String, i32)> {
        let log = folder.join(format!("{}.log", self.name));
        let log = log.display();
        self.type_in(&format!(
            "{command} > {log} 2>&1 & for i in $(seq 100); do [ -s {log} ] && break; sleep 0.1; done; sleep 0.5; kill -0 $!; e=$?; \
             cat {log}; (exit $e)"
        ))
    }

    fn type_in(&mut self, command: &str) -> Result<(String, i32)> {
        let to = self.to.as_mut().context("the shell is gone")?;
        writeln!(to, "{{ {command}\n}} </dev/null 2>&1; printf '\\n{MARK} %s\\n' $?")?;
        to.flush()?;
        // Whoever takes too long is ended, with all that it started.
        let (done, over) = channel::<()>();
        let shell = self.shell.id();
        let watchdog = std::thread::spawn(move || {
            let stuck = over.recv_timeout(STUCK) == Err(RecvTimeoutError::Timeout);
            if stuck {
                let _ = run(Command::new("pkill").args(["-KILL", "-P", &shell.to_string()]));
                let _ = run(Command::new("kill").args(["-KILL", &shell.to_string()]));
            }
        });
        let answer = self.answer(command);
        drop(done);
        let _ = watchdog.join();
        answer
    }

    /// What is printed up to the mark, and the status behind it.
    fn answer(&mut self, command: &str) -> Result<(String, i32)> {
        let (mut text, mut line) = (String::new(), Vec::new());
        loop {
            line.clear();
            if self.from.read_until(b'\n', &mut line)? == 0 {
                bail!("`{command}` on {} did not end: {text}", self.name);
            }
            let shown = String::from_utf8_lossy(&line);
            if let Some(status) = shown.strip_prefix(MARK) {
                return Ok((text.replace('\r', "").trim_end().to_owned(), status.trim().parse()?));
            }
            text.push_str(&shown);
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = self.stop();
        for h in &mut self.hosts {
            h.to = None; // the shell reads its end
            let _ = h.shell.wait();
        }
        let is_apart = |h: &&Host| !(self.own_network && h.name == HERE);
        let names: Vec<String> = self.hosts.iter().filter(is_apart).map(|h| h.name.clone()).collect();
        for name in names.iter().map(String::as_str).chain(["switch"]) {
            let _ = ip(&["netns", "del", &self.namespace(name)]);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
