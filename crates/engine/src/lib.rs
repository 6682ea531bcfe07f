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
pub use core_loop::Governor;
pub use fabric::{AsyncEvent, Destination, EVERY_MEMBER, GRH, MAX_DATAGRAM, Management, Retries};
pub use queue_pair::QueuePair;

use base::Time;
use core_loop::{Core, Shared};
use endpoint::{Authority, Config, ConnectError, Endpoint, ServerConfig, TransportOptions};
use fabric::{Remote, Towards};
use lhio::clock::{self, Clock, WallTime};
use lhio::driver::{Driver, DriverError, DriverOptions, Lanes};
use lhio::poll::{Poller, Waker};
use lhio::tcp::StreamOptions;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use transport::crypto::{ClientAuth, Credentials, Identity};
use verbs::{Access, Error, Kind, Memory, Mr, MrId, MwId, PdId, QpInit, QpState, RecvWr, SendWr, SrqId};

/// Completions that the adapter keeps for each queue besides those in its ring: work requests reserve a place each, also such as make
/// no completion.
const CQ_PLACES: usize = 1 << 20;
/// Milliseconds that a process which ends waits for its last datagrams.
const LINGERS_MS: u32 = 1_000;
/// How long a process that ends waits for its streams to close, and how often it looks.
const LINGER: base::Span = base::Span::from_secs(2);
const LINGER_TURN: base::Span = base::Span::from_millis(1);
/// Queue pairs on a connection: all numbers that the wire has.
const MAX_QPS: u32 = 1 << 16;

/// How an engine is made.
#[derive(Clone, Debug)]
pub struct Options {
    identity: Identity,
    /// Options of connections to other processes.
    pub transport: TransportOptions,
    /// Queue pairs take streams by TCP, with iWARP, instead of the native transport.
    pub iwarp: bool,
    /// Congestion control of these streams by the system's name for it (`TCP_CONGESTION`), or several in order of preference, divided
    /// by commas. `None`: the system's choice.
    pub tcp_congestion: Option<String>,
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
        Options { identity: cluster.identity(), transport, iwarp: false, tcp_congestion: None }
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
    /// iWARP is encrypted or not protected at all.
    #[error(
        "cannot use the encryption integrity by iWARP, which has TLS or nothing; try auto, or crc32c if everything may be in the clear"
    )]
    IntegrityByStream,
    /// Settings that the endpoint refuses.
    #[error("cannot start the engine: {0}")]
    Settings(#[from] ConnectError),
}

/// Longhaul, once in a process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    port: u16,
    is_iwarp: bool,
}

impl Engine {
    /// Opens a socket at the first free port of [`address`], and starts the thread that runs the loop while nobody polls.
    ///
    /// # Errors
    /// See [`EngineError`].
    pub fn start(options: Options) -> Result<Engine, EngineError> {
        let seed = clock::seed()?;
        let by_streams = by_streams(&options)?;
        let streams = by_streams.as_ref().map(|s| StreamOptions { congestion: s.congestion.clone() });
        let (driver, port) = bind(u16::from_le_bytes([seed[0], seed[1]]), streams)?;
        let key = options.identity.public_key();
        let credentials = Arc::new(Credentials::RawKey(options.identity));
        let mut config = Config::client(credentials);
        config.options = options.transport;
        config.limits = verbs::Limits { cq_entries: CQ_PLACES, ..verbs::Limits::default() };
        config.server = Some(ServerConfig {
            auth: ClientAuth::Keys(vec![key]),
            authority: Authority { keys: Some(vec![key]), tokens: Vec::new() },
            max_connections: MAX_QPS as usize,
            iwarp: by_streams.as_ref().map(fabric::ByStreams::server),
            ..ServerConfig::default()
        });
        let up = Clock::new().now().as_nanos() / 1_000_000_000;
        config.unix_epoch = WallTime::now().unix_secs().saturating_sub(up);
        let mut endpoint = Endpoint::new(config, base::Rng::from_seed(clock::seed()?))?;
        endpoint.set_asks_for_qps(true);
        let is_iwarp = by_streams.is_some();
        let fabric = |announced| fabric::Fabric::new(port, key, by_streams, announced);
        let shared = Shared::start(driver, endpoint, fabric)?;
        Ok(Engine { shared, port, is_iwarp })
    }

    /// The UDP port of this process.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Has each turn of the loop go through a governor, from the next one on.
    pub fn set_governor(&self, governor: Box<dyn Governor>) {
        self.control(|c, _| c.governor = Some(governor));
    }
    /// Ends the governor.
    pub fn end_governor(&self) {
        drop(self.control(|c, _| c.governor.take()));
    }
    /// What makes the loop turn, for threads that have something for the governor.
    pub fn waker(&self) -> Waker {
        self.shared.waker()
    }

