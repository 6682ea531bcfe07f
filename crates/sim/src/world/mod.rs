//! Nodes, links and events in virtual time.

mod datagram;
mod node;
mod trace;

pub use datagram::Datagram;
pub use node::NodeSetup;
pub use trace::Trace;

use base::{Ecn, Rng, Span, Time};
use datagram::Pool;
use endpoint::{App, ConnectError, Endpoint};
use netem::{Link, LinkConfig, Packet};
use node::Node;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

/// Trains that a node may send in one turn; the rest waits for the next, so that a world cannot hang in one.
const TRAINS_PER_TURN: usize = 1 << 14;
/// Nodes in one world at most, because there is a table of paths between all of them.
const MAX_NODES: usize = 1 << 10;

/// A node of a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(usize);

/// One direction of a link of a world.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(usize);

/// What happens at a time.
enum What {
    Link(usize),
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

struct Wire {
    link: Link<Datagram>,
    /// When the link is looked at next.
    wake: Option<Time>,
    /// Datagrams offered so far.
    offered: u64,
    /// Those to lose, by number from zero.
    lose: Vec<u64>,
}

struct Address {
    addr: SocketAddr,
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
    links: Vec<Wire>,
    nodes: Vec<Node>,
    addresses: Vec<Address>,
    /// Links from one node to another.
    paths: Vec<Vec<Option<Box<[usize]>>>>,
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
    /// An empty world. Links and nodes are looked at once in `slack` at most, as interrupts and timers of real
    /// hosts are coalesced; that is what makes trains of received packets.
    pub fn new(seed: u64, slack: Span) -> World {
        World {
            now: Time::from_nanos(1_000_000),
            seq: 0,
            agenda: BinaryHeap::new(),
            links: Vec::new(),
            nodes: Vec::new(),
            addresses: Vec::new(),
            paths: Vec::new(),
            rng: Rng::from_u64(seed),
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

    /// A link.
    pub fn add_link(&mut self, config: LinkConfig) -> LinkId {
        let link = Link::new(config, self.rng.fork());
        self.links.push(Wire { link, wake: None, offered: 0, lose: Vec::new() });
        LinkId(self.links.len() - 1)
    }
    /// Loses the datagrams with these numbers, counted from zero, of those that enter the link.
    pub fn lose(&mut self, id: LinkId, numbers: &[u64]) {
        self.links[id.0].lose.extend_from_slice(numbers);
    }
    /// A link's model: its counters, and its configuration.
    pub fn link(&self, id: LinkId) -> &Link<Datagram> {
        &self.links[id.0].link
    }
    /// Another configuration from now on.
    pub fn set_link(&mut self, id: LinkId, config: LinkConfig) {
        let now = self.now;
        self.links[id.0].link.set_config(now, config);
        self.schedule_link(id.0);
    }

    /// An endpoint with its application, at an address.
    ///
    /// # Errors
    /// Settings that the endpoint refuses; an address that is taken; too many nodes.
    pub fn add_node(
        &mut self,
        addr: SocketAddr,
        setup: NodeSetup,
        app: Box<dyn App>,
    ) -> Result<NodeId, ConnectError> {
        if self.nodes.len() == MAX_NODES {
            return Err(ConnectError::Settings(format!("a world has at most {MAX_NODES} nodes")));
        }
        if self.address(addr).is_some_and(|a| self.addresses[a].node.is_some()) {
            return Err(ConnectError::Settings(format!("{addr} is taken")));
        }
        let endpoint = Endpoint::new(setup.config(), self.rng.fork())?;
        let id = self.nodes.len();
        let at = self.claim(addr, id);
        self.nodes.push(Node::new(endpoint, app, setup, at));
        self.paths.iter_mut().for_each(|p| p.push(None));
        self.paths.push((0..=id).map(|_| None).collect());
        self.wake_node(id, self.now);
        Ok(NodeId(id))
    }

    fn address(&self, addr: SocketAddr) -> Option<usize> {
        self.addresses.iter().position(|a| a.addr == addr)
    }

    fn claim(&mut self, addr: SocketAddr, node: usize) -> usize {
        if let Some(i) = self.address(addr) {
            self.addresses[i].node = Some(node);
            return i;
        }
        self.addresses.push(Address { addr, node: Some(node) });
        self.addresses.len() - 1
    }

    /// Datagrams from one node to another take these links in turn.
    pub fn set_path(&mut self, from: NodeId, to: NodeId, links: &[LinkId]) {
        self.paths[from.0][to.0] = Some(links.iter().map(|l| l.0).collect());
    }

    /// Two links, one each way, between two nodes.
    pub fn join(&mut self, a: NodeId, b: NodeId, there: LinkConfig, back: LinkConfig) -> (LinkId, LinkId) {
        let (there, back) = (self.add_link(there), self.add_link(back));
        self.set_path(a, b, &[there]);
        self.set_path(b, a, &[back]);
        (there, back)
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
        for (_, d) in n.inbox.drain(..) {
            self.pool.put(d.data);
        }
        self.note(format!("node {} reboots", node.0));
        self.wake(node);
        Ok(())
    }

    /// The node has another address from now on, as behind a NAT that forgot it; what is on its way to the old one
    /// is lost. False when the address is taken.
    pub fn rebind(&mut self, node: NodeId, addr: SocketAddr) -> bool {
        if self.address(addr).is_some_and(|a| self.addresses[a].node.is_some()) {
            return false;
        }
        let old = self.nodes[node.0].addr;
        self.addresses[old].node = None;
        self.nodes[node.0].addr = self.claim(addr, node.0);
        self.note(format!("node {} is now at {addr}", node.0));
        true
    }

    /// Something from someone else arrives at a node, as if from `source`.
    pub fn inject(&mut self, to: NodeId, source: SocketAddr, data: Vec<u8>) {
        let src = match self.address(source) {
            Some(i) => i,
            None => {
                self.addresses.push(Address { addr: source, node: None });
                self.addresses.len() - 1
            }
        };
        self.totals.injected += 1;
        let dst = self.nodes[to.0].addr as u32;
        self.nodes[to.0]
            .inbox
            .push((Ecn::NotEct, Datagram { src: src as u32, dst, hop: 0, origin: to.0 as u16, data }));
        self.wake(to);
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

    fn schedule_link(&mut self, l: usize) {
        let slack = self.slack;
        let w = &mut self.links[l];
        let Some(due) = w.link.next_delivery() else { return };
        // Not more often than once in the slack: looked at late, the packets still bear their times of arrival.
        let at = due.max(self.now) + slack;
        if w.wake.is_none_or(|t| at < t) {
            w.wake = Some(at);
            self.push(at, What::Link(l));
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
            What::Link(l) if self.links[l].wake == Some(h.at) => {
                self.links[l].wake = None;
                self.totals.events += 1;
                self.run_link(l);
            }
            What::Node(n) if self.nodes[n].wake == Some(h.at) => {
                self.nodes[n].wake = None;
                self.totals.events += 1;
                self.run_node(n);
            }
            // Something earlier took its place.
            What::Link(_) | What::Node(_) => {}
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

    fn run_link(&mut self, l: usize) {
        let now = self.now;
        while let Some(d) = self.links[l].link.poll(now) {
            self.digest = mix(self.digest, d.time.as_nanos() ^ d.payload.fingerprint());
            self.forward(d.time, d.ecn, d.bytes, d.payload);
        }
        self.schedule_link(l);
    }

    /// A datagram leaves a node or a link: to the next link of its path, or to its receiver.
    fn forward(&mut self, at: Time, ecn: Ecn, bytes: u64, mut d: Datagram) {
        let to = self.addresses[d.dst as usize].node;
        let hop = usize::from(d.hop);
        let links = match (usize::from(d.origin), to) {
            (from, Some(to)) => self.paths[from][to].as_deref(),
            _ => None,
        };
        let Some(links) = links else {
            self.totals.unroutable += 1;
            self.pool.put(d.data);
            return;
        };
        if let Some(&l) = links.get(hop) {
            d.hop += 1;
            let w = &mut self.links[l];
            w.offered += 1;
            if w.lose.contains(&(w.offered - 1)) {
                self.pool.put(d.data);
                return;
            }
            let _ = self.links[l].link.send(at, Packet { bytes, ecn, payload: d });
            self.schedule_link(l);
            return;
        }
        if let Some(to) = to {
            self.totals.received += 1;
            if let Some(c) = &mut self.nodes[to].capture {
                c.look(&d, &mut self.rng);
            }
            self.nodes[to].inbox.push((ecn, d));
            let now = self.now;
            self.wake_node(to, now);
        }
    }
}

/// Mixes a number into a digest (the finaliser of MurmurHash3).
fn mix(digest: u64, x: u64) -> u64 {
    let mut h = digest.rotate_left(5) ^ x;
    h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^ (h >> 33)
}
