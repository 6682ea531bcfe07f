//! Congestion control that two endpoints negotiate: in the handshake, for queue pairs and during the connection; and
//! peers that break the rules.

mod pair;

use base::{Rng, Span};
use longhaul_endpoint::{
    Allow, CcChangeReason, CcNegotiation, CloseReason, Config, Endpoint, Event, QpOptions, refusal,
};
use pair::{DELAY, InFlight, Link, Pair, closed, complete, config, read, register, server_config, whole};
use std::cell::RefCell;
use std::rc::Rc;
use verbs::{Memory, SendOp, SendWr};
use wire::packet::SHORT_CLEAR;
use wire::{CcAnswer, CcOffer, CcPropose, CcRuns, CcTopic, Clear, Frame, Module, Put};

fn with(cc: &str, n: CcNegotiation, mut c: Config) -> Config {
    c.options.cc = cc.into();
    c.options.negotiation = n;
    c
}
fn linked(client: (&str, CcNegotiation), server: (&str, CcNegotiation)) -> (Pair, Link) {
    let mut p =
        Pair::with(with(client.0, client.1, config(2)), with(server.0, server.1, server_config(&[2])));
    let l = p.linked();
    (p, l)
}
fn none() -> CcNegotiation {
    CcNegotiation::default()
}
fn preferring(preferred: &[&str]) -> CcNegotiation {
    CcNegotiation { preferred: preferred.iter().map(|w| (*w).to_owned()).collect(), ..none() }
}

/// What both ends say is agreed on, for what the client and the server send; they must say the same.
fn agreed(p: &Pair, l: &Link, pair_at: Option<usize>) -> (String, String) {
    let at = |e: &Endpoint, conn, qps: &[verbs::QpId], sending| {
        e.agreed_cc(conn, pair_at.map(|i| qps[i]), sending).expect("known").to_owned()
    };
    let (ci, si) = (p.client.connection(l.client).unwrap(), p.server.connection(l.server).unwrap());
    let both =
        |sending| (at(&p.client, l.client, &ci.qps, sending), at(&p.server, l.server, &si.qps, !sending));
    let ((c, same_c), (s, same_s)) = (both(true), both(false));
    assert_eq!((&c, &s), (&same_c, &same_s));
    (c, s)
}
/// Names of what really runs at both ends, on the connection's own flow.
fn running(p: &Pair, l: &Link) -> (&'static str, &'static str) {
    (p.client.stats(l.client).unwrap().cc.0, p.server.stats(l.server).unwrap().cc.0)
}
/// Moves a megabyte from the client to the server, which must be there in the end.
fn transfer(p: &mut Pair, l: &Link, between: impl FnOnce(&mut Pair)) {
    const LEN: usize = 1 << 20;
    let bytes: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    let to = register(&mut p.server, l.si.pd, Memory::zeroed(LEN));
    let from = register(&mut p.client, l.ci.pd, bytes.clone());
    let op = SendOp::Write { rkey: to.rkey, offset: 0 };
    p.client.adapter().post_send(l.ci.qps[0], SendWr::new(1, op, whole(&from, LEN as u64))).unwrap();
    p.run(DELAY * 3);
    between(p);
    p.run(Span::from_secs(20));
    assert_eq!(complete(&mut p.client, &l.ci).status, verbs::Status::Success);
    assert_eq!(read(&mut p.server, &to, LEN), bytes);
}

