//! Tests of the tracking of sent packets.

#![allow(clippy::single_range_in_vec_init, reason = "lists of one hole")]
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn book(n: u64) -> SentPackets {
    let mut b = SentPackets::default();
    for i in 0..n {
        b.push(SentPacket {
            time: Time::from_nanos(i),
            train: 0,
            bytes: 1500,
            state: State::Outstanding,
            content: Content::Nothing,
        });
    }
    b
}

#[test]
fn acknowledging_an_unsent_packet_is_rejected() {
    let mut b = book(10);
    assert_eq!(b.on_feedback(0..11, &[], |_, _, _| {}), Err(FalseFeedback));
    assert_eq!(b.outstanding(), 10);
}

#[test]
fn acknowledging_a_skipped_number_is_rejected() {
    let mut b = book(5);
    b.push(SentPacket {
        time: Time::ZERO,
        train: 0,
        bytes: 0,
        state: State::Skipped,
        content: Content::Nothing,
    });
    assert_eq!(b.on_feedback(0..6, &[], |_, _, _| {}), Err(FalseFeedback));
    let mut b = book(5);
    b.push(SentPacket {
        time: Time::ZERO,
        train: 0,
        bytes: 0,
        state: State::Skipped,
        content: Content::Nothing,
    });
    let holes = [5..6];
    assert_eq!(b.on_feedback(0..6, &holes, |_, _, _| {}), Ok(()));
}

#[test]
fn late_acknowledgement_of_a_lost_packet_reports_its_lost_state() {
    let mut b = book(10);
    b.on_feedback(0..10, &[2..4, 6..7], |_, _, _| {}).unwrap();
    let mut lost = Vec::new();
    b.detect_lost(Time::from_nanos(5), |pn, _, _| lost.push(pn));
    assert_eq!(lost, [2, 3]);
    assert_eq!(b.oldest_suspect(), Some(Time::from_nanos(6)));
    let mut seen = Vec::new();
    b.on_feedback(0..10, &[3..4], |pn, p, _| seen.push((pn, p.state))).unwrap();
    assert_eq!(seen, [(2, State::Lost), (6, State::Outstanding)]);
    b.forget(Time::from_nanos(10), Span::from_nanos(3), |_| {});
    assert_eq!(b.base(), 10);
}

/// 600,000 packets in flight of which 1 % are lost (10 Gbit/s for 700 ms, 100 Gbit/s for 70 ms): the tables of both ends
/// together, feedback at an eighth of the round trip in statements that fit a packet of 1,200 bytes.
#[test]
fn tracking_600_000_packets_costs_few_steps_per_packet() {
    use super::super::received::{MAX_RUNS, Received};
    const FLIGHT: u64 = 600_000;
    const TOTAL: u64 = 4 * FLIGHT;
    let (mut sent, mut received) = (SentPackets::default(), Received::new());
    let mut rng = base::Rng::from_u64(3);
    let (mut acked, mut lost, mut dropped) = (0u64, BTreeSet::new(), BTreeSet::new());
    // Time is counted in packets; half a round trip each way.
    let mut reports: VecDeque<(u64, Vec<wire::Feedback>)> = VecDeque::new();
    let (mut most, mut most_holes, mut bytes) = (0, 0, 0);
    for now in 0..TOTAL + 6 * FLIGHT {
        let t = Time::from_nanos(now);
        if now < TOTAL {
            assert!(sent.has_room());
            let (state, content) = (State::Outstanding, Content::Nothing);
            sent.push(SentPacket { time: t, train: NO_TRAIN, bytes: 1500, state, content });
        }
        if let Some(pn) = now.checked_sub(FLIGHT / 2).filter(|pn| *pn < TOTAL) {
            if rng.chance(0.01) && pn + 1 < TOTAL {
                dropped.insert(pn);
            } else {
                assert!(!received.is_stale(pn));
                received.on_packet(
                    &crate::lane::received::Arrival { at: t, ecn: base::Ecn::NotEct, waited: Span::ZERO },
                    pn,
                    true,
                    false,
                );
            }
        }
        if now % (FLIGHT / 8) == 0 {
            let mut statements = Vec::new();
            received.take_feedback(t, 0, (1_100, false), |f| statements.push(f));
            bytes += statements.iter().map(|f| wire::Frame::Feedback(f.clone()).encoded_len()).sum::<usize>();
            reports.push_back((now + FLIGHT / 2, statements));
        }
        if reports.front().is_some_and(|(at, _)| *at <= now) {
            let (_, statements) = reports.pop_front().expect("just seen");
            for f in statements {
                sent.on_feedback(f.covered, &f.holes, |_, p, _| {
                    assert_eq!(p.state, State::Outstanding);
                    acked += 1;
                })
                .expect("true");
            }
            let window = Span::from_nanos(FLIGHT + FLIGHT / 8);
            sent.detect_lost(t - window, |pn, _, _| assert!(lost.insert(pn), "lost twice"));
            // As a lane does: three round trips.
            sent.forget(t, Span::from_nanos(3 * FLIGHT), |_| {});
            let floor = wire::Floor { lane: 0, floor: sent.base(), interval_us: 1_000, packets: 1 << 16 };
            received.on_floor(&floor);
            (most, most_holes) = (most.max(sent.tracked()), most_holes.max(sent.holes()));
            assert!(received.runs() <= MAX_RUNS);
        }
    }
    assert_eq!((acked, lost.len() as u64), (TOTAL - dropped.len() as u64, dropped.len() as u64));
    assert_eq!(lost, dropped);
    assert!(sent.outstanding() == 0 && sent.tracked() <= 1, "{} left", sent.tracked());
    assert!(most >= 3 * FLIGHT as usize - 1 && most <= MAX_TRACKED / 4, "{most}");
    assert!(most_holes < MAX_SENT_HOLES / 100, "{most_holes}");
    assert!(sent.steps() < 4 * TOTAL, "{} steps for {TOTAL} packets", sent.steps());
    // Feedback takes less than a thousandth of what it is about.
    assert!((bytes as u64) < TOTAL * 1_500 / 1_000, "{bytes}");
}

