//! DCTCP (RFC 8257): reduces the window in proportion to the share of marked packets.
//!
//! For networks of one operator whose switches mark every packet that finds more than a threshold K in the queue
//! (section 4.1: K above a seventh of the bandwidth-delay product). On the Internet it takes more than its share, and
//! without marks it behaves as Reno. The receiver's part of the RFC (section 3.2) is done by the transport, which
//! reports how many of the acknowledged bytes were marked.

use super::marked_share::{MarkedShare, ONE, PERCENT_100, reduced_by};
use super::window::{INITIAL_WINDOW, Window};
use crate::registry::{Definition, Kind, Marks, Needs, ParamDef};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals};
use base::Time;

/// The registration.
pub(crate) const DEFINITION: Definition = Definition {
    name: "dctcp",
    summary: "DCTCP (RFC 8257): reduces by the share of marked packets; for data centres that mark at a threshold",
    params: &[
        INITIAL_WINDOW,
        ParamDef {
            name: "g",
            help: "weight of a new round trip in the average share of marked bytes (RFC 8257, section 4.2)",
            kind: Kind::Share { min: 100, max: 100_000, default: 6_250 },
        },
        ParamDef {
            name: "initial_alpha",
            help: "share of marked bytes assumed at the start; 100% answers the first mark as Reno does",
            kind: Kind::Share { min: 0, max: 100_000, default: 100_000 },
        },
    ],
    needs: Needs { marks: Marks::Step, telemetry: false },
    code: "",
    build: &|params, info, _| {
        let config = Config {
            initial: params.count("initial_window"),
            gain: params.share("g"),
            alpha: params.share("initial_alpha") * ONE / PERCENT_100,
        };
        Box::new(Dctcp::new(config, info))
    },
};

#[derive(Clone, Copy, Debug)]
struct Config {
    initial: u64,
    /// In parts per 100,000.
    gain: u64,
    /// In parts per [`ONE`].
    alpha: u64,
}

/// DCTCP.
#[derive(Debug)]
pub struct Dctcp {
    config: Config,
    window: Window,
    marked: MarkedShare,
}

impl Dctcp {
    fn new(config: Config, info: &PathInfo) -> Dctcp {
        Dctcp {
            config,
            window: Window::new(info, config.initial),
            marked: MarkedShare::new(config.alpha, config.gain),
        }
    }
}

