//! `longhaul keys`.

use super::heading;
use crate::units;
use base::Span;
use clap::Subcommand;
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum Keys {
    /// Print this machine's public key, in the format of authorized_keys.
    Show,
    /// Print the fingerprint of this machine's key.
    Fingerprint,
    /// Add the keys in a file to authorized_keys.
    Authorize {
        /// File of public keys, one per line, or - for standard input.
        file: PathBuf,
    },
    /// Print one-time tokens, each of which admits one connection to the servers of this machine's key.
    ///
    /// The servers may be running already. The client passes the token with --token or in LONGHAUL_TOKEN. To revoke one, delete
    /// its file in the folder tokens of the state folder (see `longhaul keys list`).
    #[command(after_help = heading::UNITS)]
    Token {
        /// Time until the tokens expire, 1s to 400d.
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = units::lifetime,
              help_heading = heading::SECURITY)]
        lifetime: Span,
        /// Number of tokens, 1 to 1024.
        #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
              value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = heading::SECURITY)]
        count: u16,
    },
    /// Print the state folder, the authorized keys and tokens, and the known hosts.
    List,
    /// Keys that the hosts of a cluster share, for `longhaul run`.
    #[command(subcommand)]
    Cluster(ClusterKeys),
}

#[derive(Subcommand, Debug)]
pub enum ClusterKeys {
    /// Print a new key.
    ///
    /// Keep it in a file that nobody else may read, and copy it to every host: whoever has it is in.
    New,
}
