//! iWARP connections over real TCP sockets: two drivers, a thread each, over loopback.

use base::{Rng, Span, Time};
use endpoint::{
    App, Authority, Config, ConnId, Connect, Endpoint, Event, Iwarp, IwarpServer, ServerConfig,
    TransportOptions,
};
use longhaul_io::driver::{Driver, DriverOptions, Idle};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use transport::CloseReason;
use transport::crypto::{ClientAuth, Credentials, Identity, ServerTrust};
use verbs::{Access, Data, Memory, Mr, Opcode, RecvWr, SendOp, SendWr, Sge, Sges, Status};

/// Bytes of each region.
const REGION: usize = 8 << 20;
/// Code and words with which the server ends connections.
const CODE: u64 = 0x1234;
const WORDS: &str = "that was all";

fn config(n: u8) -> Config {
    let mut c = Config::client(Arc::new(Credentials::RawKey(Identity::from_seed([n; 32]))));
    c.options = TransportOptions { initial_qps: 3, ..TransportOptions::default() };
    c
}

fn server_config(iwarp: IwarpServer) -> Config {
    let authority = Authority { keys: None, tokens: Vec::new() };
    let server =
        ServerConfig { auth: ClientAuth::AnyKey, authority, iwarp: Some(iwarp), ..ServerConfig::default() };
    Config { server: Some(server), ..config(1) }
}

fn content(seed: u64) -> Vec<u8> {
    let mut b = vec![0; REGION];
    Rng::from_u64(seed).fill(&mut b);
    b
}

/// Lends a region to each client, sends its key, and answers messages by the same; ends a connection when told to.
#[derive(Default)]
struct Echo {
    open: BTreeMap<ConnId, (Mr, Mr)>,
    seen: usize,
    left: usize,
    stop: bool,
    idle_until: Option<usize>,
}

impl Echo {
    fn begin(&mut self, conn: ConnId, e: &mut Endpoint) {
        let info = e.connection(conn).expect("open").clone();
        let a = e.adapter();
        let mr = a.reg_mr(info.pd, content(9).into(), Access::ALL).map_err(|e| e.0).expect("registered");
        let own =
            a.reg_mr(info.pd, Memory::zeroed(REGION), Access::LOCAL_WRITE).map_err(|e| e.0).expect("own");
        // Later than the client sends: what comes meanwhile waits.
        if self.idle_until.is_none() {
            post(e, info.qps[0], own, 0);
        }
        let key = Data::Inline(mr.rkey.to_be_bytes().to_vec().into());
        e.adapter().post_send(info.qps[0], SendWr::new(1, SendOp::Send, key)).expect("posted");
        self.open.insert(conn, (mr, own));
        self.seen += 1;
    }
}

fn post(e: &mut Endpoint, qp: verbs::QpId, own: Mr, wr_id: u64) {
    let sges = Sges::One(Sge { lkey: own.lkey, offset: 0, len: REGION as u64 });
    e.adapter().post_recv(qp, RecvWr { wr_id, sges }).expect("posted");
}

impl App for Echo {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        while let Some(event) = e.poll_event() {
            match event {
                Event::Incoming { conn } => self.begin(conn, e),
                Event::Closed { conn, .. } => {
                    let (mr, own) = self.open.remove(&conn).expect("known");
                    for m in [mr, own] {
                        e.adapter().dereg_mr(m.id).expect("free");
                    }
                    e.release(conn).expect("released");
                    self.left -= 1;
                }
                _ => {}
            }
        }
        for (conn, (_, own)) in &self.open {
            let info = e.connection(*conn).expect("open").clone();
            while let Some(w) = e.adapter().poll_cq(info.cq) {
                if w.status != Status::Success || w.opcode != Opcode::Recv {
                    continue;
                }
                let mut b = vec![0; w.byte_len as usize];
                e.adapter().read_mr(own.id, 0, &mut b).expect("read");
                post(e, w.qp, *own, 0);
                if b == b"stop" {
                    e.close(now, *conn, CODE, WORDS);
                    self.stop = true;
                } else {
                    let back = SendWr::new(2, SendOp::Send, Data::Inline(b.into()));
                    e.adapter().post_send(w.qp, back).expect("posted");
                }
            }
        }
    }
    fn finished(&self) -> bool {
        self.left == 0
    }
}

