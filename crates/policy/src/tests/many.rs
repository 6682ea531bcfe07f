//! What it takes to check policies with as many rules as there may be, in steps.

use crate::check::{self, MAX_STEPS};
use crate::problem::{Problems, Severity};
use crate::read::{self, Reader};
use crate::region::Budget;
use crate::spec::MAX_RULES;
use std::fmt::Write;

/// A rule for each list of patterns, each with an outcome of its own.
fn policy(patterns: impl Iterator<Item = String>) -> String {
    patterns.enumerate().fold(String::new(), |mut text, (i, p)| {
        let weight = i % 10_000 + 1;
        let _ = writeln!(text, "[[rule]]\nname=\"{i}\"\nmatch={{application=[{p}]}}\nweight={weight}");
        text
    })
}

/// The steps that looking for overlaps takes, and what is found.
fn steps(text: &str) -> (usize, Problems) {
    let mut reader = Reader::new(text, false);
    let spec = read::spec(text, &mut reader);
    let mut problems = reader.problems;
    assert_eq!(problems, Problems::default(), "{problems}");
    let regions: Vec<_> = spec.rules.iter().map(|r| check::regions(&r.when, &spec.paths)).collect();
    let rules: Vec<_> = spec.rules.iter().zip(regions.iter().map(Vec::as_slice)).collect();
    let mut budget = Budget::new(MAX_STEPS);
    check::overlaps(&rules, &mut budget, &mut problems);
    (MAX_STEPS - budget.left(), problems)
}

const PAIRS: usize = MAX_RULES * (MAX_RULES - 1) / 2;

#[test]
fn patterns_that_all_overlap_take_few_steps_for_each_pair_and_what_is_never_reached_is_found() {
    // Each crosses all others; the last three are within the one of number 7.
    let distinct = (0..MAX_RULES - 3).map(|i| format!("\"*x{i:04}*\""));
    let taken = ["\"*x0007*\"", "\"a*x0007?b\", \"x0007\"", "\"?x0007*x0008\""];
    let (steps, problems) = steps(&policy(distinct.chain(taken.map(str::to_owned))));
    assert!(steps < 3 * PAIRS, "{steps} steps for {PAIRS} pairs");
    assert_eq!(problems.errors, 3, "{problems}");
    let errors: Vec<_> = problems.list.iter().filter(|p| p.severity == Severity::Error).collect();
    assert!(errors.iter().all(|e| e.what.contains("taken by \"7\" (line 29)")), "{errors:?}");
}

#[test]
fn names_and_beginnings_are_as_quick() {
    let (some, problems) = steps(&policy((0..MAX_RULES).map(|i| format!("\"app-{i:04}-*\""))));
    assert_eq!((some < 5 * PAIRS, problems), (true, Problems::default()), "{some} steps for {PAIRS} pairs");
    // The particular first: each is around all before it.
    let around = |i: usize| format!("\"{}*\"", "a".repeat(60 - i));
    let (some, problems) = steps(&policy((0..60).map(around)));
    assert_eq!((some < 60 * 60 * 60, problems), (true, Problems::default()), "{some} steps");
}

#[test]
fn what_would_take_too_long_is_given_up_and_said() {
    let list = |i: usize| (0..100).map(|k| format!("\"*{i:03}x{k:02}*\"")).collect::<Vec<_>>().join(",");
    let (steps, problems) = steps(&policy((0..600).map(list)));
    assert_eq!(steps, MAX_STEPS);
    let last = problems.list.iter().filter(|p| p.what.contains("too many rules")).count();
    assert!(last == 1 && problems.list.iter().any(|p| p.what.contains("from \"")), "{problems}");
}
