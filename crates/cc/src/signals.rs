//! What an algorithm is told, computed once by the engine for all algorithms.

use base::{Rate, Span, Time};

pub use base::telemetry::{Hop, MAX_HOPS};

/// Fixed facts of the flow and its path, given at the start and again when they change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathInfo {
    /// Bytes of IP payload that one full packet occupies on the wire, IP and UDP headers included.
    pub packet_bytes: u64,
    /// Lowest round-trip time the handshake measured, where known.
    pub handshake_rtt: Option<Span>,
    /// Whether packets carry ECN marks end to end, as far as known.
    pub ecn: bool,
    /// A rate that was guaranteed or configured for this path, to be used from the start.
    pub known_rate: Option<Rate>,
    /// What an earlier connection found on this path, to be checked before it is believed.
    pub remembered: Option<Remembered>,
}

/// What a path carried, for Careful Resume (RFC 9959).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// What was delivered while the application was not the limit; bytes on the wire.
    pub rate: Rate,
    /// The lowest round trip.
    pub rtt: Span,
}

impl Remembered {
    /// Whether a path of this round trip may be the same one (RFC 9959: not below half, nor above ten times what it was).
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
    /// Whether the sender had nothing more to send behind it: the flow is limited by its application.
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
    /// Bytes that the decided rate permitted within the sending interval, but a busy host came too late to send
    /// ([`Pacer::forgone`](crate::pacer::Pacer::forgone)).
    pub forgone: u64,
    /// Whether the sender was limited by its application when the sampled packet was sent.
    pub app_limited: bool,
}

/// Everything one feedback packet told, after the engine digested it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// When the feedback arrived (or the loss timer fired).
    pub now: Time,
    /// Newly acknowledged bytes. Bytes of all kinds are bytes on the wire.
    pub acked: u64,
    /// Newly acknowledged packets.
    pub acked_packets: u64,
    /// Bytes newly declared lost.
    pub lost: u64,
    /// Packets newly declared lost.
    pub lost_packets: u64,
    /// Bytes that had been declared lost and turned out to have arrived. They are not in `acked`.
    pub spurious: u64,
    /// When the latest-sent of the packets lost here was sent: a loss of a packet sent before the last
    /// reduction belongs to the episode that reduction answered.
    pub latest_lost_sent: Option<Time>,
    /// Bytes in flight before this feedback.
    pub prior_inflight: u64,
    /// Bytes in flight after it.
    pub inflight: u64,
    /// Round-trip time of the newest acknowledged packet, receiver's delay taken off.
    pub rtt: Option<Span>,
    /// Smoothed round-trip time (RFC 6298's constants).
    pub srtt: Span,
    /// Lowest round-trip time seen on this path (whole connection).
    pub min_rtt: Span,
    /// Change of the one-way delay against its lowest, from the receiver's time stamps; zero when unknown.
    pub queue_delay: Span,
    /// Total bytes delivered so far on the flow.
    pub delivered: u64,
    /// When the newest acknowledged packet was sent.
    pub newest_acked_sent: Option<Time>,
    /// The delivery-rate sample, when one could be taken.
    pub rate: Option<RateSample>,
    /// The rate at which packets arrived that had been sent at least twice as fast, back to back in a train: the
    /// path's narrowest place squeezed them apart, so that its rate (or what cross traffic leaves of it in a
    /// moment) shows long before the flow fills it (packet dispersion; Dovrolis et al., "What do packet dispersion
    /// techniques measure?", INFOCOM 2001). Only where [`Algorithm::wants_dispersion`](crate::Algorithm) and the
    /// receiver saw the train in pieces.
    pub dispersion: Option<Rate>,
    /// Packets of this flow newly reported as marked Congestion Experienced.
    pub ce_packets: u64,
    /// Bytes newly acknowledged in such packets; they are in `acked` as well.
    pub ce_acked: u64,
    /// How much the round trip rises with time, smoothed over a round trip, in millionths (nanoseconds per millisecond);
    /// falling is negative.
    pub rtt_trend: i64,
    /// The same of the one-way delay to the receiver.
    pub delay_trend: i64,
    /// Time that what was acknowledged waited in the receiver's host before it was processed (Swift's endpoint delay), part
    /// of `rtt`; zero when the peer does not tell.
    pub host_delay: Span,
    /// A round trip has passed since the last such mark: the first packet sent after it is acknowledged.
    pub round_start: bool,
    /// Count of round trips so far.
    pub round: u64,
    /// Whether the flow is limited by its application now.
    pub app_limited: bool,
}

/// Rare events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// No feedback for the probe time-out while data was in flight; `count` in a row.
    ProbeTimeout {
        /// Consecutive time-outs without feedback.
        count: u32,
    },
    /// Nothing arrived for longer than the persistent-congestion time (RFC 9002, section 7.6).
    PersistentCongestion,
    /// The flow sends again after having been idle since `idle_since` (nothing in flight).
    RestartFromIdle {
        /// When the last packet before the pause was sent.
        idle_since: Time,
    },
    /// The path changed (address or interface): what was learned of it no longer holds.
    PathChanged(PathInfo),
    /// The packet size changed (path MTU discovery).
    PacketSize(u64),
}
