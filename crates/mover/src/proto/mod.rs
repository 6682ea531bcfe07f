//! Messages of a transfer: what travels in Sends on queue pair 0.
//!
//! A message is one or more records, each a type byte, its length (LEB128) and its body; it never exceeds
//! [`MAX_MESSAGE`]. Numbers are LEB128 in their only shortest form. Everything a peer may say has a limit here;
//! [`decode`] yields checked values or an error, and nothing behind it sees bytes.

mod codec;
mod copy;
mod decode;
mod encode;
mod placement;
mod saving;
mod select;
#[cfg(test)]
mod tests;

use crate::data_reduction::DataReduction;
use crate::delta::{Copied, Listed};
use crate::hash::Digest;
use crate::keep::Keep;
use crate::path::{PathError, RelPath};
use crate::placement::Placement;
use crate::select::{Excluded, Names, Select};
use base::Rate;
use cc::platform::Qos;
use lhio::accounts::Sort;
use std::ops::Range;

pub use copy::{CopyMessage, CopyRequest, JobPhase, JobStatus, SecretSeed};
pub use decode::decode;

/// Version of this protocol. Peers of different versions refuse each other with a clear text.
pub const VERSION: u64 = 5;
/// Longest message, in bytes: the size of every receive buffer.
pub const MAX_MESSAGE: usize = 256 * 1024;
/// Files up to this size travel inside messages, with others; larger ones are written by RDMA.
pub const MAX_SMALL: usize = 128 * 1024;
/// Most roots (sources named by the user) of one transfer.
pub const MAX_ROOTS: usize = 1024;
/// Most data extents sent for one sparse file. Closer ones are joined until they fit.
pub const MAX_EXTENTS: usize = 4096;
/// Most ranges of finished chunks sent for one file. More are left out: those chunks travel again.
pub const MAX_RANGES: usize = 4096;
/// Most chunk hashes in one record.
pub const MAX_HASHES: usize = 4096;
/// Most pieces of a file in one record that lists them.
pub const MAX_LISTED: usize = 4096;
/// Most copies in one record.
pub const MAX_COPIES: usize = 4096;
/// Longest text that names a congestion control, in bytes.
pub const MAX_CC: usize = 200;
/// Rates that a client may ask for: 8 kbit/s to 1 Tbit/s.
pub const RATES: std::ops::RangeInclusive<Rate> =
    Rate::from_bytes_per_sec(1_000)..=Rate::from_bytes_per_sec(125_000_000_000);
/// Most additions to a Hello.
pub const MAX_ADDITIONS: usize = 16;
/// Longest addition to a Hello, in bytes.
pub const MAX_ADDITION: usize = 1024;
/// Most reasons in a [`Mapping`].
pub const MAX_REASONS: usize = 32;
/// Longest name of an application, in characters.
pub const MAX_APPLICATION: usize = 64;
/// Most extended attributes of one file, access control lists among them.
pub const MAX_ATTRIBUTES: usize = 1024;
/// Most bytes of them, names and values and eight for each: what fits in a message beside a small file.
pub const MAX_ATTRIBUTE_BYTES: usize = 112 * 1024;
/// Longest name of a user or group, in bytes.
pub const MAX_ACCOUNT: usize = 256;
/// Most users and groups with a name in the access control lists of one file, and what they take at most, with this for each
/// beside its name.
pub const MAX_LISTED_ACCOUNTS: usize = 256;
/// See [`MAX_LISTED_ACCOUNTS`].
pub const MAX_LISTED_ACCOUNT_BYTES: usize = 8 * 1024;
/// See [`MAX_LISTED_ACCOUNTS`].
pub const LISTED_ACCOUNT: usize = 8;
/// Longest target of a symbolic link, in bytes.
pub const MAX_LINK: usize = 4095;

