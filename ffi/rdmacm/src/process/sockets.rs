//! The sockets of services and of queries, and what the manager asks of the system.

use super::groups::Groups;
use super::{Device, last_error, memory};
use crate::Errno;
use crate::lookup::{self, Key, Packet};
use crate::manager::{ChannelId, Host};
use base::Time;
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, RawFd};

/// Sockets, and what is known of the device.
pub(super) struct Outside {
    key: Key,
    device: Device,
    port: u16,
    /// By descriptor of the program.
    pub(super) descriptors: HashMap<RawFd, ChannelId>,
    /// UDP ports that are taken for services, and how often.
    services: HashMap<SocketAddr, (UdpSocket, u32)>,
    asking: HashMap<u32, UdpSocket>,
    pub(super) groups: Groups,
    has_changed: bool,
    has_closed: bool,
}

/// What has come of a query.
pub(super) enum Asking {
    Answered(Packet),
    /// The host says that nothing is at the port.
    Refused,
}

pub(super) fn errno(e: &io::Error) -> Errno {
    Errno(e.raw_os_error().unwrap_or(libc::EIO))
}

fn canonical(a: SocketAddr) -> SocketAddr {
    match a.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), a.port()),
        IpAddr::V6(_) => a,
    }
}

const fn any_of(a: &IpAddr) -> IpAddr {
    if a.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) }
}

/// A socket for queries, which is told when a host refuses.
fn asking_socket(to: SocketAddr) -> Result<UdpSocket, Errno> {
    let socket = UdpSocket::bind(SocketAddr::new(any_of(&to.ip()), 0)).map_err(|e| errno(&e))?;
    socket.set_nonblocking(true).map_err(|e| errno(&e))?;
    let (level, name) =
        if to.is_ipv4() { (libc::SOL_IP, libc::IP_RECVERR) } else { (libc::SOL_IPV6, libc::IPV6_RECVERR) };
    let on: i32 = 1;
    // SAFETY: an integer, with its size.
    let set = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), 4) };
    if set == 0 { Ok(socket) } else { Err(last_error()) }
}

/// Takes errors off a socket, so that it is not ready because of them.
fn drain_errors(socket: &UdpSocket) {
    let mut buf = [0u8; 64];
    loop {
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the buffer, with its size.
        if unsafe { libc::recv(socket.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), flags) } < 0 {
            return;
        }
    }
}

impl Outside {
    pub(super) fn new(key: Key, device: Device, port: u16) -> Outside {
        let (descriptors, services, asking) = (HashMap::new(), HashMap::new(), HashMap::new());
        let groups = Groups::new(key.clone());
        let (has_changed, has_closed) = (false, false);
        Outside { key, device, port, descriptors, services, asking, groups, has_changed, has_closed }
    }

    /// Whether sockets have come or gone, and whether ports were given back, since this was asked.
    pub(super) fn take_changes(&mut self) -> (bool, bool) {
        (core::mem::take(&mut self.has_changed), core::mem::take(&mut self.has_closed))
    }

    /// What the thread waits for: `first`, and all sockets.
    pub(super) fn poll_list(&self, first: RawFd) -> Vec<libc::pollfd> {
        let services = self.services.values().map(|(s, _)| s.as_raw_fd());
        let all = core::iter::once(first).chain(services).chain(self.asking.values().map(|s| s.as_raw_fd()));
        let all = all.chain(self.groups.descriptors());
        all.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect()
    }

    pub(super) fn ask(&mut self, id: u32, to: SocketAddr, query: &Packet) -> Result<(), Errno> {
        let to = canonical(to);
        let socket = match self.asking.entry(id) {
            Entry::Occupied(e) => e.into_mut(),
            Entry::Vacant(e) => e.insert(asking_socket(to)?),
        };
        match socket.send_to(&query.encode(&self.key), to) {
            // What was refused before is told by the socket, and a full queue is as good as a lost packet.
            Err(e) if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => {
                Err(errno(&e))
            }
            _ => Ok(()),
        }
    }

    /// A queue pair becomes a member of a group.
    pub(super) fn join_group(&mut self, group: IpAddr) -> Result<(), Errno> {
        self.has_changed = true;
        self.groups.join(group)
    }

    /// It is none any more.
    pub(super) fn leave_group(&mut self, group: IpAddr) {
        self.has_changed = true;
        self.groups.leave(group);
    }

    /// Answers those who ask for groups; gives who has answered.
    pub(super) fn take_groups(
        &mut self,
        now: Time,
        ready: impl Fn(RawFd) -> bool,
    ) -> Vec<(IpAddr, SocketAddr)> {
        let Outside { device, port, groups, .. } = self;
        let own = |from| route(device, from, None).ok().map(|(own, _)| own);
        groups.answer(now, &ready, *port, own);
        groups.answers(ready)
    }

    pub(super) fn stop_asking(&mut self, id: u32) {
        self.has_changed |= self.asking.remove(&id).is_some();
    }

