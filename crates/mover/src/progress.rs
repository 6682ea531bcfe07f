//! What a transfer has done so far, for progress bars and for machines.

use crate::error::{Cause, Error, FileError};
use crate::proto::{Mapping, NotCarried, SourceCounts, Totals};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most errors kept; the rest are counted.
pub const MAX_ERRORS: usize = 1000;

/// A picture of a transfer at one moment. Sizes in bytes.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Snapshot {
    /// Files found so far.
    pub files_known: u64,
    /// Bytes of them.
    pub bytes_known: u64,
    /// Whether everything has been found, so that the totals are final.
    pub complete: bool,
    /// Files that are verified and in place at the destination.
    pub files_done: u64,
    /// Bytes that are verified at the destination, those of earlier attempts included.
    pub bytes_done: u64,
    /// Payload bytes handed to the network by this attempt (source) or received (sink).
    pub bytes_moved: u64,
    /// Files that were the same at the destination already.
    pub files_skipped: u64,
    /// Bytes of them.
    pub bytes_skipped: u64,
    /// Bytes of unfinished files that an earlier attempt had brought over.
    pub bytes_resumed: u64,
    /// Bytes that the network had to carry again.
    pub bytes_retransmitted: u64,
    /// Payload per second of the last measuring interval; 0 before the first.
    pub bytes_per_second: u64,
    /// The file that was touched last, for people.
    pub current: String,
    /// Things to know that are no failures: a file that started over because its source changed.
    pub notes: Vec<String>,
    /// What of the things sent does not travel, once everything was sent.
    pub not_carried: NotCarried,
    /// What could not be transferred, the first [`MAX_ERRORS`].
    pub errors: Vec<FileError>,
    /// How many could not be transferred.
    pub failed: u64,
    /// The cause of the first failure that the system of one of the ends is to blame for ([`Cause::is_system`]).
    pub system: Option<Cause>,
}

impl Snapshot {
    /// What the source says at its end, which is all there is.
    pub(crate) fn found(&mut self, c: &SourceCounts) {
        (self.files_known, self.bytes_known, self.complete) = (c.files, c.bytes, true);
        (self.files_skipped, self.bytes_skipped) = (c.same_files, c.same_bytes);
        self.not_carried = c.not_carried;
    }
}

/// How a transfer ended.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Summary {
    /// Nothing, or why it did not fully succeed.
    pub error: Option<Error>,
    /// The last picture.
    pub progress: Snapshot,
    /// What the receiving end counted; zero when it did not get to its end.
    pub totals: Totals,
    /// Time from the start to the verified end, in nanoseconds.
    pub nanos: u64,
    /// It was only a rehearsal.
    pub dry_run: bool,
}
impl Summary {
    /// Whether everything is at its place.
    pub fn success(&self) -> bool {
        self.error.is_none()
    }
}

#[derive(Default)]
struct Inner {
    snapshot: Mutex<Snapshot>,
    outcome: Mutex<Option<Summary>>,
    mapped: Mutex<Option<Mapping>>,
    interrupt: AtomicBool,
}

/// Shared between the transfer and whoever shows it.
#[derive(Clone, Default)]
pub struct Progress(Arc<Inner>);

impl Progress {
    /// The picture now.
    pub fn snapshot(&self) -> Snapshot {
        self.0.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    /// The result, once the transfer has ended.
    pub fn outcome(&self) -> Option<Summary> {
        self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    /// How the server sends, once it has told.
    pub fn mapped(&self) -> Option<Mapping> {
        self.0.mapped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
    pub(crate) fn map(&self, m: Mapping) {
        *self.0.mapped.lock().unwrap_or_else(PoisonError::into_inner) = Some(m);
    }
    /// Asks the transfer to stop at the next turn of its loop, in a state that can be resumed. The one who asks
    /// wakes the loop.
    pub fn interrupt(&self) {
        self.0.interrupt.store(true, Ordering::Relaxed);
    }
    pub(crate) fn interrupted(&self) -> bool {
        self.0.interrupt.load(Ordering::Relaxed)
    }
    pub(crate) fn update(&self, f: impl FnOnce(&mut Snapshot)) {
        f(&mut self.0.snapshot.lock().unwrap_or_else(PoisonError::into_inner));
    }
    pub(crate) fn fail(&self, e: FileError) {
        self.update(|s| {
            s.failed += 1;
            s.system = s.system.or(Some(e.cause).filter(|c| c.is_system()));
            if s.errors.len() < MAX_ERRORS {
                s.errors.push(e);
            }
        });
    }
    pub(crate) fn note(&self, text: String) {
        self.update(|s| {
            if s.notes.len() < MAX_ERRORS {
                s.notes.push(text);
            }
        });
    }
    pub(crate) fn finish(&self, s: Summary) {
        self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_beyond_their_list() {
        let p = Progress::default();
        for _ in 0..MAX_ERRORS + 5 {
            p.fail(FileError::new(b"x", Cause::Denied, "not yours"));
        }
        let s = p.snapshot();
        assert_eq!((s.errors.len(), s.failed, s.system), (MAX_ERRORS, MAX_ERRORS as u64 + 5, None));
        // The first that is the system's counts, also where the list is full.
        for cause in [Cause::Full, Cause::Storage] {
            p.fail(FileError::new(b"x", cause, "no room"));
        }
        assert_eq!(p.snapshot().system, Some(Cause::Full));
        assert!(!p.interrupted());
        p.interrupt();
        assert!(p.interrupted());
    }

    #[test]
    fn a_summary_is_readable_by_machines() {
        let error = Some(Error::Partial { failed: 2, system: Some(Cause::Full) });
        let (progress, totals) = (Snapshot::default(), Totals::default());
        let s = Summary { error, progress, totals, nanos: 7, dry_run: false };
        let j = serde_json::to_value(&s).unwrap();
        assert_eq!((&j["error"]["kind"], &j["error"]["system"]), (&"partial".into(), &"full".into()));
        assert_eq!(j["nanos"], 7);
    }
}
