//! The command line of `longhaul run`.

use super::heading;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// `longhaul run`.
#[derive(Args, Debug)]
pub struct Run {
    /// File with the cluster's key, the same on all hosts (default: cluster.key of the state folder, made if it is missing).
    #[arg(long, value_name = "FILE", help_heading = heading::SECURITY)]
    pub cluster: Option<PathBuf>,
    /// Packet protection: auto (encrypted), integrity (authenticated) or crc32c (against accidents only); the same at both ends.
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = ["auto", "integrity", "crc32c"],
          help_heading = heading::SECURITY)]
    pub encryption: String,
    /// How queue pairs reach each other, the same at both ends: longhaul, or iwarp (a connection by TCP for each of them).
    #[arg(long, value_name = "NAME", default_value = "longhaul", value_parser = ["longhaul", "iwarp"],
          help_heading = heading::NETWORK)]
    pub transport: String,
    /// Congestion control of TCP with --transport iwarp, best first, such as cubic or bbr (default: the system's).
    #[arg(long, value_name = "NAME[,NAME...]", help_heading = heading::CONGESTION_CONTROL)]
    pub tcp_cc: Option<String>,
    /// Congestion control of what the program sends, with parameters (default: haul).
    #[arg(long, value_name = "SPEC", value_parser = super::congestion, help_heading = heading::CONGESTION_CONTROL)]
    pub cc: Option<String>,
    #[command(flatten)]
    pub admin: super::AdminOptions,
    /// Folder with libibverbs.so.1 (default: beside this program).
    #[arg(long, value_name = "DIR", help_heading = heading::OUTPUT)]
    pub library: Option<PathBuf>,
    /// Print which interfaces the program uses and whether they are served, instead of running it.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub check: bool,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    pub command: Vec<OsString>,
}
