//! Tests of reading several records at once into predicted places.

use super::errors::{SEND, fpdu_of, queue, terminate, ulpdu, write};
use super::*;
use crate::connection::receive::{DIRECT, PEEK};
use crate::ddp::{self, Target};
use crate::mpa::fpdu;
use crate::rdmap::Opcode;
use crate::rdmap::terminate as term;
use crate::{Placement, ReadTarget};
use proptest::prelude::{ProptestConfig, proptest};
use verbs::{Access, SendOp, WindowRange};

/// Two ends that announce writes, with long records.
pub(super) fn announcing(c: Config) -> (End, End) {
    let (mut x, mut y) = pair(c, c);
    for e in [&mut x, &mut y] {
        e.c.announce_writes();
        e.c.set_emss(65_532);
    }
    (x, y)
}

/// Regions in what the next read goes to.
fn regions(e: &mut End) -> usize {
    e.c.recheck(&mut e.a, Time::ZERO);
    e.c.places().ranges.iter().filter(|r| matches!(r, ReadTarget::Region(_))).count()
}

/// What an end has to send, all of it.
fn all(e: &mut End) -> Vec<u8> {
    while e.send(usize::MAX, Time::ZERO) > 0 {}
    e.wire.drain(..).collect()
}

#[test]
fn long_write_is_read_many_records_at_a_time() {
    for crc in [false, true] {
        let placement = Placement::Early;
        let (mut x, mut y) = announcing(Config { crc, placement, ..Config::default() });
        let op = SendOp::Write { rkey: y.dst.rkey, offset: 100 };
        x.post(SendWr::new(1, op, x.source(0, 400_000)));
        let wire = all(&mut x);
        // The announcement and one record, and the front of the next: its rest and what is behind it.
        y.c.receive(&mut y.a, &wire[..70_000], Time::ZERO);
        assert_eq!(regions(&mut y), 6, "crc {crc}");
        y.c.receive(&mut y.a, &wire[70_000..], Time::ZERO);
        assert_eq!(regions(&mut y), 0, "all of it came");
        assert_eq!(y.bytes(y.dst, 100, 400_000), x.bytes(x.src, 0, 400_000));
        assert_eq!(y.bytes(y.dst, 0, 100), [0; 100]);
        assert_eq!(y.bytes(y.dst, 400_100, 100_000), vec![0; 100_000]);
        // Seven records, each counted once, however it was taken.
        let stats = y.a.stats(y.qp).expect("a queue pair");
        assert_eq!((stats.segments_in, stats.bytes_in), (7, 400_000), "crc {crc}");
    }
}

#[test]
fn empty_write_announces_nothing() {
    let (mut x, mut y) = announcing(Config::default());
    let op = SendOp::Write { rkey: y.dst.rkey, offset: 300_000 };
    x.post(SendWr::new(1, op, x.source(0, 0)));
    let op = SendOp::Write { rkey: y.dst.rkey, offset: 0 };
    x.post(SendWr::new(2, op, x.source(0, 60_000)));
    x.post(SendWr::new(3, SendOp::Write { rkey: y.dst.rkey, offset: 60_000 }, x.source(60_000, 10)));
    let wire = all(&mut x);
    y.c.receive(&mut y.a, &wire[..60_050], Time::ZERO);
    assert_eq!(regions(&mut y), 0);
    y.c.receive(&mut y.a, &wire[60_050..], Time::ZERO);
    assert_eq!(y.bytes(y.dst, 0, 60_010), x.bytes(x.src, 0, 60_010));
    assert_eq!(y.bytes(y.dst, 60_010, 300_000), vec![0; 300_000]);
}

/// An end that was told of a write of 300,000 bytes and has its first 60,000.
fn told(crc: bool, placement: Placement) -> End {
    let (_, mut y) = announcing(Config { crc, placement, ..Config::default() });
    y.recv(5, 0, 9_000);
    let part = Target::Tagged { stag: y.dst.rkey, to: 0 };
    let first = ulpdu(Opcode::Write.control(), false, part, &[1; 60_000]);
    y.c.receive(&mut y.a, &fpdu_of(&write(y.dst.rkey, 300_000, &[])), Time::ZERO);
    y.c.receive(&mut y.a, &fpdu_of(&first), Time::ZERO);
    assert_eq!(regions(&mut y), if crc && placement == Placement::Verified { 0 } else { 4 });
    y
}

/// The write goes on with this much.
fn more(y: &End, to: u64, len: usize) -> Vec<u8> {
    let part = Target::Tagged { stag: y.dst.rkey, to };
    fpdu_of(&ulpdu(Opcode::Write.control(), false, part, &vec![2; len]))
}

