//! Tests that delays at the beginning of a connection do not slow it down later.

use base::{Span, Time};
use endpoint::Stats;
use longhaul_sim::pair::{Load, Pair};
use longhaul_sim::world::HostModel;
use netem::LinkConfig;
use transport::TransportOptions;

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn pair(ahead: usize) -> Pair {
    let path = LinkConfig::parse("rate=1gbit delay=35ms queue=1bdp").expect("a description");
    let load = Load { message: 1_000_000, ahead, messages: None };
    let options = TransportOptions { max_packet: 1_500, ..TransportOptions::default() };
    Pair::new(1, Span::from_micros(20), (path.clone(), path), options, load).expect("a pair")
}

fn received(p: &mut Pair) -> Stats {
    let conn = p.shared.borrow().receiver.expect("connected");
    p.world.inspect(p.receiver).stats(conn).expect("statistics")
}

/// Mbit/s of payload between two times.
fn goodput(p: &mut Pair, from: u64, to: u64) -> f64 {
    p.run_until(at(from)).expect("no failure");
    let before = received(p).payload_received;
    p.run_until(at(to)).expect("no failure");
    (received(p).payload_received - before) as f64 * 8.0 / (to - from) as f64 / 1e3
}

#[test]
fn receiver_stall_during_startup_does_not_limit_the_later_rate() {
    for stall in [10, 40, 100] {
        let mut p = pair(64);
        // The receiver pauses in each of the first rounds, which makes round trips look longer.
        for ms in (140..600).step_by(110) {
            p.run_until(at(ms)).expect("no failure");
            let receiver = p.receiver;
            p.world.stall(receiver, Span::from_millis(stall));
        }
        let mbit = goodput(&mut p, 2_000, 3_000);
        assert!(mbit >= 900.0, "{mbit} Mbit/s two seconds after stalls of {stall} ms");
    }
}

#[test]
fn sender_stall_during_startup_does_not_limit_the_later_rate() {
    // A sender that pauses nine tenths of the time sees a path of a five-hundredth of the rate and takes longer.
    for (stall, from) in [(10, 1_000), (40, 1_000), (100, 4_000)] {
        let mut p = pair(64);
        for ms in (140..600).step_by(110) {
            p.run_until(at(ms)).expect("no failure");
            let sender = p.sender;
            p.world.stall(sender, Span::from_millis(stall));
        }
        let mbit = goodput(&mut p, from, from + 1_000);
        assert!(mbit >= 900.0, "{mbit} Mbit/s after stalls of {stall} ms");
    }
}

#[test]
fn busy_hosts_cost_little_of_the_rate() {
    // Both ends pause for 1 to 6 ms about a hundred times a second.
    let mut p = pair(64);
    let mut rng = base::Rng::from_u64(5);
    let mut before = 0;
    let mut next = at(200);
    while next < at(6_000) {
        p.run_until(next).expect("no failure");
        if next < at(2_000) {
            before = received(&mut p).payload_received;
        }
        let (sender, receiver) = (p.sender, p.receiver);
        p.world.stall(sender, Span::from_micros(rng.range(1_000, 6_000)));
        p.world.stall(receiver, Span::from_micros(rng.range(1_000, 6_000)));
        next += Span::from_micros(rng.range(6_000, 14_000));
    }
    let mbit = (received(&mut p).payload_received - before) as f64 * 8.0 / 4.0 / 1e6;
    assert!(mbit >= 860.0, "{mbit} Mbit/s");
}

