//! Coalesces wake-ups: while datagrams wake the loop more often than their senders could notice, it sleeps for a
//! short time and takes what has arrived together, as network cards moderate interrupts. The loop of real sockets and the
//! simulated hosts use it.
//!
//! A wake-up costs several microseconds at both ends of the wire, more in a virtual machine; at 1 Gbit/s, cards hand over
//! some seven packets at a time, 12,000 times a second. The kernel stamps what arrives, so the delay changes no measurement.

use base::{Span, Time};
use core::ops::Range;

/// Bounds of the delay, which is as long as the peers allow. Below, a timer's own lateness is most of it; above,
/// nothing more is saved, and the socket has to buffer what arrives.
const LENGTH: Range<Span> = Span::from_micros(50)..Span::from_micros(500);
/// Consecutive short waits ended by datagrams, before wake-ups are coalesced.
const SHORT_WAITS: u32 = 8;
/// What arrives during a delay may fill this part of the socket's buffer, as the kernel counts it: twice the bytes.
const BUFFER_PART: usize = 8;

/// Decides when to coalesce wake-ups, and for how long.
#[derive(Debug)]
pub struct WakeCoalescer {
    /// Bytes that the socket holds.
    buffer: usize,
    /// Waits in a row that were short enough for a delay to have saved something.
    short: u32,
    /// No delay is longer: what arrived in the last ones filled too much of the buffer.
    longest: Span,
    /// The last wait: when it began, how long the allowed delay was, and whether it was a coalescing delay.
    last: Option<(Time, Span, bool)>,
    /// What came since: when the first of it was found, how many trains, and how many bytes.
    first: Option<Time>,
    trains: usize,
    bytes: usize,
    /// When the last delay was to end: until then nothing waited for want of a processor.
    until: Time,
}

impl WakeCoalescer {
    /// For a socket that holds `buffer` bytes as the kernel counts them.
    pub fn new(buffer: usize) -> WakeCoalescer {
        let (longest, until) = (LENGTH.end, Time::ZERO);
        WakeCoalescer { buffer, short: 0, longest, last: None, first: None, trains: 0, bytes: 0, until }
    }

    /// Notes what a receive call brought.
    pub fn on_received(&mut self, now: Time, trains: usize, bytes: usize) {
        self.first.get_or_insert(now);
        self.trains += trains;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The loop is about to wait, and received datagrams may wait for `max_receive_delay`: how long to sleep without
    /// being woken, if at all.
    pub fn next_delay(&mut self, now: Time, max_delay: Span) -> Option<Span> {
        self.evaluate_delay();
        let max_delay = max_delay.min(self.longest);
        let nap = max_delay >= LENGTH.start && self.short >= SHORT_WAITS;
        self.last = Some((now, max_delay, nap));
        if nap {
            self.until = now + max_delay;
        }
        nap.then_some(max_delay)
    }

    /// What the last wait was worth.
    fn evaluate_delay(&mut self) {
        let (first, trains, bytes) = (self.first.take(), self.trains, self.bytes);
        (self.trains, self.bytes) = (0, 0);
        let Some((since, max_delay, nap)) = self.last.take() else { return };
        match first {
            Some(_) if nap => {
                // One train would have been one wake-up without the delay, too.
                self.short = if trains > 1 { self.short } else { 0 };
                let much = bytes.saturating_mul(2) > self.buffer / BUFFER_PART;
                self.longest = if much { self.longest / 2 } else { (self.longest * 2).min(LENGTH.end) };
            }
            Some(first) if first.since(since) < max_delay => self.short = self.short.saturating_add(1),
            _ => (self.short, self.longest) = (0, LENGTH.end),
        }
    }

    /// How long something that is read `now` waited for the loop, without the intended delay.
    pub fn queueing_delay(&self, now: Time, age: Span) -> Span {
        age.min(now.since(self.until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Span = Span::from_micros(400);

    /// Waits and looks, a turn each, `gap` apart.
    fn turns(
        naps: &mut WakeCoalescer,
        now: &mut Time,
        gap: Span,
        trains: usize,
        bytes: usize,
    ) -> Vec<Option<Span>> {
        let turn = |_| {
            let nap = naps.next_delay(*now, PATIENCE);
            *now += nap.unwrap_or(gap);
            if let Some(each) = bytes.checked_div(trains) {
                // A look for one at first, and one for the others.
                naps.on_received(*now, 1, each);
                naps.on_received(*now, trains - 1, bytes - each);
            }
            nap
        };
        (0..20).map(turn).collect()
    }

    #[test]
    fn frequent_trains_are_coalesced_and_rare_ones_are_not() {
        let (mut naps, mut now) = (WakeCoalescer::new(16 << 20), Time::ZERO);
        let often = turns(&mut naps, &mut now, Span::from_micros(80), 4, 40_000);
        assert_eq!(often[SHORT_WAITS as usize - 1], None);
        assert!(often[SHORT_WAITS as usize..].iter().all(|nap| *nap == Some(PATIENCE)));
        // A delay that brought one train saved nothing; then it takes several short waits again.
        let single = turns(&mut naps, &mut now, Span::from_millis(3), 1, 1_000);
        assert_eq!(single.iter().flatten().count(), 1);
    }

    #[test]
    fn short_max_delay_disables_coalescing() {
        let (mut naps, mut now) = (WakeCoalescer::new(16 << 20), Time::ZERO);
        turns(&mut naps, &mut now, Span::from_micros(80), 4, 40_000);
        assert_eq!(naps.next_delay(now, Span::from_micros(30)), None);
    }

    #[test]
    fn coalescing_delay_shrinks_with_the_buffer() {
        let (mut naps, mut now) = (WakeCoalescer::new(208 << 10), Time::ZERO);
        let all = turns(&mut naps, &mut now, Span::from_micros(80), 4, 50_000);
        let naps: Vec<_> = all.into_iter().flatten().collect();
        assert!(naps.len() > 2 && naps.windows(2).all(|w| w[1] < w[0]), "{naps:?}");
        assert!(naps.iter().all(|nap| *nap >= LENGTH.start));
    }

    #[test]
    fn coalescing_delay_is_not_reported_as_host_delay() {
        let (mut naps, mut now) = (WakeCoalescer::new(16 << 20), Time::ZERO);
        let us = Span::from_micros;
        assert_eq!(naps.queueing_delay(now + us(100), us(90)), us(90));
        turns(&mut naps, &mut now, us(80), 4, 40_000);
        assert_eq!(naps.queueing_delay(now, us(390)), Span::ZERO);
        assert_eq!(naps.queueing_delay(now + us(50), us(450)), us(50), "what the loop was late by is");
        assert_eq!(naps.queueing_delay(now + us(700), us(300)), us(300));
    }

    #[test]
    fn coalescing_stops_after_an_empty_delay() {
        let (mut naps, mut now) = (WakeCoalescer::new(16 << 20), Time::ZERO);
        turns(&mut naps, &mut now, Span::from_micros(80), 4, 40_000);
        assert_eq!(turns(&mut naps, &mut now, Span::from_millis(500), 0, 0).iter().flatten().count(), 1);
    }
}
