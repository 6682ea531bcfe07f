//! Runs a program as an algorithm and guards it: each call is bounded, each answer is checked, and a program that
//! misbehaves is replaced by a built-in algorithm for the rest of the flow, starting from the last measured rate.
//!
//! A replacement does not affect data in flight: the last decision stays in force until the fallback has made
//! one, in the same call.

use crate::events::{self, Replaced};
use crate::load::Program;
use crate::sandbox::{Answer, Call, Running, Stopped};
use crate::words::{NONE, SIGNALS, View, event_number};
use base::{Rate, Rng, Span, Time};
use cc::algorithms::{MIN_PACKETS, MIN_RATE};
use cc::{Algorithm, Decision, Event, Hop, Params, PathInfo, SentTrain, Signals, pacer, registry};
use std::sync::Arc;

/// The highest rate that a program may decide (`OC_MAX_RATE`): an eighth of what the type holds, which leaves
/// room for gains.
pub const MAX_RATE: Rate = Rate::from_bytes_per_sec(u64::MAX / 8);
/// The largest congestion window that a program may decide (`OC_MAX_BOUND`): a pebibyte.
pub const MAX_CWND: u64 = 1 << 50;
/// Fewest packets per round trip for which a rate is worth handing to the fallback, whose own start soon finds as
/// much.
const MIN_WORTHWHILE_PACKETS: u64 = 20;
/// Round trips of samples after which a measured rate is used even below that: more than a start takes.
const MIN_MEASURED_ROUNDS: u32 = 8;

/// Why a program was replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It trapped: an access outside its memory, a division by zero, too deep a recursion.
    #[error("was stopped: {0}")]
    Trapped(String),
    /// A call used up its budget of operations.
    #[error("took more than {} operations in a call", crate::CALL_BUDGET)]
    Overran,
    /// Too many flows run programs.
    #[error("found no room: {} instances run already", crate::MAX_INSTANCES)]
    NoRoom,
    /// It decided a rate of zero or beyond [`MAX_RATE`].
    #[error("decided a rate of {0} bytes per second")]
    Rate(u64),
    /// It decided a congestion window of less than a packet or beyond [`MAX_CWND`].
    #[error("decided to have {0} bytes in flight")]
    Cwnd(u64),
    /// It left feedback unanswered for this long.
    #[error("did not answer feedback for {0}")]
    Silent(Span),
}

impl From<Stopped> for Fault {
    fn from(stopped: Stopped) -> Fault {
        match stopped {
            Stopped::Overran => Fault::Overran,
            Stopped::Trapped(what) => Fault::Trapped(what),
            Stopped::NoRoom => Fault::NoRoom,
        }
    }
}

/// Turns an answer into a decision for packets of this size. Plausible values are clamped to what the pacer can
/// do; absurd ones are faults.
pub(crate) fn check_answer(answer: &Answer, packet: u64) -> Result<Decision, Fault> {
    if answer.rate == 0 || answer.rate > MAX_RATE.bytes_per_sec() {
        return Err(Fault::Rate(answer.rate));
    }
    if answer.cwnd < packet || answer.cwnd > MAX_CWND {
        return Err(Fault::Cwnd(answer.cwnd));
    }
    let rate = Rate::from_bytes_per_sec(answer.rate).max(MIN_RATE);
    let usual = pacer::quantum(rate, packet);
    let quantum = if answer.quantum == 0 { usual } else { usual.min(answer.quantum).max(packet) };
    Ok(Decision { rate, cwnd: answer.cwnd.max(packet.saturating_mul(MIN_PACKETS)), quantum })
}

/// The algorithm that decides now.
#[derive(Debug)]
enum Decider {
    Program(Box<Running>),
    Fallback(Box<dyn Algorithm>),
}

