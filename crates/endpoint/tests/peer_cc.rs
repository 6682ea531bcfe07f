//! Preferences for the peer's congestion control that a policy changes, or has for the queue pairs of one flow.

mod pair;

use base::{Rng, Span};
use cc::platform::{Choice, Class, Order, PeerTerms, Policy, Qos, Traffic};
use longhaul_endpoint::{Allow, CcNegotiation, Endpoint, Event, QpOptions};
use pair::{DELAY, Link, Pair, closed, complete, config, read, register, server_config, whole};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use verbs::{Memory, SendOp, SendWr, Status};

/// A policy with terms for the other end: of flows that ask for latency, and of all others.
#[derive(Debug)]
struct TestPolicy {
    version: AtomicU64,
    now: Mutex<[PeerTerms; 2]>,
    classes: Vec<Class>,
}

impl TestPolicy {
    fn new(others: PeerTerms, latency: PeerTerms) -> Arc<TestPolicy> {
        let class = Class {
            name: "all".into(),
            parent: None,
            weight: 1,
            level: 0,
            guarantee: None,
            cap: None,
            order: Order::Fair,
        };
        Arc::new(TestPolicy {
            version: AtomicU64::new(0),
            now: Mutex::new([others, latency]),
            classes: vec![class],
        })
    }

    fn change(&self, others: PeerTerms, latency: PeerTerms) {
        *self.now.lock().expect("not poisoned") = [others, latency];
        self.version.fetch_add(1, Ordering::Relaxed);
    }
}

