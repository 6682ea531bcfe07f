//! The sending half over an ordered byte stream: nothing is lost there, so only the order of what was sent is
//! remembered.

use super::{Ctx, Gate, Response, Tx, Wqe};
use crate::MAX_MESSAGES_AHEAD;
use crate::error::GatherError;
use crate::ordered::{MaxPayload, Outgoing, Payload, Piece};
use crate::region::{Regions, fresh_key};
use crate::slab::MrId;
use crate::work::{AtomicOp, MrRange, SendOp};
use std::collections::VecDeque;

/// The message of which there is more to give out.
#[derive(Clone, Copy)]
enum Current {
    Wqe(u64),
    Answer,
}

/// A message that was given out whole.
enum WholeMessage {
    Wqe(u64),
    Answer(Option<MrId>),
}

/// What an ordered transport was given. Empty for others.
#[derive(Default)]
pub(super) struct Stream {
    /// The message of which there is more to give out, and bytes of it that were.
    current: Option<(Current, u64)>,
    /// The answer that is given out.
    answer: Option<Response>,
    /// Messages given out whole that the stream has not taken whole, in order.
    given: VecDeque<WholeMessage>,
}

impl Stream {
    pub(super) fn has_current(&self) -> bool {
        self.current.is_some()
    }
    /// Messages that are not through.
    pub(super) fn unfinished(&self) -> usize {
        self.given.len() + usize::from(self.current.is_some())
    }
    /// Whether an answer is being given out.
    pub(super) fn is_answering(&self) -> bool {
        self.answer.is_some()
    }
    /// Forgets everything; gives the regions that answers hold.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = MrId> + use<> {
        let Stream { answer, given, .. } = core::mem::take(self);
        let held = |g| match g {
            WholeMessage::Answer(mr) => mr,
            WholeMessage::Wqe(_) => None,
        };
        given.into_iter().filter_map(held).chain(answer.and_then(|r| r.mr))
    }
}

impl Wqe {
    /// What is to be said of its message, where the payload is, and how many bytes that are. Requests have none: what
    /// they say is all there is.
    fn outgoing(&self, number: u64) -> Option<(Outgoing, Payload, u64)> {
        let (solicited, len) = (self.solicited, self.len);
        let what = match self.op {
            SendOp::Write { rkey, offset } => Outgoing::Write { rkey, offset, imm: None, solicited, len },
            SendOp::WriteImm { rkey, offset, imm } => {
                Outgoing::Write { rkey, offset, imm: Some(imm), solicited, len }
            }
            SendOp::Send | SendOp::SendImm { .. } => Outgoing::Send { solicited, invalidate: None },
            SendOp::SendInvalidate { rkey } => Outgoing::Send { solicited, invalidate: Some(rkey) },
            SendOp::Read { rkey, offset } => {
                return Some((Outgoing::Read { rkey, offset, len, sink: self.sink }, Payload::None, 0));
            }
            SendOp::Atomic { rkey, offset, .. } => {
                return Some((Outgoing::Atomic { rkey, offset, id: self.sink }, Payload::None, 0));
            }
            SendOp::LocalInvalidate { .. } | SendOp::Bind(_) => return None,
        };
        Some((what, Payload::Wqe(number), len))
    }
}

impl Tx {
    /// The next piece where that is a whole message of the send queue with nothing before it, as most are: a shorter way to what
    /// [`next_ordered`](Tx::next_ordered) would give. `None`: that is to be asked.
    #[inline]
    pub(crate) fn next_whole(&mut self, max_payload: MaxPayload, gate: Gate) -> Option<Piece> {
        let begins = gate.start && !self.stream.has_current() && self.responses.is_empty();
        if !begins || self.stream.given.len() as u64 >= MAX_MESSAGES_AHEAD {
            return None;
        }
        let number = self.next_wqe;
        let at = (number - self.wqe_base) as usize;
        let w = self.wqes.get(at).filter(|w| !w.fence)?;
        let room = match w.op {
            SendOp::Write { .. } | SendOp::WriteImm { .. } => max_payload.write,
            SendOp::Send => max_payload.untagged,
            _ => return None,
        };
        if w.len > room.into() {
            return None;
        }
        let (what, payload, len) = w.outgoing(number)?;
        self.next_wqe += 1;
        self.responses_turn = true;
        self.stream.given.push_back(WholeMessage::Wqe(number));
        let more = at + 1 < self.wqes.len() && self.has_segment(gate);
        // At most `room`, which is a u32.
        Some(Piece { what, offset: 0, len: len as u32, last: true, more, payload })
    }

    /// The next piece. The pieces of a message follow one another (RFC 5041, section 5.3).
    pub(crate) fn next_ordered(
        &mut self,
        max_payload: MaxPayload,
        gate: Gate,
        ctx: &mut Ctx<'_>,
    ) -> Option<Piece> {
        if !gate.run {
            return None;
        }
        let (current, offset) = match self.stream.current.take() {
            Some(current) => current,
            None => (self.next_message(gate, ctx)?, 0),
        };
        let (what, payload, len) = match current {
            Current::Wqe(number) => self.posted(number)?.outgoing(number)?,
            Current::Answer => self.outgoing_answer()?,
        };
        let room = match what {
            Outgoing::Write { .. } => max_payload.write,
            Outgoing::ReadResponse => max_payload.answer,
            _ => max_payload.untagged,
        };
        // At most `room`, which is a u32.
        let here = (len - offset).min(room.into()) as u32;
        let last = offset + u64::from(here) == len;
        if last {
            self.stream.given.push_back(match current {
                Current::Wqe(number) => WholeMessage::Wqe(number),
                Current::Answer => WholeMessage::Answer(self.stream.answer.take().and_then(|r| r.mr)),
            });
        } else {
            self.stream.current = Some((current, offset + u64::from(here)));
        }
        let more = self.has_segment(gate);
        Some(Piece { what, offset, len: here, last, more, payload })
    }

