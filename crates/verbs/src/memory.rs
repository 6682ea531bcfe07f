//! Memory that can be registered. The only unsafe code of this crate: copies from and to foreign memory.

use base::Prefetch;
use core::fmt;

/// Memory that is not a plain Rust buffer: a mapped file, memory shared with another process, a device.
///
/// # Safety
///
/// From creation until drop, wherever the object is moved:
/// * `as_ptr` and `len` always return the same values, and `len` bytes from `as_ptr` are one allocation or
///   mapping that may be read (and, when `writable` returns true, written) from any thread;
/// * nothing in this process holds a Rust reference into these bytes or frees or unmaps them;
/// * a failure of the backing store (a truncated file) must not end in undefined behaviour; `fault` reports it.
///
/// Other processes may change the bytes at any time; what a copy then sees is unspecified.
pub unsafe trait Backing: Send {
    /// First byte.
    fn as_ptr(&self) -> *mut u8;
    /// Length in bytes. At most `isize::MAX`.
    fn len(&self) -> usize;
    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Whether the bytes may be written.
    fn writable(&self) -> bool;
    /// Whether an access has failed since creation. Asked after every copy.
    fn fault(&self) -> bool {
        false
    }
    /// Copies the bytes from `at` on to `out`. False when they are not to be trusted. Memory that may be gone copies in a way of its
    /// own.
    ///
    /// # Safety
    /// `at + out.len()` is at most [`len`](Backing::len), and `out` lies elsewhere.
    unsafe fn copy_from(&self, at: usize, out: &mut [u8]) -> bool {
        // SAFETY: the bytes are readable for the object's life, by its promise; the rest is the caller's.
        unsafe { core::ptr::copy_nonoverlapping(self.as_ptr().add(at), out.as_mut_ptr(), out.len()) };
        !self.fault()
    }
    /// Copies `data` to the bytes from `at` on. False when they could not be written.
    ///
    /// # Safety
    /// `at + data.len()` is at most [`len`](Backing::len), `data` lies elsewhere, and the memory is [`writable`](Backing::writable).
    unsafe fn copy_to(&self, at: usize, data: &[u8]) -> bool {
        // SAFETY: as above.
        unsafe { core::ptr::copy_nonoverlapping(data.as_ptr(), self.as_ptr().add(at), data.len()) };
        !self.fault()
    }
}

/// Lengths of what is written with the place of more to come fetched ahead: payloads of packets, but not of those as long as
/// a train, which the processor fetches by itself.
const AHEAD: core::ops::RangeInclusive<usize> = 512..=16 << 10;

/// Bytes of foreign memory that are looked at together.
pub(crate) const PIECE: usize = 4096;

enum Owner {
    Bytes(Box<[u8]>),
    Backing(Box<dyn Backing>),
}

/// Owned bytes, ready to be registered. While registered they can only be reached by copying.
pub struct Memory {
    owner: Owner,
    len: u64,
    writable: bool,
}

/// Why a copy was not made, or not to be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyError {
    Bounds,
    ReadOnly,
    Fault,
}

