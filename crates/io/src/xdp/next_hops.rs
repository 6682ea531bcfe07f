//! A cache of next hops from the kernel's routes and neighbours.

use super::frame::{FrameAddresses, Template};
use crate::netlink::{Link, Netlink};
use base::{Span, Time};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// Destinations remembered. Beyond that all are forgotten and asked for again: some 20 us each.
const MAX_HOPS: usize = 4_096;
/// How long the kernel's answer is cached: as long packets may go a wrong way after a route or a neighbour changed.
const CACHE_LIFETIME: Span = Span::from_secs(1);
/// How long until a neighbour that the kernel had no address for is asked for again. Meanwhile it sends, and so finds it.
const SOLICITING: Span = Span::from_millis(20);

/// How packets to a destination leave.
#[derive(Clone, Debug)]
pub(super) enum Egress {
    /// The kernel's: for the reason given.
    Kernel(KernelReason),
    /// As frames over an interface.
    Frames {
        /// The interface.
        link: Link,
        /// Headers.
        template: Box<Template>,
        /// Bytes of the largest IP packet.
        mtu: usize,
    },
}

/// Why the kernel must send them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelReason {
    /// No route, a route that is none to one machine, or no Ethernet.
    Unsuitable,
    /// The destination is on this machine.
    Local,
    /// The neighbour's address is being found by this very packet.
    Soliciting,
}

#[derive(Debug)]
struct CachedHop {
    way: Egress,
    until: Time,
    /// The kernel has not heard of the neighbour for a while. One train goes its way, which makes it ask.
    confirm: bool,
}

/// The cached next hops of all destinations.
#[derive(Debug)]
pub(super) struct NextHops {
    netlink: Netlink,
    /// The address and port of the socket.
    local: SocketAddr,
    table: HashMap<Key, usize>,
    hops: Vec<(Key, CachedHop)>,
    /// Where the last one is: mostly it is the next as well.
    last: usize,
}

/// A destination, and the address to send from if that is given.
type Key = (SocketAddr, Option<IpAddr>);

impl NextHops {
    /// For packets from `local`.
    pub(super) fn new(local: SocketAddr) -> io::Result<NextHops> {
        Ok(NextHops { netlink: Netlink::open()?, local, table: HashMap::new(), hops: Vec::new(), last: 0 })
    }

    pub(super) fn netlink(&mut self) -> &mut Netlink {
        &mut self.netlink
    }

    /// How the next packets to `dst` leave; from `src`, if it is given.
    pub(super) fn find(&mut self, now: Time, dst: SocketAddr, src: Option<IpAddr>) -> &Egress {
        const SOLICIT: &Egress = &Egress::Kernel(KernelReason::Soliciting);
        let key = (dst, src);
        if self.hops.get(self.last).is_none_or(|(k, _)| *k != key) {
            self.last = self.table.get(&key).copied().unwrap_or(usize::MAX);
        }
        if self.hops.get(self.last).is_none_or(|(_, h)| now >= h.until) {
            self.query_kernel(now, key);
        }
        let Some((_, hop)) = self.hops.get_mut(self.last) else { return SOLICIT };
        if core::mem::take(&mut hop.confirm) { SOLICIT } else { &hop.way }
    }

    /// Asks the kernel, and remembers what it says as the last one.
    fn query_kernel(&mut self, now: Time, key: Key) {
        let (way, confirm) = self.resolve(key.0, key.1);
        let lasts =
            if matches!(way, Egress::Kernel(KernelReason::Soliciting)) { SOLICITING } else { CACHE_LIFETIME };
        let hop = (key, CachedHop { way, until: now + lasts, confirm });
        if let Some(known) = self.hops.get_mut(self.last) {
            return *known = hop;
        }
        if self.hops.len() >= MAX_HOPS {
            self.hops.clear();
            self.table.clear();
        }
        self.last = self.hops.len();
        self.hops.push(hop);
        self.table.insert(key, self.last);
    }

    /// Asks the kernel; and whether the neighbour need be confirmed.
    fn resolve(&mut self, dst: SocketAddr, src: Option<IpAddr>) -> (Egress, bool) {
        self.ask(dst, src).unwrap_or_else(|reason| (Egress::Kernel(reason), false))
    }

