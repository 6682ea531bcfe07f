//! TCP sockets as streams need them: non-blocking, without delay, with keep-alive.

use crate::syscall;
use crate::udp::get;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Connections that wait to be accepted at most; the system may have a lower limit (`net.core.somaxconn`).
const BACKLOG: i32 = 4_096;
/// After so many seconds without a word the peer is asked whether it is there,
const ASK_AFTER: u64 = 10;
/// every so many seconds,
const ASK_EVERY: u64 = 5;
/// so often. Data that is not acknowledged for as long as all of it takes ends the connection, too.
const ASK_TIMES: u32 = 4;

/// A socket that listens at `at`. What it accepts inherits its congestion control.
pub fn listen(at: SocketAddr, congestion: Option<&str>) -> io::Result<OwnedFd> {
    let fd = socket(at)?;
    if let Some(name) = congestion {
        set_congestion(&fd, name)?;
    }
    sockopt::set_socket_reuseaddr(&fd, true)?;
    if at.is_ipv6() {
        // As the socket for datagrams: all addresses are those of IPv4, too.
        sockopt::set_ipv6_v6only(&fd, !at.ip().is_unspecified())?;
    }
    rustix::net::bind(&fd, &at)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// A socket that is not connected, for addresses like this one.
pub fn socket(like: SocketAddr) -> io::Result<OwnedFd> {
    let family = if like.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?)
}

/// A socket that is being connected: it is writable when that is decided, see [`connect_result`].
/// All its packets carry `dscp`.
pub fn connect(to: SocketAddr, congestion: Option<&str>, dscp: u8) -> io::Result<OwnedFd> {
    let fd = socket(to)?;
    prepare(&fd)?;
    if dscp > 0
        && let Err(error) = set_dscp(&fd, dscp)
    {
        tracing::warn!(%error, dscp, "packets of a stream carry no code point");
    }
    if let Some(name) = congestion {
        set_congestion(&fd, name)?;
    }
    match rustix::net::connect(&fd, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(e) => Err(e.into()),
    }
}

/// Chooses congestion control (`TCP_CONGESTION`): whatever the system has, programs of OpenCC included.
pub fn set_congestion(fd: &OwnedFd, name: &str) -> io::Result<()> {
    sockopt::set_tcp_congestion(fd, name).map_err(|e| {
        let hint = match e {
            Errno::NOENT => {
                "this system does not have it; see /proc/sys/net/ipv4/tcp_available_congestion_control"
            }
            Errno::PERM => "only root may choose it; see /proc/sys/net/ipv4/tcp_allowed_congestion_control",
            _ => "the system refuses it",
        };
        io::Error::new(io::Error::from(e).kind(), format!("congestion control `{name}`: {hint} ({e})"))
    })
}

/// Sets the code point of all packets from now on, 0 to 63. The two bits of ECN beside it are TCP's own: the kernel
/// leaves them as they are.
pub fn set_dscp(fd: &OwnedFd, dscp: u8) -> io::Result<()> {
    let octet = dscp << 2;
    if sockopt::socket_domain(fd)? == AddressFamily::INET6 {
        sockopt::set_ipv6_tclass(fd, octet.into())?;
        // It may speak IPv4 all the same: a server's that listens at all addresses. Without IPv4 there is nothing to set.
        let _ = sockopt::set_ip_tos(fd, octet);
        return Ok(());
    }
    Ok(sockopt::set_ip_tos(fd, octet)?)
}

/// The code point that its packets carry.
pub fn dscp(fd: &OwnedFd) -> u8 {
    let six = sockopt::socket_domain(fd) == Ok(AddressFamily::INET6);
    let class = if six { sockopt::ipv6_tclass(fd).ok().and_then(|c| u8::try_from(c).ok()) } else { None };
    class.or_else(|| sockopt::ip_tos(fd).ok()).unwrap_or_default() >> 2
}

/// The result of connecting.
pub fn connect_result(fd: &OwnedFd) -> io::Result<()> {
    sockopt::socket_error(fd)?.map_err(Into::into)
}

/// Whether connecting has succeeded or failed.
pub fn is_connect_done(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::OUT)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|n| n > 0)
}

