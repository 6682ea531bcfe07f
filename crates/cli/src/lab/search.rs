//! `longhaul lab search`: searches networks in which one algorithm does worse than another.

use super::host::Hosts;
use crate::args::heading;
use crate::exit::{Code, Failure, Outcome};
use crate::{stop, units};
use ::lab::search::{self, Found, MAX_BAD_SCORE, Options, SimulatorJudge};
use base::Span;
use clap::Args;
use lhio::clock::Clock;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Evaluations when only the time ends a search.
const ENDLESS: u64 = 1 << 40;

/// `longhaul lab search`.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Search {
    /// Algorithm to find bad paths for.
    #[arg(long, value_name = "NAME", default_value = cc::registry::DEFAULT, value_parser = algorithm,
          help_heading = heading::CONGESTION_CONTROL)]
    pub cc: String,
    /// Algorithm to compare it with.
    #[arg(long, value_name = "NAME", default_value = "bbr", value_parser = algorithm,
          help_heading = heading::CONGESTION_CONTROL)]
    pub against: String,
    /// Time to search, 1ms to 1d.
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = units::timeout,
          help_heading = heading::TRANSFER)]
    pub time: Span,
    /// Paths to try at most, 1 to 1000000 (default: as many as the time allows).
    ///
    /// The same seed and number find the same paths, if the time is long enough.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000),
          help_heading = heading::TRANSFER)]
    pub evaluations: Option<u64>,
    /// Seed of the random numbers, 0 to 2^63-1.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64),
          value_name = "N", help_heading = heading::TRANSFER)]
    pub seed: u64,
    /// Parallel simulations, 1 to 1024 (default: one per processor).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024),
          help_heading = heading::TRANSFER)]
    pub jobs: Option<u16>,
    #[command(flatten)]
    pub hosts: Hosts,
    /// Worst paths to print and keep, 1 to 1000.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000),
          help_heading = heading::OUTPUT)]
    pub keep: u16,
    /// File for the worst paths, a plan that `longhaul lab run` takes.
    #[arg(long, value_name = "FILE", default_value = "found.toml", help_heading = heading::OUTPUT)]
    pub out: PathBuf,
}

/// An algorithm by name; worlds are plans, which write it between quotes.
fn algorithm(text: &str) -> Result<String, String> {
    if text.contains(['"', '\\', '\n']) {
        return Err("not the name of an algorithm; try one without quotes".to_owned());
    }
    cc::registry::parse(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
}

/// Searches, and prints and keeps the worst worlds.
pub fn run(a: &Search) -> Outcome<()> {
    if a.cc == a.against {
        return Err(Failure::usage(
            "cannot compare an algorithm with itself: --cc and --against are the same; try two",
        ));
    }
    let stop = stop::on_signal(|| err_lines!("\nstopping; interrupt again to stop at once"))?;
    let clock = Clock::new();
    let options = Options {
        seed: a.seed,
        evaluations: a.evaluations.unwrap_or(ENDLESS),
        until: clock.now() + a.time,
        jobs: a.jobs.map_or_else(super::processors, usize::from),
    };
    let judge = SimulatorJudge { cc: &a.cc, against: &a.against, hosts: a.hosts.model()?, stop: &stop };
    let mut said = |tried: u64, found: Option<&Found>| match found {
        Some(f) => err_line!("{tried} paths tried; search {} reached {:.2}", f.climb + 1, f.verdict.score()),
        None => err_line!("{tried} paths tried; the last search has no verdict"),
    };
    let outcome =
        search::search(&options, &judge, &|| clock.now(), &stop, &mut said).map_err(Failure::system)?;
    let worst = &outcome.found[..outcome.found.len().min(usize::from(a.keep))];
    if worst.is_empty() {
        out_line!(
            "on none of {} paths has {} less than {MAX_BAD_SCORE} of {}",
            outcome.evaluations,
            a.cc,
            a.against
        );
    } else {
        let plan = search::plan_of_found(&a.cc, &a.against, a.seed, worst);
        std::fs::write(&a.out, &plan).map_err(|e| {
            Failure::system(format!("cannot write {}: {e}; try another file with --out", a.out.display()))
        })?;
        out_text!("{plan}");
        err_line!(
            "{} paths tried; the {} worst are in {}; to run them: longhaul lab run {} --sim",
            outcome.evaluations,
            worst.len(),
            a.out.display(),
            a.out.display()
        );
    }
    if stop.load(Ordering::SeqCst) {
        return Err(Failure::new(Code::Interrupted, "interrupted; the paths found so far are above"));
    }
    Ok(())
}
