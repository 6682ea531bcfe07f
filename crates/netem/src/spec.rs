//! Parses and prints textual descriptions of links.

mod units;

use crate::config::{
    BurstLoss, Change, EcnHandling, Jitter, LinkConfig, Loss, Marking, PolicerConfig, Reorder,
};
use crate::profiles;
use base::{Span, Time};
use core::fmt;
use units::{parse_bytes, parse_packet, parse_probability, parse_rate, parse_span};
use units::{show_bytes, show_probability, show_rate, show_span};

/// Longest description in bytes: room for a thousand scheduled changes.
pub const MAX_SPEC_LEN: usize = 64 << 10;

/// Why a description of a link cannot be parsed; each names the field and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The value of a field cannot be read.
    #[error("{key}: cannot read `{value}`; write {expected}")]
    BadValue {
        /// The field.
        key: String,
        /// What it was given.
        value: String,
        /// What would be right, with an example.
        expected: &'static str,
    },
    /// A word that is neither a field nor a profile.
    #[error(
        "`{word}` is neither a field nor a profile; fields are written {FIELDS}, profiles are {}",
        names()
    )]
    Unknown {
        /// The word.
        word: String,
    },
    /// A field given twice.
    #[error("{key}: given twice; leave out one of them (only `at` may be repeated)")]
    Repeated {
        /// The field.
        key: String,
    },
    /// A profile after a field, which it would override.
    #[error("profile `{name}` must come first; move it before all fields")]
    LateProfile {
        /// The profile.
        name: String,
    },
    /// A queue in bandwidth-delay products on a link without a rate.
    #[error(
        "queue: a multiple of the bandwidth-delay product needs a rate; add rate=500mbit or write queue=1MiB"
    )]
    QueueNeedsRate,
    /// The description is too long.
    #[error("the description has {0} bytes; shorten it to at most {MAX_SPEC_LEN}")]
    TooLong(usize),
}

const FIELDS: &str = "rate= queue= police= ecn= ecn1= ect= telemetry= delay= jitter= order= loss= reorder= duplicate= corrupt= mtu= at=<time>:<change>=";
const RATE: &str = "a rate with its unit, such as 500mbit, 20M, 60MB/s, or `unlimited`";
const POLICE: &str = "a rate and how much passes at once, such as 50mbit(64KiB), or `off`";
const SPAN: &str = "a time with its unit, such as 35ms, 250us, 1.5s, or 2min";
const BYTES: &str = "a size with its unit, such as 1500B, 64KiB, 2M (1024), or 2MB (1000)";
const BYTES_OR_OFF: &str = "a size with its unit, such as 1500B or 64KiB, or `off`";
const MARKING: &str = "a size with its unit, such as 64KiB, beyond which all are marked, where marking at random begins and ends and \
     what it grows to, such as 5KiB..200KiB(1%), or `off`";
const PROBABILITY: &str = "a percentage from 0% to 100%, such as 0.1%";
const QUEUE: &str = "a size such as 2MiB, or a multiple of the bandwidth-delay product such as 1bdp (of twice the \
     delay) or 1bdp(rtt 70ms)";
const JITTER: &str = "a time such as 2ms or uniform(2ms) for up to 2 ms more or less, normal(2ms), or `off`";
const LOSS: &str = "a percentage such as 0.1%, or burst(p=0.1%,r=20%,good=0%,bad=100%)";
const REORDER: &str = "a percentage and by how much those packets are late, such as 0.1%(5ms), or `off`";
const ECT: &str = "`pass`, `bleach`, `drop`, `ect0`, `ect1` or `ce`";
const ON_OFF: &str = "`on` or `off`";
const ORDER: &str = "`keep` or `free`";
const AT: &str = "a time and a change, such as 10s:rate=100mbit; delay=, loss=, path=<delay>, \
     blackout=<how long>, ecn=, ecn1=, ect=, and telemetry= may change too";

