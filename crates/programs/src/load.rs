//! Loads programs into the registry of algorithms, and unloads them.

use crate::guard::{Fault, Guarded};
use crate::manifest::{Bad, Manifest};
use crate::sandbox::{Call, Compiled, Running};
use crate::words::View;
use base::{Rng, Span, Time};
use cc::registry::{self, Definition, Loading};
use cc::{Params, PathInfo};
use std::sync::{Arc, Mutex, PoisonError};

/// Hexadecimal digits of the hash that identifies a program's code.
const CODE_DIGITS: usize = 12;

/// How a program is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The built-in algorithm, with parameters, that replaces it when it misbehaves.
    pub fallback: String,
    /// The file it comes from, for display; empty if unknown.
    pub source: String,
    /// When it is loaded, in seconds since 1970, for display; 0 if unknown.
    pub since: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { fallback: registry::DEFAULT.to_owned(), source: String::new(), since: 0 }
    }
}

/// A loaded program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The name it is selected by.
    pub name: &'static str,
    /// The first digits of the BLAKE3 hash of its module, which tells versions of a program apart.
    pub code: &'static str,
    /// [`Options::source`].
    pub source: String,
    /// [`Options::since`].
    pub since: u64,
}

/// Why a program cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Its manifest is missing or invalid.
    #[error("not a program: {0}")]
    Manifest(#[from] Bad),
    /// Its code is invalid or does not have the exports that `opencc.h` defines.
    #[error("not a program that can run: {0}")]
    Code(String),
    /// It fails in a test start.
    #[error("{name} {fault} when it is started: correct it, and look at it with `longhaul cc test`")]
    Start {
        /// Its name.
        name: String,
        /// Its fault.
        fault: Fault,
    },
    /// Its name is taken, too many programs were loaded, or the fallback is unknown.
    #[error(transparent)]
    Registry(#[from] cc::Error),
    /// The fallback is not built in, so it may be unloaded.
    #[error(
        "{0} is itself loaded, and so cannot be a fallback: choose a built-in algorithm (`longhaul cc list`)"
    )]
    Fallback(String),
}

/// A compiled program with its fallback.
#[derive(Debug)]
pub(crate) struct Program {
    pub name: &'static str,
    pub manifest: Manifest,
    pub compiled: Compiled,
    pub fallback: (&'static str, Params),
}

/// The programs that are loaded now.
static LOADED: Mutex<Vec<Loaded>> = Mutex::new(Vec::new());

/// The loaded programs, in the order of their names' first loading.
pub fn loaded() -> Vec<Loaded> {
    LOADED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The first digits of a module's BLAKE3 hash.
pub fn code_hash(module: &[u8]) -> String {
    blake3::hash(module).to_hex()[..CODE_DIGITS].to_owned()
}

/// Loads a WebAssembly module and registers it as an algorithm under the name in its manifest. A loaded program
/// of the same name is replaced. Existing flows keep running the old code until they are told to switch
/// (`Endpoint::renew_program`).
///
/// Takes some milliseconds, since the module is compiled.
///
/// # Errors
/// Any [`LoadError`]; then nothing has changed.
pub fn load_bytes(module: &[u8], options: &Options) -> Result<&'static Definition, LoadError> {
    let manifest = Manifest::of_wasm(module)?;
    let (fallback, params) = registry::parse(&options.fallback)?;
    if !registry::is_built_in(fallback.name) {
        return Err(LoadError::Fallback(fallback.name.to_owned()));
    }
    let compiled = Compiled::new(module).map_err(LoadError::Code)?;
    let failed = |fault| LoadError::Start { name: manifest.name.clone(), fault };
    test_start(&compiled, &manifest).map_err(failed)?;
    let (name, needs) = (registry::intern(&manifest.name)?, manifest.needs);
    let (summary, definitions) = (manifest.summary.clone(), manifest.params.clone());
    let program = Arc::new(Program { name, manifest, compiled, fallback: (fallback.name, params) });
    let build = move |params: &Params, info: &PathInfo, rng: Rng| -> Box<dyn cc::Algorithm> {
        Box::new(Guarded::new(program.clone(), params, info, rng))
    };
    let (build, code) = (Box::new(build), code_hash(module));
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

/// Unregisters a program: it can no longer be selected, and flows that run it continue. Returns whether a program
/// of this name was loaded.
pub fn unload(name: &str) -> bool {
    let mut all = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let before = all.len();
    all.retain(|l| l.name != name);
    all.len() < before && registry::unload(name)
}

/// Starts the program once as for a flow, so that a program that cannot work fails at loading and not in the
/// first flow.
fn test_start(compiled: &Compiled, manifest: &Manifest) -> Result<(), Fault> {
    let info = PathInfo {
        packet_bytes: 1_500,
        handshake_rtt: Some(Span::from_millis(10)),
        ecn: true,
        known_rate: None,
        remembered: None,
    };
    let mut running = Running::new(compiled, &manifest.values(&Params::default()))?;
    let answer = running.call(Call::Init, &View::new(&info).start(Time::ZERO))?;
    crate::guard::check_answer(&answer, info.packet_bytes).map(|_| ())
}
