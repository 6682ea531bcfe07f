//! Tests of a relay between real sockets. They check counts and order, never times.

use super::*;
use crate::poll::Source;
use crate::udp::{SendBatch, SendMeta};
use base::Ecn;

struct RelayTest {
    relay: RelayHandle,
    client: UdpSocket,
    target: UdpSocket,
}

fn socket(host: &str) -> UdpSocket {
    UdpSocket::open(&UdpOptions::new(host.parse().unwrap())).unwrap()
}

fn link(spec: &str) -> LinkConfig {
    LinkConfig::parse(spec).unwrap()
}

fn scene(host: &str, up: &str, down: &str) -> RelayTest {
    let target = socket(host);
    let mut config = RelayConfig::new(host.parse().unwrap(), target.local_addr());
    (config.up, config.down, config.seed) = (link(up), link(down), Some(7));
    RelayTest { relay: RelayHandle::start(config).unwrap(), client: socket(host), target }
}

/// Sends packets numbered from `first`, in trains of up to ten.
fn send(from: &UdpSocket, dst: SocketAddr, ecn: Ecn, first: u32, count: u32, size: usize) {
    let mut batch = SendBatch::new();
    for train in (first..first + count).collect::<Vec<_>>().chunks(10) {
        let slot = batch.slot().unwrap();
        for (n, packet) in train.iter().zip(slot.chunks_mut(size)) {
            packet.fill(0x5a);
            packet[..4].copy_from_slice(&n.to_be_bytes());
        }
        batch.commit(SendMeta { dst, src: None, ecn, dscp: 0, segment: size }, train.len() * size).unwrap();
        let r = from.send(&mut batch).unwrap();
        assert_eq!((r.sent, r.dropped), (1, 0));
    }
}

#[derive(Debug, PartialEq)]
struct ReceivedDatagram {
    number: u32,
    remote: SocketAddr,
    ecn: Ecn,
}

/// Receives exactly `count` packets, and how many trains they came in.
fn receive(at: &UdpSocket, count: usize, size: usize) -> (Vec<ReceivedDatagram>, usize) {
    let (mut out, mut trains) = (Vec::new(), 0);
    let mut poller = Poller::new().unwrap();
    let mut batch = at.recv_batch();
    while out.len() < count {
        poller.wait(&mut [Source::readable(at)], None).unwrap();
        at.recv(&mut batch).unwrap();
        for (meta, bytes) in batch.iter_mut() {
            trains += 1;
            for packet in bytes.chunks(meta.stride) {
                assert_eq!(packet.len(), size);
                let number = u32::from_be_bytes(packet[..4].try_into().unwrap());
                out.push(ReceivedDatagram { number, remote: meta.remote, ecn: meta.ecn });
            }
        }
    }
    assert_eq!(out.len(), count);
    (out, trains)
}

/// Waits until the links have dealt with everything sent.
fn settle(relay: &RelayHandle, up: u64, down: u64) -> RelayStats {
    let mut poller = Poller::new().unwrap();
    loop {
        let s = relay.stats().unwrap();
        let (u, d) = (&s.up.link, &s.down.link);
        if u.sent + s.refused >= up && d.sent >= down && u.in_link + d.in_link == 0 {
            return s;
        }
        poller.wait(&mut [], Some(Span::from_millis(1))).unwrap();
    }
}

#[test]
fn packets_pass_in_order_with_ecn_marks_in_both_directions() {
    for host in ["127.0.0.1:0", "[::1]:0"] {
        let s = scene(host, "rate=200mbit delay=2ms queue=10MiB", "delay=1ms");
        send(&s.client, s.relay.local_addr(), Ecn::Ect0, 0, 500, 1_200);
        let (got, _) = receive(&s.target, 500, 1_200);
        assert!(got.iter().enumerate().all(|(i, g)| g.number as usize == i && g.ecn == Ecn::Ect0));
        let through = got[0].remote;
        assert_ne!(through, s.client.local_addr());
        send(&s.target, through, Ecn::Ect1, 0, 300, 900);
        let (got, _) = receive(&s.client, 300, 900);
        assert!(got.iter().enumerate().all(|(i, g)| g.number as usize == i && g.ecn == Ecn::Ect1));
        assert!(got.iter().all(|g| g.remote == s.relay.local_addr()));
        let stats = s.relay.stop().unwrap();
        let header = if host.starts_with('[') { 48 } else { 28 };
        assert_eq!(stats.up.link.delivered_bytes, 500 * (1_200 + header));
        assert_eq!(stats.down.link.delivered_bytes, 300 * (900 + header));
        assert_eq!((stats.up.lateness.count(), stats.down.lateness.count()), (500, 300));
        assert_eq!((stats.clients, stats.refused, stats.stray), (1, 0, 0));
    }
}

#[test]
fn simultaneous_arrivals_leave_as_a_train() {
    let s = scene("127.0.0.1:0", "delay=5ms", "");
    send(&s.client, s.relay.local_addr(), Ecn::NotEct, 0, 10, 1_000);
    let (_, trains) = receive(&s.target, 10, 1_000);
    let stats = s.relay.stop().unwrap();
    if s.client.gso() && s.target.gro() {
        assert_eq!((trains, stats.up.trains_in, stats.up.trains_out), (1, 1, 1));
    }
}

#[test]
fn lost_packets_are_counted() {
    let s = scene("127.0.0.1:0", "loss=30%", "");
    send(&s.client, s.relay.local_addr(), Ecn::NotEct, 0, 1_000, 100);
    let stats = settle(&s.relay, 1_000, 0);
    let lost = stats.up.link.dropped_loss;
    // Seven standard deviations of the binomial distribution to either side.
    assert!((200..=400).contains(&lost), "{lost}");
    let (got, _) = receive(&s.target, 1_000 - lost as usize, 100);
    assert!(got.windows(2).all(|w| w[0].number < w[1].number));
}

