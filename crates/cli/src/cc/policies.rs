//! Passes policies and programs from files and control sockets to a process.

use admin::proto::Program;
use admin::request_handler::WithWarnings;
use lhio::clock::WallTime;
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

/// Loads a program, from the file `path`, for the algorithms of this process; its name.
///
/// # Errors
/// Why it cannot be.
pub fn load_program(module: &[u8], path: &str) -> Result<String, Vec<String>> {
    let options = programs::Options {
        source: path.to_owned(),
        since: WallTime::now().unix_secs(),
        ..programs::Options::default()
    };
    let loaded = programs::load_bytes(module, &options);
    loaded.map(|d| d.name.to_owned()).map_err(|e| vec![e.to_string()])
}

/// The programs that this process has loaded.
pub fn loaded() -> Vec<Program> {
    let tell = |l: programs::Loaded| Program {
        name: l.name.to_owned(),
        path: l.source,
        hash: l.code.to_owned(),
        since: l.since,
        ..Program::default()
    };
    programs::loaded().into_iter().map(tell).collect()
}

/// Whether flows of this process can be given an algorithm of this name.
pub fn is_known(name: &str) -> bool {
    cc::registry::find(name).is_ok()
}

/// What befell programs of this process since it was asked last: kind and text of each.
pub fn news() -> Vec<(String, String)> {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let new = programs::events(SEEN.load(Ordering::Relaxed));
    SEEN.fetch_max(new.last().map_or(0, |e| e.number), Ordering::Relaxed);
    let tell = |e: programs::Replaced| {
        let (program, fault, fallback) = (e.program, e.fault, e.fallback);
        let text =
            format!("program {program} {fault} in call {}, {}: {fallback} replaces it", e.calls, e.call);
        ("program_fault".to_owned(), text)
    };
    new.into_iter().map(tell).collect()
}