fn names() -> String {
    profiles::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Splits off an argument in parentheses: `1bdp(rtt 70ms)` is `("1bdp", Some("rtt 70ms"))`.
fn split_argument(value: &str) -> Option<(&str, Option<&str>)> {
    match value.split_once('(') {
        None => Some((value, None)),
        Some((head, rest)) => Some((head, Some(rest.strip_suffix(')')?.trim()))),
    }
}

impl LinkConfig {
    /// Parses a description: fields `key=value` in any order, separated by spaces, after an optional name of a
    /// profile (see [`profiles`]), which they override. Fields left out are as in [`LinkConfig::default`].
    ///
    /// | field | value | meaning |
    /// | --- | --- | --- |
    /// | `rate` | `500mbit`, `60MB/s`, `unlimited` | as [`base::units::rate`] reads it, with its unit |
    /// | `queue` | `2MiB`, `1bdp`, `0.5bdp(rtt 70ms)` | limit, as [`base::units::size`] reads it, with its unit; `bdp` is rate times twice the delay, or times the round trip given |
    /// | `police` | `50mbit(64KiB)`, `off` | see [`PolicerConfig`] |
    /// | `ecn` | `400KiB`, `5KiB..200KiB(1%)`, `off` | marking threshold, or where marking at random begins and ends, see [`Marking`] |
    /// | `ecn1` | `10KiB`, `off` | the same for ECT(1); off: as `ecn` |
    /// | `ect` | `pass`, `bleach`, `drop`, `ect0`, `ect1`, `ce` | see [`EcnHandling`] |
    /// | `telemetry` | `on`, `off` | whether the queue's state is written into packets |
    /// | `delay` | `35ms` | one way, as [`base::units::time`] reads it, with its unit |
    /// | `jitter` | `2ms`, `uniform(2ms)`, `normal(2ms)`, `off` | see [`Jitter`] |
    /// | `order` | `keep`, `free` | see [`LinkConfig::keep_order`] |
    /// | `loss` | `0.1%`, `burst(p=0.1%,r=20%,good=0%,bad=100%)` | see [`Loss`]; `good` and `bad` may be left out and are then 0 % and 100 % |
    /// | `reorder` | `0.1%(5ms)`, `off` | see [`Reorder`] |
    /// | `duplicate`, `corrupt` | `0.01%` | share of packets |
    /// | `mtu` | `9000B`, `9000`, `off` | on the wire |
    /// | `at` | `10s:rate=100mbit` | a scheduled change of `rate`, `delay`, `loss`, `path`, `blackout`, `ecn`, `ecn1`, `ect` or `telemetry`, see [`Change`]; may be repeated |
    ///
    /// `Display` prints the same language, with the queue in bytes, which parses to an equal value.
    ///
    /// # Errors
    ///
    /// A [`SpecError`] that names the field and says what to write.
    pub fn parse(text: &str) -> Result<LinkConfig, SpecError> {
        LinkConfig::default().with_fields(text)
    }

    /// Parses the description of a path: as [`LinkConfig::parse`], but fields left out are as in
    /// [`LinkConfig::path`], whose MTU is that of the Internet. `mtu=off` carries any size.
    ///
    /// # Errors
    /// As of [`LinkConfig::parse`].
    pub fn parse_path(text: &str) -> Result<LinkConfig, SpecError> {
        LinkConfig::path().with_fields(text)
    }

    /// This link with the fields of a description.
    fn with_fields(self, text: &str) -> Result<LinkConfig, SpecError> {
        if text.len() > MAX_SPEC_LEN {
            return Err(SpecError::TooLong(text.len()));
        }
        let mut config = self;
        // A queue in bandwidth-delay products is computed last, since rate and delay may come after it.
        let mut queue = None;
        let mut seen: Vec<&str> = Vec::new();
        for (nth, word) in words(text).enumerate() {
            let Some((key, value)) = word.split_once('=') else {
                let Some((name, spec)) = profiles::ALL.iter().find(|(name, _)| *name == word) else {
                    return Err(SpecError::Unknown { word: word.to_owned() });
                };
                if nth > 0 {
                    return Err(SpecError::LateProfile { name: (*name).to_owned() });
                }
                config = LinkConfig::parse(spec)?;
                continue;
            };
            if key != "at" && seen.contains(&key) {
                return Err(SpecError::Repeated { key: key.to_owned() });
            }
            seen.push(key);
            if key == "queue" {
                queue = Some(value);
            } else {
                config.set_field(key, value)?;
            }
        }
        if let Some(value) = queue {
            config.queue = config.parse_queue(value)?;
        }
        config.schedule.sort_by_key(|(at, _)| *at);
        Ok(config)
    }

    fn set_field(&mut self, key: &str, value: &str) -> Result<(), SpecError> {
        let bad = |expected| SpecError::BadValue { key: key.to_owned(), value: value.to_owned(), expected };
        match key {
            "rate" => self.rate = parse_rate(value).ok_or_else(|| bad(RATE))?,
            "police" => self.police = parse_or_off(value, parse_police).ok_or_else(|| bad(POLICE))?,
            "ecn" => self.ecn = parse_or_off(value, parse_marking).ok_or_else(|| bad(MARKING))?,
            "ecn1" => self.ecn1 = parse_or_off(value, parse_marking).ok_or_else(|| bad(MARKING))?,
            "ect" => self.ect = parse_ect(value).ok_or_else(|| bad(ECT))?,
            "telemetry" => self.telemetry = parse_on_off(value).ok_or_else(|| bad(ON_OFF))?,
            "mtu" => self.mtu = parse_or_off(value, parse_packet).ok_or_else(|| bad(BYTES_OR_OFF))?,
            "delay" => self.delay = parse_span(value).ok_or_else(|| bad(SPAN))?,
            "jitter" => self.jitter = parse_jitter(value).ok_or_else(|| bad(JITTER))?,
            "loss" => self.loss = parse_loss(value).ok_or_else(|| bad(LOSS))?,
            "reorder" => {
                let reorder = parse_or_off(value, parse_reorder).ok_or_else(|| bad(REORDER))?;
                self.reorder = reorder.unwrap_or_default();
            }
            "duplicate" => self.duplicate = parse_probability(value).ok_or_else(|| bad(PROBABILITY))?,
            "corrupt" => self.corrupt = parse_probability(value).ok_or_else(|| bad(PROBABILITY))?,
            "order" => {
                self.keep_order = match value {
                    "keep" => true,
                    "free" => false,
                    _ => return Err(bad(ORDER)),
                }
            }
            "at" => self.schedule.push(parse_at(value)?),
            _ => return Err(SpecError::Unknown { word: format!("{key}={value}") }),
        }
        Ok(())
    }

    fn parse_queue(&self, value: &str) -> Result<u64, SpecError> {
        let bad =
            |expected| SpecError::BadValue { key: "queue".to_owned(), value: value.to_owned(), expected };
        let (head, argument) = split_argument(value).ok_or_else(|| bad(QUEUE))?;
        let Some(multiple) = head.strip_suffix("bdp") else {
            return parse_bytes(value).ok_or_else(|| bad(if value.contains("bdp") { QUEUE } else { BYTES }));
        };
        const PARTS: u64 = 1_000_000;
        let multiple = units::decimal(multiple, PARTS).ok_or_else(|| bad(QUEUE))?;
        let rtt = match argument {
            None => self.delay * 2,
            Some(rtt) => parse_span(rtt.strip_prefix("rtt ").unwrap_or(rtt)).ok_or_else(|| bad(QUEUE))?,
        };
        let bdp = self.bdp(rtt).ok_or(SpecError::QueueNeedsRate)?;
        u64::try_from(u128::from(bdp) * u128::from(multiple) / u128::from(PARTS)).map_err(|_| bad(QUEUE))
    }
}

/// Words separated by white space outside parentheses.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0i32;
    text.split(move |c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth <= 0 && c.is_whitespace()
    })
    .filter(|w| !w.is_empty())
}

