//! The default algorithm: keeps a small queue at a rate that packet trains find and that delay and delivery rate
//! hold.
//!
//! Like BBR it models the path (delivery rate, minimum round-trip time), but a control law takes the place of a cycle
//! of probes. Once per round trip, with `x` the delivery rate, `q` the queueing delay and `q*(x)` the flow's target
//! delay,
//!
//! ```text
//! rate  <- x * (1 + (q*(x) - q) / (2 rtt_min))    after FAST TCP (Wei, Jin, Low, Hegde, ToN 2006)
//! q*(x)  = 4 ms * sqrt(1 Gbit/s / x)              after Swift's flow scaling (Kumar et al., SIGCOMM 2020)
//! ```
//!
//! Every flow sees the same `q`, and `q*` falls with the rate, so the only equilibrium has equal rates, whatever the
//! round trips, and a late flow gets its share within seconds. A single flow keeps 4 ms of queue at 1 Gbit/s, ten
//! flows together three times as much.
//!
//! * `start`: the dispersion of trains shows the bottleneck's rate before the flow has filled it, so the start can
//!   leap without overshooting.
//! * `loss`: random loss does not enter the law; lost packets count as delivered. Loss with a queue, or heavy loss,
//!   is congestion. `shallow_queue`: where no queue is seen, the flow reduces its rate and checks whether the loss
//!   stops.
//! * `backlog`: where the path slows down faster than the law can follow, sending stops until the queue is cleared.
//! * `competitor`: a queue that no reduction empties belongs to flows that fill buffers; beside them the flow
//!   competes for its share, and checks after each overflow whether that is still necessary.
//! * The minimum round-trip time is kept until an RTT probe (a moment at a quarter of the rate, by all flows at once)
//!   finds another one, so a flow never mistakes its own queue for the path.

mod backlog;
mod competitor;
mod loss;
mod probe;
mod round;
mod shallow_queue;
mod start;
mod steady;
#[cfg(test)]
mod tests;

use self::competitor::Competitor;
use self::loss::LossState;
use self::probe::BandwidthProbe;
use self::round::{MinRtt, RoundStats};
use self::shallow_queue::ShallowQueue;
use self::start::Start;
use self::steady::{RttProbe, Steady};
use super::window::MAX_CWND;
use super::{MIN_PACKETS, MIN_RATE};
use crate::registry::{Definition, Kind, Needs, ParamDef, Params};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals, pacer};
use base::{Rate, Rng, Span, Time};

/// The registration.
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

/// The round-trip time assumed before any is known, in seconds.
const NOMINAL_RTT: f64 = 0.1;
/// Delay caused by hosts (timers, batches, schedulers), in seconds.
const HOST_NOISE: f64 = 0.001;
/// Persistent congestion divides the rate by this.
const COLLAPSE: f64 = 8.0;
/// Most halvings of the rate while time-outs repeat.
const MAX_BACKOFF: u32 = 10;
/// The start ends with at least the initial window divided by this, per round trip.
const MIN_START_DIVISOR: f64 = 4.0;
/// After a longer idle time the rate counts only as remembered, and the start verifies it.
const RATE_LIFETIME: Span = Span::from_secs(10);

/// Where a queue takes short trains only, what a late host sends at once, in trains.
const CATCH_UP_TRAINS: f64 = 1.5;

/// Parameters in internal units: seconds and fractions of one.
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

    /// The target queueing delay of a flow at `rate` (bytes per second) on a path of `rtt` seconds.
    fn target(&self, rate: f64, rtt: f64) -> f64 {
        const GIGABIT: f64 = 125e6;
        let scaled = self.queue.min(rtt / 5.0) * (GIGABIT / rate.max(1.0)).sqrt();
        // At most a third of a round trip, at least the noise of hosts.
        scaled.min(rtt * 0.35).max(HOST_NOISE / 2.0)
    }
}

/// The phase.
#[derive(Debug)]
enum Phase {
    /// Searching for the rate.
    Start(Start),
    /// Draining the queue of the start.
    Drain {
        /// Rounds spent.
        rounds: u32,
    },
    /// Clearing a queue that grew faster than the law could follow.
    Backlog,
    /// Applying the control law.
    Steady,
    /// Probing the minimum round-trip time at a fraction of the rate.
    RttProbe(RttProbe),
}

