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
//!
//! FEEDBACK_SIGNALS is the same and, behind it, what congestion control wants to know beside:
//!
//! ```text
//! host delay (us) | ect0 | ect1 | marks | mark... | n | with n > 0: largest - packet | n - 1 hops
//! mark: distance from the end of the previous one (the first: from `from`) | packets in it - 1
//! hop:  identifier 2 | time (ns) 8 | bytes waiting | bytes sent 8 | rate (bytes/s)
//! ```
//!
//! Marks stay listed as holes do. What hops wrote into a packet is told once: what comes next is newer.

use crate::codec::{Put, Reader, VARINT_MAX, WireError, varint_len};
use base::telemetry::{Hop, MAX_HOPS};
use base::{Rate, Time};
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
    /// What FEEDBACK_SIGNALS says beside; `None` in FEEDBACK.
    pub signals: Option<ReceiverSignals>,
}

/// What a receiver tells congestion control beside what arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiverSignals {
    /// Of `delay`, the time from the arrival of `largest` at the host to its processing, in microseconds.
    pub host_delay_us: u64,
    /// Packets received so far with ECT(0).
    pub ect0: u64,
    /// Packets received so far with ECT(1).
    pub ect1: u64,
    /// Ascending, disjoint parts of `covered` that arrived with Congestion Experienced.
    pub marks: Vec<Range<u64>>,
    /// What hops wrote into the newest packet that had telemetry.
    pub telemetry: Option<Telemetry>,
}

/// What hops wrote into a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Telemetry {
    /// The packet, at most `largest`.
    pub packet: u64,
    /// First to last, at most [`MAX_HOPS`].
    pub hops: Vec<Hop>,
}

impl ReceiverSignals {
    /// Bytes that it takes at most without marks, with telemetry of so many hops.
    pub const fn max_fixed(hops: Option<usize>) -> usize {
        let telemetry = match hops {
            Some(n) => 8 + n * (2 + 8 + 8 + 8 + 8),
            None => 0,
        };
        8 * 3 + 4 + 1 + telemetry
    }

    fn parse(r: &mut Reader<'_>, f: &Feedback) -> Result<ReceiverSignals, WireError> {
        let host_delay_us = r.varint("host delay")?;
        let (ect0, ect1) = (r.varint("packets with ECT(0)")?, r.varint("packets with ECT(1)")?);
        let marks = runs(r, &f.covered, "mark")?;
        if !apart(&marks, &f.holes) {
            return Err(WireError::Invalid("mark in a hole"));
        }
        let telemetry = match r.varint("hops")? {
            0 => None,
            n if n - 1 > MAX_HOPS as u64 => return Err(WireError::TooLong("hops")),
            n => {
                let packet = f.largest.checked_sub(r.varint("packet with telemetry")?);
                let packet = packet.ok_or(WireError::Invalid("packet with telemetry"))?;
                let hops = (1..n).map(|_| parse_hop(r)).collect::<Result<_, _>>()?;
                Some(Telemetry { packet, hops })
            }
        };
        Ok(ReceiverSignals { host_delay_us, ect0, ect1, marks, telemetry })
    }

    fn encoded_len(&self, f: &Feedback) -> usize {
        let ints = [self.host_delay_us, self.ect0, self.ect1, self.marks.len() as u64];
        let telemetry = self.telemetry.as_ref().map_or(0, |t| {
            let hop = |h: &Hop| 18 + varint_len(h.queue) + varint_len(h.rate.bytes_per_sec());
            varint_len(f.largest - t.packet) + t.hops.iter().map(hop).sum::<usize>()
        });
        ints.map(varint_len).iter().sum::<usize>() + runs_len(&self.marks, f.covered.start) + 1 + telemetry
    }

    fn put(&self, f: &Feedback, out: &mut impl Put) {
        for v in [self.host_delay_us, self.ect0, self.ect1] {
            out.put_varint(v);
        }
        put_runs(&self.marks, f.covered.start, out);
        let Some(t) = &self.telemetry else { return out.put_u8(0) };
        out.put_varint(t.hops.len() as u64 + 1);
        out.put_varint(f.largest - t.packet);
        for h in &t.hops {
            out.put_u16(h.id);
            out.put_u64(h.at.as_nanos());
            out.put_varint(h.queue.min(VARINT_MAX));
            out.put_u64(h.sent);
            out.put_varint(h.rate.bytes_per_sec().min(VARINT_MAX));
        }
    }
}

