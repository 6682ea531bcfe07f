//! UDP in batches: trains of equal segments in one call (GSO out, GRO in), with ECN and packet information.
//!
//! A packet costs the kernel 5 to 7 us to send when it travels alone and almost nothing inside a train of 44,
//! so everything here is about keeping trains long. What the kernel or a device cannot do is found out at
//! run time and done without: [`UdpSocket`] then splits trains itself.

pub(crate) mod addr;
mod attach;
mod connected;
pub(crate) mod recv;
pub(crate) mod send;
pub(crate) mod slot;
mod steer;
#[cfg(test)]
mod tests;

pub use recv::{RecvBatch, RecvMeta};
pub use send::{Blocked, MAX_SEGMENTS, MAX_TRAIN, MAX_TRAINS, SendBatch, SendMeta, SendReport, TooBig};

use base::Ecn;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Once};

/// Bytes asked for as receive buffer: what may arrive while the loop is elsewhere. At 10 Gbit/s 16 MiB are
/// 13 ms. The kernel's default of 208 KiB loses data at any rate worth having.
pub const RECV_BUFFER: usize = 16 << 20;
/// Bytes asked for as send buffer: several batches of eight trains with the kernel's overhead.
pub const SEND_BUFFER: usize = 4 << 20;
/// A receive buffer below this loses packets at 10 Gbit/s whenever the loop is elsewhere for 1.7 ms: worth a word.
const ENOUGH_RECV: usize = 2 << 20;
/// A batch of eight trains, and the next one.
const ENOUGH_SEND: usize = 1 << 20;

/// How a [`UdpSocket`] is made.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// The local address; port 0 lets the kernel choose.
    pub bind: SocketAddr,
    /// Whether an IPv6 socket bound to `::` also carries IPv4. No effect for other addresses. Always set
    /// explicitly, since the kernel's default is the administrator's.
    pub dual_stack: bool,
    /// Bytes of receive buffer to ask for.
    pub recv_buffer: usize,
    /// Bytes of send buffer to ask for.
    pub send_buffer: usize,
    /// Let the kernel cut trains into packets (`UDP_SEGMENT`) where it can. False forces splitting here.
    pub gso: bool,
    /// Let the kernel join packets into trains (`UDP_GRO`) where it can.
    pub gro: bool,
    /// Where the kernel chooses the port, have it chosen in such a way that the socket can be connected and let go again.
    pub keep_port: bool,
    /// Let several sockets share the port, the kernel spreading peers over them (`SO_REUSEPORT`).
    pub reuse_port: bool,
}

impl UdpOptions {
    /// The usual choice for `bind`: dual stack, large buffers, everything on.
    pub fn new(bind: SocketAddr) -> UdpOptions {
        UdpOptions {
            bind,
            dual_stack: true,
            recv_buffer: RECV_BUFFER,
            send_buffer: SEND_BUFFER,
            gso: true,
            gro: true,
            keep_port: false,
            reuse_port: false,
        }
    }
}

/// Why a socket failed.
#[derive(Debug, thiserror::Error)]
pub enum UdpError {
    /// The socket could not be bound.
    #[error(
        "cannot use UDP address {addr}: {source}; choose another with a free port that this machine owns"
    )]
    Bind {
        /// The address asked for.
        addr: SocketAddr,
        /// The kernel's reason.
        source: io::Error,
    },
    /// An option that the protocol cannot do without was refused.
    #[error("the system refuses socket option {option}: {source}; Linux 4.18 or later is needed")]
    Option {
        /// The option's name in the C library.
        option: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A train that no call can send.
    #[error(
        "a train of {len} bytes in segments of {segment} cannot be sent: at most {MAX_SEGMENTS} segments \
         and {MAX_TRAIN} bytes, neither of them zero"
    )]
    BadTrain {
        /// Bytes in the train.
        len: usize,
        /// Bytes in each segment.
        segment: usize,
    },
    /// More trains committed than a batch holds.
    #[error("the batch holds {MAX_TRAINS} trains already: send it first")]
    BatchFull,
    /// The socket cannot be used any more.
    #[error("UDP socket: {0}")]
    Os(#[from] io::Error),
}

