//! A preloaded object that shows programs the device nodes of RDMA and a few files of `/sys`, which are not there.
//!
//! `longhaul run` sets it as LD_PRELOAD. Its functions stand before those of the C library (hence no versions) and pass everything on
//! but `/dev/infiniband/rdma_cm`, whose commands go to the connection manager inside `libibverbs.so.1` (`ffi/verbs`), the character
//! devices' `stat`, and the files of `longhaul0`. It has no state but a bit for each descriptor.

mod next;
#[cfg(not(test))]
mod status;

use core::ffi::{CStr, c_char, c_int, c_void};
use next::{Manager, manager, manager_in_use, real};
use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors above this number are never ours.
const MAX_DESCRIPTORS: usize = 1 << 20;

/// Bytes of the command by which librdmacm waits for an event.
const GET_EVENT_LEN: usize = 16;

/// One bit for each descriptor: it is the connection manager's.
static OURS: [AtomicU64; MAX_DESCRIPTORS / 64] = [const { AtomicU64::new(0) }; MAX_DESCRIPTORS / 64];

fn bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OURS.get(fd / 64)?, 1 << (fd % 64)))
}

fn is_ours(fd: c_int) -> bool {
    bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Marks a descriptor. False: it cannot be.
fn take(fd: c_int) -> bool {
    bit(fd).map(|(word, bit)| word.fetch_or(bit, Ordering::Relaxed)).is_some()
}

/// Takes the mark off, once.
fn release(fd: c_int) {
    if !is_ours(fd) {
        return;
    }
    let Some((word, bit)) = bit(fd) else { return };
    if word.fetch_and(!bit, Ordering::Relaxed) & bit != 0
        && let Some(Manager { close, .. }) = manager()
    {
        // SAFETY: a function of ours that takes any number.
        unsafe { close(fd) };
    }
}

/// What a path is that is not on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Special {
    ConnectionManager,
    Verbs,
    /// Perhaps: the library knows.
    Text,
}

fn special(path: &CStr) -> Option<Special> {
    match path.to_bytes() {
        b"/dev/infiniband/rdma_cm" => Some(Special::ConnectionManager),
        b"/dev/infiniband/uverbs0" => Some(Special::Verbs),
        p if p.starts_with(b"/sys/class/infiniband/longhaul0/") => Some(Special::Text),
        b"/sys/class/misc/rdma_cm/abi_version" | b"/sys/class/infiniband_verbs/abi_version" => {
            Some(Special::Text)
        }
        _ => None,
    }
}

/// The same of a path that C has given.
///
/// # Safety
/// It is null or ends with a zero.
unsafe fn special_at<'a>(path: *const c_char) -> Option<(Special, &'a CStr)> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    special(path).map(|s| (s, path))
}

/// What a file of `/sys` says. `None`: it is not one of ours.
fn text(path: &CStr) -> Option<Vec<u8>> {
    let mut text = vec![0u8; 256];
    // SAFETY: a function of ours, with a path that ends with a zero and a buffer with its size.
    let n = unsafe { (manager()?.sysfs)(path.as_ptr(), text.as_mut_ptr().cast(), text.len()) };
    text.truncate(usize::try_from(n).ok()?);
    Some(text)
}

/// A descriptor from which a text can be read.
fn descriptor_with(text: &[u8], flags: c_int) -> Option<c_int> {
    let kind = if flags & libc::O_CLOEXEC != 0 { libc::MFD_CLOEXEC } else { 0 };
    // SAFETY: a descriptor that is ours alone until it is returned, and the text with its length.
    unsafe {
        let fd = libc::memfd_create(c"longhaul".as_ptr(), kind);
        if fd < 0 {
            return None;
        }
        let n = libc::pwrite(fd, text.as_ptr().cast(), text.len(), 0);
        if n == text.len() as isize { Some(fd) } else { None }
    }
}

/// Opens what is not on the disk. `None`: it is for the C library.
///
/// # Safety
/// As of [`special_at`].
unsafe fn open_special(path: *const c_char, flags: c_int) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let (special, path) = unsafe { special_at(path)? };
    match special {
        Special::ConnectionManager => {
            // SAFETY: a function of ours that takes any flags.
            let fd = unsafe { (manager()?.open)(flags) };
            if fd >= 0 && !take(fd) {
                // SAFETY: as above; a descriptor that was opened just now.
                unsafe {
                    (manager()?.close)(fd);
                    real::close(fd);
                    *libc::__errno_location() = libc::EMFILE;
                }
                return Some(-1);
            }
            Some(fd)
        }
        Special::Verbs => None,
        Special::Text => descriptor_with(&text(path)?, flags),
    }
}

