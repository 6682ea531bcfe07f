//! The command line: one definition per flag, from which parsing, help and man pages come.
//!
//! The first paragraph of a flag's comment is its line in `--help`; further ones are shown by `--help-all` and in man pages.
//! `--help` leaves out what has `hide_short_help`.

// These comments are help texts, where brackets mean "optional".
#![allow(rustdoc::broken_intra_doc_links)]

use crate::ssh::{Location, SshOptions};
use crate::units;
use base::Span;
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use endpoint::{AdditionalPath, Coupling, LaneChoice, PathDiscovery};
use lhio::datapath::DatapathKind;
use lhio::driver::Lanes;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Move data over long, lossy networks at the speed of the link.
#[derive(Parser, Debug)]
#[command(name = "longhaul", version, max_term_width = 100, after_help = crate::exit::HELP,
          disable_help_flag = true, disable_version_flag = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Increase verbosity: -v events, -vv details (RUST_LOG selects modules).
    #[arg(short, long, action = ArgAction::Count, global = true, display_order = 1000, help_heading = heading::OUTPUT)]
    pub verbose: u8,
    /// Print help for common options.
    #[arg(short, long, action = ArgAction::HelpShort, global = true, display_order = 1000,
          help_heading = heading::OUTPUT)]
    help: Option<bool>,
    /// Print help for all options, with details.
    #[arg(long, action = ArgAction::HelpLong, global = true, display_order = 1000, help_heading = heading::OUTPUT)]
    help_all: Option<bool>,
    /// Print the version.
    #[arg(short = 'V', long, action = ArgAction::Version, display_order = 1000, help_heading = heading::OUTPUT)]
    version: Option<bool>,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Serve a folder.
    Serve(Serve),
    /// Send files and folders; repeat an interrupted command to resume it.
    Put(Put),
    /// Fetch files and folders; repeat an interrupted command to resume it.
    Get(Get),
    /// Copy files and folders from one other machine to another.
    Copy(Copy),
    /// List a served folder.
    Ls(Ls),
    /// Add up the sizes of files on a server.
    Du(Du),
    /// Show what a server knows about a file, folder or link.
    Stat(Stat),
    /// Print the BLAKE3 checksums of files on a server.
    Checksum(Checksum),
    /// Make folders on a server.
    Mkdir(Mkdir),
    /// Remove files on a server.
    Rm(Rm),
    /// Rename on a server.
    Mv(Mv),
    /// Remove what interrupted transfers left in a folder.
    Clean(Clean),
    /// Measure a path between two machines.
    #[command(subcommand)]
    Perf(Perf),
    /// Emulate a long network on this machine.
    #[command(subcommand)]
    Wan(Wan),
    /// Run a program for RDMA verbs, unchanged, over Longhaul.
    Run(Run),
    /// Run a transfer over an emulated long, lossy path on this machine, and verify and measure it.
    Demo(Demo),
    /// Run the protocol in virtual time.
    #[command(subcommand)]
    Sim(Sim),
    /// Manage this machine's key and whom it admits.
    #[command(subcommand)]
    Keys(Keys),
    /// Inspect and change congestion control.
    #[command(subcommand)]
    Cc(Cc),
    /// Compare transports over emulated networks on this machine (root), or in virtual time.
    #[command(subcommand)]
    Lab(crate::lab::Command),
    /// Write man pages for all commands into a folder.
    #[command(hide = true)]
    Man {
        /// The folder; made if it is not there.
        dir: PathBuf,
    },
}

mod bandwidth;
mod cc;
mod clean;
mod copy;
mod emulated;
pub mod heading;
mod intent;
mod iwarp;
mod keep;
mod keys;
mod live;
mod logging;
mod operation;
mod perf;
mod placement;
mod remote;
mod run;
mod saving;
mod secret;
mod select;
mod sending;
#[cfg(test)]
mod tests;

pub use self::cc::{Attach, Build, Cc, Detach, Policy as PolicyCommand, Programs, Test};
pub use bandwidth::BandwidthOptions;
pub use clean::Clean;
pub use copy::{Copy, CopyTo};
pub use emulated::{Demo, Relay, Sim, Steady, Swarm, Wan};
pub use intent::Intent;
pub use iwarp::{IwarpClientOptions, IwarpServerOptions};
pub use keep::KeepOptions;
pub use keys::{ClusterKeys, Keys};
pub use live::{
    AdminOptions, Cap, Control, Load, Pull, Push, Set, ShowFlows, Status, StoreAccess, TraceFlow, Unload,
};
pub use logging::{AccessLog, LogFormat};
pub use operation::Operation;
pub use perf::{LoopOptions, PERF_PORT, Perf, PerfClient, PerfServer, Polling};
pub use placement::PlacementOptions;
pub use remote::{Checksum, Du, Mkdir, Mv, RemoteOptions, Rm, Stat};
pub use run::Run;
pub use saving::SavingOptions;
pub use secret::Secret;
pub use select::SelectOptions;
pub use sending::{RequestOptions, SendOptions};

