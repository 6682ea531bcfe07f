//! BBR version 3, after draft-ietf-ccwg-bbr: sets rate and congestion window from a model of the path
//! (bandwidth, round-trip time, safe data in flight).
//!
//! Deviations from the draft:
//! * **Loss is judged by statistics.** The draft reduces its short-term bounds on any loss outside probing;
//!   with 1 % of random loss every round trip on a fast path has losses, and the rate decays by a few
//!   percent each. Here a round counts as lossy when its losses exceed the 2 % threshold by three standard
//!   deviations (`excessive`), and small rounds are pooled until there are packets enough to judge.
//! * **Loss without delay is not taken for congestion** unless it is heavy (`loss_alone`, 10 %): a drop-tail queue
//!   that overflows was full a moment before, and a full queue shows in the delay.
//! * **Startup grows threefold a round trip**, not twofold, until the delay first rises; then it grows more slowly
//!   than the draft's and needs fewer rounds to detect a full pipe if a standing queue proves it.
//! * **A round-trip sample close to the minimum renews it**, not only one below it: a flow whose queue empties
//!   regularly, as it does here after each probe, never has to reduce its window in ProbeRTT.
//! * **Headroom is left in the queue, not in the pipe**: while cruising, a long-term bound never reduces the data in
//!   flight below one bandwidth-delay product.
//! * **Losses of packets sent before a reduction are covered by it**, as in Reno's recovery.
//! * **A smaller path is followed within a few round trips** if the delay proves it, and a larger one is filled with
//!   growing gains, not by a quarter each round.
//! * **The 1 % pacing margin applies only while a queue stands**, grows with it up to 5 %, and random loss is
//!   compensated by sending more (up to the loss threshold) while none does.
//!   top (up to the loss threshold) while none does.

mod bounds;
pub(crate) mod model;
mod phases;
#[cfg(test)]
mod tests;

use self::bounds::Bounds;
use self::model::Model;
use self::phases::{FullPipeCheck, Phase, ProbeCycle, ProbeRtt};
use super::paced::clamp_rate;
use super::window::MAX_CWND;
use super::{MIN_PACKETS, MIN_RATE};
use crate::registry::{Definition, Kind, Needs, ParamDef, Params};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals, pacer};
use base::{Rate, Rng, Span, Time};

/// The registration.
pub(crate) const DEFINITION: Definition = Definition {
    name: "bbr",
    summary: "BBRv3 (draft-ietf-ccwg-bbr): models bandwidth and round trip; withstands random loss",
    params: &[
        ParamDef {
            name: "probe_rtt",
            help: "drain the queue now and then to measure the round trip anew",
            kind: Kind::Switch { default: true },
        },
        ParamDef {
            name: "probe_rtt_interval",
            help: "time without a round trip near the minimum after which it is probed for",
            kind: Kind::Span {
                min: Span::from_secs(1),
                max: Span::from_secs(600),
                default: Span::from_secs(5),
            },
        },
        ParamDef {
            name: "probe_interval",
            help: "least time between probes for more bandwidth; a random second part of it is added",
            kind: Kind::Span {
                min: Span::from_millis(100),
                max: Span::from_secs(60),
                default: Span::from_secs(2),
            },
        },
        ParamDef {
            name: "loss",
            help: "share of loss within a round trip that is taken for congestion where a queue stands",
            kind: Kind::Share { min: 100, max: 50_000, default: 2_000 },
        },
        ParamDef {
            name: "loss_alone",
            help: "the same where the delay shows no queue",
            kind: Kind::Share { min: 100, max: 50_000, default: 10_000 },
        },
        ParamDef {
            name: "ecn",
            help: "count packets marked Congestion Experienced as lost",
            kind: Kind::Switch { default: true },
        },
        ParamDef {
            name: "initial_window",
            help: "what is sent in the first round trip",
            kind: Kind::Count { unit: "packets", min: 2, max: 10_000, default: 32 },
        },
    ],
    needs: Needs::NOTHING,
    code: "",
    build: &|params, info, rng| Box::new(Bbr::new(Config::from_params(params), info, rng)),
};

/// Gains are in thousandths.
const ONE: u64 = 1_000;
/// Subtracted from the rate while a queue stands, in thousandths (draft: BBRPacingMarginPercent).
const PACING_MARGIN: u64 = 10;
/// Most that a standing queue subtracts in addition, in thousandths.
const MAX_QUEUE_MARGIN: u64 = 40;
/// Fewest packets in flight (draft: BBRMinPipeCwnd).
const MIN_PIPE_PACKETS: u64 = 4;
/// The round trip assumed before any is known (draft: nominal bandwidth from 1 ms).
const NOMINAL_RTT: Span = Span::from_millis(1);
/// Persistent congestion divides the bandwidth estimate by this: Startup is back at the old rate within three round
/// trips if it is still there, and does little harm if not.
const PERSISTENT_CONGESTION_DIVISOR: u64 = 8;
/// Most halvings of the rate while time-outs repeat.
const MAX_BACKOFF: u32 = 10;

