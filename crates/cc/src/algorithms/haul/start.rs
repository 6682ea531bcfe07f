//! The start: find the rate in a few round trips without filling the queue.
//!
//! Growth is by what arrives, so that nothing grows on a path that delivers nothing. As long as nothing is known of
//! the narrowest place, threefold a round trip; where the dispersion of trains shows it, at once to an eighth of it, and
//! little more than twofold from there on up to nine tenths: a train shows the whole place also to flows that share it,
//! and those that start together fill it at any part of what each of them sees. A queue longer than the flow's own
//! trains make holds it back at once; one that stands for several reports ends the start: then what was delivered lately
//! is the rate. Queues too short to be seen show by what they lose: of a train longer than they, while the rate is
//! small, and of what exceeds the narrowest place at the end.

use super::round::SPREAD;
use super::{HOST_NOISE, Haul, Phase};
use crate::{Remembered, Signals, pacer};
use base::{Rate, Span, Time};
use std::collections::VecDeque;

/// Growth in a round trip without knowledge, far below what trains show, and nearer to it.
const BLIND: f64 = 3.0;
const SEEING: f64 = 12.0;
const WARY: f64 = 2.4;
/// Without trains to be believed.
const DOUBLE: f64 = 2.0;
/// Rounds after which trains that have shown nothing will not: then growth must not overflow a queue of one product.
const BLIND_ROUNDS: u32 = 3;
/// As much more than trains show is tried, for so many rounds.
const MORE: f64 = 1.12;
const LOOKS: u32 = 1;
/// Rounds after that of growth by so much, before the rate doubles: trains of hosts that are late show a tenth too little, and
/// to double from there is to lose a queue of one product.
const GENTLE: u32 = 2;
const SLOWLY: f64 = 1.3;
/// Where more than a path takes is sent, no more than this part arrives: between all of it, and what [`MORE`] leaves.
const EXCEEDED: f64 = 0.95;
/// Of the rate that trains show, as much is gone for at once.
const CEILING: f64 = 0.96;
/// And as much before several trains agree.
const DOUBTFUL: f64 = 0.4;
/// Up to this share of it growth is fast: others may be about to do the same, and ten of them just overfill it.
const NEAR: f64 = 0.12;
/// Part of the rate that is sent from the first sign of a queue until it is believed or gone.
const HELD_BACK: f64 = 0.5;
/// Quartiles of trains so far apart are no rate.
const DISAGREE: f64 = 2.0;
/// The same where delays change by more than a train takes to pass.
const DIFFER: f64 = 1.2;
/// Samples of dispersion kept: their median is believed.
const SAMPLES: usize = 15;
/// A delay above this part of the round trip is a queue also to an application that sends little.
const CLEARLY: f64 = 0.12;
/// Trains that must agree.
const AGREE: usize = 6;
/// Reports with a queue in a row that end the start.
const QUEUED: u32 = 3;
/// Recent deliveries that are kept.
const RECENT: usize = 64;
/// What leaves together takes no longer than this at the rate reached so far.
const LONGEST_AT_ONCE: Span = Span::from_millis(10);
/// Most bytes that leave together: 300 microseconds at 400 Gbit/s.
const MOST_AT_ONCE: u64 = 16 << 20;
/// A full train.
const TRAIN_BYTES: u64 = 66_000;
/// Packets of the first trains: of shorter ones, a host that is a tenth of a millisecond late makes another rate.
const FIRST_TRAIN: u64 = 32;
/// Most time that a train may take to pass the narrowest place.
const TRAIN: Span = Span::from_millis(2);
/// Packets of a train that hardly any queue is too short for.
const SHORT_TRAIN: u64 = 4;
/// A rate of which more than one part in so many arrives is used.
const ARRIVES: f64 = 4.0;
/// Rounds without growth that end the start.
const FLAT: u32 = 3;

