//! The command line: one definition per flag, from which parsing, help and man pages come.

// These comments are help texts, where brackets mean "optional".
#![allow(rustdoc::broken_intra_doc_links)]

use crate::ssh::{OverSsh, Place};
use crate::units;
use crate::url::Server;
use base::{Rate, Span};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use endpoint::{Coupling, Discover, FurtherPath, LaneChoice};
use lhio::datapath::DatapathKind;
use lhio::driver::Lanes;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// Move data over long, lossy networks at the speed of the link.
#[derive(Parser, Debug)]
#[command(name = "longhaul", version, max_term_width = 100, after_help = crate::exit::HELP)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Say more on standard error: -v what happens, -vv details. RUST_LOG chooses parts.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub verbose: u8,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Serve a folder.
    Serve(Serve),
    /// Send files and folders.
    Put(Put),
    /// Fetch files and folders.
    Get(Get),
    /// List a served folder.
    Ls(Ls),
    /// Remove what interrupted transfers left in a folder.
    Clean(Clean),
    /// Measure a path between two machines.
    #[command(subcommand)]
    Perf(Perf),
    /// Emulate a long network on this machine.
    #[command(subcommand)]
    Wan(Wan),
    /// Show the whole at work: server, long lossy path and client on this machine, verified and measured.
    Demo(Demo),
    /// Run the protocol in virtual time.
    #[command(subcommand)]
    Sim(Sim),
    /// This machine's key, and whom it lets in.
    #[command(subcommand)]
    Keys(Keys),
    /// Congestion-control algorithms.
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

mod cc;
mod clean;
mod hidden;
mod intent;
mod iwarp;
mod live;
mod logging;
mod operation;
mod sending;

pub use self::cc::{Attach, Build, Cc, DetachWhat, Policy as PolicyCommand, Programs, Test};
pub use clean::Clean;
pub use hidden::Hidden;
pub use intent::Intent;
pub use iwarp::{ByIwarp, ServeIwarp};
pub use live::{
    Cap, Control, Governing, Load, Pull, Push, Set, ShowFlows, Status, StoreAccess, TraceFlow, Unload,
};
pub use logging::{AccessLog, LogFormat};
pub use operation::Operation;
pub use sending::{Asking, Sending};

/// What protects packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Encryption {
    /// Encrypted and authenticated.
    #[default]
    Aead,
    /// Authenticated, but readable on the way. Both ends must ask for it.
    Integrity,
    /// Protected against accidents only, not against anybody. Both ends must ask for it.
    Crc32c,
}

/// What both ends' packets look like, and how this end's reach the network.
#[derive(Args, Clone, Debug)]
pub struct Wire {
    /// What protects packets; anything but aead needs the same choice at the other end.
    #[arg(long, value_enum, default_value_t)]
    pub encryption: Encryption,
    /// Largest IP packet to send in bytes; the path's own limit is found by itself.
    #[arg(long, value_name = "BYTES", value_parser = units::packet)]
    pub mtu: Option<u32>,
    /// How packets reach the network: auto; udp, the kernel's UDP; uring, the same through io_uring; xdp, AF_XDP past the kernel on the interface to the peer,
    /// or xdp:INTERFACE. AF_XDP needs root, and the packet filter does not see it; where it cannot be had, udp is used.
    #[arg(long, value_name = "WAY", default_value_t)]
    pub datapath: DatapathKind,
    /// Lanes of a connection, each with a socket and a thread: a number, or auto for one more whenever the processor is
    /// what limits and another one is free. A lane whose thread finds no free processor, or makes nothing faster, is there
    /// but carries nothing until that changes. Of a server: how many it lends to clients.
    #[arg(long, value_name = "N", default_value_t)]
    pub lanes: Lanes,
    /// Whether a connection uses further addresses by itself. auto: the server tells its clients where else it listens, and a
    /// client adds a path for each address of either end that has none, where it has a route of its own, up to four paths
    /// in all, IPv4 and IPv6 (one of the other kind over the same interface as a backup); mesh: for each pair of addresses,
    /// up to eight; off: not, and a server tells nothing. With any, a path whose address here is replaced goes on from the
    /// new one.
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = discover)]
    pub discover: Discover,
    /// Processors for the threads that move data, in order (0,2,4); the first one is for the loop, which may use all of
    /// them while it works alone.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub cores: Vec<usize>,
    /// Threads of lanes work even where no processor is free for them: to measure what they cost.
    #[arg(long, hide = true)]
    pub keep_threads: bool,
}

