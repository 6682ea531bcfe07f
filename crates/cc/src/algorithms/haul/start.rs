//! The start: finds the rate in a few round trips without filling the queue.
//!
//! Growth is proportional to what arrives, so a path that delivers nothing causes none. Without knowledge of the
//! bottleneck the rate triples per round trip. Once the dispersion of trains shows the bottleneck's rate, it grows at
//! once to an eighth of that, and little more than doubles per round trip up to nine tenths: trains show the whole
//! bottleneck also to flows that share it, and flows that start together fill it at any part of what each of them
//! sees. A queue longer than that of the flow's own trains reduces the rate at once; one that stands for several
//! reports ends the start with the recent delivery rate. Queues too short to show in the delay are detected by loss:
//! of a train longer than the queue while the rate is low, and of the excess over the bottleneck at the end.

use super::round::SPREAD;
use super::{HOST_NOISE, Haul, Phase};
use crate::{Remembered, Signals, pacer};
use base::{Rate, Span, Time};
use std::collections::VecDeque;

/// Growth per round trip without knowledge, far below the trains' rate, and nearer to it.
const BLIND_GROWTH: f64 = 3.0;
const FAST_GROWTH: f64 = 12.0;
const CAUTIOUS_GROWTH: f64 = 2.4;
/// Growth per round trip if trains are unreliable.
const GROWTH_WITHOUT_TRAINS: f64 = 2.0;
/// Rounds without train samples after which none are expected, and growth must not overflow a queue of one
/// bandwidth-delay product.
const BLIND_ROUNDS: u32 = 3;
/// Factor by which the trains' rate is exceeded at the end, and for how many rounds.
const OVERSHOOT: f64 = 1.12;
const OVERSHOOT_ROUNDS: u32 = 1;
/// Further rounds of slower growth before the rate doubles: trains of late hosts show a tenth too little, and
/// doubling from there would overflow a queue of one bandwidth-delay product.
const SLOW_ROUNDS: u32 = 2;
const SLOW_GROWTH: f64 = 1.3;
/// With more sent than the path carries, at most this share arrives: between all of it and the share that
/// [`OVERSHOOT`] leaves.
const MAX_ARRIVED_WHEN_FULL: f64 = 0.95;
/// Share of the trains' rate that is aimed at.
const TRAIN_RATE_SHARE: f64 = 0.96;
/// The same before enough trains agree.
const DOUBTFUL_RATE_SHARE: f64 = 0.4;
/// Share of it up to which growth is fast, since others may start as well, and ten of them just overfill the path.
const FAST_RATE_SHARE: f64 = 0.12;
/// Gain from the first sign of a queue until it is confirmed or gone.
const HELD_BACK_GAIN: f64 = 0.5;
/// Trains disagree if their quartiles differ by more than this factor.
const MAX_QUARTILE_RATIO: f64 = 2.0;
/// The same if delays vary by more than a train takes to pass.
const MAX_NOISY_QUARTILE_RATIO: f64 = 1.2;
/// Dispersion samples that are kept; their median is used.
const MAX_SAMPLES: usize = 15;
/// A delay above this part of the round trip is a queue even for an application-limited flow.
const CLEAR_QUEUE: f64 = 0.12;
/// Trains that must agree.
const MIN_TRAINS: usize = 6;
/// Successive reports of a queue that end the start.
const QUEUED_REPORTS: u32 = 3;
/// Recent deliveries that are kept.
const MAX_DELIVERIES: usize = 64;
/// Longest time for bytes sent back to back, at the rate reached so far.
const MAX_GROUP_TIME: Span = Span::from_millis(10);
/// Most bytes sent back to back: 300 microseconds at 400 Gbit/s.
const MAX_GROUP_BYTES: u64 = 16 << 20;
/// Bytes of a full train.
const TRAIN_BYTES: u64 = 66_000;
/// Packets of the first trains; with fewer, a host that is late by a tenth of a millisecond distorts the rate.
const FIRST_TRAIN_PACKETS: u64 = 32;
/// Longest time for a train to pass the bottleneck.
const MAX_TRAIN_TIME: Span = Span::from_millis(2);
/// Packets of a train that almost any queue can take.
const SHORT_TRAIN_PACKETS: u64 = 4;
/// The rate counts as used if more than its part in this number arrives.
const USED_RATE_RATIO: f64 = 4.0;
/// A queue shorter than this part of the round trip may have cut a first flight that left at once.
const SHORT_QUEUE: f64 = 0.25;
/// Rounds without growth that end the start.
const FLAT_ROUNDS: u32 = 3;

