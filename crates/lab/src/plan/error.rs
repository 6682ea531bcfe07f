//! Errors in plans, with their position and a remedy.

use std::ops::Range;

/// A mistake in a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{plan}, line {line}: {key}: {text}")]
pub struct PlanError {
    /// The plan's name or file.
    pub plan: String,
    /// Line in the file, from 1.
    pub line: usize,
    /// The key, with its table (`topology.rate`).
    pub key: String,
    /// What is wrong and what to write instead.
    pub text: String,
}

/// The text of a plan, in which line numbers are looked up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub name: &'a str,
    pub text: &'a str,
}

impl Source<'_> {
    /// The line a byte of the text is on, from 1.
    fn line(&self, at: usize) -> usize {
        let at = at.min(self.text.len());
        1 + self.text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count()
    }

    /// An error at `span`.
    pub fn error(
        &self,
        span: Range<usize>,
        key: impl Into<String>,
        text: impl std::fmt::Display,
    ) -> PlanError {
        let (plan, line) = (self.name.to_owned(), self.line(span.start));
        PlanError { plan, line, key: key.into(), text: text.to_string() }
    }

    /// Converts an error of the TOML reader. The key is what precedes the `=` in its line.
    pub fn toml(&self, e: &toml::de::Error) -> PlanError {
        let span = e.span().unwrap_or(0..0);
        let line = self.line(span.start);
        let text = self.text.lines().nth(line - 1).unwrap_or("");
        let key = text.split('=').next().unwrap_or("").trim();
        let key = if key.is_empty() { "the file" } else { key };
        let message = e.message().trim();
        let way_out = match message {
            m if m.starts_with("unknown field") => "; remove or correct it",
            m if m.starts_with("missing field") => "; add it",
            m if m.starts_with("unknown variant") => "; choose one of these",
            _ => "; see `longhaul lab list --keys`",
        };
        self.error(span, key, format!("{message}{way_out}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_numbers_start_at_one() {
        let s = Source { name: "x.toml", text: "a = 1\nb = 2\n" };
        assert_eq!(s.error(0..1, "a", "wrong").to_string(), "x.toml, line 1: a: wrong");
        assert_eq!(s.error(6..7, "b", "wrong").line, 2);
        assert_eq!(s.error(900..901, "b", "wrong").line, 3);
    }
}
