//! Tests of real sockets on loopback.

use super::*;
use crate::poll::{Poller, Source};
use base::{Ecn, Span};

type Datagram = (RecvMeta, Vec<u8>);

fn socket(bind: &str, change: impl FnOnce(&mut UdpOptions)) -> UdpSocket {
    let mut o = UdpOptions::new(bind.parse().unwrap());
    change(&mut o);
    UdpSocket::open(&o).unwrap()
}

/// A train of `len` bytes, every segment beginning with its number.
fn fill(batch: &mut SendBatch, meta: SendMeta, len: usize) {
    let slot = batch.slot().unwrap();
    for (i, segment) in slot[..len].chunks_mut(meta.segment).enumerate() {
        segment.fill(i as u8);
    }
    batch.commit(meta, len).unwrap();
}

fn meta(dst: SocketAddr, segment: usize) -> SendMeta {
    SendMeta { dst, src: None, ecn: Ecn::Ect0, dscp: 0, segment }
}

fn send_all(s: &UdpSocket, batch: &mut SendBatch) -> SendReport {
    let mut total = SendReport::default();
    let mut poller = Poller::new().unwrap();
    loop {
        let r = s.send(batch).unwrap();
        total.sent += r.sent;
        total.dropped += r.dropped;
        total.too_big = r.too_big.or(total.too_big);
        if r.blocked == Blocked::No {
            return total;
        }
        poller.wait(&mut [Source::new(s, true)], Some(Span::from_millis(1))).unwrap();
    }
}

/// Receives until `count` datagrams have come, trains taken apart. Returns them and the number of trains.
fn receive(s: &UdpSocket, count: usize) -> (Vec<Datagram>, usize) {
    let (mut out, mut trains) = (Vec::new(), 0);
    let mut batch = s.recv_batch();
    let mut poller = Poller::new().unwrap();
    while out.len() < count {
        poller.wait(&mut [Source::readable(s)], None).unwrap();
        s.recv(&mut batch).unwrap();
        for (meta, bytes) in batch.iter_mut() {
            trains += 1;
            out.extend(bytes.chunks(meta.stride.max(1)).map(|d| (meta, d.to_vec())));
        }
    }
    (out, trains)
}

fn check_train(got: &[Datagram], len: usize, segment: usize) {
    let mut left = len;
    for (i, (_, d)) in got.iter().enumerate() {
        assert_eq!(d.len(), segment.min(left));
        assert!(d.iter().all(|b| *b == i as u8), "segment {i}");
        left -= d.len();
    }
    assert_eq!(left, 0);
}

#[test]
fn train_of_44_is_delivered_whole() {
    for host in ["127.0.0.1:0", "[::1]:0"] {
        let (a, b) = (socket(host, |_| ()), socket(host, |_| ()));
        let mut batch = SendBatch::new();
        let len = 43 * 1_472 + 100;
        fill(&mut batch, meta(b.local_addr(), 1_472), len);
        assert_eq!(send_all(&a, &mut batch), SendReport { sent: 1, ..SendReport::default() });
        assert!(batch.is_empty() && !batch.is_full());
        let (got, trains) = receive(&b, 44);
        check_train(&got, len, 1_472);
        assert!(got.iter().all(|(m, _)| m.remote == a.local_addr() && m.ecn == Ecn::Ect0));
        assert!(got.iter().all(|(m, _)| m.local == Some(b.local_addr().ip())));
        if a.gso() && b.gro() {
            assert_eq!(trains, 1);
        }
        assert_eq!(b.stats(), UdpStats::default());
    }
}

#[test]
fn same_datagrams_arrive_without_offload() {
    for (gso, gro) in [(false, true), (true, false), (false, false)] {
        let a = socket("127.0.0.1:0", |o| o.gso = gso);
        let b = socket("127.0.0.1:0", |o| o.gro = gro);
        // What was turned off stays off.
        assert!(gso || !a.gso());
        assert!(gro || !b.gro());
        let mut batch = SendBatch::new();
        for _ in 0..3 {
            fill(&mut batch, meta(b.local_addr(), 1_000), 10_500);
        }
        assert_eq!(send_all(&a, &mut batch).sent, 3);
        let (got, trains) = receive(&b, 33);
        got.chunks(11).for_each(|t| check_train(t, 10_500, 1_000));
        if !gro {
            assert_eq!(trains, 33);
        }
        assert_eq!(a.stats().split, if gso { 0 } else { 3 });
    }
}

