//! What can be promised: arithmetic on classes, guarantees and deadlines, for policies that are read and for applications
//! that ask.
//!
//! Rates are bytes on the wire, as everywhere. Nothing here knows of flows or time but what it is given.

use super::Due;
use crate::platform::Class;
use base::{Rate, Span, Time};

/// A promise that cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Guarantees of classes come to more than what is there.
    #[error("the guarantees below {of} come to {sum}, and it may send {room}: lower them, or raise its cap")]
    Oversold {
        /// "the host", or the class they are below.
        of: String,
        /// What they come to.
        sum: Rate,
        /// What there is.
        room: Rate,
    },
    /// A guarantee exceeds what is left.
    #[error("{wanted} cannot be guaranteed: {left} is left to be promised")]
    Guarantee {
        /// What was asked for.
        wanted: Rate,
        /// What could be had.
        left: Rate,
    },
    /// A deadline cannot be kept, or not without breaking another.
    #[error("{} bytes cannot be there in time: ask for {}, or more", .bytes, Seconds(.earliest))]
    Deadline {
        /// What was to be sent.
        bytes: u64,
        /// In how long, from now, it could be; `None`: never at the rate that can be counted on.
        earliest: Option<Span>,
    },
}

/// A time for people.
struct Seconds<'a>(&'a Option<Span>);

impl core::fmt::Display for Seconds<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            // Rounded up: what is asked for then is enough.
            Some(s) => write!(f, "{:.3}s", s.as_micros().div_ceil(1_000) as f64 / 1e3 + 0.001),
            None => f.write_str("less: nothing can be counted on here"),
        }
    }
}

fn sum(rates: impl Iterator<Item = Rate>) -> Rate {
    Rate::from_bytes_per_sec(rates.map(Rate::bytes_per_sec).fold(0, u64::saturating_add))
}

fn less(a: Rate, b: Rate) -> Rate {
    Rate::from_bytes_per_sec(a.bytes_per_sec().saturating_sub(b.bytes_per_sec()))
}

/// What a class guarantees in all: its own, or what those below it come to, if that is more.
fn claims(classes: &[Class]) -> Vec<Rate> {
    let mut all: Vec<Rate> = classes.iter().map(|c| c.guarantee.unwrap_or(Rate::ZERO)).collect();
    for i in (0..classes.len()).rev() {
        let below = (i + 1..classes.len()).filter(|k| classes[*k].parent == Some(i)).map(|k| all[k]);
        all[i] = all[i].max(sum(below));
    }
    all
}

