//! Everything a change must pass, cheapest first; with `--long` at full size, which takes hours.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::{self, command, now, run};
use crate::{
    DEFAULT_FUZZ_SECONDS, DEFAULT_SEEDS, book, counts, deny, fuzz, guides, interop, readme, siege, unmodified,
};

/// Seconds for all fuzz targets together: building them takes about as long again, and the step three minutes at most.
const FUZZ_SECONDS: u64 = 100;

/// Seconds for each fuzz target with `--long`.
const LONG_FUZZ_SECONDS: u64 = 300;
/// Seeds of the swarm with `--long`.
const LONG_SEEDS: std::ops::Range<u64> = 0..2_000;

/// A name, and what is run; whether at full size.
type Step = (&'static str, fn(bool) -> Result<()>);

const STEPS: &[Step] = &[
    ("layers, style and names in documents", |_| crate::structure()),
    ("formatting", |_| crate::format_sources(false)),
    ("clippy", |_| crate::clippy()),
    ("documentation", |_| crate::doc()),
    ("documents as a site", |_| book::build()),
    ("dependencies", |_| deny::check()),
    ("tests (the README's test command)", |long| from_readme("test", long)),
    ("threads, in every order of their steps", |_| crate::threads()),
    ("instructions of the hot loops", |_| counts::run_counts(false)),
    ("fuzzing", |long| match long {
        true => fuzz::run_targets(LONG_FUZZ_SECONDS, &[]),
        false => fuzz::run_briefly(FUZZ_SECONDS, DEFAULT_FUZZ_SECONDS),
    }),
    ("guides, followed to the letter", |_| guides::run_guides(&[])),
    (
        "programs for verbs, unchanged",
        |long| if long { unmodified::run_all() } else { unmodified::run_briefly() },
    ),
    ("servers under attack", |long| if long { siege::run_siege(&[]) } else { siege::run_briefly() }),
    ("swarm of simulations", |long| crate::swarm(if long { LONG_SEEDS } else { DEFAULT_SEEDS })),
    ("interoperation with the kernel's siw", |_| interop::run_matrix(&[])),
    ("demonstration (the README's main command)", |long| from_readme("main", long)),
    ("manual pages", |_| crate::man()),
];

/// What one step took.
struct Timing {
    name: &'static str,
    elapsed: Duration,
    /// Of both kinds, by everything that the step started: on a machine that others use, too, this is what compares.
    processor: Duration,
}

/// Runs every step in order; at the first that fails, names it and stops.
pub fn run_steps(long: bool) -> Result<()> {
    let mut timings: Vec<Timing> = Vec::new();
    for (index, (name, step)) in STEPS.iter().enumerate() {
        println!("\n==== {}/{}: {name}", index + 1, STEPS.len());
        let (start, used) = (now(), process::processor_time());
        let outcome = step(long);
        let processor = process::processor_time().saturating_sub(used);
        timings.push(Timing { name, elapsed: start.elapsed(), processor });
        if let Err(error) = outcome {
            summary(&timings, 1);
            return Err(error).with_context(|| format!("step {} ({name})", index + 1));
        }
    }
    summary(&timings, 0);
    Ok(())
}

/// The last line is one that readers of CI logs know how to count.
fn summary(timings: &[Timing], failed: usize) {
    println!("\n==== timings\n   elapsed  processor");
    let line = |elapsed: Duration, processor: Duration, name: &str| {
        println!("{:8.1} s {:8.1} s  {name}", elapsed.as_secs_f64(), processor.as_secs_f64());
    };
    timings.iter().for_each(|t| line(t.elapsed, t.processor, t.name));
    line(timings.iter().map(|t| t.elapsed).sum(), timings.iter().map(|t| t.processor).sum(), "in all");
    println!("steps: {} passed, {failed} failed", timings.len() - failed);
}

fn from_readme(mark: &str, long: bool) -> Result<()> {
    let path = process::root().join("README.md");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let script = readme::block(&text, mark)?;
    println!("{script}");
    let mut bash = command("bash");
    if long {
        bash.env("LONGHAUL_FULL_TESTS", "1");
    }
    run(bash.args(["-euo", "pipefail", "-c", &script]))
}
