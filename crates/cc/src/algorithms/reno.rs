//! NewReno as in QUIC (RFC 9002, section 7), with the window paced as a rate.

use super::window::{INITIAL_WINDOW, Window};
use crate::registry::{Definition, Needs};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals};
use base::Time;

/// The registration.
pub(crate) const DEFINITION: Definition = Definition {
    name: "reno",
    summary: "NewReno (RFC 9002): halves on loss, grows by a packet a round trip; for comparison",
    params: &[INITIAL_WINDOW],
    needs: Needs::NOTHING,
    code: "",
    build: &|params, info, _| Box::new(Reno::new(info, params.count("initial_window"))),
};

/// NewReno.
#[derive(Debug)]
pub struct Reno {
    initial: u64,
    window: Window,
}

impl Reno {
    fn new(info: &PathInfo, initial: u64) -> Reno {
        Reno { initial, window: Window::new(info, initial) }
    }
}

impl Algorithm for Reno {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, _train: &SentTrain) {}

    fn on_feedback(&mut self, s: &Signals) {
        self.window.update(s);
        if self.window.is_new_episode(s) {
            self.window.reduce(s.now, 1, 2);
        }
        self.window.grow_as_reno(s);
    }

    fn on_event(&mut self, _now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.window.on_timeout(count),
            Event::PersistentCongestion => self.window.collapse(),
            Event::RestartFromIdle { .. } => {}
            Event::PathChanged(info) => *self = Reno::new(&info, self.initial),
            Event::PacketSize(bytes) => self.window.packet = bytes.max(1),
        }
    }

    fn decision(&self) -> Decision {
        self.window.decision()
    }

    fn state(&self) -> &'static str {
        if self.window.in_slow_start() { "slow_start" } else { "avoidance" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Rate, Span};

    const PACKET: u64 = 1_500;
    const RTT: Span = Span::from_millis(100);

    fn reno() -> Reno {
        let info = PathInfo {
            packet_bytes: PACKET,
            handshake_rtt: Some(RTT),
            ecn: true,
            known_rate: None,
            remembered: None,
        };
        Reno::new(&info, 10)
    }

    fn feedback(ms: u64, acked: u64, cwnd: u64) -> Signals {
        let now = Time::ZERO + Span::from_millis(ms);
        Signals {
            now,
            acked: acked * PACKET,
            acked_packets: acked,
            prior_inflight: cwnd,
            srtt: RTT,
            newest_acked_sent: Some(now - RTT),
            ..Signals::default()
        }
    }

    #[test]
    fn slow_start_grows_by_acked_bytes_and_paces_at_twice_the_window() {
        let mut r = reno();
        assert_eq!(r.decision().rate, Rate::from_bytes_in(10 * PACKET, RTT).scale(2, 1));
        r.on_feedback(&feedback(200, 10, 10 * PACKET));
        assert_eq!(r.decision().cwnd, 20 * PACKET);
        // RFC 9002, section 7.8: no growth where the window is not used.
        r.on_feedback(&Signals { app_limited: true, ..feedback(210, 10, 20 * PACKET) });
        r.on_feedback(&feedback(220, 2, 2 * PACKET));
        assert_eq!(r.decision().cwnd, 20 * PACKET);
    }

    #[test]
    fn recovery_period_reduces_once_for_losses_and_marks() {
        let mut r = reno();
        r.on_feedback(&feedback(200, 30, 10 * PACKET));
        assert_eq!(r.decision().cwnd, 40 * PACKET);
        let lost = |ms: u64, sent: u64| Signals {
            lost: PACKET,
            lost_packets: 1,
            latest_lost_sent: Some(Time::ZERO + Span::from_millis(sent)),
            ..feedback(ms, 5, 40 * PACKET)
        };
        r.on_feedback(&lost(300, 200));
        assert_eq!(r.decision().cwnd, 20 * PACKET);
        r.on_feedback(&lost(390, 299));
        r.on_feedback(&Signals { ce_packets: 3, ..feedback(395, 5, 20 * PACKET) });
        assert_eq!(r.decision().cwnd, 20 * PACKET, "sent before the reduction at 300 ms");
        r.on_feedback(&Signals { ce_packets: 1, ..feedback(420, 5, 20 * PACKET) });
        assert_eq!(r.decision().cwnd, 10 * PACKET, "a mark on a packet sent after it is a new episode");
        assert_eq!(r.decision().rate, Rate::from_bytes_in(10 * PACKET, RTT).scale(5, 4));
        r.on_feedback(&feedback(600, 10, 10 * PACKET));
        assert_eq!(r.decision().cwnd, 11 * PACKET, "a packet for each window");
    }

    #[test]
    fn persistent_congestion_reduces_the_window_to_two_packets() {
        let mut r = reno();
        r.on_event(Time::ZERO, Event::PersistentCongestion);
        assert_eq!(r.decision().cwnd, 2 * PACKET);
    }
}
