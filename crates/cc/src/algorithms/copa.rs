//! Copa: steers towards the rate `1 / (delta * dq)`, where `dq` is the queueing delay; finds out when it
//! shares the queue with flows that fill it, and then holds its own.
//!
//! After V. Arun and H. Balakrishnan, "Copa: Practical Delay-Based Congestion Control for the Internet", NSDI
//! 2018. Where it departs, and why:
//! * A millisecond of delay, which trains and timers make by themselves, is no part of `dq` (`delay::TRAIN_TIME`):
//!   two packets queued are 2 microseconds at 10 Gbit/s.
//! * On fast paths that leaves a queue that never empties by itself, and the lowest round trip would creep upwards
//!   each time it is forgotten. So when it has not been seen for a while, half the rate is sent for a round.
//! * The window is paced over one standing round trip, not over half of one: here the rate governs and not the
//!   window, and twice the rate would make each feedback a burst that `dq` then measures.
//! * Slow start leaves the window that the measured queue leaves, not the one that made the queue, which takes
//!   ten round trips to undo and looks like a competitor meanwhile.
//! * Velocity falls back to one as soon as the direction turns, not a window later, and is limited so that the
//!   window never grows by more than a sixteenth in a round trip, nor shrinks by more than half of what is queued
//!   too much: feedback is late by a round trip and a half, in which a doubling velocity overshoots by a whole
//!   path's worth.
//! * Loss does not matter in the paper's default mode. Here a share of it that no random loss has (`loss`) cuts
//!   the window to what got through: a policer or a queue of a few packets shows no delay at all.

use super::bbr::model::excessive;
use super::delay::{DOUBLING, EVEN, Gap, MinFilter, TRAIN_TIME, counted, queued};
use super::window::{INITIAL_WINDOW, Window};
use crate::registry::{Definition, Kind, Needs, ParamDef};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals};
use base::{Span, Time};

/// How it is registered.
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
/// Without a nearly empty queue in so many round trips, others fill it (section 2.2).
const EMPTY_ROUNDS: u64 = 5;
/// Round trips in which the highest round trip is looked for (section 2.2).
const MAX_ROUNDS: usize = 4;
/// Nearly empty is below this part of what the delay swings by (section 2.2).
const EMPTY_PART: u64 = 10;
/// The window grows by at most one in so many in a round trip.
const MOST_UP: f64 = 16.0;
/// Pacing gain, in thousandths, of the round that empties the queue.
const DRAIN: u64 = 500;

#[derive(Clone, Copy, Debug)]
struct Config {
    initial: u64,
    inverse_delta: u64,
    competitive: bool,
    rtt_window: Span,
    loss: u64,
}

/// Which way the window moves, and how fast (section 2.1, step 4).
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

    /// Once a round trip: doubles when the direction has held.
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

    /// Before a step: back to one when it goes the other way.
    fn turn(&mut self, up: bool) {
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
    gap: Gap,
    /// RTTmin.
    lowest: MinFilter<10>,
    /// RTTstanding.
    standing: MinFilter<4>,
    /// The highest round trip of this round and of those before it.
    highest: [Span; MAX_ROUNDS],
    velocity: Velocity,
    rounds: u64,
    /// The round in which the queue was last nearly empty.
    empty_round: u64,
    /// When the lowest round trip was last seen, or nearly so, and whether it is being made visible.
    lowest_seen: Time,
    draining: bool,
    /// 1/delta of competitive mode; `None` in default mode.
    competitive: Option<f64>,
    /// Packets lost, and all reported, in this round.
    lost: u64,
    packets: u64,
}

