//! Measures the minimum round-trip time and the statistics of each round.

use super::HOST_NOISE;
use crate::Signals;
use base::{Span, Time};

/// Time without a round trip near the minimum after which it is probed.
const RTT_PROBE_INTERVAL: Span = Span::from_secs(10);

/// Age at which a flow joins the RTT probe of another.
const RTT_PROBE_JOIN_AGE: Span = Span::from_secs(5);
/// Successive RTT probes that must find a longer minimum before it is accepted.
const CONFIRMATIONS: u32 = 3;

/// Ratio by which one rate must exceed another to show that the delay at the latter was not a queue.
const CLEARLY_MORE: f64 = 1.1;
/// Standard deviations by which noise may lie above the minimum. Where packets keep their order, a late packet delays
/// all behind it: the denser packets are sent, the closer all delays are to the longest, and the less of the noise is
/// visible.
const NOISE_REACH: f64 = 10.0;
/// Standard deviations between the shortest and the longest delay; a uniform distribution has 3.5.
pub(super) const SPREAD: f64 = 5.0;
/// Factor per round by which the memory of the highest noise decays.
const NOISE_DECAY: f64 = 0.998;
/// Samples over which the noise is averaged.
const NOISE_SAMPLES: f64 = 32.0;
/// Samples before the highest noise is remembered: a host that answers the first packets late must not count as noise of the path
/// for minutes.
const PEAK_SAMPLES: u32 = 32;
/// Packets sent within this time belong to one train, whose later packets wait for the earlier.
const SAME_TRAIN: Span = Span::from_millis(2);

/// The distance within which a round trip counts as near the minimum.
fn tolerance(lowest: f64, noise: f64) -> f64 {
    (lowest / 64.0).max(HOST_NOISE / 2.0) + noise
}

/// The minimum round-trip time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MinRtt {
    lowest: Option<f64>,
    /// When a round trip near the minimum was last seen.
    last_near: Option<Time>,
    /// The minimum since the RTT probe began.
    probed: Option<f64>,
    /// Delay above the minimum that is not a queue, since a higher rate was delivered later.
    noise_delay: f64,
    /// The highest delivery rate (bytes per second), and the delay above the minimum at that time.
    peak: (f64, f64),
    /// When the delivery rate last reached a new maximum.
    last_growth: Option<Time>,
    /// Sum and number of the round trips of this round.
    round_sum: (f64, u32),
    /// Successive RTT probes that did not come near the minimum.
    contradictions: u32,
}

impl MinRtt {
    pub(super) fn new(handshake: Option<Span>) -> MinRtt {
        MinRtt { lowest: handshake.filter(|r| !r.is_zero()).map(Span::as_secs_f64), ..MinRtt::default() }
    }

    pub(super) fn get_or(&self, otherwise: f64) -> f64 {
        self.lowest.map_or(otherwise, |l| l + self.noise_delay)
    }

    pub(super) fn update(&mut self, s: &Signals, noise: f64) {
        let seen = *self.last_near.get_or_insert(s.now);
        let Some(rtt) = s.rtt.filter(|r| !r.is_zero()).map(Span::as_secs_f64) else { return };
        let lowest = self.lowest.unwrap_or(rtt);
        let near = rtt <= lowest + self.noise_delay + tolerance(lowest, noise);
        self.last_near = Some(if near { s.now } else { seen });
        if self.noise_delay > 0.0 {
            // One packet with less noise than the others does not mean that the others queue.
            self.noise_delay += (lowest - rtt).max(0.0);
        }
        self.lowest = Some(lowest.min(rtt));
        self.probed = self.probed.map(|l| l.min(rtt));
        self.round_sum = (self.round_sum.0 + rtt, self.round_sum.1 + 1);
    }

    /// Learns the delay that was there at a lower rate than the path carries, which is not a queue. `standing` is the
    /// present standing queue, `most` the part of it that noise can explain, `rate` the flow's usual rate.
    pub(super) fn learn_noise(&mut self, s: &Signals, standing: Option<f64>, most: f64, rate: f64) {
        let x = s.rate.map_or(0.0, |r| r.rate.bytes_per_sec() as f64);
        if let Some(standing) = standing.filter(|_| x > self.peak.0 * CLEARLY_MORE) {
            self.noise_delay = self.noise_delay.max(self.peak.1.min(most));
            self.peak = (x, self.noise_delay + standing);
            self.last_growth = Some(s.now);
        }
        if s.round_start {
            let (sum, n) = core::mem::take(&mut self.round_sum);
            // When delays are shorter again, the noise is, too; but few packets are delayed less, so only at half the
            // rate or more.
            if let (Some(lowest), 1.., true) = (self.lowest, n, x > rate / 2.0) {
                self.noise_delay = self.noise_delay.min(sum / f64::from(n) - lowest);
            }
        }
    }

