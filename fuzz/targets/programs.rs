//! What a congestion-control program says of itself: a module of arbitrary bytes, and the section of one. No panic, bounded
//! memory, and what is taken can be used: names that select it, defaults within their ranges.
//!
//! Byte 0 of the input chooses: a whole module, or the section alone. (The sandbox is wasmtime's; what programs decide is
//! checked by the property test `accepted_answers_are_valid_decisions`.)

#![no_main]

#[path = "../../crates/programs/src/manifest.rs"]
#[allow(dead_code, unreachable_pub)]
mod manifest;

use cc::registry::{Kind, MAX_NAME, MAX_TEXT};
use libfuzzer_sys::fuzz_target;
use manifest::{MAX_PARAMS, MAX_STATES, Manifest};

fuzz_target!(|input: &[u8]| {
    let Some((choice, rest)) = input.split_first() else { return };
    let read = if choice % 2 == 0 { Manifest::of_wasm(rest) } else { Manifest::parse(rest) };
    let m = match read {
        Ok(m) => m,
        Err(e) => return assert!(!e.to_string().is_empty() && e.to_string().len() < MAX_TEXT),
    };
    assert!(!m.name.is_empty() && m.name.len() <= MAX_NAME);
    assert!(m.params.len() <= MAX_PARAMS && m.states.len() <= MAX_STATES);
    for (p, value) in m.params.iter().zip(m.values(&cc::Params::default())) {
        match p.kind {
            Kind::Switch { .. } => assert!(value <= 1),
            Kind::Count { min, max, .. } | Kind::Share { min, max, .. } => {
                assert!((min..=max).contains(&value))
            }
            Kind::Span { min, max, .. } => assert!((min.as_nanos()..=max.as_nanos()).contains(&value)),
            Kind::Rate { .. } => assert_eq!(value, 0),
        }
    }
});
