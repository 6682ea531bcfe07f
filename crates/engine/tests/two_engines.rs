//! Two engines on one host: work posted by one, completions at the other.

#![allow(clippy::disallowed_methods, reason = "real sockets and threads take real time")]

mod programs;

use longhaul_engine::{ClusterKey, Destination, EVERY_MEMBER, Management, QueuePair};
use programs::{HOST, LEN, PATIENCE, Program, connect, pair};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::{AtomicOp, Data, Opcode, QpState, SendOp, SendWr, Sge, Status};

/// Two programs and the one that has the counter, all at the same time.
#[test]
fn counter_of_several_queue_pairs_is_exact() {
    const EACH: u64 = 500;
    let cluster = ClusterKey::generate().expect("a key");
    let (owner, others) = (Program::new(&cluster), [Program::new(&cluster), Program::new(&cluster)]);
    let word = 4_096;
    let pairs: Vec<_> = others.iter().map(|p| connect(p, &owner)).collect();
    let add = AtomicOp::FetchAdd { add: 1, mask: 0 };
    let op = SendOp::Atomic { rkey: owner.mr.rkey, offset: owner.mr.base + word, op: add };
    let mut results = Vec::new();
    for n in 0..EACH {
        for (p, (qp, _)) in others.iter().zip(&pairs) {
            p.send(qp, n, op, 8);
        }
        for p in &others {
            let c = p.spin();
            let wanted = (n, Status::Success, Opcode::FetchAdd, 8);
            assert_eq!((c.wr_id, c.status, c.opcode, c.byte_len), wanted);
            results.push(p.number(0));
        }
    }
    results.sort_unstable();
    assert!(results.iter().copied().eq(0..2 * EACH));
    assert_eq!(owner.number(word), 2 * EACH);
    // What is not at a multiple of eight ends the queue pair.
    let op = SendOp::Atomic { rkey: owner.mr.rkey, offset: owner.mr.base + word + 4, op: add };
    others[0].send(&pairs[0].0, 1, op, 8);
    assert_eq!(others[0].spin().status, Status::RemoteInvalidRequest);
    assert_eq!(owner.number(word), 2 * EACH);
}

#[test]
fn sends_writes_and_reads_arrive_whoever_runs_the_loop() {
    let (a, b) = pair();
    for round in 0..3 {
        let (qa, qb) = if round % 2 == 0 { connect(&a, &b) } else { connect(&b, &a) };
        let (x, y) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        (0..LEN).for_each(|i| x.bytes.set(i, (i / 3) as u8 ^ round));
        y.receive(&qb, 9, 500_000, 4_096);
        x.send(&qa, 1, SendOp::Write { rkey: y.mr.rkey, offset: y.mr.base }, 300_000);
        x.send(&qa, 2, SendOp::Send, 4_096);
        // One end sleeps, the other one polls.
        let got = y.sleep();
        assert_eq!(
            (got.wr_id, got.status, got.byte_len, got.number),
            (9, Status::Success, 4_096, qb.number())
        );
        assert!((0..300_000).all(|i| y.bytes.get(i) == x.bytes.get(i)), "round {round}");
        assert!((0..4_096).all(|i| y.bytes.get(500_000 + i) == x.bytes.get(i)));
        assert_eq!(
            [x.spin(), x.spin()].map(|c| (c.wr_id, c.status)),
            [(1, Status::Success), (2, Status::Success)]
        );
        // A read from an end that does nothing.
        y.bytes.set(7, 77);
        x.send(&qa, 3, SendOp::Read { rkey: y.mr.rkey, offset: y.mr.base }, 10);
        assert_eq!(x.sleep().status, Status::Success);
        assert_eq!(x.bytes.get(7), 77);
        x.engine.destroy_qp(&qa);
        y.engine.destroy_qp(&qb);
    }
}

#[test]
fn a_destroyed_peer_fails_what_is_under_way_and_memory_that_is_not_registered_does_too() {
    let (a, b) = pair();
    let (qa, qb) = connect(&a, &b);
    a.send(&qa, 1, SendOp::Write { rkey: b.mr.rkey, offset: b.mr.base }, 10);
    assert_eq!(a.spin().status, Status::Success);
    b.engine.destroy_qp(&qb);
    a.send(&qa, 2, SendOp::Send, 10);
    assert_ne!(a.spin().status, Status::Success);
    assert_eq!(a.engine.qp_state(&qa), Some(QpState::Error));

    let (qa, qb) = connect(&a, &b);
    let bad = SendWr::new(5, SendOp::Send, Data::from(Sge { lkey: !a.mr.lkey, offset: 0, len: 1 }));
    a.send(&qa, 4, SendOp::Write { rkey: b.mr.rkey, offset: b.mr.base }, 100_000);
    assert!(a.engine.post_send(&qa, bad));
    a.send(&qa, 6, SendOp::Send, 10);
    let ended = [a.spin(), a.spin(), a.spin()].map(|c| (c.wr_id, c.status));
    assert_eq!(ended, [(4, Status::Success), (5, Status::LocalProtection), (6, Status::FlushError)]);
    drop((qb, b));

    // A key that the peer does not have.
    let (a, b) = pair();
    let (qa, _qb) = connect(&a, &b);
    a.send(&qa, 7, SendOp::Write { rkey: !b.mr.rkey, offset: b.mr.base }, 10);
    assert_eq!(a.spin().status, Status::RemoteAccess);
}

