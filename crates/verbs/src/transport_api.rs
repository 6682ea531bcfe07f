//! The adapter's interface for transports. Methods that name a queue pair which no longer exists do nothing, since
//! packets and acknowledgements may come after its end.

use crate::adapter::{Adapter, NO_QP};
use crate::error::{Error, GatherError};
use crate::qp::QpState;
use crate::segment::{Incoming, Placed, Segment, SegmentRef, Violation};
use crate::slab::QpId;
use crate::tx::{MaxPayload, StridedBuffer};
use crate::unreliable;
use crate::work::Status;
use base::Prefetch;

impl Adapter {
    /// The next queue pair that has come to have segments, or of [`Kind::Ordered`](crate::Kind::Ordered) is in error. It is named once; from then on it stays with the
    /// caller until [`has_segment`](Adapter::has_segment) is false. May name one that has none any more.
    #[inline]
    pub fn activated(&mut self) -> Option<QpId> {
        while let Some(id) = self.activated.pop_front() {
            if let Some(qp) = self.qps.get_mut(id) {
                qp.in_activated = false;
                return Some(id);
            }
        }
        None
    }

    /// Whether [`next_segment`](Adapter::next_segment) has something. (When all of it is datagrams that are too long
    /// for the path, or work requests that send nothing, it still gives none.)
    pub fn has_segment(&self, id: QpId) -> bool {
        self.qps.get(id).is_some_and(|q| q.tx.has_segment(q.gate()))
    }

    /// Bytes that wait to be sent: those of the message being sent, and those of it and some that follow.
    pub fn waiting(&self, id: QpId) -> (u64, u64) {
        self.qps.get(id).map_or((0, 0), |q| q.tx.waiting())
    }

    /// What [`next_segment_in`](Adapter::next_segment_in) gives next in the same rooms. Nothing changes.
    pub fn peek(&self, id: QpId, max_payload: MaxPayload) -> Option<Segment> {
        self.qps.get(id).and_then(|q| q.tx.peek(max_payload, q.gate()))
    }

    /// The next segment to build, with at most `max_payload` bytes: lost ranges first, then new data in order. The
    /// caller must report its fate by [`on_acked`](Adapter::on_acked) or [`on_lost`](Adapter::on_lost).
    ///
    /// A datagram longer than `max_payload` cannot be sent and completes as lost.
    pub fn next_segment(&mut self, id: QpId, max_payload: usize) -> Option<Segment> {
        self.next_segment_in(id, MaxPayload::same(u32::try_from(max_payload).unwrap_or(u32::MAX)))
    }

    /// [`next_segment`](Adapter::next_segment), with as many bytes as its header leaves room for: packets of a train
    /// are equally long. Messages of a few segments are cut evenly.
    pub fn next_segment_in(&mut self, id: QpId, max_payload: MaxPayload) -> Option<Segment> {
        let qp = self.qps.get_mut(id)?;
        let gate = qp.gate();
        let (halves, mut ctx) = qp.split(id, &mut self.regions, &mut self.cqs, &mut self.rng);
        let seg = halves.tx.next_segment(max_payload, gate, &mut ctx);
        qp.wake(id, &mut self.activated);
        seg
    }

    /// Takes up to `most` more segments of the message of `seg`, which
    /// [`next_segment_in`](Adapter::next_segment_in) gave last: each is [`Segment::following`] the one before, none the
    /// message's last. Gives how many; none where something else is next.
    pub fn next_run(&mut self, id: QpId, seg: &Segment, most: u32) -> u32 {
        let Some(qp) = self.qps.get_mut(id) else { return 0 };
        let gate = qp.gate();
        let n = qp.tx.next_run(seg, most, gate);
        qp.stats.segments_out += u64::from(n);
        qp.stats.bytes_out += u64::from(n) * u64::from(seg.len);
        n
    }

    /// [`gather`](Adapter::gather) for `seg` and those behind it that [`next_run`](Adapter::next_run) gave: `to` has as many
    /// places.
    ///
    /// # Errors
    /// As [`gather`](Adapter::gather).
    pub fn gather_run(
        &mut self,
        id: QpId,
        seg: &Segment,
        to: &mut StridedBuffer<'_>,
    ) -> Result<(), GatherError> {
        let qp = self.qps.get(id).ok_or(GatherError::Stale)?;
        let done = qp.tx.gather_run(seg, &self.regions, to);
        if done == Err(GatherError::Fault) {
            let _ = self.set_error(id, Status::LocalProtection);
        }
        done
    }

    /// Copies the payload of `seg`, which [`next_segment`](Adapter::next_segment) gave, to `out`, which must be
    /// exactly as long.
    ///
    /// # Errors
    /// See [`GatherError`]. After [`GatherError::Fault`] the queue pair is in the error state.
    pub fn gather(&mut self, id: QpId, seg: &Segment, out: &mut [u8]) -> Result<(), GatherError> {
        let qp = self.qps.get(id).ok_or(GatherError::Stale)?;
        let done = qp.tx.gather(seg, &self.regions, out);
        if done == Err(GatherError::Fault) {
            let _ = self.set_error(id, Status::LocalProtection);
        }
        done
    }

    /// Where the payload lies that is likely to be gathered next, as far as it lies together: a hint.
    pub fn prefetch_hint(&self, id: QpId) -> Prefetch {
        self.qps.get(id).map_or_else(Prefetch::default, |q| q.tx.prefetch_hint(&self.regions))
    }

