//! Decides for each name that a walk finds whether it is sent, and for what is left over at the destination whether it stays.

use super::filter::Filter;
use super::ignored::Ignored;
use super::{Excluded, Names, Select};
use crate::error::FileError;
use crate::path::RelPath;
use crate::proto::{Entry, Kind, Name, Root};
use crate::tree::Info;
use crate::walk::Start;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is left out, counted by the walk and read by the session.
#[derive(Debug, Default)]
pub(crate) struct Counter([AtomicU64; 4]);

impl Counter {
    pub fn get(&self) -> Excluded {
        let [by_rules, by_ignore_files, by_size, by_destination] =
            [0, 1, 2, 3].map(|n: usize| self.0[n].load(Ordering::Relaxed));
        Excluded { by_rules, by_ignore_files, by_size, by_destination, undeleted: 0 }
    }
    fn add(&self, n: usize) {
        self.0[n].fetch_add(1, Ordering::Relaxed);
    }
}

/// The choices for the sources of one transfer.
#[derive(Debug, Default)]
pub(crate) struct Picker {
    pub select: Select,
    filter: Filter,
    /// What the roots are called at the destination.
    roots: Vec<RelPath>,
    /// Folder of each folder that unfinished files are kept in: neither sent nor removed.
    partial: Option<RelPath>,
    pub excluded: Counter,
}

impl Picker {
    pub fn new(select: Select, roots: &[Root]) -> Picker {
        let filter = Filter::new(&select.rules);
        let roots = roots.iter().map(|r| r.name.clone()).collect();
        let partial = select.placement.partial_folder().and_then(Result::ok);
        Picker { select, filter, roots, partial, excluded: Counter::default() }
    }
    /// Whether this is a folder for unfinished files, or in one: then the folder whose files those are.
    fn of_partial(&self, path: &RelPath, folder: bool) -> Option<RelPath> {
        let partial = self.partial.as_ref()?;
        let (all, want): (Vec<_>, Vec<_>) = (path.components().collect(), partial.components().collect());
        let inside = |end: usize| end < all.len() || folder;
        let at =
            all.windows(want.len()).enumerate().position(|(i, w)| w == want && inside(i + want.len()))?;
        RelPath::parse(&all[..at].join(&b'/')).ok()
    }
    /// Only these names, if they are listed.
    pub fn names(&self) -> Option<&Names> {
        self.select.names.as_ref()
    }
    /// What the roots are called at the destination.
    pub fn roots(&self) -> &[RelPath] {
        &self.roots
    }
    /// A name as it is shown.
    pub fn shown(&self, n: &Name) -> RelPath {
        let top = self.roots.get(n.root as usize).cloned().unwrap_or_default();
        top.append(&n.path).unwrap_or_default()
    }
    /// Whether something that was found stays behind for its size, or for what is at its place already.
    pub fn leaves_out(&self, info: &Info, there: Option<&Entry>) -> bool {
        let s = &self.select;
        if info.kind == Kind::File && !s.fits_size(info.size) {
            self.excluded.add(2);
            return true;
        }
        let newer = |e: &Entry| {
            let (here, there) = ((info.meta.secs, info.meta.nanos), (e.meta.secs, e.meta.nanos));
            info.kind == Kind::File
                && e.kind == Kind::File
                && there > here
                && !s.same_time(&info.meta, &e.meta)
        };
        let stays = match there {
            None => s.existing,
            Some(e) => s.ignore_existing && info.kind != Kind::Dir || s.update && newer(e),
        };
        if stays {
            self.excluded.add(3);
        }
        stays
    }
    /// Whether the rules leave a name out.
    fn filtered(&self, root: u32, path: &RelPath, folder: bool) -> bool {
        let top = self.roots.get(root as usize).map_or(&b""[..], |r| r.as_bytes());
        match (top, path.as_bytes()) {
            (b"", p) | (p, b"") => self.filter.excludes(p, folder),
            (t, p) => self.filter.excludes(&[t, b"/", p].concat(), folder),
        }
    }
}

/// The selection for one walk over the sources, in their order.
#[derive(Debug)]
pub(crate) struct Selection {
    pub picker: Arc<Picker>,
    ignored: Ignored,
    /// The file system of the present source.
    device: u64,
    counts: bool,
}

