//! Handles one request from the control socket or one policy from a source.

use crate::policy_cache::PolicyCache;
use crate::process_state::ProcessState;
use crate::proto::{FlowId, MAX_ERRORS, Process, Program, Request, Response};
use crate::request_queue::{LoopRequest, RequestQueue};
use crate::subscriptions::Subscriptions;
use crate::watch::{complain, content};
use base::Rate;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cc::platform::Policy;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A policy, and warnings about it.
pub type WithWarnings = (Arc<dyn Policy>, Vec<String>);
/// Reads a policy, or names all of its errors.
pub type ReadPolicy = dyn Fn(&str) -> Result<WithWarnings, Vec<String>> + Send + Sync;
/// Loads a program from its bytes, which are from this file, and tells its name.
pub type LoadProgram = dyn Fn(&[u8], &str) -> Result<String, Vec<String>> + Send + Sync;

/// Tells what happened since it was asked last: kind and text of each event.
pub type ProgramEvents = dyn Fn() -> Vec<(String, String)> + Send + Sync;

/// Who needs a program, where that is the process itself.
pub(crate) const OWN: &str = "--cc of this process";

/// Longest path of a file that is kept, in characters.
const MAX_PATH: usize = 4_096;
/// Places of a policy that a text names.
const MAX_PLACES: usize = 5;

/// Places of a policy, for people: the first few.
pub fn places(all: &[String]) -> String {
    let more = all.len().saturating_sub(MAX_PLACES);
    let shown = all[..all.len().min(MAX_PLACES)].join("; ");
    if more > 0 { format!("{shown}; and {more} more") } else { shown }
}

