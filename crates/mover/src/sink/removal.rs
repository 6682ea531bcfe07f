//! Removes extraneous files at the destination (`--delete`) at the end of the transfer.
//!
//! Nothing goes before the source has come to its end and all it sent is verified. Each name is looked at once more: what is
//! not as it was listed stays. Folders go only when they are empty, so that what has come into one meanwhile stays, and no
//! link is followed on the way to any of them.

use super::created_dirs::CreatedDirs;
use crate::error::{Cause, FileError};
use crate::path::RelPath;
use crate::proto::{Deleted, Extraneous, Kind, Name, Root};
use crate::select::{Delete, Filter, Select};
use crate::session::Fatal;
use std::io;

/// The names to remove, and the conditions for that.
#[derive(Debug, Default)]
pub(super) struct Removal {
    how: Option<Delete>,
    /// Filter rules of this end, which protect files whatever the source requests.
    filter: Filter,
    roots: Vec<RelPath>,
    all: Vec<(RelPath, Extraneous)>,
    /// Names that were not remembered, for want of memory.
    forgotten: u64,
    /// Something could not be read or written.
    failed: bool,
}

impl Removal {
    pub fn new(select: &Select, failed: bool) -> Removal {
        let filter = Filter::new(&select.rules);
        Removal { how: select.delete.clone(), filter, failed, ..Removal::default() }
    }
    /// Whether the source has to know what is here.
    pub fn needs_listing(&self) -> bool {
        self.how.is_some()
    }
    pub fn roots(&mut self, roots: &[Root]) {
        self.roots = roots.iter().map(|r| r.name.clone()).collect();
    }
    /// Something failed; what is not content of the source, or was removed there meanwhile, is no reason to keep the rest.
    pub fn failed(&mut self, e: &FileError) {
        self.failed |= !matches!(e.cause, Cause::Special | Cause::Reserved | Cause::Exists | Cause::Vanished);
    }
    /// A name that cannot be remembered stays.
    pub fn without_memory(&mut self) {
        self.forgotten += 1;
    }
    /// Notes what is to go; in a rehearsal its name is returned instead.
    ///
    /// # Errors
    /// The source breaks the protocol: it names what is none of its business here.
    pub fn add(&mut self, targets: &[RelPath], e: Extraneous, dry: bool) -> Result<Option<RelPath>, Fatal> {
        let Some(how) = &self.how else {
            return Err(Fatal::protocol("something was to be deleted that nobody asked for"));
        };
        let path = match super::small::target(targets, &e.name) {
            Ok(p) if !e.name.path.is_root() => p,
            Ok(_) => return Err(Fatal::protocol("a destination itself was to be deleted")),
            Err(e) => return Err(Fatal::Protocol(e.to_string())),
        };
        let others = targets.iter().enumerate().filter(|(i, _)| *i != e.name.root as usize);
        if others
            .filter(|(_, t)| t.is_below(&targets[e.name.root as usize]))
            .any(|(_, t)| path == *t || path.is_below(t))
        {
            return Err(Fatal::protocol("what another source sends was to be deleted"));
        }
        if !how.excluded && self.is_kept(&e) {
            return Err(Fatal::protocol("something was to be deleted that a rule of this end keeps"));
        }
        if dry {
            return Ok(Some(self.shown(&e.name)));
        }
        self.all.push((path, e));
        Ok(None)
    }
    fn shown(&self, n: &Name) -> RelPath {
        let top = self.roots.get(n.root as usize).cloned().unwrap_or_default();
        top.append(&n.path).unwrap_or_default()
    }
    /// Whether a rule keeps it, or a folder above it.
    fn is_kept(&self, e: &Extraneous) -> bool {
        let full = self.shown(&e.name);
        let mut folder = e.kind == Kind::Dir;
        let mut at = full.as_bytes();
        loop {
            if self.filter.excludes(at, folder) {
                return true;
            }
            let Some(end) = at.iter().rposition(|b| *b == b'/') else { return false };
            (at, folder) = (&at[..end], true);
        }
    }
    /// Removes it, innermost first.
    pub fn carry_out(mut self, made: &CreatedDirs) -> (Vec<FileError>, Deleted) {
        let mut out = Deleted { kept: self.forgotten, ..Deleted::default() };
        let Some(how) = self.how else { return (Vec::new(), out) };
        if self.failed && !how.ignore_errors {
            out.held_back = self.all.len() as u64 + self.forgotten;
            out.kept = 0;
            return (Vec::new(), out);
        }
        self.all.sort_unstable_by(|a, b| b.0.cmp(&a.0));
        let mut failed = Vec::new();
        for (path, e) in &self.all {
            if how.max.is_some_and(|m| out.removed >= m) {
                out.over_limit += 1;
                continue;
            }
            match remove(made, path, e) {
                Ok(Done::Removed) => out.removed += 1,
                Ok(Done::Kept) => out.kept += 1,
                Ok(Done::NotThere) => {}
                Err(e) => failed.push(FileError::io(path.as_bytes(), "remove", &e)),
            }
        }
        (failed, out)
    }
}

/// What was done with an extraneous file.
enum Done {
    Removed,
    /// It is not what was listed, or not empty.
    Kept,
    /// It did not exist any more.
    NotThere,
}

fn remove(made: &CreatedDirs, path: &RelPath, e: &Extraneous) -> io::Result<Done> {
    let Some((dir, name)) = path.split() else { return Ok(Done::Kept) };
    let found = made.tree().dir(&dir).and_then(|d| Ok((d.info(name)?, d)));
    let (now, dir) = match found {
        Ok(f) => f,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Done::NotThere);
        }
        Err(e) => return Err(e),
    };
    let time = |m: &crate::proto::Meta| (m.secs, m.nanos);
    let same = now.kind == e.kind
        && (now.kind == Kind::Dir || now.size == e.size && time(&now.meta) == time(&e.meta));
    if !same {
        return Ok(Done::Kept);
    }
    match (now.kind, made.backups()) {
        (Kind::Dir, _) => match dir.remove_dir(name) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOTEMPTY | libc::EEXIST)) => Ok(Done::Kept),
            r => r.map(|()| Done::Removed),
        },
        (Kind::File | Kind::Link, Some(b)) => b.take(&dir, name, path).map(|()| Done::Removed),
        _ => dir.remove(name).map(|()| Done::Removed),
    }
}
