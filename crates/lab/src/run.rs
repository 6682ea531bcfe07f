//! Executes a plan: cells one after the other, in each the peers in turn, with discarded runs discarded, counted and
//! repeated.

mod direct;
mod flows;
mod log;
pub mod measure;
pub mod outcome;
pub mod regret;
pub mod spread;
mod trial;

pub use outcome::Results;

use crate::plan::{Cell, Flow, Kind, Lineup, Metric, Plan, Topology};
use crate::workload::outside::{Programs, why_unavailable};
use base::Time;
use lhio::clock::WallTime;
pub use log::MANY_RUNS;
use log::ResultsLog;
use netem::Change;
use outcome::{CellResult, Discarded, FORMAT, Machine, PeerResult, RunResult};
use sim::world::HostModel;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Most attempts of a run if each is discarded.
const MAX_ATTEMPTS: u32 = 3;
/// Stack of a simulating thread, as that of a program's main thread.
const STACK: usize = 8 << 20;

/// How a plan is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This executable, which also runs in the nodes.
    pub longhaul: PathBuf,
    /// The folder for results and records.
    pub out: PathBuf,
    /// Whether to keep the emulator's records of each run in the folder.
    pub keep_records: bool,
    /// Set to stop everything.
    pub stop: Arc<AtomicBool>,
    /// Parallel runs, if the bench supports them (the simulator); at least 1.
    pub jobs: usize,
    /// What simulated hosts take time for; `None`: nothing.
    pub hosts: Option<HostModel>,
}

/// Progress of the execution.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress<'a> {
    /// A run begins.
    Begins {
        /// Runs so far, and the total if none is discarded.
        at: (u64, u64),
        /// Cell and peer.
        name: &'a str,
        /// From 1.
        repetition: u32,
        /// Its duration in virtual or real seconds.
        seconds: f64,
    },
    /// A run was valid; its headline as text.
    Good(&'a str),
    /// A run was discarded, and why.
    Discarded(&'a str),
    /// A peer cannot run, and why.
    Skipped {
        /// Cell and peer.
        name: &'a str,
        /// Why.
        why: &'a str,
    },
}

/// A callback for progress.
pub type ProgressSink<'a> = dyn FnMut(Progress<'_>) + 'a;

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It is discarded; another attempt may succeed.
    Discarded(String),
    /// No attempt can succeed.
    Impossible(String),
    /// It was interrupted.
    Stopped,
}

/// What executes runs: the laboratory or the simulator.
pub trait Bench {
    /// One run of a line-up.
    ///
    /// # Errors
    /// See [`Failure`].
    fn run(&mut self, cell: &Cell, peer: &Lineup, seed: u64, tag: &str) -> Result<RunResult, Failure>;
    /// Why a flow cannot run here; `None` if it can.
    fn missing(&self, flow: &Flow) -> Option<String>;
    /// Whether time is virtual.
    fn simulated(&self) -> bool;
    /// Another bench for another thread, if runs do not disturb each other.
    fn fork(&self) -> Option<Box<dyn Bench + Send>> {
        None
    }
}

/// Runs a plan in network namespaces. Needs root.
///
/// # Errors
/// The system refuses, or nothing could run, as text. Results so far are in the folder.
pub fn in_laboratory(
    plan: &Plan,
    settings: &Settings,
    watch: &mut ProgressSink<'_>,
) -> Result<Results, String> {
    if plan.simulator_only {
        return Err(format!("the plan {} is for the simulator only; run it with --sim", plan.name));
    }
    let programs = Programs::find(&settings.longhaul);
    let mut bench = trial::Laboratory { settings: settings.clone(), programs };
    run_on(plan, settings, &mut bench, watch)
}

/// The emulator's topology for a plan's; `home` is a folder for a trace, which must exist as long as the topology is
/// used.
///
/// # Errors
/// The folder cannot be written, in words.
pub fn network(t: &Topology, home: &std::path::Path) -> Result<crate::TopologySpec, String> {
    trial::topology(t, home)
}

