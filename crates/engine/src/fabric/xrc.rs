//! Extended reliable connections (InfiniBand's XRC): each work request of a sending queue pair names a shared receive queue of the
//! peer's process as its destination.
//!
//! A queue pair of `verbs` has a single receive queue, whose credits the sender knows. So each pair of a sending queue pair and a
//! receive queue gets a queue pair of the adapter, called a branch, which is opened when the first work request names that receive
//! queue. The request to open it carries the receive queue's number after the two queue pair numbers. Work requests of one queue
//! pair stay in order across receive queues: a branch is used only when all work on the previous one has completed.

use super::pairing::Request;
use super::{Entry, Fabric, Link};
use crate::queue_pair::QueuePair;
use base::Time;
use endpoint::Endpoint;
use std::collections::BTreeMap;
use std::sync::Arc;
use verbs::{CqId, Error, PdId, QpId, QpInit, QpState, SrqId, Status};

/// What XRC adds to a queue pair.
pub(super) enum Xrc {
    Initiator {
        /// The queue pair of the adapter that has no peer, as long as no branch was entered.
        base: QpId,
        /// The branch whose queue pair is the entry's, and the one that the next work request is for.
        current: Option<u32>,
        wanted: Option<u32>,
        branches: BTreeMap<u32, (QpId, Link)>,
    },
    Target {
        base: QpId,
        domain: u64,
        /// By receive queue.
        branches: Vec<(u32, QpId)>,
    },
}

/// A shared receive queue that peers name by number.
#[derive(Clone, Copy)]
pub(super) struct NamedQueue {
    srq: SrqId,
    pd: PdId,
    cq: CqId,
    domain: u64,
}

/// What a process has for XRC.
#[derive(Default)]
pub(super) struct Queues {
    named: BTreeMap<u32, NamedQueue>,
    last: u32,
    /// Where the queue pairs belong that stand for targets without branches.
    spare: Option<(PdId, CqId)>,
    /// Queue pairs whose next work request is for another branch.
    switching: Vec<u32>,
}

impl Entry {
    /// All queue pairs of the adapter that it has.
    pub(crate) fn ids(&self) -> Vec<QpId> {
        match &self.xrc {
            None => self.twin.into_iter().chain([self.id]).collect(),
            Some(Xrc::Initiator { base, branches, .. }) => {
                branches.values().map(|(id, _)| *id).chain([*base]).collect()
            }
            Some(Xrc::Target { base, branches, .. }) => {
                branches.iter().map(|(_, id)| *id).chain([*base]).collect()
            }
        }
    }

    /// Whether a work request for `queue` may be posted now. Else its branch is wanted.
    pub(super) fn is_at(&mut self, endpoint: &mut Endpoint, queue: u32) -> bool {
        let ends = self.link == Link::Gone || endpoint.adapter().qp_state(self.id) == Some(QpState::Error);
        match &mut self.xrc {
            Some(Xrc::Initiator { current, wanted, .. }) if *current != Some(queue) && !ends => {
                *wanted = Some(queue);
                false
            }
            _ => true,
        }
    }

    pub(super) fn wants_branch(&self) -> bool {
        matches!(&self.xrc, Some(Xrc::Initiator { wanted: Some(_), .. }))
    }

    /// The receive queue that requests of it are for.
    pub(super) fn queue(&self) -> Option<u32> {
        if let Some(Xrc::Initiator { current, .. }) = &self.xrc { *current } else { None }
    }

    /// Enters the branch that is wanted. True when it is new and has to be asked for.
    fn enter_branch(&mut self, endpoint: &mut Endpoint) -> Result<bool, Error> {
        let Some(Xrc::Initiator { current, wanted, branches, .. }) = &mut self.xrc else { return Ok(false) };
        let Some(queue) = wanted.take() else { return Ok(false) };
        if let Some(left) = current.and_then(|c| branches.get_mut(&c)) {
            left.1 = self.link;
        }
        *current = Some(queue);
        if let Some((id, link)) = branches.get(&queue) {
            (self.id, self.link) = (*id, *link);
            return Ok(false);
        }
        let id = endpoint.adapter().create_qp(self.pd, self.init.clone())?;
        endpoint.adapter().modify_qp(id, QpState::Rtr)?;
        endpoint.adapter().modify_qp(id, QpState::Rts)?;
        endpoint.adapter().set_qp_access(id, self.access)?;
        branches.insert(queue, (id, Link::Waiting));
        (self.id, self.link, self.asks) = (id, Link::Waiting, true);
        Ok(true)
    }
}

