//! Path discovery: adds, moves and removes a client's paths as addresses of this machine and of the server appear and
//! disappear.
//!
//! What the network is like comes from outside ([`Network`]); here nothing is asked of a system.

use crate::conn::Conn;
use crate::{AdditionalPath, ConnId, Endpoint, streams};
use base::Time;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use transport::{LaneAddresses, PathDiscovery};

/// Discovery adds paths to a connection up to this number, configured ones included.
pub const MAX_AUTO_PATHS: usize = 4;
/// The same with [`PathDiscovery::Mesh`].
pub const MAX_MESH_PATHS: usize = 8;
/// Paths that are tried over a connection's life: each costs a lane number, of which there are 64, and up to five
/// challenges to an address that the server names.
pub const MAX_PATH_ATTEMPTS: u32 = 24;
/// The most peer addresses for which an endpoint asks for routes.
pub const MAX_REMOTES: usize = 256;

/// This machine's addresses and routes, as far as an endpoint's packets are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Addresses of this machine from which packets can leave.
    pub locals: Vec<IpAddr>,
    /// Those at which the socket takes what comes, with its port, one for each network: a server tells of them.
    pub listening_at: Vec<SocketAddr>,
    /// From which of its addresses this machine has a route to those of [`Endpoint::remotes`].
    pub routes: Vec<Route>,
}

/// A route to an address of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// From this address of this machine.
    pub local: IpAddr,
    /// To this one of the peer's.
    pub remote: IpAddr,
    /// It leaves by the interface that has the local address. Else it is the way of some other address of this machine's,
    /// and no path of its own.
    pub own: bool,
    /// The system takes this address when nobody says from where.
    pub default_source: bool,
    /// The interface by which it leaves, as the system numbers them; 0: unknown.
    pub link: u32,
}

/// The scope of an address (RFC 4007, RFC 6724): a peer is sent, and believed, only addresses of at least the scope
/// of the path to it, so that nobody learns of, or sends to, addresses inside a network that the connection does not
/// lead into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AddressScope {
    Host,
    Link,
    Site,
    Global,
}

impl AddressScope {
    fn of(ip: IpAddr) -> AddressScope {
        match ip.to_canonical() {
            ip if ip.is_loopback() || ip.is_unspecified() => AddressScope::Host,
            IpAddr::V4(ip) if ip.is_link_local() => AddressScope::Link,
            // RFC 1918, and what providers translate (RFC 6598).
            IpAddr::V4(ip) if ip.is_private() || ip.octets()[0] == 100 && ip.octets()[1] & 0xc0 == 64 => {
                AddressScope::Site
            }
            IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80 => AddressScope::Link,
            // RFC 4193.
            IpAddr::V6(ip) if ip.segments()[0] & 0xfe00 == 0xfc00 => AddressScope::Site,
            _ => AddressScope::Global,
        }
    }

    /// Whether `ip` may be told to, or taken from, a peer at `peer`.
    fn covers(peer: IpAddr, ip: IpAddr) -> bool {
        let peer = AddressScope::of(peer);
        peer > AddressScope::Host && AddressScope::of(ip) >= peer.max(AddressScope::Site)
    }
}

/// The lanes of a client's connection that discovery has added.
#[derive(Debug, Default)]
pub(crate) struct DiscoveredPaths {
    lanes: Vec<DiscoveredLane>,
    /// Lanes that are on their way to another address of the server.
    moves: Vec<DiscoveredLane>,
    tried: u32,
    /// Pairs at which nobody has answered, as long as their ways last.
    failed: Vec<(IpAddr, SocketAddr)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DiscoveredLane {
    lane: u32,
    pair: (IpAddr, SocketAddr),
    was_up: bool,
}

impl DiscoveredPaths {
    /// Whether a lane was added by discovery.
    pub(crate) fn has(&self, lane: u32) -> bool {
        self.lanes.iter().any(|l| l.lane == lane)
    }

    /// Data can go over a lane.
    pub(crate) fn on_up(&mut self, lane: u32) {
        self.lanes.iter_mut().filter(|l| l.lane == lane).for_each(|l| l.was_up = true);
    }

