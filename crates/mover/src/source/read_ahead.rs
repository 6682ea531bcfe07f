//! How many bytes are read ahead of what the sink has acknowledged.

/// At least, and at most. The fewer they are, the more of them stay in the cache.
pub(super) const MIN_STAGED: u64 = 32 << 20;
const MAX_STAGED: u64 = 2 << 30;

/// What the path and the sink were seen to take.
#[derive(Debug)]
pub(super) struct ReadAhead {
    wanted: u64,
    /// Payload acknowledged at the last sample.
    acked: u64,
}

impl Default for ReadAhead {
    fn default() -> ReadAhead {
        ReadAhead { wanted: MIN_STAGED, acked: 0 }
    }
}

impl ReadAhead {
    /// Takes a sample: the congestion window, the payload acknowledged so far, and how many round trips ago the last one was.
    ///
    /// Twice the window keeps the path full. Where the sink is slower than the path, as on loopback, the window says nothing of
    /// what is needed: then four times of what is delivered, which doubles and doubles again while the sink keeps up.
    pub fn sample(&mut self, window: u64, acked: u64, round_trips: f64) {
        let delivered = (acked.saturating_sub(self.acked) as f64 / round_trips) as u64;
        self.acked = acked;
        let of_path = window.saturating_mul(2).saturating_add(8 << 20);
        let of_sink = delivered.saturating_mul(4).saturating_add(MIN_STAGED * 2);
        self.wanted = self.wanted.max(of_path.min(of_sink)).min(MAX_STAGED);
    }

    /// Bytes.
    pub fn wanted(&self) -> u64 {
        self.wanted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_path_gets_twice_its_window_within_a_few_round_trips() {
        let window = 300 << 20;
        let (mut ahead, mut acked) = (ReadAhead::default(), 0);
        for n in 0..5 {
            // All that was read arrives in a round trip, but no more than the window.
            acked += ahead.wanted().min(window);
            ahead.sample(window, acked, 1.0);
            assert!(ahead.wanted() >= (32 << 20) << n, "after {n}: {}", ahead.wanted());
        }
        assert_eq!(ahead.wanted(), 2 * window + (8 << 20));
        ahead.sample(window, acked, 1.0);
        assert_eq!(ahead.wanted(), 2 * window + (8 << 20), "a pause is no reason");
        ahead.sample(u64::MAX, u64::MAX, 1e-9);
        assert_eq!(ahead.wanted(), MAX_STAGED);
    }

    #[test]
    fn slow_sink_behind_a_fast_path_bounds_the_memory() {
        let mut ahead = ReadAhead::default();
        for n in 1..1_000 {
            ahead.sample(1 << 30, n * 100_000, 1.0);
        }
        assert!(ahead.wanted() < 65 << 20, "{}", ahead.wanted());
    }
}
