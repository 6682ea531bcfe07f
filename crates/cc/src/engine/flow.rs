//! A flow: the mechanism around one algorithm. It knows trains and packets by their bytes and times only, so that any
//! transport can drive it: what a packet is, how loss is found out and what feedback looks like is the transport's.

use super::trace::{Record, Trace, name_of, record};
use crate::pacer::{CATCH_UP, Pacer, Token};
use crate::registry::{self, Marks};
use crate::{Algorithm, Decision, Event, Hop, MAX_HOPS, PathInfo, RateSample, SentTrain, Signals};
use base::{Ecn, Rate, Span, Time};

/// Trains of a quantum leave together within this time, or the permission is taken back.
const GROUP_LASTS: Span = Span::from_millis(1);
/// Round trips over which what was carried is smoothed.
const CARRIED_WEIGHT: u64 = 4;
/// Less than this part of what the path was seen to carry in a round trip, in flight, is no attempt to fill it.
const CARRIED_FILLS: f64 = 8.0;
/// Round trips that the path must have been filled for what it carried to be worth remembering.
const CARRIED_ROUNDS: u32 = 8;

/// What the delivery-rate estimator needs to know of a packet, shared by all packets of its train
/// (draft-cheng-iccrg-delivery-rate-estimation, section 3.1).
#[derive(Clone, Copy, Debug)]
pub struct Train {
    /// The flow it belongs to, by the transport's number.
    pub flow: u8,
    /// Total delivered on the flow when it left.
    pub delivered: u64,
    /// When that total was reached.
    pub delivered_time: Time,
    /// When the sending of what was being sampled began.
    pub first_sent: Time,
    /// What the flow's pacer had forgone by then, and when the train left.
    pub first_forgone: u64,
    /// See above.
    pub forgone: u64,
    /// When the train left.
    pub sent: Time,
    /// Bytes in flight just after it.
    pub tx_inflight: u64,
    /// Total lost on the flow when it left.
    pub lost: u64,
    /// Whether the flow was limited by its application.
    pub app_limited: bool,
    /// What its packets carry in the ECN field.
    pub ecn: Ecn,
    /// Whether hops write telemetry into it.
    pub telemetry: bool,
}

/// Round trips after which an algorithm that took over has shown what it makes of the path.
const WARM_ROUNDS: u64 = 3;

/// Mechanism around one algorithm: bytes in flight, delivery-rate samples, rounds and pacing.
#[derive(Debug)]
pub struct Flow {
    algorithm: Box<dyn Algorithm>,
    codepoint: Ecn,
    pacer: Pacer,
    /// What is left of the permission for trains that leave together, and when it was given.
    group: Option<(Token, Time)>,
    cap: Option<Rate>,
    inflight: u64,
    delivered: u64,
    delivered_time: Time,
    first_sent: Time,
    /// What the pacer had forgone by then.
    first_forgone: u64,
    lost: u64,
    spurious: u64,
    /// While `delivered` is below this, samples are limited by the application.
    app_limited_until: u64,
    last_sent: Option<Time>,
    /// More stood behind the train that left last.
    more: bool,
    /// Until when the pacer has made the flow wait since.
    paced: Option<Time>,
    round: u64,
    next_round: u64,
    /// Bytes per second delivered while the application was not the limit, smoothed over round trips, and of how many.
    carried: (u64, u32),
    /// The rate of the newest sample.
    sampled: Rate,
    /// The rate that an algorithm started from that took over lately, and the round until which that holds.
    warm: (Rate, u64),
    /// What the pacer had forgone when somebody else went first.
    held: u64,
    /// What the feedback being digested has said so far.
    digest: Digest,
    /// What hops wrote, until the feedback that came with it is digested.
    hops: Vec<Hop>,
    /// Somebody watches.
    trace: Option<Box<Trace>>,
}

#[derive(Debug, Default)]
struct Digest {
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

/// Facts of the path that the signals of all its flows repeat.
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
    /// One-way delay above its lowest.
    pub queue_delay: Span,
    /// Rate at which packets arrived that had left much faster.
    pub dispersion: Option<Rate>,
    /// How fast the round trip rises, in millionths.
    pub rtt_trend: i64,
    /// The same of the one-way delay.
    pub delay_trend: i64,
    /// Time that the newest reported packet waited in the receiver's host.
    pub host_delay: Span,
}

