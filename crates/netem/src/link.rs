//! One direction of an emulated link.

use crate::chance::{Chance, LossProcess};
use crate::config::{Change, Jitter, LinkConfig};
use crate::flight::InFlight;
use crate::packet::{Delivery, DropReason, Packet, Payload, Verdict};
use crate::police::Policer;
use crate::serializer::Serializer;
use base::telemetry::Hop;
use base::{Ecn, Rng, Span, Time};
use std::collections::VecDeque;

/// Most packets in a link, queued and on the wire: 400 Gbit/s x 300 ms and as much again in the queue, in packets
/// of 1500 bytes.
pub const MAX_PACKETS: usize = 20_000_000;

/// Normally distributed jitter is cut off at this many standard deviations.
const JITTER_CUTOFF_DEVIATIONS: u64 = 4;

/// One direction of a link that carries payloads `P`.
///
/// Drive it with [`send`](Link::send) and [`poll`](Link::poll); times should not go backwards, and a time earlier
/// than one seen before counts as that one.
#[derive(Clone, Debug)]
pub struct Link<P> {
    config: LinkConfig,
    rng: Rng,
    /// The time up to which the link has been simulated.
    now: Time,
    /// Scheduled changes, by time.
    changes: VecDeque<(Time, Change)>,
    black_out_until: Time,
    loss: LossProcess,
    corrupt: Chance,
    duplicate: Chance,
    reorder: Chance,
    policer: Policer,
    serializer: Serializer,
    /// The first packet is being sent; the others wait.
    queue: VecDeque<Packet<P>>,
    /// Bytes in the queue, without the packet being sent.
    waiting: u64,
    flight: InFlight<Delivery<P>>,
    /// The latest arrival of a packet that must not be overtaken.
    in_order_until: Time,
    /// The link's identifier in telemetry, and the bytes that have left the queue.
    hop: (u16, u64),
    stats: Stats,
}

/// Counters of a link since it was created, in packets unless they say bytes.
///
/// `sent + duplicated == delivered + dropped() + in_link` at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stats {
    /// Offered to [`Link::send`].
    pub sent: u64,
    /// Bytes offered.
    pub sent_bytes: u64,
    /// Returned by [`Link::poll`], including duplicates.
    pub delivered: u64,
    /// Bytes delivered.
    pub delivered_bytes: u64,
    /// Dropped because larger than the MTU.
    pub dropped_mtu: u64,
    /// Dropped by a black-out, on entering the link or on leaving its queue.
    pub dropped_black_out: u64,
    /// Dropped by random loss.
    pub dropped_loss: u64,
    /// Dropped because they were ECN-capable.
    pub dropped_ect: u64,
    /// Dropped because the queue was full, or by a policer.
    pub dropped_queue: u64,
    /// Dropped because the model was full, see [`MAX_PACKETS`].
    pub dropped_link_full: u64,
    /// Marked with [`Ecn::Ce`] by the queue.
    pub marked: u64,
    /// Copies added by duplication.
    pub duplicated: u64,
    /// Damaged on the wire.
    pub corrupted: u64,
    /// Deliberately delayed.
    pub reordered: u64,
    /// In the queue or on the wire now.
    pub in_link: u64,
    /// Bytes in the queue now, without the packet being sent.
    pub queue_bytes: u64,
    /// The largest queue so far.
    pub max_queue_bytes: u64,
}

impl Stats {
    /// Packets dropped for any reason.
    pub const fn dropped(&self) -> u64 {
        self.dropped_mtu
            + self.dropped_black_out
            + self.dropped_loss
            + self.dropped_ect
            + self.dropped_queue
            + self.dropped_link_full
    }
}

