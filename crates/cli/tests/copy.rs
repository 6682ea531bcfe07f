//! `longhaul copy` between two servers, with three processes over real sockets.

mod common;

use common::{Bench, Server, bytes, expect, json, longhaul, mixed_tree, stderr, tree};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// A client, and servers `a`, which sends, and `b`.
struct Three {
    bench: Bench,
}

impl Three {
    fn new() -> Three {
        let t = Three { bench: Bench::new() };
        let key = t.path("client.key");
        for home in ["a", "b"] {
            let o =
                longhaul(&t.path(home)).args(["keys", "authorize", key.to_str().unwrap()]).output().unwrap();
            expect(&o, 0);
        }
        t
    }
    fn path(&self, name: &str) -> PathBuf {
        self.bench.path(name)
    }
    /// Serves the folder `NAME-files` of the machine `name`.
    fn serve(&self, name: &str, listen: &str, args: &[&str]) -> Server {
        let folder = self.path(&format!("{name}-files"));
        fs::create_dir_all(&folder).unwrap();
        let mut all = vec!["serve", folder.to_str().unwrap(), "--json", "--listen", listen];
        all.extend(args);
        Server::start(&self.path(name), &all)
    }
    fn a(&self, args: &[&str]) -> Server {
        let args = [&["--allow-copy"], args].concat();
        self.serve("a", "127.0.0.1:0", &args)
    }
    fn b(&self, args: &[&str]) -> Server {
        self.serve("b", "127.0.0.1:0", args)
    }
    fn command(&self, args: &[&str]) -> Command {
        let mut c = self.bench.client(&["copy", "--accept-new"]);
        c.args(args);
        c
    }
    fn copy(&self, args: &[&str]) -> Output {
        let all = [&["copy", "--accept-new"], args].concat();
        self.bench.run(&all)
    }
    fn start(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
    /// The copies of the client at a server.
    fn copies(&self, at: &Server) -> Vec<Value> {
        let o = self.copy(&["--status", "--json", &at.url("")]);
        expect(&o, 0);
        json(&o)["copies"].as_array().unwrap().clone()
    }
}

#[expect(clippy::disallowed_methods, reason = "tests wait for other processes")]
fn wait_ms(n: u64) {
    std::thread::sleep(Duration::from_millis(n));
}

#[track_caller]
fn wait(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..600 {
        if so() {
            return;
        }
        wait_ms(100);
    }
    panic!("waited in vain for {what}");
}

fn unfinished(folder: &Path) -> Vec<PathBuf> {
    tree(folder).into_keys().filter(|p| p.to_string_lossy().contains(".longhaul-")).collect()
}

#[test]
fn tree_is_copied_between_servers_and_skipped_when_repeated() {
    let t = Three::new();
    let log = t.path("b.log");
    let (a, b) = (t.a(&[]), t.b(&["--log", log.to_str().unwrap(), "--log-format", "json"]));
    mixed_tree(&t.path("a-files/tree"));
    let copy = ["--json", &a.url("tree"), &b.url("in/")];
    let o = t.copy(&copy);
    expect(&o, 0);
    let (from, to) = (tree(&t.path("a-files/tree")), tree(&t.path("b-files/in/tree")));
    assert_eq!(from, to);
    let said = json(&o);
    let files = from.values().filter(|(kind, _)| kind.starts_with("file")).count() as u64;
    assert_eq!(said["code"], 0);
    assert_eq!(said["transfer"]["totals"]["files"], files);
    assert_eq!(said["transfer"]["progress"]["files_confirmed"], files);
    assert!(said["bytes_transferred"].as_u64().unwrap() > 6 << 20 && said["job"] == 1, "{said}");
    // The destination has it in its log for whom that was.
    let lines = fs::read_to_string(&log).unwrap();
    let put = lines.lines().find(|l| l.contains("\"put\"")).unwrap_or_else(|| panic!("{lines}"));
    assert!(put.contains(", invited by lh-SHA256:"), "{put}");

    let again = t.copy(&copy);
    expect(&again, 0);
    let p = &json(&again)["transfer"]["progress"];
    assert_eq!((p["files_skipped"].as_u64(), p["bytes_confirmed"].as_u64()), (Some(files), Some(0)));
    // As people see it; several sources, the contents of a folder.
    let plain = t.copy(&[&a.url("tree/deep/"), &a.url("tree/size-100"), &b.url("two")]);
    expect(&plain, 0);
    assert!(stderr(&plain).contains("sent and verified"), "{}", stderr(&plain));
    assert_eq!(tree(&t.path("a-files/tree/deep")), {
        let mut two = tree(&t.path("b-files/two"));
        two.remove(Path::new("size-100")).unwrap();
        two
    });
    let rehearsal = t.copy(&["-n", &a.url("tree"), &b.url("not/")]);
    expect(&rehearsal, 0);
    assert!(stderr(&rehearsal).contains("would transfer"), "{}", stderr(&rehearsal));
    assert!(!t.path("b-files/not").exists());
    assert_eq!(t.copies(&a).len(), 4);
}

#[test]
fn missing_sources_are_reported_and_the_others_are_copied() {
    let t = Three::new();
    let (a, b) = (t.a(&[]), t.b(&[]));
    fs::write(t.path("a-files/one"), "1").unwrap();
    let o = t.copy(&["--json", &a.url("one"), &a.url("gone"), &b.url("in/")]);
    expect(&o, 1);
    let errors = &json(&o)["transfer"]["progress"]["errors"];
    assert_eq!((&errors[0]["path"], &errors[0]["cause"]), (&"gone".into(), &"missing".into()));
    assert_eq!(fs::read(t.path("b-files/in/one")).unwrap(), b"1");
}

#[test]
fn detached_copy_can_be_queried_followed_and_cancelled() {
    let t = Three::new();
    let (a, b) = (t.a(&["--limit", "40mbit"]), t.b(&[]));
    fs::write(t.path("a-files/big"), bytes(1, 16 << 20)).unwrap();
    let o = t.copy(&["--json", "--detach", &a.url("big"), &b.url("one/")]);
    expect(&o, 0);
    assert_eq!(json(&o)["job"], 1);
    let list = t.copies(&a);
    assert_eq!((list.len(), &list[0]["phase"]), (1, &"running".into()), "{list:?}");
    let plain = t.copy(&["--status", &a.url("")]);
    assert!(String::from_utf8_lossy(&plain.stdout).starts_with("1: running, "), "{plain:?}");
    // Ctrl-C leaves it running, and says how to come back.
    let mut follow = t.start(&["--follow", "1", &a.url("")]);
    wait_ms(500);
    let pid = rustix::process::Pid::from_raw(follow.id() as i32).unwrap();
    assert!(follow.try_wait().unwrap().is_none(), "it ended early");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let o = follow.wait_with_output().unwrap();
    expect(&o, 5);
    let said = stderr(&o);
    assert!(said.contains("longhaul copy --follow 1 longhaul://") && said.contains("--cancel 1"), "{said}");
    assert_eq!(t.copies(&a)[0]["phase"], "running");
    // A second one is cancelled; nothing that is not whole has its name.
    expect(&t.copy(&["-d", &a.url("big"), &b.url("two/")]), 0);
    let o = t.copy(&["--json", "--cancel", "2", &a.url("")]);
    expect(&o, 0);
    assert_eq!(json(&o)["transfer"]["error"]["kind"], "interrupted");
    assert!(!t.path("b-files/two/big").exists());
    let o = t.copy(&["--json", "--follow", "1", &a.url("")]);
    expect(&o, 0);
    assert_eq!(json(&o)["transfer"]["totals"]["bytes"], 16 << 20);
    assert_eq!(fs::read(t.path("b-files/one/big")).unwrap(), bytes(1, 16 << 20));
    let phases: Vec<Value> = t.copies(&a).iter().map(|j| j["phase"].clone()).collect();
    assert_eq!(phases, ["ended", "ended"]);
    // Others are told of none of them.
    let other = t.path("other");
    let key = longhaul(&other).args(["keys", "show"]).output().unwrap();
    fs::write(t.path("other.key"), key.stdout).unwrap();
    let file = t.path("other.key");
    expect(&longhaul(&t.path("a")).args(["keys", "authorize", file.to_str().unwrap()]).output().unwrap(), 0);
    let ask = |args: &[&str]| {
        longhaul(&other).args(["copy", "--accept-new", "--json"]).args(args).output().unwrap()
    };
    let o = ask(&["--status", &a.url("")]);
    expect(&o, 0);
    assert_eq!(json(&o)["copies"], Value::Array(Vec::new()));
    for what in ["--follow", "--cancel"] {
        let o = ask(&[what, "1", &a.url("")]);
        expect(&o, 6);
        assert!(stderr(&o).contains("no copy 1 here"), "{}", stderr(&o));
    }
}

#[test]
fn servers_without_allow_copy_refuse_with_an_explanation() {
    let t = Three::new();
    fs::create_dir_all(t.path("a-files")).unwrap();
    fs::write(t.path("a-files/one"), "1").unwrap();
    let refused = |a: &Server, b: &Server, args: &[&str], text: &str| {
        let (from, to) = (a.url("one"), b.url("in/"));
        let o = t.copy(&[args, &[&from, &to]].concat());
        expect(&o, 6);
        assert!(stderr(&o).contains(text), "{}", stderr(&o));
    };
    let b = t.b(&[]);
    let plain = t.serve("a", "127.0.0.1:0", &[]);
    refused(&plain, &b, &[], "--allow-copy");
    expect(&t.copy(&["--status", &plain.url("")]), 6);
    refused(&t.a(&["--write-only"]), &b, &[], "gives none");
    let a = t.a(&[]);
    refused(&a, &t.b(&["--read-only"]), &[], "read-only");
    // A server that listens for others does not connect to its own machine, nor to no machine.
    let open = t.serve("a", "0.0.0.0:0", &["--allow-copy"]);
    let port = open.address.rsplit(':').next().unwrap().to_owned();
    let from = format!("longhaul://127.0.0.1:{port}/one");
    for to in
        ["127.0.0.1:9", "[::1]:9", "169.254.169.254:80", "[::ffff:127.0.0.1]:9", "0.0.0.0:9", "224.0.0.1:9"]
    {
        let o = t.copy(&["--to-address", to, &from, &b.url("in/")]);
        expect(&o, 6);
        assert!(stderr(&o).contains("does not connect to"), "{}", stderr(&o));
    }
    assert!(t.copies(&a).is_empty() && !t.path("b-files/in").exists());
    drop(open);
    let near = t.serve("a", "0.0.0.0:0", &["--allow-copy=near"]);
    let port = near.address.rsplit(':').next().unwrap();
    expect(&t.copy(&[&format!("longhaul://127.0.0.1:{port}/one"), &b.url("in/")]), 0);
    assert_eq!(fs::read(t.path("b-files/in/one")).unwrap(), b"1");
}

#[test]
fn existing_file_is_replaced_only_if_client_and_destination_allow() {
    let t = Three::new();
    let (a, b) = (t.a(&[]), t.b(&["--no-overwrite"]));
    fs::write(t.path("a-files/one"), "new").unwrap();
    fs::write(t.path("b-files/one"), "old one").unwrap();
    expect(&t.copy(&[&a.url("one"), &b.url("")]), 1);
    assert_eq!(fs::read(t.path("b-files/one")).unwrap(), b"old one");
    drop(b);
    let b = t.b(&[]);
    expect(&t.copy(&["--no-overwrite", &a.url("one"), &b.url("")]), 1);
    assert_eq!(fs::read(t.path("b-files/one")).unwrap(), b"old one");
    expect(&t.copy(&[&a.url("one"), &b.url("")]), 0);
    assert_eq!(fs::read(t.path("b-files/one")).unwrap(), b"new");
}

#[test]
fn concurrent_copies_of_a_client_are_limited() {
    let t = Three::new();
    let (a, b) = (t.a(&["--limit", "8mbit"]), t.b(&[]));
    fs::write(t.path("a-files/big"), bytes(1, 32 << 20)).unwrap();
    for n in 0..4 {
        expect(&t.copy(&["-d", &a.url("big"), &b.url(&format!("{n}/"))]), 0);
    }
    let o = t.copy(&["--json", "-d", &a.url("big"), &b.url("5/")]);
    expect(&o, 6);
    assert!(json(&o)["message"].as_str().unwrap().contains("too many copies of this client"), "{o:?}");
    expect(&t.copy(&["--cancel", "2", &a.url("")]), 0);
    wait("a place", || t.copy(&["-d", &a.url("big"), &b.url("5/")]).status.success());
}

#[test]
fn invalid_command_lines_are_refused_with_a_remedy() {
    let t = Three::new();
    let token = format!("lht1_{}", "A".repeat(43));
    for (args, text) in [
        (&["longhaul://h/x"][..], "source and destination are needed"),
        (&["longhaul://h/x", "longhaul://i/y", "longhaul://j/z"], "different machines"),
        (&["iwarp://h/x", "longhaul://i/y"], "iWARP"),
        (&["--status", "tower:x"], "over ssh"),
        (&["--status", "longhaul://h/", "longhaul://i/"], "several servers"),
        (&["-d", "tower:x", "longhaul://i/y"], "cannot detach"),
        (&["--token", &token, "longhaul://h/x", "longhaul://i/y"], "one-time token"),
        (&["-e", "ssh", "longhaul://h/x", "longhaul://i/y"], "--rsh"),
    ] {
        let o = t.copy(args);
        expect(&o, 2);
        assert!(stderr(&o).contains(text), "{args:?}: {}", stderr(&o));
    }
    let o = t.copy(&["--json", "longhaul://h/x"]);
    expect(&o, 2);
    assert!(json(&o)["error"]["text"].as_str().unwrap().contains("source and destination"));
}

#[test]
fn unreachable_destination_is_reported() {
    let t = Three::new();
    let (a, mut b) = (t.a(&[]), t.b(&[]));
    fs::write(t.path("a-files/one"), "1").unwrap();
    // The client reaches the destination, and the source is told of an address where nobody is.
    let o = t.copy(&["--json", "--to-address", "127.0.0.1:9", &a.url("one"), &b.url("in/")]);
    expect(&o, 3);
    let said = json(&o)["message"].as_str().unwrap().to_owned();
    assert!(said.contains("cannot reach") && said.contains("--to-address"), "{said}");
    // An address where another server is: it has not the key that the client has seen.
    let c = t.serve("c", "127.0.0.1:0", &["--allow-any-key"]);
    let o = t.copy(&["--to-address", &c.address, &a.url("one"), &b.url("in/")]);
    assert!([3, 4].contains(&o.status.code().unwrap()), "{o:?}");
    assert!(!t.path("b-files/in").exists() && !t.path("c-files/in").exists());
    b.kill();
    expect(&t.copy(&["--connect-timeout", "1s", &a.url("one"), &b.url("in/")]), 3);
}

/// Source, destination or client is killed at random moments; repeating the command ends byte-identical.
#[test]
fn copies_resume_after_any_process_is_killed_at_random_moments() {
    let kills = if std::env::var_os("LONGHAUL_FULL_TESTS").is_some() { 60 } else { 21 };
    let t = Three::new();
    let files = 24;
    fs::create_dir_all(t.path("a-files/src")).unwrap();
    for i in 0..files {
        fs::write(t.path(&format!("a-files/src/f{i:02}")), bytes(i, 1 << 20)).unwrap();
    }
    fs::write(t.path("a-files/src/large"), bytes(99, 24 << 20)).unwrap();
    let want = tree(&t.path("a-files/src"));
    let limit = ["--limit", "24mbit"];
    let (mut a, mut b) = (t.a(&limit), t.b(&[]));
    let (at_a, at_b) = (a.address.clone(), b.address.clone());
    let copy = ["--json", &a.url("src/"), &b.url("in/")];
    let mut rng = base::Rng::from_u64(7);
    for kill in 0..kills {
        let mut client = t.start(&copy);
        wait_ms(200 + rng.below(700));
        match kill % 3 {
            0 => a.kill(),
            1 => b.kill(),
            _ => client.kill().unwrap(),
        }
        wait_ms(rng.below(200));
        // What has its name is whole, whoever was killed.
        if let Ok(names) = fs::read_dir(t.path("b-files/in")) {
            for n in names.map(|n| n.unwrap().file_name()).filter(|n| !n.to_string_lossy().starts_with('.')) {
                let at = t.path("b-files/in").join(&n);
                assert!(
                    fs::read(&at).unwrap() == want[Path::new(&n)].1,
                    "{n:?} is not whole after kill {kill}"
                );
            }
        }
        if kill % 3 == 0 {
            a = t.serve("a", &at_a, &["--allow-copy", "--limit", "24mbit"]);
        }
        if kill % 3 == 1 {
            b = t.serve("b", &at_b, &[]);
        }
        // A client whose server was killed notices after a while; it is not waited for.
        let _ = client.kill();
        let _ = client.wait();
        for j in t.copies(&a).iter().filter(|j| j["phase"] != "ended") {
            t.copy(&["--cancel", &j["job"].to_string(), &a.url("")]);
        }
    }
    drop(a);
    let a = t.serve("a", &at_a, &["--allow-copy"]);
    let o = t.copy(&copy);
    expect(&o, 0);
    assert_eq!(tree(&t.path("b-files/in")), want);
    assert!(unfinished(&t.path("b-files/in")).is_empty());
    let p = &json(&o)["transfer"]["progress"];
    let kept = p["bytes_skipped"].as_u64().unwrap() + p["bytes_resumed"].as_u64().unwrap();
    assert!(kept > 0, "nothing was resumed: {p}");
    drop((a, b));
}

/// The destination is killed and comes back with other memory: it has forgotten who was invited, and says so.
#[test]
fn restarted_destination_has_no_invitations() {
    let t = Three::new();
    let (a, mut b) = (t.a(&["--limit", "16mbit"]), t.b(&[]));
    let at_b = b.address.clone();
    fs::write(t.path("a-files/big"), bytes(1, 24 << 20)).unwrap();
    expect(&t.copy(&["-d", &a.url("big"), &b.url("in/")]), 0);
    wait("the copy to move", || t.copies(&a)[0]["bytes_confirmed"].as_u64().unwrap() > 1 << 20);
    b.kill();
    let _b = t.serve("b", &at_b, &[]);
    wait("the copy to end", || t.copies(&a)[0]["phase"] == "ended");
    let o = t.copy(&["--json", "--follow", "1", &a.url("")]);
    assert!([4, 5].contains(&o.status.code().unwrap()), "{o:?}");
    assert!(!t.path("b-files/in/big").exists());
    drop(a);
    let a = t.a(&[]);
    let o = t.copy(&["--json", &a.url("big"), &format!("longhaul://{at_b}/in/")]);
    expect(&o, 0);
    assert!(json(&o)["transfer"]["progress"]["bytes_resumed"].as_u64().unwrap() > 0, "{o:?}");
}
