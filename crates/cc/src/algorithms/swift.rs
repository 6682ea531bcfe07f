//! Swift (Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter", SIGCOMM
//! 2020): AIMD around a target delay, with one window for the fabric and one for the receiver's host.
//!
//! Deviations from the paper:
//! * **The fabric's target is relative to the minimum round-trip time**, measured unless `base_rtt` gives it. The
//!   paper's base target includes the propagation within one cluster; this one has to work over any distance.
//! * **Hops are counted by telemetry where available**, else `hops` gives their number (the paper reads the TTL).
//! * **The first of several probe time-outs is ignored**, since it may be a lost feedback.
//! * **Windows grow only while they are used.**

use super::MIN_PACKETS;
use super::delay::FeedbackGap;
use super::paced::{clamp_rate, train_bytes};
use super::window::INITIAL_WINDOW;
use crate::registry::{Definition, Kind, Needs, ParamDef, Params};
use crate::{Algorithm, Decision, Event, Hop, PathInfo, SentTrain, Signals};
use base::{Rate, Span, Time};

const LONG: Span = Span::from_secs(10);

/// The registration.
pub(crate) const DEFINITION: Definition = Definition {
    name: "swift",
    summary: "Swift (SIGCOMM 2020): holds a target delay in the fabric and one in the receiver's host; for data centres",
    params: &[
        INITIAL_WINDOW,
        ParamDef {
            name: "base_target",
            help: "delay beyond the bare round trip that is aimed at, without scaling",
            kind: Kind::Span { min: Span::from_micros(1), max: LONG, default: Span::from_micros(50) },
        },
        ParamDef {
            name: "host_target",
            help: "delay in the receiver's host that is aimed at",
            kind: Kind::Span { min: Span::from_micros(1), max: LONG, default: Span::from_micros(100) },
        },
        ParamDef {
            name: "hops",
            help: "switches on the path, where telemetry does not tell",
            kind: Kind::Count { unit: "hops", min: 0, max: 64, default: 0 },
        },
        ParamDef {
            name: "hop_delay",
            help: "what each hop adds to the target",
            kind: Kind::Span { min: Span::ZERO, max: Span::from_millis(100), default: Span::from_micros(1) },
        },
        ParamDef {
            name: "fs_range",
            help: "most that small windows add to the target; 0us turns flow scaling off",
            kind: Kind::Span { min: Span::ZERO, max: LONG, default: Span::from_micros(100) },
        },
        ParamDef {
            name: "fs_min_cwnd",
            help: "window at which all of fs_range is added, in parts of a packet",
            kind: Kind::Share { min: 100, max: 100_000, default: 10_000 },
        },
        ParamDef {
            name: "fs_max_cwnd",
            help: "window from which on nothing is added",
            kind: Kind::Count { unit: "packets", min: 2, max: 100_000, default: 100 },
        },
        ParamDef {
            name: "ai",
            help: "additive increase in a round trip, in parts of a packet",
            kind: Kind::Share { min: 1_000, max: 10_000_000, default: 100_000 },
        },
        ParamDef {
            name: "beta",
            help: "what an infinite delay would take away",
            kind: Kind::Share { min: 1_000, max: 100_000, default: 80_000 },
        },
        ParamDef {
            name: "max_mdf",
            help: "most that is taken away at once",
            kind: Kind::Share { min: 1_000, max: 99_000, default: 50_000 },
        },
        ParamDef {
            name: "base_rtt",
            help: "round trip of the idle path; 0us for the least that is measured",
            kind: Kind::Span { min: Span::ZERO, max: LONG, default: Span::ZERO },
        },
    ],
    needs: Needs::NOTHING,
    code: "",
    build: &|params, info, _| Box::new(Swift::new(Config::from_params(params), info)),
};

/// Smallest window, in packets: below one, a packet is sent every `rtt / cwnd` (section 3.4).
const MIN_CWND: f64 = 0.001;
/// Largest window, in packets: far above any path and far below an overflow.
const MAX_CWND: f64 = 1e12;
/// Successive time-outs that reset the window (RETX_RESET_THRESHOLD).
const RETX_RESET: u32 = 5;
/// Weight of the moving average of the host's delay, which is noisier than the fabric's (section 3.3).
const HOST_WEIGHT: u64 = 8;
/// Shortest interval or round-trip time assumed.
const MIN_RTT: Span = Span::from_micros(1);