#[test]
fn each_end_uses_its_choice_unless_the_peer_prefers_otherwise() {
    let (p, l) = linked(("bbr", none()), ("cubic", none()));
    assert_eq!(agreed(&p, &l, None), ("bbr".into(), "cubic".into()));
    let (p, l) = linked(
        ("bbr", preferring(&["never-heard-of", "reno"])),
        ("cubic", preferring(&["cubic:hystart=off"])),
    );
    assert_eq!(agreed(&p, &l, None), ("cubic:hystart=off".into(), "reno".into()));
    assert_eq!(running(&p, &l), ("cubic", "reno"));
    let prefer_own = CcNegotiation { prefer_own: true, ..none() };
    let (p, l) = linked(("bbr", preferring(&["reno"])), ("cubic", prefer_own));
    assert_eq!(running(&p, &l), ("bbr", "cubic"));
    let lends = CcNegotiation { allow: Allow::Only(vec!["vegas".into()]), ..none() };
    let (p, l) = linked(("bbr", preferring(&["reno", "vegas"])), ("cubic", lends));
    assert_eq!(running(&p, &l), ("bbr", "vegas"));
}

#[test]
fn refused_algorithms_are_not_used_and_none_left_fails_the_connection() {
    let refuses = CcNegotiation { refuse: vec!["cubic".into()], ..none() };
    let (p, l) = linked(("bbr", refuses.clone()), ("cubic", none()));
    assert_eq!(running(&p, &l).0, "bbr");
    assert_ne!(running(&p, &l).1, "cubic");
    let stubborn = CcNegotiation { allow: Allow::Only(Vec::new()), ..none() };
    let mut p = Pair::with(with("bbr", refuses, config(2)), with("cubic", stubborn, server_config(&[2])));
    p.connect();
    p.run(Span::from_secs(5));
    let why = closed(&p.client_events()).expect("closed");
    assert!(why.contains("refuses cubic") && why.contains("what the server sends"), "{why}");
    assert_eq!(p.server.connections().count(), 0);
}

#[test]
fn invalid_settings_are_reported_before_sending() {
    for (n, word) in [
        (preferring(&["bbr:nonsense=1"]), "nonsense"),
        (preferring(&["Not A Name"]), "Not A Name"),
        (CcNegotiation { refuse: vec!["x".into(); 33], ..none() }, "at most 32"),
    ] {
        let mut p = Pair::with(with("bbr", n, config(2)), server_config(&[2]));
        let c = p.connect_options();
        let e = p.client.connect(p.now, c).unwrap_err().to_string();
        assert!(e.contains(word), "{e}");
    }
}

#[test]
fn algorithm_changes_during_a_transfer() {
    let (mut p, l) = linked(("bbr", none()), ("haul", none()));
    transfer(&mut p, &l, |p| {
        p.client.propose_cc(p.now, l.client, None, true, "cubic").unwrap();
        assert_eq!(p.client.agreed_cc(l.client, None, true), Some("bbr"), "not before the server's answer");
        p.server.propose_cc(p.now, l.server, None, true, "reno").unwrap();
        p.run(DELAY * 3);
        assert_eq!(agreed(p, &l, None), ("cubic".into(), "reno".into()));
        assert_eq!(running(p, &l), ("cubic", "reno"));
        // The receiver asks the sender.
        p.server.propose_cc(p.now, l.server, None, false, "copa").unwrap();
        p.run(DELAY * 3);
        assert_eq!(running(p, &l).0, "copa");
    });
    let changed = |events: &[Event], cc: &str, by: bool| {
        events.iter().any(
            |e| matches!(e, Event::CcChanged { cc: c, by_peer, qp: None, .. } if c == cc && *by_peer == by),
        )
    };
    let (c, s) = (p.client_events(), p.server_events());
    assert!(changed(&c, "cubic", false) && changed(&s, "cubic", true));
    assert!(changed(&c, "copa", true) && changed(&s, "copa", false));
    assert_eq!((closed(&c), closed(&s)), (None, None));
}

