//! `longhaul cc`: its subcommands and their flags.

use clap::{Args, Subcommand};
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
    /// Build a program (C against opencc.h): ALG.wasm for Longhaul and ALG.bpf.o for the kernel's TCP. Needs clang and lld.
    Build(Build),
    /// Grade an algorithm: the rules that all have to keep, and transfers in virtual time. Exit code 1 if it fails.
    Test(Test),
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

/// `longhaul cc build`.
#[derive(Args, Debug)]
pub struct Build {
    /// The source, ALG.c.
    pub source: PathBuf,
    /// The folder for what is built; this one when left out.
    #[arg(short, long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Write opencc.h and opencc_window.h there too, for an editor to look things up in.
    #[arg(long)]
    pub headers: bool,
}

/// `longhaul cc test`.
#[derive(Args, Debug)]
pub struct Test {
    /// A name or a program's file (ALG.wasm, ALG.c), with parameters: cubic, gradient.wasm, gradient.c:gain=8.
    pub algorithm: String,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Programs that this process is to know.
#[derive(Args, Clone, Debug, Default)]
pub struct Programs {
    /// A congestion-control program (ALG.wasm, or ALG.c where clang is), known by its name to what follows: give it before
    /// --cc.
    #[arg(long = "cc-program", value_name = "FILE", value_parser = program)]
    pub programs: Vec<String>,
}

fn program(text: &str) -> Result<String, String> {
    crate::cc::programs::load(std::path::Path::new(text)).map(str::to_owned)
}