#[test]
fn other_records_than_announced_are_processed_normally() {
    for (crc, placement) in
        [(false, Placement::Verified), (true, Placement::Verified), (true, Placement::Early)]
    {
        let mut y = told(crc, placement);
        // A shorter record than expected, a longer one, another message, and the write goes on somewhere else.
        let elsewhere = fpdu_of(&write(y.dst.rkey, 400_000, &[3; 50_000]));
        let parts = [
            more(&y, 60_000, 5_000),
            more(&y, 65_000, 63_000),
            fpdu_of(&queue(SEND, 0, 1, 0, &[4; 9_000])),
            elsewhere,
            more(&y, 128_000, 60_000),
        ];
        let bytes: Vec<u8> = parts.concat();
        y.c.receive(&mut y.a, &bytes, Time::ZERO);
        y.collect_events();
        assert_eq!(y.bytes(y.dst, 60_000, 128_000), [2; 128_000]);
        assert_eq!(y.bytes(y.dst, 400_000, 50_000), [3; 50_000]);
        assert_eq!((y.bytes(y.own, 0, 9_000), y.statuses()), (vec![4; 9_000], vec![(5, Status::Success)]));
        // Nothing lies where neither the peer nor its announcement has said so.
        assert_eq!(y.bytes(y.dst, 300_000, 100_000), vec![0; 100_000]);
        assert_eq!(y.bytes(y.own, 9_000, 50_000), vec![0; 50_000]);
        assert!(!y.c.is_closed());
    }
}

#[test]
fn corrupted_announced_write_closes_the_connection_only() {
    // In the length, in the key, in the offset, in the payload.
    for at in [0, 7, 10, 30_000] {
        let mut y = told(true, Placement::Early);
        let mut bytes = more(&y, 60_000, 60_000);
        bytes[at] ^= 0x11;
        bytes.extend(more(&y, 120_000, 60_000));
        assert_eq!(terminate(&mut y, &bytes).expect("it says why").0, term::CRC, "byte {at}");
        assert_eq!(y.bytes(y.dst, 300_000, 200_000), vec![0; 200_000]);
        assert_eq!(y.statuses(), [(5, Status::FlushError)]);
    }
}

#[test]
fn unchecked_bytes_are_invisible_unless_early_placement_is_enabled() {
    for (placement, early) in [(Placement::Verified, false), (Placement::Early, true)] {
        // In the length, the flags, the key, the offset, the payload, the CRC.
        for at in [0, 2, 7, 10, 30_000, 60_017] {
            // However it arrives.
            for piece in [7_000, 40_000, 60_019, 120_040] {
                let mut y = told(true, placement);
                let mut bytes = more(&y, 60_000, 60_000);
                bytes[at] ^= 0x11;
                bytes.extend(more(&y, 120_000, 60_000));
                for part in bytes.chunks(piece) {
                    y.c.receive(&mut y.a, part, Time::ZERO);
                    assert!(early || y.bytes(y.dst, 60_000, 400_000) == [0; 400_000], "byte {at}, {piece}");
                }
                assert_eq!(terminate(&mut y, &[]).expect("it says why").0, term::CRC, "byte {at}, {piece}");
            }
        }
        // Of a record whose CRC has not come, too.
        let mut y = told(true, placement);
        let bytes = more(&y, 60_000, 60_000);
        y.c.receive(&mut y.a, &bytes[..bytes.len() - 1], Time::ZERO);
        let there = y.bytes(y.dst, 60_000, 60_000);
        assert_eq!(there, [2 * u8::from(early); 60_000]);
        y.c.receive(&mut y.a, &bytes[bytes.len() - 1..], Time::ZERO);
        assert_eq!(y.bytes(y.dst, 60_000, 60_000), [2; 60_000]);
    }
}

#[test]
fn invalidated_key_rejects_announced_data() {
    let (_, mut y) = announcing(Config { crc: false, ..Config::default() });
    let part = Target::Tagged { stag: y.dst.rkey, to: 0 };
    y.c.receive(&mut y.a, &fpdu_of(&write(y.dst.rkey, 300_000, &[])), Time::ZERO);
    y.c.receive(&mut y.a, &fpdu_of(&ulpdu(Opcode::Write.control(), false, part, &[1; 60_000])), Time::ZERO);
    y.a.dereg_mr(y.dst.id).expect("nobody holds it");
    assert_eq!(regions(&mut y), 0);
}

