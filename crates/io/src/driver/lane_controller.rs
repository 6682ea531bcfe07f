//! Decides how many lanes a client's connections have and which worker threads run, by load and free processors.

mod thread_policy;

use crate::clock::CpuTime;
use base::{Span, Time};
use core::fmt;
use core::str::FromStr;
use endpoint::{ConnId, Endpoint, MAX_SOCKETS};
use std::collections::BTreeMap;
use thread_policy::{Measurement, ThreadChange, ThreadPolicy};

/// How many lanes, and so threads, a driver uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Lanes {
    /// As many as are of use: one more when the thread of those that there are is busy all the time while processors are
    /// free, as long as that makes it faster.
    #[default]
    Auto,
    /// This many, 1 to [`endpoint::MAX_SOCKETS`].
    Count(u16),
}

impl FromStr for Lanes {
    type Err = InvalidLanes;

    fn from_str(text: &str) -> Result<Lanes, InvalidLanes> {
        if text == "auto" {
            return Ok(Lanes::Auto);
        }
        let n = text.parse().ok().filter(|n| (1..=MAX_SOCKETS).contains(n));
        n.map(Lanes::Count).ok_or_else(|| InvalidLanes(text.to_owned()))
    }
}

impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lanes::Auto => f.write_str("auto"),
            Lanes::Count(n) => write!(f, "{n}"),
        }
    }
}

/// An invalid number of lanes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no number of lanes: write auto, or a number from 1 to {MAX_SOCKETS}")]
pub struct InvalidLanes(String);

/// A thread that had to wait for this share of the time for which it had something to do has no processor to itself.
const WAITED: f64 = 0.3;
/// One that had something to do for less than this share of the time tells nothing.
const ACTIVE: f64 = 0.1;

/// Bytes a second below which nothing flows that a second thread could be for: any one thread seals and sends ten times as much.
/// What ends say to each other before they transfer anything looked like a rate that has settled, and threads began for it.
const TRICKLE: f64 = 10e6;

/// Run time and run-queue delay of a thread (`/proc/PID/schedstat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SchedStats {
    ran: Span,
    waited: Span,
}

impl SchedStats {
    /// Of a thread of this process. Where the system does not tell, nothing waits.
    fn of(thread: u32) -> SchedStats {
        SchedStats::read(&format!("/proc/self/task/{thread}/schedstat"))
    }

    /// Those of the calling thread.
    pub fn of_loop() -> SchedStats {
        SchedStats::read("/proc/thread-self/schedstat")
    }

    fn read(file: &str) -> SchedStats {
        std::fs::read_to_string(file).ok().and_then(|t| SchedStats::parse(&t)).unwrap_or_default()
    }

    /// Of Documentation/scheduler/sched-stats.rst: time spent on the processor, and on a run queue, in nanoseconds.
    fn parse(text: &str) -> Option<SchedStats> {
        let mut words = text.split_ascii_whitespace().map(|w| w.parse().map(Span::from_nanos));
        Some(SchedStats { ran: words.next()?.ok()?, waited: words.next()?.ok()? })
    }

    /// Shares of an interval of so many seconds: running, and waiting of the time for which there was something to do.
    pub fn shares(self, before: SchedStats, span: f64) -> (f64, f64) {
        let since = |now: Span, then: Span| now.as_secs_f64().max(then.as_secs_f64()) - then.as_secs_f64();
        let (ran, waited) = (since(self.ran, before.ran), since(self.waited, before.waited));
        (ran / span, if ran + waited < ACTIVE * span { 0.0 } else { waited / (ran + waited) })
    }
}

/// A sample, to be compared with the next one.
#[derive(Clone, Debug)]
struct Sample {
    at: Time,
    cpu: CpuTime,
    free: Span,
    bytes: u64,
    own: SchedStats,
    threads: Vec<SchedStats>,
}

/// Decides which worker threads run, and adds lanes to a client's connections or closes them.
#[derive(Debug)]
pub(super) struct LaneController {
    /// Processors that this process may use, as they were before threads were bound to some.
    processors: Vec<usize>,
    /// Those of them that its threads are to stay on.
    pool: Vec<usize>,
    rule: ThreadPolicy,
    /// All further threads work, whatever it costs.
    always: bool,
    most: u16,
    /// Lanes that were asked for, of each connection.
    asked: BTreeMap<ConnId, Vec<u32>>,
    last: Option<Sample>,
    next: Time,
    look_at: Time,
    /// No thread but the loop's has had anything to do of late.
    alone: bool,
    /// It was said that no processor is free.
    said: bool,
    /// What a test wishes: 1, that threads work; 2, that none has anything to do. And how often that has come about.
    #[cfg(test)]
    pub wish: std::sync::Arc<std::sync::atomic::AtomicU8>,
    #[cfg(test)]
    pub lent: std::sync::Arc<std::sync::atomic::AtomicU8>,
}

