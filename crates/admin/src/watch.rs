//! Threads that watch a policy's source for changes.

use crate::etcd::{Access, Change, Etcd, MAX_POLICY, StoreError};
use crate::policy_cache::PolicyCache;
use crate::request_handler::{OfferedPolicy, RequestHandler};
use crate::source::{Source, Store};
use base::{Rng, Span};
use lhio::clock::{self, WallTime};
use lhio::identity::check_for_root;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// How often a file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A file that was changed so recently may have changed again with the same time: times are coarse.
const COARSE: i64 = 2;
/// Pauses between attempts to reach a store that is gone, before chance makes them up to half as long again.
const FIRST_PAUSE: Span = Span::from_millis(250);
const LONGEST_PAUSE: Span = Span::from_secs(30);

/// A source that is watched for as long as this value is there.
#[derive(Debug)]
pub struct PolicyWatcher {
    /// The thread ends when this goes.
    _stop: SyncSender<()>,
}

/// Why a source cannot be watched at all.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The file's policy cannot be used, and there is no other.
    #[error("the policy in {}:\n  {}", path.display(), errors.join("\n  "))]
    Policy {
        /// The file.
        path: PathBuf,
        /// All that is wrong.
        errors: Vec<String>,
    },
    /// The store cannot be asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system starts no further thread.
    #[error("cannot start a thread: {0}; raise the limits of threads and memory (ulimit -u, ulimit -v)")]
    Thread(io::Error),
}

/// Puts the policy of `source` in force, and every other one it has from then on. A store that cannot be reached is no
/// error: then its last good policy is taken from the copy below the folder `state`.
///
/// # Errors
/// [`WatchError`].
pub fn watch(
    source: &Source,
    access: &Access,
    state: &Path,
    handler: &RequestHandler,
) -> Result<PolicyWatcher, WatchError> {
    handler.process_state.set_source(&match source {
        Source::File(path) => whole(path).display().to_string(),
        Source::Store(_) => source.to_string(),
    });
    let (stop, stopped) = sync_channel(0);
    let (name, run): (_, Box<dyn FnOnce() + Send>) = match source {
        Source::File(path) => {
            let mut file = PolicyFile::new(path, handler);
            file.look().map_err(|errors| WatchError::Policy { path: path.clone(), errors })?;
            ("policy file", Box::new(move || file.run(&stopped)))
        }
        Source::Store(store) => {
            let mut store = PolicyStore::new(store, access, state, handler)?;
            store.begin();
            ("policy store", Box::new(move || store.run(&stopped)))
        }
    };
    std::thread::Builder::new().name(name.into()).spawn(run).map_err(WatchError::Thread)?;
    Ok(PolicyWatcher { _stop: stop })
}

/// Waits; true when the thread is to end.
fn pause(stopped: &Receiver<()>, time: Duration) -> bool {
    stopped.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
}

/// Says what is wrong, once for each change of it.
pub(crate) fn complain(handler: &RequestHandler, source: &str, errors: &[String]) {
    let running = handler.process_state.process().policy.origin;
    let rest = if running.is_empty() {
        "no policy is in force".to_owned()
    } else {
        format!("the policy of {running} stays in force")
    };
    if handler.process_state.set_source_errors(errors) {
        let text = errors.join("; ");
        tracing::warn!("policy source {source}: {text}; {rest}");
        handler.process_state.record_event("source", format!("{source}: {text}; {rest}"));
    }
}

/// Says that all is well again, where it was not.
pub(crate) fn content(handler: &RequestHandler, source: &str) {
    if handler.process_state.set_source_errors(&[]) {
        tracing::info!("policy source {source}: all is well");
        handler.process_state.record_event("source", format!("{source}: all is well"));
    }
}

