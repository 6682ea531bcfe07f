//! Incomplete handshakes: bounded, separate from connections, and evicted oldest first.

mod pair;

use base::{Rng, Span};
use longhaul_endpoint::{Endpoint, Event};
use pair::{InFlight, Pair, closed, config, server_config};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use wire::packet::flag;

/// A pair whose server has room for so many connections and so many handshakes.
fn pair(connections: usize, half_open: usize) -> Pair {
    let mut s = server_config(&[2]);
    let server = s.server.as_mut().expect("server");
    (server.max_connections, server.max_half_open) = (connections, half_open);
    Pair::with(config(2), s)
}

/// First packets of clients that then say nothing more.
fn firsts(p: &mut Pair, n: usize) -> Vec<InFlight> {
    let seen = Rc::new(RefCell::new(Vec::new()));
    let copy = seen.clone();
    p.filter = Box::new(move |f| {
        if f.to_server && f.bytes[0] & flag::LONG != 0 {
            copy.borrow_mut().push(f.clone());
        }
        false
    });
    let seed = p.now.as_nanos();
    let mut others = Endpoint::new(config(2), Rng::from_u64(seed)).expect("clients");
    core::mem::swap(&mut p.client, &mut others);
    for _ in 0..n {
        p.connect();
    }
    p.run(Span::from_millis(1));
    core::mem::swap(&mut p.client, &mut others);
    p.calm();
    let all = seen.borrow().clone();
    assert_eq!(all.len(), n);
    all
}

/// They arrive from addresses of a network, and nobody there answers.
fn flood(p: &mut Pair, firsts: &[InFlight], from: impl Fn(usize) -> SocketAddr) {
    for (n, f) in firsts.iter().enumerate() {
        p.deliver(InFlight { from: from(n), ..f.clone() });
        p.step(p.now);
    }
}

fn attacker(n: usize) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 1], 2_000 + n as u16))
}

#[test]
fn half_open_handshakes_do_not_count_as_connections() {
    let mut p = pair(1, 64);
    let all = firsts(&mut p, 64);
    flood(&mut p, &all, attacker);
    assert_eq!(p.server.connections().count(), 64);
    p.connected();
}

#[test]
fn handshake_flood_from_one_address_does_not_block_others() {
    let mut p = pair(1_000, 16);
    let all = firsts(&mut p, 40);
    flood(&mut p, &all, attacker);
    // Of its own the newest wait, and the oldest stay while they may yet be completed.
    assert_eq!(p.server.connections().count(), 16);
    let (_, s) = p.connected();
    assert_eq!(p.server.connections().count(), 16, "one gave way");
    // It goes on for as long as it likes: a connection is no handshake.
    p.run(Span::from_secs(4));
    let more = firsts(&mut p, 16);
    flood(&mut p, &more, attacker);
    assert!(p.server.connections().count() <= 17);
    assert!(p.server.connection(s).is_some());
    assert_eq!(closed(&p.server_events()), None);
    p.connected();
}

#[test]
fn oldest_handshakes_of_many_addresses_are_evicted() {
    let mut p = pair(1_000, 16);
    let all = firsts(&mut p, 40);
    flood(&mut p, &all, |n| SocketAddr::from(([198, 51, 100, n as u8], 2_000)));
    assert_eq!(p.server.connections().count(), 16);
    p.connected();
    // What is given up leaves nothing: all others end by themselves, and every protection domain is free.
    p.run(Span::from_secs(60));
    assert_eq!(p.server.connections().count(), 1);
}

#[test]
fn one_of_two_handshakes_gets_the_last_connection_and_the_other_is_refused() {
    let mut p = pair(1, 16);
    let both = [p.connect(), p.connect()];
    p.run(Span::from_secs(1));
    let incoming = p.server_events().into_iter().filter(|e| matches!(e, Event::Incoming { .. })).count();
    assert_eq!(incoming, 1);
    let events = p.client_events();
    assert!(closed(&events).is_some_and(|w| w.contains("full (1 connections)")), "{events:?}");
    assert!(both.iter().filter(|c| p.client.connection(**c).is_some()).count() >= 1);
}
