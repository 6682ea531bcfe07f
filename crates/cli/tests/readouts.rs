//! What a transfer shows while it runs and at its end is so: read from a terminal against the clock, and against the other end.
#![allow(clippy::disallowed_methods, reason = "what a person sees is compared with the clock on the wall")]

mod common;

use common::{Bench, Server, bytes, expect, json, stderr};
use serde_json::Value;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The tests of this file have the machine one at a time: what takes time is compared with the clock.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One drawing of the progress bar.
#[derive(Debug)]
struct ProgressFrame {
    at: f64,
    text: String,
}

/// What a command draws on a terminal until it ends, each with its time, and how long it took.
fn on_a_terminal(b: &Bench, args: &[&str]) -> (Vec<ProgressFrame>, f64) {
    on_a_terminal_of(b, 250, args)
}

/// The same on a terminal of so many columns.
fn on_a_terminal_of(b: &Bench, columns: u32, args: &[&str]) -> (Vec<ProgressFrame>, f64) {
    let words: Vec<String> = args.iter().map(|a| format!("'{a}'")).collect();
    let line =
        format!("stty rows 50 cols {columns}; exec '{}' {}", env!("CARGO_BIN_EXE_longhaul"), words.join(" "));
    let mut c = Command::new("script");
    // Without TERM nothing is drawn.
    c.args(["-qec", &line, "/dev/null"])
        .env("LONGHAUL_HOME", &b.client)
        .env("SHELL", "/bin/sh")
        .env("TERM", "xterm");
    let started = Instant::now();
    let mut child = c.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = child.stdout.take().unwrap();
    let (mut frames, mut text, mut buffer) = (Vec::new(), String::new(), [0; 4096]);
    while let Ok(n @ 1..) = out.read(&mut buffer) {
        let at = started.elapsed().as_secs_f64();
        text.push_str(&String::from_utf8_lossy(&buffer[..n]));
        while let Some(end) = text.find(['\r', '\n']) {
            let line: String = text.drain(..=end).collect();
            if line.contains(" files") && line.contains('%') {
                frames.push(ProgressFrame { at, text: line });
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    assert!(child.wait().unwrap().success(), "{args:?}: {text} {frames:?}");
    (frames, seconds)
}

/// The number before a word, in a drawing: `50.0 Mbit/s` has 50 before `Mbit/s`.
fn before(text: &str, word: &str) -> Option<f64> {
    let head = text.split(&format!(" {word}")).next().filter(|h| h.len() < text.len())?;
    head.rsplit([' ', ',']).next()?.parse().ok()
}

fn bits(text: &str) -> Option<f64> {
    let units = [("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)];
    units.iter().find_map(|(unit, factor)| Some(before(text, unit)? * factor))
}

/// The time left, in seconds; drawings of these tests have none of a minute and more.
fn left(text: &str) -> Option<f64> {
    before(text, "s left")
}

/// The rate is not above what is allowed, and in the middle of what was drawn not far below it. From a third of the way on the
/// time left is right within a tenth, but for the second to which it is rounded and the half for which a loaded machine may be late.
/// A machine that stood still for a moment shows in some frames, which is the truth: a quarter of them may be low, and a tenth
/// hold what was confirmed late: up to a quarter more, as rates are of the last 0.9 s at first.
fn check(what: &str, frames: &[ProgressFrame], seconds: f64, limit: f64) {
    let ended = frames.last().map_or(seconds, |f| f.at);
    assert!(frames.len() > 10, "{what}: hardly anything was drawn: {frames:?}");
    let (mut rates, mut lefts, mut low, mut high, mut wrong) = (0, 0, Vec::new(), Vec::new(), Vec::new());
    for f in frames {
        if let Some(rate) = bits(&f.text) {
            rates += 1;
            // A pacer may be a train of 64 KiB ahead, in a second or more.
            if rate > limit * 1.02 + 500e3 {
                high.push((f.at, rate));
            }
            assert!(rate <= limit * 1.25, "{what}: {rate} of {limit} at {:.1} s: {}", f.at, f.text);
            if f.at > ended / 3.0 && f.at < ended - 0.6 && rate < limit * 0.8 {
                low.push((f.at, rate));
            }
        }
        if let (Some(told), true) = (left(&f.text), f.at > ended / 3.0) {
            lefts += 1;
            let real = ended - f.at;
            let error = (told - real).abs();
            if error > real / 10.0 + 1.5 {
                wrong.push((told, real));
            }
        }
    }
    assert!(high.len() * 10 <= rates, "{what}: of {rates} rates these were above {limit}: {high:?}");
    assert!(low.len() * 4 <= rates, "{what}: of {rates} rates these were below {limit}: {low:?}");
    assert!(wrong.len() * 4 <= lefts, "{what}: of {lefts} times left these were wrong: {wrong:?}");
    println!("{what}: {rates} rates and {lefts} times left in {ended:.1} s, as they were");
    assert!(rates > 10 && lefts > 10, "{what}: too little was told: {frames:?}");
}

#[test]
fn progress_bar_shows_true_rate_and_time_left() {
    let _alone = alone();
    let b = Bench::new();
    let server = b.serve("srv", &["--iwarp", "tls"]);
    fs::write(b.path("file"), bytes(1, 60_000_000)).unwrap();
    fs::copy(b.path("file"), b.path("srv/file")).unwrap();
    let file = b.path("file");
    let file = file.to_str().unwrap();
    expect(&b.run(&["ls", "--accept-new", &server.url("")]), 0);
    // 60 MB at 64 Mbit/s: seven and a half seconds.
    std::thread::scope(|s| {
        for scheme in ["longhaul", "iwarp"] {
            let url = |path: &str| format!("{scheme}://{}/{path}", server.address);
            let (to, from) = (url(scheme), url("file"));
            let back = b.path(&format!("back-{scheme}")).to_str().unwrap().to_owned();
            let b = &b;
            s.spawn(move || {
                let (frames, seconds) = on_a_terminal(b, &["put", "--limit", "64mbit", file, &to]);
                check(&format!("put, {scheme}"), &frames, seconds, 64e6);
            });
            s.spawn(move || {
                let (frames, seconds) = on_a_terminal(b, &["get", "--limit", "64mbit", &from, &back]);
                check(&format!("get, {scheme}"), &frames, seconds, 64e6);
            });
        }
    });
}

#[test]
fn progress_bar_shows_files_per_second_for_small_files() {
    let _alone = alone();
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::create_dir_all(b.path("src")).unwrap();
    for i in 0..8_000 {
        fs::write(b.path("src").join(format!("{i:06}")), bytes(i, 1_000)).unwrap();
    }
    expect(&b.run(&["ls", "--accept-new", &server.url("")]), 0);
    let src = b.path("src/");
    // 8 MB and names at 9 Mbit/s: some eight seconds.
    let put = ["put", "--limit", "9mbit", src.to_str().unwrap(), &server.url("in/")];
    let back = b.path("back/");
    let (frames, seconds) = on_a_terminal(&b, &put);
    check("put of small files", &frames, seconds, 9e6);
    let url = server.url("in/");
    let get = ["get", "--limit", "9mbit", &url, back.to_str().unwrap()];
    let (others, took) = on_a_terminal(&b, &get);
    check("get of small files", &others, took, 9e6);
    for (frames, seconds) in [(frames, seconds), (others, took)] {
        let mean = 8_000.0 / seconds;
        let mut settled: Vec<f64> = frames
            .iter()
            .filter(|f| f.at > seconds / 3.0)
            .filter_map(|f| before(&f.text, "files/s"))
            .collect();
        assert!(settled.len() > 10, "{frames:?}");
        // The start is slower than the rest, and a loaded machine stands still for a moment: the middle half has to be true.
        settled.sort_by(f64::total_cmp);
        let quarter = settled.len() / 4;
        let true_half =
            settled[quarter..settled.len() - quarter].iter().all(|n| (mean * 0.7..mean * 1.6).contains(n));
        assert!(true_half, "{mean:.0} files a second in truth, {settled:?} told");
    }
}

#[test]
fn progress_bar_keeps_to_the_width_of_the_terminal() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    let name = "a-long-name-of-a-file-that-does-not-fit-beside-the-bar-and-the-numbers";
    fs::write(b.path(name), bytes(1, 4_000_000)).unwrap();
    expect(&b.run(&["ls", "--accept-new", &server.url("")]), 0);
    let file = b.path(name);
    let put = ["put", "--limit", "16mbit", file.to_str().unwrap(), &server.url("in")];
    let (frames, _) = on_a_terminal_of(&b, 70, &put);
    // What steers the terminal begins with an escape and ends with a letter.
    let plain = |f: &ProgressFrame| {
        let mut shown = String::new();
        let mut pieces = f.text.trim_end().split('\u{1b}');
        shown.push_str(pieces.next().unwrap_or_default());
        pieces.for_each(|p| {
            shown.push_str(p.split_once(|c: char| c.is_ascii_alphabetic()).map_or("", |s| s.1))
        });
        shown
    };
    let widths: Vec<usize> = frames.iter().map(|f| plain(f).chars().count()).collect();
    assert!(widths.len() > 3 && widths.iter().all(|w| *w <= 70), "{widths:?} {frames:?}");
}

#[test]
fn json_is_an_event_a_line_and_ends_with_the_result() {
    let b = Bench::new();
    let server = b.serve("srv", &[]);
    fs::create_dir_all(b.path("src")).unwrap();
    fs::write(b.path("src/file"), bytes(1, 20_000_000)).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, b.path("src/fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    let src = b.path("src/");
    let put =
        ["put", "--json", "--accept-new", "--limit", "40mbit", src.to_str().unwrap(), &server.url("in/")];
    let o = b.run(&put);
    expect(&o, 1);
    let events: Vec<Value> =
        String::from_utf8(o.stdout).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let of = |kind: &str| events.iter().filter(|e| e["event"] == kind).collect::<Vec<_>>();
    assert!(
        of("error").len() == 1 && of("error")[0]["text"].as_str().unwrap().contains("fifo"),
        "{events:?}"
    );
    let confirmed: Vec<u64> = of("progress").iter().map(|e| e["bytes_confirmed"].as_u64().unwrap()).collect();
    assert!(confirmed.len() >= 2 && confirmed.is_sorted() && confirmed[1] > 0, "{events:?}");
    let end = events.last().unwrap();
    assert_eq!((&end["event"], &end["schema"], &end["code"]), (&"end".into(), &1.into(), &1.into()));
    assert_eq!(of("end").len(), 1);
    // Who wants the end only asks for quiet, too.
    let o = b.run(&[&put[..], &["--quiet"]].concat());
    assert_eq!(String::from_utf8_lossy(&o.stdout).lines().count(), 1);
}

/// Sends SIGINT to a command after a while; its JSON.
fn interrupted(b: &Bench, args: &[&str], after: Duration) -> Value {
    let child = b.client(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(after);
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let o = child.wait_with_output().unwrap();
    expect(&o, 5);
    json(&o)
}

/// The lines of a server's log in JSON, once there are so many.
fn log_of(b: &Bench, n: usize) -> Vec<Value> {
    let mut text = String::new();
    for _ in 0..100 {
        text = fs::read_to_string(b.path("log")).unwrap_or_default();
        if text.lines().count() >= n {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let all: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(all.len(), n, "{text}");
    all
}

fn logging(b: &Bench, args: &[&str]) -> Server {
    let log = b.path("log");
    let mut all = vec!["--log", log.to_str().unwrap(), "--log-format", "json"];
    all.extend(args);
    b.serve("srv", &all)
}

#[test]
fn interrupted_transfer_reports_what_the_other_end_confirmed() {
    let _alone = alone();
    let b = Bench::new();
    let server = logging(&b, &["--iwarp", "tls"]);
    fs::write(b.path("file"), bytes(1, 100 << 20)).unwrap();
    fs::copy(b.path("file"), b.path("srv/file")).unwrap();
    expect(&b.run(&["ls", "--accept-new", &server.url("")]), 0);
    let (file, back) = (b.path("file"), b.path("back"));
    let (file, back) = (file.to_str().unwrap(), back.to_str().unwrap());
    let mut told = 2; // the look at the key of a server that is not known yet, and the listing
    for scheme in ["longhaul", "iwarp"] {
        let url = |path: &str| format!("{scheme}://{}/{path}", server.address);
        let (to, from) = (url(scheme), url("file"));
        for args in [
            ["put", "--json", "--limit", "80mbit", file, &to],
            ["get", "--json", "--limit", "80mbit", &from, &format!("{back}-{scheme}")],
        ] {
            let r = interrupted(&b, &args, Duration::from_secs(3));
            told += 1;
            let entry = log_of(&b, told).pop().unwrap();
            let n = |v: &Value| v.as_u64().unwrap();
            let (moved, seconds) = (n(&r["bytes_transferred"]), r["seconds"].as_f64().unwrap());
            let c = &r["connection"];
            let (sent, received) = (n(&c["payload_sent"]), n(&c["payload_received"]));
            println!(
                "{args:?}: {moved} moved in {seconds:.2} s, {sent} sent, {received} received; log {entry}"
            );
            // As much as the limit lets through, and no more than went over the connection.
            assert!(moved as f64 <= 10e6 * (seconds + 0.1) && moved as f64 >= 10e6 * (seconds - 1.5), "{r}");
            assert!(moved <= sent.max(received), "{r}");
            assert_eq!(r["transfer"]["progress"]["bytes_confirmed"], moved);
            // The end that received may know of some more that the other had not heard of yet; TCP also delivers what it had taken.
            let (logged, more) = (n(&entry["bytes"]), if scheme == "iwarp" { 16 << 20 } else { 4 << 20 });
            assert!(logged.abs_diff(moved) <= more, "{entry} beside {moved}");
            assert_eq!((&entry["operation"], &entry["files"]), (&args[0].into(), &0.into()), "{entry}");
            assert!(entry["status"].as_str().unwrap().starts_with("interrupted: "), "{entry}");
        }
    }
}

#[test]
fn encryption_warnings_are_about_the_agreed_suite() {
    let _alone = alone();
    let b = Bench::new();
    fs::write(b.path("file"), bytes(1, 1000)).unwrap();
    let file = b.path("file");
    let put = |mode: &str, url: &str| {
        b.run(&["put", "--accept-new", "--all", "--json", "--encryption", mode, file.to_str().unwrap(), url])
    };
    let strict = b.serve("srv", &[]);
    for mode in ["crc32c", "integrity"] {
        let o = put(mode, &strict.url(""));
        expect(&o, 0);
        let (said, suite) = (stderr(&o), json(&o)["suite"].as_str().unwrap().to_owned());
        assert!(!said.contains("NOT"), "{mode}, {suite}: {said}");
        assert!(
            said.contains("cannot use less than encryption") && said.contains(&suite),
            "{mode}, {suite}: {said}"
        );
        let loose = b.serve("srv", &["--encryption", mode]);
        let o = put(mode, &loose.url(""));
        expect(&o, 0);
        let (said, suite) = (stderr(&o), json(&o)["suite"].as_str().unwrap().to_owned());
        assert!(said.contains("NOT encrypted") && said.contains(&suite), "{mode}, {suite}: {said}");
    }
    let o = put("aead", &strict.url(""));
    assert!(stderr(&o).is_empty(), "{}", stderr(&o));
}

/// Bytes of the files below a folder.
fn on_disk(folder: &Path) -> u64 {
    let all = common::tree(folder);
    all.values().filter(|(kind, _)| kind.starts_with("file")).map(|(_, content)| content.len() as u64).sum()
}

/// Text beside text, so that a person can see that it adds up.
fn row(cells: &[String]) {
    println!("{}", cells.iter().map(|c| format!("{c:>14}")).collect::<String>());
}

#[test]
fn client_server_log_and_file_system_report_the_same_numbers() {
    let _alone = alone();
    let b = Bench::new();
    let server = logging(&b, &["--iwarp", "tls", "--no-overwrite"]);
    fs::create_dir_all(b.path("src/sub")).unwrap();
    let mut whole = 0;
    for (name, len) in [("a", 3_000_000), ("sub/b", 100_000), ("sub/c", 1), ("d", 0)] {
        fs::write(b.path("src").join(name), bytes(len as u64, len)).unwrap();
        whole += len as u64;
    }
    let src = b.path("src/");
    let src = src.to_str().unwrap();
    expect(&b.run(&["ls", "--accept-new", "--json", &server.url("")]), 0);
    let key = String::from_utf8(b.run(&["keys", "fingerprint"]).stdout).unwrap();
    let mut told = 2; // the look at the key of a server that is not known yet, and the listing
    let head =
        ["kind", "status", "files", "bytes", "log files", "log bytes", "on disk", "carried", "log carried"];
    row(&head.map(str::to_owned));
    for scheme in ["longhaul", "iwarp"] {
        let url = |path: &str| format!("{scheme}://{}/{path}", server.address);
        let (to, none) = (url(&format!("{scheme}/")), url("nosuch"));
        let back = b.path(&format!("back-{scheme}/")).to_str().unwrap().to_owned();
        let changed = b.path("changed/");
        fs::create_dir_all(&changed).unwrap();
        fs::write(changed.join("a"), "another").unwrap();
        fs::write(changed.join("new"), "new").unwrap();
        let changed = changed.to_str().unwrap();
        for (kind, args, status, files, size, disk) in [
            ("put", ["put", src, &to], 0, 4, whole, Some(b.path("srv").join(scheme))),
            ("put again", ["put", src, &to], 0, 0, 0, None),
            ("put, partly", ["put", changed, &to], 1, 1, 3, None),
            ("get", ["get", &to, &back], 0, 5, whole + 3, Some(back.clone().into())),
            ("get, missing", ["get", &none, &back], 1, 0, 0, None),
        ] {
            let o = b.run(&[&args[..], &["--json"]].concat());
            expect(&o, status);
            let r = json(&o);
            told += 1;
            let entry = log_of(&b, told).pop().unwrap();
            let n = |v: &Value| v.as_u64().unwrap_or(u64::MAX);
            let p = &r["transfer"]["progress"];
            let on_disk = disk.map_or(size, |d| on_disk(&d));
            let carried = |v: &Value| n(&v["payload_sent"]).max(n(&v["payload_received"]));
            let (ours, theirs) = (carried(&r["connection"]), carried(&entry));
            row(&[
                kind.to_owned(),
                format!("{}/{}", r["code"], entry["status"]),
                p["files_confirmed"].to_string(),
                r["bytes_transferred"].to_string(),
                entry["files"].to_string(),
                entry["bytes"].to_string(),
                on_disk.to_string(),
                ours.to_string(),
                theirs.to_string(),
            ]);
            assert_eq!((n(&p["files_confirmed"]), n(&r["bytes_transferred"])), (files, size), "{kind}: {r}");
            assert_eq!((n(&entry["files"]), n(&entry["bytes"])), (files, size), "{kind}: {entry}");
            assert_eq!((n(&p["failed"]), on_disk), (n(&entry["failed"]), size), "{kind}: {r} {entry}");
            assert_eq!(entry["operation"], args[0], "{entry}");
            assert_eq!(entry["key"], key.trim(), "{entry}");
            // What one end sent the other has received, up to the last words.
            assert!(ours.abs_diff(theirs) <= 600 && theirs >= size, "{kind}: {ours} {theirs}");
        }
    }
}

#[test]
fn refused_session_is_logged() {
    let _alone = alone();
    let b = Bench::new();
    let server = logging(&b, &["--read-only"]);
    fs::write(b.path("file"), "x").unwrap();
    let o = b.run(&["put", "--accept-new", "--json", b.path("file").to_str().unwrap(), &server.url("")]);
    expect(&o, 6);
    // The look at the key of a server that is not known yet, and the put.
    let entry = log_of(&b, 2).pop().unwrap();
    assert!(
        entry["status"].as_str().unwrap().starts_with("refused: ") && entry["operation"] == "put",
        "{entry}"
    );
}
