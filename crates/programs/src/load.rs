//! Programs into the registry of algorithms, and out of it.

use crate::guard::{Fault, Guarded};
use crate::manifest::{Bad, Manifest};
use crate::sandbox::{Call, Compiled, Running};
use crate::words::View;
use base::{Rng, Span, Time};
use cc::registry::{self, Definition, Loading};
use cc::{Params, PathInfo};
use std::sync::{Arc, Mutex, PoisonError};

/// How a program is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The algorithm that takes its place when it misbehaves, with parameters: a built-in one.
    pub fallback: String,
}

impl Default for Options {
    fn default() -> Options {
        Options { fallback: registry::DEFAULT.to_owned() }
    }
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

/// Names of the programs that are loaded now.
static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// Loads a WebAssembly module as an algorithm that can be selected from now on by the name it gives itself. A program of this
/// name that was loaded before is replaced; flows go on with what they run.
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
    let loading = Loading { name, summary: &summary, params: definitions, needs, build: Box::new(build) };
    let definition = registry::load(loading)?;
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if !names.contains(&name) {
        names.push(name);
    }
    Ok(definition)
}

/// Takes a program's name away: it cannot be selected any more, and flows that run it go on with it. Whether one of this name
/// was loaded.
pub fn unload(name: &str) -> bool {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let before = names.len();
    names.retain(|n| *n != name);
    names.len() < before && registry::unload(name)
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