/// What this end shows of itself instead of its own key.
#[derive(Args, Clone, Debug, Default)]
pub struct Certificate {
    /// X.509 certificate of this end in PEM, with the intermediate ones after it, shown instead of its key.
    #[arg(long, value_name = "FILE")]
    pub cert: Option<PathBuf>,
    /// Private key of the certificate in PEM; in the file of --cert when left out.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
}

/// Whom to connect to, and how to trust it.
#[derive(Args, Clone, Debug)]
pub struct Trusting {
    /// A further path to the server, from an address of this machine to one of the server's: data goes over all paths at
    /// once, by what each carries. Can be given several times. The port is the server's unless named.
    #[arg(long = "path", value_name = "LOCAL,REMOTE[:PORT]", value_parser = further_path)]
    pub paths: Vec<FurtherPath>,
    /// The same, but it carries data only while no other path works.
    #[arg(long = "backup-path", value_name = "LOCAL,REMOTE[:PORT]", value_parser = backup_path)]
    pub backup_paths: Vec<FurtherPath>,
    #[command(flatten)]
    pub certificate: Certificate,
    /// X.509 root certificates in PEM: the server must show a certificate for the name or address connected to that
    /// one of them vouches for. Known hosts are not looked at. --cacert is the same.
    #[arg(long, alias = "cacert", value_name = "FILE", conflicts_with = "accept_new")]
    pub ca: Option<PathBuf>,
    /// A one-time token of the server (better in the environment: LONGHAUL_TOKEN).
    #[arg(long, value_name = "TOKEN", conflicts_with = "cert")]
    pub token: Option<Hidden>,
    /// Trust a server that was never met without asking. A changed key is refused all the same.
    #[arg(long)]
    pub accept_new: bool,
    #[command(flatten)]
    pub by_iwarp: ByIwarp,
    /// Give up connecting after this long.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::patience)]
    pub connect_timeout: Span,
}

/// What is written to the terminal.
#[derive(Args, Clone, Debug)]
pub struct Output {
    /// One JSON object on standard output at the end.
    #[arg(long)]
    pub json: bool,
    /// Errors only.
    #[arg(short, long)]
    pub quiet: bool,
}

/// Which clients a server lets in.
#[derive(Args, Clone, Debug)]
pub struct Admission {
    #[command(flatten)]
    pub certificate: Certificate,
    /// X.509 root certificates in PEM: clients must show a certificate that one of them vouches for. Listed keys and
    /// tokens do not count then. --cacert is the same.
    #[arg(long, alias = "cacert", value_name = "FILE",
          conflicts_with_all = ["authorized_keys", "token", "allow_any_key"])]
    pub ca: Option<PathBuf>,
    /// With --ca: of the clients with a certificate, let in only those with one for this DNS name or address
    /// (subjectAltName). Can be given several times.
    #[arg(long, value_name = "NAME", requires = "ca")]
    pub allow_name: Vec<String>,
    /// File of keys that may connect, instead of the one in the state folder.
    #[arg(long, value_name = "FILE")]
    pub authorized_keys: Option<PathBuf>,
    /// Print one-time tokens, each good for one connection without a listed key.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", require_equals = true,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub token: Option<u16>,
    /// Let everybody in.
    #[arg(long)]
    pub allow_any_key: bool,
}

/// What clients get.
#[derive(Args, Clone, Debug)]
pub struct ClientMemory {
    /// Memory for all clients together; a quarter of what is free at the start, 640 MiB at most. One client may have half of
    /// it.
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub memory: Option<u64>,
}

/// An address, of which the path may have any bytes.
fn place() -> impl TypedValueParser<Value = Place> {
    OsStringValueParser::new().try_map(|s| Place::parse(&s))
}