impl Algorithm for Dctcp {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, _train: &SentTrain) {}

    fn on_feedback(&mut self, s: &Signals) {
        self.window.update(s);
        self.marked.count_feedback(s);
        // Section 3.3, step 4: the first packet sent after the end of the last window is acknowledged.
        if s.round_start {
            self.marked.end_window();
        }
        let w = &mut self.window;
        if w.is_new_loss(s) {
            // Section 3.5: losses MUST be handled as in conventional TCP; once per window for all signals.
            w.reduce(s.now, 1, 2);
        } else if w.is_new_mark(s) {
            // Step 9: cwnd = cwnd * (1 - DCTCP.Alpha / 2), once per window as in RFC 3168.
            w.reduce_to(s.now, reduced_by(w.cwnd, self.marked.get() / 2));
        }
        w.grow_as_reno(s);
    }

    fn on_event(&mut self, _now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.window.on_timeout(count),
            Event::PersistentCongestion => self.window.collapse(),
            Event::RestartFromIdle { .. } => {}
            Event::PathChanged(info) => *self = Dctcp::new(self.config, &info),
            Event::PacketSize(bytes) => self.window.packet = bytes.max(1),
        }
    }

    fn decision(&self) -> Decision {
        self.window.decision()
    }

    fn state(&self) -> &'static str {
        if self.window.in_slow_start() { "slow_start" } else { "avoidance" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::test_signals::{self, PACKET};
    use crate::registry::parse;

    fn dctcp() -> Dctcp {
        Dctcp::new(Config { initial: 100, gain: 6_250, alpha: ONE }, &test_signals::info())
    }

    /// A round trip of 100 packets of which `marked` were marked.
    fn round(d: &mut Dctcp, n: u64, marked: u64) {
        let s = Signals { ce_packets: marked, ce_acked: marked * PACKET, ..test_signals::round(n, 100) };
        d.on_feedback(&s);
    }

    fn alpha(d: &Dctcp) -> f64 {
        d.marked.get() as f64 / ONE as f64
    }

    #[test]
    fn alpha_is_the_moving_average_of_section_3_3() {
        let mut d = dctcp();
        let mut expected = 1.0;
        for (n, marked) in [0, 0, 50, 100, 3, 0, 17].into_iter().enumerate() {
            round(&mut d, n as u64 + 1, marked);
            // Step 6: DCTCP.Alpha = DCTCP.Alpha * (1 - g) + g * M.
            expected = expected * (1.0 - 1.0 / 16.0) + marked as f64 / 100.0 / 16.0;
            assert!((alpha(&d) - expected).abs() < 1e-4, "round {n}: {} is not {expected}", alpha(&d));
        }
        // Section 4.2: with all packets marked, or none, it converges to one or zero.
        (10..300).for_each(|n| round(&mut d, n, 100));
        assert!(alpha(&d) > 0.9999);
        (300..600).for_each(|n| round(&mut d, n, 0));
        assert!(alpha(&d) < 1e-4);
    }

    #[test]
    fn marked_share_counts_bytes() {
        let mut d = dctcp();
        let s = Signals { ce_packets: 1, ce_acked: 50 * PACKET, ..test_signals::round(1, 100) };
        d.on_feedback(&s);
        assert!((alpha(&d) - (15.0 / 16.0 + 0.5 / 16.0)).abs() < 1e-4);
    }

    #[test]
    fn window_shrinks_by_half_of_alpha_once_a_window() {
        let mut d = dctcp();
        // Step 9 with the initial alpha: as Reno.
        round(&mut d, 1, 100);
        assert_eq!(d.window.cwnd, 50 * PACKET);
        // Packets sent before the reduction are covered by it.
        let old = Signals {
            newest_acked_sent: Some(test_signals::at(1)),
            round_start: false,
            ..test_signals::round(2, 1)
        };
        d.on_feedback(&Signals { ce_packets: 1, ce_acked: PACKET, ..old });
        assert_eq!(d.window.cwnd, 50 * PACKET);
        d.marked = MarkedShare::new(ONE / 4, 6_250);
        // A window with a tenth marked: alpha = 1/4 * 15/16 + 1/160, half of which is subtracted.
        round(&mut d, 3, 10);
        let expected = 50.0 * (1.0 - (0.25 * 15.0 / 16.0 + 0.1 / 16.0) / 2.0);
        assert!((d.window.cwnd as f64 / PACKET as f64 - expected).abs() < 0.01, "{}", d.window.cwnd);
        assert_eq!(d.state(), "avoidance");
    }

    #[test]
    fn loss_halves_the_window_whatever_alpha_is() {
        let mut d = dctcp();
        d.marked = MarkedShare::new(0, 6_250);
        let lost = Signals {
            lost: PACKET,
            lost_packets: 1,
            latest_lost_sent: Some(test_signals::at(0)),
            ..test_signals::round(1, 99)
        };
        d.on_feedback(&lost);
        assert_eq!(d.window.cwnd, 50 * PACKET);
    }

    #[test]
    fn window_without_marks_grows_as_reno() {
        let mut d = dctcp();
        round(&mut d, 1, 0);
        assert_eq!(d.window.cwnd, 200 * PACKET, "slow start");
        round(&mut d, 2, 100);
        let before = d.window.cwnd;
        (4..8).for_each(|n| {
            d.on_feedback(&Signals { prior_inflight: before, acked: before, ..test_signals::round(n, 100) });
        });
        assert!(d.window.cwnd.abs_diff(before + 4 * PACKET) <= PACKET, "a packet a round trip");
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        assert!(parse("dctcp:g=0.5%,initial_alpha=0%").is_ok());
        for wrong in ["dctcp:g=0%", "dctcp:g=101%", "dctcp:g=1", "dctcp:initial_alpha=-1%", "dctcp:k=3"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
