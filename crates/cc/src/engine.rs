//! The engine: what stands between a transport and the algorithms, the same for every transport.
//!
//! A transport has a [`Flow`] for each algorithm that runs: it tells it of trains that leave and of what became of their
//! packets, and asks it for the permission to send. The flow computes every signal once, hands them to the algorithm as
//! plain data, and paces by what that decides.

mod flow;
mod trace;
mod trend;

pub use flow::{Flow, PathSignals, Train};
pub use trace::{MAX_RECORDS, Record};
pub use trend::Trend;
