//! DCQCN (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015), the rate control of
//! RoCEv2 network cards.
//!
//! The paper's notification point (section 3.1) sends a congestion notification packet when a marked packet arrives,
//! at most one every 50 us. Here feedback reports marks, often for several times that interval, so the sender derives
//! the notifications: one for each 50 us that a feedback covers, as long as there are marks for them. One per
//! feedback would let the rate increase several times between two cuts and overflow the queue.
//!
//! Deviations: losses count as notifications (the paper's fabric is lossless), the rate grows only while it is used,
//! and the start is the initial window, since the speed of the port is not known.

use super::marked_share::{ONE, average};
use super::paced::{PacedFlow, clamp_rate};
use super::window::INITIAL_WINDOW;
use crate::registry::{Definition, Kind, Marks, Needs, ParamDef, Params};
use crate::{Algorithm, Decision, Event, PathInfo, SentTrain, Signals};
use base::{Rate, Span, Time};

const SHORT: Span = Span::from_micros(1);
const LONG: Span = Span::from_secs(1);
const MIN_INCREASE: Rate = Rate::from_bits_per_sec(1_000);
const MAX_INCREASE: Rate = Rate::from_mbit(100_000);

/// The registration.
pub(crate) const DEFINITION: Definition = Definition {
    name: "dcqcn",
    summary: "DCQCN (SIGCOMM 2015): the rate control of RoCEv2 network cards; for data centres that mark",
    params: &[
        INITIAL_WINDOW,
        ParamDef {
            name: "g",
            help: "weight of a notification, or of a time without one, in alpha",
            kind: Kind::Share { min: 10, max: 100_000, default: 391 },
        },
        ParamDef {
            name: "rate_ai",
            help: "additive increase (R_AI); auto is 40 Mbit/s",
            kind: Kind::Rate { min: MIN_INCREASE, max: MAX_INCREASE },
        },
        ParamDef {
            name: "rate_hai",
            help: "hyper increase (R_HAI); auto is ten times rate_ai",
            kind: Kind::Rate { min: MIN_INCREASE, max: MAX_INCREASE },
        },
        ParamDef {
            name: "timer",
            help: "time after which the rate is raised again (T)",
            kind: Kind::Span { min: SHORT, max: LONG, default: Span::from_micros(55) },
        },
        ParamDef {
            name: "byte_counter",
            help: "bytes sent after which the rate is raised again (B)",
            kind: Kind::Count { unit: "bytes", min: 1_500, max: 1 << 40, default: 10_000_000 },
        },
        ParamDef {
            name: "fast_recovery",
            help: "raises of either kind that go halfway back to the target before it grows (F)",
            kind: Kind::Count { unit: "raises", min: 1, max: 1_000, default: 5 },
        },
        ParamDef {
            name: "alpha_timer",
            help: "time without a notification after which alpha shrinks (K); longer than cnp_interval",
            kind: Kind::Span { min: SHORT, max: LONG, default: Span::from_micros(55) },
        },
        ParamDef {
            name: "cnp_interval",
            help: "least time between two notifications (N)",
            kind: Kind::Span { min: SHORT, max: LONG, default: Span::from_micros(50) },
        },
    ],
    needs: Needs { marks: Marks::Step, telemetry: false },
    code: "",
    build: &|params, info, _| Box::new(Dcqcn::new(Config::from_params(params), info)),
};

/// Default additive increase (section 5.2).
const RATE_AI: Rate = Rate::from_mbit(40);
/// Default hyper increase, as a multiple of the additive one.
const HYPER_FACTOR: u64 = 10;
/// Most expiries of a timer that one call catches up with; more than that is an idle time.
const MAX_EXPIRIES: u32 = 64;
/// Longest time for a train, so that reductions take effect at once.
const MAX_TRAIN_TIME: Span = Span::from_micros(50);

#[derive(Clone, Copy, Debug)]
struct Config {
    initial: u64,
    /// In parts per 100,000.
    gain: u64,
    rate_ai: Rate,
    rate_hai: Rate,
    timer: Span,
    byte_counter: u64,
    fast_recovery: u64,
    alpha_timer: Span,
    cnp_interval: Span,
}

