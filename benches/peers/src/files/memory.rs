//! Peak memory of both ends of a copier, by what the kernel says of their processes while they run.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use base::Span;
use lab::workload::sleep;

/// Between two looks. A process's peak is kept by the kernel, so that only one of its last moments can be missed.
const INTERVAL: Span = Span::from_millis(50);

/// A thread that looks at two processes and all that they have started.
pub struct Peaks {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<[f64; 2]>,
}

impl Peaks {
    /// Starts it.
    pub fn watch(client: u32, server: Option<u32>) -> Peaks {
        let is_over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut most = [0.0f64; 2];
            while !seen.load(Ordering::Relaxed) {
                let parents = parents();
                for (most, root) in most.iter_mut().zip([Some(client), server]) {
                    let all = root.map(|r| with_descendants(r, &parents)).unwrap_or_default();
                    *most = all.into_iter().filter_map(peak).fold(*most, f64::max);
                }
                sleep(INTERVAL);
            }
            most
        });
        Peaks { is_over, thread }
    }

    /// MB of the largest process of client and server.
    pub fn end(self) -> [f64; 2] {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic")
    }
}

/// The parent of every process.
fn parents() -> BTreeMap<u32, u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, status(pid, "PPid:")? as u32))).collect()
}

/// The processes whose parent is this one.
pub fn children() -> Vec<u32> {
    let own = std::process::id();
    parents().into_iter().filter(|(_, parent)| *parent == own).map(|(pid, _)| pid).collect()
}

fn with_descendants(root: u32, parents: &BTreeMap<u32, u32>) -> Vec<u32> {
    let mut all = vec![root];
    let mut at = 0;
    while at < all.len() {
        let children = parents.iter().filter(|(_, parent)| **parent == all[at]).map(|(pid, _)| *pid);
        all.extend(children.collect::<Vec<_>>());
        at += 1;
    }
    all
}

/// A number of a process's `status`; none when it has ended.
fn status(pid: u32, key: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|l| l.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}

fn peak(pid: u32) -> Option<f64> {
    Some(status(pid, "VmHWM:")? as f64 * 1024e-6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_of_a_process_and_of_what_it_starts_is_seen() {
        let mut child =
            std::process::Command::new("sh").args(["-c", "sleep 1; true"]).spawn().expect("started");
        let peaks = Peaks::watch(std::process::id(), Some(child.id()));
        child.wait().expect("ended");
        let [own, its] = peaks.end();
        assert!(own > its && its > 0.1, "{own} {its}");
    }
}
