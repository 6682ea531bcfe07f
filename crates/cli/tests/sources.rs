//! Sources that cannot go as they are: each is named, and the others go.

mod common;

use common::{Bench, Server, expect, json, longhaul, stderr};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::process::Output;

/// Somebody without rights (`nobody`).
const NOBODY: u32 = 65_534;

/// Both directions: sends the sources of `b`'s folder `s`, or fetches them from a server of that folder, into `into`.
fn both(b: &Bench, sources: &[&str], into: &str, look: impl Fn(&str, &Output)) {
    fs::create_dir_all(b.path("s")).unwrap();
    let server = b.serve("top", &[]);
    let mut put = b.client(&["put", "--accept-new", "--json"]);
    put.args(sources).arg(server.url(&format!("{into}-put/"))).current_dir(b.path("s"));
    look(&format!("top/{into}-put"), &put.output().unwrap());
    let server: Server = b.serve("s", &[]);
    let mut get = b.client(&["get", "--accept-new", "--json"]);
    get.args(sources.iter().map(|s| server.url(s))).arg(b.path(&format!("{into}-get/")));
    look(&format!("{into}-get"), &get.output().unwrap());
}
/// Paths and causes of what failed.
fn failed(o: &Output) -> Vec<(String, String)> {
    let errors = json(o)["transfer"]["progress"]["errors"].as_array().unwrap().clone();
    let text = |v: &serde_json::Value| v.as_str().unwrap().to_owned();
    errors.iter().map(|e| (text(&e["path"]), text(&e["cause"]))).collect()
}
fn pairs(v: &[(&str, &str)]) -> Vec<(String, String)> {
    v.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn missing_sources_are_reported_and_the_others_transferred() {
    let b = Bench::new();
    fs::create_dir_all(b.path("s/d")).unwrap();
    fs::write(b.path("s/f"), "f").unwrap();
    fs::write(b.path("s/d/g"), "g").unwrap();
    let sources = ["gone", "f", "away/x", "d", "f/below", "f/", "d/g"];
    both(&b, &sources, "in", |at, o| {
        expect(o, 1);
        let mut e = failed(o);
        // Those that the client can tell by itself come first.
        e.sort();
        let all = ["away/x", "f/", "f/below", "gone"].map(|p| (p, "missing"));
        let e: Vec<_> = e.into_iter().map(|(p, c)| (if p == "f" { "f/".into() } else { p }, c)).collect();
        assert_eq!(e, pairs(&all), "{at}");
        for (p, data) in [("f", "f"), ("d/g", "g"), ("g", "g")] {
            assert_eq!(fs::read_to_string(b.path(at).join(p)).unwrap(), data, "{at}/{p}");
        }
    });
    both(&b, &["gone", "away"], "none", |at, o| {
        expect(o, 1);
        assert_eq!(failed(o), pairs(&[("gone", "missing"), ("away", "missing")]));
        assert!(!at.ends_with("-put") || !b.path(at).exists(), "no folder is made for nothing");
    });
    // In words, with what to do.
    let server = b.serve("top", &[]);
    let o = b.run(&["put", "--accept-new", b.path("s/gone").to_str().unwrap(), &server.url("")]);
    expect(&o, 1);
    assert!(stderr(&o).contains("gone: cannot be read: No such file"), "{}", stderr(&o));
}

#[test]
fn unreadable_sources_are_reported_and_the_others_transferred() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be several users");
        return;
    }
    let b = Bench::new();
    for d in ["s/closed", "s/open"] {
        fs::create_dir_all(b.path(d)).unwrap();
        fs::write(b.path(d).join("f"), "f").unwrap();
    }
    fs::write(b.path("s/secret"), "no").unwrap();
    for (p, mode) in [("s/closed", 0o700), ("s/secret", 0o600), ("s", 0o755), ("", 0o755)] {
        fs::set_permissions(b.path(p), fs::Permissions::from_mode(mode)).unwrap();
    }
    let server = b.serve("top", &[]);
    chown_all(&b.client);
    let mut put = longhaul(&b.client);
    put.args(["put", "--accept-new", "--json", "closed", "closed/f", "open", "secret", &server.url("")]);
    let o = put.current_dir(b.path("s")).uid(NOBODY).gid(NOBODY).output().unwrap();
    expect(&o, 1);
    let mut e = failed(&o);
    e.sort();
    assert_eq!(e, pairs(&[("closed", "denied"), ("closed/f", "denied"), ("secret", "denied")]));
    assert_eq!(fs::read(b.path("top/open/f")).unwrap(), b"f");
}
fn chown_all(at: &std::path::Path) {
    chown(at, Some(NOBODY), Some(NOBODY)).unwrap();
    if at.is_dir() {
        fs::read_dir(at).unwrap().for_each(|e| chown_all(&e.unwrap().path()));
    }
}

