//! Behaviour of the delay-based algorithms: short queues, equal shares, and who yields to whom.

use super::shapes::*;
use crate::testkit::fluid::{Flow, Link, Point, Source, World};
use base::{Rate, Rng, Span, Time};

fn link(mbit: u64, buffer_bdps: u64, loss: f64) -> Link {
    Link::new(Rate::from_mbit(mbit), RTT, buffer_bdps, loss)
}

/// Endless flows, each from its second on.
fn flows(link: &Link, flows: &[(&str, u64)], end: u64) -> World {
    let make = |(i, (selection, start)): (usize, &(&str, u64))| {
        flow(selection, link, Source::Endless, secs(*start), i as u64)
    };
    let all = flows.iter().enumerate().map(make).collect();
    let mut w = World::new(link.clone(), all, Rng::from_u64(1));
    w.run(secs(end));
    w
}

fn shares(w: &World, link: &Link, from: u64, to: u64) -> Vec<f64> {
    w.flows.iter().map(|f| share(f, link, secs(from), secs(to))).collect()
}

pub(super) fn jain(shares: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (shares.iter().sum(), shares.iter().map(|s| s * s).sum());
    sum * sum / (shares.len() as f64 * squares)
}

/// The queue in bytes that is not exceeded in a share `part` of the feedbacks picked by `which`.
pub(super) fn queue_percentile(f: &Flow, part: f64, which: impl Fn(&Point) -> bool) -> u64 {
    let mut all: Vec<u64> = f.trace.iter().filter(|p| which(p)).map(|p| p.queue).collect();
    all.sort_unstable();
    all[((all.len() - 1) as f64 * part) as usize]
}

#[test]
fn vegas_fills_the_path_with_a_queue_of_a_few_packets() {
    for mbit in [20, 100, 1_000, 10_000] {
        let link = link(mbit, 1_000, 0.0);
        let w = flows(&link, &[("vegas", 0)], 60);
        let f = &w.flows[0];
        let got = share(f, &link, secs(20), secs(60));
        assert!(got > 0.99, "{mbit} Mbit/s: {got:.4}");
        assert_eq!(f.lost, 0, "{mbit} Mbit/s: congestion is avoided, not provoked");
        // Beta is four packets; a millisecond does not count, the flow's own train adds another, and timers are late.
        let most = queue_percentile(f, 0.99, |p| p.time > secs(20)) / link.packet;
        let fits = link.rate.bytes_in(Span::from_micros(2_250)) / link.packet + 10;
        assert!(most <= fits, "{mbit} Mbit/s: {most} packets queued, not at most {fits}");
    }
}

#[test]
fn vegas_reaches_full_rate_in_twice_the_rounds_of_slow_start() {
    let link = link(1_000, 1_000, 0.0);
    let w = flows(&link, &[("vegas", 0)], 5);
    let f = &w.flows[0];
    let held = phases(f).iter().filter(|p| p.1 == "slow_start:hold").count();
    // From 10 packets to 5833: about nine doublings, each followed by a round trip without growth.
    assert!((6..=10).contains(&held), "{:?}", phases(f));
    let full = f.trace.iter().find(|p| {
        p.time > Time::ZERO + RTT * 2
            && f.delivered_between(p.time - RTT, p.time) as f64 > 0.9 * link.rate.bytes_in(RTT) as f64
    });
    let at = full.expect("five seconds are enough").time.since(Time::ZERO);
    assert!(at < RTT * 26, "{at}");
}

#[test]
fn vegas_shares_with_vegas_and_yields_to_reno() {
    let link = link(20, 1_000, 0.0);
    let same = flows(&link, &[("vegas", 0), ("vegas", 10)], 100);
    let got = shares(&same, &link, 60, 100);
    assert!(jain(&got) > 0.95 && got.iter().sum::<f64>() > 0.99, "{got:.3?}");
    let mixed = flows(&link, &[("vegas", 0), ("reno", 0)], 100);
    let got = shares(&mixed, &link, 20, 100);
    assert!(got[0] < 0.15 && got[1] > 0.85, "{got:.3?}");
}

