//! The engine: what stands between a transport and the algorithms, the same for every transport.
//!
//! A transport has a [`Flow`] for each algorithm that runs: it tells it of trains that leave and of what became of their
//! packets, and asks it for the permission to send. The flow computes every signal once, hands them to the algorithm as
//! plain data, and paces by what that decides.
//!
//! Where an administrator divides what a host sends, the [`Tree`] has the last word: it hands tokens down from the host to
//! classes, in a class to flows, in an order of its choice. What can be promised is reckoned in [`admission`].

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
