//! A flow: the mechanism around one algorithm. It sees trains and packets only as bytes and times, so that any
//! transport can drive it; packet formats, loss detection and feedback formats belong to the transport.

use super::trace::{Record, Trace, event_name, record};
use crate::pacer::{CATCH_UP, Pacer, Token};
use crate::registry::{self, Marks};
use crate::{Algorithm, Decision, Event, Hop, MAX_HOPS, PathInfo, RateSample, SentTrain, Signals};
use base::{Ecn, Rate, Span, Time};

/// Trains of a quantum leave together within this time, after which the rest of the permission is taken back.
const MAX_GROUP_TIME: Span = Span::from_millis(1);
/// Round trips over which the carried rate is smoothed.
const CARRIED_WEIGHT: u64 = 4;
/// Divisor of the carried bandwidth-delay product: with less in flight, the flow did not try to fill the path.
const CARRIED_MIN_FILL_DIVISOR: f64 = 8.0;
/// Round trips for which the path must have been filled for the carried rate to be worth remembering.
const MIN_CARRIED_ROUNDS: u32 = 8;

/// The state that the delivery-rate estimator keeps for a packet, shared by all packets of its train
/// (draft-cheng-iccrg-delivery-rate-estimation, section 3.1).
#[derive(Clone, Copy, Debug)]
pub struct Train {
    /// The flow it belongs to, by the transport's number.
    pub flow: u8,
    /// Total bytes delivered on the flow when it left.
    pub delivered: u64,
    /// When that total was reached.
    pub delivered_time: Time,
    /// Start of the sending interval of its sample.
    pub first_sent: Time,
    /// Bytes that the flow's pacer had forgone at that time.
    pub first_forgone: u64,
    /// Bytes that the flow's pacer had forgone when the train left.
    pub forgone: u64,
    /// When the train left.
    pub sent: Time,
    /// Bytes in flight just after it.
    pub tx_inflight: u64,
    /// Total bytes lost on the flow when it left.
    pub lost: u64,
    /// Whether the flow was limited by its application.
    pub app_limited: bool,
    /// The ECN field of its packets.
    pub ecn: Ecn,
    /// Whether hops write telemetry into it.
    pub telemetry: bool,
}

/// Round trips after which a replacement algorithm has its own measure of the path.
const HANDOVER_ROUNDS: u64 = 3;

/// The mechanism around one algorithm: bytes in flight, delivery-rate samples, rounds and pacing.
#[derive(Debug)]
pub struct Flow {
    algorithm: Box<dyn Algorithm>,
    codepoint: Ecn,
    pacer: Pacer,
    /// The rest of the permission for trains that leave together, and when it was given.
    group_token: Option<(Token, Time)>,
    cap: Option<Rate>,
    inflight: u64,
    delivered: u64,
    delivered_time: Time,
    first_sent: Time,
    /// Bytes that the pacer had forgone at that time.
    first_forgone: u64,
    lost: u64,
    spurious: u64,
    /// While `delivered` is below this, samples are application-limited.
    app_limited_until: u64,
    last_sent: Option<Time>,
    /// Whether more data waited behind the last train.
    backlogged: bool,
    /// Until when the pacer has delayed the flow since.
    paced_until: Option<Time>,
    round: u64,
    next_round: u64,
    /// Bytes per second delivered while not application-limited, smoothed over round trips, and the number of those.
    carried_rate: (u64, u32),
    /// The rate of the newest sample.
    latest_rate: Rate,
    /// The starting rate of a recent replacement algorithm, and the round until which it is used.
    handover: (Rate, u64),
    /// Bytes that the pacer had forgone when the flow was last held back.
    forgone_when_held_back: u64,
    /// What the feedback being processed has reported so far.
    pending: PendingFeedback,
    /// Telemetry of hops, until its feedback is processed.
    hops: Vec<Hop>,
    /// The trace, while somebody watches.
    trace: Option<Box<Trace>>,
}

#[derive(Debug, Default)]
struct PendingFeedback {
    touched: bool,
    acked: u64,
    acked_packets: u64,
    lost: u64,
    lost_packets: u64,
    spurious: u64,
    latest_lost_sent: Option<Time>,
    prior_inflight: u64,
    newest: Option<Train>,
    ce_packets: u64,
    ce_acked: u64,
}

