//! The shape of what steers by marks, delay to the microsecond, or telemetry: what the papers on data centres claim.

use super::delay_shapes::{jain, queue};
use super::shapes::{flow, share};
use crate::testkit::fluid::{Flow, Link, Source, World};
use base::{Rate, Rng, Span, Time};

const US: fn(u64) -> Span = Span::from_micros;

/// 10 Gbit/s over 100 us with a megabyte of queue.
fn fabric(mark: Option<u64>) -> Link {
    Link::fabric(Rate::from_mbit(10_000), US(100), 1 << 20, mark)
}

fn ms(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

/// Endless flows, each from its millisecond on, until some millisecond.
fn run(link: &Link, flows: &[(&str, u64)], end: u64) -> World {
    let make = |(i, (selection, start)): (usize, &(&str, u64))| {
        flow(selection, link, Source::Endless, ms(*start), i as u64)
    };
    let all: Vec<Flow> = flows.iter().enumerate().map(make).collect();
    let mut w = World::new(link.clone(), all, Rng::from_u64(1));
    w.run(ms(end));
    w
}

/// As many alike, from the beginning.
fn alike(link: &Link, selection: &str, count: usize, end: u64) -> World {
    run(link, &vec![(selection, 0); count], end)
}

fn shares(w: &World, link: &Link, from: u64, to: u64) -> Vec<f64> {
    w.flows.iter().map(|f| share(f, link, ms(from), ms(to))).collect()
}

/// How long what was queued at the first flow's feedbacks would take to leave, at a share `part` of them from some
/// millisecond on.
fn wait(w: &World, link: &Link, part: f64, from: u64) -> Span {
    link.rate.time_for(queue(&w.flows[0], part, |p| p.time > ms(from)))
}

fn lost(w: &World) -> u64 {
    w.flows.iter().map(|f| f.lost).sum()
}

/// 65 packets of 1.5 kB at 10 Gbit/s (Alizadeh et al., SIGCOMM 2010, section 3.4); their equation 13 asks for 12.
const K: u64 = 65 * 1_500;

#[test]
fn dctcp_keeps_the_queue_around_the_threshold_at_full_rate() {
    let link = fabric(Some(K));
    for count in [1, 2, 8] {
        let w = alike(&link, "dctcp", count, 1_000);
        let got: f64 = shares(&w, &link, 0, 1_000).iter().sum();
        assert!(got > 0.99, "{count} flows: {got:.4}");
        let steady = |part| queue(&w.flows[0], part, |p| p.time > ms(200));
        let (low, middle, high) = (steady(0.01), steady(0.5), steady(0.99));
        // Figure 1: the queue stays close to K, and never runs empty.
        assert!(low > 0 && high < K + count as u64 * 60_000, "{count} flows: {low} to {high}");
        assert!((K / 2..K + K / 2).contains(&middle), "{count} flows: {middle}");
        assert_eq!(lost(&w), 0, "nothing is lost");
        assert!(w.flows[0].marked > 0);
    }
}

#[test]
fn dctcp_queues_a_fraction_of_what_reno_does() {
    let link = fabric(Some(K));
    let middle = |selection, link: &Link| wait(&alike(link, selection, 2, 1_000), link, 0.5, 200);
    let (dctcp, reno) = (middle("dctcp", &link), middle("reno", &fabric(None)));
    // Figure 1 of the paper: 90 % less.
    assert!(dctcp * 5 < reno, "{dctcp} against {reno}");
}

#[test]
fn swift_holds_its_target_delay() {
    let link = fabric(None);
    for count in [1, 2] {
        let w = alike(&link, "swift:fs_range=0us", count, 500);
        let got = shares(&w, &link, 200, 500);
        assert!(got.iter().sum::<f64>() > 0.99 && jain(&got) > 0.99, "{got:.3?}");
        // 50 us of queue is the base target; AIMD swings about it.
        let (low, high) = (wait(&w, &link, 0.05, 200), wait(&w, &link, 0.95, 200));
        assert!(low > US(30) && high < US(65), "{count} flows: {low} to {high}");
        assert_eq!(lost(&w), 0);
    }
    let w = alike(&link, "swift:fs_range=0us,base_target=200us", 1, 500);
    let middle = wait(&w, &link, 0.5, 200);
    assert!(middle > US(180) && middle < US(220), "{middle}");
}

#[test]
fn swift_goes_below_a_packet_and_flow_scaling_shares_there() {
    // 32 flows where two packets fill the path: each has a fifth of a packet in flight.
    let link = Link::fabric(Rate::from_mbit(1_000), US(20), 1 << 20, None);
    let two = |selection| {
        let w = alike(&link, selection, 32, 400);
        let got = shares(&w, &link, 100, 400);
        let sum: f64 = got.iter().sum();
        assert!(sum > 0.95, "{selection}: {sum:.3}");
        let middle = queue(&w.flows[0], 0.5, |p| p.time > ms(100));
        assert!(middle < 32 * link.packet, "{selection}: a packet of each would be in the queue: {middle}");
        jain(&got)
    };
    let (with, without) = (two("swift"), two("swift:fs_range=0us"));
    // Section 3.5: scaling the target by the window speeds up fairness.
    assert!(with > 0.6 && with > without + 0.2, "{with:.3} with, {without:.3} without");
}

#[test]
fn swift_slows_down_for_a_slow_host_and_comes_back() {
    let mut link = fabric(None);
    link.host = vec![(ms(300), US(400)), (ms(310), Span::ZERO)];
    let w = alike(&link, "swift", 1, 500);
    let f = &w.flows[0];
    let slow = share(f, &link, ms(304), ms(310));
    assert!(slow < 0.4, "{slow:.3} while packets wait 400 us in the host");
    assert!(f.trace.iter().any(|p| p.time > ms(304) && p.state == "host"));
    assert!(share(f, &link, ms(350), ms(500)) > 0.99);
}

#[test]
fn timely_keeps_the_round_trip_between_its_thresholds() {
    let link = fabric(None);
    for count in [1, 2, 8] {
        let w = alike(&link, "timely", count, 600);
        let got: f64 = shares(&w, &link, 200, 600).iter().sum();
        assert!(got > 0.97, "{count} flows: {got:.3}");
        let (middle, high) = (wait(&w, &link, 0.5, 200), wait(&w, &link, 0.99, 200));
        // T_low is 50 us and T_high 500 us beyond the bare path. Many flows swing about T_low, where growth does not ask for
        // the gradient.
        assert!(high > US(50) && high < US(500), "{count} flows: {high}");
        assert!(count > 2 || middle > US(40), "{count} flows: {middle}");
        assert_eq!(lost(&w), 0);
    }
}

#[test]
fn dcqcn_converges_to_fair_shares_with_early_marks() {
    // Section 5: K_min 5 kB, K_max 200 kB; P_max 10 % for 10 Gbit/s.
    let mut link = fabric(Some(5_000));
    link.mark_slope = Some((0.1, 200_000));
    let w = run(&link, &[("dcqcn", 0), ("dcqcn", 200)], 1_000);
    let alone = share(&w.flows[0], &link, ms(100), ms(200));
    assert!(alone > 0.93, "{alone:.3}");
    let got = shares(&w, &link, 500, 1_000);
    assert!(got.iter().sum::<f64>() > 0.93 && jain(&got) > 0.99, "{got:.3?}");
    let high = wait(&w, &link, 0.99, 500);
    assert!(high < US(200), "{high}");
    assert_eq!(lost(&w), 0);
}

#[test]
fn hpcc_runs_at_eta_with_next_to_no_queue() {
    let link = fabric(None);
    for (selection, eta) in [("hpcc", 0.95), ("hpcc:eta=90%", 0.9)] {
        for count in [1, 2, 8] {
            let w = alike(&link, selection, count, 400);
            let got: f64 = shares(&w, &link, 100, 400).iter().sum();
            assert!((eta - 0.02..eta + 0.01).contains(&got), "{selection}, {count} flows: {got:.3}");
            let high = queue(&w.flows[0], 0.99, |p| p.time > ms(100));
            assert!(high < 5 * link.packet, "{selection}, {count} flows: {high} bytes queued");
        }
    }
}

#[test]
fn hpcc_gives_way_to_a_newcomer_within_a_few_round_trips() {
    let link = fabric(None);
    let w = run(&link, &[("hpcc", 0), ("hpcc:initial_window=83", 200)], 400);
    // The newcomer begins with a whole product: at most that is queued, and it is gone within ten round trips.
    let most = queue(&w.flows[0], 1.0, |p| p.time > ms(200) && p.time < ms(201));
    assert!(most <= 2 * link.rate.bytes_in(link.rtt), "{most}");
    assert!(queue(&w.flows[0], 0.99, |p| p.time > ms(201)) < 5 * link.packet);
    let got = shares(&w, &link, 300, 400);
    assert!(jain(&got) > 0.95, "{got:.3?}");
}
