//! Parses and prints rates, prefixes, ports and code points as administrators write them.

use base::Rate;
use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Lowest rate that a policy can name: 8 kbit/s, a full packet in 1.5 seconds.
pub const MIN_RATE: Rate = Rate::from_bits_per_sec(8_000);
/// Highest rate that a policy can name: 100 Tbit/s.
pub const MAX_RATE: Rate = Rate::from_bits_per_sec(100_000_000_000_000);

const SCALES: [(char, u64); 4] =
    [('t', 1_000_000_000_000), ('g', 1_000_000_000), ('m', 1_000_000), ('k', 1_000)];

/// Parses a rate as [`base::units::rate_within`] does: `300M`, `2.5Gbit/s`, `60MB/s`, from [`MIN_RATE`] to
/// [`MAX_RATE`].
pub(crate) fn rate(text: &str) -> Result<Rate, base::units::UnitError> {
    base::units::rate_within(text, MIN_RATE, MAX_RATE)
}

/// Prints a rate in a form that `rate` parses to the same value.
pub fn show_rate(rate: Rate) -> String {
    let bits = rate.bits_per_sec();
    for (letter, scale) in SCALES {
        // At most three decimals, and only where they are exact.
        if bits >= scale && bits.is_multiple_of((scale / 1_000).max(1)) {
            let (whole, part) = (bits / scale, bits % scale * 1_000 / scale);
            let decimals = format!("{part:03}");
            let decimals = decimals.trim_end_matches('0');
            let point = if decimals.is_empty() { "" } else { "." };
            let letter = if letter == 'k' { 'k' } else { letter.to_ascii_uppercase() };
            return format!("{whole}{point}{decimals}{letter}");
        }
    }
    bits.to_string()
}

/// An address prefix: `10.0.0.0/8`, `fd00::/8`; a bare address is a prefix of full length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// Why a text is not a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadPrefix {
    /// Neither an address nor an address and a length after a slash.
    Form,
    /// The length is greater than the address has bits.
    Length {
        /// The greatest length allowed.
        max: u8,
    },
    /// Bits after the length are set; the field is the prefix that was probably meant.
    HostBits(Prefix),
}

impl Prefix {
    pub(crate) fn parse(text: &str) -> Result<Prefix, BadPrefix> {
        let (address, length) = match text.trim().split_once('/') {
            Some((a, l)) => (a, Some(l)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| BadPrefix::Form)?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => max,
            Some(l) => l.parse().ok().filter(|n| *n <= max).ok_or(BadPrefix::Length { max })?,
        };
        let given = Prefix { address, length };
        let network = given.network();
        if network == given { Ok(given) } else { Err(BadPrefix::HostBits(network)) }
    }

    /// The prefix with all bits after its length cleared.
    fn network(self) -> Prefix {
        let address = match self.address {
            IpAddr::V4(a) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(self.length)).unwrap_or(0);
                Ipv4Addr::from_bits(a.to_bits() & mask).into()
            }
            IpAddr::V6(a) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.length)).unwrap_or(0);
                Ipv6Addr::from_bits(a.to_bits() & mask).into()
            }
        };
        Prefix { address, length: self.length }
    }

    /// The first and last of its addresses, as numbers of [`address_to_u128`].
    pub(crate) fn range(self) -> (u128, u128) {
        let bits = if self.address.is_ipv4() { 32 } else { 128 };
        let first = address_to_u128(self.address);
        let size = u128::MAX.checked_shr(128 - (bits - u32::from(self.length))).unwrap_or(0);
        (first, first | size)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max = if self.address.is_ipv4() { 32 } else { 128 };
        if self.length == max {
            write!(f, "{}", self.address)
        } else {
            write!(f, "{}/{}", self.address, self.length)
        }
    }
}

/// An address as a number; IPv4 addresses are mapped into IPv6 (RFC 4291, section 2.5.5.2), so that both forms of
/// an address are equal.
pub(crate) fn address_to_u128(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => a.to_ipv6_mapped().to_bits(),
        IpAddr::V6(a) => a.to_bits(),
    }
}

