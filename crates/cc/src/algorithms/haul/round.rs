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

/// By so much a rate exceeds another for the delay at that other one to have been no queue.
const MORE: f64 = 1.1;
/// Standard deviations by which delays that are noise may lie above the lowest. Where packets keep their order, a late
/// one holds up all behind it: the denser they are sent, the nearer to the longest delay all of them come, and the less
/// is seen of the noise.
const NOISE_REACH: f64 = 10.0;
/// Standard deviations between the shortest and the longest delay: of a uniform distribution 3.5.
pub(super) const SPREAD: f64 = 5.0;
/// What is left after a round of the most noise seen.
const NOISE_FADES: f64 = 0.998;
/// Samples that the noise is averaged over.
const NOISE_SAMPLES: f64 = 32.0;
/// Packets that left within this time left together, and the later ones waited for the earlier.
const TOGETHER: Span = Span::from_millis(2);

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
    /// What delay there is above the lowest without a queue: more was delivered later.
    phantom: f64,
    /// The most delivered (bytes per second), and the delay above the lowest then.
    mark: (f64, f64),
    /// When more was delivered than ever before.
    grew: Option<Time>,
    /// Sum and number of the round trips of this round.
    sum: (f64, u32),
    /// Soundings in a row that did not come near the lowest.
    doubts: u32,
}

impl Base {
    pub(super) fn new(handshake: Option<Span>) -> Base {
        Base { lowest: handshake.filter(|r| !r.is_zero()).map(Span::as_secs_f64), ..Base::default() }
    }

    pub(super) fn or(&self, otherwise: f64) -> f64 {
        self.lowest.map_or(otherwise, |l| l + self.phantom)
    }

    pub(super) fn update(&mut self, s: &Signals, noise: f64) {
        let seen = *self.seen.get_or_insert(s.now);
        let Some(rtt) = s.rtt.filter(|r| !r.is_zero()).map(Span::as_secs_f64) else { return };
        let lowest = self.lowest.unwrap_or(rtt);
        let near = rtt <= lowest + self.phantom + tolerance(lowest, noise);
        self.seen = Some(if near { s.now } else { seen });
        if self.phantom > 0.0 {
            // One packet that was luckier than others does not make the others queue.
            self.phantom += (lowest - rtt).max(0.0);
        }
        self.lowest = Some(lowest.min(rtt));
        self.sounded = self.sounded.map(|l| l.min(rtt));
        self.sum = (self.sum.0 + rtt, self.sum.1 + 1);
    }

    /// Delay that was there when less was delivered than the path carries is none of a queue; `standing` is the queue
    /// seen now, `most` what of it noise can explain, `rate` what the flow sends usually.
    pub(super) fn learn(&mut self, s: &Signals, standing: Option<f64>, most: f64, rate: f64) {
        let x = s.rate.map_or(0.0, |r| r.rate.bytes_per_sec() as f64);
        if let Some(standing) = standing.filter(|_| x > self.mark.0 * MORE) {
            self.phantom = self.phantom.max(self.mark.1.min(most));
            self.mark = (x, self.phantom + standing);
            self.grew = Some(s.now);
        }
        if s.round_start {
            let (sum, n) = core::mem::take(&mut self.sum);
            // When delays are shorter again, so is what they were without a queue; but few packets are held up less.
            if let (Some(lowest), 1.., true) = (self.lowest, n, x > rate / 2.0) {
                self.phantom = self.phantom.min(sum / f64::from(n) - lowest);
            }
        }
    }

    /// A delay of `standing` is no queue, because sending less did not shorten it.
    pub(super) fn is_noise(&mut self, standing: f64) {
        self.phantom += standing;
    }

    /// Whether more was delivered within the last half round trip than ever before.
    pub(super) fn grows(&self, now: Time) -> bool {
        let half = Span::from_secs_f64(self.or(0.0) / 2.0);
        self.grew.is_some_and(|t| now.since(t) <= half)
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
            (Some(found), Some(lowest)) if found.is_finite() => found - lowest - self.phantom,
            _ => 0.0,
        }
    }

    /// The sounding is over. What it found is the lowest now, also where it is higher: if it is to be `believed`,
    /// or if it has been so several times.
    pub(super) fn end_sounding(&mut self, now: Time, believed: bool, noise: f64) {
        self.seen = Some(now);
        let Some(found) = self.sounded.take().filter(|f| f.is_finite()) else { return };
        let near = self.lowest.is_none_or(|l| found <= l + self.phantom + tolerance(l, noise));
        self.doubts = if near { 0 } else { self.doubts + 1 };
        if near || believed || self.doubts >= DOUBTS {
            if !near {
                (self.lowest, self.phantom, self.mark) = (Some(found), 0.0, (0.0, 0.0));
            }
            self.doubts = 0;
        }
    }

    /// Queueing delay of the newest packet on its way there: the round trip above the lowest, as far as the one-way
    /// delay bears that out (a queue on the way back is none of ours).
    pub(super) fn queue(&self, s: &Signals) -> Option<f64> {
        let rtt = s.rtt?.as_secs_f64();
        let above = (rtt - self.or(rtt)).max(0.0);
        let one_way = (s.queue_delay.as_secs_f64() - self.phantom).max(0.0);
        Some(if s.queue_delay.is_zero() { above } else { above.min(one_way) })
    }
}

