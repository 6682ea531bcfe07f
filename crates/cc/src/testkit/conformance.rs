//! The conformance kit: sequences of operations that a path could produce, with invariants checked after each.
//!
//! The operations drive a small consistent model (what is acknowledged was sent, time advances), so that an algorithm
//! may trust its signals as much as in the transport.

use crate::algorithms::{MIN_PACKETS, MIN_RATE};
use crate::{Algorithm, Decision, Event, Hop, MAX_HOPS, PathInfo, RateSample, SentTrain, Signals};
use base::{Rate, Rng, Span, Time};
use std::collections::VecDeque;

/// Most trains in flight in the model; more are not sent.
const MAX_TRAINS: usize = 16_384;
/// Steps per round trip.
const STEPS: u64 = 8;
/// Shortest step.
const MIN_STEP: Span = Span::from_micros(250);
/// Largest quantum: eight trains of the most payload of segmentation offload, with headers; and while the dispersion
/// of trains is measured, a third of a millisecond at 400 Gbit/s.
const MAX_QUANTUM: u64 = 8 * (65_507 + 64 * 28);
const MAX_DISPERSION_QUANTUM: u64 = 16 << 20;
/// Highest rate of a decision: an eighth of what the type holds, which leaves room for gains.
const MAX_RATE: Rate = Rate::from_bytes_per_sec(u64::MAX / 8);

/// The modelled path.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Its rate, in bytes on the wire.
    pub rate: Rate,
    /// Its round-trip time.
    pub rtt: Span,
    /// Bytes of a packet.
    pub packet: u64,
}

impl Path {
    /// The path's description for the algorithm.
    pub fn info(&self) -> PathInfo {
        PathInfo {
            packet_bytes: self.packet,
            handshake_rtt: Some(self.rtt),
            ecn: true,
            known_rate: None,
            remembered: None,
        }
    }
}

/// An operation. Shares are in 255ths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// An eighth of a round trip passes: the sender uses a share of its permission, and feedback arrives.
    Step {
        /// Share of the permission that is used.
        used: u8,
        /// Share of the packets reported that were lost.
        lost: u8,
        /// Share of the packets reported that were marked.
        marked: u8,
        /// Queueing delay as a share of a round trip.
        queue: u8,
    },
    /// Half of the last losses turn out to have arrived.
    Spurious,
    /// A probe time-out, with its count in a row.
    Timeout(u8),
    /// Persistent congestion: everything in flight is lost.
    Persistent,
    /// Nothing is in flight or sent for this many milliseconds.
    Idle(u16),
    /// The path changes to an equal one.
    PathChanged,
    /// The packet size changed, within 576 to 9,000 bytes.
    PacketSize(u16),
    /// From now on packets wait in the receiver's host for this share of a round trip.
    Host(u8),
    /// Random telemetry of this many hops, from a seed.
    RandomTelemetry(u8, u64),
}

impl Op {
    /// A step without loss, marks or queue, with the permission fully used.
    pub const CLEAN: Op = Op::Step { used: 255, lost: 0, marked: 0, queue: 0 };
}

#[derive(Clone, Copy, Debug)]
struct Train {
    sent: Time,
    bytes: u64,
    packets: u64,
    prior_delivered: u64,
    prior_time: Time,
    first_sent: Time,
    prior_lost: u64,
    tx_inflight: u64,
    app_limited: bool,
}

/// An algorithm in the model.
#[derive(Debug)]
pub struct Harness {
    /// The algorithm under test.
    pub algorithm: Box<dyn Algorithm>,
    /// Bytes delivered.
    pub delivered: u64,
    /// Most bytes that were in flight.
    pub peak_inflight: u64,
    /// Bytes of permission that do not make a whole packet yet.
    partial_packet: u64,
    path: Path,
    now: Time,
    trains: VecDeque<Train>,
    inflight: u64,
    lost: u64,
    last_lost: u64,
    delivered_time: Time,
    first_sent: Time,
    last_sent: Time,
    next_round: u64,
    round: u64,
    /// Delay in the receiver's host, and the queueing delay of the last feedback.
    host_delay: Span,
    last_queue_delay: Span,
}

impl Harness {
    /// A model at time zero.
    pub fn new(algorithm: Box<dyn Algorithm>, path: Path) -> Harness {
        Harness::starting(algorithm, path, Time::ZERO)
    }

