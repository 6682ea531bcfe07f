//! Admission control: whether guarantees and deadlines can be kept, for policies that are read and for applications
//! that ask.
//!
//! Rates are bytes on the wire. The functions depend on nothing but their arguments.

use super::Due;
use crate::platform::Class;
use base::{Rate, Span, Time};

/// Why a guarantee or deadline cannot be granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The guarantees of classes exceed what is available.
    #[error("the guarantees below {of} come to {sum}, and it may send {room}: lower them, or raise its cap")]
    Oversold {
        /// "the host", or the parent class.
        of: String,
        /// The sum of the guarantees.
        sum: Rate,
        /// What is available.
        room: Rate,
    },
    /// A guarantee exceeds what is left.
    #[error("{wanted} cannot be guaranteed: {left} is left to be promised")]
    Guarantee {
        /// The guarantee requested.
        wanted: Rate,
        /// The largest that could be granted.
        left: Rate,
    },
    /// A deadline cannot be kept, or not without breaking another.
    #[error("{} bytes cannot be there in time: ask for {}, or more", .bytes, SecondsOrNever(.earliest))]
    Deadline {
        /// The bytes to be sent.
        bytes: u64,
        /// The shortest time from now in which they could be; `None`: never at the assured rate.
        earliest: Option<Span>,
    },
}

/// A time for people.
struct SecondsOrNever<'a>(&'a Option<Span>);

impl core::fmt::Display for SecondsOrNever<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            // Rounded up, so that a request for the printed time is granted.
            Some(s) => write!(f, "{:.3}s", s.as_micros().div_ceil(1_000) as f64 / 1e3 + 0.001),
            None => f.write_str("less: nothing can be counted on here"),
        }
    }
}

fn sum_rates(rates: impl Iterator<Item = Rate>) -> Rate {
    Rate::from_bytes_per_sec(rates.map(Rate::bytes_per_sec).fold(0, u64::saturating_add))
}

fn saturating_difference(a: Rate, b: Rate) -> Rate {
    Rate::from_bytes_per_sec(a.bytes_per_sec().saturating_sub(b.bytes_per_sec()))
}

/// The guarantee of each class, or the sum of those below it, if that is more.
fn guaranteed_totals(classes: &[Class]) -> Vec<Rate> {
    let mut all: Vec<Rate> = classes.iter().map(|c| c.guarantee.unwrap_or(Rate::ZERO)).collect();
    for i in (0..classes.len()).rev() {
        let below = (i + 1..classes.len()).filter(|k| classes[*k].parent == Some(i)).map(|k| all[k]);
        all[i] = all[i].max(sum_rates(below));
    }
    all
}

/// Checks that the guarantees of classes can be kept: below each class, and below the root, their sum must not exceed
/// the class's own guarantee or, without one, its cap.
///
/// # Errors
/// All that do not fit.
pub fn check_class_guarantees(classes: &[Class], process_cap: Option<Rate>) -> Result<(), Vec<Refusal>> {
    let claims = guaranteed_totals(classes);
    let mut wrong = Vec::new();
    let check = |of: &str, parent: Option<usize>, room: Option<Rate>| {
        let below = (0..classes.len()).filter(|i| classes[*i].parent == parent);
        let all = sum_rates(below.map(|i| claims[i]));
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

/// The rate that a class gets even if all others send as much as they may: its guarantee, or its share of what is
/// left of its level after higher levels and all guarantees. `None` if unknown, without a process cap and a cap of
/// its own.
pub fn assured_rate(classes: &[Class], process_cap: Option<Rate>, class: usize) -> Option<Rate> {
    let c = classes.get(class)?;
    let above = match c.parent {
        Some(p) if p < class => assured_rate(classes, process_cap, p),
        Some(_) => None,
        None => process_cap,
    };
    let Some(room) = above else {
        // Without a common limit the classes do not affect each other here.
        return c.cap;
    };
    let claims = guaranteed_totals(classes);
    let siblings = || (0..classes.len()).filter(|i| classes[*i].parent == c.parent && *i != class);
    let own = claims[class];
    // Higher levels use all they may, or it is not known how much that is.
    let higher = siblings().filter(|i| classes[*i].level < c.level).map(|i| classes[i].cap.unwrap_or(room));
    let lower = siblings().filter(|i| classes[*i].level > c.level).map(|i| claims[i]);
    let taken = sum_rates(higher.chain(lower)).min(room);
    let share = fair_share(
        saturating_difference(room, taken),
        c,
        own,
        siblings().filter(|i| classes[*i].level == c.level).map(|i| (&classes[i], claims[i])),
    );
    let sure = own.max(share).min(room);
    Some(c.cap.map_or(sure, |cap| sure.min(cap)))
}

/// The weighted share of a class in what is left by siblings whose guarantee exceeds their weighted share.
fn fair_share<'a>(room: Rate, c: &Class, own: Rate, rest: impl Iterator<Item = (&'a Class, Rate)>) -> Rate {
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
        room = saturating_difference(room, rest.swap_remove(i).1);
    }
}

/// Checks that one more guarantee can be granted where `room` is assured (`None`: unknown, everything is granted) and
/// `promised` is granted already.
///
/// # Errors
/// [`Refusal::Guarantee`].
pub fn admit_guarantee(room: Option<Rate>, promised: Rate, wanted: Rate) -> Result<(), Refusal> {
    let Some(room) = room else { return Ok(()) };
    let left = saturating_difference(room, promised);
    if wanted <= left { Ok(()) } else { Err(Refusal::Guarantee { wanted, left }) }
}

/// Checks that one more deadline can be kept at `rate`, with `promised` granted already and the earliest deadline
/// served first. All are kept exactly if no more bytes are due until any deadline than the rate carries (Liu and
/// Layland's bound for one machine and work that is all available).
///
/// # Errors
/// [`Refusal::Deadline`] with the shortest time that would do without breaking another.
pub fn admit_deadline(rate: Rate, now: Time, promised: &[Due], wanted: Due) -> Result<(), Refusal> {
    let mut all = promised.to_vec();
    all.sort_by_key(|d| d.by);
    // The bytes that can be added before each granted deadline: the minimum of its slack and that of all later ones.
    let carries = |by: Time| u128::from(rate.bytes_in(by.since(now)));
    let mut sums = Vec::with_capacity(all.len());
    let mut before: u128 = 0;
    for d in &all {
        before += u128::from(d.bytes);
        sums.push(before);
    }
    let bytes = u128::from(wanted.bytes);
    // After the last one that has no slack for it.
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
