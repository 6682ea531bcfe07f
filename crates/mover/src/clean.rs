//! Removes leftovers of interrupted transfers in a folder: part files, journals and session files.
//!
//! Only what is surely ours goes: the exact form of name, contents that are those of a journal or of a marker, older than
//! asked for, and held by no transfer that runs. No symbolic link is followed.

use crate::error::FileError;
use crate::journal;
use crate::lock::LockedFile;
use crate::path::{self, JOURNAL, MAX_DEPTH, PART, RelPath, SESSION};
use crate::sink::BootId;
use lhio::clock::WallTime;
use lhio::safe_path::{Folder, Kind};
use rustix::fs::AtFlags;
use std::collections::BTreeMap;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// What is to be removed.
#[derive(Clone, Debug)]
pub struct CleanOptions {
    /// Where, and in the folders below.
    pub dir: PathBuf,
    /// Only what was last changed this many seconds ago, or earlier.
    pub older: u64,
    /// Also markers of transfers that a restart of this machine cut off: what they wrote may not have reached the disk,
    /// and without the marker the next transfer takes it for whole by size and time.
    pub doubtful: bool,
    /// Only say what would be removed.
    pub dry_run: bool,
}

/// The kind of a leftover file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeftoverKind {
    /// Data of an unfinished file.
    Part,
    /// Which chunks of it are verified.
    Journal,
    /// The mark of a transfer that did not come to its end.
    Session,
}

/// What was done with a leftover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanResult {
    /// It is gone, or would be.
    Removed,
    /// It stays, for this reason.
    Kept(&'static str),
    /// It could not be removed.
    Failed(FileError),
}

/// A leftover that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its path in the folder.
    pub path: Vec<u8>,
    /// What it is.
    pub what: LeftoverKind,
    /// Bytes of disk that it takes.
    pub bytes: u64,
    /// What was done with it.
    pub result: CleanResult,
}

const RUNNING: &str = "a transfer that runs is writing it";
const RECENT: &str = "it was changed too recently";
const CLOSED: &str = "it cannot be opened to see whether a transfer has it";
const FOREIGN: &str = "its contents are not those of one of ours";
const DOUBTFUL: &str =
    "the machine was restarted since: with this mark the next transfer checks all that was written before";

/// Goes through the folder; calls `tell` for each remain, in no order.
///
/// # Errors
/// When the folder cannot be opened, or a transfer that runs writes to it or to one above it. What cannot be read below it
/// is told as a failure.
pub fn clean(o: &CleanOptions, now: WallTime, tell: &mut dyn FnMut(Found)) -> io::Result<()> {
    let dir = std::fs::canonicalize(&o.dir)?;
    above_is_quiet(&dir)?;
    let root = Folder::open(&dir)?;
    let mut run = Cleaner { o, now, boot: BootId::current(), root: &root, tell };
    let mut todo = vec![RelPath::root()];
    while let Some(path) = todo.pop() {
        if let Err(e) = run.folder(&path, &mut todo) {
            let result = CleanResult::Failed(FileError::io(path.as_bytes(), "look into", &e));
            (run.tell)(Found {
                path: path.as_bytes().to_vec(),
                what: LeftoverKind::Session,
                bytes: 0,
                result,
            });
        }
    }
    Ok(())
}

/// A transfer marks its root beside it: looks for marks that are held, of this folder and of those above it.
fn above_is_quiet(dir: &Path) -> io::Result<()> {
    let mut below = dir;
    while let Some(parent) = below.parent() {
        let name = below.file_name().map_or(&b""[..], |n| n.as_bytes());
        // Nobody else's transfer holds what this user may not even see.
        if let Ok(f) = Folder::open(parent) {
            for mark in [path::session_name(name), path::session_name(b"root")] {
                if held(&f, &mark) {
                    let text = format!("a transfer is writing to {}; wait for it to end", below.display());
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, text));
                }
            }
        }
        below = parent;
    }
    Ok(())
}

/// Whether a transfer that runs holds this file.
fn held(folder: &Folder, name: &[u8]) -> bool {
    folder.open_read(name).is_ok_and(|f| LockedFile::new(f).is_err())
}

/// The leftovers of one file.
#[derive(Default)]
struct Leftovers {
    part: bool,
    journal: bool,
    session: bool,
}

