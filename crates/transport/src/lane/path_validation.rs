//! Path validation: proves that the peer receives at an address (RFC 9000, section 8.2).

use base::{Span, Time};
use std::net::{IpAddr, SocketAddr};
use wire::Frame;

/// PATH_CHALLENGE is sent at most this often.
pub const MAX_CHALLENGES: usize = 5;
/// Least time before the second one; each further wait is twice as long. A host that is busy for a moment is not given up
/// (RFC 9000, section 8.2.4, asks for patience).
const MIN_GAP: Span = Span::from_millis(50);

/// The validation of one address: nothing is sent there but PATH_CHALLENGE, and answers to the peer's, until the peer
/// responds (RFC 9000, sections 8.2 and 9.3).
#[derive(Debug)]
pub struct PathValidation {
    /// Its address.
    pub remote: SocketAddr,
    /// Ours.
    pub local: Option<IpAddr>,
    /// One for each time (RFC 9000, section 8.2.1: "An endpoint MUST use unpredictable data in every PATH_CHALLENGE frame so
    /// that it can associate the peer's response with the corresponding PATH_CHALLENGE").
    challenges: [[u8; 8]; MAX_CHALLENGES],
    sent_at: [Time; MAX_CHALLENGES],
    sent: usize,
    next: Time,
    gap: Span,
}

impl PathValidation {
    /// A check to begin at once, with another of these challenges after `gap`, but at least 50 ms.
    pub fn new(
        now: Time,
        (remote, local): (SocketAddr, Option<IpAddr>),
        challenges: [[u8; 8]; MAX_CHALLENGES],
        gap: Span,
    ) -> PathValidation {
        let sent_at = [now; MAX_CHALLENGES];
        PathValidation { remote, local, challenges, sent_at, sent: 0, next: now, gap: gap.max(MIN_GAP) }
    }

    /// When there is something to do.
    pub fn next_timeout(&self) -> Time {
        self.next
    }

    /// The challenge to send now.
    pub fn poll(&mut self, now: Time) -> Option<Frame<'static>> {
        if now < self.next || self.sent >= MAX_CHALLENGES {
            return None;
        }
        let challenge = self.challenges[self.sent];
        self.sent_at[self.sent] = now;
        self.sent += 1;
        self.next = now + self.gap;
        self.gap = self.gap * 2;
        Some(Frame::PathChallenge(challenge))
    }

    /// Whether no answer has come in all its time.
    pub fn is_over(&self, now: Time) -> bool {
        self.sent >= MAX_CHALLENGES && now >= self.next
    }

    /// Whether this answers one of the challenges that were sent: then when that was.
    pub fn answered(&self, data: &[u8; 8]) -> Option<Time> {
        let sent = self.challenges.iter().zip(&self.sent_at).take(self.sent);
        // All are looked at, in the same time.
        sent.fold(None, |at, (c, t)| if crate::crypto::same(c, data) { Some(*t) } else { at })
    }
}
