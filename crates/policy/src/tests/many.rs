//! Counts the steps of checking policies with as many rules as are allowed.

use crate::check::{self, MAX_OVERLAP_STEPS};
use crate::problem::{Problems, Severity};
use crate::read::{self, Reader};
use crate::region::Budget;
use crate::spec::MAX_RULES;
use std::fmt::Write;

/// One rule for each pattern, each with a treatment of its own.
fn policy_of_patterns(patterns: impl Iterator<Item = String>) -> String {
    patterns.enumerate().fold(String::new(), |mut text, (i, p)| {
        let weight = i % 10_000 + 1;
        let _ = writeln!(text, "[[rule]]\nname=\"{i}\"\nmatch={{application=[{p}]}}\nweight={weight}");
        text
    })
}

/// The steps that the overlap check takes, and the problems it finds.
fn overlap_steps(text: &str) -> (usize, Problems) {
    let mut reader = Reader::new(text, false);
    let spec = read::spec(text, &mut reader);
    let mut problems = reader.problems;
    assert_eq!(problems, Problems::default(), "{problems}");
    let regions: Vec<_> = spec.rules.iter().map(|r| check::regions(&r.when, &spec.paths)).collect();
    let rules: Vec<_> = spec.rules.iter().zip(regions.iter().map(Vec::as_slice)).collect();
    let mut budget = Budget::new(MAX_OVERLAP_STEPS);
    check::overlaps(&rules, &mut budget, &mut problems);
    (MAX_OVERLAP_STEPS - budget.left(), problems)
}

const PAIRS: usize = MAX_RULES * (MAX_RULES - 1) / 2;

#[test]
fn overlapping_patterns_take_few_steps_per_pair_and_unreachable_rules_are_found() {
    // Each partly overlaps all others; the last three are within number 7.
    let distinct = (0..MAX_RULES - 3).map(|i| format!("\"*x{i:04}*\""));
    let taken = ["\"*x0007*\"", "\"a*x0007?b\", \"x0007\"", "\"?x0007*x0008\""];
    let (steps, problems) = overlap_steps(&policy_of_patterns(distinct.chain(taken.map(str::to_owned))));
    assert!(steps < 3 * PAIRS, "{steps} steps for {PAIRS} pairs");
    assert_eq!(problems.errors, 3, "{problems}");
    let errors: Vec<_> = problems.list.iter().filter(|p| p.severity == Severity::Error).collect();
    assert!(errors.iter().all(|e| e.message.contains("taken by \"7\" (line 29)")), "{errors:?}");
}

#[test]
fn plain_names_and_prefix_patterns_take_as_few_steps() {
    let (some, problems) =
        overlap_steps(&policy_of_patterns((0..MAX_RULES).map(|i| format!("\"app-{i:04}-*\""))));
    assert_eq!((some < 5 * PAIRS, problems), (true, Problems::default()), "{some} steps for {PAIRS} pairs");
    // Specific rules first: each contains all before it.
    let around = |i: usize| format!("\"{}*\"", "a".repeat(60 - i));
    let (some, problems) = overlap_steps(&policy_of_patterns((0..60).map(around)));
    assert_eq!((some < 60 * 60 * 60, problems), (true, Problems::default()), "{some} steps");
}

#[test]
fn overlap_check_beyond_the_budget_ends_with_a_warning() {
    let list = |i: usize| (0..100).map(|k| format!("\"*{i:03}x{k:02}*\"")).collect::<Vec<_>>().join(",");
    let (steps, problems) = overlap_steps(&policy_of_patterns((0..600).map(list)));
    assert_eq!(steps, MAX_OVERLAP_STEPS);
    let last = problems.list.iter().filter(|p| p.message.contains("too many rules")).count();
    assert!(last == 1 && problems.list.iter().any(|p| p.message.contains("from \"")), "{problems}");
}
