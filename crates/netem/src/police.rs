//! The bucket of a policer.

use crate::config::Police;
use base::Time;

/// How full the bucket of a policer is.
#[derive(Clone, Debug)]
pub(crate) struct Policer {
    police: Option<Police>,
    /// Tokens in billionths of a byte, as of `at`: nothing is rounded.
    tokens: u128,
    at: Time,
}

/// Nanoseconds in a second.
const NANOS: u128 = 1_000_000_000;

impl Policer {
    /// A full bucket.
    pub fn new(police: Option<Police>) -> Policer {
        Policer { police, tokens: police.map_or(0, |p| u128::from(p.burst) * NANOS), at: Time::ZERO }
    }

    /// Takes another description; one that is the same keeps its tokens.
    pub fn set(&mut self, police: Option<Police>, now: Time) {
        if self.police != police {
            *self = Policer { at: now, ..Policer::new(police) };
        }
    }

    /// Whether a packet passes at `now`, which takes its bytes from the bucket.
    pub fn passes(&mut self, now: Time, bytes: u64) -> bool {
        let Some(p) = self.police else { return true };
        let came = u128::from(now.since(self.at).as_nanos()) * u128::from(p.rate.bytes_per_sec());
        self.tokens = (self.tokens + came).min(u128::from(p.burst) * NANOS);
        self.at = now;
        let need = u128::from(bytes) * NANOS;
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
    fn a_burst_passes_and_then_the_rate() {
        let police = Police { rate: Rate::from_mbit(8), burst: 10_000 };
        let mut p = Policer::new(Some(police));
        let now = Time::ZERO + Span::from_secs(1);
        assert_eq!(
            (0..20).filter(|_| p.passes(now, 1_000)).count(),
            10,
            "the bucket was full, and not fuller"
        );
        // 8 Mbit/s are a packet of 1000 bytes each millisecond, however often it is asked.
        let passed = (1..=1_000u64).filter(|i| p.passes(now + Span::from_micros(100) * *i, 1_000)).count();
        assert_eq!(passed, 100);
        p.set(Some(police), now);
        assert!(!p.passes(now + Span::from_micros(100) * 1_000, 1_000), "the same description fills nothing");
        p.set(None, now);
        assert!((0..100).all(|_| p.passes(now, 9_000)));
    }
}
