//! The results of runs, written to JSON and read by reports.

use super::regret::Table;
use super::spread::{self, Mode};
use crate::plan::{Better, Metric, Published};
use crate::workload::parts::PartResult;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the format.
pub const FORMAT: u32 = 2;
/// Most bytes of a file of results.
pub const MAX_BYTES: u64 = 1 << 30;

/// All results of a plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: u32,
    /// The plan's name.
    pub plan: String,
    /// Its title.
    pub title: String,
    /// What it shows.
    pub about: String,
    /// Whether it ran in the simulator, in virtual time.
    pub simulated: bool,
    /// Whether simulated hosts took time for what they did.
    #[serde(default)]
    pub timed_hosts: bool,
    /// Where and when.
    pub machine: Machine,
    /// Valid runs required of each peer in each cell.
    pub repetitions: u32,
    /// The metrics in tables, the headline first.
    pub metrics: Vec<Metric>,
    /// All combinations.
    pub cells: Vec<CellResult>,
    /// Whether everything ran; false after Ctrl-C.
    pub complete: bool,
    /// Published figures to compare with.
    #[serde(default)]
    pub published: Vec<Published>,
    /// The comparison of one peer with the best of others, if the plan asks for it and all runs are done.
    #[serde(default)]
    pub regret: Option<Table>,
}

/// Where and when.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The kernel's version.
    pub kernel: String,
    /// Processors that could be used.
    pub cpus: usize,
    /// Version of this program.
    pub version: String,
    /// Seconds since 1970 at the start.
    pub unix_seconds: u64,
    /// How long all of it took.
    pub seconds: f64,
    /// Peak memory of this process in bytes, which includes everything in the simulator; zero if the system does not
    /// report it.
    #[serde(default)]
    pub peak_memory: u64,
}

/// One combination of values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    /// The swept values as text.
    pub id: String,
    /// The swept values one by one.
    pub point: Vec<(String, String)>,
    /// The description of the bottleneck.
    pub network: String,
    /// Whether the nodes were connected directly, without emulation.
    #[serde(default)]
    pub direct: bool,
    /// Mean capacity of the bottleneck in bits per second; `None` without a limit.
    pub capacity: Option<f64>,
    /// Shortest round trip of the idle network, in seconds.
    pub rtt: f64,
    /// Start and end of the measured time, in seconds.
    pub window: (f64, f64),
    /// Events of the link: time in seconds, and text.
    pub events: Vec<(f64, String)>,
    /// The peers, in the order of the plan.
    pub peers: Vec<PeerResult>,
}

/// One peer in one cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerResult {
    /// Its name.
    pub name: String,
    /// Valid runs.
    pub runs: Vec<RunResult>,
    /// Discarded runs, and why.
    pub discarded: Vec<Discarded>,
    /// Why it did not run at all.
    pub skipped: Option<String>,
    /// Each metric over the valid runs.
    pub figures: BTreeMap<Metric, Figure>,
}

/// A discarded run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Discarded {
    /// In which repetition, from 1.
    pub repetition: u32,
    /// Why.
    pub why: String,
}

/// A metric over several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// The number of runs, without those that have no such figure (a level never reached).
    pub runs: usize,
    /// The bad end: the minimum if more is better, else the maximum.
    #[serde(default)]
    pub worst: f64,
    /// The value that a tenth of the runs are worse than, interpolated.
    #[serde(default)]
    pub worst_tenth: f64,
    /// Number of groups of runs with gaps between them, see [`spread::modes`]; zero in results of older versions.
    #[serde(default)]
    pub modes: usize,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// In which repetition, from 1.
    pub repetition: u32,
    /// The seed of the network.
    pub seed: u64,
    /// Metrics that could be computed.
    pub figures: BTreeMap<Metric, f64>,
    /// Each flow.
    pub flows: Vec<FlowResult>,
    /// Values over time.
    pub curves: Curves,
    /// Median, 99th percentile and maximum of the emulator's lateness, in seconds.
    pub lateness: Option<[f64; 3]>,
    /// Packets that entered the bottleneck, lost at random, and dropped by its queue.
    pub packets: [u64; 3],
    /// Seconds that the run took, in real time.
    pub wall_seconds: f64,
}