impl<P: Payload> Link<P> {
    /// An empty link. The same generator and the same calls give the same deliveries.
    pub fn new(config: LinkConfig, mut rng: Rng) -> Link<P> {
        Link {
            now: Time::ZERO,
            changes: sorted_schedule(&config),
            black_out_until: Time::ZERO,
            loss: LossProcess::new(config.loss, &mut rng),
            corrupt: Chance::new(config.corrupt, &mut rng),
            duplicate: Chance::new(config.duplicate, &mut rng),
            reorder: Chance::new(config.reorder.probability, &mut rng),
            policer: Policer::new(config.police),
            serializer: Serializer::new(config.rate),
            queue: VecDeque::new(),
            waiting: 0,
            flight: InFlight::new(),
            in_order_until: Time::ZERO,
            hop: (0, 0),
            stats: Stats::default(),
            config,
            rng,
        }
    }

    /// Sets the link's identifier in telemetry, 0 by default. It should be unique along a path.
    pub fn set_hop_id(&mut self, id: u16) {
        self.hop.0 = id;
    }

    /// Offers a packet to the link at `now`.
    pub fn send(&mut self, now: Time, packet: Packet<P>) -> Verdict {
        self.advance(now);
        self.stats.sent += 1;
        self.stats.sent_bytes = self.stats.sent_bytes.saturating_add(packet.bytes);
        match self.admit(packet) {
            Ok(()) => Verdict::Queued,
            Err(reason) => {
                self.count_drop(reason);
                Verdict::Dropped(reason)
            }
        }
    }

    /// The earliest time at which a packet can arrive, when [`poll`](Link::poll) should be called. Exact where nothing
    /// is random; with jitter, reordering or a schedule, `poll` may return nothing yet, after which this is a later
    /// time. `None` until the next `send` or `set_config`.
    pub fn next_delivery(&self) -> Option<Time> {
        let queued = self.departure().map(|at| {
            let leaves = at + self.min_delay();
            // A scheduled change may speed up queued packets, so the link has to be polled then.
            self.changes.front().map_or(leaves, |(change, _)| leaves.min((*change).max(self.now)))
        });
        let on_the_wire = self.flight.next();
        on_the_wire.into_iter().chain(queued).min().filter(|&t| t != Time::MAX)
    }

    /// The next packet that has arrived by `now`, in order of arrival. Call it until it returns `None`.
    pub fn poll(&mut self, now: Time) -> Option<Delivery<P>> {
        self.advance(now);
        let (time, mut delivery) = self.flight.pop(self.now)?;
        delivery.time = time;
        self.stats.delivered += 1;
        self.stats.delivered_bytes = self.stats.delivered_bytes.saturating_add(delivery.bytes);
        Some(delivery)
    }

    /// Replaces the configuration from `now` on. Packets on the wire keep their time of arrival; those in the
    /// queue stay, even beyond a lower limit, and are sent at the new rate. The rest of the old schedule is dropped;
    /// a black-out in progress continues to its end.
    pub fn set_config(&mut self, now: Time, config: LinkConfig) {
        self.advance(now);
        self.serializer.set_rate(self.now, config.rate);
        self.policer.set(config.police, self.now);
        self.loss.set(config.loss, &mut self.rng);
        self.corrupt.set(config.corrupt, &mut self.rng);
        self.duplicate.set(config.duplicate, &mut self.rng);
        self.reorder.set(config.reorder.probability, &mut self.rng);
        self.changes = sorted_schedule(&config);
        self.config = config;
    }

    /// The present configuration, including the scheduled changes that have happened.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// The counters as of the last call that passed in a time.
    pub fn stats(&self) -> Stats {
        Stats { in_link: self.in_link() as u64, queue_bytes: self.waiting, ..self.stats }
    }

    fn in_link(&self) -> usize {
        self.queue.len() + self.flight.len()
    }

