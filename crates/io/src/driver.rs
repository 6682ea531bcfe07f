//! The loop that joins an endpoint to a socket: the only place where the protocol meets a clock.
//!
//! A turn takes in what has arrived, reads the clock, lets time pass, lets the application run, sends what
//! is to be sent, and sleeps until something happens. Nothing in a turn waits for anything else.
//!
//! There may be further sockets, each with a thread that seals, sends, receives and opens for the lanes that use it. The
//! protocol's state stays with the loop: what goes between them goes by ownership, through rings without locks.

mod growth;
mod loser;
mod team;
mod worker;

pub use growth::Lanes;

use crate::clock::Clock;
use crate::datapath::{Datapath, DatapathKind};
use crate::poll::{Poller, Source, Waker, sharpen_timers};
use crate::udp::{
    Blocked, MAX_TRAINS, RecvBatch, RecvMeta, SendBatch, UdpError, UdpOptions, UdpSocket, UdpStats,
};
use base::{Ecn, Rng, Span, Time};
use endpoint::{App, Endpoint, MAX_SOCKETS, Meta};
use growth::Growth;
use loser::Loser;
use std::net::SocketAddr;
use team::{Slots, Team};

/// Receive batches taken in before the loop sends: bounds how stale timers and feedback become.
const BATCHES_PER_TURN: usize = 4;
/// Send batches per turn, for the same reason.
const SENDS_PER_TURN: usize = 4;
/// What a loop does while there is nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Idle {
    /// It sleeps at once. A spin of 20 us made no difference to a stream of trains over loopback (26 Gbit/s with and
    /// without) and cost a sixth more CPU at 500 Mbit/s (one run), where packets come one by one.
    #[default]
    Sleep,
    /// It looks for this long after the last datagram, then sleeps: for answers that are expected soon.
    Spin(Span),
    /// It never sleeps, and keeps a core to itself.
    Poll,
}

/// Looks at the socket in a turn that has nothing else to do: some two microseconds, by which timers may be late, for
/// noticing an answer a part of a turn sooner.
const LOOKS: u32 = 8;

/// Pause after the device's queue was full (ENOBUFS): the socket does not tell when to go on.
const DEVICE_PAUSE: Span = Span::from_micros(500);

/// Why the loop ended early.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The socket is beyond use.
    #[error(transparent)]
    Udp(#[from] UdpError),
    /// Waiting failed.
    #[error("cannot wait for the network: {0}")]
    Wait(#[from] std::io::Error),
}

/// How a driver is made.
#[derive(Clone, Debug)]
pub struct DriverOptions {
    /// The way to the network.
    pub datapath: DatapathKind,
    /// The socket.
    pub udp: UdpOptions,
    /// What to do while there is nothing to do.
    pub idle: Idle,
    /// How many lanes, each with a thread, of a client's connections; of a server, how many it lends to its clients.
    pub lanes: Lanes,
    /// The processors to stay on: the loop's, and those of further threads in order. Fewer than threads: the others go
    /// where the system puts them.
    pub cores: Vec<usize>,
    /// Whether peers come to this address: then all sockets share it.
    pub serves: bool,
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
        }
    }

    /// Threads at most: more than there are processors bring nothing, unless asked for by number.
    fn most(&self) -> u16 {
        match (self.lanes, &self.datapath) {
            // What bypasses the kernel has its queues in one hand.
            (_, k) if !k.has_sockets() => 1,
            (Lanes::Count(n), _) => n.clamp(1, MAX_SOCKETS),
            (Lanes::Auto, _) => (growth::processors().len() as u16).clamp(1, AUTO_LANES),
        }
    }
}

/// Lanes that a connection gets by need at most.
const AUTO_LANES: u16 = 8;

