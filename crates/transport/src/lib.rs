//! The native transport: an encrypted, reliable packet protocol over UDP, without I/O.
//!
//! ```
//! use base::{Rng, Time};
//! use longhaul_transport::connection::{ConnectParams, SingleBuffer};
//! use longhaul_transport::crypto::{ClientSetup, Credentials, Identity, ServerTrust};
//! use longhaul_transport::{ConnEvent, Connection, TransportOptions};
//! # use longhaul_transport::{NextSegment, PlaceError, Placed, SegmentRef, Streams};
//! # struct NoData;
//! # impl Streams for NoData {
//! #     fn next(&mut self, _: u16, _: usize, _: Option<usize>) -> Option<NextSegment> { None }
//! #     fn has_more(&self, _: u16) -> bool { false }
//! #     fn waiting(&self, _: u16) -> (u64, u64) { (0, 0) }
//! #     fn gather(&mut self, _: u16, _: &NextSegment, _: &mut [u8]) -> bool { true }
//! #     fn acked(&mut self, _: u16, _: SegmentRef) {}
//! #     fn lost(&mut self, _: u16, _: SegmentRef) {}
//! #     fn place(&mut self, _: &wire::DataHeader, _: &[u8]) -> Result<Placed, PlaceError> { Ok(Placed::Done) }
//! # }
//! let now = Time::ZERO;
//! let credentials = Credentials::RawKey(Identity::from_seed([1; 32]));
//! let params = ConnectParams {
//!     remote: "192.0.2.1:4460".parse()?,
//!     server_name: "server.example".into(),
//!     setup: ClientSetup::new(&credentials, &ServerTrust::FirstUse)?,
//!     token: None,
//!     options: TransportOptions::default(),
//!     local_cid: wire::Cid(1),
//!     reset_token: [0; 16],
//!     unix_time: 1_750_000_000,
//! };
//! let mut connection = Connection::open(now, params, Rng::from_u64(1))?;
//!
//! // Datagrams to send; those that arrive go to `handle_long` and `handle_short`.
//! let (mut buffer, mut streams) = (vec![0; 65_536], NoData);
//! let first = connection.poll_transmit(now, &mut SingleBuffer(&mut buffer), &mut streams);
//! assert!(first.is_some_and(|t| t.len >= 1_200), "a client's first datagram (RFC 9000, section 14.1)");
//!
//! // When to call `handle_timeout`, here to give up after ten seconds without an answer.
//! let later = connection.next_timeout().expect("the handshake's retransmission timer");
//! connection.handle_timeout(later, &mut streams);
//! connection.handle_timeout(now + base::Span::from_secs(60), &mut streams);
//! assert!(matches!(connection.poll_event(), Some(ConnEvent::Closed(_))));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Connection`] takes in datagrams and time and gives out datagrams, events and the time at which it wants to be
//! called again. It opens no socket and reads no clock. The layer above implements [`Streams`], which provides the
//! segments to send and places those received.

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
