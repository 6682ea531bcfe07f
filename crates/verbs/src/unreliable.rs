//! Receiving on an unreliable queue pair: places and delivers everything on arrival.

use crate::region::Access;
use crate::rx::{Rx, check_shape, complete_receive, violation_of};
use crate::segment::{Incoming, Placed, SegmentOp, Tail, Violation};
use crate::slab::PdId;
use crate::tx::Ctx;
use crate::work::{Opcode, Status};

/// Message numbers this far behind the highest are remembered.
const WINDOW: u16 = 1 << 14;

/// Which of the latest messages were delivered, so that a duplicate is not delivered again.
pub(crate) struct DeliveredWindow {
    /// The highest message number, truncated.
    highest: u16,
    /// One bit for each number of the window, at the number modulo its size.
    bits: Vec<u64>,
    /// Latest writes: message number and bytes that arrived, at the number modulo their number.
    writes: [(u16, u64); 16],
}

impl Default for DeliveredWindow {
    fn default() -> DeliveredWindow {
        DeliveredWindow { highest: u16::MAX, bits: vec![0; usize::from(WINDOW) / 64], writes: [(0, 0); 16] }
    }
}

impl DeliveredWindow {
    fn cell(&mut self, msn16: u16) -> (&mut u64, u64) {
        let i = usize::from(msn16 % WINDOW);
        (&mut self.bits[i / 64], 1 << (i % 64))
    }
    /// Notes `msn16`; false when it was noted before. Whatever is not just behind the highest is ahead of it: after
    /// an outage any number of messages can be missing.
    fn insert(&mut self, msn16: u16) -> bool {
        let behind = self.highest.wrapping_sub(msn16);
        if behind >= WINDOW {
            let ahead = msn16.wrapping_sub(self.highest);
            if ahead >= WINDOW {
                self.bits.fill(0);
            } else {
                for n in 1..=ahead {
                    let (word, bit) = self.cell(self.highest.wrapping_add(n));
                    *word &= !bit;
                }
            }
            self.highest = msn16;
        }
        let (word, bit) = self.cell(msn16);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }
    /// Adds to the bytes of a write that arrived; returns their number. A write that stays unfinished while
    /// 16 later ones come starts again from zero: the count is for information.
    fn arrived(&mut self, msn16: u16, len: u64) -> u64 {
        let slot = &mut self.writes[usize::from(msn16 % 16)];
        let before = if slot.0 == msn16 { slot.1 } else { 0 };
        *slot = (msn16, before.saturating_add(len));
        slot.1
    }
    fn contains(&mut self, msn16: u16) -> bool {
        let behind = self.highest.wrapping_sub(msn16);
        let (word, bit) = self.cell(msn16);
        behind < WINDOW && *word & bit != 0
    }
}

/// Checks a segment and places it. Sends are whole in one segment.
pub(crate) fn place(
    rx: &mut Rx,
    delivered: &mut DeliveredWindow,
    pd: PdId,
    seg: &Incoming,
    payload: &[u8],
    ctx: &mut Ctx<'_>,
) -> Result<Placed, Violation> {
    check_shape(seg, payload.len())?;
    match seg.op {
        SegmentOp::ReadRequest | SegmentOp::ReadResponse | SegmentOp::AtomicRequest => {
            return Err(Violation::Unsupported);
        }
        SegmentOp::Send if !(seg.first && seg.last.is_some()) => {
            return Err(Violation::Malformed("an unreliable send in several segments"));
        }
        _ => {}
    }
    let delivers = seg.last.filter(|_| seg.rsn16.is_some());
    if delivers.is_some() && delivered.contains(seg.msn16) {
        return Ok(Placed::Duplicate);
    }
    let mut len = payload.len() as u64;
    if seg.op == SegmentOp::Write {
        if len > 0 {
            let mr = ctx.regions.remote(seg.key, pd, Access::REMOTE_WRITE, seg.position, len);
            let written = ctx.regions.write(mr.map_err(violation_of)?, seg.position, payload);
            written.map_err(|_| Violation::LocalFault)?;
        }
        len = delivered.arrived(seg.msn16, len);
    }
    if let Some(tail) = delivers {
        delivered.insert(seg.msn16);
        deliver(rx, seg.op, payload, len, tail, ctx)?;
    }
    Ok(Placed::New)
}

/// Hands a message to the next receive; without one that fits it is dropped and counted.
fn deliver(
    rx: &mut Rx,
    op: SegmentOp,
    payload: &[u8],
    byte_len: u64,
    tail: Tail,
    ctx: &mut Ctx<'_>,
) -> Result<(), Violation> {
    let (needs, opcode) = match op {
        SegmentOp::Send => (byte_len, Opcode::Recv),
        _ => (0, Opcode::RecvWriteImm),
    };
    let Some(r) = rx.next_receive(needs) else {
        ctx.stats.dropped_messages += 1;
        return Ok(());
    };
    if op == SegmentOp::Send && r.local.write(ctx.regions, 0, payload).is_err() {
        complete_receive(&r, Status::LocalProtection, opcode, 0, tail, ctx);
        return Err(Violation::LocalFault);
    }
    complete_receive(&r, Status::Success, opcode, byte_len, tail, ctx);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn receive_window_advances_after_an_outage() {
        let mut s = DeliveredWindow::default();
        assert!(s.insert(0) && !s.insert(0));
        assert!(s.insert(40_000), "behind or ahead cannot be told by half the range; it is ahead");
        assert!(!s.insert(40_000) && s.insert(39_999) && !s.insert(39_999));
        assert!(s.insert(5) && s.insert(40_000), "long ago is not remembered");
    }

    proptest! {
        #[test]
        fn each_number_is_new_once(steps in proptest::collection::vec(0u64..900, 1..400)) {
            // Numbers rise by up to 300 or go back by up to 600, so all stay within the window.
            let (mut s, mut at, mut model) = (DeliveredWindow::default(), 0u64, std::collections::HashSet::new());
            for d in steps {
                at = (at + d).saturating_sub(600).max(at.saturating_sub(600));
                let back = at.saturating_sub(d % 7);
                for n in [at, back] {
                    if model.iter().max().is_none_or(|m| n + u64::from(WINDOW) > *m) {
                        prop_assert_eq!(s.contains(n as u16), model.contains(&n));
                        prop_assert_eq!(s.insert(n as u16), model.insert(n));
                    }
                }
            }
        }
    }
}
