//! Tests of messages that wait for a receive, and of shared scratch memory.

use super::{End, pair, run};
use crate::rdmap::terminate::Cause;
use crate::{Config, ReadTarget, Scratch, ddp};
use base::{Rng, Span, Time};
use verbs::{Data, SendOp, SendWr, Status};

const WAIT: Span = Span::from_secs(2);

fn config(rng: &mut Rng) -> Config {
    Config { receive_wait: WAIT, markers: rng.below(2) == 0, crc: rng.below(2) == 0, ..Config::default() }
}

fn sends(x: &mut End, lens: &[u64]) {
    for (i, len) in lens.iter().enumerate() {
        let data = Data::from(x.source(0, *len));
        x.post(SendWr::new(i as u64, SendOp::Send, data));
    }
}

#[test]
fn send_waits_for_its_receive_and_blocks_later_records() {
    for seed in 0..20 {
        let rng = &mut Rng::from_u64(seed);
        let (mut x, mut y) = pair(config(rng), config(rng));
        run(&mut x, &mut y, rng, 999, Time::ZERO);
        sends(&mut x, &[10, 100_000, 0]);
        let piece = 1 + rng.below(100_000) as usize;
        run(&mut x, &mut y, rng, piece, Time::ZERO);
        assert!(y.c.is_held() && y.completions().is_empty());
        assert!(y.c.poll_timeout().is_some_and(|t| t == Time::ZERO + WAIT));
        let mut done = Vec::new();
        for i in 0..3 {
            y.recv(i, i * 110_000, 110_000);
            y.c.resume(&mut y.a, Time::ZERO);
            run(&mut x, &mut y, rng, piece, Time::ZERO);
            done.extend(y.completions().iter().map(|w| (w.wr_id, w.status, w.byte_len)));
            assert_eq!(y.c.is_held(), i < 2);
        }
        assert_eq!(
            done,
            [10, 100_000, 0]
                .iter()
                .enumerate()
                .map(|(i, n)| (i as u64, Status::Success, *n))
                .collect::<Vec<_>>()
        );
        assert_eq!(y.bytes(y.own, 110_000, 100_000), x.bytes(x.src, 0, 100_000));
    }
}

#[test]
fn missing_receive_times_out_the_connection() {
    let rng = &mut Rng::from_u64(1);
    let (mut x, mut y) = pair(config(rng), config(rng));
    y.recv(0, 0, 100);
    run(&mut x, &mut y, rng, 999, Time::ZERO);
    sends(&mut x, &[10, 10]);
    run(&mut x, &mut y, rng, 999, Time::ZERO);
    let before = Time::ZERO + (WAIT - Span::from_millis(1));
    y.c.on_timeout(&mut y.a, before);
    assert!(y.c.is_held());
    y.c.on_timeout(&mut y.a, Time::ZERO + WAIT);
    run(&mut x, &mut y, rng, 999, Time::ZERO + WAIT);
    let cause: Cause = ddp::untagged::NO_BUFFER;
    let told = |e: &End| {
        e.events
            .iter()
            .any(|e| matches!(e, crate::Event::Closed { end, .. } if *end == crate::End::Terminated(cause)))
    };
    assert!(told(&x) && told(&y));
}

#[test]
fn scratch_memory_is_borrowed_while_records_are_incomplete() {
    let rng = &mut Rng::from_u64(3);
    let mut spare = Scratch::default();
    let (mut x, mut y) = pair(Config::default(), Config::default());
    run(&mut x, &mut y, rng, 999, Time::ZERO);
    for i in 0..50 {
        y.recv(i, 0, 100_000);
    }
    sends(&mut x, &[50_000; 50]);
    let mut done = 0;
    while x.send(usize::MAX, Time::ZERO) > 0 || !x.wire.is_empty() {
        // One that lends much, and asks for it back every time.
        spare.pretend_lent();
        y.c.borrow_scratch(&mut spare);
        super::carry(&mut x, &mut y, 1 + rng.below(9_000) as usize, Time::ZERO);
        y.c.return_scratch(&mut spare);
        done += y.completions().len();
    }
    assert_eq!(done, 50);
    assert_eq!(y.bytes(y.own, 0, 50_000), x.bytes(x.src, 0, 50_000));
    y.c.return_scratch(&mut spare);
    assert_eq!(y.c.scratch_kept(), 0);
}

#[test]
fn scratch_memory_starts_at_a_fixed_page_offset() {
    let mut spare = Scratch::default();
    let (mut x, mut y) = pair(Config::default(), Config::default());
    // Memory of others' own, and what is lent.
    y.c.borrow_scratch(&mut spare);
    let mut rooms = Vec::new();
    for e in [&mut x, &mut y] {
        let places = e.c.places();
        let [ReadTarget::Scratch { start, len }] = places.ranges else { panic!("{:?}", places.ranges) };
        assert_eq!((places.scratch.as_ptr().addr() + start) % 4096, 128);
        assert!(places.scratch.len() >= start + len);
        rooms.push(*len);
    }
    assert_eq!(rooms[0], rooms[1], "it does not depend on where it lies");
}
