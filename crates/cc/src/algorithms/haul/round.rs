//! What is measured: the bare round trip, and the sums of each round.

use super::HOST_NOISE;
use crate::Signals;
use base::{Span, Time};

/// Without a round trip near the lowest for this long, it is sounded anew.
const STALE: Span = Span::from_secs(10);

/// A flow half as old in this joins the sounding of another.
const JOIN: Span = Span::from_secs(5);
/// Soundings in a row that must find more before it is believed.
const DOUBTS: u32 = 3;

/// Most that the lowest round trip is lifted at once.
const MOST_LIFT: f64 = 1.25;

/// What is near a round trip of `lowest`.
fn tolerance(lowest: f64, noise: f64) -> f64 {
    (lowest / 64.0).max(HOST_NOISE / 2.0) + noise
}

/// The lowest round trip.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Base {
    lowest: Option<f64>,
    /// When a round trip near it was last seen.
    seen: Option<Time>,
    /// The lowest since the sounding began.
    sounded: Option<f64>,
    /// The latest round trips.
    latest: [f64; 4],
    /// Soundings in a row that did not come near the lowest.
    doubts: u32,
}

impl Base {
    pub(super) fn new(handshake: Option<Span>) -> Base {
        Base { lowest: handshake.filter(|r| !r.is_zero()).map(Span::as_secs_f64), ..Base::default() }
    }

    pub(super) fn or(&self, otherwise: f64) -> f64 {
        self.lowest.unwrap_or(otherwise)
    }

    pub(super) fn update(&mut self, s: &Signals, noise: f64) {
        let seen = *self.seen.get_or_insert(s.now);
        let Some(rtt) = s.rtt.filter(|r| !r.is_zero()).map(Span::as_secs_f64) else { return };
        let near = self.lowest.is_none_or(|l| rtt <= l + tolerance(l, noise));
        self.seen = Some(if near { s.now } else { seen });
        self.lowest = Some(self.lowest.map_or(rtt, |l| l.min(rtt)));
        self.sounded = self.sounded.map(|l| l.min(rtt));
        self.latest.rotate_left(1);
        self.latest[3] = rtt;
    }

    /// Whether it should be looked at again.
    pub(super) fn is_stale(&self, now: Time) -> bool {
        self.seen.is_some_and(|t| now.since(t) > STALE)
    }

    /// Whether it is old enough to be looked at when another flow does.
    pub(super) fn may_join(&self, now: Time) -> bool {
        self.seen.is_some_and(|t| now.since(t) > JOIN)
    }

    pub(super) fn begin_sounding(&mut self) {
        self.sounded = Some(f64::INFINITY);
    }

    /// How far above the lowest the sounding found the round trip.
    pub(super) fn sounded_above(&self) -> f64 {
        match (self.sounded, self.lowest) {
            (Some(found), Some(lowest)) if found.is_finite() => found - lowest,
            _ => 0.0,
        }
    }

    /// The sounding is over. What it found is the lowest now, also where it is higher: if it is to be `believed`,
    /// or if it has been so several times.
    pub(super) fn end_sounding(&mut self, now: Time, believed: bool, noise: f64) {
        let Some(found) = self.sounded.take().filter(|f| f.is_finite()) else { return };
        let near = self.lowest.is_none_or(|l| found <= l + tolerance(l, noise));
        self.doubts = if near { 0 } else { self.doubts + 1 };
        if near || believed || self.doubts >= DOUBTS {
            self.lowest = Some(if near { self.lowest.map_or(found, |l| l.min(found)) } else { found });
            self.doubts = 0;
        }
        self.seen = Some(now);
    }

    /// The flow sends so little of what the path carries that what delay there is belongs to the path.
    pub(super) fn lift(&mut self, rtt: f64) {
        let least = self.latest.iter().copied().fold(f64::INFINITY, f64::min);
        self.lowest = self.lowest.map(|l| l.max(least.min(rtt * MOST_LIFT)));
    }

