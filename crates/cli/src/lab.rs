//! `longhaul lab`: plans of workloads over emulated networks.

pub mod host;
mod search;

use crate::args::heading;
use crate::exit::{Code, Failure, Outcome};
use crate::stop;
use ::lab::plan::{Metric, Plan, SHIPPED, Truth, shipped};
use ::lab::run::outcome::Results;
use ::lab::run::{Progress, Settings};
use ::lab::{EMULATOR_ARGUMENT, Lab, LabError, LinkSpec, TopologySpec, workload};
use base::Span;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// The name of the file of results in their folder, and of the page.
const RESULTS: &str = "results.json";
const PAGE: &str = "report.html";
/// Of a plan that compares the simulator with real time: the folder of simulated results, and the drawing.
const SIMULATED: &str = "sim";
const DRAWING: &str = "truth.svg";

/// What can be done with the laboratory.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a plan, and write results.json and report.html.
    Run(Run),
    /// Search for paths on which an algorithm does worse than another, in the simulator.
    Search(search::Search),
    /// Measure what this host takes time for, as simulations need it.
    Host(host::Measure),
    /// Write the report of results again.
    Report(Report),
    /// List the plans that come with the program.
    List(List),
    /// Run a command in a node of an emulated network (needs root).
    ///
    /// Every node's address is in the environment: LAB_A, LAB_B, ... The exit code is the command's, or 128 plus the number of
    /// the signal that ended it.
    Exec(Exec),
    /// Remove what killed runs left behind: namespaces, interfaces and processes (needs root).
    Clean,
}

/// `longhaul lab run`.
#[derive(Args, Debug)]
pub struct Run {
    /// Plan: a name that `longhaul lab list` prints, or a file.
    #[arg(value_name = "PLAN")]
    pub plan: String,
    /// Run only cells and peers whose name contains this, such as loss=1%,streams=3/Longhaul (default: all).
    #[arg(long, value_name = "CELL", help_heading = heading::TRANSFER)]
    pub only: Option<String>,
    /// Run only part I of N of the cells, such as 1/20 for every 20th from the first (default: all).
    #[arg(long, value_name = "I/N", value_parser = part_of, help_heading = heading::TRANSFER)]
    pub part: Option<(usize, usize)>,
    /// Successful runs per peer and cell, 1 to 1000 (default: the plan's).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000),
          help_heading = heading::TRANSFER)]
    pub repeat: Option<u32>,
    /// Folder for the results (default: lab-PLAN, or lab-PLAN-sim with --sim).
    #[arg(long, value_name = "DIR", help_heading = heading::OUTPUT)]
    pub out: Option<PathBuf>,
    /// Simulate in virtual time, which does not need root.
    #[arg(long, help_heading = heading::TRANSFER)]
    pub sim: bool,
    /// Parallel simulations, 1 to 1024 (default: one per processor, fewer for paths that need much memory).
    #[arg(long, value_name = "N", requires = "sim", value_parser = clap::value_parser!(u16).range(1..=1024),
          help_heading = heading::TRANSFER)]
    pub jobs: Option<u16>,
    #[command(flatten)]
    pub hosts: host::Hosts,
    /// Keep the packet records of every run in the folder.
    #[arg(long, conflicts_with = "sim", help_heading = heading::OUTPUT)]
    pub records: bool,
    /// Print the results as JSON on standard output instead of a table.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

/// `longhaul lab report`.
#[derive(Args, Debug)]
pub struct Report {
    /// Folder of the results, or the file.
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Simulated results of the same plan, to compare with (default: none).
    #[arg(long, value_name = "OUT", help_heading = heading::OUTPUT)]
    pub sim: Option<PathBuf>,
}

/// `longhaul lab list`.
#[derive(Args, Debug)]
pub struct List {
    /// Print this plan, to start one from.
    #[arg(value_name = "PLAN")]
    pub plan: Option<String>,
    /// Explain the keys that plans are written with.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub keys: bool,
    /// Print the names of all cells and peers of the plan.
    #[arg(long, requires = "plan", help_heading = heading::OUTPUT)]
    pub cells: bool,
}

