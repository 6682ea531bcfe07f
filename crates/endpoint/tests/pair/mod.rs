//! Two endpoints joined in memory, stepped through virtual time. A datagram takes [`DELAY`]; tests drop, change
//! or invent datagrams as they like.

#![allow(dead_code, reason = "each test binary uses its part")]

use base::{Rng, Span, Time};
use longhaul_endpoint::{
    Authority, Config, ConnId, ConnInfo, Connect, DatagramInfo, Endpoint, Event, MAX_TRAIN, ServerConfig,
};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use transport::crypto::{ClientAuth, Credentials, Identity, ServerTrust};
use verbs::{Access, Memory, Mr, PdId, Sge, WorkCompletion};

/// One way.
pub const DELAY: Span = Span::from_millis(10);

/// A datagram on its way.
#[derive(Clone, Debug)]
pub struct InFlight {
    pub at: Time,
    pub from: SocketAddr,
    pub to_server: bool,
    pub bytes: Vec<u8>,
}

pub struct Pair {
    pub now: Time,
    pub client: Endpoint,
    pub server: Endpoint,
    pub client_addr: SocketAddr,
    pub server_addr: SocketAddr,
    pub in_flight: VecDeque<InFlight>,
    /// What every datagram passes before it flies: false drops it.
    pub filter: Box<dyn FnMut(&mut InFlight) -> bool>,
    /// Which of the server's addresses datagrams to it are for, as its system says.
    pub server_local: Option<IpAddr>,
    /// Addresses that the server named for its datagrams to leave from.
    pub server_from: Vec<Option<IpAddr>>,
    /// Counts of datagrams, to the client and to the server.
    pub sent: [usize; 2],
    pub bytes: [usize; 2],
}

/// Both ends' names and views of one connection.
pub struct Link {
    pub client: ConnId,
    pub server: ConnId,
    pub ci: ConnInfo,
    pub si: ConnInfo,
}

/// Registers memory with all rights.
pub fn register(e: &mut Endpoint, pd: PdId, memory: impl Into<Memory>) -> Mr {
    e.adapter().reg_mr(pd, memory.into(), Access::ALL).map_err(|e| e.0).expect("registered")
}

/// All of a region.
pub fn whole(mr: &Mr, len: u64) -> Sge {
    Sge { lkey: mr.lkey, offset: 0, len }
}

/// A region's first `len` bytes.
pub fn read(e: &mut Endpoint, mr: &Mr, len: usize) -> Vec<u8> {
    let mut got = vec![0; len];
    e.adapter().read_mr(mr.id, 0, &mut got).expect("read");
    got
}

/// Takes the next completion, which must be there.
pub fn complete(e: &mut Endpoint, info: &ConnInfo) -> WorkCompletion {
    e.adapter().poll_cq(info.cq).expect("completed")
}

/// Why a connection ended, in words, if it did.
pub fn closed(events: &[Event]) -> Option<String> {
    events.iter().find_map(|e| match e {
        Event::Closed { reason, .. } => Some(reason.to_string()),
        _ => None,
    })
}

pub fn identity(n: u8) -> Identity {
    Identity::from_seed([n; 32])
}

pub fn config(n: u8) -> Config {
    let mut c = Config::client(Arc::new(Credentials::RawKey(identity(n))));
    c.static_secret = [n; 32];
    c.options.max_packet = 1500;
    c
}

/// A server (identity 1) that lets in the keys of the given identities.
pub fn server_config(allowed: &[u8]) -> Config {
    let keys = allowed.iter().map(|n| identity(*n).public_key()).collect();
    Config {
        server: Some(ServerConfig {
            auth: ClientAuth::AnyKey,
            authority: Authority { keys: Some(keys), tokens: Vec::new() },
            ..ServerConfig::default()
        }),
        ..config(1)
    }
}

impl Pair {
    /// Client identity 2, let in.
    pub fn new() -> Pair {
        Pair::with(config(2), server_config(&[2]))
    }

    pub fn with(client: Config, server: Config) -> Pair {
        Pair {
            now: Time::from_nanos(1_000_000_000),
            client: Endpoint::new(client, Rng::from_u64(1)).expect("client"),
            server: Endpoint::new(server, Rng::from_u64(2)).expect("server"),
            client_addr: "192.0.2.1:1000".parse().expect("address"),
            server_addr: "192.0.2.2:4460".parse().expect("address"),
            in_flight: VecDeque::new(),
            filter: Box::new(|_| true),
            server_local: None,
            server_from: Vec::new(),
            sent: [0; 2],
            bytes: [0; 2],
        }
    }

