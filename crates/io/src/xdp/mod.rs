//! AF_XDP datapath: sends and receives datagrams past the kernel's network stack.
//!
//! A small program in the interface's receive path (`bpf`) hands packets to our port to sockets that share memory with
//! the kernel (`socket`, `ring`); headers are written and read here (`frame`), and where packets go next is asked of
//! the kernel's tables (`next_hops`, `crate::netlink`). What does not fit into that picture goes through a socket of the kernel's UDP on
//! the same port, the fallback socket: it owns the port, gets what the program passes (other interfaces, fragments, options) and
//! sends what cannot be framed. When AF_XDP cannot be had, it carries everything, and one warning says why.
//!
//! The kernel's packet filter does not see what goes this way.

mod bpf;
mod checksum;
mod engine;
mod frame;
mod next_hops;
mod ring;
mod socket;

use crate::clock::Clock;
use crate::netlink::Link;
use crate::udp::{Blocked, RecvBatch, SendBatch, SendReport, UdpError, UdpOptions, UdpSocket, UdpStats};
use engine::Engine;
use next_hops::{Egress, KernelReason, NextHops};
use rustix::event::epoll;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One receive call of so many polls the fallback socket first, so that it is not starved while frames keep coming.
const FALLBACK_EVERY: u32 = 16;

/// Why AF_XDP cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// The interface does not exist.
    #[error("there is no interface `{name}`: `ip link` lists them")]
    NoInterface {
        /// Its name.
        name: String,
    },
    /// The interface is not Ethernet.
    #[error("interface {name} is not Ethernet")]
    NotEthernet {
        /// Its name.
        name: String,
    },
    /// The interface is not in use.
    #[error("interface {name} is down: `ip link set {name} up`")]
    Down {
        /// Its name.
        name: String,
    },
    /// The interface's packets are too large for a frame of memory.
    #[error(
        "the MTU of {name} is {mtu}, and frames of AF_XDP hold {most} bytes: `ip link set {name} mtu {most}`"
    )]
    Mtu {
        /// The interface.
        name: String,
        /// Its MTU in bytes.
        mtu: usize,
        /// The largest MTU that is possible, in bytes.
        most: usize,
    },
    /// Another program is there already.
    #[error("another XDP program is on interface {name} (`ip link show {name}`): only one can be")]
    Taken {
        /// The interface.
        name: String,
    },
    /// A privilege is missing.
    #[error("{what} is not permitted: it needs root, or the capabilities net_admin, net_raw and bpf")]
    Privilege {
        /// What was tried.
        what: &'static str,
    },
    /// The kernel has no AF_XDP.
    #[error("{what}: this kernel has no AF_XDP (Linux 5.9 or later with CONFIG_XDP_SOCKETS)")]
    Unsupported {
        /// What was tried.
        what: &'static str,
    },
    /// Memory is short, or may not be locked.
    #[error("{what}: no memory; more can be allowed by `ulimit -l` (8 to 16 MiB for each receive queue)")]
    Memory {
        /// What was tried.
        what: &'static str,
    },
    /// Anything else.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl XdpError {
    fn of(what: &'static str, source: io::Error) -> XdpError {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => XdpError::Privilege { what },
            Some(libc::EAFNOSUPPORT | libc::ENOSYS) => XdpError::Unsupported { what },
            Some(libc::ENOBUFS | libc::ENOMEM) => XdpError::Memory { what },
            _ => XdpError::Os { what, source },
        }
    }
}

#[derive(Debug)]
enum State {
    /// The first destination will tell the interface.
    Waiting,
    /// Frames go past the kernel.
    On(Box<Engine>),
    /// The fallback socket carries everything.
    Off,
}

/// Datagrams over AF_XDP, and over the kernel's UDP where that cannot be.
#[derive(Debug)]
pub struct Xdp {
    fallback: UdpSocket,
    /// Collects what tells that something arrived.
    ready: OwnedFd,
    state: State,
    hops: NextHops,
    clock: Clock,
    dual: bool,
    /// Receive calls so far.
    calls: u32,
    /// Messages come one by one, and somebody looks for them all the time.
    lean: bool,
    /// It was said that destinations are not reached by AF_XDP.
    said: bool,
}

impl AsFd for Xdp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

impl Xdp {
    /// Opens the fallback socket as `options` say, and AF_XDP on the interface called `name`; without a name, on the one over
    /// which the first datagram leaves, when it does. If that fails, a warning says why, and the fallback socket does all.
    ///
    /// # Errors
    /// As [`UdpSocket::open`], and when the system has no descriptors left.
    pub fn open(options: &UdpOptions, name: Option<&str>) -> Result<Xdp, UdpError> {
        let fallback = UdpSocket::open(options)?;
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        watch(&ready, fallback.as_fd())?;
        let hops = NextHops::new(fallback.local_addr())?;
        let dual = options.dual_stack;
        let (state, clock) = (State::Waiting, Clock::new());
        let mut x = Xdp { fallback, ready, state, hops, clock, dual, calls: 0, lean: false, said: false };
        if let Some(name) = name {
            let link = x.hops.netlink().link_named(name).map_err(|e| match e.raw_os_error() {
                Some(libc::ENODEV | libc::EINVAL | libc::ERANGE) => {
                    XdpError::NoInterface { name: name.into() }
                }
                _ => XdpError::of("asking for the interface", e),
            });
            x.start(link);
        }
        Ok(x)
    }

