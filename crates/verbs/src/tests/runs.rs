//! Runs of segments that are taken, gathered and placed together equal single segments.

use super::*;
use crate::memory::tests::Foreign;
use proptest::prelude::*;
use std::sync::atomic::Ordering;

/// All that is posted at an end, as segments and payloads: `most` of each run, or one by one where that is nothing.
fn all(end: &mut End, max_payload: MaxPayload, most: u32) -> Vec<(Segment, Vec<u8>)> {
    let mut got = Vec::new();
    while let Some(seg) = end.a.next_segment_in(end.qp, max_payload) {
        let mut payload = vec![0; seg.len as usize];
        end.a.gather(end.qp, &seg, &mut payload).unwrap();
        got.push((seg, payload));
        let n = if most > 0 { end.a.next_run(end.qp, &seg, most) } else { 0 };
        assert!(n <= most);
        let (mut piece, len, at) = (seg.following(), seg.len as usize, 3);
        let mut out = vec![0xee; n as usize * (len + 5)];
        let to = &mut StridedBuffer { out: &mut out, stride: len + 5, at };
        assert!(n == 0 || end.a.gather_run(end.qp, &piece, to).is_ok());
        for packet in out.chunks(len + 5) {
            assert!(packet[..at].iter().chain(&packet[at + len..]).all(|b| *b == 0xee), "between the places");
            got.push((piece, packet[at..at + len].to_vec()));
            piece = piece.following();
        }
    }
    got
}

/// An end with work of all kinds: whole messages, such as are cut evenly, long ones, several ranges, answers to a Read.
fn busy(lens: &[u64], ranges: usize, read: u64) -> (End, End) {
    let (mut x, mut y) = reliable();
    for i in 0..lens.len() as u64 {
        y.recv(i, 0, SIZE);
    }
    give_credit(&mut x, &mut y);
    for (i, len) in lens.iter().enumerate() {
        let part = len / ranges as u64;
        let mut sges: Vec<_> = (1..ranges as u64).map(|k| x.source(k * part, part)).collect();
        sges.push(x.source(7, len - part * (ranges as u64 - 1)));
        let op = match i % 3 {
            0 => SendOp::Write { rkey: y.dst.rkey, offset: 5 },
            1 => SendOp::Send,
            _ => SendOp::WriteImm { rkey: y.dst.rkey, offset: 0, imm: 9 },
        };
        x.post(SendWr::new(i as u64, op, sges));
    }
    if read > 0 {
        let to = y.own_sge(0, read);
        y.post(SendWr::new(99, SendOp::Read { rkey: x.src.rkey, offset: 1 }, to));
        let (request, payload) = y.segment(100).unwrap();
        x.place(&request, &payload).unwrap();
    }
    (x, y)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn segment_runs_equal_single_segments(
        lens in proptest::collection::vec(0..30_000u64, 1..5),
        (ranges, read) in (1..3usize, 0..20_000u64),
        (room, most, even) in (50..1_500u32, 1..70u32, any::<bool>()),
    ) {
        let max_payload = MaxPayload { tail: 1, tail_imm: 7, untagged: room + 4, even, ..MaxPayload::same(room) };
        let (mut x, mut y) = busy(&lens, ranges, read);
        let (mut twin, _) = busy(&lens, ranges, read);
        let (runs, single) = (all(&mut x, max_payload, most), all(&mut twin, max_payload, 0));
        // Answers and own work may be in another order between them, not within.
        let of = |s: &[(Segment, Vec<u8>)], answers: bool| -> Vec<_> {
            s.iter().filter(|(s, _)| (s.op == SegmentOp::ReadResponse) == answers).map(|(s, p)| (s.offset, s.position, s.len, s.first, s.last, s.quiet, p.clone())).collect()
        };
        prop_assert_eq!(of(&runs, false), of(&single, false));
        prop_assert_eq!(of(&runs, true), of(&single, true));
        prop_assert_eq!(x.a.stats(x.qp), twin.a.stats(twin.qp));
        for (s, p) in &runs {
            prop_assert_eq!(y.place(s, p), Ok(Placed::New));
            x.a.on_acked(x.qp, s.reference());
        }
        prop_assert_eq!(x.sent().len(), lens.len());
        prop_assert_eq!(x.a.stats(x.qp).map(|s| s.bytes_out), y.a.stats(y.qp).map(|s| s.bytes_in));
    }
}

