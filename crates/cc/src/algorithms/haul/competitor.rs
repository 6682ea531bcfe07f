//! Detects flows that fill the queue until it overflows, and competes with them.
//!
//! Flows under the law never overflow a queue much longer than their target. If one overflows, this flow reduces its
//! rate, as CUBIC does at the same moment, and observes for some rounds. If the queue drains, the path has changed or
//! all flows are under the law. If it stands, a competitor fills it: then this flow keeps to a part of the queue that
//! overflowed, and to half of the path at most, to get a share at all. In any case a part of the rate before the
//! overflow is kept for a while, since CUBIC spends long times near the same rate with a short queue.
//!
//! Where no queue overflows, because this flow yields as fast as another grows, the flow holds its rate now and then.
//! Flows under the law then keep their rates, too; a competitor fills the queue and is detected.

use super::Haul;
use crate::Signals;
use base::{Rng, Span, Time};

/// Flows under the law do not overflow a queue this many times longer than their target.
const COMPETITOR_QUEUE: f64 = 3.0;
/// Rounds after the start in which no competitor is assumed.
const GRACE_ROUNDS: u64 = 30;
/// The part of the rate that is kept after such an overflow, and after competition has ended although a queue stands;
/// the part of an earlier floor that a new one keeps; and for how long.
const FLOOR_SHARE: f64 = 0.4;
const FLOOR_DECAY: f64 = 0.9;
const FLOOR_TIME: Span = Span::from_secs(60);
/// Gain while observing, and the number of rounds.
const OBSERVE_GAIN: f64 = 0.7;
const OBSERVE_ROUNDS: u32 = 10;
/// The queue still stands if it is longer than this part of the one that overflowed.
const STILL_STANDING: f64 = 0.2;
/// Time for which a competitor is assumed without another sign of it.
const COMPETE_TIME: Span = Span::from_secs(30);
/// The same if only a standing queue indicated it and no overflow, since flows under the law that start together may
/// have caused that.
const SUSPICION_TIME: Span = Span::from_secs(15);
/// Share of the overflowing queue up to which the flow grows beside a competitor.
const QUEUE_SHARE: f64 = 0.65;
/// A queue beyond this share of it shows that the competitor is active.
const COMPETITOR_ACTIVE: f64 = 0.8;
/// Most growth per round while competing, and while a competitor is only suspected: slowly enough that flows under
/// the law make room without a longer queue.
const MAX_GROWTH: f64 = 1.05;
const MAX_SUSPICION_GROWTH: f64 = 1.02;
/// A flow with less than this part of the path holds its rate now and then instead of yielding further.
const SMALL_SHARE: f64 = 0.25;
/// How long it holds its rate, and the longest pause before the next time.
const HOLD_TIME: Span = Span::from_secs(3);
const MAX_HOLD_PAUSE: Span = Span::from_secs(5);
/// A suspicion is checked once the flow has this many times the rate, and confirmed if the queue is this many times
/// longer.
const CHECK_RATE_RATIO: f64 = 1.3;
const CHECK_QUEUE_RATIO: f64 = 1.2;
/// The part of its rate that a flow holds, so that the queue does not grow if all flows hold.
const HOLD_GAIN: f64 = 0.98;
/// Successive rounds with a short queue after which no competitor is assumed any more.
const CALM_ROUNDS: u32 = 12;

/// The state of competition.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Competitor {
    /// The queueing delay at which the queue overflowed.
    overflow_delay: f64,
    /// Rounds left to observe.
    observe_rounds_left: u32,
    /// A rate that is not yielded, and until when.
    rate_floor: Option<(f64, Time)>,
    /// Until when a competitor is assumed.
    competing_until: Option<Time>,
    /// When a competitor was last detected.
    last_seen: Option<Time>,
    /// The rate and the queue at the time of a suspicion, until it is checked.
    suspicion: Option<(f64, f64)>,
    /// A rate that is held to see whether the queue grows, and until when.
    hold: Option<(f64, Time)>,
    /// The earliest time of the next hold.
    next_hold: Time,
    /// Successive rounds with a short queue.
    calm_rounds: u32,
}

