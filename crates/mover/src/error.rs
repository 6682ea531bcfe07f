//! Errors of single files, and errors that end a transfer.

use crate::path::{PathError, show};
use std::io;

/// Longest explanation that travels with an error, in bytes.
pub const MAX_TEXT: usize = 1024;

/// Why one file, folder or link could not be transferred. The number travels on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Cause {
    /// Anything without a name of its own here.
    Other = 0,
    /// No space left, or quota reached.
    Full = 1,
    /// The file system is mounted read-only.
    ReadOnlyFileSystem = 2,
    /// No permission.
    Denied = 3,
    /// It is not there (any more).
    Vanished = 4,
    /// A folder stands where a file should go.
    IsFolder = 5,
    /// A file stands where a folder should go.
    NotFolder = 6,
    /// The name or path is too long for the file system.
    NameTooLong = 7,
    /// It changed while it was sent.
    Changed = 8,
    /// It exists and overwriting is not allowed.
    Exists = 9,
    /// A symbolic link is in the way.
    Link = 10,
    /// Neither file, folder nor link (device, socket, pipe).
    Special = 11,
    /// Larger than the file system or the protocol can store.
    TooLarge = 12,
    /// The data did not match its checksum, again and again.
    Corrupt = 13,
    /// The storage reported an input/output error.
    Storage = 14,
    /// Another transfer is writing it.
    Busy = 15,
    /// The path cannot be used.
    BadPath = 16,
    /// The server's settings do not allow it.
    Forbidden = 17,
    /// The file is being executed.
    InUse = 18,
    /// Too many files are open.
    TooManyOpen = 19,
    /// The system gives that end no more memory.
    NoMemory = 20,
    /// A source that the user named is not there.
    Missing = 21,
    /// Its name is one of those that unfinished transfers use.
    Reserved = 22,
    /// A source named before it has the same name.
    SameName = 23,
}

