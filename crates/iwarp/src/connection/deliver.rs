//! Checks and executes received records by the rules of DDP (RFC 5041) and RDMAP (RFC 5040).

use super::receive::put;
use super::transmit::is_over;
use super::{Connection, State};
use crate::ddp::{self, Header, QUEUES, Target};
use crate::rdmap::messages::{self, AtomicRequest, READ_REQUEST, ReadRequest};
use crate::rdmap::terminate::{self, Cause, Quote};
use crate::rdmap::{self, Opcode};
use base::Time;
use verbs::ordered::{PeerAtomic, PeerRead, ReceivedMessage, RemoteError};
use verbs::{Adapter, QpId};

/// The code for a refused segment whose buffer the peer named (RFC 5041, section 7.2; DDP has none for rights).
pub(super) const fn tagged_cause(r: RemoteError) -> Cause {
    match r {
        RemoteError::Key => ddp::tagged::STAG,
        RemoteError::Association => ddp::tagged::ASSOCIATION,
        RemoteError::Bounds => ddp::tagged::BOUNDS,
        RemoteError::Wrap => ddp::tagged::WRAP,
        RemoteError::Rights => terminate::RIGHTS,
        _ => terminate::CATASTROPHIC,
    }
}

/// The code for a refused segment of a queue.
const fn untagged_cause(r: RemoteError) -> Cause {
    match r {
        RemoteError::NoReceive => ddp::untagged::NO_BUFFER,
        RemoteError::TooLong => ddp::untagged::TOO_LONG,
        // The key to be made void (RFC 5040, section 7.2, rules 4 and 5).
        RemoteError::Key => terminate::STAG,
        RemoteError::Association => terminate::ASSOCIATION,
        RemoteError::CannotInvalidate => terminate::CANNOT_INVALIDATE,
        _ => terminate::CATASTROPHIC,
    }
}

/// The code for a refused request (RFC 5040, section 4.8; RFC 7306, section 8.2).
const fn request_cause(r: RemoteError) -> Cause {
    match r {
        RemoteError::Key => terminate::STAG,
        RemoteError::Association => terminate::ASSOCIATION,
        RemoteError::Bounds => terminate::BOUNDS,
        RemoteError::Wrap => terminate::WRAP,
        RemoteError::Rights => terminate::RIGHTS,
        RemoteError::Alignment => terminate::STREAM,
        // The queue of requests has as many buffers as were agreed on (RFC 5040, section 5.2.2).
        RemoteError::TooManyReads => ddp::untagged::NO_BUFFER,
        _ => terminate::CATASTROPHIC,
    }
}

impl Connection {
    /// Acts on the contents of a record that was verified.
    pub(super) fn deliver(&mut self, a: &mut Adapter, ulpdu: &[u8], now: Time) {
        let done = self.act(a, ulpdu, now);
        self.rx.validated = true;
        if let Err(cause) = done {
            let cause = self.attribute_fault(a, cause);
            self.refuse(a, cause, ulpdu, now);
        }
    }

    /// Says to the peer what is wrong with a record.
    #[cold]
    fn refuse(&mut self, a: &mut Adapter, cause: Cause, ulpdu: &[u8], now: Time) {
        let head = ulpdu.first().map_or(0, |first| Header::len_of(*first));
        let (ddp, payload) = ulpdu.split_at(if ulpdu.len() < head { 0 } else { head });
        let is_read = ddp.get(1).is_some_and(|c| Opcode::parse(*c) == Ok(Opcode::ReadRequest));
        let request = if is_read && payload.len() == READ_REQUEST { payload } else { &[] };
        self.terminate(a, cause, Quote { len: ulpdu.len() as u16, ddp, request }, now);
    }

    /// What does not fit because our own queue pair is in error is not the peer's fault.
    fn attribute_fault(&self, a: &Adapter, cause: Cause) -> Cause {
        let ours = self.qp.is_none_or(|qp| is_over(a, qp));
        if ours { terminate::CATASTROPHIC } else { cause }
    }

