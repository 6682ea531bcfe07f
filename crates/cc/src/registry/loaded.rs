//! Algorithms that are loaded and unloaded at run time.
//!
//! A loaded definition stays in memory until the process ends, since flows may use it after it is unloaded. So the
//! number of loads is limited, and equal texts are stored once.

use super::{Build, Definition, Error, NameFault, Needs, ParamDef};
use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Most loads in one process, including those unloaded again.
pub const MAX_LOADS: usize = 10_000;
/// Most different texts (names, units, help, hashes) that one process stores for loaded algorithms.
pub const MAX_TEXTS: usize = 20_000;
/// Longest name of a loadable algorithm, in bytes. The kernel's TCP has the same limit (`TCP_CA_NAME_MAX` without the
/// terminating zero).
pub const MAX_NAME: usize = 15;
/// Names of Linux's own algorithms (`net/ipv4/tcp_*.c`), including those built in here as well.
pub const KERNEL_NAMES: [&str; 18] = [
    "bbr",
    "bic",
    "cdg",
    "cubic",
    "dctcp",
    "dctcp-reno",
    "highspeed",
    "htcp",
    "hybla",
    "illinois",
    "lp",
    "nv",
    "reno",
    "scalable",
    "vegas",
    "veno",
    "westwood",
    "yeah",
];

#[derive(Default)]
struct Loaded {
    definitions: Vec<&'static Definition>,
    loads: usize,
    texts: BTreeSet<&'static str>,
}

static LOADED: RwLock<Loaded> =
    RwLock::new(Loaded { definitions: Vec::new(), loads: 0, texts: BTreeSet::new() });

fn read() -> RwLockReadGuard<'static, Loaded> {
    LOADED.read().unwrap_or_else(PoisonError::into_inner)
}
fn write() -> RwLockWriteGuard<'static, Loaded> {
    LOADED.write().unwrap_or_else(PoisonError::into_inner)
}

/// An algorithm to be loaded: a [`Definition`] created at run time.
#[allow(missing_debug_implementations, reason = "its maker is a closure")]
pub struct Loading<'a> {
    /// Lower-case letters, digits, `-` and `_`, at most [`MAX_NAME`], starting with a letter; not that of a built-in
    /// algorithm, nor one of [`KERNEL_NAMES`].
    pub name: &'a str,
    /// What it is, in a line.
    pub summary: &'a str,
    /// Its parameters, with texts from [`intern`].
    pub params: Vec<ParamDef>,
    /// The signals that it needs from the path.
    pub needs: Needs,
    /// The hash of its code: [`Definition::code`].
    pub code: &'a str,
    /// Creates one for a flow.
    pub build: Box<Build>,
}

/// Stores a text until the process ends; equal texts are stored once.
///
/// # Errors
/// [`Error::Full`] beyond [`MAX_TEXTS`] different texts.
pub fn intern(text: &str) -> Result<&'static str, Error> {
    let mut all = write();
    if let Some(known) = all.texts.get(text) {
        return Ok(known);
    }
    if all.texts.len() >= MAX_TEXTS {
        return Err(Error::Full);
    }
    let text: &'static str = Box::leak(text.to_owned().into_boxed_str());
    all.texts.insert(text);
    Ok(text)
}

/// Checks whether an algorithm can be loaded under this name.
///
/// # Errors
/// [`Error::BadName`] for names that are taken or invalid.
pub fn check_name(name: &str) -> Result<(), Error> {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    let starts = name.as_bytes().first().is_some_and(u8::is_ascii_lowercase);
    let fault = if super::is_built_in(name) {
        NameFault::BuiltIn
    } else if KERNEL_NAMES.contains(&name) {
        NameFault::Kernel
    } else if !starts || name.len() > MAX_NAME || !name.bytes().all(fits) {
        NameFault::Form
    } else {
        return Ok(());
    };
    Err(Error::BadName { name: name.chars().take(2 * MAX_NAME).collect(), fault })
}

/// Registers an algorithm under its name. A loaded algorithm of the same name is replaced; flows that run it keep it.
///
/// # Errors
/// [`Error::BadName`] for names that are taken or invalid, [`Error::Full`] beyond [`MAX_LOADS`].
pub fn load(l: Loading<'_>) -> Result<&'static Definition, Error> {
    check_name(l.name)?;
    let (name, summary, code) = (intern(l.name)?, intern(l.summary)?, intern(l.code)?);
    let mut all = write();
    if all.loads >= MAX_LOADS {
        return Err(Error::Full);
    }
    all.loads += 1;
    let def: &'static Definition = Box::leak(Box::new(Definition {
        name,
        summary,
        params: Vec::leak(l.params),
        needs: l.needs,
        code,
        build: Box::leak(l.build),
    }));
    all.definitions.retain(|d| d.name != name);
    all.definitions.push(def);
    Ok(def)
}

/// Unregisters a loaded algorithm; flows that run it keep it. Returns whether there was one.
pub fn unload(name: &str) -> bool {
    let mut all = write();
    let before = all.definitions.len();
    all.definitions.retain(|d| d.name != name);
    all.definitions.len() < before
}

/// The loaded algorithms, in the order of loading.
pub(super) fn all() -> Vec<&'static Definition> {
    read().definitions.clone()
}

pub(super) fn find(name: &str) -> Option<&'static Definition> {
    read().definitions.iter().find(|d| d.name == name).copied()
}