#[test]
fn queue_pairs_change_their_own_algorithms() {
    let (mut p, l) = linked(("bbr", none()), ("haul", none()));
    let options = QpOptions { cc: "cubic".into(), ..QpOptions::default() };
    let qp = p.client.open_qp(p.now, l.client, options.clone()).unwrap();
    p.client.open_qp(p.now, l.client, options).unwrap();
    let e = p.client.propose_cc(p.now, l.client, Some(qp), true, "reno").unwrap_err();
    assert!(e.to_string().contains("wait until it is ready"), "{e}");
    p.run(DELAY * 4);
    assert_eq!(agreed(&p, &l, Some(1)), ("cubic".into(), "cubic".into()));
    p.client.propose_cc(p.now, l.client, Some(qp), true, "reno").unwrap();
    p.run(DELAY * 4);
    assert_eq!(agreed(&p, &l, Some(1)), ("reno".into(), "cubic".into()), "one direction");
    assert_eq!(agreed(&p, &l, Some(2)), ("cubic".into(), "cubic".into()), "and not the other queue pair");
    assert_eq!(running(&p, &l), ("bbr", "haul"));
    // Both in the same flow as before, then one that had the connection's.
    p.client.propose_cc(p.now, l.client, Some(qp), true, "cubic").unwrap();
    p.run(DELAY * 4);
    p.server.propose_cc(p.now, l.server, Some(l.si.qps[0]), false, "vegas").unwrap();
    p.run(DELAY * 4);
    assert_eq!(agreed(&p, &l, Some(0)), ("vegas".into(), "haul".into()));
    transfer(&mut p, &l, |_| {});
    let e = p.client.propose_cc(p.now, l.client, Some(verbs::QpId::of_raw(999)), true, "reno").unwrap_err();
    assert!(e.to_string().contains("queue pair"), "{e}");
}

#[test]
fn refusals_carry_a_reason_and_change_nothing() {
    let server = CcNegotiation {
        allow: Allow::Only(vec!["cubic".into(), "bbr".into()]),
        refuse: vec!["fixed".into()],
        ..none()
    };
    let (mut p, l) = linked(("bbr", none()), ("haul", server));
    let e = p.client.propose_cc(p.now, l.client, None, true, "fixed:rate=1G").unwrap_err();
    assert!(e.to_string().contains("will not have fixed"), "known from the handshake: {e}");
    let e =
        p.client.open_qp(p.now, l.client, QpOptions { cc: "fixed:rate=1G".into(), ..QpOptions::default() });
    assert!(e.unwrap_err().to_string().contains("will not have fixed"));
    for (cc, code) in [("reno", refusal::FORBIDDEN), ("cubic:hystart=perhaps", refusal::PARAMETERS)] {
        p.client.propose_cc(p.now, l.client, None, false, cc).unwrap();
        let e = p.client.propose_cc(p.now, l.client, None, false, cc).unwrap_err();
        assert!(e.to_string().contains("not answered yet"), "{e}");
        p.run(DELAY * 4);
        let events = p.client_events();
        assert!(
            matches!(&events[..], [Event::CcRefused { code: c, cc: text, sending: false, .. }] if *c == code && text == cc),
            "{events:?}"
        );
    }
    assert_eq!(agreed(&p, &l, None), ("bbr".into(), "haul".into()));
    p.client.propose_cc(p.now, l.client, None, false, "cubic").unwrap();
    p.run(DELAY * 4);
    assert_eq!(running(&p, &l), ("bbr", "cubic"));
    // Asked by the peer, a queue pair does not get it either.
    let qp =
        p.client.open_qp(p.now, l.client, QpOptions { cc: "vegas".into(), ..QpOptions::default() }).unwrap();
    p.run(DELAY * 4);
    let events = p.client_events();
    assert!(events.contains(&Event::QpRefused { conn: l.client, qp, code: 2 }), "{events:?}");
}