#[test]
fn reserved_names_are_reported_and_the_rest_transferred() {
    let b = Bench::new();
    let names = [".a.longhaul-part", ".b.longhaul-session", ".c.longhaul-journal"];
    fs::create_dir_all(b.path("s/d/.e.longhaul-part")).unwrap();
    for n in names {
        fs::write(b.path("s/d").join(n), "mine").unwrap();
    }
    symlink("f", b.path("s/d/.f.longhaul-part")).unwrap();
    fs::write(b.path("s/d/f"), "f").unwrap();
    let want = [
        "d/.a.longhaul-part",
        "d/.b.longhaul-session",
        "d/.c.longhaul-journal",
        "d/.e.longhaul-part",
        "d/.f.longhaul-part",
    ];
    let want = want.map(|n| (n, "reserved"));
    for source in ["d", "d/"] {
        both(&b, &[source], &format!("in{}", source.len()), |at, o| {
            expect(o, 1);
            let mut e = failed(o);
            e.sort();
            // The source's end knows them by their place there.
            let e: Vec<_> =
                e.into_iter().map(|(p, c)| (if p.contains('/') { p } else { format!("d/{p}") }, c)).collect();
            assert_eq!(e, pairs(&want), "{at}");
            let f = if source == "d" { "d/f" } else { "f" };
            assert_eq!(fs::read(b.path(at).join(f)).unwrap(), b"f");
        });
    }
    // As sources of their own, beside another.
    both(&b, &["d/.a.longhaul-part", "d/f", "d/.e.longhaul-part"], "roots", |at, o| {
        expect(o, 1);
        assert_eq!(failed(o), pairs(&[want[0], want[3]]), "{at}");
        assert_eq!(fs::read(b.path(at).join("f")).unwrap(), b"f");
    });
    // In a listing.
    let server = b.serve("s", &[]);
    for args in [&["ls"][..], &["ls", "-r"], &["ls", "--json"]] {
        let o = b.run(&[args, &["--accept-new", &server.url("d")]].concat());
        expect(&o, 1);
        assert!(names.iter().all(|n| stderr(&o).contains(n)), "{}", stderr(&o));
        assert!(String::from_utf8_lossy(&o.stdout).contains('f'));
    }
    // And as a destination, where the user can choose another name.
    let f = b.path("s/d/f");
    let top = b.serve("top", &[]);
    let url = top.url(".a.longhaul-part");
    for args in [["put", f.to_str().unwrap(), &url], ["get", &server.url("d/f"), ".a.longhaul-part"]] {
        let o = b.client(&args).arg("--accept-new").current_dir(b.path("top")).output().unwrap();
        expect(&o, 2);
        assert!(stderr(&o).contains("reserved"), "{}", stderr(&o));
    }
    assert!(!b.path("top/.a.longhaul-part").exists());
}

#[test]
fn empty_path_is_refused_before_anything_is_done() {
    let b = Bench::new();
    let server = b.serve("top", &[]);
    fs::write(b.path("top/f"), "f").unwrap();
    let f = b.path("top/f");
    let (f, url) = (f.to_str().unwrap(), server.url(""));
    let nul = format!("{url}a%00b");
    for (args, said) in [
        (&["put", "", &url][..], "cannot read \"\": the path is empty; name a file or a folder"),
        (&["put", f, "", &url], "cannot read \"\": the path is empty; name a file or a folder"),
        (&["get", &url, ""], "cannot write to \"\": the path is empty; name a file or a folder"),
        (&["get", &nul, "x"], "NUL"),
        (&["put", f, &nul], "NUL"),
        (&["ls", &nul], "NUL"),
        (&["serve", "", "--listen", "127.0.0.1:0"], "cannot serve \"\": the path is empty"),
    ] {
        let accept = (args[0] != "serve").then_some("--accept-new");
        let o = b.client(args).args(accept).current_dir(b.path("top")).output().unwrap();
        expect(&o, 2);
        assert!(stderr(&o).contains(said), "{args:?}: {}", stderr(&o));
    }
    assert_eq!(fs::read_dir(b.path("top")).unwrap().count(), 1);
    // More sources than one command takes, too.
    let many = vec![f; 1_025];
    let o = b.run(&[&["put", "--accept-new"][..], &many, &[&url]].concat());
    expect(&o, 2);
    assert!(stderr(&o).contains("1024 are the most"), "{}", stderr(&o));
}

