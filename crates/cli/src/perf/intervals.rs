//! The interval reports of a measurement (`--interval`).

use super::refresh::CounterRequest;
use base::{Span, Time};
use endpoint::Stats;
use serde_json::{Value, json};

/// A rest that is shorter than this part of an interval counts with the interval before: no rate can be told of a moment.
const REST: u64 = 20;

/// What was reported so far.
pub struct Intervals {
    /// Zero: nothing is reported.
    every: Span,
    /// For people, as they come.
    shown: bool,
    began: Time,
    /// When the measurement is over, if that is known.
    until: Option<Time>,
    /// When the interval is over.
    request: CounterRequest,
    /// When was reported last, and what had arrived and had been sent again by then.
    last: (Time, u64, u64),
    list: Vec<Value>,
}

impl Intervals {
    /// Nothing yet.
    pub fn new(every: Span, shown: bool) -> Intervals {
        let (began, last) = (Time::ZERO, (Time::ZERO, 0, 0));
        Intervals {
            every,
            shown,
            began,
            until: None,
            request: CounterRequest::default(),
            last,
            list: Vec::new(),
        }
    }

    /// The measurement begins.
    pub fn begin(&mut self, now: Time, lasts: Option<Span>) {
        (self.began, self.last) = (now, (now, 0, 0));
        self.until = lasts.map(|t| now + t);
        self.request.at = Some(now);
        self.advance(now);
    }

    /// After one that took long the next is as long as it should be; the last one is what is left at the end.
    fn advance(&mut self, now: Time) {
        let next =
            self.request.at.map(|at| if at + self.every > now { at + self.every } else { now + self.every });
        self.request.at = next.filter(|at| !self.every.is_zero() && self.until.is_none_or(|end| *at < end));
    }

    /// When [`Intervals::is_due`] is to be asked again.
    pub fn next(&self) -> Option<Time> {
        self.request.at
    }

    /// Whether an interval is over, of which figures are at hand: `refresh` asks for them, and they are there in the next turn.
    pub fn is_due(&mut self, now: Time, refresh: impl FnOnce()) -> bool {
        self.request.is_due(now, refresh)
    }

    /// An interval is over: `arrived` bytes in all, with `control` of what sends.
    pub fn add(&mut self, now: Time, arrived: u64, s: &Stats, control: &str) {
        self.advance(now);
        self.tell(now, arrived, s, control);
    }

    fn tell(&mut self, now: Time, arrived: u64, s: &Stats, control: &str) {
        let (last, before, again) = self.last;
        // What is known may go back by what a stream's records took.
        let arrived = arrived.max(before);
        let (bytes, retransmitted) = (arrived - before, s.payload_again.saturating_sub(again));
        let rate = bytes as f64 * 8.0 / now.since(last).as_secs_f64().max(1e-9);
        let seconds = now.since(self.began).as_secs_f64();
        if self.shown {
            out_line!(
                "{seconds:>7.2} s  {bytes:>14} B  {:>10.1} Mbit/s  retransmitted {retransmitted:>10} B  RTT {}  {} {control}",
                rate / 1e6,
                s.srtt,
                s.cc.0,
            );
        }
        self.last = (now, arrived, s.payload_again.max(again));
        self.list.push(
            json!({ "seconds": seconds, "bytes": bytes, "bits_per_second": rate, "retransmitted_bytes": retransmitted,
                               "srtt_seconds": s.srtt.as_secs_f64(), "marked_packets": s.ce_packets,
                               "congestion_control": s.cc.0 }),
        );
    }

    /// The measurement is over, with `total` bytes, and lasted so long, which may have been heard of later: what was not reported
    /// yet is the last interval. Gives the total, which is no less than what was reported.
    pub fn end(&mut self, now: Time, lasted: Span, total: u64, s: &Stats, control: &str) -> u64 {
        let now = now.min(self.began + lasted).max(self.last.0);
        if self.every.is_zero() {
            return total;
        }
        self.request.at = None;
        let (last, before, _) = self.last;
        let total = total.max(before);
        let (rest, took) = (total - before, now.since(last));
        match self.list.last_mut() {
            Some(_) if rest == 0 => {}
            Some(one) if took < self.every / REST => {
                let bytes = one["bytes"].as_u64().unwrap_or(0) + rest;
                let length = bytes as f64 * 8.0;
                let seconds = now.since(self.began).as_secs_f64();
                let begin = one["seconds"].as_f64().unwrap_or(0.0) - one_length(one);
                one["bits_per_second"] = json!(length / (seconds - begin).max(1e-9));
                (one["bytes"], one["seconds"]) = (json!(bytes), json!(seconds));
                if self.shown {
                    out_line!("{seconds:>7.2} s  {rest:>14} B  late");
                }
                self.last = (now, total, self.last.2);
            }
            // One line that says what the result says is of no use.
            None => {
                self.shown = false;
                self.tell(now, total, s, control);
            }
            Some(_) => self.tell(now, total, s, control),
        }
        total
    }

    /// All of them, for JSON.
    pub fn list(&self) -> &[Value] {
        &self.list
    }
}

/// How long an interval lasted, in seconds.
fn one_length(one: &Value) -> f64 {
    let number = |key: &str| one[key].as_f64().unwrap_or(0.0);
    let rate = number("bits_per_second");
    if rate > 0.0 { number("bytes") * 8.0 / rate } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(i: &Intervals) -> u64 {
        i.list().iter().map(|v| v["bytes"].as_u64().unwrap()).sum()
    }

    #[test]
    fn short_last_interval_is_merged_into_the_one_before() {
        let at = |ms: u64| Time::from_nanos(5_000_000_000) + Span::from_millis(ms);
        let mut i = Intervals::new(Span::from_secs(1), false);
        i.begin(at(0), None);
        assert!(!i.is_due(at(999), || panic!("too early")));
        let mut asked = false;
        assert!(!i.is_due(at(1_000), || asked = true));
        assert!(asked && i.is_due(at(1_000), || panic!("asked already")));
        i.add(at(1_000), 1_000, &Stats::default(), "");
        assert_eq!(i.end(at(1_010), Span::from_millis(1_010), 1_100, &Stats::default(), ""), 1_100);
        assert_eq!((i.list().len(), sum(&i)), (1, 1_100));
        assert_eq!(i.list()[0]["seconds"], 1.01);
        let rate = i.list()[0]["bits_per_second"].as_f64().unwrap();
        assert!((rate - 1_100.0 * 8.0 / 1.01).abs() < 1.0, "{rate}");
    }

    proptest! {
        #[test]
        fn intervals_add_up_to_the_result(
            arrived in proptest::collection::vec(0u64..1_000_000, 0..20), total in 0u64..1_000_000, ms in 1u64..3_000,
        ) {
            let mut i = Intervals::new(Span::from_secs(1), false);
            i.begin(Time::ZERO, None);
            let mut now = Time::ZERO;
            for a in &arrived {
                now += Span::from_secs(1);
                i.add(now, *a, &Stats::default(), "");
            }
            let end = now + Span::from_millis(ms);
            let total = i.end(end, end.since(Time::ZERO), total, &Stats::default(), "");
            prop_assert_eq!(sum(&i), total);
        }
    }
}
