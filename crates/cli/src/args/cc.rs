//! `longhaul cc`: its subcommands and their flags.

use super::live::{Pull, Push, Set, ShowFlows, Status, TraceFlow};
use clap::Subcommand;

/// What administrators see and say of congestion control.
#[derive(Subcommand, Debug)]
pub enum Cc {
    /// Names and what they are.
    List,
    /// Parameters of one algorithm or of all.
    Describe {
        /// The algorithm.
        name: Option<String>,
    },
    /// Processes that move data, and their flows: what each is treated by, and what it does.
    Show(ShowFlows),
    /// Where the policy of each process is from, and how it fares.
    Status(Status),
    /// Give running processes another policy, or change one flow.
    Set(Set),
    /// Write a policy into a central store, from which all hosts that watch it take it.
    Push(Push),
    /// Print the policy that a central store has.
    Pull(Pull),
    /// Print decisions of algorithms as they are made, until interrupted.
    Trace(TraceFlow),
}
