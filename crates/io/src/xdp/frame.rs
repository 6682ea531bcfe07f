//! Writes and parses Ethernet frames that carry UDP.
//!
//! No VLAN tags, no IPv4 options and fragments, no IPv6 extension headers: such frames are left to the kernel.

use super::checksum::{finish, fold, sum, word};
use base::Ecn;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::Range;

/// Destination, source, type.
pub(super) const ETHERNET: usize = 14;
const IPV4: usize = 20;
const IPV6: usize = 40;
const UDP: usize = 8;
/// Headers of the longest kind.
const MAX_HEADERS: usize = ETHERNET + IPV6 + UDP;
pub(super) const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
pub(super) const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
pub(super) const PROTOCOL_UDP: u8 = 17;
/// Hops that a packet may take: the value recommended for IPv4 (RFC 1700) and usual for IPv6.
const HOPS: u8 = 64;
/// "Don't fragment", in the upper byte of flags and offset.
const DONT_FRAGMENT: u8 = 0x40;

pub(super) use crate::netlink::Mac;

/// All headers of packets from one address and port to another; lengths, ECN and checksums are filled in for each.
#[derive(Clone, Debug)]
pub(super) struct Template {
    bytes: [u8; MAX_HEADERS],
    len: usize,
    v4: bool,
    /// Sum of the IPv4 header without length, ECN and checksum.
    ip_sum: u64,
    /// Sum of pseudo-header and UDP header without length and checksum.
    udp_sum: u64,
}

/// The addresses of a frame in Ethernet and IP. Both IP addresses are of one family.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameAddresses {
    pub(super) src_mac: Mac,
    pub(super) dst_mac: Mac,
    pub(super) src: SocketAddr,
    pub(super) dst: SocketAddr,
}

impl Template {
    /// `None` when the addresses are of two families.
    pub(super) fn new(e: &FrameAddresses) -> Option<Template> {
        let mut bytes = [0; MAX_HEADERS];
        bytes[..6].copy_from_slice(&e.dst_mac);
        bytes[6..12].copy_from_slice(&e.src_mac);
        let (v4, udp, addresses) = match (e.src.ip(), e.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                bytes[12..14].copy_from_slice(&TYPE_IPV4);
                bytes[14] = 0x45;
                // Identification 0: with "don't fragment" it has no meaning (RFC 6864, section 4.1).
                bytes[20] = DONT_FRAGMENT;
                bytes[22] = HOPS;
                bytes[23] = PROTOCOL_UDP;
                bytes[26..30].copy_from_slice(&src.octets());
                bytes[30..34].copy_from_slice(&dst.octets());
                (true, ETHERNET + IPV4, 26..34)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                bytes[12..14].copy_from_slice(&TYPE_IPV6);
                bytes[14] = 0x60;
                bytes[20] = PROTOCOL_UDP;
                bytes[21] = HOPS;
                bytes[22..38].copy_from_slice(&src.octets());
                bytes[38..54].copy_from_slice(&dst.octets());
                (false, ETHERNET + IPV6, 22..54)
            }
            _ => return None,
        };
        bytes[udp..udp + 2].copy_from_slice(&e.src.port().to_be_bytes());
        bytes[udp + 2..udp + 4].copy_from_slice(&e.dst.port().to_be_bytes());
        let ip_sum = sum(&bytes[ETHERNET..ETHERNET + IPV4]);
        let udp_sum = pseudo(&bytes[addresses]) + sum(&bytes[udp..udp + 4]);
        Some(Template { bytes, len: udp + UDP, v4, ip_sum, udp_sum })
    }

    /// Bytes of IP and UDP headers.
    pub(super) fn overhead(&self) -> usize {
        self.len - ETHERNET
    }

    /// Writes the frame of one datagram to `out`. Returns its length; `None` when it does not fit there or in a UDP
    /// packet.
    pub(super) fn write(&self, out: &mut [u8], payload: &[u8], class: u8) -> Option<usize> {
        let end = self.len + payload.len();
        let out = out.get_mut(..end)?;
        let ip_len = u16::try_from(end - ETHERNET).ok()?.to_be_bytes();
        let udp_len = ((UDP + payload.len()) as u16).to_be_bytes();
        let (head, body) = out.split_at_mut(self.len);
        head.copy_from_slice(&self.bytes[..self.len]);
        body.copy_from_slice(payload);
        if self.v4 {
            head[15] = class;
            head[16..18].copy_from_slice(&ip_len);
            head[24..26].copy_from_slice(&finish(self.ip_sum + word([0, class]) + word(ip_len)));
        } else {
            head[14] |= class >> 4;
            head[15] = class << 4;
            head[18..20].copy_from_slice(&udp_len);
        }
        let udp = self.len - UDP;
        head[udp + 4..udp + 6].copy_from_slice(&udp_len);
        // The length counts twice: in the pseudo-header and in the UDP header.
        let check = match finish(self.udp_sum + 2 * word(udp_len) + sum(payload)) {
            // Zero means "none": it is sent as its equal in one's complement (RFC 768; RFC 8200, section 8.1).
            [0, 0] => [0xff, 0xff],
            check => check,
        };
        head[udp + 6..udp + 8].copy_from_slice(&check);
        Some(end)
    }
}

