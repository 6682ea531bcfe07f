//! Tests several flows in one network.

use base::{Rate, Span, Time};
use longhaul_sim::flows::{FlowPlan, Flows};
use longhaul_sim::pair::Load;
use netem::{Duplex, LinkConfig, Topology};
use transport::TransportOptions;

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn duplex(text: &str) -> Duplex {
    Duplex::same(LinkConfig::parse(text).expect("a description"))
}

fn plan(t: &Topology, from: &str, to: &str, cc: &str, starts: u64) -> FlowPlan {
    let options = TransportOptions { cc: cc.into(), max_packet: 1_500, ..TransportOptions::default() };
    let load = Load { message: 1_000_000, ahead: 64, messages: None };
    let port = |name: &str| t.port(name).expect("a port");
    FlowPlan { from: port(from), to: port(to), options, load, starts: at(starts) }
}

/// Mbit/s of each flow between two times.
fn goodput(f: &mut Flows, from: u64, to: u64) -> Vec<f64> {
    f.run_until(at(from)).expect("no failure");
    let before: Vec<_> = (0..f.flows.len()).map(|i| f.received(i)).collect();
    f.run_until(at(to)).expect("no failure");
    let mut mbit = |i: usize, b: u64| (f.received(i) - b) as f64 * 8.0 / (to - from) as f64 / 1e3;
    before.into_iter().enumerate().map(|(i, b)| mbit(i, b)).collect()
}

#[test]
fn late_flows_get_a_share_of_a_full_bottleneck() {
    let access = [duplex("rate=1gbit delay=1ms queue=1MiB")];
    let t = Topology::dumbbell(3, &access, &duplex("rate=100mbit delay=10ms queue=500KiB"));
    let plans: Vec<_> = (1..=3)
        .map(|i| plan(&t, &format!("left{i}"), &format!("right{i}"), "bbr", 2_000 * (i - 1)))
        .collect();
    let mut f = Flows::new(1, Span::from_micros(20), &t, &plans).expect("a world");
    let alone = goodput(&mut f, 1_000, 2_000);
    assert!(alone[0] >= 88.0 && alone[1] == 0.0, "{alone:?}");
    let shares = goodput(&mut f, 12_000, 20_000);
    let sum: f64 = shares.iter().sum();
    assert!(sum >= 88.0, "{shares:?}");
    assert!(shares.iter().all(|s| *s >= 12.0), "{shares:?}");
}

#[test]
fn senders_to_one_star_host_fill_only_its_port() {
    let t = Topology::star(6, &duplex("rate=100mbit delay=5ms queue=250KiB"));
    let mut plans: Vec<_> =
        (2..=5).map(|i| plan(&t, &format!("host{i}"), "host1", "cubic", 100 * i)).collect();
    plans.push(plan(&t, "host1", "host6", "bbr", 0));
    let mut f = Flows::new(1, Span::from_micros(20), &t, &plans).expect("a world");
    let got = goodput(&mut f, 4_000, 10_000);
    let incast: f64 = got[..4].iter().sum();
    assert!(incast >= 85.0 && got[..4].iter().all(|g| *g >= 5.0), "{got:?}");
    // Its acknowledgements wait in the queue that the others fill: 84.7 to 89.7 with six seeds.
    assert!(got[4] >= 82.0, "{got:?}");
    let down = f.world.link_stats(t.find_link("host1.reverse").expect("a link"));
    assert!(down.dropped_queue > 0 && down.max_queue_bytes <= 250 << 10, "{down:?}");
}

#[test]
fn path_is_as_fast_as_its_slowest_hop() {
    let hops = ["rate=1gbit delay=5ms", "rate=200mbit delay=10ms queue=1MiB", "rate=400mbit delay=5ms"];
    let t = Topology::path(&hops.map(duplex));
    let mut f =
        Flows::new(1, Span::from_micros(20), &t, &[plan(&t, "left", "right", "bbr", 0)]).expect("a world");
    let got = goodput(&mut f, 2_000, 4_000);
    assert!(got[0] >= 180.0, "{got:?}");
    let slow = f.world.link_stats(t.find_link("hop2.forward").expect("a link"));
    assert!(slow.max_queue_bytes > 0, "{slow:?}");
}

#[test]
fn disjoint_paths_are_both_filled() {
    let t =
        Topology::two_paths(&duplex("rate=100mbit delay=5ms"), &duplex("rate=300mbit delay=50ms queue=1bdp"));
    let plans = [plan(&t, "left1", "right1", "bbr", 0), plan(&t, "left2", "right2", "bbr", 0)];
    let mut f = Flows::new(1, Span::from_micros(20), &t, &plans).expect("a world");
    let got = goodput(&mut f, 2_000, 4_000);
    assert!(got[0] >= 88.0 && got[1] >= 265.0, "{got:?}");
}

#[test]
fn flow_uses_the_capacity_left_by_cross_traffic() {
    let t = Topology::dumbbell(2, &[], &duplex("rate=100mbit delay=10ms queue=1bdp"));
    let plans = [plan(&t, "left1", "right1", "bbr", 0), plan(&t, "left2", "right2", "fixed:rate=40M", 1_000)];
    let mut f = Flows::new(1, Span::from_micros(20), &t, &plans).expect("a world");
    let got = goodput(&mut f, 4_000, 8_000);
    assert!(got[0] + got[1] >= 88.0 && got[0] >= 35.0, "{got:?}");
    assert!(Rate::from_mbit(40).bits_per_sec() as f64 / 1e6 * 0.6 <= got[1], "{got:?}");
}