    fn count_drop(&mut self, reason: DropReason) {
        let counter = match reason {
            DropReason::Mtu => &mut self.stats.dropped_mtu,
            DropReason::BlackOut => &mut self.stats.dropped_black_out,
            DropReason::Loss => &mut self.stats.dropped_loss,
            DropReason::Ect => &mut self.stats.dropped_ect,
            DropReason::QueueFull => &mut self.stats.dropped_queue,
            DropReason::LinkFull => &mut self.stats.dropped_link_full,
        };
        *counter += 1;
    }

    /// Passes a packet through the entrance and into the queue.
    fn admit(&mut self, mut packet: Packet<P>) -> Result<(), DropReason> {
        if self.config.mtu.is_some_and(|mtu| packet.bytes > mtu) {
            return Err(DropReason::Mtu);
        }
        if self.now < self.black_out_until {
            return Err(DropReason::BlackOut);
        }
        if self.loss.loses(&mut self.rng) {
            return Err(DropReason::Loss);
        }
        packet.ecn = self.config.ect.apply(packet.ecn).ok_or(DropReason::Ect)?;
        if !self.policer.admits(self.now, packet.bytes) {
            return Err(DropReason::QueueFull);
        }
        if self.in_link() >= MAX_PACKETS {
            return Err(DropReason::LinkFull);
        }
        if self.queue.is_empty() {
            if self.config.rate.is_none() {
                self.depart(self.now, packet);
                return Ok(());
            }
            self.serializer.begin(self.now, packet.bytes);
        } else {
            let waiting = self.waiting.checked_add(packet.bytes).filter(|&w| w <= self.config.queue);
            let waiting = waiting.ok_or(DropReason::QueueFull)?;
            let marking = match packet.ecn {
                Ecn::NotEct => None,
                Ecn::Ect1 => self.config.ecn1.or(self.config.ecn),
                Ecn::Ect0 | Ecn::Ce => self.config.ecn,
            };
            if marking.is_some_and(|m| m.marks(self.waiting, &mut self.rng)) {
                self.stats.marked += u64::from(packet.ecn != Ecn::Ce);
                packet.ecn = Ecn::Ce;
            }
            self.waiting = waiting;
            self.stats.max_queue_bytes = self.stats.max_queue_bytes.max(waiting);
        }
        self.queue.push_back(packet);
        Ok(())
    }

    /// When the packet being sent is finished.
    fn departure(&self) -> Option<Time> {
        (!self.queue.is_empty()).then(|| self.serializer.finish())
    }

    /// Simulates up to `now`: departures from the queue and scheduled changes, in order of time. Bounded by the
    /// packets in the queue and the length of the schedule.
    fn advance(&mut self, now: Time) {
        let now = now.max(self.now);
        loop {
            let departure = self.departure().unwrap_or(Time::MAX);
            let change = self.changes.front().map_or(Time::MAX, |(at, _)| (*at).max(self.now));
            let next = departure.min(change);
            // An event at `Time::MAX` never happens.
            if next > now || next == Time::MAX {
                break;
            }
            self.now = next;
            if departure <= change {
                self.leave_queue();
            } else if let Some((at, change)) = self.changes.pop_front() {
                self.apply(at, change);
            }
        }
        self.now = now;
    }

    /// Removes the first packet of the queue, which has been sent.
    fn leave_queue(&mut self) {
        let Some(mut packet) = self.queue.pop_front() else { return };
        if let Some(next) = self.queue.front() {
            self.waiting -= next.bytes;
            self.serializer.begin(self.now, next.bytes);
        }
        if self.now < self.black_out_until {
            self.count_drop(DropReason::BlackOut);
        } else {
            self.stamp_telemetry(&mut packet);
            self.depart(self.now, packet);
        }
    }

    /// Writes the queue's state into a packet that leaves it, as a switch does on dequeuing (HPCC, section 4.1).
    fn stamp_telemetry(&mut self, packet: &mut Packet<P>) {
        let (id, sent) = self.hop;
        self.hop.1 = sent.wrapping_add(packet.bytes);
        if let (true, Some(rate)) = (self.config.telemetry, self.config.rate) {
            packet.payload.stamp(&Hop { id, at: self.now, queue: self.waiting, sent: self.hop.1, rate });
        }
    }

