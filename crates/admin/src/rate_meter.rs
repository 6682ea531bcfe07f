//! Measures the delivery rates of flows by sampling their counters of delivered bytes.

use base::{Rate, Span, Time};
use observe::History;
use std::collections::BTreeMap;

/// Time between samples.
const SAMPLE_INTERVAL: Span = Span::from_millis(500);
/// A rate is measured over the shortest interval of at least this length that starts with a sample. A younger flow's is
/// measured since its first sample.
const WINDOW: Span = Span::from_secs(1);
/// Over less than this no rate is given, since it would depend on single packets.
const MIN_WINDOW: Span = Span::from_millis(100);
/// Samples that are kept: enough that the oldest one is at least [`WINDOW`] old.
const MAX_SAMPLES: usize = 4;
/// Most flows that are sampled; further ones have no rate.
const MAX_FLOWS: usize = 100_000;

/// A flow: the number of its connection, and its own number within that.
pub(crate) type FlowKey = (u64, u8);

/// The latest samples of all flows' counters.
#[derive(Debug)]
pub(crate) struct RateMeter {
    samples: History<BTreeMap<FlowKey, u64>>,
}

impl Default for RateMeter {
    fn default() -> RateMeter {
        RateMeter { samples: History::new(Span::ZERO, MAX_SAMPLES) } // `is_due` keeps them apart
    }
}

impl RateMeter {
    /// Whether it is time for the next sample.
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        self.samples.last().is_none_or(|(at, _)| now.since(*at) >= SAMPLE_INTERVAL)
    }

    /// Adds a sample: the bytes that each flow has delivered so far.
    pub fn sample(&mut self, now: Time, delivered: impl Iterator<Item = (FlowKey, u64)>) {
        self.samples.push(now, delivered.take(MAX_FLOWS).collect());
    }

    /// The latest delivery rate of a flow that has delivered `bytes` by now, and the time over which it was measured. `None`:
    /// the flow was not sampled, or too short a time ago.
    pub fn rate(&self, now: Time, flow: FlowKey, bytes: u64) -> Option<(Rate, Span)> {
        let (at, before) = self.samples.before(now, WINDOW, |all| all.get(&flow).copied())?;
        let over = now.since(at);
        (over >= MIN_WINDOW).then(|| (Rate::from_bytes_in(bytes.saturating_sub(before), over), over))
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
