//! A search for worlds in which an algorithm does worse than another: random beginnings, and from the worst of them small
//! changes that make it worse still.
//!
//! Climbs do not know of each other and each has a seed of its own, so what a number of evaluations finds does not depend on
//! how many of them go on at once.

mod world;

pub use world::World;

use crate::plan::{Metric, Plan};
use crate::run::outcome::PeerResult;
use crate::run::{Failure, regret, seed_of};
use crate::simulate;
use base::{Rng, Time};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Evaluations of a climb, and how many of them begin anywhere.
pub const CLIMB: u64 = 24;
const BEGINNINGS: u64 = 6;
/// Runs of the algorithm in a world, and of the other one, whose median is what is compared with.
const RUNS: u32 = 5;
const OTHERS: u32 = 3;
/// Worlds in which the other one has a smaller share of the limit say nothing.
const WORTHWHILE: f64 = 0.1;
/// Worlds with a higher score are not bad.
pub const BAD: f64 = 0.9;
/// Stack of a thread that simulates.
const STACK: usize = 8 << 20;

/// What is searched for, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where chance begins, in the search and in its worlds.
    pub seed: u64,
    /// Evaluations at most.
    pub evaluations: u64,
    /// When to stop, by the clock that is passed in.
    pub until: Time,
    /// Evaluations at the same time.
    pub jobs: usize,
}

/// How an algorithm did in a world: parts of what the other one has, by the worst run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// Share of the limit from the warm-up on.
    pub share: f64,
    /// Payload of the first four seconds.
    pub first_4s: f64,
}

impl Verdict {
    /// What is searched for: the less, the worse the world.
    pub fn score(&self) -> f64 {
        self.share.min(self.first_4s)
    }
}

/// Who says how bad a world is.
pub trait Judge: Sync {
    /// Tries a world. `None` says that nothing can be said of it.
    fn judge(&self, world: &World, seed: u64) -> Option<Verdict>;
}

/// A bad world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The world.
    pub world: World,
    /// How bad it is.
    pub verdict: Verdict,
    /// Which climb led to it, from 0.
    pub climb: u64,
}

/// What a search gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The worst world of each climb, the worst first, as far as they are worse than [`BAD`].
    pub found: Vec<Found>,
    /// Worlds that were tried.
    pub evaluations: u64,
}

/// Searches. `now` is the clock, `said` hears of each climb that is over: evaluations so far, and the worst world of the climb.
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
    let climbs = options.evaluations.div_ceil(CLIMB);
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
                    let steps = CLIMB.min(options.evaluations - n * CLIMB);
                    let found = climb(options.seed, n, steps, judge, &|| over(), tried);
                    // The other end hears until all are done.
                    let _ = tell.send(found);
                }
            };
            let thread = std::thread::Builder::new().stack_size(STACK);
            thread.spawn_scoped(scope, work).map_err(|e| format!("cannot start a thread: {e}"))?;
        }
        drop(tell);
        for found in told {
            said(tried.load(Ordering::SeqCst), found.as_ref());
            outcome.found.extend(found.filter(|f| f.verdict.score() < BAD));
        }
        Ok::<(), String>(())
    })?;
    let key = |f: &Found| (f.verdict.score(), f.climb);
    outcome.found.sort_by(|a, b| key(a).0.total_cmp(&key(b).0).then(key(a).1.cmp(&key(b).1)));
    outcome.evaluations = tried.load(Ordering::SeqCst);
    Ok(outcome)
}

/// One climb: the worst world that it met.
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
            Some(w) if step >= BEGINNINGS => w.world.changed(&mut rng),
            _ => World::random(&mut rng),
        };
        tried.fetch_add(1, Ordering::SeqCst);
        let Some(verdict) = judge.judge(&world, seed) else { continue };
        // One that is as bad is a step too: where all are alike, the climb wanders.
        if worst.is_none_or(|w| verdict.score() <= w.verdict.score()) {
            worst = Some(Found { world, verdict, climb: n });
        }
    }
    worst
}

/// A plan of worlds: an algorithm beside the other one.
pub fn plan(cc: &str, against: &str, grids: &str) -> String {
    format!(
        "# Worlds in which `longhaul lab search` found a run of {cc} far below the median of {against}. Run them again:\n\
         # longhaul lab run --sim FILE\n\
         title = \"Worlds that the search found\"\n\
         about = \"Each was bad for a run of {cc} beside {against} when it was found.\"\n\
         simulator_only = true\nrepetitions = 10\nduration = \"12s\"\nwarm_up = \"4s\"\n\
         metrics = [\"share\", \"first_4s\", \"own_loss\", \"queue\", \"again\"]\n\
         regret = {{ of = \"{cc}\", against = [\"{against}\"] }}\n\n\
         [topology]\nkind = \"path\"\n\n\
         [[peer]]\nname = \"{{cc}}\"\nvary = {{ cc = [\"{cc}\", \"{against}\"] }}\n\
         flow = [{{ program = \"longhaul\", cc = \"{{cc}}\" }}]\n\n{grids}"
    )
}

/// The plan of all that was found, with how bad each is.
pub fn plan_of(cc: &str, against: &str, seed: u64, found: &[Found]) -> String {
    let grid = |(i, f): (usize, &Found)| {
        let v = &f.verdict;
        format!(
            "# Worst run: {:.2} of the share, {:.2} of the first four seconds.\n{}",
            v.share,
            v.first_4s,
            f.world.grid(&format!("found {}", i + 1), seed)
        )
    };
    plan(cc, against, &found.iter().enumerate().map(grid).collect::<Vec<_>>().join("\n"))
}

/// Judges by the simulator.
pub struct Simulated<'a> {
    /// The algorithm.
    pub cc: &'a str,
    /// The one it is compared with.
    pub against: &'a str,
    /// Set when all is to stop.
    pub stop: &'a AtomicBool,
}

impl Judge for Simulated<'_> {
    fn judge(&self, world: &World, seed: u64) -> Option<Verdict> {
        let plan = Plan::parse("search", &plan(self.cc, self.against, &world.grid("world", seed))).ok()?;
        let cell = plan.cells.first()?;
        let mut peers = Vec::new();
        for (peer, runs) in cell.peers.iter().rev().zip([OTHERS, RUNS]) {
            let mut result = PeerResult { name: peer.name.clone(), ..PeerResult::default() };
            for repetition in 1..=runs {
                match simulate::once(cell, peer, seed_of(cell, repetition, 0), self.stop) {
                    Ok(run) => result.runs.push(run),
                    Err(Failure::Stopped) => return None,
                    // A connection that fails where the other one's does not is as bad as can be.
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
        if other.figures.get(&Metric::Share)?.median < WORTHWHILE {
            return None;
        }
        let worst = |m| regret::ratio(ours, &[other], m).map(|r| r.worst);
        Some(Verdict { share: worst(Metric::Share)?, first_4s: worst(Metric::First4s)? })
    }
}

#[cfg(test)]
mod tests;
