//! Tells the peer how often to send feedback and below which packet number it can forget.

use super::Lane;
use wire::Floor;

/// Packets after which the peer hears of a new floor although there is no other news: single messages to and fro would
/// else be answered by a packet more each.
const FLOOR_STEP: u64 = 64;

impl Lane {
    /// The feedback settings to send to the peer, when they have changed: the floor has passed gaps, which the peer
    /// would list again, or has advanced far, or the intervals are others.
    pub fn take_floor(&mut self) -> Option<Floor> {
        if !core::mem::take(&mut self.floor_moves) {
            return None;
        }
        let f = self.wanted_floor();
        let differs = |a: u64, b: u64| a.abs_diff(b) > b / 4;
        let news = self.floor.as_ref().is_none_or(|told| {
            self.holes_decided
                || f.floor >= told.floor + FLOOR_STEP
                || differs(f.interval_us, told.interval_us)
                || differs(f.packets, told.packets)
        });
        if !news {
            return None;
        }
        self.holes_decided = false;
        self.floor = Some(f);
        Some(f)
    }

    fn wanted_floor(&self) -> Floor {
        let packet = u64::from(self.mtu.current()) + u64::from(self.overhead());
        let interval = self.feedback_interval();
        // Beside time, a quarter of the congestion window: on a short path it would be full between two reports.
        let cwnd: u64 = self.flows.iter().map(|f| f.decision().cwnd).fold(0, u64::saturating_add);
        let packets = (cwnd / 4 / packet.max(1)).clamp(64, 1 << 16);
        Floor { lane: self.id, floor: self.sent.base(), interval_us: interval.as_micros(), packets }
    }
}
