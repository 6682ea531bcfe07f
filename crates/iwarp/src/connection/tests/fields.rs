//! Tests of every field of MPA, DDP and RDMAP: all of its values or those around its limits, truncated, oversized, at
//! the wrong time.

use super::errors::{SEND, SEND_INVALIDATE, fpdu_of, queue, server, terminate, ulpdu, write};
use super::*;
use crate::ddp::{self, Target, tagged, untagged};
use crate::mpa::frames::{ENHANCED, FrameError, HEADER, MAX_PRIVATE, NO_DEPTH};
use crate::mpa::{fpdu, markers};
use crate::rdmap::messages::{self, AtomicRequest, ReadRequest};
use crate::rdmap::terminate::{self as term, Cause};
use crate::rdmap::{Opcode, VERSION};
use crate::{End as Ending, Placement, Rtr};
use base::Span;
use verbs::{AtomicOp, SendOp, WindowRange};

const REQUEST: &[u8] = b"MPA ID Req Frame";
const REPLY: &[u8] = b"MPA ID Rep Frame";
/// Flags of start-up frames.
const M: u8 = 0x80;
const C: u8 = 0x40;
const R: u8 = 0x20;
const S: u8 = 0x10;

fn frame(key: &[u8], flags: u8, revision: u8, private: &[u8]) -> Vec<u8> {
    let len = (private.len() as u16).to_be_bytes();
    [key, &[flags, revision], &len, private].concat()
}

fn closed(e: &mut End) -> Option<Ending> {
    e.collect_events();
    match e.events.last() {
        Some(Event::Closed { end, .. }) => Some(*end),
        _ => None,
    }
}

/// An initiator that has sent its request, or a responder.
fn starting(initiator: bool, config: Config) -> End {
    if !initiator {
        return End::responder(2, config);
    }
    let mut e = End::initiator(1, config);
    e.send(usize::MAX, Time::ZERO);
    e.wire.clear();
    e
}

/// How an end takes these bytes as the frame that it waits for: not closed, or how.
fn takes(initiator: bool, bytes: &[u8]) -> Option<Ending> {
    let mut e = starting(initiator, Config::default());
    e.c.receive(&mut e.a, bytes, Time::ZERO);
    let end = closed(&mut e);
    if let Some(Ending::Frame(_) | Ending::Mismatch) = end {
        // RFC 5044, section 8, code 4: the connection MUST be closed at once.
        assert_eq!((e.send(usize::MAX, Time::ZERO), &e.actions[..]), (0, [StreamAction::Abort].as_slice()));
    }
    end
}

#[test]
fn startup_frame_key_is_checked() {
    for (initiator, key, other) in [(true, REPLY, REQUEST), (false, REQUEST, REPLY)] {
        let good = frame(key, C | S, 2, &[0, 1, 0, 1]);
        assert_eq!(takes(initiator, &good), None);
        for at in 0..16 {
            // The lowest bit of one byte is what the two keys differ in.
            for bit in [2, 0x20, 0x80] {
                let mut bad = good.clone();
                bad[at] ^= bit;
                assert_eq!(takes(initiator, &bad), Some(Ending::Frame(FrameError::Key)), "byte {at}");
                // As soon as it is seen.
                assert_eq!(takes(initiator, &bad[..=at]), Some(Ending::Frame(FrameError::Key)), "byte {at}");
            }
        }
        let same = frame(other, C | S, 2, &[0, 1, 0, 1]);
        assert_eq!(takes(initiator, &same), Some(Ending::Frame(FrameError::SameRole)));
    }
}

#[test]
fn startup_frame_revision_is_checked() {
    for revision in 0..=255 {
        let wrong = Some(Ending::Frame(FrameError::Revision(revision)));
        let request = takes(false, &frame(REQUEST, C, revision, &[]));
        assert_eq!(request, if matches!(revision, 1 | 2) { None } else { wrong }, "{revision}");
        // A reply of another revision than the request's, or without bit S, is none.
        let reply = takes(true, &frame(REPLY, C, revision, &[]));
        assert_eq!(
            reply,
            if matches!(revision, 1 | 2) { Some(Ending::Mismatch) } else { wrong },
            "{revision}"
        );
    }
    let s_too_old = Some(Ending::Frame(FrameError::EnhancedTooOld));
    assert_eq!(takes(false, &frame(REQUEST, S, 1, &[0; 4])), s_too_old);
    assert_eq!(takes(true, &frame(REPLY, S, 1, &[0; 4])), s_too_old);
}

