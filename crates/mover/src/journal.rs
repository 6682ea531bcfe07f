//! The journal of a part file: which chunks are verified, so that an interrupted transfer resumes.
//!
//! `.NAME.longhaul-journal`: one header, then one record for each verified chunk, appended as chunks are verified.
//! Every record carries a checksum; reading stops at the first that does not match (a torn tail).
//!
//! A record says where to look, no more: a disk may lose data in a crash of the machine, and anybody who may write to
//! the folder can change the data, or the journal, between two attempts. So each chunk that it lists is read and
//! compared with the source's hash before it counts.

use crate::hash::{Digest, MAX_CHUNK_LOG2, MAX_FILE, MIN_CHUNK_LOG2};
use crate::proto::Meta;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"lhjrnl2\n";
pub(crate) const HEADER: usize = 8 + 8 + 8 + 4 + 1 + 32 + 16;
const RECORD: usize = 8 + 32 + 8;
/// What must be the same for chunks of an earlier attempt to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Size of the source in bytes.
    pub size: u64,
    /// Its modification time.
    pub secs: i64,
    /// Nanoseconds of it.
    pub nanos: u32,
    /// log2 of the chunk size.
    pub chunk_log2: u8,
    /// Hash of the list of data extents.
    pub extents: Digest,
}

impl Identity {
    /// Of an offered file.
    pub fn new(size: u64, meta: &Meta, chunk_log2: u8, extents: &[Range<u64>]) -> Identity {
        let mut h = blake3::Hasher::new();
        for e in extents {
            h.update(&e.start.to_be_bytes());
            h.update(&e.end.to_be_bytes());
        }
        Identity { size, secs: meta.secs, nanos: meta.nanos, chunk_log2, extents: *h.finalize().as_bytes() }
    }
    /// The same, of a file that only this owner goes on with.
    pub fn of(mut self, owner: &Digest) -> Identity {
        let mut h = blake3::Hasher::new_derive_key("longhaul 2026 extents of an owner's file");
        h.update(&self.extents).update(owner);
        self.extents = *h.finalize().as_bytes();
        self
    }
    fn chunks(&self) -> u64 {
        self.size.div_ceil(1 << self.chunk_log2)
    }
    fn encode(&self) -> Vec<u8> {
        let mut v = Vec::with_capacity(HEADER);
        v.extend_from_slice(MAGIC);
        v.extend_from_slice(&self.size.to_be_bytes());
        v.extend_from_slice(&self.secs.to_be_bytes());
        v.extend_from_slice(&self.nanos.to_be_bytes());
        v.push(self.chunk_log2);
        v.extend_from_slice(&self.extents);
        let sum = blake3::hash(&v);
        v.extend_from_slice(&sum.as_bytes()[..16]);
        v
    }
}

/// Characters of a boot's identifier.
const BOOT: usize = 36;

/// Whether a file begins as journals do, or is the mark of a session: a boot's identifier, 36 characters (RFC 9562,
/// section 4). Such a file holds notes of this program and nothing of a user.
///
/// # Errors
/// The system's.
pub(crate) fn is_note(file: &File) -> io::Result<bool> {
    let mut begin = Vec::new();
    file.take(HEADER as u64).read_to_end(&mut begin)?;
    let id = |b: &[u8]| b.iter().all(|c| c.is_ascii_hexdigit() || b"-?".contains(c));
    let journal = <[u8; HEADER]>::try_from(&begin[..]).is_ok_and(|h| intact(&h));
    Ok(journal || begin.len() == BOOT && id(&begin))
}

/// What a journal says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Chunks that were verified when they were written, and their hashes.
    pub chunks: BTreeMap<u64, Digest>,
    /// A journal of the same state of the source was there.
    pub same_source: bool,
    /// A journal was there, but of another state of the source.
    pub other_source: bool,
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
}