/// Ports from the first to the last: `443`, `5000-5010`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    /// The first.
    pub first: u16,
    /// The last, not below the first.
    pub last: u16,
}

/// Parses one number, or two with a dash between them of which the second is not below the first.
fn range<T: std::str::FromStr + PartialOrd>(text: &str) -> Option<(T, T)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last).then_some((first, last))
}

fn show_range<T: fmt::Display + PartialEq>(f: &mut fmt::Formatter<'_>, first: T, last: T) -> fmt::Result {
    if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
}

impl Ports {
    pub(crate) fn parse(text: &str) -> Option<Ports> {
        let (first, last) = range(text)?;
        (1 <= first).then_some(Ports { first, last })
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_range(f, self.first, self.last)
    }
}

/// Priorities of sockets (`SO_PRIORITY`) from the first to the last: `6`, `4-6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Priorities {
    /// The first.
    pub first: u32,
    /// The last, not below the first.
    pub last: u32,
}

impl Priorities {
    pub(crate) fn parse(text: &str) -> Option<Priorities> {
        let (first, last) = range(text)?;
        Some(Priorities { first, last })
    }
}

impl fmt::Display for Priorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show_range(f, self.first, self.last)
    }
}

/// Named code points other than the class selectors (RFC 2474) and assured forwarding (RFC 2597).
const DSCPS: &[(&str, u8)] = &[
    ("DF", 0),           // RFC 2474, section 4.1
    ("BE", 0),           // what DF is often called
    ("LE", 1),           // RFC 8622
    ("VOICE-ADMIT", 44), // RFC 5865
    ("EF", 46),          // RFC 3246
];

/// The service classes of RFC 4594 (figure 3) and their code points.
const SERVICE_CLASSES: &[(&str, &[u8])] = &[
    ("network-control", &[48]),
    ("telephony", &[46]),
    ("signaling", &[40]),
    ("multimedia-conferencing", &[34, 36, 38]),
    ("real-time-interactive", &[32]),
    ("multimedia-streaming", &[26, 28, 30]),
    ("broadcast-video", &[24]),
    ("low-latency-data", &[18, 20, 22]),
    ("oam", &[16]),
    ("high-throughput-data", &[10, 12, 14]),
    ("standard", &[0]),
    ("low-priority-data", &[8]),
];

/// Parses code points by number (0 to 63), name (`EF`, `CS1`, `AF11`) or service class of RFC 4594 (`telephony`).
pub fn dscp(text: &str) -> Option<Vec<u8>> {
    let text = text.trim();
    if let Ok(n) = text.parse::<u8>() {
        return (n < 64).then(|| vec![n]);
    }
    if let Some((_, points)) = SERVICE_CLASSES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        return Some(points.to_vec());
    }
    (0..64).find(|n| dscp_names(*n).any(|name| name.eq_ignore_ascii_case(text))).map(|n| vec![n])
}

/// The name of a code point, or its number.
pub fn show_dscp(n: u8) -> String {
    dscp_names(n).next().unwrap_or_else(|| n.to_string())
}

fn dscp_names(n: u8) -> impl Iterator<Item = String> {
    let named = DSCPS.iter().filter(move |(_, d)| *d == n).map(|(name, _)| (*name).to_owned());
    // AFxy is 8x + 2y with x of 1 to 4 and y of 1 to 3 (RFC 2597, section 6); CSx is 8x (RFC 2474, section 4.2.2).
    let assured = ((8..40).contains(&n) && n.is_multiple_of(2) && !n.is_multiple_of(8))
        .then(|| format!("AF{}{}", n / 8, n % 8 / 2));
    let selector = (n.is_multiple_of(8) && n < 64).then(|| format!("CS{}", n / 8));
    named.chain(assured).chain(selector)
}

