//! Tests of ordered queue pairs, where they differ from others.

use super::*;
use crate::ordered::{MaxPayload, Outgoing, PeerAtomic, PeerRead, Piece, ReceivedMessage, RemoteError};

const ROOMS: MaxPayload = MaxPayload { write: 1000, answer: 1200, untagged: 900 };

fn ordered() -> End {
    End::new(1, |i| (i.kind, i.max_rd_atomic) = (Kind::Ordered, 2))
}
fn next(e: &mut End) -> Option<Piece> {
    e.a.next_ordered(e.qp, ROOMS)
}
fn lens(e: &mut End) -> Vec<u32> {
    core::iter::from_fn(|| next(e).map(|p| p.len)).collect()
}

#[test]
fn ordered_messages_are_whole_and_need_no_credit() {
    let mut e = ordered();
    let read = PeerRead { rkey: e.src.rkey, offset: 0, len: 2500, sink: 9 };
    e.a.accept_read(e.qp, read).unwrap();
    e.post(SendWr::new(1, SendOp::Write { rkey: 5, offset: 0 }, e.source(0, 1500)));
    e.post(SendWr::new(2, SendOp::Send, e.source(0, 1000)));
    let mut out = lens(&mut e);
    // The answer is not kept waiting by long messages.
    assert_eq!(out, [1200, 1200, 100, 1000, 500, 900, 100]);
    e.a.accept_read(e.qp, read).unwrap();
    e.post(SendWr::new(3, SendOp::Send, e.source(0, 1000)));
    out = lens(&mut e);
    assert_eq!(out, [1200, 1200, 100, 900, 100]);
}

#[test]
fn accepted_work_completes_in_order_and_releases_memory() {
    let mut e = ordered();
    let read = PeerRead { rkey: e.src.rkey, offset: 3, len: 1500, sink: 9 };
    let data = e.source(5, 1200);
    e.post(SendWr::new(1, SendOp::Send, data));
    e.post(SendWr::new(2, SendOp::Send, Data::Inline(b"abc"[..].into())));
    let mut out = Vec::new();
    let first = next(&mut e).unwrap();
    assert_eq!((first.len, first.last, first.more), (900, false, true));
    e.a.on_taken(e.qp, 1);
    assert!(e.sent().is_empty(), "no message was given out whole");
    let second = next(&mut e).unwrap();
    e.a.append_piece(e.qp, &first, &mut out).unwrap();
    e.a.append_piece(e.qp, &second, &mut out).unwrap();
    assert_eq!(out, e.bytes(e.src, 5, 1200));
    let mut places = Vec::new();
    assert!(e.a.piece_places(e.qp, &second, &mut places));
    assert_eq!(places, [MrRange { mr: e.src.id, offset: 905, len: 300 }]);
    let third = next(&mut e).unwrap();
    assert_eq!((third.len, third.last, third.more), (3, true, false));
    assert!(!e.a.piece_places(e.qp, &third, &mut places), "it is in no region");
    e.a.append_piece(e.qp, &third, &mut out).unwrap();
    assert_eq!(out[1200..], *b"abc");
    e.a.on_taken(e.qp, 1);
    assert_eq!(e.sent().iter().map(|w| w.wr_id).collect::<Vec<_>>(), [1]);
    e.a.on_taken(e.qp, 5);
    assert_eq!(e.sent().iter().map(|w| w.wr_id).collect::<Vec<_>>(), [2]);
    assert_eq!(e.a.append_piece(e.qp, &third, &mut out), Err(GatherError::Stale));
    assert_eq!(out.len(), 1203, "nothing was added");
    // The answer holds its region until the stream has all of it, or the queue pair ends.
    for ends in [false, true] {
        e.a.accept_read(e.qp, read).unwrap();
        assert_eq!(lens(&mut e), [1200, 300]);
        assert_eq!(e.a.dereg_mr(e.src.id).err(), Some(Error::Busy("the memory region")));
        match ends {
            true => e.a.set_error(e.qp, Status::FlushError).unwrap(),
            false => e.a.on_taken(e.qp, 1),
        }
    }
    assert!(e.a.dereg_mr(e.src.id).is_ok());
}

