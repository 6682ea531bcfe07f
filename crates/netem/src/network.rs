//! Links joined to a network.

use crate::link::{Link, Stats};
use crate::topology::{LinkId, MAX_LINKS, MAX_PORTS, NetworkError, PortId, Topology};
use crate::{DropReason, LinkConfig, Packet, Payload, Verdict};
use base::{Ecn, Rng, Time};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

/// Different routes of one network at most: several for each pair of its ports.
const MAX_ROUTES: usize = 4 * MAX_PORTS * MAX_PORTS;

/// No route, or none that has been looked for.
const UNKNOWN: u32 = u32::MAX;
/// There is no way.
const NO_WAY: u32 = u32::MAX - 1;

/// A payload on its way through a network.
#[derive(Clone, Debug)]
pub struct Transit<P> {
    payload: P,
    route: u32,
    /// Links it has entered.
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

/// A packet that came out of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival<P> {
    /// When: at or before the `now` of the call that returned it.
    pub time: Time,
    /// Where.
    pub to: PortId,
    /// Bytes on the wire, as sent.
    pub bytes: u64,
    /// The ECN field, marked by any queue on the way.
    pub ecn: Ecn,
    /// What it carries.
    pub payload: P,
}

/// What became of a packet on entering a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entered {
    /// It is on its way; a link farther on may still drop it.
    OnItsWay,
    /// The first link dropped it.
    Dropped(DropReason),
    /// It is on the list of [`Network::lose`].
    Lost,
    /// There is no route to that port.
    NoRoute,
}

struct Hop<P> {
    link: Link<Transit<P>>,
    /// The entry in the agenda that counts.
    wake: Option<Time>,
    /// Whether a route goes on behind it.
    inner: bool,
    /// Packets offered so far.
    offered: u64,
    /// Those to lose, by number from zero.
    lose: Vec<u64>,
}

/// Links by the time at which they are to be looked at. Entries that were replaced stay until they come up.
type Agenda = BinaryHeap<Reverse<(Time, u32)>>;

/// Links with routes over them, driven by passed-in time like a single [`Link`].
///
/// Whatever the intervals at which it is polled, packets pass links in the order and at the times at which they would
/// if it were polled at every nanosecond: a queue that several links lead to sees what they deliver merged by time.
/// Times must not go backwards.
pub struct Network<P> {
    topology: Option<Topology>,
    hops: Vec<Hop<P>>,
    /// Numbers of routes from one port to another.
    routes: Vec<Vec<u32>>,
    ways: Vec<Box<[u32]>>,
    numbers: HashMap<Box<[u32]>, u32>,
    /// Links with others behind them.
    inner: Agenda,
    /// Links that end at ports only.
    last: Agenda,
    /// The link of `last` that is being emptied; it is not in the agenda meanwhile.
    current: Option<u32>,
    /// What came out of a link that others follow for other routes.
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
    /// A network without ports and links. The same generator and the same calls give the same arrivals.
    pub fn empty(rng: Rng) -> Network<P> {
        Network {
            topology: None,
            hops: Vec::new(),
            routes: Vec::new(),
            ways: Vec::new(),
            numbers: HashMap::new(),
            inner: Agenda::new(),
            last: Agenda::new(),
            current: None,
            arrived: VecDeque::new(),
            rng,
        }
    }

    /// A network as described, with the description's identifiers.
    ///
    /// # Errors
    /// More ports or links than there is room for.
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

    /// Another port, without routes.
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

    /// Another link, for routes to be set.
    ///
    /// # Errors
    /// There are [`MAX_LINKS`].
    pub fn add_link(&mut self, config: LinkConfig) -> Result<LinkId, NetworkError> {
        if self.hops.len() == MAX_LINKS {
            return Err(NetworkError::TooManyLinks);
        }
        let mut link = Link::new(config, self.rng.fork());
        link.set_hop_id(self.hops.len() as u16);
        self.hops.push(Hop { link, wake: None, inner: false, offered: 0, lose: Vec::new() });
        Ok(LinkId(self.hops.len() as u32 - 1))
    }

    /// Ports.
    pub fn ports(&self) -> usize {
        self.routes.len()
    }

