//! Lets other threads list the sessions of a server and stop it, and records sessions in the event log.

use crate::progress::{Progress, Snapshot};
use crate::proto::Totals;
use base::Time;
use endpoint::ConnId;
use observe::{EventLog, SessionEnd, What};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The client and request of a session, for logs and displays.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SessionPeer {
    /// The client's address.
    pub remote: String,
    /// The fingerprint of its key or certificate; `no key` of one that has shown none.
    pub peer: String,
    /// `put`, `get`, `list`, or nothing yet.
    pub operation: &'static str,
    /// The paths that it named, as they are shown; several are separated by spaces.
    pub path: String,
}

/// A session that runs.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SessionInfo {
    /// Number of the connection.
    pub conn: u64,
    /// Whose it is.
    pub who: SessionPeer,
    /// What it has done.
    pub progress: Snapshot,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    sessions: Mutex<BTreeMap<u64, (SessionPeer, Progress)>>,
}

/// Watches and stops a server from other threads while its loop runs.
#[derive(Clone, Default)]
pub struct Monitor(Arc<Shared>);

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Monitor {
    /// Sessions at present.
    pub fn sessions(&self) -> Vec<SessionInfo> {
        let all = locked(&self.0.sessions).clone();
        all.into_iter().map(|(conn, (who, p))| SessionInfo { conn, who, progress: p.snapshot() }).collect()
    }
    /// Closes all sessions, in a state that can be resumed, and ends the loop at its next turn. The one who asks
    /// wakes it.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
    pub(crate) fn stopped(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }
    pub(crate) fn set(&self, id: ConnId, who: &SessionPeer, progress: &Progress) {
        locked(&self.0.sessions).insert(id.0, (who.clone(), progress.clone()));
    }
    pub(crate) fn end(&self, id: ConnId) {
        locked(&self.0.sessions).remove(&id.0);
    }
}

/// Records what happens to a session in the endpoint's log.
pub(crate) struct Recorder {
    begun: Time,
    /// The operation was recorded, and so many notes and failures.
    started: bool,
    notes: usize,
    errors: usize,
}

impl Recorder {
    pub fn new(now: Time) -> Recorder {
        Recorder { begun: now, started: false, notes: 0, errors: 0 }
    }
    /// What is new of it.
    pub fn update(&mut self, conn: ConnId, who: &SessionPeer, progress: &Progress, log: &mut EventLog) {
        if !log.is_on() {
            return;
        }
        if !self.started && !who.operation.is_empty() {
            self.started = true;
            log.record(conn.0, || What::SessionStarted { operation: who.operation });
        }
        progress.with(|s| {
            for text in s.notes.iter().skip(self.notes) {
                log.record(conn.0, || What::SessionNote { text: text.clone() });
            }
            for e in s.errors.iter().skip(self.errors) {
                log.record(conn.0, || What::FileFailed { text: e.to_string() });
            }
            (self.notes, self.errors) = (s.notes.len(), s.errors.len());
        });
    }
    /// It is over. Without totals it did not come to its end: then what was confirmed counts.
    pub fn end(
        &mut self,
        (now, conn): (Time, ConnId),
        who: &SessionPeer,
        progress: &Progress,
        totals: Option<Totals>,
        (status, log): (String, &mut EventLog),
    ) {
        self.update(conn, who, progress, log);
        let begun = self.begun;
        log.record(conn.0, || {
            progress.with(|s| {
                What::SessionEnded(SessionEnd {
                    client: who.remote.clone(),
                    key: who.peer.clone(),
                    operation: who.operation,
                    path: who.path.clone(),
                    files: totals.map_or(s.files_confirmed, |t| t.files),
                    bytes: totals.map_or(s.bytes_transferred(), |t| t.bytes.saturating_sub(t.resumed_bytes)),
                    resumed_bytes: totals.map_or(s.bytes_resumed, |t| t.resumed_bytes),
                    failed: totals.map_or(s.failed, |t| t.failed.max(s.failed)),
                    sent: s.bytes_sent,
                    received: s.bytes_received,
                    nanos: now.since(begun).as_nanos(),
                    status,
                })
            })
        });
    }
}
