//! What is done with a request, whoever brings it.

use crate::board::Board;
use crate::desk::{Desk, Order};
use crate::kept::Kept;
use crate::proto::{Answer, MAX_ERRORS, Request};
use crate::tap::Taps;
use crate::watch::{complain, content};
use base::Rate;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cc::platform::Policy;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A policy, and warnings about it.
pub type WithWarnings = (Arc<dyn Policy>, Vec<String>);
/// Reads a policy, or names all of its errors.
pub type ReadPolicy = dyn Fn(&str) -> Result<WithWarnings, Vec<String>> + Send + Sync;
/// Loads a program from its bytes, and tells its name.
pub type LoadProgram = dyn Fn(&[u8]) -> Result<String, Vec<String>> + Send + Sync;

/// Tells what happened since it was asked last: kind and text of each event.
pub type News = dyn Fn() -> Vec<(String, String)> + Send + Sync;

/// What others provide.
#[derive(Clone)]
pub struct Hooks {
    /// Reads and checks policies.
    pub read_policy: Arc<ReadPolicy>,
    /// Loads programs.
    pub load_program: Arc<LoadProgram>,
    /// Takes a program's name away; whether there was one.
    pub unload_program: Arc<dyn Fn(&str) -> bool + Send + Sync>,
    /// What befell programs.
    pub news: Arc<News>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// Everything that requests and sources of policies need. Cheap to clone; clones are the same.
#[derive(Clone, Debug)]
pub struct Office {
    /// Facts and events.
    pub board: Board,
    /// The way to the loop.
    pub desk: Desk,
    /// Who watches decisions.
    pub taps: Taps,
    /// What others provide.
    pub hooks: Hooks,
    /// The newest policy of the source, if it cannot be used as things are.
    pub waiting: Arc<Mutex<Option<Offer>>>,
}

/// A policy that a source has.
#[derive(Clone, Debug)]
pub struct Offer {
    /// It, as it is written.
    pub text: String,
    /// Which source.
    pub from: String,
    /// The source's revision; 0 where it has none.
    pub revision: u64,
    /// Where a copy is kept once it is in force.
    pub kept: Option<Kept>,
}

impl Offer {
    fn keep(&self) {
        let Some(kept) = &self.kept else { return };
        if let Err(e) = kept.write(&self.text) {
            tracing::warn!("no copy of the policy is kept in {}: {e}", kept.path().display());
        }
    }
}

fn bounded(mut all: Vec<String>) -> Vec<String> {
    let left = all.len().saturating_sub(MAX_ERRORS);
    all.truncate(MAX_ERRORS);
    if left > 0 {
        all.push(format!("and {left} more"));
    }
    all
}

fn refused(errors: Vec<String>) -> Answer {
    Answer::Refused { errors: bounded(errors) }
}

impl Office {
    /// Puts a policy in force that was found in `from`; its warnings.
    ///
    /// # Errors
    /// All that is wrong with it; the policy that runs goes on.
    pub fn install(&self, text: &str, from: &str, revision: u64) -> Result<Vec<String>, Vec<String>> {
        let (policy, warnings) = (self.hooks.read_policy)(text)?;
        self.desk.order(Order::Policy(policy)).map_err(|e| vec![e])?;
        self.board.runs(text, from, revision);
        Ok(warnings)
    }

    /// Puts the newest policy of the source in force. One that cannot be used waits until a program is loaded, which may be
    /// what it needs.
    ///
    /// # Errors
    /// All that is wrong with it; the policy that runs goes on.
    pub fn take(&self, offer: Offer) -> Result<(), Vec<String>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting = None;
        match self.install(&offer.text, &offer.from, offer.revision) {
            Ok(warnings) => {
                warnings.iter().for_each(|w| tracing::warn!("policy source {}: {w}", offer.from));
                offer.keep();
                Ok(())
            }
            Err(errors) => {
                *waiting = Some(offer);
                Err(errors)
            }
        }
    }

    /// The source has no policy any more.
    pub fn forget(&self) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A program was loaded: it may be what the source's newest policy needs.
    fn take_again(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(offer) = waiting else { return };
        let source = self.board.process().policy.source;
        match self.take(offer) {
            Ok(()) => content(self, &source),
            Err(errors) => complain(self, &source, &errors),
        }
    }

    /// Answers what one answer is enough for; of a trace, only whether it could be had.
    pub fn answer(&self, request: Request) -> Answer {
        match request {
            Request::Hello => Answer::Process(self.board.process()),
            Request::Flows => self.desk.ask(Order::Flows),
            Request::Policy => {
                let (text, status) = self.board.policy();
                Answer::Policy { text: text.to_string(), status }
            }
            Request::SetPolicy { text } => self.set_policy(&text),
            Request::SetFlow { flow, algorithm, cap_bits_per_second } => {
                let rate = |bits| (bits > 0).then(|| Rate::from_bits_per_sec(bits));
                let what = match (&algorithm, cap_bits_per_second) {
                    (None, None) => {
                        return refused(vec!["nothing to change: name an algorithm or a cap".into()]);
                    }
                    (Some(a), None) => a.clone(),
                    (a, Some(bits)) => {
                        let cap = rate(bits).map_or("no cap of its own".into(), |r| format!("at most {r}"));
                        a.iter().cloned().chain([cap]).collect::<Vec<_>>().join(", ")
                    }
                };
                let cap = cap_bits_per_second.map(rate);
                let answer = self.desk.ask(Order::SetFlow { flow, algorithm, cap });
                if matches!(answer, Answer::Done { .. }) {
                    self.board.tell("flow", format!("flow {flow} was changed to {what}"));
                }
                answer
            }
            Request::Load { program } => self.load(&program),
            Request::Unload { name } => {
                if !(self.hooks.unload_program)(&name) {
                    let name: String = name.chars().take(64).collect();
                    return refused(vec![format!("no program called \"{name}\" is loaded here")]);
                }
                self.board.unloaded(&name);
                self.board.tell("program", format!("{name} was unloaded"));
                Answer::done(format!("{name} is unloaded; flows that run it go on with it"))
            }
            Request::Events { after } => {
                (self.hooks.news)().into_iter().for_each(|(kind, text)| self.board.tell(&kind, text));
                let (events, missed) = self.board.events(after);
                Answer::Events { events, missed }
            }
            Request::Trace { .. } => refused(vec!["a trace takes the rest of a connection".into()]),
        }
    }

    fn set_policy(&self, text: &str) -> Answer {
        match self.install(text, "control socket", 0) {
            Ok(warnings) => {
                Answer::Done { text: "the policy is in force".into(), warnings: bounded(warnings) }
            }
            Err(errors) => {
                self.board.tell("refused", format!("a policy with {} errors", errors.len()));
                refused(errors)
            }
        }
    }

    fn load(&self, program: &str) -> Answer {
        let bytes = match BASE64_STANDARD.decode(program) {
            Ok(bytes) => bytes,
            Err(e) => return refused(vec![format!("the program is not in base64: {e}")]),
        };
        match (self.hooks.load_program)(&bytes) {
            Ok(name) => {
                self.board.loaded(&name);
                self.board.tell("program", format!("{name} was loaded"));
                self.take_again();
                Answer::done(format!("{name} is loaded"))
            }
            Err(errors) => {
                self.board.tell("refused", "a program that cannot be loaded");
                refused(errors)
            }
        }
    }
}
