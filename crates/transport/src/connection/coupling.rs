//! Detects lanes that share a bottleneck by experiment, and limits them together to one flow's share of it.
//!
//! RFC 8382 finds flows that share a bottleneck by comparing statistics of their one-way delays (mean, variability, skew,
//! dominant frequency, loss), and needs tens of seconds and thresholds for that, because it may only look on. An end
//! that owns all the flows can do more: it pauses one lane for a moment. Where another lane's queue gets shorter meanwhile, both
//! stand in the same queue; where it does not, though there is one, they do not. A queue also gets shorter by itself now and then, so
//! several such verdicts must agree. The delays are the one-way delays of the packets (RFC 8382, section 3), by the time at
//! which these left, so that delays of the way back do not matter.
//!
//! Of lanes that share a bottleneck one carries data, the others rest: with any algorithm this is one flow's share, no more
//! and no less, which is what RFC 6356 asks for (section 2: no harm on any link, and no less than a flow on the best path).
//! A resting lane is let go for a moment every few seconds: when that makes the other's queue no longer, or when its packets wait in
//! no such queue as the other's do at that time, it is a path of its own again.
//! Where the other's queue changes as much by itself, that tells nothing, and the lane rests on: taken for a path of its own
//! it would take a second share (four lanes of `haul` once took 0.68 of a link beside one flow).
//!
//! What an experiment costs is a lane's data of a round trip or so, every ten seconds where the verdict is clear. A
//! wrong verdict costs the slower lane's rate until the next trials. Where no queue is to be seen (below half a millisecond,
//! as of a policer) nothing is found, and each lane is a flow of its own.

use super::{Connection, MAX_LANES, State};
use crate::config::Coupling;
use crate::lane::rtt::Rtt;
use crate::lane::{CouplingHold, Lane, Stage};
use base::{Rng, Span, Time};
use std::collections::BTreeMap;

/// Lanes with shorter round trips are not compared.
const LEAST_ROUND: Span = Span::from_millis(1);
/// Least time of a pause or a trial; a round trip, and what the lanes' differ by, when that is more.
const LEAST_EXPERIMENT: Span = Span::from_millis(40);
const LONGEST_EXPERIMENT: Span = Span::from_millis(500);
/// A lane that has come up finds its rate first: so long, and so many round trips.
const SETTLE: Span = Span::from_millis(1_000);
const SETTLE_ROUNDS: u64 = 10;
const SETTLE_ROUND: Span = Span::from_millis(200);
/// Time between experiments, and round trips in addition: what one changed is over.
const PAUSE: Span = Span::from_millis(150);
const PAUSE_ROUNDS: u64 = 5;
/// Time until a lane is paused again when nothing could be seen, and the most that it doubles to.
const UNCLEAR: Span = Span::from_millis(750);
const MOST_UNCLEAR: Span = Span::from_millis(3_000);
/// Time until a lane is paused again when its verdicts are clear, and between trials of one that rests. A random half
/// is added.
const CLEAR: Span = Span::from_millis(8_000);
const TRIALS: Span = Span::from_millis(2_500);
/// Time until a trial is repeated that found two lanes apart: two of them, and none between that found the opposite, free the
/// one that rests.
const SECOND_TRIAL: Span = Span::from_millis(700);
/// Trials in a row that tell nothing, after which a lane rests no more.
const MOST_UNCLEAR_TRIALS: u32 = 4;
/// Time until the next look while the application is the limit.
const IDLE: Span = Span::from_millis(50);
/// Verdicts that say "shared" more often than "apart" for two lanes to be coupled, and the least number that is kept.
const SHARED: i8 = 3;
const APART: i8 = -2;
/// Where trials lead below this, they are apart again.
const DOUBT: i8 = 2;
/// Changes of a delay below this, in microseconds, are the hosts' doing.
const LEAST_CHANGE: f64 = 500.0;
/// Standard errors that a change must exceed.
const ERRORS: f64 = 3.0;
/// Of the change that two lanes alone at a bottleneck would see, this part must be there: others may be there as well.
const PART_PAUSED: f64 = 0.35;
const PART_TRIED: f64 = 0.2;
/// Packets of two lanes in one queue wait equally long but for what hosts and jitter do: at least this part of the other's time.
/// Differences below so many microseconds say nothing.
const PART_WAITED: f64 = 0.35;
const LEAST_WAIT: f64 = 1_000.0;
/// A longer rise than this, in microseconds, is asked of no trial: the queue may be nearly full.
const MOST_ASKED: f64 = 5_000.0;
/// By so much it must exceed what changes at other times, of which so many are looked at, each a quarter later.
const BEYOND_USUAL: f64 = 1.0;
const MAX_COMPARED: u64 = 8;
/// Samples before and after that a verdict needs.
const SAMPLES: f64 = 3.0;

