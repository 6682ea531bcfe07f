//! How messages are split into segments, and a preview of the next one.
//!
//! The packets of a train are equally long but for the last. So what follows the first has to be known before it is built,
//! and messages of a few packets are cut into pieces that are alike.

use super::{Gate, MaxPayload, Opcode, OutMsg, Response, Source, Tx, Wqe};
use crate::Kind;
use crate::region::Regions;
use crate::segment::Segment;
use base::Prefetch;

/// Messages of at most so many segments, a train's, are cut evenly. Longer ones have many trains, of which one ends short:
/// that is not worth a look at each segment.
const EVEN: u64 = 64;

impl OutMsg {
    /// Where the first lost range begins, and how much of it fits a segment.
    pub(super) fn next_lost(&self, max_payload: MaxPayload) -> (u64, u64) {
        let of =
            |r: core::ops::Range<u64>| (r.start, (r.end - r.start).min(u64::from(max_payload.of(self.op))));
        self.lost.first().map_or((0, 0), of)
    }

    /// Bytes of the next segment of what was not sent yet. Where messages are cut evenly, segments are equally long but that
    /// the last leaves room for its tail and lacks what the others are rounded up by, a byte each at most. Datagrams are one
    /// segment.
    pub(super) fn next_new(&self, max_payload: MaxPayload, datagrams: bool) -> u64 {
        let (room, rest) = (u64::from(max_payload.of(self.op)), self.len - self.sent);
        let tail =
            if self.tail.is_some_and(|t| t.imm.is_some()) { max_payload.tail_imm } else { max_payload.tail };
        let whole = self.len.saturating_add(tail.into());
        if !max_payload.even || datagrams || whole <= room || whole > room * EVEN {
            return rest.min(room);
        }
        rest.min(whole.div_ceil(whole.div_ceil(room)))
    }
}

impl Tx {
    /// The segment that `next_segment` gives next in the same rooms. Nothing changes.
    pub(crate) fn peek(&self, max_payload: MaxPayload, gate: Gate) -> Option<Segment> {
        if !gate.run || self.kind == Kind::Ordered {
            return None;
        }
        if self.lost_messages > 0 {
            return self.peek_lost(max_payload);
        }
        let passes = |w: &Wqe| w.is_local() || self.is_too_long(w, max_payload);
        if self.current_wr.is_none() && self.head().is_some_and(passes) {
            // What stands behind it would be next.
            return None;
        }
        // Answers and own work requests take turns, as in `next_msn`.
        let first = !self.responses_turn;
        self.peek_new(first, max_payload, gate).or_else(|| self.peek_new(!first, max_payload, gate))
    }

    /// Where the payload lies that is most likely sent next: the rest of the message that is being sent, or the next one.
    pub(crate) fn prefetch_hint(&self, regions: &Regions) -> Prefetch {
        let current = |msn: Option<u64>| self.flight_of(msn?).filter(|m| m.sent < m.len);
        let next = match current(self.current_wr).or_else(|| current(self.current_response)) {
            Some(m) => Some((m.source, m.sent)),
            None => self.responses.front().map(|r| (Source::Response(*r), 0)),
        };
        match next.unwrap_or((Source::Wqe(self.next_wqe), 0)) {
            (Source::Response(Response { mr: Some(mr), offset, len, .. }), sent) => {
                regions.prefetch_hint(mr, offset + sent, len - sent)
            }
            (Source::Response(_), _) => Prefetch::default(),
            (Source::Wqe(number), sent) => {
                let w = self.posted(number).filter(|w| !w.is_answered());
                w.map_or_else(Prefetch::default, |w| w.local.prefetch_hint(regions, sent))
            }
        }
    }

    fn peek_lost(&self, max_payload: MaxPayload) -> Option<Segment> {
        let lost = |msn: u64| self.flight_of(msn).filter(|m| m.is_lost);
        let (msn, m) = self.lost_queue.iter().find_map(|msn| Some((*msn, lost(*msn)?)))?;
        let (offset, len) = m.next_lost(max_payload);
        Some(m.segment(msn, offset, len, true))
    }

    /// Of an answer, or of a work request.
    fn peek_new(&self, answers: bool, max_payload: MaxPayload, gate: Gate) -> Option<Segment> {
        let datagrams = self.kind == Kind::Unreliable;
        let segment = |msn, m: &OutMsg| m.segment(msn, m.sent, m.next_new(max_payload, datagrams), false);
        if let Some(msn) = if answers { self.current_response } else { self.current_wr } {
            return self.flight_of(msn).map(|m| segment(msn, m));
        }
        if !self.window_open() {
            return None;
        }
        let msn = self.flight_base + self.flight.len() as u64;
        if answers {
            return self.responses.front().map(|r| segment(msn, &OutMsg::answer(*r)));
        }
        let w = self.head().filter(|_| gate.start && self.head_ready())?;
        self.message_of(self.next_wqe, w).map(|m| segment(msn, &m))
    }

    /// The first work request that was not started.
    fn head(&self) -> Option<&Wqe> {
        self.posted(self.next_wqe)
    }

    pub(super) fn posted(&self, number: u64) -> Option<&Wqe> {
        self.wqes.get(usize::try_from(number.checked_sub(self.wqe_base)?).ok()?)
    }

    /// Whether a work request is a datagram that does not fit the path, and so ends without a segment.
    fn is_too_long(&self, w: &Wqe, max_payload: MaxPayload) -> bool {
        self.kind == Kind::Unreliable && w.opcode() == Opcode::Send && w.len > u64::from(max_payload.untagged)
    }
}
