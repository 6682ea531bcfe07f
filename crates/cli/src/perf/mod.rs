//! `longhaul perf`: measures a path with verbs.
//!
//! Queue pair 0 carries a few messages about the measurement ([`proto`]); the others carry the load ([`load`]).
//! Whoever starts the operations is the initiator: the client, or with `--reverse` the server.

mod arrivals;
mod claim;
pub mod client;
mod control;
mod intervals;
mod load;
mod pattern;
mod ping;
mod proto;
mod refresh;
pub mod server;
mod silence;
mod window;

pub use proto::PathFigures;
