//! HPCC (Li et al., "HPCC: High Precision Congestion Control", SIGCOMM 2019): computes the window from in-band
//! telemetry of each hop's queue and load.
//!
//! Algorithm 1 is as in the paper. In addition, the window is at most the bandwidth-delay product of the slowest hop
//! (the paper's W_init is that of the port's speed), losses halve the reference window once a round trip (the paper's
//! fabric is lossless), and the congestion window of the decision leaves room for data delivered
//! between two feedbacks.

use super::delay::FeedbackGap;
use super::paced::{MAX_RATE, clamp_rate, train_bytes};
use super::window::{INITIAL_WINDOW, Window};
use crate::registry::{Definition, Kind, Marks, Needs, ParamDef, Params};
use crate::{Algorithm, Decision, Event, Hop, MAX_HOPS, PathInfo, SentTrain, Signals};
use base::{Rate, Span, Time};

/// The registration.
pub(crate) const DEFINITION: Definition = Definition {
    name: "hpcc",
    summary: "HPCC (SIGCOMM 2019): computes the window from the hops' telemetry; for data centres whose switches write it",
    params: &[
        INITIAL_WINDOW,
        ParamDef {
            name: "eta",
            help: "target utilisation",
            kind: Kind::Share { min: 50_000, max: 100_000, default: 95_000 },
        },
        ParamDef {
            name: "max_stage",
            help: "round trips of additive increase before the load is looked at again",
            kind: Kind::Count { unit: "round trips", min: 0, max: 1_000, default: 5 },
        },
        ParamDef {
            name: "flows",
            help: "flows that are to share a port without a queue: W_AI is what eta leaves free, divided by them",
            kind: Kind::Count { unit: "flows", min: 1, max: 1_000_000, default: 100 },
        },
        ParamDef {
            name: "base_rtt",
            help: "round trip of the idle path (T); 0us for the least that is measured",
            kind: Kind::Span { min: Span::ZERO, max: Span::from_secs(10), default: Span::ZERO },
        },
    ],
    needs: Needs { marks: Marks::Optional, telemetry: true },
    code: "",
    build: &|params, info, _| Box::new(Hpcc::new(Config::from_params(params), info)),
};

/// The window grows by at most this factor at once, if the hops report no load.
const MAX_GROWTH: f64 = 16.0;
/// Shortest round-trip time assumed.
const MIN_RTT: Span = Span::from_micros(1);
/// A train takes at most this part of the round trip.
const TRAINS_PER_RTT: u64 = 16;

#[derive(Clone, Copy, Debug)]
struct Config {
    initial: u64,
    eta: f64,
    max_stage: u64,
    flows: f64,
    base_rtt: Span,
}

impl Config {
    fn from_params(p: &Params) -> Config {
        Config {
            initial: p.count("initial_window"),
            eta: p.share("eta") as f64 / 100_000.0,
            max_stage: p.count("max_stage"),
            flows: p.count("flows") as f64,
            base_rtt: p.span("base_rtt"),
        }
    }
}

/// HPCC.
#[derive(Debug)]
pub struct Hpcc {
    config: Config,
    /// The reference window W^c (`cwnd`), with losses, time-outs and the packet size.
    reference: Window,
    /// The window W, in bytes.
    window: f64,
    /// The latest telemetry of the hops (L), and the number of hops.
    hops: [Hop; MAX_HOPS],
    count: usize,
    /// The moving average of the load (U), and whether it was measured since the window was last computed.
    load: f64,
    measured: bool,
    stage: u64,
    /// Whether a round trip has begun since the reference window was last set.
    round_started: bool,
    base_rtt: Span,
    gap: FeedbackGap,
}

impl Hpcc {
    fn new(config: Config, info: &PathInfo) -> Hpcc {
        let reference = Window::new(info, config.initial);
        let known = if config.base_rtt.is_zero() { info.handshake_rtt } else { Some(config.base_rtt) };
        Hpcc {
            config,
            window: reference.cwnd as f64,
            reference,
            hops: [Hop::default(); MAX_HOPS],
            count: 0,
            load: 1.0,
            measured: false,
            stage: 0,
            round_started: false,
            base_rtt: known.unwrap_or(Span::from_millis(1)).max(MIN_RTT),
            gap: FeedbackGap::default(),
        }
    }

    /// MeasureInflight (lines 1 to 9): the load of the most loaded hop, averaged over the round trip.
    fn measure(&mut self, hops: &[Hop]) {
        let t = self.base_rtt.as_nanos() as f64;
        let (mut most, mut tau) = (None, 0.0);
        for (new, old) in hops.iter().zip(&self.hops) {
            let time = new.at.since(old.at).as_nanos() as f64;
            let port = new.rate.bytes_per_sec() as f64 / 1e9;
            if time == 0.0 || port == 0.0 {
                continue;
            }
            let rate = new.sent.wrapping_sub(old.sent) as f64 / time;
            let load = new.queue.min(old.queue) as f64 / (port * t) + rate / port;
            if most.is_none_or(|m| load > m) {
                (most, tau) = (Some(load), time);
            }
        }
        let Some(load) = most else { return };
        let share = (tau / t).min(1.0);
        self.load = (1.0 - share) * self.load + share * load;
        self.measured = true;
    }

