//! Waits for sockets, for other threads, and until a deadline with nanosecond precision.
//!
//! Built on `ppoll(2)`: it takes nanoseconds on every kernel (`epoll_wait` takes milliseconds, and its
//! nanosecond form needs Linux 5.11), keeps no state in the kernel, and for the handful of sockets of one
//! driver loop costs the same as epoll.

use base::Span;
use handover::{Signal, Wakeup};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The most sources one [`Poller::wait`] takes.
pub const MAX_SOURCES: usize = 256;

/// One thing to wait for, and after the wait, what happened to it.
#[derive(Clone, Copy, Debug)]
pub struct Source<'fd> {
    fd: BorrowedFd<'fd>,
    read: bool,
    write: bool,
    /// There is something to read, or an error to collect by reading.
    pub readable: bool,
    /// There is room to write. Only looked for when asked for.
    pub writable: bool,
}

impl<'fd> Source<'fd> {
    /// Waits for `fd` to become readable.
    pub fn readable(fd: &'fd impl AsFd) -> Source<'fd> {
        Source { fd: fd.as_fd(), read: true, write: false, readable: false, writable: false }
    }

    /// Waits for `fd` to become readable, and writable too when `write` is true.
    pub fn new(fd: &'fd impl AsFd, write: bool) -> Source<'fd> {
        Source { write, ..Source::readable(fd) }
    }

    /// Waits for `fd` to become readable, writable, either or neither.
    pub fn choose(fd: &'fd impl AsFd, read: bool, write: bool) -> Source<'fd> {
        Source { read, write, ..Source::readable(fd) }
    }
}

/// Why [`Poller::wait`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// How many sources are ready; look at their flags.
    pub ready: usize,
    /// A [`Waker`] was used: look at the queues its users fill.
    pub woken: bool,
}

/// Waits for sources, wakers and deadlines. One per driver loop.
#[derive(Debug)]
pub struct Poller {
    wakeup: Arc<Wakeup<Event>>,
}

/// Ends a [`Poller::wait`] from another thread. Cheap to clone; several wakes before the loop turns cost one
/// system call.
#[derive(Clone, Debug)]
pub struct Waker(Arc<Wakeup<Event>>);

#[derive(Debug)]
struct Event(OwnedFd);

impl Signal for Event {
    fn raise(&self) {
        // It fails only when the counter would exceed 2^64 - 2, which the wakeup rules out.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
    fn clear(&self) {
        let mut count = [0; 8];
        // Would-block is impossible after POLLIN with a single reader, and would change nothing.
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

impl Waker {
    /// Makes the current or the next [`Poller::wait`] return with [`Wake::woken`]. Everything written before
    /// this call is visible to the poller's thread after it.
    pub fn wake(&self) {
        self.0.notify();
    }

    /// Makes `signal` wake the poller, too, beside what else is registered for it by `signal_hook`.
    ///
    /// # Errors
    /// No such signal, or one that cannot be handled.
    pub fn wake_on(&self, signal: i32) -> io::Result<()> {
        let waker = self.clone();
        // SAFETY: a handler may do what waking is: an atomic swap and a write to an eventfd, which does not touch `errno`.
        unsafe { signal_hook::low_level::register(signal, move || waker.wake()) }?;
        Ok(())
    }
}

/// The descriptor by which it wakes.
impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.signal().0.as_fd()
    }
}

impl Poller {
    /// A poller.
    ///
    /// # Errors
    /// When the process or the system has no file descriptors left.
    pub fn new() -> io::Result<Poller> {
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let event = rustix::event::eventfd(0, flags)?;
        Ok(Poller { wakeup: Arc::new(Wakeup::new(Event(event))) })
    }

    /// A handle that ends this poller's waits from any thread.
    pub fn waker(&self) -> Waker {
        Waker(self.wakeup.clone())
    }

    /// Waits until a source is ready, a waker is used, or `timeout` has passed (`None`: no limit). A timeout
    /// of zero only looks. A signal ends the wait early, as if the time had passed.
    ///
    /// # Errors
    /// `InvalidInput` for more than [`MAX_SOURCES`] sources; otherwise the kernel's, which are out of memory.
    pub fn wait(&mut self, sources: &mut [Source<'_>], timeout: Option<Span>) -> io::Result<Wake> {
        if sources.len() > MAX_SOURCES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} sources in one wait, at most {MAX_SOURCES}: use several loops", sources.len()),
            ));
        }
        let mut fds = [libc::pollfd { fd: -1, events: 0, revents: 0 }; MAX_SOURCES + 1];
        fds[0] = libc::pollfd { fd: self.wakeup.signal().0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        for (slot, s) in fds[1..].iter_mut().zip(sources.iter()) {
            // What nothing is waited for of costs the kernel a look all the same, unless it has no number.
            slot.fd = if s.read || s.write { s.fd.as_raw_fd() } else { -1 };
            slot.events = if s.read { libc::POLLIN } else { 0 } | if s.write { libc::POLLOUT } else { 0 };
        }
        let fds = &mut fds[..=sources.len()];
        ppoll(fds, timeout)?;
        let mut wake = Wake { ready: 0, woken: fds[0].revents != 0 };
        if wake.woken {
            self.wakeup.acknowledge();
        }
        for (slot, s) in fds[1..].iter().zip(sources) {
            s.readable = slot.revents & (libc::POLLIN | libc::POLLERR | libc::POLLHUP) != 0;
            s.writable = slot.revents & libc::POLLOUT != 0;
            wake.ready += usize::from(s.readable || s.writable);
        }
        Ok(wake)
    }
}

/// Whether there is something to read, an error or an end, as far as is known without waiting (poll(2)). For a TCP
/// connection this takes no lock: arriving data need not wait, as it does for a read that finds nothing.
#[inline]
pub fn is_readable(fd: &impl AsFd) -> bool {
    let mut asked = libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: it names one descriptor, which is open. Past the C library's function, see `call`.
    #[cfg(target_arch = "x86_64")]
    let n = unsafe { libc::syscall(libc::SYS_poll, &raw mut asked, 1, 0) };
    // SAFETY: as above. Newer architectures do not have that system call.
    #[cfg(not(target_arch = "x86_64"))]
    let n = unsafe { libc::poll(&raw mut asked, 1, 0) };
    n > 0
}

/// Sets the low watermark: `fd` becomes readable only with so many bytes (`SO_RCVLOWAT`, socket(7)), at its end, or
/// when its sender may send no more for now.
///
/// # Errors
/// The system's, where it does not have that for such a socket.
pub fn wake_for(fd: &impl AsFd, bytes: u32) -> io::Result<()> {
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    let (fd, len) = (fd.as_fd().as_raw_fd(), size_of::<i32>() as libc::socklen_t);
    // SAFETY: pointer and length describe `bytes`, which the kernel only reads.
    let done =
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const bytes).cast(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Asks the kernel to end timed waits of this thread on time: the default lets each come 50 us late so that
/// wake-ups can be grouped, which is 40 packets of 1,500 bytes at 10 Gbit/s. And to let it run soon after it wakes, for
/// shorter turns than others. Call once in every driver thread.
pub fn sharpen_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes one integer and touches no memory of ours. It cannot fail for 1 ns.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) };
    ask_for_short_turns();
}