    /// Counts a standing delay as noise, because sending less did not shorten it.
    pub(super) fn add_noise(&mut self, standing: f64) {
        self.noise_delay += standing;
    }

    /// Whether the delivery rate reached a new maximum within the last half round trip.
    pub(super) fn delivery_grows(&self, now: Time) -> bool {
        let half = Span::from_secs_f64(self.get_or(0.0) / 2.0);
        self.last_growth.is_some_and(|t| now.since(t) <= half)
    }

    /// Whether an RTT probe is due.
    pub(super) fn is_stale(&self, now: Time) -> bool {
        self.last_near.is_some_and(|t| now.since(t) > RTT_PROBE_INTERVAL)
    }

    /// Whether the minimum is old enough to join another flow's RTT probe.
    pub(super) fn may_join_probe(&self, now: Time) -> bool {
        self.last_near.is_some_and(|t| now.since(t) > RTT_PROBE_JOIN_AGE)
    }

    pub(super) fn begin_probe(&mut self) {
        self.probed = Some(f64::INFINITY);
    }

    /// How far above the minimum the round trip was during the RTT probe.
    pub(super) fn probed_excess(&self) -> f64 {
        match (self.probed, self.lowest) {
            (Some(found), Some(lowest)) if found.is_finite() => found - lowest - self.noise_delay,
            _ => 0.0,
        }
    }

    /// Ends an RTT probe. A higher value is accepted as the minimum if it is `believed`, or after several probes in a
    /// row.
    pub(super) fn end_probe(&mut self, now: Time, believed: bool, noise: f64) {
        self.last_near = Some(now);
        let Some(found) = self.probed.take().filter(|f| f.is_finite()) else { return };
        let near = self.lowest.is_none_or(|l| found <= l + self.noise_delay + tolerance(l, noise));
        self.contradictions = if near { 0 } else { self.contradictions + 1 };
        if near || believed || self.contradictions >= CONFIRMATIONS {
            if !near {
                (self.lowest, self.noise_delay, self.peak) = (Some(found), 0.0, (0.0, 0.0));
            }
            self.contradictions = 0;
        }
    }

    /// Queueing delay of the newest packet in the forward direction: the round trip above the minimum, limited by the
    /// change of the one-way delay (a queue in the backward direction does not count).
    pub(super) fn queueing_delay(&self, s: &Signals) -> Option<f64> {
        let rtt = s.rtt?.as_secs_f64();
        let above = (rtt - self.get_or(rtt)).max(0.0);
        let one_way = (s.queue_delay.as_secs_f64() - self.noise_delay).max(0.0);
        Some(if s.queue_delay.is_zero() { above } else { above.min(one_way) })
    }
}

/// Statistics of the current round and of the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundStats {
    current: Sums,
    last: Sums,
    /// Mean difference of successive delays, which is noise and not a queue.
    noise: f64,
    previous_delay: Option<f64>,
    /// Mean deviation of a delay from its neighbours, the number of samples, and the decaying maximum.
    mean_deviation: f64,
    deviation_samples: f64,
    peak_deviation: f64,
    /// All samples so far, up to [`PEAK_SAMPLES`].
    peak_samples: u32,
    /// The newest two delays, and when the newest one's packet was sent.
    newest_delays: Option<(Option<f64>, f64, Option<Time>)>,
    /// The latest delays.
    latest_delays: [f64; 4],
    mean_delay: f64,
    prior_standing: f64,
    /// Number of finished rounds.
    pub(super) count: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    min_delay: Option<f64>,
    max_delay: f64,
    samples: u32,
    acked: u64,
    lost: u64,
    marked: u64,
    reports: u64,
    lossy_reports: u64,
    start: Option<Time>,
    /// Bytes delivered since it began.
    bytes: u64,
    /// The highest delivery-rate sample (bytes per second).
    max_rate: f64,
}

/// What feedback reported about packets that count.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) acked: u64,
    pub(super) lost: u64,
    pub(super) marked: u64,
    /// Reports, and those of them with losses.
    pub(super) reports: u64,
    pub(super) lossy_reports: u64,
}

impl Counts {
    /// Packets whose fate is known.
    pub(super) fn total(&self) -> u64 {
        self.acked.saturating_add(self.lost)
    }

    /// The share of packets that arrived.
    pub(super) fn delivered_share(&self) -> f64 {
        self.acked as f64 / self.total().max(1) as f64
    }
}

