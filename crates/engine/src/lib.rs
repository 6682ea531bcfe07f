//! Longhaul inside a program of somebody else: verbs for many threads, run by whoever polls.
//!
//! An [`Engine`] holds an endpoint with its loop, once in a process. The program's threads post work into rings and take completions
//! out of rings ([`QueuePair`], [`CompletionQueue`]); neither waits for the loop. A thread that polls an empty completion queue tries
//! to take the loop and runs a turn of it, so that a program that polls has no other thread in its latency. A thread of the engine's
//! sleeps, and runs the loop while nobody polls: for one-sided operations into an idle process, acknowledgements and timers.
//!
//! ```no_run
//! use longhaul_engine::{ClusterKey, Engine, Options};
//! use verbs::{Access, QpInit};
//!
//! let engine = Engine::start(Options::new(&ClusterKey::generate()?))?;
//! let pd = engine.alloc_pd()?;
//! let cq = engine.create_cq(100, None)?;
//! let qp = engine.create_qp(pd, &cq, &cq, |_| {})?;
//! println!("the peer needs to know {}", qp.number());
//! engine.connect(&qp, "192.0.2.1".parse()?, "192.0.2.2".parse()?, 0x1_4002)?;
//! while engine.poll(&cq).is_none() {}
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod address;
mod cluster;
mod completion;
mod core_loop;
mod fabric;
pub mod memory;
mod queue_pair;

pub use cluster::{ClusterError, ClusterKey};
pub use completion::{Channel, Completion, CompletionQueue};
pub use fabric::AsyncEvent;
pub use queue_pair::QueuePair;

use base::Time;
use core_loop::{Core, Shared};
use endpoint::{Authority, Config, ConnectError, Endpoint, ServerConfig, TransportOptions};
use fabric::Remote;
use lhio::clock::{self, Clock, WallTime};
use lhio::driver::{Driver, DriverError, DriverOptions, Lanes};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use transport::crypto::{ClientAuth, Credentials, Identity};
use verbs::{Access, Error, Memory, Mr, MrId, PdId, QpInit, QpState, RecvWr, SendWr, SrqId};

/// Completions that the adapter keeps for each queue besides those in its ring: work requests reserve a place each, also such as make
/// no completion.
const CQ_PLACES: usize = 1 << 20;
/// Queue pairs on a connection: all numbers that the wire has.
const MAX_QPS: u32 = 1 << 16;

/// How an engine is made.
#[derive(Clone, Debug)]
pub struct Options {
    identity: Identity,
    /// Options of connections to other processes.
    pub transport: TransportOptions,
}

impl Options {
    /// The usual choice for a member of a cluster.
    pub fn new(cluster: &ClusterKey) -> Options {
        let transport = TransportOptions {
            max_qps: MAX_QPS,
            discover: endpoint::PathDiscovery::Off,
            idle_timeout: base::Span::from_secs(15),
            keep_alive: Some(base::Span::from_secs(4)),
            ..TransportOptions::default()
        };
        Options { identity: cluster.identity(), transport }
    }

    /// Sets how packets are protected: `auto` (encrypted), `integrity` (authenticated) or `crc32c` (against accidents only). The peer
    /// must ask for the same.
    ///
    /// # Errors
    /// Another name.
    pub fn set_encryption(&mut self, name: &str) -> Result<(), String> {
        self.transport.module = match name {
            "auto" => wire::Module::Aead,
            "integrity" => wire::Module::Integrity,
            "crc32c" => wire::Module::Crc32c,
            _ => {
                return Err(format!(
                    "cannot use the encryption {name}: it is none of auto, integrity and crc32c"
                ));
            }
        };
        Ok(())
    }
}

