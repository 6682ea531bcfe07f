//! Memory of the program's own.

use lhio::fault_copy;
use verbs::{Backing, Memory};

/// A range of the program's memory.
struct ProgramMemory {
    first: *mut u8,
    len: usize,
    writable: bool,
}

// SAFETY: it is an address; `of_program` demands that the bytes may be used from any thread.
unsafe impl Send for ProgramMemory {}

// SAFETY: `of_program` demands of its caller what the trait does.
unsafe impl Backing for ProgramMemory {
    fn as_ptr(&self) -> *mut u8 {
        self.first
    }
    fn len(&self) -> usize {
        self.len
    }
    fn writable(&self) -> bool {
        self.writable
    }
    unsafe fn copy_from(&self, at: usize, out: &mut [u8]) -> bool {
        // SAFETY: the caller's promise and that of `of_program`; what the program has unmapped is reported.
        unsafe { fault_copy::copy(self.first.add(at), out.as_mut_ptr(), out.len()) }
    }
    unsafe fn copy_to(&self, at: usize, data: &[u8]) -> bool {
        // SAFETY: as above.
        unsafe { fault_copy::copy(data.as_ptr(), self.first.add(at), data.len()) }
    }
}

/// Memory of the program's own, to be registered. When the program unmaps it too early, work that uses it fails: an adapter would
/// have pinned it.
///
/// # Safety
/// Until it is deregistered, what is mapped of the `len` bytes from `first` on may be read, and written if `writable`, from any
/// thread, and no Rust reference leads into them. As with an adapter, the program sees bytes change at any time.
pub unsafe fn of_program(first: *mut u8, len: usize, writable: bool) -> Memory {
    fault_copy::install();
    Memory::from_backing(Box::new(ProgramMemory { first, len, writable }))
}
