//! File access that cannot leave a folder.
//!
//! Every path is resolved by the kernel in one step beneath an open folder (`openat2` with `RESOLVE_BENEATH` and
//! `RESOLVE_NO_SYMLINKS`), so neither `..`, absolute links nor a link that is put in place between check and use
//! leads elsewhere. Needs Linux 5.6.

use crate::path::{RelPath, part_name};
use crate::proto::{Kind, Meta};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most folders made to reach one file: the depth limit of paths.
const MAX_MADE: usize = crate::path::MAX_DEPTH;

/// An open folder, and everything beneath it.
#[derive(Debug)]
pub struct Tree {
    dir: OwnedFd,
    shown: PathBuf,
}

/// What a name is, with the data that a transfer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// Kind of thing.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// Bytes of disk it takes: less than `size` when it has holes.
    pub allocated: u64,
    /// Mode and modification time.
    pub meta: Meta,
    /// Device and inode number.
    pub id: (u64, u64),
}

impl Info {
    fn of(s: &Stat) -> Info {
        let kind = match FileType::from_raw_mode(s.st_mode) {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Dir,
            FileType::Symlink => Kind::Link,
            _ => Kind::Other,
        };
        Info {
            kind,
            size: u64::try_from(s.st_size).unwrap_or(0),
            allocated: u64::try_from(s.st_blocks).unwrap_or(0).saturating_mul(512),
            meta: Meta {
                mode: s.st_mode & 0o777,
                secs: s.st_mtime,
                nanos: (s.st_mtime_nsec as u32).min(999_999_999),
            },
            id: (s.st_dev, s.st_ino),
        }
    }
    /// Of an open file.
    ///
    /// # Errors
    /// The system's.
    pub fn of_file(f: &impl AsFd) -> io::Result<Info> {
        Ok(Info::of(&rustix::fs::fstat(f)?))
    }
}

fn name(b: &[u8]) -> &OsStr {
    OsStr::from_bytes(b)
}

impl Tree {
    /// Opens a folder. Links in `path` itself are followed: it is the user's choice, not a peer's.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Tree> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Tree { dir, shown: path.to_owned() })
    }
    /// Where it is, for messages.
    pub fn shown(&self) -> &Path {
        &self.shown
    }
    /// A path inside, for messages.
    pub fn show(&self, path: &RelPath) -> PathBuf {
        if path.is_root() { self.shown.clone() } else { self.shown.join(path.as_os_str()) }
    }
    fn at(&self, path: &RelPath, flags: OFlags) -> io::Result<OwnedFd> {
        let p = if path.is_root() { name(b".") } else { path.as_os_str() };
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        // EAGAIN: something was renamed meanwhile and the kernel could not be sure; openat2(2) says to try again.
        for _ in 0..16 {
            match rustix::fs::openat2(&self.dir, p, flags | OFlags::CLOEXEC, Mode::empty(), how) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(e) => return Err(e.into()),
                Ok(fd) => return Ok(fd),
            }
        }
        Err(Errno::AGAIN.into())
    }
    /// A folder inside.
    ///
    /// # Errors
    /// The system's; `ELOOP` for a symbolic link anywhere in the path.
    pub fn dir(&self, path: &RelPath) -> io::Result<Dir> {
        Ok(Dir(self.at(path, OFlags::PATH | OFlags::DIRECTORY)?))
    }
    /// A folder inside, made with its parents (mode 0700 until its own arrives) where they are missing.
    ///
    /// # Errors
    /// The system's.
    pub fn make_dir(&self, path: &RelPath) -> io::Result<Dir> {
        match self.dir(path) {
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) => {}
            r => return r,
        }
        let mut at = Dir(rustix::io::fcntl_dupfd_cloexec(&self.dir, 0)?);
        for c in path.components().take(MAX_MADE) {
            match rustix::fs::mkdirat(&at, name(c), Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(e.into()),
            }
            at = at.sub(c)?;
        }
        Ok(at)
    }
    /// What a path is; links are not followed.
    ///
    /// # Errors
    /// The system's.
    pub fn info(&self, path: &RelPath) -> io::Result<Info> {
        match path.split() {
            None => Info::of_file(&self.dir),
            Some((parent, last)) => self.dir(&parent)?.info(last),
        }
    }
    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// The system's; `InvalidInput` when it is no regular file.
    pub fn read_file(&self, path: &RelPath) -> io::Result<File> {
        // Not blocking, or a pipe of that name would hold the thread.
        regular(self.at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?.into())
    }
    /// Names in a folder, sorted by their bytes, without those of unfinished transfers.
    ///
    /// # Errors
    /// The system's.
    pub fn names(&self, path: &RelPath) -> io::Result<Vec<Vec<u8>>> {
        let mut d = rustix::fs::Dir::new(self.at(path, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
        let mut v = Vec::new();
        while let Some(e) = d.read() {
            let e = e?;
            let n = e.file_name().to_bytes();
            if n != b"." && n != b".." && !crate::path::is_reserved(n) {
                v.push(n.to_vec());
            }
        }
        v.sort_unstable();
        Ok(v)
    }
    /// Writes everything of this file system to the disk and waits.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn sync_all(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(self.at(&RelPath::root(), OFlags::RDONLY | OFlags::DIRECTORY)?)?)
    }
}