impl Journal {
    /// Reads a journal and goes on with it, or starts a new one when it belongs to something else.
    ///
    /// # Errors
    /// The system's.
    pub fn open(file: File, id: &Identity) -> io::Result<(Journal, Found)> {
        let mut found = Found::default();
        let want = id.encode();
        // A chunk is noted again when it had to come again, which is seldom; a longer journal is nobody's.
        let longest = HEADER as u64 + (RECORD as u64) * id.chunks().max(1) * 2;
        let mut r = BufReader::with_capacity(RECORD * 1024, (&file).take(longest));
        let mut keep = 0;
        let mut head = [0; HEADER];
        if fill(&mut r, &mut head)? {
            found.same_source = head[..] == want[..];
            found.other_source = !found.same_source && intact(&head);
        }
        if found.same_source {
            keep = HEADER as u64 + records(&mut r, id.chunks(), &mut found.chunks)?;
        }
        let mut j = Journal { file };
        // One that is full says things twice: what it says is written anew, so that there is room for more.
        let full = keep == longest;
        if full {
            keep = 0;
        }
        j.file.set_len(keep)?;
        j.file.seek(SeekFrom::Start(keep))?;
        if keep == 0 {
            j.file.write_all(&want)?;
        }
        if full {
            j.append(&found.chunks.iter().map(|(c, d)| (*c, *d)).collect::<Vec<_>>())?;
        }
        Ok((j, found))
    }
    /// Notes verified chunks. Their data must have been written before.
    ///
    /// # Errors
    /// The system's.
    pub fn append(&mut self, chunks: &[(u64, Digest)]) -> io::Result<()> {
        let mut v = Vec::with_capacity(chunks.len() * RECORD);
        for (i, d) in chunks {
            let at = v.len();
            v.extend_from_slice(&i.to_be_bytes());
            v.extend_from_slice(d);
            let sum = blake3::hash(&v[at..]);
            v.extend_from_slice(&sum.as_bytes()[..8]);
        }
        self.file.write_all(&v)
    }
    /// Writes the journal to the disk and waits. Call it after the data's own.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// What a journal holds, read without changing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Size of the file in bytes.
    pub size: u64,
    /// log2 of the chunk size.
    pub chunk_log2: u8,
    /// Verified chunks and their hashes.
    pub chunks: BTreeMap<u64, Digest>,
}

impl Contents {
    /// Of a journal's bytes, up to the first damaged record; `None` when the header is not intact.
    pub fn read(b: &[u8]) -> Option<Contents> {
        let (head, mut rest) = b.split_at_checked(HEADER)?;
        let size = u64::from_be_bytes(head[8..16].try_into().ok()?);
        let chunk_log2 = head[28];
        let possible = size <= MAX_FILE && (MIN_CHUNK_LOG2..=MAX_CHUNK_LOG2).contains(&chunk_log2);
        if !intact(head) || !possible {
            return None;
        }
        let mut chunks = BTreeMap::new();
        records(&mut rest, size.div_ceil(1 << chunk_log2), &mut chunks).ok()?;
        Some(Contents { size, chunk_log2, chunks })
    }
    /// Bytes of the file that are safe: those of the verified chunks.
    pub fn bytes(&self) -> u64 {
        let end = |c: u64| (c << self.chunk_log2).min(self.size);
        self.chunks.keys().map(|c| end(c + 1) - end(*c)).sum()
    }
}

/// Whether these first bytes are a journal's, which may have been cut off while they were written.
pub(crate) fn is_header(b: &[u8]) -> bool {
    match b.get(..HEADER) {
        Some(h) => intact(h),
        None => b.starts_with(MAGIC) || MAGIC.starts_with(b),
    }
}

/// Whether these bytes are a header.
fn intact(h: &[u8]) -> bool {
    let (body, sum) = h.split_at(HEADER - 16);
    body.starts_with(MAGIC) && blake3::hash(body).as_bytes()[..16] == *sum
}

/// Reads all of `b`; false when there is less.
fn fill(r: &mut impl Read, b: &mut [u8]) -> io::Result<bool> {
    match r.read_exact(b) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        r => r.map(|()| true),
    }
}

