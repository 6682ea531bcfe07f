//! The model of the path: bandwidth, round-trip time, queue, losses, aggregation of acknowledgements.

use crate::Signals;
use base::{Rate, Span, Time};

/// Shares are in parts per this.
pub(crate) const SHARE: u64 = 100_000;
/// Time after which the lowest round trip is forgotten (draft: BBR.MinRTTFilterLen).
const MIN_RTT_WINDOW: Span = Span::from_secs(10);
/// Packets needed to judge a share of loss as harmless; fewer are pooled over several rounds.
const MIN_JUDGED_PACKETS: u64 = 200;
/// Most rounds that are pooled.
const MAX_POOLED_ROUNDS: u32 = 8;
/// Rounds each half of the aggregation filter holds (draft: BBR.ExtraAckedFilterLen is 10).
const EXTRA_ACKED_HALF: u64 = 5;
/// Longest aggregation time that is taken into account, at the estimated bandwidth.
const EXTRA_ACKED_MAX: Span = Span::from_millis(100);
/// Delay caused by hosts (batches, timers, scheduling), which does not indicate a queue.
pub(super) const HOST_NOISE: Span = Span::from_micros(500);
/// Queues are compared with the round-trip time or, on shorter paths, with this.
const SHORT_PATH: Span = Span::from_millis(8);
/// Fewer losses than this are not significant.
const MIN_LOSSES: u64 = 4;

/// Whether `lost` of `total` packets exceeds `share` (in parts per [`SHARE`]) significantly: by three standard
/// deviations of a Poisson count with that mean, so that random loss just below the threshold is rarely misjudged,
/// and loss of half the threshold never.
pub(crate) fn exceeds_significantly(lost: u64, total: u64, share: u64) -> bool {
    let mean = total as f64 * share as f64 / SHARE as f64;
    lost >= MIN_LOSSES && lost as f64 > mean + 3.0 * mean.sqrt()
}

/// A maximum over two halves of a window: the half being filled and the one before it.
#[derive(Clone, Copy, Debug, Default)]
struct MaxFilter {
    older: u64,
    newer: u64,
}

impl MaxFilter {
    fn update(&mut self, v: u64) {
        self.newer = self.newer.max(v);
    }
    fn advance(&mut self) {
        self.older = self.newer;
        self.newer = 0;
    }
    fn get(&self) -> u64 {
        self.older.max(self.newer)
    }
}

/// Queueing delay over the latest feedbacks and rounds.
#[derive(Clone, Copy, Debug, Default)]
struct QueueingDelay {
    /// The previous sample.
    last: Span,
    /// Minimum of the current round and of the previous one.
    round_min: Option<Span>,
    prior_min: Span,
    /// Maximum of the current round and of the previous one, each over the lesser of two successive samples.
    round_max: Span,
    prior_max: Span,
}

/// Pooled counts for judging losses.
#[derive(Clone, Copy, Debug, Default)]
struct Losses {
    lost: u64,
    packets: u64,
    rounds: u32,
}

/// The model.
#[derive(Debug)]
pub(super) struct Model {
    bandwidth: MaxFilter,
    /// Used until the first round trip has measured something.
    initial_bw: Option<Rate>,
    min_rtt: Option<Span>,
    min_rtt_stamp: Time,
    /// The minimum round-trip time of the shorter window, which decides when to probe for it.
    pub(super) probe_min: Option<Span>,
    pub(super) probe_min_stamp: Time,
    has_min_rtt_stamp: bool,
    queue: QueueingDelay,
    feedback_gap: Span,
    last_feedback: Option<Time>,
    /// Rounds of this algorithm, restarted where a phase needs a full one.
    next_round: u64,
    pub(super) round_start: bool,
    pub(super) rounds: u64,
    /// Rounds for judging losses.
    next_loss_round: u64,
    pub(super) loss_round_start: bool,
    losses: Losses,
    /// The pooled counts of the loss round that just ended.
    pub(super) judged_losses: Option<(u64, u64)>,
    random_loss: u64,
    /// Start of the last recovery: losses of packets sent before it are covered by its reduction.
    recovery_start: Time,
    app_limited: bool,
    pub(super) bw_latest: Rate,
    pub(super) inflight_latest: u64,
    extra_acked: MaxFilter,
    extra_delivered: u64,
    extra_start: Time,
    extra_round: u64,
}

