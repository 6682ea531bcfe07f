//! Records the one-way delays of a lane's recent packets by their time of sending.

use base::{Span, Time};
use std::collections::VecDeque;

/// Samples kept at most, and how far apart they are at least: a second.
const MAX_SAMPLES: usize = 1_024;
const SPACING: Span = Span::from_millis(1);

/// Delays by time of sending, oldest first.
#[derive(Clone, Debug, Default)]
pub struct DelayTrace {
    on: bool,
    samples: VecDeque<(Time, i64)>,
}

/// Count, mean and variance of the samples of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// How many.
    pub n: f64,
    /// Their mean, in microseconds.
    pub mean: f64,
    /// Their variance.
    pub variance: f64,
}

impl DelayTrace {
    /// Begins to keep samples.
    pub fn start(&mut self) {
        self.on = true;
    }

    /// A packet that left at `sent` took `delay` microseconds (against any fixed value).
    pub fn add(&mut self, sent: Time, delay: i64) {
        if !self.on || self.samples.back().is_some_and(|(t, _)| sent < *t + SPACING) {
            return;
        }
        if self.samples.len() == MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((sent, delay));
    }

    /// Forgets all: the path is another one.
    pub fn clear(&mut self) {
        self.samples.clear();
    }

    /// When the newest sample left.
    pub fn newest(&self) -> Option<Time> {
        self.samples.back().map(|(t, _)| *t)
    }

    /// The least of what is kept.
    pub fn least(&self) -> Option<i64> {
        self.samples.iter().map(|(_, d)| *d).min()
    }

    /// Of packets that left from `from` until before `until`.
    pub fn summary(&self, from: Time, until: Time) -> Summary {
        let of_time = || {
            let mine = |(t, _): &&(Time, i64)| *t >= from && *t < until;
            self.samples.iter().filter(mine).map(|(_, d)| *d as f64)
        };
        let n = of_time().count() as f64;
        let mean = of_time().sum::<f64>() / n.max(1.0);
        let variance = of_time().map(|d| (d - mean) * (d - mean)).sum::<f64>() / n.max(1.0);
        Summary { n, mean, variance }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_samples_are_bounded_and_summarised_by_time() {
        let at = |ms: u64| Time::ZERO + Span::from_millis(ms);
        let mut t = DelayTrace::default();
        t.add(at(0), 5);
        assert_eq!(t.newest(), None, "nothing is kept before it is wanted");
        t.start();
        for ms in 0..5_000 {
            t.add(at(ms), (ms % 2) as i64);
            t.add(at(ms) + Span::from_micros(10), 1_000);
        }
        assert_eq!((t.samples.len(), t.least(), t.newest()), (MAX_SAMPLES, Some(0), Some(at(4_999))));
        let s = t.summary(at(4_500), at(4_600));
        assert_eq!(s, Summary { n: 100.0, mean: 0.5, variance: 0.25 });
        assert_eq!(t.summary(at(0), at(10)).n, 0.0);
        t.clear();
        assert_eq!(t.least(), None);
    }
}
