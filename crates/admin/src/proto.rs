//! Requests and responses of the control socket: one JSON object a line each way. `docs/control.md` is the
//! specification.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Version of the protocol: grows when what was valid is no longer. New requests and new fields of responses do not count.
pub const VERSION: u32 = 1;
/// Longest request in bytes, its newline included: the longest program in base64, and some.
pub const MAX_REQUEST: usize = 2 << 20;
/// Longest response in bytes, its newline included.
pub const MAX_RESPONSE: usize = 32 << 20;
/// Most flows that one response lists.
pub const MAX_LISTED: usize = 10_000;
/// Most errors that one response names.
pub const MAX_ERRORS: usize = 100;

/// Which flow of a process: the connection's number, and the flow's in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId {
    /// The connection.
    pub connection: u64,
    /// The flow in it; 0 is the one that most of its streams share.
    pub flow: u32,
}

impl fmt::Display for FlowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.connection, self.flow)
    }
}

/// A text names no flow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a flow: write CONNECTION.FLOW such as 3.0, as `longhaul cc show` prints it")]
pub struct BadFlow(String);

impl FromStr for FlowId {
    type Err = BadFlow;
    fn from_str(text: &str) -> Result<FlowId, BadFlow> {
        let (connection, flow) = text.split_once('.').unwrap_or((text, "0"));
        match (connection.parse(), flow.parse()) {
            (Ok(connection), Ok(flow)) => Ok(FlowId { connection, flow }),
            _ => Err(BadFlow(text.chars().take(40).collect())),
        }
    }
}

impl Serialize for FlowId {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FlowId {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<FlowId, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A request to a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Its description: [`Response::Process`].
    Hello,
    /// Its flows: [`Response::Flows`].
    Flows,
    /// The policy that it runs, with its text: [`Response::Policy`].
    Policy,
    /// Run this policy from now on, until its source has another one: [`Response::Done`].
    SetPolicy {
        /// The policy, as a file would have it.
        text: String,
        /// The file it was read from, with its whole path, for people; empty when left out.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        path: String,
    },
    /// Change one flow, until the policy changes: [`Response::Done`].
    SetFlow {
        /// Which.
        flow: FlowId,
        /// Algorithm with parameters; as it is when left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        algorithm: Option<String>,
        /// Bits per second that it may send at most, 0 for no cap of its own; as it is when left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cap_bits_per_second: Option<u64>,
    },
    /// Load a program; flows that run other code by its name run this from now on: [`Response::Done`].
    Load {
        /// Its bytes (wasm), in base64.
        program: String,
        /// The file it was read from, with its whole path, for people; empty when left out.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        path: String,
    },
    /// Take a loaded program's name away: [`Response::Done`].
    Unload {
        /// Its name.
        name: String,
        /// Even if the policy in force or the process itself needs it.
        #[serde(default, skip_serializing_if = "is_false")]
        force: bool,
    },
    /// Which programs are loaded or needed, and how many flows run them: [`Response::Programs`].
    Programs,
    /// What happened: [`Response::Events`].
    Events {
        /// Only those after the one of this number; 0 for all that are kept.
        #[serde(default)]
        after: u64,
    },
    /// Decisions as they are made: [`Response::Decision`] and [`Response::Missed`], until the client hangs up.
    Trace {
        /// Of this flow; of all when left out.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        flow: Option<FlowId>,
        /// Only every n-th decision of a flow; 1 when left out.
        #[serde(default = "one")]
        every: u32,
    },
}

fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "what serde calls")]
fn is_false(value: &bool) -> bool {
    !value
}

/// A response of a process. Later versions may add fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "response", rename_all = "kebab-case")]
pub enum Response {
    /// To [`Request::Hello`].
    Process(Process),
    /// To [`Request::Flows`].
    Flows {
        /// In the order of their numbers, at most [`MAX_LISTED`].
        flows: Vec<Flow>,
        /// How many more there are.
        omitted: usize,
    },
    /// To [`Request::Policy`].
    Policy {
        /// Its text; empty when none was ever read.
        text: String,
        /// Where it is from, and how it fares.
        status: PolicyStatus,
    },
    /// It was done.
    Done {
        /// In words.
        text: String,
        /// What may not be as it was meant, one entry for each; at most [`MAX_ERRORS`].
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    },
    /// It was not done.
    Refused {
        /// Why, and what to do about it, one entry for each error; at most [`MAX_ERRORS`].
        errors: Vec<String>,
    },
    /// To [`Request::Events`].
    Events {
        /// The oldest first.
        events: Vec<Event>,
        /// How many that were asked for are no longer kept.
        missed: u64,
    },
    /// To [`Request::Programs`].
    Programs {
        /// Those that are loaded, then those that are only needed.
        programs: Vec<Program>,
    },
    /// Part of a trace.
    Decision(Decision),
    /// So many decisions are missing here in a trace: they came faster than they were taken.
    Missed {
        /// How many.
        count: u64,
    },
}

