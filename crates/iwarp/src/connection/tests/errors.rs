//! Tests that every protocol error of a peer (RFC 5040, 5041, 5044) ends the connection with the right Terminate message,
//! changes no memory and completes no work request successfully.

use super::*;
use crate::Cause;
use crate::ddp::{self, Header, Target, tagged, untagged};
use crate::mpa::{fpdu, markers};
use crate::rdmap::messages::{AtomicRequest, ReadRequest};
use crate::rdmap::terminate::{self as term, MAX};
use crate::rdmap::{Opcode, VERSION};
use verbs::{AtomicOp, SendOp};

/// The FPDU of a ULPDU: with length, padding and CRC.
pub(super) fn fpdu_of(ulpdu: &[u8]) -> Vec<u8> {
    let mut r = Vec::from((ulpdu.len() as u16).to_be_bytes());
    r.extend(ulpdu);
    r.resize(fpdu::len(ulpdu.len()) - fpdu::CRC, 0);
    r.extend(fpdu::crc_field(fpdu::crc(0, &r)));
    r
}

/// A ULPDU: DDP header with the RDMAP control byte, and payload.
pub(super) fn ulpdu(control: u8, last: bool, target: Target, payload: &[u8]) -> Vec<u8> {
    let mut b = Vec::new();
    Header { last, control, target }.put(&mut b);
    b.extend(payload);
    b
}

/// An untagged segment to queue `qn`, with message number `msn` and message offset `mo`.
pub(super) fn queue(op: Opcode, qn: u32, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    ulpdu(op.control(), true, Target::Untagged { invalidate: 0, qn, msn, mo }, payload)
}
/// A tagged segment of an RDMA write to offset `to` of region `stag`.
pub(super) fn write(stag: u32, to: u64, payload: &[u8]) -> Vec<u8> {
    ulpdu(Opcode::Write.control(), true, Target::Tagged { stag, to }, payload)
}
pub(super) const SEND: Opcode = Opcode::Send { solicited: false, invalidate: false };
pub(super) const SEND_INVALIDATE: Opcode = Opcode::Send { solicited: false, invalidate: true };

/// A server that has received a first valid FPDU, and has posted a receive of 64 bytes.
pub(super) fn server() -> End {
    let (_, mut y) = pair(Config::default(), Config::default());
    y.recv(5, 0, 64);
    y.c.receive(&mut y.a, &fpdu_of(&write(0, 0, &[])), Time::ZERO);
    y
}

/// The Terminate message with which `y` responds to these bytes: its cause, and the headers that it quotes. `None`: it
/// sends nothing.
pub(super) fn terminate(y: &mut End, bytes: &[u8]) -> Option<(Cause, Vec<u8>)> {
    y.c.receive(&mut y.a, bytes, Time::ZERO);
    y.send(usize::MAX, Time::ZERO);
    let sent: Vec<u8> = y.wire.drain(..).collect();
    let len = usize::from(u16::from_be_bytes([*sent.first()?, sent[1]]));
    assert_eq!(sent.len(), fpdu::len(len), "one FPDU");
    let header = Header::parse(&sent[2..]).unwrap();
    let target = Target::Untagged { invalidate: 0, qn: ddp::QN_TERMINATE, msn: 1, mo: 0 };
    assert_eq!(header, Header { last: true, control: Opcode::Terminate.control(), target });
    let message = &sent[2 + ddp::UNTAGGED..2 + len];
    assert!(message.len() <= MAX);
    let cause = term::parse(message).unwrap();
    y.collect_events();
    let end = crate::End::Terminated(cause);
    // It shuts down its direction of the TCP connection, and closes when the peer has done so, too.
    assert_eq!(y.actions, [StreamAction::Shutdown]);
    y.c.on_fin(&mut y.a, Time::ZERO);
    y.collect_events();
    assert_eq!(y.events.last(), Some(&Event::Closed { end, by_peer: false }));
    assert!(y.c.transmit(&mut y.a, Time::ZERO).is_none());
    Some((cause, message[4..].to_vec()))
}

