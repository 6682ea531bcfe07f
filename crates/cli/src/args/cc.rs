//! `longhaul cc`: its subcommands and their flags.

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
}
