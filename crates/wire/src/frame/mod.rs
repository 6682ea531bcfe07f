//! Frames: what control and set-up packets carry.

mod addresses;
mod feedback;

pub use addresses::{Addresses, MAX_ADDRESSES, is_tellable};
pub use feedback::{Feedback, ReceiverSignals, Telemetry};

use crate::cc::{CcAnswer, CcPropose, CcRuns};
use crate::codec::{Put, Reader, WireError, varint_len};
use crate::packet::flag as bits;

/// Bytes of a reason in words at most.
pub const MAX_REASON: usize = 512;
/// Bytes of private data handed over with a queue pair at most.
pub const MAX_PRIVATE_DATA: usize = 1024;
/// Bytes of a congestion-control specification at most.
pub const MAX_CC_SPEC: usize = 256;
/// Lanes of a connection at most.
pub const MAX_LANES: u64 = 64;

/// Bytes that a DATA frame puts in front of what a data packet would carry.
pub const DATA_LEAD: usize = 2;

mod kind {
    pub const PADDING: u8 = 0x00;
    pub const PING: u8 = 0x01;
    pub const CRYPTO: u8 = 0x02;
    pub const CRYPTO_ACK: u8 = 0x03;
    pub const FEEDBACK: u8 = 0x04;
    pub const FLOOR: u8 = 0x05;
    pub const CLOSE: u8 = 0x06;
    pub const CLOSE_ACK: u8 = 0x07;
    pub const RECV_LIMIT: u8 = 0x08;
    pub const QP_OPEN: u8 = 0x09;
    pub const QP_ACCEPT: u8 = 0x0a;
    pub const QP_ERROR: u8 = 0x0b;
    pub const PATH_CHALLENGE: u8 = 0x0c;
    pub const PATH_RESPONSE: u8 = 0x0d;
    pub const HANDSHAKE_DONE: u8 = 0x0e;
    pub const TOKEN_PROOF: u8 = 0x0f;
    pub const LANE_OPEN: u8 = 0x10;
    pub const LANE_ACCEPT: u8 = 0x11;
    pub const LANE_CLOSE: u8 = 0x12;
    pub const ADDRESSES: u8 = 0x13;
    pub const CC_PROPOSE: u8 = 0x14;
    pub const CC_ANSWER: u8 = 0x15;
    pub const CC_RUNS: u8 = 0x16;
    pub const FEEDBACK_SIGNALS: u8 = 0x18;
    pub const DATA: u8 = 0x20;
}

/// What the sender of data tells the receiver about feedback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Floor {
    /// The lane whose packets this is about.
    pub lane: u32,
    /// Packets below need no report any more: the receiver forgets them and drops late copies.
    pub floor: u64,
    /// Send feedback this often, in microseconds.
    pub interval_us: u64,
    /// Or after this many packets, whichever comes first.
    pub packets: u64,
}

/// Opens a queue pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpOpen {
    /// Its number: even from the client, odd from the server.
    pub qpn: u16,
    /// Whether lost data is sent again.
    pub reliable: bool,
    /// 0 (highest) to 7.
    pub priority: u8,
    /// Congestion control for it; empty means the connection's.
    pub cc: Vec<u8>,
    /// For the application.
    pub private_data: Vec<u8>,
}