impl Memory {
    /// `len` zero bytes. Large sizes cost address space until they are touched.
    pub fn zeroed(len: usize) -> Memory {
        Memory::from(vec![0; len])
    }
    /// Memory of another kind.
    pub fn from_backing(backing: Box<dyn Backing>) -> Memory {
        let (len, writable) = (backing.len() as u64, backing.writable());
        Memory { owner: Owner::Backing(backing), len, writable }
    }
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }
    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Whether the bytes may be written.
    pub fn writable(&self) -> bool {
        self.writable
    }
    /// The bytes, when they are a plain buffer; otherwise the memory itself again.
    ///
    /// # Errors
    /// Memory made by [`Memory::from_backing`] is returned unchanged.
    pub fn into_vec(self) -> Result<Vec<u8>, Memory> {
        match self.owner {
            Owner::Bytes(b) => Ok(b.into_vec()),
            owner @ Owner::Backing(_) => Err(Memory { owner, ..self }),
        }
    }
    /// The backing object, when it was made from one; otherwise the memory itself again.
    ///
    /// # Errors
    /// Memory made from a plain buffer is returned unchanged.
    pub fn into_backing(self) -> Result<Box<dyn Backing>, Memory> {
        match self.owner {
            Owner::Backing(b) => Ok(b),
            owner @ Owner::Bytes(_) => Err(Memory { owner, ..self }),
        }
    }

    /// Copies `out.len()` bytes at `offset` to `out`.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), CopyError> {
        let (at, end) = self.range(offset, out.len())?;
        match &self.owner {
            Owner::Bytes(b) => out.copy_from_slice(b.get(at..end).ok_or(CopyError::Bounds)?),
            Owner::Backing(b) => {
                // SAFETY: at..end lies within the `len` bytes that `Backing` promises to be readable for its
                // life; `out` is an exclusive Rust slice, which by the same promise never overlaps them.
                if !unsafe { b.copy_from(at, out) } {
                    return Err(CopyError::Fault);
                }
            }
        }
        Ok(())
    }

    /// The bytes from `offset` on, `len` at most, if they are to be read soon.
    pub(crate) fn prefetch_hint(&self, offset: u64, len: u64) -> Prefetch {
        let len = len.min(self.len.saturating_sub(offset));
        let Ok((at, end)) = self.range(offset, usize::try_from(len).unwrap_or(0)) else {
            return Prefetch::default();
        };
        let first = match &self.owner {
            Owner::Bytes(b) => b.as_ptr(),
            Owner::Backing(b) => b.as_ptr().cast_const(),
        };
        Prefetch::new(first.wrapping_add(at), end - at)
    }

    /// Copies `data` to the bytes at `offset`.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), CopyError> {
        if !self.writable {
            return Err(CopyError::ReadOnly);
        }
        let (at, end) = self.range(offset, data.len())?;
        match &mut self.owner {
            Owner::Bytes(b) => b.get_mut(at..end).ok_or(CopyError::Bounds)?.copy_from_slice(data),
            Owner::Backing(b) => {
                // SAFETY: at..end lies within the `len` bytes that `Backing` promises to be writable for its
                // life (`writable` was true); `data` is a Rust slice, which never overlaps them.
                if !unsafe { b.copy_to(at, data) } {
                    return Err(CopyError::Fault);
                }
            }
        }
        if AHEAD.contains(&data.len()) {
            // Likely the place of the packet after the next: it is brought near while the next one is opened.
            let n = data.len() as u64;
            self.prefetch_hint(end as u64 + n, n).fetch(data.len());
        }
        Ok(())
    }

    /// Gives the `len` bytes at `offset` to `f`: at once, or copied in pieces when they are foreign memory, into which
    /// there must be no references.
    pub(crate) fn fold(&self, offset: u64, len: u64, f: &mut dyn FnMut(&[u8])) -> Result<(), CopyError> {
        let n = usize::try_from(len).map_err(|_| CopyError::Bounds)?;
        let (at, end) = self.range(offset, n)?;
        if let Owner::Bytes(b) = &self.owner {
            f(b.get(at..end).ok_or(CopyError::Bounds)?);
            return Ok(());
        }
        self.fold_pieces(offset, len, f)
    }

    /// Not inlined: whoever only might need it would have a page of the stack made for it.
    #[inline(never)]
    fn fold_pieces(&self, offset: u64, len: u64, f: &mut dyn FnMut(&[u8])) -> Result<(), CopyError> {
        let mut piece = [0; PIECE];
        let mut at = offset;
        while at < offset + len {
            let n = (offset + len - at).min(PIECE as u64) as usize;
            self.read(at, &mut piece[..n])?;
            f(&piece[..n]);
            at += n as u64;
        }
        Ok(())
    }

    /// The address of the `len` bytes at `offset`.
    pub(crate) fn address(&mut self, offset: u64, len: u64) -> Result<*mut u8, CopyError> {
        let n = usize::try_from(len).map_err(|_| CopyError::Bounds)?;
        let (at, end) = self.range(offset, n)?;
        match &mut self.owner {
            Owner::Bytes(b) => Ok(b.get_mut(at..end).ok_or(CopyError::Bounds)?.as_mut_ptr()),
            // SAFETY: `at` lies within the `len` bytes that `Backing` promises, or just behind them.
            Owner::Backing(b) => Ok(unsafe { b.as_ptr().add(at) }),
        }
    }

    /// Checks `offset .. offset + n` without overflow.
    fn range(&self, offset: u64, n: usize) -> Result<(usize, usize), CopyError> {
        let end = offset.checked_add(n as u64).ok_or(CopyError::Bounds)?;
        if end > self.len {
            return Err(CopyError::Bounds);
        }
        // `len` came from a usize, so everything below it fits one.
        Ok((offset as usize, end as usize))
    }
}

