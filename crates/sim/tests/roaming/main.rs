//! Addresses that are told, come and go, in virtual time.

mod families;

use base::{Rng, Span, Time};
use endpoint::{MAX_PATH_ATTEMPTS, Network, Route};
use longhaul_sim::LinkId;
use longhaul_sim::pair::{Load, Pair, addr};
use netem::{Duplex, LinkConfig};
use std::net::{IpAddr, SocketAddr};
use transport::TransportOptions;

const MEBI: usize = 1 << 20;
/// Challenges to one address at most.
const CHALLENGES: u64 = 5;

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn duplex(spec: &str) -> Duplex {
    let link: LinkConfig = spec.parse().expect("a link");
    Duplex { there: link.clone(), back: link }
}

/// 300 Mbit/s over 20 ms, where it connects, and 700 Mbit/s over 80 ms.
fn pair(seed: u64, loss: &str, messages: Option<u64>) -> Pair {
    between([[addr(1), addr(2)], Pair::second()], seed, loss, messages)
}

/// The same with the ends' addresses on each path.
fn between(ends: [[SocketAddr; 2]; 2], seed: u64, loss: &str, messages: Option<u64>) -> Pair {
    let paths = [
        duplex(&format!("rate=300mbit delay=10ms queue=1bdp(rtt 20ms) mtu=1500B loss={loss}")),
        duplex(&format!("rate=700mbit delay=40ms queue=1bdp(rtt 80ms) mtu=1500B loss={loss}")),
    ];
    let load = Load { message: 16 * MEBI, ahead: 4, messages };
    Pair::between(ends, seed, [&paths[0], &paths[1]], TransportOptions::default(), load).expect("a pair")
}

fn way(local: SocketAddr, remote: SocketAddr) -> Route {
    Route { local: local.ip(), remote: remote.ip(), own: true, default_source: false, link: 0 }
}

/// What the client's machine has.
fn client(routes: &[Route]) -> Network {
    let locals = routes.iter().map(|w| w.local).collect();
    Network { locals, listening_at: Vec::new(), routes: routes.to_vec() }
}

/// What the server's machine has.
fn server(listening_at: &[SocketAddr]) -> Network {
    let locals = listening_at.iter().map(SocketAddr::ip).collect();
    Network { locals, listening_at: listening_at.to_vec(), routes: Vec::new() }
}

/// Tells the ends what their machines have, as their drivers would: when they ask for it, or `news` is true.
fn tell(p: &mut Pair, here: &Network, there: &Network, news: bool) {
    for (node, network) in [(p.sender, here), (p.receiver, there)] {
        if p.world.inspect(node).needs_network() || news {
            let now = p.world.now();
            p.world.endpoint(node).set_network(now, network.clone());
        }
    }
}

/// Lets time pass, with both ends told what they have.
fn run(p: &mut Pair, ms: u64, here: &Network, there: &Network) {
    tell(p, here, there, true);
    while p.world.now() < at(ms) && p.board.borrow().finished.is_none() {
        let next = p.world.now() + Span::from_millis(10);
        p.run_until(next.min(at(ms))).expect("all goes well");
        tell(p, here, there, false);
    }
}

/// The sender's lanes that work, by their address there.
fn working(p: &mut Pair) -> Vec<Option<IpAddr>> {
    let conn = p.board.borrow().sender.expect("connected");
    let sender = p.sender;
    let paths = p.world.inspect(sender).stats(conn).expect("statistics").paths;
    paths.iter().filter(|l| l.works).map(|l| l.local).collect()
}

fn received(p: &mut Pair) -> u64 {
    let conn = p.board.borrow().receiver.expect("connected");
    let receiver = p.receiver;
    p.world.inspect(receiver).stats(conn).expect("statistics").payload_received
}

#[test]
fn a_told_address_becomes_a_path_and_both_carry_data() {
    for seed in 0..3 {
        let mut p = pair(seed, "0%", None);
        let [here2, there2] = Pair::second();
        let here = client(&[way(addr(1), addr(2)), way(here2, there2)]);
        let there = server(&[addr(2), there2]);
        run(&mut p, 2_000, &here, &there);
        assert_eq!(working(&mut p), [Some(addr(1).ip()), Some(here2.ip())], "seed {seed}");
        let before = received(&mut p);
        run(&mut p, 5_000, &here, &there);
        let mbit = (received(&mut p) - before) as f64 * 8e-6 / 3.0;
        assert!(mbit > 850.0, "seed {seed}: {mbit} Mbit/s");
        // The server is at one address only from now on.
        run(&mut p, 6_000, &here, &server(&[addr(2)]));
        assert_eq!(working(&mut p), [Some(addr(1).ip())], "seed {seed}");
    }
}

