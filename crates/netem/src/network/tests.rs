use super::*;
use crate::Duplex;
use base::{Rate, Rng, Span};
use proptest::prelude::*;

const KB: u64 = 1_000;

fn link(text: &str) -> LinkConfig {
    LinkConfig::parse(text).expect("a description")
}

fn duplex(text: &str) -> Duplex {
    Duplex::same(link(text))
}

fn port(t: &Topology, name: &str) -> PortId {
    t.port(name).expect("a port")
}

fn packet(number: u64) -> Packet<Vec<u8>> {
    Packet { bytes: KB, ecn: Ecn::Ect0, payload: number.to_be_bytes().to_vec() }
}

fn ms(n: u64) -> Time {
    Time::ZERO + Span::from_millis(n)
}

fn drain(n: &mut Network<Vec<u8>>, now: Time) -> Vec<Arrival<Vec<u8>>> {
    core::iter::from_fn(|| n.poll(now)).collect()
}

#[test]
fn senders_share_a_bottleneck_and_its_queue() {
    let access = duplex("rate=1gbit delay=1ms queue=1GiB");
    let t = Topology::dumbbell(4, &[access], &duplex("rate=80mbit delay=10ms queue=100000B ecn=50000B"));
    let mut n = Network::new(&t, Rng::from_u64(1)).expect("a network");
    // Four times the bottleneck's rate for 100 ms, of which ten packets a millisecond get through.
    for i in 0..4_000u64 {
        let (from, to) = (port(&t, &format!("left{}", i % 4 + 1)), port(&t, &format!("right{}", i % 4 + 1)));
        let at = Time::ZERO + Span::from_micros(i / 4 * 100);
        assert_eq!(n.enter(at, from, to, packet(i)), Entered::OnItsWay);
    }
    let got = drain(&mut n, ms(10_000));
    let bottleneck = n.stats(t.find_link("bottleneck.forward").expect("a link")).expect("counters");
    assert_eq!((bottleneck.sent, bottleneck.delivered), (4_000, got.len() as u64));
    assert_eq!(bottleneck.dropped_queue, 4_000 - got.len() as u64);
    assert!(bottleneck.max_queue_bytes <= 100_000 && bottleneck.max_queue_bytes > 98_000);
    // 100 ms at ten a millisecond, and a queue of a hundred.
    assert!((1_095..=1_105).contains(&got.len()), "{}", got.len());
    assert!(got.windows(2).all(|w| w[0].time <= w[1].time));
    assert!(got.iter().any(|a| a.ecn == Ecn::Ce) && got[0].ecn == Ecn::Ect0);
    // Access, bottleneck and access again: 8 + 100 + 8 us of serialization, 12 ms of delay.
    assert_eq!(got[0].time, Time::ZERO + Span::from_micros(12_000 + 116));
}

#[test]
fn senders_to_one_switch_port_share_its_queue_and_others_do_not() {
    let t = Topology::star(5, &duplex("rate=80mbit delay=1ms queue=20000B"));
    let mut n = Network::new(&t, Rng::from_u64(1)).expect("a network");
    let host: Vec<_> = t.ports().collect();
    for i in 0..1_000u64 {
        let at = Time::ZERO + Span::from_micros(i * 100);
        // Three send to the first port at full rate, one to the last.
        for from in 1..4 {
            let _ = n.enter(at, host[from], host[0], packet(i));
        }
        let _ = n.enter(at, host[0], host[4], packet(i));
    }
    let got = drain(&mut n, ms(1_000));
    let stats = |name: &str| n.stats(t.find_link(name).expect("a link")).expect("counters");
    assert_eq!(got.iter().filter(|a| a.to == host[4]).count(), 1_000);
    let incast = got.iter().filter(|a| a.to == host[0]).count() as u64;
    assert!((1_000..=1_030).contains(&incast), "{incast}");
    assert_eq!(stats("host1.reverse").dropped_queue, 3_000 - incast);
    assert_eq!(stats("host5.reverse").dropped() + stats("host2.forward").dropped(), 0);
}

#[test]
fn disjoint_paths_do_not_affect_each_other() {
    let t = Topology::two_paths(&duplex("delay=5ms"), &duplex("delay=50ms loss=100%"));
    let mut n = Network::new(&t, Rng::from_u64(1)).expect("a network");
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| t.ports().nth(i).expect("a port"));
    assert_eq!(n.enter(Time::ZERO, a, b, packet(1)), Entered::OnItsWay);
    assert_eq!(n.enter(Time::ZERO, c, d, packet(2)), Entered::Dropped(DropReason::Loss));
    assert_eq!(n.enter(Time::ZERO, a, d, packet(3)), Entered::NoRoute);
    assert_eq!(n.next_event(), Some(ms(5)));
    assert!(drain(&mut n, ms(4)).is_empty());
    let got = drain(&mut n, ms(5));
    assert_eq!((got.len(), got[0].to, got[0].time), (1, b, ms(5)));
    assert_eq!(n.next_event(), None);
}