/// Parameters in internal units.
#[derive(Clone, Copy, Debug)]
struct Config {
    probe_rtt: bool,
    probe_rtt_interval: Span,
    probe_interval: Span,
    loss: u64,
    loss_alone: u64,
    ecn: bool,
    initial_window: u64,
}

impl Config {
    fn from_params(p: &Params) -> Config {
        Config {
            probe_rtt: p.switch("probe_rtt"),
            probe_rtt_interval: p.span("probe_rtt_interval"),
            probe_interval: p.span("probe_interval"),
            loss: p.share("loss"),
            loss_alone: p.share("loss_alone").max(p.share("loss")),
            ecn: p.switch("ecn"),
            initial_window: p.count("initial_window"),
        }
    }
}

/// BBRv3.
#[derive(Debug)]
pub struct Bbr {
    config: Config,
    rng: Rng,
    /// Bytes of a full packet.
    packet: u64,
    model: Model,
    bounds: Bounds,
    /// The bounds before the last reduction, restored if its losses were spurious.
    undo: Option<Bounds>,
    phase: Phase,
    phase_start: Time,
    full_pipe: FullPipeCheck,
    cycle: ProbeCycle,
    probe_rtt: ProbeRtt,
    /// The known rate, while it is being verified.
    resume_rate: Option<Rate>,
    /// Time-outs in a row.
    timeouts: u32,
    /// The flow was idle until now: pace at the estimated bandwidth without a probe.
    idle_restart: bool,
    decision: Decision,
}

impl Bbr {
    fn new(config: Config, info: &PathInfo, rng: Rng) -> Bbr {
        let packet = info.packet_bytes.max(1);
        let rtt = info.handshake_rtt.filter(|r| !r.is_zero());
        let window = config.initial_window.saturating_mul(packet);
        let nominal = Rate::from_bytes_in(window, rtt.unwrap_or(NOMINAL_RTT)).max(MIN_RATE);
        let resume = info.known_rate.filter(|r| *r > MIN_RATE);
        let mut bbr = Bbr {
            config,
            rng,
            packet,
            model: Model::new(resume.unwrap_or(nominal), rtt),
            bounds: Bounds::default(),
            undo: None,
            phase: if resume.is_some() { Phase::Resume } else { Phase::Startup { careful: false } },
            phase_start: Time::ZERO,
            full_pipe: FullPipeCheck::default(),
            cycle: ProbeCycle::default(),
            probe_rtt: ProbeRtt::default(),
            resume_rate: resume,
            timeouts: 0,
            idle_restart: false,
            decision: Decision { rate: MIN_RATE, cwnd: 0, quantum: 0 },
        };
        bbr.decide();
        bbr
    }

    /// The bandwidth to send at: the model's, limited by the short-term bound.
    fn bw(&self) -> Rate {
        self.model.max_bw().min(self.bounds.bw_short).max(MIN_RATE)
    }

    /// Data in flight for `gain` (in thousandths) times the bandwidth-delay product, as it is just after a feedback;
    /// at least three trains, since senders and receivers work in batches (draft: BBRQuantizationBudget).
    fn inflight(&self, bw: Rate, gain: u64) -> u64 {
        let bdp = bw.scale(gain, ONE).bytes_in(self.model.min_rtt_or(NOMINAL_RTT));
        bdp.max(self.decision.quantum.saturating_mul(3)).max(self.min_pipe())
    }

    /// The same just before a feedback: data delivered since the last feedback still counts as in flight at the
    /// sender and must not stop it, nor must delays in hosts.
    fn inflight_with_gap(&self, bw: Rate, gain: u64) -> u64 {
        let late = self.model.feedback_gap().max(model::HOST_NOISE * 2);
        self.inflight(bw, gain).saturating_add(bw.bytes_in(late))
    }

    fn min_pipe(&self) -> u64 {
        self.packet.saturating_mul(MIN_PIPE_PACKETS.max(MIN_PACKETS))
    }

    /// Sets rate, quantum and congestion window from phase and model (draft: BBRUpdateControlParameters).
    fn decide(&mut self) {
        let bw = self.bw();
        let gain = match self.phase {
            Phase::Up => self.cycle.up_gain(),
            phase => phase.pacing_gain(),
        };
        let mut rate = bw.scale(gain, ONE);
        if self.full_pipe.reached && !self.model.queue_is_empty() {
            rate = rate.scale(ONE - self.pacing_margin(), ONE);
        } else if self.phase.is_steady() {
            rate = rate.scale(model::SHARE, model::SHARE - self.model.random_loss().min(self.config.loss));
        }
        // The second and further time-outs in a row halve the rate; the first may be a lost feedback.
        let backoff = self.timeouts.saturating_sub(1).min(MAX_BACKOFF);
        let rate = clamp_rate(rate.scale(1, 1 << backoff));
        self.decision.rate = rate;
        self.decision.quantum = pacer::quantum(rate, self.packet);
        self.decision.cwnd = self.cwnd();
    }

