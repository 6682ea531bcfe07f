//! The memory and the rings that an AF_XDP socket shares with the kernel.
//!
//! A ring has one producer and one consumer, of which one is the kernel. Both count entries from zero without end; the
//! count, cut to the ring's size (a power of two), is the place.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Mapped memory, unmapped when it is dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory belongs to the mapping alone, whichever thread holds it; only the kernel shares it, by the rules of
// the rings.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Memory of our own, all zeroes.
    pub(super) fn anonymous(len: usize) -> io::Result<Mapping> {
        Mapping::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    /// Memory behind a descriptor, present at once.
    pub(super) fn of(fd: BorrowedFd<'_>, len: usize, offset: u64) -> io::Result<Mapping> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        Mapping::map(len, libc::MAP_SHARED, fd.as_raw_fd(), offset)
    }

    fn map(len: usize, flags: i32, fd: i32, offset: libc::off_t) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = flags | libc::MAP_POPULATE;
        // SAFETY: without an address asked for, a new mapping disturbs nothing that exists.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), len, protection, flags, fd, offset) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(at.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        Ok(Mapping { start, len })
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing borrows from it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Where the parts of a ring lie in its mapping, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) flags: usize,
    pub(super) entries: usize,
}

impl Layout {
    /// Bytes of a ring of `size` entries of type `T`.
    pub(super) fn bytes<T>(&self, size: u32) -> usize {
        self.entries + size as usize * size_of::<T>()
    }
}

/// One end of a ring of `T`: numbers, and structures of numbers, for which all bytes are values.
#[derive(Debug)]
pub(super) struct Ring<T> {
    memory: Mapping,
    layout: Layout,
    size: u32,
    /// Our count, ahead of what the kernel has been told.
    ours: u32,
    /// The kernel's count when it was last read.
    theirs: u32,
    entry: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// The end of a ring that starts at the counts which the memory holds.
    ///
    /// # Errors
    /// `InvalidInput` when the layout does not fit the memory or `size` is no power of two.
    fn new(memory: Mapping, layout: Layout, size: u32, producer: bool) -> io::Result<Ring<T>> {
        let counts = [layout.producer, layout.consumer, layout.flags];
        let sound = counts.iter().all(|at| at % 4 == 0 && at + 4 <= memory.len())
            && layout.entries.is_multiple_of(align_of::<T>())
            && layout.bytes::<T>(size) <= memory.len()
            && size.is_power_of_two();
        if !sound {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the kernel describes an impossible ring",
            ));
        }
        let mut r = Ring { memory, layout, size, ours: 0, theirs: 0, entry: PhantomData };
        let (p, c) = (layout.producer, layout.consumer);
        (r.ours, r.theirs) = if producer { (r.load(p), r.load(c)) } else { (r.load(c), r.load(p)) };
        Ok(r)
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `new` has checked that an aligned word lies at each of the three offsets that are used, within the
        // mapping, which lives as long as the ring; it is shared with the kernel by atomic access only.
        unsafe { &*self.memory.as_ptr().add(at).cast::<AtomicU32>() }
    }
    fn load(&self, at: usize) -> u32 {
        self.word(at).load(Ordering::Acquire)
    }

    fn place(&self, count: u32) -> *mut T {
        let index = (count & (self.size - 1)) as usize;
        // SAFETY: `new` has checked that `size` entries lie in the mapping.
        unsafe { self.memory.as_ptr().add(self.layout.entries).cast::<T>().add(index) }
    }

    /// The kernel sleeps and wants a system call to go on.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.word(self.layout.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// The end that hands entries to the kernel.
#[derive(Debug)]
pub(super) struct Producer<T>(Ring<T>);

impl<T: Copy> Producer<T> {
    pub(super) fn new(memory: Mapping, layout: Layout, size: u32) -> io::Result<Producer<T>> {
        Ok(Producer(Ring::new(memory, layout, size, true)?))
    }

    /// Entries for which there is room.
    pub(super) fn room(&mut self) -> u32 {
        let r = &mut self.0;
        r.theirs = r.load(r.layout.consumer);
        // A count that a broken kernel might show leaves no room.
        r.size.saturating_sub(r.ours.wrapping_sub(r.theirs))
    }

    /// Adds an entry; false when the ring is full. The kernel sees it after [`Producer::publish`].
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.0.ours.wrapping_sub(self.0.theirs) >= self.0.size && self.room() == 0 {
            return false;
        }
        // SAFETY: the place is ours to write: the kernel has consumed what was there, or there was nothing.
        unsafe { self.0.place(self.0.ours).write(entry) };
        self.0.ours = self.0.ours.wrapping_add(1);
        true
    }

    /// Shows the kernel all that was pushed.
    pub(super) fn publish(&self) {
        self.0.word(self.0.layout.producer).store(self.0.ours, Ordering::Release);
    }

    /// Entries that the kernel has not taken.
    pub(super) fn pending(&mut self) -> u32 {
        self.0.size - self.room()
    }

    pub(super) fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }
}

