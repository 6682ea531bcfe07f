//! What is known of the path: bandwidth, round trip, queue, losses, aggregation of acknowledgements.

use crate::Signals;
use base::{Rate, Span, Time};

/// Shares are in parts per this.
pub(crate) const SHARE: u64 = 100_000;
/// Time after which the lowest round trip is forgotten (draft: BBR.MinRTTFilterLen).
const MIN_RTT_WINDOW: Span = Span::from_secs(10);
/// Packets needed before a share of loss is judged to be harmless; until then rounds are pooled.
const JUDGED_PACKETS: u64 = 200;
/// Most rounds that are pooled.
const POOLED_ROUNDS: u32 = 8;
/// Rounds each half of the aggregation filter holds (draft: BBR.ExtraAckedFilterLen is 10).
const EXTRA_ACKED_HALF: u64 = 5;
/// Aggregation beyond this time at the bandwidth is not believed.
const EXTRA_ACKED_MAX: Span = Span::from_millis(100);
/// Delay that hosts make by themselves (batches, timers, scheduling): no sign of a queue.
pub(super) const HOST_NOISE: Span = Span::from_micros(500);
/// Queues are judged against the round trip, but on short paths against this.
const SHORT_PATH: Span = Span::from_millis(8);
/// Losses below this number prove nothing.
const MIN_LOSSES: u64 = 4;

