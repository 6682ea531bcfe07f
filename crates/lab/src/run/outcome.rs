//! What runs gave, as it is written to JSON and read by reports.

use super::regret::Table;
use super::spread::{self, Mode};
use crate::plan::{Better, Metric, Published};
use crate::workload::parts::PartResult;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the format.
pub const FORMAT: u32 = 1;
/// Bytes of a file of results at most.
pub const MAX_BYTES: u64 = 1 << 30;

/// Everything that a plan gave.
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
    /// In the simulator, in virtual time.
    pub simulated: bool,
    /// Where and when.
    pub machine: Machine,
    /// Good runs wanted of each peer in each cell.
    pub repetitions: u32,
    /// What tables show, the headline first.
    pub metrics: Vec<Metric>,
    /// All combinations.
    pub cells: Vec<CellResult>,
    /// Whether everything ran; false after Ctrl-C.
    pub complete: bool,
    /// Figures of others, which ours are to stand beside.
    #[serde(default)]
    pub published: Vec<Published>,
    /// How one peer does beside the best of others, where the plan asks for that and once all has run.
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
    /// Most memory that this process had, in bytes; zero where the system does not tell. In the simulator, that is all.
    #[serde(default)]
    pub peak_memory: u64,
}

/// One combination of values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    /// The swept values in words.
    pub id: String,
    /// The same one by one.
    pub point: Vec<(String, String)>,
    /// The bottleneck in the language of link descriptions.
    pub network: String,
    /// Nothing was emulated between the nodes.
    #[serde(default)]
    pub direct: bool,
    /// Mean capacity of the bottleneck in bits per second; `None` without a limit.
    pub capacity: Option<f64>,
    /// Shortest round trip of the idle network, in seconds.
    pub rtt: f64,
    /// The measured part of a run: from, to, in seconds.
    pub window: (f64, f64),
    /// Events of the link in seconds, with words.
    pub events: Vec<(f64, String)>,
    /// Who ran, in the order of the plan.
    pub peers: Vec<PeerResult>,
}

/// One peer in one cell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeerResult {
    /// Its name.
    pub name: String,
    /// Good runs.
    pub runs: Vec<RunResult>,
    /// Runs that do not count, and why.
    pub spoiled: Vec<Spoiled>,
    /// Why it did not run at all.
    pub skipped: Option<String>,
    /// Each metric over the good runs.
    pub figures: BTreeMap<Metric, Figure>,
}

/// A run that does not count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spoiled {
    /// In which repetition, from 1.
    pub repetition: u32,
    /// Why.
    pub why: String,
}

/// A metric over several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The middle.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The most.
    pub max: f64,
    /// Of how many runs; those that have no such figure (a level never reached) do not count.
    pub runs: usize,
    /// The end that is bad: the least where more is better, else the most.
    #[serde(default)]
    pub worst: f64,
    /// A tenth of the runs are worse than this, between runs by straight line.
    #[serde(default)]
    pub tenth: f64,
    /// Groups of runs with a gap between them, see [`spread::modes`]; zero in results of older programs.
    #[serde(default)]
    pub modes: usize,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// In which repetition, from 1.
    pub repetition: u32,
    /// Seed of the network's chance.
    pub seed: u64,
    /// Metrics that could be computed.
    pub figures: BTreeMap<Metric, f64>,
    /// Each flow.
    pub flows: Vec<FlowResult>,
    /// Over time.
    pub curves: Curves,
    /// Median and 99th percentile of how late the emulator delivered, and the worst, in seconds.
    pub lateness: Option<[f64; 3]>,
    /// Packets that entered the bottleneck, were lost by chance, and by its queue.
    pub packets: [u64; 3],
    /// Seconds that the run took, in real time.
    pub wall_seconds: f64,
}

