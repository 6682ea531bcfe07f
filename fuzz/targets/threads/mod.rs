//! The threads of this process.

#![allow(clippy::disallowed_methods, reason = "threads of the system are waited for, by its clock")]

use std::fs;
use std::time::{Duration, Instant};

/// Longest time that a thread may go on when what it worked for is gone: longer than a busy machine delays it, and less than
/// an input may take, so that its name is told.
const LIMIT: Duration = Duration::from_secs(8);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_micros(50);

/// Number of threads.
pub fn count() -> usize {
    fs::read_dir("/proc/self/task").expect("a system with /proc").count()
}

/// Waits until there are not more than `before`: what has ended leaves no thread behind. It also keeps one input's threads
/// out of the next one, and out of the search for leaks, which cannot see what a thread holds that is just ending.
pub fn wait(before: usize) {
    let start = Instant::now();
    while count() > before {
        assert!(start.elapsed() < LIMIT, "threads do not end: {:?}", names());
        std::thread::sleep(PAUSE);
    }
}

fn names() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("a system with /proc").flatten();
    tasks.filter_map(|t| fs::read_to_string(t.path().join("comm")).ok()).map(|n| n.trim().into()).collect()
}
