//! Files that one transfer at a time has.

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};

/// A file with the lock that transfers take. Where a file system has no locks, transfers have none either.
#[derive(Debug)]
pub(crate) struct LockedFile(File);

impl LockedFile {
    /// Takes the lock without waiting.
    ///
    /// # Errors
    /// The system's; `EAGAIN` while another transfer has it.
    pub(crate) fn new(file: File) -> io::Result<Self> {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(LockedFile(file)),
            Err(e) => Err(e.into()),
        }
    }
}

/// Closing is not enough: a child that is being started holds every open file until it is executed, and the lock with it.
impl Drop for LockedFile {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl Deref for LockedFile {
    type Target = File;
    fn deref(&self) -> &File {
        &self.0
    }
}

impl AsFd for LockedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_ends_with_its_holder_also_when_somebody_else_has_the_file_open() {
        let d = tempfile::tempdir().unwrap();
        let path = d.path().join("f");
        let first = LockedFile::new(File::create(&path).unwrap()).unwrap();
        // As a child has it between fork and exec.
        let inherited = first.try_clone().unwrap();
        let again = LockedFile::new(File::open(&path).unwrap());
        assert_eq!(again.err().map(|e| e.kind()), Some(io::ErrorKind::WouldBlock));
        drop(first);
        LockedFile::new(File::open(&path).unwrap()).unwrap();
        drop(inherited);
    }
}
