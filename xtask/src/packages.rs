//! Programs of the distribution that some checks and tests need beside the toolchain. They are installed where that is
//! possible, with Debian's `apt-get` as root; elsewhere whoever runs the check is told what to install.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{command, output, run};

/// Something that a check needs, and the Debian package that brings it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tool {
    /// A program that is looked for in `PATH`, or the absolute path of a file.
    pub needs: &'static str,
    /// The package.
    pub package: &'static str,
}

impl Tool {
    fn is_there(&self) -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        // Joined to a folder, an absolute path stays as it is.
        Path::new(self.needs).is_file() || std::env::split_paths(&path).any(|f| f.join(self.needs).is_file())
    }
}

/// Installs those of `tools` that are missing.
///
/// # Errors
/// Names the packages that could not be installed, and what to do.
pub fn need(tools: &[Tool]) -> Result<()> {
    let missing = missing(tools);
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    println!("installing {names}");
    install(&missing).with_context(|| format!("install it (Debian: `apt-get install {names}`, as root)"))?;
    let left = self::missing(tools);
    ensure!(left.is_empty(), "{} installed, but what it should bring is not found in PATH", left.join(" "));
    Ok(())
}

/// As [`need`], for tests that say that they are skipped: what cannot be installed is said, and that is all.
pub fn want(tools: &[Tool]) {
    if let Err(e) = need(tools) {
        println!("note: {e:#}; the tests that need it say `skipped`");
    }
}

/// The packages of those of `tools` that are not there, each once.
fn missing(tools: &[Tool]) -> Vec<&'static str> {
    let mut names: Vec<_> = tools.iter().filter(|t| !t.is_there()).map(|t| t.package).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn install(packages: &[&str]) -> Result<()> {
    if output(command("id").arg("-u"))?.trim() != "0" {
        bail!("only root may install packages");
    }
    let apt = || {
        let mut apt = command("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        apt
    };
    run(apt().args(["update", "-qq"]))?;
    run(apt().args(["install", "-y", "-qq", "--no-install-recommends"]).args(packages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_name_is_reported_once() {
        let tool = |needs, package| Tool { needs, package };
        let nowhere = "no-such-program-anywhere";
        let tools = [
            tool("sh", "dash"),
            tool("/proc/self/exe", "linux"),
            tool(nowhere, "b"),
            tool("/no/such/file", "a"),
            tool(nowhere, "b"),
        ];
        assert_eq!(missing(&tools), ["a", "b"]);
        assert!(need(&tools[..2]).is_ok());
    }
}
