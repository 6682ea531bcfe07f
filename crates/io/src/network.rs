//! Monitors this machine's addresses and routes for an endpoint whose socket is bound to a wildcard address: by
//! rtnetlink(7), and when sending fails.

use crate::netlink::{Address, Link, Netlink};
use base::{Span, Time};
use endpoint::{Endpoint, Network, Route};
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// After news the network is looked at again after these times: an address comes first, and its routes later.
const SETTLING: [Span; 3] = [Span::from_millis(100), Span::from_secs(1), Span::from_secs(5)];
/// Between two looks at least, whatever is told: a hundred changes a second are as good as one.
const LEAST_GAP: Span = Span::from_millis(10);
/// Between two looks for which there was no reason but that something could not be sent, at least.
const SUSPICION_GAP: Span = Span::from_millis(200);
/// How often it is looked whether the kernel has told something, while the loop is too busy to wait.
const NEWS_POLL: Span = Span::from_millis(5);
/// How often the network is looked at while a connection has no path that works.
const CUT_OFF_GAP: Span = Span::from_secs(1);
/// Own addresses for which routes are asked for at most.
const MAX_LOCALS: usize = 32;
/// Routes asked for in one look at most: some 10 us each.
const MAX_ROUTES: usize = 1_024;

/// Keeps an endpoint informed about addresses and routes.
#[derive(Debug)]
pub(crate) struct NetworkMonitor {
    /// Where the socket is bound.
    bound: SocketAddr,
    /// Whether it carries IPv4 beside IPv6.
    dual: bool,
    /// To ask the kernel; `None` where it does not answer.
    tables: Option<Netlink>,
    /// What the kernel tells by itself.
    news: Option<Netlink>,
    /// The next look, if one is due.
    next: Option<Time>,
    /// Further looks after the next.
    settling: Vec<Time>,
    looked: Time,
    polled_news: Time,
    /// News were lost, and that was said.
    said: bool,
}

impl NetworkMonitor {
    /// For a socket that is bound to `bound`; `None` where that is a certain address: it has no other. `dual`: if it is one
    /// for IPv6, it carries IPv4, too.
    pub(crate) fn new(bound: SocketAddr, dual: bool) -> Option<NetworkMonitor> {
        if !bound.ip().is_unspecified() {
            return None;
        }
        let opened = Netlink::listen().and_then(|news| Ok((news, Netlink::open()?)));
        let (news, tables) = match opened {
            Ok((n, t)) => (Some(n), Some(t)),
            Err(error) => {
                tracing::info!(%error, "the system does not tell of addresses and routes: further paths are not found by themselves, and changed addresses are noticed when nothing can be sent");
                (None, None)
            }
        };
        let (looked, polled_news) = (Time::ZERO, Time::ZERO);
        let (next, settling) = (None, Vec::new());
        Some(NetworkMonitor { bound, dual, tables, news, next, settling, looked, polled_news, said: false })
    }

    /// Readable when there is news.
    pub(crate) fn news(&self) -> Option<&Netlink> {
        self.news.as_ref()
    }

    /// When [`NetworkMonitor::turn`] wants to be called at the latest.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        self.next
    }

    /// The kernel most probably reports a change: the next turn reads it.
    pub(crate) fn on_news(&mut self) {
        self.polled_news = Time::ZERO;
    }

    /// A datagram could not be sent.
    pub(crate) fn on_send_failed(&mut self, now: Time) {
        self.ask_for(now.max(self.looked + SUSPICION_GAP));
    }

    fn ask_for(&mut self, at: Time) {
        let at = at.max(self.looked + LEAST_GAP);
        self.next = Some(self.next.map_or(at, |t| t.min(at)));
    }

    /// Tells the endpoint what is new, if anything may be.
    pub(crate) fn turn(&mut self, now: Time, endpoint: &mut Endpoint) {
        if now.since(self.polled_news) >= NEWS_POLL {
            self.polled_news = now;
            if self.has_events() {
                self.settling = SETTLING.iter().map(|s| now + *s).collect();
                self.ask_for(now);
            }
        }
        if endpoint.needs_network() {
            self.ask_for(now);
        }
        if self.next.is_none_or(|t| t > now) {
            return;
        }
        self.looked = now;
        let network = self.query(&endpoint.remotes(), &endpoint.locals());
        if let Some(network) = network {
            endpoint.set_network(now, network);
        }
        self.settling.retain(|t| *t > now);
        self.next = self.settling.first().copied();
        if endpoint.has_no_working_path() {
            self.ask_for(now + CUT_OFF_GAP);
        }
    }

    fn has_events(&mut self) -> bool {
        let Some(news) = &mut self.news else { return false };
        match news.news() {
            Ok(any) => any,
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                if !core::mem::replace(&mut self.said, true) {
                    tracing::info!(
                        "addresses and routes change faster than they are read: all are read anew"
                    );
                }
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the system tells no more of addresses that change: that is noticed when nothing can be sent");
                self.news = None;
                true
            }
        }
    }

    /// Queries everything. `None` when nothing is known.
    fn query(&mut self, remotes: &BTreeSet<IpAddr>, used: &BTreeSet<IpAddr>) -> Option<Network> {
        if let Some(tables) = &mut self.tables {
            match ask(tables, (self.bound, self.dual), remotes, used) {
                Ok(network) => return Some(network),
                Err(error) => {
                    tracing::warn!(%error, "the system does not answer about addresses and routes any more");
                    (self.tables, self.news) = (None, None);
                }
            }
        }
        // A server without clients of its own has nothing to lose by not knowing.
        (!remotes.is_empty()).then(|| guess(remotes, used))
    }
}

