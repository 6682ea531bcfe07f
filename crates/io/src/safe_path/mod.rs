//! File access that cannot leave a folder, whatever the names are and whoever changes the tree concurrently.
//!
//! Every operation starts from an open directory and resolves names beneath it in the kernel (`openat2(2)`
//! with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`), or component by component without following links where the
//! kernel is older than 5.6. No name is checked first and used later, so exchanging a folder for a link in between
//! gains nothing. No link is ever followed: on the way it is an error, in the last place it is taken for itself.
//!
//! Names are bytes separated by `/`; they need not be UTF-8. Errors are the system's: `ELOOP` for a link on the way
//! or in place of a file, `EINVAL` for a name that is not one inside the folder, `ENAMETOOLONG` beyond the limits.

mod attributes;
mod extended;
mod list;
#[cfg(test)]
mod tests;

pub use attributes::Attributes;
pub use extended::{Attribute, read_attributes, replace_attributes};
pub use list::{Entry, Kind, List};

use crate::clock::WallTime;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes in a name with all its components (`PATH_MAX` less the final zero).
pub const MAX_PATH: usize = 4_095;
/// Bytes in one component (`NAME_MAX`).
pub const MAX_NAME: usize = 255;
/// Times to try again what a concurrent change of the tree disturbed.
const MAX_TRIES: usize = 64;
/// Opens a folder to resolve names in, nothing else.
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The kernel has no `openat2`; found out once.
static NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// Checks a name: relative, without `.`, `..`, empty components and zero bytes, within the limits.
///
/// # Errors
/// `EINVAL`; `ENAMETOOLONG` beyond the limits.
pub fn check_name(path: &[u8]) -> io::Result<()> {
    Ok(check(path)?)
}

fn check(path: &[u8]) -> rustix::io::Result<()> {
    if path.len() > MAX_PATH || path.split(|b| *b == b'/').any(|c| c.len() > MAX_NAME) {
        return Err(Errno::NAMETOOLONG);
    }
    // An absolute name begins with an empty component.
    let bad = |c: &[u8]| matches!(c, b"" | b"." | b"..");
    if path.contains(&0) || path.split(|b| *b == b'/').any(bad) {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// The metadata of a file; of a link, not of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: Kind,
    /// Bytes; for a link, those of its target's name.
    pub len: u64,
    /// Bytes of disk that it takes: less than `len` when it has holes.
    pub allocated: u64,
    /// Permission bits, 0 to 0o7777.
    pub mode: u32,
    /// When the content changed last.
    pub modified: WallTime,
    /// Device and number: the same for names of the same file.
    pub id: (u64, u64),
    /// How many names it has.
    pub names: u64,
    /// The user that it belongs to.
    pub owner: u32,
    /// The group that it belongs to.
    pub group: u32,
    /// What it is, as in `st_mode`: `S_IFCHR` and so on.
    pub format: u32,
    /// Of a device: its major and minor number.
    pub device: (u32, u32),
}

impl Stat {
    // The number of names has 64 bits or fewer, by the architecture.
    #[allow(clippy::useless_conversion)]
    fn of(s: &rustix::fs::Stat) -> Stat {
        Stat {
            kind: Kind::of(rustix::fs::FileType::from_raw_mode(s.st_mode)),
            len: u64::try_from(s.st_size).unwrap_or(0),
            allocated: u64::try_from(s.st_blocks).unwrap_or(0).saturating_mul(512),
            mode: s.st_mode & 0o7777,
            modified: WallTime { secs: s.st_mtime, nanos: (s.st_mtime_nsec as u32).min(999_999_999) },
            id: (s.st_dev, s.st_ino),
            names: s.st_nlink.into(),
            owner: s.st_uid,
            group: s.st_gid,
            format: s.st_mode & 0o170_000,
            device: (rustix::fs::major(s.st_rdev), rustix::fs::minor(s.st_rdev)),
        }
    }

    /// Of an open file or folder.
    ///
    /// # Errors
    /// The system's.
    pub fn of_file(f: &impl AsFd) -> io::Result<Stat> {
        Ok(Stat::of(&rustix::fs::fstat(f)?))
    }
}

fn times(modified: WallTime) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec {
            tv_sec: modified.secs,
            tv_nsec: modified.nanos.min(999_999_999).into(),
        },
    }
}

