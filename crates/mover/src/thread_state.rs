//! The activity of a walking or listing thread, for the description of a stalled transfer.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// What a walking or listing thread does at present. The thread writes it, others read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Activity {
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

/// The activity of one thread, shared with its session.
#[derive(Clone, Default)]
pub(crate) struct ThreadState(Arc<AtomicU8>);

impl ThreadState {
    pub fn set(&self, s: Activity) {
        self.0.store(s as u8, Ordering::Relaxed);
    }
    /// Whether it handles files and does not wait.
    pub fn is_working(&self) -> bool {
        self.get() == Activity::Works
    }
    fn get(&self) -> Activity {
        use Activity::*;
        let all = [Works, AwaitsListing, AwaitsCredit, AwaitsSession, Ended];
        all.get(self.0.load(Ordering::Relaxed) as usize).copied().unwrap_or(Works)
    }
}

impl fmt::Debug for ThreadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.get() {
            Activity::Works => "at work",
            Activity::AwaitsListing => "waits for the peer's listing",
            Activity::AwaitsCredit => "waits for credit of the peer",
            Activity::AwaitsSession => "waits for its session to take what it found",
            Activity::Ended => "ended",
        })
    }
}