impl Model {
    pub(super) fn new(initial: Rate, rtt: Option<Span>) -> Model {
        Model {
            bandwidth: MaxFilter::default(),
            initial_bw: Some(initial),
            min_rtt: rtt,
            min_rtt_stamp: Time::ZERO,
            probe_min: rtt,
            probe_min_stamp: Time::ZERO,
            has_min_rtt_stamp: false,
            queue: QueueingDelay::default(),
            feedback_gap: Span::ZERO,
            last_feedback: None,
            next_round: 0,
            round_start: false,
            rounds: 0,
            next_loss_round: 0,
            loss_round_start: false,
            losses: Losses::default(),
            judged_losses: None,
            random_loss: 0,
            recovery_start: Time::ZERO,
            app_limited: false,
            bw_latest: Rate::ZERO,
            inflight_latest: 0,
            extra_acked: MaxFilter::default(),
            extra_delivered: 0,
            extra_start: Time::ZERO,
            extra_round: 0,
        }
    }

    pub(super) fn max_bw(&self) -> Rate {
        Rate::from_bytes_per_sec(self.bandwidth.get()).max(self.initial_bw.unwrap_or(Rate::ZERO))
    }
    /// The measured bandwidth, without the initial assumption.
    pub(super) fn measured_bw(&self) -> Rate {
        Rate::from_bytes_per_sec(self.bandwidth.get())
    }
    pub(super) fn min_rtt_or(&self, default: Span) -> Span {
        self.min_rtt.unwrap_or(default)
    }
    /// The minimum round-trip time, or that assumed for short paths; queues are compared with it.
    pub(super) fn path_time(&self) -> Span {
        self.min_rtt_or(SHORT_PATH).max(SHORT_PATH)
    }
    pub(super) fn feedback_gap(&self) -> Span {
        self.feedback_gap
    }
    pub(super) fn extra_acked(&self) -> u64 {
        self.extra_acked.get()
    }
    /// The share of loss in steady state.
    pub(super) fn random_loss(&self) -> u64 {
        self.random_loss
    }
    pub(super) fn forget_initial(&mut self) {
        self.initial_bw = None;
    }
    pub(super) fn advance_bandwidth(&mut self) {
        self.bandwidth.advance();
    }
    /// Starts a new round now, so that the next one starts when a packet sent from now on is acknowledged.
    pub(super) fn start_round(&mut self, delivered: u64) {
        self.next_round = delivered;
    }

    /// Shortest delay that counts as a queue: a sixteenth of the round trip, and at least the noise of hosts on short
    /// paths.
    fn queue_floor(&self) -> Span {
        (self.min_rtt_or(Span::ZERO) / 16).max(HOST_NOISE)
    }
    /// Whether the delay has just risen, in two successive samples.
    pub(super) fn queue_grows(&self) -> bool {
        self.queue.round_max > self.queue_floor()
    }
    /// The minimum queueing delay of the last whole round and the current one.
    pub(super) fn queue_still_standing(&self) -> Span {
        let since = self.queue.round_min.unwrap_or(self.queue.last);
        self.queue.prior_min.min(since).min(self.queue.last)
    }
    /// Whether there was a queue in this or the previous round trip.
    pub(super) fn queue_was_seen(&self) -> bool {
        self.queue.round_max.max(self.queue.prior_max) > self.queue_floor()
    }
    /// Whether the queue has not been empty for more than a round trip.
    pub(super) fn queue_stands(&self) -> bool {
        self.standing_queue() > self.queue_floor()
    }
    /// Whether the queue was almost empty at some moment of the last round trip.
    pub(super) fn queue_is_empty(&self) -> bool {
        let least = self.queue.round_min.map_or(self.queue.prior_min, |m| m.min(self.queue.prior_min));
        least <= (self.min_rtt_or(Span::ZERO) / 64).max(HOST_NOISE)
    }
    /// The minimum queueing delay of the last whole round.
    pub(super) fn standing_queue(&self) -> Span {
        self.queue.prior_min
    }