impl Response {
    /// It was done, and nothing is to be said against it.
    pub fn done(text: impl Into<String>) -> Response {
        Response::Done { text: text.into(), warnings: Vec::new() }
    }
}

/// A process that moves data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Of the protocol: [`VERSION`].
    pub protocol: u32,
    /// Its process number.
    pub pid: u32,
    /// What it does: `serve`, `put`, `perf server` and so on.
    pub command: String,
    /// Version of its program.
    pub version: String,
    /// When it started, in seconds since 1970.
    pub started: u64,
    /// Its policy.
    pub policy: PolicyStatus,
    /// Programs that are loaded.
    pub programs: Vec<String>,
    /// What is not as the policy in force or the process itself means it, one entry for each; none when all is well.
    #[serde(default)]
    pub problems: Vec<String>,
}

/// A program that is loaded, or needed and not loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Whether it is loaded.
    pub loaded: bool,
    /// The file it is from; empty when that is not known.
    pub path: String,
    /// The first digits of the BLAKE3 hash of its module.
    pub hash: String,
    /// When it was loaded, in seconds since 1970.
    pub since: u64,
    /// Flows that run this code.
    pub flows: u64,
    /// Flows that run other code, which was loaded by this name before.
    pub flows_on_other_version: u64,
    /// Flows that were to run it and run another algorithm, since it is not loaded.
    pub flows_on_fallback: u64,
    /// What names it: places of the policy in force, and the process's own options.
    pub required_by: Vec<String>,
}

/// Where a policy is from, and how it fares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// The source that is watched: a path or a store's address; empty when there is none.
    pub source: String,
    /// Where the policy that runs is from: the source, `control socket`, `kept copy of SOURCE`, or empty: none runs.
    pub origin: String,
    /// The file that the policy that runs was read from, with its whole path; empty of one from a store.
    #[serde(default)]
    pub path: String,
    /// The first digits of the BLAKE3 hash of the text that runs; empty: none runs.
    #[serde(default)]
    pub hash: String,
    /// The store's revision; 0 of what has none.
    pub revision: u64,
    /// Since when it runs, in seconds since 1970.
    pub since: u64,
    /// How many policies were put in force so far.
    pub changes: u64,
    /// What is wrong with the source now, one entry for each error; none when all is well.
    pub errors: Vec<String>,
}

/// One flow, as `longhaul cc show` prints it. Rates are in bits on the wire, times in seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Its number: see [`FlowId`].
    pub id: String,
    /// What carries it: `native`, `tcp` or `roce`.
    pub carrier: String,
    /// This end's address; empty when the system chooses it.
    pub local: String,
    /// The other end's.
    pub remote: String,
    /// The application's name.
    pub application: String,
    /// What it asked for.
    pub qos: String,
    /// The rule that matched.
    pub rule: String,
    /// Its class.
    pub class: String,
    /// Its weight in its class.
    pub weight: u32,
    /// Its algorithm, with parameters.
    pub algorithm: String,
    /// The name of what decides now: another one while something takes the algorithm's place.
    pub running: String,
    /// Its state.
    pub state: String,
    /// How what decides came to be another one than before, the last time; empty when it never did.
    #[serde(default)]
    pub last_change: String,
    /// The algorithm that the peer sends with on the same streams, with parameters, as far as it says.
    #[serde(default)]
    pub peer_algorithm: String,
    /// The name of what decides there now.
    #[serde(default)]
    pub peer_running: String,
    /// The hash of its algorithm's program, as [`Program::hash`]; empty for built-in algorithms.
    #[serde(default)]
    pub program_hash: String,
    /// What the policy chose and is not loaded here, so that another algorithm decides; empty: nothing is missing.
    #[serde(default)]
    pub not_loaded: String,
    /// What it delivered per second lately, on the wire; none before the process has looked twice.
    #[serde(default)]
    pub delivered_bits_per_second: Option<u64>,
    /// Over how long that was measured: a second or a little more while data moves.
    #[serde(default)]
    pub delivered_over_seconds: f64,
    /// The rate at which packets leave, as decided, under all caps; none where only the window limits.
    #[serde(default)]
    pub pacing_bits_per_second: Option<u64>,
    /// What it may send at most: the smallest of all caps that hold for it.
    pub cap_bits_per_second: Option<u64>,
    /// Whose cap that is: `rule NAME`, `cc set`, `limit` (`--limit`, or what the peer asked for), `class NAME`, `host`; empty: there is none.
    #[serde(default)]
    pub cap_source: String,
    /// What it was guaranteed.
    pub guarantee_bits_per_second: Option<u64>,
    /// Smoothed round trip.
    pub srtt_seconds: f64,
    /// Lowest round trip.
    pub min_rtt_seconds: f64,
    /// Bytes in flight.
    pub inflight_bytes: u64,
    /// Congestion window; `None` if this program does not know it.
    pub cwnd_bytes: Option<u64>,
    /// Bytes delivered so far.
    pub delivered_bytes: u64,
    /// Packets lost of its connection, as a share of those sent.
    pub loss_share: f64,
    /// Packets of its connection that arrived marked (ECN CE).
    pub marked_packets: u64,
    /// What each of its connection's paths was found to carry of the signals that algorithms need.
    pub signals: Vec<PathSignals>,
    /// Reasons for all of it.
    pub reasons: Vec<String>,
}

