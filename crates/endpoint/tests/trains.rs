//! Which packets leave together: all segments of a train but the last are equally long.

mod pair;

use longhaul_endpoint::{ConnInfo, MAX_TRAIN, Transmit};
use pair::{InFlight, Pair, read, register};
use proptest::prelude::*;
use std::ops::Range;
use transport::connection::MAX_SEGMENTS;
use verbs::{Data, Memory, Mr, RecvWr, SendOp, SendWr, Sge, Sges};

const ROOM: u64 = 64 << 10;

/// Two ends, and a region of random bytes at the client and one of zeroes at the server.
fn ends() -> (Pair, ConnInfo, Mr, Mr) {
    let mut p = Pair::new();
    let pair::Link { ci, si, .. } = p.linked();
    let mut bytes = vec![0; ROOM as usize];
    base::Rng::from_u64(3).fill(&mut bytes);
    let from = register(&mut p.client, ci.pd, bytes);
    let to = register(&mut p.server, si.pd, Memory::zeroed(ROOM as usize));
    (p, ci, from, to)
}

/// Writes pieces of the region to where they come from.
fn post(p: &mut Pair, ci: &ConnInfo, (from, to): (&Mr, &Mr), pieces: impl IntoIterator<Item = Range<u64>>) {
    for (k, r) in pieces.into_iter().enumerate() {
        let op = SendOp::Write { rkey: to.rkey, offset: r.start };
        let data = Data::from(Sge { lkey: from.lkey, offset: r.start, len: r.end - r.start });
        p.client.adapter().post_send(ci.qps[0], SendWr::new(k as u64, op, data)).expect("posted");
    }
}

/// The trains that leave at the client within 20 ms, before it hears of any: lengths of the packets of each.
fn trains(p: &mut Pair) -> Vec<Vec<usize>> {
    let (mut buf, mut all) = (vec![0; MAX_TRAIN], Vec::new());
    for _ in 0..20 {
        while let Some(Transmit { len, segment, .. }) = p.client.poll_transmit(p.now, &mut buf) {
            all.push(buf[..len].chunks(segment).map(<[u8]>::len).collect());
            for d in buf[..len].chunks(segment) {
                p.deliver(InFlight { at: p.now, from: p.client_addr, to_server: true, bytes: d.to_vec() });
            }
        }
        p.now += base::Span::from_millis(1);
        p.client.handle_timeout(p.now);
    }
    all
}

#[test]
fn short_messages_leave_in_trains() {
    let (mut p, ci, from, to) = ends();
    post(&mut p, &ci, (&from, &to), (0..100).map(|k| k * 64..k * 64 + 64));
    let sent = trains(&mut p);
    let header = sent[0][0] - 64;
    assert!(header < 64, "{header}");
    let packets: Vec<_> = sent.iter().map(Vec::len).collect();
    assert_eq!(packets, [MAX_SEGMENTS, 100 - MAX_SEGMENTS], "{sent:?}");
    assert!(sent.iter().flatten().all(|n| *n == sent[0][0]), "{sent:?}");
}

#[test]
fn train_ends_with_a_shorter_message_or_before_a_longer_one() {
    let (mut p, ci, from, to) = ends();
    let lens = [64, 64, 100, 100, 30, 30, 0, 0, 1, 5_000, 20];
    let starts = lens.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n)));
    let pieces: Vec<_> = starts.zip(lens).map(|(at, n)| at..at + n).collect();
    post(&mut p, &ci, (&from, &to), pieces);
    let sent = trains(&mut p);
    let header = sent[0][0] - 64;
    let payload: Vec<Vec<usize>> =
        sent.iter().map(|t| t.iter().map(|n| n.saturating_sub(header)).collect()).collect();
    assert_eq!(payload[..4], [vec![64, 64], vec![100, 100, 30], vec![30, 0], vec![0]]);
    // 5,000 bytes are four packets that are alike. Only a message's last has the byte that says so.
    let piece = 5_001_usize.div_ceil(4);
    assert_eq!(payload[4..], [vec![1], vec![piece - 1, piece - 1, piece - 1, piece - 1, 20]]);
    let len = lens.iter().sum::<u64>() as usize;
    assert_eq!(read(&mut p.server, &to, len), read(&mut p.client, &from, len));
}

/// Messages of a few packets are cut into pieces that are alike, so that they go on with each other's trains.
#[test]
fn few_packet_messages_leave_in_trains() {
    for len in [1_500, 2_048, 4_000, 4_096, 9_999, 16_384] {
        let (mut p, ci, from, to) = ends();
        // The first flight is 32 full packets.
        let n = 32 * 1_300 / len;
        post(&mut p, &ci, (&from, &to), (0..n).map(|k| k * len..(k + 1) * len));
        let sent = trains(&mut p);
        let packets: Vec<_> = sent.iter().map(Vec::len).collect();
        let each = len.div_ceil(1_430) as usize;
        assert_eq!(packets, [each * n as usize], "{len}");
        assert!(sent.iter().flatten().all(|n| *n == sent[0][0]), "{len}: {sent:?}");
        let len = (n * len) as usize;
        assert_eq!(read(&mut p.server, &to, len), read(&mut p.client, &from, len));
    }
}

