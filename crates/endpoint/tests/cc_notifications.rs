//! Notifications of congestion control changes that the peer was not asked about.

mod pair;

use base::{Rng, Span};
use longhaul_endpoint::{CcChangeReason, Endpoint, Event, FlowReport, QpOptions};
use pair::{DELAY, Pair, closed, config, server_config};

fn linked() -> (Pair, pair::Link) {
    let mut p = Pair::with(config(2), server_config(&[2]));
    let l = p.linked();
    (p, l)
}

fn flow(e: &Endpoint, flow: u8) -> FlowReport {
    e.flows().into_iter().find(|f| f.facts.flow == flow).expect("the flow is there")
}

/// What the client sends with on a flow, as the client and as the server has it.
fn both(p: &Pair, of: u8) -> (String, String) {
    let heard = flow(&p.server, of).peer.expect("the peer says it");
    (flow(&p.client, of).facts.spec, heard.runs.chosen)
}

#[test]
fn administrative_change_is_reported_to_peer_and_applications() {
    let (mut p, l) = linked();
    assert_eq!(both(&p, 0), ("haul".into(), "haul".into()));
    assert_eq!(flow(&p.client, 0).facts.change, None);
    p.client.set_flow(l.client, 0, Some("cubic:hystart=off"), None).unwrap();
    p.run(DELAY * 2);
    assert_eq!(both(&p, 0), ("cubic:hystart=off".into(), "cubic:hystart=off".into()));
    let change = flow(&p.client, 0).facts.change.expect("it was noted");
    assert_eq!(
        (change.from.as_str(), change.to.as_str(), change.why),
        ("haul", "cubic:hystart=off", CcChangeReason::Policy)
    );
    let (from, to, why) = (change.from, change.to, change.why);
    let ours = Event::CcReplaced { conn: l.client, flow: 0, from: from.clone(), to: to.clone(), why };
    assert_eq!(p.client_events(), [ours]);
    let theirs = Event::CcReplacedByPeer { conn: l.server, qp: None, from, to, why };
    assert_eq!(p.server_events(), [theirs]);
    // What is what it was already is not told again.
    p.client.set_flow(l.client, 0, Some("cubic:hystart=off"), None).unwrap();
    p.run(DELAY * 2);
    assert_eq!((p.client_events(), p.server_events()), (vec![], vec![]));
}

#[test]
fn agreed_change_is_not_reported() {
    let (mut p, l) = linked();
    p.client.propose_cc(p.now, l.client, None, true, "cubic").unwrap();
    p.run(DELAY * 4);
    let told = |events: Vec<Event>| {
        assert!(events.iter().any(|e| matches!(e, Event::CcChanged { .. })), "{events:?}");
        events.iter().any(|e| matches!(e, Event::CcReplaced { .. } | Event::CcReplacedByPeer { .. }))
    };
    assert!(!told(p.client_events()) && !told(p.server_events()));
    assert_eq!(both(&p, 0), ("cubic".into(), "cubic".into()));
    assert_eq!(flow(&p.client, 0).facts.change.map(|c| c.why), Some(CcChangeReason::Agreed));
}

#[test]
fn changes_are_reported_per_queue_pair_with_its_own_flow() {
    let (mut p, l) = linked();
    for _ in 0..3 {
        let options = QpOptions { cc: "cubic".into(), ..QpOptions::default() };
        p.client.open_qp(p.now, l.client, options).unwrap();
    }
    p.run(DELAY * 4);
    p.server_events();
    p.client.set_flow(l.client, 1, Some("reno"), None).unwrap();
    p.run(DELAY * 4);
    let qps = &p.server.connection(l.server).unwrap().qps;
    for (i, expected) in [(0, "haul"), (1, "reno"), (2, "reno"), (3, "reno")] {
        assert_eq!(p.server.agreed_cc(l.server, Some(qps[i]), false), Some(expected), "{i}");
    }
    let told = p.server_events();
    assert_eq!(told.len(), 3, "{told:?}");
}

/// The frames are lost, repeated and late, and cross with proposals of either end.
#[test]
fn both_ends_show_the_same_algorithms_when_idle() {
    const SPECS: [&str; 6] = ["bbr", "cubic", "reno", "vegas", "copa", "cubic:hystart=off"];
    for seed in 0..60 {
        let (mut p, l) = linked();
        let options = QpOptions { cc: "reno".into(), ..QpOptions::default() };
        p.client.open_qp(p.now, l.client, options).unwrap();
        p.run(DELAY * 4);
        p.disturb(seed);
        let mut rng = Rng::from_u64(seed ^ 0x701d);
        for _ in 0..60 {
            let cc = SPECS[rng.below(6) as usize];
            let i = rng.below(3) as usize;
            let qp = p.client.connection(l.client).unwrap().qps.get(i).copied();
            match rng.below(3) {
                0 => p.client.set_flow(l.client, rng.below(2) as u8, Some(cc), None).unwrap(),
                1 => drop(p.client.propose_cc(p.now, l.client, qp, true, cc)),
                _ => {
                    let qp = p.server.connection(l.server).unwrap().qps.get(i).copied();
                    drop(p.server.propose_cc(p.now, l.server, qp, false, cc));
                }
            }
            p.run(Span::from_micros(rng.below(30_000)));
        }
        p.calm();
        p.run(Span::from_secs(20));
        assert_eq!((closed(&p.client_events()), closed(&p.server_events())), (None, None), "seed {seed}");
        let (ci, si) =
            (&p.client.connection(l.client).unwrap().qps, &p.server.connection(l.server).unwrap().qps);
        for i in [None, Some(0), Some(1)] {
            let (ours, theirs) = (i.map(|i: usize| ci[i]), i.map(|i| si[i]));
            let ours = p.client.agreed_cc(l.client, ours, true);
            assert_eq!(ours, p.server.agreed_cc(l.server, theirs, false), "seed {seed}, {i:?}");
        }
    }
}
