//! UDP through io_uring: the same socket, options and batches as [`UdpSocket`], with fewer system calls.
//!
//! One receive operation stays armed ("multishot"): each message goes to a buffer out of `ProvidedBuffers`, and its
//! completion is read from shared memory. To look for messages when there are none is no system call, which
//! `recvmmsg` always is. A batch of trains is one call, as with `sendmmsg`, and the same call collects what has arrived.
//! The ring's descriptor becomes readable when there is something to collect.
//!
//! # Soundness
//!
//! The kernel reads and writes memory after the call that names it has returned. So:
//!
//! - A receive buffer is either lent or ours. Lent, its `Slot` lies in `ProvidedBuffers`, which gives no access to its
//!   memory; the completion that names it makes it ours, and it moves to the [`RecvBatch`] whole.
//! - A send reads the [`SendBatch`] of the caller and `Sends`. [`Uring::send`] returns when every send has completed,
//!   which takes no waiting: with `MSG_DONTWAIT` the kernel sends or refuses at once. Should the ring fail in between,
//!   both are leaked (`SendBatch::abandon`).
//! - What the kernel holds for as long as an operation is in flight (the receive header, the buffers, their ring) has a
//!   fixed address, on the heap. Dropping first cancels what is in flight and waits for its last completion, before any
//!   field is dropped; if that does not come, what the kernel may still use is leaked, with a warning. Forgetting the
//!   whole (`mem::forget`) leaks likewise.
//! - The ring is used by one thread at a time (`&mut self`). It may move to another: operations belong to the thread that
//!   submitted them, the kernel cancels them when it ends, and the next [`Uring::recv`] arms anew.

mod provided_buffers;
#[cfg(test)]
mod tests;

use crate::clock::WallTime;
use crate::udp::addr::{self, RawAddr, Received};
use crate::udp::send::Messages;
use crate::udp::slot::Slot;
use crate::udp::{
    Blocked, MAX_TRAINS, RecvBatch, RecvMeta, SendBatch, SendReport, UdpError, UdpOptions, UdpSocket,
    UdpStats, is_network_report,
};
use core::mem::{ManuallyDrop, offset_of, size_of};
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use provided_buffers::ProvidedBuffers;
use std::cell::LazyCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;

/// Entries of the submission queue: a batch of sends, one receive, and room to spare. A power of two.
const SUBMISSIONS: u32 = 16;
/// Entries of the completion queue: every lent buffer, every send, and the end of a receive. A power of two.
const COMPLETIONS: u32 = 256;
/// Buffers beyond a batch, which may fill while the batch is worked on. Few: those of a batch are still in the second
/// cache when they are lent again.
const SPARE_TRAINS: usize = 4;
const SPARE_SINGLES: usize = 32;
/// How often one receive call asks the kernel: it arms, finds the buffers used up, arms again.
const MAX_ROUNDS: usize = 4;
/// Attempts to collect the completions of sends, which have happened already.
const MAX_COLLECTS: usize = 1_000;
/// How long dropping waits for the kernel to let go, in turns of twice 10 ms.
const CANCEL_TURNS: usize = 100;
const CANCEL_TURN: Timespec = Timespec::new().nsec(10_000_000);

/// The buffers' group; there is one.
const GROUP: u16 = 0;
/// Marks of completions: sends have their number in the batch.
const RECEIVE: u64 = 1 << 32;

/// What the kernel writes in front of each received message: `struct io_uring_recvmsg_out`, the sender's address and the
/// control messages, each in an area of fixed size.
const REPORT: usize = 16;
/// Room for an address of either family.
const NAME: usize = 32;
/// Room for control messages; see [`addr::Control::LEN`] for what may come.
const CONTROL: usize = 208;
/// Bytes in front of the payload, which so begins at a line of the cache.
const HEAD: usize = REPORT + NAME + CONTROL;
const _: () = assert!(HEAD.is_multiple_of(64) && CONTROL >= addr::Control::LEN);
const _: () = assert!(NAME >= size_of::<libc::sockaddr_in6>() && NAME <= size_of::<RawAddr>());

/// Why io_uring cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UringUnavailable {
    /// The kernel makes no rings, or none for us.
    #[error("{0}{hint}", hint = hint(.0))]
    Ring(io::Error),
    /// An operation is missing.
    #[error("the kernel lacks the operation {0}: Linux 6.0 or later has it")]
    Lacks(&'static str),
}

