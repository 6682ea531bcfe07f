//! The adapter's interface for a transport over an ordered byte stream (iWARP), for queue pairs of [`Kind::Ordered`].
//!
//! Bytes arrive in order and once, so messages need no numbers here and no record of what is missing. The transport
//! asks where bytes belong ([`MrRange`]), puts them there itself (by [`Adapter::write_mr`], or by a system call at
//! [`Adapter::address`]), and says when a message is complete. So the payload is copied once, by the kernel. Places
//! name regions by handle: one that was deregistered in between is not reached.

use crate::adapter::{Adapter, NO_QP, error_of};
use crate::cq::Cqs;
use crate::error::{Error, GatherError};
use crate::qp::{Kind, Qp};
use crate::region::{Access, AccessError, Regions, WindowRange};
use crate::slab::{MrId, MwId, PdId, QpId};
use crate::tx::{ATOMIC_LEN, Gate, Response};
use crate::work::{AtomicOp, MrRange, Opcode, Status, WorkCompletion};
use std::collections::VecDeque;

/// Why a peer's operation is refused. Each is a case of its own in iWARP's Terminate messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RemoteError {
    /// No region or window has the key.
    #[error("unknown memory key")]
    Key,
    /// The key is for another protection domain or queue pair.
    #[error("the memory key is not for this queue pair")]
    Association,
    /// The region or window does not allow it.
    #[error("the region does not allow this access")]
    Rights,
    /// Outside of the region or window.
    #[error("access outside of the bounds of the region")]
    Bounds,
    /// Offset and length together exceed 64 bits.
    #[error("offset and length wrap around")]
    Wrap,
    /// No receive is posted.
    #[error("no receive is posted for the message")]
    NoReceive,
    /// The message is longer than the receive.
    #[error("the message is longer than its receive")]
    TooLong,
    /// More reads and atomic operations than agreed.
    #[error("more reads outstanding than agreed")]
    TooManyReads,
    /// No such read or atomic operation is outstanding.
    #[error("an answer to nothing that was asked")]
    NothingAsked,
    /// The target of an atomic operation is not a multiple of eight.
    #[error("the target of an atomic operation is not aligned")]
    Alignment,
    /// The key cannot be made void by the peer.
    #[error("the memory key cannot be invalidated")]
    CannotInvalidate,
    /// Not the peer's fault: local memory failed.
    #[error("local memory failed; check the file or device behind it")]
    LocalFault,
    /// The queue pair is gone, in error, or of another kind.
    #[error("the queue pair takes nothing any more")]
    NoQueuePair,
}

impl From<AccessError> for RemoteError {
    fn from(d: AccessError) -> RemoteError {
        match d {
            AccessError::Key => RemoteError::Key,
            AccessError::Rights => RemoteError::Rights,
            AccessError::Bounds => RemoteError::Bounds,
            AccessError::Association => RemoteError::Association,
            AccessError::Wrap => RemoteError::Wrap,
        }
    }
}

/// The message that a piece to be sent belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outgoing {
    /// A write; with `imm`, immediate data follows it.
    Write {
        /// The peer's key.
        rkey: u32,
        /// First byte of the message in the peer's region.
        offset: u64,
        /// Immediate data.
        imm: Option<u32>,
        /// Whether that is marked as solicited.
        solicited: bool,
        /// Bytes of the whole message.
        len: u64,
    },
    /// A send.
    Send {
        /// Whether it is marked as solicited.
        solicited: bool,
        /// The peer's key to be made void.
        invalidate: Option<u32>,
    },
    /// The request of a read.
    Read {
        /// The peer's key.
        rkey: u32,
        /// First byte in the peer's region.
        offset: u64,
        /// Bytes to read.
        len: u64,
        /// Key under which the answer comes, from offset 0 on.
        sink: u32,
    },
    /// The request of an atomic operation; see [`Adapter::atomic_op`].
    Atomic {
        /// The peer's key.
        rkey: u32,
        /// First byte in the peer's region.
        offset: u64,
        /// Number that comes back in the answer.
        id: u32,
    },
    /// The answer to a read.
    ReadResponse,
    /// The answer to an atomic operation.
    AtomicResponse {
        /// Number of the request.
        id: u32,
        /// What was there before.
        value: u64,
    },
}

/// The most payload bytes of a piece, by the kind of its message; never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MaxPayload {
    /// A write.
    pub write: u32,
    /// The answer to a read.
    pub answer: u32,
    /// What goes to a queue.
    pub untagged: u32,
}