/// Signals of the path, which are the same for all its flows.
#[derive(Clone, Copy, Debug)]
pub struct PathSignals {
    /// Now.
    pub now: Time,
    /// When the newest reported packet arrived, as seen from here: now less the receiver's delay.
    pub acked_at: Time,
    /// Round-trip sample.
    pub rtt: Option<Span>,
    /// Smoothed round trip.
    pub srtt: Span,
    /// Lowest round trip.
    pub min_rtt: Span,
    /// One-way delay above its minimum.
    pub queue_delay: Span,
    /// Rate of arrival of packets that were sent much faster.
    pub dispersion: Option<Rate>,
    /// Slope of the round-trip time, in millionths.
    pub rtt_trend: i64,
    /// Slope of the one-way delay, in millionths.
    pub delay_trend: i64,
    /// Time that the newest reported packet waited in the receiver's host.
    pub host_delay: Span,
}

impl Flow {
    /// A flow controlled by `algorithm`.
    pub fn new(algorithm: Box<dyn Algorithm>, cap: Option<Rate>) -> Flow {
        Flow {
            codepoint: codepoint(algorithm.name()),
            algorithm,
            pacer: Pacer::new(),
            group_token: None,
            cap,
            inflight: 0,
            delivered: 0,
            delivered_time: Time::ZERO,
            first_sent: Time::ZERO,
            first_forgone: 0,
            lost: 0,
            spurious: 0,
            app_limited_until: 0,
            last_sent: None,
            backlogged: false,
            paced_until: None,
            round: 0,
            next_round: 0,
            carried_rate: (0, 0),
            latest_rate: Rate::ZERO,
            handover: (Rate::ZERO, 0),
            forgone_when_held_back: 0,
            pending: PendingFeedback::default(),
            hops: Vec::new(),
            trace: None,
        }
    }

    /// The algorithm's decision, limited by the administrator's cap.
    pub fn decision(&self) -> Decision {
        let mut d = self.algorithm.decision();
        if let Some(cap) = self.cap {
            d.rate = d.rate.min(cap);
        }
        d
    }

    /// The algorithm's rate, regardless of the cap.
    pub fn wanted(&self) -> Rate {
        self.algorithm.decision().rate
    }

    /// The cap that the pacer enforces.
    pub const fn cap(&self) -> Option<Rate> {
        self.cap
    }

    /// Sets the administrator's cap.
    pub fn set_cap(&mut self, cap: Option<Rate>) {
        self.cap = cap;
    }

    /// Requests permission to send a train of at most `want` bytes and at least one `packet`. The error is the time
    /// to ask again ([`Time::MAX`]: after the next feedback).
    pub fn poll_token(&mut self, now: Time, packet: u64, want: u64) -> Result<Token, Time> {
        let mut d = self.decision();
        if self.cap.is_some_and(|cap| d.rate >= cap) {
            // The algorithm's quantum suits its own rate; at the start of a capped flow it could be a large part of
            // the cap.
            d.quantum = d.quantum.min(crate::pacer::quantum(d.rate, packet));
        }
        // At least a whole packet, also before the algorithm knows its new size.
        d.quantum = d.quantum.max(packet);
        // The congestion window is a safety net; one packet is always allowed, or there would be no feedback.
        if self.inflight > 0 && self.inflight + d.quantum.min(want) / 2 > d.cwnd {
            if let Some((left, _)) = self.group_token.take() {
                self.pacer.refund(left);
            }
            // Time spent waiting for the congestion window is not lateness to catch up with.
            let _ = self.pacer.poll(now, &d, 0);
            return Err(Time::MAX);
        }
        let mut group = match self.group_token.take() {
            Some((left, since)) if left.bytes() >= packet && now.since(since) <= MAX_GROUP_TIME => {
                (left, since)
            }
            old => {
                if let Some((left, _)) = old {
                    self.pacer.refund(left);
                }
                // A caller wants more than one train; only then does the pacer count late timers as lateness.
                let polled = self.pacer.poll(now, &d, u64::MAX);
                self.paced_until = polled.as_ref().err().copied().or(self.paced_until);
                (polled?, now)
            }
        };
        let train = group.0.split(want);
        self.group_token = Some(group).filter(|(left, _)| left.bytes() > 0);
        Ok(train)
    }