    /// The part of the rate that is subtracted, in thousandths. It grows with the standing queue, which shows how far
    /// the bandwidth is overestimated (jitter raises the maximum of the samples above their mean).
    fn pacing_margin(&self) -> u64 {
        let rtt = self.model.path_time().as_nanos();
        let queue = self.model.standing_queue().as_nanos().saturating_mul(100) / rtt;
        PACING_MARGIN + queue.min(MAX_QUEUE_MARGIN)
    }

    /// The congestion window of phase and model (draft: BBRSetCwnd, without its growth by what is acknowledged).
    fn cwnd(&self) -> u64 {
        let bw = self.bw();
        let mut cwnd = self.inflight_with_gap(bw, self.phase.cwnd_gain());
        if self.full_pipe.reached {
            cwnd = cwnd.saturating_add(self.model.extra_acked());
        } else {
            let initial = self.config.initial_window.saturating_mul(self.packet);
            cwnd = cwnd.saturating_add(self.decision.quantum).max(initial);
        }
        if matches!(self.phase, Phase::ProbeRtt) {
            cwnd = cwnd.min(self.probe_rtt_inflight());
        }
        cwnd.min(self.max_cwnd_of_model()).min(MAX_CWND).max(self.min_pipe())
    }

    /// The largest congestion window that the bounds learned from losses allow (draft: BBRBoundCwndForModel).
    fn max_cwnd_of_model(&self) -> u64 {
        let bw = self.bw();
        let long = match self.phase {
            // Headroom is left in the queue, not in the pipe: with a shallow queue the draft's rule gives up a
            // seventh of the bandwidth.
            Phase::Cruise | Phase::ProbeRtt => {
                let pipe = self.inflight_with_gap(bw, ONE).min(self.bounds.inflight_long);
                self.bounds.with_headroom().max(pipe)
            }
            Phase::Down | Phase::Refill | Phase::Up => self.bounds.inflight_long,
            Phase::Startup { .. } | Phase::Resume | Phase::Drain => u64::MAX,
        };
        long.min(self.bounds.inflight_short)
    }

    /// The share of loss that counts as congestion, in parts per [`model::SHARE`]: the path's random loss plus the
    /// threshold.
    fn loss_threshold(&self) -> u64 {
        match self.model.queue_was_seen() {
            true => (self.config.loss + self.model.random_loss()).min(self.config.loss_alone),
            false => self.config.loss_alone,
        }
    }
}

impl Algorithm for Bbr {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, _train: &SentTrain) {}

    fn on_feedback(&mut self, s: &Signals) {
        // A sample without an interval has no rate.
        let s = &Signals { rate: s.rate.filter(|r| !r.interval.is_zero()), ..*s };
        if s.acked > 0 {
            self.timeouts = 0;
        }
        self.model.update(s, self.config.ecn, self.full_pipe.reached);
        self.undo_spurious(s);
        self.adapt_short_term(s.now);
        self.follow_shrunk_path();
        self.model.update_bandwidth(s);
        self.model.update_extra_acked(s, self.bw());
        self.advance_phase(s);
        self.check_probe_rtt(s);
        if s.acked > 0 {
            self.idle_restart = false;
        }
        self.model.finish(s);
        self.decide();
    }

    fn on_event(&mut self, now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.timeouts = count,
            Event::PersistentCongestion => {
                self.model.collapse(self.bw().scale(1, PERSISTENT_CONGESTION_DIVISOR).max(MIN_RATE));
                self.bounds = Bounds::default();
                self.undo = None;
                self.full_pipe = FullPipeCheck::default();
                self.resume_rate = None;
                self.enter(Phase::Startup { careful: false }, now);
            }
            Event::RestartFromIdle { .. } => {
                self.idle_restart = true;
                self.model.restart_extra_acked(now);
                if self.phase.in_probe_bw() {
                    // The queue is empty after an idle time, so neither drain nor probe: pace at the estimate.
                    self.enter(Phase::Cruise, now);
                } else if matches!(self.phase, Phase::ProbeRtt) {
                    self.probe_rtt_done_if_due(now);
                }
            }
            Event::PathChanged(info) => {
                let rng = self.rng.fork();
                *self = Bbr::new(self.config, &info, rng);
                self.phase_start = now;
            }
            Event::PacketSize(bytes) => self.packet = bytes.max(1),
        }
        self.decide();
    }

    fn decision(&self) -> Decision {
        self.decision
    }

    fn state(&self) -> &'static str {
        self.phase.name()
    }
}
