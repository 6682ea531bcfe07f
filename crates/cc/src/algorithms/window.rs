//! Tools of window-based algorithms: the congestion window, recovery periods, and pacing.

use super::MIN_PACKETS;
use super::paced::clamp_rate;
use crate::registry::{Kind, ParamDef};
use crate::{Decision, PathInfo, Signals, pacer};
use base::{Rate, Span, Time};

/// The round trip assumed before any is known (RFC 9002, section 6.2.2).
const INITIAL_RTT: Span = Span::from_millis(333);
/// Pacing gain, in thousandths, so that pacing does not hold the window down (RFC 9002, section 7.7).
const PACING_GAIN: u64 = 1_250;
/// Pacing gain in slow start, in which the window doubles each round trip.
const SLOW_START_PACING_GAIN: u64 = 2_000;
/// The smallest number of bursts that a window is sent in.
const WINDOW_PARTS: u64 = 8;
/// Shortest round-trip time for pacing a window.
const MIN_PACING_RTT: Span = Span::from_micros(1);
/// The largest congestion window, in bytes.
pub(super) const MAX_CWND: u64 = u64::MAX / 2;
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
    /// The slow-start threshold.
    pub(super) ssthresh: u64,
    /// Growth that does not make a whole byte yet.
    fraction: f64,
    /// Bytes acknowledged in congestion avoidance since the window last grew.
    acked_since_growth: u64,
    /// Start of the last recovery period.
    recovery_start: Option<Time>,
    srtt: Span,
    timeouts: u32,
}

impl Window {
    pub(super) fn new(info: &PathInfo, packets: u64) -> Window {
        let packet = info.packet_bytes.max(1);
        let rtt = info.handshake_rtt.filter(|r| !r.is_zero());
        // A known rate sets the first window, at which slow start ends (RFC 9959).
        let known = info.known_rate.zip(rtt).map(|(rate, rtt)| rate.bytes_in(rtt));
        let initial = packets.saturating_mul(packet);
        Window {
            packet,
            cwnd: known.map_or(initial, |k| k.max(initial)),
            ssthresh: known.filter(|k| *k > initial).unwrap_or(u64::MAX),
            fraction: 0.0,
            acked_since_growth: 0,
            recovery_start: None,
            srtt: rtt.unwrap_or(INITIAL_RTT),
            timeouts: 0,
        }
    }

    /// The minimum window.
    pub(super) fn min_window(&self) -> u64 {
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

    /// Whether a packet sent at this time belongs to the present recovery period (RFC 9002, 7.3.2).
    pub(super) fn in_recovery(&self, sent: Option<Time>) -> bool {
        match (self.recovery_start, sent) {
            (Some(start), Some(sent)) => sent <= start,
            _ => false,
        }
    }

    /// Begins a recovery period without a reduction.
    pub(super) fn begin_recovery(&mut self, now: Time) {
        self.recovery_start = Some(now);
    }

    /// Whether the feedback reports a new congestion event: a loss or a mark of a packet sent after the last
    /// reduction (RFC 9002, sections 7.1 and 7.3.2).
    pub(super) fn is_new_episode(&self, s: &Signals) -> bool {
        self.is_new_loss(s) || self.is_new_mark(s)
    }

    /// Whether it reports a new loss.
    pub(super) fn is_new_loss(&self, s: &Signals) -> bool {
        s.lost > 0 && !self.in_recovery(s.latest_lost_sent)
    }

    /// Whether it reports a new mark.
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
        self.ssthresh = bytes.max(self.min_window());
        self.cwnd = self.ssthresh;
        (self.fraction, self.acked_since_growth) = (0.0, 0);
        self.recovery_start = Some(now);
    }

    /// Whether the window was fully used, so that it may grow (RFC 9002, section 7.8). Part of it drains between
    /// feedbacks, and slow start doubles it under a pacer that is just twice as fast.
    pub(super) fn is_used(&self, s: &Signals) -> bool {
        let slack = if self.in_slow_start() { self.cwnd / 2 } else { self.cwnd / 4 };
        !s.app_limited && s.prior_inflight.saturating_add(slack) >= self.cwnd
    }

    /// Grows as Reno (RFC 9002, sections 7.3.1 and 7.3.3): by the acknowledged bytes in slow start, later by a packet
    /// per window; not in a recovery period or while the window is not fully used.
    pub(super) fn grow_as_reno(&mut self, s: &Signals) {
        if self.in_recovery(s.newest_acked_sent) || !self.is_used(s) {
            return;
        }
        if self.in_slow_start() {
            self.cwnd = self.cwnd.saturating_add(s.acked);
            return;
        }
        self.acked_since_growth = self.acked_since_growth.saturating_add(s.acked);
        let windows = self.acked_since_growth / self.cwnd;
        self.acked_since_growth -= windows * self.cwnd;
        self.cwnd = self.cwnd.saturating_add(windows.saturating_mul(self.packet));
    }

    /// Lets the window grow by `bytes`, fractions included.
    pub(super) fn grow(&mut self, bytes: f64) {
        let total = self.fraction + bytes.max(0.0);
        self.fraction = total.fract();
        self.cwnd = self.cwnd.saturating_add(total as u64);
    }

    /// Handles persistent congestion (RFC 9002, section 7.6.2).
    pub(super) fn collapse(&mut self) {
        self.cwnd = self.min_window();
        (self.fraction, self.acked_since_growth) = (0.0, 0);
        self.recovery_start = None;
    }

    pub(super) fn on_timeout(&mut self, count: u32) {
        self.timeouts = count;
    }

    /// Undoes a reduction for spurious losses.
    pub(super) fn restore(&mut self, cwnd: u64, ssthresh: u64) {
        self.cwnd = self.cwnd.max(cwnd);
        self.ssthresh = self.ssthresh.max(ssthresh);
        self.recovery_start = None;
    }

    pub(super) fn srtt(&self) -> Span {
        self.srtt
    }

    pub(super) fn decision(&self) -> Decision {
        let gain = if self.in_slow_start() { SLOW_START_PACING_GAIN } else { PACING_GAIN };
        let rate = self.rate(gain, self.srtt);
        Decision { rate, cwnd: self.cwnd.clamp(self.min_window(), MAX_CWND), quantum: self.quantum(rate) }
    }

    /// The window paced evenly over `rtt` at `gain` thousandths. The congestion window of the decision adds
    /// data delivered between two feedbacks, so that the rate governs and not the window; otherwise an algorithm that measures queues of a few
    /// packets would measure the bursts after each feedback.
    pub(super) fn paced_decision(&self, gain: u64, rtt: Span, gap: Span) -> Decision {
        let rate = self.rate(gain, rtt.max(MIN_PACING_RTT));
        let cwnd = self.cwnd.saturating_add(rate.bytes_in(gap)).clamp(self.min_window(), MAX_CWND);
        Decision { rate, cwnd, quantum: self.quantum(rate) }
    }

    /// The size of a burst: a part of the window, since on short paths a whole window at once would fill shallow
    /// queues or get marked.
    fn quantum(&self, rate: Rate) -> u64 {
        let packet = self.packet.max(1);
        let part = (self.cwnd / WINDOW_PARTS / packet).max(MIN_PACKETS) * packet;
        pacer::quantum(rate, packet).min(part)
    }

    fn rate(&self, gain: u64, rtt: Span) -> Rate {
        let backoff = self.timeouts.saturating_sub(1).min(MAX_BACKOFF);
        clamp_rate(Rate::from_bytes_in(self.cwnd, rtt).scale(gain, 1_000 << backoff))
    }
}