/// `longhaul lab exec`.
#[derive(Args, Debug)]
pub struct Exec {
    /// Node: a or b of a path.
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Plan whose network is emulated, instead of --link (default: none).
    #[arg(long, value_name = "PLAN", help_heading = heading::NETWORK)]
    pub plan: Option<String>,
    /// Cell of the plan (default: the first).
    #[arg(long, value_name = "CELL", requires = "plan", help_heading = heading::NETWORK)]
    pub cell: Option<String>,
    /// Path between a and b, in the words of `longhaul wan relay`.
    #[arg(
        long,
        value_name = "LINK",
        default_value = "rate=1gbit delay=35ms queue=1bdp",
        conflicts_with = "plan"
    , help_heading = heading::NETWORK)]
    pub link: String,
    /// Link of the way back (default: the same as forth).
    #[arg(long, value_name = "LINK", conflicts_with = "plan", help_heading = heading::NETWORK)]
    pub back: Option<String>,
    /// Shell command in another node, such as b="iperf3 -s" (repeatable; default: none).
    ///
    /// It is started before the command and ended after it.
    #[arg(long, value_name = "NODE=COMMAND", help_heading = heading::TRANSFER)]
    pub beside: Vec<String>,
    /// Seed of the random numbers, 0 to 2^64-1.
    #[arg(long, default_value_t = 1, value_name = "N", help_heading = heading::NETWORK)]
    pub seed: u64,
    /// Command to run.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Becomes the emulator or a workload, when that is what it was started as.
pub fn run_as_child() -> Option<ExitCode> {
    let args: Vec<String> = std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    let code = match args.first()?.as_str() {
        EMULATOR_ARGUMENT => ::lab::emulator::main(&args[1..]),
        workload::ARGUMENT => workload::main(&args[1..]),
        _ => return None,
    };
    Some(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Does it.
pub fn main(c: &Command) -> Outcome<()> {
    match c {
        Command::Run(a) => run(a),
        Command::Search(a) => search::run(a),
        Command::Host(a) => host::run(a),
        Command::Report(a) => report(a),
        Command::List(a) => list(a),
        Command::Exec(a) => exec(a),
        Command::Clean => {
            let gone = ::lab::clean().map_err(|e| lab_failure(&e))?;
            err_line!("removed {} leftovers{}", gone.len(), names(&gone));
            Ok(())
        }
    }
}

fn names(all: &[String]) -> String {
    if all.is_empty() { String::new() } else { format!(": {}", all.join(", ")) }
}

fn lab_failure(e: &LabError) -> Failure {
    let code = match e {
        LabError::System { .. } | LabError::Emulator(_) => Code::System,
        _ => Code::Usage,
    };
    Failure::new(code, e.to_string())
}

fn part_of(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    numbers.ok_or_else(|| "not a part; try one such as 1/20".to_owned())
}

/// How many simulations run at once when nobody says.
fn jobs_for(plan: &Plan) -> usize {
    /// What paths hold that are simulated side by side without thought for memory, in bytes.
    const SMALL: u64 = 256 << 20;
    let holds =
        |t: &::lab::plan::Topology| t.forward.bdp(t.rtt(0)).unwrap_or(0).saturating_add(t.forward.queue);
    let small = plan.cells.iter().all(|c| holds(&c.topology) < SMALL);
    if small { processors() } else { 1 }
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The plan, with what is asked for only.
fn chosen(a: &Run) -> Outcome<Plan> {
    let mut plan = Plan::open(&a.plan).map_err(Failure::usage)?;
    if a.sim {
        plan = ::lab::simulate::with_stand_ins(&plan);
    }
    if let Some(only) = &a.only {
        plan.keep_only(only).map_err(Failure::usage)?;
    }
    if let Some((part, of)) = a.part {
        plan.keep_part(part, of).map_err(Failure::usage)?;
    }
    plan.repetitions = a.repeat.unwrap_or(plan.repetitions);
    Ok(plan)
}

/// Tables and lists on standard output.
fn print(results: &Results) {
    out_text!("{}", ::lab::report::terminal(results));
    for more in [::lab::report::regret(results), ::lab::report::parts(results)] {
        if !more.is_empty() {
            out_text!("\n{more}");
        }
    }
    if !results.published.is_empty() {
        out_text!("\n{}", ::lab::report::published(results));
    }
}

fn run(a: &Run) -> Outcome<()> {
    let plan = chosen(a)?;
    let end = if a.sim { "-sim" } else { "" };
    let out = a.out.clone().unwrap_or_else(|| PathBuf::from(format!("lab-{}{end}", plan.name)));
    let longhaul = std::env::current_exe().map_err(Failure::system)?;
    let stop = stop::on_signal(|| err_lines!("\nstopping; interrupt again to stop at once"))?;
    let settings = Settings {
        longhaul,
        out: out.clone(),
        keep_records: a.records,
        stop: stop.clone(),
        jobs: a.jobs.map_or_else(|| jobs_for(&plan), usize::from),
        hosts: a.hosts.model()?,
    };
    let results = execute(&plan, &settings, a.sim)?;
    write_page(&results, None, &out)?;
    if a.json {
        crate::out::json(&results);
    } else {
        print(&results);
    }
    err_line!("{} and {} are in {}", RESULTS, PAGE, out.display());
    if let (Some(truth), false, false) = (&plan.truth, a.sim, stop.load(Ordering::SeqCst)) {
        compare(&plan, truth, &settings, &results)?;
    }
    if stop.load(Ordering::SeqCst) {
        return Err(Failure::new(Code::Interrupted, "interrupted; the results so far are kept"));
    }
    let none = results.cells.iter().flat_map(|c| &c.peers).all(|p| p.runs.is_empty());
    if none {
        Err(Failure::new(
            Code::Partial,
            "cannot report anything: no run succeeded; try to fix the reasons above",
        ))
    } else {
        Ok(())
    }
}

/// Simulates a plan that has been run in real time, and compares both.
fn compare(plan: &Plan, truth: &Truth, settings: &Settings, real: &Results) -> Outcome<()> {
    let plan = Plan { repetitions: truth.simulated, ..plan.clone() };
    let out = settings.out.join(SIMULATED);
    let settings = Settings { out: out.clone(), jobs: jobs_for(&plan), ..settings.clone() };
    let simulated = execute(&plan, &settings, true)?;
    write_page(&simulated, None, &out)?;
    tell_truth(truth, real, &simulated, out.parent().unwrap_or(&out))
}

/// Prints and draws how far the simulator is from real time.
fn tell_truth(truth: &Truth, real: &Results, simulated: &Results, folder: &Path) -> Outcome<()> {
    write_page(real, Some(simulated), folder)?;
    out_text!("{}", ::lab::report::truth::text(truth, real, simulated));
    let file = folder.join(DRAWING);
    let svg = ::lab::report::truth::svg(truth, real, simulated).unwrap_or_default();
    std::fs::write(&file, svg)
        .map_err(|e| Failure::system(format!("cannot write {}: {e}; try another folder", file.display())))?;
    err_line!("the drawing is {}", file.display());
    Ok(())
}

/// Runs a plan, in the simulator or in real time, and says how it goes.
fn execute(plan: &Plan, settings: &Settings, sim: bool) -> Outcome<Results> {
    let (runs, time) = plan.cost();
    let bar = ProgressBar::new(runs);
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed_precise} {wide_msg}") {
        bar.set_style(style);
    }
    let unit = if sim { "virtual" } else { "real" };
    err_line!(
        "{}: {runs} runs, {} minutes of {unit} time and set-up",
        plan.name,
        time.as_secs_f64() as u64 / 60 + 1
    );
    let mut last = String::new();
    let mut watch = |p: Progress<'_>| match p {
        Progress::Begins { at, name, repetition, .. } => {
            last = format!("{name}, repetition {repetition}");
            bar.set_position(at.0);
            bar.set_message(last.clone());
        }
        // Of many thousand runs, the bar and what goes wrong are enough.
        Progress::Good(_) if runs > ::lab::run::MANY_RUNS => {}
        Progress::Good(value) => bar.suspend(|| err_line!("{last}: {value}")),
        Progress::Discarded(why) => bar.suspend(|| err_line!("{last}: failed: {why}")),
        Progress::Skipped { name, why } => bar.suspend(|| err_line!("{name}: skipped: {why}")),
    };
    let results = if sim {
        ::lab::simulate::run(plan, settings, &mut watch)
    } else {
        ::lab::run::in_laboratory(plan, settings, &mut watch)
    };
    bar.finish_and_clear();
    results.map_err(Failure::system)
}