/// How far the start has come.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Up to what trains show, or what is known.
    Seek,
    /// A little more than that, to see whether a queue arises.
    Exceed { rounds: u32 },
    /// None arose: trains are not to be believed.
    Distrust,
}

#[derive(Debug)]
pub(super) struct Start {
    /// Rates that trains showed, newest last.
    shown: VecDeque<f64>,
    /// A rate known or remembered.
    known: Option<f64>,
    /// What an earlier connection found, not checked yet.
    memory: Option<Remembered>,
    /// The rate at which it began, when it was not the first time: that much is there.
    least: f64,
    step: Step,
    queued: u32,
    queued_since: Time,
    /// Times, and totals delivered.
    recent: VecDeque<(Time, u64)>,
    flat: u32,
    best: f64,
    /// Rounds in which the application did not limit it.
    rounds: u32,
    /// Until that many, a rate of which nothing is known grows slowly: it may be near the goal.
    gentle: u32,
    /// The newest report saw a queue that noise does not explain.
    doubtful: bool,
    /// Delays change by more than the time that a train takes to pass.
    noisy: bool,
    /// Whether a report of this round saw a queue, and of the one before.
    waited: [bool; 2],
    /// The longest train of this round and of the one before.
    trains: [u64; 2],
    /// Bytes that leave together at most, since longer trains were cut by a queue shorter than they.
    longest: u64,
}

impl Start {
    pub(super) fn new(known: Option<f64>) -> Start {
        Start {
            shown: VecDeque::new(),
            known,
            memory: None,
            least: 0.0,
            step: Step::Seek,
            queued: 0,
            queued_since: Time::ZERO,
            recent: VecDeque::new(),
            flat: 0,
            best: 0.0,
            rounds: 0,
            gentle: 0,
            doubtful: false,
            noisy: false,
            waited: [false; 2],
            trains: [0; 2],
            longest: u64::MAX,
        }
    }

    /// From `rate`, which arrives: so near the goal that to leap blindly would be to overshoot.
    pub(super) fn again(rate: f64) -> Start {
        Start { least: rate, rounds: BLIND_ROUNDS, ..Start::new(None) }
    }

    /// After a pause: what was delivered before it is no measure of what is delivered now.
    pub(super) fn restart(&mut self) {
        self.recent.clear();
        self.queued = 0;
        self.doubtful = false;
        self.flat = 0;
        self.best = 0.0;
    }

    /// What leaves at first without anything known: of an initial `window` all, unless it is not the first time.
    pub(super) fn first(&self, window: u64) -> u64 {
        if self.least > 0.0 { 0 } else { window }
    }

    /// Of the rate reached, what is sent.
    pub(super) fn gain(&self) -> f64 {
        if self.doubtful { HELD_BACK } else { 1.0 }
    }

    pub(super) fn on_sent(&mut self, bytes: u64) {
        self.trains[0] = self.trains[0].max(bytes);
    }

    pub(super) fn remembered(rate: f64) -> Start {
        Start::new(Some(rate))
    }

    pub(super) fn recall(&mut self, memory: Option<Remembered>) {
        self.memory = memory;
    }

    /// Careful Resume (RFC 9959): the first packets have arrived, none was lost and the round trip is that of the path
    /// remembered. Then half of its rate is tried at once, and the rest once that has arrived.
    fn resume(&mut self, s: &Signals) -> Option<f64> {
        let memory = self.memory.take_if(|_| s.acked > 0)?;
        if s.lost > 0 || self.known.is_some() || !memory.fits(s.min_rtt) {
            return None;
        }
        let rate = memory.rate.bytes_per_sec() as f64;
        self.known = Some(rate);
        Some(rate / 2.0)
    }

    /// Whether trains still have something to tell.
    pub(super) fn wants_trains(&self) -> bool {
        self.known.is_none() && !matches!(self.step, Step::Distrust)
    }

