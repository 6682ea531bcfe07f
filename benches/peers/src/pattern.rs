//! The content of regions: what stands at a place depends on the place only.

/// Bytes that all bulk peers move round and round in: more than any cache holds.
pub const REGION: usize = 1 << 30;

/// A region as the sender has it.
pub fn region(len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    for (i, word) in out.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&word_at(i));
    }
    out
}

fn word_at(i: usize) -> [u8; 8] {
    (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// Whether the first `filled` bytes of a region are as they were sent.
pub fn holds(region: &[u8], filled: usize) -> bool {
    let whole = filled.min(region.len()) / 8;
    region.chunks_exact(8).take(whole).enumerate().all(|(i, word)| word == word_at(i))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_byte_is_seen_where_something_arrived() {
        let mut r = region(64);
        assert!(holds(&r, 64));
        r[40] ^= 1;
        assert!(!holds(&r, 64) && holds(&r, 40));
    }
}
