//! End-to-end checksums: BLAKE3, computed chunk by chunk in any order at both ends.
//!
//! A chunk's hash is the chaining value of its subtree in BLAKE3's own tree (chunks are powers of two, so every
//! chunk is a subtree), and the file's hash is the root over them: what `b3sum` prints. A file that fits in one
//! chunk has its BLAKE3 hash as that chunk's hash. A chunk that lies wholly in a hole is neither read nor sent; its
//! hash is [`HOLE`], so that sparse files of many terabytes need not hash their zeros. Only then does the root differ
//! from `b3sum`'s.

use blake3::hazmat::{HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};

/// Hash of a chunk, or of a whole file.
pub type Digest = [u8; 32];

/// Stands for a chunk without data.
pub const HOLE: Digest = [0; 32];

/// Smallest chunk, 256 KiB: what is sent again at most for a part that was cut off.
pub const MIN_CHUNK_LOG2: u8 = 18;
/// Largest chunk, 64 MiB.
pub const MAX_CHUNK_LOG2: u8 = 26;
/// Files grow their chunks until no more than this many are needed (or the largest chunk is reached).
const AIM_CHUNKS: u64 = 16_384;
/// Largest file: 2^50 bytes (1 PiB), 2^24 chunks.
pub const MAX_FILE: u64 = 1 << 50;

/// log2 of the chunk size for a file of `size` bytes. Both ends derive it from the size alone.
pub fn chunk_log2(size: u64) -> u8 {
    let mut l = MIN_CHUNK_LOG2;
    while l < MAX_CHUNK_LOG2 && size.div_ceil(1 << l) > AIM_CHUNKS {
        l += 1;
    }
    l
}

/// Incremental hash of one chunk.
pub struct ChunkHasher {
    inner: blake3::Hasher,
    whole: bool,
}

impl ChunkHasher {
    /// For the chunk at byte `offset` of a file; `whole` when it is the file's only chunk.
    pub fn new(offset: u64, whole: bool) -> ChunkHasher {
        let mut inner = blake3::Hasher::new();
        if !whole {
            inner.set_input_offset(offset);
        }
        ChunkHasher { inner, whole }
    }
    /// Adds bytes in order.
    pub fn update(&mut self, data: &[u8]) {
        self.inner.update(data);
    }
    /// The chunk's hash. At least one byte must have been added unless it is a whole file.
    pub fn finish(self) -> Digest {
        if self.whole { *self.inner.finalize().as_bytes() } else { self.inner.finalize_non_root() }
    }
}

/// Hash of a file from the hashes of all its chunks.
///
/// `size` and `log2` must belong to `chunks`: `chunks.len()` is `size` divided by the chunk size, rounded up.
/// Returns `None` when they do not.
pub fn root(chunks: &[Digest], size: u64, log2: u8) -> Option<Digest> {
    if !(MIN_CHUNK_LOG2..=MAX_CHUNK_LOG2).contains(&log2) || size > MAX_FILE {
        return None;
    }
    if size == 0 {
        return chunks.is_empty().then(|| *blake3::hash(b"").as_bytes());
    }
    if chunks.len() as u64 != size.div_ceil(1 << log2) {
        return None;
    }
    if let [only] = chunks {
        return Some(*only);
    }
    let (l, r, _) = halves(chunks, size, log2);
    Some(*merge_subtrees_root(&l, &r, Mode::Hash).as_bytes())
}

/// Hashes of the two subtrees of `chunks` (at least two of them), and where they part.
fn halves(chunks: &[Digest], size: u64, log2: u8) -> (Digest, Digest, usize) {
    let left = left_subtree_len(size);
    let k = (left >> log2) as usize;
    (subtree(&chunks[..k], left, log2), subtree(&chunks[k..], size - left, log2), k)
}

/// At most 24 levels deep: a file has at most 2^24 chunks.
fn subtree(chunks: &[Digest], size: u64, log2: u8) -> Digest {
    match chunks {
        [only] => *only,
        _ => {
            let (l, r, _) = halves(chunks, size, log2);
            merge_subtrees_non_root(&l, &r, Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunked(data: &[u8], log2: u8) -> Vec<Digest> {
        let n = data.len().div_ceil(1 << log2);
        data.chunks(1 << log2)
            .enumerate()
            .map(|(i, c)| {
                let mut h = ChunkHasher::new((i as u64) << log2, n == 1);
                c.chunks(70_000).for_each(|p| h.update(p));
                h.finish()
            })
            .collect()
    }

    #[test]
    fn root_is_blake3_of_the_file() {
        let c = 1usize << MIN_CHUNK_LOG2;
        for len in [0, 1, c - 1, c, c + 1, 2 * c, 3 * c, 3 * c + 7, 4 * c, 5 * c - 1, 7 * c + 1025] {
            let data: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            let cv = chunked(&data, MIN_CHUNK_LOG2);
            assert_eq!(
                root(&cv, len as u64, MIN_CHUNK_LOG2),
                Some(*blake3::hash(&data).as_bytes()),
                "{len} bytes"
            );
        }
    }

    #[test]
    fn wrong_number_of_chunks_is_no_hash() {
        let c = 1u64 << MIN_CHUNK_LOG2;
        assert_eq!(root(&[HOLE; 2], c, MIN_CHUNK_LOG2), None);
        assert_eq!(root(&[HOLE], 0, MIN_CHUNK_LOG2), None);
        assert_eq!(root(&[], c, MIN_CHUNK_LOG2), None);
        assert_eq!(root(&[HOLE], c, 3), None);
        assert_eq!(root(&[HOLE], u64::MAX, MIN_CHUNK_LOG2), None);
    }

    #[test]
    fn chunks_stay_few() {
        assert_eq!(chunk_log2(0), 18);
        assert_eq!(chunk_log2(4 << 30), 18);
        assert_eq!(chunk_log2((4 << 30) + 1), 19);
        assert_eq!(chunk_log2(1 << 40), 26);
        assert_eq!(chunk_log2(MAX_FILE), 26);
        const { assert!(MAX_FILE >> MAX_CHUNK_LOG2 <= 1 << 24) };
    }
}
