//! The pacer: a token bucket that fills at the decided rate and grants [`Token`]s.
//!
//! Packets can only be built with a token, so unpaced sending does not compile. Credit is kept in bytes and
//! billionths of a byte, so that no rate is rounded however often the pacer is asked.

use crate::Decision;
use base::{Rate, Span, Time};

/// Lateness that a flow with waiting data may catch up with. Timers overshoot by 50 to 110 microseconds and a thread
/// may be delayed by a few milliseconds; without this the average rate would be below the decided one.
pub const CATCH_UP: Span = Span::from_millis(4);

/// Most payload of one UDP segmentation-offload train: the largest IPv4 UDP payload.
const TRAIN_PAYLOAD: u64 = 65_507;
/// Most segments in one train (`UDP_MAX_SEGMENTS` before Linux 6.9).
const TRAIN_SEGMENTS: u64 = 64;
/// IPv4 and UDP headers, which segmentation offload repeats for each packet.
const HEADERS: u64 = 28;
/// Duration of a train at low rates, short enough not to act as a burst.
const LOW_RATE_TRAIN: Span = Span::from_millis(1);
/// At high rates trains leave in groups that take at least this long.
const HIGH_RATE_GROUP: Span = Span::from_micros(20);
/// Most full trains in a group, whatever the rate.
const MAX_TRAINS: u64 = 8;
/// A billion: credit fractions are in bytes times nanoseconds per second.
const NANOS_PER_SEC: u128 = 1_000_000_000;

/// The bytes that should leave back to back at `rate` with packets of `packet_bytes`: a millisecond's worth but at
/// least two packets at low rates, one full train from about 0.5 Gbit/s, and at very high rates as many trains as
/// take 20 microseconds (four at 100 Gbit/s), at most eight. Always a whole number of packets.
pub fn quantum(rate: Rate, packet_bytes: u64) -> u64 {
    let packet = packet_bytes.clamp(1, TRAIN_PAYLOAD);
    let per_train = (TRAIN_PAYLOAD / packet.saturating_sub(HEADERS).max(1)).clamp(1, TRAIN_SEGMENTS);
    let train = per_train * packet;
    let group = (rate.bytes_in(HIGH_RATE_GROUP).div_ceil(train)).clamp(1, MAX_TRAINS) * train;
    let few = rate.bytes_in(LOW_RATE_TRAIN) / packet * packet;
    few.clamp(2 * packet, group.max(2 * packet))
}

/// Permission to send a number of bytes. Only [`Pacer::poll`] creates one; it can be neither copied nor forged.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a token that is not spent must be given back with `Pacer::refund`"]
pub struct Token {
    bytes: u64,
}

/// A packet is larger than what is left of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} bytes asked of a token that has {left} left; send less, or poll the pacer again")]
pub struct Overdrawn {
    /// Bytes that were to be spent.
    pub wanted: u64,
    /// Bytes left in the token.
    pub left: u64,
}

impl Token {
    /// Bytes on the wire left in the token.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Splits off a token of at most `n` bytes.
    pub fn split(&mut self, n: u64) -> Token {
        let bytes = n.min(self.bytes);
        self.bytes -= bytes;
        Token { bytes }
    }
    /// Uses up `n` bytes of it.
    ///
    /// # Errors
    /// [`Overdrawn`] when it permits fewer than `n`; the token is unchanged.
    pub fn spend(&mut self, n: u64) -> Result<(), Overdrawn> {
        match self.bytes.checked_sub(n) {
            Some(left) => {
                self.bytes = left;
                Ok(())
            }
            None => Err(Overdrawn { wanted: n, left: self.bytes }),
        }
    }
}

/// A token bucket for sending, one per flow.
#[derive(Clone, Debug)]
pub struct Pacer {
    /// Whole bytes of credit.
    credit: u64,
    /// Credit below a byte, in billionths.
    fraction: u64,
    /// When the credit was last updated.
    last_fill: Option<Time>,
    /// Whether data was left waiting, since only then elapsed time is lateness and not idleness.
    backlogged: bool,
    /// Credit lost to lateness beyond what is caught up with, in bytes.
    forgone: u64,
    /// Lateness that is caught up with.
    catch_up: Span,
}

