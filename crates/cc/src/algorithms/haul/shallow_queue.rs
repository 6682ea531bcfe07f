//! Distinguishes random loss from the overflow of a queue too short to show in the delay.
//!
//! The two differ in their reaction to a lower rate. So the flow reduces its rate for a round and measures: loss that
//! stops was an overflow, and the delivery rate during it is what the path carries; loss that remains is random.
//! Having found such a queue, the flow stays below that rate, probes beyond it every few seconds, and sends trains no
//! longer than the queue can take.

use super::loss::{MAX_RANDOM_LOSS, exceeds_significantly, is_bursty};
use super::round::Counts;
use super::{Haul, Phase};
use crate::{Remembered, Signals};
use base::{Rng, Span, Time};

/// Packets over which loss is averaged; the newer half weighs as much as all before it.
const MEMORY_PACKETS: f64 = 1_024.0;
/// Successive rounds with too much loss that start a check.
const SUSPICIOUS_ROUNDS: u32 = 2;
/// Gain during a check, and the share of the loss that may remain for it to have been an overflow.
const CHECK_GAIN: f64 = 0.85;
const MAX_REMAINING_LOSS: f64 = 0.5;
/// Losses to expect during a check if they are random, after which it ends, and the most rounds it takes.
const EXPECTED_LOSSES: f64 = 10.0;
const MAX_CHECK_ROUNDS: u32 = 40;
/// Share of the delivery rate during an overflow that is sent afterwards.
const CEILING_SHARE: f64 = 0.99;
/// Time for which the rate stays below that; up to a half is added at random. Also limits in round trips, since the
/// result may have been chance, and two seconds are 30,000 round trips within a room (one start of fifteen at 1 %
/// loss stayed at a quarter of the rate for that long).
const CEILING_TIME: Span = Span::from_secs(2);
const MIN_CEILING_ROUNDS: f64 = 30.0;
const MAX_CEILING_ROUNDS: f64 = 400.0;
/// A queue shorter than this part of one that stood without loss has not overflowed, and the part of that memory that fades
/// in a round.
const SHORT_QUEUE: f64 = 0.25;
const CARRIED_FADE: f64 = 0.002;
/// Share of an overflowing queue that one train may fill.
const TRAIN_SHARE: f64 = 0.5;

/// A running check.
#[derive(Clone, Copy, Debug)]
struct LossCheck {
    /// The rate before it, its delivery rate, the share of loss, and the longest delay.
    rate: f64,
    arrived: f64,
    loss_share: f64,
    max_delay: f64,
    rounds: u32,
    lost: u64,
    total: u64,
}

/// The state of loss without a visible queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShallowQueue {
    lost: f64,
    total: f64,
    reports: f64,
    lossy_reports: f64,
    suspicious_rounds: u32,
    check: Option<LossCheck>,
    /// The rate that such a queue lets pass, and until when it is not exceeded.
    ceiling: Option<(f64, Time)>,
    /// The longest queue that stood in a round without loss, in bytes; it fades.
    carried: f64,
}

impl ShallowQueue {
    pub(super) fn restart(&mut self) {
        *self = ShallowQueue { ceiling: self.ceiling, carried: self.carried, ..ShallowQueue::default() };
    }

    /// Whether this round and the one before lost too much.
    pub(super) fn is_suspicious(&self) -> bool {
        self.suspicious_rounds >= SUSPICIOUS_ROUNDS
    }

    #[cfg(test)]
    pub(super) fn is_checking(&self) -> bool {
        self.check.is_some()
    }

    /// Adds a round in which at most `share` should be lost.
    fn add_round(&mut self, counts: Counts, share: f64) {
        self.lost += counts.lost as f64;
        self.total += counts.total() as f64;
        self.reports += counts.reports as f64;
        self.lossy_reports += counts.lossy_reports as f64;
        let much = counts.lost > 0 && exceeds_significantly(self.lost as u64, self.total as u64, share);
        let bursts = is_bursty(self.lost, self.total, self.reports, self.lossy_reports);
        self.suspicious_rounds = if much && !bursts { self.suspicious_rounds + 1 } else { 0 };
        if self.total > MEMORY_PACKETS {
            for sum in [&mut self.lost, &mut self.total, &mut self.reports, &mut self.lossy_reports] {
                *sum /= 2.0;
            }
        }
    }

    /// Notes that a queue of `bytes` stood in a round without loss.
    fn on_carried(&mut self, bytes: f64) {
        self.carried = bytes.max(self.carried * (1.0 - CARRIED_FADE));
    }

    fn set_ceiling(&mut self, rate: f64, now: Time, rtt: f64, rng: &mut Rng) {
        let [least, most] = [MIN_CEILING_ROUNDS, MAX_CEILING_ROUNDS].map(|n| Span::from_secs_f64(rtt * n));
        let hold = CEILING_TIME.min(most).max(least);
        self.ceiling = Some((rate, now + hold + Span::from_nanos(rng.below(hold.as_nanos() / 2 + 1))));
    }

    /// The rate that is not exceeded now.
    pub(super) fn ceiling(&self, now: Time) -> f64 {
        self.ceiling.filter(|(_, until)| now < *until).map_or(f64::INFINITY, |(rate, _)| rate)
    }
}