#[test]
fn copa_keeps_a_short_queue_at_full_rate_despite_random_loss() {
    for mbit in [20, 100, 1_000, 10_000] {
        for loss in [0.0, 0.01, 0.03] {
            let link = link(mbit, 1_000, loss);
            let w = flows(&link, &[("copa", 0)], 60);
            let f = &w.flows[0];
            let got = share(f, &link, secs(20), secs(60));
            assert!(got > 0.985, "{mbit} Mbit/s, loss {loss}: {got:.4}");
            let median = queue_percentile(f, 0.5, |p| p.time > secs(20)) / link.packet;
            let fits = link.rate.bytes_in(Span::from_micros(1_500)) / link.packet + 5;
            assert!(median <= fits, "{mbit} Mbit/s, loss {loss}: {median} packets queued");
        }
    }
}

#[test]
fn copa_does_not_mistake_its_own_queue_for_the_min_rtt() {
    // Without drains each filter window of the minimum round trip would add a millisecond to it.
    let link = link(1_000, 1_000, 0.0);
    let w = flows(&link, &[("copa", 0)], 120);
    let f = &w.flows[0];
    let early = queue_percentile(f, 0.5, |p| p.time > secs(20) && p.time < secs(30));
    let late = queue_percentile(f, 0.5, |p| p.time > secs(110));
    assert!(late < early * 11 / 10, "{early} bytes queued at first and {late} later");
    let drains = phases(f).iter().filter(|p| p.1 == "default:drain").count();
    assert!((10..=17).contains(&drains), "{drains} drains in two minutes");
}

#[test]
fn copa_flows_have_equal_shares() {
    for mbit in [20, 100] {
        let link = link(mbit, 1_000, 0.0);
        let w = flows(&link, &[("copa", 0), ("copa", 3), ("copa", 6), ("copa", 9)], 100);
        let got = shares(&w, &link, 60, 100);
        assert!(jain(&got) > 0.98 && got.iter().sum::<f64>() > 0.97, "{mbit} Mbit/s: {got:.3?}");
        let median = queue_percentile(&w.flows[0], 0.5, |p| p.time > secs(60));
        assert!(median < link.rate.bytes_in(RTT) / 6, "{mbit} Mbit/s: {median} bytes queued");
    }
}

#[test]
fn copa_competes_with_queue_filling_flows_only_while_they_last() {
    let link = link(20, 2_000, 0.0);
    let against = |selection| {
        let w = flows(&link, &[(selection, 0), ("reno", 0)], 100);
        (share(&w.flows[0], &link, secs(20), secs(100)), phases(&w.flows[0]))
    };
    let (got, states) = against("copa");
    assert!((0.35..0.65).contains(&got), "{got:.3} against Reno");
    assert!(states.iter().any(|p| p.1 == "competitive"));
    let (got, states) = against("copa:competitive=off");
    assert!(got < 0.15, "{got:.3} against Reno in default mode");
    assert!(states.iter().all(|p| p.1 != "competitive"));
    // The competitor leaves: short queues again.
    let rest = link.rate.bytes_in(Span::from_secs(20));
    let all = vec![
        flow("copa", &link, Source::Endless, Time::ZERO, 1),
        flow("reno", &link, Source::Bytes(rest), secs(5), 2),
    ];
    let mut w = World::new(link.clone(), all, Rng::from_u64(3));
    w.run(secs(120));
    let left = w.flows[1].finished.expect("Reno gets its part");
    assert!(left < secs(90), "{left:?}");
    let after = |p: &Point| p.time > left + Span::from_secs(20);
    assert!(queue_percentile(&w.flows[0], 0.5, after) < link.rate.bytes_in(RTT) / 10);
    assert!(w.flows[0].trace.iter().filter(|p| after(p)).all(|p| p.state.starts_with("default")));
}

#[test]
fn copa_follows_a_path_that_shrinks_and_grows() {
    let mut link = link(100, 1_000, 0.0);
    link.changes = vec![(secs(20), Rate::from_mbit(25)), (secs(40), Rate::from_mbit(100))];
    let w = flows(&link, &[("copa", 0)], 60);
    let f = &w.flows[0];
    let small = Link { rate: Rate::from_mbit(25), ..link.clone() };
    assert!(share(f, &small, secs(25), secs(40)) > 0.98);
    let queued = queue_percentile(f, 0.9, |p| p.time > secs(25) && p.time < secs(40));
    assert!(queued < small.rate.bytes_in(RTT) / 5, "{queued}");
    // Velocity: from a quarter to all in two dozen round trips.
    assert!(share(f, &link, secs(43), secs(60)) > 0.98);
}

