//! What window-based algorithms share: the window itself, recovery periods, and the window as a rate.

use super::MIN_PACKETS;
use super::paced::limited;
use crate::registry::{Kind, ParamDef};
use crate::{Decision, PathInfo, Signals, pacer};
use base::{Rate, Span, Time};

/// The round trip assumed before any is known (RFC 9002, section 6.2.2).
const INITIAL_RTT: Span = Span::from_millis(333);
/// Pacing gain, in thousandths, so that pacing does not hold the window down (RFC 9002, section 7.7).
const PACING: u64 = 1_250;
/// Pacing gain while the window doubles each round trip.
const SLOW_START_PACING: u64 = 2_000;
/// A window leaves in so many parts at least.
const WINDOW_PARTS: u64 = 8;
/// Least time a window is spread over.
const MIN_SPREAD: Span = Span::from_micros(1);
/// Most that may ever be in flight.
pub(super) const MAX_BOUND: u64 = u64::MAX / 2;
/// Most halvings of the rate while time-outs repeat.
const MAX_BACKOFF: u32 = 10;

/// The parameter for the initial window (RFC 9002, section 7.2 recommends ten packets).
pub(super) const INITIAL_WINDOW: ParamDef = ParamDef {
    name: "initial_window",
    help: "what may be in flight at the start",
    kind: Kind::Count { unit: "packets", min: 2, max: 10_000, default: 10 },
};

/// A congestion window.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Bytes of a full packet.
    pub(super) packet: u64,
    /// The window in bytes.
    pub(super) cwnd: u64,
    /// Below it, slow start.
    pub(super) ssthresh: u64,
    /// What is grown but not yet a whole byte.
    fraction: f64,
    /// Bytes acknowledged in congestion avoidance that have not yet earned a packet.
    earned: u64,
    /// When the last reduction was made.
    recovery: Option<Time>,
    srtt: Span,
    timeouts: u32,
}

impl Window {
    pub(super) fn new(info: &PathInfo, packets: u64) -> Window {
        let packet = info.packet_bytes.max(1);
        let rtt = info.handshake_rtt.filter(|r| !r.is_zero());
        // A known rate is trusted for the first window, and slow start ends there (RFC 9959).
        let known = info.known_rate.zip(rtt).map(|(rate, rtt)| rate.bytes_in(rtt));
        let initial = packets.saturating_mul(packet);
        Window {
            packet,
            cwnd: known.map_or(initial, |k| k.max(initial)),
            ssthresh: known.filter(|k| *k > initial).unwrap_or(u64::MAX),
            fraction: 0.0,
            earned: 0,
            recovery: None,
            srtt: rtt.unwrap_or(INITIAL_RTT),
            timeouts: 0,
        }
    }