#[test]
fn dry_run_counts_and_reports_and_changes_nothing() {
    let b = Bench::new();
    fs::create_dir_all(b.path("s/d")).unwrap();
    for n in ["new", "same"] {
        fs::write(b.path("s/d").join(n), n).unwrap();
    }
    fs::create_dir_all(b.path("top/in/d")).unwrap();
    fs::create_dir_all(b.path("in/d")).unwrap();
    let time = fs::metadata(b.path("s/d/same")).unwrap().modified().unwrap();
    for at in ["top/in/d/same", "in/d/same"] {
        fs::write(b.path(at), "same").unwrap();
        fs::File::options().write(true).open(b.path(at)).unwrap().set_modified(time).unwrap();
    }
    let (server, back) = (b.serve("top", &[]), b.serve("s", &[]));
    let (d, here) = (b.path("s/d"), b.path("in/"));
    let (d, here) = (d.to_str().unwrap(), here.to_str().unwrap());
    let far = b.path("far/off/");
    for (args, said) in [
        (["put", "-n", d, "gone", &server.url("in/")], "would transfer 1 file, 3 B; 1 file (4 B) up to date"),
        (
            ["get", "-n", &back.url("d"), &back.url("gone"), here],
            "would transfer 1 file, 3 B; 1 file (4 B) up to date",
        ),
        (
            ["get", "-n", &back.url("d"), &back.url("gone"), far.to_str().unwrap()],
            "would transfer 2 files, 7 B",
        ),
    ] {
        let o = b.run(&[&args[..], &["--accept-new"]].concat());
        expect(&o, 1);
        let text = stderr(&o);
        assert!(text.contains(said) && text.contains("gone: cannot be read"), "{args:?}: {text}");
    }
    assert!(!b.path("far").exists() && !b.path("in/d/new").exists() && !b.path("top/in/d/new").exists());
}

#[test]
fn attributes_not_preserved_are_counted_at_both_ends() {
    let b = Bench::new();
    fs::create_dir_all(b.path("s/d/sub")).unwrap();
    for n in ["one", "plain"] {
        fs::write(b.path("s/d").join(n), n).unwrap();
    }
    fs::write(b.path("s/d/large"), common::bytes(1, 200_000)).unwrap();
    for n in ["two", "three"] {
        fs::hard_link(b.path("s/d/one"), b.path("s/d").join(n)).unwrap();
    }
    let mode = |p: &str, mode| fs::set_permissions(b.path(p), fs::Permissions::from_mode(mode)).unwrap();
    mode("s/d/plain", 0o4755);
    mode("s/d/sub", 0o1777);
    let attribute = |p: &str, name: &str, value: &[u8]| {
        rustix::fs::setxattr(b.path(p), name, value, rustix::fs::XattrFlags::empty()).is_ok()
    };
    // A file system without attributes has none to leave behind.
    let n = u64::from(attribute("s/d/plain", "user.note", b"x"))
        + u64::from(attribute("s/d/large", "user.note", b"x"))
        + u64::from(attribute("s/d/sub", "user.note", b"x"));
    // `setfacl -m u:65534:r plain` (acl(5), linux/posix_acl_xattr.h): version 2, then tag, permissions, user.
    let mut acl = vec![2, 0, 0, 0];
    for (tag, permissions, id) in
        [(1u16, 7u16, u32::MAX), (2, 4, NOBODY), (4, 5, u32::MAX), (16, 5, u32::MAX), (32, 5, u32::MAX)]
    {
        acl.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        acl.extend(id.to_le_bytes());
    }
    let lists = u64::from(attribute("s/d/plain", "system.posix_acl_access", &acl));
    let owners = u64::from(chown(b.path("s/d/large"), Some(NOBODY), None).is_ok());
    both(&b, &["d"], "in", |_, o| {
        expect(o, 0);
        let want = serde_json::json!({
            "hard_links": 2, "extended_attributes": n, "access_control_lists": lists, "owners": owners, "special_bits": 2,
        });
        assert_eq!(json(o)["transfer"]["progress"]["not_preserved"], want);
    });
    // In words; and of what was not sent again, nothing.
    let server = b.serve("top", &[]);
    let d = b.path("s/d");
    let put = || b.run(&["put", "--accept-new", d.to_str().unwrap(), &server.url("words/")]);
    let o = put();
    expect(&o, 0);
    assert!(stderr(&o).contains("not carried: 2 hard links (each name became a file)"), "{}", stderr(&o));
    assert!(!stderr(&put()).contains("hard link"));
    // Nothing is said where nothing stays behind.
    fs::write(b.path("s/just"), "f").unwrap();
    let o = b.run(&["put", b.path("s/just").to_str().unwrap(), &server.url("")]);
    assert!(!stderr(&o).contains("not carried"), "{}", stderr(&o));
}
