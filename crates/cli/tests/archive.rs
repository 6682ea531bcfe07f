//! Owners, special bits, attributes, hard links and special files: beside `rsync -aHAX`, each must leave the same.

mod common;

use common::{Bench, stderr};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, chownat, makedev, mknodat, setxattr};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user without a name on any system that keeps to the usual ranges.
const NAMELESS: u32 = 3_999_999_999;
const KEEP_ALL: &str = "-aHAX";

fn attribute(at: &Path, name: &str, value: &[u8]) {
    setxattr(at, name, value, XattrFlags::empty())
        .unwrap_or_else(|e| panic!("{name} of {}: {e}", at.display()));
}
/// `u::rwx,u:ID:r,g::rx,m::rx,o::rx` as it is stored (acl(5)).
fn list(user: u32) -> Vec<u8> {
    let mut acl = vec![2, 0, 0, 0];
    for (tag, bits, id) in
        [(1u16, 7u16, u32::MAX), (2, 4, user), (4, 5, u32::MAX), (16, 5, u32::MAX), (32, 5, u32::MAX)]
    {
        acl.extend([tag.to_le_bytes(), bits.to_le_bytes()].concat());
        acl.extend(id.to_le_bytes());
    }
    acl
}
fn owner(at: &Path, user: u32, group: u32) {
    let (u, g) = (rustix::fs::Uid::from_raw(user), rustix::fs::Gid::from_raw(group));
    chownat(CWD, at, Some(u), Some(g), rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}
fn time(at: &Path, tv_sec: i64, tv_nsec: i64) {
    let t = rustix::fs::Timespec { tv_sec, tv_nsec };
    let times = rustix::fs::Timestamps { last_access: t, last_modification: t };
    rustix::fs::utimensat(CWD, at, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// A tree made to break copiers.
fn odd(top: &Path) {
    for d in ["a/b", "c", "sticky", "locked", "empty", "lists"] {
        fs::create_dir_all(top.join(d)).unwrap();
    }
    let write = |p: &str, len: usize| fs::write(top.join(p), common::bytes(len as u64 + 1, len)).unwrap();
    // Three names in three folders, small and large.
    for (first, others, len) in
        [("a/one", ["a/b/two", "c/three"], 10), ("a/big", ["a/b/large", "c/huge"], 700_000)]
    {
        write(first, len);
        others.iter().for_each(|o| fs::hard_link(top.join(first), top.join(o)).unwrap());
    }
    for (p, len) in [
        ("setuid", 20),
        ("large", 300_000),
        ("listed", 5),
        ("locked/f", 6),
        ("old", 7),
        ("odd \u{1b}\n name", 8),
    ] {
        write(p, len);
    }
    fs::File::create(top.join("sparse")).unwrap().set_len(3 << 20).unwrap();
    symlink("/nowhere/at all", top.join("dangling")).unwrap();
    for (i, n) in ["user.small", "user.long", "user.empty", "trusted.t"].into_iter().enumerate() {
        let value = common::bytes(1, [5, 2_000, 0, 9][i]);
        ["large", "listed", "a"].iter().for_each(|p| attribute(&top.join(p), n, &value));
    }
    (0..40).for_each(|i| attribute(&top.join("setuid"), &format!("user.many.{i:02}"), b"v"));
    attribute(&top.join("listed"), "system.posix_acl_access", &list(NAMELESS));
    attribute(&top.join("lists"), "system.posix_acl_access", &list(1));
    attribute(&top.join("lists"), "system.posix_acl_default", &list(2));
    let node = |p: &str, kind, (major, minor)| {
        mknodat(CWD, top.join(p), kind, Mode::RUSR, makedev(major, minor)).unwrap()
    };
    node("pipe", FileType::Fifo, (0, 0));
    node("socket", FileType::Socket, (0, 0));
    node("char", FileType::CharacterDevice, (1, 3));
    node("block", FileType::BlockDevice, (7, 77));
    for (first, further) in [("dangling", "a/dangling too"), ("pipe", "c/pipe too"), ("char", "z char too")] {
        fs::hard_link(top.join(first), top.join(further)).unwrap();
    }
    for (p, user) in [("setuid", 1), ("large", NAMELESS), ("a", 2), ("dangling", 1), ("pipe", 1), ("char", 2)]
    {
        owner(&top.join(p), user, user);
    }
    for (p, mode) in [("setuid", 0o6755), ("sticky", 0o1777), ("locked/f", 0o400), ("a/b", 0o2755)] {
        fs::set_permissions(top.join(p), fs::Permissions::from_mode(mode)).unwrap();
    }
    time(&top.join("old"), -1_000_000, 123_456_789);
    time(&top.join("dangling"), 1_000_000, 987_654_321);
    fs::set_permissions(top.join("locked"), fs::Permissions::from_mode(0o555)).unwrap();
    for d in ["a/b", "c", "sticky", "locked", "empty", "lists", "a"] {
        time(&top.join(d), 1_234_567, 5);
    }
}

/// Everything there is to know of each name; hard links by the first name of the file.
fn picture(top: &Path) -> BTreeMap<PathBuf, BTreeMap<&'static str, String>> {
    fn walk(
        top: &Path,
        below: &Path,
        out: &mut BTreeMap<PathBuf, BTreeMap<&'static str, String>>,
        first: &mut BTreeMap<u64, PathBuf>,
    ) {
        let mut names: Vec<_> =
            fs::read_dir(top.join(below)).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        for n in names {
            let path = below.join(n);
            let full = top.join(&path);
            let m = fs::symlink_metadata(&full).unwrap();
            let t = m.file_type();
            let mut x = BTreeMap::new();
            x.insert("kind", format!("{t:?} {:?}", t.is_fifo()));
            x.insert("mode", format!("{:o}", m.mode()));
            x.insert("owner", format!("{} {}", m.uid(), m.gid()));
            x.insert("time", format!("{}.{:09}", m.mtime(), m.mtime_nsec()));
            x.insert("device", m.rdev().to_string());
            if t.is_symlink() {
                x.insert("target", format!("{:?}", fs::read_link(&full).unwrap()));
            }
            if t.is_file() {
                x.insert("contents", format!("{:?}", blake3::hash(&fs::read(&full).unwrap())));
            }
            if !t.is_dir() {
                x.insert("file", format!("{:?}", first.entry(m.ino()).or_insert_with(|| path.clone())));
            }
            if t.is_file() || t.is_dir() {
                let all =
                    lhio::safe_path::read_attributes(&fs::File::open(&full).unwrap(), |_| true).unwrap();
                x.insert("attributes", format!("{all:?}"));
            }
            if t.is_dir() {
                walk(top, &path, out, first);
            }
            out.insert(path, x);
        }
    }
    let mut out = BTreeMap::new();
    walk(top, Path::new(""), &mut out, &mut BTreeMap::new());
    out
}

fn same(what: &str, a: &Path, b: &Path) {
    let (a, b) = (picture(a), picture(b));
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>(), "{what}");
    // rsync does not keep times of devices, pipes and sockets.
    let compared = |x: &BTreeMap<&'static str, String>| {
        let mut x = x.clone();
        if what == "rsync" && !(x["kind"].contains("is_file: true") || x["kind"].contains("is_dir: true")) {
            x.remove("time");
        }
        x
    };
    for (p, x) in &a {
        assert_eq!(compared(x), compared(&b[p]), "{what}: {}", p.display());
    }
}

