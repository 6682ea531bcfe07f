//! Where the time of one stream goes: each end's CPU time per packet, by what it is spent on, from samples of both ends.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::Compare;
use crate::net::Kind;
use crate::peer::{self, Both, Place};
use crate::rounds::{self, Peer, Runs};

/// Samples begin this long after the ends are started: on a machine that is not busy, regions have been filled by then.
const LEAD: Duration = Duration::from_millis(1_500);
/// Samples a second and core. A prime, so that it keeps no step with timers.
const FREQUENCY: &str = "4999";

/// What a function's time counts as: the first that fits counts, by parts of the names of its object and itself.
const STEPS: [(&str, &[(&str, &str)]); 11] = [
    (
        "checksum or cipher",
        &[("", "crc_fast"), ("", "aegis"), ("", "aes"), ("", "gcm"), ("", "crypto"), ("", "chacha")],
    ),
    ("payload copied by us", &[("libc", "mem")]),
    ("segments and placement", &[("longhaul", "longhaul_verbs"), ("longhaul", "streams")]),
    (
        "packets, books, reports",
        &[("longhaul", "longhaul_transport"), ("longhaul", "RangeSet"), ("longhaul", "longhaul_cc")],
    ),
    ("endpoint and loop", &[("longhaul", "")]),
    (
        "payload copied by the kernel",
        &[("kernel", "_copy_"), ("kernel", "copy_user"), ("kernel", "rep_movs")],
    ),
    (
        "pages of packets",
        &[
            ("kernel", "page"),
            ("kernel", "folio"),
            ("kernel", "alloc"),
            ("kernel", "slab"),
            ("kernel", "kfree"),
        ],
    ),
    (
        "kernel's UDP and IP",
        &[("kernel", "udp"), ("kernel", "ip_"), ("kernel", "skb"), ("kernel", "sock"), ("kernel", "fib")],
    ),
    (
        "device, softirq",
        &[
            ("kernel", "dev_"),
            ("kernel", "net"),
            ("kernel", "softirq"),
            ("kernel", "veth"),
            ("kernel", "napi"),
        ],
    ),
    (
        "waking and waiting",
        &[
            ("kernel", "sched"),
            ("kernel", "wake"),
            ("kernel", "spin_unlock"),
            ("kernel", "poll"),
            ("kernel", "task"),
        ],
    ),
    ("kernel, other", &[("", "")]),
];

/// Samples of both ends by step.
type Counts = [[u64; STEPS.len()]; 2];

/// Measures and tells.
pub fn compare(c: &Compare) -> Result<()> {
    let seen: Rc<RefCell<BTreeMap<String, Counts>>> = Rc::default();
    let mut peers = Vec::new();
    for suite in ["crc32c", "aegis-128x2", "aes-128-gcm"] {
        let seen = Rc::clone(&seen);
        let measure = move |p: &Place<'_>| {
            let shared: &[&str] = if suite == "crc32c" { &["--encryption", "crc32c"] } else { &[] };
            let own = ["--suite", suite, "--region", "256MiB"];
            let samples = p.state.join("samples");
            let taken = thread::scope(|s| {
                let taken = s.spawn(|| sample(&samples, p.seconds));
                let both = peer::longhaul(p, &own, shared, &[])?;
                taken.join().expect("sampling does not panic").map(|()| both)
            })?;
            let counts = count(&samples, &p.cores)?;
            let mut seen = seen.borrow_mut();
            let sums = seen.entry(suite.to_owned()).or_default();
            for (sum, n) in sums.iter_mut().flatten().zip(counts.iter().flatten()) {
                *sum += n;
            }
            Ok(taken)
        };
        peers.push(Peer::new(suite, measure).once());
    }
    ensure!(
        c.seconds >= 3,
        "--seconds must be 3 or more: the first {} s are not looked at",
        LEAD.as_secs_f64()
    );
    println!(
        "CPU time of both ends in nanoseconds per packet, {} runs of {} s, MTU {}",
        c.rounds, c.seconds, c.mtu
    );
    rounds::run(c, &peers, |kind, runs| show(kind, runs, &core::mem::take(&mut *seen.borrow_mut())))
}

