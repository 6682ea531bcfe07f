//! Servers under all known attacks at once (`benches/siege`).

use anyhow::{Result, ensure};

use crate::process::{build_all, cargo, command, run, target_dir};

/// As long as it takes to see whether something grows.
const SECONDS: u64 = 600;
/// In CI: every attack begins, and what it holds is given back.
const BRIEF: u64 = 20;

/// For so long; rates count.
pub fn run_siege(args: &[String]) -> Result<()> {
    let (seconds, rest) = crate::number(args, "--seconds", SECONDS)?;
    ensure!(rest.is_empty() && (1..=86_400).contains(&seconds), "the only option is --seconds, 1 to 86400");
    besiege(seconds, true)
}

/// Memory, descriptors and answers count; rates of a few seconds do not.
pub fn run_briefly() -> Result<()> {
    besiege(BRIEF, false)
}

fn besiege(seconds: u64, whole: bool) -> Result<()> {
    let rates: &[&str] = if whole { &[] } else { &["--no-rates"] };
    if whole {
        run(cargo().args(["build", "--quiet", "--release", "-p", "longhaul", "-p", "longhaul-siege"]))?;
    } else {
        build_all()?;
    }
    let programs = target_dir().join(if whole { "release" } else { "debug" });
    let mut c = command(&programs.join("longhaul-siege").to_string_lossy());
    c.args(["run", "--seconds", &seconds.to_string(), "--longhaul"]).arg(programs.join("longhaul"));
    run(c.args(rates))
}
