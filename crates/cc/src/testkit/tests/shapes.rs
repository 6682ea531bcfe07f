//! Behaviour of each algorithm over time in the model of a bottleneck.

use crate::registry::parse;
use crate::testkit::fluid::{Flow, Link, Source, World};
use crate::{PathInfo, create};
use base::{Rate, Rng, Span, Time};

pub(super) fn secs(s: u64) -> Time {
    Time::ZERO + Span::from_secs(s)
}

pub(super) fn flow(selection: &str, link: &Link, source: Source, start: Time, seed: u64) -> Flow {
    flow_knowing(selection, link, source, start, seed, None)
}

pub(super) fn flow_knowing(
    selection: &str,
    link: &Link,
    source: Source,
    start: Time,
    seed: u64,
    known_rate: Option<Rate>,
) -> Flow {
    let (def, params) = parse(selection).unwrap();
    let (packet_bytes, handshake_rtt) = (link.packet, Some(link.rtt));
    let info = PathInfo { packet_bytes, handshake_rtt, ecn: false, known_rate, remembered: None };
    Flow::new(create(def.name, &params, &info, Rng::from_u64(seed)).unwrap(), source, start)
}

pub(super) fn world(selection: &str, link: &Link, seed: u64) -> World {
    World::new(
        link.clone(),
        vec![flow(selection, link, Source::Endless, Time::ZERO, seed)],
        Rng::from_u64(seed),
    )
}

/// Share of the link's capacity that a flow got.
pub(super) fn share(f: &Flow, link: &Link, from: Time, to: Time) -> f64 {
    f.delivered_between(from, to) as f64 / (link.rate.bytes_in(to.since(from)) as f64 * (1.0 - link.loss))
}

