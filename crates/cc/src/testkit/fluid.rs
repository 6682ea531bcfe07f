//! A bottleneck in virtual time: one drop-tail queue, trains instead of packets, random loss behind the queue, and
//! feedback at intervals as in the transport. Fast enough for 100 Gbit/s over 70 ms.
//!
//! The queue may mark packets above a threshold and write in-band telemetry; the receiver's host may be slow. There
//! are two kinds of hosts: programs, with late timers and infrequent feedback, and the network cards that data-centre
//! papers assume ([`Link::fabric`]).

use crate::{Algorithm, Event, Hop, Pacer, RateSample, SentTrain, Signals};
use base::{Rate, Rng, Span, Time};
use std::collections::VecDeque;

/// Shortest interval between feedbacks.
const MIN_FEEDBACK_GAP: Span = Span::from_micros(250);
/// Feedbacks per round trip.
const FEEDBACKS_PER_RTT: u64 = 8;
/// Range of the lateness of programs' timers (measured: 50 to 110 us).
const LATENESS: (Span, Span) = (Span::from_micros(50), Span::from_micros(110));
/// Enqueued trains that are remembered for telemetry.
const MAX_ENTRIES: usize = 65_536;
/// Shortest probe time-out.
const MIN_PTO: Span = Span::from_millis(10);

/// The bottleneck shared by all flows.
#[derive(Clone, Debug)]
pub struct Link {
    /// Its rate, in bytes on the wire.
    pub rate: Rate,
    /// Round-trip time without any queue.
    pub rtt: Span,
    /// Bytes that its queue holds.
    pub buffer: u64,
    /// Probability that a packet is lost behind the queue.
    pub loss: f64,
    /// Bytes of a packet.
    pub packet: u64,
    /// Feedback is late by up to this, at random.
    pub jitter: Span,
    /// Changes of the rate, in order of time; rate zero is a black-out in which all is lost.
    pub changes: Vec<(Time, Rate)>,
    /// Packets that find more bytes than this in the queue are marked Congestion Experienced.
    pub mark: Option<u64>,
    /// Random marking between `mark` and this many bytes, with a probability that grows to this value, and of all
    /// packets above (random early detection, as DCQCN needs it).
    pub mark_slope: Option<(f64, u64)>,
    /// Delay in the receiver's host from each of these times on, in order.
    pub host: Vec<(Time, Span)>,
    /// Shortest interval between feedbacks.
    pub gap: Span,
    /// Range of the lateness of senders' timers.
    pub lateness: (Span, Span),
    /// Most bytes that enter the queue back to back, which is what a card sends at once.
    pub burst: u64,
}

impl Link {
    /// A link whose buffer holds `buffer_bdps` thousandths of its bandwidth-delay product.
    pub fn new(rate: Rate, rtt: Span, buffer_bdps: u64, loss: f64) -> Link {
        let buffer = rate.bytes_in(rtt).saturating_mul(buffer_bdps) / 1_000;
        Link {
            rate,
            rtt,
            buffer,
            loss,
            packet: 1500,
            jitter: Span::ZERO,
            changes: Vec::new(),
            mark: None,
            mark_slope: None,
            host: Vec::new(),
            gap: MIN_FEEDBACK_GAP,
            lateness: LATENESS,
            burst: u64::MAX,
        }
    }

    /// A link between network cards, as in papers on data centres: packets leave in pairs, timers are exact, feedback
    /// comes eight times per round trip without a shortest interval, and the queue marks above `mark` bytes.
    pub fn fabric(rate: Rate, rtt: Span, buffer: u64, mark: Option<u64>) -> Link {
        let exact = (Span::ZERO, Span::ZERO);
        let link = Link::new(rate, rtt, 0, 0.0);
        Link { buffer, mark, gap: Span::from_micros(1), lateness: exact, burst: 2 * link.packet, ..link }
    }
}

/// The data of a flow.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// Always more.
    Endless,
    /// A number of bytes.
    Bytes(u64),
    /// Data generated at a rate.
    Stream(Rate),
}

/// The state at one feedback.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// When.
    pub time: Time,
    /// The decided rate.
    pub rate: Rate,
    /// The decided congestion window.
    pub cwnd: u64,
    /// Bytes in flight.
    pub inflight: u64,
    /// Bytes delivered so far.
    pub delivered: u64,
    /// Bytes in the queue.
    pub queue: u64,
    /// Bytes lost so far.
    pub lost: u64,
    /// The algorithm's state.
    pub state: &'static str,
}

