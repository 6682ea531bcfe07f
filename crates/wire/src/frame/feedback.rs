//! Feedback: the receiver's statement of what arrived on a lane.
//!
//! ```text
//! lane | largest | largest - to | to - from | delay (us) | arrival 4 (us, wraps) | marked | holes | hole...
//! hole: distance from the end of the previous one (the first: from `from`) | packets in it - 1
//! ```
//!
//! All variable-length integers but `arrival`. Every packet of `from..to` that is in no hole has arrived.
//! `from` is the floor the sender set; holes stay listed until it moves past them, so the loss of any
//! feedback packet costs nothing.

use crate::codec::{Put, Reader, WireError, varint_len};
use core::ops::Range;

/// A statement of what arrived. See the module for its layout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Feedback {
    /// The lane it is about.
    pub lane: u32,
    /// Highest packet number received on it.
    pub largest: u64,
    /// Time from the arrival of `largest` to the sending of this, in microseconds.
    pub delay_us: u64,
    /// When `largest` arrived by the receiver's clock, microseconds modulo 2^32.
    pub arrival_us: u32,
    /// Packets received so far with Congestion Experienced.
    pub marked: u64,
    /// The packets that this statement covers; ends at most one behind `largest`.
    pub covered: Range<u64>,
    /// Ascending, disjoint parts of `covered` that have not arrived.
    pub holes: Vec<Range<u64>>,
}

impl Feedback {
    /// Bytes that the statement takes without holes at most.
    pub const MAX_FIXED: usize = 3 + 8 * 5 + 4 + 4;

    /// Bytes that one hole takes, `gap` behind the end of the previous one.
    pub fn hole_len(gap: u64, hole: &Range<u64>) -> usize {
        varint_len(gap) + varint_len(hole.end - hole.start - 1)
    }

    pub(super) fn parse(r: &mut Reader<'_>) -> Result<Feedback, WireError> {
        let lane = super::lane(r)?;
        let largest = r.varint("largest")?;
        let behind = r.varint("covered end")?;
        let n = r.varint("covered length")?;
        let to = (largest + 1).checked_sub(behind).ok_or(WireError::Invalid("covered end"))?;
        let from = to.checked_sub(n).ok_or(WireError::Invalid("covered length"))?;
        let delay_us = r.varint("feedback delay")?;
        let arrival_us = r.u32("arrival")?;
        let marked = r.varint("marked")?;
        let count = r.varint("hole count")?;
        // Each hole takes two bytes at least: no more than what is there is ever allocated.
        if count > r.rest().len() as u64 / 2 {
            return Err(WireError::Truncated("holes"));
        }
        let mut holes = Vec::with_capacity(count as usize);
        let mut at = from;
        for _ in 0..count {
            let start = at + r.varint("hole distance")?;
            let end = start + r.varint("hole length")? + 1;
            if end > to || (start == at && at != from) {
                return Err(WireError::Invalid("hole"));
            }
            holes.push(start..end);
            at = end;
        }
        Ok(Feedback { lane, largest, delay_us, arrival_us, marked, covered: from..to, holes })
    }

    pub(super) fn encoded_len(&self) -> usize {
        let ints = [
            u64::from(self.lane),
            self.largest,
            self.largest + 1 - self.covered.end,
            self.covered.end - self.covered.start,
            self.delay_us,
            self.marked,
            self.holes.len() as u64,
        ];
        let mut at = self.covered.start;
        let holes: usize = self
            .holes
            .iter()
            .map(|h| {
                let n = Feedback::hole_len(h.start - at, h);
                at = h.end;
                n
            })
            .sum();
        4 + ints.map(varint_len).iter().sum::<usize>() + holes
    }

    pub(super) fn put(&self, out: &mut impl Put) {
        out.put_varint(self.lane.into());
        out.put_varint(self.largest);
        out.put_varint(self.largest + 1 - self.covered.end);
        out.put_varint(self.covered.end - self.covered.start);
        out.put_varint(self.delay_us);
        out.put_u32(self.arrival_us);
        out.put_varint(self.marked);
        out.put_varint(self.holes.len() as u64);
        let mut at = self.covered.start;
        for h in &self.holes {
            out.put_varint(h.start - at);
            out.put_varint(h.end - h.start - 1);
            at = h.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Frame;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn vector() {
        let f = Feedback {
            lane: 0,
            largest: 100,
            delay_us: 5,
            arrival_us: 0x0102_0304,
            marked: 1,
            covered: 90..101,
            holes: vec![92..93, 95..98],
        };
        let mut b = Vec::new();
        f.put(&mut b);
        assert_eq!(b, [0, 0x40, 100, 0, 11, 5, 1, 2, 3, 4, 1, 2, 2, 0, 2, 2]);
    }

    #[test]
    fn holes_must_lie_inside_and_apart() {
        let base = [0u8, 0x40, 100, 0, 11, 5, 1, 2, 3, 4, 1];
        for holes in [&[1u8, 11, 0][..], &[2, 2, 0, 0, 0], &[9, 1, 1]] {
            let b = [&base[..], holes].concat();
            assert!(Feedback::parse(&mut Reader::new(&b)).is_err(), "{holes:?}");
        }
    }

    proptest! {
        #[test]
        fn round_trips(from in 0u64..1 << 40, steps in proptest::collection::vec((1u64..500, 1u64..70), 0..50), behind in 0u64..9) {
            let mut at = from;
            let holes: Vec<_> = steps.iter().map(|(gap, len)| { let h = at + gap..at + gap + len; at = h.end; h }).collect();
            let f = Feedback { lane: 1, largest: at + behind, delay_us: 77, arrival_us: 3, marked: 9, covered: from..at + 1, holes };
            let f = Frame::Feedback(f);
            let mut b = Vec::new();
            f.put(&mut b);
            prop_assert_eq!(b.len(), f.encoded_len());
            prop_assert_eq!(Frame::parse(&mut Reader::new(&b)), Ok(f));
        }
    }
}
