//! Counters of a connection.

use base::{Rate, Span};

/// Cumulative counters and current estimates. Bytes of packets include IP and UDP headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Payload bytes sent, repeated ones included.
    pub payload_sent: u64,
    /// Payload bytes received and placed.
    pub payload_received: u64,
    /// Payload bytes received that had been there before.
    pub payload_duplicate: u64,
    /// Payload bytes that were sent again after a loss.
    pub payload_again: u64,
    /// Packets sent.
    pub packets_sent: u64,
    /// Bytes of packets sent.
    pub bytes_sent: u64,
    /// Packets received that passed their tag.
    pub packets_received: u64,
    /// Bytes of packets received that passed their tag.
    pub bytes_received: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// Packets declared lost that had arrived after all.
    pub packets_spurious: u64,
    /// Data packets that carried something again.
    pub packets_again: u64,
    /// Packets dropped because they did not pass their tag.
    pub packets_forged: u64,
    /// Packets dropped because they had been received before or were below the floor.
    pub packets_stale: u64,
    /// Packets put aside because what they carry cannot be taken now.
    pub packets_refused: u64,
    /// Control packets sent (feedback, floors, credits).
    pub control_packets_sent: u64,
    /// Bytes of control packets sent.
    pub control_bytes_sent: u64,
    /// Feedback statements received.
    pub feedback_received: u64,
    /// Trains sent.
    pub trains_sent: u64,
    /// Probe time-outs.
    pub probe_timeouts: u64,
    /// Packets reported as marked Congestion Experienced.
    pub ce_packets: u64,
    /// Key updates made by this end.
    pub key_updates: u64,
    /// Smoothed round-trip time.
    pub srtt: Span,
    /// Lowest round-trip time.
    pub min_rtt: Span,
    /// Pacing rate.
    pub rate: Rate,
    /// Bound on bytes in flight.
    pub bound: u64,
    /// Bytes in flight.
    pub inflight: u64,
    /// Bytes delivered on the default flow.
    pub delivered: u64,
    /// UDP payload in use.
    pub mtu: u64,
    /// Congestion control and its state.
    pub cc: (&'static str, &'static str),
}
