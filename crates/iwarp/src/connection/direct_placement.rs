//! Places a record's payload in its destination as it is read, without a copy.

use super::Connection;
use super::deliver::operation;
use super::receive::{DIRECT, Progress, Receiver, put};
use crate::ReadTarget;
use crate::config::Placement;
use crate::ddp::{self, Header, Target};
use crate::mpa::fpdu;
use crate::rdmap::Opcode;
use crate::rdmap::terminate::{self, Quote};
use base::Time;
use verbs::{Adapter, MrRange};

/// A record whose payload is placed as it is read.
pub(super) struct DirectRecord {
    pub(super) header: Header,
    pub(super) op: Opcode,
    /// Bytes of the payload.
    pub(super) payload: usize,
    /// Of these, to come.
    pub(super) missing: u64,
    /// Of the record so far.
    pub(super) crc: u32,
    /// Zeros behind the payload.
    pub(super) pad: usize,
}

impl DirectRecord {
    /// Whether the record's end, which `trailer` begins with, has the CRC of what came before it.
    pub(super) fn passes(&self, trailer: &[u8]) -> bool {
        let (pad, field) = trailer.split_at(self.pad);
        field.starts_with(&fpdu::crc_field(fpdu::crc(self.crc, pad)))
    }
}

impl Receiver {
    /// Where that goes on: the rest of the place that its next byte belongs to. `None`: all of it is there.
    pub(super) fn direct_rest(&self) -> Option<MrRange> {
        let d = self.direct.as_ref().filter(|d| d.missing > 0)?;
        let mut skip = d.payload as u64 - d.missing;
        for p in &self.places {
            if skip < p.len {
                return Some(MrRange { offset: p.offset + skip, len: p.len - skip, ..*p });
            }
            skip -= p.len;
        }
        None
    }
    /// Bytes behind that payload that are of the same record.
    pub(super) fn direct_tail(&self) -> usize {
        self.direct.as_ref().map_or(0, |d| d.pad + fpdu::CRC)
    }
    /// The front of a record is here, so many bytes: the rest of its payload goes straight to its place.
    pub(super) fn go_direct(&mut self, d: DirectRecord, front: usize) {
        self.position += front as u64;
        self.start = self.end;
        self.shorts = self.shorts_with(
            d.header.encoded_len() + d.payload,
            matches!(d.header.target, Target::Tagged { .. }),
        );
        self.direct = Some(d);
    }
}

impl Connection {
    /// Whether payload may go to memory that the application can look at before it is known to be right.
    pub(super) fn may_go_direct(&self) -> bool {
        !self.terms.markers_in && (!self.terms.crc || self.config.placement == Placement::Early)
    }

    /// Lets the rest of a payload go straight to its place, if it is allowed and worth it.
    #[inline(never)]
    pub(super) fn try_direct(&mut self, a: &mut Adapter, scratch: &[u8], ulpdu: usize) -> Progress {
        let waiting = &scratch[self.rx.start..self.rx.end];
        let Some(contents) = waiting.get(fpdu::LENGTH..).filter(|_| !self.terms.markers_in) else {
            return Progress::More;
        };
        let Ok(header) = Header::parse(contents) else { return Progress::More };
        let head = header.encoded_len();
        let Some((payload, there)) = ulpdu.checked_sub(head).zip(contents.get(head..)) else {
            return Progress::More;
        };
        // The trailer may be there in part only when all of the payload is.
        if there.len() + DIRECT > payload {
            return Progress::More;
        }
        let Ok(op) = operation(&header) else { return Progress::More };
        let goes = matches!(op, Opcode::Write | Opcode::ReadResponse | Opcode::Send { .. })
            && (self.may_go_direct() || self.is_ours(op));
        // What is wrong is reported when the record is whole: until its CRC is known, the header may be damaged.
        if !goes || self.begin_segment(a, &header, op, payload).is_err() {
            return Progress::More;
        }
        if !put(a, &self.rx.places, there) {
            return Progress::More;
        }
        let crc = if self.terms.crc { fpdu::crc(0, waiting) } else { 0 };
        let (missing, front) = ((payload - there.len()) as u64, waiting.len());
        let pad = fpdu::pad(ulpdu);
        self.rx.go_direct(DirectRecord { header, op, payload, missing, crc, pad }, front);
        Progress::More
    }

