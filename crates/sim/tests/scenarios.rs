//! Tests individual events of networks, one at a time.

use base::{Span, Time};
use endpoint::{App, Connect, Endpoint, Event, ServerConfig};
use longhaul_sim::pair::{Load, Pair, addr, identity};
use longhaul_sim::{NodeSetup, World};
use netem::{Change, Duplex, LinkConfig, Topology};
use std::sync::Arc;
use transport::TransportOptions;
use transport::crypto::{ClientAuth, Credentials, ServerTrust};

const MS: u64 = 1_000_000;

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * MS)
}

fn link(text: &str) -> LinkConfig {
    LinkConfig::parse(text).expect("a description")
}

fn pair(text: &str, options: TransportOptions, megabytes: u64) -> Pair {
    let load = Load { message: 1_000_000, ahead: 64, messages: Some(megabytes) };
    Pair::new(1, Span::from_micros(20), (link(text), link(text)), options, load).expect("a pair")
}

fn mtu(p: &mut Pair) -> u64 {
    let conn = p.shared.borrow().sender.expect("connected");
    p.world.inspect(p.sender).stats(conn).expect("statistics").mtu
}

#[test]
fn handshake_survives_the_loss_of_any_one_or_two_packets() {
    for forward in 0..5 {
        for reverse in 0..5 {
            let mut p = pair("rate=1gbit delay=5ms", TransportOptions::default(), 1);
            p.world.lose(p.forward, &[forward]);
            p.world.lose(p.reverse, &[reverse]);
            p.run_until(at(9_000)).expect("no failure");
            assert!(p.shared.borrow().finished.is_some(), "lost {forward} forward and {reverse} reverse");
        }
    }
}

/// A black-out of 2.9 s: the client's fifth attempt, at 4.4 s, is the first to arrive. If that one is lost, the next
/// comes 1.6 s later. The flight that answers the server (the seventh packet) is repeated after 0.4 s, not after as
/// long.
#[test]
fn silence_before_the_answer_does_not_lengthen_later_timeouts() {
    for lost in 0..10 {
        let mut dark = link("rate=1gbit delay=20ms");
        dark.schedule.push((Time::ZERO, Change::BlackOut(Span::from_millis(2_900))));
        let load = Load { message: 1_000_000, ahead: 64, messages: Some(1) };
        let options = TransportOptions::default();
        let mut p = Pair::new(1, Span::from_micros(20), (dark.clone(), dark), options, load).expect("a pair");
        p.world.lose(p.forward, &[lost]);
        let until = match lost {
            4 => 6_300,
            6 => 5_100,
            _ => 4_700,
        };
        p.run_until(at(until)).expect("no failure");
        assert!(p.shared.borrow().finished.is_some(), "lost {lost}");
    }
}

#[test]
fn transfer_survives_nat_rebinding() {
    let mut p = pair("rate=100mbit delay=20ms queue=1bdp", TransportOptions::default(), 10);
    p.run_until(at(500)).expect("no failure");
    let before = p.shared.borrow().completed;
    assert!(before < 10 && p.world.rebind(p.sender, addr(77)));
    p.run_until(at(20_000)).expect("no failure");
    assert!(p.shared.borrow().finished.is_some());
}

#[test]
fn transfer_continues_after_a_black_out() {
    let mut dark = link("rate=100mbit delay=20ms queue=1bdp");
    dark.schedule.push((at(300), Change::BlackOut(Span::from_secs(5))));
    let load = Load { message: 1_000_000, ahead: 64, messages: Some(10) };
    let options = TransportOptions::default();
    let mut p = Pair::new(1, Span::from_micros(20), (dark.clone(), dark), options, load).expect("a pair");
    p.run_until(at(5_300)).expect("no failure");
    assert!(p.shared.borrow().finished.is_none());
    p.run_until(at(9_000)).expect("no failure");
    let finished = p.shared.borrow().finished;
    // Probes every second during the black-out, then a round trip, then the rest at the rate of the path.
    assert!(finished.is_some(), "not finished 3.7 s after the light came back");
}

#[test]
fn idle_timeout_closes_the_connection() {
    let mut dark = link("rate=100mbit delay=20ms");
    dark.schedule.push((at(300), Change::BlackOut(Span::from_secs(3_600))));
    let load = Load { message: 1_000_000, ahead: 64, messages: Some(100) };
    let options = TransportOptions { idle_timeout: Span::from_secs(5), ..TransportOptions::default() };
    let mut p = Pair::new(1, Span::from_micros(20), (dark.clone(), dark), options, load).expect("a pair");
    let e = p.run_until(at(60_000)).expect_err("it cannot end well");
    assert!(e.contains("nothing heard"), "{e}");
    assert!(p.world.now() > at(5_000) && p.world.now() < at(7_000), "{:?}", p.world.now());
}