impl Haul {
    /// Notes a queue that stands without loss at the end of a round. One much longer than the queue that seemed to overflow
    /// shows that it did not.
    pub(super) fn learn_carried_queue(&mut self, s: &Signals) {
        if self.round.counts().lost > 0 {
            return;
        }
        let arrived = s.rate.map_or(0.0, |r| r.rate.bytes_per_sec() as f64);
        let beyond_noise = self.round.standing_queue().unwrap_or(0.0) - self.round.noise_range();
        self.shallow_queue.on_carried(beyond_noise.max(0.0) * arrived);
        if self.losses.overflow_delay() * self.rate.max(arrived) < self.shallow_queue.carried * SHORT_QUEUE {
            self.losses.set_overflow_delay(f64::INFINITY);
            self.shallow_queue.ceiling = None;
        }
    }

    /// Checks loss without a queue at the end of a round. True if the rate has been set here.
    pub(super) fn check_loss_without_queue(&mut self, s: &Signals, counts: Counts) -> bool {
        if self.shallow_queue.check.is_some() {
            self.update_loss_check(s, counts);
            return true;
        }
        // The delivery rate of an application-limited flow is not that of the path.
        let limited = s.app_limited || s.rate.is_none_or(|r| r.app_limited);
        if limited || self.competitor.is_competing_or_observing() {
            self.shallow_queue.restart();
            return false;
        }
        self.shallow_queue.add_round(counts, self.config.loss + self.losses.random_loss);
        // Heavy loss is congestion whatever its cause.
        if self.queue_could_overflow() || !self.shallow_queue.is_suspicious() || self.is_congested() {
            return false;
        }
        let arrived = s.rate.map_or(self.rate, |r| r.rate.bytes_per_sec() as f64).min(self.rate);
        let share = self.shallow_queue.lost / self.shallow_queue.total.max(1.0);
        let longest = self.round.max_delay_of_two_rounds();
        let expected =
            self.shallow_queue.ceiling.take().is_some_and(|(c, until)| s.now >= until && self.rate > c);
        self.shallow_queue.restart();
        self.losses.begin_recovery(s.now);
        if expected {
            // The limit was known, and a higher rate has been tried.
            self.stay_below(s, arrived, longest);
        } else {
            let rate = self.rate;
            self.shallow_queue.check = Some(LossCheck {
                rate,
                arrived,
                loss_share: share,
                max_delay: longest,
                rounds: 0,
                lost: 0,
                total: 0,
            });
            self.rate = self.rate.min(arrived) * CHECK_GAIN;
        }
        true
    }

    fn update_loss_check(&mut self, s: &Signals, counts: Counts) {
        let late = self.losses.lag_in_rounds(self.rtt());
        let Some(check) = &mut self.shallow_queue.check else { return };
        check.rounds += 1;
        // Losses of what left since the check began come later than its acknowledgements.
        if check.rounds > 1 + late {
            check.lost = check.lost.saturating_add(counts.lost);
            check.total = check.total.saturating_add(counts.total());
        }
        if (check.total as f64) * check.loss_share < EXPECTED_LOSSES && check.rounds < MAX_CHECK_ROUNDS {
            return;
        }
        let check = *check;
        self.shallow_queue.check = None;
        let share = check.lost as f64 / check.total.max(1) as f64;
        // A longer queue has stood without loss: this one has not overflowed.
        let carries = check.max_delay * check.arrived < self.shallow_queue.carried * SHORT_QUEUE;
        if exceeds_significantly(check.lost, check.total, self.config.loss_alone) {
            self.on_congestion(s);
        } else if share < check.loss_share * MAX_REMAINING_LOSS && !carries {
            self.losses.random_loss = self.losses.random_loss.min(share);
            self.stay_below(s, check.arrived, check.max_delay);
        } else {
            let share = if carries { share.max((share + check.loss_share) / 2.0) } else { share };
            self.losses.random_loss = share.max(self.losses.random_loss).min(MAX_RANDOM_LOSS);
            self.rate = check.rate;
        }
    }

    /// Stays below `arrived`, the rate that a queue with hardly any delay lets pass.
    fn stay_below(&mut self, s: &Signals, arrived: f64, longest: f64) {
        let passes = arrived / (1.0 - self.losses.random_loss) * CEILING_SHARE;
        self.losses.on_overflow(longest);
        self.rate = passes;
        let rtt = self.rtt();
        self.shallow_queue.set_ceiling(passes, s.now, rtt, &mut self.rng);
    }

    /// The longest train in bytes that may be sent.
    pub(super) fn max_train_bytes(&self, rate: f64) -> u64 {
        if self.shallow_queue.check.is_some() {
            return 0;
        }
        match &self.phase {
            // At the lower rate of the start, the queue is no shorter.
            Phase::Start(s) => s.remembered_train().unwrap_or(0).max(self.train_that_fits(rate)),
            _ => self.train_that_fits(rate),
        }
    }

    /// The longest train in bytes that the queue can take.
    pub(super) fn train_that_fits(&self, rate: f64) -> u64 {
        (rate * self.losses.overflow_delay() * TRAIN_SHARE).min(u64::MAX as f64 / 2.0) as u64
    }

    /// Learns from an earlier connection how long the trains are that the path's queue takes.
    pub(super) fn recall_trains(&mut self, memory: &Remembered) {
        let Some(train) = memory.train else { return };
        let rate = memory.rate.bytes_per_sec().max(1) as f64;
        self.losses.set_overflow_delay(train as f64 / TRAIN_SHARE / rate);
    }

    /// Ends the start at a remembered rate where the queue is known to be too short for trying more at once.
    pub(super) fn end_start_below(&mut self, rate: f64, s: &Signals) {
        let rtt = self.rtt();
        self.shallow_queue.set_ceiling(rate, s.now, rtt, &mut self.rng);
        self.steady.begin(self.round.count, rate);
        self.end_start(rate, s.inflight, s.now);
    }
}