    fn act(&mut self, a: &mut Adapter, ulpdu: &[u8], now: Time) -> Result<(), Cause> {
        if let Some((payload, arrival)) = self.whole_send(ulpdu) {
            let qp = self.qp.ok_or(terminate::CATASTROPHIC)?;
            self.rx.read_ahead.on_send(arrival.len);
            self.count_send();
            return a.deliver_bytes(qp, payload, arrival).map_err(untagged_cause);
        }
        self.act_by_steps(a, ulpdu, now)
    }

    /// Of everything but sends that are whole in their records.
    #[inline(never)]
    fn act_by_steps(&mut self, a: &mut Adapter, ulpdu: &[u8], now: Time) -> Result<(), Cause> {
        // RFC 5040, section 7.2: DDP's fields, the opcode and the version MUST be validated.
        let header = &Header::parse(ulpdu)?;
        let payload = &ulpdu[header.encoded_len()..];
        let op = operation(header)?;
        if self.skip_first_message(header, op, payload) {
            return Ok(());
        }
        if matches!(op, Opcode::Write | Opcode::ReadResponse | Opcode::Send { .. }) {
            self.begin_segment(a, header, op, payload.len())?;
            if !put(a, &self.rx.places, payload) {
                return Err(terminate::CATASTROPHIC);
            }
            return self.end_segment(a, header, op, payload.len());
        }
        self.check_message(header, op)?;
        let qp = self.qp.ok_or(terminate::CATASTROPHIC)?;
        match op {
            Opcode::Immediate { solicited } => self.on_immediate(a, qp, payload, solicited),
            Opcode::ReadRequest => self.on_read_request(a, qp, payload),
            Opcode::AtomicRequest => on_atomic_request(a, qp, payload),
            Opcode::AtomicResponse => self.on_atomic_response(a, qp, payload),
            _ => {
                let cause = terminate::parse(payload).ok_or(terminate::UNSPECIFIED)?;
                self.on_terminate(a, cause, now);
                Ok(())
            }
        }
    }

