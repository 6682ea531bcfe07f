//! Tests of each operation on a lossless, ordered network.

use super::*;
use crate::memory::tests::Foreign;
use std::sync::atomic::Ordering;

#[test]
fn write_lands_only_at_its_target() {
    let (mut x, mut y) = reliable();
    let data = vec![x.source(10, 100), x.source(500, 0), x.source(7, 1)];
    x.post(SendWr::new(1, SendOp::Write { rkey: y.dst.rkey, offset: 1000 }, data));
    run(&mut x, &mut y, 33);
    let mut want = vec![0; SIZE as usize];
    want[1000..1100].copy_from_slice(&x.bytes(x.src, 10, 100));
    want[1100..1101].copy_from_slice(&x.bytes(x.src, 7, 1));
    assert_eq!(y.bytes(y.dst, 0, SIZE), want);
    assert_eq!(ids(&x.sent()), [(1, Status::Success)]);
    assert!(y.received().is_empty());
    let (out, inn) = (x.a.stats(x.qp).unwrap(), y.a.stats(y.qp).unwrap());
    assert_eq!((out.segments_out, out.bytes_out, inn.segments_in, inn.bytes_in), (4, 101, 4, 101));
}

#[test]
fn sends_fill_receives_in_order_with_immediate_data() {
    let (mut x, mut y) = reliable();
    y.recv(10, 0, 100);
    y.recv(11, 100, 100);
    y.recv(12, 200, 0);
    x.post(SendWr::new(1, SendOp::Send, x.source(0, 100)));
    let wi = SendOp::WriteImm { rkey: y.dst.rkey, offset: 5, imm: 77 };
    x.post(SendWr { solicited: true, ..SendWr::new(2, wi, x.source(0, 10)) });
    x.post(SendWr::new(3, SendOp::SendImm { imm: 8 }, Vec::new()));
    run(&mut x, &mut y, 64);
    let got = y.received();
    let brief: Vec<_> =
        got.iter().map(|w| (w.wr_id, w.opcode, w.byte_len, w.imm, w.solicited, w.status)).collect();
    let ok = Status::Success;
    let want = [
        (10, Opcode::Recv, 100, None, false, ok),
        (11, Opcode::RecvWriteImm, 10, Some(77), true, ok),
        (12, Opcode::Recv, 0, Some(8), false, ok),
    ];
    assert_eq!(brief, want);
    assert_eq!(y.bytes(y.own, 0, 100), x.bytes(x.src, 0, 100));
    assert_eq!(y.bytes(y.own, 100, 100), [0; 100]);
    assert_eq!(x.sent().len(), 3);
}

#[test]
fn read_returns_peer_bytes_including_earlier_writes() {
    let (mut x, mut y) = reliable();
    let rw = y.a.reg_mr(y.pd, Memory::zeroed(100), Access::ALL).unwrap();
    x.post(SendWr::new(1, SendOp::Write { rkey: rw.rkey, offset: 20 }, x.source(0, 50)));
    let to =
        vec![Sge { lkey: x.own.lkey, offset: 0, len: 30 }, Sge { lkey: x.own.lkey, offset: 90, len: 40 }];
    x.post(SendWr::new(2, SendOp::Read { rkey: rw.rkey, offset: 10 }, to));
    x.post(SendWr::new(3, SendOp::Read { rkey: 0, offset: 10 }, Vec::new()));
    // The write's segments are held back: the read's request must wait for them.
    let w: Vec<_> = (0..5).map(|_| x.segment(10).unwrap()).collect();
    let (r, p) = x.segment(1000).unwrap();
    assert_eq!(r.op, SegmentOp::ReadRequest);
    assert_eq!(y.place(&r, &p), Ok(Placed::New));
    assert!(!y.a.has_segment(y.qp), "not answered before the write is there");
    for (s, p) in w.iter().rev() {
        assert_eq!(y.place(s, p), Ok(Placed::New));
        x.a.on_acked(x.qp, s.reference());
    }
    run(&mut x, &mut y, 7);
    // The request's own acknowledgement never came; the answer stands for it.
    assert_eq!(ids(&x.sent()), [(1, Status::Success), (2, Status::Success), (3, Status::Success)]);
    assert_eq!(x.bytes(x.own, 0, 30), y.bytes(rw, 10, 30));
    assert_eq!(x.bytes(x.own, 90, 40), y.bytes(rw, 40, 40));
    assert_eq!(x.bytes(x.own, 30, 60), [0; 60]);
    assert!(y.a.dereg_mr(rw.id).is_ok(), "no answer holds it any more");
}

