//! DDP, direct data placement: the header that says where a record's payload belongs (RFC 5041, section 4).
//!
//! ```text
//! |T|L| Resrv | DV|   RsvdULP     |      tagged: 14 bytes
//! |             STag              |
//! |              TO               |
//! |              TO               |
//!
//! |T|L| Resrv | DV|   RsvdULP     |      untagged: 18 bytes
//! |           RsvdULP             |
//! |              QN               |
//! |              MSN              |
//! |              MO               |
//! ```

use crate::rdmap::terminate::Cause;

/// Bytes of a header for tagged buffers.
pub const TAGGED: usize = 14;
/// Bytes of a header for untagged buffers.
pub const UNTAGGED: usize = 18;
/// The only version (RFC 5041, section 4.1).
pub const VERSION: u8 = 1;

/// Queues of untagged messages as RDMAP uses them (RFC 5040, section 4.1; RFC 7306, section 4.1).
pub const QUEUES: usize = 4;
/// Sends and immediate data.
pub const QN_SEND: u32 = 0;
/// Requests of reads and atomic operations.
pub const QN_REQUEST: u32 = 1;
/// Terminate messages.
pub const QN_TERMINATE: u32 = 2;
/// Answers to atomic operations.
pub const QN_ATOMIC: u32 = 3;

const T: u8 = 0x80;
const L: u8 = 0x40;
const DV: u8 = 0x03;

/// Errors of tagged buffers (RFC 5041, section 7.2).
pub mod tagged {
    use super::Cause;
    /// Invalid STag.
    pub const STAG: Cause = Cause::new(1, 1, 0);
    /// Base or bounds violation.
    pub const BOUNDS: Cause = Cause::new(1, 1, 1);
    /// STag not associated with the stream.
    pub const ASSOCIATION: Cause = Cause::new(1, 1, 2);
    /// Offset and length wrap.
    pub const WRAP: Cause = Cause::new(1, 1, 3);
    /// Invalid DDP version.
    pub const VERSION: Cause = Cause::new(1, 1, 4);
}

/// Errors of untagged buffers (RFC 5041, section 7.2).
pub mod untagged {
    use super::Cause;
    /// Invalid queue number.
    pub const QN: Cause = Cause::new(1, 2, 1);
    /// Invalid message number: no buffer available.
    pub const NO_BUFFER: Cause = Cause::new(1, 2, 2);
    /// Invalid message number: out of range.
    pub const MSN: Cause = Cause::new(1, 2, 3);
    /// Invalid message offset.
    pub const MO: Cause = Cause::new(1, 2, 4);
    /// Message too long for the buffer.
    pub const TOO_LONG: Cause = Cause::new(1, 2, 5);
    /// Invalid DDP version.
    pub const VERSION: Cause = Cause::new(1, 2, 6);
}

/// A local failure (RFC 5041, section 7.2). Also for a record too short for its header, for which there is no code.
pub const CATASTROPHIC: Cause = Cause::new(1, 0, 0);

/// Where the payload belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A buffer that the peer names.
    Tagged {
        /// Its key.
        stag: u32,
        /// First byte.
        to: u64,
    },
    /// The next buffer of a queue.
    Untagged {
        /// The key to invalidate, when the operation has one (RFC 5040, section 4.1), else 0.
        invalidate: u32,
        /// The queue.
        qn: u32,
        /// Number of the message in its queue, from 1 on.
        msn: u32,
        /// Offset in the message.
        mo: u32,
    },
}

/// A header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The last segment of its message.
    pub last: bool,
    /// The first byte that is reserved for the upper layer: RDMAP's control field.
    pub control: u8,
    /// Where the payload belongs.
    pub target: Target,
}

/// First byte of the untagged header of a message that is whole in its record.
pub(crate) const WHOLE: u8 = L | VERSION;

impl Target {
    /// Queue, number and offset that an untagged header names.
    pub(crate) const fn queued(header: &[u8; UNTAGGED]) -> (u32, u32, u32) {
        let [.., q0, q1, q2, q3, n0, n1, n2, n3, o0, o1, o2, o3] = *header;
        let field = u32::from_be_bytes;
        (field([q0, q1, q2, q3]), field([n0, n1, n2, n3]), field([o0, o1, o2, o3]))
    }
}

