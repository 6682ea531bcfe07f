//! Tests of shared receive queues and unreliable queue pairs.

use super::*;
use proptest::prelude::*;

fn with_srq(n: usize, cq_entries: usize) -> (End, SrqId, Vec<QpId>) {
    let mut y = End::new(2, |_| {});
    let srq = y.a.create_srq(y.pd, 100).unwrap();
    let rcq = y.a.create_cq(cq_entries).unwrap();
    y.rcq = rcq;
    let init = QpInit { srq: Some(srq), ..QpInit::new(y.scq, rcq) };
    let qps: Vec<_> = (0..n).map(|_| y.a.create_qp(y.pd, init.clone()).unwrap()).collect();
    for qp in &qps {
        y.a.modify_qp(*qp, QpState::Rtr).unwrap();
        y.a.modify_qp(*qp, QpState::Rts).unwrap();
    }
    (y, srq, qps)
}
fn post(y: &mut End, srq: SrqId, wr_id: u64) -> Result<(), Error> {
    let sges = Sge { lkey: y.own.lkey, offset: wr_id * 10, len: 10 }.into();
    y.a.post_srq_recv(srq, RecvWr { wr_id, sges })
}
fn promised(y: &End, qps: &[QpId]) -> Vec<u64> {
    qps.iter().map(|q| y.a.recv_limit(*q).unwrap()).collect()
}
fn message(y: &mut End, qp: QpId, n: u16) {
    let last = Some(Tail::default());
    let seg =
        Incoming { op: SegmentOp::Send, msn16: n, rsn16: Some(n), key: 0, position: 0, first: true, last };
    assert_eq!(y.a.place(qp, &seg, &[n as u8; 10]), Ok(Placed::New));
}

#[test]
fn srq_shares_are_fair_and_bounded_by_posted_receives() {
    let (mut y, srq, qps) = with_srq(4, 1000);
    for n in 1..=40 {
        post(&mut y, srq, n).unwrap();
        let p = promised(&y, &qps);
        assert!(p.iter().sum::<u64>() <= n);
        assert!(p.iter().max().unwrap() - p.iter().min().unwrap() <= 1, "{p:?}");
    }
    assert_eq!(promised(&y, &qps), [3, 3, 3, 3], "28 are left, of which each may hold an eighth");
    let mut named: Vec<_> = core::iter::from_fn(|| y.a.take_credit_changes()).collect();
    named.sort();
    assert_eq!(named, qps);
    // One queue pair may use far more than the others, as long as receives are posted.
    for n in 0..12 {
        message(&mut y, qps[2], n);
        let used = u64::from(n) + 1;
        assert!(promised(&y, &qps)[2] > used);
    }
    assert_eq!(y.received().len(), 12);
    assert_eq!(y.a.srq_len(srq), Some(28));
}

/// Lets `qp` consume `n` messages from number `from` on; each receive is posted again at once.
fn consume(y: &mut End, srq: SrqId, qp: QpId, from: u16, n: u16) {
    for i in from..from + n {
        message(y, qp, i);
        for wc in y.received() {
            post(y, srq, wc.wr_id).unwrap();
        }
    }
}
fn join(y: &mut End, srq: SrqId) -> QpId {
    let init = QpInit { srq: Some(srq), max_recv_wr: MAX_RECV_WR, ..QpInit::new(y.scq, y.rcq) };
    let qp = y.a.create_qp(y.pd, init).unwrap();
    y.a.modify_qp(qp, QpState::Rtr).unwrap();
    y.a.modify_qp(qp, QpState::Rts).unwrap();
    qp
}
fn held(y: &End, qp: QpId) -> usize {
    y.a.query_qp(qp).unwrap().receives
}

/// Found by the swarm: of 292 receives, four that joined one after the other got 146, 97, 49 and none.
#[test]
fn queue_pairs_joining_a_full_srq_get_a_share() {
    let (mut y, srq, _) = with_srq(0, 1000);
    (0..100).for_each(|n| post(&mut y, srq, n).unwrap());
    let qps: Vec<_> = (0..50).map(|_| join(&mut y, srq)).collect();
    let got: Vec<_> = qps.iter().map(|q| held(&y, *q)).collect();
    assert!(got.iter().all(|n| (1..=8).contains(n)), "{got:?}");
    assert_eq!(got[0], 8);
    // Those that are busy get what they need, however many are idle, and leave enough for others.
    consume(&mut y, srq, qps[40], 0, 500);
    assert!(held(&y, qps[40]) >= 1);
    let late = join(&mut y, srq);
    assert!(held(&y, late) >= 1);
}

