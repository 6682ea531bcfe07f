//! Signals for unit tests of the algorithms' equations.

use crate::{PathInfo, Signals};
use base::{Span, Time};

pub(super) const PACKET: u64 = 1_500;
pub(super) const RTT: Span = Span::from_millis(1);

/// A path of a millisecond.
pub(super) fn info() -> PathInfo {
    PathInfo { packet_bytes: PACKET, handshake_rtt: Some(RTT), ecn: true, known_rate: None, remembered: None }
}

/// The time after so many round trips on a clock that does not start at zero.
pub(super) fn at(rounds: u64) -> Time {
    Time::from_nanos(1 << 50) + RTT * rounds
}

/// The feedback that ends round trip `n` and acknowledges `packets` of a fully used window, the newest sent just
/// after the previous round ended.
pub(super) fn round(n: u64, packets: u64) -> Signals {
    Signals {
        now: at(n),
        acked: packets * PACKET,
        acked_packets: packets,
        prior_inflight: u64::MAX / 2,
        inflight: packets * PACKET,
        rtt: Some(RTT),
        srtt: RTT,
        min_rtt: RTT,
        newest_acked_sent: Some(at(n - 1) + Span::from_nanos(1)),
        round_start: true,
        round: n,
        delivered: n * packets * PACKET,
        ..Signals::default()
    }
}
