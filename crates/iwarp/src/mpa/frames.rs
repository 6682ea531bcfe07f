//! The MPA request and reply frames of the start-up (RFC 5044, section 7.1; RFC 6581).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +               key, 16 bytes: "MPA ID Req Frame"               +
//! +               or "MPA ID Rep Frame"                           +
//! |M|C|R|S| Res   |     Rev       |          PD_Length            |
//! +  private data, PD_Length bytes; with S it begins with:        +
//! |A|B|        IRD                |C|D|        ORD                |
//! ```
//!
//! RFC 5044, section 7.1.1; RFC 6581, sections 6 and 9.

/// Bytes before the private data.
pub const HEADER: usize = 20;
/// Longest private data in bytes (RFC 5044, section 7.1.1).
pub const MAX_PRIVATE: usize = 512;
/// Bytes at the front of the private data of an enhanced frame.
pub const ENHANCED: usize = 4;
/// As a depth: no negotiation of it is wanted (RFC 6581, section 9.1).
pub const NO_DEPTH: u16 = 0x3fff;

const REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const REPLY: &[u8; 16] = b"MPA ID Rep Frame";
const M: u8 = 0x80;
const C: u8 = 0x40;
const R: u8 = 0x20;
const S: u8 = 0x10;
const HIGH: u16 = 0x8000;
const LOW: u16 = 0x4000;

/// Which of the two frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The initiator's.
    Request,
    /// The responder's.
    Reply,
}

/// Messages that say "ready to receive" (RFC 6581, section 9.2). Those an initiator offers, or a responder takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rtr {
    /// A send without payload.
    pub send: bool,
    /// A write without payload.
    pub write: bool,
    /// A read of no bytes.
    pub read: bool,
}

impl Rtr {
    /// All forms.
    pub const ALL: Rtr = Rtr { send: true, write: true, read: true };
    /// Those of both.
    pub const fn and(self, o: Rtr) -> Rtr {
        Rtr { send: self.send && o.send, write: self.write && o.write, read: self.read && o.read }
    }
    /// Whether there is one at all.
    pub const fn any(self) -> bool {
        self.send || self.write || self.read
    }
}

/// What an enhanced frame adds (RFC 6581, section 9).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Enhanced {
    /// Reads of the peer at a time; 14 bits, [`NO_DEPTH`] for "not negotiated".
    pub ird: u16,
    /// Own reads at a time; likewise.
    pub ord: u16,
    /// The peer-to-peer model, with the forms of its first message. `None`: the client sends first.
    pub peer_to_peer: Option<Rtr>,
}

impl Enhanced {
    fn encode(self) -> [u8; ENHANCED] {
        let bit = |set: bool, at: u16| if set { at } else { 0 };
        let rtr = self.peer_to_peer.unwrap_or_default();
        let a = bit(self.peer_to_peer.is_some(), HIGH) | bit(rtr.send, LOW) | (self.ird & NO_DEPTH);
        let b = bit(rtr.write, HIGH) | bit(rtr.read, LOW) | (self.ord & NO_DEPTH);
        let ([a0, a1], [b0, b1]) = (a.to_be_bytes(), b.to_be_bytes());
        [a0, a1, b0, b1]
    }
    fn decode([a0, a1, b0, b1]: [u8; ENHANCED]) -> Enhanced {
        let (a, b) = (u16::from_be_bytes([a0, a1]), u16::from_be_bytes([b0, b1]));
        // Without A, the other flags MUST be ignored (RFC 6581, section 9.2).
        let rtr = Rtr { send: a & LOW != 0, write: b & HIGH != 0, read: b & LOW != 0 };
        Enhanced { ird: a & NO_DEPTH, ord: b & NO_DEPTH, peer_to_peer: (a & HIGH != 0).then_some(rtr) }
    }
}

/// A frame, without the application's private data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Request or reply.
    pub kind: Kind,
    /// The sender wants markers in what it receives.
    pub markers: bool,
    /// The sender wants CRCs.
    pub crc: bool,
    /// Replies only: the connection is refused.
    pub reject: bool,
    /// 1 or 2.
    pub revision: u8,
    /// Present with bit S.
    pub enhanced: Option<Enhanced>,
}

/// Why a frame is no frame. The connection MUST be closed (RFC 5044, sections 7.1.1 and 8, code 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// Neither key.
    #[error("the peer does not speak MPA")]
    Key,
    /// The other frame than expected: both ends started in the same role (RFC 5044, section 7.1.2, rule 8).
    #[error("both ends of the connection took the same role")]
    SameRole,
    /// A revision that is not known.
    #[error("MPA revision {0} is not supported")]
    Revision(u8),
    /// More private data than allowed, or less than an enhanced frame needs.
    #[error("private data of {0} bytes is outside of the limits")]
    PrivateData(u16),
    /// Bit S in a frame of revision 1.
    #[error("an enhanced frame of revision 1")]
    EnhancedTooOld,
}

impl Frame {
    /// Appends the frame with the application's private data, of which there must be at most 512 bytes, 508 in an
    /// enhanced frame; more is cut off.
    pub fn put(&self, private: &[u8], out: &mut Vec<u8>) {
        out.extend(match self.kind {
            Kind::Request => REQUEST,
            Kind::Reply => REPLY,
        });
        let bit = |set: bool, at: u8| if set { at } else { 0 };
        let flags = bit(self.markers, M)
            | bit(self.crc, C)
            | bit(self.reject && self.kind == Kind::Reply, R)
            | bit(self.enhanced.is_some(), S);
        let before = if self.enhanced.is_some() { ENHANCED } else { 0 };
        let private = &private[..private.len().min(MAX_PRIVATE - before)];
        out.extend([flags, self.revision]);
        out.extend(((before + private.len()) as u16).to_be_bytes());
        if let Some(e) = self.enhanced {
            out.extend(e.encode());
        }
        out.extend(private);
    }

