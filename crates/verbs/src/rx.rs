//! The receiving half of a queue pair: checks segments, places their bytes, completes messages in order.

mod contiguous;

use crate::ordered::RemoteError;
use crate::region::{Access, AccessError, Regions};
use crate::segment::{
    ATOMIC_REQUEST_LEN, AtomicRequest, Incoming, Placed, ReadRequest, SegmentOp, Tail, Violation,
};
use crate::slab::{MrId, PdId};
use crate::tx::{ATOMIC_LEN, Ctx, Response, Tx};
use crate::work::{Local, MrRange, Opcode, Status, WorkCompletion};
use crate::{MAX_HOLES, MAX_MESSAGES_AHEAD, MAX_RDMA_LEN, MAX_SEND_LEN};
use base::{RangeSet, seq};
use core::ops::Range;
use std::collections::VecDeque;

/// A posted receive.
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) local: Local,
    /// Room in bytes.
    pub(crate) room: u64,
    /// The message that consumes it, once a segment of that message came.
    claimed: Option<u64>,
    /// The status with which it completes: a message did not fit, or its memory failed. `None`: it is flushed.
    failed: Option<Status>,
    /// Receives of its queue pair that were consumed when it was posted there; `None`: it was posted elsewhere.
    posted_after: Option<u64>,
}
impl RecvWqe {
    /// A receive of memory that is held.
    pub(crate) fn new(wr_id: u64, local: Local, room: u64, regions: &mut Regions) -> RecvWqe {
        local.regions().for_each(|mr| regions.hold_for_receive(mr));
        RecvWqe { wr_id, local, room, claimed: None, failed: None, posted_after: None }
    }
    /// Gives its memory back.
    #[inline(always)]
    pub(crate) fn release(&self, regions: &mut Regions) {
        self.local.regions().for_each(|mr| regions.release_receive(mr));
    }
}

/// An incomplete message. `op` is `None` while only segments of later messages have arrived.
#[derive(Default)]
struct InMsg {
    op: Option<SegmentOp>,
    /// All of it is in place.
    done: bool,
    key: u32,
    rsn: Option<u64>,
    /// First position, once it is known: 0 except for writes.
    start: Option<u64>,
    /// End position, once the last segment came.
    end: Option<u64>,
    /// Positions received.
    received: RangeSet,
    bytes: u64,
    tail: Tail,
    /// Writes: the region of `key`.
    mr: Option<MrId>,
    /// Requests: the bytes so far. There is room for the longest kind.
    request: Option<Box<[u8; ATOMIC_REQUEST_LEN]>>,
}

impl InMsg {
    /// Checks `seg`, which brings the positions `range`, against earlier segments.
    fn check(&self, seg: &Incoming, rsn: Option<u64>, range: &Range<u64>) -> Result<(), Violation> {
        if self.op != Some(seg.op) {
            return Err(Violation::Inconsistent("another operation under the same message number"));
        }
        if self.key != seg.key {
            return Err(Violation::Inconsistent("another key"));
        }
        if self.rsn.is_some() && rsn.is_some() && self.rsn != rsn {
            return Err(Violation::Inconsistent("another receive number"));
        }
        let starts_right = match self.start {
            Some(s) => (range.start == s) == seg.first && range.start >= s,
            None => !seg.first || self.received.first().is_none_or(|r| range.start < r.start),
        };
        let ends_right = match self.end {
            Some(e) => (range.end == e) == seg.last.is_some() && range.end <= e,
            None => seg.last.is_none() || self.received.last().is_none_or(|r| r.end < range.end),
        };
        if !(starts_right && ends_right) {
            return Err(Violation::Inconsistent("another start or end"));
        }
        let lowest = self.start.unwrap_or(range.start).min(range.start);
        let highest = self.received.last().map_or(range.end, |r| r.end.max(range.end));
        if highest - lowest > MAX_RDMA_LEN {
            return Err(Violation::TooLong);
        }
        Ok(())
    }

    /// Whether this range would become a range of its own, in front of which something is missing.
    fn makes_hole(&self, index: usize, seg: &Incoming, range: &Range<u64>) -> bool {
        let touches = |at| self.received.containing(at).is_some();
        let at_the_front = index == 0 && seg.first;
        !(at_the_front || (range.start > 0 && touches(range.start - 1)) || touches(range.end))
    }

    fn is_complete(&self) -> bool {
        matches!((self.start, self.end), (Some(s), Some(e)) if self.bytes == e - s)
    }
}

