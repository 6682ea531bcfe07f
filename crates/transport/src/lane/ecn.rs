//! ECN validation of a path (RFC 9000, section 13.4.2 and appendix A.4), for each codepoint and for the lane's whole
//! life.
//!
//! Each codepoint is watched by itself. In a window of a round trip or more, of the packets that were sent with it and are
//! reported, so many arrived with it, so many marked; what is missing was cleared or became the other one. Unlike in A.4 all
//! packets of the test carry the field, not the first ten: a path that drops them is found by their losses. A codepoint that
//! failed is not sent any more but for a few packets now and then, to see whether that is still so.

use crate::error::{Violation, code};
use base::{Ecn, Span, Time};
use cc::platform::{EcnFault, EcnPath, Found};
use core::ops::Range;
use wire::Feedback;

/// Packets that a verdict needs (RFC 9000, appendix A.4).
const SAMPLE: u64 = 10;
/// Packets lost in a row, and none that arrived for a round trip, after which the path is taken to drop them. (A queue that
/// overflows loses as many in a row, while what waits in it goes on arriving.)
const DROPPED: u64 = 16;
/// Windows in a row that change a verdict.
const WINDOWS: u32 = 2;
/// Windows in a row without an unmarked packet that make marks worthless: what answers them would send next to nothing by
/// then.
const ALL_MARKED: u32 = 8;
/// Packets of a probe.
const PROBE: u64 = 16;
/// Round trips between the first probes of a codepoint that failed; twice as many after each, up to this.
const PROBE_AFTER: u64 = 4;
const PROBE_AFTER_MOST: u64 = 64;
/// The same where a probe costs its packets, and the least that counts as a round trip then: a time-out takes longer.
const DROPPED_AFTER_MOST: u64 = 1_024;
const DROPPED_STEP: Span = Span::from_millis(10);
/// Time-outs without one that arrived, after which the path is taken to drop them (RFC 9000, section 13.4.2).
const SILENCE: u32 = 2;
/// Of so many packets one may lack its field without a meaning: reports and counts are not of the same instant.
const TOLERATED: u64 = 8;
/// A queue that is shorter than this was marked as L4S marks (RFC 9332 aims at 1 ms).
const SHALLOW: Span = Span::from_millis(3);

/// The validation state of one ECN codepoint.
#[derive(Clone, Debug, Default)]
struct CodepointState {
    path: EcnPath,
    /// When its window began, and what was counted by then.
    since: Time,
    base: Totals,
    /// Packets lost since one arrived, and when it was reported.
    lost: u64,
    heard: Option<Time>,
    /// Some were sent since, and so many time-outs were there meanwhile.
    waits: bool,
    timeouts: u32,
    /// Windows in a row that contradict `path`, and what they say instead.
    against: (u32, EcnPath),
    all_marked: u32,
    /// Of one that failed: when it is probed next, packets left to send of the present probe, and the next wait.
    probe_at: Time,
    probe_left: u64,
    wait: u64,
}

/// The ECN counts that the peer reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PeerCounts {
    ect0: u64,
    ect1: u64,
    ce: u64,
}

/// All counts: those of the peer, and per codepoint the packets sent with it that were acknowledged and those of them
/// marked.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    counts: PeerCounts,
    acked: [u64; 2],
    marked: [u64; 2],
}

/// ECN validation of one lane.
#[derive(Clone, Debug, Default)]
pub struct EcnValidator {
    codepoints: [CodepointState; 2],
    /// The newest statement's `largest`, and its counts.
    largest: Option<u64>,
    totals: Totals,
    marks: Found,
    l4s: Found,
    /// A time-out came, and nothing has arrived since: what leaves now is to arrive.
    silent: bool,
    /// Verdicts changed since that was asked last.
    changed: bool,
}

impl PeerCounts {
    const fn of(&self, codepoint: usize) -> u64 {
        if codepoint == 0 { self.ect0 } else { self.ect1 }
    }
}

const fn index(ecn: Ecn) -> Option<usize> {
    match ecn {
        Ecn::Ect0 => Some(0),
        Ecn::Ect1 => Some(1),
        Ecn::NotEct | Ecn::Ce => None,
    }
}

impl EcnValidator {
    /// The codepoint for a train whose flow wants this one; `rtt` is the smoothed round trip.
    pub fn codepoint(&mut self, now: Time, wanted: Ecn, rtt: Span) -> Ecn {
        let totals = self.totals;
        let Some(c) = index(wanted).map(|i| &mut self.codepoints[i]) else { return Ecn::NotEct };
        match c.path {
            EcnPath::Unknown => c.path = EcnPath::Testing,
            EcnPath::Testing | EcnPath::Capable => {}
            EcnPath::Failed(_) => {
                if c.probe_left == 0 && now >= c.probe_at && !self.silent {
                    (c.probe_left, c.lost, c.base) = (PROBE, 0, totals);
                    let dropped = c.path == EcnPath::Failed(EcnFault::Dropped);
                    let (step, most) = if dropped {
                        (rtt.max(DROPPED_STEP), DROPPED_AFTER_MOST)
                    } else {
                        (rtt, PROBE_AFTER_MOST)
                    };
                    c.probe_at = now + step * c.wait;
                    c.wait = (c.wait * 2).min(most);
                }
                if c.probe_left == 0 {
                    return Ecn::NotEct;
                }
            }
        }
        wanted
    }

