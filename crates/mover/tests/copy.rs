//! A server that lets others in for its clients: what they may do, and what they may not.

mod common;

use base::{Rng, Time};
use common::LOCAL;
use endpoint::{Authority, ClientAdmission, Config, Connect, Endpoint, ServerConfig, TransportOptions};
use lhio::driver::Driver;
use longhaul_mover::{
    ClientApp, CopyAsk, CopyClient, CopyPlan, Error, GetOptions, Invitations, ListOptions, Monitor,
    PutOptions, Sending, ServeOptions, ServerApp, TransferOptions, Wake,
};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use transport::crypto::{ClientAuth, Credentials, Identity, PeerIdentity, ServerTrust};
use transport::error::code::UNAUTHORISED;

const SERVER: u8 = 1;
const HOST: u8 = 2;
const GUEST: u8 = 9;
const STRANGER: u8 = 8;

fn identity(n: u8) -> Identity {
    Identity::from_seed([n; 32])
}

fn endpoint(n: u8, server: Option<ServerConfig>) -> Endpoint {
    let mut c = Config::client(Arc::new(Credentials::RawKey(identity(n))));
    (c.static_secret, c.server) = ([n; 32], server);
    Endpoint::new(c, Rng::from_seed(lhio::clock::seed().unwrap())).unwrap()
}

/// Lets in the host, and whom it invites.
struct Gate(Invitations);

impl ClientAdmission for Gate {
    fn admit(&mut self, now: Time, peer: &PeerIdentity) -> Result<(), String> {
        match peer {
            PeerIdentity::RawKey(k) if *k == identity(HOST).public_key() || self.0.admit(now, k) => Ok(()),
            _ => Err("not authorised".into()),
        }
    }
}

