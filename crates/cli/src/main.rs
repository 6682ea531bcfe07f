//! The `longhaul` program.

// First: the rest says everything by its macros.
#[macro_use]
mod out;

mod access_log;
mod args;
mod cc;
mod clean;
mod client;
mod copy;
mod copy_jobs;
mod demo;
mod exit;
mod gate;
mod govern;
#[cfg(test)]
mod hints;
mod keys;
mod lab;
mod log;
mod perf;
mod policy_decision;
mod reference;
mod remedy;
mod run_program;
mod serve;
mod setup;
mod show;
mod simulate;
mod ssh;
mod stop;
mod stream;
mod trust;
mod units;
mod url;
mod wan;
mod x509;

use args::{Cli, Command, Perf, Sim, Wan};
use clap::Parser as _;
use exit::{Code, Failure, Outcome};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;

/// What cannot be had ends the program in words and with a code of its own, not by a signal.
#[global_allocator]
static MEMORY: lhio::memory::ExitOnOutOfMemory = lhio::memory::ExitOnOutOfMemory;

fn main() -> ExitCode {
    lhio::memory::limit_malloc_arenas();
    lhio::descriptors::raise();
    if let Some(code) = lab::run_as_child().or_else(ssh::remote_server::run_if_requested) {
        return code;
    }
    let done = match Cli::try_parse() {
        Ok(cli) => {
            log::begin(cli.verbose);
            run(&cli.command)
        }
        Err(e) => {
            let e = with_shown_arguments().unwrap_or(e);
            out::command_line(&e);
            if e.use_stderr() { Err(Failure::new(Code::Usage, "")) } else { Ok(()) }
        }
    };
    match out::checked(done) {
        Ok(()) => ExitCode::SUCCESS,
        Err(f) => {
            if !f.text.is_empty() {
                err_lines!("longhaul: {}", f.indented());
            }
            ExitCode::from(f.status.unwrap_or(f.code as u8))
        }
    }
}

/// What is wrong with the command line in which names of files, that a shell may have put there, are written as they are shown;
/// `None` where all are anyway.
fn with_shown_arguments() -> Option<clap::Error> {
    let arguments: Vec<_> = std::env::args_os().collect();
    let hidden = |a: &OsString| a.to_str().is_none_or(|a| a.chars().any(base::text::is_hidden));
    if !arguments.iter().any(hidden) {
        return None;
    }
    let shown =
        arguments.iter().map(|a| if hidden(a) { base::text::name(a.as_bytes()).into() } else { a.clone() });
    Cli::try_parse_from(shown).err()
}

fn run(command: &Command) -> Outcome<()> {
    match command {
        Command::Serve(a) => serve::run(a),
        Command::Put(a) => client::put(a),
        Command::Get(a) => client::get(a),
        Command::Copy(a) => copy::run(a),
        Command::Ls(a) => client::ls(a),
        Command::Du(a) => client::du(a),
        Command::Stat(a) => client::stat(a),
        Command::Checksum(a) => client::checksum(a),
        Command::Mkdir(a) => client::mkdir(a),
        Command::Rm(a) => client::rm(a),
        Command::Mv(a) => client::mv(a),
        Command::Clean(a) => clean::run(a),
        Command::Perf(Perf::Server(a)) => perf::server::run(a),
        Command::Perf(Perf::Client(a)) => perf::client::run(a),
        Command::Wan(Wan::Relay(a)) => wan::relay(a),
        Command::Run(a) => run_program::run(a),
        Command::Demo(a) => demo::run(a),
        Command::Sim(Sim::Steady(a)) => simulate::steady(a),
        Command::Sim(Sim::Swarm(a)) => simulate::swarm(a),
        Command::Keys(a) => keys::run(a),
        Command::Cc(a) => cc::run(a),
        Command::Lab(c) => lab::main(c),
        Command::Man { dir } => reference::man(dir),
    }
}
