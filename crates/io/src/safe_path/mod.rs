//! File access that cannot leave a folder, whatever the names say and whoever changes the tree meanwhile.
//!
//! Every operation starts from an open directory and resolves names beneath it in the kernel (`openat2(2)`
//! with `RESOLVE_BENEATH`), or component by component without following links where the kernel is older than
//! 5.6. No name is checked first and used later, so exchanging a folder for a link in between gains nothing.
//! The last component of a name is never followed when it is a link, except by the opening of files and
//! folders under [`Links::Inside`].
//!
//! Names are bytes separated by `/`; they need not be UTF-8.

mod list;
#[cfg(test)]
mod tests;

pub use list::{Entry, Kind, List};

use crate::clock::{self, WallTime};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes in a name with all its components (`PATH_MAX` less the final zero).
pub const MAX_PATH: usize = 4_095;
/// Bytes in one component (`NAME_MAX`).
pub const MAX_NAME: usize = 255;
/// Times to try again what a concurrent change of the tree disturbed, or random names that exist.
const MAX_TRIES: usize = 64;

/// The kernel has no `openat2`; found out once.
static NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// What to do with symbolic links on the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Refuse them all.
    #[default]
    Refuse,
    /// Follow those that stay inside the folder. On kernels without `openat2` they are refused.
    Inside,
}

/// Why an operation on a name failed. The texts name the path.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// The name itself is not acceptable.
    #[error("`{}` is not a name inside the folder: {why}", shown(.path))]
    BadName {
        /// The name.
        path: Vec<u8>,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A link on the way leads outside, or is not to be followed.
    #[error("`{}` leads through a symbolic link, which may leave the folder: replace it by what it points to", shown(.path))]
    Escapes {
        /// The name.
        path: Vec<u8>,
    },
    /// Something that is not a plain file (a pipe, a device, a folder).
    #[error("`{}` is not a plain file", shown(.path))]
    NotAFile {
        /// The name.
        path: Vec<u8>,
    },
    /// The system refused.
    #[error("cannot {what} `{}`: {source}", shown(.path))]
    System {
        /// The operation, as a verb.
        what: &'static str,
        /// The name.
        path: Vec<u8>,
        /// The system's reason.
        source: io::Error,
    },
}

impl PathError {
    /// The kind of the system's error; `InvalidInput` for names that were refused.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            PathError::System { source, .. } => source.kind(),
            _ => io::ErrorKind::InvalidInput,
        }
    }
}

/// Control characters must not reach a terminal.
fn shown(path: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(path);
    if text.chars().any(char::is_control) { Cow::Owned(text.escape_debug().to_string()) } else { text }
}

fn fail(what: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> PathError {
    move |e| match e {
        // EXDEV is how openat2 says that a link leads outside (and how rename says "another device", where
        // `what` tells them apart).
        Errno::LOOP => PathError::Escapes { path: path.to_vec() },
        Errno::XDEV if what != "rename" => PathError::Escapes { path: path.to_vec() },
        e => PathError::System { what, path: path.to_vec(), source: e.into() },
    }
}

/// Checks a name: relative, without `.`, `..`, empty components and zero bytes, within the limits.
///
/// # Errors
/// [`PathError::BadName`].
pub fn check_name(path: &[u8]) -> Result<(), PathError> {
    let why = if path.is_empty() {
        "it is empty"
    } else if path.len() > MAX_PATH {
        "it is longer than 4,095 bytes"
    } else if path[0] == b'/' {
        "it is absolute"
    } else if path.contains(&0) {
        "it contains a zero byte"
    } else {
        match path.split(|b| *b == b'/').find_map(check_component) {
            Some(why) => why,
            None => return Ok(()),
        }
    };
    Err(PathError::BadName { path: path.to_vec(), why })
}

fn check_component(c: &[u8]) -> Option<&'static str> {
    match c {
        b"" => Some("it has an empty component"),
        b"." | b".." => Some("`.` and `..` are not allowed"),
        c if c.len() > MAX_NAME => Some("a component is longer than 255 bytes"),
        _ => None,
    }
}

/// What [`Folder::stat`] tells, never about a link's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: Kind,
    /// Bytes; for a link, those of its target's name.
    pub len: u64,
    /// Permission bits, 0 to 0o7777.
    pub mode: u32,
    /// When the content changed last.
    pub modified: WallTime,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device and number: the same for names of the same file.
    pub id: (u64, u64),
    /// How many names it has.
    pub links: u64,
}