/// The step of the start.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Grow up to the rate that trains show or that is known.
    Seek,
    /// Exceed it slightly to see whether a queue builds up.
    Exceed { rounds: u32 },
    /// None did, so trains are unreliable here.
    Distrust,
}

#[derive(Debug)]
pub(super) struct Start {
    /// Rates that trains showed, newest last.
    train_rates: VecDeque<f64>,
    /// A known or remembered rate.
    known: Option<f64>,
    /// The remembered rate of an earlier connection, not verified yet.
    remembered: Option<Remembered>,
    /// The rate at which the start began anew, which is known to be available.
    min_rate: f64,
    step: Step,
    queued_reports: u32,
    queued_since: Time,
    /// Times and total bytes delivered.
    deliveries: VecDeque<(Time, u64)>,
    flat_rounds: u32,
    best_rate: f64,
    /// Rounds that were not application-limited.
    rounds: u32,
    /// The round up to which a rate without knowledge grows slowly, since it may be near the goal.
    slow_until_round: u32,
    /// Whether the newest report saw a queue that noise does not explain.
    unexplained_queue: bool,
    /// Whether delays vary by more than a train takes to pass.
    noisy_delay: bool,
    /// The longest queue that a report of this round, and of the previous one, saw, in seconds.
    queue_seen: [f64; 2],
    /// The longest train of this round and of the previous one.
    longest_trains: [u64; 2],
    /// Most bytes sent back to back, since a queue shorter than longer trains cut them.
    max_train: u64,
    /// The same, as an earlier connection found it.
    remembered_train: Option<u64>,
}

impl Start {
    pub(super) fn new(known: Option<f64>) -> Start {
        Start {
            train_rates: VecDeque::new(),
            known,
            remembered: None,
            min_rate: 0.0,
            step: Step::Seek,
            queued_reports: 0,
            queued_since: Time::ZERO,
            deliveries: VecDeque::new(),
            flat_rounds: 0,
            best_rate: 0.0,
            rounds: 0,
            slow_until_round: 0,
            unexplained_queue: false,
            noisy_delay: false,
            queue_seen: [0.0; 2],
            longest_trains: [0; 2],
            max_train: u64::MAX,
            remembered_train: None,
        }
    }

    /// Starts from `rate`, which is delivered, so near the goal that blind growth would overshoot.
    pub(super) fn from_rate(rate: f64) -> Start {
        Start { min_rate: rate, rounds: BLIND_ROUNDS, ..Start::new(None) }
    }

    /// Restarts after an idle time, since earlier deliveries do not measure the present rate.
    pub(super) fn restart(&mut self) {
        self.deliveries.clear();
        self.queued_reports = 0;
        self.unexplained_queue = false;
        self.flat_rounds = 0;
        self.best_rate = 0.0;
    }

    /// The first flight without knowledge: the initial `window`, or nothing if the start began anew.
    pub(super) fn first_flight(&self, window: u64) -> u64 {
        if self.min_rate > 0.0 { 0 } else { window }
    }

    /// The gain on the rate reached so far.
    pub(super) fn gain(&self) -> f64 {
        if self.unexplained_queue { HELD_BACK_GAIN } else { 1.0 }
    }

    pub(super) fn on_sent(&mut self, bytes: u64) {
        self.longest_trains[0] = self.longest_trains[0].max(bytes);
    }

    pub(super) fn with_known_rate(rate: f64) -> Start {
        Start::new(Some(rate))
    }