impl Selection {
    /// One that counts what it leaves out, or not.
    pub fn new(picker: Arc<Picker>, counts: bool) -> Selection {
        Selection { picker, ignored: Ignored::default(), device: 0, counts }
    }
    /// Whether something is left out.
    ///
    /// # Errors
    /// A file that says what is left out cannot be used.
    pub fn excludes(
        &mut self,
        root: u32,
        start: &Start,
        path: &RelPath,
        info: &Info,
    ) -> Result<bool, FileError> {
        if path.is_root() {
            self.device = info.id.0;
        }
        let folder = info.kind == Kind::Dir;
        let count = |n| {
            if self.counts {
                self.picker.excluded.add(n);
            }
            Ok(true)
        };
        if self.picker.filtered(root, path, folder) {
            return count(0);
        }
        if self.picker.of_partial(path, folder).is_some() {
            return Ok(true);
        }
        if !self.picker.select.no_ignore
            && !path.is_root()
            && self.ignored.excludes(root, start, path, folder)?
        {
            return count(1);
        }
        Ok(false)
    }
    /// Whether a folder's names are looked at.
    pub fn enters(&self, info: &Info) -> bool {
        !self.picker.select.one_file_system || info.id.0 == self.device
    }
}

/// Decides which extraneous files at the destination the rules protect.
#[derive(Debug)]
pub(crate) struct ProtectedFiles {
    picker: Arc<Picker>,
    ignored: Ignored,
    /// All below this stays.
    below: Option<(u32, RelPath)>,
}

/// What is done with an extraneous file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtraneousAction {
    /// A rule keeps it.
    Keep,
    /// It goes if the source has no such name at the end.
    Delete,
    /// It goes whether the source has it or not: a rule leaves it out, and that is to go as well.
    DeleteAsExcluded,
}

impl ProtectedFiles {
    pub fn new(picker: Arc<Picker>) -> ProtectedFiles {
        ProtectedFiles { picker, ignored: Ignored::default(), below: None }
    }
    /// What becomes of a listed entry; entries come in the order of a walk.
    pub fn action(&mut self, starts: &[Start], e: &Entry) -> ExtraneousAction {
        let Some(delete) = &self.picker.select.delete else { return ExtraneousAction::Keep };
        let Some(start) = starts.get(e.root as usize) else { return ExtraneousAction::Keep };
        if e.path.is_root() {
            return ExtraneousAction::Keep;
        }
        // Where the source has the folder no more, that for its unfinished files goes with it, as by rsync.
        let of_partial = self.picker.of_partial(&e.path, e.kind == Kind::Dir);
        let has = |f: &RelPath| start.path.append(f).is_ok_and(|p| start.tree.info(&p).is_ok());
        if of_partial.is_some_and(|f| has(&f)) || self.is_backup(e) || self.is_of_another_root(e) {
            return ExtraneousAction::Keep;
        }
        let inside = self.below.as_ref().is_some_and(|(r, p)| *r == e.root && e.path.is_below(p));
        if inside {
            return if delete.excluded { ExtraneousAction::DeleteAsExcluded } else { ExtraneousAction::Keep };
        }
        let (folder, select) = (e.kind == Kind::Dir, &self.picker.select);
        let out = self.picker.filtered(e.root, &e.path, folder)
            || !select.no_ignore
                // What cannot be told stays.
                && match self.ignored.excludes(e.root, start, &e.path, folder) {
                    Ok(out) => out,
                    Err(_) => return ExtraneousAction::Keep,
                };
        match (out, delete.excluded) {
            (false, _) => ExtraneousAction::Delete,
            (true, excluded) => {
                self.below = folder.then(|| (e.root, e.path.clone()));
                if excluded { ExtraneousAction::DeleteAsExcluded } else { ExtraneousAction::Keep }
            }
        }
    }
    /// Whether it lies where another source goes: that one tells what is left over there.
    fn is_of_another_root(&self, e: &Entry) -> bool {
        let full = self.picker.shown(&Name { root: e.root, path: e.path.clone() });
        let others = self.picker.roots.iter().enumerate().filter(|(i, _)| *i != e.root as usize);
        others.filter(|(_, r)| !r.is_root()).any(|(_, r)| full == *r || full.is_below(r))
    }
    /// Whether it is what an earlier transfer has kept of what it replaced.
    fn is_backup(&self, e: &Entry) -> bool {
        let Some(b) = &self.picker.select.backup else { return false };
        match &b.dir {
            Some(dir) => {
                let full = self.picker.shown(&Name { root: e.root, path: e.path.clone() });
                full == *dir || full.is_below(dir) || dir.is_below(&full)
            }
            None => e.kind != Kind::Dir && e.path.as_bytes().ends_with(&b.suffix),
        }
    }
}
