//! The control law, and RTT probes.

use super::loss::MAX_RANDOM_LOSS;
use super::round::Counts;
use super::start::Start;
use super::{Haul, NOMINAL_RTT, Phase};
use crate::Signals;
use base::{Rng, Span, Time};

/// Gain while the queue of the start drains, and rounds after which that ends in any case.
pub(super) const DRAIN_GAIN: f64 = 0.5;
pub(super) const DRAIN_ROUNDS: u32 = 4;
/// Part of the law's correction that is made in one round: measurements are one to two round trips old, and a gain of
/// one would oscillate.
const LAW_GAIN: f64 = 0.5;
/// Packets in flight below which the highest sample of a round is used as delivery rate.
const FEW_PACKETS: u64 = 16;
/// A dip shortens the flow's own queue to less than this part.
const INEFFECTIVE_DIP: f64 = 0.5;
/// Smallest factor of the law in one round.
const MIN_LAW_FACTOR: f64 = 0.5;
/// Largest part of the sent data that counts as forgone.
const MAX_FORGONE: f64 = 0.5;
/// Increase of the target per part forgone, and the largest factor of the target.
const BUSY_HOST_GAIN: f64 = 30.0;
const MAX_TARGET_FACTOR: f64 = 3.0;
/// Rounds after a time at another rate in which the law rests, because deliveries are from that time.
const SETTLE_ROUNDS: u32 = 2;
/// Factors of reductions for loss and, at least, for marks (RFC 8511).
const LOSS_CUT: f64 = 0.85;
const MARK_CUT: f64 = 0.85;
/// A queue shorter than this part of the target counts as empty.
const EMPTY_QUEUE: f64 = 0.25;
/// Without a queue: the largest and the smallest first step up, the largest factor of a step, and how far beyond the
/// ceiling steps stay small.
const MAX_FIRST_STEP: f64 = 0.05;
const MIN_FIRST_STEP: f64 = 0.02;
const MAX_GROWTH: f64 = 1.5;
const NEAR_CEILING: f64 = 1.1;
/// So far beyond the ceiling without a queue, the start begins anew.
const RESTART_FACTOR: f64 = 2.0;
/// Shortest round trip that queues are compared with, in seconds.
pub(super) const SHORT_PATH: f64 = 0.005;
/// Time between small dips that show the minimum round trip, and the fewest round trips; a random half is added. On
/// round trips of a second each step up would otherwise be followed by a dip.
const DIP_INTERVAL: Span = Span::from_secs(4);
const DIP_ROUNDS: f64 = 16.0;
/// Gain of an RTT probe, and its shortest duration.
const RTT_PROBE_GAIN: f64 = 0.25;
const MIN_RTT_PROBE_TIME: Span = Span::from_millis(20);
/// A queue shorter than this part of the previous round's was shortened by another flow.
const FALLING_QUEUE: f64 = 0.7;
/// Successive rounds with a queue this many times longer than the target after which its cause is probed.
const MAX_CROWDED_ROUNDS: u32 = 12;
pub(super) const CROWDED: f64 = 1.3;
/// A delay is unaffected by an RTT probe if more than this part remains.
const UNAFFECTED_DELAY: f64 = 0.8;
/// A flow with more than this share of the path empties its queue by itself.
const LARGE_SHARE: f64 = 0.3;

/// Rounds in which a queue that ends the start may have been a host that was slow to answer the first packets.
const FIRST_ROUNDS: u64 = 4;

/// What is known of a start that a queue ended in its first rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FalseStart {
    /// None was.
    #[default]
    None,
    /// One was; if the queue is gone at the same rate, it was none.
    Suspected,
    /// The start has been repeated, which it is once.
    Repeated,
}

/// The state of the law.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steady {
    /// Successive rounds without a queue.
    rounds_without_queue: u32,
    /// Rounds left in which the law rests.
    settle_rounds_left: u32,
    /// The round in which the law took over from the start.
    start_round: u64,
    /// Whether a queue ended the start in its first rounds, and whether that happened before.
    false_start: FalseStart,
    /// The smoothed part of the data that a busy host sent too late.
    host_lateness: f64,
    /// Successive rounds with a crowded queue, and the rate before the first of them.
    crowded_rounds: u32,
    rate_before_crowding: f64,
    /// The smoothed delivery rate while a queue stood.
    ceiling: f64,
    next_dip: Time,
    /// When the queue of the start had drained.
    pub(super) drain_end: Time,
    /// The gain of a dip in progress.
    dip_gain: Option<f64>,
    /// The queue before the last dip, and the minimum after it.
    queue_around_dip: Option<(f64, f64)>,
    /// The queue has been cleared, and was not short since.
    pub(super) backlog_cleared: bool,
}

