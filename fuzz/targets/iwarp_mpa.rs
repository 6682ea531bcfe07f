//! MPA: start-up frames, markers and records as a peer of any kind may send them, in pieces of any size.
//!
//! Byte 0 of the input chooses the role and the terms. After a good start-up (bit 3), or instead of it, the rest is the
//! stream: each piece is a byte with its length and that many bytes.

#![no_main]

mod bytes;
mod guarded;

use base::{Rng, Time};
use bytes::Bytes;
use guarded::{Guarded, UNTOUCHED};
use iwarp::mpa::frames::{Frame, Kind as FrameKind};
use iwarp::mpa::{fpdu, markers};
use iwarp::{Config, Connection, Event, Placement};
use libfuzzer_sys::fuzz_target;
use verbs::{Access, Adapter, Kind, Limits, QpId, QpInit, SendOp, SendWr};

/// Turns of one input at most.
const TURNS: usize = 512;

fn frames(b: &[u8]) {
    for kind in [FrameKind::Request, FrameKind::Reply] {
        let Ok(Some((frame, len, private))) = Frame::parse(b, kind) else { continue };
        let mut again = Vec::new();
        frame.put(&b[private..len], &mut again);
        assert_eq!(Frame::parse(&again, kind), Ok(Some((frame, len, private))), "not read back");
        // Whatever is known of a frame early stays so.
        for n in 0..len {
            assert_eq!(Frame::parse(&b[..n], kind), Ok(None));
        }
    }
}

fn marked(b: &[u8]) {
    let Some((at, record)) = b.split_first() else { return };
    let (at, record) = (u64::from(*at) * 4, &record[..record.len() & !3]);
    let mut out = Vec::new();
    markers::insert(at, record, &mut out);
    assert_eq!(out.len(), record.len() + markers::LEN * markers::count(at, record.len()));
    let (n, right) = markers::remove(at, &mut out);
    assert_eq!((&out[..n], right), (record, Ok(())));
    let mut any = b[..b.len() & !3].to_vec();
    let _ = markers::remove(at, &mut any);
}

/// An established connection, or one that waits for its start.
fn connect(a: &mut Adapter, qp: QpId, terms: u8) -> Connection {
    let bit = |n: u8| terms >> n & 1 == 1;
    let placement = if bit(2) { Placement::Early } else { Placement::Verified };
    let config =
        Config { markers: bit(0), crc: bit(1), placement, peer_to_peer: bit(5), ..Config::default() };
    let mut c = match bit(4) {
        true => Connection::initiator(config, qp, b"private", Time::ZERO).expect("short"),
        false => Connection::responder(config, Time::ZERO),
    };
    if bit(3) {
        // The peer wants what we want, so that CRCs can be off.
        let peer = Config { rtr: config.rtr, ..config };
        let request = iwarp::mpa::startup::request(&peer);
        let frame = if bit(4) { iwarp::mpa::startup::accept(&peer, &request).0 } else { request };
        let mut b = Vec::new();
        frame.put(b"", &mut b);
        c.receive(a, &b, Time::ZERO);
        if !bit(4) {
            c.accept(a, qp, b"", Time::ZERO).expect("asked");
        }
        while c.next_event().is_some() {}
    }
    c
}

fuzz_target!(|input: &[u8]| {
    let Some((&terms, rest)) = input.split_first() else { return };
    frames(rest);
    marked(rest);
    let mut a = Adapter::new(Limits::default(), Rng::from_u64(1));
    let pd = a.alloc_pd().expect("room");
    let cq = a.create_cq(64).expect("room");
    let qp = a.create_qp(pd, QpInit { kind: Kind::Ordered, ..QpInit::new(cq, cq) }).expect("room");
    let (guarded, memory) = Guarded::memory();
    a.reg_mr(pd, memory, Access::ALL).map_err(|e| e.0).expect("room");
    let mut c = connect(&mut a, qp, terms);
    let mut input = Bytes(rest);
    for _ in 0..TURNS {
        let Some(n) = input.u8() else { break };
        c.receive(&mut a, input.take(usize::from(n)), Time::ZERO);
        while let Some(e) = c.next_event() {
            if matches!(e, Event::Requested { .. }) {
                if n % 2 == 0 {
                    c.accept(&mut a, qp, b"", Time::ZERO).expect("asked");
                } else {
                    c.reject(b"no", Time::ZERO).expect("asked");
                }
            }
        }
        if n == 7 {
            let wr = SendWr::new(1, SendOp::Send, verbs::Data::Inline(vec![n; 700].into()));
            let _ = a.post_send(qp, wr);
        }
        let taken = c.transmit(&mut a, Time::ZERO).map_or(0, |t| {
            assert!(t.len > 0 && t.len <= (256 << 10) + 2 * fpdu::MAX_FPDU, "a batch has limits");
            t.len.min(usize::from(n))
        });
        c.on_sent(&mut a, taken);
        if n == 9 {
            c.on_fin(&mut a, Time::ZERO);
        }
    }
    // No key is known to the peer, so nothing is written but by chance of 2^-32 a try.
    assert!(guarded.check().iter().all(|b| *b == UNTOUCHED));
});
