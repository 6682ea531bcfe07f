//! Copa: steers towards the rate `1 / (delta * dq)`, where `dq` is the queueing delay, and competes more aggressively
//! while it detects flows that fill the queue.
//!
//! After V. Arun and H. Balakrishnan, "Copa: Practical Delay-Based Congestion Control for the Internet", NSDI 2018.
//! Deviations:
//! * A millisecond of delay, which trains and timers cause, does not count as `dq` (`delay::TRAIN_TIME`): two queued
//!   packets take 2 microseconds at 10 Gbit/s.
//! * On fast paths that leaves a standing queue, and the minimum round-trip time would creep upwards with each filter
//!   window. So if it has not been seen for a while, half the rate is sent for a round.
//! * The window is paced over one standing round-trip time, not half of one: here the rate governs and not the
//!   window, and at twice the rate each feedback would cause a burst that `dq` then measures.
//! * Slow start ends at the window without the measured queue, since a queue takes ten round trips to drain and looks
//!   like a competitor meanwhile.
//! * Velocity resets to one as soon as the direction changes, not a window later, and is limited so that the window
//!   never grows by more than a sixteenth in a round trip, nor shrinks by more than half of the excess queue: feedback
//!   is late by a round trip and a half, in which a doubling velocity overshoots by a whole bandwidth-delay product.
//! * Loss is ignored in the paper's default mode. Here loss beyond the share `loss` cuts the window to what was
//!   delivered, since a policer or a queue of a few packets causes no delay.

use super::bbr::model::exceeds_significantly;
use super::delay::{
    DOUBLING_GAIN, FeedbackGap, MinFilter, TRAIN_TIME, UNIT_GAIN, effective_rtt, queued_bytes,
};
use super::window::{INITIAL_WINDOW, Window};
use crate::registry::{Definition, Kind, Needs, ParamDef};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals};
use base::{Span, Time};

/// The registration.
pub(crate) const DEFINITION: Definition = Definition {
    name: "copa",
    summary: "Copa (NSDI 2018): short queues, withstands random loss, holds its own against queue-fillers",
    params: &[
        INITIAL_WINDOW,
        ParamDef {
            name: "inverse_delta",
            help: "1/delta: packets the flow keeps queued; more is more throughput",
            kind: Kind::Count { unit: "packets", min: 1, max: 1_000, default: 2 },
        },
        ParamDef {
            name: "competitive",
            help: "lower delta while other flows keep the queue full",
            kind: Kind::Switch { default: true },
        },
        ParamDef {
            name: "rtt_window",
            help: "time after which the lowest round trip is forgotten",
            kind: Kind::Span {
                min: Span::from_secs(1),
                max: Span::from_secs(600),
                default: Span::from_secs(10),
            },
        },
        ParamDef {
            name: "loss",
            help: "share of loss within a round trip that cuts the window to what got through",
            kind: Kind::Share { min: 100, max: 50_000, default: 10_000 },
        },
    ],
    needs: Needs::NOTHING,
    code: "",
    build: &|params, info, _| {
        let config = Config {
            initial: params.count("initial_window"),
            inverse_delta: params.count("inverse_delta"),
            competitive: params.switch("competitive"),
            rtt_window: params.span("rtt_window"),
            loss: params.share("loss"),
        };
        Box::new(Copa::new(config, info))
    },
};

/// Round trips in one direction after which velocity doubles (section 2.1, step 4).
const STEADY_ROUNDS: u32 = 3;
/// Round trips without a nearly empty queue after which a queue-filling flow is assumed (section 2.2).
const EMPTY_ROUNDS: u64 = 5;
/// Round trips of the maximum filter for the round-trip time (section 2.2).
const MAX_ROUNDS: usize = 4;
/// The queue is nearly empty below this part of the delay's range (section 2.2).
const NEARLY_EMPTY_DIVISOR: u64 = 10;
/// The window grows by at most its 16th in a round trip.
const MAX_GROWTH_DIVISOR: f64 = 16.0;
/// Pacing gain, in thousandths, of the round that drains the queue.
const DRAIN_GAIN: u64 = 500;

#[derive(Clone, Copy, Debug)]
struct Config {
    initial: u64,
    inverse_delta: u64,
    competitive: bool,
    rtt_window: Span,
    loss: u64,
}

/// Direction and speed of window changes (section 2.1, step 4).
#[derive(Clone, Copy, Debug)]
struct Velocity {
    v: f64,
    up: bool,
    /// Round trips in this direction.
    rounds: u32,
    /// The window a round trip ago.
    window: u64,
}

impl Velocity {
    fn new(window: u64) -> Velocity {
        Velocity { v: 1.0, up: true, rounds: 0, window }
    }

