//! Typed access to one table of the file; a key that no reader asked for is reported as unknown.

use super::algorithms::KnownAlgorithms;
use crate::problem::{Problems, did_you_mean, quote};
use crate::spec::{Located, MAX_NAME, MAX_VALUES, MAX_WEIGHT};
use crate::units;
use base::Rate;
use core::ops::Range;
use std::rc::Rc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value of the file with its position.
pub type Item<'a> = Spanned<DeValue<'a>>;

/// Keys that had another name, and the present one.
const RENAMED: [(&str, &str); 7] = [
    ("substitute", "fallback"),
    ("may_choose", "allow_override"),
    ("treat_as", "qos"),
    ("cc_wish", "peer_cc"),
    ("cc_wish_only", "peer_cc_only"),
    ("cc_refuse", "peer_cc_refuse"),
    ("cc_firm", "cc_prefer_own"),
];

/// The positions of lines in the file, and the problems found so far.
pub struct Reader<'a> {
    text: &'a str,
    line_starts: Vec<usize>,
    pub problems: Problems,
    /// The algorithms that the policy may name.
    pub algorithms: Rc<KnownAlgorithms>,
}

impl<'a> Reader<'a> {
    /// A reader for this process or, with `for_other_hosts`, for hosts whose programs are not known here.
    pub fn new(text: &'a str, for_other_hosts: bool) -> Reader<'a> {
        let starts = core::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect();
        let algorithms = Rc::new(KnownAlgorithms { for_other_hosts, programs: Vec::new() });
        Reader { text, line_starts: starts, problems: Problems::default(), algorithms }
    }

    /// The line number of a position in the file, from 1.
    pub fn line(&self, span: &Range<usize>) -> usize {
        self.line_starts.partition_point(|start| *start <= span.start.min(self.text.len())).max(1)
    }
}

/// A table and the keys that were asked for.
pub struct Table<'t, 'a> {
    /// What the table describes, as text: `[[class]] "storage"`.
    pub what: String,
    /// Where it begins.
    pub line: usize,
    table: &'t DeTable<'a>,
    asked: Vec<&'static str>,
}

impl<'t, 'a> Table<'t, 'a> {
    /// The table in a value; any other type is a problem.
    pub fn of(what: impl Into<String>, item: &'t Item<'a>, r: &mut Reader<'_>) -> Option<Table<'t, 'a>> {
        let (what, line) = (what.into(), r.line(&item.span()));
        match item.get_ref() {
            DeValue::Table(table) => Some(Table { what, line, table, asked: Vec::new() }),
            other => {
                r.problems.error(
                    line,
                    format!("{what} is {}, not a table", kind_in_words(other)),
                    "write it as a table",
                );
                None
            }
        }
    }

    /// The whole file.
    pub fn root(table: &'t DeTable<'a>) -> Table<'t, 'a> {
        Table { what: "the policy".into(), line: 1, table, asked: Vec::new() }
    }

    /// All keys and values, for tables whose keys are chosen by the administrator.
    pub fn entries(&self, r: &Reader<'_>) -> Vec<(Located<String>, &'t Item<'a>)> {
        let entry = |(k, v): (&'t Spanned<_>, _)| {
            let key: &std::borrow::Cow<'_, str> = k.get_ref();
            (Located { value: key.to_string(), line: r.line(&k.span()) }, v)
        };
        self.table.iter().map(entry).collect()
    }

    /// The value of a key.
    pub fn get(&mut self, key: &'static str) -> Option<&'t Item<'a>> {
        self.asked.push(key);
        self.table.get(key)
    }

