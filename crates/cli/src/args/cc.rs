//! `longhaul cc`: its subcommands and their flags.

use clap::Subcommand;
use std::path::PathBuf;

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
    /// Policies: which traffic gets which algorithm, class and share.
    #[command(subcommand)]
    Policy(Policy),
}

/// Policies.
#[derive(Subcommand, Debug)]
pub enum Policy {
    /// Check a policy file as a whole: everything that is wrong with it, with lines and remedies. Exit code 2 if it cannot
    /// be used.
    Check {
        /// The file.
        file: PathBuf,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Say what becomes of a flow, and why: rule, algorithm, parameters, class, share.
    Explain {
        /// The flow, in one argument or several: 10.0.0.1:5000->10.0.0.2:4460 app=backup dscp=CS1 qos=bulk carrier=native
        /// cc=bbr. Ports and words can be left out, and * stands for an address of this host.
        #[arg(required = true, value_name = "FLOW")]
        flow: Vec<String>,
        /// The policy; the built-in one when left out.
        #[arg(long, value_name = "FILE")]
        policy: Option<PathBuf>,
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Print the built-in policy, which holds where no other says anything.
    BuiltIn,
}
