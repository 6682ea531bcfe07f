//! The receiver.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use bytes::Bytes;
use quinn::{Connection, Endpoint, ReadError, RecvStream, VarInt};
use tokio::task::JoinSet;

use crate::PathOptions;
use crate::ServerOptions;
use crate::config;
use crate::report::Start;

/// Bytes of the request that opens a transfer.
pub const REQUEST: usize = 8;
/// Chunks taken from quinn at a time.
const CHUNKS: usize = 64;

/// Receives transfers, one after the other, for ever.
pub async fn serve(options: &ServerOptions) -> Result<()> {
    let (endpoint, address) = bind(options)?;
    // Made before anybody sends.
    let mut spare = vec![config::region(&options.path)];
    println!("listening on {address}");
    loop {
        if let Err(error) = accept_one(&endpoint, &options.path, &mut spare).await {
            eprintln!("transfer failed: {error:#}");
        }
    }
}

/// An endpoint, and where it listens.
pub fn bind(options: &ServerOptions) -> Result<(Endpoint, SocketAddr)> {
    let config = config::server(&options.path, &options.listen)?;
    let endpoint = config::endpoint(options.listen, &options.path, Some(config))?;
    let address = endpoint.local_addr()?;
    Ok((endpoint, address))
}

/// Receives one transfer and reports it to its sender.
///
/// The sender opens a bidirectional stream and writes how many unidirectional streams it will use; when all of these
/// have ended the figures go back the same way.
pub async fn accept_one(endpoint: &Endpoint, options: &PathOptions, spare: &mut Vec<Vec<u8>>) -> Result<()> {
    let connection = endpoint.accept().await.context("the endpoint is closed")?.await?;
    let (mut reply, mut request) = connection.accept_bi().await?;
    let mut streams = [0; REQUEST];
    request.read_exact(&mut streams).await?;
    let start = Start::now()?;
    let bytes = receive(&connection, u64::from_be_bytes(streams), options, spare).await?;
    let report = start.end(bytes)?.to_json().to_string();
    reply.write_all(report.as_bytes()).await?;
    reply.finish()?;
    connection.closed().await; // the sender closes when it has the report
    Ok(())
}

/// The bytes of `streams` streams, each copied into a region of its own: a `spare` one, if there is one.
async fn receive(
    connection: &Connection,
    streams: u64,
    options: &PathOptions,
    spare: &mut Vec<Vec<u8>>,
) -> Result<u64> {
    let total = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..streams.min(crate::MAX_STREAMS) {
        let stream = connection.accept_uni().await?;
        let total = total.clone();
        let mut region = spare.pop().unwrap_or_else(|| config::region(options));
        tasks.spawn(async move {
            let received = drain(stream, &mut region).await;
            total.fetch_add(*received.as_ref().unwrap_or(&0), Ordering::Relaxed);
            received.map(|_| region)
        });
    }
    while let Some(outcome) = tasks.join_next().await {
        match outcome? {
            Ok(region) if spare.is_empty() => spare.push(region),
            Ok(_) => {}
            Err(error) => {
                connection.close(VarInt::from_u32(1), b"receiving failed");
                return Err(error);
            }
        }
    }
    Ok(total.load(Ordering::Relaxed))
}

/// Reads to the end of the stream; the region is filled again and again.
async fn drain(mut stream: RecvStream, region: &mut [u8]) -> Result<u64> {
    let mut chunks = vec![Bytes::new(); CHUNKS];
    let (mut received, mut at) = (0u64, 0);
    loop {
        let count = match stream.read_chunks(&mut chunks).await {
            Ok(Some(count)) => count,
            // A sender that stops resets its streams: what had arrived counts.
            Ok(None) | Err(ReadError::Reset(_)) => break,
            Err(error) => return Err(error.into()),
        };
        for chunk in &chunks[..count] {
            let mut rest = &chunk[..];
            while !rest.is_empty() {
                let length = rest.len().min(region.len() - at);
                region[at..at + length].copy_from_slice(&rest[..length]);
                at = (at + length) % region.len();
                rest = &rest[length..];
            }
            received += chunk.len() as u64;
        }
    }
    std::hint::black_box(region);
    Ok(received)
}