    /// Queueing delay of the newest packet on its way there: the round trip above the lowest, as far as the one-way
    /// delay bears that out (a queue on the way back is none of ours).
    pub(super) fn queue(&self, s: &Signals) -> Option<f64> {
        let rtt = s.rtt?.as_secs_f64();
        let above = (rtt - self.or(rtt)).max(0.0);
        Some(if s.queue_delay.is_zero() { above } else { above.min(s.queue_delay.as_secs_f64()) })
    }
}

/// Sums of a round, and what the last whole one came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    now: Sums,
    last: Sums,
    /// Mean difference of successive delays: what is not queue but noise.
    noise: f64,
    newest: Option<f64>,
    /// The latest delays.
    latest: [f64; 4],
    mean: f64,
    prior: f64,
    /// Rounds finished.
    pub(super) count: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    least: Option<f64>,
    most: f64,
    samples: u32,
    acked: u64,
    lost: u64,
    marked: u64,
    began: Option<Time>,
    /// Bytes that arrived since it began.
    bytes: u64,
}

/// What happened to the packets that one feedback told of, as far as it counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) acked: u64,
    pub(super) lost: u64,
    pub(super) marked: u64,
}

impl Round {
    pub(super) fn update(&mut self, s: &Signals, queue: Option<f64>, counts: Counts) {
        let r = &mut self.now;
        // What the first report tells of arrived before.
        r.bytes += if r.began.is_some() { s.acked } else { 0 };
        r.began.get_or_insert(s.now);
        r.acked += counts.acked;
        r.lost += counts.lost;
        r.marked += counts.marked;
        let Some(q) = queue else { return };
        if let Some(before) = self.newest.replace(q) {
            // Differences of independent samples are 1.13 standard deviations in the mean.
            self.noise += ((q - before).abs() / 1.13 - self.noise) / 32.0;
        }
        self.latest.rotate_left(1);
        self.latest[3] = q;
        self.mean += (q - self.mean) / 8.0;
        r.least = Some(r.least.map_or(q, |l| l.min(q)));
        r.most = r.most.max(q);
        r.samples += 1;
    }

    pub(super) fn finish(&mut self) {
        self.prior = self.standing().unwrap_or(0.0);
        self.last = core::mem::take(&mut self.now);
        self.count += 1;
    }

    pub(super) fn restart(&mut self) {
        self.now = Sums::default();
        self.newest = None;
    }

    /// The standard deviation of the delay where nothing changes.
    pub(super) fn noise(&self) -> f64 {
        self.noise
    }

    /// The mean queueing delay lately.
    pub(super) fn queue_mean(&self) -> f64 {
        self.mean
    }

    /// The queue that stood throughout the round now ending, less what noise makes of an empty one: the lowest of
    /// all times lies further below the mean than the lowest of a round.
    pub(super) fn standing(&self) -> Option<f64> {
        self.now.least?;
        let least = self.latest.iter().copied().fold(f64::INFINITY, f64::min);
        Some((least - 2.0 * self.noise).max(0.0))
    }

    /// The longest queue of the round now ending.
    pub(super) fn most(&self) -> f64 {
        self.now.most.max(self.last.most)
    }

    /// The same of the round before.
    pub(super) fn prior_standing(&self) -> f64 {
        self.prior
    }

    /// The longest queue of the round now ending alone.
    pub(super) fn longest(&self) -> f64 {
        self.now.most
    }

    /// How long it has lasted, in seconds.
    pub(super) fn age(&self, now: Time) -> f64 {
        self.now.began.map_or(0.0, |began| now.since(began).as_secs_f64())
    }

    /// Bytes per second that arrived in it so far.
    pub(super) fn arrived(&self, now: Time) -> f64 {
        self.now.bytes as f64 / self.age(now).max(f64::MIN_POSITIVE)
    }

    /// Packets delivered, lost and marked in the round now ending.
    pub(super) fn counts(&self) -> Counts {
        Counts { acked: self.now.acked, lost: self.now.lost, marked: self.now.marked }
    }
}
