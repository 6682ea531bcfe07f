//! The programs that a plan runs in the namespaces, and those of other projects that it starts.
//!
//! Ours are the same executable: its hidden argument [`ARGUMENT`] and a [`Role`] in JSON make it one of them. A
//! receiver prints a line when it is ready and its [`Report`] when its standard input ends; a sender prints its report
//! when it has sent.

pub mod bulk;
pub mod by_program;
pub mod ends;
pub mod messages;
mod mptcp;
pub mod outside;
pub mod parts;
pub mod requests;
mod tcp;
mod tcp_requests;
mod udp;

use base::{Span, Time};
use lhio::clock::{Clock, CpuTime};
use serde::{Deserialize, Serialize};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The hidden argument behind which a [`Role`] stands.
pub const ARGUMENT: &str = "lab-workload";
/// The line that a receiver prints when it can be sent to.
pub const READY: &str = "{\"ready\":true}";
/// Bytes of one read or write.
const CHUNK: usize = 256 << 10;
/// Connections of one receiver at a time.
const MAX_CONNECTIONS: usize = 1_024;

/// What the program becomes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case", deny_unknown_fields)]
pub enum Role {
    /// Sends over the kernel's TCP.
    TcpSend(Bulk),
    /// Receives and counts over the kernel's TCP.
    TcpSink {
        /// Where.
        listen: SocketAddr,
        /// As MPTCP: another address of this node, for clients to add.
        also: Option<IpAddr>,
        /// Congestion control, which also says how marks are echoed (RFC 8257); empty for the kernel's default.
        cc: String,
    },
    /// Sends requests over TCP.
    TcpRequests(Requests),
    /// Answers requests over TCP.
    TcpAnswers {
        /// Where.
        listen: SocketAddr,
        /// As of `TcpSink`.
        cc: String,
    },
    /// Sends requests over Sends of Longhaul.
    LonghaulRequests(Requests),
    /// Answers requests over Sends of Longhaul.
    LonghaulAnswers {
        /// Where.
        listen: SocketAddr,
        /// Bytes of a request.
        size: u64,
        /// Queue pairs.
        streams: u16,
    },
    /// Sends traffic of several parts over Longhaul.
    Parts(parts::Parts),
    /// Receives it.
    PartsSink {
        /// Where.
        listen: SocketAddr,
    },
    /// Sends messages over TCP, to and fro or one behind the other.
    TcpMessages {
        /// Where to.
        to: SocketAddr,
        /// Which.
        exchange: Exchange,
    },
    /// Answers and receives messages over TCP.
    TcpMessageSink {
        /// Where.
        listen: SocketAddr,
        /// Which.
        exchange: Exchange,
    },
    /// Sends UDP at a rate.
    UdpSend {
        /// Where to.
        to: SocketAddr,
        /// Bits per second while it is on.
        rate: u64,
        /// When.
        pattern: Pattern,
    },
    /// Receives UDP and counts.
    UdpSink {
        /// Where.
        listen: SocketAddr,
    },
}

/// When something sends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pattern {
    /// For how long in all, in seconds.
    pub seconds: f64,
    /// How long it is on at a time; zero for always.
    pub on: f64,
    /// How long it is off then.
    pub off: f64,
}

impl Pattern {
    /// Whether it is on, and when that changes next, both in seconds from its start.
    pub fn at(&self, t: f64) -> (bool, f64) {
        if self.on <= 0.0 || self.off <= 0.0 {
            return (t < self.seconds, self.seconds);
        }
        let period = self.on + self.off;
        let (round, phase) = ((t / period).floor(), t % period);
        let (on, next) = if phase < self.on { (true, self.on) } else { (false, period) };
        (on && t < self.seconds, (round * period + next).min(self.seconds))
    }
}

/// Messages that two ends exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Bytes of a message.
    pub size: u64,
    /// For how long.
    pub seconds: f64,
    /// To and fro, instead of one behind the other.
    pub trips: bool,
    /// Both ends ask again and again instead of sleeping.
    pub spin: bool,
    /// Congestion control; empty for the system's.
    pub cc: String,
}

impl Exchange {
    fn manner(&self) -> messages::Manner {
        let congestion = (!self.cc.is_empty()).then(|| self.cc.clone());
        messages::Manner { spin: self.spin, congestion, ..messages::Manner::default() }
    }
}

