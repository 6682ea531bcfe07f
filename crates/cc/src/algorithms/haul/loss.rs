//! Decides which losses mean congestion, and which are random or due to an outage, for the algorithm `haul`.

use super::round::Counts;
use super::{Haul, Phase};
use crate::Signals;
use base::{Span, Time};

/// An interval without feedback longer than this, and than half a round trip, is an outage, whose losses do not mean
/// congestion.
const MIN_OUTAGE: Span = Span::from_millis(40);
/// Standard deviations by which losses must exceed a threshold to be significant.
const DEVIATIONS: f64 = 3.0;
/// Time in seconds in which the delay of the last overflow grows by a factor of e, and the most it grows in a round: the
/// path or its buffer may have changed since.
const OVERFLOW_MEMORY_SECS: f64 = 14.0;
const MAX_FADE_PER_ROUND: f64 = 0.005;
/// A queue shorter than this part of the one that overflowed cannot overflow.
const NO_OVERFLOW_BELOW: f64 = 0.75;

/// The state of loss detection.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossState {
    /// Losses of packets sent before this time are covered by the last reduction (RFC 9002: recovery start time).
    recovery_start: Time,
    /// The share of loss on the path without a queue.
    pub(super) random_loss: f64,
    /// The queueing delay at which the queue overflows, in seconds; it grows over time, see [`OVERFLOW_MEMORY_SECS`].
    overflow_delay: f64,
    /// The queueing delay at the last overflow, in seconds; it does not grow.
    last_overflow_delay: f64,
    /// How much later than the packets declared lost the newest packet acknowledged then had left, in seconds, smoothed.
    detection_lag: f64,
    /// The rate in bytes per second before the last reduction, until a round without congestion confirms the reduction.
    rate_before_reduction: Option<f64>,
}

impl Default for LossState {
    fn default() -> LossState {
        LossState {
            recovery_start: Time::ZERO,
            random_loss: 0.0,
            overflow_delay: f64::INFINITY,
            last_overflow_delay: 0.0,
            detection_lag: 0.0,
            rate_before_reduction: None,
        }
    }
}

impl LossState {
    /// The packets of this feedback that count, without losses of packets sent before the last reduction or in an
    /// outage.
    pub(super) fn counts(&self, s: &Signals) -> Counts {
        let old = s.latest_lost_sent.is_some_and(|sent| sent <= self.recovery_start);
        let lost = if old { 0 } else { s.lost_packets };
        Counts {
            acked: s.acked_packets,
            lost,
            marked: s.ce_packets,
            reports: u64::from(s.acked_packets > 0 || lost > 0),
            lossy_reports: u64::from(lost > 0),
        }
    }

    /// Learns how late losses are detected: by what the network reorders.
    pub(super) fn learn_detection_lag(&mut self, s: &Signals) {
        if let (Some(acked), Some(lost)) = (s.newest_acked_sent, s.latest_lost_sent) {
            self.detection_lag += (acked.since(lost).as_secs_f64() - self.detection_lag) / 8.0;
        }
    }

    /// Round trips between the first acknowledgement of what left at a time and the first loss.
    pub(super) fn lag_in_rounds(&self, rtt: f64) -> u32 {
        (self.detection_lag / rtt).round().min(8.0) as u32
    }

    /// Starts a recovery period: losses of packets sent until now do not count any more.
    pub(super) fn begin_recovery(&mut self, now: Time) {
        self.recovery_start = now;
    }

    /// Keeps the rate before a reduction, in case its losses turn out to be spurious.
    pub(super) fn remember_rate(&mut self, rate: f64) {
        self.rate_before_reduction.get_or_insert(rate);
    }

    /// Sets the queueing delay in seconds at which the queue overflows; infinite: it is not known.
    pub(super) fn set_overflow_delay(&mut self, queue: f64) {
        self.overflow_delay = queue;
    }

    /// The queueing delay at which the queue overflows.
    pub(super) fn overflow_delay(&self) -> f64 {
        self.overflow_delay
    }

    /// The longest target of the queueing delay, in seconds: half of the delay at which the queue overflows, but not less
    /// than what the noise of hosts hides anyway.
    pub(super) fn target_cap(&self) -> f64 {
        (self.overflow_delay / 2.0).max(super::HOST_NOISE / 4.0)
    }

    /// Notes that the queue overflowed at a queueing delay of `queue` seconds.
    pub(super) fn on_overflow(&mut self, queue: f64) {
        self.overflow_delay =
            if self.overflow_delay.is_finite() { (self.overflow_delay + queue) / 2.0 } else { queue };
        self.last_overflow_delay = queue;
    }

