//! The program's memory, at addresses that it names in commands. As the kernel, with EFAULT for those that are not its own.

use crate::Errno;

const FAULT: Errno = Errno(libc::EFAULT);

/// Lets the kernel copy between this process and itself, which tells wrong addresses. `None`: it may not, as in some containers.
fn copy(is_write: bool, ours: *mut u8, theirs: u64, len: usize) -> Option<Result<(), Errno>> {
    let local = libc::iovec { iov_base: ours.cast(), iov_len: len };
    let remote = libc::iovec { iov_base: theirs as *mut libc::c_void, iov_len: len };
    let call = if is_write { libc::process_vm_writev } else { libc::process_vm_readv };
    // SAFETY: `ours` has `len` bytes; the kernel checks the other ones. They are the program's, which has asked for it.
    let copied = unsafe { call(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    if copied == len as isize {
        return Some(Ok(()));
    }
    let code = std::io::Error::last_os_error().raw_os_error();
    if copied < 0 && matches!(code, Some(libc::ENOSYS | libc::EPERM)) { None } else { Some(Err(FAULT)) }
}

/// Writes to the program's memory.
///
/// # Errors
/// EFAULT.
pub(super) fn write(at: u64, bytes: &[u8]) -> Result<(), Errno> {
    if at == 0 {
        return Err(FAULT);
    }
    copy(true, bytes.as_ptr().cast_mut(), at, bytes.len()).unwrap_or_else(|| {
        // SAFETY: the program names the place of a structure of this size.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
        Ok(())
    })
}

/// Reads the program's memory.
///
/// # Errors
/// EFAULT.
pub(super) fn read(at: u64, len: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; len];
    if len == 0 {
        return Ok(bytes);
    }
    if at == 0 {
        return Err(FAULT);
    }
    copy(false, bytes.as_mut_ptr(), at, len).unwrap_or_else(|| {
        // SAFETY: the program names a value of this size.
        unsafe { core::ptr::copy_nonoverlapping(at as *const u8, bytes.as_mut_ptr(), len) };
        Ok(())
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_addresses_are_told_from_right_ones() {
        let mut there = [0u8; 8];
        write(there.as_mut_ptr() as u64, &[1, 2, 3]).expect("own memory");
        assert_eq!(there, [1, 2, 3, 0, 0, 0, 0, 0]);
        assert_eq!(read(there.as_ptr() as u64, 3), Ok(vec![1, 2, 3]));
        for at in [0, 1, 4_096, u64::MAX - 7] {
            assert_eq!(write(at, &[1]), Err(FAULT), "{at}");
            assert_eq!(read(at, 1), Err(FAULT), "{at}");
        }
    }
}
