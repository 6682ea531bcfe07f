//! A node: an endpoint, its application, and what waits to be received.

use super::{Datagram, TRAINS_PER_TURN, World};
use base::{Ecn, Rate, Rng, Span, Time};
use endpoint::{App, Config, DatagramInfo, Endpoint, ServerConfig, Transmit, TransportOptions};
use std::collections::VecDeque;
use std::sync::Arc;
use transport::crypto::Credentials;

/// Packets that a host joins to one train when receiving (generic receive offload) at most.
const MAX_JOINED: usize = 44;
/// And only those that arrive within this time of the first.
const JOIN_WITHIN: Span = Span::from_micros(100);

/// How fast a host takes in what arrives, and what it holds meanwhile, as a receive ring does.
#[derive(Clone, Copy, Debug)]
pub struct HostSpeed {
    /// Bytes of datagrams processed per second.
    pub rate: Rate,
    /// Bytes that wait at most; what arrives beyond them is dropped.
    pub room: u64,
}

/// What waits in a host that is slow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backlog {
    /// Bytes in the inbox.
    bytes: u64,
    /// When the host will be done with what it has taken from there.
    free_at: Time,
}

/// What an endpoint of a world is made from, again after each reboot.
#[derive(Clone, Debug)]
pub struct NodeSetup {
    /// Options of its connections.
    pub options: TransportOptions,
    /// What it shows of itself.
    pub credentials: Arc<Credentials>,
    /// Answers connections when present.
    pub server: Option<ServerConfig>,
    /// Limits of verbs objects.
    pub limits: verbs::Limits,
    /// Survives reboots.
    pub static_secret: [u8; 32],
}

impl NodeSetup {
    /// A client.
    pub fn new(credentials: Arc<Credentials>) -> NodeSetup {
        NodeSetup {
            options: TransportOptions::default(),
            credentials,
            server: None,
            limits: verbs::Limits::default(),
            static_secret: [7; 32],
        }
    }
    pub(super) fn config(&self) -> Config {
        Config {
            options: self.options.clone(),
            credentials: self.credentials.clone(),
            server: self.server.clone(),
            limits: self.limits,
            static_secret: self.static_secret,
            unix_epoch: 1_700_000_000,
        }
    }
}

/// Copies of received datagrams.
pub(super) struct Capture {
    one_in: u64,
    most: usize,
    pub kept: VecDeque<Datagram>,
}

impl Capture {
    pub fn new(one_in: u64, most: usize) -> Capture {
        Capture { one_in: one_in.max(1), most, kept: VecDeque::new() }
    }
    pub fn look(&mut self, d: &Datagram, rng: &mut Rng) {
        if rng.below(self.one_in) == 0 {
            if self.kept.len() >= self.most {
                self.kept.pop_front();
            }
            self.kept.push_back(d.clone());
        }
    }
}

pub(super) struct Node {
    pub endpoint: Endpoint,
    pub app: Box<dyn App>,
    pub setup: NodeSetup,
    /// Index of its address.
    pub addr: usize,
    /// Those of further ones.
    pub more: Vec<usize>,
    pub inbox: Vec<(Time, Ecn, Datagram)>,
    pub wake: Option<Time>,
    /// Its host does something else until then.
    pub busy_until: Time,
    /// Its host processes no faster than this; `None`: in no time.
    pub speed: Option<HostSpeed>,
    pub backlog: Backlog,
    pub capture: Option<Capture>,
}

impl Node {
    pub fn new(endpoint: Endpoint, app: Box<dyn App>, setup: NodeSetup, addr: usize) -> Node {
        Node {
            endpoint,
            app,
            setup,
            addr,
            more: Vec::new(),
            inbox: Vec::new(),
            wake: None,
            busy_until: Time::ZERO,
            speed: None,
            backlog: Backlog::default(),
            capture: None,
        }
    }

    /// Takes in what has arrived; gives back what there is no room for.
    pub fn arrive(&mut self, now: Time, ecn: Ecn, d: Datagram) -> Result<(), Datagram> {
        let bytes = self.backlog.bytes + d.data.len() as u64;
        if self.speed.is_some_and(|s| bytes > s.room) {
            return Err(d);
        }
        self.backlog.bytes = bytes;
        self.inbox.push((now, ecn, d));
        Ok(())
    }

    /// How many datagrams of the inbox the host has come to by now: those that it could begin with.
    fn come_to(&mut self, now: Time) -> usize {
        let Some(speed) = self.speed else { return self.inbox.len() };
        let (b, busy_until) = (&mut self.backlog, self.busy_until);
        let begins = |(arrived, _, d): &(Time, Ecn, Datagram)| {
            let begin = b.free_at.max(*arrived).max(busy_until);
            let takes = speed.rate.time_for(d.data.len() as u64);
            if begin <= now {
                b.free_at = begin + takes;
            }
            begin <= now
        };
        self.inbox.iter().map(begins).take_while(|ready| *ready).count()
    }