/// Why bytes are no message. The session is closed with this text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtoError {
    /// A field reaches beyond its record, or a record beyond the message.
    #[error("a record was cut off")]
    Truncated,
    /// Bytes behind the last field.
    #[error("a record has bytes behind its end")]
    Trailing,
    /// A number in a long spelling or beyond 64 bits.
    #[error("a number is not in its shortest form")]
    Number,
    /// A field outside of its range.
    #[error("the field `{0}` is outside of its range")]
    Range(&'static str),
    /// A record type this version does not know.
    #[error("record type {0} is unknown")]
    Type(u8),
    /// A path that could lead elsewhere.
    #[error("a path {0}")]
    Path(#[from] PathError),
    /// A message longer than allowed.
    #[error("a message is longer than {MAX_MESSAGE} bytes")]
    TooLong,
}

/// What a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Client sends to the server.
    Put = 0,
    /// Server sends to the client.
    Get = 1,
    /// Server lists.
    List = 2,
    /// Server makes, removes or renames.
    Change = 3,
    /// Server lets another one do this put ([`CopyMessage::Invite`]).
    Invite = 4,
    /// Server sends to another one ([`CopyMessage::Start`]), or tells of what it sends so.
    Copy = 5,
}

/// Choices of the client that both ends obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// Leave out what is the same at the destination already.
    pub skip_same: bool,
    /// "The same" means equal BLAKE3, not only equal size and modification time.
    pub checksum: bool,
    /// Replace files that exist and differ.
    pub overwrite: bool,
    /// Walk and compare only.
    pub dry_run: bool,
    /// List folders inside folders (List only).
    pub recursive: bool,
    /// Nothing that an earlier attempt left is used; it is dropped.
    pub fresh: bool,
    /// The source counts ahead what it will send, and says so, for a person who waits.
    pub scan: bool,
}
impl Flags {
    pub(crate) fn bits(self) -> u64 {
        [self.skip_same, self.checksum, self.overwrite, self.dry_run, self.recursive, self.fresh, self.scan]
            .iter()
            .enumerate()
            .fold(0, |v, (i, &on)| v | u64::from(on) << i)
    }
    pub(crate) fn from_bits(v: u64) -> Option<Flags> {
        let b = |i: u32| v >> i & 1 == 1;
        (v < 128).then(|| Flags {
            skip_same: b(0),
            checksum: b(1),
            overwrite: b(2),
            dry_run: b(3),
            recursive: b(4),
            fresh: b(5),
            scan: b(6),
        })
    }
}

/// Permission bits and modification time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Meta {
    /// `rwxrwxrwx`, with set-user-id, set-group-id and sticky bits where they are kept.
    pub mode: u32,
    /// Modification time, seconds since 1970 (negative before).
    pub secs: i64,
    /// Nanoseconds of it, below 10^9.
    pub nanos: u32,
}

/// What kind of thing a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A regular file.
    File = 0,
    /// A folder.
    Dir = 1,
    /// A symbolic link.
    Link = 2,
    /// Anything else; listed, never transferred.
    Other = 3,
}
impl Kind {
    pub(crate) fn from_wire(n: u8) -> Option<Kind> {
        [Kind::File, Kind::Dir, Kind::Link, Kind::Other].get(n as usize).copied()
    }
}

/// A source the user named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Its last component; empty when the contents of a folder are meant (`DIR/`).
    pub name: RelPath,
    /// What it is.
    pub kind: Kind,
}

/// A file, folder or link that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which root it belongs to.
    pub root: u32,
    /// Path inside the root; empty for the root itself.
    pub path: RelPath,
    /// What it is.
    pub kind: Kind,
    /// Size in bytes (length of the target for a link).
    pub size: u64,
    /// Mode and time.
    pub meta: Meta,
    /// BLAKE3 of the contents (of the target, for a link) when asked for.
    pub hash: Option<Digest>,
}

/// The name a record is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// Which root.
    pub root: u32,
    /// Path inside of it.
    pub path: RelPath,
}

