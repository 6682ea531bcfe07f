//! Tests against peers that send invalid segments.

use super::*;
use proptest::prelude::*;

fn write(y: &End) -> Incoming {
    Incoming {
        op: SegmentOp::Write,
        msn16: 0,
        rsn16: None,
        key: y.dst.rkey,
        position: 0,
        first: true,
        last: None,
    }
}
fn send(rsn: u16) -> Incoming {
    let last = Some(Tail::default());
    Incoming { op: SegmentOp::Send, msn16: 0, rsn16: Some(rsn), key: 0, position: 0, first: true, last }
}
fn all(y: &End) -> Vec<u8> {
    [y.src, y.dst, y.own].iter().flat_map(|m| y.bytes(*m, 0, SIZE)).collect()
}

/// Every one of these is refused with the right reason, and not a byte changes.
#[test]
fn invalid_segments_are_rejected_before_any_write() {
    let mut y = End::new(2, |_| {});
    y.recv(1, 0, 10);
    let before = all(&y);
    let tail = Some(Tail::default());
    let w = write(&y);
    let cases: Vec<(Incoming, usize, Violation)> = vec![
        (Incoming { key: w.key ^ 1, ..w }, 5, Violation::BadKey),
        (Incoming { key: y.dst.lkey, ..w }, 5, Violation::BadKey),
        (Incoming { key: y.src.rkey, ..w }, 5, Violation::AccessDenied),
        (Incoming { key: y.own.rkey, ..w }, 5, Violation::AccessDenied),
        (Incoming { position: SIZE - 4, ..w }, 5, Violation::OutOfBounds),
        (Incoming { position: u64::MAX - 3, ..w }, 5, Violation::OutOfBounds),
        (Incoming { position: u64::MAX, ..w }, 5, Violation::OutOfBounds),
        (Incoming { msn16: 1 << 14, ..w }, 5, Violation::TooFarAhead),
        (Incoming { rsn16: Some(1), last: tail, ..w }, 5, Violation::CreditExceeded),
        (send(1), 5, Violation::CreditExceeded),
        (send(u16::MAX), 5, Violation::CreditExceeded),
        (Incoming { position: 6, first: false, ..send(0) }, 5, Violation::TooLong),
        (Incoming { position: 1 << 31, first: false, ..send(0) }, 5, Violation::TooLong),
        (Incoming { op: SegmentOp::ReadResponse, ..w }, 5, Violation::BadKey),
        (Incoming { op: SegmentOp::ReadRequest, ..w }, 29, Violation::TooLong),
        (Incoming { op: SegmentOp::AtomicRequest, ..w }, 53, Violation::TooLong),
    ];
    for (seg, len, want) in cases {
        assert_eq!(y.a.place(y.qp, &seg, &vec![0xaa; len]), Err(want), "{seg:?}");
    }
    let malformed = [
        (Incoming { first: false, ..w }, 0),
        (w, 0),
        (Incoming { rsn16: Some(0), ..w }, 5),
        (Incoming { rsn16: None, ..send(0) }, 5),
        (Incoming { position: 3, ..send(0) }, 5),
        (Incoming { first: false, ..send(0) }, 5),
        (Incoming { op: SegmentOp::ReadRequest, last: tail, ..w }, 5),
        (Incoming { op: SegmentOp::AtomicRequest, last: tail, ..w }, 28),
        (Incoming { op: SegmentOp::ReadRequest, rsn16: Some(0), ..w }, 5),
    ];
    for (seg, len) in malformed {
        let got = y.a.place(y.qp, &seg, &vec![0xaa; len]);
        assert!(matches!(got, Err(Violation::Malformed(_))), "{seg:?} {got:?}");
    }
    assert_eq!(all(&y), before);
    assert_eq!(y.a.place(QpId::of_raw(7), &w, &[1]), Err(Violation::NoQueuePair));
}

