//! The law, and soundings.

use super::loss::MOST_USUAL;
use super::round::Counts;
use super::start::Start;
use super::{Haul, NOMINAL_RTT, Phase};
use crate::Signals;
use base::{Rng, Span, Time};

/// Rate while the queue that the start made runs off, and rounds after which that ends whatever is in flight.
pub(super) const DRAIN_GAIN: f64 = 0.5;
pub(super) const DRAIN_ROUNDS: u32 = 4;
/// Part of the law's correction that is made in a round: what is measured is one to two round trips old, and a gain of
/// one would swing.
const STEP: f64 = 0.5;
/// Packets in flight below which the rate delivered is the highest sample of a round.
const FEW: u64 = 16;
/// Of a queue of one's own a dip leaves less than this part.
const UNDIPPED: f64 = 0.5;
/// Least factor of a round.
const LEAST: f64 = 0.5;
/// More than this part of what was sent is not believed to have been forgone.
const MOST_FORGONE: f64 = 0.5;
/// So much longer a queue is kept for each part forgone, and so many times longer at most.
const BUSY_GAIN: f64 = 30.0;
const MOST_LONGER: f64 = 3.0;
/// Rounds after a time at another rate in which the law rests, because what arrives was not sent at its rate.
const SETTLE: u32 = 2;
/// Reductions by loss, and by marks at least (RFC 8511).
const LOSS_CUT: f64 = 0.85;
const MARK_CUT: f64 = 0.85;
/// A queue shorter than this part of the one aimed at is none.
const NO_QUEUE: f64 = 0.25;
/// Where no queue is found: the first step up at most, the most after steps that found none, and how far beyond the rate
/// at which there was a queue steps stay small.
const FIRST_STEP: f64 = 0.05;
const LEAST_STEP: f64 = 0.02;
const MAX_GROWTH: f64 = 1.5;
const NEAR_CEILING: f64 = 1.1;
/// So far beyond that rate without a queue, the start begins anew.
const ANEW: f64 = 2.0;
/// Least round trip that queues are compared with.
pub(super) const SHORT: f64 = 0.005;
/// Time between small dips that show the bare round trip, and round trips at least; a random half of it is added. On a
/// round trip of a second each step up would else be followed by a dip.
const DIP_EVERY: Span = Span::from_secs(4);
const DIP_ROUNDS: f64 = 16.0;
/// Rate in a sounding, and its least length.
const SOUNDING_GAIN: f64 = 0.25;
const SOUNDING_TIME: Span = Span::from_millis(20);
/// A queue this much shorter than in the round before is another flow's doing.
const FALLS: f64 = 0.7;
/// Rounds in a row in which the queue stayed so many times longer than aimed at: there is something else in it.
const IN_VAIN: u32 = 12;
pub(super) const CROWDED: f64 = 1.3;
/// A delay of which a sounding leaves this part is not moved by it.
const UNMOVED: f64 = 0.8;
/// A flow with this share of the path empties its queue by itself.
const LARGE: f64 = 0.3;

/// The state of the law.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steady {
    /// Rounds without a queue.
    free: u32,
    /// Rounds left in which the law rests.
    settle: u32,
    /// The round in which the law took over from the start.
    began: u64,
    /// The part of what was to be sent that the host came too late for, smoothed.
    late: f64,
    /// Rounds with a crowded queue in a row, and the rate before the first of them.
    crowded: u32,
    uncrowded: f64,
    /// What was delivered when a queue stood, smoothed.
    ceiling: f64,
    next_dip: Time,
    /// When the queue that the start made had run off.
    pub(super) drained: Time,
    /// The factor of a dip under way.
    dip: Option<f64>,
    /// The queue before the last dip, and the least after it.
    dipped: Option<(f64, f64)>,
    /// The queue has been let run off, and has not been seen short since.
    pub(super) ran_off: bool,
}

impl Steady {
    /// After a time at another rate.
    pub(super) fn restart(&mut self, now: Time, rtt: f64, rng: &mut Rng) {
        self.free = 0;
        self.settle = SETTLE;
        self.dip = None;
        let every = DIP_EVERY.max(Span::from_secs_f64(rtt * DIP_ROUNDS));
        self.next_dip = now + every + Span::from_nanos(rng.below(every.as_nanos() / 2));
    }

    /// The start is over in `round`; `ceiling` is what the path can carry.
    pub(super) fn begin(&mut self, round: u64, ceiling: f64) {
        self.began = round;
        self.ceiling = ceiling;
    }

    /// The path has been found to carry `rate` now, whatever it did before.
    pub(super) fn path_is(&mut self, rate: f64) {
        self.ceiling = rate;
    }

    pub(super) fn began(&self) -> u64 {
        self.began
    }

    #[cfg(test)]
    pub(super) fn late(&self) -> f64 {
        self.late
    }

