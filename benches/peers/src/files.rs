//! Files from one folder to another, by Longhaul and by others, in turn: over loopback, or over an emulated path.
//!
//! Each run has a server of its own, which is started before the clock and ended after it. Time is that of the whole
//! client command: connecting, copying, verifying where the program does so. Processor time is that of both ends with
//! all their processes. What arrived is hashed after each run and compared with what was made.

mod copier;
pub mod hosts;
mod memory;
pub mod pipeline;
mod tree;
mod ways;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use lhio::clock::{Clock, CpuTime};
use serde_json::{Value, json};

use crate::rounds::spread;
use copier::{COPIERS, Copier, Places};
use hosts::Hosts;
use memory::Peaks;

/// What all others are compared with.
pub const REFERENCE: &str = "rsync daemon, plain";
/// Most bytes of a case: source and copy are in memory at the same time.
const MAX_SIZE: u64 = 64 << 30;

/// Bytes that a run takes beside its copy, at most about: buffers of both ends, and of the kernel.
const BUFFERS: u64 = 512 << 20;

/// Options of the comparison.
#[derive(Args, Clone)]
pub struct Options {
    /// Only peers whose name contains one of these; all when left out
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// Cases: one (a single file of --size), many (200 files that come to --size), small (10,000 files of 4 KiB),
    /// million (1,000,000 files of 0 to 10 KB in 1,000 folders)
    #[arg(long, value_delimiter = ',', default_value = "one,many,small")]
    cases: Vec<String>,
    /// How often each peer has its turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Bytes of the large cases (2GiB, 500MiB); twice as much memory is taken
    #[arg(long, default_value = "2GiB", value_parser = size)]
    size: u64,
    /// Path between two hosts, in the words of `longhaul wan relay`, such as "rate=1gbit delay=25ms loss=0.1%"; needs
    /// root (default: loopback)
    #[arg(long)]
    path: Option<String>,
    /// Copy a second time, when everything is there
    #[arg(long)]
    again: bool,
    /// Where to work: a folder of a tmpfs; a folder of our own is made in it and removed
    #[arg(long, default_value = "/dev/shm")]
    folder: PathBuf,
    /// Where `longhaul` is
    #[arg(long, default_value = "target/dist")]
    programs: PathBuf,
    /// Instead, compare ways of bringing data into a new file of --size bytes in --folder, without any network
    #[arg(long)]
    ways: bool,
    /// All runs as JSON into this file
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What is copied.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// For `--cases`.
    pub name: &'static str,
    /// How many files.
    pub files: u64,
    /// Bytes of each, or of the largest.
    pub bytes: u64,
    /// In how many folders they are; 0: all in one, beside no other.
    pub folders: u64,
}

impl Case {
    /// The length of a file: all of `bytes`, or any length up to that where there are folders.
    pub fn length(self, file: u64) -> u64 {
        if self.folders == 0 {
            self.bytes
        } else {
            file.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (self.bytes + 1)
        }
    }

    fn total(self) -> u64 {
        (0..self.files).map(|n| self.length(n)).sum()
    }
}

/// Seconds, processor seconds of both ends, and peak memory of the largest process of each end in MB.
type Run = [f64; 4];
/// By case and name.
type Runs = BTreeMap<(&'static str, &'static str), Vec<Run>>;

pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        other => return Err(format!("`{other}` is no unit; use KiB, MiB or GiB")),
    };
    let n: u64 = digits.parse().map_err(|_| format!("`{digits}` is no number"))?;
    let bytes = n.checked_shl(unit).filter(|b| b >> unit == n && (1 << 20..=MAX_SIZE).contains(b));
    bytes.ok_or_else(|| "must be 1MiB to 64GiB".to_owned())
}

/// A folder that goes when this is dropped.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(path: PathBuf) -> Result<Folder> {
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Folder(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.0) {
            eprintln!("longhaul-bench: cannot remove {}: {e}", self.0.display());
        }
    }
}

