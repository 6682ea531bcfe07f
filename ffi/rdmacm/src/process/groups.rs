//! The sockets by which the members of groups are found.

use super::sockets::errno;
use crate::Errno;
use crate::group::{LEN, PORT, Packet};
use crate::lookup::Key;
use base::{Span, Time};
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, RawFd};

/// Groups that a process is in, at most.
const MAX_GROUPS: usize = 1_024;
/// Routers between an asking host and a member, at most.
const HOPS: u32 = 16;
/// Answers of this process in a second: a query that somebody has recorded can be sent again in the name of another host.
const MOST_ANSWERS: u32 = 100;
/// Questions that may still be answered.
const MOST_ASKED: usize = 64;
const TAKEN_AT_ONCE: usize = 64;

/// See the module.
pub(super) struct Groups {
    key: Key,
    /// Groups of own members, how many members each has, and the socket at which it is asked for.
    joined: HashMap<IpAddr, (UdpSocket, u32)>,
    /// The sockets that ask, by own address.
    asking: HashMap<IpAddr, UdpSocket>,
    /// What was asked, oldest first.
    asked: VecDeque<(IpAddr, [u8; 16])>,
    /// Answers since a time.
    answers: (Time, u32),
}

/// The own addresses of a family with the numbers of their interfaces.
fn interfaces(is_v4: bool) -> Vec<(IpAddr, u32)> {
    let mut all = lhio::host_addresses();
    all.retain(|(a, _)| a.is_ipv4() == is_v4);
    all
}