/// How a client of `get` wants the server to send. The server's own limits hold as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sending {
    /// Send no faster than this on the wire; within [`RATES`].
    pub rate_limit: Option<Rate>,
    /// Congestion control: a name of the server's registry with parameters (`bbr`, `fixed:rate=500M`), printable
    /// ASCII of 1 to [`MAX_CC`] bytes.
    pub cc: Option<String>,
    /// A rate known to be free on the path, used from the first round trip; within [`RATES`].
    pub known_rate: Option<Rate>,
    /// What is asked of the network; the server's policy says what that means.
    pub qos: Option<Qos>,
    /// The application's name for that policy: at most [`MAX_APPLICATION`] characters, none of them a control character.
    pub application: Option<String>,
    /// Differentiated-services code point of the packets, 0 to 63.
    pub dscp: Option<u8>,
    /// The server is to say what came of all this: [`Record::Mapped`].
    pub tell: bool,
}
impl Sending {
    /// Whether the server sends over a queue pair that it opens for it.
    pub(crate) fn needs_own_pair(&self) -> bool {
        let asks = self.qos.is_some() || self.application.is_some() || self.dscp.is_some();
        asks || self.cc.is_some() || self.known_rate.is_some()
    }
    /// Whether nothing is asked.
    pub fn is_default(&self) -> bool {
        *self == Sending::default()
    }
    /// Checks the ranges above; the error names the value and the range.
    ///
    /// # Errors
    /// In words for the user.
    pub fn check(&self) -> Result<(), String> {
        for (what, rate) in [("rate limit", self.rate_limit), ("known rate", self.known_rate)] {
            if let Some(r) = rate.filter(|r| !RATES.contains(r)) {
                let (low, high) = (RATES.start(), RATES.end());
                return Err(format!("a {what} of {r} cannot be asked for; choose one from {low} to {high}"));
            }
        }
        match &self.cc {
            Some(c) if !cc_text(c.as_bytes()) => Err(format!(
                "the congestion control must be named in 1 to {MAX_CC} printable ASCII characters, such as `bbr`"
            )),
            _ if self.application.as_deref().is_some_and(|a| !application_text(a)) => {
                Err(format!("an application's name has 1 to {MAX_APPLICATION} printable characters"))
            }
            _ if self.dscp.is_some_and(|d| d > 63) => Err("a code point is 0 to 63".into()),
            _ => match self.qos {
                Some(q) if q.to_string().parse() != Ok(q) => {
                    Err(format!("the quality of service {q} cannot be asked for; give whole microseconds"))
                }
                _ => Ok(()),
            },
        }
    }
}

/// Whether this may name an application.
fn application_text(a: &str) -> bool {
    (1..=MAX_APPLICATION).contains(&a.chars().count()) && !a.chars().any(char::is_control)
}

/// Whether these bytes may name a congestion control.
fn cc_text(b: &[u8]) -> bool {
    (1..=MAX_CC).contains(&b.len()) && b.iter().all(|c| (b' '..=b'~').contains(c))
}

/// How a server sends what a client gets, as its policy has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// What was asked, in words.
    pub qos: String,
    /// The rule that matched; empty when none did.
    pub rule: String,
    /// The class; empty where there is no policy.
    pub class: String,
    /// Algorithm with parameters.
    pub algorithm: String,
    /// What it may count on.
    pub guarantee: Option<Rate>,
    /// What it may send at most.
    pub cap: Option<Rate>,
    /// Reasons, a sentence each.
    pub why: Vec<String>,
}

/// First record of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u64,
    /// What it wants.
    pub op: Op,
    /// How.
    pub flags: Flags,
    /// The same for every attempt of the same transfer: a new one takes over from one that is stuck.
    pub transfer: [u8; 16],
    /// Put: the one destination. Get and List: what to send or list. Relative to the served folder.
    pub paths: Vec<RelPath>,
    /// Put: whether the destination was given with a slash at its end (a folder is meant).
    pub into: bool,
    /// Get: for each path, whether its contents are meant (`DIR/`).
    pub contents: Vec<bool>,
    /// Get: how the server is to send.
    pub sending: Sending,
    /// List only: behind each [`Record::Entry`] of a symbolic link, a [`Record::Link`] with its target.
    pub link_targets: bool,
    /// Put and Get: how the source may save traffic.
    pub data_reduction: DataReduction,
    /// What is to be kept of files beside what always is.
    pub keep: Keep,
}

/// A user or group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Account {
    /// Its number where it comes from.
    pub id: u32,
    /// Its name there, at most [`MAX_ACCOUNT`] bytes; empty where it has none, or numbers are wanted.
    pub name: Vec<u8>,
}