/// Posts any of the operations, of any length.
fn post_any(e: &mut End, rng: &mut base::Rng, n: u64) {
    let len = [0, 3, 16, 17, 300, 900, 901, 1000, 1001, 2500][rng.below(10) as usize];
    let data = match rng.below(3) {
        0 => Data::Inline(vec![n as u8; len.min(300) as usize].into()),
        _ => e.source(rng.below(8), len).into(),
    };
    let answer = |len| Data::from(Sge { lkey: e.own.lkey, offset: 0, len });
    let op = AtomicOp::FetchAdd { add: n, mask: 0 };
    let (op, data) = match rng.below(7) {
        0 => (SendOp::Write { rkey: 5, offset: n }, data),
        1 => (SendOp::WriteImm { rkey: 5, offset: n, imm: 7 }, data),
        2 => (SendOp::SendInvalidate { rkey: 5 }, data),
        3 => (SendOp::Read { rkey: 5, offset: n }, answer(len)),
        4 => (SendOp::Atomic { rkey: 5, offset: 8 * n, op }, answer(8)),
        _ => (SendOp::Send, data),
    };
    let (fence, solicited) = (rng.below(8) == 0, rng.below(4) == 0);
    e.post(SendWr { fence, solicited, ..SendWr::new(n, op, data) });
}

#[test]
fn whole_message_fast_path_equals_the_general_path() {
    for seed in 0..200 {
        let mut ends = [ordered(), ordered()];
        let (mut whole, mut given) = (0, [Vec::new(), Vec::new()]);
        for (way, e) in ends.iter_mut().enumerate() {
            let mut rng = base::Rng::from_u64(seed);
            for n in 0..60 {
                match rng.below(4) {
                    0 if e.a.usage(e.qp).is_some_and(|u| u.answers.0 == 0) => {
                        let read =
                            PeerRead { rkey: e.src.rkey, offset: n, len: rng.below(2500) as u32, sink: 9 };
                        e.a.accept_read(e.qp, read).unwrap();
                    }
                    0 | 1 => post_any(e, &mut rng, n),
                    2 => {
                        let piece = match way {
                            0 => e.a.next_ordered(e.qp, ROOMS),
                            _ => e.a.next_general(e.qp, ROOMS),
                        };
                        let mut bytes = Vec::new();
                        if let Some(p) = &piece {
                            e.a.append_piece(e.qp, p, &mut bytes).unwrap();
                            whole += u32::from(way == 0 && p.offset == 0 && p.last);
                        }
                        given[way].push((piece, bytes, e.a.activated().is_some(), None));
                    }
                    _ => {
                        e.a.on_taken(e.qp, rng.below(3) as usize);
                        let (stats, done) = (e.a.stats(e.qp).unwrap(), e.sent());
                        let counts = (stats.segments_out, stats.bytes_out);
                        given[way].push((None, Vec::new(), false, Some((counts, done))));
                    }
                }
            }
        }
        assert!(whole > 0, "seed {seed}: no message was whole");
        let [short, long] = given;
        assert_eq!(short, long, "seed {seed}");
    }
}

#[test]
fn started_read_response_releases_its_region_on_error() {
    let mut e = ordered();
    let read = PeerRead { rkey: e.src.rkey, offset: 0, len: 1500, sink: 9 };
    e.a.accept_read(e.qp, read).unwrap();
    assert_eq!(next(&mut e).map(|p| (p.what, p.last)), Some((Outgoing::ReadResponse, false)));
    assert_eq!(e.a.usage(e.qp).map(|u| (u.answers.0, u.messages_out.0)), Some((1, 1)));
    e.a.destroy_qp(e.qp).unwrap();
    assert!(e.a.dereg_mr(e.src.id).is_ok());
}

#[test]
fn whole_messages_are_delivered_at_once() {
    let mut e = ordered();
    let arrival = |len| ReceivedMessage { len, ..ReceivedMessage::default() };
    assert_eq!(e.a.deliver_bytes(e.qp, b"abc", arrival(3)), Err(RemoteError::NoReceive));
    e.recv(1, 7, 3);
    assert_eq!(e.a.deliver_bytes(e.qp, b"abcd", arrival(4)), Err(RemoteError::TooLong));
    assert_eq!(e.a.deliver_bytes(e.qp, b"abc", arrival(3)), Ok(()));
    assert_eq!(e.received().iter().map(|w| (w.wr_id, w.byte_len)).collect::<Vec<_>>(), [(1, 3)]);
    assert_eq!(e.bytes(e.own, 7, 3), b"abc");
    let stats = e.a.stats(e.qp).unwrap();
    assert_eq!((stats.segments_in, stats.bytes_in), (1, 3));
}