    /// Ends a round trip: doubles after enough rounds in the same direction.
    fn on_round(&mut self, window: u64) {
        let up = window > self.window;
        if window == self.window || up != self.up {
            *self = Velocity { up, ..Velocity::new(window) };
            return;
        }
        self.window = window;
        self.rounds += 1;
        if self.rounds >= STEADY_ROUNDS {
            self.v *= 2.0;
        }
    }

    /// Sets the direction of a step; a change resets the velocity to one.
    fn set_direction(&mut self, up: bool) {
        if up != self.up {
            *self = Velocity { up, ..Velocity::new(self.window) };
        }
    }
}

/// Copa.
#[derive(Debug)]
pub struct Copa {
    config: Config,
    window: Window,
    gap: FeedbackGap,
    /// RTTmin.
    min_rtt: MinFilter<10>,
    /// RTTstanding.
    standing_rtt: MinFilter<4>,
    /// The maximum round-trip time of this round and of the previous ones.
    max_rtts: [Span; MAX_ROUNDS],
    velocity: Velocity,
    rounds: u64,
    /// The round in which the queue was last nearly empty.
    last_empty_round: u64,
    /// When the minimum round-trip time, or nearly so, was last seen, and whether the queue is being drained to see
    /// it.
    min_rtt_seen: Time,
    draining: bool,
    /// 1/delta in competitive mode; `None` in default mode.
    competitive: Option<f64>,
    /// Packets lost in this round, and all packets reported.
    lost: u64,
    packets: u64,
}

impl Copa {
    fn new(config: Config, info: &PathInfo) -> Copa {
        let mut window = Window::new(info, config.initial);
        if !window.in_slow_start() {
            // With a known rate, slow start is skipped.
            window.ssthresh = 0;
        }
        Copa {
            config,
            velocity: Velocity::new(window.cwnd),
            window,
            gap: FeedbackGap::default(),
            min_rtt: MinFilter::default(),
            standing_rtt: MinFilter::default(),
            max_rtts: [Span::ZERO; MAX_ROUNDS],
            rounds: 0,
            last_empty_round: 0,
            min_rtt_seen: Time::ZERO,
            draining: false,
            competitive: None,
            lost: 0,
            packets: 0,
        }
    }

    fn inverse_delta(&self) -> f64 {
        self.competitive.unwrap_or(self.config.inverse_delta as f64)
    }

    fn standing(&self) -> Span {
        self.standing_rtt.get().unwrap_or(self.window.srtt())
    }

    /// RTTmin, RTTstanding, and dq: their difference (section 2.1, step 1).
    fn delays(&self) -> (Span, Span, Span) {
        let standing = self.standing();
        let lowest = self.min_rtt.get().unwrap_or(standing);
        (lowest, standing, effective_rtt(lowest, standing) - lowest)
    }

    /// Updates the filters with a round-trip sample, and whether the queue is nearly empty (section 2.2).
    fn update_rtt(&mut self, s: &Signals) {
        let Some(rtt) = s.rtt.filter(|r| !r.is_zero()) else { return };
        self.min_rtt.update(s.now, self.config.rtt_window, rtt);
        // Two feedbacks confirm a queue, since slow start goes on doubling meanwhile.
        let part = if self.window.in_slow_start() { 4 } else { 2 };
        self.standing_rtt.update(s.now, self.window.srtt() / part, rtt);
        self.max_rtts[0] = self.max_rtts[0].max(rtt);
        let (lowest, _, dq) = self.delays();
        if rtt <= lowest + TRAIN_TIME / 4 {
            self.min_rtt_seen = s.now;
        }
        let swing = self.max_rtts.iter().copied().max().unwrap_or(rtt) - lowest;
        if dq <= swing / NEARLY_EMPTY_DIVISOR {
            self.last_empty_round = self.rounds;
        }
    }

    fn on_round(&mut self, s: &Signals) {
        self.rounds += 1;
        self.max_rtts.rotate_right(1);
        self.max_rtts[0] = s.rtt.unwrap_or(Span::ZERO);
        let lossy = self.lost > 0;
        (self.lost, self.packets) = (0, 0);
        if self.window.in_slow_start() {
            self.last_empty_round = self.rounds;
            return;
        }
        self.velocity.on_round(self.window.cwnd);
        let crowded = self.config.competitive && self.rounds > self.last_empty_round + EMPTY_ROUNDS;
        self.competitive = crowded.then(|| self.competitive_inverse_delta(lossy));
        // Part of the filter window is left for the round after the drain.
        let due = s.now.since(self.min_rtt_seen) >= self.config.rtt_window.scale(3, 4);
        self.draining = due && !self.draining && !crowded;
        if self.draining {
            self.min_rtt_seen = s.now;
        }
    }

