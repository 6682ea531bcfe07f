//! The registry of algorithms: one definition per algorithm for parsing, help and creation.

mod kernel;
mod loaded;
mod params;
#[cfg(test)]
mod tests;

pub use kernel::kernel_names;
pub use loaded::{KERNEL_NAMES, Loading, MAX_LOADS, MAX_NAME, MAX_TEXTS, check_name, intern, load, unload};
pub use params::{Kind, MAX_TEXT, ParamDef, Params, Value};

use crate::{Algorithm, PathInfo, algorithms};
use base::Rng;

/// The algorithm used if none is named.
pub const DEFAULT: &str = "haul";

/// Creates an algorithm from checked parameters.
pub type Build = dyn Fn(&Params, &PathInfo, Rng) -> Box<dyn Algorithm> + Send + Sync;

/// The congestion marks that an algorithm needs, which determine the codepoint of its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Marks {
    /// It treats marks as losses (RFC 3168) or ignores them, and works without: ECT(0).
    #[default]
    Optional,
    /// It steers by the share of marked packets (DCTCP, RFC 8257) and needs marks: ECT(0).
    Step,
    /// It takes part in L4S (RFC 9331) and needs L4S marks: ECT(1).
    L4s,
}

/// Signals that an algorithm needs; on paths without them a fallback is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Congestion marks.
    pub marks: Marks,
    /// Telemetry of the hops ([`Hop`](crate::Hop)).
    pub telemetry: bool,
}

impl Needs {
    /// Nothing besides feedback.
    pub const NOTHING: Needs = Needs { marks: Marks::Optional, telemetry: false };
}

/// An algorithm that can be selected.
#[derive(Clone, Copy)]
pub struct Definition {
    /// The name it is selected by.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// Its parameters.
    pub params: &'static [ParamDef],
    /// The signals that it needs from the path.
    pub needs: Needs,
    /// A short hash that identifies the code of a loaded algorithm; empty for built-in ones.
    pub code: &'static str,
    /// Creates one for a flow.
    pub build: &'static Build,
}

impl core::fmt::Debug for Definition {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Definition")
            .field("name", &self.name)
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

impl Definition {
    /// Creates one for a flow with these parameters, also after its name was unloaded or given to other code.
    pub fn make(&'static self, params: &Params, info: &PathInfo, rng: Rng) -> Box<dyn Algorithm> {
        (self.build)(&params.for_definition(self), info, rng)
    }

    /// All parameters at their defaults.
    pub fn defaults(&'static self) -> Params {
        Params::default().for_definition(self)
    }

    /// A fingerprint of the name, the needs and the parameters with types, units, ranges and defaults, by which two
    /// ends verify that they mean the same algorithm. Never 0.
    pub fn version(&self) -> u32 {
        // FNV-1a, 32 bits (draft-eastlake-fnv, section 2). It need not resist attackers, who gain nothing from equal
        // values.
        let mut hash = 0x811c_9dc5_u32;
        let mut add = |text: &str| {
            // 0xff, which no text contains, separates the parts.
            for b in text.bytes().chain([0xff]) {
                hash = (hash ^ u32::from(b)).wrapping_mul(0x0100_0193);
            }
        };
        add(self.name);
        add(&format!("{:?}", self.needs));
        for p in self.params {
            add(p.name);
            add(&p.kind.describe());
        }
        hash.max(1)
    }
}

/// Why a program cannot have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameFault {
    /// It belongs to a built-in algorithm.
    #[error("an algorithm of this name is built in")]
    BuiltIn,
    /// It belongs to an algorithm of Linux, and would be ambiguous.
    #[error("an algorithm of the Linux kernel's TCP has this name")]
    Kernel,
    /// It is too long or has invalid characters.
    #[error("a name has not this form")]
    Form,
}

