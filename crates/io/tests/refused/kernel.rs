//! Makes system calls fail: a thread whose calls the test answers (seccomp's user notification, Linux 5.5 and later).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

/// What becomes of a system call.
pub enum Verdict {
    /// The kernel carries it out.
    Allow,
    /// It fails with this error.
    Refuse(i32),
    /// It seems to have worked.
    Pretend,
}

/// A system call that is to be judged: its number and arguments.
pub type Call = libc::seccomp_data;

/// `_IOWR('!', 0, struct seccomp_notif)` and `_IOWR('!', 1, struct seccomp_notif_resp)`.
const RECV: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
/// Offset of `nr` in `seccomp_data`.
const NUMBER: u32 = 0;

/// Runs `f` on a thread of its own, those of whose system calls that `judged` names go to `judge` first. Gives what came of
/// it and what was logged; `None` where the kernel has no such thing.
pub fn under<R: Send>(
    judged: &[libc::c_long],
    mut judge: impl FnMut(&Call) -> Verdict + Send,
    f: impl FnOnce() -> R + Send,
) -> Option<(R, String)> {
    let log = Log::default();
    let (tx, rx) = channel();
    std::thread::scope(|s| {
        let written = log.clone();
        let thread = s.spawn(move || {
            let judge = install(judged);
            let possible = judge.is_ok();
            tx.send(judge).expect("the test waits");
            let logger =
                tracing_subscriber::fmt().with_ansi(false).with_writer(move || written.clone()).finish();
            possible.then(|| tracing::subscriber::with_default(logger, f))
        });
        match rx.recv().expect("sent") {
            Ok(listener) => while answer(&listener, &mut judge) {},
            Err(e) => eprintln!("skipped: this kernel does not let system calls be judged ({e})"),
        }
        let done = thread.join().expect("the thread says why")?;
        let words = String::from_utf8_lossy(&log.0.lock().expect("whole")).into_owned();
        Some((done, words))
    })
}

/// What is logged, kept.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("whole").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Has the calling thread's system calls judged, for good.
fn install(judged: &[libc::c_long]) -> std::io::Result<OwnedFd> {
    let op = |code: u32, jt: usize, k: u32| libc::sock_filter { code: code as u16, jt: jt as u8, jf: 0, k };
    let mut program = vec![op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, NUMBER)];
    for (i, nr) in judged.iter().enumerate() {
        let to_the_last = judged.len() - i;
        program.push(op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, to_the_last, *nr as u32));
    }
    program.push(op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    program.push(op(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_USER_NOTIF));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program lives through the calls, which change nothing but what this thread may do.
    let fd = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program)
    };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel has just given us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Answers one system call; false when the thread has ended.
fn answer(listener: &OwnedFd, judge: &mut impl FnMut(&Call) -> Verdict) -> bool {
    let mut ready = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, as is said.
    unsafe { libc::poll(&raw mut ready, 1, -1) };
    if ready.revents & libc::POLLIN == 0 {
        return false;
    }
    // SAFETY: integers, for which all zeroes is a value, as the kernel wants them.
    let mut call: libc::seccomp_notif = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes a `seccomp_notif`.
    if unsafe { libc::ioctl(listener.as_raw_fd(), RECV, &raw mut call) } < 0 {
        return true;
    }
    let (error, flags) = match judge(&call.data) {
        Verdict::Allow => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
        Verdict::Refuse(errno) => (-errno, 0),
        Verdict::Pretend => (0, 0),
    };
    let mut response = libc::seccomp_notif_resp { id: call.id, val: 0, error, flags };
    // SAFETY: the kernel reads a `seccomp_notif_resp`. It fails when the thread was interrupted, which then calls again.
    unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &raw mut response) };
    true
}

/// Whether a judged `sendmmsg` or `sendmsg` asks the kernel to cut its first train: the kernel refuses a call only for that,
/// and sends what stands before a later one. What the first is given begins with what the second is given.
pub fn asks_for_segmentation(call: &Call) -> bool {
    let many = i64::from(call.nr) == libc::SYS_sendmmsg;
    let (first, count) =
        (call.args[1] as *const libc::mmsghdr, if many { (call.args[2] as usize).min(1) } else { 1 });
    (0..count).any(|i| {
        // SAFETY: the thread that calls is of this process and waits in the call: its headers and what they point to stay
        // as they are, and it has stated how many there are.
        unsafe {
            let header = &raw const (*first.add(i)).msg_hdr;
            let mut c = libc::CMSG_FIRSTHDR(header);
            while !c.is_null() {
                if ((*c).cmsg_level, (*c).cmsg_type) == (libc::SOL_UDP, libc::UDP_SEGMENT) {
                    return true;
                }
                c = libc::CMSG_NXTHDR(header, c);
            }
            false
        }
    })
}