/// Whether the guarantees of classes can be given: at each of them, and at the host, those below come to no more than what
/// it is guaranteed, or where it is not, than what it may send.
///
/// # Errors
/// All that cannot.
pub fn guarantees(classes: &[Class], process_cap: Option<Rate>) -> Result<(), Vec<Refusal>> {
    let claims = claims(classes);
    let mut wrong = Vec::new();
    let check = |of: &str, parent: Option<usize>, room: Option<Rate>| {
        let below = (0..classes.len()).filter(|i| classes[*i].parent == parent);
        let all = sum(below.map(|i| claims[i]));
        let room = room.filter(|r| all > *r)?;
        Some(Refusal::Oversold { of: of.to_owned(), sum: all, room })
    };
    wrong.extend(check("the host", None, process_cap));
    for (i, c) in classes.iter().enumerate() {
        wrong.extend(check(&format!("class \"{}\"", c.name), Some(i), c.guarantee.or(c.cap)));
        if let Some((g, cap)) = c.guarantee.zip(c.cap).filter(|(g, cap)| g > cap) {
            wrong.push(Refusal::Oversold { of: format!("class \"{}\"", c.name), sum: g, room: cap });
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// What a class can count on when all others want as much as they may: its guarantee, or its share of what siblings of its
/// level have when those of higher levels, and all guarantees, have had theirs. `None` where nothing is known: no cap of
/// the host, and none of its own.
pub fn sure_rate(classes: &[Class], process_cap: Option<Rate>, class: usize) -> Option<Rate> {
    let c = classes.get(class)?;
    let above = match c.parent {
        Some(p) if p < class => sure_rate(classes, process_cap, p),
        Some(_) => None,
        None => process_cap,
    };
    let Some(room) = above else {
        // Nobody limits all of them together, so that nobody is in another's way here.
        return c.cap;
    };
    let claims = claims(classes);
    let siblings = || (0..classes.len()).filter(|i| classes[*i].parent == c.parent && *i != class);
    let own = claims[class];
    // Those of higher levels have all they may, or it is not known how much that is.
    let higher = siblings().filter(|i| classes[*i].level < c.level).map(|i| classes[i].cap.unwrap_or(room));
    let lower = siblings().filter(|i| classes[*i].level > c.level).map(|i| claims[i]);
    let taken = sum(higher.chain(lower)).min(room);
    let share = fair(
        less(room, taken),
        c,
        own,
        siblings().filter(|i| classes[*i].level == c.level).map(|i| (&classes[i], claims[i])),
    );
    let sure = own.max(share).min(room);
    Some(c.cap.map_or(sure, |cap| sure.min(cap)))
}

/// The share of a class by weights, of what siblings leave that are guaranteed more than their weight gives.
fn fair<'a>(room: Rate, c: &Class, own: Rate, rest: impl Iterator<Item = (&'a Class, Rate)>) -> Rate {
    let mut rest: Vec<_> = rest.collect();
    let mut room = room;
    loop {
        let weights: u64 = rest.iter().map(|(s, _)| u64::from(s.weight)).sum::<u64>() + u64::from(c.weight);
        let part = |weight: u32| room.scale(weight.into(), weights.max(1));
        if own >= part(c.weight) {
            return own;
        }
        let Some(i) = rest.iter().position(|(s, claim)| *claim > part(s.weight)) else {
            return part(c.weight);
        };
        room = less(room, rest.swap_remove(i).1);
    }
}

/// Whether one more guarantee can be given where `room` can be counted on (`None`: nobody knows, everything goes) and
/// `promised` is given already.
///
/// # Errors
/// [`Refusal::Guarantee`].
pub fn guarantee(room: Option<Rate>, promised: Rate, wanted: Rate) -> Result<(), Refusal> {
    let Some(room) = room else { return Ok(()) };
    let left = less(room, promised);
    if wanted <= left { Ok(()) } else { Err(Refusal::Guarantee { wanted, left }) }
}

/// Whether one more deadline can be kept where `rate` can be counted on and `promised` is promised already, when those with
/// the nearest deadline go first. All are kept exactly when until each deadline no more is due than what the rate carries
/// (Liu and Layland's bound for one machine, of work that is all there).
///
/// # Errors
/// [`Refusal::Deadline`] with the shortest time that would do, everything else kept.
pub fn deadline(rate: Rate, now: Time, promised: &[Due], wanted: Due) -> Result<(), Refusal> {
    let mut all = promised.to_vec();
    all.sort_by_key(|d| d.by);
    // What can be added before each of those promised, in bytes: the least room of it and all behind it.
    let carries = |by: Time| u128::from(rate.bytes_in(by.since(now)));
    let mut sums = Vec::with_capacity(all.len());
    let mut before: u128 = 0;
    for d in &all {
        before += u128::from(d.bytes);
        sums.push(before);
    }
    let bytes = u128::from(wanted.bytes);
    // Behind the last of those that have no room for it.
    let tight = (0..all.len()).rev().find(|i| sums[*i] + bytes > carries(all[*i].by));
    let first = tight.map_or(0, |i| i + 1);
    for i in first..=all.len() {
        let after = if i == 0 { 0 } else { sums[i - 1] };
        let needs = u64::try_from(after + bytes).unwrap_or(u64::MAX);
        if rate == Rate::ZERO {
            break;
        }
        let least = if i == 0 { now } else { all[i - 1].by.max(now) };
        let by = least.max(now + rate.time_for(needs) + Span::from_nanos(1));
        let fits = all.get(i).is_none_or(|next| by <= next.by);
        if fits {
            if by <= wanted.by {
                return Ok(());
            }
            return Err(Refusal::Deadline { bytes: wanted.bytes, earliest: Some(by.since(now)) });
        }
    }
    Err(Refusal::Deadline { bytes: wanted.bytes, earliest: None })
}

#[cfg(test)]
mod tests;
