//! Tail loss: retransmitted when it happens, and not when the peer is merely slow.

mod pair;

use base::{Span, Time};
use pair::{DELAY, Link, Pair, complete, read, register, whole};
use std::cell::Cell;
use std::rc::Rc;
use verbs::{Mr, SendOp, SendWr, Status};

const LEN: u64 = 30_000;

/// A path of a tenth of a millisecond, there and back; from `held.0` to `held.1` the server's host is busy otherwise.
fn short_path(p: &mut Pair, held: Rc<Cell<(Time, Time)>>) {
    p.filter = Box::new(move |f| {
        f.at = f.at - DELAY + Span::from_micros(50);
        let (from, to) = held.get();
        if f.to_server && f.at >= from && f.at < to {
            f.at = to;
        }
        true
    });
}

/// The client writes again and again. Gives how long the last write took.
fn write(p: &mut Pair, l: &Link, [to, from]: [&Mr; 2], (n, len): (u64, u64)) -> Span {
    let start = p.now;
    let op = SendOp::Write { rkey: to.rkey, offset: 0 };
    p.client.adapter().post_send(l.ci.qps[0], SendWr::new(n, op, whole(from, len))).expect("posted");
    loop {
        p.run(Span::from_micros(50));
        if p.client.adapter().cq_len(l.ci.cq) != Some(0) {
            let wc = complete(&mut p.client, &l.ci);
            assert_eq!((wc.wr_id, wc.status), (n, Status::Success));
            return p.now.since(start);
        }
        assert!(p.now.since(start) < Span::from_secs(2), "write {n} waits");
    }
}

#[test]
fn no_retransmission_to_a_peer_busy_for_milliseconds() {
    let mut p = Pair::new();
    let held = Rc::new(Cell::new((Time::ZERO, Time::ZERO)));
    short_path(&mut p, held.clone());
    let l = p.linked();
    let (to, from) = (
        register(&mut p.server, l.si.pd, vec![0; LEN as usize]),
        register(&mut p.client, l.ci.pd, vec![7; LEN as usize]),
    );
    for n in 0..320 {
        if n % 16 == 15 {
            // Longer than a time-out, and longer than two.
            held.set((p.now, p.now + Span::from_micros(2_000 + n * 15)));
        }
        write(&mut p, &l, [&to, &from], (n, LEN));
        p.run(Span::from_millis(30));
    }
    let s = p.client.stats(l.client).expect("open");
    assert!(s.probe_timeouts >= 20, "{} time-outs", s.probe_timeouts);
    assert_eq!((s.payload_again, s.packets_again, s.packets_lost), (0, 0, 0));
    assert_eq!(p.server.stats(l.server).expect("open").payload_duplicate, 0);
    assert_eq!(s.payload_sent, 320 * LEN);
}

#[test]
fn lost_tail_on_a_short_path_is_retransmitted_one_round_trip_after_the_timeout() {
    let mut p = Pair::new();
    let held = Rc::new(Cell::new((Time::ZERO, Time::ZERO)));
    short_path(&mut p, held);
    let l = p.linked();
    let (to, from) = (
        register(&mut p.server, l.si.pd, vec![0; LEN as usize]),
        register(&mut p.client, l.ci.pd, vec![7; LEN as usize]),
    );
    for n in 0..9 {
        write(&mut p, &l, [&to, &from], (n, LEN));
    }
    p.run(Span::from_millis(30));
    // The only packet of a write is lost, once.
    let lost = Rc::new(Cell::new(false));
    let copy = lost.clone();
    let mut inner = core::mem::replace(&mut p.filter, Box::new(|_| true));
    p.filter = Box::new(move |f| {
        let data = f.to_server && f.bytes.len() > 1_000; // headers are masked, lengths are not
        (!data || copy.replace(true)) && inner(f)
    });
    let took = write(&mut p, &l, [&to, &from], (99, 1_000));
    assert!(lost.get(), "a tail was lost");
    // The time-out of about 1.5 ms, and three ways of 50 us.
    assert!(took < Span::from_millis(3), "{took:?}");
    let s = p.client.stats(l.client).expect("open");
    assert_eq!(s.packets_again, 1, "what was lost, and nothing else");
    assert_eq!(p.server.stats(l.server).expect("open").payload_duplicate, 0);
    assert_eq!(read(&mut p.server, &to, LEN as usize), vec![7; LEN as usize]);
}
