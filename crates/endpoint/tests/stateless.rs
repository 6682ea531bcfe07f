//! Answers to packets of unknown connections: no oracle that helps to end another's connection.

mod pair;

use base::{Ecn, Rng, Span, Time};
use longhaul_endpoint::{CloseReason, Config, DatagramInfo, Endpoint, Event, MAX_TRAIN};
use pair::{InFlight, Pair, closed, config, identity, server_config};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use transport::crypto::{Credentials, KeyPair, Side};
use wire::LongType;
use wire::packet::{Clear, LONG_TAG, MIN_INITIAL, flag, put_long};

/// Gives an endpoint one datagram, and what it answers.
fn ask(e: &mut Endpoint, now: Time, from: SocketAddr, bytes: &[u8]) -> Vec<Vec<u8>> {
    let meta = DatagramInfo { remote: from, local: None, ecn: Ecn::NotEct, waited: Span::ZERO };
    e.handle_train(now, meta, &mut bytes.to_vec(), bytes.len());
    let mut buf = vec![0; MAX_TRAIN];
    core::iter::from_fn(|| e.poll_transmit(now, &mut buf).map(|t| buf[..t.len].to_vec())).collect()
}

/// Keeps the newest packet with data keys that the client and the server sent.
fn listen(p: &mut Pair) -> Rc<RefCell<[Vec<u8>; 2]>> {
    let seen = Rc::new(RefCell::new([Vec::new(), Vec::new()]));
    let copy = seen.clone();
    p.filter = Box::new(move |f| {
        if f.bytes[0] & flag::LONG == 0 {
            copy.borrow_mut()[usize::from(f.to_server)].clone_from(&f.bytes);
        }
        true
    });
    seen
}

/// The attack: what a packet of the connection to `p.server` makes `other` answer is given to the client.
fn relay(p: &mut Pair, other: Config) -> Option<CloseReason> {
    let seen = listen(p);
    let (c, _) = p.connected();
    p.run(Span::from_secs(12));
    let mut packet = seen.borrow()[1].clone();
    assert!(packet.len() >= 22, "a keep-alive at least");
    packet.resize(200, 0);
    let mut other = Endpoint::new(other, Rng::from_u64(9)).expect("another server");
    let attacker = "198.51.100.66:6".parse().expect("address");
    let answers = ask(&mut other, p.now, attacker, &packet);
    assert_eq!(answers.len(), 1, "a stateless reset");
    for bytes in answers {
        p.deliver(InFlight { at: p.now, from: p.server_addr, to_server: false, bytes });
    }
    p.run(Span::from_secs(60));
    p.client_events().into_iter().find_map(|e| match e {
        Event::Closed { conn, reason } if conn == c => Some(reason),
        _ => None,
    })
}

#[test]
fn reset_by_another_server_with_the_same_key_is_ignored() {
    // Only who has the secret can end it: the same server, started again.
    assert_eq!(relay(&mut Pair::new(), server_config(&[2])), Some(CloseReason::Reset));
    // One key, and a secret of its own.
    let other = Config { static_secret: [77; 32], ..server_config(&[2]) };
    assert_eq!(relay(&mut Pair::new(), other), None);
}

#[test]
fn endpoints_without_a_secret_use_random_ones() {
    let bare = || Config { static_secret: [0; 32], ..server_config(&[2]) };
    assert_eq!(relay(&mut Pair::with(config(2), bare()), bare()), None);
    // Neither does a client's other connection, or another client with its key, help against the server.
    let credentials = || Arc::new(Credentials::RawKey(identity(2)));
    let mut p = Pair::with(Config::client(credentials()), server_config(&[2]));
    let seen = listen(&mut p);
    p.connected();
    let mut other = Endpoint::new(Config::client(credentials()), Rng::from_u64(9)).expect("another client");
    let mut packet = seen.borrow()[0].clone();
    packet.resize(200, 0);
    let from = p.client_addr;
    for bytes in ask(&mut other, p.now, p.server_addr, &packet) {
        p.deliver(InFlight { at: p.now, from, to_server: true, bytes });
    }
    p.run(Span::from_secs(60));
    assert_eq!((closed(&p.server_events()), closed(&p.client_events())), (None, None));
}

