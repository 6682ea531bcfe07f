//! What of a large file has arrived and been verified, kept beside its data so that an interrupted transfer goes on.
//!
//! `.NAME.longhaul-journal`: one header, then one record for each verified chunk, appended as chunks are verified.
//! Every record carries a checksum; reading stops at the first that does not match (a torn tail).
//!
//! After `kill -9` the page cache still holds everything that was written, so records count as they stand. After a
//! reboot (another boot id) the disk may lack data that a record claims, so the claimed chunks are hashed again.

use crate::hash::{Digest, MAX_CHUNK_LOG2, MAX_FILE, MIN_CHUNK_LOG2};
use crate::proto::Meta;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;

const MAGIC: &[u8; 8] = b"lhjrnl1\n";
const HEADER: usize = 8 + 8 + 8 + 4 + 1 + 32 + 36 + 16;
const RECORD: usize = 8 + 32 + 8;
/// Longest journal that is read: 2^24 chunks, each noted up to twice.
const MAX_JOURNAL: u64 = HEADER as u64 + (RECORD as u64) * (1 << 25);

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
    fn encode(&self, boot: &BootId) -> Vec<u8> {
        let mut v = Vec::with_capacity(HEADER);
        v.extend_from_slice(MAGIC);
        v.extend_from_slice(&self.size.to_be_bytes());
        v.extend_from_slice(&self.secs.to_be_bytes());
        v.extend_from_slice(&self.nanos.to_be_bytes());
        v.push(self.chunk_log2);
        v.extend_from_slice(&self.extents);
        v.extend_from_slice(&boot.0);
        let sum = blake3::hash(&v);
        v.extend_from_slice(&sum.as_bytes()[..16]);
        v
    }
}

/// Identifies the time since the machine was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub [u8; 36]);

impl BootId {
    /// Of this machine now. Where the kernel does not tell, a value that equals none in a journal's header, so that
    /// everything is verified again.
    pub fn current() -> BootId {
        let text = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let mut id = [b'?'; 36];
        if let Some(t) = text.get(..36) {
            id.copy_from_slice(t);
        }
        BootId(id)
    }
    fn known(&self) -> bool {
        self.0[0] != b'?'
    }
}

/// What a journal says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Verified chunks and their hashes.
    pub chunks: BTreeMap<u64, Digest>,
    /// Whether they must be hashed again before they count: the machine was restarted since.
    pub doubtful: bool,
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
    pub fn open(mut file: File, id: &Identity, boot: &BootId) -> io::Result<(Journal, Found)> {
        let mut found = Found::default();
        let mut bytes = Vec::new();
        (&mut file).take(MAX_JOURNAL).read_to_end(&mut bytes)?;
        let mut keep = 0;
        if let Some(old) = header(&bytes) {
            let same = id.encode(&old);
            if bytes.starts_with(&same) {
                found.same_source = true;
                keep = HEADER
                    + records(&bytes[HEADER..], id.size.div_ceil(1 << id.chunk_log2), &mut found.chunks);
                found.doubtful = old != *boot || !boot.known();
            } else {
                found.other_source = true;
            }
        }
        let mut j = Journal { file };
        if keep == 0 || found.doubtful {
            // A new header; doubtful records are written again as they are verified again.
            j.restart(id, boot)?;
        } else {
            j.file.set_len(keep as u64)?;
            j.file.seek(SeekFrom::Start(keep as u64))?;
        }
        Ok((j, found))
    }
    fn restart(&mut self, id: &Identity, boot: &BootId) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&id.encode(boot))
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
        header(b)?;
        let size = u64::from_be_bytes(b[8..16].try_into().ok()?);
        let chunk_log2 = b[28];
        if size > MAX_FILE || !(MIN_CHUNK_LOG2..=MAX_CHUNK_LOG2).contains(&chunk_log2) {
            return None;
        }
        let mut chunks = BTreeMap::new();
        records(&b[HEADER..], size.div_ceil(1 << chunk_log2), &mut chunks);
        Some(Contents { size, chunk_log2, chunks })
    }
    /// Bytes of the file that are safe: those of the verified chunks.
    pub fn bytes(&self) -> u64 {
        let end = |c: u64| (c << self.chunk_log2).min(self.size);
        self.chunks.keys().map(|c| end(c + 1) - end(*c)).sum()
    }
}

