//! The servers, and the keys of all.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Attackers, each with a key that may connect, and an address.
pub const ATTACKERS: usize = 2;

/// Folders of everybody.
pub struct Place {
    dir: tempfile::TempDir,
    pub longhaul: PathBuf,
    pub client: PathBuf,
    server: PathBuf,
    pub attackers: Vec<PathBuf>,
}

impl Place {
    /// With keys that the servers know.
    pub fn new(longhaul: &Path) -> Result<Place> {
        let longhaul = longhaul.canonicalize().with_context(|| format!("no {}", longhaul.display()))?;
        let dir = tempfile::tempdir()?;
        let folder = |name: &str| dir.path().join(name);
        let attackers = (0..ATTACKERS).map(|n| folder(&format!("attacker{n}"))).collect();
        let p = Place { longhaul, client: folder("client"), server: folder("server"), attackers, dir };
        for (n, home) in p.attackers.iter().chain([&p.client]).enumerate() {
            let key = p.longhaul(home, &["keys", "show"]).output()?;
            ensure!(key.status.success(), "no key: {}", String::from_utf8_lossy(&key.stderr));
            let file = p.path(&format!("key{n}"));
            fs::write(&file, key.stdout)?;
            let done = p.longhaul(&p.server, &["keys", "authorize"]).arg(&file).output()?;
            ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        }
        Ok(p)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program, with the keys of `home`.
    pub fn longhaul(&self, home: &Path, args: &[&str]) -> Command {
        let mut c = Command::new(&self.longhaul);
        c.args(args).env("LONGHAUL_HOME", home).env_remove("LONGHAUL_TOKEN").env_remove("RUST_LOG");
        c.stdin(Stdio::null());
        c
    }
}

/// A running server.
pub struct Server {
    pub name: &'static str,
    pub at: SocketAddr,
    child: Child,
}

impl Server {
    /// `serve` of a folder with a large and some small files.
    pub fn serve(p: &Place, descriptors: u64) -> Result<Server> {
        let folder = p.path("served");
        fs::create_dir_all(folder.join("small"))?;
        fs::File::create(folder.join("large"))?.set_len(64 << 20)?;
        fs::write(folder.join("data"), vec![7; 32 << 20])?;
        for n in 0..1_000 {
            fs::write(folder.join(format!("small/{n}")), vec![n as u8; 8 << 10])?;
        }
        let folder = folder.to_string_lossy().into_owned();
        Server::start("serve", p, &["serve", &folder, "--no-sync"], descriptors)
    }

    /// `perf server`.
    pub fn perf(p: &Place, descriptors: u64) -> Result<Server> {
        Server::start("perf server", p, &["perf", "server"], descriptors)
    }

    fn start(name: &'static str, p: &Place, what: &[&str], descriptors: u64) -> Result<Server> {
        let limit = format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"");
        let mut c = Command::new("sh");
        c.args(["-c", &limit])
            .arg(&p.longhaul)
            .args(what)
            .env("LONGHAUL_HOME", &p.server)
            .env("RUST_LOG", "error");
        c.args(["--json", "--iwarp", "tls", "--listen", "127.0.0.1:0"]);
        let log = fs::File::create(p.path(&name.replace(' ', "-")))?;
        let mut child = c.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().context("piped")?).read_line(&mut line)?;
        let ready: serde_json::Value =
            serde_json::from_str(&line).with_context(|| format!("{name} said {line:?}"))?;
        let at = ready["listening"].as_str().context("where it listens")?.parse()?;
        Ok(Server { name, at, child })
    }

    /// What it holds.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).map_or(usize::MAX, Iterator::count)
    }

    /// What each of them is, for a report of one that was lost.
    pub fn what_is_open(&self) -> Vec<String> {
        let all = fs::read_dir(format!("/proc/{}/fd", self.child.id())).into_iter().flatten().flatten();
        let shown = |e: fs::DirEntry| {
            let to = fs::read_link(e.path()).unwrap_or_default();
            format!("{} {}", e.file_name().display(), to.display())
        };
        all.map(shown).collect()
    }

    /// Memory that was in use at most, in bytes (VmHWM).
    pub fn most_memory(&self) -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).context("it has ended")?;
        let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("no VmHWM")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? << 10)
    }

    /// Whether it runs.
    pub fn runs(&self) -> bool {
        Path::new(&format!("/proc/{}/fd/0", self.child.id())).exists()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}
