//! Parses rates, sizes and times of options, with [`base::units`].

use base::{Rate, Span, units};
use std::ops::RangeInclusive;

/// What an option takes for a rate: from a byte per second to 100 Tbit/s.
const RATES: RangeInclusive<Rate> = Rate::from_bits_per_sec(8)..=Rate::from_bits_per_sec(100_000_000_000_000);

/// Bits per second, as `500mbit`, `1.5gbit`, `500M`; or bytes per second, as `20MB/s`, `64MiB/s`.
pub fn rate(text: &str) -> Result<Rate, String> {
    units::rate_within(text, *RATES.start(), *RATES.end()).map_err(|e| e.to_string())
}

/// Bytes, as `65536`, `64K`, `64KiB`, `1GiB` or `1GB`.
pub fn size(text: &str) -> Result<u64, String> {
    units::size(text).map_err(|e| e.to_string())
}

/// A time, as `70ms`, `1.5s`, `2min`, `1d`, or seconds without a unit.
pub fn span(text: &str) -> Result<Span, String> {
    units::time(text).map_err(|e| e.to_string())
}

/// A time to wait: from 1 ms to a day.
pub fn timeout(text: &str) -> Result<Span, String> {
    units::time_within(text, Span::from_millis(1), Span::from_secs(86_400)).map_err(|e| e.to_string())
}

/// How long a token can be used: 400 days at most. What is needed longer should be a listed key.
pub fn lifetime(text: &str) -> Result<Span, String> {
    units::time_within(text, Span::from_secs(1), Span::from_secs(400 * 86_400)).map_err(|e| e.to_string())
}

/// Bytes of an IP packet.
pub fn packet(text: &str) -> Result<u32, String> {
    let fits = |n: u64| u32::try_from(n).ok().filter(|n| (1228..=65_535).contains(n));
    fits(size(text)?).ok_or_else(|| format!("{text} is out of range; try 1228 to 65535 bytes"))
}

/// A share, as `0.1%` or `0.001`.
pub fn share(text: &str) -> Result<f64, String> {
    let t = text.trim();
    let value = match t.strip_suffix('%') {
        Some(p) => p.trim().parse::<f64>().map(|p| p / 100.0),
        None => t.parse(),
    };
    value
        .ok()
        .filter(|v| (0.0..=1.0).contains(v))
        .ok_or_else(|| "not a share; try 0% to 100%, such as 0.1%".to_owned())
}

/// Bytes for people.
pub fn show_bytes(n: u64) -> String {
    const NAMES: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut name = 0;
    while value >= 1024.0 && name + 1 < NAMES.len() {
        value /= 1024.0;
        name += 1;
    }
    format!("{value:.2} {}", NAMES[name])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_errors_name_the_range() {
        assert_eq!(rate("20M"), Ok(Rate::from_mbit(20)));
        assert!(rate("0").unwrap_err().contains("from 8bit to 100tbit"));
        assert_eq!(lifetime("100d"), Ok(Span::from_secs(8_640_000)));
        assert_eq!(lifetime("400d"), Ok(Span::from_secs(34_560_000)));
        for bad in ["401d", "0", "0.5s"] {
            assert!(lifetime(bad).unwrap_err().contains("from 1s to 400d"), "{bad}");
        }
        assert!(timeout("0s").is_err() && timeout("3s").is_ok());
        assert_eq!(size("64K"), Ok(65_536));
        assert!(span("soon").is_err());
    }

    #[test]
    fn shares_are_percentages_or_fractions() {
        assert_eq!(share("0.1%"), Ok(0.001));
        assert_eq!(share("0.5"), Ok(0.5));
        assert!(share("101%").is_err() && share("-1%").is_err());
    }

    /// What a summary says of an amount can be given to an option.
    #[test]
    fn printed_sizes_parse_to_the_same_number() {
        for n in [0, 1, 1023, 1024, 1 << 20, 5 << 30, 3 << 50, 1 << 62] {
            assert_eq!(size(&show_bytes(n)), Ok(n));
        }
    }

    #[test]
    fn sizes_are_printed_with_binary_units() {
        assert_eq!(show_bytes(1023), "1023 B");
        assert_eq!(show_bytes(1 << 30), "1.00 GiB");
        assert_eq!(show_bytes(u64::MAX), "16.00 EiB");
    }
}
