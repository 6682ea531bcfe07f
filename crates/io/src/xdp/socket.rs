//! One AF_XDP socket: one receive queue of an interface, with memory for its frames.
//!
//! All frames of a socket are of one size and lie in one piece of memory (the "umem"). A frame is either the kernel's (in
//! the fill ring, or on its way out) or ours (in the receive ring until given back, or in the list of free ones).

use super::ring::{Consumer, Layout, Mapping, Producer};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Frames in which a queue receives: what may arrive while the loop is elsewhere. At 10 Gbit/s and 1,500 bytes each they
/// are 5 ms.
pub(super) const RECV_FRAMES: u32 = 4_096;
/// Frames in which a socket sends: what may be under way in the device.
pub(super) const SEND_FRAMES: u32 = 2_048;
/// What the kernel leaves free in front of each frame that arrives (`XDP_PACKET_HEADROOM`).
const HEADROOM: usize = 256;
/// Sizes of frames' memory. The kernel takes powers of two from 2,048 to a page.
const SMALL: usize = 2_048;
const LARGE: usize = 4_096;
/// The longest frame, with its Ethernet header, that any socket has room for.
pub(super) const LONGEST: usize = LARGE - HEADROOM;
/// Calls that make the kernel send, in a row: at 32 frames a call, more than there are.
const MAX_KICKS: usize = 2 * SEND_FRAMES as usize / 32;
/// Bytes of the socket's send buffer: the kernel counts each frame under way with its overhead. The default of 208 KiB
/// holds some 80.
const SEND_BUFFER: i32 = 16 << 20;
/// Frames that one system call sends in copy mode (`XDP_MAX_TX_SKB_BUDGET`, Linux 6.18), 32 before.
const BUDGET: i32 = 256;
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

/// The size of frames' memory that holds frames of `longest` bytes.
pub(super) fn memory_for(longest: usize) -> Option<usize> {
    [SMALL, LARGE].into_iter().find(|size| size - HEADROOM >= longest)
}

/// Whether frames are copied between the kernel and the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyMode {
    /// By copying.
    Copy,
    /// The device reads and writes our memory.
    ZeroCopy,
}

/// The result of handing frames to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubmitResult {
    /// All are on their way.
    All,
    /// The device's queue is full, or memory is short: try again soon.
    Later,
}

/// One queue's socket.
#[derive(Debug)]
pub(super) struct Queue {
    fd: OwnedFd,
    memory: Mapping,
    /// Bytes of memory of each frame.
    frame: usize,
    fill: Producer<u64>,
    received: Consumer<libc::xdp_desc>,
    sender: Option<Sender>,
    pub(super) passing: CopyMode,
}

/// The sending side of a socket.
#[derive(Debug)]
struct Sender {
    outgoing: Producer<libc::xdp_desc>,
    done: Consumer<u64>,
    /// Frames that are ours to fill. It never grows beyond its first allocation.
    free: Vec<u64>,
}

impl Queue {
    /// A socket for queue `number` of an interface, with frames of `frame` bytes of memory; one that also sends when
    /// `sends` is set. Without `copy` the kernel tries to do without copying first.
    pub(super) fn open(
        interface: u32,
        number: u32,
        frame: usize,
        sends: bool,
        copy: bool,
    ) -> io::Result<Queue> {
        // SAFETY: takes integers only.
        let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        check(fd)?;
        // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let frames = RECV_FRAMES + if sends { SEND_FRAMES } else { 0 };
        let memory = Mapping::anonymous(frames as usize * frame)?;
        let umem = libc::xdp_umem_reg_v1 {
            addr: memory.as_ptr() as u64,
            len: memory.len() as u64,
            chunk_size: frame as u32,
            headroom: 0,
        };
        set(&fd, libc::XDP_UMEM_REG, &umem)?;
        set(&fd, libc::XDP_UMEM_FILL_RING, &RECV_FRAMES)?;
        set(&fd, libc::XDP_UMEM_COMPLETION_RING, &SEND_FRAMES)?;
        set(&fd, libc::XDP_RX_RING, &RECV_FRAMES)?;
        if sends {
            set(&fd, libc::XDP_TX_RING, &SEND_FRAMES)?;
            roomy(&fd);
        }
        let at = offsets(&fd)?;
        let fill = Producer::new(
            map::<u64>(&fd, at.fr, RECV_FRAMES, libc::XDP_UMEM_PGOFF_FILL_RING)?,
            layout(at.fr),
            RECV_FRAMES,
        )?;
        let received = Consumer::new(
            map::<libc::xdp_desc>(&fd, at.rx, RECV_FRAMES, libc::XDP_PGOFF_RX_RING as u64)?,
            layout(at.rx),
            RECV_FRAMES,
        )?;
        let sender = if sends { Some(Sender::open(&fd, &at, frame)?) } else { None };
        let mut queue = Queue { fd, memory, frame, fill, received, sender, passing: CopyMode::Copy };
        for n in 0..RECV_FRAMES {
            queue.fill.push(u64::from(n) * frame as u64);
        }
        queue.fill.publish();
        queue.bind(interface, number, copy)?;
        Ok(queue)
    }

