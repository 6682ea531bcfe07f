//! Tests the coupled congestion control of lanes over one bottleneck, and over several.

use base::{Span, Time};
use longhaul_sim::flows::{FlowPlan, Flows};
use longhaul_sim::pair::{Load, addr};
use netem::{Duplex, LinkConfig, Topology};
use std::net::{IpAddr, SocketAddr};
use transport::{AdditionalPath, Coupling, TransportOptions};

const SEEDS: core::ops::Range<u64> = 0..5;
/// Fewer seeds where more give no further information.
const FEW: core::ops::Range<u64> = 0..3;

fn path(local: Option<IpAddr>, remote: SocketAddr, backup: bool) -> AdditionalPath {
    AdditionalPath { local, remote, backup }
}

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn duplex(text: &str) -> Duplex {
    Duplex::same(LinkConfig::parse(text).expect("a description"))
}

fn plan(t: &Topology, (from, to): (&str, &str), cc: &str, coupling: Coupling) -> FlowPlan {
    let options =
        TransportOptions { cc: cc.into(), max_packet: 1_500, coupling, ..TransportOptions::default() };
    let load = Load { message: 4 << 20, ahead: 16, messages: None };
    let port = |name: &str| t.port(name).expect("a port");
    FlowPlan { from: port(from), to: port(to), options, load, starts: Time::ZERO }
}

/// Adds a lane to the first flow, between additional addresses of both hosts at these ports.
fn add_lane(f: &mut Flows, t: &Topology, (from, to): (&str, &str), number: u32) {
    let (here, there) = (addr(100 + 2 * number), addr(101 + 2 * number));
    let flow = f.flows[0].clone();
    assert!(f.world.add_address(flow.sender, t.port(from).expect("a port"), here));
    assert!(f.world.add_address(flow.receiver, t.port(to).expect("a port"), there));
    let (conn, now) = (flow.shared.borrow().sender.expect("connected"), f.world.now());
    f.world.endpoint(flow.sender).add_path(now, conn, path(Some(here.ip()), there, false)).expect("a path");
}

