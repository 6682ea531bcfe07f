//! Programs from crates.io that checks need: the one installed on this machine, or one of our own below `target/tools`.

use anyhow::{Context, Result};

use crate::process::{self, cargo, command, run, succeeds};

/// A program and the crate of the same name that brings it.
pub struct CargoTool {
    /// The crate, which is the program's name too.
    pub name: &'static str,
    /// The version that is built where none is installed.
    pub version: &'static str,
}

impl CargoTool {
    /// The path of the program, which is built when it is missing.
    pub fn path(&self) -> Result<String> {
        let CargoTool { name, version } = *self;
        if succeeds(command(name).arg("--version")) {
            return Ok(name.to_owned());
        }
        let folder = process::target_dir().join("tools");
        let tool = folder.join("bin").join(name);
        if !tool.exists() {
            println!("building {name} {version} into {} (a minute or two)", folder.display());
            let mut install = cargo();
            // Unoptimised and without debug information: quick to build, and what it works on is small.
            install.args(["install", "--quiet", "--locked", "--debug", "--version", version, name, "--root"]);
            install.arg(&folder).env("CARGO_PROFILE_DEV_DEBUG", "0").env_remove("CARGO_TARGET_DIR");
            // Outside the workspace, so that its profiles and settings do not apply.
            run(install.current_dir(std::env::temp_dir()))?;
        }
        tool.into_os_string().into_string().ok().context("the path of the target folder is not valid Unicode")
    }
}