#[test]
fn restarted_receiver_sends_a_stateless_reset_at_once() {
    struct Nothing;
    impl endpoint::App for Nothing {
        fn drive(&mut self, _: Time, _: &mut endpoint::Endpoint) {}
    }
    let mut p = pair("rate=100mbit delay=20ms queue=1bdp", TransportOptions::default(), 1_000);
    p.run_until(at(500)).expect("no failure");
    p.world.reboot(p.receiver, Box::new(Nothing)).expect("the same settings");
    let e = p.run_until(at(700)).expect_err("the receiver has forgotten everything");
    assert!(e.contains("forgotten"), "{e}");
}

#[test]
fn jumbo_frames_are_discovered_and_their_loss_detected() {
    let path = "rate=1gbit delay=5ms queue=1bdp mtu=9000B";
    let mut p = pair(path, TransportOptions::default(), 1_000);
    p.run_until(at(1_000)).expect("no failure");
    assert_eq!(mtu(&mut p), 8_972);
    let mut smaller = p.world.link_config(p.forward);
    smaller.mtu = Some(1_500);
    p.world.set_link(p.forward, smaller);
    p.run_until(at(4_000)).expect("no failure");
    let found = mtu(&mut p);
    assert!((1_440..=1_472).contains(&found), "{found}");
    p.run_until(at(30_000)).expect("no failure");
    assert!(p.shared.borrow().finished.is_some());
}

#[test]
fn keep_alive_holds_an_idle_connection() {
    let options = TransportOptions {
        idle_timeout: Span::from_secs(5),
        keep_alive: Some(Span::from_secs(2)),
        ..TransportOptions::default()
    };
    let mut p = pair("rate=100mbit delay=20ms", options, 1);
    p.run_until(at(3_000)).expect("no failure");
    assert!(p.shared.borrow().finished.is_some());
    p.world.run_until(at(60_000));
    assert_eq!(p.shared.borrow().failure, None);
    let conn = p.shared.borrow().sender.expect("connected");
    assert!(p.world.inspect(p.sender).stats(conn).is_some_and(|s| s.packets_received > 20));
}

/// Connects and closes as soon as the peer is authenticated.
struct CloseOnHandshake(Option<Connect>);

impl App for CloseOnHandshake {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        if let Some(c) = self.0.take() {
            e.connect(now, c).expect("settings");
        }
        while let Some(event) = e.poll_event() {
            if let Event::Connected { conn } = event {
                e.close(now, conn, 1_000, "looked at the key");
            }
        }
    }
}

#[test]
fn client_that_only_reads_the_key_closes_within_two_round_trips() {
    // Once without loss, and with each of the client's packets lost in turn.
    for lost in [None, Some(1), Some(2), Some(3)] {
        let path = Duplex::same(link("rate=1gbit delay=35ms"));
        let t = Topology::path(&[path]);
        let mut world = World::with_topology(1, Span::from_micros(20), &t).expect("a world");
        let (server, client) = (identity(2, world.rng()), identity(1, world.rng()));
        let mut setup = NodeSetup::new(Arc::new(Credentials::RawKey(server)));
        setup.server = Some(ServerConfig { auth: ClientAuth::AnyKey, ..ServerConfig::default() });
        let (left, right) = (t.port("left").expect("a port"), t.port("right").expect("a port"));
        world.add_node_at(right, addr(2), setup, Box::new(CloseOnHandshake(None))).expect("a server");
        let connect = Connect {
            remote: addr(2),
            server_name: "server".into(),
            trust: ServerTrust::FirstUse,
            token: None,
            options: None,
            iwarp: None,
        };
        let setup = NodeSetup::new(Arc::new(Credentials::RawKey(client)));
        let node = world
            .add_node_at(left, addr(1), setup, Box::new(CloseOnHandshake(Some(connect))))
            .expect("a client");
        let forward = t.links().next().expect("a link").0;
        world.lose(forward, &lost.into_iter().collect::<Vec<_>>());
        // One for the handshake, one for the closing, and a repetition after a loss.
        let end = at(if lost.is_some() { 600 } else { 150 });
        world.run_until(end);
        assert!(world.inspect(node).is_quiet(), "lost {lost:?}");
    }
}
