//! Tests of real rings on loopback. Where the system has no io_uring they say so and check the fallback instead.

use super::*;
use crate::poll::{Poller, Source};
use crate::udp::{SendMeta, TooBig};
use base::{Ecn, Span};

type Datagram = (RecvMeta, Vec<u8>);

fn options(bind: &str) -> UdpOptions {
    UdpOptions::new(bind.parse().unwrap())
}

/// A ring, or `None` with the reason on the error stream.
fn ring_with(o: &UdpOptions) -> Option<Uring> {
    match Uring::new(UdpSocket::open(o).unwrap()) {
        Ok(u) => Some(u),
        Err((_, why)) => {
            eprintln!("skipped: no io_uring here: {why}");
            None
        }
    }
}

fn ring(bind: &str) -> Option<Uring> {
    ring_with(&options(bind))
}

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

fn add(total: &mut SendReport, r: SendReport) {
    total.sent += r.sent;
    total.dropped += r.dropped;
    total.too_big = r.too_big.or(total.too_big);
}

fn send_all(s: &mut Uring, batch: &mut SendBatch) -> SendReport {
    let mut total = SendReport::default();
    let mut poller = Poller::new().unwrap();
    loop {
        let r = s.send(batch).unwrap();
        add(&mut total, r);
        if r.blocked == Blocked::No {
            return total;
        }
        poller.wait(&mut [Source::new(&s.room(), true)], Some(Span::from_millis(1))).unwrap();
    }
}

/// Receives until `count` datagrams have come, trains taken apart. Waits without a limit: a descriptor that does not tell
/// hangs the test.
fn receive(s: &mut Uring, count: usize) -> Vec<Datagram> {
    let mut out = Vec::new();
    let mut batch = s.recv_batch();
    let mut poller = Poller::new().unwrap();
    while out.len() < count {
        if !s.pending() {
            poller.wait(&mut [Source::readable(s)], None).unwrap();
        }
        while s.recv(&mut batch).unwrap() > 0 {
            take(&mut batch, &mut out);
        }
    }
    out
}

fn take(batch: &mut RecvBatch, out: &mut Vec<Datagram>) {
    for (meta, bytes) in batch.iter_mut() {
        out.extend(bytes.chunks(meta.stride.max(1)).map(|d| (meta, d.to_vec())));
    }
}

