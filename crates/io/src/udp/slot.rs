//! A receive buffer for one message that can be lent to the kernel.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Pages: what is lent to the kernel shares none with anything else.
const ALIGN: usize = 4 << 10;

/// Owned memory that is reached by a plain pointer. A `Box` claims its memory for itself even while it is only moved
/// about; of this, somebody else may hold the pointer: who lends it to the kernel puts the `Slot` aside, and neither reads,
/// writes nor drops it before the kernel has given it back.
#[derive(Debug)]
pub(crate) struct Slot {
    /// Of `size` bytes; dangling when that is zero.
    bytes: NonNull<u8>,
    size: usize,
    /// Where the payload begins: what precedes it is the kernel's report.
    at: usize,
}

// SAFETY: the memory is owned and tied to no thread.
unsafe impl Send for Slot {}
// SAFETY: a shared `Slot` gives no access to its memory.
unsafe impl Sync for Slot {}

impl Default for Slot {
    /// Without memory.
    fn default() -> Slot {
        Slot { bytes: NonNull::dangling(), size: 0, at: 0 }
    }
}

impl Slot {
    /// Room for a payload of `payload` bytes behind a head of `head` bytes; not both may be zero.
    pub(crate) fn new(payload: usize, head: usize) -> Slot {
        let layout = layout(head + payload);
        assert!(layout.size() > 0, "slots have a size");
        // SAFETY: the size is not zero.
        let bytes = unsafe { alloc_zeroed(layout) };
        let Some(bytes) = NonNull::new(bytes) else { handle_alloc_error(layout) };
        Slot { bytes, size: head + payload, at: head }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Whether it is like those of [`Slot::new`] with these sizes.
    pub(crate) fn fits(&self, payload: usize, head: usize) -> bool {
        self.size == head + payload && self.at == head
    }

    /// What the kernel is given: the address, and the size in bytes.
    pub(crate) fn provide(&self) -> (*mut u8, usize) {
        (self.bytes.as_ptr(), self.size)
    }

    /// The head.
    pub(crate) fn head(&self) -> &[u8] {
        // SAFETY: `at <= size` bytes that were zeroed when they were allocated, and that nobody writes while `self` is
        // borrowed: a slot that the kernel has is left alone (see above).
        unsafe { core::slice::from_raw_parts(self.bytes.as_ptr(), self.at) }
    }

    /// The room for the payload; allocated if there is none, of `payload` bytes.
    pub(crate) fn ready(&mut self, payload: usize) -> &mut [u8] {
        if self.is_empty() {
            *self = Slot::new(payload, 0);
        }
        self.payload()
    }

    /// The room for the payload.
    pub(crate) fn payload(&mut self) -> &mut [u8] {
        // SAFETY: as above, for the bytes from `at` to `size`; borrowed for as long as `self` is.
        unsafe { core::slice::from_raw_parts_mut(self.bytes.as_ptr().add(self.at), self.size - self.at) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.size > 0 {
            // SAFETY: allocated with this layout, and dropped once.
            unsafe { dealloc(self.bytes.as_ptr(), layout(self.size)) };
        }
    }
}

/// Sizes are constants of this crate, below a mebibyte.
fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, ALIGN).expect("slots are small")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_has_a_head_and_a_payload() {
        let mut s = Slot::new(100, 16);
        assert!(s.fits(100, 16) && !s.fits(116, 0) && !s.is_empty());
        assert_eq!((s.head().len(), s.payload().len(), s.provide().1), (16, 100, 116));
        s.payload().fill(7);
        assert!(s.head().iter().all(|b| *b == 0));
        assert!(Slot::default().is_empty() && Slot::default().payload().is_empty());
    }
}
