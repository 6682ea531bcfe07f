//! Rates that change with the time of day and of the week, as of rclone's `--bwlimit`: `08:00,20mbit 18:00,off`,
//! `Mon-08:00,20mbit Sat-00:00,off`.

use base::{Rate, Span, Time};
use std::collections::BTreeMap;
use std::fmt;

/// Most entries of a timetable.
const MAX_ENTRIES: usize = 100;
/// Seconds of a day, and of a week.
const DAY: u32 = 86_400;
const WEEK: u32 = 7 * DAY;
/// How often the clock is looked at in any case: it may be set, and zones change to summer time.
const LOOK_EVERY: Span = Span::from_secs(30);
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// At most which rate holds when; `None` is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timetable {
    /// By the second of the week, from Sunday 00:00 on. Never empty.
    entries: BTreeMap<u32, Option<Rate>>,
}

impl Timetable {
    /// One rate, or `off`, or entries `[DAY-]HH:MM[:SS],RATE` with spaces between. An entry without a day holds every day. `rate`
    /// reads a rate.
    ///
    /// # Errors
    /// What cannot be read, and what to write instead.
    pub fn parse(text: &str, rate: impl Fn(&str) -> Result<Rate, String>) -> Result<Timetable, String> {
        let limit = |t: &str| if t.eq_ignore_ascii_case("off") { Ok(None) } else { rate(t).map(Some) };
        if !text.contains(',') {
            return Ok(Timetable { entries: BTreeMap::from([(0, limit(text.trim())?)]) });
        }
        let mut entries = BTreeMap::new();
        let all: Vec<&str> = text.split_whitespace().collect();
        if all.len() > MAX_ENTRIES {
            return Err(format!("it has {} entries; {MAX_ENTRIES} are the most", all.len()));
        }
        // Those of a day come behind those of every day.
        let mut of_days = Vec::new();
        for entry in all {
            let wrong = || format!("{entry:?} is no entry; try 08:00,20mbit or Mon-08:00,off");
            let (when, what) = entry.split_once(',').ok_or_else(wrong)?;
            let (day, time) = match when.split_once('-') {
                Some((d, t)) => (Some(day_of(d).ok_or_else(wrong)?), t),
                None => (None, when),
            };
            let (second, rate) = (second_of(time).ok_or_else(wrong)?, limit(what)?);
            match day {
                Some(d) => of_days.push((d * DAY + second, rate)),
                None => entries.extend((0..7).map(|d| (d * DAY + second, rate))),
            }
        }
        entries.extend(of_days);
        if entries.is_empty() {
            Err("it has no entry; try 08:00,20mbit".into())
        } else {
            Ok(Timetable { entries })
        }
    }
    /// All rates that hold at some time.
    pub fn rates(&self) -> impl Iterator<Item = Rate> + '_ {
        self.entries.values().flatten().copied()
    }
    /// The rate at a second of the week, from Sunday 00:00 on, and the seconds until the next entry.
    pub fn at(&self, second: u32) -> (Option<Rate>, u32) {
        let second = second % WEEK;
        let now = self.entries.range(..=second).next_back().or_else(|| self.entries.last_key_value());
        let next = self.entries.range(second + 1..).next().map(|e| *e.0);
        let next = next.unwrap_or_else(|| self.entries.keys().next().copied().unwrap_or(0) + WEEK);
        (now.and_then(|e| *e.1), next - second)
    }
}

fn day_of(text: &str) -> Option<u32> {
    let text = text.to_ascii_lowercase();
    DAYS.iter().zip(0..).find(|(d, _)| **d == text).map(|d| d.1)
}
/// Second of the day.
fn second_of(text: &str) -> Option<u32> {
    let parts: Vec<&str> = text.split(':').collect();
    let number =
        |t: &str, below: u32| (t.len() == 2).then(|| t.parse::<u32>().ok()).flatten().filter(|n| *n < below);
    match parts[..] {
        [h, m] => Some(number(h, 24)? * 3_600 + number(m, 60)? * 60),
        [h, m, s] => Some(number(h, 24)? * 3_600 + number(m, 60)? * 60 + number(s, 60)?),
        _ => None,
    }
}

/// Tells when another rate holds.
pub struct Limiter {
    timetable: Timetable,
    /// The second of the week on this machine, from Sunday 00:00 on.
    clock: Box<dyn Fn() -> u32 + Send>,
    now: Option<Rate>,
    look: Time,
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.now, self.timetable)
    }
}

