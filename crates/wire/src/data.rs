//! The inner header of data packets: where the payload belongs.
//!
//! ```text
//! Write         queue pair 2 | message 2 | memory key 4 | offset 6 (8 if WIDE) | [tail] | payload
//! Send          queue pair 2 | message 2 | receive 2    | offset 4 (8 if WIDE) | [tail] | payload
//! Extended      opcode 1, then as Write (ReadResponse) or as Send without `receive` (ReadRequest, AtomicRequest)
//! tail          only with LAST: flags 1 | [receive 2, Write only | immediate 4] | [padding: length 1, zeroes]
//! ```

use crate::codec::{Put, Reader, WireError};
use crate::packet::flag;

/// What a data packet does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOp {
    /// Places payload into the peer's memory.
    Write,
    /// Carries payload to the receive that the peer posted.
    Send,
    /// Asks for the peer's memory.
    ReadRequest,
    /// Answers a read or an atomic operation: places payload into the destination the request named.
    ReadResponse,
    /// Asks for eight bytes of the peer's memory to be changed.
    AtomicRequest,
}

/// What the last segment of a message adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Immediate data.
    pub imm: Option<u32>,
    /// Of a Send: what stands as immediate data is a key of the receiver's that is made void.
    pub invalidates: bool,
    /// Whether the receiver's completion is to raise a solicited event.
    pub solicited: bool,
    /// Zeroes behind it, besides the byte that tells how many: for the packets of a train to be equally long.
    pub padding: Option<u8>,
}

/// The inner header of one data packet, sequence numbers truncated as they travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// What to do.
    pub op: DataOp,
    /// Queue pair number, the same at both ends.
    pub qpn: u16,
    /// Message sequence number of the queue pair and direction, low 16 bits.
    pub msn: u16,
    /// Memory key (Write, ReadResponse), else zero.
    pub key: u32,
    /// Where the payload goes: offset in the region (Write, ReadResponse) or in the message (others).
    pub offset: u64,
    /// Receive sequence number, low 16 bits: all segments of a Send, the last of a Write with Immediate.
    pub rsn: Option<u16>,
    /// First segment of its message.
    pub first: bool,
    /// Last segment of its message, with what it adds.
    pub last: Option<Tail>,
}

const KIND_WRITE: u8 = 0x10;
const KIND_SEND: u8 = 0x20;
const KIND_EXTENDED: u8 = 0x30;
const TAIL_IMM: u8 = 1;
const TAIL_SOLICITED: u8 = 2;
const TAIL_PADDING: u8 = 4;
const TAIL_INVALIDATE: u8 = 8;
/// Bytes that the last packet of a message has more of at least,
pub const TAIL: usize = 1;
/// and with immediate data at most.
pub const TAIL_IMMEDIATE: usize = TAIL + 2 + 4;

/// Bytes of the inner header of a Write that is not its message's last packet: the common case.
pub const WRITE_HEADER: usize = 14;
/// The same of a Send.
pub const SEND_HEADER: usize = 10;
/// The same of an answer to a Read.
pub const RESPONSE_HEADER: usize = 15;

impl DataHeader {
    fn wide(&self) -> bool {
        match self.op {
            DataOp::Write | DataOp::ReadResponse => self.offset >> 48 != 0,
            DataOp::Send | DataOp::ReadRequest | DataOp::AtomicRequest => self.offset >> 32 != 0,
        }
    }

    /// Flag bits that go with this header.
    pub fn flags(&self) -> u8 {
        let kind = match self.op {
            DataOp::Write => KIND_WRITE,
            DataOp::Send => KIND_SEND,
            DataOp::ReadRequest | DataOp::ReadResponse | DataOp::AtomicRequest => KIND_EXTENDED,
        };
        let bit = |on: bool, b: u8| if on { b } else { 0 };
        kind | bit(self.first, flag::FIRST)
            | bit(self.last.is_some(), flag::LAST)
            | bit(self.wide(), flag::WIDE)
    }

    /// Bytes that [`DataHeader::put`] writes.
    pub fn encoded_len(&self) -> usize {
        let wide = self.wide();
        let fixed = match self.op {
            DataOp::Write => 8 + if wide { 8 } else { 6 },
            DataOp::Send => 6 + if wide { 8 } else { 4 },
            DataOp::ReadRequest | DataOp::AtomicRequest => 5 + if wide { 8 } else { 4 },
            DataOp::ReadResponse => 9 + if wide { 8 } else { 6 },
        };
        fixed
            + self.last.map_or(0, |t| {
                let rsn = if t.imm.is_some() && self.op == DataOp::Write { 2 } else { 0 };
                let padding = t.padding.map_or(0, |n| 1 + usize::from(n));
                TAIL + rsn + if t.imm.is_some() { 4 } else { 0 } + padding
            })
    }

    /// Makes the header of a message's last packet `more` bytes longer, where that is 256 at most. Others stay as they are.
    pub fn pad(&mut self, more: usize) {
        if let Some(t) = &mut self.last {
            t.padding = more.checked_sub(1).and_then(|n| u8::try_from(n).ok());
        }
    }

