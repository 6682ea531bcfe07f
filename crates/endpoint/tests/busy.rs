//! Refusals by a full server, and forged refusals.

mod pair;

use base::Span;
use longhaul_endpoint::{CloseReason, Event};
use pair::{InFlight, Pair, config, server_config};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use transport::Connection;
use wire::packet::{Clear, flag};
use wire::{Cid, LongHeader};

/// A pair whose server has room for one connection.
fn small() -> Pair {
    let mut s = server_config(&[2]);
    s.server.as_mut().expect("server").max_connections = 1;
    Pair::with(config(2), s)
}

fn closed(p: &mut Pair) -> Option<CloseReason> {
    p.client_events().into_iter().find_map(|e| match e {
        Event::Closed { reason, .. } => Some(reason),
        _ => None,
    })
}

fn long_header(bytes: &[u8]) -> LongHeader<'_> {
    match Clear::parse(bytes) {
        Ok(Clear::Long(h)) => h,
        other => panic!("{other:?}"),
    }
}

#[test]
fn full_server_refuses_within_a_round_trip_and_keeps_no_state() {
    let mut p = small();
    let (first, s) = p.connected();
    (p.sent, p.bytes) = ([0; 2], [0; 2]);
    let start = p.now;
    p.connect();
    p.run(pair::DELAY * 2);
    let reason = closed(&mut p).expect("told");
    assert!(matches!(&reason, CloseReason::Busy { words, .. } if words == "1 connections"), "{reason:?}");
    assert!(reason.to_string().contains("try again later"), "{reason}");
    assert!(p.now.since(start) <= pair::DELAY * 2);
    // One answer of at most a third of what it answers, and no state.
    assert_eq!(p.sent, [1, 1]);
    assert!(p.bytes[0] <= p.bytes[1] / 3, "{:?}", p.bytes);
    assert_eq!(p.server.connections().count(), 1);
    // Once there is room, the next is taken in.
    p.client.close(p.now, first, 0, "");
    p.run(Span::from_secs(1));
    p.server_events();
    p.server.release(s).expect("released");
    p.connected();
}

#[test]
fn refusals_are_rate_limited() {
    let mut p = small();
    p.connected();
    let first = Rc::new(RefCell::new(None));
    let copy = first.clone();
    p.filter = Box::new(move |f| {
        if f.to_server && f.bytes[0] & flag::LONG != 0 {
            copy.borrow_mut().get_or_insert(f.clone());
        }
        true
    });
    p.connect();
    p.run(Span::from_millis(50));
    p.filter = Box::new(|f| f.to_server);
    let f: InFlight = first.borrow().clone().expect("a first packet");
    p.sent = [0; 2];
    for _ in 0..5_000 {
        p.deliver(f.clone());
        p.step(p.now);
    }
    assert!((900..=1_000).contains(&p.sent[0]), "{}", p.sent[0]);
}

#[test]
fn refusal_is_ignored_unless_its_sender_saw_the_first_packet() {
    let mut p = Pair::new();
    let seen = Rc::new(RefCell::new(None));
    let copy = seen.clone();
    // The first packet is lost, so that a forger may come first.
    p.filter = Box::new(move |f| {
        if f.to_server {
            copy.borrow_mut().get_or_insert(f.clone());
        }
        false
    });
    let conn = p.connect();
    p.run(Span::from_millis(5));
    let first: InFlight = seen.borrow().clone().expect("a first packet");
    let h = long_header(&first.bytes);
    let (at, from) = (p.now, p.server_addr);
    let forge = |dcid: &[u8], scid: &[u8], server: Cid| {
        let h = LongHeader { dcid, scid, ..h.clone() };
        let mut b = vec![0; 400];
        let n = Connection::refuse(&h, server, "no room for you", &mut b).expect("written");
        b.truncate(n);
        InFlight { at, from, to_server: false, bytes: b }
    };
    // From off the path: the keys' identifier, or the client's, is guessed wrongly.
    let wrong_keys = forge(&[0; 8], h.scid, Cid(9));
    let wrong_client = forge(h.dcid, &[1, 2, 3, 4], Cid(9));
    for f in [wrong_keys, wrong_client] {
        p.deliver(f);
        p.run(Span::from_millis(5));
        assert_eq!(closed(&mut p), None);
    }
    let server = Rc::new(Cell::new(Cid(0)));
    let copy = server.clone();
    p.filter = Box::new(move |f| {
        if !f.to_server && f.bytes[0] & flag::LONG != 0 {
            let scid = long_header(&f.bytes).scid.try_into().expect("four bytes");
            copy.set(Cid(u32::from_be_bytes(scid)));
        }
        true
    });
    p.run(Span::from_secs(2));
    assert!(p.client_events().contains(&Event::Connected { conn }));
    // With data keys, Initial packets have nothing to say, not even from someone on the path who knows everything that
    // is in clear.
    p.deliver(forge(h.dcid, h.scid, server.get()));
    p.run(Span::from_secs(1));
    assert_eq!(closed(&mut p), None);
    assert!(p.client.connection(conn).is_some());
}

#[test]
fn refusal_text_is_escaped_for_terminals() {
    let mut p = small();
    p.connected();
    let seen = Rc::new(RefCell::new(None));
    let copy = seen.clone();
    p.filter = Box::new(move |f| {
        copy.borrow_mut().get_or_insert(f.clone());
        false
    });
    p.connect();
    p.run(Span::from_millis(5));
    let first: InFlight = seen.borrow().clone().expect("a first packet");
    let mut b = vec![0; 400];
    let n = Connection::refuse(&long_header(&first.bytes), Cid(9), "\x1b[2Jgone", &mut b).expect("written");
    b.truncate(n);
    p.deliver(InFlight { at: p.now, from: p.server_addr, to_server: false, bytes: b });
    let why = closed(&mut p).expect("told").to_string();
    assert!(why.contains("[2Jgone") && !why.contains('\x1b'), "{why}");
}
