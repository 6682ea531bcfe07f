//! Every congestion-control algorithm under sequences of what a path can do: no panic, and no decision outside of
//! what the conformance kit demands.
//!
//! Input: algorithm, rate class, round-trip class, packet class; then operations, a byte each with its arguments.

#![no_main]

use base::{Rate, Rng, Span};
use cc::registry;
use cc::testkit::conformance::{Harness, Op, Path};
use libfuzzer_sys::fuzz_target;

/// Operations of one input at most: each may cost a few microseconds.
const MAX_OPS: usize = 4_096;

fuzz_target!(|input: &[u8]| {
    let mut bytes = input.iter().copied();
    let mut next = || bytes.next();
    let (Some(which), Some(rate), Some(rtt), Some(packet)) = (next(), next(), next(), next()) else { return };
    let algorithms = registry::list();
    let definition = &algorithms[usize::from(which) % algorithms.len()];
    let path = Path {
        // 64 kbit/s to 100 Gbit/s; 100 us to 2.5 s; 576 to 9,000 bytes.
        rate: Rate::from_bytes_per_sec((8_000 << (rate % 21)).min(12_500_000_000)),
        rtt: Span::from_micros((100 << (rtt % 15)).min(2_500_000)),
        packet: 576 + u64::from(packet) * 33,
    };
    let params = registry::Params::default();
    let made = registry::create(definition.name, &params, &path.info(), Rng::from_u64(u64::from(which)));
    let mut harness = Harness::new(made.expect("defaults are valid"), path);
    for _ in 0..MAX_OPS {
        let Some(op) = operation(&mut next) else { return };
        if let Err(why) = harness.apply(op) {
            panic!("{why}");
        }
    }
});

fn operation(next: &mut impl FnMut() -> Option<u8>) -> Option<Op> {
    Some(match next()? % 8 {
        0 | 7 => Op::Step { used: next()?, lost: next()?, marked: next()?, queue: next()? },
        1 => Op::Spurious,
        2 => Op::Timeout(next()?),
        3 => Op::Persistent,
        4 => Op::Idle(u16::from_be_bytes([next()?, next()?])),
        5 => Op::PathChanged,
        _ => Op::PacketSize(u16::from_be_bytes([next()?, next()?])),
    })
}