    /// Starts on an interface, or says why not.
    fn start(&mut self, link: Result<Link, XdpError>) {
        let local = self.fallback.local_addr();
        let opened = link.and_then(|link| Engine::open(link, local, self.dual, self.hops.netlink()));
        let watched = opened.and_then(|engine| {
            for fd in engine.fds() {
                watch(&self.ready, fd).map_err(|e| XdpError::of("epoll_ctl", e))?;
            }
            Ok(engine)
        });
        self.state = match watched {
            Ok(engine) => {
                if engine.generic {
                    // There packets would be joined before the program sees them, and be too long for a frame.
                    self.fallback.without_gro();
                }
                State::On(Box::new(engine))
            }
            Err(e) => {
                tracing::warn!("AF_XDP is not used, the kernel's UDP carries everything: {e}");
                State::Off
            }
        };
    }

    /// See [`UdpSocket::local_addr`].
    pub fn local_addr(&self) -> SocketAddr {
        self.fallback.local_addr()
    }

    /// Counts of the fallback socket.
    pub fn stats(&self) -> UdpStats {
        self.fallback.stats()
    }

    /// A batch of the right shape for [`Xdp::recv`]: for trains.
    pub fn recv_batch(&self) -> RecvBatch {
        RecvBatch::new(true)
    }

    /// The interface on which AF_XDP is at work.
    pub fn interface(&self) -> Option<&str> {
        match &self.state {
            State::On(engine) => Some(&engine.interface.name),
            State::Waiting | State::Off => None,
        }
    }

    /// See [`UdpSocket::recv`].
    ///
    /// # Errors
    /// The fallback socket is beyond use.
    pub fn recv(&mut self, batch: &mut RecvBatch) -> Result<usize, UdpError> {
        let State::On(engine) = &mut self.state else { return self.fallback.recv(batch) };
        if let Err(e) = engine.push_on() {
            self.give_up(&e);
            return self.fallback.recv(batch);
        }
        self.calls = self.calls.wrapping_add(1);
        if self.calls.is_multiple_of(FALLBACK_EVERY) {
            let n = self.fallback.recv(batch)?;
            if n > 0 {
                return Ok(n);
            }
        }
        match engine.receive(batch) {
            // Its turn comes soon enough where looks follow one another: each would be a system call.
            0 if self.lean => Ok(0),
            0 => self.fallback.recv(batch),
            n => Ok(n),
        }
    }

    /// Has the fallback socket looked at now and then only, or again whenever there are no frames: for a loop that looks on.
    pub(crate) fn set_lean(&mut self, lean: bool) {
        self.lean = lean;
    }

    /// See [`UdpSocket::send`].
    ///
    /// # Errors
    /// The fallback socket is beyond use.
    pub fn send(&mut self, batch: &mut SendBatch) -> Result<SendReport, UdpError> {
        let mut report = SendReport::default();
        let now = self.clock.now();
        while report.blocked == Blocked::No {
            let Some((meta, _)) = batch.head() else { break };
            if matches!(self.state, State::Off) {
                add(&mut report, self.fallback.send(batch)?);
                break;
            }
            let way = self.hops.find(now, meta.dst, meta.src);
            match (&mut self.state, way) {
                (State::On(engine), Egress::Frames { link, template, mtu })
                    if link.index == engine.interface.index =>
                {
                    if let Err(e) = engine.send(template, *mtu, batch, &mut report) {
                        self.give_up(&e);
                    }
                }
                (State::Waiting, Egress::Frames { link, .. }) => {
                    let link = link.clone();
                    self.start(Ok(link));
                }
                (_, way) => {
                    let elsewhere = !matches!(way, Egress::Kernel(KernelReason::Soliciting));
                    if elsewhere && !core::mem::replace(&mut self.said, true) {
                        tracing::warn!("AF_XDP is not used for packets to {}: {}", meta.dst.ip(), why(way));
                    }
                    add(&mut report, self.fallback.send_first(batch, 1)?);
                }
            }
        }
        // What waits is tried again after a while: there is no telling when a device has room.
        if report.blocked == Blocked::Buffer && !matches!(self.state, State::Off) {
            report.blocked = Blocked::Device;
        }
        Ok(report)
    }

    /// The interface is gone or down.
    fn give_up(&mut self, e: &io::Error) {
        tracing::warn!("AF_XDP is not used any more, the kernel's UDP carries everything: {e}");
        self.state = State::Off;
    }
}

/// Why packets go the kernel's way.
fn why(way: &Egress) -> String {
    match way {
        Egress::Kernel(KernelReason::Local) => "they do not leave this machine".to_owned(),
        Egress::Kernel(_) => "there is no route to them over Ethernet".to_owned(),
        Egress::Frames { link, .. } => format!("they leave over {}", link.name),
    }
}

fn watch(ready: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    epoll::add(ready, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    Ok(())
}

fn add(to: &mut SendReport, more: SendReport) {
    to.sent += more.sent;
    to.dropped += more.dropped;
    to.blocked = more.blocked;
    to.no_route |= more.no_route;
    to.too_big = more.too_big.or(to.too_big);
}
