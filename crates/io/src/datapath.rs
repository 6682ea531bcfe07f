//! One interface over the datapaths for UDP datagrams (sockets, io_uring, AF_XDP), chosen at run time.

use crate::udp::{RecvBatch, SendBatch, SendReport, UdpError, UdpOptions, UdpSocket, UdpStats};
use crate::uring::Uring;
use crate::xdp::Xdp;
use core::fmt;
use core::str::FromStr;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

/// The datapath to use, as text: `auto`, `udp`, `uring`, `xdp`, `xdp:eth0`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DatapathKind {
    /// The way that needs no privilege and is known to be good everywhere.
    #[default]
    Auto,
    /// The kernel's UDP.
    Udp,
    /// The kernel's UDP through io_uring; where the system has none of that, [`DatapathKind::Udp`] with a warning.
    Uring,
    /// AF_XDP on the interface of this name, or on the one over which the first datagram leaves; the kernel's UDP, with a
    /// warning, where that cannot be.
    Xdp(Option<String>),
}

impl DatapathKind {
    /// Whether it is made of sockets, of which a driver may have several.
    pub const fn has_sockets(&self) -> bool {
        match self {
            DatapathKind::Auto | DatapathKind::Udp => true,
            DatapathKind::Uring | DatapathKind::Xdp(_) => false,
        }
    }
}

impl FromStr for DatapathKind {
    type Err = UnknownDatapath;

    fn from_str(text: &str) -> Result<DatapathKind, UnknownDatapath> {
        match text {
            "auto" => Ok(DatapathKind::Auto),
            "udp" => Ok(DatapathKind::Udp),
            "uring" => Ok(DatapathKind::Uring),
            "xdp" => Ok(DatapathKind::Xdp(None)),
            _ => match text.strip_prefix("xdp:") {
                Some(name) if !name.is_empty() => Ok(DatapathKind::Xdp(Some(name.to_owned()))),
                _ => Err(UnknownDatapath(text.to_owned())),
            },
        }
    }
}

impl fmt::Display for DatapathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatapathKind::Auto => f.write_str("auto"),
            DatapathKind::Udp => f.write_str("udp"),
            DatapathKind::Uring => f.write_str("uring"),
            DatapathKind::Xdp(None) => f.write_str("xdp"),
            DatapathKind::Xdp(Some(name)) => write!(f, "xdp:{name}"),
        }
    }
}

/// An unknown datapath name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no way to the network: write auto, udp, uring, xdp or xdp:INTERFACE")]
pub struct UnknownDatapath(String);

/// A datapath for datagrams. Every kind uses the same batches, and its descriptor becomes readable when there is
/// something to receive.
#[derive(Debug)]
pub enum Datapath {
    /// The kernel's UDP: `sendmmsg` and `recvmmsg` with GSO and GRO.
    Udp(UdpSocket),
    /// The same through io_uring.
    Uring(Box<Uring>),
    /// AF_XDP, past the kernel's network stack.
    Xdp(Box<Xdp>),
}

impl Datapath {
    /// Opens what carries datagrams at the address that `options` names.
    ///
    /// # Errors
    /// As [`UdpSocket::open`].
    pub fn open(kind: &DatapathKind, options: &UdpOptions) -> Result<Datapath, UdpError> {
        match kind {
            DatapathKind::Auto | DatapathKind::Udp => Ok(Datapath::Udp(UdpSocket::open(options)?)),
            DatapathKind::Uring => Ok(match Uring::open(options)? {
                Ok(u) => Datapath::Uring(Box::new(u)),
                Err(plain) => Datapath::Udp(plain),
            }),
            DatapathKind::Xdp(name) => Ok(Datapath::Xdp(Box::new(Xdp::open(options, name.as_deref())?))),
        }
    }

    /// The kernel's socket, if that is what carries everything.
    pub fn socket(&self) -> Option<&UdpSocket> {
        match self {
            Datapath::Udp(s) => Some(s),
            Datapath::Uring(_) | Datapath::Xdp(_) => None,
        }
    }

