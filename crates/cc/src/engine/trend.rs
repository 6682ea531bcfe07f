//! Estimates the slope of delays over time, smoothed over about a round trip.
//!
//! The slope of a least-squares line through the samples, as in PCC Vivace (Dong et al., NSDI 2018, section 5), but
//! with weights that decay with age instead of intervals, so that it is available at any time, from sums of constant
//! size. TIMELY (Mittal et al., SIGCOMM 2015, section 4.3) averages differences of successive samples instead, which
//! ignores time where samples are not equally spaced.

use base::{Span, Time};

/// Samples needed for an estimate.
const MIN_SAMPLES: u32 = 4;
/// After a pause of this many time constants the estimate restarts.
const RESTART_AFTER: u64 = 8;

/// Estimates the slopes of `N` delays measured at the same times. Samples on a line give its slope, whatever the
/// weights.
#[derive(Clone, Debug)]
pub struct Trend<const N: usize> {
    /// Weighted sums, with times relative to the newest sample and delays relative to the first, both in seconds.
    weight: f64,
    x: f64,
    xx: f64,
    sums: [DelaySums; N],
    last: Option<Time>,
    samples: u32,
}

/// The sums for one of the delays.
#[derive(Clone, Copy, Debug, Default)]
struct DelaySums {
    y: f64,
    xy: f64,
    first: i64,
}

impl<const N: usize> Default for Trend<N> {
    fn default() -> Trend<N> {
        Trend::new()
    }
}

impl<const N: usize> Trend<N> {
    /// An estimator without samples.
    pub fn new() -> Trend<N> {
        Trend { weight: 0.0, x: 0.0, xx: 0.0, sums: [DelaySums::default(); N], last: None, samples: 0 }
    }

    /// Adds the delays of a packet sent at `sent`, in nanoseconds relative to any constant. `over` is the time in
    /// which a sample's weight halves, about a round trip. A sample sent before the newest one is ignored.
    pub fn add(&mut self, sent: Time, delays: [i64; N], over: Span) {
        let Some(last) = self.last else { return self.restart(sent, delays) };
        if sent < last {
            return;
        }
        let over = over.as_nanos().max(1);
        let passed = sent.since(last).as_nanos();
        if passed > over.saturating_mul(RESTART_AFTER) {
            return self.restart(sent, delays);
        }
        // Decay of the weights by one step of the implicit Euler method: one half after `over`, without an
        // exponential.
        let left = over as f64 / (over as f64 + passed as f64);
        let step = passed as f64 / 1e9;
        // Times are relative to the newest sample, so those in the sums move back by the step.
        for (d, delay) in self.sums.iter_mut().zip(delays) {
            d.xy = (d.xy - step * d.y) * left;
            d.y = d.y * left + delay.wrapping_sub(d.first) as f64 / 1e9;
        }
        self.xx = (self.xx + step * (step * self.weight - 2.0 * self.x)) * left;
        self.x = (self.x - step * self.weight) * left;
        self.weight = self.weight * left + 1.0;
        self.last = Some(sent);
        self.samples = self.samples.saturating_add(1);
    }

    fn restart(&mut self, sent: Time, delays: [i64; N]) {
        let of = delays.map(|first| DelaySums { first, ..DelaySums::default() });
        *self = Trend { weight: 1.0, sums: of, last: Some(sent), samples: 1, ..Trend::new() };
    }