/// Asserts that each ULPDU is answered by a Terminate message with this cause, which quotes the header, and that it changes
/// no memory and completes nothing.
fn assert_terminate(cases: Vec<(&str, Vec<u8>, Cause)>) {
    for (name, bytes, want) in cases {
        let mut y = server();
        let (cause, quote) = terminate(&mut y, &fpdu_of(&bytes)).expect(name);
        assert_eq!(cause, want, "{name}");
        if want.etype != 0 {
            assert_eq!(quote[..2], (bytes.len() as u16).to_be_bytes(), "{name}");
            let head = Header::len_of(bytes[0]).min(bytes.len());
            assert_eq!(quote[2..2 + head], bytes[..head], "{name}");
            let request = bytes.len() == 18 + 28 && want.layer == 0 && want.etype == 1;
            assert_eq!(quote.len(), 2 + head + if request { 28 } else { 0 }, "{name}");
        }
        assert_eq!(y.bytes(y.dst, 0, SIZE as u64), vec![0; SIZE], "{name}");
        assert_eq!(y.bytes(y.own, 64, 64), [0; 64], "{name}");
        let statuses = y.statuses();
        assert!(statuses.iter().all(|s| s.1 != Status::Success), "{name}: {statuses:?}");
    }
}

#[test]
fn ddp_errors() {
    let y = server();
    let (key, size, src, own) = (y.dst.rkey, SIZE as u64, y.src.rkey, y.own.rkey);
    let version = |mut b: Vec<u8>| {
        b[0] = b[0] & !3 | 2;
        b
    };
    let not_last = |mut b: Vec<u8>| {
        b[0] &= !0x40;
        b
    };
    assert_terminate(vec![
        ("no contents", vec![], ddp::CATASTROPHIC),
        ("half a header", write(key, 0, &[])[..9].to_vec(), ddp::CATASTROPHIC),
        ("tagged version", version(write(key, 0, &[1])), tagged::VERSION),
        ("untagged version", version(queue(SEND, 0, 1, 0, &[1])), untagged::VERSION),
        ("unknown key", write(key ^ 0x5555, 0, &[1]), tagged::STAG),
        ("beyond the end", write(key, size - 1, &[1, 2]), tagged::BOUNDS),
        ("far beyond the end", write(key, 1 << 60, &[1]), tagged::BOUNDS),
        ("wrap", write(key, u64::MAX, &[1, 2]), tagged::WRAP),
        ("a region to read", write(src, 0, &[1]), term::RIGHTS),
        ("a region of our own", write(own, 0, &[1]), term::RIGHTS),
        ("queue 4", queue(SEND, 4, 1, 0, &[1]), untagged::QN),
        ("queue 2^32 - 1", queue(SEND, u32::MAX, 1, 0, &[1]), untagged::QN),
        ("message number behind", queue(SEND, 0, 0, 0, &[1]), untagged::MSN),
        ("message number ahead", queue(SEND, 0, 2, 0, &[1]), untagged::MSN),
        ("request's number ahead", queue(Opcode::ReadRequest, 1, 2, 0, &[0; 28]), untagged::MSN),
        ("offset", queue(SEND, 0, 1, 1, &[1]), untagged::MO),
        ("request's offset", queue(Opcode::ReadRequest, 1, 1, 4, &[0; 28]), untagged::MO),
        ("too long", queue(SEND, 0, 1, 0, &[1; 65]), untagged::TOO_LONG),
        ("request too long", queue(Opcode::ReadRequest, 1, 1, 0, &[0; 29]), untagged::TOO_LONG),
        ("a request in pieces", not_last(queue(Opcode::ReadRequest, 1, 1, 0, &[0; 28])), term::UNSPECIFIED),
    ]);
}

