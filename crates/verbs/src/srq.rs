//! Shared receive queues.
//!
//! A sender never sends what no receive waits for, so a receive must be promised to one peer, and a promise cannot be
//! taken back. Receives of a shared queue are therefore handed out to its queue pairs before they are advertised, and
//! sparingly: what an idle queue pair holds is lost to all others for as long as it stays idle.
//!
//! - A queue pair that has none comes first, and gets one as long as there is one.
//! - Until it has consumed [`IDLE`] receives, a queue pair holds at most that many, and no more than half of an equal
//!   share of those that are left. So, as long as all are idle, with twice as many receives as queue pairs everyone
//!   gets some, whatever the order in which they come.
//! - What it may hold doubles each time it has consumed as much, up to an equal share of those that are left: busy queue
//!   pairs together hold about half of all. (The threshold that falls with what is left is that of shared buffers in
//!   switches: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches", 1998.)
//! - One that holds more than it may by now gets no new ones until it has consumed some.
//!
//! With fewer receives than queue pairs, those that hold none must wait until others consume theirs, or until more are
//! posted; the event of [`arm_srq_limit`](Adapter::arm_srq_limit) tells of it.

use crate::adapter::Adapter;
use crate::error::Error;
use crate::qp::{Qp, QpState};
use crate::region::Access;
use crate::rx::RecvWqe;
use crate::slab::{PdId, QpId, Slab, SrqId};
use crate::work::{Local, RecvWr};
use crate::{MAX_RECV_WR, MAX_SGE};
use std::collections::VecDeque;

/// What a queue pair holds at most until it has consumed as many.
const IDLE: usize = 8;
/// Queue pairs that may take no more by now, looked at in one go while there are receives left.
const TRIES: usize = 4;

/// How many receives a queue pair may take from its shared receive queue.
#[derive(Debug)]
pub(crate) struct SrqDemand {
    /// What it may hold, as far as its own consumption goes.
    most: usize,
    /// Consumed since `most` was doubled.
    used: usize,
    in_empty: bool,
    in_wanting: bool,
    /// Waits for a place in its completion queue.
    waits_for_cq: bool,
}

impl SrqDemand {
    pub(crate) const fn new() -> SrqDemand {
        SrqDemand { most: IDLE, used: 0, in_empty: false, in_wanting: false, waits_for_cq: false }
    }
    fn on_consumed(&mut self, n: usize) {
        self.used += n;
        while self.used >= self.most && self.most < MAX_RECV_WR {
            self.used -= self.most;
            self.most *= 2;
        }
    }
    const fn is_idle(&self) -> bool {
        self.most == IDLE
    }
}

/// A shared receive queue.
pub(crate) struct Srq {
    pd: PdId,
    capacity: usize,
    /// Receives that no queue pair holds.
    pool: VecDeque<RecvWqe>,
    /// Receives that queue pairs hold.
    given: usize,
    /// Queue pairs that use it.
    attached: usize,
    /// Those that held no receive when they were put here, longest waiting first. Each is here once at most.
    empty: VecDeque<QpId>,
    /// Those that may want more. They take turns; each is here once at most.
    hungry: VecDeque<QpId>,
    /// An event is due when fewer receives than this are left. 0: not armed.
    event_below: usize,
    /// Stands in the queue of events.
    in_events: bool,
}

impl Srq {
    fn posted(&self) -> usize {
        self.pool.len() + self.given
    }
    /// What a queue pair may hold, as far as those go that are left.
    fn threshold(&self, idle: bool) -> usize {
        self.pool.len() / (self.attached.max(1) << u32::from(idle))
    }
    /// Someone waits for a receive, and there is none.
    fn starves(&self) -> bool {
        self.pool.is_empty() && !self.empty.is_empty()
    }
    /// Puts a queue pair that wants more in line.
    fn queue(&mut self, id: QpId, held: usize, most: usize, a: &mut SrqDemand) {
        if held >= most.min(a.most) || a.waits_for_cq {
            return;
        }
        let (line, mark) = if held == 0 {
            (&mut self.empty, &mut a.in_empty)
        } else {
            (&mut self.hungry, &mut a.in_wanting)
        };
        if !core::mem::replace(mark, true) {
            line.push_back(id);
        }
    }
    /// The next in line, those that hold nothing first. It no longer stands there.
    fn next_in_line(&mut self, qps: &mut Slab<QpId, Qp>) -> Option<QpId> {
        let first = self.empty.pop_front();
        let id = first.or_else(|| self.hungry.pop_front())?;
        if let Some(q) = qps.get_mut(id) {
            let a = &mut q.srq_demand;
            *(if first.is_some() { &mut a.in_empty } else { &mut a.in_wanting }) = false;
        }
        Some(id)
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
            attached: 0,
            empty: VecDeque::new(),
            hungry: VecDeque::new(),
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
        if self.srqs.get(id).ok_or(NO_SRQ)?.attached > 0 {
            return Err(Error::Busy("the shared receive queue"));
        }
        let srq = self.srqs.remove(id).ok_or(NO_SRQ)?;
        srq.pool.iter().for_each(|r| r.release(&mut self.regions));
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
        srq.pool.push_back(RecvWqe::new(wr.wr_id, local, room, &mut self.regions));
        self.hand_out(id);
        Ok(())
    }