#[test]
fn ordered_queue_pairs_enforce_limits_and_operations() {
    let mut e = ordered();
    let op = SendOp::Atomic { rkey: 1, offset: 0, op: AtomicOp::FetchAdd { add: 1, mask: 0 } };
    let own = |e: &End, len| Sge { lkey: e.own.lkey, offset: 0, len };
    let wr = SendWr::new(1, op, own(&e, 4));
    assert!(matches!(e.a.post_send(e.qp, wr), Err(Error::Invalid(_))), "eight bytes");
    let wr = SendWr::new(1, SendOp::SendImm { imm: 1 }, e.source(0, 1));
    assert!(matches!(e.a.post_send(e.qp, wr), Err(Error::Unsupported(_))));
    for i in 0..3 {
        e.post(SendWr::new(i, op, own(&e, 8)));
    }
    let asked = next(&mut e).map(|p| p.what);
    let Some(Outgoing::Atomic { id, .. }) = asked else { panic!("{asked:?}") };
    assert_eq!(e.a.atomic_op(e.qp, id), Some(AtomicOp::FetchAdd { add: 1, mask: 0 }));
    assert_eq!((next(&mut e).is_some(), next(&mut e)), (true, None));
    assert!(matches!(e.a.set_read_depths(e.qp, 3, 1), Err(Error::Invalid(_))));
    e.a.set_read_depths(e.qp, 1, 1).unwrap();
    let (mut r, _) = reliable();
    let wr = SendWr::new(1, SendOp::LocalInvalidate { rkey: 1 }, own(&r, 8));
    assert!(matches!(r.a.post_send(r.qp, wr), Err(Error::TooLong { .. })));
    assert_eq!(r.a.next_ordered(r.qp, ROOMS), None, "of another kind");
    assert_eq!(r.a.receive_places(r.qp, 0, 0, &mut Vec::new()), Err(RemoteError::NoQueuePair));
}

#[test]
fn atomics_modify_memory_and_respond_in_order() {
    let mut e = ordered();
    let mr = e.a.reg_mr(e.pd, Memory::zeroed(16), Access::LOCAL_WRITE | Access::REMOTE_ATOMIC).unwrap();
    let op = AtomicOp::FetchAdd { add: 3, mask: 0 };
    let ask = |offset, id| PeerAtomic { rkey: mr.rkey, offset, op, id };
    assert_eq!(e.a.accept_atomic(e.qp, ask(4, 0)), Err(RemoteError::Alignment));
    assert_eq!(e.a.accept_atomic(e.qp, ask(16, 0)), Err(RemoteError::Bounds));
    assert_eq!(e.a.accept_atomic(e.qp, ask(u64::MAX, 0)), Err(RemoteError::Wrap));
    for id in [1, 2] {
        e.a.accept_atomic(e.qp, ask(8, id)).unwrap();
    }
    assert_eq!(e.a.accept_atomic(e.qp, ask(8, 3)), Err(RemoteError::TooManyReads));
    assert_eq!(e.bytes(mr, 8, 8), 6u64.to_ne_bytes(), "the one too many changed nothing");
    for (id, value) in [(1, 0), (2, 3)] {
        assert_eq!(next(&mut e).map(|p| p.what), Some(Outgoing::AtomicResponse { id, value }));
    }
}

