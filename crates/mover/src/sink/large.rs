//! Jobs of the receiving side for one large file: opening with what is there, memory for Writes, verification, and
//! putting it in place.

use crate::error::{Cause, FileError};
use crate::hash::{ChunkHasher, Digest, root};
use crate::journal::{BootId, Identity, Journal};
use crate::path::{RelPath, journal_name, part_name};
use crate::proto::{Flags, Kind, Meta};
use crate::source::overlapping;
use crate::tree::{Dir, Tree, set_meta};
use lhio::staging::Staging;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

/// Files below this keep no journal: sending them again costs less.
pub(super) const JOURNAL_FROM: u64 = 1 << 20;
/// Bytes hashed of what was written but not verified before an interruption: what may have been granted.
const MAX_GUESS: u64 = 256 << 20;
/// Bytes hashed at a time.
const READ: usize = 1 << 18;

/// A file that is being received.
pub(super) struct Part {
    dir: Dir,
    name: Vec<u8>,
    path: RelPath,
    file: File,
    journal: Option<Mutex<Journal>>,
    pub size: u64,
    pub log2: u8,
    pub extents: Vec<Range<u64>>,
    meta: Meta,
}

/// An opened file with what an earlier attempt left.
pub(super) struct Opened {
    pub part: Part,
    pub have: BTreeMap<u64, Digest>,
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
}

/// What is to be opened.
pub(super) struct Wanted {
    pub path: RelPath,
    pub size: u64,
    pub log2: u8,
    pub extents: Vec<Range<u64>>,
    pub meta: Meta,
    pub flags: Flags,
}

pub(super) fn open(tree: &Tree, w: Wanted, boot: &BootId) -> Result<Opened, FileError> {
    let fail = |e: io::Error| FileError::io(w.path.as_bytes(), "create", &e);
    let Some((dir, name)) = w.path.split() else {
        return Err(FileError::new(b".", Cause::IsFolder, "cannot be replaced by a file"));
    };
    let name = name.to_vec();
    let dir = tree.make_dir(&dir).map_err(fail)?;
    match dir.info(&name).map(|i| i.kind) {
        Ok(Kind::Dir) => return Err(FileError::new(w.path.as_bytes(), Cause::IsFolder, "is a folder")),
        Ok(_) if !w.flags.overwrite => {
            return Err(FileError::new(w.path.as_bytes(), Cause::Exists, "exists"));
        }
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(fail(e)),
        _ => {}
    }
    let file = dir.open_rw(&part_name(&name), false).map_err(fail)?;
    // Two transfers into one file would spoil each other's data.
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
        Err(_) => {
            return Err(FileError::new(
                w.path.as_bytes(),
                Cause::Busy,
                "is being written by another transfer",
            ));
        }
    }
    let mut part = Part {
        dir,
        path: w.path.clone(),
        file,
        journal: None,
        size: w.size,
        log2: w.log2,
        extents: w.extents,
        meta: w.meta,
        name,
    };
    let (have, restarted) = part.resume(boot, w.flags.fresh).map_err(fail)?;
    Ok(Opened { part, have, restarted })
}

