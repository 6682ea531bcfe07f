//! The loop of the relay.

use super::train_builder::TrainBuilder;
use super::{DirectionStats, RelayConfig, RelayError, RelayStats, Request};
use crate::clock::{Clock, CpuTime};
use crate::poll::{self, Poller, Source};
use crate::udp::{RecvBatch, RecvMeta, SendMeta, UdpOptions, UdpSocket};
use base::{Rng, Span, Time};
use core::ops::Range;
use netem::{Link, Packet, Payload};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

/// Receive calls for one socket before the others have their turn.
const RECV_TURNS: usize = 4;
/// Packets that leave one link before the other has its turn: 100 ms at 1 Gbit/s.
const DELIVER_TURN: usize = 8_192;

/// A packet on a link: a part of the train it arrived with, which is copied once for all its packets.
#[derive(Clone)]
struct RelayPacket {
    client: u64,
    dscp: u8,
    train: Arc<[u8]>,
    range: Range<usize>,
}

impl RelayPacket {
    fn bytes(&self) -> &[u8] {
        &self.train[self.range.clone()]
    }
}

impl Payload for RelayPacket {
    fn corrupt(&mut self, rng: &mut Rng) {
        // On a copy: the neighbours in the train are none of its business.
        let mut own = self.bytes().to_vec();
        netem::flip_bits(&mut own, rng);
        self.range = 0..own.len();
        self.train = own.into();
    }

    fn stamp(&mut self, hop: &base::telemetry::Hop) {
        if !base::telemetry::is_led(self.bytes()) {
            return;
        }
        let mut own = self.bytes().to_vec();
        base::telemetry::stamp(&mut own, hop);
        self.range = 0..own.len();
        self.train = own.into();
    }
}

/// One client, and the socket by which the target knows it.
struct Client {
    id: u64,
    remote: SocketAddr,
    /// The relay's address that the client uses.
    local: Option<IpAddr>,
    socket: UdpSocket,
    last: Time,
}

struct Direction {
    link: Link<RelayPacket>,
    stats: DirectionStats,
}

pub(super) struct Engine {
    config: RelayConfig,
    listen: UdpSocket,
    poller: Poller,
    clock: Clock,
    start: Time,
    up: Direction,
    down: Direction,
    clients: Vec<Client>,
    by_remote: HashMap<SocketAddr, u64>,
    next_id: u64,
    refused: u64,
    stray: u64,
}

impl Engine {
    pub(super) fn new(config: RelayConfig, listen: UdpSocket, poller: Poller, mut rng: Rng) -> Engine {
        let mut direction = |c: &netem::LinkConfig| Direction {
            link: Link::new(c.clone(), rng.fork()),
            stats: DirectionStats::default(),
        };
        let (up, down) = (direction(&config.up), direction(&config.down));
        let clock = Clock::new();
        Engine {
            start: clock.now(),
            config,
            listen,
            poller,
            clock,
            up,
            down,
            clients: Vec::new(),
            by_remote: HashMap::new(),
            next_id: 0,
            refused: 0,
            stray: 0,
        }
    }

    pub(super) fn run(mut self, inbox: &Receiver<Request>) -> Result<RelayStats, RelayError> {
        poll::sharpen_timers();
        // Shared by all sockets: those of clients are made with or without GRO as this one is.
        let mut batch = self.listen.recv_batch();
        let mut builder = TrainBuilder::new()?;
        let mut ready = Vec::new();
        loop {
            self.receive(&ready, &mut batch)?;
            self.deliver_up(&mut builder)?;
            self.deliver_down(&mut builder)?;
            if !self.answer(inbox) {
                return Ok(self.stats());
            }
            self.wait(&mut ready)?;
        }
    }

    /// Time since the relay's start: what links count in.
    fn now(&self) -> Time {
        Time::ZERO + self.clock.now().since(self.start)
    }

    fn stats(&self) -> RelayStats {
        let of = |d: &Direction| DirectionStats { link: d.link.stats(), ..d.stats.clone() };
        RelayStats {
            up: of(&self.up),
            down: of(&self.down),
            clients: self.clients.len(),
            refused: self.refused,
            stray: self.stray,
            cpu: CpuTime::of_thread(),
        }
    }