/// Whether `lost` of `total` packets is more than `share` (in parts per [`SHARE`]) by a clear margin: three
/// standard deviations of a Poisson count with that mean, so that one path in thousands with random loss
/// just below the threshold is misjudged, and no path with loss at half of it.
pub(crate) fn excessive(lost: u64, total: u64, share: u64) -> bool {
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

/// Delay beyond the minimum, as seen over the latest feedbacks and rounds.
#[derive(Clone, Copy, Debug, Default)]
struct Queue {
    /// The sample before.
    last: Span,
    /// Least within the current round and within the one before.
    round_min: Option<Span>,
    prior_min: Span,
    /// Greatest within the current round and within the one before, of the lesser of two samples each.
    round_max: Span,
    prior_max: Span,
}

/// Counts of a round trip for judging losses.
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
    /// The lowest round trip of the shorter window that decides when to probe for it.
    pub(super) probe_min: Option<Span>,
    pub(super) probe_min_stamp: Time,
    stamped: bool,
    queue: Queue,
    gap: Span,
    last_feedback: Option<Time>,
    /// Rounds of this algorithm: restarted where a phase needs a full one.
    next_round: u64,
    pub(super) round_start: bool,
    pub(super) rounds: u64,
    /// Rounds for judging losses.
    next_loss_round: u64,
    pub(super) loss_round_start: bool,
    losses: Losses,
    /// The pool of the loss round that just ended.
    pub(super) judged: Option<(u64, u64)>,
    base_loss: u64,
    /// When losses were last acted upon: those of packets sent before belong to what was answered.
    answered: Time,
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
            stamped: false,
            queue: Queue::default(),
            gap: Span::ZERO,
            last_feedback: None,
            next_round: 0,
            round_start: false,
            rounds: 0,
            next_loss_round: 0,
            loss_round_start: false,
            losses: Losses::default(),
            judged: None,
            base_loss: 0,
            answered: Time::ZERO,
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
    /// The bandwidth measured, without what was assumed at the start.
    pub(super) fn measured_bw(&self) -> Rate {
        Rate::from_bytes_per_sec(self.bandwidth.get())
    }
    pub(super) fn min_rtt_or(&self, default: Span) -> Span {
        self.min_rtt.unwrap_or(default)
    }
    /// The lowest round trip, or what a short path is taken to have: the measure of queues.
    pub(super) fn path_time(&self) -> Span {
        self.min_rtt_or(SHORT_PATH).max(SHORT_PATH)
    }
    pub(super) fn feedback_gap(&self) -> Span {
        self.gap
    }
    pub(super) fn extra_acked(&self) -> u64 {
        self.extra_acked.get()
    }
    /// Share of loss seen in steady state.
    pub(super) fn base_loss(&self) -> u64 {
        self.base_loss
    }
    pub(super) fn forget_initial(&mut self) {
        self.initial_bw = None;
    }
    pub(super) fn advance_bandwidth(&mut self) {
        self.bandwidth.advance();
    }
    /// Begins a new round now, so that the next one starts when a packet sent from now on is acknowledged.
    pub(super) fn start_round(&mut self, delivered: u64) {
        self.next_round = delivered;
    }

    /// Delay below which a queue does not count: a sixteenth of the round trip, and what interrupts and
    /// batches make on short paths.
    fn queue_floor(&self) -> Span {
        (self.min_rtt_or(Span::ZERO) / 16).max(HOST_NOISE)
    }
    /// The delay has risen just now, in two samples in a row.
    pub(super) fn queue_grows(&self) -> bool {
        self.queue.round_max > self.queue_floor()
    }
    /// The least queueing delay of the last whole round and since.
    pub(super) fn queue_still_standing(&self) -> Span {
        let since = self.queue.round_min.unwrap_or(self.queue.last);
        self.queue.prior_min.min(since).min(self.queue.last)
    }
    /// There was a queue within this round trip or the one before.
    pub(super) fn queue_was_seen(&self) -> bool {
        self.queue.round_max.max(self.queue.prior_max) > self.queue_floor()
    }
    /// The queue has not been empty for more than a round trip.
    pub(super) fn queue_stands(&self) -> bool {
        self.standing_queue() > self.queue_floor()
    }
    /// The queue was as good as empty at some moment of the last round trip.
    pub(super) fn queue_is_empty(&self) -> bool {
        let least = self.queue.round_min.map_or(self.queue.prior_min, |m| m.min(self.queue.prior_min));
        least <= (self.min_rtt_or(Span::ZERO) / 64).max(HOST_NOISE)
    }
    /// The least queueing delay of the last whole round.
    pub(super) fn standing_queue(&self) -> Span {
        self.queue.prior_min
    }

    /// Takes in everything but bandwidth.
    pub(super) fn update(&mut self, s: &Signals, ecn: bool, full: bool) {
        self.judged = None;
        self.update_rounds(s, full);
        self.update_gap(s);
        self.update_rtt(s);
        let marks = if ecn { s.ce_packets.min(s.acked_packets) } else { 0 };
        let old = s.latest_lost_sent.is_some_and(|sent| sent <= self.answered);
        let lost = if old { 0 } else { s.lost_packets };
        self.losses.lost = self.losses.lost.saturating_add(lost).saturating_add(marks);
        self.losses.packets =
            self.losses.packets.saturating_add(s.lost_packets).saturating_add(s.acked_packets);
        if self.loss_round_start {
            self.losses.rounds += 1;
            self.judged = Some((self.losses.lost, self.losses.packets));
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
            self.gap = gap.max(self.gap - self.gap / 16);
        }
    }

    fn update_rtt(&mut self, s: &Signals) {
        if !self.stamped {
            // The windows begin with the flow, not with the epoch of the driver's clock.
            self.stamped = true;
            (self.min_rtt_stamp, self.probe_min_stamp) = (s.now, s.now);
        }
        let Some(rtt) = s.rtt.filter(|r| !r.is_zero()) else { return };
        match self.probe_min {
            Some(min) if rtt >= min => {
                // Near enough to the minimum to show an empty queue.
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

    /// Takes over the shorter window's minimum when it is lower or the longer window has run out.
    pub(super) fn renew_min_rtt(&mut self, now: Time) {
        let Some(probe) = self.probe_min else { return };
        let expired = now > self.min_rtt_stamp + MIN_RTT_WINDOW;
        if expired || self.min_rtt.is_none_or(|m| probe <= m) {
            self.min_rtt = Some(probe);
            self.min_rtt_stamp = self.probe_min_stamp;
        }
    }

    /// Takes in the bandwidth sample. A sample limited by the application only counts when it is higher.
    pub(super) fn update_bandwidth(&mut self, s: &Signals) {
        if let Some(r) = s.rate
            && !r.interval.is_zero()
            && (!r.app_limited || r.rate >= self.max_bw())
        {
            self.bandwidth.update(r.rate.bytes_per_sec());
        }
    }

    /// How much more is acknowledged at once than the bandwidth explains (draft: BBRUpdateACKAggregation).
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

    /// The pool of losses was acted upon: begin anew.
    pub(super) fn clear_losses(&mut self, now: Time) {
        self.answered = now;
        self.losses = Losses::default();
        self.judged = None;
    }

    /// Whether the application limited the latest sample.
    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited
    }

    /// Learns the share of loss of a steady round.
    pub(super) fn learn_base_loss(&mut self) {
        if let Some((lost, packets)) = self.judged
            && packets >= JUDGED_PACKETS
            && self.queue_is_empty()
        {
            let share = u128::from(lost) * u128::from(SHARE) / u128::from(packets);
            let share = u64::try_from(share).unwrap_or(SHARE).min(SHARE);
            self.base_loss = (self.base_loss * 7 + share) / 8;
        }
    }

    /// After all phases have used what the round brought (draft: BBRAdvanceLatestDeliverySignals).
    pub(super) fn finish(&mut self, s: &Signals) {
        if self.losses.packets >= JUDGED_PACKETS && self.loss_round_start
            || self.losses.rounds >= POOLED_ROUNDS
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

    /// Forgets the bandwidth but for `bw`.
    pub(super) fn collapse(&mut self, bw: Rate) {
        self.bandwidth = MaxFilter { older: 0, newer: bw.bytes_per_sec() };
        self.initial_bw = None;
        self.losses = Losses::default();
        self.extra_acked = MaxFilter::default();
        self.base_loss = 0;
    }
}
