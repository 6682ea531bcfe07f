//! Set-up and tear-down between two endpoints: who gets in, what is agreed, how it ends.

mod pair;

use base::{Span, Time};
use longhaul_endpoint::{CloseReason, Endpoint, Event, QpOptions};
use pair::{
    DELAY, InFlight, Link, Pair, closed, complete, config, identity, read, register, server_config, whole,
};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use transport::crypto::{OneTimeToken, ServerTrust, Suite};
use verbs::{Memory, RecvWr, SendOp, SendWr, Sge, Status};
use wire::packet::{Clear, flag};
use wire::{LongType, Module};

#[test]
fn data_is_sent_after_one_round_trip() {
    let mut p = Pair::new();
    let start = p.now;
    p.connect();
    let mut connected = None;
    while connected.is_none() && p.step(start + Span::from_secs(1)) {
        connected = p.client_events().iter().any(|e| matches!(e, Event::Connected { .. })).then_some(p.now);
    }
    assert_eq!(connected.expect("connected").since(start), DELAY * 2);
}

#[test]
fn unknown_key_is_refused_with_advice_and_leaves_no_state() {
    let mut p = Pair::with(config(3), server_config(&[2]));
    p.connect();
    p.run(Span::from_secs(5));
    let why = closed(&p.client_events()).expect("closed");
    assert!(why.contains("authorized_keys"), "{why}");
    assert!(p.server_events().is_empty());
    assert_eq!(p.server.connections().count(), 0);
}

#[test]
fn one_time_token_admits_once() {
    let token = OneTimeToken::new([7; 32], Some(identity(1).public_key().fingerprint()));
    let mut s = server_config(&[]);
    s.server.as_mut().expect("server").authority.tokens.push(token.clone());
    let mut p = Pair::with(config(3), s);
    for expect in [true, false] {
        let mut c = p.connect_options();
        c.token = Some(token.clone());
        let id = p.client.connect(p.now, c).expect("connect");
        p.run(Span::from_secs(1));
        let incoming = p.server_events().iter().any(|e| matches!(e, Event::Incoming { .. }));
        assert_eq!(incoming, expect);
        assert_eq!(closed(&p.client_events()).is_none(), expect);
        p.client.close(p.now, id, 0, "");
        p.run(Span::from_secs(1));
    }
}

#[test]
fn unknown_client_without_token_is_refused_while_tokens_exist() {
    let mut s = server_config(&[]);
    s.server.as_mut().expect("server").authority.tokens.push(OneTimeToken::new([7; 32], None));
    let mut p = Pair::with(config(3), s);
    p.connect();
    p.run(Span::from_secs(1));
    assert!(closed(&p.client_events()).expect("closed").contains("authorized_keys"));
    // Another token is no better, and neither ends up connected.
    let mut c = p.connect_options();
    c.token = Some(OneTimeToken::new([8; 32], None));
    p.client.connect(p.now, c).expect("connect");
    p.run(Span::from_secs(1));
    assert!(closed(&p.client_events()).is_some());
    assert!(p.server_events().is_empty());
    assert_eq!(p.server.connections().count(), 0);
}

#[test]
fn lost_or_reordered_token_proof_is_retransmitted() {
    for lost in 0..8 {
        let token = OneTimeToken::new([7; 32], None);
        let mut s = server_config(&[]);
        s.server.as_mut().expect("server").authority.tokens.push(token.clone());
        let mut p = Pair::with(config(3), s);
        let n = Rc::new(Cell::new(0));
        p.filter = Box::new(move |f| {
            n.set(n.get() + usize::from(f.to_server));
            !f.to_server || n.get() != lost + 1
        });
        let mut c = p.connect_options();
        c.token = Some(token);
        let conn = p.client.connect(p.now, c).expect("connect");
        p.run(Span::from_millis(100));
        // A frame that a stranger may not send, right behind the proof.
        let _ = p.client.open_qp(p.now, conn, QpOptions::default());
        p.run(Span::from_secs(5));
        assert!(p.server_events().iter().any(|e| matches!(e, Event::Incoming { .. })), "datagram {lost}");
        assert_eq!(closed(&p.client_events()), None, "datagram {lost}");
    }
}