    /// The time until [`Flow::poll_token`] would give permission, as far as the pacer is concerned; `None` while the
    /// congestion window is full.
    pub fn wait(&self, now: Time, packet: u64) -> Option<Span> {
        let mut d = self.decision();
        d.quantum = d.quantum.max(packet);
        if self.inflight > 0 && self.inflight + d.quantum / 2 > d.cwnd {
            return None;
        }
        let group = self.group_token.as_ref().is_some_and(|(left, _)| left.bytes() >= packet);
        if group { Some(Span::ZERO) } else { self.pacer.wait(now, &d) }
    }

    /// Whether with `bytes` more in flight the congestion window allows no further `packet` before feedback.
    pub fn is_full_with(&self, bytes: u64, packet: u64) -> bool {
        let d = self.decision();
        self.inflight + bytes + d.quantum.max(packet) / 2 > d.cwnd
    }

    /// Returns unused permission.
    pub fn refund(&mut self, t: Token) {
        self.pacer.refund(t);
    }

    /// Begins the record of the next train, whose bytes are not known until [`Flow::on_sent`].
    pub fn begin_train(&mut self, now: Time, flow: u8) -> Train {
        // A new sample interval begins only if all data has arrived, and not because pacing exceeds the round trip:
        // on a short path it does between any two trains, and the rate is measured from one to the next.
        let paced = self.paced_until.take().is_some_and(|until| now.since(until) <= CATCH_UP);
        if self.inflight == 0 && !(paced && self.backlogged) {
            if let Some(last) = self.last_sent
                && now.since(last) > Span::from_millis(1)
            {
                self.on_event(now, Event::RestartFromIdle { idle_since: last });
            }
            self.first_sent = now;
            self.first_forgone = self.pacer.forgone();
            self.delivered_time = now;
        }
        Train {
            flow,
            delivered: self.delivered,
            delivered_time: self.delivered_time,
            first_sent: self.first_sent,
            first_forgone: self.first_forgone,
            forgone: self.pacer.forgone(),
            sent: now,
            tx_inflight: 0,
            lost: self.lost,
            app_limited: self.delivered < self.app_limited_until,
            ecn: Ecn::NotEct,
            telemetry: false,
        }
    }

    /// Records that the train has left.
    pub fn on_sent(&mut self, now: Time, train: &mut Train, bytes: u64, packets: u64, app_limited: bool) {
        self.inflight += bytes;
        train.tx_inflight = self.inflight;
        if app_limited {
            self.mark_app_limited();
        }
        self.backlogged = !app_limited;
        self.last_sent = Some(now);
        self.algorithm.on_sent(&SentTrain { now, bytes, packets, inflight: self.inflight, app_limited });
    }

    /// Records that there is nothing more to send although rate and congestion window would allow it.
    pub fn mark_app_limited(&mut self) {
        self.app_limited_until = self.delivered + self.inflight.max(1);
    }

    /// Takes the token back because another flow has priority. That does not matter while the flow catches up later;
    /// if it falls behind, its delivery rate is its share and does not measure the path.
    pub fn hold_back(&mut self, token: Token) {
        self.pacer.refund(token);
        if self.pacer.forgone() > self.forgone_when_held_back {
            self.forgone_when_held_back = self.pacer.forgone();
            self.mark_app_limited();
        }
    }

    /// Records that there is nothing to send: if the congestion window would allow more, present samples are
    /// application-limited.
    pub fn mark_app_limited_if_free(&mut self) {
        if self.inflight > 0 && self.inflight < self.decision().cwnd {
            self.mark_app_limited();
        }
    }

    /// Whether the delivery rate is limited by the application and not by the path.
    pub const fn is_app_limited(&self) -> bool {
        self.delivered < self.app_limited_until
    }

    fn pending_mut(&mut self) -> &mut PendingFeedback {
        if !self.pending.touched {
            self.pending.touched = true;
            self.pending.prior_inflight = self.inflight;
        }
        &mut self.pending
    }

    /// Reports a packet of this train as received, with its bytes on the wire.
    #[inline]
    pub fn on_acked(&mut self, bytes: u64, train: Option<&Train>) {
        let d = self.pending_mut();
        d.acked += bytes;
        d.acked_packets += 1;
        if let Some(t) = train
            && d.newest.is_none_or(|n| (n.delivered, n.sent) <= (t.delivered, t.sent))
        {
            d.newest = Some(*t);
        }
        self.inflight = self.inflight.saturating_sub(bytes);
        self.delivered += bytes;
    }

