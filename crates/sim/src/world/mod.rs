//! The simulated world: nodes, links and events in virtual time.

mod datagram;
mod host;
mod node;
mod trace;

pub use datagram::Datagram;
pub use host::{HostModel, Lateness, POINTS};
pub use netem::{LinkId, PortId};
pub use node::{HostSpeed, NodeSetup};
pub use trace::Trace;

use base::{Ecn, Rng, Span, Time};
use datagram::Pool;
use endpoint::{App, ConnectError, Endpoint};
use netem::{Entered, LinkConfig, LinkStats, Network, NetworkError, Packet, Topology};
use node::{Backlog, Node};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::SocketAddr;

/// Most trains that a node sends in one turn; the rest waits for the next, so that a simulation cannot hang in one.
const TRAINS_PER_TURN: usize = 1 << 14;
/// The stream of random numbers of hosts.
const HOST_STREAM: u64 = 0x686f_7374;

/// A node's identifier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(usize);

/// What an event does.
enum EventKind {
    Network,
    Node(usize),
    Action(Box<dyn FnOnce(&mut World)>),
}

struct Event {
    at: Time,
    seq: u64,
    what: EventKind,
}

impl PartialEq for Event {
    fn eq(&self, o: &Event) -> bool {
        (self.at, self.seq) == (o.at, o.seq)
    }
}
impl Eq for Event {}
impl PartialOrd for Event {
    fn partial_cmp(&self, o: &Event) -> Option<core::cmp::Ordering> {
        Some(self.cmp(o))
    }
}
impl Ord for Event {
    fn cmp(&self, o: &Event) -> core::cmp::Ordering {
        (self.at, self.seq).cmp(&(o.at, o.seq))
    }
}

struct Address {
    addr: SocketAddr,
    /// The port where it is connected; `None` for an invented address.
    port: Option<PortId>,
    /// The node that has it now; `None` after a rebinding.
    node: Option<usize>,
}

/// Counters of a simulation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Datagrams that nodes sent.
    pub sent: u64,
    /// Datagrams that nodes received.
    pub received: u64,
    /// Trains handed to endpoints.
    pub trains: u64,
    /// Datagrams to unused addresses, or without a route.
    pub unroutable: u64,
    /// Datagrams dropped by a slow host.
    pub overrun: u64,
    /// Datagrams injected.
    pub injected: u64,
    /// Events processed.
    pub events: u64,
}

/// A simulation of endpoints and links in virtual time. See the crate's documentation.
pub struct World {
    now: Time,
    seq: u64,
    agenda: BinaryHeap<Reverse<Event>>,
    network: Network<Datagram>,
    /// When the network is polled next.
    network_wake: Option<Time>,
    nodes: Vec<Node>,
    addresses: Vec<Address>,
    by_addr: HashMap<SocketAddr, usize>,
    rng: Rng,
    /// What hosts take time for; `None`: nothing.
    host_model: Option<HostModel>,
    host_rng: Rng,
    slack: Span,
    pool: Pool,
    totals: Totals,
    digest: u64,
    trace: Trace,
    train: Vec<u8>,
}

impl core::fmt::Debug for World {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("World").field("now", &self.now).field("totals", &self.totals).finish_non_exhaustive()
    }
}

impl World {
    /// An empty simulation. The network and nodes are polled at most once in `slack`, as interrupts and timers of
    /// real hosts are coalesced, which forms trains of received packets.
    pub fn new(seed: u64, slack: Span) -> World {
        let mut rng = Rng::from_u64(seed);
        let network = Network::empty(rng.fork());
        World::with(seed, slack, rng, network)
    }

    /// A simulation of a network to whose ports nodes are to be added.
    ///
    /// # Errors
    /// Too large a network.
    pub fn with_topology(seed: u64, slack: Span, topology: &Topology) -> Result<World, NetworkError> {
        let mut rng = Rng::from_u64(seed);
        let network = Network::new(topology, rng.fork())?;
        Ok(World::with(seed, slack, rng, network))
    }

    fn with(seed: u64, slack: Span, rng: Rng, network: Network<Datagram>) -> World {
        World {
            now: Time::from_nanos(1_000_000),
            seq: 0,
            agenda: BinaryHeap::new(),
            network,
            network_wake: None,
            nodes: Vec::new(),
            addresses: Vec::new(),
            by_addr: HashMap::new(),
            host_model: None,
            host_rng: rng.stream(HOST_STREAM),
            rng,
            slack: slack.max(Span::from_nanos(1_000)),
            pool: Pool::default(),
            totals: Totals::default(),
            digest: seed,
            trace: Trace::default(),
            train: vec![0; endpoint::MAX_TRAIN],
        }
    }

