//! Tests the default congestion control on a long fat path: 1 Gbit/s, 70 ms, a queue of one bandwidth-delay product.

use base::{Span, Time};
use longhaul_sim::flows::{FlowPlan, Flows};
use longhaul_sim::pair::Load;
use netem::{Duplex, LinkConfig, LinkId, Topology};
use transport::TransportOptions;
use wire::Module;

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn duplex(text: &str) -> Duplex {
    Duplex::same(LinkConfig::parse(text).expect("a description"))
}

/// Flows of these algorithms with these starts (ms) and access delays (cycled) in front of `bottleneck`; returns the
/// bottleneck's forward link, too.
fn world(bottleneck: &str, delays: &[&str], flows: &[(&str, u64)]) -> (Flows, LinkId) {
    seeded(1, bottleneck, delays, flows)
}

/// The same with another seed.
fn seeded(seed: u64, bottleneck: &str, delays: &[&str], flows: &[(&str, u64)]) -> (Flows, LinkId) {
    let access: Vec<_> = delays.iter().map(|d| duplex(&format!("delay={d}"))).collect();
    let t = Topology::dumbbell(flows.len(), &access, &duplex(bottleneck));
    let plans: Vec<_> = (1..)
        .zip(flows)
        .map(|(i, (cc, starts))| FlowPlan {
            from: t.port(&format!("left{i}")).expect("a port"),
            to: t.port(&format!("right{i}")).expect("a port"),
            options: TransportOptions {
                cc: (*cc).into(),
                max_packet: 1_500,
                module: Module::Crc32c,
                ..TransportOptions::default()
            },
            load: Load { message: 1_000_000, ahead: 128, messages: None },
            starts: at(*starts),
        })
        .collect();
    let way = t.route(plans[0].from, plans[0].to).expect("a route");
    (Flows::new(seed, Span::from_micros(50), &t, &plans).expect("a world"), way[1])
}

const GIGABIT: &str = "rate=1gbit delay=33ms queue=8750000B";

/// Mbit/s of each flow between two times.
fn goodput(f: &mut Flows, from: u64, to: u64) -> Vec<f64> {
    f.run_until(at(from)).expect("no failure");
    let before: Vec<_> = (0..f.flows.len()).map(|i| f.received(i)).collect();
    f.run_until(at(to)).expect("no failure");
    let mut mbit = |i: usize, b: u64| (f.received(i) - b) as f64 * 8.0 / (to - from) as f64 / 1e3;
    before.into_iter().enumerate().map(|(i, b)| mbit(i, b)).collect()
}

fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    sum * sum / (shares.len() as f64 * shares.iter().map(|s| s * s).sum::<f64>())
}

/// A known rate may be too low; doubling from it would overflow a queue of one bandwidth-delay product.
#[test]
fn rate_above_the_known_rate_is_found_without_loss() {
    for known in [10, 100, 300, 500, 700, 900] {
        let cc = format!("haul:known_rate={known}M");
        let (mut f, link) = world(GIGABIT, &["1ms"], &[(&cc, 0)]);
        f.run_until(at(1_200)).expect("no failure");
        let s = f.world.link_stats(link);
        assert!(s.dropped_queue * 200 < s.sent, "{known} Mbit/s known: {s:?}");
        let mbit = goodput(&mut f, 1_200, 2_000)[0];
        assert!(mbit > 0.9 * 957.0, "{known} Mbit/s known: {mbit}");
    }
}

#[test]
fn full_rate_is_reached_within_six_round_trips_without_loss() {
    let (mut f, link) = world(GIGABIT, &["1ms"], &[("haul", 0)]);
    while f.received(0) == 0 {
        let next = f.world.now() + Span::from_millis(1);
        f.run_until(next).expect("no failure");
    }
    let first = (f.world.now().as_nanos() / 1_000_000) + 1;
    let mbit = goodput(&mut f, first + 6 * 70, first + 8 * 70);
    assert!(mbit[0] >= 0.9 * 957.0, "{mbit:?}");
    let later = goodput(&mut f, 3_000, 5_000);
    assert!(later[0] >= 0.97 * 957.0, "{later:?}");
    assert_eq!(f.world.link_stats(link).dropped_queue, 0);
}

#[test]
fn ten_flows_share_equally_with_little_queue() {
    let (mut f, link) = world(GIGABIT, &["1ms"], &[("haul", 0); 10]);
    f.run_until(at(5_000)).expect("no failure");
    let lost = f.world.link_stats(link).dropped_queue;
    let shares = goodput(&mut f, 5_000, 35_000);
    assert!(jain(&shares) >= 0.95, "{shares:?}");
    assert!(shares.iter().sum::<f64>() >= 0.95 * 957.0, "{shares:?}");
    assert_eq!(f.world.link_stats(link).dropped_queue, lost, "nothing is lost to the queue after the start");
}

