//! Whether the peer is where its packets say.

use base::{Span, Time};
use std::net::{IpAddr, SocketAddr};
use wire::Frame;

/// PATH_CHALLENGE is sent at most this often.
const MAX_CHALLENGES: u32 = 5;
/// Least time before the second one; each further wait is twice as long. A host that is busy for a moment is not given up
/// (RFC 9000, section 8.2.4, asks for patience).
const MIN_GAP: Span = Span::from_millis(50);

/// The peer may be at this address: nothing but challenges, and answers to its own, goes there until it answers (RFC
/// 9000, sections 8.2 and 9.3).
#[derive(Debug)]
pub struct PathCheck {
    /// Its address.
    pub remote: SocketAddr,
    /// Ours.
    pub local: Option<IpAddr>,
    challenge: [u8; 8],
    sent: u32,
    sent_at: Time,
    next: Time,
    gap: Span,
}

impl PathCheck {
    /// A check to begin at once, its challenge to be repeated after `gap`, but at least 50 ms.
    pub fn new(
        now: Time,
        (remote, local): (SocketAddr, Option<IpAddr>),
        challenge: [u8; 8],
        gap: Span,
    ) -> PathCheck {
        PathCheck { remote, local, challenge, sent: 0, sent_at: now, next: now, gap: gap.max(MIN_GAP) }
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
        self.sent += 1;
        self.sent_at = now;
        self.next = now + self.gap;
        self.gap = self.gap * 2;
        Some(Frame::PathChallenge(self.challenge))
    }

    /// Whether no answer has come in all its time.
    pub fn is_over(&self, now: Time) -> bool {
        self.sent >= MAX_CHALLENGES && now >= self.next
    }

    /// Whether this is the answer.
    pub fn is_answer(&self, data: &[u8; 8]) -> bool {
        crate::crypto::same(&self.challenge, data)
    }

    /// The round trip of an answer that comes now, when it is clear which challenge it answers.
    pub fn round_trip(&self, now: Time) -> Option<Span> {
        (self.sent == 1).then(|| now.since(self.sent_at))
    }
}
