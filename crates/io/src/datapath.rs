//! How datagrams reach the network: one face for all ways, chosen at run time.

use crate::udp::{RecvBatch, SendBatch, SendReport, UdpError, UdpOptions, UdpSocket, UdpStats};
use core::fmt;
use core::str::FromStr;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

/// Which way is asked for, as words: `auto`, `udp`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DatapathKind {
    /// The way that needs no privilege and is known to be good everywhere.
    #[default]
    Auto,
    /// The kernel's UDP.
    Udp,
}

impl DatapathKind {
    /// Whether it is made of sockets, of which a driver may have several.
    pub const fn has_sockets(&self) -> bool {
        match self {
            DatapathKind::Auto | DatapathKind::Udp => true,
        }
    }
}

impl FromStr for DatapathKind {
    type Err = UnknownDatapath;

    fn from_str(text: &str) -> Result<DatapathKind, UnknownDatapath> {
        match text {
            "auto" => Ok(DatapathKind::Auto),
            "udp" => Ok(DatapathKind::Udp),
            _ => Err(UnknownDatapath(text.to_owned())),
        }
    }
}

impl fmt::Display for DatapathKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DatapathKind::Auto => f.write_str("auto"),
            DatapathKind::Udp => f.write_str("udp"),
        }
    }
}

/// No way to the network has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no way to the network: write auto or udp")]
pub struct UnknownDatapath(String);

/// What carries datagrams. Every kind fills and empties the same batches, and tells by its descriptor when there is
/// something to read.
#[derive(Debug)]
pub enum Datapath {
    /// The kernel's UDP: `sendmmsg` and `recvmmsg` with GSO and GRO.
    Udp(UdpSocket),
}

impl Datapath {
    /// Opens what carries datagrams at the address that `options` names.
    ///
    /// # Errors
    /// As [`UdpSocket::open`].
    pub fn open(kind: &DatapathKind, options: &UdpOptions) -> Result<Datapath, UdpError> {
        match kind {
            DatapathKind::Auto | DatapathKind::Udp => Ok(Datapath::Udp(UdpSocket::open(options)?)),
        }
    }

    /// The kernel's socket, if that is what carries everything.
    pub fn socket(&self) -> Option<&UdpSocket> {
        match self {
            Datapath::Udp(s) => Some(s),
        }
    }

    /// See [`UdpSocket::local_addr`].
    pub fn local_addr(&self) -> SocketAddr {
        match self {
            Datapath::Udp(s) => s.local_addr(),
        }
    }

    /// See [`UdpSocket::stats`].
    pub fn stats(&self) -> UdpStats {
        match self {
            Datapath::Udp(s) => s.stats(),
        }
    }

    /// A batch of the right shape for [`Datapath::recv`].
    pub fn recv_batch(&self) -> RecvBatch {
        match self {
            Datapath::Udp(s) => s.recv_batch(),
        }
    }

    /// See [`UdpSocket::recv`].
    ///
    /// # Errors
    /// It is beyond use.
    pub fn recv(&mut self, batch: &mut RecvBatch) -> Result<usize, UdpError> {
        match self {
            Datapath::Udp(s) => s.recv(batch),
        }
    }

    /// See [`UdpSocket::send`].
    ///
    /// # Errors
    /// It is beyond use.
    pub fn send(&mut self, batch: &mut SendBatch) -> Result<SendReport, UdpError> {
        match self {
            Datapath::Udp(s) => s.send(batch),
        }
    }
}

impl AsFd for Datapath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Datapath::Udp(s) => s.as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_being_written_and_read() {
        for name in ["auto", "udp"] {
            assert_eq!(name.parse::<DatapathKind>().unwrap().to_string(), name);
        }
        for bad in ["", "AUTO", "udp:", "tcp"] {
            assert!(bad.parse::<DatapathKind>().is_err(), "{bad}");
        }
    }
}
