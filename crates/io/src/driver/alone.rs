//! Messages that come one by one: whoever waits for them spares the kernel what is of use to streams of data only.

use base::{Span, Time};

/// Messages in a row that came alone after which they are expected to go on so.
const ALONE: u32 = 32;
/// The socket is changed for it at most this often: the first and the last socket of a system that is stamped for patches the
/// kernel's code.
const PAUSE: Span = Span::from_millis(100);

/// How messages come.
#[derive(Debug)]
pub(super) struct Alone {
    /// Messages that came alone since the last that did not.
    count: u32,
    /// The socket is as they need it.
    lean: bool,
    /// When that was begun last.
    began: Option<Time>,
}

impl Alone {
    pub(super) const fn new() -> Alone {
        Alone { count: 0, lean: false, began: None }
    }

    /// A look brought one datagram and nothing else. True when so many have that the socket may be attached.
    pub(super) fn one(&mut self) -> bool {
        self.count += 1;
        let enough = self.count >= ALONE;
        if enough {
            self.count = 0;
        }
        enough
    }

    /// They do not come so any more, or nobody looks.
    pub(super) fn end(&mut self) {
        self.count = 0;
    }

    /// Whether the socket is to become lean, after many came alone.
    pub(super) fn begins(&mut self, now: Time) -> bool {
        let begins = !self.lean && self.began.is_none_or(|t| now.since(t) >= PAUSE);
        if begins {
            (self.lean, self.began) = (true, Some(now));
        }
        begins
    }

    /// Whether the socket is lean and is not to be so any more.
    pub(super) fn ends(&mut self) -> bool {
        core::mem::take(&mut self.lean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_in_a_row_are_enough_and_the_socket_is_changed_rarely() {
        let (mut a, at) = (Alone::new(), |ms: u64| Time::ZERO + Span::from_millis(ms));
        assert_eq!((1..=2 * ALONE).filter(|_| a.one()).count(), 2);
        assert!(!a.ends());
        assert!(a.begins(at(1)) && !a.begins(at(2)));
        assert!(a.ends() && !a.ends());
        assert!(!a.begins(at(50)) && a.begins(at(101)));
        (1..ALONE).for_each(|_| assert!(!a.one()));
        a.end();
        (1..ALONE).for_each(|_| assert!(!a.one()));
    }
}