    /// The bandwidth-delay product of the slowest hop.
    fn max_window(&self) -> f64 {
        let ports = self.hops[..self.count].iter().map(|h| h.rate).filter(|r| *r > Rate::ZERO);
        let port = ports.min().unwrap_or(MAX_RATE).min(MAX_RATE);
        port.bytes_in(self.base_rtt) as f64
    }

    /// ComputeWind (lines 10 to 22).
    fn compute(&mut self, update: bool) {
        let c = self.config;
        let (reference, most) = (self.reference.cwnd as f64, self.max_window());
        let increase = most * (1.0 - c.eta) / c.flows;
        let multiply = self.load >= c.eta || self.stage >= c.max_stage;
        let window = if multiply {
            reference / (self.load / c.eta).max(1.0 / MAX_GROWTH) + increase
        } else {
            reference + increase
        };
        let least = self.reference.min_window() as f64;
        self.window = window.clamp(least, (most + increase).max(least));
        if update {
            self.stage = if multiply { 0 } else { self.stage + 1 };
            self.reference.cwnd = self.window as u64;
        }
    }
}

impl Algorithm for Hpcc {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, _train: &SentTrain) {}

    fn on_telemetry(&mut self, _now: Time, hops: &[Hop]) {
        let hops = &hops[..hops.len().min(MAX_HOPS)];
        let same = hops.len() == self.count && hops.iter().zip(&self.hops).all(|(a, b)| a.id == b.id);
        if same {
            self.measure(hops);
        }
        // The counters of another path have nothing to be compared with yet.
        self.hops[..hops.len()].copy_from_slice(hops);
        self.count = hops.len();
    }

    fn on_feedback(&mut self, s: &Signals) {
        self.reference.update(s);
        self.gap.update(s);
        if self.config.base_rtt.is_zero() && !s.min_rtt.is_zero() {
            self.base_rtt = s.min_rtt.max(MIN_RTT);
        }
        if self.reference.is_new_loss(s) {
            self.reference.reduce(s.now, 1, 2);
            (self.window, self.stage) = (self.reference.cwnd as f64, 0);
        }
        self.round_started |= s.round_start;
        if !self.measured {
            return;
        }
        self.measured = false;
        // An unused window does not show how the path would react to a larger one.
        let used = !s.app_limited && s.prior_inflight as f64 >= self.window / 2.0;
        if used || self.load >= self.config.eta {
            self.compute(self.round_started);
            self.round_started = false;
        }
    }

    fn on_event(&mut self, _now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.reference.on_timeout(count),
            Event::PersistentCongestion => {
                self.reference.collapse();
                (self.window, self.stage) = (self.reference.cwnd as f64, 0);
            }
            Event::RestartFromIdle { .. } => self.gap.restart(),
            Event::PathChanged(info) => *self = Hpcc::new(self.config, &info),
            Event::PacketSize(bytes) => self.reference.packet = bytes.max(1),
        }
    }

    fn decision(&self) -> Decision {
        let mut w = self.reference.clone();
        w.cwnd = self.window as u64;
        let d = w.paced_decision(super::delay::UNIT_GAIN, self.base_rtt, self.gap.get());
        let rate = clamp_rate(d.rate);
        let quantum = train_bytes(rate, w.packet, self.base_rtt / TRAINS_PER_RTT);
        Decision { rate, quantum, cwnd: d.cwnd.min(u64::MAX / 2) }
    }

    fn state(&self) -> &'static str {
        match self.load >= self.config.eta {
            true => "above_eta",
            false if self.stage >= self.config.max_stage => "multiplicative_increase",
            false => "additive_increase",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::test_signals::{self, PACKET};
    use crate::registry::find;

    /// 100 Gbit/s and 100 us: a window of 1.25 MB, and W_AI of 625 bytes.
    const PORT: Rate = Rate::from_mbit(100_000);
    const T: Span = Span::from_micros(100);
    const BDP: u64 = 1_250_000;

    fn hpcc(window: u64) -> Hpcc {
        let mut config = Config::from_params(&find("hpcc").unwrap().defaults());
        config.base_rtt = T;
        let mut h = Hpcc::new(config, &test_signals::info());
        h.reference.cwnd = window;
        h
    }

    fn hop(us: u64, sent: u64, queue: u64) -> Hop {
        Hop { id: 1, at: test_signals::at(1) + Span::from_micros(us), queue, sent, rate: PORT }
    }

    fn feed(h: &mut Hpcc, hops: &[Hop], round_start: bool) {
        h.on_telemetry(test_signals::at(1), hops);
        h.on_feedback(&Signals { round_start, ..test_signals::round(1, 10) });
    }

    #[test]
    fn load_is_queue_over_bdp_plus_utilisation_of_the_worst_hop() {
        let mut h = hpcc(BDP);
        let before = |id, queue| Hop { id, ..hop(0, 0, queue) };
        let after = |id, sent, queue| Hop { id, ..hop(100, sent, queue) };
        feed(&mut h, &[before(1, 0), before(2, 125_000), before(3, 500_000)], true);
        // u' = min(qlen) / (B * T) + txRate / B: 0.5, 0.1 + 0.9 and 0 + 0.8.
        let hops = [after(1, BDP / 2, 9_999), after(2, BDP / 10 * 9, 400_000), after(3, BDP / 10 * 8, 0)];
        feed(&mut h, &hops, true);
        assert!((h.load - 1.0).abs() < 1e-9, "{}", h.load);
    }

    #[test]
    fn load_is_averaged_over_the_round_trip() {
        let mut h = hpcc(BDP);
        feed(&mut h, &[hop(0, 0, 0)], true);
        feed(&mut h, &[hop(25, BDP / 8, 0)], false);
        // tau / T = 1/4, u = 1/2: U = 3/4 * 1 + 1/4 * 1/2.
        assert!((h.load - 0.875).abs() < 1e-9);
        feed(&mut h, &[hop(525, BDP / 8, 0)], false);
        assert!(h.load.abs() < 1e-9, "tau is at most T");
    }

    #[test]
    fn window_above_eta_is_the_reference_window_divided_by_the_load() {
        let mut h = hpcc(BDP);
        feed(&mut h, &[hop(0, 0, BDP / 2)], false);
        // Half a product of queue at full rate: U = 1.5.
        feed(&mut h, &[hop(100, BDP, BDP / 2)], false);
        let expected = BDP as f64 / (1.5 / 0.95) + 625.0;
        assert!((h.window - expected).abs() < 1.0, "{}", h.window);
        // Within the round trip the reference window is divided again, not the window (section 3.2).
        feed(&mut h, &[hop(200, 2 * BDP, BDP / 2)], false);
        assert!((h.window - expected).abs() < 1.0);
        assert_eq!(h.reference.cwnd, BDP);
        feed(&mut h, &[hop(300, 3 * BDP, BDP / 2)], true);
        assert_eq!(h.reference.cwnd, h.window as u64);
    }

    #[test]
    fn window_below_eta_grows_additively_for_five_rounds_then_multiplicatively() {
        let mut h = hpcc(BDP / 4);
        h.load = 0.5;
        feed(&mut h, &[hop(0, 0, 0)], false);
        for n in 1..=5u64 {
            feed(&mut h, &[hop(100 * n, BDP / 2 * n, 0)], true);
            let expected = BDP as f64 / 4.0 + 625.0 * n as f64;
            assert!((h.window - expected).abs() < n as f64, "{n}: {}", h.window);
        }
        assert_eq!(h.state(), "multiplicative_increase");
        let reference = h.reference.cwnd as f64;
        feed(&mut h, &[hop(600, BDP * 3, 0)], true);
        assert!((h.window - (reference / (0.5 / 0.95) + 625.0)).abs() < 1.0, "{}", h.window);
        assert_eq!(h.stage, 0);
    }

    #[test]
    fn window_is_at_most_the_bdp_of_the_slowest_hop_and_counters_may_wrap() {
        let mut h = hpcc(BDP);
        (h.load, h.stage) = (0.0, 5);
        feed(&mut h, &[hop(0, u64::MAX - 10, 0)], false);
        feed(&mut h, &[hop(100, 1_000, 0)], true);
        assert!(h.load < 0.01, "{}", h.load);
        assert!((h.window - (BDP as f64 + 625.0)).abs() < 1.0, "{}", h.window);
        assert!(h.decision().rate <= Rate::from_mbit(100_100), "{}", h.decision().rate);
    }

    #[test]
    fn counters_of_a_new_path_are_not_compared_with_the_old() {
        let mut h = hpcc(BDP);
        feed(&mut h, &[hop(0, 0, 0)], true);
        feed(&mut h, &[Hop { id: 2, ..hop(100, 10 * BDP, BDP) }], true);
        assert_eq!((h.load, h.window), (1.0, Window::new(&test_signals::info(), 10).cwnd as f64));
    }

    #[test]
    fn loss_halves_the_reference_window_once_a_round_trip() {
        let mut h = hpcc(BDP);
        let lost = Signals {
            lost: PACKET,
            latest_lost_sent: Some(test_signals::at(0)),
            ..test_signals::round(1, 1)
        };
        (0..3).for_each(|_| h.on_feedback(&lost));
        assert_eq!(h.reference.cwnd, BDP / 2);
    }
}