impl Cause {
    /// From the wire; unknown numbers of a newer peer are [`Cause::Other`].
    pub fn from_wire(n: u8) -> Cause {
        use Cause::*;
        const ALL: [Cause; 24] = [
            Other,
            Full,
            ReadOnlyFileSystem,
            Denied,
            Vanished,
            IsFolder,
            NotFolder,
            NameTooLong,
            Changed,
            Exists,
            Link,
            Special,
            TooLarge,
            Corrupt,
            Storage,
            Busy,
            BadPath,
            Forbidden,
            InUse,
            TooManyOpen,
            NoMemory,
            Missing,
            Reserved,
            SameName,
        ];
        ALL.get(n as usize).copied().unwrap_or(Other)
    }
    /// What to do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Cause::Other => {
                "look at the system's message; the transfer can be repeated and continues where it was"
            }
            Cause::Full => {
                "free some space (or raise the quota) and repeat the command; what arrived is kept"
            }
            Cause::ReadOnlyFileSystem => "mount it writable or choose another destination",
            Cause::Denied => "grant the user that runs this end access, or choose another place",
            Cause::Vanished => {
                "it was removed or renamed while the transfer ran; repeat if it should still be sent"
            }
            Cause::IsFolder => {
                "a folder of that name stands in the way; remove it or choose another destination"
            }
            Cause::NotFolder => {
                "a file of that name stands where a folder is needed; remove it or choose another place"
            }
            Cause::NameTooLong => "shorten the name or choose a destination higher up",
            Cause::Changed => "repeat the command when the file is at rest",
            Cause::Exists => "overwriting is off; allow it or choose another destination",
            Cause::Link => "symbolic links are not followed here; give the path it points to",
            Cause::Special => "devices, sockets and pipes are neither transferred nor replaced",
            Cause::TooLarge => "choose a file system that can hold files of this size",
            Cause::Corrupt => "check memory and storage of both ends; nothing wrong was put in place",
            Cause::Storage => "the storage device failed; check it (see the kernel log)",
            Cause::Busy => "wait for the other transfer to end or stop it",
            Cause::BadPath => "give a path inside the served folder",
            Cause::Forbidden => "ask the one who runs the server to allow it",
            Cause::InUse => "the file is being executed; stop the program that uses it",
            Cause::TooManyOpen => "raise the limit of open files (ulimit -n)",
            Cause::NoMemory => {
                "give the program at that end more memory (ulimit -v, MemoryMax of its service), then repeat the command; \
                 what arrived is kept"
            }
            Cause::Missing => "check the spelling; longhaul ls shows what a server has",
            Cause::Reserved => {
                "if it is a file of yours, rename it; what an unfinished transfer left goes away when that is finished"
            }
            Cause::SameName => "send it by a command of its own, to another destination",
        }
    }
    /// Whether the system of one of the ends is to blame (its disk, its memory, its limits), not the one file: what else
    /// is sent there would likely fail as well, and the remedy is that system's.
    pub fn is_system(self) -> bool {
        use Cause::*;
        matches!(self, Full | ReadOnlyFileSystem | Storage | TooManyOpen | NoMemory)
    }
    /// From an error of the operating system.
    pub fn of(e: &io::Error) -> Cause {
        let Some(n) = e.raw_os_error() else {
            return match e.kind() {
                io::ErrorKind::UnexpectedEof => Cause::Changed,
                io::ErrorKind::NotFound => Cause::Vanished,
                io::ErrorKind::PermissionDenied => Cause::Denied,
                io::ErrorKind::StorageFull => Cause::Full,
                // No plain file where one is needed (see `lhio::safe_path`).
                io::ErrorKind::InvalidInput => Cause::Special,
                _ => Cause::Other,
            };
        };
        match n {
            libc::ENOSPC | libc::EDQUOT => Cause::Full,
            libc::EROFS => Cause::ReadOnlyFileSystem,
            libc::EACCES | libc::EPERM => Cause::Denied,
            libc::ENOENT | libc::ESTALE => Cause::Vanished,
            libc::EISDIR | libc::ENOTEMPTY => Cause::IsFolder,
            libc::ENOTDIR => Cause::NotFolder,
            libc::ENAMETOOLONG => Cause::NameTooLong,
            libc::EEXIST => Cause::Exists,
            libc::ELOOP | libc::EXDEV => Cause::Link,
            libc::EFBIG | libc::EOVERFLOW => Cause::TooLarge,
            libc::EIO => Cause::Storage,
            libc::EAGAIN | libc::EBUSY => Cause::Busy,
            libc::ETXTBSY => Cause::InUse,
            libc::EMFILE | libc::ENFILE => Cause::TooManyOpen,
            libc::ENOMEM => Cause::NoMemory,
            _ => Cause::Other,
        }
    }
}

/// One file, folder or link that could not be transferred.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct FileError {
    /// Its name for people (see [`show`]).
    pub path: String,
    /// What kind of failure.
    pub cause: Cause,
    /// What happened, in words.
    pub text: String,
}

impl FileError {
    /// An error about `path` (bytes of a name).
    pub fn new(path: &[u8], cause: Cause, text: impl Into<String>) -> FileError {
        let mut text: String = text.into();
        truncate(&mut text, MAX_TEXT);
        // The root of a transfer has no name of its own.
        let path = if path.is_empty() { b"." } else { path };
        FileError { path: show(path), cause, text }
    }
    /// About a name that no transfer can carry.
    pub fn of_path(path: &[u8], e: PathError) -> FileError {
        let cause = match e {
            PathError::Reserved => Cause::Reserved,
            PathError::NameTooLong | PathError::TooLong | PathError::TooDeep => Cause::NameTooLong,
            _ => Cause::BadPath,
        };
        FileError::new(path, cause, e.to_string())
    }
    /// From an error of the operating system while doing `what` ("read", "create") with `path`.
    pub fn io(path: &[u8], what: &str, e: &io::Error) -> FileError {
        FileError::new(path, Cause::of(e), format!("cannot {what}: {e}"))
    }
}

impl std::fmt::Display for FileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.path, self.text, self.cause.advice())
    }
}
impl std::error::Error for FileError {}

/// Cuts at a character boundary.
pub(crate) fn truncate(s: &mut String, max: usize) {
    if s.len() > max {
        let mut n = max;
        while !s.is_char_boundary(n) {
            n -= 1;
        }
        s.truncate(n);
    }
}

