//! Runs of a plan in the laboratory: cells one after the other, in each the peers in turn, spoiled runs thrown away by rule
//! and counted.

mod direct;
mod flows;
pub mod measure;
pub mod outcome;
pub mod spread;
mod trial;

pub use outcome::Results;

use crate::plan::{Cell, Flow, Kind, Lineup, Metric, Plan, Topology};
use crate::workload::outside::{Programs, missing};
use base::Time;
use lhio::clock::{Clock, WallTime};
use netem::Change;
use outcome::{CellResult, FORMAT, Machine, PeerResult, RunResult, Spoiled};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs of a peer in a repetition at most, when each is spoiled.
const MAX_ATTEMPTS: u32 = 3;

/// How a plan is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This program: it runs in the nodes too.
    pub longhaul: PathBuf,
    /// The folder for results and records.
    pub out: PathBuf,
    /// Keeps the emulator's records of each run in the folder.
    pub keep_records: bool,
    /// Set when everything is to stop.
    pub stop: Arc<AtomicBool>,
}

/// How far it is.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress<'a> {
    /// A run begins.
    Begins {
        /// Runs so far, and runs in all when none is spoiled.
        at: (u64, u64),
        /// Cell and peer.
        name: &'a str,
        /// From 1.
        repetition: u32,
        /// Virtual or real seconds that it lasts.
        seconds: f64,
    },
    /// A run was good: its headline in words.
    Good(&'a str),
    /// A run does not count: why.
    Spoiled(&'a str),
    /// A peer does not run: why.
    Skipped {
        /// Cell and peer.
        name: &'a str,
        /// Why.
        why: &'a str,
    },
}

/// Whoever wants to know.
pub type Watch<'a> = dyn FnMut(Progress<'_>) + 'a;

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It does not count; another attempt may.
    Spoiled(String),
    /// No attempt can do better.
    Hopeless(String),
    /// It was interrupted.
    Stopped,
}

/// What makes runs: the laboratory, or the simulator.
pub trait Bench {
    /// One run of a line-up.
    ///
    /// # Errors
    /// See [`Failure`].
    fn run(&mut self, cell: &Cell, peer: &Lineup, seed: u64, tag: &str) -> Result<RunResult, Failure>;
    /// Why a flow cannot run here.
    fn missing(&self, flow: &Flow) -> Option<String>;
    /// Whether time is virtual.
    fn simulated(&self) -> bool;
}

/// Runs a plan in network namespaces. Needs root.
///
/// # Errors
/// The system refuses, or nothing could run, in words. Results so far are in the folder.
pub fn in_laboratory(plan: &Plan, settings: &Settings, watch: &mut Watch<'_>) -> Result<Results, String> {
    if plan.simulator_only {
        return Err(format!("the plan {} is for the simulator only; run it with --sim", plan.name));
    }
    let programs = Programs::find(&settings.longhaul);
    let mut bench = trial::Laboratory { settings: settings.clone(), programs };
    on(plan, settings, &mut bench, watch)
}

/// The emulator's topology for a plan's; `home` is a folder that stays as long as it is used, for a trace.
///
/// # Errors
/// The folder cannot be written, in words.
pub fn network(t: &Topology, home: &std::path::Path) -> Result<crate::TopologySpec, String> {
    trial::topology(t, home)
}

/// Runs a plan on any bench.
///
/// # Errors
/// The folder cannot be written, in words.
pub fn on(
    plan: &Plan,
    settings: &Settings,
    bench: &mut dyn Bench,
    watch: &mut Watch<'_>,
) -> Result<Results, String> {
    std::fs::create_dir_all(&settings.out)
        .map_err(|e| format!("cannot make the folder {}: {e}", settings.out.display()))?;
    let clock = Clock::new();
    let (began, file) = (clock.now(), settings.out.join("results.json"));
    let mut results = empty(plan, bench.simulated());
    let mut done = 0;
    for (i, cell) in plan.cells.iter().enumerate() {
        results.cells.push(describe(cell));
        for peer in &cell.peers {
            let why = peer.flows.iter().find_map(|f| bench.missing(f).map(|w| format!("{}: {w}", f.name)));
            if let Some(why) = &why {
                watch(Progress::Skipped { name: &cell.name_of(peer), why });
            }
            let (name, skipped) = (peer.name.clone(), why);
            results.cells[i].peers.push(PeerResult { name, skipped, ..PeerResult::default() });
        }
        for repetition in 1..=plan.repetitions {
            // The order changes, so that nobody has the same neighbour in time always.
            let mut order: Vec<usize> = (0..cell.peers.len()).collect();
            order.rotate_left((repetition as usize - 1) % cell.peers.len().max(1));
            for k in order {
                if results.cells[i].peers[k].skipped.is_some() {
                    continue;
                }
                let turn = Turn { plan, cell, peer: &cell.peers[k], at: (i, repetition), done };
                done += 1;
                let stopped = turn.take(bench, &mut results.cells[i].peers[k], watch);
                results.machine.seconds = clock.now().since(began).as_secs_f64();
                results.machine.peak_memory = peak_memory();
                results.write(&file)?;
                if stopped || settings.stop.load(Ordering::SeqCst) {
                    return Ok(results);
                }
            }
        }
    }
    results.complete = true;
    results.write(&file)?;
    Ok(results)
}

