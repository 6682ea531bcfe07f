//! `longhaul wan`, `longhaul demo` and `longhaul sim`.

use super::{Programs, SendOptions, congestion, heading};
use crate::lab::host::Hosts;
use crate::units;
use base::{Rate, Span};
use clap::{Args, Subcommand};
use std::net::SocketAddr;

#[derive(Subcommand, Debug)]
pub enum Wan {
    /// Forward UDP with the delay, loss and rate of a long network, until interrupted.
    Relay(Relay),
}

/// Forward UDP with the delay, loss and rate of a long network, until interrupted.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Relay {
    /// The link of each direction, such as rate=500mbit delay=35ms loss=0.1% queue=1bdp.
    ///
    /// Further words: jitter=2ms reorder=0.1%(5ms) duplicate=0.01% corrupt=0.01% mtu=9000 (default 1500; off for any)
    /// at=10s:rate=100mbit.
    #[arg(value_name = "LINK")]
    pub link: Vec<String>,
    /// UDP address that clients send to, where port 0 lets the system choose.
    #[arg(long, value_name = "ADDR:PORT", help_heading = heading::NETWORK)]
    pub listen: SocketAddr,
    /// Address that their packets are forwarded to.
    #[arg(long, value_name = "ADDR:PORT", help_heading = heading::NETWORK)]
    pub to: SocketAddr,
    /// Named link to start from, one of transatlantic, transpacific, satellite-geo, lossy-wifi, cellular or datacenter
    /// (default: none).
    ///
    /// The words of LINK then change it.
    #[arg(long, value_name = "NAME", help_heading = heading::NETWORK)]
    pub profile: Option<String>,
    /// Link of the way back, in one argument (default: the same as forth).
    #[arg(long, value_name = "LINK", help_heading = heading::NETWORK)]
    pub back: Option<String>,
    /// Seed of the random numbers, 0 to 2^64-1 (default: random).
    #[arg(long, value_name = "N", help_heading = heading::NETWORK)]
    pub seed: Option<u64>,
    /// Time between reports (default: none until the end).
    #[arg(long, value_name = "TIME", value_parser = units::span, help_heading = heading::OUTPUT)]
    pub interval: Option<Span>,
    /// Print JSON on standard output: one line when ready, one at the end.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

/// Run a transfer over an emulated long, lossy path on this machine, and verify and measure it.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Demo {
    /// Total size of the large files.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = units::size,
          help_heading = heading::TRANSFER)]
    pub large: u64,
    /// Number of small files, 0 to 2^32-1.
    #[arg(long, value_name = "N", default_value_t = 2_000, help_heading = heading::TRANSFER)]
    pub small: u32,
    /// Give up after this time.
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = units::span,
          help_heading = heading::TRANSFER)]
    pub within: Span,
    /// Emulated path, in the words of `longhaul wan relay`.
    #[arg(long, value_name = "LINK", default_value = "rate=500mbit delay=35ms loss=0.1% queue=1bdp",
          help_heading = heading::NETWORK)]
    pub link: String,
    /// Seed of the files' contents and of the path, 0 to 2^64-1.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = heading::NETWORK)]
    pub seed: u64,
    #[command(flatten)]
    pub sending: SendOptions,
    /// Print one JSON object on standard output instead of the table.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

#[derive(Subcommand, Debug)]
pub enum Sim {
    /// Simulate one sender and one receiver over one link.
    Steady(Steady),
    /// Simulate random endpoints over hostile links, and check them against a model of the verbs.
    Swarm(Swarm),
}

/// Simulate random endpoints over hostile links, and check them against a model of the verbs.
#[derive(Args, Debug)]
pub struct Swarm {
    /// Range of seeds to run, the last one excluded, such as 0..1000.
    #[arg(long, value_name = "A..B", value_parser = seeds, help_heading = heading::TRANSFER)]
    pub seeds: std::ops::Range<u64>,
    /// Parallel simulations, 1 to 256 (default: one per processor).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256),
          help_heading = heading::TRANSFER)]
    pub threads: Option<u16>,
    /// Print one JSON object on standard output.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

/// Simulate one sender and one receiver over one link.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Steady {
    /// Virtual time to simulate in seconds, 1 to 100000.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100_000),
          help_heading = heading::TRANSFER)]
    pub seconds: u64,
    /// Rate of the link.
    #[arg(long, value_name = "RATE", default_value = "1gbit", value_parser = units::rate,
          help_heading = heading::NETWORK)]
    pub rate: Rate,
    /// Round-trip time of the path.
    #[arg(long, value_name = "TIME", default_value = "70ms", value_parser = units::span,
          help_heading = heading::NETWORK)]
    pub rtt: Span,
    /// Share of packets lost on the way to the receiver, 0% to 100%.
    #[arg(long, value_name = "SHARE", default_value = "0.1%", value_parser = units::share,
          help_heading = heading::NETWORK)]
    pub loss: f64,
    /// Largest IP packet in bytes, 1228 to 65535.
    #[arg(long, value_name = "BYTES", default_value_t = 1500, value_parser = units::packet,
          help_heading = heading::NETWORK)]
    pub mtu: u32,
    /// Seed of the random numbers, 0 to 2^64-1.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = heading::NETWORK)]
    pub seed: u64,
    #[command(flatten)]
    pub hosts: Hosts,
    #[command(flatten)]
    pub programs: Programs,
    /// Congestion control with parameters.
    #[arg(long, value_name = "SPEC", default_value = ::cc::registry::DEFAULT, value_parser = congestion,
          help_heading = heading::CONGESTION_CONTROL)]
    pub cc: String,
    /// Print one JSON object on standard output.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

fn seeds(text: &str) -> Result<std::ops::Range<u64>, String> {
    let range = text.split_once("..").and_then(|(a, b)| Some(a.trim().parse().ok()?..b.trim().parse().ok()?));
    range
        .filter(|r: &std::ops::Range<u64>| !r.is_empty())
        .ok_or_else(|| "not a range of seeds; try FIRST..END, such as 0..1000".to_owned())
}
