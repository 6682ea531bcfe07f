//! Segments: the self-describing pieces of messages that pass between this crate and a transport.

use crate::work::AtomicOp;

/// The kind of message that a segment belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentOp {
    /// A write, with immediate data or without.
    Write,
    /// A send.
    Send,
    /// The request of a read: [`READ_REQUEST_LEN`] bytes made by this crate.
    ReadRequest,
    /// The answer to a read or to an atomic operation.
    ReadResponse,
    /// The request of an atomic operation: [`ATOMIC_REQUEST_LEN`] bytes made by this crate.
    AtomicRequest,
}

impl SegmentOp {
    /// Bytes of a request's message; `None`: it is no request.
    pub(crate) const fn request_len(self) -> Option<u64> {
        match self {
            SegmentOp::ReadRequest => Some(READ_REQUEST_LEN as u64),
            SegmentOp::AtomicRequest => Some(ATOMIC_REQUEST_LEN as u64),
            SegmentOp::Write | SegmentOp::Send | SegmentOp::ReadResponse => None,
        }
    }
}

/// Length of a read request in bytes: source key (4), source offset (8), length (8), sink key (4), reserved (4),
/// all big endian.
pub const READ_REQUEST_LEN: usize = 28;

/// Length of the request of an atomic operation in bytes: target key (4), target offset (8), sink key (4), operation (4:
/// 0 fetch and add, 1 compare and swap), and four operands (8 each), all big endian. The operands are the fields of
/// [`AtomicOp`] in their order, then zeroes.
pub const ATOMIC_REQUEST_LEN: usize = 52;

/// What the last segment of a message adds. Only messages that consume a receive give it a meaning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tail {
    /// Immediate data.
    pub imm: Option<u32>,
    /// Send with Invalidate: the immediate data is a key of the receiver, which the message invalidates.
    pub invalidates: bool,
    /// Whether the receiver's completion is marked as solicited.
    pub solicited: bool,
}

/// A piece of a message to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// What it belongs to.
    pub op: SegmentOp,
    /// Message sequence number. Every message of a queue pair's direction takes one when its first segment is
    /// built. Travels as its low 16 bits.
    pub msn: u64,
    /// Receive sequence number: which of the peer's receives the message consumes. Present on all segments of
    /// sends and on the last segment of a write with immediate data. Travels as its low 16 bits.
    pub rsn: Option<u64>,
    /// For a write the peer's remote key, for a read response the key of the sink; else 0.
    pub key: u32,
    /// For a write the destination's offset in the region of `key`; else the same as `offset`.
    pub position: u64,
    /// Offset in the message.
    pub offset: u64,
    /// Length of the payload in bytes.
    pub len: u32,
    /// Whether it starts the message (`offset` is 0).
    pub first: bool,
    /// Present on the segment that ends the message.
    pub last: Option<Tail>,
    /// Whether these bytes were sent before.
    pub retransmission: bool,
    /// Nobody waits to hear of it: it belongs to a message whose success makes no completion, and was not sent before.
    pub quiet: bool,
}

impl Segment {
    /// The reference by which a transport reports its acknowledgement or loss.
    pub const fn reference(&self) -> SegmentRef {
        SegmentRef { msn: self.msn, offset: self.offset, len: self.len }
    }
    /// The one behind it in the same message: as long, neither the first nor the last, and sent for the first time.
    pub const fn following(&self) -> Segment {
        let len = self.len as u64;
        Segment {
            position: self.position + len,
            offset: self.offset + len,
            first: false,
            retransmission: false,
            ..*self
        }
    }
    /// The segment as the peer decodes it.
    pub const fn incoming(&self) -> Incoming {
        Incoming {
            op: self.op,
            msn16: self.msn as u16,
            rsn16: match self.rsn {
                Some(r) => Some(r as u16),
                None => None,
            },
            key: self.key,
            position: self.position,
            first: self.first,
            last: self.last,
        }
    }
}

/// Names the bytes of a sent segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentRef {
    /// Message sequence number.
    pub msn: u64,
    /// Offset in the message.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// A decoded segment. Its length is that of the payload beside it. A write that comes with a receive number has
/// immediate data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// What it belongs to.
    pub op: SegmentOp,
    /// Low 16 bits of the message sequence number.
    pub msn16: u16,
    /// Low 16 bits of the receive sequence number.
    pub rsn16: Option<u16>,
    /// See [`Segment::key`].
    pub key: u32,
    /// See [`Segment::position`]. Where in its message a piece of a write lies follows from the first piece.
    pub position: u64,
    /// Whether it starts the message.
    pub first: bool,
    /// Present when it ends the message.
    pub last: Option<Tail>,
}

