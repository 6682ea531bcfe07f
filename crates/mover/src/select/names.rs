//! A list of names to send (`--files-from`): each with the folders that lead to it.

use super::{MAX_NAMES, MAX_NAMES_BYTES};
use crate::error::FileError;
use crate::path::RelPath;

/// Names below a source, in the order of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(Vec<(RelPath, bool)>);

impl Names {
    /// Sorts them; `true` where the names in a folder are meant as well.
    pub fn new(mut all: Vec<(RelPath, bool)>) -> Names {
        all.sort();
        // Of two the one with more goes.
        all.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            kept.1 |= same && later.1;
            same
        });
        Names(all)
    }
    /// Reads a list: a name each line, or up to each NUL with `nul`. A slash in front means nothing, one at the end the
    /// names in a folder. Lines that are empty or begin with `#` or `;` are none. What can be no name is returned beside.
    pub fn parse(text: &[u8], nul: bool) -> (Names, Vec<FileError>) {
        let (mut all, mut bad) = (Vec::new(), Vec::new());
        let ends = |b: &u8| if nul { *b == 0 } else { matches!(b, b'\n' | b'\r') };
        for line in text.split(ends).filter(|l| !l.is_empty()) {
            if !nul && matches!(line[0], b'#' | b';') {
                continue;
            }
            match RelPath::parse_lenient(line) {
                Ok(p) => all.push((p, line.ends_with(b"/") || line.ends_with(b"/.") || line == b".")),
                Err(e) => bad.push(FileError::of_path(line, e)),
            }
        }
        (Names::new(all), bad)
    }
    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// All, in order; `true` where the names in a folder are meant as well.
    pub fn iter(&self) -> impl Iterator<Item = &(RelPath, bool)> {
        self.0.iter()
    }
    /// The same in parts whose names take so many bytes at most.
    pub(crate) fn in_pieces(&self, bytes: usize) -> Vec<Names> {
        let (mut out, mut left) = (vec![Vec::new()], bytes);
        for n in &self.0 {
            let takes = n.0.as_bytes().len() + 4;
            if takes > left {
                out.push(Vec::new());
                left = bytes;
            }
            left -= takes.min(left);
            if let Some(last) = out.last_mut() {
                last.push(n.clone());
            }
        }
        out.into_iter().map(Names).collect()
    }
    /// Adds a further part of a list.
    ///
    /// # Errors
    /// It has more names, or longer ones, than a server takes.
    pub(crate) fn append(&mut self, more: Names) -> Result<(), String> {
        self.0.extend(more.0);
        let bytes: usize = self.0.iter().map(|n| n.0.as_bytes().len() + 4).sum();
        if self.0.len() > MAX_NAMES || bytes > MAX_NAMES_BYTES {
            return Err(format!("a list of more than {MAX_NAMES} names or {MAX_NAMES_BYTES} bytes"));
        }
        *self = Names::new(std::mem::take(&mut self.0));
        Ok(())
    }
    /// Whether all that is in a folder is meant.
    pub(crate) fn whole(&self, folder: &RelPath) -> bool {
        self.0.binary_search_by(|n| n.0.cmp(folder)).is_ok_and(|i| self.0[i].1)
    }
    /// Whether a folder is looked into.
    pub(crate) fn leads_into(&self, folder: &RelPath) -> bool {
        let from = self.0.partition_point(|n| n.0 <= *folder);
        self.whole(folder) || self.0.get(from).is_some_and(|n| n.0.is_below(folder))
    }
    /// The names in a folder that are listed or lead to what is, sorted.
    pub(crate) fn in_folder(&self, folder: &RelPath) -> Vec<Vec<u8>> {
        let depth = folder.components().count();
        let from = self.0.partition_point(|n| n.0 <= *folder);
        let below = self.0[from..].iter().take_while(|n| n.0.is_below(folder));
        let mut out: Vec<Vec<u8>> = Vec::new();
        for name in below.filter_map(|n| n.0.components().nth(depth)) {
            if out.last().is_none_or(|l| l != name) {
                out.push(name.to_vec());
            }
        }
        out
    }
}
