//! Bytes that arrive at a receiver per interval, for measuring stalls (`--arrivals`).

use base::{Span, Time};
use serde_json::{Value, json};

/// Length of an interval.
const STEP: Span = Span::from_millis(10);
/// How often the counter is read: reading it in every turn of a busy loop would cost what is measured.
const LOOK: Span = Span::from_millis(1);
/// Intervals at most: an hour.
const MAX_STEPS: usize = 360_000;

/// Payload that arrived in each interval from the beginning of a measurement on.
#[derive(Debug)]
pub struct Arrivals {
    began: Time,
    next: Time,
    seen: u64,
    steps: Vec<u64>,
}

impl Arrivals {
    /// From now on.
    pub const fn new(now: Time) -> Arrivals {
        Arrivals { began: now, next: now, seen: 0, steps: Vec::new() }
    }

    /// Takes in how much has arrived in all; it is asked for at most once a millisecond.
    pub fn look(&mut self, now: Time, received: impl FnOnce() -> Option<u64>) {
        if now < self.next {
            return;
        }
        self.next = now + LOOK;
        let at = (now.since(self.began).as_nanos() / STEP.as_nanos()) as usize;
        let Some(all) = received().filter(|all| *all > self.seen && at < MAX_STEPS) else { return };
        if self.steps.len() <= at {
            self.steps.resize(at + 1, 0);
        }
        self.steps[at] += all - self.seen;
        self.seen = all;
    }

    /// As the laboratory reads it: times are those of the machine's monotonic clock.
    pub fn report(&self) -> Value {
        json!({ "start_ns": self.began.as_nanos(), "interval_ns": STEP.as_nanos(), "bytes_per_interval": self.steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_counted_in_the_interval_they_are_seen() {
        let at = |us| Time::from_nanos(5_000_000_000) + Span::from_micros(us);
        let mut a = Arrivals::new(at(0));
        a.look(at(0), || Some(100));
        a.look(at(500), || panic!("too soon"));
        a.look(at(9_000), || Some(150));
        a.look(at(35_000), || Some(400));
        a.look(at(50_000), || Some(400));
        a.look(at(60_000), || None);
        let r = a.report();
        assert_eq!(r["bytes_per_interval"], json!([150, 0, 0, 250]));
        assert_eq!(
            (r["start_ns"].as_u64(), r["interval_ns"].as_u64()),
            (Some(5_000_000_000), Some(10_000_000))
        );
    }
}
