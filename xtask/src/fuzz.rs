//! Builds and runs the fuzz targets of `fuzz/` (libFuzzer, laid out as for cargo-fuzz).
//!
//! The targets are built by cargo itself with the flags that cargo-fuzz would pass, so nothing has to be installed.
//! With a nightly toolchain they also run under AddressSanitizer; without one they run all the same, uninstrumented
//! for memory errors.

use std::fs::{File, create_dir_all, read_to_string};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use toml::{Table, Value};

use crate::process::{cargo, command, output, root, run, succeeds, target_dir};

/// Coverage feedback for libFuzzer: counters on every edge, traced comparisons; checks on; one unit of code each, as
/// the linker drops counters of functions it merges.
const COVERAGE: &[&str] = &[
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cdebug-assertions=on",
    "-Coverflow-checks=on",
    "-Ccodegen-units=1",
];
/// An input that takes longer than this many seconds is a finding.
const INPUT_SECONDS: u64 = 10;
/// A target that needs more memory than this many MiB is a finding.
const MEMORY_MIB: u64 = 1024;
/// Lines of a failed target's log that are shown.
const LOG_LINES: usize = 40;
/// Lines of its panic's message that are shown before them.
const PANIC_LINES: usize = 6;

/// Runs every target, or those named in `only`, for `seconds` each.
///
/// # Errors
/// When a target does not build, finds something, or ran no input at all.
pub fn run_targets(seconds: u64, only: &[String]) -> Result<()> {
    run_built(seconds, only, Effort::Run)
}

/// What is to take less time: building the targets, or an input of theirs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    Build,
    Run,
}

fn run_built(seconds: u64, only: &[String], effort: Effort) -> Result<()> {
    let manifest = root().join("fuzz/Cargo.toml");
    let text = read_to_string(&manifest).context("cannot read fuzz/Cargo.toml")?;
    let targets = chosen(&targets(&text)?, only)?;
    let folder = build(&manifest, &targets, effort)?;
    for target in &targets {
        let done = run_one(&folder, target, seconds)?;
        let Done { executed, edges, mebibytes } = done;
        println!(
            "fuzz: {target}: {executed} inputs in {seconds} s reached {edges} edges with {mebibytes} MiB, nothing found"
        );
    }
    Ok(())
}

/// Runs every target so briefly that all of them take `seconds` at most, building apart, and none more than `each`.
///
/// # Errors
/// As [`run_targets`].
pub fn run_briefly(seconds: u64, each: u64) -> Result<()> {
    let text = read_to_string(root().join("fuzz/Cargo.toml")).context("cannot read fuzz/Cargo.toml")?;
    run_built((seconds / targets(&text)?.len() as u64).clamp(1, each), &[], Effort::Build)
}

/// Lints the targets, which are a workspace of their own.
///
/// # Errors
/// When there is a warning.
pub fn clippy() -> Result<()> {
    let manifest = root().join("fuzz/Cargo.toml");
    let folder = target_dir().join("fuzz");
    let mut lint = cargo();
    lint.args(["clippy", "--bins", "--manifest-path"]).arg(manifest).arg("--target-dir").arg(folder);
    run(lint.args(["--", "-D", "warnings"]))
}

/// The names of the `[[bin]]` tables.
fn targets(manifest: &str) -> Result<Vec<String>> {
    let manifest: Table = manifest.parse().context("fuzz/Cargo.toml is not valid TOML")?;
    let bins = manifest.get("bin").and_then(Value::as_array).into_iter().flatten();
    let names: Vec<String> =
        bins.filter_map(|bin| bin.get("name")).filter_map(Value::as_str).map(str::to_owned).collect();
    ensure!(!names.is_empty(), "fuzz/Cargo.toml names no [[bin]]");
    Ok(names)
}

fn chosen(all: &[String], only: &[String]) -> Result<Vec<String>> {
    if let Some(unknown) = only.iter().find(|name| !all.contains(name)) {
        bail!("no fuzz target `{unknown}`; there are {}", all.join(", "));
    }
    Ok(if only.is_empty() { all.to_vec() } else { only.to_vec() })
}

