//! Tests of drivers over loopback: failing worker threads and connected sockets.

use super::*;
use base::Rng;
use endpoint::{Authority, Config, ConnId, Connect, Event, ServerConfig, TransportOptions};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, mpsc};
use transport::crypto::{ClientAuth, Credentials, Identity, ServerTrust};
use verbs::{Access, Mr, SendOp, SendWr, Sge, Status};

const REGION: usize = 16 << 20;
const PIECE: usize = 1 << 20;
/// Pieces that are written before a thread fails, at least, and after it.
const BEFORE: usize = 24;
const AFTER: usize = 160;
const LANES: u16 = 3;
/// How long a lane may take to come back: on a machine with more to do than it can, one is silent at times for long
/// enough to be counted as dead for a moment.
const PATIENCE: Span = Span::from_secs(20);

fn config(n: u8) -> Config {
    let mut c = Config::client(Arc::new(Credentials::RawKey(Identity::from_seed([n; 32]))));
    c.static_secret = [n; 32];
    c.options = TransportOptions { max_packet: 1500, ..TransportOptions::default() };
    c
}

fn driver(serves: bool) -> Driver {
    let bind = "127.0.0.1:0".parse().expect("an address");
    let lanes = Lanes::Count(LANES);
    Driver::with(DriverOptions { lanes, serves, always: true, ..DriverOptions::new(bind) }).expect("a driver")
}

fn content() -> Vec<u8> {
    (0..REGION).map(|i| (i % 251) as u8 ^ (i >> 12) as u8).collect()
}

/// Lends its region, and compares what is in it with what is to be when the connection has ended.
struct Target {
    lend: mpsc::Sender<u32>,
    mr: Option<Mr>,
    identical: Option<bool>,
}

impl App for Target {
    fn drive(&mut self, _: Time, e: &mut Endpoint) {
        while let Some(event) = e.poll_event() {
            match event {
                Event::Incoming { conn } => {
                    let pd = e.connection(conn).expect("open").pd;
                    let mr = e.adapter().reg_mr(pd, vec![0; REGION].into(), Access::ALL);
                    let mr = mr.map_err(|e| e.0).expect("registered");
                    self.lend.send(mr.rkey).expect("somebody waits");
                    self.mr = Some(mr);
                }
                Event::Closed { .. } => {
                    let mut got = vec![0; REGION];
                    let mr = self.mr.as_ref().expect("registered");
                    e.adapter().read_mr(mr.id, 0, &mut got).expect("read");
                    self.identical = Some(got == content());
                }
                _ => {}
            }
        }
    }
    fn finished(&self) -> bool {
        self.identical.is_some()
    }
}

/// Writes the region again and again, a thread failing meanwhile.
struct Source {
    rkey: mpsc::Receiver<u32>,
    /// When to look whether the target's key is there.
    again: Option<Time>,
    conn: ConnId,
    mr: Option<(Mr, u32)>,
    posted: usize,
    done: usize,
    fault: (u8, Arc<std::sync::atomic::AtomicU8>),
    /// Pieces that were done when the thread was made to fail.
    failed_at: Option<usize>,
    /// Lanes that were open in the end, and until when those that are to be left are waited for.
    lanes: usize,
    until: Option<Time>,
    over: bool,
}

impl Source {
    fn post(&mut self, e: &mut Endpoint) {
        let Some((mr, rkey)) = &self.mr else { return };
        let qp = e.connection(self.conn).expect("open").qps[0];
        while self.posted < self.done + 8 {
            let offset = (self.posted * PIECE % REGION) as u64;
            let op = SendOp::Write { rkey: *rkey, offset };
            let sge = Sge { lkey: mr.lkey, offset, len: PIECE as u64 };
            e.adapter().post_send(qp, SendWr::new(self.posted as u64, op, sge)).expect("posted");
            self.posted += 1;
        }
    }