    /// Fills the oldest receive that no queue pair holds with `parts`, one after the other, and gives its number and how that went.
    /// It is for messages that come by another way than a queue pair of the adapter's. None when there is no such receive.
    pub fn fill_srq_recv(&mut self, id: SrqId, parts: &[&[u8]]) -> Option<(u64, Result<(), Error>)> {
        let r = self.srqs.get_mut(id)?.pool.pop_front()?;
        r.release(&mut self.regions);
        let written = self.write_parts(&r.local, r.room, parts);
        self.check_srq_limit(id);
        Some((r.wr_id, written))
    }
    /// Counts a user of a shared receive queue that is no queue pair of the adapter's: it cannot be destroyed meanwhile.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn hold_srq(&mut self, id: SrqId) -> Result<(), Error> {
        self.srqs.get_mut(id).ok_or(NO_SRQ)?.attached += 1;
        Ok(())
    }
    /// Ends what [`hold_srq`](Adapter::hold_srq) began.
    pub fn release_srq(&mut self, id: SrqId) {
        if let Some(srq) = self.srqs.get_mut(id) {
            srq.attached = srq.attached.saturating_sub(1);
        }
    }

    /// Requests one event, returned by [`take_srq_event`](Adapter::take_srq_event), when fewer than `limit` receives
    /// are left that no message has consumed ([`srq_len`](Adapter::srq_len)), or when a queue pair has none and waits
    /// for more to be posted; 0 requests none.
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
            && srq.event_below > 0
            && (srq.posted() < srq.event_below || srq.starves())
        {
            srq.event_below = 0;
            if !core::mem::replace(&mut srq.in_events, true) {
                self.srq_events.push_back(id);
            }
        }
    }

    /// Gives receives to queue pairs, one at a time in turn.
    fn hand_out(&mut self, id: SrqId) {
        let Some(srq) = self.srqs.get_mut(id) else { return };
        let (mut risen, mut tries) = (Vec::new(), TRIES);
        while !srq.pool.is_empty()
            && tries > 0
            && let Some(qp_id) = srq.next_in_line(&mut self.qps)
        {
            let Some(qp) = self.qps.get_mut(qp_id) else { continue };
            let (held, a) = (qp.rx.posted(), &mut qp.srq_demand);
            if qp.state == QpState::Error || a.waits_for_cq {
                continue;
            }
            let most = a.most.min(qp.init.max_recv_wr);
            if held >= most || (held > 0 && held >= srq.threshold(a.is_idle())) {
                tries -= 1;
                srq.queue(qp_id, held, qp.init.max_recv_wr, a);
                continue;
            }
            if self.cqs.reserve(qp.init.recv_cq).is_err() {
                // The completion queue wakes it.
                a.waits_for_cq = true;
                self.cqs.wait_for_space(qp.init.recv_cq, qp_id);
                continue;
            }
            let Some(r) = srq.pool.pop_front() else { break };
            qp.rx.post(r);
            srq.given += 1;
            risen.push(qp_id);
            srq.queue(qp_id, held + 1, qp.init.max_recv_wr, a);
        }
        for qp in risen {
            self.note_credit(qp);
        }
    }

    pub(crate) fn attach_srq(&mut self, id: SrqId, qp: QpId) {
        if let Some(srq) = self.srqs.get_mut(id) {
            srq.attached += 1;
        }
        self.make_hungry(id, qp);
    }

    /// Lets `qp` take receives, if it may.
    fn make_hungry(&mut self, id: SrqId, qp: QpId) {
        if let (Some(srq), Some(q)) = (self.srqs.get_mut(id), self.qps.get_mut(qp))
            && q.state != QpState::Error
        {
            srq.queue(qp, q.rx.posted(), q.init.max_recv_wr, &mut q.srq_demand);
        }
        self.hand_out(id);
        self.check_srq_limit(id);
    }

    /// A place became free in the completion queue that `qp` waited for.
    pub(crate) fn feed_starved(&mut self, qp: QpId) {
        let Some(q) = self.qps.get_mut(qp) else { return };
        q.srq_demand.waits_for_cq = false;
        let cq = q.init.recv_cq;
        if let Some(srq) = q.init.srq {
            self.make_hungry(srq, qp);
        }
        // It may want no more by now: then the place is for the next.
        self.cqs.wake_waiter(cq);
    }

    /// `n` receives that `qp` held were consumed.
    pub(crate) fn srq_consumed(&mut self, id: SrqId, qp: QpId, n: usize) {
        if let Some(srq) = self.srqs.get_mut(id) {
            srq.given = srq.given.saturating_sub(n);
        }
        if let Some(q) = self.qps.get_mut(qp) {
            q.srq_demand.on_consumed(n);
        }
        self.make_hungry(id, qp);
    }

    /// Receives that a queue pair in error held and did not use. It takes no more.
    pub(crate) fn return_to_srq(&mut self, id: SrqId, qp: QpId, held: usize, unused: Vec<RecvWqe>) {
        let Some(srq) = self.srqs.get_mut(id) else {
            unused.iter().for_each(|r| r.release(&mut self.regions));
            return;
        };
        srq.empty.retain(|q| *q != qp);
        srq.hungry.retain(|q| *q != qp);
        srq.given = srq.given.saturating_sub(held);
        for r in unused.into_iter().rev() {
            srq.pool.push_front(r);
        }
        self.hand_out(id);
        self.check_srq_limit(id);
    }

    pub(crate) fn detach_srq(&mut self, id: SrqId, qp: QpId, held: usize, unused: Vec<RecvWqe>) {
        if let Some(srq) = self.srqs.get_mut(id) {
            srq.attached = srq.attached.saturating_sub(1);
        }
        self.return_to_srq(id, qp, held, unused);
    }
}
