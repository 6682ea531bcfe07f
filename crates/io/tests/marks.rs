//! DSCP of iWARP connections in packets on loopback, seen through raw sockets.

use base::{Rng, Time};
use endpoint::{App, Config, ConnId, Connect, Endpoint, Event, Iwarp, IwarpServer, ServerConfig};
use longhaul_io::driver::{Driver, DriverOptions};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use transport::crypto::{ClientAuth, Credentials, Identity, ServerTrust};

/// An address that no other test serves at.
const SERVER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 46);
/// What the client asks for first, and then; what the server asks for.
const FIRST: u8 = 46;
const THEN: u8 = 8;
const BACK: u8 = 26;

fn config(n: u8, dscp: u8) -> Config {
    let mut c = Config::client(Arc::new(Credentials::RawKey(Identity::from_seed([n; 32]))));
    c.options.initial_qps = 2;
    c.options.intent.dscp = dscp;
    c
}

/// Takes one client.
#[derive(Default)]
struct Server {
    left: bool,
}

impl App for Server {
    fn drive(&mut self, _: Time, e: &mut Endpoint) {
        while let Some(event) = e.poll_event() {
            if let Event::Closed { conn, .. } = event {
                e.release(conn).expect("released");
                self.left = true;
            }
        }
    }
    fn finished(&self) -> bool {
        self.left
    }
}

/// Connects, asks for another code point, and leaves: its farewell goes by the other one.
struct Client {
    connect: Option<Connect>,
    open: Option<ConnId>,
    over: bool,
}

impl App for Client {
    fn drive(&mut self, now: Time, e: &mut Endpoint) {
        if let Some(c) = self.connect.take() {
            e.connect(now, c).expect("begun");
        }
        // A turn after it was asked for: the driver has been told.
        if let Some(conn) = self.open.take() {
            e.close(now, conn, 0, "done");
        }
        while let Some(event) = e.poll_event() {
            match event {
                Event::Connected { conn } => {
                    e.set_iwarp_qos(conn, None, Some(THEN)).expect("there is one");
                    self.open = Some(conn);
                }
                Event::Closed { conn, .. } => {
                    e.release(conn).expect("released");
                    self.over = true;
                }
                _ => {}
            }
        }
    }
    fn next_timeout(&self) -> Option<Time> {
        self.open.is_some().then_some(Time::ZERO)
    }
    fn finished(&self) -> bool {
        self.over
    }
}

fn raw() -> Result<OwnedFd, rustix::io::Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::INET, SocketType::RAW, flags, Some(ipproto::TCP))
}

/// Code points of the packets that were seen, in order, of those that carry `port` at `at` in their header of TCP.
fn seen(fd: &OwnedFd, port: u16, at: usize) -> Vec<u8> {
    let mut b = [0; 2048];
    let mut all = Vec::new();
    while let Ok((n, _)) = rustix::net::recv(fd, &mut b[..], RecvFlags::empty()) {
        let head = usize::from(b[0] & 0xf) * 4;
        if n >= head + 4 && b[head + at..head + at + 2] == port.to_be_bytes() {
            all.push(b[1] >> 2);
        }
    }
    all
}

#[test]
fn packets_carry_the_requested_code_point_after_changes() {
    let (Ok(there), Ok(back)) = (raw(), raw()) else {
        println!("skipped: raw sockets need root");
        return;
    };
    let address = |port| SocketAddr::V4(SocketAddrV4::new(SERVER, port));
    rustix::net::bind(&there, &address(0)).expect("a local address");
    rustix::net::connect(&back, &address(0)).expect("a local address");
    let (tell, told) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let bind = address(0);
        let options =
            DriverOptions { streams: Some(Default::default()), serves: true, ..DriverOptions::new(bind) };
        let mut driver = Driver::with(options).expect("a driver");
        let iwarp = IwarpServer { plain: true, ..IwarpServer::default() };
        let server = ServerConfig { auth: ClientAuth::AnyKey, iwarp: Some(iwarp), ..ServerConfig::default() };
        let config = Config { server: Some(server), ..config(1, BACK) };
        let mut e = Endpoint::new(config, Rng::from_u64(1)).expect("an endpoint");
        tell.send(driver.local_addr()).expect("somebody waits");
        driver.run(&mut e, &mut Server::default()).expect("ran");
    });
    let remote = told.recv_timeout(Duration::from_secs(10)).expect("it listens");
    let connect = Connect {
        remote,
        server_name: "server.example".to_owned(),
        trust: ServerTrust::FirstUse,
        token: None,
        options: None,
        iwarp: Some(Iwarp::default()),
    };
    let mut driver = Driver::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a driver");
    let mut e = Endpoint::new(config(2, FIRST), Rng::from_u64(2)).expect("an endpoint");
    let mut guest = Client { connect: Some(connect), open: None, over: false };
    driver.run(&mut e, &mut guest).expect("ran");
    server.join().expect("ended well");
    let out = seen(&there, remote.port(), 2);
    let changed = out.iter().position(|d| *d == THEN).expect("the change was seen");
    assert!(changed > 4 && out[..changed].iter().all(|d| *d == FIRST), "{out:?}");
    assert!(out[changed..].iter().all(|d| *d == THEN), "{out:?}");
    // The system answers the first packets before the server knows of the client.
    let home = seen(&back, remote.port(), 0);
    assert!(home.iter().all(|d| [0, BACK].contains(d)), "{home:?}");
    assert_eq!(home.last(), Some(&BACK), "{home:?}");
}