impl Steady {
    /// Restarts after a time at another rate.
    pub(super) fn restart(&mut self, now: Time, rtt: f64, rng: &mut Rng) {
        self.rounds_without_queue = 0;
        self.settle_rounds_left = SETTLE_ROUNDS;
        self.dip_gain = None;
        let every = DIP_INTERVAL.max(Span::from_secs_f64(rtt * DIP_ROUNDS));
        self.next_dip = now + every + Span::from_nanos(rng.below(every.as_nanos() / 2));
    }

    /// Takes over from the start in `round`; `ceiling` is what the path can carry.
    pub(super) fn begin(&mut self, round: u64, ceiling: f64) {
        self.start_round = round;
        self.ceiling = ceiling;
    }

    /// Notes that a queue ended the start.
    pub(super) fn suspect_false_start(&mut self, round: u64) {
        if round <= FIRST_ROUNDS && self.false_start == FalseStart::None {
            self.false_start = FalseStart::Suspected;
        }
    }

    /// Sets the rate that the path was found to carry.
    pub(super) fn set_ceiling(&mut self, rate: f64) {
        self.ceiling = rate;
    }

    pub(super) fn start_round(&self) -> u64 {
        self.start_round
    }

    #[cfg(test)]
    pub(super) fn host_lateness(&self) -> f64 {
        self.host_lateness
    }

    pub(super) fn gain(&self) -> f64 {
        self.dip_gain.unwrap_or(1.0)
    }

    /// Counts a round whose queue was `longer` times the target.
    fn count_crowded_round(&mut self, longer: f64) {
        self.crowded_rounds = if longer > CROWDED { self.crowded_rounds.saturating_add(1) } else { 0 };
    }

