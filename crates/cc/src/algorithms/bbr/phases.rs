//! The phases of BBR and the transitions between them.

use super::bounds::Bounds;
use super::{Bbr, ONE};
use crate::Signals;
use base::{Rate, Span, Time};

/// Pacing gain of Startup for threefold growth per round trip. A delivery sample averages the last round trip and is
/// one round trip old, so growth by `e^a` a round needs the gain `a / (e^-a * (1 - e^-a))`: 4.95 for 3, and 2.77 for
/// 2, the draft's value.
const STARTUP_PACING: u64 = 5_000;
const STARTUP_CWND: u64 = 3_200;
/// Gains of Startup once the delay has risen, enough to distinguish a full pipe from a growing one.
const CAREFUL_PACING: u64 = 2_000;
const CAREFUL_CWND: u64 = 1_750;
/// Steady gains (draft, section 5.6.1).
const CWND: u64 = 2_000;
const UP_CWND: u64 = 2_250;
/// Gain of the congestion window for a remembered rate until that is confirmed.
const RESUME_CWND: u64 = 1_250;
const DRAIN_PACING: u64 = 500;
const DOWN_PACING: u64 = 900;
/// Gains of a probe: the first, and the next ones while the bandwidth grows without a queue.
const UP_PACING: [u64; 3] = [1_250, 1_750, 2_500];
/// Growth in a round, in thousandths, after which a probe uses the next gain.
const UP_GROWTH: u64 = 1_100;
const PROBE_RTT_CWND: u64 = 500;
/// Growth in a round that counts as growth (draft: 25 %).
const FULL_GROWTH: u64 = 1_250;
/// Rounds without growth after which the pipe counts as full.
const FULL_ROUNDS: u32 = 3;
/// Rounds after which Drain ends in any case.
const DRAIN_ROUNDS: u64 = 4;
/// Share of a remembered rate that must be delivered to confirm it, in thousandths.
const RESUME_HOLDS: u64 = 850;
/// Most rounds for which a remembered rate is tried.
const RESUME_ROUNDS: u64 = 3;
/// Time for which ProbeRTT limits the data in flight.
const PROBE_RTT_TIME: Span = Span::from_millis(200);
/// Most rounds between probes, so that they are as frequent as those of a Reno flow (draft, section 5.3.3.9).
const RENO_ROUNDS: u64 = 63;

/// The phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Startup: searching for the bandwidth; `careful` once the delay has risen.
    Startup { careful: bool },
    /// Sending at a known rate to verify it.
    Resume,
    /// Draining the queue of Startup.
    Drain,
    /// ProbeBW: draining the queue of the last probe.
    Down,
    /// ProbeBW: sending at the bandwidth.
    Cruise,
    /// ProbeBW: filling the pipe before a probe.
    Refill,
    /// ProbeBW: sending faster to see whether there is more.
    Up,
    /// ProbeRTT: limiting the data in flight to measure the round trip without a queue.
    ProbeRtt,
}

impl Phase {
    pub(super) const fn pacing_gain(self) -> u64 {
        match self {
            Phase::Startup { careful: false } => STARTUP_PACING,
            Phase::Startup { careful: true } => CAREFUL_PACING,
            Phase::Drain => DRAIN_PACING,
            Phase::Down => DOWN_PACING,
            Phase::Up => UP_PACING[0],
            Phase::Resume | Phase::Cruise | Phase::Refill | Phase::ProbeRtt => ONE,
        }
    }
    pub(super) const fn cwnd_gain(self) -> u64 {
        match self {
            Phase::Startup { careful: false } => STARTUP_CWND,
            Phase::Startup { careful: true } => CAREFUL_CWND,
            Phase::Up => UP_CWND,
            Phase::Resume => RESUME_CWND,
            Phase::ProbeRtt => PROBE_RTT_CWND,
            _ => CWND,
        }
    }
    /// Whether it is one of the four phases of ProbeBW.
    pub(super) const fn in_probe_bw(self) -> bool {
        matches!(self, Phase::Down | Phase::Cruise | Phase::Refill | Phase::Up)
    }
    /// Whether losses are expected in this phase, so that they do not affect the short-term bounds.
    pub(super) const fn is_probing(self) -> bool {
        matches!(self, Phase::Startup { .. } | Phase::Refill | Phase::Up)
    }
    /// Whether the phase sends at the estimated bandwidth.
    pub(super) const fn is_steady(self) -> bool {
        matches!(self, Phase::Cruise | Phase::Refill)
    }
    pub(super) const fn name(self) -> &'static str {
        match self {
            Phase::Startup { careful: false } => "startup",
            Phase::Startup { careful: true } => "startup:careful",
            Phase::Resume => "resume",
            Phase::Drain => "drain",
            Phase::Down => "probe_bw:down",
            Phase::Cruise => "probe_bw:cruise",
            Phase::Refill => "probe_bw:refill",
            Phase::Up => "probe_bw:up",
            Phase::ProbeRtt => "probe_rtt",
        }
    }
}