/// A bulk sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bulk {
    /// Where to.
    pub to: SocketAddr,
    /// Congestion control; empty for the system's.
    pub cc: String,
    /// Connections.
    pub streams: u32,
    /// When.
    pub pattern: Pattern,
    /// How much, instead.
    pub bytes: Option<u64>,
    /// As MPTCP, over whatever addresses the receiver tells of.
    pub multipath: bool,
}

/// A sender of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    /// Where to.
    pub to: SocketAddr,
    /// Congestion control; empty for the default.
    pub cc: String,
    /// Bytes of a request.
    pub size: u64,
    /// Connections or queue pairs.
    pub streams: u16,
    /// When.
    pub pattern: Pattern,
    /// Mean time between requests of all streams together in seconds, as a Poisson process; `None` sends the next request
    /// of a stream when the one before is answered.
    pub every: Option<f64>,
    /// A rate that Longhaul is told to be free, in bits per second.
    pub known_rate: Option<u64>,
    /// Seed of the Poisson process.
    pub seed: u64,
}

/// What a program says of itself at its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Payload, in bytes: what was sent, or what arrived.
    pub bytes: u64,
    /// From the first byte to the last.
    pub seconds: f64,
    /// Processor time of the process.
    pub cpu_seconds: f64,
    /// What was sent again, as a share of what was sent.
    pub again: Option<f64>,
    /// What was sent again in vain, as a share of what was sent.
    pub spurious: Option<f64>,
    /// Completion times in seconds.
    pub completions: Vec<f64>,
    /// Round trips of messages in seconds: least, median, 99th percentile, most.
    pub trips: Option<[f64; 4]>,
    /// What each part of its traffic was promised and got.
    pub parts: Vec<parts::PartResult>,
    /// Payload as a share of full packets.
    pub payload_share: Option<f64>,
    /// `CLOCK_MONOTONIC` in nanoseconds where `series` begins.
    pub began_ns: u64,
    /// Length of its intervals in nanoseconds.
    pub step_ns: u64,
    /// Bytes that arrived in each interval.
    pub series: Vec<u64>,
    /// Why it stopped early, or anything else worth knowing.
    pub note: String,
}

/// Runs a role given as JSON; the exit code.
pub fn main(args: &[String]) -> i32 {
    let role: Role = match args.first().map(|a| serde_json::from_str(a)) {
        Some(Ok(role)) => role,
        Some(Err(e)) => return complain(&format!("this is no role of a workload: {e}")),
        None => return complain("a role in JSON is missing"),
    };
    let cpu = CpuTime::of_process();
    let done = match role {
        Role::TcpSend(b) => tcp::send(&b),
        Role::TcpSink { listen, also, cc } => tcp::sink(listen, also, &cc),
        Role::TcpRequests(r) => tcp_requests::ask(&r),
        Role::TcpAnswers { listen, cc } => tcp_requests::answer(listen, &cc),
        Role::LonghaulRequests(r) => requests::ask(&r),
        Role::LonghaulAnswers { listen, size, streams } => requests::answer(listen, size, streams),
        Role::Parts(p) => parts::send(&p),
        Role::PartsSink { listen } => parts::sink(listen),
        Role::TcpMessages { to, exchange } => messages::ask(to, &exchange),
        Role::TcpMessageSink { listen, exchange } => messages::answer(listen, &exchange),
        Role::UdpSend { to, rate, pattern } => udp::send(to, rate, &pattern),
        Role::UdpSink { listen } => udp::sink(listen),
    };
    match done {
        Ok(mut report) => {
            // Some say themselves from when on they count.
            if report.cpu_seconds == 0.0 {
                report.cpu_seconds = CpuTime::of_process().since(cpu).total().as_secs_f64();
            }
            let said = serde_json::to_string(&report).map_err(io::Error::from);
            match said.and_then(|text| writeln!(io::stdout(), "{text}")) {
                Ok(()) => 0,
                Err(e) => complain(&format!("cannot say what was measured: {e}")),
            }
        }
        Err(text) => complain(&text),
    }
}

