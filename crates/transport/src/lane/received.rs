//! The packet numbers received on a lane, and when to send feedback on them.

use base::telemetry::Hop;
use base::{Ecn, RangeSet, Span, Time};
use core::ops::Range;
use wire::frame::{ReceiverSignals, Telemetry};
use wire::{Feedback, Floor};

/// Disjoint runs of received packets kept at most. 600,000 packets in flight with 1 % lost make 6,000; a
/// peer that makes more has its packets dropped until it moves the floor.
pub const MAX_RUNS: usize = 1 << 18;
/// Bounds on what the peer may ask of the feedback interval.
const MIN_INTERVAL: Span = Span::from_micros(50);
const MAX_INTERVAL: Span = Span::from_millis(100);

/// So many packets that nobody asked about wait this many intervals for data to travel with, but no longer than this: well
/// below the millisecond that a sender allows for delays before it probes.
const FEW: u64 = 4;
const LONGER: u64 = 4;
const MAX_REPORT_DELAY: Span = Span::from_micros(400);

/// How a packet arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When, as the host says.
    pub at: Time,
    /// Its ECN field.
    pub ecn: Ecn,
    /// How long it waited in the host before it was processed.
    pub waited: Span,
}

/// The packets received on a lane, as needed for feedback.
#[derive(Debug)]
pub struct Received {
    seen: RangeSet,
    /// Below, everything is decided by the sender: late copies are dropped.
    floor: u64,
    largest: Option<u64>,
    largest_at: Time,
    /// How long it waited in this host.
    waited: Span,
    /// Packets received with ECT(0), ECT(1) and Congestion Experienced.
    ect0: u64,
    ect1: u64,
    marked: u64,
    /// Those of the latter from the floor on: at most [`MAX_RUNS`] runs. Marks that would make more are counted only.
    marks: RangeSet,
    /// What hops wrote into the newest packet with telemetry, until it was told.
    telemetry: Option<Telemetry>,
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
    /// An empty record with a cautious feedback interval until the sender asks for another.
    pub const fn new() -> Received {
        Received {
            seen: RangeSet::new(),
            floor: 0,
            largest: None,
            largest_at: Time::ZERO,
            waited: Span::ZERO,
            ect0: 0,
            ect1: 0,
            marked: 0,
            marks: RangeSet::new(),
            telemetry: None,
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

    /// How long after an arrival the peer wants to be told of it.
    pub const fn interval(&self) -> Span {
        self.interval
    }

    /// AckRanges of received packets that are kept: at most [`MAX_RUNS`].
    pub fn runs(&self) -> usize {
        self.seen.ranges()
    }

    /// AckRanges of marked packets that are kept: at most [`MAX_RUNS`].
    pub fn marked_runs(&self) -> usize {
        self.marks.ranges()
    }

    /// Enters a packet that passed its tag and was placed.
    pub fn on_packet(&mut self, a: &Arrival, pn: u64, eliciting: bool, ask: bool) {
        self.seen.insert(pn..pn + 1);
        if self.largest.is_none_or(|l| pn > l) {
            self.largest = Some(pn);
            (self.largest_at, self.waited) = (a.at, a.waited);
        }
        match a.ecn {
            Ecn::NotEct => {}
            Ecn::Ect0 => self.ect0 += 1,
            Ecn::Ect1 => self.ect1 += 1,
            Ecn::Ce => {
                self.marked += 1;
                if self.marks.ranges() < MAX_RUNS {
                    self.marks.insert(pn..pn + 1);
                }
            }
        }
        let now = a.at;
        if eliciting {
            if self.unreported == 0 {
                self.first_unreported = now;
            }
            self.unreported += 1;
            self.ask |= ask;
        }
    }

    /// What hops wrote into a packet that was entered.
    pub fn on_telemetry(&mut self, pn: u64, hops: Vec<Hop>) {
        if self.telemetry.as_ref().is_none_or(|t| t.packet <= pn) {
            self.telemetry = Some(Telemetry { packet: pn, hops });
        }
    }

    /// The sender says how to report and what to forget.
    pub fn on_floor(&mut self, f: &Floor) {
        self.interval = Span::from_micros(f.interval_us.min(1_000_000)).clamp(MIN_INTERVAL, MAX_INTERVAL);
        self.packets = f.packets.clamp(1, 1 << 20);
        // A floor beyond anything received is the sender's own business, but the table stays small.
        if f.floor > self.floor {
            self.seen.remove(self.floor..f.floor);
            if !self.marks.is_empty() {
                self.marks.remove(self.floor..f.floor);
            }
            self.floor = f.floor;
        }
    }

    /// What has arrived and was not reported is to be reported at once.
    pub fn hurry_report(&mut self) {
        self.ask |= self.unreported > 0;
    }

    /// When the next report is due; [`Time::ZERO`] means at once. A few packets that nobody asked about wait longer where
    /// the interval is short: most likely data leaves before, and takes the report along. For the same reason one that was asked
    /// for waits for so long as the application may take to answer.
    pub fn due(&self, answer_wait: Span) -> Option<Time> {
        let longer = (self.interval * LONGER).min(MAX_REPORT_DELAY);
        let due =
            self.due_after(if self.unreported <= FEW { self.interval.max(longer) } else { self.interval })?;
        let answers = due == Time::ZERO && self.unreported <= FEW && !answer_wait.is_zero();
        Some(if answers { self.first_unreported + answer_wait } else { due })
    }

    /// Whether data that leaves now should take a report along.
    pub fn is_ripe(&self, now: Time) -> bool {
        self.due_after(self.interval).is_some_and(|t| t <= now)
    }

    fn due_after(&self, wait: Span) -> Option<Time> {
        if self.unreported == 0 {
            return None;
        }
        if self.ask || self.unreported >= self.packets {
            return Some(Time::ZERO);
        }
        Some(self.first_unreported + wait)
    }

    /// Takes the report that is due, in as many statements as it needs to fit `room` bytes each; `signals`: with what
    /// congestion control wants to know beside.
    pub fn take_feedback(
        &mut self,
        now: Time,
        lane: u32,
        (room, signals): (usize, bool),
        mut out: impl FnMut(Feedback),
    ) {
        let Some(largest) = self.largest else { return };
        self.unreported = 0;
        self.ask = false;
        let mut telemetry = self.telemetry.take().filter(|t| signals && t.packet <= largest);
        let fixed = |t: &Option<Telemetry>| {
            Feedback::MAX_FIXED
                + if signals { ReceiverSignals::max_fixed(t.as_ref().map(|t| t.hops.len())) } else { 0 }
        };
        if self.marks.is_empty() && self.seen.contains_all(self.floor..largest + 1) {
            // Nothing is missing: most reports are so.
            let told = signals.then(|| self.extra_signals(Vec::new(), telemetry));
            return out(self.statement(
                now,
                lane,
                self.floor.min(largest + 1)..largest + 1,
                (Vec::new(), told),
            ));
        }
        let mut all = self.seen.gaps(self.floor..largest + 1).peekable();
        let mut marked = self.marks.iter().take(if signals { usize::MAX } else { 0 }).peekable();
        let mut from = self.floor.min(largest + 1);
        loop {
            let budget = room.saturating_sub(fixed(&telemetry));
            let (mut holes, mut marks) = (AckRanges::new(from), AckRanges::new(from));
            let to = loop {
                let hole = match (all.peek(), marked.peek()) {
                    (None, None) => break largest + 1,
                    (Some(h), Some(m)) => h.start < m.start,
                    (h, _) => h.is_some(),
                };
                let used = holes.len + marks.len;
                let fits = match hole {
                    true => all.next_if(|h| holes.takes(h, budget - used)).is_some(),
                    false => marked.next_if(|m| marks.takes(m, budget - used)).is_some(),
                };
                if !fits {
                    break if hole { all.peek() } else { marked.peek() }.map_or(largest + 1, |r| r.start);
                }
            };
            let told = signals.then(|| self.extra_signals(marks.list, telemetry.take()));
            out(self.statement(now, lane, from..to, (holes.list, told)));
            if to == largest + 1 || budget < 32 {
                return;
            }
            from = to;
        }
    }

    fn extra_signals(&self, marks: Vec<Range<u64>>, telemetry: Option<Telemetry>) -> ReceiverSignals {
        ReceiverSignals {
            host_delay_us: self.waited.as_micros(),
            ect0: self.ect0,
            ect1: self.ect1,
            marks,
            telemetry,
        }
    }

    fn statement(
        &self,
        now: Time,
        lane: u32,
        covered: Range<u64>,
        (holes, signals): (Vec<Range<u64>>, Option<ReceiverSignals>),
    ) -> Feedback {
        Feedback {
            lane,
            largest: self.largest.unwrap_or(0),
            delay_us: now.since(self.largest_at).as_micros(),
            arrival_us: (self.largest_at.as_nanos() / 1_000) as u32,
            marked: self.marked,
            covered,
            holes,
            signals,
        }
    }
}

/// Ranges of a statement, and the bytes that they take.
struct AckRanges {
    list: Vec<Range<u64>>,
    at: u64,
    len: usize,
}

impl AckRanges {
    const fn new(from: u64) -> AckRanges {
        AckRanges { list: Vec::new(), at: from, len: 0 }
    }

    /// Appends a range if there is room for it.
    fn takes(&mut self, r: &Range<u64>, room: usize) -> bool {
        let n = Feedback::hole_len(r.start - self.at, r);
        if n > room {
            return false;
        }
        (self.len, self.at) = (self.len + n, r.end);
        self.list.push(r.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }
    fn taken(r: &mut Received, now: Time, room: usize, signals: bool) -> Vec<Feedback> {
        let mut all = Vec::new();
        r.take_feedback(now, 0, (room, signals), |f| all.push(f));
        all
    }
    fn arrives(ms: u64, ecn: Ecn) -> Arrival {
        Arrival { at: at(ms), ecn, waited: Span::from_micros(7) }
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "lists of one range")]
    fn marked_packets_are_reported_until_the_floor_passes_them() {
        let mut r = Received::new();
        let ecn = |pn| match pn {
            3 | 4 | 8 => Ecn::Ce,
            5 => Ecn::Ect1,
            _ => Ecn::Ect0,
        };
        (0..10).filter(|pn| *pn != 6).for_each(|pn| r.on_packet(&arrives(1, ecn(pn)), pn, true, false));
        r.on_telemetry(8, vec![Hop { id: 1, ..Hop::default() }]);
        r.on_telemetry(7, Vec::new());
        let f = &taken(&mut r, at(2), 1_000, true)[0];
        let told = f.signals.as_ref().unwrap();
        assert_eq!((told.ect0, told.ect1, f.marked, told.host_delay_us), (5, 1, 3, 7));
        assert_eq!((&f.holes, &told.marks), (&vec![6..7], &vec![3..5, 8..9]));
        assert_eq!(told.telemetry.as_ref().map(|t| (t.packet, t.hops.len())), Some((8, 1)));
        // Again: marks are repeated, telemetry is not.
        r.on_floor(&Floor { lane: 0, floor: 4, interval_us: 1_000, packets: 9 });
        let f = &taken(&mut r, at(3), 1_000, true)[0];
        let told = f.signals.as_ref().unwrap();
        assert_eq!((told.marks.clone(), told.telemetry.clone(), f.marked), (vec![4..5, 8..9], None, 3));
        assert_eq!(taken(&mut r, at(3), 1_000, false)[0].signals, None);
        r.on_floor(&Floor { lane: 0, floor: 9, interval_us: 1_000, packets: 9 });
        assert_eq!(r.marked_runs(), 0);
    }

    #[test]
    fn large_report_is_split_without_loss_or_duplication() {
        let mut r = Received::new();
        for pn in (0..20_000).filter(|pn| pn % 5 != 0) {
            let ecn = if pn % 5 == 2 { Ecn::Ce } else { Ecn::Ect0 };
            r.on_packet(&arrives(1, ecn), pn, true, false);
        }
        r.on_telemetry(19_999, vec![Hop::default(); base::telemetry::MAX_HOPS]);
        let parts = taken(&mut r, at(1), 1_100, true);
        assert!(parts.len() > 10);
        let (mut from, mut holes, mut marks) = (0, Vec::new(), Vec::new());
        for p in parts {
            assert_eq!(p.covered.start, from);
            from = p.covered.end;
            let len = wire::Frame::Feedback(p.clone()).encoded_len();
            assert!(len <= 1_100, "{len}");
            holes.extend(p.holes);
            marks.extend(p.signals.unwrap().marks);
        }
        let every = |at: u64| (0..4_000).map(|n| n * 5 + at..n * 5 + at + 1).collect::<Vec<_>>();
        assert_eq!((from, holes, marks), (20_000, every(0), every(2)));
    }

    #[test]
    fn marked_ranges_are_bounded() {
        let mut r = Received::new();
        for n in 0..MAX_RUNS as u64 + 10 {
            r.on_packet(&arrives(1, Ecn::Ect0), 2 * n, true, false);
            r.on_packet(&arrives(1, Ecn::Ce), 2 * n + 1, true, false);
        }
        assert_eq!((r.runs(), r.marked_runs(), r.marked), (1, MAX_RUNS, MAX_RUNS as u64 + 10));
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "a list of one hole")]
    fn reports_are_timed_and_list_missing_ranges() {
        let mut r = Received::new();
        for pn in [0, 1, 2, 5, 6, 9] {
            assert!(!r.is_stale(pn));
            r.on_packet(&arrives(10, if pn == 6 { Ecn::Ce } else { Ecn::Ect0 }), pn, true, false);
        }
        assert!(r.is_stale(5));
        assert_eq!(r.due(Span::ZERO), Some(at(11)));
        let f = &taken(&mut r, at(11), 1000, false)[0];
        assert_eq!(
            (f.covered.clone(), f.holes.clone(), f.marked, f.delay_us),
            (0..10, vec![3..5, 7..9], 1, 1000)
        );
        assert_eq!(r.due(Span::ZERO), None);
        r.on_floor(&Floor { lane: 0, floor: 6, interval_us: 5_000, packets: 2 });
        assert!(r.is_stale(4));
        r.on_packet(&arrives(20, Ecn::NotEct), 10, true, false);
        assert_eq!(r.due(Span::ZERO), Some(at(25)));
        r.on_packet(&arrives(20, Ecn::NotEct), 7, true, false);
        assert_eq!(r.due(Span::ZERO), Some(Time::ZERO));
        let f = &taken(&mut r, at(21), 1000, false)[0];
        assert_eq!((f.covered.clone(), f.holes.clone()), (6..11, vec![8..9]));
    }

    #[test]
    fn short_path_report_waits_to_piggyback_on_data() {
        let us = |n: u64| Time::from_nanos(n * 1_000);
        let mut r = Received::new();
        let arrives = |r: &mut Received, at, pn, ask| {
            r.on_packet(&Arrival { at, ecn: Ecn::NotEct, waited: Span::ZERO }, pn, true, ask);
        };
        let floor = |interval_us| Floor { lane: 0, floor: 0, interval_us, packets: 64 };
        r.on_floor(&floor(60));
        arrives(&mut r, us(1_000), 0, false);
        assert_eq!(r.due(Span::ZERO), Some(us(1_240)));
        assert!(!r.is_ripe(us(1_059)) && r.is_ripe(us(1_060)));
        (1..FEW).for_each(|pn| arrives(&mut r, us(1_001), pn, false));
        assert_eq!(r.due(Span::ZERO), Some(us(1_240)));
        arrives(&mut r, us(1_002), FEW, false);
        assert_eq!(r.due(Span::ZERO), Some(us(1_060)), "more than a few");
        // No longer than a sender may notice, and never sooner than it wants.
        taken(&mut r, us(1_100), 1_000, false);
        for (interval, wait) in [(120, 400), (400, 400), (25_000, 25_000)] {
            r.on_floor(&floor(interval));
            arrives(&mut r, us(2_000), FEW + interval, false);
            assert_eq!(r.due(Span::ZERO), Some(us(2_000 + wait)));
            taken(&mut r, us(2_001), 1_000, false);
        }
        r.on_floor(&floor(60));
        arrives(&mut r, us(3_000), 90_000, true);
        let waits = Span::from_micros(10);
        assert_eq!(r.due(waits), Some(us(3_010)), "the application may answer");
        assert!(r.is_ripe(us(3_000)), "with an answer it leaves at once");
        assert!(r.due(Span::ZERO) == Some(Time::ZERO) && r.is_ripe(us(3_000)), "asked");
    }

    #[test]
    fn long_report_is_split_into_adjacent_statements() {
        let mut r = Received::new();
        for pn in (0..20_000).step_by(2) {
            r.on_packet(&arrives(1, Ecn::NotEct), pn, true, false);
        }
        let parts = taken(&mut r, at(1), 1200, false);
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
    fn floor_beyond_all_packets_is_harmless() {
        let mut r = Received::new();
        r.on_packet(&arrives(1, Ecn::NotEct), 3, true, true);
        r.on_floor(&Floor { lane: 0, floor: 1 << 40, interval_us: u64::MAX, packets: 0 });
        let f = &taken(&mut r, at(2), 1000, false)[0];
        assert!(f.covered.is_empty() && f.holes.is_empty());
        assert!(r.is_stale(4));
    }

    #[test]
    fn received_ranges_are_bounded_when_a_peer_leaves_gaps() {
        let mut r = Received::new();
        let mut pn = 0;
        while !r.is_stale(pn) {
            r.on_packet(&arrives(1, Ecn::NotEct), pn, true, false);
            pn += 2;
        }
        assert_eq!(r.runs(), MAX_RUNS);
        assert!(!r.is_stale(1), "filling a hole is still possible");
    }

    #[test]
    fn received_ranges_are_bounded_when_a_wide_gap_is_filled() {
        let mut r = Received::new();
        r.on_packet(&arrives(1, Ecn::NotEct), 0, true, false);
        r.on_packet(&arrives(1, Ecn::NotEct), 1 << 30, true, false);
        let taken = (1..2 * MAX_RUNS as u64).map(|n| 2 * n).filter(|pn| {
            let fresh = !r.is_stale(*pn);
            if fresh {
                r.on_packet(&arrives(1, Ecn::NotEct), *pn, true, false);
            }
            fresh
        });
        assert_eq!(taken.count(), MAX_RUNS - 2);
        assert_eq!(r.runs(), MAX_RUNS);
    }
}