/// Counts since the socket was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpStats {
    /// Datagrams that were longer than the receive slot, dropped.
    pub truncated: u64,
    /// Messages whose control data did not fit or whose sender had no usable address, dropped.
    pub unattributed: u64,
    /// Errors the network reported about earlier datagrams (port or host unreachable), passed over: UDP
    /// promises nothing, and anybody can forge them.
    pub refused: u64,
    /// Trains the kernel would not send (no route, forbidden), dropped.
    pub unsendable: u64,
    /// Trains that were cut into datagrams here since the kernel or the device could not.
    pub split: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    truncated: AtomicU64,
    unattributed: AtomicU64,
    pub(crate) refused: AtomicU64,
    unsendable: AtomicU64,
    split: AtomicU64,
}

/// What the kernel does with each datagram of a socket by default.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketDefaults {
    /// An `AF_INET6` socket: IPv4 addresses must be mapped.
    v6: bool,
    /// The address that they come from, and the only one at which the socket receives: the one it is bound to, if that is
    /// one.
    src: Option<IpAddr>,
    /// The traffic class they get, where it could be set.
    class: Option<u8>,
    /// The only peer, while there is only one.
    attached: Option<attach::ConnectedTo>,
}

/// A non-blocking UDP socket. May be shared between a receiving and a sending thread; two senders on one
/// socket are slower than one.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    local: SocketAddr,
    /// Apart, since sockets are passed about.
    pub(crate) defaults: Box<SocketDefaults>,
    /// Its port was asked for by number.
    keeps_port: bool,
    gro: bool,
    /// Turned off at the first sign that the kernel or the device cannot.
    gso: AtomicBool,
    recv_buffer: usize,
    send_buffer: usize,
    /// One account for a socket and its connected socket.
    pub(crate) counters: Arc<Counters>,
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl UdpSocket {
    /// Opens and binds a socket.
    ///
    /// # Errors
    /// [`UdpError::Bind`] when the address is taken or foreign, [`UdpError::Option`] on systems too old.
    pub fn open(o: &UdpOptions) -> Result<UdpSocket, UdpError> {
        let socket = UdpSocket::open_unstamped(o)?;
        // Where it fails, packets have no age: delays then include the time for which this process waits.
        let _ = set(&socket.fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1);
        Ok(socket)
    }

    /// As [`UdpSocket::open`], but the kernel does not stamp what arrives.
    fn open_unstamped(o: &UdpOptions) -> Result<UdpSocket, UdpError> {
        let v6 = o.bind.is_ipv6();
        let bind_error = |source| UdpError::Bind { addr: o.bind, source };
        let fd = new_socket(v6).map_err(bind_error)?;
        let dual = v6 && o.dual_stack && o.bind.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        // Only where packets for several addresses arrive, the kernel is to say for which each one was.
        let told = i32::from(receives_at(o.bind.ip()).is_none());
        if v6 {
            require(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, "IPV6_V6ONLY", i32::from(!dual))?;
            require(&fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, "IPV6_RECVPKTINFO", told)?;
            require(&fd, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, "IPV6_RECVTCLASS", 1)?;
            // Sets "don't fragment" without believing ICMP about the path's MTU (RFC 8899, section 3): the
            // protocol searches the path MTU itself.
            let probe = libc::IPV6_PMTUDISC_PROBE;
            require(&fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, "IPV6_MTU_DISCOVER", probe)?;
        }
        if !v6 || dual {
            require(&fd, libc::IPPROTO_IP, libc::IP_PKTINFO, "IP_PKTINFO", told)?;
            require(&fd, libc::IPPROTO_IP, libc::IP_RECVTOS, "IP_RECVTOS", 1)?;
            let probe = libc::IP_PMTUDISC_PROBE;
            require(&fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, "IP_MTU_DISCOVER", probe)?;
        }
        if o.reuse_port {
            require(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, "SO_REUSEPORT", 1)?;
        }
        let recv_buffer = buffer(&fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, o.recv_buffer);
        let send_buffer = buffer(&fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, o.send_buffer);
        warn_small_buffers(o, recv_buffer, send_buffer);
        let gro = o.gro && set(&fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
        if o.gro && !gro {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                tracing::warn!(
                    "this kernel does not join arriving packets (UDP_GRO, Linux 5.0 and later): they are taken one by one, \
                     which costs processor time"
                );
            });
        }
        // Reading the option tells whether the kernel knows it; whether each device does, sending tells.
        let gso = o.gso && get(&fd, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok();
        if o.gso && !gso {
            send::warn_missing_gso("this kernel does not know it (UDP_SEGMENT, Linux 4.18 and later)");
        }
        // Nearly all packets are ECN-capable: others say so one by one.
        let class = addr::traffic_class(0, Ecn::Ect0);
        let v4_set = v6 && !dual || set(&fd, libc::IPPROTO_IP, libc::IP_TOS, class.into()).is_ok();
        let v6_set = !v6 || set(&fd, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, class.into()).is_ok();
        let keeps_port = bind_to(&fd, o, v6).map_err(bind_error)?;
        let local = local_addr(&fd).map_err(bind_error)?;
        let gso = AtomicBool::new(gso);
        let counters = Arc::<Counters>::default();
        let class = (v4_set && v6_set).then_some(class);
        let defaults = Box::new(SocketDefaults { v6, src: receives_at(o.bind.ip()), class, attached: None });
        Ok(UdpSocket { fd, local, defaults, keeps_port, gro, gso, recv_buffer, send_buffer, counters })
    }

    /// The bound address, with the port the kernel chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Whether the kernel joins arriving packets into trains.
    pub fn gro(&self) -> bool {
        self.gro
    }

    /// For a loop that looks on and gets messages one by one: has the kernel neither stamp nor join them, which together
    /// takes it a quarter of a microsecond each. What is read has no age then, and trains come as single datagrams.
    pub(crate) fn set_lean(&mut self, lean: bool) {
        let on = i32::from(!lean);
        // As when the socket was opened: it works all the same where the kernel refuses.
        let _ = set(&self.fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, on);
        if self.gro {
            let _ = set(&self.fd, libc::SOL_UDP, libc::UDP_GRO, on);
        }
    }

    /// Has the kernel join no more packets.
    pub(crate) fn without_gro(&self) {
        // What it still joins is taken as trains all the same.
        let _ = set(&self.fd, libc::SOL_UDP, libc::UDP_GRO, 0);
    }

    /// Whether trains leave whole, as far as is known: a device that cannot turns this off.
    pub fn gso(&self) -> bool {
        self.gso.load(Relaxed)
    }

    /// The receive buffer the kernel granted, in bytes of its own accounting as asked for (it doubles them
    /// inside). Less than asked for means that `net.core.rmem_max` should be raised.
    pub fn recv_buffer(&self) -> usize {
        self.recv_buffer
    }

    /// The send buffer the kernel granted; see `net.core.wmem_max`.
    pub fn send_buffer(&self) -> usize {
        self.send_buffer
    }

    /// Counts so far.
    pub fn stats(&self) -> UdpStats {
        let c = &self.counters;
        UdpStats {
            truncated: c.truncated.load(Relaxed),
            unattributed: c.unattributed.load(Relaxed),
            refused: c.refused.load(Relaxed),
            unsendable: c.unsendable.load(Relaxed),
            split: c.split.load(Relaxed),
        }
    }

    /// A receive batch of the right shape for this socket.
    pub fn recv_batch(&self) -> RecvBatch {
        RecvBatch::new(self.gro)
    }
}

