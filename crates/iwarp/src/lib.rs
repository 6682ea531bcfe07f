//! iWARP: RDMA over a byte stream, in user space and without I/O (RFC 5040, 5041, 5044, 6581, 7306).
//!
//! ```
//! use base::{Rng, Time};
//! use longhaul_iwarp::{Config, Connection, Event, Piece};
//! use verbs::{Access, Adapter, Data, Kind, Limits, Memory, QpInit, SendOp, SendWr, Status};
//!
//! let now = Time::ZERO;
//! let open = |seed| {
//!     let mut adapter = Adapter::new(Limits::default(), Rng::from_u64(seed));
//!     let pd = adapter.alloc_pd()?;
//!     let cq = adapter.create_cq(16)?;
//!     let qp = adapter.create_qp(pd, QpInit { kind: Kind::Ordered, ..QpInit::new(cq, cq) })?;
//!     Ok::<_, verbs::Error>((adapter, pd, cq, qp))
//! };
//! let (mut a, _, a_cq, a_qp) = open(1)?;
//! let (mut b, b_pd, _, b_qp) = open(2)?;
//! let region = b.reg_mr(b_pd, Memory::zeroed(100), Access::ALL).map_err(|e| e.0)?;
//! let mut initiator = Connection::initiator(Config::default(), a_qp, b"", now)?;
//! let mut responder = Connection::responder(Config::default(), now);
//!
//! // Carries bytes from one end to the other; a driver uses `sendmsg` and `readv` on a TCP socket.
//! let carry = |x: &mut Connection, xa: &mut Adapter, y: &mut Connection, ya: &mut Adapter| {
//!     while let Some(t) = x.transmit(xa, now) {
//!         let (mut bytes, len) = (Vec::new(), t.len);
//!         for piece in t.pieces {
//!             let Piece::Scratch { start, len } = piece else { unreachable!("short payloads are copied") };
//!             bytes.extend(&t.scratch[*start..start + len]);
//!         }
//!         y.receive(ya, &bytes[t.skip..], now);
//!         x.on_sent(xa, len);
//!     }
//! };
//! carry(&mut initiator, &mut a, &mut responder, &mut b);
//! assert!(matches!(responder.next_event(), Some(Event::Requested { .. })));
//! responder.accept(&mut b, b_qp, b"", now)?;
//! carry(&mut responder, &mut b, &mut initiator, &mut a);
//! assert!(matches!(initiator.next_event(), Some(Event::Established { .. })));
//!
//! let op = SendOp::Write { rkey: region.rkey, offset: 40 };
//! a.post_send(a_qp, SendWr::new(7, op, Data::Inline(b"hello".as_slice().into())))?;
//! carry(&mut initiator, &mut a, &mut responder, &mut b);
//! assert_eq!(a.poll_cq(a_cq).map(|wc| (wc.wr_id, wc.status)), Some((7, Status::Success)));
//! let mut out = [0; 5];
//! b.read_mr(region.id, 40, &mut out)?;
//! assert_eq!(&out, b"hello");
//! # Ok::<(), verbs::Error>(())
//! ```
//!
//! A [`Connection`] joins one byte stream to one queue pair ([`verbs::Kind::Ordered`]) of a [`verbs::Adapter`]. Whoever drives
//! it owns the stream:
//!
//! * [`Connection::places`] says where the next bytes of the stream go: a list of ranges of scratch memory and of
//!   registered memory, for one `readv`, after a [`Connection::recheck`]. [`Connection::on_received`] says how many came.
//! * [`Connection::transmit`] gives what is to be sent as a list of ranges of the same two kinds, many records together, for
//!   one `sendmsg`; [`Connection::on_sent`] says how much of it the stream took. Each list begins at a segment boundary if
//!   the one before was sent with `MSG_EOR`; records are made to fit segments, so that segments hold whole records.
//! * [`Connection::poll_timeout`] and [`Connection::on_timeout`] are the clock; time is passed in.
//! * [`Connection::next_event`] says what the application should hear of, [`Connection::next_action`] what to do to the
//!   stream: to shut down its sending side, to close it, to reset it.
//!
//! Completions are the adapter's. Everything a peer can do wrong ends in a Terminate message with the code that the
//! RFCs have for it, or in a closed connection where they have none.
//!
//! Ranges of registered memory are named by handle ([`verbs::MrRange`]), never by address, so this crate has no unsafe
//! code, and memory that was deregistered in between is not reached.

mod config;
mod connection;
pub mod ddp;
pub mod mpa;
pub mod rdmap;

pub use config::{Config, Placement};
pub use connection::{
    Connection, End, Event, Piece, ReadTarget, ReadTargets, Scratch, StreamAction, Transmit,
};
pub use mpa::frames::{Enhanced, FrameError, MAX_PRIVATE, Rtr};
pub use rdmap::terminate::Cause;

/// The 32 bits at byte `at`; 0 beyond the end.
fn u32_at(b: &[u8], at: usize) -> u32 {
    match b.get(at..at + 4) {
        Some(&[a, b, c, d]) => u32::from_be_bytes([a, b, c, d]),
        _ => 0,
    }
}
/// The 64 bits at byte `at`; 0 beyond the end.
fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) << 32 | u64::from(u32_at(b, at + 4))
}