    /// Reports a packet as marked Congestion Experienced, in addition to [`Flow::on_acked`] (`acked`) or
    /// [`Flow::on_spurious`].
    pub fn on_marked(&mut self, bytes: u64, acked: bool) {
        let d = self.pending_mut();
        d.ce_packets += 1;
        d.ce_acked += if acked { bytes } else { 0 };
    }

    /// Reports marked packets of the path where the peer does not say which they are: they count for this flow, up to
    /// the number it had acknowledged.
    pub fn on_marks_of_any(&mut self, packets: u64) {
        let d = &mut self.pending;
        if d.acked_packets > 0 {
            d.ce_packets = packets.min(d.acked_packets);
            d.ce_acked =
                (u128::from(d.acked) * u128::from(d.ce_packets) / u128::from(d.acked_packets)) as u64;
        }
    }

    /// Stores the telemetry that hops wrote into a packet of this flow, first to last, for the feedback being
    /// processed. The last packet's is used, at most [`MAX_HOPS`].
    pub fn on_telemetry(&mut self, hops: &[Hop]) {
        self.hops.clear();
        self.hops.extend(hops.iter().take(MAX_HOPS));
    }

    /// Reports a packet that had been declared lost as received.
    pub fn on_spurious(&mut self, bytes: u64) {
        self.pending_mut().spurious += bytes;
        self.spurious += 1;
        self.delivered += bytes;
    }

    /// Declares a packet sent at `sent` lost; `signal` is false for losses that congestion control ignores, such as
    /// probes.
    pub fn on_lost(&mut self, bytes: u64, sent: Time, signal: bool) {
        let d = self.pending_mut();
        if signal {
            d.lost += bytes;
            d.lost_packets += 1;
            d.latest_lost_sent = d.latest_lost_sent.max(Some(sent));
            self.lost += bytes;
        }
        self.inflight = self.inflight.saturating_sub(bytes);
        // These bytes will never be delivered: a limit beyond all deliveries would last for as many bytes as were
        // lost. (A lane that had been cut off did not grow for half a minute because of it.)
        self.app_limited_until = self.app_limited_until.min(self.delivered + self.inflight);
    }

    /// Ends the processing of a feedback: passes the signals to the algorithm if the feedback concerned this flow.
    pub fn finish(&mut self, path: &PathSignals) {
        if !self.pending.touched {
            return;
        }
        if !self.hops.is_empty() {
            self.algorithm.on_telemetry(path.now, &self.hops);
            self.hops.clear();
        }
        let d = core::mem::take(&mut self.pending);
        let mut round_start = false;
        let mut rate = None;
        if let Some(t) = &d.newest {
            if t.delivered >= self.next_round {
                self.next_round = self.delivered;
                self.round += 1;
                round_start = true;
            }
            rate = self.rate_sample(t, path);
            self.latest_rate = rate.map_or(self.latest_rate, |r| r.rate);
            if let Some(r) = rate.filter(|r| round_start && !r.app_limited) {
                self.update_carried_rate(r.rate.bytes_per_sec(), r.tx_inflight, path.min_rtt);
            }
            self.first_sent = t.sent;
            self.first_forgone = t.forgone;
            self.delivered_time = path.acked_at.max(self.delivered_time);
        }
        let signals = Signals {
            now: path.now,
            acked: d.acked,
            acked_packets: d.acked_packets,
            lost: d.lost,
            lost_packets: d.lost_packets,
            spurious: d.spurious,
            latest_lost_sent: d.latest_lost_sent,
            prior_inflight: d.prior_inflight,
            inflight: self.inflight,
            rtt: path.rtt.filter(|_| d.acked > 0),
            srtt: path.srtt,
            min_rtt: path.min_rtt,
            queue_delay: path.queue_delay,
            delivered: self.delivered,
            newest_acked_sent: d.newest.map(|t| t.sent),
            rate,
            dispersion: path.dispersion,
            ce_packets: d.ce_packets,
            ce_acked: d.ce_acked,
            rtt_trend: path.rtt_trend,
            delay_trend: path.delay_trend,
            host_delay: path.host_delay,
            round_start,
            round: self.round,
            app_limited: self.delivered < self.app_limited_until,
        };
        self.algorithm.on_feedback(&signals);
        self.pacer.limit_catch_up(self.algorithm.catch_up());
        if self.trace.is_some() {
            self.trace_event(path.now, "feedback", Some(signals));
        }
    }