/// Sums of a round, and what the last whole one came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    now: Sums,
    last: Sums,
    /// Mean difference of successive delays: what is not queue but noise.
    noise: f64,
    before: Option<f64>,
    /// Mean deviation of a delay from its neighbours, of so many; and the most of it, fading.
    deviation: f64,
    samples: f64,
    most_noise: f64,
    /// The newest two delays, and when the newest's packet left.
    newest: Option<(Option<f64>, f64, Option<Time>)>,
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
    reports: u64,
    lossy: u64,
    began: Option<Time>,
    /// Bytes that arrived since it began.
    bytes: u64,
    /// The highest sample of the rate delivered (bytes per second).
    fastest: f64,
}

/// What happened to the packets that feedback told of, as far as it counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) acked: u64,
    pub(super) lost: u64,
    pub(super) marked: u64,
    /// Reports, and those that told of losses.
    pub(super) reports: u64,
    pub(super) lossy: u64,
}

impl Counts {
    /// Packets of which it is known what became of them.
    pub(super) fn total(&self) -> u64 {
        self.acked.saturating_add(self.lost)
    }

    /// The share that arrived.
    pub(super) fn arrived(&self) -> f64 {
        self.acked as f64 / self.total().max(1) as f64
    }
}

impl Round {
    pub(super) fn update(&mut self, s: &Signals, queue: Option<f64>, counts: Counts) {
        let r = &mut self.now;
        // What the first report tells of arrived before.
        r.bytes = r.bytes.saturating_add(if r.began.is_some() { s.acked } else { 0 });
        r.began.get_or_insert(s.now);
        let sums = [(&mut r.acked, counts.acked), (&mut r.lost, counts.lost), (&mut r.marked, counts.marked)];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
        r.fastest = s.rate.map_or(r.fastest, |x| r.fastest.max(x.rate.bytes_per_sec() as f64));
        r.reports += counts.reports;
        r.lossy += counts.lossy;
        let Some(q) = queue else { return };
        r.least = Some(r.least.map_or(q, |l| l.min(q)));
        r.most = r.most.max(q);
        r.samples += 1;
        if let Some(before) = self.before.replace(q) {
            // Differences of independent samples are 1.13 standard deviations in the mean.
            self.noise += ((q - before).abs() / 1.13 - self.noise) / NOISE_SAMPLES;
        }
        self.update_deviation(q, s.newest_acked_sent);
        self.latest.rotate_left(1);
        self.latest[3] = q;
        self.mean += (q - self.mean) / 8.0;
    }

    fn update_deviation(&mut self, q: f64, sent: Option<Time>) {
        let Some((first, second, left)) = self.newest else {
            self.newest = Some((None, q, sent));
            return;
        };
        if sent.zip(left).is_some_and(|(sent, left)| sent.since(left) < TOGETHER) {
            return;
        }
        self.newest = Some((Some(second), q, sent));
        let Some(first) = first else { return };
        self.samples = (self.samples + 1.0).min(NOISE_SAMPLES);
        // How far a sample is from the middle between its neighbours: a queue that grows or shrinks is no noise. Of
        // independent samples, this is one standard deviation in the mean (0.98).
        self.deviation += ((second - (first + q) / 2.0).abs() - self.deviation) / self.samples;
    }

    /// How far above the lowest delay noise may reach.
    pub(super) fn noise_reach(&self) -> f64 {
        (self.deviation() - HOST_NOISE).max(0.0) * NOISE_REACH
    }

    /// How far apart the shortest and the longest delay may be without a queue.
    pub(super) fn spread(&self) -> f64 {
        self.deviation() * SPREAD
    }

    /// The standard deviation of delays of packets that were sent apart, the most lately.
    pub(super) fn deviation(&self) -> f64 {
        self.most_noise.max(self.deviation)
    }

    pub(super) fn finish(&mut self) {
        self.most_noise = self.deviation.max(self.most_noise * NOISE_FADES);
        self.prior = self.standing().unwrap_or(0.0);
        self.last = core::mem::take(&mut self.now);
        self.count += 1;
    }

    pub(super) fn restart(&mut self) {
        self.now = Sums::default();
        self.newest = None;
        self.before = None;
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

    /// The highest rate delivered in the round now ending, in bytes per second.
    pub(super) fn fastest(&self) -> f64 {
        self.now.fastest
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
        let Sums { acked, lost, marked, reports, lossy, .. } = self.now;
        Counts { acked, lost, marked, reports, lossy }
    }
}
