//! Numbers and layouts of `rdma/rdma_user_cm.h` and `rdma/ib_user_verbs.h`, as bytes of this machine's order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Port spaces (`enum rdma_ucm_port_space`).
pub mod space {
    /// Datagrams of IP over InfiniBand.
    pub const IPOIB: u16 = 0x0002;
    /// By the type of queue pair.
    pub const IB: u16 = 0x013f;
    /// Connections.
    pub const TCP: u16 = 0x0106;
    /// Datagrams.
    pub const UDP: u16 = 0x0111;
}

/// Events (`enum rdma_cm_event_type`).
pub mod event {
    /// The address has a device.
    pub const ADDR_RESOLVED: u32 = 0;
    /// It has none.
    pub const ADDR_ERROR: u32 = 1;
    /// The way to the peer is known.
    pub const ROUTE_RESOLVED: u32 = 2;
    /// A peer asks to connect.
    pub const CONNECT_REQUEST: u32 = 4;
    /// A peer has accepted; the program is to make its queue pair ready.
    pub const CONNECT_RESPONSE: u32 = 5;
    /// Nobody answers.
    pub const UNREACHABLE: u32 = 7;
    /// The peer does not want it.
    pub const REJECTED: u32 = 8;
    /// Both ends are ready.
    pub const ESTABLISHED: u32 = 9;
    /// The connection has ended.
    pub const DISCONNECTED: u32 = 10;
    /// The program is in a group of datagrams.
    pub const MULTICAST_JOIN: u32 = 12;
    /// The queue pair may be used again.
    pub const TIMEWAIT_EXIT: u32 = 15;
}

/// Why a peer rejects (InfiniBand, table 107).
pub mod reason {
    /// Too much is under way.
    pub const NO_RESOURCES: u16 = 3;
    /// The peer does not wait any more.
    pub const TIMEOUT: u16 = 4;
    /// Nobody listens.
    pub const INVALID_SERVICE: u16 = 8;
    /// The program said so.
    pub const CONSUMER: u16 = 28;
}

/// Types of queue pairs (`enum ibv_qp_type`).
pub const QPT_RC: u8 = 2;
/// Datagrams.
pub const QPT_UD: u8 = 4;
/// The end of an extended reliable connection (XRC) that sends.
pub const QPT_XRC_SEND: u8 = 9;
/// The end that receives, for all receive queues of its domain.
pub const QPT_XRC_RECV: u8 = 10;
/// The Q_Key of datagrams (`RDMA_UDP_QKEY`).
pub const UDP_Q_KEY: u32 = 0x0123_4567;
/// The default partition.
pub const PKEY: u16 = 0xffff;
/// Private data in commands and events.
pub const PRIVATE_LEN: usize = 256;
/// Bytes of `struct rdma_ucm_conn_param`.
pub const CONN_PARAM: usize = 272;
/// Bytes of `struct rdma_ucm_event_resp`.
pub const EVENT: usize = 336;
/// Bytes of `struct rdma_ucm_query_route_resp`.
pub const QUERY_ROUTE: usize = 208;
/// Bytes of `struct rdma_ucm_query_addr_resp`.
pub const QUERY_ADDR: usize = 280;
/// Bytes of `struct ib_uverbs_qp_attr`.
pub const QP_ATTR: usize = 144;
/// Bytes of `struct sockaddr_in6`.
pub const SOCKADDR: usize = 28;
/// Bytes of `struct sockaddr_storage`.
pub const STORAGE: usize = 128;
const AF_INET: u16 = libc::AF_INET as u16;
const AF_INET6: u16 = libc::AF_INET6 as u16;

/// Reads numbers from a command, in order.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next bytes. `None`: there are not so many.
    pub fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }
    /// One byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(|[b]| b)
    }
    /// Two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }
    /// Four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }
    /// Eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }
}