impl Header {
    /// Whether the header that begins with `first` names a tagged buffer.
    pub const fn is_tagged(first: u8) -> bool {
        first & T != 0
    }
    /// Bytes of the header that begins with `first`.
    pub const fn len_of(first: u8) -> usize {
        if Header::is_tagged(first) { TAGGED } else { UNTAGGED }
    }
    /// Bytes of this header.
    pub const fn encoded_len(&self) -> usize {
        match self.target {
            Target::Tagged { .. } => TAGGED,
            Target::Untagged { .. } => UNTAGGED,
        }
    }

    /// The header, and how many bytes of these it has.
    pub fn encode(&self) -> ([u8; UNTAGGED], usize) {
        let last = if self.last { L } else { 0 };
        let mut out = [0; UNTAGGED];
        out[1] = self.control;
        match self.target {
            Target::Tagged { stag, to } => {
                out[0] = T | last | VERSION;
                out[2..6].copy_from_slice(&stag.to_be_bytes());
                out[6..14].copy_from_slice(&to.to_be_bytes());
                (out, TAGGED)
            }
            Target::Untagged { invalidate, qn, msn, mo } => {
                out[0] = last | VERSION;
                out[2..6].copy_from_slice(&invalidate.to_be_bytes());
                out[6..10].copy_from_slice(&qn.to_be_bytes());
                out[10..14].copy_from_slice(&msn.to_be_bytes());
                out[14..].copy_from_slice(&mo.to_be_bytes());
                (out, UNTAGGED)
            }
        }
    }

    /// Appends the header.
    pub fn put(&self, out: &mut Vec<u8>) {
        let (header, len) = self.encode();
        out.extend_from_slice(&header[..len]);
    }

    /// Reads a header from the front of a record's contents. Reserved bits are not looked at.
    ///
    /// # Errors
    /// The version, or [`CATASTROPHIC`] when there are too few bytes.
    pub fn parse(b: &[u8]) -> Result<Header, Cause> {
        let &first = b.first().ok_or(CATASTROPHIC)?;
        if first & DV != VERSION {
            return Err(if first & T != 0 { tagged::VERSION } else { untagged::VERSION });
        }
        let last = first & L != 0;
        if first & T != 0 {
            let &[_, control, s0, s1, s2, s3, t0, t1, t2, t3, t4, t5, t6, t7, ..] = b else {
                return Err(CATASTROPHIC);
            };
            let stag = u32::from_be_bytes([s0, s1, s2, s3]);
            let to = u64::from_be_bytes([t0, t1, t2, t3, t4, t5, t6, t7]);
            return Ok(Header { last, control, target: Target::Tagged { stag, to } });
        }
        let (Some(&control), Some(fields)) = (b.get(1), b.get(2..UNTAGGED)) else { return Err(CATASTROPHIC) };
        let field = |i: usize| crate::u32_at(fields, 4 * i);
        let (invalidate, qn, msn, mo) = (field(0), field(1), field(2), field(3));
        Ok(Header { last, control, target: Target::Untagged { invalidate, qn, msn, mo } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn header_layouts_match_rfc_5041() {
        let mut b = Vec::new();
        let target = Target::Tagged { stag: 0x0102_0304, to: 0x1112_1314_1516_1718 };
        Header { last: true, control: 0x40, target }.put(&mut b);
        assert_eq!(b, [0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        b.clear();
        let target = Target::Untagged { invalidate: 1, qn: 2, msn: 3, mo: 4 };
        Header { last: false, control: 0x43, target }.put(&mut b);
        assert_eq!(b, [0x01, 0x43, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]);
    }

    #[test]
    fn versions_and_lengths_are_checked() {
        assert_eq!(Header::parse(&[]), Err(CATASTROPHIC));
        assert_eq!(Header::parse(&[0xc1; 13]), Err(CATASTROPHIC));
        assert_eq!(Header::parse(&[0x41; 17]), Err(CATASTROPHIC));
        assert_eq!(Header::parse(&[0xc2; 14]), Err(tagged::VERSION));
        assert_eq!(Header::parse(&[0x40; 18]), Err(untagged::VERSION));
    }

    proptest! {
        #[test]
        fn headers_round_trip(last: bool, control: u8, tagged: bool, a: u32, b: u64, c: u32, d: u32) {
            let target = if tagged {
                Target::Tagged { stag: a, to: b }
            } else {
                Target::Untagged { invalidate: a, qn: b as u32, msn: c, mo: d }
            };
            let h = Header { last, control, target };
            let mut out = Vec::new();
            h.put(&mut out);
            prop_assert_eq!((out.len(), Header::len_of(out[0])), (h.encoded_len(), h.encoded_len()));
            prop_assert_eq!(Header::parse(&out), Ok(h));
        }
    }
}
