//! Encodes and decodes socket addresses and control messages.

use crate::clock::WallTime;
use base::Ecn;
use core::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Room for a socket address of either family.
pub(crate) type RawAddr = libc::sockaddr_storage;

/// All zeroes: an address of no family.
pub(crate) fn empty() -> RawAddr {
    // SAFETY: `sockaddr_storage` is integers and bytes, for which all zeroes is a value.
    unsafe { core::mem::zeroed() }
}

/// Writes `a` for a socket of the family that `v6` says, mapping IPv4 into IPv6 where needed. Returns the
/// length, or `None` when an IPv4 socket cannot reach an IPv6 address.
pub(crate) fn encode(a: SocketAddr, v6: bool, out: &mut RawAddr) -> Option<libc::socklen_t> {
    let a = match a {
        SocketAddr::V4(a) if !v6 => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: `sockaddr_storage` is larger than and aligned for every address type.
            unsafe { (&raw mut *out).cast::<libc::sockaddr_in>().write(raw) };
            return Some(size_of::<libc::sockaddr_in>() as libc::socklen_t);
        }
        SocketAddr::V6(_) if !v6 => return None,
        SocketAddr::V4(a) => SocketAddrV6::new(a.ip().to_ipv6_mapped(), a.port(), 0, 0),
        SocketAddr::V6(a) => a,
    };
    let raw = libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: a.port().to_be(),
        sin6_flowinfo: a.flowinfo(),
        sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
        sin6_scope_id: a.scope_id(),
    };
    // SAFETY: as above.
    unsafe { (&raw mut *out).cast::<libc::sockaddr_in6>().write(raw) };
    Some(size_of::<libc::sockaddr_in6>() as libc::socklen_t)
}

/// Reads an address the kernel wrote. IPv4 mapped into IPv6 becomes IPv4. `None` for other families.
pub(crate) fn decode(raw: &RawAddr) -> Option<SocketAddr> {
    match i32::from(raw.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which type it is; the storage is large enough and aligned for it.
            let a = unsafe { (&raw const *raw).cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(a.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let a = unsafe { (&raw const *raw).cast::<libc::sockaddr_in6>().read() };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            let port = u16::from_be(a.sin6_port);
            Some(match ip.to_ipv4_mapped() {
                Some(v4) => SocketAddr::new(IpAddr::V4(v4), port),
                None => SocketAddr::V6(SocketAddrV6::new(ip, port, a.sin6_flowinfo, a.sin6_scope_id)),
            })
        }
        _ => None,
    }
}

const HEADER: usize = size_of::<libc::cmsghdr>();

/// Room for the control messages of one message: at most packet information (20 bytes), time of arrival (16), traffic
/// class and segment size (4 each), each with a header of 16 and padded to 8: 120. The rest is slack, so that an
/// option someone else turned on does not cut ours off.
const CONTROL: usize = 192;

/// Control messages of one message.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Control {
    bytes: [u8; CONTROL],
}

/// What the kernel told about a received message.
#[derive(Default)]
pub(crate) struct Received {
    pub(crate) local: Option<IpAddr>,
    pub(crate) ecn: Ecn,
    /// Code point of the differentiated services.
    pub(crate) dscp: u8,
    pub(crate) segment: Option<usize>,
    /// When the kernel took it in, by the calendar clock.
    pub(crate) arrived: Option<WallTime>,
}

/// IPv4's type of service and IPv6's traffic class: six bits of code point (RFC 2474) and two of ECN (RFC 3168).
pub(crate) const fn traffic_class(dscp: u8, ecn: Ecn) -> u8 {
    dscp << 2 | ecn.bits()
}

impl Control {
    pub(crate) const EMPTY: Control = Control { bytes: [0; CONTROL] };
    pub(crate) const LEN: usize = CONTROL;

    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::c_void {
        self.bytes.as_mut_ptr().cast()
    }

