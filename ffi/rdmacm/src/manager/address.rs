//! Addresses, routes, services and options.

use super::{ChannelId, Host, INVALID, Id, Manager, State};
use crate::Errno;
use crate::abi::{self, Address, Writer, event, put_address};
use crate::event::Event;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The first of the ports that are given to who only connects.
const FIRST_EPHEMERAL: u16 = 49_152;
/// Options of `rdma_set_option`: level and name.
mod option {
    pub(super) const TOS: (u32, u32) = (0, 0);
    pub(super) const REUSE_ADDRESS: (u32, u32) = (0, 1);
    pub(super) const V6_ONLY: (u32, u32) = (0, 2);
    pub(super) const ACK_TIMEOUT: (u32, u32) = (0, 3);
    pub(super) const PATH: (u32, u32) = (1, 1);
}
/// Bytes of `struct ib_path_rec_data`.
const PATH_RECORD: usize = 72;

impl Id {
    /// Whether the device is known that it uses.
    pub(super) const fn has_device(&self) -> bool {
        self.path.is_some()
    }

    /// Where the peer's host is asked.
    pub(super) fn asked_at(&self) -> Option<SocketAddr> {
        let (target, (_, peer)) = (self.target?, self.path?);
        let is_here = target.ip().is_loopback() || target.ip().is_unspecified();
        Some(if is_here { SocketAddr::new(peer, target.port()) } else { target })
    }

    /// Whether the way to the peer is known.
    const fn has_route(&self) -> bool {
        !matches!(self.state, State::Idle | State::Bound | State::AddressResolved | State::Listening)
    }
}

impl Manager {
    pub(super) fn bind(
        &mut self,
        host: &mut dyn Host,
        channel: ChannelId,
        handle: u32,
        to: Address,
    ) -> Result<(), Errno> {
        let id = self.find(channel, handle)?;
        let Address::Ip(mut at) = to else { return Err(Errno(libc::EAFNOSUPPORT)) };
        if id.state != State::Idle {
            return Err(INVALID);
        }
        if at.ip().is_loopback() {
            // Another name of the host's first address: what listens there is to be found under the name that others know.
            at.set_ip(host.route(at.ip(), None)?.0);
        }
        if !at.ip().is_unspecified() && host.gid_index(at.ip()).is_none() {
            return Err(Errno(if host.is_own(at.ip()) { libc::ENODEV } else { libc::EADDRNOTAVAIL }));
        }
        // Who lets others have the address, too, takes it when listening. So does who wants datagrams: rsockets hold the UDP port of
        // the same number themselves, and never listen.
        let waits = (id.reuses_address || id.is_datagram()) && at.port() != 0;
        let taken = if waits { at } else { host.take_service(at, id.v6_only)? };
        (id.source, id.service, id.state) = (Some(taken), (!waits).then_some(taken), State::Bound);
        if !at.ip().is_unspecified() {
            id.path = host.route(at.ip(), None).ok();
        }
        Ok(())
    }

    /// Takes the UDP port of an identifier that is to listen.
    pub(super) fn take_port(
        &mut self,
        host: &mut dyn Host,
        channel: ChannelId,
        handle: u32,
    ) -> Result<(), Errno> {
        if self.find(channel, handle)?.state == State::Idle {
            let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
            self.bind(host, channel, handle, Address::Ip(any))?;
        }
        let id = self.find(channel, handle)?;
        if id.service.is_none() {
            let at = id.source.ok_or(INVALID)?;
            id.service = Some(host.take_service(at, id.v6_only)?);
        }
        Ok(())
    }

    pub(super) fn resolve(
        &mut self,
        host: &mut dyn Host,
        channel: ChannelId,
        handle: u32,
        (from, to): (Address, Address),
    ) -> Result<(), Errno> {
        let Address::Ip(target) = to else { return Err(Errno(libc::EAFNOSUPPORT)) };
        let id = self.find(channel, handle)?;
        if !matches!(id.state, State::Idle | State::Bound) {
            return Err(INVALID);
        }
        if id.state == State::Idle
            && let Address::Ip(at) = from
        {
            if at.is_ipv4() != target.is_ipv4() {
                return Err(INVALID);
            }
            if at.port() != 0 {
                self.bind(host, channel, handle, from)?;
            } else if !at.ip().is_unspecified() && !host.is_own(at.ip()) {
                return Err(Errno(libc::EADDRNOTAVAIL));
            } else {
                id.source = Some(at);
            }
        }
        let port = self.ephemeral();
        let id = self.find(channel, handle)?;
        let wanted = id.source.map(|s| s.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback());
        let found = host
            .route(target.ip(), wanted)
            .and_then(|(own, peer)| host.gid_index(own).map(|_| (own, peer)).ok_or(Errno(libc::ENODEV)));
        let (own, peer) = match found {
            Ok(path) => path,
            Err(Errno(code)) => {
                self.tell(Event::plain(handle, event::ADDR_ERROR, -code));
                return Ok(());
            }
        };
        let port = id.source.map(|s| s.port()).filter(|p| *p != 0).unwrap_or(port);
        (id.source, id.target) = (Some(SocketAddr::new(own, port)), Some(target));
        (id.path, id.state) = (Some((own, peer)), State::AddressResolved);
        self.tell(Event::plain(handle, event::ADDR_RESOLVED, 0));
        Ok(())
    }

    fn ephemeral(&mut self) -> u16 {
        self.next_port = self.next_port.wrapping_add(1) % (u16::MAX - FIRST_EPHEMERAL);
        FIRST_EPHEMERAL + self.next_port
    }