/// What protects packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Encryption {
    /// Encrypted and authenticated.
    #[default]
    Aead,
    /// Authenticated, but readable on the way.
    Integrity,
    /// Checksummed only: readable and forgeable on the way.
    Crc32c,
}

/// What both ends' packets look like, and how this end's reach the network.
#[derive(Args, Clone, Debug)]
pub struct Wire {
    /// Largest IP packet to send in bytes, 1228 to 65535 (default: found by probing).
    #[arg(long, value_name = "BYTES", value_parser = units::packet, hide_short_help = true,
          help_heading = heading::NETWORK)]
    pub mtu: Option<u32>,
    /// Socket interface: auto, udp, uring (io_uring), xdp (AF_XDP) or xdp:INTERFACE.
    ///
    /// AF_XDP bypasses the kernel on the interface to the peer: it needs root, and the packet filter does not see its packets.
    /// Where it is not available, udp is used.
    #[arg(long, value_name = "KIND", default_value_t, hide_short_help = true, help_heading = heading::NETWORK)]
    pub datapath: DatapathKind,
    /// Lanes per connection, each a socket and a thread: 1 to 64, or auto.
    ///
    /// With auto, a lane is added while the processor is the bottleneck and another core is idle. A lane without an idle core, or
    /// one that makes nothing faster, carries nothing until that changes. For a server: the most that a client can have.
    #[arg(long, value_name = "N", default_value_t, hide_short_help = true, help_heading = heading::NETWORK)]
    pub lanes: Lanes,
    /// Use further addresses of both ends as paths: auto (up to 4 paths), mesh (every pair of addresses, up to 8) or off.
    ///
    /// With auto, the server tells its clients where else it listens, and a client adds a path for each address of either end
    /// that has none yet and a route of its own, over IPv4 and IPv6; one over the same interface as another is a backup. With
    /// off, the server tells nothing. In all cases, a path whose local address is replaced moves to the new one.
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = discover, hide_short_help = true,
          help_heading = heading::NETWORK)]
    pub discover: PathDiscovery,
    /// Processors for the threads that move data, such as 0,2,4 (default: any).
    ///
    /// The first one is for the main loop, which may use all of them while it runs alone.
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide_short_help = true, help_heading = heading::NETWORK)]
    pub cores: Vec<usize>,
    /// Use every lane's thread even without an idle core for it, to measure its cost.
    #[arg(long, hide_short_help = true, help_heading = heading::NETWORK)]
    pub keep_threads: bool,
    /// Packet protection; anything but aead needs the same choice at both ends.
    #[arg(long, value_enum, default_value_t, hide_short_help = true, help_heading = heading::SECURITY)]
    pub encryption: Encryption,
}

/// What this end shows of itself instead of its own key.
#[derive(Args, Clone, Debug, Default)]
pub struct Certificate {
    /// X.509 certificate chain to present instead of this machine's key, in PEM (default: unset).
    #[arg(long, value_name = "FILE", hide_short_help = true, help_heading = heading::SECURITY)]
    pub cert: Option<PathBuf>,
    /// Private key of --cert, in PEM (default: in the file of --cert).
    #[arg(long, value_name = "FILE", requires = "cert", hide_short_help = true, help_heading = heading::SECURITY)]
    pub key: Option<PathBuf>,
}

