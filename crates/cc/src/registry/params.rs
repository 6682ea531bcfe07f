//! Parameters of algorithms: defined once, parsed from text, checked against their range.

use super::{Definition, Error, find};
use base::{Rate, Span, units};
use std::collections::BTreeMap;

/// Longest selection, in bytes.
pub const MAX_TEXT: usize = 1024;

/// One parameter of an algorithm.
#[derive(Clone, Copy, Debug)]
pub struct ParamDef {
    /// Its key.
    pub name: &'static str,
    /// What it does.
    pub help: &'static str,
    /// Its type, unit, range and default.
    pub kind: Kind,
}

/// Type, unit, range and default of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `on` or `off`.
    Switch {
        /// Its default.
        default: bool,
    },
    /// A whole number.
    Count {
        /// What is counted.
        unit: &'static str,
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
        /// Its default.
        default: u64,
    },
    /// A share, written as a percentage with up to three decimals (`2%`, `0.5%`); stored in parts per 100,000.
    Share {
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
        /// Its default.
        default: u64,
    },
    /// A rate as parsed by [`units::rate`], for instance `2.5G`, or `auto` where there is no default.
    Rate {
        /// Least value.
        min: Rate,
        /// Greatest value.
        max: Rate,
    },
    /// A time span as parsed by [`units::time`].
    Span {
        /// Least value.
        min: Span,
        /// Greatest value.
        max: Span,
        /// Its default.
        default: Span,
    },
}

/// A checked value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of a [`Kind::Switch`].
    Switch(bool),
    /// Of a [`Kind::Count`].
    Count(u64),
    /// Of a [`Kind::Share`], in parts per 100,000.
    Share(u64),
    /// Of a [`Kind::Rate`]; `None` is `auto`.
    Rate(Option<Rate>),
    /// Of a [`Kind::Span`].
    Span(Span),
}

fn show_percent(share: u64) -> String {
    format!("{}%", share as f64 / 1000.0)
}

fn show_rate(rate: Rate) -> String {
    let b = rate.bits_per_sec();
    for (unit, size) in [("T", 1_000_000_000_000), ("G", 1_000_000_000), ("M", 1_000_000), ("k", 1_000)] {
        if b >= size {
            return format!("{}{unit}", b as f64 / size as f64);
        }
    }
    format!("{b}")
}

impl Kind {
    /// What to write, with unit, range and default.
    pub fn describe(&self) -> String {
        match *self {
            Kind::Switch { default } => format!("on|off [{}]", if default { "on" } else { "off" }),
            Kind::Count { unit, min, max, default } => format!("{min} to {max} {unit} [{default}]"),
            Kind::Share { min, max, default } => {
                format!("{} to {} [{}]", show_percent(min), show_percent(max), show_percent(default))
            }
            Kind::Rate { min, max } => format!("{} to {} bit/s [auto]", show_rate(min), show_rate(max)),
            Kind::Span { min, max, default } => format!("{min} to {max} [{default}]"),
        }
    }

    /// The default value.
    pub fn default(&self) -> Value {
        match *self {
            Kind::Switch { default } => Value::Switch(default),
            Kind::Count { default, .. } => Value::Count(default),
            Kind::Share { default, .. } => Value::Share(default),
            Kind::Rate { .. } => Value::Rate(None),
            Kind::Span { default, .. } => Value::Span(default),
        }
    }

    fn read(&self, text: &str) -> Option<Value> {
        match *self {
            Kind::Switch { .. } => match text {
                "on" | "true" | "yes" => Some(Value::Switch(true)),
                "off" | "false" | "no" => Some(Value::Switch(false)),
                _ => None,
            },
            Kind::Count { min, max, .. } => {
                text.parse().ok().filter(|n| (min..=max).contains(n)).map(Value::Count)
            }
            Kind::Share { min, max, .. } => {
                let n = parse_scaled(text.strip_suffix('%')?, 1_000)?;
                (min..=max).contains(&n).then_some(Value::Share(n))
            }
            Kind::Rate { min, max } => {
                if text == "auto" {
                    return Some(Value::Rate(None));
                }
                units::rate_within(text, min, max).ok().map(|r| Value::Rate(Some(r)))
            }
            Kind::Span { min, max, .. } => units::time_within(text, min, max).ok().map(Value::Span),
        }
    }
}

