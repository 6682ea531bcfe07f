//! Flows that fill the queue until it overflows, and what is done about them.
//!
//! Flows under the law never overflow a queue much longer than the one they aim at. When that happens, this flow makes
//! room, as CUBIC does at the same moment, and looks on for some rounds. If the queue runs off, the path had changed or
//! all flows are like this one. If it stands, somebody else fills it: then this flow keeps to a part of the queue that
//! overflowed, and to half of the path at most, or it would be left with next to nothing. A part of the rate before the
//! overflow is not given up for a while in any case, because CUBIC spends long times near the same rate with a short
//! queue.

use super::Haul;
use crate::Signals;
use base::{Span, Time};

/// A queue so many times longer than the one aimed at is not overflowed by flows like this one.
const FOREIGN: f64 = 3.0;
/// Rounds after the start for which nothing is said of others.
const FRESH_ROUNDS: u64 = 30;
/// After such an overflow this part of the rate is not given up; of what was so held before, this part.
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
/// Beside others, the flow grows up to this part of the queue that overflowed.
const SHARE: f64 = 0.65;
/// Beyond this part of it, others are at work.
const BEYOND: f64 = 0.8;
/// Most growth in a round beside others.
const GROWTH: f64 = 1.05;

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
}

impl Rival {
    pub(super) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Others are believed in, or looked for.
    pub(super) fn is_at_work(&self) -> bool {
        self.is_on() || self.look > 0
    }

    fn begin(&mut self, now: Time, level: f64, rate: f64) {
        let held = self.floor(now);
        *self = Rival {
            level,
            look: LOOK_ROUNDS,
            kept: Some(((rate * KEPT).max(held * KEPT_AGAIN), now + KEPT_FOR)),
            until: self.until,
        };
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
    pub(super) fn found(&mut self, now: Time, level: f64) {
        self.level = self.level.max(level);
        self.until = Some(now + BELIEVED);
    }

    /// The delay up to which this flow grows beside others, in a round whose longest delay was `longest`. As long as
    /// somebody fills the queue beyond what this flow keeps to, others are believed in.
    fn target(&mut self, now: Time, longest: f64) -> Option<f64> {
        self.until = self.until.filter(|t| now < *t);
        self.until?;
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
        let Some(level) = self.rival.target(s.now, self.round.longest()) else { return false };
        let fair = self.narrowest.map_or(f64::INFINITY, |path| path / 2.0);
        if queue < level && !s.app_limited && x > self.rate * 0.8 && self.rate < fair {
            self.rate *= (1.0 + (level - queue) / self.rtt()).min(GROWTH);
        }
        true
    }
}