#[test]
fn busy_queue_pair_holds_half_and_yields_to_others() {
    let (mut y, srq, _) = with_srq(0, 1000);
    (0..100).for_each(|n| post(&mut y, srq, n).unwrap());
    let first = join(&mut y, srq);
    assert_eq!(held(&y, first), 8);
    consume(&mut y, srq, first, 0, 8);
    assert_eq!(held(&y, first), 16, "doubled once it has consumed as many");
    consume(&mut y, srq, first, 8, 200);
    assert_eq!(held(&y, first), 50, "half of all");
    let others = [0; 4].map(|_| join(&mut y, srq));
    for (n, o) in others.into_iter().enumerate() {
        assert!(held(&y, o) > 0, "the one that came as number {n}");
        consume(&mut y, srq, o, 0, 300);
    }
    assert_eq!(held(&y, first), 50, "what is promised stays so");
    consume(&mut y, srq, first, 208, 100);
    let after: Vec<_> = [first].iter().chain(&others).map(|q| held(&y, *q)).collect();
    assert!(after[0] <= 25, "{after:?}");
    assert_eq!(y.a.srq_len(srq), Some(100));
}

#[test]
fn srq_limit_event_reports_a_waiting_queue_pair() {
    let (mut y, srq, qps) = with_srq(3, 1000);
    post(&mut y, srq, 0).unwrap();
    post(&mut y, srq, 1).unwrap();
    assert_eq!(promised(&y, &qps), [1, 1, 0]);
    y.a.arm_srq_limit(srq, 1).unwrap();
    assert_eq!(
        (y.a.take_srq_event(), y.a.srq_len(srq)),
        (Some(srq), Some(2)),
        "two are left, but not for it"
    );
    post(&mut y, srq, 2).unwrap();
    assert_eq!(promised(&y, &qps), [1, 1, 1]);
    y.a.arm_srq_limit(srq, 1).unwrap();
    assert_eq!(y.a.take_srq_event(), None);
    let late = join(&mut y, srq);
    assert_eq!((y.a.take_srq_event(), y.a.take_srq_event()), (Some(srq), None));
    // One that is in error waits for nothing.
    y.a.set_error(late, Status::FlushError).unwrap();
    y.a.arm_srq_limit(srq, 1).unwrap();
    assert_eq!(y.a.take_srq_event(), None);
}

#[test]
fn completion_queue_space_goes_to_a_queue_pair_that_needs_it() {
    let (mut y, srq, qps) = with_srq(2, 2);
    (0..4).for_each(|n| post(&mut y, srq, n).unwrap());
    assert_eq!(promised(&y, &qps), [1, 1]);
    // Both have used theirs, and the completion queue is full.
    message(&mut y, qps[0], 0);
    message(&mut y, qps[1], 0);
    assert_eq!(promised(&y, &qps), [1, 1]);
    y.a.set_error(qps[0], Status::FlushError).unwrap();
    assert_eq!(y.a.poll_cq(y.rcq).map(|wc| wc.wr_id), Some(0));
    assert_eq!(promised(&y, &qps), [1, 2], "the first that waited wants nothing any more");
}

#[derive(Clone, Debug)]
enum Step {
    Join,
    Leave(usize),
    Fail(usize),
    Post,
    Message(usize),
    Poll,
}
fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Join),
        1 => (0usize..100).prop_map(Step::Leave),
        1 => (0usize..100).prop_map(Step::Fail),
        8 => Just(Step::Post),
        12 => (0usize..100).prop_map(Step::Message),
        8 => Just(Step::Poll),
    ]
}

