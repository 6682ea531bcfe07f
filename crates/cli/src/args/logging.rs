//! Options of the access log.

use super::{any_path, heading};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// An access log.
#[derive(Args, Clone, Debug, Default)]
pub struct AccessLog {
    /// Append a line to FILE for each session that ends (default: no log).
    ///
    /// It has client, key, operation, paths, files, bytes and status. FILE is a regular file, not a symbolic link, and can
    /// be moved away while the server runs: the next line begins a new one.
    #[arg(long, value_name = "FILE", value_parser = any_path(), help_heading = heading::OUTPUT)]
    pub log: Option<PathBuf>,
    /// Format of the lines of --log.
    #[arg(long, value_enum, default_value_t, requires = "log", hide_short_help = true, help_heading = heading::OUTPUT)]
    pub log_format: LogFormat,
}

/// How lines of a log are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Words and name=value.
    #[default]
    Text,
    /// A JSON object each.
    Json,
}
