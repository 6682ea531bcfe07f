//! Tables whose entries are named by generation-checked handles: a handle of a destroyed object never
//! reaches the object that took its place.

use core::marker::PhantomData;

/// A handle: generation in the upper half, index in the lower.
pub(crate) trait Handle: Copy {
    fn from_raw(raw: u64) -> Self;
    fn raw(self) -> u64;
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// The handle as a number, for interfaces that carry handles as integers.
            pub const fn to_raw(self) -> u64 {
                self.0
            }
            /// A handle from a number. One that was never given out is answered with "no such object".
            pub const fn of_raw(raw: u64) -> $name {
                $name(raw)
            }
        }
        impl Handle for $name {
            fn from_raw(raw: u64) -> Self {
                $name(raw)
            }
            fn raw(self) -> u64 {
                self.0
            }
        }
        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{}({}.{})", stringify!($name), self.0 as u32, self.0 >> 32)
            }
        }
    };
}

handle! {
    /// A protection domain.
    PdId
}
handle! {
    /// A memory region.
    MrId
}
handle! {
    /// A memory window.
    MwId
}
handle! {
    /// A completion queue.
    CqId
}
handle! {
    /// A shared receive queue.
    SrqId
}
handle! {
    /// A queue pair.
    QpId
}

struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// A table with a stated limit. All operations take constant time.
pub(crate) struct Slab<H, T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    limit: usize,
    handle: PhantomData<fn() -> H>,
}

impl<H: Handle, T> Slab<H, T> {
    /// An empty table for at most `limit` entries (and never more than `u32::MAX`).
    pub(crate) fn new(limit: usize) -> Slab<H, T> {
        let limit = limit.min(u32::MAX as usize);
        Slab { entries: Vec::new(), free: Vec::new(), limit, handle: PhantomData }
    }
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.entries.len() >= self.limit
    }
    /// Adds `value`; gives it back when the table is full.
    pub(crate) fn insert(&mut self, value: T) -> Result<H, T> {
        if let Some(index) = self.free.pop() {
            let e = &mut self.entries[index as usize];
            e.value = Some(value);
            return Ok(H::from_raw(u64::from(e.generation) << 32 | u64::from(index)));
        }
        if self.is_full() {
            return Err(value);
        }
        let index = self.entries.len() as u64;
        // Generations start at 1, so that no valid handle is the number 0.
        self.entries.push(Entry { generation: 1, value: Some(value) });
        Ok(H::from_raw(1 << 32 | index))
    }
    pub(crate) fn get(&self, h: H) -> Option<&T> {
        let e = self.entries.get(h.raw() as u32 as usize)?;
        if e.generation == (h.raw() >> 32) as u32 { e.value.as_ref() } else { None }
    }
    pub(crate) fn get_mut(&mut self, h: H) -> Option<&mut T> {
        let e = self.entries.get_mut(h.raw() as u32 as usize)?;
        if e.generation == (h.raw() >> 32) as u32 { e.value.as_mut() } else { None }
    }
    /// All values.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().filter_map(|e| e.value.as_ref())
    }
    pub(crate) fn remove(&mut self, h: H) -> Option<T> {
        let index = h.raw() as u32;
        let e = self.entries.get_mut(index as usize)?;
        if e.generation != (h.raw() >> 32) as u32 {
            return None;
        }
        let value = e.value.take()?;
        // An entry whose generations are used up is retired, so that no handle is ever given out twice.
        if let Some(next) = e.generation.checked_add(1) {
            e.generation = next;
            self.free.push(index);
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_handle_does_not_reach_its_successor() {
        let mut s: Slab<QpId, &str> = Slab::new(2);
        let a = s.insert("a").unwrap();
        assert_eq!(s.remove(a), Some("a"));
        let b = s.insert("b").unwrap();
        assert_ne!(a, b);
        assert_eq!(a.to_raw() as u32, b.to_raw() as u32, "the slot is used again");
        assert_eq!(s.get(a), None);
        assert_eq!(s.remove(a), None);
        assert_eq!(s.get_mut(b), Some(&mut "b"));
        assert!(s.insert("c").is_ok());
        assert_eq!(s.insert("d"), Err("d"));
        assert!(s.is_full());
        assert_eq!(s.get(QpId::of_raw(0)), None);
        assert_eq!(s.get(QpId::of_raw(u64::MAX)), None);
    }
}