#[derive(Clone, Copy, Debug)]
struct Config {
    initial: u64,
    base_target: Span,
    host_target: Span,
    hops: u64,
    hop_delay: Span,
    fs_range: Span,
    fs_min: f64,
    fs_max: f64,
    ai: f64,
    beta: f64,
    max_mdf: f64,
    base_rtt: Span,
}

impl Config {
    fn from_params(p: &Params) -> Config {
        let part = |key| p.share(key) as f64 / 100_000.0;
        Config {
            initial: p.count("initial_window"),
            base_target: p.span("base_target"),
            host_target: p.span("host_target"),
            hops: p.count("hops"),
            hop_delay: p.span("hop_delay"),
            fs_range: p.span("fs_range"),
            fs_min: part("fs_min_cwnd"),
            fs_max: p.count("fs_max_cwnd") as f64,
            ai: part("ai"),
            beta: part("beta"),
            max_mdf: part("max_mdf"),
            base_rtt: p.span("base_rtt"),
        }
    }

    /// Section 3.5: `base + hops * hop_delay + max(0, min(alpha / sqrt(cwnd) + beta, fs_range))`, with alpha and beta
    /// such that the whole range is added at `fs_min` and none at `fs_max`.
    fn target(&self, hops: u64, cwnd: f64) -> Span {
        let range = self.fs_range.as_nanos() as f64;
        let alpha = range / (1.0 / self.fs_min.sqrt() - 1.0 / self.fs_max.sqrt());
        let scaling = (alpha / cwnd.sqrt() - alpha / self.fs_max.sqrt()).clamp(0.0, range);
        self.base_target + self.hop_delay * hops + Span::from_nanos(scaling as u64)
    }
}

/// A window that keeps one delay at its target (Algorithm 1).
#[derive(Clone, Copy, Debug)]
struct Aimd {
    /// The window in packets, with fractions.
    cwnd: f64,
    last_decrease: Option<Time>,
}

impl Aimd {
    fn can_decrease(&self, now: Time, rtt: Span) -> bool {
        self.last_decrease.is_none_or(|last| now.since(last) >= rtt)
    }

    fn multiply(&mut self, now: Time, factor: f64) {
        self.cwnd = (self.cwnd * factor).clamp(MIN_CWND, MAX_CWND);
        self.last_decrease = Some(now);
    }

    /// Adapts the window to the acknowledged packets and the measured `delay`.
    fn on_acked(&mut self, c: &Config, s: &Signals, delay: Span, target: Span, rtt: Span, used: bool) {
        if delay < target {
            if used {
                let acked = s.acked_packets as f64;
                self.cwnd += if self.cwnd >= 1.0 { c.ai / self.cwnd * acked } else { c.ai * acked };
                self.cwnd = self.cwnd.clamp(MIN_CWND, MAX_CWND);
            }
        } else if self.can_decrease(s.now, rtt) {
            let (delay, target) = (delay.as_nanos().max(1) as f64, target.as_nanos() as f64);
            let over = ((delay - target) / delay).max(0.0);
            self.multiply(s.now, (1.0 - c.beta * over).max(1.0 - c.max_mdf));
        }
    }
}

/// Swift.
#[derive(Debug)]
pub struct Swift {
    config: Config,
    packet: u64,
    fabric: Aimd,
    host: Aimd,
    rtt: Span,
    host_delay: Span,
    hops: u64,
    gap: FeedbackGap,
    state: &'static str,
}

impl Swift {
    fn new(config: Config, info: &PathInfo) -> Swift {
        let packet = info.packet_bytes.max(1);
        let rtt = info.handshake_rtt.unwrap_or(Span::from_millis(1)).max(MIN_RTT);
        let known = info.known_rate.map(|rate| rate.bytes_in(rtt) as f64 / packet as f64);
        let cwnd = known.unwrap_or(0.0).max(config.initial as f64).min(MAX_CWND);
        let window = Aimd { cwnd, last_decrease: None };
        Swift {
            config,
            packet,
            fabric: window,
            host: window,
            rtt,
            host_delay: Span::ZERO,
            hops: config.hops,
            gap: FeedbackGap::default(),
            state: "increase",
        }
    }

    /// The effective window, in packets: the smaller of the two.
    fn cwnd(&self) -> f64 {
        self.fabric.cwnd.min(self.host.cwnd)
    }

    fn on_loss(&mut self, now: Time) {
        for window in [&mut self.fabric, &mut self.host] {
            if window.can_decrease(now, self.rtt) {
                window.multiply(now, 1.0 - self.config.max_mdf);
            }
        }
        self.state = "loss";
    }

