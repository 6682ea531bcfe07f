//! File operations beneath one folder, over [`lhio::safe_path`]: no name leads outside, and no link is followed.

use crate::lock::LockedFile;
use crate::path::{RelPath, part_name};
use crate::proto::{Kind, Meta, Node};
use lhio::clock::WallTime;
use lhio::safe_path::{self, Attributes, Folder, Stat};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Mode of folders until their own arrives.
const DIR_MODE: u32 = 0o700;
/// Mode of folders that a user makes, less the umask.
const NEW_DIR_MODE: u32 = 0o777;
/// Said of a file that did not stay as it was written.
pub(crate) const DISTURBED: &str = "its unfinished file was changed or replaced by another program";
/// How often a name is tried that stands for another file each time.
const MAX_TRIES: usize = 64;
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
    /// Names that the file has.
    pub links: u64,
    /// The user it belongs to.
    pub owner: u32,
    /// The group it belongs to.
    pub group: u32,
    /// Which one it is, of a device, pipe or socket.
    pub node: Option<Node>,
    /// A set-user-id, set-group-id or sticky bit.
    pub special_bits: bool,
}

/// What is in a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Sorted by their bytes. Names that are reserved for unfinished transfers are among them.
    pub sorted: Vec<Vec<u8>>,
    /// What the folder itself has beside its names.
    pub attributes: Attributes,
}

impl From<Stat> for Info {
    fn from(s: Stat) -> Info {
        let kind = match s.kind {
            safe_path::Kind::File => Kind::File,
            safe_path::Kind::Folder => Kind::Dir,
            safe_path::Kind::Link => Kind::Link,
            safe_path::Kind::Other => Kind::Other,
        };
        let meta = Meta { mode: s.mode & 0o7777, secs: s.modified.secs, nanos: s.modified.nanos };
        Info {
            kind,
            size: s.len,
            allocated: s.allocated,
            meta,
            id: s.id,
            links: s.names,
            owner: s.owner,
            group: s.group,
            node: (kind == Kind::Other).then(|| Node { format: s.format, device: device(&s) }),
            special_bits: s.mode & 0o7000 != 0,
        }
    }
}