impl Copa {
    fn new(config: Config, info: &PathInfo) -> Copa {
        let mut window = Window::new(info, config.initial);
        if !window.in_slow_start() {
            // A rate known beforehand: steered from the start.
            window.ssthresh = 0;
        }
        Copa {
            config,
            velocity: Velocity::new(window.cwnd),
            window,
            gap: Gap::default(),
            lowest: MinFilter::default(),
            standing: MinFilter::default(),
            highest: [Span::ZERO; MAX_ROUNDS],
            rounds: 0,
            empty_round: 0,
            lowest_seen: Time::ZERO,
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
        self.standing.get().unwrap_or(self.window.srtt())
    }

    /// RTTmin, RTTstanding, and dq: their difference (section 2.1, step 1).
    fn delays(&self) -> (Span, Span, Span) {
        let standing = self.standing();
        let lowest = self.lowest.get().unwrap_or(standing);
        (lowest, standing, counted(lowest, standing) - lowest)
    }

    /// Takes in a round trip, and whether it shows a nearly empty queue (section 2.2).
    fn take_sample(&mut self, s: &Signals) {
        let Some(rtt) = s.rtt.filter(|r| !r.is_zero()) else { return };
        self.lowest.update(s.now, self.config.rtt_window, rtt);
        // Slow start doubles while it waits for the queue to be sure: two feedbacks have to do.
        let part = if self.window.in_slow_start() { 4 } else { 2 };
        self.standing.update(s.now, self.window.srtt() / part, rtt);
        self.highest[0] = self.highest[0].max(rtt);
        let (lowest, _, dq) = self.delays();
        if rtt <= lowest + TRAIN_TIME / 4 {
            self.lowest_seen = s.now;
        }
        let swing = self.highest.iter().copied().max().unwrap_or(rtt) - lowest;
        if dq <= swing / EMPTY_PART {
            self.empty_round = self.rounds;
        }
    }

    fn on_round(&mut self, s: &Signals) {
        self.rounds += 1;
        self.highest.rotate_right(1);
        self.highest[0] = s.rtt.unwrap_or(Span::ZERO);
        let lossy = self.lost > 0;
        (self.lost, self.packets) = (0, 0);
        if self.window.in_slow_start() {
            self.empty_round = self.rounds;
            return;
        }
        self.velocity.on_round(self.window.cwnd);
        let crowded = self.config.competitive && self.rounds > self.empty_round + EMPTY_ROUNDS;
        self.competitive = crowded.then(|| self.aimd(lossy));
        // Some of the window's time is left for the round that empties the queue to be seen.
        let due = s.now.since(self.lowest_seen) >= self.config.rtt_window.scale(3, 4);
        self.draining = due && !self.draining && !crowded;
        if self.draining {
            self.lowest_seen = s.now;
        }
    }

    /// 1/delta grows as Reno's window does, and halves on loss (section 2.2).
    fn aimd(&self, lossy: bool) -> f64 {
        let default = self.config.inverse_delta as f64;
        let Some(now) = self.competitive else { return default };
        let most = (self.window.cwnd as f64 / self.window.packet as f64).max(default);
        let next = if lossy { now / 2.0 } else { now + 1.0 };
        next.clamp(default, most)
    }

    /// More loss than chance makes: what was not lost fits, and an eighth less leaves room. At most once for each
    /// window sent.
    fn check_loss(&mut self, s: &Signals) {
        self.lost = self.lost.saturating_add(s.lost_packets).saturating_add(s.ce_packets);
        self.packets = self.packets.saturating_add(s.lost_packets).saturating_add(s.acked_packets);
        // Marks may come of which no packet is counted: those of packets that were taken for lost.
        let any = self.packets > 0;
        if any && self.window.is_new_episode(s) && excessive(self.lost, self.packets, self.config.loss) {
            let kept = self.packets.saturating_sub(self.lost).max(self.packets / 2);
            self.window.reduce(s.now, kept.saturating_mul(7), self.packets.saturating_mul(8));
            self.leave_slow_start();
        }
    }

    /// From here on the window is steered, whatever its size.
    fn leave_slow_start(&mut self) {
        self.window.ssthresh = 0;
        self.velocity = Velocity::new(self.window.cwnd);
        self.empty_round = self.rounds;
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
            let left = sent - queued(sent, lowest, lowest + dq);
            self.window.cwnd = left.saturating_add(target as u64).max(self.window.least());
            self.leave_slow_start();
            return;
        }
        self.velocity.turn(up);
        // Upwards at most a sixteenth in a round trip; downwards at most half of what is queued too much.
        let queue = cwnd * dq.as_secs_f64() / standing.as_secs_f64();
        let most = if up { cwnd / MOST_UP } else { (queue - target) / 2.0 };
        self.velocity.v = self.velocity.v.min((most / target).max(1.0));
        // v / (delta * cwnd) packets for each packet acknowledged.
        let acked = s.acked as f64;
        let step = (self.velocity.v * target * acked / cwnd).min(acked);
        if !up {
            let left = self.window.cwnd.saturating_sub(step as u64);
            self.window.cwnd = left.max(self.window.least());
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
        self.take_sample(s);
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
                self.empty_round = self.rounds;
                // A pause empties the queue.
                self.lowest_seen = now;
            }
            Event::PathChanged(info) => *self = Copa::new(self.config, &info),
            Event::PacketSize(bytes) => self.window.packet = bytes.max(1),
        }
    }

    fn decision(&self) -> Decision {
        let gain = match self.window.in_slow_start() {
            true => DOUBLING,
            false if self.draining => DRAIN,
            false => EVEN,
        };
        self.window.spread(gain, self.standing(), self.gap.get())
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
