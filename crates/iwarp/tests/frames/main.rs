//! Checks the bytes on the wire with an independent dissector: captures of every operation, dissected by tshark.
//!
//! Nothing may be malformed or remarked on; CRCs, lengths, opcodes, STags, offsets, queues, message numbers and contents must
//! be those of the work that was posted, and markers must point where they should. Needs `tshark`; without it the test says
//! so and passes.
//!
//! tshark 4.0 has gaps of its own, which the captures go round and the comparison knows:
//!
//! * It knows MPA's revision 1. Of revision 2 (RFC 6581) it says that revision and bit S should not be so, and shows the
//!   depths as private data.
//! * It expects markers in both directions when one end asks for them. Then only the direction that has them is compared.
//! * With markers it takes each segment for one record, counts a marker right behind a record as one of its own, does not
//!   follow numbers of TCP that wrap, and leaves markers from the second on in the payload. So these captures have a record
//!   in each segment, of lengths at which that does not happen, and their payload is not compared.
//! * It has no names for RFC 7306's immediate data (opcodes 8 and 9): it shows opcode, header and length, not the eight bytes.
//! * A Terminate message of RDMAP's layer that quotes a tagged header (unexpected opcode, version) it takes to quote an
//!   untagged one, and calls malformed. All fields before the quotation are compared.
//! * It loses its way when a segment ends less than eight bytes behind the start of a record: none does here.
//! * It guesses what payloads are (RPC over RDMA, SMB Direct), puts several sends of one packet together, and gives ports that
//!   are somebody's to them: the first two are turned off, the ports are nobody's.

mod capture;
mod compare;
mod dissect;
mod end;
mod talk;
mod terminates;

use base::Time;
use capture::Capture;
use compare::compare;
use dissect::Packet;
use longhaul_iwarp::ddp::{QN_REQUEST, QN_SEND};
use longhaul_iwarp::{Config, End as Ending, Event, Rtr};
use talk::{Cut, Said, Talk, To, Transcript};
use terminates::{refusals, terminates};
use verbs::AtomicOp;

const WHOLE: Cut = Cut::Bytes(1448);

/// Every operation from `from`, one at a time.
fn operations(t: &mut Talk<'_>, from: usize) {
    for (at, len) in [(5, 10), (0, 0), (7, 5000)] {
        t.write(from, at, len);
        t.run();
    }
    for (len, solicited) in [(900, false), (5000, true), (0, false), (0, true)] {
        t.write_imm(from, 77, len, 0xfedc_ba98, solicited);
        t.run();
    }
    for form in 0..4 {
        for len in [2000, 3, 0] {
            t.send(from, len, form & 1 == 1, form & 2 == 2);
            t.run();
        }
    }
    for (at, len) in [(9, 4000), (1, 1), (0, 0)] {
        t.read(from, at, len);
        t.run();
    }
    let swap = AtomicOp::CompareSwap { compare: 7, compare_mask: 8, swap: 9, swap_mask: u64::MAX };
    for (at, op) in [(8, AtomicOp::FetchAdd { add: 1 << 40, mask: 1 << 63 }), (8, swap), (16, swap)] {
        t.atomic(from, at, op);
        t.run();
    }
}

/// Several records in a segment, and messages that begin in the midst of one.
fn together(t: &mut Talk<'_>, from: usize) {
    t.write(from, 3, 10);
    t.send(from, 20, false, false);
    t.read(from, 4, 2100);
    t.write(from, 3, 3000);
    t.atomic(from, 100_000, AtomicOp::FetchAdd { add: 3, mask: 0 });
    t.send(from, 1, true, true);
    t.send(from, 0, false, false);
    t.run();
}

fn close(t: &mut Talk<'_>) {
    let e = &mut t.ends[0];
    e.c.close(&mut e.a, Time::ZERO);
    t.run();
    for e in &t.ends {
        let closed = Event::Closed { end: Ending::Closed, by_peer: false };
        assert_eq!(e.events.last(), Some(&closed), "{}", t.log.name);
    }
}

fn start<'a>(name: &str, n: u16, c: &'a mut Capture, configs: [Config; 2], cut: Cut) -> Talk<'a> {
    let mut t = Talk::new(name, n, c, configs, cut);
    t.run();
    assert!(t.is_up(), "{}", t.log.name);
    t
}

