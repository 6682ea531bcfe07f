//! A tree that the connections of an endpoint share.

use super::Tree;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A tree for several to ask. Whoever has it asks and is done in a microsecond: it is never held while anything waits.
#[derive(Clone, Debug)]
pub struct SharedTree(Arc<Mutex<Tree>>);

impl SharedTree {
    /// A tree to be shared.
    pub fn new(tree: Tree) -> SharedTree {
        SharedTree(Arc::new(Mutex::new(tree)))
    }

    /// The tree, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, Tree> {
        // The tree is sound between calls: whoever panicked did so elsewhere.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