/// What a client does, one step after the other.
struct Client {
    connect: Option<Connect>,
    conn: Option<ConnId>,
    own: Option<Mr>,
    key: Option<u32>,
    step: usize,
    pending: usize,
    got: Vec<u8>,
    closed: Option<CloseReason>,
    failed: Option<String>,
    /// It does nothing by itself once it has the key.
    waits: bool,
}

impl Client {
    fn new(connect: Connect) -> Client {
        Client {
            connect: Some(connect),
            conn: None,
            own: None,
            key: None,
            step: 0,
            pending: 0,
            got: Vec::new(),
            closed: None,
            failed: None,
            waits: false,
        }
    }

    fn next(&mut self, e: &mut Endpoint) {
        let info = e.connection(self.conn.expect("open")).expect("open").clone();
        let (own, key) = (self.own.expect("registered"), self.key.expect("told"));
        let sge = |offset: usize, len: usize| Sge { lkey: own.lkey, offset: offset as u64, len: len as u64 };
        let a = e.adapter();
        self.step += 1;
        match self.step {
            // Writes by all streams, in pieces of many sizes; then a read on each, behind which they are in place.
            1 => {
                let (mut at, mut i) = (0, 0);
                while at < REGION {
                    let len = [1, 100, 5_000, 70_000, 600_000][i % 5].min(REGION - at);
                    let op = SendOp::Write { rkey: key, offset: at as u64 };
                    a.post_send(info.qps[i % 3], SendWr::new(7, op, sge(at, len))).expect("posted");
                    (at, i) = (at + len, i + 1);
                }
                for qp in &info.qps {
                    let op = SendOp::Read { rkey: key, offset: 0 };
                    a.post_send(*qp, SendWr::new(8, op, sge(0, 1))).expect("posted");
                }
                self.pending = i + 3;
            }
            // Everything back, by one read.
            2 => {
                a.write_mr(own.id, 0, &vec![0; REGION]).expect("written");
                let op = SendOp::Read { rkey: key, offset: 0 };
                a.post_send(info.qps[1], SendWr::new(8, op, sge(0, REGION))).expect("posted");
                self.pending = 1;
            }
            // A small message there and back, a thousand times.
            3..1003 => {
                let sges = Sges::One(sge(0, 4096));
                a.post_recv(info.qps[0], RecvWr { wr_id: 3, sges }).expect("posted");
                let wr = SendWr::new(9, SendOp::Send, Data::Inline(vec![self.step as u8; 4].into()));
                a.post_send(info.qps[0], wr).expect("posted");
                self.pending = 2;
            }
            _ => {
                let wr = SendWr::new(9, SendOp::Send, Data::Inline(b"stop".to_vec().into()));
                a.post_send(info.qps[0], wr).expect("posted");
                self.pending = 1;
            }
        }
    }
}