/// A guarded program in a flow.
#[derive(Debug)]
pub(crate) struct Guarded {
    program: Arc<Program>,
    decider: Decider,
    /// The fallback that the flow names; otherwise the one chosen at loading is used.
    fallback: Option<(&'static str, Params)>,
    /// Why the program could not start. Reported with the first call at the latest, when the flow's fallback is
    /// known.
    start_failure: Option<(Fault, Option<Rate>)>,
    /// Whether the flow has started.
    started: bool,
    view: View,
    rng: Rng,
    /// The last valid decision of the program.
    decision: Decision,
    state: u64,
    /// The time since which feedback has not been answered.
    unanswered_since: Option<Time>,
    /// The highest delivery-rate samples of this round trip and of the last.
    peak_rates: [Rate; 2],
    /// Round trips with samples that were not limited by the application.
    measured_rounds: u32,
    /// The function called last, and the number of calls.
    last_call: (Call, u64),
}

impl Guarded {
    /// Starts a program for a new flow.
    pub fn new(program: Arc<Program>, params: &Params, info: &PathInfo, rng: Rng) -> Guarded {
        let view = View::new(info);
        let start = Decision { rate: MIN_RATE, cwnd: MIN_PACKETS * view.packet, quantum: view.packet };
        let running = Running::new(&program.compiled, &program.manifest.values(params));
        let (runs, fault) = match running {
            Ok(running) => (Decider::Program(Box::new(running)), None),
            Err(stopped) => {
                (Decider::Fallback(fallback(&program.fallback, info, &rng)), Some(stopped.into()))
            }
        };
        let mut guarded = Guarded {
            program,
            decider: runs,
            fallback: None,
            start_failure: None,
            started: false,
            view,
            rng,
            decision: start,
            state: 0,
            unanswered_since: None,
            peak_rates: [Rate::ZERO; 2],
            measured_rounds: 0,
            last_call: (Call::Init, 0),
        };
        match fault {
            Some(fault) => guarded.start_failure = Some((fault, None)),
            None => guarded.start_program(Time::ZERO),
        }
        guarded
    }

    /// Calls the program's `start`, at time zero where the flow has not started yet.
    fn start_program(&mut self, now: Time) {
        let words = self.view.start(now);
        match self.call(Call::Init, &words) {
            Ok(Some(decision)) => self.decision = decision,
            Ok(None) => self.replace(now, Fault::Silent(Span::ZERO)),
            Err(fault) => self.replace(now, fault),
        }
    }

    /// Makes a call and returns its decision, if it made one.
    fn call(&mut self, call: Call, words: &[u64; SIGNALS]) -> Result<Option<Decision>, Fault> {
        let Decider::Program(running) = &mut self.decider else { return Ok(None) };
        self.last_call = (call, self.last_call.1 + 1);
        let answer = running.call(call, words)?;
        if answer.rate == NONE {
            return Ok(None);
        }
        self.state = answer.state;
        check_answer(&answer, self.view.packet).map(Some)
    }

    /// Replaces the program by the fallback.
    fn replace(&mut self, now: Time, fault: Fault) {
        // The rate is one that was both decided and delivered lately, since the last decision itself may be the
        // fault.
        let carried = self.peak_rates[0].max(self.peak_rates[1]);
        let rate = self.decision.rate.min(carried.scale(5, 4));
        let worth =
            Rate::from_bytes_in(MIN_WORTHWHILE_PACKETS.saturating_mul(self.view.packet), self.view.srtt);
        let info = self.view.info();
        // Under a cap or on a short path the measured rate may be below that limit and is right nevertheless.
        let serves = rate > worth || self.measured_rounds >= MIN_MEASURED_ROUNDS && rate >= MIN_RATE;
        let known_rate = if serves { Some(rate) } else { info.known_rate };
        let chosen = self.fallback.as_ref().unwrap_or(&self.program.fallback);
        self.decider = Decider::Fallback(fallback(chosen, &PathInfo { known_rate, ..info }, &self.rng));
        if self.started {
            self.record_replacement(now, fault, known_rate);
        } else {
            self.start_failure = Some((fault, known_rate));
        }
    }

    /// Reports a failed start, once the flow starts.
    fn ensure_started(&mut self, now: Time) {
        self.started = true;
        if let Some((fault, rate)) = self.start_failure.take() {
            self.record_replacement(now, fault, rate);
        }
    }

    fn record_replacement(&self, at: Time, fault: Fault, rate: Option<Rate>) {
        let Decider::Fallback(algorithm) = &self.decider else { return };
        events::add(Replaced {
            number: 0,
            at,
            program: self.program.name,
            fallback: algorithm.name(),
            fault,
            call: function_name(self.last_call.0),
            calls: self.last_call.1,
            rate,
        });
    }

    /// Passes feedback to the program; returns whether it still decides.
    fn feed(&mut self, s: &Signals) -> bool {
        if s.round_start {
            self.peak_rates = [Rate::ZERO, self.peak_rates[0]];
            let tells = self.peak_rates[1] > Rate::ZERO && s.rate.is_some_and(|sample| !sample.app_limited);
            self.measured_rounds = self.measured_rounds.saturating_add(tells.into());
        }
        if let Some(sample) = s.rate {
            self.peak_rates[0] = self.peak_rates[0].max(sample.rate);
        }
        let words = self.view.feedback(s);
        match self.call(Call::Feedback, &words) {
            Ok(Some(decision)) => (self.decision, self.unanswered_since) = (decision, None),
            Ok(None) => {
                let silent = s.now.since(*self.unanswered_since.get_or_insert(s.now));
                if silent >= self.view.srtt {
                    self.replace(s.now, Fault::Silent(silent));
                }
            }
            Err(fault) => self.replace(s.now, fault),
        }
        matches!(self.decider, Decider::Program(_))
    }