/// Builds the targets; gives the folder they are in.
fn build(manifest: &Path, targets: &[String], effort: Effort) -> Result<std::path::PathBuf> {
    let nightly = succeeds(command("cargo").args(["+nightly", "--version"]));
    let mut flags = COVERAGE.to_vec();
    let mut build = if nightly {
        flags.push("-Zsanitizer=address");
        let mut build = command("cargo");
        build.arg("+nightly");
        build
    } else {
        println!(
            "fuzz: no nightly toolchain (`rustup toolchain install nightly`): running without AddressSanitizer"
        );
        cargo()
    };
    let version = output(command("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    let folder = target_dir().join("fuzz");
    // Naming the target keeps the flags from build scripts and procedural macros.
    build
        .args(["build", "--quiet", "--release", "--target", host, "--manifest-path"])
        .arg(manifest)
        .args(targets.iter().flat_map(|name| ["--bin", name]));
    build.arg("--target-dir").arg(&folder).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
    if effort == Effort::Build {
        build.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1");
    }
    run(&mut build)?;
    Ok(folder.join(host).join("release"))
}

/// What a target that found nothing did.
#[derive(Debug, PartialEq)]
struct Done {
    /// Inputs executed.
    executed: u64,
    /// Edges of the program's flow that they reached.
    edges: u64,
    /// The most memory that was used.
    mebibytes: u64,
}

/// Runs one target.
fn run_one(folder: &Path, target: &str, seconds: u64) -> Result<Done> {
    let (corpus, artifacts) = (format!("fuzz/corpus/{target}"), format!("fuzz/artifacts/{target}"));
    for made in [&corpus, &artifacts] {
        create_dir_all(root().join(made)).with_context(|| format!("cannot make {made}"))?;
    }
    let log = folder.join(format!("{target}.log"));
    let program = folder.join(target);
    let mut command =
        command(program.to_str().context("the path of the target folder is not valid Unicode")?);
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-timeout={INPUT_SECONDS}"));
    command.arg(format!("-rss_limit_mb={MEMORY_MIB}")).arg(format!("-artifact_prefix={artifacts}/"));
    command.arg("-print_final_stats=1").arg(&corpus);
    // Inputs worth starting from are kept in the repository; what a run adds goes to the corpus, which is not.
    let seeds = format!("fuzz/seeds/{target}");
    if root().join(&seeds).is_dir() {
        command.arg(&seeds);
    }
    finish(&mut command, target, &log, &artifacts)
}

fn finish(command: &mut Command, target: &str, log: &Path, artifacts: &str) -> Result<Done> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let status = command.stdout(file.try_clone()?).stderr(file).status();
    let status = status.with_context(|| format!("cannot start the fuzz target {target}"))?;
    let text = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
    if !status.success() {
        let lines: Vec<&str> = text.lines().collect();
        // A panic's message stands above the stack that libFuzzer prints, beyond the last lines.
        let end = lines.len().saturating_sub(LOG_LINES);
        let panic = lines[..end].iter().position(|line| line.contains("panicked at"));
        let message = panic.map_or(&[][..], |at| &lines[at..end.min(at + PANIC_LINES)]);
        for line in message.iter().chain(&lines[end..]) {
            eprintln!("{line}");
        }
        bail!(
            "fuzz target {target} ended with {status}; its log is {}, the input is in {artifacts}/: \
             give that file to the program to see it again: {} {artifacts}/FILE",
            log.display(),
            log.with_extension("").display()
        );
    }
    match done(&text) {
        Some(done) if done.executed > 0 => Ok(done),
        _ => bail!("fuzz target {target} executed no input; its log is {}", log.display()),
    }
}

/// What libFuzzer's final statistics and the last of its lines of progress say.
fn done(log: &str) -> Option<Done> {
    let statistic = |name: &str| -> Option<u64> {
        log.lines().find_map(|line| line.strip_prefix("stat::")?.strip_prefix(name))?.trim().parse().ok()
    };
    let edges = log.lines().rev().find_map(|line| line.split_once(" cov: "))?.1;
    Some(Done {
        executed: statistic("number_of_executed_units:")?,
        edges: edges.split_whitespace().next()?.parse().ok()?,
        mebibytes: statistic("peak_rss_mb:")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_bins_of_the_manifest() {
        let manifest = "[package]\nname = \"f\"\n[[bin]]\nname = \"packet\"\n[[bin]]\nname = \"frames\"\n";
        let all = targets(manifest).unwrap();
        assert_eq!(all, ["packet", "frames"]);
        assert_eq!(chosen(&all, &[]).unwrap(), all);
        assert_eq!(chosen(&all, &["frames".to_owned()]).unwrap(), ["frames"]);
        assert!(chosen(&all, &["absent".to_owned()]).is_err());
        assert!(targets("[package]\nname = \"f\"\n").is_err());
    }

    #[test]
    fn executions_are_parsed_from_the_log() {
        let log = "#2 INITED cov: 9 ft: 10\n#8123 DONE   cov: 1047 ft: 3\nDone 8123 runs in 2 second(s)\n\
                   stat::number_of_executed_units: 8123\nstat::y: 1\nstat::peak_rss_mb:              77\n";
        assert_eq!(done(log), Some(Done { executed: 8123, edges: 1047, mebibytes: 77 }));
        assert_eq!(done("Done 8 runs"), None);
    }
}
