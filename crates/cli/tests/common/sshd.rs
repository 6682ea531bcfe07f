//! A real sshd on a port of its own, with keys and settings of its own, in a folder that goes with the test.
#![allow(dead_code)] // each test file uses its part of this

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// What a test without it prints.
pub const SKIPPED: &str = "skipped: sshd and ssh (openssh-server, openssh-client) are not installed";

/// Where `apt` and others put it; it must be started by its full path.
const PLACES: [&str; 3] = ["/usr/sbin/sshd", "/usr/bin/sshd", "/usr/local/sbin/sshd"];

/// A machine called `tower`, of which the user's home is [`Sshd::home`].
pub struct Sshd {
    child: Child,
    folder: PathBuf,
    pub port: u16,
    /// The home folder there.
    pub home: PathBuf,
    /// Where programs are looked for there first; `longhaul` is in it.
    pub programs: PathBuf,
}

impl Sshd {
    /// Starts it below `folder`; `None` where there is none.
    pub fn start(folder: &Path) -> Option<Sshd> {
        Sshd::start_by(folder, "127.0.0.1", &[])
    }

    /// The same with another address, started by `before`: `ip netns exec NAME`.
    pub fn start_by(folder: &Path, address: &str, before: &[&str]) -> Option<Sshd> {
        let sshd = PLACES.iter().find(|p| Path::new(p).exists())?;
        Command::new("ssh").arg("-V").stderr(Stdio::null()).status().ok()?;
        let at = |n: &str| folder.join(n);
        let (home, programs) = (at("home of anna"), at("bin"));
        for d in [&home, &programs] {
            fs::create_dir_all(d).unwrap();
        }
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_longhaul"), programs.join("longhaul")).unwrap();
        for key in ["host_key", "user_key"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(at(key))
                .status();
            assert!(made.unwrap().success());
        }
        fs::copy(at("user_key.pub"), at("authorized_keys")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let show = |n: &str| at(n).display().to_string();
        let config = format!(
            "Port {port}\nListenAddress {address}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nPidFile none\nForceCommand {}\nLogLevel INFO\n",
            show("host_key"),
            show("authorized_keys"),
            show("login")
        );
        fs::write(at("sshd_config"), config).unwrap();
        let host = format!(
            "HostName {address}\nPort {port}\nUser {}\nIdentityFile {}\nIdentitiesOnly yes\nIdentityAgent none\n\
             UserKnownHostsFile {}\nStrictHostKeyChecking no\nLogLevel ERROR\nBatchMode yes\n",
            whoami(),
            show("user_key"),
            show("known_hosts")
        );
        // Of the second, connections share one that stays.
        let shared = format!("ControlMaster auto\nControlPath {}\nControlPersist 20\n", show("control"));
        let nowhere = "Host nowhere\nHostName nowhere.invalid\nBatchMode yes\n";
        let client = format!("Host tower\n{host}Host shared\n{host}{shared}{nowhere}");
        fs::write(at("ssh_config"), client).unwrap();
        let _ = fs::create_dir("/run/sshd"); // root's sshd wants it
        let mut line: Vec<String> = before.iter().map(|s| (*s).to_owned()).collect();
        line.extend([(*sshd).to_owned(), "-D".into(), "-e".into(), "-f".into(), show("sshd_config")]);
        let mut child = Command::new(&line[0])
            .args(&line[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut log = String::new();
        while !log.contains("Server listening") {
            assert!(said.read_line(&mut log).unwrap() > 0, "sshd does not start: {log}");
        }
        // It must be able to say more.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let s = Sshd { child, folder: folder.to_owned(), port, home, programs };
        s.login("");
        Some(s)
    }

    /// Has the shell there run `script` before each command.
    pub fn login(&self, script: &str) {
        let path = self.folder.join("login");
        let text = format!(
            "#!/bin/sh\nexport HOME='{}' PATH='{}':/usr/bin:/bin\ncd \"$HOME\"\n{script}\nexec ${{SHELL:-/bin/sh}} -c \
             \"$SSH_ORIGINAL_COMMAND\"\n",
            self.home.display(),
            self.programs.display()
        );
        // Nobody may run it while it is written.
        let new = self.folder.join("login.new");
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, path).unwrap();
    }

    /// What `-e` names, so that this sshd is called tower.
    pub fn rsh(&self) -> String {
        format!("ssh -F {}", self.folder.join("ssh_config").display())
    }

    /// A command there, without Longhaul.
    pub fn ssh(&self, command: &str) -> Output {
        let config = self.folder.join("ssh_config");
        Command::new("ssh")
            .arg("-F")
            .arg(config)
            .args(["tower", command])
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// Processes of the far end: those that work in the home folder there.
    pub fn far_ends(&self) -> Vec<i32> {
        let of = |e: fs::DirEntry| {
            let pid: i32 = e.file_name().to_str()?.parse().ok()?;
            let line = fs::read(e.path().join("cmdline")).ok()?;
            let ours = line.windows(10).any(|w| w == b"--over-ssh")
                && fs::read_link(e.path().join("cwd")).ok()? == self.home;
            ours.then_some(pid)
        };
        fs::read_dir("/proc").unwrap().filter_map(|e| of(e.ok()?)).collect()
    }
}

fn whoami() -> String {
    let o = Command::new("id").arg("-un").output().unwrap();
    String::from_utf8(o.stdout).unwrap().trim().to_owned()
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