    /// See [`UdpSocket::local_addr`].
    pub fn local_addr(&self) -> SocketAddr {
        match self {
            Datapath::Udp(s) => s.local_addr(),
            Datapath::Uring(s) => s.local_addr(),
            Datapath::Xdp(s) => s.local_addr(),
        }
    }

    /// Connects the socket to this peer as the only one, where that makes sending to it cheaper. Nothing is received
    /// from others until [`Datapath::detach`]; sending elsewhere, or from another address than `src`, detaches it.
    pub fn attach(&mut self, dst: SocketAddr, src: IpAddr) {
        if let Datapath::Udp(s) = self {
            s.attach(dst, src);
        }
    }

    /// Receives datagrams from everybody again.
    pub fn detach(&mut self) {
        if let Datapath::Udp(s) = self {
            s.detach();
        }
    }

    /// Turns time stamps and GRO off, or on again, for a loop that spins and receives single messages.
    pub(crate) fn set_lean(&mut self, lean: bool) {
        match self {
            Datapath::Udp(s) => s.set_lean(lean),
            Datapath::Xdp(s) => s.set_lean(lean),
            Datapath::Uring(_) => {}
        }
    }

    /// Whether nothing comes from others than one peer.
    pub const fn is_attached(&self) -> bool {
        match self {
            Datapath::Udp(s) => s.is_attached(),
            Datapath::Uring(_) | Datapath::Xdp(_) => false,
        }
    }

    /// See [`UdpSocket::stats`].
    pub fn stats(&self) -> UdpStats {
        match self {
            Datapath::Udp(s) => s.stats(),
            Datapath::Uring(s) => s.stats(),
            Datapath::Xdp(s) => s.stats(),
        }
    }

    /// A batch of the right shape for [`Datapath::recv`].
    pub fn recv_batch(&self) -> RecvBatch {
        match self {
            Datapath::Udp(s) => s.recv_batch(),
            Datapath::Uring(s) => s.recv_batch(),
            Datapath::Xdp(s) => s.recv_batch(),
        }
    }

    /// Whether something to receive is at hand that the descriptor does not tell of: then do not wait.
    pub fn pending(&self) -> bool {
        match self {
            Datapath::Udp(_) | Datapath::Xdp(_) => false,
            Datapath::Uring(s) => s.pending(),
        }
    }

    /// See [`UdpSocket::recv`].
    ///
    /// # Errors
    /// It is beyond use.
    pub fn recv(&mut self, batch: &mut RecvBatch) -> Result<usize, UdpError> {
        match self {
            Datapath::Udp(s) => s.recv(batch),
            Datapath::Uring(s) => s.recv(batch),
            Datapath::Xdp(s) => s.recv(batch),
        }
    }

    /// The descriptor that becomes writable when a send that was [`Blocked::Buffer`](crate::udp::Blocked::Buffer) can
    /// continue.
    pub fn room(&self) -> BorrowedFd<'_> {
        match self {
            Datapath::Udp(s) => s.as_fd(),
            Datapath::Uring(s) => s.room(),
            Datapath::Xdp(s) => s.as_fd(),
        }
    }

    /// See [`UdpSocket::send`].
    ///
    /// # Errors
    /// It is beyond use.
    pub fn send(&mut self, batch: &mut SendBatch) -> Result<SendReport, UdpError> {
        match self {
            Datapath::Udp(s) => {
                if s.is_attached() && !batch.ends().all(|(dst, src)| s.is_attached_to(dst, src)) {
                    s.detach();
                }
                s.send(batch)
            }
            Datapath::Uring(s) => s.send(batch),
            Datapath::Xdp(s) => s.send(batch),
        }
    }
}

impl AsFd for Datapath {
    /// Readable when there is something to receive; for room to send see [`Datapath::room`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Datapath::Udp(s) => s.as_fd(),
            Datapath::Uring(s) => s.as_fd(),
            Datapath::Xdp(s) => s.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ["auto", "udp", "uring", "xdp", "xdp:eth0"] {
            assert_eq!(name.parse::<DatapathKind>().unwrap().to_string(), name);
        }
        for bad in ["", "AUTO", "udp:", "xdp:", "tcp", "io_uring"] {
            assert!(bad.parse::<DatapathKind>().is_err(), "{bad}");
        }
    }
}