/// The boot id of an intact header.
fn header(b: &[u8]) -> Option<BootId> {
    let h = b.get(..HEADER)?;
    let (body, sum) = h.split_at(HEADER - 16);
    if !body.starts_with(MAGIC) || blake3::hash(body).as_bytes()[..16] != *sum {
        return None;
    }
    Some(BootId(body[HEADER - 16 - 36..].try_into().ok()?))
}

/// Reads records of a file of `n` chunks up to the first damaged one; returns the length of the intact part.
fn records(b: &[u8], n: u64, out: &mut BTreeMap<u64, Digest>) -> usize {
    let mut good = 0;
    for r in b.chunks_exact(RECORD) {
        let (body, sum) = r.split_at(40);
        let (index, digest) = body.split_at(8);
        let index = index.iter().fold(0u64, |v, b| v << 8 | u64::from(*b));
        let Ok(digest) = Digest::try_from(digest) else { break };
        if blake3::hash(body).as_bytes()[..8] != *sum || index >= n {
            break;
        }
        out.insert(index, digest);
        good += RECORD;
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: BootId = BootId([b'a'; 36]);
    fn id() -> Identity {
        Identity::new(
            10 << 18,
            &Meta { mode: 0, secs: 5, nanos: 6 },
            18,
            std::slice::from_ref(&(0..10 << 18)),
        )
    }
    fn open(p: &std::path::Path, id: &Identity, boot: &BootId) -> (Journal, Found) {
        let f = File::options().read(true).write(true).create(true).truncate(false).open(p).unwrap();
        Journal::open(f, id, boot).unwrap()
    }

    #[test]
    fn verified_chunks_survive_and_a_torn_tail_does_not() {
        let d = tempfile::tempdir().unwrap();
        let p = d.path().join("j");
        let (mut j, f) = open(&p, &id(), &BOOT);
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
            let (mut j, f) = open(&p, &id(), &BOOT);
            assert_eq!(f.chunks.len(), cut.saturating_sub(HEADER) / RECORD, "cut at {cut}");
            // What is appended after a torn tail is read again.
            j.append(&[(9, [9; 32])]).unwrap();
            drop(j);
            assert_eq!(open(&p, &id(), &BOOT).1.chunks.get(&9), Some(&[9; 32]));
        }
    }

    #[test]
    fn another_source_starts_over_and_a_reboot_casts_doubt() {
        let d = tempfile::tempdir().unwrap();
        let p = d.path().join("j");
        open(&p, &id(), &BOOT).0.append(&[(3, [3; 32])]).unwrap();
        let (_, f) = open(&p, &id(), &BootId([b'b'; 36]));
        assert!(f.doubtful && f.chunks.len() == 1);
        assert!(open(&p, &id(), &BOOT).1.chunks.is_empty(), "doubtful records were not carried over");
        open(&p, &id(), &BOOT).0.append(&[(3, [3; 32])]).unwrap();
        let (_, f) = open(&p, &Identity { secs: 6, ..id() }, &BOOT);
        assert!(f.other_source && f.chunks.is_empty());
    }

    #[test]
    fn damage_anywhere_is_noticed() {
        let d = tempfile::tempdir().unwrap();
        let p = d.path().join("j");
        open(&p, &id(), &BOOT).0.append(&[(3, [3; 32]), (4, [4; 32])]).unwrap();
        let whole = std::fs::read(&p).unwrap();
        for i in 0..whole.len() {
            let mut b = whole.clone();
            b[i] ^= 4;
            std::fs::write(&p, &b).unwrap();
            let f = open(&p, &id(), &BOOT).1;
            assert!(f.chunks.iter().all(|(i, d)| d[0] as u64 == *i), "byte {i}");
            assert!(f.chunks.len() < 2, "byte {i}");
        }
    }
}