    /// From now on datagrams come up to 40 ms late, in any order, and one of five does not.
    pub fn disturb(&mut self, seed: u64) {
        let mut rng = Rng::from_u64(seed);
        self.filter = Box::new(move |f| {
            f.at += Span::from_micros(rng.below(40_000));
            !rng.chance(0.2)
        });
    }

    /// All arrive again, and in time.
    pub fn calm(&mut self) {
        self.filter = Box::new(|_| true);
    }

    pub fn connect_options(&self) -> Connect {
        Connect {
            remote: self.server_addr,
            server_name: "server.example".into(),
            trust: ServerTrust::Pinned(vec![identity(1).public_key()]),
            token: None,
            options: None,
            iwarp: None,
        }
    }

    pub fn connect(&mut self) -> longhaul_endpoint::ConnId {
        let c = self.connect_options();
        self.client.connect(self.now, c).expect("connect")
    }

    fn collect(&mut self) {
        let mut buf = vec![0; MAX_TRAIN];
        for to_server in [true, false] {
            let (ep, from) = if to_server {
                (&mut self.client, self.client_addr)
            } else {
                (&mut self.server, self.server_addr)
            };
            while let Some(t) = ep.poll_transmit(self.now, &mut buf) {
                if !to_server {
                    self.server_from.push(t.local);
                }
                for d in buf[..t.len].chunks(t.segment) {
                    let mut f = InFlight { at: self.now + DELAY, from, to_server, bytes: d.to_vec() };
                    self.sent[usize::from(to_server)] += 1;
                    self.bytes[usize::from(to_server)] += d.len();
                    if (self.filter)(&mut f) {
                        self.in_flight.push_back(f);
                    }
                }
            }
        }
    }

    /// Delivers a datagram at once.
    pub fn deliver(&mut self, mut f: InFlight) {
        let n = f.bytes.len();
        let local = if f.to_server { self.server_local } else { None };
        let meta = DatagramInfo { remote: f.from, local, ecn: base::Ecn::NotEct, waited: Span::ZERO };
        let ep = if f.to_server { &mut self.server } else { &mut self.client };
        ep.handle_train(self.now, meta, &mut f.bytes, n);
    }

    /// One step: sends, moves to the next thing that happens, lets it happen. False when nothing will.
    pub fn step(&mut self, until: Time) -> bool {
        self.collect();
        let mut next = self.in_flight.iter().map(|f| f.at).min();
        for t in [self.client.next_timeout(), self.server.next_timeout()].into_iter().flatten() {
            next = Some(next.map_or(t, |n| n.min(t)));
        }
        let Some(next) = next.filter(|t| *t <= until) else {
            self.now = self.now.max(until);
            return false;
        };
        self.now = self.now.max(next);
        self.client.handle_timeout(self.now);
        self.server.handle_timeout(self.now);
        let (now, all) = (self.now, core::mem::take(&mut self.in_flight));
        let (due, later): (VecDeque<_>, VecDeque<_>) = all.into_iter().partition(|f| f.at <= now);
        self.in_flight = later;
        due.into_iter().for_each(|f| self.deliver(f));
        true
    }

    /// Lets `span` pass.
    pub fn run(&mut self, span: Span) {
        let until = self.now + span;
        let mut steps = 0;
        while self.step(until) {
            steps += 1;
            assert!(steps < 1_000_000, "no end of steps at {:?}", self.now);
        }
    }

    pub fn client_events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.client.poll_event()).collect()
    }
    pub fn server_events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.server.poll_event()).collect()
    }

    /// Connects and gives what both ends know of the connection.
    pub fn linked(&mut self) -> Link {
        let (client, server) = self.connected();
        Link {
            client,
            server,
            ci: self.client.connection(client).expect("open").clone(),
            si: self.server.connection(server).expect("open").clone(),
        }
    }

    /// Connects and gives both ends' names of the connection.
    pub fn connected(&mut self) -> (longhaul_endpoint::ConnId, longhaul_endpoint::ConnId) {
        let c = self.connect();
        self.run(Span::from_millis(200));
        let s = self.server_events().into_iter().find_map(|e| match e {
            Event::Incoming { conn } => Some(conn),
            _ => None,
        });
        let events = self.client_events();
        assert!(events.contains(&Event::Connected { conn: c }), "{events:?}");
        (c, s.expect("incoming"))
    }
}