/// Measures and tells.
pub fn compare(o: &Options) -> Result<()> {
    if o.ways {
        let work = Folder::new(o.folder.join(format!("longhaul-bench-{}", std::process::id())))?;
        return ways::compare(&work.0, o.size, o.rounds);
    }
    let cases = cases(o)?;
    // What has no network of its own has no path to go over.
    let asked = |c: &&Copier| {
        (o.path.is_none() || !c.is_local())
            && (o.peers.is_empty() || o.peers.iter().any(|part| c.name.contains(part.as_str())))
    };
    let mut copiers = Vec::new();
    for c in COPIERS.iter().filter(asked) {
        match c.missing() {
            Some(why) => eprintln!("{why}"),
            None => copiers.push(c),
        }
    }
    ensure!(!copiers.is_empty(), "no peer is left to measure");
    // Servers leave processes of their own behind: they become ours, and their time is counted.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let work = Folder::new(o.folder.join(format!("longhaul-bench-{}", std::process::id())))?;
    let hosts = match &o.path {
        Some(path) => Hosts::with_path(path, &o.programs)?,
        None => Hosts::loopback(),
    };
    let mut runs = Runs::new();
    for round in 1..=o.rounds {
        for case in &cases {
            turn(o, (&work.0, &hosts), *case, &copiers, round, &mut runs)?;
        }
    }
    for case in &cases {
        show(*case, &copiers, &runs);
    }
    show_many(&copiers, &runs);
    if let Some(file) = &o.json {
        fs::write(file, serde_json::to_string_pretty(&to_json(o, &runs))?)?;
    }
    Ok(())
}

fn cases(o: &Options) -> Result<Vec<Case>> {
    let all = [
        Case { name: "one", files: 1, bytes: o.size, folders: 0 },
        Case { name: "many", files: 200, bytes: o.size / 200, folders: 0 },
        Case { name: "small", files: 10_000, bytes: 4096, folders: 0 },
        Case { name: "million", files: 1_000_000, bytes: 10_000, folders: 1_000 },
    ];
    let find = |name: &String| all.iter().find(|c| c.name == name).copied();
    o.cases
        .iter()
        .map(|n| find(n).with_context(|| format!("no case `{n}`: one, many, small or million")))
        .collect()
}

/// One round of one case: each has its turn with the same source, another one first in each round.
fn turn(
    o: &Options,
    (work, hosts): (&Path, &Hosts),
    case: Case,
    copiers: &[&Copier],
    round: u32,
    runs: &mut Runs,
) -> Result<()> {
    let from = Folder::new(work.join("from"))?;
    let made = tree::make(&from.0, case)?;
    let state = work.join("state");
    fs::create_dir_all(&state)?;
    let first = round as usize % copiers.len();
    for c in copiers[first..].iter().chain(&copiers[..first]) {
        let to = Folder::new(work.join("to"))?;
        let places = Places { from: &from.0, to: &to.0, state: &state, programs: &o.programs, hosts };
        for name in [Some(c.name), c.again.filter(|_| o.again)].into_iter().flatten() {
            let room = if name == c.name { case.total() + BUFFERS } else { 0 };
            let run = measure(c, &places, room).with_context(|| format!("{name} failed"))?;
            if tree::look(&to.0, case).with_context(|| name)? != made {
                bail!("{name}: what arrived is not what was sent");
            }
            eprintln!(
                "round {round} of {}, {}, {name}: {:.2} s, {:.2} CPU s, client {:.0} MB, server {:.0} MB",
                o.rounds, case.name, run[0], run[1], run[2], run[3]
            );
            runs.entry((case.name, name)).or_default().push(run);
        }
    }
    Ok(())
}

