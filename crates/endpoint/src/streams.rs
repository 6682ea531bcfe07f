//! Verbs as the transport sees them: queue pairs by number, headers instead of segments.

use transport::{NextSegment, PlaceError, SegmentRef, Streams};
use verbs::{Adapter, Incoming, Placed, QpId, Segment, SegmentOp};
use wire::{DataHeader, DataOp};

/// The adapter with one connection's numbering.
pub struct Numbered<'a> {
    pub adapter: &'a mut Adapter,
    pub qps: &'a [Option<QpId>],
    /// The segment that `next` gave last, for `gather`.
    pub last: Option<Segment>,
}

/// Inner header and tail of the longest kind: rooms below it fit nothing.
const LONGEST_HEADER: usize = 1 + 2 + 2 + 4 + 8 + 1 + 2 + 4;

impl Numbered<'_> {
    fn qp(&self, qpn: u16) -> Option<QpId> {
        self.qps.get(usize::from(qpn)).copied().flatten()
    }
}

fn header(qpn: u16, s: &Segment) -> DataHeader {
    let op = match s.op {
        SegmentOp::Write => DataOp::Write,
        SegmentOp::Send => DataOp::Send,
        SegmentOp::ReadRequest => DataOp::ReadRequest,
        SegmentOp::ReadResponse => DataOp::ReadResponse,
    };
    DataHeader {
        op,
        qpn,
        msn: s.msn as u16,
        key: s.key,
        offset: s.position,
        rsn: s.rsn.map(|r| r as u16),
        first: s.first,
        last: s.last.map(|t| wire::Tail { imm: t.imm, solicited: t.solicited }),
    }
}

fn reference(s: SegmentRef) -> verbs::SegmentRef {
    verbs::SegmentRef { msn: s.msn, offset: s.offset, len: s.len }
}

impl Streams for Numbered<'_> {
    fn next(&mut self, qpn: u16, room: usize) -> Option<NextSegment> {
        let qp = self.qp(qpn)?;
        let room = room.checked_sub(LONGEST_HEADER)?;
        let mut s = self.adapter.next_segment(qp, room + LONGEST_HEADER - wire::data::WRITE_HEADER)?;
        let mut h = header(qpn, &s);
        let over = (h.encoded_len() + s.len as usize).saturating_sub(room + LONGEST_HEADER);
        if over > 0 {
            // The tail of the last segment, or a wide offset, does not fit: the end goes into another packet.
            let cut = over.min(s.len as usize) as u32;
            s.len -= cut;
            let rest = verbs::SegmentRef { msn: s.msn, offset: s.offset + u64::from(s.len), len: cut };
            (s.last, s.quiet) = (None, false);
            self.adapter.on_lost(qp, rest);
            h = header(qpn, &s);
        }
        self.last = Some(s);
        let r = s.reference();
        let segment = SegmentRef { msn: r.msn, offset: r.offset, len: r.len };
        Some(NextSegment { header: h, segment, again: s.retransmission, quiet: s.quiet })
    }

    fn has_more(&self, qpn: u16) -> bool {
        self.qp(qpn).is_some_and(|q| self.adapter.has_segment(q))
    }

    fn waiting(&self, qpn: u16) -> (u64, u64) {
        self.qp(qpn).map_or((0, 0), |q| self.adapter.waiting(q))
    }

    fn gather(&mut self, qpn: u16, _next: &NextSegment, out: &mut [u8]) {
        let done = match (self.qp(qpn), &self.last) {
            (Some(qp), Some(s)) => self.adapter.gather(qp, s, out).is_ok(),
            _ => false,
        };
        if !done {
            // The memory failed (a mapped file was cut short): the queue pair is in error and the peer is told;
            // what leaves is zeroes, never old bytes of the buffer.
            out.fill(0);
        }
    }

    fn acked(&mut self, qpn: u16, segment: SegmentRef) {
        if let Some(qp) = self.qp(qpn) {
            self.adapter.on_acked(qp, reference(segment));
        }
    }

    fn lost(&mut self, qpn: u16, segment: SegmentRef) {
        if let Some(qp) = self.qp(qpn) {
            self.adapter.on_lost(qp, reference(segment));
        }
    }

    fn place(&mut self, h: &DataHeader, payload: &[u8]) -> Result<transport::Placed, PlaceError> {
        let Some(qp) = self.qp(h.qpn) else { return Ok(transport::Placed::Refused) };
        let op = match h.op {
            DataOp::Write => SegmentOp::Write,
            DataOp::Send => SegmentOp::Send,
            DataOp::ReadRequest => SegmentOp::ReadRequest,
            DataOp::ReadResponse => SegmentOp::ReadResponse,
        };
        let incoming = Incoming {
            op,
            msn16: h.msn,
            rsn16: h.rsn,
            key: h.key,
            position: h.offset,
            first: h.first,
            last: h.last.map(|t| verbs::Tail { imm: t.imm, solicited: t.solicited }),
        };
        match self.adapter.place(qp, &incoming, payload) {
            Ok(Placed::New) => Ok(transport::Placed::Done),
            Ok(Placed::Duplicate) => Ok(transport::Placed::Duplicate),
            Ok(Placed::Refused) => Ok(transport::Placed::Refused),
            Err(v) => Err(PlaceError { code: v.code().into() }),
        }
    }
}