#[test]
fn startup_frame_flags_are_checked() {
    for flags in 0..=255u8 {
        let (private, revision) = if flags & S != 0 { ([0, 1, 0, 1].as_slice(), 2) } else { (&[][..], 1) };
        let config = Config { enhanced: revision == 2, crc: false, ..Config::default() };
        for initiator in [false, true] {
            let key = if initiator { REPLY } else { REQUEST };
            let mut e = starting(initiator, config);
            e.c.receive(&mut e.a, &frame(key, flags, revision, private), Time::ZERO);
            // R says something in replies only; reserved bits never do (RFC 5044, section 7.1.1).
            let rejected = initiator && flags & R != 0;
            assert_eq!(closed(&mut e), rejected.then_some(Ending::Rejected), "{flags:#x}");
            if !rejected {
                e.answer(Time::ZERO);
                let t = e.c.terms();
                assert_eq!((t.markers_out, t.markers_in, t.crc), (flags & M != 0, false, flags & C != 0));
            }
        }
    }
}

#[test]
fn private_data_length_is_checked() {
    for s in [0, S] {
        for len in (0..20).chain(500..530).chain([1 << 10, 1 << 15, u16::MAX]) {
            let bytes = [REQUEST, &[C | s, 2], &len.to_be_bytes(), &vec![0; usize::from(len)]].concat();
            let least = if s == 0 { 0 } else { ENHANCED };
            let fits = (least..=MAX_PRIVATE).contains(&usize::from(len));
            let wrong = Some(Ending::Frame(FrameError::PrivateData(len)));
            assert_eq!(takes(false, &bytes), if fits { None } else { wrong }, "{len}");
            // What is too long is not waited for.
            assert_eq!(takes(false, &bytes[..HEADER]), if fits { None } else { wrong }, "{len}");
        }
    }
}

#[test]
fn truncated_startup_frames_are_rejected() {
    let limit = Config::default().startup_timeout;
    for (initiator, key) in [(true, REPLY), (false, REQUEST)] {
        let whole = frame(key, C | S, 2, &[0, 1, 0, 1, 9, 9]);
        for n in 0..whole.len() {
            let mut e = starting(initiator, Config::default());
            e.c.receive(&mut e.a, &whole[..n], Time::ZERO);
            e.c.on_fin(&mut e.a, Time::ZERO);
            assert_eq!(closed(&mut e), Some(Ending::Lost), "{n}");
            // A byte a second does not hold it open.
            let mut e = starting(initiator, Config::default());
            let mut now = Time::ZERO;
            for b in &whole[..n] {
                e.c.receive(&mut e.a, &[*b], now);
                now = (now + Span::from_secs(1)).min(Time::ZERO + limit);
                e.c.on_timeout(&mut e.a, now);
            }
            assert_eq!(closed(&mut e).is_some(), now == Time::ZERO + limit, "{n}");
            e.c.on_timeout(&mut e.a, Time::ZERO + limit);
            assert_eq!(closed(&mut e), Some(Ending::TimedOut), "{n}");
        }
    }
}

#[test]
fn any_depth_and_first_message_is_handled() {
    let depths = [0, 1, 16, 17, NO_DEPTH - 1, NO_DEPTH];
    for (ird, ord) in depths.into_iter().flat_map(|i| depths.map(|o| (i, o))) {
        for bits in 0..16u16 {
            let a = (bits & 3) << 14 | ird;
            let b = (bits >> 2) << 14 | ord;
            let private = [a.to_be_bytes(), b.to_be_bytes()].concat();
            let mut y = starting(false, Config::default());
            y.c.receive(&mut y.a, &frame(REQUEST, C | S, 2, &private), Time::ZERO);
            y.collect_events();
            y.answer(Time::ZERO);
            let t = *y.c.terms();
            let most = if ird == NO_DEPTH { 16 } else { ird.min(16) };
            assert_eq!((t.ird, t.ord, closed(&mut y)), (16, most, None), "{ird} {ord} {bits}");
            assert_eq!(t.expected.is_some(), bits & 2 != 0, "A, the higher of the two");
            // As a reply, to a request without the peer-to-peer model.
            let mut x = starting(true, Config::default());
            x.c.receive(&mut x.a, &frame(REPLY, C | S, 2, &private), Time::ZERO);
            let wanted = match (ord > 16 && ord != NO_DEPTH, bits & 2 != 0) {
                (true, _) => Some(Ending::Terminated(term::INSUFFICIENT_IRD)),
                (false, true) => Some(Ending::Mismatch),
                _ => None,
            };
            x.send(usize::MAX, Time::ZERO);
            x.c.on_fin(&mut x.a, Time::ZERO);
            let ended = closed(&mut x).filter(|e| *e != Ending::Closed);
            assert_eq!(ended, wanted, "{ird} {ord} {bits}");
        }
    }
}

