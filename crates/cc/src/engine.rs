//! The engine between a transport and the algorithms, the same for every transport.
//!
//! A transport has a [`Flow`] for each running algorithm. It reports sent trains and the fate of their packets to it
//! and asks it for permission to send. The flow computes every signal once, passes the signals to the algorithm as
//! plain data, and paces according to the algorithm's decision.
//!
//! Where an administrator divides a process's rate, the [`Tree`] grants permission in addition: from the process to
//! classes, and within a class to flows. [`admission`] computes which guarantees and deadlines can be granted.

pub mod admission;
mod bucket;
mod flow;
mod schedule;
mod shared;
mod trace;
mod tree;
mod trend;

pub use flow::{Flow, PathSignals, Train};
pub use shared::SharedTree;
pub use trace::{MAX_RECORDS, Record};
pub use tree::{BURST, Due, FlowId, MAX_CLASSES, MAX_NODES, MAX_TREE_FLOWS, Terms, Tree};
pub use trend::Trend;