fn parse_hop(r: &mut Reader<'_>) -> Result<Hop, WireError> {
    Ok(Hop {
        id: r.u16("hop")?,
        at: Time::from_nanos(r.u64("time of a hop")?),
        queue: r.varint("queue of a hop")?,
        sent: r.u64("bytes sent by a hop")?,
        rate: Rate::from_bytes_per_sec(r.varint("rate of a hop")?),
    })
}

/// Ascending, disjoint ranges inside `covered`, each apart from the one before.
fn runs(r: &mut Reader<'_>, covered: &Range<u64>, what: &'static str) -> Result<Vec<Range<u64>>, WireError> {
    let count = r.varint(what)?;
    // Each takes two bytes at least: no more than what is there is ever allocated.
    if count > r.rest().len() as u64 / 2 {
        return Err(WireError::Truncated(what));
    }
    let mut all = Vec::with_capacity(count as usize);
    let mut at = covered.start;
    for _ in 0..count {
        let start = at + r.varint(what)?;
        let end = start + r.varint(what)? + 1;
        if end > covered.end || (start == at && at != covered.start) {
            return Err(WireError::Invalid(what));
        }
        all.push(start..end);
        at = end;
    }
    Ok(all)
}

fn runs_len(runs: &[Range<u64>], from: u64) -> usize {
    let mut at = from;
    runs.iter().map(|h| Feedback::hole_len(h.start - core::mem::replace(&mut at, h.end), h)).sum()
}

fn put_runs(runs: &[Range<u64>], from: u64, out: &mut impl Put) {
    out.put_varint(runs.len() as u64);
    let mut at = from;
    for h in runs {
        out.put_varint(h.start - at);
        out.put_varint(h.end - h.start - 1);
        at = h.end;
    }
}

/// Whether no range of the one list meets one of the other; both ascend.
fn apart(a: &[Range<u64>], b: &[Range<u64>]) -> bool {
    let mut b = b.iter().peekable();
    a.iter().all(|x| {
        while b.next_if(|y| y.end <= x.start).is_some() {}
        b.peek().is_none_or(|y| y.start >= x.end)
    })
}

impl Feedback {
    /// Bytes that the statement takes without holes at most.
    pub const MAX_FIXED: usize = 3 + 8 * 5 + 4 + 4;

    /// Bytes that one hole takes, `gap` behind the end of the previous one.
    pub fn hole_len(gap: u64, hole: &Range<u64>) -> usize {
        varint_len(gap) + varint_len(hole.end - hole.start - 1)
    }

    /// The type of the frame.
    pub(super) const fn kind(&self) -> u8 {
        if self.signals.is_some() { super::kind::FEEDBACK_SIGNALS } else { super::kind::FEEDBACK }
    }

    pub(super) fn parse(r: &mut Reader<'_>, signals: bool) -> Result<Feedback, WireError> {
        let lane = super::lane(r)?;
        let largest = r.varint("largest")?;
        let behind = r.varint("covered end")?;
        let n = r.varint("covered length")?;
        let to = (largest + 1).checked_sub(behind).ok_or(WireError::Invalid("covered end"))?;
        let from = to.checked_sub(n).ok_or(WireError::Invalid("covered length"))?;
        let delay_us = r.varint("feedback delay")?;
        let arrival_us = r.u32("arrival")?;
        let marked = r.varint("marked")?;
        let holes = runs(r, &(from..to), "hole")?;
        let mut f =
            Feedback { lane, largest, delay_us, arrival_us, marked, covered: from..to, holes, signals: None };
        if signals {
            f.signals = Some(ReceiverSignals::parse(r, &f)?);
        }
        Ok(f)
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
        let signals = self.signals.as_ref().map_or(0, |t| t.encoded_len(self));
        let holes = runs_len(&self.holes, self.covered.start);
        4 + ints.map(varint_len).iter().sum::<usize>() + holes + signals
    }

