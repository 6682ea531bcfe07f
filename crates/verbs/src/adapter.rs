//! The adapter's interface for applications: verbs as in InfiniBand. `transport_api` has the transport's side.

use crate::cq::Cqs;
use crate::error::Error;
use crate::memory::{CopyError, Memory};
use crate::qp::{Kind, Qp, QpInfo, QpInit, QpState, QpUsage, Stats};
use crate::region::{Access, Mr, Regions};
use crate::rx::RecvWqe;
use crate::slab::{CqId, MrId, PdId, QpId, Slab, SrqId};
use crate::srq::Srq;
use crate::tx::{Wqe, WrFlags, check_len};
use crate::work::{Data, Local, RecvWr, SendOp, SendWr, Sges, Status, WorkCompletion};
use crate::{MAX_INLINE, MAX_RD_ATOMIC, MAX_RECV_WR, MAX_SEND_WR, MAX_SGE};
use std::collections::VecDeque;

/// The limits of an adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Protection domains.
    pub pds: usize,
    /// Memory regions; at most [`MAX_REGIONS`](crate::MAX_REGIONS).
    pub regions: usize,
    /// Bytes of all regions together.
    pub registered_bytes: u64,
    /// Completion queues.
    pub cqs: usize,
    /// Entries of one completion queue.
    pub cq_entries: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Receives of one shared receive queue.
    pub srq_entries: usize,
    /// Queue pairs.
    pub qps: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            pds: 1 << 16,
            regions: 1 << 20,
            registered_bytes: 1 << 50,
            cqs: 1 << 16,
            cq_entries: 1 << 20,
            srqs: 1 << 12,
            srq_entries: 1 << 20,
            qps: 1 << 16,
        }
    }
}

/// A protection domain: how many objects belong to it.
#[derive(Default)]
pub(crate) struct Pd {
    users: usize,
}

/// Regions, queues and queue pairs of one endpoint, and the rules between them. Does nothing by itself: every
/// method returns at once.
pub struct Adapter {
    pub(crate) limits: Limits,
    pub(crate) rng: base::Rng,
    pub(crate) pds: Slab<PdId, Pd>,
    pub(crate) regions: Regions,
    pub(crate) cqs: Cqs,
    pub(crate) srqs: Slab<SrqId, Srq>,
    pub(crate) srq_events: VecDeque<SrqId>,
    pub(crate) qps: Slab<QpId, Qp>,
    pub(crate) activated: VecDeque<QpId>,
    pub(crate) credit_changes: VecDeque<QpId>,
}

const NO_PD: Error = Error::NotFound("protection domain");
pub(crate) const NO_QP: Error = Error::NotFound("queue pair");

