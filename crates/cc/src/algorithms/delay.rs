//! Tools of delay-based algorithms: minimum filters, the interval between feedbacks, and delay that does not count as
//! queueing.

use crate::Signals;
use base::{Span, Time};

/// Pacing gain, in thousandths, that doubles a window evenly over a round trip: with `w` in flight growing as `2^t`
/// the rate is `ln 2 / (1 - 1/2)` times `w` per round trip. Pacing at twice the window would cause a queue and end
/// slow start at half of the path's rate.
pub(super) const DOUBLING_GAIN: u64 = 1_386;
/// Pacing gain for a constant window.
pub(super) const UNIT_GAIN: u64 = 1_000;
/// Delay above the base that does not count. The papers aim at a few queued packets, which senders of single packets
/// can measure; trains here take up to a millisecond (`pacer::quantum`) and queue behind themselves for as long, and
/// timers are late by a tenth of it. The same for all flows and rates, so that it favours none.
pub(super) const TRAIN_TIME: Span = Span::from_millis(1);
/// Shortest round-trip time assumed when the interval between feedbacks is judged.
const MIN_GAP_RTT: Span = Span::from_millis(1);

/// The minimum over a moving time window, in `N` parts: exact to one part, with constant memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct MinFilter<const N: usize> {
    /// Start and minimum of each part, newest first.
    parts: [Option<(Time, Span)>; N],
}

impl<const N: usize> Default for MinFilter<N> {
    fn default() -> MinFilter<N> {
        MinFilter { parts: [None; N] }
    }
}

impl<const N: usize> MinFilter<N> {
    /// Adds a value. `window` is the present length of the whole window.
    pub(super) fn update(&mut self, now: Time, window: Span, value: Span) {
        let part = window / N as u64;
        match &mut self.parts[0] {
            Some((start, least)) if now.since(*start) < part => *least = value.min(*least),
            _ => {
                self.parts.rotate_right(1);
                self.parts[0] = Some((now, value));
            }
        }
        for old in &mut self.parts[1..] {
            *old = old.filter(|(start, _)| now.since(*start) < window);
        }
    }

    /// The minimum within the window as of the last update.
    pub(super) fn get(&self) -> Option<Span> {
        self.parts.iter().flatten().map(|(_, least)| *least).min()
    }
}

/// The interval between feedbacks, as its recent maximum.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FeedbackGap {
    last: Option<Time>,
    longest: Span,
}

impl FeedbackGap {
    pub(super) fn update(&mut self, s: &Signals) {
        if s.acked == 0 {
            return;
        }
        if let Some(last) = self.last.replace(s.now) {
            let gap = s.now.since(last).min(s.srtt.max(MIN_GAP_RTT) / 2);
            self.longest = gap.max(self.longest - self.longest / 16);
        }
    }

    /// Restarts the measurement, since an idle time is not an interval between feedbacks.
    pub(super) fn restart(&mut self) {
        self.last = None;
    }

    pub(super) fn get(&self) -> Span {
        self.longest
    }
}

/// The round-trip time without the delay of trains and hosts.
pub(super) fn effective_rtt(base: Span, rtt: Span) -> Span {
    (rtt - TRAIN_TIME).max(base)
}

/// The part of `bytes` in flight that is queued, for a round-trip time of `rtt` and `base` without a queue.
pub(super) fn queued_bytes(bytes: u64, base: Span, rtt: Span) -> u64 {
    let (base, rtt) = (u128::from(base.as_nanos()), u128::from(rtt.as_nanos()));
    if rtt <= base {
        return 0;
    }
    u64::try_from(u128::from(bytes) * (rtt - base) / rtt).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimum_is_forgotten_after_its_window() {
        let mut f = MinFilter::<10>::default();
        assert_eq!(f.get(), None);
        let window = Span::from_secs(10);
        for s in 0..100u64 {
            let value = if s == 5 { Span::from_millis(1) } else { Span::from_millis(100 + s) };
            f.update(Time::ZERO + Span::from_secs(s), window, value);
            let want = match s {
                0..5 => Span::from_millis(100),
                5..15 => Span::from_millis(1),
                _ => Span::from_millis(100 + s - 9),
            };
            assert_eq!(f.get(), Some(want), "second {s}");
        }
        // A single value lasts until the next, however late that is.
        f.update(Time::ZERO + Span::from_secs(1_000), window, Span::from_secs(1));
        assert_eq!(f.get(), Some(Span::from_secs(1)));
    }

    #[test]
    fn queued_bytes_follow_littles_law() {
        let (base, rtt) = (Span::from_millis(70), Span::from_millis(100));
        assert_eq!(queued_bytes(1_000, base, rtt), 300);
        assert_eq!(queued_bytes(1_000, rtt, base), 0);
        assert_eq!(queued_bytes(u64::MAX, Span::ZERO, rtt), u64::MAX);
        assert_eq!(effective_rtt(base, rtt), Span::from_millis(99));
        assert_eq!(effective_rtt(base, Span::from_micros(70_999)), base);
    }

    #[test]
    fn feedback_gap_is_the_recent_maximum() {
        let mut g = FeedbackGap::default();
        let feedback = |ms| Signals {
            now: Time::ZERO + Span::from_millis(ms),
            acked: 1,
            srtt: Span::from_millis(70),
            ..Signals::default()
        };
        [0, 9, 18].iter().for_each(|ms| g.update(&feedback(*ms)));
        assert_eq!(g.get(), Span::from_millis(9));
        g.update(&feedback(1_000));
        assert_eq!(g.get(), Span::from_millis(35), "half a round trip at most");
        g.restart();
        g.update(&feedback(9_000));
        assert_eq!(g.get(), Span::from_millis(35));
    }
}
