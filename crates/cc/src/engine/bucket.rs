//! A bucket of credit that is paid afterwards: whoever finds anything in it may take a whole train, and the next one waits
//! until that is paid. Over any time no more leaves than the rate permits, what was in the bucket, and one train.

use base::{Rate, Span, Time};

/// A billion: fractions of a byte are in billionths.
const NANOS: u128 = 1_000_000_000;

/// Credit that fills at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    pub rate: Rate,
    /// Bytes; below zero what was taken ahead.
    credit: i64,
    /// What is there below a byte, in billionths.
    fraction: u64,
    last: Option<Time>,
}

impl Bucket {
    pub const fn new(rate: Rate) -> Bucket {
        Bucket { rate, credit: 1, fraction: 0, last: None }
    }

    /// The same credit, filling at another rate.
    pub const fn at(&self, rate: Rate) -> Bucket {
        Bucket { rate, ..*self }
    }

    /// Credit up to `now`, at most `depth` bytes of it.
    pub fn fill(&mut self, now: Time, depth: u64) {
        let depth = i64::try_from(depth).unwrap_or(i64::MAX).max(1);
        let Some(last) = self.last.replace(now) else {
            self.credit = self.credit.max(depth);
            return;
        };
        if now <= last {
            self.last = Some(last);
            self.credit = self.credit.min(depth);
            return;
        }
        let earned = u128::from(self.rate.bytes_per_sec()) * u128::from(now.since(last).as_nanos())
            + u128::from(self.fraction);
        let whole = i64::try_from(earned / NANOS).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_add(whole);
        self.fraction = (earned % NANOS) as u64;
        if self.credit >= depth {
            (self.credit, self.fraction) = (depth, 0);
        }
    }

    /// Whether something may be taken.
    pub const fn is_open(&self) -> bool {
        self.credit > 0
    }

    /// How long it has been filling, or takes to fill what was taken ahead (negative), in nanoseconds.
    pub fn age(&self) -> i128 {
        i128::from(self.credit) * NANOS as i128 / i128::from(self.rate.bytes_per_sec().max(1))
    }

    pub fn take(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Takes what is there, but nothing ahead.
    pub fn take_at_most(&mut self, bytes: u64) {
        let left = self.credit.saturating_sub(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.credit = left.max(self.credit.min(0));
    }

    pub fn give_back(&mut self, bytes: u64) {
        self.credit = self.credit.saturating_add(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// When something may be taken; [`Time::MAX`] of a rate of nothing.
    pub fn opens(&self) -> Time {
        let Some(last) = self.last.filter(|_| !self.is_open()) else { return Time::ZERO };
        if self.rate == Rate::ZERO {
            return Time::MAX;
        }
        // Positive: `credit` is zero or less, `fraction` below a byte.
        let missing = (1 - i128::from(self.credit)) as u128 * NANOS - u128::from(self.fraction);
        let ns = missing.div_ceil(u128::from(self.rate.bytes_per_sec()));
        last + Span::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_ahead_is_paid_to_the_nanosecond_before_anything_more() {
        let mut b = Bucket::new(Rate::from_bytes_per_sec(3_000_000_000));
        let start = Time::from_nanos(1_000);
        b.fill(start, 0);
        assert!(b.is_open());
        b.take(30_001);
        assert!(!b.is_open());
        // One byte was there: 30,000 and one more take 10,000 and a third nanoseconds.
        assert_eq!(b.opens(), start + Span::from_nanos(10_001));
        b.fill(start + Span::from_nanos(10_000), 100);
        assert!(!b.is_open());
        b.fill(start + Span::from_nanos(10_001), 100);
        assert!(b.is_open());
    }

    #[test]
    fn a_rate_of_nothing_gives_its_first_byte_and_never_another() {
        let mut b = Bucket::new(Rate::ZERO);
        b.fill(Time::from_nanos(1), 0);
        b.take(1);
        b.fill(Time::from_nanos(u64::MAX), u64::MAX);
        assert!(!b.is_open());
        assert_eq!(b.opens(), Time::MAX);
    }

    #[test]
    fn what_was_had_by_a_share_counts_against_a_guarantee_but_is_no_debt() {
        let mut b = Bucket::new(Rate::from_bytes_per_sec(1_000));
        b.fill(Time::from_nanos(1), 500);
        b.take_at_most(400);
        assert!(b.is_open());
        b.take_at_most(400);
        assert!(!b.is_open());
        b.fill(Time::from_nanos(1_000_001), 500);
        assert!(b.is_open(), "a millisecond gives a byte");
    }
}
