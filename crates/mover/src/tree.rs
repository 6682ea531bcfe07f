//! What a transfer does beneath its folder, over [`lhio::safe_path`]: no name leads outside, and no link is followed.

use crate::path::{RelPath, part_name};
use crate::proto::{Kind, Meta};
use lhio::clock::WallTime;
use lhio::safe_path::{self, Folder, Stat};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Mode of folders until their own arrives.
const DIR_MODE: u32 = 0o700;
/// Mode of files until their own arrives.
const FILE_MODE: u32 = 0o600;

/// An open folder, and everything beneath it.
#[derive(Debug)]
pub struct Tree {
    folder: Folder,
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

impl From<Stat> for Info {
    fn from(s: Stat) -> Info {
        let kind = match s.kind {
            safe_path::Kind::File => Kind::File,
            safe_path::Kind::Folder => Kind::Dir,
            safe_path::Kind::Link => Kind::Link,
            safe_path::Kind::Other => Kind::Other,
        };
        let meta = Meta { mode: s.mode & 0o777, secs: s.modified.secs, nanos: s.modified.nanos };
        Info { kind, size: s.len, allocated: s.allocated, meta, id: s.id }
    }
}

impl Info {
    /// Of an open file.
    ///
    /// # Errors
    /// The system's.
    pub fn of_file(f: &impl AsFd) -> io::Result<Info> {
        Ok(Stat::of_file(f)?.into())
    }
}

impl Tree {
    /// Opens a folder. Links in `path` itself are followed: it is the user's choice, not a peer's.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Tree> {
        Ok(Tree { folder: Folder::open(path)?, shown: path.to_owned() })
    }
    /// Where it is, for messages.
    pub fn shown(&self) -> &Path {
        &self.shown
    }
    /// A path inside, for messages.
    pub fn show(&self, path: &RelPath) -> PathBuf {
        if path.is_root() { self.shown.clone() } else { self.shown.join(path.as_os_str()) }
    }
    /// A folder inside.
    ///
    /// # Errors
    /// The system's; `ELOOP` for a symbolic link anywhere in the path.
    pub fn dir(&self, path: &RelPath) -> io::Result<Dir> {
        let f = &self.folder;
        Ok(Dir(if path.is_root() { f.again()? } else { f.sub(path.as_bytes())? }))
    }
    /// A folder inside, made with its parents (mode 0700 until its own arrives) where they are missing.
    ///
    /// # Errors
    /// The system's.
    pub fn make_dir(&self, path: &RelPath) -> io::Result<Dir> {
        let f = &self.folder;
        Ok(Dir(if path.is_root() { f.again()? } else { f.create_dir_all(path.as_bytes(), DIR_MODE)? }))
    }
    /// What a path is; links are not followed.
    ///
    /// # Errors
    /// The system's.
    pub fn info(&self, path: &RelPath) -> io::Result<Info> {
        let f = &self.folder;
        Ok(if path.is_root() { Stat::of_file(f)? } else { f.stat(path.as_bytes())? }.into())
    }
    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// The system's; `InvalidInput` when it is no regular file.
    pub fn read_file(&self, path: &RelPath) -> io::Result<File> {
        self.folder.open_read(path.as_bytes())
    }
    /// Names in a folder, sorted by their bytes, without those of unfinished transfers.
    ///
    /// # Errors
    /// The system's.
    pub fn names(&self, path: &RelPath) -> io::Result<Vec<Vec<u8>>> {
        let all = self.dir(path)?.0.list()?.map(|e| e.map(|e| e.name));
        let mut v = all.collect::<io::Result<Vec<_>>>()?;
        v.retain(|n| !crate::path::is_reserved(n));
        v.sort_unstable();
        Ok(v)
    }
    /// Writes everything of this file system to the disk and waits.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn sync_all(&self) -> io::Result<()> {
        self.folder.sync_all()
    }
}

/// One open folder; everything here takes a single name in it and follows no link.
#[derive(Debug)]
pub struct Dir(Folder);

impl Dir {
    /// What a name is.
    ///
    /// # Errors
    /// The system's.
    pub fn info(&self, n: &[u8]) -> io::Result<Info> {
        Ok(self.0.stat(n)?.into())
    }
    /// Where a link points.
    ///
    /// # Errors
    /// The system's.
    pub fn read_link(&self, n: &[u8]) -> io::Result<Vec<u8>> {
        self.0.read_link(n)
    }
    /// Opens a file for reading and writing, made (mode 0600) when missing; emptied when `fresh`.
    ///
    /// # Errors
    /// The system's; `InvalidInput` when something else of that name exists.
    pub fn open_rw(&self, n: &[u8], fresh: bool) -> io::Result<File> {
        self.0.open_or_create(n, FILE_MODE, fresh)
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
        self.0.symlink(target, &part)?;
        let r = self.0.set_modified(&part, time(meta)).and_then(|()| self.rename(&part, n, overwrite));
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
        if overwrite { self.0.rename(from, to) } else { self.0.rename_new(from, to) }
    }
    /// Removes a file or link.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(&self, n: &[u8]) -> io::Result<()> {
        self.0.remove_file(n)
    }
    /// Sets mode and time of this folder.
    ///
    /// # Errors
    /// The system's.
    pub fn set_meta(&self, meta: &Meta) -> io::Result<()> {
        self.0.set_own_attributes(meta.mode & 0o777, time(meta))
    }
    /// Writes the folder's names to the disk and waits.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

fn time(m: &Meta) -> WallTime {
    WallTime { secs: m.secs, nanos: m.nanos }
}

/// Sets mode and time of an open file.
///
/// # Errors
/// The system's.
pub fn set_meta(f: &File, m: &Meta) -> io::Result<()> {
    safe_path::set_attributes(f, m.mode & 0o777, time(m))
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
        rustix::fs::mknodat(
            &root.0,
            "pipe",
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
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
