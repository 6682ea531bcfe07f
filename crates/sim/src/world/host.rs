//! What a host takes time for: timers that end late, threads that wake up late, and turns of the loop.
//!
//! Real programs meet all of it, so that feedback waits for the loop and trains leave late, then longer. The parameters
//! are those of a machine: `longhaul lab host` measures them.

use super::World;
use base::{Rng, Span, Time};
use endpoint::WakeCoalescer;

/// The points of a [`Lateness`], in parts of a thousand.
pub const POINTS: [u64; 6] = [0, 500, 900, 990, 999, 1_000];
/// Fewest time for a turn, so that virtual time goes on.
const MIN_TURN: Span = Span::from_nanos(100);
/// Most trains of a turn: the driver's first one, and three calls of eight.
const TRAINS_PER_TURN: usize = 25;
/// The receive buffer of a socket, as the kernel counts it.
const SOCKET_BUFFER: usize = 8 << 20;

/// How late something happens: its least value, median, percentiles 90, 99 and 99.9, and its largest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Lateness(pub [Span; POINTS.len()]);

impl Lateness {
    /// The distribution of measured values; of none: never late.
    pub fn measured(values: &mut [Span]) -> Lateness {
        values.sort_unstable();
        let last = values.len().saturating_sub(1) as u64;
        let at = |p: u64| values.get((last * p / 1_000) as usize).copied().unwrap_or_default();
        Lateness(POINTS.map(at))
    }

    /// Whether no point is below the one before it.
    pub fn is_ordered(&self) -> bool {
        self.0.is_sorted()
    }

    /// Draws a value: between two points all are equally likely.
    fn draw(&self, rng: &mut Rng) -> Span {
        let at = rng.below(1_000_000);
        let i = POINTS[1..].iter().position(|p| at < p * 1_000).unwrap_or(POINTS.len() - 2);
        let (low, high) = (POINTS[i] * 1_000, POINTS[i + 1] * 1_000);
        self.0[i] + (self.0[i + 1] - self.0[i]).scale(at - low, high - low)
    }
}

/// The parameters of simulated hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostModel {
    /// How much later than asked for a wait ends.
    pub timer: Lateness,
    /// How long after a datagram's arrival the loop runs that slept until it came.
    pub wake: Lateness,
    /// Time for a turn of the loop.
    pub turn: Span,
    /// More for each datagram received.
    pub receive: Span,
    /// More for each datagram sent.
    pub send: Span,
    /// Most datagrams that are received as one train.
    pub joined: usize,
}

impl Default for HostModel {
    /// A virtual machine with two processors and little load. Timers up to the 90th percentile and wake-ups are as waits
    /// of `ppoll` and datagrams over loopback took there; timers beyond are late as the pacer's comments say, since other
    /// load (up to 5 ms) hid them in that measurement; datagrams cost as in docs/performance.md, "How cheap".
    fn default() -> HostModel {
        let us = |n: [u64; POINTS.len()]| Lateness(n.map(Span::from_micros));
        HostModel {
            timer: us([14, 45, 60, 120, 1_000, 4_000]),
            wake: us([10, 19, 27, 70, 100, 1_600]),
            turn: Span::from_micros(5),
            receive: Span::from_nanos(540),
            send: Span::from_nanos(640),
            joined: 44,
        }
    }
}

impl HostModel {
    fn cost(&self, received: u64, sent: u64) -> Span {
        (self.turn + self.receive * received + self.send * sent).max(MIN_TURN)
    }
}

/// The loop of a node whose host takes time.
pub(super) struct HostLoop {
    model: HostModel,
    rng: Rng,
    coalescer: WakeCoalescer,
    /// When it has finished its last turn.
    free_at: Time,
    /// How late it is when a datagram wakes it; `None` while it does not look at the socket or is not asleep.
    wakes_after: Option<Span>,
}

impl HostLoop {
    pub fn new(model: HostModel, rng: Rng) -> HostLoop {
        let coalescer = WakeCoalescer::new(SOCKET_BUFFER);
        HostLoop { model, rng, coalescer, free_at: Time::ZERO, wakes_after: None }
    }

    /// Most datagrams that are received as one train.
    pub fn joined(&self) -> usize {
        self.model.joined
    }