/// A structure of fixed size that is filled in by offset.
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// All zeroes.
    pub fn new(size: usize) -> Writer {
        Writer(vec![0; size])
    }
    /// Bytes at an offset, as far as they fit.
    pub fn put(&mut self, at: usize, bytes: &[u8]) -> &mut Writer {
        let room = self.0.get_mut(at..).unwrap_or_default();
        room.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        self
    }
    /// Two bytes.
    pub fn u16(&mut self, at: usize, v: u16) -> &mut Writer {
        self.put(at, &v.to_ne_bytes())
    }
    /// Four bytes.
    pub fn u32(&mut self, at: usize, v: u32) -> &mut Writer {
        self.put(at, &v.to_ne_bytes())
    }
    /// Eight bytes.
    pub fn u64(&mut self, at: usize, v: u64) -> &mut Writer {
        self.put(at, &v.to_ne_bytes())
    }
}

/// What a `sockaddr` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// The family 0: none was given.
    None,
    /// IPv4 or IPv6.
    Ip(SocketAddr),
    /// Another family, as that of InfiniBand.
    Other,
}

/// Reads a `sockaddr_in` or `sockaddr_in6`. `None`: it is cut off.
pub fn address(bytes: &[u8]) -> Option<Address> {
    let mut r = Reader(bytes);
    let family = r.u16()?;
    Some(match family {
        0 => Address::None,
        AF_INET => {
            let port = u16::from_be_bytes(r.array()?);
            Address::Ip(SocketAddrV4::new(Ipv4Addr::from(r.array::<4>()?), port).into())
        }
        AF_INET6 => {
            let port = u16::from_be_bytes(r.array()?);
            let flow = u32::from_be_bytes(r.array()?);
            let ip = Ipv6Addr::from(r.array::<16>()?);
            Address::Ip(SocketAddrV6::new(ip, port, flow, r.u32()?).into())
        }
        _ => Address::Other,
    })
}

/// The bytes of an address; `None` is all zeroes. The second value is how many of them count.
pub fn put_address(a: Option<SocketAddr>) -> ([u8; SOCKADDR], usize) {
    let mut out = Writer::new(SOCKADDR);
    let len = match a {
        None => 0,
        Some(SocketAddr::V4(a)) => {
            out.u16(0, AF_INET).put(2, &a.port().to_be_bytes()).put(4, &a.ip().octets());
            16
        }
        Some(SocketAddr::V6(a)) => {
            out.u16(0, AF_INET6).put(2, &a.port().to_be_bytes()).put(4, &a.flowinfo().to_be_bytes());
            out.put(8, &a.ip().octets()).u32(24, a.scope_id());
            SOCKADDR
        }
    };
    (out.0.try_into().unwrap_or([0; SOCKADDR]), len)
}

/// The GID of an address.
pub fn gid(a: IpAddr) -> [u8; 16] {
    match a {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

/// `struct ib_uverbs_ah_attr` of a peer, as seen from GID `index`.
pub fn address_handle(peer: IpAddr, index: u8) -> Vec<u8> {
    const HOPS: u8 = 64;
    let mut out = Writer::new(32);
    out.put(0, &gid(peer)).put(20, &[index, HOPS]).put(29, &[1, 1]);
    out.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_their_structures() {
        for text in ["192.0.2.7:5000", "[2001:db8::1]:6000", "[fe80::1%3]:7"] {
            let a: SocketAddr = text.parse().expect("an address");
            let (bytes, len) = put_address(Some(a));
            assert_eq!(address(&bytes[..len]), Some(Address::Ip(a)));
            // What follows the address proper in `sockaddr_in` does not count.
            let needed = if a.is_ipv4() { 8 } else { len };
            (0..needed).for_each(|n| assert_eq!(address(&bytes[..n]), None, "{n} bytes of {text}"));
        }
        assert_eq!(put_address(None), ([0; SOCKADDR], 0));
        assert_eq!(address(&[0; SOCKADDR]), Some(Address::None));
        assert_eq!(address(&27u16.to_ne_bytes()), Some(Address::Other));
    }

    #[test]
    fn writing_beyond_a_structure_changes_nothing() {
        let mut w = Writer::new(3);
        w.u16(2, 0xffff).u32(9, 1);
        assert_eq!(w.0, [0, 0, 0xff]);
    }
}
