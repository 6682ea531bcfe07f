//! How fast TLS for byte streams seals and opens on one core of this machine, in memory.
//!
//! ```text
//! cargo run --release -p longhaul-transport --example tls_speed
//! ```
//!
//! Both ends are in one thread. A batch is written, sealed and opened before the next, as with a socket in between.

use std::hint::black_box;
use std::io::IoSlice;
use std::time::Duration;

use longhaul_transport::connection::Authority;
use longhaul_transport::crypto::{ClientAuth, ClientSetup, Credentials, Identity, ServerSetup, ServerTrust};
use longhaul_transport::{TlsEvent, TlsStream};

/// Bytes written at once.
const BATCHES: [usize; 3] = [4 << 10, 64 << 10, 256 << 10];
/// How the bytes come: in one piece, or as iWARP's records of a jumbo frame do, header, payload, checksum.
const PIECES: [(&str, &[usize]); 2] = [("one piece", &[usize::MAX]), ("records", &[18, 8926, 4])];
/// Bytes of each measurement.
const BYTES: usize = 4 << 30;
/// Bytes that arrive at once.
const ARRIVING: usize = 64 << 10;

#[allow(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn clock() -> std::time::Instant {
    std::time::Instant::now()
}

/// What arrives at an end; gives how many bytes of the stream that was.
fn arrive(to: &mut TlsStream, mut bytes: &[u8]) -> usize {
    let mut n = 0;
    while let Some(event) = to.receive(&mut bytes).expect("a sound peer") {
        match event {
            TlsEvent::Established => to.admit(),
            TlsEvent::Plain(run) => n += black_box(run).len(),
            TlsEvent::PeerClosed => {}
        }
    }
    n
}

/// All that an end has to send.
fn pass(from: &mut TlsStream, to: &mut TlsStream) -> usize {
    let n = from.outgoing().chunks(ARRIVING).map(|piece| arrive(to, piece)).sum();
    from.on_sent(from.outgoing().len());
    n
}

fn pair() -> (TlsStream, TlsStream) {
    let identity = |n| Credentials::RawKey(Identity::from_seed([n; 32]));
    let c = ClientSetup::new(&identity(1), &ServerTrust::FirstUse).expect("sound settings");
    let s = ServerSetup::new(&identity(2), &ClientAuth::AnyKey).expect("sound settings");
    let authority = Authority { keys: None, tokens: Vec::new() };
    let mut c = TlsStream::client(&c, "", None, 0).expect("sound settings");
    let mut s = TlsStream::server(&s, authority, 0).expect("sound settings");
    for _ in 0..3 {
        pass(&mut c, &mut s);
        pass(&mut s, &mut c);
    }
    (c, s)
}

/// A batch as pieces of these lengths, again and again.
fn cut<'a>(mut batch: &'a [u8], lengths: &[usize]) -> Vec<IoSlice<'a>> {
    let mut out = Vec::new();
    for n in lengths.iter().cycle() {
        if batch.is_empty() {
            break;
        }
        let (head, rest) = batch.split_at(batch.len().min(*n));
        out.push(IoSlice::new(head));
        batch = rest;
    }
    out
}

fn main() {
    let (mut c, mut s) = pair();
    println!("{}", c.suite().expect("a suite"));
    let data = vec![7; BATCHES[BATCHES.len() - 1]];
    for size in BATCHES {
        for (name, lengths) in PIECES {
            let parts = cut(&data[..size], lengths);
            let (mut sealing, mut opening) = (Duration::ZERO, Duration::ZERO);
            let mut n = 0;
            while n < BYTES {
                let start = clock();
                assert_eq!(c.write_gather(&parts), size);
                sealing += start.elapsed();
                let start = clock();
                n += pass(&mut c, &mut s);
                opening += start.elapsed();
            }
            let rate = |t: Duration| n as f64 / t.as_secs_f64() / 1e9;
            let both = rate(sealing + opening);
            println!(
                "{:>4} KiB, {name:<9}: seals {:.2} GB/s, opens {:.2} GB/s, both in turn {both:.2} GB/s",
                size >> 10,
                rate(sealing),
                rate(opening)
            );
        }
    }
}