/// What the kernel's tables say.
fn ask(
    tables: &mut Netlink,
    bound: (SocketAddr, bool),
    remotes: &BTreeSet<IpAddr>,
    used: &BTreeSet<IpAddr>,
) -> io::Result<Network> {
    let links = tables.links()?;
    let addresses = tables.addresses()?;
    let mut network = addresses_of(&links, &addresses, bound);
    let told: Vec<IpAddr> = network.listening_at.iter().map(SocketAddr::ip).collect();
    let here = used.iter().filter(|ip| network.locals.contains(ip));
    let mut candidates: Vec<IpAddr> = here.copied().collect();
    candidates.extend(told.into_iter().filter(|ip| !used.contains(ip)));
    candidates.truncate(MAX_LOCALS);
    let mut left = MAX_ROUTES;
    let carries = |index: u32| links.iter().any(|l| l.index == index && l.carrier);
    let has = |ip: IpAddr, index: u32| addresses.iter().any(|a| a.ip == ip && a.interface == index);
    for &remote in remotes {
        if left <= candidates.len() {
            break;
        }
        left -= 1 + candidates.len();
        let usual = tables.route(remote, None, 0).ok();
        for &local in candidates.iter().filter(|l| l.is_ipv4() == remote.is_ipv4()) {
            let Ok(route) = tables.route(remote, Some(local), 0) else { continue };
            if !carries(route.interface) {
                continue;
            }
            let own = route.unicast && has(local, route.interface);
            let default_source = usual.is_some_and(|u| u.source == Some(local));
            network.routes.push(Route { local, remote, own, default_source, link: route.interface });
        }
    }
    Ok(network)
}

/// The addresses that can be used by a socket that is bound to `bound`, and those of them to be told to others: one for each
/// network, since several of one lead the same way.
fn addresses_of(links: &[Link], addresses: &[Address], (bound, dual): (SocketAddr, bool)) -> Network {
    let takes = |ip: IpAddr| ip.is_ipv4() == bound.is_ipv4() || ip.is_ipv4() && dual;
    let carries = |a: &Address| links.iter().any(|l| l.index == a.interface && l.carrier);
    let usable: Vec<&Address> = addresses.iter().filter(|a| a.valid && takes(a.ip) && carries(a)).collect();
    let mut seen = BTreeSet::new();
    let first_of_network = |a: &&&Address| seen.insert((a.interface, network_of(a.ip, a.prefix), a.prefix));
    let tellable = |ip: IpAddr| wire::frame::is_tellable(&SocketAddr::new(ip, bound.port().max(1)));
    let lasting = usable.iter().filter(|a| a.lasting && tellable(a.ip)).filter(first_of_network);
    let listening_at = lasting.map(|a| SocketAddr::new(a.ip, bound.port())).collect();
    Network { locals: usable.iter().map(|a| a.ip).collect(), listening_at, routes: Vec::new() }
}

/// The addresses of an interface of this machine; none where it is unknown, or the system does not tell.
pub fn addresses_of_interface(name: &str) -> Vec<IpAddr> {
    let tables = || -> io::Result<_> {
        let mut tables = Netlink::open()?;
        Ok((tables.links()?, tables.addresses()?))
    };
    let Ok((links, addresses)) = tables() else { return Vec::new() };
    let Some(link) = links.iter().find(|l| l.name == name) else { return Vec::new() };
    addresses.iter().filter(|a| a.interface == link.index).map(|a| a.ip).collect()
}

/// The addresses of this machine with the numbers of their interfaces; none where the system does not tell.
pub fn host_addresses() -> Vec<(IpAddr, u32)> {
    let addresses = Netlink::open().and_then(|mut tables| tables.addresses());
    addresses.unwrap_or_default().into_iter().filter(|a| a.valid).map(|a| (a.ip, a.interface)).collect()
}

fn network_of(ip: IpAddr, prefix: u8) -> IpAddr {
    let prefix = u32::from(prefix);
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from(u32::from(ip) & mask))
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix)).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from(u128::from(ip) & mask))
        }
    }
}

