//! What of a tree made to break copiers is kept, beside `rsync -aHAX`: the table in the guide is what this finds.

mod common;

use common::{put_selecting, serve};
use longhaul_mover::{Keep, Select, ServeOptions, TransferOptions};
use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Between these lines of the guide is the table.
const BEGIN: &str = "<!-- table: kept -->\n";
const END: &str = "<!-- end of table -->\n";

/// A thing, and what there is to know of it at a place; `None` if there is none.
type Row = (&'static str, fn(&Path) -> Option<String>);

fn about(p: PathBuf) -> Option<fs::Metadata> {
    fs::symlink_metadata(p).ok()
}
fn attribute(p: PathBuf, name: &str) -> Option<String> {
    let all = lhio::safe_path::read_attributes(&fs::File::open(p).ok()?, |_| true).ok()?;
    all.into_iter().find(|a| a.0 == name.as_bytes()).map(|a| format!("{:?}", a.1))
}
fn time(m: &fs::Metadata) -> String {
    format!("{}.{:09}", m.mtime(), m.mtime_nsec())
}
/// What `lsattr` says, without what the file system sets by itself.
fn flags(p: PathBuf) -> Option<String> {
    let o = Command::new("lsattr").arg("-d").arg(p).output().ok()?;
    let text = String::from_utf8_lossy(&o.stdout).into_owned();
    Some(text.split(' ').next()?.contains('d').to_string())
}

const ROWS: &[Row] = &[
    ("contents, empty files and empty folders", |d| {
        let empty = about(d.join("empty"))?.len() + fs::read_dir(d.join("nothing")).ok()?.count() as u64;
        Some(format!("{empty} {:?}", blake3::hash(&fs::read(d.join("large")).ok()?)))
    }),
    ("names with line ends, escape sequences and bytes that are not UTF-8", |d| {
        let mut all: Vec<_> = fs::read_dir(d.join("names")).ok()?.flatten().map(|e| e.file_name()).collect();
        all.sort();
        Some(format!("{all:?}"))
    }),
    ("permissions of files and folders", |d| {
        Some(format!("{:o} {:o}", about(d.join("mode"))?.mode(), about(d.join("folder"))?.mode()))
    }),
    ("set-user-id, set-group-id and sticky bits", |d| {
        Some(format!("{:o} {:o}", about(d.join("setuid"))?.mode(), about(d.join("sticky"))?.mode()))
    }),
    ("modification times to the nanosecond, also before 1970", |d| {
        Some(format!("{} {}", time(&about(d.join("old"))?), time(&about(d.join("large"))?)))
    }),
    ("modification times of folders and symbolic links", |d| {
        Some(format!("{} {}", time(&about(d.join("folder"))?), time(&about(d.join("dangling"))?)))
    }),
    ("modification times of pipes, sockets and devices", |d| Some(time(&about(d.join("pipe"))?))),
    ("symbolic links, wherever they point", |d| {
        Some(format!("{:?}", fs::read_link(d.join("dangling")).ok()?))
    }),
    ("owners and groups, also without a name, and of links", |d| {
        let of = |n: &str| about(d.join(n)).map(|m| (m.uid(), m.gid()));
        Some(format!("{:?} {:?}", of("nameless")?, of("dangling")?))
    }),
    ("hard links across folders", |d| {
        let (a, b) = (about(d.join("one"))?, about(d.join("folder/two"))?);
        Some(format!("{} {}", a.ino() == b.ino(), a.nlink()))
    }),
    ("hard links of symbolic links", |d| {
        Some((about(d.join("link one"))?.ino() == about(d.join("link two"))?.ino()).to_string())
    }),
    ("hard links of pipes and devices", |d| {
        Some((about(d.join("pipe"))?.ino() == about(d.join("pipe two"))?.ino()).to_string())
    }),
    ("extended attributes `user.*`, also long and empty ones", |d| {
        let of = |n| attribute(d.join("large"), n);
        Some(format!("{:?} {:?}", of("user.long")?, of("user.empty")?))
    }),
    ("extended attributes `trusted.*`", |d| attribute(d.join("large"), "trusted.t")),
    ("extended attributes of folders", |d| attribute(d.join("folder"), "user.long")),
    ("file capabilities", |d| attribute(d.join("capable"), "security.capability")),
    ("access control lists of files and folders", |d| {
        let name = "system.posix_acl_access";
        Some(format!("{} {}", attribute(d.join("listed"), name)?, attribute(d.join("lists"), name)?))
    }),
    ("default access control lists", |d| attribute(d.join("lists"), "system.posix_acl_default")),
    ("pipes and sockets", |d| {
        Some(format!("{:?} {:?}", about(d.join("pipe"))?.file_type(), about(d.join("socket"))?.file_type()))
    }),
    ("devices", |d| {
        let of = |n: &str| about(d.join(n)).map(|m| (m.rdev(), m.mode()));
        Some(format!("{:?} {:?}", of("char")?, of("block")?))
    }),
    ("holes of sparse files", |d| {
        let m = about(d.join("sparse"))?;
        Some((m.blocks() * 512 < m.len()).to_string())
    }),
    ("access times", |d| Some(about(d.join("old"))?.atime().to_string())),
    ("inode flags (`chattr`)", |d| flags(d.join("flagged"))),
];

/// `u::rwx,u:1:r,g::rx,m::rx,o::rx` as it is stored (acl(5)).
fn list() -> Vec<u8> {
    let mut acl = vec![2, 0, 0, 0];
    for (tag, bits, id) in
        [(1u16, 7u16, u32::MAX), (2, 4, 1), (4, 5, u32::MAX), (16, 5, u32::MAX), (32, 5, u32::MAX)]
    {
        acl.extend([tag.to_le_bytes(), bits.to_le_bytes()].concat());
        acl.extend(id.to_le_bytes());
    }
    acl
}

fn build(top: &Path) -> bool {
    for n in ["nothing", "names", "folder", "sticky", "lists"] {
        fs::create_dir_all(top.join(n)).unwrap();
    }
    for n in ["empty", "mode", "setuid", "old", "nameless", "one", "capable", "listed", "flagged"] {
        fs::write(top.join(n), if n == "empty" { "" } else { n }).unwrap();
    }
    fs::write(top.join("large"), common::noise(1, 700_000)).unwrap();
    for n in [&b"line\nend"[..], b"\x1b[31m", b"\xff\xfe", b"-rf", b"quo'te\"s\\"] {
        fs::write(top.join("names").join(std::ffi::OsStr::from_bytes(n)), "x").unwrap();
    }
    fs::hard_link(top.join("one"), top.join("folder/two")).unwrap();
    symlink("/nowhere/at all", top.join("dangling")).unwrap();
    symlink("x", top.join("link one")).unwrap();
    fs::hard_link(top.join("link one"), top.join("link two")).unwrap();
    fs::File::create(top.join("sparse")).unwrap().set_len(3 << 20).unwrap();
    let node = |n: &str, kind, (major, minor)| {
        mknodat(CWD, top.join(n), kind, Mode::RUSR, makedev(major, minor)).is_ok()
    };
    let made = node("pipe", FileType::Fifo, (0, 0))
        && node("socket", FileType::Socket, (0, 0))
        && node("char", FileType::CharacterDevice, (1, 3))
        && node("block", FileType::BlockDevice, (7, 77));
    fs::hard_link(top.join("pipe"), top.join("pipe two")).unwrap();
    let set =
        |n: &str, name: &str, value: &[u8]| setxattr(top.join(n), name, value, XattrFlags::empty()).is_ok();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let attributes = set("large", "user.long", &[b'l'; 2_000])
        && set("large", "user.empty", b"")
        && set("large", "trusted.t", b"t")
        && set("folder", "user.long", b"of a folder")
        && set("capable", "security.capability", &capability)
        && set("listed", "system.posix_acl_access", &list())
        && set("lists", "system.posix_acl_access", &list())
        && set("lists", "system.posix_acl_default", &list());
    chown(top.join("nameless"), Some(3_999_999_999), Some(3_999_999_998)).unwrap();
    lchown(top.join("dangling"), Some(1), Some(2)).unwrap();
    for (n, bits) in [("setuid", 0o6755), ("sticky", 0o1777), ("mode", 0o421), ("folder", 0o2751)] {
        fs::set_permissions(top.join(n), fs::Permissions::from_mode(bits)).unwrap();
    }
    let flagged =
        Command::new("chattr").arg("+d").arg(top.join("flagged")).status().is_ok_and(|s| s.success());
    for (n, secs, nanos) in
        [("large", 1_000_000_000, 123_456_789), ("pipe", 7, 8), ("folder", 9, 10), ("dangling", 11, 12)]
    {
        let t = rustix::fs::Timespec { tv_sec: secs, tv_nsec: nanos };
        let times = rustix::fs::Timestamps { last_access: t, last_modification: t };
        rustix::fs::utimensat(CWD, top.join(n), &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    let before = SystemTime::UNIX_EPOCH - Duration::from_millis(1_000_000_500);
    let times = fs::FileTimes::new().set_modified(before).set_accessed(before);
    fs::File::open(top.join("old")).unwrap().set_times(times).unwrap();
    made && attributes && flagged
}

#[test]
fn the_table_of_the_guide_is_what_a_tree_made_to_break_copiers_shows() {
    let d = tempfile::tempdir().unwrap();
    let at = |n: &str| d.path().join(n);
    fs::create_dir(at("s")).unwrap();
    let root = rustix::process::geteuid().is_root();
    if !root || !build(&at("s")) {
        eprintln!("skipped: needs root, and a file system with attributes, lists and flags");
        return;
    }
    let before: Vec<Option<String>> = ROWS.iter().map(|(_, look)| look(&at("s"))).collect();
    assert!(before.iter().all(Option::is_some), "{before:?}");
    let source = format!("{}/", at("s").display());
    let o = Command::new("rsync").args(["-aHAX", &source, &format!("{}/", at("rsync").display())]).output();
    let Ok(o) = o else {
        eprintln!("skipped: there is no rsync");
        return;
    };
    assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
    let all = [
        Keep::OWNER,
        Keep::GROUP,
        Keep::SPECIAL_BITS,
        Keep::PIPES,
        Keep::DEVICES,
        Keep::HARD_LINKS,
        Keep::ACLS,
        Keep::ATTRIBUTES,
        Keep::PRIVILEGED,
    ];
    let keep = all.into_iter().fold(Keep::NOTHING, Keep::with);
    let s = serve(ServeOptions { allow_privileged: true, ..ServeOptions::new(d.path()) });
    let how = (TransferOptions { keep, ..TransferOptions::default() }, Select::default());
    let r = put_selecting(s.addr, &source, "put/", how, |_, _| ()).unwrap();
    assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
    let mut table =
        String::from("| of the source | `rsync -aHAX` | `longhaul put -aHAX` |\n| --- | --- | --- |\n");
    for ((what, look), before) in ROWS.iter().zip(&before) {
        let word = |n: &str| if look(&at(n)) == *before { "kept" } else { "lost" };
        table.push_str(&format!("| {what} | {} | {} |\n", word("rsync"), word("put")));
    }
    let guide = format!("{}/../../docs/guides/move-files.md", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(&guide).unwrap();
    let (head, rest) = text.split_once(BEGIN).expect("the guide has the table");
    let (shown, tail) = rest.split_once(END).expect("the table has an end");
    if std::env::var_os("LONGHAUL_WRITE_TABLE").is_some() {
        fs::write(&guide, format!("{head}{BEGIN}{table}{END}{tail}")).unwrap();
        return;
    }
    assert_eq!(shown, table, "run this test with LONGHAUL_WRITE_TABLE=1 to write the table");
}
