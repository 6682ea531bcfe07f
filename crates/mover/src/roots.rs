//! Finds the sources that a request names; those that cannot be sent are reported.

use crate::error::{Cause, Error, FileError};
use crate::path::{RelPath, show};
use crate::proto::{Kind, Root};
use crate::tree::Tree;
use crate::walk::{Start, unreadable};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The sources of one transfer.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// Where they are.
    pub starts: Vec<Start>,
    /// What they are called at the destination; as many.
    pub roots: Vec<Root>,
    /// What was named and does not go.
    pub failed: Vec<FileError>,
    /// Names that are taken, with what took them.
    taken: BTreeMap<RelPath, Vec<u8>>,
}

impl Sources {
    /// Adds what was named as `shown`. `place` is the same for all ways to name the same thing, which goes once. Of two
    /// things with one name at the destination the first goes.
    pub fn add(&mut self, shown: &[u8], place: &[u8], source: Result<(Start, Root), FileError>) {
        let (start, root) = match source {
            Ok(s) => s,
            Err(e) => return self.failed.push(e),
        };
        match self.taken.get(&root.name) {
            Some(p) if p == place => {}
            Some(_) => {
                let text = "is left out: a source named before it goes to the same place";
                self.failed.push(FileError::new(shown, Cause::SameName, text));
            }
            None => {
                self.taken.insert(root.name.clone(), place.to_vec());
                self.starts.push(start);
                self.roots.push(root);
            }
        }
    }
}

/// Whether a path stands for what is in a folder, not for the folder: rsync's rule, by which `.` and `..` do so too, as they
/// are no names that a folder could have at the destination.
pub(crate) fn means_contents(path: &[u8]) -> bool {
    path.is_empty() || matches!(path.rsplit(|b| *b == b'/').next(), Some(b"" | b"." | b".."))
}

/// Whether a destination is said to be a folder, by its end.
pub(crate) fn means_folder(path: &[u8]) -> bool {
    !path.is_empty() && means_contents(path)
}

/// An empty path is a variable of a script that was never set, most likely: nothing is done then.
pub(crate) fn not_empty(path: &[u8], what: &str) -> Result<(), Error> {
    if path.is_empty() {
        return Err(Error::Local {
            text: format!("cannot {what} \"\": the path is empty; name a file or a folder"),
        });
    }
    Ok(())
}