impl Stat {
    fn of(s: &rustix::fs::Stat) -> Stat {
        Stat {
            kind: Kind::of(rustix::fs::FileType::from_raw_mode(s.st_mode)),
            len: u64::try_from(s.st_size).unwrap_or(0),
            mode: s.st_mode & 0o7777,
            modified: WallTime { secs: s.st_mtime, nanos: s.st_mtime_nsec as u32 },
            uid: s.st_uid,
            gid: s.st_gid,
            id: (s.st_dev, s.st_ino),
            links: s.st_nlink,
        }
    }
}

/// An open folder: names given to its methods are resolved beneath it and cannot leave it.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
    links: Links,
    /// Resolve component by component, as without `openat2`.
    walk: bool,
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The folder that holds a name's last component.
enum Parent<'a> {
    This(BorrowedFd<'a>),
    Other(OwnedFd),
}

impl AsFd for Parent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Parent::This(fd) => *fd,
            Parent::Other(fd) => fd.as_fd(),
        }
    }
}

impl Folder {
    /// Opens a folder that the local user named: links in `path` itself are followed.
    ///
    /// # Errors
    /// [`PathError::System`] when it cannot be opened or is not a folder.
    pub fn open(path: &Path, links: Links) -> Result<Folder, PathError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| PathError::System {
            what: "open the folder",
            path: path.as_os_str().as_bytes().to_vec(),
            source: e.into(),
        })?;
        Ok(Folder { fd, links, walk: false })
    }

    /// Resolves component by component even where `openat2` is there.
    #[cfg(test)]
    fn walking(mut self) -> Folder {
        self.walk = true;
        self
    }

    /// A folder beneath this one. Working in it saves resolving its name again for each of a million files.
    ///
    /// # Errors
    /// As every method here: [`PathError::BadName`], [`PathError::Escapes`], [`PathError::System`].
    pub fn sub(&self, path: &[u8]) -> Result<Folder, PathError> {
        check_name(path)?;
        let fd = self.folder_fd(path).map_err(fail("open the folder", path))?;
        Ok(Folder { fd, links: self.links, walk: self.walk })
    }

    /// Opens a plain file for reading. Pipes and devices are refused without waiting for them.
    ///
    /// # Errors
    /// As [`Folder::sub`], and [`PathError::NotAFile`].
    pub fn open_read(&self, path: &[u8]) -> Result<File, PathError> {
        self.open_plain(path, OFlags::RDONLY)
    }

    /// Opens an existing plain file for reading and writing.
    ///
    /// # Errors
    /// As [`Folder::open_read`].
    pub fn open_write(&self, path: &[u8]) -> Result<File, PathError> {
        self.open_plain(path, OFlags::RDWR)
    }

    /// Makes a file that must not exist yet, open for reading and writing. The umask applies to `mode`.
    ///
    /// # Errors
    /// As [`Folder::sub`]; `AlreadyExists` for any name that is there, links included.
    pub fn create_new(&self, path: &[u8], mode: u32) -> Result<File, PathError> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&parent, name, flags, Mode::from_raw_mode(mode & 0o7777))
            .map(File::from)
            .map_err(fail("create", path))
    }

    /// Makes a file of a random name in the folder that holds `path`, for a later [`Folder::rename`] to
    /// `path`. Returns its name, beneath this folder like `path`.
    ///
    /// # Errors
    /// As [`Folder::create_new`].
    pub fn create_temp(&self, path: &[u8], mode: u32) -> Result<(Vec<u8>, File), PathError> {
        check_name(path)?;
        let folder = path.iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
        for _ in 0..MAX_TRIES {
            let mut random = [0; 8];
            clock::fill_random(&mut random).map_err(|source| PathError::System {
                what: "name a temporary file for",
                path: path.to_vec(),
                source,
            })?;
            let mut name = path[..folder].to_vec();
            name.extend_from_slice(format!(".longhaul.{:016x}", u64::from_ne_bytes(random)).as_bytes());
            match self.create_new(&name, mode) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                r => return r.map(|f| (name, f)),
            }
        }
        Err(fail("make a temporary file for", path)(Errno::EXIST))
    }

    /// Makes a folder. The umask applies to `mode`.
    ///
    /// # Errors
    /// As [`Folder::create_new`].
    pub fn create_dir(&self, path: &[u8], mode: u32) -> Result<(), PathError> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(mode & 0o7777))
            .map_err(fail("make the folder", path))
    }

    /// Makes a folder and those above it as far as they are missing, and opens it.
    ///
    /// # Errors
    /// As [`Folder::sub`].
    pub fn create_dir_all(&self, path: &[u8], mode: u32) -> Result<Folder, PathError> {
        check_name(path)?;
        if let Ok(fd) = self.folder_fd(path) {
            return Ok(Folder { fd, links: self.links, walk: self.walk });
        }
        let ends = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(i, _)| i);
        for end in ends.chain([path.len()]) {
            match self.create_dir(&path[..end], mode) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        self.sub(path)
    }

    /// Renames `from` to `to`, replacing a file that is there.
    ///
    /// # Errors
    /// As [`Folder::sub`].
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), PathError> {
        self.rename_with(from, to, RenameFlags::empty())
    }

    /// Renames `from` to `to`, which must not exist.
    ///
    /// # Errors
    /// As [`Folder::sub`]; `AlreadyExists`.
    pub fn rename_new(&self, from: &[u8], to: &[u8]) -> Result<(), PathError> {
        self.rename_with(from, to, RenameFlags::NOREPLACE)
    }

    fn rename_with(&self, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<(), PathError> {
        let (a, a_name) = self.parent(from)?;
        let (b, b_name) = self.parent(to)?;
        if flags.is_empty() {
            rustix::fs::renameat(&a, a_name, &b, b_name).map_err(fail("rename", from))
        } else {
            rustix::fs::renameat_with(&a, a_name, &b, b_name, flags).map_err(fail("rename", to))
        }
    }

    /// Removes a file, link, pipe or device.
    ///
    /// # Errors
    /// As [`Folder::sub`].
    pub fn remove_file(&self, path: &[u8]) -> Result<(), PathError> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::unlinkat(&parent, name, AtFlags::empty()).map_err(fail("remove", path))
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// As [`Folder::sub`].
    pub fn remove_dir(&self, path: &[u8]) -> Result<(), PathError> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR).map_err(fail("remove the folder", path))
    }

    /// Makes a symbolic link to `target`, whatever that is: nothing here will follow it outside.
    ///
    /// # Errors
    /// As [`Folder::create_new`].
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<(), PathError> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::symlinkat(target, &parent, name).map_err(fail("make the link", path))
    }

    /// Where a symbolic link points.
    ///
    /// # Errors
    /// As [`Folder::sub`]; `InvalidInput` for what is not a link.
    pub fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, PathError> {
        let (parent, name) = self.parent(path)?;
        let target =
            rustix::fs::readlinkat(&parent, name, Vec::new()).map_err(fail("read the link", path))?;
        Ok(target.into_bytes())
    }

    /// What is known about a name; of a link, about itself.
    ///
    /// # Errors
    /// As [`Folder::sub`].
    pub fn stat(&self, path: &[u8]) -> Result<Stat, PathError> {
        let (parent, name) = self.parent(path)?;
        let s =
            rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).map_err(fail("examine", path))?;
        Ok(Stat::of(&s))
    }

    /// Sets when the content changed last; of a link, its own time.
    ///
    /// # Errors
    /// As [`Folder::sub`].
    pub fn set_modified(&self, path: &[u8], at: WallTime) -> Result<(), PathError> {
        let (parent, name) = self.parent(path)?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            last_modification: Timespec { tv_sec: at.secs, tv_nsec: at.nanos.min(999_999_999).into() },
        };
        rustix::fs::utimensat(&parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(fail("set the time of", path))
    }

    /// Sets the permissions (0 to 0o7777) of a file or folder that we may open for reading. For a file that
    /// is open already, use [`std::fs::File::set_permissions`].
    ///
    /// # Errors
    /// As [`Folder::sub`]; links have no permissions and are refused.
    pub fn set_mode(&self, path: &[u8], mode: u32) -> Result<(), PathError> {
        let (parent, name) = self.parent(path)?;
        // Without waiting for a pipe's other end, and without making a terminal ours.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&parent, name, flags, Mode::empty()).map_err(fail("open", path))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o7777))
            .map_err(fail("set the permissions of", path))
    }

    /// The names in this folder, in no order, without `.` and `..`.
    ///
    /// # Errors
    /// [`PathError::System`] when it cannot be read.
    pub fn list(&self) -> Result<List, PathError> {
        List::new(self.fd.as_fd()).map_err(fail("list", b"."))
    }

    /// Makes names that were made, renamed or removed here survive a crash.
    ///
    /// # Errors
    /// [`PathError::System`] when the disk failed.
    pub fn sync(&self) -> Result<(), PathError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, ".", flags, Mode::empty()).map_err(fail("open", b"."))?;
        rustix::fs::fsync(fd).map_err(fail("write back the folder", b"."))
    }

    fn open_plain(&self, path: &[u8], how: OFlags) -> Result<File, PathError> {
        check_name(path)?;
        let flags = how | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let fd = self.resolve(path, flags).map_err(|e| match e {
            // What opening a folder for writing, or a socket or a pipe that nobody reads, gives.
            Errno::ISDIR | Errno::NXIO => PathError::NotAFile { path: path.to_vec() },
            e => fail("open", path)(e),
        })?;
        let stat = rustix::fs::fstat(&fd).map_err(fail("examine", path))?;
        if Stat::of(&stat).kind != Kind::File {
            return Err(PathError::NotAFile { path: path.to_vec() });
        }
        Ok(File::from(fd))
    }

    /// The open folder that holds a name's last component, and that component.
    fn parent<'a>(&'a self, path: &'a [u8]) -> Result<(Parent<'a>, &'a [u8]), PathError> {
        check_name(path)?;
        match path.iter().rposition(|b| *b == b'/') {
            None => Ok((Parent::This(self.fd.as_fd()), path)),
            Some(i) => {
                let fd = self.folder_fd(&path[..i]).map_err(fail("open the folder of", path))?;
                Ok((Parent::Other(fd), &path[i + 1..]))
            }
        }
    }

    fn folder_fd(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        self.resolve(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC)
    }

    /// Opens a checked name beneath this folder.
    fn resolve(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        if self.walk || NO_OPENAT2.load(Ordering::Relaxed) {
            return self.resolve_by_walking(path, flags);
        }
        let mut how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        if self.links == Links::Refuse {
            how |= ResolveFlags::NO_SYMLINKS;
        }
        let mut result = Err(Errno::AGAIN);
        for _ in 0..MAX_TRIES {
            result = rustix::fs::openat2(&self.fd, path, flags, Mode::empty(), how);
            match result {
                // A rename elsewhere kept the kernel from being sure (openat2(2), EAGAIN), or a signal came.
                Err(Errno::AGAIN | Errno::INTR) => {}
                // EPERM: sandboxes that filter unknown calls answer so; only walking tells the difference.
                Err(Errno::NOSYS) => {
                    NO_OPENAT2.store(true, Ordering::Relaxed);
                    return self.resolve_by_walking(path, flags);
                }
                Err(Errno::PERM) => return self.resolve_by_walking(path, flags),
                r => return r,
            }
        }
        result
    }

    /// One component at a time, none of which may be a link: each is opened from the open folder before it,
    /// so that what others do to the tree meanwhile cannot lead outside.
    fn resolve_by_walking(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let mut at: Option<OwnedFd> = None;
        let mut parts = path.split(|b| *b == b'/').peekable();
        while let Some(part) = parts.next() {
            let here = at.as_ref().map_or(self.fd.as_fd(), |fd| fd.as_fd());
            let last = parts.peek().is_none();
            let how = if last { flags } else { OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC };
            let opened = rustix::fs::openat(here, part, how | OFlags::NOFOLLOW, Mode::empty());
            at = Some(opened.map_err(|e| match e {
                // With O_DIRECTORY a link is "not a directory"; say what it is.
                Errno::NOTDIR if is_link(here, part) => Errno::LOOP,
                e => e,
            })?);
        }
        at.ok_or(Errno::NOENT)
    }
}

/// For the message only; nothing is decided by it.
fn is_link(folder: BorrowedFd<'_>, name: &[u8]) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|s| Kind::of(rustix::fs::FileType::from_raw_mode(s.st_mode)) == Kind::Link)
}
