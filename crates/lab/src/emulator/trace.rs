//! Links whose rate follows a trace of delivery opportunities.

use base::{Rate, Span, Time};
use netem::{Change, LinkConfig};

use crate::plan::trace::OPPORTUNITY;

/// How far ahead the model's schedule is filled; it is refilled after half of this.
const HORIZON: Span = Span::from_secs(1);

/// A trace. In each millisecond the link has the rate that uses up its opportunities; the trace repeats at its end.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    /// Opportunities in each millisecond; the one at time 0 is also the end of the period.
    opportunities: Box<[u32]>,
    /// Start of its first millisecond.
    begin: Time,
    /// When the model's schedule is to be refilled.
    due: Time,
}

impl Trace {
    /// Creates a trace from its lines, which must be in order and end above zero; `None` otherwise.
    pub(super) fn new(lines: &[u64]) -> Option<Trace> {
        let period = usize::try_from(*lines.last()?).ok().filter(|period| *period > 0)?;
        let mut each = vec![0; period].into_boxed_slice();
        for line in lines {
            *each.get_mut(usize::try_from(*line).ok()? % period)? += 1;
        }
        Some(Trace { opportunities: each, begin: Time::ZERO, due: Time::ZERO })
    }

    /// Restarts the trace at `now`.
    pub(super) fn restart(&mut self, now: Time) {
        (self.begin, self.due) = (now, now);
    }

    /// The link's configuration from `now` on, if the schedule has to be refilled. `link` is the present one, with
    /// the rest of its schedule.
    pub(super) fn next(&mut self, now: Time, link: &LinkConfig) -> Option<LinkConfig> {
        if now < self.due {
            return None;
        }
        self.due = now + HORIZON / 2;
        let mut link = link.clone();
        link.schedule.retain(|(at, change)| *at > now && !matches!(change, Change::Rate(_)));
        let first = now.since(self.begin).as_millis();
        let mut rate = self.rate(first);
        link.rate = Some(rate);
        for millisecond in first + 1..=first + HORIZON.as_millis() {
            let next = self.rate(millisecond);
            if next != rate {
                link.schedule.push((self.begin + Span::from_millis(millisecond), Change::Rate(Some(next))));
                rate = next;
            }
        }
        Some(link)
    }

    fn rate(&self, millisecond: u64) -> Rate {
        let each = self.opportunities[(millisecond % self.opportunities.len() as u64) as usize];
        Rate::from_bytes_per_sec(u64::from(each) * OPPORTUNITY * 1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Ecn, Rng};
    use netem::{Link, Packet};

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    #[test]
    fn link_delivers_one_packet_per_trace_opportunity() {
        // Opportunities: 3 in the second millisecond and 1 in the fourth of every five; the queue is never empty.
        let mut trace = Trace::new(&[1, 1, 1, 3, 5]).unwrap();
        trace.restart(at(7));
        let config = LinkConfig { queue: 1 << 30, ..LinkConfig::default() };
        let mut link: Link<()> = Link::new(config, Rng::from_u64(1));
        let mut delivered = [0u64; 3000];
        for ms in 7..3007 {
            if let Some(config) = trace.next(at(ms), link.config()) {
                link.set_config(at(ms), config);
            }
            for _ in 0..4 {
                let _ = link.send(at(ms), Packet { bytes: OPPORTUNITY, ecn: Ecn::NotEct, payload: () });
            }
            while let Some(delivery) = link.poll(at(ms) + Span::from_micros(999)) {
                delivered[(delivery.time.since(at(7)).as_millis()) as usize] += 1;
            }
        }
        // A period includes the line at its end; a packet may finish as the next millisecond begins.
        let total: u64 = delivered.iter().sum();
        assert!(total.abs_diff(3000) <= 1, "{total}");
        for period in 0..600 {
            let of = &delivered[period * 5..period * 5 + 5];
            assert!(of.iter().sum::<u64>().abs_diff(5) <= 1, "{period}: {of:?}");
            assert!(of[1] + of[2] >= 3, "{period}: {of:?}");
        }
    }

    #[test]
    fn trace_keeps_other_scheduled_changes() {
        let mut trace = Trace::new(&[1, 2]).unwrap();
        let black_out = (at(10), Change::BlackOut(Span::from_millis(1)));
        let schedule = vec![(at(1), Change::Delay(Span::ZERO)), black_out.clone()];
        let link = LinkConfig { schedule, ..LinkConfig::default() };
        let next = trace.next(at(5), &link).unwrap();
        assert!(next.schedule.contains(&black_out) && next.schedule.iter().all(|(time, _)| *time > at(5)));
        assert!(trace.next(at(100), &link).is_none() && trace.next(at(505), &link).is_some());
    }

    #[test]
    fn invalid_trace_lines_are_refused() {
        assert!(Trace::new(&[]).is_none() && Trace::new(&[0, 0]).is_none());
        assert!(Trace::new(&[7, 3]).is_some());
    }
}
