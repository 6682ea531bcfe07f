//! Behaviour of algorithms steered by marks, microsecond delay or telemetry, compared with the claims of data-centre
//! papers.

use super::delay_shapes::{jain, queue_percentile};
use super::shapes::{flow, phases, share};
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

/// Endless flows, each from its millisecond on, until `end`.
fn run(link: &Link, flows: &[(&str, u64)], end: u64) -> World {
    let make = |(i, (selection, start)): (usize, &(&str, u64))| {
        flow(selection, link, Source::Endless, ms(*start), i as u64)
    };
    let all: Vec<Flow> = flows.iter().enumerate().map(make).collect();
    let mut w = World::new(link.clone(), all, Rng::from_u64(1));
    w.run(ms(end));
    w
}

/// Equal flows from the beginning.
fn run_equal_flows(link: &Link, selection: &str, count: usize, end: u64) -> World {
    run(link, &vec![(selection, 0); count], end)
}

fn shares(w: &World, link: &Link, from: u64, to: u64) -> Vec<f64> {
    w.flows.iter().map(|f| share(f, link, ms(from), ms(to))).collect()
}

/// The queueing time that is not exceeded at a share `part` of the first flow's feedbacks from a millisecond on.
fn queue_wait_percentile(w: &World, link: &Link, part: f64, from: u64) -> Span {
    link.rate.time_for(queue_percentile(&w.flows[0], part, |p| p.time > ms(from)))
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
        let w = run_equal_flows(&link, "dctcp", count, 1_000);
        let got: f64 = shares(&w, &link, 0, 1_000).iter().sum();
        assert!(got > 0.99, "{count} flows: {got:.4}");
        let steady = |part| queue_percentile(&w.flows[0], part, |p| p.time > ms(200));
        let (low, middle, high) = (steady(0.01), steady(0.5), steady(0.99));
        // Figure 1: the queue stays close to K and never runs empty.
        assert!(low > 0 && high < K + count as u64 * 60_000, "{count} flows: {low} to {high}");
        assert!((K / 2..K + K / 2).contains(&middle), "{count} flows: {middle}");
        assert_eq!(lost(&w), 0, "nothing is lost");
        assert!(w.flows[0].marked > 0);
    }
}

#[test]
fn dctcp_queues_a_fraction_of_renos_queue() {
    let link = fabric(Some(K));
    let middle = |selection, link: &Link| {
        queue_wait_percentile(&run_equal_flows(link, selection, 2, 1_000), link, 0.5, 200)
    };
    let (dctcp, reno) = (middle("dctcp", &link), middle("reno", &fabric(None)));
    // Figure 1 of the paper: 90 % less.
    assert!(dctcp * 5 < reno, "{dctcp} against {reno}");
}

#[test]
fn swift_holds_its_target_delay() {
    let link = fabric(None);
    for count in [1, 2] {
        let w = run_equal_flows(&link, "swift:fs_range=0us", count, 500);
        let got = shares(&w, &link, 200, 500);
        assert!(got.iter().sum::<f64>() > 0.99 && jain(&got) > 0.99, "{got:.3?}");
        // 50 us of queue is the base target; AIMD oscillates around it.
        let (low, high) =
            (queue_wait_percentile(&w, &link, 0.05, 200), queue_wait_percentile(&w, &link, 0.95, 200));
        assert!(low > US(30) && high < US(65), "{count} flows: {low} to {high}");
        assert_eq!(lost(&w), 0);
    }
    let w = run_equal_flows(&link, "swift:fs_range=0us,base_target=200us", 1, 500);
    let middle = queue_wait_percentile(&w, &link, 0.5, 200);
    assert!(middle > US(180) && middle < US(220), "{middle}");
}