    /// The rate after a round without a queue, with a first step up of `step`.
    ///
    /// A step takes effect a round later, so every second round only measures. Up to the ceiling steps are large;
    /// just beyond it small; further on they double, because the path has grown.
    fn increase(&mut self, rate: f64, step: f64) -> f64 {
        let step = step.clamp(MIN_FIRST_STEP, MAX_FIRST_STEP);
        let beyond = rate >= self.ceiling * NEAR_CEILING;
        let even = self.rounds_without_queue.is_multiple_of(2);
        let bold = step * f64::from(1u32 << (self.rounds_without_queue / 2).min(16));
        self.rounds_without_queue = if beyond || even { self.rounds_without_queue + 1 } else { 0 };
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

/// An RTT probe in progress.
#[derive(Clone, Copy, Debug)]
pub(super) struct RttProbe {
    until: Time,
    rounds: u32,
    /// The queueing delay that no reduction shortened and that led to this probe.
    crowded_delay: Option<f64>,
    /// The rate and the queue before it.
    before: (f64, f64),
}

impl RttProbe {
    pub(super) fn gain(&self) -> f64 {
        RTT_PROBE_GAIN
    }
}

impl Haul {
    pub(super) fn on_rtt_probe(&mut self, s: &Signals) {
        let Phase::RttProbe(probe) = &mut self.phase else { return };
        probe.rounds += u32::from(s.round_start);
        if s.now >= probe.until && probe.rounds >= 2 {
            let large = self.bottleneck.is_some_and(|path| self.rate > path * LARGE_SHARE);
            // A delay that no reduction affects is a longer path; one that is shortened but not emptied is a
            // competitor's queue.
            // A flow with a small share of the path could not affect the queue.
            let tells =
                self.bottleneck.is_none_or(|path| self.steady.rate_before_crowding > path * LARGE_SHARE);
            let unmoved = tells
                && probe
                    .crowded_delay
                    .is_some_and(|level| self.min_rtt.probed_excess() > level * UNAFFECTED_DELAY);
            if let Some(level) = probe.crowded_delay.filter(|_| !large && !unmoved && self.config.compete) {
                // The length of a competitor's queue is not known yet; it is often a round trip.
                self.competitor.suspect(s.now, level.max(self.min_rtt.get_or(NOMINAL_RTT)), probe.before);
            }
            self.min_rtt.end_probe(s.now, large || unmoved, self.round.noise());
            self.phase = Phase::Steady;
            self.steady.restart(s.now, self.rtt(), &mut self.rng);
        }
    }

    /// Handles the end of a round.
    pub(super) fn on_steady(&mut self, s: &Signals) {
        let counts = self.round.counts();
        self.probe.on_round_end(s);
        if self.competitor.observe(s.now, self.round.standing_queue()) {
            return;
        }
        let in_vain = self.steady.crowded_rounds >= MAX_CROWDED_ROUNDS && !s.app_limited;
        if in_vain || self.rtt_probe_is_due(s) {
            self.steady.crowded_rounds = 0;
            // Relative to the delivery rate, since a part of a much higher rate would not empty the queue.
            let arriving = s.rate.filter(|r| !r.app_limited).map(|r| r.rate.bytes_per_sec() as f64 * 1.05);
            let arriving = arriving.unwrap_or(f64::INFINITY);
            self.rate = self.rate.min(arriving);
            self.min_rtt.begin_probe();
            self.probe.restart();
            let time = Span::from_secs_f64(self.rtt()).max(MIN_RTT_PROBE_TIME);
            let crowd = in_vain.then(|| self.round.max_delay_of_two_rounds());
            let before = (self.rate, self.round.standing_queue().unwrap_or(0.0));
            self.phase =
                Phase::RttProbe(RttProbe { until: s.now + time, rounds: 0, crowded_delay: crowd, before });
        } else if self.steady.dip_gain.take().is_some() {
            self.steady.restart(s.now, self.rtt(), &mut self.rng);
        } else if self.probe.is_running() && self.is_congested() {
            // The path is full, and what is sent beyond that is lost.
            self.probe.fail();
            self.on_congestion(s);
        } else if self.update_probe(s) || self.check_loss_without_queue(s, counts) {
            self.steady.rounds_without_queue = 0;
        } else if self.is_congested() {
            self.on_congestion(s);
        } else if self.config.ecn && counts.marked > 0 {
            let share = counts.marked as f64 / counts.acked.max(1) as f64;
            self.losses.on_overflow(self.round.max_delay_of_two_rounds());
            self.rate *= MARK_CUT.min(1.0 - share.min(1.0) / 2.0);
            self.steady.rounds_without_queue = 0;
        } else if self.steady.settle_rounds_left > 0 {
            self.steady.settle_rounds_left -= 1;
            self.check_dip();
        } else {
            self.losses.on_round_without_congestion(counts, self.round.max_delay(), self.rtt());
            self.apply_law(s, counts);
        }
    }

    /// Whether an RTT probe is due: the minimum has not been seen for long, or another flow is probing, which shows
    /// as a queue that shrinks without a reduction. All flows probe together then, and each sees the empty path.
    fn rtt_probe_is_due(&self, s: &Signals) -> bool {
        if s.app_limited || self.competitor.is_competing() {
            return false;
        }
        let falls = self
            .round
            .standing_queue()
            .is_some_and(|q| q < self.round.prior_standing_queue() * FALLING_QUEUE);
        let join = falls && self.steady.dip_gain.is_none() && self.min_rtt.may_join_probe(s.now);
        self.min_rtt.is_stale(s.now) || join
    }

    pub(super) fn on_congestion(&mut self, s: &Signals) {
        let delivered = s.rate.map_or(self.rate, |r| r.rate.bytes_per_sec() as f64);
        let longest = self.round.max_delay_of_two_rounds();
        self.losses.remember_rate(self.rate);
        self.competitor.end_hold();
        if !self.observe_competitor_overflow(s, longest, delivered) {
            if self.queue_could_overflow() {
                self.losses.on_overflow(longest);
            }
            if !self.queue_could_overflow() && delivered > self.rate / 2.0 {
                // The path's rate is what arrives now. Where little arrives, nothing is known.
                self.steady.set_ceiling(delivered);
            }
            self.rate = (self.rate * LOSS_CUT).min(delivered.max(self.rate / 2.0));
        }
        self.losses.begin_recovery(s.now);
        self.shallow_queue.restart();
        self.steady.rounds_without_queue = 0;
    }

    /// Evaluates a dip: a queue that a large flow's dip has not shortened may not be one, which a bandwidth probe
    /// finds out.
    fn check_dip(&mut self) {
        let Some(standing) = self.round.standing_queue() else { return };
        let Some((before, least)) = &mut self.steady.queue_around_dip else { return };
        *least = least.min(standing);
        let (before, least) = (*before, *least);
        if self.steady.settle_rounds_left == 0 {
            self.steady.queue_around_dip = None;
            let large = self.bottleneck.is_none_or(|path| self.rate > path * LARGE_SHARE);
            if large && least > before * INEFFECTIVE_DIP {
                self.probe.doubt_queue();
            }
        }
    }

    /// Whether so few packets are in flight that what they meet tells little of the path.
    pub(super) fn has_few_packets(&self) -> bool {
        self.rate * self.rtt() < (FEW_PACKETS * self.packet) as f64
    }

    /// Raises the rate, of which `x` arrives, after a round without a queue, by a first step of `step`. True if the start
    /// begins anew.
    fn climb(&mut self, now: Time, x: f64, step: f64, noisy: bool) -> bool {
        let false_start = self.steady.false_start == FalseStart::Suspected;
        if false_start {
            self.steady.false_start = FalseStart::Repeated;
        } else if x >= self.rate * 0.9 || noisy {
            // Else the packets sent have not arrived yet.
            let most = self.shallow_queue.ceiling(now).max(self.rate);
            self.rate = self.steady.increase(self.rate, step).min(most);
        }
        self.steady.crowded_rounds = 0;
        // Far beyond the ceiling, the path has changed.
        let again = false_start || self.rate > self.steady.ceiling * RESTART_FACTOR;
        if again {
            self.phase = Phase::Start(Start::from_rate(self.rate));
        }
        again
    }

    fn apply_law(&mut self, s: &Signals, counts: Counts) {
        let (Some(r), Some(queue)) = (s.rate, self.round.standing_queue()) else { return };
        let rtt = self.rtt();
        // Random loss reduces the delivery rate; for the law those packets count as delivered.
        let total = counts.total().max(1) as f64;
        let arrived = (counts.acked as f64).max(total * (1.0 - MAX_RANDOM_LOSS));
        // So do packets that a busy host sent too late.
        let late = (r.forgone as f64 / r.delivered.max(1) as f64).min(MAX_FORGONE);
        self.steady.host_lateness += (late - self.steady.host_lateness) / 8.0;
        // With a few packets in flight a sample that separates a pair of them is a fifth too low.
        let few = self.has_few_packets();
        let sample = self.recent_delivery_rate().unwrap_or(r.rate.bytes_per_sec() as f64);
        let sample = if few { sample.max(self.round.max_rate()) } else { sample };
        let x = (sample * (1.0 + late) * total / arrived).min(self.rate * 1.05);
        // A longer queue keeps the path busy while the host is not sending.
        let longer = (1.0 + BUSY_HOST_GAIN * self.steady.host_lateness).min(MAX_TARGET_FACTOR);
        let target = self.target(x.max(self.rate / 2.0)) * longer;
        // On a short path hosts cause queues, whose length is therefore compared with a longer time.
        let scale = rtt.max(SHORT_PATH);
        self.bottleneck = Some(self.bottleneck.map_or(x, |path| path.max(x)));
        if self.compete(s, x, queue) {
            return;
        }
        let limited = s.app_limited || r.app_limited;
        if limited {
            // The delivery rate of an application-limited flow does not measure the path; a queue does.
            if queue > target {
                self.rate *= (1.0 + LAW_GAIN * (target - queue) / scale).max(MIN_LAW_FACTOR);
            }
            return;
        }
        // A few packets tell neither the rate nor the queue where noise explains the delays that they met.
        let noisy = few && queue < self.round.noise_range();
        if queue < target * EMPTY_QUEUE || noisy {
            if noisy {
                self.probe_if_noisy(target, queue);
            }
            if self.climb(s.now, x, target / scale, noisy) {
                return;
            }
        } else {
            self.steady.rounds_without_queue = 0;
            if queue > target / 2.0 {
                self.steady.ceiling += (x - self.steady.ceiling) / 2.0;
            }
            if self.steady.crowded_rounds == 0 {
                self.steady.rate_before_crowding = self.rate;
            }
            self.steady.count_crowded_round(queue / target);
            let law = x * (1.0 + LAW_GAIN * (target - queue) / scale).max(MIN_LAW_FACTOR);
            let floor = self.law_rate_floor(s.now, x, queue, target);
            self.rate = law.max(floor);
            self.probe_if_noisy(target, queue);
        }
        if s.now >= self.steady.next_dip && !self.probe.is_running() {
            // For a round, as much less as empties twice the queue.
            self.steady.queue_around_dip = Some((queue, f64::INFINITY));
            self.steady.dip_gain = Some(1.0 - (2.0 * queue.max(target) / scale).min(0.5));
        }
    }
}
