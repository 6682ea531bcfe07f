//! Queue pairs that applications create: regions and completion queues that serve several connections.

mod pair;

use base::Span;
use longhaul_endpoint::{ConnId, Endpoint, Event, QpOptions};
use pair::{Pair, closed, register};
use verbs::{CqId, Data, Mr, PdId, QpId, QpInit, QpState, RecvWr, SendOp, SendWr, Sge, Status};

const LEN: usize = 10_000;

/// What an application has of its own.
struct Own {
    pd: PdId,
    cq: CqId,
    mr: Mr,
}

fn own(e: &mut Endpoint) -> Own {
    let pd = e.adapter().alloc_pd().expect("domain");
    let cq = e.adapter().create_cq(100).expect("queue");
    Own { pd, cq, mr: register(e, pd, vec![0; LEN]) }
}

fn queue_pair(e: &mut Endpoint, o: &Own) -> QpId {
    let qp = e.adapter().create_qp(o.pd, QpInit::new(o.cq, o.cq)).expect("queue pair");
    e.adapter().modify_qp(qp, QpState::Rtr).expect("ready to receive");
    e.adapter().modify_qp(qp, QpState::Rts).expect("ready to send");
    qp
}

fn whole(o: &Own) -> Sge {
    Sge { lkey: o.mr.lkey, offset: 0, len: LEN as u64 }
}

/// The request that waits at the server.
fn requested(p: &mut Pair) -> (ConnId, u16, Vec<u8>) {
    let found = p.server_events().into_iter().find_map(|e| match e {
        Event::QpRequested { conn, number, private_data, .. } => Some((conn, number, private_data)),
        _ => None,
    });
    found.expect("a request")
}

/// The client opens a queue pair of its own, and the server grants one of its own.
fn joined(p: &mut Pair, conn: ConnId, client: &Own, server: &Own) -> (QpId, QpId) {
    let qp = queue_pair(&mut p.client, client);
    let o = QpOptions { private_data: b"7 to 9".to_vec(), ..QpOptions::default() };
    p.client.open_own_qp(p.now, conn, o, qp).expect("opened");
    p.run(Span::from_millis(200));
    let (at, number, said) = requested(p);
    assert_eq!(said, b"7 to 9");
    let granted = queue_pair(&mut p.server, server);
    p.server.accept_qp(p.now, at, number, granted).expect("granted");
    p.run(Span::from_millis(200));
    let ready = |e: &Event, qp| matches!(e, Event::QpReady { qp: q, .. } if *q == qp);
    assert!(p.client_events().iter().any(|e| ready(e, qp)));
    assert!(p.server_events().iter().any(|e| ready(e, granted)));
    (qp, granted)
}

#[test]
fn one_region_and_completion_queue_serve_queue_pairs_of_two_connections() {
    let mut p = Pair::new();
    p.server.set_asks_for_qps(true);
    let (client, server) = (own(&mut p.client), own(&mut p.server));
    let conns = [p.linked().client, p.linked().client];
    let pairs = conns.map(|c| joined(&mut p, c, &client, &server));
    for (n, (from, to)) in pairs.iter().enumerate() {
        let room = Sge { len: 100, ..whole(&server) };
        p.server.adapter().post_recv(*to, RecvWr { wr_id: n as u64, sges: room.into() }).expect("posted");
        let write = SendOp::Write { rkey: server.mr.rkey, offset: 5_000 + n as u64 };
        let wr = SendWr::new(1, write, Data::Inline(vec![n as u8 + 1].into()));
        p.client.adapter().post_send(*from, wr).expect("posted");
        let wr = SendWr::new(2, SendOp::Send, Data::Inline(vec![n as u8 + 8; 50].into()));
        p.client.adapter().post_send(*from, wr).expect("posted");
        p.run(Span::from_secs(1));
        let got = p.server.adapter().poll_cq(server.cq).expect("received");
        assert_eq!((got.wr_id, got.qp, got.byte_len), (n as u64, *to, 50));
        let sent: Vec<_> = core::iter::from_fn(|| p.client.adapter().poll_cq(client.cq)).collect();
        assert!(sent.len() == 2 && sent.iter().all(|w| w.qp == *from && w.status == Status::Success));
    }
    assert_eq!(pair::read(&mut p.server, &server.mr, LEN)[5_000..5_003], [1, 2, 0]);
}