    fn bind(&mut self, interface: u32, number: u32, copy: bool) -> io::Result<()> {
        let address = libc::sockaddr_xdp {
            sxdp_family: libc::AF_XDP as u16,
            // Without a word on copying, the kernel tries without and then with.
            sxdp_flags: libc::XDP_USE_NEED_WAKEUP | if copy { libc::XDP_COPY } else { 0 },
            sxdp_ifindex: interface,
            sxdp_queue_id: number,
            sxdp_shared_umem_fd: 0,
        };
        let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
        // SAFETY: pointer and length describe `address`.
        check(unsafe { libc::bind(self.fd.as_raw_fd(), (&raw const address).cast(), len) })?;
        let mut options = libc::xdp_options { flags: 0 };
        get(&self.fd, libc::XDP_OPTIONS, &mut options)?;
        if options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0 {
            self.passing = CopyMode::ZeroCopy;
        }
        Ok(())
    }

    /// Hands frames that arrived to `take` until it refuses one (which stays) or none is left. True when it refused.
    pub(super) fn receive(&mut self, mut take: impl FnMut(&[u8]) -> bool) -> bool {
        let (mut taken, mut refused) = (0, false);
        // No more than there are frames: the kernel can add as fast as they are taken.
        while taken < RECV_FRAMES {
            let Some(d) = self.received.peek() else { break };
            // In pieces of `frame` bytes, the place of a frame tells which piece it lies in.
            let bytes = span(&self.memory, d.addr, d.len).unwrap_or(&[]);
            if !take(bytes) {
                refused = true;
                break;
            }
            self.received.pop();
            self.fill.push(d.addr - d.addr % self.frame as u64);
            taken += 1;
        }
        if taken > 0 {
            self.received.release();
            self.fill.publish();
            if self.fill.needs_wakeup() {
                self.wake_receiver();
            }
        }
        refused
    }

