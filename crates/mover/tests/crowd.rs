//! A server that more want to use than it has places for: who is silent, slow or has most gives way. In virtual time, but for
//! files.

#![allow(clippy::disallowed_methods, reason = "a test waits for threads")]

use base::{Ecn, Rng, Span, Time};
use endpoint::{
    App, Authority, Config, ConnId, Connect, DatagramInfo, Endpoint, Event, MAX_TRAIN, ServerConfig,
    ShareLimits,
};
use longhaul_mover::{
    ClientApp, Error, GetOptions, PutOptions, Sending, ServeOptions, ServerApp, Summary, TransferOptions,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transport::crypto::{ClientAuth, Credentials, Identity, ServerTrust};

const DELAY: Span = Span::from_micros(500);
const PLACES: usize = 4;

fn identity(n: u8) -> Identity {
    Identity::from_seed([n; 32])
}

fn endpoint(key: u8, server: Option<ServerConfig>, seed: u64) -> Endpoint {
    let mut c = Config::client(Arc::new(Credentials::RawKey(identity(key))));
    c.options.max_packet = 1500;
    c.server = server;
    Endpoint::new(c, Rng::from_u64(seed)).expect("an endpoint")
}

fn connect() -> Connect {
    Connect {
        remote: "192.0.2.250:4460".parse().expect("address"),
        server_name: "server.example".into(),
        trust: ServerTrust::Pinned(vec![identity(1).public_key()]),
        token: None,
        options: None,
        iwarp: None,
    }
}

struct Client {
    ep: Endpoint,
    addr: SocketAddr,
    app: Option<ClientApp>,
    /// Its program runs; its connection lives either way.
    runs: bool,
    conn: Option<ConnId>,
    /// Why the connection of one without a program ended.
    closed: Option<String>,
}

struct Crowd {
    now: Time,
    server: Endpoint,
    app: ServerApp,
    clients: Vec<Client>,
    flying: VecDeque<(Time, usize, bool, Vec<u8>)>,
}

impl Crowd {
    fn new(root: &Path) -> Crowd {
        let authority = Authority { keys: None, tokens: Vec::new() };
        let config = ServerConfig { auth: ClientAuth::AnyKey, authority, ..ServerConfig::default() };
        let options =
            ServeOptions { sessions: ShareLimits::of(PLACES), durable: false, ..ServeOptions::new(root) };
        Crowd {
            now: Time::from_nanos(1_000_000_000),
            server: endpoint(1, Some(config), 1),
            app: ServerApp::new(options, Arc::new(|| ())).expect("a folder"),
            clients: Vec::new(),
            flying: VecDeque::new(),
        }
    }

    fn add(&mut self, key: u8, last: u8, app: Option<ClientApp>) -> usize {
        let n = self.clients.len();
        let mut ep = endpoint(key, None, 100 + n as u64);
        let conn = app.is_none().then(|| ep.connect(self.now, connect()).expect("connecting"));
        let addr = SocketAddr::from(([192, 0, 2, last], 1_000 + n as u16));
        self.clients.push(Client { ep, addr, app, runs: true, conn, closed: None });
        n
    }

    /// One that connects and says nothing.
    fn silent(&mut self, key: u8, last: u8) -> usize {
        self.add(key, last, None)
    }

    fn put(&mut self, key: u8, last: u8, source: &Path) -> usize {
        let o = PutOptions {
            nameless: false,
            sources: vec![source.to_path_buf()],
            dest: Vec::new(),
            transfer: TransferOptions::default(),
        };
        self.add(key, last, Some(ClientApp::put(connect(), &o, Arc::new(|| ())).expect("a client")))
    }

    /// One that asks for `big` and stops to read when the first of it has come.
    fn slow_reader(&mut self, key: u8, last: u8, to: &Path) -> usize {
        let o = GetOptions {
            one_file: false,
            sources: vec![b"big".to_vec()],
            dest: to.join(format!("slow-{}", self.clients.len())),
            transfer: TransferOptions::default(),
            sending: Sending::default(),
        };
        let app = ClientApp::get(connect(), &o, Arc::new(|| ())).expect("a client");
        let n = self.add(key, last, Some(app));
        self.until("the first bytes", |c| {
            let p = c.progress(n);
            p.bytes_confirmed > 0 || p.bytes_received > 100_000
        });
        self.clients[n].runs = false;
        n
    }

    fn progress(&self, n: usize) -> longhaul_mover::Snapshot {
        self.clients[n].app.as_ref().expect("a program").progress().snapshot()
    }

    fn outcome(&self, n: usize) -> Option<Summary> {
        self.clients[n].app.as_ref().expect("a program").progress().outcome()
    }

    fn drive(&mut self) {
        self.app.drive(self.now, &mut self.server);
        for c in &mut self.clients {
            match &mut c.app {
                Some(app) if c.runs => app.drive(self.now, &mut c.ep),
                Some(_) => {}
                None => {
                    while let Some(e) = c.ep.poll_event() {
                        if let Event::Closed { reason, .. } = e {
                            c.closed = Some(reason.to_string());
                        }
                    }
                }
            }
        }
        let mut buf = vec![0; MAX_TRAIN];
        let at = self.now + DELAY;
        for (n, c) in self.clients.iter_mut().enumerate() {
            while let Some(t) = c.ep.poll_transmit(self.now, &mut buf) {
                self.flying.extend(buf[..t.len].chunks(t.segment).map(|d| (at, n, true, d.to_vec())));
            }
        }
        while let Some(t) = self.server.poll_transmit(self.now, &mut buf) {
            let Some(n) = self.clients.iter().position(|c| c.addr == t.remote) else { continue };
            self.flying.extend(buf[..t.len].chunks(t.segment).map(|d| (at, n, false, d.to_vec())));
        }
    }

    /// Lets `span` pass.
    fn pass(&mut self, span: Span) {
        let end = self.now + span;
        loop {
            self.drive();
            let ends = self.clients.iter().filter_map(|c| c.ep.next_timeout());
            let apps = self.clients.iter().filter(|c| c.runs).filter_map(|c| c.app.as_ref()?.next_timeout());
            let own = self.server.next_timeout().into_iter().chain(self.app.next_timeout());
            let next = self.flying.front().map(|f| f.0).into_iter().chain(ends).chain(apps).chain(own).min();
            let Some(next) = next.filter(|t| *t <= end) else { break };
            // What wants to be looked at again at once still takes a little.
            self.now = self.now.max(next) + Span::from_micros(10);
            self.server.handle_timeout(self.now);
            self.clients.iter_mut().for_each(|c| c.ep.handle_timeout(self.now));
            while self.flying.front().is_some_and(|f| f.0 <= self.now) {
                let Some((_, n, to_server, mut d)) = self.flying.pop_front() else { break };
                let (len, c) = (d.len(), &mut self.clients[n]);
                let remote = if to_server { c.addr } else { connect().remote };
                let meta = DatagramInfo { remote, local: None, ecn: Ecn::NotEct, waited: Span::ZERO };
                let ep = if to_server { &mut self.server } else { &mut c.ep };
                ep.handle_train(self.now, meta, &mut d, len);
            }
        }
        self.now = self.now.max(end);
    }

    /// Until something is so; threads that read and write take real time.
    #[track_caller]
    fn until(&mut self, what: &str, is_so: impl Fn(&Crowd) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < Duration::from_secs(120), "waits for {what}");
            self.pass(Span::from_millis(1));
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn refused(&mut self, n: usize) -> String {
        self.until("a refusal", |c| c.outcome(n).is_some());
        match self.outcome(n).and_then(|s| s.error) {
            Some(Error::Refused { text }) => text,
            e => panic!("{e:?}"),
        }
    }

    fn succeeds(&mut self, n: usize) {
        self.until("success", |c| c.outcome(n).is_some());
        let s = self.outcome(n).expect("ended");
        assert!(s.success(), "{:?} {:?}", s.error, s.progress.errors);
    }

    /// Lets a client that has stopped run on; how it ends.
    fn ends(&mut self, n: usize) -> String {
        self.clients[n].runs = true;
        self.until("an end", |c| c.outcome(n).is_some());
        self.outcome(n).and_then(|s| s.error).expect("an error").to_string()
    }

    fn sessions(&self) -> usize {
        self.app.monitor().sessions().len()
    }
}

/// A served folder with a large file, and a small file to send.
fn folders() -> (tempfile::TempDir, tempfile::TempDir) {
    let (served, from) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(served.path().join("big"), vec![7; 16 << 20]).unwrap();
    std::fs::write(from.path().join("small"), b"small").unwrap();
    (served, from)
}

#[test]
fn slow_readers_of_one_key_do_not_block_other_keys() {
    let (served, from) = folders();
    let mut c = Crowd::new(served.path());
    let all: Vec<usize> = (0..PLACES).map(|_| c.slow_reader(10, 10, from.path())).collect();
    let small = from.path().join("small");
    let own = c.put(10, 10, &small);
    let text = c.refused(own);
    assert!(text.contains("4 transfers run, the server's limit, 4 with your key"), "{text}");
    let other = c.put(11, 11, &small);
    c.succeeds(other);
    assert!(served.path().join("small").exists());
    // The youngest gave way, and learns why; what it had can be gone on with.
    let why = c.ends(all[PLACES - 1]);
    assert!(why.contains("your key has 4 of 4 transfers"), "{why}");
}

#[test]
fn slow_readers_of_many_keys_are_closed_when_others_wait() {
    let (served, from) = folders();
    let mut c = Crowd::new(served.path());
    let all: Vec<usize> = (0..PLACES as u8).map(|n| c.slow_reader(10 + n, 10 + n, from.path())).collect();
    let small = from.path().join("small");
    let early = c.put(20, 20, &small);
    let text = c.refused(early);
    assert!(text.contains("0 with your key, 0 from your address"), "{text}");
    c.pass(Span::from_secs(25));
    assert_eq!(c.sessions(), PLACES, "nobody waits");
    let late = c.put(20, 20, &small);
    c.succeeds(late);
    c.until("its end", |c| c.sessions() == PLACES - 1);
    // One has lost its place; the others go on where they were.
    all.iter().for_each(|n| c.clients[*n].runs = true);
    c.until("all of them", |c| all.iter().all(|n| c.outcome(*n).is_some()));
    let ends: Vec<Summary> = all.iter().filter_map(|n| c.outcome(*n)).collect();
    assert_eq!(ends.iter().filter(|s| s.success()).count(), PLACES - 1);
    let why = ends.iter().find_map(|s| s.error.as_ref()).map(ToString::to_string).expect("one error");
    assert!(why.contains("less than 4096 bytes/s moved for 10 s while others wait"), "{why}");
}

#[test]
fn silent_client_is_closed_after_the_timeout() {
    let (served, from) = folders();
    let mut c = Crowd::new(served.path());
    let n = c.silent(10, 10);
    c.pass(Span::from_secs(19));
    assert_eq!((c.clients[n].closed.clone(), c.sessions()), (None, 1));
    c.pass(Span::from_secs(2));
    let why = c.clients[n].closed.clone().expect("closed");
    assert!(why.contains("no request came within 20 s"), "{why}");
    assert_eq!(c.sessions(), 0);
    // And sooner when others wait, whoever they are.
    let silent: Vec<usize> = (0..PLACES as u8).map(|k| c.silent(20 + k, 20 + k)).collect();
    c.pass(Span::from_secs(3));
    assert_eq!(c.sessions(), PLACES);
    let put = c.put(20, 20, &from.path().join("small"));
    c.succeeds(put);
    let gone: Vec<String> = silent.iter().filter_map(|n| c.clients[*n].closed.clone()).collect();
    assert!(matches!(&gone[..], [one] if one.contains("others wait")), "{gone:?}");
}

#[test]
fn refused_clients_use_no_session_slot_and_no_memory() {
    let (served, from) = folders();
    let mut c = Crowd::new(served.path());
    for _ in 0..PLACES {
        c.slow_reader(10, 10, from.path());
    }
    let held = c.server.connections().count();
    let small = from.path().join("small");
    for _ in 0..20 {
        let n = c.put(10, 10, &small);
        c.refused(n);
        c.clients[n].conn = None;
    }
    c.pass(Span::from_secs(2));
    assert_eq!((c.sessions(), c.server.connections().count()), (PLACES, held));
}
