//! Problems of a policy file, each with its line, a description and a remedy.

use core::fmt;

/// Most problems that are listed for one file; the rest is only counted.
pub const MAX_PROBLEMS: usize = 200;
/// Longest piece of a file that a problem quotes, in characters.
const MAX_QUOTE: usize = 64;

/// Whether the policy can be used in spite of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The policy cannot be used.
    Error,
    /// The policy can be used, but may not do what was meant.
    Warning,
}

/// One thing that is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Problem {
    /// Whether the policy can be used all the same.
    pub severity: Severity,
    /// The line of the file, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        };
        write!(f, "line {}: {word}: {}; {}", self.line, self.message, self.remedy)
    }
}

/// Everything that is wrong with a policy, in the order of the lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Problems {
    /// The problems, at most [`MAX_PROBLEMS`].
    pub list: Vec<Problem>,
    /// How many more were found.
    pub omitted: usize,
    /// How many are errors, including those not listed.
    pub errors: usize,
}

impl Problems {
    /// Adds a problem because of which the policy cannot be used.
    pub(crate) fn error(&mut self, line: usize, what: impl Into<String>, remedy: impl Into<String>) {
        self.errors += 1;
        self.add(Problem { severity: Severity::Error, line, message: what.into(), remedy: remedy.into() });
    }

    /// Adds a problem in spite of which the policy can be used.
    pub(crate) fn warning(&mut self, line: usize, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Problem { severity: Severity::Warning, line, message: what.into(), remedy: remedy.into() });
    }

    fn add(&mut self, p: Problem) {
        if self.list.len() < MAX_PROBLEMS {
            self.list.push(p);
            return;
        }
        self.omitted += 1;
        // An error takes the place of a listed warning.
        let warning = self.list.iter().rposition(|q| q.severity == Severity::Warning);
        if let Some(at) = warning.filter(|_| p.severity == Severity::Error) {
            self.list[at] = p;
        }
    }

    /// Whether the policy can be used.
    pub fn is_usable(&self) -> bool {
        self.errors == 0
    }

    pub(crate) fn sort(&mut self) {
        self.list.sort_by_key(|p| p.line);
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, p) in self.list.iter().enumerate() {
            write!(f, "{}{p}", if i == 0 { "" } else { "\n" })?;
        }
        match self.omitted {
            0 => Ok(()),
            n => write!(f, "\n... and {n} more"),
        }
    }
}

impl std::error::Error for Problems {}

/// A piece of the file in quotation marks, shortened and with control characters escaped.
pub(crate) fn quote(text: &str) -> String {
    let shown: String = text.chars().take(MAX_QUOTE).flat_map(char::escape_debug).collect();
    let cut = if text.chars().nth(MAX_QUOTE).is_some() { "..." } else { "" };
    format!("\"{shown}{cut}\"")
}

/// Suggests the most similar of `known`, or lists them all.
pub(crate) fn did_you_mean<'a>(text: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<_> = known.into_iter().collect();
    let text: String = text.chars().take(MAX_QUOTE).collect();
    let near = known
        .iter()
        .map(|k| (strsim::damerau_levenshtein(&text.to_lowercase(), &k.to_lowercase()), *k))
        .filter(|(distance, k)| *distance <= 1 + k.len() / 4)
        .min_by_key(|(distance, _)| *distance);
    match near {
        Some((_, k)) => format!("did you mean {}?", quote(k)),
        None if known.is_empty() => "there is none to name".to_owned(),
        None => format!("choose one of: {}", join_names(&known)),
    }
}

/// Names separated by commas, shortened where there are many.
fn join_names(names: &[&str]) -> String {
    const SHOWN: usize = 24;
    let mut text = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(", and {} more", names.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_replace_warnings_in_a_full_list_and_the_rest_is_counted() {
        let mut p = Problems::default();
        for line in 0..MAX_PROBLEMS {
            p.warning(line + 1, "x", "y");
        }
        assert!(p.is_usable());
        p.error(7, "bad", "mend it");
        p.warning(8, "x", "y");
        assert_eq!((p.list.len(), p.omitted, p.errors), (MAX_PROBLEMS, 2, 1));
        assert!(
            p.to_string().contains("line 7: error: bad; mend it") && p.to_string().ends_with("and 2 more")
        );
        assert!(!p.is_usable());
    }

    #[test]
    fn close_misspellings_are_guessed_and_others_get_the_list() {
        assert_eq!(did_you_mean("wieght", ["weight", "level"]), "did you mean \"weight\"?");
        assert_eq!(did_you_mean("Weight", ["weight", "level"]), "did you mean \"weight\"?");
        assert_eq!(did_you_mean("colour", ["weight", "level"]), "choose one of: weight, level");
        assert_eq!(quote("a\nb"), "\"a\\nb\"");
        assert_eq!(quote(&"x".repeat(65)).len(), 64 + 5);
    }
}