    /// Lets a thread fail once each lane carried something; true when enough was written after that and the lanes are
    /// those that are to be left.
    fn watch(&mut self, now: Time, e: &Endpoint) -> bool {
        let stats = e.stats(self.conn).expect("open");
        let carried = stats.paths.iter().filter(|p| p.sent > 0).count();
        if self.failed_at.is_none() && self.done >= BEFORE && carried == usize::from(LANES) {
            self.fault.1.store(self.fault.0, Relaxed);
            self.failed_at = Some(self.done);
        }
        self.lanes = stats.paths.iter().filter(|p| p.works).count();
        let written =
            self.failed_at.is_some_and(|at| self.done > at + AFTER) && self.fault.1.load(Relaxed) == 0;
        if written && self.until.is_none() {
            self.until = Some(now + PATIENCE);
        }
        let left = usize::from(LANES) - usize::from(self.fault.0 != 0);
        written && (self.lanes == left || self.until.is_some_and(|t| now > t))
    }
}

impl App for Source {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        while let Some(event) = e.poll_event() {
            match event {
                Event::Connected { .. } => self.again = Some(now),
                Event::Closed { reason, .. } if !self.over => panic!("closed: {reason}"),
                _ => {}
            }
        }
        let Some(info) = e.connection(self.conn).cloned() else { return };
        if self.again.is_some() {
            self.again = Some(now + Span::from_millis(1));
            let Ok(rkey) = self.rkey.try_recv() else { return };
            let mr = e.adapter().reg_mr(info.pd, content().into(), Access::ALL);
            (self.mr, self.again) = (Some((mr.map_err(|e| e.0).expect("registered"), rkey)), None);
        }
        while let Some(c) = e.adapter().poll_cq(info.cq) {
            assert_eq!(c.status, Status::Success);
            self.done += 1;
        }
        if self.over {
            return;
        }
        if !self.watch(now, e) {
            self.post(e);
        } else if self.done == self.posted {
            self.over = true;
            e.close(now, self.conn, 0, "done");
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        self.again
    }
    fn finished(&self) -> bool {
        self.over
    }
}