#[test]
fn lost_segments_and_other_messages_precede_a_run() {
    let (mut x, y) = busy(&[1_000], 1, 0);
    let (s, _) = x.segment(100).unwrap();
    x.a.on_lost(x.qp, s.reference());
    assert_eq!(x.a.next_run(x.qp, &s, 9), 0, "the lost piece is next");
    let (again, _) = x.segment(100).unwrap();
    assert_eq!((again.offset, x.a.next_run(x.qp, &again, 9)), (0, 0), "it is cut as it was lost");
    let (second, _) = x.segment(100).unwrap();
    assert_eq!((second.offset, x.a.next_run(x.qp, &second, 9)), (100, 7));
    assert_eq!(x.a.next_run(x.qp, &second, 9), 0, "that is taken");
    let (last, _) = x.segment(100).unwrap();
    assert!((last.offset, last.len, last.last.is_some()) == (900, 100, true));
    assert_eq!(x.a.next_run(x.qp, &last, 9), 0);
    drop(y);
    // Where answers and own work take turns, a run would be more than a turn.
    let (mut x, _y) = busy(&[1_000], 1, 1_000);
    let (s, _) = x.segment(100).unwrap();
    assert_eq!(x.a.next_run(x.qp, &s, 9), 0);
    assert_eq!(x.a.next_run(QpId::of_raw(0), &s, 9), 0);
}

#[test]
fn memory_fault_in_a_run_fails_the_queue_pair() {
    let (mut x, y) = reliable();
    let f = Foreign::new(1_000, true);
    let broken = f.broken.clone();
    let mr = x.a.reg_mr(x.pd, Memory::from_backing(Box::new(f)), Access::ALL).unwrap();
    let all = Sge { lkey: mr.lkey, offset: 0, len: 1_000 };
    x.post(SendWr::new(1, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, all));
    let s = x.a.next_segment(x.qp, 100).unwrap();
    assert_eq!(x.a.next_run(x.qp, &s, 3), 3);
    broken.store(true, Ordering::Relaxed);
    let mut out = [0; 300];
    let mut to = StridedBuffer { out: &mut out, stride: 100, at: 0 };
    assert_eq!(x.a.gather_run(x.qp, &s.following(), &mut to), Err(GatherError::Fault));
    assert_eq!(ids(&x.sent()), [(1, Status::LocalProtection)]);
    let mut to = StridedBuffer { out: &mut out, stride: 100, at: 0 };
    assert_eq!(x.a.gather_run(x.qp, &s.following(), &mut to), Err(GatherError::Stale));
}

/// What goes on where the last segment ended is still checked: its region, its key, its end.
#[test]
fn continuing_segment_is_fully_checked() {
    let pieces = |n: usize| {
        let (mut x, y) = reliable();
        x.post(SendWr::new(1, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, x.source(0, 1_000)));
        let s: Vec<_> = (0..n).map(|_| x.segment(100).unwrap()).collect();
        (x, y, s)
    };
    let (x, mut y, s) = pieces(10);
    for (seg, p) in &s[..5] {
        assert_eq!(y.place(seg, p), Ok(Placed::New));
        assert_eq!(y.place(seg, p), Ok(Placed::Duplicate));
    }
    let mut wrong = s[5].clone();
    wrong.0.key ^= 1;
    assert_eq!(y.place(&wrong.0, &wrong.1), Err(Violation::Inconsistent("another key")));
    assert_eq!(y.place(&s[9].0, &s[9].1), Ok(Placed::New));
    // Behind a hole the run goes on; beyond the end that is known now nothing does.
    assert_eq!(y.place(&s[7].0, &s[7].1), Ok(Placed::New));
    assert_eq!(y.place(&s[8].0, &s[8].1), Ok(Placed::New));
    let beyond = Segment { first: false, last: None, position: 1_000, offset: 1_000, ..s[9].0 };
    assert_eq!(y.place(&beyond, &s[9].1), Err(Violation::Inconsistent("another start or end")));
    let full = Segment { len: 200, ..s[8].0 };
    assert!(y.place(&full, &[1; 200]).is_err(), "into the last one");
    assert_eq!(y.place(&s[5].0, &s[5].1), Ok(Placed::New));
    assert_eq!(y.place(&s[6].0, &s[6].1), Ok(Placed::New));
    assert_eq!(y.bytes(y.dst, 0, 1_000), x.bytes(x.src, 0, 1_000));
    assert_eq!(y.place(&s[6].0, &s[6].1), Ok(Placed::Duplicate));

    let (_x, mut y, s) = pieces(3);
    assert_eq!(y.place(&s[0].0, &s[0].1), Ok(Placed::New));
    y.a.dereg_mr(y.dst.id).unwrap();
    assert_eq!(y.place(&s[1].0, &s[1].1), Err(Violation::BadKey));
}