    /// What is asked of services of ours.
    pub(super) fn queries(
        &self,
        ready: impl Fn(RawFd) -> bool,
        most: usize,
    ) -> Vec<(SocketAddr, Packet, SocketAddr)> {
        let mut found = Vec::new();
        for (at, (socket, _)) in self.services.iter().filter(|(_, (s, _))| ready(s.as_raw_fd())) {
            let mut buf = [0; lookup::LEN + 1];
            for _ in 0..most {
                match socket.recv_from(&mut buf) {
                    Ok((n, from)) => {
                        let query = Packet::decode(&buf[..n], &self.key);
                        let query = query.filter(|q| q.kind == lookup::Kind::Query && q.port == at.port());
                        found.extend(query.map(|q| (*at, q, from)));
                    }
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => {}
                }
            }
        }
        found
    }

    pub(super) fn answer(&self, at: SocketAddr, answer: &Packet, to: SocketAddr) {
        if let Some((socket, _)) = self.services.get(&at) {
            // A lost answer is asked for again.
            let _ = socket.send_to(&answer.encode(&self.key), to);
        }
    }

    /// What is answered to queries of ours.
    pub(super) fn answers(&self, ready: impl Fn(RawFd) -> bool, most: usize) -> Vec<(u32, Asking)> {
        let mut found = Vec::new();
        for (id, socket) in self.asking.iter().filter(|(_, s)| ready(s.as_raw_fd())) {
            let mut buf = [0; lookup::LEN + 1];
            for _ in 0..most {
                match socket.recv_from(&mut buf) {
                    // By whom does not matter: only members of the cluster know the key, and only who was asked knows the nonce.
                    Ok((n, _)) => {
                        found
                            .extend(Packet::decode(&buf[..n], &self.key).map(|p| (*id, Asking::Answered(p))));
                    }
                    Err(e) if e.kind() == ErrorKind::ConnectionRefused => found.push((*id, Asking::Refused)),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                    Err(_) => {}
                }
            }
            drain_errors(socket);
        }
        found
    }

    fn bind(at: SocketAddr, v6_only: bool) -> io::Result<UdpSocket> {
        let socket =
            Socket::new(Domain::for_address(at), Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
        if at.is_ipv6() {
            socket.set_only_v6(v6_only)?;
        }
        socket.bind(&at.into())?;
        Ok(socket.into())
    }
}

/// The own address and the peer's by which `to` is reached.
fn route(device: &Device, to: IpAddr, from: Option<IpAddr>) -> Result<(IpAddr, IpAddr), Errno> {
    let to = to.to_canonical();
    if to.is_loopback() || to.is_unspecified() {
        // Queue pairs know the host by an address that others know it by, too.
        let all = (device.gids)();
        let own =
            if all.contains(&to) { Some(&to) } else { all.iter().find(|a| a.is_ipv4() == to.is_ipv4()) };
        return own.or(all.first()).map(|a| (*a, *a)).ok_or(Errno(libc::ENODEV));
    }
    let from = from.map(|f| f.to_canonical()).filter(|f| f.is_ipv4() == to.is_ipv4());
    let socket =
        UdpSocket::bind(SocketAddr::new(from.unwrap_or_else(|| any_of(&to)), 0)).map_err(|e| errno(&e))?;
    // Nothing is sent: the kernel chooses the own address.
    socket.connect(SocketAddr::new(to, 9)).map_err(|e| errno(&e))?;
    let own = socket.local_addr().map_err(|e| errno(&e))?.ip().to_canonical();
    Ok((own, to))
}

impl Host for Outside {
    fn take_service(&mut self, at: SocketAddr, v6_only: bool) -> Result<SocketAddr, Errno> {
        // A service of connections and one of datagrams may have the same number.
        if let Some((_, times)) = self.services.get_mut(&at) {
            *times += 1;
            return Ok(at);
        }
        let socket = Outside::bind(at, v6_only).map_err(|e| errno(&e))?;
        let at = socket.local_addr().map_err(|e| errno(&e))?;
        self.services.insert(at, (socket, 1));
        self.has_changed = true;
        Ok(at)
    }

    fn give_back_service(&mut self, at: SocketAddr) {
        if let Some((_, times)) = self.services.get_mut(&at) {
            *times -= 1;
            if *times == 0 {
                self.services.remove(&at);
                (self.has_changed, self.has_closed) = (true, true);
            }
        }
    }

    fn route(&self, to: IpAddr, from: Option<IpAddr>) -> Result<(IpAddr, IpAddr), Errno> {
        route(&self.device, to, from)
    }

    fn is_own(&self, a: IpAddr) -> bool {
        let a = a.to_canonical();
        a.is_loopback() || lhio::host_addresses().iter().any(|(own, _)| *own == a)
    }

    fn gid_index(&self, a: IpAddr) -> Option<u8> {
        let at = (self.device.gids)().iter().position(|own| *own == a.to_canonical())?;
        u8::try_from(at).ok()
    }

    fn guid(&self) -> u64 {
        self.device.guid
    }

    fn port(&self) -> u16 {
        self.port
    }

    fn random(&mut self) -> [u8; 16] {
        let mut bytes = [0; 16];
        // Without randomness of the system nothing could have connected.
        let _ = lhio::clock::fill_random(&mut bytes);
        bytes
    }

    fn channel_of(&self, descriptor: u32) -> Option<ChannelId> {
        let fd = RawFd::try_from(descriptor).ok()?;
        self.descriptors.get(&fd).copied()
    }

    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Errno> {
        memory::read(at, len)
    }
}