/// An experiment in progress: one lane is paused, or a resting one is tried.
#[derive(Clone, Copy, Debug)]
struct Experiment {
    /// The number of the lane that is paused or tried.
    lane: u32,
    trial: bool,
    from: Time,
    until: Time,
    /// The pause or trial is over; what came of it is being reported.
    over: bool,
}

/// When a lane's next experiment is due.
#[derive(Clone, Copy, Debug)]
struct LaneSchedule {
    /// It has found its rate by then.
    settled: Time,
    next: Time,
    /// Experiments in a row that said nothing.
    unclear: u32,
}

impl LaneSchedule {
    fn new(settled: Time) -> LaneSchedule {
        LaneSchedule { settled, next: settled, unclear: 0 }
    }
}

/// What is known about which lanes share a bottleneck.
#[derive(Debug)]
pub(super) struct Coupler {
    /// By the numbers of two lanes, the smaller first. At most one for each two of [`MAX_LANES`].
    scores: BTreeMap<(u32, u32), i8>,
    test: Option<Experiment>,
    /// Of each lane, by number.
    lanes: BTreeMap<u32, LaneSchedule>,
    /// When the last experiment was judged: what was seen since is the lanes' own doing.
    judged: Time,
    next: Time,
    rng: Rng,
}

impl Coupler {
    pub(super) fn new(rng: Rng) -> Coupler {
        Coupler {
            scores: BTreeMap::new(),
            test: None,
            lanes: BTreeMap::new(),
            judged: Time::ZERO,
            next: Time::ZERO,
            rng,
        }
    }

    /// When there is something to do although nothing is sent or received.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.test.map(|_| self.next)
    }

    fn score(&mut self, a: u32, b: u32) -> &mut i8 {
        debug_assert!(self.scores.len() <= MAX_LANES * MAX_LANES / 2);
        self.scores.entry((a.min(b), a.max(b))).or_insert(0)
    }

    /// About `span` from now.
    fn about(&mut self, now: Time, span: Span) -> Time {
        now + span + Span::from_nanos(self.rng.below(span.as_nanos() / 2 + 1))
    }
}

/// The sending rate that a lane's algorithms allow, in bytes per second.
fn wanted(l: &Lane) -> f64 {
    l.flows.iter().map(|f| f.wanted().bytes_per_sec() as f64).fold(0.0, f64::max)
}

impl Connection {
    /// A lane has come up: it is compared with others once it has found its rate.
    pub(super) fn begin_coupling(&mut self, now: Time, i: usize) {
        if self.options.coupling == Coupling::Never {
            return;
        }
        if self.coupler.is_none() {
            self.coupler = Some(Coupler::new(self.rng.fork()));
        }
        self.lanes.iter_mut().for_each(|l| l.trace.start());
        let l = &mut self.lanes[i];
        l.hold = CouplingHold::Free;
        let settled = now + SETTLE + l.rtt.smoothed().min(SETTLE_ROUND) * SETTLE_ROUNDS;
        let id = l.id;
        if let Some(c) = &mut self.coupler {
            c.lanes.insert(id, LaneSchedule::new(settled));
            c.lanes.entry(0).or_insert(LaneSchedule::new(settled));
            c.scores.retain(|(a, b), _| *a != id && *b != id);
        }
    }

    /// Begins, ends and judges experiments. Called whenever something might be sent.
    pub(super) fn couple(&mut self, now: Time) {
        let Some(c) = self.coupler.as_ref().filter(|c| c.next <= now) else { return };
        if !matches!(self.state, State::Open) {
            return;
        }
        let test = c.test;
        self.free_orphans();
        let next = match test {
            None => self.begin_experiment(now),
            Some(t) if !t.over => self.end_experiment(now, t),
            Some(t) => self.judge_experiment(now, t),
        };
        if let Some(c) = &mut self.coupler {
            c.next = next;
        }
    }