/// What a path was found to carry of the signals that algorithms need, in the direction away from this end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathSignals {
    /// The path's number.
    pub path: u32,
    /// How far ECT(0) survives: `unknown`, `testing`, `capable`, or what is wrong: `bleached`, `remarked`, `all-marked`,
    /// `dropped`, `untold`.
    pub ect0: String,
    /// The same of ECT(1).
    pub ect1: String,
    /// Whether marks were seen: `unknown`, `yes`, `no`.
    pub marks: String,
    /// Whether marks of L4S were seen: while the queue was all but empty.
    pub l4s: String,
    /// Whether hops write telemetry.
    pub telemetry: String,
    /// Why another algorithm than the one chosen decides here for the connection's own flow, if so.
    pub fallback_reason: Option<String>,
}

impl PathSignals {
    /// Of one path of a connection.
    pub fn new(p: &endpoint::PathStats) -> PathSignals {
        let c = p.capability;
        PathSignals {
            path: p.lane,
            ect0: c.ect0.word().into(),
            ect1: c.ect1.word().into(),
            marks: c.marks.word().into(),
            l4s: c.l4s.word().into(),
            telemetry: c.telemetry.word().into(),
            fallback_reason: p.fallback_reason.map(str::to_owned),
        }
    }
}

/// Something that an administrator may want to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number, from 1.
    pub number: u64,
    /// When, in seconds since 1970.
    pub time: u64,
    /// Of what kind: `policy`, `source`, `flow`, `program`, `program_fault`, `fallback`, `trouble`, `refused`.
    pub kind: String,
    /// In words.
    pub text: String,
}

/// One decision of an algorithm, and what it was told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The flow: see [`FlowId`].
    pub flow: String,
    /// The lane of its connection.
    pub lane: u32,
    /// When, in seconds of the machine's monotonic clock.
    pub time: f64,
    /// What happened: `feedback`, or the event's name.
    pub trigger: String,
    /// The algorithm.
    pub algorithm: String,
    /// Its state.
    pub state: String,
    /// What it decided, in bits per second.
    pub rate_bits_per_second: u64,
    /// Congestion window.
    pub cwnd_bytes: u64,
    /// Bytes in flight.
    pub inflight_bytes: u64,
    /// Bytes newly acknowledged.
    pub acked_bytes: u64,
    /// Bytes newly lost.
    pub lost_bytes: u64,
    /// Packets newly reported as marked.
    pub marked_packets: u64,
    /// The newest round trip; none without a sample.
    pub rtt_seconds: Option<f64>,
    /// Smoothed round trip.
    pub srtt_seconds: f64,
    /// Delay of the queue on the way there.
    pub queue_seconds: f64,
    /// Sampled delivery rate; none without a sample.
    pub delivery_bits_per_second: Option<u64>,
}

/// Why a request cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BadRequest {
    /// It is longer than any needs to be.
    #[error("a request has at most {MAX_REQUEST} bytes")]
    TooLong,
    /// It is no request.
    #[error("not a request of version {VERSION}: {0}; see docs/control.md")]
    Form(#[from] serde_json::Error),
}

/// Reads a request, a line without or with its end.
///
/// # Errors
/// What is wrong with it.
pub fn read_request(line: &[u8]) -> Result<Request, BadRequest> {
    if line.len() > MAX_REQUEST {
        return Err(BadRequest::TooLong);
    }
    Ok(serde_json::from_slice(line)?)
}

