//! Finds a file's pieces among those that the other end has.

use super::{Copied, Cut, Key, Listed, MAX_FILE};
use std::collections::HashMap;

/// What the sink has listed of its file.
pub(crate) struct Listing {
    pieces: Vec<Cut>,
    /// The first piece of each kind.
    by_key: HashMap<Key, u32>,
    end: u64,
    most: u64,
}

impl Listing {
    /// Takes `most` pieces at most.
    pub fn new(most: u64) -> Listing {
        Listing { pieces: Vec::new(), by_key: HashMap::new(), end: 0, most }
    }
    /// Adds what follows.
    ///
    /// # Errors
    /// More than was agreed, or beyond the end of any file.
    pub fn add(&mut self, listed: &[Listed]) -> Result<(), &'static str> {
        for l in listed {
            let offset = self.end.saturating_add(l.gap);
            self.end = offset.saturating_add(u64::from(l.len));
            if self.pieces.len() as u64 >= self.most || self.end > crate::hash::MAX_FILE {
                return Err("a file was listed in more pieces than it may have");
            }
            let n = self.pieces.len() as u32;
            self.pieces.push(Cut { offset, len: l.len, key: l.key });
            self.by_key.entry(l.key).or_insert(n);
        }
        Ok(())
    }
    /// Whether nothing was listed.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }
    /// What of a file with these pieces, ascending, the other end has; what is side by side in both files in one.
    pub fn find(&self, mine: &[Cut]) -> Vec<Copied> {
        let mut out: Vec<Copied> = Vec::new();
        // Of a kind that is there several times, the one behind the last is taken, so that there are few copies.
        let mut next = 0;
        for m in mine {
            let fits = |n: &usize| self.pieces.get(*n).is_some_and(|p| p.key == m.key && p.len == m.len);
            let first = || self.by_key.get(&m.key).map(|n| *n as usize).filter(fits);
            let Some(n) = Some(next).filter(fits).or_else(first) else { continue };
            next = n + 1;
            let (from, len) = (self.pieces[n].offset, u64::from(m.len));
            match out.last_mut() {
                Some(c) if c.end() == m.offset && c.from + c.len == from => c.len += len,
                _ => out.push(Copied { at: m.offset, from, len }),
            }
        }
        out
    }
}

const _: () = assert!(MAX_FILE <= crate::hash::MAX_FILE);
