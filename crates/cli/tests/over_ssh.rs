//! Transfers over ssh, with a real sshd. Without openssh-server and openssh-client the tests say so and pass: see the list of skips
//! in CONTRIBUTING.md.

mod common;
#[path = "common/hosts.rs"]
mod hosts;
#[path = "common/sshd.rs"]
mod sshd;

use common::{bytes, expect, json, longhaul, mixed_tree, stderr, tree};
use sshd::{SKIPPED, Sshd};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A machine here and one that ssh reaches.
struct Both {
    dir: TempDir,
    tower: Sshd,
}

impl Both {
    fn new() -> Option<Both> {
        let dir = tempfile::tempdir().unwrap();
        let Some(tower) = Sshd::start(dir.path()) else {
            println!("{SKIPPED}");
            return None;
        };
        Some(Both { dir, tower })
    }
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    fn there(&self, name: &str) -> PathBuf {
        self.tower.home.join(name)
    }
    fn command<S: AsRef<OsStr>>(&self, args: &[S]) -> Command {
        let mut c = longhaul(&self.path("client"));
        let (first, rest) = args.split_first().unwrap();
        c.arg(first).args(["-e", &self.tower.rsh()]).args(rest);
        // No answer waits for a terminal.
        c.current_dir(self.dir.path());
        c
    }
    fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Output {
        self.command(args).output().unwrap()
    }
    fn start<S: AsRef<OsStr>>(&self, args: &[S]) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
    fn far_ends_go(&self) {
        wait("the far end to go", || self.tower.far_ends().is_empty());
    }
}

/// Waits until something is so.
#[track_caller]
fn wait(what: &str, so: impl Fn() -> bool) {
    for _ in 0..1_200 {
        if so() {
            return;
        }
        pause();
    }
    panic!("waited in vain for {what}");
}

#[expect(clippy::disallowed_methods, reason = "tests wait for other processes")]
fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

#[expect(clippy::disallowed_methods, reason = "what is measured is real time")]
fn now() -> Instant {
    Instant::now()
}

fn same(a: &Path, b: &Path) {
    assert!(tree(a) == tree(b), "{} and {} differ", a.display(), b.display());
}