#[test]
fn rdmap_errors() {
    let y = server();
    let (src, dst, size) = (y.src.rkey, y.dst.rkey, SIZE as u64);
    let read = |stag, to, len| {
        let mut b = Vec::new();
        ReadRequest { sink_stag: 1, sink_to: 0, len, source_stag: stag, source_to: to }.put(&mut b);
        queue(Opcode::ReadRequest, 1, 1, 0, &b)
    };
    let atomic = |stag, to, op| {
        let mut b = Vec::new();
        AtomicRequest { id: 1, stag, to, op }.put(&mut b);
        queue(Opcode::AtomicRequest, 1, 1, 0, &b)
    };
    let add = Some(AtomicOp::FetchAdd { add: 1, mask: 0 });
    let untag =
        |control, qn| ulpdu(control, true, Target::Untagged { invalidate: 0, qn, msn: 1, mo: 0 }, &[1]);
    let tag = |control| ulpdu(control, true, Target::Tagged { stag: dst, to: 0 }, &[1]);
    let immediate = |n: usize| queue(Opcode::Immediate { solicited: false }, 0, 1, 0, &[1; 9][..n]);
    assert_terminate(vec![
        ("version 0", untag(3, 0), term::VERSION),
        ("version 2", tag(2 << 6), term::VERSION),
        ("opcode 12", untag(VERSION << 6 | 12, 0), term::OPCODE),
        ("opcode 15, tagged", tag(VERSION << 6 | 15), term::OPCODE),
        ("a tagged send", tag(SEND.control()), term::OPCODE),
        ("an untagged write", untag(Opcode::Write.control(), 0), term::OPCODE),
        ("a send to queue 1", untag(SEND.control(), 1), term::OPCODE),
        ("a request to queue 0", untag(Opcode::ReadRequest.control(), 0), term::OPCODE),
        ("a terminate to queue 0", untag(Opcode::Terminate.control(), 0), term::OPCODE),
        ("an answer nobody asked for", tag(Opcode::ReadResponse.control()), term::OPCODE),
        ("an atomic answer nobody asked for", queue(Opcode::AtomicResponse, 3, 1, 0, &[0; 12]), term::OPCODE),
        ("read: key", read(src ^ 0x5555, 0, 1), term::STAG),
        ("read: beyond the end", read(src, size, 1), term::BOUNDS),
        ("read: too much", read(src, 1, size as u32), term::BOUNDS),
        ("read: wrap", read(src, u64::MAX, 2), term::WRAP),
        ("read: rights", read(dst, 0, 1), term::RIGHTS),
        ("read: short request", queue(Opcode::ReadRequest, 1, 1, 0, &[0; 27]), term::UNSPECIFIED),
        ("atomic: key", atomic(dst ^ 0x5555, 0, add), term::STAG),
        ("atomic: beyond the end", atomic(dst, size - 4, add), term::BOUNDS),
        ("atomic: wrap", atomic(dst, u64::MAX - 7, add), term::WRAP),
        ("atomic: rights", atomic(src, 0, add), term::RIGHTS),
        ("atomic: alignment", atomic(dst, 4, add), term::STREAM),
        ("atomic: code", atomic(dst, 0, None), term::OPCODE),
        ("atomic: short request", queue(Opcode::AtomicRequest, 1, 1, 0, &[0; 51]), term::UNSPECIFIED),
        ("immediate: short", immediate(7), term::UNSPECIFIED),
        ("immediate: long", immediate(9), term::UNSPECIFIED),
        ("terminate: short", queue(Opcode::Terminate, 2, 1, 0, &[0; 3]), term::UNSPECIFIED),
        ("invalidate: unknown", queue(SEND_INVALIDATE, 0, 1, 0, &[]), term::STAG),
        (
            "invalidate: a region",
            ulpdu(
                SEND_INVALIDATE.control(),
                true,
                Target::Untagged { invalidate: dst, qn: 0, msn: 1, mo: 0 },
                &[],
            ),
            term::CANNOT_INVALIDATE,
        ),
    ]);
}

#[test]
fn keys_of_another_protection_domain_are_refused() {
    // DDP (for a write) and RDMAP (for a read) have different codes for the same error.
    let mut y = server();
    let pd = y.a.alloc_pd().unwrap();
    let mr = y.a.reg_mr(pd, Memory::zeroed(8), Access::ALL).unwrap();
    assert_eq!(terminate(&mut y, &fpdu_of(&write(mr.rkey, 0, &[1]))).unwrap().0, tagged::ASSOCIATION);
    let mut y = server();
    let pd = y.a.alloc_pd().unwrap();
    let mr = y.a.reg_mr(pd, Memory::zeroed(8), Access::ALL).unwrap();
    let mut b = Vec::new();
    ReadRequest { sink_stag: 1, sink_to: 0, len: 1, source_stag: mr.rkey, source_to: 0 }.put(&mut b);
    let bytes = fpdu_of(&queue(Opcode::ReadRequest, 1, 1, 0, &b));
    assert_eq!(terminate(&mut y, &bytes).unwrap().0, term::ASSOCIATION);
}

