//! The sender.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use quinn::{SendStream, VarInt};
use tokio::task::JoinSet;

use crate::config::{self, PIECE, SERVER_NAME};
use crate::report::{End, Report, Start};
use crate::{ClientOptions, DEFAULT_PORT};

/// The server's report is a short line of JSON.
const MAX_REPORT: usize = 4096;

/// Sends, and prints the figures.
pub async fn measure(options: &ClientOptions) -> Result<()> {
    let report = transfer(options).await?;
    if options.json {
        println!("{}", report.to_json(&options.path.cc));
    } else {
        println!("{}", report.to_text(&options.path.cc));
    }
    Ok(())
}

/// Sends for the time that was asked for, on each stream, and gathers the figures of both ends.
pub async fn transfer(options: &ClientOptions) -> Result<Report> {
    let server = resolve(&options.host)?;
    let local: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let region = Bytes::from(config::region(&options.path));
    let endpoint = config::endpoint(local, &options.path, None)?;
    let connecting = endpoint.connect_with(config::client(&options.path, &server)?, server, SERVER_NAME)?;
    let connection = connecting.await.with_context(|| format!("cannot connect to {server}"))?;
    let (mut request, mut reply) = connection.open_bi().await?;
    request.write_all(&options.streams.to_be_bytes()).await?;
    let start = Arc::new(Start::now()?);
    let total = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..options.streams {
        let stream = connection.open_uni().await?;
        let time = Duration::from_secs(options.seconds);
        tasks.spawn(fill((stream, region.clone()), start.clone(), time, options.stop, total.clone()));
    }
    while let Some(outcome) = tasks.join_next().await {
        outcome??;
    }
    let receiver = reply.read_to_end(MAX_REPORT).await.context("the server sent no report")?;
    let sender = start.end(total.load(Ordering::Relaxed))?;
    let stats = connection.stats();
    connection.close(VarInt::from_u32(0), b"done");
    endpoint.wait_idle().await;
    Ok(Report {
        sender,
        receiver: End::from_json(&receiver)?,
        lost_packets: stats.path.lost_packets,
        sent_packets: stats.path.sent_packets,
        udp_payload: stats.path.current_mtu,
        rtt: stats.path.rtt,
    })
}

/// Writes the region again and again until `time` is over; then ends the stream, or with `stop` drops what waits.
async fn fill(
    (mut stream, region): (SendStream, Bytes),
    start: Arc<Start>,
    time: Duration,
    stop: bool,
    total: Arc<AtomicU64>,
) -> Result<()> {
    let mut at = 0;
    while start.elapsed() < time {
        // Counted before, since part of it may arrive though the time is over before all is written.
        total.fetch_add(PIECE as u64, Ordering::Relaxed);
        // Shared, not copied: what quinn offers to senders that keep their data.
        let write = stream.write_chunk(region.slice(at..at + PIECE));
        at = (at + PIECE) % region.len();
        if !stop {
            write.await?;
        } else if let Ok(written) = tokio::time::timeout(time.saturating_sub(start.elapsed()), write).await {
            written?;
        }
    }
    if stop {
        stream.reset(VarInt::from_u32(0))?;
    } else {
        stream.finish()?;
    }
    Ok(())
}

/// `host`, `host:port`, or an address with or without a port.
fn resolve(host: &str) -> Result<SocketAddr> {
    let mut found = match host.to_socket_addrs() {
        Ok(found) => found,
        Err(_) => {
            (host, DEFAULT_PORT).to_socket_addrs().with_context(|| format!("cannot resolve `{host}`"))?
        }
    };
    found.next().with_context(|| format!("`{host}` has no address"))
}