    /// Fills in what goes with a message: where it is to come from, its traffic class and its segments' size, each only where
    /// the kernel would not do it so by itself. Returns the length used.
    ///
    /// IPv4 options also go with IPv4 destinations of an IPv6 socket: the kernel hands such a message to its
    /// IPv4 code before it looks at the control messages.
    pub(crate) fn encode(
        &mut self,
        v4: bool,
        src: Option<IpAddr>,
        class: Option<u8>,
        segment: Option<u16>,
    ) -> usize {
        let mut at = 0;
        if let Some(class) = class {
            let tos = i32::from(class).to_ne_bytes();
            let (level, kind) =
                if v4 { (libc::IPPROTO_IP, libc::IP_TOS) } else { (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) };
            at = self.push(at, level, kind, &tos);
        }
        match src.map(|ip| ip.to_canonical()) {
            Some(IpAddr::V4(ip)) if v4 => {
                // struct in_pktinfo { int ifindex; in_addr spec_dst; in_addr addr; }, interface 0: any.
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&ip.octets());
                at = self.push(at, libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            Some(IpAddr::V6(ip)) if !v4 => {
                // struct in6_pktinfo { in6_addr addr; int ifindex; }
                let mut info = [0; 20];
                info[..16].copy_from_slice(&ip.octets());
                at = self.push(at, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
            // A source of the other family cannot apply; the kernel chooses.
            _ => {}
        }
        if let Some(segment) = segment {
            at = self.push(at, libc::SOL_UDP, libc::UDP_SEGMENT, &segment.to_ne_bytes());
        }
        at
    }

    fn push(&mut self, at: usize, level: i32, kind: i32, data: &[u8]) -> usize {
        let end = at + HEADER + data.len();
        assert!(end <= CONTROL, "control messages are few and small");
        let header =
            libc::cmsghdr { cmsg_len: (HEADER + data.len()) as _, cmsg_level: level, cmsg_type: kind };
        // SAFETY: `at + HEADER <= CONTROL` was checked; unaligned writes have no further demands.
        unsafe { self.bytes.as_mut_ptr().add(at).cast::<libc::cmsghdr>().write_unaligned(header) };
        self.bytes[at + HEADER..end].copy_from_slice(data);
        end.next_multiple_of(8).min(CONTROL)
    }

    /// Reads the first `len` bytes, as the kernel left them.
    pub(crate) fn decode(&self, len: usize) -> Received {
        Received::from_control(&self.bytes[..len.min(CONTROL)])
    }
}

impl Received {
    /// Reads control messages as the kernel left them, at whatever alignment. Unknown ones are passed over.
    pub(crate) fn from_control(bytes: &[u8]) -> Received {
        let mut out = Received::default();
        let mut rest = bytes;
        while rest.len() >= HEADER {
            // SAFETY: at least HEADER bytes are there; `cmsghdr` is integers, any bytes are a value.
            let h = unsafe { rest.as_ptr().cast::<libc::cmsghdr>().read_unaligned() };
            // The field's type differs between C libraries.
            #[allow(clippy::unnecessary_cast)]
            let size = h.cmsg_len as usize;
            let Some(data) = rest.get(HEADER..size) else { break };
            out.take(h.cmsg_level, h.cmsg_type, data);
            rest = rest.get(size.next_multiple_of(8)..).unwrap_or(&[]);
        }
        out
    }

    fn class(&mut self, octet: u8) {
        (self.dscp, self.ecn) = (octet >> 2, Ecn::from_bits(octet));
    }

    fn take(&mut self, level: i32, kind: i32, data: &[u8]) {
        match (level, kind) {
            // The kernel sends one byte here, unlike everywhere else.
            (libc::IPPROTO_IP, libc::IP_TOS) => self.class(data.first().copied().unwrap_or(0)),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                // An int of 0 to 255 in the machine's order.
                self.class(int(data).unwrap_or(0) as u8);
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                // `ipi_spec_dst` is the address to answer from, even for what came by broadcast.
                if let Some(a) = data.get(4..8).and_then(|b| <[u8; 4]>::try_from(b).ok()) {
                    self.local = Some(IpAddr::from(a));
                }
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some(a) = data.get(..16).and_then(|b| <[u8; 16]>::try_from(b).ok()) {
                    self.local = Some(IpAddr::from(a).to_canonical());
                }
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => self.arrived = timespec(data),
            (libc::SOL_UDP, libc::UDP_GRO) => {
                self.segment = int(data).and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
            }
            _ => {}
        }
    }
}

fn int(data: &[u8]) -> Option<i32> {
    data.get(..4).and_then(|b| <[u8; 4]>::try_from(b).ok()).map(i32::from_ne_bytes)
}

/// A `struct timespec` of two 64-bit numbers; others (of 32-bit systems) are passed over.
fn timespec(data: &[u8]) -> Option<WallTime> {
    let number = |at: usize| Some(i64::from_ne_bytes(*data.get(at..at + 8)?.first_chunk()?));
    Some(WallTime { secs: number(0)?, nanos: u32::try_from(number(8)?).ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_through_sockaddr() {
        for (text, v6, back) in [
            ("10.1.2.3:4711", false, "10.1.2.3:4711"),
            ("10.1.2.3:4711", true, "10.1.2.3:4711"),
            ("[fe80::1%3]:65535", true, "[fe80::1%3]:65535"),
            ("[::]:0", true, "[::]:0"),
        ] {
            let mut raw = empty();
            encode(text.parse().unwrap(), v6, &mut raw).unwrap();
            assert_eq!(decode(&raw), Some(back.parse().unwrap()));
        }
        assert_eq!(encode("[::1]:1".parse().unwrap(), false, &mut empty()), None);
        assert_eq!(decode(&empty()), None);
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_control_bytes_do_not_panic(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, CONTROL),
            len in 0..2 * CONTROL,
        ) {
            let mut c = Control::EMPTY;
            c.bytes.copy_from_slice(&bytes);
            c.decode(len);
        }
    }

    #[test]
    fn damaged_control_messages_are_harmless() {
        let mut c = Control::EMPTY;
        let n =
            c.encode(true, Some("127.0.0.2".parse().unwrap()), Some(traffic_class(34, Ecn::Ce)), Some(1_400));
        let whole = c.decode(n);
        let expected = (Some("127.0.0.2".parse().unwrap()), Ecn::Ce, 34);
        assert_eq!((whole.local, whole.ecn, whole.dscp), expected);
        for at in 0..n {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = c;
                bad.bytes[at] = value;
                bad.decode(n);
                bad.decode(at);
            }
        }
    }
}
