//! Takes many segments of one message at once, so that their common work is done once per train.

use super::{Gate, Source, Tx};
use crate::Kind;
use crate::error::GatherError;
use crate::region::Regions;
use crate::segment::Segment;
use crate::slab::MrId;

/// Equally long payloads in one buffer: number `k` begins at byte `at + k * stride`.
#[derive(Debug)]
pub struct StridedBuffer<'a> {
    /// The buffer.
    pub out: &'a mut [u8],
    /// Bytes from one payload to the next.
    pub stride: usize,
    /// Bytes before the first.
    pub at: usize,
}

impl StridedBuffer<'_> {
    /// The places, `len` bytes each, as far as the buffer has them.
    pub(crate) fn places(&mut self, len: usize) -> impl Iterator<Item = &mut [u8]> {
        let within = self.at..self.at + len;
        self.out.chunks_mut(self.stride.max(1)).filter_map(move |c| c.get_mut(within.clone()))
    }
}

impl Tx {
    /// Starts up to `most` segments behind `seg`, which was the last one: each as long and with the next bytes of the same
    /// message, none of them its last. None where something else would be next.
    pub(crate) fn next_run(&mut self, seg: &Segment, most: u32, gate: Gate) -> u32 {
        // Answers and own work requests take turns, as in `next_msn`.
        let other = match self.current_wr == Some(seg.msn) {
            true => self.current_response.is_some() || !self.responses.is_empty(),
            false => self.current_wr.is_some() || gate.start && self.head_ready(),
        };
        let len = u64::from(seg.len);
        if !gate.run || self.kind == Kind::Ordered || self.lost_messages > 0 || other || len == 0 {
            return 0;
        }
        // What was lost is as long as it was, or what was left of a piece: not as what is new would be cut.
        if seg.retransmission {
            return 0;
        }
        let Some(m) = self.message(seg.msn).filter(|m| m.sent == seg.offset + len && !m.sent_all) else {
            return 0;
        };
        // A byte at least is left for the last one.
        let n = ((m.len - m.sent).saturating_sub(1) / len).min(most.into());
        m.sent += n * len;
        n as u32
    }

    /// Copies the payloads of `seg` and of those behind it to their places, of which there are as many.
    pub(crate) fn gather_run(
        &self,
        seg: &Segment,
        regions: &Regions,
        to: &mut StridedBuffer<'_>,
    ) -> Result<(), GatherError> {
        if let Some((mr, offset)) = self.lies_in(seg) {
            return regions.read_run(mr, offset, seg.len, to).map_err(|_| GatherError::Fault);
        }
        let mut piece = *seg;
        for place in to.places(seg.len as usize) {
            self.gather(&piece, regions, place)?;
            piece = piece.following();
        }
        Ok(())
    }

    /// The region, and where in it, that a segment's payload and all that follows of its message lie in, where it is one.
    fn lies_in(&self, seg: &Segment) -> Option<(MrId, u64)> {
        let m = self.flight_of(seg.msn).filter(|m| !m.done)?;
        match m.source {
            Source::Response(r) => Some((r.mr?, r.offset + seg.offset)),
            Source::Wqe(number) => {
                let w = self.wqes.get(usize::try_from(number.checked_sub(self.wqe_base)?).ok()?)?;
                let (mr, offset) = w.local.only().filter(|_| !w.is_answered())?;
                Some((mr, offset + seg.offset))
            }
        }
    }
}
