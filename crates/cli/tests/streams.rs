//! Standard input and output, pipes and devices at the ends of a transfer; none of them is ever replaced by a file.

mod common;

use common::{Bench, bytes, expect, json, stderr};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Stdio;

fn pipe(at: &Path) {
    mknodat(CWD, at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}
fn is_pipe(at: &Path) -> bool {
    fs::symlink_metadata(at).unwrap().file_type().is_fifo()
}
/// More than a pipe holds, and a whole chunk with a piece.
const LEN: usize = 700_001;

#[test]
fn get_writes_to_standard_output_of_any_kind() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::write(b.path("srv/f"), bytes(1, LEN)).unwrap();
    let url = server.url("f");
    for dest in ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        // A pipe, with the report on standard error.
        let o = b.run(&["get", "--accept-new", "--json", &url, dest]);
        expect(&o, 0);
        assert!(o.stdout == bytes(1, LEN), "{dest}: {} bytes", o.stdout.len());
        let report: serde_json::Value = serde_json::from_str(stderr(&o).lines().last().unwrap()).unwrap();
        assert_eq!(report["code"], 0);
        // A file, behind what is in it.
        let mut out = File::create(b.path("out")).unwrap();
        out.write_all(b"before").unwrap();
        let mut get = b.client(&["get", &url, dest]);
        expect(&get.stdout(out).output().unwrap(), 0);
        assert!(fs::read(b.path("out")).unwrap() == [&b"before"[..], &bytes(1, LEN)].concat(), "{dest}");
    }
    assert!(fs::symlink_metadata("/dev/stdout").unwrap().is_symlink());
    // A file of that name is a file.
    let o = b.client(&["get", &url, "./-"]).current_dir(b.path("")).output().unwrap();
    expect(&o, 0);
    assert!(o.stdout.is_empty() && fs::read(b.path("-")).unwrap() == bytes(1, LEN));
}

#[test]
fn get_writes_to_pipes_and_devices_without_replacing_them() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::write(b.path("srv/f"), bytes(2, LEN)).unwrap();
    pipe(&b.path("pipe"));
    symlink("pipe", b.path("to-pipe")).unwrap();
    mknodat_null(&b.path("null"));
    for name in ["pipe", "to-pipe"] {
        let (at, to) = (b.path("pipe"), b.path(name));
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            File::open(at).unwrap().read_to_end(&mut got).unwrap();
            got
        });
        expect(&b.run(&["get", "--accept-new", "-q", &server.url("f"), to.to_str().unwrap()]), 0);
        assert!(reader.join().unwrap() == bytes(2, LEN), "{name}");
        assert!(is_pipe(&b.path("pipe")) && fs::symlink_metadata(b.path("to-pipe")).unwrap().is_symlink());
    }
    for null in ["/dev/null", b.path("null").to_str().unwrap()] {
        if Path::new(null).exists() {
            expect(&b.run(&["get", "-q", &server.url("f"), null]), 0);
            assert!(fs::metadata(null).unwrap().file_type().is_char_device(), "{null}");
        }
    }
    // A device that takes nothing: named, and a status that says so.
    let o = b.run(&["get", "-q", &server.url("f"), "/dev/full"]);
    expect(&o, 7);
    assert!(stderr(&o).contains("/dev/full") && Path::new("/dev/full").exists(), "{}", stderr(&o));
    let _socket = UnixListener::bind(b.path("socket")).unwrap();
    let o = b.run(&["get", "-q", &server.url("f"), b.path("socket").to_str().unwrap()]);
    expect(&o, 2);
    assert!(fs::symlink_metadata(b.path("socket")).unwrap().file_type().is_socket());
}

/// A null device of our own, where this user may make one.
fn mknodat_null(at: &Path) {
    let _ = mknodat(CWD, at, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, rustix::fs::makedev(1, 3));
}

#[test]
fn standard_output_gets_complete_files_only() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::create_dir_all(b.path("srv/d")).unwrap();
    fs::write(b.path("srv/d/f"), "f").unwrap();
    symlink("/etc/passwd", b.path("srv/link")).unwrap();
    let (url, f) = (server.url(""), server.url("d/f"));
    for (sources, code, said) in [
        (vec![format!("{url}gone")], 1, "gone"),
        (vec![format!("{url}d")], 2, "d"),
        (vec![format!("{url}d/")], 2, "single file"),
        (vec![format!("{url}link")], 2, "link"),
        (vec![f.clone(), f.clone()], 2, "several"),
    ] {
        let mut get = b.client(&["get", "--accept-new", "-q"]);
        let o = get.args(&sources).arg("-").output().unwrap();
        expect(&o, code);
        assert!(o.stdout.is_empty() && stderr(&o).contains(said), "{sources:?}: {}", stderr(&o));
    }
    // A rehearsal writes nothing.
    let o = b.run(&["get", "-n", &f, "-"]);
    expect(&o, 0);
    assert!(o.stdout.is_empty());
}

