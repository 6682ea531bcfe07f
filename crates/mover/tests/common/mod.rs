//! Servers and clients over real sockets on the loopback interface.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod tamper;
mod watchdog;

use base::{Rate, Rng};
use endpoint::{Authority, Config, Connect, Endpoint, ServerConfig, TransportOptions};
use lhio::driver::Driver;
use longhaul_mover::{
    ClientApp, Error, GetOptions, Limiter, Monitor, Progress, PutOptions, Select, ServeOptions, ServerApp,
};
use longhaul_mover::{Sending, Summary, TransferOptions, Wake};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use transport::crypto::{ClientAuth, Credentials, Identity, ServerTrust};
use watchdog::Watched;

/// Any port of the loopback interface.
pub const LOCAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn identity(n: u8) -> Identity {
    Identity::from_seed([n; 32])
}
fn config(n: u8) -> Config {
    let mut c = Config::client(Arc::new(Credentials::RawKey(identity(n))));
    c.static_secret = [n; 32];
    c
}
fn rng() -> Rng {
    Rng::from_seed(lhio::clock::seed().unwrap())
}
fn wake(d: &Driver) -> Wake {
    let w = d.waker();
    Arc::new(move || w.wake())
}

pub struct Server {
    pub addr: SocketAddr,
    pub monitor: Monitor,
    wake: Wake,
    thread: Option<JoinHandle<()>>,
}
impl Drop for Server {
    fn drop(&mut self) {
        self.monitor.stop();
        (self.wake)();
        let r = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            r.unwrap().unwrap();
        }
    }
}

/// Runs a server on this thread; calls `ready` with its address when it listens.
pub fn serve_here(o: ServeOptions, at: SocketAddr, ready: impl FnOnce(SocketAddr, Monitor, Wake)) {
    serve_with(o, at, Duration::ZERO, ready);
}
/// As `serve_here`; each job of its worker threads takes `pause` longer.
fn serve_with(
    o: ServeOptions,
    at: SocketAddr,
    pause: Duration,
    ready: impl FnOnce(SocketAddr, Monitor, Wake),
) {
    let mut driver = Driver::bind(at).unwrap();
    let authority = Authority {
        keys: Some(vec![identity(2).public_key(), identity(3).public_key()]),
        tokens: Vec::new(),
    };
    let server = ServerConfig { auth: ClientAuth::AnyKey, authority, ..ServerConfig::default() };
    let mut ep = Endpoint::new(Config { server: Some(server), ..config(1) }, rng()).unwrap();
    let wake = wake(&driver);
    let loops = wake.clone();
    // Workers call it after each job. A thread may be woken early, which makes the pause shorter.
    let slowly: Wake = Arc::new(move || {
        loops();
        if !pause.is_zero() {
            std::thread::park_timeout(pause);
        }
    });
    let mut app = ServerApp::new(o, slowly).unwrap();
    ready(driver.local_addr(), app.monitor(), wake);
    let name = format!("server {}", driver.local_addr());
    let mut app = Watched::new(&mut app, name, ServerApp::state, false);
    driver.run(&mut ep, &mut app).unwrap();
}

pub fn serve(o: ServeOptions) -> Server {
    let (tx, rx) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || serve_here(o, LOCAL, |a, m, w| tx.send((a, m, w)).unwrap()));
    let (addr, monitor, wake) = rx.recv().unwrap();
    Server { addr, monitor, wake, thread: Some(thread) }
}

/// A server whose worker threads take `pause` longer for each job.
pub fn serve_slowly(o: ServeOptions, pause: Duration) -> Server {
    let (tx, rx) = std::sync::mpsc::channel();
    let thread =
        std::thread::spawn(move || serve_with(o, LOCAL, pause, |a, m, w| tx.send((a, m, w)).unwrap()));
    let (addr, monitor, wake) = rx.recv().unwrap();
    Server { addr, monitor, wake, thread: Some(thread) }
}

fn connect(remote: SocketAddr) -> Connect {
    let trust = ServerTrust::Pinned(vec![identity(1).public_key()]);
    Connect { remote, server_name: "localhost".into(), trust, token: None, options: None, iwarp: None }
}

