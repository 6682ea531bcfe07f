//! A histogram of how late packets left the relay.

use base::Span;

/// Eight steps to each doubling: a quantile is at most 12.5 % above the truth.
const STEPS: u32 = 8;
const BUCKETS: usize = 64 * STEPS as usize;

/// A distribution of lateness in fixed memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Lateness {
    counts: Box<[u64; BUCKETS]>,
    total: u64,
    max: Span,
}

impl Default for Lateness {
    fn default() -> Lateness {
        Lateness { counts: Box::new([0; BUCKETS]), total: 0, max: Span::ZERO }
    }
}

impl core::fmt::Debug for Lateness {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "p50 {}, p99 {}, max {}", self.quantile(0.5), self.quantile(0.99), self.max)
    }
}

impl Lateness {
    pub(super) fn add(&mut self, late: Span) {
        self.counts[bucket(late.as_nanos())] += 1;
        self.total += 1;
        self.max = self.max.max(late);
    }

    /// Packets counted.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The worst.
    pub fn max(&self) -> Span {
        self.max
    }

    /// The lateness that a share `q` (0 to 1) of the packets did not exceed, rounded up by at most 12.5 %.
    /// Zero when nothing was counted.
    pub fn quantile(&self, q: f64) -> Span {
        let rank = (self.total as f64 * q.clamp(0.0, 1.0)).ceil() as u64;
        let mut below = 0;
        for (i, n) in self.counts.iter().enumerate() {
            below += n;
            if below >= rank && below > 0 {
                return Span::from_nanos(upper(i)).min(self.max);
            }
        }
        Span::ZERO
    }
}

/// Values below 8 have a bucket each; above, the three bits after the leading one choose it.
fn bucket(ns: u64) -> usize {
    let exponent = ns.max(1).ilog2();
    if exponent < 3 {
        return ns as usize;
    }
    let step = (ns >> (exponent - 3)) as u32 & (STEPS - 1);
    ((exponent - 2) * STEPS + step) as usize
}

/// The largest value of a bucket.
fn upper(i: usize) -> u64 {
    let (i, steps) = (i as u64, u64::from(STEPS));
    if i < steps {
        return i;
    }
    let shift = i / steps - 1;
    // The next bucket's least value less one; only the last that can occur exceeds 64 bits.
    u64::try_from((u128::from(steps + i % steps + 1) << shift) - 1).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_bounds_are_consistent() {
        for ns in (0..5_000).chain([1 << 40, u64::MAX - 1, u64::MAX]) {
            let i = bucket(ns);
            assert!(i < BUCKETS && ns <= upper(i), "{ns}");
            assert!(i == 0 || ns > upper(i - 1), "{ns}");
            assert!((upper(i) - ns) as f64 <= ns as f64 / 8.0, "{ns}");
        }
    }

    #[test]
    fn quantiles_are_accurate_to_an_eighth() {
        let mut l = Lateness::default();
        assert_eq!(l.quantile(0.5), Span::ZERO);
        (1..=1_000).for_each(|us| l.add(Span::from_micros(us)));
        assert_eq!((l.count(), l.max()), (1_000, Span::from_millis(1)));
        assert!((500..=563).contains(&l.quantile(0.5).as_micros()));
        assert!((990..=1_000).contains(&l.quantile(0.99).as_micros()));
        assert_eq!(l.quantile(1.0), l.max());
    }
}
