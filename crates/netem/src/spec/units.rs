//! Numbers with units, parsed and printed without rounding.

use crate::Probability;
use base::{Rate, Span, units};

pub(super) use base::units::{decimal, show_size as show_bytes, show_time as show_span};

/// Parses a rate or `unlimited` (`Some(None)`). Descriptions need a unit with every number: `delay=35` would be
/// 35 s.
pub(super) fn parse_rate(text: &str) -> Option<Option<Rate>> {
    if text == "unlimited" {
        return Some(None);
    }
    units::has_unit(text).then(|| units::rate(text).ok()).flatten().map(Some)
}
pub(super) fn show_rate(rate: Option<Rate>) -> String {
    rate.map_or("unlimited".to_owned(), units::show_rate)
}
pub(super) fn parse_span(text: &str) -> Option<Span> {
    units::has_unit(text).then(|| units::time(text).ok()).flatten()
}
pub(super) fn parse_bytes(text: &str) -> Option<u64> {
    units::has_unit(text).then(|| units::size(text).ok()).flatten()
}

/// Parses the bytes of a packet, for which no unit is needed.
pub(super) fn parse_packet(text: &str) -> Option<u64> {
    units::size(text).ok()
}

/// Parses a percentage. The decimal point is moved in the text, so that `0.1%` is the number nearest to 0.001.
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

/// Prints a percentage that parses to the same number.
pub(super) fn show_probability(p: Probability) -> String {
    let shortest = format!("{:e}", p.get());
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent = exponent.parse::<i32>().unwrap_or(0) + 2;
    let scientific = format!("{mantissa}e{exponent}");
    let plain = format!("{}%", scientific.parse::<f64>().unwrap_or(f64::NAN));
    if plain.len() <= 24 && parse_probability(&plain) == Some(p) { plain } else { format!("{scientific}%") }
}
