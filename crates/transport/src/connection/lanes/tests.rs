//! Tests of the rules for lanes against peers that break them.

use super::*;
use crate::config::TransportOptions;
use crate::connection::ConnectParams;
use crate::crypto::{ClientSetup, Credentials, Identity, ServerTrust};
use crate::negotiation::CcChangeReason;

/// A connection that is taken to be open.
pub(in crate::connection) fn connection(side: Side) -> Connection {
    let identity = Identity::from_seed([1; 32]);
    let trust = ServerTrust::Pinned(vec![identity.public_key()]);
    let setup = ClientSetup::new(&Credentials::RawKey(identity), &trust).expect("a set-up");
    let open = ConnectParams {
        setup,
        server_name: "server".into(),
        remote: "192.0.2.1:4433".parse().expect("an address"),
        local_cid: Cid(1),
        reset_token: [0; 16],
        token: None,
        options: TransportOptions::default(),
        unix_time: 1_700_000_000,
    };
    let mut c = Connection::open(Time::ZERO, open, base::Rng::from_u64(1)).expect("a connection");
    (c.side, c.state) = (side, State::Open);
    c.peer_params.max_lanes = MAX_LANES as u64;
    c
}

fn asked(lane: u32, cid: u32) -> LaneOpen {
    LaneOpen { lane, cid, backup: false }
}

#[test]
fn only_clients_open_lanes_and_only_servers_accept_them() {
    let mut c = connection(Side::Client);
    assert!(c.on_lane_open(asked(1, 7)).is_err());
    assert!(connection(Side::Server).on_lane_accept(Time::ZERO, 1, 7, 0).is_err());
    // An answer that nobody asked for, or that comes twice, changes nothing.
    c.on_lane_accept(Time::ZERO, 5, 7, 0).expect("no violation");
    assert_eq!(c.lanes.len(), 1);
}

#[test]
fn lane_number_is_used_once() {
    let mut c = connection(Side::Server);
    c.on_lane_open(asked(1, 7)).expect("a lane");
    c.on_lane_open(asked(1, 7)).expect("the same, repeated before the answer");
    assert_eq!(c.pending_lanes.len(), 1);
    c.accept_lane(1, Some((Cid(9), 0)));
    c.on_lane_open(asked(1, 7)).expect("the same, repeated after it");
    assert_eq!((c.lanes.len(), c.pending_lanes.len()), (2, 0));
    assert!(c.on_lane_open(asked(1, 8)).is_err(), "another lane of the same number");
    c.lanes[1].stage = Stage::Closed;
    assert!(c.on_lane_open(asked(1, 8)).is_err(), "nor when that is closed: nonces are made of it");
}

#[test]
fn cap_limits_all_flows_of_all_lanes_together() {
    let mut c = connection(Side::Server);
    c.on_lane_open(asked(1, 7)).expect("a lane");
    c.accept_lane(1, Some((Cid(9), 0)));
    c.lanes[1].stage = Stage::Open;
    c.add_qp(0, 4, "").expect("a queue pair");
    c.add_qp(2, 4, "cubic").expect("another one with a flow of its own");
    [0, 2].into_iter().for_each(|qpn| c.activate(qpn));
    let cap = Rate::from_mbit(100);
    c.set_rate_cap(Some(cap));
    let rates = c.lanes.iter().flat_map(|l| &l.flows).map(|f| f.decision().rate.bytes_per_sec());
    assert_eq!(rates.clone().count(), 4);
    assert!(rates.sum::<u64>() <= cap.bytes_per_sec());
}

/// Has a name stand for CUBIC or Reno, as if it were a program.
fn load(name: &str, code: &'static str) {
    let build: Box<cc::registry::Build> = Box::new(move |_, info, rng| {
        let none = cc::Params::default();
        cc::registry::create(code, &none, info, rng).expect("it is built in")
    });
    let (summary, params, needs) = ("a test's", Vec::new(), cc::Needs::NOTHING);
    let loading = cc::registry::Loading { name, summary, params, needs, code, build };
    cc::registry::load(loading).expect("a name of a program");
}

#[test]
fn added_lane_uses_the_algorithm_of_its_flow() {
    let mut c = connection(Side::Server);
    let add = |c: &mut Connection, lane: u32| {
        c.on_lane_open(asked(lane, 6 + lane)).expect("a lane");
        c.accept_lane(lane, Some((Cid(8 + lane), 0)));
    };
    let runs = |c: &Connection| c.lanes.iter().map(|l| l.flows[0].describe().0).collect::<Vec<_>>();
    load("of-lanes", "cubic");
    c.set_algorithm(0, "of-lanes", CcChangeReason::Policy).expect("it is loaded");
    // The name stands for other code by now, and then for none.
    load("of-lanes", "reno");
    add(&mut c, 1);
    assert_eq!(runs(&c), ["cubic", "cubic"]);
    c.set_algorithm(0, "of-lanes", CcChangeReason::Policy).expect("it is loaded");
    assert_eq!(runs(&c), ["reno", "reno"]);
    assert_eq!(c.flow_stats().next().map(|f| f.code), Some("reno"));
    assert!(cc::registry::unload("of-lanes"));
    add(&mut c, 2);
    assert_eq!(runs(&c), ["reno"; 3]);
    assert!(c.set_algorithm(0, "of-lanes", CcChangeReason::Policy).is_err(), "nobody has it any more");
}
