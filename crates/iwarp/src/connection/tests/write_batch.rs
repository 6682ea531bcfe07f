//! Tests that write records processed as a batch equal single ones.

use super::errors::{SEND_INVALIDATE, fpdu_of, terminate, ulpdu, write};
use super::operations::window_for;
use super::read_ahead::announcing;
use super::*;
use crate::ddp::{self, Target};
use crate::rdmap::Opcode;
use crate::{Cause, Placement, ReadTarget};
use proptest::prelude::*;
use verbs::Stats;

/// Bytes of the window, which begins at byte 64 of the region.
const WINDOW: u64 = 64;

#[derive(Clone, Debug)]
struct Sent {
    /// 0 to 7: the region, 8 to 13: the window, 14: no key; 15: the window's is made void.
    key: u8,
    /// Goes on where the last one ended, or there.
    jump: Option<u64>,
    len: usize,
    last: bool,
    damaged: bool,
}

/// Records as the peer sends them. Reserved bits are not looked at (RFC 5040, section 4.1), but whoever sets them is not known at a glance.
fn stream(y: &End, window: u32, sent: &[Sent], reserved: u8) -> Vec<u8> {
    let (mut bytes, mut at) = (Vec::new(), 0);
    for (i, s) in sent.iter().enumerate() {
        let (stag, room) = match s.key {
            0..8 => (y.dst.rkey, SIZE as u64),
            8..14 => (window, WINDOW),
            _ => (window ^ y.dst.rkey ^ 1, SIZE as u64),
        };
        at = s.jump.map_or(at, |jump| room.saturating_sub(jump));
        let contents = if s.key == 15 {
            let target = Target::Untagged { invalidate: window, qn: ddp::QN_SEND, msn: 1, mo: 0 };
            ulpdu(SEND_INVALIDATE.control() | reserved, true, target, &[9; 5])
        } else {
            let to = Target::Tagged { stag, to: at };
            let payload: Vec<u8> = (0..s.len).map(|n| (i * 31 + n) as u8 | 1).collect();
            at += s.len as u64;
            ulpdu(Opcode::Write.control() | reserved, s.last, to, &payload)
        };
        let mut r = fpdu_of(&contents);
        let end = r.len() - 1;
        r[end] ^= u8::from(s.damaged);
        bytes.extend(r);
    }
    bytes
}

/// Of what came of records, all that can be seen beside the region.
#[derive(PartialEq, Debug)]
struct Outcome {
    cause: Option<Cause>,
    statuses: Vec<(u64, Status)>,
    stats: Stats,
    records: u64,
    /// How much of what comes next goes where; `None` is scratch memory.
    next: Vec<(Option<u64>, u64)>,
}

fn outcome(crc: bool, early: bool, announced: u64, sent: &[Sent], reserved: u8) -> (Outcome, Vec<u8>) {
    let placement = if early { Placement::Early } else { Placement::Verified };
    let (_, mut y) = announcing(Config { crc, placement, ..Config::default() });
    let window = window_for(&mut y);
    y.recv(5, 0, 64);
    y.c.receive(&mut y.a, &fpdu_of(&write(y.dst.rkey, announced, &[])), Time::ZERO);
    let bytes = stream(&y, window, sent, reserved);
    let cause = terminate(&mut y, &bytes).map(|(cause, _)| cause);
    let memory = y.bytes(y.dst, 0, SIZE as u64);
    y.c.recheck(&mut y.a, Time::ZERO);
    let to = |range: &ReadTarget| match *range {
        ReadTarget::Scratch { len, .. } => (None, len as u64),
        ReadTarget::Region(p) => (Some(p.offset), p.len),
    };
    let outcome = Outcome {
        cause,
        statuses: y.statuses(),
        stats: y.a.stats(y.qp).unwrap(),
        records: y.c.taken(),
        next: if cause.is_some() { Vec::new() } else { y.c.places().ranges.iter().map(to).collect() },
    };
    (outcome, memory)
}

prop_compose! {
    fn arbitrary()(
        key in prop_oneof![12 => 0..8_u8, 3 => 8..14_u8, 1 => 14..16_u8],
        jump in prop_oneof![6 => Just(None), 1 => (0..20_000_u64).prop_map(Some), 1 => (SIZE as u64 - 9..SIZE as u64 + 9).prop_map(Some)],
        len in prop_oneof![1 => 0..40_usize, 2 => 100..6_000_usize, 2 => 20_000..30_000_usize],
        last in prop::bool::weighted(0.2),
        damaged in prop::bool::weighted(0.03),
    ) -> Sent {
        Sent { key, jump, len, last, damaged }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn batched_write_records_equal_single_ones(
        crc: bool,
        early: bool,
        announced in 0..SIZE as u64 + 100,
        sent in prop::collection::vec(arbitrary(), 1..12),
    ) {
        let row = outcome(crc, early, announced, &sent, 0);
        let single = outcome(crc, early, announced, &sent, 0x10);
        prop_assert_eq!(row.0, single.0);
        prop_assert!(row.1 == single.1, "the region's contents");
    }
}

fn part(len: usize) -> Sent {
    Sent { key: 0, jump: None, len, last: false, damaged: false }
}

/// Nothing goes beyond the region, and what came before that is there.
#[test]
fn batch_ends_at_its_region() {
    let mut sent = vec![part(5_000); 4];
    sent[0].jump = Some(15_000);
    let (o, memory) = outcome(true, false, 0, &sent, 0);
    assert_eq!(o.cause, Some(ddp::tagged::BOUNDS));
    assert_eq!((o.stats.segments_in, o.stats.bytes_in), (3, 15_000));
    let (before, row) = memory.split_at(SIZE - 15_000);
    assert!(before.iter().all(|b| *b == 0) && row.iter().all(|b| *b != 0));
}

/// Nothing of a damaged record is placed (RFC 5044, section 6), nor of any behind it.
#[test]
fn batch_ends_before_corruption() {
    let mut sent = vec![part(5_000); 4];
    sent[2].damaged = true;
    let (o, memory) = outcome(true, false, 0, &sent, 0);
    assert_eq!(o.cause, Some(crate::rdmap::terminate::CRC));
    assert!(memory[..10_000].iter().all(|b| *b != 0) && memory[10_000..].iter().all(|b| *b == 0));
}