    fn ask(&mut self, dst: SocketAddr, src: Option<IpAddr>) -> Result<(Egress, bool), KernelReason> {
        let unsuitable = |_| KernelReason::Unsuitable;
        let over = match dst {
            SocketAddr::V6(a) => a.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let ip = dst.ip().to_canonical();
        let bound = Some(self.local.ip().to_canonical()).filter(|ip| !ip.is_unspecified());
        let wanted = src.map(|ip| ip.to_canonical()).or(bound);
        if ip.is_multicast() || ip.is_unspecified() {
            return Err(KernelReason::Unsuitable);
        }
        let route = self.netlink.route(ip, wanted, over).map_err(unsuitable)?;
        if !route.unicast {
            return Err(if self.is_local(route.interface) {
                KernelReason::Local
            } else {
                KernelReason::Unsuitable
            });
        }
        let link = self.netlink.link_numbered(route.interface).map_err(unsuitable)?;
        let src_mac = link.mac.ok_or(KernelReason::Unsuitable)?;
        let source = wanted.or(route.source).ok_or(KernelReason::Unsuitable)?;
        let next = route.gateway.unwrap_or(ip);
        let neighbour = self.netlink.neighbour(link.index, next).ok_or(KernelReason::Soliciting)?;
        let ends = FrameAddresses {
            src_mac,
            dst_mac: neighbour.mac,
            src: SocketAddr::new(source, self.local.port()),
            dst: match dst {
                SocketAddr::V6(a) if ip.is_ipv6() => SocketAddrV6::new(*a.ip(), a.port(), 0, 0).into(),
                _ => SocketAddr::new(ip, dst.port()),
            },
        };
        let template = Box::new(Template::new(&ends).ok_or(KernelReason::Unsuitable)?);
        let mtu = route.mtu.map_or(link.mtu, |m| m.min(link.mtu));
        Ok((Egress::Frames { link, template, mtu }, !neighbour.confirmed))
    }

    /// Whether an interface is this machine's loop.
    fn is_local(&mut self, interface: u32) -> bool {
        self.netlink.link_numbered(interface).is_ok_and(|l| l.mac.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_and_unreachable_destinations_use_the_kernel() {
        let mut hops = NextHops::new("0.0.0.0:9".parse().unwrap()).unwrap();
        let now = Time::from_nanos(1);
        for (dst, reason) in [
            ("127.0.0.1:1", KernelReason::Local),
            ("224.0.0.1:1", KernelReason::Unsuitable),
            ("255.255.255.255:1", KernelReason::Unsuitable),
        ] {
            let way = hops.find(now, dst.parse().unwrap(), None);
            assert!(matches!(way, Egress::Kernel(r) if *r == reason), "{dst}: {way:?}");
        }
        assert_eq!(hops.table.len(), 3);
    }

    #[test]
    fn each_destination_has_its_own_next_hop() {
        let mut hops = NextHops::new("0.0.0.0:9".parse().unwrap()).unwrap();
        let reason = |hops: &mut NextHops, at: u64, dst: &str| match hops.find(
            Time::from_nanos(at),
            dst.parse().unwrap(),
            None,
        ) {
            Egress::Kernel(r) => *r,
            Egress::Frames { .. } => panic!("{dst} is on this machine or nowhere"),
        };
        // In turn, again and again, and asked for anew when what is believed is old.
        for at in [1, 2, 3, 2 * CACHE_LIFETIME.as_nanos(), 2 * CACHE_LIFETIME.as_nanos() + 1] {
            assert_eq!(reason(&mut hops, at, "127.0.0.1:1"), KernelReason::Local);
            assert_eq!(reason(&mut hops, at, "224.0.0.1:1"), KernelReason::Unsuitable);
            assert_eq!(reason(&mut hops, at, "224.0.0.1:1"), KernelReason::Unsuitable);
        }
        assert_eq!((hops.table.len(), hops.hops.len()), (2, 2));
        let renewed = Time::from_nanos(2 * CACHE_LIFETIME.as_nanos()) + CACHE_LIFETIME;
        assert!(hops.hops.iter().all(|(_, h)| h.until >= renewed));
    }

    #[test]
    fn cached_next_hops_are_bounded() {
        let mut hops = NextHops::new("0.0.0.0:9".parse().unwrap()).unwrap();
        for port in 1..MAX_HOPS as u16 + 10 {
            hops.find(Time::from_nanos(1), SocketAddr::from(([127, 0, 0, 1], port)), None);
        }
        assert!(hops.table.len() <= MAX_HOPS && hops.hops.len() == hops.table.len());
    }
}