#[test]
fn missing_receives_and_too_many_reads_are_refused() {
    let mut y = server();
    y.c.receive(&mut y.a, &fpdu_of(&queue(SEND, 0, 1, 0, &[1; 64])), Time::ZERO);
    assert_eq!(y.statuses(), [(5, Status::Success)]);
    let second = fpdu_of(&queue(SEND, 0, 2, 0, &[]));
    assert_eq!(terminate(&mut y, &second).unwrap().0, untagged::NO_BUFFER);
    let mut y = server();
    let mut reads = Vec::new();
    for msn in 1..=17 {
        let mut b = Vec::new();
        ReadRequest { sink_stag: 1, sink_to: 0, len: 0, source_stag: 0, source_to: 0 }.put(&mut b);
        reads.extend(fpdu_of(&queue(Opcode::ReadRequest, 1, msn, 0, &b)));
    }
    assert_eq!(terminate(&mut y, &reads).unwrap().0, untagged::NO_BUFFER);
}

#[test]
fn send_that_changes_midway_is_rejected() {
    let piece = |op: Opcode, mo, last| {
        fpdu_of(&ulpdu(op.control(), last, Target::Untagged { invalidate: 0, qn: 0, msn: 1, mo }, &[1; 8]))
    };
    for (bytes, want) in [
        (piece(Opcode::Send { solicited: true, invalidate: false }, 8, true), term::OPCODE),
        (piece(SEND, 0, true), untagged::MO),
        (piece(SEND, 16, true), untagged::MO),
        (fpdu_of(&queue(Opcode::Immediate { solicited: false }, 0, 1, 0, &[0; 8])), term::OPCODE),
    ] {
        let mut y = server();
        y.c.receive(&mut y.a, &piece(SEND, 0, false), Time::ZERO);
        assert_eq!(terminate(&mut y, &bytes).unwrap().0, want);
        assert_eq!(y.statuses(), [(5, Status::FlushError)]);
    }
}

#[test]
fn read_responses_that_do_not_match_are_rejected() {
    // Segments of the response to a read of 100 bytes: what the STag is XORed with, offset, length, last.
    for (pieces, want) in [
        (vec![(1, 0, 8, true)], tagged::STAG),
        (vec![(0, 8, 8, false)], tagged::BOUNDS),
        (vec![(0, 0, 8, true)], tagged::BOUNDS),
        (vec![(0, 0, 101, true)], tagged::BOUNDS),
        (vec![(0, 0, 100, false)], tagged::BOUNDS),
        (vec![(0, 0, 50, false), (0, 0, 50, true)], tagged::BOUNDS),
        (vec![(0, u64::MAX, 8, true)], tagged::WRAP),
        (vec![(0, 0, 100, true), (0, 0, 100, true)], term::OPCODE),
    ] {
        let (mut x, y) = pair(Config::default(), Config::default());
        x.post(SendWr::new(1, SendOp::Read { rkey: y.src.rkey, offset: 0 }, x.own(0, 100)));
        x.send(usize::MAX, Time::ZERO);
        let request: Vec<u8> = x.wire.drain(..).collect();
        let sink = ReadRequest::parse(&request[20..48]).unwrap().sink_stag;
        let mut bytes = Vec::new();
        for (other, to, len, last) in &pieces {
            let target = Target::Tagged { stag: sink ^ other, to: *to };
            bytes.extend(fpdu_of(&ulpdu(Opcode::ReadResponse.control(), *last, target, &vec![9; *len])));
        }
        assert_eq!(terminate(&mut x, &bytes).unwrap().0, want, "{pieces:?}");
        assert_eq!(x.bytes(x.own, 100, 100), [0; 100], "nothing beyond the read");
        let done = x.statuses();
        assert_eq!(done[0].1 == Status::Success, want == term::OPCODE, "{pieces:?} {done:?}");
    }
}

