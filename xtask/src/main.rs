//! `cargo xtask`: the project's own checks and chores. `cargo xtask help` lists them; `cargo xtask ci` runs what a
//! change must pass.

mod book;
mod ci;
mod counts;
mod deny;
mod ffi;
mod fuzz;
mod guides;
mod interop;
mod layers;
mod mentions;
mod packages;
mod picture;
mod process;
mod profiled;
mod readme;
mod siege;
mod style;
mod test_suite;
mod tools;
mod unmodified;

use std::ops::Range;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use packages::Tool;
use process::{cargo, command, run, target_dir};

/// Seeds of a swarm when none are named: a few minutes on two cores.
const DEFAULT_SEEDS: Range<u64> = 0..60;
/// Seconds per fuzz target when none are named.
const DEFAULT_FUZZ_SECONDS: u64 = 10;
/// No single fuzz target runs longer than a day.
const MAX_FUZZ_SECONDS: u64 = 86_400;

/// What tests need beside the toolchain. Those that need something else which is missing say `skipped`; CONTRIBUTING.md
/// lists them.
const TEST_TOOLS: &[Tool] = &[
    Tool { needs: "tshark", package: "tshark" },
    Tool { needs: "clang", package: "clang" },
    Tool { needs: "wasm-ld", package: "lld" },
    Tool { needs: "etcd", package: "etcd-server" },
    Tool { needs: "rsync", package: "rsync" },
    Tool { needs: "/usr/include/infiniband/verbs.h", package: "libibverbs-dev" },
    Tool { needs: "ssh", package: "openssh-client" },
    Tool { needs: "/usr/sbin/sshd", package: "openssh-server" },
];

/// One command: its name, its options, its help text, and what it does.
struct Task {
    name: &'static str,
    options: &'static str,
    help: &'static str,
    run: fn(&[String]) -> Result<()>,
}

