//! Statistics and memory usage of a connection.

use base::{Rate, Span};
use cc::platform::PathCapability;
use std::net::{IpAddr, SocketAddr};

/// Cumulative counters and current estimates. Bytes of packets include IP and UDP headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Payload bytes sent, repeated ones included.
    pub payload_sent: u64,
    /// Payload bytes that the peer has confirmed, each counted once. By iWARP what its TCP has acknowledged.
    pub payload_acked: u64,
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
    /// How often the keys of what this end sends were changed, at either end's request.
    pub key_generation: u64,
    /// Smoothed round-trip time.
    pub srtt: Span,
    /// Lowest round-trip time.
    pub min_rtt: Span,
    /// Lanes that work.
    pub lanes: u32,
    /// Pacing rate, of all lanes together.
    pub rate: Rate,
    /// Congestion window, of all lanes together.
    pub cwnd: u64,
    /// Bytes in flight.
    pub inflight: u64,
    /// Bytes delivered on the default flow.
    pub delivered: u64,
    /// UDP payload in use.
    pub mtu: u64,
    /// Congestion control and its state.
    pub cc: (&'static str, &'static str),
    /// What is held in memory.
    pub usage: Usage,
    /// Each lane that was ever in use, in the order of their numbers.
    pub paths: Vec<PathStats>,
}

/// One lane: what it carried, and how it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStats {
    /// Its number.
    pub lane: u32,
    /// Where the peer is.
    pub remote: SocketAddr,
    /// Where this end is, when known.
    pub local: Option<IpAddr>,
    /// Data can go over it.
    pub works: bool,
    /// It carries data only while no other lane does.
    pub backup: bool,
    /// It was added because addresses were found, and not asked for.
    pub found: bool,
    /// The lane that carries data in its place, because both lead over the same bottleneck.
    pub shares: Option<u32>,
    /// Bytes of data packets sent on it.
    pub sent: u64,
    /// Bytes of packets that passed their tag, received on it.
    pub received: u64,
    /// Packets declared lost.
    pub lost: u64,
    /// Smoothed round-trip time.
    pub srtt: Span,
    /// Lowest round-trip time.
    pub min_rtt: Span,
    /// Pacing rate of the connection's own flow.
    pub rate: Rate,
    /// What it carries of the signals that algorithms need.
    pub capability: PathCapability,
    /// Why another algorithm than the one chosen decides for the connection's own flow here, if so.
    pub fallback_reason: Option<&'static str>,
}

/// The named limits of a connection's memory; those of lanes hold for each lane.
pub mod limits {
    pub use crate::connection::{
        CRYPTO_LEVELS, MAX_CRYPTO_BUFFERED, MAX_CRYPTO_PIECES, MAX_EARLY, MAX_EARLY_BYTES, MAX_QUEUED_FRAMES,
        MAX_UNRELIABLE_FRAMES,
    };
    pub use crate::lane::MAX_FLOWS;
    pub use crate::lane::received::MAX_RUNS;
    pub use crate::lane::sent::{MAX_SENT_HOLES, MAX_TRACKED};
    pub use crate::lane::{MAX_CONTROL, MAX_FRAMES_PER_PACKET, MAX_LOST_FRAMES};
    /// Queue pairs of a connection at most: their numbers have 16 bits. What is agreed may be less.
    pub const MAX_QUEUE_PAIRS: usize = 1 << 16;
}

/// How much of something is held now, and how much may be at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauge {
    /// Held now.
    pub used: u64,
    /// The limit.
    pub limit: u64,
}

impl Gauge {
    /// From counts.
    pub const fn new(used: usize, limit: usize) -> Gauge {
        Gauge { used: used as u64, limit: limit as u64 }
    }
    /// Whether the limit holds.
    pub const fn holds(&self) -> bool {
        self.used <= self.limit
    }
}

/// What a connection holds in memory, each beside its limit. Limits are constants of [`limits`], times the lanes where
/// lanes have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sent packets that are tracked.
    pub sent_packets: Gauge,
    /// Sent trains that are tracked.
    pub sent_trains: Gauge,
    /// Ranges of sent packets that the peer reported missing.
    pub sent_holes: Gauge,
    /// Runs of received packets.
    pub received_runs: Gauge,
    /// Control packets whose frames are kept until they are acknowledged.
    pub control_packets: Gauge,
    /// Lost control frames that wait to be sent again.
    pub lost_frames: Gauge,
    /// Control frames that wait to be sent.
    pub queued_frames: Gauge,
    /// Reports and answers that wait to be sent once.
    pub unreliable_frames: Gauge,
    /// Bytes of handshake messages that wait behind a gap.
    pub crypto_bytes: Gauge,
    /// Pieces of them.
    pub crypto_pieces: Gauge,
    /// Datagrams that arrived before their keys.
    pub early_datagrams: Gauge,
    /// Bytes of them.
    pub early_bytes: Gauge,
    /// Congestion controllers.
    pub flows: Gauge,
    /// Queue pairs.
    pub queue_pairs: Gauge,
}

impl Usage {
    /// All of it by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, Gauge)> {
        [
            ("sent packets", self.sent_packets),
            ("sent trains", self.sent_trains),
            ("sent holes", self.sent_holes),
            ("received runs", self.received_runs),
            ("control packets", self.control_packets),
            ("lost frames", self.lost_frames),
            ("queued frames", self.queued_frames),
            ("fleeting frames", self.unreliable_frames),
            ("crypto bytes", self.crypto_bytes),
            ("crypto pieces", self.crypto_pieces),
            ("early datagrams", self.early_datagrams),
            ("early bytes", self.early_bytes),
            ("flows", self.flows),
            ("queue pairs", self.queue_pairs),
        ]
        .into_iter()
    }

    /// The first limit that does not hold: none, unless something is wrong here.
    pub fn exceeded(&self) -> Option<(&'static str, Gauge)> {
        self.iter().find(|(_, g)| !g.holds())
    }
}