/// Whether this can be tried here; else the reason is printed.
fn possible(b: &Bench) -> bool {
    let probe = b.path("probe");
    fs::write(&probe, "").unwrap();
    let fits = setxattr(&probe, "user.x", &[0; 2_000], XattrFlags::empty()).is_ok()
        && setxattr(&probe, "system.posix_acl_access", &list(1), XattrFlags::empty()).is_ok();
    let root = rustix::process::geteuid().is_root();
    if !fits || !root {
        eprintln!("skipped: needs root, and a file system with attributes and access control lists");
    }
    fits && root
}

#[test]
fn attributes_are_preserved_as_by_rsync_and_a_repeat_sends_nothing() {
    let b = Bench::new();
    if !possible(&b) {
        return;
    }
    fs::create_dir(b.path("s")).unwrap();
    odd(&b.path("s"));
    fs::create_dir(b.path("top")).unwrap();
    let server = b.serve("top", &["--allow-privileged"]);
    let source = format!("{}/", b.path("s").display());
    let put = |more: &[&str]| {
        b.run(&[&["put", "--accept-new", KEEP_ALL, &source, &server.url("put/")], more].concat())
    };
    let o = put(&[]);
    assert_eq!(o.status.code(), Some(0), "{}", stderr(&o));
    assert!(!stderr(&o).contains("not carried") && !stderr(&o).contains("not kept"), "{}", stderr(&o));
    same("put", &b.path("s"), &b.path("top/put"));
    let here = b.path("got");
    let o = b.run(&["get", KEEP_ALL, &format!("{}/", server.url("put")), here.to_str().unwrap()]);
    assert_eq!(o.status.code(), Some(0), "{}", stderr(&o));
    same("get", &b.path("s"), &here);
    match Command::new("rsync").args([KEEP_ALL, &source, b.path("by-rsync").to_str().unwrap()]).status() {
        Ok(s) => {
            assert!(s.success());
            same("rsync", &b.path("by-rsync"), &b.path("top/put"));
        }
        Err(e) => eprintln!("skipped: beside rsync: {e}"),
    }
    // Nothing again; then attributes alone.
    for more in [&[][..], &["-n"]] {
        let o = put(more);
        assert!(!stderr(&o).contains("attributes only"), "{}", stderr(&o));
        let said = stderr(&o);
        let none = |l: &str| l.starts_with("0 files transferred") || l.starts_with("would transfer 0 files");
        assert!(said.lines().any(none), "{said}");
    }
    attribute(&b.path("s/large"), "user.small", b"other");
    owner(&b.path("s/listed"), 7, 7);
    fs::set_permissions(b.path("s/listed"), fs::Permissions::from_mode(0o4711)).unwrap();
    let o = put(&["-n"]);
    assert!(stderr(&o).contains("2 would get mode, time, owner or attributes only"), "{}", stderr(&o));
    let inode = || fs::metadata(b.path("top/put/large")).unwrap().ino();
    let before = inode();
    let o = put(&[]);
    assert!(stderr(&o).contains("2 got mode, time, owner or attributes only"), "{}", stderr(&o));
    assert_eq!(inode(), before, "no contents were sent");
    same("again", &b.path("s"), &b.path("top/put"));
}

#[test]
fn server_refuses_owners_set_id_bits_and_devices_by_default() {
    let b = Bench::new();
    if !possible(&b) {
        return;
    }
    fs::create_dir(b.path("s")).unwrap();
    odd(&b.path("s"));
    fs::create_dir(b.path("top")).unwrap();
    let server = b.serve("top", &[]);
    let source = format!("{}/", b.path("s").display());
    let o = b.run(&["put", "--accept-new", KEEP_ALL, &source, &server.url("put/")]);
    let said = stderr(&o);
    assert!(
        said.contains("serve --allow-privileged") && said.contains("owners, groups, set-id bits, devices"),
        "{said}"
    );
    let at = |p: &str| fs::symlink_metadata(b.path("top/put").join(p));
    assert!(at("char").is_err() && at("block").is_err() && at("pipe").is_ok() && at("socket").is_ok());
    assert_eq!((at("setuid").unwrap().mode() & 0o7777, at("setuid").unwrap().uid()), (0o755, 0));
    assert_eq!(at("a/one").unwrap().ino(), at("c/three").unwrap().ino());
    // Attributes of the system stay behind and are counted: of two files and a folder.
    assert!(said.contains("extended attributes of 3 files or folders"), "{said}");
}