/// Only devices have one.
fn device(s: &Stat) -> (u32, u32) {
    if matches!(s.format, 0o020_000 | 0o060_000) { s.device } else { (0, 0) }
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
        self.make_dir_telling(path, |_| ())
    }
    /// The same; tells each folder that was made.
    ///
    /// # Errors
    /// The system's.
    pub fn make_dir_telling(&self, path: &RelPath, mut made: impl FnMut(RelPath)) -> io::Result<Dir> {
        let f = &self.folder;
        if path.is_root() {
            return Ok(Dir(f.again()?));
        }
        // The beginning of a checked path is one.
        let tell = |p: &[u8]| made(RelPath::parse(p).unwrap_or_default());
        Ok(Dir(f.create_dir_all_telling(path.as_bytes(), DIR_MODE, tell)?))
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
    /// What is in a folder.
    ///
    /// # Errors
    /// The system's.
    pub fn names(&self, path: &RelPath) -> io::Result<Names> {
        let all = self.dir(path)?.0.list()?;
        let attributes = all.attributes();
        let mut sorted = all.map(|e| e.map(|e| e.name)).collect::<io::Result<Vec<_>>>()?;
        sorted.sort_unstable();
        Ok(Names { sorted, attributes })
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
    /// Opens a file of our own for reading and writing (mode 0600): one that is there if `keep` is set and nobody
    /// else has a hand in it, else a new one ([`Folder::open_own`]).
    ///
    /// # Errors
    /// The system's.
    pub fn open_own(&self, n: &[u8], keep: bool) -> io::Result<File> {
        self.0.open_own(n, FILE_MODE, keep)
    }
    /// The same, for one transfer at a time: another one that has opened it is told to wait.
    ///
    /// # Errors
    /// The system's; `EAGAIN` while another transfer has it.
    pub(crate) fn open_own_alone(&self, n: &[u8]) -> io::Result<LockedFile> {
        for _ in 0..MAX_TRIES {
            let f = LockedFile::new(self.open_own(n, true)?)?;
            // The one that had it may have renamed or removed it just before it let go.
            if self.is(n, &Info::of_file(&f)?) {
                return Ok(f);
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }
    /// Whether a name stands for this very file.
    pub fn is(&self, n: &[u8], file: &Info) -> bool {
        self.info(n).is_ok_and(|i| i.id == file.id)
    }
    /// Puts a whole file in place under a temporary name first.
    ///
    /// # Errors
    /// The system's; nothing of the old file is lost then.
    pub fn put_file(&self, n: &[u8], data: &[u8], meta: &Meta, overwrite: bool) -> io::Result<()> {
        self.put_file_with(n, data, meta, overwrite, |_| ())
    }
    /// The same; `dress` gives it what else it is to have, before its mode.
    ///
    /// # Errors
    /// The system's; nothing of the old file is lost then.
    pub fn put_file_with(
        &self,
        n: &[u8],
        data: &[u8],
        meta: &Meta,
        overwrite: bool,
        dress: impl FnOnce(&File),
    ) -> io::Result<()> {
        let fill = |f: &File| {
            io::Write::write_all(&mut &*f, data)?;
            Ok(data.len() as u64)
        };
        self.put_filled(n, meta, overwrite, fill, dress)
    }
    /// Puts a copy of an open file in place under a temporary name first; `dress` as of [`Dir::put_file_with`].
    ///
    /// # Errors
    /// The system's; nothing of the old file is lost then.
    pub fn put_copy_with(
        &self,
        n: &[u8],
        of: &File,
        meta: &Meta,
        overwrite: bool,
        dress: impl FnOnce(&File),
    ) -> io::Result<()> {
        self.put_filled(n, meta, overwrite, |f| io::copy(&mut &*of, &mut &*f), dress)
    }
    /// `fill` writes the contents and gives their length.
    fn put_filled(
        &self,
        n: &[u8],
        meta: &Meta,
        overwrite: bool,
        fill: impl FnOnce(&File) -> io::Result<u64>,
        dress: impl FnOnce(&File),
    ) -> io::Result<()> {
        self.check_free(n, overwrite)?;
        let part = part_name(n);
        let r = self.open_own(&part, false).and_then(|f| {
            let size = fill(&f)?;
            dress(&f);
            set_meta(&f, meta)?;
            let i = Info::of_file(&f)?;
            if i.size != size || !self.is(&part, &i) {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, DISTURBED));
            }
            self.rename(&part, n, overwrite)
        });
        if r.is_err() {
            let _ = self.remove(&part); // the error that is reported came first
        }
        r
    }
    /// Without `overwrite`, what exists is seen before anything is made beside it: so the folder keeps its time. Renaming
    /// decides.
    fn check_free(&self, n: &[u8], overwrite: bool) -> io::Result<()> {
        if overwrite || self.info(n).is_err() {
            Ok(())
        } else {
            Err(io::Error::from_raw_os_error(libc::EEXIST))
        }
    }
    /// Puts a link in place.
    ///
    /// # Errors
    /// The system's.
    pub fn put_link(&self, n: &[u8], target: &[u8], meta: &Meta, overwrite: bool) -> io::Result<()> {
        self.put_other(
            n,
            overwrite,
            |part| self.0.symlink(target, part),
            |part| self.0.set_modified(part, time(meta)),
        )
    }
    /// The same; `dress` gives it an owner under the name that it has first.
    ///
    /// # Errors
    /// The system's.
    pub fn put_link_with(
        &self,
        n: &[u8],
        target: &[u8],
        meta: &Meta,
        overwrite: bool,
        dress: impl FnOnce(&Dir, &[u8]),
    ) -> io::Result<()> {
        self.put_other(
            n,
            overwrite,
            |part| self.0.symlink(target, part),
            |part| {
                dress(self, part);
                self.0.set_modified(part, time(meta))
            },
        )
    }
    /// Puts a device, pipe or socket in place; one that is there already and is the same gets owner, mode and time.
    ///
    /// # Errors
    /// The system's.
    pub fn put_node_with(
        &self,
        n: &[u8],
        node: Node,
        meta: &Meta,
        overwrite: bool,
        dress: impl FnOnce(&Dir, &[u8]),
    ) -> io::Result<()> {
        let finish = |name: &[u8]| {
            dress(self, name);
            self.0.set_node_attributes(name, meta.mode, time(meta))
        };
        if overwrite && self.info(n).is_ok_and(|i| i.node == Some(node)) {
            return finish(n);
        }
        self.put_other(n, overwrite, |part| self.0.make_node(part, node.format, node.device), finish)
    }
    /// Gives a file, symbolic link or special file of another folder a further name here.
    ///
    /// # Errors
    /// The system's; `InvalidInput` when it is a folder.
    pub fn put_name(&self, n: &[u8], of: (&Dir, &[u8]), overwrite: bool) -> io::Result<()> {
        let file = of.0.info(of.1)?;
        if file.kind == Kind::Dir {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the first of its names is a folder"));
        }
        if self.is(n, &file) {
            return Ok(());
        }
        self.put_other(
            n,
            overwrite,
            |part| of.0.0.link(of.1, &self.0, part),
            |part| {
                // What was linked is what counts, whatever has the name now.
                if self.is(part, &file) {
                    Ok(())
                } else {
                    Err(io::Error::new(io::ErrorKind::InvalidInput, DISTURBED))
                }
            },
        )
    }
    /// Makes something under a temporary name, finishes it, and gives it its own.
    fn put_other(
        &self,
        n: &[u8],
        overwrite: bool,
        make: impl Fn(&[u8]) -> io::Result<()>,
        finish: impl FnOnce(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        self.check_free(n, overwrite)?;
        let part = part_name(n);
        if let Err(e) = make(&part) {
            if e.kind() != io::ErrorKind::AlreadyExists {
                return Err(e);
            }
            // Left by an attempt that was killed, or whatever else: a file of our own takes its place first.
            drop(self.open_own(&part, false)?);
            self.remove(&part)?;
            make(&part)?;
        }
        let r = finish(&part).and_then(|()| self.rename(&part, n, overwrite));
        if r.is_err() {
            let _ = self.remove(&part);
        }
        r
    }
    /// Sets the owner of a name; a link is not followed.
    ///
    /// # Errors
    /// The system's.
    pub fn set_owner(&self, n: &[u8], user: Option<u32>, group: Option<u32>) -> io::Result<()> {
        self.0.set_owner(n, user, group)
    }
    /// This folder, open for its attributes.
    ///
    /// # Errors
    /// The system's.
    pub fn open_for_attributes(&self) -> io::Result<std::os::fd::OwnedFd> {
        self.0.open_for_attributes()
    }
    /// Renames within the folder; without `overwrite` never replaces anything, not even in a race. A device, pipe or
    /// socket is never replaced: others have it open, and it cannot be had again by a further transfer.
    ///
    /// # Errors
    /// `EEXIST` without `overwrite`, that something is in the way for a device, and the system's.
    pub fn rename(&self, from: &[u8], to: &[u8], overwrite: bool) -> io::Result<()> {
        // Most names are new, and need no look at what they replace.
        match self.0.rename_new(from, to) {
            Err(_) if overwrite => {}
            r => return r,
        }
        match self.info(to) {
            Ok(i) if i.kind == Kind::Other => Err(in_the_way()),
            _ => self.0.rename(from, to),
        }
    }
    /// Renames into another folder of the same file system, as [`rename`](Self::rename).
    ///
    /// # Errors
    /// As of `rename`.
    pub fn rename_to(&self, from: &[u8], folder: &Dir, to: &[u8], overwrite: bool) -> io::Result<()> {
        match self.0.move_to(from, &folder.0, to) {
            Err(_) if overwrite => {}
            r => return r,
        }
        match folder.info(to) {
            Ok(i) if i.kind == Kind::Other => Err(in_the_way()),
            _ => self.0.rename_to(from, &folder.0, to),
        }
    }
    /// The file system that this folder is on.
    ///
    /// # Errors
    /// The system's.
    pub fn device(&self) -> io::Result<u64> {
        Ok(Info::of_file(&self.0)?.id.0)
    }
    /// Opens a plain file of this folder for reading.
    ///
    /// # Errors
    /// The system's; `InvalidInput` when it is no regular file.
    pub fn read_file(&self, n: &[u8]) -> io::Result<File> {
        self.0.open_read(n)
    }
    /// Removes a file or link.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(&self, n: &[u8]) -> io::Result<()> {
        self.0.remove_file(n)
    }
    /// Removes an empty folder.
    ///
    /// # Errors
    /// The system's; `ENOTEMPTY` when there is something in it.
    pub fn remove_dir(&self, n: &[u8]) -> io::Result<()> {
        self.0.remove_dir(n)
    }
    /// Makes one folder with this mode, which must not exist.
    ///
    /// # Errors
    /// The system's; `EEXIST`.
    pub fn create_dir(&self, n: &[u8]) -> io::Result<()> {
        self.0.create_dir(n, NEW_DIR_MODE)
    }
    /// Gives a file or link a second name in another folder, which must be free there.
    ///
    /// # Errors
    /// The system's; `EEXIST`.
    pub fn link_to(&self, n: &[u8], folder: &Dir, to: &[u8]) -> io::Result<()> {
        self.0.link_to(n, &folder.0, to)
    }
    /// Moves a name to another folder, where it must be free.
    ///
    /// # Errors
    /// The system's; `EEXIST`.
    pub fn move_to(&self, n: &[u8], folder: &Dir, to: &[u8]) -> io::Result<()> {
        self.0.move_to(n, &folder.0, to)
    }
    /// Sets mode and time of this folder.
    ///
    /// # Errors
    /// The system's.
    pub fn set_meta(&self, meta: &Meta) -> io::Result<()> {
        self.0.set_own_attributes(meta.mode & 0o7777, time(meta))
    }
    /// Writes the folder's names to the disk and waits.
    ///
    /// # Errors
    /// When the disk failed.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// A device, pipe or socket has the name that a file or link should get.
pub(crate) fn in_the_way() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, SPECIAL_IN_THE_WAY)
}
/// The same in words.
pub(crate) const SPECIAL_IN_THE_WAY: &str = "a device, pipe or socket of that name is never replaced";

