//! Queue pairs: attributes, states, and the two halves they consist of.

use crate::cq::Cqs;
use crate::region::Regions;
use crate::rx::{RecvWqe, Rx};
use crate::slab::{CqId, PdId, QpId, SrqId};
use crate::srq::SrqDemand;
use crate::tx::{Ctx, Gate, Tx};
use crate::unreliable::DeliveredWindow;
use crate::work::Status;
use crate::{MAX_HOLES, MAX_MESSAGES_AHEAD, MAX_SGE};
use std::collections::VecDeque;

/// The service a queue pair offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Everything arrives exactly once and in order (InfiniBand's reliable connection).
    Reliable,
    /// As `Reliable`, over a transport that keeps the order of bytes and loses none (iWARP). There is no credit: a send for
    /// which the peer has posted no receive ends the connection. See the [ordered](crate::ordered) methods.
    Ordered,
    /// Nothing is sent again. Writes are placed as they arrive, sends are datagrams.
    Unreliable,
}

/// How to create a queue pair.
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete. May be the same.
    pub recv_cq: CqId,
    /// Takes receives from here instead of from a queue of its own.
    pub srq: Option<SrqId>,
    /// The service.
    pub kind: Kind,
    /// Most send work requests outstanding; 1 to [`MAX_SEND_WR`](crate::MAX_SEND_WR).
    pub max_send_wr: usize,
    /// Most receives outstanding (with a shared queue: taken from it at a time); up to
    /// [`MAX_RECV_WR`](crate::MAX_RECV_WR).
    pub max_recv_wr: usize,
    /// Most elements of a work request; up to [`MAX_SGE`].
    pub max_sge: usize,
    /// Most reads and atomic operations outstanding, own and of the peer each. Both ends must agree on it; up to
    /// [`MAX_RD_ATOMIC`](crate::MAX_RD_ATOMIC).
    pub max_rd_atomic: usize,
    /// Unreliable only: longest send in bytes.
    pub max_datagram: u32,
}

impl QpInit {
    /// A reliable queue pair of middling size.
    pub const fn new(send_cq: CqId, recv_cq: CqId) -> QpInit {
        QpInit {
            send_cq,
            recv_cq,
            srq: None,
            kind: Kind::Reliable,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_sge: MAX_SGE,
            max_rd_atomic: 16,
            max_datagram: 1024,
        }
    }
}

/// State of a queue pair (InfiniBand 10.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QpState {
    /// Receives may be posted; nothing is sent or taken in.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send and receive.
    Rts,
    /// As `Rts`, but no further work request is started.
    Sqd,
    /// Everything posted is flushed.
    Error,
}

/// A queue pair, as [`Adapter::query_qp`](crate::Adapter::query_qp) describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpInfo {
    /// Its state.
    pub state: QpState,
    /// Its service.
    pub kind: Kind,
    /// Its protection domain.
    pub pd: PdId,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// Its shared receive queue.
    pub srq: Option<SrqId>,
    /// Send work requests that have not completed.
    pub sends: usize,
    /// Receives that have not completed (of a shared queue: those it was given).
    pub receives: usize,
    /// Messages of which something was sent and not everything was acknowledged.
    pub unfinished_messages: usize,
    /// Receives of the peer that may be consumed, cumulative.
    pub send_limit: u64,
}

/// Memory in use by a queue pair, each kind with its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QpUsage {
    /// Send work requests that have not completed; [`QpInit::max_send_wr`].
    pub sends: (usize, usize),
    /// Receives that have not completed; [`QpInit::max_recv_wr`].
    pub receives: (usize, usize),
    /// Messages sent that are not finished; [`MAX_MESSAGES_AHEAD`].
    pub messages_out: (usize, usize),
    /// Of these, queued to be sent again; [`MAX_MESSAGES_AHEAD`].
    pub messages_again: (usize, usize),
    /// Messages received that are not finished; [`MAX_MESSAGES_AHEAD`].
    pub messages_in: (usize, usize),
    /// Ranges received of them; [`MAX_HOLES`], and one at the front, which is always taken.
    pub received_ranges: (usize, usize),
    /// Answers to the peer's reads and atomic operations; [`QpInit::max_rd_atomic`].
    pub answers: (usize, usize),
    /// Ranges to be sent again. At most one for each packet that the transport tracks.
    pub lost_ranges: usize,
    /// Ranges whose fate is known of messages sent that are not finished: at most one more a message than packets whose
    /// fate is unknown and ranges to be sent again.
    pub resolved_ranges: usize,
}

/// Counters of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Segments built, with retransmissions.
    pub segments_out: u64,
    /// Payload bytes of these.
    pub bytes_out: u64,
    /// Payload bytes of messages that the peer is known to have, each once: what was acknowledged of messages that are under way,
    /// too. Of an ordered queue pair as far as was told by [`Adapter::count_delivered`](crate::Adapter::count_delivered).
    pub bytes_delivered: u64,
    /// Segments built for bytes that were lost.
    pub retransmitted_segments: u64,
    /// Payload bytes of these.
    pub retransmitted_bytes: u64,
    /// Segments placed that brought something new.
    pub segments_in: u64,
    /// Payload bytes of these.
    pub bytes_in: u64,
    /// Segments that were there before.
    pub duplicate_segments: u64,
    /// Payload bytes of these.
    pub duplicate_bytes: u64,
    /// Segments that could not be taken.
    pub refused_segments: u64,
    /// Unreliable messages for which no fitting receive was posted.
    pub dropped_messages: u64,
}

