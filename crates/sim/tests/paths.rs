//! Tests one connection over two paths.

use base::{Span, Time};
use longhaul_sim::LinkId;
use longhaul_sim::pair::{Load, Pair};
use netem::{Duplex, LinkConfig};
use std::net::{IpAddr, SocketAddr};
use transport::{AdditionalPath, TransportOptions};

const MEBI: usize = 1 << 20;
/// Payload of 1,500 bytes on the wire.
const PAYLOAD: f64 = 1_433.0 / 1_500.0;

fn path(local: Option<IpAddr>, remote: SocketAddr, backup: bool) -> AdditionalPath {
    AdditionalPath { local, remote, backup }
}

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn duplex(spec: &str) -> Duplex {
    let link: LinkConfig = spec.parse().expect("a link");
    Duplex { forward: link.clone(), reverse: link }
}

/// 300 Mbit/s over 20 ms, where it connects, and 700 Mbit/s over 80 ms, each with a queue of one bandwidth-delay
/// product.
fn pair(seed: u64) -> Pair {
    let paths = [
        duplex("rate=300mbit delay=10ms queue=1bdp(rtt 20ms) mtu=1500B"),
        duplex("rate=700mbit delay=40ms queue=1bdp(rtt 80ms) mtu=1500B"),
    ];
    let load = Load { message: 64 * MEBI, ahead: 4, messages: None };
    Pair::over_two_paths(seed, [&paths[0], &paths[1]], TransportOptions::default(), load).expect("a pair")
}

/// Adds the second path once the connection is up.
fn add(p: &mut Pair, backup: bool) -> u32 {
    p.run_until(at(200)).expect("connected");
    let [here, there] = Pair::second_addresses();
    let (conn, now) = (p.shared.borrow().sender.expect("connected"), p.world.now());
    let sender = p.sender;
    let added = p.world.endpoint(sender).add_path(now, conn, path(Some(here.ip()), there, backup));
    added.expect("a path")
}

fn received(p: &mut Pair) -> u64 {
    let conn = p.shared.borrow().receiver.expect("connected");
    let receiver = p.receiver;
    p.world.inspect(receiver).stats(conn).expect("statistics").payload_received
}

fn lanes(p: &mut Pair) -> u32 {
    let conn = p.shared.borrow().sender.expect("connected");
    let sender = p.sender;
    p.world.inspect(sender).stats(conn).expect("statistics").lanes
}

/// Mbit/s of payload from now until `ms`.
fn goodput(p: &mut Pair, ms: u64) -> f64 {
    let (from, before) = (p.world.now(), received(p));
    p.run_until(at(ms)).expect("all goes well");
    let bytes = received(p) - before;
    bytes as f64 * 8e-6 / p.world.now().since(from).as_secs_f64()
}

fn cut(p: &mut Pair, link: LinkId, loss: &str) {
    let config = p.world.link_config(link);
    let word: LinkConfig = format!("loss={loss}").parse().expect("a loss");
    p.world.set_link(link, LinkConfig { loss: word.loss, ..config });
}

/// The longest time without new data, until `ms`.
fn longest_stall(p: &mut Pair, ms: u64) -> Span {
    let (mut longest, mut last, mut bytes) = (Span::ZERO, p.world.now(), received(p));
    while p.world.now() < at(ms) {
        let next = p.world.now() + Span::from_millis(1);
        p.run_until(next).expect("all goes well");
        let now = received(p);
        if now > bytes {
            (bytes, last) = (now, p.world.now());
        }
        longest = longest.max(p.world.now().since(last));
    }
    longest
}

#[test]
fn large_write_uses_the_sum_of_both_paths() {
    for seed in 0..5 {
        let mut p = pair(seed);
        add(&mut p, false);
        p.run_until(at(2_000)).expect("all goes well");
        assert_eq!(lanes(&mut p), 2);
        let rate = goodput(&mut p, 6_000);
        assert!(rate > 0.9 * 1_000.0 * PAYLOAD && rate < 1_000.0, "seed {seed}: {rate} Mbit/s");
    }
}

#[test]
fn cut_path_loses_no_data_and_recovers() {
    for seed in 0..5 {
        let mut p = pair(seed);
        add(&mut p, false);
        p.run_until(at(3_000)).expect("all goes well");
        let (forward, reverse) = (p.forward, p.reverse);
        cut(&mut p, forward, "100%");
        cut(&mut p, reverse, "100%");
        let stall = longest_stall(&mut p, 3_500);
        // The other path may be paused at this moment, to see whether it shares a bottleneck with this one.
        assert!(stall < Span::from_millis(200), "seed {seed}: nothing for {stall}");
        let alone = goodput(&mut p, 5_000);
        // It also has to repeat data in flight on the first, and may probe its round trip meanwhile.
        assert!(alone > 0.9 * 300.0 * PAYLOAD, "seed {seed}: {alone} Mbit/s on the other");
        assert_eq!(lanes(&mut p), 1);
        cut(&mut p, forward, "0%");
        cut(&mut p, reverse, "0%");
        p.run_until(at(8_000)).expect("all goes well");
        assert_eq!(lanes(&mut p), 2);
        let both = goodput(&mut p, 10_000);
        assert!(both > 0.9 * 1_000.0 * PAYLOAD, "seed {seed}: {both} Mbit/s after it came back");
    }
}

