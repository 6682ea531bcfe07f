//! Prague, the congestion control of L4S (RFC 9330, 9331, 9332; draft-briscoe-iccrg-prague-congestion-control): DCTCP
//! made safe for the Internet.
//!
//! Its packets carry ECT(1) ([`Marks::L4s`]), and L4S queues mark them from a fraction of a millisecond on.
//! Differences from DCTCP:
//! * **RTT independence** (RFC 9331, section 4.3): flows with short round trips behave as if theirs were the virtual
//!   one, 25 ms: alpha is averaged and the window reduced no more often than that, and growth is scaled so that all
//!   flows gain rate alike. It begins some round trips after slow start, so that short flows are not slowed.
//! * **Growth does not stop for marks**: each unmarked byte lets the window grow, also in a round trip with a
//!   reduction, since L4S queues mark in every round trip.
//! * **A loss halves the window as in Reno** (RFC 9331, section 4.3); together with a reduction for marks in the same
//!   round trip the total is a half.
//! * **The window is paced in trains of at most 250 us** (the default of the reference implementation in Linux).
//!
//! A queue that marks ECT(1) as it marks ECT(0) (RFC 3168) is detected by the transport's path validation, which then
//! uses another algorithm.

use super::delay::{FeedbackGap, UNIT_GAIN};
use super::marked_share::{MarkedShare, ONE, reduced_by};
use super::paced::train_bytes;
use super::window::{INITIAL_WINDOW, Window};
use crate::registry::{Definition, Kind, Marks, Needs, ParamDef, Params};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals};
use base::{Span, Time};

/// The registration.
pub(crate) const DEFINITION: Definition = Definition {
    name: "prague",
    summary: "Prague (L4S, RFC 9330): reduces by the share of marked packets, whatever the round trip; for L4S queues",
    params: &[
        INITIAL_WINDOW,
        ParamDef {
            name: "g",
            help: "weight of a new round trip in the average share of marked bytes",
            kind: Kind::Share { min: 100, max: 100_000, default: 6_250 },
        },
        ParamDef {
            name: "rtt_virt",
            help: "round trip that shorter ones behave as if they had; 0us turns that off",
            kind: Kind::Span { min: Span::ZERO, max: Span::from_millis(100), default: Span::from_millis(25) },
        },
        ParamDef {
            name: "transition",
            help: "round trips after slow start until then",
            kind: Kind::Count { unit: "round trips", min: 0, max: 1_000_000, default: 500 },
        },
    ],
    needs: Needs { marks: Marks::L4s, telemetry: false },
    code: "",
    build: &|params, info, _| Box::new(Prague::new(Config::from_params(params), info)),
};

/// Longest time for a train.
const MAX_TRAIN_TIME: Span = Span::from_micros(250);
/// Pacing gain in slow start, in thousandths.
const SLOW_START_GAIN: u64 = 2_000;

#[derive(Clone, Copy, Debug)]
struct Config {
    initial: u64,
    /// In parts per 100,000.
    gain: u64,
    rtt_virt: Span,
    transition: u64,
}

impl Config {
    fn from_params(p: &Params) -> Config {
        Config {
            initial: p.count("initial_window"),
            gain: p.share("g"),
            rtt_virt: p.span("rtt_virt"),
            transition: p.count("transition"),
        }
    }
}

/// Prague.
#[derive(Debug)]
pub struct Prague {
    config: Config,
    window: Window,
    marked: MarkedShare,
    /// Whether a mark was seen: until then alpha stays at one, so that the first is answered in full.
    mark_seen: bool,
    /// When alpha was last averaged, and when the window was last reduced for marks.
    last_average: Option<Time>,
    last_reduction: Option<Time>,
    /// The window before the last reduction, and whether that one was for losses.
    window_before_reduction: u64,
    reduced_for_loss: bool,
    /// Round trips since slow start.
    rounds: u64,
    gap: FeedbackGap,
}

impl Prague {
    fn new(config: Config, info: &PathInfo) -> Prague {
        Prague {
            config,
            window: Window::new(info, config.initial),
            marked: MarkedShare::new(ONE, config.gain),
            mark_seen: false,
            last_average: None,
            last_reduction: None,
            window_before_reduction: 0,
            reduced_for_loss: false,
            rounds: 0,
            gap: FeedbackGap::default(),
        }
    }

    /// The duration of a round for averages and reductions: the virtual round-trip time, once RTT independence
    /// applies.
    fn virtual_rtt(&self) -> Span {
        if self.window.in_slow_start() || self.rounds < self.config.transition {
            return Span::ZERO;
        }
        self.config.rtt_virt
    }