    /// draft-cheng-iccrg-delivery-rate-estimation, section 3.3.
    fn rate_sample(&self, t: &Train, path: &PathSignals) -> Option<RateSample> {
        let send = t.sent.since(t.first_sent);
        let ack = path.acked_at.since(t.delivered_time);
        let interval = send.max(ack);
        let delivered = self.delivered - t.delivered;
        // An interval shorter than the minimum round trip would measure batching.
        if interval.is_zero() || (interval < path.min_rtt && self.round > 1) {
            return None;
        }
        Some(RateSample {
            rate: Rate::from_bytes_in(delivered, interval),
            interval,
            delivered,
            prior_delivered: t.delivered,
            tx_inflight: t.tx_inflight,
            lost: self.lost - t.lost.min(self.lost),
            forgone: t.forgone.saturating_sub(t.first_forgone),
            app_limited: t.app_limited,
        })
    }

    fn update_carried_rate(&mut self, rate: u64, inflight: u64, rtt: Span) {
        let (mean, rounds) = self.carried_rate;
        // A single message on an otherwise idle path does not measure it.
        if (inflight as f64) < mean as f64 * rtt.as_secs_f64() / CARRIED_MIN_FILL_DIVISOR {
            return;
        }
        let mean = if rounds == 0 { rate } else { mean - mean / CARRIED_WEIGHT + rate / CARRIED_WEIGHT };
        self.carried_rate = (mean, rounds.saturating_add(1));
    }

    /// The rate that the path carried lately, once it was measured for long enough to be worth remembering.
    pub fn carried(&self) -> Option<Rate> {
        (self.carried_rate.1 >= MIN_CARRIED_ROUNDS).then(|| Rate::from_bytes_per_sec(self.carried_rate.0))
    }

    /// The longest train that the path's queue takes, where the algorithm knows it to be shorter than the usual ones.
    pub fn longest_train(&self) -> Option<u64> {
        self.algorithm.longest_train()
    }

    /// The measured rate that a replacement algorithm may start from. At most the present algorithm's rate; but a
    /// recently installed algorithm has not decided by its own measurements yet.
    pub fn current(&self) -> Option<Rate> {
        let measured = Rate::from_bytes_per_sec(self.carried_rate.0).max(self.latest_rate);
        let (from, until) = self.handover;
        let known = if self.round < until {
            // A rate that grew under several algorithms in quick succession, none of which saw feedback, continues to
            // grow.
            measured.scale(5, 4).min(self.wanted()).max(from)
        } else {
            measured.min(self.wanted())
        };
        (known > Rate::ZERO).then_some(known)
    }

    /// Replaces the algorithm, which is best created with [`Flow::current`]. Data in flight stays and is reported to
    /// the new one; rounds and samples continue.
    pub fn replace(&mut self, algorithm: Box<dyn Algorithm>) {
        self.codepoint = codepoint(algorithm.name());
        // The first of several replacements sets the time, so that an outdated rate is not used for longer.
        if self.round >= self.handover.1 {
            self.handover = (self.current().unwrap_or(Rate::ZERO), self.round + HANDOVER_ROUNDS);
        }
        self.algorithm = algorithm;
        self.pacer.limit_catch_up(self.algorithm.catch_up());
        // The old algorithm's permission for trains may be far more than the new one's.
        if let Some((left, _)) = self.group_token.take() {
            self.pacer.refund(left);
        }
    }

    /// Sets the fallback for an algorithm that has to be stopped.
    pub fn set_fallback(&mut self, spec: &str) {
        self.algorithm.set_fallback(spec);
    }

    /// Whether the algorithm wants the dispersion of trains measured.
    pub fn wants_dispersion(&self) -> bool {
        self.algorithm.wants_dispersion()
    }

    /// Passes an event to the algorithm.
    pub fn on_event(&mut self, now: Time, e: Event) {
        self.algorithm.on_event(now, e);
        self.pacer.limit_catch_up(self.algorithm.catch_up());
        if self.trace.is_some() {
            self.trace_event(now, event_name(&e), None);
        }
    }

    #[cold]
    fn trace_event(&mut self, now: Time, what: &'static str, signals: Option<Signals>) {
        let r = record(now, what, signals, &*self.algorithm, self.decision(), self.inflight);
        if let Some(t) = &mut self.trace {
            t.push(r);
        }
    }

