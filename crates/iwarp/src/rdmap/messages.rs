//! The RDMAP messages with a payload of their own: read and atomic requests, and atomic responses.

use crate::{u32_at, u64_at};
use verbs::AtomicOp;

/// Bytes of a read's request (RFC 5040, section 4.4).
pub const READ_REQUEST: usize = 28;
/// Bytes of an atomic operation's request (RFC 7306, section 5.2.1).
pub const ATOMIC_REQUEST: usize = 52;
/// Bytes of its answer (RFC 7306, section 5.2.2).
pub const ATOMIC_RESPONSE: usize = 12;
/// Bytes of immediate data (RFC 7306, section 6.2).
pub const IMMEDIATE: usize = 8;

const FETCH_ADD: u32 = 0;
const COMPARE_SWAP: u32 = 2;

/// A read's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadRequest {
    /// Key of the asker's buffer.
    pub sink_stag: u32,
    /// Where in it the answer begins.
    pub sink_to: u64,
    /// Bytes to read.
    pub len: u32,
    /// Key of the buffer that is read.
    pub source_stag: u32,
    /// Where in it reading begins.
    pub source_to: u64,
}

impl ReadRequest {
    /// Appends the request.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend(self.sink_stag.to_be_bytes());
        out.extend(self.sink_to.to_be_bytes());
        out.extend(self.len.to_be_bytes());
        out.extend(self.source_stag.to_be_bytes());
        out.extend(self.source_to.to_be_bytes());
    }
    /// Reads a request; `None` unless it has exactly its length.
    pub fn parse(b: &[u8]) -> Option<ReadRequest> {
        (b.len() == READ_REQUEST).then(|| ReadRequest {
            sink_stag: u32_at(b, 0),
            sink_to: u64_at(b, 4),
            len: u32_at(b, 12),
            source_stag: u32_at(b, 16),
            source_to: u64_at(b, 20),
        })
    }
}

/// An atomic operation's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicRequest {
    /// The asker's number; comes back in the answer.
    pub id: u32,
    /// Key of the buffer that is changed.
    pub stag: u32,
    /// Where in it the 64 bits stand.
    pub to: u64,
    /// What to do with them; `None` for a code that RFC 7306 does not define.
    pub op: Option<AtomicOp>,
}

impl AtomicRequest {
    /// Appends the request. Without an operation nothing useful is written.
    pub fn put(&self, out: &mut Vec<u8>) {
        let (code, fields) = match self.op {
            // Fields of other operations: zero, and a mask of ones (RFC 7306, section 5.2.1).
            Some(AtomicOp::FetchAdd { add, mask }) => (FETCH_ADD, [add, mask, 0, u64::MAX]),
            Some(AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask }) => {
                (COMPARE_SWAP, [swap, swap_mask, compare, compare_mask])
            }
            None => (0x0f, [0; 4]),
        };
        for word in [code, self.id, self.stag] {
            out.extend(word.to_be_bytes());
        }
        out.extend(self.to.to_be_bytes());
        out.extend(fields.into_iter().flat_map(u64::to_be_bytes));
    }
    /// Reads a request; `None` unless it has exactly its length.
    pub fn parse(b: &[u8]) -> Option<AtomicRequest> {
        if b.len() != ATOMIC_REQUEST {
            return None;
        }
        let field = |i: usize| u64_at(b, 20 + 8 * i);
        let op = match u32_at(b, 0) & 0x0f {
            FETCH_ADD => Some(AtomicOp::FetchAdd { add: field(0), mask: field(1) }),
            COMPARE_SWAP => Some(AtomicOp::CompareSwap {
                swap: field(0),
                swap_mask: field(1),
                compare: field(2),
                compare_mask: field(3),
            }),
            _ => None,
        };
        Some(AtomicRequest { id: u32_at(b, 4), stag: u32_at(b, 8), to: u64_at(b, 12), op })
    }
}

/// The answer to an atomic operation: its number and the value before it.
pub fn put_atomic_response(id: u32, value: u64, out: &mut Vec<u8>) {
    out.extend(id.to_be_bytes());
    out.extend(value.to_be_bytes());
}
/// Reads such an answer; `None` unless it has exactly its length.
pub fn parse_atomic_response(b: &[u8]) -> Option<(u32, u64)> {
    (b.len() == ATOMIC_RESPONSE).then(|| (u32_at(b, 0), u64_at(b, 4)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn read_request_layout_matches_rfc_5040() {
        let r = ReadRequest { sink_stag: 1, sink_to: 2, len: 3, source_stag: 4, source_to: 5 };
        let mut b = Vec::new();
        r.put(&mut b);
        let want =
            [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5].as_slice();
        assert_eq!(b, want);
    }

    #[test]
    fn atomic_request_layout_matches_rfc_7306() {
        let op = AtomicOp::CompareSwap { compare: 7, compare_mask: 8, swap: 5, swap_mask: 6 };
        let mut b = Vec::new();
        AtomicRequest { id: 2, stag: 3, to: 4, op: Some(op) }.put(&mut b);
        let words: Vec<u32> = b.chunks(4).map(|w| u32_at(w, 0)).collect();
        assert_eq!(words, [2, 2, 3, 0, 4, 0, 5, 0, 6, 0, 7, 0, 8]);
        b[3] = 1;
        assert_eq!(AtomicRequest::parse(&b).map(|r| r.op), Some(None), "a code that is not defined");
    }

    proptest! {
        #[test]
        fn messages_round_trip(a: u32, b: u64, c: u32, d: u32, e: u64, f: u64, g: u64, swap: bool, n in 0usize..60) {
            let r = ReadRequest { sink_stag: a, sink_to: b, len: c, source_stag: d, source_to: e };
            let mut out = Vec::new();
            r.put(&mut out);
            prop_assert_eq!(ReadRequest::parse(&out), Some(r));
            let op = if swap {
                AtomicOp::CompareSwap { compare: e, compare_mask: f, swap: g, swap_mask: b }
            } else {
                AtomicOp::FetchAdd { add: e, mask: f }
            };
            let r = AtomicRequest { id: a, stag: c, to: b, op: Some(op) };
            out.clear();
            r.put(&mut out);
            prop_assert_eq!(AtomicRequest::parse(&out), Some(r));
            out.clear();
            put_atomic_response(a, b, &mut out);
            prop_assert_eq!(parse_atomic_response(&out), Some((a, b)));
            let any = vec![1; n];
            prop_assert_eq!(ReadRequest::parse(&any).is_some(), n == READ_REQUEST);
            prop_assert_eq!(AtomicRequest::parse(&any).is_some(), n == ATOMIC_REQUEST);
            prop_assert_eq!(parse_atomic_response(&any).is_some(), n == ATOMIC_RESPONSE);
        }
    }
}
