//! Tests of all operations in both directions, over any chunking and with any terms.

use super::*;
use crate::{Placement, Rtr};
use base::Span;
use proptest::prelude::{ProptestConfig, proptest};
use verbs::{AtomicOp, Data, Opcode, SendOp, WindowRange};

/// Longest message of the random runs.
const LONGEST: u64 = 20_000;
/// Operations of an end at most.
const MOST: usize = 12;

fn arbitrary_config(rng: &mut Rng, base: Config) -> Config {
    let mut coin = || rng.below(2) == 1;
    let placement = if coin() { Placement::Early } else { Placement::Verified };
    Config { markers: coin(), crc: coin(), placement, ..base }
}

/// What an end posts, and what is to come of it.
struct Plan {
    ops: Vec<(u32, u64)>,
    window: Option<u32>,
}

/// Posts operations; each has a range of its own at both ends, at its number times [`LONGEST`].
fn post(from: &mut End, to: &mut End, plan: &Plan) {
    for (i, (kind, len)) in plan.ops.iter().enumerate() {
        let (at, len) = (i as u64 * LONGEST, *len);
        let data = Data::from(from.source(at, len));
        let own = Data::from(from.own(at, len));
        let wr = match kind {
            0 => SendWr::new(i as u64, SendOp::Write { rkey: to.dst.rkey, offset: at }, data),
            1 => {
                SendWr::new(i as u64, SendOp::WriteImm { rkey: to.dst.rkey, offset: at, imm: i as u32 }, data)
            }
            2 => SendWr::new(i as u64, SendOp::Send, data),
            3 => SendWr { solicited: true, ..SendWr::new(i as u64, SendOp::Send, data) },
            4 => SendWr::new(i as u64, SendOp::Read { rkey: to.src.rkey, offset: at }, own),
            5 => {
                let op = AtomicOp::FetchAdd { add: 7, mask: 0 };
                let sge = from.own(at, 8);
                SendWr::new(i as u64, SendOp::Atomic { rkey: to.dst.rkey, offset: SIZE as u64 - 8, op }, sge)
            }
            6 => {
                let bytes = from.bytes(from.src, at, len.min(1000));
                SendWr::new(i as u64, SendOp::Send, Data::Inline(bytes.into()))
            }
            _ => match plan.window {
                Some(rkey) => SendWr::new(i as u64, SendOp::SendInvalidate { rkey }, data),
                None => SendWr::new(i as u64, SendOp::Send, data),
            },
        };
        from.post(wr);
    }
}

/// Checks what became of `plan`: `done` are the sender's completions, `got` the receiver's.
fn check(from: &End, to: &End, plan: &Plan, done: &[WorkCompletion], got: &[WorkCompletion]) {
    assert_eq!(done.len(), plan.ops.len(), "all of them complete");
    let (mut received, mut sum) = (0, 0u64);
    for (i, (kind, len)) in plan.ops.iter().enumerate() {
        assert_eq!((done[i].wr_id, done[i].status), (i as u64, Status::Success), "in order");
        let (at, len) = (i as u64 * LONGEST, *len);
        let want = from.bytes(from.src, at, len);
        let mut next = || {
            received += 1;
            got[received - 1]
        };
        match kind {
            0 => assert_eq!(to.bytes(to.dst, at, len), want),
            1 => {
                assert_eq!(to.bytes(to.dst, at, len), want);
                let wc = next();
                assert_eq!((wc.opcode, wc.imm), (Opcode::RecvWriteImm, Some(i as u32)));
            }
            4 => assert_eq!(from.bytes(from.own, at, len), to.bytes(to.src, at, len)),
            5 => {
                assert_eq!(from.bytes(from.own, at, 8), sum.to_ne_bytes());
                sum += 7;
            }
            kind => {
                let len = if *kind == 6 { len.min(1000) } else { len };
                let wc = next();
                assert_eq!((wc.opcode, wc.byte_len, wc.solicited), (Opcode::Recv, len, *kind == 3));
                assert_eq!(wc.invalidated, plan.window.filter(|_| *kind == 7));
                let place = SIZE as u64 / 2 + wc.wr_id * LONGEST;
                assert_eq!(to.bytes(to.own, place, len), want[..len as usize]);
            }
        }
    }
    assert_eq!(received, got.len());
    assert_eq!(to.bytes(to.dst, SIZE as u64 - 8, 8), sum.to_ne_bytes());
}

