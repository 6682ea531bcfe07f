//! Memory-mapped files that survive truncation by other processes.
//!
//! A mapped file can shrink under its mapping (another process truncates it) or run out of disk; the kernel
//! then raises SIGBUS at the access. [`MappedFile`] survives that: zeroes appear in place of the lost page,
//! and [`MappedFile::fault`] tells so. See [`mod@file`] for allocating, holes and syncing.

pub mod file;
mod sigbus;
#[cfg(test)]
mod tests;

pub use sigbus::MAX_MAPPINGS;
pub(crate) use sigbus::hand_over;

use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Why a file or its mapping failed.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The system refused an operation.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// The operation, as a verb.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Not enough room on the file system.
    #[error("no room for {bytes} bytes for {path}: free some space, or choose another file system")]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Bytes asked for.
        bytes: u64,
    },
    /// A window that is not inside the file.
    #[error("bytes {offset} to {offset}+{len} of {path} are outside the file, which has {size}")]
    Outside {
        /// The file.
        path: PathBuf,
        /// First byte of the window.
        offset: u64,
        /// Bytes in the window.
        len: u64,
        /// Bytes in the file.
        size: u64,
    },
    /// More mappings than the fault handler watches.
    #[error("{MAX_MAPPINGS} mappings are in use already: map fewer files at a time")]
    TooMany,
}

impl MapError {
    fn file(what: &'static str, path: &Path, e: impl Into<io::Error>) -> MapError {
        MapError::File { what, path: path.to_owned(), source: e.into() }
    }
}

/// Part of a file in memory, shared with the file: what others write to the file appears here, and what is
/// written here appears in the file. Unmapped when dropped.
///
/// Bytes are reached by copying only. A Rust reference to them would be unsound, since other processes may
/// change them at any time.
#[derive(Debug)]
pub struct MappedFile {
    /// Page-aligned start of the mapping; null for an empty one.
    base: *mut u8,
    mapped: usize,
    /// Bytes between `base` and the first byte asked for.
    lead: usize,
    len: usize,
    writable: bool,
    path: PathBuf,
    guard: Option<sigbus::Slot>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and everything that changes it takes `&mut`
// or is a system call that may be made from any thread.
unsafe impl Send for MappedFile {}
// SAFETY: as above; `&self` gives only copies out of it, which race with other processes in any case, and
// writes take `&mut self`.
unsafe impl Sync for MappedFile {}

impl MappedFile {
    /// Maps `len` bytes from `offset` of `file` for reading. `path` is for messages only.
    ///
    /// # Errors
    /// [`MapError::Outside`] when the file is shorter, [`MapError::TooMany`] beyond [`MAX_MAPPINGS`],
    /// [`MapError::File`] when the system refuses.
    pub fn source(file: &File, path: &Path, offset: u64, len: u64) -> Result<MappedFile, MapError> {
        MappedFile::map(file, path, offset, len, false)
    }

    /// Maps a whole file for reading.
    ///
    /// # Errors
    /// As [`MappedFile::source`].
    pub fn open_source(path: &Path) -> Result<MappedFile, MapError> {
        let file = File::open(path).map_err(|e| MapError::file("open", path, e))?;
        let size = size_of_file(&file, path)?;
        MappedFile::source(&file, path, 0, size)
    }

    /// Maps `len` bytes from `offset` of `file` for reading and writing. The file must have that length;
    /// [`file::allocate`] gives it. `path` is for messages only.
    ///
    /// # Errors
    /// As [`MappedFile::source`].
    pub fn destination(file: &File, path: &Path, offset: u64, len: u64) -> Result<MappedFile, MapError> {
        MappedFile::map(file, path, offset, len, true)
    }

    fn map(file: &File, path: &Path, offset: u64, len: u64, writable: bool) -> Result<MappedFile, MapError> {
        let size = size_of_file(file, path)?;
        let outside = || MapError::Outside { path: path.to_owned(), offset, len, size };
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(outside());
        }
        let lead = offset % sigbus::page_size() as u64;
        let mapped = usize::try_from(len + lead).ok().filter(|n| *n <= isize::MAX as usize);
        let mapped = mapped.ok_or_else(outside)?;
        let (lead, len) = (lead as usize, len as usize);
        let mut map = MappedFile {
            base: core::ptr::null_mut(),
            mapped,
            lead,
            len,
            writable,
            path: path.to_owned(),
            guard: None,
        };
        if len == 0 {
            // The kernel does not map nothing.
            map.mapped = 0;
            return Ok(map);
        }
        // Before the mapping exists, so that no access can come between.
        let slot = sigbus::reserve(writable).ok_or(MapError::TooMany)?;
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing that exists.
        let base = unsafe {
            let null = core::ptr::null_mut();
            rustix::mm::mmap(null, mapped, prot, MapFlags::SHARED, file, offset - lead as u64)
        };
        map.base = base.map_err(|e| MapError::file("map", path, e))?.cast();
        slot.watch(map.base as usize, mapped);
        map.guard = Some(slot);
        Ok(map)
    }

