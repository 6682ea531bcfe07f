//! Bulk transfer of files and trees: chunks, checksums, resume.

pub mod client;
pub mod error;
pub mod hash;
pub mod journal;
mod link;
pub mod path;
pub mod pool;
pub mod progress;
pub mod proto;
pub mod server;
mod session;
mod sink;
mod source;
pub mod tree;
pub mod walk;

#[cfg(test)]
mod tests;

pub use client::{ClientApp, GetOptions, ListOptions, PutOptions, TransferOptions};
pub use error::{Cause, Error, FileError};
pub use pool::Wake;
pub use progress::{Progress, Snapshot, Summary};
pub use server::{Monitor, ServeOptions, ServerApp, SessionInfo};