proptest! {
    /// Whatever happens: receives are neither lost nor promised twice, and nobody has none while there are some.
    #[test]
    fn receives_are_conserved_without_starvation(
        steps in proptest::collection::vec(step(), 1..400),
        cq in prop_oneof![Just(1000), 1usize..12],
    ) {
        let (mut y, srq, _) = with_srq(0, cq);
        let (mut qps, mut posted, mut used) = (Vec::<(QpId, u16)>::new(), 0, 0);
        for s in steps {
            let pick = |i: usize| (!qps.is_empty()).then(|| i % qps.len().max(1));
            match s {
                Step::Join => qps.push((join(&mut y, srq), 0)),
                Step::Leave(i) => if let Some(i) = pick(i) {
                    y.a.destroy_qp(qps.remove(i).0).unwrap();
                },
                Step::Fail(i) => if let Some(i) = pick(i) {
                    y.a.set_error(qps[i].0, Status::FlushError).unwrap();
                },
                Step::Post => posted += usize::from(post(&mut y, srq, posted as u64 % 90).is_ok()),
                Step::Message(i) => if let Some(i) = pick(i) && held(&y, qps[i].0) > 0 {
                    message(&mut y, qps[i].0, qps[i].1);
                    qps[i].1 += 1;
                    used += 1;
                },
                Step::Poll => {
                    y.a.poll_cq(y.rcq);
                }
            }
            let holds: Vec<_> = qps.iter().map(|(q, _)| held(&y, *q)).collect();
            let left = posted - used;
            prop_assert_eq!(y.a.srq_len(srq), Some(left));
            let given: usize = holds.iter().sum();
            prop_assert!(given <= left);
            let room = cq - given - y.a.cq_len(y.rcq).unwrap();
            for ((q, _), n) in qps.iter().zip(&holds) {
                let fails = y.a.query_qp(*q).unwrap().state == QpState::Error;
                prop_assert!(*n > 0 || given == left || room == 0 || fails, "{:?} of {}", holds, left);
            }
        }
        for (q, _) in qps {
            y.a.destroy_qp(q).unwrap();
        }
        y.a.destroy_srq(srq).unwrap();
        y.a.dereg_mr(y.own.id).unwrap();
    }

    /// As long as all are idle, two receives for each queue pair are enough for everyone.
    #[test]
    fn two_receives_per_queue_pair_suffice(n in 1usize..3_000) {
        let mut y = End::new(2, |_| {});
        let srq = y.a.create_srq(y.pd, 2 * n).unwrap();
        y.rcq = y.a.create_cq(2 * n).unwrap();
        (0..2 * n).for_each(|_| post(&mut y, srq, 0).unwrap());
        let got: Vec<_> = (0..n).map(|_| { let q = join(&mut y, srq); held(&y, q) }).collect();
        prop_assert!(got.iter().all(|h| *h > 0), "{:?}", got);
    }
}

#[test]
fn receives_return_when_a_queue_pair_is_destroyed() {
    let (mut y, srq, qps) = with_srq(2, 1000);
    for n in 0..12 {
        post(&mut y, srq, n).unwrap();
    }
    assert_eq!(promised(&y, &qps), [2, 2]);
    y.a.set_error(qps[0], Status::FlushError).unwrap();
    assert!(y.received().is_empty(), "a shared receive is not flushed with one queue pair");
    assert_eq!(y.a.srq_len(srq), Some(12));
    y.a.destroy_qp(qps[0]).unwrap();
    assert_eq!(y.a.destroy_srq(srq), Err(Error::Busy("the shared receive queue")));
    for n in 0..4 {
        message(&mut y, qps[1], n);
    }
    assert!(promised(&y, &qps[1..])[0] > 4);
    y.a.destroy_qp(qps[1]).unwrap();
    assert_eq!(y.a.srq_len(srq), Some(8));
    y.a.destroy_srq(srq).unwrap();
    y.a.dereg_mr(y.own.id).unwrap();
}

#[test]
fn full_completion_queue_withholds_credit() {
    let (mut y, srq, qps) = with_srq(2, 3);
    for n in 0..30 {
        post(&mut y, srq, n).unwrap();
    }
    assert_eq!(promised(&y, &qps).iter().sum::<u64>(), 3, "no more than completions have room");
    let first = if promised(&y, &qps)[0] > 0 { qps[0] } else { qps[1] };
    message(&mut y, first, 0);
    assert_eq!(promised(&y, &qps).iter().sum::<u64>(), 3);
    assert_eq!(y.received().len(), 1);
    assert_eq!(promised(&y, &qps).iter().sum::<u64>(), 4, "polling made room");
}

#[test]
fn srq_limit_event_fires_once() {
    let (mut y, srq, qps) = with_srq(1, 1000);
    for n in 0..4 {
        post(&mut y, srq, n).unwrap();
    }
    y.a.arm_srq_limit(srq, 3).unwrap();
    assert_eq!(y.a.take_srq_event(), None);
    message(&mut y, qps[0], 0);
    assert_eq!(y.a.take_srq_event(), None);
    message(&mut y, qps[0], 1);
    assert_eq!((y.a.take_srq_event(), y.a.take_srq_event()), (Some(srq), None));
    message(&mut y, qps[0], 2);
    message(&mut y, qps[0], 3);
    assert_eq!(y.a.take_srq_event(), None);
    assert_eq!(y.received().len(), 4, "the last of them could be used too");
    let sges = Sges::None;
    assert!(matches!(y.a.post_recv(qps[0], RecvWr { wr_id: 0, sges }), Err(Error::Unsupported(_))));
}