impl RoundStats {
    pub(super) fn update(&mut self, s: &Signals, queue: Option<f64>, counts: Counts) {
        let r = &mut self.current;
        // The bytes of the first report arrived before the round.
        r.bytes = r.bytes.saturating_add(if r.start.is_some() { s.acked } else { 0 });
        r.start.get_or_insert(s.now);
        let sums = [(&mut r.acked, counts.acked), (&mut r.lost, counts.lost), (&mut r.marked, counts.marked)];
        for (sum, more) in sums {
            *sum = sum.saturating_add(more);
        }
        r.max_rate = s.rate.map_or(r.max_rate, |x| r.max_rate.max(x.rate.bytes_per_sec() as f64));
        r.reports += counts.reports;
        r.lossy_reports += counts.lossy_reports;
        let Some(q) = queue else { return };
        r.min_delay = Some(r.min_delay.map_or(q, |l| l.min(q)));
        r.max_delay = r.max_delay.max(q);
        r.samples += 1;
        if let Some(before) = self.previous_delay.replace(q) {
            // The mean difference of independent samples is 1.13 standard deviations.
            self.noise += ((q - before).abs() / 1.13 - self.noise) / NOISE_SAMPLES;
        }
        self.update_deviation(q, s.newest_acked_sent);
        self.latest_delays.rotate_left(1);
        self.latest_delays[3] = q;
        self.mean_delay += (q - self.mean_delay) / 8.0;
    }

    fn update_deviation(&mut self, q: f64, sent: Option<Time>) {
        let Some((first, second, left)) = self.newest_delays else {
            self.newest_delays = Some((None, q, sent));
            return;
        };
        if sent.zip(left).is_some_and(|(sent, left)| sent.since(left) < SAME_TRAIN) {
            return;
        }
        self.newest_delays = Some((Some(second), q, sent));
        let Some(first) = first else { return };
        self.deviation_samples = (self.deviation_samples + 1.0).min(NOISE_SAMPLES);
        self.peak_samples = (self.peak_samples + 1).min(PEAK_SAMPLES);
        // The distance of a sample from the mean of its neighbours, so that a growing or shrinking queue does not
        // count as noise. For independent samples its mean is 0.98 standard deviations.
        self.mean_deviation +=
            ((second - (first + q) / 2.0).abs() - self.mean_deviation) / self.deviation_samples;
    }

    /// How far noise may reach above the minimum delay.
    pub(super) fn noise_reach(&self) -> f64 {
        (self.deviation() - HOST_NOISE).max(0.0) * NOISE_REACH
    }

    /// How far the shortest and the longest delay may differ without a queue.
    pub(super) fn noise_range(&self) -> f64 {
        self.deviation() * SPREAD
    }

    /// The highest recent standard deviation of delays of packets sent apart.
    pub(super) fn deviation(&self) -> f64 {
        self.peak_deviation.max(self.mean_deviation)
    }

    pub(super) fn finish(&mut self) {
        if self.peak_samples == PEAK_SAMPLES {
            self.peak_deviation = self.mean_deviation.max(self.peak_deviation * NOISE_DECAY);
        }
        self.prior_standing = self.standing_queue().unwrap_or(0.0);
        self.last = core::mem::take(&mut self.current);
        self.count += 1;
    }

    pub(super) fn restart(&mut self) {
        self.current = Sums::default();
        self.newest_delays = None;
        self.previous_delay = None;
    }

    /// The standard deviation of the delay while nothing changes.
    pub(super) fn noise(&self) -> f64 {
        self.noise
    }

    /// The smoothed mean queueing delay.
    pub(super) fn mean_queue(&self) -> f64 {
        self.mean_delay
    }

    /// The queue that stood throughout the round now ending, minus the noise of an empty queue: the minimum of all
    /// times lies further below the mean than the minimum of a round.
    pub(super) fn standing_queue(&self) -> Option<f64> {
        self.current.min_delay?;
        let least = self.latest_delays.iter().copied().fold(f64::INFINITY, f64::min);
        Some((least - 2.0 * self.noise).max(0.0))
    }

    /// The longest queue of the round now ending and the previous one.
    pub(super) fn max_delay_of_two_rounds(&self) -> f64 {
        self.current.max_delay.max(self.last.max_delay)
    }

    /// The standing queue of the previous round.
    pub(super) fn prior_standing_queue(&self) -> f64 {
        self.prior_standing
    }

    /// The longest queue of the round now ending.
    pub(super) fn max_delay(&self) -> f64 {
        self.current.max_delay
    }

    /// The highest delivery-rate sample of the round now ending, in bytes per second.
    pub(super) fn max_rate(&self) -> f64 {
        self.current.max_rate
    }

    /// Duration of the current round, in seconds.
    pub(super) fn age(&self, now: Time) -> f64 {
        self.current.start.map_or(0.0, |began| now.since(began).as_secs_f64())
    }

    /// The delivery rate of the current round, in bytes per second.
    pub(super) fn delivery_rate(&self, now: Time) -> f64 {
        self.current.bytes as f64 / self.age(now).max(f64::MIN_POSITIVE)
    }

    /// Packets delivered, lost and marked in the round now ending.
    pub(super) fn counts(&self) -> Counts {
        let Sums { acked, lost, marked, reports, lossy_reports: lossy, .. } = self.current;
        Counts { acked, lost, marked, reports, lossy_reports: lossy }
    }
}
