//! The event loop that joins an endpoint to its sockets and to the clock.
//!
//! A turn takes in what has arrived, reads the clock, lets time pass, lets the application run, sends what
//! is to be sent, and sleeps until something happens. Nothing in a turn waits for anything else.
//!
//! There may be further sockets, each with a thread that seals, sends, receives and opens for the lanes that use it. The
//! protocol's state stays with the loop: what goes between them goes by ownership, through rings without locks.

mod affinity;
mod connected_peer;
mod lane_controller;
mod packet_loss;
mod single_messages;
mod socket_pool;
mod stepwise;
mod worker;
mod workers;

pub use lane_controller::Lanes;
pub use stepwise::{Descriptors, Step, Wait};

use crate::clock::Clock;
use crate::datapath::{Datapath, DatapathKind};
use crate::icmp::IcmpProbe;
use crate::network::NetworkMonitor;
use crate::poll::{Poller, Source, Waker, sharpen_timers};
use crate::tcp::{MAX_WAITED, StreamOptions, Streams, WaitSource, check_congestion};
use crate::udp::{Blocked, MAX_TRAINS, RecvBatch, RecvMeta, SendBatch, UdpError, UdpOptions, UdpStats};
use affinity::CpuAffinity;
use base::{Rng, Span, Time};
use connected_peer::ConnectedPeer;
use endpoint::{App, DatagramInfo, Endpoint, MAX_SOCKETS, WakeCoalescer};
use lane_controller::LaneController;
use packet_loss::LossInjector;
use single_messages::SingleMessages;
use std::net::SocketAddr;
use workers::{SendSlots, Workers};

/// Receive batches taken in before the loop sends: bounds how stale timers and feedback become.
const BATCHES_PER_TURN: usize = 4;
/// Send batches per turn, for the same reason.
const SENDS_PER_TURN: usize = 4;
/// What the loop does while it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Idle {
    /// It sleeps at once. A spin of 20 us made no difference to a stream of trains over loopback (26 Gbit/s with and
    /// without) and cost a sixth more CPU at 500 Mbit/s (one run), where packets come one by one.
    #[default]
    Sleep,
    /// It polls for this long after the last datagram, then sleeps: for responses that are expected soon.
    Spin(Span),
    /// It never sleeps, and keeps a core to itself.
    Poll,
}

/// Polls of the socket in a turn that has nothing else to do: some two microseconds, by which timers may be late, to
/// notice a response a part of a turn sooner. A stream that is alone is polled four times instead of each further
/// poll, which makes it some five microseconds.
const SPIN_POLLS: u32 = 8;

/// A single datagram of this size is likely part of a larger message: the socket is polled for the rest before the next turn.
const PART: usize = 16 << 10;

/// An attached socket is detached when nothing arrived for this long: the peer may send from another address now.
const DETACH_AFTER: Span = Span::from_millis(5);

/// Turns in which the UDP socket is not polled while all connections are streams, unless a wait reports it readable.
/// A spinning loop takes some 1.3 ms for them at most, where one stream alone is polled in each turn.
const MAX_SKIPPED_POLLS: u32 = 256;

/// Turns without a wait after which all streams are polled: some keep the loop busy, and the others are not reported.
const MAX_TURNS_WITHOUT_WAIT: u32 = 4;

/// Pause after the device's queue was full (ENOBUFS): the socket does not tell when to go on.
const DEVICE_PAUSE: Span = Span::from_micros(500);

/// Ports that are tried until one is free for datagrams and for TCP, where the system is to choose.
const PORTS_TRIED: u32 = 16;

/// The result of a turn of the loop.
enum Turn {
    /// There may be more to do.
    Busy,
    /// There was nothing to do at this time.
    Idle(Time),
    /// The application has finished, and all connections have closed.
    Finished,
}