#[test]
fn remembered_rate_fills_a_path_sooner_and_a_wrong_one_does_no_harm() {
    let mut p = pair(64);
    p.run_until(at(3_000)).expect("no failure");
    let (conn, now) = (p.shared.borrow().sender.expect("connected"), p.world.now());
    let e = p.world.inspect(p.sender);
    let found = e.stats(conn).map(|s| s.rate).expect("statistics");
    e.close(now, conn, 1_000, "enough");
    let remembered = e.remembered(longhaul_sim::pair::addr(2).ip(), now).expect("a path");
    assert!(remembered.rate.bits_per_sec().abs_diff(found.bits_per_sec()) < found.bits_per_sec() / 10);
    assert!(remembered.rtt >= Span::from_millis(70) && remembered.rtt < Span::from_millis(75));
    let path = LinkConfig::parse("rate=1gbit delay=35ms queue=1bdp").expect("a description");
    let load = Load { message: 1_000_000, ahead: 64, messages: None };
    for (mbit, from) in [(1_000, 330), (100, 1_500), (4_000, 1_500)] {
        let memory = endpoint::Remembered { rate: base::Rate::from_mbit(mbit), ..remembered };
        let options =
            TransportOptions { max_packet: 1_500, remembered: Some(memory), ..TransportOptions::default() };
        let links = (path.clone(), path.clone());
        let mut p = Pair::new(1, Span::from_micros(20), links, options, load).expect("a pair");
        let mbit_s = goodput(&mut p, from, from + 500);
        assert!(mbit_s >= 860.0, "{mbit_s} Mbit/s after a memory of {mbit}");
    }
}

#[test]
fn path_of_five_packets_with_a_deep_queue_stays_in_use() {
    // 10 Mbit/s and 5 ms. Here a restart during the transfer, with trains eight times as long as the path, once
    // filled the queue, and the losses left a rate of two packets a second.
    let path = LinkConfig::parse("rate=10mbit delay=2500us queue=50000B mtu=1500B").expect("a description");
    let load = Load { message: 1_000_000, ahead: 64, messages: None };
    for seed in 1..4 {
        let links = (path.clone(), path.clone());
        let mut p =
            Pair::new(seed, Span::from_micros(20), links, TransportOptions::default(), load).expect("a pair");
        for second in 1..16 {
            let mbit = goodput(&mut p, second * 1_000, (second + 1) * 1_000);
            assert!(mbit >= 8.8, "seed {seed}: {mbit} Mbit/s in second {second}");
        }
    }
}

/// Packets that the queue dropped, as a share of those sent, between two times in milliseconds.
fn queue_loss(p: &mut Pair, from: u64, to: u64) -> f64 {
    let mut stats = |ms| {
        p.run_until(at(ms)).expect("no failure");
        p.world.link_stats(p.forward)
    };
    let (before, after) = (stats(from), stats(to));
    (after.dropped_queue - before.dropped_queue) as f64 / (after.sent - before.sent).max(1) as f64
}

#[test]
fn second_connection_starts_with_the_train_length_that_the_first_one_found() {
    // Five packets of queue: trains of a millisecond, four packets, and what arrives before them do not fit.
    let path = LinkConfig::parse("rate=50mbit delay=25ms queue=8KiB mtu=1500B").expect("a description");
    let load = Load { message: 1_000_000, ahead: 64, messages: None };
    let pair = |remembered| {
        let options = TransportOptions { max_packet: 1_500, remembered, ..TransportOptions::default() };
        let links = (path.clone(), path.clone());
        let mut p = Pair::new(1, Span::from_micros(20), links, options, load).expect("a pair");
        p.world.set_host_model(Some(HostModel::default()));
        p
    };
    let mut first = pair(None);
    let unknown = queue_loss(&mut first, 0, 1_000);
    first.run_until(at(12_000)).expect("no failure");
    let (conn, now) = (first.shared.borrow().sender.expect("connected"), first.world.now());
    let e = first.world.inspect(first.sender);
    e.close(now, conn, 1_000, "enough");
    let memory = e.remembered(longhaul_sim::pair::addr(2).ip(), now).expect("a path");
    let train = memory.train.expect("the queue was found to be short");
    assert!((3_000..=6_000).contains(&train), "{train} bytes");

    let mut second = pair(Some(memory));
    let start = queue_loss(&mut second, 0, 1_000);
    assert!(start <= 0.005 && unknown > 0.1, "{start} of the first second after a memory, {unknown} without");
    let mbit = goodput(&mut second, 4_000, 6_000);
    assert!(mbit >= 40.0, "{mbit} Mbit/s");
}
