//! Tracks the packets sent on a lane until they are acknowledged or declared lost.

use crate::streams::SegmentRef;
use base::{Span, Time};
use cc::engine::Train;
use core::ops::Range;
use std::collections::VecDeque;

/// The most packets that a lane tracks, acknowledged or not. 400 Gbit/s for 100 ms is 3.3 million packets in flight.
/// Where packets are lost they are tracked for three round trips while the table is at most half full, and little
/// more than one beyond (see `Lane::forget`). Of 600,000 in flight it holds 2 million.
pub const MAX_TRACKED: usize = 1 << 23;
/// Of these, places that data leaves to control packets, so that a full book still hears of feedback.
const CONTROL_RESERVE: usize = 1 << 12;
/// Ranges reported missing that a lane keeps at most: at worst every second tracked packet is one.
pub const MAX_SENT_HOLES: usize = MAX_TRACKED / 2 + 1;

/// What a packet carried, to be dealt with when its fate is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing that needs care.
    Nothing,
    /// Payload of a queue pair.
    Data(u16, SegmentRef),
    /// Control frames to be repeated when lost: index into the lane's table of them.
    Control(u32),
    /// A probe of the path's packet size, in bytes of UDP payload.
    MtuProbe(u16),
}

/// What is known of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No report is expected: the number was skipped or the packet did not ask for any.
    Untracked,
    /// Left out on purpose: whoever acknowledges it makes things up.
    Skipped,
    /// Sent, nothing heard.
    Outstanding,
    /// Arrived.
    Acked,
    /// Declared lost.
    Lost,
}

/// One packet.
#[derive(Clone, Debug)]
pub struct SentPacket {
    /// When it left.
    pub time: Time,
    /// The train it left in.
    pub train: u64,
    /// Bytes on the wire; congestion control counts these.
    pub bytes: u32,
    /// What is known of it.
    pub state: State,
    /// What it carried.
    pub content: Content,
}

/// The train of packets that belong to none (a number left out).
pub const NO_TRAIN: u64 = u64::MAX;

/// The trains sent, by consecutive number.
#[derive(Debug, Default)]
pub struct SentTrains {
    base: u64,
    trains: VecDeque<Train>,
}

impl SentTrains {
    /// Enters a train that is about to leave; its number goes into its packets.
    pub fn begin(&mut self, t: Train) -> u64 {
        self.trains.push_back(t);
        self.base + self.trains.len() as u64 - 1
    }
    /// The train with this number.
    pub fn get(&self, n: u64) -> Option<&Train> {
        self.trains.get(n.checked_sub(self.base)? as usize)
    }
    /// The last train entered, to be completed once its size is known.
    pub fn last_mut(&mut self) -> Option<&mut Train> {
        self.trains.back_mut()
    }
    /// The number of trains tracked: at most one more than packets, since each has one, but for the last.
    pub fn len(&self) -> usize {
        self.trains.len()
    }
    /// Whether no train is tracked.
    pub fn is_empty(&self) -> bool {
        self.trains.is_empty()
    }
    /// Takes back a train that stayed empty.
    pub fn undo_last(&mut self, n: u64) {
        if n + 1 == self.base + self.trains.len() as u64 {
            self.trains.pop_back();
        }
    }
    /// Forgets trains below `n`, but never the last.
    fn forget_below(&mut self, n: u64) {
        while self.base < n && self.trains.len() > 1 {
            self.trains.pop_front();
            self.base += 1;
        }
    }
}

/// The packets sent on a lane, by packet number; each is found in constant time.
#[derive(Debug, Default)]
pub struct SentPackets {
    base: u64,
    packets: VecDeque<SentPacket>,
    trains: SentTrains,
    outstanding: u64,
    /// What the peer reported missing, ascending, all below `reported`.
    holes: Vec<Range<u64>>,
    reported: u64,
    /// All packets below are decided: acknowledged, lost or untracked.
    decided: u64,
    /// Packets and ranges looked at so far.
    steps: u64,
}

