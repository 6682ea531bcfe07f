//! Windows of reliable queue pairs, and what a region or a queue pair may be made to allow later.

use super::*;

/// Carries out what is posted that sends nothing.
fn settle(e: &mut End) {
    assert_eq!(e.a.next_segment(e.qp, 1_000), None);
}

/// One message of `x`, placed at `y`.
fn message(x: &mut End, y: &mut End, wr: SendWr) -> Result<Placed, Violation> {
    give_credit(x, y);
    x.post(wr);
    let mut last = Ok(Placed::New);
    while let Some((seg, payload)) = x.segment(100) {
        last = y.place(&seg, &payload);
        if last.is_err() {
            break;
        }
        x.a.on_acked(x.qp, seg.reference());
    }
    last
}

fn write(x: &End, rkey: u32, offset: u64, len: u64) -> SendWr {
    SendWr::new(1, SendOp::Write { rkey, offset }, x.source(0, len))
}

fn bind(y: &mut End, mw: MwId, rkey: u32, (offset, len): (u64, u64), exclusive: bool) -> Status {
    let range = WindowRange { mr: y.dst.id, offset, len, access: Access::REMOTE_WRITE };
    let op = SendOp::Bind(Binding { mw, rkey, range, exclusive });
    y.post(SendWr::new(7, op, Data::Sges(Sges::None)));
    settle(y);
    let done = y.sent();
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].wr_id, done[0].opcode), (7, Opcode::Bind));
    done[0].status
}

#[test]
fn bound_window_allows_its_range_in_every_segment_and_nothing_beyond() {
    for (offset, len, placed) in [
        (1_000, 250, Ok(Placed::New)),
        (1_000, 251, Err(Violation::OutOfBounds)),
        (999, 10, Err(Violation::OutOfBounds)),
        (1_300, 1, Err(Violation::OutOfBounds)),
    ] {
        let (mut x, mut y) = reliable();
        let (mw, key) = y.a.alloc_mw_with_key(y.pd).unwrap();
        let rkey = key ^ 0x55;
        assert_eq!(bind(&mut y, mw, rkey, (1_000, 250), true), Status::Success);
        let wr = write(&x, rkey, offset, len);
        assert_eq!(message(&mut x, &mut y, wr), placed, "{len} bytes at {offset}");
        // What was in front of the violation came with packets of its own; nothing behind the window's end was touched.
        assert!(y.bytes(y.dst, 1_250, 10).iter().all(|b| *b == 0));
        assert_eq!(y.a.dereg_mr(y.dst.id).unwrap_err(), Error::Busy("the memory region"));
        assert!(y.a.is_shown(y.dst.id) && y.a.revoke_mr(y.dst.id).is_err());
        y.a.dealloc_mw(mw).unwrap();
        assert!(!y.a.is_shown(y.dst.id));
    }
}

#[test]
fn window_is_bound_by_its_own_keys_only_and_exclusive_ones_serve_one_queue_pair() {
    let (mut x, mut y) = reliable();
    let (mw, key) = y.a.alloc_mw_with_key(y.pd).unwrap();
    assert_eq!(bind(&mut y, mw, key ^ 0x100, (0, 10), true), Status::WindowBind);
    assert_eq!(bind(&mut y, mw, key ^ 1, (SIZE, 1), true), Status::WindowBind);
    assert_eq!(bind(&mut y, mw, key ^ 1, (0, 10), true), Status::Success);
    // Another queue pair of the same domain.
    let other = y.a.create_qp(y.pd, QpInit::new(y.scq, y.rcq)).unwrap();
    y.a.modify_qp(other, QpState::Rtr).unwrap();
    x.post(write(&x, key ^ 1, 0, 10));
    let (seg, payload) = x.segment(100).unwrap();
    assert_eq!(y.a.place(other, &seg.incoming(), &payload), Err(Violation::BadKey));
    assert_eq!(y.place(&seg, &payload), Ok(Placed::New));
    assert_eq!(bind(&mut y, mw, key ^ 2, (0, 10), false), Status::Success);
    let mut x = End::new(1, |_| {});
    x.post(write(&x, key ^ 2, 0, 10));
    let (seg, payload) = x.segment(100).unwrap();
    assert_eq!(y.a.place(other, &seg.incoming(), &payload), Ok(Placed::New));
    // Of no bytes: unbound.
    assert_eq!(bind(&mut y, mw, key ^ 3, (0, 0), false), Status::Success);
    assert!(!y.a.is_shown(y.dst.id));
}

#[test]
fn send_that_invalidates_voids_the_key_and_says_which() {
    let (mut x, mut y) = reliable();
    let (mw, key) = y.a.alloc_mw_with_key(y.pd).unwrap();
    assert_eq!(bind(&mut y, mw, key ^ 1, (0, 10), true), Status::Success);
    y.recv(4, 0, 50);
    y.recv(5, 0, 50);
    let wr = SendWr::new(2, SendOp::SendInvalidate { rkey: key ^ 1 }, x.source(0, 30));
    assert_eq!(message(&mut x, &mut y, wr), Ok(Placed::New));
    let got = y.received();
    assert_eq!((got[0].wr_id, got[0].imm, got[0].invalidated, got[0].byte_len), (4, None, Some(key ^ 1), 30));
    // A key that is not there, and that of a region, are not made void. The receive stays.
    for change in [0, 1] {
        let (mut x, mut fresh) = reliable();
        fresh.recv(6, 0, 50);
        let op = SendOp::SendInvalidate { rkey: fresh.dst.rkey ^ change };
        let refused = message(&mut x, &mut fresh, SendWr::new(3, op, Data::Sges(Sges::None)));
        assert_eq!(refused, Err(if change == 0 { Violation::AccessDenied } else { Violation::BadKey }));
        assert_eq!(fresh.received(), []);
    }
    // By ourselves.
    assert_eq!(bind(&mut y, mw, key ^ 2, (0, 10), true), Status::Success);
    for status in [Status::Success, Status::WindowBind] {
        y.post(SendWr::new(8, SendOp::LocalInvalidate { rkey: key ^ 2 }, Data::Sges(Sges::None)));
        settle(&mut y);
        assert_eq!(ids(&y.sent()), [(8, status)]);
    }
}

