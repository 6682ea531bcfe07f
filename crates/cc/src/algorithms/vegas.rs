//! TCP Vegas: keeps a few packets queued at the bottleneck, controlled by the round-trip time alone.
//!
//! After L. Brakmo and L. Peterson, "TCP Vegas: End to End Congestion Avoidance on a Global Internet", IEEE JSAC
//! 13(8), 1995, with refinements of later implementations:
//! * The minimum round-trip time of a round is compared, not one sample, so that late feedback does not count as
//!   congestion (as in Linux); rounds with fewer than three samples are pooled.
//! * Slow start ends at the window without the measured queue (as in Linux) and is checked at each feedback, since a
//!   round later its window would have doubled again.
//! * A loss reduces the window by a quarter, once per window sent (the authors' implementation, described by U.
//!   Hengartner et al., "TCP Vegas Revisited", INFOCOM 2000; the paper's section III.A for "once").
//!
//! Deviations: loss detection, the paper's other half, is the transport's. A millisecond of delay, which trains and
//! timers cause, does not count (`delay::TRAIN_TIME`).

use super::delay::{DOUBLING_GAIN, FeedbackGap, UNIT_GAIN, effective_rtt, queued_bytes};
use super::window::{INITIAL_WINDOW, Window};
use crate::registry::{Definition, Kind, Needs, ParamDef};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals};
use base::{Span, Time};

/// The registration.
pub(crate) const DEFINITION: Definition = Definition {
    name: "vegas",
    summary: "TCP Vegas (Brakmo and Peterson, 1995): keeps a few packets queued; gives way to loss-based flows",
    params: &[
        INITIAL_WINDOW,
        ParamDef {
            name: "alpha",
            help: "fewer of the flow's packets in the queue let the window grow",
            kind: Kind::Count { unit: "packets", min: 1, max: 1_000, default: 2 },
        },
        ParamDef {
            name: "beta",
            help: "more of the flow's packets in the queue let the window shrink; at least alpha",
            kind: Kind::Count { unit: "packets", min: 1, max: 1_000, default: 4 },
        },
        ParamDef {
            name: "gamma",
            help: "more of the flow's packets in the queue end slow start",
            kind: Kind::Count { unit: "packets", min: 1, max: 1_000, default: 1 },
        },
    ],
    needs: Needs::NOTHING,
    code: "",
    build: &|params, info, _| {
        let alpha = params.count("alpha");
        let config = Config {
            initial: params.count("initial_window"),
            alpha,
            beta: params.count("beta").max(alpha),
            gamma: params.count("gamma"),
        };
        Box::new(Vegas::new(config, info))
    },
};

/// Remaining part of the window after a loss, in quarters.
const LOSS_QUARTERS: u64 = 3;
/// Samples needed to evaluate a round (Linux: more than two).
const MIN_SAMPLES: u32 = 3;
/// Latest samples whose minimum ends slow start: half a round trip of feedbacks.
const RECENT: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Config {
    initial: u64,
    alpha: u64,
    beta: u64,
    gamma: u64,
}

/// TCP Vegas.
#[derive(Debug)]
pub struct Vegas {
    config: Config,
    window: Window,
    gap: FeedbackGap,
    /// BaseRTT: the minimum of all samples.
    base_rtt: Option<Span>,
    /// Minimum since the last evaluated round, and its number of samples.
    round_min: Span,
    samples: u32,
    /// The latest samples.
    recent_rtts: [Span; RECENT],
    /// Whether slow start grows in this round, or holds the window for a valid comparison (section III.C).
    growing: bool,
}

impl Vegas {
    fn new(config: Config, info: &PathInfo) -> Vegas {
        Vegas {
            config,
            window: Window::new(info, config.initial),
            gap: FeedbackGap::default(),
            base_rtt: None,
            round_min: Span::MAX,
            samples: 0,
            recent_rtts: [Span::ZERO; RECENT],
            // The first round trip begins by inverting it.
            growing: false,
        }
    }