/// A device, pipe or socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// As in `st_mode`: `S_IFIFO`, `S_IFSOCK`, `S_IFCHR` or `S_IFBLK`.
    pub format: u32,
    /// Major and minor number of a device; zero of others.
    pub device: (u32, u32),
}

/// What is kept of a file beside mode and time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// Whom it belongs to.
    pub owner: Option<Account>,
    /// Its group.
    pub group: Option<Account>,
    /// Extended attributes, name and value, by ascending name. None but these are kept.
    pub attributes: Option<Vec<(Vec<u8>, Vec<u8>)>>,
    /// In a listing, the hash of those; nothing where there are none.
    pub digest: Option<Digest>,
    /// In a listing, the number of a file with several names: the same for all of them.
    pub inode: Option<u64>,
    /// What it is, unless a file, folder or link.
    pub node: Option<Node>,
    /// Users and groups with a name that access control lists in `attributes` have by number.
    pub accounts: Vec<(Sort, Account)>,
}

/// A large file that is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Counts up from 0, no gaps.
    pub file: u64,
    /// Its name.
    pub name: Name,
    /// Mode and time.
    pub meta: Meta,
    /// Size in bytes.
    pub size: u64,
    /// Where data is, ascending; the rest are holes. At most [`MAX_EXTENTS`].
    pub extents: Vec<Range<u64>>,
}

/// Totals of a finished transfer, as the sink counted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
pub struct Totals {
    /// Files put in place (small and large).
    pub files: u64,
    /// Folders made or found.
    pub dirs: u64,
    /// Links made.
    pub links: u64,
    /// Bytes of files put in place.
    pub bytes: u64,
    /// Bytes of them that were there from an earlier attempt.
    pub resumed_bytes: u64,
    /// Chunks that were asked for again because their hash did not match.
    pub repaired_chunks: u64,
    /// Files, folders and links that failed.
    pub failed: u64,
}

/// How many of the files, folders and links that were sent have something that does not travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
pub struct NotPreserved {
    /// Further names of files that were sent: each became a file of its own.
    pub hard_links: u64,
    /// Files and folders with extended attributes, access control lists and those of the system itself apart.
    pub extended_attributes: u64,
    /// Files and folders with an access control list.
    pub access_control_lists: u64,
    /// Files, folders and links of another user than the one who runs the source.
    pub owners: u64,
    /// Files and folders with a set-user-id, set-group-id or sticky bit.
    pub special_bits: u64,
}

