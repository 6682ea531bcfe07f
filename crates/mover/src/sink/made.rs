//! Folders that a transfer makes, where what exists is to stay as it is.

use crate::path::RelPath;
use crate::tree::{Dir, Tree};
use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Folders remembered at most; those beyond keep the mode and time that they were made with.
const MAX_NEW: usize = 4_000_000;

/// Makes folders beneath a tree and, where nothing is overwritten, remembers which were not there before: only those
/// get the source's mode and time. Several workers make folders at the same time, in any order.
#[derive(Clone)]
pub(super) struct Made {
    tree: Arc<Tree>,
    /// `None`: what exists may be changed.
    new: Option<Arc<Mutex<HashSet<RelPath>>>>,
}

impl Made {
    pub fn new(tree: Arc<Tree>, overwrite: bool) -> Made {
        Made { tree, new: (!overwrite).then(Arc::default) }
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