/// One flow of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowResult {
    /// Its name.
    pub name: String,
    /// Whether it is background, which is not measured.
    pub background: bool,
    /// Payload that arrived, in bytes.
    pub bytes: u64,
    /// Duration of sending.
    pub seconds: f64,
    /// Payload per second in the measured window, in bits.
    pub goodput: f64,
    /// Processor seconds of the sender and the receiver.
    pub cpu: Option<[f64; 2]>,
    /// Retransmitted payload as a share of all sent.
    pub retransmitted: Option<f64>,
    /// Unnecessarily retransmitted payload as a share of all sent.
    pub spurious: Option<f64>,
    /// Round trips of messages in seconds: least, median, 99th percentile, most.
    #[serde(default)]
    pub message_rtts: Option<[f64; 4]>,
    /// The promises to and results of each part of its traffic.
    #[serde(default)]
    pub parts: Vec<PartResult>,
    /// Completion times of requests in seconds, sorted; thinned out evenly when there are many.
    pub completions: Vec<f64>,
    /// Requests that were measured.
    pub requests: u64,
    /// Remarks of the program.
    pub note: String,
}

/// Values over time, one for each step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Curves {
    /// Seconds between values.
    pub step: f64,
    /// Bits per second that left the bottleneck.
    pub throughput: Vec<f32>,
    /// Round trip in seconds, of the path and in queues.
    pub rtt: Vec<f32>,
    /// Bytes that waited in front of the bottleneck.
    pub queue: Vec<f32>,
    /// Payload of each flow in bits per second.
    pub flows: Vec<(String, Vec<f32>)>,
}

impl Figure {
    /// The median and extremes of values of which more is better; `None` for an empty list.
    pub fn of(values: Vec<f64>) -> Option<Figure> {
        Figure::of_better(Better::More, values)
    }

    /// The same with the direction that is better.
    pub fn of_better(better: Better, mut values: Vec<f64>) -> Option<Figure> {
        values.retain(|v| v.is_finite());
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let median = spread::quantile(&values, 0.5);
        let (worst, worst_tenth) = match better {
            Better::More => (min, spread::quantile(&values, 0.1)),
            Better::Less => (max, spread::quantile(&values, 0.9)),
        };
        let (runs, modes) = (values.len(), spread::modes(&values).len());
        Some(Figure { median, min, max, runs, worst, worst_tenth, modes })
    }
}

impl PeerResult {
    /// Recomputes the figures of all valid runs.
    pub fn summarise(&mut self) {
        self.figures.clear();
        for m in Metric::ALL {
            let values = self.runs.iter().filter_map(|r| r.figures.get(&m).copied()).collect();
            if let Some(f) = Figure::of_better(m.better(), values) {
                self.figures.insert(m, f);
            }
        }
    }

    /// A metric of every valid run that has it, in the order of the runs.
    pub fn values(&self, metric: Metric) -> Vec<f64> {
        self.runs.iter().filter_map(|r| r.figures.get(&metric).copied()).filter(|v| v.is_finite()).collect()
    }

    /// The groups of a metric's values over the valid runs, lowest first.
    pub fn modes(&self, metric: Metric) -> Vec<Mode> {
        let mut values = self.values(metric);
        values.sort_by(f64::total_cmp);
        spread::modes(&values)
    }

    /// The run with the worst headline value.
    pub fn worst(&self, headline: Metric) -> Option<&RunResult> {
        let has = self.runs.iter().filter_map(|r| r.figures.get(&headline).map(|v| (r, *v)));
        match headline.better() {
            Better::More => has.min_by(|a, b| a.1.total_cmp(&b.1)),
            Better::Less => has.max_by(|a, b| a.1.total_cmp(&b.1)),
        }
        .map(|(r, _)| r)
    }

