//! How datagrams reach the network: one face for all ways, chosen at run time.

use crate::udp::{RecvBatch, SendBatch, SendReport, UdpError, UdpOptions, UdpSocket, UdpStats};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

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
    pub fn open(options: &UdpOptions) -> Result<Datapath, UdpError> {
        Ok(Datapath::Udp(UdpSocket::open(options)?))
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