/// Where the bytes of a segment go.
#[derive(Clone, Copy)]
enum Destination {
    Nowhere,
    Region(MrId),
    /// The region of a memory window, whose key is checked again for each segment.
    Window(MrId),
    Receive(usize),
    Request,
    Sink(u64),
}

/// The receiving half of a queue pair.
#[derive(Default)]
pub(crate) struct Rx {
    /// The oldest incomplete message.
    floor: u64,
    /// The messages from `floor` on.
    msgs: VecDeque<InMsg>,
    /// Ranges in all `received` sets.
    holes: usize,
    recvs: VecDeque<RecvWqe>,
    /// Receive number of the first of `recvs`.
    recv_base: u64,
    /// The limit that the peer was told last.
    advertised: u64,
    /// Access that is denied to the peer even if a key permits it.
    denied: Access,
}

/// Checks the fields of one segment against each other. Returns the positions it brings.
pub(crate) fn check_shape(seg: &Incoming, len: usize) -> Result<Range<u64>, Violation> {
    let end = seg.position.checked_add(len as u64).ok_or(Violation::OutOfBounds)?;
    let max = match seg.op {
        SegmentOp::Send => MAX_SEND_LEN,
        SegmentOp::ReadResponse => MAX_RDMA_LEN,
        SegmentOp::Write => u64::MAX,
        op @ (SegmentOp::ReadRequest | SegmentOp::AtomicRequest) => op.request_len().unwrap_or(0),
    };
    if end > max {
        return Err(Violation::TooLong);
    }
    if len == 0 && !(seg.first && seg.last.is_some()) {
        return Err(Violation::Malformed("no payload, but the message is not empty"));
    }
    if seg.op != SegmentOp::Write && seg.first != (seg.position == 0) {
        return Err(Violation::Malformed("the mark of the first segment does not match the position"));
    }
    let has_rsn = seg.rsn16.is_some();
    let fields_fit = match seg.op {
        SegmentOp::Send => has_rsn,
        SegmentOp::Write => !has_rsn || seg.last.is_some(),
        SegmentOp::ReadRequest | SegmentOp::ReadResponse | SegmentOp::AtomicRequest => !has_rsn,
    };
    if !fields_fit {
        return Err(Violation::Malformed("a receive number where none belongs, or none where one does"));
    }
    if seg.op.request_len().is_some_and(|whole| seg.last.is_some() != (end == whole)) {
        return Err(Violation::Malformed("a request of the wrong length"));
    }
    Ok(seg.position..end)
}

pub(crate) const fn violation_of(d: AccessError) -> Violation {
    match d {
        AccessError::Key | AccessError::Association => Violation::BadKey,
        AccessError::Rights => Violation::AccessDenied,
        AccessError::Bounds | AccessError::Wrap => Violation::OutOfBounds,
    }
}