/// One flow of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FlowResult {
    /// Its name.
    pub name: String,
    /// Not measured.
    pub background: bool,
    /// Payload that arrived, in bytes.
    pub bytes: u64,
    /// For how long it sent.
    pub seconds: f64,
    /// Payload per second in the measured window, in bits.
    pub goodput: f64,
    /// Processor seconds of the sender and the receiver.
    pub cpu: Option<[f64; 2]>,
    /// Payload sent again as a share of all sent.
    pub again: Option<f64>,
    /// Of that, what the receiver had already.
    pub spurious: Option<f64>,
    /// Round trips of messages in seconds: least, median, 99th percentile, most.
    #[serde(default)]
    pub trips: Option<[f64; 4]>,
    /// What each part of its traffic was promised and got.
    #[serde(default)]
    pub parts: Vec<PartResult>,
    /// Completion times of requests in seconds, sorted; thinned out evenly when there are many.
    pub completions: Vec<f64>,
    /// Requests that were measured.
    pub requests: u64,
    /// What the program said of itself.
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
    /// The middle and the ends of some values, of which more is better; `None` without any.
    pub fn of(values: Vec<f64>) -> Option<Figure> {
        Figure::of_better(Better::More, values)
    }

    /// The same where it is said which end is bad.
    pub fn of_better(better: Better, mut values: Vec<f64>) -> Option<Figure> {
        values.retain(|v| v.is_finite());
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let median = spread::quantile(&values, 0.5);
        let (worst, tenth) = match better {
            Better::More => (min, spread::quantile(&values, 0.1)),
            Better::Less => (max, spread::quantile(&values, 0.9)),
        };
        let (runs, modes) = (values.len(), spread::modes(&values).len());
        Some(Figure { median, min, max, runs, worst, tenth, modes })
    }
}

impl PeerResult {
    /// Computes the figures of all good runs anew.
    pub fn summarise(&mut self) {
        self.figures.clear();
        for m in Metric::ALL {
            let values = self.runs.iter().filter_map(|r| r.figures.get(&m).copied()).collect();
            if let Some(f) = Figure::of_better(m.better(), values) {
                self.figures.insert(m, f);
            }
        }
    }

    /// A metric of every good run that has it, in the order of the runs.
    pub fn values(&self, metric: Metric) -> Vec<f64> {
        self.runs.iter().filter_map(|r| r.figures.get(&metric).copied()).filter(|v| v.is_finite()).collect()
    }

    /// The groups into which a metric of the good runs falls, the lowest first.
    pub fn modes(&self, metric: Metric) -> Vec<Mode> {
        let mut values = self.values(metric);
        values.sort_by(f64::total_cmp);
        spread::modes(&values)
    }

    /// The run with the worst headline.
    pub fn worst(&self, headline: Metric) -> Option<&RunResult> {
        let has = self.runs.iter().filter_map(|r| r.figures.get(&headline).map(|v| (r, *v)));
        match headline.better() {
            Better::More => has.min_by(|a, b| a.1.total_cmp(&b.1)),
            Better::Less => has.max_by(|a, b| a.1.total_cmp(&b.1)),
        }
        .map(|(r, _)| r)
    }

    /// The run whose headline is nearest to the median: what plots show.
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
    /// It is not there, too long, not one, or of another version; in words.
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

    /// Writes a file of results, whole or not at all.
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
    fn the_median_of_even_and_odd() {
        let m = |v: &[f64]| Figure::of(v.to_vec()).map(|f| (f.median, f.min, f.max, f.runs));
        assert_eq!(m(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0, 3)));
        assert_eq!(m(&[4.0, 1.0, 2.0, 3.0]), Some((2.5, 1.0, 4.0, 4)));
        assert_eq!(m(&[f64::NAN, 1.0]), Some((1.0, 1.0, 1.0, 1)));
        assert_eq!(m(&[]), None);
    }

    #[test]
    fn the_worst_and_the_tenth_are_at_the_bad_end() {
        let ten: Vec<f64> = (1..=11).map(f64::from).collect();
        let more = Figure::of(ten.clone()).expect("a figure");
        assert_eq!((more.worst, more.tenth, more.median), (1.0, 2.0, 6.0));
        let less = Figure::of_better(Better::Less, ten).expect("a figure");
        assert_eq!((less.worst, less.tenth, less.median), (11.0, 10.0, 6.0));
        // Of ten runs, between the worst and the one before it.
        let one = Figure::of(vec![0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]).expect("a figure");
        assert!((one.tenth - 0.91).abs() < 1e-9 && one.worst == 0.1 && one.modes == 2);
    }

    #[test]
    fn results_without_the_spread_are_still_read() {
        let f: Figure =
            serde_json::from_str("{\"median\":1.0,\"min\":0.5,\"max\":2.0,\"runs\":3}").expect("old");
        assert_eq!((f.median, f.modes), (1.0, 0));
    }

    #[test]
    fn the_typical_run_is_that_of_the_median() {
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