/// The default congestion control.
#[derive(Debug)]
pub struct Haul {
    config: Config,
    rng: Rng,
    /// Bytes of a full packet.
    packet: u64,
    min_rtt: MinRtt,
    round: RoundStats,
    losses: LossState,
    phase: Phase,
    steady: Steady,
    competitor: Competitor,
    probe: BandwidthProbe,
    shallow_queue: ShallowQueue,
    /// The rate in bytes per second.
    rate: f64,
    /// The bottleneck's rate, as trains showed it during the start, or the highest delivery rate since.
    bottleneck: Option<f64>,
    /// Time-outs in a row.
    timeouts: u32,
    /// The time of the last feedback, by which outages are detected.
    last_feedback: Option<Time>,
    decision: Decision,
}

impl Haul {
    fn new(config: Config, info: &PathInfo, rng: Rng) -> Haul {
        let packet = info.packet_bytes.max(1);
        let base = MinRtt::new(info.handshake_rtt);
        let window = config.initial_window.saturating_mul(packet) as f64;
        let known = info.known_rate.filter(|r| *r > MIN_RATE).map(|r| r.bytes_per_sec() as f64);
        let mut start = Start::new(known);
        start.set_remembered(info.remembered);
        let mut haul = Haul {
            rate: known.unwrap_or(window / base.get_or(NOMINAL_RTT)),
            steady: Steady::default(),
            competitor: Competitor::default(),
            probe: BandwidthProbe::default(),
            shallow_queue: ShallowQueue::default(),
            config,
            rng,
            packet,
            bottleneck: None,
            min_rtt: base,
            round: RoundStats::default(),
            losses: LossState::default(),
            phase: Phase::Start(start),
            timeouts: 0,
            last_feedback: None,
            decision: Decision { rate: MIN_RATE, cwnd: 0, quantum: 0 },
        };
        if let Some(memory) = &info.remembered {
            haul.recall_trains(memory);
        }
        haul.decide();
        haul
    }

    fn rtt(&self) -> f64 {
        self.min_rtt.get_or(NOMINAL_RTT)
    }

    fn target(&self, rate: f64) -> f64 {
        // A train of two packets is not a queue.
        let train = 2.0 * self.packet as f64 / rate.max(1.0);
        self.config.target(rate, self.rtt()).min(self.losses.target_cap()).max(train.min(self.rtt()))
    }

    fn initial_window(&self) -> u64 {
        self.config.initial_window.saturating_mul(self.packet)
    }

    /// Sets rate, quantum and congestion window from the phase and the model.
    fn decide(&mut self) {
        // At least a packet per round trip; otherwise rounds become so long that finding a better rate takes minutes.
        if self.rate * self.rtt() < self.packet as f64 {
            self.rate = self.rate.max(self.packet as f64 / (self.rtt() + self.round.mean_queue()));
        }
        self.rate = self.rate.max(MIN_RATE.bytes_per_sec() as f64);
        let gain = match &self.phase {
            Phase::Drain { .. } => steady::DRAIN_GAIN,
            Phase::RttProbe(s) => s.gain(),
            Phase::Steady => self.steady.gain() * self.probe.gain(),
            Phase::Start(s) => s.gain(),
            Phase::Backlog => 1.0,
        };
        // The second and further time-outs in a row halve the rate; the first may be a lost feedback.
        let backoff = self.timeouts.saturating_sub(1).min(MAX_BACKOFF);
        let rate = (self.rate * gain / f64::from(1u32 << backoff)).min(u64::MAX as f64 / 16.0);
        let rate = Rate::from_bytes_per_sec(rate as u64).max(MIN_RATE);
        self.decision.rate = rate;
        let quantum = match &self.phase {
            Phase::Start(s) => {
                s.quantum(rate, self.packet, s.first_flight(self.initial_window()), self.rtt())
            }
            _ => pacer::quantum(rate, self.packet),
        };
        let longest = self.max_train_bytes(rate.bytes_per_sec() as f64) / self.packet * self.packet;
        self.decision.quantum = quantum.min(longest.max(2 * self.packet));
        self.decision.cwnd = self.cwnd(rate.bytes_per_sec() as f64);
    }

    /// The congestion window, a safety net above the data in flight at this rate: the round trip with its queue, plus data
    /// delivered between two feedbacks or while a host is busy.
    fn cwnd(&self, rate: f64) -> u64 {
        let rtt = self.rtt();
        let (gain, queue) = match self.phase {
            Phase::Start(_) => (2.0, 0.0),
            Phase::Backlog => (1.0, self.target(rate)),
            _ => (1.25, self.allowed_queue() + 2.0 * self.target(rate)),
        };
        let flight = rate * gain * (rtt + queue) + rate * (rtt / 8.0 + 4.0 * HOST_NOISE);
        let least = self.packet.saturating_mul(MIN_PACKETS * 2).max(self.decision.quantum.saturating_mul(3));
        let first = if let Phase::Start(s) = &self.phase { s.first_flight(self.initial_window()) } else { 0 };
        (flight as u64).max(least).max(first).min(MAX_CWND)
    }

