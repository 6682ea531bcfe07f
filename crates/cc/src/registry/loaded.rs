//! Algorithms that come and go while the program runs.
//!
//! A definition that was loaded stays in memory for as long as the process: flows may use it after its name was taken
//! away. So loads are counted, and texts that come again are kept once.

use super::{Build, Definition, Error, NameFault, Needs, ParamDef};
use std::collections::BTreeSet;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Loads that one process takes, those included that were unloaded again.
pub const MAX_LOADS: usize = 10_000;
/// Different texts (names, units, help, codes) that one process keeps for loaded algorithms.
pub const MAX_TEXTS: usize = 20_000;
/// Longest name of an algorithm that can be loaded, in bytes: what the kernel's TCP takes as well, which is Linux's
/// `TCP_CA_NAME_MAX` without the zero at the end.
pub const MAX_NAME: usize = 15;
/// What Linux calls its own algorithms (`net/ipv4/tcp_*.c`). Those that are built in here as well are among them.
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
    now: Vec<&'static Definition>,
    loads: usize,
    texts: BTreeSet<&'static str>,
}

static LOADED: RwLock<Loaded> = RwLock::new(Loaded { now: Vec::new(), loads: 0, texts: BTreeSet::new() });

fn read() -> RwLockReadGuard<'static, Loaded> {
    LOADED.read().unwrap_or_else(PoisonError::into_inner)
}
fn write() -> RwLockWriteGuard<'static, Loaded> {
    LOADED.write().unwrap_or_else(PoisonError::into_inner)
}

/// What is to be loaded: a [`Definition`] whose parameters were built while running.
#[allow(missing_debug_implementations, reason = "its maker is a closure")]
pub struct Loading<'a> {
    /// Lower-case letters, digits, `-` and `_`, [`MAX_NAME`] at most, a letter first; not that of a built-in algorithm, nor
    /// one of [`KERNEL_NAMES`].
    pub name: &'a str,
    /// What it is, in a line.
    pub summary: &'a str,
    /// Its parameters; their texts come from [`kept`].
    pub params: Vec<ParamDef>,
    /// What the path has to tell.
    pub needs: Needs,
    /// Tells its code from other code: [`Definition::code`].
    pub code: &'a str,
    /// Makes one for a flow.
    pub build: Box<Build>,
}

/// The same text, kept for as long as the process.
///
/// # Errors
/// [`Error::Full`] beyond [`MAX_TEXTS`] different ones.
pub fn kept(text: &str) -> Result<&'static str, Error> {
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

/// Whether an algorithm can be loaded by this name.
///
/// # Errors
/// [`Error::BadName`] for names that are taken or not of the right form.
pub fn loadable(name: &str) -> Result<(), Error> {
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

/// Makes an algorithm known by its name. One that was loaded under this name before is replaced: flows that run it go on
/// with what they have.
///
/// # Errors
/// [`Error::BadName`] for names that are taken or not of the right form, [`Error::Full`] beyond [`MAX_LOADS`].
pub fn load(l: Loading<'_>) -> Result<&'static Definition, Error> {
    loadable(l.name)?;
    let (name, summary, code) = (kept(l.name)?, kept(l.summary)?, kept(l.code)?);
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
    all.now.retain(|d| d.name != name);
    all.now.push(def);
    Ok(def)
}

/// Takes a loaded algorithm's name away; flows that run it go on with it. Whether there was one.
pub fn unload(name: &str) -> bool {
    let mut all = write();
    let before = all.now.len();
    all.now.retain(|d| d.name != name);
    all.now.len() < before
}

/// Those that are loaded, in the order of their loading.
pub(super) fn all() -> Vec<&'static Definition> {
    read().now.clone()
}

pub(super) fn find(name: &str) -> Option<&'static Definition> {
    read().now.iter().find(|d| d.name == name).copied()
}