    /// Passes the trace records since the last call to `out`, of which the newest [`MAX_RECORDS`](super::MAX_RECORDS)
    /// are kept, and starts tracing. Returns how many were dropped.
    pub fn take_trace(&mut self, out: &mut dyn FnMut(Record)) -> u64 {
        self.trace.get_or_insert_default().take(out)
    }

    /// Stops tracing.
    pub fn end_trace(&mut self) {
        self.trace = None;
    }

    /// Handles a change of the path.
    pub fn on_path_change(&mut self, now: Time, info: PathInfo) {
        (self.carried_rate, self.latest_rate, self.handover) = ((0, 0), Rate::ZERO, (Rate::ZERO, 0));
        self.on_event(now, Event::PathChanged(info));
    }

    /// Bytes in flight.
    pub const fn inflight(&self) -> u64 {
        self.inflight
    }
    /// Bytes delivered so far.
    pub const fn delivered(&self) -> u64 {
        self.delivered
    }
    /// Packets declared lost that had arrived.
    pub const fn spurious(&self) -> u64 {
        self.spurious
    }
    /// The ECN field of its packets, where the path lets it pass: ECT(1) identifies L4S (RFC 9331).
    pub const fn codepoint(&self) -> Ecn {
        self.codepoint
    }
    /// Name and state of the algorithm.
    pub fn describe(&self) -> (&'static str, &'static str) {
        (self.algorithm.name(), self.algorithm.state())
    }
}