    /// Updates everything except the bandwidth.
    pub(super) fn update(&mut self, s: &Signals, ecn: bool, full: bool) {
        self.judged_losses = None;
        self.update_rounds(s, full);
        self.update_gap(s);
        self.update_rtt(s);
        let marks = if ecn { s.ce_packets.min(s.acked_packets) } else { 0 };
        let old = s.latest_lost_sent.is_some_and(|sent| sent <= self.recovery_start);
        let lost = if old { 0 } else { s.lost_packets };
        self.losses.lost = self.losses.lost.saturating_add(lost).saturating_add(marks);
        self.losses.packets =
            self.losses.packets.saturating_add(s.lost_packets).saturating_add(s.acked_packets);
        if self.loss_round_start {
            self.losses.rounds += 1;
            self.judged_losses = Some((self.losses.lost, self.losses.packets));
        }
    }

    fn update_rounds(&mut self, s: &Signals, full: bool) {
        let prior = s.rate.map(|r| r.prior_delivered);
        self.round_start = match prior {
            Some(p) => p >= self.next_round,
            None => s.round_start && s.acked > 0,
        };
        if self.round_start {
            self.next_round = s.delivered;
            self.rounds += 1;
            if self.rounds == 2 && self.measured_bw() > Rate::ZERO {
                self.initial_bw = self.initial_bw.filter(|_| !full && self.bandwidth.get() == 0);
            }
            self.queue.prior_min = self.queue.round_min.take().unwrap_or(Span::ZERO);
            self.queue.prior_max = self.queue.round_max;
            self.queue.round_max = Span::ZERO;
            if self.rounds >= self.extra_round + EXTRA_ACKED_HALF {
                self.extra_acked.advance();
                self.extra_round = self.rounds;
            }
        }
        self.loss_round_start = prior.is_some_and(|p| p >= self.next_loss_round);
        if self.loss_round_start {
            self.next_loss_round = s.delivered;
        }
        if let Some(r) = s.rate {
            self.bw_latest = self.bw_latest.max(r.rate);
            self.inflight_latest = self.inflight_latest.max(r.delivered);
            self.app_limited = r.app_limited;
        }
    }

    fn update_gap(&mut self, s: &Signals) {
        if s.acked == 0 {
            return;
        }
        if let Some(last) = self.last_feedback.replace(s.now) {
            let gap = s.now.since(last).min(s.srtt.max(Span::from_millis(1)) / 2);
            self.feedback_gap = gap.max(self.feedback_gap - self.feedback_gap / 16);
        }
    }

    fn update_rtt(&mut self, s: &Signals) {
        if !self.has_min_rtt_stamp {
            // The windows begin with the flow, not with the epoch of the driver's clock.
            self.has_min_rtt_stamp = true;
            (self.min_rtt_stamp, self.probe_min_stamp) = (s.now, s.now);
        }
        let Some(rtt) = s.rtt.filter(|r| !r.is_zero()) else { return };
        match self.probe_min {
            Some(min) if rtt >= min => {
                // Close enough to the minimum to indicate an empty queue.
                if rtt <= min + (min / 32).max(HOST_NOISE) {
                    self.probe_min_stamp = s.now;
                }
            }
            _ => {
                self.probe_min = Some(rtt);
                self.probe_min_stamp = s.now;
            }
        }
        self.renew_min_rtt(s.now);
        let beyond = rtt - self.min_rtt_or(rtt);
        let now = if s.queue_delay.is_zero() { beyond } else { beyond.min(s.queue_delay) };
        let sure = now.min(self.queue.last);
        self.queue.last = now;
        self.queue.round_min = Some(self.queue.round_min.map_or(now, |m| m.min(now)));
        self.queue.round_max = self.queue.round_max.max(sure);
    }

