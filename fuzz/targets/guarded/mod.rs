//! Memory between guard areas, looked at from outside while it is registered.

use std::cell::UnsafeCell;
use std::sync::Arc;
use verbs::{Backing, Memory};

/// Bytes of the region that the peer may write.
pub const REGION: usize = 256;
/// Bytes of each guard area.
const GUARD: usize = 256;
/// What guard areas hold, and all memory that must stay as it is.
pub const UNTOUCHED: u8 = 0xa5;

/// The region and both guard areas.
pub struct Guarded(UnsafeCell<[u8; GUARD + REGION + GUARD]>);

// SAFETY: the targets have one thread.
unsafe impl Sync for Guarded {}

impl Guarded {
    /// Untouched memory, and what to register of it.
    pub fn memory() -> (Arc<Guarded>, Memory) {
        let all = Arc::new(Guarded(UnsafeCell::new([UNTOUCHED; GUARD + REGION + GUARD])));
        let memory = Memory::from_backing(Box::new(Middle(all.clone())));
        (all, memory)
    }

    /// The region as it is now. Panics unless the guard areas are untouched.
    pub fn check(&self) -> [u8; REGION] {
        // SAFETY: one thread, and no reference into the bytes outlives the copy.
        let all = unsafe { *self.0.get() };
        let (before, rest) = all.split_at(GUARD);
        let (middle, behind) = rest.split_at(REGION);
        assert!(before.iter().chain(behind).all(|b| *b == UNTOUCHED), "a guard area was written");
        middle.try_into().expect("the region's length")
    }
}

struct Middle(Arc<Guarded>);

// SAFETY: pointer and length never change, the bytes live as long as the object, nobody holds references.
unsafe impl Backing for Middle {
    fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the middle begins inside of the allocation.
        unsafe { self.0.0.get().cast::<u8>().add(GUARD) }
    }
    fn len(&self) -> usize {
        REGION
    }
    fn writable(&self) -> bool {
        true
    }
}