#[test]
fn get_ends_quietly_when_its_reader_closes_the_pipe() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::write(b.path("srv/f"), bytes(3, 4 * LEN)).unwrap();
    expect(&b.run(&["ls", "--accept-new", &server.url("")]), 0);
    let mut get = b.client(&["get", "-q", &server.url("f"), "-"]);
    let mut child = get.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut begin = [0; 100];
    child.stdout.take().unwrap().read_exact(&mut begin).unwrap(); // and closes it
    let o = child.wait_with_output().unwrap();
    expect(&o, 1);
    assert_eq!((&begin[..], stderr(&o).as_str()), (&bytes(3, 100)[..], ""));
}

#[test]
fn put_sends_standard_input_to_the_name_in_the_address() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::create_dir(b.path("srv/dir")).unwrap();
    let put = |args: &[&str], data: Vec<u8>| {
        let mut c = b.client(&["put", "--accept-new"]);
        let c = c.args(args).env("TMPDIR", b.path("")).stdin(Stdio::piped());
        let mut child = c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let feed = std::thread::spawn(move || drop(input.write_all(&data))); // it may not be wanted
        let o = child.wait_with_output().unwrap();
        feed.join().unwrap();
        o
    };
    for len in [0, 5, LEN] {
        let o = put(&["--json", "-", &server.url("new/name")], bytes(4, len));
        expect(&o, 0);
        assert_eq!(json(&o)["code"], 0);
        assert!(fs::read(b.path("srv/new/name")).unwrap() == bytes(4, len));
    }
    assert_eq!(fs::metadata(b.path("srv/new/name")).unwrap().permissions().mode() & 0o777 & 0o600, 0o600);
    // It has no name of its own, and goes into no folder.
    expect(&put(&["-q", "-", &server.url("dir/")], b"x".to_vec()), 2);
    expect(&put(&["-q", "-", "-", &server.url("x")], b"x".to_vec()), 2);
    let o = put(&["-q", "-", &server.url("dir")], b"x".to_vec());
    expect(&o, 1);
    assert!(stderr(&o).contains("folder"), "{}", stderr(&o));
    assert_eq!(fs::read_dir(b.path("srv/dir")).unwrap().count(), 0);
    let left = fs::read_dir(b.path("")).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(left.filter(|n| n.starts_with("longhaul-")).count(), 0, "what was kept meanwhile is gone");
}

#[test]
fn pipes_sockets_and_devices_in_a_tree_are_not_replaced() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    for n in ["small", "large", "link", "sub"] {
        pipe(&b.path("srv").join(n));
    }
    let _socket = UnixListener::bind(b.path("srv/socket")).unwrap();
    fs::create_dir_all(b.path("src/sub")).unwrap();
    fs::create_dir_all(b.path("get")).unwrap();
    for (n, len) in [("small", 10), ("large", LEN), ("socket", 10), ("sub/f", 1), ("other", 10)] {
        fs::write(b.path("src").join(n), bytes(5, len)).unwrap();
    }
    symlink("other", b.path("src/link")).unwrap();
    let names = ["small", "large", "link", "socket"];
    let unchanged = |at: &Path| {
        for n in names {
            let t = fs::symlink_metadata(at.join(n)).unwrap().file_type();
            assert!(t.is_fifo() || t.is_socket(), "{n}");
        }
        assert_eq!(fs::read(at.join("other")).unwrap(), bytes(5, 10), "the rest arrives");
    };
    // With a listing of what is there, and without.
    for all in [&[][..], &["--all"]] {
        let src = b.path("src/");
        let url = server.url("");
        let o = b.run(&[&["put", "--accept-new", "-q"], all, &[src.to_str().unwrap(), &url]].concat());
        expect(&o, 1);
        for n in names.iter().chain(&["sub"]) {
            assert!(stderr(&o).contains(n), "{n}: {}", stderr(&o));
        }
        unchanged(&b.path("srv"));
    }
    // Under another name, it is the one in the way that is named; in a rehearsal too.
    let small = b.path("src/small");
    for (flag, name) in [("-q", "link"), ("-n", "small")] {
        let o = b.run(&["put", flag, small.to_str().unwrap(), &server.url("link")]);
        expect(&o, 1);
        assert!(stderr(&o).contains(&format!("{name}: a device, pipe or socket")), "{}", stderr(&o));
    }
    // The other way round.
    let back = b.serve("src", &[]);
    for n in ["small", "large", "link"] {
        pipe(&b.path("get").join(n));
    }
    let _other = UnixListener::bind(b.path("get/socket")).unwrap();
    for all in [&[][..], &["--all"]] {
        let (url, get) = (back.url(""), b.path("get"));
        let o = b.run(&[&["get", "--accept-new", "-q"], all, &[&url, get.to_str().unwrap()]].concat());
        expect(&o, 1);
        assert!(names.iter().all(|n| stderr(&o).contains(n)), "{}", stderr(&o));
        unchanged(&get);
    }
}