impl Flow {
    /// A flow under `algorithm`.
    pub fn new(algorithm: Box<dyn Algorithm>, cap: Option<Rate>) -> Flow {
        Flow {
            codepoint: codepoint(algorithm.name()),
            algorithm,
            pacer: Pacer::new(),
            group: None,
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
            more: false,
            paced: None,
            round: 0,
            next_round: 0,
            carried: (0, 0),
            sampled: Rate::ZERO,
            warm: (Rate::ZERO, 0),
            held: 0,
            digest: Digest::default(),
            hops: Vec::new(),
            trace: None,
        }
    }

    /// What the algorithm decided, under the administrator's cap.
    pub fn decision(&self) -> Decision {
        let mut d = self.algorithm.decision();
        if let Some(cap) = self.cap {
            d.rate = d.rate.min(cap);
        }
        d
    }

    /// What the algorithm would send at, whatever the cap.
    pub fn wanted(&self) -> Rate {
        self.algorithm.decision().rate
    }

    /// The cap that the pacer keeps.
    pub const fn cap(&self) -> Option<Rate> {
        self.cap
    }

    /// The administrator's cap on the rate.
    pub fn set_cap(&mut self, cap: Option<Rate>) {
        self.cap = cap;
    }

    /// Asks for permission to send a train of `want` bytes at most, at least one `packet`; otherwise says when to ask again ([`Time::MAX`]: when
    /// feedback arrives).
    pub fn poll_token(&mut self, now: Time, packet: u64, want: u64) -> Result<Token, Time> {
        let mut d = self.decision();
        if self.cap.is_some_and(|cap| d.rate >= cap) {
            // The algorithm's trains are those of its own rate: one at the start of a capped flow could be all of it.
            d.quantum = d.quantum.min(crate::pacer::quantum(d.rate, packet));
        }
        // A whole packet at least, also while the algorithm has not heard of its new size.
        d.quantum = d.quantum.max(packet);
        // The bound is a safety net; one packet is always allowed, or nothing would ever be reported.
        if self.inflight > 0 && self.inflight + d.quantum.min(want) / 2 > d.bound {
            if let Some((left, _)) = self.group.take() {
                self.pacer.refund(left);
            }
            // Time that passes under the bound is not lateness to be caught up with.
            let _ = self.pacer.poll(now, &d, 0);
            return Err(Time::MAX);
        }
        let mut group = match self.group.take() {
            Some((left, since)) if left.bytes() >= packet && now.since(since) <= GROUP_LASTS => (left, since),
            old => {
                if let Some((left, _)) = old {
                    self.pacer.refund(left);
                }
                // Whoever asks has more to send than one train: only so does the pacer take late timers for lateness.
                let polled = self.pacer.poll(now, &d, u64::MAX);
                self.paced = polled.as_ref().err().copied().or(self.paced);
                (polled?, now)
            }
        };
        let train = group.0.split(want);
        self.group = Some(group).filter(|(left, _)| left.bytes() > 0);
        Ok(train)
    }

    /// How long until [`Flow::poll_token`] would give permission, as far as the pacer says: `None` while the bound does not
    /// let more go.
    pub fn wait(&self, now: Time, packet: u64) -> Option<Span> {
        let mut d = self.decision();
        d.quantum = d.quantum.max(packet);
        if self.inflight > 0 && self.inflight + d.quantum / 2 > d.bound {
            return None;
        }
        let group = self.group.as_ref().is_some_and(|(left, _)| left.bytes() >= packet);
        if group { Some(Span::ZERO) } else { self.pacer.wait(now, &d) }
    }

    /// Whether with `bytes` more in flight the bound lets no further `packet` go before feedback.
    pub fn is_full_with(&self, bytes: u64, packet: u64) -> bool {
        let d = self.decision();
        self.inflight + bytes + d.quantum.max(packet) / 2 > d.bound
    }

    /// Gives back what was not needed.
    pub fn refund(&mut self, t: Token) {
        self.pacer.refund(t);
    }