#[derive(Clone, Copy, Debug)]
struct Train {
    sent: Time,
    arrival: Time,
    bytes: u64,
    packets: u64,
    arrived_packets: u64,
    marked: u64,
    /// When its last byte left the queue, the queue's total output by then, and the delay in the host.
    left_queue: Time,
    queue_output: u64,
    host_delay: Span,
    prior_delivered: u64,
    prior_time: Time,
    first_sent: Time,
    prior_lost: u64,
    tx_inflight: u64,
    app_limited: bool,
}

/// One sender and its receiver.
#[derive(Debug)]
pub struct Flow {
    /// The algorithm under test.
    pub algorithm: Box<dyn Algorithm>,
    /// One entry for each feedback.
    pub trace: Vec<Point>,
    /// Bytes delivered.
    pub delivered: u64,
    /// Bytes lost.
    pub lost: u64,
    /// Packets that were marked.
    pub marked: u64,
    /// When a source of limited size was completely delivered.
    pub finished: Option<Time>,
    /// Additional round-trip time beyond the link's.
    pub extra_rtt: Span,
    source: Source,
    start: Time,
    pacer: Pacer,
    trains: VecDeque<Train>,
    sent: u64,
    inflight: u64,
    next_send: Time,
    next_feedback: Time,
    last_heard: Time,
    last_sent: Time,
    timeouts: u32,
    delivered_time: Time,
    first_sent: Time,
    app_limited_until: Option<u64>,
    srtt: Span,
    min_rtt: Span,
    next_round: u64,
    round: u64,
    idle: bool,
}

impl Flow {
    /// A flow that starts at `start`.
    pub fn new(algorithm: Box<dyn Algorithm>, source: Source, start: Time) -> Flow {
        Flow {
            algorithm,
            trace: Vec::new(),
            delivered: 0,
            lost: 0,
            marked: 0,
            finished: None,
            extra_rtt: Span::ZERO,
            source,
            start,
            pacer: Pacer::new(),
            trains: VecDeque::new(),
            sent: 0,
            inflight: 0,
            next_send: start,
            next_feedback: Time::MAX,
            last_heard: start,
            last_sent: start,
            timeouts: 0,
            delivered_time: start,
            first_sent: start,
            app_limited_until: None,
            srtt: Span::ZERO,
            min_rtt: Span::MAX,
            next_round: 0,
            round: 0,
            idle: false,
        }
    }

    /// Bytes delivered between two times, as known to the sender.
    pub fn delivered_between(&self, from: Time, to: Time) -> u64 {
        let at = |t: Time| self.trace.iter().rev().find(|p| p.time <= t).map_or(0, |p| p.delivered);
        at(to) - at(from)
    }

    fn bytes_to_send(&self, now: Time) -> u64 {
        match self.source {
            Source::Endless => u64::MAX,
            Source::Bytes(n) => n.saturating_sub(self.sent - self.lost),
            Source::Stream(r) => r.bytes_in(now.since(self.start)).saturating_sub(self.sent - self.lost),
        }
    }

    /// Removes the trains up to `newest`, adds them to `s`, and returns the newest.
    fn take_trains(&mut self, newest: usize, packet: u64, s: &mut Signals) -> Train {
        let last = self.trains[newest];
        for t in self.trains.drain(..=newest) {
            let ok = if t.arrived_packets == t.packets { t.bytes } else { t.arrived_packets * packet };
            s.acked += ok;
            s.acked_packets += t.arrived_packets;
            s.ce_packets += t.marked;
            s.ce_acked += if t.marked == t.arrived_packets { ok } else { t.marked * packet };
            s.lost += t.bytes - ok;
            s.lost_packets += t.packets - t.arrived_packets;
            if t.arrived_packets < t.packets {
                s.latest_lost_sent = Some(t.sent);
            }
            self.inflight -= t.bytes;
        }
        self.delivered += s.acked;
        self.lost += s.lost;
        self.marked += s.ce_packets;
        last
    }

    fn pto(&self) -> Span {
        (self.srtt * 3).max(MIN_PTO) * (1 << self.timeouts.min(6))
    }

