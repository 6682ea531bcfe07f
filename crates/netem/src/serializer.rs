//! Computes when packets finish being sent at a rate, without rounding errors.

use base::{Rate, Span, Time};

/// Nanoseconds in a second.
const NANOS_PER_SEC: u128 = 1_000_000_000;

/// Sends one packet at a time. Time is kept in whole nanoseconds plus a remainder in fractions of `1 / rate`
/// nanoseconds, so that the end of a long busy period is exact: at 400 Gbit/s a packet of 1500 bytes takes 30 ns and
/// one of 1472 takes 29.44, which rounding would change by 1.5 %.
#[derive(Clone, Debug)]
pub(crate) struct Serializer {
    /// `None` is infinitely fast.
    rate: Option<Rate>,
    /// When the current packet started, or when its rate last changed.
    start: Time,
    /// The rest of the current packet at `start`, in bytes times 10^9, plus the remainder of the previous packet.
    work: u128,
    /// When the current or the last packet is finished: `start + floor(work / rate)`.
    finish: Time,
}

impl Serializer {
    pub(crate) fn new(rate: Option<Rate>) -> Serializer {
        Serializer { rate, start: Time::ZERO, work: 0, finish: Time::ZERO }
    }

    /// When the current packet is finished; [`Time::MAX`] is never, at rate zero.
    pub(crate) fn finish(&self) -> Time {
        self.finish
    }

    /// Starts a packet at `now`, or at the fractional end of the previous one if that was at `now` too.
    pub(crate) fn begin(&mut self, now: Time, bytes: u64) {
        let remainder = match self.rate {
            Some(rate) if rate != Rate::ZERO && self.finish >= now => {
                self.work % u128::from(rate.bytes_per_sec())
            }
            _ => 0,
        };
        self.start = now;
        self.work = u128::from(bytes) * NANOS_PER_SEC + remainder;
        self.update_finish();
    }

    /// Changes the rate at `now`, which must not be after `finish` while a packet is being sent.
    pub(crate) fn set_rate(&mut self, now: Time, rate: Option<Rate>) {
        let speed = self.rate.map_or(u128::MAX, |r| u128::from(r.bytes_per_sec()));
        let passed = u128::from(now.since(self.start).as_nanos());
        self.work = self.work.saturating_sub(passed.saturating_mul(speed));
        self.start = now;
        self.rate = rate;
        self.update_finish();
    }

    fn update_finish(&mut self) {
        let time = match self.rate {
            None => {
                self.work = 0;
                0
            }
            Some(Rate::ZERO) => u64::MAX,
            Some(rate) => u64::try_from(self.work / u128::from(rate.bytes_per_sec())).unwrap_or(u64::MAX),
        };
        self.finish = self.start + Span::from_nanos(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_busy_period_ends_exactly_on_time() {
        // 7 bytes at 3 bytes a second take 2.333.. seconds; three such packets take exactly 7.
        for (rate, bytes) in [(3, 7), (50_000_000_000, 1472), (999_999_937, 1499), (1, 1)] {
            let mut s = Serializer::new(Some(Rate::from_bytes_per_sec(rate)));
            let n = 1_000_000;
            s.begin(Time::ZERO, bytes);
            for _ in 1..n {
                s.begin(s.finish(), bytes);
            }
            let exact = u128::from(n * bytes) * NANOS_PER_SEC / u128::from(rate);
            assert_eq!(u128::from(s.finish().as_nanos()), exact, "rate {rate}");
        }
    }

    #[test]
    fn idle_serializer_starts_at_the_arrival() {
        let mut s = Serializer::new(Some(Rate::from_bytes_per_sec(3_000_000_000)));
        s.begin(Time::ZERO, 2);
        assert_eq!(s.finish().as_nanos(), 0);
        s.begin(Time::from_nanos(5), 2);
        assert_eq!(s.finish().as_nanos(), 5);
        s.begin(Time::from_nanos(5), 2);
        assert_eq!(s.finish().as_nanos(), 6);
    }

    #[test]
    fn packet_being_sent_continues_at_the_new_rate() {
        let second = |n| Time::ZERO + Span::from_secs(n);
        let mut s = Serializer::new(Some(Rate::from_bytes_per_sec(100)));
        s.begin(Time::ZERO, 1000);
        assert_eq!(s.finish(), second(10));
        s.set_rate(second(4), Some(Rate::from_bytes_per_sec(50)));
        assert_eq!(s.finish(), second(16));
        s.set_rate(second(6), Some(Rate::ZERO));
        assert_eq!(s.finish(), Time::MAX);
        s.set_rate(second(60), Some(Rate::from_bytes_per_sec(500)));
        assert_eq!(s.finish(), second(61));
        s.set_rate(second(60), None);
        assert_eq!(s.finish(), second(60));
    }
}