    fn average(&mut self, s: &Signals) {
        self.mark_seen |= s.ce_packets > 0;
        if self.mark_seen {
            self.marked.count_feedback(s);
        }
        if !s.round_start {
            return;
        }
        if !self.window.in_slow_start() {
            self.rounds = self.rounds.saturating_add(1);
        }
        let due = self.last_average.is_none_or(|last| s.now.since(last) >= self.virtual_rtt());
        if due {
            self.marked.end_window();
            self.last_average = Some(s.now);
        }
    }

    fn on_loss(&mut self, s: &Signals) {
        if self.window.in_recovery(s.latest_lost_sent) {
            if !self.reduced_for_loss {
                // Marks of the same round trip have reduced the window; the total is a half.
                let half = self.window.cwnd.min(self.window_before_reduction / 2);
                self.window.reduce_to(s.now, half);
            }
        } else {
            self.window.reduce(s.now, 1, 2);
        }
        self.reduced_for_loss = true;
    }

    fn on_mark(&mut self, s: &Signals) {
        if self.last_reduction.is_some_and(|last| s.now.since(last) < self.virtual_rtt()) {
            return;
        }
        self.window_before_reduction = self.window.cwnd;
        self.reduced_for_loss = false;
        self.last_reduction = Some(s.now);
        self.window.reduce_to(s.now, reduced_by(self.window_before_reduction, self.marked.get() / 2));
    }

    /// Grows by a packet per round trip, or by `(rtt / rtt_virt)^2` of one, so that the rate grows by as much per
    /// second as with the virtual round-trip time.
    fn grow(&mut self, s: &Signals) {
        let w = &self.window;
        if self.reduced_for_loss && w.in_recovery(s.newest_acked_sent) || !w.is_used(s) {
            return;
        }
        let unmarked = s.acked - s.ce_acked.min(s.acked);
        if w.in_slow_start() {
            self.window.cwnd = w.cwnd.saturating_add(unmarked);
            return;
        }
        let (rtt, virt) = (w.srtt().as_secs_f64(), self.virtual_rtt().as_secs_f64());
        let scale = if rtt < virt { (rtt / virt) * (rtt / virt) } else { 1.0 };
        let windows = unmarked as f64 / w.cwnd as f64;
        let packet = w.packet as f64;
        self.window.grow(scale * windows * packet);
    }
}

