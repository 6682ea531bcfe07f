//! Detects by ICMP that a server is unreachable (RFC 792, RFC 4443).
//!
//! The socket that carries connections passes such words over, since anybody on the way can forge them and a connection that is
//! up must not end by one. While a client waits for the first answer, a socket of its own asks: an empty datagram, which every
//! server ignores, and a second one once the first is said to have found nobody. Only where both are is the place given up.

use crate::clock::Clock;
use crate::poll::Waker;
use base::{Span, Time};
use endpoint::Unreachable;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

/// How long ICMP's answer is waited for in one go.
const STEP: Duration = Duration::from_millis(50);
/// Steps for which an answer is waited for before anything is asked: most servers answer sooner, and nothing is sent then.
const BEFORE: u32 = 4;
/// A datagram may be lost: another one follows after this long.
const AGAIN: Span = Span::from_secs(1);
/// Words that must say the same.
const CONFIRMED: u32 = 2;
/// The longest time for which ICMP is watched.
const LONGEST: Span = Span::from_secs(60);

/// Watches for ICMP errors on behalf of one connecting client, until dropped.
#[derive(Debug)]
pub(crate) struct IcmpProbe {
    remote: SocketAddr,
    over: Arc<AtomicBool>,
    /// 0: nothing yet; else one more than the place in [`Unreachable::ALL`].
    found: Arc<AtomicU8>,
}

impl IcmpProbe {
    /// Begins to look out; `None` where the system has no thread or socket for it: then only time tells.
    pub(crate) fn begin(remote: SocketAddr, waker: Waker) -> Option<IcmpProbe> {
        let (over, found) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU8::new(0)));
        let (stop, told) = (over.clone(), found.clone());
        let look = move || {
            if let Some(why) = ask(remote, &stop) {
                told.store(1 + why as u8, Ordering::Release);
                waker.wake();
            }
        };
        let thread = std::thread::Builder::new().name("reach".into()).spawn(look);
        if let Err(error) = thread {
            tracing::debug!(%error, "no thread to look out for ICMP");
            return None;
        }
        Some(IcmpProbe { remote, over, found })
    }

    /// Where.
    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// Where, and what was found, if anything.
    pub(crate) fn found(&self) -> Option<(SocketAddr, Unreachable)> {
        let n = self.found.load(Ordering::Acquire);
        Some((self.remote, *Unreachable::ALL.get(usize::from(n.checked_sub(1)?))?))
    }
}

impl Drop for IcmpProbe {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}

/// Asks until the network has said the same twice, or nobody wants to know any more.
fn ask(remote: SocketAddr, over: &AtomicBool) -> Option<Unreachable> {
    // Without a route, the socket cannot even be connected: the first attempt says so, and a second one again.
    let socket = match (open(remote), open(remote)) {
        (Ok(socket), _) => socket,
        (Err(a), Err(b)) => return meaning(&a).filter(|why| meaning(&b) == Some(*why)),
        (Err(_), Ok(socket)) => socket,
    };
    let mut nothing = [0; 16];
    // In steps, so that the thread goes soon when the answer has come. Nothing was sent: this only waits.
    for _ in 0..BEFORE {
        let _ = socket.recv(&mut nothing);
        if over.load(Ordering::Acquire) {
            return None;
        }
    }
    let clock = Clock::new();
    let begun = clock.now();
    let (mut next, mut words): (Time, Vec<Unreachable>) = (begun, Vec::new());
    while !over.load(Ordering::Acquire) && clock.now().since(begun) < LONGEST {
        let mut said = None;
        if clock.now() >= next {
            next = clock.now() + AGAIN;
            // Where an address does not answer, sending may say it.
            said = socket.send(&[]).err().and_then(|e| meaning(&e));
        }
        let heard = socket.recv(&mut nothing).err().and_then(|e| meaning(&e));
        let Some(why) = said.or(heard) else { continue };
        words.retain(|w| *w == why);
        words.push(why);
        if words.len() as u32 >= CONFIRMED {
            return Some(why);
        }
        next = clock.now();
    }
    None
}

/// A socket that hears of what it sends to this place and of nothing else: whoever forges a word must know its port.
fn open(remote: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr =
        if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0))?;
    let (level, name) = match remote {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
    };
    let on: libc::c_int = 1;
    // SAFETY: pointer and length describe `on`, which is read only.
    let r = unsafe {
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), len)
    };
    if r != 0 {
        return Err(io::Error::last_os_error());
    }
    socket.connect(remote)?;
    socket.set_read_timeout(Some(STEP))?;
    Ok(socket)
}

/// What an error says of the place; `None` of one that says nothing of it.
fn meaning(e: &io::Error) -> Option<Unreachable> {
    match e.raw_os_error()? {
        libc::ECONNREFUSED => Some(Unreachable::Port),
        libc::EHOSTUNREACH | libc::EHOSTDOWN => Some(Unreachable::Host),
        libc::ENETUNREACH | libc::ENETDOWN => Some(Unreachable::Network),
        libc::EACCES | libc::EPERM => Some(Unreachable::Forbidden),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_port_is_reported_and_a_silent_one_is_not() {
        let open = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (over, remote) = (Arc::new(AtomicBool::new(false)), open.local_addr().unwrap());
        let silent = {
            let over = over.clone();
            std::thread::spawn(move || ask(remote, &over))
        };
        // What it was asked with is nothing that a server would take for a client.
        let mut bytes = [0; 16];
        assert_eq!(open.recv(&mut bytes).unwrap(), 0);
        over.store(true, Ordering::Release);
        assert_eq!(silent.join().unwrap(), None);
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert_eq!(ask(closed, &AtomicBool::new(false)), Some(Unreachable::Port));
        let closed = UdpSocket::bind("[::1]:0").map(|s| s.local_addr().unwrap());
        if let Ok(closed) = closed {
            assert_eq!(ask(closed, &AtomicBool::new(false)), Some(Unreachable::Port));
        }
    }
}