    /// Puts a packet on the wire.
    fn depart(&mut self, now: Time, packet: Packet<P>) {
        let Packet { bytes, ecn, payload } = packet;
        let mut delivery = Delivery { time: now, bytes, ecn, corrupted: false, duplicate: false, payload };
        if self.corrupt.hit(&mut self.rng) {
            delivery.payload.corrupt(&mut self.rng);
            delivery.corrupted = true;
            self.stats.corrupted += 1;
        }
        let copy = (self.duplicate.hit(&mut self.rng) && self.in_link() + 1 < MAX_PACKETS)
            .then(|| Delivery { duplicate: true, ..delivery.clone() });
        self.propagate(now, delivery);
        if let Some(copy) = copy {
            self.stats.duplicated += 1;
            self.propagate(now, copy);
        }
    }

    fn propagate(&mut self, now: Time, delivery: Delivery<P>) {
        let mut at = now + self.delay();
        let late = self.reorder.hit(&mut self.rng);
        if late {
            self.stats.reordered += 1;
            at += self.config.reorder.extra;
        } else if self.config.keep_order {
            at = at.max(self.in_order_until);
            self.in_order_until = at;
        }
        self.flight.push(at, late, delivery);
    }

    /// The propagation delay of one packet.
    fn delay(&mut self) -> Span {
        let delay = self.config.delay;
        match self.config.jitter {
            Jitter::None => delay,
            Jitter::Uniform(half) => {
                let width = half.as_nanos().saturating_mul(2).saturating_add(1);
                delay + Span::from_nanos(self.rng.below(width)) - half
            }
            Jitter::Normal(deviation) => {
                // Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958.
                let radius = (-2.0 * (1.0 - self.rng.unit()).ln()).sqrt();
                let z = radius * (core::f64::consts::TAU * self.rng.unit()).cos();
                let z = z.clamp(-(JITTER_CUTOFF_DEVIATIONS as f64), JITTER_CUTOFF_DEVIATIONS as f64);
                let offset = Span::from_nanos((z.abs() * deviation.as_nanos() as f64) as u64);
                if z < 0.0 { delay - offset } else { delay + offset }
            }
        }
    }

    /// The shortest delay that a packet can have.
    fn min_delay(&self) -> Span {
        match self.config.jitter {
            Jitter::None => self.config.delay,
            Jitter::Uniform(half) => self.config.delay - half,
            Jitter::Normal(deviation) => self.config.delay - deviation * JITTER_CUTOFF_DEVIATIONS,
        }
    }

    /// Applies a change that was due at `at`, which is earlier than now only if the change was already past when
    /// it was scheduled.
    fn apply(&mut self, at: Time, change: Change) {
        match change {
            Change::Rate(rate) => {
                self.serializer.set_rate(self.now, rate);
                self.config.rate = rate;
            }
            Change::Delay(delay) => self.config.delay = delay,
            Change::Loss(loss) => {
                self.loss.set(loss, &mut self.rng);
                self.config.loss = loss;
            }
            Change::BlackOut(length) => self.black_out_until = self.black_out_until.max(at + length),
            Change::Path(delay) => {
                self.config.delay = delay;
                self.in_order_until = Time::ZERO;
            }
            Change::Ecn(threshold) => self.config.ecn = threshold,
            Change::Ecn1(threshold) => self.config.ecn1 = threshold,
            Change::Ect(path) => self.config.ect = path,
            Change::Telemetry(on) => self.config.telemetry = on,
        }
    }
}

fn sorted_schedule(config: &LinkConfig) -> VecDeque<(Time, Change)> {
    let mut changes = config.schedule.clone();
    changes.sort_by_key(|(at, _)| *at);
    changes.into()
}

#[cfg(test)]
mod tests;
