//! TIMELY (Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter", SIGCOMM 2015): steers a rate by
//! the gradient of the round-trip time.
//!
//! Deviations from the paper's Algorithm 1:
//! * **Thresholds are relative to the minimum round-trip time**, measured unless `base_rtt` gives it. The paper's are
//!   absolute, for fabrics of some 20 us; these have to work over any distance.
//! * **One update per feedback that completes a segment.** The paper has one per segment, but feedback for several
//!   segments has one round-trip sample.
//! * **A gradient reduces the rate by half at most.** Timers of programs cause single gradients above one.
//! * **Losses halve the rate**, once a round trip, since the paper's fabric is lossless.
//! * **The rate grows only while it is used.**

use super::paced::{PacedFlow, clamp_rate};
use super::window::INITIAL_WINDOW;
use crate::registry::{Definition, Kind, Needs, ParamDef, Params};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals};
use base::{Rate, Span, Time};

const SHORT: Span = Span::from_micros(1);
const LONG: Span = Span::from_secs(10);

/// The registration.
pub(crate) const DEFINITION: Definition = Definition {
    name: "timely",
    summary: "TIMELY (SIGCOMM 2015): a rate steered by the gradient of the round trip; for data centres without marks",
    params: &[
        INITIAL_WINDOW,
        ParamDef {
            name: "t_low",
            help: "queueing delay below which the rate grows whatever the gradient is (T_low)",
            kind: Kind::Span { min: SHORT, max: LONG, default: Span::from_micros(50) },
        },
        ParamDef {
            name: "t_high",
            help: "queueing delay above which the rate shrinks whatever the gradient is (T_high); at least t_low",
            kind: Kind::Span { min: SHORT, max: LONG, default: Span::from_micros(500) },
        },
        ParamDef {
            name: "step",
            help: "growth at each completed segment (delta); auto is 10 Mbit/s",
            kind: Kind::Rate { min: Rate::from_bits_per_sec(1_000), max: Rate::from_mbit(100_000) },
        },
        ParamDef {
            name: "alpha",
            help: "weight of a new difference of round trips in their average",
            kind: Kind::Share { min: 100, max: 100_000, default: 87_500 },
        },
        ParamDef {
            name: "beta",
            help: "what a gradient of one, or an infinite delay, takes away",
            kind: Kind::Share { min: 1_000, max: 100_000, default: 80_000 },
        },
        ParamDef {
            name: "segment",
            help: "bytes that make a completion",
            kind: Kind::Count { unit: "bytes", min: 1_500, max: 1 << 20, default: 16_384 },
        },
        ParamDef {
            name: "base_rtt",
            help: "round trip of the idle path; 0us for the least that is measured",
            kind: Kind::Span { min: Span::ZERO, max: LONG, default: Span::ZERO },
        },
    ],
    needs: Needs::NOTHING,
    code: "",
    build: &|params, info, _| Box::new(Timely::new(Config::from_params(params), info)),
};

/// Default additive increase per completion (section 5).
const STEP: Rate = Rate::from_mbit(10);
/// Completions without a rising gradient after which growth is `HAI_STEPS` times as large (section 4.3).
const HAI_AFTER: u32 = 5;
const HAI_STEPS: u64 = 5;
/// Smallest factor for a single gradient.
const MIN_DECREASE_FACTOR: f64 = 0.5;
/// Shortest round-trip time for normalizing gradients.
const MIN_RTT: Span = Span::from_micros(1);

#[derive(Clone, Copy, Debug)]
struct Config {
    initial: u64,
    t_low: Span,
    t_high: Span,
    step: Rate,
    alpha: f64,
    beta: f64,
    segment: u64,
    base_rtt: Span,
}

impl Config {
    fn from_params(p: &Params) -> Config {
        Config {
            initial: p.count("initial_window"),
            t_low: p.span("t_low"),
            t_high: p.span("t_high").max(p.span("t_low")),
            step: p.rate("step").unwrap_or(STEP),
            alpha: p.share("alpha") as f64 / 100_000.0,
            beta: p.share("beta") as f64 / 100_000.0,
            segment: p.count("segment"),
            base_rtt: p.span("base_rtt"),
        }
    }
}