    /// Ends the start with `rate`, which the path delivers.
    fn end_start(&mut self, rate: f64, inflight: u64, now: Time) {
        // A path that drops these packets for what they are may deliver little of the first flight.
        let rate = rate.max(self.initial_window() as f64 / MIN_START_DIVISOR / self.rtt());
        self.rate = rate;
        let full = inflight as f64 > rate * (self.rtt() + self.target(rate));
        self.phase = if full { Phase::Drain { rounds: 0 } } else { Phase::Steady };
        self.losses.begin_recovery(now);
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
            self.detect_outage(s);
        }
        self.losses.learn_detection_lag(s);
        self.min_rtt.update(s, self.round.noise());
        let queue = self.min_rtt.queueing_delay(s);
        self.round.update(s, queue, self.losses.counts(s));
        self.min_rtt.learn_noise(s, self.round.standing_queue(), self.round.noise_reach(), self.rate);
        self.losses.undo_spurious(s, &mut self.rate);
        if s.round_start {
            self.learn_carried_queue(s);
        }
        let runs_away = self.has_excessive_queue(s);
        match &self.phase {
            Phase::Start(_) => self.on_start(s),
            Phase::Drain { rounds } => {
                let rounds = rounds + u32::from(s.round_start);
                let pipe = self.rate * (self.rtt() + self.target(self.rate));
                self.phase = Phase::Drain { rounds };
                if s.inflight as f64 <= pipe || rounds > steady::DRAIN_ROUNDS {
                    self.phase = Phase::Steady;
                    self.losses.begin_recovery(s.now);
                    self.steady.drain_end = s.now;
                    self.steady.restart(s.now, self.rtt(), &mut self.rng);
                }
            }
            Phase::RttProbe(_) => self.on_rtt_probe(s),
            Phase::Backlog => self.on_backlog(s),
            Phase::Steady if runs_away => self.begin_backlog(s),
            Phase::Steady if s.round_start => self.on_steady(s),
            Phase::Steady => {}
        }
        // The backlog phase uses the path's round trips, which are shorter than those with its queue.
        if s.round_start && !matches!(self.phase, Phase::Backlog) {
            self.round.finish();
        }
        self.decide();
    }

    fn on_event(&mut self, now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.timeouts = count,
            Event::PersistentCongestion => {
                self.rate /= COLLAPSE;
                (self.competitor, self.shallow_queue) = (Competitor::default(), ShallowQueue::default());
                self.phase = Phase::Start(Start::new(None));
            }
            Event::RestartFromIdle { idle_since } => {
                self.last_feedback = None;
                self.round.restart();
                self.shallow_queue.restart();
                self.probe.restart();
                if matches!(self.phase, Phase::RttProbe(_)) {
                    // The queue is empty, which is as good as an RTT probe; a probe would restart with a lower rate
                    // each time.
                    self.min_rtt.end_probe(now, false, self.round.noise());
                }
                if now.since(idle_since) > RATE_LIFETIME && !matches!(self.phase, Phase::Start(_)) {
                    // RFC 9959: half of the remembered rate, and the rest once that has arrived.
                    let known = core::mem::replace(&mut self.rate, 0.0);
                    self.rate = known / 2.0;
                    self.phase = Phase::Start(Start::with_known_rate(known));
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

    fn catch_up(&self) -> Span {
        let Some(train) = self.longest_train() else { return pacer::CATCH_UP };
        let rate = self.decision.rate.bytes_per_sec().max(1) as f64;
        Span::from_secs_f64(train as f64 * CATCH_UP_TRAINS / rate)
    }

    fn longest_train(&self) -> Option<u64> {
        let rate = self.decision.rate;
        let fits = match &self.phase {
            // The trains of a low rate are short whatever the queue takes.
            Phase::Start(s) => return s.remembered_train(),
            _ => self.train_that_fits(rate.bytes_per_sec() as f64),
        };
        let usual = pacer::quantum(rate, self.packet);
        (fits < usual).then_some((fits / self.packet * self.packet).max(2 * self.packet))
    }

    fn wants_dispersion(&self) -> bool {
        matches!(&self.phase, Phase::Start(s) if s.wants_trains())
    }

    fn state(&self) -> &'static str {
        match &self.phase {
            Phase::Start(s) => s.name(),
            Phase::Drain { .. } | Phase::Backlog => "drain",
            Phase::RttProbe(_) => "probe_rtt",
            Phase::Steady if self.competitor.is_competing() => "steady:competing",
            Phase::Steady => "steady",
        }
    }
}