impl Config {
    fn from_params(p: &Params) -> Config {
        let rate_ai = p.rate("rate_ai").unwrap_or(RATE_AI);
        Config {
            initial: p.count("initial_window"),
            gain: p.share("g"),
            rate_ai,
            rate_hai: p.rate("rate_hai").unwrap_or(rate_ai.scale(HYPER_FACTOR, 1)),
            timer: p.span("timer"),
            byte_counter: p.count("byte_counter"),
            fast_recovery: p.count("fast_recovery"),
            alpha_timer: p.span("alpha_timer"),
            cnp_interval: p.span("cnp_interval"),
        }
    }
}

/// DCQCN's reaction point.
#[derive(Debug)]
pub struct Dcqcn {
    config: Config,
    paced: PacedFlow,
    /// The current rate (R_C) and the target rate (R_T).
    rate: Rate,
    target: Rate,
    /// The reduction factor, in [`ONE`]ths.
    alpha: u64,
    last_cnp: Option<Time>,
    /// The time of the latest feedback.
    last_feedback: Option<Time>,
    /// When alpha decays and when the rate increases next, once something was sent.
    alpha_due: Option<Time>,
    timer_due: Option<Time>,
    /// Expiries of timer and byte counter since the last reduction (T and BC), and bytes counted towards the next
    /// expiry of the latter.
    timer_expiries: u64,
    byte_expiries: u64,
    bytes: u64,
    state: &'static str,
}

impl Dcqcn {
    fn new(config: Config, info: &PathInfo) -> Dcqcn {
        let (paced, rate) = PacedFlow::new(info, config.initial);
        Dcqcn {
            config,
            paced,
            rate,
            target: rate,
            alpha: ONE,
            last_cnp: None,
            last_feedback: None,
            alpha_due: None,
            timer_due: None,
            timer_expiries: 0,
            byte_expiries: 0,
            bytes: 0,
            state: "fast_recovery",
        }
    }

    /// The number of notifications that a receiver would have sent for the packets of a feedback.
    fn notifications(&mut self, s: &Signals) -> u64 {
        let answered = self.paced.begin_recovery_on_loss(s);
        let interval = self.config.cnp_interval;
        let since = self.last_cnp.max(self.last_feedback);
        let intervals = match (since, self.last_cnp) {
            (_, Some(last)) if s.now.since(last) < interval => 0,
            (Some(since), _) => (s.now.since(since).as_nanos() / interval.as_nanos().max(1)).max(1),
            (None, _) => 1,
        };
        s.ce_packets.min(intervals).min(u64::from(MAX_EXPIRIES)).max(u64::from(answered))
    }

    /// Reacts to a notification (equation 1): the target becomes the rate, the rate shrinks by half of alpha, alpha
    /// grows.
    fn on_notification(&mut self, now: Time) {
        self.target = self.rate;
        self.rate = clamp_rate(self.rate.scale(2 * ONE - self.alpha, 2 * ONE));
        self.alpha = average(self.alpha, ONE, self.config.gain);
        (self.timer_expiries, self.byte_expiries, self.bytes) = (0, 0, 0);
        self.restart_timers(now);
        self.last_cnp = Some(now);
        self.state = "fast_recovery";
    }

    fn restart_timers(&mut self, now: Time) {
        self.alpha_due = Some(now + self.config.alpha_timer);
        self.timer_due = Some(now + self.config.timer);
    }

    /// Processes the expiries of timers that are due.
    fn advance(&mut self, now: Time) {
        let (Some(mut alpha_due), Some(mut timer_due)) = (self.alpha_due, self.timer_due) else {
            return self.restart_timers(now);
        };
        for _ in 0..expiries(alpha_due, now, self.config.alpha_timer) {
            // Equation 2.
            self.alpha = average(self.alpha, 0, self.config.gain);
            alpha_due += self.config.alpha_timer;
        }
        for _ in 0..expiries(timer_due, now, self.config.timer) {
            self.timer_expiries += 1;
            self.increase();
            timer_due += self.config.timer;
        }
        // More expiries than that are an idle time.
        let later = |due: Time, period| if due <= now { now + period } else { due };
        self.alpha_due = Some(later(alpha_due, self.config.alpha_timer));
        self.timer_due = Some(later(timer_due, self.config.timer));
    }

