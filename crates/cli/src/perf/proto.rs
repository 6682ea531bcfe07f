//! The messages between both ends of a measurement: JSON in sends over queue pair 0.

use crate::args::Operation;
use crate::policy_decision::PolicyDecision;
use admin::proto::PathSignals;
use base::Span;
use serde::{Deserialize, Serialize};

/// Version of these messages.
pub const VERSION: u32 = 5;
/// Queue pairs with load at most.
pub const MAX_STREAMS: u16 = 128;
/// Messages under way on each at most.
pub const MAX_DEPTH: u32 = 4_096;
/// What a work request or a receive takes while it is posted, with its completion: an upper bound.
const REQUEST: u64 = 512;
/// Receives that a responder keeps posted at most; the queue pairs hold as many.
const MAX_RECEIVES: u64 = 4_096;
/// And all its streams together: half of what the connection's completion queue has room for.
const ALL_RECEIVES: u64 = 1 << 16;
/// Bytes that posted receives stand for at most.
const RECEIVE_BYTES: u64 = 256 << 20;
/// Bytes in front of a message in an end's region, so that it begins 128 bytes behind the start of a page (a long list of
/// bytes begins 16 behind it). The kernel copies a message to or from pages of its own, and processors copy slowly to where
/// lies 1 to 63 bytes behind the source, counted from the starts of their pages. What precedes a message is at most 20 bytes.
pub const FRONT: u64 = 112;
/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Longest message that is measured.
pub const MAX_SIZE: u64 = 1 << 30;
/// Longest region. How many there may be is a question of the memory that an end has for them.
pub const MAX_REGION: u64 = 1 << 40;
/// Bytes that an atomic operation changes.
pub const ATOMIC_LEN: u64 = 8;
/// Longest measurement in nanoseconds: a day.
const MAX_NANOS: u64 = 86_400_000_000_000;

/// What is to be measured; sent by the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// [`VERSION`].
    pub version: u32,
    /// Which operation.
    pub operation: Operation,
    /// One message at a time, to and fro.
    pub latency: bool,
    /// Bytes of a message.
    pub size: u64,
    /// Queue pairs with load.
    pub streams: u16,
    /// Messages under way on each at most.
    pub depth: u32,
    /// Fewer are under way until the path has shown to carry them.
    #[serde(default)]
    pub grows: bool,
    /// How long, in nanoseconds.
    pub nanos: u64,
    /// How many messages in all, instead.
    pub messages: Option<u64>,
    /// What is under way at the end is given up.
    pub stop: bool,
    /// The server is the initiator.
    pub reverse: bool,
    /// Bytes of the region of each queue pair.
    pub region: u64,
    /// Compare what arrived.
    pub verify: bool,
    /// Remote keys of the client's regions, when it is the responder, or both are.
    pub rkeys: Vec<u32>,
}

