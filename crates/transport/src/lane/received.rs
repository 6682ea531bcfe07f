//! Packet numbers received on a lane, and when to report them.

use base::{RangeSet, Span, Time};
use core::ops::Range;
use wire::{Feedback, Floor};

/// Disjoint runs of received packets kept at most. 600,000 packets in flight with 1 % lost make 6,000; a
/// peer that makes more has its packets dropped until it moves the floor.
pub const MAX_RUNS: usize = 1 << 18;
/// Bounds on what the peer may ask of the feedback interval.
const MIN_INTERVAL: Span = Span::from_micros(50);
const MAX_INTERVAL: Span = Span::from_millis(100);

/// The receiver's books of a lane.
#[derive(Debug)]
pub struct Received {
    seen: RangeSet,
    /// Below, everything is decided by the sender: late copies are dropped.
    floor: u64,
    largest: Option<u64>,
    largest_at: Time,
    marked: u64,
    /// Packets since the last report that ask for one.
    unreported: u64,
    first_unreported: Time,
    ask: bool,
    interval: Span,
    packets: u64,
}

impl Default for Received {
    fn default() -> Received {
        Received::new()
    }
}

impl Received {
    /// Empty books with a cautious feedback interval until the sender says what it wants.
    pub const fn new() -> Received {
        Received {
            seen: RangeSet::new(),
            floor: 0,
            largest: None,
            largest_at: Time::ZERO,
            marked: 0,
            unreported: 0,
            first_unreported: Time::ZERO,
            ask: false,
            interval: Span::from_millis(1),
            packets: 32,
        }
    }

    /// The packet number to expand truncated ones around.
    pub fn expected(&self) -> u64 {
        self.largest.map_or(0, |l| l + 1)
    }

    /// Whether a packet of this number is to be dropped: received before, or decided by its sender, or one
    /// hole too many.
    pub fn is_stale(&self, pn: u64) -> bool {
        if pn < self.floor || self.seen.containing(pn).is_some() {
            return true;
        }
        // A full book takes what lengthens a run, also in the midst of a wide hole, but nothing that makes a new one.
        let seen = |pn: Option<u64>| pn.is_some_and(|pn| self.seen.containing(pn).is_some());
        self.seen.ranges() >= MAX_RUNS && !seen(pn.checked_sub(1)) && !seen(pn.checked_add(1))
    }

    /// Runs of received packets that are kept: at most [`MAX_RUNS`].
    pub fn runs(&self) -> usize {
        self.seen.ranges()
    }

    /// Enters a packet that passed its tag and was placed.
    pub fn on_packet(&mut self, now: Time, pn: u64, eliciting: bool, ask: bool, marked: bool) {
        self.seen.insert(pn..pn + 1);
        if self.largest.is_none_or(|l| pn > l) {
            self.largest = Some(pn);
            self.largest_at = now;
        }
        self.marked += u64::from(marked);
        if eliciting {
            if self.unreported == 0 {
                self.first_unreported = now;
            }
            self.unreported += 1;
            self.ask |= ask;
        }
    }

    /// The sender says how to report and what to forget.
    pub fn on_floor(&mut self, f: &Floor) {
        self.interval = Span::from_micros(f.interval_us.min(1_000_000)).clamp(MIN_INTERVAL, MAX_INTERVAL);
        self.packets = f.packets.clamp(1, 1 << 20);
        // A floor beyond anything received is the sender's own business, but books stay small.
        if f.floor > self.floor {
            self.seen.remove(self.floor..f.floor);
            self.floor = f.floor;
        }
    }

    /// When the next report is due; [`Time::ZERO`] means at once.
    pub fn due(&self) -> Option<Time> {
        if self.unreported == 0 {
            return None;
        }
        if self.ask || self.unreported >= self.packets {
            return Some(Time::ZERO);
        }
        Some(self.first_unreported + self.interval)
    }

