//! What algorithms share that decide a rate and nothing else, or trains of the finest sort.

use super::{MIN_PACKETS, MIN_RATE};
use crate::{Decision, PathInfo, Signals, pacer};
use base::{Rate, Span, Time};

/// The round trip assumed before any is known.
const INITIAL_RTT: Span = Span::from_millis(1);
/// Most that is ever decided, 100 Tbit/s: far above any port, far below what overflows.
pub(super) const MAX_RATE: Rate = Rate::from_bytes_per_sec(12_500_000_000_000);
/// The bound lets this many round trips of data be in flight: a net below the rate, for the time in which feedback is gone.
const NET_ROUNDS: u64 = 2;
/// And so many trains beyond, for paths shorter than a train.
const NET_TRAINS: u64 = 4;
/// Most halvings of the rate while time-outs repeat.
const MAX_BACKOFF: u32 = 10;

/// Bytes that leave back to back when a train may take no longer than `within` at `rate`; at least a packet, and no more
/// than [`pacer::quantum`] makes of it.
pub(super) fn train(rate: Rate, packet: u64, within: Span) -> u64 {
    let few = rate.bytes_in(within) / packet * packet;
    few.clamp(packet, pacer::quantum(rate, packet).max(packet))
}

/// What a flow that is governed by a rate alone has to keep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paced {
    /// Bytes of a full packet.
    pub(super) packet: u64,
    pub(super) rtt: Span,
    timeouts: u32,
    used: bool,
    /// When losses were last answered: those of packets sent before belong to what was answered.
    answered: Option<Time>,
}

impl Paced {
    /// And the rate to begin with: one that is known, or `packets` a round trip.
    pub(super) fn new(info: &PathInfo, packets: u64) -> (Paced, Rate) {
        let packet = info.packet_bytes.max(1);
        let rtt = info.handshake_rtt.filter(|r| !r.is_zero()).unwrap_or(INITIAL_RTT);
        let first = info.known_rate.unwrap_or(Rate::from_bytes_in(packets.saturating_mul(packet), rtt));
        (Paced { packet, rtt, timeouts: 0, used: false, answered: None }, limited(first))
    }

    pub(super) fn update(&mut self, s: &Signals, rate: Rate) {
        if !s.srtt.is_zero() {
            self.rtt = s.srtt;
        }
        if s.acked > 0 {
            self.timeouts = 0;
            // Half of it has to arrive: else application, host or path are the limit, and more of it would mean nothing.
            let enough = s.rate.is_none_or(|r| !r.app_limited && r.rate >= rate.scale(1, 2));
            self.used = !s.app_limited && enough;
        }
    }

    /// Whether the rate is in use, so that it may grow.
    pub(super) const fn is_used(&self) -> bool {
        self.used
    }

    /// Whether the feedback tells of a loss that was not answered yet; if so it is from now on.
    pub(super) fn answer_loss(&mut self, s: &Signals) -> bool {
        let old = self.answered.zip(s.latest_lost_sent).is_some_and(|(answered, sent)| sent <= answered);
        let new = s.lost > 0 && !old;
        if new {
            self.answered = Some(s.now);
        }
        new
    }

    pub(super) fn on_timeout(&mut self, count: u32) {
        self.timeouts = count;
    }

    /// The rate, in trains that take no longer than `within`.
    pub(super) fn decision(&self, rate: Rate, within: Span) -> Decision {
        // The first time-out may be a lost feedback.
        let backoff = self.timeouts.saturating_sub(1).min(MAX_BACKOFF);
        let rate = limited(rate.scale(1, 1 << backoff));
        let quantum = train(rate, self.packet, within);
        let net = rate.bytes_in(self.rtt).saturating_mul(NET_ROUNDS).saturating_add(NET_TRAINS * quantum);
        Decision { rate, bound: net.clamp(self.packet.saturating_mul(MIN_PACKETS), u64::MAX / 2), quantum }
    }
}

/// Within what may be decided.
pub(super) fn limited(rate: Rate) -> Rate {
    rate.clamp(MIN_RATE, MAX_RATE)
}
