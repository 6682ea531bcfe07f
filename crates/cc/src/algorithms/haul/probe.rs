//! Probes for more bandwidth where delay cannot be trusted.
//!
//! Where delays differ by themselves by more than the queue that is aimed at, or a queue seems to stand that sending less
//! does not shorten, the law rests at any rate. So a round is sent faster now and then: if more arrives, the path was not
//! full, and the delay that stood before was no queue.

use super::Haul;
use crate::Signals;
use base::Time;

/// Rates of the first probe, and of those that follow ones that found more.
const GAINS: [f64; 3] = [1.25, 1.5, 2.0];
/// More has arrived when it is this part of what was added.
const ARRIVES: f64 = 0.6;
/// Rounds until the next probe, and the most after ones that found nothing.
const PAUSE: u32 = 8;
const LONGEST_PAUSE: u32 = 256;
/// Rates are measured over so many deviations of the delay: the ends of the time are as uncertain as delays are.
const MEASURED: f64 = 32.0;
/// Rounds of which the ends are kept, and the longest probe.
const KEPT: usize = 8;

/// A probe under way.
#[derive(Clone, Copy, Debug)]
struct Under {
    gain: f64,
    /// Rounds that it is sent for, and that have ended.
    rounds: u32,
    age: u32,
    /// What arrived before it (bytes per second), and the queue that stood.
    before: f64,
    standing: f64,
    /// When what was sent in it began to arrive, and the bytes delivered until then.
    mark: (Time, u64),
}

/// The state of probes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Probe {
    under: Option<Under>,
    /// Rounds until the next one, and between them.
    wait: u32,
    pause: u32,
    /// A queue stands that sending less has not shortened.
    doubted: bool,
    /// Probes in a row that found more.
    found: usize,
    /// Ends of rounds with the bytes delivered until then, newest last.
    ends: [(Time, u64); KEPT],
    /// How many of them there are.
    known: usize,
}

impl Probe {
    pub(super) fn gain(&self) -> f64 {
        self.under.filter(|u| u.age < u.rounds).map_or(1.0, |u| u.gain)
    }

    /// Before or after a time at another rate: what was measured across it would be of no rate that was sent.
    pub(super) fn restart(&mut self) {
        (self.under, self.known, self.wait) = (None, 0, self.pause.max(PAUSE));
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under.is_some()
    }

    /// Sending less has not shortened the queue: it may be none.
    pub(super) fn doubt(&mut self) {
        self.doubted = true;
    }

    pub(super) fn end_of_round(&mut self, s: &Signals) {
        self.ends.rotate_left(1);
        self.ends[KEPT - 1] = (s.now, s.delivered);
        self.known = (self.known + 1).min(KEPT);
    }

    /// Begins a probe that lasts so many rounds, if it is time for one. `standing` is the queue.
    fn begin(&mut self, rounds: u32, standing: f64) {
        self.wait = self.wait.saturating_sub(1);
        let ago = rounds.max(2) as usize;
        if self.wait > 0 || self.known <= ago {
            return;
        }
        let before = rate(self.ends[KEPT - 1 - ago], self.ends[KEPT - 1]);
        let gain = GAINS[self.found.min(GAINS.len() - 1)];
        self.under = Some(Under { gain, rounds, age: 0, before, standing, mark: self.ends[KEPT - 1] });
    }
}

fn rate(from: (Time, u64), to: (Time, u64)) -> f64 {
    to.1.saturating_sub(from.1) as f64 / to.0.since(from.0).as_secs_f64().max(f64::MIN_POSITIVE)
}

impl Haul {
    /// A round has ended. True while a probe is under way.
    pub(super) fn on_probe(&mut self, s: &Signals) -> bool {
        let end = (s.now, s.delivered);
        let Some(under) = &mut self.probe.under else { return false };
        under.age += 1;
        if under.age == 1 {
            // What was sent before it has arrived.
            under.mark = end;
        }
        if under.age <= under.rounds {
            return true;
        }
        let under = *under;
        self.probe.under = None;
        self.losses.answer(s.now);
        let arrived = rate(under.mark, end);
        if arrived > under.before * (1.0 + (under.gain - 1.0) * ARRIVES) {
            self.probe.found += 1;
            (self.probe.pause, self.probe.wait) = (PAUSE, 1);
            self.rate = self.rate.max(arrived);
            let explained = if self.probe.doubted { f64::INFINITY } else { self.round.spread() };
            self.base.is_noise(under.standing.min(explained));
        } else {
            self.probe.doubted = false;
            self.probe.found = 0;
            self.probe.pause = (self.probe.pause.max(PAUSE) * 2).min(LONGEST_PAUSE);
            self.probe.wait = self.probe.pause;
        }
        true
    }

    /// Probes where noise is more than the queue aimed at, or explains the one that is `standing`.
    pub(super) fn probe(&mut self, target: f64, standing: f64) {
        let spread = self.round.spread();
        if self.probe.doubted || spread > target && standing < spread {
            let rounds = self.rounds_to_measure();
            self.probe.begin(rounds, standing);
        }
    }

    /// Rounds that a rate must be measured over, for what delays differ by not to matter.
    fn rounds_to_measure(&self) -> u32 {
        (self.round.deviation() * MEASURED / self.rtt()).ceil().clamp(1.0, KEPT as f64 - 2.0) as u32
    }

    /// What arrived in the last rounds (bytes per second), where one is too short to measure.
    pub(super) fn arrived_lately(&self) -> Option<f64> {
        let ago = self.rounds_to_measure() as usize;
        let last = KEPT - 1;
        (ago > 1 && self.probe.known > ago).then(|| rate(self.probe.ends[last - ago], self.probe.ends[last]))
    }
}