    pub(super) fn gain(&self) -> f64 {
        self.dip.unwrap_or(1.0)
    }

    /// A round with a queue so many times longer than the one aimed at.
    fn crowd(&mut self, longer: f64) {
        self.crowded = if longer > CROWDED { self.crowded.saturating_add(1) } else { 0 };
    }

    /// The rate after a round without a queue, where the first step up is `step`.
    ///
    /// What a step does shows after a round: every second round is for looking. Up to the rate at which there was a
    /// queue, steps are large; just beyond, small; and further on they double, because the path has grown.
    fn climb(&mut self, rate: f64, step: f64) -> f64 {
        let step = step.clamp(LEAST_STEP, FIRST_STEP);
        let beyond = rate >= self.ceiling * NEAR_CEILING;
        let even = self.free.is_multiple_of(2);
        let bold = step * f64::from(1u32 << (self.free / 2).min(16));
        self.free = if beyond || even { self.free + 1 } else { 0 };
        if !even {
            rate
        } else if rate * (1.0 + step) < self.ceiling {
            (rate * MAX_GROWTH).min(self.ceiling)
        } else if beyond {
            rate * (1.0 + bold).min(MAX_GROWTH)
        } else {
            rate * (1.0 + step)
        }
    }
}

/// A sounding under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sounding {
    until: Time,
    rounds: u32,
    /// The queueing delay that no restraint shortened and that led to this.
    crowd: Option<f64>,
    /// The rate and the queue before it.
    before: (f64, f64),
}

impl Sounding {
    pub(super) fn gain(&self) -> f64 {
        SOUNDING_GAIN
    }
}

impl Haul {
    pub(super) fn on_sounding(&mut self, s: &Signals) {
        let Phase::Sounding(sounding) = &mut self.phase else { return };
        sounding.rounds += u32::from(s.round_start);
        if s.now >= sounding.until && sounding.rounds >= 2 {
            let large = self.narrowest.is_some_and(|path| self.rate > path * LARGE);
            // A queue that no restraint moves is no queue but a longer way; one that it shortens, but does not empty,
            // is somebody else's.
            // The restraint of a flow that is small beside the path would not be seen.
            let tells = self.narrowest.is_none_or(|path| self.steady.uncrowded > path * LARGE);
            let unmoved =
                tells && sounding.crowd.is_some_and(|level| self.base.sounded_above() > level * UNMOVED);
            if let Some(level) = sounding.crowd.filter(|_| !large && !unmoved && self.config.compete) {
                // How long a queue others fill is not known yet: often a round trip's worth.
                self.rival.found(s.now, level.max(self.base.or(NOMINAL_RTT)), sounding.before);
            }
            self.base.end_sounding(s.now, large || unmoved, self.round.noise());
            self.phase = Phase::Steady;
            self.steady.restart(s.now, self.rtt(), &mut self.rng);
        }
    }

    /// At the end of a round.
    pub(super) fn on_steady(&mut self, s: &Signals) {
        let counts = self.round.counts();
        self.probe.end_of_round(s);
        if self.rival.looks(s.now, self.round.standing()) {
            return;
        }
        let in_vain = self.steady.crowded >= IN_VAIN && !s.app_limited;
        if in_vain || self.is_time_to_sound(s) {
            self.steady.crowded = 0;
            // A part of what arrives: a part of much more than that would empty nothing.
            let arriving = s.rate.filter(|r| !r.app_limited).map(|r| r.rate.bytes_per_sec() as f64 * 1.05);
            let arriving = arriving.unwrap_or(f64::INFINITY);
            self.rate = self.rate.min(arriving);
            self.base.begin_sounding();
            self.probe.restart();
            let time = Span::from_secs_f64(self.rtt()).max(SOUNDING_TIME);
            let crowd = in_vain.then(|| self.round.most());
            let before = (self.rate, self.round.standing().unwrap_or(0.0));
            self.phase = Phase::Sounding(Sounding { until: s.now + time, rounds: 0, crowd, before });
        } else if self.steady.dip.take().is_some() {
            self.steady.restart(s.now, self.rtt(), &mut self.rng);
        } else if self.on_probe(s) || self.looks_at_loss(s, counts) {
            self.steady.free = 0;
        } else if self.is_congested() {
            self.on_congestion(s);
        } else if self.config.ecn && counts.marked > 0 {
            let share = counts.marked as f64 / counts.acked.max(1) as f64;
            self.losses.overflowed_at(self.round.most());
            self.rate *= MARK_CUT.min(1.0 - share.min(1.0) / 2.0);
            self.steady.free = 0;
        } else if self.steady.settle > 0 {
            self.steady.settle -= 1;
            self.looks_at_dip();
        } else {
            self.losses.quiet(counts, self.round.longest(), self.rtt());
            self.follow_law(s, counts);
        }
    }

