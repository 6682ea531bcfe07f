//! Tests of limits, states, flushes and completion queues.

use super::*;

#[test]
fn error_flushes_work_in_order_and_releases_memory() {
    let (mut x, mut y) = reliable();
    y.recv(50, 0, 1);
    give_credit(&mut x, &mut y);
    x.recv(100, 0, 10);
    x.recv(101, 0, 10);
    for i in 0..4 {
        x.post(SendWr { signaled: false, ..SendWr::new(i, SendOp::Send, x.source(0, 1)) });
    }
    y.post(SendWr::new(
        7,
        SendOp::Read { rkey: x.src.rkey, offset: 0 },
        Sge { lkey: y.own.lkey, offset: 0, len: 9 },
    ));
    let (r, p) = y.segment(100).unwrap();
    x.place(&r, &p).unwrap();
    assert_eq!(x.a.dereg_mr(x.src.id).unwrap_err(), Error::Busy("the memory region"));
    let sent = x.segment(100).unwrap();
    x.a.set_error(x.qp, Status::RemoteAccess).unwrap();
    x.a.set_error(x.qp, Status::RemoteInvalidRequest).unwrap();
    let fl = Status::FlushError;
    assert_eq!(ids(&x.sent()), [(0, Status::RemoteAccess), (1, fl), (2, fl), (3, fl)]);
    assert_eq!(ids(&x.received()), [(100, fl), (101, fl)]);
    assert!(!x.a.has_segment(x.qp));
    assert_eq!(x.place(&r, &p), Ok(Placed::Refused));
    x.a.on_acked(x.qp, sent.0.reference());
    x.a.on_lost(x.qp, sent.0.reference());
    assert!(x.segment(100).is_none());
    x.post(SendWr::new(9, SendOp::Send, x.source(0, 1)));
    x.recv(109, 0, 1);
    assert_eq!((ids(&x.sent()), ids(&x.received())), (vec![(9, fl)], vec![(109, fl)]));
    let bytes = x.a.dereg_mr(x.src.id).unwrap().into_vec().unwrap();
    assert_eq!(bytes.len() as u64, SIZE);
    x.a.dereg_mr(x.own.id).unwrap();
}

#[test]
fn work_requests_hold_memory_until_completion() {
    let (mut x, mut y) = reliable();
    x.post(SendWr::new(
        1,
        SendOp::Write { rkey: y.dst.rkey, offset: 0 },
        vec![x.source(0, 1), x.source(9, 1)],
    ));
    x.post(SendWr::new(
        2,
        SendOp::Read { rkey: y.src.rkey, offset: 0 },
        Sge { lkey: x.own.lkey, offset: 0, len: 1 },
    ));
    y.recv(1, 0, 1);
    let busy = Error::Busy("the memory region");
    assert_eq!(x.a.dereg_mr(x.src.id).unwrap_err(), busy);
    assert_eq!(x.a.dereg_mr(x.own.id).unwrap_err(), busy);
    assert_eq!(y.a.dereg_mr(y.own.id).unwrap_err(), busy);
    run(&mut x, &mut y, 100);
    x.post(SendWr::new(3, SendOp::Send, Vec::new()));
    run(&mut x, &mut y, 100);
    assert_eq!(x.sent().len(), 3);
    for (e, mr) in [(&mut x.a, x.src), (&mut y.a, y.own)] {
        assert!(e.dereg_mr(mr.id).is_ok());
        assert_eq!(e.dereg_mr(mr.id).unwrap_err(), Error::NotFound("memory region"));
    }
    assert!(x.a.dereg_mr(x.own.id).is_ok());
}

#[test]
fn queue_pair_states_allow_the_specified_operations() {
    let mut x = End::new(1, |_| {});
    let qp = x.a.create_qp(x.pd, QpInit::new(x.scq, x.rcq)).unwrap();
    let wr = SendWr::new(1, SendOp::Send, x.source(0, 1));
    assert_eq!(x.a.post_send(qp, wr.clone()), Err(Error::State));
    assert_eq!(x.a.modify_qp(qp, QpState::Rts), Err(Error::State));
    x.a.modify_qp(qp, QpState::Rtr).unwrap();
    assert_eq!(x.a.post_send(qp, wr.clone()), Err(Error::State));
    x.a.modify_qp(qp, QpState::Rts).unwrap();
    x.a.modify_qp(qp, QpState::Sqd).unwrap();
    x.a.post_send(qp, wr).unwrap();
    x.a.set_send_limit(qp, 9).unwrap();
    assert!(!x.a.has_segment(qp));
    x.a.modify_qp(qp, QpState::Rts).unwrap();
    assert!(x.a.has_segment(qp));
    x.a.modify_qp(qp, QpState::Error).unwrap();
    assert_eq!(x.a.modify_qp(qp, QpState::Rts), Err(Error::State));
    x.a.destroy_qp(qp).unwrap();
    assert_eq!(x.a.modify_qp(qp, QpState::Rtr), Err(Error::NotFound("queue pair")));
    assert_eq!(x.a.destroy_qp(qp), Err(Error::NotFound("queue pair")));
    assert_eq!(x.a.query_qp(qp), None);
}