/// What to do about an error of setting up.
fn hint(e: &io::Error) -> &'static str {
    match e.raw_os_error() {
        Some(libc::ENOSYS) => " (this kernel has no io_uring, or a sandbox hides it)",
        Some(libc::EPERM | libc::EACCES) => {
            " (forbidden: see the sysctl kernel.io_uring_disabled, and the seccomp profile of containers)"
        }
        Some(libc::EINVAL) => " (Linux 6.0 or later is needed)",
        Some(libc::ENOMEM) => " (raise the limit of locked memory, ulimit -l)",
        _ => "",
    }
}

/// The arguments of a batch of sends, at an address that does not change.
struct Sends {
    messages: Messages<MAX_TRAINS>,
    headers: [libc::mmsghdr; MAX_TRAINS],
    /// What became of each; `None` while it is in flight.
    results: [Option<i32>; MAX_TRAINS],
}

/// A UDP socket behind a ring.
pub struct Uring {
    ring: IoUring,
    socket: UdpSocket,
    buffers: ManuallyDrop<ProvidedBuffers>,
    /// The areas that received messages are divided into. Read by the kernel while a receive is armed.
    areas: ManuallyDrop<Box<libc::msghdr>>,
    sends: ManuallyDrop<Box<Sends>>,
    /// The kernel may still use the arguments of sends.
    stuck: bool,
    /// A receive is in flight.
    armed: bool,
    /// What a receive ended with, if the socket cannot be used any more.
    failed: Option<i32>,
}

// SAFETY: the pointers inside lead to memory that this structure owns, or that no operation uses any more when a method
// returns; nothing is tied to a thread (see above for the kernel's side).
unsafe impl Send for Uring {}

impl core::fmt::Debug for Uring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Uring")
            .field("socket", &self.socket)
            .field("armed", &self.armed)
            .finish_non_exhaustive()
    }
}

impl AsFd for Uring {
    /// Readable when there is something to collect. It is always writable: see [`Uring::room`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring is open for as long as `self` is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Uring {
    /// Puts a ring before `socket`, and begins to receive.
    ///
    /// # Errors
    /// The socket, unchanged, and why the system will not have it.
    pub fn new(socket: UdpSocket) -> Result<Uring, (UdpSocket, UringUnavailable)> {
        match prepare(&socket) {
            Ok((ring, lent)) => Uring::start(socket, ring, lent),
            Err(why) => Err((socket, why)),
        }
    }

    fn start(
        socket: UdpSocket,
        ring: IoUring,
        buffers: ProvidedBuffers,
    ) -> Result<Uring, (UdpSocket, UringUnavailable)> {
        // SAFETY: pointers and integers, for which all zeroes is a value.
        let mut areas: Box<libc::msghdr> = Box::new(unsafe { core::mem::zeroed() });
        areas.msg_namelen = NAME as libc::socklen_t;
        areas.msg_controllen = CONTROL as _;
        let mut messages = Messages::new();
        let headers = messages.headers();
        let sends = Box::new(Sends { messages, headers, results: [Some(0); MAX_TRAINS] });
        let mut u = Uring {
            ring,
            socket,
            buffers: ManuallyDrop::new(buffers),
            areas: ManuallyDrop::new(areas),
            sends: ManuallyDrop::new(sends),
            stuck: false,
            armed: false,
            failed: None,
        };
        // A kernel that does not know this kind of receive says so at once.
        let tried = u.arm();
        u.reap();
        let refused = u.failed.take().map(io::Error::from_raw_os_error).or(tried.err());
        match refused {
            None => Ok(u),
            Some(e) => Err((u.into_socket(), UringUnavailable::Ring(e))),
        }
    }

    /// Opens a socket and a ring, or the socket alone where the system has no rings; says so, once.
    ///
    /// # Errors
    /// As [`UdpSocket::open`].
    pub fn open(o: &UdpOptions) -> Result<Result<Uring, UdpSocket>, UdpError> {
        Ok(Uring::new(UdpSocket::open(o)?).map_err(|(socket, why)| {
            tracing::warn!("io_uring cannot be used: {why}; going on with plain UDP");
            socket
        }))
    }

    /// The bound address.
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    /// Counts so far.
    pub fn stats(&self) -> UdpStats {
        self.socket.stats()
    }

    /// A receive batch of the right shape.
    pub fn recv_batch(&self) -> RecvBatch {
        self.socket.recv_batch()
    }

