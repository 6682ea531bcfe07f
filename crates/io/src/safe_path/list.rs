//! Lists a folder.

use super::Attributes;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use std::os::fd::BorrowedFd;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A plain file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A pipe, socket or device.
    Other,
}

impl Kind {
    pub(super) fn of(t: FileType) -> Kind {
        match t {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Folder,
            FileType::Symlink => Kind::Link,
            _ => Kind::Other,
        }
    }
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, a single component.
    pub name: Vec<u8>,
    /// What it is, by the folder's own word where the file system has it there.
    pub kind: Kind,
}

/// The names in a folder, read as they are asked for: memory does not grow with the folder.
#[derive(Debug)]
pub struct List {
    dir: Dir,
}

impl List {
    pub(super) fn new(folder: BorrowedFd<'_>) -> rustix::io::Result<List> {
        // Anew: the descriptor of a folder is good for resolving names only (O_PATH).
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(List { dir: Dir::new(rustix::fs::openat(folder, ".", flags, Mode::empty())?)? })
    }

    /// What the folder itself has beside its names.
    pub fn attributes(&self) -> Attributes {
        self.dir.fd().map(|fd| Attributes::of_file(&fd)).unwrap_or_default()
    }

    /// The kind, where the file system does not tell it with the name. A name that has gone is `Other`.
    fn ask(&self, name: &core::ffi::CStr) -> Kind {
        let stat = self.dir.fd().and_then(|fd| rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW));
        stat.map_or(Kind::Other, |s| Kind::of(FileType::from_raw_mode(s.st_mode)))
    }
}

impl Iterator for List {
    type Item = std::io::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = match self.dir.read()? {
                Ok(e) => e,
                Err(e) => return Some(Err(e.into())),
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => self.ask(name),
                t => Kind::of(t),
            };
            return Some(Ok(Entry { name: name.to_bytes().to_vec(), kind }));
        }
    }
}
