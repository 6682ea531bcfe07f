//! A program as an algorithm, with a guard: each call is bounded, each answer is looked at, and once the program misbehaves a
//! built-in algorithm takes its place for the rest of the flow, from the rate that served last.
//!
//! Nothing that is in flight is touched by that: the decision that holds stays in force until the fallback has made one, in
//! the same call.

use crate::events::{self, Replaced};
use crate::load::Program;
use crate::sandbox::{Answer, Call, Running, Stopped};
use crate::words::{NONE, SIGNALS, View, number};
use base::{Rate, Rng, Span, Time};
use cc::algorithms::{MIN_PACKETS, MIN_RATE};
use cc::{Algorithm, Decision, Event, Hop, Params, PathInfo, SentTrain, Signals, pacer, registry};
use std::sync::Arc;

/// No program may decide more (`OC_MAX_RATE`): an eighth of what the type holds leaves room for gains.
pub const MAX_RATE: Rate = Rate::from_bytes_per_sec(u64::MAX / 8);
/// Nor more in flight (`OC_MAX_BOUND`): a pebibyte.
pub const MAX_BOUND: u64 = 1 << 50;
/// A rate that carries fewer packets in a round trip is no more than any start finds by itself: not worth beginning with.
const WORTH_PACKETS: u64 = 20;
/// After so many round trips it is what the flow has: as many as a start takes, and some.
const SERVED_ROUNDS: u32 = 8;

/// Why a program was replaced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It did what the sandbox forbids: out of its memory, a division by zero, too deep a recursion.
    #[error("was stopped: {0}")]
    Trapped(String),
    /// It ran longer than a call may.
    #[error("took more than {} operations in a call", crate::BUDGET)]
    Overran,
    /// Too many flows run programs.
    #[error("found no room: {} instances run already", crate::MAX_INSTANCES)]
    NoRoom,
    /// It decided a rate of nothing, or an absurd one.
    #[error("decided a rate of {0} bytes per second")]
    Rate(u64),
    /// It decided to have less than a packet in flight, or absurdly much.
    #[error("decided to have {0} bytes in flight")]
    Bound(u64),
    /// It did not answer feedback.
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

/// What an answer decides, for packets of that size. What a program may well mean is fitted to what the pacer can do; what
/// it cannot mean is a fault.
pub(crate) fn check(answer: &Answer, packet: u64) -> Result<Decision, Fault> {
    if answer.rate == 0 || answer.rate > MAX_RATE.bytes_per_sec() {
        return Err(Fault::Rate(answer.rate));
    }
    if answer.bound < packet || answer.bound > MAX_BOUND {
        return Err(Fault::Bound(answer.bound));
    }
    let rate = Rate::from_bytes_per_sec(answer.rate).max(MIN_RATE);
    let usual = pacer::quantum(rate, packet);
    let quantum = if answer.quantum == 0 { usual } else { usual.min(answer.quantum).max(packet) };
    Ok(Decision { rate, bound: answer.bound.max(packet.saturating_mul(MIN_PACKETS)), quantum })
}

/// Who decides.
#[derive(Debug)]
enum Runs {
    Program(Box<Running>),
    Fallback(Box<dyn Algorithm>),
}

/// A program in a flow, guarded.
#[derive(Debug)]
pub(crate) struct Guarded {
    program: Arc<Program>,
    runs: Runs,
    /// What takes its place, where the flow says so; else what it was loaded with.
    substitute: Option<(&'static str, Params)>,
    /// Why it never began. Told once its substitute is known, which is with the first call at the latest.
    never: Option<(Fault, Option<Rate>)>,
    /// The flow has begun.
    begun: bool,
    view: View,
    rng: Rng,
    /// The last good decision of the program.
    decision: Decision,
    state: u64,
    /// Since when feedback has not been answered.
    silent: Option<Time>,
    /// The highest delivery rate sampled in this round trip and in the last.
    carried: [Rate; 2],
    /// Round trips whose samples tell what the flow was let have: by the path, or by a cap.
    served: u32,
    /// The function that was called last, and how many calls there were.
    calls: (Call, u64),
}

impl Guarded {
    /// A program at the start of a flow.
    pub fn new(program: Arc<Program>, params: &Params, info: &PathInfo, rng: Rng) -> Guarded {
        let view = View::new(info);
        let start = Decision { rate: MIN_RATE, bound: MIN_PACKETS * view.packet, quantum: view.packet };
        let running = Running::new(&program.compiled, &program.manifest.values(params));
        let (runs, fault) = match running {
            Ok(running) => (Runs::Program(Box::new(running)), None),
            Err(stopped) => (Runs::Fallback(fallback(&program.fallback, info, &rng)), Some(stopped.into())),
        };
        let mut guarded = Guarded {
            program,
            runs,
            substitute: None,
            never: None,
            begun: false,
            view,
            rng,
            decision: start,
            state: 0,
            silent: None,
            carried: [Rate::ZERO; 2],
            served: 0,
            calls: (Call::Init, 0),
        };
        match fault {
            Some(fault) => guarded.never = Some((fault, None)),
            None => guarded.start(Time::ZERO),
        }
        guarded
    }