struct Cleaner<'a> {
    o: &'a CleanOptions,
    now: WallTime,
    boot: BootId,
    root: &'a Folder,
    tell: &'a mut dyn FnMut(Found),
}

impl Cleaner<'_> {
    fn folder(&mut self, path: &RelPath, todo: &mut Vec<RelPath>) -> io::Result<()> {
        let folder = if path.is_root() { self.root.again()? } else { self.root.sub(path.as_bytes())? };
        let (mut found, mut below) = (BTreeMap::<Vec<u8>, Leftovers>::new(), Vec::new());
        for e in folder.list()? {
            let e = e?;
            // A folder of such a name is none of ours, and nothing of ours is in it.
            if let Some((stem, what)) = ours(&e.name).filter(|_| e.kind != Kind::Folder) {
                let b = found.entry(stem.to_vec()).or_default();
                match what {
                    LeftoverKind::Part => b.part = true,
                    LeftoverKind::Journal => b.journal = true,
                    LeftoverKind::Session => b.session = true,
                }
            } else if e.kind == Kind::Folder {
                below.push(e.name);
            }
        }
        // The mark of a whole served folder, or of something that is called so.
        if held(&folder, &path::session_name(b"root")) {
            for (stem, b) in &found {
                self.each(b, |run, what| run.keep(&folder, path, stem, what, RUNNING));
            }
            return Ok(());
        }
        for (stem, b) in &found {
            if b.session && held(&folder, &temporary(stem, SESSION)) {
                below.retain(|n| path::session_name(n) != temporary(stem, SESSION));
                self.each(b, |run, what| run.keep(&folder, path, stem, what, RUNNING));
                continue;
            }
            self.file(&folder, path, stem, b);
            if b.session {
                self.session(&folder, path, stem);
            }
        }
        let depth = path.components().count();
        todo.extend(below.iter().filter(|_| depth < MAX_DEPTH).filter_map(|n| path.join(n).ok()));
        Ok(())
    }
    fn each(&mut self, b: &Leftovers, mut f: impl FnMut(&mut Self, LeftoverKind)) {
        let all = [
            (b.part, LeftoverKind::Part),
            (b.journal, LeftoverKind::Journal),
            (b.session, LeftoverKind::Session),
        ];
        all.iter().filter(|a| a.0).for_each(|a| f(self, a.1));
    }
    /// Part and journal of one file go together.
    fn file(&mut self, folder: &Folder, path: &RelPath, stem: &[u8], b: &Leftovers) {
        let both = Leftovers { session: false, ..*b };
        // Held until both are gone. To a symbolic link nobody writes.
        let part = match folder.stat(&temporary(stem, PART)).map(|s| s.kind) {
            Ok(Kind::File) => match folder.open_read(&temporary(stem, PART)) {
                Ok(f) => Some(LockedFile::new(f)),
                Err(_) => return self.each(&both, |run, what| run.keep(folder, path, stem, what, CLOSED)),
            },
            Ok(Kind::Link) | Err(_) => None,
            Ok(_) => return self.each(&both, |run, what| run.keep(folder, path, stem, what, FOREIGN)),
        };
        if part.as_ref().is_some_and(Result::is_err) {
            return self.each(&both, |run, what| run.keep(folder, path, stem, what, RUNNING));
        }
        let recent = |what: LeftoverKind| self.is_recent(folder, &temporary(stem, suffix(what)));
        if b.part && recent(LeftoverKind::Part) || b.journal && recent(LeftoverKind::Journal) {
            return self.each(&both, |run, what| run.keep(folder, path, stem, what, RECENT));
        }
        if b.journal && !journal_is_ours(folder, &temporary(stem, JOURNAL)) {
            return self.each(&both, |run, what| run.keep(folder, path, stem, what, FOREIGN));
        }
        self.each(&both, |run, what| run.remove(folder, path, stem, what));
    }
    fn session(&mut self, folder: &Folder, path: &RelPath, stem: &[u8]) {
        let name = temporary(stem, SESSION);
        let what = LeftoverKind::Session;
        if self.is_recent(folder, &name) {
            return self.keep(folder, path, stem, what, RECENT);
        }
        let Ok(f) = folder.open_read(&name) else {
            return self.keep(folder, path, stem, what, FOREIGN);
        };
        let mut text = Vec::new();
        let Ok(f) = LockedFile::new(f) else {
            return self.keep(folder, path, stem, what, RUNNING);
        };
        let read = (&*f).take(64).read_to_end(&mut text);
        // A boot identifier is a UUID; one that was cut off while it was written marks nothing.
        let plain = |b: &u8| b.is_ascii_hexdigit() || b"-?".contains(b);
        if read.is_err() || text.len() > self.boot.0.len() || !text.iter().all(plain) {
            return self.keep(folder, path, stem, what, FOREIGN);
        }
        if text == self.boot.0 {
            // Then nothing of what was written is in doubt any more.
            if !self.o.dry_run
                && let Err(e) = folder.sync_all()
            {
                return self.report(
                    folder,
                    path,
                    stem,
                    what,
                    CleanResult::Failed(FileError::io(&name, "write to the disk", &e)),
                );
            }
        } else if !text.is_empty() && !self.o.doubtful {
            return self.keep(folder, path, stem, what, DOUBTFUL);
        }
        self.remove(folder, path, stem, what);
    }
    /// Changed in any way: a part has its source's modification time shortly before it is whole.
    fn is_recent(&self, folder: &Folder, name: &[u8]) -> bool {
        let Ok(s) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { return true };
        let older = i64::try_from(self.o.older).unwrap_or(i64::MAX);
        s.st_ctime > self.now.secs.saturating_sub(older)
    }
    fn keep(&mut self, folder: &Folder, path: &RelPath, stem: &[u8], what: LeftoverKind, why: &'static str) {
        self.report(folder, path, stem, what, CleanResult::Kept(why));
    }
    fn remove(&mut self, folder: &Folder, path: &RelPath, stem: &[u8], what: LeftoverKind) {
        // Known before it is gone.
        let (full, bytes) = describe(folder, path, stem, what);
        let gone = if self.o.dry_run { Ok(()) } else { folder.remove_file(&temporary(stem, suffix(what))) };
        let result = match gone {
            Ok(()) => CleanResult::Removed,
            Err(e) => CleanResult::Failed(FileError::io(&full, "remove", &e)),
        };
        (self.tell)(Found { path: full, what, bytes, result });
    }
    fn report(
        &mut self,
        folder: &Folder,
        path: &RelPath,
        stem: &[u8],
        what: LeftoverKind,
        result: CleanResult,
    ) {
        let (full, bytes) = describe(folder, path, stem, what);
        (self.tell)(Found { path: full, what, bytes, result });
    }
}

