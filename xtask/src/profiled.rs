//! The program built by profile: what short training runs called often lies side by side, what they did not is out of the way.
//!
//! A message of a few bytes runs through many lines of code once, and fetching them is a part of its time (docs/performance.md,
//! "Lessons"). So the compiler is told which of them those are.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{cargo, command, now, output, run, succeeds, target_dir};

/// Where the ends meet.
const ADDRESS: &str = "127.0.0.1:4490";
/// A training run that takes longer has gone wrong.
const PATIENCE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(20);

/// What is trained, as `perf client` takes it: round trips, streams, messages of middle length.
const WORK: [&str; 5] = [
    "-o send -s 4 --region 4 --latency",
    "-o send -s 65536 --region 65536 --latency",
    "-o write -s 1048576 --region 1048576",
    "-o write -s 8192 --region 8192",
    "-o read -s 1048576 --region 1048576",
];
/// By iWARP or Longhaul's own transport, and options of both ends.
const WAYS: [(bool, &str); 3] =
    [(true, "--tcp-cc cubic --mpa-crc off"), (true, "--tcp-cc cubic --mpa-crc on"), (false, "")];

/// Builds it; says where it is.
pub fn build() -> Result<()> {
    let folder = target_dir().join("profiled");
    let (raw, merged) = (folder.join("raw"), folder.join("merged.profdata"));
    let (merge, by_profile) = (tool()?, folder.join("built"));
    remove(&raw)?;
    println!("to be trained ...");
    let trained = compile(&folder.join("trained"), &format!("-Cprofile-generate={}", raw.display()))?;
    println!("training ...");
    for poll in ["sleep", "spin"] {
        for (iwarp, options) in WAYS {
            for work in WORK {
                let both = format!("{options} --poll {poll}");
                train(&trained, (&folder, iwarp), &both, work)
                    .with_context(|| format!("training by `{both} {work}`"))?;
            }
        }
    }
    let (merge, raw, to) = (merge.to_string_lossy(), raw.to_string_lossy(), merged.to_string_lossy());
    run(command(&merge).args(["merge", "-o", &to, &raw]))?;
    println!("by profile ...");
    // Cargo goes by the profile's name: crates that have not changed would stay as another profile had them, and such ones cannot be
    // linked together.
    remove(&by_profile)?;
    let built = compile(&by_profile, &format!("-Cprofile-use={to}"))?;
    println!("{}", built.display());
    Ok(())
}

/// Removes a folder, if there is one.
fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Builds the program for this machine's system, into a folder of its own. With the target named, what only runs while it is
/// built is not meant.
fn compile(folder: &Path, flags: &str) -> Result<PathBuf> {
    let host = host()?;
    let flags = format!("{} {flags}", std::env::var("RUSTFLAGS").unwrap_or_default());
    let args = ["build", "--quiet", "--profile", "dist", "-p", "longhaul", "--target", &host];
    run(cargo().args(args).env("RUSTFLAGS", flags.trim()).env("CARGO_TARGET_DIR", folder))?;
    Ok(folder.join(host).join("dist").join("longhaul"))
}

fn host() -> Result<String> {
    let said = output(command("rustc").arg("-vV"))?;
    host_in(&said).map(str::to_owned).context("`rustc -vV` does not say its host")
}

fn host_in(said: &str) -> Option<&str> {
    said.lines().find_map(|line| line.strip_prefix("host: "))
}

/// The compiler's own `llvm-profdata`: others read other versions' profiles.
fn tool() -> Result<PathBuf> {
    let sysroot = PathBuf::from(output(command("rustc").args(["--print", "sysroot"]))?.trim());
    let tool = sysroot.join("lib/rustlib").join(host()?).join("bin/llvm-profdata");
    if !tool.exists() && !succeeds(command("rustup").args(["component", "add", "llvm-tools"])) {
        bail!("{} is missing: `rustup component add llvm-tools` gets it", tool.display());
    }
    ensure!(tool.exists(), "`rustup component add llvm-tools` did not bring {}", tool.display());
    Ok(tool)
}

/// One second of work between two ends.
fn train(program: &Path, (folder, iwarp): (&Path, bool), both: &str, work: &str) -> Result<()> {
    let program = program.to_string_lossy();
    // Not the user's own keys, and not what the user knows of others.
    let home = |end: &str| folder.join("home").join(end);
    let at_server: &[&str] = if iwarp { &["--iwarp", "plain"] } else { &[] };
    let mut server = command(&program);
    server.args(["perf", "server", "--listen", ADDRESS, "--allow-any-key", "--count", "1", "--json"]);
    server.env("LONGHAUL_HOME", home("server")).args(at_server).args(both.split_whitespace());
    server.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut server = Ended(server.spawn().context("the server cannot be started")?);
    // It says that it listens.
    let mut said = std::io::BufReader::new(server.0.stdout.take().context("the server's output")?);
    let n = std::io::BufRead::read_line(&mut said, &mut String::new())?;
    ensure!(n > 0, "the server does not listen");
    let to = if iwarp { format!("iwarp://{ADDRESS}") } else { ADDRESS.to_owned() };
    let mut client = command(&program);
    client.args(["perf", "client", &to, if iwarp { "--plain" } else { "--accept-new" }]);
    client.env("LONGHAUL_HOME", home("client"));
    client.args(["--json", "-i", "0", "-t", "1s"]).args(both.split_whitespace());
    client.args(work.split_whitespace()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut client = Ended(client.spawn().context("the client cannot be started")?);
    client.ends("the client")?;
    // What it counted is written when it ends by itself.
    server.ends("the server")
}

/// A process that ends when this does.
struct Ended(Child);

impl Ended {
    fn ends(&mut self, who: &str) -> Result<()> {
        let begin = now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                ensure!(status.success(), "{who} ended with {status}");
                return Ok(());
            }
            ensure!(begin.elapsed() < PATIENCE, "{who} did not end within {} s", PATIENCE.as_secs());
            #[expect(clippy::disallowed_methods, reason = "it waits for a program that it has started")]
            std::thread::sleep(STEP);
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiler_host_is_detected() {
        let said = "rustc 1.95.0 (59807616e 2026-04-14)\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\nrelease: 1.95.0\n";
        assert_eq!(host_in(said), Some("x86_64-unknown-linux-gnu"));
        assert_eq!(host_in("rustc 1.95.0"), None);
    }

    #[test]
    fn failed_run_is_reported() {
        let failed = |args: &[&str]| Ended(command("sh").args(args).spawn().expect("a shell")).ends("it");
        assert!(failed(&["-c", "exit 0"]).is_ok());
        assert!(failed(&["-c", "exit 3"]).expect_err("3").to_string().starts_with("it ended with"));
    }
}