impl Competitor {
    pub(super) fn is_competing(&self) -> bool {
        self.competing_until.is_some()
    }

    /// Whether a competitor was detected lately, so that a persistent queue is its and not noise.
    pub(super) fn was_seen_recently(&self, now: Time) -> bool {
        self.last_seen.is_some_and(|met| now.since(met) < FLOOR_TIME)
    }

    /// Whether a competitor is assumed or being looked for.
    pub(super) fn is_competing_or_observing(&self) -> bool {
        self.is_competing() || self.observe_rounds_left > 0
    }

    fn begin_observing(&mut self, now: Time, level: f64, rate: f64) {
        let (kept, until, met) = (self.rate_floor, self.competing_until, Some(now));
        *self = Competitor {
            overflow_delay: level,
            observe_rounds_left: OBSERVE_ROUNDS,
            rate_floor: kept,
            competing_until: until,
            last_seen: met,
            ..Competitor::default()
        };
        self.set_rate_floor(rate, now, FLOOR_TIME);
    }

    /// Keeps a part of `rate` from being yielded for a while.
    fn set_rate_floor(&mut self, rate: f64, now: Time, time: Span) {
        let held = self.floor(now);
        self.rate_floor = Some(((rate * FLOOR_SHARE).max(held * FLOOR_DECAY), now + time));
    }

    /// The rate below which the law does not go.
    pub(super) fn floor(&self, now: Time) -> f64 {
        self.rate_floor.filter(|(_, until)| now < *until).map_or(0.0, |(rate, _)| rate)
    }

    /// Handles the end of a round with the standing queue. True while the flow only observes.
    pub(super) fn observe(&mut self, now: Time, standing: Option<f64>) -> bool {
        if self.observe_rounds_left == 0 {
            return false;
        }
        self.observe_rounds_left -= 1;
        if self.observe_rounds_left == 0 {
            let stands = standing.is_some_and(|q| q > self.overflow_delay * STILL_STANDING);
            self.competing_until = stands.then(|| now + COMPETE_TIME);
        }
        true
    }

    /// Suspects a competitor, since a reduction has not shortened the queue.
    ///
    /// `claim` is the rate and the queue before, with which the suspicion is checked later.
    pub(super) fn suspect(&mut self, now: Time, level: f64, claim: (f64, f64)) {
        self.suspicion = Some(claim);
        self.overflow_delay = self.overflow_delay.max(level);
        self.competing_until = Some(now + SUSPICION_TIME);
        self.last_seen = Some(now);
        self.hold = None;
        self.calm_rounds = 0;
    }

    /// Checks a suspicion at the rate `x` and the queue `queue`; returns true if it was wrong. The queue of flows
    /// with a window grows with this flow's rate: a third more of a fifth of the path makes it half as long again.
    /// Flows under the law yield, and the queue hardly changes.
    fn refutes_suspicion(&mut self, now: Time, x: f64, queue: f64) -> bool {
        let Some((_, before)) = self.suspicion.take_if(|(rate, _)| x > *rate * CHECK_RATE_RATIO) else {
            return false;
        };
        let mistaken = queue < before * CHECK_QUEUE_RATIO;
        if mistaken {
            (self.competing_until, self.last_seen) = (None, None);
            self.next_hold = now + SUSPICION_TIME;
        }
        mistaken
    }

    /// Ends a hold, after loss.
    pub(super) fn end_hold(&mut self) {
        self.hold = None;
    }

    /// The rate that is held; a hold begins at `x` if the flow `yields`.
    ///
    /// The pause between holds is random, since flows that hold at the same time detect each other. After a recent
    /// detection there is no pause.
    fn held_rate(&mut self, now: Time, x: f64, yields: bool, rng: &mut Rng) -> f64 {
        if self.hold.is_some_and(|(_, until)| now >= until) {
            self.hold = None;
            let pause = if self.was_seen_recently(now) { 1 } else { MAX_HOLD_PAUSE.as_nanos() };
            self.next_hold = now + Span::from_nanos(rng.below(pause));
        }
        if self.hold.is_none() && yields && now >= self.next_hold {
            self.hold = Some((x * HOLD_GAIN, now + HOLD_TIME));
        }
        self.hold.map_or(0.0, |(rate, _)| rate)
    }