struct Server {
    at: SocketAddr,
    monitor: Monitor,
    wake: Wake,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(o: ServeOptions) -> Server {
        let (tx, rx) = channel();
        let thread = std::thread::spawn(move || {
            let mut driver = Driver::bind(LOCAL).unwrap();
            let authority = Authority { keys: None, tokens: Vec::new() };
            let config = ServerConfig { auth: ClientAuth::AnyKey, authority, ..ServerConfig::default() };
            let mut ep = endpoint(SERVER, Some(config));
            let invitations = Invitations::default();
            ep.set_client_admission(Some(Box::new(Gate(invitations.clone()))));
            let waker = driver.waker();
            let wake: Wake = Arc::new(move || waker.wake());
            let mut app = ServerApp::new(o, wake.clone()).unwrap().with_invitations(invitations);
            tx.send((driver.local_addr(), app.monitor(), wake)).unwrap();
            driver.run(&mut ep, &mut app).unwrap();
        });
        let (at, monitor, wake) = rx.recv().unwrap();
        Server { at, monitor, wake, thread: Some(thread) }
    }
    fn connect(&self) -> Connect {
        let trust = ServerTrust::Pinned(vec![identity(SERVER).public_key()]);
        let options = Some(TransportOptions::default());
        Connect { remote: self.at, server_name: "localhost".into(), trust, token: None, options, iwarp: None }
    }
    /// A transfer as the client of this key.
    fn transfer(&self, key: u8, make: impl FnOnce(Connect, Wake) -> ClientApp) -> Option<Error> {
        let mut driver = Driver::bind(LOCAL).unwrap();
        let waker = driver.waker();
        let mut app = make(self.connect(), Arc::new(move || waker.wake()));
        driver.run(&mut endpoint(key, None), &mut app).unwrap();
        app.progress().outcome().unwrap().error
    }
    fn put(&self, key: u8, source: &Path, dest: &str, transfer: TransferOptions) -> Option<Error> {
        let (sources, dest) = (vec![source.to_owned()], dest.as_bytes().to_vec());
        let o = PutOptions { sources, nameless: false, dest, transfer };
        self.transfer(key, |c, w| ClientApp::put(c, &o, w).unwrap())
    }
    /// The client of this key asks something about copies.
    fn ask(&self, key: u8, ask: CopyAsk) -> Option<Error> {
        let mut driver = Driver::bind(LOCAL).unwrap();
        let mut app = CopyClient::new(self.connect(), ask, false);
        driver.run(&mut endpoint(key, None), &mut app).unwrap();
        app.watch().progress().outcome().unwrap().error
    }
    fn invite(&self, key: u8, dest: &str) -> Option<Error> {
        self.ask(key, CopyAsk::invite(plan(dest).put, *identity(GUEST).public_key().as_bytes()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.monitor.stop();
        (self.wake)();
        if let (Some(t), false) = (self.thread.take(), std::thread::panicking()) {
            t.join().unwrap();
        }
    }
}

fn plan(dest: &str) -> CopyPlan {
    CopyPlan::new(&[b"x".to_vec()], dest.as_bytes(), &TransferOptions::default()).unwrap()
}

fn is_unauthorised(e: &Option<Error>) -> bool {
    matches!(e, Some(Error::Connection { code: Some(UNAUTHORISED), .. }))
}

#[track_caller]
fn refused(e: Option<Error>, by: &str) {
    assert!(matches!(&e, Some(Error::Refused { text }) if text.contains(by)), "{e:?}");
}

#[test]
fn a_guest_may_do_the_one_put_and_nothing_else() {
    let d = tempfile::tempdir().unwrap();
    let at = |n: &str| d.path().join(n);
    std::fs::create_dir(at("served")).unwrap();
    std::fs::write(at("served/secret"), "secret").unwrap();
    std::fs::write(at("file"), "content").unwrap();
    let s = Server::start(ServeOptions::new(at("served")));
    let usual = TransferOptions::default;
    assert!(is_unauthorised(&s.put(GUEST, &at("file"), "in/", usual())), "it was not invited yet");
    assert_eq!(s.invite(HOST, "in/"), None);
    assert!(is_unauthorised(&s.put(STRANGER, &at("file"), "in/", usual())), "another key came in");

    let other = "let in for one other transfer";
    for dest in ["", "other/", "in/below/", "in"] {
        refused(s.put(GUEST, &at("file"), dest, usual()), other);
    }
    for o in [
        TransferOptions { overwrite: false, ..usual() },
        TransferOptions { fresh: true, ..usual() },
        TransferOptions { dry_run: true, ..usual() },
    ] {
        refused(s.put(GUEST, &at("file"), "in/", o), other);
    }
    let o = GetOptions {
        sources: vec![b"secret".to_vec()],
        dest: at("stolen"),
        one_file: false,
        transfer: usual(),
        sending: Sending::default(),
    };
    refused(s.transfer(GUEST, |c, w| ClientApp::get(c, &o, w).unwrap()), other);
    let o = ListOptions { path: Vec::new(), recursive: true, checksum: false, link_targets: false };
    refused(s.transfer(GUEST, |c, w| ClientApp::list(c, &o, w).unwrap().0), other);
    refused(s.invite(GUEST, "in/"), other);
    refused(s.ask(GUEST, CopyAsk::list()), other);
    assert!(!at("stolen").exists() && !at("served/in").exists());

    assert_eq!(s.put(GUEST, &at("file"), "in/", usual()), None);
    assert_eq!(std::fs::read(at("served/in/file")).unwrap(), b"content");
    assert!(is_unauthorised(&s.put(GUEST, &at("file"), "in/", usual())), "it came again");
}

#[test]
fn invitation_is_limited_to_the_inviter_rights() {
    let d = tempfile::tempdir().unwrap();
    let s = Server::start(ServeOptions { allow_write: false, ..ServeOptions::new(d.path()) });
    refused(s.invite(HOST, "in/"), "read-only");
    assert!(is_unauthorised(&s.invite(STRANGER, "in/")));
    refused(s.ask(HOST, CopyAsk::list()), "--allow-copy");
    let ask = plan("in/").request(LOCAL, [0; 32], [0; 32]).unwrap();
    refused(s.ask(HOST, ask), "--allow-copy");
}

/// A key that has a right of its own keeps all of it, whoever invites it.
#[test]
fn an_invitation_takes_nothing_from_whom_it_names() {
    let d = tempfile::tempdir().unwrap();
    let at = |n: &str| d.path().join(n);
    std::fs::create_dir(at("served")).unwrap();
    std::fs::write(at("file"), "content").unwrap();
    let s = Server::start(ServeOptions::new(at("served")));
    let host = *identity(HOST).public_key().as_bytes();
    assert_eq!(s.ask(HOST, CopyAsk::invite(plan("in/").put, host)), None);
    assert_eq!(s.put(HOST, &at("file"), "elsewhere/", TransferOptions::default()), None);
}