    /// A model that starts at `now`.
    pub fn starting(algorithm: Box<dyn Algorithm>, path: Path, now: Time) -> Harness {
        Harness {
            algorithm,
            delivered: 0,
            peak_inflight: 0,
            partial_packet: 0,
            path,
            now,
            trains: VecDeque::new(),
            inflight: 0,
            lost: 0,
            last_lost: 0,
            delivered_time: now,
            first_sent: now,
            last_sent: now,
            next_round: 0,
            round: 0,
            host_delay: Span::ZERO,
            last_queue_delay: Span::ZERO,
        }
    }

    /// Applies `op` and checks the invariants.
    ///
    /// # Errors
    /// The violated invariant, as text.
    pub fn apply(&mut self, op: Op) -> Result<Decision, String> {
        match op {
            Op::Step { used, lost, marked, queue } => self.step(used, lost, marked, queue),
            Op::Spurious => self.spurious(),
            Op::Timeout(n) => self.event(Event::ProbeTimeout { count: u32::from(n).max(1) }),
            Op::Persistent => {
                self.drop_inflight();
                self.event(Event::PersistentCongestion);
            }
            Op::Idle(ms) => {
                self.drop_inflight();
                self.now += Span::from_millis(u64::from(ms));
                self.event(Event::RestartFromIdle { idle_since: self.last_sent });
            }
            Op::PathChanged => self.event(Event::PathChanged(self.path.info())),
            Op::PacketSize(n) => {
                self.path.packet = u64::from(n).clamp(576, 9_000);
                self.event(Event::PacketSize(self.path.packet));
            }
            Op::Host(share) => self.host_delay = self.path.rtt.scale(u64::from(share), 255),
            Op::RandomTelemetry(hops, seed) => {
                let hops = random_telemetry(hops, &mut Rng::from_u64(seed));
                self.algorithm.on_telemetry(self.now, &hops);
            }
        }
        self.check(op)
    }

    /// Applies `op` repeatedly.
    ///
    /// # Errors
    /// The violated invariant, as text.
    pub fn repeat(&mut self, op: Op, times: u64) -> Result<Decision, String> {
        let mut last = self.algorithm.decision();
        for _ in 0..times {
            last = self.apply(op)?;
        }
        Ok(last)
    }

    fn check(&self, op: Op) -> Result<Decision, String> {
        let d = self.algorithm.decision();
        let say = |what: &str| {
            Err(format!(
                "{} after {op:?} in state {:?}: {what}: {d:?}",
                self.algorithm.name(),
                self.algorithm.state()
            ))
        };
        let packet = self.path.packet;
        if d.rate < MIN_RATE || d.rate > MAX_RATE {
            return say("the rate is not one to send at");
        }
        if d.cwnd < MIN_PACKETS * packet || d.cwnd == u64::MAX {
            return say("the congestion window is unlimited, or holds fewer than two packets");
        }
        let most = if self.algorithm.wants_dispersion() { MAX_DISPERSION_QUANTUM } else { MAX_QUANTUM };
        if d.quantum < packet || d.quantum > most.max(2 * packet) {
            return say("the quantum is no sensible train");
        }
        Ok(d)
    }

    fn event(&mut self, event: Event) {
        self.algorithm.on_event(self.now, event);
    }

    fn drop_inflight(&mut self) {
        self.lost += self.inflight;
        self.inflight = 0;
        self.trains.clear();
    }

    fn step(&mut self, used: u8, lost: u8, marked: u8, queue: u8) {
        let step = (self.path.rtt / STEPS).max(MIN_STEP);
        self.now += step;
        let d = self.algorithm.decision();
        // The link takes what it can; more is not queued but not sent.
        let paced = d.rate.bytes_in(step).min(self.path.rate.bytes_in(step)).max(2 * self.path.packet);
        let room = d.cwnd.saturating_sub(self.inflight);
        let allowed = u128::from(paced.min(room)) * u128::from(used) / 255;
        // The rest of a packet counts in the next step, as in a pacer; otherwise a slightly higher rate would never
        // deliver more.
        let credit = allowed as u64 + self.partial_packet;
        let packets = credit.min(room) / self.path.packet;
        self.partial_packet = (credit - packets * self.path.packet).min(self.path.packet - 1);
        if packets > 0 && self.trains.len() < MAX_TRAINS {
            self.send(packets, used < 255);
        }
        self.feedback(lost, marked, queue, used < 255);
    }