impl Fabric {
    /// Gives a shared receive queue a number by which peers name it.
    pub(crate) fn name_queue(&mut self, srq: SrqId, pd: PdId, cq: CqId, domain: u64) -> u32 {
        let q = &mut self.queues;
        // Numbers have 24 bits, and there are far fewer receive queues.
        while q.last == 0 || q.named.contains_key(&q.last) {
            q.last = (q.last + 1) & 0xff_ffff;
        }
        q.named.insert(q.last, NamedQueue { srq, pd, cq, domain });
        q.last
    }

    /// Forgets the number of a receive queue, and parts the branches that lead to it.
    pub(crate) fn forget_queue(&mut self, now: Time, endpoint: &mut Endpoint, srq: SrqId) {
        let Some(number) = self.queues.named.iter().find(|(_, q)| q.srq == srq).map(|(n, _)| *n) else {
            return;
        };
        self.queues.named.remove(&number);
        let mut parted = Vec::new();
        for e in self.entries.values_mut() {
            if let Some(Xrc::Target { branches, .. }) = &mut e.xrc {
                parted.extend(branches.extract_if(.., |(queue, _)| *queue == number).map(|(_, id)| id));
            }
        }
        parted.into_iter().for_each(|id| self.end_branch(now, endpoint, id));
    }

    fn end_branch(&mut self, now: Time, endpoint: &mut Endpoint, id: QpId) {
        self.by_id.remove(&id);
        endpoint.disconnect_qp(now, id);
        let _ = endpoint.adapter().destroy_qp(id);
    }

    /// Makes a queue pair that sends.
    pub(crate) fn insert_initiator(
        &mut self,
        endpoint: &mut Endpoint,
        pd: PdId,
        init: QpInit,
    ) -> Result<Arc<QueuePair>, Error> {
        let base = endpoint.adapter().create_qp(pd, init.clone())?;
        let xrc = Xrc::Initiator { base, current: None, wanted: None, branches: BTreeMap::new() };
        self.insert_xrc(endpoint, (base, pd, init), xrc)
    }

    /// Makes a queue pair that receives for the receive queues of a domain.
    pub(crate) fn insert_target(
        &mut self,
        endpoint: &mut Endpoint,
        domain: u64,
    ) -> Result<Arc<QueuePair>, Error> {
        let (pd, cq) = match self.queues.spare {
            Some(spare) => spare,
            None => {
                let adapter = endpoint.adapter();
                *self.queues.spare.insert((adapter.alloc_pd()?, adapter.create_cq(1)?))
            }
        };
        let init = QpInit { max_send_wr: 1, max_recv_wr: 0, ..QpInit::new(cq, cq) };
        let base = endpoint.adapter().create_qp(pd, init.clone())?;
        self.insert_xrc(endpoint, (base, pd, init), Xrc::Target { base, domain, branches: Vec::new() })
    }

    fn insert_xrc(
        &mut self,
        endpoint: &mut Endpoint,
        (base, pd, init): (QpId, PdId, QpInit),
        xrc: Xrc,
    ) -> Result<Arc<QueuePair>, Error> {
        let Some(handle) = self.insert(base, pd, init) else {
            let _ = endpoint.adapter().destroy_qp(base);
            return Err(Error::Limit("queue pairs of a process"));
        };
        if let Some(e) = self.entries.get_mut(&handle.number()) {
            e.xrc = Some(xrc);
        }
        Ok(handle)
    }

    /// Takes note of a queue pair whose next work request is for another branch.
    pub(super) fn note_wanted(&mut self, number: u32) {
        let wants = self.entries.get(&number).is_some_and(Entry::wants_branch);
        if wants && !self.queues.switching.contains(&number) {
            self.queues.switching.push(number);
        }
    }

