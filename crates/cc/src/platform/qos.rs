//! The service that an application asks for, as a value and as text.

use base::{Rate, Span, units};
use core::fmt;
use core::str::FromStr;

/// The service that an application asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Qos {
    /// Nothing in particular.
    #[default]
    Ordinary,
    /// Short messages with somebody waiting for them: `latency`.
    Latency,
    /// Throughput without a time limit: `bulk`.
    Bulk,
    /// A number of bytes within a time from now: `deadline(10GB, 30s)`.
    Deadline {
        /// The number of bytes.
        bytes: u64,
        /// The time from now.
        within: Span,
    },
    /// At least this rate at any time: `guaranteed(300M)`.
    Guaranteed(Rate),
    /// At most about this rate: `target(1G)`.
    Target(Rate),
    /// Only capacity that nobody else wants: `scavenger`.
    Scavenger,
}

impl Qos {
    /// Its keyword.
    pub const fn word(&self) -> &'static str {
        match self {
            Qos::Ordinary => "ordinary",
            Qos::Latency => "latency",
            Qos::Bulk => "bulk",
            Qos::Deadline { .. } => "deadline",
            Qos::Guaranteed(_) => "guaranteed",
            Qos::Target(_) => "target",
            Qos::Scavenger => "scavenger",
        }
    }
}

impl fmt::Display for Qos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Qos::Deadline { bytes, within } => write!(f, "deadline({bytes}B, {}us)", within.as_micros()),
            Qos::Guaranteed(r) => write!(f, "guaranteed({}bit)", r.bits_per_sec()),
            Qos::Target(r) => write!(f, "target({}bit)", r.bits_per_sec()),
            _ => f.write_str(self.word()),
        }
    }
}

/// A text that is not a valid [`Qos`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{text}\" is not a quality of service: write latency, bulk, scavenger, ordinary, deadline(BYTES, TIME) such as \
     deadline(10GB, 30s), guaranteed(RATE) such as guaranteed(300M), or target(RATE)"
)]
pub struct BadQos {
    /// The text, cut to 64 characters.
    pub text: String,
}

impl FromStr for Qos {
    type Err = BadQos;
    fn from_str(text: &str) -> Result<Qos, BadQos> {
        read(text).ok_or_else(|| BadQos { text: text.chars().take(64).collect() })
    }
}

fn read(text: &str) -> Option<Qos> {
    let text = text.trim();
    let (word, inside) = match text.split_once('(') {
        Some((word, rest)) => (word.trim(), Some(rest.strip_suffix(')')?.trim())),
        None => (text, None),
    };
    Some(match (word, inside) {
        ("ordinary", None) => Qos::Ordinary,
        ("latency", None) => Qos::Latency,
        ("bulk", None) => Qos::Bulk,
        ("scavenger", None) => Qos::Scavenger,
        ("guaranteed", Some(r)) => Qos::Guaranteed(rate(r)?),
        ("target", Some(r)) => Qos::Target(rate(r)?),
        ("deadline", Some(x)) => {
            let (bytes, within) = x.split_once(',')?;
            Qos::Deadline { bytes: bytes_of(bytes)?, within: span(within)? }
        }
        _ => return None,
    })
}

fn rate(text: &str) -> Option<Rate> {
    units::rate(text).ok().filter(|r| *r > Rate::ZERO)
}

fn bytes_of(text: &str) -> Option<u64> {
    units::size(text).ok().filter(|n| *n > 0)
}

fn span(text: &str) -> Option<Span> {
    units::time(text).ok().filter(|t| !t.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displayed_qos_parses_to_the_same() {
        let all = [
            ("latency", Qos::Latency),
            (" bulk ", Qos::Bulk),
            ("scavenger", Qos::Scavenger),
            ("ordinary", Qos::Ordinary),
            ("deadline(10GB, 30s)", Qos::Deadline { bytes: 10_000_000_000, within: Span::from_secs(30) }),
            ("deadline(1.5TiB,2h)", Qos::Deadline { bytes: 3 << 39, within: Span::from_secs(7_200) }),
            ("guaranteed(300M)", Qos::Guaranteed(Rate::from_bits_per_sec(300_000_000))),
            ("guaranteed(2.5Gbit/s)", Qos::Guaranteed(Rate::from_bits_per_sec(2_500_000_000))),
            ("target( 1G )", Qos::Target(Rate::from_bits_per_sec(1_000_000_000))),
        ];
        for (text, qos) in all {
            assert_eq!(text.parse(), Ok(qos), "{text}");
            assert_eq!(qos.to_string().parse(), Ok(qos), "{qos}");
        }
    }

    #[test]
    fn malformed_qos_is_an_error() {
        for bad in [
            "",
            "fast",
            "latency()",
            "deadline",
            "deadline(1GB)",
            "deadline(0B, 3s)",
            "deadline(1GB, 0s)",
            "guaranteed(-3M)",
            "guaranteed(3Q)",
            "target(3M",
            "target(99999999999999999999)",
            "deadline(1..2GB, 1s)",
        ] {
            let e = bad.parse::<Qos>().unwrap_err();
            assert!(e.to_string().contains("deadline(10GB, 30s)"), "{bad}");
        }
    }
}
