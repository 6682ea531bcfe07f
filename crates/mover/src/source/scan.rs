//! Counts what there is to send ahead of the walk that sends it, so that those who wait are told how long it takes.

use crate::pool::Wake;
use crate::progress::Progress;
use crate::proto::Kind;
use crate::walk::{Start, Walk};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Transfers that are over sooner are not counted ahead: the walk has found everything by then, or nearly.
const DELAY: Duration = Duration::from_millis(500);
/// Files between two looks at whether the transfer is over.
const LOOK_EVERY: u64 = 512;

/// Ends the scan when it is dropped.
pub(super) struct Scan(#[allow(dead_code, reason = "what counts is that it is dropped")] Sender<()>);

impl Scan {
    /// Begins to count; the totals go into `progress`. Without a thread there is no count, and the transfer goes on.
    pub fn start(starts: Vec<Start>, progress: Progress, wake: Wake) -> Option<Scan> {
        let (owner, over) = channel();
        let run = move || {
            if over.recv_timeout(DELAY) != Err(RecvTimeoutError::Timeout) || progress.is_complete() {
                return;
            }
            let (mut files, mut bytes) = (0, 0_u64);
            for found in Walk::new(starts, usize::MAX).flatten().filter(|f| f.info.kind == Kind::File) {
                files += 1;
                bytes = bytes.saturating_add(found.info.size);
                if files % LOOK_EVERY == 0
                    && over.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected)
                {
                    return;
                }
            }
            progress.scanned(files, bytes);
            wake();
        };
        let thread = std::thread::Builder::new().name("mover-scan".into()).spawn(run);
        thread.ok().map(|_| Scan(owner))
    }
}