fn complain(text: &str) -> i32 {
    // Where nobody hears it, the code has to do.
    let _ = writeln!(io::stderr(), "lab workload: {}", base::text::line(text));
    1
}

/// Says that it can be sent to, and returns a flag that is set when standard input ends.
fn ready() -> Arc<AtomicBool> {
    let over = Arc::new(AtomicBool::new(false));
    // An owner that is gone does not wait for it, and the end of standard input ends this.
    let _ = writeln!(io::stdout(), "{READY}");
    let flag = over.clone();
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        // Whatever ends standard input ends the program.
        let _ = std::io::stdin().take(1 << 20).read_to_end(&mut rest);
        flag.store(true, Ordering::SeqCst);
    });
    over
}

/// Waits in real time: workloads are programs, not protocol code.
#[allow(clippy::disallowed_methods, reason = "a workload runs in real time")]
pub fn rest(span: Span) {
    std::thread::sleep(span.to_std());
}

/// Length of intervals in reports.
const STEP: Span = Span::from_millis(10);
/// Intervals of a report at most: an hour and a half.
const MAX_STEPS: usize = 540_000;

/// Counts bytes by the time at which they arrived.
#[derive(Debug)]
struct Counter {
    clock: Clock,
    began: Time,
    first: Option<Time>,
    last: Time,
    total: u64,
    steps: Vec<u64>,
}

impl Counter {
    fn new(began: Time) -> Counter {
        Counter { clock: Clock::new(), began, first: None, last: began, total: 0, steps: Vec::new() }
    }

    fn add(&mut self, bytes: u64) {
        let now = self.clock.now();
        self.first.get_or_insert(now);
        (self.last, self.total) = (now, self.total + bytes);
        let at = (now.since(self.began).as_nanos() / STEP.as_nanos()) as usize;
        if at < MAX_STEPS {
            if self.steps.len() <= at {
                self.steps.resize(at + 1, 0);
            }
            self.steps[at] += bytes;
        }
    }

    fn merge(&mut self, other: &Counter) {
        self.total += other.total;
        self.last = self.last.max(other.last);
        self.first = match (self.first, other.first) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if self.steps.len() < other.steps.len() {
            self.steps.resize(other.steps.len(), 0);
        }
        self.steps.iter_mut().zip(&other.steps).for_each(|(a, b)| *a += b);
    }

    fn report(&self) -> Report {
        Report {
            bytes: self.total,
            seconds: self.first.map_or(0.0, |f| self.last.since(f).as_secs_f64()),
            began_ns: self.began.as_nanos(),
            step_ns: STEP.as_nanos(),
            series: self.steps.clone(),
            ..Report::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_turn_on_and_off() {
        let p = Pattern { seconds: 75.0, on: 10.0, off: 60.0 };
        assert_eq!(p.at(0.0), (true, 10.0));
        assert_eq!(p.at(9.9), (true, 10.0));
        assert_eq!(p.at(10.0), (false, 70.0));
        assert_eq!(p.at(70.0), (true, 75.0));
        assert_eq!(p.at(75.0), (false, 75.0));
        let always = Pattern { seconds: 3.0, on: 0.0, off: 0.0 };
        assert_eq!((always.at(0.0), always.at(3.0)), ((true, 3.0), (false, 3.0)));
    }

    #[test]
    fn roles_survive_json() {
        let role = Role::TcpSend(Bulk {
            to: ([10, 77, 0, 2], 5_000).into(),
            cc: "bbr".into(),
            streams: 3,
            pattern: Pattern { seconds: 1.0, on: 0.0, off: 0.0 },
            bytes: None,
            multipath: false,
        });
        let text = serde_json::to_string(&role).expect("JSON");
        assert_eq!(serde_json::from_str::<Role>(&text).expect("a role"), role);
        assert_eq!(main(&["{}".to_owned()]), 1);
        assert_eq!(main(&[]), 1);
    }

    #[test]
    fn counters_add_up() {
        let began = Clock::new().now();
        let (mut a, mut b) = (Counter::new(began), Counter::new(began));
        (0..10).for_each(|_| a.add(5));
        b.add(7);
        a.merge(&b);
        let r = a.report();
        assert_eq!((r.bytes, r.series.iter().sum::<u64>()), (57, 57));
    }
}
