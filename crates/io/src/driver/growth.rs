//! How many lanes a client's connections have: as many as its thread's work needs and the machine has processors for.

use crate::clock::CpuTime;
use base::{Span, Time};
use core::fmt;
use core::str::FromStr;
use endpoint::{ConnId, Endpoint, MAX_SOCKETS};
use std::collections::BTreeMap;

/// How often it is looked at.
const EVERY: Span = Span::from_millis(500);
/// From this share of its time on, the loop's thread is what limits the rate.
const BUSY: f64 = 0.9;
/// Below this share, one lane fewer does.
const LAZY: f64 = 0.35;
/// Looks in a row at a lazy thread after which a lane goes.
const LAZY_LOOKS: u32 = 10;
/// Processors that must be free for a further thread.
const FREE: f64 = 0.6;
/// A lane that brought less than this is given back.
const GAIN: f64 = 1.03;
/// Looks before a lane is judged: its congestion control has to find its rate.
const TRIAL_LOOKS: u32 = 4;
/// How long a lane that brought nothing is not tried again.
const REST: Span = Span::from_secs(30);

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
    type Err = BadLanes;

    fn from_str(text: &str) -> Result<Lanes, BadLanes> {
        if text == "auto" {
            return Ok(Lanes::Auto);
        }
        let n = text.parse().ok().filter(|n| (1..=MAX_SOCKETS).contains(n));
        n.map(Lanes::Count).ok_or_else(|| BadLanes(text.to_owned()))
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

/// No number of lanes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no number of lanes: write auto, or a number from 1 to {MAX_SOCKETS}")]
pub struct BadLanes(String);

/// What was seen of the last interval.
#[derive(Clone, Copy, Debug)]
struct Look {
    now: Time,
    /// Share of the interval for which the loop's thread ran.
    busy: f64,
    /// Processors that were free on average.
    free: f64,
    /// Bytes of payload per second, both ways.
    rate: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Grow,
    Shrink,
}

/// The rule, without a clock.
#[derive(Debug, Default)]
struct Rule {
    /// The rate before a lane was added, and how many looks it has had.
    trial: Option<(f64, u32)>,
    lazy: u32,
    resting_until: Time,
}

impl Rule {
    fn decide(&mut self, l: Look, lanes: u16, most: u16) -> Option<Step> {
        if let Some((before, looks)) = &mut self.trial {
            *looks += 1;
            if *looks < TRIAL_LOOKS {
                return None;
            }
            let worth = l.rate >= *before * GAIN;
            self.trial = None;
            if !worth && lanes > 1 {
                self.resting_until = l.now + REST;
                return Some(Step::Shrink);
            }
        }
        self.lazy = if l.busy < LAZY { self.lazy + 1 } else { 0 };
        if lanes > 1 && self.lazy >= LAZY_LOOKS {
            self.lazy = 0;
            return Some(Step::Shrink);
        }
        if lanes < most && l.busy >= BUSY && l.free >= FREE && l.now >= self.resting_until {
            self.trial = Some((l.rate, 0));
            return Some(Step::Grow);
        }
        None
    }
}

/// Adds lanes to the connections of a client and takes them back.
#[derive(Debug)]
pub(super) struct Growth {
    lanes: Lanes,
    most: u16,
    /// Processors that this process may use, as they were before threads were bound to some.
    processors: Vec<usize>,
    rule: Rule,
    /// Sockets that lanes are spread over now.
    used: u16,
    /// Lanes that were asked for, of each connection.
    asked: BTreeMap<ConnId, Vec<u32>>,
    last: Option<(Time, CpuTime, Span, u64)>,
    next: Time,
}

impl Growth {
    pub fn new(lanes: Lanes, most: u16) -> Growth {
        let used = match lanes {
            Lanes::Auto => 1,
            Lanes::Count(n) => n.clamp(1, most),
        };
        let (rule, asked) = (Rule::default(), BTreeMap::new());
        Growth { lanes, most, processors: processors(), rule, used, asked, last: None, next: Time::ZERO }
    }

    /// How many sockets there are to be now.
    pub fn sockets(&self) -> u16 {
        self.used
    }

    /// Processors that threads may use that are bound to none.
    pub fn processors(&self) -> &[usize] {
        &self.processors
    }

    /// No more sockets than these can be had.
    pub fn limit_to(&mut self, sockets: u16) {
        (self.most, self.used) = (sockets, self.used.min(sockets));
    }

    /// When to look next.
    pub fn next(&self) -> Time {
        self.next
    }

    /// Looks, if it is time: [`Growth::sockets`] may have changed. Then [`Growth::spread`].
    pub fn look(&mut self, now: Time, endpoint: &Endpoint) {
        if self.lanes != Lanes::Auto {
            // A connection that has just come up need not wait long for its lanes.
            self.next = now + EVERY / 100;
            return;
        }
        self.next = now + EVERY;
        let cpu = CpuTime::of_thread();
        let free = free_time(&self.processors);
        let bytes = endpoint.connections().filter_map(|c| endpoint.stats(c));
        let bytes = bytes.map(|s| s.payload_sent + s.payload_received).sum();
        let before = self.last.replace((now, cpu, free, bytes));
        let Some((then, cpu_then, free_then, bytes_then)) = before else { return };
        let span = now.since(then).as_secs_f64().max(1e-3);
        let l = Look {
            now,
            busy: cpu.since(cpu_then).total().as_secs_f64() / span,
            free: free.as_secs_f64().max(free_then.as_secs_f64()) - free_then.as_secs_f64(),
            rate: bytes.saturating_sub(bytes_then) as f64 / span,
        };
        let l = Look { free: l.free / span, ..l };
        match self.rule.decide(l, self.used, self.most) {
            Some(Step::Grow) => self.used += 1,
            Some(Step::Shrink) => self.used -= 1,
            None => {}
        }
    }

    /// Has each connection of this client use the sockets that there are to be.
    pub fn spread(&mut self, now: Time, endpoint: &mut Endpoint) {
        let clients: Vec<_> = endpoint.connections().filter(|c| endpoint.is_open_client(*c)).collect();
        self.asked.retain(|c, _| clients.contains(c));
        for conn in clients {
            let asked = self.asked.entry(conn).or_default();
            while asked.len() + 1 < usize::from(self.used) {
                let socket = asked.len() as u16 + 1;
                match endpoint.add_lane(now, conn, socket) {
                    Ok(lane) => asked.push(lane),
                    Err(error) => {
                        tracing::debug!(%error, "no further lane");
                        // Not asked for again: nothing in the reasons for it changes.
                        (self.used, self.most) = (socket, socket);
                    }
                }
            }
            while asked.len() + 1 > usize::from(self.used) {
                if let Some(lane) = asked.pop() {
                    endpoint.remove_path(now, conn, lane);
                }
            }
        }
    }
}

/// Processors that this process may use.
pub(super) fn processors() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return vec![0] };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|c| set.is_set(*c)).collect()
}