    /// It can not: of one that never worked, the pair is not tried again soon.
    pub(crate) fn on_down(&mut self, lane: u32) {
        if let Some(i) = self.lanes.iter().position(|l| l.lane == lane && !l.was_up) {
            self.failed.push(self.lanes.swap_remove(i).pair);
        }
    }

    /// What became of lanes that were to go on at another address of the server's. One that failed counts as tried, but at
    /// `known`, which the user named, it may be tried without end.
    fn update_moves(&mut self, lanes: &[LaneAddresses], known: SocketAddr) {
        let DiscoveredPaths { moves, tried, failed, .. } = self;
        moves.retain(|m| {
            let l = lanes.iter().find(|l| l.lane == m.lane);
            if l.is_some_and(|l| l.validating) {
                return true;
            }
            if !l.is_some_and(|l| l.works && l.remote == m.pair.1) && m.pair.1 != known {
                *tried += 1;
                failed.push(m.pair);
            }
            false
        });
    }
}

/// A change to a connection's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneChange {
    /// The lane goes on between these addresses.
    Move(u32, IpAddr, SocketAddr),
    /// Nothing leaves over it now.
    Disable(u32),
    Close(u32),
    /// It may have a way again.
    Probe(u32),
    /// A further one; true: as a backup.
    Add(IpAddr, SocketAddr, bool),
}

/// The input of the decision about a connection's lanes.
struct PlanInput<'a> {
    network: &'a Network,
    lanes: &'a [LaneAddresses],
    found: &'a DiscoveredPaths,
    /// Lanes whose local address the user has named.
    pinned: &'a [IpAddr],
    /// Where the server is: the address that it was connected to, then those that it told of.
    remotes: &'a [SocketAddr],
    discover: PathDiscovery,
}