fn write_page(results: &Results, sim: Option<&Results>, folder: &Path) -> Outcome<()> {
    let file = folder.join(PAGE);
    std::fs::write(&file, ::lab::report::html(results, sim))
        .map_err(|e| Failure::system(format!("cannot write {}: {e}; try another folder", file.display())))
}

fn file_of(out: &Path) -> PathBuf {
    if out.is_dir() { out.join(RESULTS) } else { out.to_owned() }
}

fn report(a: &Report) -> Outcome<()> {
    let file = file_of(&a.out);
    let results = Results::read(&file).map_err(Failure::usage)?;
    let sim = a.sim.as_deref().map(|s| Results::read(&file_of(s)).map_err(Failure::usage)).transpose()?;
    let folder = file.parent().unwrap_or(Path::new("."));
    write_page(&results, sim.as_ref(), folder)?;
    err_line!("wrote {}", folder.join(PAGE).display());
    let truth = Plan::open(&results.plan).ok().and_then(|p| p.truth);
    match (sim, truth) {
        (Some(sim), Some(truth)) => tell_truth(&truth, &results, &sim, folder),
        _ => Ok(()),
    }
}

fn list(a: &List) -> Outcome<()> {
    if a.keys {
        out_text!("{}\n\nmetrics:\n", ::lab::plan::HELP.trim_end());
        Metric::ALL.iter().for_each(|m| out_line!("  {:<16}{}", m.name(), m.title()));
        return Ok(());
    }
    if let Some(name) = &a.plan {
        if a.cells {
            let plan = Plan::open(name).map_err(Failure::usage)?;
            plan.cells
                .iter()
                .flat_map(|c| c.peers.iter().map(|p| c.name_of(p)))
                .for_each(|n| out_line!("{n}"));
            return Ok(());
        }
        let text = shipped(name).ok_or_else(|| {
            Failure::usage(format!(
                "cannot find the plan `{name}`: it is not shipped; try one that \
                 `longhaul lab list` prints"
            ))
        })?;
        out_text!("{text}");
        return Ok(());
    }
    for (name, text) in SHIPPED {
        let plan = Plan::parse(name, text).map_err(Failure::usage)?;
        let (runs, time) = plan.cost();
        out_line!(
            "{name:<14} {} ({} cells, {runs} runs, {} min)",
            plan.title,
            plan.cells.len(),
            time.as_secs_f64() as u64 / 60
        );
    }
    Ok(())
}

