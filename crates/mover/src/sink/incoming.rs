//! The state of one large file that is being received: which chunks are missing, granted, hashed and verified.

use super::delta::DeltaStage;
use super::large::Part;
use crate::delta::Copied;
use crate::hash::{Digest, MIN_CHUNK_LOG2};
use crate::hashes::Hashes;
use crate::path::RelPath;
use base::RangeSet;
use lhio::staging::Staging;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use verbs::MrId;

/// Transmissions of a chunk whose hash does not match, before the file fails.
const MAX_TRIES: u8 = 3;

/// Memory that the source may Write to.
pub(super) struct Window {
    /// Chunks it covers.
    pub chunks: Range<u64>,
    /// How many of them are not verified.
    pub left: u64,
    /// Bytes of memory it takes.
    pub len: u64,
    /// The registered region and its memory, once it is allocated.
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
    /// Chunks an earlier attempt may have left, to be compared with the source's hashes.
    pub have: RangeSet,
    pub windows: BTreeMap<u64, Window>,
    /// Bytes verified since the file was brought to the disk last.
    pub unsynced: u64,
    pub hashes: Hashes,
    /// Bytes of the notes budget that it uses.
    pub noted: u64,
    /// The stage of its delta, and the copies announced so far.
    pub delta: DeltaStage,
    pub copies: Vec<Copied>,
    /// Chunks that are made of copies, whose hashes have not come.
    pub covered: RangeSet,
    /// Chunks that are to be copied, with their hashes.
    pub to_copy: VecDeque<(u64, Digest)>,
    /// Chunks that are received whole, without copies.
    pub whole: RangeSet,
    /// It was given descriptors.
    pub has_descriptors: bool,
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
    /// An earlier attempt may have left it: compare what is in the file.
    Compare,
    /// Its bytes are in memory: verify them.
    Verify,
    /// It is made of copies: copy and compare them.
    Copy,
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
            have: RangeSet::new(),
            windows: BTreeMap::new(),
            unsynced: 0,
            hashes: Hashes::new(size, log2),
            noted: 0,
            delta: DeltaStage::None,
            copies: Vec::new(),
            covered: RangeSet::new(),
            to_copy: VecDeque::new(),
            whole: RangeSet::new(),
            has_descriptors: false,
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
    /// The file is open, perhaps with these chunks in it; returns their ranges, at most `max`.
    pub fn opened(&mut self, part: Part, have: RangeSet, max: usize) -> Vec<Range<u64>> {
        self.part = Some(Arc::new(part));
        self.need = self.data.clone();
        let mut ranges = Vec::new();
        for d in self.data.iter() {
            // What is neither missing nor a hole.
            let mut at = d.start;
            for gap in have.gaps(d.clone()).chain([Range { start: d.end, end: d.end }]) {
                if at < gap.start && ranges.len() < max {
                    ranges.push(at..gap.start);
                }
                at = gap.end;
            }
        }
        for r in &ranges {
            self.need.remove(r.clone());
            self.have.insert(r.clone());
        }
        ranges
    }
    /// The next part to grant memory for, of about `most` bytes and one chunk at least, and the memory that it takes.
    pub fn next_window(&mut self, most: u64) -> Option<(Range<u64>, u64)> {
        if !self.wants_window() {
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
    /// Chunks with data.
    pub fn data(&self) -> &RangeSet {
        &self.data
    }
    /// These chunks need no memory.
    pub fn need_not(&mut self, chunks: &RangeSet) {
        for r in chunks.iter() {
            self.need.remove(r);
        }
    }
    /// Whether memory is still to be granted.
    pub fn wants_window(&self) -> bool {
        !self.failed && self.part.is_some() && !self.need.is_empty() && self.delta == DeltaStage::None
    }
    /// Bytes of all chunks that hold data.
    pub fn data_bytes(&self) -> u64 {
        self.data.iter().map(|r| self.bytes(&r)).map(|b| b.end - b.start).sum()
    }
    /// Bytes of those that are verified.
    pub fn verified_bytes(&self) -> u64 {
        self.verified.iter().map(|r| self.bytes(&r)).map(|b| b.end - b.start).sum()
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
        if self.have.remove(c..c + 1) > 0 {
            self.hashes.set(c, d);
            return Hashed::Compare;
        }
        if self.covered.remove(c..c + 1) > 0 {
            self.hashes.set(c, d);
            return Hashed::Copy;
        }
        match self.window(c) {
            Some(w) if w.memory.is_some() => {
                self.hashes.set(c, d);
                Hashed::Verify
            }
            _ => Hashed::Forged,
        }
    }
    /// What an earlier attempt left of a chunk is right.
    pub fn confirmed(&mut self, c: u64) {
        self.verified.insert(c..c + 1);
    }
    /// What is in the file is not right: the chunk must come again. Whether it may be tried once more.
    pub fn missing(&mut self, c: u64) -> bool {
        self.verified.remove(c..c + 1);
        self.need.insert(c..c + 1);
        self.again.insert(c);
        self.mismatch(c)
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
        [0..2, 7..8].into_iter().for_each(|r| {
            f.have.insert(r);
        });
        f.need = f.data.clone();
        f.need.remove(0..2);
        f.need.remove(7..8);
        assert_eq!(f.hashed(2, [5; 32]), Hashed::Forged, "nothing was granted yet");
        assert_eq!(f.hashed(4, [5; 32]), Hashed::Forged, "a hole");
        assert_eq!(f.hashed(0, [1; 32]), Hashed::Compare);
        assert_eq!(f.hashed(0, [1; 32]), Hashed::Forged, "twice");
        f.confirmed(0);
        assert_eq!(f.hashed(0, [1; 32]), Hashed::Forged, "it is there");
        assert_eq!(f.hashed(1, [2; 32]), Hashed::Compare);
        assert!(f.missing(1));
        assert!(f.again.contains(&1) && f.need.contains_all(1..3));
        let w = Window { chunks: 8..10, left: 2, len: 2 << 18, memory: None };
        f.windows.insert(8, w);
        assert_eq!(f.hashed(8, [5; 32]), Hashed::Forged, "no memory yet");
        assert!(f.verified(8).is_none());
        assert!(f.verified(9).is_some() && f.windows.is_empty());
        assert!((0..MAX_TRIES).all(|_| f.mismatch(3)) && !f.mismatch(3));
    }
}
