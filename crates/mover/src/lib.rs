//! Bulk transfer of files and trees: chunks, checksums, resume.

pub mod error;
pub mod hash;
pub mod journal;
pub mod link;
pub mod path;
pub mod pool;
pub mod progress;
pub mod proto;
pub mod tree;
pub mod walk;