#[test]
fn nothing_is_lost_whatever_comes_and_goes() {
    for seed in 0..12 {
        let mut p = pair(seed, "2%", Some(12));
        let [here2, there2] = Pair::second();
        let (mut rng, routes) = (Rng::from_u64(seed), [way(addr(1), addr(2)), way(here2, there2)]);
        let mut ms = 200;
        while p.board.borrow().finished.is_none() && ms < 60_000 {
            // One of each end's addresses at least, and not for long without a common path.
            let ours: Vec<Route> = match rng.below(4) {
                0 => vec![routes[0]],
                1 => vec![routes[1]],
                _ => routes.to_vec(),
            };
            let theirs = match rng.below(3) {
                0 => vec![addr(2)],
                1 => vec![there2],
                _ => vec![addr(2), there2],
            };
            run(&mut p, ms, &client(&ours), &server(&theirs));
            ms += rng.range(50, 1_000);
        }
        assert!(p.board.borrow().finished.is_some(), "seed {seed}: {} writes", p.board.borrow().completed);
    }
}

#[test]
fn an_address_that_goes_costs_no_time_out() {
    for seed in 0..3 {
        let mut p = pair(seed, "0%", None);
        let [here2, there2] = Pair::second();
        let there = server(&[addr(2), there2]);
        run(&mut p, 3_000, &client(&[way(addr(1), addr(2)), way(here2, there2)]), &there);
        assert_eq!(working(&mut p).len(), 2, "seed {seed}");
        // What is under way is lost with it.
        let second = [p.there, p.back];
        cut(&mut p, second, "100%");
        let stall = longest_stall(&mut p, 3_500, &client(&[way(addr(1), addr(2))]), &there);
        // Two round trips, and reports are an eighth of one apart. A time-out would be three.
        assert!(stall < Span::from_millis(2 * 80 + 10), "seed {seed}: nothing for {stall}");
        assert_eq!(working(&mut p), [Some(addr(1).ip())], "seed {seed}");
    }
}

#[test]
fn a_client_whose_only_address_is_another_one_goes_on_from_it() {
    for seed in 0..3 {
        let mut p = pair(seed, "0%", Some(40));
        let there = server(&[addr(2)]);
        run(&mut p, 2_000, &client(&[way(addr(1), addr(2))]), &there);
        let sender = p.sender;
        assert!(p.world.rebind(sender, addr(9)));
        let here = client(&[way(addr(9), addr(2))]);
        let stall = longest_stall(&mut p, 2_500, &here, &there);
        // Two round trips, of 20 ms and as much in the queue, and what was sent twice.
        assert!(stall < Span::from_millis(2 * 40 + 20), "seed {seed}: nothing for {stall}");
        run(&mut p, 60_000, &here, &there);
        assert!(p.board.borrow().finished.is_some(), "seed {seed}");
        assert_eq!(working(&mut p), [Some(addr(9).ip())], "seed {seed}");
    }
}

#[test]
fn a_server_that_names_strangers_has_little_sent_to_them() {
    let mut p = pair(1, "0%", None);
    let [here2, _] = Pair::second();
    let strangers: Vec<Vec<SocketAddr>> =
        (0..40).map(|k| (0..16).map(|n| addr(1_000 + 16 * k + n)).collect()).collect();
    let mut routes = vec![way(addr(1), addr(2))];
    routes.extend(strangers.iter().flatten().flat_map(|s| [way(addr(1), *s), way(here2, *s)]));
    let here = client(&routes);
    for (k, list) in strangers.iter().enumerate() {
        run(&mut p, 1_000 * (k as u64 + 1), &here, &server(&[&[addr(2)], &list[..15]].concat()));
    }
    let sent = p.world.totals().unroutable;
    assert!((CHALLENGES..=CHALLENGES * u64::from(MAX_PATH_ATTEMPTS)).contains(&sent), "{sent} datagrams");
    assert_eq!(working(&mut p), [Some(addr(1).ip())]);
}

/// Has a path's links lose so much.
fn cut(p: &mut Pair, links: [LinkId; 2], loss: &str) {
    for link in links {
        let config = p.world.link_config(link);
        let word: LinkConfig = format!("loss={loss}").parse().expect("a loss");
        p.world.set_link(link, LinkConfig { loss: word.loss, ..config });
    }
}

/// The longest time without anything new, until `ms`.
fn longest_stall(p: &mut Pair, ms: u64, here: &Network, there: &Network) -> Span {
    tell(p, here, there, true);
    let (mut longest, mut last, mut bytes) = (Span::ZERO, p.world.now(), received(p));
    while p.world.now() < at(ms) {
        let next = p.world.now() + Span::from_millis(1);
        p.run_until(next).expect("all goes well");
        tell(p, here, there, false);
        let now = received(p);
        if now > bytes {
            (bytes, last) = (now, p.world.now());
        }
        longest = longest.max(p.world.now().since(last));
    }
    longest
}