/// Takes an empty path too: what is done with it says what is wrong, better than that a value is missing.
fn any_path() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// Serve a folder until interrupted (Ctrl-C or SIGTERM).
#[derive(Args, Debug)]
pub struct Serve {
    /// The folder; nothing outside of it is ever touched.
    #[arg(value_parser = any_path())]
    pub dir: PathBuf,
    /// UDP address to listen on. Without it only this machine can connect.
    #[arg(long, value_name = "ADDR:PORT", default_value_t = loopback(crate::url::DEFAULT_PORT))]
    pub listen: SocketAddr,
    /// Clients may fetch and list only.
    #[arg(long, conflicts_with_all = ["write_only", "no_overwrite"])]
    pub read_only: bool,
    /// Clients may send only.
    #[arg(long)]
    pub write_only: bool,
    /// Clients may not replace files that exist.
    #[arg(long)]
    pub no_overwrite: bool,
    /// Do not wait for the disk before a transfer counts as done.
    #[arg(long)]
    pub no_sync: bool,
    /// Read large files past the page cache (O_DIRECT): slower where they are in it, but what else is in it stays.
    #[arg(long)]
    pub direct: bool,
    #[command(flatten)]
    pub memory: ClientMemory,
    #[command(flatten)]
    pub logging: AccessLog,
    #[command(flatten)]
    pub admission: Admission,
    #[command(flatten)]
    pub sending: Sending,
    #[command(flatten)]
    pub governing: Governing,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub iwarp: ServeIwarp,
    /// JSON on standard output: one line when ready, one at the end.
    #[arg(long)]
    pub json: bool,
}

/// How files are compared and replaced.
#[derive(Args, Clone, Debug)]
pub struct Comparing {
    /// Compare contents (BLAKE3) instead of size and time.
    #[arg(long)]
    pub checksum: bool,
    /// Send everything, also files that are finished and the same at the destination already. What an interrupted
    /// attempt left is still used.
    #[arg(long)]
    pub all: bool,
    /// Start afresh: drop unfinished files that an interrupted attempt left, instead of going on where it was. Files
    /// that are finished and the same are still left out; with --all, nothing is.
    #[arg(long)]
    pub no_resume: bool,
    /// Do not replace files that exist and differ.
    #[arg(long)]
    pub no_overwrite: bool,
    /// Only find out what would be done.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
}

/// Send files and folders. Repeating an interrupted command continues where it was.
#[derive(Args, Debug)]
pub struct Put {
    /// Files and folders; DIR/ with a slash at its end means what is in it, - standard input.
    #[arg(required = true, value_name = "SRC", value_parser = any_path())]
    pub sources: Vec<PathBuf>,
    /// [USER@]HOST:PATH over ssh, which starts the other end; or of a server longhaul://HOST[:PORT]/PATH or, by iWARP,
    /// iwarp://HOST[:PORT]/PATH. A slash at the end means a folder.
    #[arg(required = true, value_name = "DST", value_parser = place())]
    pub dest: Place,
    /// Read large files past the page cache (O_DIRECT): slower where they are in it, but what else is in it stays.
    #[arg(long)]
    pub direct: bool,
    #[command(flatten)]
    pub comparing: Comparing,
    #[command(flatten)]
    pub sending: Sending,
    #[command(flatten)]
    pub governing: Governing,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub over: OverSsh,
    #[command(flatten)]
    pub trusting: Trusting,
    #[command(flatten)]
    pub output: Output,
}

/// Fetch files and folders. Repeating an interrupted command continues where it was.
#[derive(Args, Debug)]
pub struct Get {
    /// [USER@]HOST:PATH over ssh, or longhaul://HOST[:PORT]/PATH (or iwarp://...); several of one machine. A slash at the end
    /// means what is in the folder.
    #[arg(required = true, value_name = "SRC", value_parser = place())]
    pub sources: Vec<Place>,
    /// Where to; - is standard output. A pipe or device is written to.
    #[arg(required = true, value_name = "DST", value_parser = any_path())]
    pub dest: PathBuf,
    #[command(flatten)]
    pub comparing: Comparing,
    /// Do not wait for the disk before the transfer counts as done.
    #[arg(long)]
    pub no_sync: bool,
    #[command(flatten)]
    pub asking: Asking,
    #[command(flatten)]
    pub governing: Governing,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub over: OverSsh,
    #[command(flatten)]
    pub trusting: Trusting,
    #[command(flatten)]
    pub output: Output,
}