/// Asks for a further lane, from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneOpen {
    /// Its number: from 1 on, each at most once open at a time.
    pub lane: u32,
    /// Identifier of packets to the client on it.
    pub cid: u32,
    /// It carries data only while no lane of another kind does.
    pub backup: bool,
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Nothing, that many bytes of it.
    Padding(usize),
    /// Asks for feedback.
    Ping,
    /// A piece of the handshake's byte stream.
    Crypto {
        /// Where it stands in the stream of its level.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
    },
    /// The handshake stream of this level was received up to here.
    CryptoAck {
        /// First byte that is missing.
        offset: u64,
    },
    /// What was received.
    Feedback(Feedback),
    /// How to report.
    Floor(Floor),
    /// The connection ends.
    Close {
        /// Why: see `docs/protocol.md`.
        code: u64,
        /// Why, in words.
        reason: &'a [u8],
    },
    /// The end was understood; nothing follows.
    CloseAck,
    /// Receives posted so far on a queue pair.
    RecvLimit {
        /// Queue pair.
        qpn: u16,
        /// First receive sequence number that may not be used yet.
        limit: u64,
    },
    /// Opens a queue pair.
    QpOpen(QpOpen),
    /// Answers [`Frame::QpOpen`].
    QpAccept {
        /// Queue pair.
        qpn: u16,
        /// Zero, or why not.
        code: u64,
    },
    /// A queue pair went into error; its work is flushed.
    QpError {
        /// Queue pair.
        qpn: u16,
        /// Why.
        code: u64,
    },
    /// Is the peer at this address?
    PathChallenge([u8; 8]),
    /// Yes.
    PathResponse([u8; 8]),
    /// The server has the client's last handshake message.
    HandshakeDone,
    /// Proof of a one-time token, bound to this connection.
    TokenProof([u8; 32]),
    /// Asks for a further lane.
    LaneOpen(LaneOpen),
    /// Answers [`Frame::LaneOpen`].
    LaneAccept {
        /// Its number.
        lane: u32,
        /// Identifier of packets to the server on it.
        cid: u32,
        /// Zero, or why not.
        code: u64,
    },
    /// The lane is not used any more: what is outstanding on it goes over others.
    LaneClose {
        /// Its number.
        lane: u32,
    },
    /// Where else the server can be reached.
    Addresses(Addresses),
    /// Proposes another congestion control.
    CcPropose(CcPropose),
    /// Answers [`Frame::CcPropose`].
    CcAnswer(CcAnswer),
    /// Tells of another congestion control that was not asked about.
    CcRuns(CcRuns),
    /// What a data packet would carry, behind other frames: the last one of its packet.
    Data {
        /// Kind of data packet, and its flags but the phase of keys and the request for feedback.
        flags: u8,
        /// The inner header and the payload, to the packet's end.
        body: &'a [u8],
    },
}

impl<'a> Frame<'a> {
    /// Whether the frame asks for feedback. A packet of frames that do not is neither reported nor repeated.
    pub const fn is_eliciting(&self) -> bool {
        !matches!(
            self,
            Frame::Padding(_)
                | Frame::Feedback(_)
                | Frame::Floor(_)
                | Frame::Close { .. }
                | Frame::CloseAck
                | Frame::CryptoAck { .. }
        )
    }

    /// Whether a server takes the frame from a client that it has not authorised yet.
    pub const fn is_harmless(&self) -> bool {
        matches!(
            self,
            Frame::Padding(_)
                | Frame::Ping
                | Frame::Feedback(_)
                | Frame::Floor(_)
                | Frame::Close { .. }
                | Frame::CloseAck
                | Frame::TokenProof(_)
        )
    }