/// The network that a command runs in, and a folder that lives as long as it is needed.
fn network(a: &Exec) -> Outcome<(TopologySpec, tempfile::TempDir)> {
    let folder = tempfile::tempdir().map_err(Failure::system)?;
    let Some(name) = &a.plan else {
        let reverse = a.back.as_ref().map(|b| LinkSpec::Text(b.clone()));
        return Ok((TopologySpec::Path { forward: LinkSpec::Text(a.link.clone()), reverse }, folder));
    };
    let plan = Plan::open(name).map_err(Failure::usage)?;
    let wanted = |c: &&::lab::plan::Cell| a.cell.as_ref().is_none_or(|w| c.id == *w);
    let cell = plan.cells.iter().find(wanted).ok_or_else(|| {
        let all: Vec<_> = plan.cells.iter().map(|c| c.id.as_str()).collect();
        Failure::usage(format!(
            "cannot find the cell: {name} does not have it; try one of: {}",
            all.join("; ")
        ))
    })?;
    let spec = ::lab::run::network(&cell.topology, folder.path()).map_err(Failure::usage)?;
    Ok((spec, folder))
}

fn exec(a: &Exec) -> Outcome<()> {
    let (spec, _folder) = network(a)?;
    let stop = stop::on_signal(|| ())?;
    let mut lab =
        Lab::up(&format!("exec{}", std::process::id()), &spec, a.seed).map_err(|e| lab_failure(&e))?;
    let mut addresses = Vec::new();
    for node in lab.nodes() {
        let address = lab.address(node).map_err(|e| lab_failure(&e))?;
        err_line!("{node}: {address}");
        addresses.push((format!("LAB_{}", node.to_uppercase()), address.to_string()));
    }
    let start = |node: &str, line: &[String]| -> Outcome<std::process::Child> {
        let mut c = lab.command(node, &line[0]).map_err(|e| lab_failure(&e))?;
        c.args(&line[1..]).envs(addresses.iter().cloned());
        c.spawn()
            .map_err(|e| Failure::usage(format!("cannot start {}: {e}; try the path of a program", line[0])))
    };
    let mut beside = Vec::new();
    for text in &a.beside {
        let (node, command) = text.split_once('=').ok_or_else(|| {
            Failure::usage(
                "cannot use --beside: it names no node; try NODE=COMMAND, such as \
                 b=\"iperf3 -s\"",
            )
        })?;
        beside.push(start(node, &["sh".to_owned(), "-c".to_owned(), command.to_owned()])?);
    }
    let mut main = start(&a.node, &a.command)?;
    lab.restart_schedules().map_err(|e| lab_failure(&e))?;
    // Signals reach the command too: it is in the same process group. It ends, and then so does this.
    let status = loop {
        if let Some(status) = main.try_wait().map_err(Failure::system)? {
            break status;
        }
        if stop.load(Ordering::SeqCst) {
            workload::sleep(Span::from_millis(200));
            let _ = main.kill();
        }
        workload::sleep(Span::from_millis(10));
    };
    for c in &mut beside {
        // It may have ended by itself.
        let _ = c.kill();
        let _ = c.wait();
    }
    lab.down().map_err(|e| lab_failure(&e))?;
    if status.success() { Ok(()) } else { Err(Failure::of_command(&a.command[0], status)) }
}
