//! Clears the queue when the path slows down faster than the law can follow.
//!
//! Once the queue is nearly as long as the minimum round trip, a round lasts several of the path's own round trips,
//! and the law is late by as much. Then sending stops until the data in flight fits the delivery rate, which is the
//! path's rate while the queue stands. After an outage this finds the rate at which the path came back.

use super::steady::SHORT_PATH;
use super::{Haul, Phase};
use crate::Signals;

/// A queue longer than this part of the minimum round trip is excessive: twice the highest target of the law.
const EXCESSIVE_QUEUE: f64 = 0.7;
/// If the queue overflows while more than this part of the rate arrives, the cause may be a competitor, and the path
/// is not assumed to have changed.
const UNCHANGED_PATH: f64 = 0.5;
/// The data in flight fits if it exceeds the congestion window by at most this factor, since reports come in steps.
const FLIGHT_TOLERANCE: f64 = 1.05;

impl Haul {
    /// The time that queues are compared with.
    fn queue_scale(&self) -> f64 {
        self.rtt().max(SHORT_PATH)
    }

    /// Whether the queue is longer than flows under the law keep it, and not left over from the last clearing: a
    /// queue that clearing does not shorten belongs to a competitor.
    pub(super) fn has_excessive_queue(&mut self, s: &Signals) -> bool {
        let scale = self.queue_scale();
        // On short paths delays vary by a whole round trip, so more is required there; a few packets make no queue that is
        // longer than what noise explains.
        let explained = || {
            let noise = self.round.noise_range();
            if self.has_few_packets() { noise } else { noise.min(scale) }
        };
        let long =
            self.round.standing_queue().is_some_and(|q| q > EXCESSIVE_QUEUE * scale && q > explained());
        self.steady.backlog_cleared &= long;
        // Packets sent while the start's queue drained have met that queue, and a report of losses tells of no queue.
        let old = s.newest_acked_sent.is_none_or(|sent| sent <= self.steady.drain_end);
        long && !old && !self.steady.backlog_cleared && !self.competitor.is_competing_or_observing()
    }

    /// The part of the queue that may be in flight in addition to the path's bandwidth-delay product. A competitor's
    /// queue is not limited here; the flow's own must be, or nothing would stop the sender when the path slows down.
    pub(super) fn allowed_queue(&self) -> f64 {
        let most = if self.competitor.is_competing_or_observing() {
            f64::INFINITY
        } else {
            EXCESSIVE_QUEUE * self.queue_scale()
        };
        self.round.mean_queue().min(most)
    }

    pub(super) fn begin_backlog(&mut self, s: &Signals) {
        // A rate needs some time to be measured.
        if self.round.age(s.now) <= self.queue_scale() / 2.0 {
            return;
        }
        let arrived = self.round.delivery_rate(s.now);
        if s.round_start && self.is_congested() && arrived > self.rate * UNCHANGED_PATH {
            self.on_steady(s);
        } else {
            self.rate = arrived;
            self.round.finish();
            self.shallow_queue.restart();
            self.probe.restart();
            self.steady.backlog_cleared = true;
            self.phase = Phase::Backlog;
        }
    }

    /// Measures the delivery rate once per minimum round trip.
    ///
    /// A report of losses only is ignored, since the packets behind the overflow are still to come.
    pub(super) fn on_backlog(&mut self, s: &Signals) {
        if s.acked == 0 || self.round.age(s.now) < self.queue_scale() {
            return;
        }
        self.rate = self.round.delivery_rate(s.now);
        self.round.finish();
        self.decide();
        if s.inflight as f64 <= self.decision.cwnd as f64 * FLIGHT_TOLERANCE {
            self.phase = Phase::Steady;
            self.losses.begin_recovery(s.now);
            self.steady.set_ceiling(self.rate);
            self.steady.restart(s.now, self.rtt(), &mut self.rng);
        }
    }
}
