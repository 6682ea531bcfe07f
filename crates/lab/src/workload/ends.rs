//! Common parts of the laboratory's applications over Longhaul: connecting, closing, credentials, and running over
//! real sockets.

use super::{announce_ready, sleep};
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

/// The public key seeds of the laboratory, which protect nothing.
const SERVER_SEED: [u8; 32] = *b"longhaul-lab server, not secret.";
const CLIENT_SEED: [u8; 32] = *b"longhaul-lab client, not secret.";

/// Times and outcome of a sender.
#[derive(Debug, Default)]
pub struct SenderOutcome {
    /// When it began to send.
    pub began: Option<Time>,
    /// When it finished.
    pub ended: Option<Time>,
    /// Why it ended early.
    pub failure: Option<String>,
}

impl SenderOutcome {
    /// Records a failure.
    pub fn fail(&mut self, now: Time, why: String) {
        self.failure.get_or_insert(why);
        self.ended.get_or_insert(now);
    }

    /// Duration in seconds; 0 if it never began.
    pub fn seconds(&self) -> f64 {
        self.began.zip(self.ended).map_or(0.0, |(a, z)| z.since(a).as_secs_f64())
    }
}

/// The connection of a sender, from a given start to its end.
#[derive(Debug)]
pub struct SenderConnection {
    connect: Option<Connect>,
    /// When it connects.
    pub start: Time,
    /// The connection, once there is one.
    pub conn: Option<ConnId>,
    /// Whether it has been closed.
    pub closed: bool,
    /// When the sender has to be driven without an event.
    pub wake: Option<Time>,
}

impl SenderConnection {
    /// A connection to be opened at `start`.
    pub fn new(connect: Connect, start: Time) -> SenderConnection {
        SenderConnection { connect: Some(connect), start, conn: None, closed: false, wake: None }
    }

    /// Connects at the start time.
    ///
    /// # Errors
    /// The endpoint's error.
    pub fn connect_when_due(&mut self, now: Time, e: &mut Endpoint) -> Result<(), String> {
        if now >= self.start
            && let Some(c) = self.connect.take()
        {
            self.conn = Some(e.connect(now, c).map_err(|e| e.to_string())?);
        }
        Ok(())
    }

    /// Handles the closing, which is a failure unless the sender was done, and frees its regions and the rest.
    ///
    /// # Errors
    /// The adapter's error.
    pub fn on_closed(
        &mut self,
        (now, reason): (Time, &str),
        regions: [Option<Mr>; 2],
        course: &mut SenderOutcome,
        e: &mut Endpoint,
    ) -> Result<(), String> {
        self.closed = true;
        if course.ended.is_none() {
            course.fail(now, format!("the connection: {reason}"));
        }
        // The connection's domain can be freed only after its regions.
        for region in regions.into_iter().flatten() {
            e.adapter().dereg_mr(region.id).map_err(|e| e.to_string())?;
        }
        let Some(conn) = self.conn else { return Ok(()) };
        e.release(conn).map_err(|e| e.to_string())
    }

    /// Closes the connection of a sender that cannot continue.
    pub fn give_up(&mut self, now: Time, why: String, course: &mut SenderOutcome, e: &mut Endpoint) {
        course.fail(now, why);
        match self.conn {
            Some(c) if !self.closed => e.close(now, c, code::APPLICATION, "the sender gave up"),
            _ => self.closed = true,
        }
    }

    /// When the sender has to be driven.
    pub fn next_timeout(&self) -> Option<Time> {
        if self.connect.is_some() { Some(self.start) } else { self.wake }
    }
}

/// The parameters for connecting to a server of the laboratory.
pub fn connect(remote: SocketAddr) -> Connect {
    let key = Identity::from_seed(SERVER_SEED).public_key();
    let trust = ServerTrust::Pinned(vec![key]);
    Connect { remote, server_name: "lab".into(), trust, token: None, options: None, iwarp: None }
}

/// Credentials and server settings. All clients are admitted, since the laboratory is isolated.
pub fn credentials(server: bool) -> (Arc<Credentials>, Option<ServerConfig>) {
    let seed = if server { SERVER_SEED } else { CLIENT_SEED };
    let authority = Authority { keys: None, tokens: Vec::new() };
    let config = ServerConfig { auth: ClientAuth::AnyKey, authority, ..ServerConfig::default() };
    (Arc::new(Credentials::RawKey(Identity::from_seed(seed))), server.then_some(config))
}

/// An endpoint over real sockets.
pub(crate) fn endpoint(options: TransportOptions, server: bool) -> Result<Endpoint, String> {
    let (credentials, config) = credentials(server);
    let mut c = Config::client(credentials);
    (c.options, c.server, c.static_secret) =
        (options, config, if server { SERVER_SEED } else { CLIENT_SEED });
    // Only over the paths of the plan.
    c.options.discover = endpoint::PathDiscovery::Off;
    c.unix_epoch = WallTime::now().unix_secs().saturating_sub(Clock::new().now().as_nanos() / 1_000_000_000);
    let seed = clock::seed().map_err(|e| e.to_string())?;
    Endpoint::new(c, Rng::from_seed(seed)).map_err(|e| e.to_string())
}

/// Runs a sender over real sockets until it is done.
///
/// # Errors
/// In words: settings, or the system's.
pub(super) fn run_sender<A: App>(
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

/// Runs a receiver over real sockets; its flag is set when standard input has ended.
///
/// # Errors
/// In words: settings, or the system's.
pub(super) fn run_receiver<A: App>(
    listen: SocketAddr,
    options: TransportOptions,
    app: impl FnOnce(Arc<AtomicBool>) -> A,
) -> Result<A, String> {
    let mut driver = Driver::bind(listen).map_err(|e| e.to_string())?;
    let mut endpoint = endpoint(options, true)?;
    let over = announce_ready();
    let (waker, flag) = (driver.waker(), over.clone());
    std::thread::spawn(move || {
        while !flag.load(Ordering::SeqCst) {
            sleep(Span::from_millis(50));
        }
        waker.wake();
    });
    let mut app = app(over);
    driver.run(&mut endpoint, &mut app).map_err(|e| e.to_string())?;
    Ok(app)
}