    /// The least window.
    pub(super) fn least(&self) -> u64 {
        self.packet.saturating_mul(MIN_PACKETS)
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    pub(super) fn update(&mut self, s: &Signals) {
        if !s.srtt.is_zero() {
            self.srtt = s.srtt;
        }
        if s.acked > 0 {
            self.timeouts = 0;
        }
    }

    /// Whether a packet sent then belongs to the episode that the last reduction answered (RFC 9002, 7.3.2).
    pub(super) fn in_recovery(&self, sent: Option<Time>) -> bool {
        match (self.recovery, sent) {
            (Some(start), Some(sent)) => sent <= start,
            _ => false,
        }
    }

    /// Something was done at `now` that answers losses of all packets sent before.
    pub(super) fn begin_recovery(&mut self, now: Time) {
        self.recovery = Some(now);
    }

    /// Whether the feedback tells of a new episode of congestion: a loss, or a mark, of a packet sent after
    /// the last reduction (RFC 9002, sections 7.1 and 7.3.2).
    pub(super) fn is_new_episode(&self, s: &Signals) -> bool {
        self.is_new_loss(s) || self.is_new_mark(s)
    }

    /// Of those two, a loss.
    pub(super) fn is_new_loss(&self, s: &Signals) -> bool {
        s.lost > 0 && !self.in_recovery(s.latest_lost_sent)
    }

    /// Of those two, a mark.
    pub(super) fn is_new_mark(&self, s: &Signals) -> bool {
        s.ce_packets > 0 && !self.in_recovery(s.newest_acked_sent)
    }

    /// Reduces the window to `num / den` of itself and begins a recovery period.
    pub(super) fn reduce(&mut self, now: Time, num: u64, den: u64) {
        let cut = u128::from(self.cwnd) * u128::from(num) / u128::from(den);
        self.reduce_to(now, u64::try_from(cut).unwrap_or(u64::MAX));
    }

    /// Reduces the window to `bytes` and begins a recovery period.
    pub(super) fn reduce_to(&mut self, now: Time, bytes: u64) {
        self.ssthresh = bytes.max(self.least());
        self.cwnd = self.ssthresh;
        (self.fraction, self.earned) = (0.0, 0);
        self.recovery = Some(now);
    }

    /// Whether the window was in use, so that it may grow (RFC 9002, section 7.8). Between feedbacks part of
    /// the window drains, and slow start doubles it under a pacer that is just twice as fast.
    pub(super) fn is_used(&self, s: &Signals) -> bool {
        let slack = if self.in_slow_start() { self.cwnd / 2 } else { self.cwnd / 4 };
        !s.app_limited && s.prior_inflight.saturating_add(slack) >= self.cwnd
    }

    /// Reno's growth (RFC 9002, sections 7.3.1 and 7.3.3): what is acknowledged in slow start, later a packet for each
    /// window; nothing in a recovery period or where the window is not used.
    pub(super) fn grow_as_reno(&mut self, s: &Signals) {
        if self.in_recovery(s.newest_acked_sent) || !self.is_used(s) {
            return;
        }
        if self.in_slow_start() {
            self.cwnd = self.cwnd.saturating_add(s.acked);
            return;
        }
        self.earned = self.earned.saturating_add(s.acked);
        let windows = self.earned / self.cwnd;
        self.earned -= windows * self.cwnd;
        self.cwnd = self.cwnd.saturating_add(windows.saturating_mul(self.packet));
    }

    /// Lets the window grow by `bytes`, fractions included.
    pub(super) fn grow(&mut self, bytes: f64) {
        let total = self.fraction + bytes.max(0.0);
        self.fraction = total.fract();
        self.cwnd = self.cwnd.saturating_add(total as u64);
    }

    /// Nothing arrives any more (RFC 9002, section 7.6.2).
    pub(super) fn collapse(&mut self) {
        self.cwnd = self.least();
        (self.fraction, self.earned) = (0.0, 0);
        self.recovery = None;
    }

    pub(super) fn on_timeout(&mut self, count: u32) {
        self.timeouts = count;
    }

    /// Undoes a reduction that answered no loss.
    pub(super) fn restore(&mut self, cwnd: u64, ssthresh: u64) {
        self.cwnd = self.cwnd.max(cwnd);
        self.ssthresh = self.ssthresh.max(ssthresh);
        self.recovery = None;
    }

    pub(super) fn srtt(&self) -> Span {
        self.srtt
    }

    pub(super) fn decision(&self) -> Decision {
        let gain = if self.in_slow_start() { SLOW_START_PACING } else { PACING };
        let rate = self.rate(gain, self.srtt);
        Decision { rate, bound: self.cwnd.clamp(self.least(), MAX_BOUND), quantum: self.quantum(rate) }
    }

    /// The window spread evenly over `rtt` at `gain` thousandths. The bound leaves room for what is delivered
    /// between two feedbacks, so that the rate governs and not the bound: an algorithm that reads queues of a
    /// few packets would otherwise read the bursts that each feedback lets go.
    pub(super) fn spread(&self, gain: u64, rtt: Span, gap: Span) -> Decision {
        let rate = self.rate(gain, rtt.max(MIN_SPREAD));
        let bound = self.cwnd.saturating_add(rate.bytes_in(gap)).clamp(self.least(), MAX_BOUND);
        Decision { rate, bound, quantum: self.quantum(rate) }
    }

    /// What may leave back to back: no more than a part of the window, so that where round trips are short a window does not
    /// arrive as one burst, which shallow queues and their marks would take for congestion.
    fn quantum(&self, rate: Rate) -> u64 {
        let packet = self.packet.max(1);
        let part = (self.cwnd / WINDOW_PARTS / packet).max(MIN_PACKETS) * packet;
        pacer::quantum(rate, packet).min(part)
    }

    fn rate(&self, gain: u64, rtt: Span) -> Rate {
        let backoff = self.timeouts.saturating_sub(1).min(MAX_BACKOFF);
        limited(Rate::from_bytes_in(self.cwnd, rtt).scale(gain, 1_000 << backoff))
    }
}