    /// The delay up to which this flow grows while competing, in a round whose longest delay was `longest`; `None`
    /// when not competing. A queue beyond it prolongs the competition.
    fn queue_target(&mut self, now: Time, longest: f64, x: f64) -> Option<f64> {
        if now >= self.competing_until? {
            self.competing_until = None;
            self.set_rate_floor(x, now, SUSPICION_TIME);
            return None;
        }
        if longest > self.overflow_delay * COMPETITOR_ACTIVE {
            self.competing_until = Some(now + COMPETE_TIME);
        }
        self.overflow_delay = self.overflow_delay.max(longest);
        Some(self.overflow_delay * QUEUE_SHARE)
    }
}

impl Haul {
    /// Handles an overflow at the delay `longest` with the rate `delivered`. Returns whether it must have been caused
    /// by a competitor, in which case the flow now observes.
    pub(super) fn observe_competitor_overflow(&mut self, s: &Signals, longest: f64, delivered: f64) -> bool {
        let fresh = self.round.count <= self.steady.start_round() + GRACE_ROUNDS;
        if fresh || !self.config.compete || longest <= COMPETITOR_QUEUE * self.target(delivered) {
            return false;
        }
        let rate = delivered.min(self.rate);
        self.competitor.begin_observing(s.now, longest, rate);
        self.rate = rate * OBSERVE_GAIN;
        true
    }

    /// Sets the rate while competing, instead of the law; false if not competing. `x` is the delivery rate, `queue`
    /// the standing queue.
    pub(super) fn compete(&mut self, s: &Signals, x: f64, queue: f64) -> bool {
        let calm = queue < self.target(x) * super::steady::CROWDED;
        self.competitor.calm_rounds = if calm { self.competitor.calm_rounds + 1 } else { 0 };
        if self.competitor.calm_rounds >= CALM_ROUNDS {
            self.competitor.competing_until = None;
        }
        if self.competitor.refutes_suspicion(s.now, x, queue) {
            return false;
        }
        let Some(level) = self.competitor.queue_target(s.now, self.round.max_delay(), x) else {
            return false;
        };
        let fair = self.bottleneck.map_or(f64::INFINITY, |path| path / 2.0);
        // A flow with a small share does not wait for others to make room, which happens only at an overflow.
        let small = self.bottleneck.is_some_and(|path| x < path * SMALL_SHARE);
        let level = if small { f64::INFINITY } else { level };
        if queue < level && !s.app_limited && x > self.rate * 0.8 && self.rate < fair {
            let most = if self.competitor.suspicion.is_some() { MAX_SUSPICION_GROWTH } else { MAX_GROWTH };
            self.rate *= (1.0 + (level - queue) / self.rtt()).min(most);
        }
        true
    }

    /// The rate below which the law does not go this round, at delivery rate `x`, standing queue `queue` and target
    /// `target`.
    ///
    /// If this flow holds its rate at equilibrium, flows under the law do as well, and the queue stays. A flow that
    /// grows until overflow takes whatever is yielded, so slowly that the law always seems at equilibrium; if nothing
    /// is yielded, the queue grows until it counts as crowded, and the competitor is detected.
    pub(super) fn law_rate_floor(&mut self, now: Time, x: f64, queue: f64, target: f64) -> f64 {
        let small = self.bottleneck.is_some_and(|path| x < path * SMALL_SHARE);
        let rests = queue > target && queue < target * super::steady::CROWDED;
        let fresh = self.round.count <= self.steady.start_round() + GRACE_ROUNDS;
        let held =
            self.competitor.held_rate(now, x, self.config.compete && small && rests && !fresh, &mut self.rng);
        // Once the queue is crowded the held rate need not exceed what arrives, since on a slower path this flow
        // caused it.
        let held = if queue > target * super::steady::CROWDED { held.min(x) } else { held };
        held.max(self.competitor.floor(now).min(x))
    }
}
