//! In-band telemetry in the hands of whoever is on the path: hops that write what they want into the room in front of
//! packets, change it, take it away or put it where none was. And a receiver that says it heard such things. No panic, the
//! data arrives, and what a sender has in flight stays within its limits.
//!
//! Byte 0 of the input chooses: a datagram by itself, or two ends that transfer under HPCC with these hops between them.

#![no_main]

#[path = "../../crates/endpoint/tests/pair/mod.rs"]
mod pair;

mod bytes;

use base::telemetry::{HOP_BYTES, Hop, MAX_HOPS, hops, is_led, lead_len, put_lead, split, stamp};
use base::{Rate, Span, Time};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pair::{Link, Pair, complete, config, register, server_config, whole};
use std::cell::RefCell;
use std::rc::Rc;
use verbs::{SendOp, SendWr, Status};

/// Bytes that are transferred. At the least rate of the algorithm that is less than the time given.
const LEN: usize = 60_000;
/// Time within which they must have arrived, whatever hops say.
const WITHIN: Span = Span::from_secs(600);
/// What hops do in one input at most.
const MAX_ACTS: usize = 256;
/// Datagrams that they make unreadable at most. More in a row are a path that carries nothing, whose connection ends.
const MAX_DESTROYED: usize = 16;

/// What a hop writes.
fn hop(b: &mut Bytes<'_>) -> Option<Hop> {
    let id = u16::from(b.u8()?);
    let (at, queue, sent, rate) = (b.number()?, b.number()?, b.number()?, b.number()?);
    Some(Hop { id, at: Time::from_nanos(at), queue, sent, rate: Rate::from_bytes_per_sec(rate) })
}

/// One datagram, and what passes it.
fn alone(rest: &[u8]) {
    let mut b = Bytes(rest);
    let Some(n) = b.u16() else { return };
    let mut d = b.take(usize::from(n) % 2_000).to_vec();
    if n & 0x8000 != 0 {
        put_lead(&mut d);
    }
    while let Some(h) = hop(&mut b) {
        let before = d.clone();
        let (wrote, led) = (stamp(&mut d, &h), is_led(&before));
        assert_eq!(d.len(), before.len());
        assert!(led || d == before, "a datagram without telemetry was changed");
        if wrote && let Some((lead, packet)) = split(&mut d) {
            let told: Vec<Hop> = hops(lead).expect("there was room").collect();
            assert_eq!(told.last(), Some(&h));
            let at = before.len() - packet.len();
            assert_eq!(*packet, before[at..], "the packet was changed");
        }
    }
    let whole = d.len();
    if let Some((lead, packet)) = split(&mut d) {
        assert_eq!(lead.len() + packet.len(), whole);
        assert!((lead_len(1)..=lead_len(MAX_HOPS)).contains(&lead.len()));
        if let Some(all) = hops(lead) {
            assert!(all.count() * HOP_BYTES <= lead.len());
        }
    }
}

/// What is done to one datagram on its way.
fn meddle(d: &mut Vec<u8>, b: &mut Bytes<'_>, destroyed: &mut usize) -> Option<()> {
    match b.u8()? % 8 {
        0..=2 => {
            stamp(d, &hop(b)?);
        }
        3 => {
            // The whole path at once.
            let h = hop(b)?;
            for n in 0..u64::from(b.u8()?) % 12 {
                stamp(d, &Hop { id: n as u16, sent: h.sent.wrapping_add(n), ..h });
            }
        }
        4 => {
            // Somewhere in the lead.
            let (at, byte) = (usize::from(b.u16()?), b.u8()?);
            *destroyed += 1;
            if *destroyed <= MAX_DESTROYED && is_led(d) && at < lead_len(MAX_HOPS).min(d.len()) {
                d[at] = byte;
            }
        }
        5 => {
            // Taken away, so that the packet comes bare.
            if let Some((lead, _)) = split(d) {
                let n = lead.len();
                d.drain(..n);
            }
        }
        6 => {
            let mut lead = vec![0; lead_len(usize::from(b.u8()?) % 10)];
            put_lead(&mut lead);
            *destroyed += 1;
            if *destroyed <= MAX_DESTROYED {
                d.splice(..0, lead);
            }
        }
        _ => {}
    }
    Some(())
}

/// Two ends and the hops between them.
fn path(rest: &[u8]) {
    let (mut c, mut s) = (config(2), server_config(&[2]));
    for o in [&mut c.options, &mut s.options] {
        "hpcc".clone_into(&mut o.cc);
    }
    let mut p = Pair::with(c, s);
    let Link { client, ci, si, .. } = p.linked();
    let to = register(&mut p.server, si.pd, vec![0; LEN]);
    let from = register(&mut p.client, ci.pd, vec![9; LEN]);
    let (input, led) = (Rc::new(RefCell::new(rest.to_vec())), Rc::new(RefCell::new(0)));
    let (left, seen, mut acts, mut destroyed) = (input.clone(), led.clone(), 0, 0);
    p.filter = Box::new(move |f| {
        *seen.borrow_mut() += u32::from(f.to_server && is_led(&f.bytes));
        if acts < MAX_ACTS && f.to_server {
            acts += 1;
            let mut all = left.borrow_mut();
            let mut b = Bytes(&all);
            let _ = meddle(&mut f.bytes, &mut b, &mut destroyed);
            let rest = b.0.len();
            let used = all.len() - rest;
            all.drain(..used);
        }
        true
    });
    let wr = SendWr::new(1, SendOp::Write { rkey: to.rkey, offset: 0 }, whole(&from, LEN as u64));
    p.client.adapter().post_send(ci.qps[0], wr).expect("posted");
    let end = p.now + WITHIN;
    while p.client.adapter().cq_len(ci.cq) == Some(0) {
        assert!(p.now < end, "it never arrives");
        p.run(Span::from_millis(500));
        let usage = p.client.usage(client).expect("open");
        assert!(usage.iter().all(|(_, g)| g.holds()), "{usage:?}");
    }
    assert_eq!(complete(&mut p.client, &ci).status, Status::Success);
    assert_eq!(pair::read(&mut p.server, &to, LEN), vec![9; LEN]);
    assert!(*led.borrow() > 0, "no packet had room for telemetry: all of this tests nothing");
}

fuzz_target!(|input: &[u8]| {
    match input.split_first() {
        Some((choice, rest)) if choice & 1 == 0 => alone(rest),
        Some((_, rest)) => path(rest),
        None => {}
    }
});