fn measure(c: &Copier, p: &Places<'_>, room: u64) -> Result<Run> {
    let cpu = CpuTime::of_children();
    let clock = Clock::new();
    let mut ready = (c.prepare)(p)?;
    tree::touch(&p.to.join("touched"), room)?;
    let begun = clock.now();
    let client = ready.client.spawn().context("cannot start the client")?;
    let peaks = Peaks::watch(client.id(), ready.server.as_ref().map(|s| s.0.id()));
    let out = client.wait_with_output()?;
    let seconds = clock.now().since(begun).as_secs_f64();
    let [client, server] = peaks.end();
    copier::end(ready.server.take(), p.hosts)?;
    ensure!(out.status.success(), "{}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    Ok([seconds, CpuTime::of_children().since(cpu).total().as_secs_f64(), client, server])
}

fn gbits(case: Case, r: &Run) -> f64 {
    case.total() as f64 * 8e-9 / r[0]
}

fn show(case: Case, copiers: &[&Copier], runs: &Runs) {
    println!(
        "\n{} of {}{} bytes",
        if case.files == 1 { "1 file".into() } else { format!("{} files", case.files) },
        if case.folders == 0 { "" } else { "0 to " },
        case.bytes
    );
    println!(
        "{:36} {:>8} {:>16} {:>9} {:>8} {:>9} {:>10} {:>12}",
        "", "Gbit/s", "(least to most)", "to rsync", "seconds", "CPU s/GB", "to rsync's", "MB, each end"
    );
    let rate = |name| spread(runs.get(&(case.name, name))?.iter().map(|r| gbits(case, r)));
    let cpu =
        |name| spread(runs.get(&(case.name, name))?.iter().map(|r| r[1] / (case.total() as f64 * 1e-9)));
    let seconds = |name| spread(runs.get(&(case.name, name))?.iter().map(|r| r[0]));
    let ratio =
        |a: f64, b: Option<crate::rounds::Spread>| b.map_or("-".into(), |b| format!("{:.2}", a / b.median));
    let most = |name, end: usize| {
        runs.get(&(case.name, name)).into_iter().flatten().map(|r| r[end]).fold(0.0, f64::max)
    };
    for name in copiers.iter().flat_map(|c| [Some(c.name), c.again]).flatten() {
        let (Some(r), Some(s), Some(u)) = (rate(name), seconds(name), cpu(name)) else { continue };
        let range = format!("({:.2} to {:.2})", r.least, r.most);
        let (to_rate, to_cpu) = (ratio(r.median, rate(REFERENCE)), ratio(u.median, cpu(REFERENCE)));
        println!(
            "{name:36} {:8.2} {range:>16} {to_rate:>9} {:8.2} {:9.2} {to_cpu:>10} {:>12}",
            r.median,
            s.median,
            u.median,
            format!("{:.0}, {:.0}", most(name, 2), most(name, 3))
        );
    }
}

/// How much slower many files are than one.
fn show_many(copiers: &[&Copier], runs: &Runs) {
    let median = |case, name| Some(spread(runs.get(&(case, name))?.iter().map(|r| r[0]))?.median);
    let both =
        copiers.iter().filter_map(|c| Some((c.name, median("one", c.name)? / median("many", c.name)?)));
    for (i, (name, ratio)) in both.enumerate() {
        if i == 0 {
            println!("\n200 files to one of the same bytes, rates");
        }
        println!("{name:36} {ratio:8.2}");
    }
}

fn to_json(o: &Options, runs: &Runs) -> Value {
    let each = runs.iter().map(|((case, name), r)| json!({ "case": case, "peer": name, "runs": r }));
    json!({ "size": o.size, "runs": each.collect::<Vec<_>>(), "columns": ["seconds", "cpu_seconds", "client_megabytes", "server_megabytes"] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_limits() {
        assert_eq!(size("2GiB"), Ok(2 << 30));
        assert_eq!(size("1048576"), Ok(1 << 20));
        for bad in ["", "1", "2GB", "GiB", "65GiB", "18446744073709551615GiB", "-1MiB"] {
            assert!(size(bad).is_err(), "{bad} was taken");
        }
    }
}
