//! A peer that keeps to the protocol and says what it likes.
#![allow(dead_code)] // each test file uses its part of this

use base::{Rng, Time};
use endpoint::{App, Config, ConnId, Connect, Endpoint, Event, IwarpServer, ServerConfig};
use lhio::driver::{Driver, DriverOptions};
use mover::proto::{self, Record};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use transport::crypto::{Credentials, Identity, PeerIdentity};
use verbs::{Access, CqId, Data, Memory, Opcode, QpId, RecvWr, SendOp, SendWr, Sge, Sges};

/// Sets the title, clears the screen, colours by a control of one byte, turns the direction around, hides, begins a line of
/// its own, rings, deletes.
pub const EVIL: &str = "\x1b]0;x\x07\x1b[2J\u{9b}31m\u{202e}\u{2066}\u{200f}\u{200b}\u{feff}\r\nlonghaul: all is well\t\u{7f}\u{2028}";

/// As a name: the same without what ends a component.
pub fn evil_name() -> String {
    format!("evil{EVIL}")
}

/// What is said to each peer.
#[derive(Clone, Debug)]
pub enum Reply {
    /// By the one who decides about keys.
    Rejected,
    /// The connection is closed with this code and [`EVIL`].
    Close(u64),
    /// Messages that answer the first one.
    Messages(Vec<Vec<u8>>),
}

/// A message of the transfer.
pub fn message(records: &[Record<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    records.iter().for_each(|r| proto::put(&mut out, r));
    out
}

/// One end that says what it likes.
pub struct HostilePeer {
    pub say: Arc<Mutex<Reply>>,
    pub connect: Option<Connect>,
    pub stop: Arc<AtomicBool>,
    /// Queues, and whether it has said it.
    conns: BTreeMap<ConnId, (CqId, QpId, bool)>,
    /// As a client it ends with its connection.
    ended: bool,
}

const RECEIVE: u64 = 256 << 10;

impl HostilePeer {
    pub fn new(say: Arc<Mutex<Reply>>, connect: Option<Connect>, stop: Arc<AtomicBool>) -> HostilePeer {
        HostilePeer { say, connect, stop, conns: BTreeMap::new(), ended: false }
    }

    fn opened(&mut self, now: Time, ep: &mut Endpoint, conn: ConnId, speaks_first: bool) {
        let say = self.say.lock().unwrap().clone();
        if let Reply::Close(code) = say {
            return ep.close(now, conn, code, EVIL);
        }
        let info = ep.connection(conn).unwrap().clone();
        let Some(qp) = info.qps.first().copied() else { return };
        for slot in 0..4 {
            let memory = Memory::zeroed(RECEIVE as usize);
            let mr = ep.adapter().reg_mr(info.pd, memory, Access::LOCAL_WRITE).map_err(|e| e.0).unwrap();
            let sge = Sge { lkey: mr.lkey, offset: 0, len: RECEIVE };
            ep.adapter().post_recv(qp, RecvWr { wr_id: slot, sges: Sges::One(sge) }).unwrap();
        }
        self.conns.insert(conn, (info.cq, qp, false));
        if speaks_first {
            self.speak(ep, conn);
        }
    }

    fn speak(&mut self, ep: &mut Endpoint, conn: ConnId) {
        let (Reply::Messages(all), Some((_, qp, said))) =
            (self.say.lock().unwrap().clone(), self.conns.get_mut(&conn))
        else {
            return;
        };
        if !std::mem::replace(said, true) {
            for m in all {
                let wr = SendWr::new(99, SendOp::Send, Data::Inline(m.into()));
                ep.adapter().post_send(*qp, wr).unwrap();
            }
        }
    }
}

impl App for HostilePeer {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        if let Some(c) = self.connect.take() {
            ep.connect(now, c).unwrap();
        }
        while let Some(e) = ep.poll_event() {
            match e {
                Event::Incoming { conn } => self.opened(now, ep, conn, false),
                Event::Connected { conn } => self.opened(now, ep, conn, true),
                Event::Closed { conn, .. } => {
                    self.ended = true;
                    self.conns.remove(&conn);
                    let _ = ep.release(conn); // its regions go with the endpoint
                }
                _ => {}
            }
        }
        let conns: Vec<_> = self.conns.iter().map(|(c, (cq, ..))| (*c, *cq)).collect();
        for (conn, cq) in conns {
            while let Some(wc) = ep.adapter().poll_cq(cq) {
                if wc.opcode == Opcode::Recv {
                    self.speak(ep, conn);
                } else if self.stop.load(Ordering::SeqCst) {
                    ep.close(now, conn, 0x1000, EVIL);
                }
            }
        }
    }
    fn finished(&self) -> bool {
        self.stop.load(Ordering::SeqCst) && (self.conns.is_empty() || self.ended)
    }
}

struct RejectingGate(Arc<Mutex<Reply>>);

impl endpoint::ClientAdmission for RejectingGate {
    fn admit(&mut self, _: Time, _: &PeerIdentity) -> Result<(), String> {
        if matches!(*self.0.lock().unwrap(), Reply::Rejected) { Err(EVIL.to_owned()) } else { Ok(()) }
    }
}

pub fn endpoint(seed: u8, server: Option<ServerConfig>) -> Endpoint {
    let mut config = Config::client(Arc::new(Credentials::RawKey(Identity::from_seed([seed; 32]))));
    config.server = server;
    Endpoint::new(config, Rng::from_seed(lhio::clock::seed().unwrap())).unwrap()
}

/// A server at both transports that says what it is told to say. Ends when dropped.
pub struct HostileServer {
    pub say: Arc<Mutex<Reply>>,
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    waker: lhio::poll::Waker,
    thread: Option<JoinHandle<()>>,
}

impl HostileServer {
    pub fn start() -> HostileServer {
        let say = Arc::new(Mutex::new(Reply::Close(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let bind: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let options =
            DriverOptions { serves: true, streams: Some(Default::default()), ..DriverOptions::new(bind) };
        let mut driver = Driver::with(options).unwrap();
        let (address, waker) = (driver.local_addr(), driver.waker());
        let mut server = ServerConfig { iwarp: Some(IwarpServer::default()), ..ServerConfig::default() };
        server.authority.keys = None;
        let (told, stopped) = (say.clone(), stop.clone());
        let run = move || {
            let mut ep = endpoint(66, Some(server));
            ep.set_client_admission(Some(Box::new(RejectingGate(told.clone()))));
            driver.run(&mut ep, &mut HostilePeer::new(told, None, stopped)).unwrap();
        };
        HostileServer { say, address, stop, waker, thread: Some(std::thread::spawn(run)) }
    }

    pub fn says(&self, say: Reply) {
        *self.say.lock().unwrap() = say;
    }
}

impl Drop for HostileServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.waker.wake();
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}
