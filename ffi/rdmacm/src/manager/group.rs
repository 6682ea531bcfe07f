//! Groups of datagrams that programs join. Who is a member is the queue pair's matter (`ibv_attach_mcast`), which librdmacm sees to
//! when it is told that the program is in.

use super::{ChannelId, Host, INVALID, Manager};
use crate::Errno;
use crate::abi::{Address, UDP_Q_KEY, address_handle, event};
use crate::event::{Details, Event};
use std::net::IpAddr;

/// Memberships of a process at a time.
const MAX_MEMBERSHIPS: usize = 4_096;
/// RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, the highest one that there is.
const SEND_ONLY: u16 = 1;

/// A program has joined a group.
#[derive(Debug)]
pub(super) struct Membership {
    /// The identifier that it has joined with.
    pub(super) owner: u32,
    /// What the program knows it by.
    pub(super) uid: u64,
    pub(super) events_reported: u32,
}

impl Manager {
    pub(super) fn join(
        &mut self,
        host: &dyn Host,
        channel: ChannelId,
        (handle, uid): (u32, u64),
        (to, flags): (Address, u16),
    ) -> Result<u32, Errno> {
        let id = self.find(channel, handle)?;
        let Address::Ip(to) = to else { return Err(Errno(libc::EAFNOSUPPORT)) };
        let group = to.ip().to_canonical();
        let Some((own, _)) = id.path.filter(|_| id.is_datagram()) else { return Err(INVALID) };
        if !group.is_multicast() || flags > SEND_ONLY {
            return Err(INVALID);
        }
        if self.memberships.len() >= MAX_MEMBERSHIPS {
            return Err(Errno(libc::ENOMEM));
        }
        while self.memberships.contains_key(&self.next_membership) {
            self.next_membership = self.next_membership.wrapping_add(1);
        }
        let made = self.next_membership;
        self.next_membership = made.wrapping_add(1);
        self.memberships.insert(made, Membership { owner: handle, uid, events_reported: 0 });
        let way = address_handle(group, host.gid_index(own).unwrap_or(0));
        let details =
            Details::Datagrams { number: engine::EVERY_MEMBER, q_key: UDP_Q_KEY, way, private: vec![] };
        let e = Event::plain(handle, event::MULTICAST_JOIN, 0);
        self.tell(Event { membership: Some(made), details, ..e });
        Ok(made)
    }

    /// Ends a membership; gives how many events of it the program has seen.
    pub(super) fn leave(&mut self, channel: ChannelId, membership: u32) -> Result<u32, Errno> {
        let owner = self.memberships.get(&membership).ok_or(Errno(libc::ENOENT))?.owner;
        self.find(channel, owner)?;
        Ok(self.end_membership(membership))
    }

    pub(super) fn end_membership(&mut self, membership: u32) -> u32 {
        let Some(m) = self.memberships.remove(&membership) else { return 0 };
        let channel = self.ids.get(&m.owner).map(|i| i.channel);
        if let Some((channel, queue)) = channel.and_then(|c| Some((c, self.channels.get_mut(&c)?))) {
            let before = queue.len();
            queue.retain(|e| e.membership != Some(membership));
            let by = queue.len() as i64 - before as i64;
            self.ring(channel, by);
        }
        m.events_reported
    }

    /// Members of a group cannot be asked for.
    pub fn on_search_failed(&mut self, group: IpAddr, own: IpAddr, code: i32) {
        let why = std::io::Error::from_raw_os_error(code);
        self.say(&format!(
            "cannot look for the members of group {group} from {own}: {why}; try an address whose interface has multicast"
        ));
    }
}