    /// The payload of a send that is whole in its record and the next of its queue, as most are, and what it brings. All fields are
    /// what they MUST be (RFC 5040, section 7.2) if the header's bytes are: whatever is otherwise, and what may be the peer-to-peer model's first message,
    /// goes by [`act_by_steps`](Connection::act_by_steps).
    #[inline]
    fn whole_send<'a>(&self, ulpdu: &'a [u8]) -> Option<(&'a [u8], ReceivedMessage)> {
        let (front, payload) = ulpdu.split_first_chunk::<{ ddp::UNTAGGED }>()?;
        let solicited = match *front {
            [ddp::WHOLE, rdmap::SEND, ..] => false,
            [ddp::WHOLE, rdmap::SEND_SOLICITED, ..] => true,
            _ => return None,
        };
        let msn = self.rx.msn[ddp::QN_SEND as usize];
        let next = Target::queued(front) == (ddp::QN_SEND, msn, 0);
        let arrival = ReceivedMessage { len: payload.len() as u64, imm: None, solicited, invalidate: None };
        (next && !payload.is_empty() && self.rx.sending.is_none()).then_some((payload, arrival))
    }

    /// The rest of a record whose payload went straight to its place.
    pub(super) fn finish_direct(&mut self, a: &mut Adapter, h: &Header, op: Opcode, len: usize, now: Time) {
        let done = self.end_segment(a, h, op, len);
        self.rx.validated = true;
        if let Err(cause) = done.map_err(|cause| self.attribute_fault(a, cause)) {
            let mut ddp = Vec::new();
            h.put(&mut ddp);
            let quote = Quote { len: (ddp.len() + len) as u16, ddp: &ddp, request: &[] };
            self.terminate(a, cause, quote, now);
        }
    }

    /// The first record of the peer-to-peer model, and our own's answer, are not the application's.
    fn skip_first_message(&mut self, h: &Header, op: Opcode, payload: &[u8]) -> bool {
        if !payload.is_empty() || !h.last {
            return false;
        }
        let plain = Opcode::Send { solicited: false, invalidate: false };
        if op == plain && !self.rx.validated && self.terms.expected.is_some_and(|r| r.send) {
            let first = matches!(h.target, Target::Untagged { msn: 1, mo: 0, .. });
            self.rx.msn[ddp::QN_SEND as usize] += u32::from(first);
            return first;
        }
        let answered = op == Opcode::ReadResponse && core::mem::take(&mut self.rx.expects_empty_answer);
        self.tx.nudged |= answered;
        if answered && self.state == State::Running {
            self.deadline = None;
        }
        answered
    }

    /// Finds where the payload of a segment belongs, and whether it may go there. Nothing else changes, so that a record
    /// whose CRC fails afterwards did nothing.
    pub(super) fn begin_segment(
        &mut self,
        a: &mut Adapter,
        h: &Header,
        op: Opcode,
        len: usize,
    ) -> Result<(), Cause> {
        let qp = self.qp.ok_or(terminate::CATASTROPHIC)?;
        let len = len as u64;
        let mut places = core::mem::take(&mut self.rx.places);
        places.clear();
        let found = match (op, h.target) {
            // The STag and offset of no bytes MUST NOT be checked (RFC 5041, section 5.2).
            (Opcode::Write, Target::Tagged { .. }) if len == 0 => Ok(()),
            (Opcode::Write, Target::Tagged { stag, to }) => {
                a.write_places(qp, (stag, to, len), &mut places).map_err(tagged_cause)
            }
            (Opcode::ReadResponse, Target::Tagged { stag, to }) => self
                .check_answer(a, qp, (stag, to, len), h.last)
                .and_then(|sink| a.sink_places(qp, (sink, to, len), &mut places).map_err(tagged_cause)),
            (Opcode::Send { .. }, Target::Untagged { mo, .. }) => self
                .check_send(h, op)
                .and_then(|()| a.receive_places(qp, u64::from(mo), len, &mut places).map_err(untagged_cause)),
            _ => Err(terminate::OPCODE),
        };
        self.rx.places = places;
        found
    }

    /// An answer MUST be that of the oldest read (RFC 5040, sections 5.2.2 and 5.5, rule 20), piece by piece in order, and
    /// as long as what was asked for.
    fn check_answer(
        &self,
        a: &Adapter,
        qp: QpId,
        (stag, to, len): (u32, u64, u64),
        last: bool,
    ) -> Result<u32, Cause> {
        let &sink = self.rx.reads.front().ok_or(terminate::OPCODE)?;
        let total = a.read_len(qp, sink).ok_or(terminate::OPCODE)?;
        if total == 0 && len == 0 && last {
            return Ok(sink);
        }
        if stag != sink {
            return Err(ddp::tagged::STAG);
        }
        let end = to.checked_add(len).ok_or(ddp::tagged::WRAP)?;
        if to != self.rx.read_at || end > total || last != (end == total) {
            return Err(ddp::tagged::BOUNDS);
        }
        Ok(sink)
    }

    /// Sends come one after the other, their segments in order.
    fn check_send(&self, h: &Header, op: Opcode) -> Result<(), Cause> {
        let Target::Untagged { msn, mo, .. } = h.target else { return Err(terminate::OPCODE) };
        if msn != self.rx.msn[ddp::QN_SEND as usize] {
            return Err(ddp::untagged::MSN);
        }
        let (begun, at) = self.rx.sending.unwrap_or((op, 0));
        if u64::from(mo) != at {
            return Err(ddp::untagged::MO);
        }
        if begun != op { Err(terminate::OPCODE) } else { Ok(()) }
    }

    /// The payload of a segment is in place, and its record was verified.
    fn end_segment(&mut self, a: &mut Adapter, h: &Header, op: Opcode, len: usize) -> Result<(), Cause> {
        let qp = self.qp.ok_or(terminate::CATASTROPHIC)?;
        if !h.last {
            self.rx.read_ahead.on_chunk(matches!(h.target, Target::Tagged { .. }), len);
        }
        match (op, h.target) {
            (Opcode::Write, Target::Tagged { stag, to }) => {
                match len {
                    0 if self.announces && stag != 0 => self.rx.read_ahead.on_announced(stag, to),
                    _ => self.rx.read_ahead.on_write(stag, to, len as u64),
                }
                Ok(())
            }
            (Opcode::ReadResponse, _) => {
                self.rx.read_at += len as u64;
                if h.last {
                    self.rx.read_at = 0;
                    if let Some(sink) = self.rx.reads.pop_front() {
                        a.complete_read(qp, sink);
                    }
                }
                Ok(())
            }
            (Opcode::Send { solicited, invalidate }, Target::Untagged { mo, invalidate: stag, .. }) => {
                let there = u64::from(mo) + len as u64;
                if !h.last {
                    self.rx.sending = Some((op, there));
                    return Ok(());
                }
                self.rx.sending = None;
                self.rx.read_ahead.on_send(there);
                let invalidate = invalidate.then_some(stag);
                self.arrived(a, qp, ReceivedMessage { len: there, imm: None, solicited, invalidate })
            }
            _ => Ok(()),
        }
    }

    fn arrived(&mut self, a: &mut Adapter, qp: QpId, arrival: ReceivedMessage) -> Result<(), Cause> {
        self.count_send();
        a.deliver(qp, arrival).map_err(untagged_cause)
    }

    /// A message of the queue of sends is complete.
    fn count_send(&mut self) {
        let next = &mut self.rx.msn[ddp::QN_SEND as usize];
        *next = next.wrapping_add(1);
    }

    /// A message that is whole in its record: the next of its queue, from its first byte on.
    fn check_message(&mut self, h: &Header, op: Opcode) -> Result<(), Cause> {
        let Target::Untagged { qn, msn, mo, .. } = h.target else { return Err(terminate::OPCODE) };
        let next = self.rx.msn.get_mut(qn as usize).ok_or(ddp::untagged::QN)?;
        if msn != *next {
            return Err(ddp::untagged::MSN);
        }
        if mo != 0 {
            return Err(ddp::untagged::MO);
        }
        if !h.last {
            // Its buffer has exactly the message's length, and there is more to come.
            return Err(terminate::UNSPECIFIED);
        }
        if matches!(op, Opcode::Immediate { .. }) {
            // In the midst of a send; it counts when it is delivered.
            return if self.rx.sending.is_some() { Err(terminate::OPCODE) } else { Ok(()) };
        }
        *next = next.wrapping_add(1);
        Ok(())
    }

    fn on_immediate(
        &mut self,
        a: &mut Adapter,
        qp: QpId,
        payload: &[u8],
        solicited: bool,
    ) -> Result<(), Cause> {
        // Exactly eight bytes MUST be checked for (RFC 7306, section 6.3). Verbs have 32 bits: the lower ones.
        let imm = (payload.len() == messages::IMMEDIATE).then(|| crate::u32_at(payload, 4));
        let imm = Some(imm.ok_or(terminate::UNSPECIFIED)?);
        self.arrived(a, qp, ReceivedMessage { len: 0, imm, solicited, invalidate: None })
    }

    fn on_read_request(&mut self, a: &mut Adapter, qp: QpId, payload: &[u8]) -> Result<(), Cause> {
        let r = ReadRequest::parse(payload).ok_or(wrong_length(payload, READ_REQUEST))?;
        let read = PeerRead { rkey: r.source_stag, offset: r.source_to, len: r.len, sink: r.sink_stag };
        a.accept_read(qp, read).map_err(request_cause)?;
        self.rx.answers.push_back((r.sink_stag, r.sink_to));
        Ok(())
    }

    fn on_atomic_response(&mut self, a: &mut Adapter, qp: QpId, payload: &[u8]) -> Result<(), Cause> {
        let wrong = wrong_length(payload, messages::ATOMIC_RESPONSE);
        let (id, value) = messages::parse_atomic_response(payload).ok_or(wrong)?;
        // Answers come in the order of the requests (RFC 7306, section 5.2.2).
        if self.rx.atomics.front() != Some(&id) {
            return Err(terminate::OPCODE);
        }
        self.rx.atomics.pop_front();
        a.complete_atomic(qp, id, value).map_err(|_| terminate::CATASTROPHIC)
    }
}

