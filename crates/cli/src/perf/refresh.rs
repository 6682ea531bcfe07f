//! Requests fresh counters in one turn of the loop, to be read in the next.

use base::Time;

/// When counters are wanted next, and whether they have been asked for: those of iWARP come from the system, a turn later.
#[derive(Debug, Default)]
pub struct CounterRequest {
    /// When to look at them next; `None`: never.
    pub at: Option<Time>,
    asked: bool,
}

impl CounterRequest {
    /// Whether it is time to look, and counters are at hand: `refresh` asks for them, and they are there in the next turn.
    pub fn is_due(&mut self, now: Time, refresh: impl FnOnce()) -> bool {
        if self.at.is_none_or(|at| now < at) {
            return false;
        }
        if !core::mem::replace(&mut self.asked, true) {
            refresh();
            return false;
        }
        self.asked = false;
        true
    }
}
