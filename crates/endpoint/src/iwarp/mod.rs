//! iWARP connections: one or more byte streams that belong together, each with a queue pair.
//!
//! A stream is a TCP connection of the driver's, which carries out [`StreamCommand`]s, tells what becomes of streams, and moves
//! bytes by [`StreamIo`]. Between two ends of Longhaul a connection has as many queue pairs from the start as the client
//! asks for, as with the native transport: the private data of the start-up says which streams belong together (see
//! [`hello`]). With anybody else a stream is a connection.

mod caps;
mod congestion;
mod conn;
mod dscp;
mod fair_shares;
mod half_open;
mod hello;
mod io;
mod options;
mod own_qp;
mod stream_stats;
mod tls;

pub(crate) use caps::above;
pub use congestion::HasCongestion;
pub use hello::Hello;
pub use io::StreamIo;
pub use options::{Iwarp, IwarpServer};
pub use stream_stats::StreamStats;

use crate::app::ConnId;
use base::Time;
use conn::IwarpConn;
use io::Stream;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use verbs::QpId;

/// Streams of a connection at most.
pub const MAX_STREAMS: u16 = 256;

/// A byte stream between driver and endpoint. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(pub u64);

/// A command for the driver concerning one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StreamCommand {
    /// Connect it. [`Endpoint::stream_connected`](crate::Endpoint::stream_connected) or
    /// [`Endpoint::stream_failed`](crate::Endpoint::stream_failed) follows.
    Connect {
        /// Which.
        stream: StreamId,
        /// To where.
        remote: SocketAddr,
        /// Congestion control by the system's name for it (`TCP_CONGESTION`); `None` takes the system's choice.
        congestion: Option<String>,
        /// Code point of its packets, from the first one on: 0 to 63.
        dscp: u8,
    },
    /// Shut down its sending side, behind all that was sent.
    Shutdown(StreamId),
    /// Close it.
    Close(StreamId),
    /// Reset it.
    Abort(StreamId),
    /// Tell what the system says of it now; see [`Endpoint::set_stream_stats`](crate::Endpoint::set_stream_stats).
    QueryStats(StreamId),
    /// Have the system decide by another congestion control what it sends.
    SetCongestion {
        /// Which.
        stream: StreamId,
        /// By the system's name for it (`TCP_CONGESTION`).
        name: String,
    },
    /// Have its packets carry another code point.
    SetDscp {
        /// Which.
        stream: StreamId,
        /// Differentiated-services code point (RFC 2474), 0 to 63.
        dscp: u8,
    },
    /// Have it send no faster than this.
    SetPacing {
        /// Which.
        stream: StreamId,
        /// `None`: as fast as TCP finds right.
        rate: Option<base::Rate>,
    },
}

/// All iWARP connections of an endpoint.
#[derive(Default)]
pub(crate) struct IwarpState {
    pub conns: BTreeMap<ConnId, IwarpConn>,
    /// A tree: of few it is found sooner than by hashing, of ten thousand about as soon.
    pub streams: BTreeMap<StreamId, Box<Stream>>,
    /// Incoming connections of which streams are still to come, by what the client calls them.
    pub gathering: HashMap<[u8; hello::ID], ConnId>,
    pub by_qp: BTreeMap<QpId, StreamId>,
    pub orders: VecDeque<StreamCommand>,
    /// Streams that may have something to send, or may read on.
    pub ready: VecDeque<StreamId>,
    pub deadlines: BTreeSet<(Time, StreamId)>,
    /// Incoming connections that are not over.
    pub open: usize,
    /// Incoming streams that are not established.
    pub half_open: half_open::HalfOpen,
    pub next_stream: u64,
    /// When caps that connections share were divided last because of their needs, and whether needs have changed since.
    pub divided: Time,
    pub needs_changed: bool,
    /// What is gathered to be sealed.
    pub plain: Vec<u8>,
    /// Whether the system has a congestion control.
    pub has_congestion: Option<HasCongestion>,
    /// Scratch memory of all streams.
    pub spare: ::iwarp::Scratch,
}

impl IwarpState {
    /// Nobody watches what the system says of streams any more.
    pub fn end_trace(&mut self) {
        self.conns.values_mut().for_each(|b| b.traced = None);
    }

    /// Queues the stream for the driver.
    pub fn touch(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id)
            && !core::mem::replace(&mut s.queued, true)
        {
            self.ready.push_back(id);
        }
    }

    /// Queues the stream for the driver if it has something to send, and schedules its timer.
    pub fn follow_up(&mut self, id: StreamId) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        let sends = s.engine.as_ref().is_some_and(::iwarp::Connection::wants_to_send);
        let due = s.is_due_sooner();
        if sends {
            self.touch(id);
        }
        if due {
            self.schedule(id);
        }
    }

    /// Adds a stream.
    pub fn insert(&mut self, s: Stream) -> StreamId {
        let id = StreamId(self.next_stream);
        self.next_stream += 1;
        self.streams.insert(id, Box::new(s));
        id
    }

    /// Schedules the stream's timer. An earlier timer than needed does no harm, and saves changing the order with
    /// every record.
    pub fn schedule(&mut self, id: StreamId) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        let Some(at) = s.timeout().filter(|_| s.is_due_sooner()) else { return };
        if let Some(t) = s.scheduled.replace(at) {
            self.deadlines.remove(&(t, id));
        }
        self.deadlines.insert((at, id));
    }

    /// Forgets a stream, and has the driver close its socket, however the stream ended. Where the driver has closed it already, the
    /// order has no effect.
    pub fn forget(&mut self, id: StreamId) {
        let Some(s) = self.streams.remove(&id) else { return };
        self.orders.push_back(StreamCommand::Abort(id));
        if let Some(t) = s.scheduled {
            self.deadlines.remove(&(t, id));
        }
        self.half_open.remove(id);
    }
}
