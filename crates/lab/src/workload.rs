//! The programs that generate the traffic of plans: our own, and those of other projects.
//!
//! Our own are this executable with the hidden argument [`ARGUMENT`] and a [`Role`] in JSON. A receiver prints a line
//! when it is ready and its [`Report`] when its standard input ends; a sender prints its report when it has finished.

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

/// The hidden argument, which a [`Role`] follows.
pub const ARGUMENT: &str = "lab-workload";
/// The line that a receiver prints when it is ready.
pub const READY: &str = "{\"ready\":true}";
/// Bytes of one read or write.
const CHUNK: usize = 256 << 10;
/// Most simultaneous connections of one receiver.
const MAX_CONNECTIONS: usize = 1_024;

/// What the program does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case", deny_unknown_fields)]
pub enum Role {
    /// Sends over the kernel's TCP.
    TcpSend(Bulk),
    /// Receives and counts over the kernel's TCP.
    TcpSink {
        /// The address to listen on.
        listen: SocketAddr,
        /// With MPTCP, another address of this node for clients to add.
        also: Option<IpAddr>,
        /// Congestion control, which also says how marks are echoed (RFC 8257); empty for the kernel's default.
        cc: String,
    },
    /// Sends requests over TCP.
    TcpRequests(Requests),
    /// Answers requests over TCP.
    TcpAnswers {
        /// The address to listen on.
        listen: SocketAddr,
        /// Congestion control, as in `TcpSink`.
        cc: String,
    },
    /// Sends requests over Sends of Longhaul.
    LonghaulRequests(Requests),
    /// Answers requests over Sends of Longhaul.
    LonghaulAnswers {
        /// The address to listen on.
        listen: SocketAddr,
        /// Bytes of a request.
        size: u64,
        /// Queue pairs.
        streams: u16,
    },
    /// Sends traffic of several parts over Longhaul.
    Parts(parts::Parts),
    /// Receives traffic of several parts.
    PartsSink {
        /// The address to listen on.
        listen: SocketAddr,
    },
    /// Sends messages over TCP, ping-pong or streamed.
    TcpMessages {
        /// The receiver.
        to: SocketAddr,
        /// The messages.
        exchange: Exchange,
    },
    /// Answers and receives messages over TCP.
    TcpMessageSink {
        /// The address to listen on.
        listen: SocketAddr,
        /// The messages.
        exchange: Exchange,
    },
    /// Sends UDP at a rate.
    UdpSend {
        /// The receiver.
        to: SocketAddr,
        /// Bits per second while it is on.
        rate: u64,
        /// When it sends.
        pattern: Pattern,
    },
    /// Receives UDP and counts.
    UdpSink {
        /// The address to listen on.
        listen: SocketAddr,
    },
}

/// When a sender is active.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pattern {
    /// Total duration, in seconds.
    pub seconds: f64,
    /// Duration of on phases; zero for always on.
    pub on: f64,
    /// Duration of off phases.
    pub off: f64,
}

impl Pattern {
    /// Whether it is on, and the time of the next change, both in seconds from its start.
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

/// An exchange of messages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Exchange {
    /// Bytes of a message.
    pub size: u64,
    /// Its duration.
    pub seconds: f64,
    /// Whether messages are answered one by one (ping-pong) instead of streamed.
    pub ping_pong: bool,
    /// Whether both ends poll instead of sleeping.
    pub busy_poll: bool,
    /// Congestion control; empty for the system's.
    pub cc: String,
}

impl Exchange {
    fn options(&self) -> messages::MessageOptions {
        let congestion = (!self.cc.is_empty()).then(|| self.cc.clone());
        messages::MessageOptions {
            busy_poll: self.busy_poll,
            congestion,
            ..messages::MessageOptions::default()
        }
    }
}

/// A bulk sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bulk {
    /// The receiver.
    pub to: SocketAddr,
    /// Congestion control; empty for the system's.
    pub cc: String,
    /// Connections.
    pub streams: u32,
    /// When it sends.
    pub pattern: Pattern,
    /// The number of bytes to send, instead of a duration.
    pub bytes: Option<u64>,
    /// Whether to use MPTCP, over all addresses that the receiver announces.
    pub multipath: bool,
}

/// A sender of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Requests {
    /// The receiver.
    pub to: SocketAddr,
    /// Congestion control; empty for the default.
    pub cc: String,
    /// Bytes of a request.
    pub size: u64,
    /// Connections or queue pairs.
    pub streams: u16,
    /// When it sends.
    pub pattern: Pattern,
    /// Mean time in seconds between requests of all streams together, as a Poisson process; `None` sends the next
    /// request of a stream after the answer to the last.
    pub every: Option<f64>,
    /// The known rate for Longhaul, in bits per second.
    pub known_rate: Option<u64>,
    /// Seed of the Poisson process.
    pub seed: u64,
}