/// A request or an answer as a line with its end.
pub fn line<T: Serialize>(value: &T) -> Vec<u8> {
    // Strings, numbers and lists of them: writing these into memory does not fail.
    let mut line = serde_json::to_vec(value).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_match_the_documentation() {
        let flow = FlowId { connection: 3, flow: 1 };
        for (text, request) in [
            (r#"{"request":"hello"}"#, Request::Hello),
            (r#"{"request":"flows"}"#, Request::Flows),
            (r#"{"request":"policy"}"#, Request::Policy),
            (
                r#"{"request":"set-policy","text":"x = 1"}"#,
                Request::SetPolicy { text: "x = 1".into(), path: String::new() },
            ),
            (
                r#"{"request":"set-policy","text":"x = 1","path":"/p"}"#,
                Request::SetPolicy { text: "x = 1".into(), path: "/p".into() },
            ),
            (r#"{"request":"programs"}"#, Request::Programs),
            (
                r#"{"request":"set-flow","flow":"3.1","algorithm":"cubic","cap_bits_per_second":0}"#,
                Request::SetFlow { flow, algorithm: Some("cubic".into()), cap_bits_per_second: Some(0) },
            ),
            (
                r#"{"request":"set-flow","flow":"3.1"}"#,
                Request::SetFlow { flow, algorithm: None, cap_bits_per_second: None },
            ),
            (
                r#"{"request":"load","program":"AGFzbQ==","path":"/x.c"}"#,
                Request::Load { program: "AGFzbQ==".into(), path: "/x.c".into() },
            ),
            (r#"{"request":"unload","name":"x"}"#, Request::Unload { name: "x".into(), force: false }),
            (
                r#"{"request":"unload","name":"x","force":true}"#,
                Request::Unload { name: "x".into(), force: true },
            ),
            (r#"{"request":"events","after":7}"#, Request::Events { after: 7 }),
            (
                r#"{"request":"trace","flow":"3.1","every":10}"#,
                Request::Trace { flow: Some(flow), every: 10 },
            ),
        ] {
            assert_eq!(read_request(text.as_bytes()).unwrap(), request, "{text}");
            assert_eq!(line(&request), format!("{text}\n").into_bytes());
        }
        let short = read_request(br#"{"request":"trace"}"#).unwrap();
        assert_eq!(short, Request::Trace { flow: None, every: 1 });
        assert_eq!("3".parse::<FlowId>().unwrap(), FlowId { connection: 3, flow: 0 });
    }

    #[test]
    fn invalid_requests_are_rejected_with_a_reason() {
        for bad in [
            "",
            "null",
            "{}",
            "[]",
            r#"{"request":"dance"}"#,
            r#"{"request":"set-policy"}"#,
            r#"{"request":"set-policy","text":1}"#,
            r#"{"request":"set-policy","text":"","more":1}"#,
            r#"{"request":"set-flow","flow":"3.x"}"#,
            r#"{"request":"set-flow","flow":"-1.0"}"#,
            r#"{"request":"set-flow","flow":"1.0","cap_bits_per_second":-1}"#,
            r#"{"request":"events","after":18446744073709551616}"#,
            r#"{"request":"hello"} {"request":"hello"}"#,
        ] {
            let e = read_request(bad.as_bytes()).unwrap_err();
            assert!(e.to_string().contains("docs/control.md"), "{bad}: {e}");
        }
        assert!(matches!(read_request(&vec![b' '; MAX_REQUEST + 1]), Err(BadRequest::TooLong)));
        // Depth is bounded by the reader of JSON.
        assert!(read_request(&vec![b'['; 100_000]).is_err());
    }

    proptest! {
        #[test]
        fn messages_round_trip_through_json(text in ".*", after: u64, every: u32, flow: u32) {
            let flow = FlowId { connection: after, flow };
            for request in [
                Request::SetPolicy { text: text.clone(), path: text.clone() },
                Request::Load { program: text.clone(), path: text.clone() },
                Request::Unload { name: text.clone(), force: every > 1 },
                Request::Events { after },
                Request::Trace { flow: Some(flow), every },
                Request::SetFlow { flow, algorithm: Some(text), cap_bits_per_second: Some(after) },
            ] {
                let line = line(&request);
                prop_assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
                prop_assert_eq!(read_request(&line).unwrap(), request);
            }
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes: Vec<u8>) {
            let _ = read_request(&bytes);
        }
    }
}