/// A piece of a message to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The message.
    pub what: Outgoing,
    /// Bytes of the message before this piece.
    pub offset: u64,
    /// Bytes of payload. Requests, and answers to atomic operations, have none: what they say is in `what`.
    pub len: u32,
    /// Whether the message ends with it.
    pub last: bool,
    /// Whether another one can follow it at once.
    pub more: bool,
    pub(crate) payload: Payload,
}

/// Where the payload of a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Payload {
    None,
    /// From this byte of the region on.
    Region(MrId, u64),
    /// What the work request of this number names.
    Wqe(u64),
}

/// What a message that consumes a receive brings beside its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReceivedMessage {
    /// Length in bytes.
    pub len: u64,
    /// Immediate data: the message has nothing else.
    pub imm: Option<u32>,
    /// Whether the peer asks for attention.
    pub solicited: bool,
    /// Key of ours to be made void.
    pub invalidate: Option<u32>,
}

/// Data that is likely to arrive next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExpectedData {
    /// A peer's write.
    Write {
        /// Our key.
        rkey: u32,
    },
    /// The answer to our read.
    Sink {
        /// The read.
        key: u32,
    },
    /// A send, for the next receive.
    Receive,
}

/// A read that a peer asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerRead {
    /// Our key.
    pub rkey: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes to read.
    pub len: u32,
    /// The peer's key for the answer.
    pub sink: u32,
}

/// An atomic operation that a peer asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerAtomic {
    /// Our key.
    pub rkey: u32,
    /// First byte.
    pub offset: u64,
    /// What to do.
    pub op: AtomicOp,
    /// The peer's number for the answer.
    pub id: u32,
}