    /// Takes the report that is due, in as many statements as it needs to fit `room` bytes each.
    pub fn take_feedback(&mut self, now: Time, lane: u32, room: usize) -> Vec<Feedback> {
        let Some(largest) = self.largest else { return Vec::new() };
        self.unreported = 0;
        self.ask = false;
        let mut out = Vec::with_capacity(1);
        let mut all = self.seen.gaps(self.floor..largest + 1).peekable();
        let budget = room.saturating_sub(Feedback::MAX_FIXED);
        let mut from = self.floor.min(largest + 1);
        loop {
            let (mut holes, mut used, mut at) = (Vec::new(), 0, from);
            while let Some(h) = all.peek() {
                let n = Feedback::hole_len(h.start - at, h);
                if used + n > budget {
                    break;
                }
                used += n;
                at = h.end;
                holes.extend(all.next());
            }
            let to = all.peek().map_or(largest + 1, |h| h.start);
            let end = to == largest + 1;
            out.push(self.statement(now, lane, from..to, holes));
            if end || budget < 32 {
                return out;
            }
            from = to;
        }
    }

    fn statement(&self, now: Time, lane: u32, covered: Range<u64>, holes: Vec<Range<u64>>) -> Feedback {
        Feedback {
            lane,
            largest: self.largest.unwrap_or(0),
            delay_us: now.since(self.largest_at).as_micros(),
            arrival_us: (self.largest_at.as_nanos() / 1_000) as u32,
            marked: self.marked,
            covered,
            holes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "a list of one hole")]
    fn reports_are_timed_and_list_only_holes() {
        let mut r = Received::new();
        for pn in [0, 1, 2, 5, 6, 9] {
            assert!(!r.is_stale(pn));
            r.on_packet(at(10), pn, true, false, pn == 6);
        }
        assert!(r.is_stale(5));
        assert_eq!(r.due(), Some(at(11)));
        let f = &r.take_feedback(at(11), 0, 1000)[0];
        assert_eq!(
            (f.covered.clone(), f.holes.clone(), f.marked, f.delay_us),
            (0..10, vec![3..5, 7..9], 1, 1000)
        );
        assert_eq!(r.due(), None);
        r.on_floor(&Floor { lane: 0, floor: 6, interval_us: 5_000, packets: 2 });
        assert!(r.is_stale(4));
        r.on_packet(at(20), 10, true, false, false);
        assert_eq!(r.due(), Some(at(25)));
        r.on_packet(at(20), 7, true, false, false);
        assert_eq!(r.due(), Some(Time::ZERO));
        let f = &r.take_feedback(at(21), 0, 1000)[0];
        assert_eq!((f.covered.clone(), f.holes.clone()), (6..11, vec![8..9]));
    }

    #[test]
    fn a_long_report_is_split_into_adjoining_statements() {
        let mut r = Received::new();
        for pn in (0..20_000).step_by(2) {
            r.on_packet(at(1), pn, true, false, false);
        }
        let parts = r.take_feedback(at(1), 0, 1200);
        assert!(parts.len() > 10);
        let mut at = 0;
        for p in &parts {
            assert_eq!(p.covered.start, at);
            at = p.covered.end;
            assert!(wire::Frame::Feedback(p.clone()).encoded_len() <= 1200);
        }
        assert_eq!(at, 19_999);
        assert_eq!(parts.iter().map(|p| p.holes.len()).sum::<usize>(), 9_999);
    }

    #[test]
    fn a_floor_beyond_everything_is_harmless() {
        let mut r = Received::new();
        r.on_packet(at(1), 3, true, true, false);
        r.on_floor(&Floor { lane: 0, floor: 1 << 40, interval_us: u64::MAX, packets: 0 });
        let f = &r.take_feedback(at(2), 0, 1000)[0];
        assert!(f.covered.is_empty() && f.holes.is_empty());
        assert!(r.is_stale(4));
    }

    #[test]
    fn books_stay_small_against_a_peer_that_leaves_holes() {
        let mut r = Received::new();
        let mut pn = 0;
        while !r.is_stale(pn) {
            r.on_packet(at(1), pn, true, false, false);
            pn += 2;
        }
        assert_eq!(r.runs(), MAX_RUNS);
        assert!(!r.is_stale(1), "filling a hole is still possible");
    }

    #[test]
    fn books_stay_small_against_a_peer_that_fills_one_wide_hole_from_within() {
        let mut r = Received::new();
        r.on_packet(at(1), 0, true, false, false);
        r.on_packet(at(1), 1 << 30, true, false, false);
        let taken = (1..2 * MAX_RUNS as u64).map(|n| 2 * n).filter(|pn| {
            let fresh = !r.is_stale(*pn);
            if fresh {
                r.on_packet(at(1), *pn, true, false, false);
            }
            fresh
        });
        assert_eq!(taken.count(), MAX_RUNS - 2);
        assert_eq!(r.runs(), MAX_RUNS);
    }
}
