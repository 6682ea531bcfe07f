//! A bulk sender and receiver over quinn, set up to be as fast as quinn goes: the peer that Longhaul is compared with.
//!
//! The client sends one region over and over on unidirectional streams for a given time; the server copies what it
//! reads into a region of its own, so that both do what a transfer between two memories needs. The server then sends
//! its figures back, and the client prints both ends. The certificate is made at start and not checked: the handshake
//! and every packet are encrypted all the same (AES-128-GCM by ring).

mod client;
mod config;
mod report;
mod server;

use std::net::SocketAddr;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};

/// The port of both ends unless one is named.
const DEFAULT_PORT: u16 = 4455;
/// What the user asks for stays below these.
const MAX_STREAMS: u64 = 1024;
const MAX_SECONDS: u64 = 3600;
/// The largest IP packet.
const MAX_MTU: u64 = 65_535;
/// QUIC needs 1200 bytes of UDP payload; 48 are the headers of IPv6 and UDP.
const MIN_MTU: u64 = 1248;
/// Windows in MiB: 4 GiB holds 100 Gbit/s over 340 ms.
const MAX_WINDOW_MIB: u64 = 4096;
/// More than any comparison needs.
const MAX_REGION_MIB: u64 = 4096;

#[derive(Parser)]
#[command(about = "Bulk transfer over quinn, as fast as it goes", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Receive one transfer after the other until stopped
    Server(ServerOptions),
    /// Send for a while, then print the figures of both ends
    Client(ClientOptions),
}

#[derive(Args)]
struct ServerOptions {
    /// Address to listen on; port 0 takes a free one. The first line printed says which
    #[arg(long, default_value_t = SocketAddr::from(([0, 0, 0, 0], DEFAULT_PORT)))]
    listen: SocketAddr,
    #[command(flatten)]
    path: PathOptions,
}

#[derive(Args)]
struct ClientOptions {
    /// Host, or host and port, of the server
    host: String,
    /// How long to send, in seconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=MAX_SECONDS))]
    seconds: u64,
    /// Streams that send at the same time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=MAX_STREAMS))]
    streams: u64,
    /// At the end of the time, drop what has not arrived yet instead of sending it all
    #[arg(long)]
    stop: bool,
    /// Print one line of JSON instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    path: PathOptions,
}

/// What both ends should be told alike.
#[derive(Args, Clone)]
struct PathOptions {
    /// IP packets of exactly this many bytes at most; discovery is off
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u64).range(MIN_MTU..=MAX_MTU))]
    mtu: u64,
    /// Congestion control of the sender
    #[arg(long, value_enum, default_value_t = Control::Cubic)]
    cc: Control,
    /// Receive windows (stream and connection), send window and socket buffers, in MiB
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=MAX_WINDOW_MIB))]
    window: u64,
    /// Memory of each stream that is received into and of all that are sent from, in MiB, used round and round
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=MAX_REGION_MIB))]
    region: u64,
    /// Worker threads of the runtime
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,
}

/// quinn's congestion controllers.
#[derive(Clone, Copy, ValueEnum)]
enum Control {
    Cubic,
    Bbr,
    Newreno,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let threads = match &cli.command {
        Command::Server(options) => options.path.threads,
        Command::Client(options) => options.path.threads,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(usize::try_from(threads)?)
        .enable_all()
        .build()?;
    match cli.command {
        Command::Server(options) => runtime.block_on(server::serve(&options)),
        Command::Client(options) => runtime.block_on(client::measure(&options)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(stop: bool) -> report::Report {
        let path = PathOptions { mtu: 1500, cc: Control::Cubic, window: 8, region: 2, threads: 2 };
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let (endpoint, address) =
                server::bind(&ServerOptions { listen: local, path: path.clone() }).unwrap();
            let at_server = path.clone();
            let server =
                tokio::spawn(async move { server::accept_one(&endpoint, &at_server, &mut Vec::new()).await });
            let options =
                ClientOptions { host: address.to_string(), seconds: 1, streams: 3, stop, json: true, path };
            let report = client::transfer(&options).await.unwrap();
            server.await.unwrap().unwrap();
            report
        })
    }

    #[test]
    fn one_transfer_arrives_whole_and_both_ends_report() {
        let report = transfer(false);
        assert!(report.receiver.bytes > 0);
        assert_eq!(
            report.receiver.bytes, report.sender.bytes,
            "the streams were finished, so all must have arrived"
        );
        let json = report.to_json(&Control::Cubic);
        assert_eq!(json["receiver"]["bytes"], report.receiver.bytes);
    }

    #[test]
    fn a_transfer_that_is_stopped_counts_what_arrived() {
        let report = transfer(true);
        assert!(report.receiver.bytes > 0);
        assert!(report.receiver.bytes <= report.sender.bytes, "what waits at the end is dropped");
    }
}
