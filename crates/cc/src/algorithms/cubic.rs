//! CUBIC (RFC 9438) with HyStart++ (RFC 9406), with the window paced as a rate.

use super::hystart::HyStart;
use super::window::{INITIAL_WINDOW, Window};
use crate::registry::{Definition, Kind, Needs, ParamDef};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals};
use base::{Span, Time};

/// The registration.
pub(crate) const DEFINITION: Definition = Definition {
    name: "cubic",
    summary: "CUBIC (RFC 9438) with HyStart++ (RFC 9406): what most of the Internet runs",
    params: &[
        INITIAL_WINDOW,
        ParamDef {
            name: "fast_convergence",
            help: "give way to new flows by aiming below the last maximum (RFC 9438, section 4.7)",
            kind: Kind::Switch { default: true },
        },
        ParamDef {
            name: "hystart",
            help: "leave slow start when the round trip rises (RFC 9406)",
            kind: Kind::Switch { default: true },
        },
    ],
    needs: Needs::NOTHING,
    code: "",
    build: &|params, info, _| {
        Box::new(Cubic::new(
            Config {
                initial: params.count("initial_window"),
                fast_convergence: params.switch("fast_convergence"),
                hystart: params.switch("hystart"),
            },
            info,
        ))
    },
};

/// Aggressiveness, in packets per second cubed (RFC 9438, section 4.1).
const C: f64 = 0.4;
/// Multiplicative decrease, in tenths.
const BETA_TENTHS: u64 = 7;
const BETA: f64 = 0.7;
/// Additive increase that makes AIMD with this decrease as fast as Reno: 3 (1 - beta) / (1 + beta).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

#[derive(Clone, Copy, Debug)]
struct Config {
    initial: u64,
    fast_convergence: bool,
    hystart: bool,
}

/// The curve, in packets and seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Curve {
    w_max: f64,
    k: f64,
    /// Start of the present epoch of congestion avoidance.
    epoch: Option<Time>,
    /// The window that Reno would have.
    w_est: f64,
    /// The window before the last reduction; beyond it the Reno estimate grows as fast as Reno.
    prior: f64,
}

impl Curve {
    /// W_cubic(t) (RFC 9438, equation 1).
    fn at(&self, t: f64) -> f64 {
        let d = t - self.k;
        C * d * d * d + self.w_max
    }

    fn begin(&mut self, now: Time, cwnd: f64) {
        self.epoch = Some(now);
        self.w_est = cwnd;
        if cwnd < self.w_max {
            // Equation 2.
            self.k = ((self.w_max - cwnd) / C).cbrt();
        } else {
            self.k = 0.0;
            self.w_max = cwnd;
        }
    }

    /// The window after `acked` more packets, from `cwnd` (RFC 9438, sections 4.3 to 4.5).
    fn next(&mut self, now: Time, srtt: Span, cwnd: f64, acked: f64) -> f64 {
        let Some(epoch) = self.epoch else { return cwnd };
        let t = now.since(epoch).as_secs_f64();
        let alpha = if self.w_est >= self.prior { 1.0 } else { ALPHA };
        self.w_est += alpha * acked / cwnd;
        if self.at(t) < self.w_est {
            return self.w_est.max(cwnd);
        }
        let target = self.at(t + srtt.as_secs_f64()).clamp(cwnd, 1.5 * cwnd);
        (cwnd + (target - cwnd) / cwnd * acked).min(target)
    }
}

/// The state before a reduction, restored if its losses were spurious (RFC 9438, section 4.9).
#[derive(Clone, Copy, Debug)]
struct Undo {
    cwnd: u64,
    ssthresh: u64,
    curve: Curve,
    /// Bytes lost in the episode and not yet found to have arrived.
    lost: u64,
}

/// CUBIC.
#[derive(Debug)]
pub struct Cubic {
    config: Config,
    window: Window,
    curve: Curve,
    hystart: HyStart,
    undo: Option<Undo>,
    /// Since when the window has not been fully used; this time does not advance the curve.
    unused_since: Option<Time>,
}