impl Policy for TestPolicy {
    fn choose(&self, traffic: &Traffic) -> Choice {
        let quick = traffic.qos == Qos::Latency;
        let asked = if traffic.asked.is_empty() { cc::registry::DEFAULT } else { traffic.asked.as_str() };
        Choice {
            rule: String::new(),
            algorithm: asked.into(),
            fallback: "reno".into(),
            class: 0,
            weight: 1,
            cap: None,
            guarantee: None,
            dscp: None,
            peer: self.now.lock().expect("not poisoned")[usize::from(quick)].clone(),
            why: Vec::new(),
        }
    }
    fn classes(&self) -> &[Class] {
        &self.classes
    }
    fn process_cap(&self) -> Option<base::Rate> {
        None
    }
    fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

fn nothing() -> PeerTerms {
    PeerTerms::default()
}

fn preferred(names: &[&str]) -> PeerTerms {
    PeerTerms { preferred: Some(owned(names)), ..nothing() }
}

/// A client that says this of congestion control, and a server with this policy.
fn linked(client: CcNegotiation, terms: &Arc<TestPolicy>) -> (Pair, Link) {
    let (mut c, mut s) = (config(2), server_config(&[2]));
    c.options.negotiation = client;
    c.options.cc = "bbr".into();
    for o in [&mut c, &mut s] {
        o.options.rate_cap = Some(base::Rate::from_mbit(200));
    }
    let mut p = Pair::with(c, s);
    p.server.set_policy(terms.clone());
    let l = p.linked();
    (p, l)
}

/// Lets so many round trips pass, beginning with the server's look at its policy.
fn pass(p: &mut Pair, rounds: u64) {
    p.server.handle_timeout(p.now);
    p.run(DELAY * (2 * rounds));
}

/// What the client sends with on its own flow: what decides, and what the server says that it is.
fn sent_with(p: &Pair, l: &Link) -> (&'static str, String) {
    let said = p.server.agreed_cc(l.server, None, false).expect("known").to_owned();
    (p.client.flows()[0].facts.name, said)
}

fn refusals(events: &[Event]) -> usize {
    events.iter().filter(|e| matches!(e, Event::CcRefused { .. })).count()
}

#[test]
fn changed_preference_is_proposed_during_a_transfer_without_loss() {
    const LEN: usize = 4 << 20;
    let terms = TestPolicy::new(nothing(), nothing());
    let (mut p, l) = linked(CcNegotiation::default(), &terms);
    assert_eq!(sent_with(&p, &l), ("bbr", "bbr".into()));
    let bytes: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    let to = register(&mut p.server, l.si.pd, Memory::zeroed(LEN));
    let from = register(&mut p.client, l.ci.pd, bytes.clone());
    let op = SendOp::Write { rkey: to.rkey, offset: 0 };
    p.client.adapter().post_send(l.ci.qps[0], SendWr::new(1, op, whole(&from, LEN as u64))).expect("posted");
    for (list, expected) in [
        (&["cubic", "reno"][..], "cubic"),
        // Both are fine, but the first is better.
        (&["reno", "cubic"], "reno"),
        (&["never-heard-of", "copa", "reno"], "copa"),
        // There is no preference any more: it stays.
        (&[], "copa"),
    ] {
        terms.change(preferred(list), nothing());
        pass(&mut p, 3);
        assert_eq!(sent_with(&p, &l), (expected, expected.into()), "{list:?}");
    }
    // The very parameters.
    terms.change(preferred(&["cubic:hystart=off"]), nothing());
    pass(&mut p, 3);
    assert_eq!(sent_with(&p, &l), ("cubic", "cubic:hystart=off".into()));
    p.run(Span::from_secs(20));
    assert_eq!(complete(&mut p.client, &l.ci).status, Status::Success);
    assert!(read(&mut p.server, &to, LEN) == bytes);
    // Both applications were told of each change, and of nothing that was refused.
    let changed = |events: &[Event], by: bool| {
        events.iter().filter(|e| matches!(e, Event::CcChanged { by_peer, .. } if *by_peer == by)).count()
    };
    let (c, s) = (p.client_events(), p.server_events());
    assert_eq!((changed(&c, true), changed(&s, false)), (4, 4), "{c:?} {s:?}");
    assert_eq!((refusals(&c), refusals(&s)), (0, 0));
}

#[test]
fn next_preference_is_used_when_the_first_is_refused() {
    let lends = CcNegotiation { allow: Allow::Only(owned(&["reno", "cubic"])), ..CcNegotiation::default() };
    let terms = TestPolicy::new(nothing(), nothing());
    let (mut p, l) = linked(lends, &terms);
    terms.change(preferred(&["vegas", "copa", "reno", "cubic"]), nothing());
    pass(&mut p, 6);
    assert_eq!(sent_with(&p, &l), ("reno", "reno".into()));
    assert_eq!(refusals(&p.server_events()), 0, "the application had asked for nothing");
    // What it sends with is refused from now on: the first that it has offered and that is not.
    terms.change(PeerTerms { refuse: owned(&["reno", "bbr"]), ..nothing() }, nothing());
    pass(&mut p, 6);
    assert_eq!(sent_with(&p, &l), ("cubic", "cubic".into()));
    // Nor is it had by the sender's own proposal.
    p.client.propose_cc(p.now, l.client, None, true, "bbr").expect("proposed");
    p.run(DELAY * 4);
    assert_eq!(refusals(&p.client_events()), 1);
    assert_eq!(sent_with(&p, &l), ("cubic", "cubic".into()));
    // All is refused: nothing can be done, and the connection lasts.
    terms.change(PeerTerms { refuse: owned(&["reno", "bbr", "cubic"]), ..nothing() }, nothing());
    pass(&mut p, 40);
    assert_eq!(sent_with(&p, &l), ("cubic", "cubic".into()));
    assert_eq!((closed(&p.client_events()), closed(&p.server_events())), (None, None));
}

#[test]
fn policy_changes_which_algorithms_the_peer_may_prefer() {
    let terms = TestPolicy::new(PeerTerms { allow: Some(owned(&["reno"])), ..nothing() }, nothing());
    let (mut p, l) = linked(CcNegotiation::default(), &terms);
    let preferred = |p: &mut Pair, cc: &str| {
        p.client.propose_cc(p.now, l.client, None, false, cc).expect("proposed");
        p.run(DELAY * 6);
        let refused = refusals(&p.client_events());
        (p.server.flows()[0].facts.name, refused)
    };
    assert_eq!(preferred(&mut p, "cubic"), ("haul", 1));
    terms.change(PeerTerms { allow: Some(owned(&["cubic"])), ..nothing() }, nothing());
    pass(&mut p, 1);
    assert_eq!(preferred(&mut p, "cubic"), ("cubic", 0));
    assert_eq!(preferred(&mut p, "reno"), ("cubic", 1));
}

/// What the server sends with on each of the client's queue pairs, as the client has it; the server says the same.
fn on_each(p: &Pair, l: &Link) -> Vec<String> {
    let qps = |e: &Endpoint, conn| e.connection(conn).expect("open").qps.clone();
    let (c, s) = (qps(&p.client, l.client), qps(&p.server, l.server));
    let of =
        |e: &Endpoint, conn, qp, sending| e.agreed_cc(conn, Some(qp), sending).expect("known").to_owned();
    let heard: Vec<String> = c.iter().map(|qp| of(&p.client, l.client, *qp, false)).collect();
    let runs: Vec<String> = s.iter().map(|qp| of(&p.server, l.server, *qp, true)).collect();
    assert_eq!(heard, runs);
    heard
}

#[test]
fn queue_pairs_have_preferences_of_their_own() {
    let terms = TestPolicy::new(preferred(&["cubic"]), preferred(&["copa"]));
    let mut p = Pair::with(config(2), server_config(&[2]));
    p.client.set_policy(terms.clone());
    let l = p.linked();
    let quick = QpOptions { qos: Some(Qos::Latency), ..QpOptions::default() };
    p.client.open_qp(p.now, l.client, quick.clone()).expect("a queue pair");
    p.client.open_qp(p.now, l.client, QpOptions::default()).expect("a queue pair");
    p.run(DELAY * 8);
    // One that joins the flow later prefers the same.
    p.client.open_qp(p.now, l.client, quick).expect("a queue pair");
    p.run(DELAY * 8);
    assert_eq!(on_each(&p, &l), ["cubic", "copa", "cubic", "copa"]);
    let flows = p.client.flows();
    assert_eq!(flows[1].peer.as_ref().map(|h| h.runs.chosen.as_str()), Some("copa"));
    // Each follows its own rule.
    terms.change(preferred(&["cubic"]), preferred(&["vegas"]));
    p.client.handle_timeout(p.now);
    p.run(DELAY * 8);
    assert_eq!(on_each(&p, &l), ["cubic", "vegas", "cubic", "vegas"]);
    terms.change(preferred(&["reno"]), preferred(&["vegas"]));
    p.client.handle_timeout(p.now);
    p.run(DELAY * 8);
    assert_eq!(on_each(&p, &l), ["reno", "vegas", "reno", "vegas"]);
}

/// The sender proposes, too, and frames are lost, repeated and late.
#[test]
fn preference_is_granted_eventually_despite_crossing_and_loss() {
    const SPECS: [&str; 4] = ["bbr", "cubic", "reno", "vegas"];
    for seed in 0..40 {
        let terms = TestPolicy::new(nothing(), nothing());
        let (mut p, l) = linked(CcNegotiation::default(), &terms);
        p.disturb(seed);
        let mut rng = Rng::from_u64(seed ^ 0x3154);
        for _ in 0..40 {
            let cc = SPECS[rng.below(4) as usize];
            if rng.chance(0.5) {
                terms.change(preferred(&[cc]), nothing());
                p.server.handle_timeout(p.now);
            } else {
                drop(p.client.propose_cc(p.now, l.client, None, true, cc));
            }
            p.run(Span::from_micros(rng.below(30_000)));
        }
        p.run(Span::from_secs(1));
        terms.change(preferred(&["copa"]), nothing());
        p.server.handle_timeout(p.now);
        // Crosses it, most likely.
        drop(p.client.propose_cc(p.now, l.client, None, true, "cubic:hystart=off"));
        p.run(Span::from_millis(100));
        p.calm();
        p.run(Span::from_secs(20));
        assert_eq!((closed(&p.client_events()), closed(&p.server_events())), (None, None), "seed {seed}");
        assert_eq!(sent_with(&p, &l), ("copa", "copa".into()), "seed {seed}");
    }
}

#[test]
fn preference_changes_stay_within_the_proposal_limit() {
    let terms = TestPolicy::new(nothing(), nothing());
    let (mut p, l) = linked(CcNegotiation::default(), &terms);
    for i in 0..1_000 {
        terms.change(preferred(&[if i % 2 == 0 { "cubic" } else { "reno" }]), nothing());
        p.server.handle_timeout(p.now);
        p.run(Span::from_millis(1));
    }
    pass(&mut p, 20);
    assert_eq!(sent_with(&p, &l), ("reno", "reno".into()));
    let (c, s) = (p.client_events(), p.server_events());
    assert_eq!((closed(&c), closed(&s), refusals(&s)), (None, None, 0));
    // 50 round trips of 20 ms, and 16 at once (docs/protocol.md, section 10.4).
    let changed = s.iter().filter(|e| matches!(e, Event::CcChanged { .. })).count();
    assert!((20..=70).contains(&changed), "{changed}");
}