/// Frames are lost, repeated and late; both ends propose what they like.
#[test]
fn both_ends_converge_despite_loss() {
    const SPECS: [&str; 6] = ["bbr", "cubic", "reno", "vegas", "copa", "cubic:hystart=off"];
    let mut proposed = 0;
    for seed in 0..40 {
        let (mut p, l) = linked(("bbr", none()), ("haul", none()));
        for _ in 0..2 {
            p.client
                .open_qp(p.now, l.client, QpOptions { cc: "reno".into(), ..QpOptions::default() })
                .unwrap();
        }
        p.run(DELAY * 4);
        p.disturb(seed);
        let mut rng = Rng::from_u64(seed ^ 0xcc);
        transfer(&mut p, &l, |p| {
            for _ in 0..60 {
                let client = rng.chance(0.5);
                let i = rng.below(4) as usize;
                let cc = SPECS[rng.below(6) as usize];
                let (e, conn) = if client { (&mut p.client, l.client) } else { (&mut p.server, l.server) };
                let qp = e.connection(conn).unwrap().qps.get(i).copied();
                proposed += u32::from(e.propose_cc(p.now, conn, qp, rng.chance(0.5), cc).is_ok());
                p.run(Span::from_micros(rng.below(30_000)));
            }
            p.calm();
        });
        for i in [None, Some(0), Some(1), Some(2)] {
            agreed(&p, &l, i);
        }
        let (c, s) = agreed(&p, &l, None);
        let name = |spec: &str| spec.split(':').next().unwrap_or_default().to_owned();
        assert_eq!(running(&p, &l), (&*name(&c), &*name(&s)), "seed {seed}");
        let settled = |events: Vec<Event>| {
            assert_eq!(closed(&events), None, "seed {seed}");
            events
                .iter()
                .filter(|e| matches!(e, Event::CcChanged { by_peer: false, .. } | Event::CcRefused { .. }))
                .count()
        };
        proposed -= (settled(p.client_events()) + settled(p.server_events())) as u32;
        assert_eq!(proposed, 0, "seed {seed}: each proposal has one outcome");
    }
}

/// CRC-32C (RFC 3720, appendix B.4), bit by bit.
fn crc32c<'a>(bytes: impl Iterator<Item = &'a u8>) -> u32 {
    !bytes.fold(!0_u32, |crc, b| {
        (0..8).fold(crc ^ u32::from(*b), |c, _| if c & 1 == 0 { c >> 1 } else { c >> 1 ^ 0x82f6_3b78 })
    })
}

/// The client's end of a connection whose packets anybody can make.
struct Forger {
    p: Pair,
    l: Link,
    cid: [u8; 4],
    pn: u64,
}

impl Forger {
    fn new() -> Forger {
        let (mut c, mut s) = (config(2), server_config(&[2]));
        (c.options.module, s.options.module) = (Module::Crc32c, Module::Crc32c);
        let mut p = Pair::with(c, s);
        let newest = Rc::new(RefCell::new(([0; 4], 0)));
        let seen = newest.clone();
        p.filter = Box::new(move |f| {
            if f.to_server
                && let Ok(Clear::Short(cid)) = Clear::parse(&f.bytes)
            {
                let pn = f.bytes[5..SHORT_CLEAR].try_into().map(u32::from_be_bytes).expect("four bytes");
                *seen.borrow_mut() = (cid.0.to_be_bytes(), u64::from(pn));
            }
            true
        });
        let l = p.linked();
        p.run(Span::from_millis(100));
        let (cid, pn) = *newest.borrow();
        // From now on the client says nothing of its own.
        p.filter = Box::new(|f| !f.to_server);
        Forger { p, l, cid, pn: pn + 1 }
    }