impl LaneController {
    /// For a driver of `most` sockets at most, whose threads stay on `cores`, if any are named.
    pub fn new(lanes: Lanes, most: u16, cores: &[usize], always: bool) -> LaneController {
        let processors = processors();
        let named = &cores[..cores.len().min(usize::from(most))];
        let pool = if named.is_empty() { processors.clone() } else { named.to_vec() };
        LaneController {
            processors,
            pool,
            rule: ThreadPolicy::new(lanes != Lanes::Auto, most),
            always,
            most,
            asked: BTreeMap::new(),
            last: None,
            next: Time::ZERO,
            look_at: Time::ZERO,
            alone: true,
            said: false,
            #[cfg(test)]
            wish: std::sync::Arc::default(),
            #[cfg(test)]
            lent: std::sync::Arc::default(),
        }
    }

    /// How many sockets lanes are to be spread over now.
    pub fn sockets(&self) -> u16 {
        self.rule.lanes()
    }

    /// Sockets, a bit each, whose threads have no processor that is worth it.
    pub fn spare(&self) -> u64 {
        if self.always { 0 } else { !self.rule.working() & !1 }
    }

    /// Whether the loop has the processors of all threads to itself.
    pub fn uses_loop_only(&self) -> bool {
        !self.always && self.alone && self.rule.working() == 0
    }

    /// Whether worker threads should exist, where `there` tells whether they do: from when one should work until none
    /// has had anything to do lately, but not while their benefit is measured.
    pub fn wants_threads(&self, there: bool) -> bool {
        #[cfg(test)]
        match self.wish.load(std::sync::atomic::Ordering::Relaxed) {
            0 => {}
            wish => return wish == 1,
        }
        if there {
            !self.uses_loop_only() || self.rule.is_trying()
        } else {
            self.most > 1 && (self.always || self.rule.working() != 0)
        }
    }

    /// Processors that threads may use that are bound to none.
    pub fn processors(&self) -> &[usize] {
        &self.processors
    }

    /// No more sockets than these can be had.
    pub fn limit_to(&mut self, sockets: u16) {
        self.rule.limit_to(sockets);
        self.most = self.most.min(sockets);
    }

    /// When to look next.
    pub fn next(&self) -> Time {
        self.next
    }

    /// Looks, if it is time: [`LaneController::sockets`] and [`LaneController::spare`] may have changed. `threads` are those of further
    /// sockets, in order, as the system numbers them.
    pub fn measure(&mut self, now: Time, endpoint: &Endpoint, threads: &[u32]) {
        // A connection that has just come up need not wait long for its lanes.
        self.next =
            now + if self.rule.lanes() > 1 { thread_policy::EVERY / 40 } else { thread_policy::EVERY };
        if now < self.look_at {
            return;
        }
        self.look_at = now + thread_policy::EVERY;
        let stats = endpoint.connections().filter_map(|c| endpoint.stats(c));
        let seen = Sample {
            at: now,
            cpu: CpuTime::of_thread(),
            free: idle_times(&self.pool).into_iter().fold(Span::ZERO, |all, s| all + s),
            bytes: stats.map(|s| s.payload_sent + s.payload_received).sum(),
            own: SchedStats::of_loop(),
            threads: threads.iter().map(|t| SchedStats::of(*t)).collect(),
        };
        let Some(before) = self.last.replace(seen.clone()) else { return };
        let span = now.since(before.at);
        if span > thread_policy::EVERY * 2 {
            // Nothing happened for a while: that tells nothing of what happens from now on.
            return self.rule.forget();
        }
        let span = span.as_secs_f64().max(1e-3);
        let idle = seen.free.as_secs_f64().max(before.free.as_secs_f64()) - before.free.as_secs_f64();
        let shares = |(now, then): (&SchedStats, &SchedStats)| now.shares(*then, span);
        let shares: Vec<_> = seen.threads.iter().zip(&before.threads).map(shares).collect();
        self.alone = shares.iter().all(|(ran, _)| *ran < ACTIVE);
        let waited = (1..).zip(&shares).filter(|(_, (_, waited))| *waited >= WAITED);
        let l = Measurement {
            now,
            busy: seen.cpu.since(before.cpu).total().as_secs_f64() / span,
            free: idle / span,
            rate: flow(seen.bytes.saturating_sub(before.bytes) as f64 / span),
            late: seen.own.shares(before.own, span).1,
            waited: waited.fold(0, |all, (k, _)| all | 1u64 << k),
        };
        if let Some(step) = self.rule.decide(&l) {
            self.report_change(step, &l);
        }
    }

    /// Says what has changed: loudly the first time that a thread loses its processor.
    fn report_change(&mut self, step: ThreadChange, l: &Measurement) {
        let rate = (l.rate * 8e-6) as u64;
        match step {
            ThreadChange::Crowded(threads) if !core::mem::replace(&mut self.said, true) => {
                let threads = names(threads);
                tracing::warn!(
                    "no processor is free for the threads of lanes {threads}: they rest until one is, and the others go on"
                );
            }
            ThreadChange::Crowded(threads) => {
                tracing::info!(
                    rate,
                    "no processor is free for the threads of lanes {}: they rest",
                    names(threads)
                );
            }
            ThreadChange::Useless(threads) => {
                tracing::info!(
                    rate,
                    "it is no slower without the threads of lanes {}: they rest",
                    names(threads)
                );
            }
            ThreadChange::Begin(threads) => {
                tracing::info!(rate, "processors are free: the threads of lanes {} work", names(threads));
            }
            ThreadChange::Measure(_) | ThreadChange::Keep(_) | ThreadChange::Close => {
                tracing::debug!(rate, ?step, "threads of lanes")
            }
        }
    }

