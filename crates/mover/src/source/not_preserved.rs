//! Counts attributes of sent files that are not preserved.

use crate::attributes::PreservedAttributes;
use crate::keep::Keep;
use crate::proto::{Kind, Name, NotPreserved};
use crate::session::Listed;
use crate::tree::Info;
use lhio::safe_path::Attributes;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Files with several names that are told apart: 64 MB of memory. Those beyond are not counted.
const MAX_LINKED: usize = 2_000_000;

/// Shared by the threads that find and read things.
#[derive(Debug)]
pub(super) struct Counter {
    /// Who runs this end.
    user: u32,
    /// What is kept of them.
    pub extras: Arc<PreservedAttributes>,
    hard_links: AtomicU64,
    extended: AtomicU64,
    acls: AtomicU64,
    owners: AtomicU64,
    special_bits: AtomicU64,
}

fn add(to: &AtomicU64, one: bool) {
    // Without a locked instruction where there is nothing to count, as is so for nearly every file.
    if one {
        to.fetch_add(1, Ordering::Relaxed);
    }
}

impl Counter {
    pub fn new(extras: Arc<PreservedAttributes>) -> Counter {
        let user = rustix::process::geteuid().as_raw();
        let [hard_links, extended, acls, owners, special_bits] = Default::default();
        Counter { user, extras, hard_links, extended, acls, owners, special_bits }
    }
    /// Something is sent; `again` says that it was sent under another name before.
    pub fn sent(&self, info: &Info, again: bool) {
        let keep = self.extras.keep();
        add(&self.hard_links, again && !keep.has(Keep::HARD_LINKS));
        add(&self.owners, info.owner != self.user && !keep.has(Keep::OWNER));
        let special = info.special_bits && info.kind != Kind::Link;
        add(&self.special_bits, special && !keep.has(Keep::SPECIAL_BITS));
    }
    pub fn attributes(&self, a: Attributes) {
        let keep = self.extras.keep();
        add(&self.extended, a.extended && !keep.has(Keep::ATTRIBUTES));
        add(&self.acls, a.acl && !keep.has(Keep::ACLS));
    }
    /// Another name stays a file of its own.
    pub fn split(&self) {
        add(&self.hard_links, true);
    }
    /// Attributes of one that are too many or too long.
    pub fn excluded(&self, some: bool) {
        add(&self.extended, some);
    }
    pub fn get(&self) -> NotPreserved {
        let n = |c: &AtomicU64| c.load(Ordering::Relaxed);
        NotPreserved {
            hard_links: n(&self.hard_links),
            extended_attributes: n(&self.extended),
            access_control_lists: n(&self.acls),
            owners: n(&self.owners),
            special_bits: n(&self.special_bits),
        }
    }
}

/// Remembers files with several names.
#[derive(Debug, Default)]
pub(super) struct Linked(HashMap<(u64, u64), First>);

/// The first name of a file with several.
#[derive(Clone, Debug)]
pub(super) struct First {
    /// `None` where each name becomes a file.
    pub name: Option<Name>,
    /// The sink's file of that name, where it is the same and stays.
    pub there: Option<u64>,
    /// Names that have not come yet.
    left: u64,
}

impl Linked {
    /// Whether this file was met before, under another name.
    pub fn again(&mut self, info: &Info) -> bool {
        if info.kind == Kind::Dir || info.links < 2 {
            return false;
        }
        self.met(info, None).is_some()
    }
    /// The first name of this file, if it was met before; else it is remembered, by `name` if that is sent for it.
    pub fn met(&mut self, info: &Info, name: Option<&Name>) -> Option<First> {
        if info.kind == Kind::Dir || info.links < 2 {
            return None;
        }
        if let Some(f) = self.0.get_mut(&info.id) {
            f.left = f.left.saturating_sub(1);
            let first = f.clone();
            if first.left == 0 {
                self.0.remove(&info.id); // no other name can come
            }
            return Some(first);
        }
        if self.0.len() < MAX_LINKED {
            self.0.insert(info.id, First { name: name.cloned(), there: None, left: info.links - 1 });
        }
        None
    }
    /// The sink has the first name of this file already.
    pub fn stays(&mut self, info: &Info, there: &Listed) {
        if let Some(f) = self.0.get_mut(&info.id) {
            f.there = there.extra.as_ref().and_then(|x| x.inode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    #[test]
    fn further_names_of_one_file_are_counted_and_nothing_of_plain_files() {
        let d = tempfile::tempdir().unwrap();
        std::fs::write(d.path().join("a"), "x").unwrap();
        std::fs::write(d.path().join("one"), "x").unwrap();
        for n in ["b", "c"] {
            std::fs::hard_link(d.path().join("a"), d.path().join(n)).unwrap();
        }
        let dir = Tree::open(d.path()).unwrap().dir(&crate::path::RelPath::root()).unwrap();
        let (mut linked, count) = (Linked::default(), Counter::new(Arc::default()));
        for n in ["a", "b", "c", "one"] {
            let info = dir.info(n.as_bytes()).unwrap();
            count.sent(&info, linked.again(&info));
            count.attributes(Attributes::default());
        }
        assert_eq!(count.get(), NotPreserved { hard_links: 2, ..NotPreserved::default() });
        let info = Info { owner: count.user + 1, special_bits: true, ..dir.info(b"one").unwrap() };
        count.sent(&info, false);
        count.attributes(Attributes { extended: true, acl: true });
        let one = |n: u64| NotPreserved {
            hard_links: 2,
            extended_attributes: n,
            access_control_lists: n,
            owners: n,
            special_bits: n,
        };
        assert_eq!(count.get(), one(1));
    }
}
