//! What losses mean.

use super::round::Counts;
use super::{Haul, Phase};
use crate::Signals;
use base::{Span, Time};

/// A silence longer than this, and than half a round trip, is an outage: what was lost in it says nothing of
/// congestion.
const SILENCE: Span = Span::from_millis(40);
/// Standard deviations by which losses must exceed a threshold.
const DEVIATIONS: f64 = 3.0;
/// The memory of an overflow fades within this many seconds, but not by more in a round.
const FADES_IN: f64 = 14.0;
const MOST_FADE: f64 = 0.005;
/// Of the queue that overflowed, less than this cannot.
const BELOW: f64 = 0.75;

/// Losses, judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Losses {
    /// Packets sent before this belong to what was answered.
    answered: Time,
    /// The share that the path loses without a queue.
    pub(super) usual: f64,
    /// The queueing delay at which the queue overflowed.
    overflow: f64,
    /// The same without fading.
    overflowed: f64,
    /// The rate before the last reduction, until it proves right.
    before: Option<f64>,
}

impl Default for Losses {
    fn default() -> Losses {
        Losses { answered: Time::ZERO, usual: 0.0, overflow: f64::INFINITY, overflowed: 0.0, before: None }
    }
}

impl Losses {
    /// Packets of this feedback that count: not those lost before the last reduction or in an outage.
    pub(super) fn counts(&self, s: &Signals) -> Counts {
        let old = s.latest_lost_sent.is_some_and(|sent| sent <= self.answered);
        let lost = if old { 0 } else { s.lost_packets };
        Counts {
            acked: s.acked_packets,
            lost,
            marked: s.ce_packets,
            reports: u64::from(s.acked_packets > 0 || lost > 0),
            lossy: u64::from(lost > 0),
        }
    }

    /// Everything sent until now is dealt with.
    pub(super) fn answer(&mut self, now: Time) {
        self.answered = now;
    }

    pub(super) fn reduced_from(&mut self, rate: f64) {
        self.before.get_or_insert(rate);
    }

    /// The queueing delay at which the queue overflowed.
    pub(super) fn overflow(&self) -> f64 {
        self.overflow
    }

    /// Half the queue that overflowed is the most to aim at; less than hosts add by themselves is not seen.
    pub(super) fn target_cap(&self) -> f64 {
        (self.overflow / 2.0).max(super::HOST_NOISE / 4.0)
    }

    pub(super) fn overflowed_at(&mut self, queue: f64) {
        self.overflow = if self.overflow.is_finite() { (self.overflow + queue) / 2.0 } else { queue };
        self.overflowed = queue;
    }

    /// A round without congestion.
    pub(super) fn quiet(&mut self, counts: Counts, longest: f64, rtt: f64) {
        let below = longest < self.overflowed * BELOW;
        self.overflow *= 1.0 + (rtt / FADES_IN).min(MOST_FADE);
        self.before = None;
        let total = counts.total();
        // What is lost where the queue cannot have overflowed is the path's own.
        let share = counts.lost as f64 / total.max(1) as f64;
        if total > 0 && (below || share < self.usual) {
            let weight = (total as f64 / 4_096.0).min(0.25);
            self.usual = (self.usual + (share - self.usual) * weight).min(MOST_USUAL);
        }
    }

    /// Losses that were none: what they took is given back.
    pub(super) fn undo(&mut self, s: &Signals, rate: &mut f64) {
        if s.spurious > 0 {
            self.answered = s.now;
            if let Some(before) = self.before.take() {
                *rate = rate.max(before);
                (self.overflow, self.overflowed) = (f64::INFINITY, 0.0);
            }
        }
    }
}

/// More loss than this is never a path's usual one: it would let an overflow pass for the path's nature.
pub(super) const MOST_USUAL: f64 = 0.12;

/// Whether `lost` of `total` exceed `share` by more than chance explains.
pub(super) fn exceeds(lost: u64, total: u64, share: f64) -> bool {
    let (lost, total) = (lost as f64, total as f64);
    lost > total * share + DEVIATIONS * (total * share * (1.0 - share)).sqrt() + 1.0
}

/// Losses that come in bursts, and not from the rate: of `reports`, fewer tell of any (`lossy`) than this part of those
/// that would if each packet were lost by itself. A queue that overflows does so until its sender has heard of it.
const BURSTS: f64 = 0.4;

/// Whether `lost` of `total` packets were lost in bursts.
pub(super) fn in_bursts(lost: f64, total: f64, reports: f64, lossy: f64) -> bool {
    let kept = 1.0 - lost / total.max(1.0);
    lossy < reports * (1.0 - kept.powf(total / reports.max(1.0))) * BURSTS
}

impl Haul {
    /// An outage: nothing arrived for a while. What was lost in it is no sign of congestion.
    pub(super) fn notice_silence(&mut self, s: &Signals) {
        // Until the first packets have filled a round trip, all of one arrive together and then none for its length.
        let usual = if matches!(self.phase, Phase::Start(_)) { 1.5 } else { 0.5 };
        let limit = Span::from_secs_f64(self.rtt() * usual).max(SILENCE);
        if self.heard.replace(s.now).is_some_and(|t| s.now.since(t) > limit) {
            self.losses.answer(s.now);
            self.round.restart();
        }
    }

    /// Whether there was a queue that could overflow in the round now ending.
    pub(super) fn is_queued(&self) -> bool {
        let least = self.target(self.rate).max(2.0 * super::HOST_NOISE) / 2.0;
        self.round.most() > least + self.round.spread()
    }

    /// Whether so many are lost in the round now ending that it is congestion wherever they were.
    pub(super) fn loses_much(&self) -> bool {
        let c = self.round.counts();
        exceeds(c.lost, c.total(), self.config.loss_alone)
    }

    /// Whether the losses of the round now ending mean congestion: many do wherever they come from, fewer where a queue
    /// could overflow and did so for more than a moment.
    pub(super) fn is_congested(&self) -> bool {
        let c = self.round.counts();
        let total = c.total();
        let share = (self.config.loss + self.losses.usual).min(self.config.loss_alone);
        self.loses_much()
            || self.is_queued()
                && exceeds(c.lost, total, share)
                && !in_bursts(c.lost as f64, total as f64, c.reports as f64, c.lossy as f64)
    }
}