    /// Adopts the shorter window's minimum if it is lower or the longer window has expired.
    pub(super) fn renew_min_rtt(&mut self, now: Time) {
        let Some(probe) = self.probe_min else { return };
        let expired = now > self.min_rtt_stamp + MIN_RTT_WINDOW;
        if expired || self.min_rtt.is_none_or(|m| probe <= m) {
            self.min_rtt = Some(probe);
            self.min_rtt_stamp = self.probe_min_stamp;
        }
    }

    /// Adds a bandwidth sample. An application-limited sample counts only if it is higher.
    pub(super) fn update_bandwidth(&mut self, s: &Signals) {
        if let Some(r) = s.rate
            && !r.interval.is_zero()
            && (!r.app_limited || r.rate >= self.max_bw())
        {
            self.bandwidth.update(r.rate.bytes_per_sec());
        }
    }

    /// Updates the aggregation, the bytes acknowledged at once beyond what the bandwidth explains (draft:
    /// BBRUpdateACKAggregation).
    pub(super) fn update_extra_acked(&mut self, s: &Signals, bw: Rate) {
        let mut expected = bw.bytes_in(s.now.since(self.extra_start));
        if self.extra_delivered <= expected {
            self.extra_delivered = 0;
            self.extra_start = s.now;
            expected = 0;
        }
        self.extra_delivered = self.extra_delivered.saturating_add(s.acked);
        let extra = self.extra_delivered.saturating_sub(expected);
        self.extra_acked.update(extra.min(bw.bytes_in(EXTRA_ACKED_MAX)));
    }

    pub(super) fn restart_extra_acked(&mut self, now: Time) {
        self.extra_start = now;
        self.extra_delivered = 0;
        self.last_feedback = None;
    }

    /// Clears the pooled losses after a reaction to them.
    pub(super) fn clear_losses(&mut self, now: Time) {
        self.recovery_start = now;
        self.losses = Losses::default();
        self.judged_losses = None;
    }

    /// Whether the application limited the latest sample.
    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited
    }

    /// Updates the random-loss estimate from a steady round.
    pub(super) fn learn_random_loss(&mut self) {
        if let Some((lost, packets)) = self.judged_losses
            && packets >= MIN_JUDGED_PACKETS
            && self.queue_is_empty()
        {
            let share = u128::from(lost) * u128::from(SHARE) / u128::from(packets);
            let share = u64::try_from(share).unwrap_or(SHARE).min(SHARE);
            self.random_loss = (self.random_loss * 7 + share) / 8;
        }
    }

    /// Ends the processing of a feedback (draft: BBRAdvanceLatestDeliverySignals).
    pub(super) fn finish(&mut self, s: &Signals) {
        if self.losses.packets >= MIN_JUDGED_PACKETS && self.loss_round_start
            || self.losses.rounds >= MAX_POOLED_ROUNDS
        {
            self.losses = Losses::default();
        }
        if self.loss_round_start
            && let Some(r) = s.rate
        {
            self.bw_latest = r.rate;
            self.inflight_latest = r.delivered;
        }
    }

    /// Replaces all bandwidth samples by `bw`.
    pub(super) fn collapse(&mut self, bw: Rate) {
        self.bandwidth = MaxFilter { older: 0, newer: bw.bytes_per_sec() };
        self.initial_bw = None;
        self.losses = Losses::default();
        self.extra_acked = MaxFilter::default();
        self.random_loss = 0;
    }
}
