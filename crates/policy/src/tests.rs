//! Tests whole policies: problems of bad ones, choices of good ones, and that printing one gives the same policy.

mod bad;
mod good;
mod many;
mod programs;
mod random;

use crate::{Explanation, Policy, Problems, parse_flow};
use cc::platform::{Choice, Policy as _};

fn read(text: &str) -> Policy {
    match Policy::read(text) {
        Ok((policy, problems)) => {
            assert_eq!(problems, Problems::default(), "{problems}");
            policy
        }
        Err(problems) => panic!("{problems}"),
    }
}

fn choose(policy: &Policy, flow: &str) -> Choice {
    policy.choose(&parse_flow(flow).unwrap())
}

fn explain(policy: &Policy, flow: &str) -> Explanation {
    policy.explain(&parse_flow(flow).unwrap())
}

fn class_of<'a>(policy: &'a Policy, choice: &Choice) -> &'a str {
    &policy.classes()[choice.class].name
}
