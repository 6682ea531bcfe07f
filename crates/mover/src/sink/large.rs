//! Jobs of the receiving side for one large file: opening with what is there, memory for Writes, verification, and
//! putting it in place.

use super::created_dirs::CreatedDirs;
use super::delta::OldFile;
use super::packed::Data;
use super::watch::{Watch, Watched};
use super::write_only::WriteOnly;
use crate::attributes::PreservedAttributes;
use crate::delta::Plan;
use crate::error::{Cause, FileError};
use crate::hash::{ChunkHasher, Digest};
use crate::hashes::Hashes;
use crate::journal::{Identity, Journal};
use crate::lock::LockedFile;
use crate::path::{RelPath, journal_name, part_name};
use crate::placement::PartialDir;
use crate::proto::{Extra, Flags, Kind, Meta};
use crate::source::overlapping;
use crate::tree::{DISTURBED, Dir, Info, SPECIAL_IN_THE_WAY, set_meta};
use base::RangeSet;
use lhio::staging::Staging;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt as _};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Files below this keep no journal: sending them again costs less.
pub(super) const JOURNAL_FROM: u64 = 1 << 20;
/// Bytes tried of what was written but not noted before an interruption: what may have been granted.
const MAX_GUESS: u64 = 256 << 20;
/// File systems that store bytes as they are (`statfs(2)`: ext4, XFS, tmpfs), so that a file takes its size; others compress.
const AS_THEY_ARE: [u64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];
/// Mode of files that have no name yet.
const PART_MODE: u32 = 0o600;
/// Bytes hashed at a time.
const READ: usize = 1 << 18;
/// How often a file is read again that others open or change all the time.
const MAX_LOOKS: usize = 4;

/// A file that is being received.
pub(super) struct Part {
    dir: Dir,
    name: Vec<u8>,
    /// Where it is until it is complete, if that is another folder, and what its name is made of there.
    holder: Option<Dir>,
    held_name: Vec<u8>,
    path: RelPath,
    file: LockedFile,
    /// Tells whether others open it.
    watched: Watched,
    /// Held while the file is written to: the kernel lets one in at a time too, but has the others spin meanwhile,
    /// which takes the processor from the network's loops.
    turn: Mutex<()>,
    journal: Option<Mutex<Journal>>,
    pub size: u64,
    pub log2: u8,
    pub extents: Vec<Range<u64>>,
    /// Bytes of them in all.
    data: u64,
    meta: Meta,
    /// The file that has its name now, and how long it was, where the source wants to send what is not in it.
    old: OnceLock<(Arc<File>, u64)>,
    /// What is copied out of it.
    plan: OnceLock<Plan>,
    extra: Option<Box<Extra>>,
    extras: Arc<PreservedAttributes>,
    /// Keeps what it replaces.
    made: CreatedDirs,
}

/// An opened file with what an earlier attempt left.
pub(super) struct Opened {
    pub part: Part,
    /// Chunks that may be there: they count once they were compared with the source's hashes ([`Part::compare`]).
    pub have: RangeSet,
    /// An earlier attempt was of another state of the source.
    pub restarted: bool,
}

/// A chunk whose bytes are all there.
pub(super) struct Arrived {
    pub chunk: u64,
    pub want: Digest,
    /// Where it is.
    pub memory: Staging,
    pub offset: usize,
    /// Length of the frame that came instead of its data.
    pub packed: Option<u64>,
    /// Nothing of it is copied.
    pub whole: bool,
}

/// What is to be opened.
pub(super) struct Wanted {
    pub path: RelPath,
    pub size: u64,
    pub log2: u8,
    pub extents: Vec<Range<u64>>,
    pub meta: Meta,
    pub extra: Option<Box<Extra>>,
    pub flags: Flags,
    /// Only what this one sent counts of an earlier attempt.
    pub from: Option<WriteOnly>,
}