fn regular(f: File) -> io::Result<File> {
    if Info::of_file(&f)?.kind == Kind::File {
        Ok(f)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }
}

/// One open folder; everything here takes a single name in it and follows no link.
#[derive(Debug)]
pub struct Dir(OwnedFd);

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Dir {
    fn sub(&self, n: &[u8]) -> io::Result<Dir> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Dir(rustix::fs::openat(&self.0, name(n), flags, Mode::empty())?))
    }
    /// What a name is.
    ///
    /// # Errors
    /// The system's.
    pub fn info(&self, n: &[u8]) -> io::Result<Info> {
        Ok(Info::of(&rustix::fs::statat(&self.0, name(n), AtFlags::SYMLINK_NOFOLLOW)?))
    }
    /// Where a link points.
    ///
    /// # Errors
    /// The system's.
    pub fn read_link(&self, n: &[u8]) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.0, name(n), Vec::new())?.into_bytes())
    }
    /// Opens a file for reading and writing, made (mode 0600) when missing; emptied when `fresh`.
    ///
    /// # Errors
    /// The system's; `InvalidInput` when something else of that name exists.
    pub fn open_rw(&self, n: &[u8], fresh: bool) -> io::Result<File> {
        let mut flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        flags.set(OFlags::TRUNC, fresh);
        regular(rustix::fs::openat(&self.0, name(n), flags, Mode::from_raw_mode(0o600))?.into())
    }
    /// Puts a whole file in place under a temporary name first.
    ///
    /// # Errors
    /// The system's; nothing of the old file is lost then.
    pub fn put_file(&self, n: &[u8], data: &[u8], meta: &Meta, overwrite: bool) -> io::Result<()> {
        let part = part_name(n);
        let r = self.open_rw(&part, true).and_then(|f| {
            io::Write::write_all(&mut &f, data)?;
            set_meta(&f, meta)?;
            self.rename(&part, n, overwrite)
        });
        if r.is_err() {
            let _ = self.remove(&part); // the error that is reported came first
        }
        r
    }
    /// Puts a link in place.
    ///
    /// # Errors
    /// The system's.
    pub fn put_link(&self, n: &[u8], target: &[u8], meta: &Meta, overwrite: bool) -> io::Result<()> {
        let part = part_name(n);
        let _ = self.remove(&part); // left by an attempt that was killed
        rustix::fs::symlinkat(name(target), &self.0, name(&part))?;
        let t = times(meta);
        let r = rustix::fs::utimensat(&self.0, name(&part), &t, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(io::Error::from)
            .and_then(|()| self.rename(&part, n, overwrite));
        if r.is_err() {
            let _ = self.remove(&part);
        }
        r
    }
    /// Renames within the folder; without `overwrite` never replaces anything, not even in a race.
    ///
    /// # Errors
    /// `EEXIST` without `overwrite`, and the system's.
    pub fn rename(&self, from: &[u8], to: &[u8], overwrite: bool) -> io::Result<()> {
        if overwrite {
            return Ok(rustix::fs::renameat(&self.0, name(from), &self.0, name(to))?);
        }
        let (d, f, t) = (&self.0, name(from), name(to));
        match rustix::fs::renameat_with(d, f, d, t, RenameFlags::NOREPLACE) {
            // File systems without that flag: a link is made only if the name is free.
            Err(Errno::INVAL) => {
                rustix::fs::linkat(d, f, d, t, AtFlags::empty())?;
                self.remove(from)
            }
            r => Ok(r?),
        }
    }
    /// Removes a file or link.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(&self, n: &[u8]) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name(n), AtFlags::empty())?)
    }
    /// Sets mode and time of this folder.
    ///
    /// # Errors
    /// The system's.
    pub fn set_meta(&self, meta: &Meta) -> io::Result<()> {
        // The descriptor is only a place (O_PATH); `.` names the same folder for calls that need more.
        rustix::fs::chmodat(&self.0, ".", Mode::from_raw_mode(meta.mode & 0o777), AtFlags::empty())?;
        Ok(rustix::fs::utimensat(&self.0, ".", &times(meta), AtFlags::empty())?)
    }
    /// Writes the folder's names to the disk and waits.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn sync(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let d = rustix::fs::openat(&self.0, ".", flags, Mode::empty())?;
        Ok(rustix::fs::fsync(d)?)
    }
}

