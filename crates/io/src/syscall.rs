//! Direct system calls for single messages, past the C library's cancellation points.
//!
//! Those are points at which a thread may be cancelled (pthreads(7)): in a process of several threads they mark the calling one before
//! and after each call, by an atomic operation. Nobody cancels threads here, and a look in vain takes hardly longer than that.

use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// What a system call gave.
fn outcome(n: libc::c_long) -> Result<usize, Errno> {
    usize::try_from(n).map_err(|_| Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Receives into one place, from whom is written to `name` (recvfrom(2)).
///
/// # Safety
/// `at` names `len` bytes that may be written until this returns, and to which there is no other reference. `name` and `name_len` are
/// both null, or as recvfrom(2) has them.
#[inline]
pub unsafe fn recvfrom(
    fd: &OwnedFd,
    (at, len): (*mut u8, usize),
    flags: i32,
    (name, name_len): (*mut libc::sockaddr, *mut libc::socklen_t),
) -> Result<usize, Errno> {
    // SAFETY: by this function's contract.
    outcome(unsafe { libc::syscall(libc::SYS_recvfrom, fd.as_raw_fd(), at, len, flags, name, name_len) })
}

/// Sends from one place, to `name` if that is not null (sendto(2)).
///
/// # Safety
/// `at` names `len` bytes that may be read until this returns. `name` is null and `name_len` 0, or they name an address.
#[inline]
pub unsafe fn sendto(
    fd: &OwnedFd,
    (at, len): (*const u8, usize),
    flags: i32,
    (name, name_len): (*const libc::sockaddr, libc::socklen_t),
) -> Result<usize, Errno> {
    // SAFETY: by this function's contract.
    outcome(unsafe { libc::syscall(libc::SYS_sendto, fd.as_raw_fd(), at, len, flags, name, name_len) })
}

/// Reads into several places (readv(2)).
///
/// # Safety
/// Each element names memory that may be written until this returns, and no Rust reference to it is live.
pub unsafe fn readv(fd: &OwnedFd, places: &[libc::iovec]) -> Result<usize, Errno> {
    let n = places.len().min(libc::UIO_MAXIOV as usize);
    // SAFETY: the array has `n` elements, each of which names memory that may be written, by this function's contract.
    outcome(unsafe { libc::syscall(libc::SYS_readv, fd.as_raw_fd(), places.as_ptr(), n) })
}

/// Sends a message (sendmsg(2)).
///
/// # Safety
/// What `msg` names may be read until this returns.
pub unsafe fn sendmsg(fd: &OwnedFd, msg: &libc::msghdr, flags: i32) -> Result<usize, Errno> {
    // SAFETY: by this function's contract.
    outcome(unsafe { libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), core::ptr::from_ref(msg), flags) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::{null, null_mut};

    #[test]
    fn calls_transfer_bytes_and_return_system_errors() {
        let (kind, flags) = (rustix::net::SocketType::DGRAM, rustix::net::SocketFlags::CLOEXEC);
        let family = rustix::net::AddressFamily::UNIX;
        let (a, b) = rustix::net::socketpair(family, kind, flags, None).expect("a pair");
        let mut buf = [0u8; 8];
        let mut look = || {
            let at = (buf.as_mut_ptr(), buf.len());
            // SAFETY: the buffer is there until the call returns; nobody is asked for.
            let n = unsafe { recvfrom(&b, at, libc::MSG_DONTWAIT, (null_mut(), null_mut())) }?;
            Ok(buf[..n].to_vec())
        };
        assert_eq!(look(), Err(Errno::AGAIN));
        let words = *b"abcde";
        // SAFETY: the words are there until the call returns.
        assert_eq!(unsafe { sendto(&a, (words.as_ptr(), 3), 0, (null(), 0)) }, Ok(3));
        assert_eq!(look(), Ok(b"abc".to_vec()));
        let mut part = libc::iovec { iov_base: words.as_ptr().cast_mut().cast(), iov_len: 5 };
        // SAFETY: all zeroes is a value of this structure of integers and pointers.
        let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
        (msg.msg_iov, msg.msg_iovlen) = (&raw mut part, 1);
        // SAFETY: the words are there until the call returns.
        assert_eq!(unsafe { sendmsg(&a, &msg, 0) }, Ok(5));
        let (mut x, mut y) = ([0u8; 2], [0u8; 8]);
        let places = [(x.as_mut_ptr(), x.len()), (y.as_mut_ptr(), y.len())]
            .map(|(at, len)| libc::iovec { iov_base: at.cast(), iov_len: len });
        // SAFETY: both are there until the call returns, and not used before.
        assert_eq!(unsafe { readv(&b, &places) }, Ok(5));
        assert_eq!((&x, &y[..3]), (b"ab", &b"cde"[..]));
        drop(b);
        // SAFETY: the words are there until the call returns.
        let sent = unsafe { sendto(&a, (words.as_ptr(), 1), libc::MSG_NOSIGNAL, (null(), 0)) };
        assert_eq!(sent, Err(Errno::CONNREFUSED));
    }
}