/// Why a whole transfer ended without success.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Error {
    /// The server said no.
    #[error("the server refused: {text}")]
    Refused {
        /// Its reason and the way out.
        text: String,
    },
    /// The server is one of another service.
    #[error(
        "cannot transfer files with this server: {text}, not `longhaul serve`; try the address and port of `longhaul serve`"
    )]
    OtherService {
        /// What it says that it is.
        text: String,
    },
    /// The peer broke the protocol; nothing of it was carried out.
    #[error("the peer broke the protocol: {text}")]
    Protocol {
        /// Which rule.
        text: String,
    },
    /// The connection ended before the transfer.
    #[error("the connection ended early: {text}; repeat the command, it continues where it was")]
    Connection {
        /// Reason of the transport.
        text: String,
        /// The code with which the peer closed it, if that is how it ended.
        code: Option<u64>,
    },
    /// Stopped by the user.
    #[error("stopped; repeat the command to continue where it was")]
    Interrupted,
    /// This end could not go on.
    #[error("{text}")]
    Local {
        /// What happened and the way out.
        text: String,
    },
    /// What this end was told to do does not fit what the peer has, or what is at the destination.
    #[error("{text}")]
    Unusable {
        /// What does not fit and the way out.
        text: String,
    },
    /// The peer could not go on.
    #[error("the peer stopped: {text}")]
    Peer {
        /// What happened there.
        text: String,
    },
    /// The transfer ran to its end, but more was left over at the destination than could be removed at once.
    #[error(
        "cannot remove all that is left over at the destination: {stay} more stay for the limit of deletions; raise --max-delete, or repeat the command"
    )]
    DeleteLimit {
        /// How many.
        stay: u64,
    },
    /// The transfer ran to its end, but not everything could be transferred.
    #[error("{failed} of the files and folders could not be transferred; the list of errors says why")]
    Partial {
        /// How many.
        failed: u64,
        /// The cause of the first of them that the system of one of the ends is to blame for
        /// ([`Cause::is_system`]): a full disk, say. `None` where all failures are of single files.
        system: Option<Cause>,
    },
}

/// What to do where the system starts no thread.
pub(crate) const NO_THREAD: &str = "raise the limits of threads and memory (ulimit -u, ulimit -v)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_thing_and_the_way_out() {
        for n in [
            libc::ENOSPC,
            libc::EROFS,
            libc::EACCES,
            libc::ENOENT,
            libc::EISDIR,
            libc::ENAMETOOLONG,
            libc::EIO,
            libc::ENOMEM,
        ] {
            let e = FileError::io(b"dir/\xffname", "create", &io::Error::from_raw_os_error(n));
            let s = e.to_string();
            assert!(
                s.contains("dir/\\xffname") && s.contains("create") && s.contains(e.cause.advice()),
                "{s}"
            );
            assert_ne!(e.cause, Cause::Other, "{s}");
        }
    }

    #[test]
    fn what_the_system_is_to_blame_for_is_told_from_what_one_file_is() {
        let of = |n| Cause::of(&io::Error::from_raw_os_error(n)).is_system();
        for n in
            [libc::ENOSPC, libc::EDQUOT, libc::EROFS, libc::EIO, libc::EMFILE, libc::ENFILE, libc::ENOMEM]
        {
            assert!(of(n), "{n}");
        }
        for n in [libc::EACCES, libc::ENOENT, libc::EISDIR, libc::ENAMETOOLONG, libc::EEXIST, libc::EFBIG] {
            assert!(!of(n), "{n}");
        }
    }

    #[test]
    fn an_error_about_the_root_has_a_path_to_show() {
        let e = FileError::new(b"", Cause::IsFolder, "is a directory");
        assert!(e.to_string().starts_with(".: is a directory; "), "{e}");
    }

    #[test]
    fn causes_survive_the_wire() {
        for n in 0..=255u8 {
            let c = Cause::from_wire(n);
            assert!(c as u8 == n || (c == Cause::Other && n >= 24), "{n} -> {c:?}");
        }
    }

    #[test]
    fn texts_are_cut_at_characters() {
        let mut s = "ä".repeat(10);
        truncate(&mut s, 5);
        assert_eq!(s, "ää");
    }
}
