//! Files and folders that others could change, what a process keeps from other processes, and whose key stands in the log.

#![allow(clippy::disallowed_methods, reason = "a test waits for other processes")]

mod common;

use common::{Bench, Server, bytes, expect, json, longhaul, stderr};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A test that waits longer has failed.
const WATCHDOG: Duration = Duration::from_secs(60);

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
/// It says what is wrong with what, and the command that mends it.
#[track_caller]
fn refused(o: &Output, command: &str, path: &Path) {
    expect(o, 2);
    let wanted = format!("`{command} {}`", path.display());
    assert!(stderr(o).contains(&wanted), "{wanted}: {}", stderr(o));
}

#[test]
fn state_folder_writable_by_others_is_refused_by_every_command() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    let url = server.url("");
    expect(&b.run(&["ls", "--accept-new", &url]), 0);
    let (srv, keys) = (b.path("srv"), b.path("keys"));
    fs::copy(b.server.join("authorized_keys"), &keys).unwrap();
    let srv = srv.to_str().unwrap().to_owned();
    let serve = |home: &Path, args: &[&str]| {
        // None of them comes so far as to listen.
        longhaul(home).args(["serve", &srv, "--listen", "127.0.0.1:0"]).args(args).output().unwrap()
    };

    // The folder itself, and one above it.
    for open in [b.client.clone(), b.dir.path().to_owned()] {
        chmod(&open, 0o777);
        for args in
            [&["ls", &url][..], &["put", &srv, &url], &["perf", "client", &server.address], &["keys", "show"]]
        {
            refused(&b.run(args), "chmod go-w", &open);
        }
        refused(&serve(&b.client, &[]), "chmod go-w", &open);
        chmod(&open, 0o700);
    }
    // Each file.
    for (file, mode, command) in [
        ("host_key", 0o640, "chmod 600"),
        ("host_key", 0o602, "chmod 600"),
        ("known_hosts", 0o666, "chmod go-w"),
        ("known_hosts", 0o620, "chmod go-w"),
    ] {
        let path = b.client.join(file);
        let before = fs::metadata(&path).unwrap().mode();
        chmod(&path, mode);
        refused(&b.run(&["ls", &url]), command, &path);
        chmod(&path, before & 0o777);
    }
    expect(&b.run(&["ls", &url]), 0);
    chmod(&b.server.join("authorized_keys"), 0o666);
    refused(&serve(&b.server, &[]), "chmod go-w", &b.server.join("authorized_keys"));
    let o = longhaul(&b.server)
        .args(["keys", "authorize", b.path("client.key").to_str().unwrap()])
        .output()
        .unwrap();
    refused(&o, "chmod go-w", &b.server.join("authorized_keys"));
    chmod(&b.server.join("authorized_keys"), 0o600);
    // A list that the command line names.
    chmod(&keys, 0o646);
    refused(&serve(&b.server, &["--authorized-keys", keys.to_str().unwrap()]), "chmod go-w", &keys);
    let o = longhaul(&b.server)
        .args(["perf", "server", "--listen", "127.0.0.1:0", "--authorized-keys", keys.to_str().unwrap()])
        .output()
        .unwrap();
    refused(&o, "chmod go-w", &keys);
}

#[test]
fn authorized_keys_that_become_writable_by_others_admit_nobody() {
    let b = Bench::new();
    let keys = b.path("lists/keys");
    fs::create_dir(b.path("lists")).unwrap();
    fs::copy(b.server.join("authorized_keys"), &keys).unwrap();
    let server = b.serve("srv", &["--authorized-keys", keys.to_str().unwrap()]);
    let url = server.url("");
    expect(&b.run(&["ls", "--accept-new", &url]), 0);
    for (path, open, good) in [(&keys, 0o622, 0o600), (&b.path("lists"), 0o777, 0o755)] {
        chmod(path, open);
        expect(&b.run(&["ls", &url]), 4);
        chmod(path, good);
        expect(&b.run(&["ls", &url]), 0);
    }
}

/// What a program does that a user other than root starts.
fn as_a_user(b: &Bench, c: &mut Command) -> u32 {
    let us = rustix::process::geteuid().as_raw();
    if us != 0 {
        return us;
    }
    let user = 65_534;
    for p in [b.dir.path().to_owned(), b.path("user"), b.path("program")] {
        std::os::unix::fs::chown(&p, Some(user), Some(user)).unwrap();
    }
    c.uid(user).gid(user);
    user
}