#[test]
fn segments_of_a_message_must_agree() {
    let mut y = End::new(2, |_| {});
    let w = Incoming { position: 100, ..write(&y) };
    let tail = Some(Tail::default());
    assert_eq!(y.a.place(y.qp, &w, &[1; 10]), Ok(Placed::New));
    let before = all(&y);
    let lies = [
        Incoming { key: y.src.rkey, position: 110, first: false, ..w },
        Incoming { position: 50, first: true, ..w },
        Incoming { position: 50, first: false, ..w },
        Incoming { position: 100, first: false, ..w },
        Incoming { position: 110, first: true, ..w },
        Incoming { last: tail, position: 100, first: true, ..w },
        Incoming { op: SegmentOp::ReadResponse, position: 110, first: false, ..w },
    ];
    for seg in lies {
        let got = y.a.place(y.qp, &seg, &[9; 10]);
        assert!(matches!(got, Err(Violation::Inconsistent(_))), "{seg:?} {got:?}");
    }
    assert_eq!(
        y.a.place(y.qp, &Incoming { last: tail, position: 130, first: false, ..w }, &[1; 10]),
        Ok(Placed::New)
    );
    for seg in [
        Incoming { position: 140, first: false, ..w },
        Incoming { position: 130, first: false, ..w },
        Incoming { position: 120, first: false, last: tail, ..w },
    ] {
        let got = y.a.place(y.qp, &seg, &[9; 10]);
        assert!(matches!(got, Err(Violation::Inconsistent(_))), "{seg:?} {got:?}");
    }
    assert_eq!(y.bytes(y.dst, 110, 20), before[(SIZE + 110) as usize..(SIZE + 130) as usize]);
}

#[test]
fn duplicates_and_overlaps_are_written_once() {
    let mut y = End::new(2, |_| {});
    let w = write(&y);
    let tail = Some(Tail::default());
    assert_eq!(y.a.place(y.qp, &Incoming { position: 10, first: false, ..w }, &[1; 10]), Ok(Placed::New));
    assert_eq!(
        y.a.place(y.qp, &Incoming { position: 12, first: false, ..w }, &[9; 5]),
        Ok(Placed::Duplicate)
    );
    assert_eq!(y.a.place(y.qp, &Incoming { position: 5, first: false, ..w }, &[2; 20]), Ok(Placed::New));
    let mut want = vec![2; 20];
    want[5..15].fill(1);
    assert_eq!(y.bytes(y.dst, 5, 20), want);
    assert_eq!(
        y.a.place(y.qp, &Incoming { last: tail, position: 20, first: false, ..w }, &[3; 10]),
        Ok(Placed::New)
    );
    assert_eq!(y.a.place(y.qp, &Incoming { last: tail, ..w }, &[4; 30]), Ok(Placed::New));
    assert_eq!(
        y.a.place(y.qp, &Incoming { last: tail, ..w }, &[5; 30]),
        Ok(Placed::Duplicate),
        "it is complete"
    );
    assert_eq!(y.bytes(y.dst, 0, 5), [4; 5]);
    assert_eq!(y.bytes(y.dst, 25, 5), [3; 5]);
    assert_eq!(y.a.stats(y.qp).unwrap().duplicate_bytes, 35);
}

#[test]
fn receives_are_consumed_in_order_and_once() {
    let mut y = End::new(2, |_| {});
    y.recv(1, 0, 10);
    y.recv(2, 10, 10);
    assert_eq!(
        y.a.place(y.qp, &send(1), &[1; 10]),
        Err(Violation::ReceiveOrder),
        "the first must come first"
    );
    assert_eq!(y.bytes(y.own, 10, 10), [0; 10]);
    let mut y = End::new(2, |_| {});
    y.recv(1, 0, 10);
    assert_eq!(y.a.place(y.qp, &Incoming { msn16: 1, ..send(0) }, &[1; 10]), Ok(Placed::New));
    assert_eq!(y.a.place(y.qp, &send(0), &[2; 10]), Err(Violation::ReceiveOrder), "used twice");
    assert_eq!(y.bytes(y.own, 0, 10), [1; 10]);
}

#[test]
fn message_too_long_for_its_receive_fails_both_ends() {
    let (mut x, mut y) = reliable();
    y.recv(1, 0, 10);
    y.recv(2, 0, 10);
    give_credit(&mut x, &mut y);
    x.post(SendWr::new(3, SendOp::Send, x.source(0, 11)));
    let (s, p) = x.segment(100).unwrap();
    let v = y.place(&s, &p).unwrap_err();
    assert_eq!(v, Violation::TooLong);
    y.a.set_error(y.qp, Status::RemoteInvalidRequest).unwrap();
    assert_eq!(ids(&y.received()), [(1, Status::LocalLength), (2, Status::FlushError)]);
    x.a.set_error(x.qp, Violation::status_of_code(v.code())).unwrap();
    assert_eq!(ids(&x.sent()), [(3, Status::RemoteInvalidRequest)]);
    assert_eq!(Violation::status_of_code(Violation::BadKey.code()), Status::RemoteAccess);
    assert_eq!(y.bytes(y.own, 0, 10), [0; 10]);
}

