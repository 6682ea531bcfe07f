//! What the threads of lanes wait for: nothing but packets and each other's work, it should show. `perf` counts calls of
//! futex, by which every lock of the standard library and of the system waits, and samples functions of our own programs
//! whose names tell of spinning or locking, by which a lock could wait without the system's help.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::Compare;
use crate::net::{Kind, Net};
use crate::peer::{self, Place};

/// Events that are counted; `perf` needs root for those of the system.
const EVENTS: &str = "syscalls:sys_enter_futex,raw_syscalls:sys_enter,context-switches,cpu-migrations";
/// Samples a second.
const FREQUENCY: &str = "1999";
/// What tells of a lock in a function's name.
const SIGNS: [&str; 5] = ["lock", "mutex", "futex", "spin", "park"];

/// Arguments of `perf` that come before the program: counts into `counts-END`, samples into `samples-END`.
pub fn wrap(folder: &Path, end: usize) -> Vec<String> {
    let file = |name: &str| folder.join(format!("{name}-{end}")).to_string_lossy().into_owned();
    let record = ["record", "--quiet", "-e", "cpu-clock", "-F", FREQUENCY, "-o"];
    let mut all: Vec<String> = record.map(str::to_owned).to_vec();
    all.extend([file("samples"), "--".to_owned(), "perf".to_owned()]);
    all.extend(["stat", "-x", ",", "-e", EVENTS, "-o"].map(str::to_owned));
    all.extend([file("counts"), "--".to_owned()]);
    all
}

/// Measures and tells.
pub fn run(c: &Compare) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("longhaul-profile-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = c.nets.iter().try_for_each(|kind| profile(c, *kind, &folder));
    std::fs::remove_dir_all(&folder)?;
    result
}

fn profile(c: &Compare, kind: Kind, folder: &Path) -> Result<()> {
    let both = c.cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let net = Net::up(kind, c.mtu)?;
    println!("\n{}, {} s; for 10^9 bytes of payload at each end", kind.name(), c.seconds);
    println!(
        "{:24} {:>8} {:>8} {:>10} {:>10} {:>10} {:>16}",
        "", "end", "futex", "all calls", "switches", "migrations", "in locks"
    );
    for (name, more) in
        [("1 lane", &["--lanes", "1"][..]), ("2 lanes", &["--lanes", "2", "--keep-threads"][..])]
    {
        let place = Place {
            net: &net,
            cores: [both.clone(), both.clone()],
            programs: &c.programs,
            seconds: c.seconds,
            mtu: c.mtu,
            state: folder,
            profile: Some(folder),
        };
        let ends = peer::longhaul(&place, &["--region", "256MiB"], more, &[])?;
        let gigabytes = ends[0].count as f64 / 1e9;
        for (end, title) in ["sender", "receiver"].iter().enumerate() {
            let counts = counts(folder, end).context("`perf` counted nothing: it needs root, and tracefs")?;
            let [futex, calls, switches, moves] = counts.map(|n| n / gigabytes);
            let (held, all) = samples(folder, end)?;
            let held = format!("{held} of {all}");
            println!("{name:24} {title:>8} {futex:8.1} {calls:10.0} {switches:10.0} {moves:10.1} {held:>16}");
        }
    }
    Ok(())
}

/// The figures of `perf stat -x ,`: value, unit, event, ...
fn counts(folder: &Path, end: usize) -> Result<[f64; 4]> {
    let text = std::fs::read_to_string(folder.join(format!("counts-{end}")))?;
    let values = text.lines().filter_map(|l| l.split(',').next()?.parse().ok());
    let values: Vec<f64> = values.collect();
    <[f64; 4]>::try_from(values).ok().with_context(|| format!("unexpected: {text}"))
}

/// Samples of an end's own functions in those that tell of locks, and in all.
fn samples(folder: &Path, end: usize) -> Result<(u64, u64)> {
    let mut perf = Command::new("perf");
    perf.args(["report", "--stdio", "--no-children", "-g", "none", "--comms"]);
    perf.args(["longhaul,longhaul-lane-1", "--sort", "sym", "-n", "-t", ";", "-i"]);
    let out = perf.arg(folder.join(format!("samples-{end}"))).output().context("`perf` cannot be run")?;
    Ok(tally(&String::from_utf8_lossy(&out.stdout)))
}

/// Of lines `share;samples;[.] function`, `[.]` being user space.
fn tally(report: &str) -> (u64, u64) {
    let (mut held, mut all) = (0, 0);
    for line in report.lines() {
        let mut fields = line.splitn(3, ';').skip(1);
        let (Some(n), Some(function)) = (fields.next(), fields.next()) else { continue };
        let (Ok(n), Some(function)) = (n.trim().parse::<u64>(), function.trim().strip_prefix("[.]")) else {
            continue;
        };
        all += n;
        let function = function.to_lowercase().replace("block", "").replace("clock", "");
        if SIGNS.iter().any(|s| function.contains(s)) {
            held += n;
        }
    }
    (held, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_that_tell_of_locks_are_counted() {
        let report = "# overhead\n  50.00%;  10;[.] aegis::seal_block\n  20.0%;4;[k] futex_wait\n 9.0%;1;[.] clock_gettime\n 5.0%;  3;[.] std::sync::Mutex::lock\n\n";
        assert_eq!(tally(report), (3, 14));
    }
}