#[test]
fn swift_flow_scaling_shares_fairly_below_one_packet() {
    // 32 flows where two packets fill the path: each has a fifth of a packet in flight.
    let link = Link::fabric(Rate::from_mbit(1_000), US(20), 1 << 20, None);
    let two = |selection| {
        let w = run_equal_flows(&link, selection, 32, 400);
        let got = shares(&w, &link, 100, 400);
        let sum: f64 = got.iter().sum();
        assert!(sum > 0.95, "{selection}: {sum:.3}");
        let middle = queue_percentile(&w.flows[0], 0.5, |p| p.time > ms(100));
        assert!(middle < 32 * link.packet, "{selection}: a packet of each would be in the queue: {middle}");
        jain(&got)
    };
    let (with, without) = (two("swift"), two("swift:fs_range=0us"));
    // Section 3.5: scaling the target by the window speeds up fairness.
    assert!(with > 0.6 && with > without + 0.2, "{with:.3} with, {without:.3} without");
}

#[test]
fn swift_slows_down_for_a_slow_host_and_recovers() {
    let mut link = fabric(None);
    link.host = vec![(ms(300), US(400)), (ms(310), Span::ZERO)];
    let w = run_equal_flows(&link, "swift", 1, 500);
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
        let w = run_equal_flows(&link, "timely", count, 600);
        let got: f64 = shares(&w, &link, 200, 600).iter().sum();
        assert!(got > 0.97, "{count} flows: {got:.3}");
        let (middle, high) =
            (queue_wait_percentile(&w, &link, 0.5, 200), queue_wait_percentile(&w, &link, 0.99, 200));
        // T_low is 50 us and T_high 500 us above the minimum. Many flows oscillate around T_low, where growth ignores
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
    let high = queue_wait_percentile(&w, &link, 0.99, 500);
    assert!(high < US(200), "{high}");
    assert_eq!(lost(&w), 0);
}

#[test]
fn hpcc_runs_at_eta_with_almost_no_queue() {
    let link = fabric(None);
    for (selection, eta) in [("hpcc", 0.95), ("hpcc:eta=90%", 0.9)] {
        for count in [1, 2, 8] {
            let w = run_equal_flows(&link, selection, count, 400);
            let got: f64 = shares(&w, &link, 100, 400).iter().sum();
            assert!((eta - 0.02..eta + 0.01).contains(&got), "{selection}, {count} flows: {got:.3}");
            let high = queue_percentile(&w.flows[0], 0.99, |p| p.time > ms(100));
            assert!(high < 5 * link.packet, "{selection}, {count} flows: {high} bytes queued");
        }
    }
}

#[test]
fn hpcc_yields_to_a_newcomer_within_a_few_round_trips() {
    let link = fabric(None);
    let w = run(&link, &[("hpcc", 0), ("hpcc:initial_window=83", 200)], 400);
    // The newcomer begins with a whole bandwidth-delay product, which is queued at most and gone within ten round
    // trips.
    let most = queue_percentile(&w.flows[0], 1.0, |p| p.time > ms(200) && p.time < ms(201));
    assert!(most <= 2 * link.rate.bytes_in(link.rtt), "{most}");
    assert!(queue_percentile(&w.flows[0], 0.99, |p| p.time > ms(201)) < 5 * link.packet);
    let got = shares(&w, &link, 300, 400);
    assert!(jain(&got) > 0.95, "{got:.3?}");
}

/// A path of 20 ms on the Internet whose queue marks from a millisecond on, between programs.
fn l4s(mbit: u64, rtt: u64) -> Link {
    let mut link = Link::new(Rate::from_mbit(mbit), Span::from_millis(rtt), 2_000, 0.0);
    link.mark = Some(link.rate.bytes_in(Span::from_millis(1)));
    link
}

#[test]
fn prague_queues_less_than_a_millisecond_at_full_rate() {
    for (mbit, count) in [(100, 1), (100, 2), (1_000, 2), (1_000, 4)] {
        let link = l4s(mbit, 20);
        let w = run_equal_flows(&link, "prague", count, 20_000);
        let got = shares(&w, &link, 10_000, 20_000);
        assert!(got.iter().sum::<f64>() > 0.96 && jain(&got) > 0.9, "{mbit} Mbit/s: {got:.3?}");
        let (middle, high) =
            (queue_wait_percentile(&w, &link, 0.5, 10_000), queue_wait_percentile(&w, &link, 0.99, 10_000));
        // DCTCP's sawtooth with a step: at most the threshold, plus trains of a quarter of a millisecond.
        assert!(middle < Span::from_millis(1) && high < US(1_300), "{mbit} Mbit/s: {middle}, {high}");
        assert_eq!(lost(&w), 0);
    }
}