    /// Resumes lanes that rest for a lane that does not work any more.
    fn free_orphans(&mut self) {
        for i in 0..self.lanes.len() {
            let lead = self.lanes[i].hold.lead();
            let works =
                |id| self.lanes.iter().any(|l| l.id == id && l.stage == Stage::Open && !self.is_spare(l));
            if lead.is_some_and(|id| !works(id)) {
                self.lanes[i].hold = CouplingHold::Free;
            }
        }
    }

    /// Whether more waits than these lanes carry: a pause would else hold up the little that there is, and tell nothing.
    fn has_backlog(&self, carriers: &[usize]) -> bool {
        (0..self.lanes[0].flows.len()).any(|f| {
            let filled = |i: &usize| !self.lanes[*i].flows[f].is_app_limited();
            self.scheduler.is_ready(f as u8) && carriers.iter().all(filled)
        })
    }

    /// Picks the lane that has waited longest for its turn.
    fn begin_experiment(&mut self, now: Time) -> Time {
        let carriers: Vec<usize> = (0..self.lanes.len()).filter(|i| self.carries_data(*i)).collect();
        if !self.has_backlog(&carriers) {
            return now + IDLE;
        }
        if self.options.coupling == Coupling::Always {
            return self.couple_all(now, &carriers);
        }
        // Within one machine or room a queue of a millisecond is the hosts' own.
        if self.lanes.iter().map(|l| l.rtt.min()).max().is_none_or(|longest| longest < LEAST_ROUND) {
            return now + IDLE;
        }
        let Some(c) = &self.coupler else { return Time::MAX };
        let due = |i: usize| {
            let l = &self.lanes[i];
            let turn = c.lanes.get(&l.id)?;
            let rests = matches!(l.hold, CouplingHold::Resting(_)) && l.stage == Stage::Open;
            let compared = carriers.contains(&i) && carriers.len() > 1;
            (rests || compared).then_some((turn.next.max(turn.settled), i))
        };
        let Some((at, i)) = (0..self.lanes.len()).filter_map(due).min() else { return now + IDLE };
        if at > now {
            return at.min(now + PAUSE);
        }
        let trial = matches!(self.lanes[i].hold, CouplingHold::Resting(_));
        let all = || carriers.iter().chain([&i]).map(|k| &self.lanes[*k].rtt);
        let longest = all().map(Rtt::min).max().unwrap_or(Span::ZERO);
        let spread = longest - all().map(Rtt::min).min().unwrap_or(longest);
        let round = all().map(Rtt::smoothed).max().unwrap_or(Span::ZERO);
        let length = (round.max(LEAST_EXPERIMENT) + spread).min(LONGEST_EXPERIMENT);
        let l = &mut self.lanes[i];
        l.hold = match l.hold {
            CouplingHold::Resting(lead) => CouplingHold::Trial(lead),
            _ => CouplingHold::Paused,
        };
        // What it delivers now is not what the path would.
        l.flows.iter_mut().for_each(cc::engine::Flow::mark_app_limited);
        let test = Experiment { lane: l.id, trial, from: now, until: now + length, over: false };
        if let Some(c) = &mut self.coupler {
            c.test = Some(test);
        }
        test.until
    }

    fn end_experiment(&mut self, now: Time, t: Experiment) -> Time {
        if let Some(c) = &mut self.coupler {
            // Late timers make it longer, which is no harm.
            c.test = Some(Experiment { until: now, over: true, ..t });
        }
        if let Some(l) = self.lanes.iter_mut().find(|l| l.id == t.lane) {
            l.hold = match l.hold {
                CouplingHold::Trial(lead) => CouplingHold::Resting(lead),
                CouplingHold::Paused => CouplingHold::Free,
                other => other,
            };
            l.flows.iter_mut().for_each(cc::engine::Flow::mark_app_limited);
        }
        // Reports on what left until now.
        let open = self.lanes.iter().filter(|l| l.stage == Stage::Open);
        now + open.map(|l| l.rtt.smoothed()).max().unwrap_or(Span::ZERO) * 2
    }