#[test]
fn refused_segmentation_is_remembered() {
    let (a, b) = (socket("127.0.0.1:0", |_| ()), socket("127.0.0.1:0", |_| ()));
    // Without checksums the kernel refuses to segment (EIO), as devices without checksum offload do.
    set(&a.fd, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    assert!(a.gso(), "this kernel has UDP_SEGMENT");
    let mut batch = SendBatch::new();
    for _ in 0..MAX_TRAINS {
        fill(&mut batch, meta(b.local_addr(), 500), 4_700);
    }
    assert!(batch.is_full());
    assert_eq!(send_all(&a, &mut batch).sent, MAX_TRAINS);
    let (got, _) = receive(&b, 10 * MAX_TRAINS);
    got.chunks(10).for_each(|t| check_train(t, 4_700, 500));
    assert!(!a.gso());
    assert_eq!(a.stats().split, MAX_TRAINS as u64);
}

#[test]
fn every_ecn_mark_is_delivered_on_both_families_and_dual_stack() {
    let dual = socket("[::]:0", |_| ());
    let port = dual.local_addr().port();
    for (host, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")] {
        let plain = socket(host, |_| ());
        let to_dual = SocketAddr::new(to.parse().unwrap(), port);
        for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
            let mut batch = SendBatch::new();
            fill(&mut batch, SendMeta { ecn, ..meta(to_dual, 10) }, 30);
            send_all(&plain, &mut batch);
            let (got, _) = receive(&dual, 3);
            assert!(got.iter().all(|(m, _)| m.ecn == ecn && m.remote == plain.local_addr()), "{got:?}");
            assert!(got.iter().all(|(m, _)| m.local == Some(to.parse().unwrap())), "{got:?}");
            // And back, from the address that was met.
            let back = SendMeta { ecn, src: got[0].0.local, ..meta(plain.local_addr(), 10) };
            fill(&mut batch, back, 30);
            send_all(&dual, &mut batch);
            let (got, _) = receive(&plain, 3);
            assert!(got.iter().all(|(m, _)| m.ecn == ecn && m.remote == to_dual), "{got:?}");
        }
    }
}

#[test]
fn every_code_point_is_delivered_with_every_mark() {
    let dual = socket("[::]:0", |_| ());
    let port = dual.local_addr().port();
    for (host, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")] {
        let plain = socket(host, |_| ());
        let to_dual = SocketAddr::new(to.parse().unwrap(), port);
        for (dscp, ecn) in (0..64).zip([Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce].into_iter().cycle()) {
            let mut batch = SendBatch::new();
            fill(&mut batch, SendMeta { ecn, dscp, ..meta(to_dual, 10) }, 30);
            send_all(&plain, &mut batch);
            let (got, _) = receive(&dual, 3);
            assert!(got.iter().all(|(m, _)| (m.dscp, m.ecn) == (dscp, ecn)), "{dscp}: {got:?}");
            let back = SendMeta { ecn, dscp, ..meta(plain.local_addr(), 10) };
            fill(&mut batch, back, 10);
            send_all(&dual, &mut batch);
            let (got, _) = receive(&plain, 1);
            assert!(got.iter().all(|(m, _)| (m.dscp, m.ecn) == (dscp, ecn)), "{dscp}: {got:?}");
        }
    }
}

#[test]
fn source_address_can_be_chosen() {
    let (a, b) = (socket("0.0.0.0:0", |_| ()), socket("0.0.0.0:0", |_| ()));
    let dst = SocketAddr::new("127.0.0.9".parse().unwrap(), b.local_addr().port());
    let mut batch = SendBatch::new();
    let src = Some("127.0.0.7".parse().unwrap());
    fill(&mut batch, SendMeta { src, ..meta(dst, 100) }, 100);
    send_all(&a, &mut batch);
    let (got, _) = receive(&b, 1);
    assert_eq!(Some(got[0].0.remote.ip()), src);
    assert_eq!(got[0].0.local, Some(dst.ip()));
    assert_eq!(got[0].0.stride, 100);
}