// The third argument of `open` is there only with some flags. On the machines that are supported it is passed as any third argument
// is, and reading one that was not given does no harm: it is passed on, and looked at by nobody.

/// `open` of the C library.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's.
    unsafe { open_special(path, flags).unwrap_or_else(|| real::open(path, flags, mode)) }
}

/// `open64` of the C library.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's.
    unsafe { open_special(path, flags).unwrap_or_else(|| real::open64(path, flags, mode)) }
}

/// `openat` of the C library. Names of ours are absolute.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn openat(at: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's.
    unsafe { open_special(path, flags).unwrap_or_else(|| real::openat(at, path, flags, mode)) }
}

/// `openat64` of the C library.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn openat64(at: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    // SAFETY: the caller's.
    unsafe { open_special(path, flags).unwrap_or_else(|| real::openat64(at, path, flags, mode)) }
}

/// A stream of a text of ours.
///
/// # Safety
/// As of [`special_at`].
unsafe fn stream_of(path: *const c_char) -> Option<*mut libc::FILE> {
    // SAFETY: the caller's promise.
    let (Special::Text, path) = (unsafe { special_at(path)? }) else { return None };
    let fd = descriptor_with(&text(path)?, libc::O_CLOEXEC)?;
    // SAFETY: a descriptor that was opened just now.
    Some(unsafe { libc::fdopen(fd, c"r".as_ptr()) })
}

/// `fopen` of the C library.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fopen(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the caller's.
    unsafe { stream_of(path).unwrap_or_else(|| real::fopen(path, mode)) }
}

/// `fopen64` of the C library.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fopen64(path: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: the caller's.
    unsafe { stream_of(path).unwrap_or_else(|| real::fopen64(path, mode)) }
}

/// `write` of the C library.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, len: usize) -> isize {
    if is_ours(fd)
        && let Some(m) = manager()
    {
        // SAFETY: the caller's bytes.
        return unsafe { (m.write)(fd, bytes, len) };
    }
    // SAFETY: the caller's; then the C library's variable of this thread.
    let (written, error) = unsafe { (real::write(fd, bytes, len), *libc::__errno_location()) };
    if written < 0
        && error == libc::EBADF
        && len == GET_EVENT_LEN
        && let Some(m) = manager_in_use()
    {
        // It says EBADF, too, unless the program is at its end: one that has freed its event channel may wait for an event on any
        // number.
        // SAFETY: the caller's bytes.
        return unsafe { (m.write)(fd, bytes, len) };
    }
    written
}

/// `close` of the C library.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    release(fd);
    // SAFETY: the caller's.
    unsafe { real::close(fd) }
}

/// `dup2` of the C library, which closes what has the new number.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old != new {
        release(new);
    }
    // SAFETY: the caller's.
    unsafe { real::dup2(old, new) }
}

/// `dup3` of the C library.
///
/// # Safety
/// As of the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if old != new {
        release(new);
    }
    // SAFETY: the caller's.
    unsafe { real::dup3(old, new, flags) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_paths_are_special() {
        assert_eq!(special(c"/dev/infiniband/rdma_cm"), Some(Special::ConnectionManager));
        assert_eq!(special(c"/dev/infiniband/uverbs0"), Some(Special::Verbs));
        assert_eq!(special(c"/sys/class/infiniband/longhaul0/ports/1/state"), Some(Special::Text));
        for other in [c"/dev/infiniband/rdma_cm0", c"/sys/class/infiniband/mlx5_0/x", c"", c"rdma_cm"] {
            assert_eq!(special(other), None, "{other:?}");
        }
    }

    #[test]
    fn marks_of_descriptors_are_separate_and_bounded() {
        assert!(take(65) && is_ours(65) && !is_ours(64) && !is_ours(66));
        release(65);
        assert!(!is_ours(65));
        assert!(!take(-1) && !take(1 << 20) && !is_ours(c_int::MAX));
    }

    #[test]
    fn a_text_can_be_read_from_its_descriptor() {
        let fd = descriptor_with(b"4\n", libc::O_CLOEXEC).expect("a descriptor");
        let mut read = [0u8; 8];
        // SAFETY: the buffer, with its size.
        let n = unsafe { libc::read(fd, read.as_mut_ptr().cast(), read.len()) };
        assert_eq!((n, &read[..2]), (2, &b"4\n"[..]));
        // SAFETY: opened above.
        assert_eq!(unsafe { close(fd) }, 0);
    }
}