#[test]
fn connection_survives_the_loss_of_its_first_path() {
    let mut p = pair(7);
    add(&mut p, false);
    p.run_until(at(3_000)).expect("all goes well");
    for link in p.first_path {
        cut(&mut p, link, "100%");
    }
    let stall = longest_stall(&mut p, 3_500);
    assert!(stall < Span::from_millis(160), "nothing for {stall}");
    let alone = goodput(&mut p, 40_000);
    assert!(
        alone > 0.95 * 700.0 * PAYLOAD,
        "{alone} Mbit/s on the other, for longer than a peer may be silent"
    );
}

#[test]
fn backup_path_carries_data_only_when_no_other_does() {
    let mut p = pair(3);
    add(&mut p, true);
    p.run_until(at(2_000)).expect("all goes well");
    assert_eq!(lanes(&mut p), 2);
    let rate = goodput(&mut p, 4_000);
    assert!(rate < 300.0 * PAYLOAD * 1.01, "{rate} Mbit/s");
    for link in p.first_path {
        cut(&mut p, link, "100%");
    }
    p.run_until(at(7_000)).expect("all goes well");
    let rate = goodput(&mut p, 9_000);
    assert!(rate > 0.9 * 700.0 * PAYLOAD, "{rate} Mbit/s over the backup");
}

#[test]
fn dead_path_causes_little_traffic() {
    let mut p = pair(8);
    let path = add(&mut p, false);
    p.run_until(at(2_000)).expect("all goes well");
    let (conn, now, sender) = (p.shared.borrow().sender.expect("connected"), p.world.now(), p.sender);
    p.world.endpoint(sender).remove_path(now, conn, path);
    // Silent except for what is still tried on the dead path.
    for link in p.first_path {
        cut(&mut p, link, "100%");
    }
    p.world.run_until(at(4_000));
    let before = p.world.totals().events;
    p.world.run_until(at(5_000));
    let events = p.world.totals().events - before;
    assert!(events < 1_000, "{events} happenings in a second of silence");
}

#[test]
fn number_of_paths_is_limited_and_only_clients_add_them() {
    let mut p = pair(6);
    p.run_until(at(200)).expect("connected");
    let [here, there] = Pair::second_addresses();
    let (now, sender, receiver) = (p.world.now(), p.sender, p.receiver);
    let (conn, other) = {
        let board = p.shared.borrow();
        (board.sender.expect("connected"), board.receiver.expect("connected"))
    };
    let e = p.world.endpoint(receiver).add_path(now, other, path(None, here, false)).expect_err("a server");
    assert!(e.to_string().contains("only the client"), "{e}");
    let added = (0..100)
        .map_while(|_| p.world.endpoint(sender).add_path(now, conn, path(Some(here.ip()), there, false)).ok())
        .collect::<Vec<_>>();
    assert_eq!(added, (1..64).collect::<Vec<_>>());
    let e = p.world.endpoint(sender).add_path(now, conn, path(None, there, false)).expect_err("too many");
    assert!(e.to_string().contains("64 lanes"), "{e}");
    // Sixty-three lanes overload one path, but nothing is lost, and all work.
    p.run_until(at(3_000)).expect("all goes well");
    assert_eq!(lanes(&mut p), 64);
    let rate = goodput(&mut p, 5_000);
    assert!(rate > 0.8 * 1_000.0 * PAYLOAD, "{rate} Mbit/s");
}

#[test]
fn cap_applies_to_all_paths_together() {
    let mut p = pair(5);
    add(&mut p, false);
    p.run_until(at(2_000)).expect("all goes well");
    let (conn, sender) = (p.shared.borrow().sender.expect("connected"), p.sender);
    p.world.endpoint(sender).set_rate_cap(conn, Some(base::Rate::from_mbit(400)));
    p.run_until(at(3_000)).expect("all goes well");
    let rate = goodput(&mut p, 6_000);
    assert!(
        rate > 0.85 * 400.0 * PAYLOAD && rate < 400.0 * PAYLOAD * 1.02,
        "{rate} Mbit/s under a cap of 400"
    );
}

