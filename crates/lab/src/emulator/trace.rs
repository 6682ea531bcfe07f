//! Links whose rate follows a trace.

use base::{Rate, Span, Time};
use netem::{Change, LinkConfig};

use crate::plan::trace::OPPORTUNITY;

/// How far ahead the model is told of the rate. It is told anew after half of this.
const AHEAD: Span = Span::from_secs(1);

/// A trace: in each millisecond the link has the rate at which that millisecond's opportunities would be used up. It
/// begins anew at its end.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    /// Opportunities in each millisecond; the one at time 0 is that at the end of the period too.
    each: Box<[u32]>,
    /// When its first millisecond begins.
    begin: Time,
    /// When the model is to be told of the next rates.
    due: Time,
}

impl Trace {
    /// From its lines, which are in order and end above zero. `None` for others.
    pub(super) fn new(lines: &[u64]) -> Option<Trace> {
        let period = usize::try_from(*lines.last()?).ok().filter(|period| *period > 0)?;
        let mut each = vec![0; period].into_boxed_slice();
        for line in lines {
            *each.get_mut(usize::try_from(*line).ok()? % period)? += 1;
        }
        Some(Trace { each, begin: Time::ZERO, due: Time::ZERO })
    }

    /// Begins anew at `now`.
    pub(super) fn restart(&mut self, now: Time) {
        (self.begin, self.due) = (now, now);
    }

    /// The link as it is to be from `now` on, when the model does not know that yet: `link` is what it is now, with the
    /// rest of its schedule.
    pub(super) fn next(&mut self, now: Time, link: &LinkConfig) -> Option<LinkConfig> {
        if now < self.due {
            return None;
        }
        self.due = now + AHEAD / 2;
        let mut link = link.clone();
        link.schedule.retain(|(at, change)| *at > now && !matches!(change, Change::Rate(_)));
        let first = now.since(self.begin).as_millis();
        let mut rate = self.rate(first);
        link.rate = Some(rate);
        for millisecond in first + 1..=first + AHEAD.as_millis() {
            let next = self.rate(millisecond);
            if next != rate {
                link.schedule.push((self.begin + Span::from_millis(millisecond), Change::Rate(Some(next))));
                rate = next;
            }
        }
        Some(link)
    }

    fn rate(&self, millisecond: u64) -> Rate {
        let each = self.each[(millisecond % self.each.len() as u64) as usize];
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
    fn a_link_delivers_as_often_as_its_trace_has_opportunities() {
        // 3 in the second millisecond, 1 in the fourth, of every five; a link whose queue is never empty.
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
        // A period begins with the line at its end; a packet may finish as the next millisecond begins.
        let total: u64 = delivered.iter().sum();
        assert!(total.abs_diff(3000) <= 1, "{total}");
        for period in 0..600 {
            let of = &delivered[period * 5..period * 5 + 5];
            assert!(of.iter().sum::<u64>().abs_diff(5) <= 1, "{period}: {of:?}");
            assert!(of[1] + of[2] >= 3, "{period}: {of:?}");
        }
    }

    #[test]
    fn what_else_is_scheduled_stays() {
        let mut trace = Trace::new(&[1, 2]).unwrap();
        let black_out = (at(10), Change::BlackOut(Span::from_millis(1)));
        let schedule = vec![(at(1), Change::Delay(Span::ZERO)), black_out.clone()];
        let link = LinkConfig { schedule, ..LinkConfig::default() };
        let next = trace.next(at(5), &link).unwrap();
        assert!(next.schedule.contains(&black_out) && next.schedule.iter().all(|(time, _)| *time > at(5)));
        assert!(trace.next(at(100), &link).is_none() && trace.next(at(505), &link).is_some());
    }

    #[test]
    fn lines_that_are_no_trace_give_none() {
        assert!(Trace::new(&[]).is_none() && Trace::new(&[0, 0]).is_none());
        assert!(Trace::new(&[7, 3]).is_some());
    }
}
