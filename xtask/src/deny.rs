//! Licences, sources, duplicates and advisories of the dependencies, by `cargo-deny`.

use std::path::PathBuf;

use anyhow::Result;

use crate::process::{command, run, succeeds};
use crate::tools::CargoTool;

/// The version that `deny.toml` was written for.
const DENY: CargoTool = CargoTool { name: "cargo-deny", version: "0.20.2" };
/// Seconds to wait for the advisory database before going on without it.
const FETCH_SECONDS: &str = "30";

/// The manifests of both workspaces: each has its own list of dependencies, and a `deny.toml` beside it.
const MANIFESTS: [&str; 2] = ["Cargo.toml", "fuzz/Cargo.toml"];

/// Runs every check that can be run here, and says which cannot.
pub fn check() -> Result<()> {
    let tool = DENY.path()?;
    let check = |manifest: &str, what: &[&str]| {
        println!("deny: {manifest}: {}", what.join(" "));
        run(command(&tool).args(["--manifest-path", manifest, "--workspace", "check"]).args(what))
    };
    for manifest in MANIFESTS {
        check(manifest, &["bans", "licenses", "sources"])?;
    }
    // The database is a git repository on GitHub. A machine without a way there still checks all the rest.
    let fetched = succeeds(command("timeout").args([FETCH_SECONDS, &tool, "fetch", "db"]));
    if fetched || database_is_present() {
        for manifest in MANIFESTS {
            check(manifest, &["--disable-fetch", "advisories"])?;
        }
    } else {
        println!(
            "deny: NOT CHECKED: security advisories. Their database cannot be fetched from here and no copy is kept."
        );
    }
    Ok(())
}

/// Whether an earlier fetch left the advisory database in cargo's home.
fn database_is_present() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let entries = home.and_then(|home| std::fs::read_dir(home.join("advisory-dbs")).ok());
    // A failed fetch leaves an empty folder and lock files: a database has advisories.
    entries.is_some_and(|entries| entries.flatten().any(|entry| entry.path().join("crates").is_dir()))
}
