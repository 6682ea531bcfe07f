//! What ends of Longhaul's transport have in common in the laboratory, whatever they send: how they connect and end, by what
//! keys, and how they run over real sockets.

use super::{ready, rest};
use base::{Rng, Span, Time};
use cc::platform::Policy;
use endpoint::{App, Authority, Config, ConnId, Connect, Endpoint, ServerConfig, TransportOptions};
use lhio::clock::{self, Clock, WallTime};
use lhio::driver::Driver;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use transport::crypto::{ClientAuth, Credentials, Identity, ServerTrust};
use transport::error::code;
use verbs::Mr;

/// The key of servers in the laboratory: it protects nothing.
const SERVER_SEED: [u8; 32] = *b"longhaul-lab server, not secret.";
const CLIENT_SEED: [u8; 32] = *b"longhaul-lab client, not secret.";

/// How a sender's time went.
#[derive(Debug, Default)]
pub struct Course {
    /// When it could begin.
    pub began: Option<Time>,
    /// When it was over.
    pub ended: Option<Time>,
    /// Why it ended early.
    pub failure: Option<String>,
}

impl Course {
    /// It has failed.
    pub fn fail(&mut self, now: Time, why: String) {
        self.failure.get_or_insert(why);
        self.ended.get_or_insert(now);
    }

    /// How long it took, in seconds; 0 if it never began.
    pub fn seconds(&self) -> f64 {
        self.began.zip(self.ended).map_or(0.0, |(a, z)| z.since(a).as_secs_f64())
    }
}

/// The connection of a sender, from its beginning at a given time to its end.
#[derive(Debug)]
pub struct Line {
    connect: Option<Connect>,
    /// When it connects.
    pub start: Time,
    /// The connection, once there is one.
    pub conn: Option<ConnId>,
    /// Whether it is over.
    pub closed: bool,
    /// When the sender has something to do though nothing has happened.
    pub wake: Option<Time>,
}

impl Line {
    /// One that connects at `start`.
    pub fn new(connect: Connect, start: Time) -> Line {
        Line { connect: Some(connect), start, conn: None, closed: false, wake: None }
    }

    /// Connects when it is time.
    ///
    /// # Errors
    /// What the endpoint says.
    pub fn begin(&mut self, now: Time, e: &mut Endpoint) -> Result<(), String> {
        if now >= self.start
            && let Some(c) = self.connect.take()
        {
            self.conn = Some(e.connect(now, c).map_err(|e| e.to_string())?);
        }
        Ok(())
    }

    /// It was closed, which is a failure unless the sender was done: frees its regions, then what is left of it.
    ///
    /// # Errors
    /// What the adapter says.
    pub fn end(
        &mut self,
        (now, reason): (Time, &str),
        regions: [Option<Mr>; 2],
        course: &mut Course,
        e: &mut Endpoint,
    ) -> Result<(), String> {
        self.closed = true;
        if course.ended.is_none() {
            course.fail(now, format!("the connection: {reason}"));
        }
        // The connection's domain is not free before its regions are.
        for region in regions.into_iter().flatten() {
            e.adapter().dereg_mr(region.id).map_err(|e| e.to_string())?;
        }
        let Some(conn) = self.conn else { return Ok(()) };
        e.release(conn).map_err(|e| e.to_string())
    }

    /// The sender cannot go on.
    pub fn give_up(&mut self, now: Time, why: String, course: &mut Course, e: &mut Endpoint) {
        course.fail(now, why);
        match self.conn {
            Some(c) if !self.closed => e.close(now, c, code::APPLICATION, "the sender gave up"),
            _ => self.closed = true,
        }
    }

    /// When the sender wants to be driven.
    pub fn next_timeout(&self) -> Option<Time> {
        if self.connect.is_some() { Some(self.start) } else { self.wake }
    }
}

/// What a client of the laboratory needs to connect to a server of the laboratory.
pub fn connect(remote: SocketAddr) -> Connect {
    let key = Identity::from_seed(SERVER_SEED).public_key();
    let trust = ServerTrust::Pinned(vec![key]);
    Connect { remote, server_name: "lab".into(), trust, token: None, options: None, iwarp: None }
}

/// Credentials and server settings of an end. Everybody is let in: the laboratory is closed.
pub fn credentials(server: bool) -> (Arc<Credentials>, Option<ServerConfig>) {
    let seed = if server { SERVER_SEED } else { CLIENT_SEED };
    let authority = Authority { keys: None, tokens: Vec::new() };
    let config = ServerConfig { auth: ClientAuth::AnyKey, authority, ..ServerConfig::default() };
    (Arc::new(Credentials::RawKey(Identity::from_seed(seed))), server.then_some(config))
}

/// An end over real sockets.
fn endpoint(options: TransportOptions, server: bool) -> Result<Endpoint, String> {
    let (credentials, config) = credentials(server);
    let mut c = Config::client(credentials);
    (c.options, c.server, c.static_secret) =
        (options, config, if server { SERVER_SEED } else { CLIENT_SEED });
    // Over the paths of the plan and no others.
    c.options.discover = endpoint::PathDiscovery::Off;
    c.unix_epoch = WallTime::now().unix_secs().saturating_sub(Clock::new().now().as_nanos() / 1_000_000_000);
    let seed = clock::seed().map_err(|e| e.to_string())?;
    Endpoint::new(c, Rng::from_seed(seed)).map_err(|e| e.to_string())
}

/// Runs a sender over real sockets until it is done.
///
/// # Errors
/// In words: settings, or the system's.
pub(super) fn run_to<A: App>(
    to: SocketAddr,
    options: TransportOptions,
    policy: Option<Arc<dyn Policy>>,
    app: impl FnOnce(Connect, Time) -> Result<A, String>,
) -> Result<(), String> {
    let any: SocketAddr = if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let mut driver = Driver::bind(any).map_err(|e| e.to_string())?;
    let mut endpoint = endpoint(options, false)?;
    if let Some(policy) = policy {
        endpoint.set_policy(policy);
    }
    let mut app = app(connect(to), driver.now())?;
    driver.run(&mut endpoint, &mut app).map_err(|e| e.to_string())
}

/// Runs a receiver over real sockets; what it is given says when standard input has ended.
///
/// # Errors
/// In words: settings, or the system's.
pub(super) fn run_at<A: App>(
    listen: SocketAddr,
    options: TransportOptions,
    app: impl FnOnce(Arc<AtomicBool>) -> A,
) -> Result<A, String> {
    let mut driver = Driver::bind(listen).map_err(|e| e.to_string())?;
    let mut endpoint = endpoint(options, true)?;
    let over = ready();
    let (waker, flag) = (driver.waker(), over.clone());
    std::thread::spawn(move || {
        while !flag.load(Ordering::SeqCst) {
            rest(Span::from_millis(50));
        }
        waker.wake();
    });
    let mut app = app(over);
    driver.run(&mut endpoint, &mut app).map_err(|e| e.to_string())?;
    Ok(app)
}