    pub(super) fn name(&self) -> &'static str {
        match (self.known, self.shown.len()) {
            (Some(_), _) => "start:known",
            (None, 0..AGREE) => "start",
            (None, _) => "start:trains",
        }
    }

    /// The rate of the narrowest place, as far as trains show it, and how many do.
    fn narrowest(&self) -> Option<(f64, usize)> {
        let mut sorted: Vec<f64> = self.shown.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).map(|m| (*m, sorted.len()))
    }

    /// What trains show that agree.
    fn shown(&self) -> Option<f64> {
        self.narrowest().filter(|(_, n)| *n >= AGREE && !self.trains_mislead()).map(|(rate, _)| rate)
    }

    /// Trains that do not agree with each other, or with what was found since, show a path whose delay changes by
    /// itself. Where it is known to do so, few trains tell nothing.
    fn trains_mislead(&self) -> bool {
        let mut sorted: Vec<f64> = self.shown.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let apart = if self.noisy { DIFFER } else { DISAGREE };
        match (self.step, n) {
            (Step::Distrust, _) => true,
            (_, AGREE..) => sorted[n * 3 / 4] > sorted[n / 4] * apart,
            _ => self.noisy,
        }
    }

    /// How far to go, and the growth in a round trip.
    fn aim(&self, rate: f64) -> (f64, f64) {
        let exceed = matches!(self.step, Step::Exceed { .. });
        let blind = match self.rounds {
            n if n < self.gentle => SLOWLY,
            BLIND_ROUNDS.. => DOUBLE,
            _ => BLIND,
        };
        let blindly = self.noisy && self.known.is_none() && self.trains_mislead();
        match (self.known, self.narrowest()) {
            _ if blindly || matches!(self.step, Step::Distrust) => (f64::INFINITY, blind),
            (Some(known), _) if exceed => (known * MORE, DOUBLE),
            (Some(known), _) => (known, SEEING),
            (None, Some((narrow, _))) if exceed => (narrow * MORE, DOUBLE),
            (None, Some((narrow, n))) => {
                let ceiling = if n >= AGREE { CEILING } else { DOUBTFUL };
                if rate < narrow * NEAR { (narrow * NEAR, SEEING) } else { (narrow * ceiling, WARY) }
            }
            (None, None) => (f64::INFINITY, blind),
        }
    }

    /// Bytes that leave together: whole trains, as their dispersion is to be measured, but none that takes long to
    /// pass. As long as none has shown anything, larger groups of them, which take longer to arrive. `first` is the
    /// initial window.
    pub(super) fn quantum(&self, rate: Rate, packet: u64, first: u64, rtt: f64) -> u64 {
        let usual = pacer::quantum(rate, packet);
        let wished = match self.narrowest() {
            _ if !self.wants_trains() => usual,
            None => {
                let time = Span::from_secs_f64(rtt / 8.0).min(LONGEST_AT_ONCE);
                let group = rate.bytes_in(time).min(MOST_AT_ONCE);
                usual.max(group).max(first.min(FIRST_TRAIN * packet))
            }
            Some((narrowest, _)) => {
                let short = Rate::from_bytes_per_sec(narrowest as u64).bytes_in(TRAIN);
                usual.max(short.clamp(8 * packet, TRAIN_BYTES.max(8 * packet)) / packet * packet)
            }
        };
        wished.min(self.longest).max(2 * packet)
    }

    /// Much of a round was lost, of which `share` arrived, at a `rate` far below the narrowest place's and in trains of
    /// `train` bytes. True when they were too long for the queue: then shorter ones are tried.
    fn shortens(&mut self, train: u64, share: f64, rate: f64, packet: u64) -> bool {
        let below = self.narrowest().is_none_or(|(narrow, _)| rate < narrow / 2.0);
        let long = train > SHORT_TRAIN * packet && below && !self.waited.contains(&true);
        if long {
            let passes = (train as f64 * share.min(0.5)) as u64 / packet;
            self.longest = passes.max(SHORT_TRAIN) * packet;
            self.flat = 0;
        }
        long
    }

    fn update(&mut self, s: &Signals, rtt: f64, queue: Option<f64>, (noise, reach, spread): (f64, f64, f64)) {
        if let Some(rate) = s.dispersion {
            self.shown.push_back(rate.bytes_per_sec() as f64);
            if self.shown.len() > SAMPLES {
                self.shown.pop_front();
            }
        }
        if s.round_start {
            self.trains = [0, self.trains[0]];
            self.waited = [false, self.waited[0]];
        }
        if let Some(q) = queue {
            let longest = self.trains[0].max(self.trains[1]) as f64;
            let own = self.narrowest().map_or(0.0, |(narrow, _)| longest / narrow);
            let limit = (rtt / 24.0).max(2.0 * HOST_NOISE).max(own + HOST_NOISE) + 3.0 * noise;
            self.noisy = self
                .narrowest()
                .is_some_and(|(narrow, _)| spread > (longest / narrow).max(SPREAD * HOST_NOISE));
            self.doubtful = q > limit.max(reach).max(spread) && self.known.is_none();
            self.waited[0] |= q > limit;
            self.queued = if q > limit { self.queued + 1 } else { 0 };
            if self.queued <= 1 {
                self.queued_since = s.now;
            }
        }
        // At high rates reports come in hundreds a round trip: what is kept reaches back for more than one.
        let spacing = Span::from_secs_f64(rtt * 1.5 / RECENT as f64);
        if self.recent.iter().rev().nth(1).is_some_and(|(t, ..)| s.now.since(*t) < spacing) {
            self.recent.pop_back();
        }
        self.recent.push_back((s.now, s.delivered));
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    /// A queue stood through several reports and longer than a train takes.
    fn is_queued(&self, now: Time, rtt: f64) -> bool {
        self.queued >= QUEUED && now.since(self.queued_since).as_secs_f64() > rtt / 8.0
    }

    /// The rate delivered over the last part of a round trip, a longer one where noise makes packets come in bunches. While
    /// a queue stands, only what was delivered since it arose: before, the path was not full.
    fn delivered_lately(&self, rtt: f64, noise: f64) -> Option<f64> {
        let (now, total) = *self.recent.back()?;
        let mut window = Span::from_secs_f64((rtt / 6.0).max(0.004));
        if self.queued >= QUEUED {
            window = window.min(now.since(self.queued_since)).max(Span::from_millis(1));
        }
        window = window.max(Span::from_secs_f64(noise.min(rtt)));
        let (then, before) = *self.recent.iter().rev().find(|(t, _)| now.since(*t) >= window)?;
        Some(total.saturating_sub(before) as f64 / now.since(then).as_secs_f64())
    }
}

