//! What delay-based algorithms share: minima over a moving window, the time between feedbacks, and the delay
//! that is no queue.

use crate::Signals;
use base::{Span, Time};

/// Pacing gain, in thousandths, that doubles a window evenly over a round trip: with `w` in flight growing as
/// `2^t` the rate is `ln 2 / (1 - 1/2)` times `w` a round trip. Pacing at twice the window makes a queue, and
/// ends slow start, at half of the path's rate.
pub(super) const DOUBLING: u64 = 1_386;
/// Pacing gain where the window stands.
pub(super) const EVEN: u64 = 1_000;
/// Delay beyond the base that does not count. The papers aim at a few packets queued, which a sender of packets
/// sees; our trains take up to a millisecond (`pacer::quantum`) and queue behind themselves by as much, and
/// timers are late by a tenth of it. The same for all flows, whatever their rates, so that it favours none.
pub(super) const TRAIN_TIME: Span = Span::from_millis(1);
/// Least time taken for a round trip when the time between feedbacks is judged.
const MIN_GAP_RTT: Span = Span::from_millis(1);

/// The least value of a moving window of time, in `N` parts: exact to a part, and of bounded size.
#[derive(Clone, Copy, Debug)]
pub(super) struct MinFilter<const N: usize> {
    /// Start and least value of each part, the newest first.
    parts: [Option<(Time, Span)>; N],
}

impl<const N: usize> Default for MinFilter<N> {
    fn default() -> MinFilter<N> {
        MinFilter { parts: [None; N] }
    }
}

impl<const N: usize> MinFilter<N> {
    /// Takes in a value. `window` is the length of the whole window now.
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

    /// The least value within the window that the last update left.
    pub(super) fn get(&self) -> Option<Span> {
        self.parts.iter().flatten().map(|(_, least)| *least).min()
    }
}

/// The time between two feedbacks: its recent maximum.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gap {
    last: Option<Time>,
    longest: Span,
}

impl Gap {
    pub(super) fn update(&mut self, s: &Signals) {
        if s.acked == 0 {
            return;
        }
        if let Some(last) = self.last.replace(s.now) {
            let gap = s.now.since(last).min(s.srtt.max(MIN_GAP_RTT) / 2);
            self.longest = gap.max(self.longest - self.longest / 16);
        }
    }

    /// A pause is no time between feedbacks.
    pub(super) fn restart(&mut self) {
        self.last = None;
    }

    pub(super) fn get(&self) -> Span {
        self.longest
    }
}

/// Of a round trip, what counts: the delay that trains and hosts make by themselves is taken off.
pub(super) fn counted(base: Span, rtt: Span) -> Span {
    (rtt - TRAIN_TIME).max(base)
}

/// Of `bytes` in flight, what waits in the queue when the round trip is `rtt` and `base` without one.
pub(super) fn queued(bytes: u64, base: Span, rtt: Span) -> u64 {
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
    fn a_minimum_is_forgotten_after_its_window() {
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
    fn queued_is_what_little_says() {
        let (base, rtt) = (Span::from_millis(70), Span::from_millis(100));
        assert_eq!(queued(1_000, base, rtt), 300);
        assert_eq!(queued(1_000, rtt, base), 0);
        assert_eq!(queued(u64::MAX, Span::ZERO, rtt), u64::MAX);
        assert_eq!(counted(base, rtt), Span::from_millis(99));
        assert_eq!(counted(base, Span::from_micros(70_999)), base);
    }

    #[test]
    fn a_gap_is_the_longest_of_late() {
        let mut g = Gap::default();
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