/// Why the loop ended early.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The socket is beyond use.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// Nobody can connect by TCP.
    #[error("cannot take connections by TCP at {at}, for iWARP: {source}")]
    Listen {
        /// The address.
        at: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Waiting failed.
    #[error("cannot wait for the network: {0}")]
    Wait(#[from] std::io::Error),
}

/// Options of a driver.
#[derive(Clone, Debug)]
pub struct DriverOptions {
    /// How packets reach the network: sockets, io_uring or AF_XDP.
    pub datapath: DatapathKind,
    /// The socket.
    pub udp: UdpOptions,
    /// What to do while there is nothing to do.
    pub idle: Idle,
    /// Number of lanes, each with a thread: of a client's connections, or at most for each client of a server.
    pub lanes: Lanes,
    /// The processors to stay on: the loop's, and those of further threads in order. Fewer than threads: the others go
    /// where the system puts them.
    pub cores: Vec<usize>,
    /// Whether peers connect to this address, as to a server's: then all sockets share it.
    pub serves: bool,
    /// Use the threads of further sockets even where no processor is idle.
    pub always: bool,
    /// Takes clients by TCP, for iWARP, at the same address and port number.
    pub streams: Option<StreamOptions>,
}

impl DriverOptions {
    /// The usual choice for a client at `bind`.
    pub fn new(bind: SocketAddr) -> DriverOptions {
        DriverOptions {
            datapath: DatapathKind::default(),
            udp: UdpOptions::new(bind),
            idle: Idle::default(),
            lanes: Lanes::default(),
            cores: Vec::new(),
            serves: false,
            always: false,
            streams: None,
        }
    }

    /// Threads at most: more than there are processors bring nothing, unless asked for by number.
    fn most(&self) -> u16 {
        match (self.lanes, &self.datapath) {
            // AF_XDP queues are served by one thread.
            (_, k) if !k.has_sockets() => 1,
            (Lanes::Count(n), _) => n.clamp(1, MAX_SOCKETS),
            (Lanes::Auto, _) => (lane_controller::processors().len() as u16).clamp(1, AUTO_LANES),
        }
    }
}

/// Most lanes of a connection where the number is automatic.
const AUTO_LANES: u16 = 8;

/// An event loop with its socket and its worker threads.
#[derive(Debug)]
pub struct Driver {
    socket: Datapath,
    poller: Poller,
    clock: Clock,
    received: RecvBatch,
    outgoing: SendBatch,
    /// The socket's buffer is full: wait for room.
    full: bool,
    paused_until: Time,
    /// When the newest packet arrived. Kernel time stamps before it are ignored, so that time does not run backwards.
    arrived: Time,
    idle: Idle,
    /// When something last arrived or left.
    active: Time,
    /// Further polls of the socket before the next turn continues.
    looks: u32,
    /// The last turn found nothing to do.
    was_idle: bool,
    /// When the only message of this turn was read; `None` if there were none or several.
    single_at: Option<Time>,
    /// Detects traffic of single messages (request and response).
    single_messages: SingleMessages,
    /// The connected socket of a server for its only client with such traffic.
    connected_peer: ConnectedPeer,
    loss: Option<LossInjector>,
    options: DriverOptions,
    /// Threads at most, the loop's own included.
    most: u16,
    workers: Workers,
    lane_controller: LaneController,
    /// Watches addresses and routes, where the socket is bound to the unspecified address.
    network_monitor: Option<NetworkMonitor>,
    affinity: CpuAffinity,
    /// The processors that the loop is bound to.
    bound: Vec<usize>,
    /// Connections by TCP.
    streams: Streams,
    /// Turns since the socket was looked at.
    skipped_polls: u32,
    /// It has something to read.
    told: bool,
    /// Turns since streams were waited for, or looked at without.
    turns_without_wait: u32,
    /// Of the kernel's socket; other datapaths have their own ways to gather what arrives.
    wake_coalescer: Option<WakeCoalescer>,
    /// While a client waits for the first answer.
    icmp_probe: Option<IcmpProbe>,
}

impl Driver {
    /// Opens a socket on `bind` (port 0 lets the system choose).
    ///
    /// # Errors
    /// The address cannot be used, or the system lacks what is needed.
    pub fn bind(bind: SocketAddr) -> Result<Driver, DriverError> {
        Driver::with(DriverOptions::new(bind))
    }

    /// With a way to the network, socket options and a manner of waiting of one's own.
    ///
    /// # Errors
    /// As [`Driver::bind`].
    pub fn with(options: DriverOptions) -> Result<Driver, DriverError> {
        // A port that the system chose for datagrams may be somebody's by TCP.
        for _ in 1..PORTS_TRIED {
            match Driver::open(options.clone()) {
                Err(DriverError::Listen { at, source })
                    if options.udp.bind.port() == 0 && source.kind() == std::io::ErrorKind::AddrInUse =>
                {
                    tracing::debug!(%at, "taken by TCP: another port");
                }
                made => return made,
            }
        }
        Driver::open(options)
    }

    fn open(mut options: DriverOptions) -> Result<Driver, DriverError> {
        crate::numa::warn_of_remote_adapters(&options.cores);
        let most = options.most();
        options.udp.keep_port |= !options.serves && options.idle != Idle::Sleep;
        let socket = Datapath::open(&options.datapath, &options.udp)?;
        let growth = LaneController::new(options.lanes, most, &options.cores, options.always);
        let place = CpuAffinity::new(&options.cores[..options.cores.len().min(most.into())], options.serves);
        let observer = NetworkMonitor::new(socket.local_addr(), options.udp.dual_stack);
        let naps = socket.socket().map(|s| WakeCoalescer::new(s.recv_buffer()));
        let mut driver = Driver {
            received: socket.recv_batch(),
            socket,
            poller: Poller::new()?,
            clock: Clock::new(),
            outgoing: SendBatch::new(),
            full: false,
            paused_until: Time::ZERO,
            arrived: Time::ZERO,
            idle: options.idle,
            active: Time::ZERO,
            looks: 0,
            was_idle: false,
            single_at: None,
            single_messages: SingleMessages::new(),
            connected_peer: ConnectedPeer::new(),
            loss: None,
            options,
            most,
            workers: Workers::default(),
            lane_controller: growth,
            network_monitor: observer,
            affinity: place,
            bound: Vec::new(),
            streams: Streams::new()?,
            skipped_polls: 0,
            told: true,
            turns_without_wait: 0,
            wake_coalescer: naps,
            icmp_probe: None,
        };
        if let Some(o) = driver.options.streams.clone() {
            driver.listen(&o)?;
        }
        if driver.has_socket_pool() && driver.options.always {
            driver.open_socket_pool();
        }
        Ok(driver)
    }

    /// Takes clients by TCP at the socket's own address.
    fn listen(&mut self, o: &StreamOptions) -> Result<(), DriverError> {
        let at = self.socket.local_addr();
        self.streams.listen(at, o).map_err(|source| DriverError::Listen { at, source })
    }

    fn add_thread(&mut self) -> Result<(), DriverError> {
        let udp = self.pool_socket_options();
        let named = self.options.cores.get(self.workers.len() + 1);
        // A new thread would else stay where the loop was told to stay.
        let cores = named.map_or_else(|| self.lane_controller.processors().to_vec(), |c| vec![*c]);
        self.workers.add(&self.options.datapath, &udp, cores, self.poller.waker())
    }

    /// Adjusts the number of worker threads and of the lanes that use them.
    fn adjust_lanes(&mut self, now: Time, endpoint: &mut Endpoint) {
        if self.most == 1 {
            return;
        }
        if self.lane_controller.uses_loop_only() {
            self.affinity.update(now);
            self.apply_affinity();
        }
        if now < self.lane_controller.next() {
            return;
        }
        self.lane_controller.measure(now, endpoint, &self.workers.threads());
        if self.options.serves {
            self.adjust_socket_pool(endpoint);
        } else {
            while self.workers.len() + 1 < usize::from(self.lane_controller.sockets()) {
                if let Err(error) = self.add_thread() {
                    tracing::warn!(%error, "no further thread for this connection: it goes on with those it has");
                    self.lane_controller.limit_to(self.workers.len() as u16 + 1);
                }
            }
            endpoint.publish_openers(self.workers.len() > 0);
            endpoint.use_sockets(self.sockets());
            self.lane_controller.assign_lanes(now, endpoint);
        }
        endpoint.set_spare_sockets(self.lane_controller.spare());
        self.apply_affinity();
    }

    /// Binds the loop's thread to its processor; while it does all the work alone, to the best of all named ones.
    fn apply_affinity(&mut self) {
        let named = &self.options.cores[..self.options.cores.len().min(self.most.into())];
        let on =
            if self.lane_controller.uses_loop_only() { self.affinity.core() } else { named.first().copied() };
        let cores = on.as_ref().map_or(named, core::slice::from_ref);
        // One by one, and not by `==`, which asks the C library: this runs with every turn, most often without a core on
        // either side, and glibc's `memcmp` takes 140 ns for no bytes where a processor has AVX-512 (a masked load from the
        // address that stands for none needs the processor's microcode).
        if !self.bound.iter().eq(cores) {
            worker::set_affinity(cores);
            self.bound = cores.to_vec();
        }
    }

    /// Drops this share (below 1) of arriving datagrams from now on, to measure the effect of loss.
    pub fn inject_loss(&mut self, share: f64, rng: Rng) {
        self.loss = (share > 0.0 && share < 1.0).then(|| LossInjector::new(share, rng));
    }

    /// The address in use.
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }
    /// Wakes the loop from other threads.
    pub fn waker(&self) -> Waker {
        self.poller.waker()
    }
    /// Now, by the clock that the endpoint is driven with.
    pub fn now(&self) -> Time {
        self.clock.now()
    }
    /// Counters of the socket.
    pub fn socket_stats(&self) -> UdpStats {
        self.socket.stats()
    }

    /// Runs until the application has finished and all connections have closed.
    ///
    /// # Errors
    /// The socket or the system's waiting is beyond use.
    pub fn run(&mut self, endpoint: &mut Endpoint, app: &mut dyn App) -> Result<(), DriverError> {
        self.start(endpoint);
        loop {
            match self.turn(endpoint, app)? {
                Turn::Busy => continue,
                Turn::Finished => return Ok(()),
                Turn::Idle(now) => self.rest(now, endpoint, app)?,
            }
        }
    }

    /// Prepares the calling thread, and tells the endpoint what there is.
    fn start(&mut self, endpoint: &mut Endpoint) {
        sharpen_timers();
        // It may be another thread than the last time.
        self.bound.clear();
        self.apply_affinity();
        endpoint.publish_openers(self.workers.len() > 0);
        endpoint.use_sockets(self.sockets());
        endpoint.set_spare_sockets(self.lane_controller.spare());
        endpoint.set_has_congestion(|name| check_congestion(name).map_err(|e| e.to_string()));
    }

    /// One turn, which waits for nothing.
    fn turn(&mut self, endpoint: &mut Endpoint, app: &mut dyn App) -> Result<Turn, DriverError> {
        self.single_at = None;
        let looked = self.should_poll_socket(endpoint);
        let mut busy = looked && self.receive(endpoint)?;
        // The time of a lone message is asked once: all that came since is what was done with it.
        let mut now = self.single_at.unwrap_or_else(|| self.clock.now());
        if self.has_streams(endpoint) {
            // Who has something else to do, or to look at, looks once.
            let looks = if self.was_idle && !looked { self.looks } else { self.looks.min(1) };
            let looks = looks.max(u32::from(self.turns_without_wait >= MAX_TURNS_WITHOUT_WAIT));
            self.turns_without_wait = if looks > 0 { 0 } else { self.turns_without_wait + 1 };
            busy |= self.streams.receive(now, endpoint, looks)?;
            if self.streams.take_has_received() {
                self.active = now;
            }
        }
        if self.workers.len() > 0 {
            busy |= self.workers.collect(now, endpoint, &mut self.loss);
            now = self.clock.now();
        }
        endpoint.handle_timeout(now);
        // Before the application's turn, in which it learns of it.
        self.check_icmp(now, endpoint);
        app.drive(now, endpoint);
        if let Some(o) = &mut self.network_monitor {
            o.turn(now, endpoint);
        }
        self.adjust_lanes(now, endpoint);
        // Without connections by datagrams, only what came by them is answered.
        let answers = looked || self.full || endpoint.has_datagrams() || !self.outgoing.is_empty();
        let mut sent = answers && self.transmit(now, endpoint)?;
        if self.has_streams(endpoint) {
            sent |= self.streams.transmit(now, endpoint);
        }
        if let Some(read) = self.single_at {
            self.on_single_message(read, endpoint);
        }
        if app.finished() && endpoint.is_quiet() && self.outgoing.is_empty() && self.workers.is_idle() {
            return Ok(Turn::Finished);
        }
        self.was_idle = !(busy || sent || self.socket.pending() || endpoint.needs_app());
        Ok(if self.was_idle { Turn::Idle(now) } else { Turn::Busy })
    }

    /// Looks on for a while, or waits, after a turn that found nothing to do.
    fn rest(&mut self, now: Time, endpoint: &mut Endpoint, app: &dyn App) -> Result<(), DriverError> {
        let attached = self.socket.is_attached() || self.connected_peer.is_open();
        if attached && now.since(self.arrived) > DETACH_AFTER {
            self.detach();
        }
        self.looks = if self.should_spin(now) { SPIN_POLLS } else { 0 };
        if self.looks == 0 {
            self.detach();
            // What waits at a companion is taken first, by the next turn: a wait would not tell of it.
            self.told |= self.connected_peer.is_open();
            if !self.connected_peer.is_open() {
                self.wait(endpoint, app)?;
            }
        }
        Ok(())
    }

    /// Handles ICMP errors that tell a connecting client that nothing will answer.
    fn check_icmp(&mut self, now: Time, endpoint: &mut Endpoint) {
        if let Some(remote) = endpoint.take_connect_target().filter(|_| !self.options.serves) {
            self.icmp_probe = IcmpProbe::begin(remote, self.poller.waker());
        }
        let Some(icmp_probe) = &self.icmp_probe else { return };
        if let Some((remote, why)) = icmp_probe.found() {
            self.icmp_probe = None;
            endpoint.on_unreachable(now, remote, why);
        } else if !endpoint.is_unanswered(icmp_probe.remote()) {
            self.icmp_probe = None;
        }
    }

    /// Whether to poll again instead of sleeping. A poll is a turn of the loop: it costs the system call that would
    /// follow a wait anyway, and applications that watch memory run.
    fn should_spin(&self, now: Time) -> bool {
        match self.idle {
            Idle::Sleep => false,
            Idle::Spin(span) => now.since(self.active) < span,
            Idle::Poll => true,
        }
    }

    /// Whether there are streams, or are to be.
    fn has_streams(&self, endpoint: &Endpoint) -> bool {
        self.options.streams.is_some() || !self.streams.is_empty() || endpoint.has_streams_ready()
    }

    /// Whether to poll the UDP socket in this turn. While all connections are streams, polling it each time would
    /// cost each message a system call.
    fn should_poll_socket(&mut self, endpoint: &Endpoint) -> bool {
        let looks = endpoint.has_datagrams()
            || self.streams.is_empty()
            || self.told
            || self.skipped_polls >= MAX_SKIPPED_POLLS;
        self.told = false;
        self.skipped_polls = if looks { 0 } else { self.skipped_polls + 1 };
        looks
    }

    /// Single messages arrive repeatedly while the loop spins: makes the socket lean, and attaches it to the only
    /// peer, or opens a connected socket for the peer that sends them. Each saves half a microsecond.
    fn on_single_message(&mut self, now: Time, endpoint: &Endpoint) {
        if !self.single_messages.on_single() || self.idle == Idle::Sleep {
            return;
        }
        if self.single_messages.should_become_lean(now) {
            self.socket.set_lean(true);
        }
        if self.single_messages.is_lean() {
            self.received.expect_plain();
        }
        let last = self.received.iter_mut().last().map(|(m, _)| (m.remote, m.local));
        let Some((remote, Some(local))) = last else { return };
        if self.may_open_connected() && self.single_messages.is_lean() {
            let first = self.socket.socket();
            if first.is_some_and(|first| self.connected_peer.on_single_message(now, (remote, local), first)) {
                // The first ones are asked for their senders for sure, see `RecvBatch::expect_plain`: in the midst of being
                // connected, a socket may be given what is not its peer's.
                self.received.expect_classes();
            }
        } else if self.options.udp.keep_port
            && !self.socket.is_attached()
            && endpoint.only_remote() == Some(remote)
        {
            self.socket.attach(remote, local);
        }
    }

    /// Whether a connected socket may be opened. Packets are steered to sockets that share an address by their order
    /// of opening, which another socket would disturb.
    fn may_open_connected(&self) -> bool {
        self.options.serves && !self.options.udp.reuse_port && self.workers.len() == 0
    }

    /// Receives from the socket or the connected socket.
    fn poll_socket(&mut self) -> Result<usize, UdpError> {
        match self.connected_peer.receive(&mut self.received)? {
            Some(n) => Ok(n),
            None => self.socket.recv(&mut self.received),
        }
    }

    fn detach(&mut self) {
        self.end_single_messages();
        self.socket.detach();
    }

    /// Messages do not arrive one at a time any more.
    fn end_single_messages(&mut self) {
        self.single_messages.end();
        self.connected_peer.leave();
        self.received.expect_classes();
        if self.single_messages.should_end_lean() {
            self.socket.set_lean(false);
        }
    }

    /// Takes in what has arrived; true when there may be more.
    fn receive(&mut self, endpoint: &mut Endpoint) -> Result<bool, DriverError> {
        for _ in 0..BATCHES_PER_TURN {
            let mut n = self.poll_socket()?;
            while n == 0 && self.looks > 0 && self.streams.is_empty() {
                self.looks -= 1;
                n = self.poll_socket()?;
            }
            if n == 0 {
                return Ok(false);
            }
            let read = self.clock.now();
            self.active = read;
            if let Some(naps) = &mut self.wake_coalescer {
                naps.on_received(read, n, self.received.bytes());
            }
            let mut train = false;
            for (m, data) in self.received.iter_mut() {
                train |= m.stride < m.len;
                // It counts from when the kernel took it in, however long this thread had to wait for a processor.
                self.arrived =
                    self.arrived.max(Time::from_nanos(read.as_nanos().saturating_sub(m.age.as_nanos())));
                let waited =
                    self.wake_coalescer.as_ref().map_or(m.age, |naps| naps.queueing_delay(read, m.age));
                let (at, meta) = (self.arrived, meta_of(&m, waited));
                LossInjector::pass(&mut self.loss, data, m.stride, |data, _| {
                    endpoint.handle_train(at, meta, data, m.stride);
                });
            }
            let one = self.received.trains() == 1 && !train;
            // One that was found by a look for many came alone, too.
            if train || !one && self.single_messages.on_several() {
                self.end_single_messages();
            }
            let alone = one && self.received.is_single();
            if alone && self.received.bytes() < PART {
                // What it says of those to come has time until it is answered.
                self.single_at = Some(read);
                break;
            }
            if alone {
                self.on_single_message(read, endpoint);
            }
            if !self.received.is_full() {
                return Ok(false);
            }
            if self.received.is_single() && !alone {
                break;
            }
            self.looks = 0;
        }
        Ok(true)
    }

    /// Sends what is to be sent; true when there may be more.
    fn transmit(&mut self, now: Time, endpoint: &mut Endpoint) -> Result<bool, DriverError> {
        if now < self.paused_until {
            return Ok(false);
        }
        // The first train leaves alone, so that the other end works on it while the next ones are built.
        let mut most = 1;
        for _ in 0..SENDS_PER_TURN {
            endpoint.resume();
            let more = self.build(now, most, endpoint)?;
            if self.outgoing.is_empty() {
                self.full = false;
                return Ok(false);
            }
            let report = match self.connected_peer.can_send(&self.outgoing) {
                Some(companion) => companion.send(&mut self.outgoing)?,
                None => self.socket.send(&mut self.outgoing)?,
            };
            self.active = now;
            most = MAX_TRAINS;
            if let Some(big) = report.too_big {
                endpoint.on_too_large(now, big.dst, big.segment);
            }
            if let Some(o) = self.network_monitor.as_mut().filter(|_| report.no_route) {
                o.on_send_failed(now);
            }
            self.full = report.blocked == Blocked::Buffer;
            match report.blocked {
                Blocked::No if more => {}
                Blocked::No | Blocked::Buffer => return Ok(false),
                Blocked::Device => {
                    self.paused_until = now + DEVICE_PAUSE;
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Builds trains, `most` for the own socket and as many as the threads take; true when the own socket may get more.
    fn build(&mut self, now: Time, most: usize, endpoint: &mut Endpoint) -> Result<bool, DriverError> {
        let alone = self.workers.len() == 0;
        let mut more = false;
        while !alone || self.outgoing.len() < most {
            let mut slots = SendSlots { own: &mut self.outgoing, most, workers: &mut self.workers };
            let Some(t) = endpoint.poll_trains(now, &mut slots) else {
                more = false;
                break;
            };
            more = true;
            match self.workers.has(t.socket) {
                false => self.outgoing.commit(workers::meta(&t), t.len)?,
                true => self.workers.commit(&t)?,
            }
        }
        self.workers.hand_over();
        Ok(more || self.outgoing.len() == most)
    }

    /// When the endpoint, the application or the socket's queue is to be looked at again.
    fn deadline(&self, now: Time, endpoint: &Endpoint, app: &dyn App) -> Option<Time> {
        let at = endpoint.next_timeout().into_iter().chain(app.next_timeout()).min();
        if now < self.paused_until {
            return Some(self.paused_until);
        }
        // Only room in the socket or the network can change anything soon.
        if self.full { at.map(|t| t.max(now + DEVICE_PAUSE)) } else { at }
    }

    fn wait(&mut self, endpoint: &mut Endpoint, app: &dyn App) -> Result<(), DriverError> {
        self.streams.release_memory(endpoint);
        let now = self.clock.now();
        let at = self.deadline(now, endpoint, app);
        // A look at the network waits for nothing but its time.
        let look = self.network_monitor.as_ref().and_then(|o| o.next_timeout());
        let nap =
            self.wake_coalescer.as_mut().and_then(|naps| naps.next_delay(now, endpoint.max_receive_delay()));
        let end = nap.map(|nap| now + nap);
        let gathered = self.streams.set_low_watermarks(now, endpoint);
        let timeout = at.into_iter().chain(look).chain(end).chain(gathered).min().map(|t| t.since(now));
        let room = self.socket.room();
        let news = match self.network_monitor.as_ref().and_then(NetworkMonitor::news) {
            Some(news) => Source::readable(news),
            None => Source::choose(&self.socket, false, false),
        };
        let room = Source::choose(&room, false, self.full);
        let ranges = self.streams.take_ranges();
        // Of constant size: this runs with every turn that sleeps.
        let mut sources = [room; 3 + MAX_WAITED];
        (sources[0], sources[1]) = (Source::choose(&self.socket, nap.is_none(), false), news);
        let (mut of, mut n) = ([WaitSource::Many; MAX_WAITED], 0);
        self.streams.sources(endpoint, |source, waited| {
            (sources[3 + n], of[n]) = (source, waited);
            n += 1;
        });
        let first = self.streams.prepare_read(ranges, now, endpoint);
        self.poller.wait(&mut sources[..3 + n], timeout)?;
        let mut ready = [(false, false); 3 + MAX_WAITED];
        for (ready, s) in ready.iter_mut().zip(&sources[..3 + n]) {
            *ready = (s.readable, s.writable);
        }
        self.told = ready[0].0 || nap.is_some();
        let told = ready[1].0;
        if nap.is_some() {
            self.received.expect_many();
        }
        self.turns_without_wait = 0;
        let now = if gathered.is_some() { self.clock.now() } else { now };
        of.into_iter().zip(&ready[3..]).take(n).for_each(|(of, ready)| self.streams.on_wait(now, of, *ready));
        self.streams.read_prepared(first);
        if let Some(o) = self.network_monitor.as_mut().filter(|_| told) {
            o.on_news();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

/// What the protocol is to know of a train that has arrived.
fn meta_of(m: &RecvMeta, waited: Span) -> DatagramInfo {
    DatagramInfo { remote: m.remote, local: m.local, ecn: m.ecn, waited }
}