fn receive_plain(s: &UdpSocket, count: usize) -> Vec<Datagram> {
    let mut out = Vec::new();
    let mut batch = s.recv_batch();
    let mut poller = Poller::new().unwrap();
    while out.len() < count {
        poller.wait(&mut [Source::readable(s)], None).unwrap();
        s.recv(&mut batch).unwrap();
        take(&mut batch, &mut out);
    }
    out
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
fn trains_are_sent_and_received() {
    for host in ["127.0.0.1:0", "[::1]:0"] {
        let (Some(mut a), Some(mut b)) = (ring(host), ring(host)) else { return };
        let len = 43 * 1_472 + 100;
        let mut batch = SendBatch::new();
        for round in 0..50 {
            for _ in 0..1 + round % MAX_TRAINS {
                fill(&mut batch, meta(b.local_addr(), 1_472), len);
            }
            let n = batch.len();
            assert_eq!(send_all(&mut a, &mut batch), SendReport { sent: n, ..SendReport::default() });
            assert!(batch.is_empty() && !batch.is_full());
            receive(&mut b, 44 * n).chunks(44).for_each(|t| check_train(t, len, 1_472));
            std::mem::swap(&mut a, &mut b);
        }
        assert_eq!((a.stats(), b.stats()), (UdpStats::default(), UdpStats::default()));
    }
}

/// What comes in while a batch is sent has been collected then: the descriptor is silent about it.
#[test]
fn arrivals_during_a_send_are_delivered() {
    let Some(mut a) = ring("127.0.0.1:0") else { return };
    let to_itself = a.local_addr();
    let mut batch = SendBatch::new();
    for _ in 0..20 {
        for _ in 0..3 {
            fill(&mut batch, meta(to_itself, 1_000), 9_500);
        }
        assert_eq!(send_all(&mut a, &mut batch).sent, 3);
        receive(&mut a, 30).chunks(10).for_each(|t| check_train(t, 9_500, 1_000));
    }
}

/// Everything a message brings with it is what the plain socket says of the same message, age aside.
#[test]
fn metadata_equals_that_of_the_plain_socket() {
    for (bind, to) in
        [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1"), ("[::]:0", "::1")]
    {
        for gro in [true, false] {
            let o = UdpOptions { gro, ..options(bind) };
            let Some(mut behind) = ring_with(&o) else { return };
            let plain = UdpSocket::open(&o).unwrap();
            let sender =
                UdpSocket::open(&options(if to == "::1" { "[::1]:0" } else { "127.0.0.1:0" })).unwrap();
            for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
                let mut batch = SendBatch::new();
                for port in [behind.local_addr().port(), plain.local_addr().port()] {
                    let dst = SocketAddr::new(to.parse().unwrap(), port);
                    fill(&mut batch, SendMeta { ecn, ..meta(dst, 700) }, 3_000);
                }
                assert_eq!(sender.send(&mut batch).unwrap().sent, 2);
                let (one, two) = (receive(&mut behind, 5), receive_plain(&plain, 5));
                for ((m, d), (n, e)) in one.iter().zip(&two) {
                    assert!(m.age < Span::from_secs(1));
                    assert_eq!((m, d), (&RecvMeta { age: m.age, ..*n }, e));
                    assert_eq!((m.local, m.ecn), (Some(to.parse().unwrap()), ecn));
                    assert_eq!(m.remote, sender.local_addr());
                }
            }
        }
    }
}

#[test]
fn source_and_mark_can_be_chosen() {
    let Some(mut a) = ring("0.0.0.0:0") else { return };
    let b = UdpSocket::open(&options("0.0.0.0:0")).unwrap();
    let dst = SocketAddr::new("127.0.0.9".parse().unwrap(), b.local_addr().port());
    let src = Some("127.0.0.7".parse().unwrap());
    let mut batch = SendBatch::new();
    fill(&mut batch, SendMeta { src, ecn: Ecn::Ce, ..meta(dst, 100) }, 250);
    send_all(&mut a, &mut batch);
    for (m, _) in receive_plain(&b, 3) {
        assert_eq!((Some(m.remote.ip()), m.local, m.ecn), (src, Some(dst.ip()), Ecn::Ce));
    }
}

/// Far more messages than there are buffers wait at once: the receive ends for want of buffers, and is armed again.
#[test]
fn more_datagrams_than_buffers_are_delivered() {
    for gro in [true, false] {
        let Some(mut b) = ring_with(&UdpOptions { gro, ..options("127.0.0.1:0") }) else { return };
        let a = UdpSocket::open(&options("127.0.0.1:0")).unwrap();
        let mut batch = SendBatch::new();
        let most = 16;
        for _ in 0..most {
            for _ in 0..MAX_TRAINS {
                fill(&mut batch, meta(b.local_addr(), 1_000), 9_500);
            }
            assert_eq!(a.send(&mut batch).unwrap().sent, MAX_TRAINS);
        }
        let got = receive(&mut b, 10 * most * MAX_TRAINS);
        got.chunks(10).for_each(|t| check_train(t, 9_500, 1_000));
        assert_eq!(b.recv(&mut b.recv_batch()).unwrap(), 0);
    }
}

/// Batches that are dropped with buffers in them cost memory, not function.
#[test]
fn each_call_may_use_another_batch() {
    let Some(mut b) = ring("127.0.0.1:0") else { return };
    let a = UdpSocket::open(&options("127.0.0.1:0")).unwrap();
    let mut batch = SendBatch::new();
    for _ in 0..40 {
        fill(&mut batch, meta(b.local_addr(), 1_000), 9_500);
        a.send(&mut batch).unwrap();
        check_train(&receive(&mut b, 10), 9_500, 1_000);
    }
    // A batch with another shape, as of a socket without GRO.
    let mut odd = RecvBatch::new(false);
    assert_eq!(b.recv(&mut odd).unwrap(), 0);
    fill(&mut batch, meta(b.local_addr(), 1_000), 2_500);
    a.send(&mut batch).unwrap();
    check_train(&receive(&mut b, 3), 2_500, 1_000);
}

#[test]
fn send_failures_equal_those_of_the_plain_socket() {
    let (Some(mut a), Some(mut b)) = (ring("127.0.0.1:0"), ring("127.0.0.1:0")) else { return };
    let mut batch = SendBatch::new();
    // No such address for this socket, first and in the middle; what follows still leaves, in order.
    fill(&mut batch, meta("[::1]:9".parse().unwrap(), 10), 10);
    fill(&mut batch, meta(b.local_addr(), 10), 10);
    fill(&mut batch, meta("[::1]:9".parse().unwrap(), 10), 10);
    fill(&mut batch, meta(b.local_addr(), 10), 20);
    let r = send_all(&mut a, &mut batch);
    assert_eq!((r.sent, r.dropped, batch.len()), (2, 2, 0));
    assert_eq!(receive(&mut b, 3).len(), 3);
    // Refused by the kernel in the middle of a chain.
    fill(&mut batch, meta(b.local_addr(), 10), 10);
    fill(&mut batch, SendMeta { src: Some("192.0.2.1".parse().unwrap()), ..meta(b.local_addr(), 10) }, 10);
    fill(&mut batch, meta(b.local_addr(), 10), 20);
    let r = send_all(&mut a, &mut batch);
    assert_eq!((r.sent, r.dropped), (2, 1));
    assert_eq!(receive(&mut b, 3).len(), 3);
    assert_eq!(a.stats().unsendable, 3);
}

#[test]
fn datagram_beyond_the_mtu_is_reported() {
    let (Some(mut a), Some(b)) = (ring("[::1]:0"), ring("[::1]:0")) else { return };
    let segment = crate::udp::MAX_TRAIN;
    let mut batch = SendBatch::new();
    fill(&mut batch, meta(b.local_addr(), segment), segment);
    let r = send_all(&mut a, &mut batch);
    assert_eq!(r.too_big, Some(TooBig { dst: b.local_addr(), segment }));
    assert_eq!((r.sent, r.dropped), (0, 1));
}

#[test]
fn full_send_buffer_delays_the_batch() {
    let b = UdpSocket::open(&UdpOptions { recv_buffer: 4_096, ..options("127.0.0.1:0") }).unwrap();
    let Some(mut a) = ring_with(&UdpOptions { send_buffer: 4_608, ..options("127.0.0.1:0") }) else { return };
    let mut batch = SendBatch::new();
    let mut sent = 0;
    for _ in 0..20 {
        for _ in 0..MAX_TRAINS {
            fill(&mut batch, meta(b.local_addr(), 1_400), 14_000);
        }
        let r = send_all(&mut a, &mut batch);
        assert_eq!(r.dropped, 0);
        sent += r.sent;
    }
    assert_eq!(sent, 20 * MAX_TRAINS);
}

#[test]
fn datagrams_longer_than_a_buffer_are_counted_as_dropped() {
    let Some(mut b) = ring_with(&UdpOptions { gro: false, ..options("127.0.0.1:0") }) else { return };
    let a = UdpSocket::open(&options("127.0.0.1:0")).unwrap();
    let mut batch = SendBatch::new();
    fill(&mut batch, meta(b.local_addr(), 20_000), 20_000);
    fill(&mut batch, meta(b.local_addr(), 9_000), 9_000);
    a.send(&mut batch).unwrap();
    assert_eq!(receive(&mut b, 1)[0].1.len(), 9_000);
    assert_eq!(b.stats().truncated, 1);
}

/// Dropped while messages wait, are half collected, and go on arriving; and the port is free at once.
#[test]
fn drop_cancels_operations_in_flight() {
    let a = UdpSocket::open(&options("127.0.0.1:0")).unwrap();
    let mut o = options("127.0.0.1:0");
    for round in 0..60 {
        let Some(mut b) = ring_with(&o) else { return };
        o.bind = b.local_addr();
        let mut batch = SendBatch::new();
        let mut send = |n: usize| {
            (0..n).for_each(|_| fill(&mut batch, meta(o.bind, 1_000), 30_000));
            a.send(&mut batch).unwrap();
        };
        send(round % 9);
        let mut got = b.recv_batch();
        if round % 2 == 0 {
            b.recv(&mut got).unwrap();
        }
        send(round % 5);
        if round % 3 == 0 {
            std::thread::spawn(move || drop(b)).join().unwrap();
        } else {
            drop(b);
        }
        // What was received before is still whole.
        let mut out = Vec::new();
        take(&mut got, &mut out);
        out.chunks(30).for_each(|t| check_train(t, 30_000, 1_000));
    }
}

/// The thread that armed the receive ends: the kernel cancels, the next call arms again.
#[test]
fn ring_can_move_to_another_thread() {
    let Some(b) = ring("127.0.0.1:0") else { return };
    let a = UdpSocket::open(&options("127.0.0.1:0")).unwrap();
    let mut carried = b;
    let mut batch = SendBatch::new();
    for _ in 0..8 {
        fill(&mut batch, meta(carried.local_addr(), 1_000), 9_500);
        a.send(&mut batch).unwrap();
        carried = std::thread::spawn(move || {
            check_train(&receive(&mut carried, 10), 9_500, 1_000);
            carried
        })
        .join()
        .unwrap();
    }
}

#[test]
fn ring_can_be_removed() {
    let Some(u) = ring("127.0.0.1:0") else { return };
    let at = u.local_addr();
    let b = u.into_socket();
    assert_eq!(b.local_addr(), at);
    let a = UdpSocket::open(&options("127.0.0.1:0")).unwrap();
    let mut batch = SendBatch::new();
    fill(&mut batch, meta(at, 1_000), 9_500);
    a.send(&mut batch).unwrap();
    check_train(&receive_plain(&b, 10), 9_500, 1_000);
}

#[test]
fn setup_errors_name_a_remedy() {
    for (errno, word) in [
        (libc::ENOSYS, "sandbox"),
        (libc::EPERM, "io_uring_disabled"),
        (libc::EINVAL, "Linux 6.0"),
        (libc::ENOMEM, "ulimit"),
    ] {
        let text = UringUnavailable::Ring(io::Error::from_raw_os_error(errno)).to_string();
        assert!(text.contains(word), "{text}");
    }
    assert!(UringUnavailable::Lacks("SENDMSG").to_string().contains("SENDMSG"));
}

/// As a container's sandbox refuses: the socket goes on alone, and works.
#[test]
fn socket_works_without_a_ring() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        // In a thread of its own, since what is forbidden stays forbidden for the thread.
        let refused = move || {
            forbid_rings(errno);
            let (_, why) = Uring::new(UdpSocket::open(&options("127.0.0.1:0")).unwrap()).unwrap_err();
            assert!(matches!(&why, UringUnavailable::Ring(e) if e.raw_os_error() == Some(errno)), "{why}");
            let plain = Uring::open(&options("127.0.0.1:0")).unwrap().unwrap_err();
            let mut batch = SendBatch::new();
            fill(&mut batch, meta(plain.local_addr(), 1_000), 9_500);
            plain.send(&mut batch).unwrap();
            check_train(&receive_plain(&plain, 10), 9_500, 1_000);
        };
        std::thread::spawn(refused).join().unwrap();
    }
}

/// From now on this thread's `io_uring_setup` fails with `errno`.
fn forbid_rings(errno: i32) {
    let op = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let number = core::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let compare = op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_io_uring_setup as u32);
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number),
        libc::sock_filter { jf: 1, ..compare },
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as _, filter: program.as_mut_ptr() };
    // SAFETY: the first call takes integers; the kernel copies the program that the second names.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter)
    };
    assert_eq!(done, 0, "this kernel has seccomp: {}", io::Error::last_os_error());
}