    /// Reads a frame of the expected kind from the front of `bytes`. Gives it with its whole length and where the
    /// application's private data begins, or `None` when there are not enough bytes yet; what is wrong is found as soon
    /// as its bytes are there.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn parse(bytes: &[u8], expected: Kind) -> Result<Option<(Frame, usize, usize)>, FrameError> {
        let key = &bytes[..bytes.len().min(16)];
        let (own, other) = match expected {
            Kind::Request => (REQUEST, REPLY),
            Kind::Reply => (REPLY, REQUEST),
        };
        if !own.starts_with(key) {
            return Err(if other.starts_with(key) { FrameError::SameRole } else { FrameError::Key });
        }
        let &[_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, flags, revision, l0, l1, ref rest @ ..] = bytes
        else {
            return Ok(None);
        };
        if !matches!(revision, 1 | 2) {
            return Err(FrameError::Revision(revision));
        }
        if flags & S != 0 && revision < 2 {
            // A peer of revision 1 MUST NOT check the bit (it was reserved): it is not set by one either.
            return Err(FrameError::EnhancedTooOld);
        }
        let len = u16::from_be_bytes([l0, l1]);
        let before = if flags & S != 0 { ENHANCED } else { 0 };
        if usize::from(len) > MAX_PRIVATE || usize::from(len) < before {
            return Err(FrameError::PrivateData(len));
        }
        if rest.len() < usize::from(len) {
            return Ok(None);
        }
        let enhanced = match rest {
            &[a, b, c, d, ..] if before > 0 => Some(Enhanced::decode([a, b, c, d])),
            _ => None,
        };
        let frame = Frame {
            kind: expected,
            markers: flags & M != 0,
            crc: flags & C != 0,
            // Not checked in a request (RFC 5044, section 7.1.1).
            reject: flags & R != 0 && expected == Kind::Reply,
            revision,
            enhanced,
        };
        Ok(Some((frame, HEADER + usize::from(len), HEADER + before)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kernel_rping_request_is_parsed() {
        // siw 6.1: revision 2, CRC, one read in, one out, a zero-length write as RTR is not asked for.
        let bytes = [b"MPA ID Req Frame".as_slice(), &[0x10, 2, 0, 4, 0, 1, 0, 1]].concat();
        let e = Enhanced { ird: 1, ord: 1, peer_to_peer: None };
        let f = Frame {
            kind: Kind::Request,
            markers: false,
            crc: false,
            reject: false,
            revision: 2,
            enhanced: Some(e),
        };
        assert_eq!(Frame::parse(&bytes, Kind::Request), Ok(Some((f, 24, 24))));
        let mut out = Vec::new();
        f.put(&[], &mut out);
        assert_eq!(out, bytes);
    }

    #[test]
    fn each_invalid_field_is_rejected_as_soon_as_it_is_read() {
        assert_eq!(Frame::parse(b"GET / HT", Kind::Request), Err(FrameError::Key));
        assert_eq!(Frame::parse(b"MPA ID Rep", Kind::Request), Err(FrameError::SameRole));
        assert_eq!(Frame::parse(b"MPA ID Re", Kind::Request), Ok(None));
        let frame = |tail: [u8; 4]| [b"MPA ID Rep Frame".as_slice(), &tail].concat();
        assert_eq!(Frame::parse(&frame([0, 3, 0, 0]), Kind::Reply), Err(FrameError::Revision(3)));
        assert_eq!(Frame::parse(&frame([0, 0, 0, 0]), Kind::Reply), Err(FrameError::Revision(0)));
        assert_eq!(Frame::parse(&frame([0, 1, 2, 1]), Kind::Reply), Err(FrameError::PrivateData(513)));
        assert_eq!(Frame::parse(&frame([S, 2, 0, 3]), Kind::Reply), Err(FrameError::PrivateData(3)));
        assert_eq!(Frame::parse(&frame([S, 1, 0, 4]), Kind::Reply), Err(FrameError::EnhancedTooOld));
        assert_eq!(Frame::parse(&frame([0, 1, 2, 0]), Kind::Reply), Ok(None));
    }

    proptest! {
        #[test]
        fn frames_round_trip(
            request: bool, markers: bool, crc: bool, reject: bool, enhanced: bool, p2p: Option<(bool, bool, bool)>,
            ird in 0u16..0x4000, ord in 0u16..0x4000, private in proptest::collection::vec(any::<u8>(), 0..508),
        ) {
            let kind = if request { Kind::Request } else { Kind::Reply };
            let peer_to_peer = p2p.map(|(send, write, read)| Rtr { send, write, read });
            let enhanced = enhanced.then_some(Enhanced { ird, ord, peer_to_peer });
            let revision = if enhanced.is_some() { 2 } else { 1 };
            let f = Frame { kind, markers, crc, reject: reject && !request, revision, enhanced };
            let mut out = Vec::new();
            f.put(&private, &mut out);
            for n in 0..out.len() {
                prop_assert_eq!(Frame::parse(&out[..n], kind), Ok(None));
            }
            let (g, len, at) = Frame::parse(&out, kind).unwrap().unwrap();
            prop_assert_eq!((g, len, &out[at..len]), (f, out.len(), &private[..]));
        }
    }
}
