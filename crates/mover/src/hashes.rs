//! The hashes of a file's chunks, where there are any: a file of 2^50 bytes may be all hole but for one chunk, and whoever offers it
//! has sent some bytes only. Memory goes with the hashes that were set, not with the size that was said.

use crate::hash::{Digest, HOLE, MAX_CHUNK_LOG2, MAX_FILE, MIN_CHUNK_LOG2};
use blake3::hazmat::{Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};
use std::collections::BTreeMap;

/// Hashes that are kept side by side: 2 KiB for a chunk of 256 KiB and more at worst.
const PAGE: u64 = 64;

/// One hash for each chunk of a file; [`HOLE`] until it is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hashes {
    size: u64,
    log2: u8,
    pages: BTreeMap<u64, Box<[Digest; PAGE as usize]>>,
}

impl Hashes {
    /// Of a file of `size` bytes in chunks of 2^`log2`.
    pub fn new(size: u64, log2: u8) -> Hashes {
        Hashes { size, log2, pages: BTreeMap::new() }
    }

    /// Chunks of the file.
    pub fn len(&self) -> u64 {
        self.size.div_ceil(1 << self.log2)
    }

    /// Of a chunk.
    pub fn get(&self, chunk: u64) -> Digest {
        self.pages.get(&(chunk / PAGE)).map_or(HOLE, |p| p[(chunk % PAGE) as usize])
    }

    /// Sets a chunk's; one beyond the end is not kept.
    pub fn set(&mut self, chunk: u64, d: Digest) {
        if chunk < self.len() {
            let page = self.pages.entry(chunk / PAGE).or_insert_with(|| Box::new([HOLE; PAGE as usize]));
            page[(chunk % PAGE) as usize] = d;
        }
    }

    /// Hash of the whole file, as [`crate::hash::root`] has it. Subtrees without any hash set are not gone through.
    pub fn root(&self) -> Option<Digest> {
        if !(MIN_CHUNK_LOG2..=MAX_CHUNK_LOG2).contains(&self.log2) || self.size > MAX_FILE {
            return None;
        }
        match self.len() {
            0 => Some(*blake3::hash(b"").as_bytes()),
            1 => Some(self.get(0)),
            _ => {
                let holes = self.holes();
                let [l, r] = self.halves(0, self.size, &holes);
                Some(*merge_subtrees_root(&l, &r, Mode::Hash).as_bytes())
            }
        }
    }

    /// Hashes of subtrees that are all hole, by the logarithm of their chunks.
    fn holes(&self) -> Vec<Digest> {
        let levels = u64::BITS - self.len().leading_zeros();
        let above = |d: &Digest| Some(merge_subtrees_non_root(d, d, Mode::Hash));
        std::iter::successors(Some(HOLE), above).take(levels as usize).collect()
    }

    /// Hashes of the two subtrees of the `size` bytes, of two chunks at least, that begin at chunk `first`.
    fn halves(&self, first: u64, size: u64, holes: &[Digest]) -> [Digest; 2] {
        let left = left_subtree_len(size);
        [self.subtree(first, left, holes), self.subtree(first + (left >> self.log2), size - left, holes)]
    }

    /// At most 24 levels deep: a file has at most 2^24 chunks.
    fn subtree(&self, first: u64, size: u64, holes: &[Digest]) -> Digest {
        let chunks = size.div_ceil(1 << self.log2);
        if chunks == 1 {
            return self.get(first);
        }
        if chunks.is_power_of_two()
            && self.pages.range(first / PAGE..=(first + chunks - 1) / PAGE).next().is_none()
            && let Some(d) = holes.get(chunks.trailing_zeros() as usize)
        {
            return *d;
        }
        let [l, r] = self.halves(first, size, holes);
        merge_subtrees_non_root(&l, &r, Mode::Hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{chunk_log2, root};

    #[test]
    fn the_root_is_that_of_the_whole_list_wherever_hashes_were_set() {
        let mut rng = base::Rng::from_u64(7);
        for chunks in [1u64, 2, 3, 63, 64, 65, 127, 128, 129, 1_000, 4_097] {
            for short in [0, 1, 70_000] {
                let (log2, size) = (MIN_CHUNK_LOG2, (chunks << MIN_CHUNK_LOG2) - short);
                for set in [0, 1, 3, chunks / 2, chunks] {
                    let (mut all, mut some) = (vec![HOLE; chunks as usize], Hashes::new(size, log2));
                    for n in 0..set {
                        let c = if set == chunks { n } else { rng.below(chunks) };
                        let mut d = HOLE;
                        rng.fill(&mut d);
                        all[c as usize] = d;
                        some.set(c, d);
                        assert_eq!(some.get(c), d);
                    }
                    assert_eq!(some.root(), root(&all, size, log2), "{chunks} chunks, {set} set, {short}");
                }
            }
        }
        assert_eq!(Hashes::new(0, MIN_CHUNK_LOG2).root(), root(&[], 0, MIN_CHUNK_LOG2));
    }

    #[test]
    fn the_largest_file_costs_what_was_set_and_no_more() {
        let mut h = Hashes::new(MAX_FILE, chunk_log2(MAX_FILE));
        assert_eq!((h.len(), h.pages.len()), (1 << 24, 0));
        for c in [0, 1, 9_000_000, (1 << 24) - 1, 1 << 24, u64::MAX] {
            h.set(c, [7; 32]);
        }
        assert_eq!((h.pages.len(), h.get(9_000_000), h.get(5)), (3, [7; 32], HOLE));
        assert!(h.root().is_some_and(|d| d != Hashes::new(MAX_FILE, 26).root().unwrap()));
    }
}