const TASKS: &[Task] = &[
    Task {
        name: "layers",
        options: "",
        help: "Check that crates depend on lower layers only, the style rules (sizes, unsafe, ignored tests), and that what documents name exists",
        run: |args| no_options(args).and_then(|()| structure()),
    },
    Task {
        name: "fmt",
        options: "[--fix]",
        help: "Check the formatting; --fix applies it",
        run: |args| format_sources(flag(args, "--fix")?),
    },
    Task {
        name: "clippy",
        options: "",
        help: "Lint every crate and target; a warning is an error",
        run: |args| no_options(args).and_then(|()| clippy()),
    },
    Task {
        name: "doc",
        options: "",
        help: "Build the documentation of every crate; a warning is an error",
        run: |args| no_options(args).and_then(|()| doc()),
    },
    Task {
        name: "book",
        options: "",
        help: "Build the documents as a site into target/book; a dead link is an error (installs mdbook into target/tools if missing)",
        run: |args| no_options(args).and_then(|()| book::build()),
    },
    Task {
        name: "deny",
        options: "",
        help: "Check licences, sources and duplicates of dependencies (installs cargo-deny into target/tools if missing)",
        run: |args| no_options(args).and_then(|()| deny::check()),
    },
    Task {
        name: "test",
        options: "[ARGS...]",
        help: "Run every test of the workspace; ARGS go to `cargo test` (installs tshark, clang and lld where they are missing and that is possible)",
        run: |args| {
            packages::want(TEST_TOOLS);
            if args.is_empty() {
                test_suite::run_all()
            } else {
                run(cargo().args(["test", "--workspace"]).args(args))
            }
        },
    },
    Task {
        name: "ffi",
        options: "[--profile dev|release|dist]",
        help: "Build the libraries that programs load in place of others (libibverbs.so.1) into target/PROFILE/lib (default release)",
        run: |args| {
            let profile = match args {
                [] => "release",
                [option, profile] if option == "--profile" => profile,
                _ => bail!("usage: cargo xtask ffi [--profile dev|release|dist]"),
            };
            ffi::build(profile).map(drop)
        },
    },
    Task {
        name: "fuzz",
        options: "[--seconds N] [TARGET...]",
        help: "Run each fuzz target, or those named, for N seconds (default 10)",
        run: |args| {
            let (seconds, targets) = number(args, "--seconds", DEFAULT_FUZZ_SECONDS)?;
            ensure!((1..=MAX_FUZZ_SECONDS).contains(&seconds), "--seconds must be 1 to {MAX_FUZZ_SECONDS}");
            fuzz::run_targets(seconds, &targets)
        },
    },
    Task {
        name: "swarm",
        options: "[--seeds A..B]",
        help: "Simulate seeds A up to but not including B in virtual time (default 0..60)",
        run: |args| swarm(seeds(args)?),
    },
    Task {
        name: "threads",
        options: "",
        help: "Try every order of steps that threads which hand buffers to each other can take (loom)",
        run: |args| no_options(args).and_then(|()| threads()),
    },
    Task {
        name: "counts",
        options: "[--accept]",
        help: "Count the instructions of the hot loops (valgrind) and compare with benches/counts.json; --accept keeps them",
        run: |args| counts::run_counts(flag(args, "--accept")?),
    },
    Task {
        name: "siege",
        options: "[--seconds N]",
        help: "Attack servers in every known way at once for N seconds (default 600); fails when a client's rate, memory or descriptors do not hold",
        run: siege::run_siege,
    },
    Task {
        name: "guides",
        options: "[NAME...]",
        help: "Follow the README and the guides to the letter, on hosts in network namespaces (root); NAME: those with this in their path",
        run: guides::run_guides,
    },
    Task {
        name: "interop",
        options: "[--full] [--only TEXT] [--shell SCRIPT]",
        help: "The matrix against the kernel's siw in a virtual machine (root, Debian 12); --full: with a whole gibibyte",
        run: interop::run_matrix,
    },
    Task {
        name: "unmodified",
        options: "",
        help: "Run the distribution's programs for verbs, unchanged, over Longhaul between two network namespaces (root, Debian 12)",
        run: |args| no_options(args).and_then(|()| unmodified::run_all()),
    },
    Task {
        name: "programs",
        options: "",
        help: "Build the shipped congestion-control programs anew, after a change of their source: commit the result (clang, lld)",
        run: |args| {
            no_options(args)?;
            run(cargo().args(["run", "--quiet", "-p", "longhaul-programs", "--example", "build"]))
        },
    },
    Task {
        name: "profiled",
        options: "",
        help: "Build the program by profile into target/profiled: a tenth of it less, and closer together (a quarter of an hour; llvm-tools)",
        run: |args| no_options(args).and_then(|()| profiled::build()),
    },
    Task {
        name: "man",
        options: "",
        help: "Write the manual pages into target/man",
        run: |args| no_options(args).and_then(|()| man()),
    },
    Task {
        name: "picture",
        options: "[longhaul demo options...]",
        help: "Draw what `longhaul demo` prints into docs/images/demo.svg, for the README",
        run: picture::draw,
    },
    Task {
        name: "bench",
        options: "bulk|budget|latency|iwarp|idle|lanes|programs|files|verbs [longhaul-bench options...], or decisions",
        help: "Compare with the peers in turn, over loopback and veth (root): ratios of medians, CPU seconds per gigabyte",
        run: bench,
    },
    Task {
        name: "ci",
        options: "[--long]",
        help: "Everything a change must pass, in order, with timings; stops at the first failure and names it; --long runs it at full size, for hours",
        run: |args| ci::run_steps(flag(args, "--long")?),
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &[String]) -> Result<()> {
    let Some((name, rest)) = args.split_first() else {
        eprint!("{}", usage());
        bail!("name a command");
    };
    if matches!(name.as_str(), "help" | "--help" | "-h") || rest.iter().any(|arg| arg == "--help") {
        print!("{}", usage());
        return Ok(());
    }
    let task = TASKS.iter().find(|task| task.name == name);
    let task = task.with_context(|| format!("no command `{name}`; `cargo xtask help` lists them"))?;
    (task.run)(rest).with_context(|| format!("`{name}` failed"))
}

fn usage() -> String {
    let mut text = String::from("Usage: cargo xtask COMMAND [OPTIONS]\n\nCommands:\n");
    for task in TASKS {
        text.push_str(&format!("  {} {}\n      {}\n", task.name, task.options, task.help));
    }
    text
}

// ---- options ----

fn no_options(args: &[String]) -> Result<()> {
    match args.first() {
        None => Ok(()),
        Some(arg) => bail!("unexpected argument `{arg}`"),
    }
}

fn flag(args: &[String], name: &str) -> Result<bool> {
    match args {
        [] => Ok(false),
        [arg] if arg == name => Ok(true),
        _ => bail!("the only option is {name}"),
    }
}

/// Takes `name N` out of `args`; gives N, or `default`, and the arguments that are left.
fn number(args: &[String], name: &str, default: u64) -> Result<(u64, Vec<String>)> {
    let (mut value, mut rest) = (default, Vec::new());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == name {
            let text = args.next().with_context(|| format!("{name} needs a number"))?;
            value = text.parse().with_context(|| format!("{name} needs a number, not `{text}`"))?;
        } else {
            rest.push(arg.clone());
        }
    }
    Ok((value, rest))
}