impl Rx {
    pub(crate) fn posted(&self) -> usize {
        self.recvs.len()
    }
    pub(crate) fn set_access(&mut self, allowed: Access) {
        self.denied = allowed.complement();
    }
    /// Checks what the peer wants to do (InfiniBand, 9.7.4.1.5: what a queue pair does not offer is an invalid request).
    fn check_access(&self, need: Access) -> Result<(), Violation> {
        if self.denied & need == Access::LOCAL_READ { Ok(()) } else { Err(Violation::Unsupported) }
    }
    /// Messages of which something came, or a later one did, and the ranges that came of them.
    pub(crate) fn unfinished(&self) -> (usize, usize) {
        (self.msgs.len(), self.holes)
    }
    /// Receives ever posted: the limit for the peer's receive numbers.
    pub(crate) fn recv_limit(&self) -> u64 {
        self.recv_base + self.recvs.len() as u64
    }
    /// Whether the peer should be told the receive limit: it knows of at most three quarters of the posted receives.
    pub(crate) fn should_advertise_credit(&self) -> bool {
        let known = self.advertised.saturating_sub(self.recv_base);
        self.recv_limit() > self.advertised && 4 * known <= 3 * self.recvs.len() as u64
    }
    /// The peer is told the receive limit.
    pub(crate) fn on_credit_advertised(&mut self) {
        self.advertised = self.recv_limit();
    }
    /// Receives ever consumed.
    pub(crate) fn consumed(&self) -> u64 {
        self.recv_base
    }
    pub(crate) fn post(&mut self, r: RecvWqe) {
        self.recvs.push_back(r);
    }
    /// Takes a receive that was posted to this very queue pair.
    pub(crate) fn post_own(&mut self, r: RecvWqe) {
        self.post(RecvWqe { posted_after: Some(self.recv_base), ..r });
    }
    /// The receive that is next, for `len` bytes from byte `at` on (ordered queue pairs). It counts as used from now on.
    pub(crate) fn claim_next(&mut self, at: u64, len: u64) -> Result<&RecvWqe, RemoteError> {
        let r = self.recvs.front_mut().ok_or(RemoteError::NoReceive)?;
        r.claimed = Some(self.recv_base);
        if at.checked_add(len).is_none_or(|end| end > r.room) {
            r.failed = Some(Status::LocalLength);
            return Err(RemoteError::TooLong);
        }
        Ok(r)
    }
    /// Bytes that the next receive has room for.
    pub(crate) fn next_room(&self) -> Option<u64> {
        self.recvs.front().map(|r| r.room)
    }
    /// The same, if that receive was posted to this queue pair after the last message was complete.
    pub(crate) fn fresh_room(&self) -> Option<u64> {
        self.recvs.front().filter(|r| r.posted_after == Some(self.recv_base)).map(|r| r.room)
    }
    /// As `next_receive_places`, of a message that may come. False: it does not fit.
    pub(crate) fn expected_places(&self, at: u64, len: u64, out: &mut Vec<MrRange>) -> bool {
        let fits = |r: &RecvWqe| at.checked_add(len).is_some_and(|end| end <= r.room);
        self.recvs.front().filter(|r| fits(r)).is_some_and(|r| r.local.places(at, len, out))
    }
    /// Takes the next receive without regard to numbers (queue pairs that are not reliable ones).
    #[inline(always)]
    pub(crate) fn next_receive(&mut self, fits: u64) -> Option<RecvWqe> {
        if self.recvs.front()?.room < fits {
            return None;
        }
        self.recv_base += 1;
        self.recvs.pop_front()
    }

    /// Checks a segment and places what is new of it. Nothing is written unless everything about it is right.
    pub(crate) fn place(
        &mut self,
        tx: &mut Tx,
        pd: PdId,
        seg: &Incoming,
        payload: &[u8],
        ctx: &mut Ctx<'_>,
    ) -> Result<Placed, Violation> {
        let range = check_shape(seg, payload.len())?;
        let msn = seq::expand(u64::from(seg.msn16), 16, self.floor);
        if msn < self.floor {
            return Ok(Placed::Duplicate);
        }
        if msn - self.floor >= MAX_MESSAGES_AHEAD {
            return Err(Violation::TooFarAhead);
        }
        let index = (msn - self.floor) as usize;
        let rsn = seg.rsn16.map(|r| seq::expand(u64::from(r), 16, self.recv_base));
        let known = self.msgs.get(index).filter(|m| m.op.is_some());
        if let Some(m) = known {
            if m.done {
                return Ok(Placed::Duplicate);
            }
            m.check(seg, rsn, &range)?;
            if m.received.contains_all(range.clone()) {
                return Ok(Placed::Duplicate);
            }
        }
        let known_mr = known.and_then(|m| m.mr);
        if self.holes >= MAX_HOLES && self.msgs.get(index).is_none_or(|m| m.makes_hole(index, seg, &range)) {
            return Ok(Placed::Refused);
        }
        let to = self.destination(tx, pd, seg, (msn, rsn, &range), known_mr, ctx)?;
        if self.msgs.is_empty() && index == 0 && seg.is_whole_push() {
            let placed = self.place_whole(seg, rsn, range.start, to, payload, ctx);
            return placed.map_err(|e| self.note_fault(tx, to, e)).map(|()| Placed::New);
        }
        if index >= self.msgs.len() {
            self.msgs.resize_with(index + 1, InMsg::default);
        }
        let written = self.write(tx, index, &range, to, payload, ctx);
        written.map_err(|e| self.note_fault(tx, to, e))?;
        self.note(index, seg, rsn, range, to);
        self.finish(tx, pd, index, ctx)?;
        Ok(Placed::New)
    }

    /// Memory of a receive or a read failed: that is what it ends with.
    fn note_fault(&mut self, tx: &mut Tx, to: Destination, e: Violation) -> Violation {
        match to {
            Destination::Receive(i) if e == Violation::LocalFault => {
                if let Some(r) = self.recvs.get_mut(i) {
                    r.failed = Some(Status::LocalProtection);
                }
                return Violation::ReceiveFault;
            }
            Destination::Sink(number) if e == Violation::LocalFault => tx.note_fault(number),
            _ => {}
        }
        e
    }

