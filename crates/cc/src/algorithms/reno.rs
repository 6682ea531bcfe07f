//! NewReno as QUIC has it (RFC 9002, section 7), its window turned into a rate.

use super::window::{INITIAL_WINDOW, Window};
use crate::registry::Definition;
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals};
use base::Time;

/// How it is registered.
pub(crate) const DEFINITION: Definition = Definition {
    name: "reno",
    summary: "NewReno (RFC 9002): halves on loss, grows by a packet a round trip; for comparison",
    params: &[INITIAL_WINDOW],
    build: |params, info, _| Box::new(Reno::new(info, params.count("initial_window"))),
};

/// NewReno.
#[derive(Debug)]
pub struct Reno {
    initial: u64,
    window: Window,
    /// Bytes acknowledged in congestion avoidance that have not yet earned a packet.
    acked: u64,
}

impl Reno {
    fn new(info: &PathInfo, initial: u64) -> Reno {
        Reno { initial, window: Window::new(info, initial), acked: 0 }
    }

    /// Growth (RFC 9002, sections 7.3.1 and 7.3.3).
    fn on_acked(&mut self, s: &Signals) {
        let w = &mut self.window;
        if w.in_recovery(s.newest_acked_sent) || !w.is_used(s) {
            return;
        }
        if w.in_slow_start() {
            w.cwnd = w.cwnd.saturating_add(s.acked);
            return;
        }
        self.acked = self.acked.saturating_add(s.acked);
        let windows = self.acked / w.cwnd;
        self.acked -= windows * w.cwnd;
        w.cwnd = w.cwnd.saturating_add(windows.saturating_mul(w.packet));
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
            self.acked = 0;
        }
        self.on_acked(s);
    }

    fn on_event(&mut self, _now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.window.on_timeout(count),
            Event::PersistentCongestion => {
                self.window.collapse();
                self.acked = 0;
            }
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
