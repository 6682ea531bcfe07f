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
use std::os::unix::fs::{FileExt, MetadataExt as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Files below this keep no journal: sending them again costs less.
pub(super) const JOURNAL_FROM: u64 = 1 << 20;
/// Bytes hashed of what was written but not verified before an interruption: what may have been granted.
const MAX_GUESS: u64 = 256 << 20;
/// File systems that store bytes as they are (`statfs(2)`: ext4, XFS, tmpfs), so that a file takes its size; others compress.
const AS_THEY_ARE: [u64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];
/// Bytes hashed at a time.
const READ: usize = 1 << 18;

/// A file that is being received.
pub(super) struct Part {
    dir: Dir,
    name: Vec<u8>,
    path: RelPath,
    file: File,
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
        turn: Mutex::default(),
        journal: None,
        size: w.size,
        log2: w.log2,
        data: w.extents.iter().map(|e| e.end.saturating_sub(e.start)).fold(0, u64::saturating_add),
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

/// A worker that panicked while it held one leaves nothing half done that the next cannot see.
fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
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
            let mut j = locked(j);
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
            let _turn = locked(&self.turn);
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
            let j = locked(j);
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
    fn begin(at: &Path, extents: &[Range<u64>]) -> (Part, BTreeMap<u64, Digest>) {
        let w = Wanted {
            path: RelPath::parse(b"f").unwrap(),
            size: SIZE as u64,
            log2: LOG2,
            extents: extents.to_vec(),
            meta: Meta { mode: 0o644, secs: 1, nanos: 2 },
            flags: crate::tests::FLAGS,
        };
        let o = open(&Tree::open(at).unwrap(), w, &BootId([b'a'; 36])).unwrap();
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
                    Arrived { chunk, want, memory: memory.clone(), offset: i * CHUNK }
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
    fn noted(part: Part, at: &Path, extents: &[Range<u64>]) -> BTreeMap<u64, Digest> {
        part.file.set_len(0).unwrap();
        part.file.set_len(SIZE as u64).unwrap();
        drop(part);
        begin(at, extents).1
    }
    fn matching(jobs: &[Vec<Arrived>], but: &[u64]) -> BTreeMap<u64, Digest> {
        jobs.iter().flatten().filter(|a| !but.contains(&a.chunk)).map(|a| (a.chunk, a.want)).collect()
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
