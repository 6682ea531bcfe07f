//! Creates folders, and remembers which are new where existing ones must stay unchanged.

use super::backups::Backups;
use crate::attributes::PreservedAttributes;
use crate::path::RelPath;
use crate::placement::Resolved;
use crate::select::Backup;
use crate::tree::{Dir, Tree};
use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Folders remembered at most; those beyond keep the mode and time that they were made with.
const MAX_NEW: usize = 4_000_000;

/// Makes folders beneath a tree and, where nothing is overwritten, remembers which were not there before: only those
/// get the source's mode and time. Several workers make folders at the same time, in any order.
#[derive(Clone)]
pub(super) struct CreatedDirs {
    tree: Arc<Tree>,
    /// `None`: what exists may be changed.
    new: Option<Arc<Mutex<HashSet<RelPath>>>>,
    /// What is kept beside permissions and times.
    pub extras: Arc<PreservedAttributes>,
    /// Keeps what is replaced or removed, if that is wanted.
    backups: Option<Arc<Backups>>,
    /// Folders beside the destination.
    folders: Arc<Resolved>,
}

impl CreatedDirs {
    pub fn new(tree: Arc<Tree>, overwrite: bool) -> CreatedDirs {
        CreatedDirs {
            tree,
            new: (!overwrite).then(Arc::default),
            extras: Arc::default(),
            backups: None,
            folders: Arc::default(),
        }
    }
    /// Keeps this as well.
    pub fn keeping(mut self, extras: Arc<PreservedAttributes>) -> CreatedDirs {
        self.extras = extras;
        self
    }
    /// Has what is replaced or removed kept under another name.
    pub fn keep(&mut self, how: Option<Backup>, dest: RelPath) {
        self.backups = how.map(|b| Arc::new(Backups::new(self.tree.clone(), b, dest)));
    }
    /// How what is replaced or removed is kept.
    pub fn backups(&self) -> Option<&Backups> {
        self.backups.as_deref()
    }
    /// Uses these folders beside the destination.
    pub fn using(&mut self, folders: Resolved) {
        self.folders = Arc::new(folders);
    }
    /// Folders beside the destination.
    pub fn folders(&self) -> &Resolved {
        &self.folders
    }
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }
    /// As [`Tree::make_dir`].
    pub fn dir(&self, path: &RelPath) -> io::Result<Dir> {
        let Some(new) = &self.new else { return self.tree.make_dir(path) };
        self.tree.make_dir_telling(path, |p| {
            let mut new = new.lock().unwrap_or_else(PoisonError::into_inner);
            if new.len() < MAX_NEW {
                new.insert(p);
            }
        })
    }
    /// Whether mode and time of a folder may be set. The answer is final when all workers are done.
    pub fn may_change(&self, path: &RelPath) -> bool {
        let known = |n: &Arc<Mutex<HashSet<RelPath>>>| {
            n.lock().unwrap_or_else(PoisonError::into_inner).contains(path)
        };
        self.new.as_ref().is_none_or(known)
    }
}
