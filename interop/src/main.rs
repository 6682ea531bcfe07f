//! Interoperation with the kernel's `siw`: boots a guest that has it, and runs the matrix against it. `cargo xtask interop`
//! builds the guest and starts this in a network namespace of its own.

mod clock;
mod guest;
mod matrix;
mod peer;
mod perftest;
mod rows;
mod rping;
mod rstream;
mod sends;

use anyhow::{Context, Result};
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "The interoperation matrix against the Linux kernel's siw", version)]
struct Options {
    /// The folder with the guest's kernel and root file system
    #[arg(long)]
    guest: PathBuf,
    /// Where to keep what the guest's console says
    #[arg(long)]
    console: PathBuf,
    /// Everything at its full length: a gibibyte instead of a part of it
    #[arg(long)]
    full: bool,
    /// Only the rows whose line contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Instead of the matrix: run this shell script in the guest
    #[arg(long)]
    shell: Option<String>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("longhaul-interop: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let start = clock::now();
    let guest = guest::Guest::boot(&options.guest, &options.console).context("the guest does not start")?;
    println!("the guest booted in {:.1} s\n", (clock::now() - start).as_secs_f64());
    if let Some(script) = &options.shell {
        println!("{}", guest.run(script, matrix::LIMIT)?);
        return Ok(());
    }
    let lab = matrix::Lab::new(guest, options.full);
    matrix::run(&lab, &rows::all(), &options.only)
}