#[test]
fn process_with_keys_cannot_be_traced_and_leaves_no_core_dump() {
    for (debug, shut) in [("", true), ("1", false)] {
        let b = Bench::new();
        fs::create_dir(b.path("user")).unwrap();
        // Where another user may run it.
        // Copied by another process: a child of another test's would inherit the open file, which cannot be run then.
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_longhaul")).arg(b.path("program")).status();
        assert!(copied.unwrap().success());
        chmod(&b.path("program"), 0o755);
        let mut c = Command::new(b.path("program"));
        c.env("LONGHAUL_HOME", b.path("user")).env("LONGHAUL_DEBUG", debug).current_dir(b.dir.path());
        c.args(["perf", "server", "--json", "--listen", "127.0.0.1:0", "--no-control"]);
        let user = as_a_user(&b, &mut c);
        let server = Server::start_command(c);
        // proc(5): the files belong to root where the process is not dumpable.
        let owner = fs::metadata(format!("/proc/{}/maps", server.child.id())).unwrap().uid();
        assert_eq!(owner, if shut { 0 } else { user }, "LONGHAUL_DEBUG={debug}");
    }
}

/// Lines of a server's log.
fn log(path: &Path, until: &str, times: usize) -> Vec<String> {
    let start = Instant::now();
    loop {
        let text = fs::read_to_string(path).unwrap();
        if text.matches(until).count() >= times {
            return text.lines().map(str::to_owned).collect();
        }
        assert!(start.elapsed() < WATCHDOG, "waiting for {times} of {until:?}: {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
/// A server with -v whose standard error goes to a file.
fn logged(b: &Bench, args: &[&str], to: &Path) -> Child {
    let mut c = longhaul(&b.server);
    c.args(["-v"]).args(args).args(["--json", "--listen", "127.0.0.1:0"]);
    c.stdout(Stdio::piped()).stderr(fs::File::create(to).unwrap());
    let mut child = c.spawn().unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = ready["listening"].as_str().unwrap().to_owned();
    Child { child, address, _out: out }
}
struct Child {
    child: std::process::Child,
    address: String,
    _out: std::io::BufReader<std::process::ChildStdout>,
}
impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn session_log_names_the_key_and_matches_the_client_totals() {
    let b = Bench::new();
    let print = |home: &Path| {
        let o = longhaul(home).args(["keys", "fingerprint"]).output().unwrap();
        String::from_utf8(o.stdout).unwrap().trim().to_owned()
    };
    let (mine, stranger) = (print(&b.client), print(&b.path("stranger")));
    let (srv, src) = (b.path("srv"), b.path("src"));
    fs::create_dir_all(&srv).unwrap();
    fs::create_dir_all(srv.join("src/way")).unwrap();
    fs::create_dir_all(&src).unwrap();
    for (i, len) in [10, 5_000, 3 << 20].into_iter().enumerate() {
        fs::write(src.join(format!("{i}")), bytes(i as u64, len)).unwrap();
    }
    fs::write(src.join("way"), b"in the way of a folder").unwrap();
    let server = logged(&b, &["serve", srv.to_str().unwrap()], &b.path("log"));
    let url = format!("longhaul://{}/", server.address);
    let (src, to) = (src.to_str().unwrap().to_owned(), b.path("back"));
    let to = to.to_str().unwrap();
    let put = b.run(&["put", "--json", "--accept-new", &src, &url]);
    expect(&put, 1);
    expect(&b.run(&["get", "--json", &format!("{url}src/0"), to]), 0);
    expect(&b.run(&["ls", &url]), 0);
    expect(&b.run(&["get", &format!("{url}none"), to]), 1);
    expect(&longhaul(&b.path("stranger")).args(["ls", "--accept-new", &url]).output().unwrap(), 4);
    let lines = log(&b.path("log"), "session ended", 5);
    let ended: Vec<&String> = lines.iter().filter(|l| l.contains("session ended")).collect();
    let totals = &json(&put)["transfer"]["totals"];
    let (files, bytes, failed) = (&totals["files"], &totals["bytes"], &totals["failed"]);
    let wanted = [
        ("put", format!("files={files} bytes={bytes} failed={failed}")),
        ("get", "files=1 bytes=10 failed=0".to_owned()),
        ("list", "status=\"done\"".to_owned()),
        ("get", "files=0 bytes=0 failed=1".to_owned()),
    ];
    assert_eq!(*files, 3);
    for (operation, text) in wanted {
        let found =
            ended.iter().find(|l| l.contains(&format!("operation=\"{operation}\"")) && l.contains(&text));
        assert!(
            found.is_some_and(|l| l.contains(&mine) && l.contains("client=")),
            "{operation} {text}: {ended:#?}"
        );
    }
    for l in lines.iter().filter(|l| l.contains("session ") || l.contains("is a folder")) {
        assert!(l.contains(&mine), "{l}");
    }
    let away: Vec<_> = lines.iter().filter(|l| l.contains("was rejected")).collect();
    assert!(!away.is_empty() && away.iter().all(|l| l.contains(&stranger)), "{lines:#?}");
    drop(server);

    let server = logged(&b, &["perf", "server"], &b.path("perf.log"));
    expect(&b.run(&["perf", "client", "--accept-new", "--time", "200ms", &server.address]), 0);
    let lines = log(&b.path("perf.log"), "measurement ended", 1);
    for text in ["measurement started", "measurement ended"] {
        let l = lines.iter().find(|l| l.contains(text)).unwrap();
        assert!(l.contains(&mine) && l.contains("client="), "{l}");
    }
}

#[test]
fn clean_removes_and_lists_what_a_killed_transfer_left() {
    let b = Bench::new();
    let (src, srv) = (b.path("src"), b.path("srv"));
    fs::create_dir(&src).unwrap();
    fs::write(src.join("large"), bytes(1, 16 << 20)).unwrap();
    let mut server = b.serve("srv", &[]);
    let mut put =
        b.client(&["put", "--accept-new", "--limit", "20M", src.to_str().unwrap(), &server.url("")]);
    let mut put = put.stderr(Stdio::null()).spawn().unwrap();
    let journal = srv.join("src/.large.longhaul-journal");
    let start = Instant::now();
    while fs::metadata(&journal).map_or(0, |m| m.len()) < 200 {
        assert!(start.elapsed() < WATCHDOG, "no journal");
        std::thread::sleep(Duration::from_millis(5));
    }
    // While it runs, nothing goes.
    let clean = |args: &[&str]| {
        longhaul(&b.server).args(["clean", srv.to_str().unwrap()]).args(args).output().unwrap()
    };
    let o = clean(&["--older", "0"]);
    expect(&o, 0);
    assert!(o.stdout.is_empty() && stderr(&o).contains("0 removed"), "{}", stderr(&o));
    put.kill().unwrap();
    put.wait().unwrap();
    server.kill();
    assert!(journal.exists());
    // Too young.
    let o = clean(&[]);
    expect(&o, 0);
    assert!(o.stdout.is_empty() && stderr(&o).contains("3 kept"), "{}", stderr(&o));
    let names = ["src/.large.longhaul-journal", "src/.large.longhaul-part", ".src.longhaul-session"];
    let o = clean(&["--older", "0", "-n"]);
    expect(&o, 0);
    let text = String::from_utf8(o.stdout.clone()).unwrap();
    assert!(names.iter().all(|n| text.contains(n)) && text.contains("MiB"), "{text}");
    assert!(names.iter().all(|n| srv.join(n).exists()));
    let o = clean(&["--older", "0", "--json"]);
    expect(&o, 0);
    let lines: Vec<serde_json::Value> =
        String::from_utf8(o.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let mut removed: Vec<_> =
        lines.iter().filter(|l| l["result"] == "removed").map(|l| l["path"].as_str().unwrap()).collect();
    removed.sort_unstable();
    assert_eq!(removed, [".src.longhaul-session", "src/.large.longhaul-journal", "src/.large.longhaul-part"]);
    assert!(lines.iter().any(|l| l["kind"] == "part" && l["bytes"].as_u64().unwrap() > 0), "{lines:?}");
    assert!(names.iter().all(|n| !srv.join(n).exists()));
    let o = longhaul(&b.server).args(["clean", b.path("none").to_str().unwrap()]).output().unwrap();
    expect(&o, 2);
    assert!(stderr(&o).contains("none"), "{}", stderr(&o));
}