/// Whom to connect to, and how to trust it.
#[derive(Args, Clone, Debug)]
pub struct ConnectOptions {
    /// Additional path from a local to a remote address (repeatable; default: those that --discover finds).
    ///
    /// Data is spread over all paths by what each carries. The port is the server's unless named.
    #[arg(long = "path", value_name = "LOCAL,REMOTE[:PORT]", value_parser = further_path,
          help_heading = heading::NETWORK)]
    pub paths: Vec<AdditionalPath>,
    /// Path that carries data only while no other one works (repeatable; default: none).
    #[arg(long = "backup-path", value_name = "LOCAL,REMOTE[:PORT]", value_parser = backup_path, hide_short_help = true,
          help_heading = heading::NETWORK)]
    pub backup_paths: Vec<AdditionalPath>,
    /// Give up connecting after this time, 1ms to 1d.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::timeout, hide_short_help = true,
          help_heading = heading::NETWORK)]
    pub connect_timeout: Span,
    #[command(flatten)]
    pub by_iwarp: IwarpClientOptions,
    #[command(flatten)]
    pub certificate: Certificate,
    /// X.509 root certificates in PEM, one of which must vouch for the server (default: unset, known hosts).
    ///
    /// The server's certificate must be for the name or address connected to. Known hosts are not consulted. --cacert is the same.
    #[arg(long, alias = "cacert", value_name = "FILE", conflicts_with = "accept_new", hide_short_help = true,
          help_heading = heading::SECURITY)]
    pub ca: Option<PathBuf>,
    /// One-time token of the server (default: the environment variable LONGHAUL_TOKEN).
    ///
    /// Other users of this machine can see the command line, but not the environment.
    #[arg(long, value_name = "TOKEN", conflicts_with = "cert", help_heading = heading::SECURITY)]
    pub token: Option<Secret>,
    /// Trust a server on first contact without asking.
    ///
    /// A changed key is refused all the same.
    #[arg(long, help_heading = heading::SECURITY)]
    pub accept_new: bool,
}

/// What is written to the terminal.
#[derive(Args, Clone, Debug)]
pub struct Output {
    /// Print one JSON object on standard output at the end.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
    /// Print errors only.
    #[arg(short, long, help_heading = heading::OUTPUT)]
    pub quiet: bool,
}

/// Which clients a server lets in.
#[derive(Args, Clone, Debug)]
pub struct Admission {
    #[command(flatten)]
    pub certificate: Certificate,
    /// X.509 root certificates in PEM, one of which must vouch for every client (default: unset, authorized keys).
    ///
    /// Authorized keys and tokens do not count then. --cacert is the same.
    #[arg(long, alias = "cacert", value_name = "FILE", hide_short_help = true, help_heading = heading::SECURITY,
          conflicts_with_all = ["authorized_keys", "token", "allow_any_key"])]
    pub ca: Option<PathBuf>,
    /// With --ca, admit only certificates for this DNS name or address (repeatable; default: any).
    ///
    /// Names are taken from subjectAltName.
    #[arg(long, value_name = "NAME", requires = "ca", hide_short_help = true, help_heading = heading::SECURITY)]
    pub allow_name: Vec<String>,
    /// File of keys that may connect (default: authorized_keys in the state folder).
    #[arg(long, value_name = "FILE", help_heading = heading::SECURITY)]
    pub authorized_keys: Option<PathBuf>,
    /// Print N one-time tokens, 1 to 1024, each good for one connection (default: 0; 1 without =N).
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", require_equals = true,
          value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = heading::SECURITY)]
    pub token: Option<u16>,
    /// Admit every client.
    #[arg(long, help_heading = heading::SECURITY)]
    pub allow_any_key: bool,
}

/// What clients get.
#[derive(Args, Clone, Debug)]
pub struct ClientMemory {
    /// Memory for all clients together (default: a quarter of the free memory, 640MiB at most).
    ///
    /// One client can have half of it.
    #[arg(long, value_name = "SIZE", value_parser = units::size, help_heading = heading::NETWORK)]
    pub memory: Option<u64>,
}

/// An address, of which the path may have any bytes.
fn place() -> impl TypedValueParser<Value = Location> {
    OsStringValueParser::new().try_map(|s| Location::parse(&s))
}

