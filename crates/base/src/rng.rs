//! A seeded random number generator. Production seeds it once from the operating system (in `io`), tests from a
//! number.

use core::fmt;
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng as _, SeedableRng};

/// A cryptographically strong generator (ChaCha, 12 rounds): one type for keys, tests and simulations.
#[derive(Clone)]
pub struct Rng(ChaCha12Rng);

impl Rng {
    /// A generator from a full seed. In production the seed comes from the operating system.
    pub fn from_seed(seed: [u8; 32]) -> Rng {
        Rng(ChaCha12Rng::from_seed(seed))
    }
    /// A generator from a number, for tests and simulations: the same number gives the same sequence.
    pub fn from_u64(seed: u64) -> Rng {
        Rng(ChaCha12Rng::seed_from_u64(seed))
    }
    /// An independent generator, drawn from this one.
    pub fn fork(&mut self) -> Rng {
        let mut seed = [0; 32];
        self.fill(&mut seed);
        Rng::from_seed(seed)
    }
    /// An independent generator of the same seed, which draws nothing from this one: streams of ChaCha with other nonces
    /// have nothing in common. For what must not change what else is drawn; each `number` once, none of them zero.
    pub fn stream(&self, number: u64) -> Rng {
        let mut other = self.0.clone();
        other.set_stream(number);
        Rng(other)
    }
    /// 64 random bits.
    pub fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }
    /// 32 random bits.
    pub fn u32(&mut self) -> u32 {
        self.0.next_u32()
    }
    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        self.0.fill_bytes(out);
    }
    /// A number below `n`, uniform up to a bias of `n / 2^64`. Zero when `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.u64()) * u128::from(n)) >> 64) as u64
    }
    /// A number in `lo..hi`; `lo` when the range is empty.
    pub fn range(&mut self, lo: u64, hi: u64) -> u64 {
        lo + self.below(hi.saturating_sub(lo))
    }
    /// A number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        (self.u64() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// True with probability `p`.
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }
}

impl fmt::Debug for Rng {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rng")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_seed_gives_same_numbers() {
        let (mut a, mut b) = (Rng::from_u64(7), Rng::from_u64(7));
        assert_eq!((0..9).map(|_| a.u64()).collect::<Vec<_>>(), (0..9).map(|_| b.u64()).collect::<Vec<_>>());
        assert_ne!(a.fork().u64(), a.fork().u64());
        assert!((0..1000).all(|_| a.below(10) < 10));
        assert_eq!(a.below(0), 0);
        let (mut one, mut two) = (b.stream(1), b.stream(2));
        let before = b.clone().u64();
        assert!(one.u64() != two.u64() && one.u64() != before && b.u64() == before);
    }
}
