//! Policies and programs, as the administrator's side of a process takes them.

use admin::office::WithWarnings;
use policy::{Policy, Problems};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Every policy that this process reads has a number of its own, so that flows are asked again.
static VERSION: AtomicU64 = AtomicU64::new(1);

/// Reads a policy for this process, with the programs that it has now; and its warnings.
///
/// # Errors
/// All that is wrong with it.
pub fn read(text: &str) -> Result<WithWarnings, Vec<String>> {
    let (policy, warnings) = Policy::read(text).map_err(|p| lines(&p))?;
    let policy = policy.with_interfaces(lhio::addresses_of_interface);
    Ok((Arc::new(policy.with_version(VERSION.fetch_add(1, Ordering::Relaxed))), lines(&warnings)))
}

/// Each problem, in words.
pub fn lines(problems: &Problems) -> Vec<String> {
    problems.to_string().lines().map(str::to_owned).collect()
}

/// Loads a program for the algorithms of this process; its name.
///
/// # Errors
/// Why it cannot be.
pub fn load_program(module: &[u8]) -> Result<String, Vec<String>> {
    let loaded = programs::load_bytes(module, &programs::Options::default());
    loaded.map(|d| d.name.to_owned()).map_err(|e| vec![e.to_string()])
}

/// What befell programs of this process since it was asked last: kind and text of each.
pub fn news() -> Vec<(String, String)> {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let new = programs::events(SEEN.load(Ordering::Relaxed));
    SEEN.fetch_max(new.last().map_or(0, |e| e.number), Ordering::Relaxed);
    let tell = |e: programs::Replaced| {
        ("fallback".to_owned(), format!("program {} {}: {} takes its place", e.program, e.fault, e.fallback))
    };
    new.into_iter().map(tell).collect()
}
