//! Jobs of the sending side: reading and hashing.

use crate::data_reduction::Shared;
use crate::delta::Plan;
use crate::error::{Cause, FileError};
use crate::hash::{ChunkHasher, Digest};
use crate::progress::Progress;
use crate::proto::{MAX_MESSAGE, MAX_SMALL, Name, Record, put};
use crate::source::feeder::full_path;
use crate::source::not_preserved::Counter;
use crate::tree::Info;
use crate::walk::{Found, Start};
use lhio::direct::Reader;
use lhio::safe_path::Attributes;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

/// Messages of small files, and how many bytes of them were compressed to how many.
#[derive(Default)]
pub(super) struct Packed {
    pub messages: Vec<Vec<u8>>,
    pub before: u64,
    pub after: u64,
}

impl Packed {
    /// Adds a message with files and nothing else, compressed if that is wanted and helps.
    fn files(&mut self, m: Vec<u8>, shared: &Shared) {
        let Some(frame) = shared.pack(&m) else { return self.messages.push(m) };
        self.before += m.len() as u64;
        self.after += frame.len() as u64;
        let mut zipped = Vec::with_capacity(frame.len() + 16);
        put(&mut zipped, &Record::Zipped { len: m.len(), frame: &frame });
        self.messages.push(zipped);
    }
}

/// Reads small files into as few messages as they fit in; failures become records too.
pub(super) fn pack(
    starts: &[Start],
    files: &[Found],
    progress: &Progress,
    behind: &Counter,
    shared: &Shared,
) -> Packed {
    let mut out = Packed::default();
    let mut failures = Vec::new();
    let mut m = Vec::with_capacity(MAX_MESSAGE);
    let mut data = Vec::new();
    for f in files {
        let s = &starts[f.root as usize];
        let full = full_path(s, f);
        let name = Name { root: f.root, path: f.path.clone() };
        let need = f.path.as_bytes().len() + 96;
        let read = s.tree.read_file(&full).and_then(|file| {
            let info = read_small(&file, &mut data)?;
            // What is kept of them is read; else it is known by their names alone what there is.
            let (extra, excluded) = behind.extras.of_file(&info, &file)?;
            behind.excluded(excluded);
            Ok((info, Attributes::of_file(&file), extra))
        });
        match read {
            Ok((info, attributes, extra)) => {
                behind.attributes(attributes);
                let extra = extra.map(Record::Extra);
                let more = extra.as_ref().map_or(0, |x| {
                    let mut m = Vec::new();
                    put(&mut m, x);
                    m.len()
                });
                if m.len() + need + more + data.len() > MAX_MESSAGE {
                    out.files(std::mem::take(&mut m), shared);
                }
                let hash = *blake3::hash(&data).as_bytes();
                if let Some(x) = &extra {
                    put(&mut m, x);
                }
                let meta = behind.extras.meta_of(&info);
                put(&mut m, &Record::Small { name, meta, hash, data: &data });
                progress.update(|p| p.current = full.to_string());
            }
            Err(e) => {
                let e = match e.raw_os_error() {
                    None => FileError::new(full.as_bytes(), Cause::of(&e), e.to_string()),
                    Some(_) => FileError::io(full.as_bytes(), "read", &e),
                };
                // A failure is much shorter than the limit below.
                if failures.len() + 4 * need + crate::error::MAX_TEXT > MAX_MESSAGE {
                    out.messages.push(std::mem::take(&mut failures));
                }
                put(
                    &mut failures,
                    &Record::Failed { path: e.path.clone(), cause: e.cause as u8, text: e.text.clone() },
                );
                progress.fail(e);
            }
        }
    }
    if !m.is_empty() {
        out.files(m, shared);
    }
    out.messages.extend(Some(failures).filter(|f| !f.is_empty()));
    out
}

/// Reads a whole file that must be the same before and after.
fn read_small(f: &File, data: &mut Vec<u8>) -> io::Result<Info> {
    data.clear();
    let before = Info::of_file(f)?;
    f.take(MAX_SMALL as u64 + 1).read_to_end(data)?;
    let after = Info::of_file(f)?;
    if data.len() > MAX_SMALL || data.len() as u64 != after.size || !unchanged(&before, &after) {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "changed while it was read"));
    }
    Ok(after)
}