fn times(m: &Meta) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: m.secs, tv_nsec: i64::from(m.nanos) },
    }
}

/// Sets mode and time of an open file.
///
/// # Errors
/// The system's.
pub fn set_meta(f: &File, m: &Meta) -> io::Result<()> {
    rustix::fs::fchmod(f, Mode::from_raw_mode(m.mode & 0o777))?;
    Ok(rustix::fs::futimens(f, &times(m))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn p(s: &str) -> RelPath {
        RelPath::parse(s.as_bytes()).unwrap()
    }
    const M: Meta = Meta { mode: 0o640, secs: 1_000_000_000, nanos: 5 };

    #[test]
    fn links_lead_nowhere() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        symlink(outside.path(), inside.path().join("d")).unwrap();
        symlink(outside.path().join("secret"), inside.path().join("f")).unwrap();
        let t = Tree::open(inside.path()).unwrap();
        for e in [
            t.read_file(&p("d/secret")).unwrap_err(),
            t.read_file(&p("f")).unwrap_err(),
            t.dir(&p("d")).unwrap_err(),
            t.make_dir(&p("d/new")).unwrap_err(),
            t.names(&p("d")).unwrap_err(),
        ] {
            assert_eq!(e.raw_os_error(), Some(libc::ELOOP), "{e}");
        }
        // A link in place of the file is replaced, not followed.
        t.dir(&RelPath::root()).unwrap().put_file(b"f", b"new", &M, true).unwrap();
        assert_eq!(std::fs::read(inside.path().join("f")).unwrap(), b"new");
        assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"s");
        // So is a link in place of the temporary file, which makes the call fail.
        symlink(outside.path().join("secret"), inside.path().join(".g.longhaul-part")).unwrap();
        assert!(t.dir(&RelPath::root()).unwrap().put_file(b"g", b"new", &M, true).is_err());
        assert_eq!(std::fs::read(outside.path().join("secret")).unwrap(), b"s");
    }

    #[test]
    fn files_get_mode_time_and_their_name_at_the_end() {
        let d = tempfile::tempdir().unwrap();
        let t = Tree::open(d.path()).unwrap();
        let sub = t.make_dir(&p("a/b/c")).unwrap();
        sub.put_file(b"\xff", b"hello", &M, false).unwrap();
        let i = sub.info(b"\xff").unwrap();
        assert_eq!((i.kind, i.size, i.meta), (Kind::File, 5, M));
        let e = sub.put_file(b"\xff", b"other", &M, false).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::EEXIST));
        sub.put_file(b"\xff", b"other", &M, true).unwrap();
        sub.put_link(b"l", b"../x", &M, true).unwrap();
        sub.put_link(b"l", b"../y", &M, true).unwrap();
        assert_eq!(sub.read_link(b"l").unwrap(), b"../y");
        assert_eq!(sub.info(b"l").unwrap().meta.secs, M.secs);
        sub.set_meta(&Meta { mode: 0o500, ..M }).unwrap();
        assert_eq!(t.info(&p("a/b/c")).unwrap().meta, Meta { mode: 0o500, ..M });
        assert_eq!(t.names(&p("a/b/c")).unwrap(), [b"l".to_vec(), b"\xff".to_vec()]);
        t.sync_all().unwrap();
    }

    #[test]
    fn folders_and_pipes_are_no_files() {
        let d = tempfile::tempdir().unwrap();
        let t = Tree::open(d.path()).unwrap();
        let root = t.make_dir(&RelPath::root()).unwrap();
        t.make_dir(&p("dir/full")).unwrap();
        let e = root.put_file(b"dir", b"x", &M, true).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::EISDIR));
        assert!(t.read_file(&p("dir")).is_err());
        rustix::fs::mknodat(&root, "pipe", FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(t.read_file(&p("pipe")).is_err());
        assert_eq!(t.info(&p("pipe")).unwrap().kind, Kind::Other);
        let e = root.put_file(&[b'n'; 256], b"", &M, true).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::ENAMETOOLONG));
        assert_eq!(
            t.make_dir(&p("dir/full/x")).unwrap().info(b"y").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        root.put_file(b"file", b"x", &M, true).unwrap();
        assert_eq!(t.make_dir(&p("file/x")).unwrap_err().raw_os_error(), Some(libc::ENOTDIR));
    }
}
