//! Where the workspace is, and how child processes are started.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The root of the workspace that this program was started from.
pub fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let manifest = manifest.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    manifest.parent().map(PathBuf::from).unwrap_or(manifest)
}

/// The folder that everything is built into: `CARGO_TARGET_DIR`, or `target` at the root.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder), // `join` keeps an absolute folder as it is
        None => root().join("target"),
    }
}

/// A command that runs at the root, without standard input, and without what `cargo run` told this program about
/// itself: build scripts (that of `ring`, for one) watch those variables and would rebuild each time they change.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let of_this_package = text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_");
        if of_this_package
            || matches!(&*text, "CARGO_CRATE_NAME" | "CARGO_BIN_NAME" | "CARGO_PRIMARY_PACKAGE")
        {
            command.env_remove(&name);
        }
    }
    command
}

/// The cargo of the project's toolchain.
pub fn cargo() -> Command {
    command(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
}

/// Runs to the end and fails, naming the command, unless it succeeds.
pub fn run(command: &mut Command) -> Result<()> {
    let text = describe(command);
    let status = command.status().with_context(|| format!("cannot start `{text}`"))?;
    if !status.success() {
        bail!("`{text}` ended with {status}");
    }
    Ok(())
}

/// Builds the programs and libraries of all packages for development. One package alone would have its dependencies with fewer
/// features than the tests have them, and nearly all would be built a second time.
pub fn build_all() -> Result<()> {
    run(cargo().args(["build", "--quiet", "--workspace"]))
}

/// Whether the command can be started and succeeds; what it prints is dropped.
pub fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Runs to the end and gives what it wrote to standard output.
pub fn output(command: &mut Command) -> Result<String> {
    let text = describe(command);
    let output = command.output().with_context(|| format!("cannot start `{text}`"))?;
    if !output.status.success() {
        bail!("`{text}` ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{text}` printed something that is not text"))
}

/// The clock of a development tool, to tell its user how long a step took.
#[allow(clippy::disallowed_methods)] // not protocol code: nothing but a printed figure depends on it
pub fn now() -> Instant {
    Instant::now()
}

/// Processor time of the processes that this one started and that have ended: `cutime` and `cstime` of proc(5).
pub fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may hold spaces; fields are counted behind it, the third one first.
    let behind = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 =
        behind.split_whitespace().skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10) // a hundred ticks a second, on every Linux
}

fn describe(command: &Command) -> String {
    let program = PathBuf::from(command.get_program());
    let mut text = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}
