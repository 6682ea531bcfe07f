//! `put --delete` whose ends are killed (SIGKILL) at random moments, while files appear at the destination: what should stay stays.

mod common;

use base::Rng;
use common::{Bench, bytes, expect};
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// How often one end or the other is killed.
const KILLS: u64 = 44;
/// Files that the source has, and that are left over at the destination.
const FILES: u64 = 120;

fn source(s: &Path) {
    for i in 0..FILES {
        let folder = s.join(format!("d{}", i % 7));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("f{i}")), bytes(i, 2_000 + (i as usize % 5) * 60_000)).unwrap();
    }
}

/// What is left over, and what stays for a rule. Both are there again before each attempt.
fn left_over(d: &Path) {
    for i in 0..FILES {
        let folder = d.join(format!("old{}/deep", i % 5));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("x{i}")), "left over").unwrap();
    }
    fs::create_dir_all(d.join("old0/deep")).unwrap();
    fs::write(d.join("old0/deep/stays.keep"), "kept by a rule").unwrap();
}

#[expect(clippy::disallowed_methods, reason = "a test waits for the moment to kill another process")]
fn pause(of: Duration) {
    std::thread::sleep(of);
}

/// How long a whole put takes on this machine: kills are to come in its midst.
#[expect(clippy::disallowed_methods, reason = "a test that kills processes follows the clock on the wall")]
fn duration(b: &Bench, from: &str, to: &str, d: &Path) -> Duration {
    left_over(d);
    let began = std::time::Instant::now();
    expect(&b.run(&["put", "--accept-new", "-q", "--delete", from, to]), 0);
    let lasts = began.elapsed();
    clear(d);
    lasts
}

/// Empties the destination. A server whose client was killed may still put things there for a moment.
fn clear(d: &Path) {
    for _ in 0..200 {
        if fs::remove_dir_all(d).is_ok() {
            break;
        }
        pause(Duration::from_millis(20));
    }
    fs::create_dir_all(d).unwrap();
}

#[test]
fn kills_at_random_moments_delete_nothing_that_should_stay() {
    let b = Bench::new();
    let (s, d) = (b.path("s"), b.path("served/d"));
    source(&s);
    fs::create_dir_all(&d).unwrap();
    let mut server = b.serve("served", &["--allow-delete", "--no-sync"]);
    let mut rng = Rng::from_u64(7);
    let from = format!("{}/", s.display());
    let (mut there, mut cut, mut removed) = (Vec::new(), 0, 0);
    let lasts = duration(&b, &from, &server.url("d/"), &d);
    for n in 0..KILLS {
        left_over(&d);
        let url = server.url("d/");
        let args = ["put", "--accept-new", "-q", "--delete", "--exclude=*.keep", &from, &url];
        let mut client = b.client(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        pause(lasts.mul_f64(rng.below(700) as f64 / 1e3));
        // Somebody else's, in the midst of what goes.
        let new = d.join(format!("old{}/deep/new{n}", n % 5));
        let appeared = fs::write(&new, "appeared meanwhile").is_ok();
        pause(lasts.mul_f64(rng.below(200) as f64 / 1e3));
        if n % 2 == 0 {
            server.kill();
        }
        let over = client.try_wait().unwrap().is_some();
        cut += u64::from(!over);
        client.kill().unwrap();
        client.wait().unwrap();
        if n % 2 == 0 {
            server = b.serve("served", &["--allow-delete", "--no-sync"]);
        }
        // It may have been there before the listing, which makes it left over; then it must be gone for that reason only.
        if appeared && new.exists() {
            fs::remove_file(&new).unwrap();
        }
        assert!(d.join("old0/deep/stays.keep").exists(), "attempt {n}: a rule keeps it");
        for p in &there {
            let p: &std::path::PathBuf = p;
            assert!(d.join(p).exists(), "attempt {n}: {} was in place", p.display());
        }
        there.clear();
        for i in 0..FILES {
            let p = std::path::PathBuf::from(format!("d{}/f{i}", i % 7));
            if let Ok(data) = fs::read(d.join(&p)) {
                assert!(data == fs::read(s.join(&p)).unwrap(), "attempt {n}: {}", p.display());
                there.push(p);
            }
        }
        let left = (0..FILES).filter(|i| d.join(format!("old{}/deep/x{i}", i % 5)).exists()).count() as u64;
        // Something goes only when everything is in place.
        let whole = there.len() as u64;
        assert!(left == FILES || whole == FILES, "attempt {n}: {left} left, {whole} there");
        removed += FILES - left;
        if n % 5 == 4 {
            clear(&d);
            there.clear();
        }
    }
    println!("{cut} of {KILLS} attempts were cut off; {removed} files were removed");
    assert!(cut > KILLS / 4, "hardly any attempt was cut off: {cut}");
    left_over(&d);
    let url = server.url("d/");
    expect(&b.run(&["put", "--accept-new", "--delete", "--exclude=*.keep", &from, &url]), 0);
    fs::remove_file(d.join("old0/deep/stays.keep")).unwrap();
    for empty in ["old0/deep", "old0"] {
        fs::remove_dir(d.join(empty)).unwrap();
    }
    assert!(common::tree(&s) == common::tree(&d));
}
