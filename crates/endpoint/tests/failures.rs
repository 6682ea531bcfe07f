//! Failures that must not spread: paths that drop data only, queue pairs that make no progress, simultaneous close.

mod pair;

use base::Span;
use longhaul_endpoint::{CloseReason, Event, QpOptions};
use pair::{Link, Pair, closed, complete, config, register, server_config, whole};
use std::collections::HashSet;
use verbs::{Data, RecvWr, SendOp, SendWr, Sge, Status};
use wire::Module;
use wire::packet::{SHORT_CLEAR, flag};

/// Both ends without encryption, so that a test can see which queue pair a packet is about.
fn readable() -> Pair {
    let (mut c, mut s) = (config(2), server_config(&[2]));
    c.options.module = Module::Crc32c;
    s.options.module = Module::Crc32c;
    Pair::with(c, s)
}

/// The queue pair of a data packet under CRC32C, whose tag has four bytes.
fn queue_pair(bytes: &[u8]) -> Option<u16> {
    let data = bytes[0] & flag::LONG == 0 && bytes[0] & flag::KIND != 0;
    let at = SHORT_CLEAR + 4;
    data.then(|| u16::from_be_bytes([bytes[at], bytes[at + 1]]))
}

#[test]
fn peer_that_acknowledges_no_data_is_closed_with_bounded_effort() {
    let mut p = readable();
    let Link { client: c, server: s, ci, si } = p.linked();
    let to = register(&mut p.server, si.pd, vec![0; 50_000_000]);
    let from = register(&mut p.client, ci.pd, vec![0; 50_000_000]);
    // Control passes, data never does.
    p.filter = Box::new(|f| !f.to_server || queue_pair(&f.bytes).is_none());
    let wr = SendWr::new(1, SendOp::Write { rkey: to.rkey, offset: 0 }, whole(&from, 50_000_000));
    p.client.adapter().post_send(ci.qps[0], wr).expect("posted");
    p.sent = [0; 2];
    let start = p.now;
    let mut most = 0;
    let reason = loop {
        p.run(Span::from_millis(100));
        if let Some(usage) = p.client.usage(c) {
            assert!(usage.iter().all(|(_, g)| g.holds()), "{usage:?}");
            most = most.max(usage.iter().find(|(n, _)| *n == "sent packets").expect("named").1.used);
        }
        if let Some(Event::Closed { reason, .. }) = p.client_events().pop() {
            break reason;
        }
        assert!(p.now.since(start) < Span::from_secs(40), "never given up");
    };
    assert!(matches!(reason, CloseReason::Stalled(30..=31)), "{reason:?}");
    assert!(reason.to_string().contains("acknowledged no data"));
    assert!(most < 5_000, "{most} packets in the books");
    assert!(p.sent[1] < 10_000, "{} packets in 30 s", p.sent[1]);
    // The work request failed, and the peer was told.
    assert_eq!(complete(&mut p.client, &ci).status, Status::TransportFailed);
    p.run(Span::from_secs(1));
    assert!(closed(&p.server_events()).expect("told").contains("no data was acknowledged"));
    p.server.release(s).expect_err("the region is still registered");
    p.server.adapter().dereg_mr(to.id).expect("deregistered");
    p.server.release(s).expect("released");
    assert_eq!(p.server.connections().count(), 0);
}

#[test]
fn silent_peer_is_idle_not_stalled() {
    let mut p = Pair::new();
    let Link { ci, si, .. } = p.linked();
    let to = register(&mut p.server, si.pd, vec![0; 4096]);
    // What the client sends is lost from now on, what it is sent from 12 s on: it hears one keep-alive more.
    let until = p.now + Span::from_secs(12);
    p.filter = Box::new(move |f| !f.to_server && f.at < until);
    let data = Data::Inline(vec![3; 900].into());
    let wr = SendWr::new(1, SendOp::Write { rkey: to.rkey, offset: 0 }, data);
    p.client.adapter().post_send(ci.qps[0], wr).expect("posted");
    p.run(Span::from_secs(60));
    assert!(closed(&p.client_events()).expect("closed").contains("nothing heard"));
}

