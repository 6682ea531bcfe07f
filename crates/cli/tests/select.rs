//! What is selected, replaced and deleted: rsync is run beside `put` and `get` with the same options, and each must leave the same.

mod common;

use common::{Bench, Server, expect, json, stderr, tree};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

/// Seconds since 1970.
const T: u64 = 1_700_000_000;

fn file(at: &Path, data: &str, seconds: u64) {
    fs::create_dir_all(at.parent().unwrap()).unwrap();
    fs::write(at, data).unwrap();
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    fs::File::options().write(true).open(at).unwrap().set_modified(time).unwrap();
}

fn source(s: &Path) {
    for (p, data, t) in [
        ("a.txt", "new a", T + 100),
        ("same.txt", "same", T),
        ("older.txt", "of the source", T),
        ("size", "AAAA", T + 50),
        ("near", "n2", T + 1),
        ("big", &"b".repeat(5_000), T),
        ("sub/c.o", "object", T),
        ("sub/d.txt", "d", T),
        ("sub/deep/x.o", "x", T),
        ("only/here/f", "f", T),
        (".hidden", "h", T),
    ] {
        file(&s.join(p), data, t);
    }
    fs::create_dir_all(s.join("empty")).unwrap();
    std::os::unix::fs::symlink("a.txt", s.join("link")).unwrap();
    fs::write(s.with_file_name("list"), "a.txt\nsub/deep/x.o\nempty\nonly/here/\n").unwrap();
    fs::write(s.with_file_name("rules"), "# rules\n+ deep/\n+ *.o\n- sub/*\n").unwrap();
}

fn destination(d: &Path) {
    let _ = fs::remove_dir_all(d);
    for (p, data, t) in [
        ("a.txt", "old a", T),
        ("same.txt", "same", T),
        ("older.txt", "newer at the destination", T + 500),
        ("size", "BBBB", T),
        ("near", "n1", T),
        ("extra.txt", "extra", T),
        ("extra/dir/f", "extra", T),
        ("extra/dir/g.o", "extra", T),
        ("sub/extra.o", "extra object", T),
        ("sub/c.o", "old object", T - 5),
        ("big", "small", T - 5),
    ] {
        file(&d.join(p), data, t);
    }
    std::os::unix::fs::symlink("nowhere", d.join("sub/old-link")).unwrap();
}

/// Options, status of rsync and of ours.
const CASES: &[(&str, i32, i32)] = &[
    ("", 0, 0),
    ("--delete", 0, 0),
    ("--delete --exclude=*.o", 0, 0),
    ("--delete --delete-excluded --exclude=*.o", 0, 0),
    ("--delete --exclude=/extra --exclude=sub/", 0, 0),
    ("--delete --max-delete=0", 25, 1),
    ("--delete --max-size=1000", 0, 0),
    ("--exclude=sub/", 0, 0),
    ("--exclude=/a.txt --exclude=deep", 0, 0),
    ("--include=*/ --include=*.o --exclude=*", 0, 0),
    ("--include=a.* --exclude=*.txt", 0, 0),
    ("--exclude-from=../rules", 0, 0),
    ("--include-from=../rules --exclude=*.txt", 0, 0),
    ("--max-size=1000", 0, 0),
    ("--min-size=5", 0, 0),
    ("-u", 0, 0),
    ("--update --delete", 0, 0),
    ("--existing", 0, 0),
    ("--ignore-existing", 0, 0),
    ("--existing --ignore-existing --delete", 0, 0),
    ("-b", 0, 0),
    ("-b --suffix=.old", 0, 0),
    ("--backup --delete", 0, 0),
    ("-b --backup-dir=bak", 0, 0),
    ("-b --backup-dir=bak --suffix=.x --delete", 0, 0),
    ("--size-only", 0, 0),
    ("--modify-window=2", 0, 0),
    ("-x", 0, 0),
    ("--files-from=../list", 0, 0),
];

struct Pair {
    b: Bench,
    server: Server,
}

impl Pair {
    fn new(flags: &[&str]) -> Pair {
        let b = Bench::new();
        fs::create_dir_all(b.path("top/s")).unwrap();
        source(&b.path("top/s"));
        let server = b.serve("top", flags);
        Pair { b, server }
    }
    /// Runs put or get with the options from the source to the folder `to`.
    fn run(&self, what: &str, flags: &str, to: &str) -> Output {
        let mut c = self.b.client(&[what, "--accept-new"]);
        c.args(flags.split_whitespace()).current_dir(self.b.path("top/s"));
        match what {
            "put" => c.arg("./").arg(self.server.url(&format!("{to}/"))),
            _ => c.arg(self.server.url("s/")).arg(format!("{}/", self.b.path("top").join(to).display())),
        };
        c.output().unwrap()
    }
}

