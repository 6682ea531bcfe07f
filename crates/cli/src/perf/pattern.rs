//! A pattern whose bytes depend on their offset, so that misplaced data is detected.

use base::Rng;

/// Bytes of random data that repeat, each time with their own number in front.
const BLOCK: usize = 64 << 10;

/// The content of a stream's region of `len` bytes: random blocks, numbered.
pub fn fill(stream: usize, len: usize) -> Vec<u8> {
    let block = block(stream);
    let mut out = Vec::with_capacity(len);
    for n in 0..len.div_ceil(BLOCK) {
        let rest = (len - out.len()).min(BLOCK);
        let at = out.len();
        out.extend_from_slice(&block[..rest]);
        stamp(&mut out[at..], n);
    }
    out
}

/// Whether `data` is what [`fill`] puts at `offset`, a multiple of 64 KiB.
pub fn matches(block: &[u8], offset: u64, data: &[u8]) -> bool {
    let first = (offset / BLOCK as u64) as usize;
    data.chunks(BLOCK).enumerate().all(|(i, piece)| {
        let mut number = [0; 8];
        number.copy_from_slice(&block[..8]);
        stamp(&mut number, first + i);
        let n = piece.len().min(8);
        piece[..n] == number[..n] && piece[n..] == block[n..piece.len()]
    })
}

/// What repeats in a stream's content.
pub fn block(stream: usize) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    Rng::from_u64(0x6c68_7066 ^ (stream as u64) << 32).fill(&mut block);
    block
}

fn stamp(piece: &mut [u8], number: usize) {
    for (b, s) in piece.iter_mut().zip((number as u64).to_le_bytes()) {
        *b ^= s;
    }
}

/// Bytes that one call of [`matches()`] looks at, at most: a multiple of the block.
pub const STEP: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_check_detects_every_changed_byte() {
        let mut data = fill(3, 3 * BLOCK + 5);
        let b = block(3);
        assert!(matches(&b, 0, &data));
        assert!(matches(&b, BLOCK as u64, &data[BLOCK..]));
        assert!(!matches(&block(4), 0, &data));
        assert!(!matches(&b, BLOCK as u64, &data[..BLOCK]));
        for at in [0, 7, 8, BLOCK - 1, BLOCK, 3 * BLOCK + 4] {
            data[at] ^= 1;
            assert!(!matches(&b, 0, &data), "{at}");
            data[at] ^= 1;
        }
        assert_eq!(STEP % BLOCK, 0);
    }
}
