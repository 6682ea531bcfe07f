//! Wakes a sleeping thread, with one signal for any number of notifications.

use crate::sync::{AtomicBool, Ordering};

/// What a sleeping thread waits for: on Linux an eventfd.
pub trait Signal {
    /// Ends the present or the next wait.
    fn raise(&self);
    /// Takes back what was raised, so that the next wait lasts.
    fn clear(&self);
}

/// A bell that many may ring and one listens to. Rings before the listener has answered cost an atomic swap and no
/// signal.
#[derive(Debug)]
pub struct Wakeup<S> {
    /// It rings, and the listener has not answered yet.
    pending: AtomicBool,
    signal: S,
}

impl<S: Signal> Wakeup<S> {
    /// A silent bell.
    pub fn new(signal: S) -> Wakeup<S> {
        Wakeup { pending: AtomicBool::new(false), signal }
    }

    /// Wakes the listener, now or when it next waits. Everything that was written before is visible to it after
    /// [`Wakeup::acknowledge`].
    pub fn notify(&self) {
        if !self.pending.swap(true, Ordering::AcqRel) {
            self.signal.raise();
        }
    }

    /// The listener has been woken: call before looking at what there is to do. The order matters. A ring that found the
    /// bell ringing was before this, so what it rang for is seen by the look that follows; one that comes later raises
    /// the signal anew.
    pub fn acknowledge(&self) {
        self.signal.clear();
        self.pending.swap(false, Ordering::AcqRel);
    }

    /// What the listener waits for.
    pub fn signal(&self) -> &S {
        &self.signal
    }
}