/// The turn on a processor that a driver thread asks for. From Linux 6.12 on, whoever asks for shorter turns than the
/// usual 3 ms is let in sooner and gets no larger part of the processor: it needs no privilege. The kernel's least is
/// 100 us.
const SLICE: Span = Span::from_micros(100);

/// Best effort: older kernels, other scheduling classes and sandboxes leave things as they are.
fn ask_for_short_turns() {
    let size = size_of::<libc::sched_attr>();
    // SAFETY: the structure is integers, for which all zeroes is a value.
    let mut attr: libc::sched_attr = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes at most `size` bytes to `attr`, which is ours; 0 is the calling thread.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) };
    if got != 0 || attr.sched_policy != libc::SCHED_OTHER as u32 {
        return;
    }
    attr.sched_runtime = SLICE.as_nanos();
    // SAFETY: the kernel reads `attr.size` bytes, which it has set itself to no more than `size`.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}

fn ppoll(fds: &mut [libc::pollfd], timeout: Option<Span>) -> io::Result<usize> {
    let ts = timeout.map(|t| libc::timespec {
        tv_sec: (t.as_nanos() / 1_000_000_000) as libc::time_t,
        tv_nsec: (t.as_nanos() % 1_000_000_000) as libc::c_long,
    });
    let ts = ts.as_ref().map_or(core::ptr::null(), |t| t as *const libc::timespec);
    // SAFETY: `fds` is a valid array of its stated length, `ts` is null or points to a live timespec, and a
    // null signal mask means none is changed.
    let n = unsafe { libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ts, core::ptr::null()) };
    match usize::try_from(n) {
        Ok(n) => Ok(n),
        Err(_) => {
            let e = io::Error::last_os_error();
            if e.kind() == io::ErrorKind::Interrupted {
                // The kernel leaves `revents` alone in this case; ours were zero.
                return Ok(0);
            }
            Err(e)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use std::net::UdpSocket;

    #[test]
    fn socket_becomes_readable_and_writable() {
        let a = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut p = Poller::new().unwrap();
        let mut s = [Source::new(&a, false)];
        assert_eq!(p.wait(&mut s, Some(Span::ZERO)).unwrap(), Wake { ready: 0, woken: false });
        a.send_to(b"x", a.local_addr().unwrap()).unwrap();
        assert_eq!(p.wait(&mut s, None).unwrap().ready, 1);
        assert!(s[0].readable && !s[0].writable);
        let mut s = [Source::new(&a, true)];
        p.wait(&mut s, None).unwrap();
        assert!(s[0].readable && s[0].writable);
    }

    #[test]
    fn pending_data_and_end_of_stream_are_readable() {
        let (a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_readable(&b));
        std::io::Write::write_all(&mut &a, b"x").unwrap();
        assert!(is_readable(&b) && !is_readable(&a));
        std::io::Read::read_exact(&mut &b, &mut [0]).unwrap();
        assert!(!is_readable(&b));
        drop(a);
        assert!(is_readable(&b));
    }

    #[test]
    fn timeout_is_not_early() {
        let mut p = Poller::new().unwrap();
        sharpen_timers();
        for us in [5, 50, 300] {
            let start = Clock::new().now();
            p.wait(&mut [], Some(Span::from_micros(us))).unwrap();
            assert!(Clock::new().now().since(start) >= Span::from_micros(us));
        }
    }

    #[test]
    fn every_wake_from_other_threads_is_delivered() {
        const EACH: usize = 2_000;
        let mut p = Poller::new().unwrap();
        let (tx, rx) = std::sync::mpsc::channel();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (waker, tx) = (p.waker(), tx.clone());
                std::thread::spawn(move || {
                    for i in 0..EACH {
                        tx.send(i).unwrap();
                        waker.wake();
                    }
                })
            })
            .collect();
        let mut got = 0;
        while got < 3 * EACH {
            // Without a timeout: a wake that got lost hangs the test.
            assert!(p.wait(&mut [], None).unwrap().woken);
            got += rx.try_iter().count();
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
    }

    #[test]
    fn too_many_sources_are_refused() {
        let a = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut p = Poller::new().unwrap();
        let mut s: Vec<_> = (0..=MAX_SOURCES).map(|_| Source::readable(&a)).collect();
        assert_eq!(p.wait(&mut s, None).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(p.wait(&mut s[..MAX_SOURCES], Some(Span::ZERO)).is_ok());
    }
}
