//! What runs inside the endpoint's loop: queue pairs, and the connections to the processes that have their peers.
//!
//! All queue pairs between two processes share one connection. Of two queue pairs the one with the lower address asks the other
//! one's process for the connection and for the pairing; the other one waits to be asked. Both know each other's number from the
//! program, and nothing is paired that both did not name.

mod carrier;
mod datagram;
mod drain;
mod groups;
mod management;
mod pairing;
mod retries;
mod stream;
mod xrc;

pub(crate) use datagram::Towards;
pub use datagram::{Destination, GRH, MAX_DATAGRAM};
pub use groups::EVERY_MEMBER;
pub use management::Management;
pub use retries::Retries;
pub(crate) use stream::ByStreams;

use crate::address::Numbers;
use crate::completion::{Completion, CompletionQueue};
use crate::queue_pair::{Posted, QueuePair};
use base::{KeyMap, Span, Time};
use crossbeam_queue::SegQueue;
use endpoint::{App, ConnId, Endpoint, Event};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use transport::crypto::PublicKey;
use verbs::{CqId, PdId, QpId, QpInit, QpState, RecvWr, SendWr, SrqId, Status};

/// How long after its peer has ended a queue pair may have something to send: as long as an adapter tries again with the usual
/// settings (a time-out of 67 ms, seven times).
const GONE_AFTER: Span = Span::from_millis(470);

/// The peer of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) process: SocketAddr,
    pub(crate) number: u32,
}

/// How far a queue pair is on its way to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    /// The program has not named a peer.
    None,
    /// The peer's process is being asked, or is to ask us.
    Waiting,
    /// Paired, over this connection.
    Paired(ConnId),
    /// The peer has ended: what is sent from here on fails, and what was received stays.
    Gone,
}

/// A queue pair.
pub(crate) struct Entry {
    pub(crate) handle: Arc<QueuePair>,
    pub(crate) id: QpId,
    /// Where it receives, when it is its own peer.
    twin: Option<QpId>,
    pub(crate) pd: PdId,
    pub(crate) init: QpInit,
    pub(crate) remote: Option<Remote>,
    /// Whether this side asks.
    asks: bool,
    link: Link,
    posted: Posted,
    /// Work requests taken from the rings.
    sends_taken: u64,
    receives_taken: u64,
    /// What the adapter had no room for yet.
    next_send: Option<(SendWr, u32)>,
    next_receive: Option<RecvWr>,
    /// A work request whose memory may not be used: it fails once all before it have ended.
    failing: Option<Completion>,
    /// What it has when it is one of XRC.
    xrc: Option<xrc::Xrc>,
    /// How long its sends are tried.
    retries: Retries,
    /// What its peer may do with memory.
    pub(crate) access: verbs::Access,
    /// Code point of what it sends, if that is another one than the process's.
    pub(crate) dscp: Option<u8>,
}

/// What happened to a queue pair or a shared receive queue, for the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// No connection to a process, or one that fell silent or failed: what is meant for it fails.
    ProcessLost {
        /// Where it is, or was.
        process: SocketAddr,
        /// Why, in one line.
        why: String,
    },
    /// A queue pair went into error by itself.
    QueuePairFailed {
        /// Its number.
        number: u32,
    },
    /// The network cannot be used any more: all queue pairs are in error, and so is what is posted from here on.
    DeviceFailed {
        /// Why, in one line.
        why: String,
    },
    /// A shared receive queue has fewer receives than was asked to be told of.
    SharedReceiveQueueLow {
        /// Which.
        srq: SrqId,
    },
}

/// See the module.
pub(crate) struct Fabric {
    /// Keys that members of the cluster show: one.
    pub(crate) trusted: PublicKey,
    pub(crate) numbers: Numbers,
    pub(crate) entries: BTreeMap<u32, Entry>,
    pub(crate) by_id: KeyMap<QpId, u32>,
    pub(crate) cqs: KeyMap<CqId, Arc<CompletionQueue>>,
    /// Numbers of queue pairs to which something was posted.
    pub(crate) announced: Arc<SegQueue<u32>>,
    /// Completion queues whose ring was full.
    overflowing: Vec<CqId>,
    peers: HashMap<SocketAddr, ConnId>,
    established: BTreeMap<ConnId, SocketAddr>,
    requests: Vec<pairing::Request>,
    /// Queue pairs take streams (iWARP), and which connection has whose.
    pub(crate) by_streams: Option<ByStreams>,
    /// Queue pairs with a work request that cannot be done.
    failing: Vec<u32>,
    /// Queue pairs of which a work request failed that sends nothing.
    broken: Vec<u32>,
    /// Queue pairs whose peers have ended, and when what they have to send fails.
    gone: Vec<(Time, u32)>,
    watched: retries::Watched,
    queues: xrc::Queues,
    datagrams: datagram::Datagrams,
    groups: groups::Groups,
    pub(crate) events: Vec<AsyncEvent>,
    /// Where the program is told of events.
    pub(crate) listener: Option<Box<dyn Fn(AsyncEvent) + Send>>,
    /// The connection manager.
    pub(crate) management: Option<Box<dyn Fn(Management) + Send>>,
}

