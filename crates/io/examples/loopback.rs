//! Bulk writes between two threads over loopback: `loopback [GiB] [max packet] [suite]`.
//! A developer's quick look; `longhaul perf` measures properly.

use base::{Rng, Time};
use endpoint::{App, Config, Connect, Endpoint, Event, ServerConfig};
use longhaul_io::driver::Driver;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use transport::crypto::{Credentials, Identity, ServerTrust, Suite};
use verbs::{Access, Memory, SendOp, SendWr, Sge, Status};

const REGION: u64 = 256 << 20;
const MESSAGE: u64 = 1 << 20;

struct Server {
    key: Sender<u32>,
    done: bool,
}

impl App for Server {
    fn drive(&mut self, _now: Time, ep: &mut Endpoint) {
        while let Some(e) = ep.poll_event() {
            match e {
                Event::Incoming { conn } => {
                    let pd = ep.connection(conn).expect("open").pd;
                    let memory = Memory::zeroed(REGION as usize);
                    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                    let mr = ep.adapter().reg_mr(pd, memory, access).map_err(|e| e.0).expect("registered");
                    self.key.send(mr.rkey).expect("client lives");
                }
                Event::Closed { reason, conn } => {
                    println!("server: {reason} {:?}", ep.stats(conn));
                    self.done = true;
                }
                _ => {}
            }
        }
    }
    fn finished(&self) -> bool {
        self.done
    }
}

struct Client {
    key: Receiver<u32>,
    rkey: Option<u32>,
    connect: Option<Connect>,
    conn: Option<endpoint::ConnId>,
    lkey: u32,
    posted: u64,
    completed: u64,
    total: u64,
    began: Time,
    start: Time,
    traced: Time,
    done: bool,
}

impl App for Client {
    fn drive(&mut self, now: Time, ep: &mut Endpoint) {
        if let Some(c) = self.connect.take() {
            self.began = now;
            ep.connect(now, c).expect("connect");
        }
        while let Some(e) = ep.poll_event() {
            match e {
                Event::Connected { conn } => {
                    println!("connected after {}", now.since(self.began));
                    let pd = ep.connection(conn).expect("open").pd;
                    let m = Memory::from(vec![7u8; MESSAGE as usize]);
                    self.lkey = ep
                        .adapter()
                        .reg_mr(pd, m, Access::LOCAL_READ)
                        .map_err(|e| e.0)
                        .expect("registered")
                        .lkey;
                    self.conn = Some(conn);
                    self.start = now;
                }
                Event::Closed { reason, .. } => {
                    println!("client: {reason}");
                    self.done = true;
                }
                _ => {}
            }
        }
        let Some(conn) = self.conn else { return };
        if self.rkey.is_none() {
            self.rkey = self.key.try_recv().ok();
        }
        let Some(rkey) = self.rkey else { return };
        let info = ep.connection(conn).expect("open").clone();
        while let Some(wc) = ep.adapter().poll_cq(info.cq) {
            assert_eq!(wc.status, Status::Success);
            self.completed += 1;
        }
        while self.posted < self.total && self.posted - self.completed < 64 {
            let op = SendOp::Write { rkey, offset: self.posted * MESSAGE % REGION };
            let wr = SendWr::new(self.posted, op, Sge { lkey: self.lkey, offset: 0, len: MESSAGE });
            ep.adapter().post_send(info.qps[0], wr).expect("posted");
            self.posted += 1;
        }
        if std::env::var_os("TRACE").is_some() && now.since(self.traced) > base::Span::from_millis(200) {
            self.traced = now;
            let s = ep.stats(conn).unwrap_or_default();
            println!(
                "{:.1} delivered {} rate {} cwnd {} inflight {} srtt {} lost {} {:?}",
                now.since(self.start).as_secs_f64(),
                s.delivered,
                s.rate,
                s.cwnd,
                s.inflight,
                s.srtt,
                s.packets_lost,
                s.cc
            );
        }
        if self.completed == self.total && !self.done {
            let t = now.since(self.start);
            println!("{:.4} Gbit/s", (self.total * MESSAGE * 8) as f64 / t.as_secs_f64() / 1e9);
            println!("{:?}", ep.stats(conn));
            ep.close(now, conn, 0, "done");
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        (self.rkey.is_none() && self.conn.is_some()).then_some(Time::ZERO)
    }
    fn finished(&self) -> bool {
        self.done
    }
}

fn main() {
    let arg = |n: usize| std::env::args().nth(n);
    let gib: u64 = arg(1).and_then(|a| a.parse().ok()).unwrap_or(1);
    let max_packet = arg(2).and_then(|a| a.parse().ok()).unwrap_or(1500);
    let suite = arg(3).and_then(|a| Suite::from_name(&a)).unwrap_or(Suite::Aegis128L);
    let cc = arg(4).unwrap_or_else(|| "bbr".into());
    let config = |seed: u8| {
        let mut c = Config::client(Arc::new(Credentials::RawKey(Identity::from_seed([seed; 32]))));
        c.options.max_packet = max_packet;
        c.options.suites = vec![suite];
        c.options.module = suite.module();
        c.options.cc = cc.clone();
        c
    };
    let mut server_config = config(1);
    let mut s = ServerConfig::default();
    s.authority.keys = None;
    server_config.server = Some(s);
    let (tx, rx) = channel();
    let mut driver = Driver::bind("127.0.0.1:0".parse().expect("address")).expect("bound");
    let mut remote = driver.local_addr();
    // A fifth argument puts a relay with that link in between.
    let relay = arg(5).map(|spec| {
        let link: netem::LinkConfig = spec.parse().expect("link");
        let any = "127.0.0.1:0".parse().expect("address");
        let mut c = longhaul_io::relay::RelayConfig::new(any, remote);
        c.up = link.clone();
        c.down = netem::LinkConfig { delay: link.delay, ..Default::default() };
        longhaul_io::relay::RelayHandle::start(c).expect("relay")
    });
    if let Some(r) = &relay {
        remote = r.local_addr();
    }
    let server = std::thread::spawn(move || {
        let mut ep =
            Endpoint::new(server_config, Rng::from_seed(longhaul_io::clock::seed().expect("random")))
                .expect("made");
        driver.run(&mut ep, &mut Server { key: tx, done: false }).expect("ran");
    });
    let mut driver = Driver::bind("127.0.0.1:0".parse().expect("address")).expect("bound");
    let mut ep =
        Endpoint::new(config(2), Rng::from_seed(longhaul_io::clock::seed().expect("random"))).expect("made");
    let connect = Connect {
        remote,
        server_name: "localhost".into(),
        trust: ServerTrust::FirstUse,
        token: None,
        options: None,
        iwarp: None,
    };
    let mut app = Client {
        key: rx,
        rkey: None,
        connect: Some(connect),
        conn: None,
        lkey: 0,
        posted: 0,
        completed: 0,
        total: gib * 1024,
        began: Time::ZERO,
        start: Time::ZERO,
        traced: Time::ZERO,
        done: false,
    };
    driver.run(&mut ep, &mut app).expect("ran");
    server.join().expect("server");
    if let Some(r) = relay {
        println!("{:?}", r.stats());
    }
}
