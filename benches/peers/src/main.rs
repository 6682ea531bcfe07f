//! Longhaul and its peers on one machine, in turn: `cargo xtask bench`.
//!
//! A measurement is a receiver and a sender, each a process of its own, pinned to a core of its own. All peers move one
//! stream between two regions of memory of the same size for the same time, over the same network; what arrived is
//! compared with what was sent. The peers take turns, round after round, and what is told are medians and the ratios of
//! medians to plain TCP: absolute figures of one machine differ by half from minute to minute.

mod algorithms;
mod budget;
mod bulk;
mod checked;
mod distance;
mod files;
mod idle;
mod iwarp;
mod lanes;
mod latency;
mod net;
mod pattern;
mod peer;
mod profile;
mod report;
mod rounds;
mod seal;
mod tcp;
mod udp;
mod verbs;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use lab::workload::messages::MessageOptions;

/// Options of a comparison.
#[derive(Args, Clone)]
struct Compare {
    /// Networks: loopback, veth (super-packets pass whole), offgro (cut by the sender, joined by the receiver), vethoff
    /// (cut, not joined)
    #[arg(long, value_delimiter = ',', default_value = "veth,loopback,offgro,vethoff")]
    nets: Vec<net::Kind>,
    /// Only peers whose name contains one of these; all when left out
    #[arg(long, value_delimiter = ',')]
    peers: Vec<String>,
    /// How often each peer has its turn
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long each sends
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Cores of sender and receiver
    #[arg(long, value_delimiter = ',', default_value = "0,1")]
    cores: Vec<u32>,
    /// Where `longhaul` and `quinn-perf` are
    #[arg(long, default_value = "target/dist")]
    programs: PathBuf,
    /// MTU of veth, and of Longhaul and QUIC over loopback
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u32).range(1280..=65_535))]
    mtu: u32,
    /// All runs as JSON into this file
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Args, Clone)]
struct LaneOptions {
    #[command(flatten)]
    compare: Compare,
    /// Instead count what threads wait for: calls of futex, and samples in functions that spin or lock (root, `perf`)
    #[arg(long)]
    profile: bool,
}

#[derive(Parser)]
#[command(about = "Longhaul and its peers on one machine, in turn", version)]
enum Command {
    /// One stream, memory to memory: Gbit/s and CPU seconds per gigabyte
    Bulk(Compare),
    /// Round trips of small and middling messages
    Latency(Compare),
    /// iWARP beside plain TCP: round trips and throughput of messages, with and without CRC and markers
    Iwarp(iwarp::Options),
    /// Connections that have nothing to do: memory and processor time of the server for each
    Idle(idle::Options),
    /// Where the time of one stream goes: nanoseconds per packet at each end, from samples (needs `perf`)
    Budget(Compare),
    /// One stream over one lane and over two, with both ends on one core each and on both
    Lanes(LaneOptions),
    /// One stream decided by each shipped program and by the built-in algorithm that it repeats: the ratio of throughputs
    Programs(Compare),
    /// Files from tmpfs to tmpfs over loopback: Gbit/s and CPU seconds per gigabyte, contents compared after each run
    Files(files::Options),
    /// Programs for verbs and MPI, unchanged, beside `perf`, TCP and bare UDP: over veth, and over an emulated path (root)
    Verbs(verbs::Options),
    /// One end of a peer
    #[command(hide = true, subcommand)]
    End(End),
}

/// The ends of our own peers.
#[derive(Subcommand)]
enum End {
    /// Receives one stream into a region
    TcpSink(Sink),
    /// Sends a region again and again
    TcpSource(Source),
    /// Counts datagrams
    UdpSink {
        #[command(flatten)]
        sink: Sink,
        #[arg(long)]
        content: udp::Content,
    },
    /// Sends trains of datagrams, as fast as they are taken
    UdpSource {
        #[command(flatten)]
        source: Source,
        #[arg(long)]
        content: udp::Content,
    },
    /// Answers messages of `size` bytes
    TcpEcho(Echo),
    /// Sends messages and waits for each answer
    TcpPing(Ping),
    /// Receives messages of `size` bytes, each whole
    TcpCollect(Echo),
    /// Sends messages of `size` bytes, one call each
    TcpStream(Ping),
    /// As `tcp-echo`, with CRCs
    CheckedEcho(Echo),
    /// As `tcp-ping`, with CRCs
    CheckedPing(Ping),
    /// As `tcp-collect`, with CRCs
    CheckedCollect(Echo),
    /// As `checked-collect`, straight to its place
    CheckedPlace(Echo),
    /// As `tcp-stream`, with CRCs
    CheckedStream(Ping),
    /// Takes connections that do nothing
    IdleServer(idle::Part),
    /// Makes connections that do nothing
    IdleClient(idle::Part),
    /// Answers datagrams
    UdpEcho(Echo),
    /// Sends datagrams and waits for each answer
    UdpPing(Ping),
    /// Answers messages in sealed datagrams
    SealedEcho(Echo),
    /// Sends messages in sealed datagrams and waits for each answer
    SealedPing(Ping),
    /// Hashes, seals, opens, hashes and writes all files of a folder, without any network
    Pipeline(files::pipeline::Folders),
}

