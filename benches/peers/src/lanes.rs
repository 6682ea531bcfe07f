//! One lane and two: what a second core brings.
//!
//! Five ways of placing the same work, in turn: one lane with both ends on one core; one lane with a core for each end; one
//! lane, both ends where the system puts them; two lanes, both ends' threads on both cores, as many of them at work as is worth it;
//! and all of them whatever it costs. The second against the first tells what a core is worth, the third against the second
//! what it is worth to have one to oneself, and the others against these what lanes make of it.

use anyhow::Result;

use crate::Compare;
use crate::bulk::{cpu, gbits};
use crate::net::Kind;
use crate::peer::{self, Place};
use crate::rounds::{self, Peer, Runs, spread};

/// Rows of a suite.
const PLACINGS: usize = 5;
const SUITES: [&str; 3] = ["aegis-128l", "aes-128-gcm", "crc32c"];

/// Measures and tells.
pub fn compare(c: &Compare) -> Result<()> {
    let mut peers = Vec::new();
    let cores = c.cores.clone();
    let both = cores.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    for suite in SUITES {
        let options = move |p: &Place<'_>, shared: &[&str]| {
            let plain: &[&str] = if suite == "crc32c" { &["--encryption", "crc32c"] } else { &[] };
            let shared = [shared, plain].concat();
            peer::longhaul(p, &["--suite", suite, "--verify", "--region", "256MiB"], &shared, &[])
        };
        let one = cores[0].to_string();
        peers.push(Peer::new(&format!("{suite}, 1 lane, 1 core"), move |p: &Place<'_>| {
            options(&p.on(&one, &one), &["--lanes", "1"])
        }));
        peers.push(Peer::new(&format!("{suite}, 1 lane, 2 cores"), move |p: &Place<'_>| {
            options(p, &["--lanes", "1"])
        }));
        let shared = both.clone();
        peers.push(Peer::new(&format!("{suite}, 1 lane, shared"), move |p: &Place<'_>| {
            options(&p.on(&shared, &shared), &["--lanes", "1"])
        }));
        let shared = both.clone();
        peers.push(Peer::new(&format!("{suite}, 2 lanes, 2 cores"), move |p: &Place<'_>| {
            options(&p.on(&shared, &shared), &["--lanes", "2", "--cores", &shared])
        }));
        let shared = both.clone();
        peers.push(Peer::new(&format!("{suite}, 2 lanes kept, 2 cores"), move |p: &Place<'_>| {
            options(&p.on(&shared, &shared), &["--lanes", "2", "--cores", &shared, "--keep-threads"])
        }));
    }
    println!(
        "One stream for {} s, {} rounds, MTU {}; CPU seconds per 10^9 bytes",
        c.seconds, c.rounds, c.mtu
    );
    rounds::run(c, &peers, show)
}

fn show(kind: Kind, runs: &Runs) {
    println!("\n{}", kind.name());
    println!(
        "{:32} {:>8} {:>16} {:>10} {:>10} {:>10} {:>9}",
        "", "Gbit/s", "(least to most)", "to 1 core", "to 1 lane", "to shared", "CPU/GB"
    );
    let mut before: Vec<f64> = Vec::new();
    for (i, (name, runs)) in runs.iter().enumerate() {
        if i % PLACINGS == 0 {
            before.clear();
        }
        let whole = runs.iter().map(|b| cpu(b, 0) + cpu(b, 1));
        let (Some(rate), Some(cost)) = (spread(runs.iter().map(gbits)), spread(whole)) else { continue };
        let ratio = |k: usize| before.get(k).map_or("-".to_owned(), |b| format!("{:.2}", rate.median / b));
        let range = format!("({:.1} to {:.1})", rate.least, rate.most);
        println!(
            "{name:32} {:8.2} {range:>16} {:>10} {:>10} {:>10} {:9.2}",
            rate.median,
            ratio(0),
            ratio(1),
            ratio(2),
            cost.median
        );
        before.push(rate.median);
        if runs.iter().any(|b| b[1].verified == Some(false)) {
            println!("{name:32} WHAT ARRIVED IS NOT WHAT WAS SENT");
        }
    }
}