    pub(super) fn resolve_route(&mut self, channel: ChannelId, handle: u32) -> Result<(), Errno> {
        let id = self.find(channel, handle)?;
        if id.state != State::AddressResolved {
            return Err(INVALID);
        }
        id.state = State::RouteResolved;
        self.tell(Event::plain(handle, event::ROUTE_RESOLVED, 0));
        Ok(())
    }

    pub(super) fn query_route(
        &mut self,
        host: &dyn Host,
        channel: ChannelId,
        handle: u32,
        room: usize,
    ) -> Result<Vec<u8>, Errno> {
        let id = self.find(channel, handle)?;
        let mut out = Writer::new(abi::QUERY_ROUTE);
        out.put(136, &put_address(id.source).0).put(164, &put_address(id.target).0);
        if id.has_device() {
            out.u64(0, host.guid()).put(196, &[1]);
            let record = path_record(id);
            out.put(8, &record).u32(192, id.has_route().into());
        }
        out.0.truncate(room);
        Ok(out.0)
    }

    pub(super) fn query(
        &mut self,
        host: &dyn Host,
        channel: ChannelId,
        handle: u32,
        (option, room): (u32, usize),
    ) -> Result<Vec<u8>, Errno> {
        const ADDRESSES: u32 = 0;
        const PATH: u32 = 1;
        const GIDS: u32 = 2;
        let id = self.find(channel, handle)?;
        let mut out = match option {
            ADDRESSES => query_addresses(id, host),
            GIDS => query_gids(id),
            // The records of the subnet's administration are InfiniBand's; a path over Ethernet has none.
            PATH => Writer::new(8),
            _ => return Err(Errno(libc::ENOSYS)),
        };
        out.0.truncate(room);
        Ok(out.0)
    }

    pub(super) fn set_option(
        &mut self,
        host: &dyn Host,
        channel: ChannelId,
        handle: u32,
        (which, (at, len)): ((u32, u32), (u64, u32)),
    ) -> Result<(), Errno> {
        const MOST: u32 = 4_096;
        let id = self.find(channel, handle)?;
        if len > MOST {
            return Err(INVALID);
        }
        let value = host.read(at, len as usize)?;
        let word = || <[u8; 4]>::try_from(&value[..]).map(i32::from_ne_bytes).map_err(|_| INVALID);
        let byte = || <[u8; 1]>::try_from(&value[..]).map(|[b]| b).map_err(|_| INVALID);
        let is_new = matches!(id.state, State::Idle | State::Bound | State::AddressResolved);
        match which {
            option::TOS => {
                id.type_of_service = byte()?;
                Ok(())
            }
            option::REUSE_ADDRESS if id.state == State::Idle || id.reuses_address => {
                id.reuses_address = word()? != 0;
                Ok(())
            }
            option::V6_ONLY if id.state == State::Idle => {
                id.v6_only = word()? != 0;
                Ok(())
            }
            option::ACK_TIMEOUT if is_new || id.state == State::RouteResolved => {
                id.ack_timeout = Some(byte()?).filter(|b| *b < 32);
                Ok(())
            }
            option::PATH if !value.is_empty() && value.len() % PATH_RECORD == 0 => {
                self.resolve_route(channel, handle)
            }
            option::REUSE_ADDRESS | option::V6_ONLY | option::ACK_TIMEOUT | option::PATH => Err(INVALID),
            _ => Err(Errno(libc::ENOSYS)),
        }
    }
}

fn gids(id: &Id) -> ([u8; 16], [u8; 16]) {
    let of = |a: Option<IpAddr>| a.map_or([0; 16], abi::gid);
    let (own, peer) = id.path.unzip();
    let bound = id.source.map(|s| s.ip());
    (of(own.or(bound)), of(peer.filter(|_| id.target.is_some())))
}

/// `struct ib_user_path_rec`.
fn path_record(id: &Id) -> Vec<u8> {
    const REVERSIBLE: u32 = 1;
    const MTU_4096: u32 = 5;
    const EXACTLY: u8 = 2;
    const RATE_100_GBIT: u8 = 16;
    const LIFE_TIME: u8 = 16;
    const HOPS: u8 = 64;
    let (own, peer) = gids(id);
    let mut out = Writer::new(64);
    out.put(0, &peer).put(16, &own).u32(44, REVERSIBLE).u32(48, MTU_4096);
    out.u16(52, abi::PKEY.to_be()).put(54, &[HOPS]);
    // Paths, service level, and the selectors with their values.
    out.put(56, &[1, 0, EXACTLY, EXACTLY, RATE_100_GBIT, EXACTLY, LIFE_TIME]);
    out.0
}

fn query_addresses(id: &Id, host: &dyn Host) -> Writer {
    let mut out = Writer::new(abi::QUERY_ADDR);
    let ((source, n), (target, m)) = (put_address(id.source), put_address(id.target));
    out.u16(12, n as u16).u16(14, m as u16).put(16, &source).put(144, &target);
    if id.has_device() {
        out.u64(0, host.guid()).put(8, &[1]).u16(10, abi::PKEY);
    }
    out
}

/// The GIDs as addresses of InfiniBand (`struct sockaddr_ib`).
fn query_gids(id: &Id) -> Writer {
    const AF_IB: u16 = 27;
    const LEN: u16 = 48;
    let mut out = Writer::new(abi::QUERY_ADDR);
    let (own, peer) = gids(id);
    out.u16(10, abi::PKEY).u16(12, LEN).u16(14, LEN);
    for (at, gid) in [(16, own), (144, peer)] {
        out.u16(at, AF_IB).u16(at + 2, abi::PKEY.to_be()).put(at + 8, &gid);
    }
    out
}