impl Incoming {
    /// Whether it is all of a Write or Send.
    pub(crate) const fn is_whole_push(&self) -> bool {
        self.first && self.last.is_some() && matches!(self.op, SegmentOp::Write | SegmentOp::Send)
    }
}

/// The result of placing a valid segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placed {
    /// Some or all of its bytes were new and are in place. Acknowledge it.
    New,
    /// All of it was there before; nothing was written. Acknowledge it.
    Duplicate,
    /// It cannot be taken now (no room to track it, or the queue pair does not receive). Treat the packet as not
    /// received: do not acknowledge it.
    Refused,
}

/// A rule that the peer broke. Close the connection or put the queue pair in error with [`Violation::code`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Flags, lengths or fields of one segment contradict each other.
    #[error("malformed segment: {0}; the peer's implementation is faulty")]
    Malformed(&'static str),
    /// A segment contradicts earlier ones of its message.
    #[error("segment contradicts its message: {0}; the peer's implementation is faulty")]
    Inconsistent(&'static str),
    /// The message number is further ahead than the protocol allows.
    #[error("message number too far ahead of the oldest incomplete message")]
    TooFarAhead,
    /// No region of this protection domain has the key (it may have been deregistered).
    #[error("unknown memory key; the peer must use a key that was handed to it and is still registered")]
    BadKey,
    /// The region does not allow this access.
    #[error("the region does not allow this access; register it with the right the peer needs")]
    AccessDenied,
    /// Outside of the region or of the read's destination.
    #[error("access outside of the bounds of the region")]
    OutOfBounds,
    /// More receives consumed than were posted.
    #[error("message beyond the receives that were posted; the peer ignored its credit")]
    CreditExceeded,
    /// Receives not consumed in the order of messages.
    #[error("receive number out of order or used twice; the peer's implementation is faulty")]
    ReceiveOrder,
    /// The message is longer than the receive it consumes, or than any message may be.
    #[error("message longer than the receive posted for it, or than the protocol's limit")]
    TooLong,
    /// More reads and atomic operations outstanding than agreed.
    #[error("more reads and atomic operations outstanding than max_rd_atomic; the peer ignored its limit")]
    TooManyReads,
    /// Not offered by this kind of queue pair.
    #[error("operation not offered by this service type")]
    Unsupported,
    /// Not the peer's fault: the local memory of the destination failed.
    #[error("the local memory of the destination failed; check the file or device behind it")]
    LocalFault,
    /// Not the peer's fault either: the memory of a receive failed or may not be used.
    #[error("the memory of the receive failed or may not be used; post receives of registered memory")]
    ReceiveFault,
    /// The queue pair does not exist.
    #[error("no such queue pair; it was destroyed")]
    NoQueuePair,
}

impl Violation {
    /// The code that tells the peer why. Stable across versions.
    pub const fn code(self) -> u16 {
        match self {
            Violation::Malformed(_) => 1,
            Violation::Inconsistent(_) => 2,
            Violation::TooFarAhead => 3,
            Violation::BadKey => 4,
            Violation::AccessDenied => 5,
            Violation::OutOfBounds => 6,
            Violation::CreditExceeded => 7,
            Violation::ReceiveOrder => 8,
            Violation::TooLong => 9,
            Violation::TooManyReads => 10,
            Violation::Unsupported => 11,
            Violation::LocalFault => 12,
            Violation::NoQueuePair => 13,
            // 14 says that the queue pair is gone.
            Violation::ReceiveFault => 15,
        }
    }

    /// How the sender of the offending message should report a code it got: its oldest work request ends with it.
    pub const fn status_of_code(code: u16) -> crate::Status {
        match code {
            // Memory that is not there is to the peer what it may not use.
            4..=6 | 12 => crate::Status::RemoteAccess,
            1..=13 => crate::Status::RemoteInvalidRequest,
            15 => crate::Status::RemoteOperation,
            _ => crate::Status::TransportFailed,
        }
    }
}

/// A read request's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReadRequest {
    pub(crate) rkey: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) sink: u32,
}
impl ReadRequest {
    pub(crate) fn encode(&self) -> [u8; READ_REQUEST_LEN] {
        let mut b = [0; READ_REQUEST_LEN];
        b[0..4].copy_from_slice(&self.rkey.to_be_bytes());
        b[4..12].copy_from_slice(&self.offset.to_be_bytes());
        b[12..20].copy_from_slice(&self.len.to_be_bytes());
        b[20..24].copy_from_slice(&self.sink.to_be_bytes());
        b
    }
    pub(crate) fn decode(b: &[u8; READ_REQUEST_LEN]) -> ReadRequest {
        // The reserved bytes are ignored, so that a later version may use them.
        let u32_at = |i: usize| u32::from_be_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let u64_at = |i: usize| u64::from(u32_at(i)) << 32 | u64::from(u32_at(i + 4));
        ReadRequest { rkey: u32_at(0), offset: u64_at(4), len: u64_at(12), sink: u32_at(20) }
    }
}