impl Fabric {
    pub(crate) fn new(
        port: u16,
        trusted: PublicKey,
        by_streams: Option<ByStreams>,
        announced: Arc<SegQueue<u32>>,
    ) -> Fabric {
        Fabric {
            trusted,
            numbers: Numbers::new(port),
            entries: BTreeMap::new(),
            by_id: KeyMap::default(),
            cqs: KeyMap::default(),
            announced,
            overflowing: Vec::new(),
            peers: HashMap::new(),
            established: BTreeMap::new(),
            requests: Vec::new(),
            by_streams,
            failing: Vec::new(),
            broken: Vec::new(),
            gone: Vec::new(),
            watched: retries::Watched::default(),
            queues: xrc::Queues::default(),
            datagrams: datagram::Datagrams::default(),
            groups: groups::Groups::default(),
            events: Vec::new(),
            listener: None,
            management: None,
        }
    }

    /// Whether datagrams or messages of the connection manager have not arrived yet.
    pub(crate) fn is_busy(&self) -> bool {
        self.groups.is_busy() || self.datagrams.is_busy()
    }

    /// Makes an entry for a queue pair that the adapter has.
    pub(crate) fn insert(&mut self, id: QpId, pd: PdId, init: QpInit) -> Option<Arc<QueuePair>> {
        let number = self.numbers.take()?;
        let (qp, posted) = QueuePair::new(number, init.max_send_wr, init.max_recv_wr);
        let handle = Arc::new(qp);
        let entry = Entry {
            handle: handle.clone(),
            id,
            twin: None,
            pd,
            init,
            remote: None,
            asks: false,
            link: Link::None,
            posted,
            sends_taken: 0,
            receives_taken: 0,
            next_send: None,
            next_receive: None,
            failing: None,
            xrc: None,
            retries: Retries::default(),
            access: verbs::Access::ALL,
            dscp: None,
        };
        self.entries.insert(number, entry);
        self.by_id.insert(id, number);
        Some(handle)
    }

    /// Forgets a queue pair, parts it from its peer and destroys it.
    pub(crate) fn remove(&mut self, now: Time, endpoint: &mut Endpoint, number: u32) {
        if self.remove_datagram_pair(now, endpoint, number) {
            return;
        }
        self.drop_branches(now, endpoint, number);
        let Some(e) = self.entries.remove(&number) else { return };
        self.numbers.give_back(number);
        self.refuse_requests(now, endpoint, number);
        for id in e.twin.into_iter().chain([e.id]) {
            self.by_id.remove(&id);
            endpoint.disconnect_qp(now, id);
            let _ = endpoint.adapter().destroy_qp(id);
        }
    }

    /// A queue pair as new, under the same number (the state RESET): what was posted and has not completed is gone.
    pub(crate) fn reset(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        number: u32,
    ) -> Result<(), verbs::Error> {
        self.drop_branches(now, endpoint, number);
        let e = self.entries.get_mut(&number).ok_or(verbs::Error::NotFound("queue pair"))?;
        let fresh = endpoint.adapter().create_qp(e.pd, e.init.clone())?;
        let old = core::mem::replace(&mut e.id, fresh);
        let twin = e.twin.take();
        while e.posted.sends.pop().is_some() {
            e.sends_taken += 1;
        }
        while e.posted.receives.pop().is_some() {
            e.receives_taken += 1;
        }
        (e.next_send, e.next_receive, e.failing) = (None, None, None);
        (e.remote, e.link) = (None, Link::None);
        e.handle.set_outstanding_sends(e.sends_taken, 0);
        e.handle.set_outstanding_receives(e.receives_taken, 0);
        for cq in [e.init.send_cq, e.init.recv_cq] {
            if let Some(cq) = self.cqs.get(&cq) {
                cq.remove_of(number);
            }
        }
        self.by_id.insert(fresh, number);
        self.set_base(number, fresh);
        for id in twin.into_iter().chain([old]) {
            self.by_id.remove(&id);
            endpoint.disconnect_qp(now, id);
            endpoint.adapter().destroy_qp(id)?;
        }
        Ok(())
    }

    /// Puts a queue pair into error, and tells the program unless it asked for that.
    fn fail(&mut self, now: Time, endpoint: &mut Endpoint, number: u32, status: Status) {
        let Some(e) = self.entries.get_mut(&number) else { return };
        if endpoint.adapter().qp_state(e.id) == Some(QpState::Error) {
            return;
        }
        let _ = endpoint.adapter().set_error(e.id, status);
        for id in e.ids() {
            let _ = endpoint.adapter().set_error(id, status);
            // A stream notices by itself, and tells its peer that this was no orderly end.
            if self.by_streams.is_none() {
                endpoint.disconnect_qp(now, id);
            }
        }
        e.handle.announce();
        self.announced.push(number);
        self.events.push(AsyncEvent::QueuePairFailed { number });
    }

