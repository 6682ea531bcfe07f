//! `longhaul perf`.

use super::{
    AdminOptions, Admission, ClientMemory, ConnectOptions, IwarpServerOptions, Operation, Output,
    SendOptions, Wire, heading,
};
use crate::units;
use crate::url::Server;
use base::Span;
use clap::{Args, Subcommand, ValueEnum};
use std::net::SocketAddr;

/// The port of `perf server` when none is named.
pub const PERF_PORT: u16 = 4461;

#[derive(Subcommand, Debug)]
pub enum Perf {
    /// Answer measurements until interrupted.
    Server(PerfServer),
    /// Measure throughput or latency of the path to a server.
    Client(PerfClient),
}

/// Answer measurements until interrupted (Ctrl-C or SIGTERM).
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct PerfServer {
    /// Exit after N measurements (default: none, run until interrupted).
    #[arg(long, value_name = "N", help_heading = heading::TRANSFER)]
    pub count: Option<u64>,
    /// UDP address to listen on (the default admits this machine only).
    #[arg(long, value_name = "ADDR:PORT", default_value_t = super::loopback(PERF_PORT),
          help_heading = heading::NETWORK)]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub memory: ClientMemory,
    #[command(flatten)]
    pub loop_options: LoopOptions,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub iwarp: IwarpServerOptions,
    #[command(flatten)]
    pub admission: Admission,
    #[command(flatten)]
    pub sending: SendOptions,
    #[command(flatten)]
    pub admin_options: AdminOptions,
    /// Print a line of JSON on standard output when ready.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
    /// With --json, print the bytes received in every 10 ms at the end of each measurement.
    #[arg(long, requires = "json", hide_short_help = true, help_heading = heading::OUTPUT)]
    pub arrivals: bool,
}

/// How an end's loop runs.
#[derive(Args, Clone, Debug)]
pub struct LoopOptions {
    /// What this end does while no packet arrives.
    #[arg(long, value_enum, default_value_t, hide_short_help = true, help_heading = heading::NETWORK)]
    pub poll: Polling,
    /// Drop this share of received packets at random, 0% to 100% (default: 0%).
    #[arg(long, value_name = "SHARE", value_parser = units::share, hide_short_help = true,
          help_heading = heading::NETWORK)]
    pub lose: Option<f64>,
}

/// What an end does while nothing arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Polling {
    /// Sleep until a packet arrives: no processor time when idle.
    #[default]
    Sleep,
    /// Poll for 50 microseconds, then sleep.
    Adaptive,
    /// Poll all the time: lowest latency, one core busy.
    Spin,
}

/// Measure throughput or latency of the path to a server.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct PerfClient {
    /// Name or address of the machine that runs `longhaul perf server`.
    ///
    /// Its port is 4461 unless named. Write iwarp://HOST to connect by iWARP.
    #[arg(value_name = "HOST[:PORT]", value_parser = perf_server)]
    pub server: Server,
    /// RDMA operation to measure.
    #[arg(short, long, value_enum, default_value_t, help_heading = heading::TRANSFER)]
    pub operation: Operation,
    /// Measure round-trip times, one message at a time, instead of throughput.
    #[arg(short, long, help_heading = heading::TRANSFER)]
    pub latency: bool,
    /// Message size, from 1 byte (default: 1MiB; 64 bytes with --latency, 8 for atomic operations).
    #[arg(short, long, value_name = "SIZE", value_parser = units::size, help_heading = heading::TRANSFER)]
    pub size: Option<u64>,
    /// Parallel queue pairs, 1 to 128.
    #[arg(short = 'P', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=128),
          help_heading = heading::TRANSFER)]
    pub streams: u16,
    /// Messages in flight per queue pair, 1 to 4096 (default: what the path carries, 64 MiB in total at most).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), hide_short_help = true,
          help_heading = heading::TRANSFER)]
    pub depth: Option<u32>,
    /// Duration of the measurement.
    ///
    /// Messages that are in flight at its end are not counted.
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = units::span,
          help_heading = heading::TRANSFER)]
    pub time: Span,
    /// Transfer this many bytes instead of running for a time (default: unset).
    #[arg(short = 'n', long, value_name = "SIZE", value_parser = units::size, conflicts_with = "time",
          help_heading = heading::TRANSFER)]
    pub bytes: Option<u64>,
    /// Accepted for old scripts, without effect.
    #[arg(long, hide_short_help = true, conflicts_with = "bytes", help_heading = heading::TRANSFER)]
    pub stop: bool,
    /// Reverse the direction: the server starts the operations.
    #[arg(short = 'R', long, help_heading = heading::TRANSFER)]
    pub reverse: bool,
    /// Memory region of each queue pair (default: 64MiB, less with more than 4 queue pairs).
    #[arg(long, value_name = "SIZE", value_parser = units::size, hide_short_help = true,
          help_heading = heading::TRANSFER)]
    pub region: Option<u64>,
    /// Compare received with sent data at the end.
    #[arg(long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub verify: bool,
    #[command(flatten)]
    pub loop_options: LoopOptions,
    /// Cipher suite, one of aegis-128l, aegis-128x2, aes-128-gcm, chacha20-poly1305, integrity-aegis, integrity-gmac or crc32c
    /// (default: the fastest of both ends).
    #[arg(long, value_name = "NAME", value_parser = suite, hide_short_help = true, help_heading = heading::SECURITY)]
    pub suite: Option<transport::crypto::Suite>,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub connect_options: ConnectOptions,
    #[command(flatten)]
    pub sending: SendOptions,
    #[command(flatten)]
    pub admin_options: AdminOptions,
    /// Time between reports, 0 for none.
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = units::span,
          help_heading = heading::OUTPUT)]
    pub interval: Span,
    #[command(flatten)]
    pub output: Output,
}

fn perf_server(text: &str) -> Result<Server, String> {
    Server::parse(text, PERF_PORT)
}

fn suite(text: &str) -> Result<transport::crypto::Suite, String> {
    use transport::crypto::Suite;
    let names = || Suite::ALL.map(Suite::name).join(", ");
    Suite::from_name(text).ok_or_else(|| format!("unknown cipher suite; try one of {}", names()))
}
