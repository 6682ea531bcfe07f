//! Allocates, punches holes into and syncs files that are mapped.

use super::{MapError, size_of_file};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// How a file's room was provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocated {
    /// The blocks are the file's own: writing to the mapping cannot run out of disk.
    Reserved,
    /// The file system cannot reserve. There was room at the time of asking, but writing may still fail:
    /// [`super::MappedFile::fault`] tells.
    Sparse,
}

/// Sets the length of `file` to `len` bytes, longer or shorter, and reserves disk space for all of it. `path` is for
/// messages only.
///
/// # Errors
/// [`MapError::NoSpace`] when the disk or quota has no room; the file is then as long as before.
pub fn allocate(file: &File, path: &Path, len: u64) -> Result<Allocated, MapError> {
    let before = size_of_file(file, path)?;
    if len < before {
        set_len(file, path, len)?;
    }
    if len == 0 {
        return Ok(Allocated::Reserved);
    }
    let no_space = || MapError::NoSpace { path: path.to_owned(), bytes: len };
    match retry(|| fallocate(file, FallocateFlags::empty(), 0, len)) {
        Ok(()) => Ok(Allocated::Reserved),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let fs = rustix::fs::fstatvfs(file).map_err(|e| MapError::file("examine", path, e))?;
            let held = rustix::fs::fstat(file).map_err(|e| MapError::file("examine", path, e))?.st_blocks;
            let held = u64::try_from(held).unwrap_or(0).saturating_mul(512);
            if fs.f_bavail.saturating_mul(fs.f_frsize) < len.saturating_sub(held) {
                return Err(no_space());
            }
            set_len(file, path, len)?;
            Ok(Allocated::Sparse)
        }
        Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => {
            // Gives back what was reserved before the disk was full.
            if size_of_file(file, path)? > before {
                set_len(file, path, before)?;
            }
            Err(no_space())
        }
        Err(e) => Err(MapError::file("allocate room for", path, e)),
    }
}

/// Changes the length without reserving disk: a longer file ends in a hole.
///
/// # Errors
/// When the file system refuses the length.
pub fn set_len(file: &File, path: &Path, len: u64) -> Result<(), MapError> {
    retry(|| rustix::fs::ftruncate(file, len)).map_err(|e| MapError::file("set the length of", path, e))
}

/// Frees the disk under `len` bytes from `offset`, which read as zeroes afterwards; the file's length stays.
/// False when the file system cannot do that.
///
/// # Errors
/// When the file system refuses for another reason.
pub fn punch_hole(file: &File, path: &Path, offset: u64, len: u64) -> Result<bool, MapError> {
    if len == 0 {
        return Ok(true);
    }
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match retry(|| fallocate(file, flags, offset, len)) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(e) => Err(MapError::file("make a hole in", path, e)),
    }
}

/// Writes data and whatever is needed to find it again (length, allocation) to the disk and waits, without
/// times and the like (`fdatasync`).
///
/// # Errors
/// When the disk failed.
pub fn sync_data(file: &File, path: &Path) -> Result<(), MapError> {
    retry(|| rustix::fs::fdatasync(file)).map_err(|e| MapError::file("write back", path, e))
}

/// A part of a file that holds data, between holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// The parts of a file that hold data, in order, found as it is asked for them (`SEEK_DATA`, `SEEK_HOLE`). A
/// file system that does not know holes shows one extent. Moves the file's position.
#[derive(Debug)]
pub struct Extents<'a> {
    file: &'a File,
    path: &'a Path,
    at: u64,
    size: u64,
}

/// The extents of a file. `path` is for messages only.
///
/// # Errors
/// When the file's length cannot be read.
pub fn extents<'a>(file: &'a File, path: &'a Path) -> Result<Extents<'a>, MapError> {
    Ok(Extents { file, path, at: 0, size: size_of_file(file, path)? })
}

impl Extents<'_> {
    fn find(&mut self) -> Result<Option<Extent>, MapError> {
        if self.at >= self.size {
            return Ok(None);
        }
        let offset = match rustix::fs::seek(self.file, SeekFrom::Data(self.at)) {
            Ok(at) => at,
            // Nothing but a hole up to the end, or the file has become shorter.
            Err(Errno::NXIO) => return Ok(None),
            Err(Errno::INVAL) => self.at,
            Err(e) => return Err(MapError::file("look for holes in", self.path, e)),
        };
        let end = match rustix::fs::seek(self.file, SeekFrom::Hole(offset)) {
            Ok(end) => end.min(self.size),
            Err(Errno::NXIO) => return Ok(None),
            Err(Errno::INVAL) => self.size,
            Err(e) => return Err(MapError::file("look for holes in", self.path, e)),
        };
        // Data beyond the length at the start: the file has grown, which is not ours to follow.
        let len = end.saturating_sub(offset);
        Ok((len > 0).then_some(Extent { offset, len }))
    }
}

impl Iterator for Extents<'_> {
    type Item = Result<Extent, MapError>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.find();
        self.at = match &found {
            Ok(Some(e)) => e.offset + e.len,
            _ => self.size,
        };
        found.transpose()
    }
}

/// Tries again after signals; they come from outside at a bounded rate, so this ends.
fn retry<T>(mut f: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match f() {
            Err(Errno::INTR) => {}
            r => return r,
        }
    }
}
