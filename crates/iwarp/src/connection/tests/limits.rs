//! Tests of the limits on what a connection holds and does at a time.

use super::errors::{fpdu_of, queue, server, write};
use super::*;
use crate::mpa::fpdu;
use crate::rdmap::Opcode;
use crate::rdmap::messages::ReadRequest;
use verbs::{MAX_SGE, SendOp};

/// Ranges that a system call takes (`UIO_MAXIOV`).
const MAX_RANGES: usize = 1024;

/// Bytes of the first call, the same where they are to be in a processor's cache, and of the longest.
const BATCH: usize = 1 << 20;
const WARM: usize = 256 << 10;
const MAX_BATCH: usize = 2 << 20;

/// What was posted while the stream took nothing was told of then, and is not told of again: it once waited for ever.
#[test]
fn work_posted_while_the_stream_is_full_is_sent() {
    let (mut x, mut y) = pair(Config::default(), Config::default());
    let op = SendOp::Write { rkey: y.dst.rkey, offset: 0 };
    x.post(SendWr::new(1, op, x.source(0, 5_000)));
    assert_eq!(x.a.activated(), Some(x.qp));
    assert!(x.c.has_more(&x.a));
    assert_eq!(x.send(1_000, Time::ZERO), 1_000);
    x.post(SendWr::new(2, op, x.source(5_000, 5_000)));
    assert_eq!(x.a.activated(), Some(x.qp));
    assert!(x.c.has_more(&x.a), "the rest of the first");
    assert!(x.send(usize::MAX, Time::ZERO) > 0);
    assert_eq!(x.a.activated(), None);
    assert!(x.c.has_more(&x.a), "the second");
    assert!(x.send(usize::MAX, Time::ZERO) > 0);
    assert!(!x.c.has_more(&x.a));
    run(&mut x, &mut y, &mut Rng::from_u64(1), 1 << 20, Time::ZERO);
    assert_eq!(y.bytes(y.dst, 0, 5_000), x.bytes(x.src, 5_000, 5_000));
    // Nor is it that the application has ended it by way of its queue pair.
    x.post(SendWr::new(3, op, x.source(0, 5_000)));
    assert_eq!(x.send(1_000, Time::ZERO), 1_000);
    x.a.set_error(x.qp, Status::FlushError).unwrap();
    assert!(x.send(usize::MAX, Time::ZERO) > 0);
    assert!(x.c.has_more(&x.a), "the peer is to be told");
    run(&mut x, &mut y, &mut Rng::from_u64(1), 1 << 20, Time::ZERO);
    assert!(y.events.iter().any(|e| matches!(e, Event::Closed { by_peer: true, .. })), "{:?}", y.events);
}

#[test]
fn bytes_per_call_are_bounded() {
    for (markers, crc) in [(false, false), (false, true), (true, false), (true, true)] {
        for len in [1, 600, 100_000] {
            let config = Config { crc, ..Config::default() };
            let (mut x, mut y) = pair(config, Config { markers, ..config });
            let op = SendOp::Write { rkey: y.dst.rkey, offset: 0 };
            // As many pieces as there can be.
            let part = len / MAX_SGE as u64;
            let last = len - part * (MAX_SGE as u64 - 1);
            let sges: Vec<_> = (0..MAX_SGE as u64)
                .map(|i| x.source(i * part, if i + 1 < MAX_SGE as u64 { part } else { last }))
                .collect();
            for i in 0..128 {
                x.post(SendWr::new(i, op, sges.clone()));
            }
            let first = if crc { WARM } else { BATCH };
            let (mut sent, mut most) = (0, first);
            while let Some(t) = x.c.transmit(&mut x.a, Time::ZERO) {
                let (n, ranges, scratch) = (t.len, t.pieces.len(), t.scratch.len());
                let copied = WARM + fpdu::MAX_FPDU;
                assert!(
                    n <= most + fpdu::MAX_FPDU && scratch <= n.min(copied),
                    "{n} bytes, {scratch} copied"
                );
                assert!(ranges <= MAX_RANGES, "{ranges} ranges");
                sent += n;
                x.c.on_sent(&mut x.a, n);
                most = if n >= most { MAX_BATCH.min(most * 2) } else { first };
            }
            assert!(sent as u64 >= 128 * len);
            assert_eq!(x.statuses().len(), 128);
            y.collect_events();
        }
    }
}

#[test]
fn bytes_per_call_grow_while_all_are_accepted() {
    for (crc, first) in [(false, BATCH), (true, WARM)] {
        // Records of the longest kind.
        let config = Config { crc, emss: 1 << 20, ..Config::default() };
        let (mut x, y) = pair(config, config);
        let op = SendOp::Write { rkey: y.dst.rkey, offset: 0 };
        for i in 0..100 {
            x.post(SendWr::new(i, op, x.source(0, 100_000)));
        }
        // The stream takes a half, or all: what there was then.
        let mut take = |half: bool| {
            let n = x.c.transmit(&mut x.a, Time::ZERO).expect("more is posted than is taken").len;
            x.c.on_sent(&mut x.a, if half { n / 2 } else { n });
            n
        };
        let about = |bytes: usize| bytes..=bytes + fpdu::MAX_FPDU;
        let mut most = first;
        while most < MAX_BATCH {
            assert!(about(most).contains(&take(false)));
            most *= 2;
        }
        assert!(about(MAX_BATCH).contains(&take(false)) && about(MAX_BATCH).contains(&take(true)));
        // Little follows what was not taken at once.
        assert!(about(MAX_BATCH / 2).contains(&take(false)));
        assert!(about(first).contains(&take(false)) && about(2 * first).contains(&take(false)));
    }
}