fn time(m: &Meta) -> WallTime {
    WallTime { secs: m.secs, nanos: m.nanos }
}

/// Sets mode and time of an open file.
///
/// # Errors
/// The system's.
pub fn set_meta(f: &File, m: &Meta) -> io::Result<()> {
    safe_path::set_attributes(f, m.mode & 0o7777, time(m))
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
        // So is a link in place of the temporary file, of either kind.
        let (secret, part) = (outside.path().join("secret"), inside.path().join(".g.longhaul-part"));
        for plant in [std::fs::hard_link::<&Path, &Path>, |a, b| symlink(a, b)] {
            plant(&secret, &part).unwrap();
            t.dir(&RelPath::root()).unwrap().put_file(b"g", b"new", &M, true).unwrap();
            assert_eq!(std::fs::read(inside.path().join("g")).unwrap(), b"new");
            assert_eq!(std::fs::read(&secret).unwrap(), b"s");
            assert!(!part.exists());
        }
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
        assert_eq!(t.names(&p("a/b/c")).unwrap().sorted, [b"l".to_vec(), b"\xff".to_vec()]);
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
        for r in [root.put_file(b"pipe", b"x", &M, true), root.put_link(b"pipe", b"x", &M, true)] {
            let e = r.unwrap_err();
            assert_eq!(crate::error::Cause::of(&e), crate::error::Cause::Special, "{e}");
        }
        assert_eq!(t.info(&p("pipe")).unwrap().kind, Kind::Other, "it stays");
        assert_eq!(root.put_file(b"pipe", b"x", &M, false).unwrap_err().raw_os_error(), Some(libc::EEXIST));
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
