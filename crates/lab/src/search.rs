//! Searches for network conditions ("worlds") in which an algorithm does worse than another: hill climbing from
//! random starts by small changes.
//!
//! Climbs are independent and have seeds of their own, so the result of a number of evaluations does not depend on
//! how many of them run in parallel.

mod world;

pub use world::World;

use crate::plan::{Metric, Plan};
use crate::run::outcome::PeerResult;
use crate::run::{Failure, regret, seed_of};
use crate::simulate;
use base::{Rng, Time};
use sim::world::HostModel;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Evaluations of a climb, and how many of them are random starts.
pub const CLIMB_EVALUATIONS: u64 = 24;
const RANDOM_STARTS: u64 = 6;
/// Runs of the algorithm in a world, and of the reference, whose median is compared with.
const RUNS: u32 = 5;
const OTHER_RUNS: u32 = 3;
/// Worlds in which the reference has a smaller share of the limit are ignored.
const MIN_OTHER_SHARE: f64 = 0.1;
/// The highest score of a bad world.
pub const MAX_BAD_SCORE: f64 = 0.9;
/// Stack of a thread that simulates.
const STACK: usize = 8 << 20;

/// Parameters of a search.
#[derive(Clone, Debug)]
pub struct Options {
    /// The seed of the search and its worlds.
    pub seed: u64,
    /// Most evaluations.
    pub evaluations: u64,
    /// When to stop, by the clock that is passed in.
    pub until: Time,
    /// Parallel evaluations.
    pub jobs: usize,
}

/// The results of an algorithm in a world relative to the reference, by the worst run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Share of the limit from the warm-up on.
    pub share: f64,
    /// Payload of the first four seconds.
    pub bytes_in_first_4s: f64,
}

impl Verdict {
    /// The score: lower is worse.
    pub fn score(&self) -> f64 {
        self.share.min(self.bytes_in_first_4s)
    }
}

/// Evaluates worlds.
pub trait Judge: Sync {
    /// Evaluates a world; `None` if it allows no comparison.
    fn judge(&self, world: &World, seed: u64) -> Option<Verdict>;
}

/// A bad world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The world.
    pub world: World,
    /// Its results.
    pub verdict: Verdict,
    /// Which climb led to it, from 0.
    pub climb: u64,
}

/// The result of a search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The worst world of each climb, the worst first, limited to scores of at most [`MAX_BAD_SCORE`].
    pub found: Vec<Found>,
    /// Number of evaluated worlds.
    pub evaluations: u64,
}

/// Runs a search. `now` is the clock; `said` is called after each climb with the evaluations so far and its worst
/// world.
///
/// # Errors
/// No thread can be started, in words.
pub fn search(
    options: &Options,
    judge: &dyn Judge,
    now: &(dyn Fn() -> Time + Sync),
    stop: &AtomicBool,
    said: &mut dyn FnMut(u64, Option<&Found>),
) -> Result<Outcome, String> {
    let (next, tried) = (AtomicU64::new(0), AtomicU64::new(0));
    let climbs = options.evaluations.div_ceil(CLIMB_EVALUATIONS);
    let mut outcome = Outcome::default();
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        for _ in 0..options.jobs.max(1) {
            let (tell, next, tried) = (tell.clone(), &next, &tried);
            let over = move || stop.load(Ordering::SeqCst) || now() >= options.until;
            let work = move || {
                loop {
                    let n = next.fetch_add(1, Ordering::SeqCst);
                    if n >= climbs || over() {
                        break;
                    }
                    let steps = CLIMB_EVALUATIONS.min(options.evaluations - n * CLIMB_EVALUATIONS);
                    let found = climb(options.seed, n, steps, judge, &|| over(), tried);
                    // The receiver exists until all climbs are done.
                    let _ = tell.send(found);
                }
            };
            let thread = std::thread::Builder::new().stack_size(STACK);
            thread.spawn_scoped(scope, work).map_err(|e| format!("cannot start a thread: {e}"))?;
        }
        drop(tell);
        for found in told {
            said(tried.load(Ordering::SeqCst), found.as_ref());
            outcome.found.extend(found.filter(|f| f.verdict.score() < MAX_BAD_SCORE));
        }
        Ok::<(), String>(())
    })?;
    let key = |f: &Found| (f.verdict.score(), f.climb);
    outcome.found.sort_by(|a, b| key(a).0.total_cmp(&key(b).0).then(key(a).1.cmp(&key(b).1)));
    outcome.evaluations = tried.load(Ordering::SeqCst);
    Ok(outcome)
}