#[test]
fn v6_only_sockets_refuse_v4() {
    let v6 = socket("[::]:0", |o| o.dual_stack = false);
    let a = socket("127.0.0.1:0", |_| ());
    let mut batch = SendBatch::new();
    fill(&mut batch, meta(a.local_addr(), 10), 10);
    assert_eq!(send_all(&v6, &mut batch).dropped, 1);
    // The other way round there is no such address at all; what follows still leaves.
    fill(&mut batch, meta(a.local_addr(), 10), 10);
    fill(&mut batch, meta("[::1]:9".parse().unwrap(), 10), 10);
    fill(&mut batch, meta(a.local_addr(), 10), 20);
    let r = send_all(&a, &mut batch);
    assert_eq!((r.sent, r.dropped), (2, 1));
    assert_eq!(receive(&a, 3).0.len(), 3);
}

#[test]
fn datagram_beyond_the_mtu_is_reported() {
    // The largest train and its IPv6 and UDP headers are 65,555 bytes, more than loopback's usual 65,536.
    let (a, b) = (socket("[::1]:0", |_| ()), socket("[::1]:0", |_| ()));
    let mut batch = SendBatch::new();
    let segment = MAX_TRAIN;
    fill(&mut batch, meta(b.local_addr(), segment), segment);
    let r = send_all(&a, &mut batch);
    assert_eq!(r.too_big, Some(TooBig { dst: b.local_addr(), segment }));
    assert_eq!((r.sent, r.dropped), (0, 1));
}

#[test]
fn oversized_trains_are_rejected() {
    let dst = "127.0.0.1:9".parse().unwrap();
    let mut batch = SendBatch::new();
    for (len, segment) in [(0, 10), (10, 0), (MAX_TRAIN + 1, 2_000), (65 * 10, 10), (MAX_TRAIN, 1_000)] {
        assert!(matches!(batch.commit(meta(dst, segment), len), Err(UdpError::BadTrain { .. })));
    }
    for _ in 0..MAX_TRAINS {
        assert!(batch.slot().is_some_and(|s| s.len() == MAX_TRAIN));
        batch.commit(meta(dst, 10), 64 * 10).unwrap();
    }
    assert!(batch.slot().is_none());
    assert!(matches!(batch.commit(meta(dst, 10), 10), Err(UdpError::BatchFull)));
    assert_eq!(batch.len(), MAX_TRAINS);
}

#[test]
fn full_send_buffer_delays_the_batch_without_loss() {
    // Nobody reads, so what leaves is lost in the receiver: here only the sender's accounting matters.
    let b = socket("127.0.0.1:0", |o| o.recv_buffer = 4_096);
    let a = socket("127.0.0.1:0", |o| o.send_buffer = 4_608);
    let mut batch = SendBatch::new();
    let mut sent = 0;
    for _ in 0..20 {
        for _ in 0..MAX_TRAINS {
            fill(&mut batch, meta(b.local_addr(), 1_400), 14_000);
        }
        let r = send_all(&a, &mut batch);
        assert_eq!(r.dropped, 0);
        sent += r.sent;
    }
    assert_eq!(sent, 20 * MAX_TRAINS);
}

#[test]
fn datagrams_longer_than_the_slot_are_counted_as_dropped() {
    let (a, b) = (socket("127.0.0.1:0", |_| ()), socket("127.0.0.1:0", |o| o.gro = false));
    let mut batch = SendBatch::new();
    fill(&mut batch, meta(b.local_addr(), 20_000), 20_000);
    fill(&mut batch, meta(b.local_addr(), 9_000), 9_000);
    send_all(&a, &mut batch);
    let (got, _) = receive(&b, 1);
    assert_eq!(got[0].1.len(), 9_000);
    assert_eq!(b.stats().truncated, 1);
}

#[test]
fn closed_port_does_not_affect_the_socket() {
    let gone = socket("127.0.0.1:0", |_| ()).local_addr();
    let (a, b) = (socket("127.0.0.1:0", |_| ()), socket("127.0.0.1:0", |_| ()));
    // Makes the kernel report refusals, which it otherwise keeps from unconnected sockets.
    set(&a.fd, libc::IPPROTO_IP, libc::IP_RECVERR, 1).unwrap();
    let mut batch = SendBatch::new();
    for _ in 0..4 {
        fill(&mut batch, meta(gone, 10), 10);
        send_all(&a, &mut batch);
    }
    assert_eq!(a.recv(&mut a.recv_batch()).unwrap(), 0);
    fill(&mut batch, meta(b.local_addr(), 10), 10);
    assert_eq!(send_all(&a, &mut batch).sent, 1);
    assert_eq!(receive(&b, 1).0.len(), 1);
    assert!(a.stats().refused > 0);
}