/// What is logged in this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(text);
        Ok(text.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Lets a thread of the client's fail; gives what was said, and how many lanes were left.
fn with_fault(fault: u8) -> (String, usize) {
    with_server(fault, driver(true))
}

fn with_server(fault: u8, mut server: Driver) -> (String, usize) {
    let (lend, rkey) = mpsc::channel();
    let to = server.local_addr();
    let keys = Some(vec![Identity::from_seed([2; 32]).public_key()]);
    let authority = Authority { keys, tokens: Vec::new() };
    let lets_in = ServerConfig { auth: ClientAuth::AnyKey, authority, ..ServerConfig::default() };
    let target = std::thread::spawn(move || {
        let config = Config { server: Some(lets_in), ..config(1) };
        let mut e = Endpoint::new(config, Rng::from_u64(1)).expect("an endpoint");
        let mut app = Target { lend, mr: None, identical: None };
        server.run(&mut e, &mut app).expect("no failure");
        app.identical
    });
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let lanes = tracing::subscriber::with_default(subscriber, || {
        let mut d = driver(false);
        let mut e = Endpoint::new(config(2), Rng::from_u64(2)).expect("an endpoint");
        let trust = ServerTrust::Pinned(vec![Identity::from_seed([1; 32]).public_key()]);
        let connect = Connect {
            remote: to,
            server_name: "server.example".into(),
            trust,
            token: None,
            options: None,
            iwarp: None,
        };
        let conn = e.connect(d.now(), connect).expect("connecting");
        let fault = (fault, d.workers.fault.clone());
        let mut app = Source {
            rkey,
            again: None,
            conn,
            mr: None,
            posted: 0,
            done: 0,
            fault,
            failed_at: None,
            lanes: 0,
            until: None,
            over: false,
        };
        d.run(&mut e, &mut app).expect("no failure");
        app.lanes
    });
    assert_eq!(target.join().expect("no panic"), Some(true), "what arrived is what was sent");
    let said = log.0.lock().expect("no panic").clone();
    (String::from_utf8(said).expect("text"), lanes)
}

#[test]
fn failed_socket_closes_its_lane_with_a_log_entry_and_others_continue() {
    let (said, lanes) = with_fault(1);
    assert_eq!(lanes, usize::from(LANES) - 1);
    assert!(said.contains("made to fail by a test") && said.contains("its lanes are closed"), "{said}");
}

#[test]
fn panicking_thread_closes_its_lane_with_a_log_entry_and_others_continue() {
    let (said, lanes) = with_fault(2);
    assert_eq!(lanes, usize::from(LANES) - 1);
    assert!(said.contains("ended by a panic") && said.contains("its lanes are closed"), "{said}");
}

#[test]
fn lanes_stay_open_without_a_fault() {
    let (said, lanes) = with_fault(0);
    assert_eq!(lanes, usize::from(LANES));
    assert!(!said.contains("ERROR"), "{said}");
}

#[test]
fn socket_pool_opens_and_closes_while_lanes_carry_data() {
    let bind = "127.0.0.1:0".parse().expect("an address");
    let lanes = Lanes::Count(LANES);
    let server =
        Driver::with(DriverOptions { lanes, serves: true, ..DriverOptions::new(bind) }).expect("a driver");
    assert_eq!(server.workers.len(), 0, "nothing is to be done yet");
    let (wish, lent) = (server.lane_controller.wish.clone(), server.lane_controller.lent.clone());
    let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let until = over.clone();
    // To and fro as fast as they come about, from the set-up on to the end.
    let flip = std::thread::spawn(move || {
        while !until.load(Relaxed) {
            wish.store(if lent.load(Relaxed) % 2 == 0 { 1 } else { 2 }, Relaxed);
            std::thread::yield_now();
        }
        lent.load(Relaxed)
    });
    let (said, left) = with_server(0, server);
    over.store(true, Relaxed);
    let changes = flip.join().expect("no panic");
    assert!(changes >= 4, "{changes} times");
    assert_eq!(left, usize::from(LANES));
    assert!(!said.contains("ERROR"), "{said}");
}

/// Lends a region to each client, and tells the key.
struct RegionServer {
    lend: Vec<mpsc::Sender<u32>>,
    left: usize,
}

impl App for RegionServer {
    fn drive(&mut self, _: Time, e: &mut Endpoint) {
        while let Some(event) = e.poll_event() {
            match event {
                Event::Incoming { conn } => {
                    let pd = e.connection(conn).expect("open").pd;
                    let mr = e.adapter().reg_mr(pd, vec![0; 8].into(), Access::ALL);
                    let lend = self.lend.pop().expect("as many as clients");
                    lend.send(mr.map_err(|e| e.0).expect("registered").rkey).expect("somebody waits");
                }
                Event::Closed { .. } => self.left -= 1,
                _ => {}
            }
        }
    }
    fn finished(&self) -> bool {
        self.left == 0
    }
}

/// Writes few bytes, and again when they have arrived.
struct PingClient<F> {
    rkey: mpsc::Receiver<u32>,
    conn: ConnId,
    keys: Option<(u32, u32)>,
    connected: bool,
    done: usize,
    enough: F,
    over: bool,
}

impl<F: FnMut(usize) -> bool> App for PingClient<F> {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        while let Some(event) = e.poll_event() {
            match event {
                Event::Connected { .. } => self.connected = true,
                Event::Closed { reason, .. } if !self.over => panic!("closed: {reason}"),
                _ => {}
            }
        }
        let Some(info) = e.connection(self.conn).cloned().filter(|_| self.connected && !self.over) else {
            return;
        };
        match (self.keys, e.adapter().poll_cq(info.cq)) {
            (None, _) => {
                let Ok(rkey) = self.rkey.try_recv() else { return };
                let mr = e.adapter().reg_mr(info.pd, vec![7; 8].into(), Access::ALL);
                self.keys = Some((mr.map_err(|e| e.0).expect("registered").lkey, rkey));
            }
            (Some(_), Some(c)) => {
                assert_eq!(c.status, Status::Success);
                self.done += 1;
            }
            (Some(_), None) => return,
        }
        if (self.enough)(self.done) {
            self.over = true;
            return e.close(now, self.conn, 0, "done");
        }
        let (lkey, rkey) = self.keys.expect("lent");
        let sge = Sge { lkey, offset: 0, len: 4 };
        let wr = SendWr::new(1, SendOp::Write { rkey, offset: 0 }, sge);
        e.adapter().post_send(info.qps[0], wr).expect("posted");
    }
    fn next_timeout(&self) -> Option<Time> {
        // To look whether the key is there.
        self.keys.is_none().then_some(Time::ZERO)
    }
    fn finished(&self) -> bool {
        self.over
    }
}