/// What RFC 5041, section 7.2, RFC 5040, section 4.8, and RFC 7306 say to a record of eight zeros for STag 0, offset 0, or
/// message 1 of a queue, for a receiver that has a receive. `None`: it is taken.
fn wanted(version: u8, opcode: u8, queue: Option<u32>, last: bool) -> Option<Cause> {
    if queue.is_some_and(|q| q > 3) {
        return Some(untagged::QN);
    }
    if version != VERSION {
        return Some(term::VERSION);
    }
    match (opcode, queue) {
        (0, None) => Some(tagged::STAG),
        (3 | 5, Some(0)) => None,
        // The key that is to be made void: there is none.
        (4 | 6, Some(0)) => last.then_some(term::STAG),
        // In pieces, too short. What is long enough for a Terminate message ends the connection.
        (1 | 10, Some(1)) => Some(term::UNSPECIFIED),
        (11, Some(3)) => Some(term::UNSPECIFIED),
        (7, Some(2)) | (8 | 9, Some(0)) => (!last).then_some(term::UNSPECIFIED),
        _ => Some(term::OPCODE),
    }
}

#[test]
fn every_opcode_queue_and_version_is_checked() {
    for opcode in 0..16 {
        for version in 0..4 {
            for queue in [None, Some(0), Some(1), Some(2), Some(3), Some(4), Some(u32::MAX)] {
                for last in [true, false] {
                    let target = match queue {
                        None => Target::Tagged { stag: 0, to: 0 },
                        Some(qn) => Target::Untagged { invalidate: 0, qn, msn: 1, mo: 0 },
                    };
                    let bytes = fpdu_of(&ulpdu(version << 6 | opcode, last, target, &[0; 8]));
                    let mut y = server();
                    let said = match wanted(version, opcode, queue, last) {
                        Some(_) => terminate(&mut y, &bytes).map(|s| s.0),
                        None => {
                            y.c.receive(&mut y.a, &bytes, Time::ZERO);
                            assert_eq!(y.send(usize::MAX, Time::ZERO), 0);
                            None
                        }
                    };
                    let name = format!("opcode {opcode}, version {version}, queue {queue:?}, last {last}");
                    assert_eq!(said, wanted(version, opcode, queue, last), "{name}");
                    assert_eq!(y.bytes(y.dst, 0, 64), [0; 64], "{name}");
                }
            }
        }
    }
}

#[test]
fn message_numbers_and_offsets_are_checked() {
    let read = vec![0; messages::READ_REQUEST];
    let cases = [
        (SEND, 0, vec![1; 8]),
        (Opcode::Immediate { solicited: false }, 0, vec![1; 8]),
        (Opcode::ReadRequest, 1, read),
        (Opcode::Terminate, 2, vec![0; 4]),
    ];
    for (op, qn, payload) in cases {
        for msn in [0, 2, 3, 1 << 31, u32::MAX] {
            let mut y = server();
            let said = terminate(&mut y, &fpdu_of(&queue(op, qn, msn, 0, &payload)));
            assert_eq!(said.map(|s| s.0), Some(untagged::MSN), "{op:?} {msn}");
        }
        for mo in [1, 8, 1 << 31, u32::MAX] {
            let mut y = server();
            let said = terminate(&mut y, &fpdu_of(&queue(op, qn, 1, mo, &payload)));
            assert_eq!(said.map(|s| s.0), Some(untagged::MO), "{op:?} {mo}");
            assert_eq!(y.bytes(y.own, 0, 256), [0; 256]);
        }
    }
    // They wrap: 2^32 - 1 is followed by 0 (RFC 5041, section 4.3).
    let mut y = server();
    y.recv(6, 64, 64);
    y.c.rx.msn[0] = u32::MAX;
    for msn in [u32::MAX, 0] {
        y.c.receive(&mut y.a, &fpdu_of(&queue(SEND, 0, msn, 0, &[1; 8])), Time::ZERO);
    }
    assert_eq!(y.statuses(), [(5, Status::Success), (6, Status::Success)]);
}

