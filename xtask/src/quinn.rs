//! `bench-quinn`: runs `quinn-perf` server and client against each other on this machine.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail};

use crate::process::{cargo, command, run, target_dir};

/// Ends the server however the benchmark ends.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already: then there is nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures for `seconds`; `options` go to `quinn-perf client`.
pub fn bench(seconds: u64, options: &[String]) -> Result<()> {
    run(cargo().args(["build", "--quiet", "--release", "--package", "quinn-perf"]))?;
    let program = target_dir().join("release/quinn-perf");
    let program = program.to_str().context("the path of the target folder is not valid Unicode")?;
    let mut start = command(program);
    start.args(["server", "--listen", "127.0.0.1:0"]).stdout(Stdio::piped());
    let mut server = Server(start.spawn().context("cannot start `quinn-perf server`")?);
    let stdout = server.0.stdout.take().context("the server has no standard output")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let Some(address) = line.trim().strip_prefix("listening on ") else {
        bail!("`quinn-perf server` did not say where it listens, but `{}`", line.trim());
    };
    run(command(program).args(["client", address, "--json", "--seconds", &seconds.to_string()]).args(options))
}
