//! Measures the cost of a decision: nanoseconds per feedback and decision, alternating between built-in
//! algorithms and the programs that reimplement them (medians of several rounds). Needs clang and lld.
//!
//! `cargo xtask bench decisions`

#![allow(clippy::disallowed_methods, reason = "it measures time")]

use base::{Rate, Rng, Span, Time};
use cc::{Algorithm, PathInfo, RateSample, Signals, create, registry};
use longhaul_programs::{Options, compile, load_bytes};
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

const ROUNDS: usize = 15;
const FEEDBACKS: u64 = 200_000;
const PACKET: u64 = 1_500;
const RTT: Span = Span::from_millis(20);
/// The most nanoseconds that a decision may take (requirement C9): built-in, and as a program.
const LIMITS: [f64; 2] = [50.0, 150.0];

const PAIRS: [(&str, &str, &str); 4] = [
    ("reno", "reno.c", "reno-c"),
    ("dctcp", "dctcp.c", "dctcp-c"),
    ("vegas", "vegas.c", "vegas-c"),
    ("cubic", "cubic.c", "cubic-c"),
];

fn made(name: &str) -> Box<dyn Algorithm> {
    let info = PathInfo {
        packet_bytes: PACKET,
        handshake_rtt: Some(RTT),
        ecn: true,
        known_rate: None,
        remembered: None,
    };
    let (def, params) = registry::parse(name).expect("a known algorithm");
    create(def.name, &params, &info, Rng::from_u64(1)).expect("an algorithm")
}

/// Eight feedbacks per round trip with twenty packets each, and occasional losses.
fn feedback(i: u64) -> Signals {
    let now = Time::ZERO + RTT + RTT.scale(i, 8);
    let lost = if i % 4_000 == 3_999 { PACKET } else { 0 };
    let sent = now - RTT;
    let jitter = Span::from_micros(i * 37 % 500);
    Signals {
        now,
        acked: 20 * PACKET,
        acked_packets: 20,
        lost,
        lost_packets: lost / PACKET,
        latest_lost_sent: (lost > 0).then_some(sent),
        prior_inflight: 1 << 40,
        inflight: 1 << 40,
        rtt: Some(RTT + jitter),
        srtt: RTT,
        min_rtt: RTT,
        delivered: i * 20 * PACKET,
        newest_acked_sent: Some(sent),
        rate: Some(RateSample {
            rate: Rate::from_mbit(100),
            interval: RTT,
            delivered: 160 * PACKET,
            prior_delivered: 0,
            tx_inflight: 160 * PACKET,
            lost: 0,
            forgone: 0,
            app_limited: false,
        }),
        round_start: i.is_multiple_of(8),
        round: i / 8,
        ..Signals::default()
    }
}

/// Nanoseconds per feedback and decision.
fn measure(algorithm: &mut dyn Algorithm, from: u64) -> f64 {
    let feedbacks: Vec<Signals> = (from..from + 1_000).map(feedback).collect();
    let started = Instant::now();
    for i in 0..FEEDBACKS {
        algorithm.on_feedback(black_box(&feedbacks[(i % 1_000) as usize]));
        black_box(algorithm.decision());
    }
    started.elapsed().as_nanos() as f64 / FEEDBACKS as f64
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let mut over = false;
    println!("ns for a feedback and its decision: median (least) of {ROUNDS} rounds");
    for (native, file, program) in PAIRS {
        let wasm = folder.path().join("program.wasm");
        compile::wasm(&sources.join(file), &wasm).expect("the program builds");
        load_bytes(&std::fs::read(&wasm).expect("it was built"), &Options::default()).expect("it loads");
        let mut algorithms = [made(native), made(program)];
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            for (algorithm, times) in algorithms.iter_mut().zip(&mut times) {
                times.push(measure(algorithm.as_mut(), round as u64 * 1_000));
            }
        }
        assert_eq!(algorithms[1].name(), program, "nothing took its place meanwhile");
        let [a, b] = times.each_mut().map(|t| (median(t), t[0]));
        println!("{native:<8} {:6.1} ({:6.1})   {program:<8} {:6.1} ({:6.1})", a.0, a.1, b.0, b.1);
        over |= a.0 > LIMITS[0] || b.0 > LIMITS[1];
    }
    println!(
        "limits: {} built in, {} as a program: {}",
        LIMITS[0],
        LIMITS[1],
        if over { "exceeded" } else { "kept" }
    );
    if over {
        std::process::exit(1);
    }
}