    fn on_acked(&mut self, s: &Signals, rtt: Span) {
        let c = self.config;
        let fabric = rtt - s.host_delay;
        self.host_delay = (self.host_delay * (HOST_WEIGHT - 1) + s.host_delay) / HOST_WEIGHT;
        let base = if c.base_rtt.is_zero() { s.min_rtt.min(fabric) } else { c.base_rtt };
        let target = base + c.target(self.hops, self.fabric.cwnd);
        // Data in flight drains between two feedbacks; three quarters count as fully used.
        let inflight = s.prior_inflight as f64 / self.packet as f64;
        let used = |cwnd: f64| !s.app_limited && (inflight >= cwnd * 0.75 || cwnd < MIN_PACKETS as f64);
        let (fabric_used, host_used) = (used(self.fabric.cwnd), used(self.host.cwnd));
        self.fabric.on_acked(&c, s, fabric, target, rtt, fabric_used);
        // The average filters noise, but a host that has caught up must not be blamed for earlier delay.
        let host = self.host_delay.min(s.host_delay);
        self.host.on_acked(&c, s, host, c.host_target, rtt, host_used);
        self.state = match (self.host.cwnd < self.fabric.cwnd, fabric < target) {
            (true, _) => "host",
            (false, true) => "increase",
            (false, false) => "above_target",
        };
    }
}

