//! HyStart++ (RFC 9406): leaves slow start when the round-trip time rises, before the queue overflows.

use crate::Signals;
use base::Span;

/// Bounds of a significant rise (RFC 9406, section 4.3).
const MIN_RTT_THRESH: Span = Span::from_millis(4);
const MAX_RTT_THRESH: Span = Span::from_millis(16);
const MIN_RTT_DIVISOR: u64 = 8;
/// The RFC requires 8 samples a round, from acknowledgements of every other packet. Feedback here comes eight times a
/// round trip and each sample is the newest of many, so half of a round has to be enough.
const N_RTT_SAMPLE: u32 = 4;
/// Growth in Conservative Slow Start is slower by this factor, for this many rounds.
const CSS_GROWTH_DIVISOR: u64 = 4;
const CSS_ROUNDS: u32 = 5;

/// The state of HyStart++.
#[derive(Clone, Copy, Debug)]
pub(super) struct HyStart {
    last_min: Span,
    current_min: Span,
    samples: u32,
    /// In Conservative Slow Start, the minimum round-trip time at its start, and the rounds since.
    css: Option<(Span, u32)>,
}

impl Default for HyStart {
    fn default() -> HyStart {
        HyStart { last_min: Span::MAX, current_min: Span::MAX, samples: 0, css: None }
    }
}

impl HyStart {
    /// Adds a feedback; true when slow start ends.
    pub(super) fn update(&mut self, s: &Signals) -> bool {
        if s.round_start {
            self.last_min = self.current_min;
            self.current_min = Span::MAX;
            self.samples = 0;
            if let Some((_, rounds)) = &mut self.css {
                *rounds += 1;
                if *rounds >= CSS_ROUNDS {
                    return true;
                }
            }
        }
        let Some(rtt) = s.rtt else { return false };
        self.current_min = self.current_min.min(rtt);
        self.samples += 1;
        if self.samples < N_RTT_SAMPLE || self.last_min == Span::MAX {
            return false;
        }
        match self.css {
            None => {
                let thresh = (self.last_min / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
                if self.current_min >= self.last_min + thresh {
                    self.css = Some((self.current_min, 0));
                }
            }
            // The rise was transient: back to slow start.
            Some((baseline, _)) if self.current_min < baseline => self.css = None,
            Some(_) => {}
        }
        false
    }

    /// Window growth for `acked` bytes.
    pub(super) fn growth(&self, acked: u64) -> u64 {
        if self.css.is_some() { acked / CSS_GROWTH_DIVISOR } else { acked }
    }

    pub(super) fn in_css(&self) -> bool {
        self.css.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feedback(ms: u64, round_start: bool) -> Signals {
        Signals { rtt: Some(Span::from_millis(ms)), round_start, ..Signals::default() }
    }

    fn round(h: &mut HyStart, ms: u64) -> bool {
        (0..8).fold(false, |done, i| h.update(&feedback(ms, i == 0)) | done)
    }

    #[test]
    fn lasting_rtt_rise_ends_slow_start_after_five_css_rounds() {
        let mut h = HyStart::default();
        assert!(!round(&mut h, 64));
        assert!(!round(&mut h, 71));
        assert!(!h.in_css(), "7 ms of 64 is below an eighth");
        assert!(!round(&mut h, 80));
        assert!(h.in_css());
        assert_eq!(h.growth(4_000), 1_000);
        let rounds = (1..10).find(|_| round(&mut h, 81));
        assert_eq!(rounds, Some(5));
    }

    #[test]
    fn transient_rtt_rise_returns_to_slow_start() {
        let mut h = HyStart::default();
        round(&mut h, 64);
        round(&mut h, 80);
        assert!(h.in_css());
        round(&mut h, 64);
        assert!(!h.in_css());
        assert_eq!(h.growth(4_000), 4_000);
    }
}
