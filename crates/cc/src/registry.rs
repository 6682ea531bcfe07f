//! Algorithms by name: one definition of each algorithm and its parameters feeds parsing, help and making.

mod params;
#[cfg(test)]
mod tests;

pub use params::{Kind, MAX_TEXT, ParamDef, Params, Value};

use crate::{Algorithm, PathInfo, algorithms};
use base::Rng;

/// The algorithm used when none is named.
pub const DEFAULT: &str = "haul";

/// Makes an algorithm from checked parameters.
pub type Build = fn(&Params, &PathInfo, Rng) -> Box<dyn Algorithm>;

/// An algorithm that can be selected.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// The name it is selected by.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// Its parameters.
    pub params: &'static [ParamDef],
    pub(crate) build: Build,
}

impl Definition {
    /// All parameters at their defaults.
    pub fn defaults(&'static self) -> Params {
        Params::default().for_definition(self)
    }
}

/// Why an algorithm could not be selected or made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No algorithm has this name.
    #[error("no congestion-control algorithm is called \"{name}\"; choose one of: {}", names().join(", "))]
    UnknownAlgorithm {
        /// The name asked for.
        name: String,
    },
    /// The algorithm has no such parameter.
    #[error("{algorithm} has no parameter \"{key}\"; it has: {}", keys_of(algorithm))]
    UnknownParameter {
        /// The algorithm's name.
        algorithm: &'static str,
        /// The parameter asked for.
        key: String,
    },
    /// The value is not one the parameter takes.
    #[error("{algorithm}: {key}={value} is not valid; give {expected}")]
    InvalidValue {
        /// The algorithm's name.
        algorithm: &'static str,
        /// The parameter.
        key: &'static str,
        /// The text given.
        value: String,
        /// What would be valid.
        expected: String,
    },
    /// The text is not of the form `key=value,key=value`.
    #[error("\"{text}\" is not of the form key=value; separate parameters by commas")]
    Syntax {
        /// The piece at fault.
        text: String,
    },
    /// The text is longer than any selection needs to be.
    #[error("the selection is {len} bytes long; at most {MAX_TEXT} are read")]
    TooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// The parameters were checked for another algorithm.
    #[error("these parameters belong to {theirs}, not to {name}; parse them with the right name")]
    WrongAlgorithm {
        /// The algorithm to be made.
        name: &'static str,
        /// The algorithm the parameters were parsed for.
        theirs: &'static str,
    },
}

/// All algorithms, the default first.
pub fn list() -> &'static [Definition] {
    algorithms::ALL
}

/// The names of all algorithms, the default first.
pub fn names() -> Vec<&'static str> {
    list().iter().map(|d| d.name).collect()
}

/// The definition of the algorithm called `name`.
///
/// # Errors
/// [`Error::UnknownAlgorithm`].
pub fn find(name: &str) -> Result<&'static Definition, Error> {
    list()
        .iter()
        .find(|d| d.name == name)
        .ok_or_else(|| Error::UnknownAlgorithm { name: name.chars().take(MAX_TEXT).collect() })
}

/// Reads a selection such as `bbr`, `bbr:probe_rtt=off` or `fixed:rate=900M,breaker=10%`.
///
/// # Errors
/// Any [`Error`] but [`Error::WrongAlgorithm`].
pub fn parse(text: &str) -> Result<(&'static Definition, Params), Error> {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let def = find(name.trim())?;
    Ok((def, Params::parse(def.name, rest)?))
}

/// Makes the algorithm called `name` for a path. `Params::default()` stands for all defaults.
///
/// # Errors
/// [`Error::UnknownAlgorithm`], or [`Error::WrongAlgorithm`] when `params` were parsed for another one.
pub fn create(name: &str, params: &Params, info: &PathInfo, rng: Rng) -> Result<Box<dyn Algorithm>, Error> {
    let def = find(name)?;
    match params.algorithm() {
        Some(theirs) if theirs != def.name => Err(Error::WrongAlgorithm { name: def.name, theirs }),
        _ => Ok((def.build)(&params.for_definition(def), info, rng)),
    }
}

/// Help for all algorithms and parameters, as plain text.
pub fn help() -> String {
    let mut out = String::new();
    for def in list() {
        let mark = if def.name == DEFAULT { " (default)" } else { "" };
        out.push_str(&format!("{}{mark}: {}\n", def.name, def.summary));
        for p in def.params {
            out.push_str(&format!("    {}={}  {}\n", p.name, p.kind.describe(), p.help));
        }
    }
    out
}

fn keys_of(algorithm: &str) -> String {
    let keys: Vec<_> =
        list().iter().filter(|d| d.name == algorithm).flat_map(|d| d.params).map(|p| p.name).collect();
    if keys.is_empty() { "none".into() } else { keys.join(", ") }
}
