//! Nodes, links and events in virtual time.

mod datagram;
mod node;
mod trace;

pub use datagram::Datagram;
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

/// Trains that a node may send in one turn; the rest waits for the next, so that a world cannot hang in one.
const TRAINS_PER_TURN: usize = 1 << 14;
/// A node of a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(usize);

/// What happens at a time.
enum What {
    Network,
    Node(usize),
    Action(Box<dyn FnOnce(&mut World)>),
}

struct Happening {
    at: Time,
    seq: u64,
    what: What,
}

impl PartialEq for Happening {
    fn eq(&self, o: &Happening) -> bool {
        (self.at, self.seq) == (o.at, o.seq)
    }
}
impl Eq for Happening {}
impl PartialOrd for Happening {
    fn partial_cmp(&self, o: &Happening) -> Option<core::cmp::Ordering> {
        Some(self.cmp(o))
    }
}
impl Ord for Happening {
    fn cmp(&self, o: &Happening) -> core::cmp::Ordering {
        (self.at, self.seq).cmp(&(o.at, o.seq))
    }
}

struct Address {
    addr: SocketAddr,
    /// Where it is plugged in; nowhere when someone made it up.
    port: Option<PortId>,
    /// Who has it now; nobody after a rebinding.
    node: Option<usize>,
}

/// Counters of a world.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Totals {
    /// Datagrams that nodes sent.
    pub sent: u64,
    /// Datagrams that nodes received.
    pub received: u64,
    /// Trains handed to endpoints.
    pub trains: u64,
    /// Datagrams to addresses that nobody has, or without a path.
    pub unroutable: u64,
    /// Datagrams for which a slow host had no room.
    pub overrun: u64,
    /// Datagrams put in by someone hostile.
    pub injected: u64,
    /// Happenings worked off.
    pub events: u64,
}

/// Endpoints and links in virtual time. See the crate's documentation.
pub struct World {
    now: Time,
    seq: u64,
    agenda: BinaryHeap<Reverse<Happening>>,
    network: Network<Datagram>,
    /// When the network is looked at next.
    network_wake: Option<Time>,
    nodes: Vec<Node>,
    addresses: Vec<Address>,
    by_addr: HashMap<SocketAddr, usize>,
    rng: Rng,
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
    /// An empty world. The network and nodes are looked at once in `slack` at most, as interrupts and timers of real
    /// hosts are coalesced; that is what makes trains of received packets.
    pub fn new(seed: u64, slack: Span) -> World {
        let mut rng = Rng::from_u64(seed);
        let network = Network::empty(rng.fork());
        World::with(seed, slack, rng, network)
    }

