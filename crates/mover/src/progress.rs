//! Counters of a transfer, for progress bars and JSON.

use crate::error::{Cause, Error, FileError};
use crate::keep::Keep;
use crate::path::RelPath;
use crate::proto::{Deleted, Mapping, NotPreserved, SourceCounts, Totals};
use crate::select::Excluded;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most errors kept; the rest are counted.
pub const MAX_ERRORS: usize = 1000;

/// Counters of a transfer at one moment: planned, sent and confirmed are apart. Sizes in bytes.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Snapshot {
    /// Planned: files found so far, those that turn out to be the same at the destination included.
    pub files_total: u64,
    /// Planned: bytes of them.
    pub bytes_total: u64,
    /// Whether everything has been found, so that the totals are final.
    pub complete: bool,
    /// Confirmed: files that the receiving end has verified and put in place.
    pub files_confirmed: u64,
    /// Confirmed: bytes that the receiving end has verified, those of earlier attempts included.
    pub bytes_confirmed: u64,
    /// Bytes of unfinished files that an earlier attempt had brought over, as far as they were confirmed.
    pub bytes_resumed: u64,
    /// Files that were the same at the destination already.
    pub files_skipped: u64,
    /// Bytes of them.
    pub bytes_skipped: u64,
    /// Files of them that were made by a hard link to one of a folder of `--link-dest`.
    pub files_linked: u64,
    /// Sent: payload that this end has sent, names and checksums included, each byte once.
    pub bytes_sent: u64,
    /// Payload that this end has received, each byte once.
    pub bytes_received: u64,
    /// Bytes of large files that were copied from what the receiving end had before, and did not travel.
    pub bytes_matched: u64,
    /// Bytes that were sent compressed, before that.
    pub bytes_before_compression: u64,
    /// The same bytes as they were sent.
    pub bytes_after_compression: u64,
    /// Payload that this end had to send again, since the network lost it.
    pub bytes_retransmitted: u64,
    /// Payload confirmed or received per second, over the last seconds; null before there is anything to tell.
    pub bytes_per_second: Option<u64>,
    /// Files confirmed per second, likewise.
    pub files_per_second: Option<u64>,
    /// Time until the end, if it goes on like that; null while that or the totals are not known.
    pub seconds_left: Option<f64>,
    /// The file that was touched last, for people.
    pub current: String,
    /// Things to know that are no failures: a file that started over because its source changed.
    pub notes: Vec<String>,
    /// What of the things sent does not travel, once everything was sent.
    pub not_preserved: NotPreserved,
    /// Files, folders and special files whose contents are the same at the destination, and whose mode, time, owner or
    /// attributes are brought over.
    pub attributes_changed: u64,
    /// What was asked to be kept and the receiving end's operator does not allow, in words.
    pub not_allowed: Vec<&'static str>,
    /// Files and folders whose owner the receiving end could not set.
    pub owners_lost: u64,
    /// Files and folders whose attributes or access control lists the receiving end could not set.
    pub attributes_lost: u64,
    /// What the source has left out, once everything was sent.
    pub excluded: Excluded,
    /// What became of what was left over at the destination.
    pub deleted: Deleted,
    /// In a rehearsal: names of what would be removed, the first [`MAX_ERRORS`], and how many there are.
    pub would_delete: Vec<String>,
    /// See `would_delete`.
    pub would_delete_count: u64,
    /// What could not be transferred, the first [`MAX_ERRORS`].
    pub errors: Vec<FileError>,
    /// How many could not be transferred.
    pub failed: u64,
    /// The cause of the first failure that the system of one of the ends is to blame for ([`Cause::is_system`]).
    pub system: Option<Cause>,
}