    /// The peer has the bytes of a segment, or of several that follow one another in a message. Also right after [`on_lost`](Adapter::on_lost), when the loss proves
    /// spurious; what nobody waits for any more is ignored.
    pub fn on_acked(&mut self, id: QpId, seg: SegmentRef) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        let (halves, mut ctx) = qp.split(id, &mut self.regions, &mut self.cqs, &mut self.rng);
        halves.tx.on_acked(seg, &mut ctx);
        qp.wake(id, &mut self.activated);
        self.refill_from_srqs();
    }

    /// A segment is lost: a reliable queue pair will send its bytes again, those the peer does not have.
    pub fn on_lost(&mut self, id: QpId, seg: SegmentRef) {
        let Some(qp) = self.qps.get_mut(id) else { return };
        let (halves, mut ctx) = qp.split(id, &mut self.regions, &mut self.cqs, &mut self.rng);
        halves.tx.on_lost(seg, &mut ctx);
        qp.wake(id, &mut self.activated);
        self.refill_from_srqs();
    }

    /// Processes a received segment: checks it, copies the new part of `payload` to its place, and completes what is
    /// complete.
    ///
    /// The caller must have discarded copies made by the network of packets that it took long ago (by their packet
    /// numbers): a copy delayed by more than 49,152 messages cannot be told from a new message here.
    ///
    /// # Errors
    /// What the peer did wrong. Nothing of a wrong segment is written; one that is right but completes a message
    /// behind which a wrong one waited (a read without the right, for instance) is in place. The caller ends the
    /// connection or puts the queue pair in error.
    pub fn place(&mut self, id: QpId, seg: &Incoming, payload: &[u8]) -> Result<Placed, Violation> {
        let qp = self.qps.get_mut(id).ok_or(Violation::NoQueuePair)?;
        if !qp.gate().run {
            qp.stats.refused_segments += 1;
            return Ok(Placed::Refused);
        }
        if qp.delivered.is_none()
            && let Some(placed) = qp.rx.place_next(qp.pd, seg, payload, &mut self.regions)
        {
            if placed.is_ok() {
                qp.stats.segments_in += 1;
                qp.stats.bytes_in += payload.len() as u64;
            }
            return placed;
        }
        let (pd, shared, consumed) = (qp.pd, qp.init.srq, qp.rx.consumed());
        let (halves, mut ctx) = qp.split(id, &mut self.regions, &mut self.cqs, &mut self.rng);
        let placed = match halves.delivered {
            None => halves.rx.place(halves.tx, pd, seg, payload, &mut ctx),
            Some(seen) => unreliable::place(halves.rx, seen, pd, seg, payload, &mut ctx),
        };
        let (stats, len) = (&mut qp.stats, payload.len() as u64);
        match placed {
            Ok(Placed::New) => {
                (stats.segments_in, stats.bytes_in) = (stats.segments_in + 1, stats.bytes_in + len)
            }
            Ok(Placed::Duplicate) => {
                stats.duplicate_segments += 1;
                stats.duplicate_bytes += len;
            }
            Ok(Placed::Refused) => stats.refused_segments += 1,
            Err(_) => {}
        }
        qp.wake(id, &mut self.activated);
        let consumed = qp.rx.consumed() - consumed;
        if consumed > 0 {
            self.note_credit(id);
            if let Some(srq) = shared {
                self.srq_consumed(srq, id, consumed as usize);
            }
        }
        self.refill_from_srqs();
        placed
    }

    /// Receives posted so far on this queue pair, cumulative: the peer may use receive numbers below it.
    pub fn recv_limit(&self, id: QpId) -> Option<u64> {
        self.qps.get(id).map(|q| q.rx.recv_limit())
    }

    /// The next queue pair whose peer is to hear of its [`recv_limit`](Adapter::recv_limit): it knows of
    /// at most three quarters of the receives that wait. So it hears of credit in steps and not for each receive, and
    /// never has none while there is some.
    #[inline]
    pub fn take_credit_changes(&mut self) -> Option<QpId> {
        while let Some(id) = self.credit_changes.pop_front() {
            if let Some(qp) = self.qps.get_mut(id) {
                qp.in_credit = false;
                qp.rx.on_credit_advertised();
                return Some(id);
            }
        }
        None
    }

    /// The peer has posted `limit` receives so far. A lower value than before is ignored.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn set_send_limit(&mut self, id: QpId, limit: u64) -> Result<(), Error> {
        let qp = self.qps.get_mut(id).ok_or(NO_QP)?;
        qp.tx.raise_send_limit(limit);
        qp.wake(id, &mut self.activated);
        Ok(())
    }

    pub(crate) fn note_credit(&mut self, id: QpId) {
        if let Some(qp) = self.qps.get_mut(id)
            && qp.state != QpState::Error
            && qp.rx.should_advertise_credit()
            && !core::mem::replace(&mut qp.in_credit, true)
        {
            self.credit_changes.push_back(id);
        }
    }

    /// What remains to be done once the borrows of an operation have ended: places that became free in completion
    /// queues let queue pairs take receives from their shared queues.
    #[inline]
    pub(crate) fn refill_from_srqs(&mut self) {
        while let Some(id) = self.cqs.unblocked.pop_front() {
            self.feed_starved(id);
        }
    }
}
