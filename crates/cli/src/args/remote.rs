//! Options of commands on files of a server: `du`, `stat`, `checksum`, `mkdir`, `rm`, `mv`.

use super::{ConnectOptions, Wire, heading, place};
use crate::ssh::{Location, SshOptions};
use clap::Args;

/// How a command about a server's files connects and answers.
#[derive(Args, Clone, Debug)]
pub struct RemoteOptions {
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub over: SshOptions,
    #[command(flatten)]
    pub connect_options: ConnectOptions,
    /// Print JSON, one object a line.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

/// Add up the sizes of files on a server.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Du {
    /// [USER@]HOST:PATH over ssh, or longhaul://HOST[:PORT]/PATH (or iwarp://...).
    #[arg(required = true, value_name = "PATH", value_parser = place())]
    pub url: Location,
    /// Show the sum only, not each folder.
    #[arg(short, long, help_heading = heading::OUTPUT)]
    pub summarize: bool,
    #[command(flatten)]
    pub remote: RemoteOptions,
}

/// Show what a server knows about a file, folder or link.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Stat {
    /// [USER@]HOST:PATH over ssh, or longhaul://HOST[:PORT]/PATH (or iwarp://...).
    #[arg(required = true, value_name = "PATH", value_parser = place())]
    pub url: Location,
    #[command(flatten)]
    pub remote: RemoteOptions,
}

/// Print the BLAKE3 checksums of files on a server, as b3sum does.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Checksum {
    /// [USER@]HOST:PATH over ssh, or longhaul://HOST[:PORT]/PATH (or iwarp://...); all files below a folder.
    #[arg(required = true, value_name = "PATH", value_parser = place())]
    pub urls: Vec<Location>,
    #[command(flatten)]
    pub remote: RemoteOptions,
}

/// Make folders on a server.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Mkdir {
    /// [USER@]HOST:PATH over ssh, or longhaul://HOST[:PORT]/PATH (or iwarp://...), all of one machine.
    #[arg(required = true, value_name = "PATH", value_parser = place())]
    pub urls: Vec<Location>,
    /// Make the folders above as well, and accept those that exist.
    #[arg(short, long, help_heading = heading::TRANSFER)]
    pub parents: bool,
    #[command(flatten)]
    pub remote: RemoteOptions,
}

/// Remove files on a server that allows it (`serve --allow-delete`).
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Rm {
    /// [USER@]HOST:PATH over ssh, or longhaul://HOST[:PORT]/PATH (or iwarp://...), all of one machine.
    #[arg(required = true, value_name = "PATH", value_parser = place())]
    pub urls: Vec<Location>,
    /// Remove folders with all that is in them.
    #[arg(short, long, help_heading = heading::TRANSFER)]
    pub recursive: bool,
    #[command(flatten)]
    pub remote: RemoteOptions,
}

/// Rename on a server that allows it (`serve --allow-delete`); nothing is replaced.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Mv {
    /// What to rename: [USER@]HOST:PATH over ssh, or longhaul://HOST[:PORT]/PATH (or iwarp://...).
    #[arg(required = true, value_name = "FROM", value_parser = place())]
    pub from: Location,
    /// The new name on the same machine, or a folder to move it into.
    #[arg(required = true, value_name = "TO", value_parser = place())]
    pub to: Location,
    #[command(flatten)]
    pub remote: RemoteOptions,
}