    /// 1/delta follows AIMD like Reno's window: plus one per round, halved on loss (section 2.2).
    fn competitive_inverse_delta(&self, lossy: bool) -> f64 {
        let default = self.config.inverse_delta as f64;
        let Some(now) = self.competitive else { return default };
        let most = (self.window.cwnd as f64 / self.window.packet as f64).max(default);
        let next = if lossy { now / 2.0 } else { now + 1.0 };
        next.clamp(default, most)
    }

    /// Reacts to loss beyond what is random: the window becomes what was delivered minus an eighth, at most once per
    /// window sent.
    fn check_loss(&mut self, s: &Signals) {
        self.lost = self.lost.saturating_add(s.lost_packets).saturating_add(s.ce_packets);
        self.packets = self.packets.saturating_add(s.lost_packets).saturating_add(s.acked_packets);
        // Marks may arrive without a counted packet, namely those of packets already declared lost.
        let any = self.packets > 0;
        if any
            && self.window.is_new_episode(s)
            && exceeds_significantly(self.lost, self.packets, self.config.loss)
        {
            let kept = self.packets.saturating_sub(self.lost).max(self.packets / 2);
            self.window.reduce(s.now, kept.saturating_mul(7), self.packets.saturating_mul(8));
            self.leave_slow_start();
        }
    }

    /// Ends slow start; from now on the window is steered.
    fn leave_slow_start(&mut self) {
        self.window.ssthresh = 0;
        self.velocity = Velocity::new(self.window.cwnd);
        self.last_empty_round = self.rounds;
    }

    /// Steps 2 and 3 of section 2.1.
    fn steer(&mut self, s: &Signals) {
        let (lowest, standing, dq) = self.delays();
        let cwnd = self.window.cwnd as f64;
        let target = self.inverse_delta() * self.window.packet as f64;
        // cwnd / RTTstanding <= target / dq
        let up = cwnd * dq.as_secs_f64() <= target * standing.as_secs_f64();
        if self.window.in_slow_start() {
            if up {
                if self.window.is_used(s) {
                    self.window.cwnd = self.window.cwnd.saturating_add(s.acked);
                }
                return;
            }
            let sent = s.rate.map_or(self.window.cwnd, |r| r.tx_inflight.min(self.window.cwnd));
            let left = sent - queued_bytes(sent, lowest, lowest + dq);
            self.window.cwnd = left.saturating_add(target as u64).max(self.window.min_window());
            self.leave_slow_start();
            return;
        }
        self.velocity.set_direction(up);
        // Upwards by at most a sixteenth per round trip, downwards by at most half of the excess queue.
        let queue = cwnd * dq.as_secs_f64() / standing.as_secs_f64();
        let most = if up { cwnd / MAX_GROWTH_DIVISOR } else { (queue - target) / 2.0 };
        self.velocity.v = self.velocity.v.min((most / target).max(1.0));
        // v / (delta * cwnd) packets for each packet acknowledged.
        let acked = s.acked as f64;
        let step = (self.velocity.v * target * acked / cwnd).min(acked);
        if !up {
            let left = self.window.cwnd.saturating_sub(step as u64);
            self.window.cwnd = left.max(self.window.min_window());
        } else if self.window.is_used(s) {
            self.window.grow(step);
        }
    }
}

impl Algorithm for Copa {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, _train: &SentTrain) {}

    fn on_feedback(&mut self, s: &Signals) {
        self.window.update(s);
        self.gap.update(s);
        self.check_loss(s);
        self.update_rtt(s);
        if s.round_start && s.acked > 0 {
            self.on_round(s);
        }
        if s.acked > 0 && !self.draining && !self.window.in_recovery(s.newest_acked_sent) {
            self.steer(s);
        }
    }

    fn on_event(&mut self, now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.window.on_timeout(count),
            Event::PersistentCongestion => {
                self.window.collapse();
                self.window.ssthresh = u64::MAX;
                self.competitive = None;
                self.draining = false;
            }
            Event::RestartFromIdle { .. } => {
                self.gap.restart();
                self.velocity = Velocity::new(self.window.cwnd);
                self.last_empty_round = self.rounds;
                // The queue is empty after an idle time.
                self.min_rtt_seen = now;
            }
            Event::PathChanged(info) => *self = Copa::new(self.config, &info),
            Event::PacketSize(bytes) => self.window.packet = bytes.max(1),
        }
    }

    fn decision(&self) -> Decision {
        let gain = match self.window.in_slow_start() {
            true => DOUBLING_GAIN,
            false if self.draining => DRAIN_GAIN,
            false => UNIT_GAIN,
        };
        self.window.paced_decision(gain, self.standing(), self.gap.get())
    }

    fn state(&self) -> &'static str {
        match (self.window.in_slow_start(), self.competitive) {
            (true, _) => "slow_start",
            (_, Some(_)) => "competitive",
            _ if self.draining => "default:drain",
            _ => "default",
        }
    }
}

#[cfg(test)]
mod tests;