    /// A train left.
    pub fn on_sent(&mut self, ecn: Ecn, packets: u64) {
        if let Some(c) = index(ecn).map(|i| &mut self.codepoints[i]) {
            c.probe_left = c.probe_left.saturating_sub(packets);
            c.waits = true;
        }
    }

    /// A packet is reported; `queue`: how long the path's queue was.
    pub fn on_acked(&mut self, now: Time, ecn: Ecn, marked: bool, queue: Span) {
        self.silent = false;
        let Some(i) = index(ecn) else { return };
        self.totals.acked[i] += 1;
        let c = &mut self.codepoints[i];
        (c.lost, c.heard, c.timeouts, c.waits) = (0, Some(now), 0, false);
        if marked {
            self.totals.marked[i] += 1;
            self.marks = Found::Yes;
            if i == 1 && queue <= SHALLOW {
                self.l4s = Found::Yes;
            }
        }
    }

    /// A packet is lost.
    pub fn on_lost(&mut self, now: Time, ecn: Ecn, rtt: Span) {
        let Some(c) = index(ecn).map(|i| &mut self.codepoints[i]) else { return };
        c.lost += 1;
        let silent = c.heard.is_none_or(|t| now.since(t) >= rtt);
        if c.lost >= DROPPED && silent && !matches!(c.path, EcnPath::Failed(_)) {
            self.fail(now, i_of(ecn), EcnFault::Dropped, rtt);
        }
    }

    /// A time-out: perhaps the path drops what is ECN-capable. A probe ends with the first: whoever sends a packet a time-out
    /// would else be cut off for all of its packets. What arrives without the field, between time-outs, says nothing.
    pub fn on_timeout(&mut self, now: Time, rtt: Span) {
        self.silent = true;
        for i in 0..2 {
            let c = &mut self.codepoints[i];
            c.timeouts += u32::from(c.waits);
            match c.path {
                EcnPath::Unknown => {}
                EcnPath::Failed(fault) if fault != EcnFault::Untold => c.probe_left = 0,
                _ if c.timeouts >= SILENCE => self.fail(now, i, EcnFault::Dropped, rtt),
                _ => {}
            }
        }
    }

    fn fail(&mut self, now: Time, i: usize, fault: EcnFault, rtt: Span) {
        let c = &mut self.codepoints[i];
        let base = self.totals;
        *c = CodepointState {
            path: EcnPath::Failed(fault),
            wait: PROBE_AFTER * 2,
            base,
            ..CodepointState::default()
        };
        c.probe_at = now + rtt * PROBE_AFTER;
        self.changed = true;
    }

    /// Checks what a statement counts; `sent` packets left on the lane.
    ///
    /// # Errors
    /// Counts that cannot be true: more packets than were sent, or fewer than before (RFC 9000, section 13.4.2.1).
    pub fn check(&mut self, f: &Feedback, sent: u64) -> Result<(), Violation> {
        let Some(t) = &f.signals else { return Ok(()) };
        let new = PeerCounts { ect0: t.ect0, ect1: t.ect1, ce: f.marked };
        let total = t.ect0.checked_add(t.ect1).and_then(|n| n.checked_add(f.marked));
        let listed: u64 = t.marks.iter().map(|m| m.end - m.start).sum();
        if total.is_none_or(|n| n > sent) || listed > f.marked {
            return Err(Violation::new(code::FALSE_FEEDBACK, "marks counted on more packets than were sent"));
        }
        let old = self.totals.counts;
        let grown = |a: PeerCounts, b: PeerCounts| a.ect0 <= b.ect0 && a.ect1 <= b.ect1 && a.ce <= b.ce;
        let true_so_far = match self.largest {
            None => true,
            // Statements overtake each other; of one `largest` there may be several reports.
            Some(l) if f.largest > l => grown(old, new),
            Some(l) if f.largest < l => grown(new, old),
            Some(_) => grown(old, new) || grown(new, old),
        };
        if !true_so_far {
            return Err(Violation::new(code::FALSE_FEEDBACK, "counts of marked packets that shrink"));
        }
        if self.largest.is_none_or(|l| f.largest >= l) && grown(old, new) {
            (self.largest, self.totals.counts) = (Some(f.largest), new);
        }
        Ok(())
    }

