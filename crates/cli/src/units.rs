//! Rates, sizes and times as users write them.

use base::{Rate, Span};

/// Reads a number with a unit out of `units` (lower case); the unit may be left out when `units` has an empty one.
fn number(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim().to_ascii_lowercase();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let factor = units.iter().find(|(u, _)| *u == unit.trim()).map(|(_, f)| *f)?;
    let n: f64 = digits.parse().ok()?;
    let value = n * factor;
    (value.is_finite() && value >= 0.0 && value < u64::MAX as f64).then_some(value)
}

/// Bits per second, as `500mbit`, `1.5gbit`, `500M`; or bytes per second, as `20MB/s`, `64MiB/s`.
pub fn rate(text: &str) -> Result<Rate, String> {
    const BITS: &[(&str, f64)] = &[
        ("", 1.0),
        ("bit", 1.0),
        ("k", 1e3),
        ("kbit", 1e3),
        ("m", 1e6),
        ("mbit", 1e6),
        ("g", 1e9),
        ("gbit", 1e9),
        ("t", 1e12),
        ("tbit", 1e12),
    ];
    let lower = text.trim().to_ascii_lowercase();
    let per_second = lower.strip_suffix("/s").or(lower.strip_suffix("ps")).unwrap_or(&lower);
    let bytes = match number(per_second, BITS) {
        Some(bits) => Some(bits / 8.0),
        None if per_second != lower => number(per_second, SIZES),
        None => None,
    };
    bytes
        .filter(|b| *b >= 1.0)
        .map(|b| Rate::from_bytes_per_sec(b as u64))
        .ok_or_else(|| "write bits per second such as 500mbit or 1.5gbit, or bytes such as 60MB/s".to_owned())
}

const SIZES: &[(&str, f64)] = &[
    ("", 1.0),
    ("b", 1.0),
    ("k", 1024.0),
    ("kib", 1024.0),
    ("kb", 1e3),
    ("m", 1048576.0),
    ("mib", 1048576.0),
    ("mb", 1e6),
    ("g", 1073741824.0),
    ("gib", 1073741824.0),
    ("gb", 1e9),
    ("t", 1099511627776.0),
    ("tib", 1099511627776.0),
    ("tb", 1e12),
];

/// Bytes, as `65536`, `64K`, `64KiB`, `1GiB` or `1GB`.
pub fn size(text: &str) -> Result<u64, String> {
    number(text, SIZES).map(|b| b as u64).ok_or_else(|| "write a size such as 64KiB, 1GiB or 1GB".to_owned())
}

/// A time, as `70ms`, `1.5s`, `2m`, `1d`, or seconds without a unit.
pub fn span(text: &str) -> Result<Span, String> {
    const TIMES: &[(&str, f64)] = &[
        ("", 1.0),
        ("s", 1.0),
        ("ms", 1e-3),
        ("us", 1e-6),
        ("ns", 1e-9),
        ("m", 60.0),
        ("min", 60.0),
        ("h", 3600.0),
        ("d", 86_400.0),
    ];
    number(text, TIMES)
        .map(Span::from_secs_f64)
        .ok_or_else(|| "write a time such as 10s, 70ms or 2m".to_owned())
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
        .ok_or_else(|| "write a share from 0% to 100%, such as 0.1%".to_owned())
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
    fn rates_in_bits_and_bytes() {
        for (text, bits) in [
            ("500mbit", 500_000_000),
            ("1.5gbit", 1_500_000_000),
            ("1G", 1_000_000_000),
            ("900M", 900_000_000),
            ("60MB/s", 480_000_000),
            ("1MiB/s", 8 << 20),
            ("100Mbit/s", 100_000_000),
            ("400gbit", 400_000_000_000),
        ] {
            assert_eq!(rate(text).map(Rate::bits_per_sec), Ok(bits), "{text}");
        }
        for bad in ["", "fast", "-5mbit", "0", "1e30gbit", "5 furlongs", "1..5g", "nan"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_times_and_shares() {
        assert_eq!(size("64K"), Ok(65_536));
        assert_eq!(size("1GB"), Ok(1_000_000_000));
        assert_eq!(size("1.5 GiB"), Ok(3 << 29));
        assert_eq!(size("17"), Ok(17));
        assert!(size("x").is_err() && size("99999999999tib").is_err());
        assert_eq!(span("70ms"), Ok(Span::from_millis(70)));
        assert_eq!(span("2m"), Ok(Span::from_secs(120)));
        assert_eq!(span("3"), Ok(Span::from_secs(3)));
        assert!(span("soon").is_err());
        assert_eq!(share("0.1%"), Ok(0.001));
        assert_eq!(share("0.5"), Ok(0.5));
        assert!(share("101%").is_err() && share("-1%").is_err());
    }

    #[test]
    fn bytes_for_people() {
        assert_eq!(show_bytes(1023), "1023 B");
        assert_eq!(show_bytes(1 << 30), "1.00 GiB");
        assert_eq!(show_bytes(u64::MAX), "16.00 EiB");
    }
}
