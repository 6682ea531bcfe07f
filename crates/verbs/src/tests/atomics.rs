//! Atomic operations on reliable queue pairs.

use super::*;
use crate::segment::AtomicRequest;

const ADD_ONE: AtomicOp = AtomicOp::FetchAdd { add: 1, mask: 0 };

fn swap(compare: u64, swap: u64) -> AtomicOp {
    AtomicOp::CompareSwap { compare, compare_mask: u64::MAX, swap, swap_mask: u64::MAX }
}

/// A region for the peer's atomic operations.
fn shared(e: &mut End) -> Mr {
    e.a.reg_mr(e.pd, Memory::zeroed(64), Access::ALL).unwrap()
}

fn number(e: &End, mr: Mr, offset: u64) -> u64 {
    u64::from_ne_bytes(e.bytes(mr, offset, 8).try_into().unwrap())
}

fn set(e: &mut End, mr: Mr, offset: u64, value: u64) {
    e.a.write_mr(mr.id, offset, &value.to_ne_bytes()).unwrap();
}

/// Its answer goes to the own region, from byte 0 on.
fn atomic(x: &End, wr_id: u64, mr: Mr, offset: u64, op: AtomicOp) -> SendWr {
    SendWr::new(wr_id, SendOp::Atomic { rkey: mr.rkey, offset, op }, x.own_sge(0, 8))
}

#[test]
fn operations_change_memory_and_give_the_old_value() {
    let old = 0x0102_0304_0506_0708;
    let masked =
        AtomicOp::CompareSwap { compare: 0xff08, compare_mask: 0xff, swap: 0xabcd, swap_mask: 0xff00 };
    let cases = [
        (ADD_ONE, old + 1, Opcode::FetchAdd),
        (AtomicOp::FetchAdd { add: u64::MAX, mask: 0 }, old - 1, Opcode::FetchAdd),
        (AtomicOp::FetchAdd { add: 0xff, mask: 0x80 }, 0x0102_0304_0506_0707, Opcode::FetchAdd),
        (swap(old, 9), 9, Opcode::CompareSwap),
        (swap(old ^ 1, 9), old, Opcode::CompareSwap),
        (masked, 0x0102_0304_0506_ab08, Opcode::CompareSwap),
    ];
    // Requests and answers in one piece, and in many.
    for max in [1, 3, 100] {
        for (op, new, opcode) in cases {
            let (mut x, mut y) = reliable();
            let mr = shared(&mut y);
            set(&mut y, mr, 16, old);
            let parts = vec![x.own_sge(40, 3), x.own_sge(100, 5)];
            x.post(SendWr::new(7, SendOp::Atomic { rkey: mr.rkey, offset: 16, op }, parts));
            run(&mut x, &mut y, max);
            let wc = x.sent()[0];
            assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (7, Status::Success, opcode, 8));
            let got = [x.bytes(x.own, 40, 3), x.bytes(x.own, 100, 5)].concat();
            assert_eq!(got, old.to_ne_bytes(), "{op:?}");
            assert_eq!(number(&y, mr, 16), new, "{op:?}");
            assert_eq!((number(&y, mr, 8), number(&y, mr, 24)), (0, 0));
            assert!(x.a.dereg_mr(x.own.id).is_ok() && y.a.dereg_mr(mr.id).is_ok());
        }
    }
}