/// The next client, and where it is; `None` when there is none now.
pub fn accept(listener: &OwnedFd) -> io::Result<Option<(OwnedFd, SocketAddr)>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    match rustix::net::acceptfrom_with(listener, flags) {
        Ok((fd, Some(at))) => {
            let at = SocketAddr::try_from(at).map_err(io::Error::from)?;
            prepare(&fd)?;
            Ok(Some((fd, SocketAddr::new(at.ip().to_canonical(), at.port()))))
        }
        Ok((_, None)) => Ok(None),
        // It has gone again, or there is none.
        Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn prepare(fd: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, Duration::from_secs(ASK_AFTER))?;
    sockopt::set_tcp_keepintvl(fd, Duration::from_secs(ASK_EVERY))?;
    sockopt::set_tcp_keepcnt(fd, ASK_TIMES)?;
    let patience = 1_000 * (ASK_AFTER as u32 + ASK_EVERY as u32 * ASK_TIMES);
    sockopt::set_tcp_user_timeout(fd, patience)?;
    Ok(())
}

/// Bytes that the path's segments carry, as the system knows it now.
pub fn emss(fd: &OwnedFd) -> Option<usize> {
    usize::try_from(get(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG).ok()?).ok()
}

/// Closes it at once: the peer's system receives a reset.
pub fn reset(fd: OwnedFd) {
    // Else it closes as usual, which is all that can be done then.
    let _ = sockopt::set_socket_linger(&fd, Some(Duration::ZERO));
}

/// Reads into several places; 0 is the end of the stream.
///
/// # Safety
/// Each element names memory that may be written until this returns, and no Rust reference to it is live.
#[inline]
pub unsafe fn receive(fd: &OwnedFd, places: &[libc::iovec]) -> Result<usize, Errno> {
    match places {
        // Small messages, and looks in vain: a list need not be taken over from this process.
        [one] => {
            let at = (one.iov_base.cast(), one.iov_len);
            // SAFETY: it names memory that may be written, by this function's contract; nobody is asked for.
            unsafe {
                syscall::recvfrom(fd, at, libc::MSG_DONTWAIT, (core::ptr::null_mut(), core::ptr::null_mut()))
            }
        }
        // SAFETY: by this function's contract.
        _ => unsafe { syscall::readv(fd, places) },
    }
}

/// Sends from several places; `whole` marks the end of the bytes as one of records, so that what is sent next begins a
/// segment.
///
/// # Safety
/// Each element names memory that may be read until this returns.
pub unsafe fn send(fd: &OwnedFd, places: &[libc::iovec], whole: bool) -> Result<usize, Errno> {
    let end = if whole { libc::MSG_EOR } else { 0 };
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | end;
    if let [one] = places {
        let at = (one.iov_base.cast_const().cast(), one.iov_len);
        // SAFETY: it names memory that may be read, by this function's contract; the stream is connected.
        return unsafe { syscall::sendto(fd, at, flags, (core::ptr::null(), 0)) };
    }
    // SAFETY: all zeroes is a value of this structure of integers and pointers.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = places.as_ptr().cast_mut();
    msg.msg_iovlen = places.len().min(libc::UIO_MAXIOV as usize);
    // SAFETY: `msg` names `places`, whose elements may be read, by this function's contract.
    unsafe { syscall::sendmsg(fd, &msg, flags) }
}

/// Shuts down the sending side.
pub fn shutdown(fd: &OwnedFd) {
    // The peer may have gone: reading tells.
    let _ = rustix::net::shutdown(fd, rustix::net::Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_both_families_carry_the_code_point() {
        let four = socket(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a socket");
        set_dscp(&four, 46).expect("marked");
        assert_eq!((sockopt::ip_tos(&four), dscp(&four)), (Ok(46 << 2), 46));
        set_dscp(&four, 0).expect("marked");
        assert_eq!(sockopt::ip_tos(&four), Ok(0));
        let six = socket(SocketAddr::from(([0u16; 8], 0))).expect("a socket");
        set_dscp(&six, 63).expect("marked");
        // One that listens at all addresses speaks IPv4 as well.
        assert_eq!((sockopt::ipv6_tclass(&six), sockopt::ip_tos(&six)), (Ok(63 << 2), Ok(63 << 2)));
        assert_eq!(dscp(&six), 63);
    }
}
