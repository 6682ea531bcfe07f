//! The sink's part of a delta: lists its old file, and copies out of it what the source says.

use super::incoming::Incoming;
use super::large::Part;
use super::{Report, Sink};
use crate::delta::{Copied, Cut, Cutter, Listed, Plan, aim, most_pieces};
use crate::error::FileError;
use crate::hash::Digest;
use crate::link::Link;
use crate::proto::{MAX_LISTED, Record};
use crate::session::Fatal;
use crate::source::{data_extents, overlapping, send};
use crate::tree::Info;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Jobs that list old files, and that copy out of them, at a time: others arrive meanwhile.
const MAX_LISTING: usize = 2;
const MAX_COPYING: usize = 4;
/// Bytes of an old file that one job reads, at least the longest piece.
const STEP: usize = 4 << 20;
/// Bytes that one job copies, at least one chunk.
const COPY_STEP: u64 = 4 << 20;
/// Bytes of lists that may be on their way.
const MAX_SAID: u64 = 4 << 20;
/// Memory for a copy.
const EACH_COPY: u64 = 32;
/// Bytes copied by one system call.
const COPY: u64 = 1 << 20;

/// An old file that is being listed.
pub(super) struct OldFile {
    file: Arc<File>,
    size: u64,
    extents: Vec<Range<u64>>,
    at: u64,
    cutter: Cutter,
    /// End of the last piece that was listed, and how many more may be.
    end: u64,
    room: u64,
}

/// What one job has listed; what is left to be listed.
pub(super) type Step = (Vec<Listed>, Option<Box<OldFile>>);

/// Where a file stands of which the source wants to send what is not here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DeltaStage {
    /// It does not want that, or all is said.
    #[default]
    None,
    /// It has asked for a list.
    DemandReceiver,
    /// The list is being made, and then the source says what is to be copied.
    Listed,
}

impl OldFile {
    /// Of the file that has the name of a new one of `size` bytes.
    ///
    /// # Errors
    /// There is none that can be read.
    pub fn open(file: File, size: u64) -> io::Result<OldFile> {
        let info = Info::of_file(&file)?;
        let extents = data_extents(&file, &info)?;
        let (cutter, room) = (Cutter::new(aim(size)), most_pieces(size));
        Ok(OldFile { file: Arc::new(file), size: info.size, extents, at: 0, cutter, end: 0, room })
    }
    /// It, and its length in bytes.
    pub fn file(&self) -> (Arc<File>, u64) {
        (self.file.clone(), self.size)
    }
    /// Lists some more. What cannot be read ends the list: it is sent, then.
    fn step(mut self: Box<OldFile>) -> Step {
        let mut cuts = Vec::new();
        let i = self.extents.partition_point(|e| e.end <= self.at);
        let mut left = false;
        if let Some(e) = self.extents.get(i) {
            let start = e.start.max(self.at);
            let mut buffer = vec![0; STEP.min((e.end - start) as usize)];
            if self.file.read_exact_at(&mut buffer, start).is_ok() {
                self.cutter.feed(start, &buffer, &mut cuts);
                self.at = start + buffer.len() as u64;
                left = self.at < self.extents.last().map_or(0, |l| l.end);
            }
        }
        if !left {
            self.cutter.end(&mut cuts);
        }
        cuts.truncate(usize::try_from(self.room).unwrap_or(usize::MAX));
        self.room -= cuts.len() as u64;
        let listed = cuts.iter().map(|c| self.listed(c)).collect();
        let left = left && self.room > 0;
        (listed, left.then_some(self))
    }
    fn listed(&mut self, c: &Cut) -> Listed {
        let gap = c.offset - self.end;
        self.end = c.offset + u64::from(c.len);
        Listed { gap, len: c.len, key: c.key }
    }
}