/// One climb; returns the worst world found.
fn climb(
    seed: u64,
    n: u64,
    steps: u64,
    judge: &dyn Judge,
    over: &dyn Fn() -> bool,
    tried: &AtomicU64,
) -> Option<Found> {
    let mut rng = Rng::from_u64(seed).stream(n + 1);
    let mut worst: Option<Found> = None;
    for step in 0..steps {
        if over() {
            break;
        }
        let world = match &worst {
            Some(w) if step >= RANDOM_STARTS => w.world.mutated(&mut rng),
            _ => World::random(&mut rng),
        };
        tried.fetch_add(1, Ordering::SeqCst);
        let Some(verdict) = judge.judge(&world, seed) else { continue };
        // An equally bad world is accepted, so that the climb wanders on plateaus.
        if worst.is_none_or(|w| verdict.score() <= w.verdict.score()) {
            worst = Some(Found { world, verdict, climb: n });
        }
    }
    worst
}

/// A plan with the worlds in `grids` that compares an algorithm with the reference.
pub fn plan(cc: &str, against: &str, grids: &str) -> String {
    format!(
        "# Worlds in which `longhaul lab search` found a run of {cc} far below the median of {against}. Run them again:\n\
         # longhaul lab run --sim FILE\n\
         title = \"Worlds that the search found\"\n\
         about = \"Each was bad for a run of {cc} beside {against} when it was found.\"\n\
         simulator_only = true\nrepetitions = 10\nduration = \"12s\"\nwarm_up = \"4s\"\n\
         metrics = [\"share\", \"bytes_in_first_4s\", \"queue_loss\", \"queue\", \"retransmitted\"]\n\
         regret = {{ of = \"{cc}\", against = [\"{against}\"] }}\n\n\
         [topology]\nkind = \"path\"\n\n\
         [[peer]]\nname = \"{{cc}}\"\nvary = {{ cc = [\"{cc}\", \"{against}\"] }}\n\
         flow = [{{ program = \"longhaul\", cc = \"{{cc}}\" }}]\n\n{grids}"
    )
}

/// A plan of all found worlds, with their scores.
pub fn plan_of_found(cc: &str, against: &str, seed: u64, found: &[Found]) -> String {
    let grid = |(i, f): (usize, &Found)| {
        let v = &f.verdict;
        format!(
            "# Worst run: {:.2} of the share, {:.2} of the first four seconds.\n{}",
            v.share,
            v.bytes_in_first_4s,
            f.world.grid(&format!("found {}", i + 1), seed)
        )
    };
    plan(cc, against, &found.iter().enumerate().map(grid).collect::<Vec<_>>().join("\n"))
}

/// Evaluates worlds in the simulator.
pub struct SimulatorJudge<'a> {
    /// The algorithm.
    pub cc: &'a str,
    /// The reference.
    pub against: &'a str,
    /// What hosts take time for; `None`: nothing.
    pub hosts: Option<HostModel>,
    /// Set when all is to stop.
    pub stop: &'a AtomicBool,
}

impl Judge for SimulatorJudge<'_> {
    fn judge(&self, world: &World, seed: u64) -> Option<Verdict> {
        let plan = Plan::parse("search", &plan(self.cc, self.against, &world.grid("world", seed))).ok()?;
        let cell = plan.cells.first()?;
        let mut peers = Vec::new();
        for (peer, runs) in cell.peers.iter().rev().zip([OTHER_RUNS, RUNS]) {
            let mut result = PeerResult { name: peer.name.clone(), ..PeerResult::default() };
            for repetition in 1..=runs {
                match simulate::run_once(cell, peer, seed_of(cell, repetition, 0), self.hosts, self.stop) {
                    Ok(run) => result.runs.push(run),
                    Err(Failure::Stopped) => return None,
                    // A connection that fails counts as the worst result.
                    Err(_) => result.runs.push(Default::default()),
                }
            }
            for run in &mut result.runs {
                for m in regret::METRICS {
                    run.figures.entry(m).or_insert(0.0);
                }
            }
            result.summarise();
            peers.push(result);
        }
        let (other, ours) = (peers.first()?, peers.get(1)?);
        if other.figures.get(&Metric::Share)?.median < MIN_OTHER_SHARE {
            return None;
        }
        let worst = |m| regret::ratio(ours, &[other], m).map(|r| r.worst);
        Some(Verdict { share: worst(Metric::Share)?, bytes_in_first_4s: worst(Metric::FirstBytes)? })
    }
}

#[cfg(test)]
mod tests;