/// List a served folder.
#[derive(Args, Debug)]
pub struct Ls {
    /// [USER@]HOST:PATH over ssh, or longhaul://HOST[:PORT]/PATH (or iwarp://...).
    #[arg(value_name = "PLACE", value_parser = place())]
    pub url: Place,
    /// Folders inside folders too.
    #[arg(short, long)]
    pub recursive: bool,
    /// With the BLAKE3 of each file.
    #[arg(long)]
    pub checksum: bool,
    /// One JSON object a line, one line an entry.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub over: OverSsh,
    #[command(flatten)]
    pub trusting: Trusting,
}

#[derive(Subcommand, Debug)]
pub enum Perf {
    /// Answer measurements until interrupted.
    Server(PerfServer),
    /// Measure the path to a server.
    Client(PerfClient),
}

#[derive(Args, Debug)]
pub struct PerfServer {
    /// UDP address to listen on. Without it only this machine can connect.
    #[arg(long, value_name = "ADDR:PORT", default_value_t = loopback(PERF_PORT))]
    pub listen: SocketAddr,
    /// End after this many measurements.
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    #[command(flatten)]
    pub memory: ClientMemory,
    #[command(flatten)]
    pub driving: Driving,
    #[command(flatten)]
    pub admission: Admission,
    #[command(flatten)]
    pub sending: Sending,
    #[command(flatten)]
    pub governing: Governing,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub iwarp: ServeIwarp,
    /// JSON on standard output: one line when ready.
    #[arg(long)]
    pub json: bool,
    /// With --json, a line at the end of each measurement with the bytes that arrived in every 10 ms.
    #[arg(long, requires = "json")]
    pub arrivals: bool,
}

/// The port of `perf server` when none is named.
pub const PERF_PORT: u16 = 4461;

/// How an end's loop runs.
#[derive(Args, Clone, Debug)]
pub struct Driving {
    /// What this end does while nothing arrives.
    #[arg(long, value_enum, default_value_t)]
    pub poll: Polling,
    /// Drop this share of the packets that arrive at this end, to see what loss costs (1%).
    #[arg(long, value_name = "SHARE", value_parser = units::share)]
    pub lose: Option<f64>,
}

/// What an end does while nothing arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Polling {
    /// Sleeps until something does: no processor time when idle.
    #[default]
    Sleep,
    /// Looks for 50 microseconds, then sleeps.
    Adaptive,
    /// Looks all the time: lowest latency, one core busy.
    Spin,
}

#[derive(Args, Debug)]
pub struct PerfClient {
    /// Name or address of the machine that runs `longhaul perf server`, with a port if it is not 4461; behind iwarp:// to
    /// connect by iWARP.
    #[arg(value_name = "HOST", value_parser = perf_server)]
    pub server: Server,
    /// What to measure.
    #[arg(short, long, value_enum, default_value_t)]
    pub operation: Operation,
    /// Measure round trips instead: one message at a time, to and fro.
    #[arg(short, long)]
    pub latency: bool,
    #[command(flatten)]
    pub driving: Driving,
    /// Bytes of a message; 1 MiB, or 64 bytes for latency.
    #[arg(short, long, value_name = "SIZE", value_parser = units::size)]
    pub size: Option<u64>,
    /// Queue pairs that carry messages at the same time.
    #[arg(short = 'P', long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub streams: u16,
    /// Messages under way on each queue pair; by default what the path has shown to carry in some seconds, 64 MiB of all at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub depth: Option<u32>,
    /// How long; what is under way then is given up.
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = units::span)]
    pub time: Span,
    /// How many bytes, instead of a time.
    #[arg(short = 'n', long, value_name = "SIZE", value_parser = units::size, conflicts_with = "time")]
    pub bytes: Option<u64>,
    /// What has become the rule: kept for scripts that say it.
    #[arg(long, hide = true, conflicts_with = "bytes")]
    pub stop: bool,
    /// The server starts the operations instead of the client.
    #[arg(short = 'R', long)]
    pub reverse: bool,
    /// Memory that each queue pair's messages go round in; 64 MiB, of many queue pairs 256 MiB together.
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub region: Option<u64>,
    /// Compare what arrived with what was sent, at the end.
    #[arg(long)]
    pub verify: bool,
    /// Cipher suite (aegis-128l, aegis-128x2, aes-128-gcm, chacha20-poly1305, integrity-aegis, integrity-gmac, crc32c).
    #[arg(long, value_name = "NAME", value_parser = suite)]
    pub suite: Option<transport::crypto::Suite>,
    /// Report this often; 0 for the end only.
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = units::span)]
    pub interval: Span,
    #[command(flatten)]
    pub sending: Sending,
    #[command(flatten)]
    pub governing: Governing,
    #[command(flatten)]
    pub wire: Wire,
    #[command(flatten)]
    pub trusting: Trusting,
    #[command(flatten)]
    pub output: Output,
}

