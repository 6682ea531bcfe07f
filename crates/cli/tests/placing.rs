//! Standard input that is a file, limits by the time of day, snapshots over ssh, and copies under a server's policy.

mod common;
#[path = "common/sshd.rs"]
mod sshd;

use common::{Bench, bytes, expect, json, longhaul, stderr};
use rustix::process::{Pid, Signal, kill_process};
use sshd::{SKIPPED, Sshd};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

#[expect(clippy::disallowed_methods, reason = "tests wait for other processes")]
fn wait_ms(n: u64) {
    std::thread::sleep(Duration::from_millis(n));
}
#[track_caller]
fn wait(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..2_400 {
        if so() {
            return;
        }
        wait_ms(50);
    }
    panic!("waited in vain for {what}");
}
/// Bytes of a file that are on the disk.
fn on_disk(at: &Path) -> u64 {
    fs::metadata(at).map_or(0, |m| m.blocks() * 512)
}
/// Stops a command as by Ctrl-C once this much of the file is at its place.
fn interrupted(child: Child, part: &Path, journal: u64) -> Output {
    wait("some of the file", || fs::metadata(part).is_ok_and(|m| m.len() > journal));
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::INT).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn standard_input_is_resumed_where_it_is_a_file_and_a_pipe_says_that_it_cannot_be() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    let want = bytes(7, 24 << 20);
    fs::write(b.path("in put"), &want).unwrap();
    let journal = b.path("srv/.x.longhaul-journal");
    let command = |limit: &str| {
        let mut c = b.client(&["put", "--accept-new", "--json", "--limit", limit, "-", &server.url("x")]);
        c.env("TMPDIR", b.path("")).stdout(Stdio::piped()).stderr(Stdio::piped());
        c
    };
    let start = |limit: &str, skip: u64| {
        use std::io::Seek as _;
        let mut f = fs::File::open(b.path("in put")).unwrap();
        f.seek(std::io::SeekFrom::Start(skip)).unwrap();
        command(limit).stdin(f).spawn().unwrap()
    };
    for skip in [0, 1 << 20] {
        let o = interrupted(start("4MB/s", skip), &journal, 600);
        expect(&o, 5);
        let said = stderr(&o);
        let how = if skip == 0 { "< '" } else { "with the same input from the same place" };
        assert!(said.contains("to resume: ") && said.contains(how), "{said}");
        let o = start("1gbit", skip).wait_with_output().unwrap();
        expect(&o, 0);
        assert!(json(&o)["transfer"]["progress"]["bytes_resumed"].as_u64().unwrap() > 0, "{skip}");
        assert!(fs::read(b.path("srv/x")).unwrap() == want[skip as usize..], "{skip}");
        fs::remove_file(b.path("srv/x")).unwrap();
    }
    let mut child = command("4MB/s").stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let data = want.clone();
    std::thread::spawn(move || input.write_all(&data));
    let said = stderr(&interrupted(child, &journal, 600));
    assert!(
        said.contains("it cannot be resumed: standard input is a pipe") && !said.contains("to resume: "),
        "{said}"
    );
}

#[test]
fn the_limit_of_the_time_of_day_is_seen_to_change_from_outside() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::write(b.path("f"), bytes(1, 100 << 20)).unwrap();
    let now = lhio::clock::WallTime::now().secs + 6;
    let clock = |t: i64| format!("{:02}:{:02}:{:02}", t / 3_600 % 24, t / 60 % 60, t % 60);
    // Six seconds from now a hundred times the rate; the day before ends with the lower one.
    let table = format!("{},400mbit {},4mbit", clock(now), clock(now + 3_600));
    let file = b.path("f").display().to_string();
    let mut c = b.client(&["put", "--accept-new", "-q", "--bwlimit", &table, &file, &server.url("f")]);
    let mut child = c.env("TZ", "UTC").spawn().unwrap();
    let part = b.path("srv/.f.longhaul-part");
    wait("some of the file", || on_disk(&part) > 0);
    while lhio::clock::WallTime::now().secs < now {
        // 4 Mbit/s are 3 MB in six seconds; memory is granted, and disk reserved, some 32 MiB ahead.
        assert!(on_disk(&part) <= 48 << 20 && child.try_wait().unwrap().is_none(), "{}", on_disk(&part));
        wait_ms(100);
    }
    // At the first rate this would take three minutes.
    let status = (0..900).find_map(|_| {
        wait_ms(50);
        child.try_wait().unwrap()
    });
    assert!(status.expect("it ends soon after").success());
    assert_eq!(fs::metadata(b.path("srv/f")).unwrap().len(), 100 << 20);
}

#[test]
fn snapshots_go_over_ssh_and_unfinished_files_are_kept_where_the_user_says() {
    let d = tempfile::tempdir().unwrap();
    let Some(tower) = Sshd::start(d.path()) else {
        println!("{SKIPPED}");
        return;
    };
    fs::create_dir(d.path().join("data")).unwrap();
    fs::write(d.path().join("data/f"), "same").unwrap();
    let put = |more: &[&str]| {
        let mut c = longhaul(&d.path().join("client"));
        c.args(["put", "-e", &tower.rsh()]).args(more).current_dir(d.path()).output().unwrap()
    };
    expect(&put(&["data/", "tower:days/1"]), 0);
    let full = tower.home.join("days/1").display().to_string();
    for (day, dir) in [("2", "../1"), ("3", &full)] {
        let o =
            put(&["data/", &format!("tower:days/{day}"), "--link-dest", dir, "--partial-dir", ".partial"]);
        expect(&o, 0);
        assert!(stderr(&o).contains("1 file of them linked"), "{}", stderr(&o));
    }
    let ino = |n: &str| fs::metadata(tower.home.join(n)).unwrap().ino();
    assert_eq!((ino("days/1/f"), ino("days/2/f")), (ino("days/2/f"), ino("days/3/f")));
}

#[test]
fn a_copy_is_under_the_policy_of_the_server_that_sends() {
    let b = Bench::new();
    for home in ["a", "b"] {
        let key = b.path("client.key");
        expect(
            &longhaul(&b.path(home)).args(["keys", "authorize", key.to_str().unwrap()]).output().unwrap(),
            0,
        );
        fs::create_dir(b.path(&format!("{home}-files"))).unwrap();
    }
    fs::write(b.path("a-files/f"), bytes(1, 4 << 20)).unwrap();
    let policy = b.path("policy.toml");
    let text =
        "[default]\nalgorithm = \"haul\"\n\n[[rule]]\nname = \"slowly\"\nmatch = {}\ncap = \"8mbit\"\n";
    fs::write(&policy, text).unwrap();
    let serve = |home: &str, more: &[&str]| {
        let folder = b.path(&format!("{home}-files"));
        let all = ["serve", folder.to_str().unwrap(), "--json", "--listen", "127.0.0.1:0"];
        common::Server::start(&b.path(home), &[&all, more].concat())
    };
    let a = serve("a", &["--allow-copy", "--policy", policy.to_str().unwrap()]);
    let to = serve("b", &[]);
    let o = b.run(&["copy", "--accept-new", "--json", &a.url("f"), &to.url("f")]);
    expect(&o, 0);
    assert_eq!(fs::metadata(b.path("b-files/f")).unwrap().len(), 4 << 20);
    // 4 MiB at 8 Mbit/s take four seconds; without the policy a small part of one.
    let rate = json(&o)["goodput_bits_per_second"].as_f64().unwrap();
    assert!(rate > 1e6 && rate < 10e6, "{rate}");
}
