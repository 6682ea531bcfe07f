//! How fast a delay rises or falls, smoothed over about a round trip.
//!
//! The slope of a line fitted to samples by least squares, as in PCC Vivace (Dong et al., NSDI 2018, section 5), where the
//! weight of a sample fades with its age, instead of a fit over intervals: so there is an answer at any time, from sums of
//! constant size. TIMELY (Mittal et al., SIGCOMM 2015, section 4.3) averages differences of neighbouring samples to the same
//! end, which says nothing of time where samples are not equally far apart.

use base::{Span, Time};

/// Samples needed before there is an answer.
const ENOUGH: u32 = 4;
/// After a pause of so many time constants nothing is left of what was before it.
const FADED: u64 = 8;

/// The estimator, of `N` delays that are measured at the same times. With samples on a line it gives the line's slope, whatever
/// the weights.
#[derive(Clone, Debug)]
pub struct Trend<const N: usize> {
    /// Weighted sums, times counted from the newest sample and delays from the first, both in seconds.
    weight: f64,
    x: f64,
    xx: f64,
    of: [Delay; N],
    last: Option<Time>,
    samples: u32,
}

/// The sums of one of the delays.
#[derive(Clone, Copy, Debug, Default)]
struct Delay {
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
    /// Knows nothing yet.
    pub fn new() -> Trend<N> {
        Trend { weight: 0.0, x: 0.0, xx: 0.0, of: [Delay::default(); N], last: None, samples: 0 }
    }

    /// Takes in the delays of what left at `sent`, in nanoseconds, against any zero that stays the same. `over`: the time in
    /// which a sample's weight halves, about a round trip. A sample that left before the newest one is passed over.
    pub fn add(&mut self, sent: Time, delays: [i64; N], over: Span) {
        let Some(last) = self.last else { return self.begin(sent, delays) };
        if sent < last {
            return;
        }
        let over = over.as_nanos().max(1);
        let passed = sent.since(last).as_nanos();
        if passed > over.saturating_mul(FADED) {
            return self.begin(sent, delays);
        }
        // What a weight decays to in one step of the implicit Euler method: one half after `over`, no exponential to compute.
        let left = over as f64 / (over as f64 + passed as f64);
        let step = passed as f64 / 1e9;
        // Times are counted from the newest sample on: those of the sums become earlier by the step.
        for (d, delay) in self.of.iter_mut().zip(delays) {
            d.xy = (d.xy - step * d.y) * left;
            d.y = d.y * left + delay.wrapping_sub(d.first) as f64 / 1e9;
        }
        self.xx = (self.xx + step * (step * self.weight - 2.0 * self.x)) * left;
        self.x = (self.x - step * self.weight) * left;
        self.weight = self.weight * left + 1.0;
        self.last = Some(sent);
        self.samples = self.samples.saturating_add(1);
    }

    fn begin(&mut self, sent: Time, delays: [i64; N]) {
        let of = delays.map(|first| Delay { first, ..Delay::default() });
        *self = Trend { weight: 1.0, of, last: Some(sent), samples: 1, ..Trend::new() };
    }

    /// How much each delay rises with the time of sending, in millionths; zero while too little is known. Where a queue grows
    /// because more is sent than leaves it, this is by how many millionths more.
    pub fn millionths(&self) -> [i64; N] {
        let spread = self.weight * self.xx - self.x * self.x;
        // Samples that left together have no slope.
        if self.samples < ENOUGH || spread <= self.weight * self.weight * 1e-18 {
            return [0; N];
        }
        self.of.map(|d| {
            let slope = (self.weight * d.xy - self.x * d.y) / spread;
            // To the nearest. A float that does not fit saturates.
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
    fn a_ramp_has_its_slope_from_the_fourth_sample_on() {
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
    fn a_corner_is_seen_within_about_two_round_trips_and_noise_is_not_taken_for_one() {
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
    fn a_pause_begins_anew_and_what_left_together_says_nothing() {
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
    fn several_delays_do_not_mix() {
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
        fn nothing_overflows(samples in proptest::collection::vec((any::<u64>(), any::<i64>(), any::<u64>()), 0..50)) {
            let mut t = One::new();
            for (sent, delay, over) in samples {
                t.add(Time::from_nanos(sent), delay, Span::from_nanos(over));
                let _ = t.millionths();
            }
        }
    }
}
