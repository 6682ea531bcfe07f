//! A second, connected socket at the address of the first one, for one peer.
//!
//! What [`UdpSocket::attach`] spares a client a server wants, too, but has to hear everybody. So it has a socket more at the
//! same address and port, connected to the one peer: the kernel gives each datagram to the socket that fits it best (Linux:
//! `compute_score`), so that the peer's arrive there, and all others at the first as before.
//!
//! The port is shared for the moment only in which the second socket is bound. The first was opened without `SO_REUSEPORT`,
//! so nobody else has the port, and afterwards both are without it again: nobody can join them, and the kernel, which asks
//! for the option with each datagram, does not take them for a group to spread datagrams over. In between only a program of
//! the same user that asks for just this port could. For a socket that does share its port this is nothing: the group's order
//! is what steering counts by.

use super::attach::ConnectedTo;
use super::{UdpError, UdpOptions, UdpSocket, connect, set};
use std::io;
use std::net::{IpAddr, SocketAddr};

impl UdpSocket {
    /// Opens a second socket at this one's address, connected from `src` to `peer` and [lean](UdpSocket::set_lean)
    /// from the start. Both share their counters. Before it was connected it may have received datagrams of others:
    /// read it until it is empty, and then call [`UdpSocket::mark_drained`].
    ///
    /// # Errors
    /// The system does not give it, or not for this address.
    pub(crate) fn open_connected(&self, peer: SocketAddr, src: IpAddr) -> Result<UdpSocket, UdpError> {
        let mut bind = SocketAddr::new(src, self.local.port());
        if let (SocketAddr::V6(at), SocketAddr::V6(p)) = (&mut bind, peer) {
            // Of use for link-local addresses, which belong to the link of the peer's.
            at.set_scope_id(p.scope_id());
        }
        let o = UdpOptions {
            dual_stack: false,
            recv_buffer: self.recv_buffer,
            send_buffer: self.send_buffer,
            gso: self.gso(),
            gro: false,
            reuse_port: true,
            ..UdpOptions::new(bind)
        };
        self.share_port(true)?;
        let opened = UdpSocket::open_unstamped(&o);
        self.share_port(false)?;
        let mut companion = opened?;
        companion.share_port(false)?;
        connect(&companion.fd, peer, companion.defaults.v6)?;
        companion.counters = self.counters.clone();
        Ok(companion)
    }

    /// The connected socket was found empty: from now on all that arrives there is `peer`'s, and what goes to it is
    /// sent without an address.
    pub(crate) fn mark_drained(&mut self, peer: SocketAddr) {
        self.defaults.attached = Some(ConnectedTo { dst: peer, src: self.local.ip() });
    }

    /// From now on the peer's datagrams arrive at the first socket again: what waits at this connected socket can be read to the end
    /// before it is closed.
    ///
    /// # Errors
    /// They may still arrive here.
    pub(crate) fn retire(&mut self) -> io::Result<()> {
        self.defaults.attached = None;
        // Nobody else can speak from here. Connected to nobody, it would get as much as the first socket.
        connect(&self.fd, self.local, self.defaults.v6)
    }

    /// Whether others of this user may open sockets at its address, and the kernel takes those that are there for a group.
    pub(crate) fn share_port(&self, shared: bool) -> io::Result<()> {
        set(&self.fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, shared.into())
    }
}
