//! The input of algorithms, computed once by the engine for all of them.

use base::{Rate, Span, Time};

pub use base::telemetry::{Hop, MAX_HOPS};

/// Fixed facts of the flow and its path, given at the start and when they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathInfo {
    /// Bytes on the wire of one full packet: IP payload plus IP and UDP headers.
    pub packet_bytes: u64,
    /// Minimum round-trip time measured by the handshake, if known.
    pub handshake_rtt: Option<Span>,
    /// Whether ECN marks survive end to end, as far as is known.
    pub ecn: bool,
    /// A guaranteed or configured rate of this path, to be used from the start.
    pub known_rate: Option<Rate>,
    /// What an earlier connection found on this path, to be verified before use.
    pub remembered: Option<Remembered>,
}

/// The remembered state of a path, for Careful Resume (RFC 9959).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The delivery rate while not application-limited; bytes on the wire.
    pub rate: Rate,
    /// The minimum round-trip time.
    pub rtt: Span,
    /// The longest train that a queue takes which is shorter than the usual ones; bytes on the wire. `None`: none is known.
    pub train: Option<u64>,
}

impl Remembered {
    /// Whether a path with this round-trip time may be the same one (RFC 9959: not below half, nor above ten times
    /// the remembered one).
    pub fn fits(&self, rtt: Span) -> bool {
        rtt >= self.rtt / 2 && rtt <= self.rtt * 10
    }
}

/// A train of packets has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentTrain {
    /// When it left.
    pub now: Time,
    /// Its bytes on the wire.
    pub bytes: u64,
    /// Its packets.
    pub packets: u64,
    /// Bytes in flight including it.
    pub inflight: u64,
    /// Whether the sender had nothing more to send after it: the flow is application-limited.
    pub app_limited: bool,
}

/// One delivery-rate sample, after draft-cheng-iccrg-delivery-rate-estimation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSample {
    /// Bytes delivered over `interval` divided by it.
    pub rate: Rate,
    /// The longer of the sending and the acknowledging interval.
    pub interval: Span,
    /// Bytes delivered within the interval.
    pub delivered: u64,
    /// Total bytes delivered when the sampled packet was sent.
    pub prior_delivered: u64,
    /// Bytes in flight just after the sampled packet was sent.
    pub tx_inflight: u64,
    /// Bytes lost between the sending of the sampled packet and now.
    pub lost: u64,
    /// Bytes that the decided rate permitted within the sending interval but a busy host did not send in time
    /// ([`Pacer::forgone`](crate::pacer::Pacer::forgone)).
    pub forgone: u64,
    /// Whether the flow was application-limited when the sampled packet was sent.
    pub app_limited: bool,
}

/// All signals of one feedback packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// When the feedback arrived (or the loss timer fired).
    pub now: Time,
    /// Newly acknowledged bytes. All bytes are bytes on the wire.
    pub acked: u64,
    /// Newly acknowledged packets.
    pub acked_packets: u64,
    /// Bytes newly declared lost.
    pub lost: u64,
    /// Packets newly declared lost.
    pub lost_packets: u64,
    /// Bytes that had been declared lost and turned out to have arrived, not included in `acked`.
    pub spurious: u64,
    /// When the latest-sent of these lost packets was sent: a loss of a packet sent before the last reduction is
    /// covered by that reduction.
    pub latest_lost_sent: Option<Time>,
    /// Bytes in flight before this feedback.
    pub prior_inflight: u64,
    /// Bytes in flight after it.
    pub inflight: u64,
    /// Round-trip time of the newest acknowledged packet, without the receiver's delay.
    pub rtt: Option<Span>,
    /// Smoothed round-trip time (RFC 6298's constants).
    pub srtt: Span,
    /// Minimum round-trip time of this path over the whole connection.
    pub min_rtt: Span,
    /// One-way delay above its minimum, from the receiver's time stamps; zero if unknown.
    pub queue_delay: Span,
    /// Total bytes delivered so far on the flow.
    pub delivered: u64,
    /// When the newest acknowledged packet was sent.
    pub newest_acked_sent: Option<Time>,
    /// The delivery-rate sample, when one could be taken.
    pub rate: Option<RateSample>,
    /// The arrival rate of a train's packets that were sent back to back at least twice as fast: the bottleneck
    /// spaces them out, so that its rate (or what cross traffic leaves of it at that moment) shows long before the
    /// flow fills it (packet dispersion; Dovrolis et al., "What do packet dispersion techniques measure?", INFOCOM
    /// 2001). Only with [`Algorithm::wants_dispersion`](crate::Algorithm), and if the receiver saw the train in
    /// pieces.
    pub dispersion: Option<Rate>,
    /// Packets of this flow newly reported as marked Congestion Experienced.
    pub ce_packets: u64,
    /// Bytes newly acknowledged in such packets, included in `acked`.
    pub ce_acked: u64,
    /// Slope of the round-trip time, smoothed over a round trip, in millionths (nanoseconds per millisecond);
    /// negative when falling.
    pub rtt_trend: i64,
    /// Slope of the one-way delay to the receiver.
    pub delay_trend: i64,
    /// Time that acknowledged packets waited in the receiver's host before being processed (Swift's endpoint delay),
    /// part of `rtt`; zero if the peer does not report it.
    pub host_delay: Span,
    /// Whether a round trip has passed since the last round start: the first packet sent after it is acknowledged.
    pub round_start: bool,
    /// Number of round trips so far.
    pub round: u64,
    /// Whether the flow is application-limited now.
    pub app_limited: bool,
}

/// Rare events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// No feedback for the probe time-out while data was in flight.
    ProbeTimeout {
        /// Consecutive time-outs without feedback.
        count: u32,
    },
    /// Persistent congestion (RFC 9002, section 7.6).
    PersistentCongestion,
    /// The flow sends again after having been idle since `idle_since` (nothing in flight).
    RestartFromIdle {
        /// When the last packet before the pause was sent.
        idle_since: Time,
    },
    /// The path changed (address or interface), so what was learned of it no longer holds.
    PathChanged(PathInfo),
    /// The packet size changed (path MTU discovery).
    PacketSize(u64),
}