    pub(super) fn set_remembered(&mut self, memory: Option<Remembered>) {
        self.remembered = memory;
        self.remembered_train = memory.and_then(|m| m.train);
        self.max_train = self.remembered_train.unwrap_or(self.max_train);
    }

    /// The remembered length of trains that the queue takes.
    pub(super) fn remembered_train(&self) -> Option<u64> {
        self.remembered_train
    }

    /// Careful Resume (RFC 9959): once the first packets have arrived without loss and the round trip matches the
    /// remembered one, half of the remembered rate is used at once, and the rest once that has arrived.
    fn resume(&mut self, s: &Signals) -> Option<f64> {
        let memory = self.remembered.take_if(|_| s.acked > 0)?;
        if !memory.fits(s.min_rtt) && self.remembered_train.take().is_some() {
            self.max_train = u64::MAX;
        }
        if s.lost > 0 || self.known.is_some() || !memory.fits(s.min_rtt) {
            return None;
        }
        let rate = memory.rate.bytes_per_sec() as f64;
        self.known = Some(rate);
        Some(rate / 2.0)
    }

    /// Whether train samples are still useful.
    pub(super) fn wants_trains(&self) -> bool {
        self.known.is_none() && !matches!(self.step, Step::Distrust)
    }

    pub(super) fn name(&self) -> &'static str {
        match (self.known, self.train_rates.len()) {
            (Some(_), _) => "start:known",
            (None, 0..MIN_TRAINS) => "start",
            (None, _) => "start:trains",
        }
    }

    /// The median rate of trains, and the number of samples.
    fn bottleneck_rate(&self) -> Option<(f64, usize)> {
        let mut sorted: Vec<f64> = self.train_rates.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).map(|m| (*m, sorted.len()))
    }

    /// The rate that enough trains agree on.
    fn agreed_rate(&self) -> Option<f64> {
        self.bottleneck_rate()
            .filter(|(_, n)| *n >= MIN_TRAINS && !self.trains_are_unreliable())
            .map(|(rate, _)| rate)
    }

    /// Whether train samples are unreliable, since they disagree with each other or with what was found since: the
    /// delay of the path varies by itself. If that is known, few samples are unreliable, too.
    fn trains_are_unreliable(&self) -> bool {
        let mut sorted: Vec<f64> = self.train_rates.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let apart = if self.noisy_delay { MAX_NOISY_QUARTILE_RATIO } else { MAX_QUARTILE_RATIO };
        match (self.step, n) {
            (Step::Distrust, _) => true,
            (_, MIN_TRAINS..) => sorted[n * 3 / 4] > sorted[n / 4] * apart,
            _ => self.noisy_delay,
        }
    }

    /// The rate to grow to, and the growth per round trip.
    fn target_and_growth(&self, rate: f64) -> (f64, f64) {
        let exceed = matches!(self.step, Step::Exceed { .. });
        let blind = match self.rounds {
            n if n < self.slow_until_round => SLOW_GROWTH,
            BLIND_ROUNDS.. => GROWTH_WITHOUT_TRAINS,
            _ => BLIND_GROWTH,
        };
        let blindly = self.noisy_delay && self.known.is_none() && self.trains_are_unreliable();
        match (self.known, self.bottleneck_rate()) {
            _ if blindly || matches!(self.step, Step::Distrust) => (f64::INFINITY, blind),
            (Some(known), _) if exceed => (known * OVERSHOOT, GROWTH_WITHOUT_TRAINS),
            (Some(known), _) => (known, FAST_GROWTH),
            (None, Some((narrow, _))) if exceed => (narrow * OVERSHOOT, GROWTH_WITHOUT_TRAINS),
            (None, Some((narrow, n))) => {
                let ceiling = if n >= MIN_TRAINS { TRAIN_RATE_SHARE } else { DOUBTFUL_RATE_SHARE };
                if rate < narrow * FAST_RATE_SHARE {
                    (narrow * FAST_RATE_SHARE, FAST_GROWTH)
                } else {
                    (narrow * ceiling, CAUTIOUS_GROWTH)
                }
            }
            (None, None) => (f64::INFINITY, blind),
        }
    }

    /// Bytes sent back to back: whole trains, since their dispersion is measured, but none that takes long to pass.
    /// Until one has been measured, larger groups, which take longer to arrive. `first` is the initial window.
    pub(super) fn quantum(&self, rate: Rate, packet: u64, first: u64, rtt: f64) -> u64 {
        let usual = pacer::quantum(rate, packet);
        let wished = match self.bottleneck_rate() {
            _ if !self.wants_trains() => usual,
            None => {
                let time = Span::from_secs_f64(rtt / 8.0).min(MAX_GROUP_TIME);
                let group = rate.bytes_in(time).min(MAX_GROUP_BYTES);
                usual.max(group).max(first.min(FIRST_TRAIN_PACKETS * packet))
            }
            Some((narrowest, _)) => {
                let short = Rate::from_bytes_per_sec(narrowest as u64).bytes_in(MAX_TRAIN_TIME);
                usual.max(short.clamp(8 * packet, TRAIN_BYTES.max(8 * packet)) / packet * packet)
            }
        };
        wished.min(self.max_train).max(2 * packet)
    }

    /// Handles heavy loss in a round of which `share` arrived, with trains of `train` bytes, at a rate `far_below` the
    /// bottleneck's, and noise of `reach`. Returns whether the trains were too long for the queue, in which case they are
    /// shortened.
    fn shorten_trains(&mut self, train: u64, share: f64, far_below: bool, reach: f64, packet: u64) -> bool {
        let long =
            train > SHORT_TRAIN_PACKETS * packet && far_below && self.queue_seen.iter().all(|q| *q <= reach);
        if long {
            let passes = (train as f64 * share.min(0.5)) as u64 / packet;
            self.max_train = passes.max(SHORT_TRAIN_PACKETS) * packet;
            self.flat_rounds = 0;
        }
        long
    }

    fn update(&mut self, s: &Signals, rtt: f64, queue: Option<f64>, (noise, reach, spread): (f64, f64, f64)) {
        if let Some(rate) = s.dispersion {
            self.train_rates.push_back(rate.bytes_per_sec() as f64);
            if self.train_rates.len() > MAX_SAMPLES {
                self.train_rates.pop_front();
            }
        }
        if s.round_start {
            self.longest_trains = [0, self.longest_trains[0]];
            self.queue_seen = [0.0, self.queue_seen[0]];
        }
        if let Some(q) = queue {
            let longest = self.longest_trains[0].max(self.longest_trains[1]) as f64;
            let own = self.bottleneck_rate().map_or(0.0, |(narrow, _)| longest / narrow);
            let limit = (rtt / 24.0).max(2.0 * HOST_NOISE).max(own + HOST_NOISE) + 3.0 * noise;
            self.noisy_delay = self
                .bottleneck_rate()
                .is_some_and(|(narrow, _)| spread > (longest / narrow).max(SPREAD * HOST_NOISE));
            self.unexplained_queue = q > limit.max(reach).max(spread) && self.known.is_none();
            self.queue_seen[0] = self.queue_seen[0].max(if q > limit { q } else { 0.0 });
            self.queued_reports = if q > limit { self.queued_reports + 1 } else { 0 };
            if self.queued_reports <= 1 {
                self.queued_since = s.now;
            }
        }
        // At high rates there are hundreds of reports per round trip; what is kept must reach back for more than one.
        let spacing = Span::from_secs_f64(rtt * 1.5 / MAX_DELIVERIES as f64);
        if self.deliveries.iter().rev().nth(1).is_some_and(|(t, ..)| s.now.since(*t) < spacing) {
            self.deliveries.pop_back();
        }
        self.deliveries.push_back((s.now, s.delivered));
        if self.deliveries.len() > MAX_DELIVERIES {
            self.deliveries.pop_front();
        }
    }

    /// Whether a queue stood for several reports and longer than a train takes.
    fn queue_stands(&self, now: Time, rtt: f64) -> bool {
        self.queued_reports >= QUEUED_REPORTS && now.since(self.queued_since).as_secs_f64() > rtt / 8.0
    }

    /// The delivery rate over the last part of a round trip, longer where noise bunches packets. While a queue
    /// stands, only since it built up, because the path was not full before.
    fn recent_rate(&self, rtt: f64, noise: f64) -> Option<f64> {
        let (now, total) = *self.deliveries.back()?;
        let mut window = Span::from_secs_f64((rtt / 6.0).max(0.004));
        if self.queued_reports >= QUEUED_REPORTS {
            window = window.min(now.since(self.queued_since)).max(Span::from_millis(1));
        }
        window = window.max(Span::from_secs_f64(noise.min(rtt)));
        let (then, before) = *self.deliveries.iter().rev().find(|(t, _)| now.since(*t) >= window)?;
        Some(total.saturating_sub(before) as f64 / now.since(then).as_secs_f64())
    }
}