impl Adapter {
    /// An adapter with nothing in it. Keys are drawn from `rng`, which must be seeded unpredictably when peers are
    /// not trusted.
    pub fn new(limits: Limits, rng: base::Rng) -> Adapter {
        Adapter {
            limits,
            rng,
            pds: Slab::new(limits.pds),
            regions: Regions::new(limits.regions, limits.registered_bytes),
            cqs: Cqs::new(limits.cqs),
            srqs: Slab::new(limits.srqs),
            srq_events: VecDeque::new(),
            qps: Slab::new(limits.qps),
            activated: VecDeque::new(),
            credit_changes: VecDeque::new(),
        }
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub fn alloc_pd(&mut self) -> Result<PdId, Error> {
        self.pds.insert(Pd::default()).map_err(|_| Error::Limit("protection domains"))
    }
    /// Destroys a protection domain.
    ///
    /// # Errors
    /// [`Error::Busy`] while regions, shared receive queues or queue pairs belong to it.
    pub fn dealloc_pd(&mut self, pd: PdId) -> Result<(), Error> {
        if self.pds.get(pd).ok_or(NO_PD)?.users > 0 {
            return Err(Error::Busy("the protection domain"));
        }
        self.pds.remove(pd);
        Ok(())
    }
    pub(crate) fn hold_pd(&mut self, pd: PdId) -> Result<(), Error> {
        self.pds.get_mut(pd).ok_or(NO_PD)?.users += 1;
        Ok(())
    }
    pub(crate) fn release_pd(&mut self, pd: PdId) {
        if let Some(p) = self.pds.get_mut(pd) {
            p.users = p.users.saturating_sub(1);
        }
    }

    /// Registers memory. Until it is deregistered its bytes are reached by [`read_mr`](Adapter::read_mr),
    /// [`write_mr`](Adapter::write_mr) and work requests only.
    ///
    /// # Errors
    /// The memory comes back with the reason: [`Error::NotFound`], [`Error::Limit`], [`Error::Access`] (read-only
    /// memory with a right to write), [`Error::Invalid`].
    pub fn reg_mr(&mut self, pd: PdId, memory: Memory, access: Access) -> Result<Mr, (Error, Memory)> {
        self.reg_mr_at(pd, memory, 0, access)
    }
    /// As [`reg_mr`](Adapter::reg_mr), with `base` as the offset of the first byte: memory whose bytes are named by their addresses
    /// is registered with its own (`ibv_reg_mr_iova`).
    ///
    /// # Errors
    /// As [`reg_mr`](Adapter::reg_mr); [`Error::Invalid`] when offsets would go beyond 64 bits.
    pub fn reg_mr_at(
        &mut self,
        pd: PdId,
        memory: Memory,
        base: u64,
        access: Access,
    ) -> Result<Mr, (Error, Memory)> {
        if self.pds.get(pd).is_none() {
            return Err((NO_PD, memory));
        }
        let mr = self.regions.register(pd, memory, (base, access), &mut self.rng)?;
        // Cannot fail: the domain was there two lines above.
        let _ = self.hold_pd(pd);
        Ok(mr)
    }
    /// Deregisters a region and gives its memory back. Its keys are void from now on.
    ///
    /// # Errors
    /// [`Error::Busy`] while outstanding work requests or answers to the peer's reads use it, [`Error::NotFound`].
    pub fn dereg_mr(&mut self, mr: MrId) -> Result<Memory, Error> {
        let (memory, pd) = self.regions.deregister(mr)?;
        self.release_pd(pd);
        Ok(memory)
    }
    /// As [`dereg_mr`](Adapter::dereg_mr), though work requests use it: they fail when their turn comes, and nothing is written to or
    /// read from the memory any more.
    ///
    /// # Errors
    /// [`Error::Busy`] while a window shows something of it, [`Error::NotFound`].
    pub fn revoke_mr(&mut self, mr: MrId) -> Result<Memory, Error> {
        let (memory, pd) = self.regions.revoke(mr)?;
        self.release_pd(pd);
        Ok(memory)
    }
    /// Changes a region's memory, its domain and its rights; its keys stay. Work requests that were posted before and do not fit what it
    /// is now fail when their turn comes.
    ///
    /// # Errors
    /// As [`reg_mr_at`](Adapter::reg_mr_at); [`Error::Busy`] while a window shows something of it. Then nothing changes.
    pub fn rereg_mr(
        &mut self,
        mr: MrId,
        pd: PdId,
        access: Access,
        memory: Option<(Memory, u64)>,
    ) -> Result<(), Error> {
        self.hold_pd(pd)?;
        match self.regions.change_region(mr, pd, access, memory) {
            Ok(before) => {
                self.release_pd(before);
                Ok(())
            }
            Err(e) => {
                self.release_pd(pd);
                Err(e)
            }
        }
    }
    /// Whether work uses a region that ends by itself: anything but receives, which may wait for ever.
    pub fn is_mr_in_use(&self, mr: MrId) -> bool {
        self.regions.is_in_use(mr)
    }
    /// Sets what the peer of a queue pair may do with memory, of what regions and windows allow. At first: everything.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn set_qp_access(&mut self, id: QpId, access: Access) -> Result<(), Error> {
        self.qps.get_mut(id).ok_or(NO_QP)?.rx.set_access(access);
        Ok(())
    }
    /// Keys and length of a region.
    pub fn query_mr(&self, mr: MrId) -> Option<Mr> {
        self.regions.describe(mr)
    }
    /// Copies `out.len()` bytes from byte `offset` of a region.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::OutOfBounds`], [`Error::Fault`].
    pub fn read_mr(&self, mr: MrId, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.query_mr(mr).ok_or(Error::NotFound("memory region"))?;
        self.regions.read(mr, offset, out).map_err(error_of)
    }
    /// Copies `data` to byte `offset` of a region.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::OutOfBounds`], [`Error::Access`] (read-only memory), [`Error::Fault`].
    pub fn write_mr(&mut self, mr: MrId, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.regions.write(mr, offset, data).map_err(|e| match self.query_mr(mr) {
            Some(_) => error_of(e),
            None => Error::NotFound("memory region"),
        })
    }

