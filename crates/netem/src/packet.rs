//! Packets offered to links and delivered by them, and the trait for their payloads.

use base::telemetry::Hop;
use base::{Ecn, Rng, Time};

/// A payload that links can copy (duplication) and damage (corruption).
///
/// Wrap large payloads in something cheap to move, such as a `Box` or a copy-on-write `Arc`: packets that are
/// reordered move within a heap.
pub trait Payload: Clone {
    /// Damages the payload as bit errors on the wire would; [`flip_bits`] does it for bytes.
    fn corrupt(&mut self, rng: &mut Rng);

    /// Adds the record of a hop with telemetry, if the payload carries telemetry ([`base::telemetry::stamp`] does
    /// it for bytes).
    fn stamp(&mut self, _: &Hop) {}
}

impl Payload for Vec<u8> {
    fn corrupt(&mut self, rng: &mut Rng) {
        flip_bits(self, rng);
    }
    fn stamp(&mut self, hop: &Hop) {
        base::telemetry::stamp(self, hop);
    }
}
impl Payload for Box<[u8]> {
    fn corrupt(&mut self, rng: &mut Rng) {
        flip_bits(self, rng);
    }
    fn stamp(&mut self, hop: &Hop) {
        base::telemetry::stamp(self, hop);
    }
}
/// A packet of which only size and time matter.
impl Payload for () {
    fn corrupt(&mut self, _: &mut Rng) {}
}

/// Flips one or three random bits; an empty slice stays as it is. The number is odd so that hitting the same bit
/// twice cannot restore the original.
pub fn flip_bits(bytes: &mut [u8], rng: &mut Rng) {
    if bytes.is_empty() {
        return;
    }
    for _ in 0..1 + 2 * rng.below(2) {
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
    }
}

/// A packet offered to a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<P> {
    /// Bytes on the wire, including the IP and UDP headers.
    pub bytes: u64,
    /// The ECN field it was sent with.
    pub ecn: Ecn,
    /// The payload.
    pub payload: P,
}

/// A packet that arrived at the far end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery<P> {
    /// The time of arrival: at or before the `now` of the call that returned it.
    pub time: Time,
    /// Bytes on the wire, as sent.
    pub bytes: u64,
    /// The ECN field, [`Ecn::Ce`] when the queue marked it.
    pub ecn: Ecn,
    /// Whether [`Payload::corrupt`] was called on this payload.
    pub corrupted: bool,
    /// Whether this is a copy added by duplication.
    pub duplicate: bool,
    /// The payload.
    pub payload: P,
}

/// The outcome of offering a packet to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "a relay counts drops; write `let _ =` where nobody does"]
pub enum Verdict {
    /// It is in the queue or on the wire. A black-out may still drop it as it leaves the queue.
    Queued,
    /// It was dropped, of which neither end is notified.
    Dropped(DropReason),
}

/// Why a link dropped a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Larger than the MTU.
    Mtu,
    /// During a black-out.
    BlackOut,
    /// Random loss, independent or in a burst.
    Loss,
    /// It was ECN-capable on a path that drops such packets.
    Ect,
    /// The queue was full, or the policer had too few tokens.
    QueueFull,
    /// The link holds [`MAX_PACKETS`](crate::MAX_PACKETS) already, a limit of the model and not of the network.
    LinkFull,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corruption_always_changes_a_nonempty_payload() {
        let mut rng = Rng::from_u64(3);
        for _ in 0..1000 {
            let mut one = vec![0u8; 1];
            one.corrupt(&mut rng);
            assert_ne!(one, [0]);
        }
        flip_bits(&mut [], &mut rng);
    }
}
