//! The events of the event log.

use base::Time;
use std::net::SocketAddr;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Event {
    /// Counts all events of a log from 1, without gaps.
    pub number: u64,
    /// When, by the clock that drives the endpoint.
    #[serde(skip)]
    pub time: Time,
    /// To which connection of the endpoint.
    pub connection: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// Whose flow or sending an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// A flow of this end, by its number.
    Flow(u8),
    /// All that this end sends on queue pairs without an algorithm of their own.
    Sending,
    /// What the peer sends.
    Peer,
}

/// The kinds of events, by layer.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// Connection: its handshake is complete and the peer is authorised.
    ConnectionOpened {
        /// Where the peer is.
        remote: SocketAddr,
        /// This end connected.
        is_client: bool,
    },
    /// Connection: over.
    ConnectionClosed {
        /// Why, in words.
        reason: String,
    },
    /// Connection: its peer is at another address.
    PeerMoved {
        /// The new address.
        remote: SocketAddr,
    },
    /// Path: it was validated and carries data.
    PathUp {
        /// Its number in the connection; zero is the one that it connected over.
        path: u32,
    },
    /// Path: it carries no data any more.
    PathDown {
        /// Its number in the connection.
        path: u32,
    },
    /// Queue pair: ready beside those that the connection began with.
    QueuePairReady {
        /// The peer opened it.
        by_peer: bool,
    },
    /// The peer asks for a queue pair, and the application decides.
    QueuePairRequested,
    /// The peer has no use for a queue pair any more.
    QueuePairGone,
    /// Queue pair: the peer refused it.
    QueuePairRefused {
        /// The peer's code.
        code: u64,
    },
    /// Algorithm: another one was agreed on.
    AlgorithmAgreed {
        /// Whose.
        subject: Subject,
        /// Name and parameters.
        algorithm: String,
        /// The peer had proposed it.
        by_peer: bool,
    },
    /// Algorithm: another one decides than before, without having been agreed on.
    AlgorithmReplaced {
        /// Whose.
        subject: Subject,
        /// What decided.
        from: String,
        /// What decides now.
        to: String,
        /// Why, in words.
        why: String,
        /// A signal that it needs is missing on the path, or is back.
        by_signals: bool,
    },
    /// Algorithm: what was proposed does not hold.
    AlgorithmRefused {
        /// Whose.
        subject: Subject,
        /// Name and parameters.
        algorithm: String,
        /// Why, in words.
        why: String,
    },
    /// Transfer: a client has said what it wants.
    SessionStarted {
        /// `put`, `get` or `list`.
        operation: &'static str,
    },
    /// Transfer: something to know that is no failure.
    SessionNote {
        /// In words.
        text: String,
    },
    /// Transfer: a file, folder or link could not be transferred.
    FileFailed {
        /// Which and why, in words.
        text: String,
    },
    /// Transfer: over.
    SessionEnded(SessionEnd),
}

/// A session of a server that has ended: the entry of an access log.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct SessionEnd {
    /// The client's address.
    pub client: String,
    /// The fingerprint of its key or certificate; `no key` of one that has shown none.
    pub key: String,
    /// `put`, `get`, `list`; empty where the client did not say.
    pub operation: &'static str,
    /// What it was about, as the client named it; several are separated by spaces.
    pub path: String,
    /// Files that the receiving end has verified and put in place.
    pub files: u64,
    /// Bytes that the receiving end has verified, those of earlier attempts left out.
    pub bytes: u64,
    /// Bytes of an earlier attempt that it has verified.
    pub resumed_bytes: u64,
    /// Files, folders and links that failed.
    pub failed: u64,
    /// Payload that this end sent, repeated bytes left out.
    pub sent: u64,
    /// Payload that this end received.
    pub received: u64,
    /// How long it was connected, in nanoseconds.
    pub nanos: u64,
    /// How it ended: `done`, or why not, in words.
    pub status: String,
}
