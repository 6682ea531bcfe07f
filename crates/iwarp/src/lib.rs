//! iWARP: RDMA over a byte stream, in user space (RFC 5040, 5041, 5044, 6581, 7306). Does no I/O.
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
//! Ranges of registered memory are named by handle ([`verbs::Place`]), never by address, so this crate has no unsafe
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
