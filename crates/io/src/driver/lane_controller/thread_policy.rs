//! Decides from measurements which worker threads run. Has no clock.
//!
//! A thread is worth having where a processor is free for it. Whether one is, is looked at before it begins: idle time,
//! while data flows at a rate that has settled. While it works it is looked at by how long it waits to run. And because
//! neither tells what it is worth, the rate with it is compared with the rate without it, when it begins and now and then
//! later. One that is not worth it rests, for longer each time.

use base::{Span, Time};

/// How often it is looked.
pub(super) const EVERY: Span = Span::from_millis(200);
/// From this share of its time on, the loop's thread is what limits the rate.
const BUSY: f64 = 0.9;
/// Below this share, one lane fewer does.
const IDLE_SHARE: f64 = 0.35;
/// Looks in a row at a lazy thread after which a lane goes.
const IDLE_SAMPLES: u32 = 25;
/// Processors that must be free for a further thread.
const FREE: f64 = 0.6;
/// With lanes by need, a lane that brought less than this goes.
const GAIN: f64 = 1.03;
/// With lanes by order, threads that cost more than this rest.
const COST: f64 = 0.97;
/// A loop that waits for this share of the time for which it has something to do has no processor to itself.
const LATE: f64 = 0.2;
/// From this multiple of what it was on, the rate has not settled.
const GROWING: f64 = 1.5;
/// Looks before rates are compared: congestion control has to find them. And those that are compared.
const SETTLE_SAMPLES: u32 = 3;
const TRIAL_SAMPLES: u32 = 3;
/// How long a thread rests that was not worth it: the first time, and at most.
const REST: Span = Span::from_secs(5);
const MAX_REST: Span = Span::from_secs(60);
/// After how long threads that were worth it are weighed again: the first time, and at most.
const PROVE: Span = Span::from_secs(10);
const MAX_PROVE: Span = Span::from_secs(160);

/// What was measured in the last interval. Threads are bits: bit `k` is the thread of socket `k`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Measurement {
    pub now: Time,
    /// Share of the interval for which the loop's thread ran.
    pub busy: f64,
    /// Processors that were free on average.
    pub free: f64,
    /// Bytes of payload per second, both ways.
    pub rate: f64,
    /// Share of the time for which it had something to do that the loop's thread waited for a processor.
    pub late: f64,
    /// Threads that had to wait for a processor for much of the time for which they had something to do.
    pub waited: u64,
}

/// A decision, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadChange {
    /// These begin, on trial.
    Begin(u64),
    /// These rest, since they have to wait for their processors.
    Crowded(u64),
    /// These rest, since it is no slower without them.
    Useless(u64),
    /// These rest for a moment, to see what they are worth.
    Measure(u64),
    /// These were worth it and go on.
    Keep(u64),
    /// One lane fewer does.
    Close,
}

/// A comparison of rates with and without some threads.
#[derive(Clone, Copy, Debug)]
struct Trial {
    threads: u64,
    /// They have begun for it; otherwise they rest for it.
    begun: bool,
    /// The rate before.
    before: f64,
    looks: u32,
    seen: f64,
}

/// When a suspended thread may start again.
#[derive(Clone, Copy, Debug)]
struct Suspension {
    until: Time,
    next: Span,
}

/// The policy and its state.
#[derive(Debug)]
pub(super) struct ThreadPolicy {
    /// Lanes are there by order: their threads work unless that costs. Otherwise by need.
    ordered: bool,
    /// Sockets that lanes are spread over, the loop's own included; and at most.
    lanes: u16,
    most: u16,
    working: u64,
    rests: Vec<Suspension>,
    trial: Option<Trial>,
    /// The rate of late, while nothing was tried.
    recent: Option<f64>,
    lazy: u32,
    prove_at: Time,
    prove: Span,
}

impl ThreadPolicy {
    /// For lanes by order or by need, `most` at most, 1 to 64.
    pub fn new(ordered: bool, most: u16) -> ThreadPolicy {
        let rest = Suspension { until: Time::ZERO, next: REST };
        ThreadPolicy {
            ordered,
            lanes: if ordered { most } else { 1 },
            most,
            working: 0,
            rests: vec![rest; usize::from(most)],
            trial: None,
            recent: None,
            lazy: 0,
            prove_at: Time::ZERO,
            prove: PROVE,
        }
    }

    /// Threads that are to work beside the loop.
    pub fn working(&self) -> u64 {
        self.working
    }

    /// Whether rates with threads and without are being compared.
    pub fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// Sockets that lanes are to be spread over.
    pub fn lanes(&self) -> u16 {
        self.lanes
    }

    /// No more sockets than these can be had.
    pub fn limit_to(&mut self, sockets: u16) {
        self.most = self.most.min(sockets);
        self.lanes = self.lanes.min(sockets);
        self.working &= (1u64 << (sockets.clamp(1, 64) - 1) << 1).wrapping_sub(1);
    }