#[test]
fn packets_in_flight_keep_their_route_when_it_changes() {
    let mut n = Network::empty(Rng::from_u64(1));
    let (a, b) = (n.add_port().expect("room"), n.add_port().expect("room"));
    let slow = n.add_link(link("delay=50ms")).expect("room");
    let fast = n.add_link(link("delay=10ms")).expect("room");
    assert_eq!(n.enter(Time::ZERO, a, b, packet(0)), Entered::NoRoute);
    n.set_route(a, b, &[slow]).expect("links");
    let _ = n.enter(Time::ZERO, a, b, packet(1));
    // The link, so far the final one of a route with a packet on it, is now followed by others.
    n.set_route(a, b, &[slow, fast]).expect("links");
    let _ = n.enter(ms(1), a, b, packet(2));
    n.set_route(a, b, &[fast]).expect("links");
    let _ = n.enter(ms(2), a, b, packet(3));
    let got = drain(&mut n, ms(1_000));
    let mut seen: Vec<_> = got.iter().map(|a| (a.payload[7], a.time)).collect();
    seen.sort();
    assert_eq!(seen, [(1, ms(50)), (2, ms(61)), (3, ms(12))]);
    assert!(matches!(n.set_route(a, PortId(9), &[fast]), Err(NetworkError::Unknown(_))));
    assert!(matches!(n.set_route(a, b, &[LinkId(9)]), Err(NetworkError::Unknown(_))));
}

#[test]
fn chosen_packet_numbers_are_lost() {
    let t = Topology::path(&[duplex("delay=1ms"), duplex("delay=1ms")]);
    let mut n = Network::new(&t, Rng::from_u64(1)).expect("a network");
    let (a, b) = (port(&t, "left"), port(&t, "right"));
    n.lose(t.find_link("hop1.forward").expect("a link"), &[1]);
    n.lose(t.find_link("hop2.forward").expect("a link"), &[2]);
    let entered: Vec<_> = (0..5).map(|i| n.enter(Time::ZERO, a, b, packet(i))).collect();
    assert_eq!(entered[1], Entered::Lost);
    let got: Vec<_> = drain(&mut n, ms(9)).iter().map(|a| a.payload[7]).collect();
    assert_eq!(got, [0, 2, 4]);
}

#[test]
fn numbers_of_ports_and_links_are_limited() {
    let mut n = Network::<()>::empty(Rng::from_u64(1));
    for _ in 0..MAX_PORTS {
        n.add_port().expect("room");
    }
    assert_eq!(n.add_port(), Err(NetworkError::TooManyPorts));
    for _ in 0..MAX_LINKS {
        n.add_link(LinkConfig::default()).expect("room");
    }
    assert_eq!(n.add_link(LinkConfig::default()), Err(NetworkError::TooManyLinks));
}

/// The arrivals from a network that is polled at this interval.
fn arrivals(t: &Topology, sends: &[(u64, usize, usize)], every: Span) -> Vec<Arrival<Vec<u8>>> {
    let mut n = Network::new(t, Rng::from_u64(9)).expect("a network");
    let ports: Vec<_> = t.ports().collect();
    let (mut got, mut look) = (Vec::new(), Time::ZERO);
    for (i, &(at, from, to)) in sends.iter().enumerate() {
        let at = Time::from_nanos(at);
        while look < at {
            got.extend(drain(&mut n, look));
            look += every;
        }
        let (from, to) = (ports[from % ports.len()], ports[to % ports.len()]);
        let _ = n.enter(at, from, to, packet(i as u64));
    }
    got.extend(drain(&mut n, Time::MAX - Span::from_secs(1)));
    // Simultaneous arrivals over different links come in any order.
    got.sort_by(|a, b| (a.time, a.to, &a.payload).cmp(&(b.time, b.to, &b.payload)));
    got
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn polling_interval_does_not_change_arrivals(
        shape in 0..4usize,
        loss in 0..3u64,
        gaps in prop::collection::vec((1..30_000u64, 0..8usize, 0..8usize), 1..300),
    ) {
        let slow = duplex(&format!("rate=300mbit delay=200us queue=30kB loss={loss}%").replace("kB", "000B"));
        let fast = duplex("rate=1gbit delay=30us queue=100000B");
        let t = match shape {
            0 => Topology::dumbbell(4, &[fast, slow.clone()], &slow),
            1 => Topology::star(8, &slow),
            2 => Topology::path(&[fast.clone(), slow, fast]),
            _ => Topology::two_paths(&slow, &fast),
        };
        let mut now = 0;
        let sends: Vec<_> = gaps.into_iter().map(|(gap, a, b)| { now += gap; (now, a, b) }).collect();
        let often = arrivals(&t, &sends, Span::from_nanos(500));
        prop_assert_eq!(&often, &arrivals(&t, &sends, Span::from_micros(70)));
        prop_assert_eq!(&often, &arrivals(&t, &sends, Span::from_secs(1)));
    }
}

#[test]
fn dumbbell_carries_100_gbit_per_s_without_loss() {
    let access = duplex("rate=100gbit delay=1us queue=1MiB");
    let t = Topology::dumbbell(2, &[access], &duplex("rate=100gbit delay=35ms queue=4MiB"));
    let mut n = Network::new(&t, Rng::from_u64(1)).expect("a network");
    let (from, to) = ([port(&t, "left1"), port(&t, "left2")], [port(&t, "right1"), port(&t, "right2")]);
    let (rate, mut got) = (Rate::from_mbit(100_000), 0u64);
    const PACKETS: u64 = 600_000;
    for i in 0..PACKETS {
        let at = Time::ZERO + rate.time_for(i * 1_500);
        let side = (i % 2) as usize;
        let p = Packet { bytes: 1_500, ecn: Ecn::NotEct, payload: Vec::new() };
        assert_eq!(n.enter(at, from[side], to[side], p), Entered::OnItsWay);
        got += u64::from(n.poll(at).is_some());
    }
    let end = Time::ZERO + rate.time_for(PACKETS * 1_500) + Span::from_millis(36);
    got += drain(&mut n, end).len() as u64;
    assert_eq!(got, PACKETS);
}
