//! Which process of a host has a service: asked and answered at the UDP port of the same number (docs/protocol.md, appendix D).
//!
//! Queries and answers have 60 bytes: the mark `LHSV`, version 1, kind (one byte: 1 query, 2 answer, 3 nobody listens), port space,
//! port, and UDP port of the process (two bytes each, big endian; 0 in a query), 16 bytes that the asking end has drawn, and an
//! HMAC-SHA256 of all that by the cluster's key for services. Nothing that is not of the cluster changes anything, or is answered.

use ring::hmac;

const MARK: &[u8; 4] = b"LHSV";
const VERSION: u8 = 1;
/// Bytes of a query and of an answer.
pub const LEN: usize = SIGNED + TAG;
const SIGNED: usize = 28;
const TAG: usize = 32;

/// What is asked or answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Who listens?
    Query,
    /// The process with this UDP port.
    Answer(u16),
    /// Nobody does.
    Nobody,
}

/// A query or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Which of them.
    pub kind: Kind,
    /// Port space.
    pub space: u16,
    /// Port.
    pub port: u16,
    /// Drawn by who asks, and repeated by who answers.
    pub nonce: [u8; 16],
}

/// The cluster's key for services.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl Key {
    /// From the secret that all members derive.
    pub fn new(secret: &[u8; 32]) -> Key {
        Key(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    pub(crate) fn sign(&self, bytes: &[u8]) -> [u8; TAG] {
        let mut tag = [0; TAG];
        tag.iter_mut().zip(hmac::sign(&self.0, bytes).as_ref()).for_each(|(to, from)| *to = *from);
        tag
    }

    pub(crate) fn verifies(&self, bytes: &[u8], tag: &[u8]) -> bool {
        hmac::verify(&self.0, bytes, tag).is_ok()
    }
}

impl Packet {
    /// The answer to this query.
    pub const fn answer(&self, process: Option<u16>) -> Packet {
        let kind = match process {
            Some(port) => Kind::Answer(port),
            None => Kind::Nobody,
        };
        Packet { kind, ..*self }
    }

    /// Its bytes.
    pub fn encode(&self, key: &Key) -> [u8; LEN] {
        let (kind, process) = match self.kind {
            Kind::Query => (1, 0),
            Kind::Answer(port) => (2, port),
            Kind::Nobody => (3, 0),
        };
        let mut signed = Vec::with_capacity(SIGNED);
        signed.extend(MARK);
        signed.extend([VERSION, kind]);
        [self.space, self.port, process].iter().for_each(|n| signed.extend(n.to_be_bytes()));
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
        let two = |at: usize| Some(u16::from_be_bytes(signed.get(at..at + 2)?.try_into().ok()?));
        let kind = match signed[5] {
            1 => Kind::Query,
            2 => Kind::Answer(two(10)?),
            3 => Kind::Nobody,
            _ => return None,
        };
        let nonce = signed.get(12..SIGNED)?.try_into().ok()?;
        Some(Packet { kind, space: two(6)?, port: two(8)?, nonce })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_round_trip_and_every_changed_bit_is_refused() {
        let (key, other) = (Key::new(&[7; 32]), Key::new(&[8; 32]));
        let query = Packet { kind: Kind::Query, space: 0x106, port: 7471, nonce: [5; 16] };
        for p in [query, query.answer(Some(24_600)), query.answer(None)] {
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
    }

    /// Computed with Python's hmac module.
    #[test]
    fn bytes_of_a_query_never_change() {
        let query = Packet { kind: Kind::Query, space: 0x106, port: 7471, nonce: [5; 16] };
        let bytes = query.encode(&Key::new(&[7; 32]));
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            "4c485356010101061d2f000005050505050505050505050505050505df8b8490bf24c0a4f71ca4270e2c75f5b659ad42872f5bb85d8bd06c446190db"
        );
    }
}