#[test]
fn client_rejects_a_wrong_server_key() {
    let mut p = Pair::new();
    let mut c = p.connect_options();
    c.trust = ServerTrust::Pinned(vec![identity(9).public_key()]);
    p.client.connect(p.now, c).expect("connect");
    p.run(Span::from_secs(2));
    assert!(closed(&p.client_events()).is_some());
    assert!(p.server_events().is_empty(), "the server never sees it as connected");
}

#[test]
fn weaker_modules_require_both_ends() {
    for (client, server, expect) in [
        (Module::Crc32c, Module::Crc32c, Suite::Crc32c),
        (Module::Crc32c, Module::Aead, Suite::Aegis128L),
        (Module::Aead, Module::Crc32c, Suite::Aegis128L),
        (Module::Integrity, Module::Crc32c, Suite::Aegis128L),
    ] {
        let (mut c, mut s) = (config(2), server_config(&[2]));
        c.options.module = client;
        s.options.module = server;
        let mut p = Pair::with(c, s);
        let (a, b) = p.connected();
        assert_eq!(p.client.connection(a).expect("open").suite, expect);
        assert_eq!(p.server.connection(b).expect("open").suite, expect);
    }
}

#[test]
fn each_lost_handshake_datagram_is_retransmitted() {
    for lost in 0..6 {
        let mut p = Pair::new();
        let n = Rc::new(Cell::new(0));
        p.filter = Box::new(move |_| {
            n.set(n.get() + 1);
            n.get() != lost + 1
        });
        let c = p.connect();
        p.run(Span::from_secs(3));
        assert!(p.client_events().contains(&Event::Connected { conn: c }), "datagram {lost}");
        assert!(p.server_events().iter().any(|e| matches!(e, Event::Incoming { .. })), "datagram {lost}");
    }
}

#[test]
fn unanswered_connect_reports_a_reason() {
    let mut p = Pair::new();
    p.filter = Box::new(|_| false);
    p.connect();
    p.run(Span::from_secs(60));
    let why = closed(&p.client_events()).expect("closed");
    assert!(why.contains("192.0.2.2:4460") && why.contains("firewall"), "{why}");
    assert_eq!(p.client.connections().count(), 0);
}

#[test]
fn server_obeys_the_anti_amplification_limit() {
    let mut p = Pair::new();
    // The client's later datagrams are lost: its address stays unproven.
    let n = Rc::new(Cell::new(0));
    p.filter = Box::new(move |f| {
        n.set(n.get() + usize::from(f.to_server));
        !f.to_server || n.get() == 1
    });
    p.connect();
    p.run(Span::from_secs(9));
    assert!(p.bytes[0] <= 3 * 1200, "{} bytes", p.bytes[0]);
}

#[test]
fn server_under_load_requires_retry() {
    let mut s = server_config(&[2]);
    s.server.as_mut().expect("server").retry_above = 0;
    let mut p = Pair::with(config(2), s);
    let tokens = Rc::new(RefCell::new(Vec::new()));
    let copy = tokens.clone();
    p.filter = Box::new(move |f| {
        if let Ok(Clear::Long(h)) = Clear::parse(&f.bytes)
            && h.kind == LongType::Initial
            && f.to_server
        {
            copy.borrow_mut().push(h.token.to_vec());
        }
        true
    });
    p.connected();
    // Initial, Retry, Initial with token: one more round trip.
    let tokens = tokens.borrow();
    assert!(tokens.len() >= 2 && tokens[0].is_empty(), "{tokens:?}");
    assert!(tokens[1..].iter().all(|t| !t.is_empty()), "{tokens:?}");
}