    fn send(&mut self, packets: u64, app_limited: bool) {
        let bytes = packets * self.path.packet;
        if self.inflight == 0 {
            self.first_sent = self.now;
            self.delivered_time = self.now;
        }
        self.inflight += bytes;
        self.peak_inflight = self.peak_inflight.max(self.inflight);
        self.last_sent = self.now;
        self.trains.push_back(Train {
            sent: self.now,
            bytes,
            packets,
            prior_delivered: self.delivered,
            prior_time: self.delivered_time,
            first_sent: self.first_sent,
            prior_lost: self.lost,
            tx_inflight: self.inflight,
            app_limited,
        });
        let train = SentTrain { now: self.now, bytes, packets, inflight: self.inflight, app_limited };
        self.algorithm.on_sent(&train);
    }

    fn feedback(&mut self, lost: u8, marked: u8, queue: u8, app_limited: bool) {
        let delay = self.path.rtt.scale(u64::from(queue), 255) + self.host_delay;
        let due = self.trains.iter().take_while(|t| t.sent + self.path.rtt + delay <= self.now).count();
        let Some(newest) = due.checked_sub(1).map(|i| self.trains[i]) else { return };
        let mut s =
            Signals { now: self.now, prior_inflight: self.inflight, app_limited, ..Signals::default() };
        for t in self.trains.drain(..due) {
            let gone = t.packets * u64::from(lost) / 255;
            let each = t.bytes / t.packets;
            s.lost += gone * each;
            s.lost_packets += gone;
            s.acked += (t.packets - gone) * each;
            s.acked_packets += t.packets - gone;
            if gone > 0 {
                s.latest_lost_sent = Some(t.sent);
            }
            self.inflight -= t.bytes;
        }
        self.delivered += s.acked;
        self.lost += s.lost;
        self.last_lost = s.lost;
        s.ce_packets = s.acked_packets * u64::from(marked) / 255;
        s.ce_acked = s.acked / s.acked_packets.max(1) * s.ce_packets;
        s.round_start = newest.prior_delivered >= self.next_round;
        if s.round_start {
            self.round += 1;
            self.next_round = self.delivered;
        }
        let interval = self.now.since(newest.prior_time).max(newest.sent.since(newest.first_sent));
        if s.acked > 0 {
            self.first_sent = newest.sent;
            self.delivered_time = self.now;
            s.newest_acked_sent = Some(newest.sent);
            s.rtt = Some(self.path.rtt + delay);
            let delivered = self.delivered - newest.prior_delivered;
            s.rate = Some(RateSample {
                rate: Rate::from_bytes_in(delivered, interval),
                interval,
                delivered,
                prior_delivered: newest.prior_delivered,
                tx_inflight: newest.tx_inflight,
                lost: self.lost - newest.prior_lost,
                forgone: 0,
                app_limited: newest.app_limited,
            });
        }
        self.deliver_signals(s, delay);
    }

    fn deliver_signals(&mut self, mut s: Signals, delay: Span) {
        s.inflight = self.inflight;
        s.srtt = self.path.rtt + delay;
        s.min_rtt = self.path.rtt;
        s.queue_delay = delay - self.host_delay;
        s.host_delay = self.host_delay;
        let step = (self.path.rtt / STEPS).max(MIN_STEP).as_nanos();
        let rise = i128::from(delay.as_nanos()) - i128::from(self.last_queue_delay.as_nanos());
        s.rtt_trend = (rise * 1_000_000 / i128::from(step)) as i64;
        s.delay_trend = s.rtt_trend;
        self.last_queue_delay = delay;
        s.delivered = self.delivered;
        s.round = self.round;
        if s.acked > 0 {
            let queue = self.path.rate.bytes_in(s.queue_delay);
            let hop = Hop { id: 1, at: self.now, queue, sent: self.delivered, rate: self.path.rate };
            self.algorithm.on_telemetry(self.now, &[hop]);
        }
        self.algorithm.on_feedback(&s);
    }

