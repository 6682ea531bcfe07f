//! `longhaul clean`.

use crate::args::Clean;
use crate::exit::{Code, Failure, Outcome};
use crate::out;
use crate::units::show_bytes;
use lhio::clock::WallTime;
use mover::clean::{CleanOptions, CleanResult, Found, clean};
use mover::path::show;
use serde_json::json;

/// Removes leftovers in the folder, and prints what it removed; with -v also what it kept.
pub fn run(a: &Clean) -> Outcome<()> {
    let o = CleanOptions {
        dir: a.dir.clone(),
        older: a.older.as_nanos() / 1_000_000_000,
        doubtful: a.doubtful,
        dry_run: a.dry_run,
    };
    let (mut removed, mut kept, mut failed, mut bytes) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut tell = |f: Found| {
        match &f.result {
            CleanResult::Removed => (removed, bytes) = (removed + 1, bytes + f.bytes),
            CleanResult::Kept(_) => kept += 1,
            CleanResult::Failed(_) => failed += 1,
        }
        let name = show(&f.path);
        if a.json {
            return out::json(&line(&f, a.dry_run));
        }
        match &f.result {
            CleanResult::Removed => out_line!("{:>12}  {name}", show_bytes(f.bytes)),
            CleanResult::Kept(why) => tracing::info!("{name} is kept: {why}"),
            CleanResult::Failed(e) => err_line!("error: {e}"),
        }
    };
    clean(&o, WallTime::now(), &mut tell).map_err(|e| {
        Failure::usage(format!(
            "cannot clean {}: {e}; try a folder that this user can change",
            show(a.dir.as_os_str().as_encoded_bytes())
        ))
    })?;
    if !a.json {
        let done = if a.dry_run { "would be removed" } else { "removed" };
        let stay = if kept > 0 { format!(", {kept} kept (-v says why)") } else { String::new() };
        err_line!("{removed} {done}, {}{stay}", show_bytes(bytes));
    }
    match failed {
        0 => Ok(()),
        n => Err(Failure::new(
            Code::Partial,
            format!(
                "cannot remove {n} items: see the errors above; try again as the \
                 user who owns them"
            ),
        )),
    }
}

fn line(f: &Found, dry_run: bool) -> serde_json::Value {
    let (result, reason) = match &f.result {
        CleanResult::Removed if dry_run => ("would-be-removed", None),
        CleanResult::Removed => ("removed", None),
        CleanResult::Kept(why) => ("kept", Some((*why).to_owned())),
        CleanResult::Failed(e) => ("failed", Some(e.to_string())),
    };
    json!({ "path": show(&f.path), "kind": f.what, "bytes": f.bytes, "result": result, "reason": reason })
}