/// Feedback that cannot be true: it acknowledges packets that were never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FalseFeedback;

impl SentPackets {
    /// The next packet number.
    pub fn next(&self) -> u64 {
        self.base + self.packets.len() as u64
    }
    /// The lowest packet number that is tracked: the peer can forget those below.
    pub const fn base(&self) -> u64 {
        self.base
    }
    /// Whether one more train of data fits, and a number left out before it.
    pub fn has_room(&self) -> bool {
        self.packets.len() + crate::connection::MAX_SEGMENTS + 1 + CONTROL_RESERVE <= MAX_TRACKED
    }
    /// Whether one more control packet fits.
    pub fn has_room_for_control(&self) -> bool {
        self.packets.len() < MAX_TRACKED
    }
    /// The number of tracked packets, whatever their state: at most [`MAX_TRACKED`].
    pub fn tracked(&self) -> usize {
        self.packets.len()
    }
    /// How many packets and ranges feedback, loss detection and forgetting have visited: the cost of tracking.
    pub const fn steps(&self) -> u64 {
        self.steps
    }
    /// Ranges reported missing that are kept: at most [`MAX_SENT_HOLES`].
    pub fn holes(&self) -> usize {
        self.holes.len()
    }
    /// Packets whose fate is unknown.
    pub const fn outstanding(&self) -> u64 {
        self.outstanding
    }
    /// The trains sent.
    pub const fn trains(&self) -> &SentTrains {
        &self.trains
    }
    /// The trains sent, to add one.
    pub fn trains_mut(&mut self) -> &mut SentTrains {
        &mut self.trains
    }
    /// Enters a packet and gives its number.
    pub fn push(&mut self, p: SentPacket) -> u64 {
        self.outstanding += u64::from(p.state == State::Outstanding);
        self.packets.push_back(p);
        self.next() - 1
    }
    /// Enters `n` packets of data: `p`, and those that carry what follows in the same message, all alike.
    pub fn push_run(&mut self, p: &SentPacket, (qpn, first): (u16, SegmentRef), n: usize) {
        self.outstanding += n as u64;
        let offsets = (first.offset..).step_by((first.len as usize).max(1));
        let content = |offset| Content::Data(qpn, SegmentRef { offset, ..first });
        self.packets
            .extend(offsets.take(n).map(|offset| SentPacket { content: content(offset), ..p.clone() }));
    }
    /// The packet entered last is longer than was said.
    pub fn lengthen_last(&mut self, bytes: u32) {
        if let Some(p) = self.packets.back_mut() {
            p.bytes += bytes;
        }
    }
    /// The packet with this number.
    pub fn get(&self, pn: u64) -> Option<&SentPacket> {
        self.packets.get(pn.checked_sub(self.base)? as usize)
    }
    /// Bytes on the wire of packets with these numbers, if all are tracked.
    pub fn bytes(&self, mut numbers: Range<u64>) -> Option<u64> {
        numbers.try_fold(0, |sum, pn| Some(sum + u64::from(self.get(pn)?.bytes)))
    }
    fn get_mut(&mut self, pn: u64) -> Option<&mut SentPacket> {
        self.packets.get_mut(pn.checked_sub(self.base)? as usize)
    }