#[derive(Args)]
struct Sink {
    listen: SocketAddr,
}

#[derive(Args)]
struct Source {
    to: SocketAddr,
    #[arg(long)]
    seconds: f64,
    #[arg(long, default_value_t = 1500)]
    mtu: usize,
}

/// Options of TCP sockets; left out, they are the system's.
#[derive(Args, Clone, Default)]
struct Sockets {
    /// Bytes of the sending and the receiving buffer each
    #[arg(long)]
    buffer: Option<usize>,
    /// Payload of a segment at most
    #[arg(long)]
    maxseg: Option<u32>,
    /// Congestion control by the system's name (`TCP_CONGESTION`)
    #[arg(long)]
    congestion: Option<String>,
    /// Spinning ends ask whether there is something to read (poll(2)) instead of reading in vain
    #[arg(long)]
    asks: bool,
    /// Bytes for which the system wakes who reads (`SO_RCVLOWAT`)
    #[arg(long)]
    enough: Option<u32>,
}

impl Sockets {
    fn manner(&self, spin: bool) -> MessageOptions {
        MessageOptions {
            busy_poll: spin,
            polls: self.asks,
            receive_low_water: self.enough,
            buffer: self.buffer,
            maxseg: self.maxseg,
            congestion: self.congestion.clone(),
        }
    }
    fn args(&self) -> Vec<String> {
        let each = [
            ("--buffer", self.buffer.map(|b| b.to_string())),
            ("--maxseg", self.maxseg.map(|m| m.to_string())),
            ("--enough", self.enough.map(|b| b.to_string())),
            ("--congestion", self.congestion.clone()),
        ];
        let asks = self.asks.then(|| "--asks".to_owned());
        each.into_iter().filter_map(|(k, v)| Some([k.to_owned(), v?])).flatten().chain(asks).collect()
    }
}

#[derive(Args)]
struct Echo {
    listen: SocketAddr,
    #[arg(long)]
    size: usize,
    #[arg(long)]
    spin: bool,
    #[command(flatten)]
    manner: Sockets,
}

#[derive(Args)]
struct Ping {
    to: SocketAddr,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    size: usize,
    #[arg(long)]
    spin: bool,
    #[command(flatten)]
    manner: Sockets,
}

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("longhaul-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Bulk(c) => bulk::compare(&c),
        Command::Budget(c) => budget::compare(&c),
        Command::Latency(c) => latency::compare(&c),
        Command::Idle(o) => idle::compare(&o),
        Command::Iwarp(o) => iwarp::compare(&o),
        Command::Lanes(o) if o.profile => profile::run(&o.compare),
        Command::Lanes(o) => lanes::compare(&o.compare),
        Command::Programs(c) => algorithms::compare(&c),
        Command::Files(o) => files::compare(&o),
        Command::Verbs(o) => verbs::compare(&o),
        Command::End(End::TcpSink(s)) => tcp::sink(s.listen),
        Command::End(End::TcpSource(s)) => tcp::source(s.to, s.seconds),
        Command::End(End::UdpSink { sink, content }) => udp::sink(sink.listen, content),
        Command::End(End::UdpSource { source: s, content }) => udp::source(s.to, s.seconds, s.mtu, content),
        Command::End(End::TcpEcho(e)) => tcp::echo(&e),
        Command::End(End::TcpPing(p)) => tcp::ping(&p),
        Command::End(End::TcpCollect(e)) => tcp::collect(&e),
        Command::End(End::TcpStream(p)) => tcp::stream(&p),
        Command::End(End::CheckedEcho(e)) => checked::echo(&e),
        Command::End(End::CheckedPing(p)) => checked::ping(&p),
        Command::End(End::CheckedCollect(e)) => checked::collect(&e),
        Command::End(End::CheckedPlace(e)) => checked::place(&e),
        Command::End(End::CheckedStream(p)) => checked::stream(&p),
        Command::End(End::IdleServer(p)) => idle::server(&p),
        Command::End(End::IdleClient(p)) => idle::client(&p),
        Command::End(End::UdpEcho(e)) => udp::trips::echo(&e, false),
        Command::End(End::UdpPing(p)) => udp::trips::ping(&p, false),
        Command::End(End::SealedEcho(e)) => udp::trips::echo(&e, true),
        Command::End(End::SealedPing(p)) => udp::trips::ping(&p, true),
        Command::End(End::Pipeline(f)) => files::pipeline::run(&f),
    }
}