/// All names of code points, for suggestions.
pub(crate) fn dscp_hints() -> Vec<String> {
    let names = (0..64).flat_map(dscp_names);
    names.chain(SERVICE_CLASSES.iter().map(|(name, _)| (*name).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_parse_exactly_and_print_as_they_parse() {
        for (text, bits, shown) in [
            ("300M", 300_000_000, "300M"),
            ("2.5G", 2_500_000_000, "2.5G"),
            ("2.5 Gbit/s", 2_500_000_000, "2.5G"),
            ("500mbit", 500_000_000, "500M"),
            ("60MB/s", 480_000_000, "480M"),
            ("100Tbps", 100_000_000_000_000, "100T"),
            ("64000", 64_000, "64k"),
            ("8k", 8_000, "8k"),
            ("12345678.4k", 12_345_678_400, "12345678.4k"),
        ] {
            let r = rate(text).unwrap();
            assert_eq!((r.bits_per_sec(), show_rate(r).as_str()), (bits, shown), "{text}");
            assert_eq!(rate(&show_rate(r)), Ok(r), "{text}");
        }
        for bad in ["", "fast", "-3M", "1..2G", "7.9k", "101T", "1e9", "60mb/s", "9999999999999999", ".5G"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn prefix_covers_its_range_of_addresses() {
        let p = |t: &str| Prefix::parse(t);
        let v4 = |t: &str| address_to_u128(t.parse().unwrap());
        assert_eq!(p("10.0.0.0/8").unwrap().range(), (v4("10.0.0.0"), v4("10.255.255.255")));
        assert_eq!(p("10.1.2.3").unwrap().range(), (v4("10.1.2.3"), v4("10.1.2.3")));
        assert_eq!(p("0.0.0.0/0").unwrap().range(), (v4("0.0.0.0"), v4("255.255.255.255")));
        assert_eq!(p("::/0").unwrap().range(), (0, u128::MAX));
        assert_eq!(
            p("fd00::/8").unwrap().range(),
            (v4("fd00::"), v4("fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"))
        );
        assert_eq!(v4("::ffff:10.1.2.3"), v4("10.1.2.3"));
        assert_eq!(p("10.1.0.0/8"), Err(BadPrefix::HostBits(p("10.0.0.0/8").unwrap())));
        assert_eq!(p("10.0.0.0/33"), Err(BadPrefix::Length { max: 32 }));
        for bad in ["", "10.0.0/8", "host", "10.0.0.0/", "fd00::/8/9"] {
            assert!(p(bad).is_err(), "{bad}");
        }
        assert_eq!(p("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(p("::1/128").unwrap().to_string(), "::1");
    }

    #[test]
    fn ports_and_code_points_are_parsed() {
        assert_eq!(Ports::parse("5000-5010"), Some(Ports { first: 5000, last: 5010 }));
        assert_eq!(Ports::parse("443").map(|p| p.to_string()), Some("443".to_owned()));
        for bad in ["0", "70000", "9-1", "x", "1-2-3", ""] {
            assert_eq!(Ports::parse(bad), None, "{bad}");
        }
        for (text, points) in [
            ("EF", vec![46]),
            ("ef", vec![46]),
            ("CS1", vec![8]),
            ("AF11", vec![10]),
            ("AF43", vec![38]),
            ("LE", vec![1]),
            ("DF", vec![0]),
            ("BE", vec![0]),
            ("CS0", vec![0]),
            ("CS7", vec![56]),
            ("63", vec![63]),
            ("telephony", vec![46]),
            ("multimedia-conferencing", vec![34, 36, 38]),
        ] {
            assert_eq!(dscp(text), Some(points), "{text}");
        }
        for bad in ["64", "AF44", "AF51", "CS8", "AF10", "gold", ""] {
            assert_eq!(dscp(bad), None, "{bad}");
        }
        for n in 0..64 {
            assert_eq!(dscp(&show_dscp(n)), Some(vec![n]));
        }
    }

    proptest! {
        #[test]
        fn every_rate_prints_as_it_parses(bytes in MIN_RATE.bytes_per_sec()..=MAX_RATE.bytes_per_sec()) {
            let r = Rate::from_bytes_per_sec(bytes);
            prop_assert_eq!(rate(&show_rate(r)), Ok(r));
        }

        #[test]
        fn parsers_accept_arbitrary_text_without_panic(text in "\\PC{0,40}") {
            let _ = (rate(&text), Prefix::parse(&text), Ports::parse(&text), dscp(&text));
        }
    }
}