    /// Takes in what the peer says arrived: all of `covered` but `holes` (ascending, disjoint, inside).
    /// Calls `each` for every packet that was not known to have arrived, with its number; a packet that had
    /// been declared lost comes with its state still [`State::Lost`].
    ///
    /// Constant time for each packet reported for the first time, and for each hole listed or known before in `covered`.
    pub fn on_feedback(
        &mut self,
        covered: Range<u64>,
        holes: &[Range<u64>],
        mut each: impl FnMut(u64, &SentPacket, Option<&Train>),
    ) -> Result<(), FalseFeedback> {
        if covered.end > self.next() {
            return Err(FalseFeedback);
        }
        if covered.start > self.reported.max(self.base) {
            // An earlier part of this report was lost; the next report repeats it.
            return Ok(());
        }
        // A report comes in many statements: each looks at the holes it covers only.
        let first = first_behind(&self.holes, covered.start);
        let last = first + self.holes[first..].partition_point(|h| h.start < covered.end);
        let old = self.holes[first..last].to_vec();
        self.steps += (old.len() + holes.len() + 1) as u64;
        let mut still = Vec::with_capacity(old.len());
        let mut verdict = Ok(());
        for h in &old {
            // What the statement does not cover stays as it was.
            keep(&mut still, h.start..h.end.min(covered.start));
            let inside = h.start.max(covered.start)..h.end.min(covered.end);
            for part in subtract(inside.clone(), holes) {
                verdict = verdict.and(self.ack_range(part, &mut each));
            }
            for part in intersect(inside, holes) {
                keep(&mut still, part);
            }
            keep(&mut still, h.start.max(covered.end)..h.end);
        }
        self.holes.splice(first..last, still);
        let fresh = self.reported.max(covered.start)..covered.end;
        if !fresh.is_empty() {
            for part in subtract(fresh.clone(), holes) {
                verdict = verdict.and(self.ack_range(part, &mut each));
            }
            for part in intersect(fresh, holes) {
                keep(&mut self.holes, part);
            }
            self.reported = covered.end;
        }
        verdict
    }

    fn ack_range(
        &mut self,
        r: Range<u64>,
        each: &mut impl FnMut(u64, &SentPacket, Option<&Train>),
    ) -> Result<(), FalseFeedback> {
        for pn in r.start.max(self.base)..r.end {
            self.steps += 1;
            let Some(p) = self.packets.get_mut((pn - self.base) as usize) else { return Ok(()) };
            match p.state {
                State::Skipped => return Err(FalseFeedback),
                State::Untracked | State::Acked => continue,
                State::Outstanding => self.outstanding -= 1,
                State::Lost => {}
            }
            each(pn, p, self.trains.get(p.train));
            p.state = State::Acked;
            p.content = Content::Nothing;
        }
        Ok(())
    }

    /// Declares lost what was reported missing and left at `sent_before` or earlier. Constant time for each
    /// packet over its life.
    pub fn detect_lost(&mut self, sent_before: Time, mut each: impl FnMut(u64, &SentPacket, Option<&Train>)) {
        self.decided = self.decided.max(self.base);
        while self.decided < self.reported {
            let pn = self.decided;
            let Some(p) = self.packets.get_mut((pn - self.base) as usize) else { break };
            self.steps += 1;
            if p.state == State::Outstanding {
                if p.time > sent_before {
                    break;
                }
                each(pn, p, self.trains.get(p.train));
                p.state = State::Lost;
                self.outstanding -= 1;
            }
            self.decided += 1;
        }
    }

    /// When the oldest packet that was reported missing and is not yet declared lost left.
    pub fn oldest_suspect(&mut self) -> Option<Time> {
        self.decided = self.decided.max(self.base);
        while self.decided < self.reported {
            match self.get(self.decided) {
                Some(p) if p.state == State::Outstanding => return Some(p.time),
                Some(_) => self.decided += 1,
                None => return None,
            }
        }
        None
    }

    /// The newest outstanding packets that carry data, for a tail-loss probe: at most `n`.
    pub fn newest_data(&self, n: usize) -> Vec<u64> {
        let mut found = Vec::with_capacity(n);
        for (i, p) in self.packets.iter().enumerate().rev().take(4096) {
            if p.state == State::Outstanding && matches!(p.content, Content::Data(..) | Content::Control(_)) {
                found.push(self.base + i as u64);
                if found.len() == n {
                    break;
                }
            }
        }
        found
    }

