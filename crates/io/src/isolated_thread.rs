//! Threads with a file descriptor table of their own.
//!
//! Where threads share one table of descriptors, the system counts references to the file with each call that names one. A loop that
//! spins calls all the time: two threads beside it that only wait cost a round trip of 4 bytes over loopback 0.3 us of 7
//! (docs/performance.md). So those that only wait have a table to themselves.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::thread::JoinHandle;

/// Descriptors that every thread keeps: input, output, errors.
const STANDARD: RawFd = 3;

/// Starts a thread that runs `run` with `carried`. Of the descriptors that are open it has the standard three and `keeps`, under the
/// same numbers; what it opens itself nobody else has, but the threads that it starts. Signals from outside are left to others.
///
/// `keeps` names every descriptor in `carried`. All of them stay owned by the caller: they are not closed before the thread has
/// ended, and what the thread closes is closed for itself alone. Where the system does not offer tables of one's own (Linux before
/// 5.9), the thread shares the caller's as any other does.
///
/// # Errors
/// There are no threads left.
pub fn spawn<T: Send + 'static>(
    name: &str,
    carried: T,
    keeps: &[BorrowedFd<'_>],
    run: fn(T),
) -> io::Result<JoinHandle<()>> {
    let mut keeps: Vec<RawFd> = keeps.iter().map(BorrowedFd::as_raw_fd).collect();
    keeps.sort_unstable();
    std::thread::Builder::new().name(name.into()).spawn(move || {
        if let Err(error) = leave(&keeps) {
            tracing::debug!(%error, "a thread shares the table of descriptors");
        }
        run(carried);
    })
}

/// Gives this thread a table of its own, with nothing but the standard descriptors and these, in order.
fn leave(keeps: &[RawFd]) -> io::Result<()> {
    // Without this call, all that is open would stay open for as long as the thread runs.
    close(RawFd::MAX, RawFd::MAX)?;
    leave_signals()?;
    // SAFETY: what makes this unsafe is that descriptors may lose their meaning for this thread. It has run nothing yet, and what it is
    // about to run has those in `keeps` only, by `spawn`'s contract.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FILES) }?;
    let mut from = STANDARD;
    for fd in keeps.iter().copied().chain([RawFd::MAX]) {
        if from < fd {
            close(from, fd - 1)?;
        }
        from = from.max(fd.saturating_add(1));
    }
    Ok(())
}

/// Closes descriptors from one to another.
fn close(first: RawFd, last: RawFd) -> io::Result<()> {
    // SAFETY: three numbers. The descriptors are this thread's alone (or there are none so high), and nothing of it uses them.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has signals that come from outside handled by other threads: a handler may write to a descriptor that this one does not have. Those
/// that a thread's own doing causes stay.
fn leave_signals() -> io::Result<()> {
    const OWN: [i32; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
    // SAFETY: all zeroes is a value of this structure of integers; the calls fill it and read it.
    let failed = unsafe {
        let mut set = core::mem::zeroed();
        libc::sigfillset(&mut set);
        OWN.iter().for_each(|s| _ = libc::sigdelset(&mut set, *s));
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, core::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::Arc;
    use std::sync::mpsc::{Sender, channel};

    struct Carried {
        kept: [Arc<File>; 2],
        other: RawFd,
        said: Sender<[bool; 3]>,
    }

    fn is_open(fd: RawFd) -> bool {
        // SAFETY: it only asks.
        unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
    }

    #[test]
    fn isolated_thread_has_only_its_descriptors() {
        let open = || Arc::new(File::open("/dev/null").unwrap());
        let (a, other, b) = (open(), open(), open());
        let (said, hear) = channel();
        let carried = Carried { kept: [b.clone(), a.clone()], other: other.as_raw_fd(), said };
        let keeps = [b.as_fd(), a.as_fd()];
        let thread = spawn("apart", carried, &keeps, |c| {
            let [first, second] = c.kept.each_ref().map(|f| is_open(f.as_raw_fd()));
            let shares = is_open(c.other);
            let _ = c.said.send([first, second, shares]);
            // What others would miss, if it were theirs as well.
            assert!(!shares);
            close(STANDARD, RawFd::MAX).unwrap();
        });
        thread.unwrap().join().unwrap();
        assert_eq!(hear.recv(), Ok([true, true, false]));
        assert!([&a, &b, &other].iter().all(|f| is_open(f.as_raw_fd())), "nothing was closed here");
    }
}