    /// The message that begins now. Answers and own work requests take turns.
    fn next_message(&mut self, gate: Gate, ctx: &mut Ctx<'_>) -> Option<Current> {
        while (self.stream.given.len() as u64) < MAX_MESSAGES_AHEAD {
            let own = gate.start && self.head_ready();
            if (self.responses_turn || !own)
                && let Some(r) = self.responses.pop_front()
            {
                self.responses_turn = false;
                self.stream.answer = Some(r);
                return Some(Current::Answer);
            }
            if !own {
                return None;
            }
            self.responses_turn = true;
            let number = self.next_wqe;
            self.next_wqe += 1;
            let w = self.wqes.get_mut((number - self.wqe_base) as usize)?;
            if let SendOp::LocalInvalidate { rkey } = w.op {
                // A key that is void already is none of the peer's any more: that was the wish.
                let _ = ctx.regions.invalidate(rkey, ctx.qp);
                w.done = true;
                self.pop_wqes(ctx);
                continue;
            }
            if w.is_answered() {
                w.sink = fresh_key(&self.sinks, ctx.rng);
                self.sinks.insert(w.sink, number);
                self.reads_out += 1;
            }
            return Some(Current::Wqe(number));
        }
        None
    }

    /// The same of the answer that is given out.
    fn outgoing_answer(&self) -> Option<(Outgoing, Payload, u64)> {
        let r = self.stream.answer.as_ref()?;
        Some(match (r.atomic, r.mr) {
            (Some(value), _) => (Outgoing::AtomicResponse { id: r.sink, value }, Payload::None, 0),
            (None, Some(mr)) => (Outgoing::ReadResponse, Payload::Region(mr, r.offset), r.len),
            (None, None) => (Outgoing::ReadResponse, Payload::None, r.len),
        })
    }

    /// What an outstanding atomic operation does.
    pub(crate) fn atomic_op(&self, id: u32) -> Option<AtomicOp> {
        match self.posted(*self.sinks.get(&id)?)?.op {
            SendOp::Atomic { op, .. } => Some(op),
            _ => None,
        }
    }

    /// Appends the payload of `p` to `out`, on which nothing is added when it cannot be had.
    #[inline(always)]
    pub(crate) fn append(&self, p: &Piece, regions: &Regions, out: &mut Vec<u8>) -> Result<(), GatherError> {
        let (at, len) = (out.len(), p.len as usize);
        let read = match p.payload {
            Payload::None if len == 0 => return Ok(()),
            Payload::None => return Err(GatherError::Mismatch),
            Payload::Region(mr, first) => {
                out.resize(at + len, 0);
                regions.read(mr, first + p.offset, &mut out[at..])
            }
            Payload::Wqe(number) => {
                let w = self.posted(number).ok_or(GatherError::Stale)?;
                w.local.append(regions, p.offset, len, out)
            }
        };
        read.map_err(|_| {
            out.truncate(at);
            GatherError::Fault
        })
    }

    /// Names the payload of `p` in registered memory. False when it is not there, or stale.
    pub(crate) fn piece_places(&self, p: &Piece, out: &mut Vec<MrRange>) -> bool {
        match p.payload {
            Payload::None => p.len == 0,
            Payload::Region(mr, first) => {
                out.push(MrRange { mr, offset: first + p.offset, len: p.len.into() });
                true
            }
            Payload::Wqe(number) => {
                self.posted(number).is_some_and(|w| w.local.places(p.offset, p.len.into(), out))
            }
        }
    }

    /// The stream has taken the oldest message that was given out whole: it carries that reliably, which completes it.
    pub(crate) fn on_taken(&mut self, ctx: &mut Ctx<'_>) {
        match self.stream.given.pop_front() {
            Some(WholeMessage::Wqe(number)) => {
                let w = self.wqe(number);
                if let Some(w) = w.filter(|w| !w.is_answered()) {
                    w.done = true;
                    self.pop_wqes(ctx);
                }
            }
            Some(WholeMessage::Answer(Some(mr))) => ctx.regions.release(mr),
            Some(WholeMessage::Answer(None)) | None => {}
        }
    }

    /// Limits the reads and atomic operations outstanding, ours and the peer's, to what was negotiated.
    pub(crate) fn set_read_depths(&mut self, ours: usize, peers: usize) {
        (self.max_rd_atomic, self.max_reads_in) = (ours, peers);
    }
    /// Names bytes of the destination of an outstanding read.
    pub(crate) fn sink_places(&self, key: u32, at: u64, len: u64, out: &mut Vec<MrRange>) -> Option<()> {
        let (number, total) = self.sink(key)?;
        let w = self.wqes.get((number - self.wqe_base) as usize)?;
        (at.checked_add(len)? <= total && w.local.places(at, len, out)).then_some(())
    }
}
