//! Finds extraneous files at the destination, and which of them `--delete` removes.

use crate::path::RelPath;
use crate::proto::{Entry, Extraneous, Name};
use crate::select::{ExtraneousAction, Picker, ProtectedFiles};
use crate::tree::Info;
use crate::walk::Start;
use std::io;
use std::sync::Arc;

/// Memory for names that are remembered, in bytes. The others go when the command is repeated.
const MAX_BYTES: usize = 16 << 20;
/// What one takes beside its name.
const EACH: usize = 96;

/// Listed names that the walk has not found.
pub(super) struct ExtraneousFiles {
    picker: Arc<Picker>,
    protected: ProtectedFiles,
    /// Those, and whether they go though the source has them.
    found: Vec<(Extraneous, bool)>,
    bytes: usize,
    too_many: u64,
    /// The last name that both have.
    both: Option<(u32, RelPath)>,
}

impl ExtraneousFiles {
    /// `None` where nothing goes.
    pub fn new(picker: &Arc<Picker>) -> Option<ExtraneousFiles> {
        picker.select.delete.as_ref()?;
        Some(ExtraneousFiles {
            picker: picker.clone(),
            protected: ProtectedFiles::new(picker.clone()),
            found: Vec::new(),
            bytes: 0,
            too_many: 0,
            both: None,
        })
    }
    /// Both ends have this one.
    pub fn has(&mut self, e: &Entry) {
        self.both = Some((e.root, e.path.clone()));
    }
    /// The walk is beyond this one, which both have or only the destination.
    pub fn add(&mut self, starts: &[Start], e: Entry) {
        if self.both.as_ref().is_some_and(|b| b.0 == e.root && b.1 == e.path) {
            return;
        }
        let action = self.protected.action(starts, &e);
        if action == ExtraneousAction::Keep {
            return;
        }
        let takes = EACH + e.path.as_bytes().len();
        if self.bytes + takes > MAX_BYTES {
            self.too_many += 1;
            return;
        }
        self.bytes += takes;
        let name = Name { root: e.root, path: e.path };
        let extra = Extraneous { name, kind: e.kind, size: e.size, meta: e.meta };
        self.found.push((extra, action == ExtraneousAction::DeleteAsExcluded));
    }
    /// Names that were not remembered, for want of memory.
    pub fn too_many(&self) -> u64 {
        self.too_many
    }
    /// Those that no source has now: what has come meanwhile stays, and so does what cannot be looked at.
    pub fn gone_for_good(self, starts: &[Start]) -> Vec<Extraneous> {
        let picker = self.picker;
        let gone = |name: &Name| {
            let full = picker.shown(name);
            picker.roots().iter().zip(starts).all(|(root, start)| is_missing(start, root, &full))
        };
        let goes = |(e, excluded): (Extraneous, bool)| (excluded || gone(&e.name)).then_some(e);
        self.found.into_iter().filter_map(goes).collect()
    }
}

/// Whether a source that is called `root` there has nothing that would be called `full`.
fn is_missing(start: &Start, root: &RelPath, full: &RelPath) -> bool {
    let below = match () {
        () if root.is_root() => full.as_bytes(),
        () if full == root => b"",
        () if full.is_below(root) => &full.as_bytes()[root.as_bytes().len() + 1..],
        () => return true,
    };
    let Ok(path) = RelPath::parse(below).map_err(drop).and_then(|p| start.path.append(&p).map_err(drop))
    else {
        return false;
    };
    let look: io::Result<Info> = start.tree.info(&path);
    matches!(look, Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
}
