//! Room for what is received: memory that is granted, files that are opened, folders that are remembered, all within what the process
//! has for this session.

use super::large::{self, Wanted};
use super::{MAX_WINDOW, MAX_WINDOWS, MIN_WINDOW, Report, Sink};
use crate::error::FileError;
use crate::path::RelPath;
use crate::proto::Meta;

/// Folders whose mode and time are remembered for the end; those beyond get them at once.
const MAX_DIRS: usize = 4_000_000;

/// A large file that was offered and is to be opened.
pub(super) struct Unopened {
    pub file: u64,
    pub wanted: Wanted,
    /// It cannot be received, and why.
    pub failed: Option<FileError>,
}

impl Sink {
    /// Memory for what arrives, granted or to be granted again.
    pub(super) fn in_use(&self) -> u64 {
        self.granted + self.spare.iter().map(|s| s.len() as u64).sum::<u64>()
    }

    /// Whether a window of `most` bytes, or of one chunk, can be made for a file beside those there are.
    fn has_budget(&mut self, id: u64, most: u64) -> bool {
        let (chunk, size) =
            self.files.get(&id).map_or((0, 0), |f| (1u64 << f.log2, f.size.next_power_of_two()));
        let need = self.granted + most.max(chunk).min(size);
        if need > self.granted_max && chunk > most {
            // Chunks of very large files are larger than windows: it needs one.
            self.granted_max = self.limits.data(self.wanted.max(need), self.in_use());
        }
        need <= self.granted_max || self.windows == 0 && chunk <= MIN_WINDOW
    }

    /// Has memory made while the budget lasts.
    pub(super) fn grant(&mut self) {
        while self.windows < MAX_WINDOWS {
            let Some(&id) = self.waiting_for_memory.front() else { return };
            let most = (self.granted_max / 16).clamp(MIN_WINDOW, MAX_WINDOW);
            if !self.has_budget(id, most) {
                return;
            }
            // Where address space ends, there are fewer windows at a time; one must do.
            if self.windows > 0
                && self.spare.is_empty()
                && lhio::memory::has_room(self.making + most, lhio::memory::HEADROOM).is_err()
            {
                return;
            }
            let Some(f) = self.files.get_mut(&id) else {
                self.waiting_for_memory.pop_front();
                continue;
            };
            let (Some((chunks, len)), Some(part)) = (f.next_window(most), f.part.clone()) else {
                self.waiting_for_memory.pop_front();
                continue;
            };
            let bytes = f.bytes(&chunks);
            self.windows += 1;
            self.granted += len;
            // The one used last is the likeliest to be in the cache.
            let same = self.spare.iter().rposition(|s| s.len() as u64 == len);
            let memory = same.map(|i| self.spare.remove(i));
            let new = if memory.is_some() { 0 } else { len };
            if memory.is_none() {
                self.spare.clear(); // sizes have changed
            }
            self.making += new;
            self.jobs.submit(Report::Died, move || Report::Window {
                file: id,
                chunks,
                result: part.window(bytes, memory, len),
                new,
            });
        }
    }

    /// Opens files that were offered, as many as there are descriptors for. The others wait, and their source with them.
    pub(super) fn open_some(&mut self) {
        while let Some(next) = self.unopened.front() {
            let dead = next.failed.is_some() || !self.files.contains_key(&next.file);
            if !dead && !self.limits.open_file(self.open) {
                return;
            }
            let Some(Unopened { file, wanted, failed }) = self.unopened.pop_front() else { return };
            if !self.files.contains_key(&file) {
                continue; // dropped meanwhile
            }
            if failed.is_none()
                && let Some(f) = self.files.get_mut(&file)
            {
                f.has_descriptors = true;
                self.open += 1;
            }
            let (made, watch) = (self.made.clone(), self.watch.clone());
            self.jobs.submit(Report::Died, move || Report::Opened {
                file,
                result: Box::new(failed.map_or_else(|| large::open(&made, wanted, &watch), Err)),
            });
        }
    }

    /// What it holds: windows, their bytes, open files, bytes of messages that wait for the disk, bytes that are being made.
    #[cfg(test)]
    pub fn held(&self) -> [u64; 5] {
        [self.windows as u64, self.granted, self.open as u64, self.waiting as u64, self.making]
    }

    /// A file is over: what it held is free again.
    pub(super) fn release(&mut self, f: &super::Incoming) {
        self.limits.forget(f.noted);
        self.open -= usize::from(f.has_descriptors);
    }

    /// Keeps mode and time of folders for the end.
    pub(super) fn remember(&mut self, dirs: Vec<(RelPath, Meta)>) {
        for (path, meta) in dirs {
            if self.dirs.len() < MAX_DIRS && self.limits.note_folder(path.as_bytes().len()) {
                self.dirs.push((path, meta));
            } else if self.made.may_change(&path) {
                // Its time may change once more when files come into it.
                let _ = self.made.tree().dir(&path).and_then(|d| d.set_meta(&meta));
            }
        }
    }
}