    /// The end of a record whose payload went straight to its place.
    #[inline(never)]
    pub(super) fn parse_trailer(&mut self, a: &mut Adapter, scratch: &[u8], now: Time) -> Progress {
        let waiting = &scratch[self.rx.start..self.rx.end];
        let is_whole = |d: &&DirectRecord| d.missing == 0 && waiting.len() >= d.pad + fpdu::CRC;
        let Some(d) = self.rx.direct.as_ref().filter(is_whole) else { return Progress::More };
        if self.terms.crc && !d.passes(waiting) {
            // Nothing completes with data that did not pass.
            self.rx.direct = None;
            self.terminate(a, terminate::CRC, Quote::default(), now);
            return Progress::More;
        }
        self.end_direct(a, now);
        Progress::Again
    }

    /// The record of a write is there, but for its end, and behind that came the header that was foreseen and nothing else: that of
    /// the record which goes to `next`. So the write goes on without the questions that were answered when this was planned. (Each
    /// record of eight by a read would find all that it asks pushed out of the first cache by the payload of the one before.)
    ///
    /// False: something is otherwise, and nothing was done.
    pub(super) fn continues_write(&mut self, a: &mut Adapter, next: Option<&ReadTarget>, now: Time) -> bool {
        let (Some(qp), Some(&ReadTarget::Region(place)), Some(d)) = (self.qp, next, &self.rx.direct) else {
            return false;
        };
        let is_there = d.op == Opcode::Write && !d.header.last && d.missing == 0;
        let Target::Tagged { stag, to } = d.header.target else { return false };
        let waiting = &self.rx.scratch[self.rx.start..self.rx.end];
        let Some((trailer, front)) = waiting.split_at_checked(d.pad + fpdu::CRC).filter(|_| is_there) else {
            return false;
        };
        let Some((&[high, low], contents)) = front.split_first_chunk() else { return false };
        let Ok(header) = Header::parse(contents) else { return false };
        let ulpdu = usize::from(u16::from_be_bytes([high, low]));
        let at = to.saturating_add(d.payload as u64);
        let target = Target::Tagged { stag, to: at };
        let foreseen = header == Header { target, last: header.last, ..d.header }
            && contents.len() == ddp::TAGGED
            && ulpdu.checked_sub(ddp::TAGGED).is_some_and(|payload| payload as u64 == place.len)
            && self.rx.read_ahead.expects_write(stag, to, at.saturating_add(place.len));
        if !foreseen || self.terms.crc && !d.passes(trailer) {
            return false;
        }
        let crc = if self.terms.crc { fpdu::crc(0, front) } else { 0 };
        let (payload, pad, front) = (ulpdu - ddp::TAGGED, fpdu::pad(ulpdu), front.len());
        self.end_direct(a, now);
        self.rx.record_since = Some(now);
        a.count_in(qp, 1, place.len);
        self.rx.places.clear();
        self.rx.places.push(place);
        self.rx.go_direct(
            DirectRecord { header, op: Opcode::Write, payload, missing: place.len, crc, pad },
            front,
        );
        true
    }

    /// The record whose payload went straight to its place is whole, and was verified.
    fn end_direct(&mut self, a: &mut Adapter, now: Time) {
        let Some(d) = self.rx.direct.take() else { return };
        self.rx.position += d.payload as u64;
        self.took(d.pad + fpdu::CRC);
        self.finish_direct(a, &d.header, d.op, d.payload, now);
    }

    /// So many bytes of the payload that goes straight to its place are there. False: they cannot be reached.
    pub(super) fn took_direct(&mut self, a: &Adapter, len: u64) -> bool {
        let Some(d) = &mut self.rx.direct else { return false };
        let before = d.payload as u64 - d.missing;
        d.missing -= len;
        !self.terms.crc || fold(a, &self.rx.places, before, len, &mut d.crc)
    }
}

/// Adds `len` bytes of `places` from byte `at` on to a CRC.
fn fold(a: &Adapter, places: &[MrRange], mut at: u64, mut len: u64, crc: &mut u32) -> bool {
    for p in places {
        if at >= p.len {
            at -= p.len;
            continue;
        }
        let n = (p.len - at).min(len);
        let part = MrRange { offset: p.offset + at, len: n, ..*p };
        if a.fold_mr(part, &mut |b| *crc = fpdu::crc(*crc, b)).is_err() {
            return false;
        }
        (at, len) = (0, len - n);
        if len == 0 {
            break;
        }
    }
    len == 0
}