/// Reads records of a file of `n` chunks up to the first damaged one; returns the length of the intact part.
fn records(r: &mut impl Read, n: u64, out: &mut BTreeMap<u64, Digest>) -> io::Result<u64> {
    let mut good = 0;
    let mut record = [0; RECORD];
    while fill(r, &mut record)? {
        let (body, sum) = record.split_at(40);
        let (index, digest) = body.split_at(8);
        let index = index.iter().fold(0u64, |v, b| v << 8 | u64::from(*b));
        let Ok(digest) = Digest::try_from(digest) else { break };
        if blake3::hash(body).as_bytes()[..8] != *sum || index >= n {
            break;
        }
        out.insert(index, digest);
        good += RECORD as u64;
    }
    Ok(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> Identity {
        Identity::new(
            10 << 18,
            &Meta { mode: 0, secs: 5, nanos: 6 },
            18,
            std::slice::from_ref(&(0..10 << 18)),
        )
    }
    fn open(p: &std::path::Path, id: &Identity) -> (Journal, Found) {
        let f = File::options().read(true).write(true).create(true).truncate(false).open(p).unwrap();
        Journal::open(f, id).unwrap()
    }

    #[test]
    fn verified_chunks_survive_and_a_torn_tail_does_not() {
        let d = tempfile::tempdir().unwrap();
        let p = d.path().join("j");
        let (mut j, f) = open(&p, &id());
        assert_eq!(f, Found::default());
        j.append(&[(3, [3; 32]), (1, [1; 32])]).unwrap();
        j.append(&[(7, [7; 32])]).unwrap();
        drop(j);
        let whole = std::fs::read(&p).unwrap();
        let c = Contents::read(&whole).unwrap();
        assert_eq!((c.size, c.chunk_log2, c.bytes()), (10 << 18, 18, 3 << 18));
        assert_eq!(Contents::read(&whole[..whole.len() - 1]).unwrap().bytes(), 2 << 18);
        assert_eq!(Contents::read(&whole[1..]), None);
        for cut in 0..whole.len() {
            std::fs::write(&p, &whole[..cut]).unwrap();
            let (mut j, f) = open(&p, &id());
            assert_eq!(f.chunks.len(), cut.saturating_sub(HEADER) / RECORD, "cut at {cut}");
            // What is appended after a torn tail is read again.
            j.append(&[(9, [9; 32])]).unwrap();
            drop(j);
            assert_eq!(open(&p, &id()).1.chunks.get(&9), Some(&[9; 32]));
        }
    }

    #[test]
    fn another_source_starts_over() {
        let d = tempfile::tempdir().unwrap();
        let p = d.path().join("j");
        open(&p, &id()).0.append(&[(3, [3; 32])]).unwrap();
        assert_eq!(open(&p, &id()).1.chunks.len(), 1);
        let (_, f) = open(&p, &Identity { secs: 6, ..id() });
        assert!(f.other_source && f.chunks.is_empty());
        assert!(open(&p, &id()).1.other_source);
        // So is what another owner has sent, and what has no owner.
        for other in [id().of(&[2; 32]), id()] {
            open(&p, &id().of(&[1; 32])).0.append(&[(3, [3; 32])]).unwrap();
            assert_eq!(open(&p, &id().of(&[1; 32])).1.chunks.len(), 1);
            let (_, f) = open(&p, &other);
            assert!(f.other_source && f.chunks.is_empty());
        }
    }

    #[test]
    fn a_journal_that_is_longer_than_any_can_be_is_cut() {
        let d = tempfile::tempdir().unwrap();
        let p = d.path().join("j");
        let all: Vec<(u64, Digest)> = (0..10).map(|i| (i, [i as u8; 32])).collect();
        let mut j = open(&p, &id()).0;
        for _ in 0..5 {
            j.append(&all).unwrap();
        }
        // Garbage, as long as a disk would have it.
        j.file.set_len(1 << 40).unwrap();
        let (_, f) = open(&p, &id());
        assert_eq!(f.chunks, all.into_iter().collect());
        assert_eq!(std::fs::metadata(&p).unwrap().len(), (HEADER + 10 * RECORD) as u64);
    }

    #[test]
    fn damage_anywhere_is_noticed() {
        let d = tempfile::tempdir().unwrap();
        let p = d.path().join("j");
        open(&p, &id()).0.append(&[(3, [3; 32]), (4, [4; 32])]).unwrap();
        let whole = std::fs::read(&p).unwrap();
        for i in 0..whole.len() {
            let mut b = whole.clone();
            b[i] ^= 4;
            std::fs::write(&p, &b).unwrap();
            let f = open(&p, &id()).1;
            assert!(f.chunks.iter().all(|(i, d)| d[0] as u64 == *i), "byte {i}");
            assert!(f.chunks.len() < 2, "byte {i}");
        }
    }
}