/// Parses `off`, or a value with `parse`.
fn parse_or_off<T>(value: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Option<T>> {
    if value == "off" { Some(None) } else { parse(value).map(Some) }
}

fn parse_police(value: &str) -> Option<PolicerConfig> {
    let (rate, burst) = split_argument(value)?;
    let police = PolicerConfig { rate: parse_rate(rate)??, burst: parse_bytes(burst?)? };
    (police.burst > 0).then_some(police)
}

fn parse_marking(value: &str) -> Option<Marking> {
    let Some((low, rest)) = value.split_once("..") else {
        return parse_bytes(value).map(Marking::step);
    };
    let (high, most) = split_argument(rest)?;
    let (low, high) = (parse_bytes(low)?, parse_bytes(high)?);
    (low < high).then_some(Marking { low, high, max_probability: parse_probability(most?)? })
}

fn parse_ect(value: &str) -> Option<EcnHandling> {
    EcnHandling::ALL.into_iter().find(|e| e.name() == value)
}

fn parse_on_off(value: &str) -> Option<bool> {
    match value {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn parse_jitter(value: &str) -> Option<Jitter> {
    match split_argument(value)? {
        ("off", None) => Some(Jitter::None),
        ("normal", Some(span)) => Some(Jitter::Normal(parse_span(span)?)),
        ("uniform", Some(span)) | (span, None) => Some(Jitter::Uniform(parse_span(span)?)),
        _ => None,
    }
}

fn parse_loss(value: &str) -> Option<Loss> {
    let (head, Some(argument)) = split_argument(value)? else {
        return Some(Loss::Independent(parse_probability(value)?));
    };
    if head != "burst" {
        return None;
    }
    let (mut p, mut r, mut good, mut bad) = (None, None, None, None);
    for part in argument.split(',') {
        let (key, value) = part.trim().split_once('=')?;
        let field = match key {
            "p" => &mut p,
            "r" => &mut r,
            "good" => &mut good,
            "bad" => &mut bad,
            _ => return None,
        };
        if field.replace(parse_probability(value)?).is_some() {
            return None;
        }
    }
    Some(Loss::Burst(BurstLoss {
        p: p?,
        r: r?,
        good_loss: good.unwrap_or(crate::Probability::ZERO),
        bad_loss: bad.unwrap_or(crate::Probability::ONE),
    }))
}

fn parse_reorder(value: &str) -> Option<Reorder> {
    let (probability, extra) = split_argument(value)?;
    Some(Reorder { probability: parse_probability(probability)?, extra: parse_span(extra?)? })
}

fn parse_at(value: &str) -> Result<(Time, Change), SpecError> {
    let bad =
        |expected| SpecError::BadValue { key: format!("at={value}"), value: value.to_owned(), expected };
    let (at, change) = value.split_once(':').ok_or_else(|| bad(AT))?;
    let at = Time::ZERO + parse_span(at).ok_or_else(|| bad(SPAN))?;
    let (key, value) = change.split_once('=').ok_or_else(|| bad(AT))?;
    let change = match key {
        "rate" => Change::Rate(parse_rate(value).ok_or_else(|| bad(RATE))?),
        "delay" => Change::Delay(parse_span(value).ok_or_else(|| bad(SPAN))?),
        "loss" => Change::Loss(parse_loss(value).ok_or_else(|| bad(LOSS))?),
        "blackout" => Change::BlackOut(parse_span(value).ok_or_else(|| bad(SPAN))?),
        "path" => Change::Path(parse_span(value).ok_or_else(|| bad(SPAN))?),
        "ecn" => Change::Ecn(parse_or_off(value, parse_marking).ok_or_else(|| bad(MARKING))?),
        "ecn1" => Change::Ecn1(parse_or_off(value, parse_marking).ok_or_else(|| bad(MARKING))?),
        "ect" => Change::Ect(parse_ect(value).ok_or_else(|| bad(ECT))?),
        "telemetry" => Change::Telemetry(parse_on_off(value).ok_or_else(|| bad(ON_OFF))?),
        _ => return Err(bad(AT)),
    };
    Ok((at, change))
}

impl core::str::FromStr for LinkConfig {
    type Err = SpecError;
    fn from_str(text: &str) -> Result<LinkConfig, SpecError> {
        LinkConfig::parse(text)
    }
}

/// Prints the fields that differ from the default, and always rate, queue and delay.
impl fmt::Display for LinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, queue, delay) = (show_rate(self.rate), show_bytes(self.queue), show_span(self.delay));
        write!(f, "rate={rate} queue={queue} delay={delay}")?;
        if let Some(p) = self.police {
            write!(f, " police={}({})", show_rate(Some(p.rate)), show_bytes(p.burst))?;
        }
        for (key, marking) in [("ecn", self.ecn), ("ecn1", self.ecn1)] {
            if let Some(marking) = marking {
                write!(f, " {key}={marking}")?;
            }
        }
        if self.ect != EcnHandling::Pass {
            write!(f, " ect={}", self.ect.name())?;
        }
        if self.telemetry {
            f.write_str(" telemetry=on")?;
        }
        match self.jitter {
            Jitter::None => {}
            Jitter::Uniform(span) => write!(f, " jitter={}", show_span(span))?,
            Jitter::Normal(span) => write!(f, " jitter=normal({})", show_span(span))?,
        }
        if !self.keep_order {
            f.write_str(" order=free")?;
        }
        if self.loss != Loss::NONE {
            write!(f, " loss={}", self.loss)?;
        }
        if self.reorder != Reorder::default() {
            let (share, extra) = (show_probability(self.reorder.probability), show_span(self.reorder.extra));
            write!(f, " reorder={share}({extra})")?;
        }
        for (key, p) in [("duplicate", self.duplicate), ("corrupt", self.corrupt)] {
            if p != crate::Probability::ZERO {
                write!(f, " {key}={}", show_probability(p))?;
            }
        }
        if let Some(mtu) = self.mtu {
            write!(f, " mtu={}", show_bytes(mtu))?;
        }
        for (at, change) in &self.schedule {
            write!(f, " at={}:{change}", show_span(at.since(Time::ZERO)))?;
        }
        Ok(())
    }
}