#[test]
fn trees_transfer_both_ways_over_ssh_without_prompts_or_leftovers() {
    let Some(b) = Both::new() else { return };
    mixed_tree(&b.path("data"));
    expect(&b.run(&["put", "data/", "tower:results"]), 0);
    same(&b.path("data"), &b.there("results"));
    let o = b.run(&["put", "--json", "data/", "tower:results"]);
    expect(&o, 0);
    assert_eq!(json(&o)["transfer"]["progress"]["bytes_sent"].as_u64().map(|n| n < 100_000), Some(true));
    assert_eq!(json(&o)["transport"], "longhaul", "{o:?}");
    expect(&b.run(&["get", "tower:results", "tower:results/size-100", "back/"]), 0);
    same(&b.path("data"), &b.path("back/results"));
    assert_eq!(fs::read(b.path("back/size-100")).unwrap(), fs::read(b.path("data/size-100")).unwrap());
    let o = b.run(&["ls", "-r", "tower:"]);
    expect(&o, 0);
    assert!(String::from_utf8_lossy(&o.stdout).contains("results/deep/er/f199"), "{o:?}");
    b.far_ends_go();
    // No file says who the other end was; the far end wrote what it was sent, and nothing else.
    assert!(!b.path("client/known_hosts").exists());
    let mut left: Vec<_> = fs::read_dir(&b.tower.home).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.retain(|n| n != "results");
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn destination_names_follow_rsync() {
    let Some(b) = Both::new() else { return };
    fs::write(b.path("file"), "content").unwrap();
    fs::create_dir_all(b.there("real/sub")).unwrap();
    std::os::unix::fs::symlink("real", b.there("link")).unwrap();
    let odd = [
        "with space",
        "quo'te\"s",
        "-rf",
        "$(touch x)",
        "new\nline",
        "~",
        "a;b",
        "*",
        "back\\slash",
        "c:d",
        "grüße",
    ];
    for name in odd {
        expect(&b.run(&["put", "file", &format!("tower:./{name}")]), 0);
        assert_eq!(fs::read(b.there(name)).unwrap(), b"content", "{name}");
        expect(&b.run(&["get", &format!("tower:./{name}"), "fetched/"]), 0);
        assert_eq!(fs::read(b.path("fetched").join(name)).unwrap(), b"content", "{name}");
    }
    let place = [b"tower:real/".as_slice(), b"\xff\xfe"].concat();
    expect(&b.run(&[OsStr::new("put"), OsStr::new("file"), OsStr::from_bytes(&place)]), 0);
    assert!(b.there("real").join(OsStr::from_bytes(b"\xff\xfe")).exists());
    for (place, there) in [
        ("tower:", "file"),
        ("tower:-x", "-x"),
        ("tower:link", "real/file"),
        ("tower:link/sub/", "real/sub/file"),
        ("tower:~/real/new/", "real/new/file"),
        ("tower:deep/er/", "deep/er/file"),
        ("tower:real/../up", "up"),
    ] {
        expect(&b.run(&["put", "file", place]), 0);
        assert!(b.there(there).is_file(), "{place}");
    }
    let full = format!("tower:{}/absolute", b.tower.home.display());
    expect(&b.run(&["put", "file", &full]), 0);
    assert!(b.there("absolute").is_file());
    // What is not there, and what cannot be meant.
    let o = b.run(&["get", "tower:nope", "."]);
    expect(&o, 1);
    assert!(stderr(&o).contains("nope"), "{o:?}");
    expect(&b.run(&["get", "tower:file", "other:place"]), 2);
    let o = b.run(&["put", "file", "tower:nope/../x"]);
    expect(&o, 2);
    assert!(stderr(&o).contains("cannot find ./nope/../x"), "{o:?}");
    b.far_ends_go();
}

#[test]
fn persistent_shared_ssh_connections_are_used() {
    let Some(b) = Both::new() else { return };
    fs::write(b.path("file"), "content").unwrap();
    for name in ["one", "two"] {
        expect(&b.run(&["put", "file", &format!("shared:{name}")]), 0);
        assert!(b.there(name).is_file() && b.path("control").exists());
    }
    b.far_ends_go();
    let o = b.run(&["put", "--remote-program", "/nowhere", "file", "shared:"]);
    expect(&o, 3);
    assert!(stderr(&o).contains("there is no /nowhere"), "{o:?}");
    let config = b.path("ssh_config");
    let end = Command::new("ssh").arg("-F").arg(config).args(["-O", "exit", "shared"]).output().unwrap();
    assert!(end.status.success(), "{end:?}");
}

#[test]
fn standard_input_and_output_transfer_over_ssh() {
    let Some(b) = Both::new() else { return };
    let content = bytes(5, 2 << 20);
    fs::write(b.path("content"), &content).unwrap();
    fs::create_dir(b.there("folder")).unwrap();
    let put = |to: &str| {
        let input = fs::File::open(b.path("content")).unwrap();
        b.command(&["put", "-", to]).stdin(input).output().unwrap()
    };
    expect(&put("tower:folder/new"), 0);
    let o = b.run(&["get", "tower:folder/new", "-"]);
    expect(&o, 0);
    assert!(o.stdout == content);
    expect(&put("tower:"), 2);
    let o = put("tower:folder");
    assert_ne!(o.status.code(), Some(0), "{o:?}");
    println!("{}", stderr(&o));
    assert_eq!(fs::read_dir(b.there("folder")).unwrap().count(), 1, "something stayed");
}

#[test]
fn login_shell_output_is_skipped() {
    let Some(b) = Both::new() else { return };
    fs::write(b.path("file"), bytes(1, 3 << 20)).unwrap();
    b.tower.login("echo Welcome to tower; printf 'no end of line'; echo 'on the other way' >&2");
    let o = b.run(&["put", "file", "tower:"]);
    expect(&o, 0);
    assert!(stderr(&o).contains("on the other way") && !stderr(&o).contains("Welcome"), "{o:?}");
    assert_eq!(fs::read(b.there("file")).unwrap(), fs::read(b.path("file")).unwrap());
    b.tower.login("echo Under '\x1b[2J' repair; exit 0");
    let o = b.run(&["put", "file", "tower:"]);
    expect(&o, 3);
    assert!(stderr(&o).contains("printed instead: Under \\x1b[2J repair"), "{o:?}");
    b.tower.login("yes");
    let o = b.run(&["ls", "tower:"]);
    expect(&o, 3);
    assert!(stderr(&o).contains("more than 64 KiB came before one") && stderr(&o).contains("y | y"), "{o:?}");
}

/// Moves a tree there and back, by ssh alone.
fn all_through_ssh(b: &Both) {
    mixed_tree(&b.path("data"));
    fs::write(b.path("data/large"), bytes(2, 40 << 20)).unwrap();
    let o = b.run(&["put", "--json", "data", "tower:"]);
    expect(&o, 0);
    assert_eq!(stderr(&o).matches("by UDP").count(), 1, "{o:?}");
    assert_eq!((&json(&o)["transport"], &json(&o)["iwarp"]["tls"]), (&"iwarp".into(), &true.into()), "{o:?}");
    same(&b.path("data"), &b.there("data"));
    expect(&b.run(&["get", "--cc", "bbr", "--limit", "2gbit", "tower:data", "back"]), 0);
    same(&b.path("data"), &b.path("back/data"));
    let o = b.run(&["ls", "tower:data/deep"]);
    expect(&o, 0);
    assert!(String::from_utf8_lossy(&o.stdout).contains("with space"), "{o:?}");
    assert!(!b.path("client/known_hosts").exists());
    b.far_ends_go();
}

#[test]
fn deltas_and_compression_work_over_ssh() {
    let Some(b) = Both::new() else { return };
    b.tower.login("export SSH_CONNECTION='192.0.2.9 1 192.0.2.1 22'");
    let old = bytes(4, 12 << 20);
    let mut new = old.clone();
    new.splice(3_000_000..3_000_000, vec![b'x'; 1 << 20]);
    fs::write(b.path("f"), &new).unwrap();
    fs::write(b.there("f"), &old).unwrap();
    let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    fs::File::options().write(true).open(b.there("f")).unwrap().set_modified(long_ago).unwrap();
    let o = b.run(&["put", "--json", "--no-whole-file", "-z", "f", "tower:"]);
    expect(&o, 0);
    assert_eq!(json(&o)["transport"], "iwarp", "{o:?}");
    assert!(fs::read(b.there("f")).unwrap() == new);
    let p = &json(&o)["transfer"]["progress"];
    let n = |k: &str| p[k].as_u64().unwrap();
    assert!(n("bytes_matched") > 11 << 20 && n("bytes_before_compression") >= 1 << 20, "{p}");
    assert!(n("bytes_sent") < 1 << 19, "{p}");
}

#[test]
fn transfer_goes_through_ssh_when_udp_is_blocked() {
    let Some(b) = Both::new() else { return };
    // An address that is there for documents only (RFC 5737): nobody answers.
    b.tower.login("export SSH_CONNECTION='192.0.2.9 1 192.0.2.1 22'");
    all_through_ssh(&b);
}

#[test]
fn dropped_udp_is_detected_in_a_namespace() {
    let Some(net) = hosts::Hosts::new("s", 1_500) else {
        println!("skipped: network namespaces need root and the ip command");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let Some(tower) = Sshd::start_by(dir.path(), "10.99.0.2", &["ip", "netns", "exec", &net.names[1]]) else {
        println!("{SKIPPED}");
        return;
    };
    fs::write(dir.path().join("file"), bytes(3, 1 << 20)).unwrap();
    let put = |to: &str| {
        let mut c = net.longhaul(0, &dir.path().join("client"));
        let args = ["put", "--json", "--port-range", "41000:41003", "-e", &tower.rsh(), "file", to];
        let o = c.args(args).current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
        expect(&o, 0);
        (json(&o)["transport"].clone(), stderr(&o))
    };
    assert_eq!(put("tower:by-udp").0, "longhaul");
    // Packets that come for these ports are dropped: the table of local addresses comes after that.
    let rules: [&[&str]; 3] = [
        &["pref", "200", "lookup", "local"],
        &["pref", "100", "iif", &net.devices[1], "ipproto", "udp", "dport", "41000-41003", "blackhole"],
        &["pref", "101", "iif", "lo", "ipproto", "udp", "sport", "41000-41003", "blackhole"],
    ];
    let ip = |args: &[&str]| hosts::ip(&[&["-n", &net.names[1], "rule"], args].concat());
    if !rules.iter().all(|r| ip(&[&["add"], *r].concat())) || !ip(&["del", "pref", "0"]) {
        println!("skipped: this kernel has no rules of routing for protocols");
        return;
    }
    let (transport, said) = put("tower:by-ssh");
    assert!(transport == "iwarp" && said.matches("by UDP").count() == 1, "{transport} {said}");
    assert_eq!(fs::read(tower.home.join("by-ssh")).unwrap(), fs::read(dir.path().join("file")).unwrap());
}

#[test]
fn bootstrap_installs_a_missing_program() {
    let Some(b) = Both::new() else { return };
    fs::write(b.path("file"), "content").unwrap();
    fs::remove_file(b.tower.programs.join("longhaul")).unwrap();
    for shell in ["", "export SHELL=/bin/bash"] {
        b.tower.login(shell);
        let o = b.run(&["put", "file", "tower:"]);
        expect(&o, 3);
        let said = stderr(&o);
        let want =
            "longhaul: cannot start longhaul on tower: it is not installed there; try --bootstrap, or copy ";
        assert!(said.contains(want) && said.lines().count() == 1, "{said}");
    }
    let o = b.run(&["put", "--remote-program", "/nowhere/longhaul", "file", "tower:"]);
    expect(&o, 3);
    assert!(stderr(&o).contains("there is no /nowhere/longhaul"), "{o:?}");
    let program = env!("CARGO_BIN_EXE_longhaul");
    expect(&b.run(&["put", "--remote-program", &format!("env A=b {program}"), "file", "tower:one"]), 0);

    b.tower.login("echo Welcome");
    let o = b.run(&["put", "--bootstrap", "file", "tower:two"]);
    expect(&o, 0);
    assert!(stderr(&o).contains("copying longhaul to tower"), "{o:?}");
    let copy = b.there(&format!(".cache/longhaul/longhaul-{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(fs::metadata(&copy).unwrap().len(), fs::metadata(program).unwrap().len());
    assert_eq!(fs::read_dir(copy.parent().unwrap()).unwrap().count(), 1);
    let o = b.run(&["put", "--bootstrap", "file", "tower:three"]);
    expect(&o, 0);
    assert!(!stderr(&o).contains("copying"), "{o:?}");
    assert!(["one", "two", "three"].iter().all(|n| b.there(n).is_file()));

    fs::remove_file(&copy).unwrap();
    b.tower
        .login("uname() { echo Linux riscv128; }; case $SSH_ORIGINAL_COMMAND in uname*) uname; exit;; esac");
    let o = b.run(&["put", "--bootstrap", "file", "tower:"]);
    expect(&o, 2);
    assert!(stderr(&o).contains("Linux riscv128"), "{o:?}");
}

#[test]
fn ssh_errors_are_passed_on() {
    let Some(b) = Both::new() else { return };
    fs::write(b.path("file"), "content").unwrap();
    let o = b.run(&["put", "file", "nowhere:"]);
    expect(&o, 3);
    let said = stderr(&o);
    assert!(
        said.contains("nowhere.invalid") && said.contains("longhaul: cannot reach nowhere by ssh"),
        "{said}"
    );
    fs::write(b.path("authorized_keys"), "").unwrap();
    let o = b.run(&["ls", "tower:"]);
    expect(&o, 3);
    assert!(stderr(&o).contains("Permission denied"), "{o:?}");
    let o = longhaul(&b.path("client")).args(["ls", "-e", "no-such-program", "tower:"]).output().unwrap();
    expect(&o, 2);
    assert!(stderr(&o).contains("cannot start no-such-program"), "{o:?}");
    for bad in [
        &["ls", "tower::x"][..],
        &["ls", "-oX=y:z"],
        &["ls", "--plain", "tower:"],
        &["ls", "--token", "x", "tower:"],
    ] {
        expect(&b.run(bad), 2);
    }
    expect(&b.run(&["ls", "--bootstrap", "longhaul://tower/"]), 2);
}

/// A transfer that takes its time, and is under way.
fn under_way(b: &Both, more: &[&str]) -> Child {
    fs::write(b.path("large"), bytes(4, 60 << 20)).unwrap();
    let child = b.start(&[&["put", "--limit", "80mbit"], more, &["large", "tower:"]].concat());
    let part = b.there(".large.longhaul-journal");
    wait("the transfer to be under way", || {
        fs::metadata(&part).is_ok_and(|m| m.len() > 0) && b.tower.far_ends().len() == 1
    });
    child
}

fn ends_and_goes_on(b: &Both, signal: rustix::process::Signal) {
    let mut child = under_way(b, &[]);
    // Nobody who lists processes learns the secret.
    for e in fs::read_dir("/proc").unwrap() {
        let line = fs::read(e.unwrap().path().join("cmdline")).unwrap_or_default();
        assert!(!line.windows(5).any(|w| w == b"lht1_"));
    }
    for _ in 0..20 {
        pause(); // so that there is something to go on with
    }
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
    let code = child.wait().unwrap().code();
    assert_eq!(code, (signal == rustix::process::Signal::INT).then_some(5));
    b.far_ends_go();
    let o = b.run(&["put", "--json", "large", "tower:"]);
    expect(&o, 0);
    let resumed = json(&o)["transfer"]["progress"]["bytes_resumed"].as_u64().unwrap();
    assert!(resumed > 0, "{o:?}");
    assert_eq!(fs::read(b.there("large")).unwrap(), fs::read(b.path("large")).unwrap());
}

#[test]
fn killed_client_ends_the_remote_server_and_a_repeat_resumes() {
    let Some(b) = Both::new() else { return };
    ends_and_goes_on(&b, rustix::process::Signal::KILL);
}

#[test]
fn interrupted_client_ends_the_remote_server_also_through_ssh() {
    let Some(b) = Both::new() else { return };
    b.tower.login("export SSH_CONNECTION='192.0.2.9 1 192.0.2.1 22'");
    ends_and_goes_on(&b, rustix::process::Signal::INT);
}

#[test]
fn death_of_the_remote_server_is_reported_at_once() {
    let Some(b) = Both::new() else { return };
    for (through_ssh, under_way_already) in [(false, true), (true, true), (true, false)] {
        b.tower.login(if through_ssh { "export SSH_CONNECTION='192.0.2.9 1 192.0.2.1 22'" } else { "" });
        let child = if under_way_already {
            let _ = fs::remove_file(b.there(".large.longhaul-journal"));
            under_way(&b, &["--no-resume"])
        } else {
            // While it tries to get through by UDP, most likely.
            let child = b.start(&["put", "large", "tower:x"]);
            wait("the far end", || b.tower.far_ends().len() == 1);
            child
        };
        let pid = rustix::process::Pid::from_raw(b.tower.far_ends()[0]).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let begun = now();
        let o = child.wait_with_output().unwrap();
        println!("noticed within {:.2} s", begun.elapsed().as_secs_f64());
        let said = stderr(&o);
        // It may not have answered yet.
        let early =
            !under_way_already && o.status.code() == Some(3) && said.contains("no answer came from it");
        assert!(early || o.status.code() == Some(5) && said.contains("longhaul on tower has ended"), "{o:?}");
    }
}

#[test]
fn time_to_first_byte_beside_plain_ssh_is_printed() {
    let Some(b) = Both::new() else { return };
    fs::write(b.there("file"), "content").unwrap();
    let of = |f: &dyn Fn()| {
        let mut all: Vec<f64> = (0..5)
            .map(|_| {
                let begun = now();
                f();
                begun.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        all.sort_by(f64::total_cmp);
        all[2]
    };
    let ssh = of(&|| assert!(b.tower.ssh("cat file").status.success()));
    let ours = of(&|| expect(&b.run(&["get", "tower:file", "-"]), 0));
    println!(
        "median of 5: ssh cat {ssh:.0} ms, longhaul get {ours:.0} ms, {:.0} ms beyond ssh's own",
        ours - ssh
    );
}
