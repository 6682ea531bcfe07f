//! Hash tables for keys that this end chose itself.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashMap;

/// A table whose keys this end chose: at random, or by counting. A peer can look up keys of its choice but cannot choose
/// those that are stored, so one multiplication is enough where the standard library guards against chosen ones.
pub type KeyMap<K, T> = HashMap<K, T, BuildHasherDefault<KeyHasher>>;

/// Spreads numbers over a table by one multiplication (Knuth, The Art of Computer Programming, volume 3, section 6.4).
#[derive(Debug, Default, Clone, Copy)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }
    fn write_u64(&mut self, n: u64) {
        // 2^64 divided by the golden ratio; tables take the lower bits and the highest ones.
        let m = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = m ^ (m >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::hash::BuildHasher;
    use std::collections::BTreeSet;

    #[test]
    fn consecutive_keys_hash_to_different_buckets() {
        let hasher = BuildHasherDefault::<KeyHasher>::default();
        for shift in [0, 8, 32] {
            let low: BTreeSet<u64> = (0..256_u64).map(|n| hasher.hash_one(n << shift) & 0xff).collect();
            // Thrown at random, 256 keys find 162 of 256 places.
            assert!(low.len() > 128, "{} of 256 places with keys {shift} bits apart", low.len());
        }
        let map: KeyMap<u64, u64> = (0..1_000).map(|n| (n, n + 1)).collect();
        assert!((0..1_000).all(|n| map.get(&n) == Some(&(n + 1))) && !map.contains_key(&1_000));
    }
}