/// Functions of the program that the handler calls.
#[derive(Clone)]
pub struct Hooks {
    /// Reads and checks policies.
    pub read_policy: Arc<ReadPolicy>,
    /// Loads programs.
    pub load_program: Arc<LoadProgram>,
    /// Takes a program's name away; whether there was one.
    pub unload_program: Arc<dyn Fn(&str) -> bool + Send + Sync>,
    /// The programs that are loaded: name, path, code and since when.
    pub programs: Arc<dyn Fn() -> Vec<Program> + Send + Sync>,
    /// Whether flows can be given an algorithm of this name.
    pub is_known: Arc<dyn Fn(&str) -> bool + Send + Sync>,
    /// What befell programs.
    pub news: Arc<ProgramEvents>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// Everything that requests and policy sources need. Cheap to clone; clones share their state.
#[derive(Clone, Debug)]
pub struct RequestHandler {
    /// Facts and events.
    pub process_state: ProcessState,
    /// The way to the loop.
    pub queue: RequestQueue,
    /// Who watches decisions.
    pub subscriptions: Subscriptions,
    /// What others provide.
    pub hooks: Hooks,
    /// The newest policy of the source, if it cannot be used as things are.
    pub pending_offer: Arc<Mutex<Option<OfferedPolicy>>>,
    /// The policy in force.
    pub active_policy: Arc<Mutex<Option<Arc<dyn Policy>>>>,
}

/// A policy found at a source.
#[derive(Clone, Debug)]
pub struct OfferedPolicy {
    /// It, as it is written.
    pub text: String,
    /// Which source.
    pub from: String,
    /// The file, with its whole path; empty of a store.
    pub path: String,
    /// The source's revision; 0 where it has none.
    pub revision: u64,
    /// Where a copy is kept once it is in force.
    pub cache: Option<PolicyCache>,
}

impl OfferedPolicy {
    fn keep(&self) {
        let Some(kept) = &self.cache else { return };
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

fn refused(errors: Vec<String>) -> Response {
    Response::Refused { errors: bounded(errors) }
}

impl RequestHandler {
    /// Puts a policy in force that was found in `from`; its warnings.
    ///
    /// # Errors
    /// All that is wrong with it; the policy that runs goes on.
    pub fn install(&self, offer: &OfferedPolicy) -> Result<Vec<String>, Vec<String>> {
        let (policy, warnings) = (self.hooks.read_policy)(&offer.text)?;
        self.queue.request(LoopRequest::Policy(policy.clone())).map_err(|e| vec![e])?;
        self.set_active(policy, offer);
        Ok(warnings)
    }

    /// A policy is the one in force from now on.
    fn set_active(&self, policy: Arc<dyn Policy>, offer: &OfferedPolicy) {
        *self.active_policy.lock().unwrap_or_else(PoisonError::into_inner) = Some(policy);
        self.process_state.set_policy(&offer.text, &offer.from, &offer.path, offer.revision);
    }

    /// The algorithms that the policy in force names, with all places of each.
    fn named(&self) -> BTreeMap<String, Vec<String>> {
        let mut all = BTreeMap::<_, Vec<_>>::new();
        let active_policy = self.active_policy.lock().unwrap_or_else(PoisonError::into_inner).clone();
        active_policy
            .iter()
            .flat_map(|p| p.algorithms())
            .for_each(|(name, by)| all.entry(name).or_default().push(by));
        all
    }

    /// What the policy in force names and nobody can have any more, in words.
    fn missing_algorithms(&self) -> Vec<String> {
        let missing = self.named().into_iter().filter(|(name, _)| !(self.hooks.is_known)(name));
        let tell = |(name, by): (String, Vec<String>)| {
            format!(
                "the policy in force names the program \"{name}\" ({}), which is not loaded: flows of it run their fallback \
                 instead; try `longhaul cc load FILE` with it, or another policy",
                places(&by)
            )
        };
        bounded(missing.map(tell).collect())
    }

    /// What this process is, and what is wrong with it.
    pub fn process(&self) -> Process {
        let programs = (self.hooks.programs)().into_iter().map(|p| p.name).collect();
        Process { programs, problems: self.missing_algorithms(), ..self.process_state.process() }
    }

    /// The programs that are loaded or needed, with what runs them.
    fn programs(&self) -> Response {
        let mut all = (self.hooks.programs)();
        let mut named = self.named();
        named.values_mut().for_each(|by| *by = bounded(std::mem::take(by)));
        all.iter_mut()
            .for_each(|p| (p.loaded, p.required_by) = (true, named.remove(&p.name).unwrap_or_default()));
        named.retain(|name, _| !(self.hooks.is_known)(name));
        all.extend(named.into_iter().map(|(name, required_by)| Program {
            name,
            required_by,
            ..Program::default()
        }));
        self.queue.request_and_wait(LoopRequest::Programs(all))
    }

    /// A policy that nobody but whoever tells it has.
    fn direct_offer(text: String, path: &str) -> OfferedPolicy {
        let path = path.chars().take(MAX_PATH).collect();
        OfferedPolicy { text, from: "control socket".into(), path, revision: 0, cache: None }
    }

    /// Puts the newest policy of the source in force. One that cannot be used waits until a program is loaded, which may be
    /// what it needs.
    ///
    /// # Errors
    /// All that is wrong with it; the policy that runs goes on.
    pub fn accept_offer(&self, offer: OfferedPolicy) -> Result<(), Vec<String>> {
        let mut waiting = self.pending_offer.lock().unwrap_or_else(PoisonError::into_inner);
        *waiting = None;
        match self.install(&offer) {
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
        *self.pending_offer.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A program was loaded: it may be what the source's newest policy needs.
    fn retry_pending_offer(&self) {
        let waiting = self.pending_offer.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(offer) = waiting else { return };
        let source = self.process_state.process().policy.source;
        match self.accept_offer(offer) {
            Ok(()) => content(self, &source),
            Err(errors) => complain(self, &source, &errors),
        }
    }

    /// Handles a request that takes one response; of a trace, only whether it is possible.
    pub fn handle(&self, request: Request) -> Response {
        match request {
            Request::Hello => Response::Process(self.process()),
            Request::Flows => self.queue.request_and_wait(LoopRequest::Flows),
            Request::Programs => self.programs(),
            Request::Policy => {
                let (text, status) = self.process_state.policy();
                Response::Policy { text: text.to_string(), status }
            }
            Request::SetPolicy { text, path } => self.set_policy(RequestHandler::direct_offer(text, &path)),
            Request::SetFlow { flow, algorithm, cap_bits_per_second } => {
                self.set_flow(flow, algorithm, cap_bits_per_second)
            }
            Request::Load { program, path } => self.load(&program, &path),
            Request::Unload { name, force } => self.unload(&name, force),
            Request::Events { after } => {
                (self.hooks.news)()
                    .into_iter()
                    .for_each(|(kind, text)| self.process_state.record_event(&kind, text));
                let (events, missed) = self.process_state.events(after);
                Response::Events { events, missed }
            }
            Request::Trace { .. } => refused(vec!["a trace takes the rest of a connection".into()]),
        }
    }

    fn set_flow(&self, flow: FlowId, algorithm: Option<String>, cap_bits: Option<u64>) -> Response {
        let rate = |bits| (bits > 0).then(|| Rate::from_bits_per_sec(bits));
        let what = match (&algorithm, cap_bits) {
            (None, None) => {
                return refused(vec!["nothing to change: name an algorithm or a cap".into()]);
            }
            (Some(a), None) => a.clone(),
            (a, Some(bits)) => {
                let cap = rate(bits).map_or("no cap of its own".into(), |r| format!("at most {r}"));
                a.iter().cloned().chain([cap]).collect::<Vec<_>>().join(", ")
            }
        };
        let answer =
            self.queue.request_and_wait(LoopRequest::SetFlow { flow, algorithm, cap: cap_bits.map(rate) });
        if matches!(answer, Response::Done { .. }) {
            self.process_state.record_event("flow", format!("flow {flow} was changed to {what}"));
        }
        answer
    }

    /// Puts a policy in force and waits until the loop says that it acts, and what of it cannot.
    fn set_policy(&self, offer: OfferedPolicy) -> Response {
        match (self.hooks.read_policy)(&offer.text) {
            Ok((policy, mut warnings)) => {
                let answer = self.queue.request_and_wait(LoopRequest::Policy(policy.clone()));
                self.set_active(policy, &offer);
                let Response::Done { text, warnings: more } = answer else { return answer };
                warnings.extend(more);
                Response::Done { text, warnings: bounded(warnings) }
            }
            Err(errors) => {
                self.process_state.record_event("refused", format!("a policy with {} errors", errors.len()));
                refused(errors)
            }
        }
    }

    /// Loads a program. Flows that run other code by its name are moved to it, so that nobody goes on with what was thought to be
    /// replaced; those that were to run it while it was missing get it.
    fn load(&self, program: &str, path: &str) -> Response {
        let bytes = match BASE64_STANDARD.decode(program) {
            Ok(bytes) => bytes,
            Err(e) => return refused(vec![format!("the program is not in base64: {e}")]),
        };
        let (before, missing) = ((self.hooks.programs)(), self.missing_algorithms());
        let path: String = path.chars().take(MAX_PATH).collect();
        let name = match (self.hooks.load_program)(&bytes, &path) {
            Ok(name) => name,
            Err(errors) => {
                self.process_state.record_event("refused", "a program that cannot be loaded");
                return refused(errors);
            }
        };
        let code = |all: &[Program]| all.iter().find(|p| p.name == name).map(|p| p.hash.clone());
        let (old, new) = (code(&before), code(&(self.hooks.programs)()).unwrap_or_default());
        let text = match old {
            Some(old) if old == new => format!("{name} is loaded already, with this very code {new}"),
            Some(old) => format!("{name} (code {new}) is loaded in place of code {old}"),
            None => format!("{name} (code {new}) is loaded"),
        };
        self.process_state.record_event("program", text.clone());
        self.retry_pending_offer();
        self.come_back(&missing);
        match self.queue.request_and_wait(LoopRequest::Renew(name)) {
            Response::Done { text: flows, warnings } => {
                Response::Done { text: format!("{text}; {flows}"), warnings }
            }
            Response::Refused { errors } => Response::Done { text, warnings: errors },
            _ => Response::done(text),
        }
    }

    /// What was missing may be there now: flows that were to run it are asked about again.
    fn come_back(&self, missing: &[String]) {
        let still = self.missing_algorithms();
        if missing.len() == still.len() {
            return;
        }
        let active_policy = self.active_policy.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // No room at the queue: the next policy mends it.
        let asked = active_policy.map(|policy| self.queue.request(LoopRequest::Policy(policy)));
        if let Some(Err(e)) = asked {
            tracing::warn!("flows are not asked about again: {e}");
        }
        let text = if still.is_empty() {
            "all that the policy in force names is loaded again".into()
        } else {
            still.join("; ")
        };
        self.process_state.record_event("problem", text);
    }

    /// Takes a program's name away, unless somebody needs it.
    fn unload(&self, name: &str, force: bool) -> Response {
        let told: String = name.chars().take(64).collect();
        if !(self.hooks.programs)().iter().any(|p| p.name == name) {
            return refused(vec![format!(
                "cannot unload \"{told}\": no program of this name is loaded here; try `longhaul cc status`"
            )]);
        }
        let counted = match self.programs() {
            Response::Programs { programs } => programs.into_iter().find(|p| p.name == name),
            Response::Refused { errors } => return Response::Refused { errors },
            _ => None,
        };
        let p = counted.unwrap_or_default();
        let own = p.required_by.iter().any(|by| by == OWN);
        if own || (!force && !p.required_by.is_empty()) {
            let way = if own {
                "try another --cc when it is started again".to_owned()
            } else {
                format!(
                    "try another policy first (`longhaul cc set FILE`), or `longhaul cc unload {name} --force`, after which new \
                     flows of it run their fallback"
                )
            };
            let by = places(&p.required_by);
            return refused(vec![format!("cannot unload \"{told}\": it is needed here ({by}); {way}")]);
        }
        if !(self.hooks.unload_program)(name) {
            return refused(vec![format!("cannot unload \"{told}\": it was unloaded meanwhile")]);
        }
        self.process_state.record_event("program", format!("{name} was unloaded"));
        let trouble = self.missing_algorithms();
        for text in &trouble {
            tracing::warn!("{text}");
            self.process_state.record_event("problem", text.clone());
        }
        let flows = match p.flows + p.flows_on_other_version {
            0 => "no flow runs it".to_owned(),
            1 => "1 flow that runs it goes on with it".to_owned(),
            n => format!("{n} flows that run it go on with it"),
        };
        Response::Done { text: format!("{name} is unloaded; {flows}"), warnings: trouble }
    }
}
