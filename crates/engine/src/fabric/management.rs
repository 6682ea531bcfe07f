//! Messages of the connection managers of two processes: datagrams between the numbers 1 of both, which InfiniBand has for management.

use super::Fabric;
use super::datagram::{Header, Outgoing, Told, v6};
use crate::address::{management_number, port_of};
use base::Time;
use endpoint::Endpoint;
use std::net::{IpAddr, SocketAddr};

/// The key of InfiniBand's queue pair 1.
const Q_KEY: u32 = 0x8001_0000;

/// What a connection manager is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Management {
    /// A message of another process.
    Message {
        /// Where that process is, as its connection says.
        process: SocketAddr,
        /// The address of this host that it was sent to.
        own: IpAddr,
        /// The message: at most [`super::MAX_DATAGRAM`] bytes.
        bytes: Vec<u8>,
    },
    /// There is no connection to a process any more, or none could be made.
    Gone {
        /// Where it is, or was.
        process: SocketAddr,
    },
    /// The processes are to be found that have members of a group, for datagrams from this own address
    /// ([`crate::Engine::note_member`]).
    GroupWanted {
        /// The group.
        group: IpAddr,
        /// The own address.
        own: IpAddr,
    },
}

impl Fabric {
    /// Sends a message. One that cannot be delivered is followed by [`Management::Gone`].
    pub(crate) fn send_management(
        &mut self,
        now: Time,
        endpoint: &mut Endpoint,
        (own, process): (IpAddr, SocketAddr),
        message: &[u8],
    ) {
        let (Some(to), Some(from)) =
            (management_number(process.port()), management_number(self.numbers.port()))
        else {
            return self.tell_gone(process);
        };
        let mut bytes = Vec::new();
        let (own, host) = (v6(own), v6(process.ip()));
        Header { imm: None, solicited: false, from, to, q_key: Q_KEY, own, host, dscp: 0 }.put(&mut bytes);
        bytes.extend_from_slice(message);
        let d = Outgoing { bytes: bytes.into(), told: Told::Nobody, dscp: 0 };
        self.send_to_process(now, endpoint, process, d);
    }

    /// Whether a datagram is one for the connection manager, which then has it.
    pub(super) fn take_management(&self, process: SocketAddr, bytes: &[u8]) -> bool {
        let Some((head, message)) = Header::parse(bytes) else { return false };
        if Some(head.to) != management_number(self.numbers.port()) {
            return false;
        }
        // Who sent it is not for it to say.
        let is_from = head.q_key == Q_KEY
            && Some(head.from) == management_number(process.port())
            && port_of(head.from) == Some(process.port());
        if let Some(listener) = self.management.as_ref().filter(|_| is_from) {
            let own = IpAddr::V6(head.host).to_canonical();
            listener(Management::Message { process, own, bytes: message.to_vec() });
        }
        true
    }

    /// A connection has ended: the manager is told when it was the last one to that process.
    pub(super) fn tell_gone(&self, process: SocketAddr) {
        if self.established.values().any(|p| *p == process) {
            return;
        }
        if let Some(listener) = &self.management {
            listener(Management::Gone { process });
        }
    }
}