fn on_atomic_request(a: &mut Adapter, qp: QpId, payload: &[u8]) -> Result<(), Cause> {
    let r = AtomicRequest::parse(payload).ok_or(wrong_length(payload, messages::ATOMIC_REQUEST))?;
    // A code that is not supported is an error (RFC 7306, section 5.2.1, rule 4).
    let op = r.op.ok_or(terminate::OPCODE)?;
    a.accept_atomic(qp, PeerAtomic { rkey: r.stag, offset: r.to, op, id: r.id }).map_err(request_cause)
}

/// The code for a message of RDMAP that is not as long as it has to be.
const fn wrong_length(payload: &[u8], right: usize) -> Cause {
    if payload.len() > right { ddp::untagged::TOO_LONG } else { terminate::UNSPECIFIED }
}

/// The operation of a record, which has to be one for the buffer that its header names.
pub(super) fn operation(h: &Header) -> Result<Opcode, Cause> {
    let queue = match h.target {
        Target::Tagged { .. } => None,
        // RFC 5041, section 7.1: the queue number MUST be valid for the stream.
        Target::Untagged { qn, .. } if qn as usize >= QUEUES => return Err(ddp::untagged::QN),
        Target::Untagged { qn, .. } => Some(qn),
    };
    let op = Opcode::parse(h.control)?;
    if op.queue() == queue { Ok(op) } else { Err(terminate::OPCODE) }
}

