//! Every Terminate message that the engine can send, and its cause.

use crate::capture::Capture;
use crate::end;
use crate::talk::{Cut, Said, Talk};
use crate::{WHOLE, start};
use longhaul_iwarp::ddp::{self, Header, Target};
use longhaul_iwarp::mpa::frames::{Enhanced, Frame, Kind};
use longhaul_iwarp::mpa::{fpdu, markers};
use longhaul_iwarp::rdmap::messages::{AtomicRequest, ReadRequest};
use longhaul_iwarp::rdmap::{Opcode, VERSION, terminate as term};
use longhaul_iwarp::{Cause, Config, Rtr};
use verbs::{Access, AtomicOp, Memory, QpState};

const SEND: Opcode = Opcode::Send { solicited: false, invalidate: false };

/// A record with these contents, as one that no engine makes.
fn record(ulpdu: &[u8]) -> Vec<u8> {
    let mut r = Vec::from((ulpdu.len() as u16).to_be_bytes());
    r.extend(ulpdu);
    r.resize(fpdu::len(ulpdu.len()) - fpdu::CRC, 0);
    r.extend(fpdu::crc_field(fpdu::crc(0, &r)));
    r
}
fn untagged(control: u8, qn: u32, msn: u32, mo: u32, payload: &[u8]) -> Vec<u8> {
    let mut b = Vec::new();
    Header { last: true, control, target: Target::Untagged { invalidate: 0, qn, msn, mo } }.put(&mut b);
    b.extend(payload);
    b
}
fn tagged(control: u8, stag: u32, payload: &[u8]) -> Vec<u8> {
    let mut b = Vec::new();
    Header { last: true, control, target: Target::Tagged { stag, to: 0 } }.put(&mut b);
    b.extend(payload);
    b
}

/// What is wrong in an injected record, and what the engine says to it: the cause, and how much of it is quoted.
fn injected() -> Vec<(&'static str, Vec<u8>, Cause, u64)> {
    let version = |mut b: Vec<u8>| {
        b[0] ^= 3;
        b
    };
    let (write, send) = (Opcode::Write.control(), SEND.control());
    let mut read = Vec::new();
    ReadRequest { sink_stag: 1, sink_to: 0, len: 5, source_stag: 0, source_to: 0 }.put(&mut read);
    let mut atomic = Vec::new();
    AtomicRequest { id: 1, stag: 0, to: 0, op: None }.put(&mut atomic);
    let (request, operation) = (Opcode::ReadRequest.control(), Opcode::AtomicRequest.control());
    vec![
        ("no contents", vec![], ddp::CATASTROPHIC, 0),
        ("tagged version", version(tagged(write, 0, &[1])), ddp::tagged::VERSION, 14),
        ("untagged version", version(untagged(send, 0, 1, 0, &[1])), ddp::untagged::VERSION, 18),
        ("queue", untagged(send, 9, 1, 0, &[1]), ddp::untagged::QN, 18),
        ("message number", untagged(send, 0, 7, 0, &[1]), ddp::untagged::MSN, 18),
        ("message offset", untagged(send, 0, 1, 7, &[1]), ddp::untagged::MO, 18),
        ("RDMAP version", untagged(3, 0, 1, 0, &[1]), term::VERSION, 18),
        ("opcode", untagged(VERSION << 6 | 14, 0, 1, 0, &[1]), term::OPCODE, 18),
        ("tagged opcode", tagged(VERSION << 6 | 14, 0, &[1]), term::OPCODE, 14),
        ("short request", untagged(request, 1, 1, 0, &[1; 27]), term::UNSPECIFIED, 18),
        ("key of a read", untagged(request, 1, 1, 0, &read), term::STAG, 18 + 28),
        ("code of an atomic operation", untagged(operation, 1, 1, 0, &atomic), term::OPCODE, 18),
    ]
}