/// Sum of the pseudo-header without the length: addresses and protocol (RFC 768; RFC 8200, section 8.1).
fn pseudo(addresses: &[u8]) -> u64 {
    sum(addresses) + word([0, PROTOCOL_UDP])
}

/// A datagram that arrived, and where it lies in its frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Datagram {
    pub(super) remote: SocketAddr,
    pub(super) local: SocketAddr,
    pub(super) ecn: Ecn,
    /// Code point of the differentiated services.
    pub(super) dscp: u8,
    pub(super) payload: Range<usize>,
}

/// Reads a frame that came in over the interface of number `interface`. `None` for all that is not a whole and sound UDP
/// datagram from an address that can be answered: a host MUST drop it silently (RFC 1122, sections 3.2.1.2 and 4.1.3.4).
pub(super) fn parse(frame: &[u8], interface: u32) -> Option<Datagram> {
    let kind: [u8; 2] = *frame.get(12..)?.first_chunk()?;
    match kind {
        TYPE_IPV4 => parse_v4(frame),
        TYPE_IPV6 => parse_v6(frame, interface),
        _ => None,
    }
}

fn parse_v4(frame: &[u8]) -> Option<Datagram> {
    let h: &[u8; IPV4] = frame.get(ETHERNET..)?.first_chunk()?;
    let [flags, offset] = [h[6] & 0x3f, h[7]];
    if h[0] != 0x45 || h[9] != PROTOCOL_UDP || flags | offset != 0 {
        return None;
    }
    // RFC 1122, section 3.2.1.2: "A host MUST verify the IP header checksum on every received datagram and silently
    // discard every datagram that has a bad checksum."
    if fold(sum(h)) != 0xffff {
        return None;
    }
    let end = ETHERNET + usize::from(u16::from_be_bytes([h[2], h[3]]));
    let src = Ipv4Addr::new(h[12], h[13], h[14], h[15]);
    let dst = Ipv4Addr::new(h[16], h[17], h[18], h[19]);
    // Section 3.2.1.3: such addresses MUST NOT be a source outside a host.
    if src.is_unspecified() || src.is_loopback() || src.is_multicast() || src.is_broadcast() {
        return None;
    }
    let udp = parse_udp(frame.get(ETHERNET + IPV4..end)?, &h[12..20], true)?;
    let at = ETHERNET + IPV4 + UDP;
    Some(Datagram {
        remote: SocketAddr::from((src, udp.src)),
        local: SocketAddr::from((dst, udp.dst)),
        ecn: Ecn::from_bits(h[1]),
        dscp: h[1] >> 2,
        payload: at..at + udp.payload,
    })
}

