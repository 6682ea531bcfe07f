//! Measures the delivery rates of flows from their counters.

use base::{Rate, Span, Time};
use std::collections::{BTreeMap, VecDeque};

/// How often counters are looked at.
const EVERY: Span = Span::from_millis(500);
/// Over how long a rate is measured at least, once there was so much time.
const OVER: Span = Span::from_secs(1);
/// A rate over less than this would tell of single packets.
const LEAST: Span = Span::from_millis(100);
/// Looks that are kept: so many that the oldest one is always [`OVER`] old.
const KEPT: usize = 4;
/// Flows that are looked at; of more, some have no rate.
const MAX_FLOWS: usize = 100_000;

/// A flow: its connection's number, and its own in it.
pub(crate) type Key = (u64, u8);

/// Samples of the counters.
#[derive(Debug, Default)]
pub(crate) struct RateMeter {
    samples: VecDeque<(Time, BTreeMap<Key, u64>)>,
}

impl RateMeter {
    /// Whether it is time to look again.
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        self.samples.back().is_none_or(|(at, _)| now.since(*at) >= EVERY)
    }

    /// Bytes that each flow has delivered so far.
    pub fn sample(&mut self, now: Time, delivered: impl Iterator<Item = (Key, u64)>) {
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back((now, delivered.take(MAX_FLOWS).collect()));
    }

    /// What a flow that has delivered `bytes` by now delivered lately, and over how long that is.
    pub fn rate(&self, now: Time, flow: Key, bytes: u64) -> Option<(Rate, Span)> {
        let age = |at: Time| now.since(at);
        let known = || self.samples.iter().filter_map(|(at, all)| Some((*at, *all.get(&flow)?)));
        let long_enough = known().rev().find(|(at, _)| age(*at) >= OVER);
        let (at, before) = long_enough.or_else(|| known().next())?;
        let over = age(at);
        (over >= LEAST).then(|| (Rate::from_bytes_in(bytes.saturating_sub(before), over), over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_covers_the_last_second() {
        let (mut m, flow) = (RateMeter::default(), (3, 0));
        let at = |ms: u64| Time::ZERO + Span::from_millis(ms);
        assert!(m.is_due(at(0)));
        m.sample(at(0), [(flow, 0)].into_iter());
        assert!(!m.is_due(at(499)) && m.is_due(at(500)));
        assert_eq!(m.rate(at(50), flow, 9), None, "too early");
        assert_eq!(m.rate(at(200), (4, 0), 9), None, "unknown");
        assert_eq!(
            m.rate(at(200), flow, 200),
            Some((Rate::from_bytes_per_sec(1_000), Span::from_millis(200)))
        );
        // A megabyte a second, then nothing.
        (1..=20).for_each(|n| m.sample(at(n * 500), [(flow, n * 500_000)].into_iter()));
        let (rate, over) = m.rate(at(10_200), flow, 10_200_000).unwrap();
        assert_eq!((rate, over), (Rate::from_bytes_per_sec(1_000_000), Span::from_millis(1_200)));
        (21..=24).for_each(|n| m.sample(at(n * 500), [(flow, 10_000_000)].into_iter()));
        assert_eq!(m.rate(at(12_000), flow, 10_000_000).unwrap().0, Rate::ZERO);
    }
}
