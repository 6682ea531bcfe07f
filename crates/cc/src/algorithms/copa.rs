//! Copa: steers towards the rate `1 / (delta * dq)`, where `dq` is the queueing delay; finds out when it
//! shares the queue with flows that fill it, and then holds its own.
//!
//! After V. Arun and H. Balakrishnan, "Copa: Practical Delay-Based Congestion Control for the Internet", NSDI
//! 2018. Where it departs, and why:
//! * A packet of the paper is here what a train holds beyond its first packet, which is one packet at low rates
//!   (`delay::unit`): a target of two packets queued cannot be seen by a sender whose trains are of 44. What competitive
//!   mode adds each round trip stays one packet.
//! * The window is paced over one standing round trip, not over half of one: here the rate governs and not the
//!   window, and twice the rate would make each feedback a burst that `dq` then measures.
//! * Slow start leaves the window that the measured queue leaves, not the one that made the queue, which takes
//!   ten round trips to undo and looks like a competitor meanwhile.
//! * Velocity falls back to one as soon as the direction turns, not a window later, and is limited so that the
//!   window never more than doubles or halves in a round trip (as in implementations in use).
//! * Loss does not matter in the paper's default mode. Here a share of it that no random loss has (`loss`) halves
//!   the window: a policer or a queue of a few packets shows no delay at all.

use super::bbr::model::excessive;
use super::delay::{DOUBLING, EVEN, Gap, MinFilter, queued, unit};
use super::window::{INITIAL_WINDOW, Window};
use crate::registry::{Definition, Kind, ParamDef};
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
            help: "1/delta: packets the flow keeps queued (trains from 24 Mbit/s on); more is more throughput",
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
            help: "share of loss within a round trip that halves the window",
            kind: Kind::Share { min: 100, max: 50_000, default: 10_000 },
        },
    ],
    build: |params, info, _| {
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
/// Delay that hosts make by themselves is none.
const HOST_NOISE: Span = Span::from_micros(500);

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
    /// 1/delta of competitive mode, in units; `None` in default mode.
    competitive: Option<f64>,
    /// Packets lost, and all reported, in this round.
    lost: u64,
    packets: u64,
}

impl Copa {
    fn new(config: Config, info: &PathInfo) -> Copa {
        let window = Window::new(info, config.initial);
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

    /// dq = RTTstanding - RTTmin (section 2.1, step 1), and the mode it tells (section 2.2).
    fn take_sample(&mut self, s: &Signals) {
        let Some(rtt) = s.rtt.filter(|r| !r.is_zero()) else { return };
        self.lowest.update(s.now, self.config.rtt_window, rtt);
        self.standing.update(s.now, self.window.srtt() / 2, rtt);
        self.highest[0] = self.highest[0].max(rtt);
        let lowest = self.lowest.get().unwrap_or(rtt);
        let swing = self.highest.iter().copied().max().unwrap_or(rtt) - lowest;
        if self.standing() - lowest < (swing / EMPTY_PART).max(HOST_NOISE) {
            self.empty_round = self.rounds;
        }
    }

    fn on_round(&mut self, s: &Signals) {
        self.rounds += 1;
        self.highest.rotate_right(1);
        self.highest[0] = s.rtt.unwrap_or(Span::ZERO);
        let judged = (self.lost, self.packets);
        (self.lost, self.packets) = (0, 0);
        if self.window.in_slow_start() {
            self.empty_round = self.rounds;
            return;
        }
        self.velocity.on_round(self.window.cwnd);
        let crowded = self.config.competitive && self.rounds > self.empty_round + EMPTY_ROUNDS;
        self.competitive = crowded.then(|| self.aimd(judged.0 > 0));
    }

    /// 1/delta grows as Reno's window does, and halves on loss (section 2.2).
    fn aimd(&self, lossy: bool) -> f64 {
        let default = self.config.inverse_delta as f64;
        let Some(now) = self.competitive else { return default };
        let unit = unit(&self.window, self.standing()) as f64;
        let most = (self.window.cwnd as f64 / unit).max(default);
        let next = if lossy { now / 2.0 } else { now + self.window.packet as f64 / unit };
        next.clamp(default, most)
    }

    /// More loss than chance makes: halves the window once for each window sent.
    fn check_loss(&mut self, s: &Signals) {
        self.lost = self.lost.saturating_add(s.lost_packets).saturating_add(s.ce_packets);
        self.packets = self.packets.saturating_add(s.lost_packets).saturating_add(s.acked_packets);
        if self.window.is_new_episode(s) && excessive(self.lost, self.packets, self.config.loss) {
            self.window.reduce(s.now, 1, 2);
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
        let (standing, lowest) = (self.standing(), self.lowest.get().unwrap_or(Span::ZERO));
        let dq = standing - lowest;
        let unit = unit(&self.window, standing);
        let (cwnd, target) = (self.window.cwnd as f64, self.inverse_delta() * unit as f64);
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
            let left = sent - queued(sent, lowest, standing);
            self.window.cwnd = left.saturating_add(target as u64).max(self.window.least());
            self.leave_slow_start();
            return;
        }
        self.velocity.turn(up);
        let most = if up { 1.0 } else { 0.5 };
        self.velocity.v = self.velocity.v.min((most * cwnd / target).max(1.0));
        // v / (delta * cwnd) packets for each packet acknowledged.
        let acked = s.acked as f64;
        let step = (self.velocity.v * target * acked / cwnd).min(most * acked);
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
        if s.round_start && s.acked > 0 {
            self.on_round(s);
        }
        self.take_sample(s);
        if s.acked > 0 && !self.window.in_recovery(s.newest_acked_sent) {
            self.steer(s);
        }
    }

    fn on_event(&mut self, _now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.window.on_timeout(count),
            Event::PersistentCongestion => {
                self.window.collapse();
                self.window.ssthresh = u64::MAX;
                self.competitive = None;
            }
            Event::RestartFromIdle { .. } => {
                self.gap.restart();
                self.velocity = Velocity::new(self.window.cwnd);
                self.empty_round = self.rounds;
            }
            Event::PathChanged(info) => *self = Copa::new(self.config, &info),
            Event::PacketSize(bytes) => self.window.packet = bytes.max(1),
        }
    }

    fn decision(&self) -> Decision {
        let gain = if self.window.in_slow_start() { DOUBLING } else { EVEN };
        self.window.spread(gain, self.standing(), self.gap.get())
    }

    fn state(&self) -> &'static str {
        match (self.window.in_slow_start(), self.competitive) {
            (true, _) => "slow_start",
            (_, Some(_)) => "competitive",
            _ => "default",
        }
    }
}

#[cfg(test)]
mod tests;
