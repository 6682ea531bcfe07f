//! One table of the file, whose keys are asked for one by one; what nobody asked for is unknown.

use super::algorithms::Known;
use crate::problem::{Problems, did_you_mean, quote};
use crate::spec::{At, MAX_NAME, MAX_VALUES, MAX_WEIGHT};
use crate::units;
use base::Rate;
use core::ops::Range;
use std::rc::Rc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A value of the file with its place.
pub type Item<'a> = Spanned<DeValue<'a>>;

/// The file's lines, and what is wrong with it so far.
pub struct Reader<'a> {
    text: &'a str,
    starts: Vec<usize>,
    pub problems: Problems,
    /// What may be named as an algorithm.
    pub algorithms: Rc<Known>,
}

impl<'a> Reader<'a> {
    /// For this process, or (`elsewhere`) for hosts of which nothing is known here.
    pub fn new(text: &'a str, elsewhere: bool) -> Reader<'a> {
        let starts = core::iter::once(0).chain(text.match_indices('\n').map(|(i, _)| i + 1)).collect();
        let algorithms = Rc::new(Known { elsewhere, programs: Vec::new() });
        Reader { text, starts, problems: Problems::default(), algorithms }
    }

    /// The line of a place in the file, from 1.
    pub fn line(&self, span: &Range<usize>) -> usize {
        self.starts.partition_point(|start| *start <= span.start.min(self.text.len())).max(1)
    }
}

/// A table and which of its keys were asked for.
pub struct Table<'t, 'a> {
    /// What it is, in words: `[[class]] "storage"`.
    pub what: String,
    /// Where it begins.
    pub line: usize,
    table: &'t DeTable<'a>,
    known: Vec<&'static str>,
}

impl<'t, 'a> Table<'t, 'a> {
    /// A value that should be a table.
    pub fn of(what: impl Into<String>, item: &'t Item<'a>, r: &mut Reader<'_>) -> Option<Table<'t, 'a>> {
        let (what, line) = (what.into(), r.line(&item.span()));
        match item.get_ref() {
            DeValue::Table(table) => Some(Table { what, line, table, known: Vec::new() }),
            other => {
                r.problems.error(
                    line,
                    format!("{what} is {}, not a table", kind(other)),
                    "write it as a table",
                );
                None
            }
        }
    }

    /// The whole file.
    pub fn root(table: &'t DeTable<'a>) -> Table<'t, 'a> {
        Table { what: "the policy".into(), line: 1, table, known: Vec::new() }
    }

    /// All keys and values, for tables whose keys are names of the administrator's.
    pub fn entries(&self, r: &Reader<'_>) -> Vec<(At<String>, &'t Item<'a>)> {
        let entry = |(k, v): (&'t Spanned<_>, _)| {
            let key: &std::borrow::Cow<'_, str> = k.get_ref();
            (At { value: key.to_string(), line: r.line(&k.span()) }, v)
        };
        self.table.iter().map(entry).collect()
    }

    /// The value of a key.
    pub fn get(&mut self, key: &'static str) -> Option<&'t Item<'a>> {
        self.known.push(key);
        self.table.get(key)
    }

    /// Complains about keys that nobody asked for.
    pub fn finish(self, r: &mut Reader<'_>) {
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if !self.known.contains(&name) {
                let line = r.line(&key.span());
                let what = format!("{} has no key {}", self.what, quote(name));
                r.problems.error(line, what, did_you_mean(name, self.known.iter().copied()));
            }
        }
    }

    /// Reads a text by `read`, which says what to write instead if it cannot.
    pub fn text<T>(
        &mut self,
        key: &'static str,
        r: &mut Reader<'_>,
        read: impl FnOnce(&str) -> Result<T, Refusal>,
    ) -> Option<At<T>> {
        let item = self.get(key)?;
        let line = r.line(&item.span());
        let DeValue::String(text) = item.get_ref() else {
            let what = format!("{key} of {} is {}", self.what, kind(item.get_ref()));
            r.problems.error(line, what, "write a text in quotation marks");
            return None;
        };
        match read(text) {
            Ok(value) => Some(At { value, line }),
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

    /// A rate.
    pub fn rate(&mut self, key: &'static str, r: &mut Reader<'_>) -> Option<At<Rate>> {
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

    /// A whole number of a range.
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

    /// A weight.
    pub fn weight(&mut self, r: &mut Reader<'_>) -> Option<u32> {
        self.number("weight", 1..=MAX_WEIGHT, r)
    }

    /// `true` or `false`.
    pub fn switch(&mut self, key: &'static str, r: &mut Reader<'_>) -> Option<bool> {
        let item = self.get(key)?;
        if let DeValue::Boolean(b) = item.get_ref() {
            return Some(*b);
        }
        let what = format!("{key} of {} is {}", self.what, kind(item.get_ref()));
        r.problems.error(r.line(&item.span()), what, "write true or false");
        None
    }

    /// One value or a list of them; numbers count as their texts.
    pub fn values<T>(
        &mut self,
        key: &'static str,
        r: &mut Reader<'_>,
        mut read: impl FnMut(&str) -> Result<Vec<T>, Refusal>,
    ) -> Vec<At<T>> {
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
                    let what = format!("{key} of {} has {} in it", self.what, kind(other));
                    r.problems.error(line, what, "write texts in quotation marks");
                    continue;
                }
            };
            match read(&text) {
                Ok(values) => out.extend(values.into_iter().map(|value| At { value, line })),
                Err(no) => {
                    let what = format!("{key} = {} of {} {}", quote(&text), self.what, no.what);
                    r.problems.error(line, what, no.remedy);
                }
            }
        }
        out
    }
}

/// Why a value is not taken.
pub struct Refusal {
    /// What is wrong with it, behind its key and text.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// A name of a class, path or rule; also a pattern of an application's name.
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

/// One of several words.
pub fn one_of<T: Copy>(text: &str, all: &[(&'static str, T)]) -> Result<T, Refusal> {
    all.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| Refusal {
        what: "is unknown".into(),
        remedy: did_you_mean(text, all.iter().map(|(name, _)| *name)),
    })
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
