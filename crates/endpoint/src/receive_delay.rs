//! How long received datagrams may wait before they are processed: the shortest delay that the active connections
//! allow.

use base::{Span, Time};

/// Delays noted within this time, and the one before it, count.
const WINDOW: Span = Span::from_millis(100);

/// The shortest allowed delay of the connections that received something recently.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveDelay {
    since: Time,
    here: Span,
    before: Span,
}

impl Default for ReceiveDelay {
    fn default() -> ReceiveDelay {
        ReceiveDelay { since: Time::ZERO, here: Span::MAX, before: Span::MAX }
    }
}

impl ReceiveDelay {
    /// Notes that something arrived for a connection that allows this delay.
    pub(crate) fn note(&mut self, now: Time, max_delay: Span) {
        let passed = now.since(self.since);
        if passed >= WINDOW {
            self.before = if passed < WINDOW * 2 { self.here } else { Span::MAX };
            (self.since, self.here) = (now, Span::MAX);
        }
        self.here = self.here.min(max_delay);
    }

    /// The shortest delay noted; zero when nothing has arrived.
    pub(crate) fn least(&self) -> Option<Span> {
        let least = self.here.min(self.before);
        (least < Span::MAX).then_some(least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_delay_of_active_connections_wins() {
        let (mut p, us) = (ReceiveDelay::default(), Span::from_micros);
        assert_eq!(p.least(), None);
        let at = |ms: u64| Time::ZERO + Span::from_millis(1_000 + ms);
        p.note(at(0), us(400));
        p.note(at(50), us(70));
        p.note(at(110), us(400));
        assert_eq!(p.least(), Some(us(70)), "it was there less than a window ago");
        p.note(at(220), us(400));
        assert_eq!(p.least(), Some(us(400)));
        p.note(at(230), us(20));
        p.note(at(900), us(300));
        assert_eq!(p.least(), Some(us(300)));
    }
}
