//! Lock-free handover of values between two threads: a value belongs to one thread at a time and moves through a
//! bounded [`ring`]. A thread that finds its ring empty sleeps until a [`Wakeup`].
//!
//! ```
//! let (mut to, mut from) = longhaul_handover::ring(4);
//! let thread = std::thread::spawn(move || to.push(vec![1, 2, 3]).is_ok());
//! while !from.is_gone() {}
//! assert_eq!(from.pop(), Some(vec![1, 2, 3]));
//! assert!(thread.join().is_ok_and(|pushed| pushed));
//! ```
//!
//! Built with `--cfg loom`, the same code runs on the atomics of the `loom` crate, which tries every order of steps that
//! the memory model allows (`tests/loom.rs`).

mod ring;
mod wakeup;

pub use ring::{MAX_CAPACITY, Receiver, Sender, ring};
pub use wakeup::{Signal, Wakeup};

/// Atomics and cells, the real ones or those of the model.
mod sync {
    #[cfg(loom)]
    pub use loom::{
        cell::UnsafeCell,
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicUsize, Ordering},
        },
    };
    #[cfg(not(loom))]
    pub use real::*;

    #[cfg(not(loom))]
    mod real {
        pub use std::sync::{
            Arc,
            atomic::{AtomicBool, AtomicUsize, Ordering},
        };

        /// The interface of the model's cell over the real one.
        #[derive(Debug)]
        pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

        impl<T> UnsafeCell<T> {
            pub fn new(value: T) -> UnsafeCell<T> {
                UnsafeCell(core::cell::UnsafeCell::new(value))
            }
            #[inline]
            pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
                f(self.0.get())
            }
        }
    }
}