#[test]
fn receive_completes_after_earlier_messages_are_placed() {
    let (mut x, mut y) = reliable();
    y.recv(1, 0, 10);
    give_credit(&mut x, &mut y);
    x.post(SendWr::new(1, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, x.source(0, 20)));
    x.post(SendWr::new(2, SendOp::Send, x.source(0, 10)));
    let (s1, s2, s3) = (x.segment(10).unwrap(), x.segment(10).unwrap(), x.segment(10).unwrap());
    for (s, p) in [&s3, &s2] {
        assert_eq!(y.place(s, p), Ok(Placed::New));
        assert!(y.received().is_empty());
    }
    // Send completions keep posting order, too.
    x.a.on_acked(x.qp, s3.0.reference());
    assert!(x.sent().is_empty());
    assert_eq!(y.place(&s1.0, &s1.1), Ok(Placed::New));
    assert_eq!(ids(&y.received()), [(1, Status::Success)]);
    x.a.on_acked(x.qp, s1.0.reference());
    x.a.on_acked(x.qp, s2.0.reference());
    assert_eq!(ids(&x.sent()), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn credit_limits_sends_but_not_read_responses() {
    let (mut x, mut y) = reliable();
    x.post(SendWr::new(1, SendOp::Send, x.source(0, 1)));
    y.post(SendWr::new(
        2,
        SendOp::Read { rkey: x.src.rkey, offset: 3 },
        Sge { lkey: y.own.lkey, offset: 0, len: 9 },
    ));
    run(&mut x, &mut y, 100);
    assert_eq!(ids(&y.sent()), [(2, Status::Success)], "not held up by the send that has no credit");
    assert!(x.sent().is_empty() && !x.a.has_segment(x.qp));
    while x.a.activated().is_some() {}
    y.recv(3, 0, 1);
    assert_eq!(y.a.take_credit_changes(), Some(y.qp));
    assert_eq!(y.a.take_credit_changes(), None);
    give_credit(&mut x, &mut y);
    assert_eq!(x.a.activated(), Some(x.qp));
    x.a.set_send_limit(x.qp, 0).unwrap();
    assert!(x.a.has_segment(x.qp), "credit never falls");
    run(&mut x, &mut y, 100);
    assert_eq!(ids(&x.sent()), [(1, Status::Success)]);
}

#[test]
fn credit_is_advertised_in_steps() {
    let mut y = End::new(2, |_| {});
    for n in 0..16 {
        y.recv(n, 0, 1);
    }
    assert_eq!(y.a.take_credit_changes(), Some(y.qp));
    let (mut told, mut tellings) = (y.a.recv_limit(y.qp).unwrap(), 0);
    let mut n = 0;
    // Each receive is posted again at once, for a while, and then none any more.
    while n < y.a.recv_limit(y.qp).unwrap() {
        assert!(n < told, "the peer has no credit, and there is some");
        let (op, last) = (SegmentOp::Send, Some(Tail::default()));
        let (msn16, rsn16) = (n as u16, Some(n as u16));
        let seg = Incoming { op, msn16, rsn16, key: 0, position: 0, first: true, last };
        assert_eq!(y.a.place(y.qp, &seg, &[1]), Ok(Placed::New));
        assert_eq!(y.received().len(), 1);
        if n < 64 {
            y.recv(n, 0, 1);
        }
        if y.a.take_credit_changes().is_some() {
            (told, tellings) = (y.a.recv_limit(y.qp).unwrap(), tellings + 1);
        }
        n += 1;
    }
    assert_eq!((n, told), (80, 80));
    assert!((16..=20).contains(&tellings), "{tellings}");
}

#[test]
fn fence_and_read_limit_delay_work() {
    let (mut x, mut y) = (End::new(1, |i| i.max_rd_atomic = 1), End::new(2, |i| i.max_rd_atomic = 1));
    let read = |x: &End, y: &End, id| {
        SendWr::new(
            id,
            SendOp::Read { rkey: y.src.rkey, offset: 0 },
            Sge { lkey: x.own.lkey, offset: 0, len: 9 },
        )
    };
    for id in 1..3 {
        let wr = read(&x, &y, id);
        x.post(wr);
    }
    let write = SendWr::new(3, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, x.source(0, 5));
    x.post(SendWr { fence: true, ..write });
    let (r, p) = x.segment(100).unwrap();
    assert!(!x.a.has_segment(x.qp), "one read at a time");
    y.place(&r, &p).unwrap();
    let (a, p) = y.segment(100).unwrap();
    x.place(&a, &p).unwrap();
    let (r, p) = x.segment(100).unwrap();
    assert_eq!(r.op, SegmentOp::ReadRequest);
    assert!(!x.a.has_segment(x.qp), "the fence holds");
    y.place(&r, &p).unwrap();
    run(&mut x, &mut y, 100);
    assert_eq!(x.sent().len(), 3);
}

#[test]
fn lost_bytes_are_retransmitted_and_spurious_losses_cancelled() {
    let (mut x, y) = reliable();
    x.post(SendWr::new(1, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, x.source(0, 100)));
    x.post(SendWr::new(2, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, Vec::new()));
    let s: Vec<_> = (0..11).map(|_| x.segment(10).unwrap()).collect();
    for i in [2, 3, 7, 10] {
        x.a.on_lost(x.qp, s[i].0.reference());
    }
    x.a.on_acked(x.qp, s[3].0.reference());
    let again = |x: &mut End| x.segment(64).map(|(s, _)| (s.msn, s.offset, s.len, s.retransmission));
    assert_eq!(again(&mut x), Some((0, 20, 10, true)));
    assert_eq!(again(&mut x), Some((0, 70, 10, true)));
    assert_eq!(again(&mut x), Some((1, 0, 0, true)));
    assert_eq!(again(&mut x), None);
    // Acknowledged bytes are never sent again, whatever is said of them later.
    x.a.on_lost(x.qp, s[3].0.reference());
    assert_eq!(again(&mut x), None);
    x.a.on_lost(x.qp, SegmentRef { msn: 0, offset: 0, len: 101 });
    x.a.on_acked(x.qp, SegmentRef { msn: 99, offset: 0, len: 1 });
    x.a.on_acked(x.qp, SegmentRef { msn: 0, offset: u64::MAX, len: 1 });
    for (s, _) in &s {
        x.a.on_acked(x.qp, s.reference());
    }
    assert_eq!(ids(&x.sent()), [(1, Status::Success), (2, Status::Success)]);
    let st = x.a.stats(x.qp).unwrap();
    assert_eq!((st.retransmitted_segments, st.retransmitted_bytes), (3, 20));
    assert_eq!(x.a.gather(x.qp, &s[0].0, &mut [0; 10]), Err(GatherError::Stale));
}

#[test]
fn out_of_order_messages_are_limited() {
    let (mut x, mut y) = (End::new(1, |i| i.max_send_wr = 20_000), End::new(2, |_| {}));
    let cq = x.a.create_cq(20_000).unwrap();
    let qp = x.a.create_qp(x.pd, QpInit { max_send_wr: 20_000, ..QpInit::new(cq, cq) }).unwrap();
    (x.qp, x.scq) = (qp, cq);
    x.up();
    for i in 0..20_000 {
        x.post(SendWr::new(i, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, x.source(0, 1)));
    }
    let segs: Vec<_> = core::iter::from_fn(|| x.segment(100)).collect();
    assert_eq!(segs.len() as u64, MAX_MESSAGES_AHEAD);
    for (s, p) in segs.iter().rev() {
        assert_eq!(y.place(s, p), Ok(Placed::New));
    }
    for (s, _) in &segs[1..] {
        x.a.on_acked(x.qp, s.reference());
    }
    assert!(!x.a.has_segment(x.qp) && x.sent().is_empty());
    while x.a.activated().is_some() {}
    x.a.on_acked(x.qp, segs[0].0.reference());
    assert_eq!(x.a.activated(), Some(x.qp));
    run(&mut x, &mut y, 100);
    let done = x.sent();
    assert!(done.iter().map(|w| w.wr_id).eq(0..20_000));
}

#[test]
fn read_responses_and_own_work_alternate() {
    let (mut x, mut y) = reliable();
    y.post(SendWr::new(
        1,
        SendOp::Read { rkey: x.src.rkey, offset: 0 },
        Sge { lkey: y.own.lkey, offset: 0, len: 100 },
    ));
    let (r, p) = y.segment(100).unwrap();
    x.place(&r, &p).unwrap();
    x.post(SendWr::new(2, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, x.source(0, 100)));
    let ops: Vec<_> = (0..10).map(|_| x.segment(10).unwrap().0.op).collect();
    assert_eq!(ops.iter().filter(|o| **o == SegmentOp::Write).count(), 5);
}

#[test]
fn memory_fault_fails_the_queue_pair_not_the_program() {
    let (mut x, mut y) = reliable();
    let f = Foreign::new(100, true);
    let broken = f.broken.clone();
    let mr = x.a.reg_mr(x.pd, Memory::from_backing(Box::new(f)), Access::ALL).unwrap();
    x.post(SendWr::new(
        1,
        SendOp::Write { rkey: y.dst.rkey, offset: 0 },
        Sge { lkey: mr.lkey, offset: 0, len: 50 },
    ));
    y.post(SendWr::new(2, SendOp::Write { rkey: mr.rkey, offset: 0 }, y.source(0, 50)));
    let (s, p) = y.segment(10).unwrap();
    assert_eq!(x.place(&s, &p), Ok(Placed::New));
    let (s, p) = y.segment(10).unwrap();
    broken.store(true, Ordering::Relaxed);
    assert_eq!(x.place(&s, &p), Err(Violation::LocalFault));
    let s = x.a.next_segment(x.qp, 10).unwrap();
    assert_eq!(x.a.gather(x.qp, &s, &mut [0; 10]), Err(GatherError::Fault));
    assert_eq!(ids(&x.sent()), [(1, Status::LocalProtection)]);
    assert_eq!(x.a.query_qp(x.qp).unwrap().state, QpState::Error);
    assert_eq!(x.a.read_mr(mr.id, 0, &mut [0]), Err(Error::Fault));
}

#[test]
fn read_response_holds_its_region_until_acknowledged() {
    let (mut x, mut y) = reliable();
    let to = Sge { lkey: x.own.lkey, offset: 0, len: 9 };
    x.post(SendWr::new(1, SendOp::Read { rkey: y.src.rkey, offset: 0 }, to));
    let (r, p) = x.segment(100).unwrap();
    y.place(&r, &p).unwrap();
    assert_eq!(y.a.dereg_mr(y.src.id).unwrap_err(), Error::Busy("the memory region"));
    let (s, p) = y.segment(100).unwrap();
    x.place(&s, &p).unwrap();
    assert_eq!(y.a.dereg_mr(y.src.id).unwrap_err(), Error::Busy("the memory region"), "it may be lost");
    y.a.on_acked(y.qp, s.reference());
    assert!(y.a.dereg_mr(y.src.id).is_ok());
}

#[test]
fn unsignaled_messages_are_awaited_only_when_retransmitted() {
    let (mut x, y) = reliable();
    for signaled in [false, true] {
        let write = SendOp::Write { rkey: y.dst.rkey, offset: 0 };
        x.post(SendWr { signaled, ..SendWr::new(1, write, x.source(0, 25)) });
    }
    let segs: Vec<_> = core::iter::from_fn(|| x.a.next_segment(x.qp, 10)).collect();
    assert!(segs.iter().map(|s| s.quiet).eq([true, true, true, false, false, false]));
    x.a.on_lost(x.qp, segs[1].reference());
    let again = x.a.next_segment(x.qp, 10).unwrap();
    assert_eq!((again.reference(), again.quiet), (segs[1].reference(), false));
}

#[test]
fn messages_beyond_four_gigabytes_are_delivered() {
    const GB: u64 = 1 << 30;
    let (mut x, mut y) = reliable();
    // Zeroed memory of this size is only reserved; the test touches a few pages of it.
    let big = |e: &mut End| e.a.reg_mr(e.pd, Memory::zeroed(6 << 30), Access::ALL).unwrap();
    let (from, to) = (big(&mut x), big(&mut y));
    x.a.write_mr(from.id, 5 * GB + 7, b"far").unwrap();
    let all = Sge { lkey: from.lkey, offset: 1, len: 6 * GB - 1 };
    x.post(SendWr::new(1, SendOp::Write { rkey: to.rkey, offset: 1 }, all));
    let segs: Vec<_> = core::iter::from_fn(|| x.a.next_segment(x.qp, GB as usize)).collect();
    assert!(segs.iter().map(|s| s.offset).eq((0..6).map(|i| i * GB)));
    assert!(segs.iter().all(|s| s.position == s.offset + 1));
    x.a.on_lost(x.qp, SegmentRef { msn: 0, offset: 5 * GB + 6, len: 3 });
    let (s, p) = x.segment(1400).unwrap();
    assert_eq!((s.offset, s.position, &p[..]), (5 * GB + 6, 5 * GB + 7, b"far".as_slice()));
    assert_eq!(y.place(&s, &p), Ok(Placed::New));
    assert_eq!(y.bytes(to, 5 * GB + 6, 5), b"\0far\0");
    for s in &segs {
        x.a.on_acked(x.qp, s.reference());
    }
    assert_eq!(x.sent()[0].byte_len, 6 * GB - 1);
}

#[test]
fn offsets_of_terabytes_do_not_overflow() {
    const TB: u64 = 1 << 40;
    let (mut x, mut y) = reliable();
    let rkey = y.dst.rkey;
    let piece = |position, first, last: Option<Tail>| Incoming {
        op: SegmentOp::Write,
        msn16: 0,
        rsn16: None,
        key: rkey,
        position,
        first,
        last,
    };
    assert_eq!(y.a.place(y.qp, &piece(TB, false, None), &[1]), Err(Violation::OutOfBounds));
    assert_eq!(y.a.place(y.qp, &piece(u64::MAX, false, None), &[1]), Err(Violation::OutOfBounds));
    assert_eq!(y.a.place(y.qp, &piece(9, false, None), &[1]), Ok(Placed::New));
    let op = SendOp::Write { rkey, offset: u64::MAX };
    assert_eq!(x.a.post_send(x.qp, SendWr::new(1, op, x.source(0, 1))), Err(Error::OutOfBounds));
    assert!(x.sent().is_empty());
}

/// Posts a Write of `len` bytes and takes its segments in `max_payload`: their lengths.
fn cuts(x: &mut End, len: u64, max_payload: MaxPayload) -> Vec<u32> {
    let op = SendOp::Write { rkey: 1, offset: 0 };
    let source = x.source(0, len);
    x.post(SendWr::new(1, op, Data::from(source)));
    let mut all = Vec::new();
    while let Some(ahead) = x.a.peek(x.qp, max_payload) {
        assert_eq!(x.a.next_segment_in(x.qp, max_payload), Some(ahead));
        all.push(ahead.len);
    }
    assert_eq!(x.a.next_segment_in(x.qp, max_payload), None);
    all
}

#[test]
fn short_messages_are_split_evenly_and_long_ones_fill_segments() {
    let (mut x, _) = reliable();
    let max_payload = MaxPayload { tail: 1, tail_imm: 7, ..MaxPayload::same(100) };
    for (len, lengths) in [
        (0, vec![0]),
        (99, vec![99]),
        // The last one's tail takes a byte.
        (100, vec![51, 49]),
        (101, vec![51, 50]),
        (199, vec![100, 99]),
        (200, vec![67, 67, 66]),
        (6_399, [vec![100; 63], vec![99]].concat()),
        (6_400, vec![100; 64]),
        (6_450, [vec![100; 64], vec![50]].concat()),
    ] {
        assert_eq!(cuts(&mut x, len, max_payload), lengths, "{len}");
    }
    let full = MaxPayload { even: false, ..max_payload };
    assert_eq!(cuts(&mut x, 200, full), [100, 100]);
    // The path's packets become smaller in the middle of a message.
    let op = SendOp::Write { rkey: 1, offset: 0 };
    let source = x.source(0, 200);
    x.post(SendWr::new(1, op, Data::from(source)));
    assert_eq!(x.a.next_segment_in(x.qp, max_payload).map(|s| s.len), Some(67));
    let less = MaxPayload { tail: 1, tail_imm: 7, ..MaxPayload::same(50) };
    let rest: Vec<_> = core::iter::from_fn(|| x.a.next_segment_in(x.qp, less)).map(|s| s.len).collect();
    assert_eq!(rest, [41, 41, 41, 10]);
}

#[test]
fn lookahead_includes_lost_segments() {
    let (mut x, _) = reliable();
    let max_payload = MaxPayload::same(100);
    let op = SendOp::Write { rkey: 1, offset: 0 };
    let source = x.source(0, 250);
    x.post(SendWr::new(1, op, Data::from(source)));
    let first = x.a.next_segment_in(x.qp, max_payload).unwrap();
    x.a.on_lost(x.qp, first.reference());
    let ahead = x.a.peek(x.qp, max_payload).unwrap();
    assert!(ahead.retransmission && (ahead.offset, ahead.len) == (0, 84), "{ahead:?}");
    assert_eq!(x.a.next_segment_in(x.qp, max_payload), Some(ahead));
    // It arrived after all: what is new is next.
    x.a.on_lost(x.qp, first.reference());
    x.a.on_acked(x.qp, first.reference());
    let ahead = x.a.peek(x.qp, max_payload).unwrap();
    assert!(!ahead.retransmission && (ahead.offset, ahead.len) == (84, 84), "{ahead:?}");
    assert_eq!(x.a.next_segment_in(x.qp, max_payload), Some(ahead));
}

#[test]
fn lookahead_stops_at_an_oversized_datagram() {
    let max_payload = MaxPayload::same(100);
    let mut x = End::new(1, |i| i.kind = Kind::Unreliable);
    for len in [101, 10] {
        let source = x.source(0, len);
        x.post(SendWr::new(len, SendOp::Send, Data::from(source)));
    }
    assert_eq!(x.a.peek(x.qp, max_payload), None);
    assert_eq!(x.a.next_segment_in(x.qp, max_payload).map(|s| s.len), Some(10));
}

#[test]
fn prefetch_hint_names_the_next_payload() {
    let (mut x, mut y) = reliable();
    let at = |e: &mut End, mr: Mr, offset, len| {
        base::Prefetch::new(e.a.address(MrRange { mr: mr.id, offset, len }).unwrap(), len as usize)
    };
    assert_eq!(x.a.prefetch_hint(x.qp), base::Prefetch::default());
    let op = SendOp::Write { rkey: y.dst.rkey, offset: 0 };
    x.post(SendWr::new(1, op, vec![x.source(10, 150), x.source(1000, 50)]));
    x.post(SendWr::new(2, SendOp::Read { rkey: y.src.rkey, offset: 20 }, x.own_sge(0, 300)));
    x.post(SendWr::new(3, op, x.source(5000, 70)));
    // The first message, then the rest of it, as far as it lies together.
    for (offset, len) in [(10, 150), (110, 50)] {
        let (soon, src) = (x.a.prefetch_hint(x.qp), x.src);
        assert_eq!(soon, at(&mut x, src, offset, len));
        let (seg, payload) = x.segment(100).unwrap();
        y.place(&seg, &payload).unwrap();
    }
    // A read has no payload of this end.
    assert_eq!(x.a.prefetch_hint(x.qp), base::Prefetch::default());
    let (seg, payload) = x.segment(100).unwrap();
    let (soon, src) = (x.a.prefetch_hint(x.qp), x.src);
    assert_eq!(soon, at(&mut x, src, 5000, 70));
    // Its answer, at the other end, has.
    y.place(&seg, &payload).unwrap();
    for (offset, len) in [(20, 300), (120, 200)] {
        let (soon, src) = (y.a.prefetch_hint(y.qp), y.src);
        assert_eq!(soon, at(&mut y, src, offset, len));
        y.segment(100).unwrap();
    }
}