impl From<Box<[u8]>> for Memory {
    fn from(b: Box<[u8]>) -> Memory {
        Memory { len: b.len() as u64, owner: Owner::Bytes(b), writable: true }
    }
}
impl From<Vec<u8>> for Memory {
    fn from(v: Vec<u8>) -> Memory {
        Memory::from(v.into_boxed_slice())
    }
}
impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({} bytes)", self.len)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use core::cell::UnsafeCell;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Foreign memory that fails on request.
    pub(crate) struct Foreign {
        bytes: Box<[UnsafeCell<u8>]>,
        writable: bool,
        pub(crate) broken: Arc<AtomicBool>,
    }
    impl Foreign {
        pub(crate) fn new(len: usize, writable: bool) -> Foreign {
            let bytes = (0..len).map(|_| UnsafeCell::new(0)).collect();
            Foreign { bytes, writable, broken: Arc::default() }
        }
    }
    // SAFETY: the boxed cells live, and stay where they are, as long as the object; nothing refers into them.
    unsafe impl Backing for Foreign {
        fn as_ptr(&self) -> *mut u8 {
            UnsafeCell::raw_get(self.bytes.as_ptr())
        }
        fn len(&self) -> usize {
            self.bytes.len()
        }
        fn writable(&self) -> bool {
            self.writable
        }
        fn fault(&self) -> bool {
            self.broken.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn both_memory_kinds_copy_within_bounds() {
        for mut m in [Memory::zeroed(10), Memory::from_backing(Box::new(Foreign::new(10, true)))] {
            assert_eq!(m.write(3, &[1, 2, 3]), Ok(()));
            let mut out = [9; 10];
            assert_eq!(m.read(0, &mut out), Ok(()));
            assert_eq!(out, [0, 0, 0, 1, 2, 3, 0, 0, 0, 0]);
            assert_eq!(m.write(8, &[1, 2, 3]), Err(CopyError::Bounds));
            assert_eq!(m.read(u64::MAX, &mut out), Err(CopyError::Bounds));
            assert_eq!(m.read(10, &mut []), Ok(()));
            assert_eq!(m.read(11, &mut []), Err(CopyError::Bounds));
        }
    }

    #[test]
    fn faults_and_read_only_mappings_are_reported() {
        let f = Foreign::new(4, false);
        let broken = f.broken.clone();
        let mut m = Memory::from_backing(Box::new(f));
        assert_eq!(m.write(0, &[1]), Err(CopyError::ReadOnly));
        assert_eq!(m.read(0, &mut [0; 4]), Ok(()));
        broken.store(true, Ordering::Relaxed);
        assert_eq!(m.read(0, &mut [0; 4]), Err(CopyError::Fault));
        let m = m.into_vec().unwrap_err();
        assert_eq!(m.into_backing().map(|b| b.len()).ok(), Some(4));
        assert_eq!(Memory::from(vec![7; 3]).into_vec().unwrap(), [7; 3]);
    }
}
