//! The loop that joins an endpoint to a socket: the only place where the protocol meets a clock.
//!
//! A turn takes in what has arrived, reads the clock, lets time pass, lets the application run, sends what
//! is to be sent, and sleeps until something happens. Nothing in a turn waits for anything else.

use crate::clock::Clock;
use crate::datapath::{Datapath, DatapathKind};
use crate::poll::{Poller, Source, Waker, sharpen_timers};
use crate::udp::{Blocked, MAX_TRAINS, RecvBatch, SendBatch, SendMeta, UdpError, UdpOptions, UdpStats};
use base::{Ecn, Rng, Span, Time};
use endpoint::{App, Endpoint, Meta};
use std::net::SocketAddr;

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

/// Loses datagrams that have arrived, to see what loss costs.
#[derive(Debug)]
struct Loser {
    rng: Rng,
    share: f64,
    /// Datagrams that still pass.
    passing: u64,
}

impl Loser {
    fn new(share: f64, rng: Rng) -> Loser {
        let mut l = Loser { rng, share, passing: 0 };
        l.draw();
        l
    }
    /// How many pass before the next is lost: geometrically distributed.
    fn draw(&mut self) {
        let u = 1.0 - self.rng.unit();
        self.passing = (u.ln() / (1.0 - self.share).ln()) as u64;
    }
    /// The first piece of `train` that passes whole: its length, and that of what is lost behind it.
    fn cut(&mut self, train: &[u8], stride: usize) -> (usize, usize) {
        let all = train.len().div_ceil(stride.max(1)) as u64;
        if self.passing >= all {
            self.passing -= all;
            return (train.len(), 0);
        }
        let pass = self.passing as usize * stride;
        self.draw();
        (pass, stride.min(train.len() - pass))
    }
}

/// One socket and one thread's loop.
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
    loser: Option<Loser>,
}

impl Driver {
    /// Opens a socket on `bind` (port 0 lets the system choose).
    ///
    /// # Errors
    /// The address cannot be used, or the system lacks what is needed.
    pub fn bind(bind: SocketAddr) -> Result<Driver, DriverError> {
        Driver::with(&DatapathKind::default(), &UdpOptions::new(bind), Idle::default())
    }

    /// With a way to the network, socket options and a manner of waiting of one's own.
    ///
    /// # Errors
    /// As [`Driver::bind`].
    pub fn with(kind: &DatapathKind, options: &UdpOptions, idle: Idle) -> Result<Driver, DriverError> {
        let socket = Datapath::open(kind, options)?;
        let received = socket.recv_batch();
        Ok(Driver {
            socket,
            poller: Poller::new()?,
            clock: Clock::new(),
            received,
            outgoing: SendBatch::new(),
            full: false,
            paused_until: Time::ZERO,
            arrived: Time::ZERO,
            idle,
            active: Time::ZERO,
            loser: None,
        })
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
        loop {
            let busy = self.receive(endpoint)?;
            let now = self.clock.now();
            endpoint.handle_timeout(now);
            app.drive(now, endpoint);
            let sent = self.transmit(now, endpoint)?;
            if app.finished() && endpoint.is_quiet() && self.outgoing.is_empty() {
                return Ok(());
            }
            if busy || sent || self.socket.pending() {
                continue;
            }
            if self.looks_on(now) {
                std::hint::spin_loop();
            } else {
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
            let n = self.socket.recv(&mut self.received)?;
            if n == 0 {
                return Ok(false);
            }
            let read = self.clock.now();
            self.active = read;
            for (m, data) in self.received.iter_mut() {
                // It counts from when the kernel took it in, however long this thread had to wait for a processor.
                self.arrived =
                    self.arrived.max(Time::from_nanos(read.as_nanos().saturating_sub(m.age.as_nanos())));
                let meta = Meta { remote: m.remote, local: m.local, marked: m.ecn == Ecn::Ce };
                let mut rest = data;
                while let Some(loser) = &mut self.loser {
                    let (pass, lost) = loser.cut(rest, m.stride);
                    let (train, behind) = rest.split_at_mut(pass);
                    endpoint.handle_train(self.arrived, meta, train, m.stride);
                    rest = &mut behind[lost..];
                    if rest.is_empty() {
                        break;
                    }
                }
                if !rest.is_empty() {
                    endpoint.handle_train(self.arrived, meta, rest, m.stride);
                }
            }
            if n < self.received.capacity() {
                return Ok(false);
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
            let mut more = false;
            for _ in 0..most {
                let Some(slot) = self.outgoing.slot() else { break };
                more = false;
                let Some(t) = endpoint.poll_transmit(now, slot) else { break };
                let ecn = if t.ecn { Ecn::Ect0 } else { Ecn::NotEct };
                self.outgoing
                    .commit(SendMeta { dst: t.remote, src: t.local, ecn, segment: t.segment }, t.len)?;
                more = true;
            }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_asked_for_is_lost_one_datagram_at_a_time() {
        let mut l = Loser::new(0.01, Rng::from_u64(1));
        let (mut passed, mut lost) = (0, 0);
        for n in 0..20_000 {
            // Trains of 1 to 44 datagrams of 100 bytes, the last one of 7.
            let train = vec![0; n % 44 * 100 + 7];
            let mut rest = &train[..];
            while !rest.is_empty() {
                let (pass, gone) = l.cut(rest, 100);
                (passed, lost) = (passed + pass.div_ceil(100), lost + usize::from(gone > 0));
                assert!(
                    gone == 0 && pass == rest.len() || gone == 100 || gone == 7 && pass + 7 == rest.len()
                );
                rest = &rest[pass + gone..];
            }
        }
        let share = lost as f64 / (passed + lost) as f64;
        assert!((0.009..0.011).contains(&share), "{share}");
    }
}
