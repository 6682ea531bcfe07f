//! Limits how much of a load is outstanding: little at first, then some seconds of the measured rate.

use base::{Span, Time};

/// What is under way at first, of all streams together.
const FIRST: u64 = 1 << 20;
/// What was acknowledged is counted in spans of this length: far longer than any round trip, so that what is lost and sent again
/// never empties the path.
const SPAN: Span = Span::from_secs(2);
/// How often it is reckoned anew: reading counters in each turn of a busy loop would cost what is measured.
const LOOK: Span = Span::from_millis(1);

/// Bytes that may be under way.
#[derive(Debug)]
pub struct Window {
    bytes: u64,
    most: u64,
    next: Time,
    /// When the span of now began, and what had been acknowledged by then.
    mark: (Time, u64),
    /// Bytes acknowledged in the span before.
    last: u64,
}

impl Window {
    /// Grows up to `most` bytes, counted from `now` on.
    pub fn new(most: u64, now: Time) -> Window {
        Window { bytes: FIRST.min(most), most, next: now, mark: (now, 0), last: 0 }
    }

    /// Bytes that may be under way now.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it may be another than when it was last reckoned.
    pub fn is_due(&self, now: Time) -> bool {
        now >= self.next
    }

    /// Takes in what was acknowledged in all, and what the transport would have in flight.
    ///
    /// Twice what was acknowledged lets a sender that starts three times as fast in each round trip have its way.
    pub fn reckon(&mut self, now: Time, acked: u64, in_flight: u64) {
        let since = acked.saturating_sub(self.mark.1);
        let carried = self.last.saturating_add(since).max(in_flight);
        self.bytes = FIRST.saturating_add(carried.saturating_mul(2)).min(self.most);
        if now.since(self.mark.0) >= SPAN {
            (self.mark, self.last) = ((now, acked), since);
        }
        // What is full stays so until the span is over.
        self.next = if self.bytes < self.most { now + LOOK } else { self.mark.0 + SPAN };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: u64 = 64 << 20;

    fn at(ms: u64) -> Time {
        Time::from_nanos(5_000_000_000) + Span::from_millis(ms)
    }

    /// What is under way after `seconds` at `rate` bytes a second.
    fn after(rate: u64, seconds: u64) -> u64 {
        let mut w = Window::new(MOST, at(0));
        for ms in 0..=seconds * 1_000 {
            if w.is_due(at(ms)) {
                w.reckon(at(ms), rate * ms / 1_000, 0);
            }
        }
        w.bytes()
    }

    #[test]
    fn slow_path_has_seconds_in_flight_and_fast_path_everything() {
        let slow = 250_000;
        assert!(after(slow, 60) <= FIRST + 2 * 4 * slow + slow, "{}", after(slow, 60));
        assert!(after(slow, 60) >= FIRST + 2 * 2 * slow);
        assert_eq!((after(1_250_000_000, 1), after(1_250_000_000, 61)), (MOST, MOST));
    }

    #[test]
    fn window_covers_the_transport_window_at_once() {
        let mut w = Window::new(MOST, at(0));
        w.reckon(at(0), 0, 10 << 20);
        assert_eq!(w.bytes(), 21 << 20);
        assert!(!w.is_due(at(0)) && w.is_due(at(1)));
        w.reckon(at(1), 0, u64::MAX);
        assert_eq!(w.bytes(), MOST);
        assert!(!w.is_due(at(1_999)) && w.is_due(at(2_000)));
    }

    proptest! {
        #[test]
        fn window_stays_between_minimum_and_maximum(
            acked in proptest::collection::vec(any::<u64>(), 1..20), most in 1u64..MOST,
        ) {
            let mut w = Window::new(most, at(0));
            for (i, a) in (0..).zip(acked) {
                prop_assert!((1..=most).contains(&w.bytes()));
                w.reckon(at(i * 700), a, a / 2);
            }
        }
    }
}
