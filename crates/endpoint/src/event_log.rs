//! Records connection events in the endpoint's event log.

use crate::Endpoint;
use crate::app::Event;
use observe::{Subject, What};
use transport::{CcChangeReason, refusal};

impl Endpoint {
    /// The event log of connections and of the application above them.
    pub fn log(&mut self) -> &mut observe::EventLog {
        &mut self.log
    }

    /// Gives an event to the application, and records it.
    pub(crate) fn emit(&mut self, e: Event) {
        if self.log.is_on() {
            let (conn, what) = self.recorded(&e);
            self.log.record(conn, || what);
        }
        self.events.push_back(e);
    }

    fn recorded(&self, e: &Event) -> (u64, What) {
        match e {
            Event::Connected { conn } | Event::Incoming { conn } => {
                let remote = self.connection(*conn).map(|i| i.remote);
                let remote = remote.unwrap_or_else(|| ([0, 0, 0, 0], 0).into());
                let is_client = matches!(e, Event::Connected { .. });
                (conn.0, What::ConnectionOpened { remote, is_client })
            }
            Event::QpRequested { conn, .. } | Event::StreamRequested { conn, .. } => {
                (conn.0, What::QueuePairRequested)
            }
            Event::QpGone { conn, .. } => (conn.0, What::QueuePairGone),
            Event::QpReady { conn, by_peer, .. } => (conn.0, What::QueuePairReady { by_peer: *by_peer }),
            Event::QpRefused { conn, code, .. } => (conn.0, What::QueuePairRefused { code: *code }),
            Event::CcChanged { conn, sending, cc, by_peer, .. } => {
                let (subject, algorithm) = (side(*sending), cc.clone());
                (conn.0, What::AlgorithmAgreed { subject, algorithm, by_peer: *by_peer })
            }
            Event::CcRefused { conn, sending, cc, code, .. } => {
                let (subject, algorithm) = (side(*sending), cc.clone());
                let why = refusal::description(*code).to_owned();
                (conn.0, What::AlgorithmRefused { subject, algorithm, why })
            }
            Event::CcReplaced { conn, flow, from, to, why } => {
                (conn.0, replaced(Subject::Flow(*flow), from, to, *why))
            }
            Event::CcReplacedByPeer { conn, from, to, why, .. } => {
                (conn.0, replaced(Subject::Peer, from, to, *why))
            }
            Event::PathChanged { conn, remote } => (conn.0, What::PeerMoved { remote: *remote }),
            Event::PathUp { conn, path } => (conn.0, What::PathUp { path: *path }),
            Event::PathDown { conn, path } => (conn.0, What::PathDown { path: *path }),
            Event::Closed { conn, reason } => (conn.0, What::ConnectionClosed { reason: reason.to_string() }),
        }
    }
}

const fn side(sending: bool) -> Subject {
    if sending { Subject::Sending } else { Subject::Peer }
}

fn replaced(subject: Subject, from: &str, to: &str, why: CcChangeReason) -> What {
    let by_signals = matches!(why, CcChangeReason::Lacks(_) | CcChangeReason::SignalsRestored);
    What::AlgorithmReplaced {
        subject,
        from: from.to_owned(),
        to: to.to_owned(),
        why: why.words().to_string(),
        by_signals,
    }
}
