//! Tests the choice of the path for data.

use base::{Span, Time};
use longhaul_sim::pair::{Load, Pair};
use netem::{Duplex, LinkConfig};
use std::net::{IpAddr, SocketAddr};
use transport::{AdditionalPath, LaneChoice, TransportOptions};

fn path(local: Option<IpAddr>, remote: SocketAddr, backup: bool) -> AdditionalPath {
    AdditionalPath { local, remote, backup }
}

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

/// A pair over two paths, the second one added at 300 ms.
fn pair(seed: u64, paths: [&str; 2], choice: LaneChoice, load: Load) -> Pair {
    let paths = paths.map(|text| Duplex::same(LinkConfig::parse(text).expect("a link")));
    let options = TransportOptions { lane_choice: choice, ..TransportOptions::default() };
    let mut p = Pair::over_two_paths(seed, [&paths[0], &paths[1]], options, load).expect("a pair");
    p.run_until(at(300)).expect("connected");
    let [here, there] = Pair::second_addresses();
    let (conn, now, sender) = (p.shared.borrow().sender.expect("connected"), p.world.now(), p.sender);
    p.world.endpoint(sender).add_path(now, conn, path(Some(here.ip()), there, false)).expect("a path");
    p
}

const FAST: &str = "rate=100mbit delay=5ms queue=1bdp(rtt 10ms) mtu=1500B";
const SLOW: &str = "rate=100mbit delay=50ms queue=1bdp(rtt 100ms) mtu=1500B";

#[test]
fn small_messages_use_the_fast_path() {
    let load = Load { message: 64, ahead: 1, messages: None };
    for choice in [LaneChoice::Aggregate, LaneChoice::Latency, LaneChoice::Backup] {
        // Whether it existed first or was added later.
        for paths in [[FAST, SLOW], [SLOW, FAST]] {
            let mut p = pair(1, paths, choice, load);
            p.run_until(at(2_000)).expect("all goes well");
            let before = p.shared.borrow().completed;
            p.run_until(at(7_000)).expect("all goes well");
            let messages = p.shared.borrow().completed - before;
            let round = 5_000.0 / messages as f64;
            assert!(round < 10.0 * 1.1, "{choice:?}: {round} ms");
        }
    }
}

/// Seconds for this many messages of a size, one after another, over 20 ms and 80 ms.
fn time(seed: u64, choice: LaneChoice, message: usize, messages: u64) -> f64 {
    let paths = [
        "rate=100mbit delay=10ms queue=1bdp(rtt 20ms) mtu=1500B",
        "rate=100mbit delay=40ms queue=1bdp(rtt 80ms) mtu=1500B",
    ];
    let mut p = pair(seed, paths, choice, Load { message, ahead: 1, messages: Some(messages) });
    p.run_until(at(120_000)).expect("all goes well");
    let b = p.shared.borrow();
    let started = b.started.expect("it began");
    b.finished.expect("it ended").since(started).as_secs_f64()
}

#[test]
fn end_of_a_message_does_not_wait_for_the_slow_path() {
    for (message, messages, most) in [(32 << 20, 4, 6.9), (1 << 20, 40, 5.4), (64 << 10, 200, 9.0)] {
        for choice in [LaneChoice::Aggregate, LaneChoice::Latency] {
            let mut all: Vec<f64> = (0..5).map(|seed| time(seed, choice, message, messages)).collect();
            all.sort_by(f64::total_cmp);
            println!("{choice:?}, {messages} of {message}: {all:.2?} s");
            assert!(all[2] < most, "{choice:?}, {messages} of {message}: {} s", all[2]);
        }
    }
}
