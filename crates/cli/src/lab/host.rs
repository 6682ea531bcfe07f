//! `longhaul lab host`: what this host takes time for; and the hosts of simulations.

use crate::args::heading;
use crate::exit::{Failure, Outcome};
use ::lab::host::{EndSummary, HostFile, MAX_TEXT, measure};
use base::Span;
use clap::Args;
use sim::world::{HostModel, Lateness, POINTS};
use std::path::PathBuf;

/// `longhaul lab host`.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Measure {
    /// Time for each of three measurements, 100ms to 1h: waits, wake-ups, and a transfer over loopback.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = measuring_time,
          help_heading = heading::TRANSFER)]
    pub time: Span,
    /// File for the parameters, which `--host` of simulations takes (default: only printed).
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT)]
    pub out: Option<PathBuf>,
}

/// The hosts of simulations.
#[derive(Args, Debug)]
pub struct Hosts {
    /// File with what simulated hosts take time for, as `longhaul lab host` writes it (default: a virtual machine with two processors).
    #[arg(long, value_name = "FILE", help_heading = heading::NETWORK)]
    pub host: Option<PathBuf>,
    /// Simulate hosts that take no time: timers end exactly, and turns cost nothing.
    #[arg(long, conflicts_with = "host", help_heading = heading::NETWORK)]
    pub ideal_hosts: bool,
}

impl Hosts {
    /// The parameters; `None` of hosts that take no time.
    pub fn model(&self) -> Outcome<Option<HostModel>> {
        if self.ideal_hosts {
            return Ok(None);
        }
        let Some(path) = &self.host else { return Ok(Some(HostModel::default())) };
        let fail = |e: String| Failure::usage(format!("cannot use {}: {e}", path.display()));
        let other =
            |e: std::io::Error| fail(format!("{e}; try a file that `longhaul lab host --out FILE` wrote"));
        let length = std::fs::metadata(path).map_err(other)?.len();
        if length > MAX_TEXT as u64 {
            return Err(fail(format!("it has {length} bytes, more than {MAX_TEXT}; try another file")));
        }
        let text = std::fs::read_to_string(path).map_err(other)?;
        let file = HostFile::parse(&text).map_err(|e| fail(e.to_string()))?;
        Ok(Some(file.model))
    }
}

fn measuring_time(text: &str) -> Result<Span, String> {
    base::units::time_within(text, Span::from_millis(100), Span::from_secs(3_600)).map_err(|e| e.to_string())
}

fn points(l: &Lateness) -> String {
    let names = POINTS.map(|p| format!("{}%", p as f64 / 10.0));
    let all = names.iter().zip(l.0).map(|(name, s)| format!("{name} {:.1}", s.as_nanos() as f64 / 1e3));
    all.collect::<Vec<_>>().join(", ")
}

fn end(name: &str, e: &EndSummary) -> String {
    let [median, ninety, most] = e.batch;
    format!(
        "{name}: {} turns, {} datagrams in and {} out; datagrams a turn 50% {median}, 90% {ninety}, 99% {most}; us a turn {}",
        e.turns,
        e.datagrams.0,
        e.datagrams.1,
        points(&e.time)
    )
}

/// Measures, prints and saves.
pub fn run(a: &Measure) -> Outcome<()> {
    err_line!(
        "measuring for {} seconds; other load on this host is measured, too",
        a.time.as_secs_f64() * 3.0
    );
    let m = measure(a.time).map_err(|e| Failure::system(format!("cannot measure this host: {e}")))?;
    err_line!("waits end late by us {}", points(&m.model.timer));
    err_line!("wake-ups take us {}", points(&m.model.wake));
    err_line!("{}", end("sender", &m.ends[0]));
    err_line!("{}", end("receiver", &m.ends[1]));
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let machine = format!("Linux {}, {} processors", kernel.trim(), super::processors());
    let text = HostFile { machine, model: m.model }.text();
    out_text!("{text}");
    if let Some(path) = &a.out {
        std::fs::write(path, &text).map_err(|e| {
            Failure::system(format!("cannot write {}: {e}; try another file", path.display()))
        })?;
        err_line!("saved in {}", path.display());
    }
    Ok(())
}
