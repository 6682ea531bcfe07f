//! The default: a rate that keeps a small queue, found by packet trains and held by delay and delivery rate.
//!
//! A model of the path, as in BBR (delivery rate, lowest round trip), but steered by a law instead of a cycle of
//! probes. Once a round trip, with `x` the rate delivered, `q` the queueing delay and `q*(x)` the delay this flow
//! aims at,
//!
//! ```text
//! rate  <- x * (1 + (q*(x) - q) / (2 rtt_min))    after FAST TCP (Wei, Jin, Low, Hegde, ToN 2006)
//! q*(x)  = 4 ms * sqrt(1 Gbit/s / x)              after Swift's flow scaling (Kumar et al., SIGCOMM 2020)
//! ```
//!
//! Every flow sees the same `q`, and `q*` falls with the rate: the only rates at which all flows rest are equal ones,
//! whatever their round trips, and a flow that comes late takes its share within seconds. A flow alone keeps 4 ms of
//! queue at 1 Gbit/s, ten together three times as much.
//!
//! * `start`: trains show the narrowest place's rate by their dispersion before the flow has filled it, so the start
//!   may leap and still not overshoot.
//! * Random loss does not enter the law: what was lost at random counts as delivered. Loss with a queue, or much of
//!   it, is congestion (`loss`). Where no queue is seen, the flow holds back and looks whether the loss goes away
//!   (`shallow`).
//! * Where the path slows down faster than that works, nothing is sent until the queue has run off (`run_off`).
//! * A queue that no restraint empties belongs to flows that fill buffers: beside them the flow holds its own
//!   (`rival`), and finds out after each overflow whether that is still needed.
//! * The lowest round trip is believed until a sounding (a moment at a quarter of the rate, by all flows at once) finds
//!   another one: a queue of one's own is never taken for the path.

mod loss;
mod probe;
mod rival;
mod round;
mod run_off;
mod shallow;
mod start;
mod steady;
#[cfg(test)]
mod tests;

use self::loss::Losses;
use self::probe::Probe;
use self::rival::Rival;
use self::round::{Base, Round};
use self::shallow::Shallow;
use self::start::Start;
use self::steady::{Sounding, Steady};
use super::window::MAX_BOUND;
use super::{MIN_PACKETS, MIN_RATE};
use crate::registry::{Definition, Kind, Needs, ParamDef, Params};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals, pacer};
use base::{Rate, Rng, Span, Time};

/// How it is registered.
pub(crate) const DEFINITION: Definition = Definition {
    name: "haul",
    summary: "fast start by packet trains, a small fair queue, withstands random loss",
    params: &[
        ParamDef {
            name: "initial_window",
            help: "what is sent in the first round trip",
            kind: Kind::Count { unit: "packets", min: 2, max: 10_000, default: 32 },
        },
        ParamDef {
            name: "known_rate",
            help: "the rate to start at, until it is found to hold; auto: the path's known rate, if any",
            kind: Kind::Rate {
                min: Rate::from_bits_per_sec(64_000),
                max: Rate::from_bits_per_sec(1_000_000_000_000),
            },
        },
        ParamDef {
            name: "queue",
            help: "queueing delay that a flow alone keeps at 1 Gbit/s; changes with the square root of the rate",
            kind: Kind::Span {
                min: Span::from_micros(100),
                max: Span::from_millis(100),
                default: Span::from_micros(4_000),
            },
        },
        ParamDef {
            name: "loss",
            help: "share of loss within a round trip that is taken for congestion where a queue stands",
            kind: Kind::Share { min: 100, max: 50_000, default: 1_000 },
        },
        ParamDef {
            name: "loss_alone",
            help: "the same where the delay shows no queue",
            kind: Kind::Share { min: 100, max: 50_000, default: 10_000 },
        },
        ParamDef {
            name: "compete",
            help: "do as CUBIC would where others fill the queue",
            kind: Kind::Switch { default: true },
        },
        ParamDef {
            name: "ecn",
            help: "yield to packets marked Congestion Experienced",
            kind: Kind::Switch { default: true },
        },
    ],
    needs: Needs::NOTHING,
    code: "",
    build: &|params, info, rng| {
        let known_rate = params.rate("known_rate").or(info.known_rate);
        Box::new(Haul::new(Config::from_params(params), &PathInfo { known_rate, ..*info }, rng))
    },
};