impl Adapter {
    /// The next piece to send, which has so much room. When the stream has taken the last piece of a message, say so by
    /// [`on_taken`](Adapter::on_taken).
    #[inline]
    pub fn next_ordered(&mut self, id: QpId, max_payload: MaxPayload) -> Option<Piece> {
        let qp = self.qps.get_mut(id).filter(|q| q.init.kind == Kind::Ordered)?;
        let gate = qp.gate();
        match qp.tx.next_whole(max_payload, gate) {
            Some(whole) => {
                qp.on_piece_sent(&whole, id, &mut self.activated);
                Some(whole)
            }
            None => self.next_of_any(id, max_payload, gate),
        }
    }
    #[inline(never)]
    fn next_of_any(&mut self, id: QpId, max_payload: MaxPayload, gate: Gate) -> Option<Piece> {
        let qp = self.qps.get_mut(id)?;
        let (halves, mut ctx) = qp.split(id, &mut self.regions, &mut self.cqs, &mut self.rng);
        let piece = halves.tx.next_ordered(max_payload, gate, &mut ctx);
        match &piece {
            Some(p) => qp.on_piece_sent(p, id, &mut self.activated),
            None => qp.wake(id, &mut self.activated),
        }
        self.refill_from_srqs();
        piece
    }
    /// As [`next_ordered`](Adapter::next_ordered), without its short way.
    #[cfg(test)]
    pub(crate) fn next_general(&mut self, id: QpId, max_payload: MaxPayload) -> Option<Piece> {
        let gate = self.qps.get(id)?.gate();
        self.next_of_any(id, max_payload, gate)
    }
    /// The stream has taken so many messages whole, in the order in which their last pieces were given out.
    pub fn on_taken(&mut self, id: QpId, messages: usize) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        let (halves, mut ctx) = qp.split(id, &mut self.regions, &mut self.cqs, &mut self.rng);
        (0..messages).for_each(|_| halves.tx.on_taken(&mut ctx));
        qp.wake(id, &mut self.activated);
        self.refill_from_srqs();
    }
    /// Names the payload of the piece that was given out last. False (and nothing of use in `out`) when it is not in registered
    /// memory: then [`append_piece`](Adapter::append_piece) copies it.
    pub fn piece_places(&self, id: QpId, p: &Piece, out: &mut Vec<MrRange>) -> bool {
        self.qps.get(id).is_some_and(|q| q.tx.piece_places(p, out))
    }
    /// Appends the payload of the piece that was given out last to `out`.
    ///
    /// # Errors
    /// See [`GatherError`]; then nothing is appended. After [`GatherError::Fault`] the queue pair is in the error state.
    #[inline(always)]
    pub fn append_piece(&mut self, id: QpId, p: &Piece, out: &mut Vec<u8>) -> Result<(), GatherError> {
        let qp = self.qps.get(id).ok_or(GatherError::Stale)?;
        qp.tx.append(p, &self.regions, out).inspect_err(|e| {
            if *e == GatherError::Fault {
                let _ = self.set_error(id, Status::LocalProtection);
            }
        })
    }
    /// The operation of an outstanding atomic request.
    pub fn atomic_op(&self, qp: QpId, id: u32) -> Option<AtomicOp> {
        self.qps.get(qp)?.tx.atomic_op(id)
    }
    /// Limits reads and atomic operations outstanding to what was negotiated, ours and the peer's.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Invalid`] (more than the queue pair was created for).
    pub fn set_read_depths(&mut self, id: QpId, ours: usize, peers: usize) -> Result<(), Error> {
        let qp = self.qps.get_mut(id).ok_or(NO_QP)?;
        if ours.max(peers) > qp.init.max_rd_atomic {
            return Err(Error::Invalid("read depths must be at most max_rd_atomic"));
        }
        qp.tx.set_read_depths(ours, peers);
        qp.wake(id, &mut self.activated);
        Ok(())
    }

    /// Where `len` bytes of a peer's write belong; checks key, rights and bounds. Not to be asked for no bytes, whose
    /// key is not checked (RFC 5041, section 5.2).
    ///
    /// # Errors
    /// What the peer did wrong.
    pub fn write_places(
        &mut self,
        id: QpId,
        (rkey, at, len): (u32, u64, u64),
        out: &mut Vec<MrRange>,
    ) -> Result<(), RemoteError> {
        let pd = receiver(self.qps.get(id))?.pd;
        let (mr, offset) = self.regions.remote_or_window(rkey, (pd, id), Access::REMOTE_WRITE, at, len)?;
        out.push(MrRange { mr, offset, len });
        self.count_in(id, 1, len);
        Ok(())
    }
    /// Whether a peer's write of `len` bytes is allowed, as [`write_places`](Adapter::write_places) checks it: a key may have
    /// become void while they arrive.
    ///
    /// # Errors
    /// What forbids it.
    pub fn may_write(&self, id: QpId, (rkey, at, len): (u32, u64, u64)) -> Result<(), RemoteError> {
        let pd = receiver(self.qps.get(id))?.pd;
        self.regions.remote_or_window(rkey, (pd, id), Access::REMOTE_WRITE, at, len)?;
        Ok(())
    }
    /// Where a peer's writes from byte `at` on belong, as [`write_places`](Adapter::write_places) checks each, and how far that reaches:
    /// for several that are all here. What of it they fill is [counted](Adapter::count_in) by whoever copies it there.
    pub fn write_reach(&self, id: QpId, rkey: u32, at: u64) -> Option<MrRange> {
        let pd = receiver(self.qps.get(id)).ok()?.pd;
        let (mr, offset, len) = self.regions.writable_extent(rkey, (pd, id), Access::REMOTE_WRITE, at)?;
        Some(MrRange { mr, offset, len })
    }
    /// Where `len` bytes from byte `at` on will belong if they arrive, as [`write_places`](Adapter::write_places),
    /// [`sink_places`](Adapter::sink_places) and [`receive_places`](Adapter::receive_places) will say when they have. False,
    /// and nothing of use in `out`: nowhere.
    pub fn expected_places(
        &self,
        id: QpId,
        what: ExpectedData,
        (at, len): (u64, u64),
        out: &mut Vec<MrRange>,
    ) -> bool {
        let Ok(qp) = receiver(self.qps.get(id)) else { return false };
        match what {
            ExpectedData::Write { rkey } => {
                let rights = Access::REMOTE_WRITE;
                let found = self.regions.remote_or_window(rkey, (qp.pd, id), rights, at, len);
                found.is_ok_and(|(mr, offset)| {
                    out.push(MrRange { mr, offset, len });
                    true
                })
            }
            ExpectedData::Sink { key } => qp.tx.sink_places(key, at, len, out).is_some(),
            ExpectedData::Receive => qp.rx.expected_places(at, len, out),
        }
    }
    /// Bytes that the next receive has room for; `None`: none is posted.
    pub fn receive_room(&self, id: QpId) -> Option<u64> {
        self.qps.get(id)?.rx.next_room()
    }
    /// The same, if the application posted that receive after the last message was complete, to this very queue pair: then
    /// no earlier message that it may still look at lies in the same memory.
    pub fn fresh_receive_room(&self, id: QpId) -> Option<u64> {
        self.qps.get(id)?.rx.fresh_room()
    }
    /// Whether a receive is posted for the next message that consumes one.
    pub fn has_receive(&self, id: QpId) -> bool {
        self.qps.get(id).is_some_and(|q| q.rx.posted() > 0)
    }
    /// Where `len` bytes from byte `at` on of the send that is arriving belong: in the next receive.
    ///
    /// # Errors
    /// [`RemoteError::NoReceive`], [`RemoteError::TooLong`], [`RemoteError::NoQueuePair`].
    pub fn receive_places(
        &mut self,
        id: QpId,
        at: u64,
        len: u64,
        out: &mut Vec<MrRange>,
    ) -> Result<(), RemoteError> {
        let qp = receiver_mut(self.qps.get_mut(id))?;
        if !qp.rx.claim_next(at, len)?.local.places(at, len, out) {
            return Err(RemoteError::TooLong);
        }
        self.count_in(id, 1, len);
        Ok(())
    }
    /// A whole message that consumes a receive: copies its bytes there, then as [`deliver`](Adapter::deliver).
    ///
    /// # Errors
    /// [`RemoteError::TooLong`], [`RemoteError::LocalFault`], and those of [`deliver`](Adapter::deliver).
    #[inline]
    pub fn deliver_bytes(&mut self, id: QpId, bytes: &[u8], a: ReceivedMessage) -> Result<(), RemoteError> {
        let qp = receiver_mut(self.qps.get_mut(id))?;
        let len = bytes.len() as u64;
        let local = &qp.rx.claim_next(0, len)?.local;
        local.write(&mut self.regions, 0, bytes).map_err(|_| RemoteError::LocalFault)?;
        (qp.stats.segments_in, qp.stats.bytes_in) = (qp.stats.segments_in + 1, qp.stats.bytes_in + len);
        consume(qp, id, a, &mut self.regions, &mut self.cqs)?;
        self.consumed(id);
        Ok(())
    }
    /// A message that consumes a receive is complete: its bytes are in place.
    ///
    /// # Errors
    /// Of the key to be made void: [`RemoteError::Key`], [`RemoteError::Association`] (a window of another queue pair),
    /// [`RemoteError::CannotInvalidate`] (a region's). [`RemoteError::NoReceive`], [`RemoteError::NoQueuePair`]. Nothing completed.
    pub fn deliver(&mut self, id: QpId, a: ReceivedMessage) -> Result<(), RemoteError> {
        let qp = receiver_mut(self.qps.get_mut(id))?;
        consume(qp, id, a, &mut self.regions, &mut self.cqs)?;
        self.consumed(id);
        Ok(())
    }
    /// A queue pair has used one of its receives.
    #[inline(always)]
    fn consumed(&mut self, id: QpId) {
        if let Some(srq) = self.qps.get(id).and_then(|qp| qp.init.srq) {
            self.srq_consumed(srq, id, 1);
        }
        self.refill_from_srqs();
    }
    /// Bytes that the read `sink` asked for.
    pub fn read_len(&self, id: QpId, sink: u32) -> Option<u64> {
        self.qps.get(id)?.tx.sink(sink).map(|(_, len)| len)
    }
    /// Where bytes of the answer to our read belong.
    ///
    /// # Errors
    /// [`RemoteError::NothingAsked`], or [`RemoteError::Bounds`] beyond what was asked for.
    pub fn sink_places(
        &mut self,
        id: QpId,
        (sink, at, len): (u32, u64, u64),
        out: &mut Vec<MrRange>,
    ) -> Result<(), RemoteError> {
        let qp = receiver(self.qps.get(id))?;
        qp.tx.sink(sink).ok_or(RemoteError::NothingAsked)?;
        qp.tx.sink_places(sink, at, len, out).ok_or(RemoteError::Bounds)?;
        self.count_in(id, 1, len);
        Ok(())
    }
    /// The answer to our read is in place.
    pub fn complete_read(&mut self, id: QpId, sink: u32) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        let (halves, mut ctx) = qp.split(id, &mut self.regions, &mut self.cqs, &mut self.rng);
        halves.tx.on_read_done(sink, &mut ctx);
        qp.wake(id, &mut self.activated);
        self.refill_from_srqs();
    }
    /// The answer to our atomic operation came: `value` was there before.
    ///
    /// # Errors
    /// [`RemoteError::NothingAsked`], [`RemoteError::LocalFault`].
    pub fn complete_atomic(&mut self, id: QpId, number: u32, value: u64) -> Result<(), RemoteError> {
        let qp = receiver(self.qps.get(id))?;
        let (wqe, _) = qp.tx.sink(number).ok_or(RemoteError::NothingAsked)?;
        let filled = qp.tx.fill_sink(wqe, 0, &value.to_be_bytes(), &mut self.regions);
        filled.map_err(|_| RemoteError::LocalFault)?;
        self.complete_read(id, number);
        Ok(())
    }
    /// Checks a peer's read and queues its answer.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub fn accept_read(&mut self, id: QpId, r: PeerRead) -> Result<(), RemoteError> {
        let pd = receiver(self.qps.get(id))?.pd;
        let len = u64::from(r.len);
        // No bytes, no check (RFC 5040, section 5.2.1).
        let place = match len {
            0 => None,
            _ => Some(self.remote(id, pd, Access::REMOTE_READ, (r.rkey, r.offset, len))?),
        };
        let (mr, offset) = place.map_or((None, 0), |(mr, at)| (Some(mr), at));
        self.answer(id, Response { mr, offset, len, sink: r.sink, atomic: None })
    }
    /// Checks a peer's atomic operation, does it and queues its answer. One adapter does one thing at a time, so
    /// operations through it are atomic among each other (RFC 7306, section 5.3), not with what else changes the memory.
    ///
    /// # Errors
    /// What the peer did wrong.
    pub fn accept_atomic(&mut self, id: QpId, a: PeerAtomic) -> Result<(), RemoteError> {
        let pd = receiver(self.qps.get(id))?.pd;
        let (mr, at) = self.remote(id, pd, Access::REMOTE_ATOMIC, (a.rkey, a.offset, ATOMIC_LEN))?;
        if at % ATOMIC_LEN != 0 {
            return Err(RemoteError::Alignment);
        }
        if !self.qps.get(id).is_some_and(|q| q.tx.takes_response()) {
            return Err(RemoteError::TooManyReads);
        }
        let value = self.regions.change(mr, at, a.op).map_err(|_| RemoteError::LocalFault)?;
        self.answer(id, Response { mr: None, offset: 0, len: ATOMIC_LEN, sink: a.id, atomic: Some(value) })
    }

    fn remote(
        &self,
        id: QpId,
        pd: PdId,
        need: Access,
        (rkey, at, len): (u32, u64, u64),
    ) -> Result<(crate::MrId, u64), RemoteError> {
        Ok(self.regions.remote_or_window(rkey, (pd, id), need, at, len)?)
    }
    fn answer(&mut self, id: QpId, r: Response) -> Result<(), RemoteError> {
        let qp = self.qps.get_mut(id).ok_or(RemoteError::NoQueuePair)?;
        if !qp.tx.queue_response(r) {
            return Err(RemoteError::TooManyReads);
        }
        r.mr.iter().for_each(|mr| self.regions.hold(*mr));
        qp.wake(id, &mut self.activated);
        Ok(())
    }
    /// Counts segments that have arrived with `bytes` bytes of payload. [`write_places`](Adapter::write_places) and the like do; where a place
    /// was [expected](Adapter::expected_places) and nothing else is to be asked, call it instead.
    pub fn count_in(&mut self, id: QpId, segments: u64, bytes: u64) {
        if let Some(q) = self.qps.get_mut(id) {
            q.stats.segments_in += segments;
            q.stats.bytes_in += bytes;
        }
    }

    /// Notes that all but the last `queued` bytes that were sent have reached the peer. Without effect where more is
    /// known already.
    pub fn count_delivered(&mut self, id: QpId, queued: u64) {
        if let Some(q) = self.qps.get_mut(id) {
            q.stats.bytes_delivered = q.stats.bytes_delivered.max(q.stats.bytes_out.saturating_sub(queued));
        }
    }

    /// Calls `f` with the bytes of a range of a region, in one or more pieces in order.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] (also when the region is gone), [`Error::Fault`].
    pub fn fold_mr(&self, p: MrRange, f: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        self.regions.fold(p.mr, p.offset, p.len, f).map_err(error_of)
    }
    /// The address of a range, for a system call that reads or writes it. It holds until the adapter is used again; no
    /// Rust reference may be made of it.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] (also when the region is gone).
    pub fn address(&mut self, p: MrRange) -> Result<*mut u8, Error> {
        self.regions.address(p.mr, p.offset, p.len).map_err(error_of)
    }

    /// Creates a memory window, which shows nothing yet.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Limit`].
    pub fn alloc_mw(&mut self, pd: PdId) -> Result<MwId, Error> {
        self.alloc_mw_with_key(pd).map(|(mw, _)| mw)
    }
    /// As [`alloc_mw`](Adapter::alloc_mw), and gives a key, of which all but the lowest eight bits are those of the keys by which
    /// [`SendOp::Bind`](crate::SendOp::Bind) may bind it.
    ///
    /// # Errors
    /// As [`alloc_mw`](Adapter::alloc_mw).
    pub fn alloc_mw_with_key(&mut self, pd: PdId) -> Result<(MwId, u32), Error> {
        self.hold_pd(pd)?;
        self.regions.alloc_window(pd, &mut self.rng).inspect_err(|_| self.release_pd(pd))
    }
    /// Whether a window shows something of a region, which can then not be deregistered.
    pub fn is_shown(&self, mr: MrId) -> bool {
        self.regions.is_shown(mr)
    }
    /// Destroys a window; its key is void from now on.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn dealloc_mw(&mut self, mw: MwId) -> Result<(), Error> {
        let pd = self.regions.dealloc_window(mw)?;
        self.release_pd(pd);
        Ok(())
    }
    /// Shows a range of a region to the peer of one queue pair, until the key is made void: by binding again, by
    /// [`SendOp::LocalInvalidate`](crate::SendOp::LocalInvalidate), or by the peer's send with invalidate. Until then the
    /// region cannot be deregistered. Gives the new key.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unsupported`] (a queue pair that is not ordered), [`Error::Invalid`] (different
    /// protection domains), [`Error::Access`] (more than the region allows), [`Error::OutOfBounds`].
    pub fn bind_mw(&mut self, qp: QpId, mw: MwId, range: WindowRange) -> Result<u32, Error> {
        let q = self.qps.get(qp).ok_or(NO_QP)?;
        if q.init.kind != Kind::Ordered {
            return Err(Error::Unsupported("windows for queue pairs that are not ordered (iWARP)"));
        }
        self.regions.bind(mw, (q.pd, qp), range, &mut self.rng)
    }
}