    /// Reacts to an expiry of the timer or the byte counter (figure 7 and equations 3 and 4).
    fn increase(&mut self) {
        if !self.paced.is_used() {
            return;
        }
        let c = self.config;
        let (most, least) =
            (self.timer_expiries.max(self.byte_expiries), self.timer_expiries.min(self.byte_expiries));
        let grow = |by: Rate| {
            clamp_rate(Rate::from_bytes_per_sec(
                self.target.bytes_per_sec().saturating_add(by.bytes_per_sec()),
            ))
        };
        (self.target, self.state) = if most < c.fast_recovery {
            (self.target, "fast_recovery")
        } else if least > c.fast_recovery {
            (grow(c.rate_hai), "hyper_increase")
        } else {
            (grow(c.rate_ai), "additive_increase")
        };
        let middle = (self.target.bytes_per_sec() + self.rate.bytes_per_sec()) / 2;
        self.rate = clamp_rate(Rate::from_bytes_per_sec(middle));
    }
}

/// How often a timer due at `due` and then every `period` has expired by `now`, limited to [`MAX_EXPIRIES`].
fn expiries(due: Time, now: Time, period: Span) -> u32 {
    if now < due {
        return 0;
    }
    let times = now.since(due).as_nanos() / period.as_nanos().max(1) + 1;
    u32::try_from(times).unwrap_or(u32::MAX).min(MAX_EXPIRIES)
}