/// Why an engine cannot be started, or does something no more.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// No socket.
    #[error("cannot open a UDP socket: {0}")]
    Driver(#[from] DriverError),
    /// All ports are taken.
    #[error("cannot bind a UDP port: all of {} to {} are in use", address::FIRST_PORT, address::FIRST_PORT + address::PORTS - 1)]
    NoPort,
    /// The system lacks something.
    #[error("cannot start the engine: {0}")]
    System(#[from] std::io::Error),
    /// Settings that the endpoint refuses.
    #[error("cannot start the engine: {0}")]
    Settings(#[from] ConnectError),
}

/// Longhaul, once in a process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    port: u16,
}

impl Engine {
    /// Opens a socket at the first free port of [`address`], and starts the thread that runs the loop while nobody polls.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn start(options: Options) -> Result<Engine, EngineError> {
        let seed = clock::seed()?;
        let (driver, port) = bind(u16::from_le_bytes([seed[0], seed[1]]))?;
        let key = options.identity.public_key();
        let credentials = Arc::new(Credentials::RawKey(options.identity));
        let mut config = Config::client(credentials);
        config.options = options.transport;
        config.limits = verbs::Limits { cq_entries: CQ_PLACES, ..verbs::Limits::default() };
        config.server = Some(ServerConfig {
            auth: ClientAuth::Keys(vec![key]),
            authority: Authority { keys: Some(vec![key]), tokens: Vec::new() },
            ..ServerConfig::default()
        });
        let up = Clock::new().now().as_nanos() / 1_000_000_000;
        config.unix_epoch = WallTime::now().unix_secs().saturating_sub(up);
        let mut endpoint = Endpoint::new(config, base::Rng::from_seed(clock::seed()?))?;
        endpoint.set_asks_for_qps(true);
        let shared = Shared::start(driver, endpoint, |announced| fabric::Fabric::new(port, key, announced))?;
        Ok(Engine { shared, port })
    }

    /// The UDP port of this process.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Runs something on the loop's state, and a turn of the loop after it.
    fn control<R>(&self, f: impl FnOnce(&mut Core, Time) -> R) -> R {
        self.shared.control(f)
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    /// As [`verbs::Adapter::alloc_pd`].
    pub fn alloc_pd(&self) -> Result<PdId, Error> {
        self.control(|c, _| c.endpoint.adapter().alloc_pd())
    }
    /// Destroys a protection domain.
    ///
    /// # Errors
    /// As [`verbs::Adapter::dealloc_pd`].
    pub fn dealloc_pd(&self, pd: PdId) -> Result<(), Error> {
        self.control(|c, _| c.endpoint.adapter().dealloc_pd(pd))
    }

    /// Registers memory, whose bytes are named by offsets from `base` on.
    ///
    /// # Errors
    /// As [`verbs::Adapter::reg_mr_at`].
    pub fn reg_mr(&self, pd: PdId, memory: Memory, base: u64, access: Access) -> Result<Mr, Error> {
        self.control(|c, _| c.endpoint.adapter().reg_mr_at(pd, memory, base, access)).map_err(|(e, _)| e)
    }
    /// Deregisters memory. [`Error::Busy`] while outstanding work uses it.
    ///
    /// # Errors
    /// As [`verbs::Adapter::dereg_mr`].
    pub fn dereg_mr(&self, mr: MrId) -> Result<(), Error> {
        self.control(|c, _| c.endpoint.adapter().dereg_mr(mr)).map(drop)
    }

    /// Creates a completion queue. Events of it appear on a channel as the number given with it.
    ///
    /// # Errors
    /// As [`verbs::Adapter::create_cq`].
    pub fn create_cq(
        &self,
        capacity: usize,
        channel: Option<(Arc<Channel>, u64)>,
    ) -> Result<Arc<CompletionQueue>, Error> {
        self.control(|c, _| {
            let id = c.endpoint.adapter().create_cq(CQ_PLACES)?;
            c.endpoint.adapter().req_notify_cq(id, false)?;
            let cq = Arc::new(CompletionQueue::new(id, capacity, channel));
            c.fabric.cqs.insert(id, cq.clone());
            Ok(cq)
        })
    }
    /// Destroys a completion queue. [`Error::Busy`] while queue pairs use it.
    ///
    /// # Errors
    /// As [`verbs::Adapter::destroy_cq`].
    pub fn destroy_cq(&self, cq: &CompletionQueue) -> Result<(), Error> {
        self.control(|c, _| {
            c.endpoint.adapter().destroy_cq(cq.id)?;
            c.fabric.cqs.remove(&cq.id);
            Ok(())
        })
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// As [`verbs::Adapter::create_srq`].
    pub fn create_srq(&self, pd: PdId, capacity: usize) -> Result<SrqId, Error> {
        self.control(|c, _| c.endpoint.adapter().create_srq(pd, capacity))
    }
    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// As [`verbs::Adapter::destroy_srq`].
    pub fn destroy_srq(&self, srq: SrqId) -> Result<(), Error> {
        self.control(|c, _| c.endpoint.adapter().destroy_srq(srq))
    }
    /// Posts a receive to a shared receive queue.
    ///
    /// # Errors
    /// As [`verbs::Adapter::post_srq_recv`].
    pub fn post_srq_recv(&self, srq: SrqId, wr: RecvWr) -> Result<(), Error> {
        self.control(|c, _| c.endpoint.adapter().post_srq_recv(srq, wr))
    }
    /// Asks for [`AsyncEvent::SharedReceiveQueueLow`] when fewer than `limit` receives are left.
    ///
    /// # Errors
    /// As [`verbs::Adapter::arm_srq_limit`].
    pub fn arm_srq_limit(&self, srq: SrqId, limit: usize) -> Result<(), Error> {
        self.control(|c, _| c.endpoint.adapter().arm_srq_limit(srq, limit))
    }

    /// Creates a queue pair in the state INIT.
    ///
    /// # Errors
    /// As [`verbs::Adapter::create_qp`]; [`Error::Limit`] when the process has no numbers left.
    pub fn create_qp(
        &self,
        pd: PdId,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        set: impl FnOnce(&mut QpInit),
    ) -> Result<Arc<QueuePair>, Error> {
        let mut init = QpInit::new(send.id, receive.id);
        set(&mut init);
        self.control(|c, _| {
            let id = c.endpoint.adapter().create_qp(pd, init.clone())?;
            c.fabric.insert(id, pd, init).ok_or_else(|| {
                let _ = c.endpoint.adapter().destroy_qp(id);
                Error::Limit("queue pairs of a process")
            })
        })
    }
    /// Destroys a queue pair, and tells its peer.
    pub fn destroy_qp(&self, qp: &QueuePair) {
        self.control(|c, now| c.fabric.remove(now, &mut c.endpoint, qp.number()));
    }

    /// Names the peer of a queue pair in INIT, which goes to RTR: queue pair `number` of a process at `peer`. `own` is the address of
    /// this host by which the peer's program names it.
    ///
    /// # Errors
    /// [`Error::State`]; [`Error::Invalid`] for a number that cannot be.
    pub fn connect(&self, qp: &QueuePair, own: IpAddr, peer: IpAddr, number: u32) -> Result<(), Error> {
        let invalid = Error::Invalid("the peer's queue pair number has more than 24 bits");
        let process = address::address_of(peer, number).ok_or(invalid)?;
        let own = SocketAddr::new(own.to_canonical(), self.port);
        let remote = Remote { process, number };
        self.control(|c, now| c.fabric.set_remote(now, &mut c.endpoint, qp.number(), (own, remote)))
    }

    /// Moves a queue pair to RTS, SQD or ERR.
    ///
    /// # Errors
    /// [`Error::State`] for a move that may not be.
    pub fn modify_qp(&self, qp: &QueuePair, state: QpState) -> Result<(), Error> {
        self.control(|c, now| {
            let e = c.fabric.entries.get(&qp.number()).ok_or(Error::NotFound("queue pair"))?;
            c.endpoint.adapter().modify_qp(e.id, state)?;
            if state == QpState::Error {
                c.endpoint.disconnect_qp(now, e.id);
            }
            Ok(())
        })
    }
    /// Puts a queue pair back to INIT without a peer; what was posted is gone.
    ///
    /// # Errors
    /// As [`verbs::Adapter::create_qp`].
    pub fn reset_qp(&self, qp: &QueuePair) -> Result<(), Error> {
        self.control(|c, now| c.fabric.reset(now, &mut c.endpoint, qp.number()))
    }
    /// The state of a queue pair. `None`: it was destroyed.
    pub fn qp_state(&self, qp: &QueuePair) -> Option<QpState> {
        self.control(|c, _| {
            let e = c.fabric.entries.get(&qp.number())?;
            c.endpoint.adapter().qp_state(e.id)
        })
    }

    /// Posts a work request for sending. What is wrong with its memory is told by its completion. Never waits for the loop. False
    /// when as many are outstanding as the queue pair was created for.
    #[must_use]
    pub fn post_send(&self, qp: &QueuePair, wr: SendWr) -> bool {
        let posted = qp.push_send(wr);
        self.announce(qp);
        posted
    }
    /// Posts a receive, as [`Engine::post_send`].
    #[must_use]
    pub fn post_recv(&self, qp: &QueuePair, wr: RecvWr) -> bool {
        let posted = qp.push_receive(wr);
        self.announce(qp);
        posted
    }

    fn announce(&self, qp: &QueuePair) {
        if qp.announce() {
            self.shared.announce(qp.number());
        }
    }

    /// The oldest completion of a queue. When there is none, and nobody else is running the loop, runs a turn of it.
    pub fn poll(&self, cq: &CompletionQueue) -> Option<Completion> {
        if cq.is_overflowing() {
            self.shared.turn();
        }
        cq.take().or_else(|| {
            self.shared.turn();
            cq.take()
        })
    }

    /// Asks for an event on the queue's channel, and leaves the loop to the engine's own thread.
    pub fn arm(&self, cq: &CompletionQueue, solicited_only: bool) {
        cq.arm(solicited_only);
        self.shared.leave();
    }

    /// What is called with each event of a queue pair or a shared receive queue, by the thread that runs the loop. It must not call
    /// the engine.
    pub fn listen(&self, f: impl Fn(AsyncEvent) + Send + 'static) {
        self.control(|c, _| c.fabric.listener = Some(Box::new(f)));
    }

    /// Parts all queue pairs from their peers and closes connections: the process is about to end.
    pub fn close(&self) {
        self.control(|c, now| c.fabric.close_all(now, &mut c.endpoint));
        self.control(|_, _| ());
    }
}

/// A socket at a free port, looked for from one that differs between processes.
fn bind(start: u16) -> Result<(Driver, u16), EngineError> {
    let has_v6 = std::path::Path::new("/proc/net/if_inet6").exists();
    let any: IpAddr =
        if has_v6 { Ipv6Addr::UNSPECIFIED.into() } else { std::net::Ipv4Addr::UNSPECIFIED.into() };
    for n in 0..address::PORTS {
        let port = address::FIRST_PORT + start.wrapping_add(n) % address::PORTS;
        let mut options = DriverOptions::new(SocketAddr::new(any, port));
        (options.serves, options.lanes) = (true, Lanes::Count(1));
        match Driver::with(options) {
            Ok(driver) => return Ok((driver, port)),
            Err(e) if is_taken(&e) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Err(EngineError::NoPort)
}

fn is_taken(e: &DriverError) -> bool {
    let mut source: Option<&dyn std::error::Error> = Some(e);
    while let Some(e) = source {
        if e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::AddrInUse) {
            return true;
        }
        source = e.source();
    }
    false
}
