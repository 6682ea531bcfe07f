//! The moving average of the share of marked bytes, used by DCTCP, DCQCN and Prague.

use crate::Signals;

/// The share of one: shares are integers in 2^20ths, so that every host and language computes the same numbers.
pub(super) const ONE: u64 = 1 << 20;
/// Gains are in parts per this, as [`Kind::Share`](crate::registry::Kind::Share) gives them.
pub(super) const PERCENT_100: u64 = 100_000;

/// `(1 - gain) * old + gain * sample`, the moving average of RFC 8257 (section 3.3, step 6), DCQCN and Prague.
pub(super) const fn average(old: u64, sample: u64, gain: u64) -> u64 {
    (old * (PERCENT_100 - gain) + sample * gain) / PERCENT_100
}

/// `bytes` reduced by `share` (in [`ONE`]ths, at most that).
pub(super) const fn reduced_by(bytes: u64, share: u64) -> u64 {
    (bytes as u128 * (ONE - share) as u128 / ONE as u128) as u64
}

/// Counts acknowledged and marked bytes over an observation window and averages their share.
#[derive(Clone, Copy, Debug)]
pub(super) struct MarkedShare {
    /// The average, in [`ONE`]ths: `DCTCP.Alpha`.
    alpha: u64,
    /// Weight of a new observation, in parts per [`PERCENT_100`]: `g`.
    gain: u64,
    acked: u64,
    marked: u64,
}

impl MarkedShare {
    /// An average that starts at `alpha`.
    pub(super) const fn new(alpha: u64, gain: u64) -> MarkedShare {
        MarkedShare { alpha, gain, acked: 0, marked: 0 }
    }

    /// RFC 8257, section 3.3, steps 2 and 3.
    pub(super) fn count_feedback(&mut self, s: &Signals) {
        self.acked = self.acked.saturating_add(s.acked);
        self.marked = self.marked.saturating_add(s.ce_acked.min(s.acked));
    }

    /// Ends the observation window (steps 5, 6 and 8). A window without acknowledgements is ignored.
    pub(super) fn end_window(&mut self) {
        if self.acked > 0 {
            let share = u128::from(self.marked) * u128::from(ONE) / u128::from(self.acked);
            self.alpha = average(self.alpha, share as u64, self.gain);
        }
        (self.acked, self.marked) = (0, 0);
    }

    pub(super) const fn get(&self) -> u64 {
        self.alpha
    }
}