fn socket(a: &IpAddr) -> io::Result<Socket> {
    let domain = if a.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    if a.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// A socket at which a group is asked for, on each interface that the host has.
fn joined_socket(group: IpAddr) -> io::Result<UdpSocket> {
    let s = socket(&group)?;
    // Each process of the host that has members is asked.
    s.set_reuse_address(true)?;
    s.bind(&SocketAddr::new(group, PORT).into())?;
    let mut done = Err(io::Error::from_raw_os_error(libc::ENODEV));
    for (own, index) in interfaces(group.is_ipv4()) {
        let joined = match (&group, own) {
            (IpAddr::V4(g), IpAddr::V4(_)) => {
                s.join_multicast_v4_n(g, &InterfaceIndexOrAddress::Index(index))
            }
            (IpAddr::V6(g), _) => s.join_multicast_v6(g, index),
            _ => continue,
        };
        // An interface with two addresses is joined once.
        let is_in = joined.as_ref().is_err_and(|e| e.kind() == ErrorKind::AddrInUse);
        if joined.is_ok() || is_in {
            done = Ok(());
        } else if done.is_err() {
            done = joined;
        }
    }
    done.map(|()| s.into())
}

/// A socket that asks from an own address.
fn asking_socket(own: IpAddr) -> io::Result<UdpSocket> {
    let s = socket(&own)?;
    s.bind(&SocketAddr::new(own, 0).into())?;
    match own {
        IpAddr::V4(a) => {
            s.set_multicast_if_v4(&a)?;
            s.set_multicast_ttl_v4(HOPS)?;
        }
        IpAddr::V6(_) => {
            let index = interfaces(false).iter().find(|(a, _)| *a == own).map_or(0, |(_, i)| *i);
            s.set_multicast_if_v6(index)?;
            s.set_multicast_hops_v6(HOPS)?;
        }
    }
    Ok(s.into())
}

/// Takes datagrams of the cluster from a socket.
fn take(socket: &UdpSocket, key: &Key, mut f: impl FnMut(Packet, SocketAddr)) {
    let mut buf = [0; LEN + 1];
    for _ in 0..TAKEN_AT_ONCE {
        match socket.recv_from(&mut buf) {
            Ok((n, from)) => {
                if let Some(p) = Packet::decode(&buf[..n], key) {
                    f(p, from);
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => return,
            Err(_) => {}
        }
    }
}

impl Groups {
    pub(super) fn new(key: Key) -> Groups {
        let (joined, asking, asked) = (HashMap::new(), HashMap::new(), VecDeque::new());
        Groups { key, joined, asking, asked, answers: (Time::ZERO, 0) }
    }

    /// A queue pair of ours becomes a member.
    ///
    /// # Errors
    /// The system's; ENOMEM for too many.
    pub(super) fn join(&mut self, group: IpAddr) -> Result<(), Errno> {
        if let Some((_, members)) = self.joined.get_mut(&group) {
            *members += 1;
            return Ok(());
        }
        if self.joined.len() >= MAX_GROUPS {
            return Err(Errno(libc::ENOMEM));
        }
        let socket = joined_socket(group).map_err(|e| errno(&e))?;
        self.joined.insert(group, (socket, 1));
        Ok(())
    }

    /// It is none any more.
    pub(super) fn leave(&mut self, group: IpAddr) {
        if let Some((_, members)) = self.joined.get_mut(&group) {
            *members -= 1;
            if *members == 0 {
                self.joined.remove(&group);
            }
        }
    }

    /// Asks for members of a group.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn ask(&mut self, group: IpAddr, own: IpAddr, nonce: [u8; 16]) -> Result<(), Errno> {
        let socket = match self.asking.entry(own) {
            Entry::Occupied(e) => e.into_mut(),
            Entry::Vacant(e) => e.insert(asking_socket(own).map_err(|e| errno(&e))?),
        };
        if self.asked.len() >= MOST_ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back((group, nonce));
        let query = Packet { group, process: None, nonce }.encode(&self.key);
        match socket.send_to(&query, SocketAddr::new(group, PORT)) {
            Err(e) if e.kind() != ErrorKind::WouldBlock => Err(errno(&e)),
            _ => Ok(()),
        }
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let joined = self.joined.values().map(|(s, _)| s.as_raw_fd());
        joined.chain(self.asking.values().map(|s| s.as_raw_fd()))
    }

    /// Answers those who ask for groups of ours: `own` is the address by which a host reaches this one, `port` the engine's.
    pub(super) fn answer(
        &mut self,
        now: Time,
        ready: impl Fn(RawFd) -> bool,
        port: u16,
        own: impl Fn(IpAddr) -> Option<IpAddr>,
    ) {
        let mut asked = Vec::new();
        for (group, (socket, _)) in self.joined.iter().filter(|(_, (s, _))| ready(s.as_raw_fd())) {
            take(socket, &self.key, |p, from| {
                if p.process.is_none() && p.group == *group {
                    asked.push((p, from));
                }
            });
        }
        for (p, from) in asked {
            if now.since(self.answers.0) >= Span::from_secs(1) {
                self.answers = (now, 0);
            }
            self.answers.1 += 1;
            let (true, Some(own)) = (self.answers.1 <= MOST_ANSWERS, own(from.ip())) else { continue };
            let answer = Packet { process: Some(SocketAddr::new(own, port)), ..p }.encode(&self.key);
            let any: IpAddr =
                if from.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            // A lost answer is asked for again.
            let _ = UdpSocket::bind(SocketAddr::new(any, 0)).and_then(|s| s.send_to(&answer, from));
        }
    }

    /// Processes that have answered.
    pub(super) fn answers(&self, ready: impl Fn(RawFd) -> bool) -> Vec<(IpAddr, SocketAddr)> {
        let mut found = Vec::new();
        for socket in self.asking.values().filter(|s| ready(s.as_raw_fd())) {
            take(socket, &self.key, |p, _| {
                let was_asked = self.asked.iter().any(|(g, nonce)| *g == p.group && *nonce == p.nonce);
                found.extend(p.process.filter(|_| was_asked).map(|process| (p.group, process)));
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// A question and its answer over the loopback interface. The processes are found, if there is an answer.
    fn question(asks: &mut Groups, member: &mut Groups, now: Time, n: u8) -> Vec<(IpAddr, SocketAddr)> {
        let group = IpAddr::from([239, 77, 1, 10]);
        asks.ask(group, HERE, [n; 16]).expect("asked");
        member.answer(now, |_| true, 24_600, |_| Some(HERE));
        asks.answers(|_| true)
    }

    #[test]
    fn members_answer_questions_of_their_cluster_and_not_too_many() {
        let new = |secret| Groups::new(Key::new(&[secret; 32]));
        let (mut asks, mut stranger, mut member) = (new(1), new(2), new(1));
        let group = IpAddr::from([239, 77, 1, 10]);
        let found = vec![(group, SocketAddr::new(HERE, 24_600))];
        let now = Time::from_nanos(5_000_000_000);
        assert_eq!(question(&mut asks, &mut member, now, 1), [], "nobody has joined");
        member.join(group).expect("joined");
        member.join(group).expect("a second member");
        member.leave(group);
        assert_eq!(question(&mut asks, &mut member, now, 2), found);
        assert_eq!(question(&mut stranger, &mut member, now, 3), []);
        let answered = (0..200).filter(|n| !question(&mut asks, &mut member, now, *n).is_empty()).count();
        assert_eq!(answered, MOST_ANSWERS as usize - 1);
        assert_eq!(question(&mut asks, &mut member, now + Span::from_secs(1), 4), found);
        member.leave(group);
        assert_eq!(question(&mut asks, &mut member, now + Span::from_secs(9), 5), []);
    }
}