/// The round trip assumed before any is known.
const NOMINAL_RTT: f64 = 0.1;
/// Delays below this are a matter of hosts: timers, batches, schedulers.
const HOST_NOISE: f64 = 0.001;
/// After persistent congestion the rate is taken to be this part of what it was.
const COLLAPSE: f64 = 8.0;
/// Most halvings of the rate while time-outs repeat.
const MAX_BACKOFF: u32 = 10;
/// The start ends with no less than this part of the initial window a round trip.
const FIRST_AT_LEAST: f64 = 4.0;
/// After a longer pause than this the rate is only a memory, which the start checks as it goes.
const MEMORY: Span = Span::from_secs(10);

/// Parameters, in the units used within: seconds and shares of one.
#[derive(Clone, Copy, Debug)]
struct Config {
    initial_window: u64,
    queue: f64,
    loss: f64,
    loss_alone: f64,
    compete: bool,
    ecn: bool,
}

impl Config {
    fn from_params(p: &Params) -> Config {
        let share = |n: u64| n as f64 / 100_000.0;
        Config {
            initial_window: p.count("initial_window"),
            queue: p.span("queue").as_secs_f64(),
            loss: share(p.share("loss")),
            loss_alone: share(p.share("loss_alone").max(p.share("loss"))),
            compete: p.switch("compete"),
            ecn: p.switch("ecn"),
        }
    }

    /// The queueing delay that a flow of `rate` (bytes per second) aims at, on a path of `rtt` seconds.
    fn target(&self, rate: f64, rtt: f64) -> f64 {
        const GIGABIT: f64 = 125e6;
        let scaled = self.queue.min(rtt / 5.0) * (GIGABIT / rate.max(1.0)).sqrt();
        // Never more than a third of a round trip, never less than what hosts add by themselves.
        scaled.min(rtt * 0.35).max(HOST_NOISE / 2.0)
    }
}

/// What the algorithm is doing.
#[derive(Debug)]
enum Phase {
    /// Looking for the rate.
    Start(Start),
    /// Letting the queue that the start made run off.
    Drain {
        /// Rounds spent.
        rounds: u32,
    },
    /// Letting a queue run off that grew faster than the law works.
    RunOff,
    /// Under the law.
    Steady,
    /// A moment at a small part of the rate, to see the bare round trip.
    Sounding(Sounding),
}

/// The default congestion control.
#[derive(Debug)]
pub struct Haul {
    config: Config,
    rng: Rng,
    /// Bytes of a full packet.
    packet: u64,
    base: Base,
    round: Round,
    losses: Losses,
    phase: Phase,
    steady: Steady,
    rival: Rival,
    probe: Probe,
    shallow: Shallow,
    /// Bytes per second.
    rate: f64,
    /// The rate of the narrowest place, as trains showed it at the start, or the highest seen since.
    narrowest: Option<f64>,
    /// Time-outs in a row.
    timeouts: u32,
    /// When the last feedback came, to notice silence.
    heard: Option<Time>,
    decision: Decision,
}