/// Whether the pipe is full: in this probe, and ever since Startup.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FullPipeCheck {
    bw: Rate,
    rounds: u32,
    pub(super) now: bool,
    pub(super) reached: bool,
}

impl FullPipeCheck {
    fn reset(&mut self) {
        *self = FullPipeCheck { reached: self.reached, ..FullPipeCheck::default() };
    }
}

/// The cycle of bandwidth probes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProbeCycle {
    start: Time,
    wait: Span,
    rounds: u64,
    /// Samples belong to the present probe, so that losses tell how much in flight was too much.
    pub(super) has_probe_samples: bool,
    /// The first samples after a probe are due, at which the bandwidth filter advances.
    after_probe: bool,
    /// Index of the probe's gain, its rounds, and the bandwidth a round ago.
    up_step: usize,
    up_elapsed_rounds: u32,
    up_bw: Rate,
    pub(super) up_acks: u64,
    pub(super) up_rounds: u32,
    pub(super) bytes_per_raise: u64,
}

impl ProbeCycle {
    pub(super) fn up_gain(&self) -> u64 {
        UP_PACING[self.up_step.min(UP_PACING.len() - 1)]
    }
}

/// The state of ProbeRTT.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ProbeRtt {
    done: Option<Time>,
    round_done: bool,
}

impl Bbr {
    pub(super) fn enter(&mut self, phase: Phase, now: Time) {
        self.phase = phase;
        self.phase_start = now;
    }

    /// Changes the phase as the feedback requires (draft: BBRUpdateModelAndState).
    pub(super) fn advance_phase(&mut self, s: &Signals) {
        self.check_full_pipe(s);
        match self.phase {
            Phase::Startup { careful } => self.check_startup(s, careful),
            Phase::Resume => self.check_resume(s),
            Phase::Drain => {
                let rounds = self.model.rounds.saturating_sub(self.cycle.rounds);
                if s.inflight <= self.inflight(self.bw(), ONE) || rounds > DRAIN_ROUNDS {
                    self.start_down(s);
                }
            }
            _ => {}
        }
        if self.full_pipe.reached {
            self.update_cycle(s);
        }
    }

    /// Detects a full pipe: no growth by a quarter for three rounds (draft: BBRCheckFullBWReached), or one round with
    /// a standing queue of half a round trip.
    fn check_full_pipe(&mut self, s: &Signals) {
        let Some(r) = s.rate else { return };
        if self.full_pipe.now || !self.model.round_start || r.app_limited {
            return;
        }
        if r.rate >= self.full_pipe.bw.scale(FULL_GROWTH, ONE) {
            self.full_pipe.reset();
            self.full_pipe.bw = r.rate;
            return;
        }
        let proof = self.model.standing_queue() > self.model.path_time() / 2;
        self.full_pipe.rounds += if proof { FULL_ROUNDS } else { 1 };
        self.full_pipe.now = self.full_pipe.rounds >= FULL_ROUNDS;
    }

    fn check_startup(&mut self, s: &Signals, careful: bool) {
        if self.inflight_too_high(s) || self.model.judged_losses.is_some_and(|j| self.is_lossy(j)) {
            if careful && self.model.round_start {
                let bdp = self.inflight(self.bw(), ONE);
                self.bounds.inflight_long = bdp.max(self.model.inflight_latest);
                self.full_pipe.now = true;
            }
            self.phase = Phase::Startup { careful: true };
        } else if s.app_limited || s.rate.is_some_and(|r| r.app_limited) {
            // The first packets of an application cause no queue; their delay is that of the peer's host opening
            // files.
        } else if self.model.queue_grows() {
            self.phase = Phase::Startup { careful: true };
        } else if careful && self.model.round_start && self.model.queue_is_empty() {
            self.phase = Phase::Startup { careful: false };
        }
        if self.full_pipe.now {
            self.start_drain(s);
        }
    }

    fn is_lossy(&self, (lost, packets): (u64, u64)) -> bool {
        super::model::exceeds_significantly(lost, packets, self.loss_threshold())
    }

