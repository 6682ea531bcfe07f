//! A UDP relay that emulates a long, lossy network: what `tc netem` does, without privileges.
//!
//! Clients send to the relay's address; each gets a socket of its own towards the target, as behind a network
//! address translator. Every packet passes a [`netem::Link`], one for each direction, shared by all clients
//! like the bottleneck of a path. Trains are taken apart on arrival, since a link loses and delays packets
//! and not trains, and what arrives together at the far end leaves as a train again.

mod engine;
mod lateness;
#[cfg(test)]
mod tests;
mod train_builder;

pub use lateness::Lateness;

use crate::clock::{self, CpuTime};
use crate::poll::{Poller, Waker};
use crate::udp::{UdpError, UdpOptions, UdpSocket};
use base::{Rng, Span};
use netem::LinkConfig;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// The most clients (4-tuples; each lane of a connection is one) at a time.
pub const MAX_CLIENTS: usize = crate::poll::MAX_SOURCES - 1;
/// Requests of handles that wait for the relay's next turn.
const MAX_REQUESTS: usize = 16;

/// The configuration of a relay.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Where clients send to.
    pub listen: SocketAddr,
    /// Where their packets go.
    pub target: SocketAddr,
    /// From clients to the target. Times of the schedule count from the relay's start.
    pub up: LinkConfig,
    /// From the target to clients.
    pub down: LinkConfig,
    /// Seeds chance; `None` takes the system's randomness.
    pub seed: Option<u64>,
    /// Clients at a time, 1 to [`MAX_CLIENTS`].
    pub max_clients: usize,
    /// A client silent for this long in both directions makes room for a new one when there is none.
    pub idle: Span,
    /// Packets may leave this much late, so that several leave together: what it costs to deliver 80,000
    /// packets a second singly is most of a core.
    pub batch: Span,
}

impl RelayConfig {
    /// A relay with perfect links, to be changed.
    pub fn new(listen: SocketAddr, target: SocketAddr) -> RelayConfig {
        RelayConfig {
            listen,
            target,
            up: LinkConfig::default(),
            down: LinkConfig::default(),
            seed: None,
            max_clients: MAX_CLIENTS,
            idle: Span::from_secs(30),
            batch: Span::from_micros(100),
        }
    }
}

/// Why a relay does not run.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// A socket cannot be had.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// A number of clients outside the limits.
    #[error("{0} clients: a relay takes 1 to {MAX_CLIENTS}")]
    MaxClients(usize),
    /// The system refuses what every program needs.
    #[error("the relay cannot run: {0}")]
    System(#[from] io::Error),
    /// It has ended already.
    #[error("the relay has ended")]
    Ended,
}

/// Counts of a relay since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayStats {
    /// From clients to the target.
    pub up: DirectionStats,
    /// From the target to clients.
    pub down: DirectionStats,
    /// Clients at present.
    pub clients: usize,
    /// Packets of clients beyond the limit, or for which no socket was to be had.
    pub refused: u64,
    /// Packets that came from elsewhere than the target, or for a client that has gone.
    pub stray: u64,
    /// CPU time of the relay's thread.
    pub cpu: CpuTime,
}

/// Counts of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirectionStats {
    /// What the link did.
    pub link: netem::Stats,
    /// Trains that came in.
    pub trains_in: u64,
    /// Trains that left.
    pub trains_out: u64,
    /// Trains that the system would not send: a limit of this machine, not of the emulated network.
    pub send_dropped: u64,
    /// How late packets left, against the link's model.
    pub lateness: Lateness,
}

enum Request {
    Set(Box<(LinkConfig, LinkConfig)>),
    Stats(mpsc::SyncSender<RelayStats>),
    Stop,
}

/// A relay that runs in a thread of its own. Ends when dropped.
#[derive(Debug)]
pub struct RelayHandle {
    listen: SocketAddr,
    requests: mpsc::SyncSender<Request>,
    waker: Waker,
    thread: Option<JoinHandle<Result<RelayStats, RelayError>>>,
}

impl RelayHandle {
    /// Starts a relay.
    ///
    /// # Errors
    /// When the address cannot be bound, the limits are wrong, or no thread can be had.
    pub fn start(config: RelayConfig) -> Result<RelayHandle, RelayError> {
        if config.max_clients == 0 || config.max_clients > MAX_CLIENTS {
            return Err(RelayError::MaxClients(config.max_clients));
        }
        let rng = match config.seed {
            Some(n) => Rng::from_u64(n),
            None => Rng::from_seed(clock::seed()?),
        };
        let socket = UdpSocket::open(&UdpOptions::new(config.listen))?;
        let listen = socket.local_addr();
        // No spin: a relay shares the machine with what it serves.
        let poller = Poller::new()?;
        let waker = poller.waker();
        let (requests, inbox) = mpsc::sync_channel(MAX_REQUESTS);
        let relay = engine::Engine::new(config, socket, poller, rng);
        let thread = std::thread::Builder::new().name("relay".into()).spawn(move || relay.run(&inbox))?;
        Ok(RelayHandle { listen, requests, waker, thread: Some(thread) })
    }

    /// Where clients send to, with the port the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.listen
    }

    /// Changes both links while packets are on them: see [`netem::Link::set_config`].
    ///
    /// # Errors
    /// [`RelayError::Ended`].
    pub fn set_config(&self, up: LinkConfig, down: LinkConfig) -> Result<(), RelayError> {
        self.request(Request::Set(Box::new((up, down))))
    }

    /// Counts so far. Waits for the relay's next turn.
    ///
    /// # Errors
    /// [`RelayError::Ended`].
    pub fn stats(&self) -> Result<RelayStats, RelayError> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.request(Request::Stats(tx))?;
        rx.recv().map_err(|_| RelayError::Ended)
    }

    /// Ends the relay; what is on its links is lost. Returns the last counts.
    ///
    /// # Errors
    /// What had ended it before, if anything.
    pub fn stop(mut self) -> Result<RelayStats, RelayError> {
        self.end().unwrap_or(Err(RelayError::Ended))
    }

    fn request(&self, r: Request) -> Result<(), RelayError> {
        self.requests.send(r).map_err(|_| RelayError::Ended)?;
        self.waker.wake();
        Ok(())
    }

    fn end(&mut self) -> Option<Result<RelayStats, RelayError>> {
        let thread = self.thread.take()?;
        // An error means that it has ended by itself; joining tells why.
        let _ = self.request(Request::Stop);
        Some(thread.join().unwrap_or(Err(RelayError::Ended)))
    }
}

impl Drop for RelayHandle {
    fn drop(&mut self) {
        if let Some(Err(e)) = self.end() {
            tracing::warn!(error = %e, "a relay had ended early");
        }
    }
}