    /// The virtual time.
    pub fn now(&self) -> Time {
        self.now
    }
    /// Counters.
    pub fn totals(&self) -> Totals {
        self.totals
    }
    /// A digest of every datagram received so far and its time.
    pub fn digest(&self) -> u64 {
        self.digest
    }
    /// The latest notes.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }
    /// Adds a note, which helps to explain a failure.
    pub fn note(&mut self, text: impl Into<String>) {
        let now = self.now;
        self.trace.push(now, text.into());
    }
    /// The simulation's random generator.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Adds a link, for [`World::set_path`].
    ///
    /// # Errors
    /// Too many links.
    pub fn add_link(&mut self, config: LinkConfig) -> Result<LinkId, NetworkError> {
        self.network.add_link(config)
    }
    /// Loses the datagrams with these numbers, counted from zero, of those that enter the link.
    pub fn lose(&mut self, id: LinkId, numbers: &[u64]) {
        self.network.lose(id, numbers);
    }
    /// Loses the next `n` datagrams that enter the link.
    pub fn lose_next(&mut self, id: LinkId, n: u64) {
        self.network.lose_next(id, n);
    }
    /// A link's counters.
    pub fn link_stats(&self, id: LinkId) -> LinkStats {
        self.network.stats(id).unwrap_or_default()
    }
    /// A link's present configuration.
    pub fn link_config(&self, id: LinkId) -> LinkConfig {
        self.network.config(id).cloned().unwrap_or_default()
    }
    /// Replaces a link's configuration.
    pub fn set_link(&mut self, id: LinkId, config: LinkConfig) {
        self.network.set_config(self.now, id, config);
        self.schedule_network();
    }

    /// Adds an endpoint with its application, at an address and a new port.
    ///
    /// # Errors
    /// Settings that the endpoint refuses, a used address, or too many nodes.
    pub fn add_node(
        &mut self,
        addr: SocketAddr,
        setup: NodeSetup,
        app: Box<dyn App>,
    ) -> Result<NodeId, ConnectError> {
        let port = self.network.add_port().map_err(|e| ConnectError::Settings(e.to_string()))?;
        self.add_node_at(port, addr, setup, app)
    }

    /// Adds an endpoint with its application, at an address and a port of the topology.
    ///
    /// # Errors
    /// As [`World::add_node`].
    pub fn add_node_at(
        &mut self,
        port: PortId,
        addr: SocketAddr,
        setup: NodeSetup,
        app: Box<dyn App>,
    ) -> Result<NodeId, ConnectError> {
        if self.is_taken(addr) {
            return Err(ConnectError::Settings(format!("{addr} is taken")));
        }
        let endpoint = Endpoint::new(setup.config(), self.rng.fork())?;
        let id = self.nodes.len();
        let at = self.claim(addr, id, port);
        self.nodes.push(Node::new(endpoint, app, setup, at));
        self.nodes[id].host = self.new_host(id);
        self.wake_node(id, self.now);
        Ok(NodeId(id))
    }

    /// Adds an address of a node at another port, through which datagrams from this address are sent. False if the
    /// address is used.
    pub fn add_address(&mut self, node: NodeId, port: PortId, addr: SocketAddr) -> bool {
        let free = !self.is_taken(addr);
        if free {
            let more = self.claim(addr, node.0, port);
            self.nodes[node.0].more.push(more);
        }
        free
    }

    fn address(&self, addr: SocketAddr) -> Option<usize> {
        self.by_addr.get(&addr).copied()
    }

    fn is_taken(&self, addr: SocketAddr) -> bool {
        self.address(addr).is_some_and(|a| self.addresses[a].node.is_some())
    }

    fn address_index(&mut self, addr: SocketAddr) -> usize {
        let next = self.addresses.len();
        let i = *self.by_addr.entry(addr).or_insert(next);
        if i == next {
            self.addresses.push(Address { addr, port: None, node: None });
        }
        i
    }

    fn claim(&mut self, addr: SocketAddr, node: usize, port: PortId) -> usize {
        let i = self.address_index(addr);
        (self.addresses[i].node, self.addresses[i].port) = (Some(node), Some(port));
        i
    }

    /// A node's first port.
    fn port(&self, node: NodeId) -> Option<PortId> {
        self.addresses[self.nodes[node.0].addr].port
    }