#[test]
fn granted_buffers_are_reported() {
    let s = socket("127.0.0.1:0", |o| (o.recv_buffer, o.send_buffer) = (64 << 10, 128 << 10));
    assert_eq!((s.recv_buffer(), s.send_buffer()), (64 << 10, 128 << 10));
}

#[test]
fn bind_error_names_the_address() {
    let a = socket("127.0.0.1:0", |_| ());
    let e = UdpSocket::open(&UdpOptions::new(a.local_addr())).unwrap_err();
    assert!(e.to_string().contains(&a.local_addr().to_string()), "{e}");
}

#[test]
fn attached_socket_receives_from_one_peer_and_keeps_its_port() {
    let (peer, other) = (socket("127.0.0.1:0", |_| ()), socket("127.0.0.2:0", |_| ()));
    let mut s = socket("0.0.0.0:0", |o| o.keep_port = true);
    let (port, ip) = (s.local_addr().port(), peer.local_addr().ip());
    let at = SocketAddr::new(ip, port);
    let mut batch = SendBatch::new();
    let mut send = |from: &UdpSocket, to: SendMeta, len: usize| {
        fill(&mut batch, to, len);
        assert_eq!(send_all(from, &mut batch).sent, 1);
    };
    s.attach(peer.local_addr(), ip);
    assert!(s.is_attached() && s.is_attached_to(peer.local_addr(), Some(ip)));
    assert!(!s.is_attached_to(other.local_addr(), Some(ip)) && !s.is_attached_to(peer.local_addr(), None));
    // Both ways, single datagrams and trains; of what others send nothing arrives.
    send(&other, meta(at, 20), 20);
    send(&peer, meta(at, 10), 10);
    let (got, _) = receive(&s, 1);
    assert_eq!((got[0].0.remote, got[0].0.local, got[0].1.len()), (peer.local_addr(), Some(ip), 10));
    for len in [100, 950] {
        send(&s, SendMeta { src: Some(ip), ..meta(peer.local_addr(), 100) }, len);
        let (got, _) = receive(&peer, len.div_ceil(100));
        check_train(&got, len, 100);
        assert!(got.iter().all(|(m, _)| (m.remote, m.ecn) == (at, Ecn::Ect0)));
    }
    s.detach();
    assert!(!s.is_attached());
    send(&other, meta(at, 30), 30);
    let (got, _) = receive(&s, 1);
    assert_eq!((got[0].0.remote, got[0].0.local, got[0].1.len()), (other.local_addr(), Some(ip), 30));
    send(&s, SendMeta { ecn: Ecn::NotEct, ..meta(other.local_addr(), 40) }, 40);
    let (got, _) = receive(&other, 1);
    assert_eq!((got[0].0.remote, got[0].0.ecn), (at, Ecn::NotEct));
}

#[test]
fn socket_is_not_attached_if_it_cannot_detach_or_uses_another_source() {
    let peer = socket("127.0.0.1:0", |_| ());
    let mut s = socket("0.0.0.0:0", |_| ());
    s.attach(peer.local_addr(), peer.local_addr().ip());
    assert!(!s.is_attached(), "its port would be lost");
    let mut s = socket("0.0.0.0:0", |o| o.keep_port = true);
    let port = s.local_addr().port();
    s.attach(peer.local_addr(), "127.0.0.2".parse().unwrap());
    assert!(!s.is_attached(), "the kernel sends from another address");
    let other = socket("[::1]:0", |_| ());
    for (peer, ip) in [(&other, "::1"), (&peer, "127.0.0.1")] {
        let mut s = socket("[::]:0", |o| o.keep_port = true);
        s.attach(peer.local_addr(), ip.parse().unwrap());
        assert!(!s.is_attached(), "let go, it would hear no other IPv6 address");
    }
    let mut batch = SendBatch::new();
    fill(&mut batch, meta(SocketAddr::new([127, 0, 0, 1].into(), port), 10), 10);
    send_all(&peer, &mut batch);
    assert_eq!(receive(&s, 1).0.len(), 1);
}

