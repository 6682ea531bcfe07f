//! One large file that is being received: which chunks are wanted, granted, hashed and verified.

use super::large::Part;
use crate::hash::{Digest, HOLE, MIN_CHUNK_LOG2};
use crate::path::RelPath;
use base::RangeSet;
use lhio::staging::Staging;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use verbs::MrId;

/// Tries for a chunk whose bytes do not match.
const MAX_TRIES: u8 = 3;

/// Memory that the source may Write to.
pub(super) struct Window {
    /// Chunks it covers.
    pub chunks: Range<u64>,
    /// How many of them are not verified.
    pub left: u64,
    /// Bytes of memory it takes.
    pub len: u64,
    /// Registered, and the memory, once there is some.
    pub memory: Option<(MrId, Staging)>,
}

pub(super) struct Incoming {
    pub path: RelPath,
    pub size: u64,
    pub log2: u8,
    pub part: Option<Arc<Part>>,
    /// Chunks with data.
    data: RangeSet,
    /// Chunks that no window was made for yet.
    need: RangeSet,
    /// Chunks an earlier attempt left, to be confirmed by the source's hashes.
    pub have: BTreeMap<u64, Digest>,
    pub windows: BTreeMap<u64, Window>,
    /// Bytes verified since the file was brought to the disk last.
    pub unsynced: u64,
    pub hashes: Vec<Digest>,
    verified: RangeSet,
    tries: HashMap<u64, u8>,
    /// Chunks that the source believes are here; it must be told once there is memory for them.
    pub again: BTreeSet<u64>,
    pub end: Option<Digest>,
    pub finishing: bool,
    /// Failed and reported; memory stays until the source has answered.
    pub failed: bool,
}

/// What a chunk's hash from the source means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hashed {
    /// The same as an earlier attempt verified: done.
    Confirmed,
    /// Its bytes are in the file: verify them.
    Verify,
    /// An earlier attempt left something else: it must come again.
    Stale,
    /// The source may not have sent this.
    Forged,
}

