//! Estimates the round-trip time (RFC 6298, RFC 9002) and the one-way queueing delay.

use base::{Span, Time};

/// The timer granularity that time-outs never go below (RFC 9002, section 6.1.2).
pub const GRANULARITY: Span = Span::from_millis(1);
/// Round-trip time assumed before the first sample (RFC 9002 uses 333 ms).
pub const INITIAL_RTT: Span = Span::from_millis(333);

/// Estimator of RFC 6298 with the lowest value seen.
#[derive(Clone, Debug)]
pub struct Rtt {
    latest: Option<Span>,
    /// The last sample with what the receiver added.
    raw: Span,
    smoothed: Span,
    variation: Span,
    min: Span,
}

impl Default for Rtt {
    fn default() -> Rtt {
        Rtt::new()
    }
}

impl Rtt {
    /// Knows nothing yet.
    pub const fn new() -> Rtt {
        Rtt {
            latest: None,
            raw: Span::ZERO,
            smoothed: INITIAL_RTT,
            variation: Span::from_nanos(INITIAL_RTT.as_nanos() / 2),
            min: Span::MAX,
        }
    }

    /// Takes a sample, and the delay that the receiver says it added.
    ///
    /// RFC 9002, section 5.2: the minimum takes samples as they are, since a peer's word must not lower it; and
    /// section 5.3: taking the delay off does not lead below the minimum. There the sample is left as it was; here it is the
    /// minimum, because a sample that a microsecond of rounding spares the subtraction looks like a queue.
    pub fn update(&mut self, raw: Span, delay: Span) {
        self.raw = raw;
        self.min = self.min.min(raw.max(Span::from_micros(1)));
        let sample = (raw - delay).max(self.min);
        if self.latest.is_none() {
            self.smoothed = sample;
            self.variation = sample / 2;
        } else {
            let off = Span::from_nanos(self.smoothed.as_nanos().abs_diff(sample.as_nanos()));
            self.variation = (self.variation * 3 + off) / 4;
            self.smoothed = (self.smoothed * 7 + sample) / 8;
        }
        self.latest = Some(sample);
    }

    /// Whether there was any sample.
    pub const fn is_known(&self) -> bool {
        self.latest.is_some()
    }
    /// The last sample.
    pub const fn latest(&self) -> Option<Span> {
        self.latest
    }
    /// The smoothed value.
    pub const fn smoothed(&self) -> Span {
        self.smoothed
    }
    /// How long packets take to be reported now. The receiver's part counts: packets that wait in a slow host are not lost
    /// (RFC 9002, section 6.1.2, takes the larger of the two, too).
    pub fn until_reported(&self) -> Span {
        self.smoothed.max(self.raw)
    }
    /// The lowest sample, or the assumed value when there was none.
    pub fn min(&self) -> Span {
        if self.min == Span::MAX { self.smoothed } else { self.min }
    }
    /// Probe time-out without the receiver's delay (RFC 9002, section 6.2.1).
    pub fn probe_timeout(&self) -> Span {
        self.smoothed + (self.variation * 4).max(GRANULARITY)
    }
}

/// Half a window of the running minimum: clocks drift apart by tens of microseconds a second, so an old
/// minimum must fade.
const MIN_WINDOW: Span = Span::from_secs(10);

/// One-way delay above its lowest, from the receiver's time stamps. The clocks of the two ends need not
/// agree: only differences count.
#[derive(Clone, Debug)]
pub struct OneWayDelay {
    lowest: Option<i64>,
    previous: Option<i64>,
    window_start: Time,
    reference: Option<(u64, u32)>,
    latest: i64,
}

impl Default for OneWayDelay {
    fn default() -> OneWayDelay {
        OneWayDelay::new()
    }
}

impl OneWayDelay {
    /// Knows nothing yet.
    pub const fn new() -> OneWayDelay {
        OneWayDelay { lowest: None, previous: None, window_start: Time::ZERO, reference: None, latest: 0 }
    }

    /// A packet sent at `sent` by our clock arrived at `arrival_us` (wrapping) by the peer's. Returns the
    /// delay above the lowest of the last 10 to 20 s.
    pub fn update(&mut self, now: Time, sent: Time, arrival_us: u32) -> Span {
        let sent_us = sent.as_nanos() / 1_000;
        let (ref_sent, ref_arrival) = *self.reference.get_or_insert((sent_us, arrival_us));
        // Difference of two differences: small, so 32 bits of wrapping microseconds (71 minutes) suffice.
        let here = (sent_us.wrapping_sub(ref_sent)) as u32;
        let there = arrival_us.wrapping_sub(ref_arrival);
        let delay = i64::from(there.wrapping_sub(here) as i32);
        self.latest = delay;
        if now.since(self.window_start) > MIN_WINDOW {
            self.previous = self.lowest.take();
            self.window_start = now;
        }
        let lowest = self.lowest.map_or(delay, |l| l.min(delay));
        self.lowest = Some(lowest);
        let floor = self.previous.map_or(lowest, |p| p.min(lowest));
        Span::from_micros((delay - floor).max(0) as u64)
    }

    /// The latest delay in microseconds, against that of the first packet: minima that fade do not move it.
    pub const fn latest(&self) -> i64 {
        self.latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rtt_smoothing_follows_rfc_6298() {
        let mut r = Rtt::new();
        assert_eq!(r.smoothed(), INITIAL_RTT);
        r.update(Span::from_millis(80), Span::ZERO);
        assert_eq!((r.smoothed(), r.probe_timeout()), (Span::from_millis(80), Span::from_millis(240)));
        r.update(Span::from_millis(170), Span::from_millis(10));
        // A delay that would lead below the minimum is not believed.
        r.update(Span::from_millis(90), Span::from_millis(50));
        assert_eq!(r.latest(), Some(Span::from_millis(80)));
        assert_eq!(r.smoothed(), (Span::from_millis(90) * 7 + Span::from_millis(80)) / 8);
        assert_eq!(r.min(), Span::from_millis(80));
        assert_eq!(r.until_reported(), Span::from_millis(90));
    }

    #[test]
    fn queue_delay_survives_peer_clock_wraparound() {
        let mut d = OneWayDelay::new();
        let at = |us: u64| Time::from_nanos(us * 1000);
        assert_eq!(d.update(at(0), at(0), u32::MAX - 100), Span::ZERO);
        assert_eq!(d.update(at(1000), at(1000), 899 + 500), Span::from_micros(500));
        assert_eq!(d.update(at(2000), at(2000), 1899 - 50), Span::ZERO);
        assert_eq!(d.update(at(3000), at(3000), 2899), Span::from_micros(50));
    }
}