#[test]
fn flows_starting_together_lose_little() {
    // Each sees the whole path in its trains. One packet of so many may be lost in the first second: 25 flows, each
    // with an eighth of the path, are three times too many.
    for (flows, most) in [(2, 90), (3, 30), (5, 30), (10, 100), (25, 6)] {
        let (mut f, link) = world(GIGABIT, &["1ms"], &vec![("haul", 0); flows]);
        f.run_until(at(1_200)).expect("no failure");
        let stats = f.world.link_stats(link);
        assert!(stats.dropped_queue * most <= stats.sent, "{flows} flows: {stats:?}");
        let mbit = goodput(&mut f, 1_200, 2_200);
        assert!(mbit.iter().sum::<f64>() >= 0.85 * 957.0, "{mbit:?}");
    }
}

#[test]
fn late_flows_and_flows_with_other_rtts_get_a_fair_share() {
    // Of 36 seeds the median is 1.22, and one in ten is above 1.35.
    let ratios = [1, 2, 3].map(|seed| {
        let (mut f, _) = seeded(seed, GIGABIT, &["1ms"], &[("haul", 0), ("haul", 5_000)]);
        let shares = goodput(&mut f, 20_000, 25_000);
        shares[0] / shares[1]
    });
    assert!(ratios.iter().all(|r| (0.67..1.5).contains(r)), "{ratios:?}");
    assert!((0.74..1.35).contains(&(ratios.iter().sum::<f64>() / 3.0)), "{ratios:?}");
    // 20 ms beside 100.
    let (mut f, _) =
        world("rate=1gbit delay=5ms queue=8750000B", &["2ms", "22ms"], &[("haul", 0), ("haul", 0)]);
    let shares = goodput(&mut f, 15_000, 25_000);
    assert!(jain(&shares) >= 0.9, "{shares:?}");
}

#[test]
fn shallow_queues_cost_little() {
    // 83, 104 and 20 packets at 1 Gbit/s, 8 at 100 Mbit/s, 15 at 10 Mbit/s.
    for (path, rate) in [
        ("rate=1gbit delay=8ms queue=125000B", 957.0),
        ("rate=1gbit delay=500us queue=156250B", 957.0),
        ("rate=1gbit delay=500us queue=31250B", 957.0),
        ("rate=100mbit delay=8ms queue=12500B", 95.7),
        ("rate=10mbit delay=33ms queue=21875B", 9.57),
    ] {
        for loss in ["", " loss=1%"] {
            let (mut f, link) = world(&format!("{path}{loss}"), &["1ms"], &[("haul", 0)]);
            f.run_until(at(5_000)).expect("no failure");
            let before = f.world.link_stats(link);
            let mbit = goodput(&mut f, 5_000, 12_000);
            let after = f.world.link_stats(link);
            assert!(mbit[0] >= 0.94 * rate, "{path}{loss}: {mbit:?}");
            let lost = after.dropped_queue - before.dropped_queue;
            let arrived = after.delivered - before.delivered;
            assert!(lost * 50 <= arrived, "{path}{loss}: {lost} lost to the queue, {arrived} not");
        }
    }
}

#[test]
fn haul_and_cubic_share_without_starvation() {
    let (mut f, _) = world(GIGABIT, &["1ms"], &[("haul", 0), ("cubic", 5_000)]);
    let shares = goodput(&mut f, 10_000, 50_000);
    let sum: f64 = shares.iter().sum();
    assert!(shares.iter().all(|s| *s >= 0.25 * sum), "{shares:?}");
}

#[test]
fn haul_and_cubic_share_when_cubic_starts_first_or_both_together() {
    for starts in [[0, 0], [5_000, 0]] {
        let (mut f, _) = world(GIGABIT, &["1ms"], &[("haul", starts[0]), ("cubic", starts[1])]);
        let shares = goodput(&mut f, 20_000, 40_000);
        let sum: f64 = shares.iter().sum();
        assert!(shares.iter().all(|s| *s >= 0.25 * sum), "{starts:?}: {shares:?}");
    }
}

#[test]
fn scavenger_leaves_nine_tenths() {
    let (mut f, _) = world(GIGABIT, &["1ms"], &[("haul", 0), ("ledbat++:target=1ms", 3_000)]);
    let shares = goodput(&mut f, 5_000, 20_000);
    assert!(shares[0] >= 0.9 * shares.iter().sum::<f64>(), "{shares:?}");
}