/// Parses a decimal number times `scale`, exactly; `None` unless it consists of digits with at most one point and the
/// product is an integer that fits.
fn parse_scaled(text: &str, scale: u64) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || (whole.is_empty() && part.is_empty()) || part.len() > 18 {
        return None;
    }
    let int: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let den = 10u128.pow(part.len() as u32);
    let frac: u128 = if part.is_empty() { 0 } else { part.parse().ok()? };
    let frac = frac * u128::from(scale);
    if !frac.is_multiple_of(den) {
        return None;
    }
    int.checked_mul(scale)?.checked_add(u64::try_from(frac / den).ok()?)
}

/// Checked parameters of one algorithm. `Params::default()` is empty: all defaults, for any algorithm.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Params {
    algorithm: Option<&'static str>,
    values: BTreeMap<&'static str, Value>,
}

impl Params {
    /// Parses `key=value,key=value` for the algorithm called `name`. Of a repeated key the last value counts.
    ///
    /// # Errors
    /// Any [`Error`] but [`Error::WrongAlgorithm`].
    pub fn parse(name: &str, text: &str) -> Result<Params, Error> {
        let def = find(name)?;
        if text.len() > MAX_TEXT {
            return Err(Error::TooLong { len: text.len() });
        }
        let mut params = Params { algorithm: Some(def.name), values: BTreeMap::new() };
        for piece in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (key, value) =
                piece.split_once('=').ok_or_else(|| Error::Syntax { text: piece.to_string() })?;
            params.set(def, key.trim(), value.trim())?;
        }
        Ok(params)
    }

    fn set(&mut self, def: &Definition, key: &str, text: &str) -> Result<(), Error> {
        let p = def
            .params
            .iter()
            .find(|p| p.name == key)
            .ok_or_else(|| Error::UnknownParameter { algorithm: def.name, key: key.to_string() })?;
        let value = p.kind.read(text).ok_or_else(|| Error::InvalidValue {
            algorithm: def.name,
            key: p.name,
            value: text.to_string(),
            expected: p.kind.describe(),
        })?;
        self.values.insert(p.name, value);
        Ok(())
    }

    /// The algorithm that they were checked for; `None` for defaults.
    pub fn algorithm(&self) -> Option<&'static str> {
        self.algorithm
    }

    /// The value of `key`, if given.
    pub fn get(&self, key: &str) -> Option<Value> {
        self.values.get(key).copied()
    }

    /// The parameters with every default filled in, so that builders find each key.
    pub(super) fn for_definition(&self, def: &'static Definition) -> Params {
        let values = def.params.iter().map(|p| (p.name, self.get(p.name).unwrap_or(p.kind.default())));
        Params { algorithm: Some(def.name), values: values.collect() }
    }

    pub(crate) fn switch(&self, key: &str) -> bool {
        match self.get(key) {
            Some(Value::Switch(b)) => b,
            other => unreachable!("{key} is defined as a switch, found {other:?}"),
        }
    }
    pub(crate) fn count(&self, key: &str) -> u64 {
        match self.get(key) {
            Some(Value::Count(n)) => n,
            other => unreachable!("{key} is defined as a count, found {other:?}"),
        }
    }
    pub(crate) fn share(&self, key: &str) -> u64 {
        match self.get(key) {
            Some(Value::Share(n)) => n,
            other => unreachable!("{key} is defined as a share, found {other:?}"),
        }
    }
    pub(crate) fn rate(&self, key: &str) -> Option<Rate> {
        match self.get(key) {
            Some(Value::Rate(r)) => r,
            other => unreachable!("{key} is defined as a rate, found {other:?}"),
        }
    }
    pub(crate) fn span(&self, key: &str) -> Span {
        match self.get(key) {
            Some(Value::Span(s)) => s,
            other => unreachable!("{key} is defined as a span, found {other:?}"),
        }
    }
}