    /// Places a Write or Send that is one segment and whose turn it is, and completes its receive: the usual short message,
    /// of which nothing has to be remembered.
    fn place_whole(
        &mut self,
        seg: &Incoming,
        rsn: Option<u64>,
        at: u64,
        to: Destination,
        payload: &[u8],
        ctx: &mut Ctx<'_>,
    ) -> Result<(), Violation> {
        put(&self.recvs, to, at, payload, ctx)?;
        self.floor += 1;
        match rsn {
            Some(rsn) => {
                let tail = seg.last.unwrap_or_default();
                self.deliver(seg.op, rsn, (payload.len() as u64, tail), ctx)
            }
            None => Ok(()),
        }
    }

    /// Finds where a segment's bytes go and whether they may.
    fn destination(
        &mut self,
        tx: &Tx,
        pd: PdId,
        seg: &Incoming,
        (msn, rsn, range): (u64, Option<u64>, &Range<u64>),
        known_mr: Option<MrId>,
        ctx: &Ctx<'_>,
    ) -> Result<Destination, Violation> {
        let receive = match rsn {
            Some(rsn) => Some(self.receive(rsn, msn)?),
            None => None,
        };
        let (end, len) = (range.end, range.end - range.start);
        match seg.op {
            // The key of an access to no bytes is not checked (InfiniBand C9-88).
            SegmentOp::Write if len == 0 => Ok(Destination::Nowhere),
            SegmentOp::Write => {
                let (need, at) = (Access::REMOTE_WRITE, seg.position);
                self.check_access(need)?;
                let mr = match known_mr {
                    Some(mr) => ctx.regions.recheck(mr, pd, need, at, len).map(|()| mr),
                    None => ctx.regions.remote(seg.key, pd, need, at, len),
                };
                match mr {
                    Err(AccessError::Key) => {
                        let shown = ctx.regions.remote_window(seg.key, (pd, ctx.qp), need, at, len);
                        Ok(Destination::Window(shown.map_err(violation_of)?))
                    }
                    mr => Ok(Destination::Region(mr.map_err(violation_of)?)),
                }
            }
            SegmentOp::Send => {
                let i = receive.ok_or(Violation::Malformed("a send without receive number"))?;
                let r = self.recvs.get_mut(i).ok_or(Violation::CreditExceeded)?;
                if end > r.room {
                    r.failed = Some(Status::LocalLength);
                    return Err(Violation::TooLong);
                }
                Ok(Destination::Receive(i))
            }
            SegmentOp::ReadRequest | SegmentOp::AtomicRequest => Ok(Destination::Request),
            SegmentOp::ReadResponse => {
                let (number, total) = tx.sink(seg.key).ok_or(Violation::BadKey)?;
                if end > total {
                    return Err(Violation::OutOfBounds);
                }
                if seg.last.is_some() != (end == total) {
                    return Err(Violation::Inconsistent("an answer shorter than the read"));
                }
                Ok(Destination::Sink(number))
            }
        }
    }

    /// The index of the receive `rsn`, which message `msn` may consume.
    fn receive(&self, rsn: u64, msn: u64) -> Result<usize, Violation> {
        let index = rsn.checked_sub(self.recv_base).ok_or(Violation::ReceiveOrder)?;
        let r = self.recvs.get(index as usize).ok_or(Violation::CreditExceeded)?;
        // A message consumes one receive at most, so those before this one cannot account for more than there are.
        if r.claimed.is_some_and(|c| c != msn) || index > msn - self.floor {
            return Err(Violation::ReceiveOrder);
        }
        Ok(index as usize)
    }

    /// Copies those bytes of `payload` that are new.
    fn write(
        &mut self,
        tx: &Tx,
        index: usize,
        range: &Range<u64>,
        to: Destination,
        payload: &[u8],
        ctx: &mut Ctx<'_>,
    ) -> Result<(), Violation> {
        let (start, end) = (range.start, range.end);
        let InMsg { received, request, .. } = &mut self.msgs[index];
        let recvs = &self.recvs;
        let mut fill = |gap: Range<u64>| {
            let data = &payload[(gap.start - start) as usize..(gap.end - start) as usize];
            match to {
                Destination::Sink(number) => {
                    let filled = tx.fill_sink(number, gap.start, data, ctx.regions);
                    filled.map_err(|_| Violation::LocalFault)
                }
                Destination::Request => {
                    let b = request.get_or_insert_with(|| Box::new([0; ATOMIC_REQUEST_LEN]));
                    b[gap.start as usize..gap.end as usize].copy_from_slice(data);
                    Ok(())
                }
                pushed => put(recvs, pushed, gap.start, data, ctx),
            }
        };
        if received.last().is_none_or(|r| r.end <= start) {
            return fill(start..end);
        }
        for gap in received.gaps(start..end) {
            fill(gap)?;
        }
        Ok(())
    }