/// Without the kernel's tables: what it would send from, as a socket learns it that is connected; that sends nothing.
fn guess(remotes: &BTreeSet<IpAddr>, used: &BTreeSet<IpAddr>) -> Network {
    let mut network = Network::default();
    let source = |local: Option<IpAddr>, remote: IpAddr| {
        let any: IpAddr =
            if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((local.unwrap_or(any), 0)).ok()?;
        // Any port does.
        socket.connect((remote, 9)).ok()?;
        socket.local_addr().ok().map(|a| a.ip())
    };
    for &remote in remotes.iter().take(MAX_LOCALS) {
        let usual = source(None, remote);
        for &local in used.iter().filter(|l| l.is_ipv4() == remote.is_ipv4()).take(MAX_LOCALS) {
            if Some(local) != usual && source(Some(local), remote).is_some() {
                network.routes.push(Route { local, remote, own: false, default_source: false, link: 0 });
                network.locals.push(local);
            }
        }
        if let Some(local) = usual {
            network.routes.push(Route { local, remote, own: true, default_source: true, link: 0 });
            network.locals.push(local);
        }
    }
    network
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, carrier: bool) -> Link {
        Link { index, name: format!("if{index}"), mac: None, mtu: 1_500, up: true, carrier, queues: 1 }
    }

    fn address(ip: &str, interface: u32, prefix: u8) -> Address {
        Address { ip: ip.parse().expect("an address"), interface, prefix, valid: true, lasting: true }
    }

    #[test]
    fn loopback_has_its_address_and_an_unknown_interface_none() {
        let lo = addresses_of_interface("lo");
        assert!(lo.is_empty() || lo.contains(&Ipv4Addr::LOCALHOST.into()), "{lo:?}");
        assert!(addresses_of_interface("no-such-one").is_empty());
    }

    fn told(n: &Network) -> Vec<String> {
        n.listening_at.iter().map(|a| a.ip().to_string()).collect()
    }

    #[test]
    fn one_usable_address_per_network_is_advertised() {
        let links = [link(1, true), link(2, true), link(3, false)];
        let mut all = vec![
            address("127.0.0.1", 1, 8),
            address("::1", 1, 128),
            address("10.1.0.2", 2, 24),
            address("10.1.0.3", 2, 24),
            address("10.2.0.2", 2, 24),
            address("fe80::2", 2, 64),
            address("2001:db8:1::2", 2, 64),
            address("2001:db8:1::3", 2, 64),
            address("2001:db8:2::2", 2, 64),
            address("10.3.0.2", 3, 24),
        ];
        all[6].lasting = false;
        all[8].valid = false;
        let any4: SocketAddr = "0.0.0.0:4460".parse().expect("an address");
        let any6: SocketAddr = "[::]:4460".parse().expect("an address");
        let n = addresses_of(&links, &all, (any4, true));
        assert_eq!(told(&n), ["10.1.0.2", "10.2.0.2"]);
        assert!(n.listening_at.iter().all(|a| a.port() == 4460));
        assert_eq!(n.locals.len(), 4, "with the one of the machine itself, without that of a dead interface");
        let n = addresses_of(&links, &all, (any6, true));
        assert_eq!(told(&n), ["10.1.0.2", "10.2.0.2", "2001:db8:1::3"]);
        let n = addresses_of(&links, &all, (any6, false));
        assert_eq!(told(&n), ["2001:db8:1::3"]);
    }

    #[test]
    fn networks_of_all_prefix_lengths_are_distinguished() {
        let of = |ip: &str, prefix| network_of(ip.parse().expect("an address"), prefix).to_string();
        assert_eq!(of("10.1.2.3", 24), "10.1.2.0");
        assert_eq!(of("10.1.2.3", 0), "0.0.0.0");
        assert_eq!(of("10.1.2.3", 32), "10.1.2.3");
        assert_eq!(of("fd00::1:2", 112), "fd00::1:0");
        assert_eq!(of("fd00::1", 0), "::");
        assert_eq!(of("fd00::1", 128), "fd00::1");
    }

    #[test]
    fn socket_bound_to_one_address_has_no_monitor() {
        assert!(NetworkMonitor::new("127.0.0.1:1".parse().expect("an address"), true).is_none());
        assert!(NetworkMonitor::new("0.0.0.0:1".parse().expect("an address"), true).is_some());
    }

    #[test]
    fn route_without_netlink_is_that_of_a_connected_socket() {
        let lo: IpAddr = Ipv4Addr::LOCALHOST.into();
        let other: IpAddr = Ipv4Addr::new(127, 9, 9, 9).into();
        let foreign: IpAddr = Ipv4Addr::new(192, 0, 2, 1).into();
        let n = guess(&BTreeSet::from([lo]), &BTreeSet::from([lo, other, foreign]));
        let routes: Vec<_> = n.routes.iter().map(|w| (w.local, w.own, w.default_source)).collect();
        assert_eq!(routes, [(other, false, false), (lo, true, true)]);
    }

    #[test]
    fn queries_are_rate_limited() {
        let mut o = NetworkMonitor::new("0.0.0.0:1".parse().expect("an address"), true).expect("an observer");
        let now = Time::ZERO + Span::from_secs(100);
        o.looked = now;
        o.on_send_failed(now);
        assert_eq!(o.next_timeout(), Some(now + SUSPICION_GAP));
        o.ask_for(now);
        assert_eq!(o.next_timeout(), Some(now + LEAST_GAP), "news are worth more than a suspicion");
        o.on_send_failed(now + Span::from_secs(1));
        assert_eq!(o.next_timeout(), Some(now + LEAST_GAP));
    }
}