/// Accepts an empty path: the command that uses it says what is wrong, better than that a value is missing.
fn any_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Serve a folder until interrupted (Ctrl-C or SIGTERM).
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Serve {
    /// The folder; nothing outside of it is ever touched.
    #[arg(value_parser = any_path())]
    pub dir: PathBuf,
    /// Allow clients to fetch and list only.
    #[arg(long, conflicts_with_all = ["write_only", "no_overwrite"], help_heading = heading::TRANSFER)]
    pub read_only: bool,
    /// Allow clients to send only.
    #[arg(long, help_heading = heading::TRANSFER)]
    pub write_only: bool,
    /// Do not allow clients to replace existing files.
    #[arg(long, help_heading = heading::TRANSFER)]
    pub no_overwrite: bool,
    /// Let clients give files to other owners, set set-id bits and attributes of the system, and make devices.
    ///
    /// Owners, set-id bits and devices need a server that runs as root, or is meant to make programs with its user's rights.
    #[arg(long, hide_short_help = true, help_heading = heading::SECURITY)]
    pub allow_privileged: bool,
    /// Allow clients to remove and rename: put --delete, rm and mv.
    #[arg(long, conflicts_with_all = ["read_only", "write_only", "no_overwrite"], hide_short_help = true,
          help_heading = heading::TRANSFER)]
    pub allow_delete: bool,
    /// Send to other servers where clients ask for it: far (no loopback or link-local addresses) or near (those too); default: off.
    ///
    /// It connects to addresses that clients name. Without =near, near ones are allowed only where this server itself listens at a
    /// loopback address.
    #[arg(long, value_name = "WHERE", value_enum, num_args = 0..=1, default_missing_value = "far", require_equals = true,
          hide_short_help = true, help_heading = heading::TRANSFER)]
    pub allow_copy: Option<CopyTo>,
    /// Do not wait for the disk (fsync) before a transfer counts as done.
    #[arg(long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub no_sync: bool,
    /// Read files of 16 MiB and more past the page cache (O_DIRECT).
    ///
    /// That is slower for files that are cached, but keeps what else is cached.
    #[arg(long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub direct: bool,
    /// UDP address to listen on (the default admits this machine only).
    #[arg(long, value_name = "ADDR:PORT", default_value_t = loopback(crate::url::DEFAULT_PORT),
          help_heading = heading::NETWORK)]
    pub listen: SocketAddr,
    #[command(flatten)]
    pub memory: ClientMemory,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub iwarp: IwarpServerOptions,
    #[command(flatten)]
    pub admission: Admission,
    #[command(flatten)]
    pub sending: SendOptions,
    #[command(flatten)]
    pub bandwidth: BandwidthOptions,
    #[command(flatten)]
    pub admin_options: AdminOptions,
    #[command(flatten)]
    pub logging: AccessLog,
    /// Print JSON on standard output: one line when ready, one at the end.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

/// How files are compared and replaced.
#[derive(Args, Clone, Debug)]
pub struct CompareOptions {
    /// Skip files by checksum (BLAKE3), not by size and modification time.
    #[arg(long, help_heading = heading::TRANSFER)]
    pub checksum: bool,
    /// Send all files, also those that are up to date at the destination.
    ///
    /// What an interrupted attempt left is still used.
    #[arg(long, help_heading = heading::TRANSFER)]
    pub all: bool,
    /// Delete partially transferred files instead of resuming them.
    ///
    /// Files that are complete and up to date are still skipped; with --all as well, none are.
    #[arg(long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub no_resume: bool,
    /// Do not replace existing files.
    #[arg(long, help_heading = heading::TRANSFER)]
    pub no_overwrite: bool,
    /// Show what would be transferred, and change nothing.
    #[arg(short = 'n', long, help_heading = heading::TRANSFER)]
    pub dry_run: bool,
    #[command(flatten)]
    pub keep: KeepOptions,
}

/// Send files and folders. Repeat an interrupted command to resume it.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Put {
    /// Files and folders; DIR/ means the contents of DIR, and - standard input.
    #[arg(required = true, value_name = "SRC", value_parser = any_path())]
    pub sources: Vec<PathBuf>,
    /// [USER@]HOST:PATH over ssh, or of a server longhaul://HOST[:PORT]/PATH or iwarp://HOST[:PORT]/PATH; a trailing slash means a
    /// folder.
    #[arg(required = true, value_name = "DST", value_parser = place())]
    pub dest: Location,
    /// Read files of 16 MiB and more past the page cache (O_DIRECT).
    ///
    /// That is slower for files that are cached, but keeps what else is cached.
    #[arg(long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub direct: bool,
    #[command(flatten)]
    pub compare_options: CompareOptions,
    #[command(flatten)]
    pub saving: SavingOptions,
    #[command(flatten)]
    pub select_options: SelectOptions,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub over: SshOptions,
    #[command(flatten)]
    pub connect_options: ConnectOptions,
    #[command(flatten)]
    pub sending: SendOptions,
    #[command(flatten)]
    pub bandwidth: BandwidthOptions,
    #[command(flatten)]
    pub admin_options: AdminOptions,
    #[command(flatten)]
    pub output: Output,
}

