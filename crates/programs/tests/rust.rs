//! Tests a program written in Rust against the same interface.

mod common;

use base::{Rate, Span, Time};
use cc::testkit::fluid::{Flow, Link, Source, World};
use cc::{PathInfo, create, registry};
use longhaul_programs::{Options, load_bytes};
use std::path::Path;
use std::process::Command;

#[test]
fn program_written_in_rust_loads_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let wasm = folder.path().join("gain.wasm");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rust/gain.rs");
    let built = Command::new("rustc")
        .args([
            "--target=wasm32-unknown-unknown",
            "--edition=2021",
            "--crate-type=cdylib",
            "-O",
            "-Cpanic=abort",
        ])
        .args(["-Clink-arg=-zstack-size=8192", "-o"])
        .args([&wasm, &source])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&built.stderr);
    if said.contains("can't find crate for `core`") {
        println!("skipped: rustup target add wasm32-unknown-unknown");
        return;
    }
    assert!(built.status.success(), "{said}");
    load_bytes(&std::fs::read(&wasm).unwrap(), &Options::default()).unwrap();
    let link = Link::new(Rate::from_mbit(50), Span::from_millis(40), 1_000, 0.0);
    let (def, params) = registry::parse("gain-rs:gain=150").unwrap();
    let info = PathInfo {
        packet_bytes: link.packet,
        handshake_rtt: Some(link.rtt),
        ecn: false,
        known_rate: None,
        remembered: None,
    };
    let flow = Flow::new(
        create(def.name, &params, &info, base::Rng::from_u64(1)).unwrap(),
        Source::Endless,
        Time::ZERO,
    );
    let mut world = World::new(link.clone(), vec![flow], base::Rng::from_u64(1));
    world.run(Time::ZERO + Span::from_secs(10));
    let flow = &world.flows[0];
    assert_eq!(flow.algorithm.name(), "gain-rs", "nothing took its place");
    let got = flow.delivered_between(Time::ZERO + Span::from_secs(5), Time::ZERO + Span::from_secs(10));
    assert!(got as f64 > 0.8 * link.rate.bytes_in(Span::from_secs(5)) as f64, "{got}");
}
