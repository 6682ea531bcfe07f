//! The clear part of packets: short headers (data and control, keys of the connection) and long headers
//! (set-up).
//!
//! ```text
//! Short                                   Long
//! 0        0ppp pppp  flags (protected)   0        1ttt ....  type
//! 1..5     connection identifier          1..5     version
//! 5..9     packet number (protected)      5        n, then n bytes: destination identifier
//! 9..25    tag (4 bytes in CRC32C mode)            m, then m bytes: source identifier
//! 25..     sealed: inner header, payload           length, token (Initial and Retry only)
//!                                                  4 bytes packet number
//!                                                  16 bytes tag
//!                                                  sealed: frames
//! ```
//!
//! The tag stands before what it protects, so that a short last segment of a received train never spills
//! past the end of its message.

use crate::codec::{Put, Reader, WireError};

/// The version this code speaks: "LH" and 1.
pub const VERSION: u32 = 0x4c48_0001;

/// Connection identifier of short headers: chosen by the receiver, unique at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cid(pub u32);

/// Offset of the packet number in a short header.
pub const SHORT_PN: usize = 5;
/// Bytes of a short header before the tag; the associated data of its seal.
pub const SHORT_CLEAR: usize = 9;
/// Bytes of an identifier in long headers at most.
pub const MAX_LONG_CID: usize = 20;
/// Bytes of a token at most.
pub const MAX_TOKEN: usize = 256;
/// A datagram with a client's Initial packet is at least this long (RFC 9000, section 14.1, for the same
/// reason: the server may answer with three times as much).
pub const MIN_INITIAL: usize = 1200;
/// Bytes of a long packet's tag.
pub const LONG_TAG: usize = 16;

/// Flag bits of a short header, after protection was removed.
pub mod flag {
    /// Set in long headers.
    pub const LONG: u8 = 0x80;
    /// Phase of the keys.
    pub const KEY_PHASE: u8 = 0x40;
    /// Kind of packet.
    pub const KIND: u8 = 0x30;
    /// First segment of its message.
    pub const FIRST: u8 = 0x08;
    /// Last segment of its message.
    pub const LAST: u8 = 0x04;
    /// Eight bytes of offset instead of six (four for Send).
    pub const WIDE: u8 = 0x02;
    /// The sender asks for feedback at once.
    pub const ASK: u8 = 0x01;
    /// The bits under header protection.
    pub const PROTECTED: u8 = 0x7f;
}

/// Types of long packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongType {
    /// First flight in each direction, keys from the client's first identifier.
    Initial,
    /// The rest of the handshake, keys from the key exchange.
    Handshake,
    /// The server wants the client to prove its address first.
    Retry,
}

/// A parsed long header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LongHeader<'a> {
    /// Type of packet.
    pub kind: LongType,
    /// Version of the protocol; never zero here.
    pub version: u32,
    /// Whom it is for.
    pub dcid: &'a [u8],
    /// Whom it is from.
    pub scid: &'a [u8],
    /// Address-validation token: empty unless Initial or Retry.
    pub token: &'a [u8],
    /// Packet number (zero in Retry).
    pub pn: u32,
    /// Bytes before the tag: the associated data.
    pub clear: usize,
}

/// What arrived, as far as it can be told without keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clear<'a> {
    /// A short header for this identifier.
    Short(Cid),
    /// A long header of a version we speak.
    Long(LongHeader<'a>),
    /// A long header of a version we do not speak.
    UnknownVersion {
        /// Its version.
        version: u32,
        /// Its destination identifier.
        dcid: &'a [u8],
        /// Its source identifier.
        scid: &'a [u8],
    },
    /// The server speaks other versions only.
    VersionNegotiation {
        /// Whom it is for.
        dcid: &'a [u8],
        /// Whom it is from.
        scid: &'a [u8],
        /// Big-endian versions, four bytes each.
        versions: &'a [u8],
    },
}

