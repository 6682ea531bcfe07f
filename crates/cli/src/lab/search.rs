//! `longhaul lab search`: worlds in which an algorithm does worse than another.

use crate::exit::{Code, Failure, Outcome};
use crate::{stop, units};
use ::lab::search::{self, BAD, Found, Options, Simulated};
use base::Span;
use clap::Args;
use lhio::clock::Clock;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Evaluations when only the time ends a search.
const ENDLESS: u64 = 1 << 40;

/// `longhaul lab search`.
#[derive(Args, Debug)]
pub struct Search {
    /// The algorithm to find bad worlds for.
    #[arg(long, value_name = "NAME", default_value = cc::registry::DEFAULT, value_parser = algorithm)]
    pub cc: String,
    /// The algorithm that it is compared with.
    #[arg(long, value_name = "NAME", default_value = "bbr", value_parser = algorithm)]
    pub against: String,
    /// For how long.
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = units::patience)]
    pub time: Span,
    /// Worlds to try at most; the same seed and number find the same, when the time is long enough.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub evaluations: Option<u64>,
    /// Seed of chance, of the search and in the worlds.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub seed: u64,
    /// Worlds that are tried at the same time; as many as there are processors when left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// Worst worlds to print and keep.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub keep: u16,
    /// The file that keeps them, a plan that can be run.
    #[arg(long, value_name = "FILE", default_value = "found.toml")]
    pub out: PathBuf,
}

/// An algorithm by name; worlds are plans, which write it between quotes.
fn algorithm(text: &str) -> Result<String, String> {
    if text.contains(['"', '\\', '\n']) {
        return Err("write the name of an algorithm without quotes".to_owned());
    }
    cc::registry::parse(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
}

/// Searches, and prints and keeps the worst worlds.
pub fn run(a: &Search) -> Outcome<()> {
    if a.cc == a.against {
        return Err(Failure::usage("--cc and --against are the same; name two algorithms"));
    }
    let stop = stop::on_signal(|| err_lines!("\nending; once more ends at once"))?;
    let clock = Clock::new();
    let options = Options {
        seed: a.seed,
        evaluations: a.evaluations.unwrap_or(ENDLESS),
        until: clock.now() + a.time,
        jobs: a.jobs.map_or_else(super::processors, usize::from),
    };
    let judge = Simulated { cc: &a.cc, against: &a.against, stop: &stop };
    let mut said = |tried: u64, found: Option<&Found>| match found {
        Some(f) => err_line!("{tried} tried; climb {} came to {:.2}", f.climb + 1, f.verdict.score()),
        None => err_line!("{tried} tried; nothing can be said of the worlds of a climb"),
    };
    let outcome =
        search::search(&options, &judge, &|| clock.now(), &stop, &mut said).map_err(Failure::system)?;
    let worst = &outcome.found[..outcome.found.len().min(usize::from(a.keep))];
    if worst.is_empty() {
        out_line!("no world of {} has {} below {BAD} of {}", outcome.evaluations, a.cc, a.against);
    } else {
        let plan = search::plan_of(&a.cc, &a.against, a.seed, worst);
        std::fs::write(&a.out, &plan)
            .map_err(|e| Failure::system(format!("cannot write {}: {e}", a.out.display())))?;
        out_text!("{plan}");
        err_line!(
            "{} worlds tried; the {} worst are in {}: longhaul lab run {} --sim",
            outcome.evaluations,
            worst.len(),
            a.out.display(),
            a.out.display()
        );
    }
    if stop.load(Ordering::SeqCst) {
        return Err(Failure::new(Code::Interrupted, "interrupted; what had been found stands above"));
    }
    Ok(())
}
