//! A look at what comes next. Short messages leave in trains, too, and the packets of a train are equally long: what follows
//! the first has to be known before it is built.

use super::{Gate, OutMsg, Tx};
use crate::segment::Segment;
use crate::work::SendOp;

impl Tx {
    /// The segment that `next_segment` gives next, where that is a message of which nothing was sent yet, given as much room
    /// as it needs.
    pub(crate) fn next_whole(&self, gate: Gate) -> Option<Segment> {
        let begun = self.lost_messages > 0 || self.current_wr.is_some() || self.current_response.is_some();
        if begun || !gate.run || !self.window_open() {
            return None;
        }
        let number = self.next_wqe;
        let head = self.wqes.get(usize::try_from(number - self.wqe_base).ok()?);
        let head = head.filter(|_| gate.start && self.head_ready());
        if head.is_some_and(|w| matches!(w.op, SendOp::LocalInvalidate { .. })) {
            // Nothing leaves for it, and what stands behind it would be next.
            return None;
        }
        let request = || head.and_then(|w| self.message_of(number, w));
        let answer = || self.responses.front().map(|r| OutMsg::answer(*r));
        // They take turns, as in `next_msn`.
        let m = if self.responses_turn { request().or_else(answer) } else { answer().or_else(request) }?;
        u32::try_from(m.len).ok()?;
        Some(m.segment(self.flight_base + self.flight.len() as u64, 0, m.len, false))
    }
}
