//! Plans: which topology, which line-ups of flows, how often, and what is measured.
//!
//! A plan is a TOML file. Its cells are all combinations of its cases and swept values; in each, every peer (a line-up of
//! flows) runs in turn, as often as the plan says. See [`SHIPPED`] for those that come with the program.

mod error;
mod expand;
mod file;
mod grid;
mod metric;
mod parts;
mod shipped;
pub mod trace;
pub(crate) mod units;
mod vary;

pub use error::PlanError;
pub use file::{Kind, Program};
pub use metric::{Better, Metric};
pub use shipped::{SHIPPED, shipped};

use crate::workload::parts::Part;
use base::{Rate, Span};
use netem::LinkConfig;
use serde::{Deserialize, Serialize};

/// What plans are written with, for people.
pub const HELP: &str = include_str!("plan/help.txt");

/// Bytes of a plan at most.
pub const MAX_TEXT: usize = 256 << 10;
/// Cells of a plan at most.
pub const MAX_CELLS: usize = 4_096;
/// Runs of each peer in each cell at most.
pub const MAX_REPETITIONS: u32 = 1_000;
/// Nodes of a topology at most: half of them on each side of a dumbbell.
pub const MAX_NODES: u32 = 64;
/// Tables of published figures at most, and rows and columns of one.
pub const MAX_PUBLISHED: usize = 32;
/// Flows of a line-up at most.
pub const MAX_FLOWS: usize = 256;
/// Streams of a flow at most; `longhaul perf` carries as many.
pub const MAX_STREAMS: u32 = 128;
/// Longest run.
pub const MAX_DURATION: Span = Span::from_secs(3_600);

/// A plan, checked, with all combinations spelled out.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name: that of the file without its ending.
    pub name: String,
    /// A line for people.
    pub title: String,
    /// What it shows, for people.
    pub about: String,
    /// Runs of each peer in each cell that must be good.
    pub repetitions: u32,
    /// Where chance begins.
    pub seed: u64,
    /// What tables show; the first is the headline.
    pub metrics: Vec<Metric>,
    /// Rates or sizes that this machine cannot emulate in real time.
    pub simulator_only: bool,
    /// All combinations, in the order in which they run.
    pub cells: Vec<Cell>,
    /// Figures of others, which ours are to stand beside.
    pub published: Vec<Published>,
    /// A peer that is to do as well as the best of others.
    pub regret: Option<Regret>,
}

/// A peer that is to do in every cell as well as the best of others does in the middle of its runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Regret {
    /// Its name.
    pub of: String,
    /// The names of the others.
    pub against: Vec<String>,
    /// A cell misses when the worst run has less than this part of the best median.
    #[serde(default = "Regret::worst")]
    pub worst: f64,
    /// And when the median has less than this part of it.
    #[serde(default = "Regret::median")]
    pub median: f64,
}

impl Regret {
    fn worst() -> f64 {
        0.9
    }
    fn median() -> f64 {
        0.97
    }
}

/// A table of figures that others published, and which of ours are laid out like it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// What it shows.
    pub title: String,
    /// Where it is from, on what it was measured, what is to be known of it.
    pub about: String,
    /// Headings of its columns; the first column names the row.
    pub columns: Vec<String>,
    /// Its rows, as they were published.
    pub rows: Vec<Vec<String>>,
    /// Our cells beside it.
    #[serde(default)]
    pub cells: Vec<String>,
    /// Our peers beside it; all when empty.
    #[serde(default)]
    pub peers: Vec<String>,
    /// Our metrics beside it.
    #[serde(default)]
    pub metrics: Vec<Metric>,
    /// Ours in its own columns: a row for each metric.
    #[serde(default)]
    pub ours: Vec<Ours>,
}

/// Our figures in the columns of a published table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ours {
    /// What they are of, for people.
    pub title: String,
    /// The peer of each column but the first, which names the row.
    pub peers: Vec<String>,
}

