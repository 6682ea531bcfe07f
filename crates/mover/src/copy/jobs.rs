//! Copy jobs of a server: transfers to other servers for its clients.

use super::address;
use crate::client::ClientApp;
use crate::error::{Error, FileError};
use crate::limits::Budgets;
use crate::pool::Wake;
use crate::progress::{Progress, Summary};
use crate::proto::{CopyRequest, JobPhase, JobStatus, SourceCounts};
use crate::roots::{self, Sources};
use crate::tree::Tree;
use base::{Span, Time};
use endpoint::Connect;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use transport::crypto::{Fingerprint, PeerIdentity, ServerTrust};
use transport::error::code::{BUSY, UNAUTHORISED};

/// How long a copy that has ended is told of.
const KEEP: Span = Span::from_secs(3600);
/// Copies of one client that have ended and are told of.
const KEPT: usize = 16;
/// Attempts of one copy, of which all but the first follow a lost connection.
const ATTEMPTS: u64 = 4;
/// Pause before the second attempt; twice as long before each further one.
const PAUSE: Span = Span::from_secs(2);
/// Longest name of what goes where.
const MAX_WHAT: usize = crate::error::MAX_TEXT;

/// What clients may have a server send to other servers.
#[derive(Clone, Copy, Debug)]
pub struct CopyLimits {
    /// Copies of one client at a time.
    pub per_client: usize,
    /// Copies at a time.
    pub in_all: usize,
    /// Loopback and link-local addresses may be connected to as well.
    pub near: bool,
}

impl Default for CopyLimits {
    fn default() -> CopyLimits {
        CopyLimits { per_client: 4, in_all: 16, near: false }
    }
}

/// Runs copies, each with a socket, an endpoint and a thread of its own.
pub trait CopyRunner: Send {
    /// Begins one: [`CopyJob::attempt`] until [`CopyJob::pause`] says that it is over. Must not block.
    ///
    /// # Errors
    /// Why it cannot begin, for the client.
    fn start(&self, job: CopyJob) -> Result<(), String>;
}

/// One copy, for who runs it.
#[derive(Clone)]
pub struct CopyJob(Arc<Shared>);

struct Shared {
    request: CopyRequest,
    tree: Arc<Tree>,
    direct: bool,
    budgets: Budgets,
    groups: Vec<String>,
    /// The server's: it has news for who watches.
    wake: Wake,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    attempt: u64,
    progress: Progress,
    waiting: bool,
    cancelled: bool,
    /// The other server has been there.
    reached: bool,
    /// What the attempt before came to.
    before: Option<Summary>,
    /// Wakes the attempt that runs.
    runs: Option<Wake>,
    outcome: Option<Summary>,
}

impl fmt::Debug for CopyJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "copy to {}", self.0.request.to)
    }
}

