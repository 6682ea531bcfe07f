//! What an ordered transport asks of the sending half.

use super::{Ctx, Gate, Response, Rooms, Source, Tx};
use crate::ordered::Outgoing;
use crate::segment::Segment;
use crate::work::{Place, SendOp};

impl Tx {
    /// As `next_segment`, where nothing is ever lost.
    pub(crate) fn next_ordered(&mut self, rooms: Rooms, gate: Gate, ctx: &mut Ctx<'_>) -> Option<Segment> {
        if !gate.run {
            return None;
        }
        let seg = self.next_new(rooms, gate, ctx)?;
        ctx.stats.segments_out += 1;
        ctx.stats.bytes_out += u64::from(seg.len);
        Some(seg)
    }
    /// What an ordered transport says of the message of `seg`.
    pub(crate) fn outgoing(&self, seg: &Segment) -> Option<Outgoing> {
        let m = self.flight_of(seg.msn)?;
        let number = match m.source {
            Source::Response(Response { sink, atomic: Some(value), .. }) => {
                return Some(Outgoing::AtomicResponse { id: sink, value });
            }
            Source::Response(_) => return Some(Outgoing::ReadResponse),
            Source::Wqe(number) => number,
        };
        let w = self.wqes.get(usize::try_from(number.checked_sub(self.wqe_base)?).ok()?)?;
        Some(match w.op {
            SendOp::Write { .. } => Outgoing::Write { imm: None, solicited: w.solicited, len: w.len },
            SendOp::WriteImm { imm, .. } => {
                Outgoing::Write { imm: Some(imm), solicited: w.solicited, len: w.len }
            }
            SendOp::Send | SendOp::SendImm { .. } => {
                Outgoing::Send { solicited: w.solicited, invalidate: None }
            }
            SendOp::SendInvalidate { rkey } => {
                Outgoing::Send { solicited: w.solicited, invalidate: Some(rkey) }
            }
            SendOp::Read { rkey, offset } => Outgoing::Read { rkey, offset, len: w.len, sink: w.sink },
            SendOp::Atomic { rkey, offset, op } => Outgoing::Atomic { rkey, offset, op, id: w.sink },
            SendOp::LocalInvalidate { .. } => return None,
        })
    }
    /// Names the payload of `seg` in registered memory. False when it is not there, or stale.
    pub(crate) fn outgoing_places(&self, seg: &Segment, out: &mut Vec<Place>) -> bool {
        let find = |base: u64, n: u64| usize::try_from(n.checked_sub(base)?).ok();
        let Some(m) = find(self.flight_base, seg.msn).and_then(|i| self.flight.get(i)) else { return false };
        match m.source {
            Source::Response(Response { mr: Some(mr), offset, .. }) => {
                out.push(Place { mr, offset: offset + seg.offset, len: u64::from(seg.len) });
                true
            }
            Source::Response(_) => seg.len == 0,
            Source::Wqe(number) => find(self.wqe_base, number)
                .and_then(|i| self.wqes.get(i))
                .is_some_and(|w| w.local.places(seg.offset, u64::from(seg.len), out)),
        }
    }
    /// Limits the reads and atomic operations outstanding, ours and the peer's, to what was negotiated.
    pub(crate) fn set_read_depths(&mut self, ours: usize, peers: usize) {
        (self.max_rd_atomic, self.max_reads_in) = (ours, peers);
    }
    /// Names bytes of the destination of an outstanding read.
    pub(crate) fn sink_places(&self, key: u32, at: u64, len: u64, out: &mut Vec<Place>) -> Option<()> {
        let (number, total) = self.sink(key)?;
        let w = self.wqes.get((number - self.wqe_base) as usize)?;
        (at.checked_add(len)? <= total && w.local.places(at, len, out)).then_some(())
    }
}