#[test]
fn mpa_errors() {
    // With any byte of an FPDU damaged, nothing is placed and nothing completes.
    let good = fpdu_of(&queue(SEND, 0, 1, 0, &[1; 9]));
    for at in 2..good.len() {
        let mut y = server();
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert_eq!(terminate(&mut y, &bad).unwrap(), (term::CRC, vec![]), "byte {at}");
        assert_eq!((y.bytes(y.own, 0, 64), y.statuses()), (vec![0; 64], vec![(5, Status::FlushError)]));
    }
    // A marker with a wrong pointer, in an FPDU with a correct CRC.
    let (mut x, mut y) = pair(Config::default(), Config { markers: true, ..Config::default() });
    x.post(SendWr::new(1, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, x.source(0, 40)));
    x.send(usize::MAX, Time::ZERO);
    let first: Vec<u8> = x.wire.drain(..).collect();
    y.c.receive(&mut y.a, &first, Time::ZERO);
    let plain = fpdu_of(&write(y.dst.rkey, 0, &[3; 600]));
    let mut bytes = Vec::new();
    markers::insert(first.len() as u64, &plain, &mut bytes);
    bytes[512 - first.len() + 3] ^= 4;
    let end = bytes.len() - fpdu::CRC;
    let crc = fpdu::crc_field(fpdu::crc(0, &bytes[..end]));
    bytes[end..].copy_from_slice(&crc);
    assert_eq!(terminate(&mut y, &bytes).unwrap(), (term::MARKER, vec![]));
}

#[test]
fn early_placement_completes_no_failed_message() {
    let c = Config { placement: crate::Placement::Early, emss: 64 << 10, ..Config::default() };
    let (_, mut y) = pair(c, c);
    y.recv(5, 0, 9000);
    y.c.receive(&mut y.a, &fpdu_of(&write(0, 0, &[])), Time::ZERO);
    let mut bytes = fpdu_of(&queue(SEND, 0, 1, 0, &[1; 8000]));
    bytes[4000] ^= 1;
    // In two parts, so that the payload is placed before the CRC is known.
    y.c.receive(&mut y.a, &bytes[..1000], Time::ZERO);
    assert_eq!(y.bytes(y.own, 0, 1), [1]);
    assert_eq!(terminate(&mut y, &bytes[1000..]).unwrap().0, term::CRC);
    assert_eq!(y.statuses(), [(5, Status::FlushError)]);
    // An invalid header is not reported before the CRC shows whether it was only damaged, as this one is.
    let (_, mut y) = pair(c, c);
    y.c.receive(&mut y.a, &fpdu_of(&write(0, 0, &[])), Time::ZERO);
    let mut bytes = fpdu_of(&write(y.dst.rkey, 0, &[1; 8000]));
    bytes[5] ^= 1;
    y.c.receive(&mut y.a, &bytes[..1000], Time::ZERO);
    assert_eq!(terminate(&mut y, &bytes[1000..]).unwrap().0, term::CRC);
    assert_eq!(y.bytes(y.dst, 0, 8000), [0; 8000]);
}

#[test]
fn responder_sends_nothing_before_the_first_valid_fpdu() {
    let (_, mut y) = pair(Config::default(), Config::default());
    let mut bytes = fpdu_of(&write(0, 0, &[]));
    bytes[6] ^= 1;
    y.c.receive(&mut y.a, &bytes, Time::ZERO);
    y.collect_events();
    assert_eq!((y.send(usize::MAX, Time::ZERO), &y.actions[..]), (0, [StreamAction::Abort].as_slice()));
    assert_eq!(
        y.events.last(),
        Some(&Event::Closed { end: crate::End::Terminated(term::CRC), by_peer: false })
    );
    // An FPDU with a correct CRC and an invalid STag is answered.
    let (_, mut y) = pair(Config::default(), Config::default());
    assert_eq!(terminate(&mut y, &fpdu_of(&write(7, 0, &[1]))).unwrap().0, tagged::STAG);
}

#[test]
fn terminate_cause_reaches_the_peer() {
    let (mut x, mut y) = pair(Config::default(), Config::default());
    x.post(SendWr::new(1, SendOp::Write { rkey: y.src.rkey, offset: 0 }, x.source(0, 10)));
    x.post(SendWr::new(2, SendOp::Read { rkey: y.src.rkey, offset: 0 }, x.own(0, 10)));
    run(&mut x, &mut y, &mut Rng::from_u64(1), 11, Time::ZERO);
    let end = crate::End::Terminated(term::RIGHTS);
    assert_eq!(x.events.last(), Some(&Event::Closed { end, by_peer: true }));
    assert_eq!(y.events.last(), Some(&Event::Closed { end, by_peer: false }));
    // The write completed when it was sent, before the error; the read is the oldest operation that is outstanding.
    assert_eq!(x.statuses(), [(1, Status::Success), (2, Status::RemoteAccess)]);
}