impl Haul {
    fn new(config: Config, info: &PathInfo, rng: Rng) -> Haul {
        let packet = info.packet_bytes.max(1);
        let base = Base::new(info.handshake_rtt);
        let window = config.initial_window.saturating_mul(packet) as f64;
        let known = info.known_rate.filter(|r| *r > MIN_RATE).map(|r| r.bytes_per_sec() as f64);
        let mut start = Start::new(known);
        start.recall(info.remembered);
        let mut haul = Haul {
            rate: known.unwrap_or(window / base.or(NOMINAL_RTT)),
            steady: Steady::default(),
            rival: Rival::default(),
            probe: Probe::default(),
            shallow: Shallow::default(),
            config,
            rng,
            packet,
            narrowest: None,
            base,
            round: Round::default(),
            losses: Losses::default(),
            phase: Phase::Start(start),
            timeouts: 0,
            heard: None,
            decision: Decision { rate: MIN_RATE, bound: 0, quantum: 0 },
        };
        haul.decide();
        haul
    }

    fn rtt(&self) -> f64 {
        self.base.or(NOMINAL_RTT)
    }

    fn target(&self, rate: f64) -> f64 {
        // A train of two packets is no queue.
        let train = 2.0 * self.packet as f64 / rate.max(1.0);
        self.config.target(rate, self.rtt()).min(self.losses.target_cap()).max(train.min(self.rtt()))
    }

    fn initial_window(&self) -> u64 {
        self.config.initial_window.saturating_mul(self.packet)
    }

    /// Sets rate, quantum and bound.
    fn decide(&mut self) {
        // A packet a round trip, or rounds become so long that it takes minutes to find a better rate.
        if self.rate * self.rtt() < self.packet as f64 {
            self.rate = self.rate.max(self.packet as f64 / (self.rtt() + self.round.queue_mean()));
        }
        self.rate = self.rate.max(MIN_RATE.bytes_per_sec() as f64);
        let gain = match &self.phase {
            Phase::Drain { .. } => steady::DRAIN_GAIN,
            Phase::Sounding(s) => s.gain(),
            Phase::Steady => self.steady.gain() * self.probe.gain(),
            Phase::Start(s) => s.gain(),
            Phase::RunOff => 1.0,
        };
        // A time-out halves the rate from the second in a row on: the first may be a lost feedback.
        let backoff = self.timeouts.saturating_sub(1).min(MAX_BACKOFF);
        let rate = (self.rate * gain / f64::from(1u32 << backoff)).min(u64::MAX as f64 / 16.0);
        let rate = Rate::from_bytes_per_sec(rate as u64).max(MIN_RATE);
        self.decision.rate = rate;
        let quantum = match &self.phase {
            Phase::Start(s) => s.quantum(rate, self.packet, s.first(self.initial_window()), self.rtt()),
            _ => pacer::quantum(rate, self.packet),
        };
        let longest = self.longest_train(rate.bytes_per_sec() as f64) / self.packet * self.packet;
        self.decision.quantum = quantum.min(longest.max(2 * self.packet));
        self.decision.bound = self.bound(rate.bytes_per_sec() as f64);
    }

    /// A safety net above what the rate puts in flight: the round trip with its queue, and what is delivered between
    /// two feedbacks or while a host looks away.
    fn bound(&self, rate: f64) -> u64 {
        let rtt = self.rtt();
        let (gain, queue) = match self.phase {
            Phase::Start(_) => (2.0, 0.0),
            Phase::RunOff => (1.0, self.target(rate)),
            _ => (1.25, self.allowed_queue() + 2.0 * self.target(rate)),
        };
        let flight = rate * gain * (rtt + queue) + rate * (rtt / 8.0 + 4.0 * HOST_NOISE);
        let least = self.packet.saturating_mul(MIN_PACKETS * 2).max(self.decision.quantum.saturating_mul(3));
        let first = if let Phase::Start(s) = &self.phase { s.first(self.initial_window()) } else { 0 };
        (flight as u64).max(least).max(first).min(MAX_BOUND)
    }

    /// The start is over: `rate` is what the path delivers.
    fn end_start(&mut self, rate: f64, inflight: u64, now: Time) {
        // What little arrives of a first flight may be the doing of a path that drops the rest for what it is.
        let rate = rate.max(self.initial_window() as f64 / FIRST_AT_LEAST / self.rtt());
        self.rate = rate;
        let full = inflight as f64 > rate * (self.rtt() + self.target(rate));
        self.phase = if full { Phase::Drain { rounds: 0 } } else { Phase::Steady };
        self.losses.answer(now);
        self.steady.restart(now, self.rtt(), &mut self.rng);
        self.probe.restart();
    }
}