    /// Writes the inner header.
    pub fn put(&self, out: &mut impl Put) {
        match self.op {
            DataOp::ReadRequest => out.put_u8(1),
            DataOp::ReadResponse => out.put_u8(2),
            DataOp::AtomicRequest => out.put_u8(3),
            DataOp::Write | DataOp::Send => {}
        }
        out.put_u16(self.qpn);
        out.put_u16(self.msn);
        match self.op {
            DataOp::Write | DataOp::ReadResponse => {
                out.put_u32(self.key);
                if self.wide() { out.put_u64(self.offset) } else { out.put_u48(self.offset) }
            }
            DataOp::Send | DataOp::ReadRequest | DataOp::AtomicRequest => {
                if self.op == DataOp::Send {
                    out.put_u16(self.rsn.unwrap_or(0));
                }
                if self.wide() { out.put_u64(self.offset) } else { out.put_u32(self.offset as u32) }
            }
        }
        if let Some(t) = self.last {
            let imm = if t.imm.is_some() { TAIL_IMM } else { 0 };
            let solicited = if t.solicited { TAIL_SOLICITED } else { 0 };
            let invalidates = if t.invalidates { TAIL_INVALIDATE } else { 0 };
            out.put_u8(imm | solicited | invalidates | if t.padding.is_some() { TAIL_PADDING } else { 0 });
            if let Some(v) = t.imm {
                if self.op == DataOp::Write {
                    out.put_u16(self.rsn.unwrap_or(0));
                }
                out.put_u32(v);
            }
            if let Some(n) = t.padding {
                out.put_u8(n);
                out.put(&[0; u8::MAX as usize][..n.into()]);
            }
        }
    }

    /// Reads the inner header; `flags` is byte 0 of the packet after protection was removed, of a packet
    /// whose kind is not control. What follows in `r` is the payload.
    pub fn parse(flags: u8, r: &mut Reader<'_>) -> Result<DataHeader, WireError> {
        let op = match flags & flag::KIND {
            KIND_WRITE => DataOp::Write,
            KIND_SEND => DataOp::Send,
            KIND_EXTENDED => match r.u8("opcode")? {
                1 => DataOp::ReadRequest,
                2 => DataOp::ReadResponse,
                3 => DataOp::AtomicRequest,
                _ => return Err(WireError::Invalid("opcode")),
            },
            _ => return Err(WireError::Invalid("packet kind")),
        };
        let wide = flags & flag::WIDE != 0;
        if op == DataOp::Write
            && flags & (flag::WIDE | flag::LAST) == 0
            && let Some(h) = r.rest().first_chunk::<WRITE_HEADER>()
        {
            // The common case, by one look at what is there.
            let [q0, q1, m0, m1, k0, k1, k2, k3, o @ ..] = *h;
            let offset = u64::from_be_bytes([0, 0, o[0], o[1], o[2], o[3], o[4], o[5]]);
            r.bytes(WRITE_HEADER, "header")?;
            return Ok(DataHeader {
                op,
                qpn: u16::from_be_bytes([q0, q1]),
                msn: u16::from_be_bytes([m0, m1]),
                key: u32::from_be_bytes([k0, k1, k2, k3]),
                offset,
                rsn: None,
                first: flags & flag::FIRST != 0,
                last: None,
            });
        }
        let qpn = r.u16("queue pair number")?;
        let msn = r.u16("message number")?;
        let (mut key, mut rsn) = (0, None);
        let offset = match op {
            DataOp::Write | DataOp::ReadResponse => {
                key = r.u32("memory key")?;
                if wide { r.u64("offset")? } else { r.u48("offset")? }
            }
            DataOp::Send | DataOp::ReadRequest | DataOp::AtomicRequest => {
                if op == DataOp::Send {
                    rsn = Some(r.u16("receive number")?);
                }
                if wide { r.u64("offset")? } else { u64::from(r.u32("offset")?) }
            }
        };
        let mut last = None;
        if flags & flag::LAST != 0 {
            let (tail, receive) = parse_tail(op, r)?;
            rsn = rsn.or(receive);
            last = Some(tail);
        }
        Ok(DataHeader { op, qpn, msn, key, offset, rsn, first: flags & flag::FIRST != 0, last })
    }
}