#[test]
fn retry_token_is_valid_only_at_its_issuer() {
    let careful = || {
        let mut s = server_config(&[2]);
        s.server.as_mut().expect("server").retry_above = 0;
        s
    };
    let mut p = Pair::with(config(2), careful());
    let with_token = Rc::new(RefCell::new(Vec::new()));
    let copy = with_token.clone();
    let mut firsts = 0;
    // The second first packet carries the token; it is kept from the server.
    p.filter = Box::new(move |f| {
        let first = f.to_server && f.bytes[0] & flag::LONG != 0;
        firsts += usize::from(first);
        if let (2, Ok(Clear::Long(h))) = (firsts, Clear::parse(&f.bytes)) {
            assert!(h.kind == LongType::Initial && !h.token.is_empty(), "{h:?}");
        }
        if first && firsts > 1 {
            copy.borrow_mut().clone_from(&f.bytes);
        }
        !first || firsts == 1
    });
    p.connect();
    p.run(Span::from_millis(100));
    let packet = with_token.borrow().clone();
    // Of the same settings and secrets, as a second server of one host would be.
    let mut other = Endpoint::new(careful(), Rng::from_u64(9)).expect("another server");
    assert_eq!(ask(&mut other, p.now, p.client_addr, &packet), Vec::<Vec<u8>>::new());
    assert_eq!(other.connections().count(), 0);
    assert!(!ask(&mut p.server, p.now, p.client_addr, &packet).is_empty());
    assert_eq!(p.server.connections().count(), 1);
}

#[test]
fn resets_between_two_forgetful_ends_terminate() {
    for longest in [34, 60, 1_400] {
        let (mut a, mut b) = (
            Endpoint::new(server_config(&[2]), Rng::from_u64(1)).expect("server"),
            Endpoint::new(config(2), Rng::from_u64(2)).expect("client"),
        );
        let (now, at) = (Time::from_nanos(5), "192.0.2.1:1".parse().expect("address"));
        let mut packet = vec![0x41; longest];
        let mut answers = 0;
        while let [next] = &ask(if answers % 2 == 0 { &mut a } else { &mut b }, now, at, &packet)[..] {
            assert!(next.len() < packet.len(), "{} after {}", next.len(), packet.len());
            packet.clone_from(next);
            answers += 1;
        }
        assert!((1..=16).contains(&answers), "{answers} answers to {longest} bytes");
    }
}

#[test]
fn short_packets_get_no_answer() {
    let mut e = Endpoint::new(server_config(&[2]), Rng::from_u64(1)).expect("server");
    let at = "192.0.2.1:1".parse().expect("address");
    for n in 0..34 {
        assert!(ask(&mut e, Time::from_nanos(5), at, &vec![0x41; n]).is_empty(), "{n} bytes");
    }
}

/// How many of 5,000 datagrams within a second are answered, and of one a second later.
fn answered(bytes: &[u8]) -> (usize, usize) {
    let mut e = Endpoint::new(server_config(&[2]), Rng::from_u64(1)).expect("server");
    let at = "192.0.2.1:1".parse().expect("address");
    let now = |n: u64| Time::from_nanos(7_000_000_000 + n * 100_000);
    let many = (0..5_000).map(|n| ask(&mut e, now(n), at, bytes).len()).sum();
    (many, ask(&mut e, now(10_000), at, bytes).len())
}

#[test]
fn stateless_answers_are_rate_limited() {
    assert_eq!(answered(&[0x41; 100]), (1_000, 1));
    // Of another version, as long as a first packet.
    let mut unknown = vec![0; MIN_INITIAL];
    unknown[..6].copy_from_slice(&[0xc0, 9, 9, 9, 9, 8]);
    assert_eq!(answered(&unknown), (1_000, 1));
    unknown.truncate(MIN_INITIAL - 1);
    assert_eq!(answered(&unknown), (0, 0));
}

#[test]
fn unsent_answers_are_bounded() {
    let mut e = Endpoint::new(server_config(&[2]), Rng::from_u64(1)).expect("server");
    let remote = "192.0.2.1:1".parse().expect("address");
    let meta = DatagramInfo { remote, local: None, ecn: Ecn::NotEct, waited: Span::ZERO };
    for _ in 0..900 {
        e.handle_train(Time::from_nanos(5), meta, &mut [0x41; 100], 100);
    }
    let waiting = e.own_usage()[1].1;
    assert_eq!((waiting.used, waiting.limit), (256, 256));
    let mut buf = vec![0; MAX_TRAIN];
    let sent = core::iter::from_fn(|| {
        let t = e.poll_transmit(Time::from_nanos(5), &mut buf)?;
        assert_eq!((t.remote, t.segment, buf[0] & flag::LONG), (remote, t.len, 0), "as a short packet");
        Some(())
    });
    assert_eq!(sent.count(), 256);
    assert_eq!(e.own_usage()[1].1.used, 0);
}