#[test]
fn rate_recovers_within_a_few_round_trips_after_an_outage() {
    let (mut f, link) = world("rate=1gbit delay=33ms queue=8750000B", &["1ms"], &[("haul", 0)]);
    f.run_until(at(3_000)).expect("no failure");
    let mut dark = f.world.link_config(link);
    dark.schedule.push((at(3_000), netem::Change::BlackOut(Span::from_millis(200))));
    f.world.set_link(link, dark);
    // Full rate after five round trips, and for the rest of the second.
    let mbit = goodput(&mut f, 3_200 + 5 * 70, 4_500);
    assert!(mbit[0] >= 0.95 * 957.0, "{mbit:?}");
}

/// A peer's host that opens files or registers memory answers the first flight tens of milliseconds late.
#[test]
fn first_flight_answered_late_costs_neither_the_start_nor_later_losses() {
    let mut weak = Vec::new();
    for late in [20, 40, 55, 70, 90] {
        for from in [100, 130, 160] {
            let (mut f, link) = seeded(late + from, GIGABIT, &["1ms"], &[("haul", 0)]);
            let mut slow = f.world.link_config(link);
            slow.schedule.push((at(from), netem::Change::Delay(Span::from_millis(33 + late))));
            slow.schedule.push((at(from + late), netem::Change::Delay(Span::from_millis(33))));
            f.world.set_link(link, slow);
            let first = goodput(&mut f, 0, 1_500)[0];
            let lost = f.world.link_stats(link).dropped_queue;
            let later = goodput(&mut f, 1_500, 6_000)[0];
            let after = f.world.link_stats(link);
            let share = (after.dropped_queue - lost) as f64 / after.sent as f64;
            if first < 0.1 * 957.0 || later < 0.95 * 957.0 || share > 0.002 {
                weak.push((late, from, first, later, share));
            }
        }
    }
    assert!(weak.is_empty(), "{weak:?}");
}

#[test]
fn path_slowing_to_a_tenth_and_back_loses_nothing_and_is_filled_again() {
    // The queue holds four bandwidth-delay products, and the data in flight at the full rate with it.
    let (mut f, link) = world("rate=1gbit delay=33ms queue=35000000B", &["1ms"], &[("haul", 0)]);
    f.run_until(at(3_000)).expect("no failure");
    let lost = f.world.link_stats(link).dropped_queue;
    let mut changing = f.world.link_config(link);
    changing.schedule.push((at(3_000), netem::Change::Rate(Some(base::Rate::from_mbit(100)))));
    changing.schedule.push((at(8_000), netem::Change::Rate(Some(base::Rate::from_mbit(1_000)))));
    f.world.set_link(link, changing);
    // The queue takes a second and a half to drain.
    let slow = goodput(&mut f, 5_000, 8_000);
    assert!(slow[0] >= 0.9 * 95.7, "{slow:?}");
    let again = goodput(&mut f, 11_000, 13_000);
    assert!(again[0] >= 0.9 * 957.0, "{again:?}");
    assert_eq!(f.world.link_stats(link).dropped_queue, lost, "nothing is lost to the queue");
}

#[test]
fn jitter_in_both_directions_costs_little_and_leaves_a_short_queue() {
    // Some seeds stay below full speed for seconds, so the median of five counts. 20 ms in each direction, in order,
    // is noise of more than half a round trip and costs much: from almost nothing to 98 % of the link.
    for (jitter, median, least) in [("normal(5ms)", 0.9, 0.4), ("20ms", 0.8, 0.3)] {
        let bottleneck = format!("rate=1gbit delay=33ms jitter={jitter} queue=8750000B");
        let mut each: Vec<_> = (1..=5)
            .map(|seed| {
                let (mut f, link) = seeded(seed, &bottleneck, &["1ms"], &[("haul", 0)]);
                let mbit = goodput(&mut f, 5_000, 10_000)[0];
                // What a queue of one bandwidth-delay product would lose.
                let lost = f.world.link_stats(link).dropped_queue;
                let later = goodput(&mut f, 10_000, 12_000)[0];
                let after = f.world.link_stats(link);
                assert!((after.dropped_queue - lost) * 100 < after.sent, "{jitter}, seed {seed}: {after:?}");
                mbit.min(later)
            })
            .collect();
        each.sort_by(f64::total_cmp);
        assert!(each[2] >= median * 957.0, "{jitter}: {each:?}");
        assert!(each[0] >= least * 957.0, "{jitter}: {each:?}");
    }
}
