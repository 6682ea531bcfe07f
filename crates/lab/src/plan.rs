//! Plans of experiments: the topology, the flows to compare, the number of runs, and the metrics.
//!
//! A plan is a TOML file. Its cells are all combinations of its cases and swept values; in each cell every peer (a
//! line-up of flows) runs in turn, as often as the plan says. [`SHIPPED`] are the plans that come with the program.

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

/// A description of the format of plans.
pub const HELP: &str = include_str!("plan/help.txt");

/// Most bytes of a plan.
pub const MAX_TEXT: usize = 256 << 10;
/// Most cells of a plan.
pub const MAX_CELLS: usize = 4_096;
/// Most runs of each peer in each cell.
pub const MAX_REPETITIONS: u32 = 1_000;
/// Most nodes of a topology, half of them on each side of a dumbbell.
pub const MAX_NODES: u32 = 64;
/// Most tables of published figures, and most rows and columns of one.
pub const MAX_PUBLISHED: usize = 32;
/// Most flows of a line-up.
pub const MAX_FLOWS: usize = 256;
/// Most streams of a flow, as in `longhaul perf`.
pub const MAX_STREAMS: u32 = 128;
/// Longest run.
pub const MAX_DURATION: Span = Span::from_secs(3_600);

/// A checked plan with all combinations.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name: that of the file without its ending.
    pub name: String,
    /// A line for people.
    pub title: String,
    /// What it shows, for people.
    pub about: String,
    /// Valid runs required of each peer in each cell.
    pub repetitions: u32,
    /// The seed.
    pub seed: u64,
    /// The metrics in tables; the first is the headline.
    pub metrics: Vec<Metric>,
    /// It has rates or sizes that this machine cannot emulate in real time.
    pub simulator_only: bool,
    /// All combinations, in the order in which they run.
    pub cells: Vec<Cell>,
    /// Published figures to compare with.
    pub published: Vec<Published>,
    /// The comparison of one peer with the best of others.
    pub regret: Option<Regret>,
    /// The comparison of the simulator with real time.
    pub truth: Option<Truth>,
}

/// What a plan runs in the simulator and in real time, to compare both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Truth {
    /// Largest difference of the headline's medians that needs no reason.
    pub within: f64,
    /// Simulated runs of each peer in each cell.
    pub simulated: u32,
    /// Why cells differ by more.
    #[serde(default)]
    pub reasons: Vec<Reason>,
}

/// Why a cell differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reason {
    /// The cell.
    pub cell: String,
    /// In words.
    pub why: String,
}

/// A peer that should reach in every cell what the best of others reaches in its median run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Regret {
    /// Its name.
    pub of: String,
    /// The names of the others.
    pub against: Vec<String>,
    /// A cell misses if the worst run has less than this part of the best median.
    #[serde(default = "Regret::worst")]
    pub worst: f64,
    /// A cell misses if the median has less than this part of the best median.
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

/// A published table of figures, and our results to show beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Its title.
    pub title: String,
    /// Its source, what it was measured on, and remarks.
    pub about: String,
    /// Headings of its columns; the first column names the row.
    pub columns: Vec<String>,
    /// Its rows, as they were published.
    pub rows: Vec<Vec<String>>,
    /// Our cells to show beside it.
    #[serde(default)]
    pub cells: Vec<String>,
    /// Our peers to show beside it; all if empty.
    #[serde(default)]
    pub peers: Vec<String>,
    /// Our metrics to show beside it.
    #[serde(default)]
    pub metrics: Vec<Metric>,
    /// Our results in its own columns, one row for each metric.
    #[serde(default)]
    pub ours: Vec<Ours>,
}

/// Our results in the columns of a published table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ours {
    /// Their title.
    pub title: String,
    /// The peer of each column but the first, which names the row.
    pub peers: Vec<String>,
}

/// One combination of values: a network and the peers compared on it.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The swept values as text: `loss=0.1%,streams=3`; empty if nothing is swept.
    pub id: String,
    /// The swept values one by one.
    pub point: Vec<(String, String)>,
    /// The network.
    pub topology: Topology,
    /// Duration of a run from the start of the first flow.
    pub duration: Span,
    /// Time from the start that steady metrics leave out.
    pub warm_up: Span,
    /// The peers, which run in turn.
    pub peers: Vec<Lineup>,
    /// A seed and the cell's index among the cells of that seed, which do not change when other cells are left out.
    pub chance: (u64, u64),
}

impl Cell {
    /// The name of a peer in this cell, to which `--only` refers.
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
    /// The shared link towards the receivers; its delay is half the shortest round trip.
    pub forward: LinkConfig,
    /// The link back.
    pub reverse: LinkConfig,
    /// The second of two paths, in both directions.
    pub second: Option<(LinkConfig, LinkConfig)>,
    /// Idle round trip of each pair or host, or one for all.
    pub rtts: Vec<Span>,
    /// The rate at which each receiver's host processes data; unlimited if `None`. In the simulator only.
    pub host_rate: Option<Rate>,
    /// Delivery opportunities in milliseconds, instead of a rate.
    pub trace: Option<std::sync::Arc<Vec<u64>>>,
}

impl Topology {
    /// The idle round trip of pair or host `i`.
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
    /// Connections or queue pairs that send in parallel.
    pub streams: u32,
    /// The known rate for Longhaul.
    #[serde(serialize_with = "rate")]
    pub known_rate: Option<Rate>,
    /// The maximum rate for Longhaul.
    #[serde(serialize_with = "rate")]
    pub limit: Option<Rate>,
    /// The rate of UDP cross traffic while it is on.
    #[serde(serialize_with = "rate")]
    pub rate: Option<Rate>,
    /// Duration of on phases of cross traffic or requests; zero for always on.
    #[serde(serialize_with = "seconds")]
    pub on: Span,
    /// Duration of off phases.
    #[serde(serialize_with = "seconds")]
    pub off: Span,
    /// Bytes of a request.
    pub size: u64,
    /// Mean time between requests (a Poisson process); `None` sends the next request after the answer to the last.
    pub every: Option<f64>,
    /// Whether it uses both of two paths at once.
    pub multipath: bool,
    /// Whether messages are answered one by one (ping-pong) instead of streamed.
    pub ping_pong: bool,
    /// Whether both ends of messages poll instead of sleeping.
    pub busy_poll: bool,
    /// Further arguments of the program.
    pub args: Vec<String>,
    /// The policy of the sender's host; empty for the built-in one.
    pub policy: String,
    /// The parts of its traffic.
    pub parts: Vec<Part>,
    /// Time from its start that the metrics of its parts leave out.
    #[serde(serialize_with = "seconds")]
    pub warm_up: Span,
    /// Whether it is background, which is not measured.
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
    /// Parses a plan. `name` is its name in messages.
    ///
    /// # Errors
    /// The first mistake, with line, key and remedy.
    pub fn parse(name: &str, text: &str) -> Result<Plan, PlanError> {
        expand::plan(name, text)
    }

    /// Opens the shipped plan of this name, or a plan file.
    ///
    /// # Errors
    /// A mistake in it, or that there is no such plan, as text.
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

    /// Keeps only peers and cells whose name contains `only`.
    ///
    /// # Errors
    /// The available names, as text.
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

    /// Keeps every `of`-th cell from cell `part` (from 1) on, so that several parts together are the whole plan.
    ///
    /// # Errors
    /// There is no such part or it is empty, as text.
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

    /// The number of runs and their total duration without set-up, if no run has to be repeated.
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