#[test]
fn version_negotiation_is_sent_and_understood() {
    let mut p = Pair::new();
    p.filter = Box::new(|f| {
        if f.to_server && f.bytes[0] & flag::LONG != 0 {
            f.bytes[4] ^= 0x40;
        }
        true
    });
    p.connect();
    p.run(Span::from_secs(1));
    // The server's list names the version that was meant: a forgery then, and not believed.
    assert_eq!(closed(&p.client_events()), None);
    p.filter = Box::new(|f| {
        if !f.to_server && f.bytes[1..5] == [0; 4] {
            let n = f.bytes.len();
            f.bytes[n - 1] ^= 0x70;
        }
        if f.to_server && f.bytes[0] & flag::LONG != 0 {
            f.bytes[4] ^= 0x40;
        }
        true
    });
    p.connect();
    p.run(Span::from_secs(3));
    let why = closed(&p.client_events()).expect("closed");
    assert!(why.contains("update the older"), "{why}");
}

#[test]
fn close_takes_one_exchange_and_leaves_no_state() {
    let mut p = Pair::new();
    let (c, s) = p.connected();
    p.sent = [0; 2];
    p.client.close(p.now, c, 0x1001, "enough");
    p.run(Span::from_millis(100));
    assert_eq!(p.sent, [1, 1], "CLOSE and its acknowledgement");
    assert!(p.client.is_quiet() && p.server.is_quiet());
    assert!(closed(&p.server_events()).expect("closed").contains("enough"));
    p.client.release(c).expect("released");
    p.server.release(s).expect("released");
    assert_eq!(p.client.connections().count() + p.server.connections().count(), 0);
    assert_eq!((p.client.next_timeout(), p.server.next_timeout()), (None, None));
}

#[test]
fn lost_close_acknowledgement_is_replaced_by_a_reset() {
    let mut p = Pair::new();
    let (c, s) = p.connected();
    let first = Rc::new(Cell::new(true));
    p.filter = Box::new(move |f| f.to_server || !first.replace(false));
    p.client.close(p.now, c, 0, "");
    p.run(Span::from_millis(30));
    p.server_events();
    p.server.release(s).expect("released");
    p.run(Span::from_secs(1));
    assert!(p.client.is_quiet());
    // The application is told of the end when it closes, and not again when the reset comes.
    let closed = p.client_events().into_iter().filter(|e| matches!(e, Event::Closed { .. })).count();
    assert_eq!(closed, 1);
    p.client.release(c).expect("released");
}

#[test]
fn restarted_server_sends_stateless_resets() {
    let mut p = Pair::new();
    let (c, _) = p.connected();
    p.server = Endpoint::new(server_config(&[2]), base::Rng::from_u64(3)).expect("server");
    p.run(Span::from_secs(12));
    let events = p.client_events();
    assert!(events.contains(&Event::Closed { conn: c, reason: CloseReason::Reset }), "{events:?}");
}

#[test]
fn forged_resets_are_ignored() {
    let mut p = Pair::new();
    let (c, _) = p.connected();
    for n in 21..60 {
        let f = InFlight { at: Time::ZERO, from: p.server_addr, to_server: false, bytes: vec![0x41; n] };
        p.deliver(f);
    }
    p.run(Span::from_secs(1));
    assert_eq!(closed(&p.client_events()), None);
    assert!(p.client.connection(c).is_some());
}

#[test]
fn idle_connections_stay_open_by_keep_alive_and_time_out_without_a_path() {
    let mut p = Pair::new();
    p.connected();
    p.run(Span::from_secs(200));
    assert_eq!((closed(&p.client_events()), closed(&p.server_events())), (None, None));
    p.filter = Box::new(|_| false);
    p.run(Span::from_secs(60));
    assert!(closed(&p.client_events()).expect("closed").contains("nothing heard"));
    assert!(closed(&p.server_events()).expect("closed").contains("nothing heard"));
}