#[test]
fn message_lengths_are_checked() {
    let cases = [
        (Opcode::ReadRequest, 1, messages::READ_REQUEST, untagged::TOO_LONG),
        (Opcode::AtomicRequest, 1, messages::ATOMIC_REQUEST, untagged::TOO_LONG),
        (Opcode::AtomicResponse, 3, messages::ATOMIC_RESPONSE, untagged::TOO_LONG),
        // Exactly eight (RFC 7306, section 6.3), for which there is no code.
        (Opcode::Immediate { solicited: true }, 0, messages::IMMEDIATE, term::UNSPECIFIED),
    ];
    for (op, qn, right, too_long) in cases {
        for len in (0..80).chain([1000, 30_000, 65_517]).filter(|n| *n != right) {
            let mut y = server();
            let said = terminate(&mut y, &fpdu_of(&queue(op, qn, 1, 0, &vec![0; len])));
            let want = if len > right { too_long } else { term::UNSPECIFIED };
            assert_eq!(said.map(|s| s.0), Some(want), "{op:?} of {len} bytes");
        }
    }
    for len in 0..80 {
        for flags in [0, 0x80, 0xc0, 0xe0, 0xff] {
            let mut message = vec![0x11; len];
            message.iter_mut().skip(2).take(1).for_each(|b| *b = flags);
            let mut y = server();
            y.c.receive(&mut y.a, &fpdu_of(&queue(Opcode::Terminate, 2, 1, 0, &message)), Time::ZERO);
            y.send(usize::MAX, Time::ZERO);
            y.c.on_fin(&mut y.a, Time::ZERO);
            let want = term::parse(&message).unwrap_or(term::UNSPECIFIED);
            assert_eq!(closed(&mut y), Some(Ending::Terminated(want)), "{len} {flags:#x}");
        }
    }
    // A record of any announced length, from nothing to the longest: a write to no key.
    for len in [0, 1, 2, 13, 14, 15, 64_768, 64_769, 65_535] {
        let mut bytes = write(7, 0, &vec![1; len.max(14) - 14]);
        bytes.truncate(len);
        let want = match len {
            0..14 => Some(ddp::CATASTROPHIC),
            14 => None,
            _ => Some(tagged::STAG),
        };
        let mut y = server();
        assert_eq!(terminate_or_accept(&mut y, &fpdu_of(&bytes), want), want, "{len}");
    }
}

fn terminate_or_accept(y: &mut End, bytes: &[u8], want: Option<Cause>) -> Option<Cause> {
    if want.is_some() {
        return terminate(y, bytes).map(|s| s.0);
    }
    y.c.receive(&mut y.a, bytes, Time::ZERO);
    assert_eq!(y.send(usize::MAX, Time::ZERO), 0);
    None
}

/// A read's request, an atomic operation's, and a write, of `len` bytes at a place.
fn accesses(stag: u32, to: u64, len: u32) -> [Vec<u8>; 3] {
    let mut read = Vec::new();
    ReadRequest { sink_stag: 1, sink_to: 0, len, source_stag: stag, source_to: to }.put(&mut read);
    let mut atomic = Vec::new();
    let op = Some(AtomicOp::FetchAdd { add: 1, mask: 0 });
    AtomicRequest { id: 1, stag, to, op }.put(&mut atomic);
    [
        queue(Opcode::ReadRequest, 1, 1, 0, &read),
        queue(Opcode::AtomicRequest, 1, 1, 0, &atomic),
        write(stag, to, &vec![1; len as usize]),
    ]
}

#[test]
fn keys_with_one_wrong_bit_are_rejected() {
    let y = server();
    let keys = [y.src.rkey, y.dst.rkey, y.dst.rkey];
    for bit in 0..32 {
        for (which, key) in keys.into_iter().enumerate() {
            let bytes = accesses(key ^ 1 << bit, 0, 8)[which].clone();
            let mut y = server();
            let want = if which == 2 { tagged::STAG } else { term::STAG };
            assert_eq!(terminate(&mut y, &fpdu_of(&bytes)).map(|s| s.0), Some(want), "bit {bit}");
            assert_eq!(y.bytes(y.dst, 0, SIZE as u64), vec![0; SIZE]);
        }
    }
}