    /// Packets that enter from now on go from one port to another by these links in turn; those on their way keep to
    /// the old ones.
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
        let number = match self.numbers.get(&way) {
            Some(n) => *n,
            None if self.ways.len() == MAX_ROUTES || way.len() > usize::from(u16::MAX) => {
                return Err(NetworkError::TooManyRoutes(MAX_ROUTES));
            }
            None => self.number(way),
        };
        self.put_route(from, to, number);
        Ok(())
    }

    fn number(&mut self, way: Box<[u32]>) -> u32 {
        for l in way.iter().rev().skip(1) {
            let h = &mut self.hops[*l as usize];
            if !h.inner {
                // From one agenda to the other.
                (h.inner, h.wake) = (true, None);
                self.current = self.current.filter(|c| c != l);
                self.schedule(*l);
            }
        }
        let n = self.ways.len() as u32;
        self.ways.push(way.clone());
        self.numbers.insert(way, n);
        n
    }

    fn put_route(&mut self, from: PortId, to: PortId, number: u32) {
        let row = &mut self.routes[from.index()];
        if row.len() <= to.index() {
            row.resize(to.index() + 1, UNKNOWN);
        }
        row[to.index()] = number;
    }

    /// The number of a route, looked for in the description the first time.
    fn route(&mut self, from: PortId, to: PortId) -> Option<u32> {
        let known = self.routes.get(from.index())?.get(to.index()).copied().unwrap_or(UNKNOWN);
        if known < NO_WAY {
            return Some(known);
        }
        if known == NO_WAY || to.index() >= self.routes.len() {
            return None;
        }
        let way = self.topology.as_ref().and_then(|t| t.route(from, to));
        if way.is_none_or(|way| self.set_route(from, to, &way).is_err()) && self.topology.is_some() {
            self.put_route(from, to, NO_WAY);
        }
        self.routes[from.index()].get(to.index()).copied().filter(|n| *n < NO_WAY)
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

    /// What a link is like now; `None` for one of another network.
    pub fn config(&self, id: LinkId) -> Option<&LinkConfig> {
        self.hops.get(id.index()).map(|h| h.link.config())
    }
    /// Counters of a link; `None` for one of another network.
    pub fn stats(&self, id: LinkId) -> Option<Stats> {
        self.hops.get(id.index()).map(|h| h.link.stats())
    }
    /// Another configuration from `now` on, see [`Link::set_config`].
    pub fn set_config(&mut self, now: Time, id: LinkId, config: LinkConfig) {
        self.advance_inner(now);
        if let Some(h) = self.hops.get_mut(id.index()) {
            h.link.set_config(now, config);
            self.schedule(id.0);
        }
    }

    /// A packet enters at a port.
    pub fn enter(&mut self, now: Time, from: PortId, to: PortId, packet: Packet<P>) -> Entered {
        let Some(route) = self.route(from, to) else { return Entered::NoRoute };
        // What the links in front of a shared one deliver before now comes first.
        self.advance_inner(now);
        let Packet { bytes, ecn, payload } = packet;
        self.forward(now, Packet { bytes, ecn, payload: Transit { payload, route, hop: 0, to } })
    }

    /// Nothing arrives before this time, and nothing has to be done before it: call [`poll`](Network::poll) then. As
    /// [`Link::next_delivery`].
    pub fn next_event(&self) -> Option<Time> {
        if !self.arrived.is_empty() {
            return Some(Time::ZERO);
        }
        let of = |a: &Agenda| a.peek().map(|Reverse((t, _))| *t);
        let current = self.current.and_then(|l| self.hops[l as usize].link.next_delivery());
        [of(&self.inner), of(&self.last), current].into_iter().flatten().min()
    }

    /// The next packet that has arrived by `now`. Those that arrive over links which lead to ports only come in order of
    /// arrival. Call it until it gives `None`.
    pub fn poll(&mut self, now: Time) -> Option<Arrival<P>> {
        self.advance_inner(now);
        if let Some(a) = self.arrived.pop_front() {
            return Some(a);
        }
        loop {
            let l = self.current.take().or_else(|| self.take_due(now))?;
            let others = self.last.peek().map_or(Time::MAX, |Reverse((t, _))| *t);
            let hop = &mut self.hops[l as usize];
            if hop.link.next_delivery().is_some_and(|due| due <= now.min(others))
                && let Some(d) = hop.link.poll(now.min(others))
            {
                self.current = Some(l);
                let Transit { payload, to, .. } = d.payload;
                return Some(Arrival { time: d.time, to, bytes: d.bytes, ecn: d.ecn, payload });
            }
            hop.wake = None;
            self.schedule(l);
        }
    }

    /// The link to look at next, if its time has come.
    fn take_due(&mut self, now: Time) -> Option<u32> {
        while let Some(&Reverse((t, l))) = self.last.peek() {
            let h = &self.hops[l as usize];
            let counts = h.wake == Some(t) && !h.inner;
            if counts && t > now {
                return None;
            }
            self.last.pop();
            if counts {
                return Some(l);
            }
        }
        None
    }

    /// Lets everything happen up to `now` on links that others follow, by time.
    fn advance_inner(&mut self, now: Time) {
        while let Some(&Reverse((t, l))) = self.inner.peek() {
            if t > now {
                return;
            }
            self.inner.pop();
            if self.hops[l as usize].wake != Some(t) {
                continue;
            }
            let others = self.inner.peek().map_or(Time::MAX, |Reverse((t, _))| *t);
            self.drain(l, now, others);
            self.hops[l as usize].wake = None;
            self.schedule(l);
        }
    }

    /// Forwards what a link delivers until `now`, as long as no other link has something earlier.
    fn drain(&mut self, l: u32, now: Time, mut others: Time) {
        loop {
            let link = &mut self.hops[l as usize].link;
            let Some(due) = link.next_delivery().filter(|due| *due <= now.min(others)) else { return };
            // Not further than that: what it delivers may come back to it before the next is due.
            let Some(d) = link.poll(due) else { continue };
            let _ = self.forward(d.time, Packet { bytes: d.bytes, ecn: d.ecn, payload: d.payload });
            others = others.min(self.inner.peek().map_or(Time::MAX, |Reverse((t, _))| *t));
        }
    }

    /// To the next link of its route, or out.
    fn forward(&mut self, at: Time, mut packet: Packet<Transit<P>>) -> Entered {
        let t = &mut packet.payload;
        let Some(&l) = self.ways[t.route as usize].get(usize::from(t.hop)) else {
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

    /// Enters the link into its agenda, unless it is there for an earlier time.
    fn schedule(&mut self, l: u32) {
        let h = &mut self.hops[l as usize];
        let Some(due) = h.link.next_delivery() else { return };
        if self.current != Some(l) && h.wake.is_none_or(|t| due < t) {
            h.wake = Some(due);
            let agenda = if h.inner { &mut self.inner } else { &mut self.last };
            agenda.push(Reverse((due, l)));
        }
    }
}

#[cfg(test)]
mod tests;