/// Time for which the processors that this process may use had nothing to do, all together, since the machine started.
/// Zero where the system does not tell.
fn free_time(ours: &[usize]) -> Span {
    let Ok(text) = std::fs::read_to_string("/proc/stat") else { return Span::ZERO };
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    Span::from_nanos(free_ticks(&text, ours).saturating_mul(1_000_000_000 / ticks))
}

/// proc(5): `cpuN user nice system idle iowait ...`, in ticks.
fn free_ticks(text: &str, ours: &[usize]) -> u64 {
    let idle = |line: &str| {
        let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
        let cpu: usize = words.next()?.parse().ok()?;
        let idle: u64 = words.nth(3)?.parse().ok()?;
        ours.contains(&cpu).then_some(idle)
    };
    text.lines().filter_map(idle).fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(s: u64, busy: f64, free: f64, rate: f64) -> Look {
        Look { now: Time::ZERO + Span::from_secs(s), busy, free, rate }
    }

    #[test]
    fn a_busy_thread_beside_a_free_processor_gets_help() {
        let mut r = Rule::default();
        assert_eq!(r.decide(look(1, 0.5, 1.5, 1.0), 1, 4), None);
        assert_eq!(r.decide(look(2, 0.99, 0.1, 1.0), 1, 4), None, "no processor is free");
        assert_eq!(r.decide(look(3, 0.99, 1.0, 1.0), 1, 1), None, "one is all it may have");
        assert_eq!(r.decide(look(4, 0.99, 1.0, 1.0), 1, 4), Some(Step::Grow));
        // On trial, nothing else is changed.
        for s in 5..8 {
            assert_eq!(r.decide(look(s, 0.99, 1.0, 1.0), 2, 4), None);
        }
        // It was worth it, and there is need and room for more.
        assert_eq!(r.decide(look(8, 0.99, 1.0, 1.5), 2, 4), Some(Step::Grow));
    }

    #[test]
    fn a_lane_that_brings_nothing_goes_and_is_not_tried_again_soon() {
        let mut r = Rule::default();
        assert_eq!(r.decide(look(1, 1.0, 1.0, 1.0), 1, 4), Some(Step::Grow));
        let steps: Vec<_> = (2..6).map(|s| r.decide(look(s, 1.0, 1.0, 1.0), 2, 4)).collect();
        assert_eq!(steps, [None, None, None, Some(Step::Shrink)]);
        assert_eq!(r.decide(look(6, 1.0, 1.0, 1.0), 1, 4), None);
        assert_eq!(r.decide(look(36, 1.0, 1.0, 1.0), 1, 4), Some(Step::Grow));
    }

    #[test]
    fn lanes_go_when_there_is_little_to_do() {
        let mut r = Rule::default();
        let steps =
            (1..=10).filter(|s| r.decide(look(*s, 0.1, 2.0, 0.0), 3, 4) == Some(Step::Shrink)).count();
        assert_eq!(steps, 1);
        assert_eq!(r.decide(look(11, 0.1, 2.0, 0.0), 1, 4), None);
    }

    #[test]
    fn numbers_of_lanes_are_read_as_they_are_written() {
        for good in ["auto", "1", "64"] {
            assert_eq!(good.parse::<Lanes>().unwrap().to_string(), good);
        }
        for bad in ["", "0", "65", "-1", "many"] {
            assert!(bad.parse::<Lanes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_systems_account_of_idle_time_is_read() {
        let text = "cpu  9 9 9 9\ncpu0 1 2 3 400 5 6\ncpu1 1 2 3 70\ncpu12 0 0 0 1000 0\nintr 5\ncpu3 x\n";
        assert_eq!(free_ticks(text, &[0, 1]), 470);
        assert_eq!(free_ticks(text, &[12]), 1000);
        assert_eq!(free_ticks("", &[0]), 0);
        assert!(!processors().is_empty());
    }
}