    /// Discards earlier measurements.
    pub fn forget(&mut self) {
        self.recent = None;
    }

    /// Decides. [`ThreadPolicy::working`] and [`ThreadPolicy::lanes`] may have changed.
    pub fn decide(&mut self, l: &Measurement) -> Option<ThreadChange> {
        let crowded = l.waited & self.working;
        if crowded != 0 {
            self.suspend(l.now, crowded);
            (self.trial, self.recent, self.prove_at) = (None, None, l.now + self.prove);
            return Some(ThreadChange::Crowded(crowded));
        }
        if self.trial.is_some() {
            return self.evaluate_trial(l);
        }
        let steady = self.is_steady(l);
        let lazy = self.close_idle_lane(l);
        if lazy.is_some() || !steady { lazy } else { self.begin(l).or_else(|| self.start_measurement(l)) }
    }

    /// What is free while nothing flows does not tell what is free while something does, and a rate that still grows is
    /// none to compare with: two looks in a row have to be about the same.
    fn is_steady(&mut self, l: &Measurement) -> bool {
        let before = self.recent.filter(|r| l.rate > 0.0 && l.rate < r * GROWING);
        self.recent = Some(before.map_or(l.rate, |r| (r + l.rate) / 2.0));
        before.is_some()
    }

    fn suspend(&mut self, now: Time, threads: u64) {
        self.working &= !threads;
        for (_, r) in self.rests.iter_mut().enumerate().filter(|(k, _)| threads >> k & 1 == 1) {
            *r = Suspension { until: now + r.next, next: (r.next * 2).min(MAX_REST) };
        }
    }

    fn evaluate_trial(&mut self, l: &Measurement) -> Option<ThreadChange> {
        let t = self.trial.as_mut()?;
        t.looks += 1;
        if t.looks <= SETTLE_SAMPLES {
            return None;
        }
        t.seen += l.rate / f64::from(TRIAL_SAMPLES);
        if t.looks < SETTLE_SAMPLES + TRIAL_SAMPLES {
            return None;
        }
        let (with, without) = if t.begun { (t.seen, t.before) } else { (t.before, t.seen) };
        let threads = t.threads;
        (self.trial, self.recent) = (None, None);
        if with >= without * if self.ordered { COST } else { GAIN } {
            self.working |= threads;
            self.prove_at = l.now + self.prove;
            self.prove = (self.prove * 2).min(MAX_PROVE);
            for (_, r) in self.rests.iter_mut().enumerate().filter(|(k, _)| threads >> k & 1 == 1) {
                r.next = REST;
            }
            return Some(ThreadChange::Keep(threads));
        }
        self.prove = PROVE;
        self.suspend(l.now, threads);
        Some(ThreadChange::Useless(threads))
    }

    fn close_idle_lane(&mut self, l: &Measurement) -> Option<ThreadChange> {
        self.lazy = if l.busy < IDLE_SHARE { self.lazy + 1 } else { 0 };
        if self.ordered || self.lanes == 1 || self.lazy < IDLE_SAMPLES {
            return None;
        }
        (self.lazy, self.recent) = (0, None);
        self.lanes -= 1;
        self.working &= !(1 << self.lanes);
        Some(ThreadChange::Close)
    }

    /// Threads that rest begin where processors are free: by order all of them, by need one after another. While the loop
    /// itself waits for a processor, one that is free is for the loop.
    fn begin(&mut self, l: &Measurement) -> Option<ThreadChange> {
        let needed = l.late < LATE && (self.ordered || l.busy >= BUSY);
        let room = if needed { (l.free / FREE) as usize } else { 0 };
        let room = if self.ordered { room } else { room.min(1) };
        let rested = |k: &u16| self.working >> k & 1 == 0 && self.rests[usize::from(*k)].until <= l.now;
        let threads = (1..self.most).filter(rested).take(room).fold(0, |all, k| all | 1u64 << k);
        let (before, true) = (self.recent?, threads != 0) else { return None };
        self.working |= threads;
        self.lanes = self.lanes.max(64 - threads.leading_zeros() as u16);
        self.trial = Some(Trial { threads, begun: true, before, looks: 0, seen: 0.0 });
        Some(ThreadChange::Begin(threads))
    }

    /// All rest for a moment: what is free, and what limits, changes while a connection lives.
    fn start_measurement(&mut self, l: &Measurement) -> Option<ThreadChange> {
        let (before, threads) = (self.recent?, self.working);
        if threads == 0 || l.now < self.prove_at {
            return None;
        }
        self.working = 0;
        self.trial = Some(Trial { threads, begun: false, before, looks: 0, seen: 0.0 });
        Some(ThreadChange::Measure(threads))
    }
}

#[cfg(test)]
mod tests;