impl Haul {
    pub(super) fn on_start(&mut self, s: &Signals) {
        let (rtt, queue) = (self.rtt(), self.min_rtt.queueing_delay(s));
        let noise = (self.round.noise(), self.round.noise_reach(), self.round.noise_range());
        let congested = s.round_start && self.is_congested();
        let first = self.is_first_flight(s);
        let Phase::Start(start) = &mut self.phase else { return };
        start.update(s, rtt, queue, noise);
        let knew_trains = start.remembered_train().is_some();
        if let Some(half) = start.resume(s) {
            self.rate = self.rate.max(half);
        }
        if knew_trains && start.remembered_train().is_none() {
            // It was another path's.
            self.losses.set_overflow_delay(f64::INFINITY);
        }
        self.bottleneck = start.bottleneck_rate().map(|(r, _)| r).or(self.bottleneck);
        let limited = s.app_limited || s.rate.is_some_and(|r| r.app_limited);
        // The first packets of an application cause no queue; their slight delay is that of the peer's host opening
        // files.
        let queued =
            start.queue_stands(s.now, rtt) && (!limited || self.round.max_delay() > rtt * CLEAR_QUEUE);
        let arrived = self.round.counts().delivered_share();
        // What few trains of a first flight show is worth little where delays vary.
        let far_below = first || start.bottleneck_rate().is_none_or(|(narrow, _)| self.rate < narrow / 2.0);
        // A burst that a short queue cut has met that queue.
        let reach = if first { noise.1.max(rtt * SHORT_QUEUE) } else { noise.1 };
        let train = self.decision.quantum;
        if congested && start.shorten_trains(train, arrived, far_below, reach, self.packet) {
            let x = s.rate.map_or(self.rate / 2.0, |r| r.rate.bytes_per_sec() as f64);
            // A sample of the first flight is measured over the time before it, too.
            let acked = self.round.counts().acked as f64 * self.packet as f64 / rtt;
            self.rate = self.rate.min(x.max(acked)).max(start.min_rate);
            self.losses.begin_recovery(s.now);
            return;
        }
        if congested || queued {
            self.on_path_full(s, congested);
            return;
        }
        // Of an application-limited flow, or its first packets, only deliveries at the rate itself count.
        let arrives = s.rate.is_some_and(|r| r.rate.bytes_per_sec() as f64 * USED_RATE_RATIO > self.rate);
        if s.acked > 0 && !start.unexplained_queue && (!limited || arrives) {
            let (ceiling, growth) = start.target_and_growth(self.rate);
            // Continuous growth by a factor g per round trip needs (g ln g) new bytes for each one that arrives,
            // because those that arrive were sent a round trip ago.
            let step = growth * growth.ln() * s.acked as f64 / rtt;
            if self.rate < ceiling {
                self.rate = (self.rate + step).min(ceiling);
            }
        }
        if s.round_start && !limited {
            self.on_start_round_end(s);
        }
    }