    fn say(&mut self, frames: &[Frame<'_>]) {
        let mut inner = Vec::new();
        frames.iter().for_each(|f| f.put(&mut inner));
        let mut bytes = vec![0];
        bytes.put(&self.cid);
        bytes.put_u32(self.pn as u32);
        let mut pseudo = [0; 12];
        pseudo[4..].copy_from_slice(&self.pn.to_be_bytes());
        let crc = crc32c(pseudo.iter().chain(&bytes).chain(&inner));
        bytes.put_u32(crc);
        bytes.put(&inner);
        self.pn += 1;
        let (at, from) = (self.p.now, self.p.client_addr);
        self.p.deliver(InFlight { at, from, to_server: true, bytes });
    }

    /// Why the server has ended the connection.
    fn ended(&mut self) -> Option<CloseReason> {
        self.p.server_events().into_iter().find_map(|e| match e {
            Event::Closed { reason, .. } => Some(reason),
            _ => None,
        })
    }
}

fn proposal(of_server: bool, sequence: u64, cc: &str) -> CcPropose {
    let def = cc::registry::find(cc).unwrap();
    let offer = CcOffer { name: cc.into(), version: def.version(), needs: 0, params: String::new() };
    CcPropose { topic: CcTopic { qpn: None, of_server }, sequence, offer }
}

#[test]
fn forged_proposal_is_processed_by_the_test_setup() {
    let mut f = Forger::new();
    f.say(&[Frame::CcPropose(proposal(true, 1, "reno"))]);
    assert_eq!(f.p.server.stats(f.l.server).unwrap().cc.0, "reno");
    assert_eq!(f.ended(), None);
    // What the server does not have, in another version, out of range.
    for (sequence, change) in [(2, 0), (3, 1), (4, 2)] {
        let mut p = proposal(true, sequence, "cubic");
        match change {
            0 => p.offer.name = "unheard-of".into(),
            1 => p.offer.version += 1,
            _ => p.offer.params = "initial_window=0".into(),
        }
        f.say(&[Frame::CcPropose(p)]);
        assert_eq!(f.p.server.stats(f.l.server).unwrap().cc.0, "reno");
        assert_eq!(f.ended(), None, "refused");
    }
}

#[test]
fn protocol_violation_closes_the_connection() {
    let topic = CcTopic { qpn: None, of_server: true };
    let wrong = [
        vec![Frame::CcAnswer(CcAnswer { topic, sequence: 1, code: 0 })],
        vec![Frame::CcPropose(proposal(true, 2, "reno"))],
        vec![Frame::CcPropose(proposal(true, 1 << 60, "reno"))],
    ];
    for frames in wrong {
        let mut f = Forger::new();
        f.say(&frames);
        assert!(matches!(f.ended(), Some(CloseReason::Violation(_))), "{frames:?}");
    }
}

#[test]
fn peer_notifications_apply_newest_first_and_are_rate_limited() {
    let mut f = Forger::new();
    let runs = |qpn, number, chosen: &str| {
        let fallback = if number == 9 { "unheard-of".to_owned() } else { String::new() };
        let chosen = chosen.to_owned();
        Frame::CcRuns(CcRuns { qpn, sequence: 0, number, reason: 99, chosen, fallback })
    };
    f.say(&[runs(None, 9, "reno"), runs(None, 7, "cubic"), runs(None, 9, "bbr")]);
    let heard = f.p.server.flows()[0].peer.clone().unwrap();
    assert_eq!((heard.runs.chosen.as_str(), heard.runs.effective()), ("reno", "unheard-of"));
    assert_eq!(heard.why, CcChangeReason::Other(99));
    for number in 10..5_000 {
        f.say(&[
            runs(Some(number as u16), number, "reno"),
            runs(None, number, ["a", "b"][number as usize % 2]),
        ]);
    }
    let events = f.p.server_events();
    let told = events.iter().filter(|e| matches!(e, Event::CcReplacedByPeer { .. })).count();
    assert!((2..=64).contains(&told) && !events.iter().any(|e| matches!(e, Event::Closed { .. })), "{told}");
    assert_eq!(f.p.server.agreed_cc(f.l.server, None, false), Some("b"), "the newest all the same");
}

#[test]
fn excessive_proposals_are_refused_then_close_the_connection() {
    let mut f = Forger::new();
    let names = ["reno", "cubic"];
    let mut said = 0;
    for sequence in 1..2_000_u64 {
        f.say(&[Frame::CcPropose(proposal(true, sequence, names[sequence as usize % 2]))]);
        said = sequence;
        if let Some(reason) = f.ended() {
            assert!(reason.to_string().contains("endless changes"), "{reason}");
            break;
        }
    }
    assert!((100..1_000).contains(&said), "{said}");
}
