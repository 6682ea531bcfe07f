//! Collects results and writes them to a file.

use super::outcome::{Curves, PeerResult, Results};
use super::{Settings, Turn, TurnOutcome, regret};
use crate::plan::{Metric, Plan};
use base::{Span, Time};
use lhio::clock::Clock;
use std::path::PathBuf;

/// A larger plan keeps only the curves of the typical and the worst run of each peer in each cell, and writes its
/// file at intervals, to limit its size and the number of writes.
pub const MANY_RUNS: u64 = 1_000;
const WRITE_INTERVAL: Span = Span::from_secs(30);

/// The results of a plan in progress.
pub(super) struct ResultsLog<'a> {
    plan: &'a Plan,
    results: Results,
    file: PathBuf,
    clock: Clock,
    began: Time,
    written: Time,
    many: bool,
    /// Unfinished turns of each cell.
    left: Vec<usize>,
}

impl<'a> ResultsLog<'a> {
    pub fn new(plan: &'a Plan, settings: &Settings, results: Results, turns: &[Turn<'_>]) -> ResultsLog<'a> {
        let clock = Clock::new();
        let began = clock.now();
        let mut left = vec![0; plan.cells.len()];
        turns.iter().for_each(|t| left[t.at.0] += 1);
        let (file, many) = (settings.out.join("results.json"), plan.cost().0 > MANY_RUNS);
        ResultsLog { plan, results, file, clock, began, written: began, many, left }
    }

    /// Whether a peer cannot run in a cell.
    pub fn is_skipped(&self, turn: &Turn<'_>) -> bool {
        self.peer(turn).is_some_and(|p| p.skipped.is_some())
    }

    fn peer(&self, turn: &Turn<'_>) -> Option<&PeerResult> {
        self.results.cells.get(turn.at.0)?.peers.get(turn.at.1)
    }

    /// Adds the outcome of a turn and writes the file.
    pub fn add(&mut self, turn: &Turn<'_>, taken: TurnOutcome) -> Result<(), String> {
        let (cell, peer) = turn.at;
        let into = &mut self.results.cells[cell].peers[peer];
        into.discarded.extend(taken.discarded);
        into.skipped = taken.impossible.or(into.skipped.take());
        if let Some(run) = taken.run {
            // Parallel turns finish in any order.
            let at = into.runs.partition_point(|r| r.repetition < run.repetition);
            into.runs.insert(at, run);
            into.summarise();
        }
        self.left[cell] -= 1;
        let now = self.clock.now();
        self.results.machine.seconds = now.since(self.began).as_secs_f64();
        self.results.machine.peak_memory = peak_memory();
        if self.many {
            if self.left[cell] == 0 {
                self.drop_curves(cell);
            }
            if now.since(self.written) < WRITE_INTERVAL {
                return Ok(());
            }
        }
        self.written = now;
        self.results.write(&self.file)
    }

    /// Drops the curves that are not drawn.
    fn drop_curves(&mut self, cell: usize) {
        let headline = self.plan.metrics.first().copied().unwrap_or(Metric::Goodput);
        for p in &mut self.results.cells[cell].peers {
            let drawn = [p.typical(headline), p.worst(headline)].map(|r| r.map(|r| r.repetition));
            p.runs
                .iter_mut()
                .filter(|r| !drawn.contains(&Some(r.repetition)))
                .for_each(|r| r.curves = Curves::default());
        }
    }

    /// Skips a turn whose peer cannot run.
    pub fn skip(&mut self, turn: &Turn<'_>) {
        self.left[turn.at.0] -= 1;
    }

    /// The results, complete if every turn is over.
    pub fn finish(mut self) -> Result<Results, String> {
        self.results.regret = self.plan.regret.as_ref().map(|r| regret::table(r, &self.results));
        self.results.complete = self.left.iter().all(|n| *n == 0);
        self.results.write(&self.file)?;
        Ok(self.results)
    }
}

/// The peak memory of this process so far, in bytes.
fn peak_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")).and_then(|n| n.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