/// Time and new state at every change of state.
pub(super) fn phases(f: &Flow) -> Vec<(Time, &'static str)> {
    let mut all: Vec<(Time, &'static str)> = f.trace.iter().map(|p| (p.time, p.state)).collect();
    all.dedup_by_key(|p| p.1);
    all
}

pub(super) const RTT: Span = Span::from_millis(70);

#[test]
fn bbr_fills_long_fat_paths_despite_random_loss() {
    for mbit in [500, 1_000, 10_000, 100_000] {
        for loss in [0.0, 0.001, 0.01] {
            let link = Link::new(Rate::from_mbit(mbit), RTT, 1_000, loss);
            let mut w = world("bbr", &link, mbit);
            w.run(secs(12));
            let got = share(&w.flows[0], &link, secs(4), secs(12));
            assert!(got > 0.985, "{mbit} Mbit/s, loss {loss}: {got:.4} of the limit");
            let probed = phases(&w.flows[0]).iter().filter(|p| p.1 == "probe_rtt").count();
            assert_eq!(probed, 0, "a flow whose queue empties need not starve to see the round trip");
        }
    }
}

#[test]
fn bbr_carries_a_gibibyte_at_half_a_gigabit() {
    for loss in [0.0, 0.001, 0.01] {
        let link = Link::new(Rate::from_mbit(500), RTT, 1_000, loss);
        let size = 1u64 << 30;
        let flow = flow("bbr", &link, Source::Bytes(size), Time::ZERO, 3);
        let mut w = World::new(link.clone(), vec![flow], Rng::from_u64(4));
        w.run(secs(60));
        let took = w.flows[0].finished.expect("a minute is enough").since(Time::ZERO);
        let least = link.rate.time_for(size).as_secs_f64() / (1.0 - loss);
        let got = least / took.as_secs_f64();
        assert!(got > 0.95, "loss {loss}: {got:.4} of the limit with start-up");
    }
}

#[test]
fn bbr_reaches_full_rate_within_a_dozen_round_trips() {
    for (mbit, rounds) in [(500, 7), (10_000, 11), (100_000, 12)] {
        let link = Link::new(Rate::from_mbit(mbit), RTT, 1_000, 0.001);
        let mut w = world("bbr", &link, 5);
        w.run(secs(2));
        let f = &w.flows[0];
        let full = f.trace.iter().find(|p| {
            p.time > Time::ZERO + RTT * 2 && {
                let got = f.delivered_between(p.time - RTT, p.time) as f64;
                got > 0.9 * link.rate.bytes_in(RTT) as f64
            }
        });
        let at = full.expect("two seconds are enough").time.since(Time::ZERO);
        assert!(at <= RTT * rounds + RTT / 2, "{mbit} Mbit/s: full at {at}");
        assert!(f.lost < 2 * link.rate.bytes_in(RTT) / 3, "{mbit} Mbit/s: {} lost on the way", f.lost);
    }
}

#[test]
fn bbr_works_at_low_rates_and_with_late_feedback() {
    for (mbit, least) in [(1, 0.9), (10, 0.98), (100, 0.98)] {
        for (loss, jitter) in [(0.0, 0), (0.01, 0), (0.01, 5)] {
            let mut link = Link::new(Rate::from_mbit(mbit), RTT, 1_000, loss);
            link.jitter = Span::from_millis(jitter);
            let mut w = world("bbr", &link, 6);
            w.run(secs(40));
            let got = share(&w.flows[0], &link, secs(10), secs(40));
            assert!(got > least, "{mbit} Mbit/s, loss {loss}, jitter {jitter} ms: {got:.4}");
        }
    }
}

#[test]
fn bbr_works_with_shallow_queues_and_heavier_random_loss() {
    for (buffer, loss, least) in
        [(100, 0.0, 0.97), (100, 0.01, 0.96), (1_000, 0.03, 0.97), (1_000, 0.05, 0.93)]
    {
        let link = Link::new(Rate::from_mbit(500), RTT, buffer, loss);
        let mut w = world("bbr", &link, 7);
        w.run(secs(30));
        let got = share(&w.flows[0], &link, secs(5), secs(30));
        assert!(got > least, "buffer {buffer}, loss {loss}: {got:.4}");
    }
}

#[test]
fn bbr_starts_at_a_known_rate_and_survives_a_wrong_one() {
    let link = Link::new(Rate::from_mbit(10_000), RTT, 1_000, 0.001);
    let run = |known| {
        let flow = flow_knowing("bbr", &link, Source::Endless, Time::ZERO, 8, Some(Rate::from_mbit(known)));
        let mut w = World::new(link.clone(), vec![flow], Rng::from_u64(8));
        w.run(secs(6));
        w
    };
    let right = run(10_000);
    let got = share(&right.flows[0], &link, Time::ZERO + RTT * 2, secs(1));
    assert!(got > 0.97, "known rate: {got:.4} from the second round trip on");
    for wrong in [1_000, 40_000] {
        let w = run(wrong);
        let got = share(&w.flows[0], &link, secs(2), secs(6));
        assert!(got > 0.97, "{wrong} believed of 10000 Mbit/s: {got:.4}");
    }
}

#[test]
fn bbr_follows_a_path_that_shrinks_and_grows() {
    let mut link = Link::new(Rate::from_mbit(500), RTT, 1_000, 0.0);
    link.changes = vec![(secs(6), Rate::from_mbit(100)), (secs(14), Rate::from_mbit(500))];
    let mut w = world("bbr", &link, 9);
    w.run(secs(24));
    let f = &w.flows[0];
    let bdp = link.rate.bytes_in(RTT);
    let late = f.trace.iter().filter(|p| p.time > secs(9) && p.time < secs(14));
    let standing = late.map(|p| p.queue).max().unwrap_or(0);
    assert!(standing < bdp / 5, "three seconds after the path shrank the queue holds {standing}");
    let small = Link { rate: Rate::from_mbit(100), ..link.clone() };
    assert!(share(f, &small, secs(9), secs(14)) > 0.95);
    // The next probe comes within 3 s and takes about ten round trips.
    assert!(share(f, &link, secs(19), secs(24)) > 0.95);
}

#[test]
fn bbr_recovers_after_a_black_out() {
    let mut link = Link::new(Rate::from_mbit(500), RTT, 1_000, 0.001);
    link.changes = vec![(secs(4), Rate::ZERO), (secs(6), Rate::from_mbit(500))];
    let mut w = world("bbr", &link, 10);
    w.run(secs(12));
    assert!(phases(&w.flows[0]).iter().any(|p| p.0 > secs(4) && p.1.starts_with("startup")));
    let got = share(&w.flows[0], &link, secs(9), secs(12));
    assert!(got > 0.97, "{got:.4}");
}

#[test]
fn bbr_flows_leave_each_other_a_share() {
    let link = Link::new(Rate::from_mbit(500), RTT, 1_000, 0.0);
    let flows = (0..4).map(|i| flow("bbr", &link, Source::Endless, secs(2 * i), i)).collect();
    let mut w = World::new(link.clone(), flows, Rng::from_u64(11));
    w.run(secs(80));
    let got: Vec<f64> = w.flows.iter().map(|f| share(f, &link, secs(50), secs(80))).collect();
    let (sum, squares): (f64, f64) = (got.iter().sum(), got.iter().map(|g| g * g).sum());
    let jain = sum * sum / (4.0 * squares);
    assert!(sum > 0.95 && jain > 0.65, "shares {got:.3?}, Jain's index {jain:.3}");
}

#[test]
fn bbr_probes_the_rtt_while_a_queue_stands_unless_disabled() {
    let link = Link::new(Rate::from_mbit(100), RTT, 3_000, 0.0);
    for (selection, probes) in [("bbr", true), ("bbr:probe_rtt=off", false)] {
        let flows = vec![
            flow(selection, &link, Source::Endless, Time::ZERO, 1),
            flow("reno", &link, Source::Endless, Time::ZERO, 2),
        ];
        let mut w = World::new(link.clone(), flows, Rng::from_u64(12));
        w.run(secs(30));
        assert_eq!(phases(&w.flows[0]).iter().any(|p| p.1 == "probe_rtt"), probes, "{selection}");
    }
}

#[test]
fn bbr_carries_an_app_limited_stream_without_a_queue() {
    let link = Link::new(Rate::from_mbit(500), RTT, 1_000, 0.001);
    let stream = Source::Stream(Rate::from_mbit(40));
    let mut w = World::new(link.clone(), vec![flow("bbr", &link, stream, Time::ZERO, 1)], Rng::from_u64(13));
    w.run(secs(10));
    let f = &w.flows[0];
    let got = f.delivered_between(secs(2), secs(10)) as f64
        / Rate::from_mbit(40).bytes_in(Span::from_secs(8)) as f64;
    assert!(got > 0.98, "a stream below the path's rate gets through: {got:.4}");
    let most = f.trace.iter().filter(|p| p.time > secs(2)).map(|p| p.queue).max();
    assert!(most < Some(link.rate.bytes_in(RTT) / 20), "and makes no queue: {most:?}");
}

/// Windows just before and just after each reduction.
fn reductions(f: &Flow) -> Vec<(u64, u64)> {
    f.trace.windows(2).filter(|w| w[1].cwnd < w[0].cwnd).map(|w| (w[0].cwnd, w[1].cwnd)).collect()
}

#[test]
fn reno_oscillates_between_a_window_and_its_half() {
    let link = Link::new(Rate::from_mbit(50), RTT, 1_000, 0.0);
    let mut w = world("reno", &link, 1);
    w.run(secs(120));
    let f = &w.flows[0];
    let teeth = reductions(f);
    assert!(teeth.len() >= 3, "{teeth:?}");
    assert!(teeth.iter().all(|(before, after)| before.abs_diff(2 * after) <= 2), "{teeth:?}");
    // Between two reductions: a packet per round trip, the round trip being between one and two of the minimum.
    let avoidance: Vec<_> = f.trace.iter().filter(|p| p.time > secs(20) && p.state == "avoidance").collect();
    let growth: u64 = avoidance.windows(2).map(|w| w[1].cwnd.saturating_sub(w[0].cwnd)).sum();
    let seconds = avoidance.last().unwrap().time.since(avoidance[0].time).as_secs_f64();
    let per_second = growth as f64 / link.packet as f64 / seconds;
    assert!((1.0 / 0.150..1.0 / 0.070).contains(&per_second), "{per_second} packets a second");
    assert!(share(f, &link, secs(20), secs(120)) > 0.97, "a queue of one product keeps Reno's pipe full");
}

#[test]
fn cubic_reduces_to_seven_tenths_and_is_concave_then_convex() {
    let link = Link::new(Rate::from_mbit(200), RTT, 300, 0.0);
    let mut w = world("cubic", &link, 1);
    w.run(secs(120));
    let f = &w.flows[0];
    let teeth = reductions(f);
    assert!(teeth.len() >= 3, "{teeth:?}");
    for (before, after) in &teeth {
        assert!(after.abs_diff(before * 7 / 10) <= 2, "{teeth:?}");
    }
    assert!(share(f, &link, secs(20), secs(120)) > 0.9);
}

#[test]
fn bbr_outperforms_cubic_and_reno_under_random_loss() {
    let link = Link::new(Rate::from_mbit(500), RTT, 1_000, 0.001);
    let got = |name| {
        let mut w = world(name, &link, 1);
        w.run(secs(20));
        share(&w.flows[0], &link, secs(5), secs(20))
    };
    let (bbr, cubic, reno) = (got("bbr"), got("cubic"), got("reno"));
    // Mathis: 1.22 / sqrt(0.001) packets a round trip is 1.3 % of this path.
    assert!(reno < 0.03 && cubic < 0.04 && bbr > 0.98, "{reno:.4} {cubic:.4} {bbr:.4}");
}

#[test]
fn fixed_sends_at_its_rate_until_the_breaker_trips() {
    let link = Link::new(Rate::from_mbit(500), RTT, 1_000, 0.05);
    let mut w = world("fixed:rate=400M", &link, 1);
    w.run(secs(5));
    let got = w.flows[0].delivered_between(secs(1), secs(5)) as f64;
    assert!(got > 0.94 * Rate::from_mbit(400).bytes_in(Span::from_secs(4)) as f64);
    // Four times the path's rate: three quarters are lost, and the rate is halved until it fits.
    let link = Link::new(Rate::from_mbit(100), RTT, 1_000, 0.0);
    let mut w = world("fixed:rate=400M", &link, 1);
    w.run(secs(20));
    let f = &w.flows[0];
    assert!(f.trace.iter().any(|p| p.state == "tripped"));
    let late = f.trace.iter().filter(|p| p.time > secs(5)).map(|p| p.rate).max();
    assert!(late < Some(Rate::from_mbit(130)), "{late:?}");
}
