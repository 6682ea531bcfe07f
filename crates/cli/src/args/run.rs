//! The command line of `longhaul run`.

use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// `longhaul run`.
#[derive(Args, Debug)]
pub struct Run {
    /// File with the cluster's key, the same on all hosts; by default cluster.key of the state folder, which is made if it is not
    /// there.
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    pub cluster: Option<PathBuf>,
    /// Protection of packets: auto (encrypted), integrity (authenticated) or crc32c (against accidents only). The peer must ask for
    /// the same.
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = ["auto", "integrity", "crc32c"],
          help_heading = "Security")]
    pub encryption: String,
    /// Congestion control of what the program sends, with parameters.
    #[arg(long, value_name = "SPEC", value_parser = super::congestion, help_heading = "Congestion control")]
    pub cc: Option<String>,
    /// Folder with libibverbs.so.1; by default beside this program.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub library: Option<PathBuf>,
    /// Say which interfaces the program uses and whether they are served, and do not run it.
    #[arg(long, help_heading = "Output")]
    pub check: bool,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}
