//! BBR version 1, after draft-cardwell-iccrg-bbr-congestion-control-00: paces at the bandwidth and bounds the data in
//! flight by the bandwidth-delay product, without regard to loss.
//!
//! It serves for comparison with deployed senders; `bbr` is version 3. The two share no code, since version 3 here
//! deviates from its draft in filters and bounds and this one should not. The one deviation: the congestion
//! window leaves room for data delivered between two feedbacks, unnecessary where every other packet is acknowledged.

use super::delay::FeedbackGap;
use super::paced::clamp_rate;
use super::{MIN_PACKETS, MIN_RATE};
use crate::registry::{Definition, Kind, Needs, ParamDef, Params};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals, pacer};
use base::{Rate, Rng, Span, Time};

/// The registration.
pub(crate) const DEFINITION: Definition = Definition {
    name: "bbr1",
    summary: "BBRv1 (draft-cardwell-iccrg-bbr-congestion-control-00): does not answer losses; for comparison",
    params: &[
        ParamDef {
            name: "initial_window",
            help: "what is sent in the first round trip",
            kind: Kind::Count { unit: "packets", min: 4, max: 10_000, default: 10 },
        },
        ParamDef {
            name: "probe_rtt_interval",
            help: "time after which the lowest round trip is measured anew (RTpropFilterLen)",
            kind: Kind::Span {
                min: Span::from_secs(1),
                max: Span::from_secs(600),
                default: Span::from_secs(10),
            },
        },
        ParamDef {
            name: "probe_rtt_time",
            help: "how long data in flight is held down for that (ProbeRTTDuration)",
            kind: Kind::Span {
                min: Span::from_millis(1),
                max: Span::from_secs(10),
                default: Span::from_millis(200),
            },
        },
    ],
    needs: Needs::NOTHING,
    code: "",
    build: &|params, info, rng| Box::new(Bbr1::new(Config::from_params(params), info, rng)),
};

/// Gains are in thousandths.
const ONE: u64 = 1_000;
/// 2 / ln 2: the smallest gain that doubles the rate each round trip (BBRHighGain, section 4.1.1).
const HIGH_GAIN: u64 = 2_890;
/// Gain of the congestion window outside Startup and Drain (section 4.2.3.2).
const CWND_GAIN: u64 = 2_000;
/// The gains of ProbeBW's phases (section 4.3.4.1).
const CYCLE: [u64; 8] = [1_250, 750, ONE, ONE, ONE, ONE, ONE, ONE];
/// Round trips of the maximum filter for the bandwidth (BtlBwFilterLen).
const BW_ROUNDS: usize = 10;
/// Fewest packets in flight (BBRMinPipeCwnd).
const MIN_PIPE: u64 = 4;
/// Growth per round trip that counts as growth in Startup, and rounds without it that end Startup (section 4.3.2.2).
const FULL_GROWTH: u64 = 1_250;
const FULL_ROUNDS: u32 = 3;
/// Trains that the congestion window allows in addition (section 4.2.3.2).
const QUANTA: u64 = 3;
/// The round trip assumed before any is known (section 4.2.1).
const NOMINAL_RTT: Span = Span::from_millis(1);
/// Most halvings of the rate while time-outs repeat.
const MAX_BACKOFF: u32 = 10;

#[derive(Clone, Copy, Debug)]
struct Config {
    initial_window: u64,
    probe_rtt_interval: Span,
    probe_rtt_time: Span,
}