pub(super) fn open(made: &CreatedDirs, w: Wanted, watch: &Arc<Watch>) -> Result<Opened, FileError> {
    let fail = |e: io::Error| FileError::io(w.path.as_bytes(), "create", &e);
    let Some((dir, name)) = w.path.split() else {
        return Err(FileError::new(b".", Cause::IsFolder, "cannot be replaced by a file"));
    };
    let name = name.to_vec();
    let dir = made.dir(&dir).map_err(fail)?;
    match dir.info(&name).map(|i| i.kind) {
        Ok(Kind::Dir) => return Err(FileError::new(w.path.as_bytes(), Cause::IsFolder, "is a folder")),
        Ok(Kind::Other) => {
            return Err(FileError::new(w.path.as_bytes(), Cause::Special, SPECIAL_IN_THE_WAY));
        }
        Ok(_) if !w.flags.overwrite => {
            return Err(FileError::new(w.path.as_bytes(), Cause::Exists, "exists"));
        }
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fail(e)),
        _ => {}
    }
    let (holder, held_name, file) = open_part(made, &dir, &w.path, &name).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => {
            FileError::new(w.path.as_bytes(), Cause::Busy, "is being written by another transfer")
        }
        io::ErrorKind::CrossesDevices => FileError::new(w.path.as_bytes(), Cause::Other, OTHER_FILE_SYSTEM),
        _ => fail(e),
    })?;
    let mut part = Part {
        dir,
        holder,
        held_name,
        path: w.path.clone(),
        watched: watch.file(&file),
        file,
        turn: Mutex::default(),
        journal: None,
        size: w.size,
        log2: w.log2,
        data: w.extents.iter().map(|e| e.end.saturating_sub(e.start)).fold(0, u64::saturating_add),
        extents: w.extents,
        meta: w.meta,
        old: OnceLock::new(),
        plan: OnceLock::new(),
        extra: w.extra,
        extras: made.extras.clone(),
        name,
        made: made.clone(),
    };
    let (have, restarted) = part.resume(w.flags.fresh, w.from).map_err(fail)?;
    Ok(Opened { part, have, restarted })
}

/// How often a folder for unfinished files is made that others remove when it is empty.
const MAX_TRIES: usize = 64;
/// Said of a folder for unfinished files that nothing can be renamed from.
const OTHER_FILE_SYSTEM: &str = "cannot be received: the folder for unfinished files is on another file system; name one on the same as the destination";