#[derive(Subcommand, Debug)]
pub enum Wan {
    /// Pass UDP on with the delay, loss and rate of a long network, until interrupted.
    Relay(Relay),
}

#[derive(Args, Debug)]
pub struct Relay {
    /// UDP address that clients send to; port 0 lets the system choose.
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: SocketAddr,
    /// Where their packets go.
    #[arg(long, value_name = "ADDR:PORT")]
    pub to: SocketAddr,
    /// Words that describe the link of each direction: rate=500mbit delay=35ms loss=0.1% queue=1bdp jitter=2ms
    /// reorder=0.1%(5ms) duplicate=0.01% corrupt=0.01% mtu=9000 (1500 when left out; off: any) at=10s:rate=100mbit ...
    #[arg(value_name = "LINK")]
    pub link: Vec<String>,
    /// A link known by name, which the words then change: transatlantic, transpacific, satellite-geo, lossy-wifi,
    /// cellular, datacenter.
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Another link for the way back, in one argument; the same when left out.
    #[arg(long, value_name = "LINK")]
    pub back: Option<String>,
    /// Seed of chance; the system's randomness when left out.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Report this often.
    #[arg(long, value_name = "TIME", value_parser = units::span)]
    pub interval: Option<Span>,
    /// JSON on standard output: one line when ready, one at the end.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Demo {
    /// Bytes in large files.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = units::size)]
    pub large: u64,
    /// Number of small files.
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    pub small: u32,
    /// The emulated path, as `longhaul wan relay` takes it.
    #[arg(long, value_name = "LINK", default_value = "rate=500mbit delay=35ms loss=0.1% queue=1bdp")]
    pub link: String,
    /// Seed of the content and of the path's chance.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Give up after this long.
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = units::span)]
    pub within: Span,
    /// One JSON object on standard output instead of the table.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub sending: Sending,
}

#[derive(Subcommand, Debug)]
pub enum Sim {
    /// One sender and one receiver over one link, in virtual time.
    Steady(Steady),
    /// Random worlds of endpoints and hostile links, checked against a model of the verbs.
    Swarm(Swarm),
}