/// TIMELY.
#[derive(Debug)]
pub struct Timely {
    config: Config,
    paced: PacedFlow,
    rate: Rate,
    prior_rtt: Option<Span>,
    /// Moving average of the differences of round-trip times, in nanoseconds (`rtt_diff`).
    rtt_diff: f64,
    /// Successive completions without a rising round-trip time.
    completions_without_rise: u32,
    /// Bytes acknowledged since the last completion.
    acked: u64,
    state: &'static str,
}

impl Timely {
    fn new(config: Config, info: &PathInfo) -> Timely {
        let (paced, rate) = PacedFlow::new(info, config.initial);
        Timely {
            config,
            paced,
            rate,
            prior_rtt: None,
            rtt_diff: 0.0,
            completions_without_rise: 0,
            acked: 0,
            state: "increase",
        }
    }

    /// Algorithm 1.
    fn on_completion(&mut self, rtt: Span, base: Span) {
        let c = self.config;
        let prior = self.prior_rtt.replace(rtt).unwrap_or(rtt);
        let new_diff = rtt.as_nanos() as f64 - prior.as_nanos() as f64;
        self.rtt_diff = (1.0 - c.alpha) * self.rtt_diff + c.alpha * new_diff;
        let gradient = self.rtt_diff / base.max(MIN_RTT).as_nanos() as f64;
        let (low, high) = (base + c.t_low, base + c.t_high);
        if rtt < low {
            self.increase(1, "increase");
        } else if rtt > high {
            self.completions_without_rise = 0;
            let over = 1.0 - high.as_nanos() as f64 / rtt.as_nanos() as f64;
            self.multiply(1.0 - c.beta * over, "above_t_high");
        } else if gradient <= 0.0 {
            self.completions_without_rise = self.completions_without_rise.saturating_add(1);
            match self.completions_without_rise {
                HAI_AFTER.. => self.increase(HAI_STEPS, "hyper_increase"),
                _ => self.increase(1, "gradient:increase"),
            }
        } else {
            self.completions_without_rise = 0;
            self.multiply((1.0 - c.beta * gradient).max(MIN_DECREASE_FACTOR), "gradient:decrease");
        }
    }

    fn increase(&mut self, steps: u64, state: &'static str) {
        self.state = state;
        if self.paced.is_used() {
            let more = self.config.step.bytes_per_sec().saturating_mul(steps);
            let rate = self.rate.bytes_per_sec().saturating_add(more);
            self.rate = clamp_rate(Rate::from_bytes_per_sec(rate));
        }
    }

    fn multiply(&mut self, factor: f64, state: &'static str) {
        self.state = state;
        let rate = self.rate.bytes_per_sec() as f64 * factor.clamp(0.0, 1.0);
        self.rate = clamp_rate(Rate::from_bytes_per_sec(rate as u64));
    }
}

