//! Terminate messages: why a connection ends (RFC 5040, section 4.8).
//!
//! ```text
//! | Layer | EType |   Error Code  |HdrCt|      reserved           |
//! |  DDP segment length (D)       |  DDP header (D), 14 or 18     |
//! |  header of a read's request (R), 28                           |
//! ```

use super::messages::READ_REQUEST;
use crate::ddp;
use core::fmt;
use verbs::Status;

/// Layer, type and code of an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cause {
    /// 0: RDMAP, 1: DDP, 2: MPA. 4 bits.
    pub layer: u8,
    /// Type. 4 bits.
    pub etype: u8,
    /// Code.
    pub code: u8,
}

impl Cause {
    /// A cause. `layer` and `etype` are below 16.
    pub const fn new(layer: u8, etype: u8, code: u8) -> Cause {
        Cause { layer, etype, code }
    }
}

/// A failure of this end that has nothing to do with the peer.
pub const CATASTROPHIC: Cause = Cause::new(0, 0, 0);
/// Remote protection error: invalid STag. Of reads, atomic operations and invalidation.
pub const STAG: Cause = Cause::new(0, 1, 0);
/// Remote protection error: base or bounds violation.
pub const BOUNDS: Cause = Cause::new(0, 1, 1);
/// Remote protection error: access rights violation.
pub const RIGHTS: Cause = Cause::new(0, 1, 2);
/// Remote protection error: STag not associated with the stream.
pub const ASSOCIATION: Cause = Cause::new(0, 1, 3);
/// Remote protection error: offset and length wrap.
pub const WRAP: Cause = Cause::new(0, 1, 4);
/// Remote protection error: STag cannot be invalidated.
pub const CANNOT_INVALIDATE: Cause = Cause::new(0, 1, 9);
/// Remote operation error: invalid RDMAP version.
pub const VERSION: Cause = Cause::new(0, 2, 5);
/// Remote operation error: unexpected opcode.
pub const OPCODE: Cause = Cause::new(0, 2, 6);
/// Remote operation error: catastrophic, of this stream. For atomic operations that are not aligned (RFC 7306, section
/// 8.2).
pub const STREAM: Cause = Cause::new(0, 2, 7);
/// Remote operation error: unspecified. For messages of the wrong length.
pub const UNSPECIFIED: Cause = Cause::new(0, 2, 0xff);
/// MPA: the TCP connection was closed, terminated or lost (RFC 5044, section 8). Never sent.
pub const CONNECTION_LOST: Cause = Cause::new(2, 0, 1);
/// MPA: the CRC does not match (RFC 5044, section 8).
pub const CRC: Cause = Cause::new(2, 0, 2);
/// MPA: marker and length field disagree.
pub const MARKER: Cause = Cause::new(2, 0, 3);
/// MPA: a local failure (RFC 6581, section 8).
pub const MPA_CATASTROPHIC: Cause = Cause::new(2, 0, 5);
/// MPA: insufficient IRD resources (RFC 6581, section 8).
pub const INSUFFICIENT_IRD: Cause = Cause::new(2, 0, 6);
/// MPA: no matching RTR option (RFC 6581, section 8).
pub const NO_MATCHING_RTR: Cause = Cause::new(2, 0, 7);

/// The name of the others.
const NAMELESS: &str = "an error that no specification names";

impl Cause {
    /// The name that the RFCs give it.
    pub const fn name(self) -> &'static str {
        match (self.layer, self.etype, self.code) {
            (0, 0, _) => "local catastrophic error",
            (0, 1, 0) | (1, 1, 0) => "invalid STag",
            (0 | 1, 1, 1) => "base or bounds violation",
            (0, 1, 2) => "access rights violation",
            (0, 1, 3) => "STag not associated with the RDMAP stream",
            (0, 1, 4) | (1, 1, 3) => "TO wrap",
            (0, 1 | 2, 9) => "STag cannot be invalidated",
            (0, 1 | 2, 0xff) => "unspecified error",
            (0, 2, 5) => "invalid RDMAP version",
            (0, 2, 6) => "unexpected opcode",
            (0, 2, 7) => "catastrophic error, localized to the RDMAP stream",
            (0, 2, 8) => "catastrophic error, global",
            (1, 0, _) => "local catastrophic error of DDP",
            (1, 1, 2) => "STag not associated with the DDP stream",
            (1, 1, 4) | (1, 2, 6) => "invalid DDP version",
            (1, 2, 1) => "invalid queue number",
            (1, 2, 2) => "invalid message number, no buffer available",
            (1, 2, 3) => "invalid message number, out of range",
            (1, 2, 4) => "invalid message offset",
            (1, 2, 5) => "message too long for the available buffer",
            (2, 0, 1) => "connection closed, terminated or lost",
            (2, 0, 2) => "CRC mismatch",
            (2, 0, 3) => "marker and length do not agree",
            (2, 0, 4) => "invalid MPA request or reply",
            (2, 0, 5) => "local catastrophic error of MPA",
            (2, 0, 6) => "insufficient IRD resources",
            (2, 0, 7) => "no matching RTR option",
            _ => NAMELESS,
        }
    }

    /// How the oldest work request of the end that is told of this cause completes.
    pub const fn status(self) -> Status {
        match (self.layer, self.etype) {
            (0, 1) | (1, 1) => Status::RemoteAccess,
            (0 | 1, 2) => Status::RemoteInvalidRequest,
            _ => Status::TransportFailed,
        }
    }

    /// Whether a Terminate message quotes the header of what was wrong (RFC 5040, figure 10).
    const fn quotes(self) -> bool {
        matches!((self.layer, self.etype), (0, 1 | 2) | (1, 1 | 2))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (layer {}, type {}, code {:#04x})", self.name(), self.layer, self.etype, self.code)
    }
}
impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a Terminate message quotes.
#[derive(Clone, Copy, Default, Debug)]
pub struct Quote<'a> {
    /// Length of the contents of the record that was wrong.
    pub len: u16,
    /// Its DDP header, 14 or 18 bytes; empty when there is none.
    pub ddp: &'a [u8],
    /// The request of a read, 28 bytes; empty when it was something else.
    pub request: &'a [u8],
}

