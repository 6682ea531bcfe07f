//! Flows that fill the queue until it overflows, and what is done about them.
//!
//! Flows under the law never overflow a queue much longer than the one they aim at. When that happens, this flow makes
//! room, as CUBIC does at the same moment, and looks on for some rounds. If the queue runs off, the path had changed or
//! all flows are like this one. If it stands, somebody else fills it: then this flow keeps to a part of the queue that
//! overflowed, and to half of the path at most, or it would be left with next to nothing. A part of the rate before the
//! overflow is not given up for a while in any case, because CUBIC spends long times near the same rate with a short
//! queue.
//!
//! Where no queue overflows, because this flow yields as fast as another grows, the flow now and then holds its rate
//! for a while. Flows like it rest where it rests; what grows beside it fills the queue then, and is found.

use super::Haul;
use crate::Signals;
use base::{Rng, Span, Time};

/// A queue so many times longer than the one aimed at is not overflowed by flows like this one.
const FOREIGN: f64 = 3.0;
/// Rounds after the start for which nothing is said of others.
const FRESH_ROUNDS: u64 = 30;
/// After such an overflow, and when others are no longer believed in though a queue stands, this part of the rate is not
/// given up; of what was so held before, this part.
const KEPT: f64 = 0.4;
const KEPT_AGAIN: f64 = 0.9;
const KEPT_FOR: Span = Span::from_secs(60);
/// Rate while looking on, and for how many rounds.
const LOOK_GAIN: f64 = 0.7;
const LOOK_ROUNDS: u32 = 10;
/// A queue stands that is still this part of the one that overflowed.
const STANDS: f64 = 0.2;
/// How long others are believed in without another sign of them.
const BELIEVED: Span = Span::from_secs(30);
/// The same where only a queue that stood told of them and none overflowed: flows like this one that arrive together
/// may have made it.
const SUPPOSED: Span = Span::from_secs(15);
/// Beside others, the flow grows up to this part of the queue that overflowed.
const SHARE: f64 = 0.65;
/// Beyond this part of it, others are at work.
const BEYOND: f64 = 0.8;
/// Most growth in a round beside others, and as long as they are only supposed: slowly enough for flows like this one to
/// make room without a longer queue.
const GROWTH: f64 = 1.05;
const SUPPOSED_GROWTH: f64 = 1.02;
/// A flow with less than this part of the path holds its rate now and then, instead of yielding further.
const SMALL: f64 = 0.25;
/// For how long it holds it, and the most time for which it yields in between.
const TRIAL: Span = Span::from_secs(3);
const TRIAL_PAUSE: Span = Span::from_secs(5);
/// A supposition is checked when the flow has so many times the rate, and holds if the queue is so many times longer.
const CHECKED_AT: f64 = 1.3;
const UNYIELDING: f64 = 1.2;
/// The part of its rate that is held: when all flows hold, the queue must not grow by it.
const HELD: f64 = 0.98;
/// Rounds in a row with no more queue than flows like this one keep, after which no others are believed in.
const CALM: u32 = 12;

/// What is known of such flows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rival {
    /// The queueing delay at which the queue overflowed.
    level: f64,
    /// Rounds left to look on.
    look: u32,
    /// A rate that is not given up, and until when.
    kept: Option<(f64, Time)>,
    /// Until when the others are believed in.
    until: Option<Time>,
    /// When others were last found, or did what only they do.
    met: Option<Time>,
    /// The rate and the queue when others were supposed, until the supposition has been checked.
    claim: Option<(f64, f64)>,
    /// A rate that is held to see whether the queue then grows, and until when.
    trial: Option<(f64, Time)>,
    /// When the next trial may begin.
    next_trial: Time,
    /// Rounds in a row with a short queue.
    calm: u32,
}

impl Rival {
    pub(super) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Others were met lately: a queue that does not yield is theirs rather than noise.
    pub(super) fn is_recent(&self, now: Time) -> bool {
        self.met.is_some_and(|met| now.since(met) < KEPT_FOR)
    }

    /// Others are believed in, or looked for.
    pub(super) fn is_at_work(&self) -> bool {
        self.is_on() || self.look > 0
    }

    fn begin(&mut self, now: Time, level: f64, rate: f64) {
        let (kept, until, met) = (self.kept, self.until, Some(now));
        *self = Rival { level, look: LOOK_ROUNDS, kept, until, met, ..Rival::default() };
        self.keep(rate, now, KEPT_FOR);
    }

    /// A part of `rate` is not given up for a while.
    fn keep(&mut self, rate: f64, now: Time, time: Span) {
        let held = self.floor(now);
        self.kept = Some(((rate * KEPT).max(held * KEPT_AGAIN), now + time));
    }

    /// The rate that the law does not go below.
    pub(super) fn floor(&self, now: Time) -> f64 {
        self.kept.filter(|(_, until)| now < *until).map_or(0.0, |(rate, _)| rate)
    }

    /// A round has ended in which `standing` was the queue. True while the flow only looks on.
    pub(super) fn looks(&mut self, now: Time, standing: Option<f64>) -> bool {
        if self.look == 0 {
            return false;
        }
        self.look -= 1;
        if self.look == 0 {
            let stands = standing.is_some_and(|q| q > self.level * STANDS);
            self.until = stands.then(|| now + BELIEVED);
        }
        true
    }