#[test]
fn long_write_does_not_time_out_while_records_arrive() {
    let c = Config { crc: true, placement: Placement::Early, ..Config::default() };
    let (mut x, mut y) = announcing(c);
    x.post(SendWr::new(1, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, x.source(0, 500_000)));
    let wire = all(&mut x);
    // Each piece ends in the midst of a payload: no record is ever whole when there is nothing more.
    let mut now = Time::ZERO;
    for (i, piece) in wire.chunks(64_790).enumerate() {
        y.c.receive(&mut y.a, piece, now);
        now += c.record_timeout - base::Span::from_millis(1);
        assert!(y.c.poll_timeout().is_none_or(|t| t > now), "piece {i}");
        y.c.on_timeout(&mut y.a, now);
    }
    assert!(!y.c.is_closed());
    assert_eq!(y.bytes(y.dst, 0, 500_000), x.bytes(x.src, 0, 500_000));
}

#[test]
fn write_with_another_key_obeys_its_own_bounds() {
    for crc in [false, true] {
        let (_, mut y) = announcing(Config { crc, placement: Placement::Early, ..Config::default() });
        let range = WindowRange { mr: y.dst.id, offset: 0, len: 130_000, access: Access::REMOTE_WRITE };
        let mw = y.a.alloc_mw(y.pd).expect("a window");
        let key = y.a.bind_mw(y.qp, mw, range).expect("bound");
        let part = |to| {
            let target = Target::Tagged { stag: key, to };
            fpdu_of(&ulpdu(Opcode::Write.control(), false, target, &[1; 60_000]))
        };
        let announced = fpdu_of(&write(y.dst.rkey, 300_000, &[]));
        let bytes = [announced, part(0), part(60_000), part(120_000)].concat();
        let (cause, _) = terminate(&mut y, &bytes).expect("it says why");
        assert_eq!(cause, ddp::tagged::BOUNDS);
        assert_eq!(y.bytes(y.dst, 0, 120_000), [1; 120_000]);
        assert_eq!(y.bytes(y.dst, 130_000, 50_000), [0; 50_000]);
    }
}

#[test]
fn next_write_length_is_predicted_from_recent_writes() {
    let (_, mut y) = announcing(Config { crc: false, ..Config::default() });
    let next = |y: &mut End| {
        y.c.recheck(&mut y.a, Time::ZERO);
        let [ReadTarget::Scratch { len, .. }] = y.c.places().ranges[..] else { panic!("one range") };
        len
    };
    let rkey = y.dst.rkey;
    let comes = |y: &mut End, len: usize| {
        y.c.receive(&mut y.a, &fpdu_of(&write(rkey, 0, &vec![5; len])), Time::ZERO);
    };
    comes(&mut y, 60_000);
    // The end of the write, straight to its place; the announcement of the next.
    let end = fpdu_of(&write(rkey, 60_000, &[5; 12_000]));
    y.c.receive(&mut y.a, &end[..100], Time::ZERO);
    y.c.receive(&mut y.a, &end[100..], Time::ZERO);
    assert_eq!(next(&mut y), PEEK);
    comes(&mut y, 0);
    assert_eq!(next(&mut y), PEEK);
    comes(&mut y, 64);
    assert!(next(&mut y) > 3 * 65_536, "short ones are read by many");
}

#[test]
fn receive_without_data_is_untouched() {
    let (_, mut y) = announcing(Config::default());
    y.c.receive(&mut y.a, &fpdu_of(&write(0, 0, &[])), Time::ZERO);
    // Both for the same memory.
    y.recv(1, 0, 9_000);
    y.recv(2, 0, 9_000);
    y.c.receive(&mut y.a, &fpdu_of(&queue(SEND, 0, 1, 0, &[4; 9_000])), Time::ZERO);
    assert_eq!(regions(&mut y), 0);
    y.c.receive(&mut y.a, &fpdu_of(&write(y.dst.rkey, 0, &[5; 8_000])), Time::ZERO);
    assert_eq!((y.bytes(y.own, 0, 9_000), y.statuses()), (vec![4; 9_000], vec![(1, Status::Success)]));
    assert_eq!(y.bytes(y.dst, 0, 8_000), [5; 8_000]);
}

/// An end that has one message of 9,000 bytes, and since then a receive for the next.
fn answered(crc: bool) -> End {
    let (_, mut y) = announcing(Config { crc, ..Config::default() });
    y.recv(1, 0, 9_000);
    y.c.receive(&mut y.a, &fpdu_of(&queue(SEND, 0, 1, 0, &[4; 9_000])), Time::ZERO);
    assert_eq!(regions(&mut y), 0);
    y.recv(2, 0, 9_000);
    assert_eq!(regions(&mut y), 1);
    y
}