/// Removes the journal of a file that is too small to have one now.
pub(super) fn drop_journal(dir: &Dir, name: &[u8]) -> io::Result<()> {
    match dir.remove(&journal_name(name)) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

impl Part {
    /// Reads the journal and makes the file ready; returns chunks that count. When `fresh`, none does.
    fn resume(&mut self, boot: &BootId, fresh: bool) -> io::Result<(BTreeMap<u64, Digest>, bool)> {
        let whole = !fresh && self.file.metadata()?.len() == self.size;
        if self.size < JOURNAL_FROM {
            if fresh {
                drop_journal(&self.dir, &self.name)?;
            }
            self.file.set_len(0)?;
            self.file.set_len(self.size)?;
            return Ok((BTreeMap::new(), false));
        }
        let id = Identity::new(self.size, &self.meta, self.log2, &self.extents);
        let jf = self.dir.open_rw(&journal_name(&self.name), !whole)?;
        let (mut journal, mut found) = Journal::open(jf, &id, boot)?;
        if !found.same_source || !whole {
            self.file.set_len(0)?;
            self.file.set_len(self.size)?;
            found.chunks.clear();
        } else if found.doubtful {
            let mut good = BTreeMap::new();
            for (i, want) in found.chunks {
                if self.hash(i)? == want {
                    good.insert(i, want);
                }
            }
            journal.append(&good.iter().map(|(i, d)| (*i, *d)).collect::<Vec<_>>())?;
            found.chunks = good;
        }
        self.journal = Some(Mutex::new(journal));
        if found.same_source && whole {
            self.guess(&mut found.chunks)?;
        }
        Ok((found.chunks, found.other_source))
    }
    /// What was written when the last attempt ended, but not verified, is hashed now: the source's hashes tell whether
    /// it is right. A chunk whose ends are zero was hardly written to its end.
    fn guess(&self, have: &mut BTreeMap<u64, Digest>) -> io::Result<()> {
        let mut left = MAX_GUESS;
        let data = crate::source::data_chunks(&self.extents, self.log2);
        for c in data.iter().flatten() {
            let r = self.span(c);
            if have.contains_key(&c) {
                continue;
            }
            let mut ends = [[0u8; 64]; 2];
            let n = ends[0].len().min((r.end - r.start) as usize);
            self.file.read_exact_at(&mut ends[0][..n], r.start)?;
            self.file.read_exact_at(&mut ends[1][..n], r.end - n as u64)?;
            if ends.iter().any(|e| e.iter().all(|b| *b == 0)) {
                continue;
            }
            have.insert(c, self.hash(c)?);
            left = left.saturating_sub(r.end - r.start);
            if left == 0 {
                break;
            }
        }
        Ok(())
    }
    fn span(&self, chunk: u64) -> Range<u64> {
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
    /// Reserves disk for the data of a range, and makes memory for what arrives of it unless there is some.
    pub fn window(&self, r: Range<u64>, memory: Option<Staging>, len: u64) -> Result<Staging, FileError> {
        for e in overlapping(&self.extents, r) {
            self.reserve(e).map_err(|e| self.fail("reserve room for", &e))?;
        }
        let make = || Staging::new(usize::try_from(len).unwrap_or(usize::MAX));
        memory.map_or_else(make, Ok).map_err(|e| self.fail("get memory for", &e))
    }
    /// After this, writing cannot run out of disk; where that is to happen, it happens before anything was sent. It is
    /// also the cheapest way: blocks and pages that come many at a time cost less than those of single writes.
    fn reserve(&self, r: Range<u64>) -> io::Result<()> {
        use rustix::io::Errno;
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
    fn fail(&self, what: &str, e: &io::Error) -> FileError {
        FileError::io(self.path.as_bytes(), what, e)
    }
    /// Writes chunks that arrived to the file, compares them with their hashes, and notes those that match; returns
    /// those that do not.
    pub fn place(&self, chunks: &[Arrived]) -> Result<Vec<u64>, FileError> {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        let mut copy = vec![0; READ];
        for c in chunks {
            match self.bring_in(c, &mut copy).map_err(|e| self.fail("write", &e))? == c.want {
                true => good.push((c.chunk, c.want)),
                false => bad.push(c.chunk),
            }
        }
        if let Some(j) = &self.journal {
            let mut j = j.lock().unwrap_or_else(PoisonError::into_inner);
            j.append(&good).map_err(|e| self.fail("keep the journal of", &e))?;
        }
        Ok(bad)
    }
    /// Writes a chunk to the file and hashes it. Both use one copy, so that the hash is that of the bytes written,
    /// whatever arrives meanwhile; it is short, so that it stays in the cache.
    fn bring_in(&self, c: &Arrived, copy: &mut [u8]) -> io::Result<Digest> {
        let r = self.span(c.chunk);
        let mut h = ChunkHasher::new(r.start, self.size <= 1 << self.log2);
        for start in r.clone().step_by(copy.len()) {
            let piece = start..(start + copy.len() as u64).min(r.end);
            let part = &mut copy[..(piece.end - start) as usize];
            let inside = |e: &Range<u64>| (e.start - start) as usize..(e.end - start) as usize;
            let mut at = 0;
            for e in overlapping(&self.extents, piece.clone()) {
                // Nothing arrives for holes, and the memory was used before.
                part[at..inside(&e).start].fill(0);
                if !c.memory.read(c.offset + (e.start - r.start) as usize, &mut part[inside(&e)]) {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                at = inside(&e).end;
            }
            part[at..].fill(0);
            h.update(part);
            for e in overlapping(&self.extents, piece) {
                self.file.write_all_at(&part[inside(&e)], e.start)?;
            }
        }
        Ok(h.finish())
    }
    /// Brings data and then the journal to the disk.
    pub fn sync(&self) -> Result<(), FileError> {
        self.file.sync_data().map_err(|e| self.fail("write to the disk", &e))?;
        if let Some(j) = &self.journal {
            let j = j.lock().unwrap_or_else(PoisonError::into_inner);
            j.sync().map_err(|e| self.fail("write the journal of", &e))?;
        }
        Ok(())
    }
    /// Checks the whole and gives it its name.
    pub fn finish(
        &self,
        chunks: &[Digest],
        want: &Digest,
        durable: bool,
        overwrite: bool,
    ) -> Result<(), FileError> {
        if root(chunks, self.size, self.log2).as_ref() != Some(want) {
            let text = "the whole does not match its checksum";
            return Err(FileError::new(self.path.as_bytes(), Cause::Corrupt, text));
        }
        set_meta(&self.file, &self.meta).map_err(|e| self.fail("set mode and time of", &e))?;
        if durable {
            self.file.sync_all().map_err(|e| self.fail("write to the disk", &e))?;
        }
        let part = part_name(&self.name);
        self.dir.rename(&part, &self.name, overwrite).map_err(|e| self.fail("put in place", &e))?;
        if self.journal.is_some() {
            let _ = self.dir.remove(&journal_name(&self.name)); // left over, it would only be overwritten
        }
        if durable { self.dir.sync().map_err(|e| self.fail("write the folder of", &e)) } else { Ok(()) }
    }
    /// Removes what was received.
    pub fn discard(&self) {
        let _ = self.dir.remove(&part_name(&self.name));
        let _ = self.dir.remove(&journal_name(&self.name));
    }
}
