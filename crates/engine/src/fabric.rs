//! What runs inside the endpoint's loop: queue pairs, and the connections to the processes that have their peers.
//!
//! All queue pairs between two processes share one connection. Of two queue pairs the one with the lower address asks the other
//! one's process for the connection and for the pairing; the other one waits to be asked. Both know each other's number from the
//! program, and nothing is paired that both did not name.

mod datagram;
mod drain;
mod pairing;

pub use datagram::{Destination, GRH, MAX_DATAGRAM};

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
    next_send: Option<SendWr>,
    next_receive: Option<RecvWr>,
    /// A work request whose memory may not be used: it fails once all before it have ended.
    failing: Option<Completion>,
}

/// What happened to a queue pair or a shared receive queue, for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncEvent {
    /// A queue pair went into error by itself.
    QueuePairFailed {
        /// Its number.
        number: u32,
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
    /// Queue pairs with a work request that cannot be done.
    failing: Vec<u32>,
    /// Queue pairs whose peers have ended, and when what they have to send fails.
    gone: Vec<(Time, u32)>,
    datagrams: datagram::Datagrams,
    pub(crate) events: Vec<AsyncEvent>,
    /// Where the program is told of events.
    pub(crate) listener: Option<Box<dyn Fn(AsyncEvent) + Send>>,
}

impl Fabric {
    pub(crate) fn new(port: u16, trusted: PublicKey, announced: Arc<SegQueue<u32>>) -> Fabric {
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
            failing: Vec::new(),
            gone: Vec::new(),
            datagrams: datagram::Datagrams::default(),
            events: Vec::new(),
            listener: None,
        }
    }

    /// Makes an entry for a queue pair that the adapter has.
    pub(crate) fn insert(&mut self, id: QpId, pd: PdId, init: QpInit) -> Option<Arc<QueuePair>> {
        let number = self.numbers.take()?;
        let (qp, posted) = QueuePair::new(number, init.max_send_wr, init.max_recv_wr);
        let handle = Arc::new(qp);
        let entry = Entry {
            handle: handle.clone(),
            id,
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
        };
        self.entries.insert(number, entry);
        self.by_id.insert(id, number);
        Some(handle)
    }

    /// Forgets a queue pair, parts it from its peer and destroys it.
    pub(crate) fn remove(&mut self, now: Time, endpoint: &mut Endpoint, number: u32) {
        if self.remove_datagram_pair(number) {
            return;
        }
        let Some(e) = self.entries.remove(&number) else { return };
        self.by_id.remove(&e.id);
        self.numbers.give_back(number);
        endpoint.disconnect_qp(now, e.id);
        let _ = endpoint.adapter().destroy_qp(e.id);
    }

    /// A queue pair as new, under the same number (the state RESET): what was posted and has not completed is gone.
    pub(crate) fn reset(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        number: u32,
    ) -> Result<(), verbs::Error> {
        let e = self.entries.get_mut(&number).ok_or(verbs::Error::NotFound("queue pair"))?;
        let fresh = endpoint.adapter().create_qp(e.pd, e.init.clone())?;
        let old = core::mem::replace(&mut e.id, fresh);
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
        self.by_id.remove(&old);
        self.by_id.insert(fresh, number);
        endpoint.disconnect_qp(now, old);
        endpoint.adapter().destroy_qp(old)
    }

    /// Puts a queue pair into error, and tells the program unless it asked for that.
    fn fail(&mut self, now: Time, endpoint: &mut Endpoint, number: u32, status: Status) {
        let Some(e) = self.entries.get_mut(&number) else { return };
        if endpoint.adapter().qp_state(e.id) == Some(QpState::Error) {
            return;
        }
        let _ = endpoint.adapter().set_error(e.id, status);
        endpoint.disconnect_qp(now, e.id);
        e.handle.announce();
        self.announced.push(number);
        self.events.push(AsyncEvent::QueuePairFailed { number });
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
            Event::Incoming { conn } => self.on_incoming(endpoint, conn),
            Event::QpRequested { conn, number, private_data, .. } => {
                self.on_request(now, endpoint, conn, number, &private_data);
            }
            Event::QpReady { conn, qp, .. } => {
                if let Some(e) = self.by_id.get(&qp).and_then(|n| self.entries.get_mut(n)) {
                    e.link = Link::Paired(conn);
                }
            }
            Event::QpGone { qp, .. } => {
                if let Some(&number) = self.by_id.get(&qp) {
                    self.on_gone(now, number);
                }
            }
            Event::QpRefused { qp, code, .. } => {
                if let Some(&number) = self.by_id.get(&qp) {
                    tracing::warn!(number, code, "the peer has no such queue pair");
                    self.fail(now, endpoint, number, Status::TransportFailed);
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
        self.settle_datagrams();
        self.end_failing(now, endpoint);
        self.end_gone(now, endpoint);
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
        self.gone.iter().map(|(at, _)| *at).min()
    }
}
