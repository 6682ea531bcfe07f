//! Detects whether hops of the path write in-band telemetry, by sending packets with room for it.

use base::telemetry::{HOP_BYTES, MAX_HOPS, PREFIX};
use base::{Span, Time};
use cc::platform::Found;

/// Packets with room that a verdict needs.
const SAMPLE: u64 = 4;
/// Windows in a row without a word that change the verdict.
const WINDOWS: u32 = 2;
/// Round trips between the first packets with room on a path that does not write; twice as many after each, up to this.
const PROBE_AFTER: u64 = 4;
const PROBE_AFTER_MOST: u64 = 64;
/// A packet with room holds as much of a message as the smallest packet without: an unreliable message is one segment.
const SMALLEST: usize = 1_200;

/// The detection of telemetry on one lane.
#[derive(Clone, Debug, Default)]
pub struct TelemetryDetector {
    found: Found,
    /// When the next packet with room may leave.
    next: Time,
    wait: u64,
    /// Since the window began: packets with room that are reported, that are lost, and words of hops.
    since: Time,
    acked: u64,
    lost: u64,
    told: u64,
    silent: u32,
    changed: bool,
}

/// Bytes in front of a packet for as many hops as a packet of this size has room for; none where that is too small.
pub const fn room(packet: usize) -> usize {
    let hops = packet.saturating_sub(SMALLEST + PREFIX) / HOP_BYTES;
    let hops = if hops < MAX_HOPS { hops } else { MAX_HOPS };
    if hops == 0 { 0 } else { base::telemetry::lead_len(hops) }
}

impl TelemetryDetector {
    /// Whether a packet with room is due.
    pub fn is_due(&self, now: Time) -> bool {
        now >= self.next
    }

    /// One left. `interval`: how often there are reports.
    pub fn on_sent(&mut self, now: Time, rtt: Span, interval: Span) {
        self.next = now + interval;
        if self.found == Found::No {
            self.next = now + rtt * self.wait;
            self.wait = (self.wait * 2).min(PROBE_AFTER_MOST);
        }
    }

    /// A packet, with room or not, is reported, or lost.
    pub fn on_fate(&mut self, with_room: bool, arrived: bool) {
        self.acked += u64::from(with_room && arrived);
        self.lost += u64::from(with_room && !arrived);
    }

    /// The peer says what hops wrote into one.
    pub fn on_echo(&mut self, now: Time, hops: usize) {
        self.told += u64::from(hops > 0);
        // One more look, soon.
        self.next = if hops > 0 && self.found == Found::No { now } else { self.next };
    }

    /// A whole report is digested: ends the window if it is long enough. `tells`: whether the peer says what hops write.
    pub fn on_report(&mut self, now: Time, rtt: Span, tells: bool) {
        let back = self.found == Found::No && self.told >= WINDOWS.into();
        let gone = self.acked == 0 && self.lost >= 2 * SAMPLE;
        let enough = (self.acked >= SAMPLE || gone) && now.since(self.since) >= rtt;
        if back || self.found == Found::Unknown && self.told > 0 {
            self.set(now, Found::Yes);
        } else if !tells && self.acked > 0 {
            self.set(now, Found::No);
        } else if enough {
            self.silent = if self.told == 0 { self.silent + 1 } else { 0 };
            if self.silent >= WINDOWS {
                self.set(now, Found::No);
            }
            (self.since, self.acked, self.lost, self.told) = (now, 0, 0, 0);
        }
    }

    fn set(&mut self, now: Time, found: Found) {
        let was = self.found;
        let (next, wait) = if was == found { (self.next, self.wait) } else { (now, PROBE_AFTER) };
        *self = TelemetryDetector {
            found,
            next,
            wait,
            since: now,
            changed: was != found,
            ..TelemetryDetector::default()
        };
    }

    /// Whether hops write.
    pub const fn found(&self) -> Found {
        self.found
    }
    /// Whether that changed since this was asked last.
    pub fn take_changed(&mut self) -> bool {
        core::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Span = Span::from_millis(10);

    /// Sends as often as it is due, in so many round trips of eight reports each: packets with room that were sent.
    fn run(w: &mut TelemetryDetector, from: &mut u64, rounds: u64, hops: usize, arrives: bool) -> u64 {
        let mut sent = 0;
        for n in *from * 8..(*from + rounds) * 8 {
            let now = Time::ZERO + Span::from_secs(9) + RTT / 8 * n;
            if w.is_due(now) {
                w.on_sent(now, RTT, RTT / 8);
                sent += 1;
                w.on_fate(true, arrives);
                if arrives {
                    w.on_echo(now, hops);
                }
            }
            w.on_report(now, RTT, true);
        }
        *from += rounds;
        sent
    }

    #[test]
    fn telemetry_is_detected_at_once_and_its_loss_within_a_few_round_trips() {
        let (mut w, mut at) = (TelemetryDetector::default(), 0);
        assert_eq!(run(&mut w, &mut at, 2, 3, true), 16);
        assert_eq!(w.found(), Found::Yes);
        assert!(w.take_changed() && !w.take_changed());
        run(&mut w, &mut at, 4, 0, true);
        assert_eq!(w.found(), Found::No);
        // Seldom tried, and believed when two in a row say so.
        let sent = run(&mut w, &mut at, 200, 0, true);
        assert!((4..9).contains(&sent), "{sent}");
        assert_eq!(w.found(), Found::No);
        run(&mut w, &mut at, 66, 2, true);
        assert_eq!(w.found(), Found::Yes);
    }

    #[test]
    fn dropping_path_or_silent_peer_means_no_telemetry() {
        let (mut w, mut at) = (TelemetryDetector::default(), 0);
        run(&mut w, &mut at, 5, 0, false);
        assert_eq!(w.found(), Found::No);
        let mut w = TelemetryDetector::default();
        w.on_fate(true, true);
        w.on_report(Time::ZERO, RTT, false);
        assert_eq!(w.found(), Found::No);
    }

    #[test]
    fn packet_with_telemetry_room_holds_a_minimum_payload() {
        assert_eq!((room(1_200), room(1_240)), (0, 0));
        assert_eq!(room(1_241), PREFIX + HOP_BYTES);
        assert_eq!(room(1_472), PREFIX + 7 * HOP_BYTES);
        assert_eq!(room(65_507), PREFIX + MAX_HOPS * HOP_BYTES);
    }
}