fn parse_v6(frame: &[u8], interface: u32) -> Option<Datagram> {
    let h: &[u8; IPV6] = frame.get(ETHERNET..)?.first_chunk()?;
    if h[0] >> 4 != 6 || h[6] != PROTOCOL_UDP {
        return None;
    }
    let address = |at: usize| Some(Ipv6Addr::from(*h[at..].first_chunk::<16>()?));
    let (src, dst) = (address(8)?, address(24)?);
    // RFC 4291, sections 2.5.2, 2.5.3, 2.5.5.2 and 2.7: not sources of what comes from outside.
    if src.is_unspecified() || src.is_loopback() || src.is_multicast() || src.to_ipv4_mapped().is_some() {
        return None;
    }
    let end = ETHERNET + IPV6 + usize::from(u16::from_be_bytes([h[4], h[5]]));
    let udp = parse_udp(frame.get(ETHERNET + IPV6..end)?, &h[8..40], false)?;
    let at = ETHERNET + IPV6 + UDP;
    // A link's own addresses mean nothing without the link.
    let scope = if src.is_unicast_link_local() { interface } else { 0 };
    Some(Datagram {
        remote: SocketAddrV6::new(src, udp.src, 0, scope).into(),
        local: SocketAddr::from((dst, udp.dst)),
        ecn: Ecn::from_bits(h[1] >> 4),
        // Four bits of it are in the octet before.
        dscp: (h[0] & 0xf) << 2 | h[1] >> 6,
        payload: at..at + udp.payload,
    })
}

struct UdpHeader {
    src: u16,
    dst: u16,
    payload: usize,
}

/// Reads what an IP packet between `addresses` carries.
fn parse_udp(bytes: &[u8], addresses: &[u8], v4: bool) -> Option<UdpHeader> {
    let h: &[u8; UDP] = bytes.first_chunk()?;
    let len = u16::from_be_bytes([h[4], h[5]]);
    let bytes = bytes.get(..usize::from(len))?;
    let payload = bytes.len().checked_sub(UDP)?;
    if !sound(bytes, [h[6], h[7]], pseudo(addresses) + word([h[4], h[5]]), v4) {
        return None;
    }
    let src = u16::from_be_bytes([h[0], h[1]]);
    (src != 0).then_some(UdpHeader { src, dst: u16::from_be_bytes([h[2], h[3]]), payload })
}

