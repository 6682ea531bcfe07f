//! The `longhaul` program.

mod args;
mod cc;
mod client;
mod demo;
mod exit;
mod gate;
mod govern;
mod keys;
mod lab;
mod mapped;
mod perf;
mod reference;
mod remedy;
mod serve;
mod setup;
mod show;
mod simulate;
mod stop;
mod trust;
mod units;
mod url;
mod wan;
mod x509;

use args::{Cli, Command, Perf, Sim, Wan};
use clap::Parser as _;
use exit::Outcome;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// What cannot be had ends the program in words and with a code of its own, not by a signal.
#[global_allocator]
static MEMORY: lhio::memory::OrExit = lhio::memory::OrExit;

fn main() -> ExitCode {
    lhio::memory::spare_address_space();
    if let Some(code) = lab::hidden() {
        return code;
    }
    let cli = Cli::parse();
    log(cli.verbose);
    match run(&cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(f) => {
            if !f.text.is_empty() {
                eprintln!("longhaul: {f}");
            }
            ExitCode::from(f.code as u8)
        }
    }
}

fn run(command: &Command) -> Outcome<()> {
    match command {
        Command::Serve(a) => serve::run(a),
        Command::Put(a) => client::put(a),
        Command::Get(a) => client::get(a),
        Command::Ls(a) => client::ls(a),
        Command::Perf(Perf::Server(a)) => perf::server::run(a),
        Command::Perf(Perf::Client(a)) => perf::client::run(a),
        Command::Wan(Wan::Relay(a)) => wan::relay(a),
        Command::Demo(a) => demo::run(a),
        Command::Sim(Sim::Steady(a)) => simulate::steady(a),
        Command::Sim(Sim::Swarm(a)) => simulate::swarm(a),
        Command::Keys(a) => keys::run(a),
        Command::Cc(a) => cc::run(a),
        Command::Lab(c) => lab::main(c),
        Command::Man { dir } => reference::man(dir),
    }
}

/// RUST_LOG, else warnings and, with -v, more; on standard error.
fn log(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // No colours in files and pipes.
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(verbose > 1)
        .init();
}