pub(crate) struct Qp {
    pub(crate) pd: PdId,
    pub(crate) init: QpInit,
    pub(crate) state: QpState,
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
    /// Unreliable only.
    pub(crate) delivered: Option<DeliveredWindow>,
    pub(crate) stats: Stats,
    /// Its user was told that it has segments, and it still has.
    announced: bool,
    /// Stands in the queue of those to announce.
    pub(crate) in_activated: bool,
    /// Stands in the queue of those whose credit changed.
    pub(crate) in_credit: bool,
    /// What it wants of its shared receive queue.
    pub(crate) srq_demand: SrqDemand,
}

impl Qp {
    pub(crate) fn new(pd: PdId, init: QpInit) -> Qp {
        Qp {
            pd,
            state: QpState::Init,
            tx: Tx::new(init.kind, init.max_rd_atomic),
            rx: Rx::default(),
            delivered: (init.kind == Kind::Unreliable).then(DeliveredWindow::default),
            stats: Stats::default(),
            announced: false,
            in_activated: false,
            in_credit: false,
            srq_demand: SrqDemand::new(),
            init,
        }
    }
    pub(crate) const fn gate(&self) -> Gate {
        Gate {
            start: matches!(self.state, QpState::Rts),
            run: matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd),
        }
    }
    /// Borrows the halves together with what they need of the adapter.
    pub(crate) fn split<'a>(
        &'a mut self,
        qp: QpId,
        regions: &'a mut Regions,
        cqs: &'a mut Cqs,
        rng: &'a mut base::Rng,
    ) -> (Halves<'a>, Ctx<'a>) {
        let (send_cq, recv_cq) = (self.init.send_cq, self.init.recv_cq);
        let Qp { tx, rx, delivered, stats, .. } = self;
        (Halves { tx, rx, delivered }, Ctx { regions, cqs, rng, stats, qp, send_cq, recv_cq })
    }
    /// Queues the queue pair for announcement when it has come to have segments.
    #[inline]
    pub(crate) fn wake(&mut self, id: QpId, activated: &mut VecDeque<QpId>) {
        self.wake_if(self.tx.has_segment(self.gate()), id, activated);
    }
    /// The same by one who knows whether it has any.
    #[inline]
    pub(crate) fn wake_if(&mut self, has: bool, id: QpId, activated: &mut VecDeque<QpId>) {
        if has && !self.announced {
            self.announce(id, activated);
        }
        self.announced = has;
    }
    /// Has the transport look at this queue pair.
    #[inline]
    pub(crate) fn announce(&mut self, id: QpId, activated: &mut VecDeque<QpId>) {
        if !self.in_activated {
            self.in_activated = true;
            activated.push_back(id);
        }
    }
    pub(crate) fn info(&self) -> QpInfo {
        QpInfo {
            state: self.state,
            kind: self.init.kind,
            pd: self.pd,
            send_cq: self.init.send_cq,
            recv_cq: self.init.recv_cq,
            srq: self.init.srq,
            sends: self.tx.len(),
            receives: self.rx.posted(),
            unfinished_messages: self.tx.unfinished_messages(),
            send_limit: self.tx.send_limit(),
        }
    }
    pub(crate) fn usage(&self) -> QpUsage {
        let ahead = MAX_MESSAGES_AHEAD as usize;
        let (messages_in, received) = self.rx.unfinished();
        let (lost_ranges, resolved_ranges) = self.tx.ranges();
        QpUsage {
            sends: (self.tx.len(), self.init.max_send_wr),
            receives: (self.rx.posted(), self.init.max_recv_wr),
            messages_out: (self.tx.unfinished_messages(), ahead),
            messages_again: (self.tx.lost_queue(), ahead),
            messages_in: (messages_in, ahead),
            received_ranges: (received, MAX_HOLES + 1),
            answers: (self.tx.answers(), self.init.max_rd_atomic),
            lost_ranges,
            resolved_ranges,
        }
    }
    /// Ends everything that is outstanding; returns receives that go back to the shared queue.
    pub(crate) fn flush(
        &mut self,
        id: QpId,
        status: Status,
        regions: &mut Regions,
        cqs: &mut Cqs,
        rng: &mut base::Rng,
    ) -> Vec<RecvWqe> {
        self.state = QpState::Error;
        let shared = self.init.srq.is_some();
        let (halves, mut ctx) = self.split(id, regions, cqs, rng);
        let first = if status == Status::Success { Status::FlushError } else { status };
        halves.tx.flush(first, &mut ctx);
        halves.rx.flush(shared, &mut ctx)
    }
}

/// The two directions of a queue pair.
pub(crate) struct Halves<'a> {
    pub(crate) tx: &'a mut Tx,
    pub(crate) rx: &'a mut Rx,
    pub(crate) delivered: &'a mut Option<DeliveredWindow>,
}