    /// Makes each connection of this client use the sockets that are to be used.
    pub fn assign_lanes(&mut self, now: Time, endpoint: &mut Endpoint) {
        let clients: Vec<_> = endpoint.connections().filter(|c| endpoint.is_open_client(*c)).collect();
        self.asked.retain(|c, _| clients.contains(c));
        for conn in clients {
            let asked = self.asked.entry(conn).or_default();
            while asked.len() + 1 < usize::from(self.rule.lanes()) {
                let socket = asked.len() as u16 + 1;
                match endpoint.add_lane(now, conn, socket) {
                    Ok(lane) => asked.push(lane),
                    Err(error) => {
                        tracing::debug!(%error, "no further lane");
                        // Not asked for again: nothing in the reasons for it changes.
                        self.rule.limit_to(socket);
                    }
                }
            }
            while asked.len() + 1 > usize::from(self.rule.lanes()) {
                if let Some(lane) = asked.pop() {
                    endpoint.remove_path(now, conn, lane);
                }
            }
        }
    }
}

/// The rate that says something: none, where it is a trickle.
fn flow(rate: f64) -> f64 {
    if rate < TRICKLE { 0.0 } else { rate }
}

/// Numbers of threads, for people.
fn names(threads: u64) -> String {
    let each = (0..64).filter(|k| threads >> k & 1 == 1).map(|k: u32| k.to_string());
    each.collect::<Vec<_>>().join(", ")
}

/// Processors that this process may use.
pub(super) fn processors() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return vec![0] };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).collect()
}

/// For how long each of these processors has had nothing to do since the machine started. Zero where the system does not
/// tell.
pub(super) fn idle_times(cores: &[usize]) -> Vec<Span> {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    idle_ticks(&text, cores).iter().map(|n| Span::from_nanos(n.saturating_mul(tick))).collect()
}

/// proc(5): `cpuN user nice system idle iowait ...`, in ticks.
fn idle_ticks(text: &str, cores: &[usize]) -> Vec<u64> {
    let mut all = vec![0; cores.len()];
    let idle = |line: &str| -> Option<(usize, u64)> {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        Some((words.next()?.parse().ok()?, words.nth(3)?.parse().ok()?))
    };
    for (cpu, ticks) in text.lines().filter_map(idle) {
        all.iter_mut().zip(cores).filter(|(_, c)| **c == cpu).for_each(|(t, _)| *t = ticks);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_numbers_round_trip() {
        for good in ["auto", "1", "64"] {
            assert_eq!(good.parse::<Lanes>().unwrap().to_string(), good);
        }
        for bad in ["", "0", "65", "-1", "many"] {
            assert!(bad.parse::<Lanes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn proc_stat_idle_time_is_parsed() {
        let text = "cpu  9 9 9 9\ncpu0 1 2 3 400 5 6\ncpu1 1 2 3 70\ncpu12 0 0 0 1000 0\nintr 5\ncpu3 x\n";
        assert_eq!(idle_ticks(text, &[1, 0, 7]), [70, 400, 0]);
        assert_eq!(idle_ticks(text, &[12]), [1000]);
        assert_eq!(idle_ticks("", &[0]), [0]);
        assert!(!processors().is_empty());
    }

    #[test]
    fn low_rate_starts_no_threads() {
        // Messages about a transfer, a whole second of them, while both processors are free; then the transfer itself.
        let mut r = ThreadPolicy::new(true, 2);
        let mut steps = [2e3, 3e3, 2e3, 9.9e6, 5e8, 5e8].into_iter().zip(1u64..).map(|(rate, n)| {
            let now = Time::ZERO + thread_policy::EVERY * n;
            r.decide(&Measurement { now, busy: 1.0, free: 2.0, rate: flow(rate), ..Measurement::default() })
        });
        assert!(steps.by_ref().take(5).all(|s| s.is_none()));
        assert_eq!(steps.next(), Some(Some(ThreadChange::Begin(2))));
    }

    #[test]
    fn schedstat_of_a_thread_is_parsed() {
        let of = |ran, waited| SchedStats { ran: Span::from_nanos(ran), waited: Span::from_nanos(waited) };
        assert_eq!(SchedStats::parse("500 30 7\n"), Some(of(500, 30)));
        assert_eq!((SchedStats::parse(""), SchedStats::parse("5 x 1")), (None, None));
        assert_eq!(of(700_000_000, 300_000_000).shares(of(0, 0), 2.0), (0.35, 0.3));
        assert_eq!(of(1_000, 9_000).shares(of(0, 0), 1.0).1, 0.0, "too little to tell");
        assert_eq!(of(1, 1).shares(of(5, 5), 1.0), (0.0, 0.0));
    }
}