impl Qp {
    /// A piece was given out.
    #[inline(always)]
    fn on_piece_sent(&mut self, p: &Piece, id: QpId, activated: &mut VecDeque<QpId>) {
        self.stats.segments_out += 1;
        self.stats.bytes_out += u64::from(p.len);
        self.wake_if(p.more, id, activated);
    }
}

/// Completes the next receive of a queue pair.
#[inline(always)]
fn consume(
    qp: &mut Qp,
    id: QpId,
    a: ReceivedMessage,
    regions: &mut Regions,
    cqs: &mut Cqs,
) -> Result<(), RemoteError> {
    if qp.rx.posted() == 0 {
        return Err(RemoteError::NoReceive);
    }
    if let Some(rkey) = a.invalidate {
        regions.invalidate(rkey, id).map_err(|d| match d {
            AccessError::Key | AccessError::Association => d.into(),
            _ => RemoteError::CannotInvalidate,
        })?;
    }
    let r = qp.rx.next_receive(0).ok_or(RemoteError::NoReceive)?;
    r.release(regions);
    let opcode = if a.imm.is_some() { Opcode::RecvWriteImm } else { Opcode::Recv };
    let wc = WorkCompletion {
        wr_id: r.wr_id,
        qp: id,
        status: Status::Success,
        opcode,
        byte_len: a.len,
        imm: a.imm,
        solicited: a.solicited,
        invalidated: a.invalidate,
    };
    cqs.push(qp.init.recv_cq, wc);
    Ok(())
}

/// The queue pair, if it takes something in.
fn receiver(qp: Option<&Qp>) -> Result<&Qp, RemoteError> {
    qp.filter(|q| accepts_messages(q)).ok_or(RemoteError::NoQueuePair)
}
fn receiver_mut(qp: Option<&mut Qp>) -> Result<&mut Qp, RemoteError> {
    qp.filter(|q| accepts_messages(q)).ok_or(RemoteError::NoQueuePair)
}
fn accepts_messages(qp: &Qp) -> bool {
    qp.init.kind == Kind::Ordered && qp.gate().run
}