impl Plan {
    /// Checks the limits.
    ///
    /// # Errors
    /// Words for the other end's user.
    pub fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!(
                "cannot measure: the server speaks version {VERSION} of the protocol, the client {}; try the same \
                 version at both ends",
                self.version
            ));
        }
        if self.size == 0 || self.size > MAX_SIZE || self.size > self.region {
            return Err(format!(
                "cannot measure with this message size: it is not from 1 to {MAX_SIZE} bytes, or exceeds the region \
                 of {}; try another --size",
                self.region
            ));
        }
        if self.operation.is_atomic() && self.size != ATOMIC_LEN {
            return Err(format!(
                "cannot measure with this message size: an atomic operation has {ATOMIC_LEN} bytes; \
                 try without --size"
            ));
        }
        if !(1..=MAX_STREAMS).contains(&self.streams) || !(1..=MAX_DEPTH).contains(&self.depth) {
            return Err(format!(
                "cannot measure with so many streams or messages: 1 to {MAX_STREAMS} streams with 1 to {MAX_DEPTH} \
                 messages each are possible; try fewer"
            ));
        }
        if self.region > MAX_REGION {
            return Err(format!(
                "cannot measure with this region: it has {MAX_REGION} bytes at most; try a smaller \
                 --region"
            ));
        }
        if self.latency && (self.streams != 1 || self.operation == Operation::Read) {
            let text = "cannot measure this latency: it is measured on one stream, of writes or sends; try --streams 1";
            return Err(text.to_owned());
        }
        if self.nanos > MAX_NANOS {
            return Err(
                "cannot measure for so long: a measurement lasts a day at most; try a shorter --time"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// How long it lasts, unless it is over after so many messages.
    pub fn time(&self) -> Option<Span> {
        self.messages.is_none().then(|| Span::from_nanos(self.nanos))
    }

    /// Whether the client's keys are those that its plan needs.
    ///
    /// # Errors
    /// Words for the client's user.
    pub fn check_keys(&self) -> Result<(), String> {
        let needed = if self.reverse || self.latency { usize::from(self.streams) } else { 0 };
        if self.rkeys.len() == needed { Ok(()) } else { Err(format!("{needed} remote keys are needed")) }
    }

    /// Bytes of each stream's memory at either end.
    pub fn region_len(&self) -> u64 {
        match self.latency {
            // A message that leaves, and behind it one that arrives.
            true => 2 * (FRONT + self.size).next_multiple_of(PAGE),
            false => self.slots() * self.size,
        }
    }

    /// Receives that a responder posts on each stream.
    pub fn receives(&self) -> u64 {
        let most = (ALL_RECEIVES / u64::from(self.streams.max(1))).clamp(2, MAX_RECEIVES);
        (RECEIVE_BYTES / self.size.max(1)).clamp(2, most)
    }

    /// What the server takes of memory for it in all: regions, and work requests or receives that are posted.
    pub fn memory(&self) -> u64 {
        let streams = u64::from(self.streams);
        let posted = match self.operation {
            _ if self.latency => 0,
            Operation::Send if !self.reverse => self.receives() * streams,
            _ => u64::from(self.depth).saturating_mul(streams),
        };
        self.region_len().saturating_mul(streams).saturating_add(posted.saturating_mul(REQUEST))
    }

    /// Messages that lie in a region side by side.
    pub fn slots(&self) -> u64 {
        (self.region / self.size.max(1)).max(1)
    }
}

/// Paths of which is told what they carried.
pub const MAX_TOLD_PATHS: usize = 8;

/// What one path carried, as one end counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PathFigures {
    /// This end's address, when known.
    #[serde(default)]
    pub local: Option<String>,
    /// It was added because addresses were found, and not asked for.
    #[serde(default)]
    pub discovered: bool,
    /// The other end's address.
    pub remote: String,
    /// Whether data could go over it at the end.
    pub active: bool,
    /// The path that carries data in its place, because both lead over the same bottleneck.
    pub shares_bottleneck_with: Option<u32>,
    /// Bytes of data packets sent.
    pub bytes_sent: u64,
    /// Bytes of packets received.
    pub bytes_received: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// Smoothed round-trip time.
    pub srtt_seconds: f64,
    /// What it carries of the signals that algorithms need.
    #[serde(default)]
    pub signals: PathSignals,
}

impl PathFigures {
    /// Of a connection's path.
    pub fn new(p: &endpoint::PathStats) -> PathFigures {
        PathFigures {
            local: p.local.map(|ip| ip.to_string()),
            discovered: p.found,
            remote: p.remote.to_string(),
            active: p.works,
            shares_bottleneck_with: p.shares,
            bytes_sent: p.sent,
            bytes_received: p.received,
            packets_lost: p.lost,
            srtt_seconds: p.srtt.as_secs_f64(),
            signals: PathSignals::new(p),
        }
    }
}

/// What one end counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// Payload of completed messages; with [`Plan::stop`], of what had arrived of those that were given up, too.
    pub bytes: u64,
    /// Completed messages.
    pub messages: u64,
    /// From the first message to the last completion; zero at the responder.
    pub seconds: f64,
    /// CPU time of the process during the measurement, in user space.
    pub cpu_user_seconds: f64,
    /// The same in the kernel.
    pub cpu_system_seconds: f64,
    /// Payload bytes sent, repeated ones included.
    pub payload_sent: u64,
    /// Payload bytes retransmitted.
    pub payload_retransmitted: u64,
    /// Payload bytes that arrived.
    pub payload_received: u64,
    /// Bytes of packets sent, IP and UDP headers included.
    pub bytes_sent: u64,
    /// Bytes of control packets sent.
    pub control_bytes_sent: u64,
    /// Packets sent.
    pub packets_sent: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// Packets that arrived marked (ECN CE), of those that this end sent.
    #[serde(default)]
    pub packets_marked: u64,
    /// What the policy made of what this end sends; `None` where there is none.
    #[serde(default)]
    pub policy: Option<PolicyDecision>,
    /// Paths that worked at the end.
    pub path_count: u32,
    /// What each of the first paths carried.
    #[serde(default)]
    pub paths: Vec<PathFigures>,
    /// Smoothed round-trip time.
    pub srtt_seconds: f64,
    /// Lowest round-trip time.
    pub min_rtt_seconds: f64,
    /// Whether what arrived is what was sent; `None` when nobody looked.
    pub verified: Option<bool>,
    /// Round-trip times in nanoseconds: lowest, median, 99th percentile, highest.
    pub latency: Option<[u64; 4]>,
}

