#![allow(clippy::single_range_in_vec_init, reason = "lists of one hole")]
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn book(n: u64) -> SentBook {
    let mut b = SentBook::default();
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
fn acknowledging_what_was_never_sent_is_refused() {
    let mut b = book(10);
    assert_eq!(b.on_feedback(0..11, &[], |_, _, _| {}), Err(FalseFeedback));
    assert_eq!(b.outstanding(), 10);
}

#[test]
fn acknowledging_a_skipped_number_is_refused() {
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
fn lost_then_found_is_reported_as_lost_state() {
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

proptest! {
    /// Any order of true statements about a growing set of arrivals acknowledges exactly what arrived.
    #[test]
    fn statements_in_any_order_agree_with_a_plain_set(
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