/// A program's report at its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Payload sent or received, in bytes.
    pub bytes: u64,
    /// Time from the first byte to the last.
    pub seconds: f64,
    /// Processor time of the process.
    pub cpu_seconds: f64,
    /// Retransmitted data, as a share of what was sent.
    pub retransmitted: Option<f64>,
    /// Unnecessarily retransmitted data, as a share of what was sent.
    pub spurious: Option<f64>,
    /// Completion times in seconds.
    pub completions: Vec<f64>,
    /// Round trips of messages in seconds: least, median, 99th percentile, most.
    pub message_rtts: Option<[f64; 4]>,
    /// The promises to and results of each part of its traffic.
    pub parts: Vec<parts::PartResult>,
    /// Payload as a share of full packets.
    pub payload_share: Option<f64>,
    /// `CLOCK_MONOTONIC` in nanoseconds at the start of `series`.
    pub start_ns: u64,
    /// Length of its intervals in nanoseconds.
    pub interval_ns: u64,
    /// Bytes that arrived in each interval.
    pub bytes_per_interval: Vec<u64>,
    /// Why it stopped early, or other remarks.
    pub note: String,
}

/// Runs a role given as JSON; returns the exit code.
pub fn main(args: &[String]) -> i32 {
    let role: Role = match args.first().map(|a| serde_json::from_str(a)) {
        Some(Ok(role)) => role,
        Some(Err(e)) => return print_error(&format!("this is no role of a workload: {e}")),
        None => return print_error("a role in JSON is missing"),
    };
    let cpu = CpuTime::of_process();
    let done = match role {
        Role::TcpSend(b) => tcp::send(&b),
        Role::TcpSink { listen, also, cc } => tcp::sink(listen, also, &cc),
        Role::TcpRequests(r) => tcp_requests::run_client(&r),
        Role::TcpAnswers { listen, cc } => tcp_requests::run_server(listen, &cc),
        Role::LonghaulRequests(r) => requests::run_client(&r),
        Role::LonghaulAnswers { listen, size, streams } => requests::run_server(listen, size, streams),
        Role::Parts(p) => parts::send(&p),
        Role::PartsSink { listen } => parts::sink(listen),
        Role::TcpMessages { to, exchange } => messages::run_sender(to, &exchange),
        Role::TcpMessageSink { listen, exchange } => messages::run_receiver(listen, &exchange),
        Role::UdpSend { to, rate, pattern } => udp::send(to, rate, &pattern),
        Role::UdpSink { listen } => udp::sink(listen),
    };
    match done {
        Ok(mut report) => {
            // Some roles report their own start.
            if report.cpu_seconds == 0.0 {
                report.cpu_seconds = CpuTime::of_process().since(cpu).total().as_secs_f64();
            }
            let said = serde_json::to_string(&report).map_err(io::Error::from);
            match said.and_then(|text| writeln!(io::stdout(), "{text}")) {
                Ok(()) => 0,
                Err(e) => print_error(&format!("cannot say what was measured: {e}")),
            }
        }
        Err(text) => print_error(&text),
    }
}

fn print_error(text: &str) -> i32 {
    // If nobody reads the message, the exit code has to suffice.
    let _ = writeln!(io::stderr(), "lab workload: {}", base::text::line(text));
    1
}

/// Announces that it is ready, and returns a flag that is set when standard input ends.
fn announce_ready() -> Arc<AtomicBool> {
    let over = Arc::new(AtomicBool::new(false));
    // An owner that is gone does not read it, and the end of standard input ends this.
    let _ = writeln!(io::stdout(), "{READY}");
    let flag = over.clone();
    std::thread::spawn(move || {
        let mut rest = Vec::new();
        // Errors of standard input count as its end.
        let _ = std::io::stdin().take(1 << 20).read_to_end(&mut rest);
        flag.store(true, Ordering::SeqCst);
    });
    over
}

/// Sleeps in real time; workloads are programs, not protocol code.
#[allow(clippy::disallowed_methods, reason = "a workload runs in real time")]
pub fn sleep(span: Span) {
    std::thread::sleep(span.to_std());
}

/// Length of intervals in reports.
const STEP: Span = Span::from_millis(10);
/// Most intervals of a report: an hour and a half.
const MAX_STEPS: usize = 540_000;

/// Counts bytes by time of arrival.
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
            start_ns: self.began.as_nanos(),
            interval_ns: STEP.as_nanos(),
            bytes_per_interval: self.steps.clone(),
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
    fn roles_round_trip_through_json() {
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
    fn merged_counters_add_up() {
        let began = Clock::new().now();
        let (mut a, mut b) = (Counter::new(began), Counter::new(began));
        (0..10).for_each(|_| a.add(5));
        b.add(7);
        a.merge(&b);
        let r = a.report();
        assert_eq!((r.bytes, r.bytes_per_interval.iter().sum::<u64>()), (57, 57));
    }
}