    fn start_drain(&mut self, s: &Signals) {
        self.full_pipe.reached = true;
        self.model.forget_initial();
        self.model.clear_losses(s.now);
        self.cycle.rounds = self.model.rounds;
        self.enter(Phase::Drain, s.now);
    }

    /// Verifies a known rate (Careful Resume, RFC 9959): kept once it was delivered, left at the first excess of
    /// loss, and dropped if the application never used it.
    fn check_resume(&mut self, s: &Signals) {
        let Some(known) = self.resume_rate else { return };
        let lossy = self.inflight_too_high(s) || self.model.judged_losses.is_some_and(|j| self.is_lossy(j));
        let measured = self.model.measured_bw();
        let holds = measured >= known.scale(RESUME_HOLDS, ONE);
        if lossy || self.model.rounds > RESUME_ROUNDS && !holds && self.model.queue_stands() {
            self.resume_rate = None;
            self.start_drain(s);
        } else if holds {
            self.resume_rate = None;
            self.full_pipe.reached = true;
            self.model.forget_initial();
            // Refill leads to a probe at once, since there may be more than the known rate.
            self.start_down(s);
            self.start_refill(s);
        } else if self.model.rounds > RESUME_ROUNDS {
            self.resume_rate = None;
            self.model.forget_initial();
            self.enter(Phase::Startup { careful: false }, s.now);
        }
    }

    /// ProbeBW (draft: BBRUpdateProbeBWCyclePhase).
    fn update_cycle(&mut self, s: &Signals) {
        if self.model.round_start && self.cycle.after_probe {
            self.cycle.after_probe = false;
            if self.phase.in_probe_bw() && !s.rate.is_some_and(|r| r.app_limited) {
                self.model.advance_bandwidth();
            }
        }
        self.adapt_long_term(s);
        let phase = self.phase;
        match phase {
            Phase::Down => {
                if self.time_to_probe(s) {
                    self.start_refill(s);
                } else if self.time_to_cruise(s) {
                    self.enter(Phase::Cruise, s.now);
                }
            }
            Phase::Cruise => {
                self.model.learn_random_loss();
                if self.time_to_probe(s) {
                    self.start_refill(s);
                }
            }
            Phase::Refill if self.model.round_start => self.start_up(s),
            Phase::Up if self.time_to_go_down(s) => self.start_down(s),
            _ => {}
        }
    }

    fn time_to_cruise(&self, s: &Signals) -> bool {
        let target = self.inflight(self.model.max_bw(), ONE);
        s.inflight <= target.min(self.bounds.inflight_long.max(self.min_pipe()))
    }

    /// Whether a probe is due: the wait is over, or as many rounds have passed as a Reno flow of this size takes to
    /// grow by one window.
    fn time_to_probe(&self, s: &Signals) -> bool {
        let window = self.inflight(self.bw(), ONE).min(self.decision.cwnd);
        let reno = (window / self.packet).min(RENO_ROUNDS);
        s.now.since(self.cycle.start) >= self.cycle.wait
            || self.model.rounds.saturating_sub(self.cycle.rounds) >= reno.max(1)
    }

    /// Whether a probe should end: the bandwidth has not grown for three rounds, or for one in which a quarter more
    /// was in flight than the bandwidth explains, which is a queue. A probe continues while the bandwidth grows, by
    /// which a new flow gets its share.
    fn time_to_go_down(&mut self, s: &Signals) -> bool {
        if s.prior_inflight >= self.bounds.inflight_long {
            self.full_pipe.reset();
            self.full_pipe.bw = s.rate.map_or(self.full_pipe.bw, |r| r.rate);
        } else if self.full_pipe.now {
            return true;
        }
        if !self.model.round_start {
            return false;
        }
        // The first round acknowledges packets sent before the probe; only the second can show growth.
        self.cycle.up_elapsed_rounds += 1;
        if self.cycle.up_elapsed_rounds < 2 {
            return false;
        }
        let (bw, queue) = (self.model.max_bw(), self.model.queue_was_seen());
        let grown = bw >= self.cycle.up_bw.scale(UP_GROWTH, ONE);
        self.cycle.up_bw = bw;
        self.cycle.up_step = match (queue, grown) {
            (false, true) => (self.cycle.up_step + 1).min(UP_PACING.len() - 1),
            (true, _) => 0,
            (false, false) => self.cycle.up_step,
        };
        let above = if queue { UP_PACING[0] } else { CWND };
        !grown && s.inflight >= self.inflight(bw, above)
    }

