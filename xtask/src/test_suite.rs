//! Every test of the workspace, in two rows side by side.
//!
//! Tests of the protocol's core and of the simulator compute in virtual time: they need processors and no clock. All others wait
//! for sockets, disks and programs most of the time, and some compare what they see with the clock. So the first run behind the
//! second, at the lowest priority, and take the time that these leave.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{cargo, command, now, output, root, run, target_dir};

/// Packages whose tests have no clock.
const IN_VIRTUAL_TIME: [&str; 9] =
    ["base", "wire", "netem", "cc", "verbs", "iwarp", "transport", "endpoint", "sim"];
/// Binaries of which the time is printed at the end.
const SLOWEST: usize = 12;

/// One test binary.
struct Binary {
    /// The package, and the binary's source in it.
    name: String,
    folder: PathBuf,
    program: PathBuf,
    is_virtual: bool,
}

/// How one ended.
struct Ended {
    name: String,
    took: Duration,
    is_ok: bool,
}

/// Builds and runs all of them, and the examples of the documentation. Failures do not stop the others; they are named at the end.
pub fn run_all() -> Result<()> {
    let (background, clocked): (Vec<_>, Vec<_>) = build()?.into_iter().partition(|b| b.is_virtual);
    let log = target_dir().join("tests-in-virtual-time.log");
    let mut ended = std::thread::scope(|scope| -> Result<Vec<Ended>> {
        let behind = scope.spawn(|| run_behind(&background, &log));
        let mut ended = Vec::new();
        for binary in &clocked {
            println!("\n     Running {}", binary.name);
            ended.push(start(binary, &mut binary.command())?);
        }
        let Ok(others) = behind.join() else { bail!("the thread of tests in virtual time panicked") };
        ended.extend(others?);
        Ok(ended)
    })?;
    print!("{}", std::fs::read_to_string(&log).with_context(|| format!("cannot read {}", log.display()))?);
    println!("\n   Doc-tests");
    let examples = run(cargo().args(["test", "--workspace", "--doc"]));
    ended.sort_by_key(|e| std::cmp::Reverse(e.took));
    println!("\nslowest of {} test binaries:", ended.len());
    ended.iter().take(SLOWEST).for_each(|e| println!("{:8.1} s  {}", e.took.as_secs_f64(), e.name));
    let failed: Vec<&str> = ended.iter().filter(|e| !e.is_ok).map(|e| e.name.as_str()).collect();
    if !failed.is_empty() {
        bail!("tests failed in {}; `cargo test -p PACKAGE --test NAME` repeats one", failed.join(", "));
    }
    examples
}

/// One after the other, into a file: what they print would be mixed with that of the others.
fn run_behind(binaries: &[Binary], log: &Path) -> Result<Vec<Ended>> {
    let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut ended = Vec::new();
    for binary in binaries {
        use std::io::Write as _;
        writeln!(&file, "\n     Running {}", binary.name)?;
        let mut nice = command("nice");
        nice.args(["-n", "19"]).arg(&binary.program).current_dir(&binary.folder);
        nice.stdout(file.try_clone()?).stderr(file.try_clone()?);
        ended.push(start(binary, &mut nice)?);
    }
    Ok(ended)
}

fn start(binary: &Binary, command: &mut Command) -> Result<Ended> {
    command.env("CARGO_MANIFEST_DIR", &binary.folder);
    let begun = now();
    let status = command.status().with_context(|| format!("cannot start {}", binary.program.display()))?;
    Ok(Ended { name: binary.name.clone(), took: begun.elapsed(), is_ok: status.success() })
}

impl Binary {
    fn command(&self) -> Command {
        let mut all = command(&self.program.to_string_lossy());
        all.current_dir(&self.folder);
        all
    }

    /// From a line that cargo prints of what it has built; `None` for what is no test.
    fn of(message: &str, root: &Path) -> Option<Binary> {
        let message: Value = serde_json::from_str(message).ok()?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let program = PathBuf::from(message["executable"].as_str()?);
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let source = Path::new(message["target"]["src_path"].as_str()?);
        let package = folder.strip_prefix(root).unwrap_or(&folder).to_string_lossy().into_owned();
        let crate_name = package.strip_prefix("crates/");
        let is_virtual = crate_name.is_some_and(|name| IN_VIRTUAL_TIME.contains(&name));
        let source = source.strip_prefix(&folder).unwrap_or(source).display();
        Some(Binary { name: format!("{package}/{source}"), folder, program, is_virtual })
    }
}

/// Builds all tests as `cargo test --workspace` does; gives their binaries.
fn build() -> Result<Vec<Binary>> {
    // Once for what is printed, once more, with nothing left to build, for the list.
    run(cargo().args(["test", "--workspace", "--no-run", "--quiet"]))?;
    let mut list = cargo();
    list.args(["test", "--workspace", "--no-run", "--message-format=json"]).stderr(Stdio::null());
    let mut all: Vec<Binary> = output(&mut list)?.lines().filter_map(|l| Binary::of(l, &root())).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::Binary;
    use std::path::Path;

    #[test]
    fn test_binaries_are_found_in_what_cargo_prints() {
        let line = |test: &str, folder: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/{folder}/Cargo.toml","profile":{{"test":{test}}},"target":{{"src_path":"/w/{folder}/tests/a.rs"}},"executable":{executable}}}"#
            )
        };
        let of = |line: String| Binary::of(&line, Path::new("/w"));
        let found = of(line("true", "crates/sim", r#""/t/a-1""#)).expect("a test");
        assert_eq!((found.name.as_str(), found.is_virtual), ("crates/sim/tests/a.rs", true));
        assert_eq!(
            (found.folder.as_path(), found.program.as_path()),
            (Path::new("/w/crates/sim"), Path::new("/t/a-1"))
        );
        assert!(!of(line("true", "crates/cli", r#""/t/a-1""#)).expect("a test").is_virtual);
        assert!(!of(line("true", "ffi/verbs", r#""/t/a-1""#)).expect("a test").is_virtual);
        assert!(of(line("false", "crates/sim", r#""/t/a-1""#)).is_none());
        assert!(of(line("true", "crates/sim", "null")).is_none());
        assert!(of("no JSON".into()).is_none());
    }
}
