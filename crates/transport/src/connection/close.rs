//! Closing a connection, and following a peer whose address changed (NAT rebinding).

use super::{ConnEvent, Connection, DatagramInfo, State};
use crate::crypto::{KeyPair, Side};
use crate::error::{CloseReason, Unreachable, Violation, words};
use base::{Span, Time};
use wire::{Frame, LongHeader};

/// CLOSE is repeated at most this often.
const MAX_CLOSE: u32 = 4;
/// Packet number under which a Retry is sealed: never one of an Initial.
pub const RETRY_PN: u64 = u32::MAX as u64;

/// State after this end has closed: CLOSE is retransmitted until the peer acknowledges it.
#[derive(Debug)]
pub(super) struct Closing {
    /// CLOSE to send; nothing when only the peer's is to be acknowledged.
    close: Option<(u64, String)>,
    sent: u32,
    next: Time,
    gap: Span,
    /// Nothing was ever heard of the peer: it is told once, and no answer is waited for.
    once: bool,
}

impl Closing {
    pub(super) fn next_timeout(&self) -> Time {
        self.next
    }
    /// Whether waiting has been long enough. An acknowledgement is said before: time passes between what arrived and what
    /// is sent in the same turn.
    pub(super) fn is_over(&self, now: Time) -> bool {
        now >= self.next && (self.is_done() || self.sent >= MAX_CLOSE)
    }
    /// The frame to send now.
    pub(super) fn poll(&mut self, now: Time) -> Option<Frame<'_>> {
        if now < self.next || self.sent >= MAX_CLOSE {
            return None;
        }
        self.sent += 1;
        self.next = now + self.gap;
        self.gap = self.gap * 2;
        Some(match &self.close {
            Some((code, reason)) => Frame::Close { code: *code, reason: reason.as_bytes() },
            None => Frame::CloseAck,
        })
    }
    /// Whether the one word that acknowledges, or that is said to nobody, has been said.
    pub(super) fn is_done(&self) -> bool {
        (self.close.is_none() || self.once) && self.sent > 0
    }
}

impl Connection {
    /// A client's, to which nothing was answered yet.
    pub fn is_unanswered(&self) -> bool {
        matches!(self.state, State::Handshake) && self.side == Side::Client && !self.handshake.is_heard()
    }

    /// The network has said that there will be no answer, and the caller believes it: anybody could have said so. Without effect
    /// once anything was answered.
    pub fn unreachable(&mut self, why: Unreachable) {
        if self.is_unanswered() {
            self.end(CloseReason::Unreachable { remote: self.remote(), why });
        }
    }

    /// Closes: one exchange, then nothing is left. What is unsent or unacknowledged is given up, so the caller
    /// waits for its completions first. Codes of applications start at
    /// [`crate::error::code::APPLICATION`].
    pub fn close(&mut self, now: Time, code: u64, reason: &str) {
        if !matches!(self.state, State::Handshake | State::Open) {
            return;
        }
        self.events.push_back(ConnEvent::Closed(CloseReason::Local));
        self.start_closing(now, Some((code, reason.chars().take(wire::frame::MAX_REASON / 4).collect())));
    }

    /// The peer broke the protocol, or this end cannot go on: says so and ends.
    pub(super) fn fail(&mut self, now: Time, v: &Violation) {
        if !matches!(self.state, State::Handshake | State::Open) {
            return;
        }
        let reason = match self.state {
            _ if matches!(v.code, crate::error::code::NO_COMMON_CC | crate::error::code::NO_COMMON_SUITE) => {
                CloseReason::NothingInCommon(v.reason.clone())
            }
            State::Handshake => CloseReason::Handshake(v.reason.clone()),
            _ if v.code == crate::error::code::UNAUTHORISED => CloseReason::Handshake(v.reason.clone()),
            _ => CloseReason::Violation(v.reason.clone()),
        };
        self.events.push_back(ConnEvent::Closed(reason));
        self.start_closing(now, Some((v.code, v.reason.chars().take(wire::frame::MAX_REASON / 4).collect())));
    }

    /// The peer is heard of, but acknowledges no data: waiting on would be for ever.
    pub(super) fn stall(&mut self, now: Time) {
        let since = self.lanes.iter().filter_map(crate::lane::Lane::unacknowledged_since).min();
        let seconds = now.since(since.unwrap_or(now)).as_nanos() / 1_000_000_000;
        self.events.push_back(ConnEvent::Closed(CloseReason::Stalled(seconds)));
        let words = format!("no data was acknowledged for {seconds} s");
        self.start_closing(now, Some((crate::error::code::STALLED, words)));
    }

    fn start_closing(&mut self, now: Time, close: Option<(u64, String)>) {
        let gap = self.lanes[self.main_lane()].rtt.probe_timeout();
        let once = self.is_unanswered();
        self.state = State::Closing(Closing { close, sent: 0, next: now, gap, once });
    }

    /// The peer closes: acknowledge once and forget everything. If the acknowledgement is lost, the peer's
    /// repeated CLOSE is answered by a stateless reset, which says the same.
    pub(super) fn on_peer_close(&mut self, now: Time, code: u64, reason: &[u8]) {
        match self.state {
            State::Handshake | State::Open => {
                let reason = CloseReason::Peer { code, reason: words(reason) };
                self.events.push_back(ConnEvent::Closed(reason));
                self.start_closing(now, None);
            }
            // Both closed at the same time: this is as good as an acknowledgement.
            State::Closing(_) => self.start_closing(now, None),
            State::Closed => {}
        }
    }

    /// The peer has understood: nothing is left.
    pub(super) fn on_close_ack(&mut self) {
        if matches!(self.state, State::Closing(_)) {
            self.state = State::Closed;
        }
    }

    /// A genuine packet, the newest so far on its lane, came from another address: a NAT has changed its mind, or the peer
    /// has moved.
    pub(super) fn on_new_address(&mut self, now: Time, lane: usize, meta: DatagramInfo) {
        if self.lanes[lane].path.as_ref().is_none_or(|p| p.remote != meta.remote) {
            self.start_path_validation(now, lane, (meta.remote, meta.local));
        }
    }
}

/// Whether a Retry was made by someone who saw the client's first packet.
pub(super) fn retry_is_genuine(original_dcid: &[u8], header: &LongHeader<'_>, datagram: &[u8]) -> bool {
    let (head, tag) = datagram.split_at(header.clear);
    let mut keys = KeyPair::initial(original_dcid, Side::Client);
    keys.open(false, 0, RETRY_PN, head, tag, &mut []).is_ok()
}