    /// Whether hardly more than the first flight has been delivered.
    fn is_first_flight(&self, s: &Signals) -> bool {
        s.delivered <= 2 * self.initial_window()
    }

    /// Handles signs of a full path. It is not full if noise explains the delay, and the delivery rate grew lately or in the
    /// last round, or hardly more than the first flight has been delivered.
    fn on_path_full(&mut self, s: &Signals, congested: bool) {
        let (rtt, reach, much) = (self.rtt(), self.round.noise_reach(), self.has_heavy_loss());
        let first = self.is_first_flight(s);
        let Phase::Start(start) = &mut self.phase else { return };
        let lately = start.recent_rate(rtt, reach);
        let noise = !congested && self.round.standing_queue().is_some_and(|q| q < reach);
        let grows = self.min_rtt.delivery_grows(s.now);
        if congested && !much && grows || noise && (grows || first || start.flat_rounds == 0) {
            start.queued_reports = 0;
            return;
        }
        let sample = s.rate.map(|r| r.rate.bytes_per_sec() as f64);
        // Where little arrives, no queue overflowed.
        if congested && sample.is_some_and(|x| x > self.rate / 4.0) {
            self.losses.on_overflow(self.round.max_delay_of_two_rounds());
        }
        let rate = lately.or(sample).unwrap_or(self.rate / 2.0).max(start.min_rate).min(self.rate);
        // The trains' rate may be available although less was delivered lately, if a busy host sent less.
        let shown = start.agreed_rate();
        // A flow that joins a busy path has not seen the path's rate arrive.
        let path = shown.unwrap_or(rate);
        self.bottleneck = Some(self.bottleneck.map_or(path, |n| n.max(path)));
        let shown = shown.map_or(rate, |r| r * TRAIN_RATE_SHARE).min(self.rate);
        self.steady.begin(self.round.count, rate.max(shown));
        self.end_start(rate, s.inflight, s.now);
        // Hardly more than the first flight was sent: that it was answered late may be the peer's host.
        if !congested && self.rate * rtt <= self.initial_window() as f64 {
            self.steady.suspect_false_start(self.round.count);
        }
    }

