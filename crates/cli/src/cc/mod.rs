//! `longhaul cc`: algorithms, and what administrators say about them. A file for each group of subcommands.

mod algorithms;
mod file_state;
pub mod policies;
pub mod policy;
mod processes;
pub mod programs;
mod rules;
mod set;
mod show;
mod tcp;
mod trace;

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
        Cc::Attach(a) => match (&a.tcp, &a.policy) {
            (Some(program), _) => tcp::attach(a, program),
            (None, source) => rules::attach(a, source.as_ref().and_then(Option::as_ref)),
        },
        Cc::Detach(what) => match &what.name {
            Some(name) => tcp::detach(name),
            None => rules::detach(what),
        },
        Cc::Describe { name } => algorithms::describe(name.as_deref()),
        Cc::Show(a) => show::show(a),
        Cc::Status(a) => show::status(a),
        Cc::Set(a) => set::set(a),
        Cc::Push(a) => set::push(a),
        Cc::Pull(a) => set::pull(a),
        Cc::Trace(a) => trace::run(a),
        Cc::Load(a) => set::load(a),
        Cc::Unload(a) => set::unload(a),
        Cc::Policy(p) => policy::run(p),
    }
}
