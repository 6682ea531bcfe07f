//! Builds records from work requests.

use super::Connection;
use super::batch::{Batch, Transmit};
use crate::ddp::{self, Header, QN_REQUEST, QN_SEND, QN_TERMINATE, Target};
use crate::mpa::startup::First;
use crate::mpa::{fpdu, markers};
use crate::rdmap::Opcode;
use crate::rdmap::messages::{self, AtomicRequest, ReadRequest};
use crate::rdmap::terminate::{self, Quote};
use base::Time;
use verbs::ordered::{MaxPayload, Outgoing, Piece};
use verbs::{Adapter, MrRange, QpId, QpState};

/// Bytes of a batch, beyond which no record is added. Each call of the system ends with a segment that is not full, and begins anew what
/// TCP does once a call, so a batch is the longer the longer a stream takes them whole, one after the other. With CRCs half of this carries
/// a twentieth less of messages of 1 MiB, and an eighth of it a quarter less; without them twice as much carries no more.
const MAX_BATCH: usize = 2 << 20;
/// The first batch, and each behind one that the stream did not take whole: what is said then does not wait behind much.
const BATCH: usize = 1 << 20;
/// The same where CRCs are computed: the peer takes the first records out while the next ones are computed. Of what is copied there is
/// never more, so that it stays in a processor's second cache.
const MAX_WARM: usize = 256 << 10;
/// From that to the longest batch.
const MOST_DOUBLED: u32 = (MAX_BATCH / MAX_WARM).ilog2();
/// Ranges of a batch, beyond which no record is added. A system call takes 1024.
const MAX_PIECES: usize = 512;
/// Shorter payload is copied beside its header: a range of its own would cost as much.
const COPY_BELOW: usize = 512;

/// The sending half.
pub(super) struct Transmitter {
    pub(super) batch: Batch,
    /// How often the batch's limit was doubled.
    doubled: u32,
    /// Nothing is sent before.
    pub(super) pause_until: Option<Time>,
    /// A Terminate message to be sent as the last record.
    pub(super) terminate: Option<Vec<u8>>,
    /// Position in the stream of records; 0 is where the first begins.
    position: u64,
    /// Bytes in the segment that the batch's end lies in.
    in_segment: usize,
    /// Number of the next message of each queue (RFC 5041, section 4.3: from 1 on).
    msn: [u32; ddp::QUEUES],
    /// The first message of the peer-to-peer model was sent.
    began: bool,
    /// What kept work requests back is over.
    pub(super) nudged: bool,
    /// For a record that takes markers.
    plain: Vec<u8>,
    places: Vec<MrRange>,
}

/// The contents of a record behind its header.
#[derive(Clone, Copy)]
enum Body<'a> {
    Bytes(&'a [u8]),
    Piece(QpId, &'a Piece),
}

impl Body<'_> {
    fn len(&self) -> usize {
        match self {
            Body::Bytes(b) => b.len(),
            Body::Piece(_, p) => p.len as usize,
        }
    }
}

/// Local memory failed.
struct Fault;

impl Transmitter {
    pub(super) fn new() -> Transmitter {
        Transmitter {
            batch: Batch::default(),
            doubled: 0,
            pause_until: None,
            terminate: None,
            position: 0,
            in_segment: 0,
            msn: [1; ddp::QUEUES],
            began: false,
            nudged: false,
            plain: Vec::new(),
            places: Vec::new(),
        }
    }
    fn take_msn(&mut self, qn: u32) -> u32 {
        let next = &mut self.msn[qn as usize];
        let msn = *next;
        *next = next.wrapping_add(1);
        msn
    }
}