impl Sink {
    /// The source wants to know what is in the file that has the name of an offered one.
    pub(super) fn asked_for_basis(&mut self, id: u64) -> Result<(), Fatal> {
        let Some(f) = self.file(id)? else { return Ok(()) };
        if f.part.is_some() || f.delta != DeltaStage::None {
            return Err(Fatal::protocol("a list was asked for twice, or too late"));
        }
        f.delta = DeltaStage::DemandReceiver;
        Ok(())
    }
    /// Begins to list the old file of one that was opened just now.
    pub(super) fn list_basis(&mut self, id: u64, link: &mut Link) {
        let tells = self.lists();
        let Some(f) = self.files.get_mut(&id) else { return };
        f.delta = DeltaStage::Listed;
        let old = f.part.as_ref().filter(|_| tells).and_then(|p| p.old_file());
        match old {
            Some(old) => self.to_list.push_back((id, Box::new(old))),
            // Nothing is told of what lies here, or nothing does.
            None => send(link, &[Record::Basis { file: id, pieces: Vec::new(), last: true }]),
        }
    }
    /// Gives workers old files to list, as long as the source takes the lists.
    pub(super) fn list_some(&mut self, link: &Link) {
        while self.listing_jobs < MAX_LISTING
            && link.messages() < MAX_SAID
            && let Some((id, old)) = self.to_list.pop_front()
        {
            if self.files.get(&id).is_none_or(|f| f.failed) {
                continue;
            }
            self.listing_jobs += 1;
            self.jobs.submit(Report::Died, move || Report::Basis { file: id, step: old.step() });
        }
    }
    pub(super) fn listed(&mut self, id: u64, (pieces, left): Step, link: &mut Link) {
        self.listing_jobs -= 1;
        if self.files.get(&id).is_none_or(|f| f.failed) {
            return;
        }
        for part in pieces.chunks(MAX_LISTED) {
            send(link, &[Record::Basis { file: id, pieces: part.to_vec(), last: false }]);
        }
        match left {
            Some(old) => self.to_list.push_back((id, old)),
            None => send(link, &[Record::Basis { file: id, pieces: Vec::new(), last: true }]),
        }
    }
    /// What the source wants to have copied.
    pub(super) fn copies(&mut self, id: u64, copies: Vec<Copied>, last: bool) -> Result<(), Fatal> {
        let Some(f) = self.file(id)? else { return Ok(()) };
        if f.failed {
            return Ok(());
        }
        let (size, log2) = (f.size, f.log2);
        let Some(part) = f.part.clone().filter(|_| f.delta == DeltaStage::Listed) else {
            return Err(Fatal::protocol("copies of a file that was not listed"));
        };
        let bytes = copies.len() as u64 * EACH_COPY;
        f.noted += bytes;
        for c in copies {
            let fits = Plan::may_follow(f.copies.last(), &c, size, part.old_size());
            if !fits || f.copies.len() as u64 >= most_pieces(size) {
                return Err(Fatal::protocol(
                    "copies beyond the ends of a file, over each other, or too many",
                ));
            }
            f.copies.push(c);
        }
        if last {
            f.delta = DeltaStage::None;
            let plan = Plan::new(std::mem::take(&mut f.copies));
            let copied = plan.bytes_without(&f.have, log2, size);
            f.covered = plan.covered(&part.extents, f.data(), log2, size);
            part.set_plan(plan);
            f.begin_copies();
            self.progress.update(|s| s.bytes_matched += copied);
            self.advance(id);
        }
        if !self.limits.note(bytes) {
            return Err(Fatal::Local(
                "there is no memory for lists of copies; send with --whole-file".into(),
            ));
        }
        Ok(())
    }
    /// Has chunks copied and compared with the source's hashes.
    pub(super) fn copy_some(&mut self) {
        while self.copying < MAX_COPYING
            && let Some(id) = self.to_copy.pop_front()
        {
            let Some(f) = self.files.get_mut(&id).filter(|f| !f.failed) else { continue };
            let Some(part) = f.part.clone() else { continue };
            let n = f.to_copy.len().min((COPY_STEP >> f.log2).max(1) as usize);
            let chunks: Vec<(u64, Digest)> = f.to_copy.drain(..n).collect();
            if !f.to_copy.is_empty() {
                self.to_copy.push_back(id);
            }
            if chunks.is_empty() {
                continue;
            }
            self.copying += 1;
            self.jobs.submit_to_last(Report::Died, move || {
                let result = part.assemble(&chunks);
                Report::Assembled { file: id, chunks: chunks.into_iter().map(|c| c.0).collect(), result }
            });
        }
    }
    pub(super) fn assembled(
        &mut self,
        id: u64,
        chunks: &[u64],
        r: Result<Vec<u64>, FileError>,
        link: &mut Link,
    ) {
        self.copying -= 1;
        let bad = match r {
            Ok(b) => b,
            Err(e) => return self.abandon(id, e, link),
        };
        let Some(f) = self.files.get_mut(&id).filter(|f| !f.failed) else { return };
        for &c in chunks {
            if bad.contains(&c) {
                self.progress.update(|s| f.uncopied(c, s));
                f.missing(c); // the first time
            } else {
                f.confirmed(c);
                self.verified += f.chunk_len(c);
                f.unsynced += f.chunk_len(c);
            }
        }
        self.sync(id);
        self.advance(id);
    }
}

