//! Tests of how connections start, and of failed starts.

use super::*;
use crate::mpa::frames::{Enhanced, Frame, FrameError, Kind as FrameKind};
use crate::rdmap::terminate::{INSUFFICIENT_IRD, NO_MATCHING_RTR};
use crate::{Cause, Rtr};
use base::Span;
use verbs::{SendOp, Status};

fn closed(e: &End) -> Option<crate::End> {
    match e.events.last() {
        Some(Event::Closed { end, .. }) => Some(*end),
        _ => None,
    }
}

#[test]
fn private_data_and_depths_are_delivered() {
    let c = Config::default();
    let (x, y) = pair(Config { ird: 3, ord: 4, ..c }, Config { ird: 5, ord: 6, ..c });
    let asked = Some(Enhanced { ird: 3, ord: 4, peer_to_peer: None });
    assert_eq!(y.events[0], Event::Requested { private: b"hello".to_vec(), peer: asked });
    let replied = Some(Enhanced { ird: 5, ord: 3, peer_to_peer: None });
    assert_eq!(x.events, [Event::Established { private: b"welcome".to_vec(), peer: replied }]);
    let (x, y) = pair(Config { enhanced: false, ..c }, c);
    assert_eq!(y.events[0], Event::Requested { private: b"hello".to_vec(), peer: None });
    assert_eq!(x.events, [Event::Established { private: b"welcome".to_vec(), peer: None }]);
}

#[test]
fn rejection_carries_private_data_and_closes() {
    let (mut x, mut y) = (End::initiator(1, Config::default()), End::responder(2, Config::default()));
    x.send(usize::MAX, Time::ZERO);
    carry(&mut x, &mut y, usize::MAX, Time::ZERO);
    y.collect_events();
    assert_eq!(
        y.c.accept(&mut y.a, y.qp, &[0; 509], Time::ZERO),
        Err(verbs::Error::Invalid("private data is 512 bytes at most, 508 in revision 2"))
    );
    y.c.reject(b"no room", Time::ZERO).unwrap();
    assert_eq!(y.c.reject(b"twice", Time::ZERO), Err(verbs::Error::State));
    run(&mut x, &mut y, &mut Rng::from_u64(1), 7, Time::ZERO);
    assert!(matches!(&x.events[0], Event::Rejected { private, .. } if private == b"no room"));
    assert_eq!((closed(&x), closed(&y)), (Some(crate::End::Rejected), Some(crate::End::Rejected)));
    assert_eq!(
        (x.actions, y.actions),
        (vec![StreamAction::Close], vec![StreamAction::Shutdown, StreamAction::Close])
    );
}

#[test]
fn reset_after_a_rejection_is_reported_as_rejection() {
    let (mut x, mut y) = (End::initiator(1, Config::default()), End::responder(2, Config::default()));
    x.send(usize::MAX, Time::ZERO);
    carry(&mut x, &mut y, usize::MAX, Time::ZERO);
    y.collect_events();
    y.c.reject(b"", Time::ZERO).unwrap();
    y.send(usize::MAX, Time::ZERO);
    y.c.on_error(&mut y.a);
    y.collect_events();
    assert_eq!(closed(&y), Some(crate::End::Rejected));
}

#[test]
fn invalid_startup_frames_close_at_once() {
    let mut y = End::responder(2, Config::default());
    y.c.receive(&mut y.a, b"GET / HTTP/1.1\r\n", Time::ZERO);
    y.collect_events();
    assert_eq!(
        (closed(&y), y.actions),
        (Some(crate::End::Frame(FrameError::Key)), vec![StreamAction::Abort])
    );
    // Both as initiators.
    let mut x = End::initiator(1, Config::default());
    let mut other = End::initiator(2, Config::default());
    other.send(usize::MAX, Time::ZERO);
    carry(&mut other, &mut x, usize::MAX, Time::ZERO);
    x.collect_events();
    assert_eq!(closed(&x), Some(crate::End::Frame(FrameError::SameRole)));
    // A reply of revision 1 to a request of revision 2.
    let mut x = End::initiator(1, Config::default());
    let reply = Frame {
        kind: FrameKind::Reply,
        markers: false,
        crc: true,
        reject: false,
        revision: 1,
        enhanced: None,
    };
    let mut bytes = Vec::new();
    reply.put(&[], &mut bytes);
    x.c.receive(&mut x.a, &bytes, Time::ZERO);
    x.collect_events();
    assert_eq!(closed(&x), Some(crate::End::Mismatch));
}

/// What an initiator with `config` says to a reply with these figures.
fn terminated(config: Config, enhanced: Enhanced) -> Option<Cause> {
    let mut x = End::initiator(1, config);
    let reply = Frame {
        kind: FrameKind::Reply,
        markers: false,
        crc: true,
        reject: false,
        revision: 2,
        enhanced: Some(enhanced),
    };
    let mut bytes = Vec::new();
    reply.put(&[], &mut bytes);
    x.send(usize::MAX, Time::ZERO);
    x.wire.clear();
    x.c.receive(&mut x.a, &bytes, Time::ZERO);
    x.send(usize::MAX, Time::ZERO);
    let sent: Vec<u8> = x.wire.drain(..).collect();
    // Length, DDP header, then the message.
    crate::rdmap::terminate::parse(sent.get(20..sent.len() - 4)?)
}

#[test]
fn failed_negotiations_are_reported() {
    let e = Enhanced { ird: 1, ord: 17, peer_to_peer: None };
    assert_eq!(terminated(Config::default(), e), Some(INSUFFICIENT_IRD));
    let read = Rtr { read: true, ..Rtr::default() };
    let c = Config { peer_to_peer: true, rtr: Rtr { send: true, ..Rtr::default() }, ..Config::default() };
    let e = Enhanced { ird: 1, ord: 1, peer_to_peer: Some(read) };
    assert_eq!(terminated(c, e), Some(NO_MATCHING_RTR));
}