impl Haul {
    pub(super) fn on_start(&mut self, s: &Signals) {
        let (rtt, queue) = (self.rtt(), self.base.queue(s));
        let noise = (self.round.noise(), self.round.noise_reach(), self.round.spread());
        let congested = s.round_start && self.is_congested();
        let Phase::Start(start) = &mut self.phase else { return };
        start.update(s, rtt, queue, noise);
        if let Some(half) = start.resume(s) {
            self.rate = self.rate.max(half);
        }
        self.narrowest = start.narrowest().map(|(r, _)| r).or(self.narrowest);
        let limited = s.app_limited || s.rate.is_some_and(|r| r.app_limited);
        // A few packets of an application that is only beginning meet no queue of their own: what delays them a little is
        // the peer's host opening files.
        let queued = start.is_queued(s.now, rtt) && (!limited || self.round.longest() > rtt * CLEARLY);
        let arrived = self.round.counts().arrived();
        if congested && start.shortens(self.decision.quantum, arrived, self.rate, self.packet) {
            let x = s.rate.map_or(self.rate / 2.0, |r| r.rate.bytes_per_sec() as f64);
            self.rate = self.rate.min(x).max(start.least);
            self.losses.answer(s.now);
            return;
        }
        if congested || queued {
            self.on_full(s, congested);
            return;
        }
        // An application with little to send, or a flow's first packets: what arrived at the rate counts all the same.
        let arrives = s.rate.is_some_and(|r| r.rate.bytes_per_sec() as f64 * ARRIVES > self.rate);
        if s.acked > 0 && !start.doubtful && (!limited || arrives) {
            let (ceiling, growth) = start.aim(self.rate);
            // Continuous growth by a factor g a round trip needs (g ln g) new bytes for each that arrives, because
            // those that arrive left a round trip ago.
            let step = growth * growth.ln() * s.acked as f64 / rtt;
            if self.rate < ceiling {
                self.rate = (self.rate + step).min(ceiling);
            }
        }
        if s.round_start && !limited {
            self.end_start_round(s);
        }
    }