#[test]
fn offsets_at_region_bounds_are_checked() {
    let size = SIZE as u64;
    for len in [1, 8, 100] {
        let far = [0, size - u64::from(len), size - u64::from(len) + 1, size, size + 1, 1 << 32, 1 << 63];
        for to in far.into_iter().chain([u64::MAX - u64::from(len), u64::MAX - 1, u64::MAX]) {
            let fits = to.checked_add(len.into()).is_some_and(|end| end <= size);
            let wraps = to.checked_add(len.into()).is_none();
            let cause = |wrap, bounds| (!fits).then_some(if wraps { wrap } else { bounds });
            let mut y = server();
            let bytes = fpdu_of(&accesses(y.src.rkey, to, len)[0]);
            let want = cause(term::WRAP, term::BOUNDS);
            if want.is_some() {
                assert_eq!(terminate(&mut y, &bytes).map(|s| s.0), want, "read {len} at {to}");
            }
            let mut y = server();
            let bytes = fpdu_of(&accesses(y.dst.rkey, to, len)[2]);
            let want = cause(tagged::WRAP, tagged::BOUNDS);
            assert_eq!(terminate_or_accept(&mut y, &bytes, want), want, "write {len} at {to}");
            let written = y.bytes(y.dst, 0, size).iter().filter(|b| **b != 0).count();
            assert_eq!(written, if fits { len as usize } else { 0 });
        }
    }
    // Atomic operations: eight bytes, aligned.
    for to in [0, 1, 4, 7, size - 8, size - 7, size, 1 << 63, u64::MAX - 7, u64::MAX] {
        let mut y = server();
        let bytes = fpdu_of(&accesses(y.dst.rkey, to, 8)[1]);
        let want = match to.checked_add(8) {
            None => term::WRAP,
            Some(end) if end > size => term::BOUNDS,
            _ if to % 8 != 0 => term::STREAM,
            _ => continue,
        };
        assert_eq!(terminate(&mut y, &bytes).map(|s| s.0), Some(want), "atomic at {to}");
        assert_eq!(y.bytes(y.dst, 0, size), vec![0; SIZE]);
    }
}

/// The payload of a long record may go straight to its place while it arrives: what is wrong with its header is found and
/// said all the same.
#[test]
fn fragmented_records_are_checked_like_whole_ones() {
    let (base, len) = (Config { emss: 64 << 10, ..Config::default() }, 8000);
    let early = Config { placement: Placement::Early, ..base };
    let (_, y) = pair(base, base);
    let (key, src, size) = (y.dst.rkey, y.src.rkey, SIZE as u64);
    let bytes = vec![1; len as usize];
    let answer = |stag| ulpdu(Opcode::ReadResponse.control(), true, Target::Tagged { stag, to: 0 }, &bytes);
    let cases = [
        (write(key ^ 0x5555, 0, &bytes), tagged::STAG),
        (write(key, size - len + 1, &bytes), tagged::BOUNDS),
        (write(key, u64::MAX, &bytes), tagged::WRAP),
        (write(src, 0, &bytes), term::RIGHTS),
        (answer(key), term::OPCODE),
        (queue(SEND, 0, 2, 0, &bytes), untagged::MSN),
        (queue(SEND, 0, 1, 4, &bytes), untagged::MO),
        (queue(SEND, 0, 1, 0, &bytes), untagged::TOO_LONG),
        (queue(SEND, 1, 1, 0, &bytes), term::OPCODE),
        (queue(SEND, 5, 1, 0, &bytes), untagged::QN),
        (queue(Opcode::Terminate, 0, 1, 0, &bytes), term::OPCODE),
        (queue(Opcode::ReadRequest, 1, 1, 0, &bytes), untagged::TOO_LONG),
    ];
    for config in [base, early, Config { crc: false, ..base }] {
        for (contents, want) in &cases {
            for cut in [1, 2, 3, 16, 20, 21, 100, 3000, 8000] {
                let (_, mut y) = pair(config, config);
                let too_long = *want == untagged::TOO_LONG && contents[1] == SEND.control();
                y.recv(5, 0, if too_long { len - 1 } else { len });
                y.c.receive(&mut y.a, &fpdu_of(&write(0, 0, &[])), Time::ZERO);
                let whole = fpdu_of(contents);
                y.c.receive(&mut y.a, &whole[..cut], Time::ZERO);
                assert_eq!(y.send(usize::MAX, Time::ZERO), 0, "{want} at {cut}: too early");
                assert_eq!(terminate(&mut y, &whole[cut..]).map(|s| s.0), Some(*want), "at {cut}");
                assert_eq!(y.bytes(y.dst, 0, size), vec![0; SIZE], "{want} at {cut}");
                assert_eq!(y.bytes(y.own, 0, size), vec![0; SIZE], "{want} at {cut}");
                let status = if too_long { Status::LocalLength } else { Status::FlushError };
                assert_eq!(y.statuses(), [(5, status)], "{want} at {cut}");
            }
        }
    }
}

