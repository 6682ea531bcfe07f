//! One stream, memory to memory.

use anyhow::Result;

use crate::Compare;
use crate::net::Kind;
use crate::peer::{self, Both, Place};
use crate::rounds::{self, Peer, Runs, spread};

/// What all others are compared with.
const REFERENCE: &str = "TCP";
/// Region of Longhaul's ends, as our own peers have it.
const REGION: &str = "1GiB";

/// Measures and tells.
pub fn compare(c: &Compare) -> Result<()> {
    let mut peers = vec![Peer::new(REFERENCE, |p: &Place<'_>| {
        peer::own(p, ["tcp-source", "tcp-sink"], [&["--seconds".to_owned(), p.seconds.to_string()], &[]])
    })];
    for (name, suite) in [
        ("Longhaul, CRC32C", "crc32c"),
        ("Longhaul, AEGIS-128L", "aegis-128l"),
        ("Longhaul, AEGIS-128X2", "aegis-128x2"),
        ("Longhaul, AES-128-GCM", "aes-128-gcm"),
    ] {
        peers.push(Peer::new(name, move |p: &Place<'_>| {
            let shared: &[&str] = if suite == "crc32c" { &["--encryption", "crc32c"] } else { &[] };
            peer::longhaul(p, &["--suite", suite, "--verify", "--region", REGION], shared, &[])
        }));
    }
    peers.push(Peer::new("Longhaul, AEGIS, 1 % lost", |p: &Place<'_>| {
        let own = ["--suite", "aegis-128l", "--verify", "--region", REGION];
        peer::longhaul(p, &own, &[], &["--lose", "1%"])
    }));
    peers.push(Peer::new("Longhaul, AEGIS, io_uring", |p: &Place<'_>| {
        let own = ["--suite", "aegis-128l", "--verify", "--region", REGION];
        peer::longhaul(p, &own, &["--datapath", "uring"], &[])
    }));
    // Both ends, and one of them: where it cannot be had, they fall back to the kernel's UDP and say so.
    for (name, at_client, at_server) in [
        ("Longhaul, AEGIS, xdp", "xdp", "xdp"),
        ("Longhaul, AEGIS, xdp sends", "xdp", "udp"),
        ("Longhaul, AEGIS, xdp receives", "udp", "xdp"),
    ] {
        peers.push(Peer::new(name, move |p: &Place<'_>| {
            let own = ["--suite", "aegis-128l", "--verify", "--region", REGION, "--datapath", at_client];
            peer::longhaul(p, &own, &[], &["--datapath", at_server])
        }));
    }
    peers.push(Peer::new("quinn, AES-128-GCM", |p: &Place<'_>| peer::quinn(p)));
    // What the machine allows: datagrams without any protocol, then what payload and an encrypting transport take at least.
    for (name, content) in
        [("bare UDP, hot memory", "hot"), ("bare UDP, cold memory", "cold"), ("bare UDP, sealed", "sealed")]
    {
        peers.push(Peer::new(name, move |p: &Place<'_>| {
            let content = ["--content", content].map(str::to_owned);
            let time = ["--seconds".to_owned(), p.seconds.to_string(), "--mtu".to_owned(), p.mtu.to_string()];
            peer::own(p, ["udp-source", "udp-sink"], [&[&content[..], &time].concat(), &content])
        }));
    }
    if has_iperf3() {
        peers.push(Peer::new("iperf3", |p: &Place<'_>| peer::iperf3(p)));
    } else {
        eprintln!("iperf3 is not installed and left out: apt-get install iperf3");
    }
    println!(
        "One stream for {} s, {} rounds, MTU {}; CPU seconds per 10^9 bytes",
        c.seconds, c.rounds, c.mtu
    );
    rounds::run(c, &peers, show)
}

fn has_iperf3() -> bool {
    std::process::Command::new("iperf3").arg("--version").output().is_ok_and(|o| o.status.success())
}

/// Gbit/s as the receiver has it.
pub fn gbits(both: &Both) -> f64 {
    let r = &both[1];
    if r.seconds > 0.0 { r.count as f64 * 8e-9 / r.seconds } else { 0.0 }
}

pub fn cpu(both: &Both, end: usize) -> f64 {
    both[end].cpu / (both[1].count.max(1) as f64 * 1e-9)
}

fn show(kind: Kind, runs: &Runs) {
    println!("\n{}", kind.name());
    println!(
        "{:30} {:>8} {:>16} {:>9} {:>9} {:>9} {:>10}",
        "", "Gbit/s", "(least to most)", "to TCP", "CPU send", "CPU recv", "CPU to TCP"
    );
    let median = |runs: &[Both], of: &dyn Fn(&Both) -> f64| spread(runs.iter().map(of));
    let reference = runs.iter().find(|(name, _)| name == REFERENCE);
    let whole = |b: &Both| cpu(b, 0) + cpu(b, 1);
    let base = reference.and_then(|(_, r)| Some((median(r, &gbits)?.median, median(r, &whole)?.median)));
    for (name, runs) in runs {
        let (Some(rate), Some(send), Some(recv), Some(both)) = (
            median(runs, &gbits),
            median(runs, &|b| cpu(b, 0)),
            median(runs, &|b| cpu(b, 1)),
            median(runs, &whole),
        ) else {
            continue;
        };
        let (to_rate, to_cpu) = match base {
            Some((r, c)) => (format!("{:.2}", rate.median / r), format!("{:.2}", both.median / c)),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let range = format!("({:.1} to {:.1})", rate.least, rate.most);
        println!(
            "{name:30} {:8.2} {range:>16} {to_rate:>9} {:9.2} {:9.2} {to_cpu:>10}",
            rate.median, send.median, recv.median
        );
        if runs.iter().any(|b| b[1].verified == Some(false)) {
            println!("{name:30} WHAT ARRIVED IS NOT WHAT WAS SENT");
        }
    }
}