    /// Reports the keys that no reader asked for.
    pub fn reject_unknown_keys(self, r: &mut Reader<'_>) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if !self.asked.contains(&name) {
                let line = r.line(&key.span());
                let what = format!("{} has no key {}", self.what, quote(name));
                let renamed = RENAMED.iter().find(|(old, new)| *old == name && self.asked.contains(new));
                let remedy = match renamed {
                    Some((_, new)) => format!("it is now called {}", quote(new)),
                    None => did_you_mean(name, self.asked.iter().copied()),
                };
                r.problems.error(line, what, remedy);
            }
        }
    }

    /// Parses a text with `read`, whose error says what to write instead.
    pub fn text<T>(
        &mut self,
        key: &'static str,
        r: &mut Reader<'_>,
        read: impl FnOnce(&str) -> Result<T, Refusal>,
    ) -> Option<Located<T>> {
        let item = self.get(key)?;
        let line = r.line(&item.span());
        let DeValue::String(text) = item.get_ref() else {
            let what = format!("{key} of {} is {}", self.what, kind_in_words(item.get_ref()));
            r.problems.error(line, what, "write a text in quotation marks");
            return None;
        };
        match read(text) {
            Ok(value) => Some(Located { value, line }),
            Err(no) => {
                r.problems.error(
                    line,
                    format!("{key} = {} of {} {}", quote(text), self.what, no.what),
                    no.remedy,
                );
                None
            }
        }
    }

    /// Parses a rate.
    pub fn rate(&mut self, key: &'static str, r: &mut Reader<'_>) -> Option<Located<Rate>> {
        if let Some(DeValue::Integer(n)) = self.table.get(key).map(Spanned::get_ref) {
            let line = self.get(key).map_or(self.line, |i| r.line(&i.span()));
            let what = format!("{key} = {n} of {} is a number without a unit", self.what);
            r.problems.error(
                line,
                what,
                "write bits per second in quotation marks, such as \"300M\" or \"2.5G\"",
            );
            return None;
        }
        self.text(key, r, |text| {
            units::rate(text).map_err(|_| Refusal {
                what: "is not a rate from 8k to 100T".into(),
                remedy: "write bits per second such as \"300M\" or \"2.5G\", or bytes such as \"60MB/s\""
                    .into(),
            })
        })
    }

    /// Parses a whole number within a range.
    pub fn number(
        &mut self,
        key: &'static str,
        range: core::ops::RangeInclusive<u32>,
        r: &mut Reader<'_>,
    ) -> Option<u32> {
        let item = self.get(key)?;
        let value = match item.get_ref() {
            DeValue::Integer(n) => {
                u32::from_str_radix(n.as_str(), n.radix()).ok().filter(|n| range.contains(n))
            }
            _ => None,
        };
        if value.is_none() {
            let what = format!(
                "{key} of {} is not a whole number from {} to {}",
                self.what,
                range.start(),
                range.end()
            );
            r.problems.error(
                r.line(&item.span()),
                what,
                format!("write one, such as {key} = {}", range.start()),
            );
        }
        value
    }

    /// Parses a weight.
    pub fn weight(&mut self, r: &mut Reader<'_>) -> Option<u32> {
        self.number("weight", 1..=MAX_WEIGHT, r)
    }

    /// Parses `true` or `false`.
    pub fn boolean(&mut self, key: &'static str, r: &mut Reader<'_>) -> Option<bool> {
        let item = self.get(key)?;
        if let DeValue::Boolean(b) = item.get_ref() {
            return Some(*b);
        }
        let what = format!("{key} of {} is {}", self.what, kind_in_words(item.get_ref()));
        r.problems.error(r.line(&item.span()), what, "write true or false");
        None
    }

    /// Parses one value or a list of them; numbers are read as their text.
    pub fn values<T>(
        &mut self,
        key: &'static str,
        r: &mut Reader<'_>,
        mut read: impl FnMut(&str) -> Result<Vec<T>, Refusal>,
    ) -> Vec<Located<T>> {
        let Some(item) = self.get(key) else { return Vec::new() };
        let one = core::slice::from_ref(item);
        let items: &[Item<'_>] = match item.get_ref() {
            DeValue::Array(all) => all.as_ref(),
            _ => one,
        };
        if items.is_empty() || items.len() > MAX_VALUES {
            let what = format!("{key} of {} has {} values", self.what, items.len());
            r.problems.error(
                r.line(&item.span()),
                what,
                format!("give 1 to {MAX_VALUES}, or leave {key} out"),
            );
            return Vec::new();
        }
        let mut out = Vec::new();
        for item in items {
            let line = r.line(&item.span());
            let text = match item.get_ref() {
                DeValue::String(s) => s.to_string(),
                DeValue::Integer(n) => n.to_string(),
                other => {
                    let what = format!("{key} of {} has {} in it", self.what, kind_in_words(other));
                    r.problems.error(line, what, "write texts in quotation marks");
                    continue;
                }
            };
            match read(&text) {
                Ok(values) => out.extend(values.into_iter().map(|value| Located { value, line })),
                Err(no) => {
                    let what = format!("{key} = {} of {} {}", quote(&text), self.what, no.what);
                    r.problems.error(line, what, no.remedy);
                }
            }
        }
        out
    }
}

/// Why a value is refused.
pub struct Refusal {
    /// What is wrong, as the end of a sentence that begins with the key and the text.
    pub what: String,
    /// What to write instead.
    pub remedy: String,
}

/// Parses the name of a class, path or rule, or a pattern of application names.
pub fn name(text: &str) -> Result<String, Refusal> {
    let bad = text.is_empty() || text.chars().nth(MAX_NAME).is_some() || text.chars().any(char::is_control);
    if bad || text.trim() != text {
        return Err(Refusal {
            what: "is not a name".into(),
            remedy: format!("give 1 to {MAX_NAME} printable characters, without a space at either end"),
        });
    }
    Ok(text.to_owned())
}

/// Parses one of several words.
pub fn one_of<T: Copy>(text: &str, all: &[(&'static str, T)]) -> Result<T, Refusal> {
    all.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| Refusal {
        what: "is unknown".into(),
        remedy: did_you_mean(text, all.iter().map(|(name, _)| *name)),
    })
}

fn kind_in_words(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
