//! A simulated node: an endpoint, its application, and received datagrams that wait.

use super::host::HostLoop;
use super::{Datagram, TRAINS_PER_TURN, World};
use base::{Ecn, Rate, Rng, Span, Time};
use endpoint::{App, Config, DatagramInfo, Endpoint, ServerConfig, Transmit, TransportOptions};
use std::collections::VecDeque;
use std::sync::Arc;
use transport::crypto::Credentials;

/// Most packets that a host joins to one train when receiving (generic receive offload).
const MAX_GRO_PACKETS: usize = 44;
/// Longest time between the packets of such a train.
const GRO_WINDOW: Span = Span::from_micros(100);

/// The processing rate of a host, and the size of its receive ring.
#[derive(Clone, Copy, Debug)]
pub struct HostSpeed {
    /// Bytes of datagrams processed per second.
    pub rate: Rate,
    /// Most waiting bytes; more are dropped.
    pub room: u64,
}

/// The waiting data of a slow host.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backlog {
    /// Bytes in the inbox.
    bytes: u64,
    /// When the host has finished processing what it has taken from there.
    free_at: Time,
}

/// The settings of a simulated endpoint, which reboots keep.
#[derive(Clone, Debug)]
pub struct NodeSetup {
    /// Options of its connections.
    pub options: TransportOptions,
    /// Its credentials.
    pub credentials: Arc<Credentials>,
    /// Server settings; `None` for a client.
    pub server: Option<ServerConfig>,
    /// Limits of verbs objects.
    pub limits: verbs::Limits,
    /// The secret that survives reboots.
    pub static_secret: [u8; 32],
}

impl NodeSetup {
    /// Settings of a client.
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
    pub fn observe(&mut self, d: &Datagram, rng: &mut Rng) {
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
    /// Indices of additional addresses.
    pub more: Vec<usize>,
    pub inbox: Vec<(Time, Ecn, Datagram)>,
    pub wake: Option<Time>,
    /// Until when its host is suspended.
    pub busy_until: Time,
    /// The rate of its host; `None`: without delay.
    pub speed: Option<HostSpeed>,
    pub backlog: Backlog,
    /// The loop of a host that takes time.
    pub host: Option<Box<HostLoop>>,
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
            host: None,
            capture: None,
        }
    }

    /// Accepts an arriving datagram; returns it if there is no room.
    pub fn arrive(&mut self, now: Time, ecn: Ecn, d: Datagram) -> Result<(), Datagram> {
        let bytes = self.backlog.bytes + d.data.len() as u64;
        if self.speed.is_some_and(|s| bytes > s.room) {
            return Err(d);
        }
        self.backlog.bytes = bytes;
        self.inbox.push((now, ecn, d));
        Ok(())
    }

    /// Number of datagrams of the inbox whose processing the host could have started by now.
    fn count_started(&mut self, now: Time) -> usize {
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

    /// When the host starts with the next datagram of the inbox.
    pub fn next_arrival(&self) -> Option<Time> {
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
        if let Some(host) = self.nodes[n].host.take() {
            return self.run_timed_node(n, host);
        }
        self.receive(n, MAX_GRO_PACKETS);
        self.drive_and_send(n, TRAINS_PER_TURN);
        let node = &self.nodes[n];
        let timers = node.endpoint.next_timeout().into_iter().chain(node.app.next_timeout());
        let wants = timers.chain(node.next_arrival()).min();
        if let Some(t) = wants {
            // Timers are not finer than the slack, so that a deadline without effect cannot stop time.
            let slack = self.slack;
            self.wake_node(n, t.max(now + slack.max(Span::from_nanos(1))));
        }
    }

    /// Lets time-outs and the application happen, and sends up to `most` trains; returns how many.
    pub(super) fn drive_and_send(&mut self, n: usize, most: usize) -> usize {
        let now = self.now;
        let node = &mut self.nodes[n];
        node.endpoint.handle_timeout(now);
        node.app.drive(now, &mut node.endpoint);
        let mut buf = core::mem::take(&mut self.train);
        let mut sent = 0;
        while sent < most {
            let Some(t) = self.nodes[n].endpoint.poll_transmit(now, &mut buf) else { break };
            self.send(n, t, &buf[..t.len]);
            sent += 1;
        }
        self.train = buf;
        sent
    }

    /// Joins neighbouring datagrams of the same flow and size to trains, as generic receive offload does, and
    /// delivers them with the time of their arrival, as the real driver does. Returns trains, datagrams and bytes.
    pub(super) fn receive(&mut self, n: usize, most_joined: usize) -> (usize, u64, usize) {
        let now = self.now;
        let ready = self.nodes[n].count_started(now);
        let mut inbox = core::mem::take(&mut self.nodes[n].inbox);
        let mut buf = core::mem::take(&mut self.train);
        let (mut i, mut trains) = (0, 0);
        while i < ready {
            let (arrived, ecn, first) = &inbox[i];
            let stride = first.data.len().max(1);
            let (mut joined, mut len) = (0, 0);
            for (at, e, d) in &inbox[i..ready] {
                let fits = joined < most_joined && len + d.data.len() <= buf.len() && d.data.len() <= stride;
                let late = at.since(*arrived) > GRO_WINDOW;
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
                // Longer than any train, so no socket would accept it.
                i += 1;
                continue;
            }
            self.totals.trains += 1;
            trains += 1;
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
        (trains, ready as u64, taken as usize)
    }

    /// Splits a train into its datagrams, which enter the network one after the other.
    fn send(&mut self, n: usize, t: Transmit, train: &[u8]) {
        let overhead = if t.remote.is_ipv6() { 48 } else { 28 };
        let node = &self.nodes[n];
        // From another than its first address only if the transmit says so.
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