    fn spurious(&mut self) {
        let spurious = self.last_lost / 2;
        self.last_lost -= spurious;
        let s = Signals { now: self.now, prior_inflight: self.inflight, spurious, ..Signals::default() };
        self.deliver_signals(s, self.host_delay);
    }
}

/// Implausible telemetry: jumping clocks, counters and rates at their limits.
fn random_telemetry(hops: u8, rng: &mut Rng) -> Vec<Hop> {
    let any = |rng: &mut Rng| match rng.below(4) {
        0 => 0,
        1 => u64::MAX,
        2 => rng.below(1 << 20),
        _ => rng.u64(),
    };
    let hop = |_| Hop {
        id: rng.below(3) as u16,
        at: Time::from_nanos(any(rng)),
        queue: any(rng),
        sent: any(rng),
        rate: Rate::from_bytes_per_sec(any(rng)),
    };
    (0..usize::from(hops).min(MAX_HOPS)).map(hop).collect()
}

/// Runs all of `ops`; returns the decision after each.
///
/// # Errors
/// The first violated invariant, as text.
pub fn run(algorithm: Box<dyn Algorithm>, path: Path, ops: &[Op]) -> Result<Vec<Decision>, String> {
    let mut h = Harness::new(algorithm, path);
    ops.iter().map(|op| h.apply(*op)).collect()
}

/// Checks recovery after `event` on a path in order again: data flows in every round, and after `rounds` rounds the
/// algorithm sends no slower than right after the event.
///
/// # Errors
/// The violated invariant, as text.
pub fn check_recovery(h: &mut Harness, event: Op, rounds: u64) -> Result<(), String> {
    h.apply(Op::Host(0))?;
    let low = h.apply(event)?;
    for round in 0..rounds {
        let before = h.delivered;
        // Two round trips: at the minimum window a round may need that long to be reported.
        h.repeat(Op::CLEAN, 2 * STEPS)?;
        if h.delivered == before {
            return Err(format!("{}: nothing flows in round {round} after {event:?}", h.algorithm.name()));
        }
    }
    // The path's rate suffices, since an earlier estimate may have been too high.
    let after = h.algorithm.decision();
    // A quarter of it suffices for the moment, since an algorithm may be draining a queue or measuring the round
    // trip.
    let rate = low.rate.min(h.path.rate).scale(1, 4);
    let least = low.cwnd.min(h.path.rate.bytes_in(h.path.rtt)) / 4;
    // A congestion window may exceed what the rate needs by no more than a probe's gain; that of a start may be several
    // times larger.
    let least = least.min(after.rate.bytes_in(h.path.rtt) / 2);
    if after.rate < rate || after.cwnd < least {
        return Err(format!("{}: {after:?} is below {low:?}, {event:?} ago", h.algorithm.name()));
    }
    Ok(())
}

/// Checks with an application that uses a tenth of its permission that the congestion window does not grow far beyond the use.
///
/// # Errors
/// The violated invariant, as text.
pub fn check_cwnd_follows_use(h: &mut Harness, rounds: u64) -> Result<(), String> {
    let start = h.algorithm.decision().cwnd;
    let step = Op::Step { used: 25, lost: 0, marked: 0, queue: 0 };
    for _ in 0..rounds * STEPS {
        let d = h.apply(step)?;
        let limit = start + 8 * h.peak_inflight + 16 * d.quantum;
        if d.cwnd > limit {
            return Err(format!(
                "{}: cwnd {} where {} are used",
                h.algorithm.name(),
                d.cwnd,
                h.peak_inflight
            ));
        }
    }
    Ok(())
}

/// The bytes that the decisions would allow in `rounds` round trips of steps with `lost` of 255 packets lost; more
/// loss must not mean more sending.
///
/// # Errors
/// The violated invariant, as text.
pub fn bytes_sent_under_loss(h: &mut Harness, lost: u8, rounds: u64) -> Result<u128, String> {
    let step = (h.path.rtt / STEPS).max(MIN_STEP);
    let mut total = 0u128;
    for _ in 0..rounds * STEPS {
        let d = h.apply(Op::Step { used: 255, lost, marked: 0, queue: 0 })?;
        total += u128::from(d.rate.bytes_in(step).min(d.cwnd));
    }
    Ok(total)
}
