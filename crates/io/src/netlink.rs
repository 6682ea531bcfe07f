//! Queries the kernel over rtnetlink(7): interfaces, addresses, routes and neighbours.
//!
//! Answers are read with checks at every step and unknown attributes passed over: kernels differ.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// An Ethernet address.
pub(crate) type Mac = [u8; 6];

/// Bytes of one answer: the kernel's own messages are of at most a page or 32 KiB.
const ANSWER: usize = 64 << 10;
/// Pieces of one long answer: some ten thousand addresses.
const MAX_PIECES: usize = 1_024;
const HEADER: usize = 16;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST: u16 = 1;
const DUMP: u16 = 0x300;
const RTM_GETLINK: u16 = 18;
const RTM_GETADDR: u16 = 22;
const RTM_GETROUTE: u16 = 26;
const RTM_GETNEIGH: u16 = 30;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// Of an address: of IPv6 a temporary one (RFC 8981), of IPv4 one more of its network.
const IFA_F_TEMPORARY: u32 = 0x01;
/// Nobody has answered yet whether it is another's, but it may be used meanwhile (RFC 4429).
const IFA_F_OPTIMISTIC: u32 = 0x04;
/// It is another's.
const IFA_F_DADFAILED: u32 = 0x08;
/// Not for anything new (RFC 4862).
const IFA_F_DEPRECATED: u32 = 0x20;
/// Nobody has answered yet whether it is another's.
const IFA_F_TENTATIVE: u32 = 0x40;
/// Groups of rtnetlink(7) that are told of changes: RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR. Not of routes: a
/// router's change all the time.
const NEWS: u32 = 0x01 | 0x10 | 0x100;
/// Pieces of news taken in at once.
const MAX_NEWS: usize = 256;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_METRICS: u16 = 8;
const RTA_VIA: u16 = 18;
const RTAX_MTU: u16 = 2;
const RTN_UNICAST: u8 = 1;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
/// Reachable, stale, delayed, being probed, without ARP, permanent: in all of these the address is good to use.
const USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// Reachable, without ARP, permanent: nothing need be done to keep it so.
const CONFIRMED: u16 = 0x02 | 0x40 | 0x80;

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// `None` unless it is Ethernet.
    pub(crate) mac: Option<Mac>,
    pub(crate) mtu: usize,
    pub(crate) up: bool,
    /// It is up, and there is something at the other end of its cable.
    pub(crate) carrier: bool,
    /// Receive queues that it may have; it can use fewer.
    pub(crate) queues: u32,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) ip: IpAddr,
    pub(crate) interface: u32,
    /// Bits of its network.
    pub(crate) prefix: u8,
    /// It is certain to be this interface's.
    pub(crate) valid: bool,
    /// It is there to stay: what is new may use it.
    pub(crate) lasting: bool,
}

/// How the kernel would send to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// Over an interface to another machine, rather than to this one, to many, or nowhere.
    pub(crate) unicast: bool,
    pub(crate) interface: u32,
    /// The next hop; the destination itself when there is none.
    pub(crate) gateway: Option<IpAddr>,
    /// The source that goes with the route.
    pub(crate) source: Option<IpAddr>,
    /// The route's own limit.
    pub(crate) mtu: Option<usize>,
}

/// What the kernel knows of a neighbour that it has an address for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) mac: Mac,
    /// It was heard of lately. If not, the kernel asks it when it next sends something there itself.
    pub(crate) confirmed: bool,
}