#[test]
fn responder_may_send_first_in_peer_to_peer_mode() {
    for (rtr, ird) in [
        (Rtr { write: true, ..Rtr::default() }, 1),
        (Rtr { read: true, ..Rtr::default() }, 1),
        (Rtr { send: true, ..Rtr::default() }, 0),
    ] {
        let c = Config { peer_to_peer: true, rtr, ird, ord: 1, ..Config::default() };
        let (mut x, mut y) = pair(c, c);
        x.recv(1, 0, 64);
        y.recv(1, 0, 64);
        y.post(SendWr::new(7, SendOp::Send, y.source(0, 8)));
        x.post(SendWr::new(8, SendOp::Send, x.source(0, 9)));
        run(&mut x, &mut y, &mut Rng::from_u64(1), 5, Time::ZERO);
        // The first message is nobody's receive and nobody's completion.
        let done = |e: &mut End| e.completions().iter().map(|w| (w.wr_id, w.byte_len)).collect::<Vec<_>>();
        let (mut got_x, mut got_y) = (done(&mut x), done(&mut y));
        got_x.sort_unstable();
        got_y.sort_unstable();
        assert_eq!((got_x, got_y), (vec![(1, 8), (8, 9)], vec![(1, 9), (7, 8)]), "{rtr:?}");
    }
    // Without it, it waits for the client's first record (RFC 5044, section 7.1.2, rule 4).
    let (mut x, mut y) = pair(Config::default(), Config::default());
    x.recv(1, 0, 64);
    y.post(SendWr::new(7, SendOp::Send, y.source(0, 8)));
    assert_eq!(y.send(usize::MAX, Time::ZERO), 0);
    let op = SendOp::Write { rkey: 0, offset: 0 };
    x.post(SendWr::new(8, op, Vec::new()));
    run(&mut x, &mut y, &mut Rng::from_u64(1), 5, Time::ZERO);
    assert_eq!(y.statuses(), [(7, Status::Success)]);
}

#[test]
fn pause_before_the_first_record_is_observed() {
    let pause = Span::from_millis(300);
    let (mut x, mut y) = pair(Config { pause, ..Config::default() }, Config::default());
    x.post(SendWr::new(8, SendOp::Write { rkey: y.dst.rkey, offset: 0 }, x.source(0, 5)));
    assert_eq!((x.send(usize::MAX, Time::ZERO), x.c.poll_timeout()), (0, Some(Time::ZERO + pause)));
    let later = Time::ZERO + pause;
    x.c.on_timeout(&mut x.a, later);
    run(&mut x, &mut y, &mut Rng::from_u64(1), 500, later);
    assert_eq!(x.statuses(), [(8, Status::Success)]);
    assert_eq!(x.c.poll_timeout(), None);
}

#[test]
fn responder_sends_first_when_configured() {
    let pause = Span::from_millis(300);
    let eager = Config { speak_first: true, pause, ..Config::default() };
    let (mut x, mut y) = pair(Config::default(), eager);
    x.recv(1, 0, 64);
    y.post(SendWr::new(7, SendOp::Send, y.source(0, 8)));
    assert_eq!((y.send(usize::MAX, Time::ZERO), y.c.poll_timeout()), (0, Some(Time::ZERO + pause)));
    let later = Time::ZERO + pause;
    y.c.on_timeout(&mut y.a, later);
    run(&mut x, &mut y, &mut Rng::from_u64(1), 5, later);
    assert_eq!((x.statuses(), y.statuses()), (vec![(1, Status::Success)], vec![(7, Status::Success)]));
    // One that asks for the peer-to-peer model begins itself.
    let p2p = Config { peer_to_peer: true, pause, ..Config::default() };
    let (_, mut y) = pair(p2p, Config { pause: Span::ZERO, ..eager });
    y.post(SendWr::new(7, SendOp::Send, y.source(0, 8)));
    assert_eq!(y.send(usize::MAX, Time::ZERO), 0);
}

#[test]
fn slow_startup_times_out() {
    let limit = Config::default().startup_timeout;
    for half in [0, 10, 22] {
        let (mut x, mut y) = (End::initiator(1, Config::default()), End::responder(2, Config::default()));
        x.send(half, Time::ZERO);
        carry(&mut x, &mut y, half, Time::ZERO);
        assert_eq!(y.c.poll_timeout(), Some(Time::ZERO + limit));
        y.c.on_timeout(&mut y.a, Time::ZERO + limit);
        y.collect_events();
        assert_eq!((closed(&y), y.c.is_closed()), (Some(crate::End::TimedOut), true));
    }
    // A peer that has its reply but does not begin as agreed.
    let c = Config { peer_to_peer: true, ..Config::default() };
    let (mut x, mut y) = (End::initiator(1, c), End::responder(2, c));
    x.send(usize::MAX, Time::ZERO);
    carry(&mut x, &mut y, usize::MAX, Time::ZERO);
    y.collect_events();
    y.answer(Time::ZERO);
    assert_eq!(y.c.poll_timeout(), Some(Time::ZERO + limit));
}

#[test]
fn bytes_before_the_reply_are_bounded() {
    let (mut x, mut y) = (End::initiator(1, Config::default()), End::responder(2, Config::default()));
    x.send(usize::MAX, Time::ZERO);
    carry(&mut x, &mut y, usize::MAX, Time::ZERO);
    y.collect_events();
    y.c.receive(&mut y.a, &vec![0; 1 << 20], Time::ZERO);
    y.collect_events();
    assert_eq!(closed(&y), Some(crate::End::Mismatch));
}