impl Connection {
    /// What is to be sent next. Call again after [`on_sent`](Connection::on_sent) until there is nothing. One call holds
    /// many records.
    pub fn transmit(&mut self, a: &mut Adapter, now: Time) -> Option<Transmit<'_>> {
        if self.tx.batch.is_empty() {
            self.fill(a, now);
            self.settle(a);
        }
        (!self.tx.batch.is_empty()).then(|| self.tx.batch.view())
    }

    /// Bytes that were given out to be sent and that the stream has not taken.
    pub fn unsent(&self) -> usize {
        self.tx.batch.view().len
    }

    /// Whether there is something to send beside what the queue pair tells of ([`Adapter::activated`]), or it may go on now:
    /// then call [`transmit`](Connection::transmit).
    pub fn wants_to_send(&self) -> bool {
        let begins = self.state.runs() && !self.tx.began && self.may_send();
        // What is on its way to the stream goes on when that takes more.
        let free = self.tx.pause_until.is_none() && self.tx.batch.is_empty();
        free && (begins || self.tx.nudged || self.tx.terminate.is_some())
    }

    /// Whether [`transmit`](Connection::transmit) is likely to give something at once. The queue pair is looked at anew: of what was
    /// posted while the stream took nothing, and of its end, it told then, and does not tell again.
    pub fn has_more(&self, a: &Adapter) -> bool {
        let waits = |qp| a.has_segment(qp) || is_over(a, qp);
        !self.tx.batch.is_empty() || self.qp.is_some_and(waits)
    }

    /// The stream took `n` bytes of what [`transmit`](Connection::transmit) gave.
    pub fn on_sent(&mut self, a: &mut Adapter, n: usize) {
        // All of it, by one call.
        let whole = n >= self.tx.batch.len() && n >= self.most();
        self.tx.batch.on_sent(n);
        // The stream will carry it reliably: that completes it (RFC 5041, section 5.4).
        if let (Some(qp), n @ 1..) = (self.qp, self.tx.batch.taken()) {
            a.on_taken(qp, n);
        }
        if self.tx.batch.is_empty() {
            self.tx.batch.clear();
            self.tx.in_segment = 0;
        }
        self.tx.doubled = if whole { (self.tx.doubled + 1).min(MOST_DOUBLED) } else { 0 };
        self.settle(a);
    }

    #[inline]
    fn fill(&mut self, a: &mut Adapter, now: Time) {
        let Some(qp) = self.qp else { return };
        if self.tx.pause_until.is_some_and(|t| now < t) {
            return;
        }
        if self.state.runs() && is_over(a, qp) {
            // The application ended it by way of its queue pair.
            self.terminate(a, terminate::CATASTROPHIC, Quote::default(), now);
        }
        if let Some(message) = self.tx.terminate.take() {
            let msn = self.tx.take_msn(QN_TERMINATE);
            let header = untagged(Opcode::Terminate, QN_TERMINATE, msn, 0, true);
            let _ = self.record(a, &header, Body::Bytes(&message));
            return;
        }
        if !self.may_send() || !self.state.runs() {
            return;
        }
        (self.tx.pause_until, self.tx.nudged) = (None, false);
        if !self.tx.began && self.begin(a).is_err() || self.fill_from(a, qp).is_err() {
            self.terminate(a, terminate::CATASTROPHIC, Quote::default(), now);
        }
    }

    /// The first message of the peer-to-peer model, before any other (RFC 6581, section 5).
    #[cold]
    fn begin(&mut self, a: &mut Adapter) -> Result<(), Fault> {
        self.tx.began = true;
        match self.terms.first {
            None => Ok(()),
            Some(First::Write) => {
                let header = tagged(Opcode::Write, 0, 0, true);
                self.record(a, &header, Body::Bytes(&[]))
            }
            Some(First::Send) => {
                let op = Opcode::Send { solicited: false, invalidate: false };
                let msn = self.tx.take_msn(QN_SEND);
                self.record(a, &untagged(op, QN_SEND, msn, 0, true), Body::Bytes(&[]))
            }
            Some(First::Read) => {
                self.rx.expects_empty_answer = true;
                let mut request = Vec::new();
                ReadRequest { sink_stag: 0, sink_to: 0, len: 0, source_stag: 0, source_to: 0 }
                    .put(&mut request);
                let msn = self.tx.take_msn(QN_REQUEST);
                let header = untagged(Opcode::ReadRequest, QN_REQUEST, msn, 0, true);
                self.record(a, &header, Body::Bytes(&request))
            }
        }
    }

    #[inline]
    fn fill_from(&mut self, a: &mut Adapter, qp: QpId) -> Result<(), Fault> {
        if self.rx.expects_empty_answer {
            // It takes one of the reads that the peer answers at a time.
            return Ok(());
        }
        loop {
            let most = self.room();
            let room = |header: usize| (most - header) as u32;
            let (answer, untagged) = (room(ddp::TAGGED), room(ddp::UNTAGGED));
            let write = self.short_writes().map_or(answer, |most| most.min(answer));
            let max_payload = MaxPayload { write, answer, untagged };
            let Some(p) = a.next_ordered(qp, max_payload) else { break };
            self.piece(a, qp, &p)?;
            if p.last {
                self.tx.batch.mark();
            }
            if !p.more || self.is_full() {
                break;
            }
        }
        Ok(())
    }

    /// Bytes of the batch, beyond which no record is added.
    fn most(&self) -> usize {
        let first = if self.terms.crc { MAX_WARM } else { BATCH };
        (first << self.tx.doubled).min(MAX_BATCH)
    }

    /// Whether no record is to be added to the batch.
    fn is_full(&self) -> bool {
        let batch = &self.tx.batch;
        batch.len() >= self.most() || batch.copied() >= MAX_WARM || batch.pieces() >= MAX_PIECES
    }

    /// Bytes of a write in a record at most, if its peer checks it first.
    fn short_writes(&self) -> Option<u32> {
        self.short_writes.filter(|_| self.terms.crc)
    }

    /// The longest contents for the next record, so that it ends with the segment that it begins in.
    fn room(&self) -> usize {
        let (emss, used, with_markers) = (self.config.emss, self.tx.in_segment, self.terms.markers_out);
        // What the longest record leaves of such a segment is no place for another: a record for a few hundred bytes costs
        // as much as one of the longest.
        if emss > fpdu::MAX_FPDU_SENT {
            return fpdu::max_ulpdu(emss, with_markers);
        }
        let rest = fpdu::max_ulpdu(emss.saturating_sub(used), with_markers);
        // Too little for a segmentation to be worth it (RFC 5044, section 4.5).
        if used == 0 || rest == fpdu::MIN_ULPDU { fpdu::max_ulpdu(emss, with_markers) } else { rest }
    }

    /// The record of a piece, and what goes with it.
    #[inline]
    fn piece(&mut self, a: &mut Adapter, qp: QpId, p: &Piece) -> Result<(), Fault> {
        match p.what {
            Outgoing::Send { solicited, invalidate } => {
                let op = Opcode::Send { solicited, invalidate: invalidate.is_some() };
                let msn = self.tx.msn[QN_SEND as usize];
                // Sends are 2^31 bytes at most, so offsets fit.
                let (invalidate, mo) = (invalidate.unwrap_or(0), p.offset as u32);
                let target = Target::Untagged { invalidate, qn: QN_SEND, msn, mo };
                if p.last {
                    self.tx.take_msn(QN_SEND);
                }
                self.add(a, &Header { last: p.last, control: op.control(), target }, Body::Piece(qp, p))
            }
            Outgoing::Write { rkey, offset, imm, solicited, len } => {
                self.write_piece(a, (qp, p), (rkey, offset, len), imm.map(|imm| (imm, solicited)))
            }
            Outgoing::ReadResponse => self.answer_piece(a, (qp, p)),
            request => self.request(a, qp, request),
        }
    }

    /// The record of a piece of a write, which begins at `offset` and has `len` bytes.
    #[inline(never)]
    fn write_piece(
        &mut self,
        a: &mut Adapter,
        (qp, p): (QpId, &Piece),
        (rkey, offset, len): (u32, u64, u64),
        imm: Option<(u32, bool)>,
    ) -> Result<(), Fault> {
        if self.announces && p.offset == 0 && !p.last && self.short_writes().is_none() {
            let end = offset.wrapping_add(len);
            self.record(a, &tagged(Opcode::Write, rkey, end, true), Body::Bytes(&[]))?;
        }
        if p.len > 0 || imm.is_none() {
            // An empty one with a key would be an announcement.
            let bare = self.announces && p.len == 0;
            let (key, at) = if bare { (0, 0) } else { (rkey, offset.wrapping_add(p.offset)) };
            self.record(a, &tagged(Opcode::Write, key, at, p.last), Body::Piece(qp, p))?;
        }
        match imm.filter(|_| p.last) {
            // RFC 7306, section 6: immediate data is a message behind the write.
            Some((imm, solicited)) => {
                self.message(a, Opcode::Immediate { solicited }, &u64::from(imm).to_be_bytes())
            }
            None => Ok(()),
        }
    }

    /// The record of a piece of the answer to a read.
    #[inline(never)]
    fn answer_piece(&mut self, a: &mut Adapter, (qp, p): (QpId, &Piece)) -> Result<(), Fault> {
        let (stag, to) = self.rx.answers.front().copied().ok_or(Fault)?;
        if p.last {
            self.rx.answers.pop_front();
        }
        let to = to.wrapping_add(p.offset);
        self.record(a, &tagged(Opcode::ReadResponse, stag, to, p.last), Body::Piece(qp, p))
    }

    /// A request, or the answer to an atomic one: what it says is all there is.
    #[inline(never)]
    fn request(&mut self, a: &mut Adapter, qp: QpId, what: Outgoing) -> Result<(), Fault> {
        let mut b = Vec::with_capacity(messages::ATOMIC_REQUEST);
        let op = match what {
            Outgoing::Read { rkey, offset, len, sink } => {
                self.rx.reads.push_back(sink);
                // Reads are below 2^32 bytes. The sink's key is made for this read, so it names only its destination.
                let len = len as u32;
                ReadRequest { sink_stag: sink, sink_to: 0, len, source_stag: rkey, source_to: offset }
                    .put(&mut b);
                Opcode::ReadRequest
            }
            Outgoing::Atomic { rkey, offset, id } => {
                self.rx.atomics.push_back(id);
                AtomicRequest { id, stag: rkey, to: offset, op: a.atomic_op(qp, id) }.put(&mut b);
                Opcode::AtomicRequest
            }
            Outgoing::AtomicResponse { id, value } => {
                messages::put_atomic_response(id, value, &mut b);
                Opcode::AtomicResponse
            }
            Outgoing::Write { .. } | Outgoing::Send { .. } | Outgoing::ReadResponse => return Err(Fault),
        };
        self.message(a, op, &b)
    }

    /// A message of one record to a queue.
    fn message(&mut self, a: &mut Adapter, op: Opcode, bytes: &[u8]) -> Result<(), Fault> {
        let qn = op.queue().ok_or(Fault)?;
        let msn = self.tx.take_msn(qn);
        self.record(a, &untagged(op, qn, msn, 0, true), Body::Bytes(bytes))
    }

    /// Adds a record to the batch.
    fn record(&mut self, a: &mut Adapter, header: &Header, body: Body<'_>) -> Result<(), Fault> {
        self.add(a, header, body)
    }

    /// The same without a call, for the way of a short send.
    #[inline(always)]
    fn add(&mut self, a: &mut Adapter, header: &Header, body: Body<'_>) -> Result<(), Fault> {
        let before = self.tx.batch.len();
        if self.terms.markers_out {
            self.marked(a, header, body)?;
        } else if body.len() < COPY_BELOW || !self.in_place(a, header, body)? {
            self.copied(a, header, body)?;
        }
        let len = self.tx.batch.len() - before;
        self.tx.position += len as u64;
        self.tx.in_segment += len;
        if self.tx.in_segment >= self.config.emss {
            self.tx.in_segment %= self.config.emss.max(1);
        }
        Ok(())
    }

    /// A record with markers: copied, as they stand in the midst of the payload.
    #[inline(never)]
    fn marked(&mut self, a: &mut Adapter, h: &Header, body: Body<'_>) -> Result<(), Fault> {
        let mut markers = markers::Inserter::new(self.tx.position);
        let (mut plain, mut places) =
            (core::mem::take(&mut self.tx.plain), core::mem::take(&mut self.tx.places));
        plain.clear();
        places.clear();
        let ulpdu = put_header(h, body, &mut plain);
        let in_place = matches!(body, Body::Piece(qp, p) if a.piece_places(qp, p, &mut places));
        let put = if in_place {
            Ok(())
        } else {
            places.clear();
            put_body(a, body, &mut plain)
        };
        let raw = self.tx.batch.raw();
        raw.reserve(fpdu::MAX_FPDU);
        markers.put(&plain, raw);
        let folded = places.iter().try_for_each(|p| a.fold_mr(*p, &mut |b| markers.put(b, raw)));
        markers.put(&[0; 3 + fpdu::CRC][..fpdu::pad(ulpdu) + fpdu::CRC], raw);
        (self.tx.plain, self.tx.places) = (plain, places);
        let batch = &mut self.tx.batch;
        if put.is_err() || folded.is_err() {
            batch.drop_unsealed();
            return Err(Fault);
        }
        if self.terms.crc {
            let covered = batch.unsealed().len() - fpdu::CRC;
            let crc = fpdu::crc(0, &batch.unsealed()[..covered]);
            let at = batch.raw().len() - fpdu::CRC;
            batch.raw()[at..].copy_from_slice(&fpdu::crc_field(crc));
        }
        batch.seal();
        Ok(())
    }

    /// A record whose payload stays where it is. False, and nothing is added: it does not lie in registered memory.
    #[inline(never)]
    fn in_place(&mut self, a: &mut Adapter, h: &Header, body: Body<'_>) -> Result<bool, Fault> {
        let mut places = core::mem::take(&mut self.tx.places);
        places.clear();
        let lies = matches!(body, Body::Piece(qp, p) if a.piece_places(qp, p, &mut places));
        if !lies {
            self.tx.places = places;
            return Ok(false);
        }
        let (batch, covers) = (&mut self.tx.batch, self.terms.crc);
        let point = batch.point();
        let ulpdu = put_header(h, body, batch.raw());
        let mut crc = if covers { fpdu::crc(0, batch.unsealed()) } else { 0 };
        for p in &places {
            if covers && a.fold_mr(*p, &mut |b| crc = fpdu::crc(crc, b)).is_err() {
                batch.rewind(point);
                return Err(Fault);
            }
            batch.region(*p);
        }
        self.tx.places = places;
        let batch = &mut self.tx.batch;
        put_trailer(batch.raw(), ulpdu);
        if covers {
            let (pad, at) = (batch.unsealed().len() - fpdu::CRC, batch.raw().len() - fpdu::CRC);
            let crc = fpdu::crc(crc, &batch.unsealed()[..pad]);
            batch.raw()[at..].copy_from_slice(&fpdu::crc_field(crc));
        }
        batch.seal();
        Ok(true)
    }

    /// A record that is copied.
    #[inline(always)]
    fn copied(&mut self, a: &mut Adapter, h: &Header, body: Body<'_>) -> Result<(), Fault> {
        let batch = &mut self.tx.batch;
        let raw = batch.raw();
        let start = raw.len();
        let ulpdu = put_header(h, body, raw);
        if put_body(a, body, raw).is_err() {
            raw.truncate(start);
            return Err(Fault);
        }
        put_trailer(raw, ulpdu);
        if self.terms.crc {
            let at = raw.len() - fpdu::CRC;
            let crc = fpdu::crc(0, &raw[start..at]);
            raw[at..].copy_from_slice(&fpdu::crc_field(crc));
        }
        batch.seal();
        Ok(())
    }
}

