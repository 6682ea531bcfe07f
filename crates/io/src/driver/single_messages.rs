//! Detects that messages arrive one at a time, so that the socket can skip work that only helps bulk data.

use base::{Span, Time};

/// After this many single messages more are expected; at most twice as many are counted.
const ENOUGH_SINGLES: u32 = 32;
/// How many of them a receive that brought several cancels. A report arrives together with a message now and then
/// (every twentieth between two ends that spin); bulk data does so with nearly every receive.
const SEVERAL_PENALTY: u32 = 4;
/// The socket is changed for it at most this often: the first and the last socket of a system that is stamped for patches the
/// kernel's code.
const PAUSE: Span = Span::from_millis(100);

/// Counts how messages arrive.
#[derive(Debug)]
pub(super) struct SingleMessages {
    /// Messages that came alone lately, less what those in company take back.
    count: u32,
    /// The socket is as they need it.
    lean: bool,
    /// When that was begun last.
    began: Option<Time>,
}

impl SingleMessages {
    pub(super) const fn new() -> SingleMessages {
        SingleMessages { count: 0, lean: false, began: None }
    }

    /// A receive brought one datagram. Returns true when so many did that the socket may be attached.
    pub(super) fn on_single(&mut self) -> bool {
        self.count = (self.count + 1).min(2 * ENOUGH_SINGLES);
        self.count >= ENOUGH_SINGLES
    }

    /// A receive brought several datagrams. Returns true when that has become usual.
    pub(super) fn on_several(&mut self) -> bool {
        self.count = self.count.saturating_sub(SEVERAL_PENALTY);
        self.count == 0
    }

    /// They do not come so any more, or nobody looks.
    pub(super) fn end(&mut self) {
        self.count = 0;
    }

    /// Whether the socket is to become lean, after many came alone.
    pub(super) fn should_become_lean(&mut self, now: Time) -> bool {
        let begins = !self.lean && self.began.is_none_or(|t| now.since(t) >= PAUSE);
        if begins {
            (self.lean, self.began) = (true, Some(now));
        }
        begins
    }

    /// Whether the socket is as they need it.
    pub(super) const fn is_lean(&self) -> bool {
        self.lean
    }

    /// Whether the socket is lean and is not to be so any more.
    pub(super) fn should_end_lean(&mut self) -> bool {
        core::mem::take(&mut self.lean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occasional_batches_keep_single_message_mode() {
        let mut a = SingleMessages::new();
        for _ in 0..10 {
            for _ in 0..20 {
                let _ = a.on_single();
            }
            assert!(!a.on_several());
        }
        assert!(a.on_single(), "sixteen of twenty count");
        let looks = (1..).find(|_| a.on_several());
        assert_eq!(looks, Some(2 * ENOUGH_SINGLES / SEVERAL_PENALTY), "each look brings several");
        assert!(!a.on_single());
    }

    #[test]
    fn single_message_mode_starts_after_many_and_changes_rarely() {
        let (mut a, at) = (SingleMessages::new(), |ms: u64| Time::ZERO + Span::from_millis(ms));
        assert!((1..ENOUGH_SINGLES).all(|_| !a.on_single()) && a.on_single());
        assert!(!a.should_end_lean() && !a.is_lean());
        assert!(a.should_become_lean(at(1)) && !a.should_become_lean(at(2)));
        assert!(a.is_lean() && a.should_end_lean() && !a.should_end_lean());
        assert!(!a.should_become_lean(at(50)) && a.should_become_lean(at(101)));
        a.end();
        assert!((1..ENOUGH_SINGLES).all(|_| !a.on_single()));
    }
}