#[test]
fn invalidated_keys_are_checked() {
    let send = |invalidate| {
        let target = Target::Untagged { invalidate, qn: 0, msn: 1, mo: 0 };
        fpdu_of(&ulpdu(SEND_INVALIDATE.control(), true, target, &[1; 8]))
    };
    let window = |y: &mut End, qp| {
        let mw = y.a.alloc_mw(y.pd).unwrap();
        let range = WindowRange { mr: y.dst.id, offset: 0, len: 8, access: Access::REMOTE_WRITE };
        y.a.bind_mw(qp, mw, range).unwrap()
    };
    let mut y = server();
    let other = {
        let (cq, pd) = (y.cq, y.pd);
        y.a.create_qp(pd, QpInit { kind: Kind::Ordered, ..QpInit::new(cq, cq) }).unwrap()
    };
    let key = window(&mut y, other);
    assert_eq!(terminate(&mut y, &send(key)).map(|s| s.0), Some(term::ASSOCIATION));
    let mut y = server();
    let bytes = send(y.dst.rkey);
    assert_eq!(terminate(&mut y, &bytes).map(|s| s.0), Some(term::CANNOT_INVALIDATE));
    let mut y = server();
    let qp = y.qp;
    let key = window(&mut y, qp);
    y.recv(6, 64, 64);
    y.c.receive(&mut y.a, &send(key), Time::ZERO);
    assert_eq!(y.statuses(), [(5, Status::Success)]);
    // Void by now.
    let target = Target::Untagged { invalidate: key, qn: 0, msn: 2, mo: 0 };
    let again = fpdu_of(&ulpdu(SEND_INVALIDATE.control(), true, target, &[]));
    assert_eq!(terminate(&mut y, &again).map(|s| s.0), Some(term::STAG));
    assert_eq!(y.statuses(), [(6, Status::FlushError)]);
}

/// A key that is made void while a write's payload goes straight to its place.
#[test]
fn key_invalidated_within_a_record_is_rejected() {
    let config = Config { crc: false, ..Config::default() };
    let range = |y: &End| WindowRange { mr: y.dst.id, offset: 0, len: 9000, access: Access::REMOTE_WRITE };
    for local in [false, true] {
        let (_, mut y) = pair(config, config);
        let mw = y.a.alloc_mw(y.pd).unwrap();
        let key = y.a.bind_mw(y.qp, mw, range(&y)).unwrap();
        y.c.receive(&mut y.a, &fpdu_of(&write(0, 0, &[])), Time::ZERO);
        let whole = fpdu_of(&write(key, 0, &[1; 9000]));
        y.c.receive(&mut y.a, &whole[..1000], Time::ZERO);
        assert_eq!(y.bytes(y.dst, 0, 900), [1; 900], "it is on its way");
        if local {
            y.post(SendWr::new(1, SendOp::LocalInvalidate { rkey: key }, Vec::new()));
            y.send(usize::MAX, Time::ZERO);
            assert_eq!(y.statuses(), [(1, Status::Success)]);
        } else {
            y.a.dealloc_mw(mw).unwrap();
        }
        assert_eq!(terminate(&mut y, &whole[1000..]).map(|s| s.0), Some(tagged::STAG));
        assert_eq!(y.bytes(y.dst, 1000, 8000), [0; 8000]);
    }
}