    /// Tells a device that ran out of memory for what arrives that there is some again.
    fn wake_receiver(&self) {
        // SAFETY: an empty read: no memory of ours is touched. Its result changes nothing: the next one asks again.
        unsafe { libc::recv(self.fd.as_raw_fd(), core::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
    }

    /// Frames that can be sent now.
    pub(super) fn sendable(&mut self) -> usize {
        let Some(s) = &mut self.sender else { return 0 };
        s.reclaim(self.frame);
        s.free.len()
    }

    /// Fills a frame by `write`, which returns its length or `None` for "not at all", and queues it. False when there was no
    /// free one or nothing was written.
    pub(super) fn queue(&mut self, write: impl FnOnce(&mut [u8]) -> Option<usize>) -> bool {
        let Some(s) = &mut self.sender else { return false };
        let Some(addr) = s.free.pop() else { return false };
        let Some(bytes) = span_mut(&mut self.memory, addr, self.frame) else { return false };
        let len = write(bytes).filter(|len| *len <= self.frame);
        let queued =
            len.is_some_and(|len| s.outgoing.push(libc::xdp_desc { addr, len: len as u32, options: 0 }));
        if !queued {
            s.free.push(addr);
        }
        queued
    }

    /// Shows the kernel what was queued, and makes it send where it does not by itself.
    ///
    /// # Errors
    /// The socket is beyond use: the interface is gone or down.
    pub(super) fn kick(&mut self) -> io::Result<SubmitResult> {
        let Some(s) = &mut self.sender else { return Ok(SubmitResult::All) };
        s.outgoing.publish();
        for _ in 0..MAX_KICKS {
            if s.outgoing.pending() == 0 || !s.outgoing.needs_wakeup() {
                return Ok(SubmitResult::All);
            }
            let before = s.outgoing.pending();
            // SAFETY: an empty message without an address: no memory of ours is touched.
            let n = unsafe {
                libc::sendto(
                    self.fd.as_raw_fd(),
                    core::ptr::null(),
                    0,
                    libc::MSG_DONTWAIT,
                    core::ptr::null(),
                    0,
                )
            };
            if n >= 0 {
                // All is copied, or the device has been told.
                return Ok(SubmitResult::All);
            }
            let e = io::Error::last_os_error();
            match e.raw_os_error() {
                Some(libc::EINTR) => {}
                // Part of it is done, and there is more; or nothing could be done.
                Some(libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENOMEM) => {
                    if s.outgoing.pending() == before {
                        return Ok(SubmitResult::Later);
                    }
                }
                _ => return Err(e),
            }
        }
        Ok(SubmitResult::Later)
    }

    /// Frames that wait for the kernel to take them.
    pub(super) fn unsent(&mut self) -> bool {
        self.sender.as_mut().is_some_and(|s| s.outgoing.pending() > 0)
    }

    /// Frames that the kernel dropped for want of room.
    pub(super) fn dropped(&self) -> u64 {
        // SAFETY: the structure is integers, for which all zeroes is a value.
        let mut s: libc::xdp_statistics = unsafe { core::mem::zeroed() };
        match get(&self.fd, libc::XDP_STATISTICS, &mut s) {
            Ok(()) => s.rx_dropped + s.rx_ring_full,
            Err(_) => 0,
        }
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Sender {
    fn open(fd: &OwnedFd, at: &libc::xdp_mmap_offsets, frame: usize) -> io::Result<Sender> {
        let outgoing = Producer::new(
            map::<libc::xdp_desc>(fd, at.tx, SEND_FRAMES, libc::XDP_PGOFF_TX_RING as u64)?,
            layout(at.tx),
            SEND_FRAMES,
        )?;
        let done = Consumer::new(
            map::<u64>(fd, at.cr, SEND_FRAMES, libc::XDP_UMEM_PGOFF_COMPLETION_RING)?,
            layout(at.cr),
            SEND_FRAMES,
        )?;
        // They lie behind those that receive. The last is used first, and again soon: while it is in the cache.
        let free =
            (RECV_FRAMES..RECV_FRAMES + SEND_FRAMES).rev().map(|n| u64::from(n) * frame as u64).collect();
        Ok(Sender { outgoing, done, free })
    }

    /// Takes back the frames that have left.
    fn reclaim(&mut self, frame: usize) {
        let mut any = false;
        while self.free.len() < SEND_FRAMES as usize {
            let Some(addr) = self.done.pop() else { break };
            self.free.push(addr - addr % frame as u64);
            any = true;
        }
        if any {
            self.done.release();
        }
    }
}

/// Bytes of a frame that is ours. The numbers come from the kernel and are checked all the same.
fn span(memory: &Mapping, addr: u64, len: u32) -> Option<&[u8]> {
    let at = usize::try_from(addr).ok()?;
    let len = len as usize;
    if at.checked_add(len)? > memory.len() {
        return None;
    }
    // SAFETY: within the mapping. The frame is in the receive ring: neither the kernel nor we write it until it is given
    // back, which needs the queue borrowed again.
    Some(unsafe { core::slice::from_raw_parts(memory.as_ptr().add(at), len) })
}

fn span_mut(memory: &mut Mapping, addr: u64, len: usize) -> Option<&mut [u8]> {
    let at = usize::try_from(addr).ok()?;
    if at.checked_add(len)? > memory.len() {
        return None;
    }
    // SAFETY: within the mapping, which is borrowed. The frame was free: the kernel neither reads nor writes it.
    Some(unsafe { core::slice::from_raw_parts_mut(memory.as_ptr().add(at), len) })
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn set<T>(fd: &OwnedFd, option: i32, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`, which the kernel only reads.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, (&raw const *value).cast(), len) })
}

fn get<T>(fd: &OwnedFd, option: i32, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and length describe `value`, a structure of integers, which is ours to write.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_XDP, option, (&raw mut *value).cast(), &mut len)
    })
}

fn offsets(fd: &OwnedFd) -> io::Result<libc::xdp_mmap_offsets> {
    // SAFETY: the structure is integers, for which all zeroes is a value.
    let mut at: libc::xdp_mmap_offsets = unsafe { core::mem::zeroed() };
    get(fd, libc::XDP_MMAP_OFFSETS, &mut at)?;
    Ok(at)
}

fn layout(at: libc::xdp_ring_offset) -> Layout {
    Layout {
        producer: at.producer as usize,
        consumer: at.consumer as usize,
        flags: at.flags as usize,
        entries: at.desc as usize,
    }
}

fn map<T>(fd: &OwnedFd, at: libc::xdp_ring_offset, size: u32, page: u64) -> io::Result<Mapping> {
    Mapping::of(fd.as_fd(), layout(at).bytes::<T>(size), page)
}

/// Best effort: what is refused makes sending slower, not wrong.
fn roomy(fd: &OwnedFd) {
    let len = size_of::<i32>() as libc::socklen_t;
    for (level, option, value) in [
        (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER),
        (libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, BUDGET),
    ] {
        // SAFETY: pointer and length describe `value`, which the kernel only reads.
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_fit_their_memory() {
        assert_eq!(memory_for(1_514), Some(SMALL));
        assert_eq!(memory_for(SMALL - HEADROOM + 1), Some(LARGE));
        assert_eq!(memory_for(LONGEST), Some(LARGE));
        assert_eq!(memory_for(LONGEST + 1), None);
    }

    #[test]
    fn out_of_range_frame_addresses_are_rejected() {
        let mut m = Mapping::anonymous(8_192).unwrap();
        assert_eq!(span(&m, 8_000, 192).map(<[u8]>::len), Some(192));
        assert_eq!(span(&m, 8_000, 193), None);
        assert_eq!(span(&m, u64::MAX, 1), None);
        assert!(span_mut(&mut m, 4_096, 4_096).is_some());
        assert!(span_mut(&mut m, 4_097, 4_096).is_none());
    }
}
