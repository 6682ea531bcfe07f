//! The further sockets of a server, which share the first one's address: opened when their threads are to work, closed when
//! these have had nothing to do.
//!
//! Where several sockets share an address the kernel runs a program for each packet that says whose it is
//! (`udp::steer`). Where packets come one by one that is a twentieth of what a packet costs at all, so a server has one
//! socket as long as one thread does the work, and lanes of all sockets come and go by it: identifiers are given out as if all
//! were there ([`Driver::sockets`]).

use super::{Driver, DriverError};
use crate::udp::UdpOptions;
use endpoint::Endpoint;

impl Driver {
    /// Whether clients come here and may be lent further threads.
    pub(super) const fn lends(&self) -> bool {
        self.options.serves && self.most > 1
    }

    /// Sockets that lanes are spread over.
    pub(super) fn sockets(&self) -> u16 {
        if self.lends() { self.most } else { self.team.len() as u16 + 1 }
    }

    /// Opens the sockets, or closes them, as [`Growth`](super::growth::Growth) says what is to work.
    pub(super) fn lend(&mut self, endpoint: &mut Endpoint) {
        let there = self.team.len() > 0;
        match (there, self.growth.keeps_threads(there)) {
            (true, false) if self.team.is_idle() => {
                self.team.dismiss();
                self.withdraw();
            }
            (false, true) if !self.companion.is_open() => self.begin_to_lend(),
            _ => {}
        }
        #[cfg(test)]
        if there != (self.team.len() > 0) {
            self.growth.lent.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        endpoint.publish_openers(self.team.len() > 0);
    }

    /// Opens the sockets, or says why not.
    pub(super) fn begin_to_lend(&mut self) {
        if let Err(error) = self.share_address() {
            tracing::warn!(%error, "packets cannot be spread over several sockets: all connections share one thread");
            self.team.dismiss();
            self.withdraw();
            self.growth.limit_to(1);
        }
    }

    /// Opens the sockets, a thread each, and has the kernel give each the packets of its lanes.
    fn share_address(&mut self) -> Result<(), DriverError> {
        let Some(first) = self.socket.socket() else { return Ok(()) };
        first.share_port(true)?;
        while self.team.len() + 1 < usize::from(self.most) {
            self.add_thread()?;
        }
        if let Some(first) = self.socket.socket() {
            // The group is there since the second socket.
            first.steer(self.most)?;
        }
        Ok(())
    }

    /// Nobody shares the address any more.
    fn withdraw(&self) {
        if let Some(first) = self.socket.socket()
            && let Err(error) = first.share_port(false)
        {
            tracing::debug!(%error, "the port stays open to other programs of this user");
        }
    }

    /// Socket options of one more thread's socket.
    pub(super) fn further(&self) -> UdpOptions {
        let mut udp = self.options.udp.clone();
        if self.options.serves {
            (udp.bind, udp.reuse_port) = (self.socket.local_addr(), true);
        } else {
            udp.bind.set_port(0);
        }
        udp
    }
}