#[test]
fn completion_queues_never_overflow() {
    let mut x = End::new(1, |_| {});
    let cq = x.a.create_cq(3).unwrap();
    let qp = x.a.create_qp(x.pd, QpInit::new(cq, cq)).unwrap();
    x.a.modify_qp(qp, QpState::Rtr).unwrap();
    x.a.modify_qp(qp, QpState::Rts).unwrap();
    let (own, src) = (x.own, x.src);
    let recv = |x: &mut End| {
        let sges = Sge { lkey: own.lkey, offset: 0, len: 1 }.into();
        x.a.post_recv(qp, RecvWr { wr_id: 5, sges })
    };
    let send = |x: &mut End| {
        x.a.post_send(qp, SendWr::new(6, SendOp::Send, Sge { lkey: src.lkey, offset: 0, len: 1 }))
    };
    recv(&mut x).unwrap();
    send(&mut x).unwrap();
    recv(&mut x).unwrap();
    assert_eq!((recv(&mut x), send(&mut x)), (Err(Error::CqFull), Err(Error::CqFull)));
    x.a.set_error(qp, Status::TransportFailed).unwrap();
    assert_eq!(x.a.cq_len(cq), Some(3));
    assert_eq!(send(&mut x), Err(Error::CqFull));
    assert_eq!(x.a.poll_cq(cq).map(|w| (w.wr_id, w.status)), Some((6, Status::TransportFailed)));
    send(&mut x).unwrap();
    assert_eq!(x.a.destroy_cq(cq), Err(Error::Busy("the completion queue")));
    x.a.destroy_qp(qp).unwrap();
    assert!(x.a.poll_cq(cq).is_some(), "completions outlive their queue pair");
    x.a.destroy_cq(cq).unwrap();
    assert_eq!(x.a.poll_cq(cq), None);
    // Refused and destroyed work has let go of its memory.
    x.a.dereg_mr(own.id).unwrap();
    x.a.dereg_mr(src.id).unwrap();
}

#[test]
fn notifications_fire_once_per_request() {
    let (mut x, mut y) = reliable();
    let rkey = y.dst.rkey;
    for i in 0..4 {
        y.recv(i, 0, 0);
    }
    let imm = |x: &mut End, solicited| {
        let op = SendOp::WriteImm { rkey, offset: 0, imm: 0 };
        x.post(SendWr { solicited, ..SendWr::new(0, op, Vec::new()) });
    };
    imm(&mut x, true);
    run(&mut x, &mut y, 9);
    assert_eq!(y.a.take_notified(), None, "not armed");
    y.a.req_notify_cq(y.rcq, true).unwrap();
    imm(&mut x, false);
    run(&mut x, &mut y, 9);
    assert_eq!(y.a.take_notified(), None, "not solicited");
    imm(&mut x, true);
    run(&mut x, &mut y, 9);
    assert_eq!((y.a.take_notified(), y.a.take_notified()), (Some(y.rcq), None));
    y.a.req_notify_cq(y.rcq, true).unwrap();
    y.a.set_error(y.qp, Status::FlushError).unwrap();
    assert_eq!(y.a.take_notified(), Some(y.rcq), "a failure counts as solicited");
}

#[test]
fn untaken_events_are_bounded() {
    let (mut x, mut y) = reliable();
    for _ in 0..5 {
        x.a.req_notify_cq(x.scq, false).unwrap();
        x.post(SendWr::new(1, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, x.source(0, 1)));
        run(&mut x, &mut y, 9);
        x.recv(1, 0, 1);
    }
    assert_eq!((x.a.take_notified(), x.a.take_notified()), (Some(x.scq), None));
    assert_eq!((x.a.activated.len(), x.a.credit_changes.len()), (1, 1));
    x.a.destroy_qp(x.qp).unwrap();
    assert_eq!((x.a.activated.len(), x.a.credit_changes.len()), (0, 0));
    assert_eq!((x.a.activated(), x.a.take_credit_changes()), (None, None));
}

