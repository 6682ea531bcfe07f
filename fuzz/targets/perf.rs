//! The JSON in which the two ends of `perf` speak of a measurement, as whoever is let in may send it. Nothing panics, a plan
//! that passes its check is one that can be carried out, and what was read is written and read as the same.

#![no_main]

extern crate longhaul_endpoint as endpoint;

use libfuzzer_sys::fuzz_target;
use proto::{MAX_SIZE, MAX_STREAMS, Message, Plan};

/// As the program's own, without what reads it from the command line.
mod args {
    #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Operation {
        Write,
        Send,
        Read,
        FetchAdd,
        CompareSwap,
    }

    impl Operation {
        pub fn is_atomic(self) -> bool {
            matches!(self, Operation::FetchAdd | Operation::CompareSwap)
        }
    }
}
#[allow(dead_code, reason = "the program uses all of it")]
#[path = "../../crates/cli/src/policy_decision.rs"]
mod policy_decision;
#[allow(dead_code, reason = "the program uses all of it")]
#[path = "../../crates/cli/src/perf/proto.rs"]
mod proto;

/// A plan that passes its check can be carried out.
fn check(plan: &Plan) {
    match plan.check() {
        Ok(()) => {
            assert!((1..=MAX_SIZE).contains(&plan.size) && plan.size <= plan.region, "{plan:?}");
            assert!((1..=MAX_STREAMS).contains(&plan.streams) && plan.depth > 0, "{plan:?}");
            let used = plan.slots().checked_mul(plan.size).expect("bounded by the region");
            assert!(plan.slots() > 0 && used <= plan.region, "{plan:?}");
            if plan.check_keys().is_ok() {
                assert!(plan.rkeys.len() <= usize::from(plan.streams), "{plan:?}");
            }
        }
        Err(text) => assert!(!text.is_empty()),
    }
}

fuzz_target!(|input: &[u8]| {
    let m = match Message::decode(input) {
        Ok(m) => m,
        Err(text) => return assert!(!text.is_empty()),
    };
    let again = Message::decode(&m.encode()).expect("what is written is read");
    match &m {
        Message::Ask(plan) => check(plan),
        Message::Finish(_, figures) | Message::Done(figures) => {
            if let Some(mapped) = &figures.policy {
                assert!(!mapped.to_string().is_empty());
            }
            // Fractions may differ in their last digit.
            return;
        }
        Message::Ready(_) | Message::Refused(_) => {}
    }
    assert_eq!(again, m);
});