impl Algorithm for Swift {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, _train: &SentTrain) {}

    fn on_telemetry(&mut self, _now: Time, hops: &[Hop]) {
        self.hops = hops.len() as u64;
    }

    fn on_feedback(&mut self, s: &Signals) {
        self.gap.update(s);
        if let Some(rtt) = s.rtt.filter(|r| !r.is_zero()) {
            self.rtt = rtt.max(MIN_RTT);
        }
        if s.lost > 0 {
            self.on_loss(s.now);
        }
        if s.acked > 0 {
            self.on_acked(s, self.rtt);
        }
    }

    fn on_event(&mut self, now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count: 0..=1 } => {}
            Event::ProbeTimeout { count } if count < RETX_RESET => self.on_loss(now),
            Event::ProbeTimeout { .. } | Event::PersistentCongestion => {
                (self.fabric.cwnd, self.host.cwnd) = (MIN_CWND, MIN_CWND);
            }
            Event::RestartFromIdle { .. } => self.gap.restart(),
            Event::PathChanged(info) => *self = Swift::new(self.config, &info),
            Event::PacketSize(bytes) => {
                let ratio = self.packet as f64 / bytes.max(1) as f64;
                self.packet = bytes.max(1);
                for window in [&mut self.fabric, &mut self.host] {
                    window.cwnd = (window.cwnd * ratio).clamp(MIN_CWND, MAX_CWND);
                }
            }
        }
    }

    fn decision(&self) -> Decision {
        // Below one packet in flight the rate alone governs: a packet every rtt / cwnd.
        let bytes = self.cwnd() * self.packet as f64;
        let rate = clamp_rate(Rate::from_bytes_per_sec((bytes / self.rtt.as_secs_f64()) as u64));
        let least = self.packet.saturating_mul(MIN_PACKETS);
        // In bytes, with room for data delivered between two feedbacks.
        let cwnd = (bytes as u64).saturating_add(rate.bytes_in(self.gap.get()));
        Decision {
            rate,
            cwnd: cwnd.clamp(least, u64::MAX / 2),
            quantum: train_bytes(rate, self.packet, self.config.base_target / 4),
        }
    }

    fn state(&self) -> &'static str {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::test_signals::{self, PACKET};
    use crate::registry::find;

    const US: fn(u64) -> Span = Span::from_micros;

    /// A window of `cwnd` packets over a path of 20 us, without flow scaling: the target is 70 us.
    fn swift(cwnd: f64) -> Swift {
        let mut config = Config::from_params(&find("swift").unwrap().defaults());
        config.fs_range = Span::ZERO;
        let mut s = Swift::new(config, &test_signals::info());
        (s.fabric.cwnd, s.host.cwnd) = (cwnd, cwnd);
        s
    }

    /// Feedback for `packets` with this round-trip time and host delay, all times in microseconds.
    fn acked(now: u64, packets: u64, rtt: u64, host: u64) -> Signals {
        Signals {
            now: test_signals::at(1) + US(now),
            rtt: Some(US(rtt)),
            min_rtt: US(20),
            host_delay: US(host),
            ..test_signals::round(1, packets)
        }
    }

    #[test]
    fn target_scales_with_hops_and_inverse_root_of_the_window() {
        let c = Config { hop_delay: US(2), ..Config::from_params(&find("swift").unwrap().defaults()) };
        let target = |hops, cwnd| c.target(hops, cwnd).as_nanos() as f64 / 1e3;
        assert_eq!(target(0, 100.0), 50.0);
        assert_eq!(target(5, 1e6), 60.0);
        assert_eq!(target(0, 0.1), 150.0);
        assert_eq!(target(0, 0.001), 150.0, "no more than the range");
        // alpha = range / (1/sqrt(0.1) - 1/sqrt(100)), beta = -alpha / sqrt(100).
        let alpha = 100.0 / (1.0 / 0.1f64.sqrt() - 0.1);
        for cwnd in [0.5, 1.0, 4.0, 25.0] {
            let expected = 50.0 + alpha / f64::sqrt(cwnd) - alpha * 0.1;
            assert!((target(0, cwnd) - expected).abs() < 0.01, "{cwnd}");
        }
    }

    #[test]
    fn window_below_target_grows_by_ai() {
        let mut s = swift(10.0);
        s.on_feedback(&acked(0, 10, 60, 0));
        assert!((s.cwnd() - 11.0).abs() < 1e-9, "ai / cwnd * acked");
        let mut s = swift(0.5);
        s.on_feedback(&acked(0, 1, 60, 0));
        assert!((s.cwnd() - 1.5).abs() < 1e-9, "ai * acked");
    }

    #[test]
    fn window_above_target_shrinks_by_the_excess_within_max_mdf() {
        let mut s = swift(100.0);
        s.on_feedback(&acked(0, 10, 140, 0));
        // 1 - beta * (delay - target) / delay = 1 - 0.8 * 70 / 140.
        assert!((s.cwnd() - 60.0).abs() < 1e-9);
        s.on_feedback(&acked(100, 10, 140, 0));
        assert!((s.cwnd() - 60.0).abs() < 1e-9, "100 us after the last decrease a round trip has not passed");
        s.on_feedback(&acked(7_000, 10, 7_000, 0));
        assert!((s.cwnd() - 30.0).abs() < 1e-9, "0.8 * 6930 / 7000 is more than max_mdf");
        assert_eq!(s.state(), "above_target");
    }

    #[test]
    fn host_delay_reduces_its_own_window_only() {
        let mut s = swift(100.0);
        // 400 us, of which the fabric causes 20: only the host's window shrinks, as soon as its average is above 100
        // us.
        let mut last = 100.0;
        for n in 0..10 {
            s.on_feedback(&acked(n * 500, 1, 400, 380));
            assert!(s.fabric.cwnd >= last, "the fabric is idle");
            last = s.fabric.cwnd;
        }
        assert!(s.host.cwnd < 60.0 && s.cwnd() == s.host.cwnd, "{:?}", s.host);
        assert_eq!(s.state(), "host");
    }

    #[test]
    fn losses_cut_by_max_mdf_once_a_round_trip_and_five_timeouts_reset() {
        let mut s = swift(80.0);
        let lost =
            Signals { lost: PACKET, lost_packets: 1, acked: 0, acked_packets: 0, ..acked(0, 0, 60, 0) };
        (0..3).for_each(|_| s.on_feedback(&lost));
        assert_eq!(s.cwnd(), 40.0);
        let now = test_signals::at(2);
        s.on_event(now, Event::ProbeTimeout { count: 1 });
        assert_eq!(s.cwnd(), 40.0);
        s.on_event(now, Event::ProbeTimeout { count: 2 });
        assert_eq!(s.cwnd(), 20.0);
        s.on_event(now, Event::ProbeTimeout { count: RETX_RESET });
        assert_eq!(s.cwnd(), MIN_CWND);
    }

    #[test]
    fn window_below_a_packet_paces_by_rtt_over_cwnd() {
        let mut s = swift(0.25);
        s.rtt = US(100);
        let d = s.decision();
        assert_eq!(d.rate, Rate::from_bytes_in(PACKET, US(400)), "a packet every four round trips");
        assert_eq!((d.cwnd, d.quantum), (2 * PACKET, PACKET));
    }

    #[test]
    fn hops_are_counted_by_telemetry() {
        let mut s = swift(10.0);
        s.on_telemetry(test_signals::at(1), &[Hop::default(); 4]);
        s.on_feedback(&acked(0, 10, 73, 0));
        assert_eq!(s.state(), "increase", "the target is 20 + 50 + 4 us");
    }
}
