//! Tests with six hundred thousand packets in flight.

use base::{Rate, Span, Time};
use longhaul_sim::pair::{Load, Pair};
use netem::LinkConfig;
use transport::TransportOptions;
use wire::Module;

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn link(text: &str) -> LinkConfig {
    LinkConfig::parse(text).expect("a description")
}

/// Checks that a connection's memory stays within its limits.
fn check_memory(p: &mut Pair) {
    for (node, conn) in [(p.sender, p.shared.borrow().sender), (p.receiver, p.shared.borrow().receiver)] {
        let e = p.world.inspect(node);
        let usage = conn.and_then(|c| e.usage(c)).unwrap_or_default();
        if let Some((what, g)) = usage.into_iter().find(|(_, g)| !g.holds()) {
            panic!("{node:?} holds {} {what} of at most {}", g.used, g.limit);
        }
    }
}

#[test]
fn six_hundred_thousand_packets_are_in_flight_at_once() {
    // 100 Gbit/s x 70 ms is 583,333 packets of 1500 bytes; the queue has room for half as many.
    let forward = link("rate=100gbit delay=35ms loss=1% queue=400MiB");
    let reverse = link("rate=100gbit delay=35ms");
    let rate = Rate::from_mbit(100_000);
    let options = TransportOptions {
        module: Module::Crc32c,
        max_packet: 1_500,
        // The start-up has tests of its own and would take most of the time here.
        known_rate: Some(rate),
        ..TransportOptions::default()
    };
    let load = Load { message: 4 << 20, ahead: 4_000, messages: None };
    let mut p = Pair::new(1, Span::from_micros(50), (forward, reverse), options, load).expect("a pair");
    let (mut most, mut looks) = (0, Vec::new());
    for ms in (10..=520).step_by(10) {
        p.run_until(at(ms)).expect("no failure");
        check_memory(&mut p);
        let ids = (p.shared.borrow().sender, p.shared.borrow().receiver);
        let (Some(sender), Some(receiver)) = ids else { continue };
        let s = p.world.inspect(p.sender).stats(sender).expect("statistics");
        most = most.max(s.inflight / 1_500);
        looks.push((ms, p.world.inspect(p.receiver).stats(receiver).expect("statistics").payload_received));
    }
    assert!(most >= 500_000, "{most} packets in flight");
    // The last 120 ms.
    let half = looks[looks.len() - 13];
    let last = looks[looks.len() - 1];
    let goodput = (last.1 - half.1) as f64 * 8.0 / (last.0 - half.0) as f64 / 1e6;
    // Headers and tags take 3.7 %.
    assert!(goodput >= 90.0, "{goodput} Gbit/s");
    let (forward, reverse) = (p.world.link_stats(p.forward), p.world.link_stats(p.reverse));
    assert!(forward.dropped_loss > 10_000, "{forward:?}");
    let feedback = reverse.sent_bytes as f64 / forward.sent_bytes as f64;
    assert!(feedback <= 0.01, "{feedback}");
}

#[test]
fn keys_are_updated_during_a_transfer() {
    let path = "rate=1gbit delay=20ms loss=0.5% reorder=1%(5ms) queue=1bdp";
    let load = Load { message: 1_000_000, ahead: 64, messages: Some(100) };
    let options = TransportOptions::default();
    let mut p = Pair::new(1, Span::from_micros(20), (link(path), link(path)), options, load).expect("a pair");
    let stats = |p: &mut Pair| {
        let (s, r) = (p.shared.borrow().sender.expect("up"), p.shared.borrow().receiver.expect("up"));
        (p.world.inspect(p.sender).stats(s), p.world.inspect(p.receiver).stats(r))
    };
    for ms in [300, 600, 900] {
        p.run_until(at(ms)).expect("no failure");
        let (sender, conn) = (p.sender, p.shared.borrow().sender.expect("up"));
        p.world.endpoint(sender).update_keys(conn);
    }
    assert!(p.shared.borrow().finished.is_none(), "the transfer was over too early");
    p.run_until(at(20_000)).expect("no failure");
    assert!(p.shared.borrow().finished.is_some());
    let (s, r) = stats(&mut p);
    let (s, r) = (s.expect("statistics"), r.expect("statistics"));
    assert_eq!((s.key_updates, s.key_generation, r.key_generation), (3, 3, 3));
    assert_eq!((s.packets_forged, r.packets_forged), (0, 0));
}
