//! Programs into the registry of algorithms, and out of it.

use crate::guard::{Fault, Guarded};
use crate::manifest::{Bad, Manifest};
use crate::sandbox::{Call, Compiled, Running};
use crate::words::View;
use base::{Rng, Span, Time};
use cc::registry::{self, Definition, Loading};
use cc::{Params, PathInfo};
use std::sync::{Arc, Mutex, PoisonError};

/// Digits of the hash that tells programs apart.
const CODE_DIGITS: usize = 12;

/// How a program is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The algorithm that takes its place when it misbehaves, with parameters: a built-in one.
    pub fallback: String,
    /// The file it is from, for people; empty when that is not known.
    pub source: String,
    /// When it is loaded, in seconds since 1970, for people; 0 when that is not known.
    pub since: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { fallback: registry::DEFAULT.to_owned(), source: String::new(), since: 0 }
    }
}

/// A program that is loaded now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The name it is selected by.
    pub name: &'static str,
    /// The first digits of the BLAKE3 hash of its module: what tells its code from other code by this name.
    pub code: &'static str,
    /// [`Options::source`].
    pub source: String,
    /// [`Options::since`].
    pub since: u64,
}

/// Why a program cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// It does not say what it is, or not in a way that is understood.
    #[error("not a program: {0}")]
    Manifest(#[from] Bad),
    /// Its code is not valid, or not of the form that `opencc.h` gives it.
    #[error("not a program that can run: {0}")]
    Code(String),
    /// It fails before it has seen any traffic.
    #[error("{name} {fault} when it is started: correct it, and look at it with `longhaul cc test`")]
    Start {
        /// Its name.
        name: String,
        /// What it does.
        fault: Fault,
    },
    /// Its name is taken, or there were too many; or the fallback is unknown.
    #[error(transparent)]
    Registry(#[from] cc::Error),
    /// The fallback can be gone.
    #[error(
        "{0} is itself loaded, and so cannot be a fallback: choose a built-in algorithm (`longhaul cc list`)"
    )]
    Fallback(String),
}

/// A loaded program.
#[derive(Debug)]
pub(crate) struct Program {
    pub name: &'static str,
    pub manifest: Manifest,
    pub compiled: Compiled,
    pub fallback: (&'static str, Params),
}

/// The programs that are loaded now.
static LOADED: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// The programs that are loaded now, in the order in which their names came.
pub fn loaded() -> Vec<Loaded> {
    LOADED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// What tells a module from others: the first digits of its BLAKE3 hash.
pub fn code_of(module: &[u8]) -> String {
    blake3::hash(module).to_hex()[..CODE_DIGITS].to_owned()
}

/// Loads a WebAssembly module as an algorithm that can be selected from now on by the name it gives itself. A program of this
/// name that was loaded before is replaced. Flows go on with what they run, until they are told to run the new code
/// (`Endpoint::renew_program`).
///
/// Takes some milliseconds: the module is compiled.
///
/// # Errors
/// Any [`LoadError`]; then nothing changed.
pub fn load_bytes(module: &[u8], options: &Options) -> Result<&'static Definition, LoadError> {
    let manifest = Manifest::of_wasm(module)?;
    let (fallback, params) = registry::parse(&options.fallback)?;
    if !registry::is_built_in(fallback.name) {
        return Err(LoadError::Fallback(fallback.name.to_owned()));
    }
    let compiled = Compiled::new(module).map_err(LoadError::Code)?;
    let failed = |fault| LoadError::Start { name: manifest.name.clone(), fault };
    try_start(&compiled, &manifest).map_err(failed)?;
    let (name, needs) = (registry::kept(&manifest.name)?, manifest.needs);
    let (summary, definitions) = (manifest.summary.clone(), manifest.params.clone());
    let program = Arc::new(Program { name, manifest, compiled, fallback: (fallback.name, params) });
    let build = move |params: &Params, info: &PathInfo, rng: Rng| -> Box<dyn cc::Algorithm> {
        Box::new(Guarded::new(program.clone(), params, info, rng))
    };
    let (build, code) = (Box::new(build), code_of(module));
    let loading = Loading { name, summary: &summary, params: definitions, needs, code: &code, build };
    let definition = registry::load(loading)?;
    let this = Loaded { name, code: definition.code, source: options.source.clone(), since: options.since };
    let mut all = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    match all.iter_mut().find(|l| l.name == name) {
        Some(l) => *l = this,
        None => all.push(this),
    }
    Ok(definition)
}

/// Takes a program's name away: it cannot be selected any more, and flows that run it go on with it. Whether one of this name
/// was loaded.
pub fn unload(name: &str) -> bool {
    let mut all = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = all.len();
    all.retain(|l| l.name != name);
    all.len() < before && registry::unload(name)
}

/// Starts it once as for a flow, so that what cannot work is told to whoever loads it and not found by the first flow.
fn try_start(compiled: &Compiled, manifest: &Manifest) -> Result<(), Fault> {
    let info = PathInfo {
        packet_bytes: 1_500,
        handshake_rtt: Some(Span::from_millis(10)),
        ecn: true,
        known_rate: None,
        remembered: None,
    };
    let mut running = Running::new(compiled, &manifest.values(&Params::default()))?;
    let answer = running.call(Call::Init, &View::new(&info).start(Time::ZERO))?;
    crate::guard::check(&answer, info.packet_bytes).map(|_| ())
}
