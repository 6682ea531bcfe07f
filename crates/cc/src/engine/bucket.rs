//! A token bucket that may be overdrawn: a sender that finds any credit may take a whole train, and the next one
//! waits until that is repaid. Over any interval at most the rate's bytes, the bucket's content and one train are
//! sent.

use base::{Rate, Span, Time};

/// A billion: fractions of a byte are in billionths.
const NANOS_PER_SEC: u128 = 1_000_000_000;

/// A bucket of credit that fills at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    pub rate: Rate,
    /// Bytes of credit; negative if overdrawn.
    credit: i64,
    /// Credit below a byte, in billionths.
    fraction: u64,
    last_fill: Option<Time>,
}

impl Bucket {
    pub const fn new(rate: Rate) -> Bucket {
        Bucket { rate, credit: 1, fraction: 0, last_fill: None }
    }

    /// The same credit, filling at another rate.
    pub const fn with_rate(&self, rate: Rate) -> Bucket {
        Bucket { rate, ..*self }
    }

    /// Fills the bucket up to `now`, to at most `depth` bytes.
    pub fn fill(&mut self, now: Time, depth: u64) {
        let depth = i64::try_from(depth).unwrap_or(i64::MAX).max(1);
        let Some(last) = self.last_fill.replace(now) else {
            self.credit = self.credit.max(depth);
            return;
        };
        if now <= last {
            self.last_fill = Some(last);
            self.credit = self.credit.min(depth);
            return;
        }
        let earned = u128::from(self.rate.bytes_per_sec()) * u128::from(now.since(last).as_nanos())
            + u128::from(self.fraction);
        let whole = i64::try_from(earned / NANOS_PER_SEC).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_add(whole);
        self.fraction = (earned % NANOS_PER_SEC) as u64;
        if self.credit >= depth {
            (self.credit, self.fraction) = (depth, 0);
        }
    }

    /// Whether credit may be taken.
    pub const fn is_open(&self) -> bool {
        self.credit > 0
    }

    /// How long the present credit took to fill or, negative, takes to be repaid, in nanoseconds.
    pub fn fill_time(&self) -> i128 {
        i128::from(self.credit) * NANOS_PER_SEC as i128 / i128::from(self.rate.bytes_per_sec().max(1))
    }

    pub fn take(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Takes the available credit without overdrawing.
    pub fn take_available(&mut self, bytes: u64) {
        let left = self.credit.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.credit = left.max(self.credit.min(0));
    }

    pub fn give_back(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_add(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// When credit may be taken; [`Time::MAX`] at rate zero.
    pub fn opens_at(&self) -> Time {
        let Some(last) = self.last_fill.filter(|_| !self.is_open()) else { return Time::ZERO };
        if self.rate == Rate::ZERO {
            return Time::MAX;
        }
        // Positive: `credit` is zero or less, `fraction` below a byte.
        let missing = (1 - i128::from(self.credit)) as u128 * NANOS_PER_SEC - u128::from(self.fraction);
        let ns = missing.div_ceil(u128::from(self.rate.bytes_per_sec()));
        last + Span::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overdraft_is_repaid_to_the_nanosecond_before_more_is_taken() {
        let mut b = Bucket::new(Rate::from_bytes_per_sec(3_000_000_000));
        let start = Time::from_nanos(1_000);
        b.fill(start, 0);
        assert!(b.is_open());
        b.take(30_001);
        assert!(!b.is_open());
        // One byte was there: 30,000 and one more take 10,000 and a third nanoseconds.
        assert_eq!(b.opens_at(), start + Span::from_nanos(10_001));
        b.fill(start + Span::from_nanos(10_000), 100);
        assert!(!b.is_open());
        b.fill(start + Span::from_nanos(10_001), 100);
        assert!(b.is_open());
    }

    #[test]
    fn bucket_of_rate_zero_never_reopens() {
        let mut b = Bucket::new(Rate::ZERO);
        b.fill(Time::from_nanos(1), 0);
        b.take(1);
        b.fill(Time::from_nanos(u64::MAX), u64::MAX);
        assert!(!b.is_open());
        assert_eq!(b.opens_at(), Time::MAX);
    }

    #[test]
    fn taking_available_credit_never_overdraws() {
        let mut b = Bucket::new(Rate::from_bytes_per_sec(1_000));
        b.fill(Time::from_nanos(1), 500);
        b.take_available(400);
        assert!(b.is_open());
        b.take_available(400);
        assert!(!b.is_open());
        b.fill(Time::from_nanos(1_000_001), 500);
        assert!(b.is_open(), "a millisecond gives a byte");
    }
}