impl CopyJob {
    /// One of a program that has no other: it sends from below `root`. `wake` is called when it has ended, or another attempt follows.
    ///
    /// # Errors
    /// The folder cannot be opened.
    pub fn alone(root: &Path, request: CopyRequest, wake: Wake) -> Result<CopyJob, Error> {
        let tree = Tree::open(root).map_err(|e| Error::Local {
            text: format!("cannot send from {}: {e}; name a folder that can be read", root.display()),
        })?;
        let budgets = Budgets::new(lhio::budget::memory_for_clients(None), u64::MAX);
        let (tree, direct, groups, state) = (Arc::new(tree), false, Vec::new(), Mutex::default());
        Ok(CopyJob(Arc::new(Shared { request, tree, direct, budgets, groups, wake, state })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seed of the key that the other server lets in.
    pub fn seed(&self) -> &[u8; 32] {
        &self.0.request.seed.0
    }

    /// How the other server is reached.
    pub fn connect(&self) -> Connect {
        let to = self.0.request.to;
        Connect {
            remote: to,
            server_name: to.ip().to_string(),
            trust: ServerTrust::Fingerprint(Fingerprint::from_bytes(self.0.request.fingerprint)),
            token: None,
            options: None,
            iwarp: None,
        }
    }

    /// The transfer, for one connection; `wake` wakes the loop that drives it.
    ///
    /// # Errors
    /// It was cancelled meanwhile, or what it is to send cannot be sent at all.
    pub fn attempt(&self, wake: Wake) -> Result<ClientApp, Error> {
        let s = &self.0;
        let mut sources = Sources::default();
        let mut id = blake3::Hasher::new();
        id.update(b"longhaul copy\0").update(&std::fs::read("/etc/machine-id").unwrap_or_default());
        for (p, contents) in &s.request.sources {
            let place = [p.as_bytes(), if *contents { b"/" } else { b"" }].concat();
            id.update(&place).update(&[0]);
            sources.add(roots::shown(p), &place, roots::served(&s.tree, p, *contents));
        }
        id.update(s.request.put.paths.first().map_or(b"", |p| p.as_bytes()));
        let mut put = s.request.put.clone();
        put.transfer.copy_from_slice(&id.finalize().as_bytes()[..16]);
        let limits = s.budgets.share_of(s.groups.clone());
        let app = ClientApp::for_client(self.connect(), put, (sources, s.direct), limits, wake.clone());
        let mut state = self.state();
        if state.cancelled {
            return Err(Error::Interrupted);
        }
        state.attempt += 1;
        (state.waiting, state.progress, state.runs) = (false, app.progress(), Some(wake));
        Ok(app)
    }

    /// After an attempt: how long to wait before the next one; `None` when it is over.
    pub fn pause(&self) -> Option<Span> {
        let mut state = self.state();
        state.runs = None;
        let outcome = state.progress.outcome();
        state.reached |= outcome.as_ref().is_some_and(|s| s.progress.bytes_sent > 0);
        let again = state.attempt < ATTEMPTS && !state.cancelled && state.reached;
        let pause = match outcome {
            Some(s) if again && may_pass(&s) => {
                state.before = Some(s);
                Some(PAUSE * (1 << (state.attempt - 1)))
            }
            Some(s) => {
                // Who lets this end in once only says nothing new by that.
                let said = if is_unauthorised(&s) { state.before.take() } else { None };
                state.outcome = Some(said.unwrap_or(s));
                None
            }
            None => {
                let text = "the transfer ended without a result; try again".to_owned();
                state.outcome = Some(summary(&state, Error::Local { text }));
                None
            }
        };
        state.waiting = pause.is_some();
        drop(state);
        (self.0.wake)();
        pause
    }

    /// It cannot be run, or not any more.
    pub fn fail(&self, error: Error) {
        let mut state = self.state();
        let s = summary(&state, error);
        state.outcome.get_or_insert(s);
        state.runs = None;
        drop(state);
        (self.0.wake)();
    }

    /// Whether it is to stop: who waits between attempts looks now and then.
    pub fn cancelled(&self) -> bool {
        self.state().cancelled
    }

    /// How far it is: with its number and words for it, after so many nanoseconds.
    pub fn status(&self, job: u64, what: String, nanos: u64) -> JobStatus {
        let state = self.state();
        let phase = match (&state.outcome, state.waiting) {
            (Some(_), _) => JobPhase::Ended,
            (None, true) => JobPhase::Waiting,
            (None, false) => JobPhase::Running,
        };
        let outcome = state.outcome.as_ref();
        let p = outcome.map_or_else(|| state.progress.snapshot(), |s| s.progress.clone());
        JobStatus {
            job,
            phase,
            attempt: state.attempt.max(1),
            nanos,
            what,
            current: p.current.clone(),
            complete: p.complete,
            found: SourceCounts {
                files: p.files_total,
                bytes: p.bytes_total,
                same_files: p.files_skipped,
                same_bytes: p.bytes_skipped,
                not_preserved: p.not_preserved,
            },
            files_confirmed: p.files_confirmed,
            bytes_confirmed: p.bytes_confirmed,
            bytes_resumed: p.bytes_resumed,
            bytes_sent: p.bytes_sent,
            bytes_retransmitted: p.bytes_retransmitted,
            bytes_per_second: p.bytes_per_second.unwrap_or(0),
            files_per_second: p.files_per_second.unwrap_or(0),
            millis_left: p.seconds_left.map_or(0, |s| (s * 1e3) as u64),
            failed: p.failed,
            totals: outcome.map(|s| s.totals).unwrap_or_default(),
            error: outcome.and_then(|s| s.error.clone()),
        }
    }

    /// Failures of files in the present attempt, from number `from` on.
    pub fn failures(&self, from: usize) -> Vec<FileError> {
        self.state().progress.with(|p| p.errors.iter().skip(from).cloned().collect())
    }

    /// Stops it.
    pub fn cancel(&self) {
        let mut state = self.state();
        state.cancelled = true;
        state.progress.interrupt();
        if let Some(wake) = &state.runs {
            wake();
        }
    }
}

fn summary(state: &State, error: Error) -> Summary {
    let (progress, totals) = (state.progress.snapshot(), Default::default());
    Summary { error: Some(error), progress, totals, nanos: 0, dry_run: false }
}

/// Whether another attempt may fare better: the connection was lost, or the other server had no place.
fn may_pass(s: &Summary) -> bool {
    matches!(s.error, Some(Error::Connection { code: None | Some(BUSY), .. }))
}

fn is_unauthorised(s: &Summary) -> bool {
    matches!(s.error, Some(Error::Connection { code: Some(UNAUTHORISED), .. }))
}

struct Job {
    owner: PeerIdentity,
    what: String,
    begun: Time,
    ended: Option<Time>,
    job: CopyJob,
}

/// What a copy is made of, beside the request.
pub(crate) struct Start<'a> {
    /// Whose it is.
    pub owner: &'a PeerIdentity,
    /// The served folder.
    pub tree: &'a Arc<Tree>,
    /// Large files are read past the page cache.
    pub direct: bool,
    /// Memory, and of which shares.
    pub budgets: (&'a Budgets, Vec<String>),
    /// Wakes the server.
    pub wake: Wake,
}

/// The copies of a server.
pub(crate) struct Copies {
    runner: Box<dyn CopyRunner>,
    limits: CopyLimits,
    jobs: BTreeMap<u64, Job>,
    next: u64,
}

impl Copies {
    pub fn new(runner: Box<dyn CopyRunner>, limits: CopyLimits) -> Copies {
        Copies { runner, limits, jobs: BTreeMap::new(), next: 1 }
    }

    /// Begins one; its number.
    ///
    /// # Errors
    /// Why not, for the client.
    pub fn start(&mut self, now: Time, r: CopyRequest, s: Start<'_>) -> Result<u64, String> {
        let to = r.to;
        if let Some(why) = address::refused(to, self.limits.near) {
            return Err(format!(
                "the server does not connect to {to}: {why}; name an address at which others reach that server, or ask the one \
                 who runs this one for --allow-copy=near"
            ));
        }
        if r.sources.is_empty() {
            return Err("a copy names at least one source".into());
        }
        self.settle(now);
        let running = || self.jobs.values().filter(|j| j.ended.is_none());
        let own = running().filter(|j| j.owner == *s.owner).count();
        if own >= self.limits.per_client || running().count() >= self.limits.in_all {
            let whose = if own >= self.limits.per_client { "this client" } else { "all clients" };
            return Err(format!(
                "too many copies of {whose} are under way ({own} of this client's); wait for one to end, or cancel it"
            ));
        }
        let what = what(&r);
        let state = Mutex::default();
        let (budgets, groups) = (s.budgets.0.clone(), s.budgets.1);
        let (tree, direct, wake) = (s.tree.clone(), s.direct, s.wake);
        let job = CopyJob(Arc::new(Shared { request: r, tree, direct, budgets, groups, wake, state }));
        self.runner.start(job.clone())?;
        let n = self.next;
        self.next += 1;
        self.jobs.insert(n, Job { owner: s.owner.clone(), what, begun: now, ended: None, job });
        Ok(n)
    }

    /// Notes what has ended, and forgets what ended long ago.
    pub fn settle(&mut self, now: Time) {
        for (job, j) in self.jobs.iter_mut().filter(|(_, j)| j.ended.is_none()) {
            if let Some(s) = &j.job.state().outcome {
                let (files, bytes) = (s.progress.files_confirmed, s.progress.bytes_transferred());
                let status = s.error.as_ref().map_or_else(|| "done".to_owned(), ToString::to_string);
                tracing::info!(job, key = %j.owner, what = j.what, files, bytes, status, "a copy ended");
                j.ended = Some(now);
            }
        }
        self.jobs.retain(|_, j| j.ended.is_none_or(|t| now.since(t) < KEEP));
        let mut owners: Vec<(PeerIdentity, usize)> = Vec::new();
        // The newest of each client stay.
        let old: Vec<u64> = self
            .jobs
            .iter()
            .rev()
            .filter(|(_, j)| j.ended.is_some())
            .filter_map(|(n, j)| match owners.iter_mut().find(|(o, _)| *o == j.owner) {
                Some((_, kept)) => {
                    *kept += 1;
                    (*kept > KEPT).then_some(*n)
                }
                None => {
                    owners.push((j.owner.clone(), 1));
                    None
                }
            })
            .collect();
        old.iter().for_each(|n| drop(self.jobs.remove(n)));
    }

    /// The numbers of a client's copies.
    pub fn of(&self, owner: &PeerIdentity) -> Vec<u64> {
        self.jobs.iter().filter(|(_, j)| j.owner == *owner).map(|(n, _)| *n).collect()
    }

    /// How far a copy is, with the progress of its last attempt; `None` of one that this client has not.
    pub fn status(&mut self, now: Time, owner: &PeerIdentity, n: u64) -> Option<(JobStatus, Progress)> {
        self.settle(now);
        let j = self.jobs.get(&n).filter(|j| j.owner == *owner)?;
        let nanos = j.ended.unwrap_or(now).since(j.begun).as_nanos();
        let progress = j.job.state().progress.clone();
        Some((j.job.status(n, j.what.clone(), nanos), progress))
    }

    /// Stops a copy of this client; false where it has none of that number.
    pub fn cancel(&self, owner: &PeerIdentity, n: u64) -> bool {
        let job = self.jobs.get(&n).filter(|j| j.owner == *owner);
        job.map(|j| j.job.cancel()).is_some()
    }

    /// Stops all.
    pub fn stop(&self) {
        self.jobs.values().filter(|j| j.ended.is_none()).for_each(|j| j.job.cancel());
    }

    /// Whether none runs.
    pub fn is_idle(&self) -> bool {
        self.jobs.values().all(|j| j.job.state().outcome.is_some())
    }
}

/// What goes where, in words.
fn what(r: &CopyRequest) -> String {
    let names: Vec<String> =
        r.sources.iter().take(4).map(|(p, _)| crate::path::show(roots::shown(p))).collect();
    let more = r.sources.len().saturating_sub(names.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let to = r.put.paths.first().map(|p| crate::path::show(roots::shown(p))).unwrap_or_default();
    let mut text = format!("{}{more} to {}/{to}", names.join(" "), r.to);
    crate::error::truncate(&mut text, MAX_WHAT);
    text
}
