//! A server's further sockets, which share the first one's address: opened when worker threads are needed, closed
//! when they are idle.
//!
//! Where several sockets share an address the kernel runs a program for each packet that says whose it is
//! (`udp::steer`). Where packets come one by one that is a twentieth of what a packet costs at all, so a server has one
//! socket as long as one thread does the work, and lanes of all sockets come and go by it: identifiers are given out as if all
//! were there ([`Driver::sockets`]).

use super::{Driver, DriverError};
use crate::udp::UdpOptions;
use endpoint::Endpoint;

impl Driver {
    /// Whether this driver serves clients and may open further sockets for them.
    pub(super) const fn has_socket_pool(&self) -> bool {
        self.options.serves && self.most > 1
    }

    /// Sockets that lanes are spread over.
    pub(super) fn sockets(&self) -> u16 {
        if self.has_socket_pool() { self.most } else { self.workers.len() as u16 + 1 }
    }

    /// Opens or closes the sockets, as [`LaneController`](super::lane_controller::LaneController) decides.
    pub(super) fn adjust_socket_pool(&mut self, endpoint: &mut Endpoint) {
        let there = self.workers.len() > 0;
        match (there, self.lane_controller.wants_threads(there)) {
            (true, false) if self.workers.is_idle() => {
                self.workers.stop_all();
                self.unshare_address();
            }
            (false, true) if !self.connected_peer.is_open() => self.open_socket_pool(),
            _ => {}
        }
        #[cfg(test)]
        if there != (self.workers.len() > 0) {
            self.lane_controller.lent.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        endpoint.publish_openers(self.workers.len() > 0);
    }

    /// Opens the sockets, or logs why that failed.
    pub(super) fn open_socket_pool(&mut self) {
        if let Err(error) = self.share_address() {
            tracing::warn!(%error, "packets cannot be spread over several sockets: all connections share one thread");
            self.workers.stop_all();
            self.unshare_address();
            self.lane_controller.limit_to(1);
        }
    }

    /// Opens the sockets, a thread each, and has the kernel give each the packets of its lanes.
    fn share_address(&mut self) -> Result<(), DriverError> {
        let Some(first) = self.socket.socket() else { return Ok(()) };
        first.share_port(true)?;
        while self.workers.len() + 1 < usize::from(self.most) {
            self.add_thread()?;
        }
        if let Some(first) = self.socket.socket() {
            // The group is there since the second socket.
            first.steer(self.most)?;
        }
        Ok(())
    }

    /// Stops sharing the address.
    fn unshare_address(&self) {
        if let Some(first) = self.socket.socket()
            && let Err(error) = first.share_port(false)
        {
            tracing::debug!(%error, "the port stays open to other programs of this user");
        }
    }

    /// Options of one more worker's socket.
    pub(super) fn pool_socket_options(&self) -> UdpOptions {
        let mut udp = self.options.udp.clone();
        if self.options.serves {
            (udp.bind, udp.reuse_port) = (self.socket.local_addr(), true);
        } else {
            udp.bind.set_port(0);
        }
        udp
    }
}