/// One peer's turn in one repetition.
struct Turn<'a> {
    plan: &'a Plan,
    cell: &'a Cell,
    peer: &'a Lineup,
    at: (usize, u32),
    done: u64,
}

impl Turn<'_> {
    /// Attempts until one is good; true when all is to stop.
    fn take(&self, bench: &mut dyn Bench, into: &mut PeerResult, watch: &mut Watch<'_>) -> bool {
        let (cell_at, repetition) = self.at;
        let headline = self.plan.metrics.first().copied().unwrap_or(Metric::Goodput);
        for attempt in 0..MAX_ATTEMPTS {
            watch(Progress::Begins {
                at: (self.done, self.plan.cost().0),
                name: &self.cell.name_of(self.peer),
                repetition,
                seconds: self.cell.duration.as_secs_f64(),
            });
            // All peers of a repetition meet the same chance.
            let seed = mix(self.plan.seed, cell_at as u64, u64::from(repetition), u64::from(attempt));
            let tag = format!("{}-{}-{repetition}-{attempt}", self.plan.name, cell_at + 1);
            match bench.run(self.cell, self.peer, seed, &tag) {
                Ok(mut run) => {
                    (run.repetition, run.seed) = (repetition, seed);
                    let value = run.figures.get(&headline).map(|v| headline.show(*v));
                    watch(Progress::Good(&value.unwrap_or_else(|| "no figure".to_owned())));
                    into.runs.push(run);
                    into.summarise();
                    return false;
                }
                Err(Failure::Spoiled(why)) => {
                    watch(Progress::Spoiled(&why));
                    into.spoiled.push(Spoiled { repetition, why });
                }
                Err(Failure::Hopeless(why)) => {
                    watch(Progress::Skipped { name: &self.cell.name_of(self.peer), why: &why });
                    into.skipped = Some(why);
                    return false;
                }
                Err(Failure::Stopped) => return true,
            }
        }
        false
    }
}

/// One number out of several (the finaliser of SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
/// Generators", 2014).
fn mix(a: u64, b: u64, c: u64, d: u64) -> u64 {
    [a, b, c, d].into_iter().fold(0, |h: u64, v| {
        let mut z = h.wrapping_add(v).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Most memory that this process had so far, in bytes.
fn peak_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().strip_suffix("kB")).and_then(|n| n.trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn empty(plan: &Plan, simulated: bool) -> Results {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Results {
        format: FORMAT,
        plan: plan.name.clone(),
        title: plan.title.clone(),
        about: plan.about.clone(),
        simulated,
        machine: Machine {
            kernel: kernel.trim().to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            unix_seconds: WallTime::now().unix_secs(),
            seconds: 0.0,
            peak_memory: 0,
        },
        repetitions: plan.repetitions,
        metrics: plan.metrics.clone(),
        cells: Vec::new(),
        complete: false,
        published: plan.published.clone(),
    }
}

fn describe(cell: &Cell) -> CellResult {
    let t = &cell.topology;
    let direct = t.kind == Kind::Direct;
    let mut network = t.there.clone();
    network.schedule.clear();
    CellResult {
        id: cell.id.clone(),
        point: cell.point.clone(),
        network: if direct { direct::WORDS.to_owned() } else { network.to_string() },
        direct,
        capacity: t.there.rate.map(|r| r.bits_per_sec() as f64),
        rtt: t.rtts.iter().min().map_or(0.0, |r| r.as_secs_f64()),
        window: (cell.warm_up.as_secs_f64(), cell.duration.as_secs_f64()),
        events: events(t),
        peers: Vec::new(),
    }
}

fn events(t: &Topology) -> Vec<(f64, String)> {
    let words = |c: &Change| match c {
        // What a plan's `lose=1` stands for.
        Change::Loss(netem::Loss::Burst(b)) if b.bad_loss.get() == 0.0 => "one packet lost".to_owned(),
        c => c.to_string(),
    };
    t.there.schedule.iter().map(|(at, c)| (at.since(Time::ZERO).as_secs_f64(), words(c))).collect()
}

#[cfg(test)]
mod tests;