    /// Forgets the base round-trip time, which may have changed (as Linux does after an idle time); the queue is
    /// empty, so the next sample shows it.
    fn forget_base_rtt(&mut self) {
        self.base_rtt = None;
        (self.round_min, self.samples) = (Span::MAX, 0);
        self.recent_rtts = [Span::ZERO; RECENT];
    }

    fn update_rtt(&mut self, s: &Signals) {
        let Some(rtt) = s.rtt.filter(|r| !r.is_zero()) else { return };
        self.base_rtt = Some(self.base_rtt.map_or(rtt, |b| b.min(rtt)));
        self.round_min = self.round_min.min(rtt);
        self.samples = self.samples.saturating_add(1);
        self.recent_rtts.rotate_right(1);
        self.recent_rtts[0] = rtt;
    }

    /// Congestion avoidance, once a round trip (section III.B): Diff, in bytes queued, is
    /// `(Expected - Actual) * BaseRTT = window * (RTT - BaseRTT) / RTT`.
    fn on_round(&mut self, s: &Signals) {
        let Some(base) = self.base_rtt.filter(|_| self.samples >= MIN_SAMPLES) else { return };
        let rtt = effective_rtt(base, self.round_min);
        (self.round_min, self.samples) = (Span::MAX, 0);
        let w = &mut self.window;
        let diff = queued_bytes(w.cwnd, base, rtt);
        if diff > self.config.beta.saturating_mul(w.packet) {
            w.cwnd = w.cwnd.saturating_sub(w.packet).max(w.min_window());
            w.ssthresh = w.ssthresh.min(w.cwnd);
        } else if diff < self.config.alpha.saturating_mul(w.packet) && w.is_used(s) {
            w.cwnd = w.cwnd.saturating_add(w.packet);
        }
    }

    /// Slow start (section III.C): doubles every other round trip, until Diff exceeds gamma.
    fn slow_start(&mut self, s: &Signals) {
        let w = &mut self.window;
        let rtt = self.recent_rtts.iter().copied().min().unwrap_or(Span::ZERO);
        if let Some(base) = self.base_rtt {
            // The window that the sampled packet was part of.
            let sent = s.rate.map_or(w.cwnd, |r| r.tx_inflight.min(w.cwnd));
            let diff = queued_bytes(sent, base, effective_rtt(base, rtt));
            if diff > self.config.gamma.saturating_mul(w.packet) {
                w.cwnd = (sent - diff).saturating_add(w.packet).max(w.min_window());
                w.ssthresh = w.cwnd;
                return;
            }
        }
        if self.growing && w.is_used(s) {
            w.cwnd = w.cwnd.saturating_add(s.acked);
        }
    }
}

impl Algorithm for Vegas {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, _train: &SentTrain) {}

    fn on_feedback(&mut self, s: &Signals) {
        self.window.update(s);
        self.gap.update(s);
        self.update_rtt(s);
        if self.window.is_new_episode(s) {
            self.window.reduce(s.now, LOSS_QUARTERS, 4);
        }
        if s.acked == 0 || self.window.in_recovery(s.newest_acked_sent) {
            return;
        }
        if self.window.in_slow_start() {
            if s.round_start {
                self.growing = !self.growing;
            }
            self.slow_start(s);
        } else if s.round_start {
            self.on_round(s);
        }
    }

    fn on_event(&mut self, _now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.window.on_timeout(count),
            Event::PersistentCongestion => {
                self.window.collapse();
                self.growing = false;
                self.forget_base_rtt();
            }
            Event::RestartFromIdle { .. } => {
                self.gap.restart();
                self.forget_base_rtt();
            }
            Event::PathChanged(info) => *self = Vegas::new(self.config, &info),
            Event::PacketSize(bytes) => self.window.packet = bytes.max(1),
        }
    }

    fn decision(&self) -> Decision {
        let gain = if self.window.in_slow_start() && self.growing { DOUBLING_GAIN } else { UNIT_GAIN };
        self.window.paced_decision(gain, self.window.srtt(), self.gap.get())
    }

    fn state(&self) -> &'static str {
        match (self.window.in_slow_start(), self.growing) {
            (true, true) => "slow_start",
            (true, false) => "slow_start:hold",
            _ => "avoidance",
        }
    }
}

#[cfg(test)]
mod tests;