/// Mbit/s of each flow from now until a time.
fn goodput(f: &mut Flows, until: u64) -> Vec<f64> {
    let from = f.world.now();
    let before: Vec<_> = (0..f.flows.len()).map(|i| f.received(i)).collect();
    f.run_until(at(until)).expect("no failure");
    let time = f.world.now().since(from).as_secs_f64();
    let after: Vec<_> = (0..f.flows.len()).map(|i| f.received(i)).collect();
    after.iter().zip(before).map(|(a, b)| (a - b) as f64 * 8e-6 / time).collect()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// The share of a bottleneck that a connection with several lanes takes next to a flow with one.
fn share(seed: u64, cc: &str, lanes: u32, coupling: Coupling) -> f64 {
    let t = Topology::dumbbell(2, &[], &duplex("rate=200mbit delay=40ms queue=1bdp mtu=1500B"));
    let plans = [plan(&t, ("left1", "right1"), cc, coupling), plan(&t, ("left2", "right2"), cc, coupling)];
    let mut f = Flows::new(seed, Span::from_micros(20), &t, &plans).expect("a world");
    f.run_until(at(500)).expect("connected");
    (1..lanes).for_each(|n| add_lane(&mut f, &t, ("left1", "right1"), n));
    // Detecting several lanes takes a while, since one is paused after another.
    f.run_until(at(if lanes > 2 { 30_000 } else { 15_000 })).expect("no failure");
    let until = if lanes > 2 { 50_000 } else { 35_000 };
    let got = goodput(&mut f, until);
    got[0] / (got[0] + got[1])
}

fn shares(cc: &str, lanes: u32, coupling: Coupling, seeds: core::ops::Range<u64>) -> f64 {
    let all: Vec<f64> = seeds.map(|seed| share(seed, cc, lanes, coupling)).collect();
    println!("{cc}, {lanes} lanes, {coupling:?}: {all:.2?}");
    median(all)
}

#[test]
fn two_coupled_lanes_share_a_bottleneck_like_one_flow() {
    for cc in ["haul", "bbr", "cubic"] {
        let share = shares(cc, 2, Coupling::Auto, SEEDS);
        assert!(share > 0.4 && share < 0.6, "{cc}: {share}");
    }
}

#[test]
fn three_and_four_coupled_lanes_share_a_bottleneck_like_one_flow() {
    // Uncoupled they take 0.75 and 0.8. Three and four lanes of `haul` and four of `cubic` are detected late, so they
    // do not take exactly one share yet.
    let all = [("haul", 4, SEEDS, 0.65), ("haul", 3, FEW, 0.7), ("bbr", 4, FEW, 0.6), ("cubic", 4, FEW, 0.7)];
    for (cc, lanes, seeds, most) in all {
        let share = shares(cc, lanes, Coupling::Auto, seeds);
        assert!(share > 0.4 && share < most, "{cc}, {lanes} lanes: {share}");
    }
}

#[test]
fn coupling_follows_the_option() {
    let share = shares("haul", 2, Coupling::Always, FEW);
    assert!(share > 0.4 && share < 0.6, "always: {share}");
    let share = shares("haul", 2, Coupling::Never, FEW);
    assert!(share > 0.6, "never: {share}");
}

/// Mbit/s over 300 Mbit/s and 20 ms, and 700 Mbit/s and 80 ms.
fn disjoint(seed: u64, cc: &str, coupling: Coupling) -> f64 {
    let t = Topology::two_paths(
        &duplex("rate=300mbit delay=10ms queue=1bdp(rtt 20ms) mtu=1500B"),
        &duplex("rate=700mbit delay=40ms queue=1bdp(rtt 80ms) mtu=1500B"),
    );
    let plans = [plan(&t, ("left1", "right1"), cc, coupling)];
    let mut f = Flows::new(seed, Span::from_micros(20), &t, &plans).expect("a world");
    f.run_until(at(500)).expect("connected");
    add_lane(&mut f, &t, ("left2", "right2"), 1);
    f.run_until(at(5_000)).expect("no failure");
    goodput(&mut f, 20_000)[0]
}

#[test]
fn coupled_lanes_fill_disjoint_paths() {
    for cc in ["haul", "bbr", "cubic"] {
        let all: Vec<f64> = SEEDS.map(|seed| disjoint(seed, cc, Coupling::Auto)).collect();
        println!("{cc}: {all:.0?}");
        let rate = median(all);
        assert!(rate > 0.9 * 1_000.0 * 1_433.0 / 1_500.0, "{cc}: {rate} Mbit/s");
    }
}

/// A topology in which two lanes have links of their own and then one for both, whose rate decides whether they share
/// a bottleneck.
fn forked() -> Topology {
    let mut t = Topology::new();
    let (a, b, to) = (t.add_port("a"), t.add_port("b"), t.add_port("to"));
    let (near, far) = (t.add_switch("near"), t.add_switch("far"));
    let place = [a, b, to].map(|p| t.node_of_port(p).expect("a place"));
    let mut join = |name: &str, from, to, words: &str| {
        let link: LinkConfig = words.parse().expect("a link");
        t.add_link(format!("{name}.forward"), from, to, link.clone()).expect("a link");
        t.add_link(format!("{name}.reverse"), to, from, link).expect("a link");
    };
    join("a", place[0], near, "rate=100mbit delay=2ms queue=200KiB mtu=1500B");
    join("b", place[1], near, "rate=100mbit delay=2ms queue=200KiB mtu=1500B");
    join("both", near, far, "rate=1gbit delay=15ms queue=400KiB mtu=1500B");
    join("to", far, place[2], "rate=10gbit mtu=1500B");
    t
}

#[test]
fn shared_bottleneck_is_detected_and_released_within_seconds() {
    let (mut apart, mut again) = (Vec::new(), Vec::new());
    for seed in SEEDS {
        let t = forked();
        let plans = [plan(&t, ("a", "to"), "haul", Coupling::Auto)];
        let mut f = Flows::new(seed, Span::from_micros(20), &t, &plans).expect("a world");
        f.run_until(at(500)).expect("connected");
        add_lane(&mut f, &t, ("b", "to"), 1);
        f.run_until(at(5_000)).expect("no failure");
        apart.push(goodput(&mut f, 15_000)[0]);
        let (link, before) = (t.find_link("both.forward").expect("a link"), held(&mut f));
        let wide = f.world.link_config(link);
        let narrow: LinkConfig = "rate=80mbit".parse().expect("a rate");
        f.world.set_link(link, LinkConfig { rate: narrow.rate, ..wide.clone() });
        f.run_until(at(35_000)).expect("no failure");
        let shared = held(&mut f);
        f.world.set_link(link, wide);
        f.run_until(at(65_000)).expect("no failure");
        let rest = held(&mut f);
        println!(
            "seed {seed}: lanes that rest: {before} apart, {shared} at one bottleneck, {rest} apart again"
        );
        assert_eq!(rest, 0, "seed {seed}: not noticed within 30 s");
        again.push(goodput(&mut f, 75_000)[0]);
    }
    println!("{apart:.0?} {again:.0?}");
    let least = again.iter().copied().fold(f64::INFINITY, f64::min);
    let apart = median(apart);
    assert!(apart > 0.88 * 200.0 * 1_433.0 / 1_500.0, "{apart} Mbit/s");
    assert!(least > 0.88 * 200.0 * 1_433.0 / 1_500.0, "{least} Mbit/s");
}

/// Lanes of the first flow's sender that rest because they share another one's path.
fn held(f: &mut Flows) -> u32 {
    let (sender, conn) = (f.flows[0].sender, f.flows[0].shared.borrow().sender.expect("connected"));
    let stats = f.world.inspect(sender).stats(conn).expect("statistics");
    stats.paths.iter().filter(|p| p.shares.is_some()).count() as u32
}