/// Whether a queue pair is in error, or gone.
pub(super) fn is_over(a: &Adapter, qp: QpId) -> bool {
    matches!(a.qp_state(qp), None | Some(QpState::Error))
}

/// Appends a record's length and header. Gives the length of its contents.
fn put_header(h: &Header, body: Body<'_>, out: &mut Vec<u8>) -> usize {
    let (header, len) = h.encode();
    let ulpdu = len + body.len();
    let mut front = [0; fpdu::LENGTH + ddp::UNTAGGED];
    front[..fpdu::LENGTH].copy_from_slice(&(ulpdu as u16).to_be_bytes());
    front[fpdu::LENGTH..].copy_from_slice(&header);
    put_front(out, &front, fpdu::LENGTH + len);
    ulpdu
}

#[inline(always)]
fn put_body(a: &mut Adapter, body: Body<'_>, out: &mut Vec<u8>) -> Result<(), Fault> {
    match body {
        Body::Bytes(b) => {
            out.extend_from_slice(b);
            Ok(())
        }
        Body::Piece(qp, p) => a.append_piece(qp, p, out).map_err(|_| Fault),
    }
}

/// Appends zeros up to the CRC, and those of its field, which without CRCs may hold anything (RFC 5044, section 4.1).
fn put_trailer(out: &mut Vec<u8>, ulpdu: usize) {
    put_front(out, &[0; 3 + fpdu::CRC], fpdu::pad(ulpdu) + fpdu::CRC);
}

/// Appends the first `len` of `bytes`. All of them are copied: of a number that the compiler knows that is a few instructions.
#[inline]
fn put_front<const N: usize>(out: &mut Vec<u8>, bytes: &[u8; N], len: usize) {
    let end = out.len() + len.min(N);
    out.extend_from_slice(bytes);
    out.truncate(end);
}

const fn tagged(op: Opcode, stag: u32, to: u64, last: bool) -> Header {
    Header { last, control: op.control(), target: Target::Tagged { stag, to } }
}
const fn untagged(op: Opcode, qn: u32, msn: u32, mo: u32, last: bool) -> Header {
    Header { last, control: op.control(), target: Target::Untagged { invalidate: 0, qn, msn, mo } }
}
