//! Shared receive queues.
//!
//! A sender never sends what no receive waits for, so a receive must be promised to one peer. Receives of a shared
//! queue are therefore handed out to its queue pairs before they are advertised, each queue pair holding at most a
//! fair share: the number of receives divided by one more than the number of queue pairs, so that one that joins
//! finds some. With fewer receives than queue pairs, those that hold none must wait for others to consume theirs.

use crate::MAX_SGE;
use crate::adapter::Adapter;
use crate::error::Error;
use crate::qp::QpState;
use crate::region::Access;
use crate::rx::RecvWqe;
use crate::slab::{PdId, QpId, SrqId};
use crate::work::{Local, RecvWr};
use std::collections::VecDeque;

/// A shared receive queue.
pub(crate) struct Srq {
    pd: PdId,
    capacity: usize,
    /// Receives that no queue pair holds.
    pool: VecDeque<RecvWqe>,
    /// Receives that queue pairs hold.
    given: usize,
    attached: Vec<QpId>,
    /// Queue pairs that hold less than their share, longest waiting first.
    hungry: VecDeque<QpId>,
    share: usize,
    /// An event is due when fewer receives than this are left. 0: not armed.
    event_below: usize,
    /// Stands in the queue of events.
    in_events: bool,
}

impl Srq {
    fn posted(&self) -> usize {
        self.pool.len() + self.given
    }
    fn target_share(&self) -> usize {
        (self.posted() / (self.attached.len() + 1)).max(1)
    }
}

const NO_SRQ: Error = Error::NotFound("shared receive queue");

impl Adapter {
    /// Creates a shared receive queue for `capacity` receives.
    ///
    /// # Errors
    /// [`Error::Invalid`] (0 or above [`Limits::srq_entries`](crate::Limits::srq_entries)), [`Error::Limit`],
    /// [`Error::NotFound`].
    pub fn create_srq(&mut self, pd: PdId, capacity: usize) -> Result<SrqId, Error> {
        if capacity == 0 || capacity > self.limits.srq_entries {
            return Err(Error::Invalid("capacity must be 1 to Limits::srq_entries"));
        }
        if self.srqs.is_full() {
            return Err(Error::Limit("shared receive queues"));
        }
        self.hold_pd(pd)?;
        let srq = Srq {
            pd,
            capacity,
            pool: VecDeque::new(),
            given: 0,
            attached: Vec::new(),
            hungry: VecDeque::new(),
            share: 1,
            event_below: 0,
            in_events: false,
        };
        self.srqs.insert(srq).map_err(|_| Error::Limit("shared receive queues"))
    }

    /// Destroys a shared receive queue. Its receives end without completions.
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs use it, [`Error::NotFound`].
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<(), Error> {
        if !self.srqs.get(id).ok_or(NO_SRQ)?.attached.is_empty() {
            return Err(Error::Busy("the shared receive queue"));
        }
        let srq = self.srqs.remove(id).ok_or(NO_SRQ)?;
        srq.pool.iter().for_each(|r| r.local.release(&mut self.regions));
        self.release_pd(srq.pd);
        self.srq_events.retain(|e| *e != id);
        Ok(())
    }

    /// Posts a receive for whichever queue pair needs one. It completes in that queue pair's completion queue.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::NotFound`], and what is wrong with its memory: [`Error::BadKey`],
    /// [`Error::Access`], [`Error::OutOfBounds`].
    pub fn post_srq_recv(&mut self, id: SrqId, wr: RecvWr) -> Result<(), Error> {
        let srq = self.srqs.get_mut(id).ok_or(NO_SRQ)?;
        if srq.posted() >= srq.capacity {
            return Err(Error::QueueFull);
        }
        let need = Access::LOCAL_WRITE;
        let (local, room) = Local::resolve(&wr.sges, &mut self.regions, srq.pd, need, MAX_SGE)?;
        srq.pool.push_back(RecvWqe::new(wr.wr_id, local, room));
        self.adjust_share(id);
        self.hand_out(id);
        Ok(())
    }