impl Default for Pacer {
    fn default() -> Pacer {
        Pacer::new()
    }
}

impl Pacer {
    /// A pacer whose first train may leave at once.
    pub const fn new() -> Pacer {
        Pacer { credit: 0, fraction: 0, last_fill: None, backlogged: false, forgone: 0, catch_up: CATCH_UP }
    }

    /// Requests permission to send. `want` is all data waiting, in bytes on the wire (a request for more than a train
    /// tells the pacer that elapsed time is lateness to catch up with, and not idleness). The token is for at most
    /// `decision.quantum` bytes.
    ///
    /// # Errors
    /// The time at which to ask again; [`Time::MAX`] when nothing is wanted or the rate is zero.
    pub fn poll(&mut self, now: Time, decision: &Decision, want: u64) -> Result<Token, Time> {
        if want == 0 {
            self.backlogged = false;
            return Err(Time::MAX);
        }
        let train = decision.quantum.max(1);
        self.fill(now, decision.rate, train);
        let need = want.min(train);
        if self.credit < need {
            self.backlogged = true;
            return Err(now + self.wait_for(need, decision.rate));
        }
        self.credit -= need;
        self.backlogged = want > need;
        Ok(Token { bytes: need })
    }

    /// The time until [`Pacer::poll`] would grant a whole train; `None` if never.
    pub fn wait(&self, now: Time, decision: &Decision) -> Option<Span> {
        let mut look = self.clone();
        let train = decision.quantum.max(1);
        look.fill(now, decision.rate, train);
        if look.credit >= train {
            return Some(Span::ZERO);
        }
        Some(look.wait_for(train, decision.rate)).filter(|wait| *wait < Span::MAX)
    }

    /// Catches up with no more lateness than this, of [`CATCH_UP`] at most: what is sent late leaves as one, and a queue
    /// that takes short trains only would drop it.
    pub fn limit_catch_up(&mut self, lateness: Span) {
        self.catch_up = lateness.min(CATCH_UP);
    }

    /// Bytes that the rate permitted and data was waiting for, but a busy host did not send in time, in total.
    pub const fn forgone(&self) -> u64 {
        self.forgone
    }

    /// Returns the unused part of a token, for instance because there was less data than expected.
    pub fn refund(&mut self, token: Token) {
        self.credit = self.credit.saturating_add(token.bytes);
    }

    fn fill(&mut self, now: Time, rate: Rate, train: u64) {
        let Some(last) = self.last_fill else {
            self.last_fill = Some(now);
            self.credit = self.credit.max(train);
            return;
        };
        if now <= last {
            return;
        }
        self.last_fill = Some(now);
        let earned = u128::from(rate.bytes_per_sec()) * u128::from(now.since(last).as_nanos())
            + u128::from(self.fraction);
        let cap = if self.backlogged { train.max(rate.bytes_in(self.catch_up)) } else { train };
        let credit = u128::from(self.credit) + earned / NANOS_PER_SEC;
        if credit >= u128::from(cap) {
            if self.backlogged {
                let over = u64::try_from(credit - u128::from(cap)).unwrap_or(u64::MAX);
                self.forgone = self.forgone.saturating_add(over);
            }
            self.credit = cap;
            self.fraction = 0;
        } else {
            self.credit = credit as u64;
            self.fraction = (earned % NANOS_PER_SEC) as u64;
        }
    }

    /// The time until `need` bytes of credit are available, rounded up so that it suffices.
    fn wait_for(&self, need: u64, rate: Rate) -> Span {
        if rate == Rate::ZERO {
            return Span::MAX;
        }
        let missing = u128::from(need - self.credit) * NANOS_PER_SEC - u128::from(self.fraction);
        let ns = missing.div_ceil(u128::from(rate.bytes_per_sec()));
        Span::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests;