fn describe(folder: &Folder, path: &RelPath, stem: &[u8], what: LeftoverKind) -> (Vec<u8>, u64) {
    let name = temporary(stem, suffix(what));
    let bytes = folder.stat(&name).map_or(0, |s| s.allocated);
    let full = if path.is_root() { name } else { [path.as_bytes(), b"/", &name].concat() };
    (full, bytes)
}

fn suffix(what: LeftoverKind) -> &'static [u8] {
    match what {
        LeftoverKind::Part => PART,
        LeftoverKind::Journal => JOURNAL,
        LeftoverKind::Session => SESSION,
    }
}

fn temporary(stem: &[u8], suffix: &[u8]) -> Vec<u8> {
    [b".", stem, suffix].concat()
}

/// What stands between the dot and the suffix, and which suffix; `None` for names that no transfer makes.
fn ours(name: &[u8]) -> Option<(&[u8], LeftoverKind)> {
    let rest = name.strip_prefix(b".")?;
    [LeftoverKind::Part, LeftoverKind::Journal, LeftoverKind::Session].into_iter().find_map(|what| {
        let stem = rest.strip_suffix(suffix(what))?;
        (!stem.is_empty()).then_some((stem, what))
    })
}

/// Whether a file is a journal, or one that was cut off while its header was written.
fn journal_is_ours(folder: &Folder, name: &[u8]) -> bool {
    let mut head = Vec::new();
    let Ok(f) = folder.open_read(name) else { return false };
    f.take(journal::HEADER as u64).read_to_end(&mut head).is_ok() && journal::is_header(&head)
}

#[cfg(test)]
mod tests;
