//! Which processes have members of a group of datagram queue pairs: asked by IP multicast, answered to who asks (docs/protocol.md,
//! appendix D). The datagrams themselves take the connections between processes.
//!
//! Queries and answers have 88 bytes: the mark `LHGM`, version 1, kind (one byte: 1 query, 2 answer), UDP port of the process (two
//! bytes, big endian; 0 in a query), the group and the address of the process (16 bytes each, IPv4 mapped; the latter 0 in a query),
//! 16 bytes that the asking end has drawn, and an HMAC-SHA256 of all that by the cluster's key for services.

use crate::lookup::Key;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The UDP port at which groups are asked for.
pub const PORT: u16 = engine::address::FIRST_PORT - 1;
const MARK: &[u8; 4] = b"LHGM";
const VERSION: u8 = 1;
const SIGNED: usize = 56;
/// Bytes of a query and of an answer.
pub const LEN: usize = SIGNED + 32;

/// A query or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The group.
    pub group: IpAddr,
    /// The process that has members. None: who has?
    pub process: Option<SocketAddr>,
    /// Drawn by who asks, and repeated by who answers.
    pub nonce: [u8; 16],
}

fn octets(a: IpAddr) -> [u8; 16] {
    match a {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

impl Packet {
    /// Its bytes.
    pub fn encode(&self, key: &Key) -> [u8; LEN] {
        let mut signed = Vec::with_capacity(SIGNED);
        signed.extend(MARK);
        signed.extend([VERSION, if self.process.is_some() { 2 } else { 1 }]);
        signed.extend(self.process.map_or(0, |p| p.port()).to_be_bytes());
        signed.extend(octets(self.group));
        signed.extend(self.process.map_or([0; 16], |p| octets(p.ip())));
        signed.extend(self.nonce);
        let tag = key.sign(&signed);
        let mut out = [0; LEN];
        out.iter_mut().zip(signed.iter().chain(&tag)).for_each(|(to, from)| *to = *from);
        out
    }

    /// Reads one of this cluster. `None` for anything else.
    pub fn decode(bytes: &[u8], key: &Key) -> Option<Packet> {
        let (signed, tag) = bytes.split_at_checked(SIGNED).filter(|_| bytes.len() == LEN)?;
        if signed[..4] != *MARK || signed[4] != VERSION || !key.verifies(signed, tag) {
            return None;
        }
        let sixteen = |at: usize| -> Option<[u8; 16]> { signed.get(at..at + 16)?.try_into().ok() };
        let address = |at: usize| Some(IpAddr::V6(Ipv6Addr::from(sixteen(at)?)).to_canonical());
        let process = match signed[5] {
            1 => None,
            2 => Some(SocketAddr::new(address(24)?, u16::from_be_bytes([signed[6], signed[7]]))),
            _ => return None,
        };
        let group = address(8).filter(IpAddr::is_multicast)?;
        Some(Packet { group, process, nonce: sixteen(40)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_round_trip_and_every_changed_bit_is_refused() {
        let (key, other) = (Key::new(&[7; 32]), Key::new(&[8; 32]));
        let query = Packet { group: IpAddr::from([224, 0, 1, 9]), process: None, nonce: [5; 16] };
        let v6 = Packet { group: "ff0e::9".parse().expect("a group"), ..query };
        let answer = |to: Packet, text: &str| Packet { process: text.parse().ok(), ..to };
        for p in [query, v6, answer(query, "192.0.2.1:24600"), answer(v6, "[2001:db8::1]:24601")] {
            let bytes = p.encode(&key);
            assert_eq!(Packet::decode(&bytes, &key), Some(p));
            assert_eq!(Packet::decode(&bytes, &other), None, "of another cluster");
            for bit in 0..LEN * 8 {
                let mut bad = bytes;
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Packet::decode(&bad, &key), None, "bit {bit}");
            }
            (0..LEN).for_each(|n| assert_eq!(Packet::decode(&bytes[..n], &key), None));
            assert_eq!(Packet::decode(&[&bytes[..], &[0]].concat(), &key), None);
        }
        let no_group = Packet { group: IpAddr::from([192, 0, 2, 1]), ..query };
        assert_eq!(Packet::decode(&no_group.encode(&key), &key), None);
    }
}
