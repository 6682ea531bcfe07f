//! LEDBAT++: a scavenger that uses spare capacity, adds at most 60 ms of delay, and yields to other flows.
//!
//! After draft-irtf-iccrg-ledbat-plus-plus (sections given as "pp") and LEDBAT, RFC 6817, which it amends.
//! Differences from LEDBAT: slow start ends at three quarters of the target, growth is slower than Reno's on short
//! paths, decrease is multiplicative, and periodic slowdowns remove the flow's own queue so that it sees the base
//! delay.
//!
//! A known rate is not used, since others may use it by now and a scavenger has time. The ramp after a slowdown grows
//! by GAIN as any slow start does: the next slowdown waits nine times as long as this one took, so its cost stays a
//! tenth whatever its length.

use super::delay::MinFilter;
use super::window::Window;
use crate::registry::{Definition, Kind, Needs, ParamDef};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals};
use base::{Span, Time};

/// The registration.
pub(crate) const DEFINITION: Definition = Definition {
    name: "ledbat++",
    summary: "LEDBAT++ (RFC 6817 and draft-irtf-iccrg-ledbat-plus-plus): a scavenger that gives way to all",
    params: &[
        ParamDef {
            name: "initial_window",
            help: "what may be in flight at the start",
            kind: Kind::Count { unit: "packets", min: 2, max: 10_000, default: 2 },
        },
        ParamDef {
            name: "target",
            help: "queueing delay aimed at",
            kind: Kind::Span {
                min: Span::from_millis(1),
                max: Span::from_millis(100),
                default: Span::from_millis(60),
            },
        },
        ParamDef {
            name: "slowest",
            help: "most times that growth is slower than Reno's, on the shortest paths",
            kind: Kind::Count { unit: "times", min: 1, max: 1_000, default: 16 },
        },
        ParamDef {
            name: "slowdown",
            help: "empty the queue now and then to see the bare round trip and let newcomers in",
            kind: Kind::Switch { default: true },
        },
    ],
    needs: Needs::NOTHING,
    code: "",
    build: &|params, info, _| {
        let config = Config {
            initial: params.count("initial_window"),
            target: params.span("target"),
            slowest: params.count("slowest"),
            slowdown: params.switch("slowdown"),
        };
        Box::new(Ledbat::new(config, info))
    },
};

/// Parts of the base-delay window (RFC 6817, section 2.5: BASE_HISTORY).
const BASE_HISTORY: usize = 10;
/// Length of the window, a minute per part (RFC 6817, section 2.5).
const BASE_WINDOW: Span = Span::from_secs(60 * BASE_HISTORY as u64);
/// Samples of the current-delay filter (RFC 6817, section 3.4.2: CURRENT_FILTER; pp 4.5).
const CURRENT_FILTER: usize = 4;
/// Slow start ends at three quarters of the target (pp 4.1).
const EXIT_QUARTERS: u64 = 3;
/// Round trips for which a slowdown holds the window down, and which the first one waits for (pp 4.4).
const SLOWDOWN_ROUNDS: u64 = 2;
/// A slowdown waits this many times the duration of the last one (pp 4.4).
const SLOWDOWN_WAIT: u64 = 9;
/// Weight of the delay beyond the target (pp 4.3: Constant).
const CONSTANT: f64 = 1.0;

#[derive(Clone, Copy, Debug)]
struct Config {
    initial: u64,
    target: Span,
    slowest: u64,
    slowdown: bool,
}

/// The phase in the cycle of slowdowns (pp 4.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first slow start, which ends by delay.
    Initial,
    /// Growth below the target and decrease above it, until the next slowdown is due.
    Steady { next: Time },
    /// The window is held at its minimum until this time.
    Frozen { start: Time, until: Time },
    /// Slow start back to the former window.
    Ramp { start: Time },
}

/// LEDBAT++.
#[derive(Debug)]
pub struct Ledbat {
    config: Config,
    window: Window,
    phase: Phase,
    /// Base delay.
    base: MinFilter<BASE_HISTORY>,
    /// The latest samples, the newest first.
    current: [Span; CURRENT_FILTER],
}

impl Ledbat {
    fn new(config: Config, info: &PathInfo) -> Ledbat {
        let info = PathInfo { known_rate: None, ..*info };
        Ledbat {
            config,
            window: Window::new(&info, config.initial),
            phase: Phase::Initial,
            base: MinFilter::default(),
            current: [Span::MAX; CURRENT_FILTER],
        }
    }

    /// Round-trip times are measured instead of one-way delays, whose clocks drift apart (pp 4.5).
    fn update_delays(&mut self, s: &Signals) {
        let Some(rtt) = s.rtt.filter(|r| !r.is_zero()) else { return };
        self.base.update(s.now, BASE_WINDOW, rtt);
        self.current.rotate_right(1);
        self.current[0] = rtt;
    }

