//! Two engines on one host whose queue pairs take streams (iWARP).

#![allow(clippy::disallowed_methods, reason = "real sockets and threads take real time")]

mod programs;

use longhaul_engine::{AsyncEvent, ClusterKey, Options};
use programs::{HOST, LEN, Program, connect};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use verbs::{AtomicOp, Error, Opcode, QpState, SendOp, Status};

fn program(cluster: &ClusterKey) -> Program {
    let mut options = Options::new(cluster);
    options.iwarp = true;
    Program::with(options)
}

fn pair() -> (Program, Program) {
    let cluster = ClusterKey::generate().expect("a key");
    (program(&cluster), program(&cluster))
}

/// What an engine tells its program of other processes.
fn lost_processes(p: &Program) -> mpsc::Receiver<String> {
    let (told, tells) = mpsc::channel();
    p.engine.listen(move |e| {
        if let AsyncEvent::ProcessLost { why, .. } = e {
            let _ = told.send(why);
        }
    });
    tells
}

#[test]
fn every_operation_arrives_whoever_asks_for_the_stream_and_whoever_runs_the_loop() {
    let (a, b) = pair();
    for round in 0..4 {
        let (x, y) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let (qx, qy) = connect(x, y);
        (0..LEN).for_each(|i| x.bytes.set(i, (i / 3) as u8 ^ round));
        y.receive(&qy, 9, 500_000, 4_096);
        y.receive(&qy, 10, 510_000, 4_096);
        let at_peer = |op: fn(u32, u64) -> SendOp| op(y.mr.rkey, y.mr.base);
        x.send(&qx, 1, at_peer(|rkey, offset| SendOp::Write { rkey, offset }), 300_000);
        x.send(&qx, 2, SendOp::Send, 4_096);
        let got = y.sleep();
        assert_eq!((got.wr_id, got.status, got.byte_len), (9, Status::Success, 4_096));
        assert!((0..300_000).all(|i| y.bytes.get(i) == x.bytes.get(i)), "round {round}");
        assert!((0..4_096).all(|i| y.bytes.get(500_000 + i) == x.bytes.get(i)));
        assert_eq!(
            [x.spin(), x.spin()].map(|c| (c.wr_id, c.status)),
            [(1, Status::Success), (2, Status::Success)]
        );
        x.send(&qx, 3, at_peer(|rkey, offset| SendOp::WriteImm { rkey, offset, imm: 7 }), 100);
        let got = y.spin();
        assert_eq!((got.wr_id, got.opcode, got.imm), (10, Opcode::RecvWriteImm, Some(7)));
        assert_eq!(x.spin().status, Status::Success);
        // Of an end that does nothing.
        y.bytes.set(7, 77);
        x.send(&qx, 4, at_peer(|rkey, offset| SendOp::Read { rkey, offset }), 10);
        assert_eq!((x.sleep().status, x.bytes.get(7)), (Status::Success, 77));
        (0..8).for_each(|i| y.bytes.set(i, 0));
        let add = AtomicOp::FetchAdd { add: 5, mask: 0 };
        for before in [0, 5] {
            let op = SendOp::Atomic { rkey: y.mr.rkey, offset: y.mr.base, op: add };
            x.send(&qx, 5, op, 8);
            assert_eq!((x.spin().status, x.number(0)), (Status::Success, before));
        }
        // And the other way, on the same stream.
        x.receive(&qx, 11, 600_000, 100);
        y.send(&qy, 6, SendOp::Send, 100);
        assert_eq!((x.spin().wr_id, y.spin().wr_id), (11, 6));
        x.engine.destroy_qp(&qx);
        y.engine.destroy_qp(&qy);
    }
}

#[test]
fn queue_pair_whose_peer_closed_in_order_keeps_its_receives_and_can_be_connected_again() {
    let (a, b) = pair();
    let (qa, qb) = connect(&a, &b);
    b.receive(&qb, 1, 0, 100);
    b.receive(&qb, 2, 0, 100);
    a.send(&qa, 3, SendOp::Send, 100);
    assert_eq!((b.spin().wr_id, a.spin().status), (1, Status::Success));
    a.engine.destroy_qp(&qa);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((b.engine.poll(&b.cq), b.engine.qp_state(&qb)), (None, Some(QpState::Rts)));
    // Who sends finds out.
    b.send(&qb, 4, SendOp::Send, 100);
    assert_eq!(b.spin().status, Status::TransportFailed);
    b.engine.reset_qp(&qb).expect("as new");
    let qa = a.queue_pair();
    for (x, own, peer) in [(&a, &qa, &qb), (&b, &qb, &qa)] {
        x.engine.connect(own, HOST, HOST, peer.number()).expect("a peer");
        x.engine.modify_qp(own, QpState::Rts).expect("ready to send");
    }
    b.receive(&qb, 5, 0, 100);
    a.send(&qa, 6, SendOp::Send, 100);
    let got = b.spin();
    assert_eq!((got.wr_id, got.status), (5, Status::Success));
}