const M: u8 = 0x80;
const D: u8 = 0x40;
const R: u8 = 0x20;
/// Longest message that is read: control, length, DDP header, request.
pub const MAX: usize = 4 + 2 + ddp::UNTAGGED + READ_REQUEST;

/// Appends a Terminate message.
pub fn put(cause: Cause, quote: Quote<'_>, out: &mut Vec<u8>) {
    let with_ddp = cause.quotes() && !quote.ddp.is_empty();
    // A read's request is quoted with protection errors of RDMAP only (RFC 5040, figure 10).
    let with_request =
        with_ddp && (cause.layer, cause.etype) == (0, 1) && quote.request.len() == READ_REQUEST;
    let flags = if with_ddp { M | D } else { 0 } | if with_request { R } else { 0 };
    out.extend([cause.layer << 4 | cause.etype, cause.code, flags, 0]);
    if with_ddp {
        out.extend(quote.len.to_be_bytes());
        out.extend(quote.ddp);
    }
    if with_request {
        out.extend(quote.request);
    }
}

/// Flags as Linux's siw writes them on little-endian machines: the fields within a byte in the opposite order, so that
/// layer and type are exchanged too (seen of Linux 6.1).
const REVERSED: u8 = (M | D | R).reverse_bits();

/// Reads the cause from a Terminate message; what it quotes is not looked at. `None` when it is too short for what it
/// announces, or longer than one can be.
///
/// Messages of Linux's siw are understood as they are meant, but for those that quote nothing and would be something
/// else that the RFCs name: its "unexpected opcode" reads as "insufficient IRD resources".
pub fn parse(b: &[u8]) -> Option<Cause> {
    let &[kinds, code, flags, _, ref rest @ ..] = b else { return None };
    // The bits of the right order are all zero only in messages that quote nothing; those of the other are reserved.
    let reversed = flags & (M | D | R) == 0 && flags & REVERSED != 0;
    let flags = if reversed { flags.reverse_bits() } else { flags };
    let quoted = match rest {
        [_, _, first, ..] if flags & D != 0 => 2 + ddp::Header::len_of(*first),
        _ if flags & D != 0 => return None,
        _ if flags & M != 0 => 2,
        _ => 0,
    };
    let request = if flags & R != 0 { READ_REQUEST } else { 0 };
    if rest.len() < quoted + request || b.len() > MAX {
        return None;
    }
    let (cause, other) =
        (Cause::new(kinds >> 4, kinds & 0x0f, code), Cause::new(kinds & 0x0f, kinds >> 4, code));
    let meant = reversed || cause.name() == NAMELESS && other.name() != NAMELESS;
    Some(if meant { other } else { cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_headers_follow_rfc_5040_figure_10() {
        let quote = Quote { len: 46, ddp: &[1; 18], request: &[2; 28] };
        for (cause, len, flags) in [
            (CATASTROPHIC, 4, 0),
            (STAG, 4 + 2 + 18 + 28, M | D | R),
            (OPCODE, 4 + 2 + 18, M | D),
            (ddp::tagged::BOUNDS, 4 + 2 + 18, M | D),
            (CRC, 4, 0),
        ] {
            let mut b = Vec::new();
            put(cause, quote, &mut b);
            assert_eq!((b.len(), b[2], parse(&b)), (len, flags, Some(cause)), "{cause}");
            for n in 0..len {
                assert_eq!(parse(&b[..n]), None, "{cause} cut to {n}");
            }
        }
        assert_eq!(parse(&[0; MAX + 1]), None);
    }

    #[test]
    fn terminate_messages_of_siw_are_parsed() {
        let from_siw = |cause: Cause, quoted: usize| {
            let mut b = vec![cause.etype << 4 | cause.layer, cause.code];
            b.extend(if quoted > 0 { [3 | u8::from(quoted > 20) << 2, 0] } else { [0; 2] });
            b.extend([0, 46, 0x41]);
            b.resize(4 + quoted, 0);
            parse(&b)
        };
        for (cause, quoted) in [
            (STAG, 48),
            (BOUNDS, 48),
            (ddp::tagged::STAG, 20),
            (ddp::untagged::MSN, 20),
            (ddp::untagged::NO_BUFFER, 20),
            (STREAM, 20),
            (CRC, 0),
        ] {
            assert_eq!(from_siw(cause, quoted), Some(cause));
            let cut = quoted.checked_sub(2).filter(|n| *n > 4);
            assert_eq!(cut.and_then(|n| from_siw(cause, n)), None, "{cause}");
        }
        // The one that cannot be told apart.
        assert_eq!(from_siw(OPCODE, 0), Some(INSUFFICIENT_IRD));
    }

    #[test]
    fn every_cause_has_a_name() {
        for c in
            [STAG, BOUNDS, RIGHTS, ASSOCIATION, WRAP, CANNOT_INVALIDATE, VERSION, OPCODE, STREAM, UNSPECIFIED]
        {
            assert!(!c.name().starts_with("an error"), "{c}");
        }
        assert_eq!(
            Cause::new(9, 9, 9).to_string(),
            "an error that no specification names (layer 9, type 9, code 0x09)"
        );
    }
}