/// A socket to the kernel's tables.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
    answer: Box<[u8]>,
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Netlink {
    pub(crate) fn open() -> io::Result<Netlink> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: takes integers only.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Netlink { fd, sequence: 0, answer: vec![0; ANSWER].into_boxed_slice() })
    }

    /// A socket that is told of changes of interfaces and addresses.
    pub(crate) fn listen() -> io::Result<Netlink> {
        let n = Netlink::open()?;
        // SAFETY: integers, for which all zeroes is a value.
        let mut to: libc::sockaddr_nl = unsafe { core::mem::zeroed() };
        to.nl_family = libc::AF_NETLINK as libc::sa_family_t;
        to.nl_groups = NEWS;
        let len = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: pointer and length describe `to`, which is only read.
        if unsafe { libc::bind(n.fd.as_raw_fd(), (&raw const to).cast(), len) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(n)
    }

    /// Takes in what has been told: whether there was anything. What it was does not matter, since all is asked for anew.
    ///
    /// # Errors
    /// ENOBUFS: some was lost. Others: nothing more will be told.
    pub(crate) fn news(&mut self) -> io::Result<bool> {
        for n in 0..MAX_NEWS {
            match self.receive().map_err(|e| (e.raw_os_error(), e)) {
                Ok(_) | Err((Some(libc::EMSGSIZE | libc::EINTR), _)) => {}
                Err((Some(libc::EAGAIN), _)) => return Ok(n > 0),
                Err((_, e)) => return Err(e),
            }
        }
        Ok(true)
    }

    /// The interface of a name.
    pub(crate) fn link_named(&mut self, name: &str) -> io::Result<Link> {
        let mut m = Message::new(RTM_GETLINK, REQUEST, &[0; 16]);
        m.attribute(IFLA_IFNAME, &[name.as_bytes(), &[0]].concat());
        self.link(m)
    }

    /// The interface of a number.
    pub(crate) fn link_numbered(&mut self, index: u32) -> io::Result<Link> {
        let mut body = [0; 16];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        self.link(Message::new(RTM_GETLINK, REQUEST, &body))
    }

    fn link(&mut self, m: Message) -> io::Result<Link> {
        let mut found = None;
        self.ask(m, |body| found = link(body).or(found.take()))?;
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
    }

    /// All interfaces.
    pub(crate) fn links(&mut self) -> io::Result<Vec<Link>> {
        let mut all = Vec::new();
        self.ask(Message::new(RTM_GETLINK, REQUEST | DUMP, &[0; 16]), |body| all.extend(link(body)))?;
        Ok(all)
    }

    /// All addresses of this machine.
    pub(crate) fn addresses(&mut self) -> io::Result<Vec<Address>> {
        let mut all = Vec::new();
        self.ask(Message::new(RTM_GETADDR, REQUEST | DUMP, &[0; 8]), |body| all.extend(address(body)))?;
        Ok(all)
    }

    /// How the kernel would send from `src`, if that is given, to `dst`; over the interface of number `over` if it is not
    /// zero.
    pub(crate) fn route(&mut self, dst: IpAddr, src: Option<IpAddr>, over: u32) -> io::Result<Route> {
        let mut body = [0; 12];
        let to = octets(&dst);
        body[0] = family(&dst);
        body[1] = (to.as_ref().len() * 8) as u8;
        let src = src.filter(|s| s.is_ipv4() == dst.is_ipv4()).map(|s| octets(&s));
        body[2] = src.as_ref().map_or(0, |s| (s.as_ref().len() * 8) as u8);
        let mut m = Message::new(RTM_GETROUTE, REQUEST, &body);
        m.attribute(RTA_DST, to.as_ref());
        if let Some(src) = src {
            m.attribute(RTA_SRC, src.as_ref());
        }
        if over != 0 {
            m.attribute(RTA_OIF, &over.to_ne_bytes());
        }
        let mut found = None;
        self.ask(m, |body| found = route(body).or(found))?;
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))
    }

    /// What the kernel knows of a neighbour; `None` when it has no usable entry.
    pub(crate) fn neighbour(&mut self, interface: u32, ip: IpAddr) -> Option<Neighbour> {
        let mut body = [0; 12];
        body[0] = family(&ip);
        body[4..8].copy_from_slice(&interface.to_ne_bytes());
        let mut m = Message::new(RTM_GETNEIGH, REQUEST, &body);
        m.attribute(NDA_DST, octets(&ip).as_ref());
        let mut found = None;
        // An error says that there is no entry.
        self.ask(m, |body| found = neighbour(body).or(found)).ok()?;
        found
    }

    /// Sends a question and hands the body of each message of the answer to `each`.
    fn ask(&mut self, mut m: Message, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let dump = m.dump;
        let bytes = m.finish(self.sequence);
        // SAFETY: pointer and length describe `bytes`, which is only read.
        let sent = unsafe { libc::send(self.fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        for _ in 0..MAX_PIECES {
            let n = self.receive()?;
            match walk(&self.answer[..n], self.sequence, &mut each)? {
                Walked::Done => return Ok(()),
                Walked::Something if !dump => return Ok(()),
                Walked::Something | Walked::Nothing => {}
            }
        }
        Err(io::Error::from_raw_os_error(libc::EMSGSIZE))
    }

    /// One piece of an answer. The kernel has it ready when the question's system call returns: nothing is waited for.
    fn receive(&mut self) -> io::Result<usize> {
        let (buffer, len) = (self.answer.as_mut_ptr(), self.answer.len());
        // SAFETY: pointer and length describe the buffer, which is ours to write.
        let n = unsafe { libc::recv(self.fd.as_raw_fd(), buffer.cast(), len, libc::MSG_TRUNC) };
        match usize::try_from(n) {
            Ok(n) if n > len => Err(io::Error::from_raw_os_error(libc::EMSGSIZE)),
            Ok(n) => Ok(n),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

/// A question.
struct Message {
    bytes: Vec<u8>,
    dump: bool,
}

impl Message {
    fn new(kind: u16, flags: u16, body: &[u8]) -> Message {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(body);
        Message { bytes, dump: flags & DUMP == DUMP }
    }
    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.bytes.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
    fn finish(&mut self, sequence: u32) -> &[u8] {
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        &self.bytes
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walked {
    /// Nothing that answers this question.
    Nothing,
    Something,
    /// The end of a long answer.
    Done,
}

/// Goes over the messages of one piece of an answer.
fn walk(mut rest: &[u8], sequence: u32, each: &mut impl FnMut(&[u8])) -> io::Result<Walked> {
    let mut walked = Walked::Nothing;
    while let Some(h) = rest.first_chunk::<HEADER>() {
        let len = u32::from_ne_bytes([h[0], h[1], h[2], h[3]]) as usize;
        let kind = u16::from_ne_bytes([h[4], h[5]]);
        let ours = u32::from_ne_bytes([h[8], h[9], h[10], h[11]]) == sequence;
        let Some(body) = rest.get(HEADER..len) else { break };
        match kind {
            _ if !ours => {}
            NLMSG_DONE => return Ok(Walked::Done),
            NLMSG_ERROR => match number(body) {
                Some(0) | None => return Ok(Walked::Done),
                Some(e) => return Err(io::Error::from_raw_os_error((e as i32).wrapping_neg())),
            },
            _ => {
                each(body);
                walked = Walked::Something;
            }
        }
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(walked)
}

/// The attributes in `bytes`: kind and value.
fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    core::iter::from_fn(move || {
        let h = rest.first_chunk::<4>()?;
        let len = usize::from(u16::from_ne_bytes([h[0], h[1]]));
        // The two upper bits say "nested" and "network order".
        let kind = u16::from_ne_bytes([h[2], h[3]]) & 0x3fff;
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.first_chunk()?))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::V4(Ipv4Addr::from(*bytes.first_chunk::<4>()?))),
        16 => Some(IpAddr::V6(Ipv6Addr::from(*bytes.first_chunk::<16>()?))),
        _ => None,
    }
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    <Mac>::try_from(bytes).ok()
}

fn family(ip: &IpAddr) -> u8 {
    (if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

/// The bytes of an address of either family.
enum Octets {
    V4([u8; 4]),
    V6([u8; 16]),
}

impl AsRef<[u8]> for Octets {
    fn as_ref(&self) -> &[u8] {
        match self {
            Octets::V4(b) => b,
            Octets::V6(b) => b,
        }
    }
}

fn octets(ip: &IpAddr) -> Octets {
    match ip {
        IpAddr::V4(ip) => Octets::V4(ip.octets()),
        IpAddr::V6(ip) => Octets::V6(ip.octets()),
    }
}

/// Reads `struct ifinfomsg` and what follows.
fn link(body: &[u8]) -> Option<Link> {
    let ethernet = u16::from_ne_bytes(*body.get(2..)?.first_chunk()?) == libc::ARPHRD_ETHER;
    let flags = number(body.get(8..)?)?;
    let up = flags & libc::IFF_UP as u32 != 0;
    let carrier = up && flags & libc::IFF_LOWER_UP as u32 != 0;
    let index = number(body.get(4..)?)?;
    let mut l = Link { index, name: String::new(), mac: None, mtu: 0, up, carrier, queues: 1 };
    for (kind, value) in attributes(body.get(16..)?) {
        match kind {
            IFLA_ADDRESS if ethernet => l.mac = mac(value),
            IFLA_IFNAME => l.name = String::from_utf8_lossy(value.strip_suffix(&[0]).unwrap_or(value)).into(),
            IFLA_MTU => l.mtu = number(value)? as usize,
            IFLA_NUM_RX_QUEUES => l.queues = number(value)?.max(1),
            _ => {}
        }
    }
    Some(l)
}

/// Reads `struct ifaddrmsg` and what follows.
fn address(body: &[u8]) -> Option<Address> {
    let find = |wanted| attributes(body.get(8..)?).find(|(k, _)| *k == wanted).map(|(_, v)| v);
    // On links between two ends, the first is ours and the second is the other end's.
    let ip = find(IFA_LOCAL).or_else(|| find(IFA_ADDRESS)).and_then(ip)?;
    // The header has room for eight flags only.
    let flags = find(IFA_FLAGS).and_then(number).unwrap_or_else(|| body[2].into());
    let tentative = flags & IFA_F_TENTATIVE != 0 && flags & IFA_F_OPTIMISTIC == 0;
    let temporary = ip.is_ipv6() && flags & IFA_F_TEMPORARY != 0;
    Some(Address {
        ip,
        interface: number(body.get(4..)?)?,
        prefix: body[1],
        valid: !tentative && flags & IFA_F_DADFAILED == 0,
        lasting: !temporary && flags & IFA_F_DEPRECATED == 0,
    })
}

/// Reads `struct rtmsg` and what follows.
fn route(body: &[u8]) -> Option<Route> {
    let unicast = *body.get(7)? == RTN_UNICAST;
    let mut r = Route { unicast, interface: 0, gateway: None, source: None, mtu: None };
    for (kind, value) in attributes(body.get(12..)?) {
        match kind {
            RTA_OIF => r.interface = number(value)?,
            RTA_GATEWAY => r.gateway = ip(value),
            RTA_VIA => r.gateway = ip(value.get(2..)?),
            RTA_PREFSRC => r.source = ip(value),
            RTA_METRICS => {
                let mtu = attributes(value).find(|(k, _)| *k == RTAX_MTU).and_then(|(_, v)| number(v));
                r.mtu = mtu.filter(|m| *m > 0).map(|m| m as usize);
            }
            _ => {}
        }
    }
    Some(r)
}

/// Reads `struct ndmsg` and what follows.
fn neighbour(body: &[u8]) -> Option<Neighbour> {
    let state = u16::from_ne_bytes(*body.get(8..)?.first_chunk()?);
    let mac = attributes(body.get(12..)?).find(|(k, _)| *k == NDA_LLADDR).and_then(|(_, v)| mac(v))?;
    (state & USABLE != 0).then_some(Neighbour { mac, confirmed: state & CONFIRMED != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kernel_reports_the_loopback_interface() {
        let mut n = Netlink::open().unwrap();
        let lo = n.link_named("lo").unwrap();
        assert_eq!((lo.name.as_str(), lo.mac), ("lo", None));
        assert_eq!(n.link_numbered(lo.index).unwrap(), lo);
        assert!(n.link_named("no-such-thing").is_err());
        if lo.up {
            let local = IpAddr::from([127, 0, 0, 1]);
            assert!(
                n.addresses().unwrap().iter().any(|a| a.ip == local && a.interface == lo.index && a.valid)
            );
            assert!(n.links().unwrap().contains(&lo) && lo.carrier);
            let route = n.route(local, None, 0).unwrap();
            assert!(!route.unicast && route.interface == lo.index, "{route:?}");
            assert_eq!(n.neighbour(lo.index, IpAddr::from([127, 9, 9, 9])), None);
        }
    }

    #[test]
    fn notifications_arrive_only_on_change() {
        let mut n = Netlink::listen().unwrap();
        // Another test, or the machine, may have changed something.
        while n.news().unwrap() {}
        let mut m = Message::new(RTM_GETADDR, REQUEST, &[0; 8]);
        m.bytes[HEADER] = libc::AF_INET6 as u8;
        m.bytes[HEADER + 1] = 64;
        m.bytes[HEADER + 4] = 9;
        let address_of = |flags: u32| {
            let mut m = Message { bytes: m.bytes.clone(), dump: false };
            m.attribute(IFA_ADDRESS, &"2001:db8::7".parse::<Ipv6Addr>().unwrap().octets());
            m.attribute(IFA_FLAGS, &flags.to_ne_bytes());
            address(&m.bytes[HEADER..]).unwrap()
        };
        let a = address_of(0);
        assert_eq!((a.interface, a.prefix, a.valid, a.lasting), (9, 64, true, true));
        let told = [
            IFA_F_TENTATIVE,
            IFA_F_TENTATIVE | IFA_F_OPTIMISTIC,
            IFA_F_DADFAILED,
            IFA_F_TEMPORARY,
            IFA_F_DEPRECATED,
        ];
        let seen = told.map(|f| (address_of(f).valid, address_of(f).lasting));
        assert_eq!(seen, [(false, true), (true, true), (false, true), (true, false), (true, false)]);
        assert_eq!(address(&[0; 7]), None);
    }

    #[test]
    fn attributes_round_trip() {
        let mut m = Message::new(RTM_GETROUTE, REQUEST, &[0; 12]);
        m.bytes[HEADER + 7] = RTN_UNICAST;
        m.attribute(RTA_OIF, &7u32.to_ne_bytes());
        m.attribute(RTA_VIA, &[10, 0, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let mut metrics = Message::new(0, 0, &[]);
        metrics.attribute(RTAX_MTU, &1_400u32.to_ne_bytes());
        m.attribute(RTA_METRICS, &metrics.bytes[HEADER..]);
        let expected = Route {
            unicast: true,
            interface: 7,
            gateway: Some("fd00::1".parse().unwrap()),
            source: None,
            mtu: Some(1_400),
        };
        assert_eq!(route(&m.bytes[HEADER..]), Some(expected));
    }

    #[test]
    fn stale_answers_are_skipped_and_errors_reported() {
        let mut m = Message::new(9, 0, &[1, 2, 3, 4]);
        let bytes = m.finish(5).to_vec();
        let mut seen = 0;
        assert_eq!(walk(&bytes, 6, &mut |_| seen += 1).unwrap(), Walked::Nothing);
        assert_eq!(walk(&bytes, 5, &mut |_| seen += 1).unwrap(), Walked::Something);
        assert_eq!(seen, 1);
        let mut e = Message::new(NLMSG_ERROR, 0, &(-libc::ENODEV).to_ne_bytes());
        assert_eq!(walk(e.finish(5), 5, &mut |_| {}).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = walk(&bytes, 0, &mut |_| {});
            link(&bytes);
            address(&bytes);
            route(&bytes);
            neighbour(&bytes);
        }
    }
}