/// Connections with all terms, in which every operation is used by both ends.
fn all_terms(c: &mut Capture, check: &mut dyn FnMut(Talk<'_>)) {
    let base = Config::default();
    let plain = Config { crc: false, ..base };
    let old = Config { enhanced: false, ..base };
    let old_and_plain = Config { crc: false, ..old };
    let marked = Config { markers: true, ..base };
    let old_and_marked = Config { markers: true, ..old };
    let small = Config { emss: 300, ..base };
    let cases = [
        ("revision 2", [base; 2], WHOLE),
        ("revision 1", [old; 2], WHOLE),
        ("without CRCs", [plain; 2], WHOLE),
        ("revision 1 without CRCs", [old_and_plain; 2], WHOLE),
        ("CRCs asked for by the initiator alone", [base, plain], WHOLE),
        ("CRCs asked for by the responder alone", [plain, base], WHOLE),
        ("records across segments", [base; 2], Cut::Bytes(700)),
        ("records across small segments", [plain; 2], Cut::Bytes(100)),
        ("small records in large segments", [small; 2], WHOLE),
        ("markers", [marked; 2], Cut::Records),
        ("markers, revision 1", [old_and_marked; 2], Cut::Records),
        ("markers without CRCs", [Config { crc: false, ..marked }; 2], Cut::Records),
        ("markers to the initiator", [marked, base], Cut::Records),
        ("markers to the responder", [base, marked], Cut::Records),
    ];
    for (n, (name, configs, cut)) in (0..).zip(cases) {
        let mut t = start(name, n, c, configs, cut);
        operations(&mut t, 0);
        operations(&mut t, 1);
        if cut != Cut::Records {
            together(&mut t, 0);
            together(&mut t, 1);
        }
        close(&mut t);
        check(t);
    }
}

/// The ways in which connections begin and do not.
fn starts(c: &mut Capture, check: &mut dyn FnMut(Talk<'_>)) {
    let base = Config { peer_to_peer: true, ..Config::default() };
    let only = |write, read, send| Rtr { write, read, send };
    let forms = [only(true, false, false), only(false, true, false), only(false, false, true)];
    for (n, rtr) in (100..).zip(forms) {
        let config = Config { rtr, ..base };
        let mut t = Talk::new("peer to peer", n, c, [config; 2], WHOLE);
        match (rtr.write, rtr.read) {
            (true, _) => t.expect(0, 0, To::Tagged { stag: 0, to: 0 }, 0, &[]),
            (_, true) => {
                let fields = [("iwarp_rdma.rdmardsz", 0), ("iwarp_rdma.srcstag", 0)];
                t.expect_on(0, 1, QN_REQUEST, 28, &fields);
                t.expect(1, 2, To::Sink, 0, &[]);
            }
            _ => t.expect_on(0, 3, QN_SEND, 0, &[]),
        }
        t.run();
        assert!(t.is_up(), "{}", t.log.name);
        // The responder first.
        t.send(1, 10, false, false);
        t.run();
        operations(&mut t, 0);
        close(&mut t);
        check(t);
    }
    for (n, config) in (110..).zip([Config::default(), Config { enhanced: false, ..base }]) {
        let mut t = Talk::new("rejected", n, c, [config; 2], WHOLE);
        t.reject();
        t.run();
        check(t);
    }
}

type Cases = fn(&mut Capture, &mut dyn FnMut(Talk<'_>));

/// Runs the connections of `cases`, and has what they sent dissected. `None`: there is no tshark.
fn dissected(cases: Cases) -> Option<(Vec<Transcript>, Vec<Packet>)> {
    if !dissect::is_there() {
        eprintln!("skipped: needs tshark (Debian: `apt-get install --no-install-recommends tshark`)");
        return None;
    }
    let (mut capture, mut logs) = (Capture::new(), Vec::new());
    cases(&mut capture, &mut |t| logs.push(t.finish()));
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), capture.bytes()).expect("a capture");
    let packets = dissect::packets(file.path());
    assert_eq!(packets.len(), capture.frames() as usize);
    Some((logs, packets))
}

fn check(cases: Cases) {
    let Some((logs, packets)) = dissected(cases) else { return };
    logs.iter().for_each(|log| compare(log, &packets));
}

#[test]
fn captured_operations_match_what_was_posted() {
    check(all_terms);
}

#[test]
fn captured_startups_match_the_configuration() {
    check(starts);
}

#[test]
fn captured_terminate_messages_name_the_error() {
    check(terminates);
    check(refusals);
}

/// A comparison that finds nothing proves nothing: it has to find each of these.
#[test]
fn comparison_detects_differences() {
    fn one(c: &mut Capture, check: &mut dyn FnMut(Talk<'_>)) {
        let mut t = start("one of each", 1, c, [Config::default(); 2], WHOLE);
        operations(&mut t, 0);
        check(t);
    }
    let Some((mut logs, packets)) = dissected(one) else { return };
    let log = logs.remove(0);
    compare(&log, &packets);
    type Change = fn(&mut Transcript, usize);
    let changes: [(&str, Change); 11] = [
        ("an opcode", |l, i| change(l, i, |m| *m.0 ^= 1)),
        ("an STag", |l, i| {
            change(l, i, |m| {
                if let To::Tagged { stag, .. } = m.1 {
                    *stag ^= 1
                }
            })
        }),
        ("an offset", |l, i| {
            change(l, i, |m| {
                if let To::Tagged { to, .. } = m.1 {
                    *to += 1
                }
            })
        }),
        ("a queue", |l, i| {
            change(l, i, |m| {
                if let To::Queue { qn, .. } = m.1 {
                    *qn += 1
                }
            })
        }),
        ("a message number", |l, i| {
            change(l, i, |m| {
                if let To::Queue { msn, .. } = m.1 {
                    *msn += 1
                }
            })
        }),
        ("a length", |l, i| change(l, i, |m| *m.2 += 1)),
        ("contents", |l, i| {
            change(l, i, |m| {
                if let Some(b) = m.3.as_mut().and_then(|b| b.first_mut()) {
                    *b ^= 1
                }
            })
        }),
        ("a message too many", |l, i| drop(l.said[0].remove(i))),
        ("a message too few", |l, i| l.said[0].insert(i, l.said[0][i].clone())),
        ("markers", |l, _| l.terms[0].0 = true),
        ("no CRCs", |l, _| l.terms[0].1 = false),
    ];
    for (what, change) in changes {
        let found = (1..log.said[0].len()).filter(|i| {
            let mut wrong = log.clone();
            change(&mut wrong, *i);
            wrong == log || std::panic::catch_unwind(|| compare(&wrong, &packets)).is_err()
        });
        assert_eq!(found.count(), log.said[0].len() - 1, "{what} is not found");
    }
}

type Message<'a> = (&'a mut u8, &'a mut To, &'a mut u64, &'a mut Option<Vec<u8>>);

fn change(log: &mut Transcript, i: usize, f: impl FnOnce(Message<'_>)) {
    if let Said::Message { opcode, to, len, payload, .. } = &mut log.said[0][i] {
        f((opcode, to, len, payload));
    }
}
