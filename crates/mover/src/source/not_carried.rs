//! Counts what stays behind of what is sent.

use crate::proto::{Kind, NotCarried};
use crate::tree::Info;
use lhio::safe_path::Attributes;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Files with several names that are told apart: 64 MB of memory. Those beyond are not counted.
const MAX_LINKED: usize = 2_000_000;

/// Shared by the threads that find and read things.
#[derive(Debug)]
pub(super) struct Counter {
    /// Who runs this end.
    user: u32,
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
    pub fn new() -> Counter {
        let user = rustix::process::geteuid().as_raw();
        let [hard_links, extended, acls, owners, special_bits] = Default::default();
        Counter { user, hard_links, extended, acls, owners, special_bits }
    }
    /// Something is sent; `again` says that it was sent under another name before.
    pub fn sent(&self, info: &Info, again: bool) {
        add(&self.hard_links, again);
        add(&self.owners, info.owner != self.user);
        add(&self.special_bits, info.special_bits && info.kind != Kind::Link);
    }
    pub fn attributes(&self, a: Attributes) {
        add(&self.extended, a.extended);
        add(&self.acls, a.acl);
    }
    pub fn get(&self) -> NotCarried {
        let n = |c: &AtomicU64| c.load(Ordering::Relaxed);
        NotCarried {
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
pub(super) struct Linked(HashSet<(u64, u64)>);

impl Linked {
    /// Whether this file was met before, under another name.
    pub fn again(&mut self, info: &Info) -> bool {
        if info.kind != Kind::File || info.links < 2 {
            return false;
        }
        if self.0.len() >= MAX_LINKED { self.0.contains(&info.id) } else { !self.0.insert(info.id) }
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
        let (mut linked, count) = (Linked::default(), Counter::new());
        for n in ["a", "b", "c", "one"] {
            let info = dir.info(n.as_bytes()).unwrap();
            count.sent(&info, linked.again(&info));
            count.attributes(Attributes::default());
        }
        assert_eq!(count.get(), NotCarried { hard_links: 2, ..NotCarried::default() });
        let info = Info { owner: count.user + 1, special_bits: true, ..dir.info(b"one").unwrap() };
        count.sent(&info, false);
        count.attributes(Attributes { extended: true, acl: true });
        let one = |n: u64| NotCarried {
            hard_links: 2,
            extended_attributes: n,
            access_control_lists: n,
            owners: n,
            special_bits: n,
        };
        assert_eq!(count.get(), one(1));
    }
}