/// Bytes are what slow paths have least of: what lacks more than a few ends its train instead of being padded.
#[test]
fn padding_is_small() {
    let (mut p, ci, from, to) = ends();
    let lens = [1_000, 990, 980, 960, 1_000, 500];
    let starts = lens.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n)));
    post(&mut p, &ci, (&from, &to), starts.zip(lens).map(|(at, n)| at..at + n).collect::<Vec<_>>());
    let sent = trains(&mut p);
    let (full, less) = (sent[0][0], 1_000 - 960);
    assert_eq!(sent, [vec![full, full, full, full - less], vec![full, full - 500]]);
}

#[test]
fn probe_after_timeout_is_one_packet() {
    let (mut p, ci, from, to) = ends();
    let data = |p: &mut Pair| {
        let mut buf = vec![0; MAX_TRAIN];
        let sent = std::iter::from_fn(|| p.client.poll_transmit(p.now, &mut buf));
        // Control is never ECN-capable.
        sent.filter(|t| t.ecn != base::Ecn::NotEct).map(|t| t.len / t.segment).collect::<Vec<_>>()
    };
    post(&mut p, &ci, (&from, &to), std::iter::once(0..64));
    assert_eq!(data(&mut p), [1]);
    // Nothing arrives; more is posted by the time that this is noticed.
    p.now = p.client.next_timeout().expect("a time-out");
    p.client.handle_timeout(p.now);
    post(&mut p, &ci, (&from, &to), (1..11).map(|k| k * 64..k * 64 + 64));
    let sent = data(&mut p);
    assert!(sent[0] == 1 && sent.iter().any(|n| *n > 5) && sent.iter().sum::<usize>() >= 10, "{sent:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is posted arrives, in trains whose packets are equally long but for the last.
    #[test]
    fn messages_of_any_length_travel_in_equal_segments(
        lens in proptest::collection::vec(prop_oneof![3 => 0u64..80, 1 => 1_300u64..1_500, 1 => 0u64..6_000], 1..40),
    ) {
        let (mut p, ci, from, to) = ends();
        let lens: Vec<_> = lens.into_iter().scan(ROOM, |left, n| (*left >= n).then(|| { *left -= n; n })).collect();
        let starts = lens.iter().scan(0, |at, n| Some(std::mem::replace(at, *at + n)));
        post(&mut p, &ci, (&from, &to), starts.zip(&lens).map(|(at, n)| at..at + n).collect::<Vec<_>>());
        for train in trains(&mut p) {
            let (last, others) = train.split_last().expect("not empty");
            prop_assert!(others.iter().all(|n| *n == train[0]) && *last <= train[0], "{train:?}");
        }
        p.run(base::Span::from_secs(2));
        let len = lens.iter().sum::<u64>() as usize;
        prop_assert!(read(&mut p.server, &to, len) == read(&mut p.client, &from, len));
    }
}

/// Packets that the server sends for 20 messages that it answers, each 3 us after the turn in which the message came.
fn packets_of_answers(answer_wait: base::Span) -> usize {
    const EXCHANGES: u64 = 20;
    let mut p = Pair::new();
    let pair::Link { ci, si, .. } = p.linked();
    p.server.set_answer_wait(answer_wait);
    let before = p.sent[0];
    for n in 0..EXCHANGES {
        p.server.adapter().post_recv(si.qps[0], RecvWr { wr_id: n, sges: Sges::None }).expect("posted");
        p.client.adapter().post_recv(ci.qps[0], RecvWr { wr_id: n, sges: Sges::None }).expect("posted");
        // Each knows by now that the other one receives.
        p.run(base::Span::from_millis(60));
        let message = SendWr::new(n, SendOp::SendImm { imm: 1 }, Data::Inline(Vec::new().into()));
        p.client.adapter().post_send(ci.qps[0], message).expect("posted");
        while p.server.adapter().cq_len(si.cq) == Some(0) {
            p.run(base::Span::from_micros(1));
        }
        while p.server.adapter().poll_cq(si.cq).is_some() {}
        p.run(base::Span::from_micros(3));
        let answer = SendWr::new(n, SendOp::Send, Data::Inline(Vec::new().into()));
        p.server.adapter().post_send(si.qps[0], answer).expect("posted");
        p.run(base::Span::from_millis(60));
        while p.client.adapter().poll_cq(ci.cq).is_some() {}
        while p.server.adapter().poll_cq(si.cq).is_some() {}
    }
    p.sent[0] - before
}

#[test]
fn report_that_was_asked_for_travels_with_an_answer_that_comes_soon() {
    let (at_once, waits) =
        (packets_of_answers(base::Span::ZERO), packets_of_answers(base::Span::from_micros(10)));
    assert!(at_once >= waits + 20, "{at_once} packets, {waits} where reports wait");
}