    /// The slope of each delay over the time of sending, in millionths; zero while unknown. Where a queue grows
    /// because more is sent than leaves it, this is the relative excess.
    pub fn millionths(&self) -> [i64; N] {
        let spread = self.weight * self.xx - self.x * self.x;
        // Samples of the same time have no slope.
        if self.samples < MIN_SAMPLES || spread <= self.weight * self.weight * 1e-18 {
            return [0; N];
        }
        self.sums.map(|d| {
            let slope = (self.weight * d.xy - self.x * d.y) / spread;
            // Rounded to the nearest; a float that does not fit saturates.
            (slope * 1e6 + 0.5_f64.copysign(slope)) as i64
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RTT: Span = Span::from_millis(10);

    /// The trend of one delay.
    #[derive(Clone)]
    struct One(Trend<1>);

    impl One {
        fn new() -> One {
            One(Trend::new())
        }
        fn add(&mut self, sent: Time, delay: i64, over: Span) {
            self.0.add(sent, [delay], over);
        }
        fn millionths(&self) -> i64 {
            self.0.millionths()[0]
        }
    }

    fn at(us: u64) -> Time {
        Time::ZERO + Span::from_secs(1_000_000) + Span::from_micros(us)
    }

    #[test]
    fn ramp_has_its_slope_from_the_fourth_sample_on() {
        for slope in [-500_000, -1_000, 0, 10, 3_000, 1_000_000] {
            let mut t = One::new();
            for n in 0..200u64 {
                // Unequal steps.
                let us = n * 700 + n % 3 * 200;
                t.add(at(us), 5_000_000 + us as i64 * slope / 1_000, RTT);
                let got = t.millionths();
                assert!(if n < 3 { got == 0 } else { (got - slope).abs() <= 2 }, "{slope}: {got}");
            }
        }
    }

    #[test]
    fn change_of_slope_shows_within_two_round_trips_and_noise_does_not() {
        let mut t = One::new();
        let mut rng = base::Rng::from_u64(1);
        let mut noise = || rng.below(20_000) as i64 - 10_000;
        let mut worst = 0;
        for n in 0..500u64 {
            t.add(at(n * 1_000), noise(), RTT);
            if n > 50 {
                worst = worst.max(t.millionths().abs());
            }
        }
        // 10 us of noise over 10 ms: single differences are up to 20,000.
        assert!(worst < 3_000, "{worst}");
        let mut rises = None;
        for n in 500..600u64 {
            t.add(at(n * 1_000), (n as i64 - 500) * 50_000 + noise(), RTT);
            if rises.is_none() && t.millionths() > 25_000 {
                rises = Some(n - 500);
            }
        }
        assert!(rises.is_some_and(|ms| ms <= 20), "{rises:?}");
        assert!((45_000..55_000).contains(&t.millionths()), "{}", t.millionths());
    }

    #[test]
    fn pause_restarts_the_fit_and_simultaneous_samples_have_no_slope() {
        let mut t = One::new();
        (0..20).for_each(|n| t.add(at(n * 1_000), n as i64 * 100_000, RTT));
        assert!(t.millionths() > 90_000);
        t.add(at(1_000_000), 0, RTT);
        assert_eq!(t.millionths(), 0);
        (0..20).for_each(|n| t.add(at(1_000_000), n * 1_000, RTT));
        assert_eq!(t.millionths(), 0);
        // Late reports of earlier packets change nothing.
        let mut before = t.clone();
        before.add(at(500), 77, RTT);
        assert_eq!(before.millionths(), t.millionths());
    }

    #[test]
    fn delays_are_fitted_independently() {
        let (mut both, mut rise, mut fall) = (Trend::new(), One::new(), One::new());
        for n in 0..50_i64 {
            let sent = at(n as u64 * 700 + n as u64 % 3 * 200);
            let delays = [n * n * 1_000, 9_000_000 - n * 70_000];
            both.add(sent, delays, RTT);
            rise.add(sent, delays[0], RTT);
            fall.add(sent, delays[1], RTT);
            assert_eq!(both.millionths(), [rise.millionths(), fall.millionths()]);
        }
        assert!(rise.millionths() > 0 && fall.millionths() < 0);
    }

    proptest! {
        #[test]
        fn arbitrary_samples_do_not_overflow(samples in proptest::collection::vec((any::<u64>(), any::<i64>(), any::<u64>()), 0..50)) {
            let mut t = One::new();
            for (sent, delay, over) in samples {
                t.add(Time::from_nanos(sent), delay, Span::from_nanos(over));
                let _ = t.millionths();
            }
        }
    }
}