    /// The run whose headline value is nearest to the median, which plots show.
    pub fn typical(&self, headline: Metric) -> Option<&RunResult> {
        let Some(median) = self.figures.get(&headline).map(|f| f.median) else { return self.runs.first() };
        let off = |r: &RunResult| r.figures.get(&headline).map_or(f64::INFINITY, |v| (v - median).abs());
        self.runs.iter().min_by(|a, b| off(a).total_cmp(&off(b)))
    }
}

impl Results {
    /// Reads a file of results.
    ///
    /// # Errors
    /// It is missing, too long, invalid, or of another version, as text.
    pub fn read(path: &std::path::Path) -> Result<Results, String> {
        let name = path.display();
        let meta = std::fs::metadata(path).map_err(|e| format!("cannot read {name}: {e}"))?;
        if meta.len() > MAX_BYTES {
            return Err(format!("{name} has more than {MAX_BYTES} bytes; these are no results of a plan"));
        }
        let text = std::fs::read(path).map_err(|e| format!("cannot read {name}: {e}"))?;
        let results: Results = serde_json::from_slice(&text).map_err(|e| {
            format!("{name} has no results of a plan: {e}; make them with `longhaul lab run`")
        })?;
        if results.format != FORMAT {
            return Err(format!(
                "{name} has format {}; this program reads {FORMAT}: run the plan again",
                results.format
            ));
        }
        Ok(results)
    }

    /// Writes a file of results atomically.
    ///
    /// # Errors
    /// The system's, in words.
    pub fn write(&self, path: &std::path::Path) -> Result<(), String> {
        let text = serde_json::to_vec(self).map_err(|e| e.to_string())?;
        let part = path.with_extension("json.part");
        std::fs::write(&part, text)
            .and_then(|()| std::fs::rename(&part, path))
            .map_err(|e| format!("cannot write {}: {e}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_even_and_odd_counts() {
        let m = |v: &[f64]| Figure::of(v.to_vec()).map(|f| (f.median, f.min, f.max, f.runs));
        assert_eq!(m(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0, 3)));
        assert_eq!(m(&[4.0, 1.0, 2.0, 3.0]), Some((2.5, 1.0, 4.0, 4)));
        assert_eq!(m(&[f64::NAN, 1.0]), Some((1.0, 1.0, 1.0, 1)));
        assert_eq!(m(&[]), None);
    }

    #[test]
    fn worst_and_tenth_are_at_the_bad_end() {
        let ten: Vec<f64> = (1..=11).map(f64::from).collect();
        let more = Figure::of(ten.clone()).expect("a figure");
        assert_eq!((more.worst, more.worst_tenth, more.median), (1.0, 2.0, 6.0));
        let less = Figure::of_better(Better::Less, ten).expect("a figure");
        assert_eq!((less.worst, less.worst_tenth, less.median), (11.0, 10.0, 6.0));
        // Of ten runs, between the worst and the one before it.
        let one = Figure::of(vec![0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]).expect("a figure");
        assert!((one.worst_tenth - 0.91).abs() < 1e-9 && one.worst == 0.1 && one.modes == 2);
    }

    #[test]
    fn results_of_older_versions_are_still_read() {
        let f: Figure =
            serde_json::from_str("{\"median\":1.0,\"min\":0.5,\"max\":2.0,\"runs\":3}").expect("old");
        assert_eq!((f.median, f.modes), (1.0, 0));
    }

    #[test]
    fn typical_run_is_nearest_to_the_median() {
        let run = |v: f64| RunResult {
            repetition: v as u32,
            figures: BTreeMap::from([(Metric::Goodput, v)]),
            ..RunResult::default()
        };
        let mut p = PeerResult { runs: vec![run(9.0), run(5.0), run(1.0)], ..PeerResult::default() };
        p.summarise();
        assert_eq!(p.figures[&Metric::Goodput].median, 5.0);
        assert_eq!(p.typical(Metric::Goodput).map(|r| r.repetition), Some(5));
        assert_eq!(p.worst(Metric::Goodput).map(|r| r.repetition), Some(1));
    }
}