    /// Runs the start of the program; its time is that of nothing when the flow begins.
    fn start(&mut self, now: Time) {
        let words = self.view.start(now);
        match self.call(Call::Init, &words) {
            Ok(Some(decision)) => self.decision = decision,
            Ok(None) => self.replace(now, Fault::Silent(Span::ZERO)),
            Err(fault) => self.replace(now, fault),
        }
    }

    /// Makes a call; what it decided, if anything.
    fn call(&mut self, call: Call, words: &[u64; SIGNALS]) -> Result<Option<Decision>, Fault> {
        let Runs::Program(running) = &mut self.runs else { return Ok(None) };
        self.calls = (call, self.calls.1 + 1);
        let answer = running.call(call, words)?;
        if answer.rate == NONE {
            return Ok(None);
        }
        self.state = answer.state;
        check(&answer, self.view.packet).map(Some)
    }

    /// Puts the fallback in the program's place.
    fn replace(&mut self, now: Time, fault: Fault) {
        // What was decided and has been delivered lately: not what the program decided last, as that may be what is wrong.
        let carried = self.carried[0].max(self.carried[1]);
        let rate = self.decision.rate.min(carried.scale(5, 4));
        let worth = Rate::from_bytes_in(WORTH_PACKETS.saturating_mul(self.view.packet), self.view.srtt);
        let info = self.view.info();
        // Under a cap, or on a short path, the rate that served can be below that, and is the rate to begin with.
        let serves = rate > worth || self.served >= SERVED_ROUNDS && rate >= MIN_RATE;
        let known_rate = if serves { Some(rate) } else { info.known_rate };
        let chosen = self.substitute.as_ref().unwrap_or(&self.program.fallback);
        self.runs = Runs::Fallback(fallback(chosen, &PathInfo { known_rate, ..info }, &self.rng));
        if self.begun {
            self.tell(now, fault, known_rate);
        } else {
            self.never = Some((fault, known_rate));
        }
    }

    /// One that never began is told of when the flow does.
    fn begin(&mut self, now: Time) {
        self.begun = true;
        if let Some((fault, rate)) = self.never.take() {
            self.tell(now, fault, rate);
        }
    }

    fn tell(&self, at: Time, fault: Fault, rate: Option<Rate>) {
        let Runs::Fallback(algorithm) = &self.runs else { return };
        events::add(Replaced {
            number: 0,
            at,
            program: self.program.name,
            fallback: algorithm.name(),
            fault,
            call: function(self.calls.0),
            calls: self.calls.1,
            rate,
        });
    }

    /// Feedback to the program: whether it is still the one that decides.
    fn ask(&mut self, s: &Signals) -> bool {
        if s.round_start {
            self.carried = [Rate::ZERO, self.carried[0]];
            let tells = self.carried[1] > Rate::ZERO && s.rate.is_some_and(|sample| !sample.app_limited);
            self.served = self.served.saturating_add(tells.into());
        }
        if let Some(sample) = s.rate {
            self.carried[0] = self.carried[0].max(sample.rate);
        }
        let words = self.view.feedback(s);
        match self.call(Call::Feedback, &words) {
            Ok(Some(decision)) => (self.decision, self.silent) = (decision, None),
            Ok(None) => {
                let silent = s.now.since(*self.silent.get_or_insert(s.now));
                if silent >= self.view.srtt {
                    self.replace(s.now, Fault::Silent(silent));
                }
            }
            Err(fault) => self.replace(s.now, fault),
        }
        matches!(self.runs, Runs::Program(_))
    }

