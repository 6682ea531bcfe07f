//! A bounded single-producer, single-consumer queue.

use crate::sync::{Arc, AtomicUsize, Ordering, UnsafeCell};

/// Values that a ring holds at most.
pub const MAX_CAPACITY: usize = 1 << 16;

/// A counter on cache lines of its own: each is written by one thread and read by the other.
#[derive(Debug)]
#[repr(align(128))]
struct CachePadded(AtomicUsize);

/// `None` is a place that is free.
struct Shared<T> {
    places: Box<[UnsafeCell<Option<T>>]>,
    /// Values put in so far, wrapping. Written by the sender.
    head: CachePadded,
    /// Values taken out so far, wrapping. Written by the receiver.
    tail: CachePadded,
}

// SAFETY: a value moves from one thread to another, which `T: Send` allows. A place is touched by the sender only while
// `head - tail` does not count it, and by the receiver only while it does; both see to that with the counters, whose
// release and acquire order the accesses.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<T> {}

/// Puts values in. There is one of each ring.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
    head: usize,
    /// The receiver's counter when last looked at: it only grows.
    tail: usize,
}

/// Takes values out. There is one of each ring.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    tail: usize,
    /// The sender's counter when last looked at.
    head: usize,
}

/// A ring for `capacity` values, at least one and at most [`MAX_CAPACITY`], rounded up to a power of two. What is in it
/// when both ends are gone is dropped.
pub fn ring<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let size = capacity.clamp(1, MAX_CAPACITY).next_power_of_two();
    let shared = Arc::new(Shared {
        places: (0..size).map(|_| UnsafeCell::new(None)).collect(),
        head: CachePadded(AtomicUsize::new(0)),
        tail: CachePadded(AtomicUsize::new(0)),
    });
    (Sender { shared: shared.clone(), head: 0, tail: 0 }, Receiver { shared, tail: 0, head: 0 })
}

impl<T> Shared<T> {
    fn place(&self, count: usize) -> &UnsafeCell<Option<T>> {
        &self.places[count & (self.places.len() - 1)]
    }
}

impl<T: Send> Sender<T> {
    /// Puts a value in, or gives it back when the ring is full.
    ///
    /// # Errors
    /// Full.
    pub fn push(&mut self, value: T) -> Result<(), T> {
        if self.is_full() {
            return Err(value);
        }
        // SAFETY: the place is not counted by `head - tail`, so the receiver does not touch it, and the acquire in
        // `is_full` saw that it is done with it.
        self.shared.place(self.head).with_mut(|p| unsafe { *p = Some(value) });
        self.head = self.head.wrapping_add(1);
        self.shared.head.0.store(self.head, Ordering::Release);
        Ok(())
    }

    /// Whether no further value fits now.
    pub fn is_full(&mut self) -> bool {
        let size = self.shared.places.len();
        if self.head.wrapping_sub(self.tail) == size {
            self.tail = self.shared.tail.0.load(Ordering::Acquire);
        }
        self.head.wrapping_sub(self.tail) == size
    }

    /// Whether nobody will take out anything any more.
    pub fn is_gone(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }
}

impl<T: Send> Receiver<T> {
    /// Takes the oldest value out.
    pub fn pop(&mut self) -> Option<T> {
        if self.tail == self.head {
            self.head = self.shared.head.0.load(Ordering::Acquire);
        }
        if self.tail == self.head {
            return None;
        }
        // SAFETY: the place is counted by `head - tail`, so the sender does not touch it, and the acquire saw that it is
        // filled.
        let value = self.shared.place(self.tail).with_mut(|p| unsafe { (*p).take() });
        self.tail = self.tail.wrapping_add(1);
        self.shared.tail.0.store(self.tail, Ordering::Release);
        value
    }

    /// Whether nobody will put in anything any more. What is in the ring can still be taken out.
    pub fn is_gone(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }
}

impl<T> core::fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Sender({} put in)", self.head)
    }
}
impl<T> core::fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Receiver({} taken out)", self.tail)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc as StdArc;

    #[test]
    fn values_are_fifo_and_a_full_ring_returns_them() {
        let (mut tx, mut rx) = ring(3);
        assert_eq!(rx.pop(), None);
        for round in 0..10 {
            for i in 0..4 {
                assert_eq!(tx.push(round * 10 + i), Ok(()));
            }
            assert_eq!(tx.push(99), Err(99));
            assert!(tx.is_full());
            for i in 0..4 {
                assert_eq!(rx.pop(), Some(round * 10 + i));
            }
            assert!(!tx.is_full());
        }
        assert_eq!(rx.pop(), None);
    }

    #[test]
    fn counters_wrap_correctly() {
        let (mut tx, mut rx) = ring(2);
        for c in [&tx.shared.head.0, &tx.shared.tail.0] {
            c.store(usize::MAX, Ordering::Relaxed);
        }
        (tx.head, tx.tail, rx.head, rx.tail) = (usize::MAX, usize::MAX, usize::MAX, usize::MAX);
        for i in 0..5 {
            assert!(tx.push(i).is_ok() && tx.push(i + 100).is_ok() && tx.push(0).is_err());
            assert_eq!((rx.pop(), rx.pop(), rx.pop()), (Some(i), Some(i + 100), None));
        }
    }

    #[test]
    fn dropped_end_is_detected_without_leaks() {
        let counted = StdArc::new(());
        let (mut tx, mut rx) = ring(8);
        for _ in 0..5 {
            assert!(tx.push(counted.clone()).is_ok());
        }
        assert!(!rx.is_gone() && !tx.is_gone());
        drop(tx);
        assert!(rx.is_gone());
        assert!(rx.pop().is_some());
        drop(rx);
        assert_eq!(StdArc::strong_count(&counted), 1);
    }

    #[test]
    fn million_values_pass_between_threads() {
        let (mut tx, mut rx) = ring(64);
        let thread = std::thread::spawn(move || {
            for i in 0..1_000_000u64 {
                while tx.push(i).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        for i in 0..1_000_000u64 {
            let got = loop {
                match rx.pop() {
                    Some(v) => break v,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(got, i);
        }
        assert!(thread.join().is_ok());
        assert_eq!(rx.pop(), None);
    }
}
