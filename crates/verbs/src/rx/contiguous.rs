//! The fast path for a segment that continues where the last one of its Write ended.

use super::{Rx, violation_of};
use crate::MAX_RDMA_LEN;
use crate::region::{Access, Regions};
use crate::segment::{Incoming, Placed, SegmentOp, Violation};
use crate::slab::PdId;
use base::seq;

impl Rx {
    /// Places a segment from the midst of a Write that begins where the last one that arrived ended. `None`: it is none of
    /// those, and nothing has changed. Such a segment is new, makes no hole and completes nothing, so that of what
    /// [`place`](Rx::place) checks only its own memory, length and key are left.
    pub(crate) fn place_next(
        &mut self,
        pd: PdId,
        seg: &Incoming,
        payload: &[u8],
        regions: &mut Regions,
    ) -> Option<Result<Placed, Violation>> {
        let midst = seg.op == SegmentOp::Write && !seg.first && seg.last.is_none() && seg.rsn16.is_none();
        if !midst || payload.is_empty() {
            return None;
        }
        let msn = seq::expand(seg.msn16.into(), 16, self.floor);
        let m = self.msgs.get_mut(usize::try_from(msn.checked_sub(self.floor)?).ok()?)?;
        let (at, len) = (seg.position, payload.len() as u64);
        let (end, start, mr) = (at.checked_add(len)?, m.start?, m.mr?);
        let goes_on =
            m.op == Some(seg.op) && m.key == seg.key && m.received.last().is_some_and(|r| r.end == at);
        if !goes_on || m.end.is_some_and(|e| end >= e) || end - start > MAX_RDMA_LEN {
            return None;
        }
        // The region may have been deregistered since.
        if let Err(denied) = regions.recheck(mr, pd, Access::REMOTE_WRITE, at, len) {
            return Some(Err(violation_of(denied)));
        }
        if regions.write(mr, at, payload).is_err() {
            return Some(Err(Violation::LocalFault));
        }
        m.bytes += m.received.insert(at..end);
        Some(Ok(Placed::New))
    }
}
