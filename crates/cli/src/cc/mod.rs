//! `longhaul cc`: algorithms, and what administrators say about them. A file for each group of subcommands.

mod algorithms;
pub mod policy;
pub mod programs;
mod tcp;

use crate::args::Cc;
use crate::exit::Outcome;

/// Runs one subcommand.
pub fn run(command: &Cc) -> Outcome<()> {
    match command {
        Cc::List => {
            algorithms::list();
            tcp::list()
        }
        Cc::Build(b) => programs::build(b),
        Cc::Test(t) => programs::test(t),
        Cc::Attach(a) => tcp::attach(a),
        Cc::Detach { name } => tcp::detach(name),
        Cc::Describe { name } => algorithms::describe(name.as_deref()),
        Cc::Policy(p) => policy::run(p),
    }
}
