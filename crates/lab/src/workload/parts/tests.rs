use super::*;

fn part(basis: Basis, expected_rate: Option<f64>, achieved_rate: f64) -> PartResult {
    PartResult { basis, expected_rate, achieved_rate, ..PartResult::default() }
}

#[test]
fn single_part_without_promise_is_promised_the_rest_of_the_cap() {
    let mut parts = vec![part(Basis::Guarantee, Some(3e8), 3e8), part(Basis::Nothing, None, 4.5e8)];
    promise_rest_of_cap(&mut parts, &[3e8, 4.5e8], None);
    assert_eq!(parts[1].share(), None, "without a cap there is no rest");
    promise_rest_of_cap(&mut parts, &[3e8, 4.5e8], Some(9e8));
    assert_eq!(
        (parts[1].basis, parts[1].expected_rate, parts[1].share()),
        (Basis::Rest, Some(6e8), Some(0.75))
    );
    let mut parts = vec![part(Basis::Nothing, None, 1.0), part(Basis::Nothing, None, 1.0)];
    promise_rest_of_cap(&mut parts, &[1.0, 1.0], Some(9e8));
    assert!(parts.iter().all(|p| p.expected_rate.is_none()));
}

#[test]
fn deadlines_are_kept_late_or_refused() {
    let due = |completion, refused: &str| PartResult {
        deadline: Some(0.5),
        completion,
        refusal: refused.into(),
        ..PartResult::default()
    };
    assert_eq!(due(Some(0.5), "").kept(), Some(true));
    assert_eq!(due(Some(0.51), "").kept(), Some(false));
    assert_eq!(due(None, "").kept(), Some(false));
    assert_eq!(due(None, "it cannot be").kept(), None);
    assert_eq!(PartResult::default().kept(), None);
}

#[test]
fn last_message_has_the_remaining_bytes() {
    let part = Part { qos: "bulk".into(), size: 1_000, bytes: Some(2_500), ..Part::default() };
    let mut r = RunningPart::new(part).expect("a part");
    assert_eq!((r.messages(), r.size(0), r.size(2)), (Some(3), 1_000, 500));
    r.completed = 3;
    assert_eq!(r.payload(), 2_500);
    assert!(RunningPart::new(Part { qos: "soon".into(), ..Part::default() }).is_err());
}

#[test]
fn invalid_policy_is_an_error() {
    assert!(policy_of("").is_ok());
    assert!(policy_of("[process]\ncap = \"much\"").expect_err("no rate").contains("line 2"));
}