impl Cubic {
    fn new(config: Config, info: &PathInfo) -> Cubic {
        Cubic {
            config,
            window: Window::new(info, config.initial),
            curve: Curve::default(),
            hystart: HyStart::default(),
            undo: None,
            unused_since: None,
        }
    }

    fn packets(&self) -> f64 {
        self.window.cwnd as f64 / self.window.packet as f64
    }

    fn on_congestion(&mut self, s: &Signals) {
        // Marks are never spurious, so a reduction with marks cannot be undone.
        self.undo = (s.ce_packets == 0).then_some(Undo {
            cwnd: self.window.cwnd,
            ssthresh: self.window.ssthresh,
            curve: self.curve,
            lost: 0,
        });
        let cwnd = self.packets();
        self.curve.prior = cwnd;
        self.curve.w_max = if self.config.fast_convergence && cwnd < self.curve.w_max {
            cwnd * (1.0 + BETA) / 2.0
        } else {
            cwnd
        };
        self.curve.epoch = None;
        self.window.reduce(s.now, BETA_TENTHS, 10);
    }

    fn check_spurious(&mut self, s: &Signals) {
        let Some(undo) = &mut self.undo else { return };
        undo.lost = undo.lost.saturating_add(s.lost).saturating_sub(s.spurious);
        if s.spurious > 0 && undo.lost == 0 {
            let undo = *undo;
            self.undo = None;
            self.window.restore(undo.cwnd, undo.ssthresh);
            self.curve = undo.curve;
        }
    }

    fn on_acked(&mut self, s: &Signals) {
        if s.acked == 0 || self.window.in_recovery(s.newest_acked_sent) {
            return;
        }
        if !self.window.is_used(s) {
            self.unused_since.get_or_insert(s.now);
            return;
        }
        if let Some(since) = self.unused_since.take()
            && let Some(epoch) = &mut self.curve.epoch
        {
            *epoch += s.now.since(since);
        }
        if self.window.in_slow_start() {
            let growth = if self.config.hystart { self.hystart.growth(s.acked) } else { s.acked };
            self.window.cwnd = self.window.cwnd.saturating_add(growth);
            return;
        }
        let (cwnd, acked) = (self.packets(), s.acked as f64 / self.window.packet as f64);
        if self.curve.epoch.is_none() {
            self.curve.begin(s.now, cwnd);
        }
        let next = self.curve.next(s.now, self.window.srtt(), cwnd, acked);
        self.window.grow((next - cwnd) * self.window.packet as f64);
    }
}

impl Algorithm for Cubic {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, _train: &SentTrain) {}

    fn on_feedback(&mut self, s: &Signals) {
        self.window.update(s);
        if self.config.hystart && self.window.in_slow_start() && self.hystart.update(s) {
            self.window.ssthresh = self.window.cwnd;
        }
        if self.window.is_new_episode(s) {
            self.on_congestion(s);
        }
        self.check_spurious(s);
        self.on_acked(s);
    }

    fn on_event(&mut self, now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.window.on_timeout(count),
            Event::PersistentCongestion => {
                self.window.collapse();
                self.curve = Curve::default();
                self.hystart = HyStart::default();
                self.undo = None;
            }
            // Idle time does not advance the curve (RFC 9438, section 5.8).
            Event::RestartFromIdle { idle_since } => {
                self.unused_since.get_or_insert(idle_since.min(now));
            }
            Event::PathChanged(info) => *self = Cubic::new(self.config, &info),
            Event::PacketSize(bytes) => {
                // The curve is in packets; rescaling keeps its shape in bytes.
                let ratio = self.window.packet as f64 / bytes.max(1) as f64;
                self.window.packet = bytes.max(1);
                self.curve.w_max *= ratio;
                self.curve.w_est *= ratio;
                self.curve.prior *= ratio;
                self.curve.k *= ratio.cbrt();
            }
        }
    }

    fn decision(&self) -> Decision {
        self.window.decision()
    }

    fn state(&self) -> &'static str {
        match (self.window.in_slow_start(), self.hystart.in_css()) {
            (true, true) => "conservative_slow_start",
            (true, false) => "slow_start",
            _ => "avoidance",
        }
    }
}

#[cfg(test)]
mod tests;