    /// Something says that the path is full. If ever more arrives it is not, where noise explains the delay.
    fn on_full(&mut self, s: &Signals, congested: bool) {
        let (rtt, reach, much) = (self.rtt(), self.round.noise_reach(), self.loses_much());
        let Phase::Start(start) = &mut self.phase else { return };
        let lately = start.delivered_lately(rtt, reach);
        let noise = !congested && self.round.standing().is_some_and(|q| q < reach);
        if (congested && !much || noise) && self.base.grows(s.now) {
            start.queued = 0;
            return;
        }
        let sample = s.rate.map(|r| r.rate.bytes_per_sec() as f64);
        // Where little arrives, no queue overflowed.
        if congested && sample.is_some_and(|x| x > self.rate / 4.0) {
            self.losses.overflowed_at(self.round.most());
        }
        let rate = lately.or(sample).unwrap_or(self.rate / 2.0).max(start.least).min(self.rate);
        // What trains show may be there although less was delivered lately: a host that looked away sent less.
        let shown = start.shown();
        // A flow that comes to a busy path has not seen its rate arrive.
        let path = shown.unwrap_or(rate);
        self.narrowest = Some(self.narrowest.map_or(path, |n| n.max(path)));
        let shown = shown.map_or(rate, |r| r * CEILING).min(self.rate);
        self.steady.begin(self.round.count, rate.max(shown));
        self.end_start(rate, s.inflight, s.now);
    }

    fn end_start_round(&mut self, s: &Signals) {
        let Some(r) = s.rate else { return };
        let x = r.rate.bytes_per_sec() as f64;
        let arrived = self.round.counts().arrived();
        let Phase::Start(start) = &mut self.phase else { return };
        let (ceiling, _) = start.aim(self.rate);
        start.rounds = start.rounds.saturating_add(1);
        let there = self.rate >= 0.98 * ceiling && x >= 0.85 * self.rate;
        start.flat = if x > start.best * 1.1 { 0 } else { start.flat + 1 };
        start.best = start.best.max(x);
        if there {
            match start.step {
                // What trains showed, or was known, is there: is there more?
                Step::Seek => start.step = Step::Exceed { rounds: 0 },
                Step::Exceed { rounds } if rounds < LOOKS => start.step = Step::Exceed { rounds: rounds + 1 },
                // More was sent, but did not arrive: a queue too short to be seen overflows.
                Step::Exceed { .. } if arrived < EXCEEDED => return self.on_full(s, true),
                // More than that, and no queue. What was known is less than is there: now trains are asked. Where they
                // were, they do not show this path's rate.
                Step::Exceed { .. } => {
                    let known = start.known.take().is_some();
                    start.step = if known { Step::Seek } else { Step::Distrust };
                    start.gentle = start.rounds.saturating_add(GENTLE);
                }
                Step::Distrust => {}
            }
            start.flat = 0;
        } else if start.flat >= FLAT {
            if start.known.take().is_some() {
                // It was never used, or does not hold: look for the rate as if nothing were known.
                start.flat = 0;
                self.rate = x.max(self.rate / 4.0);
            } else {
                self.steady.begin(self.round.count, x);
                self.end_start(x, s.inflight, s.now);
            }
        }
    }
}