fn unreliable() -> (End, End) {
    let make = |i: &mut QpInit| (i.kind, i.max_datagram) = (Kind::Unreliable, 100);
    (End::new(1, make), End::new(2, make))
}

#[test]
fn datagrams_are_delivered_immediately_or_dropped() {
    let (mut x, mut y) = unreliable();
    let too_long = SendWr::new(1, SendOp::Send, x.source(0, 101));
    assert_eq!(x.a.post_send(x.qp, too_long), Err(Error::TooLong { len: 101, max: 100 }));
    let read = SendOp::Read { rkey: y.src.rkey, offset: 0 };
    let to = Sge { lkey: x.own.lkey, offset: 0, len: 1 };
    assert!(matches!(x.a.post_send(x.qp, SendWr::new(1, read, to)), Err(Error::Unsupported(_))));
    for i in 0..3 {
        x.post(SendWr::new(i, SendOp::Send, x.source(i * 100, 100)));
    }
    let s: Vec<_> = (0..3).map(|_| x.segment(100).unwrap()).collect();
    y.recv(7, 0, 100);
    y.recv(8, 100, 100);
    // The middle one is lost, the last overtakes, and a copy comes later.
    assert_eq!(y.place(&s[2].0, &s[2].1), Ok(Placed::New));
    assert_eq!(ids(&y.received()), [(7, Status::Success)]);
    assert_eq!(y.place(&s[0].0, &s[0].1), Ok(Placed::New));
    assert_eq!(y.place(&s[0].0, &s[0].1), Ok(Placed::Duplicate));
    assert_eq!(ids(&y.received()), [(8, Status::Success)]);
    assert_eq!(y.bytes(y.own, 0, 100), x.bytes(x.src, 200, 100));
    assert_eq!(y.bytes(y.own, 100, 100), x.bytes(x.src, 0, 100));
    assert_eq!(y.place(&s[1].0, &s[1].1), Ok(Placed::New));
    assert_eq!(y.a.stats(y.qp).unwrap().dropped_messages, 1);
    x.a.on_acked(x.qp, s[2].0.reference());
    x.a.on_acked(x.qp, s[0].0.reference());
    x.a.on_lost(x.qp, s[1].0.reference());
    assert!(!x.a.has_segment(x.qp), "nothing is sent again");
    let (ok, lost) = (Status::Success, Status::LossReported { lost: 100 });
    assert_eq!(ids(&x.sent()), [(0, ok), (1, lost), (2, ok)]);
    // One that the path no longer carries is lost before it is sent.
    x.post(SendWr::new(4, SendOp::Send, x.source(0, 100)));
    assert_eq!(x.a.next_segment(x.qp, 99), None);
    assert_eq!(ids(&x.sent()), [(4, lost)]);
}

#[test]
fn unreliable_writes_report_lost_data() {
    let (mut x, mut y) = unreliable();
    y.recv(1, 0, 0);
    let op = SendOp::WriteImm { rkey: y.dst.rkey, offset: 50, imm: 3 };
    x.post(SendWr::new(1, op, x.source(0, 40)));
    let s: Vec<_> = (0..4).map(|_| x.segment(10).unwrap()).collect();
    for i in [3, 0] {
        assert_eq!(y.place(&s[i].0, &s[i].1), Ok(Placed::New));
    }
    let wc = y.received();
    assert_eq!((wc[0].opcode, wc[0].byte_len, wc[0].imm), (Opcode::RecvWriteImm, 10, Some(3)));
    assert_eq!(y.bytes(y.dst, 50, 10), x.bytes(x.src, 0, 10));
    assert_eq!(y.bytes(y.dst, 60, 20), [0; 20]);
    for i in 0..4 {
        x.a.on_lost(x.qp, s[i].0.reference());
        if i == 0 {
            x.a.on_acked(x.qp, s[0].0.reference());
        }
    }
    assert_eq!(ids(&x.sent()), [(1, Status::LossReported { lost: 30 })]);
    // A write that delivers when no receive is posted is placed, and its notice dropped.
    x.post(SendWr::new(2, op, x.source(0, 10)));
    let (s, p) = x.segment(100).unwrap();
    assert_eq!(y.place(&s, &p), Ok(Placed::New));
    assert_eq!(y.a.stats(y.qp).unwrap().dropped_messages, 1);
    // So it does not stall the messages behind it.
    x.a.on_acked(x.qp, s.reference());
    assert_eq!(ids(&x.sent()), [(2, Status::Success)]);
}