/// The end that takes entries from the kernel.
#[derive(Debug)]
pub(super) struct Consumer<T>(Ring<T>);

impl<T: Copy> Consumer<T> {
    pub(super) fn new(memory: Mapping, layout: Layout, size: u32) -> io::Result<Consumer<T>> {
        Ok(Consumer(Ring::new(memory, layout, size, false)?))
    }

    /// The next entry. Its place is the kernel's again after [`Consumer::release`].
    pub(super) fn pop(&mut self) -> Option<T> {
        let entry = self.peek()?;
        self.0.ours = self.0.ours.wrapping_add(1);
        Some(entry)
    }

    /// The next entry, left where it is.
    pub(super) fn peek(&mut self) -> Option<T> {
        let r = &mut self.0;
        if r.ours == r.theirs {
            r.theirs = r.load(r.layout.producer);
            if r.ours == r.theirs {
                return None;
            }
        }
        // SAFETY: the kernel has produced the entry at this place (its count was read with acquire), and leaves it alone
        // until it is released. All bytes are values of `T`.
        Some(unsafe { r.place(r.ours).read() })
    }

    /// Gives the kernel back the places of all that was popped.
    pub(super) fn release(&self) {
        self.0.word(self.0.layout.consumer).store(self.0.ours, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { producer: 0, consumer: 64, flags: 128, entries: 192 };

    /// A ring both of whose counts start at `start`.
    fn memory(size: u32, start: u32) -> Mapping {
        let m = Mapping::anonymous(LAYOUT.bytes::<u64>(size)).unwrap();
        for at in [LAYOUT.producer, LAYOUT.consumer] {
            // SAFETY: in the mapping, aligned, and nobody else has it.
            unsafe { m.as_ptr().add(at).cast::<u32>().write(start) };
        }
        m
    }

    fn copy_count(from: &Ring<u64>, to: &Ring<u64>, at: usize) {
        to.word(at).store(from.load(at), Ordering::Release);
    }

    #[test]
    fn entries_pass_in_order_across_wraparound() {
        for start in [0, 5, u32::MAX - 3, u32::MAX] {
            let mut p = Producer::<u64>::new(memory(8, start), LAYOUT, 8).unwrap();
            let mut c = Consumer::<u64>::new(memory(8, start), LAYOUT, 8).unwrap();
            let (mut sent, mut seen) = (0u64, 0u64);
            for round in 0..50 {
                for _ in 0..round % 9 {
                    if p.push(sent) {
                        sent += 1;
                    }
                }
                p.publish();
                // The other end's memory is this end's, as if they were one.
                for i in 0..8 {
                    // SAFETY: both places are in their mappings and nobody else touches them.
                    unsafe { c.0.place(i).write(p.0.place(i).read()) };
                }
                copy_count(&p.0, &c.0, LAYOUT.producer);
                assert_eq!(u64::from(p.pending()), sent - seen);
                assert_eq!(c.peek(), (sent > seen).then_some(seen));
                for _ in 0..round % 7 {
                    if let Some(n) = c.pop() {
                        assert_eq!(n, seen);
                        seen += 1;
                    }
                }
                c.release();
                copy_count(&c.0, &p.0, LAYOUT.consumer);
            }
            assert!(seen > 100 && sent - seen <= 8, "{sent} {seen}");
        }
    }

    #[test]
    fn full_ring_rejects_and_empty_ring_yields_nothing() {
        let mut p = Producer::<u64>::new(memory(4, u32::MAX - 1), LAYOUT, 4).unwrap();
        assert_eq!((0..6).filter(|n| p.push(*n)).count(), 4);
        assert_eq!(p.room(), 0);
        let mut c = Consumer::<u64>::new(memory(4, 9), LAYOUT, 4).unwrap();
        assert_eq!(c.pop(), None);
    }

    #[test]
    fn invalid_rings_are_rejected() {
        assert!(Producer::<u64>::new(memory(8, 0), LAYOUT, 6).is_err());
        assert!(Producer::<u64>::new(memory(8, 0), LAYOUT, 1 << 20).is_err());
        let odd = Layout { flags: 130, ..LAYOUT };
        assert!(Consumer::<u64>::new(memory(8, 0), odd, 8).is_err());
    }
}
