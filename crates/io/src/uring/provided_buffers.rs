//! The receive buffers provided to io_uring.

use crate::udp::slot::Slot;
use io_uring::types::BufRingEntry;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, Ordering::Release};

/// The buffers that the kernel may fill, and those it has filled.
///
/// The kernel learns of them in a ring of addresses: we write an entry and then move the ring's tail; it takes entries from
/// the other end, and names each by the number we gave it.
#[derive(Debug)]
pub(super) struct ProvidedBuffers {
    /// By number; empty where nothing is lent.
    slots: Box<[Slot]>,
    /// Numbers of the empty ones.
    free: Vec<u16>,
    /// Filled: number and bytes written, in order of arrival. No more than there are slots.
    filled: VecDeque<(u16, usize)>,
    /// The ring of addresses, of a power of two entries; a page, as the kernel wants it.
    ring: Slot,
    entries: u16,
    tail: u16,
    payload: usize,
    head: usize,
}

impl ProvidedBuffers {
    /// `count` buffers, each with room for `payload` bytes behind `head` bytes. None is lent yet.
    pub(super) fn new(count: usize, payload: usize, head: usize) -> ProvidedBuffers {
        let entries = count.next_power_of_two();
        assert!(entries <= 256, "one page holds 256 entries");
        let mut lent = ProvidedBuffers {
            slots: (0..count).map(|_| Slot::default()).collect(),
            free: (0..count as u16).rev().collect(),
            filled: VecDeque::with_capacity(count),
            ring: Slot::new(entries * size_of::<BufRingEntry>(), 0),
            entries: entries as u16,
            tail: 0,
            payload,
            head,
        };
        lent.top_up();
        lent
    }

    /// Where the ring of addresses is.
    pub(super) fn address(&self) -> u64 {
        self.ring.provide().0 as u64
    }

    /// Its entries.
    pub(super) fn entries(&self) -> u16 {
        self.entries
    }

    /// Lends again what a batch held, and makes up for what is missing: buffers of a batch that was dropped.
    pub(super) fn reclaim(&mut self, slots: &mut [Slot]) {
        for s in slots {
            if s.fits(self.payload, self.head) {
                self.provide(std::mem::take(s));
            }
        }
        self.top_up();
    }

    fn top_up(&mut self) {
        while !self.free.is_empty() {
            self.provide(Slot::new(self.payload, self.head));
        }
    }

    /// Gives a buffer to the kernel; one too many is freed.
    pub(super) fn provide(&mut self, slot: Slot) {
        let Some(id) = self.free.pop() else { return };
        let (address, len) = slot.provide();
        self.slots[usize::from(id)] = slot;
        let ring: *mut BufRingEntry = self.ring.provide().0.cast();
        let at = usize::from(self.tail & (self.entries - 1));
        // SAFETY: entry `at` is inside the ring; the kernel reads only entries between its head and the tail, and there
        // are at least as many entries as buffers, so this one is not among them.
        let entry = unsafe { &mut *ring.add(at) };
        entry.set_addr(address as u64);
        entry.set_len(len as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail is 16 bits inside the first entry, aligned, which only we write; the kernel reads it at any time,
        // hence the atomic. Released: the entry is complete before the kernel sees it.
        unsafe {
            let tail = BufRingEntry::tail(ring).cast_mut();
            AtomicU16::from_ptr(tail).store(self.tail, Release);
        }
    }

    /// The kernel has filled buffer `id` with `len` bytes, head included.
    pub(super) fn arrived(&mut self, id: u16, len: usize) {
        // The kernel names what it was given, once; anything else would hand out memory that it still writes.
        let known = self.slots.get(usize::from(id)).is_some_and(|s| !s.is_empty());
        assert!(
            known && self.filled.len() < self.slots.len(),
            "the kernel filled a buffer that it does not have"
        );
        self.filled.push_back((id, len));
    }

    /// The kernel has given buffer `id` back without a message.
    pub(super) fn unused(&mut self, id: u16) {
        if let Some(slot) = self.slots.get_mut(usize::from(id)).filter(|s| !s.is_empty()) {
            let slot = std::mem::take(slot);
            self.free.push(id);
            self.provide(slot);
        }
    }

    pub(super) fn nothing_arrived(&self) -> bool {
        self.filled.is_empty()
    }

    /// The next filled buffer, and the bytes written into it. It is the caller's.
    pub(super) fn next(&mut self) -> Option<(Slot, usize)> {
        let (id, len) = self.filled.pop_front()?;
        self.free.push(id);
        Some((std::mem::take(&mut self.slots[usize::from(id)]), len))
    }
}
