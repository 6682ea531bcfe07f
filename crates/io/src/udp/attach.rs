//! Connects a UDP socket to its only peer for a while, which makes sending cheaper.
//!
//! The kernel sends from a connected socket without asking its routes for each datagram, and needs neither an address nor a
//! source with it: half a microsecond of a round trip. But it then takes in nothing that comes from elsewhere, so a socket is
//! attached only while nobody else is expected, and let go as soon as the peer falls silent or something is to go elsewhere.
//! A server expects others all the time: it has a [second socket](super::connected) attached instead.

use super::{UdpSocket, check, connect, local_addr, set};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;

/// The peer that a socket is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectedTo {
    /// The peer.
    pub(super) dst: SocketAddr,
    /// The address that the kernel sends from.
    pub(super) src: IpAddr,
}

impl UdpSocket {
    /// Attaches the socket to `dst`, if datagrams then leave from `src` and it can be let go again. What comes from
    /// elsewhere is refused from then on.
    pub(crate) fn attach(&mut self, dst: SocketAddr, src: IpAddr) {
        // Letting go, the kernel would take away a port that it chose itself (Linux: `__udp_disconnect`), and leave an IPv6
        // socket the peer's address, so that it took nothing in from other IPv6 addresses any more.
        if !self.keeps_port || self.defaults.attached.is_some() || self.defaults.v6 {
            return;
        }
        if connect(&self.fd, dst, false).is_err() {
            return;
        }
        self.defaults.attached = Some(ConnectedTo { dst, src });
        if local_addr(&self.fd).is_ok_and(|a| a.ip() == src && a.port() == self.local.port()) {
            self.set_packet_info(false);
        } else {
            self.detach();
        }
    }

    /// Lets go: datagrams from everywhere are taken in again.
    pub(crate) fn detach(&mut self) {
        if self.defaults.attached.take().is_none() {
            return;
        }
        self.set_packet_info(true);
        let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
        let len = size_of::<libc::sockaddr>() as libc::socklen_t;
        // SAFETY: pointer and length describe `nobody`.
        let done = check(unsafe { libc::connect(self.fd.as_raw_fd(), &raw const nobody, len) });
        if let Err(error) = done {
            tracing::warn!(%error, "the socket stays attached to one peer");
        }
    }

    /// Whether it is attached.
    pub(crate) const fn is_attached(&self) -> bool {
        self.defaults.attached.is_some()
    }

    /// Whether datagrams like these leave as an attached socket sends them.
    pub(crate) fn is_attached_to(&self, dst: SocketAddr, src: Option<IpAddr>) -> bool {
        self.defaults.attached.is_some_and(|a| a.dst == dst && Some(a.src) == src)
    }

    /// Whether the kernel says at which address each datagram arrived. Attached, it is known.
    fn set_packet_info(&self, told: bool) {
        if self.defaults.src.is_some() {
            return;
        }
        let told = i32::from(told);
        // It was set when the socket was opened; where it failed now, addresses are unknown or told in vain.
        let _: io::Result<()> = set(&self.fd, libc::IPPROTO_IP, libc::IP_PKTINFO, told);
    }
}
