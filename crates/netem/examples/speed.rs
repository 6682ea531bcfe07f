//! Prints what one packet through a link costs: `cargo run --release -p longhaul-netem --example speed`.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use base::{Ecn, Rng, Span, Time};
use longhaul_netem::{Link, LinkConfig, Packet, Verdict};
use std::time::Instant;

const PACKETS: u64 = 10_000_000;
const BYTES: u64 = 1500;

/// Sends as fast as the link's rate allows, behind a standing queue of one bandwidth-delay product, and polls
/// after each packet.
fn run(name: &str, spec: &str) {
    let config = LinkConfig::parse(spec).unwrap_or_else(|e| panic!("{name}: {e}"));
    let rate = config.rate.expect("every case has a rate");
    let ahead = config.queue / BYTES;
    let mut link = Link::new(config, Rng::from_u64(1));
    let (mut most, mut sum) = (0, 0u64);
    let begin = Instant::now();
    for n in 0..PACKETS {
        let now = Time::ZERO + rate.time_for(n.saturating_sub(ahead) * BYTES);
        let verdict = link.send(now, Packet { bytes: BYTES, ecn: Ecn::Ect0, payload: () });
        sum += u64::from(verdict == Verdict::Queued);
        while let Some(delivery) = link.poll(now) {
            sum = sum.wrapping_add(delivery.time.as_nanos());
        }
        if n % 1024 == 0 {
            most = most.max(link.stats().in_link);
        }
    }
    while let Some(at) = link.next_delivery() {
        while link.poll(at + Span::from_millis(1)).is_some() {}
    }
    let (elapsed, stats) = (begin.elapsed(), link.stats());
    assert_eq!(stats.delivered + stats.dropped(), stats.sent + stats.duplicated);
    let per_packet = elapsed.as_nanos() as f64 / PACKETS as f64;
    println!("{name:<24} {per_packet:6.1} ns per packet, up to {most:>8} in the link (checksum {sum:x})");
}

fn main() {
    run("clean 10 Gbit/s", "rate=10gbit delay=35ms queue=1bdp");
    run("clean 100 Gbit/s", "rate=100gbit delay=70ms queue=875000000B");
    run("clean 400 Gbit/s", "rate=400gbit delay=5ms queue=1bdp");
    run("loss 0.1 %", "rate=100gbit delay=70ms queue=875000000B loss=0.1%");
    run("bursts", "rate=100gbit delay=70ms queue=875000000B loss=burst(p=0.1%,r=20%)");
    run("reorder 1 %", "rate=100gbit delay=70ms queue=875000000B reorder=1%(5ms)");
    run("jitter in order", "rate=100gbit delay=70ms queue=875000000B jitter=1ms");
    run("jitter out of order", "rate=100gbit delay=70ms queue=875000000B jitter=1ms order=free");
}
