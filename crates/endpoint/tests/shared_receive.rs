//! Shared receive queues between connections: opened with, accepted with, given from the start.

mod pair;

use base::Span;
use longhaul_endpoint::{ConnectError, Event, QpOptions};
use pair::{Link, Pair, complete, register};
use verbs::{Data, Mr, QpId, RecvWr, SendOp, SendWr, Sge, SrqId, Status};

const ROOM: u64 = 2_000;

/// A server whose application has one shared queue in a domain of its own, with `n` receives.
fn with_srq(p: &mut Pair, n: u64) -> (SrqId, Mr) {
    let a = p.server.adapter();
    let pd = a.alloc_pd().expect("domain");
    let srq = a.create_srq(pd, 1_000).expect("queue");
    let mr = register(&mut p.server, pd, vec![0; (n * ROOM) as usize]);
    for wr_id in 0..n {
        post(p, srq, &mr, wr_id);
    }
    (srq, mr)
}

fn post(p: &mut Pair, srq: SrqId, mr: &Mr, wr_id: u64) {
    let sges = Sge { lkey: mr.lkey, offset: wr_id * ROOM, len: ROOM }.into();
    p.server.adapter().post_srq_recv(srq, RecvWr { wr_id, sges }).expect("posted");
}

fn send(p: &mut Pair, qp: QpId, wr_id: u64, fill: u8) {
    let data = Data::Inline(vec![fill; ROOM as usize].into());
    p.client.adapter().post_send(qp, SendWr::new(wr_id, SendOp::Send, data)).expect("posted");
}

#[test]
fn two_queue_pairs_share_a_receive_queue_and_its_credits() {
    let mut p = Pair::new();
    let (srq, mr) = with_srq(&mut p, 8);
    p.server.set_srq_of_incoming(Some(srq)).expect("exists");
    let Link { client: c, server: s, ci, si } = p.linked();
    // The pair from the start and one that the client opens take from the same queue.
    let second = p.client.open_qp(p.now, c, QpOptions::default()).expect("opened");
    p.run(Span::from_secs(1));
    assert!(p.server_events().iter().any(|e| matches!(e, Event::QpReady { by_peer: true, .. })));
    let qps = p.server.connection(s).expect("open").qps.clone();
    assert!(qps.iter().all(|q| p.server.adapter().query_qp(*q).expect("there").srq == Some(srq)));
    for n in 0..40 {
        send(&mut p, ci.qps[0], n, 1);
        send(&mut p, second, 100 + n, 2);
    }
    // Every tenth datagram to the server is lost; receives come back as they are used.
    let mut n = 0;
    p.filter = Box::new(move |f| {
        n += usize::from(f.to_server);
        !f.to_server || n % 10 != 0
    });
    let mut got = Vec::new();
    for _ in 0..2_000 {
        p.run(Span::from_millis(10));
        while let Some(wc) = p.server.adapter().poll_cq(si.cq) {
            assert_eq!((wc.status, wc.byte_len), (Status::Success, ROOM));
            let mut bytes = vec![0; ROOM as usize];
            p.server.adapter().read_mr(mr.id, wc.wr_id * ROOM, &mut bytes).expect("read");
            assert!(bytes.iter().all(|b| *b == bytes[0]));
            got.push((wc.qp, bytes[0]));
            post(&mut p, srq, &mr, wc.wr_id);
        }
        if got.len() == 80 {
            break;
        }
    }
    assert_eq!(got.len(), 80);
    for (qp, fill) in qps.iter().zip([1, 2]) {
        assert_eq!(got.iter().filter(|g| **g == (*qp, fill)).count(), 40);
    }
    p.run(Span::from_secs(1));
    for _ in 0..80 {
        assert_eq!(complete(&mut p.client, &ci).status, Status::Success);
    }
    // Credits are never promised twice: no packet came for which there was no receive.
    let stats = p.server.stats(s).expect("open");
    assert_eq!(stats.packets_refused, 0);
    assert_eq!(p.server.adapter().srq_len(srq), Some(8));
}

#[test]
fn opening_end_uses_its_shared_receive_queue() {
    let mut p = Pair::new();
    let a = p.client.adapter();
    let pd = a.alloc_pd().expect("domain");
    let srq = a.create_srq(pd, 10).expect("queue");
    let other = a.create_srq(pd, 10).expect("queue");
    let conn = p.connect();
    p.client.set_srq(conn, Some(srq)).expect("exists");
    p.run(Span::from_secs(1));
    let server = p.server.connections().next().expect("connected");
    let named = p.client.open_qp_with_srq(p.now, conn, QpOptions::default(), Some(other)).expect("opened");
    let default = p.client.open_qp(p.now, conn, QpOptions::default()).expect("opened");
    p.run(Span::from_secs(1));
    let first = p.client.connection(conn).expect("open").qps[0];
    let of = |p: &mut Pair, qp| p.client.adapter().query_qp(qp).expect("there").srq;
    assert_eq!([first, named, default].map(|q| of(&mut p, q)), [Some(srq), Some(other), Some(srq)]);
    // What the server sends on the pair from the start lands in the shared queue.
    let mr = register(&mut p.client, pd, vec![0; 100]);
    let sges = Sge { lkey: mr.lkey, offset: 0, len: 100 }.into();
    p.client.adapter().post_srq_recv(srq, RecvWr { wr_id: 7, sges }).expect("posted");
    let qp = p.server.connection(server).expect("open").qps[0];
    let wr = SendWr::new(1, SendOp::Send, Data::Inline(vec![5; 60].into()));
    p.server.adapter().post_send(qp, wr).expect("posted");
    p.run(Span::from_secs(1));
    let ci = p.client.connection(conn).expect("open").clone();
    let wc = complete(&mut p.client, &ci);
    assert_eq!((wc.wr_id, wc.byte_len, wc.status), (7, 60, Status::Success));
    // A queue that is no more cannot be named.
    let gone = p.client.adapter().create_srq(pd, 1).expect("queue");
    p.client.adapter().destroy_srq(gone).expect("destroyed");
    assert!(matches!(p.client.set_srq(conn, Some(gone)), Err(ConnectError::Verbs(_))));
    let o = QpOptions::default();
    assert!(matches!(p.client.open_qp_with_srq(p.now, conn, o, Some(gone)), Err(ConnectError::Verbs(_))));
}