/// A source that this machine's user named, and its full path. A symbolic link stands for itself, as everywhere in a tree,
/// unless its contents are meant.
pub(crate) fn local(p: &Path) -> Result<(Start, Root, PathBuf), FileError> {
    let shown = p.as_os_str().as_bytes();
    let fail = |e: io::Error| unreadable(shown, &e);
    if means_contents(shown) {
        let full = std::fs::canonicalize(p).map_err(fail)?;
        if !full.is_dir() {
            return Err(fail(io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
        let tree = Arc::new(Tree::open(&full).map_err(fail)?);
        let root = Root { name: RelPath::root(), kind: Kind::Dir };
        return Ok((Start { tree, path: RelPath::root() }, root, full.join("")));
    }
    let above = match p.parent() {
        Some(x) if !x.as_os_str().is_empty() => x,
        _ => Path::new("."),
    };
    let above = std::fs::canonicalize(above).map_err(fail)?;
    let name = p.file_name().unwrap_or_default();
    let path = RelPath::parse(name.as_bytes()).map_err(|e| FileError::of_path(shown, e))?;
    let tree = Arc::new(Tree::open(&above).map_err(fail)?);
    let kind = tree.info(&path).map_err(fail)?.kind;
    Ok((Start { tree, path: path.clone() }, Root { name: path, kind }, above.join(name)))
}

/// A path below a served folder, for people.
pub(crate) fn shown(p: &RelPath) -> &[u8] {
    if p.is_root() { b"." } else { p.as_bytes() }
}

/// A source that a client named by its path below a served folder.
pub(crate) fn served(tree: &Arc<Tree>, p: &RelPath, contents: bool) -> Result<(Start, Root), FileError> {
    let fail = |e: io::Error| unreadable(shown(p), &e);
    let kind = tree.info(p).map_err(fail)?.kind;
    match kind {
        Kind::Link if contents => {
            return Err(FileError::new(shown(p), Cause::Link, "cannot be read: it is a symbolic link"));
        }
        Kind::File | Kind::Other if contents => {
            return Err(fail(io::Error::from_raw_os_error(libc::ENOTDIR)));
        }
        _ => {}
    }
    let name = match p.split() {
        Some((_, n)) if !contents => RelPath::parse(n).map_err(|e| FileError::of_path(p.as_bytes(), e))?,
        _ => RelPath::root(),
    };
    Ok((Start { tree: tree.clone(), path: p.clone() }, Root { name, kind }))
}

/// The folder that is written to, where in it, and whether that is meant as a folder. It is made where it is missing, with
/// those above it; in a rehearsal nothing is.
pub(crate) fn destination(p: &Path, several: bool, rehearsal: bool) -> Result<(Tree, RelPath, bool), Error> {
    let shown = p.as_os_str().as_bytes();
    not_empty(shown, "write to")?;
    let fail = |e: io::Error| {
        let text = format!("cannot use {} as the destination: {e}", show(shown));
        Error::Local { text }
    };
    let folder = means_folder(shown);
    // Without a `.` at its end, which cannot be made.
    let p: &Path = &p.components().collect::<PathBuf>();
    if (folder || several) && !rehearsal {
        std::fs::create_dir_all(p).map_err(fail)?;
    }
    if p.is_dir() {
        return Ok((Tree::open(p).map_err(fail)?, RelPath::root(), true));
    }
    let mut parent = above(p);
    let name = p.file_name().ok_or_else(|| fail(std::io::ErrorKind::InvalidInput.into()))?;
    let mut dest = name.as_bytes().to_vec();
    while rehearsal && !parent.exists() {
        let missing = parent.file_name().ok_or_else(|| fail(std::io::ErrorKind::InvalidInput.into()))?;
        dest = [missing.as_bytes(), b"/", &dest].concat();
        parent = above(parent);
    }
    if !rehearsal {
        std::fs::create_dir_all(parent).map_err(fail)?;
    }
    let dest = RelPath::parse(&dest).map_err(|e| fail(std::io::Error::other(e.to_string())))?;
    Ok((Tree::open(parent).map_err(fail)?, dest, folder || several))
}
/// The folder that a path lies in.
fn above(p: &Path) -> &Path {
    match p.parent() {
        Some(x) if !x.as_os_str().is_empty() => x,
        Some(_) => Path::new("."),
        None => Path::new("/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn contents_are_meant_by_a_slash_a_dot_or_two_at_the_end() {
        for p in ["", "/", "a/", "a//", ".", "./", "a/.", "..", "../", "a/.."] {
            assert!(means_contents(p.as_bytes()), "{p}");
        }
        for p in ["a", "./a", "../a", "a.", ".a", "...", "a/..."] {
            assert!(!means_contents(p.as_bytes()) && !means_folder(p.as_bytes()), "{p}");
        }
        assert!(means_folder(b"a/.") && !means_folder(b""));
    }

    #[test]
    fn unsendable_files_are_reported_and_the_others_are_sent() {
        let d = tempfile::tempdir().unwrap();
        let at = |n: &str| d.path().join(n);
        std::fs::create_dir_all(at("dir/sub")).unwrap();
        for n in ["f", "dir/f", ".x.longhaul-part"] {
            std::fs::write(at(n), n).unwrap();
        }
        symlink("dir", at("link")).unwrap();
        symlink("nowhere", at("broken")).unwrap();
        let mut s = Sources::default();
        for n in [
            "gone",
            "f",
            "f/",
            "dir",
            "dir/../dir",
            "link",
            "broken",
            "link/",
            "dir/.",
            "dir/f",
            ".x.longhaul-part",
            "gone/x",
        ] {
            let shown = at(n).into_os_string();
            match local(Path::new(&shown)) {
                Ok((start, root, full)) => {
                    s.add(shown.as_bytes(), full.as_os_str().as_bytes(), Ok((start, root)));
                }
                Err(e) => s.add(shown.as_bytes(), b"", Err(e)),
            }
        }
        let roots: Vec<_> = s.roots.iter().map(|r| (r.name.to_string(), r.kind)).collect();
        let want = [
            ("f", Kind::File),
            ("dir", Kind::Dir),
            ("link", Kind::Link),
            ("broken", Kind::Link),
            (".", Kind::Dir),
        ];
        assert_eq!(roots, want.map(|(n, k)| (n.to_owned(), k)));
        assert_eq!(s.starts.len(), s.roots.len());
        let failed: Vec<_> = s.failed.iter().map(|e| (e.path.rsplit('/').next().unwrap(), e.cause)).collect();
        let want = [
            ("gone", Cause::Missing),
            ("", Cause::Missing),
            ("f", Cause::SameName),
            (".x.longhaul-part", Cause::Reserved),
            ("x", Cause::Missing),
        ];
        assert_eq!(failed, want);
    }
}