#[test]
fn nat_rebinding_is_followed_after_path_validation() {
    let mut p = Pair::new();
    let (c, s) = p.connected();
    p.client_addr = "192.0.2.77:2222".parse().expect("address");
    let qp = p.client.open_qp(p.now, c, QpOptions::default()).expect("opened");
    p.run(Span::from_secs(1));
    assert!(p.server_events().contains(&Event::PathChanged { conn: s, remote: p.client_addr }));
    assert!(p.client_events().iter().any(|e| matches!(e, Event::QpReady { qp: q, .. } if *q == qp)));
}

#[test]
fn spoofed_address_receives_only_path_challenges() {
    let mut p = Pair::new();
    let (c, s) = p.connected();
    let elsewhere = "203.0.113.5:9".parse().expect("address");
    // The newest genuine packet, sent again from elsewhere before it arrives from where it was sent.
    p.filter = Box::new(move |f| {
        if f.to_server {
            f.from = elsewhere;
        }
        true
    });
    p.client.open_qp(p.now, c, QpOptions::default()).expect("opened");
    p.run(DELAY);
    p.filter = Box::new(|_| true);
    p.run(Span::from_secs(30));
    assert_eq!(p.server.connection(s).expect("open").remote, p.client_addr);
}

#[test]
fn queue_pairs_with_unknown_algorithms_are_refused_at_once() {
    let mut p = Pair::new();
    let (c, _) = p.connected();
    let o = QpOptions { cc: "warp".into(), ..QpOptions::default() };
    let why = p.client.open_qp(p.now, c, o).expect_err("refused").to_string();
    assert!(why.contains("warp"), "{why}");
}

#[test]
fn invalid_rkey_fails_the_queue_pair_not_the_connection() {
    let mut p = Pair::new();
    let Link { client: c, ci, si, .. } = p.linked();
    let m = register(&mut p.server, si.pd, Memory::zeroed(4096));
    let l = register(&mut p.client, ci.pd, vec![9; 64]);
    let sge = whole(&l, 64);
    let second = p.client.open_qp(p.now, c, QpOptions::default()).expect("opened");
    let wr = SendWr::new(1, SendOp::Write { rkey: m.rkey ^ 1, offset: 0 }, sge);
    p.client.adapter().post_send(ci.qps[0], wr).expect("posted");
    p.run(Span::from_secs(1));
    let wc = complete(&mut p.client, &ci);
    assert_eq!(wc.status, Status::RemoteAccess);
    // The other pair works on.
    let wr = SendWr::new(2, SendOp::Write { rkey: m.rkey, offset: 100 }, sge);
    p.client.adapter().post_send(second, wr).expect("posted");
    p.run(Span::from_secs(1));
    let wc = complete(&mut p.client, &ci);
    assert_eq!((wc.wr_id, wc.status), (2, Status::Success));
    let got = read(&mut p.server, &m, 4096);
    assert!(got.iter().enumerate().all(|(i, b)| (*b == 9) == (100..164).contains(&i)));
}

#[test]
fn sends_wait_for_posted_receives() {
    let mut p = Pair::new();
    let Link { ci, si, .. } = p.linked();
    for n in 0..10 {
        let wr = SendWr::new(n, SendOp::Send, verbs::Data::Inline(vec![n as u8; 3000].into()));
        p.client.adapter().post_send(ci.qps[0], wr).expect("posted");
    }
    p.run(Span::from_secs(1));
    assert_eq!(p.client.adapter().poll_cq(ci.cq), None);
    let m = register(&mut p.server, si.pd, Memory::zeroed(30_000));
    for n in 0..10 {
        let sge = Sge { lkey: m.lkey, offset: n * 3000, len: 3000 };
        p.server.adapter().post_recv(si.qps[0], RecvWr { wr_id: n, sges: sge.into() }).expect("posted");
        p.run(Span::from_millis(100));
        let wc = complete(&mut p.server, &si);
        assert_eq!((wc.wr_id, wc.byte_len, wc.status), (n, 3000, Status::Success));
        let wc = complete(&mut p.client, &ci);
        assert_eq!((wc.wr_id, wc.status), (n, Status::Success));
    }
}