#[test]
fn slow_link_drops_on_overflow_and_marks_queued_packets() {
    // 100 packets of 1,028 bytes at once; at 1 Mbit/s, 8 ms each, hardly any leaves before all have come.
    let s = scene("127.0.0.1:0", "rate=1mbit queue=20000B ecn=5000B", "");
    send(&s.client, s.relay.local_addr(), Ecn::Ect0, 0, 100, 1_000);
    let stats = settle(&s.relay, 100, 0);
    let l = stats.up.link;
    assert_eq!(l.delivered + l.dropped_queue, 100);
    assert!(l.dropped_queue > 0 && l.delivered >= 20, "{l:?}");
    let (got, _) = receive(&s.target, l.delivered as usize, 1_000);
    let marked = got.iter().filter(|g| g.ecn == Ecn::Ce).count();
    assert_eq!(marked as u64, l.marked);
    assert!(marked > 0 && got[0].ecn == Ecn::Ect0);
}

#[test]
fn duplicates_arrive_twice_and_corruption_affects_one_packet() {
    let s = scene("127.0.0.1:0", "duplicate=100%", "");
    send(&s.client, s.relay.local_addr(), Ecn::NotEct, 0, 50, 64);
    let (got, _) = receive(&s.target, 100, 64);
    assert!(got.chunks(2).all(|c| c[0] == c[1]));
    s.relay.set_config(link("corrupt=20%"), link("")).unwrap();
    s.relay.stats().unwrap();
    // Bits may flip anywhere, so the packets are compared whole.
    let mut batch = SendBatch::new();
    for _ in 0..8 {
        batch.slot().unwrap()[..1_000].fill(0x5a);
        let meta = SendMeta { dst: s.relay.local_addr(), src: None, ecn: Ecn::NotEct, dscp: 0, segment: 50 };
        batch.commit(meta, 1_000).unwrap();
    }
    assert_eq!(s.client.send(&mut batch).unwrap().sent, 8);
    let corrupted = settle(&s.relay, 210, 0).up.link.corrupted;
    let (mut whole, mut damaged) = (0, 0);
    let (mut at, mut poller) = (s.target.recv_batch(), Poller::new().unwrap());
    while whole + damaged < 160 {
        poller.wait(&mut [Source::readable(&s.target)], None).unwrap();
        s.target.recv(&mut at).unwrap();
        for (meta, bytes) in at.iter_mut() {
            for packet in bytes.chunks(meta.stride) {
                let ok = packet.iter().all(|b| *b == 0x5a);
                *if ok { &mut whole } else { &mut damaged } += 1;
            }
        }
    }
    assert_eq!(damaged, corrupted);
    assert!(corrupted > 0 && whole > 0);
}

#[test]
fn configuration_changes_while_running() {
    let s = scene("127.0.0.1:0", "", "");
    let to = s.relay.local_addr();
    send(&s.client, to, Ecn::NotEct, 0, 10, 100);
    receive(&s.target, 10, 100);
    s.relay.set_config(link("loss=100%"), link("")).unwrap();
    s.relay.stats().unwrap();
    send(&s.client, to, Ecn::NotEct, 10, 10, 100);
    assert_eq!(settle(&s.relay, 20, 0).up.link.dropped_loss, 10);
    s.relay.set_config(link(""), link("")).unwrap();
    s.relay.stats().unwrap();
    send(&s.client, to, Ecn::NotEct, 20, 10, 100);
    let (got, _) = receive(&s.target, 10, 100);
    assert_eq!(got[0].number, 20);
}

#[test]
fn clients_are_separate_and_limited() {
    let target = socket("127.0.0.1:0");
    let mut config = RelayConfig::new("127.0.0.1:0".parse().unwrap(), target.local_addr());
    (config.max_clients, config.idle) = (2, Span::from_secs(3_600));
    let relay = RelayHandle::start(config.clone()).unwrap();
    let clients: Vec<_> = (0..3).map(|_| socket("127.0.0.1:0")).collect();
    let mut through = Vec::new();
    for (i, c) in clients[..2].iter().enumerate() {
        send(c, relay.local_addr(), Ecn::NotEct, i as u32, 1, 50);
        through.push(receive(&target, 1, 50).0[0].remote);
    }
    send(&clients[2], relay.local_addr(), Ecn::NotEct, 2, 5, 50);
    let stats = settle(&relay, 7, 0);
    assert_eq!((stats.clients, stats.refused), (2, 5));
    // Answers find the right client; strangers cannot reach one through its socket.
    for (i, t) in through.iter().enumerate() {
        send(&clients[2], *t, Ecn::NotEct, 99, 1, 50);
        send(&target, *t, Ecn::NotEct, i as u32, 1, 50);
        assert_eq!(receive(&clients[i], 1, 50).0[0].number, i as u32);
    }
    assert_eq!(relay.stop().unwrap().stray, 2);
    // An idle client makes room.
    (config.max_clients, config.idle) = (1, Span::ZERO);
    let relay = RelayHandle::start(config.clone()).unwrap();
    for c in &clients {
        send(c, relay.local_addr(), Ecn::NotEct, 0, 1, 50);
        let answer = receive(&target, 1, 50).0[0].remote;
        send(&target, answer, Ecn::NotEct, 0, 1, 50);
        receive(c, 1, 50);
    }
    assert_eq!(relay.stop().unwrap().clients, 1);
    for bad in [0, MAX_CLIENTS + 1] {
        config.max_clients = bad;
        assert!(matches!(RelayHandle::start(config.clone()), Err(RelayError::MaxClients(_))));
    }
}
