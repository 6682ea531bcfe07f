//! Tests addresses that are announced, added and removed, in virtual time.

mod families;

use base::{Rng, Span, Time};
use endpoint::{MAX_PATH_ATTEMPTS, Network, Route};
use longhaul_sim::LinkId;
use longhaul_sim::pair::{Load, Pair, addr};
use netem::{Duplex, LinkConfig};
use std::net::{IpAddr, SocketAddr};
use transport::TransportOptions;

const MEBI: usize = 1 << 20;
/// Most challenges to one address.
const CHALLENGES: u64 = 5;

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

fn duplex(spec: &str) -> Duplex {
    let link: LinkConfig = spec.parse().expect("a link");
    Duplex { forward: link.clone(), reverse: link }
}

/// 300 Mbit/s over 20 ms, where it connects, and 700 Mbit/s over 80 ms.
fn pair(seed: u64, loss: &str, messages: Option<u64>) -> Pair {
    between([[addr(1), addr(2)], Pair::second_addresses()], seed, loss, messages)
}

/// The same with given addresses of the ends on each path.
fn between(ends: [[SocketAddr; 2]; 2], seed: u64, loss: &str, messages: Option<u64>) -> Pair {
    let paths = [
        duplex(&format!("rate=300mbit delay=10ms queue=1bdp(rtt 20ms) mtu=1500B loss={loss}")),
        duplex(&format!("rate=700mbit delay=40ms queue=1bdp(rtt 80ms) mtu=1500B loss={loss}")),
    ];
    let load = Load { message: 16 * MEBI, ahead: 4, messages };
    Pair::between_addresses(ends, seed, [&paths[0], &paths[1]], TransportOptions::default(), load)
        .expect("a pair")
}

fn way(local: SocketAddr, remote: SocketAddr) -> Route {
    Route { local: local.ip(), remote: remote.ip(), own: true, default_source: false, link: 0 }
}

/// The client's network configuration.
fn client(routes: &[Route]) -> Network {
    let locals = routes.iter().map(|w| w.local).collect();
    Network { locals, listening_at: Vec::new(), routes: routes.to_vec() }
}

/// The server's network configuration.
fn server(listening_at: &[SocketAddr]) -> Network {
    let locals = listening_at.iter().map(SocketAddr::ip).collect();
    Network { locals, listening_at: listening_at.to_vec(), routes: Vec::new() }
}

/// Passes the network configuration to both ends, as their drivers would: on request, or if `news` is true.
fn tell(p: &mut Pair, here: &Network, there: &Network, news: bool) {
    for (node, network) in [(p.sender, here), (p.receiver, there)] {
        if p.world.inspect(node).needs_network() || news {
            let now = p.world.now();
            p.world.endpoint(node).set_network(now, network.clone());
        }
    }
}

/// Runs with both ends' configurations passed on.
fn run(p: &mut Pair, ms: u64, here: &Network, there: &Network) {
    tell(p, here, there, true);
    while p.world.now() < at(ms) && p.shared.borrow().finished.is_none() {
        let next = p.world.now() + Span::from_millis(10);
        p.run_until(next.min(at(ms))).expect("all goes well");
        tell(p, here, there, false);
    }
}

/// The sender's working lanes, by local address.
fn working(p: &mut Pair) -> Vec<Option<IpAddr>> {
    let conn = p.shared.borrow().sender.expect("connected");
    let sender = p.sender;
    let paths = p.world.inspect(sender).stats(conn).expect("statistics").paths;
    paths.iter().filter(|l| l.works).map(|l| l.local).collect()
}

fn received(p: &mut Pair) -> u64 {
    let conn = p.shared.borrow().receiver.expect("connected");
    let receiver = p.receiver;
    p.world.inspect(receiver).stats(conn).expect("statistics").payload_received
}

