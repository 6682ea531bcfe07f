//! `longhaul ls` beside `ls -l` of the same tree: modes, sizes, times, names and targets are the same.

mod common;

use common::{Bench, Server, expect, json, stderr};
use std::ffi::OsStr;
use std::fs::{self, FileTimes, Permissions};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// A winter's day before 2000, a summer's day of 2024, and one to come.
const TIMES: [u64; 3] = [915_152_461, 1_720_000_000, 4_000_000_000];

/// Files of several sizes, modes and times, folders, links, and names that terminals do not show as they are.
fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("folder/inner")).unwrap();
    fs::create_dir(root.join("private")).unwrap();
    for (i, (len, mode)) in
        [(0, 0o644), (1023, 0o600), (1025, 0o755), (10_137, 0o444), (3 << 20, 0o661)].into_iter().enumerate()
    {
        let path = root.join(format!("size-{len}"));
        fs::write(&path, vec![7; len]).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(TIMES[i % TIMES.len()]);
        file.set_times(FileTimes::new().set_modified(time)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    for name in ["with space", "grüße", "-l", "back\\slash", "new\nline", "esc\x1b[31m", "a -> b"] {
        fs::write(root.join(name), name).unwrap();
    }
    fs::write(root.join(OsStr::from_bytes(b"latin-\xff")), "x").unwrap();
    for (name, target) in [
        ("relative", "folder/inner"),
        ("absolute", "/etc/hostname"),
        ("dangling", "no such file"),
        ("odd", "a\\b\nc"),
    ] {
        symlink(target, root.join(name)).unwrap();
    }
    symlink("../size-0", root.join("folder/up")).unwrap();
    fs::set_permissions(root.join("private"), Permissions::from_mode(0o700)).unwrap();
}

/// A name as this program shows it.
fn shown(name: &str) -> String {
    let escape = |c: char| match c {
        '\\' => "\\\\".to_owned(),
        '\n' => "\\n".to_owned(),
        '\x1b' => "\\x1b".to_owned(),
        c => c.to_string(),
    };
    name.chars().map(escape).collect()
}

/// What `ls -l` prints of a folder in this time zone, without the columns that do not travel: links, owner, group.
fn system_ls(folder: &Path, zone: &str, human: bool) -> Vec<String> {
    let mut c = Command::new("ls");
    c.args(["-lA", "--zero", "--time-style=long-iso"]).arg(folder);
    if human {
        c.arg("-h");
    }
    let o = c.env("LC_ALL", "C").env("TZ", zone).output().unwrap();
    assert!(o.status.success(), "{o:?}");
    let records = o.stdout.split(|b| *b == 0).filter(|r| !r.is_empty());
    let total = records.filter(|r| !r.starts_with(b"total "));
    total.map(|r| columns(&shown(&readable(r)), &[1, 2, 3])).collect()
}

/// Bytes that are not UTF-8 as this program shows them.
fn readable(bytes: &[u8]) -> String {
    let chunks = bytes.utf8_chunks();
    let chunk = |c: std::str::Utf8Chunk<'_>| {
        let wrong: String = c.invalid().iter().map(|b| format!("\u{1}x{b:02x}")).collect();
        format!("{}{wrong}", c.valid())
    };
    chunks.map(chunk).collect()
}

/// A line whose columns are one space apart, without those of the numbers in `without`. The name is the last one.
fn columns(line: &str, without: &[usize]) -> String {
    let (mut rest, mut out) = (line, Vec::new());
    let before_the_name = 4 + without.len();
    for i in 0..before_the_name {
        let (column, behind) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = if i + 1 < before_the_name { behind.trim_start() } else { behind };
        if !without.contains(&i) {
            out.push(if i == 0 { &column[..10] } else { column });
        }
    }
    out.push(rest);
    out.join(" ").replace('\u{1}', "\\")
}

fn our_ls(b: &Bench, server: &Server, path: &str, zone: &str, args: &[&str]) -> Vec<String> {
    let mut c = b.client(&["ls", "--accept-new", &server.url(path)]);
    let o = c.args(args).env("TZ", zone).output().unwrap();
    expect(&o, 0);
    String::from_utf8(o.stdout).unwrap().lines().map(|l| columns(l, &[])).collect()
}

#[test]
fn ls_prints_the_mode_size_time_name_and_target_that_ls_l_prints() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    let root = b.path("srv");
    make_tree(&root);
    for zone in ["UTC", "Asia/Kolkata", "EST5EDT,M3.2.0,M11.1.0"] {
        for human in [false, true] {
            let flags: &[&str] = if human { &["-h"] } else { &[] };
            let ours = our_ls(&b, &server, "", zone, flags);
            assert_eq!(ours, system_ls(&root, zone, human), "{zone}, human: {human}");
            assert!(
                ours.len() > 15 && ours.iter().any(|l| l.ends_with("dangling -> no such file")),
                "{ours:#?}"
            );
        }
    }
    let inner = our_ls(&b, &server, "folder", "UTC", &["--human-readable"]);
    assert_eq!(inner, system_ls(&root.join("folder"), "UTC", true));
    assert!(inner.iter().any(|l| l.ends_with("up -> ../size-0")), "{inner:?}");
    let all = our_ls(&b, &server, "", "UTC", &["-r"]);
    assert!(all.iter().any(|l| l.ends_with("folder/up -> ../size-0")), "{all:#?}");
    let one = our_ls(&b, &server, "folder/up", "UTC", &[]);
    assert!(one.len() == 1 && one[0].ends_with(" folder/up -> ../size-0"), "{one:?}");
    let help = b.run(&["ls", "--help"]);
    assert!(String::from_utf8_lossy(&help.stdout).contains("-h, --human-readable"), "{}", stderr(&help));
}

#[test]
fn checksums_are_printed_of_files_only_and_json_has_times_and_targets() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    let root = b.path("srv");
    fs::write(root.join("file"), "x").unwrap();
    symlink("file", root.join("link")).unwrap();
    let o = b.run(&["ls", "--accept-new", "--checksum", &server.url("")]);
    expect(&o, 0);
    let text = String::from_utf8(o.stdout).unwrap();
    let words = |name: &str| -> Vec<String> {
        let line = text.lines().find(|l| l.split(' ').any(|w| w == name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert!(words("file")[4].len() == 64 && words("link")[4] == "-", "{text}");
    assert_eq!(words("link")[5..], ["link", "->", "file"]);
    let o = b.run(&["ls", "--json", &server.url("link")]);
    expect(&o, 0);
    let link = json(&o);
    assert_eq!((&link["kind"], &link["target"]), (&"link".into(), &"file".into()));
    let o = b.run(&["ls", "--json", &server.url("file")]);
    let file = json(&o);
    let time = fs::metadata(root.join("file")).unwrap().modified().unwrap();
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(file["mtime_seconds"], since.as_secs());
    assert_eq!(
        (file["mtime_nanoseconds"].as_u64(), &file["target"]),
        (Some(since.subsec_nanos().into()), &serde_json::Value::Null)
    );
}
