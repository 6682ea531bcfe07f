//! Transfers between two other machines.

use super::{CompareOptions, ConnectOptions, Output, Wire, heading, place};
use crate::ssh::{Location, SshOptions};
use clap::{Args, ValueEnum};
use std::net::SocketAddr;

/// Copy files and folders from one other machine to another, directly. Repeat an interrupted command to resume it.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Copy {
    /// Sources, all of one machine, and the destination: [USER@]HOST:PATH over ssh, or of servers longhaul://HOST[:PORT]/PATH; a
    /// trailing slash means the contents of a source, and a folder as destination. With --status, --follow or --cancel, the server
    /// that sends.
    #[arg(required = true, value_name = "PLACE", value_parser = place())]
    pub places: Vec<Location>,
    /// Return as soon as the copy has begun; the servers go on alone.
    #[arg(short, long, conflicts_with_all = ["status", "follow", "cancel"], help_heading = heading::TRANSFER)]
    pub detach: bool,
    /// List the copies that this machine has asked a server for.
    #[arg(long, conflicts_with_all = ["follow", "cancel"], help_heading = heading::TRANSFER)]
    pub status: bool,
    /// Watch copy number JOB of a server until it ends (default: unset).
    #[arg(long, value_name = "JOB", conflicts_with = "cancel", help_heading = heading::TRANSFER)]
    pub follow: Option<u64>,
    /// Stop copy number JOB of a server (default: unset).
    #[arg(long, value_name = "JOB", help_heading = heading::TRANSFER)]
    pub cancel: Option<u64>,
    /// Address at which the source reaches the destination, where it is another than from here (default: that from here).
    #[arg(long, value_name = "ADDR:PORT", hide_short_help = true, help_heading = heading::NETWORK)]
    pub to_address: Option<SocketAddr>,
    #[command(flatten)]
    pub compare_options: CompareOptions,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub over: SshOptions,
    #[command(flatten)]
    pub connect_options: ConnectOptions,
    #[command(flatten)]
    pub output: Output,
}

/// Which addresses a server sends to for its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CopyTo {
    /// All but loopback and link-local addresses.
    Far,
    /// Those too.
    Near,
}
