//! Tests IPv4 and IPv6 in one connection.

use super::{at, between, client, cut, longest_stall, received, run, server, working};
use base::Span;
use endpoint::Route;
use longhaul_sim::pair::{Pair, addr, addr6};
use std::net::SocketAddr;
use transport::AdditionalPath;

/// The client's and the server's addresses of each path, IPv4 first and IPv6 first.
fn orders() -> [[[SocketAddr; 2]; 2]; 2] {
    let (v4, v6) = ([addr(1), addr(2)], [addr6(1), addr6(2)]);
    [[v4, v6], [v6, v4]]
}

/// A route over an interface.
fn way([here, there]: [SocketAddr; 2], link: u32) -> Route {
    Route { local: here.ip(), remote: there.ip(), own: true, default_source: true, link }
}

fn mbit(p: &mut Pair, ms: u64) -> f64 {
    let (from, before) = (p.world.now(), received(p));
    p.run_until(at(ms)).expect("all goes well");
    (received(p) - before) as f64 * 8e-6 / p.world.now().since(from).as_secs_f64()
}

#[test]
fn connection_uses_the_sum_of_an_ipv4_and_an_ipv6_path() {
    for ends in orders() {
        for seed in 0..2 {
            let mut p = between(ends, seed, "0%", None);
            let here = client(&[way(ends[0], 1), way(ends[1], 2)]);
            run(&mut p, 2_000, &here, &server(&[ends[0][1], ends[1][1]]));
            assert_eq!(working(&mut p), ends.map(|e| Some(e[0].ip())), "seed {seed}");
            let sum = mbit(&mut p, 5_000);
            // Nine tenths of the payload that 1,000 Mbit/s carry with the longer headers.
            assert!(sum > 850.0, "{ends:?}, seed {seed}: {sum} Mbit/s");
        }
    }
}

#[test]
fn paths_of_both_address_families_can_be_named() {
    for ends in orders() {
        let mut p = between(ends, 1, "0%", None);
        p.run_until(at(200)).expect("connected");
        let [local, remote] = ends[1];
        let (conn, now, sender) = (p.shared.borrow().sender.expect("connected"), p.world.now(), p.sender);
        let path = AdditionalPath { local: Some(local.ip()), remote, backup: false };
        p.world.endpoint(sender).add_path(now, conn, path).expect("a path");
        p.run_until(at(2_000)).expect("all goes well");
        let sum = mbit(&mut p, 5_000);
        assert!(sum > 850.0, "{ends:?}: {sum} Mbit/s");
    }
}

#[test]
fn path_of_either_family_may_die_without_data_loss() {
    for ends in orders() {
        for first in [true, false] {
            let mut p = between(ends, 1, "0%", Some(24));
            let here = client(&[way(ends[0], 1), way(ends[1], 2)]);
            let there = server(&[ends[0][1], ends[1][1]]);
            run(&mut p, 2_000, &here, &there);
            assert!(p.shared.borrow().finished.is_none());
            let links = if first { p.first_path } else { [p.forward, p.reverse] };
            cut(&mut p, links, "100%");
            let stall = longest_stall(&mut p, 3_000, &here, &there);
            // Two round trips of the path with its queue, and as much again for retransmissions.
            assert!(stall < Span::from_millis(4 * 160), "{ends:?}, {first}: nothing for {stall}");
            run(&mut p, 60_000, &here, &there);
            assert!(p.shared.borrow().finished.is_some(), "{ends:?}, {first}");
        }
    }
}

#[test]
fn second_family_on_the_same_interface_is_a_backup() {
    for ends in orders() {
        let mut p = between(ends, 1, "0%", None);
        let here = client(&[way(ends[0], 1), way(ends[1], 1)]);
        let there = server(&[ends[0][1], ends[1][1]]);
        run(&mut p, 2_000, &here, &there);
        assert_eq!(working(&mut p).len(), 2);
        let alone = mbit(&mut p, 4_000);
        assert!((250.0..300.0).contains(&alone), "{ends:?}: {alone} Mbit/s");
        let first = p.first_path;
        cut(&mut p, first, "100%");
        run(&mut p, 6_000, &here, &there);
        let other = mbit(&mut p, 8_000);
        assert!(other > 600.0, "{ends:?}: {other} Mbit/s");
    }
}

#[test]
fn client_roams_between_address_families() {
    for ends in orders() {
        let mut p = between(ends, 1, "0%", Some(60));
        let there = server(&[ends[0][1], ends[1][1]]);
        let (one, other) = (client(&[way(ends[0], 1)]), client(&[way(ends[1], 2)]));
        run(&mut p, 2_000, &one, &there);
        let (first, second) = (p.first_path, [p.forward, p.reverse]);
        cut(&mut p, second, "100%");
        let mut ms = 2_000;
        for turn in 0..6 {
            let (from, to, here, k) =
                if turn % 2 == 0 { (first, second, &other, 1) } else { (second, first, &one, 0) };
            cut(&mut p, from, "100%");
            cut(&mut p, to, "0%");
            let stall = longest_stall(&mut p, ms + 1_000, here, &there);
            // A round trip to be found there, and one for retransmissions.
            assert!(stall < Span::from_millis(4 * 80 + 50), "{ends:?}, {turn}: nothing for {stall}");
            assert_eq!(working(&mut p), [Some(ends[k][0].ip())], "{ends:?}, {turn}");
            ms += 1_000;
        }
        run(&mut p, 60_000, &one, &there);
        assert!(p.shared.borrow().finished.is_some(), "{ends:?}");
    }
}
