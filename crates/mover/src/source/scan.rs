//! Counts files and bytes ahead of the walk that sends them, for the estimate of the time left.

use super::{Source, send};
use crate::link::Link;
use crate::pool::Wake;
use crate::progress::{Progress, Snapshot};
use crate::proto::{Kind, Record, SourceCounts};
use crate::select::Picker;
use crate::tree::Info;
use crate::walk::{Start, Walk};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Transfers that are over sooner are not counted ahead: the walk has found everything by then, or nearly.
const DELAY: Duration = Duration::from_millis(500);
/// Files between two looks at whether the transfer is over.
const LOOK_EVERY: u64 = 512;

/// A sink whose user waits is told anew how much there is when so large a part more was left out.
const COUNTS_TOLD: u64 = 64;

/// Ends the scan when it is dropped.
pub(super) struct Scan(#[allow(dead_code, reason = "what counts is that it is dropped")] Sender<()>);

impl Scan {
    /// Begins to count; the totals go into `progress`. Without a thread there is no count, and the transfer goes on.
    pub fn start(starts: Vec<Start>, picker: Arc<Picker>, progress: Progress, wake: Wake) -> Option<Scan> {
        let (owner, over) = channel();
        let run = move || {
            if over.recv_timeout(DELAY) != Err(RecvTimeoutError::Timeout) || progress.is_complete() {
                return;
            }
            let (mut files, mut bytes) = (0, 0_u64);
            let walk = Walk::new(starts, usize::MAX).selecting(picker.clone(), false).flatten();
            let wanted = |i: &Info| i.kind == Kind::File && picker.select.fits_size(i.size);
            for found in walk.filter(|f| wanted(&f.info)) {
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

impl Source {
    /// What was found so far.
    pub(super) fn counts(&self) -> SourceCounts {
        let not_preserved = self.behind.get();
        self.progress.with(|s| SourceCounts {
            files: s.files_total,
            bytes: s.bytes_total,
            same_files: s.files_skipped,
            same_bytes: s.bytes_skipped,
            not_preserved,
        })
    }
    /// Tells a sink whose user waits how much there is, as soon as that is known, and then now and then how much of it is left out.
    pub(super) fn tell_counts(&mut self, link: &mut Link) {
        let due = |s: &Snapshot| {
            let step = (s.files_total / COUNTS_TOLD).max(1);
            s.complete && self.counts_told.is_none_or(|told| s.files_skipped >= told + step)
        };
        if self.scan.is_some() && !self.ended && self.progress.with(due) {
            let counts = self.counts();
            self.counts_told = Some(counts.same_files);
            send(link, &[Record::Counts(counts)]);
        }
    }
}