/// Executes a plan on any bench.
///
/// # Errors
/// The folder cannot be written, in words.
pub fn run_on(
    plan: &Plan,
    settings: &Settings,
    bench: &mut dyn Bench,
    watch: &mut ProgressSink<'_>,
) -> Result<Results, String> {
    std::fs::create_dir_all(&settings.out)
        .map_err(|e| format!("cannot make the folder {}: {e}", settings.out.display()))?;
    let mut results = empty_results(plan, bench.simulated());
    results.timed_hosts = results.simulated && settings.hosts.is_some();
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
    }
    let turns = turns(plan, &results);
    let mut log = ResultsLog::new(plan, settings, results, &turns);
    let forks: Vec<_> = (0..settings.jobs.max(1)).map_while(|_| bench.fork()).collect();
    if forks.len() > 1 {
        run_in_parallel(&turns, forks, settings, &mut log, watch)?;
    } else {
        for (done, turn) in turns.iter().enumerate() {
            if log.is_skipped(turn) {
                log.skip(turn);
                continue;
            }
            let taken = turn.run(bench, done as u64, watch);
            if taken.stopped {
                break;
            }
            log.add(turn, taken)?;
            if settings.stop.load(Ordering::SeqCst) {
                break;
            }
        }
    }
    log.finish()
}

/// All turns in the order of execution.
fn turns<'a>(plan: &'a Plan, results: &Results) -> Vec<Turn<'a>> {
    let mut out = Vec::new();
    for (i, cell) in plan.cells.iter().enumerate() {
        for repetition in 1..=plan.repetitions {
            // The order rotates, so that no peer always runs next to the same other.
            let mut order: Vec<usize> = (0..cell.peers.len()).collect();
            order.rotate_left((repetition as usize - 1) % cell.peers.len().max(1));
            let able = order.into_iter().filter(|k| results.cells[i].peers[*k].skipped.is_none());
            out.extend(able.map(|k| Turn { plan, cell, peer: &cell.peers[k], at: (i, k), repetition }));
        }
    }
    out
}

/// Executes turns on several benches in parallel. The results are the same as in sequence, since each run has its own
/// seed.
fn run_in_parallel(
    turns: &[Turn<'_>],
    forks: Vec<Box<dyn Bench + Send>>,
    settings: &Settings,
    log: &mut ResultsLog<'_>,
    watch: &mut ProgressSink<'_>,
) -> Result<(), String> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::sync_channel(forks.len());
        for mut bench in forks {
            let (tell, next) = (tell.clone(), &next);
            let work = move || {
                loop {
                    let n = next.fetch_add(1, Ordering::SeqCst);
                    let Some(turn) = turns.get(n).filter(|_| !settings.stop.load(Ordering::SeqCst)) else {
                        break;
                    };
                    let taken = turn.run(bench.as_mut(), n as u64, &mut |_| ());
                    // The receiver is gone if a file could not be written.
                    if taken.stopped || tell.send((n, taken)).is_err() {
                        break;
                    }
                }
            };
            let thread = std::thread::Builder::new().stack_size(STACK);
            thread.spawn_scoped(scope, work).map_err(|e| format!("cannot start a thread: {e}"))?;
        }
        drop(tell);
        for (done, (n, taken)) in told.iter().enumerate() {
            turns[n].report_outcome(&taken, done as u64, watch);
            log.add(&turns[n], taken)?;
        }
        Ok(())
    })
}

/// One peer's turn in one repetition.
struct Turn<'a> {
    plan: &'a Plan,
    cell: &'a Cell,
    peer: &'a Lineup,
    /// Indices of the cell and of the peer in it.
    at: (usize, usize),
    repetition: u32,
}

/// The outcome of a turn.
#[derive(Default)]
struct TurnOutcome {
    run: Option<RunResult>,
    discarded: Vec<Discarded>,
    impossible: Option<String>,
    /// Whether it was interrupted, which stops everything.
    stopped: bool,
}