fn plan(rng: &mut Rng, least: usize, window: Option<u32>) -> Plan {
    let n = least + rng.below((MOST - least) as u64) as usize;
    let mut invalidated = false;
    let ops = (0..n).map(|_| {
        let mut kind = rng.below(8) as u32;
        if kind == 7 && core::mem::replace(&mut invalidated, true) {
            kind = 2;
        }
        let short = rng.below(3) > 0;
        (kind, rng.below(if short { 700 } else { LONGEST }))
    });
    Plan { ops: ops.collect(), window }
}

pub(super) fn window_for(e: &mut End) -> u32 {
    let mw = e.a.alloc_mw(e.pd).unwrap();
    let range = WindowRange { mr: e.dst.id, offset: 64, len: 64, access: Access::REMOTE_WRITE };
    e.a.bind_mw(e.qp, mw, range).unwrap()
}

fn exchange(seed: u64) {
    let rng = &mut Rng::from_u64(seed);
    let rtr = Rtr { send: rng.below(2) == 1, write: rng.below(2) == 1, read: rng.below(2) == 1 };
    let peer_to_peer = rtr.any();
    let depth = 1 + rng.below(16) as u16;
    let emss = 150 + rng.below(9000) as usize;
    let pause = Span::ZERO;
    let base = Config { emss, peer_to_peer, rtr, ird: depth, ord: depth, pause, ..Config::default() };
    let (cx, cy) = (arbitrary_config(rng, base), arbitrary_config(rng, base));
    let (mut x, mut y) = (End::initiator(seed, cx), End::responder(seed + 1, cy));
    for e in [&mut x, &mut y] {
        (0..MOST as u64).for_each(|i| e.recv(i, SIZE as u64 / 2 + i * LONGEST, LONGEST));
    }
    if rng.below(2) == 1 {
        x.c.announce_writes();
        y.c.announce_writes();
    }
    if rng.below(2) == 1 {
        x.c.shorten_writes(1 + rng.below(3000) as u32);
    }
    let (wx, wy) = (window_for(&mut x), window_for(&mut y));
    // A client has to send first.
    let (px, py) = (plan(rng, 1, Some(wy)), plan(rng, 0, Some(wx)));
    let piece = [3, 100, 2000, 1 << 20][rng.below(4) as usize];
    // Posting before a connection is there is not for queue pairs in their first state.
    run(&mut x, &mut y, rng, piece, Time::ZERO);
    assert!(x.is_established() && y.is_established(), "{:?} {:?}", x.events, y.events);
    post(&mut x, &mut y, &px);
    post(&mut y, &mut x, &py);
    run(&mut x, &mut y, rng, piece, Time::ZERO);
    let split = |e: &mut End| -> (Vec<_>, Vec<_>) {
        let receive = |w: &WorkCompletion| matches!(w.opcode, Opcode::Recv | Opcode::RecvWriteImm);
        let (got, done) = e.completions().into_iter().partition(receive);
        (done, got)
    };
    let ((done_x, got_x), (done_y, got_y)) = (split(&mut x), split(&mut y));
    check(&x, &y, &px, &done_x, &got_y);
    check(&y, &x, &py, &done_y, &got_x);
    // A graceful end: the receives that are left are flushed.
    x.c.close(&mut x.a, Time::ZERO);
    run(&mut x, &mut y, rng, piece, Time::ZERO);
    for e in [&mut x, &mut y] {
        let closed = Event::Closed { end: crate::End::Closed, by_peer: false };
        assert_eq!(e.events.last(), Some(&closed), "{:?}", e.events);
        assert_eq!(e.actions, [StreamAction::Shutdown, StreamAction::Close]);
        assert!(e.completions().iter().all(|w| w.status == Status::FlushError));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn all_data_arrives_at_any_chunking(seed: u64) {
        exchange(seed / 2);
    }
    #[test]
    fn corruption_is_never_delivered(seed: u64) {
        flipped(seed);
    }
}

/// One bit of the stream is wrong: whatever completes well has the right bytes, and nothing else changes.
fn flipped(seed: u64) {
    let rng = &mut Rng::from_u64(seed);
    let placement = if rng.below(2) == 1 { Placement::Early } else { Placement::Verified };
    let c = Config { placement, markers: rng.below(2) == 1, emss: 9000, ..Config::default() };
    let (mut x, mut y) = pair(c, c);
    for i in 0..4u64 {
        y.recv(i, 10_000 * i, 10_000);
        x.post(SendWr::new(i, SendOp::Send, x.source(10_000 * i, 100 + rng.below(9_900))));
    }
    while x.send(usize::MAX, Time::ZERO) > 0 {}
    let at = rng.below(x.wire.len() as u64) as usize;
    x.wire[at] ^= 1 << rng.below(8);
    run(&mut x, &mut y, rng, 5_000, Time::ZERO);
    let done = y.completions();
    assert!(done.iter().filter(|w| w.status == Status::Success).count() < 4, "one is wrong");
    for w in done.iter().filter(|w| w.status == Status::Success) {
        let at = 10_000 * w.wr_id;
        assert_eq!(y.bytes(y.own, at, w.byte_len), x.bytes(x.src, at, w.byte_len));
    }
    assert_eq!(y.bytes(y.own, 40_000, 10_000), vec![0; 10_000]);
    // A length that is too large leaves it waiting for the rest; time ends that.
    let later = Time::ZERO + c.record_timeout;
    y.c.on_timeout(&mut y.a, later);
    y.collect_events();
    assert!(matches!(y.events.last(), Some(Event::Closed { .. })), "{:?}", y.events);
}

#[test]
fn records_end_at_segment_boundaries() {
    for (emss, markers) in [(1448, false), (1448, true), (8948, true), (200, false)] {
        let c = Config { emss, ..Config::default() };
        let (mut x, mut y) = pair(c, Config { markers, ..c });
        let op = SendOp::Write { rkey: y.dst.rkey, offset: 0 };
        // A short record first: the next one fills the rest of its segment.
        x.post(SendWr::new(1, op, x.source(0, 10)));
        x.post(SendWr::new(2, op, x.source(0, 100_000)));
        let mut n = 0;
        while x.send(usize::MAX, Time::ZERO) > 0 {
            n = n.max(x.wire.len());
            let batch: Vec<u8> = x.wire.drain(..).collect();
            if !markers {
                // Where records end, without markers, from the lengths alone.
                let (mut at, mut ends) = (0, Vec::new());
                while at < batch.len() {
                    at += crate::mpa::fpdu::len(usize::from(u16::from_be_bytes([batch[at], batch[at + 1]])));
                    ends.push(at);
                }
                assert!((emss..batch.len()).step_by(emss).all(|b| ends.contains(&b)), "emss {emss}");
            }
            y.c.receive(&mut y.a, &batch, Time::ZERO);
        }
        assert!(n > 64 << 10, "many records in one call");
        assert_eq!(y.bytes(y.dst, 0, 100_000), x.bytes(x.src, 0, 100_000));
    }
}

#[test]
fn small_message_is_one_range() {
    let (mut x, mut y) = pair(Config::default(), Config::default());
    y.recv(1, 0, 64);
    x.post(SendWr::new(1, SendOp::Send, x.source(0, 4)));
    let t = x.c.transmit(&mut x.a, Time::ZERO).unwrap();
    // 2 of length, 18 of header, 4, no pad, 4 of CRC.
    assert_eq!((t.pieces, t.len), ([Piece::Scratch { start: 0, len: 28 }].as_slice(), 28));
}

#[test]
fn long_payload_is_sent_without_copying() {
    use crate::ReadTarget;
    for (crc, placement, direct) in [
        (true, Placement::Verified, false),
        (true, Placement::Early, true),
        (false, Placement::Verified, true),
    ] {
        let c = Config { crc, placement, emss: 64 << 10, ..Config::default() };
        let (mut x, mut y) = pair(c, c);
        x.post(SendWr::new(1, SendOp::Write { rkey: y.dst.rkey, offset: 8 }, x.source(0, 60_000)));
        x.send(usize::MAX, Time::ZERO);
        let wire: Vec<u8> = x.wire.drain(..).collect();
        y.c.receive(&mut y.a, &wire[..100], Time::ZERO);
        let into = y.c.places().ranges[0];
        let region = verbs::MrRange { mr: y.dst.id, offset: 8 + 84, len: 60_000 - 84 };
        assert_eq!(into == ReadTarget::Region(region), direct, "{into:?}");
        assert_eq!(y.bytes(y.dst, 8, 4) != [0; 4], direct);
        y.c.receive(&mut y.a, &wire[100..], Time::ZERO);
        assert_eq!(y.bytes(y.dst, 8, 60_000), x.bytes(x.src, 0, 60_000));
    }
}

#[test]
fn invalidated_keys_grant_no_access() {
    let (mut x, mut y) = pair(Config::default(), Config::default());
    let rkey = window_for(&mut y);
    y.recv(1, 0, 64);
    x.post(SendWr::new(1, SendOp::Write { rkey, offset: 0 }, x.source(0, 64)));
    x.post(SendWr::new(2, SendOp::SendInvalidate { rkey }, x.source(0, 1)));
    run(&mut x, &mut y, &mut Rng::from_u64(1), 1 << 20, Time::ZERO);
    assert_eq!(y.bytes(y.dst, 64, 64), x.bytes(x.src, 0, 64), "a window's offsets are its own");
    assert_eq!(y.completions()[0].invalidated, Some(rkey));
    // One that its owner takes back, in its turn.
    let rkey = window_for(&mut y);
    y.post(SendWr::new(9, SendOp::LocalInvalidate { rkey }, Vec::new()));
    y.send(1, Time::ZERO);
    assert_eq!(y.statuses(), [(9, Status::Success)]);
    x.post(SendWr::new(3, SendOp::Write { rkey, offset: 0 }, x.source(0, 64)));
    run(&mut x, &mut y, &mut Rng::from_u64(1), 1 << 20, Time::ZERO);
    let end = crate::End::Terminated(crate::ddp::tagged::STAG);
    assert_eq!(x.events.last(), Some(&Event::Closed { end, by_peer: true }));
}

#[test]
fn atomics_with_masks() {
    let (mut x, mut y) = pair(Config::default(), Config::default());
    y.a.write_mr(y.dst.id, 0, &0x00ff_00ff_0000_0001u64.to_ne_bytes()).unwrap();
    let target = |op| SendOp::Atomic { rkey: y.dst.rkey, offset: 0, op };
    // Two fields of 32 bits: no carry from one to the other.
    let add = AtomicOp::FetchAdd { add: 0x0000_0001_ffff_ffff, mask: 0x8000_0000_8000_0000 };
    let swap = AtomicOp::CompareSwap { compare: 0x0100, compare_mask: 0xff00, swap: 5, swap_mask: 0xff };
    let hit = AtomicOp::CompareSwap { compare: 0, compare_mask: 0xff, swap: 5, swap_mask: 0xff };
    for (i, op) in [add, swap, hit].into_iter().enumerate() {
        x.post(SendWr::new(i as u64, target(op), x.own(8 * i as u64, 8)));
    }
    run(&mut x, &mut y, &mut Rng::from_u64(1), 1 << 20, Time::ZERO);
    let word = |e: &End, mr, at| u64::from_ne_bytes(e.bytes(mr, at, 8).try_into().unwrap());
    let sum = 0x00ff_0100_0000_0000;
    assert_eq!([0, 8, 16].map(|at| word(&x, x.own, at)), [0x00ff_00ff_0000_0001, sum, sum]);
    assert_eq!(word(&y, y.dst, 0), sum | 5);
}
