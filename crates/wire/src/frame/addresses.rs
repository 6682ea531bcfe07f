//! Where else a server can be reached.

use crate::codec::{Put, Reader, WireError, varint_len};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Addresses in one list at most.
pub const MAX_ADDRESSES: usize = 16;

const V4: u8 = 4;
const V6: u8 = 6;

/// All addresses at which a server can be reached, as far as this client is to know. Stands for every list before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addresses {
    /// Grows with each list: of several the one with the highest number holds.
    pub sequence: u64,
    /// At most [`MAX_ADDRESSES`], each [`is_tellable`], none twice.
    pub list: Vec<SocketAddr>,
}

/// Whether an address may stand in a list: one machine, the same one for whoever reads it, and spelt in one way only. Not
/// so are unspecified, loopback, link-local, multicast and broadcast addresses, IPv4 mapped into IPv6, and port 0.
pub fn is_tellable(a: &SocketAddr) -> bool {
    let one_machine = match a.ip() {
        IpAddr::V4(ip) => {
            // 0.0.0.0/8 is "this network", 240.0.0.0/4 reserved or broadcast (RFC 6890).
            let strange = matches!(ip.octets()[0], 0 | 240..);
            !(strange || ip.is_loopback() || ip.is_link_local() || ip.is_multicast())
        }
        IpAddr::V6(ip) => {
            let strange = ip.is_unspecified() || ip.is_loopback() || ip.to_ipv4_mapped().is_some();
            let scoped = ip.segments()[0] & 0xffc0 == 0xfe80;
            !(strange || scoped || ip.is_multicast())
        }
    };
    one_machine && a.port() != 0
}

impl Addresses {
    pub(super) fn parse(r: &mut Reader<'_>) -> Result<Addresses, WireError> {
        let sequence = r.varint("sequence of addresses")?;
        let count = usize::from(r.u8("count of addresses")?);
        if count > MAX_ADDRESSES {
            return Err(WireError::TooLong("list of addresses"));
        }
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            let ip = match r.u8("address family")? {
                V4 => IpAddr::V4(Ipv4Addr::from(r.array::<4>("address")?)),
                V6 => IpAddr::V6(Ipv6Addr::from(r.array::<16>("address")?)),
                _ => return Err(WireError::Invalid("address family")),
            };
            let a = SocketAddr::new(ip, r.u16("port")?);
            if !is_tellable(&a) || list.contains(&a) {
                return Err(WireError::Invalid("address"));
            }
            list.push(a);
        }
        Ok(Addresses { sequence, list })
    }

    pub(super) fn encoded_len(&self) -> usize {
        let one = |a: &SocketAddr| if a.is_ipv4() { 7 } else { 19 };
        varint_len(self.sequence) + 1 + self.list.iter().map(one).sum::<usize>()
    }

    pub(super) fn put(&self, out: &mut impl Put) {
        out.put_varint(self.sequence);
        // Whoever makes a list keeps to the limit.
        out.put_u8(self.list.len() as u8);
        for a in &self.list {
            match a.ip() {
                IpAddr::V4(ip) => {
                    out.put_u8(V4);
                    out.put(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    out.put_u8(V6);
                    out.put(&ip.octets());
                }
            }
            out.put_u16(a.port());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Frame;

    fn read(bytes: &[u8]) -> Result<Addresses, WireError> {
        let mut r = Reader::new(bytes);
        let a = Addresses::parse(&mut r)?;
        assert!(r.is_empty());
        Ok(a)
    }

    #[test]
    fn a_list_reads_as_documented() {
        // The example of docs/protocol.md, section 7.2.
        let bytes = [
            0x13, 0x05, 0x02, 0x04, 192, 0, 2, 7, 0x11, 0x6c, 0x06, 0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0,
            0, 0, 0, 0, 0, 0x09, 0x11, 0x6c,
        ];
        let list = ["192.0.2.7:4460", "[2001:db8::9]:4460"].map(|a| a.parse().unwrap()).to_vec();
        let frame = Frame::Addresses(Addresses { sequence: 5, list });
        assert_eq!(Frame::parse(&mut Reader::new(&bytes)).as_ref(), Ok(&frame));
        let mut again = Vec::new();
        frame.put(&mut again);
        assert_eq!(again, bytes);
        assert!(frame.is_eliciting() && !frame.is_harmless());
    }

    #[test]
    fn what_no_list_may_hold_is_refused() {
        let one = |ip: &str| {
            let a = Addresses { sequence: 1, list: vec![SocketAddr::new(ip.parse().unwrap(), 9)] };
            let mut b = Vec::new();
            a.put(&mut b);
            read(&b)
        };
        for good in ["10.0.0.1", "100.64.0.1", "192.0.2.1", "fd00::1", "2001:db8::1"] {
            assert!(one(good).is_ok(), "{good}");
        }
        for bad in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "169.254.1.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "::ffff:10.0.0.1",
        ] {
            assert_eq!(one(bad), Err(WireError::Invalid("address")), "{bad}");
        }
        assert_eq!(read(&[1, 1, 4, 10, 0, 0, 1, 0, 0]), Err(WireError::Invalid("address")), "port 0");
        let twice = [1, 2, 4, 10, 0, 0, 1, 0, 9, 4, 10, 0, 0, 1, 0, 9];
        assert_eq!(read(&twice), Err(WireError::Invalid("address")));
        assert_eq!(read(&[1, 1, 5, 10, 0, 0, 1, 0, 9]), Err(WireError::Invalid("address family")));
        assert!(read(&[1, 1, 4, 10, 0, 0, 1, 0]).is_err(), "cut off");
        assert_eq!(read(&[1, 0]), Ok(Addresses { sequence: 1, list: Vec::new() }), "none any more");
    }

    #[test]
    fn a_list_has_a_limit() {
        let list = |n: u8| {
            let list = (1..=n).map(|k| SocketAddr::new(IpAddr::from([10, 0, 0, k]), 9)).collect();
            let mut b = Vec::new();
            Addresses { sequence: 1 << 40, list }.put(&mut b);
            b
        };
        assert_eq!(read(&list(16)).map(|a| a.list.len()), Ok(16));
        assert_eq!(read(&list(17)), Err(WireError::TooLong("list of addresses")));
        assert_eq!(read(&list(255)), Err(WireError::TooLong("list of addresses")));
    }
}