    pub(super) fn put(&self, out: &mut impl Put) {
        out.put_varint(self.lane.into());
        out.put_varint(self.largest);
        out.put_varint(self.largest + 1 - self.covered.end);
        out.put_varint(self.covered.end - self.covered.start);
        out.put_varint(self.delay_us);
        out.put_u32(self.arrival_us);
        out.put_varint(self.marked);
        put_runs(&self.holes, self.covered.start, out);
        if let Some(t) = &self.signals {
            t.put(self, out);
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
            signals: None,
        };
        let mut b = Vec::new();
        f.put(&mut b);
        let plain = [0, 0x40, 100, 0, 11, 5, 1, 2, 3, 4, 1, 2, 2, 0, 2, 2];
        assert_eq!(b, plain);
        let hop = Hop {
            id: 0x0102,
            at: Time::from_nanos(7),
            queue: 8,
            sent: 9,
            rate: Rate::from_bytes_per_sec(10),
        };
        let told = ReceiverSignals {
            host_delay_us: 3,
            ect0: 6,
            ect1: 0,
            marks: vec![90..91, 98..100],
            telemetry: Some(Telemetry { packet: 99, hops: vec![hop] }),
        };
        let f = Feedback { signals: Some(told), ..f };
        b.clear();
        f.put(&mut b);
        let mut want = plain.to_vec();
        want.extend([3, 6, 0, 2, 0, 0, 7, 1]);
        want.extend([2, 1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 9, 10]);
        assert_eq!(b, want);
        assert_eq!(Feedback::parse(&mut Reader::new(&b), true), Ok(f));
    }

    #[test]
    fn marks_must_lie_inside_apart_and_outside_of_holes() {
        let base = [0u8, 0x40, 100, 0, 11, 5, 1, 2, 3, 4, 1, 2, 2, 0, 2, 2, 3, 6, 0];
        let parse = |rest: &[u8]| Feedback::parse(&mut Reader::new(&[&base[..], rest].concat()), true);
        assert!(parse(&[2, 0, 1, 1, 0, 0]).is_ok(), "90..92, 93..94");
        let bad: [&[u8]; 8] = [
            &[1, 11, 0, 0],         // behind the end
            &[1, 2, 0, 0],          // the first hole
            &[1, 0, 9, 0],          // over both
            &[2, 0, 0, 0, 0, 0],    // two that touch
            &[1, 0],                // cut short
            &[0x80, 1, 0, 0, 0, 0], // more than there can be
            &[0, 10],               // more hops than may be
            &[0, 2, 0x40, 101, 0],  // telemetry of a packet below none
        ];
        for rest in bad {
            assert!(parse(rest).is_err(), "{rest:?}");
        }
    }

    #[test]
    fn holes_must_lie_inside_and_apart() {
        let base = [0u8, 0x40, 100, 0, 11, 5, 1, 2, 3, 4, 1];
        for holes in [&[1u8, 11, 0][..], &[2, 2, 0, 0, 0], &[9, 1, 1]] {
            let b = [&base[..], holes].concat();
            assert!(Feedback::parse(&mut Reader::new(&b), false).is_err(), "{holes:?}");
        }
    }

    proptest! {
        #[test]
        fn round_trips(from in 0u64..1 << 40, steps in proptest::collection::vec((1u64..500, 1u64..70, any::<bool>()), 0..50), behind in 0u64..9, hops in proptest::option::of(0..=MAX_HOPS), signals in any::<bool>()) {
            let mut at = from;
            let (mut holes, mut marks) = (Vec::new(), Vec::new());
            for (gap, len, marked) in steps {
                let run = at + gap..at + gap + len;
                at = run.end;
                if marked && signals { marks.push(run) } else { holes.push(run) }
            }
            let largest = at + behind;
            let hop = |n: usize| Hop { id: n as u16, at: Time::from_nanos(from), queue: from << n, sent: u64::MAX - from, rate: Rate::from_bytes_per_sec(from) };
            let telemetry = hops.map(|n| Telemetry { packet: largest - behind, hops: (0..n).map(hop).collect() });
            let told = ReceiverSignals { host_delay_us: 99, ect0: from, ect1: 70, marks, telemetry };
            let f = Feedback { lane: 1, largest, delay_us: 77, arrival_us: 3, marked: 9, covered: from..at + 1, holes, signals: signals.then_some(told) };
            let most = Feedback::MAX_FIXED + ReceiverSignals::max_fixed(hops);
            let f = Frame::Feedback(f);
            let mut b = Vec::new();
            f.put(&mut b);
            prop_assert_eq!(b.len(), f.encoded_len());
            prop_assert_eq!(Frame::parse(&mut Reader::new(&b)), Ok(f.clone()));
            let Frame::Feedback(f) = f else { unreachable!() };
            let runs = runs_len(&f.holes, from) + f.signals.map_or(0, |t| runs_len(&t.marks, from));
            prop_assert!(b.len() <= most + runs);
        }
    }
}
