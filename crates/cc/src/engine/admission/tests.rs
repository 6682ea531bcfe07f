use super::*;
use crate::platform::Order;
use proptest::prelude::*;

fn mbit(n: u64) -> Rate {
    Rate::from_mbit(n)
}

fn class(name: &str, parent: Option<usize>, weight: u32, level: u8, guarantee: u64, cap: u64) -> Class {
    let some = |n: u64| (n > 0).then(|| mbit(n));
    let (guarantee, cap) = (some(guarantee), some(cap));
    Class { name: name.into(), parent, weight, level, guarantee, cap, order: Order::Fair }
}

#[test]
fn guarantees_are_summed_at_each_class_and_the_root() {
    let classes = [
        class("a", None, 1, 0, 600, 0),
        class("b", None, 1, 0, 0, 300),
        class("b1", Some(1), 1, 0, 200, 0),
        class("b2", Some(1), 1, 0, 200, 0),
    ];
    assert_eq!(check_class_guarantees(&classes[..2], Some(mbit(600))), Ok(()));
    let wrong = check_class_guarantees(&classes, Some(mbit(900))).expect_err("two are too much");
    let of: Vec<_> = wrong.iter().map(ToString::to_string).collect();
    assert_eq!(of.len(), 2, "{of:?}");
    assert!(of[0].contains("the host") && of[0].contains("1.00 Gbit/s"), "{of:?}");
    assert!(of[1].contains("class \"b\"") && of[1].contains("400"), "{of:?}");
    assert_eq!(check_class_guarantees(&classes[..3], None), Ok(()), "without a cap nobody knows");
}

#[test]
fn assured_rate_is_the_guarantee_or_the_share_of_the_rest() {
    let classes = [
        class("video", None, 1, 0, 300, 0),
        class("quick", None, 1, 0, 0, 100),
        class("bulk", None, 3, 1, 0, 0),
        class("rest", None, 1, 1, 0, 0),
        class("bulk1", Some(2), 1, 0, 0, 0),
        class("bulk2", Some(2), 1, 0, 0, 0),
    ];
    let sure = |i| assured_rate(&classes, Some(mbit(1_000)), i);
    assert_eq!(sure(0), Some(mbit(500)), "half of what the higher level has");
    assert_eq!(sure(1), Some(mbit(100)));
    assert_eq!(sure(2), Some(Rate::ZERO), "the first class may take all");
    let capped = [class("video", None, 1, 0, 300, 400), classes[2].clone(), classes[3].clone()];
    let sure = |i| assured_rate(&capped, Some(mbit(1_000)), i);
    assert_eq!((sure(1), sure(2)), (Some(mbit(450)), Some(mbit(150))));
    assert_eq!(assured_rate(&capped, None, 0), Some(mbit(400)));
    assert_eq!(assured_rate(&capped, None, 1), None);
    // A guarantee above its weighted share: the others share the rest.
    let classes =
        [class("a", None, 1, 0, 700, 0), class("b", None, 2, 0, 0, 0), class("c", None, 1, 0, 0, 0)];
    assert_eq!(assured_rate(&classes, Some(mbit(1_000)), 1), Some(mbit(200)));
}

#[test]
fn guarantees_are_admitted_while_rate_is_left() {
    assert_eq!(admit_guarantee(Some(mbit(100)), mbit(70), mbit(30)), Ok(()));
    let refused = admit_guarantee(Some(mbit(100)), mbit(70), mbit(31)).expect_err("too much");
    assert_eq!(refused, Refusal::Guarantee { wanted: mbit(31), left: mbit(30) });
    assert_eq!(admit_guarantee(None, mbit(70), mbit(31)), Ok(()));
}

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

#[test]
fn refused_deadline_names_the_earliest_possible_time() {
    // 1 MB a second: 1,000 bytes a millisecond.
    let rate = Rate::from_bytes_per_sec(1_000_000);
    let due = |by, bytes| Due { by: at(by), bytes };
    let promised = [due(300, 100_000), due(100, 90_000)];
    assert_eq!(admit_deadline(rate, at(0), &promised, due(310, 110_000)), Ok(()));
    // Before the first deadline there is room for 10,000 bytes.
    assert_eq!(admit_deadline(rate, at(0), &promised, due(11, 10_000)), Ok(()));
    let refused =
        admit_deadline(rate, at(0), &promised, due(50, 20_000)).expect_err("in the way of the first");
    let Refusal::Deadline { bytes: 20_000, earliest: Some(earliest) } = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(earliest.as_millis(), 110, "behind the first, before the second");
    let never = admit_deadline(Rate::ZERO, at(0), &[], due(50, 1)).expect_err("never");
    assert!(matches!(never, Refusal::Deadline { earliest: None, .. }), "{never}");
}

proptest! {
    /// Compares with a simulation of earliest deadline first: admitted deadlines are met, refused ones would not be;
    /// the named time suffices, and nothing much shorter does.
    #[test]
    fn admitted_deadlines_are_met_and_refused_ones_could_not_be(
        promised in prop::collection::vec((1_u64..1_000, 1_u64..200_000), 0..12),
        wanted in (1_u64..1_000, 1_u64..200_000),
    ) {
        let rate = Rate::from_bytes_per_sec(1_000_000);
        let mut kept: Vec<Due> = Vec::new();
        for (by, bytes) in promised {
            let d = Due { by: at(by), bytes };
            if admit_deadline(rate, at(0), &kept, d).is_ok() {
                kept.push(d);
            }
        }
        prop_assert!(all_met_by_edf(rate, &kept));
        let wanted = Due { by: at(wanted.0), bytes: wanted.1 };
        let with = |by: Time| kept.iter().copied().chain([Due { by, ..wanted }]).collect::<Vec<_>>();
        match admit_deadline(rate, at(0), &kept, wanted) {
            Ok(()) => prop_assert!(all_met_by_edf(rate, &with(wanted.by))),
            Err(Refusal::Deadline { earliest: Some(s), .. }) => {
                prop_assert!(!all_met_by_edf(rate, &with(wanted.by)));
                prop_assert!(all_met_by_edf(rate, &with(at(0) + s)));
                prop_assert!(!all_met_by_edf(rate, &with(at(0) + s - Span::from_micros(3))));
                prop_assert_eq!(admit_deadline(rate, at(0), &kept, Due { by: at(0) + s, ..wanted }), Ok(()));
            }
            Err(e) => prop_assert!(false, "{e}"),
        }
    }
}

/// Whether all deadlines are met with the earliest deadline first.
fn all_met_by_edf(rate: Rate, dues: &[Due]) -> bool {
    let mut dues = dues.to_vec();
    dues.sort_by_key(|d| d.by);
    let mut sent = 0;
    dues.iter().all(|d| {
        sent += d.bytes;
        at(0) + rate.time_for(sent) <= d.by
    })
}