    /// Appends to `out` all that scatter/gather elements of a protection domain name, as sending it would.
    ///
    /// # Errors
    /// What is wrong with its memory: [`Error::BadKey`], [`Error::Access`], [`Error::OutOfBounds`], [`Error::Fault`];
    /// [`Error::TooLong`] above `most` bytes.
    pub fn read_sges(&mut self, pd: PdId, sges: &Sges, most: u64, out: &mut Vec<u8>) -> Result<(), Error> {
        let (local, len) = Local::resolve(sges, &mut self.regions, pd, Access::LOCAL_READ, MAX_SGE)?;
        local.release(&mut self.regions);
        if len > most {
            return Err(Error::TooLong { len, max: most });
        }
        local.append(&self.regions, 0, len as usize, out).map_err(error_of)
    }
    /// Writes `parts`, one after the other, to the first of the memory that scatter/gather elements of a protection domain name, as receiving it would.
    ///
    /// # Errors
    /// As [`read_sges`](Adapter::read_sges); [`Error::TooLong`] when there is no room.
    pub fn write_sges(&mut self, pd: PdId, sges: &Sges, parts: &[&[u8]]) -> Result<(), Error> {
        let (local, room) = Local::resolve(sges, &mut self.regions, pd, Access::LOCAL_WRITE, MAX_SGE)?;
        local.release(&mut self.regions);
        self.write_parts(&local, room, parts)
    }
    /// Writes `parts`, one after the other, to memory with so much room.
    pub(crate) fn write_parts(&mut self, local: &Local, room: u64, parts: &[&[u8]]) -> Result<(), Error> {
        let len = parts.iter().map(|p| p.len() as u64).sum();
        if len > room {
            return Err(Error::TooLong { len, max: room });
        }
        let mut at = 0;
        for part in parts {
            local.write(&mut self.regions, at, part).map_err(error_of)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Creates a completion queue for `capacity` completions. Work requests reserve their places when posted.
    ///
    /// # Errors
    /// [`Error::Invalid`] (0 or above [`Limits::cq_entries`]), [`Error::Limit`].
    pub fn create_cq(&mut self, capacity: usize) -> Result<CqId, Error> {
        if capacity == 0 || capacity > self.limits.cq_entries {
            return Err(Error::Invalid("capacity must be 1 to Limits::cq_entries"));
        }
        self.cqs.create(capacity)
    }
    /// Destroys a completion queue and the completions in it.
    ///
    /// # Errors
    /// [`Error::Busy`] while queue pairs use it, [`Error::NotFound`].
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), Error> {
        self.cqs.destroy(cq)
    }
    /// Takes the oldest completion. None also when the queue does not exist.
    #[inline]
    pub fn poll_cq(&mut self, cq: CqId) -> Option<WorkCompletion> {
        let wc = self.cqs.poll(cq)?;
        self.refill_from_srqs();
        Some(wc)
    }
    /// Completions waiting in a queue. None when it does not exist.
    pub fn cq_len(&self, cq: CqId) -> Option<usize> {
        self.cqs.len(cq)
    }
    /// Requests one notification, returned by [`take_notified`](Adapter::take_notified), for the next completion, or
    /// for the next solicited or failed one. Poll once more afterwards: completions that are there already do not
    /// count.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn req_notify_cq(&mut self, cq: CqId, solicited_only: bool) -> Result<(), Error> {
        self.cqs.arm(cq, solicited_only)
    }
    /// The next completion queue whose notification is due.
    pub fn take_notified(&mut self) -> Option<CqId> {
        self.cqs.take_notified()
    }

