//! One direction of a TCP connection, as whoever uses it sees it: a buffer that fills, bytes that come in order, late and in
//! lumps, an end, a reset; and what goes wrong on the way.

use base::{Rng, Span, Time};
use std::collections::VecDeque;

/// Bytes are not held up again for so long: no record takes so long that it is given up.
const BETWEEN_HOLDUPS: Span = Span::from_secs(5);

/// What a direction is like.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// From one end to the other.
    pub delay: Span,
    /// Added to it at random, up to this.
    pub jitter: Span,
    /// Bytes that arrive together, at most.
    pub lump: u64,
    /// Bytes sent and not read yet, at most.
    pub buffer: u64,
    /// How often bytes are held up for a while, as by a loss.
    pub holdup: f64,
}

/// What goes wrong with the bytes from one position of the stream on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Harm {
    /// One bit of that byte is wrong. TCP's sum does not find everything (RFC 5044, section 2.1).
    Flip(u8),
    /// A byte a second.
    Drip,
    /// Nothing arrives any more, and nobody is told.
    Silence,
}

/// One direction.
pub struct Pipe {
    way: Way,
    harm: Option<(u64, Harm)>,
    rng: Rng,
    /// On their way, with the time of arrival.
    queue: VecDeque<(Time, Vec<u8>)>,
    /// Arrival of the last of these.
    last: Time,
    /// When bytes were held up the last time.
    held: Time,
    written: u64,
    read: u64,
    /// The end of the stream is behind everything that was written.
    fin: Option<Time>,
    /// A reset arrives.
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
    pub fn new(way: Way, harm: Option<(u64, Harm)>, rng: Rng) -> Pipe {
        let (last, held) = (Time::ZERO, Time::ZERO);
        Pipe {
            way,
            harm,
            rng,
            queue: VecDeque::new(),
            last,
            held,
            written: 0,
            read: 0,
            fin: None,
            reset: None,
        }
    }
    /// Bytes that it takes now.
    pub fn room(&self) -> u64 {
        let open = self.fin.is_none() && self.reset.is_none();
        if open { self.way.buffer.saturating_sub(self.written - self.read) } else { 0 }
    }
    fn next_arrival(&mut self, now: Time) -> Time {
        let at = now + self.way.delay + Span::from_nanos(self.rng.below(1 + self.way.jitter.as_nanos()));
        self.last = self.last.max(at);
        self.last
    }
    /// Whether nothing arrives from this position on.
    fn is_silent(&self, position: u64) -> bool {
        self.harm.is_some_and(|(at, h)| h == Harm::Silence && position >= at)
    }
    pub fn write(&mut self, now: Time, bytes: &[u8]) {
        let mut rest = bytes;
        if now >= self.held + BETWEEN_HOLDUPS && self.rng.chance(self.way.holdup) {
            self.held = now;
            self.last = self.last.max(now + self.way.delay + Span::from_millis(self.rng.range(200, 1500)));
        }
        while !rest.is_empty() {
            let mut n = (1 + self.rng.below(self.way.lump)).min(rest.len() as u64);
            let mut at = self.next_arrival(now);
            match self.harm {
                Some((from, Harm::Drip)) if self.written >= from => {
                    (n, at) = (1, at + Span::from_secs(1));
                    self.last = at;
                }
                Some((from, Harm::Drip | Harm::Silence)) if self.written < from => {
                    n = n.min(from - self.written)
                }
                _ => {}
            }
            let (now, later) = rest.split_at(n as usize);
            let mut lump = now.to_vec();
            if let Some((position, Harm::Flip(bit))) = self.harm
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
    /// The sending side is shut down.
    pub fn finish(&mut self, now: Time) {
        if self.fin.is_none() && !self.is_silent(self.written) {
            self.fin = Some(self.next_arrival(now));
        }
    }
    /// Cut off: what is on its way may arrive or not, then a reset does.
    pub fn reset(&mut self, now: Time) {
        if self.reset.is_none() && !self.is_silent(self.written) {
            let keep = self.rng.below(1 + self.queue.len() as u64) as usize;
            self.queue.truncate(keep);
            self.fin = None;
            let last = self.queue.back().map_or(now, |(at, _)| *at);
            self.reset = Some(last.max(now + self.way.delay));
        }
    }
    /// When something arrives.
    pub fn next(&self) -> Option<Time> {
        self.queue.front().map(|(at, _)| *at).or(self.reset).or(self.fin)
    }
    /// What arrives at `now`, if anything does: at most `most` bytes, which is not 0.
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
            self.way.buffer = 0;
            return Some(Arrival::Reset);
        }
        self.fin.take().map(|_| {
            self.way.buffer = 0;
            Arrival::End
        })
    }
    /// Bytes that were taken and cannot be used yet.
    pub fn put_back(&mut self, now: Time, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.read -= bytes.len() as u64;
            self.queue.push_front((now, bytes.to_vec()));
        }
    }
    /// When a reset arrives, which reaches who does not read, too.
    pub fn next_reset(&self) -> Option<Time> {
        self.reset
    }
    /// What was not read is lost with a reset.
    pub fn drop_unread(&mut self) {
        self.queue.clear();
    }
    /// Bytes that have been read from it.
    pub fn delivered(&self) -> u64 {
        self.read
    }
    /// Bytes that have been put into it.
    pub fn written(&self) -> u64 {
        self.written
    }
}