    /// Declares one packet lost (a probe will retransmit its content).
    pub fn force_lost(&mut self, pn: u64) -> Option<SentPacket> {
        let p = self.get_mut(pn)?;
        if p.state != State::Outstanding {
            return None;
        }
        p.state = State::Lost;
        let copy = p.clone();
        self.outstanding -= 1;
        Some(copy)
    }

    /// Declares all outstanding packets lost.
    pub fn lose_all(&mut self, mut each: impl FnMut(&SentPacket, Option<&Train>)) {
        for p in &mut self.packets {
            if p.state == State::Outstanding {
                each(p, self.trains.get(p.train));
                p.state = State::Lost;
            }
        }
        self.outstanding = 0;
    }

    /// Forgets what is decided; lost packets are kept for `watch` after they left, so that a late
    /// acknowledgement is recognised as a spurious loss.
    pub fn forget(&mut self, now: Time, watch: Span, mut each: impl FnMut(&SentPacket)) {
        while let Some(p) = self.packets.front() {
            self.steps += 1;
            let done = match p.state {
                State::Acked | State::Untracked => true,
                // Numbers left out prove a false statement only while the peer may still speak of them, and while
                // there is something to make a false statement about.
                State::Skipped => self.base < self.reported || self.outstanding == 0,
                State::Lost => p.time + watch < now,
                State::Outstanding => false,
            };
            if !done {
                break;
            }
            each(p);
            self.packets.pop_front();
            self.base += 1;
        }
        let oldest = self.packets.iter().find(|p| p.train != NO_TRAIN).map_or(NO_TRAIN, |p| p.train);
        self.trains.forget_below(oldest);
        let base = self.base;
        let gone = self.holes.iter().take_while(|h| h.end <= base).count();
        self.holes.drain(..gone);
        if let Some(h) = self.holes.first_mut() {
            h.start = h.start.max(base);
        }
        self.reported = self.reported.max(self.base);
    }

    /// Returns everything that is not known to have arrived, and tracks nothing any more.
    pub fn drain(&mut self) -> impl Iterator<Item = SentPacket> + '_ {
        self.outstanding = 0;
        self.base += self.packets.len() as u64;
        self.reported = self.base;
        self.decided = self.base;
        self.holes.clear();
        self.packets.drain(..).filter(|p| matches!(p.state, State::Outstanding))
    }
}

/// Appends a range, joining it to the last one where they touch.
fn keep(list: &mut Vec<Range<u64>>, r: Range<u64>) {
    if r.start >= r.end {
        return;
    }
    match list.last_mut() {
        Some(l) if l.end == r.start => l.end = r.end,
        _ => list.push(r),
    }
}

/// Index of the first of ascending `holes` that ends behind `at`.
fn first_behind(holes: &[Range<u64>], at: u64) -> usize {
    holes.partition_point(|h| h.end <= at)
}

/// Parts of `r` outside ascending, disjoint `holes`.
fn subtract(r: Range<u64>, holes: &[Range<u64>]) -> impl Iterator<Item = Range<u64>> + '_ {
    let mut at = r.start;
    let end = r.end;
    let tail = core::iter::once(end..end);
    holes[first_behind(holes, r.start)..]
        .iter()
        .take_while(move |h| h.start < end)
        .cloned()
        .chain(tail)
        .filter_map(move |h| {
            let part = at..h.start.min(end);
            at = h.end.max(at);
            (part.start < part.end).then_some(part)
        })
}

/// Parts of `r` inside ascending, disjoint `holes`.
fn intersect(r: Range<u64>, holes: &[Range<u64>]) -> impl Iterator<Item = Range<u64>> + '_ {
    let Range { start, end } = r;
    holes[first_behind(holes, start)..]
        .iter()
        .take_while(move |h| h.start < end)
        .map(move |h| h.start.max(start)..h.end.min(end))
        .filter(|p| p.start < p.end)
}

#[cfg(test)]
mod tests;