impl Algorithm for Dcqcn {
    fn name(&self) -> &'static str {
        DEFINITION.name
    }

    fn on_sent(&mut self, train: &SentTrain) {
        self.advance(train.now);
        self.bytes = self.bytes.saturating_add(train.bytes);
        if self.bytes >= self.config.byte_counter {
            self.bytes %= self.config.byte_counter;
            self.byte_expiries += 1;
            self.increase();
        }
    }

    fn on_feedback(&mut self, s: &Signals) {
        self.paced.update(s, self.rate);
        self.advance(s.now);
        let notifications = self.notifications(s);
        self.last_feedback = Some(s.now);
        for _ in 0..notifications {
            self.on_notification(s.now);
        }
    }

    fn on_event(&mut self, now: Time, event: Event) {
        match event {
            Event::ProbeTimeout { count } => self.paced.on_timeout(count),
            Event::PersistentCongestion => {
                (self.rate, self.target) = (super::MIN_RATE, super::MIN_RATE);
            }
            Event::RestartFromIdle { .. } => self.restart_timers(now),
            Event::PathChanged(info) => *self = Dcqcn::new(self.config, &info),
            Event::PacketSize(bytes) => self.paced.packet = bytes.max(1),
        }
    }

    fn decision(&self) -> Decision {
        self.paced.decision(self.rate, MAX_TRAIN_TIME)
    }

    fn state(&self) -> &'static str {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::test_signals::{self, PACKET};
    use crate::registry::find;

    /// A flow at 1 Gbit/s, fully used, with its timers just started.
    fn dcqcn() -> Dcqcn {
        let config = Config::from_params(&find("dcqcn").unwrap().defaults());
        let mut d = Dcqcn::new(config, &test_signals::info());
        d.on_feedback(&feedback(0, 0));
        (d.rate, d.target) = (Rate::from_mbit(1_000), Rate::from_mbit(1_000));
        d
    }

    fn at(us: u64) -> Time {
        test_signals::at(1) + Span::from_micros(us)
    }

    fn feedback(us: u64, marked: u64) -> Signals {
        Signals { now: at(us), ce_packets: marked, ce_acked: marked * PACKET, ..test_signals::round(1, 10) }
    }

    fn mbit(rate: Rate) -> f64 {
        rate.bits_per_sec() as f64 / 1e6
    }

    fn alpha(d: &Dcqcn) -> f64 {
        d.alpha as f64 / ONE as f64
    }

    const G: f64 = 0.00391;

    #[test]
    fn notification_cuts_the_rate_by_half_of_alpha() {
        let mut d = dcqcn();
        d.alpha = ONE / 2;
        d.on_feedback(&feedback(10, 3));
        // Equation 1.
        assert_eq!((mbit(d.target), mbit(d.rate)), (1_000.0, 750.0));
        assert!((alpha(&d) - ((1.0 - G) * 0.5 + G)).abs() < 1e-5);
    }

    #[test]
    fn notifications_are_50_us_apart() {
        let mut d = dcqcn();
        d.on_feedback(&feedback(10, 1));
        let after = d.rate;
        d.on_feedback(&feedback(40, 9));
        assert_eq!(d.rate, after);
        d.on_feedback(&feedback(60, 9));
        assert!(d.rate < after);
    }

    #[test]
    fn feedback_counts_as_one_notification_per_50_us_with_marks() {
        for (marked, cuts) in [(0, 0), (1, 1), (2, 2), (4, 4), (9, 4)] {
            let mut d = dcqcn();
            d.on_feedback(&feedback(10, 0));
            d.alpha = ONE;
            d.rate = Rate::from_mbit(1_024);
            // The timers do not matter here.
            d.restart_timers(at(210));
            d.on_feedback(&feedback(210, marked));
            assert_eq!(mbit(d.rate), 1_024.0 / f64::from(1u32 << cuts), "{marked}");
        }
    }

    #[test]
    fn alpha_decays_every_55_us_without_notification() {
        let mut d = dcqcn();
        d.on_feedback(&feedback(10, 1));
        let before = alpha(&d);
        d.on_feedback(&feedback(10 + 3 * 55, 0));
        // Equation 2, three times.
        assert!((alpha(&d) - before * (1.0 - G).powi(3)).abs() < 1e-5);
    }

    #[test]
    fn fast_recovery_halves_the_gap_five_times_before_additive_increase() {
        let mut d = dcqcn();
        d.alpha = ONE;
        d.on_feedback(&feedback(0, 1));
        let mut rates = Vec::new();
        for n in 1..=6 {
            d.on_feedback(&feedback(n * 55, 0));
            rates.push(mbit(d.rate));
        }
        // Equation 3: R_C = (R_T + R_C) / 2, four times; the fifth expiry makes max(T, BC) = F.
        assert_eq!(rates[..4], [750.0, 875.0, 937.5, 968.75]);
        // Equation 4: R_T = R_T + R_AI.
        assert!((rates[4] - (1_040.0 + 968.75) / 2.0).abs() < 1e-3, "{rates:?}");
        assert!((rates[5] - (1_080.0 + rates[4]) / 2.0).abs() < 1e-3, "{rates:?}");
        assert_eq!(d.state(), "additive_increase");
    }

    #[test]
    fn hyper_increase_follows_when_timer_and_byte_counter_pass_recovery() {
        let mut d = dcqcn();
        d.on_feedback(&feedback(0, 1));
        (1..=6).for_each(|n| d.on_feedback(&feedback(n * 55, 0)));
        let train = SentTrain {
            now: at(6 * 55),
            bytes: 10_000_000,
            packets: 6_667,
            inflight: 10_000_000,
            app_limited: false,
        };
        (0..5).for_each(|_| d.on_sent(&train));
        assert_eq!(d.state(), "additive_increase", "min(T, BC) = 5 is not beyond F");
        let (before, rate) = (d.target, d.rate);
        d.on_sent(&train);
        assert_eq!(d.state(), "hyper_increase");
        assert!((mbit(d.target) - mbit(before) - 400.0).abs() < 1e-3);
        assert!((mbit(d.rate) - (mbit(d.target) + mbit(rate)) / 2.0).abs() < 1e-3);
    }

    #[test]
    fn expiries_of_a_pause_are_limited_and_losses_are_notifications() {
        let mut d = dcqcn();
        d.on_feedback(&Signals { now: Time::from_nanos(u64::MAX / 2), ..feedback(0, 0) });
        assert!(mbit(d.rate) <= 1_000.0 + 64.0 * 40.0);
        let before = d.rate;
        let lost =
            Signals { now: d.last_cnp.unwrap_or(test_signals::at(1)), lost: 1, ..test_signals::round(1, 1) };
        d.on_feedback(&lost);
        assert!(d.rate < before);
    }
}