fn request(y: &mut End, msn16: u16, rkey: u32, offset: u64, len: u64) -> Result<Placed, Violation> {
    let r = segment::ReadRequest { rkey, offset, len, sink: 1 }.encode();
    let seg = Incoming { op: SegmentOp::ReadRequest, msn16, key: 0, last: Some(Tail::default()), ..write(y) };
    y.a.place(y.qp, &seg, &r)
}

#[test]
fn forged_reads_are_rejected() {
    type Key = fn(&End) -> u32;
    let cases: [(Key, u64, u64, Violation); 5] = [
        (|y| y.src.rkey ^ 1, 0, 1, Violation::BadKey),
        (|y| y.dst.rkey, 0, 1, Violation::AccessDenied),
        (|y| y.src.rkey, SIZE, 1, Violation::OutOfBounds),
        (|y| y.src.rkey, u64::MAX, 2, Violation::OutOfBounds),
        (|y| y.src.rkey, 0, MAX_RDMA_LEN + 1, Violation::TooLong),
    ];
    for (key, offset, len, want) in cases {
        let mut y = End::new(2, |_| {});
        let key = key(&y);
        assert_eq!(request(&mut y, 0, key, offset, len), Err(want));
    }
    let mut y = End::new(2, |i| i.max_rd_atomic = 2);
    let key = y.src.rkey;
    for msn in 0..2 {
        assert_eq!(request(&mut y, msn, key, 0, 9), Ok(Placed::New));
    }
    assert_eq!(request(&mut y, 2, key, 0, 9), Err(Violation::TooManyReads));
    y.a.set_error(y.qp, Status::FlushError).unwrap();
    y.a.dereg_mr(y.src.id).unwrap();
}

#[test]
fn read_response_stays_within_its_request() {
    let (mut x, y) = reliable();
    let to = Sge { lkey: x.own.lkey, offset: 100, len: 10 };
    x.post(SendWr::new(1, SendOp::Read { rkey: y.src.rkey, offset: 0 }, to));
    let (_, p) = x.segment(100).unwrap();
    let sink = u32::from_be_bytes(p[20..24].try_into().unwrap());
    let answer = Incoming { op: SegmentOp::ReadResponse, key: sink, ..write(&y) };
    let place = |x: &mut End, seg: Incoming, n: usize| x.a.place(x.qp, &seg, &vec![7; n]);
    let (tail, other) = (Some(Tail::default()), x.own.rkey);
    assert_eq!(place(&mut x, answer, 11), Err(Violation::OutOfBounds));
    assert_eq!(place(&mut x, Incoming { key: sink ^ 1, ..answer }, 5), Err(Violation::BadKey));
    assert_eq!(place(&mut x, Incoming { key: other, ..answer }, 5), Err(Violation::BadKey));
    assert!(matches!(place(&mut x, Incoming { last: tail, ..answer }, 9), Err(Violation::Inconsistent(_))));
    assert!(matches!(place(&mut x, answer, 10), Err(Violation::Inconsistent(_))));
    assert_eq!(x.bytes(x.own, 0, SIZE), vec![0; SIZE as usize]);
    assert_eq!(place(&mut x, Incoming { last: tail, ..answer }, 10), Ok(Placed::New));
    assert_eq!(ids(&x.sent()), [(1, Status::Success)]);
    assert_eq!(
        place(&mut x, Incoming { msn16: 1, last: tail, ..answer }, 10),
        Err(Violation::BadKey),
        "it is over"
    );
}

#[test]
fn tracking_is_bounded_and_the_oldest_message_progresses() {
    let mut y = End::new(2, |_| {});
    let mr = y.a.reg_mr(y.pd, Memory::zeroed(2 * MAX_HOLES + 100), Access::ALL).unwrap();
    let w = Incoming { key: mr.rkey, ..write(&y) };
    let at = |position, first| Incoming { position, first, ..w };
    for i in 1..=MAX_HOLES as u64 {
        assert_eq!(y.a.place(y.qp, &at(2 * i, false), &[1]), Ok(Placed::New));
    }
    let beyond = 2 * MAX_HOLES as u64 + 50;
    assert_eq!(y.a.place(y.qp, &at(beyond, false), &[1]), Ok(Placed::Refused));
    assert_eq!(y.a.place(y.qp, &Incoming { msn16: 5, ..w }, &[1]), Ok(Placed::Refused));
    assert_eq!(y.bytes(mr, beyond, 1), [0]);
    assert_eq!(y.a.stats(y.qp).unwrap().refused_segments, 2);
    assert_eq!(y.a.place(y.qp, &at(0, true), &[1]), Ok(Placed::New), "the front");
    assert_eq!(y.a.place(y.qp, &at(1, false), &[1]), Ok(Placed::New));
    assert_eq!(y.a.place(y.qp, &at(3, false), &[1]), Ok(Placed::New), "closes a hole");
    assert_eq!(y.a.place(y.qp, &at(beyond, false), &[1]), Ok(Placed::New), "there is room again");
}