/// Opens the unfinished file of a file, and the folder that it is in where that is another one.
fn open_part(
    made: &CreatedDirs,
    dir: &Dir,
    path: &RelPath,
    name: &[u8],
) -> io::Result<(Option<Dir>, Vec<u8>, LockedFile)> {
    let Some(partial) = &made.folders().partial else {
        return Ok((None, name.to_vec(), dir.open_own_alone(&part_name(name))?));
    };
    let above = path.split().map(|s| s.0).unwrap_or_default();
    let held_name = match partial {
        PartialDir::Beside(_) => name.to_vec(),
        // Files of one name in several folders.
        PartialDir::Fixed(..) => {
            [name, b"-", &blake3::hash(path.as_bytes()).to_hex().as_bytes()[..16]].concat()
        }
    };
    for _ in 0..MAX_TRIES {
        let holder = match partial {
            PartialDir::Beside(p) => made.tree().make_dir(&above.append(p).map_err(io::Error::other)?)?,
            PartialDir::Fixed(tree, at) => tree.dir(at)?,
        };
        if holder.device()? != dir.device()? {
            return Err(io::ErrorKind::CrossesDevices.into());
        }
        match holder.open_own_alone(&part_name(&held_name)) {
            // Removed by a worker whose file was the last one in it.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            r => return Ok((Some(holder), held_name, r?)),
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Removes the journal of a file that is too small to have one now.
pub(super) fn drop_journal(dir: &Dir, name: &[u8]) -> io::Result<()> {
    match dir.remove(&journal_name(name)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// A worker that panicked while it held one leaves nothing half done that the next cannot see.
fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Part {
    /// Reads the journal and makes the file ready; returns chunks that may be there. When `fresh`, none is.
    fn resume(&mut self, fresh: bool, from: Option<WriteOnly>) -> io::Result<(RangeSet, bool)> {
        // Where nobody knows who sent it, nobody is told that it is there.
        let fresh = fresh || from.is_some_and(|f| f.owner.is_none());
        if fresh {
            self.file.set_len(0)?;
        }
        let there = self.file.metadata()?.len().min(self.size);
        if self.size < JOURNAL_FROM {
            if fresh {
                drop_journal(self.holder(), &self.held_name)?;
            }
            self.file.set_len(0)?;
            self.file.set_len(self.size)?;
            return Ok((RangeSet::new(), false));
        }
        rustix::fs::fchmod(&self.file, rustix::fs::Mode::from_raw_mode(PART_MODE))?;
        let mut id = Identity::new(self.size, &self.meta, self.log2, &self.extents);
        if let Some(owner) = from.and_then(|f| f.owner) {
            id = id.of(&owner);
        }
        let jf = self.holder().open_own(&journal_name(&self.held_name), there > 0)?;
        let (journal, found) = Journal::open(jf, &id)?;
        self.journal = Some(Mutex::new(journal));
        if !found.same_source {
            self.file.set_len(0)?;
        }
        // It may have been cut or made longer meanwhile: what is missing then does not match.
        self.file.set_len(self.size)?;
        let mut have = RangeSet::new();
        if found.same_source && there > 0 {
            self.clear_holes()?;
            for c in found.chunks.into_keys().filter(|c| self.span(*c).end <= there) {
                have.insert(c..c + 1);
            }
            self.guess(&mut have, there)?;
        }
        Ok((have, found.other_source))
    }
    /// Adds what was written when the last attempt ended, but not noted. A chunk whose ends are zero was hardly
    /// written to its end.
    fn guess(&self, have: &mut RangeSet, there: u64) -> io::Result<()> {
        let mut left = MAX_GUESS;
        let data = crate::source::data_chunks(&self.extents, self.log2);
        for c in data.iter().flatten() {
            let r = self.span(c);
            if have.contains_all(c..c + 1) {
                continue;
            }
            if left == 0 || r.end > there {
                break;
            }
            let mut ends = [[0u8; 64]; 2];
            let n = ends[0].len().min((r.end - r.start) as usize);
            self.file.read_exact_at(&mut ends[0][..n], r.start)?;
            self.file.read_exact_at(&mut ends[1][..n], r.end - n as u64)?;
            if ends.iter().any(|e| e.iter().all(|b| *b == 0)) {
                continue;
            }
            have.insert(c..c + 1);
            left = left.saturating_sub(r.end - r.start);
        }
        Ok(())
    }
    /// Takes away what lies in the source's holes: nothing arrives for them, so nothing else would.
    fn clear_holes(&self) -> io::Result<()> {
        let mut at = 0;
        let after = Range { start: self.size, end: self.size };
        for e in self.extents.iter().chain([&after]) {
            if at < e.start {
                self.clear(at..e.start)?;
            }
            at = e.end;
        }
        Ok(())
    }
    fn clear(&self, r: Range<u64>) -> io::Result<()> {
        use rustix::fs::FallocateFlags as F;
        use rustix::io::Errno;
        match rustix::fs::fallocate(&self.file, F::PUNCH_HOLE | F::KEEP_SIZE, r.start, r.end - r.start) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            x => return Ok(x?),
        }
        // A file system without holes.
        let (mut buf, zero) = (vec![0; READ], vec![0; READ]);
        for start in r.clone().step_by(READ) {
            let n = READ.min((r.end - start) as usize);
            self.file.read_exact_at(&mut buf[..n], start)?;
            if buf[..n] != zero[..n] {
                self.file.write_all_at(&zero[..n], start)?;
            }
        }
        Ok(())
    }
    /// The file that has its name now, to be listed; `None` when there is none to be read.
    pub fn old_file(&self) -> Option<OldFile> {
        let old = OldFile::open(self.dir.read_file(&self.name).ok()?, self.size).ok()?;
        let _ = self.old.set(old.file()); // it is asked for once
        Some(old)
    }
    pub fn old(&self) -> Option<&File> {
        self.old.get().map(|o| &*o.0)
    }
    /// Length of the old file in bytes.
    pub fn old_size(&self) -> u64 {
        self.old.get().map_or(0, |o| o.1)
    }
    pub fn set_plan(&self, plan: Plan) {
        let _ = self.plan.set(plan); // the source has said it once
    }
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.get()
    }
    /// Bytes of a chunk's data that are not copied.
    pub fn arrives(&self, chunk: u64) -> u64 {
        let r = self.span(chunk);
        let parts = match self.plan() {
            Some(p) => p.literals(&self.extents, r),
            None => overlapping(&self.extents, r).collect(),
        };
        parts.iter().map(|r| r.end - r.start).sum()
    }
    pub fn file(&self) -> &File {
        &self.file
    }
    /// Held by who writes to the file.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        locked(&self.turn)
    }
    pub fn span(&self, chunk: u64) -> Range<u64> {
        chunk << self.log2..((chunk + 1) << self.log2).min(self.size)
    }
    /// Hash of a chunk as it is in the file.
    fn hash(&self, chunk: u64) -> io::Result<Digest> {
        let r = self.span(chunk);
        let mut h = ChunkHasher::new(r.start, self.size <= 1 << self.log2);
        let mut buf = vec![0; READ.min((r.end - r.start) as usize)];
        let mut at = r.start;
        while at < r.end {
            let n = buf.len().min((r.end - at) as usize);
            self.file.read_exact_at(&mut buf[..n], at)?;
            h.update(&buf[..n]);
            at += n as u64;
        }
        Ok(h.finish())
    }
    /// Reads chunks and compares them with the source's hashes; returns those that differ or are not there.
    pub fn compare(&self, chunks: impl Iterator<Item = (u64, Digest)>) -> Result<Vec<u64>, FileError> {
        let mut bad = Vec::new();
        for (c, want) in chunks {
            match self.hash(c) {
                Ok(h) if h == want => {}
                Ok(_) => bad.push(c),
                // Somebody has cut it.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => bad.push(c),
                Err(e) => return Err(self.fail("read back", &e)),
            }
        }
        Ok(bad)
    }
    /// Reserves disk for the data of a range, and makes memory for what arrives of it unless there is some.
    pub fn window(&self, r: Range<u64>, memory: Option<Staging>, len: u64) -> Result<Staging, FileError> {
        for e in overlapping(&self.extents, r) {
            self.reserve(e).map_err(|e| self.fail("reserve room for", &e))?;
        }
        let make = || Staging::new(usize::try_from(len).unwrap_or(usize::MAX));
        memory.map_or_else(make, Ok).map_err(|e| self.fail("get memory to receive it", &e))
    }
    /// After this, writing cannot run out of disk; where that is to happen, it happens before anything was sent. It is
    /// also the cheapest way: blocks and pages that come many at a time cost less than those of single writes.
    fn reserve(&self, r: Range<u64>) -> io::Result<()> {
        use rustix::io::Errno;
        let _turn = locked(&self.turn);
        // A file system that cannot hold all of it would take what there is before it says so, and until the file is given up
        // those beside it would find the disk full. Where bytes are stored as they are, this is known before the first.
        let disk = rustix::fs::fstatfs(&self.file)?;
        let wanted = match AS_THEY_ARE.contains(&(disk.f_type as u64)) {
            true => self.data,
            false => r.end - r.start,
        };
        let missing = wanted.saturating_sub(self.file.metadata()?.blocks().saturating_mul(512));
        if disk.f_blocks > 0 && disk.f_bfree.saturating_mul(disk.f_frsize as u64) < missing {
            return Err(Errno::NOSPC.into());
        }
        loop {
            let flags = rustix::fs::FallocateFlags::KEEP_SIZE;
            match rustix::fs::fallocate(&self.file, flags, r.start, r.end - r.start) {
                Err(Errno::INTR) => {}
                // Then writing tells when the disk is full.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(()),
                x => return Ok(x?),
            }
        }
    }
    pub fn fail(&self, what: &str, e: &io::Error) -> FileError {
        FileError::io(self.path.as_bytes(), what, e)
    }
    /// Writes chunks that arrived to the file, compares them with their hashes, and notes those that match; returns
    /// those that do not.
    pub fn place(&self, chunks: &[Arrived]) -> Result<Vec<u64>, FileError> {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        let mut copy = vec![0; READ];
        for c in chunks {
            match self.bring_in(c, &mut copy).map_err(|e| self.fail("write", &e))? == Some(c.want) {
                true => good.push((c.chunk, c.want)),
                false => bad.push(c.chunk),
            }
        }
        self.note(&good)?;
        Ok(bad)
    }
    /// Notes chunks that are in the file and verified.
    pub fn note(&self, good: &[(u64, Digest)]) -> Result<(), FileError> {
        let Some(j) = &self.journal else { return Ok(()) };
        locked(j).append(good).map_err(|e| self.fail("keep the journal of", &e))
    }
    /// Writes a chunk to the file and hashes it. Both use one copy, so that the hash is that of the bytes written,
    /// whatever arrives meanwhile; it is short, so that it stays in the cache.
    /// `None`: what arrived is no frame of as many bytes as it should be.
    fn bring_in(&self, c: &Arrived, copy: &mut [u8]) -> io::Result<Option<Digest>> {
        let r = self.span(c.chunk);
        let plan = self.plan.get().filter(|_| !c.whole);
        if let Some(p) = plan {
            self.copy_in(p, r.clone())?;
        }
        let mut data = Data::new(c)?;
        let mut h = ChunkHasher::new(r.start, self.size <= 1 << self.log2);
        for start in r.clone().step_by(copy.len()) {
            let piece = start..(start + copy.len() as u64).min(r.end);
            let part = &mut copy[..(piece.end - start) as usize];
            let inside = |e: &Range<u64>| (e.start - start) as usize..(e.end - start) as usize;
            // Nothing arrives for holes, and the memory was used before.
            part.fill(0);
            let arrived = match plan {
                Some(p) => p.literals(&self.extents, piece.clone()),
                None => overlapping(&self.extents, piece.clone()).collect(),
            };
            for e in &arrived {
                if !data.read((e.start - r.start) as usize, &mut part[inside(e)])? {
                    return Ok(None);
                }
            }
            for x in
                plan.iter().flat_map(|p| overlapping(&self.extents, piece.clone()).flat_map(|e| p.copied(e)))
            {
                self.file.read_exact_at(&mut part[inside(&(x.at..x.end()))], x.at)?;
            }
            h.update(part);
            let _turn = locked(&self.turn);
            for e in arrived {
                self.file.write_all_at(&part[inside(&e)], e.start)?;
            }
        }
        Ok(data.is_over().then(|| h.finish()))
    }
    /// Brings data and then the journal to the disk.
    pub fn sync(&self) -> Result<(), FileError> {
        self.file.sync_data().map_err(|e| self.fail("write to the disk", &e))?;
        if let Some(j) = &self.journal {
            let j = locked(j);
            j.sync().map_err(|e| self.fail("write the journal of", &e))?;
        }
        Ok(())
    }
    /// Checks the whole and gives it its name. Where somebody else has opened it meanwhile, all of it is read once more
    /// before; the chunks that are not right then are returned, and it has no name yet.
    pub fn finish(
        &self,
        chunks: &Hashes,
        want: &Digest,
        durable: bool,
        overwrite: bool,
    ) -> Result<Vec<u64>, FileError> {
        if chunks.root().as_ref() != Some(want) {
            let text = "the whole does not match its checksum";
            return Err(FileError::new(self.path.as_bytes(), Cause::Corrupt, text));
        }
        let mut doubt = self.watched.opened();
        for _ in 0..MAX_LOOKS {
            if doubt {
                self.restore().map_err(|e| self.fail("restore the length of", &e))?;
            }
            let stamped = self.stamp().map_err(|e| self.fail("set mode and time of", &e))?;
            if doubt {
                let data = crate::source::data_chunks(&self.extents, self.log2);
                let bad = self.compare(data.iter().flatten().map(|c| (c, chunks.get(c))))?;
                if !bad.is_empty() {
                    return Ok(bad);
                }
            }
            if durable {
                self.file.sync_all().map_err(|e| self.fail("write to the disk", &e))?;
            }
            let now = Info::of_file(&self.file).map_err(|e| self.fail("look at", &e))?;
            if !self.holder().is(&part_name(&self.held_name), &now) {
                return Err(FileError::new(self.path.as_bytes(), Cause::Changed, DISTURBED));
            }
            // Whoever has changed it since then has changed its time. So somebody who only reads it, again and again,
            // has it read once.
            let changed = now.size != self.size || now.meta != stamped.meta;
            doubt = changed || !doubt && self.watched.opened();
            if !doubt {
                return self.put_in_place(durable, overwrite).map(|()| Vec::new());
            }
        }
        let text = "another program keeps changing its unfinished file";
        Err(FileError::new(self.path.as_bytes(), Cause::Changed, text))
    }
    /// Gives the file its length and its holes back.
    fn restore(&self) -> io::Result<()> {
        self.file.set_len(self.size)?;
        self.clear_holes()
    }
    /// Gives the file its time, and says what the file system made of it.
    fn stamp(&self) -> io::Result<Info> {
        // Its mode comes with its name: without a name it is nobody else's, and it may have to be opened again.
        set_meta(&self.file, &Meta { mode: PART_MODE, ..self.meta })?;
        Info::of_file(&self.file)
    }
    fn put_in_place(&self, durable: bool, overwrite: bool) -> Result<(), FileError> {
        if let Some(x) = &self.extra {
            self.extras.apply(&self.file, x);
        }
        let mode = rustix::fs::Mode::from_raw_mode(self.extras.meta(&self.meta).mode);
        rustix::fs::fchmod(&self.file, mode).map_err(|e| self.fail("set the mode of", &e.into()))?;
        let part = part_name(&self.held_name);
        if let Some(b) = self.made.backups().filter(|_| overwrite) {
            b.keep(&self.dir, &self.name, &self.path)
                .map_err(|e| self.fail("keep the old version of", &e))?;
        }
        let renamed = match &self.holder {
            Some(h) => h.rename_to(&part, &self.dir, &self.name, overwrite),
            None => self.dir.rename(&part, &self.name, overwrite),
        };
        renamed.map_err(|e| self.fail("put in place", &e))?;
        if self.journal.is_some() {
            let _ = self.holder().remove(&journal_name(&self.held_name)); // left over, it would only be overwritten
        }
        self.remove_empty_holder();
        if durable { self.dir.sync().map_err(|e| self.fail("write the folder of", &e)) } else { Ok(()) }
    }
    /// Removes what was received.
    pub fn discard(&self) {
        let _ = self.holder().remove(&part_name(&self.held_name));
        let _ = self.holder().remove(&journal_name(&self.held_name));
        self.remove_empty_holder();
    }
    /// The folder that it is in until it is complete.
    fn holder(&self) -> &Dir {
        self.holder.as_ref().unwrap_or(&self.dir)
    }
    /// A folder for unfinished files that is in that of the file goes when it is empty, and so do those above it up to that.
    fn remove_empty_holder(&self) {
        let Some(PartialDir::Beside(p)) = &self.made.folders().partial else { return };
        let above = self.path.split().map(|s| s.0).unwrap_or_default();
        let mut at = p.clone();
        while let Some((folder, name)) = at.split() {
            let gone = above.append(&folder).map_err(io::Error::other).and_then(|f| self.made.tree().dir(&f));
            if gone.and_then(|d| d.remove_dir(name)).is_err() {
                return; // there is something in it
            }
            at = folder;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use verbs::{Access, Adapter, Limits, Memory};

    const LOG2: u8 = 18;
    const CHUNK: usize = 1 << LOG2;
    /// The last chunk is short, and so is the last window.
    const SIZE: usize = 21 * CHUNK + 12_345;
    /// Chunks of one window.
    const WINDOW: usize = 4;

    fn noise() -> Vec<u8> {
        let mut out = vec![0; SIZE];
        base::Rng::from_u64(5).fill(&mut out);
        out
    }
    fn begin(at: &Path, extents: &[Range<u64>]) -> (Part, RangeSet) {
        let w = Wanted {
            path: RelPath::parse(b"f").unwrap(),
            size: SIZE as u64,
            log2: LOG2,
            extents: extents.to_vec(),
            meta: Meta { mode: 0o644, secs: 1, nanos: 2 },
            extra: None,
            flags: crate::tests::FLAGS,
            from: None,
        };
        let made = CreatedDirs::new(Arc::new(crate::tree::Tree::open(at).unwrap()), true);
        let o = open(&made, w, &Watch::shared()).unwrap();
        (o.part, o.have)
    }
    /// Memory with `data` in it, as if it had arrived.
    fn arrived(data: &[u8]) -> Staging {
        let mut a = Adapter::new(Limits::default(), base::Rng::from_u64(1));
        let pd = a.alloc_pd().unwrap();
        let s = Staging::new(WINDOW * CHUNK).unwrap();
        let m = Memory::from_backing(Box::new(s.clone()));
        let mr = a.reg_mr(pd, m, Access::LOCAL_WRITE).map_err(|(e, _)| e).unwrap();
        a.write_mr(mr.id, 0, data).unwrap();
        s
    }
    /// Jobs of two chunks each with all of `data`; chunks in `spoilt` come with another hash.
    fn jobs(data: &[u8], spoilt: &[u64]) -> Vec<Vec<Arrived>> {
        let mut out = Vec::new();
        for (w, window) in data.chunks(WINDOW * CHUNK).enumerate() {
            let memory = arrived(window);
            let all: Vec<Arrived> = (window.chunks(CHUNK).enumerate())
                .map(|(i, c)| {
                    let chunk = (w * WINDOW + i) as u64;
                    let mut h = ChunkHasher::new(chunk << LOG2, false);
                    h.update(c);
                    let want = if spoilt.contains(&chunk) { [9; 32] } else { h.finish() };
                    Arrived {
                        chunk,
                        want,
                        memory: memory.clone(),
                        offset: i * CHUNK,
                        packed: None,
                        whole: false,
                    }
                })
                .collect();
            let mut rest = all.into_iter().peekable();
            while rest.peek().is_some() {
                out.push(rest.by_ref().take(2).collect());
            }
        }
        out
    }
    /// What `threads` workers say that take these jobs in turn, the last ones first.
    fn work(part: &Part, jobs: &[Vec<Arrived>], threads: usize) -> Vec<Result<Vec<u64>, FileError>> {
        std::thread::scope(|s| {
            let each = |t: usize| {
                let mine = jobs.iter().rev().skip(t).step_by(threads);
                s.spawn(move || mine.map(|j| part.place(j)).collect::<Vec<_>>())
            };
            let handles: Vec<_> = (0..threads).map(each).collect();
            handles.into_iter().flat_map(|h| h.join().unwrap()).collect()
        })
    }
    /// Chunks that the journal has. Those that are in the file only are guessed at unless they are zero.
    fn noted(part: Part, at: &Path, extents: &[Range<u64>]) -> RangeSet {
        part.file.set_len(0).unwrap();
        part.file.set_len(SIZE as u64).unwrap();
        drop(part);
        begin(at, extents).1
    }
    fn matching(jobs: &[Vec<Arrived>], but: &[u64]) -> RangeSet {
        let mut set = RangeSet::new();
        let good = jobs.iter().flatten().map(|a| a.chunk).filter(|c| !but.contains(c));
        good.for_each(|c| {
            set.insert(c..c + 1);
        });
        set
    }

    #[test]
    fn workers_that_write_one_file_at_the_same_time_spoil_nothing() {
        let d = tempfile::tempdir().unwrap();
        // Two holes, one of them over the border of two chunks.
        let holes = [3 * CHUNK + 100..4 * CHUNK + 7, 9 * CHUNK..10 * CHUNK - 1];
        let (before, mut data) = (noise(), noise());
        holes.iter().for_each(|h| data[h.clone()].fill(0));
        let [a, b] = holes.map(|h| h.start as u64..h.end as u64);
        let extents = [0..a.start, a.end..b.start, b.end..SIZE as u64];
        let (part, have) = begin(d.path(), &extents);
        assert!(have.is_empty());
        let mut all = jobs(&data, &[6, 20]);
        for a in all.iter_mut().flatten() {
            // Nothing arrives for holes: there is what was in the memory before.
            let at = a.chunk as usize / WINDOW * WINDOW * CHUNK;
            a.memory = arrived(&before[at..(at + WINDOW * CHUNK).min(SIZE)]);
        }
        let mut bad: Vec<u64> = std::thread::scope(|s| {
            // Room is made for more meanwhile.
            let room = s.spawn(|| part.window(0..SIZE as u64, None, CHUNK as u64).map(drop));
            let bad = work(&part, &all, 4).into_iter().flat_map(Result::unwrap).collect();
            room.join().unwrap().unwrap();
            bad
        });
        bad.sort_unstable();
        assert_eq!(bad, [6, 20]);
        let name = String::from_utf8(part_name(b"f")).unwrap();
        assert!(std::fs::read(d.path().join(name)).unwrap() == data);
        assert_eq!(noted(part, d.path(), &extents), matching(&all, &[6, 20]));
    }

    #[test]
    fn a_worker_that_fails_leaves_the_file_to_the_others() {
        let d = tempfile::tempdir().unwrap();
        let extents = [Range { start: 0, end: SIZE as u64 }];
        let (part, _) = begin(d.path(), &extents);
        let mut all = jobs(&noise(), &[]);
        // The second chunk of a job cannot be had; so the first, which was written, is not noted either.
        all[3][1].offset = WINDOW * CHUNK;
        let panicked = std::thread::scope(|s| {
            let t = s.spawn(|| {
                let _turn = locked(&part.turn);
                std::panic::resume_unwind(Box::new("with the turn taken"));
            });
            t.join().is_err()
        });
        assert!(panicked);
        let said = work(&part, &all, 3);
        assert_eq!(said.iter().filter(|r| r.is_err()).count(), 1);
        assert!(said.iter().flatten().all(Vec::is_empty));
        assert_eq!(noted(part, d.path(), &extents), matching(&all, &[6, 7]));
    }
}