#[derive(Args, Debug)]
pub struct Swarm {
    /// Seeds, the last one excluded: 0..1000.
    #[arg(long, value_name = "A..B", value_parser = seeds)]
    pub seeds: std::ops::Range<u64>,
    /// Worlds at the same time; one for each processor when left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct Steady {
    #[command(flatten)]
    pub programs: Programs,
    /// Rate of the link.
    #[arg(long, default_value = "1gbit", value_parser = units::rate)]
    pub rate: Rate,
    /// Round trip of the path.
    #[arg(long, default_value = "70ms", value_parser = units::span)]
    pub rtt: Span,
    /// Share of packets lost on the way there.
    #[arg(long, default_value = "0.1%", value_parser = units::share)]
    pub loss: f64,
    /// Virtual seconds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub seconds: u64,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Largest IP packet.
    #[arg(long, default_value_t = 1500, value_parser = units::packet)]
    pub mtu: u32,
    /// Congestion control.
    #[arg(long, default_value = ::cc::registry::DEFAULT, value_parser = congestion)]
    pub cc: String,
    /// One JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand, Debug)]
pub enum Keys {
    /// Print this machine's public key, as authorized_keys takes it.
    Show,
    /// Print this machine's fingerprint.
    Fingerprint,
    /// Let the keys in a file connect (`-`: standard input).
    Authorize {
        /// File of public keys, one a line.
        file: PathBuf,
    },
    /// Make one-time tokens: each lets one connection in at the servers of this machine's key, running or not.
    ///
    /// The client gives it with --token or in LONGHAUL_TOKEN. To take one back, delete its file in the folder tokens of
    /// the state folder (see `longhaul keys list`).
    Token {
        /// How long they can be used.
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = units::lifetime)]
        lifetime: Span,
        /// How many.
        #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
              value_parser = clap::value_parser!(u16).range(1..=1024))]
        count: u16,
    },
    /// Print where keys are kept, who may connect and which servers are known.
    List,
}

fn loopback(port: u16) -> SocketAddr {
    (std::net::Ipv4Addr::LOCALHOST, port).into()
}

fn seeds(text: &str) -> Result<std::ops::Range<u64>, String> {
    let range = text.split_once("..").and_then(|(a, b)| Some(a.trim().parse().ok()?..b.trim().parse().ok()?));
    range
        .filter(|r: &std::ops::Range<u64>| !r.is_empty())
        .ok_or_else(|| "write FIRST..END, such as 0..1000".to_owned())
}

fn congestion(text: &str) -> Result<String, String> {
    ::cc::registry::parse(text).map(|_| text.to_owned()).map_err(|e| e.to_string())
}

fn perf_server(text: &str) -> Result<Server, String> {
    Server::parse(text, PERF_PORT)
}

fn coupling(text: &str) -> Result<Coupling, String> {
    match text {
        "auto" => Ok(Coupling::Auto),
        "always" => Ok(Coupling::Always),
        "never" => Ok(Coupling::Never),
        _ => Err("give auto, always or never".to_owned()),
    }
}

fn discover(text: &str) -> Result<Discover, String> {
    match text {
        "auto" => Ok(Discover::Auto),
        "mesh" => Ok(Discover::Mesh),
        "off" => Ok(Discover::Off),
        _ => Err("give auto, mesh or off".to_owned()),
    }
}

fn lane_choice(text: &str) -> Result<LaneChoice, String> {
    match text {
        "aggregate" => Ok(LaneChoice::Aggregate),
        "backup" => Ok(LaneChoice::Backup),
        "latency" => Ok(LaneChoice::Latency),
        _ => Err("give aggregate, backup or latency".to_owned()),
    }
}

fn further_path(text: &str) -> Result<FurtherPath, String> {
    let wrong = || {
        format!("`{text}` is not LOCAL,REMOTE[:PORT], such as 10.1.0.2,10.2.0.9 or fd00::2,[fd00::9]:4461")
    };
    let (local, remote) = text.split_once(',').ok_or_else(wrong)?;
    let local: IpAddr = local.parse().map_err(|_| wrong())?;
    let bare = |t: &str| {
        t.trim_start_matches('[').trim_end_matches(']').parse().ok().map(|ip| SocketAddr::new(ip, 0))
    };
    let remote: SocketAddr = remote.parse().ok().or_else(|| bare(remote)).ok_or_else(wrong)?;
    if local.is_ipv4() != remote.is_ipv4() {
        return Err(format!("`{text}`: both addresses must be IPv4, or both IPv6"));
    }
    Ok(FurtherPath { local: Some(local), remote, backup: false })
}

fn backup_path(text: &str) -> Result<FurtherPath, String> {
    further_path(text).map(|p| FurtherPath { backup: true, ..p })
}