/// Reads a policy's text, which is short. Of root's processes nobody else may write it: it says what is loaded and sent.
///
/// # Errors
/// In words.
pub fn read_policy_file(path: &Path) -> Result<String, String> {
    check_for_root(path).map_err(|e| e.to_string())?;
    let read = || {
        let mut bytes = Vec::new();
        std::fs::File::open(path)?.take(MAX_POLICY as u64 + 1).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    let bytes = read().map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    if bytes.len() > MAX_POLICY {
        return Err(format!(
            "{} is longer than {MAX_POLICY} bytes: no policy needs that much",
            path.display()
        ));
    }
    String::from_utf8(bytes).map_err(|e| format!("{} is not text in UTF-8: {e}", path.display()))
}

/// A path that means the same elsewhere: from the root on.
pub fn whole(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// What tells that a file was changed: place, length and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signature {
    place: (u64, u64),
    len: u64,
    time: (i64, i64),
}

impl Signature {
    fn of(path: &Path) -> Option<Signature> {
        let m = std::fs::metadata(path).ok()?;
        Some(Signature { place: (m.dev(), m.ino()), len: m.len(), time: (m.mtime(), m.mtime_nsec()) })
    }
}

struct PolicyFile {
    path: PathBuf,
    handler: RequestHandler,
    seen: Option<Option<Signature>>,
    /// Its text when it was read last.
    text: Option<String>,
}

impl PolicyFile {
    fn new(path: &Path, handler: &RequestHandler) -> PolicyFile {
        PolicyFile { path: path.to_owned(), handler: handler.clone(), seen: None, text: None }
    }

    /// Looks whether it was changed, and puts in force what it says then.
    fn look(&mut self) -> Result<(), Vec<String>> {
        let now = Signature::of(&self.path);
        let recent = now.is_some_and(|s| WallTime::now().secs.saturating_sub(s.time.0) < COARSE);
        if self.seen == Some(now) && !recent {
            return Ok(());
        }
        let changed = self.seen != Some(now);
        self.seen = Some(now);
        let text = read_policy_file(&self.path).map_err(|e| vec![e])?;
        if self.text.as_ref() == Some(&text) {
            // Perhaps it was away for a moment.
            return if changed && self.is_bad() { self.install(text) } else { Ok(()) };
        }
        self.install(text)
    }

    fn is_bad(&self) -> bool {
        !self.handler.process_state.process().policy.errors.is_empty()
    }

    fn install(&mut self, text: String) -> Result<(), Vec<String>> {
        self.text = Some(text.clone());
        let (from, path) = (self.path.display().to_string(), whole(&self.path).display().to_string());
        let result = self.handler.accept_offer(OfferedPolicy { text, from, path, revision: 0, cache: None });
        if result.is_ok() {
            content(&self.handler, &self.path.display().to_string());
        }
        result
    }

    fn run(mut self, stopped: &Receiver<()>) {
        while !pause(stopped, LOOK_EVERY) {
            if let Err(errors) = self.look() {
                complain(&self.handler, &self.path.display().to_string(), &errors);
            }
        }
    }
}

struct PolicyStore {
    name: String,
    etcd: Etcd,
    cache: PolicyCache,
    handler: RequestHandler,
    rng: Rng,
    /// Revision and text of the newest policy that it had, good or bad.
    seen: Option<(u64, Vec<u8>)>,
}

impl PolicyStore {
    fn new(
        store: &Store,
        access: &Access,
        state: &Path,
        handler: &RequestHandler,
    ) -> Result<PolicyStore, StoreError> {
        let name = store.to_string();
        let kept = PolicyCache::new(state, &name);
        // Only hosts that were cut off together are to come back at different times.
        let rng = Rng::from_seed(clock::seed().unwrap_or_default());
        Ok(PolicyStore {
            etcd: Etcd::new(store, access)?,
            name,
            cache: kept,
            handler: handler.clone(),
            rng,
            seen: None,
        })
    }

    /// The first policy: the store's, or else the copy of it.
    fn begin(&mut self) {
        let found = self.fetch();
        if let Err(e) = &found {
            complain(&self.handler, &self.name, &[e.to_string()]);
        }
        if !self.handler.process_state.process().policy.origin.is_empty() {
            return;
        }
        let from = format!("kept copy of {}", self.name);
        // What the store has waits for programs, if it has anything; else the copy does.
        let offer =
            |text| OfferedPolicy { text, from: from.clone(), path: String::new(), revision: 0, cache: None };
        let take = |text: String| match found {
            Ok(_) => self.handler.install(&offer(text)).map(drop),
            Err(_) => self.handler.accept_offer(offer(text)),
        };
        match self.cache.read().map(take) {
            Some(Ok(())) => {
                tracing::warn!("the policy is the {from}, as it was when the store was last there")
            }
            Some(Err(errors)) => {
                tracing::warn!("the copy in {}: {}", self.cache.path().display(), errors.join("; "));
            }
            None => {
                tracing::warn!("{} gave no policy yet, and there is no copy: none is in force", self.name)
            }
        }
    }

    /// Takes the policy that the store has now; tells the store's revision.
    fn fetch(&mut self) -> Result<u64, StoreError> {
        let found = self.etcd.get()?;
        match found.value {
            Some((bytes, revision)) => self.accept_offer(bytes, revision),
            None => self.gone(),
        }
        Ok(found.revision)
    }

    fn gone(&mut self) {
        self.seen = None;
        self.handler.forget();
        let push =
            format!("no policy is there: `longhaul cc push FILE --store {}` puts one there", self.name);
        complain(&self.handler, &self.name, &[push]);
    }

    fn accept_offer(&mut self, bytes: Vec<u8>, revision: u64) {
        if self.seen.as_ref().is_some_and(|s| s.0 == revision && s.1 == bytes) {
            // The store was gone, and what it has is what it had.
            if self.handler.process_state.process().policy.revision == revision {
                content(&self.handler, &self.name);
            }
            return;
        }
        let text = match String::from_utf8(bytes.clone()) {
            Ok(text) => Ok(text),
            Err(e) => Err(vec![format!("it is not text in UTF-8: {e}")]),
        };
        self.seen = Some((revision, bytes));
        let (from, kept) = (self.name.clone(), Some(self.cache.clone()));
        match text.and_then(|text| {
            self.handler.accept_offer(OfferedPolicy {
                text,
                from,
                path: String::new(),
                revision,
                cache: kept,
            })
        }) {
            Ok(()) => content(&self.handler, &self.name),
            Err(mut errors) => {
                errors.insert(0, format!("its policy of revision {revision} cannot be used"));
                complain(&self.handler, &self.name, &errors);
            }
        }
    }

    /// Follows the store until it falls silent or fails. What it has is fetched again each time: only the newest policy
    /// counts, so no revision in between is missed, and none has to be kept for us.
    fn follow(&mut self) -> Result<(), StoreError> {
        let revision = self.fetch()?;
        let mut watch = self.etcd.watch(revision.saturating_add(1))?;
        loop {
            match watch.wait()? {
                Change::Put(bytes, revision) => self.accept_offer(bytes, revision),
                Change::Deleted => self.gone(),
                Change::Lost => return Ok(()),
                Change::Nothing => {}
            }
        }
    }

    fn run(mut self, stopped: &Receiver<()>) {
        let mut wait = FIRST_PAUSE;
        loop {
            let before = clock::Clock::new().now();
            if let Err(e) = self.follow() {
                complain(&self.handler, &self.name, &[e.to_string()]);
                // One that had worked for a while is soon tried again.
                if clock::Clock::new().now().since(before) > LONGEST_PAUSE {
                    wait = FIRST_PAUSE;
                }
            } else {
                wait = FIRST_PAUSE;
            }
            let chance = self.rng.below(wait.as_nanos() / 2 + 1);
            if pause(stopped, Duration::from_nanos(wait.as_nanos() + chance)) {
                return;
            }
            wait = (wait * 2).min(LONGEST_PAUSE);
        }
    }
}