/// Samples all processors while the stream runs.
fn sample(into: &Path, seconds: u32) -> Result<()> {
    let (lead, span) = (LEAD.as_millis().to_string(), format!("{}", f64::from(seconds) - 0.5));
    let out = Command::new("perf")
        .args(["record", "-q", "-a", "-F", FREQUENCY, "-D", &lead, "-o"])
        .arg(into)
        .args(["--", "sleep", &span])
        .output()
        .context("`perf` is needed: apt-get install linux-perf")?;
    ensure!(out.status.success(), "perf record: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(())
}

fn count(samples: &Path, cores: &[String; 2]) -> Result<Counts> {
    let out =
        Command::new("perf").args(["script", "-F", "comm,cpu,ip,sym,dso", "-i"]).arg(samples).output()?;
    ensure!(out.status.success(), "perf script: {}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(tally(&String::from_utf8_lossy(&out.stdout), cores))
}

/// Counts the lines of `perf script` that are of `longhaul` on the cores of the two ends: which end it is, its core tells.
fn tally(script: &str, cores: &[String; 2]) -> Counts {
    let mut counts = Counts::default();
    for line in script.lines() {
        // longhaul [001]  ffffffff812345 udp_sendmsg ([kernel.kallsyms])
        let Some((comm, rest)) = line.split_once('[') else { continue };
        let Some((cpu, rest)) = rest.split_once(']') else { continue };
        let Some(end) = cores.iter().position(|c| c.parse() == cpu.parse::<u32>()) else { continue };
        if comm.trim() != "longhaul" {
            continue;
        }
        let (symbol, object) = rest.rsplit_once('(').unwrap_or((rest, ""));
        // What is not known by name is the kernel's or a library's, not one of its steps.
        let fits = |(o, s): &(&str, &str)| object.contains(o) && symbol.contains(s);
        if let Some(step) = STEPS.iter().position(|(_, names)| names.iter().any(fits)) {
            counts[end][step] += 1;
        }
    }
    counts
}

fn show(kind: Kind, runs: &Runs, seen: &BTreeMap<String, Counts>) {
    println!("\n{:30} {}", kind.name(), runs.iter().map(|(n, _)| format!("{n:>19}")).collect::<String>());
    println!(
        "{:30} {}",
        "",
        runs.iter().map(|_| format!("{:>10}{:>9}", "send", "receive")).collect::<String>()
    );
    let mut sums = vec![[0.0; 2]; runs.len()];
    for (step, (name, _)) in STEPS.iter().enumerate() {
        print!("{name:30} ");
        for ((suite, runs), sum) in runs.iter().zip(&mut sums) {
            for (end, sum) in sum.iter_mut().enumerate() {
                let n = nanoseconds(runs, seen.get(suite), end, step);
                *sum += n;
                print!("{:>1$.1}", n, 10 - end);
            }
        }
        println!();
    }
    let whole = sums.iter().flatten().enumerate().map(|(i, n)| format!("{:>1$.1}", n, 10 - i % 2));
    println!("{:30} {}", "together", whole.collect::<String>());
}

/// An end's CPU time per packet, and of it the share that the samples give a step.
fn nanoseconds(runs: &[Both], seen: Option<&Counts>, end: usize, step: usize) -> f64 {
    let packets: u64 = runs.iter().map(|b| b[0].packets.unwrap_or(0)).sum();
    let cpu: f64 = runs.iter().map(|b| b[end].cpu).sum();
    let Some(counts) = seen.map(|c| &c[end]) else { return 0.0 };
    let all: u64 = counts.iter().sum();
    cpu * 1e9 / packets.max(1) as f64 * counts[step] as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_count_for_the_end_whose_core_they_are_of_and_the_first_step_that_fits() {
        let script = "\
            longhaul [001]  55d0 longhaul_verbs::rx::Rx::place (/opt/longhaul)\n\
            longhaul [000]  55d0 crc_fast::arch::update (/opt/longhaul)\n\
            longhaul [000]  55d0 longhaul_io::driver::Driver::run (/opt/longhaul)\n\
            longhaul [000]  ffff _copy_from_iter ([kernel.kallsyms])\n\
            longhaul [000]  ffff mystery ([kernel.kallsyms])\n\
            rustc [000]  ffff udp_sendmsg ([kernel.kallsyms])\n\
            longhaul [002]  ffff udp_sendmsg ([kernel.kallsyms])\n\
            nonsense\n";
        let counts = tally(script, &["0".to_owned(), "1".to_owned()]);
        let at = |name: &str| STEPS.iter().position(|(n, _)| *n == name).expect("a step");
        assert_eq!(counts.iter().flatten().sum::<u64>(), 5);
        assert_eq!(counts[1][at("segments and placement")], 1);
        for name in
            ["checksum or cipher", "endpoint and loop", "payload copied by the kernel", "kernel, other"]
        {
            assert_eq!(counts[0][at(name)], 1, "{name}");
        }
    }
}