/// Whether a file is in the state that was offered.
pub(super) fn unchanged(a: &Info, b: &Info) -> bool {
    a.size == b.size && (a.meta.secs, a.meta.nanos) == (b.meta.secs, b.meta.nanos)
}

/// The part of a large file that one job reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub file: u64,
    /// First chunk.
    pub first: u64,
    /// Chunks, at least one.
    pub count: u64,
    /// Whether it is Written to the sink, or only hashed.
    pub send: bool,
}

/// A piece that was read.
pub(super) struct Ready {
    pub hashes: Vec<Digest>,
    pub buffer: Vec<u8>,
    /// Where in the buffer its first byte is.
    pub lead: u64,
    /// For each chunk the length of the frame that stands in its place, 0 where its data does; empty when all do.
    pub packed: Vec<u64>,
}

/// What of the data in a part of a file is sent.
pub(super) fn to_send(extents: &[Range<u64>], plan: Option<&Plan>, r: Range<u64>) -> Vec<Range<u64>> {
    match plan {
        Some(p) => p.literals(extents, r),
        None => overlapping(extents, r).collect(),
    }
}

/// Compresses what is to be sent of each chunk, where that helps.
pub(super) fn pack_chunks(
    ready: &mut Ready,
    piece: Piece,
    (log2, size): (u8, u64),
    (extents, plan): (&[Range<u64>], Option<&Plan>),
    shared: &Shared,
) {
    let start = piece.first << log2;
    let mut data = Vec::new();
    for c in piece.first..piece.first + piece.count {
        let r = c << log2..((c + 1) << log2).min(size);
        let at = |x: u64| (ready.lead + x - start) as usize;
        data.clear();
        for part in to_send(extents, plan, r.clone()) {
            data.extend_from_slice(&ready.buffer[at(part.start)..at(part.end)]);
        }
        let frame = shared.pack(&data).unwrap_or_default();
        let to = at(r.start);
        ready.buffer[to..to + frame.len()].copy_from_slice(&frame);
        ready.packed.push(frame.len() as u64);
    }
}

/// Chunks that were packed, one by one with the length of their frame, and runs of those that were not, with 0.
pub(super) fn runs(first: u64, packed: &[u64], chunks: usize) -> Vec<(Range<u64>, u64)> {
    let mut out: Vec<(Range<u64>, u64)> = Vec::new();
    for (i, c) in (0..chunks).zip(first..) {
        let len = packed.get(i).copied().unwrap_or(0);
        match out.last_mut() {
            Some((r, 0)) if len == 0 => r.end = c + 1,
            _ => out.push((c..c + 1, len)),
        }
    }
    out
}

/// What is said of the chunks of a piece.
pub(super) fn records(p: Piece, packed: &[u64], hashes: &[Digest]) -> Vec<Record<'static>> {
    let (file, all) = (p.file, runs(p.first, packed, hashes.len()));
    all.into_iter()
        .map(|(r, len)| {
            let of = &hashes[(r.start - p.first) as usize..(r.end - p.first) as usize];
            match (len, of) {
                (1.., [hash]) => Record::Packed { file, chunk: r.start, len, hash: *hash },
                _ => Record::Hashes { file, first: r.start, hashes: of.to_vec() },
            }
        })
        .collect()
}

thread_local! {
    /// Each worker has its own queue to the disks.
    static READER: RefCell<Reader> = RefCell::new(Reader::new());
}

/// What a job needs to know to read a large file past the page cache.
pub(super) struct Direct {
    /// Cleared when its disk turns out to want something else.
    pub on: AtomicBool,
    /// The file's name, for people.
    pub shown: Vec<u8>,
    pub progress: Progress,
}

