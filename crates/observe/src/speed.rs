//! Estimates the speed and the remaining time of a transfer.

use crate::History;
use base::{Span, Time};

/// What a file takes beside its bytes: to be opened, named and placed. Measured with files of 1 KiB over loopback, 10 to 20 us.
const FILE_TIME: f64 = 20e-6;
/// Nothing is said before so much is known.
const LEAST: Span = Span::from_millis(900);
/// The rate is of the last half of the transfer, but of no more than this.
const MOST: Span = Span::from_secs(10);
/// How far apart samples are at least.
const STEP: Span = Span::from_millis(100);
/// Samples kept: those of [`MOST`], and the one before.
const MAX_SAMPLES: usize = 128;

/// Counters at a moment.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Time,
    bytes: u64,
    files: u64,
}

/// Rates of a transfer over its last seconds, from cumulative counters.
#[derive(Clone, Debug)]
pub struct Speed {
    started: Option<Time>,
    samples: History<Sample>,
}

impl Default for Speed {
    fn default() -> Speed {
        Speed { started: None, samples: History::new(STEP, MAX_SAMPLES) }
    }
}

impl Speed {
    /// The counters now: payload that the other end has confirmed (or that was received), and files.
    pub fn add(&mut self, at: Time, bytes: u64, files: u64) {
        self.started.get_or_insert(at);
        self.samples.push(at, Sample { at, bytes, files });
    }

    /// The samples that rates are made of: both ends of the last half of the transfer, 10 s at most.
    fn ends(&self) -> Option<(Sample, Sample)> {
        let last = self.samples.last()?.1;
        let age = last.at.since(self.started?);
        if age < LEAST {
            return None;
        }
        let window = (age / 2).clamp(LEAST, MOST);
        let (_, first) = self.samples.before(last.at, window, |s| Some(*s))?;
        (last.at > first.at).then_some((first, last))
    }

    /// Bytes a second; `None` before there is anything to tell.
    pub fn bytes_per_second(&self) -> Option<u64> {
        let (a, b) = self.ends()?;
        Some(per_second(b.bytes.saturating_sub(a.bytes), b.at.since(a.at)))
    }

    /// Files a second; `None` before there is anything to tell.
    pub fn files_per_second(&self) -> Option<u64> {
        let (a, b) = self.ends()?;
        Some(per_second(b.files.saturating_sub(a.files), b.at.since(a.at)))
    }

    /// Seconds until so many bytes and files more are through, if it goes on as it went lately; `None` while nothing moves.
    pub fn seconds_left(&self, bytes: u64, files: u64) -> Option<f64> {
        let (a, b) = self.ends()?;
        let seconds = b.at.since(a.at).as_secs_f64();
        // In as many bytes as go over in that time: next to nothing on a slow path, where bytes alone count, and they come evenly.
        let file_work = b.bytes.saturating_sub(a.bytes) as f64 / seconds * FILE_TIME;
        let work = |bytes: u64, files: u64| bytes as f64 + file_work * files as f64;
        let done = work(b.bytes.saturating_sub(a.bytes), b.files.saturating_sub(a.files));
        (done > 0.0).then(|| work(bytes, files) * seconds / done)
    }
}

fn per_second(n: u64, span: Span) -> u64 {
    (n as f64 / span.as_secs_f64()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn no_rate_is_reported_within_the_first_second() {
        let mut s = Speed::default();
        for k in 0..9 {
            s.add(at(k * 100), k * 1000, 0);
            assert_eq!((s.bytes_per_second(), s.seconds_left(1, 1)), (None, None));
        }
        s.add(at(900), 9000, 0);
        assert_eq!(s.bytes_per_second(), Some(10_000));
    }

    #[test]
    fn rate_follows_changes_within_seconds() {
        let mut s = Speed::default();
        let (mut bytes, mut k) = (0, 0);
        for rate in [10, 1000, 200] {
            for _ in 0..120 {
                s.add(at(k * 100), bytes, 0);
                (bytes, k) = (bytes + rate * 100, k + 1);
            }
            assert_eq!(s.bytes_per_second(), Some(rate * 1000), "{rate}");
        }
    }

    #[test]
    fn small_files_have_their_own_rate_and_remaining_time() {
        let mut s = Speed::default();
        for k in 0..50 {
            s.add(at(k * 100), k * 100, k * 100);
        }
        assert_eq!(s.files_per_second(), Some(1000));
        let left = s.seconds_left(2000, 2000).expect("it moves");
        assert!((left - 2.0).abs() < 0.01, "{left}");
    }

    proptest! {
        /// However often it is told, a constant rate is found, and with it the time left.
        #[test]
        fn constant_rate_is_independent_of_the_sampling_interval(steps in prop::collection::vec(1_u64..700, 20..400)) {
            let mut s = Speed::default();
            let mut now = 0;
            for step in steps {
                now += step;
                s.add(at(now), now * 125, 0);
            }
            if let Some(rate) = s.bytes_per_second() {
                prop_assert!((124_900..=125_100).contains(&rate), "{}", rate);
                let left = s.seconds_left(1_250_000, 0).expect("it moves");
                prop_assert!((left - 10.0).abs() < 0.01, "{}", left);
            }
        }
    }
}