    /// Whether queue pairs take streams by TCP (iWARP): then they are reliable ones, and nothing else can be had.
    pub const fn is_iwarp(&self) -> bool {
        self.is_iwarp
    }

    fn needs_packets(&self, what: &'static str) -> Result<(), Error> {
        if self.is_iwarp { Err(Error::Unsupported(what)) } else { Ok(()) }
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

    /// Deregisters memory though work uses it, which then fails.
    ///
    /// # Errors
    /// As [`verbs::Adapter::revoke_mr`].
    pub fn revoke_mr(&self, mr: MrId) -> Result<(), Error> {
        self.control(|c, _| c.endpoint.adapter().revoke_mr(mr)).map(drop)
    }
    /// Changes registered memory; its keys stay.
    ///
    /// # Errors
    /// As [`verbs::Adapter::rereg_mr`].
    pub fn rereg_mr(
        &self,
        mr: MrId,
        pd: PdId,
        access: Access,
        memory: Option<(Memory, u64)>,
    ) -> Result<(), Error> {
        self.control(|c, _| c.endpoint.adapter().rereg_mr(mr, pd, access, memory))
    }
    /// Whether work uses memory that ends by itself.
    pub fn is_mr_in_use(&self, mr: MrId) -> bool {
        self.control(|c, _| c.endpoint.adapter().is_mr_in_use(mr))
    }
    /// Whether a window shows something of a region, which can then not be deregistered.
    pub fn is_shown(&self, mr: MrId) -> bool {
        self.control(|c, _| c.endpoint.adapter().is_shown(mr))
    }
    /// Creates a memory window; gives a key, of which all but the lowest eight bits are those of the keys by which
    /// [`SendOp::Bind`](verbs::SendOp::Bind) may bind it.
    ///
    /// # Errors
    /// As [`verbs::Adapter::alloc_mw`].
    pub fn alloc_mw(&self, pd: PdId) -> Result<(MwId, u32), Error> {
        self.needs_packets("memory windows")?;
        self.control(|c, _| c.endpoint.adapter().alloc_mw_with_key(pd))
    }
    /// Destroys a memory window; its key is void from now on.
    ///
    /// # Errors
    /// As [`verbs::Adapter::dealloc_mw`].
    pub fn dealloc_mw(&self, mw: MwId) -> Result<(), Error> {
        self.control(|c, _| c.endpoint.adapter().dealloc_mw(mw))
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
    /// Sets for how many completions a queue has room.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0 and for fewer than wait to be taken.
    pub fn resize_cq(&self, cq: &CompletionQueue, capacity: usize) -> Result<(), Error> {
        // The loop puts completions in: not meanwhile.
        if self.control(|_, _| cq.resize(capacity)) {
            Ok(())
        } else {
            Err(Error::Invalid("the queue has more completions than that"))
        }
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
    /// Creates a shared receive queue that peers name by the number given with it: for messages to targets of the same domain, which
    /// complete in `cq`.
    ///
    /// # Errors
    /// As [`verbs::Adapter::create_srq`].
    pub fn create_xrc_srq(
        &self,
        pd: PdId,
        capacity: usize,
        cq: &CompletionQueue,
        domain: u64,
    ) -> Result<(SrqId, u32), Error> {
        self.needs_packets("XRC")?;
        self.control(|c, _| {
            let srq = c.endpoint.adapter().create_srq(pd, capacity)?;
            Ok((srq, c.fabric.name_queue(srq, pd, cq.id, domain)))
        })
    }
    /// Creates a queue pair that sends to receive queues of the peer's process (XRC), in the state INIT.
    ///
    /// # Errors
    /// As [`Engine::create_qp`].
    pub fn create_xrc_initiator(
        &self,
        pd: PdId,
        send: &CompletionQueue,
        set: impl FnOnce(&mut QpInit),
    ) -> Result<Arc<QueuePair>, Error> {
        self.needs_packets("XRC")?;
        let mut init = QpInit::new(send.id, send.id);
        set(&mut init);
        self.control(|c, _| c.fabric.insert_initiator(&mut c.endpoint, pd, init))
    }
    /// Creates a queue pair that receives for all receive queues of a domain (XRC), in the state INIT.
    ///
    /// # Errors
    /// As [`Engine::create_qp`].
    pub fn create_xrc_target(&self, domain: u64) -> Result<Arc<QueuePair>, Error> {
        self.needs_packets("XRC")?;
        self.control(|c, _| c.fabric.insert_target(&mut c.endpoint, domain))
    }
    /// Destroys a shared receive queue.
    ///
    /// # Errors
    /// As [`verbs::Adapter::destroy_srq`].
    pub fn destroy_srq(&self, srq: SrqId) -> Result<(), Error> {
        self.control(|c, now| {
            c.fabric.forget_queue(now, &mut c.endpoint, srq);
            c.endpoint.adapter().destroy_srq(srq)
        })
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
        if self.is_iwarp {
            if init.kind != Kind::Reliable {
                return Err(Error::Unsupported("queue pairs that are not reliable"));
            }
            // Both ends agree on this number before they know of the queue pairs.
            (init.kind, init.max_rd_atomic) = (Kind::Ordered, verbs::MAX_RD_ATOMIC / 2);
        }
        self.control(|c, _| {
            let id = c.endpoint.adapter().create_qp(pd, init.clone())?;
            c.fabric.insert(id, pd, init).ok_or_else(|| {
                let _ = c.endpoint.adapter().destroy_qp(id);
                Error::Limit("queue pairs of a process")
            })
        })
    }
    /// Creates a datagram queue pair (UD), which each message tells where to go. It takes its receives from `srq`, if that is given.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Limit`] when the process has no numbers left.
    pub fn create_datagram_qp(
        &self,
        pd: PdId,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        (max_send, max_recv): (usize, usize),
        srq: Option<SrqId>,
    ) -> Result<Arc<QueuePair>, Error> {
        self.needs_packets("datagrams")?;
        self.control(|c, _| {
            if let Some(srq) = srq {
                c.endpoint.adapter().hold_srq(srq)?;
            }
            let sizes = (max_send, max_recv);
            let made = c.fabric.insert_datagram_pair(pd, (send.id, receive.id), sizes, srq);
            if let (None, Some(srq)) = (&made, srq) {
                c.endpoint.adapter().release_srq(srq);
            }
            made.ok_or(Error::Limit("queue pairs of a process"))
        })
    }
    /// Sets the Q_Key of a datagram queue pair, and whether it receives; `flush` ends all that is posted to it.
    pub fn set_datagram_qp(&self, qp: &QueuePair, q_key: Option<u32>, receives: bool, flush: bool) {
        self.control(|c, _| {
            c.fabric.set_datagram_pair(qp.number(), q_key, receives);
            if flush {
                c.fabric.flush_datagram_pair(qp.number());
            }
        });
    }
    /// Posts a datagram of at most [`MAX_DATAGRAM`] bytes. It completes when the other process has it, or it is lost.
    #[must_use]
    pub fn post_datagram(&self, qp: &QueuePair, wr: SendWr, to: Destination) -> bool {
        let posted = qp.push_send(wr, Towards::Host(to));
        self.announce(qp);
        posted
    }

    /// Makes a datagram queue pair a member of a group, or takes it out: it gets what is sent to [`EVERY_MEMBER`] at that address.
    ///
    /// # Errors
    /// [`Error::Invalid`] for other queue pairs and addresses, [`Error::Limit`], [`Error::NotFound`].
    pub fn set_member(&self, qp: &QueuePair, group: IpAddr, is_in: bool) -> Result<(), Error> {
        self.control(|c, _| match is_in {
            true => c.fabric.join(qp.number(), group),
            false => c.fabric.leave(qp.number(), group),
        })
    }
    /// Says that a process has members of a group, which [`Management::GroupWanted`] has asked for.
    pub fn note_member(&self, group: IpAddr, process: SocketAddr) {
        if process.port() != self.port || !lhio::host_addresses().iter().any(|(a, _)| *a == process.ip()) {
            self.control(|c, _| c.fabric.note_member(group, process));
        }
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
        self.connect_marked(qp, own, (peer, number), None)
    }

    /// The same, with the code point of the packets that this end sends, 0 to 63: rules of policies match it. `None`: the process's.
    ///
    /// # Errors
    /// As [`Engine::connect`].
    pub fn connect_marked(
        &self,
        qp: &QueuePair,
        own: IpAddr,
        (peer, number): (IpAddr, u32),
        dscp: Option<u8>,
    ) -> Result<(), Error> {
        let invalid = Error::Invalid("the peer's queue pair number has more than 24 bits");
        let process = address::address_of(peer, number).ok_or(invalid)?;
        let own = SocketAddr::new(own.to_canonical(), self.port);
        let remote = Remote { process, number };
        self.control(|c, now| {
            if c.is_dead {
                return Err(Error::Invalid("the network cannot be used any more"));
            }
            if let Some(e) = c.fabric.entries.get_mut(&qp.number()) {
                e.dscp = dscp;
            }
            c.fabric.set_remote(now, &mut c.endpoint, qp.number(), (own, remote))
        })
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
                for id in e.ids() {
                    let _ = c.endpoint.adapter().modify_qp(id, state);
                    c.endpoint.disconnect_qp(now, id);
                }
            }
            Ok(())
        })
    }
    /// Sets what the peer may do with memory, of what keys allow.
    pub fn set_access(&self, qp: &QueuePair, access: Access) {
        self.control(|c, _| {
            if let Some(e) = c.fabric.entries.get_mut(&qp.number()) {
                e.access = access;
                for id in e.ids() {
                    let _ = c.endpoint.adapter().set_qp_access(id, access);
                }
            }
        });
    }
    /// Sets how long sends of a queue pair are tried. At first: for ever, while the connection lives.
    pub fn set_retries(&self, qp: &QueuePair, retries: Retries) {
        self.control(|c, _| c.fabric.set_retries(qp.number(), retries));
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
        let posted = qp.push_send(wr, Towards::Peer);
        self.announce(qp);
        posted
    }
    /// As [`Engine::post_send`], of a queue pair made by [`Engine::create_xrc_initiator`]: for the receive queue of this number in the
    /// peer's process.
    #[must_use]
    pub fn post_send_to_queue(&self, qp: &QueuePair, wr: SendWr, queue: u32) -> bool {
        let posted = qp.push_send(wr, Towards::Queue(queue));
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

    /// What is called with each message for the connection manager, by the thread that runs the loop. It must not call the engine.
    pub fn listen_management(&self, f: impl Fn(Management) + Send + 'static) {
        self.control(|c, _| c.fabric.management = Some(Box::new(f)));
    }
    /// Sends a message of at most [`MAX_DATAGRAM`] bytes to the connection manager of another process, from this own address. What
    /// cannot be delivered is followed by [`Management::Gone`].
    pub fn send_management(&self, own: IpAddr, process: SocketAddr, message: &[u8]) {
        self.control(|c, now| c.fabric.send_management(now, &mut c.endpoint, (own, process), message));
    }

    /// Parts all queue pairs from their peers and closes connections: the process is about to end. Datagrams and messages of the
    /// connection manager that have not arrived yet are waited for, for up to a second: an adapter would have sent them long ago.
    pub fn close(&self) {
        if let Ok(mut poller) = lhio::poll::Poller::new() {
            for _ in 0..LINGERS_MS {
                if !self.control(|c, _| c.fabric.is_busy() && !c.is_dead) {
                    break;
                }
                let _ = poller.wait(&mut [], Some(base::Span::from_millis(1)));
            }
        }
        self.control(|c, now| c.fabric.close_all(now, &mut c.endpoint));
        self.control(|_, _| ());
        if let (true, Ok(mut poller)) = (self.is_iwarp, Poller::new()) {
            // What was completed may not be the system's yet.
            let turns = LINGER.as_nanos() / LINGER_TURN.as_nanos();
            let is_open = || self.control(|c, _| !c.is_dead && c.endpoint.streams() > 0);
            (0..turns).take_while(|_| is_open()).for_each(|_| drop(poller.wait(&mut [], Some(LINGER_TURN))));
        }
    }
}

/// How queue pairs take streams, if they do.
fn by_streams(options: &Options) -> Result<Option<fabric::ByStreams>, EngineError> {
    let plain = match options.transport.module {
        _ if !options.iwarp => return Ok(None),
        wire::Module::Aead => false,
        wire::Module::Crc32c => true,
        wire::Module::Integrity => return Err(EngineError::IntegrityByStream),
    };
    Ok(Some(fabric::ByStreams::new(plain, options.tcp_congestion.clone())))
}

/// A socket at a free port, looked for from one that differs between processes.
fn bind(start: u16, streams: Option<StreamOptions>) -> Result<(Driver, u16), EngineError> {
    let has_v6 = std::path::Path::new("/proc/net/if_inet6").exists();
    let any: IpAddr =
        if has_v6 { Ipv6Addr::UNSPECIFIED.into() } else { std::net::Ipv4Addr::UNSPECIFIED.into() };
    for n in 0..address::PORTS {
        let port = address::FIRST_PORT + start.wrapping_add(n) % address::PORTS;
        let mut options = DriverOptions::new(SocketAddr::new(any, port));
        (options.serves, options.lanes) = (true, Lanes::Count(1));
        options.streams.clone_from(&streams);
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