/// Reads the tail of a message's last packet, and the receive number that a Write has there.
fn parse_tail(op: DataOp, r: &mut Reader<'_>) -> Result<(Tail, Option<u16>), WireError> {
    let mut rsn = None;
    let t = r.u8("tail")?;
    if t & !(TAIL_IMM | TAIL_SOLICITED | TAIL_PADDING | TAIL_INVALIDATE) != 0 {
        return Err(WireError::Invalid("tail"));
    }
    let invalidates = t & TAIL_INVALIDATE != 0;
    if invalidates && (t & TAIL_IMM == 0 || op != DataOp::Send) {
        return Err(WireError::Invalid("a key to invalidate where none belongs"));
    }
    let mut tail = Tail { solicited: t & TAIL_SOLICITED != 0, invalidates, ..Tail::default() };
    if t & TAIL_IMM != 0 {
        if op == DataOp::Write {
            rsn = Some(r.u16("receive number")?);
        }
        tail.imm = Some(r.u32("immediate")?);
    }
    if t & TAIL_PADDING != 0 {
        let n = r.u8("padding")?;
        r.bytes(n.into(), "padding")?;
        tail.padding = Some(n);
    }
    Ok((tail, rsn))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::SHORT_CLEAR;
    use proptest::prelude::*;

    #[test]
    fn write_vector() {
        let h = DataHeader {
            op: DataOp::Write,
            qpn: 1,
            msn: 2,
            key: 0xdead_beef,
            offset: 0x0102_0304_0506,
            rsn: None,
            first: true,
            last: None,
        };
        let mut b = Vec::new();
        h.put(&mut b);
        assert_eq!(b, [0, 1, 0, 2, 0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6]);
        assert_eq!(h.flags(), 0x18);
        assert_eq!(b.len(), WRITE_HEADER);
    }

    #[test]
    fn atomic_request_vector() {
        let last = Some(Tail::default());
        let op = DataOp::AtomicRequest;
        let h = DataHeader { op, qpn: 1, msn: 2, key: 0, offset: 0, rsn: None, first: true, last };
        let mut b = Vec::new();
        h.put(&mut b);
        assert_eq!(b, [3, 0, 1, 0, 2, 0, 0, 0, 0, 0]);
        assert_eq!(h.flags(), KIND_EXTENDED | flag::FIRST | flag::LAST);
        assert_eq!(DataHeader::parse(h.flags(), &mut Reader::new(&b)), Ok(h));
        b[0] = 4;
        assert_eq!(DataHeader::parse(h.flags(), &mut Reader::new(&b)), Err(WireError::Invalid("opcode")));
    }

    #[test]
    fn padding_makes_the_last_packet_as_long_as_wished() {
        let last = Some(Tail::default());
        let h = DataHeader {
            op: DataOp::Send,
            qpn: 1,
            msn: 2,
            key: 0,
            offset: 3,
            rsn: Some(4),
            first: false,
            last,
        };
        for more in 0..260 {
            let mut padded = h;
            padded.pad(more);
            let added = if more <= 256 { more } else { 0 };
            assert_eq!(padded.encoded_len(), h.encoded_len() + added);
            let mut b = Vec::new();
            padded.put(&mut b);
            b.push(0xaa);
            let mut r = Reader::new(&b);
            assert_eq!(DataHeader::parse(padded.flags(), &mut r), Ok(padded));
            assert_eq!(r.rest(), [0xaa]);
            // Cut short, it is malformed.
            assert!(
                (0..b.len() - 1)
                    .all(|n| DataHeader::parse(padded.flags(), &mut Reader::new(&b[..n])).is_err())
            );
        }
        let mut between = DataHeader { last: None, ..h };
        between.pad(9);
        assert_eq!(between, DataHeader { last: None, ..h });
        let mut b = Vec::new();
        let mut padded = h;
        padded.pad(3);
        padded.put(&mut b);
        assert_eq!(b, [0, 1, 0, 2, 0, 4, 0, 0, 0, 3, 4, 2, 0, 0]);
    }

    #[test]
    fn payload_share_at_mtu_1500_is_at_least_95_5_percent() {
        let payload = 1500 - 20 - 8 - SHORT_CLEAR - 16 - WRITE_HEADER;
        assert_eq!(payload, 1433);
        assert!(payload as f64 / 1500.0 >= 0.955);
    }

    fn header() -> impl Strategy<Value = DataHeader> {
        (
            0..5u8,
            any::<[u16; 3]>(),
            any::<u32>(),
            any::<u64>(),
            0..64u32,
            any::<bool>(),
            any::<(bool, bool, Option<u32>, Option<u8>)>(),
        )
            .prop_map(
                |(op, [qpn, msn, rsn], key, offset, shift, first, (is_last, solicited, imm, padding))| {
                    let op = [
                        DataOp::Write,
                        DataOp::Send,
                        DataOp::ReadRequest,
                        DataOp::ReadResponse,
                        DataOp::AtomicRequest,
                    ][op as usize];
                    let invalidates = first && imm.is_some() && op == DataOp::Send;
                    let last = is_last.then_some(Tail { imm, invalidates, solicited, padding });
                    let with_imm = op == DataOp::Write && last.is_some_and(|t| t.imm.is_some());
                    DataHeader {
                        op,
                        qpn,
                        msn,
                        key: if matches!(op, DataOp::Write | DataOp::ReadResponse) { key } else { 0 },
                        offset: offset >> shift,
                        rsn: (op == DataOp::Send || with_imm).then_some(rsn),
                        first,
                        last,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn headers_round_trip(h in header()) {
            let mut b = Vec::new();
            h.put(&mut b);
            prop_assert_eq!(b.len(), h.encoded_len());
            let mut r = Reader::new(&b);
            prop_assert_eq!(DataHeader::parse(h.flags(), &mut r), Ok(h));
            prop_assert!(r.is_empty());
        }

        #[test]
        fn arbitrary_bytes_never_panic(flags in 0u8..0x80, d in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = DataHeader::parse(flags, &mut Reader::new(&d));
        }
    }
}