    /// Sets the links for datagrams from one node to another.
    ///
    /// # Errors
    /// Links of another simulation.
    pub fn set_path(&mut self, from: NodeId, to: NodeId, links: &[LinkId]) -> Result<(), NetworkError> {
        match (self.port(from), self.port(to)) {
            (Some(from), Some(to)) => self.network.set_route(from, to, links),
            _ => Err(NetworkError::Unknown("the node".into())),
        }
    }

    /// Connects two nodes by a link in each direction.
    ///
    /// # Errors
    /// Too many links.
    pub fn join(
        &mut self,
        a: NodeId,
        b: NodeId,
        forward: LinkConfig,
        reverse: LinkConfig,
    ) -> Result<(LinkId, LinkId), NetworkError> {
        let (forward, reverse) = (self.add_link(forward)?, self.add_link(reverse)?);
        self.set_path(a, b, &[forward])?;
        self.set_path(b, a, &[reverse])?;
        Ok((forward, reverse))
    }

    /// The endpoint of a node. Its application is driven soon, in case something is posted.
    pub fn endpoint(&mut self, node: NodeId) -> &mut Endpoint {
        let now = self.now;
        self.wake_node(node.0, now);
        &mut self.nodes[node.0].endpoint
    }

    /// The endpoint of a node, for inspection only.
    pub fn inspect(&mut self, node: NodeId) -> &mut Endpoint {
        &mut self.nodes[node.0].endpoint
    }

    /// Suspends a node's host: arriving data waits, timers are late.
    pub fn stall(&mut self, node: NodeId, lasts: Span) {
        self.nodes[node.0].busy_until = self.now + lasts;
        self.wake(node);
    }

    /// Sets the rate at which a node's host processes arriving data; `None`: without delay.
    pub fn set_host(&mut self, node: NodeId, speed: Option<HostSpeed>) {
        self.nodes[node.0].speed = speed;
    }

    /// How long the next data of the node's host has waited there.
    pub fn host_wait(&self, node: NodeId) -> Span {
        self.nodes[node.0].inbox.first().map_or(Span::ZERO, |(arrived, ..)| self.now.since(*arrived))
    }

    /// Drives a node's application now.
    pub fn wake(&mut self, node: NodeId) {
        let now = self.now;
        self.wake_node(node.0, now);
    }

    /// The node's address.
    pub fn addr(&self, node: NodeId) -> SocketAddr {
        self.addresses[self.nodes[node.0].addr].addr
    }

    /// Reboots a node: it loses everything except its settings and its secret, and runs another application.
    ///
    /// # Errors
    /// Only errors that [`World::add_node`] would have returned before.
    pub fn reboot(&mut self, node: NodeId, app: Box<dyn App>) -> Result<(), ConnectError> {
        let rng = self.rng.fork();
        let n = &mut self.nodes[node.0];
        n.endpoint = Endpoint::new(n.setup.config(), rng)?;
        n.app = app;
        n.backlog = Backlog::default();
        for (.., d) in n.inbox.drain(..) {
            self.pool.put(d.data);
        }
        self.note(format!("node {} reboots", node.0));
        self.wake(node);
        Ok(())
    }

    /// Changes a node's address, as a NAT rebinding does; data in flight to the old one is lost. False if the address
    /// is used.
    pub fn rebind(&mut self, node: NodeId, addr: SocketAddr) -> bool {
        let old = self.nodes[node.0].addr;
        let (false, Some(port)) = (self.is_taken(addr), self.addresses[old].port) else { return false };
        self.addresses[old].node = None;
        self.nodes[node.0].addr = self.claim(addr, node.0, port);
        self.note(format!("node {} is now at {addr}", node.0));
        true
    }

    /// Delivers a foreign datagram to a node, as if from `source`.
    pub fn inject(&mut self, to: NodeId, source: SocketAddr, data: Vec<u8>) {
        let src = self.address_index(source) as u32;
        self.totals.injected += 1;
        let dst = self.nodes[to.0].addr as u32;
        self.deliver(to.0, Ecn::NotEct, Datagram { src, dst, data });
    }

    /// Keeps copies of one in `one_in` datagrams that a node receives, the latest `most`, for replays.
    pub fn capture(&mut self, node: NodeId, one_in: u64, most: usize) {
        self.nodes[node.0].capture = Some(node::Capture::new(one_in, most));
    }
    /// The captured datagrams with their source addresses.
    pub fn captured(&self, node: NodeId) -> Vec<(SocketAddr, Vec<u8>)> {
        let all = self.nodes[node.0].capture.iter().flat_map(|c| c.kept.iter());
        all.map(|d| (self.addresses[d.src as usize].addr, d.data.clone())).collect()
    }