    /// Draft: BBRStartProbeBW_DOWN.
    pub(super) fn start_down(&mut self, s: &Signals) {
        self.cycle.up_rounds = 0;
        self.cycle.bytes_per_raise = u64::MAX;
        self.cycle.has_probe_samples = false;
        self.cycle.after_probe = true;
        self.cycle.start = s.now;
        self.cycle.rounds = self.model.rounds.saturating_sub(self.rng.below(2));
        let wait = self.config.probe_interval;
        self.cycle.wait = wait + Span::from_nanos(self.rng.below(wait.as_nanos() / 2));
        self.model.start_round(s.delivered);
        self.model.clear_losses(s.now);
        self.full_pipe.now = false;
        self.enter(Phase::Down, s.now);
    }

    /// Draft: BBRStartProbeBW_REFILL.
    fn start_refill(&mut self, s: &Signals) {
        self.undo = None;
        self.bounds.reset_short();
        self.cycle.up_rounds = 0;
        self.cycle.up_acks = 0;
        self.cycle.after_probe = false;
        self.model.start_round(s.delivered);
        self.enter(Phase::Refill, s.now);
    }

    /// Draft: BBRStartProbeBW_UP.
    fn start_up(&mut self, s: &Signals) {
        self.cycle.has_probe_samples = true;
        self.cycle.up_step = 0;
        self.cycle.up_elapsed_rounds = 0;
        self.cycle.up_bw = self.model.max_bw();
        self.full_pipe.reset();
        self.full_pipe.bw = s.rate.map_or(Rate::ZERO, |r| r.rate);
        self.model.start_round(s.delivered);
        self.double_long_term_slope();
        self.enter(Phase::Up, s.now);
    }

    /// Data in flight during ProbeRTT.
    pub(super) fn probe_rtt_inflight(&self) -> u64 {
        self.inflight_with_gap(self.bw(), PROBE_RTT_CWND)
    }

    /// Draft: BBRUpdateMinRTT and BBRCheckProbeRTT.
    pub(super) fn check_probe_rtt(&mut self, s: &Signals) {
        let due = self.config.probe_rtt
            && self.model.probe_min.is_some()
            && s.now > self.model.probe_min_stamp + self.config.probe_rtt_interval;
        if due && matches!(self.phase, Phase::ProbeRtt) {
            self.model.probe_min_stamp = s.now;
        } else if due {
            // The window starts anew with samples from now on.
            self.model.probe_min = s.rtt.or(self.model.probe_min);
            self.model.probe_min_stamp = s.now;
            if !self.idle_restart {
                self.probe_rtt = ProbeRtt::default();
                self.cycle.has_probe_samples = false;
                self.cycle.after_probe = true;
                self.model.start_round(s.delivered);
                self.enter(Phase::ProbeRtt, s.now);
            }
        }
        if !matches!(self.phase, Phase::ProbeRtt) {
            return;
        }
        match self.probe_rtt.done {
            None if s.inflight <= self.probe_rtt_inflight() => {
                self.probe_rtt = ProbeRtt { done: Some(s.now + PROBE_RTT_TIME), round_done: false };
                self.model.start_round(s.delivered);
            }
            None => {}
            Some(_) => {
                self.probe_rtt.round_done |= self.model.round_start;
                if self.probe_rtt.round_done {
                    self.probe_rtt_done_if_due(s.now);
                }
            }
        }
    }

    /// Draft: BBRCheckProbeRTTDone and BBRExitProbeRTT.
    pub(super) fn probe_rtt_done_if_due(&mut self, now: Time) {
        if self.probe_rtt.done.is_none_or(|done| now <= done) {
            return;
        }
        self.model.probe_min_stamp = now;
        self.model.renew_min_rtt(now);
        self.bounds = Bounds { inflight_long: self.bounds.inflight_long, ..Bounds::default() };
        if self.full_pipe.reached {
            self.start_cycle_wait(now);
            self.enter(Phase::Cruise, now);
        } else {
            self.enter(Phase::Startup { careful: true }, now);
        }
    }

    fn start_cycle_wait(&mut self, now: Time) {
        let wait = self.config.probe_interval;
        self.cycle.start = now;
        self.cycle.rounds = self.model.rounds.saturating_sub(self.rng.below(2));
        self.cycle.wait = wait + Span::from_nanos(self.rng.below(wait.as_nanos() / 2));
        self.cycle.up_rounds = 0;
        self.cycle.bytes_per_raise = u64::MAX;
        self.cycle.has_probe_samples = false;
    }
}
