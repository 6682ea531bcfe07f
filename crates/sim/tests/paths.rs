//! One connection over two paths.

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
    Duplex { there: link.clone(), back: link }
}

/// 300 Mbit/s over 20 ms, where it connects, and 700 Mbit/s over 80 ms, each with a product of queue.
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
    let [here, there] = Pair::second();
    let (conn, now) = (p.board.borrow().sender.expect("connected"), p.world.now());
    let sender = p.sender;
    let added = p.world.endpoint(sender).add_path(now, conn, path(Some(here.ip()), there, backup));
    added.expect("a path")
}

fn received(p: &mut Pair) -> u64 {
    let conn = p.board.borrow().receiver.expect("connected");
    let receiver = p.receiver;
    p.world.inspect(receiver).stats(conn).expect("statistics").payload_received
}

fn lanes(p: &mut Pair) -> u32 {
    let conn = p.board.borrow().sender.expect("connected");
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

/// The longest time without anything new, until `ms`.
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
fn one_large_write_takes_the_sum_of_both_paths() {
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
fn a_path_that_is_cut_loses_nothing_and_comes_back() {
    for seed in 0..5 {
        let mut p = pair(seed);
        add(&mut p, false);
        p.run_until(at(3_000)).expect("all goes well");
        let (there, back) = (p.there, p.back);
        cut(&mut p, there, "100%");
        cut(&mut p, back, "100%");
        let stall = longest_stall(&mut p, 3_500);
        // The other path may just be paused, to see whether it shares a bottleneck with this one.
        assert!(stall < Span::from_millis(200), "seed {seed}: nothing for {stall}");
        let alone = goodput(&mut p, 5_000);
        // It also has to repeat what was on the way over the first, and may sound its queue meanwhile.
        assert!(alone > 0.9 * 300.0 * PAYLOAD, "seed {seed}: {alone} Mbit/s on the other");
        assert_eq!(lanes(&mut p), 1);
        cut(&mut p, there, "0%");
        cut(&mut p, back, "0%");
        p.run_until(at(8_000)).expect("all goes well");
        assert_eq!(lanes(&mut p), 2);
        let both = goodput(&mut p, 10_000);
        assert!(both > 0.9 * 1_000.0 * PAYLOAD, "seed {seed}: {both} Mbit/s after it came back");
    }
}

#[test]
fn the_path_it_connected_over_may_die_as_well() {
    let mut p = pair(7);
    add(&mut p, false);
    p.run_until(at(3_000)).expect("all goes well");
    for link in p.first {
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
fn a_backup_carries_data_only_when_nothing_else_does() {
    let mut p = pair(3);
    add(&mut p, true);
    p.run_until(at(2_000)).expect("all goes well");
    assert_eq!(lanes(&mut p), 2);
    let rate = goodput(&mut p, 4_000);
    assert!(rate < 300.0 * PAYLOAD * 1.01, "{rate} Mbit/s");
    for link in p.first {
        cut(&mut p, link, "100%");
    }
    p.run_until(at(7_000)).expect("all goes well");
    let rate = goodput(&mut p, 9_000);
    assert!(rate > 0.9 * 700.0 * PAYLOAD, "{rate} Mbit/s over the backup");
}

#[test]
fn a_path_that_is_gone_keeps_nobody_busy() {
    let mut p = pair(8);
    let path = add(&mut p, false);
    p.run_until(at(2_000)).expect("all goes well");
    let (conn, now, sender) = (p.board.borrow().sender.expect("connected"), p.world.now(), p.sender);
    p.world.endpoint(sender).remove_path(now, conn, path);
    // In silence, but for what is still tried on the path that was cut.
    for link in p.first {
        cut(&mut p, link, "100%");
    }
    p.world.run_until(at(4_000));
    let before = p.world.totals().events;
    p.world.run_until(at(5_000));
    let events = p.world.totals().events - before;
    assert!(events < 1_000, "{events} happenings in a second of silence");
}

#[test]
fn paths_are_limited_and_only_clients_add_them() {
    let mut p = pair(6);
    p.run_until(at(200)).expect("connected");
    let [here, there] = Pair::second();
    let (now, sender, receiver) = (p.world.now(), p.sender, p.receiver);
    let (conn, other) = {
        let board = p.board.borrow();
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
    // Sixty-three lanes over one path are unkind to it, but nothing is lost, and all work.
    p.run_until(at(3_000)).expect("all goes well");
    assert_eq!(lanes(&mut p), 64);
    let rate = goodput(&mut p, 5_000);
    assert!(rate > 0.8 * 1_000.0 * PAYLOAD, "{rate} Mbit/s");
}

#[test]
fn all_paths_together_keep_the_cap() {
    let mut p = pair(5);
    add(&mut p, false);
    p.run_until(at(2_000)).expect("all goes well");
    let (conn, sender) = (p.board.borrow().sender.expect("connected"), p.sender);
    p.world.endpoint(sender).set_rate_cap(conn, Some(base::Rate::from_mbit(400)));
    p.run_until(at(3_000)).expect("all goes well");
    let rate = goodput(&mut p, 6_000);
    assert!(
        rate > 0.85 * 400.0 * PAYLOAD && rate < 400.0 * PAYLOAD * 1.02,
        "{rate} Mbit/s under a cap of 400"
    );
}

#[test]
fn a_path_that_leads_nowhere_or_is_removed_does_no_harm() {
    let mut p = pair(4);
    p.run_until(at(200)).expect("connected");
    let [here, _] = Pair::second();
    let (conn, now, sender) = (p.board.borrow().sender.expect("connected"), p.world.now(), p.sender);
    // No route from there to the first address.
    let nowhere = longhaul_sim::pair::addr(2);
    p.world.endpoint(sender).add_path(now, conn, path(Some(here.ip()), nowhere, false)).expect("asked for");
    let rate = goodput(&mut p, 3_000);
    assert!(rate > 0.9 * 300.0 * PAYLOAD, "{rate} Mbit/s");
    assert_eq!(lanes(&mut p), 1);
    let [here, there] = Pair::second();
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

/// Of a path that delivers a hundredth, be it slow or lossy, nobody waits for what went over it.
#[test]
fn a_path_that_delivers_a_hundredth_costs_the_other_nothing() {
    for second in [
        "rate=3mbit delay=40ms queue=1bdp(rtt 80ms) mtu=1500B",
        "rate=3mbit delay=10ms queue=64KiB mtu=1500B",
        "rate=300mbit delay=40ms queue=1bdp(rtt 80ms) mtu=1500B loss=99%",
    ] {
        for seed in 0..3 {
            let paths = [duplex("rate=300mbit delay=10ms queue=1bdp(rtt 20ms) mtu=1500B"), duplex(second)];
            // Messages are short, so that their ends matter, and few are under way.
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
            // With four mebibytes under way, a tenth of a second at this rate, the slow path's round trip is felt a little,
            // and so are pauses by which it is found out whether both share a bottleneck.
            assert!(both > 0.85 * alone, "{second}, seed {seed}: {both} Mbit/s, alone {alone}");
            // What is complete in order counts: nothing waits at the head of the line.
            let whole = (completed(&p) - before) as f64 * MEBI as f64 * 8e-6 / 4.0;
            assert!(whole > 0.8 * alone, "{second}, seed {seed}: {whole} Mbit/s complete, alone {alone}");
        }
    }
}

fn completed(p: &Pair) -> u64 {
    p.board.borrow().completed
}

/// A router in the middle takes smaller packets than before, and tells nobody.
#[test]
fn a_path_that_turns_into_a_black_hole_for_large_packets_goes_on_with_small_ones() {
    for seed in 0..3 {
        let path = duplex("rate=100mbit delay=40ms queue=1bdp(rtt 80ms) mtu=9000B");
        let load = Load { message: MEBI, ahead: 16, messages: None };
        let options = TransportOptions { max_packet: 9_000, ..TransportOptions::default() };
        let mut p = Pair::over_two_paths(seed, [&path, &path], options, load).expect("a pair");
        p.run_until(at(3_000)).expect("connected");
        let before = goodput(&mut p, 4_000);
        assert!(before > 90.0, "seed {seed}: {before} Mbit/s");
        for link in p.first {
            let config = p.world.link_config(link);
            p.world.set_link(link, LinkConfig { mtu: Some(1_400), ..config });
        }
        let stall = longest_stall(&mut p, 8_000);
        assert!(stall < Span::from_millis(3_000), "seed {seed}: nothing for {stall}");
        let after = goodput(&mut p, 12_000);
        assert!(after > 0.9 * 100.0 * (1_400.0 - 28.0 - 39.0) / 1_400.0, "seed {seed}: {after} Mbit/s");
    }
}