#[test]
fn fault_of_one_queue_pair_ends_it_at_both_ends_and_no_other() {
    let (a, b) = pair();
    let (qa, qb) = connect(&a, &b);
    let (other_a, _other_b) = connect(&a, &b);
    b.receive(&qb, 1, 0, 100);
    // The write itself is complete as soon as TCP has it (RFC 5041, section 5.4).
    a.send(&qa, 2, SendOp::Write { rkey: !b.mr.rkey, offset: b.mr.base }, 10);
    assert_eq!((b.spin().wr_id, a.spin().wr_id), (1, 2));
    // Until the peer's word arrives, TCP takes what is sent.
    let start = Instant::now();
    while a.engine.qp_state(&qa) != Some(QpState::Error) {
        assert!(start.elapsed() < Duration::from_secs(5), "the fault has not been told");
        std::thread::sleep(Duration::from_millis(1));
    }
    a.send(&qa, 3, SendOp::Send, 10);
    assert_eq!(a.spin().status, Status::FlushError);
    assert_eq!(b.engine.qp_state(&qb), Some(QpState::Error));
    a.send(&other_a, 4, SendOp::Write { rkey: b.mr.rkey, offset: b.mr.base }, 10);
    assert_eq!(a.spin().status, Status::Success);
}

#[test]
fn member_of_another_cluster_does_not_get_in() {
    let (a, b) =
        (program(&ClusterKey::generate().expect("a key")), program(&ClusterKey::generate().expect("a key")));
    let tells = [lost_processes(&a), lost_processes(&b)];
    let (qa, qb) = (a.queue_pair(), b.queue_pair());
    for (x, own, peer) in [(&a, &qa, &qb), (&b, &qb, &qa)] {
        x.engine.connect(own, HOST, HOST, peer.number()).expect("a peer");
        let _ = x.engine.modify_qp(own, QpState::Rts);
    }
    let (asks, at) = if a.engine.port() < b.engine.port() { ((&a, &qa), 0) } else { ((&b, &qb), 1) };
    asks.0.send(asks.1, 2, SendOp::Send, 10);
    assert_ne!(asks.0.spin().status, Status::Success);
    let why = tells[at].recv_timeout(Duration::from_secs(5)).expect("a reason");
    assert!(why.contains("key"), "{why}");
}

#[test]
fn peer_of_the_other_transport_is_told_apart() {
    let cluster = ClusterKey::generate().expect("a key");
    let (by_packets, by_streams) = (Program::new(&cluster), program(&cluster));
    let tells = [lost_processes(&by_packets), lost_processes(&by_streams)];
    let (qp, qs) = (by_packets.queue_pair(), by_streams.queue_pair());
    by_packets.engine.connect(&qp, HOST, HOST, qs.number()).expect("a peer");
    by_streams.engine.connect(&qs, HOST, HOST, qp.number()).expect("a peer");
    // The end with the lower port asks.
    let at = usize::from(by_packets.engine.port() > by_streams.engine.port());
    let why = tells[at].recv_timeout(Duration::from_secs(10)).expect("a reason");
    assert!(why.contains("--transport"), "{why}");
}

#[test]
fn only_reliable_queue_pairs_are_to_be_had() {
    let cluster = ClusterKey::generate().expect("a key");
    let a = program(&cluster);
    let datagrams = a.engine.create_datagram_qp(a.pd, &a.cq, &a.cq, (1, 1), None).map(drop);
    let target = a.engine.create_xrc_target(1).map(drop);
    let window = a.engine.alloc_mw(a.pd).map(drop);
    let unreliable = a.engine.create_qp(a.pd, &a.cq, &a.cq, |i| i.kind = verbs::Kind::Unreliable).map(drop);
    for refused in [datagrams, target, window, unreliable] {
        assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
    }
}
