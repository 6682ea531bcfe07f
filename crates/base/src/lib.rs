//! Units, sequence numbers, seeded randomness and bounded collections that all other crates use.
//!
//! Nothing here reads a clock or the system's randomness; see `io` for the only place that does.

pub mod ecn;
pub mod keys;
pub mod prefetch;
pub mod ranges;
pub mod rate;
pub mod rng;
pub mod seq;
pub mod telemetry;
pub mod text;
pub mod time;
pub mod units;

pub use ecn::Ecn;
pub use keys::KeyMap;
pub use prefetch::Prefetch;
pub use ranges::RangeSet;
pub use rate::Rate;
pub use rng::Rng;
pub use time::{Span, Time};
