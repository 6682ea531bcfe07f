//! Parses and formats rates, times and sizes: the one place for options, policies, parameters of algorithms, plans
//! and descriptions of links. The table for users is in `docs/guides/move-files.md`, and a test compares.

use crate::{Rate, Span};
use core::fmt;

/// Characters of a refused value that an error repeats.
const MAX_SHOWN: usize = 40;
/// Bytes of a text that is looked at: a longer one is no number with a unit.
const MAX_TEXT: usize = 80;

/// Units and their size in the smallest of them; an empty name is a bare number.
type Units = [(&'static str, u128)];

/// Multiples of a bit per second.
const BITS: &Units = &[
    ("", 1),
    ("bit", 1),
    ("k", 1_000),
    ("kbit", 1_000),
    ("m", 1_000_000),
    ("mbit", 1_000_000),
    ("g", 1_000_000_000),
    ("gbit", 1_000_000_000),
    ("t", 1_000_000_000_000),
    ("tbit", 1_000_000_000_000),
];
/// In nanoseconds.
const TIMES: &Units = &[
    ("", 1_000_000_000),
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];
/// In bytes. As in rsync, `K` and `KiB` are 1024 and `KB` is 1000.
const SIZES: &Units = &[
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
    ("p", 1 << 50),
    ("pib", 1 << 50),
    ("pb", 1_000_000_000_000_000),
    ("e", 1 << 60),
    ("eib", 1 << 60),
    ("eb", 1_000_000_000_000_000_000),
];

/// What a text was to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// Data in a time.
    Rate,
    /// A length of time.
    Time,
    /// An amount of data.
    Size,
}

impl Quantity {
    /// What can be written, for help and errors.
    pub const fn forms(self) -> &'static str {
        match self {
            Quantity::Rate => {
                "bits per second such as 20mbit, 2.5gbit or 20M (k, M, G, T are powers of 1000), or bytes per second such as 60MB/s"
            }
            Quantity::Time => "a time such as 10ms, 1.5s, 2min, 1h or 100d",
            Quantity::Size => "a size such as 64KiB, 2G (K, M, G, T are powers of 1024) or 1MB (1000)",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Quantity::Rate => "rate",
            Quantity::Time => "time",
            Quantity::Size => "size",
        }
    }
}

/// Why a text is not taken for a rate, time or size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    quantity: Quantity,
    /// Escaped and cut.
    value: String,
    why: Why,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Why {
    /// It is no number with a unit.
    Form,
    /// It could mean bits or bytes.
    BitsOrBytes,
    /// It is none of what is allowed, from and to.
    Range(String, String),
}

impl UnitError {
    fn new(quantity: Quantity, text: &str, why: Why) -> UnitError {
        let cut: String = text.trim().chars().take(MAX_SHOWN).collect();
        UnitError { quantity, value: crate::text::line(&cut).into_owned(), why }
    }
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, name, forms) = (&self.value, self.quantity.name(), self.quantity.forms());
        match &self.why {
            Why::Form => write!(f, "cannot read `{value}` as a {name}; write {forms}"),
            Why::BitsOrBytes => write!(
                f,
                "cannot read `{value}` as a {name}: it could mean bits or bytes; write Mbit/s for bits per second, MB/s for bytes"
            ),
            Why::Range(least, most) => {
                write!(f, "the {name} `{value}` is out of range; give one from {least} to {most}: {forms}")
            }
        }
    }
}

impl core::error::Error for UnitError {}

/// A number and the unit behind it, lower case; `None` where no number begins the text.
fn split(text: &str) -> Option<(&str, &str)> {
    let text = text.trim();
    if text.len() > MAX_TEXT || !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    Some((number, unit.trim()))
}

/// Whether a unit stands behind the number: a bare one is bits per second, seconds or bytes.
pub fn has_unit(text: &str) -> bool {
    split(text).is_some_and(|(_, unit)| !unit.is_empty())
}

/// The decimal number `text` times `scale`, rounded down; `None` when it is no plain decimal or does not fit.
pub fn decimal(text: &str, scale: u64) -> Option<u64> {
    u64::try_from(scaled(text, u128::from(scale))?).ok()
}

fn scaled(text: &str, scale: u128) -> Option<u128> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    // 18 digits behind the point keep `digits * scale` within 128 bits: no scale has more than 60.
    if whole.is_empty()
        || fraction.len() > 18
        || !(whole.bytes().chain(fraction.bytes())).all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let whole = u128::from(whole.parse::<u64>().ok()?) * scale;
    let digits = if fraction.is_empty() { 0 } else { u128::from(fraction.parse::<u64>().ok()?) };
    Some(whole + digits * scale / 10u128.pow(fraction.len() as u32))
}

fn amount(number: &str, unit: &str, units: &Units) -> Option<u128> {
    let unit = unit.to_lowercase();
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    scaled(number, *scale)
}

