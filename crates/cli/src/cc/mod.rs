//! `longhaul cc`: algorithms, and what administrators say about them. A file for each group of subcommands.

mod algorithms;
pub mod policy;

use crate::args::Cc;
use crate::exit::Outcome;

/// Runs one subcommand.
pub fn run(command: &Cc) -> Outcome<()> {
    match command {
        Cc::List => {
            algorithms::list();
            Ok(())
        }
        Cc::Describe { name } => algorithms::describe(name.as_deref()),
        Cc::Policy(p) => policy::run(p),
    }
}