/// As [`chunks`], past the page cache. Holes are read like anything else: zeroes, by the disk's own accounts.
pub(super) fn direct(
    f: &File,
    piece: Piece,
    log2: u8,
    size: u64,
    mut buffer: Vec<u8>,
    d: &Direct,
) -> io::Result<Ready> {
    let start = piece.first << log2;
    let len = (((piece.first + piece.count) << log2).min(size) - start) as usize;
    let mut got = READER.with_borrow_mut(|r| r.read(f, start, len, &mut buffer));
    if matches!(&got, Err(e) if e.kind() == io::ErrorKind::InvalidInput) {
        lhio::direct::disable(f)?;
        if d.on.swap(false, Ordering::Relaxed) {
            let name = crate::path::show(&d.shown);
            d.progress
                .note(format!("{name}: read through the page cache, since its disk refuses direct reads"));
        }
        got = READER.with_borrow_mut(|r| r.read(f, start, len, &mut buffer));
    }
    let got = got?;
    let data = &buffer[got.clone()];
    if data.len() < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let whole = size <= 1 << log2;
    let hash = |(i, part): (u64, &[u8])| {
        let mut h = ChunkHasher::new(i << log2, whole);
        h.update(part);
        h.finish()
    };
    let hashes = (piece.first..).zip(data.chunks(1 << log2)).map(hash).collect();
    Ok(Ready { hashes, lead: got.start as u64, buffer, packed: Vec::new() })
}

/// Reads the chunks of `piece` into `buffer` and hashes them. What lies in holes is zero.
pub(super) fn chunks(
    f: &File,
    piece: Piece,
    log2: u8,
    size: u64,
    extents: &[Range<u64>],
    buffer: &mut [u8],
) -> io::Result<Vec<Digest>> {
    let (chunk, total) = (1u64 << log2, size.div_ceil(1 << log2));
    let mut out = Vec::with_capacity(piece.count as usize);
    for (i, part) in (piece.first..piece.first + piece.count).zip(buffer.chunks_mut(chunk as usize)) {
        let (start, end) = (i << log2, ((i + 1) << log2).min(size));
        let part = &mut part[..(end - start) as usize];
        let mut at = start;
        for e in overlapping(extents, start..end) {
            part[(at - start) as usize..(e.start - start) as usize].fill(0);
            f.read_exact_at(&mut part[(e.start - start) as usize..(e.end - start) as usize], e.start)?;
            at = e.end;
        }
        part[(at - start) as usize..].fill(0);
        let mut h = ChunkHasher::new(start, total == 1);
        h.update(part);
        out.push(h.finish());
    }
    Ok(out)
}

/// The parts of ascending `extents` that lie within `r`.
pub(crate) fn overlapping(extents: &[Range<u64>], r: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
    let i = extents.partition_point(|e| e.end <= r.start);
    let end = r.end;
    extents[i..]
        .iter()
        .take_while(move |e| e.start < end)
        .map(move |e| e.start.max(r.start)..e.end.min(r.end))
}

/// Chunks that hold any data.
pub(crate) fn data_chunks(extents: &[Range<u64>], log2: u8) -> base::RangeSet {
    let mut s = base::RangeSet::new();
    for e in extents {
        s.insert(e.start >> log2..e.end.div_ceil(1 << log2));
    }
    s
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_read_data_and_zero_holes() {
        let f = tempfile::tempfile().unwrap();
        let size = (3u64 << 18) + 10;
        let data: Vec<u8> = (0..size).map(|i| (i % 251) as u8 + 1).collect();
        f.write_all_at(&data, 0).unwrap();
        let extents = [100..200, 250_000..300_000, 2 << 18..size];
        let mut want = vec![0; size as usize];
        for e in &extents {
            want[e.start as usize..e.end as usize].copy_from_slice(&data[e.start as usize..e.end as usize]);
        }
        let mut buffer = vec![9; 4 << 18];
        let p = Piece { file: 0, first: 0, count: 4, send: true };
        let h = chunks(&f, p, 18, size, &extents, &mut buffer).unwrap();
        assert_eq!(buffer[..size as usize], want);
        assert_eq!(crate::hash::root(&h, size, 18), Some(*blake3::hash(&want).as_bytes()));
        assert!(data_chunks(&extents, 18).iter().eq(Some(0..4)));
        // Shorter than offered: an error, no panic.
        f.set_len(1000).unwrap();
        let e = chunks(&f, p, 18, size, &extents, &mut buffer).unwrap_err();
        assert_eq!(Cause::of(&e), Cause::Changed);
    }

    #[test]
    fn overlaps_are_cut() {
        let e = [0..10, 20..30, 40..50];
        assert_eq!(overlapping(&e, 5..45).collect::<Vec<_>>(), [5..10, 20..30, 40..45]);
        assert_eq!(overlapping(&e, 10..20).count(), 0);
        assert_eq!(overlapping(&e, 50..60).count(), 0);
    }
}
