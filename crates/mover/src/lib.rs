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
//! **Listings.** The sink lists what it has in the order in which the source walks, as far as the source gives credit.
//! The source takes from it what it asks about, has what lies between passed over (`ListFrom`), and when its walk is over
//! it ends, however much of the listing is left; the sink stops listing then.
//!
//! **Round trips.** One for the connection, one for the sink's listing (at once when there is nothing), none for each
//! file: small files share messages, and offers of large files are answered while others are on their way.
//!
//! **The same.** A file is left out when size and modification time are the same at both ends; with `checksum`, when
//! its BLAKE3 is. Mode and times of such a file are still brought over. Links are compared by their target.
//!
//! **Deltas.** Of a large file that exists at the sink and differs, what is there is not sent: both ends cut their file by content
//! (FastCDC), the sink lists the hashes of its pieces, and copies what the source finds among them. Chunk hashes verify the result
//! as ever; the old file stays until then. **Compression.** Chunks and messages of small files travel as Zstandard frames. Both are
//! done where they pay, as measured ([`DataReduction`]).
//!
//! **Interruptions.** Until a file is complete and verified it is called `.NAME.longhaul-part`, and
//! `.NAME.longhaul-journal` lists its verified chunks (files from 1 MiB on). What an attempt finds, listed or not, is read
//! and compared with the source's hashes before it counts; what differs is sent again. Workers do that while new data
//! arrives, so that it costs processor time and reads of the sink for what was there (the source reads and hashes it at
//! the same time), and nothing where nothing was left. After a restart of the sink's machine files that look finished
//! are compared, too. When size or modification time of the source has changed, the file starts over, and a note says so.
//!
//! **Others at the same files.** What arrives is hashed as it is written. Who else opens a file that is being received, by
//! whatever name, is noticed (inotify): then all of it is read once more before it gets its name, and what differs is
//! sent again. Length, time and identity of the file are compared last, right before the rename. Not noticed is who has
//! had an unfinished file open, or mapped, since before this attempt opened it, and writes to it after its chunk was
//! compared; nor a change by another machine to a file system of the network. Unfinished files, journals and marks
//! are only opened where they are regular files of this user with one name; whatever else has their name is removed,
//! never written to.
//!
//! **What travels.** Contents, names (any bytes), holes, `rwx` permissions, modification times to the nanosecond,
//! symbolic links as they are, empty folders; and where it is asked for ([`Keep`]) and the sink grants it: owners, groups,
//! set-id and sticky bits, access control lists, extended attributes, hard links, devices, sockets and pipes. What does not
//! is counted ([`proto::NotPreserved`]); special files, and names reserved for unfinished transfers, are reported.
//!
//! **Limits.** Files up to 2^50 bytes, paths to 4,096 bytes and 1,024 levels, 1,024 sources of one request; chunks of
//! 256 KiB to 64 MiB by size; 192 large files under way; memory: 32 MiB to 2 GiB at the source, 32 MiB to 4 GiB
//! at the sink, by the bandwidth-delay product; receive buffers 8 to 64 MiB; 2,000,000 files with several names told apart.
//! Sessions of a server share memory and descriptors (`limits`): each has 12 MiB and four large files for sure, and more as
//! long as as much is left to others.
//!
//! **Errors.** What concerns one file is reported by [`FileError`] and the others go on ([`Error::Partial`] at the
//! end); each names the thing, what happened, and the way out.

mod acl;
mod attributes;
mod change;
pub mod clean;
pub mod client;
pub mod copy;
mod data_reduction;
pub mod delta;
pub mod error;
mod glob;
pub mod hash;
mod hashes;
pub mod journal;
pub mod keep;
mod limits;
mod link;
mod lock;
mod monitor;
mod pack;
pub mod path;
pub mod placement;
pub mod pool;
pub mod progress;
pub mod proto;
mod request_preamble;
mod roots;
pub mod select;
mod sending;
pub mod server;
mod session;
mod sink;
mod source;
mod thread_state;
pub mod timetable;
pub mod tree;
pub mod walk;

#[cfg(test)]
mod tests;

pub use client::{CheckPeer, ClientApp, GetOptions, ListOptions, PutOptions, TransferOptions};
pub use copy::{CopyAsk, CopyClient, CopyJob, CopyLimits, CopyPlan, CopyRunner, CopyWatch, Invitations};
pub use data_reduction::{DataReduction, ReductionMode};
pub use error::{Cause, Error, FileError};
pub use keep::Keep;
pub use monitor::{Monitor, SessionInfo, SessionPeer};
pub use placement::{Chown, Placement};
pub use pool::Wake;
pub use progress::{Progress, Snapshot, Summary};
pub use proto::{Mapping, Sending};
pub use select::Select;
pub use server::{AllowedRequest, ServeOptions, ServerApp};
pub use session::Listed;
pub use session::OTHER_SERVICE;
pub use timetable::{Limiter, Timetable};