    /// When the host comes to what is left in the inbox.
    fn next_arrival(&self) -> Option<Time> {
        self.inbox.first().map(|(arrived, ..)| self.backlog.free_at.max(*arrived))
    }
}

impl World {
    /// One turn of a node, in the order of the real driver's loop: receive, time-outs, application, send.
    pub(super) fn run_node(&mut self, n: usize) {
        let (now, busy_until) = (self.now, self.nodes[n].busy_until);
        if now < busy_until {
            return self.wake_node(n, busy_until);
        }
        self.receive(n);
        let node = &mut self.nodes[n];
        node.endpoint.handle_timeout(now);
        node.app.drive(now, &mut node.endpoint);
        let mut buf = core::mem::take(&mut self.train);
        for _ in 0..TRAINS_PER_TURN {
            let Some(t) = self.nodes[n].endpoint.poll_transmit(now, &mut buf) else { break };
            self.send(n, t, &buf[..t.len]);
        }
        self.train = buf;
        let node = &self.nodes[n];
        let timers = node.endpoint.next_timeout().into_iter().chain(node.app.next_timeout());
        let wants = timers.chain(node.next_arrival()).min();
        if let Some(t) = wants {
            // Timers are not finer than the slack, so that a deadline that does nothing cannot stop time.
            let slack = self.slack;
            self.wake_node(n, t.max(now + slack.max(Span::from_nanos(1))));
        }
    }

    /// Joins neighbours of the same flow and size to trains, as generic receive offload does, and hands them over with the
    /// time of their arrival, as the real driver does.
    fn receive(&mut self, n: usize) {
        let now = self.now;
        let ready = self.nodes[n].come_to(now);
        let mut inbox = core::mem::take(&mut self.nodes[n].inbox);
        let mut buf = core::mem::take(&mut self.train);
        let mut i = 0;
        while i < ready {
            let (arrived, ecn, first) = &inbox[i];
            let stride = first.data.len().max(1);
            let (mut joined, mut len) = (0, 0);
            for (at, e, d) in &inbox[i..ready] {
                let fits = joined < MAX_JOINED && len + d.data.len() <= buf.len() && d.data.len() <= stride;
                let late = at.since(*arrived) > JOIN_WITHIN;
                if !fits || late || (d.src, d.dst, *e) != (first.src, first.dst, *ecn) {
                    break;
                }
                buf[len..len + d.data.len()].copy_from_slice(&d.data);
                (joined, len) = (joined + 1, len + d.data.len());
                // A shorter one ends the train.
                if d.data.len() < stride {
                    break;
                }
            }
            let remote = self.addresses[first.src as usize].addr;
            let local = self.addresses[first.dst as usize].addr.ip();
            let local = (!self.nodes[n].more.is_empty()).then_some(local);
            let meta = DatagramInfo { remote, local, ecn: *ecn, waited: self.now.since(*arrived) };
            if joined == 0 {
                // Longer than any train: no socket would take it.
                i += 1;
                continue;
            }
            self.totals.trains += 1;
            self.nodes[n].endpoint.handle_train(*arrived, meta, &mut buf[..len], stride);
            i += joined;
        }
        let mut taken = 0;
        inbox.drain(..ready).for_each(|(.., d)| {
            taken += d.data.len() as u64;
            self.pool.put(d.data);
        });
        // Nothing arrives while an endpoint works.
        let node = &mut self.nodes[n];
        (node.inbox, self.train) = (inbox, buf);
        node.backlog.bytes = node.backlog.bytes.saturating_sub(taken);
    }

    /// Splits a train into its datagrams, which enter their path one after the other.
    fn send(&mut self, n: usize, t: Transmit, train: &[u8]) {
        let overhead = if t.remote.is_ipv6() { 48 } else { 28 };
        let node = &self.nodes[n];
        // From another than its first address only when it says so.
        let own = |a: &&usize| t.local.is_some_and(|ip| self.addresses[**a].addr.ip() == ip);
        let src = node.more.iter().find(own).copied().unwrap_or(node.addr) as u32;
        let Some(dst) = self.address(t.remote) else {
            self.totals.unroutable += train.chunks(t.segment.max(1)).len() as u64;
            return;
        };
        for piece in train.chunks(t.segment.max(1)) {
            self.totals.sent += 1;
            let data = self.pool.copy(piece);
            let bytes = (piece.len() + overhead) as u64;
            self.enter(t.ecn, bytes, Datagram { src, dst: dst as u32, data });
        }
        self.schedule_network();
    }
}