/// A loop on its thread, its socket, and the threads of further sockets.
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
    /// When the newest packet arrived: time does not run backwards, whatever stamps say.
    arrived: Time,
    idle: Idle,
    /// When something last arrived or left.
    active: Time,
    /// How often to look again for what arrives before the next turn goes on.
    looks: u32,
    loser: Option<Loser>,
    options: DriverOptions,
    /// Threads at most, the loop's own included.
    most: u16,
    team: Team,
    growth: Growth,
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
    pub fn with(mut options: DriverOptions) -> Result<Driver, DriverError> {
        let most = options.most();
        let shares = options.serves && most > 1;
        if shares {
            // Sharing an address must be our doing: whoever has it already is not to be joined unasked.
            options.udp.bind = UdpSocket::open(&options.udp)?.local_addr();
            options.udp.reuse_port = true;
        }
        let socket = Datapath::open(&options.datapath, &options.udp)?;
        let growth = Growth::new(options.lanes, if options.serves { 1 } else { most });
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
            loser: None,
            options,
            most,
            team: Team::default(),
            growth,
        };
        if shares {
            driver.share_address(most)?;
        }
        Ok(driver)
    }

    /// Opens the further sockets of a server, and has the kernel give each the packets of its lanes.
    fn share_address(&mut self, sockets: u16) -> Result<(), DriverError> {
        let Some(first) = self.socket.socket() else { return Ok(()) };
        if let Err(error) = first.steer(sockets) {
            tracing::warn!(%error, "the kernel cannot steer packets to several sockets: all connections share one thread");
            return Ok(());
        }
        while self.team.len() + 1 < usize::from(sockets) {
            self.add_thread()?;
        }
        Ok(())
    }

    fn add_thread(&mut self) -> Result<(), DriverError> {
        let mut udp = self.options.udp.clone();
        if !self.options.serves {
            udp.bind.set_port(0);
        }
        let named = self.options.cores.get(self.team.len() + 1);
        // A new thread would else stay where the loop was told to stay.
        let cores = named.map_or_else(|| self.growth.processors().to_vec(), |c| vec![*c]);
        self.team.add(&self.options.datapath, &udp, cores, self.poller.waker())
    }

    /// As many threads as there are to be, and lanes that use them.
    fn grow(&mut self, now: Time, endpoint: &mut Endpoint) {
        if self.options.serves || self.most == 1 || now < self.growth.next() {
            return;
        }
        self.growth.look(now, endpoint);
        while self.team.len() + 1 < usize::from(self.growth.sockets()) {
            if let Err(error) = self.add_thread() {
                tracing::warn!(%error, "no further thread for this connection: it goes on with those it has");
                self.growth.limit_to(self.team.len() as u16 + 1);
            }
        }
        endpoint.use_sockets(self.team.len() as u16 + 1);
        self.growth.spread(now, endpoint);
    }

    /// Drops this share of the datagrams that arrive, below 1, from now on: to see what loss costs.
    pub fn lose(&mut self, share: f64, rng: Rng) {
        self.loser = (share > 0.0 && share < 1.0).then(|| Loser::new(share, rng));
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
        sharpen_timers();
        worker::stay_on(&self.options.cores[..self.options.cores.len().min(1)]);
        endpoint.use_sockets(self.team.len() as u16 + 1);
        loop {
            let mut busy = self.receive(endpoint)?;
            if self.team.len() > 0 {
                busy |= self.team.collect(self.clock.now(), endpoint, &mut self.loser);
            }
            let now = self.clock.now();
            endpoint.handle_timeout(now);
            app.drive(now, endpoint);
            self.grow(now, endpoint);
            let sent = self.transmit(now, endpoint)?;
            if app.finished() && endpoint.is_quiet() && self.outgoing.is_empty() && self.team.is_idle() {
                return Ok(());
            }
            if busy || sent || self.socket.pending() {
                continue;
            }
            self.looks = if self.looks_on(now) { LOOKS } else { 0 };
            if self.looks == 0 {
                self.wait(endpoint, app)?;
            }
        }
    }

    /// Whether to look again instead of sleeping. Looking is a turn of the loop: it costs the system call that would
    /// have to follow a wait anyway, and applications that watch memory see it.
    fn looks_on(&self, now: Time) -> bool {
        match self.idle {
            Idle::Sleep => false,
            Idle::Spin(span) => now.since(self.active) < span,
            Idle::Poll => true,
        }
    }

    /// Takes in what has arrived; true when there may be more.
    fn receive(&mut self, endpoint: &mut Endpoint) -> Result<bool, DriverError> {
        for _ in 0..BATCHES_PER_TURN {
            let mut n = self.socket.recv(&mut self.received)?;
            while n == 0 && self.looks > 0 {
                self.looks -= 1;
                std::hint::spin_loop();
                n = self.socket.recv(&mut self.received)?;
            }
            if n == 0 {
                return Ok(false);
            }
            let read = self.clock.now();
            self.active = read;
            for (m, data) in self.received.iter_mut() {
                // It counts from when the kernel took it in, however long this thread had to wait for a processor.
                self.arrived =
                    self.arrived.max(Time::from_nanos(read.as_nanos().saturating_sub(m.age.as_nanos())));
                let (at, meta) = (self.arrived, meta_of(&m));
                Loser::pass(&mut self.loser, data, m.stride, |data, _| {
                    endpoint.handle_train(at, meta, data, m.stride);
                });
            }
            if !self.received.is_full() {
                return Ok(false);
            }
            if self.received.is_single() {
                break;
            }
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
            let report = self.socket.send(&mut self.outgoing)?;
            self.active = now;
            most = MAX_TRAINS;
            if let Some(big) = report.too_big {
                endpoint.on_too_large(big.dst, big.segment);
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
        let alone = self.team.len() == 0;
        let mut more = false;
        while !alone || self.outgoing.len() < most {
            let mut slots = Slots { own: &mut self.outgoing, most, team: &mut self.team };
            let Some(t) = endpoint.poll_trains(now, &mut slots) else {
                more = false;
                break;
            };
            more = true;
            match t.socket {
                0 => self.outgoing.commit(team::meta(&t), t.len)?,
                _ => self.team.commit(&t)?,
            }
        }
        self.team.hand_over();
        Ok(more || self.outgoing.len() == most)
    }

    fn wait(&mut self, endpoint: &Endpoint, app: &dyn App) -> Result<(), DriverError> {
        let mut at = match (endpoint.next_timeout(), app.next_timeout()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let now = self.clock.now();
        if now < self.paused_until {
            at = Some(self.paused_until);
        } else if self.full {
            // Only room in the socket or the network can change anything soon.
            at = at.map(|t| t.max(now + DEVICE_PAUSE));
        }
        let timeout = at.map(|t| t.since(now));
        let room = self.socket.room();
        let mut sources = [Source::readable(&self.socket), Source::new(&room, true)];
        self.poller.wait(&mut sources[..1 + usize::from(self.full)], timeout)?;
        Ok(())
    }
}

/// What the protocol is to know of a train that has arrived.
fn meta_of(m: &RecvMeta) -> Meta {
    Meta { remote: m.remote, local: m.local, marked: m.ecn == Ecn::Ce }
}