    fn next_timeout(&self) -> Time {
        if self.inflight == 0 { Time::MAX } else { self.last_heard.max(self.last_sent) + self.pto() }
    }
}

/// The simulation: a link and its flows.
#[derive(Debug)]
pub struct World {
    /// The flows.
    pub flows: Vec<Flow>,
    /// The longest queue so far, in bytes.
    pub max_queue: u64,
    link: Link,
    rng: Rng,
    now: Time,
    backlog: u64,
    backlog_time: Time,
    next_change: usize,
    packets_to_loss: u64,
    /// Total bytes that entered the queue, and the totals at earlier times.
    entered: u64,
    entries: VecDeque<(Time, u64)>,
}

impl World {
    /// A simulation at time zero.
    pub fn new(link: Link, flows: Vec<Flow>, mut rng: Rng) -> World {
        let until_loss = packets_to_next_loss(link.loss, &mut rng);
        World {
            flows,
            max_queue: 0,
            link,
            rng,
            now: Time::ZERO,
            backlog: 0,
            backlog_time: Time::ZERO,
            next_change: 0,
            packets_to_loss: until_loss,
            entered: 0,
            entries: VecDeque::new(),
        }
    }

    /// Runs until `end`, or until all limited sources are delivered.
    pub fn run(&mut self, end: Time) {
        while let Some((time, flow, kind)) = self.next_event() {
            if time >= end || self.flows.iter().all(|f| f.finished.is_some()) {
                break;
            }
            self.now = time;
            match kind {
                EventKind::Send => self.send(flow),
                EventKind::Feedback => self.feedback(flow),
                EventKind::Timeout => self.timeout(flow),
            }
        }
    }

    fn next_event(&self) -> Option<(Time, usize, EventKind)> {
        let events = self.flows.iter().enumerate().flat_map(|(i, f)| {
            [
                (f.next_feedback, i, EventKind::Feedback),
                (f.next_timeout(), i, EventKind::Timeout),
                (f.next_send, i, EventKind::Send),
            ]
        });
        events.min_by_key(|e| e.0).filter(|e| e.0 < Time::MAX)
    }

    fn gap(&self) -> Span {
        (self.link.rtt / FEEDBACKS_PER_RTT).max(self.link.gap)
    }

    fn drain(&mut self) {
        while let Some(&(t, rate)) = self.link.changes.get(self.next_change)
            && t <= self.now
        {
            self.backlog = self.backlog.saturating_sub(self.link.rate.bytes_in(t.since(self.backlog_time)));
            self.backlog_time = t;
            self.link.rate = rate;
            self.next_change += 1;
        }
        let gone = self.link.rate.bytes_in(self.now.since(self.backlog_time));
        if gone > 0 || self.backlog == 0 {
            self.backlog = self.backlog.saturating_sub(gone);
            self.backlog_time = self.now;
        }
    }

    fn send(&mut self, i: usize) {
        let now = self.now;
        let f = &mut self.flows[i];
        let mut d = f.algorithm.decision();
        d.quantum = d.quantum.min(self.link.burst);
        let want = f.bytes_to_send(now);
        f.next_send = Time::MAX;
        if want == 0 {
            f.app_limited_until = Some(f.delivered + f.inflight);
            f.idle = f.inflight == 0;
            if let Source::Stream(r) = f.source {
                f.next_send = now + r.time_for(2 * self.link.packet);
            }
            return;
        }
        if f.inflight >= d.cwnd {
            return;
        }
        if f.idle {
            f.idle = false;
            f.algorithm.on_event(now, Event::RestartFromIdle { idle_since: f.last_sent });
        }
        match f.pacer.poll(now, &d, want) {
            Err(when) => {
                let (least, most) = self.link.lateness;
                f.next_send = when + Span::from_nanos(self.rng.range(least.as_nanos(), most.as_nanos()));
            }
            Ok(mut token) => {
                let bytes = token.bytes();
                token.spend(bytes).expect("a token permits what it says");
                f.next_send = now;
                self.transmit(i, bytes, bytes == want);
            }
        }
    }