#[test]
fn announced_address_becomes_a_path_and_both_carry_data() {
    for seed in 0..3 {
        let mut p = pair(seed, "0%", None);
        let [here2, there2] = Pair::second_addresses();
        let here = client(&[way(addr(1), addr(2)), way(here2, there2)]);
        let there = server(&[addr(2), there2]);
        run(&mut p, 2_000, &here, &there);
        assert_eq!(working(&mut p), [Some(addr(1).ip()), Some(here2.ip())], "seed {seed}");
        let before = received(&mut p);
        run(&mut p, 5_000, &here, &there);
        let mbit = (received(&mut p) - before) as f64 * 8e-6 / 3.0;
        assert!(mbit > 850.0, "seed {seed}: {mbit} Mbit/s");
        // The server has only one address from now on.
        run(&mut p, 6_000, &here, &server(&[addr(2)]));
        assert_eq!(working(&mut p), [Some(addr(1).ip())], "seed {seed}");
    }
}

#[test]
fn address_changes_lose_no_data() {
    for seed in 0..12 {
        let mut p = pair(seed, "2%", Some(12));
        let [here2, there2] = Pair::second_addresses();
        let (mut rng, routes) = (Rng::from_u64(seed), [way(addr(1), addr(2)), way(here2, there2)]);
        let mut ms = 200;
        while p.shared.borrow().finished.is_none() && ms < 60_000 {
            // At least one address of each end, and not for long without a common path.
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
        assert!(p.shared.borrow().finished.is_some(), "seed {seed}: {} writes", p.shared.borrow().completed);
    }
}

#[test]
fn removed_address_causes_no_timeout() {
    for seed in 0..3 {
        let mut p = pair(seed, "0%", None);
        let [here2, there2] = Pair::second_addresses();
        let there = server(&[addr(2), there2]);
        run(&mut p, 3_000, &client(&[way(addr(1), addr(2)), way(here2, there2)]), &there);
        assert_eq!(working(&mut p).len(), 2, "seed {seed}");
        // Data in flight is lost with it.
        let second = [p.forward, p.reverse];
        cut(&mut p, second, "100%");
        let stall = longest_stall(&mut p, 3_500, &client(&[way(addr(1), addr(2))]), &there);
        // Two round trips, and reports are an eighth of one apart. A time-out would be three.
        assert!(stall < Span::from_millis(2 * 80 + 10), "seed {seed}: nothing for {stall}");
        assert_eq!(working(&mut p), [Some(addr(1).ip())], "seed {seed}");
    }
}

#[test]
fn client_continues_from_its_new_only_address() {
    for seed in 0..3 {
        let mut p = pair(seed, "0%", Some(40));
        let there = server(&[addr(2)]);
        run(&mut p, 2_000, &client(&[way(addr(1), addr(2))]), &there);
        let sender = p.sender;
        assert!(p.world.rebind(sender, addr(9)));
        let here = client(&[way(addr(9), addr(2))]);
        let stall = longest_stall(&mut p, 2_500, &here, &there);
        // Two round trips, of 20 ms and as much in the queue, and retransmissions.
        assert!(stall < Span::from_millis(2 * 40 + 20), "seed {seed}: nothing for {stall}");
        run(&mut p, 60_000, &here, &there);
        assert!(p.shared.borrow().finished.is_some(), "seed {seed}");
        assert_eq!(working(&mut p), [Some(addr(9).ip())], "seed {seed}");
    }
}

#[test]
fn addresses_announced_by_a_server_get_few_challenges() {
    let mut p = pair(1, "0%", None);
    let [here2, _] = Pair::second_addresses();
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

/// Sets the loss of a path's links.
fn cut(p: &mut Pair, links: [LinkId; 2], loss: &str) {
    for link in links {
        let config = p.world.link_config(link);
        let word: LinkConfig = format!("loss={loss}").parse().expect("a loss");
        p.world.set_link(link, LinkConfig { loss: word.loss, ..config });
    }
}

/// The longest time without new data, until `ms`.
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