impl<'a> Clear<'a> {
    /// Reads the clear part of a datagram.
    pub fn parse(d: &'a [u8]) -> Result<Clear<'a>, WireError> {
        let mut r = Reader::new(d);
        let first = r.u8("flags")?;
        if first & flag::LONG == 0 {
            return Ok(Clear::Short(Cid(r.u32("connection identifier")?)));
        }
        let version = r.u32("version")?;
        let dcid = long_cid(&mut r)?;
        let scid = long_cid(&mut r)?;
        if version == 0 {
            let versions = r.rest();
            if versions.is_empty() || !versions.len().is_multiple_of(4) || versions.len() > 64 {
                return Err(WireError::Invalid("version list"));
            }
            return Ok(Clear::VersionNegotiation { dcid, scid, versions });
        }
        if version != VERSION {
            return Ok(Clear::UnknownVersion { version, dcid, scid });
        }
        let kind = match first & 0x70 {
            0x00 => LongType::Initial,
            0x10 => LongType::Handshake,
            0x20 => LongType::Retry,
            _ => return Err(WireError::Invalid("packet type")),
        };
        let token = if kind == LongType::Handshake { &[][..] } else { r.string(MAX_TOKEN, "token")? };
        let pn = if kind == LongType::Retry { 0 } else { r.u32("packet number")? };
        let clear = d.len() - r.rest().len();
        if r.rest().len() < LONG_TAG {
            return Err(WireError::Truncated("tag"));
        }
        Ok(Clear::Long(LongHeader { kind, version, dcid, scid, token, pn, clear }))
    }
}

fn long_cid<'a>(r: &mut Reader<'a>) -> Result<&'a [u8], WireError> {
    let n = r.u8("identifier length")? as usize;
    if n > MAX_LONG_CID {
        return Err(WireError::TooLong("connection identifier"));
    }
    r.bytes(n, "connection identifier")
}

/// Writes the clear part of a long packet; the tag and what it protects follow.
pub fn put_long(out: &mut impl Put, kind: LongType, dcid: &[u8], scid: &[u8], token: &[u8], pn: u32) {
    let t = match kind {
        LongType::Initial => 0x00,
        LongType::Handshake => 0x10,
        LongType::Retry => 0x20,
    };
    out.put_u8(flag::LONG | t);
    out.put_u32(VERSION);
    put_cids(out, dcid, scid);
    if kind != LongType::Handshake {
        out.put_string(token);
    }
    if kind != LongType::Retry {
        out.put_u32(pn);
    }
}

/// Writes a whole Version Negotiation packet. `dcid` and `scid` are those received, swapped.
pub fn put_version_negotiation(out: &mut impl Put, dcid: &[u8], scid: &[u8], versions: &[u32]) {
    out.put_u8(flag::LONG);
    out.put_u32(0);
    put_cids(out, dcid, scid);
    for v in versions {
        out.put_u32(*v);
    }
}

fn put_cids(out: &mut impl Put, dcid: &[u8], scid: &[u8]) {
    for c in [dcid, scid] {
        debug_assert!(c.len() <= MAX_LONG_CID);
        out.put_u8(c.len() as u8);
        out.put(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn long_header_vector() {
        let mut b = Vec::new();
        put_long(&mut b, LongType::Initial, &[1, 2], &[3], &[9, 9], 7);
        assert_eq!(b, [0x80, 0x4c, 0x48, 0, 1, 2, 1, 2, 1, 3, 2, 9, 9, 0, 0, 0, 7]);
        b.extend([0; 16]);
        let Ok(Clear::Long(h)) = Clear::parse(&b) else { panic!() };
        assert_eq!(
            (h.kind, h.dcid, h.scid, h.token, h.pn, h.clear),
            (LongType::Initial, &[1, 2][..], &[3][..], &[9, 9][..], 7, 17)
        );
    }

    #[test]
    fn version_negotiation_vector() {
        let mut b = Vec::new();
        put_version_negotiation(&mut b, &[1], &[2], &[VERSION, 5]);
        assert_eq!(
            Clear::parse(&b),
            Ok(Clear::VersionNegotiation {
                dcid: &[1],
                scid: &[2],
                versions: &[0x4c, 0x48, 0, 1, 0, 0, 0, 5]
            })
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(d in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Clear::parse(&d);
        }
    }
}
