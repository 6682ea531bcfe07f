//! The token bucket of a policer.

use crate::config::PolicerConfig;
use base::Time;

/// The state of a policer.
#[derive(Clone, Debug)]
pub(crate) struct Policer {
    config: Option<PolicerConfig>,
    /// Tokens in billionths of a byte as of `at`, so that nothing is rounded.
    tokens: u128,
    at: Time,
}

/// Nanoseconds in a second.
const NANOS_PER_SEC: u128 = 1_000_000_000;

impl Policer {
    /// A full bucket.
    pub fn new(police: Option<PolicerConfig>) -> Policer {
        Policer {
            config: police,
            tokens: police.map_or(0, |p| u128::from(p.burst) * NANOS_PER_SEC),
            at: Time::ZERO,
        }
    }

    /// Changes the configuration; an unchanged one keeps its tokens.
    pub fn set(&mut self, police: Option<PolicerConfig>, now: Time) {
        if self.config != police {
            *self = Policer { at: now, ..Policer::new(police) };
        }
    }

    /// Whether a packet passes at `now`; if so, its bytes are taken from the bucket.
    pub fn admits(&mut self, now: Time, bytes: u64) -> bool {
        let Some(p) = self.config else { return true };
        let came = u128::from(now.since(self.at).as_nanos()) * u128::from(p.rate.bytes_per_sec());
        self.tokens = (self.tokens + came).min(u128::from(p.burst) * NANOS_PER_SEC);
        self.at = now;
        let need = u128::from(bytes) * NANOS_PER_SEC;
        if self.tokens < need {
            return false;
        }
        self.tokens -= need;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Rate, Span};

    #[test]
    fn policer_passes_the_burst_and_then_its_rate() {
        let police = PolicerConfig { rate: Rate::from_mbit(8), burst: 10_000 };
        let mut p = Policer::new(Some(police));
        let now = Time::ZERO + Span::from_secs(1);
        assert_eq!(
            (0..20).filter(|_| p.admits(now, 1_000)).count(),
            10,
            "the bucket was full, and not fuller"
        );
        // 8 Mbit/s are a packet of 1000 bytes each millisecond, however often the policer is asked.
        let passed = (1..=1_000u64).filter(|i| p.admits(now + Span::from_micros(100) * *i, 1_000)).count();
        assert_eq!(passed, 100);
        p.set(Some(police), now);
        assert!(!p.admits(now + Span::from_micros(100) * 1_000, 1_000), "the same description fills nothing");
        p.set(None, now);
        assert!((0..100).all(|_| p.admits(now, 9_000)));
    }
}
