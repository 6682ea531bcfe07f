//! Tests programs that misbehave in a transfer over the real transport in virtual time: it continues with the
//! fallback.

mod common;

use base::{Rate, Rng, Span, Time};
use cc::{Params, PathInfo, RateSample, Signals, registry};
use common::bad::{BAD, misbehaving};
use common::build_text;
use longhaul_programs::{Fault, Options, Replaced, events, load_bytes};
use netem::Probability;
use sim::steady::{Case, Measurement, measure};

fn case(cc: &str) -> Case {
    let loss = Probability::new(0.000_5).unwrap();
    let mut case = Case::new(Rate::from_mbit(100), Span::from_millis(20), loss, Span::from_secs(6));
    case.cc = cc.to_owned();
    case
}

fn run(cc: &str) -> Measurement {
    measure(&case(cc)).unwrap()
}

fn replacements(program: &str) -> Vec<Replaced> {
    events(0).into_iter().filter(|e| e.program == program).collect()
}

/// Whether the fault is the one that this misbehaviour should cause.
fn is_expected(bad: &str, fault: &Fault) -> bool {
    match (bad, fault) {
        ("loop" | "hog", Fault::Overran) => true,
        ("bounds", Fault::Trapped(what)) => what.contains("out of bounds"),
        ("division", Fault::Trapped(what)) => what.contains("divide by zero"),
        ("deep", Fault::Trapped(what)) => !what.is_empty(),
        ("deep", Fault::Overran) => true,
        ("rate-0", Fault::Rate(0)) | ("bound-0", Fault::Cwnd(0)) => true,
        ("rate-2-63", Fault::Rate(rate)) => *rate == 1 << 63,
        // Within a round trip, plus the time until the next feedback.
        ("silent", Fault::Silent(time)) => *time >= Span::from_millis(20) && *time < Span::from_millis(80),
        _ => false,
    }
}

#[test]
fn transfer_continues_at_the_rate_of_the_fallback() {
    let alone = run("haul");
    for (bad, code) in BAD {
        // During startup, and after the flow has found its rate.
        for after in [3, 300] {
            let name = format!("x{after}-{bad}");
            let Some(module) = build_text(&misbehaving(&name, after, code)) else { return };
            load_bytes(&module, &Options::default()).unwrap();
            let with = run(&name);
            let seen = replacements(&name);
            assert_eq!(seen.len(), 1, "{name}: {seen:?}");
            assert!(is_expected(bad, &seen[0].fault), "{name}: {:?}", seen[0].fault);
            assert_eq!(seen[0].fallback, "haul");
            // The second half; after an early fault the whole time, since before a late fault the program's own
            // rate counts.
            let ratio = with.ratio / alone.ratio;
            println!("{name}: {ratio:.3} of the fallback's, {}", seen[0].fault);
            assert!(ratio >= 0.9, "{name}: {with}, and the fallback alone: {alone}");
            assert!(
                after > 3 || with.whole >= 0.9 * alone.whole,
                "{name}: {with}, and the fallback alone: {alone}"
            );
            assert!(
                with.retransmitted <= alone.retransmitted + 0.01,
                "{name}: nothing is lost over it: {with}, {alone}"
            );
        }
    }
}

/// The flow's policy names a fallback that overrides the one chosen at loading, also when it changes while the
/// flow runs.
#[test]
fn fallback_of_the_flow_overrides_the_fallback_of_the_program() {
    let Some(module) = build_text(&misbehaving("x-of-flow", 2, "return;")) else { return };
    load_bytes(&module, &Options::default()).unwrap();
    let deciding = |first: &str, later: &str| {
        let info = PathInfo {
            packet_bytes: 1_500,
            handshake_rtt: Some(Span::from_millis(20)),
            ecn: true,
            known_rate: None,
            remembered: None,
        };
        let mut made = registry::create("x-of-flow", &Params::default(), &info, Rng::from_u64(1)).unwrap();
        made.set_fallback(first);
        for ms in 1..200 {
            if ms == 2 {
                made.set_fallback(later);
            }
            let now = Time::ZERO + Span::from_millis(ms);
            made.on_feedback(&Signals {
                now,
                acked: 1_500,
                srtt: info.handshake_rtt.unwrap(),
                ..Signals::default()
            });
        }
        made.name()
    };
    assert_eq!(deciding("cubic:hystart=off", "cubic:hystart=off"), "cubic");
    assert_eq!(deciding("cubic", "reno"), "reno");
    // No fallback given, or one that can be unloaded.
    assert_eq!(deciding("", ""), "haul");
    assert_eq!(deciding("x-of-flow", "nonsense"), "haul");
    let fallbacks: Vec<_> = replacements("x-of-flow").iter().map(|e| e.fallback).collect();
    assert_eq!(fallbacks, ["cubic", "reno", "haul", "haul"]);
}

#[test]
fn fallback_chosen_at_loading_is_used() {
    let Some(module) = build_text(&misbehaving("x-to-cubic", 100, "return;")) else { return };
    load_bytes(&module, &Options { fallback: "cubic".into(), ..Options::default() }).unwrap();
    run("x-to-cubic");
    let seen = replacements("x-to-cubic");
    assert_eq!((seen.len(), seen[0].fallback), (1, "cubic"));
    assert!(seen[0].rate.is_some(), "it begins from the rate that served: {seen:?}");
}

/// On a short path a cap is below what startup finds by itself, yet it must not be forgotten.
#[test]
fn capped_flow_continues_at_its_measured_rate() {
    let Some(module) = build_text(&misbehaving("x-capped", 300, "return;")) else { return };
    load_bytes(&module, &Options::default()).unwrap();
    let (srtt, capped) = (Span::from_millis(1), Rate::from_mbit(60));
    let info = PathInfo {
        packet_bytes: 1_500,
        handshake_rtt: Some(srtt),
        ecn: true,
        known_rate: None,
        remembered: None,
    };
    let mut made = registry::create("x-capped", &Params::default(), &info, Rng::from_u64(1)).unwrap();
    for ms in 1..400 {
        let rate = RateSample {
            rate: capped,
            interval: srtt,
            delivered: 7_500,
            prior_delivered: 0,
            tx_inflight: 7_500,
            lost: 0,
            forgone: 0,
            app_limited: false,
        };
        made.on_feedback(&Signals {
            now: Time::ZERO + Span::from_millis(ms),
            acked: 7_500,
            srtt,
            min_rtt: srtt,
            rate: Some(rate),
            round_start: true,
            round: ms,
            ..Signals::default()
        });
    }
    let seen = replacements("x-capped");
    assert_eq!(seen.len(), 1, "{seen:?}");
    let from = seen[0].rate.expect("it begins from the rate that served");
    assert!(from >= capped.scale(4, 5) && from <= capped.scale(5, 4), "{seen:?}");
}
