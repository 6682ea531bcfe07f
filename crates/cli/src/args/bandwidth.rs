//! The most that may be sent, which can change with the time of day.

use super::heading;
use crate::units;
use base::Rate;
use clap::Args;
use lhio::clock::{LocalTime, WallTime};
use mover::{Limiter, Timetable};

/// Of `put`, `get` and `serve`.
#[derive(Args, Clone, Debug, Default)]
pub struct BandwidthOptions {
    /// As --limit, or a timetable in local time, such as "08:00,20mbit 18:00,200mbit 23:00,off" (default: no limit).
    ///
    /// Each entry holds until the next one, and changes the rate of what is under way. "Mon-08:00,20mbit" holds from Monday on, an entry
    /// without a day every day; HH:MM:SS is taken, too. A single RATE, or off, is as --limit.
    #[arg(long, value_name = "TIMETABLE", value_parser = timetable, conflicts_with = "limit", hide_short_help = true,
          help_heading = heading::NETWORK)]
    bwlimit: Option<Timetable>,
}

fn timetable(text: &str) -> Result<Timetable, String> {
    Timetable::parse(text, units::rate)
}

/// The second of the week on this machine's wall, from Sunday 00:00 on.
fn second_of_week() -> u32 {
    let Some(t) = LocalTime::of(WallTime::now().secs) else { return 0 };
    ((u32::from(t.weekday) * 24 + u32::from(t.hour)) * 60 + u32::from(t.minute)) * 60 + u32::from(t.second)
}

impl BandwidthOptions {
    /// What changes the rate, if there is to be one.
    pub fn limiter(&self) -> Option<Limiter> {
        self.bwlimit.clone().map(|t| Limiter::new(t, Box::new(second_of_week)))
    }
    /// The rate at present; `limit` where there is no timetable.
    pub fn now(&self, limit: Option<Rate>) -> Option<Rate> {
        match self.limiter() {
            Some(l) => l.rate(),
            None => limit,
        }
    }
}
