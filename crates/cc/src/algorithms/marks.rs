//! What algorithms share that steer by the share of packets marked Congestion Experienced.

use crate::Signals;

/// A share of one: marks are reckoned in 2^20ths, so that every host and language gets the same numbers.
pub(super) const ONE: u64 = 1 << 20;
/// Gains are in parts per this, as [`Kind::Share`](crate::registry::Kind::Share) gives them.
pub(super) const PERCENT_100: u64 = 100_000;

/// `(1 - gain) * old + gain * sample`: the moving average of RFC 8257 (section 3.3, step 6), of DCQCN and of Prague.
pub(super) const fn average(old: u64, sample: u64, gain: u64) -> u64 {
    (old * (PERCENT_100 - gain) + sample * gain) / PERCENT_100
}

/// What is left of `bytes` when `share` (in [`ONE`]ths, at most that) is taken away.
pub(super) const fn without(bytes: u64, share: u64) -> u64 {
    (bytes as u128 * (ONE - share) as u128 / ONE as u128) as u64
}

/// Counts bytes over an observation window and keeps the moving average of the share of them that was marked.
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
    /// Begins at `alpha`.
    pub(super) const fn new(alpha: u64, gain: u64) -> MarkedShare {
        MarkedShare { alpha, gain, acked: 0, marked: 0 }
    }

    /// RFC 8257, section 3.3, steps 2 and 3.
    pub(super) fn count(&mut self, s: &Signals) {
        self.acked = self.acked.saturating_add(s.acked);
        self.marked = self.marked.saturating_add(s.ce_acked.min(s.acked));
    }

    /// The observation window ends (steps 5, 6 and 8). One in which nothing was acknowledged says nothing.
    pub(super) fn close(&mut self) {
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
