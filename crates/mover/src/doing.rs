//! What a thread of a transfer is doing, for descriptions of a transfer that stands still.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// What a thread that walks or lists is doing. One writes, others look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    /// Looks at files.
    Works = 0,
    /// Waits until the peer's listing goes on.
    AwaitsListing = 1,
    /// Waits until the peer asks for more of the listing.
    AwaitsCredit = 2,
    /// Waits until its session takes what it found.
    AwaitsSession = 3,
    /// Has ended.
    Ended = 4,
}

/// Shared between such a thread and its session.
#[derive(Clone, Default)]
pub(crate) struct Doing(Arc<AtomicU8>);

impl Doing {
    pub fn set(&self, s: Step) {
        self.0.store(s as u8, Ordering::Relaxed);
    }
    /// Whether it looks at files, and waits for nobody.
    pub fn works(&self) -> bool {
        self.get() == Step::Works
    }
    fn get(&self) -> Step {
        use Step::*;
        let all = [Works, AwaitsListing, AwaitsCredit, AwaitsSession, Ended];
        all.get(self.0.load(Ordering::Relaxed) as usize).copied().unwrap_or(Works)
    }
}

impl fmt::Debug for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.get() {
            Step::Works => "at work",
            Step::AwaitsListing => "waits for the peer's listing",
            Step::AwaitsCredit => "waits for credit of the peer",
            Step::AwaitsSession => "waits for its session to take what it found",
            Step::Ended => "ended",
        })
    }
}