impl Incoming {
    pub fn new(path: RelPath, size: u64, log2: u8, extents: &[Range<u64>]) -> Incoming {
        let data = crate::source::data_chunks(extents, log2);
        Incoming {
            path,
            size,
            log2,
            part: None,
            data,
            need: RangeSet::new(),
            have: BTreeMap::new(),
            windows: BTreeMap::new(),
            unsynced: 0,
            hashes: vec![HOLE; size.div_ceil(1 << log2) as usize],
            verified: RangeSet::new(),
            tries: HashMap::new(),
            again: BTreeSet::new(),
            end: None,
            finishing: false,
            failed: false,
        }
    }
    pub fn chunk_len(&self, c: u64) -> u64 {
        ((c + 1) << self.log2).min(self.size) - (c << self.log2)
    }
    /// The file is open, with these chunks in it; returns their ranges, at most `max`.
    pub fn opened(&mut self, part: Part, have: BTreeMap<u64, Digest>, max: usize) -> Vec<Range<u64>> {
        self.part = Some(Arc::new(part));
        let mut set = RangeSet::new();
        for &c in have.keys().filter(|c| self.data.contains_all(**c..**c + 1)) {
            set.insert(c..c + 1);
        }
        let ranges: Vec<Range<u64>> = set.iter().take(max).collect();
        self.need = self.data.clone();
        for r in &ranges {
            self.need.remove(r.clone());
        }
        self.have = have.into_iter().filter(|(c, _)| !self.need.contains_all(*c..*c + 1)).collect();
        self.have.retain(|c, _| self.data.contains_all(*c..*c + 1));
        ranges
    }
    /// The next part to grant memory for, of about `most` bytes and one chunk at least, and the memory that it takes.
    pub fn next_window(&mut self, most: u64) -> Option<(Range<u64>, u64)> {
        if self.failed || self.part.is_none() {
            return None;
        }
        let r = self.need.first()?;
        let r = r.start..r.end.min(r.start + (most >> self.log2).max(1));
        self.need.remove(r.clone());
        let bytes = self.bytes(&r);
        // Few sizes, so that memory is used again for other windows.
        let len = (bytes.end - bytes.start).next_power_of_two().max(1 << MIN_CHUNK_LOG2);
        let w = Window { left: r.end - r.start, len, chunks: r.clone(), memory: None };
        self.windows.insert(r.start, w);
        Some((r, len))
    }
    /// Whether memory is still to be granted.
    pub fn wants_window(&self) -> bool {
        !self.failed && self.part.is_some() && !self.need.is_empty()
    }
    /// Bytes of all chunks that hold data.
    pub fn data_bytes(&self) -> u64 {
        self.data.iter().map(|r| self.bytes(&r)).map(|b| b.end - b.start).sum()
    }
    pub fn bytes(&self, chunks: &Range<u64>) -> Range<u64> {
        chunks.start << self.log2..(chunks.end << self.log2).min(self.size)
    }
    fn window(&self, c: u64) -> Option<&Window> {
        self.windows.range(..=c).next_back().map(|(_, w)| w).filter(|w| w.chunks.contains(&c))
    }
    /// Where the bytes of a chunk arrive: the memory, and the offset in it.
    pub fn staged(&self, c: u64) -> Option<(Staging, usize)> {
        let w = self.window(c)?;
        let (_, memory) = w.memory.as_ref()?;
        Some((memory.clone(), ((c - w.chunks.start) << self.log2) as usize))
    }
    /// A hash of the source.
    pub fn hashed(&mut self, c: u64, d: Digest) -> Hashed {
        if !self.data.contains_all(c..c + 1) || self.verified.contains_all(c..c + 1) {
            return Hashed::Forged;
        }
        if let Some(mine) = self.have.remove(&c) {
            self.hashes[c as usize] = d;
            if mine == d {
                self.verified.insert(c..c + 1);
                return Hashed::Confirmed;
            }
            self.need.insert(c..c + 1);
            self.again.insert(c);
            return Hashed::Stale;
        }
        match self.window(c) {
            Some(w) if w.memory.is_some() => {
                self.hashes[c as usize] = d;
                Hashed::Verify
            }
            _ => Hashed::Forged,
        }
    }
    /// A chunk was verified; returns the window when that was its last one.
    pub fn verified(&mut self, c: u64) -> Option<Window> {
        self.verified.insert(c..c + 1);
        let (&start, w) = self.windows.range_mut(..=c).next_back()?;
        w.left = w.left.saturating_sub(1);
        if w.left == 0 { self.windows.remove(&start) } else { None }
    }
    /// A chunk did not match; whether it may be tried again.
    pub fn mismatch(&mut self, c: u64) -> bool {
        let n = self.tries.entry(c).or_default();
        *n += 1;
        *n <= MAX_TRIES
    }
    /// Whether all chunks are verified and the source's end is known.
    pub fn complete(&self) -> bool {
        self.end.is_some()
            && self.part.is_some()
            && !self.finishing
            && !self.failed
            && self.data.iter().all(|r| self.verified.contains_all(r))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_taken_only_where_memory_was_granted() {
        let size = 10u64 << 18;
        let mut f = Incoming::new(RelPath::root(), size, 18, &[0..3 << 18, 6 << 18..size]);
        // As `opened` does, without a file.
        f.have = [0, 1, 7].into_iter().map(|c| (c, [1; 32])).collect();
        f.need = f.data.clone();
        f.need.remove(0..2);
        f.need.remove(7..8);
        assert_eq!(f.hashed(2, [5; 32]), Hashed::Forged, "nothing was granted yet");
        assert_eq!(f.hashed(4, [5; 32]), Hashed::Forged, "a hole");
        assert_eq!(f.hashed(0, [1; 32]), Hashed::Confirmed);
        assert_eq!(f.hashed(0, [1; 32]), Hashed::Forged, "twice");
        assert_eq!(f.hashed(1, [2; 32]), Hashed::Stale);
        assert!(f.again.contains(&1) && f.need.contains_all(1..3));
        let w = Window { chunks: 8..10, left: 2, len: 2 << 18, memory: None };
        f.windows.insert(8, w);
        assert_eq!(f.hashed(8, [5; 32]), Hashed::Forged, "no memory yet");
        assert!(f.verified(8).is_none());
        assert!(f.verified(9).is_some() && f.windows.is_empty());
        assert!((0..MAX_TRIES).all(|_| f.mismatch(3)) && !f.mismatch(3));
    }
}