    /// Does what handles ask for. False when the relay is to end.
    fn answer(&mut self, inbox: &Receiver<Request>) -> bool {
        for _ in 0..super::MAX_REQUESTS {
            match inbox.try_recv() {
                Ok(Request::Set(configs)) => {
                    let now = self.now();
                    self.up.link.set_config(now, configs.0);
                    self.down.link.set_config(now, configs.1);
                }
                // A handle that no longer waits for the answer does not need it.
                Ok(Request::Stats(to)) => drop(to.try_send(self.stats())),
                Ok(Request::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
        true
    }

    /// Waits for packets, requests, or the next delivery; notes which sockets have packets, 0 being the
    /// clients' side.
    fn wait(&mut self, ready: &mut Vec<usize>) -> Result<(), RelayError> {
        let next = self.up.link.next_delivery().into_iter().chain(self.down.link.next_delivery()).min();
        let now = self.now();
        let timeout = next.map(|at| if at <= now { Span::ZERO } else { (at + self.config.batch).since(now) });
        let listen = core::iter::once(&self.listen);
        let mut sources: Vec<_> =
            listen.chain(self.clients.iter().map(|c| &c.socket)).map(Source::readable).collect();
        self.poller.wait(&mut sources, timeout)?;
        ready.clear();
        ready.extend(sources.iter().enumerate().filter(|(_, s)| s.readable).map(|(i, _)| i));
        Ok(())
    }

    fn receive(&mut self, ready: &[usize], batch: &mut RecvBatch) -> Result<(), RelayError> {
        for &i in ready {
            for _ in 0..RECV_TURNS {
                let socket = match i.checked_sub(1) {
                    None => &self.listen,
                    Some(c) => &self.clients[c].socket,
                };
                socket.recv(batch)?;
                let now = self.now();
                let mut any = false;
                for (meta, bytes) in batch.iter_mut() {
                    any = true;
                    match i.checked_sub(1) {
                        None => self.on_client(now, &meta, bytes),
                        Some(c) => self.on_target(now, c, &meta, bytes),
                    }
                }
                if !any {
                    break;
                }
            }
        }
        Ok(())
    }

    fn on_client(&mut self, now: Time, meta: &RecvMeta, bytes: &[u8]) {
        let packets = bytes.len().div_ceil(meta.stride.max(1)) as u64;
        let Some(id) = self.client_for(now, meta) else {
            self.refused += packets;
            return;
        };
        offer(&mut self.up, now, id, meta, bytes, header(self.config.target));
    }

    fn on_target(&mut self, now: Time, client: usize, meta: &RecvMeta, bytes: &[u8]) {
        if meta.remote != self.config.target {
            self.stray += bytes.len().div_ceil(meta.stride.max(1)) as u64;
            return;
        }
        let c = &mut self.clients[client];
        c.last = now;
        offer(&mut self.down, now, c.id, meta, bytes, header(c.remote));
    }

    /// The client that a packet comes from, new if there is room. Clients keep their places while packets are
    /// received, since places of those that are ready were noted before: a new one takes the place of an idle
    /// one, or a place at the end.
    fn client_for(&mut self, now: Time, meta: &RecvMeta) -> Option<u64> {
        if let Some(id) = self.by_remote.get(&meta.remote) {
            let c = self.clients.iter_mut().find(|c| c.id == *id)?;
            c.last = now;
            c.local = meta.local;
            return Some(*id);
        }
        let place = if self.clients.len() < self.config.max_clients {
            None
        } else {
            let (i, oldest) = self.clients.iter().enumerate().min_by_key(|(_, c)| c.last)?;
            if now.since(oldest.last) < self.config.idle {
                return None;
            }
            Some(i)
        };
        let any: IpAddr = match self.config.target {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let gro = self.listen.gro();
        let options = UdpOptions { gro, ..UdpOptions::new(SocketAddr::new(any, 0)) };
        let socket = UdpSocket::open(&options)
            .inspect_err(|e| tracing::debug!(client = %meta.remote, error = %e, "no socket for a client"))
            .ok()?;
        let id = self.next_id;
        self.next_id += 1;
        let client = Client { id, remote: meta.remote, local: meta.local, socket, last: now };
        self.by_remote.insert(meta.remote, id);
        match place {
            Some(i) => {
                let gone = core::mem::replace(&mut self.clients[i], client);
                self.by_remote.remove(&gone.remote);
            }
            None => self.clients.push(client),
        }
        Some(id)
    }

    fn deliver_up(&mut self, builder: &mut TrainBuilder) -> Result<(), RelayError> {
        let now = self.now();
        let mut current: Option<usize> = None;
        for _ in 0..DELIVER_TURN {
            let Some(d) = self.up.link.poll(now) else { break };
            self.up.stats.lateness.add(now.since(d.time));
            let Some(i) = self.clients.iter().position(|c| c.id == d.payload.client) else {
                self.stray += 1;
                continue;
            };
            if let Some(before) = current.filter(|c| *c != i) {
                self.up.count(builder.flush(&self.clients[before].socket)?);
            }
            current = Some(i);
            let meta = meta_for(self.config.target, None, &d);
            builder.push(&self.clients[i].socket, meta, d.payload.bytes())?;
        }
        if let Some(last) = current {
            self.up.count(builder.flush(&self.clients[last].socket)?);
        }
        Ok(())
    }

    fn deliver_down(&mut self, builder: &mut TrainBuilder) -> Result<(), RelayError> {
        let now = self.now();
        for _ in 0..DELIVER_TURN {
            let Some(d) = self.down.link.poll(now) else { break };
            self.down.stats.lateness.add(now.since(d.time));
            let Some(c) = self.clients.iter().find(|c| c.id == d.payload.client) else {
                self.stray += 1;
                continue;
            };
            builder.push(&self.listen, meta_for(c.remote, c.local, &d), d.payload.bytes())?;
        }
        self.down.count(builder.flush(&self.listen)?);
        Ok(())
    }
}

impl Direction {
    fn count(&mut self, left: super::train_builder::FlushReport) {
        self.stats.trains_out += left.trains;
        self.stats.send_dropped += left.dropped;
    }
}

fn meta_for(dst: SocketAddr, src: Option<IpAddr>, d: &netem::Delivery<RelayPacket>) -> SendMeta {
    SendMeta { dst, src, ecn: d.ecn, dscp: d.payload.dscp, segment: d.payload.range.len() }
}

/// Bytes of IP and UDP header, which count against the link's rate and MTU.
fn header(to: SocketAddr) -> u64 {
    if to.ip().to_canonical().is_ipv4() { 20 + 8 } else { 40 + 8 }
}

/// Puts the packets of a train on a link. What becomes of each, the link counts.
fn offer(d: &mut Direction, now: Time, client: u64, meta: &RecvMeta, bytes: &[u8], header: u64) {
    d.stats.trains_in += 1;
    let train: Arc<[u8]> = bytes.into();
    let mut at = 0;
    while at < bytes.len() {
        let end = (at + meta.stride.max(1)).min(bytes.len());
        let payload = RelayPacket { client, dscp: meta.dscp, train: train.clone(), range: at..end };
        let _ = d.link.send(now, Packet { bytes: (end - at) as u64 + header, ecn: meta.ecn, payload });
        at = end;
    }
}