#[test]
fn memory_window_is_bound_to_one_queue_pair() {
    let mut e = ordered();
    let other = e.a.create_qp(e.pd, QpInit { kind: Kind::Ordered, ..QpInit::new(e.scq, e.rcq) }).unwrap();
    for s in [QpState::Rtr, QpState::Rts] {
        e.a.modify_qp(other, s).unwrap();
    }
    let mw = e.a.alloc_mw(e.pd).unwrap();
    let range = WindowRange { mr: e.dst.id, offset: 100, len: 50, access: Access::REMOTE_WRITE };
    assert_eq!(e.a.bind_mw(e.qp, mw, WindowRange { mr: e.src.id, ..range }), Err(Error::Access));
    assert_eq!(e.a.bind_mw(e.qp, mw, WindowRange { offset: SIZE - 49, ..range }), Err(Error::OutOfBounds));
    let rkey = e.a.bind_mw(e.qp, mw, range).unwrap();
    let places = |e: &mut End, qp, at, len| {
        let mut out = Vec::new();
        e.a.write_places(qp, (rkey, at, len), &mut out).map(|()| out)
    };
    let qp = e.qp;
    assert_eq!(places(&mut e, qp, 10, 40), Ok(vec![MrRange { mr: e.dst.id, offset: 110, len: 40 }]));
    assert_eq!(places(&mut e, qp, 10, 41), Err(RemoteError::Bounds));
    assert_eq!(places(&mut e, other, 10, 40), Err(RemoteError::Association));
    let read = PeerRead { rkey, offset: 0, len: 1, sink: 0 };
    assert_eq!(e.a.accept_read(qp, read), Err(RemoteError::Rights));
    assert_eq!(e.a.dereg_mr(e.dst.id).err(), Some(Error::Busy("the memory region")));
    // Binding again makes the old key void; so does the peer's send, but not for another queue pair.
    let new = e.a.bind_mw(qp, mw, range).unwrap();
    assert_eq!(places(&mut e, qp, 0, 1), Err(RemoteError::Key));
    e.recv(1, 0, 10);
    let arrival =
        |invalidate| ReceivedMessage { len: 0, invalidate: Some(invalidate), ..ReceivedMessage::default() };
    assert_eq!(e.a.deliver(qp, arrival(rkey)), Err(RemoteError::Key));
    assert_eq!(
        e.a.deliver(qp, arrival(e.dst.rkey)),
        Err(RemoteError::CannotInvalidate),
        "regions keep their keys"
    );
    assert_eq!(e.a.deliver(qp, arrival(new)), Ok(()));
    assert_eq!(e.received()[0].invalidated, Some(new));
    assert!(e.a.dereg_mr(e.dst.id).is_ok());
    e.a.dealloc_mw(mw).unwrap();
    assert_eq!(e.a.dealloc_mw(mw), Err(Error::NotFound("memory window")));
}

#[test]
fn shared_receive_queue_serves_queue_pairs_in_turn() {
    let mut e = ordered();
    let srq = e.a.create_srq(e.pd, 8).unwrap();
    let init = QpInit { kind: Kind::Ordered, srq: Some(srq), ..QpInit::new(e.scq, e.rcq) };
    let qp = e.a.create_qp(e.pd, init).unwrap();
    e.a.modify_qp(qp, QpState::Rtr).unwrap();
    for i in 0..8 {
        let sges = Sge { lkey: e.own.lkey, offset: 10 * i, len: 10 }.into();
        e.a.post_srq_recv(srq, RecvWr { wr_id: i, sges }).unwrap();
    }
    // All of them can be used in a row, however few it holds at a time.
    for i in 0..8 {
        let mut out = Vec::new();
        e.a.receive_places(qp, 0, 10, &mut out).unwrap();
        assert_eq!(out, [MrRange { mr: e.own.id, offset: 10 * i, len: 10 }]);
        e.a.deliver(qp, ReceivedMessage { len: 10, ..ReceivedMessage::default() }).unwrap();
    }
    assert_eq!(e.a.receive_places(qp, 0, 1, &mut Vec::new()), Err(RemoteError::NoReceive));
}

#[test]
fn masked_fetch_add_splits_into_fields() {
    // The algorithm of RFC 7306, section 5.1.1, bit by bit.
    let by_bits = |old: u64, add: u64, mask: u64| {
        let (mut carry, mut sum) = (0, 0);
        for bit in 0..64 {
            let n = carry + (old >> bit & 1) + (add >> bit & 1);
            sum |= (n & 1) << bit;
            carry = n >> 1 & !(mask >> bit) & 1;
        }
        sum
    };
    let mut rng = base::Rng::from_u64(1);
    for _ in 0..1000 {
        let (old, add, mask) = (rng.u64(), rng.u64(), rng.u64() & rng.u64());
        assert_eq!(AtomicOp::FetchAdd { add, mask }.apply(old), by_bits(old, add, mask));
    }
}