#[test]
fn key_limits_are_enforced() {
    let limits = Limits {
        pds: 1,
        regions: 2,
        registered_bytes: 100,
        cqs: 1,
        cq_entries: 8,
        srqs: 1,
        srq_entries: 2,
        qps: 1,
    };
    let mut a = Adapter::new(limits, base::Rng::from_u64(1));
    let pd = a.alloc_pd().unwrap();
    assert!(matches!(a.alloc_pd(), Err(Error::Limit(_))));
    let m1 = a.reg_mr(pd, Memory::zeroed(60), Access::ALL).unwrap();
    let (e, m) = a.reg_mr(pd, Memory::zeroed(41), Access::ALL).unwrap_err();
    assert_eq!((e, m.len()), (Error::Limit("registered bytes"), 41));
    let m2 = a.reg_mr(pd, Memory::zeroed(40), Access::ALL).unwrap();
    assert!(matches!(a.reg_mr(pd, Memory::zeroed(0), Access::ALL), Err((Error::Limit(_), _))));
    assert_eq!(
        a.reg_mr(pd, Memory::zeroed(0), Access::REMOTE_WRITE).unwrap_err().0,
        Error::Invalid("REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE too")
    );
    a.dereg_mr(m1.id).unwrap();
    assert!(a.reg_mr(pd, Memory::zeroed(60), Access::ALL).is_ok());
    assert!(matches!(a.create_cq(9), Err(Error::Invalid(_))));
    let cq = a.create_cq(8).unwrap();
    assert!(matches!(a.create_cq(8), Err(Error::Limit(_))));
    let init = QpInit { max_send_wr: 2, max_recv_wr: 1, max_sge: 1, ..QpInit::new(cq, cq) };
    let qp = a.create_qp(pd, init.clone()).unwrap();
    assert!(matches!(a.create_qp(pd, init.clone()), Err(Error::Limit(_))));
    for bad in [
        QpInit { max_send_wr: 0, ..init.clone() },
        QpInit { max_recv_wr: MAX_RECV_WR + 1, ..init.clone() },
        QpInit { max_sge: MAX_SGE + 1, ..init.clone() },
        QpInit { max_rd_atomic: MAX_RD_ATOMIC + 1, ..init.clone() },
    ] {
        assert!(matches!(a.create_qp(pd, bad), Err(Error::Invalid(_))));
    }
    a.modify_qp(qp, QpState::Rtr).unwrap();
    a.modify_qp(qp, QpState::Rts).unwrap();
    let s = Sge { lkey: m2.lkey, offset: 0, len: 1 };
    let send = |a: &mut Adapter, d: Data| a.post_send(qp, SendWr::new(0, SendOp::Send, d));
    assert!(matches!(send(&mut a, vec![s, s].into()), Err(Error::Invalid(_))));
    assert_eq!(send(&mut a, Sge { offset: 40, ..s }.into()), Err(Error::OutOfBounds));
    assert_eq!(send(&mut a, Sge { offset: u64::MAX, ..s }.into()), Err(Error::OutOfBounds));
    assert_eq!(send(&mut a, Sge { lkey: m2.rkey, ..s }.into()), Err(Error::BadKey));
    assert!(matches!(send(&mut a, Data::Inline(vec![0; MAX_INLINE + 1].into())), Err(Error::TooLong { .. })));
    let read = SendOp::Read { rkey: 1, offset: 0 };
    let inline = Data::Inline([1].as_slice().into());
    assert!(matches!(a.post_send(qp, SendWr::new(0, read, inline)), Err(Error::Invalid(_))));
    send(&mut a, s.into()).unwrap();
    send(&mut a, s.into()).unwrap();
    assert_eq!(send(&mut a, s.into()), Err(Error::QueueFull));
    a.post_recv(qp, RecvWr { wr_id: 0, sges: s.into() }).unwrap();
    assert_eq!(a.post_recv(qp, RecvWr { wr_id: 0, sges: s.into() }), Err(Error::QueueFull));
    assert_eq!(a.dealloc_pd(pd), Err(Error::Busy("the protection domain")));
    assert_eq!(a.read_mr(m2.id, 39, &mut [0; 2]), Err(Error::OutOfBounds));
    assert_eq!(a.write_mr(m1.id, 0, &[1]), Err(Error::NotFound("memory region")));
}

#[test]
fn regions_belong_to_their_protection_domain() {
    let mut x = End::new(1, |_| {});
    let other = x.a.alloc_pd().unwrap();
    let mr = x.a.reg_mr(other, Memory::zeroed(10), Access::ALL).unwrap();
    let wr = SendWr::new(1, SendOp::Send, Sge { lkey: mr.lkey, offset: 0, len: 1 });
    assert_eq!(x.a.post_send(x.qp, wr), Err(Error::BadKey));
    let seg = Incoming {
        op: SegmentOp::Write,
        msn16: 0,
        rsn16: None,
        key: mr.rkey,
        position: 0,
        first: true,
        last: None,
    };
    assert_eq!(x.a.place(x.qp, &seg, &[1]), Err(Violation::BadKey));
    x.a.dereg_mr(mr.id).unwrap();
    x.a.dealloc_pd(other).unwrap();
    assert_eq!(x.a.dealloc_pd(other), Err(Error::NotFound("protection domain")));
}