    /// Takes note of a segment that was placed.
    fn note(&mut self, index: usize, seg: &Incoming, rsn: Option<u64>, range: Range<u64>, to: Destination) {
        if let Some(rsn) = rsn
            && let Some(r) = self.recvs.get_mut((rsn - self.recv_base) as usize)
        {
            r.claimed = Some(self.floor + index as u64);
        }
        let m = &mut self.msgs[index];
        if m.op.is_none() {
            m.op = Some(seg.op);
            m.key = seg.key;
            m.start = (seg.op != SegmentOp::Write).then_some(0);
        }
        if let Destination::Region(mr) = to {
            m.mr = Some(mr);
        }
        m.rsn = m.rsn.or(rsn);
        if seg.first {
            m.start = Some(range.start);
        }
        if let Some(tail) = seg.last {
            m.end = Some(range.end);
            m.tail = tail;
        }
        let before = m.received.ranges();
        m.bytes += m.received.insert(range);
        self.holes = self.holes + m.received.ranges() - before;
        if m.is_complete() {
            m.done = true;
            self.holes -= m.received.ranges();
            m.received = RangeSet::new();
        }
    }

    /// What follows from message `floor + index` being complete, if it is.
    fn finish(&mut self, tx: &mut Tx, pd: PdId, index: usize, ctx: &mut Ctx<'_>) -> Result<(), Violation> {
        let m = &self.msgs[index];
        if !m.done {
            return Ok(());
        }
        if m.op == Some(SegmentOp::ReadResponse) {
            tx.on_read_done(m.key, ctx);
        }
        while self.msgs.front().is_some_and(|m| m.done) {
            let Some(m) = self.msgs.pop_front() else { break };
            self.floor += 1;
            match (m.op, m.rsn) {
                (Some(op @ (SegmentOp::Send | SegmentOp::Write)), Some(rsn)) => {
                    self.deliver(op, rsn, (m.bytes, m.tail), ctx)?
                }
                (Some(SegmentOp::ReadRequest), _) => {
                    self.check_access(Access::REMOTE_READ)?;
                    accept_read(tx, pd, &m, ctx)?;
                }
                (Some(SegmentOp::AtomicRequest), _) => {
                    self.check_access(Access::REMOTE_ATOMIC)?;
                    accept_atomic(tx, pd, &m, ctx)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Completes the receive `rsn` with a message of `op` and so many bytes. All earlier messages are complete.
    fn deliver(
        &mut self,
        op: SegmentOp,
        rsn: u64,
        (bytes, tail): (u64, Tail),
        ctx: &mut Ctx<'_>,
    ) -> Result<(), Violation> {
        if rsn != self.recv_base {
            return Err(Violation::ReceiveOrder);
        }
        if let Some(rkey) = tail.imm.filter(|_| tail.invalidates) {
            ctx.regions.invalidate(rkey, ctx.qp).map_err(violation_of)?;
        }
        let r = self.recvs.pop_front().ok_or(Violation::CreditExceeded)?;
        self.recv_base += 1;
        let opcode = if op == SegmentOp::Send { Opcode::Recv } else { Opcode::RecvWriteImm };
        complete_receive(&r, Status::Success, opcode, bytes, tail, ctx);
        Ok(())
    }

    /// Completes every posted receive with an error. Those of a shared queue that no message has touched are
    /// returned instead.
    pub(crate) fn flush(&mut self, shared: bool, ctx: &mut Ctx<'_>) -> Vec<RecvWqe> {
        let mut unused = Vec::new();
        self.recv_base += self.recvs.len() as u64;
        for r in self.recvs.drain(..) {
            if shared && r.claimed.is_none() && r.failed.is_none() {
                ctx.cqs.unreserve(ctx.recv_cq);
                unused.push(r);
                continue;
            }
            let status = r.failed.unwrap_or(Status::FlushError);
            complete_receive(&r, status, Opcode::Recv, 0, Tail::default(), ctx);
        }
        self.msgs = VecDeque::new();
        self.holes = 0;
        unused
    }

    /// Gives everything back without completions; returns the receives of a shared queue that are unused.
    pub(crate) fn discard(&mut self, shared: bool, ctx: &mut Ctx<'_>) -> Vec<RecvWqe> {
        let mut unused = Vec::new();
        self.recv_base += self.recvs.len() as u64;
        for r in self.recvs.drain(..) {
            ctx.cqs.unreserve(ctx.recv_cq);
            if shared && r.claimed.is_none() && r.failed.is_none() {
                unused.push(r);
            } else {
                r.release(ctx.regions);
            }
        }
        unused
    }
}

/// Copies what a Write or Send brings; answers to reads and their requests go elsewhere.
fn put(
    recvs: &VecDeque<RecvWqe>,
    to: Destination,
    at: u64,
    data: &[u8],
    ctx: &mut Ctx<'_>,
) -> Result<(), Violation> {
    match to {
        Destination::Region(mr) | Destination::Window(mr) => ctx.regions.write(mr, at, data),
        Destination::Receive(i) => recvs[i].local.write(ctx.regions, at, data),
        Destination::Nowhere | Destination::Request | Destination::Sink(_) => Ok(()),
    }
    .map_err(|_| Violation::LocalFault)
}

/// The region that a peer names by its key, or by that of a window.
fn target(
    ctx: &Ctx<'_>,
    rkey: u32,
    pd: PdId,
    need: Access,
    (at, len): (u64, u64),
) -> Result<MrId, AccessError> {
    match ctx.regions.remote(rkey, pd, need, at, len) {
        Err(AccessError::Key) => ctx.regions.remote_window(rkey, (pd, ctx.qp), need, at, len),
        found => found,
    }
}

/// Checks a peer's read and queues its answer. In message order, so that it sees all earlier writes.
fn accept_read(tx: &mut Tx, pd: PdId, m: &InMsg, ctx: &mut Ctx<'_>) -> Result<(), Violation> {
    let bytes = m.request.as_deref().and_then(|b| b.first_chunk());
    let bytes = bytes.ok_or(Violation::Malformed("a read request without bytes"))?;
    let ReadRequest { rkey, offset, len, sink } = ReadRequest::decode(bytes);
    if len > MAX_RDMA_LEN {
        return Err(Violation::TooLong);
    }
    // As for writes: no bytes, no check.
    let mr = match len {
        0 => None,
        _ => Some(target(ctx, rkey, pd, Access::REMOTE_READ, (offset, len)).map_err(violation_of)?),
    };
    if !tx.queue_response(Response { mr, offset, len, sink, atomic: None }) {
        return Err(Violation::TooManyReads);
    }
    mr.iter().for_each(|mr| ctx.regions.hold(*mr));
    Ok(())
}

/// Checks a peer's atomic operation, does it and queues its answer, which is kept until it is acknowledged. In message
/// order and once, since a message is finished once.
fn accept_atomic(tx: &mut Tx, pd: PdId, m: &InMsg, ctx: &mut Ctx<'_>) -> Result<(), Violation> {
    let bytes = m.request.as_deref().ok_or(Violation::Malformed("an atomic request without bytes"))?;
    let AtomicRequest { rkey, offset, sink, op } = AtomicRequest::decode(bytes)?;
    // InfiniBand, 9.4.5: the target is aligned to its size.
    if !offset.is_multiple_of(ATOMIC_LEN) {
        return Err(Violation::Malformed("the target of an atomic operation is not a multiple of 8"));
    }
    let mr = target(ctx, rkey, pd, Access::REMOTE_ATOMIC, (offset, ATOMIC_LEN)).map_err(violation_of)?;
    if !tx.takes_response() {
        return Err(Violation::TooManyReads);
    }
    let old = ctx.regions.change(mr, offset, op).map_err(|_| Violation::LocalFault)?;
    tx.queue_response(Response { mr: None, offset: 0, len: ATOMIC_LEN, sink, atomic: Some(old) });
    Ok(())
}

/// Puts the completion of a receive in the place that was reserved for it.
pub(crate) fn complete_receive(
    r: &RecvWqe,
    status: Status,
    opcode: Opcode,
    byte_len: u64,
    tail: Tail,
    ctx: &mut Ctx<'_>,
) {
    r.release(ctx.regions);
    let Tail { imm, invalidates, solicited } = tail;
    let (imm, invalidated) = if invalidates { (None, imm) } else { (imm, None) };
    let wc =
        WorkCompletion { wr_id: r.wr_id, qp: ctx.qp, status, opcode, byte_len, imm, solicited, invalidated };
    ctx.cqs.push(ctx.recv_cq, wc);
}
