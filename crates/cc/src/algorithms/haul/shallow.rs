//! Loss without a queue to be seen: the path's own, or that of a queue too short to show.
//!
//! The two differ in what restraint does about them. So the flow holds back for a round and looks: loss that goes away
//! was an overflow, and what arrived during it is what the path carries; loss that stays is the path's own. Having found
//! such a queue, the flow keeps within what arrived, looks beyond it every few seconds, and sends no longer trains than
//! the queue can take.

use super::Haul;
use super::loss::{MOST_USUAL, exceeds, in_bursts};
use super::round::Counts;
use crate::Signals;
use base::{Rng, Span, Time};

/// Packets that are looked at before loss is judged: the newer half weighs as much as all before it.
const LOOKED_AT: f64 = 1_024.0;
/// Rounds in a row with too much loss before anything is done about it.
const SUSPICIOUS: u32 = 2;
/// Rate while it is checked where the loss comes from, and the least factor by which that must lessen it.
const RESTRAINT: f64 = 0.85;
const LESS: f64 = 0.5;
/// Losses expected of a path that loses by itself, before its check is over, and rounds after which it is in any case.
const EXPECTED: f64 = 10.0;
const CHECK_ROUNDS: u32 = 40;
/// Of what arrived while the queue overflowed, as much is sent.
const WITHIN: f64 = 0.99;
/// Time for which no more than that is tried; up to a half is added at random. The same in round trips: at least, and at
/// most, since what was found may have been chance, and two seconds are 30,000 round trips within a room (one start of
/// fifteen at 1 % loss stayed at a quarter of the rate for that long).
const HOLD: Span = Span::from_secs(2);
const HOLD_ROUNDS: f64 = 30.0;
const MOST_HOLD_ROUNDS: f64 = 400.0;
/// Of a queue that overflowed, as much may arrive in one train.
const TRAIN: f64 = 0.5;

/// A check under way.
#[derive(Clone, Copy, Debug)]
struct Check {
    /// The rate before it, what arrived of it, the share that was lost and the longest delay.
    rate: f64,
    arrived: f64,
    share: f64,
    longest: f64,
    rounds: u32,
    lost: u64,
    total: u64,
}

/// What is known of loss without a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shallow {
    lost: f64,
    total: f64,
    reports: f64,
    lossy: f64,
    suspicious: u32,
    check: Option<Check>,
    /// What such a queue lets pass, and until when no more is tried.
    ceiling: Option<(f64, Time)>,
}

impl Shallow {
    pub(super) fn restart(&mut self) {
        *self = Shallow { ceiling: self.ceiling, ..Shallow::default() };
    }

    /// This round and the one before lost too much.
    pub(super) fn is_suspicious(&self) -> bool {
        self.suspicious >= SUSPICIOUS
    }

    /// Adds a round in which no more than `share` should have been lost.
    fn add(&mut self, counts: Counts, share: f64) {
        self.lost += counts.lost as f64;
        self.total += counts.total() as f64;
        self.reports += counts.reports as f64;
        self.lossy += counts.lossy as f64;
        let much = counts.lost > 0 && exceeds(self.lost as u64, self.total as u64, share);
        let bursts = in_bursts(self.lost, self.total, self.reports, self.lossy);
        self.suspicious = if much && !bursts { self.suspicious + 1 } else { 0 };
        if self.total > LOOKED_AT {
            for sum in [&mut self.lost, &mut self.total, &mut self.reports, &mut self.lossy] {
                *sum /= 2.0;
            }
        }
    }

    fn hold(&mut self, rate: f64, now: Time, rtt: f64, rng: &mut Rng) {
        let [least, most] = [HOLD_ROUNDS, MOST_HOLD_ROUNDS].map(|n| Span::from_secs_f64(rtt * n));
        let hold = HOLD.min(most).max(least);
        self.ceiling = Some((rate, now + hold + Span::from_nanos(rng.below(hold.as_nanos() / 2 + 1))));
    }

    /// The rate beyond which nothing is tried now.
    pub(super) fn ceiling(&self, now: Time) -> f64 {
        self.ceiling.filter(|(_, until)| now < *until).map_or(f64::INFINITY, |(rate, _)| rate)
    }
}

impl Haul {
    /// A round has ended. True while loss is dealt with here.
    pub(super) fn looks_at_loss(&mut self, s: &Signals, counts: Counts) -> bool {
        if self.shallow.check.is_some() {
            self.on_check(s, counts);
            return true;
        }
        // What arrives of an application with little to send is not what the path lets pass.
        let limited = s.app_limited || s.rate.is_none_or(|r| r.app_limited);
        if limited || self.rival.is_at_work() {
            self.shallow.restart();
            return false;
        }
        self.shallow.add(counts, self.config.loss + self.losses.usual);
        // Heavy loss is congestion wherever it comes from.
        if self.is_queued() || !self.shallow.is_suspicious() || self.is_congested() {
            return false;
        }
        let arrived = s.rate.map_or(self.rate, |r| r.rate.bytes_per_sec() as f64).min(self.rate);
        let share = self.shallow.lost / self.shallow.total.max(1.0);
        let longest = self.round.most();
        let expected = self.shallow.ceiling.take().is_some_and(|(c, until)| s.now >= until && self.rate > c);
        self.shallow.restart();
        self.losses.answer(s.now);
        if expected {
            // It was known, and more than it lets pass has been tried.
            self.keep_within(s, arrived, longest);
        } else {
            let rate = self.rate;
            self.shallow.check = Some(Check { rate, arrived, share, longest, rounds: 0, lost: 0, total: 0 });
            self.rate = self.rate.min(arrived) * RESTRAINT;
        }
        true
    }

    fn on_check(&mut self, s: &Signals, counts: Counts) {
        let Some(check) = &mut self.shallow.check else { return };
        check.rounds += 1;
        if check.rounds > 1 {
            check.lost = check.lost.saturating_add(counts.lost);
            check.total = check.total.saturating_add(counts.total());
        }
        if (check.total as f64) * check.share < EXPECTED && check.rounds < CHECK_ROUNDS {
            return;
        }
        let check = *check;
        self.shallow.check = None;
        let share = check.lost as f64 / check.total.max(1) as f64;
        if exceeds(check.lost, check.total, self.config.loss_alone) {
            self.on_congestion(s);
        } else if share < check.share * LESS {
            self.losses.usual = self.losses.usual.min(share);
            self.keep_within(s, check.arrived, check.longest);
        } else {
            self.losses.usual = share.max(self.losses.usual).min(MOST_USUAL);
            self.rate = check.rate;
        }
    }

    /// A queue that hardly delays lets `arrived` pass.
    fn keep_within(&mut self, s: &Signals, arrived: f64, longest: f64) {
        let passes = arrived / (1.0 - self.losses.usual) * WITHIN;
        self.losses.overflowed_at(longest);
        self.rate = passes;
        let rtt = self.rtt();
        self.shallow.hold(passes, s.now, rtt, &mut self.rng);
    }

    /// Bytes of a train that a queue such as has been found can take.
    pub(super) fn longest_train(&self, rate: f64) -> u64 {
        if self.shallow.check.is_some() {
            return 0;
        }
        (rate * self.losses.overflow() * TRAIN).min(u64::MAX as f64 / 2.0) as u64
    }
}