impl PlanInput<'_> {
    fn has_route(&self, local: IpAddr, remote: IpAddr) -> bool {
        self.network.routes.iter().any(|w| w.local == local && w.remote == remote)
    }

    /// Of lanes whose addresses have gone, and then of what is to be added.
    fn plan(&self) -> Vec<LaneChange> {
        let mut steps = Vec::new();
        let way_of = |l: &LaneAddresses| l.local.is_none_or(|ip| self.has_route(ip, l.remote.ip()));
        let (kept, cut): (Vec<&LaneAddresses>, Vec<&LaneAddresses>) =
            self.lanes.iter().partition(|l| way_of(l));
        // Before anything has arrived on a lane, its address is what the system takes.
        let usual = |l: &LaneAddresses| {
            let way = self.network.routes.iter().find(|w| w.default_source && w.remote == l.remote.ip());
            l.local.or(way.map(|w| w.local))
        };
        let mut used: Vec<_> = kept.iter().filter_map(|l| Some((usual(l)?, l.remote, l.socket))).collect();
        let mut alive = kept.iter().any(|l| l.works);
        for l in cut {
            let step = self.replace(l, &used, alive);
            if let LaneChange::Move(_, ip, remote) = step {
                used.push((ip, remote, l.socket));
                alive = true;
            }
            steps.push(step);
        }
        let lost = !alive && !kept.iter().any(|l| l.validating);
        for l in kept.iter().filter(|l| !l.works && !l.validating) {
            // With nothing that works, another address may do better.
            let other = |w: &&Route| w.own && w.remote == l.remote.ip() && Some(w.local) != l.local;
            let other = self.network.routes.iter().find(other).map(|w| (w.local, l.remote));
            let other = other.or_else(|| self.other_address(l, &used)).filter(|_| lost && !self.is_pinned(l));
            used.extend(other.map(|(local, at)| (local, at, l.socket)));
            steps.push(
                other.map_or(LaneChange::Probe(l.lane), |(local, at)| LaneChange::Move(l.lane, local, at)),
            );
        }
        if self.discover != PathDiscovery::Off {
            for l in kept.iter().filter(|l| self.found.lanes.iter().any(|f| f.lane == l.lane)) {
                let elsewhere = kept.iter().any(|o| o.works && o.lane != l.lane);
                if elsewhere && !self.remotes.contains(&l.remote) {
                    used.retain(|u| (u.0, u.1) != (l.local.unwrap_or(u.0), l.remote));
                    steps.push(LaneChange::Close(l.lane));
                }
            }
            // Where it is not known which pairs are used, none is added yet: what arrives tells.
            if kept.iter().all(|l| usual(l).is_some()) {
                let pairs = used.iter().map(|u| (u.0, u.1)).collect();
                steps.extend(self.add(pairs));
            }
        }
        steps
    }

    fn is_pinned(&self, l: &LaneAddresses) -> bool {
        l.lane > 0 && l.local.is_some_and(|ip| self.pinned.contains(&ip))
    }

    /// What becomes of a lane that has no way any more; `alive`: others carry its data.
    fn replace(&self, l: &LaneAddresses, used: &[(IpAddr, SocketAddr, u16)], alive: bool) -> LaneChange {
        let was_found = self.found.lanes.iter().any(|f| f.lane == l.lane);
        let gone = l.local.is_some_and(|ip| !self.network.locals.contains(&ip));
        let to_it = || self.network.routes.iter().filter(|w| w.remote == l.remote.ip());
        let free = |w: &&Route| w.own && !used.contains(&(w.local, l.remote, l.socket));
        let other = to_it().filter(free).max_by_key(|w| w.default_source);
        // The last one takes any, and goes to another address of the server's if it must.
        let other = other.or_else(|| to_it().max_by_key(|w| (w.own, w.default_source)).filter(|_| !alive));
        let other =
            other.map(|w| (w.local, l.remote)).or_else(|| self.other_address(l, used).filter(|_| !alive));
        match other {
            _ if self.is_pinned(l) => LaneChange::Disable(l.lane),
            Some((local, remote)) => LaneChange::Move(l.lane, local, remote),
            None if was_found && gone && alive => LaneChange::Close(l.lane),
            None => LaneChange::Disable(l.lane),
        }
    }

    /// Where a lane may go on that leads nowhere: at another address of the server's, which may be of the other family, and
    /// best where no other lane is.
    fn other_address(
        &self,
        l: &LaneAddresses,
        used: &[(IpAddr, SocketAddr, u16)],
    ) -> Option<(IpAddr, SocketAddr)> {
        let tired = self.found.tried >= MAX_PATH_ATTEMPTS;
        // The first is the one that the user named.
        let remotes = self.remotes.iter().take(if tired { 1 } else { usize::MAX });
        let pairs = remotes.filter(|r| **r != l.remote).filter_map(|r| {
            let routes = self.network.routes.iter().filter(|w| w.own && w.remote == r.ip());
            routes.max_by_key(|w| w.default_source).map(|w| (w.local, *r))
        });
        let pairs: Vec<_> = pairs.filter(|p| !self.found.failed.contains(p)).collect();
        let free = pairs.iter().find(|p| !used.contains(&(p.0, p.1, l.socket)));
        free.or(pairs.first()).copied()
    }

    /// Whether a path from `local` leaves by the interface of one of the other family: then it leads through the same network,
    /// most likely, and would get nothing more.
    fn shares_interface(&self, local: IpAddr, used: &BTreeSet<(IpAddr, SocketAddr)>) -> bool {
        let link = |ip: IpAddr| self.network.routes.iter().find(|w| w.own && w.local == ip).map(|w| w.link);
        used.iter().any(|(l, _)| l.is_ipv4() != local.is_ipv4() && link(*l) == link(local))
    }

    /// Pairs beside those that are used.
    fn add(&self, mut used: BTreeSet<(IpAddr, SocketAddr)>) -> Vec<LaneChange> {
        let mut steps = Vec::new();
        let most = if self.discover == PathDiscovery::Mesh { MAX_MESH_PATHS } else { MAX_AUTO_PATHS };
        let mut tried = self.found.tried;
        while used.len() < most && tried < MAX_PATH_ATTEMPTS {
            let novelty = |local: IpAddr, remote: SocketAddr| {
                let (mut here, mut there) = (1, 1);
                for (l, r) in &used {
                    here = if *l == local { 0 } else { here };
                    there = if *r == remote { 0 } else { there };
                }
                here + there
            };
            let pairs = self.network.routes.iter().filter(|w| w.own).flat_map(|w| {
                self.remotes.iter().filter(|r| r.ip() == w.remote).map(|r| (w.local, *r, w.default_source))
            });
            let fits = |(local, remote, _): &(IpAddr, SocketAddr, bool)| {
                let pair = (*local, *remote);
                let fresh = !used.contains(&pair) && !self.found.failed.contains(&pair);
                fresh && (self.discover == PathDiscovery::Mesh || novelty(*local, *remote) > 0)
            };
            // Of equals the first.
            let best = pairs.filter(fits).reduce(|a, b| {
                let rank = |p: &(IpAddr, SocketAddr, bool)| (novelty(p.0, p.1), p.2);
                if rank(&b) > rank(&a) { b } else { a }
            });
            let Some((local, remote, _)) = best else { break };
            let backup = self.discover != PathDiscovery::Mesh && self.shares_interface(local, &used);
            used.insert((local, remote));
            tried += 1;
            steps.push(LaneChange::Add(local, remote, backup));
        }
        steps
    }
}

