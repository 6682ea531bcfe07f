//! Completion queues. They cannot overflow: every posted work request reserves its place.

use crate::error::Error;
use crate::slab::{CqId, QpId, Slab};
use crate::work::{Status, WorkCompletion};
use std::collections::VecDeque;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

struct Cq {
    capacity: usize,
    /// Places promised to work requests that are outstanding.
    reserved: usize,
    queue: VecDeque<WorkCompletion>,
    armed: Armed,
    /// Stands in `notified`.
    in_notified: bool,
    /// Queue pairs that use it, counted once for each direction.
    users: u32,
    /// Queue pairs that could not take receives from their shared queue for want of places here.
    waiting: VecDeque<QpId>,
}

/// All completion queues of an adapter.
pub(crate) struct Cqs {
    slab: Slab<CqId, Cq>,
    notified: VecDeque<CqId>,
    /// Queue pairs that may take receives again, since a place became free.
    pub(crate) unblocked: VecDeque<QpId>,
}

impl Cqs {
    pub(crate) fn new(limit: usize) -> Cqs {
        Cqs { slab: Slab::new(limit), notified: VecDeque::new(), unblocked: VecDeque::new() }
    }
    pub(crate) fn create(&mut self, capacity: usize) -> Result<CqId, Error> {
        let cq = Cq {
            capacity,
            reserved: 0,
            queue: VecDeque::new(),
            armed: Armed::No,
            in_notified: false,
            users: 0,
            waiting: VecDeque::new(),
        };
        self.slab.insert(cq).map_err(|_| Error::Limit("completion queues"))
    }
    pub(crate) fn destroy(&mut self, id: CqId) -> Result<(), Error> {
        let cq = self.slab.get(id).ok_or(Error::NotFound("completion queue"))?;
        if cq.users > 0 {
            return Err(Error::Busy("the completion queue"));
        }
        self.slab.remove(id);
        self.notified.retain(|n| *n != id);
        Ok(())
    }
    pub(crate) fn attach(&mut self, id: CqId) -> Result<(), Error> {
        self.slab.get_mut(id).ok_or(Error::NotFound("completion queue"))?.users += 1;
        Ok(())
    }
    pub(crate) fn detach(&mut self, id: CqId, qp: QpId) {
        if let Some(cq) = self.slab.get_mut(id) {
            cq.users = cq.users.saturating_sub(1);
            cq.waiting.retain(|q| *q != qp);
        }
    }
    pub(crate) fn exists(&self, id: CqId) -> bool {
        self.slab.get(id).is_some()
    }
    /// Reserves a place for one completion.
    pub(crate) fn reserve(&mut self, id: CqId) -> Result<(), Error> {
        let cq = self.slab.get_mut(id).ok_or(Error::NotFound("completion queue"))?;
        if cq.reserved + cq.queue.len() >= cq.capacity {
            return Err(Error::CqFull);
        }
        cq.reserved += 1;
        Ok(())
    }
    /// Gives a reserved place back unused.
    pub(crate) fn unreserve(&mut self, id: CqId) {
        if let Some(cq) = self.slab.get_mut(id) {
            cq.reserved = cq.reserved.saturating_sub(1);
            self.unblocked.extend(cq.waiting.pop_front());
        }
    }
    /// Lets the next that waits for a place have one, if there is one.
    pub(crate) fn wake_waiter(&mut self, id: CqId) {
        if let Some(cq) = self.slab.get_mut(id)
            && cq.reserved + cq.queue.len() < cq.capacity
        {
            self.unblocked.extend(cq.waiting.pop_front());
        }
    }
    /// Notes that `qp` waits for a place.
    pub(crate) fn wait_for_space(&mut self, id: CqId, qp: QpId) {
        if let Some(cq) = self.slab.get_mut(id) {
            cq.waiting.push_back(qp);
        }
    }
    /// Adds a completion in a reserved place.
    #[inline]
    pub(crate) fn push(&mut self, id: CqId, wc: WorkCompletion) {
        let Some(cq) = self.slab.get_mut(id) else { return };
        cq.reserved = cq.reserved.saturating_sub(1);
        cq.queue.push_back(wc);
        // An error always counts as solicited (InfiniBand 11.4.2.2, request completion notification).
        let wakes = match cq.armed {
            Armed::No => false,
            Armed::Solicited => wc.solicited || wc.status != Status::Success,
            Armed::Any => true,
        };
        if wakes {
            cq.armed = Armed::No;
            if !core::mem::replace(&mut cq.in_notified, true) {
                self.notified.push_back(id);
            }
        }
    }
    #[inline]
    pub(crate) fn poll(&mut self, id: CqId) -> Option<WorkCompletion> {
        let cq = self.slab.get_mut(id)?;
        let wc = cq.queue.pop_front()?;
        if let Some(starved) = cq.waiting.pop_front() {
            self.unblocked.push_back(starved);
        }
        Some(wc)
    }
    pub(crate) fn arm(&mut self, id: CqId, solicited_only: bool) -> Result<(), Error> {
        let cq = self.slab.get_mut(id).ok_or(Error::NotFound("completion queue"))?;
        cq.armed = if solicited_only && cq.armed != Armed::Any { Armed::Solicited } else { Armed::Any };
        Ok(())
    }
    pub(crate) fn take_notified(&mut self) -> Option<CqId> {
        let id = self.notified.pop_front()?;
        if let Some(cq) = self.slab.get_mut(id) {
            cq.in_notified = false;
        }
        Some(id)
    }
    pub(crate) fn len(&self, id: CqId) -> Option<usize> {
        self.slab.get(id).map(|c| c.queue.len())
    }
}