    fn judge_experiment(&mut self, now: Time, t: Experiment) -> Time {
        let Some(subject) = self.lanes.iter().position(|l| l.id == t.lane && l.stage == Stage::Open) else {
            if let Some(c) = &mut self.coupler {
                (c.test, c.judged) = (None, now);
            }
            return now + PAUSE;
        };
        let lead = self.lanes[subject].hold.lead();
        let watches = |k: &usize| {
            *k != subject && self.is_compared(now, *k) && lead.is_none_or(|l| l == self.lanes[*k].id)
        };
        let watching: Vec<usize> = (0..self.lanes.len()).filter(watches).collect();
        let verdicts: Vec<_> =
            watching.iter().map(|k| (self.lanes[*k].id, self.verdict(&t, subject, *k))).collect();
        let longest = self.lanes.iter().map(|l| l.rtt.smoothed()).max().unwrap_or(Span::ZERO);
        let Some(c) = &mut self.coupler else { return Time::MAX };
        (c.test, c.judged) = (None, now);
        let (mut partner, mut clear, mut free, mut doubt) = (None, true, false, false);
        let unclear = verdicts.iter().all(|(_, v)| v.is_none());
        for (other, shared) in verdicts {
            let score = c.score(t.lane, other);
            match shared {
                // A trial that finds the queue again leaves no doubt.
                Some(true) if t.trial => *score = SHARED,
                Some(true) => *score = (*score + 1).min(SHARED),
                Some(false) => *score = (*score - 1).max(APART),
                // What rests goes on resting for a while.
                None if t.trial => {}
                None => *score = (*score).min((*score - 1).max(0)),
            }
            if t.trial && *score < DOUBT {
                *score = 0;
                free = true;
            } else if *score == SHARED {
                partner = Some(other);
            }
            clear &= *score == APART;
            doubt |= shared == Some(false);
        }
        let so_far = c.lanes.get(&t.lane).map_or(0, |turn| turn.unclear);
        // Not for ever: what it could carry is lost meanwhile.
        free |= t.trial && unclear && so_far + 1 >= MOST_UNCLEAR_TRIALS;
        let (wait, unclear) = match t.trial {
            true if free => (Span::ZERO, 0),
            // A doubt is looked into at once.
            true if doubt => (SECOND_TRIAL, 0),
            true => (TRIALS, if unclear { so_far + 1 } else { 0 }),
            false if clear => (CLEAR, 0),
            // Where nothing is to be seen, looking costs more than it is worth.
            false if unclear => ((UNCLEAR * (1 << so_far.min(8))).min(MOST_UNCLEAR), so_far + 1),
            false => (Span::ZERO, 0),
        };
        let at = c.about(now, wait);
        c.lanes.entry(t.lane).and_modify(|turn| (turn.next, turn.unclear) = (at, unclear));
        let next = c.about(now, PAUSE + longest * PAUSE_ROUNDS);
        if free {
            self.lanes[subject].hold = CouplingHold::Free;
        } else if let (Some(other), false) = (partner, t.trial) {
            self.rest_one_of(now, t.lane, other);
        }
        self.share_cap();
        next
    }

    /// Whether a lane's delays tell something of what others do.
    fn is_compared(&self, now: Time, i: usize) -> bool {
        let settled = self
            .coupler
            .as_ref()
            .and_then(|c| c.lanes.get(&self.lanes[i].id))
            .is_some_and(|t| t.settled <= now);
        settled && self.carries_data(i) && !self.lanes[i].flows.iter().all(|f| f.inflight() == 0)
    }