fn show_or_off(marking: Option<Marking>) -> String {
    marking.map_or_else(|| "off".to_owned(), |m| m.to_string())
}

impl fmt::Display for Marking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Marking::step(self.low) {
            return f.write_str(&show_bytes(self.low));
        }
        write!(
            f,
            "{}..{}({})",
            show_bytes(self.low),
            show_bytes(self.high),
            show_probability(self.max_probability)
        )
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Independent(p) => f.write_str(&show_probability(*p)),
            Loss::Burst(b) => {
                let [p, r, good, bad] = [b.p, b.r, b.good_loss, b.bad_loss].map(show_probability);
                write!(f, "burst(p={p},r={r},good={good},bad={bad})")
            }
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let span = |f: &mut fmt::Formatter<'_>, key, span: &Span| write!(f, "{key}={}", show_span(*span));
        match self {
            Change::Rate(rate) => write!(f, "rate={}", show_rate(*rate)),
            Change::Delay(delay) => span(f, "delay", delay),
            Change::Loss(loss) => write!(f, "loss={loss}"),
            Change::BlackOut(length) => span(f, "blackout", length),
            Change::Path(delay) => span(f, "path", delay),
            Change::Ecn(threshold) => write!(f, "ecn={}", show_or_off(*threshold)),
            Change::Ecn1(threshold) => write!(f, "ecn1={}", show_or_off(*threshold)),
            Change::Ect(path) => write!(f, "ect={}", path.name()),
            Change::Telemetry(on) => write!(f, "telemetry={}", if *on { "on" } else { "off" }),
        }
    }
}

#[cfg(test)]
mod tests;
