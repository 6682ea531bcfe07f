//! The clock of a development tool that talks to real programs.

use base::Time;
use std::time::{Duration, Instant};

/// A point in real time.
#[allow(clippy::disallowed_methods)] // A tool at the edge: this is where its time comes from.
pub fn now() -> Instant {
    Instant::now()
}

/// Waits.
#[allow(clippy::disallowed_methods)]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Time since `start`, as the protocol takes it.
pub fn since(start: Instant) -> Time {
    Time::from_nanos(u64::try_from(now().duration_since(start).as_nanos()).unwrap_or(u64::MAX))
}