    /// A whole report is digested: ends the window if it is long enough.
    pub fn on_report(&mut self, now: Time, rtt: Span, told: bool) {
        if !told {
            return self.on_counts_missing();
        }
        for i in 0..2 {
            let (c, is) = (&self.codepoints[i], self.totals);
            let acked = is.acked[i] - c.base.acked[i];
            // Of one that failed few are sent: as soon as there are enough.
            let probed = matches!(c.path, EcnPath::Failed(_));
            if acked < SAMPLE || !probed && now.since(c.since) < rtt {
                continue;
            }
            let marked = is.marked[i] - c.base.marked[i];
            // What is missing of a codepoint, and how many arrived with the other one that were not sent so.
            let missing = |k: usize| {
                let (was, is) = (&c.base, &is);
                let arrived = is.counts.of(k).saturating_sub(was.counts.of(k));
                (is.acked[k] - was.acked[k]) as i64 - (is.marked[k] - was.marked[k]) as i64 - arrived as i64
            };
            let (lost, other) = (missing(i), -missing(1 - i));
            self.validate_window(now, i, (acked, marked), (lost, other), rtt);
            let c = &mut self.codepoints[i];
            (c.since, c.base) = (now, self.totals);
        }
    }

    /// The window's verdict on one codepoint: packets that lost it, and those that arrived with the other one unsent.
    fn validate_window(
        &mut self,
        now: Time,
        i: usize,
        (acked, marked): (u64, u64),
        (missing, other): (i64, i64),
        rtt: Span,
    ) {
        let c = &mut self.codepoints[i];
        let most = (acked / TOLERATED) as i64;
        c.all_marked = if marked == acked { c.all_marked + 1 } else { 0 };
        let says = if missing > most {
            let fault = if other > most { EcnFault::Remarked } else { EcnFault::Bleached };
            EcnPath::Failed(fault)
        } else if c.all_marked >= ALL_MARKED {
            EcnPath::Failed(EcnFault::AllMarked)
        } else if marked == acked && c.path == EcnPath::Failed(EcnFault::AllMarked) {
            c.path
        } else {
            EcnPath::Capable
        };
        if says == c.path {
            c.against = (0, says);
            return;
        }
        let again = if c.against.1 == says { c.against.0 + 1 } else { 1 };
        c.against = (again, says);
        // That it works is believed at once where nothing spoke against it.
        let enough = c.path == EcnPath::Testing && says == EcnPath::Capable;
        if again < WINDOWS && !enough {
            // One more look, soon.
            c.probe_at = now;
            return;
        }
        match says {
            EcnPath::Failed(fault) => self.fail(now, i, fault, rtt),
            _ => {
                let (all_marked, heard) = (c.all_marked, c.heard);
                *c = CodepointState { path: says, all_marked, heard, ..CodepointState::default() };
                self.changed = true;
            }
        }
    }

    fn on_counts_missing(&mut self) {
        for c in self.codepoints.iter_mut().filter(|c| c.path == EcnPath::Testing) {
            // It is sent on: marks are counted, though not told apart.
            (c.path, c.wait, c.probe_left) = (EcnPath::Failed(EcnFault::Untold), 1, u64::MAX);
            self.changed = true;
        }
    }

    /// Resets validation for another path. The peer's counts continue.
    pub fn on_path_change(&mut self) {
        let (largest, totals) = (self.largest, self.totals);
        let fresh = CodepointState { base: totals, ..CodepointState::default() };
        let codepoints = [fresh.clone(), fresh];
        *self = EcnValidator { codepoints, largest, totals, changed: true, ..EcnValidator::default() };
    }

    /// The validation result for ECT(0) and ECT(1).
    pub const fn paths(&self) -> [EcnPath; 2] {
        [self.codepoints[0].path, self.codepoints[1].path]
    }
    /// Whether marks were seen, and such of L4S.
    pub const fn seen(&self) -> (Found, Found) {
        (self.marks, self.l4s)
    }
    /// Makes [`take_changed`](EcnValidator::take_changed) return true.
    pub fn mark_changed(&mut self) {
        self.changed = true;
    }
    /// Whether a verdict changed since this was asked last.
    pub fn take_changed(&mut self) -> bool {
        core::mem::take(&mut self.changed)
    }
}

const fn i_of(ecn: Ecn) -> usize {
    if matches!(ecn, Ecn::Ect1) { 1 } else { 0 }
}

/// The packets that a feedback frame reports as marked.
pub(super) struct MarkedPackets<'a>(&'a [Range<u64>]);

impl MarkedPackets<'_> {
    pub(super) fn of(f: &Feedback) -> MarkedPackets<'_> {
        MarkedPackets(f.signals.as_ref().map_or(&[], |s| &s.marks))
    }

    pub(super) fn has(&self, pn: u64) -> bool {
        let behind = self.0.partition_point(|m| m.end <= pn);
        self.0.get(behind).is_some_and(|m| m.start <= pn)
    }
}

#[cfg(test)]
mod tests;
