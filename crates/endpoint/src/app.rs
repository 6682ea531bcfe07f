//! The application's interface to an endpoint: the [`App`] trait, events and connection details.

use crate::Endpoint;
use base::Time;
use std::net::SocketAddr;
use transport::crypto::{PeerIdentity, Suite};
use transport::{CcChangeReason, CloseReason};
use verbs::{CqId, PdId, QpId};

/// One connection of an endpoint. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ConnId(pub u64);

/// An application, driven by the loop that drives its endpoint: a real driver, or the simulator.
pub trait App {
    /// Called after each turn in which datagrams, timers or wake-ups were handled. Takes events and completions,
    /// posts work. Does bounded work; what blocks (files, hashing) runs on other threads, which wake the loop.
    fn drive(&mut self, now: Time, endpoint: &mut Endpoint);
    /// When it wants to be driven although nothing happened.
    fn next_timeout(&self) -> Option<Time> {
        None
    }
    /// Whether the loop may end, once all connections have closed.
    fn finished(&self) -> bool {
        false
    }
}

/// Decides which authenticated clients a server admits, beyond its settings; may change its decisions while it runs
/// (key lists that are reloaded, tokens that were redeemed elsewhere). See [`Endpoint::set_client_admission`].
pub trait ClientAdmission: Send {
    /// Whether `peer`, whose key or certificate the handshake has verified, is admitted; called once for each
    /// connection. Must not block: nothing else runs meanwhile.
    ///
    /// # Errors
    /// Why not: said to the client, of which it sees 128 characters.
    fn admit(&mut self, now: Time, peer: &PeerIdentity) -> Result<(), String>;
}

/// The verbs objects of a connection and the identity of its peer.
#[derive(Clone, Debug)]
pub struct ConnInfo {
    /// Protection domain: memory keys are scoped to the connection by it.
    pub pd: PdId,
    /// Send and receive completions of all its queue pairs.
    pub cq: CqId,
    /// Queue pairs by their number on the wire; those from the start come first.
    pub qps: Vec<QpId>,
    /// Where the peer is.
    pub remote: SocketAddr,
    /// Who the peer is.
    pub peer: Option<PeerIdentity>,
    /// Whether this end connected.
    pub is_client: bool,
    /// What protects its packets; of a connection by iWARP, its streams.
    pub suite: Suite,
    /// Of a connection by iWARP.
    pub iwarp: Option<IwarpInfo>,
}

/// Details of an iWARP connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IwarpInfo {
    /// Whether TLS goes below.
    pub tls: bool,
    /// Whether records have CRCs.
    pub crc: bool,
    /// Whether what arrives has markers.
    pub markers_in: bool,
    /// Whether what leaves has markers.
    pub markers_out: bool,
    /// Whether the peer is Longhaul, too.
    pub longhaul: bool,
    /// Congestion control of TCP, by the system's name for it; empty until the driver has told.
    pub congestion: String,
    /// What the peer's application says.
    pub private_data: Vec<u8>,
}

/// Events for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A connection of this client is ready. With first-use trust, compare the peer's key before sending.
    Connected {
        /// Which.
        conn: ConnId,
    },
    /// A client has connected and is authorised.
    Incoming {
        /// Which.
        conn: ConnId,
    },
    /// A further queue pair is ready.
    QpReady {
        /// On which connection.
        conn: ConnId,
        /// The queue pair.
        qp: QpId,
        /// What the opener handed over.
        private_data: Vec<u8>,
        /// Whether the peer opened it.
        by_peer: bool,
    },
    /// The peer asks for a queue pair: [`Endpoint::accept_qp`] or [`Endpoint::refuse_requested_qp`] answers. Only where
    /// [`Endpoint::set_asks_for_qps`] asks for that.
    QpRequested {
        /// On which connection.
        conn: ConnId,
        /// Its number there.
        number: u16,
        /// Whether lost data is to be sent again.
        reliable: bool,
        /// What the peer's application hands over.
        private_data: Vec<u8>,
    },
    /// A peer asks by a connection of its own by iWARP for a queue pair that the application has created:
    /// [`Endpoint::accept_stream`] or [`Endpoint::refuse_stream`] answers. [`Event::Incoming`] or [`Event::Closed`] follows.
    StreamRequested {
        /// Which.
        conn: ConnId,
        /// What the peer's application hands over.
        private_data: Vec<u8>,
    },
    /// The peer has no use for a queue pair any more that the application created here ([`Endpoint::disconnect_qp`]): what has not
    /// been delivered never will be.
    QpGone {
        /// On which connection.
        conn: ConnId,
        /// The queue pair, which is as it was.
        qp: QpId,
    },
    /// The peer refused a queue pair; it is destroyed, unless the application had created it.
    QpRefused {
        /// On which connection.
        conn: ConnId,
        /// The queue pair that is no more.
        qp: QpId,
        /// The peer's code.
        code: u64,
    },
    /// Congestion control changed, as agreed with the peer.
    CcChanged {
        /// On which connection.
        conn: ConnId,
        /// On which queue pair; `None`: on all that have none of their own.
        qp: Option<QpId>,
        /// For what this end sends, else for what the peer sends.
        sending: bool,
        /// Algorithm and parameters.
        cc: String,
        /// The peer had proposed it; else this end by [`Endpoint::propose_cc`].
        by_peer: bool,
    },
    /// A proposal made by [`Endpoint::propose_cc`] was refused.
    CcRefused {
        /// On which connection.
        conn: ConnId,
        /// On which queue pair; `None`: on all that have none of their own.
        qp: Option<QpId>,
        /// For what this end sends, else for what the peer sends.
        sending: bool,
        /// Algorithm and parameters.
        cc: String,
        /// Why: a code of [`crate::refusal`], which has words for it.
        code: u64,
    },
    /// The algorithm of a flow of this end changed; the peer was notified but not asked: by policy, for missing or
    /// restored signals, or because a program was stopped.
    CcReplaced {
        /// On which connection.
        conn: ConnId,
        /// The flow, as [`Endpoint::flows`] numbers it.
        flow: u8,
        /// What decided before.
        from: String,
        /// What decides from now on.
        to: String,
        /// Why.
        why: CcChangeReason,
    },
    /// The peer reports such a change of its own sending. Changes that follow faster than a reader could are left
    /// out: [`Endpoint::flows`] has the newest.
    CcReplacedByPeer {
        /// On which connection.
        conn: ConnId,
        /// On which queue pair; `None`: on all that have none of their own.
        qp: Option<QpId>,
        /// What decided before, as far as that is known.
        from: String,
        /// What decides from now on.
        to: String,
        /// Why.
        why: CcChangeReason,
    },
    /// The peer is at another address now.
    PathChanged {
        /// Which connection.
        conn: ConnId,
        /// The new address.
        remote: SocketAddr,
    },
    /// Data goes over a further path of a connection, or goes over it again.
    PathUp {
        /// Which connection.
        conn: ConnId,
        /// The path's number, from [`Endpoint::add_path`]; zero is the one that it connected over.
        path: u32,
    },
    /// No data goes over a path: it leads nowhere, was closed, or has fallen silent, in which case [`Event::PathUp`] may
    /// follow. Nothing is lost by it while another path is there.
    PathDown {
        /// Which connection.
        conn: ConnId,
        /// The path's number.
        path: u32,
    },
    /// A connection has ended. Its work requests are flushed into its completion queue, those of queue pairs that the application
    /// created stay as they are; call
    /// [`Endpoint::release`] when that is drained.
    Closed {
        /// Which.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
    },
}