proptest! {
    /// Any order of true statements about a growing set of arrivals acknowledges exactly what arrived.
    #[test]
    fn feedback_in_any_order_matches_a_set_model(
        n in 1u64..120,
        arrivals in proptest::collection::vec((0u64..120, 0u64..8), 1..40),
        order in proptest::collection::vec(any::<prop::sample::Index>(), 0..40),
        cuts in proptest::collection::vec((0u64..120, 0u64..120), 40),
    ) {
        let mut b = book(n);
        let mut arrived = BTreeSet::new();
        let mut statements = Vec::new();
        for ((start, len), (from, to)) in arrivals.into_iter().zip(cuts) {
            arrived.extend((start..start + len).filter(|pn| *pn < n));
            let Some(&top) = arrived.last() else { continue };
            let to = to.min(top + 1);
            let from = from.min(to);
            let holes: base::RangeSet = (from..to).filter(|pn| !arrived.contains(pn)).map(|pn| pn..pn + 1).collect();
            statements.push((from..to, holes.iter().collect::<Vec<_>>()));
        }
        for i in order {
            if !statements.is_empty() { let k = i.index(statements.len()); let s = statements[k].clone(); statements.push(s); }
        }
        let mut acked = BTreeSet::new();
        for (covered, holes) in &statements {
            b.on_feedback(covered.clone(), holes, |pn, _, _| { assert!(acked.insert(pn)); }).unwrap();
        }
        prop_assert!(acked.is_subset(&arrived));
        let end = arrived.last().map_or(0, |t| t + 1);
        let holes: base::RangeSet = (0..end).filter(|pn| !arrived.contains(pn)).map(|pn| pn..pn + 1).collect();
        b.on_feedback(0..end, &holes.iter().collect::<Vec<_>>(), |pn, _, _| { assert!(acked.insert(pn)); }).unwrap();
        prop_assert_eq!(&acked, &arrived);
        prop_assert_eq!(b.outstanding(), n - arrived.len() as u64);
        let mut lost = BTreeSet::new();
        b.detect_lost(Time::MAX, |pn, _, _| { lost.insert(pn); });
        prop_assert_eq!(lost, (0..end).filter(|pn| !arrived.contains(pn)).collect::<BTreeSet<_>>());
    }
}

#[test]
fn pushing_a_run_equals_pushing_its_packets() {
    let segment = |k: u64| SegmentRef { msn: 3, offset: 500 + k * 1_400, len: 1_400 };
    let packet = |content| SentPacket {
        time: Time::from_nanos(9),
        train: 2,
        bytes: 1_500,
        state: State::Outstanding,
        content,
    };
    let (mut run, mut single) = (book(3), book(3));
    run.push_run(&packet(Content::Nothing), (7, segment(0)), 5);
    for k in 0..5 {
        single.push(packet(Content::Data(7, segment(k))));
    }
    assert_eq!((run.next(), run.outstanding()), (8, 8));
    let all = |b: &mut SentPackets| {
        let mut all = Vec::new();
        b.on_feedback(0..8, &[4..5], |pn, p, _| all.push((pn, p.bytes, p.content.clone()))).unwrap();
        (all, b.outstanding())
    };
    assert_eq!(all(&mut run), all(&mut single));
}