/// A program that looks at its memory instead of polling, as rsockets' `riostream` does.
#[test]
fn work_posted_right_after_a_poll_leaves_without_further_polls() {
    let (a, b) = pair();
    let (qa, _qb) = connect(&a, &b);
    a.send(&qa, 0, SendOp::Write { rkey: b.mr.rkey, offset: b.mr.base }, 1);
    assert_eq!(a.spin().status, Status::Success);
    for round in 1..6 {
        // Long enough for the engine's thread to sleep until its next deadline.
        std::thread::sleep(Duration::from_millis(300));
        a.bytes.set(0, round);
        let _ = a.engine.poll(&a.cq);
        a.send(&qa, round.into(), SendOp::Write { rkey: b.mr.rkey, offset: b.mr.base }, 1);
        let start = Instant::now();
        while b.bytes.get(0) != round {
            assert!(start.elapsed() < Duration::from_secs(2), "round {round}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn strangers_do_not_get_in() {
    let (a, b) = (
        Program::new(&ClusterKey::generate().expect("a key")),
        Program::new(&ClusterKey::generate().expect("a key")),
    );
    let (qa, qb) = (a.queue_pair(), b.queue_pair());
    for (x, own, peer) in [(&a, &qa, &qb), (&b, &qb, &qa)] {
        x.engine.connect(own, HOST, HOST, peer.number()).expect("a peer");
        // One of them may have been refused by now.
        let _ = x.engine.modify_qp(own, QpState::Rts);
    }
    a.receive(&qa, 1, 0, 100);
    b.receive(&qb, 1, 0, 100);
    let (asks, other) = if a.engine.port() < b.engine.port() { ((&a, &qa), &b) } else { ((&b, &qb), &a) };
    asks.0.send(asks.1, 2, SendOp::Send, 10);
    let statuses = [asks.0.spin(), asks.0.spin()].map(|c| c.status);
    assert!(statuses.iter().all(|s| *s != Status::Success), "{statuses:?}");
    assert_eq!(other.cq.take(), None);
}

fn datagram_queue_pair(p: &Program) -> Arc<QueuePair> {
    let qp = p.engine.create_datagram_qp(p.pd, &p.cq, &p.cq, (16, 16), None).expect("a queue pair");
    p.engine.set_datagram_qp(&qp, Some(0x1111), true, false);
    qp
}

#[test]
fn datagrams_to_a_group_are_copied_for_each_member_and_complete_once() {
    let (a, b) = pair();
    let (qa, other, qb) = (datagram_queue_pair(&a), datagram_queue_pair(&a), datagram_queue_pair(&b));
    let group = IpAddr::from([239, 1, 2, 3]);
    let (wanted, found) = std::sync::mpsc::channel();
    a.engine.listen_management(move |m| {
        if let Management::GroupWanted { group, own } = m {
            let _ = wanted.send((group, own));
        }
    });
    assert!(a.engine.set_member(&qa, HOST, true).is_err(), "it is no group");
    assert!(a.engine.set_member(&qa, group, false).is_err(), "it is not in");
    for (p, qp) in [(&a, &qa), (&a, &other), (&b, &qb)] {
        p.engine.set_member(qp, group, true).expect("a member");
        p.receive(qp, 9, 2_000, 300);
    }
    let to = Destination { own: HOST, host: group, number: EVERY_MEMBER, q_key: 0x1111, dscp: 0 };
    (0..100).for_each(|i| a.bytes.set(i, i as u8 + 1));
    assert!(a.engine.post_datagram(&qa, SendWr::new(1, SendOp::Send, Data::from(a.sge(0, 100))), to));
    // The first datagrams wait until the members were asked for.
    assert_eq!(found.recv_timeout(PATIENCE), Ok((group, HOST)));
    a.engine.note_member(group, std::net::SocketAddr::new(HOST, b.engine.port()));
    // Who was not asked for is not believed.
    a.engine.note_member(IpAddr::from([239, 9, 9, 9]), std::net::SocketAddr::new(HOST, 9));
    let got = b.spin();
    assert_eq!((got.wr_id, got.byte_len, got.peer, got.number), (9, 140, qa.number(), qb.number()));
    assert!((0..100).all(|i| b.bytes.get(2_040 + i) == i as u8 + 1));
    let mut own = [a.spin(), a.spin(), a.spin()].map(|c| (c.wr_id, c.status));
    own.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(own, [(1, Status::Success), (9, Status::Success), (9, Status::Success)]);
    // A member that leaves, and one that is destroyed, get no more.
    a.engine.set_member(&other, group, false).expect("it was in");
    a.engine.destroy_qp(&qa);
    a.receive(&other, 10, 0, 300);
    b.receive(&qb, 11, 0, 300);
    assert!(a.engine.post_datagram(&other, SendWr::new(2, SendOp::Send, Data::from(a.sge(0, 10))), to));
    assert_eq!(b.spin().wr_id, 11);
    assert_eq!(a.spin().wr_id, 2);
    assert_eq!(a.engine.poll(&a.cq), None);
}

#[test]
fn datagrams_arrive_with_their_senders_numbers_and_only_by_the_right_key() {
    let (a, b) = pair();
    let (qa, qb) = (datagram_queue_pair(&a), datagram_queue_pair(&b));
    let to = |q_key| Destination { own: HOST, host: HOST, number: qb.number(), q_key, dscp: 0 };
    b.receive(&qb, 7, 1_000, 4_136);
    b.receive(&qb, 8, 6_000, 4_136);
    (0..LEN).for_each(|i| a.bytes.set(i, (i / 3) as u8));
    let send = |wr_id, op, len, q_key| {
        assert!(a.engine.post_datagram(&qa, SendWr::new(wr_id, op, Data::from(a.sge(0, len))), to(q_key)));
        a.spin()
    };
    assert_eq!(send(1, SendOp::Send, 100, 0x2222).status, Status::Success, "nobody says that it is dropped");
    assert_eq!(send(2, SendOp::SendImm { imm: 5 }, 4_096, 0x1111).status, Status::Success);
    let got = b.spin();
    assert_eq!((got.wr_id, got.byte_len, got.imm, got.has_grh), (7, 4_136, Some(5), true));
    assert_eq!((got.number, got.peer, got.status), (qb.number(), qa.number(), Status::Success));
    assert!((0..4_096).all(|i| b.bytes.get(1_040 + i) == a.bytes.get(i)));
    assert_eq!(send(3, SendOp::Send, 4_097, 0x1111).status, Status::LocalLength);
    // And back, to an end that sleeps.
    a.receive(&qa, 9, 0, 200);
    let back = Destination { own: HOST, host: HOST, number: qa.number(), q_key: 0x1111, dscp: 0 };
    assert!(b.engine.post_datagram(&qb, SendWr::new(4, SendOp::Send, Data::from(b.sge(1_040, 50))), back));
    let got = a.sleep();
    assert_eq!((got.wr_id, got.byte_len), (9, 90));
    // What is left ends with the queue pair.
    b.engine.set_datagram_qp(&qb, None, false, true);
    let mut ended = [b.spin(), b.spin()].map(|c| (c.wr_id, c.status));
    ended.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(ended, [(4, Status::Success), (8, Status::FlushError)]);
    a.engine.destroy_qp(&qa);
}

/// UCX connects a process to itself in this way.
#[test]
fn queue_pair_that_is_its_own_peer_receives_what_it_sends() {
    let (a, _) = pair();
    let qp = a.queue_pair();
    a.receive(&qp, 1, 5_000, 1_000);
    a.engine.connect(&qp, HOST, HOST, qp.number()).expect("its own peer");
    a.engine.modify_qp(&qp, QpState::Rts).expect("ready");
    a.receive(&qp, 2, 6_000, 1_000);
    (0..1_000).for_each(|i| a.bytes.set(i, (i / 3) as u8));
    a.send(&qp, 3, SendOp::Send, 1_000);
    a.send(&qp, 4, SendOp::Send, 500);
    let mut ended = [a.spin(), a.spin(), a.spin(), a.spin()].map(|c| (c.wr_id, c.status, c.byte_len));
    ended.sort_by_key(|(wr_id, ..)| *wr_id);
    assert_eq!(ended.map(|(wr_id, status, _)| (wr_id, status)), [1, 2, 3, 4].map(|n| (n, Status::Success)));
    assert_eq!((ended[0].2, ended[1].2), (1_000, 500));
    assert!(
        (0..500)
            .all(|i| a.bytes.get(5_000 + i) == a.bytes.get(i) && a.bytes.get(6_000 + i) == a.bytes.get(i))
    );
    let (rkey, at) = (a.mr.rkey, a.mr.base + 100_000);
    a.send(&qp, 5, SendOp::Write { rkey, offset: at }, 1_000);
    assert_eq!(a.spin().wr_id, 5);
    assert_eq!(a.bytes.get(100_999), a.bytes.get(999));
    // As new, and to itself again; then it goes.
    a.engine.reset_qp(&qp).expect("reset");
    a.engine.connect(&qp, HOST, HOST, qp.number()).expect("its own peer");
    a.engine.modify_qp(&qp, QpState::Rts).expect("ready");
    a.receive(&qp, 6, 5_000, 1_000);
    a.send(&qp, 7, SendOp::Send, 10);
    let mut ended = [a.spin(), a.spin()].map(|c| (c.wr_id, c.status));
    ended.sort_by_key(|(wr_id, _)| *wr_id);
    assert_eq!(ended, [(6, Status::Success), (7, Status::Success)]);
    a.engine.destroy_qp(&qp);
}
