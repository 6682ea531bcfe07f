//! A path that slows down faster than the law works.
//!
//! Once the queue is nearly as long as the bare round trip, rounds are so long that the law is late by several of the path's
//! own. Then nothing is sent until what is in flight fits the rate that arrives: as long as the queue stands, that is
//! the path's rate, whatever it was before. After an outage the same finds the rate at which the path came back.

use super::steady::SHORT;
use super::{Haul, Phase};
use crate::Signals;

/// A queue longer than this part of the lowest round trip has run away: twice the most that flows under the law aim at.
const RUN_AWAY: f64 = 0.7;
/// Where the queue overflows, but more than this part of the rate arrives, others may be at work, and the path has not
/// become another one.
const SLOWED: f64 = 0.5;
/// What is in flight fits when it exceeds the bound by no more than this: reports come in steps.
const FITS: f64 = 1.05;

impl Haul {
    /// What queues are compared with.
    fn scale(&self) -> f64 {
        self.rtt().max(SHORT)
    }

    /// The queue is longer than any that flows under the law keep, and was not when it was last let run off: a queue
    /// that this does not shorten is somebody else's.
    pub(super) fn has_run_away(&mut self, s: &Signals) -> bool {
        // Delays that differ by a round trip are seen on short paths; there more is needed.
        let most = (RUN_AWAY * self.scale()).max(self.round.spread().min(self.scale()));
        let long = self.round.standing().is_some_and(|q| q > most);
        self.steady.ran_off &= long;
        // What was sent while the start's queue ran off has met that queue.
        let old = s.newest_acked_sent.is_some_and(|sent| sent <= self.steady.drained);
        long && !old && !self.steady.ran_off && !self.rival.is_at_work()
    }

    /// The part of the queue that may be in flight besides the bare path's product. A queue of others is theirs to
    /// bound; one's own must not allow for itself, or nothing stops the sender when the path slows down.
    pub(super) fn allowed_queue(&self) -> f64 {
        let most = if self.rival.is_at_work() { f64::INFINITY } else { RUN_AWAY * self.scale() };
        self.round.queue_mean().min(most)
    }

    pub(super) fn begin_run_off(&mut self, s: &Signals) {
        // A rate needs some time to be one.
        if self.round.age(s.now) <= self.scale() / 2.0 {
            return;
        }
        let arrived = self.round.arrived(s.now);
        if s.round_start && self.is_congested() && arrived > self.rate * SLOWED {
            self.on_steady(s);
        } else {
            self.rate = arrived;
            self.round.finish();
            self.shallow.restart();
            self.probe.restart();
            self.steady.ran_off = true;
            self.phase = Phase::RunOff;
        }
    }

    /// Looks once in a bare round trip what arrives.
    ///
    /// A report of nothing but losses says nothing of that: the queue that overflowed last is still to come.
    pub(super) fn on_run_off(&mut self, s: &Signals) {
        if s.acked == 0 || self.round.age(s.now) < self.scale() {
            return;
        }
        self.rate = self.round.arrived(s.now);
        self.round.finish();
        self.decide();
        if s.inflight as f64 <= self.decision.bound as f64 * FITS {
            self.phase = Phase::Steady;
            self.losses.answer(s.now);
            self.steady.path_is(self.rate);
            self.steady.restart(s.now, self.rtt(), &mut self.rng);
        }
    }
}