/// Why an algorithm could not be selected or created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No algorithm has this name.
    #[error("no congestion-control algorithm is called \"{name}\"; choose one of: {}", names().join(", "))]
    UnknownAlgorithm {
        /// The name asked for.
        name: String,
    },
    /// The algorithm has no such parameter.
    #[error("{algorithm} has no parameter \"{key}\"; it has: {}", parameter_names(algorithm))]
    UnknownParameter {
        /// The algorithm's name.
        algorithm: &'static str,
        /// The parameter asked for.
        key: String,
    },
    /// The value is not valid for the parameter.
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
        /// The algorithm to be created.
        name: &'static str,
        /// The algorithm the parameters were parsed for.
        theirs: &'static str,
    },
    /// An algorithm to be loaded has an invalid name.
    #[error(
        "cannot call a program \"{name}\": {fault}; try another name, of lower-case letters, digits, - and _, a letter first, \
         {MAX_NAME} at most"
    )]
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        fault: NameFault,
    },
    /// Too many were loaded.
    #[error("{MAX_LOADS} algorithms were loaded by this process already: start it again")]
    Full,
}

/// All algorithms: the default, the other built-in ones, then the loaded ones.
pub fn list() -> Vec<&'static Definition> {
    algorithms::ALL.iter().chain(loaded::all()).collect()
}

/// Whether an algorithm of this name is built in and therefore always available.
pub fn is_built_in(name: &str) -> bool {
    algorithms::ALL.iter().any(|d| d.name == name)
}

/// The names of all algorithms, the default first.
pub fn names() -> Vec<&'static str> {
    list().into_iter().map(|d| d.name).collect()
}

/// The definition of the algorithm called `name`.
///
/// # Errors
/// [`Error::UnknownAlgorithm`].
pub fn find(name: &str) -> Result<&'static Definition, Error> {
    let built_in = algorithms::ALL.iter().find(|d| d.name == name);
    // The kernel's names have _ where those of programs have -; both forms are accepted.
    let as_here = || loaded::find(&name.replace('_', "-"));
    built_in
        .or_else(|| loaded::find(name))
        .or_else(as_here)
        .ok_or_else(|| Error::UnknownAlgorithm { name: name.chars().take(MAX_TEXT).collect() })
}

/// Parses a selection such as `bbr`, `bbr:probe_rtt=off` or `fixed:rate=900M,breaker=10%`.
///
/// # Errors
/// Any [`Error`] but [`Error::WrongAlgorithm`].
pub fn parse(text: &str) -> Result<(&'static Definition, Params), Error> {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let def = find(name.trim())?;
    Ok((def, Params::parse(def.name, rest)?))
}

/// Splits a list of selections, best first: `haul,cubic:hystart=off,initial_window=20,reno` has three. A piece
/// between commas of the form `key=value` belongs to the selection before it. Nothing is checked; see [`parse`].
pub fn preferences(text: &str) -> Vec<&str> {
    let is_name = |piece: &str| piece.find('=').is_none_or(|at| piece[..at].contains(':'));
    let (mut all, mut from, mut at) = (Vec::new(), 0, 0);
    for piece in text.split(',') {
        if at > 0 && is_name(piece) {
            all.push(text[from..at - 1].trim());
            from = at;
        }
        at += piece.len() + 1;
    }
    all.push(text[from..].trim());
    all
}

/// Creates the algorithm called `name` for a path. `Params::default()` stands for all defaults.
///
/// # Errors
/// [`Error::UnknownAlgorithm`], or [`Error::WrongAlgorithm`] when `params` were parsed for another one.
pub fn create(name: &str, params: &Params, info: &PathInfo, rng: Rng) -> Result<Box<dyn Algorithm>, Error> {
    let def = find(name)?;
    match params.algorithm() {
        Some(theirs) if theirs != def.name => Err(Error::WrongAlgorithm { name: def.name, theirs }),
        _ => Ok(def.make(params, info, rng)),
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

fn parameter_names(algorithm: &str) -> String {
    let keys: Vec<_> =
        list().into_iter().filter(|d| d.name == algorithm).flat_map(|d| d.params).map(|p| p.name).collect();
    if keys.is_empty() { "none".into() } else { keys.join(", ") }
}