/// The fields of an atomic operation's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AtomicRequest {
    pub(crate) rkey: u32,
    pub(crate) offset: u64,
    pub(crate) sink: u32,
    pub(crate) op: AtomicOp,
}
impl AtomicRequest {
    pub(crate) fn encode(&self) -> [u8; ATOMIC_REQUEST_LEN] {
        let (code, operands) = match self.op {
            AtomicOp::FetchAdd { add, mask } => (0u32, [add, mask, 0, 0]),
            AtomicOp::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                (1, [compare, compare_mask, swap, swap_mask])
            }
        };
        let mut b = [0; ATOMIC_REQUEST_LEN];
        b[0..4].copy_from_slice(&self.rkey.to_be_bytes());
        b[4..12].copy_from_slice(&self.offset.to_be_bytes());
        b[12..16].copy_from_slice(&self.sink.to_be_bytes());
        b[16..20].copy_from_slice(&code.to_be_bytes());
        for (to, operand) in b[20..].chunks_exact_mut(8).zip(operands) {
            to.copy_from_slice(&operand.to_be_bytes());
        }
        b
    }
    pub(crate) fn decode(b: &[u8; ATOMIC_REQUEST_LEN]) -> Result<AtomicRequest, Violation> {
        let u32_at = |i: usize| u32::from_be_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let u64_at = |i: usize| u64::from(u32_at(i)) << 32 | u64::from(u32_at(i + 4));
        let op = match u32_at(16) {
            0 => AtomicOp::FetchAdd { add: u64_at(20), mask: u64_at(28) },
            1 => AtomicOp::CompareSwap {
                compare: u64_at(20),
                compare_mask: u64_at(28),
                swap: u64_at(36),
                swap_mask: u64_at(44),
            },
            _ => return Err(Violation::Malformed("an unknown atomic operation")),
        };
        Ok(AtomicRequest { rkey: u32_at(0), offset: u64_at(4), sink: u32_at(12), op })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn read_request_layout_matches_rfc_5040() {
        let r = ReadRequest { rkey: 0x0102_0304, offset: 0x1112_1314_1516_1718, len: 5, sink: 0x2122_2324 };
        let mut want = vec![1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
        want.extend([0, 0, 0, 0, 0, 0, 0, 5, 0x21, 0x22, 0x23, 0x24, 0, 0, 0, 0]);
        assert_eq!(r.encode()[..], want[..]);
    }

    #[test]
    fn atomic_request_layout_is_as_documented() {
        let (rkey, offset, sink) = (0x0102_0304, 0x1112_1314_1516_1718, 0x2122_2324);
        let swap = AtomicOp::CompareSwap { compare: 5, compare_mask: 6, swap: 7, swap_mask: u64::MAX };
        let mut want =
            vec![1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24];
        want.extend([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 7]);
        want.extend([0xff; 8]);
        assert_eq!(AtomicRequest { rkey, offset, sink, op: swap }.encode()[..], want[..]);
        let add = AtomicOp::FetchAdd { add: u64::MAX, mask: 0x80 };
        want.truncate(16);
        want.extend([0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0x80]);
        want.extend([0; 16]);
        let mut b = AtomicRequest { rkey, offset, sink, op: add }.encode();
        assert_eq!(b[..], want[..]);
        b[19] = 2;
        assert!(matches!(AtomicRequest::decode(&b), Err(Violation::Malformed(_))));
    }

    proptest! {
        #[test]
        fn atomic_request_round_trips(keys: (u32, u32), offset: u64, n: [u64; 4], swaps: bool) {
            let op = if swaps {
                AtomicOp::CompareSwap { compare: n[0], compare_mask: n[1], swap: n[2], swap_mask: n[3] }
            } else {
                AtomicOp::FetchAdd { add: n[0], mask: n[1] }
            };
            let r = AtomicRequest { rkey: keys.0, offset, sink: keys.1, op };
            prop_assert_eq!(AtomicRequest::decode(&r.encode()), Ok(r));
        }

        #[test]
        fn read_request_round_trips(rkey: u32, offset: u64, len: u64, sink: u32) {
            let r = ReadRequest { rkey, offset, len, sink };
            prop_assert_eq!(ReadRequest::decode(&r.encode()), r);
        }
    }
}