/// Whether the UDP checksum is right: that of the whole datagram, or that of the pseudo-header alone.
///
/// The latter is what a kernel on this machine leaves for a device to finish, and virtual devices hand it on unfinished
/// since nothing can damage the packet between them. For a damaged packet it is as unlikely as a right checksum.
fn sound(datagram: &[u8], check: [u8; 2], pseudo: u64, v4: bool) -> bool {
    match check {
        // RFC 768: none was made. RFC 8200, section 8.1: such packets of IPv6 MUST be discarded.
        [0, 0] => v4,
        _ => check == fold(pseudo).to_ne_bytes() || fold(pseudo + sum(datagram)) == 0xffff,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ends(src: &str, dst: &str) -> FrameAddresses {
        let (src_mac, dst_mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        FrameAddresses { src_mac, dst_mac, src: src.parse().unwrap(), dst: dst.parse().unwrap() }
    }

    fn written(src: &str, dst: &str, payload: &[u8], class: u8) -> Vec<u8> {
        let mut out = vec![0xee; 2_048];
        let n = Template::new(&ends(src, dst)).unwrap().write(&mut out, payload, class).unwrap();
        out.truncate(n);
        out
    }

    #[test]
    fn ipv4_frame_matches_expected_bytes() {
        let f = written("192.0.2.1:4460", "198.51.100.7:53", b"abc", Ecn::Ect0.bits());
        let expected = [
            2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00, // Ethernet
            0x45, 0x02, 0, 31, 0, 0, 0x40, 0, 64, 17, 0x8e, 0xa3, 192, 0, 2, 1, 198, 51, 100, 7, // IPv4
            0x11, 0x6c, 0, 53, 0, 11, 0xff, 0xff, b'a', b'b', b'c', // UDP
        ];
        // The UDP checksum by the definition, in 32 bits and network order.
        let words = [0xc000, 0x0201, 0xc633, 0x6407, 17, 11, 0x116c, 53, 11, 0x6162, 0x6300u32];
        let mut total: u32 = words.iter().sum();
        total = (total & 0xffff) + (total >> 16);
        let check = !(((total & 0xffff) + (total >> 16)) as u16);
        let mut ip: u32 = [0x4502, 31, 0, 0x4000, 0x4011, 0xc000, 0x0201, 0xc633, 0x6407u32].iter().sum();
        ip = (ip & 0xffff) + (ip >> 16);
        let mut want = expected;
        want[24..26].copy_from_slice(&(!(ip as u16)).to_be_bytes());
        want[40..42].copy_from_slice(&check.to_be_bytes());
        assert_eq!(f, want);
    }

    #[test]
    fn ipv6_frame_matches_expected_bytes() {
        // RFC 1071 by hand for ::1:2 style addresses: 2001:db8::1 to 2001:db8::2, ports 1 and 2, payload ff.
        let f = written("[2001:db8::1]:1", "[2001:db8::2]:2", &[0xff], Ecn::Ce.bits());
        let total: u32 = [0x2001, 0xdb8, 1, 0x2001, 0xdb8, 2, 9, 17, 1, 2, 9, 0xff00u32].iter().sum();
        let check = !(((total & 0xffff) + (total >> 16)) as u16);
        assert_eq!(f.len(), 14 + 40 + 8 + 1);
        assert_eq!(f[12..22], [0x86, 0xdd, 0x60, 0x30, 0, 0, 0, 9, 17, 64]);
        assert_eq!(f[54..60], [0, 1, 0, 2, 0, 9]);
        assert_eq!(f[60..62], check.to_be_bytes());
    }

    #[test]
    fn zero_udp_checksum_is_sent_as_ones() {
        // The last two bytes bring the sum to all ones, whose complement is zero.
        let zero = written("10.0.0.1:1", "10.0.0.2:2", &[0, 0], Ecn::NotEct.bits());
        let fill = [zero[40], zero[41]];
        let f = written("10.0.0.1:1", "10.0.0.2:2", &fill, Ecn::NotEct.bits());
        assert_eq!(f[40..42], [0xff, 0xff]);
        assert!(parse(&f, 1).is_some());
    }

    #[test]
    fn address_families_must_match_and_lengths_are_bounded() {
        assert!(Template::new(&ends("10.0.0.1:1", "[::2]:2")).is_none());
        let t = Template::new(&ends("10.0.0.1:1", "10.0.0.2:2")).unwrap();
        assert_eq!(t.write(&mut [0; 43], &[0; 2], 0), None);
        assert_eq!(t.write(&mut vec![0; 70_000], &vec![0; 65_508], 0), None);
        assert_eq!(t.write(&mut vec![0; 70_000], &vec![0; 65_507], 0), Some(65_549));
    }

    #[test]
    fn partial_checksums_of_local_kernels_are_accepted() {
        for (src, dst, at) in [("10.0.0.1:1", "10.0.0.2:2", 40), ("[fd00::1]:1", "[fd00::2]:2", 60)] {
            let mut f = written(src, dst, b"hello", Ecn::Ect0.bits());
            let half = Template::new(&ends(src, dst)).unwrap();
            let ports = word([0, 1]) + word([0, 2]);
            let pseudo = fold(half.udp_sum - ports + word([0, 13]));
            f[at..at + 2].copy_from_slice(&pseudo.to_ne_bytes());
            assert!(parse(&f, 1).is_some(), "{src}");
            f[at] ^= 1;
            assert!(parse(&f, 1).is_none(), "{src}");
        }
    }

    #[test]
    fn missing_checksum_is_accepted_for_ipv4_only() {
        let mut v4 = written("10.0.0.1:1", "10.0.0.2:2", b"x", Ecn::NotEct.bits());
        v4[40..42].fill(0);
        assert!(parse(&v4, 1).is_some());
        let mut v6 = written("[fd00::1]:1", "[fd00::2]:2", b"x", Ecn::NotEct.bits());
        v6[60..62].fill(0);
        assert!(parse(&v6, 1).is_none());
    }

    #[test]
    fn unanswerable_datagrams_are_dropped() {
        for src in ["0.0.0.0:1", "127.0.0.1:1", "224.0.0.1:1", "255.255.255.255:1", "10.0.0.1:0"] {
            assert!(parse(&written(src, "10.0.0.2:2", b"x", Ecn::NotEct.bits()), 1).is_none(), "{src}");
        }
        for src in ["[::]:1", "[::1]:1", "[ff02::1]:1", "[::ffff:10.0.0.1]:1"] {
            assert!(parse(&written(src, "[fd00::2]:2", b"x", Ecn::NotEct.bits()), 1).is_none(), "{src}");
        }
    }

    #[test]
    fn link_local_addresses_carry_the_interface() {
        let d = parse(&written("[fe80::1]:1", "[fe80::2]:2", b"x", Ecn::NotEct.bits()), 7).unwrap();
        assert_eq!(d.remote, "[fe80::1%7]:1".parse().unwrap());
    }

    #[test]
    fn ethernet_padding_is_not_payload() {
        let mut f = written("10.0.0.1:1", "10.0.0.2:2", b"x", Ecn::NotEct.bits());
        f.resize(60, 0);
        assert_eq!(parse(&f, 1).unwrap().payload, 42..43);
    }

    proptest! {
        #[test]
        fn frames_round_trip(
            v4: bool,
            hosts in any::<[u8; 2]>(),
            ports in (1u16.., 1u16..),
            payload in proptest::collection::vec(any::<u8>(), 0..1_500),
            class: u8,
        ) {
            let ip = |n: u8| if v4 { format!("10.0.0.{n}") } else { format!("[2001:db8::{n:x}]") };
            let src = format!("{}:{}", ip(hosts[0]), ports.0);
            let dst = format!("{}:{}", ip(hosts[1]), ports.1);
            let f = written(&src, &dst, &payload, class);
            let d = parse(&f, 1).expect("sound");
            prop_assert_eq!(d.remote, src.parse().unwrap());
            prop_assert_eq!(d.local, dst.parse().unwrap());
            prop_assert_eq!((d.dscp, d.ecn), (class >> 2, Ecn::from_bits(class)));
            prop_assert_eq!(&f[d.payload], &payload[..]);
        }

        #[test]
        fn arbitrary_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            parse(&bytes, 1);
        }

        #[test]
        fn corruption_is_detected_or_harmless(
            v4: bool,
            payload in proptest::collection::vec(any::<u8>(), 0..64),
            at in any::<prop::sample::Index>(),
            flip in 1u8..,
            cut in any::<prop::sample::Index>(),
        ) {
            let (src, dst) = if v4 { ("10.0.0.1:9", "10.0.0.2:8") } else { ("[fd00::1]:9", "[fd00::2]:8") };
            let whole = written(src, dst, &payload, Ecn::Ect0.bits());
            let mut f = whole.clone();
            let at = at.index(f.len());
            f[at] ^= flip;
            if let Some(d) = parse(&f, 1) {
                // One byte differs: a right checksum means that only bytes outside it were hit.
                prop_assert_eq!(&f[d.payload], &payload[..]);
            }
            // A datagram cut short is none.
            prop_assert_eq!(parse(&whole[..cut.index(whole.len())], 1), None);
        }
    }
}
