//! Bulk transfer of files and trees: chunks, checksums, resume.
//!
//! One connection carries one request: [`ClientApp::put`], [`ClientApp::get`] or [`ClientApp::list`], answered by a
//! [`ServerApp`]. Both are `endpoint::App`s. The end that has the files is the source, the other one the sink; which
//! of them is the client makes no difference.
//!
//! ```text
//! walk -> (what the sink lists is left out) -> small files: read, hash, pack into messages  -> Send
//!                                           -> large files: offer .. grant -> read, hash    -> Write, Send of hashes
//! Send  -> verify, temporary name, rename                        (worker threads)
//! Write -> staging; a copy is written to the preallocated temporary file and hashed, journal, root hash, rename
//! ```
//!
//! **Round trips.** One for the connection, one for the sink's listing (at once when there is nothing), none for each
//! file: small files share messages, and offers of large files are answered while others are on their way.
//!
//! **The same.** A file is left out when size and modification time are the same at both ends; with `checksum`, when
//! its BLAKE3 is. Mode and times of such a file are still brought over. Links are compared by their target.
//!
//! **Interruptions.** Until a file is complete and verified it is called `.NAME.longhaul-part`, and
//! `.NAME.longhaul-journal` lists its verified chunks (files from 1 MiB on). What an attempt finds is hashed against
//! the source before it counts, so nothing is believed that is not so; after a restart of the sink's machine also
//! chunks of the journal and files that look finished are. When size or modification time of the source has changed,
//! the file starts over, and a note says so.
//!
//! **What travels.** Contents, names (any bytes), holes, `rwx` permissions, modification times to the nanosecond,
//! symbolic links as they are, empty folders. Not: owners, set-id and sticky bits, access control lists, extended
//! attributes, hard links (each name becomes a file), devices, sockets and pipes (reported).
//!
//! **Limits.** Files up to 2^50 bytes, paths to 4,096 bytes and 1,024 levels, 1,024 sources of one request; chunks of
//! 256 KiB to 64 MiB by size; 192 large files under way; memory: 32 MiB to 2 GiB at the source, 32 MiB to 4 GiB
//! at the sink, by the bandwidth-delay product; receive buffers 8 to 64 MiB.
//!
//! **Errors.** What concerns one file is reported by [`FileError`] and the others go on ([`Error::Partial`] at the
//! end); each names the thing, what happened, and the way out.

pub mod client;
pub mod error;
pub mod hash;
pub mod journal;
mod link;
pub mod path;
pub mod pool;
pub mod progress;
pub mod proto;
mod sending;
pub mod server;
mod session;
mod sink;
mod source;
pub mod tree;
pub mod walk;

#[cfg(test)]
mod tests;

pub use client::{CheckPeer, ClientApp, GetOptions, ListOptions, PutOptions, TransferOptions};
pub use error::{Cause, Error, FileError};
pub use pool::Wake;
pub use progress::{Progress, Snapshot, Summary};
pub use proto::{Mapping, Sending};
pub use server::{Monitor, ServeOptions, ServerApp, SessionInfo};