fn run(
    remote: SocketAddr,
    make: impl FnOnce(Wake) -> Result<ClientApp, Error>,
    watch: impl FnOnce(Progress, Wake),
) -> Result<Summary, Error> {
    run_as(2, remote, make, watch)
}
/// As the client with this key: 2, or 3.
fn run_as(
    key: u8,
    remote: SocketAddr,
    make: impl FnOnce(Wake) -> Result<ClientApp, Error>,
    watch: impl FnOnce(Progress, Wake),
) -> Result<Summary, Error> {
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let mut driver = Driver::bind(if remote.ip().is_loopback() { LOCAL } else { any }).unwrap();
    let mut ep = Endpoint::new(config(key), rng()).unwrap();
    let w = wake(&driver);
    let mut app = make(w.clone())?;
    watch(app.progress(), w);
    let name = format!("client {} of {remote}", driver.local_addr());
    driver.run(&mut ep, &mut Watched::new(&mut app, name, ClientApp::state, true)).unwrap();
    Ok(app.progress().outcome().expect("an outcome"))
}

pub fn put(addr: SocketAddr, source: &Path, dest: &str) -> Result<Summary, Error> {
    put_with(addr, source, dest, TransferOptions::default(), |_, _| ())
}
pub fn put_with(
    addr: SocketAddr,
    source: &Path,
    dest: &str,
    transfer: TransferOptions,
    watch: impl FnOnce(Progress, Wake),
) -> Result<Summary, Error> {
    let o = PutOptions {
        sources: vec![source.to_path_buf()],
        dest: dest.as_bytes().to_vec(),
        transfer,
        nameless: false,
    };
    run(addr, |w| ClientApp::put(connect(addr), &o, w), watch)
}
/// Part of a source, put in place as chosen. A slash at the end of the source means what is in it.
pub fn put_selecting(
    addr: SocketAddr,
    source: &str,
    dest: &str,
    (transfer, select): (TransferOptions, Select),
    watch: impl FnOnce(Progress, Wake),
) -> Result<Summary, Error> {
    let (sources, dest) = (vec![source.into()], dest.as_bytes().to_vec());
    let o = PutOptions { sources, dest, transfer, nameless: false };
    run(addr, |w| ClientApp::put(connect(addr), &o, w)?.selecting(select), watch)
}
/// The same from a server.
pub fn get_selecting(
    addr: SocketAddr,
    source: &str,
    dest: &Path,
    (transfer, select): (TransferOptions, Select),
) -> Result<Summary, Error> {
    let (sources, dest) = (vec![source.as_bytes().to_vec()], dest.to_path_buf());
    let o = GetOptions { sources, dest, transfer, sending: Sending::default(), one_file: false };
    run(addr, |w| ClientApp::get(connect(addr), &o, w)?.selecting(select), |_, _| ())
}
/// At a rate that changes while it runs.
pub fn put_limited(
    addr: SocketAddr,
    source: &Path,
    dest: &str,
    limiter: Limiter,
    watch: impl FnOnce(Progress, Wake),
) -> Result<Summary, Error> {
    let (sources, dest) = (vec![source.to_path_buf()], dest.as_bytes().to_vec());
    let o = PutOptions { sources, dest, transfer: TransferOptions::default(), nameless: false };
    let options = TransportOptions { rate_cap: limiter.rate(), ..TransportOptions::default() };
    let connect = Connect { options: Some(options), ..connect(addr) };
    run(addr, |w| ClientApp::put(connect, &o, w)?.limited(Some(limiter)), watch)
}
/// The same of what a server sends.
pub fn get_limited(
    addr: SocketAddr,
    source: &str,
    dest: &Path,
    limiter: Limiter,
    watch: impl FnOnce(Progress, Wake),
) -> Result<Summary, Error> {
    let (sources, dest) = (vec![source.as_bytes().to_vec()], dest.to_path_buf());
    let sending = Sending { rate_limit: limiter.rate(), ..Sending::default() };
    let o = GetOptions { sources, dest, transfer: TransferOptions::default(), sending, one_file: false };
    run(addr, |w| ClientApp::get(connect(addr), &o, w)?.limited(Some(limiter)), watch)
}
/// As the other client that the server knows.
pub fn put_as_another(addr: SocketAddr, source: &Path, dest: &str) -> Result<Summary, Error> {
    let transfer = TransferOptions::default();
    let o = PutOptions {
        sources: vec![source.to_path_buf()],
        dest: dest.as_bytes().to_vec(),
        transfer,
        nameless: false,
    };
    run_as(3, addr, |w| ClientApp::put(connect(addr), &o, w), |_, _| ())
}
/// An endpoint of a client that the server knows, to speak the protocol by hand.
pub fn client_endpoint(remote: SocketAddr) -> (Driver, Endpoint, Connect) {
    let driver = Driver::bind(LOCAL).unwrap();
    (driver, Endpoint::new(config(2), rng()).unwrap(), connect(remote))
}
/// Several sources at once.
pub fn put_all(addr: SocketAddr, sources: &[&Path], dest: &str) -> Result<Summary, Error> {
    let sources = sources.iter().map(|s| s.to_path_buf()).collect();
    let o = PutOptions {
        sources,
        dest: dest.as_bytes().to_vec(),
        transfer: TransferOptions::default(),
        nameless: false,
    };
    run(addr, |w| ClientApp::put(connect(addr), &o, w), |_, _| ())
}
/// No faster than this many Mbit/s.
pub fn put_slowly(
    addr: SocketAddr,
    source: &Path,
    dest: &str,
    mbit: u64,
    watch: impl FnOnce(Progress, Wake),
) -> Result<Summary, Error> {
    let transfer = TransferOptions::default();
    let o = PutOptions {
        sources: vec![source.to_path_buf()],
        dest: dest.as_bytes().to_vec(),
        transfer,
        nameless: false,
    };
    let options = TransportOptions { rate_cap: Some(Rate::from_mbit(mbit)), ..TransportOptions::default() };
    let connect = Connect { options: Some(options), ..connect(addr) };
    run(addr, |w| ClientApp::put(connect, &o, w), watch)
}
pub fn get(addr: SocketAddr, source: &str, dest: &Path) -> Result<Summary, Error> {
    get_with(addr, source, dest, TransferOptions::default(), Sending::default(), |_, _| ())
}
pub fn get_with(
    addr: SocketAddr,
    source: &str,
    dest: &Path,
    transfer: TransferOptions,
    sending: Sending,
    watch: impl FnOnce(Progress, Wake),
) -> Result<Summary, Error> {
    let (sources, dest) = (vec![source.as_bytes().to_vec()], dest.to_path_buf());
    let o = GetOptions { sources, dest, transfer, sending, one_file: false };
    run(addr, |w| ClientApp::get(connect(addr), &o, w), watch)
}
pub fn list(addr: SocketAddr, path: &str, recursive: bool) -> Result<(Summary, Vec<String>), Error> {
    let o = longhaul_mover::ListOptions {
        path: path.as_bytes().to_vec(),
        recursive,
        checksum: false,
        link_targets: true,
    };
    let (mut names, mut reader) = (Vec::new(), None);
    let s = run(
        addr,
        |w| {
            let (app, entries) = ClientApp::list(connect(addr), &o, w)?;
            reader = Some(std::thread::spawn(move || {
                entries.into_iter().flatten().map(|l| l.entry.path.to_string()).collect::<Vec<_>>()
            }));
            Ok(app)
        },
        |_, _| (),
    )?;
    names.extend(reader.unwrap().join().unwrap());
    Ok((s, names))
}

pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut v = vec![0; len];
    blake3::Hasher::new().update(&seed.to_be_bytes()).finalize_xof().fill(&mut v);
    v
}

/// Asserts that two trees hold the same files.
pub fn same(a: &Path, b: &Path) {
    let (x, y) = (names(a), names(b));
    assert_eq!(x, y);
    for n in x {
        let (p, q) = (a.join(&n), b.join(&n));
        if p.symlink_metadata().unwrap().is_file() {
            assert!(std::fs::read(&p).unwrap() == std::fs::read(&q).unwrap(), "{} differs", n.display());
        }
    }
}
fn names(root: &Path) -> Vec<std::path::PathBuf> {
    let (mut v, mut todo) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(p) = todo.pop() {
        if p.symlink_metadata().unwrap().is_dir() {
            todo.extend(std::fs::read_dir(&p).unwrap().map(|e| e.unwrap().path()));
        }
        v.push(p.strip_prefix(root).unwrap().to_path_buf());
    }
    v.sort();
    v
}
