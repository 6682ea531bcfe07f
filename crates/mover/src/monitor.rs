//! A server seen from other threads: its sessions, those that ended, and the way to stop it.

use crate::progress::{Progress, Snapshot};
use crate::proto::Totals;
use endpoint::ConnId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Sessions that ended and that nobody has asked for; the oldest are forgotten.
const MAX_ENDED: usize = 1024;

/// What a session is, for the server's log or display.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Who {
    /// The client's address.
    pub remote: String,
    /// The fingerprint of its key or certificate; `no key` of one that has shown none.
    pub peer: String,
    /// `put`, `get`, `list`, or nothing yet.
    pub operation: &'static str,
}

/// A session that runs.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SessionInfo {
    /// Number of the connection.
    pub conn: u64,
    /// Whose it is.
    pub who: Who,
    /// What it has done.
    pub progress: Snapshot,
}

/// A session that ended.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Ended {
    /// Number of the connection.
    pub conn: u64,
    /// Whose it was.
    pub who: Who,
    /// Files put in place, as the client is told.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files, folders and links that failed.
    pub failed: u64,
    /// How it ended, in words.
    pub status: String,
    /// The last picture.
    pub progress: Snapshot,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    sessions: Mutex<BTreeMap<u64, (Who, Progress)>>,
    ended: Mutex<VecDeque<Ended>>,
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
    /// Sessions that ended since this was asked last, the oldest first.
    pub fn take_ended(&self) -> Vec<Ended> {
        locked(&self.0.ended).drain(..).collect()
    }
    /// Closes all sessions, in a state that can be resumed, and ends the loop at its next turn. The one who asks
    /// wakes it.
    pub fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
    pub(crate) fn stopped(&self) -> bool {
        self.0.stop.load(Ordering::Relaxed)
    }
    pub(crate) fn set(&self, id: ConnId, who: &Who, progress: &Progress) {
        locked(&self.0.sessions).insert(id.0, (who.clone(), progress.clone()));
    }
    /// A session is over. Without totals it did not come to its end: then what is in place counts.
    pub(crate) fn end(&self, id: ConnId, totals: Option<Totals>, status: String) {
        let Some((who, p)) = locked(&self.0.sessions).remove(&id.0) else { return };
        let progress = p.snapshot();
        let (files, bytes, failed) = match totals {
            Some(t) => (t.files, t.bytes, t.failed),
            None => (progress.files_done, progress.bytes_done, progress.failed),
        };
        let mut ended = locked(&self.0.ended);
        if ended.len() >= MAX_ENDED {
            ended.pop_front();
        }
        ended.push_back(Ended { conn: id.0, who, files, bytes, failed, status, progress });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_sessions_wait_to_be_asked_for_and_do_not_pile_up() {
        let m = Monitor::default();
        let who = Who { remote: "192.0.2.1:1".into(), peer: "no key".into(), operation: "put" };
        for n in 0..MAX_ENDED as u64 + 3 {
            m.set(ConnId(n), &who, &Progress::default());
            assert_eq!(m.sessions().len(), 1);
            m.end(ConnId(n), Some(Totals { files: n, ..Totals::default() }), "done".into());
            m.end(ConnId(n), None, "a second time".into());
        }
        let all = m.take_ended();
        assert_eq!((all.len(), all[0].files, all[0].status.as_str()), (MAX_ENDED, 3, "done"));
        assert!(m.take_ended().is_empty() && m.sessions().is_empty());
    }
}