#[test]
fn request_waits_for_all_earlier_messages() {
    let (mut x, mut y) = reliable();
    let mr = shared(&mut y);
    let seven = Data::Inline(7u64.to_ne_bytes().as_slice().into());
    x.post(SendWr::new(1, SendOp::Write { rkey: mr.rkey, offset: 0 }, seven));
    let add = atomic(&x, 2, mr, 0, ADD_ONE);
    x.post(add);
    let (write, request) = (x.segment(100).unwrap(), x.segment(100).unwrap());
    assert_eq!((request.0.op, request.1.len()), (SegmentOp::AtomicRequest, ATOMIC_REQUEST_LEN));
    assert_eq!(y.place(&request.0, &request.1), Ok(Placed::New));
    assert!(number(&y, mr, 0) == 0 && !y.a.has_segment(y.qp), "not before the write is there");
    assert_eq!(y.place(&write.0, &write.1), Ok(Placed::New));
    assert_eq!(number(&y, mr, 0), 8);
    x.a.on_acked(x.qp, write.0.reference());
    run(&mut x, &mut y, 100);
    // The request's own acknowledgement never came; the answer stands for it.
    assert_eq!(ids(&x.sent()), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(number(&x, x.own, 0), 7);
}

#[test]
fn repeated_request_gets_the_first_result_and_changes_nothing() {
    let (mut x, mut y) = reliable();
    let mr = shared(&mut y);
    set(&mut y, mr, 0, 5);
    let add = atomic(&x, 1, mr, 0, ADD_ONE);
    x.post(add);
    let (request, bytes) = x.segment(100).unwrap();
    assert_eq!(y.place(&request, &bytes), Ok(Placed::New));
    x.a.on_lost(x.qp, request.reference());
    let (again, same) = x.segment(100).unwrap();
    assert!(again.retransmission && same == bytes);
    assert_eq!(y.place(&again, &same), Ok(Placed::Duplicate));
    assert_eq!(number(&y, mr, 0), 6);
    let (answer, value) = y.segment(100).unwrap();
    assert_eq!((answer.op, &value[..]), (SegmentOp::ReadResponse, &5u64.to_be_bytes()[..]));
    // The answer is lost, and the memory has another value by then.
    set(&mut y, mr, 0, 99);
    y.a.on_lost(y.qp, answer.reference());
    assert_eq!(y.place(&again, &same), Ok(Placed::Duplicate));
    let (answer, value) = y.segment(100).unwrap();
    assert!(answer.retransmission);
    assert_eq!(x.place(&answer, &value), Ok(Placed::New));
    assert_eq!(x.place(&answer, &value), Ok(Placed::Duplicate));
    assert_eq!((number(&x, x.own, 0), number(&y, mr, 0)), (5, 99));
    assert_eq!(ids(&x.sent()), [(1, Status::Success)]);
}

#[test]
fn reads_and_atomic_operations_share_a_limit() {
    let (mut x, mut y) = (End::new(1, |i| i.max_rd_atomic = 2), End::new(2, |i| i.max_rd_atomic = 2));
    let mr = shared(&mut y);
    let add = atomic(&x, 1, mr, 0, ADD_ONE);
    let read = SendWr::new(2, SendOp::Read { rkey: y.src.rkey, offset: 0 }, x.own_sge(8, 9));
    for wr in [add.clone(), read, SendWr { wr_id: 3, ..add }] {
        x.post(wr);
    }
    let requests = [x.segment(100).unwrap(), x.segment(100).unwrap()];
    assert!(!x.a.has_segment(x.qp), "two at a time");
    for (s, p) in requests {
        assert_eq!(y.place(&s, &p), Ok(Placed::New));
    }
    // A peer that ignores the limit.
    let op = SegmentOp::AtomicRequest;
    let r = AtomicRequest { rkey: mr.rkey, offset: 0, sink: 1, op: ADD_ONE }.encode();
    let third =
        Incoming { op, msn16: 2, rsn16: None, key: 0, position: 0, first: true, last: Some(Tail::default()) };
    assert_eq!(y.a.place(y.qp, &third, &r), Err(Violation::TooManyReads));
    assert_eq!(number(&y, mr, 0), 1, "what is refused is not done");
}

#[test]
fn refused_requests_change_nothing() {
    type Case = (fn(&End, Mr) -> u32, u64, Violation);
    let misaligned = Violation::Malformed("the target of an atomic operation is not a multiple of 8");
    let cases: [Case; 7] = [
        (|_, mr| mr.rkey ^ 1, 0, Violation::BadKey),
        (|_, mr| mr.lkey, 0, Violation::BadKey),
        (|y, _| y.dst.rkey, 0, Violation::AccessDenied),
        (|y, _| y.src.rkey, 0, Violation::AccessDenied),
        (|_, mr| mr.rkey, 64, Violation::OutOfBounds),
        (|_, mr| mr.rkey, u64::MAX - 7, Violation::OutOfBounds),
        (|_, mr| mr.rkey, 4, misaligned),
    ];
    for (key, offset, want) in cases {
        let mut y = End::new(2, |_| {});
        let mr = shared(&mut y);
        let rkey = key(&y, mr);
        let (op, last) = (SegmentOp::AtomicRequest, Some(Tail::default()));
        let r = AtomicRequest { rkey, offset, sink: 1, op: AtomicOp::FetchAdd { add: u64::MAX, mask: 0 } };
        let seg = Incoming { op, msn16: 0, rsn16: None, key: 0, position: 0, first: true, last };
        assert_eq!(y.a.place(y.qp, &seg, &r.encode()), Err(want));
        assert_eq!(y.bytes(mr, 0, 64), [0; 64]);
        assert_eq!(y.bytes(y.dst, 0, SIZE), vec![0; SIZE as usize]);
        assert!(!y.a.has_segment(y.qp));
        // Whoever asked learns of it by its oldest work request.
        let status = Violation::status_of_code(want.code());
        assert!(matches!(status, Status::RemoteAccess | Status::RemoteInvalidRequest));
    }
    let (op, last) = (SegmentOp::AtomicRequest, Some(Tail::default()));
    let seg = Incoming { op, msn16: 0, rsn16: None, key: 0, position: 0, first: true, last };
    let (mut x, mut y) = reliable();
    let mut unknown = AtomicRequest { rkey: 1, offset: 0, sink: 1, op: ADD_ONE }.encode();
    unknown[19] = 2;
    assert!(matches!(y.a.place(y.qp, &seg, &unknown), Err(Violation::Malformed(_))));
    assert!(matches!(x.a.place(x.qp, &seg, &[0; 51]), Err(Violation::Malformed(_))));
    assert_eq!(x.a.place(x.qp, &seg, &[0; 53]), Err(Violation::TooLong));
    let mut u = End::new(2, |i| i.kind = Kind::Unreliable);
    assert_eq!(u.a.place(u.qp, &seg, &[0; ATOMIC_REQUEST_LEN]), Err(Violation::Unsupported));
}

#[test]
fn alignment_counts_from_zero_as_the_region_s_offsets_do() {
    let (mut x, mut y) = reliable();
    let mr = y.a.reg_mr_at(y.pd, Memory::zeroed(64), 0x1004, Access::ALL).unwrap();
    let add = atomic(&x, 1, mr, 0x1008, ADD_ONE);
    x.post(add);
    run(&mut x, &mut y, 100);
    assert_eq!(ids(&x.sent()), [(1, Status::Success)]);
    assert_eq!(number(&y, mr, 0x1008), 1);
}

#[test]
fn work_requests_are_checked_when_posted() {
    let (mut x, mut y) = reliable();
    let mr = shared(&mut y);
    let wr = atomic(&x, 1, mr, 0, ADD_ONE);
    let post = |x: &mut End, wr: SendWr| x.a.post_send(x.qp, wr).unwrap_err();
    for len in [0, 7, 9] {
        let data = Data::from(x.own_sge(0, len));
        assert!(matches!(post(&mut x, SendWr { data, ..wr.clone() }), Error::Invalid(_)), "{len}");
    }
    let data = Data::Inline([0; 8].as_slice().into());
    assert!(matches!(post(&mut x, SendWr { data, ..wr.clone() }), Error::Invalid(_)));
    let data = Data::from(x.source(0, 8));
    assert_eq!(post(&mut x, SendWr { data, ..wr.clone() }), Error::Access);
    let op = SendOp::Atomic { rkey: mr.rkey, offset: u64::MAX - 3, op: ADD_ONE };
    assert_eq!(post(&mut x, SendWr { op, ..wr }), Error::OutOfBounds);
    let unreliable = End::new(1, |i| i.kind = Kind::Unreliable);
    let none = End::new(1, |i| i.max_rd_atomic = 0);
    for mut e in [unreliable, none] {
        let wr = atomic(&e, 1, mr, 0, ADD_ONE);
        assert!(matches!(post(&mut e, wr), Error::Unsupported(_)));
    }
}

/// One that counts at the server, over a network of its own.
struct Client {
    end: End,
    /// The server's queue pair.
    there: QpId,
    posted: u64,
    /// To the server, or from it.
    network: Vec<(bool, Segment, Vec<u8>)>,
    results: Vec<u64>,
}

impl Client {
    fn new(seed: u64, y: &mut End) -> Client {
        let there = y.a.create_qp(y.pd, QpInit::new(y.scq, y.rcq)).unwrap();
        y.a.modify_qp(there, QpState::Rtr).unwrap();
        y.a.modify_qp(there, QpState::Rts).unwrap();
        Client { end: End::new(seed, |_| {}), there, posted: 0, network: vec![], results: vec![] }
    }

    fn post(&mut self, mr: Mr, most: u64, rng: &mut base::Rng) {
        let x = &mut self.end;
        while self.posted < most && x.a.query_qp(x.qp).unwrap().sends < 20 && rng.chance(0.5) {
            let data = x.own_sge(self.posted % 1000 * 8, 8);
            let op = SendOp::Atomic { rkey: mr.rkey, offset: 8, op: ADD_ONE };
            let fence = rng.chance(0.05);
            x.post(SendWr { fence, ..SendWr::new(self.posted, op, data) });
            self.posted += 1;
        }
    }

    fn send(&mut self, y: &mut End, rng: &mut base::Rng) {
        for there in [true, false] {
            let (a, qp) = if there { (&mut self.end.a, self.end.qp) } else { (&mut y.a, self.there) };
            // Often whole, sometimes in pieces.
            let max = if rng.chance(0.8) { 100 } else { 1 + rng.below(60) as usize };
            if let Some(seg) = a.next_segment(qp, max) {
                let mut payload = vec![0; seg.len as usize];
                a.gather(qp, &seg, &mut payload).unwrap();
                self.network.push((there, seg, payload));
            }
        }
    }

    /// One packet arrives or is lost: any of them, so that they overtake each other. A fifth is lost each way, a tenth comes
    /// twice, and what the sender learns of a packet can be wrong.
    fn receive(&mut self, y: &mut End, rng: &mut base::Rng) {
        if self.network.is_empty() {
            return;
        }
        let i = rng.below(self.network.len() as u64) as usize;
        let (there, seg, payload) = self.network.swap_remove(i);
        let mut arrived = false;
        if rng.chance(0.8) {
            let (a, qp) = if there { (&mut y.a, self.there) } else { (&mut self.end.a, self.end.qp) };
            a.place(qp, &seg.incoming(), &payload).unwrap();
            arrived = true;
            if rng.chance(0.1) {
                self.network.push((there, seg, payload));
            }
        }
        let (a, qp) = if there { (&mut self.end.a, self.end.qp) } else { (&mut y.a, self.there) };
        if arrived && rng.chance(0.8) {
            a.on_acked(qp, seg.reference());
        } else {
            a.on_lost(qp, seg.reference());
        }
    }

    fn take_results(&mut self) {
        for wc in self.end.sent() {
            assert_eq!((wc.wr_id, wc.status), (self.results.len() as u64, Status::Success));
            self.results.push(number(&self.end, self.end.own, wc.wr_id % 1000 * 8));
        }
    }
}

/// Every operation is done exactly once, and each gets its own result.
#[test]
fn counter_of_two_clients_is_exact_over_lossy_networks() {
    const EACH: u64 = 10_000;
    for seed in 1..4 {
        let mut rng = base::Rng::from_u64(seed);
        let mut y = End::new(seed + 10, |_| {});
        let mr = shared(&mut y);
        let mut clients = [Client::new(seed + 20, &mut y), Client::new(seed + 30, &mut y)];
        for step in 0.. {
            assert!(step < 40 * EACH, "it never ends");
            for c in &mut clients {
                c.post(mr, EACH, &mut rng);
                c.send(&mut y, &mut rng);
                c.receive(&mut y, &mut rng);
                c.receive(&mut y, &mut rng);
                c.take_results();
            }
            if clients.iter().all(|c| c.results.len() as u64 == EACH) {
                break;
            }
        }
        assert_eq!(number(&y, mr, 8), 2 * EACH);
        assert!(clients.iter().all(|c| c.results.is_sorted()), "in the order of posting");
        let mut all = clients.map(|c| c.results).concat();
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..2 * EACH));
    }
}