    /// Reads the next frame.
    pub fn parse(r: &mut Reader<'a>) -> Result<Frame<'a>, WireError> {
        Ok(match r.u8("frame type")? {
            kind::PADDING => {
                let n = r.rest().iter().take_while(|&&b| b == 0).count();
                r.bytes(n, "padding")?;
                Frame::Padding(n + 1)
            }
            kind::PING => Frame::Ping,
            kind::CRYPTO => {
                Frame::Crypto { offset: r.varint("crypto offset")?, data: r.string(1 << 16, "crypto data")? }
            }
            kind::CRYPTO_ACK => Frame::CryptoAck { offset: r.varint("crypto offset")? },
            kind::FEEDBACK => Frame::Feedback(Feedback::parse(r, false)?),
            kind::FEEDBACK_SIGNALS => Frame::Feedback(Feedback::parse(r, true)?),
            kind::FLOOR => Frame::Floor(Floor {
                lane: lane(r)?,
                floor: r.varint("floor")?,
                interval_us: r.varint("feedback interval")?,
                packets: r.varint("feedback packets")?,
            }),
            kind::CLOSE => {
                Frame::Close { code: r.varint("close code")?, reason: r.string(MAX_REASON, "reason")? }
            }
            kind::CLOSE_ACK => Frame::CloseAck,
            kind::RECV_LIMIT => {
                Frame::RecvLimit { qpn: r.u16("queue pair number")?, limit: r.varint("receive limit")? }
            }
            kind::QP_OPEN => Frame::QpOpen(parse_qp_open(r)?),
            kind::QP_ACCEPT => Frame::QpAccept { qpn: r.u16("queue pair number")?, code: r.varint("code")? },
            kind::QP_ERROR => Frame::QpError { qpn: r.u16("queue pair number")?, code: r.varint("code")? },
            kind::PATH_CHALLENGE => Frame::PathChallenge(r.array("challenge")?),
            kind::PATH_RESPONSE => Frame::PathResponse(r.array("response")?),
            kind::HANDSHAKE_DONE => Frame::HandshakeDone,
            kind::TOKEN_PROOF => Frame::TokenProof(r.array("token proof")?),
            kind::LANE_OPEN => Frame::LaneOpen(LaneOpen {
                lane: further_lane(r)?,
                cid: r.u32("connection identifier")?,
                backup: flag(r, "backup")?,
            }),
            kind::LANE_ACCEPT => Frame::LaneAccept {
                lane: further_lane(r)?,
                cid: r.u32("connection identifier")?,
                code: r.varint("code")?,
            },
            kind::LANE_CLOSE => Frame::LaneClose { lane: further_lane(r)? },
            kind::ADDRESSES => Frame::Addresses(Addresses::parse(r)?),
            kind::CC_PROPOSE => Frame::CcPropose(CcPropose::parse(r)?),
            kind::CC_ANSWER => Frame::CcAnswer(CcAnswer::parse(r)?),
            kind::CC_RUNS => Frame::CcRuns(CcRuns::parse(r)?),
            kind::DATA => parse_data(r)?,
            other => return Err(WireError::UnknownFrame(other)),
        })
    }

    /// Bytes that [`Frame::put`] writes.
    pub fn encoded_len(&self) -> usize {
        let string = |b: &[u8]| varint_len(b.len() as u64) + b.len();
        match self {
            Frame::Padding(n) => *n,
            Frame::Ping | Frame::CloseAck | Frame::HandshakeDone => 1,
            Frame::Crypto { offset, data } => 1 + varint_len(*offset) + string(data),
            Frame::CryptoAck { offset } => 1 + varint_len(*offset),
            Frame::Feedback(f) => 1 + f.encoded_len(),
            Frame::Floor(f) => {
                1 + varint_len(f.lane.into())
                    + varint_len(f.floor)
                    + varint_len(f.interval_us)
                    + varint_len(f.packets)
            }
            Frame::Close { code, reason } => 1 + varint_len(*code) + string(reason),
            Frame::RecvLimit { limit, .. } => 3 + varint_len(*limit),
            Frame::QpOpen(q) => 5 + string(&q.cc) + string(&q.private_data),
            Frame::QpAccept { code, .. } | Frame::QpError { code, .. } => 3 + varint_len(*code),
            Frame::PathChallenge(_) | Frame::PathResponse(_) => 9,
            Frame::TokenProof(_) => 33,
            Frame::LaneOpen(l) => 1 + varint_len(l.lane.into()) + 4 + 1,
            Frame::LaneAccept { lane, code, .. } => 1 + varint_len((*lane).into()) + 4 + varint_len(*code),
            Frame::LaneClose { lane } => 1 + varint_len((*lane).into()),
            Frame::Addresses(a) => 1 + a.encoded_len(),
            Frame::CcPropose(p) => 1 + p.encoded_len(),
            Frame::CcAnswer(a) => 1 + a.encoded_len(),
            Frame::CcRuns(c) => 1 + c.encoded_len(),
            Frame::Data { body, .. } => DATA_LEAD + body.len(),
        }
    }

    /// Writes the frame.
    pub fn put(&self, out: &mut impl Put) {
        match self {
            Frame::Padding(n) => (0..*n).for_each(|_| out.put_u8(kind::PADDING)),
            Frame::Ping => out.put_u8(kind::PING),
            Frame::Crypto { offset, data } => {
                out.put_u8(kind::CRYPTO);
                out.put_varint(*offset);
                out.put_string(data);
            }
            Frame::CryptoAck { offset } => {
                out.put_u8(kind::CRYPTO_ACK);
                out.put_varint(*offset);
            }
            Frame::Feedback(f) => f.put(behind(out, f.kind())),
            Frame::Floor(f) => put_floor(out, f),
            Frame::Close { code, reason } => {
                out.put_u8(kind::CLOSE);
                out.put_varint(*code);
                out.put_string(reason);
            }
            Frame::CloseAck => out.put_u8(kind::CLOSE_ACK),
            Frame::RecvLimit { qpn, limit } => put_qp(out, kind::RECV_LIMIT, *qpn, *limit),
            Frame::QpOpen(q) => {
                out.put_u8(kind::QP_OPEN);
                out.put_u16(q.qpn);
                out.put_u8(u8::from(q.reliable));
                out.put_u8(q.priority);
                out.put_string(&q.cc);
                out.put_string(&q.private_data);
            }
            Frame::QpAccept { qpn, code } => put_qp(out, kind::QP_ACCEPT, *qpn, *code),
            Frame::QpError { qpn, code } => put_qp(out, kind::QP_ERROR, *qpn, *code),
            Frame::PathChallenge(b) => behind(out, kind::PATH_CHALLENGE).put(b),
            Frame::PathResponse(b) => behind(out, kind::PATH_RESPONSE).put(b),
            Frame::HandshakeDone => out.put_u8(kind::HANDSHAKE_DONE),
            Frame::TokenProof(b) => behind(out, kind::TOKEN_PROOF).put(b),
            Frame::LaneOpen(l) => put_lane_open(out, l),
            Frame::LaneAccept { lane, cid, code } => {
                out.put_u8(kind::LANE_ACCEPT);
                out.put_varint((*lane).into());
                out.put_u32(*cid);
                out.put_varint(*code);
            }
            Frame::LaneClose { lane } => {
                out.put_u8(kind::LANE_CLOSE);
                out.put_varint((*lane).into());
            }
            Frame::Addresses(a) => a.put(behind(out, kind::ADDRESSES)),
            Frame::CcPropose(p) => p.put(behind(out, kind::CC_PROPOSE)),
            Frame::CcAnswer(a) => a.put(behind(out, kind::CC_ANSWER)),
            Frame::CcRuns(c) => c.put(behind(out, kind::CC_RUNS)),
            Frame::Data { flags, body } => {
                out.put_u8(kind::DATA);
                out.put_u8(*flags);
                out.put(body);
            }
        }
    }
}

/// Where what is in a frame goes: behind its type.
fn behind<P: Put>(out: &mut P, kind: u8) -> &mut P {
    out.put_u8(kind);
    out
}

fn put_qp(out: &mut impl Put, kind: u8, qpn: u16, v: u64) {
    out.put_u8(kind);
    out.put_u16(qpn);
    out.put_varint(v);
}

fn put_lane_open(out: &mut impl Put, l: &LaneOpen) {
    out.put_u8(kind::LANE_OPEN);
    out.put_varint(l.lane.into());
    out.put_u32(l.cid);
    out.put_u8(u8::from(l.backup));
}

fn lane(r: &mut Reader<'_>) -> Result<u32, WireError> {
    let n = r.varint("lane")?;
    if n >= MAX_LANES {
        return Err(WireError::Invalid("lane"));
    }
    Ok(n as u32)
}

fn put_floor(out: &mut impl Put, f: &Floor) {
    out.put_u8(kind::FLOOR);
    for v in [f.lane.into(), f.floor, f.interval_us, f.packets] {
        out.put_varint(v);
    }
}

/// Flags that have no meaning in a frame must be clear, and there must be a kind of data.
fn parse_data<'a>(r: &mut Reader<'a>) -> Result<Frame<'a>, WireError> {
    let flags = r.u8("data flags")?;
    let known = bits::KIND | bits::FIRST | bits::LAST | bits::WIDE;
    if flags & !known != 0 || flags & bits::KIND == 0 {
        return Err(WireError::Invalid("data flags"));
    }
    let body = r.rest();
    r.bytes(body.len(), "data")?;
    Ok(Frame::Data { flags, body })
}

