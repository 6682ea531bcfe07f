//! Numbers with units, read and written without rounding.

use crate::Probability;
use base::{Rate, Span};

/// Units, the largest first, with their size in the smallest.
type Units = [(&'static str, u64)];

const RATES: &Units =
    &[("tbit", 1_000_000_000_000), ("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000), ("bit", 1)];
const SPANS: &Units = &[("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
const BYTES: &Units = &[("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

/// The decimal number `text` times `scale`, rounded down; `None` when it is no plain decimal or does not fit.
pub(super) fn decimal(text: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    // 18 digits behind the point keep `digits * scale` within 128 bits.
    if whole.is_empty()
        || fraction.len() > 18
        || !(whole.bytes().chain(fraction.bytes())).all(|b| b.is_ascii_digit())
    {
        return None;
    }
    let scale = u128::from(scale);
    let whole = u128::from(whole.parse::<u64>().ok()?) * scale;
    let digits = if fraction.is_empty() { 0 } else { u128::from(fraction.parse::<u64>().ok()?) };
    let fraction = digits * scale / 10u128.pow(fraction.len() as u32);
    u64::try_from(whole + fraction).ok()
}

fn parse(text: &str, units: &Units) -> Option<u64> {
    let split = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(split);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    decimal(number, *scale)
}

/// A whole number of the largest unit in which it is whole.
fn show(n: u64, units: &Units) -> String {
    let whole = units.iter().find(|(_, scale)| n > 0 && n.is_multiple_of(*scale));
    let (name, scale) = whole.or(units.last()).copied().unwrap_or(("", 1));
    format!("{}{name}", n / scale)
}

/// A rate, or infinity (`Some(None)`). Bits beyond whole bytes per second are refused, not rounded away.
pub(super) fn parse_rate(text: &str) -> Option<Option<Rate>> {
    if text == "unlimited" {
        return Some(None);
    }
    let bits = parse(text, RATES)?;
    bits.is_multiple_of(8).then_some(Some(Rate::from_bits_per_sec(bits)))
}
pub(super) fn show_rate(rate: Option<Rate>) -> String {
    rate.map_or("unlimited".to_owned(), |r| show(r.bits_per_sec(), RATES))
}
pub(super) fn parse_span(text: &str) -> Option<Span> {
    parse(text, SPANS).map(Span::from_nanos)
}
pub(super) fn show_span(span: Span) -> String {
    show(span.as_nanos(), SPANS)
}
pub(super) fn parse_bytes(text: &str) -> Option<u64> {
    parse(text, BYTES)
}
pub(super) fn show_bytes(bytes: u64) -> String {
    show(bytes, BYTES)
}

/// A percentage. The point is moved in the text, so that `0.1%` is the number nearest to 0.001.
pub(super) fn parse_probability(text: &str) -> Option<Probability> {
    let number = text.strip_suffix('%')?;
    // No sign, no `inf`, no `nan`.
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (mantissa, exponent) = number.split_once('e').unwrap_or((number, "0"));
    let exponent = exponent.parse::<i32>().ok()?.checked_sub(2)?;
    Probability::new(format!("{mantissa}e{exponent}").parse().ok()?)
}

/// The percentage, in such a form that reading it gives the same number again.
pub(super) fn show_probability(p: Probability) -> String {
    let shortest = format!("{:e}", p.get());
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent = exponent.parse::<i32>().unwrap_or(0) + 2;
    let scientific = format!("{mantissa}e{exponent}");
    let plain = format!("{}%", scientific.parse::<f64>().unwrap_or(f64::NAN));
    if plain.len() <= 24 && parse_probability(&plain) == Some(p) { plain } else { format!("{scientific}%") }
}