    /// The network cannot be used any more: ends all that is posted, and tells the program.
    pub(crate) fn fail_all(&mut self, now: Time, endpoint: &mut Endpoint, why: String) {
        self.events.push(AsyncEvent::DeviceFailed { why });
        let numbers: Vec<u32> = self.entries.keys().copied().collect();
        numbers.into_iter().for_each(|n| self.fail(now, endpoint, n, Status::TransportFailed));
        self.fail_datagrams();
    }

    /// The peer of a queue pair has ended. As with an adapter, only who sends finds out, and that after a while: a program whose
    /// peer had all that it wanted is often at its own end by then.
    fn on_gone(&mut self, now: Time, number: u32) {
        let Some(e) = self.entries.get_mut(&number) else { return };
        e.link = Link::Gone;
        self.gone.push((now + GONE_AFTER, number));
    }

    /// Ends queue pairs that have had something to send to nobody for a while.
    fn end_gone(&mut self, now: Time, endpoint: &mut Endpoint) {
        let (due, waiting) = self.gone.drain(..).partition::<Vec<_>, _>(|(at, _)| *at <= now);
        self.gone = waiting;
        for (_, number) in due {
            let Some(e) = self.entries.get(&number).filter(|e| e.link == Link::Gone) else { continue };
            if endpoint.adapter().query_qp(e.id).is_some_and(|info| info.sends > 0) {
                self.fail(now, endpoint, number, Status::TransportFailed);
            }
        }
    }

    /// Something was posted to a queue pair: if its peer has ended, that will fail.
    fn note_posted(&mut self, now: Time, number: u32) {
        let is_gone = self.entries.get(&number).is_some_and(|e| e.link == Link::Gone);
        if is_gone && !self.gone.iter().any(|(_, n)| *n == number) {
            self.gone.push((now + GONE_AFTER, number));
        }
    }

    fn on_event(&mut self, now: Time, endpoint: &mut Endpoint, event: Event) {
        match event {
            Event::Connected { conn } => self.on_connected(now, endpoint, conn),
            Event::Incoming { conn } => self.on_incoming(now, endpoint, conn),
            Event::StreamRequested { conn, private_data } => {
                self.on_stream_request(now, endpoint, conn, &private_data);
            }
            Event::QpRequested { conn, number, private_data, .. } => {
                self.on_request(now, endpoint, conn, number, &private_data);
            }
            Event::QpReady { conn, qp, .. } => {
                if self.on_lane_ready(endpoint, conn, qp) {
                    return;
                }
                if let Some(e) = self.by_id.get(&qp).and_then(|n| self.entries.get_mut(n)) {
                    e.link = Link::Paired(conn);
                }
            }
            Event::QpGone { conn, qp, .. } => {
                if self.drop_branch(now, endpoint, qp) || self.on_lane_gone(now, endpoint, conn, qp) {
                    return;
                }
                if let Some(&number) = self.by_id.get(&qp) {
                    self.on_gone(now, number);
                }
            }
            Event::QpRefused { conn, qp, code, .. } => {
                if self.on_lane_gone(now, endpoint, conn, qp) {
                    return;
                }
                if let Some(&number) = self.by_id.get(&qp) {
                    tracing::warn!(number, code, "the peer has no such queue pair");
                    let is_branch = self.entries.get(&number).is_some_and(|e| e.queue().is_some());
                    let status =
                        if is_branch { Status::RemoteInvalidRequest } else { Status::TransportFailed };
                    self.fail(now, endpoint, number, status);
                }
            }
            Event::Closed { conn, reason } => self.on_closed(now, endpoint, conn, &reason),
            _ => {}
        }
    }
}

impl App for Fabric {
    fn drive(&mut self, now: Time, endpoint: &mut Endpoint) {
        while let Some(e) = endpoint.poll_event() {
            self.on_event(now, endpoint, e);
        }
        self.take_posted(now, endpoint);
        self.give_completions(endpoint);
        self.switch_branches(now, endpoint);
        self.search_groups(now, endpoint);
        self.settle_datagrams();
        self.end_failing(now, endpoint);
        self.end_gone(now, endpoint);
        self.end_overdue(now, endpoint);
        while let Some(srq) = endpoint.adapter().take_srq_event() {
            self.events.push(AsyncEvent::SharedReceiveQueueLow { srq });
        }
        for e in self.events.drain(..) {
            if let Some(listener) = &self.listener {
                listener(e);
            }
        }
    }

    fn next_timeout(&self) -> Option<Time> {
        self.gone.iter().map(|(at, _)| *at).chain(self.watched.at).chain(self.groups.next_timeout()).min()
    }
}