#[test]
fn long_pause_or_failed_queue_pair_is_not_a_stall() {
    let mut p = Pair::new();
    let Link { client: c, ci, si, .. } = p.linked();
    let to = register(&mut p.server, si.pd, vec![0; 4096]);
    let other = p.client.open_qp(p.now, c, QpOptions::default()).expect("opened");
    let write = |p: &mut Pair, qp, rkey, n| {
        let wr = SendWr::new(n, SendOp::Write { rkey, offset: 0 }, Data::Inline(vec![3; 900].into()));
        p.client.adapter().post_send(qp, wr).expect("posted");
    };
    // Refused data is never acknowledged.
    write(&mut p, ci.qps[0], to.rkey ^ 1, 0);
    p.run(Span::from_secs(100));
    assert_eq!(complete(&mut p.client, &ci).status, Status::RemoteAccess);
    for n in 1..4 {
        write(&mut p, other, to.rkey, n);
        p.run(Span::from_secs(100));
        assert_eq!(complete(&mut p.client, &ci).status, Status::Success);
    }
    assert_eq!(closed(&p.client_events()), None);
}

#[test]
fn queue_pair_losing_all_packets_does_not_block_others() {
    let mut p = readable();
    let Link { client: c, ci, si, .. } = p.linked();
    let second = p.client.open_qp(p.now, c, QpOptions::default()).expect("opened");
    let third = p.client.open_qp(p.now, c, QpOptions::default()).expect("opened");
    p.run(Span::from_secs(1));
    let to = register(&mut p.server, si.pd, vec![0; 500_000]);
    let from = register(&mut p.client, ci.pd, vec![1; 500_000]);
    p.filter = Box::new(|f| !f.to_server || queue_pair(&f.bytes) != Some(0));
    let write = |p: &mut Pair, qp, wr_id, len| {
        let wr = SendWr::new(wr_id, SendOp::Write { rkey: to.rkey, offset: 0 }, whole(&from, len));
        p.client.adapter().post_send(qp, wr).expect("posted");
    };
    write(&mut p, ci.qps[0], 1_000, 20_000);
    // Nobody posts a receive for the third.
    let wr = SendWr::new(2_000, SendOp::Send, Data::Inline(vec![0; 3_000].into()));
    p.client.adapter().post_send(third, wr).expect("posted");
    for n in 0..20 {
        let start = p.now;
        write(&mut p, second, n, 10_000);
        let wc = loop {
            p.run(Span::from_millis(1));
            if let Some(wc) = p.client.adapter().poll_cq(ci.cq) {
                break wc;
            }
            assert!(p.now.since(start) < Span::from_secs(2), "write {n} waits");
        };
        assert_eq!((wc.qp, wc.wr_id, wc.status), (second, n, Status::Success));
        p.run(Span::from_millis(300));
    }
    // When the path heals and a receive is there, the others complete too.
    p.filter = Box::new(|_| true);
    let sges = Sge { lkey: to.lkey, offset: 0, len: 3_000 }.into();
    let at_server = p.server.connections().next().expect("open");
    let third_there = p.server.connection(at_server).expect("open").qps[2];
    p.server.adapter().post_recv(third_there, RecvWr { wr_id: 1, sges }).expect("posted");
    p.run(Span::from_secs(5));
    let mut rest: Vec<_> = (0..2).map(|_| complete(&mut p.client, &ci).wr_id).collect();
    rest.sort_unstable();
    assert_eq!(rest, [1_000, 2_000]);
}

#[test]
fn simultaneous_close_completes_at_both_ends() {
    for lost in [None, Some(true), Some(false)] {
        let mut p = readable();
        let (c, s) = p.connected();
        p.sent = [0; 2];
        let mut first = true;
        let mut numbers = HashSet::new();
        // The first CLOSE of one of them may be lost. No packet number, and so no nonce, is used twice.
        p.filter = Box::new(move |f| {
            assert!(f.bytes[0] & flag::LONG != 0 || numbers.insert((f.to_server, f.bytes[5..9].to_vec())));
            lost != Some(f.to_server) || !core::mem::replace(&mut first, false)
        });
        p.client.close(p.now, c, 0x1001, "mine");
        p.server.close(p.now, s, 0x1002, "mine");
        p.run(Span::from_secs(10));
        assert!(p.client.is_quiet() && p.server.is_quiet(), "{lost:?}");
        assert!(p.sent.iter().sum::<usize>() <= 8, "{:?}", p.sent);
        for events in [p.client_events(), p.server_events()] {
            let ends: Vec<_> = events.iter().filter(|e| matches!(e, Event::Closed { .. })).collect();
            assert_eq!(ends.len(), 1, "{ends:?}");
        }
        p.client.release(c).expect("released");
        p.server.release(s).expect("released");
        assert_eq!(p.client.connections().count() + p.server.connections().count(), 0);
        assert_eq!((p.client.next_timeout(), p.server.next_timeout()), (None, None));
    }
}
