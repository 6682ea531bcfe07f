//! Budgets of memory and file descriptors for each session, so that no client can exhaust a server.

use crate::error::{Cause, FileError};
use endpoint::{ConnInfo, network_of};
use lhio::budget::{Budget, Share, free_memory};
use transport::crypto::PeerIdentity;

/// What each session of a server may have of memory when others have all the rest: its first receive buffers (see
/// [`crate::link`]), and one window or piece.
const SURE: u64 = RECEIVES + (4 << 20);
/// Its first receive buffers.
const RECEIVES: u64 = 8 << 20;
/// What it may have noted in any case: some hundred large files that are offered.
const SURE_NOTES: u64 = 1 << 20;
/// Descriptors that a session may have in any case: of a few large files.
const SURE_FILES: u64 = 4 * EACH_FILE;
/// Descriptors of a large file that is received: its folder, the file, its journal, and the one that is there already.
const EACH_FILE: u64 = 4;
/// What is kept of a large file that is offered, beside its ranges of data; and of each of them.
const EACH_OFFER: u64 = 8 << 10;
const EACH_RANGE: u64 = 64;
/// What is kept of a folder beside its path.
const EACH_FOLDER: u64 = 64;

/// What all sessions of a server share.
#[derive(Clone, Debug)]
pub(crate) struct Budgets {
    memory: Budget,
    files: Budget,
}

impl Budgets {
    pub fn new(memory: u64, files: u64) -> Budgets {
        Budgets { memory: Budget::new(memory), files: Budget::new(files) }
    }

    /// For a session of this connection, which acts for `client`.
    pub fn share(&self, info: &ConnInfo, client: Option<&PeerIdentity>) -> Limits {
        // A client that shows no key is known by its address only.
        let key = client.map(ToString::to_string);
        let groups = key.into_iter().chain([network_of(info.remote.ip()).to_string()]).collect();
        self.share_of(groups)
    }

    pub(crate) fn share_of(&self, groups: Vec<String>) -> Limits {
        Limits {
            data: self.memory.share(SURE, groups.clone()),
            notes: self.memory.share(SURE_NOTES, groups.clone()),
            noted: 0,
            files: self.files.share(SURE_FILES, groups),
        }
    }

    /// Memory that sessions hold.
    #[cfg(test)]
    pub fn used(&self) -> u64 {
        self.memory.used()
    }
}

/// What one session holds.
#[derive(Debug)]
pub(crate) struct Limits {
    data: Share,
    notes: Share,
    /// Of what it may note, what it has.
    noted: u64,
    files: Share,
}

impl Limits {
    /// For the only session of a program: half of what is free.
    pub fn alone() -> Limits {
        let (memory, files) = (Budget::new(free_memory()), Budget::unlimited());
        Limits {
            data: memory.share(SURE, Vec::new()),
            notes: memory.share(SURE_NOTES, Vec::new()),
            noted: 0,
            files: files.share(SURE_FILES, Vec::new()),
        }
    }

    /// Memory for data on its way: `want` if that is to be had, and as much as is in use already.
    pub fn data(&mut self, want: u64, in_use: u64) -> u64 {
        let (want, in_use) = (want.saturating_add(RECEIVES), in_use.saturating_add(RECEIVES));
        self.data.adapt(want, in_use).saturating_sub(RECEIVES)
    }

    /// Takes what is kept of a large file with so many ranges of data.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn note_offer(&mut self, path: &[u8], ranges: usize) -> Result<u64, FileError> {
        let n = EACH_OFFER + EACH_RANGE * ranges as u64;
        self.note(n).then_some(n).ok_or_else(|| {
            let text =
                format!("cannot be received now: too many files with {ranges} ranges of data are open");
            FileError::new(path, Cause::NoMemory, text)
        })
    }

    /// Takes what is kept of a folder; false: nothing is to be kept.
    pub fn note_folder(&mut self, path: usize) -> bool {
        self.note(EACH_FOLDER + path as u64)
    }

    /// What was taken for a file is free again.
    pub fn forget(&mut self, noted: u64) {
        self.noted = self.noted.saturating_sub(noted);
        self.notes.adapt(self.noted, 0);
    }

    /// Takes memory for notes of any kind; false: there is none. [`forget`](Self::forget) gives it back.
    pub fn note(&mut self, n: u64) -> bool {
        let want = self.noted.saturating_add(n);
        if self.notes.adapt(want, self.noted) < want {
            self.notes.adapt(self.noted, 0);
            return false;
        }
        self.noted = want;
        true
    }

    /// Whether one more large file may be opened beside `open` others to be received; it counts from now on.
    pub fn open_file(&mut self, open: usize) -> bool {
        let want = EACH_FILE * (open as u64 + 1);
        self.files.adapt(want, 0) >= want
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(b: &Budgets, who: &str) -> Limits {
        b.share_of(vec![who.to_owned()])
    }

    #[test]
    fn sessions_of_one_client_leave_memory_to_others_and_each_has_a_window() {
        let b = Budgets::new(768 << 20, 1_000);
        let mut greedy: Vec<Limits> = (0..20).map(|_| share(&b, "a")).collect();
        let had: u64 = greedy.iter_mut().map(|l| l.data(u64::MAX / 2, 0)).sum();
        assert!(greedy.iter_mut().all(|l| l.data(1 << 40, 0) >= 4 << 20));
        assert!(had < 512 << 20, "{had}");
        let mut other = share(&b, "b");
        assert_eq!(other.data(64 << 20, 0), 64 << 20);
        assert!(other.note_offer(b"f", 1).is_ok());
        drop((greedy, other));
        assert_eq!(b.memory.used(), 0);
    }

    #[test]
    fn lists_of_ranges_and_folders_are_counted_until_there_is_no_room() {
        let b = Budgets::new(64 << 20, 1_000);
        let mut l = share(&b, "a");
        let noted = l.note_offer(b"f", 4_096).unwrap();
        assert_eq!(noted, EACH_OFFER + 4_096 * EACH_RANGE);
        let n = (0..1_000).take_while(|_| l.note_offer(b"f", 4_096).is_ok()).count();
        assert!((50..200).contains(&n), "{n}");
        let e = l.note_offer(b"f", 4_096).unwrap_err();
        assert_eq!(e.cause, Cause::NoMemory);
        while l.note_folder(4_000) {}
        l.forget(noted);
        assert!(l.note_folder(4_000), "what was given back can be had again");
        assert!(b.memory.used() <= 64 << 20);
    }

    #[test]
    fn large_files_are_opened_a_few_at_a_time_where_descriptors_are_few() {
        let b = Budgets::new(1 << 30, 60);
        let opened = |l: &mut Limits| (0..200).take_while(|n| l.open_file(*n)).count();
        let (mut first, mut second) = (share(&b, "a"), share(&b, "b"));
        assert_eq!((opened(&mut first), opened(&mut second)), (7, 5));
        assert!((0..4).all(|n| share(&b, "a").open_file(n)), "some in any case");
        // As it closes some, others may have them.
        assert!(first.open_file(3) && opened(&mut second) > 5);
    }
}