/// Logs once how to get larger buffers, where the system grants less than a long path needs.
fn warn_small_buffers(o: &UdpOptions, recv: usize, send: usize) {
    static SAID: Once = Once::new();
    // The system may grant a little less than it is asked for, and tests ask for little.
    let small = |granted: usize, asked: usize, enough: usize| granted < asked.min(enough);
    if small(recv, o.recv_buffer, ENOUGH_RECV) || small(send, o.send_buffer, ENOUGH_SEND) {
        SAID.call_once(|| {
            tracing::warn!(
                "the system grants this program {} KiB to receive into and {} KiB to send from: packets will be lost here \
                 at high rates, and sent again. Once, as root: sysctl -w net.core.rmem_max={RECV_BUFFER} \
                 net.core.wmem_max={SEND_BUFFER}",
                recv >> 10,
                send >> 10
            );
        });
    }
}

/// Whether an error is the network's word on an earlier datagram: nothing a datagram protocol acts on.
pub(crate) fn is_network_report(errno: i32) -> bool {
    matches!(
        errno,
        libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENETDOWN
            | libc::ENOPROTOOPT
            | libc::EPROTO
            | libc::ECONNRESET
    )
}

/// The one address at which a socket receives that is bound to this, if it is only one.
fn receives_at(bound: IpAddr) -> Option<IpAddr> {
    let ip = bound.to_canonical();
    (!ip.is_unspecified() && !ip.is_multicast()).then_some(ip)
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the system has IPv6 at all: one that was started without has no such sockets.
pub fn has_ipv6() -> bool {
    new_socket(true).is_ok()
}

fn new_socket(v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes integers only.
    let fd = unsafe { libc::socket(family, kind, libc::IPPROTO_UDP) };
    check(fd)?;
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set(fd: &OwnedFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`, which lives through the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len) })
}

pub(crate) fn get(fd: &OwnedFd, level: i32, option: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`, which is ours to write.
    check(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, (&raw mut value).cast(), &mut len) })?;
    Ok(value)
}