#[test]
fn reserved_bits_are_ignored() {
    // DDP's and RDMAP's bits, the field for a key that the operation does not have, and the padding.
    let mut bytes = queue(SEND, 0, 1, 0, &[7; 9]);
    bytes[0] |= 0x3c;
    bytes[1] |= 0x30;
    bytes[2..6].fill(0xff);
    let mut record = fpdu_of(&bytes);
    let end = record.len() - fpdu::CRC;
    record[end - fpdu::pad(bytes.len())..end].fill(0xff);
    let crc = fpdu::crc_field(fpdu::crc(0, &record[..end]));
    record[end..].copy_from_slice(&crc);
    let mut y = server();
    y.c.receive(&mut y.a, &record, Time::ZERO);
    assert_eq!((y.statuses(), y.bytes(y.own, 0, 9)), (vec![(5, Status::Success)], vec![7; 9]));
    // The upper half of immediate data, and of an atomic operation's code.
    let mut y = server();
    let imm = super::errors::fpdu_of(&queue(Opcode::Immediate { solicited: false }, 0, 1, 0, &[0xff; 8]));
    y.c.receive(&mut y.a, &imm, Time::ZERO);
    assert_eq!(y.completions()[0].imm, Some(u32::MAX));
    let mut y = server();
    let mut atomic = accesses(y.dst.rkey, 0, 8)[1].clone();
    atomic[ddp::UNTAGGED..ddp::UNTAGGED + 3].fill(0xff);
    atomic[ddp::UNTAGGED + 3] |= 0xf0;
    y.c.receive(&mut y.a, &super::errors::fpdu_of(&atomic), Time::ZERO);
    assert_eq!(y.bytes(y.dst, 0, 8), 1u64.to_ne_bytes());
}

#[test]
fn every_marker_bit_is_checked() {
    let config = Config { markers: true, ..Config::default() };
    for bit in 0..32 {
        let (_, mut y) = pair(Config::default(), config);
        let plain = fpdu_of(&write(y.dst.rkey, 0, &[3; 600]));
        let mut bytes = Vec::new();
        markers::insert(0, &plain, &mut bytes);
        // The second marker, which points back to the length field behind the first.
        let at = markers::INTERVAL as usize;
        assert_eq!(bytes[at..at + 4], (at as u32 - 4).to_be_bytes());
        bytes[at + bit / 8] ^= 0x80 >> (bit % 8);
        let end = bytes.len() - fpdu::CRC;
        let crc = fpdu::crc_field(fpdu::crc(0, &bytes[..end]));
        bytes[end..].copy_from_slice(&crc);
        y.c.receive(&mut y.a, &bytes, Time::ZERO);
        // The first half is reserved, and so are the lowest two bits (RFC 5044, section 4.3).
        let ignored = !(16..30).contains(&bit);
        assert_eq!(y.bytes(y.dst, 0, 600) == [3; 600], ignored, "bit {bit}");
        assert_eq!(closed(&mut y), (!ignored).then_some(Ending::Terminated(term::MARKER)), "bit {bit}");
    }
}

#[test]
fn truncated_records_are_rejected() {
    let limit = Config::default().record_timeout;
    let whole = fpdu_of(&queue(SEND, 0, 1, 0, &[1; 50]));
    for n in 1..whole.len() {
        for drip in [false, true] {
            let mut y = server();
            y.c.receive(&mut y.a, &whole[..n], Time::ZERO);
            if drip {
                assert_eq!(y.c.poll_timeout(), Some(Time::ZERO + limit));
                y.c.on_timeout(&mut y.a, Time::ZERO + limit);
            } else {
                y.c.on_fin(&mut y.a, Time::ZERO);
            }
            let want = if drip { Ending::TimedOut } else { Ending::Lost };
            assert_eq!(closed(&mut y), Some(want), "{n}");
            assert_eq!((y.statuses(), y.bytes(y.own, 0, 64)), (vec![(5, Status::FlushError)], vec![0; 64]));
        }
    }
}

