use super::*;

fn part(basis: Basis, promised: Option<f64>, got: f64) -> PartResult {
    PartResult { basis, promised, got, ..PartResult::default() }
}

#[test]
fn one_part_without_a_promise_is_promised_the_rest_of_the_cap_and_several_are_not() {
    let mut parts = vec![part(Basis::Guarantee, Some(3e8), 3e8), part(Basis::Nothing, None, 4.5e8)];
    leave_rest(&mut parts, &[3e8, 4.5e8], None);
    assert_eq!(parts[1].share(), None, "without a cap there is no rest");
    leave_rest(&mut parts, &[3e8, 4.5e8], Some(9e8));
    assert_eq!((parts[1].basis, parts[1].promised, parts[1].share()), (Basis::Rest, Some(6e8), Some(0.75)));
    let mut parts = vec![part(Basis::Nothing, None, 1.0), part(Basis::Nothing, None, 1.0)];
    leave_rest(&mut parts, &[1.0, 1.0], Some(9e8));
    assert!(parts.iter().all(|p| p.promised.is_none()));
}

#[test]
fn deadlines_are_kept_late_or_refused() {
    let due = |took, refused: &str| PartResult {
        within: Some(0.5),
        took,
        refused: refused.into(),
        ..PartResult::default()
    };
    assert_eq!(due(Some(0.5), "").kept(), Some(true));
    assert_eq!(due(Some(0.51), "").kept(), Some(false));
    assert_eq!(due(None, "").kept(), Some(false));
    assert_eq!(due(None, "it cannot be").kept(), None);
    assert_eq!(PartResult::default().kept(), None);
}

#[test]
fn the_last_message_of_an_amount_is_what_is_left() {
    let part = Part { qos: "bulk".into(), size: 1_000, bytes: Some(2_500), ..Part::default() };
    let mut r = Running::new(part).expect("a part");
    assert_eq!((r.messages(), r.size(0), r.size(2)), (Some(3), 1_000, 500));
    r.completed = 3;
    assert_eq!(r.payload(), 2_500);
    assert!(Running::new(Part { qos: "soon".into(), ..Part::default() }).is_err());
}

#[test]
fn a_policy_that_cannot_be_used_is_named() {
    assert!(policy_of("").is_ok());
    assert!(policy_of("[process]\ncap = \"much\"").expect_err("no rate").contains("line 2"));
}