#[test]
fn unreliable_writes_report_lost_data() {
    let mut p = Pair::new();
    let Link { client: c, ci, si, .. } = p.linked();
    let o = QpOptions { reliable: false, ..QpOptions::default() };
    let qp = p.client.open_qp(p.now, c, o).expect("opened");
    p.run(Span::from_secs(1));
    let m = register(&mut p.server, si.pd, Memory::zeroed(100_000));
    let l = register(&mut p.client, ci.pd, vec![9; 100_000]);
    let n = Rc::new(Cell::new(0));
    p.filter = Box::new(move |f| {
        n.set(n.get() + usize::from(f.to_server && f.bytes.len() > 1400));
        !f.to_server || f.bytes.len() < 1400 || n.get() % 10 != 5
    });
    let sge = whole(&l, 100_000);
    p.client
        .adapter()
        .post_send(qp, SendWr::new(1, SendOp::Write { rkey: m.rkey, offset: 0 }, sge))
        .expect("posted");
    p.run(Span::from_secs(5));
    let wc = complete(&mut p.client, &ci);
    let Status::LossReported { lost } = wc.status else { panic!("{wc:?}") };
    let got = read(&mut p.server, &m, 100_000);
    assert_eq!(got.iter().filter(|b| **b == 0).count() as u64, lost);
    assert!(lost > 5_000);
}

#[test]
fn replayed_reflected_truncated_and_modified_datagrams_are_ignored() {
    let mut p = Pair::new();
    let Link { server: s, ci, si, .. } = p.linked();
    let m = register(&mut p.server, si.pd, Memory::zeroed(50_000));
    let l = register(&mut p.client, ci.pd, vec![9; 50_000]);
    let seen = Rc::new(std::cell::RefCell::new(Vec::new()));
    let copy = seen.clone();
    p.filter = Box::new(move |f| {
        copy.borrow_mut().push(f.clone());
        true
    });
    let sge = whole(&l, 50_000);
    p.client
        .adapter()
        .post_send(ci.qps[0], SendWr::new(1, SendOp::Write { rkey: m.rkey, offset: 0 }, sge))
        .expect("posted");
    p.run(Span::from_secs(1));
    assert_eq!(complete(&mut p.client, &ci).status, Status::Success);
    // The application reuses the memory: an old packet must not write to it again.
    p.server.adapter().write_mr(m.id, 0, &[7; 50_000]).expect("written");
    p.filter = Box::new(|_| true);
    for f in seen.borrow().iter() {
        for change in 0..5 {
            let mut f = f.clone();
            let n = f.bytes.len();
            match change {
                0 => {}
                1 => f.to_server = !f.to_server,
                2 => f.bytes.truncate(n / 2),
                3 => f.bytes[n - 1] ^= 1,
                _ => f.bytes[6] ^= 0x80,
            }
            p.deliver(f);
        }
    }
    p.run(Span::from_secs(1));
    let got = read(&mut p.server, &m, 50_000);
    assert!(got.iter().all(|b| *b == 7));
    assert!(closed(&p.client_events()).is_none() && closed(&p.server_events()).is_none());
    let stats = p.server.stats(s).expect("open");
    assert!(stats.packets_forged > 0 && stats.packets_stale > 0);
}

/// A host with several addresses must answer from the one its client knows: the client, and NATs on the way, take no
/// other's answers.
#[test]
fn server_answers_from_the_called_address() {
    let local = Some("192.0.2.77".parse().expect("address"));
    for retry_above in [256, 0] {
        let mut s = server_config(&[2]);
        s.server.as_mut().expect("server").retry_above = retry_above;
        let mut p = Pair::with(config(2), s);
        p.server_local = local;
        p.connected();
        assert!(p.server_from.len() > 3);
        assert_eq!(p.server_from.iter().position(|l| *l != local), None, "{:?}", p.server_from);
    }
}
