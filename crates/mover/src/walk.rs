//! Walks folders in the order of [`RelPath`], for sending and listing.
//!
//! Only the names of the folders between the root and the present place are held, so a tree of any number of files
//! can be walked; and only one folder is open at a time.
//!
//! Names reserved for unfinished transfers are reported as errors, since what they stand for does not travel. Unfinished files
//! with their journals, and what else this program notes, are no content, and are passed over.

use crate::error::{Cause, FileError};
use crate::journal::is_note;
use crate::path::{MAX_DEPTH, RelPath, is_reserved, journal_beside};
use crate::proto::Kind;
use crate::select::{Picker, Selection};
use crate::tree::{Dir, Info, Tree};
use lhio::safe_path::Attributes;
use std::io;
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
    /// What a folder that was entered has beside its names.
    pub attributes: Attributes,
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
    open: Option<Dir>,
    /// Reported after the folder it is about.
    pending: Option<FileError>,
    /// Nothing before this is looked at: number of a start, and a path inside of it.
    from: (u32, RelPath),
    /// What of it is wanted; all of it without.
    pass: Option<Selection>,
}

impl Walk {
    /// Walks all of `starts`, one after the other, into folders of at most `depth` levels below each.
    pub fn new(starts: Vec<Start>, depth: usize) -> Walk {
        let (next, stack, open, pending, from) = Default::default();
        Walk { starts, next, stack, depth: depth.min(MAX_DEPTH), open, pending, from, pass: None }
    }
    /// Finds only what these choices want, and counts what they do not where `counts` is set.
    pub(crate) fn selecting(mut self, picker: Arc<Picker>, counts: bool) -> Walk {
        self.pass = Some(Selection::new(picker, counts));
        self
    }
    /// Whether the choices leave something out.
    fn excludes(&mut self, root: u32, path: &RelPath, info: &Info) -> Result<bool, FileError> {
        let Some(pass) = &mut self.pass else { return Ok(false) };
        pass.excludes(root, &self.starts[root as usize], path, info)
    }
    /// Passes over all before this, but the folders that lead to it; what was passed already stays so.
    pub fn skip_to(&mut self, root: u32, path: RelPath) {
        self.from = (root, path).max(std::mem::take(&mut self.from));
    }
    /// Whether this may be passed over.
    fn passed(&self, root: u32, path: &RelPath) -> bool {
        let (r, from) = &self.from;
        (root, path) < (*r, from) && !(root == *r && from.is_below(path))
    }
    fn start(&self) -> &Start {
        &self.starts[self.next - 1]
    }
    /// Begins the next start that is wanted.
    fn begin(&mut self) -> Option<Result<Found, FileError>> {
        loop {
            self.next = self.next.max(self.from.0 as usize);
            let s = self.starts.get(self.next)?;
            let (found, root) = (s.tree.info(&s.path), self.next as u32);
            self.next += 1;
            let s = self.start();
            let info = match found {
                Ok(i) => i,
                Err(e) => return Some(Err(unreadable(s.path.as_bytes(), &e))),
            };
            match self.excludes(root, &RelPath::root(), &info) {
                Ok(false) => {}
                Ok(true) => continue,
                Err(e) => return Some(Err(e)),
            }
            let attributes = self.try_enter(&RelPath::root(), &info, self.depth > 0);
            return Some(Ok(Found { root, path: RelPath::root(), info, attributes }));
        }
    }
    /// Enters what is a folder, if that is `wanted`. The folder itself is sent even when its names cannot be read; that is
    /// reported next.
    fn try_enter(&mut self, path: &RelPath, info: &Info, wanted: bool) -> Attributes {
        if info.kind != Kind::Dir || !wanted || self.pass.as_ref().is_some_and(|p| !p.enters(info)) {
            return Attributes::default();
        }
        match self.enter(path.clone()) {
            Ok(a) => a,
            Err(e) => {
                self.pending = Some(e);
                Attributes::default()
            }
        }
    }
    /// Reads a folder's names; `path` is relative to the start.
    fn enter(&mut self, path: RelPath) -> Result<Attributes, FileError> {
        let s = self.start();
        let full = s
            .path
            .append(&path)
            .map_err(|e| FileError::new(path.as_bytes(), Cause::NameTooLong, e.to_string()))?;
        let mut names =
            s.tree.names(&full).map_err(|e| FileError::io(full.as_bytes(), "read the folder", &e))?;
        let listed = self.pass.as_ref().and_then(|p| p.picker.names());
        if let Some(listed) = listed.filter(|n| !n.whole(&path)) {
            names.sorted = listed.in_folder(&path);
        } else if let Some(listed) = listed {
            // What is listed and not there is named.
            names.sorted.extend(listed.in_folder(&path));
            names.sorted.sort_unstable();
            names.sorted.dedup();
        }
        self.stack.push(Level { path, names: names.sorted.into_iter() });
        self.open = None;
        Ok(names.attributes)
    }
    fn look(&mut self, dir: &RelPath, name: &[u8]) -> io::Result<Info> {
        self.folder(dir)?.info(name)
    }
    /// Opens the folder that names are looked up in.
    fn folder(&mut self, dir: &RelPath) -> io::Result<&Dir> {
        if self.open.is_none() {
            let s = self.start();
            let full = s.path.append(dir).map_err(|e| io::Error::other(e.to_string()))?;
            self.open = Some(s.tree.dir(&full)?);
        }
        self.open.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
    /// Reports something with a reserved name; `None` for what an unfinished transfer of this program has
    /// there, and for what is gone again.
    fn reserved(&mut self, dir: &RelPath, name: &[u8]) -> Option<FileError> {
        let full = [self.start().path.as_bytes(), dir.as_bytes(), name];
        let full = full.into_iter().filter(|p| !p.is_empty()).collect::<Vec<_>>().join(&b'/');
        let ours = self.folder(dir).and_then(|folder| {
            if folder.info(name)?.kind != Kind::File {
                return Ok(false);
            }
            match journal_beside(name) {
                // A journal begins when its file does, so what has none beside it may be anybody's.
                Some(journal) => Ok(folder.read_file(&journal).and_then(|f| is_note(&f)).unwrap_or(false)),
                None => folder.read_file(name).and_then(|f| is_note(&f)),
            }
        });
        match ours {
            Ok(true) => return None,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
            // Whatever it is that cannot be read, it does not travel.
            Ok(false) | Err(_) => {}
        }
        let text = "is left out, since names of this form (.NAME.longhaul-...) are for unfinished transfers";
        Some(FileError::new(&full, Cause::Reserved, text))
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
            if is_reserved(&name) {
                match self.reserved(&dir, &name) {
                    Some(e) => return Some(Err(e)),
                    None => continue,
                }
            }
            let path = match dir.join(&name) {
                Ok(p) => p,
                Err(e) => {
                    let text = format!("in {dir}: the path {e}");
                    return Some(Err(FileError::new(&name, Cause::NameTooLong, text)));
                }
            };
            if self.passed((self.next - 1) as u32, &path) {
                continue;
            }
            let info = match self.look(&dir, &name) {
                Ok(i) => i,
                Err(e) => {
                    let full = self.start().path.append(&path).unwrap_or(path);
                    if self.pass.as_ref().is_some_and(|p| p.picker.names().is_some()) {
                        return Some(Err(unreadable(full.as_bytes(), &e)));
                    }
                    return Some(Err(FileError::io(full.as_bytes(), "look at", &e)));
                }
            };
            let root = (self.next - 1) as u32;
            match self.excludes(root, &path, &info) {
                Ok(false) => {}
                Ok(true) => continue,
                Err(e) => {
                    self.stack.pop(); // nothing of its folder goes, since nobody knows what is to stay
                    self.open = None;
                    return Some(Err(e));
                }
            }
            // A folder that is listed without what is in it.
            let listed = self.pass.as_ref().and_then(|p| p.picker.names());
            let whole = listed.is_none_or(|n| n.leads_into(&path));
            let attributes = self.try_enter(&path, &info, whole && self.stack.len() < self.depth);
            return Some(Ok(Found { root, path, info, attributes }));
        }
    }
}