#[test]
fn prague_shares_with_a_flow_five_times_as_far() {
    let link = l4s(100, 5);
    let two = |selection| {
        let mut flows: Vec<Flow> =
            (0..2).map(|i| flow(selection, &link, Source::Endless, Time::ZERO, i)).collect();
        flows[1].extra_rtt = Span::from_millis(20);
        let mut w = World::new(link.clone(), flows, Rng::from_u64(1));
        w.run(ms(40_000));
        jain(&shares(&w, &link, 20_000, 40_000))
    };
    let (with, without) = (two("prague"), two("prague:rtt_virt=0us"));
    assert!(with > 0.9 && without < 0.65, "{with:.3} with the virtual round trip, {without:.3} without");
}

#[test]
fn prague_halves_like_reno_on_loss() {
    let link = Link::new(Rate::from_mbit(50), Span::from_millis(70), 1_000, 0.0);
    let w = run_equal_flows(&link, "prague", 1, 200_000);
    let f = &w.flows[0];
    let got = share(f, &link, ms(20_000), ms(200_000));
    assert!(got > 0.97, "{got:.3}: a queue of one product keeps the pipe full");
    // Just before and just after each reduction.
    let teeth: Vec<f64> = f
        .trace
        .windows(2)
        .filter(|w| w[1].cwnd < w[0].cwnd * 9 / 10)
        .map(|w| w[1].cwnd as f64 / w[0].cwnd as f64)
        .collect();
    assert!(teeth.len() >= 2 && teeth.iter().all(|t| (0.45..0.55).contains(t)), "{teeth:.3?}");
}

#[test]
fn bbr1_ignores_one_percent_loss_and_probes_the_rtt_every_ten_seconds() {
    for loss in [0.0, 0.01] {
        let link = Link::new(Rate::from_mbit(100), Span::from_millis(40), 1_000, loss);
        let w = run_equal_flows(&link, "bbr1", 1, 25_000);
        let got = shares(&w, &link, 5_000, 25_000)[0];
        assert!(got > 0.95, "loss {loss}: {got:.3}");
        let states = phases(&w.flows[0]);
        let begins =
            |name| -> Vec<f64> { states.iter().filter(|p| p.1 == name).map(|p| p.0.as_secs_f64()).collect() };
        let probes = begins("probe_rtt");
        assert!(
            probes.len() == 2 && probes[0] > 10.0 && (10.0..11.0).contains(&(probes[1] - probes[0])),
            "{probes:?}"
        );
        // 200 ms and a round trip with four packets in flight.
        let held = w.flows[0].trace.iter().filter(|p| p.state == "probe_rtt" && p.time < ms(15_000));
        let times: Vec<Time> = held.map(|p| p.time).collect();
        let held = times[times.len() - 1].since(times[0]);
        assert!(held > Span::from_millis(200) && held < Span::from_millis(450), "{held}");
        // A cycle of eight round trips has one probe: some 60 in 20 s.
        let ups = begins("probe_bw:up").len();
        assert!((30..80).contains(&ups), "{ups} probes");
    }
}

#[test]
fn bbr1_overflows_a_shallow_queue_that_bbr3_does_not() {
    // A tenth of a bandwidth-delay product of queue: version 1 keeps probing into it and loses what version 3 avoids.
    let link = Link::new(Rate::from_mbit(100), Span::from_millis(40), 100, 0.0);
    let two = |selection| {
        let w = run_equal_flows(&link, selection, 2, 20_000);
        lost(&w) as f64 / w.flows.iter().map(|f| f.delivered).sum::<u64>() as f64
    };
    let (one, three) = (two("bbr1"), two("bbr"));
    assert!(one > 0.02 && three < one / 2.0, "{one:.4} lost by version 1, {three:.4} by version 3");
}