/// What a source found and left out, for the other end to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct SourceCounts {
    /// Files found.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Files of them that are the same at the destination.
    pub same_files: u64,
    /// Bytes of those.
    pub same_bytes: u64,
    /// What does not travel of the rest.
    pub not_preserved: NotPreserved,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// Client: opens the session.
    Hello(Hello),
    /// Server: accepts.
    Welcome {
        /// [`VERSION`] of the server.
        version: u64,
    },
    /// Server: how it sends, to a client that asked to be told.
    Mapped(Mapping),
    /// Either: ends the session. `refused` when nothing was begun.
    Abort {
        /// Whether the request was refused at its start.
        refused: bool,
        /// The reason and the way out.
        text: String,
    },
    /// Source: what will be sent.
    Roots(Vec<Root>),
    /// Sink (or List server): something that exists.
    Entry(Entry),
    /// Sink (or List server): the listing is complete.
    ListEnd,
    /// Source (or List client): this many more messages with entries may come.
    ListCredit(u64),
    /// Source: it asks about nothing before this name any more.
    ListFrom(Name),
    /// Source: a folder.
    Dir {
        /// Its name.
        name: Name,
        /// Mode and time.
        meta: Meta,
    },
    /// Source: a file whose contents are the same already gets this mode and time.
    Touch {
        /// Its name.
        name: Name,
        /// Mode and time.
        meta: Meta,
    },
    /// Source: a symbolic link.
    Link {
        /// Its name.
        name: Name,
        /// Time; links have no mode.
        meta: Meta,
        /// Where it points, as stored.
        target: &'a [u8],
    },
    /// Source: a whole small file.
    Small {
        /// Its name.
        name: Name,
        /// Mode and time.
        meta: Meta,
        /// BLAKE3 of `data`.
        hash: Digest,
        /// The contents.
        data: &'a [u8],
    },
    /// Source: a large file.
    Offer(Offer),
    /// Sink: the file is wanted; these chunks are there already.
    Accept {
        /// The file.
        file: u64,
        /// Chunk numbers, ascending. At most [`MAX_RANGES`].
        have: Vec<Range<u64>>,
    },
    /// Sink: memory for a part of a file.
    Grant {
        /// The file.
        file: u64,
        /// First byte of the file that the memory stands for; a multiple of the chunk size.
        start: u64,
        /// Length in bytes.
        len: u64,
        /// Key for the Writes.
        rkey: u32,
    },
    /// Source: hashes of consecutive chunks; what was Written of them has been posted before.
    Hashes {
        /// The file.
        file: u64,
        /// Number of the first chunk.
        first: u64,
        /// One hash each. At most [`MAX_HASHES`].
        hashes: Vec<Digest>,
    },
    /// Source, behind the offer: the sink is to list the pieces of the file that has this name now.
    AskBasis {
        /// The file.
        file: u64,
    },
    /// Sink, behind [`Record::Accept`]: pieces of the file that has the name of the offered one, in their order.
    Basis {
        /// The file.
        file: u64,
        /// What follows the pieces listed before. At most [`MAX_LISTED`].
        pieces: Vec<Listed>,
        /// There are no more.
        last: bool,
    },
    /// Source: what the sink is to copy from its old file. Chunks all of whose data is copied are not Written; of the others, only
    /// what is not copied.
    Copies {
        /// The file.
        file: u64,
        /// Ascending and apart in the new file, those of earlier records included. At most [`MAX_COPIES`].
        copies: Vec<Copied>,
        /// There are no more: memory may be granted.
        last: bool,
    },
    /// Source: as [`Record::Hashes`] for one chunk whose data was Written as a Zstandard frame to where the chunk begins.
    Packed {
        /// The file.
        file: u64,
        /// The chunk.
        chunk: u64,
        /// Length of the frame in bytes.
        len: u64,
        /// Hash of the chunk.
        hash: Digest,
    },
    /// Source: a message of [`Record::Small`]s as a Zstandard frame.
    Zipped {
        /// Length of the message in bytes, at most [`MAX_MESSAGE`].
        len: usize,
        /// The frame.
        frame: &'a [u8],
    },
    /// Sink: this chunk's bytes did not match; Write them again, all of them and as they are.
    Again {
        /// The file.
        file: u64,
        /// The chunk.
        chunk: u64,
    },
    /// Source: all hashes of the file were sent.
    End {
        /// The file.
        file: u64,
        /// Root hash over all chunks.
        hash: Digest,
    },
    /// Source: the file cannot be sent to its end.
    Drop {
        /// The file.
        file: u64,
        /// A [`Cause`](crate::error::Cause).
        cause: u8,
        /// What happened.
        text: String,
    },
    /// Sink: the file is in place, or failed (`cause` other than zero or a text).
    Done {
        /// The file.
        file: u64,
        /// Nothing, or why it failed.
        failed: Option<(u8, String)>,
    },
    /// Either: something could not be transferred.
    Failed {
        /// Name for people, in the writer's terms.
        path: String,
        /// A [`Cause`](crate::error::Cause).
        cause: u8,
        /// What happened.
        text: String,
    },
    /// Sink: progress, cumulative: files and bytes verified.
    Progress {
        /// Files in place.
        files: u64,
        /// Bytes verified.
        bytes: u64,
        /// Bytes of them that were there from an earlier attempt.
        resumed: u64,
    },
    /// Source: what it found: in any case before [`Record::SourceEnd`], and as soon as it knows where the sink has asked for that.
    Counts(SourceCounts),
    /// Source, sink: belongs to the next record of the message, which is a Dir, Link, Small, Touch, Node, Offer or Entry.
    Extra(Extra),
    /// Source: a device, pipe or socket; which one is in the Extra before it.
    Node {
        /// Its name.
        name: Name,
        /// Mode and time.
        meta: Meta,
    },
    /// Source: a further name of a file that was sent, or is the same already.
    HardLink {
        /// The further name.
        name: Name,
        /// The first one.
        to: Name,
    },
    /// Sink: what it keeps of what was asked for, before its listing; and again at the end where something was lost.
    Kept {
        /// What it keeps.
        keep: Keep,
        /// What its operator does not allow.
        denied: Keep,
        /// Files and folders whose owner or group could not be set.
        owners: u64,
        /// Files and folders whose attributes or access control lists could not be set.
        attributes: u64,
    },
    /// Source: everything was sent.
    SourceEnd,
    /// Sink: everything is in place.
    SinkEnd(Totals),
    /// Client, in front of Hello: what of the sources is sent, and what of the destination goes.
    Select(Box<Select>),
    /// Client, in front of Hello: names of a list of names to send; further ones follow where one message does not hold them.
    Names(Names),
    /// Source, before [`Record::SourceEnd`]: this is left over at the destination.
    Delete(Extraneous),
    /// Sink, before [`Record::SinkEnd`]: what became of it.
    Deleted(Deleted),
    /// Source, before [`Record::SourceEnd`]: what it has left out.
    Excluded(Excluded),
    /// Client, in front of Hello: what is to be done with the paths there.
    Change(Change),
    /// Either: of a transfer between two servers.
    Copy(CopyMessage),
    /// Client, in front of Hello: how files are put in place.
    Placement(Box<Placement>),
    /// Sink: a file of a folder of `--link-dest`, by its place in the transfer; behind the Entry of that name.
    Alternate {
        /// Which folder.
        folder: u8,
        /// The file.
        entry: Entry,
    },
    /// Source: a file that is the same in such a folder.
    LinkFrom(LinkFrom),
    /// Source: what number this user or group would get; the sink answers in the order of the questions.
    AskAccount {
        /// Which of the two.
        sort: Sort,
        /// As an Extra would have it.
        account: Account,
    },
    /// Sink: the answer.
    Account(AccountAnswer),
    /// Sink: something to know that is no failure.
    Note(String),
    /// Client of a get: the server sends no faster than this from now on; its own limits hold as well.
    Limit(Option<Rate>),
}