    /// The first byte; dangling when the mapping is empty. Readable, and writable if [`Self::writable`], until
    /// the mapping is dropped.
    pub fn as_ptr(&self) -> *mut u8 {
        if self.base.is_null() {
            return core::ptr::NonNull::dangling().as_ptr();
        }
        // SAFETY: `lead` is less than the mapping's length.
        unsafe { self.base.add(self.lead) }
    }

    /// Bytes in the window.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the mapping may be written.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// Whether an access has met a page that the file no longer has (or the disk has no room for). Zeroes
    /// were read in its place, and what was written to it is lost.
    pub fn fault(&self) -> bool {
        self.guard.as_ref().is_some_and(sigbus::Slot::faulted)
    }

    /// Copies bytes out, from `offset` on. False, and nothing copied, when they are not all inside. Check
    /// [`Self::fault`] afterwards.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        if offset.checked_add(out.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: the range is inside the mapping, and `out` is Rust memory that cannot overlap it.
        unsafe { core::ptr::copy_nonoverlapping(self.as_ptr().add(offset), out.as_mut_ptr(), out.len()) };
        true
    }

    /// Copies bytes in, from `offset` on. False, and nothing copied, when they do not all fit inside or the
    /// mapping is read-only. Check [`Self::fault`] afterwards.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> bool {
        if !self.writable || offset.checked_add(bytes.len()).is_none_or(|end| end > self.len) {
            return false;
        }
        // SAFETY: the range is inside the mapping, which is writable, and `bytes` cannot overlap it.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.as_ptr().add(offset), bytes.len()) };
        true
    }

    /// Tells the kernel that the whole is read or written in order: it reads further ahead.
    ///
    /// # Errors
    /// When the kernel does not take advice; harmless.
    pub fn advise_sequential(&self) -> Result<(), MapError> {
        self.advise(0, self.len, Advice::Sequential, "advise on")
    }

    /// Brings a range into memory and into the page tables at once, which is cheaper than a fault for each
    /// page: 36 Gbit/s into a populated mapping against 13 into a faulting one.
    ///
    /// # Errors
    /// On kernels before 5.14, and where a page cannot be had.
    pub fn populate(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let advice = if self.writable { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
        self.advise(offset, len, advice, "populate")
    }

    /// Takes a range out of the page tables; the file keeps the data. Bounds the memory that a walk through
    /// a huge file is charged for.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn release(&self, offset: usize, len: usize) -> Result<(), MapError> {
        self.advise(offset, len, Advice::LinuxDontNeed, "release")
    }

    /// Writes a range to the disk and waits for it (`msync`). For the file's length and allocation too, use
    /// [`file::sync_data`].
    ///
    /// # Errors
    /// When the disk failed.
    pub fn sync(&self, offset: usize, len: usize) -> Result<(), MapError> {
        let Some((at, len)) = self.pages(offset, len) else { return Ok(()) };
        // SAFETY: the range lies inside our mapping; syncing changes no memory.
        unsafe { rustix::mm::msync(at.cast(), len, MsyncFlags::SYNC) }
            .map_err(|e| MapError::file("write back", &self.path, e))
    }

    fn advise(&self, offset: usize, len: usize, advice: Advice, what: &'static str) -> Result<(), MapError> {
        let Some((at, len)) = self.pages(offset, len) else { return Ok(()) };
        // SAFETY: the range lies inside our mapping, and none of the advice used here destroys data in a
        // shared mapping of a file.
        unsafe { rustix::mm::madvise(at.cast(), len, advice) }
            .map_err(|e| MapError::file(what, &self.path, e))
    }

    /// The pages that a range touches, cut to the mapping; `None` when it is empty.
    fn pages(&self, offset: usize, len: usize) -> Option<(*mut u8, usize)> {
        let start = offset.min(self.len);
        let end = offset.saturating_add(len).min(self.len) + self.lead;
        let start = (start + self.lead) / sigbus::page_size() * sigbus::page_size();
        if self.base.is_null() || start >= end {
            return None;
        }
        // SAFETY: `start` is below `end`, which is at most `lead + len`, the mapping's length.
        Some((unsafe { self.base.add(start) }, end - start))
    }
}

// SAFETY: pointer and length never change while the object lives; the mapping may be read from any thread, and
// written when it was made so; only raw pointers reach it; a page that the file lost is replaced by zeroes and
// reported by `fault`.
unsafe impl verbs::Backing for MappedFile {
    fn as_ptr(&self) -> *mut u8 {
        MappedFile::as_ptr(self)
    }
    fn len(&self) -> usize {
        self.len
    }
    fn writable(&self) -> bool {
        self.writable
    }
    fn fault(&self) -> bool {
        MappedFile::fault(self)
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // First, so that the handler no longer takes the range for ours.
        self.guard = None;
        if !self.base.is_null() {
            // SAFETY: the mapping is ours, whole, and nobody holds references into it. Failure would mean
            // that it is not mapped, which leaves nothing to do.
            let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.mapped) };
        }
    }
}

fn size_of_file(file: &File, path: &Path) -> Result<u64, MapError> {
    let stat = rustix::fs::fstat(file).map_err(|e| MapError::file("examine", path, e))?;
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}