/// The ECN field of an algorithm's packets.
fn codepoint(algorithm: &str) -> Ecn {
    match registry::find(algorithm).map(|d| d.needs.marks) {
        Ok(Marks::L4s) => Ecn::Ect1,
        _ => Ecn::Ect0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(algorithm: &str) -> Flow {
        let info = PathInfo {
            packet_bytes: 1_500,
            handshake_rtt: None,
            ecn: true,
            known_rate: None,
            remembered: None,
        };
        let (def, params) = crate::registry::parse(algorithm).expect("an algorithm");
        let algorithm = crate::registry::create(def.name, &params, &info, base::Rng::from_u64(1));
        Flow::new(algorithm.expect("an algorithm"), None)
    }

    #[test]
    fn trains_of_a_quantum_leave_together_and_unused_credit_returns() {
        let mut flow = flow("fixed:rate=100G");
        let (train, now) = (44 * 1_500, Time::ZERO + Span::from_secs(1));
        // A quantum at 100 Gbit/s is four trains: 20 us.
        let together =
            |flow: &mut Flow, at| (0..9).take_while(|_| flow.poll_token(at, 1_500, train).is_ok()).count();
        assert_eq!(together(&mut flow, now), 4);
        let later = flow.poll_token(now, 1_500, train).expect_err("the next waits for a whole quantum");
        assert!(flow.poll_token(later, 1_500, train).is_ok());
        assert_eq!(
            flow.group_token.as_ref().map(|(left, since)| (left.bytes(), *since)),
            Some((3 * train, later))
        );
        // Unused permission returns to the pacer within a millisecond.
        let late = later + MAX_GROUP_TIME + Span::from_nanos(1);
        assert!(flow.poll_token(late, 1_500, train).is_ok());
        assert_eq!(flow.group_token.as_ref().map(|(_, since)| *since), Some(late));
    }

    #[test]
    fn losses_do_not_prolong_the_app_limited_phase() {
        let mut flow = flow("fixed:rate=1G");
        let now = Time::ZERO + Span::from_secs(1);
        let mut train = flow.begin_train(now, 0);
        flow.on_sent(now, &mut train, 3_000, 2, false);
        flow.mark_app_limited();
        flow.on_lost(1_500, now, true);
        assert!(flow.is_app_limited(), "one is still on its way");
        flow.on_lost(1_500, now, true);
        assert!(!flow.is_app_limited());
    }

    #[test]
    fn replacement_algorithm_inherits_flight_and_measured_rate() {
        let mut flow = flow("fixed:rate=100M");
        assert_eq!(flow.current(), None, "nothing was measured");
        let rtt = Span::from_millis(10);
        let mut now = Time::ZERO + Span::from_secs(1);
        for _ in 0..4 {
            let mut train = flow.begin_train(now, 0);
            flow.on_sent(now, &mut train, 30_000, 20, false);
            now += rtt;
            flow.on_acked(30_000, Some(&train));
            let path = PathSignals {
                now,
                acked_at: now,
                rtt: Some(rtt),
                srtt: rtt,
                min_rtt: rtt,
                queue_delay: Span::ZERO,
                dispersion: None,
                rtt_trend: 0,
                delay_trend: 0,
                host_delay: Span::ZERO,
            };
            flow.finish(&path);
        }
        // 30,000 bytes in each round trip.
        assert_eq!(flow.current(), Some(Rate::from_bytes_per_sec(3_000_000)));
        let mut train = flow.begin_train(now, 0);
        flow.on_sent(now, &mut train, 15_000, 10, false);
        let info = PathInfo {
            packet_bytes: 1_500,
            handshake_rtt: Some(rtt),
            ecn: true,
            known_rate: flow.current(),
            remembered: None,
        };
        let (def, params) = crate::registry::parse("cubic").expect("an algorithm");
        flow.replace(
            crate::registry::create(def.name, &params, &info, base::Rng::from_u64(1)).expect("an algorithm"),
        );
        assert_eq!((flow.inflight(), flow.describe().0), (15_000, "cubic"));
        assert!(flow.decision().cwnd >= 30_000, "{:?}", flow.decision());
        flow.on_acked(15_000, Some(&train));
        assert_eq!(flow.inflight(), 0);
    }

    /// Over loopback and in a rack a train has arrived long before the pacer allows the next one. Such flows once had
    /// no samples at all and kept whatever rate they had fallen to.
    #[test]
    fn rate_is_measured_between_trains_when_pacing_exceeds_the_rtt() {
        let mut flow = flow("fixed:rate=400M");
        let rtt = Span::from_micros(100);
        let mut now = Time::ZERO + Span::from_secs(1);
        let mut samples = Vec::new();
        // Whether more data waits behind a train, and milliseconds until the next.
        for (more, pause) in [(true, 0), (true, 0), (true, 0), (false, 9), (true, 0)] {
            let token = loop {
                match flow.poll_token(now, 1_500, u64::MAX) {
                    Ok(t) => break t,
                    Err(at) => now = at,
                }
            };
            let bytes = token.bytes();
            let mut train = flow.begin_train(now, 0);
            flow.on_sent(now, &mut train, bytes, bytes / 1_500, !more);
            if more && let Ok(t) = flow.poll_token(now, 1_500, u64::MAX) {
                flow.refund(t);
            }
            assert!(bytes > 40_000, "{bytes}");
            now += rtt;
            flow.on_acked(bytes, Some(&train));
            let path = PathSignals {
                now,
                acked_at: now,
                rtt: Some(rtt),
                srtt: rtt,
                min_rtt: rtt,
                queue_delay: Span::ZERO,
                dispersion: None,
                rtt_trend: 0,
                delay_trend: 0,
                host_delay: Span::ZERO,
            };
            flow.latest_rate = Rate::ZERO;
            flow.finish(&path);
            samples.push(flow.latest_rate.bytes_per_sec() / 125_000);
            now += Span::from_millis(pause);
        }
        // A train before which nothing was sent for other reasons than pacing is measured by its round trip.
        assert_eq!(samples, [3_960, 400, 400, 400, 3_960]);
    }

    #[test]
    fn trace_records_signals_and_decisions() {
        let mut flow = flow("fixed:rate=1G");
        let now = Time::ZERO + Span::from_secs(1);
        let mut seen = Vec::new();
        flow.on_event(now, Event::PersistentCongestion);
        assert_eq!(flow.take_trace(&mut |r| seen.push(r)), 0);
        assert!(seen.is_empty(), "nobody had watched yet");
        for i in 0..super::super::MAX_RECORDS as u64 + 3 {
            flow.on_event(now, Event::PacketSize(1_000 + i));
        }
        assert_eq!(flow.take_trace(&mut |r| seen.push(r)), 3);
        assert_eq!(seen.len(), super::super::MAX_RECORDS);
        assert_eq!((seen[0].what, seen[0].algorithm.0), ("packet size", "fixed"));
        assert_eq!(seen.last().map(|r| r.decision), Some(flow.decision()));
        flow.end_trace();
        flow.on_event(now, Event::PersistentCongestion);
        seen.clear();
        assert_eq!((flow.take_trace(&mut |r| seen.push(r)), seen.len()), (0, 0));
    }
}