/// A source that cannot be read.
pub(crate) fn unreadable(path: &[u8], e: &io::Error) -> FileError {
    let missing = matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    let cause = if missing { Cause::Missing } else { Cause::of(e) };
    FileError::new(path, cause, format!("cannot be read: {e}"))
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
        for p in ["t/a/b/f", "t/a/f", "t/a.txt", "t/z/1", "t/.hidden"] {
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
    fn what_is_passed_over_is_not_looked_at_and_the_way_to_the_rest_is() {
        let d = tempfile::tempdir().unwrap();
        for p in ["a/1", "b/1", "b/2/x", "b/2/y", "b/3", "c/1"] {
            let p = d.path().join(p);
            std::fs::create_dir_all(p.parent().unwrap()).unwrap();
            std::fs::write(p, "").unwrap();
        }
        let tree = Arc::new(Tree::open(d.path()).unwrap());
        let p = |s: &str| RelPath::parse(s.as_bytes()).unwrap();
        let walk =
            || Walk::new(["a", "b", "c"].map(|n| Start { tree: tree.clone(), path: p(n) }).to_vec(), 9);
        let names =
            |w: Walk| w.map(|f| f.map(|f| format!("{}:{}", f.root, f.path)).unwrap()).collect::<Vec<_>>();
        let mut w = walk();
        w.skip_to(1, p("2/y"));
        w.skip_to(1, p("1")); // back: changes nothing
        assert_eq!(names(w), ["1:.", "1:2", "1:2/y", "1:3", "2:.", "2:1"]);
        // On the way.
        let mut w = walk();
        let first: Vec<_> = w.by_ref().take(5).map(|f| f.unwrap().path.to_string()).collect();
        assert_eq!(first, [".", "1", ".", "1", "2"]);
        w.skip_to(2, p("1"));
        assert_eq!(names(w), ["2:.", "2:1"]);
        let mut w = walk();
        w.skip_to(u32::MAX, p("z"));
        assert_eq!(names(w), [""; 0]);
    }

    #[test]
    fn a_missing_start_is_named_and_the_others_go_on() {
        let d = tempfile::tempdir().unwrap();
        std::fs::write(d.path().join("there"), "x").unwrap();
        let tree = Arc::new(Tree::open(d.path()).unwrap());
        let start = |p: &str| Start { tree: tree.clone(), path: RelPath::parse(p.as_bytes()).unwrap() };
        let v: Vec<_> = Walk::new(vec![start("gone"), start("there")], 9).collect();
        let e = v[0].as_ref().unwrap_err();
        assert!(e.path == "gone" && e.cause == Cause::Missing, "{e}");
        assert_eq!(v[1].as_ref().unwrap().root, 1);
    }

    #[test]
    fn reserved_names_are_reported_and_notes_of_this_program_are_passed_over() {
        let d = tempfile::tempdir().unwrap();
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap();
        std::fs::create_dir_all(d.path().join("t/s/.dir.longhaul-part")).unwrap();
        for (p, data) in [
            ("t/.a.longhaul-part", &b"data"[..]),
            ("t/.b.longhaul-journal", b"a diary"),
            ("t/.c.longhaul-session", b"minutes"),
            ("t/.d.longhaul-session", &boot[..36]),
            ("t/.e.longhaul-session", b""),
            ("t/s/.dir.longhaul-part/f", b"below"),
            ("t/s/plain.longhaul-part", b"an ordinary name"),
        ] {
            std::fs::write(d.path().join(p), data).unwrap();
        }
        let journal = d.path().join("t/.f.longhaul-journal");
        let journal = std::fs::File::options().read(true).write(true).create_new(true).open(journal).unwrap();
        let meta = crate::proto::Meta::default();
        let id = crate::journal::Identity::new(7, &meta, 18, &[]);
        std::fs::write(d.path().join("t/.f.longhaul-part"), "what has arrived of f").unwrap();
        crate::journal::Journal::open(journal, &id).unwrap();
        let tree = Arc::new(Tree::open(d.path()).unwrap());
        let start = Start { tree, path: RelPath::parse(b"t").unwrap() };
        let (mut found, mut errors) = (Vec::new(), Vec::new());
        for f in Walk::new(vec![start], 9) {
            match f {
                Ok(f) => found.push(f.path.to_string()),
                Err(e) => {
                    assert_eq!(e.cause, Cause::Reserved, "{e}");
                    errors.push(e.path);
                }
            }
        }
        assert_eq!(found, [".", "s", "s/plain.longhaul-part"]);
        let named = ["a.longhaul-part", "b.longhaul-journal", "c.longhaul-session", "e.longhaul-session"];
        let mut named: Vec<String> = named.iter().map(|n| format!("t/.{n}")).collect();
        named.push("t/s/.dir.longhaul-part".into());
        assert_eq!(errors, named);
    }
}