impl Limiter {
    /// By this clock, which tells the second of the week, from Sunday 00:00 on.
    pub fn new(timetable: Timetable, clock: Box<dyn Fn() -> u32 + Send>) -> Limiter {
        let now = timetable.at(clock()).0;
        Limiter { timetable, clock, now, look: Time::ZERO }
    }
    /// The rate that holds, as it was seen last.
    pub fn rate(&self) -> Option<Rate> {
        self.now
    }
    /// All rates that hold at some time.
    pub fn rates(&self) -> impl Iterator<Item = Rate> + '_ {
        self.timetable.rates()
    }
    /// The rate that holds from now on, where it is another one than before.
    pub fn change(&mut self, now: Time) -> Option<Option<Rate>> {
        if now < self.look {
            return None;
        }
        let (rate, left) = self.timetable.at((self.clock)());
        self.look = now + LOOK_EVERY.min(Span::from_secs(u64::from(left)));
        (rate != self.now).then(|| {
            self.now = rate;
            rate
        })
    }
    /// When to ask again.
    pub fn next_look(&self) -> Time {
        self.look
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn parse(text: &str) -> Result<Timetable, String> {
        Timetable::parse(text, |t| {
            base::units::rate_within(t, Rate::from_bits_per_sec(8), Rate::from_bits_per_sec(1 << 40))
                .map_err(|e| e.to_string())
        })
    }
    fn at(t: &Timetable, day: u32, hour: u32, minute: u32) -> (Option<u64>, u32) {
        let (rate, left) = t.at(day * DAY + hour * 3_600 + minute * 60);
        (rate.map(|r| r.bits_per_sec() / 1_000_000), left / 60)
    }

    #[test]
    fn entries_hold_until_the_next_one_and_over_midnight() {
        let t = parse("08:00,20mbit 18:00,200mbit 23:00,off").unwrap();
        for day in 0..7 {
            assert_eq!(at(&t, day, 7, 59), (None, 1), "{day}");
            assert_eq!(at(&t, day, 8, 0), (Some(20), 600));
            assert_eq!(at(&t, day, 17, 59), (Some(20), 1));
            assert_eq!(at(&t, day, 18, 0), (Some(200), 300));
            assert_eq!(at(&t, day, 23, 0), (None, 540));
        }
        // rclone's manual: Monday to Friday, the weekend, and over the end of the week.
        let t = parse("Mon-00:00,512kbit Fri-23:59,10mbit sat-10:00,1mbit Sun-20:00,off").unwrap();
        assert_eq!(at(&t, 0, 19, 0), (Some(1), 60));
        assert_eq!(at(&t, 0, 21, 0), (None, 180));
        assert_eq!(at(&t, 5, 23, 58), (Some(0), 1));
        assert_eq!(at(&t, 6, 0, 0), (Some(10), 600));
        // An entry of a day goes before that of every day.
        let t = parse("Wed-12:00,off 12:00,5mbit").unwrap();
        assert_eq!((at(&t, 3, 13, 0).0, at(&t, 4, 13, 0).0), (None, Some(5)));
        assert_eq!(at(&parse("7mbit").unwrap(), 3, 3, 3).0, Some(7));
        assert_eq!(at(&parse("off").unwrap(), 3, 3, 3).0, None);
    }

    #[test]
    fn what_is_no_timetable_is_refused() {
        for bad in [
            "",
            "fast",
            "08:00,",
            "8:00,1mbit",
            "24:00,1mbit",
            "08:60,1mbit",
            "Mo-08:00,1mbit",
            "08:00 1mbit,",
            "08:00,1mbit 9",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse(&"08:00,1mbit ".repeat(101)).unwrap_err().contains("100 are the most"));
    }

    #[test]
    fn a_change_is_told_once_and_a_clock_that_is_set_is_noticed() {
        let second = Arc::new(AtomicU32::new(8 * 3_600 - 10));
        let clock = second.clone();
        let t = parse("08:00,20mbit 18:00,off").unwrap();
        let mut l = Limiter::new(t, Box::new(move || clock.load(Ordering::Relaxed)));
        let time = |s: u64| Time::ZERO + Span::from_secs(s);
        assert_eq!((l.rate(), l.change(time(1))), (None, None));
        assert_eq!(l.next_look(), time(11));
        second.store(8 * 3_600, Ordering::Relaxed);
        assert_eq!(l.change(time(5)), None, "it is not looked at before");
        let rate = Some(Rate::from_bits_per_sec(20_000_000));
        assert_eq!((l.change(time(11)), l.change(time(11))), (Some(rate), None));
        assert_eq!(l.next_look(), time(41));
        second.store(19 * 3_600, Ordering::Relaxed);
        assert_eq!((l.change(time(41)), l.rate()), (Some(None), None));
    }
}
