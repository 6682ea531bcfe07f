//! Tools of algorithms that decide a rate, and of those that need short trains.

use super::{MIN_PACKETS, MIN_RATE};
use crate::{Decision, PathInfo, Signals, pacer};
use base::{Rate, Span, Time};

/// The round trip assumed before any is known.
const INITIAL_RTT: Span = Span::from_millis(1);
/// Highest rate of any decision, 100 Tbit/s: far above any port and far below an overflow.
pub(super) const MAX_RATE: Rate = Rate::from_bytes_per_sec(12_500_000_000_000);
/// Round trips of data in flight that the congestion window allows, a safety net for times without feedback.
const CWND_ROUNDS: u64 = 2;
/// Trains that it allows in addition, for paths shorter than a train.
const CWND_TRAINS: u64 = 4;
/// Most halvings of the rate while time-outs repeat.
const MAX_BACKOFF: u32 = 10;

/// The bytes of a train that takes at most `within` at `rate`: at least one packet, at most [`pacer::quantum`].
pub(super) fn train_bytes(rate: Rate, packet: u64, within: Span) -> u64 {
    let few = rate.bytes_in(within) / packet * packet;
    few.clamp(packet, pacer::quantum(rate, packet).max(packet))
}

/// The state of a flow that is governed by a rate alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacedFlow {
    /// Bytes of a full packet.
    pub(super) packet: u64,
    pub(super) rtt: Span,
    timeouts: u32,
    is_used: bool,
    /// Start of the last recovery: losses of packets sent before it are covered by its reduction.
    recovery_start: Option<Time>,
}

impl PacedFlow {
    /// The state and the initial rate: the known one, or `packets` per round trip.
    pub(super) fn new(info: &PathInfo, packets: u64) -> (PacedFlow, Rate) {
        let packet = info.packet_bytes.max(1);
        let rtt = info.handshake_rtt.filter(|r| !r.is_zero()).unwrap_or(INITIAL_RTT);
        let first = info.known_rate.unwrap_or(Rate::from_bytes_in(packets.saturating_mul(packet), rtt));
        (PacedFlow { packet, rtt, timeouts: 0, is_used: false, recovery_start: None }, clamp_rate(first))
    }

    pub(super) fn update(&mut self, s: &Signals, rate: Rate) {
        if !s.srtt.is_zero() {
            self.rtt = s.srtt;
        }
        if s.acked > 0 {
            self.timeouts = 0;
            // Half of the rate has to arrive; otherwise application, host or path are the limit, and a higher rate
            // has no effect.
            let enough = s.rate.is_none_or(|r| !r.app_limited && r.rate >= rate.scale(1, 2));
            self.is_used = !s.app_limited && enough;
        }
    }

    /// Whether the rate is in use, so that it may grow.
    pub(super) const fn is_used(&self) -> bool {
        self.is_used
    }

    /// Whether the feedback reports a new loss; if so, a recovery begins.
    pub(super) fn begin_recovery_on_loss(&mut self, s: &Signals) -> bool {
        let old =
            self.recovery_start.zip(s.latest_lost_sent).is_some_and(|(answered, sent)| sent <= answered);
        let new = s.lost > 0 && !old;
        if new {
            self.recovery_start = Some(s.now);
        }
        new
    }

    pub(super) fn on_timeout(&mut self, count: u32) {
        self.timeouts = count;
    }

    /// The decision for this rate, with trains that take at most `within`.
    pub(super) fn decision(&self, rate: Rate, within: Span) -> Decision {
        // The first time-out may be a lost feedback.
        let backoff = self.timeouts.saturating_sub(1).min(MAX_BACKOFF);
        let rate = clamp_rate(rate.scale(1, 1 << backoff));
        let quantum = train_bytes(rate, self.packet, within);
        let net = rate.bytes_in(self.rtt).saturating_mul(CWND_ROUNDS).saturating_add(CWND_TRAINS * quantum);
        Decision { rate, cwnd: net.clamp(self.packet.saturating_mul(MIN_PACKETS), u64::MAX / 2), quantum }
    }
}

/// Clamps a rate to what may be decided.
pub(super) fn clamp_rate(rate: Rate) -> Rate {
    rate.clamp(MIN_RATE, MAX_RATE)
}
