use super::conformance::{
    Harness, Op, Path, bytes_sent_under_loss, check_cwnd_follows_use, check_recovery, run,
};
use crate::registry::names;
use crate::{Algorithm, Params, RateSample, SentTrain, Signals, create};
use base::{Rate, Rng, Span, Time};
use proptest::prelude::*;

mod delay_shapes;
mod fabric_shapes;
mod shapes;

fn make(name: &str, path: &Path) -> Box<dyn Algorithm> {
    create(name, &Params::default(), &path.info(), Rng::from_u64(7)).unwrap()
}

fn paths() -> [Path; 5] {
    let path = |rate, rtt| Path { rate, rtt, packet: 1500 };
    [
        path(Rate::from_mbit(400_000), Span::from_secs(1)),
        path(Rate::from_mbit(100_000), Span::from_millis(70)),
        path(Rate::from_mbit(1_000), Span::from_micros(100)),
        path(Rate::from_mbit(10), Span::from_millis(30)),
        path(Rate::from_bits_per_sec(64_000), Span::from_millis(600)),
    ]
}

fn any_op() -> impl Strategy<Value = Op> {
    let step = |used: std::ops::RangeInclusive<u8>, lost: std::ops::RangeInclusive<u8>| {
        (used, lost, 0u8..=3, 0u8..=255).prop_map(|(used, lost, marked, queue)| Op::Step {
            used,
            lost,
            marked: if marked == 3 { 255 } else { 0 },
            queue,
        })
    };
    prop_oneof![
        20 => Just(Op::CLEAN),
        20 => step(255..=255, 0..=5),
        5 => step(0..=255, 0..=255),
        1 => Just(Op::Spurious),
        1 => (0u8..=255).prop_map(Op::Timeout),
        1 => Just(Op::Persistent),
        1 => (0u16..=u16::MAX).prop_map(Op::Idle),
        1 => Just(Op::PathChanged),
        1 => (0u16..=u16::MAX).prop_map(Op::PacketSize),
        1 => (0u8..=255).prop_map(Op::Host),
        1 => (0u8..=8, any::<u64>()).prop_map(|(hops, seed)| Op::RandomTelemetry(hops, seed)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Any sequence gives valid decisions, and the same ones when repeated.
    #[test]
    fn every_algorithm_conforms_and_is_deterministic(ops in prop::collection::vec((any_op(), 1usize..40), 1..40)) {
        let ops: Vec<Op> = ops.into_iter().flat_map(|(op, n)| match op {
            Op::Step { .. } => vec![op; n],
            other => vec![other],
        }).collect();
        for path in paths() {
            for name in names() {
                let first = run(make(name, &path), path, &ops);
                prop_assert!(first.is_ok(), "{}", first.unwrap_err());
                prop_assert_eq!(first, run(make(name, &path), path, &ops));
            }
        }
    }

    /// After any sequence an algorithm recovers.
    #[test]
    fn every_algorithm_recovers(ops in prop::collection::vec(any_op(), 0..200), count in 1u8..12) {
        for path in paths() {
            for name in names() {
                for event in [Op::Timeout(count), Op::Persistent, Op::Idle(3_000)] {
                    let mut h = Harness::new(make(name, &path), path);
                    let done = ops.iter().try_for_each(|op| h.apply(*op).map(drop))
                        .and_then(|()| check_recovery(&mut h, event, 12));
                    prop_assert!(done.is_ok(), "{}", done.unwrap_err());
                }
            }
        }
    }
}

/// Any number, with small, round and the greatest ones more likely.
fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), 0..100_000u64, any::<u64>()]
}

/// Inconsistent feedback, which the engine never produces.
fn any_signals() -> impl Strategy<Value = Signals> {
    (prop::array::uniform24(any_number()), any::<[bool; 6]>()).prop_map(|(n, flags)| {
        let span = |i: usize| Span::from_nanos(n[i]);
        let rate = RateSample {
            rate: Rate::from_bytes_per_sec(n[0] / 16),
            interval: span(1),
            delivered: n[2],
            prior_delivered: n[3],
            tx_inflight: n[4],
            lost: n[5],
            forgone: n[9],
            app_limited: flags[0],
        };
        let time = |flag: bool, i: usize| flag.then_some(Time::from_nanos(n[i]));
        Signals {
            now: Time::from_nanos(n[6]),
            acked: n[7],
            acked_packets: n[8],
            lost: n[9],
            lost_packets: n[10],
            spurious: n[11],
            latest_lost_sent: time(flags[1], 12),
            prior_inflight: n[13],
            inflight: n[14],
            rtt: flags[2].then_some(span(15)),
            srtt: span(16),
            min_rtt: span(17),
            queue_delay: span(18),
            delivered: n[19],
            newest_acked_sent: time(flags[3], 20),
            rate: flags[4].then_some(rate),
            dispersion: (flags[0] && flags[2]).then(|| Rate::from_bytes_per_sec(n[14])),
            ce_packets: n[21],
            ce_acked: n[22],
            rtt_trend: n[23] as i64,
            delay_trend: n[22] as i64,
            host_delay: span(23),
            round_start: flags[5],
            round: n[1],
            ..Signals::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Inconsistent numbers cause no panic and leave a valid decision.
    #[test]
    fn inconsistent_signals_cause_no_panic(all in prop::collection::vec((any_signals(), 0u8..=8, any::<u64>()), 1..40)) {
        let path = paths()[1];
        for name in names() {
            let mut h = Harness::starting(make(name, &path), path, Time::from_nanos(u64::MAX - 9));
            for (s, hops, seed) in &all {
                h.algorithm.on_feedback(s);
                h.algorithm.on_sent(&SentTrain {
                    now: s.now,
                    bytes: s.lost,
                    packets: s.lost_packets,
                    inflight: s.prior_inflight,
                    app_limited: s.round_start,
                });
                let done = h.apply(Op::RandomTelemetry(*hops, *seed));
                prop_assert!(done.is_ok(), "{}", done.unwrap_err());
            }
        }
    }
}

#[test]
fn cwnd_stays_near_use_of_app_limited_flows() {
    for path in paths() {
        for name in names() {
            for busy_steps in [0, 8, 40] {
                let mut h = Harness::new(make(name, &path), path);
                h.repeat(Op::CLEAN, busy_steps).unwrap();
                check_cwnd_follows_use(&mut h, 60).unwrap();
            }
        }
    }
}

#[test]
fn more_loss_never_means_more_sending() {
    for path in paths() {
        for name in names() {
            for busy_steps in [0, 40, 400] {
                let sending = |lost| {
                    let mut h = Harness::new(make(name, &path), path);
                    h.repeat(Op::CLEAN, busy_steps).unwrap();
                    bytes_sent_under_loss(&mut h, lost, 40).unwrap()
                };
                let (clean, lossy) = (sending(0), sending(100));
                assert!(lossy <= clean, "{name} on {path:?}: {lossy} with loss, {clean} without");
            }
        }
    }
}