/// A lane other than the one that the handshake made.
fn further_lane(r: &mut Reader<'_>) -> Result<u32, WireError> {
    match lane(r)? {
        0 => Err(WireError::Invalid("lane")),
        n => Ok(n),
    }
}

fn flag(r: &mut Reader<'_>, what: &'static str) -> Result<bool, WireError> {
    match r.u8(what)? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Invalid(what)),
    }
}

fn parse_qp_open(r: &mut Reader<'_>) -> Result<QpOpen, WireError> {
    let qpn = r.u16("queue pair number")?;
    let reliable = flag(r, "reliability")?;
    let priority = r.u8("priority")?;
    if priority > 7 {
        return Err(WireError::Invalid("priority"));
    }
    let cc = r.string(MAX_CC_SPEC, "congestion-control specification")?.to_vec();
    let private_data = r.string(MAX_PRIVATE_DATA, "private data")?.to_vec();
    Ok(QpOpen { qpn, reliable, priority, cc, private_data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(f: Frame<'_>) {
        let mut b = Vec::new();
        f.put(&mut b);
        assert_eq!(b.len(), f.encoded_len(), "{f:?}");
        let mut r = Reader::new(&b);
        assert_eq!(Frame::parse(&mut r).as_ref(), Ok(&f));
        assert!(r.is_empty());
    }

    #[test]
    fn every_frame_round_trips() {
        round_trip(Frame::Padding(7));
        round_trip(Frame::Ping);
        round_trip(Frame::Crypto { offset: 70, data: b"hello" });
        round_trip(Frame::CryptoAck { offset: 1 << 20 });
        round_trip(Frame::Floor(Floor { lane: 3, floor: 1 << 40, interval_us: 8_750, packets: 4_096 }));
        round_trip(Frame::Close { code: 300, reason: b"bye" });
        round_trip(Frame::CloseAck);
        round_trip(Frame::RecvLimit { qpn: 9, limit: 1 << 33 });
        let open =
            QpOpen { qpn: 2, reliable: true, priority: 7, cc: b"cubic".to_vec(), private_data: vec![1; 99] };
        round_trip(Frame::QpOpen(open));
        round_trip(Frame::QpAccept { qpn: 2, code: 0 });
        round_trip(Frame::QpError { qpn: 2, code: 5 });
        round_trip(Frame::PathChallenge([1; 8]));
        round_trip(Frame::PathResponse([2; 8]));
        round_trip(Frame::HandshakeDone);
        round_trip(Frame::TokenProof([3; 32]));
        round_trip(Frame::LaneOpen(LaneOpen { lane: 63, cid: 1 << 31, backup: true }));
        round_trip(Frame::LaneAccept { lane: 1, cid: 7, code: 300 });
        round_trip(Frame::LaneClose { lane: 2 });
        let list = ["10.0.0.1:4460", "[fd00::1]:65535"].map(|a| a.parse().unwrap()).to_vec();
        round_trip(Frame::Addresses(Addresses { sequence: 300, list }));
        round_trip(Frame::Data { flags: 0x1c, body: &[1, 2, 3] });
        round_trip(Frame::Data { flags: 0x22, body: &[] });
    }

    #[test]
    fn limits_are_enforced() {
        assert_eq!(Frame::parse(&mut Reader::new(&[0x7e])), Err(WireError::UnknownFrame(0x7e)));
        assert_eq!(Frame::parse(&mut Reader::new(&[0x06, 0, 0x44, 0])), Err(WireError::TooLong("reason")));
        assert_eq!(
            Frame::parse(&mut Reader::new(&[0x05, 0x40, 64, 0, 0, 0])),
            Err(WireError::Invalid("lane"))
        );
        assert_eq!(Frame::parse(&mut Reader::new(&[0x09, 0, 0, 2])), Err(WireError::Invalid("reliability")));
        assert_eq!(Frame::parse(&mut Reader::new(&[0x12, 0])), Err(WireError::Invalid("lane")));
        for flags in [0x00, 0x0c, 0x11, 0x50, 0x90] {
            let bytes = [0x20, flags, 1, 2];
            let read = Frame::parse(&mut Reader::new(&bytes));
            assert_eq!(read, Err(WireError::Invalid("data flags")), "{flags:#x}");
        }
        assert_eq!(
            Frame::parse(&mut Reader::new(&[0x10, 1, 0, 0, 0, 1, 2])),
            Err(WireError::Invalid("backup"))
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(d in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut r = Reader::new(&d);
            while let Ok(f) = Frame::parse(&mut r) {
                let mut again = Vec::new();
                f.put(&mut again);
                prop_assert_eq!(again.len(), f.encoded_len());
                if r.is_empty() { break; }
            }
        }
    }
}