/// One combination of values: a network, and those who are compared on it.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The swept values in words: `loss=0.1%,streams=3`; empty where nothing is swept.
    pub id: String,
    /// The same one by one.
    pub point: Vec<(String, String)>,
    /// The network.
    pub topology: Topology,
    /// How long a run lasts from the start of the first flow.
    pub duration: Span,
    /// What is left out of steady figures, from the start.
    pub warm_up: Span,
    /// Those who run in turn.
    pub peers: Vec<Lineup>,
    /// Where its chance begins: a seed, and its place among the cells of that seed. Stays when other cells are left out.
    pub chance: (u64, u64),
}

impl Cell {
    /// The name of a peer in this cell: what `--only` looks at.
    pub fn name_of(&self, peer: &Lineup) -> String {
        if self.id.is_empty() { peer.name.clone() } else { format!("{}/{}", self.id, peer.name) }
    }
}

/// A network.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Its shape.
    pub kind: Kind,
    /// Pairs of a dumbbell, hosts of a star, otherwise 2.
    pub nodes: u32,
    /// The link that is shared, towards the receivers; its delay is half the shortest round trip.
    pub there: LinkConfig,
    /// The link back.
    pub back: LinkConfig,
    /// The second of two paths, each way.
    pub second: Option<(LinkConfig, LinkConfig)>,
    /// Round trip of each pair or host when the network is idle; one for all where there is only one.
    pub rtts: Vec<Span>,
    /// How fast each receiver's host takes in what arrives; as fast as it comes when `None`. In the simulator only.
    pub host_rate: Option<Rate>,
    /// Delivery opportunities in milliseconds, instead of a rate.
    pub trace: Option<std::sync::Arc<Vec<u64>>>,
}

impl Topology {
    /// The round trip of pair or host `i` when the network is idle.
    pub fn rtt(&self, i: usize) -> Span {
        self.rtts.get(i).or(self.rtts.first()).copied().unwrap_or(Span::ZERO)
    }
    /// The names of all nodes.
    pub fn node_names(&self) -> Vec<String> {
        match self.kind {
            Kind::Path | Kind::TwoPaths | Kind::Direct => vec!["a".into(), "b".into()],
            Kind::Dumbbell => {
                let side = |c: char| (1..=self.nodes).map(move |i| format!("{c}{i}"));
                side('s').chain(side('r')).collect()
            }
            Kind::Star => (1..=self.nodes).map(|i| format!("n{i}")).collect(),
        }
    }
}

/// Flows that run together and are compared with other line-ups.
#[derive(Clone, Debug)]
pub struct Lineup {
    /// For tables.
    pub name: String,
    /// Its flows, then those of the background.
    pub flows: Vec<Flow>,
}

/// One program that sends from a node to another.
#[derive(Clone, Debug, Serialize)]
pub struct Flow {
    /// Unique in its line-up.
    pub name: String,
    /// What sends.
    pub program: Program,
    /// Congestion control, with parameters for Longhaul; empty for the program's default.
    pub cc: String,
    /// The sender's node.
    pub from: String,
    /// The receiver's node.
    pub to: String,
    /// From the start of the run.
    #[serde(serialize_with = "seconds")]
    pub start: Span,
    /// For how long it sends.
    #[serde(serialize_with = "seconds")]
    pub duration: Span,
    /// How much it sends, instead.
    pub bytes: Option<u64>,
    /// Connections, or queue pairs, that send at the same time.
    pub streams: u32,
    /// A rate that Longhaul is told to be free.
    #[serde(serialize_with = "rate")]
    pub known_rate: Option<Rate>,
    /// The most that Longhaul may send.
    #[serde(serialize_with = "rate")]
    pub limit: Option<Rate>,
    /// The rate of UDP cross traffic while it is on.
    #[serde(serialize_with = "rate")]
    pub rate: Option<Rate>,
    /// How long cross traffic or requests are on; zero for always.
    #[serde(serialize_with = "seconds")]
    pub on: Span,
    /// How long they are off then.
    #[serde(serialize_with = "seconds")]
    pub off: Span,
    /// Bytes of a request.
    pub size: u64,
    /// Mean time between requests (a Poisson process); `None` sends the next when the one before is answered.
    pub every: Option<f64>,
    /// It goes over both of two paths at once.
    pub multipath: bool,
    /// Messages go to and fro, instead of one behind the other.
    pub trips: bool,
    /// Both ends of messages ask again and again instead of sleeping.
    pub spin: bool,
    /// Further arguments of the program.
    pub args: Vec<String>,
    /// The policy of the sender's host; empty for the built-in one.
    pub policy: String,
    /// The parts of its traffic.
    pub parts: Vec<Part>,
    /// What is left out of its parts' figures, from its start.
    #[serde(serialize_with = "seconds")]
    pub warm_up: Span,
    /// Not measured.
    pub background: bool,
}

