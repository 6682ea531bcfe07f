//! Tests with more clients than session slots, in virtual time.

use super::*;
use base::{Ecn, Rng, Span};
use endpoint::{Authority, Config, Connect, DatagramInfo, MAX_TRAIN, ServerConfig};
use std::net::SocketAddr;
use transport::crypto::{ClientAuth, Credentials, Identity, ServerTrust};

const SERVER: ([u8; 4], u16) = ([192, 0, 2, 250], 4460);

fn endpoint(key: u8, server: Option<ServerConfig>, seed: u64) -> Endpoint {
    let mut c = Config::client(Arc::new(Credentials::RawKey(Identity::from_seed([key; 32]))));
    (c.options.max_packet, c.server) = (1500, server);
    Endpoint::new(c, Rng::from_u64(seed)).unwrap()
}

struct ManyClients {
    now: Time,
    ep: Endpoint,
    server: Server,
    /// Each with the reason for which it was closed, if it was.
    clients: Vec<(Endpoint, SocketAddr, Option<String>)>,
}

impl ManyClients {
    fn new() -> ManyClients {
        let authority = Authority { keys: None, tokens: Vec::new() };
        let config = ServerConfig { auth: ClientAuth::AnyKey, authority, ..ServerConfig::default() };
        let shares = Shares::new(ShareLimits::of(MAX_SESSIONS), "measurements");
        let (sessions, stop) = (Vec::new(), Arc::new(AtomicBool::new(false)));
        let memory = Budget::new(256 << 20);
        ManyClients {
            now: Time::from_nanos(1_000_000_000),
            ep: endpoint(1, Some(config), 1),
            server: Server { sessions, shares, left: None, arrivals: false, memory, stop },
            clients: Vec::new(),
        }
    }

    /// Connects and says nothing.
    fn connect(&mut self, key: u8) -> usize {
        let n = self.clients.len();
        let mut ep = endpoint(key, None, 10 + n as u64);
        let connect = Connect {
            remote: SERVER.into(),
            server_name: "server.example".into(),
            trust: ServerTrust::Pinned(vec![Identity::from_seed([1; 32]).public_key()]),
            token: None,
            options: None,
            iwarp: None,
        };
        ep.connect(self.now, connect).unwrap();
        self.clients.push((ep, SocketAddr::from(([192, 0, 2, key], 1_000 + n as u16)), None));
        self.advance(Span::from_millis(100));
        n
    }

    fn advance(&mut self, span: Span) {
        let (end, mut buf) = (self.now + span, vec![0; MAX_TRAIN]);
        while self.now < end {
            self.now += Span::from_millis(5);
            let now = self.now;
            self.ep.handle_timeout(now);
            self.server.drive(now, &mut self.ep);
            for (c, addr, closed) in &mut self.clients {
                c.handle_timeout(now);
                let meta =
                    |remote| DatagramInfo { remote, local: None, ecn: Ecn::NotEct, waited: Span::ZERO };
                while let Some(t) = c.poll_transmit(now, &mut buf) {
                    self.ep.handle_train(now, meta(*addr), &mut buf[..t.len], t.segment);
                }
                while let Some(e) = c.poll_event() {
                    if let Event::Closed { reason, .. } = e {
                        *closed = Some(reason.to_string());
                    }
                }
            }
            while let Some(t) = self.ep.poll_transmit(now, &mut buf) {
                let Some((c, ..)) = self.clients.iter_mut().find(|(_, a, _)| *a == t.remote) else {
                    continue;
                };
                let meta =
                    DatagramInfo { remote: SERVER.into(), local: None, ecn: Ecn::NotEct, waited: Span::ZERO };
                c.handle_train(now, meta, &mut buf[..t.len], t.segment);
            }
        }
    }

    fn closed(&self, n: usize) -> Option<&str> {
        self.clients[n].2.as_deref()
    }
}

#[test]
fn one_key_cannot_take_every_session() {
    let mut c = ManyClients::new();
    let all: Vec<usize> = (0..MAX_SESSIONS).map(|_| c.connect(2)).collect();
    assert_eq!(c.server.sessions.len(), MAX_SESSIONS);
    let other = c.connect(3);
    assert_eq!(c.closed(other), None);
    let gone: Vec<&str> = all.iter().filter_map(|n| c.closed(*n)).collect();
    assert!(matches!(gone[..], [w] if w.contains("others wait")), "{gone:?}");
    assert_eq!(c.server.sessions.len(), MAX_SESSIONS);
}

#[test]
fn client_without_a_request_is_closed_in_time() {
    let mut c = ManyClients::new();
    let n = c.connect(2);
    c.advance(Span::from_secs(19));
    assert_eq!(c.closed(n), None);
    c.advance(Span::from_secs(2));
    assert!(c.closed(n).is_some_and(|w| w.contains("no request came within 20 s")), "{:?}", c.closed(n));
    assert!(c.server.sessions.is_empty());
}