#[test]
fn client_endpoint_ignores_initial_packets_and_other_versions() {
    let mut client = Endpoint::new(config(2), Rng::from_u64(1)).expect("client");
    let at = "192.0.2.1:1".parse().expect("address");
    let mut unknown = vec![0; MIN_INITIAL];
    unknown[..6].copy_from_slice(&[0xc0, 9, 9, 9, 9, 8]);
    assert!(ask(&mut client, Time::from_nanos(5), at, &unknown).is_empty());
    let mut p = Pair::new();
    let first = Rc::new(RefCell::new(Vec::new()));
    let copy = first.clone();
    p.filter = Box::new(move |f| {
        copy.borrow_mut().clone_from(&f.bytes);
        false
    });
    p.connect();
    p.run(Span::from_millis(1));
    assert!(ask(&mut client, Time::from_nanos(5), at, &first.borrow()).is_empty());
    assert_eq!(client.connections().count(), 0);
    let mut server = Endpoint::new(server_config(&[2]), Rng::from_u64(1)).expect("server");
    assert!(!ask(&mut server, Time::from_nanos(5), at, &first.borrow()).is_empty(), "a server does");
}

/// A first packet with other identifiers and another length than its model, sealed as a client would.
fn first_packet(model: &[u8], dcid: &[u8], scid: &[u8], len: usize) -> Vec<u8> {
    let Ok(Clear::Long(h)) = Clear::parse(model) else { panic!("not a first packet") };
    let (head, rest) = model.split_at(h.clear);
    let (tag, sealed) = rest.split_at(LONG_TAG);
    let mut body = sealed.to_vec();
    let mut server = KeyPair::initial(h.dcid, Side::Server);
    server.open(false, 0, h.pn.into(), head, tag, &mut body).expect("as a server opens it");
    let mut out = Vec::new();
    put_long(&mut out, LongType::Initial, dcid, scid, &[], h.pn);
    // What follows the ClientHello is padding.
    body.resize(len - out.len() - LONG_TAG, 0);
    let tag = KeyPair::initial(dcid, Side::Client).seal(0, h.pn.into(), &out, &mut body).expect("sealed");
    [&out[..], &tag[..LONG_TAG], &body].concat()
}

/// RFC 9000, section 14.1: a server MUST discard first packets in datagrams of less than 1,200 bytes. Section 7.2: the
/// identifier that a client chooses for the server MUST have at least 8 bytes.
#[test]
fn first_packets_of_wrong_lengths_are_ignored_even_if_well_sealed() {
    let mut p = Pair::new();
    let first = Rc::new(RefCell::new(Vec::new()));
    let copy = first.clone();
    p.filter = Box::new(move |f| {
        copy.borrow_mut().clone_from(&f.bytes);
        false
    });
    p.connect();
    p.run(Span::from_millis(1));
    let at = "192.0.2.1:1".parse().expect("address");
    let ids = [7; 20];
    for (dcid, scid, len, taken) in [
        (8, 4, MIN_INITIAL, true),
        (20, 4, MIN_INITIAL, true),
        (8, 4, MIN_INITIAL - 1, false),
        (7, 4, MIN_INITIAL, false),
        (8, 3, MIN_INITIAL, false),
        (8, 5, MIN_INITIAL, false),
    ] {
        let mut server = Endpoint::new(server_config(&[2]), Rng::from_u64(1)).expect("server");
        let packet = first_packet(&first.borrow(), &ids[..dcid], &ids[..scid], len);
        assert_eq!(packet.len(), len);
        let answered = !ask(&mut server, Time::from_nanos(5), at, &packet).is_empty();
        let kept = server.connections().count() == 1;
        assert_eq!((answered, kept), (taken, taken), "identifiers of {dcid} and {scid} bytes, {len} in all");
    }
}
