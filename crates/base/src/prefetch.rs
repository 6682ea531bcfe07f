//! Prefetches memory into the processor's cache before it is read.

/// Bytes of a line of the caches: 64 on all processors this is made for.
const LINE: usize = 64;

/// Bytes that will be read soon. A hint: only addresses, by which nothing is read, so that it does not matter whether the
/// memory is still there when they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefetch {
    at: usize,
    len: usize,
}

impl Prefetch {
    /// The `len` bytes from `first` on.
    pub fn new(first: *const u8, len: usize) -> Prefetch {
        Prefetch { at: first.addr(), len }
    }

    /// Bytes that were not asked for yet.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether all were asked for.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// At most the first `len`.
    pub fn first(self, len: usize) -> Prefetch {
        Prefetch { len: self.len.min(len), ..self }
    }

    /// Asks for the next `n` bytes, and does not wait. They come into the second cache: what is being worked on keeps the
    /// first one, and its few requests for memory, to itself.
    #[inline]
    pub fn fetch(&mut self, n: usize) {
        let n = n.min(self.len);
        let first = self.at & !(LINE - 1);
        let lines = (self.at - first).saturating_add(n).div_ceil(LINE);
        for line in 0..if n > 0 { lines } else { 0 } {
            fetch(first.wrapping_add(line * LINE));
        }
        (self.at, self.len) = (self.at.wrapping_add(n), self.len - n);
    }
}

#[cfg(target_arch = "x86_64")]
fn fetch(at: usize) {
    use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    // SAFETY: a prefetch reads nothing and never faults, whatever the address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(core::ptr::without_provenance(at)) };
}

#[cfg(target_arch = "aarch64")]
fn fetch(at: usize) {
    // SAFETY: as above.
    unsafe {
        core::arch::asm!("prfm pldl2keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly))
    };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn fetch(_: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_lines_are_prefetched_once() {
        let bytes = [0u8; 1000];
        let mut soon = Prefetch::new(bytes.as_ptr(), bytes.len());
        let first = soon.at;
        soon.fetch(300);
        assert_eq!((soon.at, soon.len()), (first + 300, 700));
        soon.fetch(0);
        soon.fetch(900);
        assert_eq!((soon.at, soon.len(), soon.is_empty()), (first + 1000, 0, true));
        soon.fetch(1);
        assert_eq!(soon.len(), 0);
        assert_eq!(Prefetch::new(bytes.as_ptr(), 1000).first(64).len(), 64);
    }

    #[test]
    fn prefetching_an_unmapped_address_is_harmless() {
        for at in [0, 1, 4096, usize::MAX - 10, usize::MAX] {
            let mut soon = Prefetch { at, len: 1 << 12 };
            soon.fetch(100);
            soon.fetch(usize::MAX);
            assert!(soon.is_empty());
        }
        Prefetch::default().fetch(5);
    }
}