impl Algorithm for Timely {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, _train: &SentTrain) {}

    fn on_feedback(&mut self, s: &Signals) {
        self.paced.update(s, self.rate);
        if self.paced.begin_recovery_on_loss(s) {
            self.multiply(0.5, "loss");
        }
        self.acked = self.acked.saturating_add(s.acked);
        // Small windows never fill a segment; then a round trip completes one.
        let Some(rtt) =
            s.rtt.filter(|r| !r.is_zero() && (self.acked >= self.config.segment || s.round_start))
        else {
            return;
        };
        self.acked = 0;
        let base = if self.config.base_rtt.is_zero() { s.min_rtt.min(rtt) } else { self.config.base_rtt };
        self.on_completion(rtt, base);
    }

    fn on_event(&mut self, _now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.paced.on_timeout(count),
            Event::PersistentCongestion => self.rate = super::MIN_RATE,
            Event::RestartFromIdle { .. } => {
                // A difference across an idle time is no gradient.
                (self.prior_rtt, self.rtt_diff) = (None, 0.0);
            }
            Event::PathChanged(info) => *self = Timely::new(self.config, &info),
            Event::PacketSize(bytes) => self.paced.packet = bytes.max(1),
        }
    }

    fn decision(&self) -> Decision {
        self.paced.decision(self.rate, self.config.t_low / 2)
    }

    fn state(&self) -> &'static str {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RateSample;
    use crate::algorithms::test_signals::{self, PACKET};
    use crate::registry::find;

    const US: fn(u64) -> Span = Span::from_micros;

    /// A flow at 1 Gbit/s over a path of 20 us.
    fn timely() -> Timely {
        let config = Config::from_params(&find("timely").unwrap().defaults());
        let mut t = Timely::new(config, &test_signals::info());
        t.rate = Rate::from_mbit(1_000);
        t
    }

    /// Completes a segment with this round-trip time in microseconds; returns the rate in Mbit/s.
    fn complete(t: &mut Timely, rtt: u64) -> f64 {
        let s = Signals { rtt: Some(US(rtt)), srtt: US(rtt), min_rtt: US(20), ..test_signals::round(1, 20) };
        t.on_feedback(&s);
        t.rate.bits_per_sec() as f64 / 1e6
    }

    #[test]
    fn rate_grows_below_t_low_and_shrinks_by_the_excess_above_t_high() {
        let mut t = timely();
        assert_eq!(complete(&mut t, 30), 1_010.0);
        assert_eq!(complete(&mut t, 69), 1_020.0, "a rising gradient does not count below 20 + 50 us");
        // rate * (1 - beta * (1 - T_high / rtt)), T_high 20 + 500 us.
        let expected = 1_020.0 * (1.0 - 0.8 * (1.0 - 520.0 / 1_040.0));
        assert!((complete(&mut t, 1_040) - expected).abs() < 1e-3);
    }

    #[test]
    fn gradient_decides_between_the_thresholds() {
        let mut t = timely();
        t.prior_rtt = Some(US(100));
        // rtt_diff = 0.875 * 2 us; normalised by 20 us: 0.0875.
        let expected = 1_000.0 * (1.0 - 0.8 * 0.0875);
        assert!((complete(&mut t, 102) - expected).abs() < 1e-3);
        // rtt_diff = 0.125 * 1.75 - 0.875 * 4 < 0: additive increase.
        assert!((complete(&mut t, 98) - expected - 10.0).abs() < 1e-3);
        // Another rise: the average decides, (1 - alpha) * old + alpha * new.
        let diff: f64 = 0.125 * (0.125 * 1.75 - 0.875 * 4.0) + 0.875 * 1.0;
        let expected = (expected + 10.0) * (1.0 - 0.8 * diff / 20.0);
        assert!((complete(&mut t, 99) - expected).abs() < 1e-3);
    }

    #[test]
    fn hyperactive_increase_follows_five_completions_without_a_rise() {
        let mut t = timely();
        let rates: Vec<f64> = (0..7).map(|_| complete(&mut t, 100)).collect();
        assert_eq!(rates, [1_010.0, 1_020.0, 1_030.0, 1_040.0, 1_090.0, 1_140.0, 1_190.0]);
        assert_eq!(t.state(), "hyper_increase");
        complete(&mut t, 110);
        let before = complete(&mut t, 90);
        assert!((complete(&mut t, 90) - before - 10.0).abs() < 1e-3, "a rise begins the count anew");
    }

    #[test]
    fn gradient_reduces_the_rate_by_half_at_most() {
        let mut t = timely();
        t.prior_rtt = Some(US(80));
        assert!((complete(&mut t, 500) - 500.0).abs() < 1e-3);
    }

    #[test]
    fn segments_make_completions_and_losses_halve_once_a_round_trip() {
        let mut t = timely();
        let few =
            Signals { rtt: Some(US(30)), min_rtt: US(20), round_start: false, ..test_signals::round(1, 5) };
        t.on_feedback(&few);
        assert_eq!(t.rate, Rate::from_mbit(1_000), "7.5 kB are no segment");
        (0..2).for_each(|_| t.on_feedback(&few));
        assert_eq!(t.rate, Rate::from_mbit(1_010));
        let lost = Signals { lost: PACKET, latest_lost_sent: Some(test_signals::at(0)), rtt: None, ..few };
        (0..3).for_each(|_| t.on_feedback(&lost));
        assert_eq!(t.rate, Rate::from_mbit(505));
    }

    #[test]
    fn unused_rate_does_not_grow() {
        let mut t = timely();
        let sample = RateSample {
            rate: Rate::from_mbit(400),
            interval: US(30),
            delivered: 0,
            prior_delivered: 0,
            tx_inflight: 0,
            lost: 0,
            forgone: 0,
            app_limited: false,
        };
        let s =
            Signals { rtt: Some(US(30)), min_rtt: US(20), rate: Some(sample), ..test_signals::round(1, 20) };
        t.on_feedback(&s);
        assert_eq!(t.rate, Rate::from_mbit(1_000));
    }
}
