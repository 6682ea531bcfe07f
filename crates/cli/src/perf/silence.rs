//! Limits how long a client waits for the server's result after the measurement.

use super::refresh::CounterRequest;
use base::{Span, Time};

/// A server that is there has told something within this time, and so many round trips: queues that the load has filled are on
/// the way of its word.
const MIN_SILENCE: Span = Span::from_secs(1);
const ROUND_TRIPS: u64 = 3;
/// And no longer, whatever the round trip was.
const MAX_SILENCE: Span = Span::from_secs(10);
/// How often it is looked whether something came.
const OBSERVE_EVERY: Span = Span::from_millis(100);

/// Looks after a peer from the end of a measurement on.
#[derive(Debug, Default)]
pub struct SilenceDetector {
    /// When to look whether something came.
    request: CounterRequest,
    /// What had come from the peer when it was looked at last, and when that changed.
    heard: Option<(u64, Time)>,
    over: bool,
}

impl SilenceDetector {
    /// The measurement is to be over at `end`.
    pub fn start(&mut self, end: Time) {
        self.request.at = Some(end);
    }

    /// When [`SilenceDetector::is_due`] is to be asked again.
    pub fn next(&self) -> Option<Time> {
        self.request.at
    }

    /// Whether it is time to look, and counters are at hand: `refresh` asks for them, and they are there in the next turn.
    pub fn is_due(&mut self, now: Time, refresh: impl FnOnce()) -> bool {
        let is_due = self.request.is_due(now, refresh);
        if is_due {
            self.request.at = Some(now + OBSERVE_EVERY);
        }
        is_due
    }

    /// Takes in how many packets have come from the peer. Gives how long it has been silent when that is too long.
    pub fn observe(&mut self, now: Time, packets: u64, srtt: Span) -> Option<Span> {
        let (seen, since) = *self.heard.get_or_insert((packets, now));
        if seen != packets {
            self.heard = Some((packets, now));
            return None;
        }
        let silent = now.since(since);
        self.over |= silent >= MIN_SILENCE.max(srtt * ROUND_TRIPS).min(MAX_SILENCE);
        self.over.then_some(silent)
    }

    /// Whether the peer was given up.
    pub fn is_over(&self) -> bool {
        self.over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_is_given_up_after_silence() {
        let at = |ms: u64| Time::from_nanos(5_000_000_000) + Span::from_millis(ms);
        let mut p = SilenceDetector::default();
        assert!(p.next().is_none() && !p.is_due(at(0), || panic!("nothing has begun")));
        p.start(at(1_000));
        assert!(!p.is_due(at(999), || panic!("too early")));
        let mut asked = false;
        assert!(!p.is_due(at(1_000), || asked = true) && asked);
        assert!(p.is_due(at(1_000), || panic!("asked already")));
        assert_eq!(p.next(), Some(at(1_100)));
        let rtt = Span::from_millis(70);
        assert_eq!(p.observe(at(1_000), 7, rtt), None);
        assert_eq!(p.observe(at(1_900), 8, rtt), None);
        assert_eq!(p.observe(at(2_899), 8, rtt), None);
        assert_eq!(p.observe(at(2_900), 8, rtt), Some(Span::from_secs(1)));
        assert!(p.is_over());
        // A long queue is on the way, but there is an end to everything.
        for (srtt, silent) in [(Span::from_secs(2), 6_000), (Span::MAX, 10_000)] {
            let mut p = SilenceDetector::default();
            assert_eq!((p.observe(at(0), 8, srtt), p.observe(at(silent - 1), 8, srtt)), (None, None));
            assert_eq!(p.observe(at(silent), 8, srtt), Some(Span::from_millis(silent)));
        }
    }
}