#[test]
fn lean_socket_receives_single_unstamped_datagrams() {
    let a = UdpSocket::open(&UdpOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
    let mut b = UdpSocket::open(&UdpOptions::new("127.0.0.1:0".parse().unwrap())).unwrap();
    let mut batch = b.recv_batch();
    for lean in [true, false] {
        b.set_lean(lean);
        let mut out = SendBatch::new();
        out.slot().unwrap()[..300].fill(7);
        let dst = b.local_addr();
        out.commit(SendMeta { dst, src: None, ecn: Ecn::Ect0, dscp: 0, segment: 100 }, 300).unwrap();
        a.send(&mut out).unwrap();
        let (mut bytes, mut trains) = (0, 0);
        while bytes < 300 {
            b.recv(&mut batch).unwrap();
            for (m, data) in batch.iter_mut() {
                assert_eq!((m.stride, m.ecn, m.remote), (100, Ecn::Ect0, a.local_addr()));
                assert!(!lean || m.age.is_zero());
                assert!(data.iter().all(|b| *b == 7));
                (bytes, trains) = (bytes + data.len(), trains + 1);
            }
        }
        assert!(if lean { trains == 3 } else { trains <= 3 }, "{trains} trains");
    }
}

#[test]
fn single_pushed_datagram_counts_as_single() {
    let from = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
    let here = "192.0.2.2".parse().unwrap();
    let mut batch = RecvBatch::new(true);
    // Several of one train, two trains, none: none of them is a lone message.
    for (pushed, single) in [(&[1u16][..], true), (&[1, 1], false), (&[1, 2], false), (&[], false)] {
        batch.clear();
        assert!(pushed.iter().all(|port| batch.push(from(*port), here, (0, Ecn::NotEct), b"message")));
        batch.note_single();
        assert_eq!((batch.is_single(), batch.is_full()), (single, single), "{pushed:?}");
    }
}

#[test]
fn most_short_single_messages_are_received_without_control_data() {
    let a = socket("127.0.0.1:0", |_| {});
    let mut b = socket("127.0.0.1:0", |_| {});
    b.set_lean(true);
    let (mut batch, mut poller) = (b.recv_batch(), Poller::new().unwrap());
    // What is said of a message that leaves with this length and ECN field.
    let mut pass = |batch: &mut RecvBatch, len: usize, ecn: Ecn| {
        let mut out = SendBatch::new();
        fill(&mut out, SendMeta { ecn, ..meta(b.local_addr(), len) }, len);
        send_all(&a, &mut out);
        poller.wait(&mut [Source::readable(&b)], None).unwrap();
        // One is looked for where the last look found nothing.
        batch.expect_one();
        b.recv(batch).unwrap();
        let (m, bytes) = batch.iter_mut().next().unwrap();
        assert_eq!((m.remote, m.local), (a.local_addr(), Some(b.local_addr().ip())));
        assert_eq!((m.len, m.stride, bytes.to_vec()), (len, len, vec![0; len]));
        m.ecn
    };
    batch.expect_plain();
    (0..5).for_each(|_| assert_eq!(pass(&mut batch, 4, Ecn::Ect0), Ecn::Ect0));
    // The class is believed for a while now, and asked for again then.
    let unseen = (0..100).take_while(|_| pass(&mut batch, 30, Ecn::Ce) == Ecn::Ect0).count();
    assert_eq!(unseen, 15);
    // Once a mark was seen, every message is asked.
    assert_eq!(pass(&mut batch, 4, Ecn::Ect0), Ecn::Ect0);
    assert_eq!(pass(&mut batch, 4, Ecn::Ect1), Ecn::Ect1);
    // A longer one ends it, too.
    batch.expect_plain();
    (0..5).for_each(|_| assert_eq!(pass(&mut batch, 4, Ecn::Ect0), Ecn::Ect0));
    assert_eq!(pass(&mut batch, 2_000, Ecn::Ce), Ecn::Ect0);
    assert_eq!(pass(&mut batch, 4, Ecn::Ce), Ecn::Ce);
}