#[test]
fn responses_to_a_non_reading_peer_are_bounded() {
    // Reads of everything, as many as agreed; the answers are not taken.
    let mut y = server();
    let key = y.src.rkey;
    for msn in 1..=16 {
        let mut b = Vec::new();
        let len = SIZE as u32;
        ReadRequest { sink_stag: 1, sink_to: 0, len, source_stag: key, source_to: 0 }.put(&mut b);
        y.c.receive(&mut y.a, &fpdu_of(&queue(Opcode::ReadRequest, 1, msn, 0, &b)), Time::ZERO);
        let waits = y.c.transmit(&mut y.a, Time::ZERO).map_or(0, |t| t.len);
        assert!((1..=BATCH + fpdu::MAX_FPDU).contains(&waits), "{waits} bytes");
    }
    assert_eq!((y.c.rx.answers.len(), y.c.is_closed()), (16, false));
    // Records without payload cost nothing that lasts.
    let empty = fpdu_of(&write(0, 0, &[])).repeat(10_000);
    let before = y.c.scratch_kept();
    y.c.receive(&mut y.a, &empty, Time::ZERO);
    assert_eq!((y.c.scratch_kept(), y.c.rx.answers.len(), y.c.events.len()), (before, 16, 0));
}

#[test]
fn responses_and_events_are_bounded() {
    // Own reads: no more wait at a time than agreed, however many were posted.
    let c = Config { ord: 3, ird: 3, ..Config::default() };
    let (mut x, mut y) = pair(c, c);
    for i in 0..100 {
        x.post(SendWr::new(i, SendOp::Read { rkey: y.src.rkey, offset: 0 }, x.own(0, 10)));
    }
    while x.send(usize::MAX, Time::ZERO) > 0 {
        assert!(x.c.rx.reads.len() <= 3);
    }
    run(&mut x, &mut y, &mut Rng::from_u64(1), 100, Time::ZERO);
    assert_eq!((x.statuses().len(), x.c.rx.reads.len(), y.c.rx.answers.len()), (100, 0, 0));
    // An application that asks for nothing finds each kind of event once.
    let mut z = End::responder(9, c);
    x.c.close(&mut x.a, Time::ZERO);
    x.c.close(&mut x.a, Time::ZERO);
    for _ in 0..10 {
        z.c.on_fin(&mut z.a, Time::ZERO);
        z.c.on_error(&mut z.a);
        z.c.abort(&mut z.a, Time::ZERO);
    }
    assert_eq!((z.c.events.len(), z.c.actions.len()), (1, 1));
}

#[test]
fn checksummed_write_records_honour_the_requested_length() {
    for (crc, expected) in [(true, [4, 1, 1]), (false, [1, 1, 1])] {
        let config = Config { crc, ..Config::default() };
        let (mut x, mut y) = pair(config, config);
        for e in [&mut x, &mut y] {
            e.c.set_emss(65_532);
            e.c.announce_writes();
            e.c.shorten_writes(1_000);
        }
        y.recv(9, 0, 3_500);
        // A write and a send, and a read, whose answer x sends.
        let write = SendWr::new(1, SendOp::Write { rkey: y.dst.rkey, offset: 5 }, x.source(0, 3_500));
        let send = SendWr::new(2, SendOp::Send, x.source(0, 3_500));
        let read = SendOp::Read { rkey: x.src.rkey, offset: 0 };
        let read = SendWr::new(3, read, y.own(8_000, 3_500));
        let mut records = |from_x: bool, wr| {
            let before = x.a.stats(x.qp).expect("a queue pair").segments_out;
            let arrived = y.c.taken();
            if from_x {
                x.post(wr)
            } else {
                y.post(wr)
            }
            run(&mut x, &mut y, &mut Rng::from_u64(1), usize::MAX, Time::ZERO);
            let records = x.a.stats(x.qp).expect("a queue pair").segments_out - before;
            // Nothing but these: who checks first is told no length.
            assert_eq!(y.c.taken() - arrived, records, "crc {crc}");
            records
        };
        assert_eq!([(true, write), (true, send), (false, read)].map(|(by, wr)| records(by, wr)), expected);
        assert_eq!(y.bytes(y.dst, 5, 3_500), x.bytes(x.src, 0, 3_500));
        assert_eq!(y.bytes(y.own, 8_000, 3_500), x.bytes(x.src, 0, 3_500));
    }
}