#[test]
fn the_peer_learns_of_a_disconnected_queue_pair_whose_number_is_not_used_again() {
    let mut p = Pair::new();
    p.server.set_asks_for_qps(true);
    let (client, server) = (own(&mut p.client), own(&mut p.server));
    let conn = p.linked().client;
    let (from, to) = joined(&mut p, conn, &client, &server);
    p.server.disconnect_qp(p.now, to);
    p.server.adapter().destroy_qp(to).expect("destroyed");
    let wr = SendWr::new(3, SendOp::Send, Data::Inline(vec![1; 50].into()));
    p.client.adapter().post_send(from, wr).expect("posted");
    p.run(Span::from_secs(1));
    assert!(p.client_events().contains(&Event::QpGone { conn, qp: from }));
    assert_eq!(
        (p.client.adapter().poll_cq(client.cq), p.client.adapter().qp_state(from)),
        (None, Some(QpState::Rts))
    );
    p.client.disconnect_qp(p.now, from);
    p.client.adapter().destroy_qp(from).expect("destroyed");
    // Others follow on the same connection.
    for _ in 0..3 {
        let (from, to) = joined(&mut p, conn, &client, &server);
        p.client.disconnect_qp(p.now, from);
        p.server.disconnect_qp(p.now, to);
        p.run(Span::from_secs(1));
    }
}

#[test]
fn a_refused_queue_pair_stays_the_applications() {
    let mut p = Pair::new();
    p.server.set_asks_for_qps(true);
    let client = own(&mut p.client);
    let conn = p.linked().client;
    let qp = queue_pair(&mut p.client, &client);
    p.client.open_own_qp(p.now, conn, QpOptions::default(), qp).expect("opened");
    p.run(Span::from_millis(200));
    let (at, number, _) = requested(&mut p);
    p.server.refuse_requested_qp(p.now, at, number, 77);
    p.run(Span::from_millis(200));
    assert!(p.client_events().contains(&Event::QpRefused { conn, qp, code: 77 }));
    assert_eq!(p.client.adapter().qp_state(qp), Some(QpState::Rts));
    // A second try takes another number.
    p.client.open_own_qp(p.now, conn, QpOptions::default(), qp).expect("opened again");
    p.run(Span::from_millis(200));
    assert!(requested(&mut p).1 > number);
}

#[test]
fn a_closed_connection_leaves_the_applications_queue_pairs_to_the_application() {
    let mut p = Pair::new();
    p.server.set_asks_for_qps(true);
    let (client, server) = (own(&mut p.client), own(&mut p.server));
    let conn = p.linked().client;
    let (from, _) = joined(&mut p, conn, &client, &server);
    let wr = SendWr::new(4, SendOp::Send, Data::Inline(vec![1; 50].into()));
    p.client.adapter().post_send(from, wr).expect("posted");
    p.client.close(p.now, conn, 0, "done");
    p.run(Span::from_secs(10));
    assert!(closed(&p.client_events()).is_some());
    assert_eq!(p.client.adapter().qp_state(from), Some(QpState::Rts));
    p.client.adapter().set_error(from, Status::TransportFailed).expect("there");
    let ended = p.client.adapter().poll_cq(client.cq).expect("an end");
    assert_eq!((ended.wr_id, ended.status), (4, Status::TransportFailed));
    p.client.release(conn).expect("nothing of it is left");
    p.client.adapter().destroy_qp(from).expect("it was the application's");
}