impl Conn {
    /// Where its server is: the address it was connected to, and those that it has told of and that may be believed.
    fn remotes(&self, locals: &[IpAddr]) -> Vec<SocketAddr> {
        let known = self.first_remote;
        let mut all = vec![known];
        let told = self.connection.peer_addresses().unwrap_or_default();
        // Whoever answers at another port than asked may be anything: not one that only the system gives out (RFC 9000,
        // section 21.5, on requests that are forged by way of a client).
        let port = |p: u16| p == known.port() || p >= 1_024;
        all.extend(told.iter().filter(|a| {
            let ip = a.ip();
            let fits = port(a.port()) && AddressScope::covers(known.ip(), ip);
            fits && *a != &known && !locals.contains(&ip)
        }));
        all
    }
}

impl Endpoint {
    /// Addresses of peers to which this client's connections want ways: [`Network::routes`]. At most [`MAX_REMOTES`].
    pub fn remotes(&self) -> BTreeSet<IpAddr> {
        let clients = self.conns.values().filter(|c| c.info.is_client && !c.closed);
        let all = clients.flat_map(|c| {
            let lanes = c.connection.all_lane_addresses().map(|l| l.remote);
            lanes.chain(c.remotes(&[])).collect::<Vec<_>>()
        });
        all.map(|a| a.ip()).take(MAX_REMOTES).collect()
    }

    /// Addresses of this machine that those connections use.
    pub fn locals(&self) -> BTreeSet<IpAddr> {
        let clients = self.conns.values().filter(|c| c.info.is_client && !c.closed);
        let all = clients.flat_map(|c| c.connection.all_lane_addresses().filter_map(|l| l.local));
        all.take(MAX_REMOTES).collect()
    }

    /// Whether something happened since the last call for which the network should be queried again.
    pub fn needs_network(&mut self) -> bool {
        core::mem::take(&mut self.network_stale)
    }

    /// Whether a connection of this client has no working path: then something may have changed without notice.
    pub fn has_no_working_path(&self) -> bool {
        let mut clients = self.conns.values().filter(|c| c.info.is_client && c.established && !c.closed);
        clients.any(|c| !c.connection.all_lane_addresses().any(|l| l.works))
    }

    /// Applies this machine's present addresses and routes. Clients' connections add paths, and leave those that have
    /// no route any more; servers' clients are sent the server's other addresses.
    pub fn set_network(&mut self, now: Time, network: Network) {
        self.network = network;
        let all: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in all {
            if self.conns.get(&id).is_some_and(|c| c.info.is_client) {
                self.follow_network(now, id);
            } else {
                self.advertise(id);
                self.leave_gone_addresses(now, id);
            }
            self.after(now, id);
        }
    }

    /// Tells a client of this server's addresses, as far as they are for it.
    pub(crate) fn advertise(&mut self, id: ConnId) {
        if self.config.options.discover == PathDiscovery::Off {
            return;
        }
        let Some(c) = self.conns.get_mut(&id).filter(|c| !c.info.is_client && c.established && !c.closed)
        else {
            return;
        };
        let used = c.connection.all_lane_addresses().find(|l| l.lane == 0);
        let Some(used) = used else { return };
        let may = |a: &&SocketAddr| AddressScope::covers(used.remote.ip(), a.ip());
        let list: Vec<SocketAddr> = self.network.listening_at.iter().filter(may).copied().collect();
        // The one that it uses is no news, unless others were told of before.
        let news = list.iter().any(|a| Some(a.ip()) != used.local) || c.connection.has_advertised_addresses();
        if news {
            c.connection.advertise_addresses(&list);
        }
    }

