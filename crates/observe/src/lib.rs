//! The event log and the speed estimate that logs, progress displays, JSON reports and traces are made from.
//!
//! Layers keep cumulative counters of their own (`transport::Stats`, `verbs::Stats`, `mover::Counters`) and record what happens as
//! typed [`Event`]s in the endpoint's [`EventLog`]. Whoever shows something reads these; nobody keeps a second account. No event is
//! built while nobody has [subscribed](EventLog::subscribe), and none is recorded for a packet, so that the log costs one branch where
//! something happens to a connection, a path, a queue pair or a file.

mod event;
mod history;
mod log;
mod speed;

pub use event::{Event, SessionEnd, Subject, What};
pub use history::History;
pub use log::{EventLog, Missed, Reader};
pub use speed::Speed;