    /// Enters branches that are wanted, where all before has completed.
    pub(super) fn switch_branches(&mut self, now: Time, endpoint: &mut Endpoint) {
        for number in core::mem::take(&mut self.queues.switching) {
            let Some(e) = self.entries.get_mut(&number) else { continue };
            if endpoint.adapter().query_qp(e.id).is_some_and(|info| info.sends > 0) {
                self.queues.switching.push(number);
                continue;
            }
            match e.enter_branch(endpoint) {
                Ok(is_new) => {
                    let id = e.id;
                    e.post(endpoint);
                    self.by_id.insert(id, number);
                    if is_new {
                        self.ask(now, endpoint, number);
                    }
                    self.note_wanted(number);
                }
                Err(_) => self.fail(now, endpoint, number, Status::TransportFailed),
            }
        }
    }

    /// Grants a request for a branch. False when there is no such receive queue.
    pub(super) fn grant_branch(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        r: &Request,
        queue: u32,
    ) -> bool {
        let Some(named) = self.queues.named.get(&queue).copied() else { return false };
        let Some(e) = self.entries.get_mut(&r.to) else { return false };
        let Some(Xrc::Target { domain, branches, .. }) = &mut e.xrc else { return false };
        if *domain != named.domain || branches.iter().any(|(q, _)| *q == queue) {
            return false;
        }
        let Some(slot) = r.slot else { return false };
        let init = QpInit {
            srq: Some(named.srq),
            max_send_wr: 1,
            max_recv_wr: verbs::MAX_RECV_WR,
            max_rd_atomic: verbs::MAX_RD_ATOMIC / 2,
            ..QpInit::new(named.cq, named.cq)
        };
        let adapter = endpoint.adapter();
        let Ok(id) = adapter.create_qp(named.pd, init) else { return false };
        let _ = adapter.modify_qp(id, QpState::Rtr).and_then(|()| adapter.modify_qp(id, QpState::Rts));
        let _ = adapter.set_qp_access(id, e.access);
        branches.push((queue, id));
        self.by_id.insert(id, r.to);
        if endpoint.accept_qp(now, r.conn, slot, id).is_err() {
            // The peer was told, or is gone.
            self.drop_branch(now, endpoint, id);
        }
        true
    }

    /// The peer of a branch is gone: what it held of its receive queue is for others. False when it is none of a target's.
    pub(super) fn drop_branch(&mut self, now: Time, endpoint: &mut Endpoint, id: QpId) -> bool {
        let Some(e) = self.by_id.get(&id).and_then(|n| self.entries.get_mut(n)) else { return false };
        let Some(Xrc::Target { branches, .. }) = &mut e.xrc else { return false };
        branches.retain(|(_, b)| *b != id);
        self.end_branch(now, endpoint, id);
        true
    }

    /// Ends all branches of a queue pair: it is as it was made.
    pub(super) fn drop_branches(&mut self, now: Time, endpoint: &mut Endpoint, number: u32) {
        let Some(e) = self.entries.get_mut(&number) else { return };
        let ended: Vec<QpId> = match &mut e.xrc {
            None => return,
            Some(Xrc::Initiator { base, current, wanted, branches }) => {
                (*current, *wanted, e.id) = (None, None, *base);
                core::mem::take(branches).into_values().map(|(id, _)| id).collect()
            }
            Some(Xrc::Target { branches, .. }) => {
                core::mem::take(branches).into_iter().map(|(_, id)| id).collect()
            }
        };
        ended.into_iter().for_each(|id| self.end_branch(now, endpoint, id));
    }

    /// The queue pair that stands for an entry without branches is another one.
    pub(super) fn set_base(&mut self, number: u32, id: QpId) {
        if let Some(Xrc::Initiator { base, .. } | Xrc::Target { base, .. }) =
            self.entries.get_mut(&number).and_then(|e| e.xrc.as_mut())
        {
            *base = id;
        }
    }
}