    /// A world with a network, to whose ports nodes are to be added.
    ///
    /// # Errors
    /// A network that is too large.
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
            rng,
            slack: slack.max(Span::from_nanos(1_000)),
            pool: Pool::default(),
            totals: Totals::default(),
            digest: seed,
            trace: Trace::default(),
            train: vec![0; endpoint::MAX_TRAIN],
        }
    }

    /// The time in this world.
    pub fn now(&self) -> Time {
        self.now
    }
    /// Counters.
    pub fn totals(&self) -> Totals {
        self.totals
    }
    /// A number that depends on every datagram received so far and when.
    pub fn digest(&self) -> u64 {
        self.digest
    }
    /// The latest notes.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }
    /// Notes what happens, for whoever has to explain a failure.
    pub fn note(&mut self, text: impl Into<String>) {
        let now = self.now;
        self.trace.push(now, text.into());
    }
    /// Randomness of this world.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// A link, for [`World::set_path`].
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
    /// What a link is like now.
    pub fn link_config(&self, id: LinkId) -> LinkConfig {
        self.network.config(id).cloned().unwrap_or_default()
    }
    /// Another configuration from now on.
    pub fn set_link(&mut self, id: LinkId, config: LinkConfig) {
        self.network.set_config(self.now, id, config);
        self.schedule_network();
    }

    /// An endpoint with its application, at an address and a port of its own.
    ///
    /// # Errors
    /// Settings that the endpoint refuses; an address that is taken; too many nodes.
    pub fn add_node(
        &mut self,
        addr: SocketAddr,
        setup: NodeSetup,
        app: Box<dyn App>,
    ) -> Result<NodeId, ConnectError> {
        let port = self.network.add_port().map_err(|e| ConnectError::Settings(e.to_string()))?;
        self.add_node_at(port, addr, setup, app)
    }

    /// An endpoint with its application, at an address and a port of the topology.
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
        self.wake_node(id, self.now);
        Ok(NodeId(id))
    }

    /// Another address of a node, at another port: what is sent from there leaves by that port. False when the address
    /// is taken.
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

    fn know(&mut self, addr: SocketAddr) -> usize {
        let next = self.addresses.len();
        let i = *self.by_addr.entry(addr).or_insert(next);
        if i == next {
            self.addresses.push(Address { addr, port: None, node: None });
        }
        i
    }

    fn claim(&mut self, addr: SocketAddr, node: usize, port: PortId) -> usize {
        let i = self.know(addr);
        (self.addresses[i].node, self.addresses[i].port) = (Some(node), Some(port));
        i
    }

    /// Where a node is plugged in first.
    fn port(&self, node: NodeId) -> Option<PortId> {
        self.addresses[self.nodes[node.0].addr].port
    }

    /// Datagrams from one node to another take these links in turn.
    ///
    /// # Errors
    /// Links of another world.
    pub fn set_path(&mut self, from: NodeId, to: NodeId, links: &[LinkId]) -> Result<(), NetworkError> {
        match (self.port(from), self.port(to)) {
            (Some(from), Some(to)) => self.network.set_route(from, to, links),
            _ => Err(NetworkError::Unknown("the node".into())),
        }
    }

    /// Two links, one each way, between two nodes.
    ///
    /// # Errors
    /// Too many links.
    pub fn join(
        &mut self,
        a: NodeId,
        b: NodeId,
        there: LinkConfig,
        back: LinkConfig,
    ) -> Result<(LinkId, LinkId), NetworkError> {
        let (there, back) = (self.add_link(there)?, self.add_link(back)?);
        self.set_path(a, b, &[there])?;
        self.set_path(b, a, &[back])?;
        Ok((there, back))
    }

    /// The endpoint of a node. Its application is driven soon, in case something was posted.
    pub fn endpoint(&mut self, node: NodeId) -> &mut Endpoint {
        let now = self.now;
        self.wake_node(node.0, now);
        &mut self.nodes[node.0].endpoint
    }

    /// The endpoint of a node, for a look that changes nothing.
    pub fn inspect(&mut self, node: NodeId) -> &mut Endpoint {
        &mut self.nodes[node.0].endpoint
    }

    /// The node's host does something else for so long: what arrives waits, timers go off late.
    pub fn stall(&mut self, node: NodeId, lasts: Span) {
        self.nodes[node.0].busy_until = self.now + lasts;
        self.wake(node);
    }

    /// The node's host processes what arrives no faster than this from now on; `None`: in no time.
    pub fn set_host(&mut self, node: NodeId, speed: Option<HostSpeed>) {
        self.nodes[node.0].speed = speed;
    }

    /// How long what the node's host comes to next has waited there.
    pub fn host_wait(&self, node: NodeId) -> Span {
        self.nodes[node.0].inbox.first().map_or(Span::ZERO, |(arrived, ..)| self.now.since(*arrived))
    }

    /// Has a node's application driven now.
    pub fn wake(&mut self, node: NodeId) {
        let now = self.now;
        self.wake_node(node.0, now);
    }

    /// The node's address.
    pub fn addr(&self, node: NodeId) -> SocketAddr {
        self.addresses[self.nodes[node.0].addr].addr
    }

    /// The node forgets everything but its settings and its secret, as after a crash, and runs another application.
    ///
    /// # Errors
    /// None that [`World::add_node`] did not give before.
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

    /// The node has another address from now on, as behind a NAT that forgot it; what is on its way to the old one
    /// is lost. False when the address is taken.
    pub fn rebind(&mut self, node: NodeId, addr: SocketAddr) -> bool {
        let old = self.nodes[node.0].addr;
        let (false, Some(port)) = (self.is_taken(addr), self.addresses[old].port) else { return false };
        self.addresses[old].node = None;
        self.nodes[node.0].addr = self.claim(addr, node.0, port);
        self.note(format!("node {} is now at {addr}", node.0));
        true
    }

    /// Something from someone else arrives at a node, as if from `source`.
    pub fn inject(&mut self, to: NodeId, source: SocketAddr, data: Vec<u8>) {
        let src = self.know(source) as u32;
        self.totals.injected += 1;
        let dst = self.nodes[to.0].addr as u32;
        self.deliver(to.0, Ecn::NotEct, Datagram { src, dst, data });
    }

    /// Keeps copies of one datagram in `one_in` that a node receives, the latest `most`, for whoever wants to
    /// replay them.
    pub fn capture(&mut self, node: NodeId, one_in: u64, most: usize) {
        self.nodes[node.0].capture = Some(node::Capture::new(one_in, most));
    }
    /// What was captured, with the addresses it came from.
    pub fn captured(&self, node: NodeId) -> Vec<(SocketAddr, Vec<u8>)> {
        let all = self.nodes[node.0].capture.iter().flat_map(|c| c.kept.iter());
        all.map(|d| (self.addresses[d.src as usize].addr, d.data.clone())).collect()
    }

    /// Does something at a time.
    pub fn at(&mut self, at: Time, action: impl FnOnce(&mut World) + 'static) {
        self.push(at, What::Action(Box::new(action)));
    }

    fn push(&mut self, at: Time, what: What) {
        self.seq += 1;
        self.agenda.push(Reverse(Happening { at: at.max(self.now), seq: self.seq, what }));
    }

    fn wake_node(&mut self, n: usize, at: Time) {
        let node = &mut self.nodes[n];
        if node.wake.is_none_or(|t| at < t) {
            node.wake = Some(at);
            self.push(at, What::Node(n));
        }
    }

    fn schedule_network(&mut self) {
        let Some(due) = self.network.next_event() else { return };
        // Not more often than once in the slack: looked at late, packets have passed each link at their times.
        let at = due.max(self.now) + self.slack;
        if self.network_wake.is_none_or(|t| at < t) {
            self.network_wake = Some(at);
            self.push(at, What::Network);
        }
    }

    /// Works off what happens next, unless that is after `until`. False when nothing is left until then.
    pub fn step(&mut self, until: Time) -> bool {
        let Some(Reverse(next)) = self.agenda.peek() else { return false };
        if next.at > until {
            return false;
        }
        let Some(Reverse(h)) = self.agenda.pop() else { return false };
        self.now = h.at;
        match h.what {
            What::Network if self.network_wake == Some(h.at) => {
                self.network_wake = None;
                self.totals.events += 1;
                self.run_network();
            }
            What::Node(n) if self.nodes[n].wake == Some(h.at) => {
                self.nodes[n].wake = None;
                self.totals.events += 1;
                self.run_node(n);
            }
            // Something earlier took its place.
            What::Network | What::Node(_) => {}
            What::Action(a) => a(self),
        }
        true
    }

    /// Lets time pass until `until`.
    pub fn run_until(&mut self, until: Time) {
        while self.step(until) {}
        self.now = self.now.max(until);
    }

    /// Lets time pass until `done`, which is asked after everything that happens, or until `until`. Returns whether
    /// it was done.
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

    /// Hands over what has arrived.
    fn run_network(&mut self) {
        let now = self.now;
        while let Some(a) = self.network.poll(now) {
            let d = a.payload;
            self.digest = mix(self.digest, a.time.as_nanos() ^ d.fingerprint());
            let Some(to) = self.addresses[d.dst as usize].node else {
                self.lost_way(d);
                continue;
            };
            self.totals.received += 1;
            if let Some(c) = &mut self.nodes[to].capture {
                c.look(&d, &mut self.rng);
            }
            self.deliver(to, a.ecn, d);
        }
        self.schedule_network();
    }

    /// A datagram is at a node's host.
    fn deliver(&mut self, to: usize, ecn: Ecn, d: Datagram) {
        let now = self.now;
        match self.nodes[to].arrive(now, ecn, d) {
            Ok(()) => self.wake_node(to, now),
            Err(d) => {
                self.totals.overrun += 1;
                self.pool.put(d.data);
            }
        }
    }

    fn lost_way(&mut self, d: Datagram) {
        self.totals.unroutable += 1;
        self.pool.put(d.data);
    }

    /// A datagram leaves a node.
    fn enter(&mut self, ecn: Ecn, bytes: u64, d: Datagram) {
        let (from, to) = (&self.addresses[d.src as usize], &self.addresses[d.dst as usize]);
        let (Some(from), Some(to), true) = (from.port, to.port, to.node.is_some()) else {
            return self.lost_way(d);
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
