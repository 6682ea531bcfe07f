//! The operations that `longhaul perf` measures.

use clap::ValueEnum;

/// What is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// RDMA writes into the other end's memory.
    #[default]
    Write,
    /// Sends into receives that the other end posts.
    Send,
    /// RDMA reads out of the other end's memory.
    Read,
    /// Atomic additions to 64 bits of the other end's memory.
    FetchAdd,
    /// Atomic comparisons and exchanges there, each of which finds what the one before has left.
    CompareSwap,
}

impl Operation {
    /// Whether it is one that changes 64 bits at a time.
    pub fn is_atomic(self) -> bool {
        matches!(self, Operation::FetchAdd | Operation::CompareSwap)
    }
}