    /// An event to the program.
    fn inform(&mut self, now: Time, event: Event) {
        let words = self.view.event(now, event);
        let Some(number) = number(event) else { return self.start(now) };
        match self.call(Call::Event(number), &words) {
            Ok(decision) => self.decision = decision.unwrap_or(self.decision),
            Err(fault) => self.replace(now, fault),
        }
    }
}

/// What `opencc.h` calls the function that is called.
const fn function(call: Call) -> &'static str {
    match call {
        Call::Init => "start",
        Call::Feedback => "feedback",
        Call::Event(_) => "event",
        Call::Sent => "sent",
    }
}

/// The algorithm that takes the program's place. It is built in, so that it is there; should it not take its parameters any
/// more, the default takes its place.
fn fallback((name, params): &(&'static str, Params), info: &PathInfo, rng: &Rng) -> Box<dyn Algorithm> {
    registry::create(name, params, info, rng.clone()).unwrap_or_else(|_| default(info, rng))
}

fn default(info: &PathInfo, rng: &Rng) -> Box<dyn Algorithm> {
    let made = registry::create(registry::DEFAULT, &Params::default(), info, rng.clone());
    made.expect("the default is built in, and takes its own defaults")
}

impl Algorithm for Guarded {
    fn name(&self) -> &'static str {
        match &self.runs {
            Runs::Program(_) => self.program.name,
            Runs::Fallback(algorithm) => algorithm.name(),
        }
    }

    fn set_substitute(&mut self, spec: &str) {
        // What is loaded may be gone when it is needed.
        let built_in = registry::parse(spec).ok().filter(|(def, _)| registry::is_built_in(def.name));
        self.substitute = built_in.map(|(def, params)| (def.name, params));
        if !self.begun && self.never.is_some() {
            let chosen = self.substitute.as_ref().unwrap_or(&self.program.fallback);
            let info = self.view.info();
            let known_rate = self.never.as_ref().and_then(|(_, rate)| *rate).or(info.known_rate);
            self.runs = Runs::Fallback(fallback(chosen, &PathInfo { known_rate, ..info }, &self.rng));
        }
        self.begin(Time::ZERO);
    }

    fn on_sent(&mut self, train: &SentTrain) {
        if !self.begun {
            self.begin(train.now);
        }
        if !matches!(self.runs, Runs::Fallback(_)) && !self.program.compiled.hears_sent() {
            return self.view.note_sent(train);
        }
        let words = self.view.sent(train);
        match self.call(Call::Sent, &words) {
            Ok(decision) => self.decision = decision.unwrap_or(self.decision),
            Err(fault) => self.replace(train.now, fault),
        }
        if let Runs::Fallback(algorithm) = &mut self.runs {
            algorithm.on_sent(train);
        }
    }

    fn on_telemetry(&mut self, now: Time, hops: &[Hop]) {
        match &mut self.runs {
            Runs::Program(running) => {
                running.set_hops(hops);
                self.view.set_hops(hops);
            }
            Runs::Fallback(algorithm) => algorithm.on_telemetry(now, hops),
        }
    }

    fn on_feedback(&mut self, signals: &Signals) {
        if !self.begun {
            self.begin(signals.now);
        }
        if matches!(self.runs, Runs::Program(_)) && self.ask(signals) {
            return;
        }
        // The fallback hears what the program could not make anything of.
        if let Runs::Fallback(algorithm) = &mut self.runs {
            algorithm.on_feedback(signals);
        }
    }

    fn on_event(&mut self, now: Time, event: Event) {
        if !self.begun {
            self.begin(now);
        }
        if matches!(self.runs, Runs::Program(_)) {
            self.inform(now, event);
        }
        if let Runs::Fallback(algorithm) = &mut self.runs {
            algorithm.on_event(now, event);
        }
    }

    fn decision(&self) -> Decision {
        match &self.runs {
            Runs::Program(_) => self.decision,
            Runs::Fallback(algorithm) => algorithm.decision(),
        }
    }

    fn wants_dispersion(&self) -> bool {
        match &self.runs {
            Runs::Program(_) => false,
            Runs::Fallback(algorithm) => algorithm.wants_dispersion(),
        }
    }

    fn state(&self) -> &'static str {
        match &self.runs {
            Runs::Program(_) => {
                let states = &self.program.manifest.states;
                usize::try_from(self.state).ok().and_then(|i| states.get(i)).copied().unwrap_or("")
            }
            Runs::Fallback(algorithm) => algorithm.state(),
        }
    }
}

// Named, since the fuzz target has this file as a module of its own.
#[cfg(test)]
#[path = "guard/tests.rs"]
mod tests;