/// Sets permissions (0 to 0o7777) and the time of the last change of an open file.
///
/// # Errors
/// The system's.
pub fn set_attributes(f: &File, mode: u32, modified: WallTime) -> io::Result<()> {
    rustix::fs::fchmod(f, Mode::from_raw_mode(mode & 0o7777))?;
    Ok(rustix::fs::futimens(f, &times(modified))?)
}

/// An open folder: names given to its methods are resolved beneath it and cannot leave it.
#[derive(Debug)]
pub struct Folder {
    fd: OwnedFd,
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
    /// The system's, also when it is not a folder.
    pub fn open(path: &Path) -> io::Result<Folder> {
        Ok(Folder { fd: rustix::fs::open(path, PLACE, Mode::empty())?, walk: false })
    }

    /// Resolves component by component even where `openat2` is there.
    #[cfg(test)]
    fn walking(mut self) -> Folder {
        self.walk = true;
        self
    }

    /// Another handle of the same folder.
    ///
    /// # Errors
    /// When no more files can be opened.
    pub fn again(&self) -> io::Result<Folder> {
        Ok(Folder { fd: self.fd.try_clone()?, walk: self.walk })
    }

    /// A folder beneath this one. Working in it saves resolving its name again for each of a million files.
    ///
    /// # Errors
    /// The system's.
    pub fn sub(&self, path: &[u8]) -> io::Result<Folder> {
        check(path)?;
        Ok(Folder { fd: self.resolve(path, PLACE)?, walk: self.walk })
    }

    /// Opens a plain file for reading. Pipes and devices are refused without waiting for them.
    ///
    /// # Errors
    /// The system's; `InvalidInput` when it is no plain file.
    pub fn open_read(&self, path: &[u8]) -> io::Result<File> {
        check(path)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match self.resolve(path, flags) {
            // A socket, or a pipe that nobody reads.
            Err(Errno::NXIO) => Err(not_plain()),
            fd => plain(fd?.into()),
        }
    }