fn knock(n: u8, to: SocketAddr, idle: Idle, rkey: mpsc::Receiver<u32>, enough: impl FnMut(usize) -> bool) {
    let bind = "127.0.0.1:0".parse().expect("an address");
    let mut d = Driver::with(DriverOptions { idle, ..DriverOptions::new(bind) }).expect("a driver");
    let mut e = Endpoint::new(config(n), Rng::from_u64(n.into())).expect("an endpoint");
    let trust = ServerTrust::Pinned(vec![Identity::from_seed([1; 32]).public_key()]);
    let server_name = "server.example".into();
    let connect = Connect { remote: to, server_name, trust, token: None, options: None, iwarp: None };
    let conn = e.connect(d.now(), connect).expect("connecting");
    let mut app = PingClient { rkey, conn, keys: None, connected: false, done: 0, enough, over: false };
    d.run(&mut e, &mut app).expect("no failure");
}

/// A client knocks until it is `enough`, by messages that arrived and connected sockets that its server has had. A second one, if
/// `second`, comes when there is a connected socket, and the first goes on meanwhile. Gives how many connected sockets there were.
fn with_knocks(idle: Idle, lanes: u16, second: bool, enough: impl Fn(usize, u32) -> bool) -> u32 {
    let bind = "127.0.0.1:0".parse().expect("an address");
    let (lanes_by_order, always) = (Lanes::Count(lanes), lanes > 1);
    let options =
        DriverOptions { idle, lanes: lanes_by_order, serves: true, always, ..DriverOptions::new(bind) };
    let mut server = Driver::with(options).expect("a driver");
    assert_eq!(server.workers.len() + 1, lanes.into());
    let (to, opened) = (server.local_addr(), server.connected_peer.opened.clone());
    let left = 1 + usize::from(second);
    let (lend, rkeys): (Vec<_>, Vec<_>) = (0..left).map(|_| mpsc::channel()).unzip();
    let mut rkeys = rkeys.into_iter().rev();
    let serving = std::thread::spawn(move || {
        let lets_in = ServerConfig {
            auth: ClientAuth::AnyKey,
            authority: Authority { keys: None, tokens: Vec::new() },
            ..ServerConfig::default()
        };
        let config = Config { server: Some(lets_in), ..config(1) };
        let mut e = Endpoint::new(config, Rng::from_u64(1)).expect("an endpoint");
        server.run(&mut e, &mut RegionServer { lend, left }).expect("no failure");
    });
    let rkey = rkeys.next().expect("made");
    let mut guest: Option<std::thread::JoinHandle<()>> = None;
    knock(2, to, Idle::Poll, rkey, |done| {
        let had = opened.load(Relaxed);
        if had > 0 && guest.is_none() {
            guest = rkeys
                .next()
                .map(|rkey| std::thread::spawn(move || knock(3, to, Idle::Sleep, rkey, |n| n == 50)));
        }
        enough(done, had) && guest.as_ref().is_none_or(|g| g.is_finished())
    });
    if let Some(g) = guest {
        g.join().expect("no panic");
    }
    serving.join().expect("no panic");
    opened.load(Relaxed)
}

/// Knocks after which a connected socket would have been opened long ago.
const MANY: usize = 400;

#[test]
fn spinning_server_opens_a_connected_socket_and_serves_others() {
    let had = with_knocks(Idle::Poll, 1, true, |done, had| had > 0 && done > MANY || done > 100 * MANY);
    assert!(had > 0);
}

#[test]
fn sleeping_or_multi_socket_servers_open_no_connected_socket() {
    assert_eq!(with_knocks(Idle::Sleep, 1, false, |done, _| done > MANY), 0);
    assert_eq!(with_knocks(Idle::Poll, 2, false, |done, _| done > MANY), 0);
}
