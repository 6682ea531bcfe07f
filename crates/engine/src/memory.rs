//! Memory of the program's own.

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
    fn fault(&self) -> bool {
        false
    }
}

/// Memory of the program's own, to be registered.
///
/// # Safety
/// Until it is deregistered, the `len` bytes from `first` on are one allocation or mapping that may be read, and written if
/// `writable`, from any thread, and no Rust reference leads into them. As with an adapter, the program sees bytes change at any time.
pub unsafe fn of_program(first: *mut u8, len: usize, writable: bool) -> Memory {
    Memory::from_backing(Box::new(ProgramMemory { first, len, writable }))
}