    /// Opens a file of our own for reading and writing, made (the umask applies to `mode`) where there is none. One that
    /// is there already is opened only if `keep` is set and nobody else has a hand in it: a plain file that belongs to this
    /// process's user and has no other name. Whatever else has that name (a link, a pipe, a file with a second name, an
    /// empty folder) is removed first: writing to it would change what lies elsewhere, or let others write along.
    ///
    /// # Errors
    /// The system's; `ENOTEMPTY` when a folder that is not empty has that name.
    pub fn open_own(&self, path: &[u8], mode: u32, keep: bool) -> io::Result<File> {
        let (parent, name) = self.parent(path)?;
        let rw = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        for _ in 0..MAX_TRIES {
            let new = rw | OFlags::CREATE | OFlags::EXCL;
            match rustix::fs::openat(&parent, name, new, Mode::from_raw_mode(mode & 0o7777)) {
                Err(Errno::EXIST) => {}
                fd => return Ok(fd?.into()),
            }
            // The name is looked at before it is opened, since opening a device can do something; what was opened
            // is what counts.
            let there = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW);
            if keep && there.is_ok_and(|s| ours(&Stat::of(&s))) {
                let file: Option<File> =
                    rustix::fs::openat(&parent, name, rw, Mode::empty()).ok().map(File::from);
                if let Some(f) = file
                    && ours(&Stat::of_file(&f)?)
                {
                    return Ok(f);
                }
            }
            let removed = match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
                Err(Errno::ISDIR) => rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR),
                r => r,
            };
            match removed {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Errno::BUSY.into())
    }

    /// Makes a folder and those above it as far as they are missing, and opens it. The umask applies to `mode`.
    ///
    /// # Errors
    /// The system's.
    pub fn create_dir_all(&self, path: &[u8], mode: u32) -> io::Result<Folder> {
        self.create_dir_all_telling(path, mode, |_| ())
    }

    /// As `create_dir_all`, and calls `made` with the path of each folder that was created.
    ///
    /// # Errors
    /// The system's.
    pub fn create_dir_all_telling(
        &self,
        path: &[u8],
        mode: u32,
        mut made: impl FnMut(&[u8]),
    ) -> io::Result<Folder> {
        match self.sub(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            r => return r,
        }
        let mut at: Option<Folder> = None;
        let mut end = 0;
        for part in path.split(|b| *b == b'/') {
            let here = at.as_ref().unwrap_or(self);
            end += part.len();
            match rustix::fs::mkdirat(here, part, Mode::from_raw_mode(mode & 0o7777)) {
                Ok(()) => made(&path[..end]),
                Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
            end += 1; // the slash
            at = Some(here.sub(part)?);
        }
        at.ok_or_else(|| Errno::INVAL.into())
    }

    /// Renames `from` to `to`, replacing a file that is there.
    ///
    /// # Errors
    /// The system's.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let ((a, a_name), (b, b_name)) = (self.parent(from)?, self.parent(to)?);
        Ok(rustix::fs::renameat(&a, a_name, &b, b_name)?)
    }

    /// Renames `from` to `to`, which must not exist, not even in a race.
    ///
    /// # Errors
    /// The system's; `EEXIST`.
    pub fn rename_new(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let ((a, a_name), (b, b_name)) = (self.parent(from)?, self.parent(to)?);
        match rustix::fs::renameat_with(&a, a_name, &b, b_name, RenameFlags::NOREPLACE) {
            // File systems without that flag: a link is made only if the name is free.
            Err(Errno::INVAL) => {
                rustix::fs::linkat(&a, a_name, &b, b_name, AtFlags::empty())?;
                self.remove_file(from)
            }
            r => Ok(r?),
        }
    }

    /// Removes a file, link, pipe or device.
    ///
    /// # Errors
    /// The system's.
    pub fn remove_file(&self, path: &[u8]) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::unlinkat(&parent, name, AtFlags::empty())?)
    }

    /// Removes an empty folder.
    ///
    /// # Errors
    /// The system's; `ENOTEMPTY` when there is something in it, `ENOTDIR` when it is none.
    pub fn remove_dir(&self, path: &[u8]) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)?)
    }

    /// Makes one folder, which must not exist. The process's umask takes away bits of `mode`.
    ///
    /// # Errors
    /// The system's; `EEXIST`.
    pub fn create_dir(&self, path: &[u8], mode: u32) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(mode))?)
    }

    /// Gives a file or symbolic link a second name in another folder. The link itself gets it, not what it points to.
    ///
    /// # Errors
    /// The system's; `EEXIST` when the name is taken there, `EXDEV` between file systems.
    pub fn link_to(&self, path: &[u8], folder: &Folder, to: &[u8]) -> io::Result<()> {
        let ((a, a_name), (b, b_name)) = (self.parent(path)?, folder.parent(to)?);
        Ok(rustix::fs::linkat(&a, a_name, &b, b_name, AtFlags::empty())?)
    }

    /// Moves a name to another folder, where it must be free, also in a race.
    ///
    /// # Errors
    /// The system's; `EEXIST` when the name is taken there, `EXDEV` between file systems.
    pub fn move_to(&self, path: &[u8], folder: &Folder, to: &[u8]) -> io::Result<()> {
        let ((a, a_name), (b, b_name)) = (self.parent(path)?, folder.parent(to)?);
        Ok(rustix::fs::renameat_with(&a, a_name, &b, b_name, RenameFlags::NOREPLACE)?)
    }

    /// Renames to a name in another folder, replacing a file that is there.
    ///
    /// # Errors
    /// The system's; `EXDEV` between file systems.
    pub fn rename_to(&self, path: &[u8], folder: &Folder, to: &[u8]) -> io::Result<()> {
        let ((a, a_name), (b, b_name)) = (self.parent(path)?, folder.parent(to)?);
        Ok(rustix::fs::renameat(&a, a_name, &b, b_name)?)
    }

    /// Makes a symbolic link that must not exist. `target` is stored as it is and never followed here.
    ///
    /// # Errors
    /// The system's.
    pub fn symlink(&self, target: &[u8], path: &[u8]) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::symlinkat(target, &parent, name)?)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The system's; `EINVAL` when it is no link.
    pub fn read_link(&self, path: &[u8]) -> io::Result<Vec<u8>> {
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::readlinkat(&parent, name, Vec::new())?.into_bytes())
    }

    /// Makes a device, pipe or socket that must not exist, for this user only; `format` as in [`Stat::format`].
    ///
    /// # Errors
    /// The system's; `EPERM` for a device without the privilege.
    pub fn make_node(&self, path: &[u8], format: u32, (major, minor): (u32, u32)) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let kind = rustix::fs::FileType::from_raw_mode(format);
        let device = rustix::fs::makedev(major, minor);
        Ok(rustix::fs::mknodat(&parent, name, kind, Mode::RUSR | Mode::WUSR, device)?)
    }

    /// Gives what has the name `from` here another name in `to`, which must not exist there. A link is not followed.
    ///
    /// # Errors
    /// The system's; `EEXIST`.
    pub fn link(&self, from: &[u8], to: &Folder, name: &[u8]) -> io::Result<()> {
        let ((a, a_name), (b, b_name)) = (self.parent(from)?, to.parent(name)?);
        Ok(rustix::fs::linkat(&a, a_name, &b, b_name, AtFlags::empty())?)
    }

    /// Sets user and group of a name; a link is not followed.
    ///
    /// # Errors
    /// The system's; `EPERM` without the privilege.
    pub fn set_owner(&self, path: &[u8], user: Option<u32>, group: Option<u32>) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let (user, group) = (user.map(rustix::fs::Uid::from_raw), group.map(rustix::fs::Gid::from_raw));
        Ok(rustix::fs::chownat(&parent, name, user, group, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Sets permissions (0 to 0o7777) and time of a device, pipe or socket, which is not opened for it.
    ///
    /// # Errors
    /// The system's; `EINVAL` where the name is something else by now.
    pub fn set_node_attributes(&self, path: &[u8], mode: u32, modified: WallTime) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let place = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&parent, name, place, Mode::empty())?;
        if Stat::of_file(&fd)?.kind != Kind::Other {
            return Err(Errno::INVAL.into());
        }
        // By its descriptor: a name could stand for something else by now.
        let at = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        rustix::fs::chmod(&at, Mode::from_raw_mode(mode & 0o7777))?;
        Ok(rustix::fs::utimensat(rustix::fs::CWD, &at, &times(modified), AtFlags::empty())?)
    }

    /// The metadata of a name.
    ///
    /// # Errors
    /// The system's.
    pub fn stat(&self, path: &[u8]) -> io::Result<Stat> {
        let (parent, name) = self.parent(path)?;
        Ok(Stat::of(&rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// Sets when the content changed last; of a link, its own time.
    ///
    /// # Errors
    /// The system's.
    pub fn set_modified(&self, path: &[u8], at: WallTime) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(rustix::fs::utimensat(&parent, name, &times(at), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Sets permissions (0 to 0o7777) and time of this folder itself.
    ///
    /// # Errors
    /// The system's.
    pub fn set_own_attributes(&self, mode: u32, modified: WallTime) -> io::Result<()> {
        // The descriptor is only a place (O_PATH); `.` names the same folder for calls that need more.
        rustix::fs::chmodat(&self.fd, ".", Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
        Ok(rustix::fs::utimensat(&self.fd, ".", &times(modified), AtFlags::empty())?)
    }

    /// The names in this folder, in no order, without `.` and `..`.
    ///
    /// # Errors
    /// The system's.
    pub fn list(&self) -> io::Result<List> {
        Ok(List::new(self.fd.as_fd())?)
    }

    /// Makes names that were made, renamed or removed here survive a crash.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.readable()?)?)
    }

    /// Writes everything of this file system to the disk and waits.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(self.readable()?)?)
    }

    /// This folder, open for reading, for calls that do not take a mere place.
    ///
    /// # Errors
    /// The system's.
    pub fn open_for_attributes(&self) -> io::Result<OwnedFd> {
        Ok(self.readable()?)
    }

    fn readable(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, ".", flags, Mode::empty())
    }

    /// The open folder that holds a name's last component, and that component.
    fn parent<'a>(&'a self, path: &'a [u8]) -> rustix::io::Result<(Parent<'a>, &'a [u8])> {
        check(path)?;
        match path.iter().rposition(|b| *b == b'/') {
            None => Ok((Parent::This(self.fd.as_fd()), path)),
            Some(i) => Ok((Parent::Other(self.resolve(&path[..i], PLACE)?), &path[i + 1..])),
        }
    }

    /// Opens a checked name beneath this folder.
    fn resolve(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        if self.walk || NO_OPENAT2.load(Ordering::Relaxed) {
            return self.resolve_by_walking(path, flags);
        }
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
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
            let how = if parts.peek().is_none() { flags } else { PLACE };
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

fn not_plain() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

/// Whether nobody else has a hand in a file: see [`Folder::open_own`].
fn ours(s: &Stat) -> bool {
    s.kind == Kind::File && s.names == 1 && s.owner == rustix::process::geteuid().as_raw()
}

fn plain(f: File) -> io::Result<File> {
    if Stat::of_file(&f)?.kind == Kind::File { Ok(f) } else { Err(not_plain()) }
}

/// For the message only; nothing is decided by it.
fn is_link(folder: BorrowedFd<'_>, name: &[u8]) -> bool {
    rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|s| Kind::of(rustix::fs::FileType::from_raw_mode(s.st_mode)) == Kind::Link)
}