    /// Creates a queue pair, in state [`QpState::Init`].
    ///
    /// # Errors
    /// [`Error::Invalid`] (an attribute outside of its range), [`Error::NotFound`], [`Error::Limit`].
    pub fn create_qp(&mut self, pd: PdId, init: QpInit) -> Result<QpId, Error> {
        if init.max_send_wr == 0 || init.max_send_wr > MAX_SEND_WR {
            return Err(Error::Invalid("max_send_wr must be 1 to MAX_SEND_WR"));
        }
        if init.max_recv_wr > MAX_RECV_WR {
            return Err(Error::Invalid("max_recv_wr must be at most MAX_RECV_WR"));
        }
        if init.max_sge > MAX_SGE || init.max_rd_atomic > MAX_RD_ATOMIC {
            return Err(Error::Invalid(
                "max_sge and max_rd_atomic must be at most MAX_SGE and MAX_RD_ATOMIC",
            ));
        }
        if !self.cqs.exists(init.send_cq) || !self.cqs.exists(init.recv_cq) {
            return Err(Error::NotFound("completion queue"));
        }
        if init.srq.is_some_and(|s| self.srqs.get(s).is_none()) {
            return Err(Error::NotFound("shared receive queue"));
        }
        if self.qps.is_full() {
            return Err(Error::Limit("queue pairs"));
        }
        self.hold_pd(pd)?;
        self.cqs.attach(init.send_cq)?;
        self.cqs.attach(init.recv_cq)?;
        let srq = init.srq;
        let qp = self.qps.insert(Qp::new(pd, init)).map_err(|_| Error::Limit("queue pairs"))?;
        if let Some(srq) = srq {
            self.attach_srq(srq, qp);
        }
        Ok(qp)
    }
    /// Destroys a queue pair. What is outstanding on it ends without completions; completions already made stay.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn destroy_qp(&mut self, id: QpId) -> Result<(), Error> {
        let mut qp = self.qps.remove(id).ok_or(NO_QP)?;
        let (shared, held) = (qp.init.srq, qp.rx.posted());
        // First, so that the places it gives back wake others, not itself.
        self.cqs.detach(qp.init.send_cq, id);
        self.cqs.detach(qp.init.recv_cq, id);
        let (halves, mut ctx) = qp.split(id, &mut self.regions, &mut self.cqs, &mut self.rng);
        halves.tx.discard(&mut ctx);
        let unused = halves.rx.discard(shared.is_some(), &mut ctx);
        self.release_pd(qp.pd);
        if qp.in_activated {
            self.activated.retain(|q| *q != id);
        }
        if qp.in_credit {
            self.credit_changes.retain(|q| *q != id);
        }
        if let Some(srq) = shared {
            self.detach_srq(srq, id, held, unused);
        }
        self.refill_from_srqs();
        Ok(())
    }
    /// Moves a queue pair to another state: `Init` to `Rtr` to `Rts`, `Rts` to `Sqd` and back, and any to `Error`.
    ///
    /// # Errors
    /// [`Error::State`] for other moves, [`Error::NotFound`].
    pub fn modify_qp(&mut self, id: QpId, state: QpState) -> Result<(), Error> {
        if state == QpState::Error {
            return self.set_error(id, Status::FlushError);
        }
        let qp = self.qps.get_mut(id).ok_or(NO_QP)?;
        match (qp.state, state) {
            (QpState::Init, QpState::Rtr)
            | (QpState::Rtr | QpState::Sqd, QpState::Rts)
            | (QpState::Rts, QpState::Sqd) => qp.state = state,
            _ => return Err(Error::State),
        }
        qp.wake(id, &mut self.activated);
        Ok(())
    }
    /// State and fill of a queue pair.
    pub fn query_qp(&self, id: QpId) -> Option<QpInfo> {
        self.qps.get(id).map(Qp::info)
    }
    /// State of a queue pair.
    pub fn qp_state(&self, id: QpId) -> Option<QpState> {
        self.qps.get(id).map(|q| q.state)
    }
    /// Whether all that was started has completed, and the next work request waits until the peer posts a receive.
    pub fn waits_for_receive(&self, id: QpId) -> bool {
        self.qps.get(id).is_some_and(|q| q.gate().start && q.tx.waits_for_receive())
    }
    /// Memory in use by a queue pair. Takes time in the number of unfinished messages.
    pub fn usage(&self, id: QpId) -> Option<QpUsage> {
        self.qps.get(id).map(Qp::usage)
    }
    /// Counters of a queue pair.
    pub fn stats(&self, id: QpId) -> Option<Stats> {
        self.qps.get(id).map(|q| q.stats)
    }
    /// Puts a queue pair in the error state. Its oldest send work request ends with `status`, everything else with
    /// [`Status::FlushError`], in posting order. Without effect on one that is in error already.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn set_error(&mut self, id: QpId, status: Status) -> Result<(), Error> {
        let qp = self.qps.get_mut(id).ok_or(NO_QP)?;
        if qp.state == QpState::Error {
            return Ok(());
        }
        let held = qp.rx.posted();
        let unused = qp.flush(id, status, &mut self.regions, &mut self.cqs, &mut self.rng);
        qp.wake(id, &mut self.activated);
        if qp.init.kind == Kind::Ordered {
            // The stream it belongs to ends with it, and has to hear of it.
            qp.announce(id, &mut self.activated);
        }
        if let Some(srq) = qp.init.srq {
            self.return_to_srq(srq, id, held, unused);
        }
        self.refill_from_srqs();
        Ok(())
    }

    /// Posts a work request to the send queue. On a queue pair in error it completes at once as flushed.
    ///
    /// # Errors
    /// [`Error::State`] before [`QpState::Rts`], [`Error::QueueFull`], [`Error::CqFull`], [`Error::TooLong`],
    /// [`Error::Unsupported`], [`Error::Invalid`], and what is wrong with its memory: [`Error::BadKey`],
    /// [`Error::Access`], [`Error::OutOfBounds`].
    pub fn post_send(&mut self, id: QpId, wr: SendWr) -> Result<(), Error> {
        let qp = self.qps.get_mut(id).ok_or(NO_QP)?;
        if matches!(qp.state, QpState::Init | QpState::Rtr) {
            return Err(Error::State);
        }
        if qp.tx.len() >= qp.init.max_send_wr {
            return Err(Error::QueueFull);
        }
        let read = matches!(wr.op, SendOp::Read { .. } | SendOp::Atomic { .. });
        if read && qp.init.max_rd_atomic == 0 {
            return Err(Error::Unsupported(
                "reads and atomic operations on a queue pair with max_rd_atomic 0",
            ));
        }
        let need = if read { Access::LOCAL_WRITE } else { Access::LOCAL_READ };
        let SendWr { wr_id, op, data, signaled, solicited, fence } = wr;
        let (local, len) = match data {
            Data::Inline(_) if read => {
                return Err(Error::Invalid("a read or an atomic operation needs registered memory"));
            }
            Data::Inline(b) if b.len() > MAX_INLINE => {
                return Err(Error::TooLong { len: b.len() as u64, max: MAX_INLINE as u64 });
            }
            Data::Inline(b) => {
                let len = b.len() as u64;
                (Local::Inline(b), len)
            }
            Data::Sges(s) => Local::resolve(&s, &mut self.regions, qp.pd, need, qp.init.max_sge)?,
        };
        let checked = check_len(op, len, qp.init.kind, qp.init.max_datagram)
            .and_then(|()| self.cqs.reserve(qp.init.send_cq));
        if let Err(e) = checked {
            local.release(&mut self.regions);
            return Err(e);
        }
        qp.tx.post(Wqe::new(wr_id, op, local, len, WrFlags { signaled, solicited, fence }));
        if qp.state == QpState::Error {
            self.flush_sends(id);
        } else {
            // A stream finds out for itself whether there is something to give out now.
            let has = qp.init.kind == Kind::Ordered || qp.tx.has_segment(qp.gate());
            qp.wake_if(has, id, &mut self.activated);
        }
        Ok(())
    }
    /// What is posted on a queue pair in error ends at once.
    #[cold]
    fn flush_sends(&mut self, id: QpId) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        let (halves, mut ctx) = qp.split(id, &mut self.regions, &mut self.cqs, &mut self.rng);
        halves.tx.flush(Status::FlushError, &mut ctx);
        qp.wake(id, &mut self.activated);
    }

    /// Posts a receive. On a queue pair in error it completes at once as flushed.
    ///
    /// # Errors
    /// [`Error::QueueFull`], [`Error::CqFull`], [`Error::Unsupported`] (it has a shared receive queue), and what is
    /// wrong with its memory: [`Error::BadKey`], [`Error::Access`], [`Error::OutOfBounds`].
    pub fn post_recv(&mut self, id: QpId, wr: RecvWr) -> Result<(), Error> {
        let qp = self.qps.get_mut(id).ok_or(NO_QP)?;
        if qp.init.srq.is_some() {
            return Err(Error::Unsupported("post_recv with a shared receive queue; use post_srq_recv"));
        }
        if qp.rx.posted() >= qp.init.max_recv_wr {
            return Err(Error::QueueFull);
        }
        let need = Access::LOCAL_WRITE;
        let (local, room) = Local::resolve(&wr.sges, &mut self.regions, qp.pd, need, qp.init.max_sge)?;
        if let Err(e) = self.cqs.reserve(qp.init.recv_cq) {
            local.release(&mut self.regions);
            return Err(e);
        }
        qp.rx.post_own(RecvWqe::new(wr.wr_id, local, room, &mut self.regions));
        if qp.state == QpState::Error {
            let (halves, mut ctx) = qp.split(id, &mut self.regions, &mut self.cqs, &mut self.rng);
            halves.rx.flush(false, &mut ctx);
        } else {
            self.note_credit(id);
        }
        Ok(())
    }
}

pub(crate) fn error_of(e: CopyError) -> Error {
    match e {
        CopyError::Bounds => Error::OutOfBounds,
        CopyError::ReadOnly => Error::Access,
        CopyError::Fault => Error::Fault,
    }
}