impl Turn<'_> {
    fn headline(&self, run: &RunResult) -> String {
        let headline = self.plan.metrics.first().copied().unwrap_or(Metric::Goodput);
        run.figures.get(&headline).map_or_else(|| "no figure".to_owned(), |v| headline.show(*v))
    }

    fn report_start(&self, done: u64, watch: &mut ProgressSink<'_>) {
        watch(Progress::Begins {
            at: (done, self.plan.cost().0),
            name: &self.cell.name_of(self.peer),
            repetition: self.repetition,
            seconds: self.cell.duration.as_secs_f64(),
        });
    }

    /// Attempts the run until one attempt is valid.
    fn run(&self, bench: &mut dyn Bench, done: u64, watch: &mut ProgressSink<'_>) -> TurnOutcome {
        let (cell_at, repetition) = (self.at.0, self.repetition);
        let mut taken = TurnOutcome::default();
        for attempt in 0..MAX_ATTEMPTS {
            self.report_start(done, watch);
            // All peers of a repetition have the same seed.
            let seed = seed_of(self.cell, repetition, attempt);
            let tag = format!("{}-{}-{repetition}-{attempt}", self.plan.name, cell_at + 1);
            match bench.run(self.cell, self.peer, seed, &tag) {
                Ok(mut run) => {
                    (run.repetition, run.seed) = (repetition, seed);
                    watch(Progress::Good(&self.headline(&run)));
                    taken.run = Some(run);
                    return taken;
                }
                Err(Failure::Discarded(why)) => {
                    watch(Progress::Discarded(&why));
                    taken.discarded.push(Discarded { repetition, why });
                }
                Err(Failure::Impossible(why)) => {
                    watch(Progress::Skipped { name: &self.cell.name_of(self.peer), why: &why });
                    taken.impossible = Some(why);
                    return taken;
                }
                Err(Failure::Stopped) => {
                    taken.stopped = true;
                    return taken;
                }
            }
        }
        taken
    }

    /// Reports what [`Turn::run`] would have reported.
    fn report_outcome(&self, taken: &TurnOutcome, done: u64, watch: &mut ProgressSink<'_>) {
        self.report_start(done, watch);
        taken.discarded.iter().for_each(|s| watch(Progress::Discarded(&s.why)));
        if let Some(why) = &taken.impossible {
            watch(Progress::Skipped { name: &self.cell.name_of(self.peer), why });
        }
        if let Some(run) = &taken.run {
            watch(Progress::Good(&self.headline(run)));
        }
    }
}

/// The seed of an attempt in a repetition, from 1: the same for all peers of the cell, independent of the rest of the
/// plan.
pub fn seed_of(cell: &Cell, repetition: u32, attempt: u32) -> u64 {
    mix_seeds(cell.chance.0, cell.chance.1, u64::from(repetition), u64::from(attempt))
}

/// Hashes several numbers into one (the finaliser of SplitMix64: Steele, Lea and Flood, "Fast Splittable Pseudorandom
/// Number Generators", 2014).
fn mix_seeds(a: u64, b: u64, c: u64, d: u64) -> u64 {
    [a, b, c, d].into_iter().fold(0, |h: u64, v| {
        let mut z = h.wrapping_add(v).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

fn empty_results(plan: &Plan, simulated: bool) -> Results {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    Results {
        format: FORMAT,
        plan: plan.name.clone(),
        title: plan.title.clone(),
        about: plan.about.clone(),
        simulated,
        timed_hosts: false,
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
        regret: None,
    }
}

fn describe(cell: &Cell) -> CellResult {
    let t = &cell.topology;
    let direct = t.kind == Kind::Direct;
    let mut network = t.forward.clone();
    network.schedule.clear();
    CellResult {
        id: cell.id.clone(),
        point: cell.point.clone(),
        network: if direct { direct::NETWORK_TEXT.to_owned() } else { network.to_string() },
        direct,
        capacity: t
            .forward
            .rate
            .into_iter()
            .chain(t.forward.police.map(|p| p.rate))
            .min()
            .map(|r| r.bits_per_sec() as f64),
        rtt: t.rtts.iter().min().map_or(0.0, |r| r.as_secs_f64()),
        window: (cell.warm_up.as_secs_f64(), cell.duration.as_secs_f64()),
        events: events(t),
        peers: Vec::new(),
    }
}

fn events(t: &Topology) -> Vec<(f64, String)> {
    let words = |c: &Change| match c {
        // The meaning of `lose=1` in a plan.
        Change::Loss(netem::Loss::Burst(b)) if b.bad_loss.get() == 0.0 => "one packet lost".to_owned(),
        c => c.to_string(),
    };
    t.forward.schedule.iter().map(|(at, c)| (at.since(Time::ZERO).as_secs_f64(), words(c))).collect()
}

#[cfg(test)]
mod tests;