    /// The state that the next train's books need. `bytes` are not known yet: see [`Flow::on_sent`].
    pub fn begin_train(&mut self, now: Time, flow: u8) -> Train {
        // All has arrived, and not because the pacer waits for longer than a round trip: on a short path it does between any two
        // trains, and the rate is measured from one to the next.
        let paced = self.paced.take().is_some_and(|until| now.since(until) <= CATCH_UP);
        if self.inflight == 0 && !(paced && self.more) {
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

    /// The train has left.
    pub fn on_sent(&mut self, now: Time, train: &mut Train, bytes: u64, packets: u64, app_limited: bool) {
        self.inflight += bytes;
        train.tx_inflight = self.inflight;
        if app_limited {
            self.mark_app_limited();
        }
        self.more = !app_limited;
        self.last_sent = Some(now);
        self.algorithm.on_sent(&SentTrain { now, bytes, packets, inflight: self.inflight, app_limited });
    }

    /// Nothing more to send although rate and bound would allow it.
    pub fn mark_app_limited(&mut self) {
        self.app_limited_until = self.delivered + self.inflight.max(1);
    }

    /// Somebody else on this host goes first: takes the token back. While the flow catches up with what it waits for, that is
    /// no matter; where it falls behind, what it delivers is what it is left, and no measure of the path.
    pub fn hold_back(&mut self, token: Token) {
        self.pacer.refund(token);
        if self.pacer.forgone() > self.held {
            self.held = self.pacer.forgone();
            self.mark_app_limited();
        }
    }

    /// There is nothing to send: if the bound would have allowed more, samples of now are limited by the
    /// application.
    pub fn mark_app_limited_if_free(&mut self) {
        if self.inflight > 0 && self.inflight < self.decision().bound {
            self.mark_app_limited();
        }
    }

    /// Whether what is delivered now is what there was to send, and not what the path carries.
    pub const fn is_app_limited(&self) -> bool {
        self.delivered < self.app_limited_until
    }

    fn touch(&mut self) -> &mut Digest {
        if !self.digest.touched {
            self.digest.touched = true;
            self.digest.prior_inflight = self.inflight;
        }
        &mut self.digest
    }

    /// A packet of so many bytes on the wire, of this train, is reported as received.
    #[inline]
    pub fn on_acked(&mut self, bytes: u64, train: Option<&Train>) {
        let d = self.touch();
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

    /// A packet of so many bytes is reported as marked Congestion Experienced. [`Flow::on_acked`] or [`Flow::on_spurious`]
    /// is told of it as well; `acked`: the former.
    pub fn on_marked(&mut self, bytes: u64, acked: bool) {
        let d = self.touch();
        d.ce_packets += 1;
        d.ce_acked += if acked { bytes } else { 0 };
    }

    /// So many packets of the path were marked, and the peer does not say which: they are taken for packets of this flow, as
    /// far as it had so many acknowledged.
    pub fn on_marks_of_any(&mut self, packets: u64) {
        let d = &mut self.digest;
        if d.acked_packets > 0 {
            d.ce_packets = packets.min(d.acked_packets);
            d.ce_acked =
                (u128::from(d.acked) * u128::from(d.ce_packets) / u128::from(d.acked_packets)) as u64;
        }
    }

    /// What hops wrote into a packet of this flow, first to last, comes back with the feedback that is being digested. Of
    /// several the last one counts; no more than [`MAX_HOPS`] are kept.
    pub fn on_telemetry(&mut self, hops: &[Hop]) {
        self.hops.clear();
        self.hops.extend(hops.iter().take(MAX_HOPS));
    }

    /// A packet that had been declared lost is reported as received.
    pub fn on_spurious(&mut self, bytes: u64) {
        self.touch().spurious += bytes;
        self.spurious += 1;
        self.delivered += bytes;
    }

    /// A packet that left at `sent` is declared lost; `signal` says whether congestion control is to know (probes are not).
    pub fn on_lost(&mut self, bytes: u64, sent: Time, signal: bool) {
        let d = self.touch();
        if signal {
            d.lost += bytes;
            d.lost_packets += 1;
            d.latest_lost_sent = d.latest_lost_sent.max(Some(sent));
            self.lost += bytes;
        }
        self.inflight = self.inflight.saturating_sub(bytes);
        // It will never be delivered here: a mark beyond all that can be would last for as many bytes as were lost. (A lane
        // that had been cut off behind such a mark did not grow for half a minute.)
        self.app_limited_until = self.app_limited_until.min(self.delivered + self.inflight);
    }

    /// The feedback is digested: tells the algorithm, when it concerned this flow.
    pub fn finish(&mut self, path: &PathSignals) {
        if !self.digest.touched {
            return;
        }
        if !self.hops.is_empty() {
            self.algorithm.on_telemetry(path.now, &self.hops);
            self.hops.clear();
        }
        let d = core::mem::take(&mut self.digest);
        let mut round_start = false;
        let mut rate = None;
        if let Some(t) = &d.newest {
            if t.delivered >= self.next_round {
                self.next_round = self.delivered;
                self.round += 1;
                round_start = true;
            }
            rate = self.rate_sample(t, path);
            self.sampled = rate.map_or(self.sampled, |r| r.rate);
            if let Some(r) = rate.filter(|r| round_start && !r.app_limited) {
                self.note_carried(r.rate.bytes_per_sec(), r.tx_inflight, path.min_rtt);
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
        if self.trace.is_some() {
            self.note(path.now, "feedback", Some(signals));
        }
    }

    /// draft-cheng-iccrg-delivery-rate-estimation, section 3.3.
    fn rate_sample(&self, t: &Train, path: &PathSignals) -> Option<RateSample> {
        let send = t.sent.since(t.first_sent);
        let ack = path.acked_at.since(t.delivered_time);
        let interval = send.max(ack);
        let delivered = self.delivered - t.delivered;
        // Shorter than the lowest round trip: the estimate would be dominated by batching.
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

    fn note_carried(&mut self, rate: u64, inflight: u64, rtt: Span) {
        let (mean, rounds) = self.carried;
        // A message alone on a path that is idle otherwise (a transfer's last words) is not the measure of it.
        if (inflight as f64) < mean as f64 * rtt.as_secs_f64() / CARRIED_FILLS {
            return;
        }
        let mean = if rounds == 0 { rate } else { mean - mean / CARRIED_WEIGHT + rate / CARRIED_WEIGHT };
        self.carried = (mean, rounds.saturating_add(1));
    }

    /// What the path carried lately, once that was seen for long enough to be worth remembering.
    pub fn carried(&self) -> Option<Rate> {
        (self.carried.1 >= CARRIED_ROUNDS).then(|| Rate::from_bytes_per_sec(self.carried.0))
    }

    /// What the flow carries now, as far as it was measured: what another algorithm may start from. Never more than what the
    /// present one sends; but an algorithm that has just begun has not had its say yet.
    pub fn current(&self) -> Option<Rate> {
        let measured = Rate::from_bytes_per_sec(self.carried.0).max(self.sampled);
        let (from, until) = self.warm;
        let known = if self.round < until {
            // What grew under several algorithms in quick succession, none of which saw the answer, goes on growing.
            measured.scale(5, 4).min(self.wanted()).max(from)
        } else {
            measured.min(self.wanted())
        };
        (known > Rate::ZERO).then_some(known)
    }

    /// From now on `algorithm` decides. What is in flight stays so, and is reported to the new one; rounds and samples go on.
    /// It is best made knowing [`Flow::current`].
    pub fn replace(&mut self, algorithm: Box<dyn Algorithm>) {
        self.codepoint = codepoint(algorithm.name());
        // Of several in a row the first sets the time: what a path carries no more is not believed for longer.
        if self.round >= self.warm.1 {
            self.warm = (self.current().unwrap_or(Rate::ZERO), self.round + WARM_ROUNDS);
        }
        self.algorithm = algorithm;
        // What the old one permitted to leave together may be far more than the new one would.
        if let Some((left, _)) = self.group.take() {
            self.pacer.refund(left);
        }
    }

    /// What takes the algorithm's place should it have to be stopped.
    pub fn set_substitute(&mut self, spec: &str) {
        self.algorithm.set_substitute(spec);
    }

    /// Whether the algorithm wants the dispersion of trains measured.
    pub fn wants_dispersion(&self) -> bool {
        self.algorithm.wants_dispersion()
    }

    /// Something rare has happened.
    pub fn on_event(&mut self, now: Time, e: Event) {
        self.algorithm.on_event(now, e);
        if self.trace.is_some() {
            self.note(now, name_of(&e), None);
        }
    }

    #[cold]
    fn note(&mut self, now: Time, what: &'static str, signals: Option<Signals>) {
        let r = record(now, what, signals, &*self.algorithm, self.decision(), self.inflight);
        if let Some(t) = &mut self.trace {
            t.push(r);
        }
    }

    /// Gives out what the algorithm was told and decided since the last call, of which the newest are kept
    /// ([`MAX_RECORDS`](super::MAX_RECORDS)), and keeps it from now on. How many were not kept is returned.
    pub fn take_trace(&mut self, out: &mut dyn FnMut(Record)) -> u64 {
        self.trace.get_or_insert_default().take(out)
    }

    /// Keeps no more of it.
    pub fn end_trace(&mut self) {
        self.trace = None;
    }

    /// The path is another one now.
    pub fn on_path_change(&mut self, now: Time, info: PathInfo) {
        (self.carried, self.sampled, self.warm) = ((0, 0), Rate::ZERO, (Rate::ZERO, 0));
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
    /// What its packets carry in the ECN field, where the path lets it pass: ECT(1) says that they are of L4S (RFC 9331).
    pub const fn codepoint(&self) -> Ecn {
        self.codepoint
    }
    /// Name and state of the algorithm.
    pub fn describe(&self) -> (&'static str, &'static str) {
        (self.algorithm.name(), self.algorithm.state())
    }
}

/// What an algorithm's packets carry in the ECN field.
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
    fn trains_of_a_quantum_leave_together_and_what_is_left_is_soon_taken_back() {
        let mut flow = flow("fixed:rate=100G");
        let (train, now) = (44 * 1_500, Time::ZERO + Span::from_secs(1));
        // A quantum at 100 Gbit/s is four trains: 20 us.
        let together =
            |flow: &mut Flow, at| (0..9).take_while(|_| flow.poll_token(at, 1_500, train).is_ok()).count();
        assert_eq!(together(&mut flow, now), 4);
        let later = flow.poll_token(now, 1_500, train).expect_err("the next waits for a whole quantum");
        assert!(flow.poll_token(later, 1_500, train).is_ok());
        assert_eq!(flow.group.as_ref().map(|(left, since)| (left.bytes(), *since)), Some((3 * train, later)));
        // What was not used within a millisecond goes back to the pacer.
        let late = later + GROUP_LASTS + Span::from_nanos(1);
        assert!(flow.poll_token(late, 1_500, train).is_ok());
        assert_eq!(flow.group.as_ref().map(|(_, since)| *since), Some(late));
    }

    #[test]
    fn what_is_lost_does_not_lengthen_the_time_for_which_the_application_is_the_limit() {
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
    fn another_algorithm_takes_over_what_is_in_flight_and_starts_from_what_was_measured() {
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
        assert!(flow.decision().bound >= 30_000, "{:?}", flow.decision());
        flow.on_acked(15_000, Some(&train));
        assert_eq!(flow.inflight(), 0);
    }

    /// Over loopback and in a rack a train has arrived long before the pacer lets the next one go. Such flows once had no
    /// samples at all, and kept whatever rate they had fallen to.
    #[test]
    fn where_the_pacer_waits_for_longer_than_a_round_trip_the_rate_is_measured_from_train_to_train() {
        let mut flow = flow("fixed:rate=400M");
        let rtt = Span::from_micros(100);
        let mut now = Time::ZERO + Span::from_secs(1);
        let mut samples = Vec::new();
        // Whether more stands behind a train, and milliseconds until it does.
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
            flow.sampled = Rate::ZERO;
            flow.finish(&path);
            samples.push(flow.sampled.bytes_per_sec() / 125_000);
            now += Span::from_millis(pause);
        }
        // A train that nothing was sent before for other reasons than the pacer's is measured by its round trip.
        assert_eq!(samples, [3_960, 400, 400, 400, 3_960]);
    }

    #[test]
    fn what_an_algorithm_is_told_is_kept_for_whoever_watches() {
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
