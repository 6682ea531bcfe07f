//! Data rates.

use crate::Span;
use core::fmt;

/// A data rate in bytes per second. 64 bits hold 147 exabits per second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Rate(u64);

const NANOS: u128 = 1_000_000_000;

impl Rate {
    /// No data at all.
    pub const ZERO: Rate = Rate(0);
    /// No limit.
    pub const MAX: Rate = Rate(u64::MAX);

    /// `n` bytes per second.
    pub const fn from_bytes_per_sec(n: u64) -> Rate {
        Rate(n)
    }
    /// `n` bits per second, rounded down to bytes.
    pub const fn from_bits_per_sec(n: u64) -> Rate {
        Rate(n / 8)
    }
    /// `n` megabits (10^6) per second.
    pub const fn from_mbit(n: u64) -> Rate {
        Rate(n * 125_000)
    }
    /// The rate at which `bytes` take `span`; [`Rate::MAX`] when the span is zero.
    pub const fn from_bytes_in(bytes: u64, span: Span) -> Rate {
        if span.is_zero() {
            return Rate::MAX;
        }
        let r = bytes as u128 * NANOS / span.as_nanos() as u128;
        if r > u64::MAX as u128 { Rate::MAX } else { Rate(r as u64) }
    }
    /// Bytes per second.
    pub const fn bytes_per_sec(self) -> u64 {
        self.0
    }
    /// Bits per second.
    pub const fn bits_per_sec(self) -> u64 {
        self.0.saturating_mul(8)
    }
    /// How long `bytes` take at this rate; [`Span::MAX`] at rate zero.
    pub const fn time_for(self, bytes: u64) -> Span {
        if self.0 == 0 {
            return Span::MAX;
        }
        let ns = bytes as u128 * NANOS / self.0 as u128;
        if ns > u64::MAX as u128 { Span::MAX } else { Span::from_nanos(ns as u64) }
    }
    /// How many bytes pass in `span` at this rate.
    pub const fn bytes_in(self, span: Span) -> u64 {
        let b = self.0 as u128 * span.as_nanos() as u128 / NANOS;
        if b > u64::MAX as u128 { u64::MAX } else { b as u64 }
    }
    /// This rate times `num / den`, without overflow in between. `den` must not be zero.
    pub const fn scale(self, num: u64, den: u64) -> Rate {
        let r = self.0 as u128 * num as u128 / den as u128;
        if r > u64::MAX as u128 { Rate::MAX } else { Rate(r as u64) }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 as f64 * 8.0;
        match bits {
            b if b >= 1e9 => write!(f, "{:.2} Gbit/s", b / 1e9),
            b if b >= 1e6 => write!(f, "{:.1} Mbit/s", b / 1e6),
            b if b >= 1e3 => write!(f, "{:.1} kbit/s", b / 1e3),
            b => write!(f, "{b:.0} bit/s"),
        }
    }
}
impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_times_time_of_a_long_fat_path_does_not_overflow() {
        let r = Rate::from_bits_per_sec(400_000_000_000);
        assert_eq!(r.bytes_in(Span::from_secs(1)), 50_000_000_000);
        assert_eq!(r.time_for(50_000_000_000), Span::from_secs(1));
        assert_eq!(Rate::from_bytes_in(50_000_000_000, Span::from_secs(1)), r);
        assert_eq!(Rate::ZERO.time_for(1), Span::MAX);
        assert_eq!(Rate::from_bytes_in(1, Span::ZERO), Rate::MAX);
    }
}