    /// The lowest round trip has not been seen for long, or another flow is sounding: the queue falls though this one
    /// has not held back. All flows sound together then, and each sees the bare path.
    fn is_time_to_sound(&self, s: &Signals) -> bool {
        if s.app_limited || self.rival.is_on() {
            return false;
        }
        let falls = self.round.standing().is_some_and(|q| q < self.round.prior_standing() * FALLS);
        let join = falls && self.steady.dip.is_none() && self.base.may_join(s.now);
        self.base.is_stale(s.now) || join
    }

    pub(super) fn on_congestion(&mut self, s: &Signals) {
        let delivered = s.rate.map_or(self.rate, |r| r.rate.bytes_per_sec() as f64);
        let longest = self.round.most();
        self.losses.reduced_from(self.rate);
        self.rival.end_trial();
        if !self.is_foreign(s, longest, delivered) {
            if self.is_queued() {
                self.losses.overflowed_at(longest);
            }
            if !self.is_queued() && delivered > self.rate / 2.0 {
                // Whatever it carried before. Where little arrives, nothing is known.
                self.steady.path_is(delivered);
            }
            self.rate = (self.rate * LOSS_CUT).min(delivered.max(self.rate / 2.0));
        }
        self.losses.answer(s.now);
        self.shallow.restart();
        self.steady.free = 0;
    }

    /// After a dip: what a dip of a large flow has not shortened may be no queue, which a probe tells.
    fn looks_at_dip(&mut self) {
        let Some(standing) = self.round.standing() else { return };
        let Some((before, least)) = &mut self.steady.dipped else { return };
        *least = least.min(standing);
        let (before, least) = (*before, *least);
        if self.steady.settle == 0 {
            self.steady.dipped = None;
            let large = self.narrowest.is_none_or(|path| self.rate > path * LARGE);
            if large && least > before * UNDIPPED {
                self.probe.doubt();
            }
        }
    }

    fn follow_law(&mut self, s: &Signals, counts: Counts) {
        let (Some(r), Some(queue)) = (s.rate, self.round.standing()) else { return };
        let rtt = self.rtt();
        // What was lost at random took its share of the rate: for the law it arrived.
        let total = counts.total().max(1) as f64;
        let arrived = (counts.acked as f64).max(total * (1.0 - MOST_USUAL));
        // And so would have what a busy host came too late to send.
        let late = (r.forgone as f64 / r.delivered.max(1) as f64).min(MOST_FORGONE);
        self.steady.late += (late - self.steady.late) / 8.0;
        // With a few packets in flight a sample that cuts a pair of them is a fifth too low.
        let few = self.rate * rtt < (FEW * self.packet) as f64;
        let sample = self.arrived_lately().unwrap_or(r.rate.bytes_per_sec() as f64);
        let sample = if few { sample.max(self.round.fastest()) } else { sample };
        let x = (sample * (1.0 + late) * total / arrived).min(self.rate * 1.05);
        // A longer queue keeps the path busy while the host is.
        let longer = (1.0 + BUSY_GAIN * self.steady.late).min(MOST_LONGER);
        let target = self.target(x.max(self.rate / 2.0)) * longer;
        // On a short path queues come and go by the hosts' doing: their length is no measure of it.
        let scale = rtt.max(SHORT);
        self.narrowest = Some(self.narrowest.map_or(x, |path| path.max(x)));
        if self.beside_others(s, x, queue) {
            return;
        }
        let limited = s.app_limited || r.app_limited;
        if limited {
            // What arrives is what there was to send, and says nothing of the path; a queue does.
            if queue > target {
                self.rate *= (1.0 + STEP * (target - queue) / scale).max(LEAST);
            }
            return;
        }
        if queue < target * NO_QUEUE {
            // Unless what was sent is not there yet.
            if x >= self.rate * 0.9 {
                let most = self.shallow.ceiling(s.now).max(self.rate);
                self.rate = self.steady.climb(self.rate, target / scale).min(most);
            }
            self.steady.crowded = 0;
            if self.rate > self.steady.ceiling * ANEW {
                // The path has become another one.
                self.phase = Phase::Start(Start::again(self.rate));
                return;
            }
        } else {
            self.steady.free = 0;
            if queue > target / 2.0 {
                self.steady.ceiling += (x - self.steady.ceiling) / 2.0;
            }
            if self.steady.crowded == 0 {
                self.steady.uncrowded = self.rate;
            }
            self.steady.crowd(queue / target);
            let law = x * (1.0 + STEP * (target - queue) / scale).max(LEAST);
            self.rate = law.max(self.not_below(s.now, x, queue, target));
            self.probe(target, queue);
        }
        if s.now >= self.steady.next_dip && !self.probe.is_under_way() {
            // For a round, as much less as empties twice the queue.
            self.steady.dipped = Some((queue, f64::INFINITY));
            self.steady.dip = Some(1.0 - (2.0 * queue.max(target) / scale).min(0.5));
        }
    }
}