#[test]
fn options_select_replace_and_delete_as_by_rsync() {
    if Command::new("rsync").arg("--version").output().is_err() {
        eprintln!("skipped: there is no rsync");
        return;
    }
    let p = Pair::new(&["--allow-delete"]);
    let at = |n: &str| p.b.path("top").join(n);
    let mut wrong = Vec::new();
    for (flags, theirs, ours) in CASES {
        destination(&at("rsync"));
        let mut c = Command::new("rsync");
        c.arg("-rlpt").args(flags.split_whitespace()).arg("./").arg(format!("{}/", at("rsync").display()));
        let o = c.current_dir(at("s")).output().unwrap();
        assert_eq!(o.status.code(), Some(*theirs), "rsync {flags}: {}", stderr(&o));
        let want = tree(&at("rsync"));
        for what in ["put", "get"] {
            destination(&at(what));
            let o = p.run(what, flags, what);
            let got = tree(&at(what));
            let more: Vec<_> = got.iter().filter(|(k, v)| want.get(*k) != Some(v)).map(|x| x.0).collect();
            let less: Vec<_> = want.keys().filter(|k| !got.contains_key(*k)).collect();
            if o.status.code() != Some(*ours) || !more.is_empty() || !less.is_empty() {
                wrong.push(format!("{what} {flags}: {:?} {more:?} {less:?} {}", o.status.code(), stderr(&o)));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn dry_run_lists_deletions_and_changes_nothing() {
    let p = Pair::new(&["--allow-delete"]);
    for what in ["put", "get"] {
        let at = p.b.path("top").join(what);
        destination(&at);
        let before = tree(&at);
        let o = p.run(what, "-n --delete --exclude=*.o", what);
        expect(&o, 0);
        assert_eq!(tree(&at), before);
        let said = stderr(&o);
        for name in ["extra.txt", "extra", "extra/dir/f", "sub/old-link"] {
            assert!(said.lines().any(|l| l == format!("would delete: {name}")), "{what} {name}: {said}");
        }
        assert!(!said.contains("g.o") && !said.contains("extra.o"), "{what}: {said}");
    }
}

#[test]
fn nothing_is_deleted_after_a_failure_or_without_permission() {
    let p = Pair::new(&["--allow-delete"]);
    let at = |n: &str| p.b.path("top").join(n);
    // A source that is not there.
    for what in ["put", "get"] {
        destination(&at(what));
        let mut c = p.b.client(&[what, "--accept-new", "--delete"]);
        match what {
            "put" => c.args(["./", "gone"]).arg(p.server.url("put/")).current_dir(at("s")),
            _ => c.args([p.server.url("s/"), p.server.url("gone")]).arg(format!("{}/", at("get").display())),
        };
        let o = c.output().unwrap();
        expect(&o, 1);
        assert!(at(what).join("extra.txt").exists() && at(what).join("only/here/f").exists());
        assert!(stderr(&o).contains("not deleted, since something failed"), "{}", stderr(&o));
    }
    let o = p.run("put", "--delete --json", "put");
    expect(&o, 0);
    assert!(json(&o)["transfer"]["progress"]["deleted"]["removed"].as_u64().unwrap() > 4, "{o:?}");
    assert!(!at("put/extra").exists());

    let other = p.b.serve("top", &[]);
    destination(&at("put"));
    let o =
        p.b.client(&["put", "--accept-new", "--delete", "./", &other.url("put/")])
            .current_dir(at("s"))
            .output()
            .unwrap();
    expect(&o, 6);
    assert!(stderr(&o).contains("--allow-delete"), "{}", stderr(&o));
    assert!(at("put/extra.txt").exists());
    let o = p.b.client(&["rm", "--accept-new", &other.url("put/extra.txt")]).output().unwrap();
    expect(&o, 6);
    assert!(at("put/extra.txt").exists());
}

#[test]
fn link_in_place_of_a_folder_is_deleted_and_not_followed() {
    let p = Pair::new(&["--allow-delete"]);
    let at = |n: &str| p.b.path("top").join(n);
    fs::create_dir_all(at("outside")).unwrap();
    fs::write(at("outside/precious"), "p").unwrap();
    for what in ["put", "get"] {
        destination(&at(what));
        std::os::unix::fs::symlink(at("outside"), at(what).join("door")).unwrap();
        // Of another transfer.
        file(&at(what).join("extra/.x.longhaul-part"), "half", T);
        let o = p.run(what, "--delete", what);
        assert!(matches!(o.status.code(), Some(0)), "{}", stderr(&o));
        assert!(!at(what).join("door").exists() && at("outside/precious").exists());
        assert!(at(what).join("extra/.x.longhaul-part").exists() && !at(what).join("extra/dir").exists());
    }
}

#[test]
fn excluded_files_are_counted() {
    let p = Pair::new(&[]);
    fs::write(p.b.path("top/s/.longhaulignore"), "*.o\n/only\n").unwrap();
    for what in ["put", "get"] {
        let o = p.run(what, "", &format!("new-{what}"));
        expect(&o, 0);
        assert!(stderr(&o).contains("3 left out by .longhaulignore files"), "{}", stderr(&o));
        let at = p.b.path("top").join(format!("new-{what}"));
        assert!(at.join("sub/d.txt").exists() && !at.join("sub/c.o").exists() && !at.join("only").exists());
        expect(&p.run(what, "--no-ignore", &format!("new-{what}")), 0);
        assert_eq!(tree(&at), tree(&p.b.path("top/s")));
    }
}

#[test]
fn remote_commands_change_and_query_files() {
    let p = Pair::new(&["--allow-delete"]);
    let at = |n: &str| p.b.path("top").join(n);
    let go = |args: &[&str]| {
        let urls: Vec<String> = args[1..]
            .iter()
            .map(|a| if a.starts_with('-') { (*a).to_owned() } else { p.server.url(a) })
            .collect();
        let mut all = vec![args[0], "--accept-new"];
        all.extend(urls.iter().map(String::as_str));
        p.b.run(&all)
    };
    let out = |o: &Output| String::from_utf8_lossy(&o.stdout).into_owned();
    expect(&go(&["mkdir", "m", "n"]), 0);
    expect(&go(&["mkdir", "m"]), 1);
    expect(&go(&["mkdir", "-p", "m/x/y", "m"]), 0);
    assert!(at("m/x/y").is_dir() && at("n").is_dir());
    expect(&go(&["mv", "s/a.txt", "m/b.txt"]), 0);
    expect(&go(&["mv", "s/size", "m"]), 0);
    assert!(at("m/b.txt").exists() && at("m/size").exists() && !at("s/a.txt").exists());
    let o = go(&["mv", "m/size", "m/b.txt"]);
    expect(&o, 1);
    assert!(stderr(&o).contains("nothing is replaced"), "{}", stderr(&o));
    expect(&go(&["mv", "m", "m/x"]), 1);

    let o = go(&["stat", "s/big"]);
    expect(&o, 0);
    assert!(
        out(&o).starts_with("-rw") && out(&o).contains(" 5000 ") && out(&o).trim_end().ends_with("s/big"),
        "{o:?}"
    );
    let o = go(&["stat", "s", "--json"]);
    assert_eq!((json(&o)["kind"].as_str(), out(&o).lines().count()), (Some("dir"), 1), "{o:?}");
    let o = go(&["du", "-s", "s"]);
    assert!(out(&o).contains(" s\n") && out(&o).lines().count() == 1, "{o:?}");
    let sum: u64 = out(&o).split_whitespace().next().unwrap().parse().unwrap();
    let all = tree(&at("s")).into_values().filter(|v| v.0 != "folder").map(|v| v.1.len() as u64).sum::<u64>();
    assert_eq!(sum, all);
    assert!(out(&go(&["du", "s"])).contains("s/sub/deep\n"));
    let o = go(&["checksum", "s/sub"]);
    let want = blake3::hash(b"d").to_hex();
    assert!(out(&o).contains(&format!("{want}  s/sub/d.txt")), "{o:?}");
    expect(&go(&["checksum", "gone"]), 1);

    expect(&go(&["rm", "s/sub"]), 1);
    assert!(at("s/sub/d.txt").exists());
    expect(&go(&["rm", "-r", "s/sub", "s/big"]), 0);
    assert!(!at("s/sub").exists() && !at("s/big").exists());
    fs::create_dir_all(at("away")).unwrap();
    fs::write(at("away/f"), "f").unwrap();
    std::os::unix::fs::symlink(at("away"), at("s/door")).unwrap();
    expect(&go(&["rm", "-r", "s/door/f"]), 1);
    expect(&go(&["rm", "-r", "s/door"]), 0);
    assert!(at("away/f").exists() && !at("s/door").is_symlink());
    expect(&go(&["rm", "-r", ""]), 1);
    assert!(at("s").exists());
}

#[test]
fn patterns_in_paths_are_expanded_by_the_server() {
    let p = Pair::new(&["--read-only"]);
    let to = p.b.path("got");
    let o = p.b.run(&[
        "get",
        "--accept-new",
        &p.server.url("s/*.txt"),
        &p.server.url("s/sub/*.[o]"),
        to.to_str().unwrap(),
    ]);
    expect(&o, 0);
    let got: Vec<_> = tree(&to).into_keys().map(|k| k.display().to_string()).collect();
    assert_eq!(got, ["a.txt", "c.o", "older.txt", "same.txt"]);
    expect(&p.b.run(&["get", "--accept-new", &p.server.url("s/*.none"), to.to_str().unwrap()]), 1);
    for command in ["rm", "mkdir"] {
        let o = p.b.run(&[command, "--accept-new", &p.server.url("s/x")]);
        expect(&o, 6);
        assert!(stderr(&o).contains("read-only"), "{}", stderr(&o));
    }
    let only = p.b.serve("top", &["--write-only"]);
    for args in [&["mkdir"][..], &["rm"], &["du"], &["stat"], &["checksum"]] {
        expect(&p.b.run(&[args[0], "--accept-new", &only.url("s/a.txt")]), 6);
    }
}
