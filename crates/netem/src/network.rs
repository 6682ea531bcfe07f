//! Networks of links with routes between ports.

use crate::link::{Link, Stats};
use crate::topology::{LinkId, MAX_LINKS, MAX_PORTS, NetworkError, PortId, Topology};
use crate::{DropReason, LinkConfig, Packet, Payload, Verdict};
use base::{Ecn, Rng, Time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// Most different routes of one network: several for each pair of its ports.
const MAX_ROUTES: usize = 4 * MAX_PORTS * MAX_PORTS;

/// The route has not been looked up yet.
const ROUTE_UNKNOWN: u32 = u32::MAX;
/// There is no route.
const NO_ROUTE: u32 = u32::MAX - 1;

/// A payload on its way through a network.
#[derive(Clone, Debug)]
pub struct Transit<P> {
    payload: P,
    route: u32,
    /// Links entered so far.
    hop: u16,
    to: PortId,
}

impl<P: Payload> Payload for Transit<P> {
    fn corrupt(&mut self, rng: &mut Rng) {
        self.payload.corrupt(rng);
    }
    fn stamp(&mut self, hop: &base::telemetry::Hop) {
        self.payload.stamp(hop);
    }
}

/// A packet that left a network at a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival<P> {
    /// The time of arrival: at or before the `now` of the call that returned it.
    pub time: Time,
    /// The port.
    pub to: PortId,
    /// Bytes on the wire, as sent.
    pub bytes: u64,
    /// The ECN field, as marked by the queues on the way.
    pub ecn: Ecn,
    /// The payload.
    pub payload: P,
}

/// The outcome of sending a packet into a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entered {
    /// It is on its way; a later link may still drop it.
    OnItsWay,
    /// The first link dropped it.
    Dropped(DropReason),
    /// It was chosen by [`Network::lose`].
    Lost,
    /// There is no route to that port.
    NoRoute,
}

struct Hop<P> {
    link: Link<Transit<P>>,
    /// The valid entry in the agenda.
    scheduled: Option<Time>,
    /// Whether some route continues after this link.
    forwards: bool,
    /// Packets offered so far.
    offered: u64,
    /// Numbers of the packets to lose, from zero.
    lose: Vec<u64>,
}

/// Links by the time at which they have to be polled. Replaced entries stay until they come up and are ignored
/// then.
type Agenda = BinaryHeap<Reverse<(Time, u32)>>;

/// Links with routes over them, driven by time that is passed in, like a single [`Link`].
///
/// The polling interval does not change the outcome: packets pass links in the order and at the times they would
/// have with polling every nanosecond, and a queue behind several links sees their deliveries merged by time. Times
/// must not go backwards.
pub struct Network<P> {
    topology: Option<Topology>,
    hops: Vec<Hop<P>>,
    /// Route numbers by source and destination port.
    routes: Vec<Vec<u32>>,
    route_links: Vec<Box<[u32]>>,
    route_numbers: HashMap<Box<[u32]>, u32>,
    /// Links after which some route continues.
    forwarding_links: Agenda,
    /// Links that end at ports only.
    final_links: Agenda,
    /// The final link that is being emptied; it is not in the agenda meanwhile.
    current: Option<u32>,
    /// Packets that arrived over a link after which other routes continue.
    arrived: VecDeque<Arrival<P>>,
    rng: Rng,
}

impl<P> core::fmt::Debug for Network<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let (links, ports) = (self.hops.len(), self.routes.len());
        f.debug_struct("Network").field("links", &links).field("ports", &ports).finish_non_exhaustive()
    }
}

impl<P: Payload> Network<P> {
    /// An empty network. The same generator and the same calls give the same arrivals.
    pub fn empty(rng: Rng) -> Network<P> {
        Network {
            topology: None,
            hops: Vec::new(),
            routes: Vec::new(),
            route_links: Vec::new(),
            route_numbers: HashMap::new(),
            forwarding_links: Agenda::new(),
            final_links: Agenda::new(),
            current: None,
            arrived: VecDeque::new(),
            rng,
        }
    }

    /// A network as described by `topology`, with the same identifiers.
    ///
    /// # Errors
    /// Too many ports or links.
    pub fn new(topology: &Topology, rng: Rng) -> Result<Network<P>, NetworkError> {
        let mut network = Network::empty(rng);
        for _ in topology.ports() {
            network.add_port()?;
        }
        for (_, link) in topology.links() {
            network.add_link(link.config.clone())?;
        }
        network.topology = Some(topology.clone());
        Ok(network)
    }

    /// Adds a port, without routes.
    ///
    /// # Errors
    /// There are [`MAX_PORTS`].
    pub fn add_port(&mut self) -> Result<PortId, NetworkError> {
        if self.routes.len() == MAX_PORTS {
            return Err(NetworkError::TooManyPorts);
        }
        self.routes.push(Vec::new());
        Ok(PortId(self.routes.len() as u32 - 1))
    }

