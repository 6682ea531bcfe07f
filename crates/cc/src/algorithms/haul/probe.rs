//! Probes for bandwidth where delay is too noisy to steer by.
//!
//! Where delays vary by more than the target queue, or a queue seems to stand that lower rates do not shorten, the
//! law rests at any rate. A probe sends faster for some rounds: if more arrives, the path was not full, and the
//! standing delay was not a queue.

use super::Haul;
use crate::Signals;
use base::Time;

/// Gains of the first probe, and of those after successful ones.
const PROBE_GAINS: [f64; 3] = [1.25, 1.5, 2.0];
/// Part of the added rate that must arrive for a probe to be successful.
const MIN_ARRIVED: f64 = 0.6;
/// Rounds between probes, and the most after unsuccessful ones.
const MIN_PAUSE: u32 = 8;
const MAX_PAUSE: u32 = 256;
/// Time over which rates are measured, in deviations of the delay, which make the ends of the interval uncertain.
const MEASURED_DEVIATIONS: f64 = 32.0;
/// Rounds whose ends are kept, and the limit for the length of a probe.
const MAX_ROUNDS: usize = 8;

/// A running probe.
#[derive(Clone, Copy, Debug)]
struct RunningProbe {
    gain: f64,
    /// Rounds for which it is sent, and rounds that have ended.
    rounds: u32,
    elapsed_rounds: u32,
    /// The delivery rate before it (bytes per second), and the standing queue.
    rate_before: f64,
    queue_before: f64,
    /// When the probe's packets began to arrive, and the bytes delivered until then.
    start: (Time, u64),
}

/// The state of bandwidth probes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BandwidthProbe {
    running: Option<RunningProbe>,
    /// Rounds until the next probe, and the pause between probes.
    rounds_to_next: u32,
    pause: u32,
    /// Whether a queue stands that a lower rate has not shortened.
    queue_doubted: bool,
    /// Successive successful probes.
    successes: usize,
    /// Ends of rounds with the total bytes delivered, newest last.
    round_ends: [(Time, u64); MAX_ROUNDS],
    /// How many of them are valid.
    known_rounds: usize,
}

impl BandwidthProbe {
    pub(super) fn gain(&self) -> f64 {
        self.running.filter(|u| u.elapsed_rounds < u.rounds).map_or(1.0, |u| u.gain)
    }

    /// Restarts the measurement before or after a time at another rate, across which no rate can be measured.
    pub(super) fn restart(&mut self) {
        (self.running, self.known_rounds, self.rounds_to_next) = (None, 0, self.pause.max(MIN_PAUSE));
    }

    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Notes that a lower rate has not shortened the queue, so that it may not be one.
    pub(super) fn doubt_queue(&mut self) {
        self.queue_doubted = true;
    }

    pub(super) fn on_round_end(&mut self, s: &Signals) {
        self.round_ends.rotate_left(1);
        self.round_ends[MAX_ROUNDS - 1] = (s.now, s.delivered);
        self.known_rounds = (self.known_rounds + 1).min(MAX_ROUNDS);
    }

    /// Ends a probe without success.
    pub(super) fn fail(&mut self) {
        let pause = (self.pause.max(MIN_PAUSE) * 2).min(MAX_PAUSE);
        (self.running, self.queue_doubted, self.successes) = (None, false, 0);
        (self.pause, self.rounds_to_next) = (pause, pause);
    }

    /// Starts a probe of `rounds`, if one is due. `standing` is the standing queue.
    fn begin_if_due(&mut self, rounds: u32, standing: f64) {
        self.rounds_to_next = self.rounds_to_next.saturating_sub(1);
        let ago = rounds.max(2) as usize;
        if self.rounds_to_next > 0 || self.known_rounds <= ago {
            return;
        }
        let before = rate(self.round_ends[MAX_ROUNDS - 1 - ago], self.round_ends[MAX_ROUNDS - 1]);
        let gain = PROBE_GAINS[self.successes.min(PROBE_GAINS.len() - 1)];
        self.running = Some(RunningProbe {
            gain,
            rounds,
            elapsed_rounds: 0,
            rate_before: before,
            queue_before: standing,
            start: self.round_ends[MAX_ROUNDS - 1],
        });
    }
}

fn rate(from: (Time, u64), to: (Time, u64)) -> f64 {
    to.1.saturating_sub(from.1) as f64 / to.0.since(from.0).as_secs_f64().max(f64::MIN_POSITIVE)
}

impl Haul {
    /// Updates a running probe at the end of a round. True while one is running.
    pub(super) fn update_probe(&mut self, s: &Signals) -> bool {
        let end = (s.now, s.delivered);
        let Some(under) = &mut self.probe.running else { return false };
        under.elapsed_rounds += 1;
        if under.elapsed_rounds == 1 {
            // By now the packets sent before the probe have arrived.
            under.start = end;
        }
        if under.elapsed_rounds <= under.rounds {
            return true;
        }
        let under = *under;
        self.probe.running = None;
        self.losses.begin_recovery(s.now);
        let arrived = rate(under.start, end);
        if arrived > under.rate_before * (1.0 + (under.gain - 1.0) * MIN_ARRIVED) {
            self.probe.successes += 1;
            (self.probe.pause, self.probe.rounds_to_next) = (MIN_PAUSE, 1);
            self.rate = self.rate.max(arrived);
            let explained = if self.probe.queue_doubted { f64::INFINITY } else { self.round.noise_range() };
            self.min_rtt.add_noise(under.queue_before.min(explained));
        } else {
            self.probe.fail();
        }
        true
    }

    /// Starts a probe if the noise exceeds the target queue or explains the `standing` one.
    pub(super) fn probe_if_noisy(&mut self, target: f64, standing: f64) {
        let spread = self.round.noise_range();
        if self.probe.queue_doubted || spread > target && standing < spread {
            let rounds = self.rounds_to_measure();
            self.probe.begin_if_due(rounds, standing);
        }
    }

    /// Rounds over which a rate must be measured to be independent of the variation of delays.
    fn rounds_to_measure(&self) -> u32 {
        (self.round.deviation() * MEASURED_DEVIATIONS / self.rtt()).ceil().clamp(1.0, MAX_ROUNDS as f64 - 2.0)
            as u32
    }

    /// The delivery rate over the last rounds (bytes per second), where one round is too short to measure.
    pub(super) fn recent_delivery_rate(&self) -> Option<f64> {
        let ago = self.rounds_to_measure() as usize;
        let last = MAX_ROUNDS - 1;
        (ago > 1 && self.probe.known_rounds > ago)
            .then(|| rate(self.probe.round_ends[last - ago], self.probe.round_ends[last]))
    }
}