#[cfg(test)]
mod tests {
    use super::super::tests::pair;
    use super::*;
    use crate::config::Config;
    use proptest::prelude::*;

    proptest! {
        /// What the short way takes is what the rules of DDP and RDMAP make of the record.
        #[test]
        fn whole_sends_are_recognised_by_their_first_bytes(
            flags in prop_oneof![Just(ddp::WHOLE), any::<u8>()],
            control in prop_oneof![Just(rdmap::SEND), Just(rdmap::SEND_SOLICITED), 0x40..0x50_u8, any::<u8>()],
            (qn, msn, mo) in (0..2_u32, prop_oneof![Just(7), 6..9_u32], prop_oneof![Just(0), 0..2_u32]),
            stag: u32,
            (len, cut, sends) in (0..3_usize, prop_oneof![3 => Just(64), 1 => 1..24_usize], prop::bool::weighted(0.2)),
        ) {
            let (mut end, _) = pair(Config::default(), Config::default());
            end.c.rx.msn[ddp::QN_SEND as usize] = 7;
            let begun = Opcode::Send { solicited: false, invalidate: false };
            end.c.rx.sending = sends.then_some((begun, 1));
            let mut ulpdu = vec![flags, control];
            [stag, qn, msn, mo].iter().for_each(|field| ulpdu.extend(field.to_be_bytes()));
            ulpdu.resize(ddp::UNTAGGED + len, 1);
            ulpdu.truncate(cut);
            let found = end.c.whole_send(&ulpdu);
            let reserved = flags & 0x3c != 0 || control & 0x30 != 0;
            let expected = Header::parse(&ulpdu).ok().and_then(|h| {
                let op = operation(&h).ok()?;
                let Opcode::Send { solicited, invalidate: false } = op else { return None };
                let payload = ulpdu.get(h.encoded_len()..).filter(|p| !p.is_empty())?;
                end.c.check_send(&h, op).ok().filter(|()| h.last && !sends && !reserved)?;
                Some((payload, ReceivedMessage { len: payload.len() as u64, imm: None, solicited, invalidate: None }))
            });
            prop_assert_eq!(found, expected);
        }
    }
}
