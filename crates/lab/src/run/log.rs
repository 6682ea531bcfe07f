//! Results as they come in, and the file of them.

use super::outcome::{Curves, PeerResult, Results};
use super::{Settings, Taken, Turn, regret};
use crate::plan::{Metric, Plan};
use base::{Span, Time};
use lhio::clock::Clock;
use std::path::PathBuf;

/// A plan with more runs keeps the curves of the typical and the worst run of each peer in each cell only, and its file is
/// written every `PAUSE`: it would be too large, and written too often.
pub const MANY: u64 = 1_000;
const PAUSE: Span = Span::from_secs(30);

/// Results of a plan that runs.
pub(super) struct Log<'a> {
    plan: &'a Plan,
    results: Results,
    file: PathBuf,
    clock: Clock,
    began: Time,
    written: Time,
    many: bool,
    /// Turns of each cell that are not over.
    left: Vec<usize>,
}

impl<'a> Log<'a> {
    pub fn new(plan: &'a Plan, settings: &Settings, results: Results, turns: &[Turn<'_>]) -> Log<'a> {
        let clock = Clock::new();
        let began = clock.now();
        let mut left = vec![0; plan.cells.len()];
        turns.iter().for_each(|t| left[t.at.0] += 1);
        let (file, many) = (settings.out.join("results.json"), plan.cost().0 > MANY);
        Log { plan, results, file, clock, began, written: began, many, left }
    }

    /// Whether a peer cannot run in a cell.
    pub fn is_skipped(&self, turn: &Turn<'_>) -> bool {
        self.peer(turn).is_some_and(|p| p.skipped.is_some())
    }

    fn peer(&self, turn: &Turn<'_>) -> Option<&PeerResult> {
        self.results.cells.get(turn.at.0)?.peers.get(turn.at.1)
    }

    /// Takes what a turn gave, and writes the file.
    pub fn take(&mut self, turn: &Turn<'_>, taken: Taken) -> Result<(), String> {
        let (cell, peer) = turn.at;
        let into = &mut self.results.cells[cell].peers[peer];
        into.spoiled.extend(taken.spoiled);
        into.skipped = taken.hopeless.or(into.skipped.take());
        if let Some(run) = taken.run {
            // Turns that are taken side by side are over in any order.
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
                self.thin(cell);
            }
            if now.since(self.written) < PAUSE {
                return Ok(());
            }
        }
        self.written = now;
        self.results.write(&self.file)
    }

    /// Leaves the curves of those runs that are drawn.
    fn thin(&mut self, cell: usize) {
        let headline = self.plan.metrics.first().copied().unwrap_or(Metric::Goodput);
        for p in &mut self.results.cells[cell].peers {
            let drawn = [p.typical(headline), p.worst(headline)].map(|r| r.map(|r| r.repetition));
            p.runs
                .iter_mut()
                .filter(|r| !drawn.contains(&Some(r.repetition)))
                .for_each(|r| r.curves = Curves::default());
        }
    }

    /// A turn that is not taken, since its peer cannot run.
    pub fn pass(&mut self, turn: &Turn<'_>) {
        self.left[turn.at.0] -= 1;
    }

    /// The results, whole when every turn is over.
    pub fn finish(mut self) -> Result<Results, String> {
        self.results.regret = self.plan.regret.as_ref().map(|r| regret::table(r, &self.results));
        self.results.complete = self.left.iter().all(|n| *n == 0);
        self.results.write(&self.file)?;
        Ok(self.results)
    }
}

/// Most memory that this process had so far, in bytes.
fn peak_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")).and_then(|n| n.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