#[test]
fn unreachable_or_removed_path_does_not_disturb_the_others() {
    let mut p = pair(4);
    p.run_until(at(200)).expect("connected");
    let [here, _] = Pair::second_addresses();
    let (conn, now, sender) = (p.shared.borrow().sender.expect("connected"), p.world.now(), p.sender);
    // There is no route from there to the first address.
    let nowhere = longhaul_sim::pair::addr(2);
    p.world.endpoint(sender).add_path(now, conn, path(Some(here.ip()), nowhere, false)).expect("asked for");
    let rate = goodput(&mut p, 3_000);
    assert!(rate > 0.9 * 300.0 * PAYLOAD, "{rate} Mbit/s");
    assert_eq!(lanes(&mut p), 1);
    let [here, there] = Pair::second_addresses();
    let now = p.world.now();
    let path =
        p.world.endpoint(sender).add_path(now, conn, path(Some(here.ip()), there, false)).expect("a path");
    p.run_until(at(5_000)).expect("all goes well");
    assert_eq!((path, lanes(&mut p)), (2, 2));
    let now = p.world.now();
    p.world.endpoint(sender).remove_path(now, conn, path);
    p.run_until(at(6_000)).expect("all goes well");
    assert_eq!(lanes(&mut p), 1);
    let rate = goodput(&mut p, 8_000);
    assert!(rate > 0.95 * 300.0 * PAYLOAD && rate < 300.0, "{rate} Mbit/s");
}

/// A path that delivers a hundredth, whether slow or lossy, must not delay data on the other.
#[test]
fn path_with_a_hundredth_of_the_rate_does_not_slow_the_other() {
    for second in [
        "rate=3mbit delay=40ms queue=1bdp(rtt 80ms) mtu=1500B",
        "rate=3mbit delay=10ms queue=64KiB mtu=1500B",
        "rate=300mbit delay=40ms queue=1bdp(rtt 80ms) mtu=1500B loss=99%",
    ] {
        for seed in 0..3 {
            let paths = [duplex("rate=300mbit delay=10ms queue=1bdp(rtt 20ms) mtu=1500B"), duplex(second)];
            // Short messages, so that their ends matter, with few in progress.
            let load = Load { message: MEBI, ahead: 4, messages: None };
            let options = TransportOptions::default();
            let alone = {
                let mut p = Pair::over_two_paths(seed, [&paths[0], &paths[1]], options.clone(), load)
                    .expect("a pair");
                p.run_until(at(2_000)).expect("all goes well");
                goodput(&mut p, 6_000)
            };
            let mut p = Pair::over_two_paths(seed, [&paths[0], &paths[1]], options, load).expect("a pair");
            add(&mut p, false);
            p.run_until(at(2_000)).expect("all goes well");
            let before = completed(&p);
            let both = goodput(&mut p, 6_000);
            // With four mebibytes in progress, a tenth of a second at this rate, the slow path's round trip has a
            // small effect, and so have pauses that detect a shared bottleneck.
            assert!(both > 0.85 * alone, "{second}, seed {seed}: {both} Mbit/s, alone {alone}");
            // Only data complete in order counts, without head-of-line blocking.
            let whole = (completed(&p) - before) as f64 * MEBI as f64 * 8e-6 / 4.0;
            assert!(whole > 0.8 * alone, "{second}, seed {seed}: {whole} Mbit/s complete, alone {alone}");
        }
    }
}

fn completed(p: &Pair) -> u64 {
    p.shared.borrow().completed
}

/// A router reduces its MTU without notice.
#[test]
fn mtu_black_hole_is_survived_with_smaller_packets() {
    for seed in 0..3 {
        let path = duplex("rate=100mbit delay=40ms queue=1bdp(rtt 80ms) mtu=9000B");
        let load = Load { message: MEBI, ahead: 16, messages: None };
        let options = TransportOptions { max_packet: 9_000, ..TransportOptions::default() };
        let mut p = Pair::over_two_paths(seed, [&path, &path], options, load).expect("a pair");
        p.run_until(at(3_000)).expect("connected");
        let before = goodput(&mut p, 4_000);
        assert!(before > 90.0, "seed {seed}: {before} Mbit/s");
        for link in p.first_path {
            let config = p.world.link_config(link);
            p.world.set_link(link, LinkConfig { mtu: Some(1_400), ..config });
        }
        let stall = longest_stall(&mut p, 8_000);
        assert!(stall < Span::from_millis(3_000), "seed {seed}: nothing for {stall}");
        let after = goodput(&mut p, 12_000);
        assert!(after > 0.9 * 100.0 * (1_400.0 - 28.0 - 39.0) / 1_400.0, "seed {seed}: {after} Mbit/s");
    }
}