    /// Schedules an action.
    pub fn at(&mut self, at: Time, action: impl FnOnce(&mut World) + 'static) {
        self.push(at, EventKind::Action(Box::new(action)));
    }

    fn push(&mut self, at: Time, what: EventKind) {
        self.seq += 1;
        self.agenda.push(Reverse(Event { at: at.max(self.now), seq: self.seq, what }));
    }

    fn wake_node(&mut self, n: usize, at: Time) {
        let node = &mut self.nodes[n];
        if node.wake.is_none_or(|t| at < t) {
            node.wake = Some(at);
            self.push(at, EventKind::Node(n));
        }
    }

    fn schedule_network(&mut self) {
        let Some(due) = self.network.next_event() else { return };
        // At most once in the slack; polled late, packets still pass each link at their times.
        let at = due.max(self.now) + self.slack;
        if self.network_wake.is_none_or(|t| at < t) {
            self.network_wake = Some(at);
            self.push(at, EventKind::Network);
        }
    }

    /// Processes the next event, unless it is after `until`. False if there is none until then.
    pub fn step(&mut self, until: Time) -> bool {
        let Some(Reverse(next)) = self.agenda.peek() else { return false };
        if next.at > until {
            return false;
        }
        let Some(Reverse(h)) = self.agenda.pop() else { return false };
        self.now = h.at;
        match h.what {
            EventKind::Network if self.network_wake == Some(h.at) => {
                self.network_wake = None;
                self.totals.events += 1;
                self.run_network();
            }
            EventKind::Node(n) if self.nodes[n].wake == Some(h.at) => {
                self.nodes[n].wake = None;
                self.totals.events += 1;
                self.run_node(n);
            }
            // An earlier event took its place.
            EventKind::Network | EventKind::Node(_) => {}
            EventKind::Action(a) => a(self),
        }
        true
    }

    /// Lets time pass until `until`.
    pub fn run_until(&mut self, until: Time) {
        while self.step(until) {}
        self.now = self.now.max(until);
    }

    /// Runs until `done`, which is called after every event, or until `until`. Returns whether it was done.
    pub fn run_until_done(&mut self, until: Time, mut done: impl FnMut(&mut World) -> bool) -> bool {
        loop {
            if done(self) {
                return true;
            }
            if !self.step(until) {
                self.now = self.now.max(until);
                return done(self);
            }
        }
    }

    /// Delivers what has arrived.
    fn run_network(&mut self) {
        let now = self.now;
        while let Some(a) = self.network.poll(now) {
            let d = a.payload;
            self.digest = mix(self.digest, a.time.as_nanos() ^ d.fingerprint());
            let Some(to) = self.addresses[d.dst as usize].node else {
                self.count_unroutable(d);
                continue;
            };
            self.totals.received += 1;
            if let Some(c) = &mut self.nodes[to].capture {
                c.observe(&d, &mut self.rng);
            }
            self.deliver(to, a.ecn, d);
        }
        self.schedule_network();
    }

    /// Delivers a datagram to a node's host.
    fn deliver(&mut self, to: usize, ecn: Ecn, d: Datagram) {
        let now = self.now;
        match self.nodes[to].arrive(now, ecn, d) {
            Ok(()) => self.wake_by_arrival(to, now),
            Err(d) => {
                self.totals.overrun += 1;
                self.pool.put(d.data);
            }
        }
    }

    fn count_unroutable(&mut self, d: Datagram) {
        self.totals.unroutable += 1;
        self.pool.put(d.data);
    }

    /// Sends a node's datagram into the network.
    fn enter(&mut self, ecn: Ecn, bytes: u64, d: Datagram) {
        let (from, to) = (&self.addresses[d.src as usize], &self.addresses[d.dst as usize]);
        let (Some(from), Some(to), true) = (from.port, to.port, to.node.is_some()) else {
            return self.count_unroutable(d);
        };
        if self.network.enter(self.now, from, to, Packet { bytes, ecn, payload: d }) == Entered::NoRoute {
            self.totals.unroutable += 1;
        }
    }
}

/// Mixes a number into a digest (the finaliser of MurmurHash3).
fn mix(digest: u64, x: u64) -> u64 {
    let mut h = digest.rotate_left(5) ^ x;
    h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^ (h >> 33)
}
