//! Rates that change while a transfer runs, as the other end sees them.

#![allow(clippy::disallowed_methods, reason = "real sockets and programs take real time")]

mod common;

use base::Rate;
use common::{get_limited, noise, put_limited, serve};
use longhaul_mover::{Limiter, Progress, ServeOptions, Summary, Timetable, Wake};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the file.
const SIZE: usize = 60 << 20;

/// Bytes of an unfinished or finished file that are on the disk.
fn arrived(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let all = std::fs::read_dir(folder).into_iter().flatten().flatten();
    all.filter_map(|e| e.metadata().ok()).map(|m| m.blocks() * 512).max().unwrap_or(0)
}

fn limiter(second: &Arc<AtomicU32>) -> Limiter {
    let t = Timetable::parse("08:00,16mbit 18:00,off", |t| {
        base::units::rate_within(t, Rate::from_mbit(1), Rate::from_mbit(1_000)).map_err(|e| e.to_string())
    });
    let clock = second.clone();
    Limiter::new(t.unwrap(), Box::new(move || clock.load(Ordering::Relaxed)))
}

/// Looks from outside how fast the file grows, moves the clock on, and looks again.
fn observe(folder: PathBuf, second: Arc<AtomicU32>) -> impl FnOnce(Progress, Wake) {
    move |p, _| {
        std::thread::spawn(move || {
            while p.snapshot().bytes_confirmed == 0 && p.outcome().is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let begun = Instant::now();
            // Twenty-nine and a half seconds pass for it: the clock is looked at every thirty.
            while begun.elapsed() < Duration::from_secs(2) && p.outcome().is_none() {
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(p.outcome().is_none(), "it is slow at first: {}", arrived(&folder));
            second.store(18 * 3_600, Ordering::Relaxed);
        });
    }
}
fn check(r: &Summary) {
    assert!(r.success(), "{:?} {:?}", r.error, r.progress.errors);
}

/// Ends far sooner than at the first rate, which takes 31 seconds for the file: the change is 2 seconds after its beginning, and
/// is due at once, since the clock stands right before the entry.
#[test]
fn the_rate_changes_while_files_are_sent_and_fetched() {
    let d = tempfile::tempdir().unwrap();
    std::fs::create_dir(d.path().join("served")).unwrap();
    std::fs::write(d.path().join("f"), noise(1, SIZE)).unwrap();
    let s = serve(ServeOptions::new(d.path().join("served")));
    let before = 18 * 3_600 - 2;
    let second = Arc::new(AtomicU32::new(before));
    let begun = Instant::now();
    let r = put_limited(
        s.addr,
        &d.path().join("f"),
        "",
        limiter(&second),
        observe(d.path().join("served"), second),
    );
    check(&r.unwrap());
    let put = begun.elapsed();
    let second = Arc::new(AtomicU32::new(before));
    let begun = Instant::now();
    let to = d.path().join("got");
    std::fs::create_dir(&to).unwrap();
    let r = get_limited(s.addr, "f", &to, limiter(&second), observe(to.clone(), second));
    check(&r.unwrap());
    let get = begun.elapsed();
    for (what, took) in [("put", put), ("get", get)] {
        assert!(took > Duration::from_secs(2) && took < Duration::from_secs(20), "{what}: {took:?}");
    }
}
