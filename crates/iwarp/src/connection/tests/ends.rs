//! Tests of how connections end.

use super::*;
use crate::rdmap::terminate::CATASTROPHIC;
use base::Span;
use verbs::{QpState, SendOp};

fn closed(e: &End) -> Option<(crate::End, bool)> {
    match e.events.last() {
        Some(Event::Closed { end, by_peer }) => Some((*end, *by_peer)),
        _ => None,
    }
}

#[test]
fn graceful_close_loses_no_data() {
    let (mut x, mut y) = pair(Config::default(), Config::default());
    let op = SendOp::Write { rkey: y.dst.rkey, offset: 0 };
    x.post(SendWr::new(1, op, x.source(0, 300_000)));
    x.post(SendWr::new(2, SendOp::Read { rkey: y.src.rkey, offset: 0 }, x.own(0, 200_000)));
    x.c.close(&mut x.a, Time::ZERO);
    run(&mut x, &mut y, &mut Rng::from_u64(1), 10_000, Time::ZERO);
    assert_eq!(x.statuses(), [(1, Status::Success), (2, Status::Success)]);
    assert_eq!(y.bytes(y.dst, 0, 300_000), x.bytes(x.src, 0, 300_000));
    assert!(y.events.contains(&Event::PeerClosed));
    assert_eq!(
        (closed(&x), closed(&y)),
        (Some((crate::End::Closed, false)), Some((crate::End::Closed, false)))
    );
}

#[test]
fn truncated_stream_is_an_error() {
    for cut in [1, 19, 60] {
        let (mut x, mut y) = pair(Config::default(), Config::default());
        y.recv(1, 0, 64);
        x.post(SendWr::new(1, SendOp::Send, x.source(0, 64)));
        x.send(cut, Time::ZERO);
        carry(&mut x, &mut y, cut, Time::ZERO);
        y.c.on_fin(&mut y.a, Time::ZERO);
        y.collect_events();
        assert_eq!(
            (closed(&y), &y.actions[..]),
            (Some((crate::End::Lost, true)), [StreamAction::Abort].as_slice())
        );
        assert_eq!(y.statuses(), [(1, Status::FlushError)]);
        x.c.on_error(&mut x.a);
        assert_eq!(x.statuses(), [(1, Status::TransportFailed)]);
    }
}

#[test]
fn close_with_an_outstanding_read_is_an_error() {
    let (mut x, y) = pair(Config::default(), Config::default());
    x.post(SendWr::new(1, SendOp::Read { rkey: y.src.rkey, offset: 0 }, x.own(0, 20)));
    x.send(usize::MAX, Time::ZERO);
    x.c.on_fin(&mut x.a, Time::ZERO);
    x.collect_events();
    assert_eq!(closed(&x), Some((crate::End::Lost, true)));
    assert_eq!(x.statuses(), [(1, Status::TransportFailed)]);
}

#[test]
fn failed_queue_pair_closes_the_connection() {
    let (mut x, mut y) = pair(Config::default(), Config::default());
    x.a.modify_qp(x.qp, QpState::Error).unwrap();
    run(&mut x, &mut y, &mut Rng::from_u64(1), 10_000, Time::ZERO);
    let end = crate::End::Terminated(CATASTROPHIC);
    assert_eq!((closed(&x), closed(&y)), (Some((end, false)), Some((end, true))));
    let (mut x, mut y) = pair(Config::default(), Config::default());
    x.c.abort(&mut x.a, Time::ZERO);
    run(&mut x, &mut y, &mut Rng::from_u64(1), 10_000, Time::ZERO);
    assert_eq!((closed(&x), closed(&y)), (Some((end, false)), Some((end, true))));
}

#[test]
fn dripping_peer_times_out() {
    let (mut x, mut y) = pair(Config::default(), Config::default());
    y.recv(1, 0, 1000);
    x.post(SendWr::new(1, SendOp::Send, x.source(0, 1000)));
    x.send(usize::MAX, Time::ZERO);
    let limit = Config::default().record_timeout;
    let mut now = Time::ZERO;
    // A byte a second is not enough, however long it goes on.
    while closed(&y).is_none() {
        assert!(now <= Time::ZERO + limit);
        carry(&mut x, &mut y, 1, now);
        now += Span::from_secs(1);
        y.c.on_timeout(&mut y.a, now);
        y.collect_events();
    }
    assert_eq!((now, closed(&y)), (Time::ZERO + limit, Some((crate::End::TimedOut, false))));
    assert_eq!(y.statuses(), [(1, Status::FlushError)]);
    // Silence between records is no drip.
    let (mut x, mut y) = pair(Config::default(), Config::default());
    x.post(SendWr::new(1, SendOp::Write { rkey: 0, offset: 0 }, Vec::new()));
    run(&mut x, &mut y, &mut Rng::from_u64(1), 10_000, Time::ZERO);
    assert_eq!(y.c.poll_timeout(), None);
}

#[test]
fn peer_that_does_not_close_is_reset() {
    let (mut x, mut y) = pair(Config::default(), Config::default());
    x.c.close(&mut x.a, Time::ZERO);
    x.collect_events();
    assert_eq!(x.actions, [StreamAction::Shutdown]);
    let later = Time::ZERO + Config::default().close_timeout;
    assert_eq!(x.c.poll_timeout(), Some(later));
    x.c.on_timeout(&mut x.a, later);
    x.collect_events();
    assert_eq!(x.actions, [StreamAction::Shutdown, StreamAction::Abort]);
    assert!(x.c.is_closed() && x.c.poll_timeout().is_none());
    // The same for one that does not read its Terminate message.
    y.c.receive(&mut y.a, &[0; 64], Time::ZERO);
    y.c.on_timeout(&mut y.a, later);
    y.collect_events();
    assert!(y.c.is_closed());
}

#[test]
fn deregistered_region_closes_the_connection() {
    let c = Config { crc: false, emss: 64 << 10, ..Config::default() };
    let (mut x, mut y) = pair(c, c);
    x.post(SendWr::new(1, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, x.source(0, 20_000)));
    x.send(usize::MAX, Time::ZERO);
    carry(&mut x, &mut y, 1000, Time::ZERO);
    y.a.dereg_mr(y.dst.id).unwrap();
    let wire: Vec<u8> = x.wire.drain(..).collect();
    y.c.receive(&mut y.a, &wire, Time::ZERO);
    y.collect_events();
    assert_eq!(closed(&y), Some((crate::End::Terminated(crate::ddp::tagged::STAG), false)));
}