impl Figures {
    /// CPU seconds in all.
    pub fn cpu(&self) -> f64 {
        self.cpu_user_seconds + self.cpu_system_seconds
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Message {
    /// Client: measure this.
    Ask(Plan),
    /// Server: ready; the remote keys of its regions, when it is the responder.
    Ready(Vec<u32>),
    /// Initiator: the load is over; messages completed on each stream.
    Finish(Vec<u64>, Figures),
    /// Responder: what it counted.
    Done(Figures),
    /// Server: no, and why.
    Refused(String),
}

impl Message {
    /// To bytes.
    pub fn encode(&self) -> Vec<u8> {
        // Plain structures of numbers and text always have a JSON form.
        serde_json::to_vec(self).unwrap_or_default()
    }
    /// From bytes of the other end.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Message, String> {
        serde_json::from_slice(bytes).map_err(|e| {
            format!("the other end sent what is no message: {}", base::text::line(&e.to_string()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plan() -> Plan {
        Plan::example()
    }

    #[test]
    fn memory_of_a_plan_counts_every_parameter() {
        let of = |change: fn(&mut Plan)| {
            let mut p = plan();
            change(&mut p);
            p.memory()
        };
        let (regions, depth) = (4 * (64 << 20), 4 * 16 * REQUEST);
        assert_eq!(of(|_| ()), regions + depth);
        assert_eq!(of(|p| p.streams = 8), 2 * (regions + depth));
        assert_eq!(of(|p| p.depth = 4_096), regions + 256 * depth);
        // Receives are as many as the responder posts, whatever the depth.
        assert_eq!(of(|p| (p.operation, p.size) = (Operation::Send, 1)), regions + 4 * 4_096 * REQUEST);
        assert_eq!(of(|p| (p.region, p.streams) = (MAX_REGION, 128)), 128 * MAX_REGION + 32 * depth);
    }

    impl Plan {
        pub fn example() -> Plan {
            Plan {
                version: VERSION,
                latency: false,
                operation: Operation::Write,
                size: 1 << 20,
                streams: 4,
                depth: 16,
                grows: false,
                nanos: 1_000_000_000,
                stop: false,
                messages: None,
                reverse: false,
                region: 64 << 20,
                verify: true,
                rkeys: vec![],
            }
        }
    }

    #[test]
    fn messages_survive_encoding() {
        for m in [
            Message::Ask(plan()),
            Message::Ready(vec![1, u32::MAX]),
            Message::Finish(vec![7], Figures { latency: Some([1, 2, 3, 4]), ..Figures::default() }),
            Message::Done(Figures::default()),
            Message::Refused("no".into()),
        ] {
            assert_eq!(Message::decode(&m.encode()), Ok(m));
        }
    }

    #[test]
    fn plans_beyond_the_limits_are_refused() {
        assert_eq!(plan().check(), Ok(()));
        let bad: [fn(&mut Plan); 9] = [
            |p| p.version = 0,
            |p| p.size = 0,
            |p| p.size = p.region + 1,
            |p| p.streams = 0,
            |p| p.depth = 5_000,
            |p| p.region = MAX_REGION + 1,
            |p| p.nanos = u64::MAX,
            |p| (p.latency, p.operation) = (true, Operation::Read),
            |p| (p.size, p.operation) = (16, Operation::FetchAdd),
        ];
        for (i, change) in bad.iter().enumerate() {
            let mut p = plan();
            change(&mut p);
            assert!(p.check().is_err(), "{i}");
        }
        assert_eq!(plan().check_keys(), Ok(()));
        assert!(Plan { reverse: true, ..plan() }.check_keys().is_err());
        assert!(Plan { rkeys: vec![1], ..plan() }.check_keys().is_err());
    }

    proptest! {
        #[test]
        fn decoding_accepts_any_input_without_panic(b in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::decode(&b);
        }
    }
}