#[test]
fn finished_messages_leave_no_state() {
    let mut y = End::new(2, |_| {});
    let whole = Incoming { last: Some(Tail::default()), ..write(&y) };
    // More messages than ranges can be tracked, and eight turns of the 16-bit number.
    for n in 0..=MAX_HOLES as u64 {
        let seg = Incoming { msn16: n as u16, ..whole };
        assert_eq!(y.a.place(y.qp, &seg, &[n as u8; 3]), Ok(Placed::New));
        assert_eq!(y.a.place(y.qp, &seg, &[n as u8 ^ 1; 3]), Ok(Placed::Duplicate));
    }
    let msn16 = (MAX_HOLES as u64 + 1) as u16;
    assert_eq!(
        y.a.place(y.qp, &Incoming { msn16, position: 9, first: false, ..whole }, &[1]),
        Ok(Placed::New)
    );
}

fn any_segment() -> impl Strategy<Value = (Incoming, usize)> {
    let op = prop_oneof![
        Just(SegmentOp::Write),
        Just(SegmentOp::Send),
        Just(SegmentOp::ReadRequest),
        Just(SegmentOp::ReadResponse),
        Just(SegmentOp::AtomicRequest)
    ];
    let msn = prop_oneof![4 => 0u16..6, 1 => any::<u16>()];
    let rsn = prop_oneof![2 => Just(None), 4 => (0u16..4).prop_map(Some), 1 => any::<u16>().prop_map(Some)];
    // Keys are indices here: the regions of the end under attack, or forged ones.
    let key = prop_oneof![6 => 0u32..3, 1 => any::<u32>()];
    let position = prop_oneof![6 => 0u64..200, 1 => SIZE - 9..SIZE + 9, 1 => any::<u64>()];
    let last = proptest::option::of(any::<bool>().prop_map(|solicited| Tail {
        imm: Some(1),
        invalidates: false,
        solicited,
    }));
    let seg = (op, msn, rsn, key, position, any::<bool>(), last, 0usize..60);
    seg.prop_map(|(op, msn16, rsn16, key, position, first, last, n)| {
        (Incoming { op, msn16, rsn16, key, position, first: first || position == 0, last }, n)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Whatever comes, nothing panics, and only what may be written is written.
    #[test]
    fn random_attacks_stay_in_bounds(
        unreliable: bool,
        segs in proptest::collection::vec(any_segment(), 1..80),
    ) {
        let mut y = End::new(2, |i| if unreliable { i.kind = Kind::Unreliable });
        for i in 0..3 {
            y.recv(i, i * 40, 30);
        }
        let src = y.bytes(y.src, 0, SIZE);
        let keys = [y.dst.rkey, y.src.rkey, y.own.rkey];
        for (seg, n) in segs {
            let key = keys.get(seg.key as usize).copied().unwrap_or(seg.key);
            let dst = y.bytes(y.dst, 0, SIZE);
            let got = y.a.place(y.qp, &Incoming { key, ..seg }, &vec![0xbb; n]);
            // Others can also come of a message that waited behind this one.
            use Violation::{CreditExceeded, Inconsistent, Malformed, TooFarAhead};
            if matches!(
                got,
                Ok(Placed::Duplicate | Placed::Refused)
                    | Err(Malformed(_) | Inconsistent(_) | TooFarAhead | CreditExceeded)
            ) {
                prop_assert!(dst == y.bytes(y.dst, 0, SIZE), "{:?}", got);
            }
            while let Some(s) = y.a.next_segment(y.qp, 100) {
                let mut out = vec![0; s.len as usize];
                prop_assert_eq!(y.a.gather(y.qp, &s, &mut out), Ok(()));
            }
        }
        prop_assert!(y.bytes(y.src, 0, SIZE) == src);
        let own = y.bytes(y.own, 0, SIZE);
        for (i, b) in own.iter().enumerate() {
            let in_a_receive = i < 120 && i % 40 < 30;
            prop_assert!(*b == 0 || in_a_receive, "byte {} was written", i);
        }
        y.a.set_error(y.qp, Status::FlushError).unwrap();
        prop_assert_eq!(y.received().len(), 3, "every receive completes exactly once");
        for mr in [y.src, y.dst, y.own] {
            prop_assert!(y.a.dereg_mr(mr.id).is_ok());
        }
    }
}
