//! Packet dispersion: measures the bottleneck rate from the arrival spacing of a train that was sent back to back.
//!
//! Two reports about packets of one train (its first and its last packet ask for one each) carry the receiver's time
//! stamps. When the packets between arrived much more slowly than they left, the path's narrowest place has put that
//! time between them.

use base::{Rate, Span, Time};
use core::ops::Range;

/// Fewer packets than this tell of clock readings rather than of the path.
const MIN_PACKETS: u64 = 8;
/// Shorter arrivals are a matter of when the receiver looks: packets wait for an interrupt, are joined, are read in
/// batches.
const MIN_ARRIVAL: Span = Span::from_micros(150);
/// Trains take at most this long to arrive, or what is measured is no train.
const MAX_ARRIVAL: Span = Span::from_millis(200);

/// Time between measurements: each costs two reports.
const EVERY: Span = Span::from_millis(1);

/// Measures dispersion from successive feedback.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dispersion {
    /// Number, time of sending and arrival by the peer's clock (in microseconds, wrapping) of the last report's
    /// newest packet.
    last: Option<(u64, Time, u32)>,
    /// When the trains that are measured now began to leave.
    began: Option<Time>,
}

impl Dispersion {
    /// A train is about to leave whose dispersion is wanted: whether it is to ask for reports. Trains that leave
    /// together are measured together, and not more than a thousand times a second.
    pub fn begin(&mut self, now: Time) -> bool {
        let since = self.began.map_or(Span::MAX, |began| now.since(began));
        if since >= EVERY {
            self.began = Some(now);
        }
        since >= EVERY || since < MIN_ARRIVAL
    }

    /// A report says that packet `pn`, sent at `sent`, was the newest and arrived at `arrival_us`. Gives the rate of arrival
    /// since the last report if the packets in between left at twice that rate or faster; `bytes` tells how long packets
    /// with these numbers are together, if it is known.
    pub fn update(
        &mut self,
        pn: u64,
        sent: Time,
        arrival_us: u32,
        bytes: impl FnOnce(Range<u64>) -> Option<u64>,
    ) -> Option<Rate> {
        let now = (pn, sent, arrival_us);
        let (last_pn, last_sent, last_arrival) = *self.last.get_or_insert(now);
        let arrival = Span::from_micros(arrival_us.wrapping_sub(last_arrival).into());
        if arrival < MIN_ARRIVAL && pn > last_pn && sent.since(last_sent) < MIN_ARRIVAL {
            // Trains that leave together are measured together.
            return None;
        }
        self.last = Some(now);
        pn.checked_sub(last_pn).filter(|n| *n >= MIN_PACKETS)?;
        if arrival < MIN_ARRIVAL || arrival > MAX_ARRIVAL || sent.since(last_sent) * 2 > arrival {
            return None;
        }
        Some(Rate::from_bytes_in(bytes(last_pn + 1..pn + 1)?, arrival))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: fn(Range<u64>) -> Option<u64> = |r| Some(1_500 * (r.end - r.start));

    fn at(us: u64) -> Time {
        Time::from_nanos(us * 1_000)
    }

    #[test]
    fn dispersed_train_yields_the_bottleneck_rate() {
        let mut d = Dispersion::default();
        assert_eq!(d.update(100, at(10), u32::MAX - 50, FULL), None);
        // 40 packets of 1,500 bytes in 480 us, across the wrap of the peer's clock: 1 Gbit/s.
        assert_eq!(d.update(140, at(10), 429, FULL), Some(Rate::from_mbit(1_000)));
    }

    #[test]
    fn dispersion_is_measured_at_most_once_a_millisecond() {
        let mut d = Dispersion::default();
        let asked = [0, 0, 100, 160, 900, 1_000, 1_010].map(|us| d.begin(at(us)));
        assert_eq!(asked, [true, true, true, false, false, true, true]);
    }

    #[test]
    fn paced_or_short_trains_yield_no_rate() {
        let mut d = Dispersion::default();
        d.update(0, at(0), 0, FULL);
        assert_eq!(d.update(40, at(300), 480, FULL), None, "left at the rate at which it arrived");
        assert_eq!(d.update(44, at(300), 1_480, FULL), None, "too few packets");
        assert_eq!(d.update(88, at(300), 1_500, FULL), None, "read in one batch");
        assert_eq!(d.update(43, at(200), 9_000, FULL), None, "an older packet");
    }
}
