//! Wakes a sleeping thread, with one signal for any number of notifications.

use crate::sync::{AtomicBool, Ordering};

/// The signal that a sleeping thread waits for: on Linux an eventfd.
pub trait Signal {
    /// Ends the present or the next wait.
    fn raise(&self);
    /// Takes back what was raised, so that the next wait lasts.
    fn clear(&self);
}

/// A wakeup of one thread by any number of others. Notifications before it was acknowledged cost an atomic swap and
/// no signal.
#[derive(Debug)]
pub struct Wakeup<S> {
    /// It rings, and the listener has not answered yet.
    pending: AtomicBool,
    signal: S,
}

impl<S: Signal> Wakeup<S> {
    /// A wakeup without a notification.
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

    /// The thread has been woken: call this before checking for work. The order matters. A notification that found
    /// one pending was made before this, so its work is seen by the check that follows; a later one raises the signal
    /// again.
    pub fn acknowledge(&self) {
        self.signal.clear();
        self.pending.swap(false, Ordering::AcqRel);
    }

    /// What the listener waits for.
    pub fn signal(&self) -> &S {
        &self.signal
    }
}