    /// Asks for one event, by [`take_srq_event`](Adapter::take_srq_event), when fewer than `limit` receives are
    /// left; 0 asks for none.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn arm_srq_limit(&mut self, id: SrqId, limit: usize) -> Result<(), Error> {
        self.srqs.get_mut(id).ok_or(NO_SRQ)?.event_below = limit;
        self.check_srq_limit(id);
        Ok(())
    }
    /// The next shared receive queue that ran low.
    pub fn take_srq_event(&mut self) -> Option<SrqId> {
        let id = self.srq_events.pop_front()?;
        if let Some(srq) = self.srqs.get_mut(id) {
            srq.in_events = false;
        }
        Some(id)
    }
    /// Receives posted to a shared queue that no message has consumed.
    pub fn srq_len(&self, id: SrqId) -> Option<usize> {
        self.srqs.get(id).map(Srq::posted)
    }

    fn check_srq_limit(&mut self, id: SrqId) {
        if let Some(srq) = self.srqs.get_mut(id)
            && srq.posted() < srq.event_below
        {
            srq.event_below = 0;
            if !core::mem::replace(&mut srq.in_events, true) {
                self.srq_events.push_back(id);
            }
        }
    }

    /// Brings the share up to date. It follows a fall only by quarters, so that it does not swing with every
    /// receive; a rise makes everyone hungry, which is paid for by the posts that caused it.
    fn adjust_share(&mut self, id: SrqId) {
        let Some(srq) = self.srqs.get_mut(id) else { return };
        let target = srq.target_share();
        if target > srq.share {
            srq.share = target;
            let Srq { attached, hungry, .. } = srq;
            for qp in attached.iter() {
                if let Some(q) = self.qps.get_mut(*qp)
                    && !core::mem::replace(&mut q.hungry, true)
                {
                    hungry.push_back(*qp);
                }
            }
        } else if target < srq.share - srq.share / 4 {
            srq.share = target;
        }
    }

    /// Gives receives to hungry queue pairs, one at a time in turn.
    fn hand_out(&mut self, id: SrqId) {
        let Some(srq) = self.srqs.get_mut(id) else { return };
        let mut risen = Vec::new();
        while !srq.pool.is_empty()
            && let Some(qp_id) = srq.hungry.pop_front()
        {
            let Some(qp) = self.qps.get_mut(qp_id) else { continue };
            let most = srq.share.min(qp.init.max_recv_wr);
            if qp.state == QpState::Error || qp.rx.posted() >= most {
                qp.hungry = false;
                continue;
            }
            if self.cqs.reserve(qp.init.recv_cq).is_err() {
                // Stays marked: the completion queue wakes it.
                self.cqs.starve(qp.init.recv_cq, qp_id);
                continue;
            }
            let Some(r) = srq.pool.pop_front() else { break };
            qp.rx.post(r);
            srq.given += 1;
            risen.push(qp_id);
            srq.hungry.push_back(qp_id);
        }
        for qp in risen {
            self.note_credit(qp);
        }
    }

    pub(crate) fn attach_srq(&mut self, id: SrqId, qp: QpId) {
        let Some(srq) = self.srqs.get_mut(id) else { return };
        srq.attached.push(qp);
        self.make_hungry(id, qp);
    }

    /// Lets `qp` take receives up to its share.
    fn make_hungry(&mut self, id: SrqId, qp: QpId) {
        self.adjust_share(id);
        if let (Some(srq), Some(q)) = (self.srqs.get_mut(id), self.qps.get_mut(qp))
            && !core::mem::replace(&mut q.hungry, true)
        {
            srq.hungry.push_back(qp);
        }
        self.hand_out(id);
    }

    /// A place became free in the completion queue that `qp` waited for.
    pub(crate) fn feed_starved(&mut self, qp: QpId) {
        let Some(q) = self.qps.get_mut(qp) else { return };
        q.hungry = false;
        if let Some(srq) = q.init.srq {
            self.make_hungry(srq, qp);
        }
    }

    /// `n` receives that `qp` held were consumed.
    pub(crate) fn srq_consumed(&mut self, id: SrqId, qp: QpId, n: usize) {
        if let Some(srq) = self.srqs.get_mut(id) {
            srq.given = srq.given.saturating_sub(n);
        }
        self.check_srq_limit(id);
        self.make_hungry(id, qp);
    }

    /// Receives that a queue pair in error held and did not use.
    pub(crate) fn return_to_srq(&mut self, id: SrqId, held: usize, unused: Vec<RecvWqe>) {
        let Some(srq) = self.srqs.get_mut(id) else {
            unused.iter().for_each(|r| r.local.release(&mut self.regions));
            return;
        };
        srq.given = srq.given.saturating_sub(held);
        for r in unused.into_iter().rev() {
            srq.pool.push_front(r);
        }
        self.check_srq_limit(id);
        self.adjust_share(id);
        self.hand_out(id);
    }

    pub(crate) fn detach_srq(&mut self, id: SrqId, qp: QpId, held: usize, unused: Vec<RecvWqe>) {
        if let Some(srq) = self.srqs.get_mut(id) {
            srq.attached.retain(|q| *q != qp);
            srq.hungry.retain(|q| *q != qp);
        }
        self.return_to_srq(id, held, unused);
    }
}