fn require(fd: &OwnedFd, level: i32, option: i32, name: &'static str, value: i32) -> Result<(), UdpError> {
    set(fd, level, option, value).map_err(|source| UdpError::Option { option: name, source })
}

/// Asks for a buffer, past the administrator's limit where privilege allows, and says what was granted.
fn buffer(fd: &OwnedFd, force: i32, plain: i32, bytes: usize) -> usize {
    let want = i32::try_from(bytes).unwrap_or(i32::MAX) / 2 * 2;
    if set(fd, libc::SOL_SOCKET, force, want).is_err() {
        // Cannot fail: the kernel caps the value silently.
        let _ = set(fd, libc::SOL_SOCKET, plain, want);
    }
    // The kernel doubles what it is asked for, to count its own overhead (socket(7)).
    get(fd, libc::SOL_SOCKET, plain).map_or(0, |n| usize::try_from(n).unwrap_or(0) / 2)
}

/// Binds as the options say. True when the port was asked for by number.
fn bind_to(fd: &OwnedFd, o: &UdpOptions, v6: bool) -> io::Result<bool> {
    if o.bind.port() != 0 || !o.keep_port {
        bind(fd, o.bind, v6)?;
        return Ok(o.bind.port() != 0);
    }
    let free = std::net::UdpSocket::bind(o.bind)?.local_addr()?.port();
    let named = SocketAddr::new(o.bind.ip(), free);
    // Somebody else may have been faster: then any will do.
    bind(fd, named, v6).map(|()| true).or_else(|_| bind(fd, o.bind, v6).map(|()| false))
}

fn bind(fd: &OwnedFd, to: SocketAddr, v6: bool) -> io::Result<()> {
    let mut raw = addr::empty();
    let Some(len) = addr::encode(to, v6, &mut raw) else {
        return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
    };
    // SAFETY: `raw` holds an address of `len` bytes.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const raw).cast(), len) })
}

fn connect(fd: &OwnedFd, to: SocketAddr, v6: bool) -> io::Result<()> {
    let mut raw = addr::empty();
    let Some(len) = addr::encode(to, v6, &mut raw) else {
        return Err(io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
    };
    // SAFETY: `raw` holds an address of `len` bytes.
    check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const raw).cast(), len) })
}

fn local_addr(fd: &OwnedFd) -> io::Result<SocketAddr> {
    let mut raw = addr::empty();
    let mut len = size_of::<addr::RawAddr>() as libc::socklen_t;
    // SAFETY: `raw` is ours to write and `len` is its size.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut raw).cast(), &mut len) })?;
    addr::decode(&raw).ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))
}