/// Bytes per second. `B` is a byte and `b` a bit, wherever both could be meant; else letters are small or capital.
fn bytes_per_second(text: &str) -> Result<u128, Why> {
    let (number, unit) = split(text).ok_or(Why::Form)?;
    let per_second =
        ["/s", "/S", "ps", "PS", "Ps"].iter().find_map(|end| Some((unit.strip_suffix(end)?, *end)));
    let Some((amount_of, end)) = per_second else {
        return amount(number, unit, BITS).map(|bits| bits / 8).ok_or(Why::Form);
    };
    // `M/s` was always read as Mbit/s; `Mps` is nothing.
    if (end.starts_with('/') || amount_of.to_lowercase().ends_with("bit"))
        && let Some(bits) = amount(number, amount_of, BITS)
    {
        return Ok(bits / 8);
    }
    let Some(multiple) = amount_of.strip_suffix(['b', 'B']) else { return Err(Why::Form) };
    let bits = amount(number, multiple, BITS);
    match (amount_of.ends_with('B'), end) {
        // `KiB` is bytes however it is written.
        _ if multiple.ends_with(['i', 'I']) => amount(number, amount_of, SIZES).ok_or(Why::Form),
        // 100Mbps, as networks are sold; MBPS tells nothing.
        (false, "ps") => bits.map(|b| b / 8).ok_or(Why::Form),
        (true, "/s" | "ps") => amount(number, amount_of, SIZES).ok_or(Why::Form),
        _ if bits.is_some() => Err(Why::BitsOrBytes),
        _ => Err(Why::Form),
    }
}

/// Reads a rate: bits per second as `20mbit`, `2.5 Gbit/s`, `20M` or `20000000`, or bytes per second as `60MB/s`. Rounded down
/// to whole bytes per second.
///
/// # Errors
/// What was read, and what can be written.
pub fn rate(text: &str) -> Result<Rate, UnitError> {
    let error = |why| UnitError::new(Quantity::Rate, text, why);
    let bytes = bytes_per_second(text).map_err(error)?;
    let most = || error(Why::Range(show_rate(Rate::ZERO), show_rate(Rate::MAX)));
    u64::try_from(bytes).map(Rate::from_bytes_per_sec).map_err(|_| most())
}

/// Reads a time: `70ms`, `1.5s`, `2min`, `1h`, `100d`, or seconds without a unit.
///
/// # Errors
/// What was read, and what can be written.
pub fn time(text: &str) -> Result<Span, UnitError> {
    read(text, Quantity::Time, TIMES, &|n| show_bound(Span::from_nanos(n))).map(Span::from_nanos)
}

/// Reads a size in bytes: `65536`, `64K`, `64KiB`, `1GiB` or `1GB`.
///
/// # Errors
/// What was read, and what can be written.
pub fn size(text: &str) -> Result<u64, UnitError> {
    read(text, Quantity::Size, SIZES, &show_size)
}

fn read(
    text: &str,
    quantity: Quantity,
    units: &Units,
    show: &dyn Fn(u64) -> String,
) -> Result<u64, UnitError> {
    let error = |why| UnitError::new(quantity, text, why);
    let (number, unit) = split(text).ok_or_else(|| error(Why::Form))?;
    let n = amount(number, unit, units).ok_or_else(|| error(Why::Form))?;
    u64::try_from(n).map_err(|_| error(Why::Range(show(0), show(u64::MAX))))
}

/// The same, within bounds.
///
/// # Errors
/// As of [`rate`]; of one out of range, the range.
pub fn rate_within(text: &str, least: Rate, most: Rate) -> Result<Rate, UnitError> {
    let range = || UnitError::new(Quantity::Rate, text, Why::Range(show_rate(least), show_rate(most)));
    rate(text).and_then(|r| if (least..=most).contains(&r) { Ok(r) } else { Err(range()) })
}

/// The same, within bounds.
///
/// # Errors
/// As of [`time`]; of one out of range, the range.
pub fn time_within(text: &str, least: Span, most: Span) -> Result<Span, UnitError> {
    let range = || UnitError::new(Quantity::Time, text, Why::Range(show_bound(least), show_bound(most)));
    time(text).and_then(|t| if (least..=most).contains(&t) { Ok(t) } else { Err(range()) })
}

/// A whole number of the largest unit in which it is whole.
fn show(n: u64, units: &[(&str, u64)]) -> String {
    let whole = units.iter().find(|(_, scale)| n > 0 && n.is_multiple_of(*scale));
    let (name, scale) = whole.or(units.last()).copied().unwrap_or(("", 1));
    format!("{}{name}", n / scale)
}

/// A rate, exactly, in the form in which [`rate`] reads the same: `500mbit`. Beyond 18 Ebit/s, which no 64 bits hold, bytes.
pub fn show_rate(rate: Rate) -> String {
    const UNITS: &[(&str, u64)] = &[
        ("tbit", 1_000_000_000_000),
        ("gbit", 1_000_000_000),
        ("mbit", 1_000_000),
        ("kbit", 1_000),
        ("bit", 1),
    ];
    match rate.bytes_per_sec().checked_mul(8) {
        Some(bits) => show(bits, UNITS),
        None => format!("{}B/s", rate.bytes_per_sec()),
    }
}

/// A time, exactly, in the form in which [`time`] reads the same: `70ms`.
pub fn show_time(time: Span) -> String {
    show(time.as_nanos(), &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)])
}

/// A bound of times, for people: 400d rather than 34560000s.
fn show_bound(time: Span) -> String {
    let s = time.as_nanos() / 1_000_000_000;
    let whole = [("d", 86_400), ("h", 3_600), ("min", 60)]
        .into_iter()
        .find(|(_, n)| s >= 2 * n && s.is_multiple_of(*n));
    match whole {
        Some((unit, n)) if s * 1_000_000_000 == time.as_nanos() => format!("{}{unit}", s / n),
        _ if time == Span::MAX => format!("{}d", s / 86_400),
        _ => show_time(time),
    }
}

/// A size, exactly, in the form in which [`size`] reads the same: `64KiB`.
pub fn show_size(bytes: u64) -> String {
    show(bytes, &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)])
}

#[cfg(test)]
mod tests;