#[test]
fn vegas_and_copa_start_at_a_known_rate() {
    let link = link(1_000, 1_000, 0.0);
    for name in ["vegas", "copa"] {
        let flow = flow_knowing(name, &link, Source::Endless, Time::ZERO, 8, Some(link.rate));
        let mut w = World::new(link.clone(), vec![flow], Rng::from_u64(8));
        w.run(secs(2));
        let got = share(&w.flows[0], &link, Time::ZERO + RTT * 2, secs(2));
        assert!(got > 0.95, "{name}: {got:.4} from the second round trip on");
        assert_eq!(w.flows[0].lost, 0, "{name}");
    }
}

#[test]
fn copa_works_with_shallow_queues() {
    for mbit in [100, 1_000] {
        let link = link(mbit, 50, 0.0);
        let w = flows(&link, &[("copa", 0)], 60);
        let got = share(&w.flows[0], &link, secs(20), secs(60));
        assert!(got > 0.97, "{mbit} Mbit/s: {got:.4}");
    }
}

#[test]
fn ledbat_adds_at_most_60_ms_and_loses_a_tenth_to_slowdowns() {
    for mbit in [20, 100, 1_000] {
        let link = link(mbit, 2_000, 0.0);
        let w = flows(&link, &[("ledbat++", 0)], 200);
        let f = &w.flows[0];
        let delay = |bytes| link.rate.time_for(bytes);
        let most = delay(queue_percentile(f, 0.99, |p| p.time > secs(20)));
        assert!(most < Span::from_millis(66), "{mbit} Mbit/s: {most}");
        let got = share(f, &link, secs(20), secs(200));
        assert!((0.85..0.97).contains(&got), "{mbit} Mbit/s: {got:.4}");
        // Each slowdown comes nine times the duration of the previous one after it.
        let starts: Vec<_> = phases(f).iter().filter(|p| p.1 == "slowdown").map(|p| p.0).collect();
        let ends: Vec<_> =
            phases(f).windows(2).filter(|w| w[0].1 == "slowdown:ramp").map(|w| w[1].0).collect();
        assert!(starts.len() >= 6, "{mbit} Mbit/s: {starts:?}");
        for i in 1..ends.len().min(starts.len() - 1) {
            let (took, waited) = (ends[i].since(starts[i]), starts[i + 1].since(ends[i]));
            let times = waited.as_secs_f64() / took.as_secs_f64();
            assert!((8.9..9.4).contains(&times), "{mbit} Mbit/s: {took}, then {waited}");
        }
    }
}

#[test]
fn ledbat_yields_to_queue_filling_flows_and_recovers() {
    for other in ["reno", "cubic"] {
        let link = link(20, 2_000, 0.0);
        let w = flows(&link, &[("ledbat++", 0), (other, 20)], 120);
        let got = shares(&w, &link, 40, 120);
        assert!(got[0] < 0.05 && got[1] > 0.93, "against {other}: {got:.3?}");
        let all = vec![
            flow("ledbat++", &link, Source::Endless, Time::ZERO, 1),
            flow(other, &link, Source::Bytes(link.rate.bytes_in(Span::from_secs(20))), secs(10), 2),
        ];
        let mut w = World::new(link.clone(), all, Rng::from_u64(3));
        w.run(secs(150));
        let left = w.flows[1].finished.expect("the other is let through");
        assert!(left < secs(35), "20 s of data begun at 10 s are through at {left:?}");
        // Half a packet a round trip at this distance (GAIN): from almost nothing in a minute or so.
        let back = share(&w.flows[0], &link, secs(120), secs(150));
        assert!(back > 0.8, "{back:.3} after {other} has left");
    }
}

#[test]
fn ledbat_slowdowns_show_latecomers_the_base_delay() {
    let link = link(20, 2_000, 0.0);
    let two = |selection| {
        let w = flows(&link, &[(selection, 0), (selection, 30)], 200);
        let most = queue_percentile(&w.flows[0], 0.9, |p| p.time > secs(60));
        assert!(link.rate.time_for(most) < Span::from_millis(80), "{selection}: {most}");
        shares(&w, &link, 60, 200)
    };
    let (with, without) = (two("ledbat++"), two("ledbat++:slowdown=off"));
    // Without slowdowns the newcomer mistakes the other's queue for the path and starves it.
    assert!(jain(&with) > 0.85, "{with:.3?}");
    assert!(jain(&without) < jain(&with) - 0.1, "{with:.3?} with, {without:.3?} without");
}
