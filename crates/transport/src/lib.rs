//! The native transport: handshake, lanes, feedback, loss detection, pacing.
//!
//! A [`Connection`] takes in datagrams and time and gives out datagrams, events and the time it wants to be
//! called again. It opens no socket and reads no clock. Messages and memory are the business of whoever
//! implements [`Streams`].

pub mod config;
pub mod connection;
pub mod crypto;
pub mod error;
pub mod lane;
pub mod negotiation;
pub mod scheduler;
pub mod stats;
pub mod streams;
pub mod tls_stream;

pub use config::{AdditionalPath, CcNegotiation, Coupling, LaneChoice, PathDiscovery, TransportOptions};
pub use connection::LaneAddresses;
pub use connection::{ConnEvent, Connection, DatagramInfo, Transmit};
pub use error::{CloseReason, Unreachable, Violation};
pub use negotiation::{Allow, CcChangeReason, refusal};
pub use stats::{Gauge, PathStats, Stats, Usage, limits};
pub use streams::{NextSegment, PlaceError, Placed, SegmentRef, Streams};
pub use tls_stream::{TlsEvent, TlsStream, looks_like_tls};