/// A file to be made from one that the sink has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFrom {
    /// Its name.
    pub name: Name,
    /// Mode and time.
    pub meta: Meta,
    /// The folder of `--link-dest` that has it.
    pub folder: u8,
    /// Size in bytes, as it was listed.
    pub size: u64,
    /// Mode and time there, as they were listed.
    pub listed: Meta,
    /// Only the contents are the same: it is copied.
    pub copy: bool,
}

/// What the sink makes of a user or group of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountAnswer {
    /// Its number there.
    pub id: u32,
    /// Whether files can be given to it.
    pub settable: bool,
}

/// Something that only the destination has, as it was listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extraneous {
    /// Its name; never a root.
    pub name: Name,
    /// What it is.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// Mode and time.
    pub meta: Meta,
}

/// What became of what was left over at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, serde::Serialize)]
pub struct Deleted {
    /// Files, folders and links that were removed.
    pub removed: u64,
    /// That stay, since something was changed or put there meanwhile, or a folder is not empty.
    pub kept: u64,
    /// That stay, since no more than a number may be removed.
    pub over_limit: u64,
    /// That stay, since something could not be read or written.
    pub held_back: u64,
}

/// What a server is to do with the paths of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Change {
    /// Make folders; the folders above them too with `parents`, and then what is there is no failure.
    MakeFolder {
        /// As `mkdir -p`.
        parents: bool,
    } = 0,
    /// Remove files and links, and folders with all that is in them where `recursive`.
    Remove {
        /// As `rm -r`.
        recursive: bool,
    } = 1,
    /// Rename the first to the second of two paths, or into it if it is a folder. Nothing is replaced.
    Rename = 2,
}

/// Appends a record to a message.
pub fn put(out: &mut Vec<u8>, r: &Record<'_>) {
    encode::put(out, r);
}