impl Algorithm for Prague {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, _train: &SentTrain) {}

    fn on_feedback(&mut self, s: &Signals) {
        self.window.update(s);
        self.gap.update(s);
        self.average(s);
        if s.lost > 0 {
            self.on_loss(s);
        } else if self.window.is_new_mark(s) {
            self.on_mark(s);
        }
        self.grow(s);
    }

    fn on_event(&mut self, _now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.window.on_timeout(count),
            Event::PersistentCongestion => self.window.collapse(),
            Event::RestartFromIdle { .. } => self.gap.restart(),
            Event::PathChanged(info) => *self = Prague::new(self.config, &info),
            Event::PacketSize(bytes) => self.window.packet = bytes.max(1),
        }
    }

    fn decision(&self) -> Decision {
        let gain = if self.window.in_slow_start() { SLOW_START_GAIN } else { UNIT_GAIN };
        let d = self.window.paced_decision(gain, self.window.srtt(), self.gap.get());
        let cwnd = d.cwnd.min(u64::MAX / 2);
        Decision { cwnd, quantum: train_bytes(d.rate, self.window.packet, MAX_TRAIN_TIME), ..d }
    }

    fn state(&self) -> &'static str {
        match (self.window.in_slow_start(), self.virtual_rtt() > self.window.srtt()) {
            (true, _) => "slow_start",
            (false, true) => "avoidance:virtual_rtt",
            (false, false) => "avoidance",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::test_signals::{self, PACKET};

    /// A window of 100 packets after slow start, over a round trip of 1 ms that counts as 25 ms from the start.
    fn prague() -> Prague {
        let config = Config { initial: 100, gain: 6_250, rtt_virt: Span::from_millis(25), transition: 0 };
        let mut p = Prague::new(config, &test_signals::info());
        p.window.ssthresh = p.window.cwnd;
        p
    }

    /// The feedback of round trip `n`: 100 packets of which `marked` were marked.
    fn round(n: u64, marked: u64) -> Signals {
        Signals { ce_packets: marked, ce_acked: marked * PACKET, ..test_signals::round(n, 100) }
    }

    fn alpha(p: &Prague) -> f64 {
        p.marked.get() as f64 / ONE as f64
    }

    #[test]
    fn alpha_is_averaged_over_virtual_rtts_after_the_first_mark() {
        let mut p = prague();
        (1..=50).for_each(|n| p.on_feedback(&round(n, 0)));
        assert_eq!(alpha(&p), 1.0, "no mark has been seen");
        p.marked = MarkedShare::new(ONE / 2, 6_250);
        (p.last_average, p.mark_seen) = (Some(test_signals::at(50)), true);
        for n in 51..=74 {
            p.on_feedback(&round(n, if n == 60 { 50 } else { 0 }));
            assert_eq!(alpha(&p), 0.5, "{n}");
        }
        p.on_feedback(&round(75, 0));
        // 50 of 2500 packets in 25 round trips: 0.5 * 15/16 + 0.02 / 16.
        assert!((alpha(&p) - (0.5 * 15.0 / 16.0 + 0.02 / 16.0)).abs() < 1e-4, "{}", alpha(&p));
    }

    #[test]
    fn marks_reduce_the_window_by_half_of_alpha_once_a_virtual_rtt() {
        let mut p = prague();
        p.marked = MarkedShare::new(ONE / 2, 6_250);
        (p.last_average, p.mark_seen) = (Some(test_signals::at(0)), true);
        p.on_feedback(&round(1, 100));
        assert_eq!(p.window.cwnd, 75 * PACKET);
        for n in 2..=25 {
            p.on_feedback(&round(n, 100));
            assert_eq!(
                p.window.cwnd,
                75 * PACKET,
                "{n}: nothing unmarked to grow by, and no second reduction"
            );
        }
        let alpha = alpha(&p);
        p.on_feedback(&round(26, 100));
        let expected = 75.0 * (1.0 - alpha / 2.0);
        assert!((p.window.cwnd as f64 / PACKET as f64 - expected).abs() < 0.1);
    }

    #[test]
    fn rate_growth_is_that_of_the_virtual_rtt() {
        // The gain of the rate after a second of unmarked round trips of different lengths.
        let gained = |ms: u64| {
            let mut p = prague();
            let rtt = Span::from_millis(ms);
            for n in 1..=1_000 / ms {
                let s = Signals {
                    now: test_signals::at(0) + rtt * n,
                    srtt: rtt,
                    acked: p.window.cwnd,
                    newest_acked_sent: Some(test_signals::at(0) + rtt * (n - 1)),
                    ..round(n, 0)
                };
                p.on_feedback(&s);
            }
            (p.window.cwnd as f64 / PACKET as f64 - 100.0) / rtt.as_secs_f64()
        };
        // A packet every 25 ms, at 25 ms: 1600 packets a second more per second.
        for ms in [1, 5, 25] {
            assert!((gained(ms) / 1_600.0 - 1.0).abs() < 0.02, "{ms} ms: {}", gained(ms));
        }
        assert!((gained(50) / 400.0 - 1.0).abs() < 0.02, "longer ones grow by a packet each: {}", gained(50));
    }

    #[test]
    fn loss_after_marks_of_the_same_round_completes_the_halving() {
        let lost = |n: u64, sent: u64| Signals {
            lost: PACKET,
            lost_packets: 1,
            latest_lost_sent: Some(test_signals::at(sent)),
            acked: 0,
            ..round(n, 0)
        };
        let mut p = prague();
        p.on_feedback(&lost(1, 0));
        assert_eq!(p.window.cwnd, 50 * PACKET);
        p.on_feedback(&lost(2, 1));
        assert_eq!(p.window.cwnd, 50 * PACKET, "sent before the reduction");
        let mut p = prague();
        p.marked = MarkedShare::new(ONE / 2, 6_250);
        (p.last_average, p.mark_seen) = (Some(test_signals::at(0)), true);
        p.on_feedback(&round(1, 100));
        assert_eq!(p.window.cwnd, 75 * PACKET);
        p.on_feedback(&lost(2, 1));
        assert_eq!(p.window.cwnd, 50 * PACKET, "a half of 100, not of 75");
    }

    #[test]
    fn rtt_independence_begins_after_slow_start_and_transition() {
        let mut p = prague();
        p.config.transition = 500;
        (1..500).for_each(|n| p.on_feedback(&round(n, 0)));
        assert_eq!(p.state(), "avoidance");
        p.on_feedback(&round(500, 0));
        assert_eq!(p.state(), "avoidance:virtual_rtt");
        p.window.ssthresh = u64::MAX;
        assert_eq!(p.state(), "slow_start");
    }

    #[test]
    fn first_mark_ends_slow_start_and_halves_the_window() {
        let config = Config { initial: 10, gain: 6_250, rtt_virt: Span::from_millis(25), transition: 500 };
        let mut p = Prague::new(config, &test_signals::info());
        p.on_feedback(&Signals { acked: 10 * PACKET, ..round(1, 0) });
        assert_eq!(p.window.cwnd, 20 * PACKET);
        p.on_feedback(&Signals { acked: 20 * PACKET, ce_packets: 20, ce_acked: 20 * PACKET, ..round(2, 0) });
        assert_eq!(p.window.cwnd, 10 * PACKET);
        assert_ne!(p.state(), "slow_start");
    }
}
