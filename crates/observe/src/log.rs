//! A bounded event log of an endpoint, with any number of readers.

use crate::event::{Event, What};
use base::Time;
use std::collections::VecDeque;

/// Events kept: a reader that comes later is told how many it missed.
pub const MAX_EVENTS: usize = 1 << 14;

/// Where a reader is in an [`EventLog`].
#[derive(Debug)]
pub struct Reader {
    next: u64,
}

/// So many events are no longer kept.
pub type Missed = u64;

/// What happened lately. Records nothing until somebody subscribes.
#[derive(Debug, Default)]
pub struct EventLog {
    is_on: bool,
    now: Time,
    last: u64,
    events: VecDeque<Event>,
}

impl EventLog {
    /// Begins to read, with what happens from now on.
    pub fn subscribe(&mut self) -> Reader {
        self.is_on = true;
        Reader { next: self.last + 1 }
    }

    /// Whether anybody has subscribed: else there is no need to find out what would be recorded.
    pub const fn is_on(&self) -> bool {
        self.is_on
    }

    /// The time of what is recorded from now on.
    pub const fn set_time(&mut self, now: Time) {
        self.now = now;
    }

    /// Records what happened to a connection; `what` is called only if somebody reads.
    pub fn record(&mut self, connection: u64, what: impl FnOnce() -> What) {
        if !self.is_on {
            return;
        }
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.last += 1;
        self.events.push_back(Event { number: self.last, time: self.now, connection, what: what() });
    }

    /// Whether there is something that the reader has not read.
    pub const fn has_news(&self, reader: &Reader) -> bool {
        reader.next <= self.last
    }

    /// What the reader has not read yet, the oldest first, and how many events before that it missed.
    pub fn read(&self, reader: &mut Reader) -> (Missed, impl Iterator<Item = &Event> + use<'_>) {
        let first = self.events.front().map_or(self.last + 1, |e| e.number);
        let missed = first.saturating_sub(reader.next);
        let skip = reader.next.saturating_sub(first) as usize;
        reader.next = self.last + 1;
        (missed, self.events.iter().skip(skip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: What = What::PathUp { path: 1 };

    #[test]
    fn events_are_not_built_without_readers() {
        let mut log = EventLog::default();
        log.record(1, || unreachable!("nobody reads"));
        assert!(!log.is_on());
    }

    #[test]
    fn each_reader_gets_each_event_once_after_subscribing() {
        let mut log = EventLog::default();
        let mut first = log.subscribe();
        log.set_time(Time::from_nanos(7));
        log.record(3, || UP);
        let mut second = log.subscribe();
        log.record(4, || UP);
        assert!(log.has_news(&first) && log.has_news(&second));
        let of = |log: &EventLog, r: &mut Reader| {
            let (missed, events) = log.read(r);
            (missed, events.map(|e| (e.number, e.connection, e.time)).collect::<Vec<_>>())
        };
        let at = Time::from_nanos(7);
        assert_eq!(of(&log, &mut first), (0, vec![(1, 3, at), (2, 4, at)]));
        assert_eq!(of(&log, &mut second), (0, vec![(2, 4, at)]));
        assert!(!log.has_news(&first));
        assert_eq!(of(&log, &mut first), (0, vec![]));
    }

    #[test]
    fn late_reader_gets_a_count_of_missed_events() {
        let mut log = EventLog::default();
        let mut reader = log.subscribe();
        for _ in 0..MAX_EVENTS + 5 {
            log.record(1, || UP);
        }
        let (missed, events) = log.read(&mut reader);
        assert_eq!((missed, events.count()), (5, MAX_EVENTS));
    }
}
