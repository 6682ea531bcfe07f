//! What a policy makes of flows: when they are made, and when it changes while they run.

mod pair;

use base::{Rate, Span};
use cc::platform::{Choice, Class, Order, PeerTerms, Policy, Qos, Traffic};
use longhaul_endpoint::{CcNegotiation, Event, FlowReport, QpOptions, refusal};
use pair::{DELAY, Link, Pair, config, read, register, server_config, whole};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use verbs::{SendOp, SendWr, Status};

/// Algorithms by version: of ordinary flows, and of those that ask for latency.
#[derive(Debug)]
struct TestPolicy {
    version: AtomicU64,
    ordinary: Vec<&'static str>,
    latency: &'static str,
    classes: Vec<Class>,
    peer: PeerTerms,
}

impl TestPolicy {
    fn new(ordinary: &[&'static str], latency: &'static str) -> Arc<TestPolicy> {
        let class = |name: &str, level| Class {
            name: name.into(),
            parent: None,
            weight: 1,
            level,
            guarantee: None,
            cap: None,
            order: Order::Fair,
        };
        let classes = vec![class("ordinary", 1), class("quick", 0)];
        Arc::new(TestPolicy {
            version: AtomicU64::new(0),
            ordinary: ordinary.to_vec(),
            latency,
            classes,
            peer: PeerTerms::default(),
        })
    }

    /// A policy that leaves the algorithm to the application, with terms for the other end.
    fn settling(peer: PeerTerms) -> Arc<TestPolicy> {
        let mut rules = TestPolicy::new(&[], "copa");
        if let Some(r) = Arc::get_mut(&mut rules) {
            r.peer = peer;
        }
        rules
    }

    fn change(&self) {
        self.version.fetch_add(1, Ordering::Relaxed);
    }
}

impl Policy for TestPolicy {
    fn choose(&self, traffic: &Traffic) -> Choice {
        let version = self.version.load(Ordering::Relaxed) as usize;
        let quick = traffic.qos == Qos::Latency;
        let asked = if traffic.asked.is_empty() { cc::registry::DEFAULT } else { traffic.asked.as_str() };
        let ordinary = self.ordinary.get(version % self.ordinary.len().max(1)).copied().unwrap_or(asked);
        let algorithm = if quick { self.latency } else { ordinary };
        Choice {
            rule: if quick { "quick" } else { "rest" }.into(),
            algorithm: algorithm.into(),
            fallback: "reno".into(),
            class: usize::from(quick),
            weight: 1,
            cap: (version > 0).then(|| Rate::from_mbit(400)),
            guarantee: None,
            dscp: None,
            peer: self.peer.clone(),
            why: Vec::new(),
        }
    }
    fn classes(&self) -> &[Class] {
        &self.classes
    }
    fn process_cap(&self) -> Option<Rate> {
        None
    }
    fn version(&self) -> u64 {
        self.version.load(Ordering::Relaxed)
    }
}

fn names(flows: &[FlowReport]) -> Vec<(&'static str, &str)> {
    flows.iter().map(|f| (f.facts.name, f.class.as_str())).collect()
}

#[test]
fn policy_applies_to_new_flows_and_on_change() {
    let mut p = Pair::new();
    let rules = TestPolicy::new(&["bbr", "cubic"], "copa");
    p.client.set_policy(rules.clone());
    let Link { client, .. } = p.linked();
    assert_eq!(names(&p.client.flows()), [("bbr", "ordinary")]);
    let quick = QpOptions { qos: Some(Qos::Latency), ..QpOptions::default() };
    for _ in 0..2 {
        p.client.open_qp(p.now, client, quick.clone()).expect("a queue pair");
    }
    p.client.open_qp(p.now, client, QpOptions::default()).expect("a queue pair");
    p.run(Span::from_millis(100));
    let flows = p.client.flows();
    assert_eq!(names(&flows), [("bbr", "ordinary"), ("copa", "quick")]);
    assert_eq!((flows[0].qps.len(), flows[1].qps.len()), (2, 2), "who asks for the same shares a flow");
    let choice = flows[1].choice.as_ref().expect("a choice");
    assert_eq!((choice.rule.as_str(), flows[1].facts.cap), ("quick", None));
    rules.change();
    p.run(Span::from_millis(1));
    p.client.handle_timeout(p.now);
    let flows = p.client.flows();
    assert_eq!(names(&flows), [("cubic", "ordinary"), ("copa", "quick")]);
    assert!(flows.iter().all(|f| f.facts.cap == Some(Rate::from_mbit(400))));
}

#[test]
fn flows_are_as_requested_without_a_policy() {
    let mut p = Pair::new();
    let Link { client, .. } = p.linked();
    p.client.open_qp(p.now, client, QpOptions { cc: "vegas".into(), ..Default::default() }).expect("a pair");
    p.run(Span::from_millis(100));
    let flows = p.client.flows();
    assert_eq!(names(&flows), [(cc::registry::DEFAULT, ""), ("vegas", "")]);
    assert!(flows.iter().all(|f| f.choice.is_none()));
    assert_eq!((flows[0].traffic.asked.as_str(), flows[1].traffic.asked.as_str()), ("", "vegas"));
}

#[test]
fn unavailable_algorithm_uses_the_fallback_with_a_reason() {
    let mut p = Pair::new();
    p.client.set_policy(TestPolicy::new(&["warp"], "warp"));
    p.linked();
    let flows = p.client.flows();
    assert_eq!(names(&flows), [("reno", "ordinary")]);
    let choice = flows[0].choice.as_ref().expect("a choice");
    assert!(choice.why.iter().any(|w| w.contains("\"warp\"")), "{:?}", choice.why);
}

#[test]
fn algorithm_change_during_a_transfer_loses_no_byte() {
    let (mut client, mut server) = (config(2), server_config(&[2]));
    for c in [&mut client, &mut server] {
        c.options.rate_cap = Some(Rate::from_mbit(200));
    }
    let mut p = Pair::with(client, server);
    let rules = TestPolicy::new(&cc::registry::names(), "copa");
    p.client.set_policy(rules.clone());
    let Link { ci, si, .. } = p.linked();
    let data: Vec<u8> = (0..8 << 20).map(|i: u32| (i ^ (i >> 8)) as u8).collect();
    let from = register(&mut p.client, ci.pd, data.clone());
    let to = register(&mut p.server, si.pd, vec![0; data.len()]);
    let write =
        SendWr::new(7, SendOp::Write { rkey: to.rkey, offset: 0 }, vec![whole(&from, data.len() as u64)]);
    p.client.adapter().post_send(ci.qps[0], write).expect("posted");
    let mut seen = std::collections::BTreeSet::new();
    let mut done = None;
    let began = p.now;
    while done.is_none() && p.now < began + Span::from_secs(10) {
        let f = p.client.flows().swap_remove(0).facts;
        seen.insert(f.name);
        rules.change();
        p.run(DELAY * 5);
        done = p.client.adapter().poll_cq(ci.cq);
    }
    assert!(seen.len() > 5, "{seen:?}");
    assert_eq!(done.expect("completed").status, Status::Success);
    assert!(read(&mut p.server, &to, data.len()) == data);
    assert_eq!(p.client.stats(p.client.flows()[0].conn).expect("open").packets_lost, 0);
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

/// What the client and the server send with where both negotiate so, and the server has a policy with these terms.
fn settled(client: CcNegotiation, server: &str, terms: PeerTerms) -> (Pair, Link, [&'static str; 2]) {
    let (mut c, mut s) = (config(2), server_config(&[2]));
    (c.options.cc, s.options.cc) = ("bbr".to_owned(), server.to_owned());
    c.options.negotiation = client;
    let mut p = Pair::with(c, s);
    p.server.set_policy(TestPolicy::settling(terms));
    let l = p.linked();
    let names = [&p.client, &p.server].map(|e| e.flows()[0].facts.name);
    (p, l, names)
}

#[test]
fn policy_terms_are_negotiated_with_the_peer() {
    let preferring = |names: &[&str]| CcNegotiation { preferred: owned(names), ..CcNegotiation::default() };
    let free = PeerTerms::default();
    assert_eq!(settled(preferring(&["vegas"]), "cubic", free.clone()).2, ["bbr", "vegas"]);
    // What the peer may preferred: the rest is not offered.
    let terms = PeerTerms { allow: Some(owned(&["reno"])), ..free.clone() };
    assert_eq!(settled(preferring(&["vegas"]), "cubic", terms.clone()).2, ["bbr", "cubic"]);
    let (mut p, l, names) = settled(preferring(&["vegas", "reno"]), "cubic", terms);
    assert_eq!(names, ["bbr", "reno"]);
    // Nor is it granted later.
    p.client.propose_cc(p.now, l.client, None, false, "vegas").expect("proposed");
    p.run(DELAY * 4);
    let refused = |e: &Event| matches!(e, Event::CcRefused { code: refusal::FORBIDDEN, .. });
    assert!(p.client_events().iter().any(refused));
    let terms = PeerTerms { prefer_own: Some(true), ..free.clone() };
    assert_eq!(settled(preferring(&["vegas"]), "cubic", terms).2, ["bbr", "cubic"]);
    // What it is to send with, and what not.
    let terms = PeerTerms { preferred: Some(owned(&["copa"])), ..free.clone() };
    assert_eq!(settled(preferring(&[]), "cubic", terms).2, ["copa", "cubic"]);
    let terms = PeerTerms { refuse: owned(&["bbr"]), ..free };
    let (mut p, l, names) = settled(preferring(&[]), "cubic", terms);
    assert!(names[0] != "bbr" && names[1] == "cubic", "{names:?}");
    let e = p.server.propose_cc(p.now, l.server, None, false, "bbr").unwrap_err().to_string();
    assert!(e.contains("policy does not let the other end send with bbr"), "{e}");
}
