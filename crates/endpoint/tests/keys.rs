//! Key updates between two endpoints, while data flows with loss and reordering.

mod pair;

use base::{Rng, Span};
use longhaul_endpoint::{Endpoint, QpOptions};
use pair::{DELAY, Link, Pair, closed, complete, read, register, whole};
use verbs::{SendOp, SendWr, Status};

const LEN: usize = 300_000;

/// Who asks for new keys before a round of writes in both directions.
#[derive(Clone, Copy)]
struct KeyUpdates {
    client: bool,
    server: bool,
}

/// Runs rounds of writes in both directions over a path that loses a packet in twenty and delays each by up to a round
/// trip more; gives the key generations and the updates each end made on its own account.
fn rounds(asks: &[KeyUpdates]) -> [(u64, u64); 2] {
    let mut p = Pair::new();
    let Link { client: c, server: s, ci, si } = p.linked();
    let mut rng = Rng::from_u64(7);
    p.filter = Box::new(move |f| {
        f.at += DELAY * rng.below(20) / 10;
        !rng.chance(0.05)
    });
    let memory = |seed: u8| (0..LEN).map(|i| (i % 251) as u8 ^ seed).collect::<Vec<u8>>();
    for (n, ask) in asks.iter().enumerate() {
        let (up, down) = (memory(n as u8), memory(!n as u8));
        let from = [register(&mut p.client, ci.pd, up.clone()), register(&mut p.server, si.pd, down.clone())];
        let to = [register(&mut p.server, si.pd, vec![0; LEN]), register(&mut p.client, ci.pd, vec![0; LEN])];
        let wr = |i: usize| {
            SendWr::new(n as u64, SendOp::Write { rkey: to[i].rkey, offset: 0 }, whole(&from[i], LEN as u64))
        };
        p.client.adapter().post_send(ci.qps[0], wr(0)).expect("posted");
        p.server.adapter().post_send(si.qps[0], wr(1)).expect("posted");
        // In the midst of it.
        p.run(Span::from_millis(30));
        if ask.client {
            p.client.update_keys(c);
        }
        if ask.server {
            p.server.update_keys(s);
        }
        p.run(Span::from_secs(6));
        assert_eq!(complete(&mut p.client, &ci).status, Status::Success, "round {n}");
        assert_eq!(complete(&mut p.server, &si).status, Status::Success, "round {n}");
        assert!(read(&mut p.server, &to[0], LEN) == up && read(&mut p.client, &to[1], LEN) == down);
    }
    assert_eq!((closed(&p.client_events()), closed(&p.server_events())), (None, None));
    let of = |e: &Endpoint, conn| {
        let s = e.stats(conn).expect("open");
        assert_eq!(s.usage.exceeded(), None);
        (s.key_generation, s.key_updates)
    };
    [of(&p.client, c), of(&p.server, s)]
}

#[test]
fn client_key_update_is_followed_by_the_server() {
    assert_eq!(rounds(&[KeyUpdates { client: true, server: false }]), [(1, 1), (1, 0)]);
}

#[test]
fn server_key_update_is_followed_by_the_client() {
    assert_eq!(rounds(&[KeyUpdates { client: false, server: true }]), [(1, 0), (1, 1)]);
}

#[test]
fn simultaneous_key_updates_converge() {
    let [(client, a), (server, b)] = rounds(&[KeyUpdates { client: true, server: true }]);
    // One update each at the same time is one generation; if one came first, the other asks again when it may.
    assert_eq!(client, server);
    assert!((1..=2).contains(&client) && a + b >= client, "{client} {a} {b}");
}

#[test]
fn successive_key_updates_by_either_end_succeed() {
    let asks: Vec<_> = (0..12).map(|n| KeyUpdates { client: n % 3 != 1, server: n % 3 == 1 }).collect();
    let [(client, a), (server, b)] = rounds(&asks);
    assert_eq!((client, server), (12, 12));
    assert_eq!((a, b), (8, 4));
}

#[test]
fn second_key_update_waits_for_the_first() {
    let mut p = Pair::new();
    let Link { client: c, server: s, .. } = p.linked();
    for _ in 0..5 {
        p.client.update_keys(c);
        p.client.open_qp(p.now, c, QpOptions::default()).expect("opened");
        p.run(Span::from_millis(5));
    }
    let soon = p.client.stats(c).expect("open").key_generation;
    assert_eq!(soon, 1, "not within three probe time-outs of the last");
    p.run(Span::from_secs(20));
    p.client.open_qp(p.now, c, QpOptions::default()).expect("opened");
    p.run(Span::from_secs(20));
    assert_eq!(p.client.stats(c).expect("open").key_generation, 2);
    assert_eq!(p.server.stats(s).expect("open").key_generation, 2);
}

/// Found by reading: feedback is not acknowledged, so an end that sends nothing else never got its second update.
#[test]
fn end_that_sends_only_feedback_updates_keys() {
    let mut p = Pair::new();
    let Link { client: c, server: s, ci, si } = p.linked();
    let to = register(&mut p.server, si.pd, vec![0; LEN]);
    let from = register(&mut p.client, ci.pd, vec![7; LEN]);
    for n in 1..=5 {
        p.server.update_keys(s);
        let op = SendOp::Write { rkey: to.rkey, offset: 0 };
        p.client
            .adapter()
            .post_send(ci.qps[0], SendWr::new(n, op, whole(&from, LEN as u64)))
            .expect("posted");
        p.run(Span::from_secs(6));
        assert_eq!(complete(&mut p.client, &ci).status, Status::Success);
        for stats in [p.client.stats(c), p.server.stats(s)] {
            assert_eq!(stats.expect("open").key_generation, n);
        }
    }
}

#[test]
fn idle_ends_update_keys_and_go_quiet() {
    let mut p = Pair::new();
    let Link { client: c, server: s, .. } = p.linked();
    for n in 1..=4 {
        p.client.update_keys(c);
        let before = p.sent;
        p.run(Span::from_secs(3));
        assert_eq!(p.server.stats(s).expect("open").key_generation, n);
        assert!(p.sent[0] + p.sent[1] <= before[0] + before[1] + 12, "{before:?} {:?}", p.sent);
    }
}