impl Algorithm for Haul {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, train: &SentTrain) {
        if let Phase::Start(start) = &mut self.phase {
            start.on_sent(train.bytes);
        }
    }

    fn on_feedback(&mut self, s: &Signals) {
        if s.acked > 0 {
            self.timeouts = 0;
            self.notice_silence(s);
        }
        self.base.update(s, self.round.noise());
        let queue = self.base.queue(s);
        self.round.update(s, queue, self.losses.counts(s));
        self.base.learn(s, self.round.standing(), self.round.noise_reach(), self.rate);
        self.losses.undo(s, &mut self.rate);
        let runs_away = self.has_run_away(s);
        match &self.phase {
            Phase::Start(_) => self.on_start(s),
            Phase::Drain { rounds } => {
                let rounds = rounds + u32::from(s.round_start);
                let pipe = self.rate * (self.rtt() + self.target(self.rate));
                self.phase = Phase::Drain { rounds };
                if s.inflight as f64 <= pipe || rounds > steady::DRAIN_ROUNDS {
                    self.phase = Phase::Steady;
                    self.losses.answer(s.now);
                    self.steady.drained = s.now;
                    self.steady.restart(s.now, self.rtt(), &mut self.rng);
                }
            }
            Phase::Sounding(_) => self.on_sounding(s),
            Phase::RunOff => self.on_run_off(s),
            Phase::Steady if runs_away => self.begin_run_off(s),
            Phase::Steady if s.round_start => self.on_steady(s),
            Phase::Steady => {}
        }
        // A run-off measures by the path's round trips, which are shorter than its own.
        if s.round_start && !matches!(self.phase, Phase::RunOff) {
            self.round.finish();
        }
        self.decide();
    }

    fn on_event(&mut self, now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.timeouts = count,
            Event::PersistentCongestion => {
                self.rate /= COLLAPSE;
                (self.rival, self.shallow) = (Rival::default(), Shallow::default());
                self.phase = Phase::Start(Start::new(None));
            }
            Event::RestartFromIdle { idle_since } => {
                self.heard = None;
                self.round.restart();
                self.shallow.restart();
                self.probe.restart();
                if matches!(self.phase, Phase::Sounding(_)) {
                    // Nothing was queued: as good as a sounding, which would begin again and again with less.
                    self.base.end_sounding(now, false, self.round.noise());
                }
                if now.since(idle_since) > MEMORY && !matches!(self.phase, Phase::Start(_)) {
                    // RFC 9959: half of what was remembered, and the rest once that has arrived.
                    let known = core::mem::replace(&mut self.rate, 0.0);
                    self.rate = known / 2.0;
                    self.phase = Phase::Start(Start::remembered(known));
                } else if let Phase::Start(start) = &mut self.phase {
                    start.restart();
                } else {
                    self.phase = Phase::Steady;
                }
            }
            Event::PathChanged(info) => {
                let rng = self.rng.fork();
                *self = Haul::new(self.config, &info, rng);
            }
            Event::PacketSize(bytes) => {
                self.packet = bytes.max(1);
            }
        }
        self.decide();
    }

    fn decision(&self) -> Decision {
        self.decision
    }

    fn wants_dispersion(&self) -> bool {
        matches!(&self.phase, Phase::Start(s) if s.wants_trains())
    }

    fn state(&self) -> &'static str {
        match &self.phase {
            Phase::Start(s) => s.name(),
            Phase::Drain { .. } | Phase::RunOff => "drain",
            Phase::Sounding(_) => "sounding",
            Phase::Steady if self.rival.is_on() => "steady:rival",
            Phase::Steady => "steady",
        }
    }
}