/// Every Terminate message that the engine can send.
pub fn terminates(c: &mut Capture, check: &mut dyn FnMut(Talk<'_>)) {
    let base = Config::default();
    let mut n = 200;
    let mut next = |c: &mut Capture, name: &str, config: Config, act: &mut dyn FnMut(&mut Talk<'_>)| {
        let cut = if config.markers { Cut::Records } else { WHOLE };
        let mut t = start(name, n, c, [config; 2], cut);
        n += 1;
        // The responder may say nothing before it has had a record.
        t.write(0, 0, 1);
        t.run();
        act(&mut t);
        t.run();
        check(t);
    };
    for markers in [false, true] {
        let config = Config { markers, ..base };
        if !markers {
            for (name, bytes, cause, quoted) in injected() {
                next(c, name, config, &mut |t| {
                    t.terminate(1, cause, quoted, bytes.len() as u64);
                    t.inject(0, &record(&bytes));
                });
            }
        }
        provoked(&mut |name, act| next(c, name, config, act));
    }
    next(c, "a write that wraps", base, &mut |t| {
        let target = Target::Tagged { stag: t.ends[1].dst.rkey, to: u64::MAX };
        let mut b = Vec::new();
        Header { last: true, control: Opcode::Write.control(), target }.put(&mut b);
        t.terminate(1, ddp::tagged::WRAP, 14, 14 + 2);
        t.inject(0, &record(&[b, vec![0; 2]].concat()));
    });
    next(c, "a read that wraps", base, &mut |t| {
        let source_stag = t.ends[1].src.rkey;
        let mut b = Vec::new();
        ReadRequest { sink_stag: 1, sink_to: 0, len: 2, source_stag, source_to: u64::MAX }.put(&mut b);
        t.terminate(1, term::WRAP, 18 + 28, 18 + 28);
        t.inject(0, &record(&untagged(Opcode::ReadRequest.control(), 1, 1, 0, &b)));
    });
    next(c, "alignment of an atomic operation", base, &mut |t| {
        let (stag, op) = (t.ends[1].dst.rkey, Some(AtomicOp::FetchAdd { add: 1, mask: 0 }));
        let mut b = Vec::new();
        AtomicRequest { id: 1, stag, to: 4, op }.put(&mut b);
        t.terminate(1, term::STREAM, 18, 18 + 52);
        t.inject(0, &record(&untagged(Opcode::AtomicRequest.control(), 1, 1, 0, &b)));
    });
    next(c, "a marker that points elsewhere", Config { markers: true, ..base }, &mut |t| {
        let at = t.position(0);
        let mut bytes = Vec::new();
        markers::insert(at, &record(&tagged(Opcode::Write.control(), 0, &[0; 600])), &mut bytes);
        bytes[(markers::INTERVAL - at) as usize + 3] ^= 4;
        let end = bytes.len() - fpdu::CRC;
        let crc = fpdu::crc_field(fpdu::crc(0, &bytes[..end]));
        bytes[end..].copy_from_slice(&crc);
        t.terminate(1, term::MARKER, 0, 0);
        t.inject(0, &bytes);
    });
}

/// Those of the start-up.
pub fn refusals(c: &mut Capture, check: &mut dyn FnMut(Talk<'_>)) {
    let base = Config::default();
    let few = Rtr { send: true, ..Rtr::default() };
    let other = Rtr { read: true, ..Rtr::default() };
    let p2p = Config { peer_to_peer: true, ..base };
    let configs = [Config { rtr: few, ..p2p }, Config { rtr: other, ..p2p }];
    let mut t = Talk::new("no first message in common", 300, c, configs, WHOLE);
    t.terminate(0, term::NO_MATCHING_RTR, 0, 0);
    t.run();
    check(t);
    let mut t = Talk::new("depth", 301, c, [base; 2], WHOLE);
    t.log.said[1].clear();
    t.terminate(0, term::INSUFFICIENT_IRD, 0, 0);
    t.mute = true;
    t.run();
    let enhanced = Some(Enhanced { ird: 1, ord: base.ird + 1, peer_to_peer: None });
    let mut reply = Vec::new();
    Frame { kind: Kind::Reply, markers: false, crc: true, reject: false, revision: 2, enhanced }
        .put(&[], &mut reply);
    t.inject(1, &reply);
    check(t);
    // More reads than the queue pair was made for.
    let many = Config { ird: end::MAX_READS + 1, ..base };
    let mut t = Talk::new("a local failure", 302, c, [many, base], WHOLE);
    t.terminate(0, term::MPA_CATASTROPHIC, 0, 0);
    t.run();
    check(t);
}

type Act<'a> = &'a mut dyn FnMut(&mut Talk<'_>);

/// Those that an application of ours can bring about.
fn provoked(next: &mut dyn FnMut(&str, Act<'_>)) {
    let other_domain = |t: &mut Talk<'_>| {
        let e = &mut t.ends[1];
        let pd = e.a.alloc_pd().unwrap();
        e.a.reg_mr(pd, Memory::zeroed(64), Access::ALL).unwrap().rkey
    };
    let wrong_writes = [
        ("STag of a write", ddp::tagged::STAG, 0),
        ("bounds of a write", ddp::tagged::BOUNDS, end::SIZE - 5),
        ("STag of a write, of another domain", ddp::tagged::ASSOCIATION, 0),
        ("rights of a write", term::RIGHTS, 0),
    ];
    for (name, cause, at) in wrong_writes {
        next(name, &mut |t| {
            let key = match cause {
                ddp::tagged::STAG => t.ends[1].dst.rkey ^ 0x5555,
                ddp::tagged::ASSOCIATION => other_domain(t),
                term::RIGHTS => t.ends[1].src.rkey,
                _ => t.ends[1].dst.rkey,
            };
            t.write_to(0, key, at, 10);
            t.terminate(1, cause, 14, 14 + 10);
        });
    }
    let wrong_reads = [
        ("STag of a read", term::STAG, 0),
        ("bounds of a read", term::BOUNDS, end::SIZE - 5),
        ("STag of a read, of another domain", term::ASSOCIATION, 0),
        ("rights of a read", term::RIGHTS, 0),
    ];
    for (name, cause, at) in wrong_reads {
        next(name, &mut |t| {
            let key = match cause {
                term::STAG => t.ends[1].src.rkey ^ 0x5555,
                term::ASSOCIATION => other_domain(t),
                term::RIGHTS => t.ends[1].own.rkey,
                _ => t.ends[1].src.rkey,
            };
            t.read_of(0, key, at, 10);
            t.terminate(1, cause, 18 + 28, 18 + 28);
        });
    }
    wrong_sends(next);
    own_faults(next);
}

/// Sends that the other end cannot take.
fn wrong_sends(next: &mut dyn FnMut(&str, Act<'_>)) {
    next("no receive", &mut |t| {
        t.send_to(0, 10, false, None);
        t.terminate(1, ddp::untagged::NO_BUFFER, 18, 18 + 10);
    });
    next("a receive that is too short", &mut |t| {
        t.ends[1].receive_in(5);
        t.send_to(0, 10, false, None);
        t.terminate(1, ddp::untagged::TOO_LONG, 18, 18 + 10);
    });
    next("a key that is no window's", &mut |t| {
        t.ends[1].receive();
        let key = t.ends[1].dst.rkey;
        t.send_to(0, 10, false, Some(key));
        t.terminate(1, term::CANNOT_INVALIDATE, 18, 18 + 10);
    });
}

/// What no end said wrong.
fn own_faults(next: &mut dyn FnMut(&str, Act<'_>)) {
    for end in [0, 1] {
        next("the application's own wish", &mut |t| {
            let e = &mut t.ends[end];
            e.a.modify_qp(e.qp, QpState::Error).unwrap();
            t.terminate(end, term::CATASTROPHIC, 0, 0);
        });
    }
    next("damage on the way", &mut |t| {
        t.write(0, 0, 100);
        t.damage = Some(0);
        // What is shown of a damaged record is what arrived.
        if let Some(Said::Message { payload, .. }) = t.log.said[0].last_mut() {
            *payload = None;
        }
        t.terminate(1, term::CRC, 0, 0);
    });
}