    /// Adds a link, without routes.
    ///
    /// # Errors
    /// There are [`MAX_LINKS`].
    pub fn add_link(&mut self, config: LinkConfig) -> Result<LinkId, NetworkError> {
        if self.hops.len() == MAX_LINKS {
            return Err(NetworkError::TooManyLinks);
        }
        let mut link = Link::new(config, self.rng.fork());
        link.set_hop_id(self.hops.len() as u16);
        self.hops.push(Hop { link, scheduled: None, forwards: false, offered: 0, lose: Vec::new() });
        Ok(LinkId(self.hops.len() as u32 - 1))
    }

    /// The number of ports.
    pub fn ports(&self) -> usize {
        self.routes.len()
    }

    /// Sets the links for packets from one port to another that enter from now on; packets in flight keep their
    /// route.
    ///
    /// # Errors
    /// Ports or links of another network; too many different routes.
    pub fn set_route(&mut self, from: PortId, to: PortId, links: &[LinkId]) -> Result<(), NetworkError> {
        if let Some(p) = [from, to].into_iter().find(|p| p.index() >= self.routes.len()) {
            return Err(NetworkError::Unknown(format!("port {}", p.0)));
        }
        if let Some(l) = links.iter().find(|l| l.index() >= self.hops.len()) {
            return Err(NetworkError::Unknown(format!("link {}", l.0)));
        }
        let way: Box<[u32]> = links.iter().map(|l| l.0).collect();
        let number = match self.route_numbers.get(&way) {
            Some(n) => *n,
            None if self.route_links.len() == MAX_ROUTES || way.len() > usize::from(u16::MAX) => {
                return Err(NetworkError::TooManyRoutes(MAX_ROUTES));
            }
            None => self.route_number(way),
        };
        self.put_route(from, to, number);
        Ok(())
    }

    fn route_number(&mut self, way: Box<[u32]>) -> u32 {
        for l in way.iter().rev().skip(1) {
            let h = &mut self.hops[*l as usize];
            if !h.forwards {
                // The link moves from one agenda to the other.
                (h.forwards, h.scheduled) = (true, None);
                self.current = self.current.filter(|c| c != l);
                self.schedule(*l);
            }
        }
        let n = self.route_links.len() as u32;
        self.route_links.push(way.clone());
        self.route_numbers.insert(way, n);
        n
    }

    fn put_route(&mut self, from: PortId, to: PortId, number: u32) {
        let row = &mut self.routes[from.index()];
        if row.len() <= to.index() {
            row.resize(to.index() + 1, ROUTE_UNKNOWN);
        }
        row[to.index()] = number;
    }

    /// The number of a route, computed from the topology on first use.
    fn route(&mut self, from: PortId, to: PortId) -> Option<u32> {
        let known = self.routes.get(from.index())?.get(to.index()).copied().unwrap_or(ROUTE_UNKNOWN);
        if known < NO_ROUTE {
            return Some(known);
        }
        if known == NO_ROUTE || to.index() >= self.routes.len() {
            return None;
        }
        let way = self.topology.as_ref().and_then(|t| t.route(from, to));
        if way.is_none_or(|way| self.set_route(from, to, &way).is_err()) && self.topology.is_some() {
            self.put_route(from, to, NO_ROUTE);
        }
        self.routes[from.index()].get(to.index()).copied().filter(|n| *n < NO_ROUTE)
    }

    /// Loses the packets with these numbers, counted from zero, of those offered to the link.
    pub fn lose(&mut self, id: LinkId, numbers: &[u64]) {
        if let Some(h) = self.hops.get_mut(id.index()) {
            h.lose.extend_from_slice(numbers);
        }
    }

    /// Loses the next `n` packets offered to the link.
    pub fn lose_next(&mut self, id: LinkId, n: u64) {
        if let Some(h) = self.hops.get_mut(id.index()) {
            h.lose.retain(|k| *k >= h.offered);
            h.lose.extend(h.offered..h.offered.saturating_add(n));
        }
    }

    /// The present configuration of a link; `None` for a link of another network.
    pub fn config(&self, id: LinkId) -> Option<&LinkConfig> {
        self.hops.get(id.index()).map(|h| h.link.config())
    }
    /// The counters of a link; `None` for a link of another network.
    pub fn stats(&self, id: LinkId) -> Option<Stats> {
        self.hops.get(id.index()).map(|h| h.link.stats())
    }
    /// Replaces the configuration of a link from `now` on, see [`Link::set_config`].
    pub fn set_config(&mut self, now: Time, id: LinkId, config: LinkConfig) {
        self.advance_forwarding_links(now);
        if let Some(h) = self.hops.get_mut(id.index()) {
            h.link.set_config(now, config);
            self.schedule(id.0);
        }
    }

    /// Sends a packet into the network at a port.
    pub fn enter(&mut self, now: Time, from: PortId, to: PortId, packet: Packet<P>) -> Entered {
        let Some(route) = self.route(from, to) else { return Entered::NoRoute };
        // Earlier deliveries of the links in front of a shared one come first.
        self.advance_forwarding_links(now);
        let Packet { bytes, ecn, payload } = packet;
        self.forward(now, Packet { bytes, ecn, payload: Transit { payload, route, hop: 0, to } })
    }