#[test]
fn revoked_region_fails_the_receive_that_uses_it_and_a_changed_one_keeps_its_keys() {
    let (mut x, mut y) = reliable();
    y.recv(4, 0, 50);
    assert!(!y.a.is_mr_in_use(y.own.id), "receives may wait for ever");
    assert_eq!(y.a.dereg_mr(y.own.id).unwrap_err(), Error::Busy("the memory region"));
    y.a.revoke_mr(y.own.id).unwrap();
    let wr = SendWr::new(2, SendOp::Send, x.source(0, 30));
    assert_eq!(message(&mut x, &mut y, wr), Err(Violation::ReceiveFault));
    y.a.set_error(y.qp, Status::FlushError).unwrap();
    assert_eq!(ids(&y.received()), [(4, Status::LocalProtection)]);

    let (mut x, mut y) = reliable();
    let (pd, dst) = (y.pd, y.dst);
    y.a.rereg_mr(dst.id, pd, Access::LOCAL_WRITE | Access::REMOTE_WRITE, Some((Memory::zeroed(100), 500)))
        .unwrap();
    let now = y.a.query_mr(dst.id).unwrap();
    assert_eq!((now.rkey, now.lkey, now.len, now.base), (dst.rkey, dst.lkey, 100, 500));
    let wr = write(&x, dst.rkey, 500, 100);
    assert_eq!(message(&mut x, &mut y, wr), Ok(Placed::New));
    y.a.rereg_mr(dst.id, pd, Access::LOCAL_WRITE, None).unwrap();
    let wr = write(&x, dst.rkey, 500, 1);
    assert_eq!(message(&mut x, &mut y, wr), Err(Violation::AccessDenied));
    assert!(y.a.rereg_mr(dst.id, pd, Access::REMOTE_WRITE, None).is_err());
    y.a.dereg_mr(dst.id).unwrap();
}

#[test]
fn queue_pair_refuses_what_it_does_not_offer_whatever_keys_allow() {
    let (mut x, mut y) = reliable();
    y.a.set_qp_access(y.qp, Access::REMOTE_READ).unwrap();
    let wr = write(&x, y.dst.rkey, 0, 10);
    assert_eq!(message(&mut x, &mut y, wr), Err(Violation::Unsupported));
    let (mut x, mut y) = reliable();
    y.a.set_qp_access(y.qp, Access::REMOTE_WRITE).unwrap();
    let op = SendOp::Read { rkey: y.src.rkey, offset: 0 };
    let wr = SendWr::new(1, op, x.own_sge(0, 10));
    assert_eq!(message(&mut x, &mut y, wr), Err(Violation::Unsupported));
}

#[test]
fn waiting_for_a_receive_is_told_from_everything_else() {
    let (mut x, mut y) = reliable();
    assert!(!x.a.waits_for_receive(x.qp));
    x.post(SendWr::new(1, SendOp::Send, x.source(0, 10)));
    assert!(x.a.waits_for_receive(x.qp));
    y.recv(4, 0, 50);
    give_credit(&mut x, &mut y);
    assert!(!x.a.waits_for_receive(x.qp));
    run(&mut x, &mut y, 100);
    x.post(write(&x, y.dst.rkey, 0, 10));
    assert!(!x.a.waits_for_receive(x.qp));
}

#[test]
fn shared_receive_is_filled_by_other_ways_than_a_queue_pair() {
    let mut e = End::new(1, |_| {});
    let srq = e.a.create_srq(e.pd, 4).unwrap();
    e.a.hold_srq(srq).unwrap();
    assert_eq!(e.a.destroy_srq(srq), Err(Error::Busy("the shared receive queue")));
    assert_eq!(e.a.fill_srq_recv(srq, &[b"x"]), None);
    let wr = |wr_id, len| RecvWr { wr_id, sges: e.own_sge(10, len).into() };
    let (long, short) = (wr(1, 10), wr(2, 3));
    e.a.post_srq_recv(srq, long).unwrap();
    e.a.post_srq_recv(srq, short).unwrap();
    e.a.arm_srq_limit(srq, 1).unwrap();
    assert_eq!(e.a.fill_srq_recv(srq, &[b"head", b"body"]), Some((1, Ok(()))));
    assert_eq!(e.bytes(e.own, 10, 8), b"headbody");
    assert_eq!(e.a.take_srq_event(), None);
    assert_eq!(e.a.fill_srq_recv(srq, &[b"head"]), Some((2, Err(Error::TooLong { len: 4, max: 3 }))));
    assert_eq!(e.a.take_srq_event(), Some(srq));
    e.a.release_srq(srq);
    e.a.destroy_srq(srq).unwrap();
    e.a.dereg_mr(e.own.id).unwrap();
}