    /// The descriptor that becomes writable when a send that was [`Blocked::Buffer`] can continue.
    pub fn room(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether there is something to receive that the descriptor does not tell of, as sending has collected it, or no receive
    /// is in place: then do not wait.
    pub fn pending(&self) -> bool {
        !self.armed || !self.buffers.nothing_arrived()
    }

    /// As [`UdpSocket::recv`]. Before waiting, ask [`Uring::pending`].
    ///
    /// # Errors
    /// [`UdpError::Os`] when the socket or the ring is beyond use.
    pub fn recv(&mut self, batch: &mut RecvBatch) -> Result<usize, UdpError> {
        batch.clear();
        self.buffers.reclaim(&mut batch.slots);
        for _ in 0..MAX_ROUNDS {
            if self.buffers.nothing_arrived() {
                self.collect_completions()?;
            }
            self.deliver(batch);
            if batch.filled == batch.capacity() {
                return Ok(batch.filled);
            }
            if let Some(e) = self.failed.take() {
                return Err(UdpError::Os(io::Error::from_raw_os_error(e)));
            }
            if self.armed {
                if self.buffers.nothing_arrived() && !self.ring.submission().taskrun() {
                    break;
                }
            } else {
                // Takes in at once what waits in the socket, as far as there are buffers.
                self.arm()?;
            }
        }
        Ok(batch.filled)
    }

    /// As [`UdpSocket::send`].
    ///
    /// # Errors
    /// [`UdpError::Os`] when the socket or the ring is beyond use.
    pub fn send(&mut self, batch: &mut SendBatch) -> Result<SendReport, UdpError> {
        // Trains that have to be cut take the plain way.
        if batch.is_empty() || batch.head_at > 0 || !self.socket.gso() {
            return self.socket.send(batch);
        }
        let (sent, refusal) = self.send_whole(batch)?;
        if batch.is_empty() {
            batch.clear();
            return Ok(SendReport { sent, ..SendReport::default() });
        }
        let mut report = match refusal {
            Some(libc::EAGAIN) => SendReport { blocked: Blocked::Buffer, ..SendReport::default() },
            Some(libc::ENOBUFS | libc::ENOMEM) => {
                SendReport { blocked: Blocked::Device, ..SendReport::default() }
            }
            // The plain way meets the same refusal again, and knows what to do about each.
            _ => self.socket.send(batch)?,
        };
        report.sent += sent;
        Ok(report)
    }

    /// Sends what it can of the batch, in order. Returns how many trains left, and what the first that did not was told.
    fn send_whole(&mut self, batch: &mut SendBatch) -> Result<(usize, Option<i32>), UdpError> {
        if self.stuck {
            return Err(UdpError::Os(io::Error::from_raw_os_error(libc::EBUSY)));
        }
        let sends = &mut **self.sends;
        sends.messages.fill(&self.socket.defaults, batch, MAX_TRAINS);
        let count = sends.messages.count;
        if count == 0 {
            return Ok((0, None));
        }
        sends.headers = sends.messages.headers();
        sends.results[..count].fill(None);
        let fd = Fd(self.socket.as_fd().as_raw_fd());
        for (i, h) in sends.headers[..count].iter().enumerate() {
            // The kernel begins each when the one before has left, and none after one that could not: so trains keep
            // their order, and what is left is the batch's end.
            let link = if i + 1 < count { squeue::Flags::IO_LINK } else { squeue::Flags::empty() };
            let flags = libc::MSG_DONTWAIT as u32;
            let entry = opcode::SendMsg::new(fd, &raw const h.msg_hdr).flags(flags).build();
            let entry = entry.user_data(i as u64).flags(link);
            // SAFETY: header, name, control data and payload live in `self.sends` and in `batch`, neither of which is
            // touched before `collect` has seen the completion, or given up if it does not come.
            // The queue was empty and has room for a batch and a receive.
            unsafe { self.ring.submission().push(&entry) }.expect("the queue has room for a batch");
        }
        if !self.collect(count) {
            self.stuck = true;
            batch.abandon();
            return Err(UdpError::Os(io::Error::from_raw_os_error(libc::EIO)));
        }
        let left = self.sends.results[..count].iter().take_while(|r| r.is_some_and(|r| r >= 0)).count();
        (0..left).for_each(|_| batch.pop());
        let refusal = self.sends.results.get(left).filter(|_| left < count).and_then(|r| *r);
        Ok((left, refusal.map(|r| -r)))
    }

    /// Submits, and collects until the first `count` sends have completed. False when they do not.
    fn collect(&mut self, count: usize) -> bool {
        for _ in 0..MAX_COLLECTS {
            let entered = self.ring.submit_and_wait(1);
            self.reap();
            if self.sends.results[..count].iter().all(Option::is_some) {
                return true;
            }
            if entered.is_err_and(|e| e.kind() != io::ErrorKind::Interrupted) {
                // Out of memory, most likely: what the kernel has begun, it ends while we are away.
                std::thread::yield_now();
            }
        }
        false
    }

    /// Collects what has completed. A system call only if the kernel has work that waits for one.
    fn collect_completions(&mut self) -> io::Result<()> {
        self.reap();
        if self.buffers.nothing_arrived() && self.ring.submission().taskrun() {
            match self.ring.submit() {
                Err(e) if !passing(&e) => return Err(e),
                _ => self.reap(),
            }
        }
        Ok(())
    }

    /// Puts the receive in place, and collects what it brings at once.
    fn arm(&mut self) -> io::Result<()> {
        let fd = Fd(self.socket.as_fd().as_raw_fd());
        let areas: *const libc::msghdr = &raw const **self.areas;
        let entry = opcode::RecvMsgMulti::new(fd, areas, GROUP).build().user_data(RECEIVE);
        // SAFETY: the areas' description and the buffers have fixed addresses, and live until the receive has ended (see
        // the module's text).
        // The queue is empty: whatever is pushed is submitted at once.
        unsafe { self.ring.submission().push(&entry) }.expect("the queue is empty between calls");
        self.armed = true;
        for _ in 0..MAX_COLLECTS {
            match self.ring.submit() {
                Err(e) if !passing(&e) => return Err(e),
                _ => {}
            }
            self.reap();
            if self.ring.submission().is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Reads the completion queue: memory only.
    fn reap(&mut self) {
        // One at most: the next receive is armed later.
        let mut ended = None;
        for c in self.ring.completion() {
            if c.user_data() != RECEIVE {
                if let Some(r) = self.sends.results.get_mut(c.user_data() as usize) {
                    *r = Some(c.result());
                }
                continue;
            }
            self.armed &= cqueue::more(c.flags());
            match (usize::try_from(c.result()), cqueue::buffer_select(c.flags())) {
                (Ok(len), Some(id)) => self.buffers.arrived(id, len),
                (Ok(_), None) => {}
                (Err(_), id) => {
                    if let Some(id) = id {
                        self.buffers.unused(id);
                    }
                    ended = Some(-c.result());
                }
            }
        }
        if let Some(errno) = ended {
            self.ended(errno);
        }
    }

    /// The receive has ended with an error.
    fn ended(&mut self, errno: i32) {
        match errno {
            // Every buffer is used, its thread has ended, or a signal came: it is armed anew.
            libc::ENOBUFS | libc::ECANCELED | libc::EINTR | libc::EAGAIN | libc::ENOMEM => {}
            e if is_network_report(e) => {
                self.socket.counters.refused.fetch_add(1, Relaxed);
            }
            e => self.failed = Some(e),
        }
    }

    /// Moves what has arrived to the batch, as far as it has room.
    fn deliver(&mut self, batch: &mut RecvBatch) {
        if self.buffers.nothing_arrived() {
            return;
        }
        let now: LazyCell<WallTime> = LazyCell::new(WallTime::now);
        while batch.filled < batch.capacity() {
            let Some((slot, len)) = self.buffers.next() else { break };
            match self.meta(&slot, len, batch.slot, &now) {
                Some(meta) => {
                    batch.metas[batch.filled] = Some(meta);
                    batch.slots[batch.filled] = slot;
                    batch.filled += 1;
                }
                None => self.buffers.provide(slot),
            }
        }
    }

    /// Reads what the kernel wrote in front of a message; `len` is what it wrote in all.
    fn meta(&self, slot: &Slot, len: usize, room: usize, now: &LazyCell<WallTime>) -> Option<RecvMeta> {
        if len < HEAD {
            return None;
        }
        let head = slot.head();
        let number =
            |at: usize| head.get(at..at + 4).and_then(|b| b.first_chunk()).map(|b| u32::from_ne_bytes(*b));
        // struct io_uring_recvmsg_out { namelen, controllen, payloadlen, flags }, 32 bits each.
        let (Some(name), Some(control), Some(payload), Some(flags)) =
            (number(0), number(4), number(8), number(12))
        else {
            return None;
        };
        let mut raw = addr::empty();
        let name_len = (name as usize).min(NAME);
        // SAFETY: `NAME` bytes of the head follow the report, and the address is at least as large; it is integers, for
        // which any bytes are a value.
        unsafe {
            let from = head[REPORT..REPORT + NAME].as_ptr();
            core::ptr::copy_nonoverlapping(from, (&raw mut raw).cast::<u8>(), name_len);
        }
        let control = (control as usize).min(CONTROL);
        let told = Received::from_control(&head[REPORT + NAME..REPORT + NAME + control]);
        self.socket.meta_of(payload as usize, room, flags as i32, &raw, &told, now)
    }

    /// Ends what is in flight. False when the kernel does not let go.
    fn cancel_all(&mut self) -> bool {
        for _ in 0..CANCEL_TURNS {
            self.reap();
            if !self.armed {
                break;
            }
            // Either fails when there is nothing of its kind, or on time-out: the completions tell. Submitting comes first, for
            // a receive that could not be submitted when it was armed.
            let submitter = self.ring.submitter();
            let _ = submitter.submit();
            let _ = submitter.register_sync_cancel(Some(CANCEL_TURN), CancelBuilder::any());
            self.reap();
            if self.armed {
                let submitter = self.ring.submitter();
                let _ = submitter.submit_with_args(1, &SubmitArgs::new().timespec(&CANCEL_TURN));
            }
        }
        !self.armed && !self.stuck && self.ring.submitter().unregister_buf_ring(GROUP).is_ok()
    }

    /// Takes the ring away.
    fn into_socket(self) -> UdpSocket {
        let mut this = ManuallyDrop::new(self);
        this.release();
        // SAFETY: `this` is never dropped nor used again; each field is taken or dropped once.
        unsafe {
            core::ptr::drop_in_place(&raw mut this.ring);
            core::ptr::read(&raw const this.socket)
        }
    }

    /// Ends what is in flight and frees the memory for it. Once.
    fn release(&mut self) {
        if self.cancel_all() {
            // SAFETY: nothing is in flight, so the kernel has given everything back; called once, and these are not used
            // again.
            unsafe {
                ManuallyDrop::drop(&mut self.buffers);
                ManuallyDrop::drop(&mut self.areas);
                ManuallyDrop::drop(&mut self.sends);
            }
        } else {
            tracing::warn!("io_uring does not let go of its buffers: about a mebibyte of memory is given up");
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.release();
    }
}

/// Whether the same call may well work a moment later.
fn passing(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

/// Makes the ring and its buffers.
fn prepare(socket: &UdpSocket) -> Result<(IoUring, ProvidedBuffers), UringUnavailable> {
    let ring: IoUring = IoUring::builder()
        .dontfork()
        .setup_cqsize(COMPLETIONS)
        // The thread is not interrupted when something arrives: it looks often enough, and is told to.
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .build(SUBMISSIONS)
        .map_err(UringUnavailable::Ring)?;
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(UringUnavailable::Ring)?;
    for (code, name) in [
        (opcode::SendMsg::CODE, "SENDMSG"),
        (opcode::RecvMsgMulti::CODE, "RECVMSG"),
        (opcode::AsyncCancel::CODE, "ASYNC_CANCEL"),
        // Came with Linux 6.0 too, and tells it from older ones.
        (opcode::SendZc::CODE, "SEND_ZC"),
    ] {
        if !probe.is_supported(code) {
            return Err(UringUnavailable::Lacks(name));
        }
    }
    let batch = socket.recv_batch();
    let spare = if socket.gro() { SPARE_TRAINS } else { SPARE_SINGLES };
    let lent = ProvidedBuffers::new(batch.capacity() + spare, batch.slot, HEAD);
    // SAFETY: the ring of buffers stays until it is unregistered, or is leaked.
    unsafe { ring.submitter().register_buf_ring_with_flags(lent.address(), lent.entries(), GROUP, 0) }
        .map_err(UringUnavailable::Ring)?;
    Ok((ring, lent))
}

// The kernel's layout of the report, as far as it is read above.
const _: () = assert!(offset_of!(libc::msghdr, msg_name) == 0 && REPORT == 4 * size_of::<u32>());
