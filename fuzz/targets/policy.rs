//! Policy files and descriptions of flows: no text panics, every problem has a line and a remedy, what was read is printed in
//! a form that reads as the same, and every flow has an answer that agrees with its explanation.
//!
//! What stands behind the first zero byte, if there is one, is the flow.

#![no_main]

use cc::platform::Policy as _;
use libfuzzer_sys::fuzz_target;
use policy::{Policy, parse_flow};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = core::str::from_utf8(input) else { return };
    let (text, flow) =
        text.split_once('\0').unwrap_or((text, "10.1.0.5:1->10.2.0.7:4460 app=backup dscp=CS1"));
    let traffic = match parse_flow(flow) {
        Ok(traffic) => traffic,
        Err(e) => {
            assert!(e.to_string().contains("write a flow such as"));
            return;
        }
    };
    match Policy::read(text) {
        Ok((policy, warnings)) => {
            assert!(warnings.is_usable());
            let printed = policy.to_string();
            match Policy::read(&printed) {
                Ok((again, _)) => assert_eq!(again.spec(), policy.spec(), "{printed}"),
                // A policy near the limit of length may be printed longer than it was written.
                Err(_) if printed.len() > policy::MAX_FILE => {}
                Err(e) => panic!("{printed}\n{e}"),
            }
            let (choice, explained) = (policy.choose(&traffic), policy.explain(&traffic));
            assert_eq!(explained.rule.map_or(String::new(), |r| r.name), choice.rule);
            assert!(choice.class < policy.classes().len());
            assert!(cc::registry::parse(&choice.algorithm).is_ok(), "{}", choice.algorithm);
            assert!(explained.unmatched_rules.iter().all(|p| !p.reasons.is_empty()));
        }
        Err(problems) => {
            assert!(!problems.is_usable());
            let lines = 1 + text.matches('\n').count();
            for p in &problems.list {
                assert!(
                    (1..=lines).contains(&p.line) && !p.message.is_empty() && !p.remedy.is_empty(),
                    "{p}"
                );
            }
        }
    }
});