fn suite(text: &str) -> Result<transport::crypto::Suite, String> {
    use transport::crypto::Suite;
    let names = || Suite::ALL.map(Suite::name).join(", ");
    Suite::from_name(text).ok_or_else(|| format!("choose one of: {}", names()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_read_as_documented() {
        let parse = |line: &str| Cli::try_parse_from(line.split_whitespace());
        for good in [
            "longhaul serve /srv",
            "longhaul serve /srv --listen 0.0.0.0:4460 --token --no-overwrite",
            "longhaul serve /srv --token=3 --limit 1gbit",
            "longhaul put a b/ longhaul://host/x/ --limit 500mbit --json -n",
            "longhaul get longhaul://[::1]:9/x . --checksum -q",
            "longhaul get longhaul://host/x . --limit 1gbit --cc cubic --known-rate 900mbit --no-resume",
            "longhaul put a longhaul://host/x/ --qos latency --app db-1",
            "longhaul get longhaul://host/x . --qos guaranteed(300M)",
            "longhaul ls longhaul://host/ -r",
            "longhaul put a b anna@host:x/ -e ssh --port-range 60000:60010 --bootstrap",
            "longhaul serve /srv --cert c.pem --key k.pem --ca roots.pem --allow-name a --allow-name b",
            "longhaul put a longhaul://host/ --cert c.pem --cacert roots.pem",
            "longhaul keys token -n 3 --lifetime 10min",
            "longhaul serve /srv --datapath udp --lanes 4 --cores 0,2,4,6",
            "longhaul serve /srv --datapath uring",
            "longhaul serve /srv --discover off",
            "longhaul put a longhaul://host/x/ --discover mesh",
            "longhaul serve /srv --datapath xdp:eth0",
            "longhaul perf client host -o read -P 4 -t 2s --suite aegis-128l",
            "longhaul wan relay --listen 127.0.0.1:0 --to 127.0.0.1:1 rate=500mbit delay=35ms",
            "longhaul sim steady --rate 10gbit --loss 1%",
            "longhaul demo -v",
            "longhaul sim swarm --seeds 0..1000 --threads 2",
            "longhaul lab run fig2 --only loss=1% --repeat 2 --out x --sim",
            "longhaul lab run breadth --sim --part 1/20 --repeat 2 --jobs 2",
            "longhaul lab search --cc haul --against bbr --time 10min --evaluations 48 --seed 7 --jobs 2 --keep 5 --out x.toml",
            "longhaul lab exec --link rate=1gbit --beside b=true a -- ping -c 1 10.77.0.2",
            "longhaul lab list fig2 --cells",
            "longhaul serve /srv --policy etcds://a,b:1/longhaul/policy --store-ca ca.pem --control-group ops",
            "longhaul put a longhaul://host/ --policy p.toml --no-control",
            "longhaul cc show --watch --json",
            "longhaul cc set p.toml --pid 3",
            "longhaul cc set --flow 3/1.0 --cc cubic --cap none",
            "longhaul cc push p.toml --store etcd://h/k",
            "longhaul cc trace --flow 3/1.0 --every 10 -n 5",
        ] {
            assert!(parse(good).is_ok(), "{good}: {}", parse(good).unwrap_err());
        }
        for bad in [
            "longhaul",
            "longhaul put a",
            "longhaul put a host/x",
            "longhaul get longhaul://host/x",
            "longhaul put a longhaul://host/x --cc nonsense",
            "longhaul put a longhaul://host/x --mtu 100",
            "longhaul put a longhaul://host/x --qos fast",
            "longhaul serve /srv --read-only --write-only",
            "longhaul perf client host -n 1G -t 1s",
            "longhaul put a longhaul://host/x --key k.pem",
            "longhaul put a longhaul://host/x --ca roots.pem --accept-new",
            "longhaul serve /srv --ca roots.pem --token",
            "longhaul serve /srv --allow-name a",
            "longhaul sim swarm --seeds 5..5",
            "longhaul serve /srv --datapath tcp",
            "longhaul serve /srv --lanes 0",
            "longhaul serve /srv --cores a",
            "longhaul serve /srv --no-control --control-group ops",
            "longhaul put a longhaul://host/ --policy http://h/k",
            "longhaul cc set",
            "longhaul cc set p.toml --cap 1G",
            "longhaul cc set p.toml --flow 3/1.0",
            "longhaul cc push p.toml",
            "longhaul cc trace --every 0",
        ] {
            assert_eq!(parse(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }
}
