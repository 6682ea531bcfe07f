//! Bytes of the native protocol to values and back; nothing else. `docs/protocol.md` is the specification.
//!
//! Parsing checks everything it can once; code behind it sees only values. No input makes a parser panic.

pub mod cc;
pub mod codec;
pub mod data;
pub mod frame;
pub mod packet;
pub mod params;

pub use cc::{CcAnswer, CcOffer, CcPreference, CcPropose, CcRuns, CcTerms, CcTopic};
pub use codec::{Put, Reader, SliceWriter, WireError};
pub use data::{DataHeader, DataOp, Tail};
pub use frame::{Feedback, Floor, Frame, LaneOpen, QpOpen};
pub use packet::{Cid, Clear, LongHeader, LongType};
pub use params::{Module, Params};