impl Config {
    fn from_params(p: &Params) -> Config {
        Config {
            initial_window: p.count("initial_window"),
            probe_rtt_interval: p.span("probe_rtt_interval"),
            probe_rtt_time: p.span("probe_rtt_time"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Startup,
    Drain,
    /// With the index into [`CYCLE`].
    ProbeBw(usize),
    /// When it may end, once the data in flight is low enough, and whether a round trip has passed since.
    ProbeRtt(Option<Time>, bool),
}

/// The maximum of the latest rounds.
#[derive(Clone, Copy, Debug, Default)]
struct MaxFilter {
    rounds: [Rate; BW_ROUNDS],
}

impl MaxFilter {
    fn update(&mut self, rate: Rate) {
        self.rounds[0] = self.rounds[0].max(rate);
    }
    fn advance(&mut self) {
        self.rounds.rotate_right(1);
        self.rounds[0] = Rate::ZERO;
    }
    fn get(&self) -> Rate {
        self.rounds.iter().copied().max().unwrap_or(Rate::ZERO)
    }
}

/// Loss recovery (section 4.2.3.4).
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// Recovery ends when a packet sent after this time is acknowledged without new losses.
    start: Time,
    /// Packet conservation until this time: data in flight does not grow.
    conserve_until: Time,
}

/// BBRv1.
#[derive(Debug)]
pub struct Bbr1 {
    config: Config,
    rng: Rng,
    packet: u64,
    phase: Phase,
    bandwidth: MaxFilter,
    rtprop: Option<Span>,
    rtprop_stamp: Option<Time>,
    /// Round trips, counted by the total delivered.
    next_round: u64,
    cycle_stamp: Time,
    /// The bandwidth that Startup compares with, the rounds without growth, and whether the pipe is full.
    full_bw: Rate,
    full_rounds: u32,
    full_pipe_reached: bool,
    recovery: Option<Recovery>,
    /// The draft's congestion window; that of the decision adds what is delivered between two feedbacks.
    cwnd: u64,
    prior_cwnd: u64,
    rate: Rate,
    pacing_gain: u64,
    idle_restart: bool,
    timeouts: u32,
    gap: FeedbackGap,
}

impl Bbr1 {
    fn new(config: Config, info: &PathInfo, rng: Rng) -> Bbr1 {
        let packet = info.packet_bytes.max(1);
        let window = config.initial_window.saturating_mul(packet);
        let rtt = info.handshake_rtt.filter(|r| !r.is_zero());
        // BBRInitPacingRate.
        let nominal = Rate::from_bytes_in(window, rtt.unwrap_or(NOMINAL_RTT)).scale(HIGH_GAIN, ONE);
        let known = info.known_rate.unwrap_or(Rate::ZERO);
        let cwnd = rtt.map_or(window, |rtt| window.max(known.bytes_in(rtt)));
        Bbr1 {
            config,
            rng,
            packet,
            phase: Phase::Startup,
            bandwidth: MaxFilter::default(),
            rtprop: rtt,
            rtprop_stamp: None,
            next_round: 0,
            cycle_stamp: Time::ZERO,
            full_bw: Rate::ZERO,
            full_rounds: 0,
            full_pipe_reached: false,
            recovery: None,
            cwnd,
            prior_cwnd: 0,
            rate: clamp_rate(nominal.max(known)),
            pacing_gain: HIGH_GAIN,
            idle_restart: false,
            timeouts: 0,
            gap: FeedbackGap::default(),
        }
    }

    fn min_pipe(&self) -> u64 {
        self.packet.saturating_mul(MIN_PIPE.max(MIN_PACKETS))
    }

    fn quantum(&self) -> u64 {
        pacer::quantum(self.rate, self.packet)
    }

    /// BBRInflight: `gain` times the bandwidth-delay product, plus room for trains.
    fn inflight(&self, gain: u64) -> u64 {
        let Some(rtprop) = self.rtprop.filter(|_| self.bandwidth.get() > Rate::ZERO) else {
            return self.config.initial_window.saturating_mul(self.packet);
        };
        let bdp = self.bandwidth.get().scale(gain, ONE).bytes_in(rtprop);
        bdp.saturating_add(QUANTA.saturating_mul(self.quantum())).min(u64::MAX / 4)
    }

    /// BBRUpdateBtlBw (section 4.1.1.3). Returns whether a round trip began.
    fn update_bandwidth(&mut self, s: &Signals) -> bool {
        let Some(r) = s.rate.filter(|r| !r.interval.is_zero()) else { return false };
        let round_start = r.prior_delivered >= self.next_round;
        if round_start {
            self.next_round = s.delivered;
            self.bandwidth.advance();
        }
        if !r.app_limited || r.rate >= self.bandwidth.get() {
            self.bandwidth.update(r.rate);
        }
        round_start
    }

    /// BBRCheckCyclePhase (section 4.3.4.2).
    fn check_cycle(&mut self, s: &Signals) {
        let Phase::ProbeBw(index) = self.phase else { return };
        let full = s.now.since(self.cycle_stamp) > self.rtprop.unwrap_or(NOMINAL_RTT);
        let next = match CYCLE[index] {
            gain if gain > ONE => full && (s.lost > 0 || s.prior_inflight >= self.inflight(gain)),
            gain if gain < ONE => full || s.prior_inflight <= self.inflight(ONE),
            _ => full,
        };
        if next {
            self.enter_cycle((index + 1) % CYCLE.len(), s.now);
        }
    }

    fn enter_cycle(&mut self, index: usize, now: Time) {
        self.phase = Phase::ProbeBw(index);
        self.pacing_gain = CYCLE[index];
        self.cycle_stamp = now;
    }

    /// BBREnterProbeBW: starts in a random phase except the draining one.
    fn enter_probe_bw(&mut self, now: Time) {
        let index = (CYCLE.len() - self.rng.below(CYCLE.len() as u64 - 1) as usize) % CYCLE.len();
        self.enter_cycle(index, now);
    }

    /// BBRCheckFullPipe and BBRCheckDrain (sections 4.3.2.2 and 4.3.3).
    fn check_full(&mut self, s: &Signals, round_start: bool) {
        if !self.full_pipe_reached && round_start && !s.rate.is_some_and(|r| r.app_limited) {
            if self.bandwidth.get() >= self.full_bw.scale(FULL_GROWTH, ONE) {
                (self.full_bw, self.full_rounds) = (self.bandwidth.get(), 0);
            } else {
                self.full_rounds += 1;
                self.full_pipe_reached = self.full_rounds >= FULL_ROUNDS;
            }
        }
        if self.phase == Phase::Startup && self.full_pipe_reached {
            self.phase = Phase::Drain;
            self.pacing_gain = ONE * ONE / HIGH_GAIN;
        }
        if self.phase == Phase::Drain && s.inflight <= self.inflight(ONE) {
            self.enter_probe_bw(s.now);
        }
    }

    /// BBRUpdateRTprop and BBRCheckProbeRTT (sections 4.1.2.3 and 4.3.5).
    fn check_probe_rtt(&mut self, s: &Signals, round_start: bool) {
        let stamp = *self.rtprop_stamp.get_or_insert(s.now);
        let expired = s.now.since(stamp) > self.config.probe_rtt_interval;
        if let Some(rtt) = s.rtt.filter(|r| !r.is_zero())
            && (expired || self.rtprop.is_none_or(|p| rtt <= p))
        {
            (self.rtprop, self.rtprop_stamp) = (Some(rtt), Some(s.now));
        }
        if expired && !self.idle_restart && !matches!(self.phase, Phase::ProbeRtt(..)) {
            self.phase = Phase::ProbeRtt(None, false);
            self.pacing_gain = ONE;
            self.save_cwnd();
        }
        if let Phase::ProbeRtt(done, round) = self.phase {
            match done {
                None if s.inflight <= self.min_pipe() => {
                    self.phase = Phase::ProbeRtt(Some(s.now + self.config.probe_rtt_time), false);
                    self.next_round = s.delivered;
                }
                None => {}
                Some(done) if (round || round_start) && s.now > done => {
                    self.rtprop_stamp = Some(s.now);
                    self.exit_probe_rtt(s.now);
                }
                Some(_) => self.phase = Phase::ProbeRtt(done, round || round_start),
            }
        }
    }

    fn exit_probe_rtt(&mut self, now: Time) {
        self.cwnd = self.cwnd.max(self.prior_cwnd);
        if self.full_pipe_reached {
            self.enter_probe_bw(now);
        } else {
            self.phase = Phase::Startup;
            self.pacing_gain = HIGH_GAIN;
        }
    }

    /// BBRSaveCwnd (section 4.2.3.4).
    fn save_cwnd(&mut self) {
        let held = self.recovery.is_some() || matches!(self.phase, Phase::ProbeRtt(Some(_), _));
        self.prior_cwnd = if held { self.prior_cwnd.max(self.cwnd) } else { self.cwnd };
    }

    /// Recovery begins with a loss and ends with the first round trip without one (section 4.2.3.4).
    fn update_recovery(&mut self, s: &Signals) {
        let after = |start: Time| s.newest_acked_sent.is_some_and(|sent| sent > start);
        let lost = |start: Time| s.lost > 0 && s.latest_lost_sent.is_none_or(|sent| sent > start);
        match &mut self.recovery {
            None if s.lost > 0 => {
                self.save_cwnd();
                self.cwnd = s.inflight.saturating_add(s.acked.max(self.packet));
                self.recovery = Some(Recovery { start: s.now, conserve_until: s.now });
            }
            Some(r) if lost(r.start) => r.start = s.now,
            Some(r) if after(r.start) => {
                self.recovery = None;
                self.cwnd = self.cwnd.max(self.prior_cwnd);
            }
            _ => {}
        }
    }

    /// BBRSetCwnd (section 4.2.3.5).
    fn set_cwnd(&mut self, s: &Signals) {
        let conserve =
            self.recovery.is_some_and(|r| s.newest_acked_sent.is_none_or(|sent| sent <= r.conserve_until));
        if s.lost > 0 && self.recovery.is_some() {
            self.cwnd = self.cwnd.saturating_sub(s.lost).max(self.packet);
        }
        let gain = if matches!(self.phase, Phase::Startup | Phase::Drain) { HIGH_GAIN } else { CWND_GAIN };
        let target = self.inflight(gain);
        let grown = self.cwnd.saturating_add(s.acked);
        if conserve {
            self.cwnd = self.cwnd.max(s.inflight.saturating_add(s.acked));
        } else if self.full_pipe_reached {
            self.cwnd = grown.min(target);
        } else if self.cwnd < target || s.delivered < self.config.initial_window.saturating_mul(self.packet) {
            self.cwnd = grown;
        }
        self.cwnd = self.cwnd.clamp(self.min_pipe(), u64::MAX / 4);
    }

    /// BBRSetPacingRate (section 4.2.1): never decreases until the pipe is full.
    fn set_rate(&mut self) {
        let rate = self.bandwidth.get().scale(self.pacing_gain, ONE);
        if rate > Rate::ZERO && (self.full_pipe_reached || rate > self.rate) {
            self.rate = clamp_rate(rate);
        }
    }
}

impl Algorithm for Bbr1 {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, _train: &SentTrain) {}

    fn on_feedback(&mut self, s: &Signals) {
        self.gap.update(s);
        if s.acked > 0 {
            self.timeouts = 0;
        }
        // BBRUpdateOnACK (section 4.2.2).
        let round_start = self.update_bandwidth(s);
        self.check_cycle(s);
        self.check_full(s, round_start);
        self.check_probe_rtt(s, round_start);
        if s.acked > 0 {
            self.idle_restart = false;
        }
        self.set_rate();
        self.update_recovery(s);
        self.set_cwnd(s);
    }

    fn on_event(&mut self, now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.timeouts = count,
            // After a retransmission time-out (section 4.2.3.4) one packet at first, and the old window once
            // something is acknowledged.
            Event::PersistentCongestion => {
                self.save_cwnd();
                self.cwnd = self.min_pipe();
                self.recovery = Some(Recovery { start: now, conserve_until: now });
            }
            Event::RestartFromIdle { .. } => {
                // BBRHandleRestartFromIdle (section 4.3.4.4).
                self.idle_restart = true;
                self.gap.restart();
                if matches!(self.phase, Phase::ProbeBw(_)) {
                    self.rate = clamp_rate(self.bandwidth.get());
                }
            }
            Event::PathChanged(info) => {
                let rng = self.rng.fork();
                *self = Bbr1::new(self.config, &info, rng);
            }
            Event::PacketSize(bytes) => self.packet = bytes.max(1),
        }
    }

    fn decision(&self) -> Decision {
        let backoff = self.timeouts.saturating_sub(1).min(MAX_BACKOFF);
        let rate = self.rate.scale(1, 1 << backoff).max(MIN_RATE);
        // BBRModulateCwndForProbeRTT (section 4.2.3.5).
        let cwnd = match self.phase {
            Phase::ProbeRtt(..) => self.min_pipe(),
            _ => self.cwnd.max(self.min_pipe()).saturating_add(rate.bytes_in(self.gap.get())),
        };
        Decision { rate, cwnd: cwnd.min(u64::MAX / 2), quantum: pacer::quantum(rate, self.packet) }
    }

    fn state(&self) -> &'static str {
        match self.phase {
            Phase::Startup => "startup",
            Phase::Drain => "drain",
            Phase::ProbeBw(0) => "probe_bw:up",
            Phase::ProbeBw(1) => "probe_bw:down",
            Phase::ProbeBw(_) => "probe_bw:cruise",
            Phase::ProbeRtt(..) => "probe_rtt",
        }
    }
}

#[cfg(test)]
mod tests;