impl Snapshot {
    /// Bytes that this attempt has brought to the receiving end, which has verified them, as they are there: neither those of
    /// earlier attempts nor those that were copied there.
    pub fn bytes_transferred(&self) -> u64 {
        self.bytes_confirmed.saturating_sub(self.bytes_resumed).saturating_sub(self.bytes_matched)
    }
    /// Bytes that are neither confirmed nor left out, as far as is known.
    pub fn bytes_left(&self) -> u64 {
        self.bytes_total.saturating_sub(self.bytes_confirmed).saturating_sub(self.bytes_skipped)
    }
    /// Files likewise.
    pub fn files_left(&self) -> u64 {
        let over = self.files_confirmed.saturating_add(self.files_skipped).saturating_add(self.failed);
        self.files_total.saturating_sub(over)
    }
    /// What the receiving end says of what it keeps.
    pub(crate) fn kept(&mut self, denied: Keep, owners: u64, attributes: u64) {
        self.not_allowed = denied.words();
        (self.owners_lost, self.attributes_lost) = (owners, attributes);
    }
    /// What the source says of all there is.
    pub(crate) fn found(&mut self, c: &SourceCounts) {
        (self.files_total, self.bytes_total, self.complete) = (c.files, c.bytes, true);
        (self.files_skipped, self.bytes_skipped) = (c.same_files, c.same_bytes);
        self.not_preserved = c.not_preserved;
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
    /// Looks at the counters as they are.
    pub(crate) fn with<T>(&self, f: impl FnOnce(&Snapshot) -> T) -> T {
        f(&self.0.snapshot.lock().unwrap_or_else(PoisonError::into_inner))
    }
    /// The walk has found so much until now.
    pub(crate) fn found_more(&self, files: u64, bytes: u64) {
        self.update(|s| {
            if !s.complete {
                (s.files_total, s.bytes_total) = (files, bytes);
            }
        });
    }
    /// The other end offers a file, of which it may not have said yet how many there are. The size is its word alone.
    pub(crate) fn offered(&self, path: &RelPath, size: u64) {
        self.update(|s| {
            s.current = path.to_string();
            if !s.complete {
                s.files_total = s.files_total.saturating_add(1);
                s.bytes_total = s.bytes_total.saturating_add(size);
            }
        });
    }
    /// The walk has found so much in all.
    pub(crate) fn found_all(&self, files: u64, bytes: u64) {
        self.update(|s| (s.files_total, s.bytes_total, s.complete) = (files, bytes, true));
    }
    /// So much was there when it was counted ahead of the walk.
    pub(crate) fn scanned(&self, files: u64, bytes: u64) {
        self.update(|s| {
            if !s.complete {
                (s.files_total, s.bytes_total, s.complete) = (files, bytes, true);
            }
        });
    }
    /// Whether the totals are known.
    pub(crate) fn is_complete(&self) -> bool {
        self.with(|s| s.complete)
    }
    /// The receiving end has verified so much, cumulative.
    pub(crate) fn confirmed(&self, files: u64, bytes: u64, resumed: u64) {
        self.update(|s| (s.files_confirmed, s.bytes_confirmed, s.bytes_resumed) = (files, bytes, resumed));
    }
    /// So much payload went over the connection, by its own counters.
    pub(crate) fn carried(&self, c: &endpoint::Stats) {
        self.update(|s| {
            s.bytes_sent = c.payload_sent.saturating_sub(c.payload_again);
            (s.bytes_received, s.bytes_retransmitted) = (c.payload_received, c.payload_again);
        });
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
    /// In a rehearsal: this would be removed.
    pub(crate) fn would_delete(&self, path: &RelPath) {
        self.update(|s| {
            s.would_delete_count += 1;
            if s.would_delete.len() < MAX_ERRORS {
                s.would_delete.push(path.to_string());
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
    fn sizes_that_a_peer_makes_up_add_up_without_a_panic() {
        let (p, path) = (Progress::default(), RelPath::parse(b"a").unwrap());
        for _ in 0..3 {
            p.offered(&path, u64::MAX / 2);
        }
        let s = p.snapshot();
        assert_eq!((s.files_total, s.bytes_total, s.bytes_left()), (3, u64::MAX, u64::MAX));
        p.found_all(1, 7);
        p.offered(&path, 9);
        assert_eq!((p.snapshot().bytes_total, &p.snapshot().current[..]), (7, "a"), "what was counted stays");
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