    /// Whether what happened to one lane was seen on another's delays. Nothing is said where nothing could be seen.
    fn verdict(&self, t: &Experiment, subject: usize, watcher: usize) -> Option<bool> {
        let (s, w) = (&self.lanes[subject], &self.lanes[watcher]);
        // Packets that were at the bottleneck together did not leave together: half the round trips' difference apart.
        let shifted = |at: Time| {
            let (a, b) = (s.rtt.min(), w.rtt.min());
            if a > b { at + (a - b) / 2 } else { at - (b - a) / 2 }
        };
        let length = t.until.since(t.from);
        let change = |from: Time, until: Time| {
            let before = w.trace.summary(from - length, from);
            let late = w.trace.summary(until - length / 2, until);
            let enough = before.n >= SAMPLES && late.n >= SAMPLES;
            let error = (before.variance / before.n + late.variance / late.n).sqrt();
            let rise = if t.trial { late.mean - before.mean } else { before.mean - late.mean };
            enough.then_some((rise, error, before.mean))
        };
        let (seen, error, mean) = change(shifted(t.from), shifted(t.until))?;
        // The same, at times when nothing was tried.
        let judged = self.coupler.as_ref().map_or(Time::ZERO, |c| c.judged);
        let mut usual: f64 = 0.0;
        for k in 0..MAX_COMPARED {
            let from = shifted(t.from) - length - (length / 4) * k;
            if from < judged + length {
                break;
            }
            usual = change(from, from + length).map_or(usual, |(u, ..)| usual.max(u));
        }
        let least = LEAST_CHANGE.max(ERRORS * error).max(BEYOND_USUAL * usual);
        let part = wanted(s) / (wanted(s) + wanted(w)).max(1.0);
        let by_rate = length.as_micros() as f64 * part;
        if t.trial {
            // Unless the rise is all that was to be expected: where each flow has a queue of its own, none waits for another's.
            if seen < by_rate && self.has_separate_queue(t, subject, watcher, shifted(t.from)) {
                return Some(false);
            }
            let asked = (by_rate * PART_TRIED).min(MOST_ASKED);
            if seen > least.max(asked) {
                return Some(true);
            }
            // Where delays change as much by themselves, a rise that is not seen says nothing.
            return (by_rate * PART_PAUSED > least).then_some(false);
        }
        let expected = by_rate.min(mean - w.trace.least()? as f64) * PART_PAUSED;
        if seen > least.max(expected) {
            return Some(true);
        }
        // A change that would have been seen was not.
        (expected > least).then_some(false)
    }

    /// Whether a trial's packets found less of a queue than the watcher's did, which left from `from` on: those that stand in one
    /// queue wait equally long, whoever fills it and however it changes.
    fn has_separate_queue(&self, t: &Experiment, subject: usize, watcher: usize, from: Time) -> bool {
        let wait = |lane: usize, from: Time| {
            let trace = &self.lanes[lane].trace;
            let (all, least) = (trace.summary(from, from + t.until.since(t.from)), trace.least()?);
            (all.n >= SAMPLES).then(|| (all.mean - least as f64, (all.variance / all.n).sqrt()))
        };
        let (Some((s, error)), Some((w, errors))) = (wait(subject, t.from), wait(watcher, from)) else {
            return false;
        };
        w - s > LEAST_WAIT.max(ERRORS * (error + errors)) && s < w * PART_WAITED
    }

    /// Makes the slower of two lanes rest: if that was wrong, it is the lesser loss.
    fn rest_one_of(&mut self, now: Time, a: u32, b: u32) {
        let rate = |id| self.lanes.iter().find(|l| l.id == id).map_or(0.0, wanted);
        let (lead, rests) = if rate(b) > rate(a) { (b, a) } else { (a, b) };
        for l in &mut self.lanes {
            // What rested for the other rests for the same one now.
            if l.id == rests || l.hold.lead() == Some(rests) {
                l.hold = CouplingHold::Resting(lead);
                l.flows.iter_mut().for_each(cc::engine::Flow::mark_app_limited);
            }
        }
        if let Some(c) = &mut self.coupler {
            let at = c.about(now, TRIALS);
            c.lanes.entry(rests).and_modify(|t| t.next = at);
        }
    }

    /// By order: all lanes that have found their rates rest but the fastest.
    fn couple_all(&mut self, now: Time, carriers: &[usize]) -> Time {
        let settled = |i: &&usize| self.is_compared(now, **i);
        let ready: Vec<u32> = carriers.iter().filter(settled).map(|i| self.lanes[*i].id).collect();
        for pair in ready.windows(2) {
            let lead = |id| self.lanes.iter().find(|l| l.id == id).and_then(|l| l.hold.lead()).unwrap_or(id);
            let (a, b) = (lead(pair[0]), lead(pair[1]));
            self.rest_one_of(now, a, b);
        }
        now + IDLE
    }
}
