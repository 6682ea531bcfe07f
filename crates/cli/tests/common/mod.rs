//! Runs the real program, each end with keys of its own.
#![allow(dead_code)] // each test file uses its part of this

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use tempfile::TempDir;

/// The program under test.
pub fn longhaul(home: &Path) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_longhaul"));
    c.env("LONGHAUL_HOME", home).env_remove("LONGHAUL_TOKEN").env_remove("RUST_LOG").stdin(Stdio::null());
    c
}

/// A command that takes longer has failed: something waits for what never comes.
const STUCK: std::time::Duration = std::time::Duration::from_secs(600);

/// A folder for one test with a home for each end.
pub struct Bench {
    pub dir: TempDir,
    pub client: PathBuf,
    pub server: PathBuf,
}

impl Bench {
    /// Client and server that know each other: the client's key may connect.
    pub fn new() -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let (client, server) = (dir.path().join("client"), dir.path().join("server"));
        let b = Bench { client, server, dir };
        let key = b.client(&["keys", "show"]).output().unwrap();
        assert!(key.status.success());
        let file = b.path("client.key");
        fs::write(&file, key.stdout).unwrap();
        let file = file.to_str().unwrap();
        assert!(longhaul(&b.server).args(["keys", "authorize", file]).output().unwrap().status.success());
        b
    }
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    /// A command of the client.
    pub fn client(&self, args: &[&str]) -> Command {
        let mut c = longhaul(&self.client);
        c.args(args);
        c
    }
    /// Runs a command of the client to its end. One that does not end fails, with what it says that it waits for.
    pub fn run(&self, args: &[&str]) -> Output {
        let mut c = self.client(args);
        if !args.iter().any(|a| a.starts_with("-v")) {
            // Said by transfers that stand still only.
            c.env("RUST_LOG", "warn,longhaul_mover=debug");
        }
        let child = c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let stuck = std::thread::spawn(move || {
            let stuck = end.recv_timeout(STUCK) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            if stuck {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            stuck
        });
        let o = child.wait_with_output().unwrap();
        drop(ended);
        assert!(!stuck.join().unwrap(), "{args:?} did not end: {}", stderr(&o));
        o
    }
    /// Serves `folder`, made if it is not there, on a free port.
    pub fn serve(&self, folder: &str, args: &[&str]) -> Server {
        self.serve_at(folder, "127.0.0.1:0", args)
    }
    pub fn serve_at(&self, folder: &str, listen: &str, args: &[&str]) -> Server {
        let path = self.path(folder);
        fs::create_dir_all(&path).unwrap();
        let mut all = vec!["serve", path.to_str().unwrap(), "--json", "--listen", listen];
        all.extend(args);
        Server::start(&self.server, &all)
    }
}

/// A running server. Killed when dropped.
pub struct Server {
    pub child: Child,
    /// ADDR:PORT.
    pub address: String,
    pub ready: Value,
    out: BufReader<ChildStdout>,
}

impl Server {
    pub fn start(home: &Path, args: &[&str]) -> Server {
        let mut c = longhaul(home);
        c.args(args);
        Server::start_command(c)
    }
    /// The same of any command that says in JSON where it listens.
    pub fn start_command(mut c: Command) -> Server {
        let mut child = c.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {c:?} said {line:?}"));
        let address = ready["listening"].as_str().unwrap().to_owned();
        Server { child, address, ready, out }
    }
    pub fn url(&self, path: &str) -> String {
        format!("longhaul://{}/{path}", self.address)
    }
    /// The next line of JSON that it says, or the last one when it has ended.
    pub fn next_line(&mut self) -> Value {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or(Value::Null)
    }
    /// Ends it with SIGTERM; its last JSON line and exit code.
    pub fn stop(mut self) -> (Value, Option<i32>) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        let code = self.child.wait().unwrap().code();
        (serde_json::from_str(&line).unwrap_or(Value::Null), code)
    }
    /// kill -9.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes that depend on every bit of `seed`.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    base::Rng::from_u64(seed).fill(&mut out);
    out
}

/// Files of many sizes, odd names, a link, an empty folder.
pub fn mixed_tree(root: &Path) {
    use std::os::unix::ffi::OsStrExt as _;
    fs::create_dir_all(root.join("deep/er/still")).unwrap();
    fs::create_dir_all(root.join("empty")).unwrap();
    for (i, len) in [0, 1, 100, 4_096, 65_536, 1 << 20, (5 << 20) + 17].into_iter().enumerate() {
        fs::write(root.join(format!("size-{len}")), bytes(i as u64, len)).unwrap();
    }
    for i in 0..200 {
        fs::write(root.join(format!("deep/er/f{i:03}")), bytes(1_000 + i, (i * 37) as usize)).unwrap();
    }
    for name in ["with space", "grüße.txt", "-rf", "quo'te\"s", "new\nline", "100%"] {
        fs::write(root.join("deep").join(name), name).unwrap();
    }
    fs::write(root.join(std::ffi::OsStr::from_bytes(b"not-utf8-\xff\xfe")), b"bytes").unwrap();
    fs::write(root.join("script"), b"#!/bin/sh\n").unwrap();
    fs::set_permissions(root.join("script"), fs::Permissions::from_mode(0o750)).unwrap();
    std::os::unix::fs::symlink("size-100", root.join("link")).unwrap();
}

/// Everything below `root`: kind and permissions, and contents.
pub fn tree(root: &Path) -> BTreeMap<PathBuf, (String, Vec<u8>)> {
    fn walk(root: &Path, below: &Path, out: &mut BTreeMap<PathBuf, (String, Vec<u8>)>) {
        for e in fs::read_dir(root.join(below)).unwrap() {
            let path = below.join(e.unwrap().file_name());
            let full = root.join(&path);
            let meta = fs::symlink_metadata(&full).unwrap();
            let mode = meta.permissions().mode() & 0o777;
            let entry = if meta.is_symlink() {
                ("link".into(), fs::read_link(&full).unwrap().into_os_string().into_encoded_bytes())
            } else if meta.is_dir() {
                walk(root, &path, out);
                ("folder".into(), vec![])
            } else {
                (format!("file {mode:o}"), fs::read(&full).unwrap())
            };
            out.insert(path, entry);
        }
    }
    let mut out = BTreeMap::new();
    walk(root, Path::new(""), &mut out);
    out
}

/// The last line of standard output as JSON.
pub fn json(o: &Output) -> Value {
    let text = String::from_utf8_lossy(&o.stdout);
    let last = text.lines().last().unwrap_or("");
    serde_json::from_str(last).unwrap_or_else(|e| panic!("{e}: {text} {}", stderr(o)))
}

/// Payload that a transfer of this end carried by its connection, each byte once, whichever way it went.
pub fn carried(o: &Output) -> u64 {
    let c = &json(o)["connection"];
    let n = |k: &str| c[k].as_u64().unwrap();
    (n("payload_sent") - n("payload_retransmitted")).max(n("payload_received"))
}

pub fn stderr(o: &Output) -> String {
    String::from_utf8_lossy(&o.stderr).into_owned()
}

/// Checks the exit code, and shows what was said when it is another one.
#[track_caller]
pub fn expect(o: &Output, code: i32) {
    assert_eq!(
        o.status.code(),
        Some(code),
        "stdout: {}\nstderr: {}",
        String::from_utf8_lossy(&o.stdout),
        stderr(o)
    );
}