#[test]
fn next_message_is_read_directly_into_the_posted_receive() {
    for crc in [false, true] {
        // However it arrives: the last piece is all of it.
        for piece in [1, 20, 4_000, 9_020, 20_000] {
            let mut y = answered(crc);
            for part in fpdu_of(&queue(SEND, 0, 2, 0, &[5; 9_000])).chunks(piece) {
                y.c.receive(&mut y.a, part, Time::ZERO);
            }
            assert_eq!(y.bytes(y.own, 0, 9_001), [[5; 9_000].as_slice(), &[0]].concat());
            assert_eq!(y.statuses(), [(1, Status::Success), (2, Status::Success)]);
            assert_eq!(regions(&mut y), 0, "no receive is posted");
        }
    }
}

#[test]
fn other_records_than_the_next_message_are_processed_normally() {
    for crc in [false, true] {
        let mut y = answered(crc);
        y.recv(3, 10_000, 9_000);
        let parts = [
            fpdu_of(&write(y.dst.rkey, 0, &[6; 8_000])),
            fpdu_of(&queue(SEND, 0, 2, 0, &[5; 10])),
            fpdu_of(&queue(SEND, 0, 3, 0, &[7; 9_000])),
        ];
        y.c.receive(&mut y.a, &parts.concat(), Time::ZERO);
        assert_eq!((y.bytes(y.dst, 0, 8_000), y.bytes(y.own, 0, 10)), (vec![6; 8_000], vec![5; 10]));
        assert_eq!(y.bytes(y.own, 10_000, 9_001), [[7; 9_000].as_slice(), &[0]].concat());
        assert_eq!(y.statuses(), [1, 2, 3].map(|n| (n, Status::Success)));
    }
}

#[test]
fn corrupted_message_does_not_complete_its_receive() {
    // In the length, the flags, the number, the payload, the CRC.
    for at in [0, 2, 15, 5_000, 9_021] {
        let mut y = answered(true);
        let mut bytes = fpdu_of(&queue(SEND, 0, 2, 0, &[5; 9_000]));
        bytes[at] ^= 0x11;
        bytes.extend(fpdu_of(&queue(SEND, 0, 3, 0, &[7; 60_000])));
        assert_eq!(terminate(&mut y, &bytes).expect("it says why").0, term::CRC, "byte {at}");
        let [(1, Status::Success), (2, status)] = y.statuses()[..] else { panic!("two completions") };
        assert_ne!(status, Status::Success, "byte {at}");
        assert_eq!(y.bytes(y.own, 9_000, 60_000), vec![0; 60_000]);
    }
}

#[test]
fn read_ahead_size_depends_on_the_last_payload() {
    for (len, long) in [(8_192, false), (30_000, false), (40_000, true), (60_000, true)] {
        let (_, mut y) = announcing(Config { crc: false, ..Config::default() });
        let bytes = fpdu_of(&write(y.dst.rkey, 0, &vec![5; len]));
        y.c.receive(&mut y.a, &bytes[..100], Time::ZERO);
        y.c.recheck(&mut y.a, Time::ZERO);
        let [ReadTarget::Region(rest), ReadTarget::Scratch { len: behind, .. }] = y.c.places().ranges[..]
        else {
            panic!("{len}: the rest of a payload and what is behind it");
        };
        assert_eq!(rest.len as usize, len - (100 - fpdu::LENGTH - ddp::TAGGED));
        assert_eq!(behind == PEEK, long, "{len}: {behind}");
        assert!(long || behind > 3 * 65_536, "{len}: {behind}");
        // So is what comes when nothing is under way.
        y.c.receive(&mut y.a, &bytes[100..], Time::ZERO);
        y.c.recheck(&mut y.a, Time::ZERO);
        let [ReadTarget::Scratch { len: next, .. }] = y.c.places().ranges[..] else {
            panic!("{len}: one range")
        };
        assert_eq!(next == PEEK, long, "{len}: {next}");
    }
}

/// What is said after so many bytes of `bytes`, of which the last are the end of a record.
fn lacks(y: &mut End, bytes: &[u8], missing: usize) -> bool {
    y.c.receive(&mut y.a, &bytes[..bytes.len() - missing], Time::ZERO);
    y.c.lacks_little()
}