impl Incoming {
    /// What is to be copied is known: the chunks that are made of copies need no memory.
    fn begin_copies(&mut self) {
        let ranges: Vec<Range<u64>> = self.covered.iter().collect();
        for r in ranges {
            // An earlier attempt may have left some of them: those are looked at first.
            for c in r.filter(|c| self.have.contains_all(*c..*c + 1)).collect::<Vec<_>>() {
                self.covered.remove(c..c + 1);
            }
        }
        self.need_not(&self.covered.clone());
    }
    /// A chunk comes as a whole all the same.
    pub fn uncopied(&mut self, c: u64, s: &mut crate::progress::Snapshot) {
        let r = self.bytes(&(c..c + 1));
        let copied = self.part.as_ref().and_then(|p| p.plan()).map_or(0, |p| p.bytes(r));
        if self.whole.insert(c..c + 1) > 0 {
            s.bytes_matched = s.bytes_matched.saturating_sub(copied);
        }
    }
}

impl Part {
    /// Copies a range of the new file's data out of the old one, as far as that has it.
    pub(super) fn copy_in(&self, plan: &Plan, r: Range<u64>) -> io::Result<()> {
        let Some(old) = self.old() else { return Ok(()) };
        for e in overlapping(&self.extents, r) {
            for c in plan.copied(e) {
                self.copy_one(old, c)?;
            }
        }
        Ok(())
    }
    fn copy_one(&self, old: &File, c: Copied) -> io::Result<()> {
        use rustix::io::Errno;
        let (mut from, mut at, mut left) = (c.from, c.at, c.len);
        while left > 0 {
            let n = usize::try_from(left.min(COPY)).unwrap_or(usize::MAX);
            let copied = {
                let _turn = self.turn();
                rustix::fs::copy_file_range(old, Some(&mut from), self.file(), Some(&mut at), n)
            };
            match copied {
                // The old file was cut meanwhile: what is missing does not match.
                Ok(0) => return Ok(()),
                Ok(n) => left -= n as u64,
                Err(Errno::INTR) => {}
                // Where it was a read that failed, that is told apart by hand.
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::IO) => {
                    return self.copy_by_hand(old, Copied { at, from, len: left });
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
    /// Where the file system cannot.
    fn copy_by_hand(&self, old: &File, c: Copied) -> io::Result<()> {
        let mut buffer = vec![0; c.len.min(COPY) as usize];
        let mut done = 0;
        while done < c.len {
            let n = buffer.len().min((c.len - done) as usize);
            match old.read_at(&mut buffer[..n], c.from + done) {
                // What cannot be read is missing: it does not match, and is sent.
                Ok(0) | Err(_) => return Ok(()),
                Ok(n) => {
                    let _turn = self.turn();
                    self.file().write_all_at(&buffer[..n], c.at + done)?;
                    done += n as u64;
                }
            }
        }
        Ok(())
    }
    /// Copies chunks out of the old file and compares them with the source's hashes; returns those that differ.
    pub(super) fn assemble(&self, chunks: &[(u64, Digest)]) -> Result<Vec<u64>, FileError> {
        let Some(plan) = self.plan() else { return Ok(chunks.iter().map(|c| c.0).collect()) };
        for (c, _) in chunks {
            self.copy_in(plan, self.span(*c)).map_err(|e| self.fail("write", &e))?;
        }
        let bad = self.compare(chunks.iter().copied())?;
        let good: Vec<_> = chunks.iter().filter(|c| !bad.contains(&c.0)).copied().collect();
        self.note(&good)?;
        Ok(bad)
    }
}
