//! A model of one direction of a TCP connection as applications see it: a limited buffer, delivery in order with
//! delays and in pieces, an end, a reset, and faults.

use base::{Rng, Span, Time};
use std::collections::VecDeque;

/// Shortest time between stalls, so that no record takes long enough to be given up.
const MIN_STALL_INTERVAL: Span = Span::from_secs(5);

/// The parameters of a direction.
#[derive(Clone, Copy, Debug)]
pub struct DirectionConfig {
    /// Delay from one end to the other.
    pub delay: Span,
    /// Largest random addition to it.
    pub jitter: Span,
    /// Most bytes that arrive together.
    pub max_segment: u64,
    /// Most bytes sent and not read yet.
    pub buffer: u64,
    /// Probability of a stall, as after a loss.
    pub stall_probability: f64,
}

/// A fault of the bytes from one position of the stream on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamFault {
    /// One bit of that byte is flipped. TCP's checksum does not detect everything (RFC 5044, section 2.1).
    Flip(u8),
    /// One byte arrives per second.
    Drip,
    /// Nothing arrives any more, without a reset.
    Silence,
}

/// One direction.
pub struct Pipe {
    config: DirectionConfig,
    fault: Option<(u64, StreamFault)>,
    rng: Rng,
    /// Bytes in flight, with their times of arrival.
    queue: VecDeque<(Time, Vec<u8>)>,
    /// Arrival of the last of these.
    last: Time,
    /// Time of the last stall.
    last_stall: Time,
    written: u64,
    read: u64,
    /// When the end of the stream arrives, after everything that was written.
    fin: Option<Time>,
    /// When a reset arrives.
    reset: Option<Time>,
}

/// What arrives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrival {
    Bytes(Vec<u8>),
    End,
    Reset,
}

impl Pipe {
    pub fn new(way: DirectionConfig, harm: Option<(u64, StreamFault)>, rng: Rng) -> Pipe {
        let (last, held) = (Time::ZERO, Time::ZERO);
        Pipe {
            config: way,
            fault: harm,
            rng,
            queue: VecDeque::new(),
            last,
            last_stall: held,
            written: 0,
            read: 0,
            fin: None,
            reset: None,
        }
    }
    /// Number of bytes that it accepts now.
    pub fn room(&self) -> u64 {
        let open = self.fin.is_none() && self.reset.is_none();
        if open { self.config.buffer.saturating_sub(self.written - self.read) } else { 0 }
    }
    fn next_arrival(&mut self, now: Time) -> Time {
        let at =
            now + self.config.delay + Span::from_nanos(self.rng.below(1 + self.config.jitter.as_nanos()));
        self.last = self.last.max(at);
        self.last
    }
    /// Whether nothing arrives from this position on.
    fn is_silent(&self, position: u64) -> bool {
        self.fault.is_some_and(|(at, h)| h == StreamFault::Silence && position >= at)
    }
    pub fn write(&mut self, now: Time, bytes: &[u8]) {
        let mut rest = bytes;
        if now >= self.last_stall + MIN_STALL_INTERVAL && self.rng.chance(self.config.stall_probability) {
            self.last_stall = now;
            self.last = self.last.max(now + self.config.delay + Span::from_millis(self.rng.range(200, 1500)));
        }
        while !rest.is_empty() {
            let mut n = (1 + self.rng.below(self.config.max_segment)).min(rest.len() as u64);
            let mut at = self.next_arrival(now);
            match self.fault {
                Some((from, StreamFault::Drip)) if self.written >= from => {
                    (n, at) = (1, at + Span::from_secs(1));
                    self.last = at;
                }
                Some((from, StreamFault::Drip | StreamFault::Silence)) if self.written < from => {
                    n = n.min(from - self.written)
                }
                _ => {}
            }
            let (now, later) = rest.split_at(n as usize);
            let mut lump = now.to_vec();
            if let Some((position, StreamFault::Flip(bit))) = self.fault
                && (self.written..self.written + n).contains(&position)
            {
                lump[(position - self.written) as usize] ^= 1 << (bit % 8);
            }
            if !self.is_silent(self.written) {
                self.queue.push_back((at, lump));
            }
            self.written += n;
            rest = later;
        }
    }
    /// Shuts down the sending side.
    pub fn finish(&mut self, now: Time) {
        if self.fin.is_none() && !self.is_silent(self.written) {
            self.fin = Some(self.next_arrival(now));
        }
    }
    /// Cuts the connection off: data in flight may arrive or not, then a reset does.
    pub fn reset(&mut self, now: Time) {
        if self.reset.is_none() && !self.is_silent(self.written) {
            let keep = self.rng.below(1 + self.queue.len() as u64) as usize;
            self.queue.truncate(keep);
            self.fin = None;
            let last = self.queue.back().map_or(now, |(at, _)| *at);
            self.reset = Some(last.max(now + self.config.delay));
        }
    }
    /// The time of the next arrival.
    pub fn next(&self) -> Option<Time> {
        self.queue.front().map(|(at, _)| *at).or(self.reset).or(self.fin)
    }
    /// The next arrival at `now`, if any: at most `most` bytes, which must not be 0.
    pub fn take(&mut self, now: Time, most: u64) -> Option<Arrival> {
        if self.next()? > now {
            return None;
        }
        if let Some((at, mut bytes)) = self.queue.pop_front() {
            if bytes.len() as u64 > most {
                let rest = bytes.split_off(most as usize);
                self.queue.push_front((at, rest));
            }
            self.read += bytes.len() as u64;
            return Some(Arrival::Bytes(bytes));
        }
        if self.reset.take().is_some() {
            // Nothing follows, and nothing is taken.
            self.config.buffer = 0;
            return Some(Arrival::Reset);
        }
        self.fin.take().map(|_| {
            self.config.buffer = 0;
            Arrival::End
        })
    }
    /// Returns bytes that were taken and cannot be used yet.
    pub fn put_back(&mut self, now: Time, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.read -= bytes.len() as u64;
            self.queue.push_front((now, bytes.to_vec()));
        }
    }
    /// When a reset arrives, which is noticed without reading.
    pub fn next_reset(&self) -> Option<Time> {
        self.reset
    }
    /// Drops unread bytes, as a reset does.
    pub fn drop_unread(&mut self) {
        self.queue.clear();
    }
    /// Number of bytes read from it.
    pub fn delivered(&self) -> u64 {
        self.read
    }
    /// Number of bytes written to it.
    pub fn written(&self) -> u64 {
        self.written
    }
}