/// Fetch files and folders. Repeat an interrupted command to resume it.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Get {
    /// [USER@]HOST:PATH over ssh, or longhaul://HOST[:PORT]/PATH (or iwarp://...), all of one machine; a trailing slash means the
    /// contents of the folder.
    #[arg(required = true, value_name = "SRC", value_parser = place())]
    pub sources: Vec<Location>,
    /// File or folder to write; - means standard output, and a pipe or device is written to.
    #[arg(required = true, value_name = "DST", value_parser = any_path())]
    pub dest: PathBuf,
    #[command(flatten)]
    pub compare_options: CompareOptions,
    #[command(flatten)]
    pub saving: SavingOptions,
    #[command(flatten)]
    pub select_options: SelectOptions,
    /// Do not wait for the disk (fsync) before the transfer counts as done.
    #[arg(long, hide_short_help = true, help_heading = heading::TRANSFER)]
    pub no_sync: bool,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub over: SshOptions,
    #[command(flatten)]
    pub connect_options: ConnectOptions,
    #[command(flatten)]
    pub request_options: RequestOptions,
    #[command(flatten)]
    pub bandwidth: BandwidthOptions,
    #[command(flatten)]
    pub admin_options: AdminOptions,
    #[command(flatten)]
    pub output: Output,
}

/// List a served folder.
#[derive(Args, Debug)]
#[command(after_help = heading::UNITS)]
pub struct Ls {
    /// [USER@]HOST:PATH over ssh, or longhaul://HOST[:PORT]/PATH (or iwarp://...).
    #[arg(value_name = "PLACE", value_parser = place())]
    pub url: Location,
    /// List folders recursively.
    #[arg(short, long, help_heading = heading::TRANSFER)]
    pub recursive: bool,
    /// Print the BLAKE3 checksum of each file.
    #[arg(long, help_heading = heading::TRANSFER)]
    pub checksum: bool,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub over: SshOptions,
    #[command(flatten)]
    pub connect_options: ConnectOptions,
    /// Print sizes in powers of 1024, such as 1.5K or 23M.
    #[arg(short = 'h', long, help_heading = heading::OUTPUT)]
    pub human_readable: bool,
    /// Print help for common options.
    ///
    /// -h is --human-readable here, as in ls.
    #[arg(long, action = ArgAction::HelpShort, display_order = 1000, help_heading = heading::OUTPUT)]
    help: Option<bool>,
    /// Print one JSON object per line, one line per entry.
    #[arg(long, help_heading = heading::OUTPUT)]
    pub json: bool,
}

fn loopback(port: u16) -> SocketAddr {
    (std::net::Ipv4Addr::LOCALHOST, port).into()
}

fn congestion(text: &str) -> Result<String, String> {
    ::cc::registry::parse(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
}

fn coupling(text: &str) -> Result<Coupling, String> {
    match text {
        "auto" => Ok(Coupling::Auto),
        "always" => Ok(Coupling::Always),
        "never" => Ok(Coupling::Never),
        _ => Err("unknown mode; try auto, always or never".to_owned()),
    }
}

fn discover(text: &str) -> Result<PathDiscovery, String> {
    match text {
        "auto" => Ok(PathDiscovery::Auto),
        "mesh" => Ok(PathDiscovery::Mesh),
        "off" => Ok(PathDiscovery::Off),
        _ => Err("unknown mode; try auto, mesh or off".to_owned()),
    }
}

fn lane_choice(text: &str) -> Result<LaneChoice, String> {
    match text {
        "aggregate" => Ok(LaneChoice::Aggregate),
        "backup" => Ok(LaneChoice::Backup),
        "latency" => Ok(LaneChoice::Latency),
        _ => Err("unknown scheduler; try aggregate, backup or latency".to_owned()),
    }
}

fn further_path(text: &str) -> Result<AdditionalPath, String> {
    let wrong = || {
        "not a path; try LOCAL,REMOTE[:PORT], such as 10.1.0.2,10.2.0.9 or fd00::2,[fd00::9]:4461".to_owned()
    };
    let (local, remote) = text.split_once(',').ok_or_else(wrong)?;
    let local: IpAddr = local.parse().map_err(|_| wrong())?;
    let bare = |t: &str| {
        t.trim_start_matches('[').trim_end_matches(']').parse().ok().map(|ip| SocketAddr::new(ip, 0))
    };
    let remote: SocketAddr = remote.parse().ok().or_else(|| bare(remote)).ok_or_else(wrong)?;
    if local.is_ipv4() != remote.is_ipv4() {
        return Err("one address is IPv4 and the other IPv6; try two of the same family".to_owned());
    }
    Ok(AdditionalPath { local: Some(local), remote, backup: false })
}

fn backup_path(text: &str) -> Result<AdditionalPath, String> {
    further_path(text).map(|p| AdditionalPath { backup: true, ..p })
}
