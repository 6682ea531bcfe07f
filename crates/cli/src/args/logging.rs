//! Where a server writes who did what.

use super::any_path;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// An access log.
#[derive(Args, Clone, Debug, Default)]
pub struct AccessLog {
    /// Append a line to FILE for each session that ends: client, key, operation, paths, files, bytes, status. FILE is a regular
    /// file, no symbolic link, and may be moved away while the server runs; the next line begins a new one.
    #[arg(long, value_name = "FILE", value_parser = any_path())]
    pub log: Option<PathBuf>,
    /// How the lines of --log are written.
    #[arg(long, value_enum, default_value_t, requires = "log")]
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