impl App for Client {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        if let Some(c) = self.connect.take() {
            match e.connect(now, c) {
                Ok(conn) => self.conn = Some(conn),
                Err(e) => self.failed = Some(e.to_string()),
            }
        }
        while let Some(event) = e.poll_event() {
            match event {
                Event::Connected { conn } => {
                    let info = e.connection(conn).expect("open").clone();
                    let a = e.adapter();
                    let own = a.reg_mr(info.pd, content(5).into(), Access::ALL).map_err(|e| e.0);
                    let own = own.expect("registered");
                    let sges = Sges::One(Sge { lkey: own.lkey, offset: 0, len: 4 });
                    // The key comes here, where there is something else: put back below.
                    a.post_recv(info.qps[0], RecvWr { wr_id: 4, sges }).expect("posted");
                    self.own = Some(own);
                }
                Event::Closed { conn, reason } => {
                    self.closed = Some(reason);
                    if let Some(own) = self.own {
                        e.adapter().dereg_mr(own.id).expect("free");
                    }
                    e.release(conn).expect("released");
                }
                _ => {}
            }
        }
        let Some(info) = self.conn.and_then(|c| e.connection(c)).cloned() else { return };
        while let Some(w) = e.adapter().poll_cq(info.cq) {
            if self.closed.is_some() || self.step > 1003 && w.status != Status::Success {
                continue;
            }
            assert_eq!(w.status, Status::Success, "step {} {w:?}", self.step);
            let own = self.own.expect("registered");
            match (w.wr_id, w.opcode) {
                (4, _) => {
                    let mut key = [0; 4];
                    e.adapter().read_mr(own.id, 0, &mut key).expect("read");
                    self.key = Some(u32::from_be_bytes(key));
                    e.adapter().write_mr(own.id, 0, &content(5)).expect("written");
                    if self.waits {
                        return;
                    }
                    self.next(e);
                    continue;
                }
                (3, _) => {
                    let mut b = [0; 4];
                    e.adapter().read_mr(own.id, 0, &mut b).expect("read");
                    assert_eq!((b, w.byte_len), ([self.step as u8; 4], 4));
                }
                _ => {}
            }
            self.pending -= 1;
            if self.pending == 0 && self.step <= 1003 {
                if self.step == 2 {
                    self.got = vec![0; REGION];
                    e.adapter().read_mr(own.id, 0, &mut self.got).expect("read");
                }
                self.next(e);
            }
        }
    }
    fn finished(&self) -> bool {
        self.closed.is_some() || self.failed.is_some()
    }
}

fn serve(
    server: IwarpServer,
    app: impl FnOnce() -> Echo + Send + 'static,
    idle: Idle,
) -> (SocketAddr, std::thread::JoinHandle<()>) {
    let (tell, told) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let bind = "127.0.0.1:0".parse().expect("an address");
        let options = DriverOptions {
            streams: Some(Default::default()),
            serves: true,
            idle,
            ..DriverOptions::new(bind)
        };
        let mut driver = Driver::with(options).expect("a driver");
        let mut e = Endpoint::new(server_config(server), Rng::from_u64(1)).expect("an endpoint");
        tell.send(driver.local_addr()).expect("somebody waits");
        driver.run(&mut e, &mut app()).expect("ran");
    });
    (told.recv_timeout(Duration::from_secs(5)).expect("it listens"), thread)
}

fn run(to: SocketAddr, iwarp: Iwarp, idle: Idle) -> Client {
    run_with(2, to, iwarp, idle)
}

/// Clients of one server at the same time need seeds of their own: by their random numbers it tells whose a stream is.
fn run_with(seed: u64, to: SocketAddr, iwarp: Iwarp, idle: Idle) -> Client {
    let trust = ServerTrust::Fingerprint(Identity::from_seed([1; 32]).public_key().fingerprint());
    let (remote, server_name) = (to, "server.example".to_owned());
    let connect = Connect { remote, server_name, trust, token: None, options: None, iwarp: Some(iwarp) };
    let bind = "127.0.0.1:0".parse().expect("an address");
    let mut driver = Driver::with(DriverOptions { idle, ..DriverOptions::new(bind) }).expect("a driver");
    let mut e = Endpoint::new(config(2), Rng::from_u64(seed)).expect("an endpoint");
    let mut app = Client::new(connect);
    driver.run(&mut e, &mut app).expect("ran");
    app
}

fn plain() -> IwarpServer {
    IwarpServer { plain: true, ..IwarpServer::default() }
}

#[test]
fn all_data_arrives_and_the_close_reason_is_delivered() {
    let idles = [Idle::Sleep, Idle::Spin(Span::from_millis(1)), Idle::Poll];
    for (i, idle) in idles.into_iter().cycle().take(6).enumerate() {
        let mut wanted = Iwarp { tls: i >= 3, ..Iwarp::default() };
        wanted.settings.crc = i % 3 != 1;
        wanted.settings.markers = i % 3 == 2;
        let (to, server) = serve(plain(), || Echo { left: 1, ..Echo::default() }, idle);
        let c = run(to, wanted, idle);
        assert_eq!(c.closed, Some(CloseReason::Peer { code: CODE, reason: WORDS.into() }), "{i} {idle:?}");
        assert!(c.got == content(5), "what came back is not what was sent");
        server.join().expect("ended well");
    }
}