    fn on_start_round_end(&mut self, s: &Signals) {
        let Some(r) = s.rate else { return };
        let x = r.rate.bytes_per_sec() as f64;
        let arrived = self.round.counts().delivered_share();
        let Phase::Start(start) = &mut self.phase else { return };
        let (ceiling, _) = start.target_and_growth(self.rate);
        start.rounds = start.rounds.saturating_add(1);
        let there = self.rate >= 0.98 * ceiling && x >= 0.85 * self.rate;
        start.flat_rounds = if x > start.best_rate * 1.1 { 0 } else { start.flat_rounds + 1 };
        start.best_rate = start.best_rate.max(x);
        if there {
            let remembered = start.known.filter(|_| start.remembered_train().is_some());
            if let (Step::Seek, Some(rate)) = (start.step, remembered) {
                // More would overflow a queue that is known to be short. It is tried later, in small steps.
                return self.end_start_below(rate, s);
            }
            match start.step {
                // The trains' or the known rate is available; try whether there is more.
                Step::Seek => start.step = Step::Exceed { rounds: 0 },
                Step::Exceed { rounds } if rounds < OVERSHOOT_ROUNDS => {
                    start.step = Step::Exceed { rounds: rounds + 1 }
                }
                // More was sent but did not arrive, so a queue too short to show overflows.
                Step::Exceed { .. } if arrived < MAX_ARRIVED_WHEN_FULL => return self.on_path_full(s, true),
                // There is more, without a queue. A known rate was too low, and trains are used next; if trains were,
                // they do not show this path's rate.
                Step::Exceed { .. } => {
                    let known = start.known.take().is_some();
                    start.step = if known { Step::Seek } else { Step::Distrust };
                    start.slow_until_round = start.rounds.saturating_add(SLOW_ROUNDS);
                }
                Step::Distrust => {}
            }
            start.flat_rounds = 0;
        } else if start.flat_rounds >= FLAT_ROUNDS {
            if start.known.take().is_some() {
                // The known rate was never used or is not available: search as if nothing were known.
                start.flat_rounds = 0;
                self.rate = x.max(self.rate / 4.0);
            } else {
                self.steady.begin(self.round.count, x);
                self.end_start(x, s.inflight, s.now);
            }
        }
    }
}
