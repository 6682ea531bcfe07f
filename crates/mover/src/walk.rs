//! Finds what is to be sent or listed, folder by folder in the order of [`RelPath`].
//!
//! Only the names of the folders between the root and the present place are held, so a tree of any number of files
//! can be walked; and only one folder is open at a time.

use crate::error::{Cause, FileError};
use crate::path::{MAX_DEPTH, RelPath};
use crate::proto::Kind;
use crate::tree::{Info, Tree};
use std::sync::Arc;

/// A root to walk: a path in a tree.
#[derive(Clone, Debug)]
pub struct Start {
    /// The open folder it lies in.
    pub tree: Arc<Tree>,
    /// Where.
    pub path: RelPath,
}

/// Something that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Which of the starts.
    pub root: u32,
    /// Path inside of it; empty for itself.
    pub path: RelPath,
    /// What it is.
    pub info: Info,
}

struct Level {
    path: RelPath,
    names: std::vec::IntoIter<Vec<u8>>,
}

/// An iterator over everything beneath the starts.
pub struct Walk {
    starts: Vec<Start>,
    next: usize,
    stack: Vec<Level>,
    depth: usize,
    /// The folder that names are looked up in, while it stays the same.
    open: Option<crate::tree::Dir>,
    /// Reported after the folder it is about.
    pending: Option<FileError>,
}

impl Walk {
    /// Walks all of `starts`, one after the other, into folders of at most `depth` levels below each.
    pub fn new(starts: Vec<Start>, depth: usize) -> Walk {
        Walk { starts, next: 0, stack: Vec::new(), depth: depth.min(MAX_DEPTH), open: None, pending: None }
    }
    fn start(&self) -> &Start {
        &self.starts[self.next - 1]
    }
    /// Begins the next start.
    fn begin(&mut self) -> Option<Result<Found, FileError>> {
        let s = self.starts.get(self.next)?;
        let (found, root) = (s.tree.info(&s.path), self.next as u32);
        self.next += 1;
        let s = self.start();
        let info = match found {
            Ok(i) => i,
            Err(e) => return Some(Err(FileError::io(s.path.as_bytes(), "look at", &e))),
        };
        if info.kind == Kind::Dir && self.depth > 0 {
            self.pending = self.enter(RelPath::root()).err();
        }
        Some(Ok(Found { root, path: RelPath::root(), info }))
    }
    /// Reads a folder's names; `path` is relative to the start.
    fn enter(&mut self, path: RelPath) -> Result<(), FileError> {
        let s = self.start();
        let full = s
            .path
            .append(&path)
            .map_err(|e| FileError::new(path.as_bytes(), Cause::NameTooLong, e.to_string()))?;
        let names = s.tree.names(&full).map_err(|e| FileError::io(full.as_bytes(), "read the folder", &e))?;
        self.stack.push(Level { path, names: names.into_iter() });
        self.open = None;
        Ok(())
    }
    fn look(&mut self, dir: &RelPath, name: &[u8]) -> std::io::Result<Info> {
        if self.open.is_none() {
            let s = self.start();
            let full = s.path.append(dir).map_err(|e| std::io::Error::other(e.to_string()))?;
            self.open = Some(s.tree.dir(&full)?);
        }
        match &self.open {
            Some(d) => d.info(name),
            None => Err(std::io::ErrorKind::NotFound.into()),
        }
    }
    fn step(&mut self) -> Option<Result<Found, FileError>> {
        loop {
            let Some(level) = self.stack.last_mut() else { return self.begin() };
            let Some(name) = level.names.next() else {
                self.stack.pop();
                self.open = None;
                continue;
            };
            let dir = level.path.clone();
            let path = match dir.join(&name) {
                Ok(p) => p,
                Err(e) => {
                    let text = format!("in {dir}: the path {e}");
                    return Some(Err(FileError::new(&name, Cause::NameTooLong, text)));
                }
            };
            let info = match self.look(&dir, &name) {
                Ok(i) => i,
                Err(e) => {
                    let full = self.start().path.append(&path).unwrap_or(path);
                    return Some(Err(FileError::io(full.as_bytes(), "look at", &e)));
                }
            };
            let root = (self.next - 1) as u32;
            if info.kind == Kind::Dir && self.stack.len() < self.depth {
                // The folder itself is sent even when its names cannot be read; that is reported next.
                self.pending = self.enter(path.clone()).err();
            }
            return Some(Ok(Found { root, path, info }));
        }
    }
}

impl Iterator for Walk {
    type Item = Result<Found, FileError>;
    fn next(&mut self) -> Option<Self::Item> {
        if let Some(e) = self.pending.take() {
            return Some(Err(e));
        }
        self.step()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_comes_once_and_in_order() {
        let d = tempfile::tempdir().unwrap();
        for p in ["t/a/b/c", "t/a.d", "t/empty", "t/z"] {
            std::fs::create_dir_all(d.path().join(p)).unwrap();
        }
        for p in ["t/a/b/f", "t/a/f", "t/a.txt", "t/z/1", "t/.hidden", "t/.x.longhaul-part"] {
            std::fs::write(d.path().join(p), p).unwrap();
        }
        std::os::unix::fs::symlink("a", d.path().join("t/link")).unwrap();
        let tree = Arc::new(Tree::open(d.path()).unwrap());
        let start = |p: &str| Start { tree: tree.clone(), path: RelPath::parse(p.as_bytes()).unwrap() };
        let all: Vec<Found> =
            Walk::new(vec![start("t"), start("t/z"), start("t/a.txt")], 99).map(|f| f.unwrap()).collect();
        let names: Vec<String> = all.iter().map(|f| format!("{}:{}", f.root, f.path)).collect();
        assert_eq!(
            names,
            [
                "0:.",
                "0:.hidden",
                "0:a",
                "0:a/b",
                "0:a/b/c",
                "0:a/b/f",
                "0:a/f",
                "0:a.d",
                "0:a.txt",
                "0:empty",
                "0:link",
                "0:z",
                "0:z/1",
                "1:.",
                "1:1",
                "2:."
            ]
        );
        assert!(all.windows(2).all(|w| (w[0].root, &w[0].path) < (w[1].root, &w[1].path)));
        let flat = Walk::new(vec![start("t")], 1).map(|f| f.unwrap().path.to_string()).collect::<Vec<_>>();
        assert_eq!(flat, [".", ".hidden", "a", "a.d", "a.txt", "empty", "link", "z"]);
    }

    #[test]
    fn a_missing_start_is_named_and_the_others_go_on() {
        let d = tempfile::tempdir().unwrap();
        std::fs::write(d.path().join("there"), "x").unwrap();
        let tree = Arc::new(Tree::open(d.path()).unwrap());
        let start = |p: &str| Start { tree: tree.clone(), path: RelPath::parse(p.as_bytes()).unwrap() };
        let v: Vec<_> = Walk::new(vec![start("gone"), start("there")], 9).collect();
        let e = v[0].as_ref().unwrap_err();
        assert!(e.path == "gone" && e.cause == Cause::Vanished, "{e}");
        assert_eq!(v[1].as_ref().unwrap().root, 1);
    }
}
