//! How fast each suite seals and opens packets on one core of this machine.
//!
//! ```text
//! cargo run --release -p longhaul-transport --example aead_speed -- [payload bytes, default 1433]
//! ```
//!
//! Packets are sealed and opened in a train of 44, as the transport does, so data are in the cache.

use std::hint::black_box;
use std::time::Duration;

use longhaul_transport::crypto::keys::{KeyPair, Secret, Side};
use longhaul_transport::crypto::packet::{MASK_LEN, TAG_LEN};
use longhaul_transport::crypto::suite::Suite;
use longhaul_transport::crypto::tls::DataSecrets;

/// Segments in the longest GSO train of 1472 bytes each.
const TRAIN: usize = 44;
/// How long each measurement takes.
const RUN: Duration = Duration::from_millis(400);

#[allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn clock() -> std::time::Instant {
    std::time::Instant::now()
}

/// Runs `work` for about [`RUN`]; gives nanoseconds per call.
fn time(mut work: impl FnMut(u64)) -> f64 {
    let start = clock();
    let mut n = 0u64;
    while start.elapsed() < RUN {
        for _ in 0..20 {
            work(n);
            n += 1;
        }
    }
    start.elapsed().as_nanos() as f64 / n as f64
}

fn main() {
    let payload = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(1433usize);
    println!("{payload} bytes of payload, trains of {TRAIN}, one core; GB/s of payload\n");
    println!(
        "{:20} {:>10} {:>10} {:>14} {:>14}",
        "suite", "seal GB/s", "open GB/s", "seal ns/packet", "mask ns/packet"
    );
    for suite in Suite::ALL {
        let secrets =
            DataSecrets { client: Secret::from_bytes([1; 32]), server: Secret::from_bytes([2; 32]) };
        let mut client = KeyPair::data(suite, payload, &secrets, Side::Client);
        let mut server = KeyPair::data(suite, payload, &secrets, Side::Server);
        let mut train = vec![0x5au8; payload * TRAIN];
        let mut tags = [[0u8; TAG_LEN]; TRAIN];

        let seal = time(|n| {
            let key = client.sealer().reserve(0, n * TRAIN as u64, 1).expect("far below the limit").clone();
            for ((packet, tag), i) in train.chunks_mut(payload).zip(&mut tags).zip(0..) {
                *tag = key.seal(0, n * TRAIN as u64 + i, &[0; 9], packet).expect("sizes are fine");
            }
        });
        // Opening destroys what it opens, so a fresh copy is made each time and its cost taken off.
        let sealed: Vec<u8> = {
            let mut fresh = vec![0x5au8; payload * TRAIN];
            for ((packet, tag), pn) in fresh.chunks_mut(payload).zip(&mut tags).zip(0..) {
                *tag = client.seal(0, pn, &[0; 9], packet).expect("sizes are fine");
            }
            fresh
        };
        let copy = time(|_| black_box(&mut train).copy_from_slice(black_box(&sealed)));
        let both = time(|_| {
            train.copy_from_slice(&sealed);
            for ((packet, tag), pn) in train.chunks_mut(payload).zip(&tags).zip(0..) {
                let tag = &tag[..suite.tag_len()];
                server.open(false, 0, pn, &[0; 9], tag, packet).expect("genuine");
            }
        });
        let mut masks = [[0u8; MASK_LEN]; TRAIN];
        let mask = time(|_| client.sealer().header().mask_train(black_box(&tags), black_box(&mut masks)));

        let bytes = (payload * TRAIN) as f64;
        println!(
            "{:20} {:10.2} {:10.2} {:14.1} {:14.2}",
            suite.name(),
            bytes / seal,
            bytes / (both - copy),
            seal / TRAIN as f64,
            mask / TRAIN as f64
        );
    }
}