fn seconds<S: serde::Serializer>(span: &Span, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_f64(span.as_secs_f64())
}
fn rate<S: serde::Serializer>(rate: &Option<Rate>, s: S) -> Result<S::Ok, S::Error> {
    match rate {
        Some(r) => s.serialize_some(&r.bits_per_sec()),
        None => s.serialize_none(),
    }
}

impl Plan {
    /// Reads a plan. `name` is what messages call it.
    ///
    /// # Errors
    /// The first mistake, with line, key and way out.
    pub fn parse(name: &str, text: &str) -> Result<Plan, PlanError> {
        expand::plan(name, text)
    }

    /// The plan that comes with the program under this name, or the one in the file of this name.
    ///
    /// # Errors
    /// A mistake in it, or that there is no such plan, in words.
    pub fn open(name: &str) -> Result<Plan, String> {
        if let Some(text) = shipped(name) {
            return Plan::parse(name, text).map_err(|e| e.to_string());
        }
        let path = std::path::Path::new(name);
        let too_long = |n: u64| format!("{name} has {n} bytes; a plan has at most {MAX_TEXT}");
        let meta = std::fs::metadata(path).map_err(|e| {
            let known: Vec<_> = SHIPPED.iter().map(|(n, _)| *n).collect();
            format!("no plan `{name}`: {e}; name a file, or one of: {}", known.join(", "))
        })?;
        if meta.len() > MAX_TEXT as u64 {
            return Err(too_long(meta.len()));
        }
        let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {name}: {e}"))?;
        let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or(name);
        Plan::parse(stem, &text).map_err(|e| e.to_string())
    }

    /// Leaves only those peers and cells whose name contains `only`.
    ///
    /// # Errors
    /// What there would have been, in words.
    pub fn keep_only(&mut self, only: &str) -> Result<(), String> {
        let all: Vec<String> = self.cells.iter().flat_map(|c| c.peers.iter().map(|p| c.name_of(p))).collect();
        for cell in &mut self.cells {
            let name = |p: &Lineup| {
                if cell.id.is_empty() { p.name.clone() } else { format!("{}/{}", cell.id, p.name) }
            };
            let keep: Vec<bool> = cell.peers.iter().map(|p| name(p).contains(only)).collect();
            let mut keep = keep.into_iter();
            cell.peers.retain(|_| keep.next().unwrap_or(false));
        }
        self.cells.retain(|c| !c.peers.is_empty());
        if self.cells.is_empty() {
            return Err(format!("no cell's name contains `{only}`; there are:\n  {}", all.join("\n  ")));
        }
        Ok(())
    }

    /// Leaves every `of`-th cell, from cell `part` on (from 1): several parts make the whole.
    ///
    /// # Errors
    /// There is no such part, or nothing in it; in words.
    pub fn keep_part(&mut self, part: usize, of: usize) -> Result<(), String> {
        if !(1..=of).contains(&part) {
            return Err(format!("there is no part {part} of {of}; write such as 1/{}", of.max(1)));
        }
        if part > self.cells.len() {
            return Err(format!("the plan has {} cells only; take fewer parts", self.cells.len()));
        }
        let mut at = 0;
        self.cells.retain(|_| {
            at += 1;
            at % of == part % of
        });
        Ok(())
    }

    /// How many runs it takes, and for how long they run without set-up, when nothing is spoiled.
    pub fn cost(&self) -> (u64, Span) {
        let mut runs = 0;
        let mut time = Span::ZERO;
        for c in &self.cells {
            let n = c.peers.len() as u64 * u64::from(self.repetitions);
            runs += n;
            time += c.duration * n;
        }
        (runs, time)
    }
}