    /// The earliest time at which a packet can arrive or an event is due, when [`poll`](Network::poll) should be
    /// called; as [`Link::next_delivery`].
    pub fn next_event(&self) -> Option<Time> {
        if !self.arrived.is_empty() {
            return Some(Time::ZERO);
        }
        let of = |a: &Agenda| a.peek().map(|Reverse((t, _))| *t);
        let current = self.current.and_then(|l| self.hops[l as usize].link.next_delivery());
        [of(&self.forwarding_links), of(&self.final_links), current].into_iter().flatten().min()
    }

    /// The next packet that has arrived by `now`. Packets over final links come in order of arrival. Call it
    /// until it returns `None`.
    pub fn poll(&mut self, now: Time) -> Option<Arrival<P>> {
        self.advance_forwarding_links(now);
        if let Some(a) = self.arrived.pop_front() {
            return Some(a);
        }
        loop {
            let l = self.current.take().or_else(|| self.pop_due_link(now))?;
            let others = self.final_links.peek().map_or(Time::MAX, |Reverse((t, _))| *t);
            let hop = &mut self.hops[l as usize];
            if hop.link.next_delivery().is_some_and(|due| due <= now.min(others))
                && let Some(d) = hop.link.poll(now.min(others))
            {
                self.current = Some(l);
                let Transit { payload, to, .. } = d.payload;
                return Some(Arrival { time: d.time, to, bytes: d.bytes, ecn: d.ecn, payload });
            }
            hop.scheduled = None;
            self.schedule(l);
        }
    }

    /// The next final link that is due.
    fn pop_due_link(&mut self, now: Time) -> Option<u32> {
        while let Some(&Reverse((t, l))) = self.final_links.peek() {
            let h = &self.hops[l as usize];
            let counts = h.scheduled == Some(t) && !h.forwards;
            if counts && t > now {
                return None;
            }
            self.final_links.pop();
            if counts {
                return Some(l);
            }
        }
        None
    }

    /// Simulates the links after which routes continue, up to `now` and in order of time.
    fn advance_forwarding_links(&mut self, now: Time) {
        while let Some(&Reverse((t, l))) = self.forwarding_links.peek() {
            if t > now {
                return;
            }
            self.forwarding_links.pop();
            if self.hops[l as usize].scheduled != Some(t) {
                continue;
            }
            let others = self.forwarding_links.peek().map_or(Time::MAX, |Reverse((t, _))| *t);
            self.drain(l, now, others);
            self.hops[l as usize].scheduled = None;
            self.schedule(l);
        }
    }

    /// Forwards the deliveries of a link until `now`, as long as no other link has an earlier one.
    fn drain(&mut self, l: u32, now: Time, mut others: Time) {
        loop {
            let link = &mut self.hops[l as usize].link;
            let Some(due) = link.next_delivery().filter(|due| *due <= now.min(others)) else { return };
            // Only one step at a time: a delivery may return to this link before the next is due.
            let Some(d) = link.poll(due) else { continue };
            let _ = self.forward(d.time, Packet { bytes: d.bytes, ecn: d.ecn, payload: d.payload });
            others = others.min(self.forwarding_links.peek().map_or(Time::MAX, |Reverse((t, _))| *t));
        }
    }

    /// Passes a packet to the next link of its route, or out of the network.
    fn forward(&mut self, at: Time, mut packet: Packet<Transit<P>>) -> Entered {
        let t = &mut packet.payload;
        let Some(&l) = self.route_links[t.route as usize].get(usize::from(t.hop)) else {
            let Packet { bytes, ecn, payload: Transit { payload, to, .. } } = packet;
            self.arrived.push_back(Arrival { time: at, to, bytes, ecn, payload });
            return Entered::OnItsWay;
        };
        t.hop += 1;
        let h = &mut self.hops[l as usize];
        h.offered += 1;
        if !h.lose.is_empty() && h.lose.contains(&(h.offered - 1)) {
            return Entered::Lost;
        }
        let verdict = h.link.send(at, packet);
        self.schedule(l);
        match verdict {
            Verdict::Queued => Entered::OnItsWay,
            Verdict::Dropped(reason) => Entered::Dropped(reason),
        }
    }

    /// Enters the link into its agenda, unless an earlier entry exists.
    fn schedule(&mut self, l: u32) {
        let h = &mut self.hops[l as usize];
        let Some(due) = h.link.next_delivery() else { return };
        if self.current != Some(l) && h.scheduled.is_none_or(|t| due < t) {
            h.scheduled = Some(due);
            let agenda = if h.forwards { &mut self.forwarding_links } else { &mut self.final_links };
            agenda.push(Reverse((due, l)));
        }
    }
}

#[cfg(test)]
mod tests;