    fn queueing_delay(&self) -> Span {
        let current = self.current.iter().copied().min().unwrap_or(Span::ZERO);
        current - self.base.get().unwrap_or(current)
    }

    /// GAIN = 1 / min(16, ceil(2 * TARGET / base)) (pp 4.2).
    fn gain(&self) -> f64 {
        let base = self.base.get().unwrap_or(self.window.srtt()).as_nanos().max(1);
        let times = (self.config.target * 2).as_nanos().div_ceil(base);
        1.0 / times.clamp(1, self.config.slowest) as f64
    }

    /// The change of the window in a round trip, in packets (pp 4.3).
    fn change(&self, window: f64) -> f64 {
        let (delay, target) = (self.queueing_delay(), self.config.target);
        if delay < target {
            return self.gain();
        }
        let excess = delay.as_secs_f64() / target.as_secs_f64() - 1.0;
        (self.gain() - CONSTANT * window * excess).max(-window / 2.0)
    }

    fn steady(&mut self, s: &Signals) {
        let w = &self.window;
        let packet = w.packet as f64;
        let change = self.change(w.cwnd as f64 / packet) * packet;
        // A round trip acknowledges a window, so each part of it applies its part of the change.
        let change = change * (s.acked as f64 / w.cwnd as f64).min(1.0);
        let w = &mut self.window;
        if change < 0.0 {
            w.cwnd = w.cwnd.saturating_sub(-change as u64).max(w.min_window());
            w.ssthresh = w.ssthresh.min(w.cwnd);
        } else if w.is_used(s) {
            w.grow(change);
        }
    }

    fn slow_start(&mut self, s: &Signals) {
        let exit = self.config.target.scale(EXIT_QUARTERS, 4);
        if self.phase == Phase::Initial && self.queueing_delay() > exit {
            self.window.ssthresh = self.window.cwnd;
        } else if self.window.is_used(s) {
            let growth = self.gain() * s.acked as f64;
            self.window.grow(growth);
            self.window.cwnd = self.window.cwnd.min(self.window.ssthresh);
        }
    }

    /// The cycle of slowdowns (pp 4.4).
    fn advance(&mut self, s: &Signals) {
        let full = !self.window.in_slow_start();
        let two_rounds = self.window.srtt() * SLOWDOWN_ROUNDS;
        match self.phase {
            Phase::Initial if full => self.phase = Phase::Steady { next: s.now + two_rounds },
            Phase::Steady { next } if self.config.slowdown && full && s.now >= next => {
                self.window.ssthresh = self.window.cwnd;
                self.window.cwnd = self.window.min_window();
                self.window.begin_recovery(s.now);
                self.phase = Phase::Frozen { start: s.now, until: s.now + two_rounds };
            }
            Phase::Frozen { start, until } if s.now >= until => self.phase = Phase::Ramp { start },
            Phase::Ramp { start } if full => {
                let next = s.now + s.now.since(start) * SLOWDOWN_WAIT;
                self.phase = Phase::Steady { next };
            }
            _ => {}
        }
    }
}

impl Algorithm for Ledbat {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, _train: &SentTrain) {}

    fn on_feedback(&mut self, s: &Signals) {
        self.window.update(s);
        self.update_delays(s);
        let frozen = matches!(self.phase, Phase::Frozen { .. });
        // Halved at most once a round trip (RFC 6817, section 2.4.1), and not during a slowdown.
        if self.window.is_new_episode(s) && !frozen {
            self.window.reduce(s.now, 1, 2);
        }
        if s.acked > 0 && !frozen && !self.window.in_recovery(s.newest_acked_sent) {
            if self.window.in_slow_start() { self.slow_start(s) } else { self.steady(s) }
        }
        self.advance(s);
    }

    fn on_event(&mut self, now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.window.on_timeout(count),
            Event::PersistentCongestion => self.window.collapse(),
            // An idle time empties the queue as a slowdown does.
            Event::RestartFromIdle { .. } => {
                if let Phase::Frozen { start, .. } = self.phase {
                    self.phase = Phase::Frozen { start, until: now };
                }
            }
            Event::PathChanged(info) => *self = Ledbat::new(self.config, &info),
            Event::PacketSize(bytes) => self.window.packet = bytes.max(1),
        }
    }

    fn decision(&self) -> Decision {
        self.window.decision()
    }

    fn state(&self) -> &'static str {
        match self.phase {
            Phase::Initial => "slow_start",
            Phase::Steady { .. } if self.window.in_slow_start() => "slow_start",
            Phase::Steady { .. } => "avoidance",
            Phase::Frozen { .. } => "slowdown",
            Phase::Ramp { .. } => "slowdown:ramp",
        }
    }
}

#[cfg(test)]
mod tests;
