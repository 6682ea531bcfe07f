//! Measures how late packets are delivered compared with the model.

use base::{Span, Time};
use hdrhistogram::Histogram;

use super::record::Lateness;

/// The longest lateness that the histogram resolves.
const MAX_LATENESS_NS: u64 = 60_000_000_000;

/// Lateness below this is that of any timer and not counted as late time.
const LATE_THRESHOLD: Span = Span::from_millis(1);

/// One time window.
#[derive(Debug)]
struct Window {
    start: Time,
    late: Histogram<u64>,
    above: Span,
}

/// Lateness since the last interval, since the last mark, and since the start.
#[derive(Debug)]
pub(super) struct LatenessMeter {
    interval: Window,
    mark: Window,
    total: Window,
    /// The time up to which late time has been counted.
    late_until: Time,
}

impl Window {
    fn new() -> Result<Window, String> {
        // From 1 us, with two digits: 1 % of error, and some 30 KB.
        let late =
            Histogram::new_with_bounds(1_000, MAX_LATENESS_NS, 2).map_err(|error| error.to_string())?;
        Ok(Window { start: Time::ZERO, late, above: Span::ZERO })
    }

    fn lateness(&self, now: Time) -> Lateness {
        Lateness {
            packets: self.late.len(),
            p50_ns: self.late.value_at_quantile(0.5),
            p99_ns: self.late.value_at_quantile(0.99),
            max_ns: self.late.max(),
            above_1ms_ns: self.above.as_nanos(),
            span_ns: now.since(self.start).as_nanos(),
        }
    }

    fn restart(&mut self, now: Time) {
        self.start = now;
        self.late.reset();
        self.above = Span::ZERO;
    }
}

impl LatenessMeter {
    /// An empty meter.
    pub(super) fn new() -> Result<LatenessMeter, String> {
        let (interval, mark, total) = (Window::new()?, Window::new()?, Window::new()?);
        Ok(LatenessMeter { interval, mark, total, late_until: Time::ZERO })
    }

    /// Records the delivery of a packet that was due at `due`.
    pub(super) fn record_delivery(&mut self, due: Time, now: Time) {
        self.interval.late.saturating_record(now.since(due).as_nanos());
        let late_from = (due + LATE_THRESHOLD).max(self.late_until);
        if now > late_from {
            self.interval.above += now.since(late_from);
            self.late_until = now;
        }
    }

    /// Ends the interval.
    pub(super) fn end_interval(&mut self, now: Time) -> Lateness {
        let lateness = self.interval.lateness(now);
        for window in [&mut self.mark, &mut self.total] {
            // The bounds are the same, so this cannot fail.
            let _ = window.late.add(&self.interval.late);
            window.above += self.interval.above;
        }
        self.interval.restart(now);
        lateness
    }

    /// Moves the start of an interval without packets.
    pub(super) fn skip_to(&mut self, now: Time) {
        self.interval.start = now;
    }

    /// Lateness since the last mark, after the interval has been ended.
    pub(super) fn mark(&mut self, now: Time) -> Lateness {
        let lateness = self.mark.lateness(now);
        self.mark.restart(now);
        lateness
    }

    /// Lateness since the start, after the interval has been ended.
    pub(super) fn total(&self, now: Time) -> Lateness {
        self.total.lateness(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_quantiles_and_late_time_are_measured() {
        let at = |us: u64| Time::from_nanos(us * 1_000);
        let mut meter = LatenessMeter::new().unwrap();
        for n in 0..98 {
            meter.record_delivery(at(n), at(n + 50));
        }
        // Two packets due at 2 ms and 4 ms, both handed over at 6 ms: late from 3 ms to 6 ms.
        meter.record_delivery(at(2_000), at(6_000));
        meter.record_delivery(at(4_000), at(6_000));
        let lateness = meter.end_interval(at(10_000));
        let near = |value: u64, us: u64| value >= us * 1_000 && value <= us * 1_010;
        assert!(near(lateness.p50_ns, 50) && near(lateness.max_ns, 4_000), "{lateness:?}");
        assert_eq!((lateness.packets, lateness.above_1ms_ns, lateness.span_ns), (100, 3_000_000, 10_000_000));
        assert_eq!(meter.end_interval(at(20_000)).packets, 0);
        assert_eq!(meter.mark(at(20_000)).above_1ms_ns, 3_000_000);
        assert_eq!((meter.mark(at(30_000)).packets, meter.total(at(30_000)).packets), (0, 100));
    }

    #[test]
    fn window_without_packets_has_zero_lateness() {
        let mut meter = LatenessMeter::new().unwrap();
        assert_eq!(meter.end_interval(Time::ZERO), Lateness::default());
    }
}