    /// A server's lanes whose own address is gone: their data goes over others. Where the client goes on, it decides.
    fn leave_gone_addresses(&mut self, now: Time, id: ConnId) {
        let Some(c) = self.conns.get_mut(&id).filter(|c| c.established && !c.closed) else { return };
        let Conn { connection, qps, .. } = &mut **c;
        let lanes: Vec<LaneAddresses> = connection.all_lane_addresses().collect();
        for l in lanes.iter().filter(|l| l.works) {
            if l.local.is_some_and(|ip| !ip.is_loopback() && !self.network.locals.contains(&ip)) {
                let mut s = streams::ConnStreams { adapter: &mut self.adapter, qps, last: None };
                connection.disable_lane(now, l.lane, &mut s);
            }
        }
    }

    /// Has a client's connection use what the network offers.
    fn follow_network(&mut self, now: Time, id: ConnId) {
        let Some(c) = self.conns.get_mut(&id).filter(|c| !c.closed) else { return };
        let lanes: Vec<LaneAddresses> = c.connection.all_lane_addresses().collect();
        let pinned: Vec<IpAddr> = c.connection.further_paths().iter().filter_map(|p| p.local).collect();
        let remotes = c.remotes(&self.network.locals);
        let routes = &self.network.routes;
        c.found.failed.retain(|(l, r)| routes.iter().any(|w| w.local == *l && w.remote == r.ip()));
        c.found.update_moves(&lanes, c.first_remote);
        let discover = if c.established { c.connection.discovers() } else { PathDiscovery::Off };
        c.local_known = lanes.first().is_some_and(|l| l.local.is_some());
        let network = &self.network;
        let scene = PlanInput {
            network,
            lanes: &lanes,
            found: &c.found,
            pinned: &pinned,
            remotes: &remotes,
            discover,
        };
        for step in scene.plan() {
            self.apply_change(now, id, step);
        }
    }

    fn apply_change(&mut self, now: Time, id: ConnId, step: LaneChange) {
        let Some(c) = self.conns.get_mut(&id) else { return };
        let mut s = streams::ConnStreams { adapter: &mut self.adapter, qps: &c.qps, last: None };
        match step {
            LaneChange::Move(lane, local, remote) => {
                tracing::info!(path = lane, from = %local, to = %remote, "a path goes on from another address: its own is gone");
                let pair = (local, remote);
                c.found.moves.retain(|m| m.lane != lane);
                c.found.moves.push(DiscoveredLane { lane, pair, was_up: true });
                c.connection.move_lane(now, lane, (remote, Some(local)), &mut s);
            }
            LaneChange::Disable(lane) => c.connection.disable_lane(now, lane, &mut s),
            LaneChange::Probe(lane) => c.connection.probe_lane(lane),
            LaneChange::Close(lane) => {
                tracing::info!(
                    path = lane,
                    "a path that was found is given up: one of its addresses is gone"
                );
                c.connection.close_lane(now, lane, &mut s);
            }
            LaneChange::Add(local, remote, backup) => {
                let path = AdditionalPath { local: Some(local), remote, backup };
                match self.open_discovered_path(id, path) {
                    Ok(lane) => {
                        tracing::info!(path = lane, from = %local, to = %remote, backup, "a path is added: both addresses were found, and a route between them");
                    }
                    Err(error) => tracing::debug!(from = %local, to = %remote, %error, "no further path"),
                }
            }
        }
    }

    fn open_discovered_path(&mut self, id: ConnId, path: AdditionalPath) -> Result<u32, crate::ConnectError> {
        let opened = self.open_path(id, path, 0);
        let Some(c) = self.conns.get_mut(&id) else { return opened };
        match (&opened, path.local) {
            (Ok(lane), Some(local)) => {
                c.found.tried += 1;
                c.found.lanes.push(DiscoveredLane { lane: *lane, pair: (local, path.remote), was_up: false });
            }
            // Nothing in the reasons for it changes.
            _ => c.found.tried = MAX_PATH_ATTEMPTS,
        }
        opened
    }
}

#[cfg(test)]
mod tests;