#[test]
fn nearly_complete_record_is_polled_again() {
    // Into scratch memory, and straight to its place: of the latter the trailer may be all that is missing.
    for crc in [true, false] {
        for (missing, little) in
            [(30_000, false), (DIRECT, false), (DIRECT - 1, true), (5, true), (4, true), (1, true)]
        {
            let (_, mut y) = announcing(Config { crc, ..Config::default() });
            assert!(!y.c.lacks_little(), "nothing has come");
            // The first tells that long ones come, so that the next is read by its header.
            y.c.receive(&mut y.a, &fpdu_of(&write(y.dst.rkey, 0, &[5; 40_000])), Time::ZERO);
            assert!(!y.c.lacks_little(), "all of it came");
            let bytes = fpdu_of(&write(y.dst.rkey, 0, &[6; 60_000]));
            assert_eq!(lacks(&mut y, &bytes, missing), little, "crc {crc}, {missing} bytes");
            assert_eq!(y.c.rx.arriving().is_some(), !crc);
            y.c.receive(&mut y.a, &bytes[bytes.len() - missing..], Time::ZERO);
            assert!(!y.c.lacks_little(), "all of it came");
            assert_eq!(y.bytes(y.dst, 0, 60_000), [6; 60_000]);
        }
    }
}

#[test]
fn incomplete_length_held_record_or_markers_are_not_polled_again() {
    let (_, mut y) = announcing(Config::default());
    assert!(!lacks(&mut y, &[0, 42], 1), "its length is not known");
    let (_, mut y) =
        pair(Config::default(), Config { receive_wait: base::Span::from_secs(1), ..Config::default() });
    y.c.receive(&mut y.a, &fpdu_of(&write(0, 0, &[])), Time::ZERO);
    let bytes =
        [fpdu_of(&queue(SEND, 0, 1, 0, &[4; 900])), fpdu_of(&queue(SEND, 0, 2, 0, &[4; 900]))].concat();
    assert!(!lacks(&mut y, &bytes, 1) && y.c.is_held(), "what is behind it is not read");
    // Markers have another length than the record says.
    let (mut x, mut y) =
        pair(Config { markers: true, ..Config::default() }, Config { markers: true, ..Config::default() });
    x.post(SendWr::new(1, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, x.source(0, 1_000)));
    let bytes = all(&mut x);
    assert!(!lacks(&mut y, &bytes, 20) && y.c.terms().markers_in);
}

/// Messages of both kinds of length one after the other, reads behind each other, and long writes.
fn stream(seed: u64) {
    let rng = &mut Rng::from_u64(seed);
    let (crc, usual) = (rng.below(2) == 1, 5_000 + rng.below(15_000));
    let placement = if rng.below(2) == 1 { Placement::Early } else { Placement::Verified };
    let (mut x, mut y) = announcing(Config { crc, placement, ..Config::default() });
    let emss = [2_000, 9_000, 65_532][rng.below(3) as usize];
    x.c.set_emss(emss);
    y.c.set_emss(emss);
    let mut lens = Vec::new();
    for i in 0..10u64 {
        y.recv(i, i * 20_000, usual);
        let len = if rng.below(3) > 0 { usual } else { rng.below(usual) };
        x.post(SendWr::new(i, SendOp::Send, x.source(i * 20_000, len)));
        lens.push(len);
    }
    let written = 100_000 + rng.below(100_000);
    x.post(SendWr::new(10, SendOp::Write { rkey: y.dst.rkey, offset: 7 }, x.source(0, written)));
    for i in 0..3u64 {
        let op = SendOp::Read { rkey: y.src.rkey, offset: i };
        x.post(SendWr::new(11 + i, op, x.own(i * 100_000, 90_000)));
    }
    let piece = [100, 20_000, 300_000][rng.below(3) as usize];
    run(&mut x, &mut y, rng, piece, Time::ZERO);
    let got = y.completions();
    assert_eq!(got.len(), lens.len());
    for (i, (wc, len)) in (0..).zip(got.iter().zip(&lens)) {
        assert_eq!((wc.status, wc.byte_len), (Status::Success, *len));
        assert_eq!(y.bytes(y.own, i * 20_000, *len), x.bytes(x.src, i * 20_000, *len));
        // Behind its receive nothing changes.
        assert_eq!(y.bytes(y.own, i * 20_000 + usual, 20_000 - usual), vec![0; 20_000 - usual as usize]);
    }
    assert_eq!(y.bytes(y.dst, 7, written), x.bytes(x.src, 0, written));
    assert_eq!(y.bytes(y.dst, 7 + written, 100_000), vec![0; 100_000]);
    for i in 0..3 {
        assert_eq!(x.bytes(x.own, i * 100_000, 90_000), y.bytes(y.src, i, 90_000));
        assert_eq!(x.bytes(x.own, i * 100_000 + 90_000, 10_000), vec![0; 10_000]);
    }
    assert!(x.statuses().iter().all(|(_, s)| *s == Status::Success));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn all_kinds_of_streams_arrive_despite_wrong_predictions(seed: u64) {
        stream(seed);
    }
}