    /// When a datagram that arrives at `now` gets its turn; `None` if the loop turns anyway.
    fn wake_time(&self, now: Time) -> Option<Time> {
        // Arrived while the last turn runs, it is found without a sleep.
        self.wakes_after.map(|late| if now < self.free_at { self.free_at } else { now + late })
    }
}

impl World {
    /// Gives all nodes, and those added later, hosts that take time; `None`: hosts without cost.
    pub fn set_host_model(&mut self, model: Option<HostModel>) {
        self.host_model = model;
        for n in 0..self.nodes.len() {
            self.nodes[n].host = self.new_host(n);
        }
    }

    pub(super) fn new_host(&self, n: usize) -> Option<Box<HostLoop>> {
        // Streams of numbers of their own: the network's chance is the same with and without.
        let model = self.host_model?;
        Some(Box::new(HostLoop::new(model, self.host_rng.stream(super::HOST_STREAM + 1 + n as u64))))
    }

    /// A datagram has arrived: when its node turns.
    pub(super) fn wake_by_arrival(&mut self, n: usize, now: Time) {
        match &self.nodes[n].host {
            None => self.wake_node(n, now),
            Some(h) => {
                if let Some(at) = h.wake_time(now) {
                    self.wake_node(n, at);
                }
            }
        }
    }

    /// One turn of a node whose host takes time, and when the next one is.
    pub(super) fn run_timed_node(&mut self, n: usize, mut host: Box<HostLoop>) {
        let now = self.now;
        if now < host.free_at {
            let at = host.free_at;
            self.nodes[n].host = Some(host);
            return self.wake_node(n, at);
        }
        host.wakes_after = None;
        let (trains, datagrams, bytes) = self.receive(n, host.joined());
        if trains > 0 {
            host.coalescer.on_received(now, trains, bytes);
        }
        let before = self.totals.sent;
        let sent = self.drive_and_send(n, TRAINS_PER_TURN);
        host.free_at = now + host.model.cost(datagrams, self.totals.sent - before);
        let node = &self.nodes[n];
        if sent == TRAINS_PER_TURN || node.endpoint.needs_app() {
            let at = host.free_at;
            self.nodes[n].host = Some(host);
            return self.wake_node(n, at);
        }
        let timers = node.endpoint.next_timeout().into_iter().chain(node.app.next_timeout());
        let timer = timers.chain(node.next_arrival()).min();
        let nap = host.coalescer.next_delay(host.free_at, node.endpoint.max_receive_delay());
        if nap.is_none() {
            host.wakes_after = Some(host.model.wake.draw(&mut host.rng));
        }
        let asked = timer.into_iter().chain(nap.map(|nap| host.free_at + nap)).min();
        // What is due when the turn ends needs no sleep.
        let at = asked.map(|t| match t > host.free_at {
            true => t + host.model.timer.draw(&mut host.rng),
            false => host.free_at,
        });
        self.nodes[n].host = Some(host);
        if let Some(at) = at {
            self.wake_node(n, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_has_the_points_of_what_was_measured() {
        let mut values: Vec<Span> = (0..=1_000).rev().map(Span::from_micros).collect();
        let l = Lateness::measured(&mut values);
        assert_eq!(l.0.map(Span::as_micros), POINTS);
        assert_eq!(Lateness::measured(&mut []), Lateness::default());
        let mut rng = Rng::from_u64(1);
        let mut drawn: Vec<Span> = (0..20_000).map(|_| l.draw(&mut rng)).collect();
        let again = Lateness::measured(&mut drawn);
        for (a, b) in again.0.iter().zip(l.0) {
            assert!(a.as_micros().abs_diff(b.as_micros()) < 20, "{again:?}");
        }
    }

    #[test]
    fn turns_cost_time_by_what_they_do() {
        let m = HostModel::default();
        assert_eq!(m.cost(0, 0), m.turn);
        assert_eq!(m.cost(3, 2), m.turn + m.receive * 3 + m.send * 2);
        let free = HostModel { turn: Span::ZERO, receive: Span::ZERO, send: Span::ZERO, ..m };
        assert_eq!(free.cost(9, 9), MIN_TURN);
        assert!(m.timer.is_ordered() && m.wake.is_ordered());
    }
}
