//! Bounds learned from losses: long-term (the data in flight that the path holds) and short-term (a reaction to
//! recent losses).

use super::phases::Phase;
use super::{Bbr, ONE, model};
use crate::Signals;
use base::{Rate, Time};

/// Multiplier on short-term bounds in a round of losses, in thousandths (draft: BBR.Beta).
const BETA: u64 = 700;
/// Share of the long-term bound left free for other flows while cruising, in thousandths (draft: BBR.Headroom).
const HEADROOM: u64 = 150;
/// With a standing queue, delivering less than this share of what is sent means a smaller path or share of it.
const SHRUNK_PATH_SHARE: u64 = 960;
/// Packets a round must deliver for that conclusion; with fewer, the rate depends on how packets fall between
/// feedbacks.
const SHRUNK_PACKETS: u64 = 32;

/// The bounds; maximal until something is learned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) inflight_long: u64,
    pub(super) inflight_short: u64,
    pub(super) bw_short: Rate,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { inflight_long: u64::MAX, inflight_short: u64::MAX, bw_short: Rate::MAX }
    }
}

pub(super) fn thousandths(n: u64, of: u64) -> u64 {
    u64::try_from(u128::from(n) * u128::from(of) / u128::from(ONE)).unwrap_or(u64::MAX)
}

impl Bounds {
    /// The long-term bound minus headroom.
    pub(super) fn with_headroom(&self) -> u64 {
        match self.inflight_long {
            u64::MAX => u64::MAX,
            bound => thousandths(bound, ONE - HEADROOM),
        }
    }
    pub(super) fn reset_short(&mut self) {
        self.inflight_short = u64::MAX;
        self.bw_short = Rate::MAX;
    }
}

impl Bbr {
    /// A queue that stood for a whole round trip proves that the path delivers no more than it did in it. If that is
    /// far below the estimate, the path or this flow's share has shrunk: follow at once, by at most half per round,
    /// and forget the older half of the estimate. The draft waits for losses or for two probe cycles, during which
    /// the queue stays full.
    pub(super) fn follow_shrunk_path(&mut self) {
        let cruising = matches!(self.phase, Phase::Down | Phase::Cruise);
        let enough = self.model.inflight_latest >= SHRUNK_PACKETS * self.packet;
        if !cruising || !self.model.loss_round_start || self.model.is_app_limited() || !enough {
            return;
        }
        let (bw, latest) = (self.bw(), self.model.bw_latest);
        let stands = self.model.queue_still_standing() > self.model.path_time() / 4;
        if stands && latest < self.decision.rate.scale(SHRUNK_PATH_SHARE, ONE) {
            self.bounds.bw_short = latest.max(bw.scale(1, 2));
            self.model.advance_bandwidth();
        }
    }

    /// At the end of a round outside probing, reduces the short-term bounds if its losses mean congestion (draft:
    /// BBRAdaptLowerBoundsFromCongestion).
    pub(super) fn adapt_short_term(&mut self, now: Time) {
        let Some((lost, packets)) = self.model.judged_losses else { return };
        if self.phase.is_probing() || !model::exceeds_significantly(lost, packets, self.loss_threshold()) {
            return;
        }
        self.undo.get_or_insert(self.bounds);
        let bw = if self.bounds.bw_short == Rate::MAX { self.model.max_bw() } else { self.bounds.bw_short };
        let inflight = match self.bounds.inflight_short {
            u64::MAX => self.decision.cwnd,
            bound => bound,
        };
        self.bounds.bw_short = self.model.bw_latest.max(bw.scale(BETA, ONE));
        let latest = self
            .model
            .inflight_latest
            .saturating_add(self.model.bw_latest.bytes_in(self.model.feedback_gap()));
        self.bounds.inflight_short = latest.max(thousandths(inflight, BETA));
        self.model.clear_losses(now);
    }

    /// Whether the latest sample shows more loss than the path should have (draft: BBRIsInflightTooHigh).
    pub(super) fn inflight_too_high(&self, s: &Signals) -> bool {
        s.lost > 0
            && s.rate.is_some_and(|r| {
                model::exceeds_significantly(
                    r.lost / self.packet,
                    r.tx_inflight / self.packet,
                    self.loss_threshold(),
                )
            })
    }

    /// Updates the long-term bound from the data in flight that the path did or did not hold (draft:
    /// BBRAdaptLongTermModel).
    pub(super) fn adapt_long_term(&mut self, s: &Signals) {
        let Some(r) = s.rate else { return };
        if self.inflight_too_high(s) {
            if self.cycle.has_probe_samples {
                self.on_inflight_too_high(r.tx_inflight, r.app_limited, s);
            }
        } else if self.bounds.inflight_long != u64::MAX {
            self.bounds.inflight_long = self.bounds.inflight_long.max(r.tx_inflight);
            if matches!(self.phase, Phase::Up) {
                self.raise_long_term(s);
            }
        }
    }

    fn on_inflight_too_high(&mut self, tx_inflight: u64, app_limited: bool, s: &Signals) {
        self.cycle.has_probe_samples = false;
        if !app_limited {
            self.undo.get_or_insert(self.bounds);
            let target = self.inflight(self.bw(), ONE).min(self.decision.cwnd);
            self.bounds.inflight_long = tx_inflight.max(thousandths(target, BETA));
        }
        if matches!(self.phase, Phase::Up) {
            self.start_down(s);
        }
    }

    /// Raises the long-term bound while probing, by one packet per round trip at first, then by two, four, and so on
    /// (draft: BBRProbeInflightLongtermUpward).
    fn raise_long_term(&mut self, s: &Signals) {
        let limited = s.prior_inflight.saturating_add(self.decision.quantum.saturating_mul(2));
        if limited < self.bounds.inflight_long {
            return;
        }
        self.cycle.up_acks = self.cycle.up_acks.saturating_add(s.acked);
        let packets = self.cycle.up_acks / self.cycle.bytes_per_raise.max(1);
        self.cycle.up_acks -= packets * self.cycle.bytes_per_raise.max(1);
        let raise = packets.saturating_mul(self.packet).min(s.acked);
        self.bounds.inflight_long = self.bounds.inflight_long.saturating_add(raise);
        if self.model.round_start {
            self.double_long_term_slope();
        }
    }

    /// Doubles the slope at which the long-term bound is raised (draft: BBRRaiseInflightLongtermSlope).
    pub(super) fn double_long_term_slope(&mut self) {
        let growth = 1u64 << self.cycle.up_rounds;
        self.cycle.up_rounds = (self.cycle.up_rounds + 1).min(30);
        self.cycle.bytes_per_raise = (self.decision.cwnd / growth).max(self.packet);
    }

    /// Restores the bounds if the losses were reordering (draft: BBRHandleSpuriousLossDetection).
    pub(super) fn undo_spurious(&mut self, s: &Signals) {
        if s.spurious == 0 {
            return;
        }
        self.model.clear_losses(s.now);
        if let Some(before) = self.undo.take() {
            self.bounds.bw_short = self.bounds.bw_short.max(before.bw_short);
            self.bounds.inflight_short = self.bounds.inflight_short.max(before.inflight_short);
            self.bounds.inflight_long = self.bounds.inflight_long.max(before.inflight_long);
        }
    }
}