    /// Handles a round without congestion, in which `longest` was the longest queueing delay, in seconds.
    pub(super) fn on_round_without_congestion(&mut self, counts: Counts, longest: f64, rtt: f64) {
        let below = longest < self.last_overflow_delay * NO_OVERFLOW_BELOW;
        self.overflow_delay *= 1.0 + (rtt / OVERFLOW_MEMORY_SECS).min(MAX_FADE_PER_ROUND);
        self.rate_before_reduction = None;
        let total = counts.total();
        // Loss while the queue could not overflow is random.
        let share = counts.lost as f64 / total.max(1) as f64;
        if total > 0 && (below || share < self.random_loss) {
            let weight = (total as f64 / 4_096.0).min(0.25);
            self.random_loss = (self.random_loss + (share - self.random_loss) * weight).min(MAX_RANDOM_LOSS);
        }
    }

    /// Restores the rate after spurious losses.
    pub(super) fn undo_spurious(&mut self, s: &Signals, rate: &mut f64) {
        if s.spurious > 0 {
            self.recovery_start = s.now;
            if let Some(before) = self.rate_before_reduction.take() {
                *rate = rate.max(before);
                (self.overflow_delay, self.last_overflow_delay) = (f64::INFINITY, 0.0);
            }
        }
    }
}

/// The highest share that counts as random loss, since a higher one would hide an overflow.
pub(super) const MAX_RANDOM_LOSS: f64 = 0.12;

/// Whether `lost` of `total` exceeds `share` significantly.
pub(super) fn exceeds_significantly(lost: u64, total: u64, share: f64) -> bool {
    let (lost, total) = (lost as f64, total as f64);
    lost > total * share + DEVIATIONS * (total * share * (1.0 - share)).sqrt() + 1.0
}

/// Losses are bursty, and not caused by the rate, if fewer than this part of the expected number of `reports` contain
/// any (`lossy`). A queue overflows until its sender has reacted, over many reports.
const BURST_RATIO: f64 = 0.4;

/// Whether the losses came in bursts rather than one by one.
pub(super) fn is_bursty(lost: f64, total: f64, reports: f64, lossy: f64) -> bool {
    let kept = 1.0 - lost / total.max(1.0);
    lossy < reports * (1.0 - kept.powf(total / reports.max(1.0))) * BURST_RATIO
}

impl Haul {
    /// Detects an outage, an interval without feedback, whose losses do not mean congestion.
    pub(super) fn detect_outage(&mut self, s: &Signals) {
        // In the start phase the packets of a flight do not fill the round trip: they arrive together, and nothing
        // follows for the rest of it.
        let usual = if matches!(self.phase, Phase::Start(_)) { 1.5 } else { 0.5 };
        let limit = Span::from_secs_f64(self.rtt() * usual).max(MIN_OUTAGE);
        let silent = self.last_feedback.replace(s.now).map_or(Span::ZERO, |t| s.now.since(t));
        if silent <= limit {
            return;
        }
        // Nor is it an outage where packets leave as rarely as that.
        let apart = self.decision.quantum as f64 / self.decision.rate.bytes_per_sec().max(1) as f64;
        if silent > limit + Span::from_secs_f64(apart * 2.0) {
            self.losses.begin_recovery(s.now);
            self.round.restart();
        }
    }

    /// Whether there was a queue in the round now ending that could overflow.
    pub(super) fn queue_could_overflow(&self) -> bool {
        let least = self.target(self.rate).max(2.0 * super::HOST_NOISE) / 2.0;
        self.round.max_delay_of_two_rounds() > least + self.round.noise_range()
    }

    /// Whether the loss in the round now ending is so heavy that it means congestion whatever its cause.
    pub(super) fn has_heavy_loss(&self) -> bool {
        let c = self.round.counts();
        exceeds_significantly(c.lost, c.total(), self.config.loss_alone)
    }

    /// Whether the losses of the round now ending mean congestion: heavy loss always does, lighter loss only with a
    /// queue that could overflow and if not in a burst.
    pub(super) fn is_congested(&self) -> bool {
        let c = self.round.counts();
        let total = c.total();
        let share = (self.config.loss + self.losses.random_loss).min(self.config.loss_alone);
        self.has_heavy_loss()
            || self.queue_could_overflow()
                && exceeds_significantly(c.lost, total, share)
                && !is_bursty(c.lost as f64, total as f64, c.reports as f64, c.lossy_reports as f64)
    }
}