    fn transmit(&mut self, i: usize, bytes: u64, app_limited: bool) {
        self.drain();
        let packets = bytes.div_ceil(self.link.packet);
        let buffer = self.link.buffer.max(2 * self.link.packet);
        let dark = self.link.rate == Rate::ZERO;
        // The packet being sent takes no room in the buffer, so one more fits when it is just full.
        let room = match buffer.saturating_sub(self.backlog) {
            0 if self.backlog > buffer => 0,
            room => room.max(self.link.packet),
        };
        let queued = if dark { 0 } else { bytes.min(room) };
        let entered = if queued == bytes { packets } else { queued / self.link.packet };
        let ok = entered - self.random_losses(entered);
        let marked = self.count_marked(entered).min(ok);
        self.backlog += queued;
        self.max_queue = self.max_queue.max(self.backlog);
        let wait = if dark { Span::ZERO } else { self.link.rate.time_for(self.backlog) };
        let now = self.now;
        self.record_entry(queued);
        let host = self.link.host.iter().rev().find(|(t, _)| *t <= now).map_or(Span::ZERO, |(_, h)| *h);
        let (gap, through) = (self.gap(), self.entered);
        let f = &mut self.flows[i];
        if f.inflight == 0 {
            f.first_sent = now;
            f.delivered_time = now;
        }
        f.inflight += bytes;
        f.sent += bytes;
        f.last_sent = now;
        if app_limited {
            f.app_limited_until = Some(f.delivered + f.inflight);
        }
        f.trains.push_back(Train {
            sent: now,
            arrival: now + wait + self.link.rtt / 2 + host,
            bytes,
            packets,
            arrived_packets: ok,
            marked,
            left_queue: now + wait,
            queue_output: through,
            host_delay: host,
            prior_delivered: f.delivered,
            prior_time: f.delivered_time,
            first_sent: f.first_sent,
            prior_lost: f.lost,
            tx_inflight: f.inflight,
            app_limited: f.app_limited_until.is_some(),
        });
        if f.next_feedback == Time::MAX {
            f.next_feedback = now + self.link.rtt + f.extra_rtt + gap;
        }
        f.algorithm.on_sent(&SentTrain { now, bytes, packets, inflight: f.inflight, app_limited });
    }

    /// Of these packets that enter the queue in a row, the number marked.
    fn count_marked(&mut self, packets: u64) -> u64 {
        let Some(mark) = self.link.mark else { return 0 };
        let below = mark.saturating_sub(self.backlog).div_ceil(self.link.packet);
        let Some((most, full)) = self.link.mark_slope else { return packets.saturating_sub(below) };
        let chance = |met: u64| match met {
            met if met >= full => 1.0,
            met => most * (met - mark) as f64 / (full - mark) as f64,
        };
        let meets = (below..packets).map(|i| self.backlog + i * self.link.packet);
        meets.filter(|met| self.rng.chance(chance(*met))).count() as u64
    }

    fn record_entry(&mut self, queued: u64) {
        self.entered += queued;
        self.entries.push_back((self.now, self.entered));
        if self.entries.len() > MAX_ENTRIES {
            self.entries.pop_front();
        }
    }

    /// The telemetry that the switch writes into the last packet of a train.
    fn hop(&self, t: &Train) -> Hop {
        let before = self.entries.partition_point(|(time, _)| *time <= t.left_queue);
        let entered = before.checked_sub(1).map_or(t.queue_output, |i| self.entries[i].1);
        let queue = entered.saturating_sub(t.queue_output);
        Hop { id: 1, at: t.left_queue, queue, sent: t.queue_output, rate: self.link.rate }
    }

    fn random_losses(&mut self, mut packets: u64) -> u64 {
        let mut lost = 0;
        while self.packets_to_loss < packets {
            packets -= self.packets_to_loss + 1;
            lost += 1;
            self.packets_to_loss = packets_to_next_loss(self.link.loss, &mut self.rng);
        }
        self.packets_to_loss -= packets;
        lost
    }

