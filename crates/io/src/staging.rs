//! Anonymous memory that a peer Writes to while worker threads copy out of it.
//!
//! What arrives for a file is staged here, checked by a worker, and written to the file by the same worker. So pages of
//! a new file are touched once, by `write`, instead of being cleared, mapped, copied to and read back; and staging that
//! is used again and again stays in the cache. `docs/performance.md` has the figures.

use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::io;
use std::sync::Arc;

/// Anonymous memory, shared by its clones and freed with the last.
///
/// Bytes are reached by copying only: while one clone is registered, its peer may Write to any of them at any time, and
/// what a copy then sees is unspecified. So whoever checks bytes must check and use one and the same copy.
#[derive(Clone, Debug)]
pub struct Staging(Arc<Region>);

#[derive(Debug)]
struct Region {
    base: *mut u8,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; nothing but copies reaches its bytes.
unsafe impl Send for Region {}
// SAFETY: as above; copies may race with those of a network loop, and only what they see is unspecified then.
unsafe impl Sync for Region {}

impl Staging {
    /// `len` zero bytes in memory, at least one and at most `isize::MAX`. Takes the page faults at once: call it where
    /// time does not press.
    ///
    /// # Errors
    /// The system has no memory, or `len` is out of range.
    pub fn new(len: usize) -> io::Result<Staging> {
        if len == 0 || isize::try_from(len).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        crate::memory::has_room(len as u64, crate::memory::HEADROOM)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing that exists.
        let base =
            unsafe { rustix::mm::mmap_anonymous(core::ptr::null_mut(), len, prot, MapFlags::PRIVATE) }?;
        let region = Region { base: base.cast(), len };
        for advice in [Advice::LinuxHugepage, Advice::LinuxPopulateWrite] {
            // SAFETY: the range is the mapping made above; neither advice changes what its bytes are. Kernels that do
            // not know one of them refuse it, and pages come when they are touched.
            let _ = unsafe { rustix::mm::madvise(base, len, advice) };
        }
        Ok(Staging(Arc::new(region)))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Never: there is at least one byte.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// Whether another clone of it exists.
    pub fn shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Copies bytes out, from `offset` on. False, and nothing copied, when they are not all inside.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        if offset.checked_add(out.len()).is_none_or(|end| end > self.0.len) {
            return false;
        }
        // SAFETY: the range is inside the mapping, which lives as long as `self`; `out` is Rust memory, which cannot
        // overlap it.
        unsafe { core::ptr::copy_nonoverlapping(self.0.base.add(offset), out.as_mut_ptr(), out.len()) };
        true
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, whole, and with the last clone nobody can reach it. Failure would mean that it is
        // not mapped, which leaves nothing to do.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}

// SAFETY: pointer and length never change while the object lives; the memory is readable and writable from any thread;
// only raw pointers reach it; anonymous memory cannot fail an access.
unsafe impl verbs::Backing for Staging {
    fn as_ptr(&self) -> *mut u8 {
        self.0.base
    }
    fn len(&self) -> usize {
        self.0.len
    }
    fn writable(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use verbs::Backing;

    #[test]
    fn clone_reads_placed_bytes_within_bounds() {
        let a = Staging::new(10_000).unwrap();
        let b = a.clone();
        assert!(a.shared() && a.writable() && Backing::len(&a) == 10_000 && !a.is_empty());
        // SAFETY: 9,990 to 10,000 are inside, and nobody else looks.
        unsafe { core::ptr::write_bytes(a.as_ptr().add(9_990), 7, 10) };
        drop(a);
        let mut out = [1; 20];
        assert!(b.read(9_980, &mut out) && out[..10] == [0; 10] && out[10..] == [7; 10]);
        assert!(!b.read(9_981, &mut out) && !b.read(usize::MAX, &mut out) && !b.shared());
        assert!(Staging::new(0).is_err() && Staging::new(usize::MAX).is_err());
    }

    /// In a process of its own, since a limit holds for all of it.
    #[test]
    fn limited_address_space_keeps_headroom() {
        const CHILD: &str = "LONGHAUL_TEST_STAGING_LIMITED";
        if std::env::var_os(CHILD).is_none() {
            let script = "ulimit -v 800000 && exec \"$0\" \"$@\"";
            let me = std::env::current_exe().unwrap();
            let mut c = std::process::Command::new("sh");
            c.args(["-c", script]).arg(me).args(["where_address_space_is_limited", "--nocapture"]);
            let out = c.env(CHILD, "1").output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            return;
        }
        let mut all = Vec::new();
        let error = loop {
            match Staging::new(96 << 20) {
                Ok(s) => all.push(s),
                Err(e) => break e,
            }
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
        assert!((1..8).contains(&all.len()), "{} of 96 MiB", all.len());
        // An allocation that fails ends the process.
        drop(std::hint::black_box(vec![1u8; crate::memory::HEADROOM as usize / 2]));
    }
}
