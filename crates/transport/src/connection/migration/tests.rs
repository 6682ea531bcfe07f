//! Tests of address lists as servers send them and as peers may abuse them.

use super::*;
use crate::config::PathDiscovery;
use crate::connection::lanes::tests::connection;

fn list(numbers: &[u8]) -> Vec<SocketAddr> {
    numbers.iter().map(|n| SocketAddr::new(IpAddr::from([10, 0, 0, *n]), 4460)).collect()
}

fn server() -> Connection {
    let mut c = connection(Side::Server);
    (c.authorised, c.peer_params.addresses) = (true, true);
    c
}

fn told(c: &Connection) -> Vec<&Addresses> {
    let all = c.frames.iter().chain(c.lanes.iter().flat_map(|l| &l.lost_frames));
    all.filter_map(|f| if let Frame::Addresses(a) = f { Some(a) } else { None }).collect()
}

#[test]
fn address_list_is_sent_once_and_replaces_earlier_ones() {
    let mut c = server();
    c.advertise_addresses(&[]);
    assert!(told(&c).is_empty(), "nothing to say");
    c.advertise_addresses(&list(&[1, 2]));
    c.advertise_addresses(&list(&[1, 2]));
    assert_eq!(told(&c), [&Addresses { sequence: 1, list: list(&[1, 2]) }]);
    // It left, and was lost: then it is not said again.
    let f = c.frames.pop_front().expect("a frame");
    c.lanes[0].lost_frames.push_back(f);
    c.advertise_addresses(&list(&[2]));
    assert_eq!(told(&c), [&Addresses { sequence: 2, list: list(&[2]) }]);
    c.advertise_addresses(&[]);
    assert_eq!(told(&c), [&Addresses { sequence: 3, list: Vec::new() }]);
}

#[test]
fn unsuitable_addresses_are_omitted_and_the_list_is_bounded() {
    let mut c = server();
    let mut all = list(&[1, 1]);
    all.extend(
        ["127.0.0.1:1", "169.254.0.1:1", "[fe80::1]:1", "0.0.0.0:1"]
            .map(|a| a.parse::<SocketAddr>().unwrap()),
    );
    all.extend(list(&(2..40).collect::<Vec<_>>()));
    c.advertise_addresses(&all);
    let told = told(&c)[0].list.clone();
    assert!(told.len() <= MAX_ADDRESSES && told.iter().all(is_tellable), "{told:?}");
    assert_eq!(told[..2], list(&[1, 2]));
}

#[test]
fn addresses_are_sent_only_to_authorised_clients_that_asked() {
    for (authorised, asked) in [(false, true), (true, false)] {
        let mut c = server();
        (c.authorised, c.peer_params.addresses) = (authorised, asked);
        c.advertise_addresses(&list(&[1, 2]));
        assert!(told(&c).is_empty());
    }
    let mut c = connection(Side::Client);
    (c.authorised, c.peer_params.addresses) = (true, true);
    c.advertise_addresses(&list(&[1, 2]));
    assert!(told(&c).is_empty());
}

#[test]
fn newest_address_list_wins_in_any_order() {
    let mut c = connection(Side::Client);
    let tell = |c: &mut Connection, sequence, n| c.on_addresses(Addresses { sequence, list: list(n) });
    assert_eq!(c.peer_addresses(), None);
    tell(&mut c, 3, &[3]).expect("no violation");
    tell(&mut c, 1, &[1]).expect("an old one, late");
    tell(&mut c, 3, &[9]).expect("a number used twice counts once");
    assert_eq!(c.peer_addresses(), Some(&list(&[3])[..]));
    tell(&mut c, 4, &[]).expect("none any more");
    assert_eq!(c.peer_addresses(), Some(&[][..]));
    assert_eq!(c.events.iter().filter(|e| **e == ConnEvent::Addresses).count(), 2);
}

#[test]
fn unrequested_address_lists_are_violations() {
    let a = || Addresses { sequence: 1, list: list(&[1]) };
    let v = connection(Side::Server).on_addresses(a()).expect_err("from a client");
    assert_eq!(v.code, crate::error::code::PROTOCOL);
    let mut c = connection(Side::Client);
    c.options.discover = PathDiscovery::Off;
    let v = c.on_addresses(a()).expect_err("not asked for");
    assert_eq!(v.code, crate::error::code::PROTOCOL);
}

#[test]
fn path_challenge_is_answered_where_it_came_from() {
    let mut c = connection(Side::Server);
    let (near, far) = (c.lanes[0].remote, "198.51.100.9:9".parse().expect("an address"));
    let from = |remote| super::super::DatagramInfo {
        remote,
        local: None,
        ecn: base::Ecn::NotEct,
        waited: base::Span::ZERO,
    };
    c.on_challenge(0, from(near), [1; 8]);
    c.on_challenge(0, from(near), [2; 8]);
    assert_eq!((c.lanes[0].unreliable_frames.len(), c.lanes[0].answer), (1, None));
    c.on_challenge(0, from(far), [3; 8]);
    c.on_challenge(0, from(far), [4; 8]);
    assert_eq!((c.lanes[0].unreliable_frames.len(), c.lanes[0].answer), (0, Some((far, None, [4; 8]))));
}