    /// A queue that restraint does not shorten is somebody else's.
    ///
    /// `claim` is the rate and the queue before: they tell whether it was so.
    pub(super) fn found(&mut self, now: Time, level: f64, claim: (f64, f64)) {
        self.claim = Some(claim);
        self.level = self.level.max(level);
        self.until = Some(now + SUPPOSED);
        self.met = Some(now);
        self.trial = None;
        self.calm = 0;
    }

    /// Whether those that were supposed have shown themselves to be flows like this one, at a rate of `x` and a queue of
    /// `queue`. Flows that keep a window send it through a queue that grows with what this one adds: a third more of a
    /// fifth of the path makes it half as long again. Flows under the law give way, and their queue hardly changes.
    fn was_mistaken(&mut self, now: Time, x: f64, queue: f64) -> bool {
        let Some((_, before)) = self.claim.take_if(|(rate, _)| x > *rate * CHECKED_AT) else { return false };
        let mistaken = queue < before * UNYIELDING;
        if mistaken {
            (self.until, self.met) = (None, None);
            self.next_trial = now + SUPPOSED;
        }
        mistaken
    }

    /// Loss ends a trial.
    pub(super) fn end_trial(&mut self) {
        self.trial = None;
    }

    /// The rate held by a trial, which begins at `x` if the flow `yields`.
    ///
    /// The time between trials is random: flows that hold all at once find each other. Where others were met lately, there
    /// is none.
    fn held(&mut self, now: Time, x: f64, yields: bool, rng: &mut Rng) -> f64 {
        if self.trial.is_some_and(|(_, until)| now >= until) {
            self.trial = None;
            let pause = if self.is_recent(now) { 1 } else { TRIAL_PAUSE.as_nanos() };
            self.next_trial = now + Span::from_nanos(rng.below(pause));
        }
        if self.trial.is_none() && yields && now >= self.next_trial {
            self.trial = Some((x * HELD, now + TRIAL));
        }
        self.trial.map_or(0.0, |(rate, _)| rate)
    }

    /// The delay up to which this flow grows beside others, in a round whose longest delay was `longest`. As long as
    /// somebody fills the queue beyond what this flow keeps to, others are believed in.
    fn target(&mut self, now: Time, longest: f64, x: f64) -> Option<f64> {
        if now >= self.until? {
            self.until = None;
            self.keep(x, now, SUPPOSED);
            return None;
        }
        if longest > self.level * BEYOND {
            self.until = Some(now + BELIEVED);
        }
        self.level = self.level.max(longest);
        Some(self.level * SHARE)
    }
}

impl Haul {
    /// The queue overflowed at `longest` when `delivered` arrived. True when flows of another kind must have done it,
    /// and it is dealt with.
    pub(super) fn is_foreign(&mut self, s: &Signals, longest: f64, delivered: f64) -> bool {
        let fresh = self.round.count <= self.steady.began() + FRESH_ROUNDS;
        if fresh || !self.config.compete || longest <= FOREIGN * self.target(delivered) {
            return false;
        }
        let rate = delivered.min(self.rate);
        self.rival.begin(s.now, longest, rate);
        self.rate = rate * LOOK_GAIN;
        true
    }

    /// What is done instead of the law while others fill the queue; false when they do not. `x` arrives, `queue` stands.
    pub(super) fn beside_others(&mut self, s: &Signals, x: f64, queue: f64) -> bool {
        let calm = queue < self.target(x) * super::steady::CROWDED;
        self.rival.calm = if calm { self.rival.calm + 1 } else { 0 };
        if self.rival.calm >= CALM {
            self.rival.until = None;
        }
        if self.rival.was_mistaken(s.now, x, queue) {
            return false;
        }
        let Some(level) = self.rival.target(s.now, self.round.longest(), x) else { return false };
        let fair = self.narrowest.map_or(f64::INFINITY, |path| path / 2.0);
        // A flow that was pushed aside does not wait until they leave room: they do only when the queue overflows.
        let small = self.narrowest.is_some_and(|path| x < path * SMALL);
        let level = if small { f64::INFINITY } else { level };
        if queue < level && !s.app_limited && x > self.rate * 0.8 && self.rate < fair {
            let most = if self.rival.claim.is_some() { SUPPOSED_GROWTH } else { GROWTH };
            self.rate *= (1.0 + (level - queue) / self.rtt()).min(most);
        }
        true
    }

    /// A rate below which the law does not go this round: `x` arrives, `queue` stands and `target` is aimed at.
    ///
    /// Flows like this one rest where it rests: if it holds its rate there, the queue stays. A flow that grows until the
    /// queue overflows takes whatever is yielded, so slowly that the law always seems at rest, and makes the queue grow
    /// as soon as nothing is yielded: then the queue is `crowded` soon, and somebody else is found.
    pub(super) fn not_below(&mut self, now: Time, x: f64, queue: f64, target: f64) -> f64 {
        let small = self.narrowest.is_some_and(|path| x < path * SMALL);
        let rests = queue > target && queue < target * super::steady::CROWDED;
        let fresh = self.round.count <= self.steady.began() + FRESH_ROUNDS;
        let held = self.rival.held(now, x, self.config.compete && small && rests && !fresh, &mut self.rng);
        // Once the queue tells, it need not grow further: alone on a path that has become slower, this flow made it.
        let held = if queue > target * super::steady::CROWDED { held.min(x) } else { held };
        held.max(self.rival.floor(now).min(x))
    }
}