/// Before it sleeps, the server makes a reading ready of the stream that was read last. The other client's may come first, and one of
/// the two ends before the other.
#[test]
fn two_concurrent_clients_get_their_own_data() {
    for crc in [true, false] {
        let wanted = move || {
            let mut wanted = Iwarp { tls: false, ..Iwarp::default() };
            wanted.settings.crc = crc;
            wanted
        };
        let (to, server) = serve(plain(), || Echo { left: 2, ..Echo::default() }, Idle::Sleep);
        let other = std::thread::spawn(move || run_with(3, to, wanted(), Idle::Sleep));
        for c in [run(to, wanted(), Idle::Sleep), other.join().expect("ran")] {
            assert_eq!(c.closed, Some(CloseReason::Peer { code: CODE, reason: WORDS.into() }));
            assert!(c.got == content(5), "what came back is not what was sent");
        }
        server.join().expect("ended well");
    }
}

#[test]
fn missing_or_unsupported_server_is_reported() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let c = run(nobody, Iwarp::default(), Idle::Sleep);
    let Some(CloseReason::Stream(text)) = c.closed else { panic!("{:?}", c.closed) };
    assert!(text.contains("refused") && text.contains("TCP port"), "{text}");
}

/// Writes the region round and round with nothing said to it, and then one word that the other end watches for.
struct Flow {
    client: Client,
    posted: usize,
    done: usize,
}

/// Pieces of a flow, and their bytes: more than what makes one.
const PIECES: usize = 700;
const PIECE: usize = 64 << 10;

impl App for Flow {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        if self.client.key.is_none() {
            self.client.drive(now, e);
            if self.client.key.is_none() {
                return;
            }
        }
        let conn = self.client.conn.expect("open");
        while let Some(event) = e.poll_event() {
            if let Event::Closed { reason, .. } = event {
                self.client.closed = Some(reason);
                e.adapter().dereg_mr(self.client.own.expect("registered").id).expect("free");
                return e.release(conn).expect("released");
            }
        }
        let info = e.connection(conn).expect("open").clone();
        let (own, key) = (self.client.own.expect("registered"), self.client.key.expect("told"));
        while let Some(w) = e.adapter().poll_cq(info.cq) {
            self.done += usize::from(w.opcode == Opcode::Write && w.status == Status::Success);
        }
        while self.posted < PIECES.min(self.done + 16) {
            let offset = (self.posted * PIECE % REGION) as u64;
            let op = SendOp::Write { rkey: key, offset };
            let sge = Sge { lkey: own.lkey, offset, len: PIECE as u64 };
            e.adapter().post_send(info.qps[0], SendWr::new(7, op, sge)).expect("posted");
            self.posted += 1;
        }
        if self.done == PIECES && self.posted == PIECES {
            let word = SendWr::new(9, SendOp::Send, Data::Inline(b"stop".to_vec().into()));
            e.adapter().post_send(info.qps[0], word).expect("posted");
            self.posted += 1;
        }
    }
    fn finished(&self) -> bool {
        self.client.finished()
    }
}

#[test]
fn sleeping_receiver_notices_the_end_of_a_flow() {
    let (to, server) = serve(plain(), || Echo { left: 1, ..Echo::default() }, Idle::Sleep);
    let trust = ServerTrust::Fingerprint(Identity::from_seed([1; 32]).public_key().fingerprint());
    let (remote, server_name) = (to, "server.example".to_owned());
    let iwarp = Some(Iwarp::default());
    let connect = Connect { remote, server_name, trust, token: None, options: None, iwarp };
    let mut driver = Driver::bind("127.0.0.1:0".parse().expect("an address")).expect("a driver");
    let mut e = Endpoint::new(config(2), Rng::from_u64(2)).expect("an endpoint");
    let client = Client { waits: true, ..Client::new(connect) };
    let mut app = Flow { client, posted: 0, done: 0 };
    driver.run(&mut e, &mut app).expect("ran");
    assert_eq!(app.done, PIECES);
    assert_eq!(app.client.closed, Some(CloseReason::Peer { code: CODE, reason: WORDS.into() }));
    server.join().expect("ended well");
}
