//! The family of `stat`: device nodes are character devices, texts are files.

use crate::next::pass_on;
use crate::{Special, is_ours, special_at, text};
use core::ffi::{CStr, c_char, c_int, c_void};
use libc::{stat as stat_t, stat64 as stat64_t};
use std::sync::atomic::AtomicPtr;

mod real {
    use super::*;

    pass_on! {
        stat(path: *const c_char, out: *mut stat_t) -> c_int, -1;
        stat64(path: *const c_char, out: *mut stat64_t) -> c_int, -1;
        lstat(path: *const c_char, out: *mut stat_t) -> c_int, -1;
        lstat64(path: *const c_char, out: *mut stat64_t) -> c_int, -1;
        fstat(fd: c_int, out: *mut stat_t) -> c_int, -1;
        fstat64(fd: c_int, out: *mut stat64_t) -> c_int, -1;
        fstatat(at: c_int, path: *const c_char, out: *mut stat_t, flags: c_int) -> c_int, -1;
        fstatat64(at: c_int, path: *const c_char, out: *mut stat64_t, flags: c_int) -> c_int, -1;
        __xstat(version: c_int, path: *const c_char, out: *mut stat_t) -> c_int, -1;
        __xstat64(version: c_int, path: *const c_char, out: *mut stat64_t) -> c_int, -1;
        __lxstat(version: c_int, path: *const c_char, out: *mut stat_t) -> c_int, -1;
        __lxstat64(version: c_int, path: *const c_char, out: *mut stat64_t) -> c_int, -1;
        __fxstat(version: c_int, fd: c_int, out: *mut stat_t) -> c_int, -1;
        __fxstat64(version: c_int, fd: c_int, out: *mut stat64_t) -> c_int, -1;
        access(path: *const c_char, mode: c_int) -> c_int, -1;
    }
}

/// The numbers of a device: those of the kernel's own where it has one, which librdmacm compares, else usual ones.
fn number(special: Special) -> libc::dev_t {
    let (file, usual) = match special {
        Special::ConnectionManager => ("/sys/class/misc/rdma_cm/dev", (10, 58)),
        _ => ("/sys/class/infiniband_verbs/uverbs0/dev", (231, 192)),
    };
    let known = std::fs::read_to_string(file).ok().and_then(|text| {
        let (major, minor) = text.trim().split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    let (major, minor) = known.unwrap_or(usual);
    libc::makedev(major, minor)
}

/// The two structures of the C library, which have the same fields here.
trait Status {
    fn set(&mut self, mode: u32, device: libc::dev_t);
}
macro_rules! status {
    ($kind:ty) => {
        impl Status for $kind {
            fn set(&mut self, mode: u32, device: libc::dev_t) {
                (self.st_mode, self.st_rdev, self.st_nlink) = (mode, device, 1);
            }
        }
    };
}
status!(stat_t);
status!(stat64_t);

fn put<T: Status>(special: Special, out: &mut T) {
    match special {
        Special::Text => out.set(libc::S_IFREG | 0o444, 0),
        _ => out.set(libc::S_IFCHR | 0o666, number(special)),
    }
}

/// The status of a path that is not on the disk. `None`: it is for the C library.
///
/// # Safety
/// As of `stat`.
unsafe fn of_path<T: Status>(path: *const c_char, out: *mut T) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let (special, path) = unsafe { special_at(path)? };
    if special == Special::Text {
        text(path)?;
    } else {
        // Without our library there is no such device.
        crate::next::manager()?;
    }
    // SAFETY: the caller's structure, whose bytes are integers.
    unsafe {
        out.write_bytes(0, 1);
        put(special, out.as_mut()?);
    }
    Some(0)
}

/// The status of a descriptor, of which the C library has told its own.
///
/// # Safety
/// As of `fstat`.
unsafe fn of_descriptor<T: Status>(fd: c_int, out: *mut T, result: c_int) -> c_int {
    if result == 0 && is_ours(fd) {
        // SAFETY: the caller's structure, which the C library has filled in.
        if let Some(out) = unsafe { out.as_mut() } {
            put(Special::ConnectionManager, out);
        }
    }
    result
}

macro_rules! paths {
    ($($name:ident ( $($arg:ident : $kind:ty),* ; $path:ident, $out:ident );)*) => {
        $(
            /// As the C library's.
            ///
            /// # Safety
            /// As of the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $kind),*) -> c_int {
                // SAFETY: the caller's.
                unsafe { of_path($path, $out).unwrap_or_else(|| real::$name($($arg),*)) }
            }
        )*
    };
}

paths! {
    stat(path: *const c_char, out: *mut stat_t; path, out);
    stat64(path: *const c_char, out: *mut stat64_t; path, out);
    lstat(path: *const c_char, out: *mut stat_t; path, out);
    lstat64(path: *const c_char, out: *mut stat64_t; path, out);
    fstatat(at: c_int, path: *const c_char, out: *mut stat_t, flags: c_int; path, out);
    fstatat64(at: c_int, path: *const c_char, out: *mut stat64_t, flags: c_int; path, out);
    __xstat(version: c_int, path: *const c_char, out: *mut stat_t; path, out);
    __xstat64(version: c_int, path: *const c_char, out: *mut stat64_t; path, out);
    __lxstat(version: c_int, path: *const c_char, out: *mut stat_t; path, out);
    __lxstat64(version: c_int, path: *const c_char, out: *mut stat64_t; path, out);
}

macro_rules! descriptors {
    ($($name:ident ( $($arg:ident : $kind:ty),* ; $fd:ident, $out:ident );)*) => {
        $(
            /// As the C library's.
            ///
            /// # Safety
            /// As of the C library's.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $kind),*) -> c_int {
                // SAFETY: the caller's.
                unsafe { of_descriptor($fd, $out, real::$name($($arg),*)) }
            }
        )*
    };
}

descriptors! {
    fstat(fd: c_int, out: *mut stat_t; fd, out);
    fstat64(fd: c_int, out: *mut stat64_t; fd, out);
    __fxstat(version: c_int, fd: c_int, out: *mut stat_t; fd, out);
    __fxstat64(version: c_int, fd: c_int, out: *mut stat64_t; fd, out);
}

/// As the C library's.
///
/// # Safety
/// As of the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        match special_at(path) {
            Some((Special::Text, p)) if text(p).is_some() => 0,
            Some((Special::ConnectionManager | Special::Verbs, _)) if crate::next::manager().is_some() => 0,
            _ => real::access(path, mode),
        }
    }
}