fn seeds(args: &[String]) -> Result<Range<u64>> {
    let text = match args {
        [] => return Ok(DEFAULT_SEEDS),
        [name, text] if name == "--seeds" => text,
        _ => bail!("the only option is --seeds A..B"),
    };
    let (start, end) = text.split_once("..").with_context(|| format!("--seeds needs A..B, not `{text}`"))?;
    let range = start.parse::<u64>()?..end.parse::<u64>()?;
    ensure!(!range.is_empty(), "--seeds {text} holds no seed");
    Ok(range)
}

// ---- the short commands ----

/// Layer and style checks; every breach is printed before it fails.
fn structure() -> Result<()> {
    let root = process::root();
    let mut breaches = layers::check(&root)?;
    breaches.extend(style::check(&root)?);
    breaches.extend(mentions::check(&root)?);
    for breach in &breaches {
        eprintln!("{breach}");
    }
    ensure!(breaches.is_empty(), "{} breaches of the layer and style rules", breaches.len());
    Ok(())
}

/// `cargo fmt` on the workspace and, as it is a workspace of its own, on `fuzz/`.
fn format_sources(fix: bool) -> Result<()> {
    for folder in ["", "fuzz"] {
        let manifest = process::root().join(folder).join("Cargo.toml");
        if !manifest.exists() {
            continue;
        }
        let mut command = cargo();
        command.args(["fmt", "--all", "--manifest-path"]).arg(manifest);
        if !fix {
            command.arg("--check");
        }
        run(&mut command)?;
    }
    Ok(())
}

fn clippy() -> Result<()> {
    run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    fuzz::clippy()
}

fn doc() -> Result<()> {
    run(cargo().env("RUSTDOCFLAGS", "-D warnings").args(["doc", "--workspace", "--no-deps"]))
}

fn swarm(seeds: Range<u64>) -> Result<()> {
    let range = format!("{}..{}", seeds.start, seeds.end);
    run(cargo().args(["run", "--quiet", "--release", "--", "sim", "swarm", "--seeds", &range]))
}

fn bench(args: &[String]) -> Result<()> {
    if args.first().is_some_and(|a| a == "decisions") {
        return run(cargo().args([
            "run",
            "--profile",
            "dist",
            "-p",
            "longhaul-programs",
            "--example",
            "decisions",
        ]));
    }
    let packages = ["-p", "longhaul", "-p", "longhaul-bench", "-p", "quinn-perf"];
    run(cargo().args(["build", "--quiet", "--profile", "dist"]).args(packages))?;
    if args.first().is_some_and(|a| a == "verbs") {
        ffi::build("dist")?;
    }
    let programs = target_dir().join("dist");
    let text = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
    // Idle connections are the bench's own at both ends.
    let own = args.first().is_none_or(|a| a == "idle");
    let programs_option = if own || args.iter().any(|a| a == "--programs") {
        Vec::new()
    } else {
        vec!["--programs".to_owned(), text(programs.clone())]
    };
    run(command(&text(programs.join("longhaul-bench"))).args(args).args(programs_option))
}

/// In a folder of its own: with `--cfg loom` everything is built anew.
pub(crate) fn threads() -> Result<()> {
    let flags = format!("{} --cfg loom", std::env::var("RUSTFLAGS").unwrap_or_default());
    let args = ["test", "--release", "-p", "longhaul-handover", "--test", "loom"];
    run(cargo().args(args).env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", target_dir().join("loom")))
}

fn man() -> Result<()> {
    let folder = process::target_dir().join("man");
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    run(cargo().args(["run", "--quiet", "--release", "--", "man"]).arg(&folder))?;
    let pages = std::fs::read_dir(&folder)?
        .filter_map(std::io::Result::ok)
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "1"))
        .count();
    ensure!(pages > 0, "`longhaul man` wrote no page into {}", folder.display());
    println!("{pages} manual pages in {}", folder.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn options_are_parsed_or_refused() {
        assert_eq!(number(&words("a --seconds 7 b"), "--seconds", 1).unwrap(), (7, words("a b")));
        assert_eq!(number(&[], "--seconds", 9).unwrap(), (9, Vec::new()));
        assert!(number(&words("--seconds"), "--seconds", 1).is_err());
        assert!(number(&words("--seconds x"), "--seconds", 1).is_err());
        assert_eq!(seeds(&[]).unwrap(), DEFAULT_SEEDS);
        assert_eq!(seeds(&words("--seeds 3..5")).unwrap(), 3..5);
        for bad in ["--seeds 5..5", "--seeds 5", "--seeds a..b", "--seed 1..2"] {
            assert!(seeds(&words(bad)).is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn every_command_is_listed_and_unknown_ones_are_refused() {
        assert!(TASKS.iter().all(|task| usage().contains(task.help)));
        assert!(dispatch(&words("no-such-command")).is_err());
        assert!(dispatch(&words("layers --surplus")).is_err());
    }

    #[test]
    fn the_workspace_obeys_the_layer_and_style_rules() {
        structure().unwrap();
    }
}
