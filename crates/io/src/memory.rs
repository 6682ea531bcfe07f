//! Allocation under an address space limit (`ulimit -v`, RLIMIT_AS).
//!
//! What is large is asked for here, where a refusal is an error like any other and something is left for what is small. What is small
//! is allocated all over the program, and nobody could go on without it: there [`ExitOnOutOfMemory`] ends the program in words instead of
//! aborting it.

use rustix::mm::{MapFlags, ProtFlags};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io;

/// Address space in bytes that large allocations leave free, so that they fail with an error and can be retried
/// before a small allocation fails, which ends the program.
pub const HEADROOM: u64 = 64 << 20;
/// Below this limit of address space, threads share one arena of the C library: it would else set 64 MiB aside for each.
const SMALL_SPACE: u64 = 4 << 30;
/// How a program ends that gets no memory: as when anything else of the system fails.
const NO_MEMORY: i32 = 7;

/// Whether `len` bytes could be mapped, and as many as `left` beside. Nothing is.
///
/// # Errors
/// What the system says if not.
pub fn has_room(len: u64, left: u64) -> io::Result<()> {
    let all =
        len.checked_add(left).and_then(|n| usize::try_from(n).ok()).ok_or(io::ErrorKind::InvalidInput)?;
    // Without access, so that nothing but address space is asked for.
    // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing that exists.
    let base = unsafe {
        rustix::mm::mmap_anonymous(core::ptr::null_mut(), all, ProtFlags::empty(), MapFlags::PRIVATE)
    }?;
    // SAFETY: the mapping made above, whole, that nobody else knows of.
    unsafe { rustix::mm::munmap(base, all) }?;
    Ok(())
}

/// `len` zero bytes; [`HEADROOM`] more must be there.
///
/// # Errors
/// The system has no memory.
pub fn zeroed(len: usize) -> io::Result<Vec<u8>> {
    has_room(len as u64, HEADROOM)?;
    Ok(vec![0; len])
}

/// Uses one malloc arena for all threads when address space is small. Call it before there are threads.
pub fn limit_malloc_arenas() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current;
    #[cfg(target_env = "gnu")]
    if limit.is_some_and(|l| l < SMALL_SPACE) {
        // SAFETY: takes integers only; the C library locks what it changes.
        let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }
    #[cfg(not(target_env = "gnu"))]
    let _ = limit;
}

/// The system's allocator for programs that cannot continue after a failed allocation: prints a message and exits
/// with code 7.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExitOnOutOfMemory;

// SAFETY: all is the system allocator's, whose contract this passes on; it does not return where that returns null.
unsafe impl GlobalAlloc for ExitOnOutOfMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the system allocator asks for.
        given(unsafe { System.alloc(layout) }, layout.size())
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        given(unsafe { System.realloc(at, layout, size) }, size)
    }
}

#[inline]
fn given(at: *mut u8, size: usize) -> *mut u8 {
    if at.is_null() {
        exit_out_of_memory(size);
    }
    at
}

/// Says so without allocating, and ends the program: what it has open, the kernel closes, and files that were not complete have
/// not got their names yet.
#[cold]
fn exit_out_of_memory(size: usize) -> ! {
    let mut digits = [0; 20];
    let (mut n, mut from) = (size, digits.len());
    while from == digits.len() || n > 0 {
        from -= 1;
        digits[from] = b'0' + (n % 10) as u8;
        n /= 10;
    }
    let text = [
        &b"longhaul: the system gives this program no more memory ("[..],
        &digits[from..],
        b" bytes were asked for); raise its limit (ulimit -v, MemoryMax of its service), then repeat the command\n",
    ];
    for part in text {
        // SAFETY: pointer and length describe `part`. Whoever cannot be told cannot.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: takes an integer only, and runs nothing of the program's.
    unsafe { libc::_exit(NO_MEMORY) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_allocation_is_an_error_and_memory_is_zeroed() {
        let nobody_has = (isize::MAX as u64) / 2;
        assert_eq!(has_room(nobody_has, HEADROOM).expect_err("too much").raw_os_error(), Some(libc::ENOMEM));
        assert!(has_room(u64::MAX, HEADROOM).is_err());
        assert!(zeroed(nobody_has as usize).is_err());
        assert_eq!(zeroed(10_000).expect("memory"), vec![0; 10_000]);
    }

    #[test]
    fn allocator_forwards_to_the_system() {
        let layout = Layout::from_size_align(100, 8).expect("a layout");
        // SAFETY: a layout of some size; what it gives is used within its bounds, and given back once with its layout.
        unsafe {
            let at = ExitOnOutOfMemory.alloc_zeroed(layout);
            assert!((0..100).all(|i| *at.add(i) == 0));
            at.add(99).write(7);
            let at = ExitOnOutOfMemory.realloc(at, layout, 200);
            assert_eq!(*at.add(99), 7);
            ExitOnOutOfMemory.dealloc(at, Layout::from_size_align(200, 8).expect("a layout"));
        }
    }
}