    /// Feedback arrives for everything that reached the receiver half a round trip ago.
    fn feedback(&mut self, i: usize) {
        self.drain();
        let late = Span::from_nanos(self.rng.below(self.link.jitter.as_nanos() + 1));
        let (now, gap) = (self.now, self.gap());
        let back = self.link.rtt / 2 + late + self.flows[i].extra_rtt;
        let backlog = self.backlog;
        let f = &mut self.flows[i];
        f.next_feedback = if f.trains.is_empty() { Time::MAX } else { now + gap };
        let reported = f.trains.iter().take_while(|t| t.arrival + back <= now).count();
        let Some(newest) = f.trains.range(..reported).rposition(|t| t.arrived_packets > 0) else { return };
        let mut s = Signals { now, prior_inflight: f.inflight, ..Signals::default() };
        let t = f.take_trains(newest, self.link.packet, &mut s);
        let rtt = t.arrival.since(t.sent) + back;
        f.min_rtt = f.min_rtt.min(rtt);
        f.srtt = if f.srtt.is_zero() { rtt } else { (f.srtt * 7 + rtt) / 8 };
        let interval = now.since(t.prior_time).max(t.sent.since(t.first_sent));
        f.first_sent = t.sent;
        f.delivered_time = now;
        if f.app_limited_until.is_some_and(|d| f.delivered + f.lost > d) {
            f.app_limited_until = None;
        }
        s.round_start = t.prior_delivered >= f.next_round;
        if s.round_start {
            f.round += 1;
            f.next_round = f.delivered;
        }
        let delivered = f.delivered - t.prior_delivered;
        s.rate = Some(RateSample {
            rate: Rate::from_bytes_in(delivered, interval),
            interval,
            delivered,
            prior_delivered: t.prior_delivered,
            tx_inflight: t.tx_inflight,
            lost: f.lost - t.prior_lost,
            forgone: 0,
            app_limited: t.app_limited,
        });
        s.inflight = f.inflight;
        s.rtt = Some(rtt);
        (s.srtt, s.min_rtt) = (f.srtt, f.min_rtt);
        s.queue_delay = rtt - t.host_delay - f.min_rtt;
        s.host_delay = t.host_delay;
        s.delivered = f.delivered;
        s.newest_acked_sent = Some(t.sent);
        s.round = f.round;
        s.app_limited = f.app_limited_until.is_some();
        f.last_heard = now;
        f.timeouts = 0;
        let hop = self.hop(&t);
        let f = &mut self.flows[i];
        f.algorithm.on_telemetry(now, &[hop]);
        f.algorithm.on_feedback(&s);
        f.pacer.limit_catch_up(f.algorithm.catch_up());
        self.record(i, backlog);
    }

    fn record(&mut self, i: usize, queue: u64) {
        let now = self.now;
        let f = &mut self.flows[i];
        let d = f.algorithm.decision();
        f.trace.push(Point {
            time: now,
            rate: d.rate,
            cwnd: d.cwnd,
            inflight: f.inflight,
            delivered: f.delivered,
            queue,
            lost: f.lost,
            state: f.algorithm.state(),
        });
        if let Source::Bytes(n) = f.source
            && f.delivered >= n
        {
            f.finished = Some(now);
            f.next_send = Time::MAX;
        } else {
            f.next_send = f.next_send.min(now);
        }
    }

    /// A probe time-out: data in flight counts as lost, and two packets probe the path.
    fn timeout(&mut self, i: usize) {
        let (now, rtt) = (self.now, self.link.rtt);
        let f = &mut self.flows[i];
        f.timeouts += 1;
        let count = f.timeouts;
        f.algorithm.on_event(now, Event::ProbeTimeout { count });
        if count == 3 {
            f.algorithm.on_event(now, Event::PersistentCongestion);
        }
        // Trains that were dropped completely, or that nothing later acknowledges, are given up.
        while let Some(t) = f.trains.front()
            && (t.arrived_packets == 0 || t.arrival + rtt < now)
        {
            f.inflight -= t.bytes;
            f.lost += t.bytes;
            f.trains.pop_front();
        }
        let probe = 2 * self.link.packet;
        self.transmit(i, probe, false);
        let d = self.flows[i].algorithm.decision();
        assert!(d.rate > Rate::ZERO && d.cwnd >= probe, "a time-out must leave room for a probe: {d:?}");
    }
}

#[derive(Clone, Copy, Debug)]
enum EventKind {
    Feedback,
    Timeout,
    Send,
}

/// Packets until the next loss, geometrically distributed.
fn packets_to_next_loss(loss: f64, rng: &mut Rng) -> u64 {
    if loss <= 0.0 { u64::MAX } else { ((1.0 - rng.unit()).ln() / (1.0 - loss).ln()) as u64 }
}