    /// Passes an event to the program.
    fn forward_event(&mut self, now: Time, event: Event) {
        let words = self.view.event(now, event);
        let Some(number) = event_number(event) else { return self.start_program(now) };
        match self.call(Call::Event(number), &words) {
            Ok(decision) => self.decision = decision.unwrap_or(self.decision),
            Err(fault) => self.replace(now, fault),
        }
    }
}

/// The callback's name in `opencc.h`.
const fn function_name(call: Call) -> &'static str {
    match call {
        Call::Init => "start",
        Call::Feedback => "feedback",
        Call::Event(_) => "event",
        Call::Sent => "sent",
    }
}

/// Creates the algorithm that replaces the program. It is a built-in one and therefore available; if its
/// parameters are no longer valid, the default algorithm is used.
fn fallback((name, params): &(&'static str, Params), info: &PathInfo, rng: &Rng) -> Box<dyn Algorithm> {
    registry::create(name, params, info, rng.clone()).unwrap_or_else(|_| default_algorithm(info, rng))
}

fn default_algorithm(info: &PathInfo, rng: &Rng) -> Box<dyn Algorithm> {
    let made = registry::create(registry::DEFAULT, &Params::default(), info, rng.clone());
    made.expect("the default is built in, and takes its own defaults")
}

impl Algorithm for Guarded {
    fn name(&self) -> &'static str {
        match &self.decider {
            Decider::Program(_) => self.program.name,
            Decider::Fallback(algorithm) => algorithm.name(),
        }
    }

    fn set_fallback(&mut self, spec: &str) {
        // A loaded algorithm may be gone when it is needed.
        let built_in = registry::parse(spec).ok().filter(|(def, _)| registry::is_built_in(def.name));
        self.fallback = built_in.map(|(def, params)| (def.name, params));
        if !self.started && self.start_failure.is_some() {
            let chosen = self.fallback.as_ref().unwrap_or(&self.program.fallback);
            let info = self.view.info();
            let known_rate = self.start_failure.as_ref().and_then(|(_, rate)| *rate).or(info.known_rate);
            self.decider = Decider::Fallback(fallback(chosen, &PathInfo { known_rate, ..info }, &self.rng));
        }
        self.ensure_started(Time::ZERO);
    }

    fn on_sent(&mut self, train: &SentTrain) {
        if !self.started {
            self.ensure_started(train.now);
        }
        if !matches!(self.decider, Decider::Fallback(_)) && !self.program.compiled.wants_sent() {
            return self.view.record_sent(train);
        }
        let words = self.view.sent(train);
        match self.call(Call::Sent, &words) {
            Ok(decision) => self.decision = decision.unwrap_or(self.decision),
            Err(fault) => self.replace(train.now, fault),
        }
        if let Decider::Fallback(algorithm) = &mut self.decider {
            algorithm.on_sent(train);
        }
    }

    fn on_telemetry(&mut self, now: Time, hops: &[Hop]) {
        match &mut self.decider {
            Decider::Program(running) => {
                running.set_hops(hops);
                self.view.set_hops(hops);
            }
            Decider::Fallback(algorithm) => algorithm.on_telemetry(now, hops),
        }
    }

    fn on_feedback(&mut self, signals: &Signals) {
        if !self.started {
            self.ensure_started(signals.now);
        }
        if matches!(self.decider, Decider::Program(_)) && self.feed(signals) {
            return;
        }
        // The fallback also gets the feedback that the program failed on.
        if let Decider::Fallback(algorithm) = &mut self.decider {
            algorithm.on_feedback(signals);
        }
    }

    fn on_event(&mut self, now: Time, event: Event) {
        if !self.started {
            self.ensure_started(now);
        }
        if matches!(self.decider, Decider::Program(_)) {
            self.forward_event(now, event);
        }
        if let Decider::Fallback(algorithm) = &mut self.decider {
            algorithm.on_event(now, event);
        }
    }

    fn decision(&self) -> Decision {
        match &self.decider {
            Decider::Program(_) => self.decision,
            Decider::Fallback(algorithm) => algorithm.decision(),
        }
    }

    fn wants_dispersion(&self) -> bool {
        match &self.decider {
            Decider::Program(_) => false,
            Decider::Fallback(algorithm) => algorithm.wants_dispersion(),
        }
    }

    fn state(&self) -> &'static str {
        match &self.decider {
            Decider::Program(_) => {
                let states = &self.program.manifest.states;
                usize::try_from(self.state).ok().and_then(|i| states.get(i)).copied().unwrap_or("")
            }
            Decider::Fallback(algorithm) => algorithm.state(),
        }
    }
}

// A path attribute, since the fuzz target includes this file as a module of its own.
#[cfg(test)]
#[path = "guard/tests.rs"]
mod tests;