#[test]
fn records_out_of_sequence_are_rejected() {
    let one = fpdu_of(&write(0, 0, &[]));
    // Records in place of start-up frames, start-up frames in place of records.
    for initiator in [true, false] {
        assert_eq!(takes(initiator, &one), Some(Ending::Frame(FrameError::Key)));
        let (mut x, mut y) = pair(Config::default(), Config::default());
        let e = if initiator { &mut x } else { &mut y };
        let again = frame(if initiator { REPLY } else { REQUEST }, C | S, 2, &[0, 1, 0, 1]);
        // Its key announces a record of 19,792 bytes.
        e.c.receive(&mut e.a, &again, Time::ZERO);
        e.c.receive(&mut e.a, &vec![0; 20_000], Time::ZERO);
        e.send(usize::MAX, Time::ZERO);
        e.c.on_fin(&mut e.a, Time::ZERO);
        assert_eq!(closed(e), Some(Ending::Terminated(term::CRC)));
    }
    // Records before the reply wait for it; what comes before a refusal or behind it is dropped.
    let request = frame(REQUEST, C | S, 2, &[0, 1, 0, 1]);
    for accept in [true, false] {
        let mut y = starting(false, Config::default());
        y.recv(5, 0, 64);
        let send = fpdu_of(&queue(SEND, 0, 1, 0, &[1; 8]));
        y.c.receive(&mut y.a, &[&request[..], &send].concat(), Time::ZERO);
        y.collect_events();
        assert_eq!(y.statuses(), []);
        if accept {
            y.answer(Time::ZERO);
        } else {
            y.c.reject(&[], Time::ZERO).unwrap();
            y.c.receive(&mut y.a, &send, Time::ZERO);
        }
        assert_eq!(y.statuses(), if accept { vec![(5, Status::Success)] } else { vec![] });
    }
}

#[test]
fn data_after_terminate_is_ignored() {
    // Ours: "DDP MUST silently drop any subsequent incoming DDP Segments" (RFC 5041, section 7.1).
    let mut y = server();
    y.recv(6, 64, 64);
    let wrong = fpdu_of(&write(7, 0, &[1]));
    y.c.receive(&mut y.a, &wrong, Time::ZERO);
    let good = [write(y.dst.rkey, 0, &[1; 8]), queue(SEND, 0, 1, 0, &[1; 8])];
    for b in &good {
        y.c.receive(&mut y.a, &fpdu_of(b), Time::ZERO);
    }
    y.c.receive(&mut y.a, &wrong, Time::ZERO);
    let before = y.send(usize::MAX, Time::ZERO);
    assert_eq!((before > 0, y.send(usize::MAX, Time::ZERO)), (true, 0), "one message");
    // The peer's, in the same bytes as what follows it.
    let mut z = server();
    let ends = fpdu_of(&queue(Opcode::Terminate, 2, 1, 0, &[0x01, 2, 0, 0]));
    let bytes = [ends, fpdu_of(&good[0]), fpdu_of(&good[1])].concat();
    z.c.receive(&mut z.a, &bytes, Time::ZERO);
    assert_eq!(z.send(usize::MAX, Time::ZERO), 0, "it is not answered by another");
    for e in [&mut y, &mut z] {
        e.c.on_fin(&mut e.a, Time::ZERO);
        assert!(matches!(closed(e), Some(Ending::Terminated(_))));
        assert_eq!(e.bytes(e.dst, 0, 8), [0; 8]);
        assert!(e.statuses().iter().all(|s| s.1 != Status::Success));
    }
}

#[test]
fn missing_first_message_times_out() {
    let only = |read, send| Rtr { read, send, write: false };
    let limit = Time::ZERO + Config::default().startup_timeout;
    let c = Config { peer_to_peer: true, rtr: only(true, false), ..Config::default() };
    let mut x = starting(true, c);
    // A, D: the first message is a read.
    x.c.receive(&mut x.a, &frame(REPLY, C | S, 2, &[0x80, 1, 0x40, 1]), Time::ZERO);
    x.collect_events();
    assert!(x.is_established() && x.send(usize::MAX, Time::ZERO) > 0);
    x.post(SendWr::new(1, SendOp::Send, x.source(0, 8)));
    assert_eq!((x.send(usize::MAX, Time::ZERO), x.c.poll_timeout()), (0, Some(limit)));
    // Something else of the responder's does not make up for it.
    x.recv(2, 0, 64);
    x.c.receive(&mut x.a, &fpdu_of(&queue(SEND, 0, 1, 0, &[1; 8])), Time::ZERO);
    assert_eq!((x.send(usize::MAX, Time::ZERO), x.c.poll_timeout()), (0, Some(limit)));
    x.c.on_timeout(&mut x.a, limit);
    assert_eq!(closed(&mut x), Some(Ending::TimedOut));
    assert_eq!(x.statuses(), [(2, Status::Success), (1, Status::TransportFailed)]);
    // One that comes ends the wait.
    let (x, y) = pair(c, c);
    assert_eq!((x.c.poll_timeout(), y.c.poll_timeout()), (None, None));
}
