//! The file format of plans, as serde reads it, with the position of each value for messages.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use toml::Spanned;

/// A text with its position in the file.
pub(super) type Text = Spanned<String>;
/// A number with its position in the file.
pub(super) type Number = Spanned<u32>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub title: String,
    #[serde(default)]
    pub about: String,
    pub repetitions: Option<Number>,
    pub duration: Text,
    pub warm_up: Option<Text>,
    pub seed: Option<u64>,
    pub metrics: Vec<Text>,
    /// The plan is for the simulator only, for example because of its rates.
    #[serde(default)]
    pub simulator_only: bool,
    pub topology: Topology,
    #[serde(default)]
    pub case: Vec<Case>,
    #[serde(default)]
    pub sweep: Sweep,
    #[serde(default)]
    pub grid: Vec<Grid>,
    pub peer: Vec<Peer>,
    #[serde(default)]
    pub background: Vec<Flow>,
    #[serde(default)]
    pub published: Vec<super::Published>,
    pub regret: Option<Spanned<super::Regret>>,
    pub truth: Option<Spanned<super::Truth>>,
}

/// The shape of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Two nodes, `a` and `b`, and one link each way.
    Path,
    /// Senders `s1`, `s2`, ... and receivers `r1`, `r2`, ... on both sides of one shared link each way.
    Dumbbell,
    /// Hosts `n1`, `n2`, ... around one switch; each has a queue on its port of the switch.
    Star,
    /// Two nodes, `a` and `b`, with two addresses each and two separate paths.
    TwoPaths,
    /// Two nodes, `a` and `b`, connected by virtual Ethernet without emulation. Flows run one after the other, and
    /// their costs are measured.
    Direct,
}

/// Link settings of a case or the topology.
#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields)]
pub(super) struct Topology {
    pub kind: Option<Kind>,
    pub nodes: Option<Number>,
    pub rate: Option<Text>,
    pub rtt: Option<Text>,
    pub rtts: Option<Vec<Text>>,
    pub queue: Option<Text>,
    pub police: Option<Text>,
    pub loss: Option<Text>,
    pub loss_reverse: Option<Text>,
    pub jitter: Option<Text>,
    pub order: Option<Text>,
    pub reorder: Option<Text>,
    pub duplicate: Option<Text>,
    pub ecn: Option<Text>,
    pub ecn1: Option<Text>,
    pub telemetry: Option<Text>,
    pub host_rate: Option<Text>,
    pub mtu: Option<Text>,
    pub trace: Option<Text>,
    pub at: Option<Vec<Text>>,
    pub second: Option<Second>,
}

/// The second of two paths, as far as it differs from the first.
#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields)]
pub(super) struct Second {
    pub rate: Option<Text>,
    pub rtt: Option<Text>,
    pub queue: Option<Text>,
    pub loss: Option<Text>,
    pub at: Option<Vec<Text>>,
}

/// A named variation of the topology.
#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    pub name: Text,
    pub duration: Option<Text>,
    pub warm_up: Option<Text>,
    #[serde(default)]
    pub topology: Topology,
}

/// Cells of its own: the values of a sweep, with changes to the plan's topology.
#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub(super) struct Grid {
    pub name: Text,
    #[serde(default)]
    pub combine: Combine,
    pub duration: Option<Text>,
    pub warm_up: Option<Text>,
    pub seed: Option<u64>,
    #[serde(default)]
    pub topology: Topology,
    #[serde(default)]
    pub case: Vec<Case>,
    #[serde(default)]
    pub sweep: Sweep,
}

/// Which combinations of swept values become cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Combine {
    /// All.
    #[default]
    All,
    /// The unchanged topology, each value alone, and all pairs of values of two keys.
    Pairs,
}

/// Swept values.
#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Sweep {
    pub rate: Vec<Text>,
    pub rtt: Vec<Text>,
    pub queue: Vec<Text>,
    pub police: Vec<Text>,
    pub loss: Vec<Text>,
    pub jitter: Vec<Text>,
    pub order: Vec<Text>,
    pub reorder: Vec<Text>,
    pub host_rate: Vec<Text>,
    pub ecn: Vec<Text>,
    pub trace: Vec<Text>,
    pub streams: Vec<Number>,
    pub flows: Vec<Number>,
    pub size: Vec<Text>,
}

/// A line-up of flows that is compared with the other peers of the plan.
#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub(super) struct Peer {
    pub name: Text,
    /// Words in braces and their values; all combinations become peers.
    #[serde(default)]
    pub vary: BTreeMap<String, Vec<String>>,
    /// Only in cases with these names.
    pub cases: Option<Vec<Text>>,
    pub flow: Vec<Flow>,
}

/// The program of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// `longhaul perf`: RDMA Writes from memory to memory.
    Longhaul,
    /// `longhaul put`: a file of the given bytes.
    Put,
    /// The kernel's TCP, from memory to memory, by a small program of the laboratory.
    Tcp,
    /// The kernel's TCP by `iperf3`.
    Iperf3,
    /// QUIC by quinn.
    Quic,
    /// UDT4.
    Udt,
    /// Requests of a size with short answers over the kernel's TCP, one connection per stream.
    TcpRequests,
    /// Requests of a size and short answers over Sends of Longhaul.
    LonghaulRequests,
    /// One sender of Longhaul whose traffic has several parts, each with its own QoS.
    LonghaulParts,
    /// Messages of a size over the kernel's TCP, one call each, by a small program of the laboratory.
    TcpMessages,
    /// Messages over iWARP, by `longhaul perf`.
    IwarpMessages,
    /// Messages over Longhaul's own transport.
    LonghaulMessages,
    /// Cross traffic: UDP at a rate, on and off.
    UdpOnOff,
    /// Cross traffic: the kernel's TCP, on and off.
    TcpOnOff,
}

#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub(super) struct Flow {
    pub program: Spanned<Program>,
    pub name: Option<String>,
    pub cc: Option<Text>,
    pub from: Option<Text>,
    pub to: Option<Text>,
    pub start: Option<Text>,
    pub duration: Option<Text>,
    pub bytes: Option<Text>,
    pub streams: Option<Number>,
    pub count: Option<Number>,
    pub stagger: Option<Text>,
    pub known_rate: Option<Text>,
    pub limit: Option<Text>,
    pub rate: Option<Text>,
    pub on: Option<Text>,
    pub off: Option<Text>,
    pub size: Option<Text>,
    pub every: Option<Text>,
    /// Uses both of two paths at once.
    pub multipath: Option<bool>,
    /// Messages are answered one by one (ping-pong) instead of streamed.
    pub ping_pong: Option<bool>,
    /// Ends of messages poll instead of sleeping.
    pub busy_poll: Option<bool>,
    #[serde(default)]
    pub args: Vec<String>,
    /// The policy of the sender's host.
    pub policy: Option<Text>,
    #[serde(default)]
    pub part: Vec<Part>,
}

/// A part of a sender's traffic.
#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub(super) struct Part {
    pub name: Text,
    /// What it asks for; of several, there is a part for each.
    #[serde(default, deserialize_with = "one_or_several")]
    pub qos: Vec<String>,
    pub size: Option<Text>,
    pub every: Option<Text>,
    pub start: Option<Text>,
}

fn one_or_several<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Texts {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Texts::deserialize(d)? {
        Texts::One(text) => vec![text],
        Texts::Several(all) => all,
    })
}
