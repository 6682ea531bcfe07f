//! Finds the folders beside a destination that a transfer uses.

use super::Placement;
use crate::error::{Cause, FileError};
use crate::path::{PathError, RelPath, show};
use crate::proto::{Kind, Root};
use crate::tree::Tree;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// A folder whose files are linked where the source has the same ones (`--link-dest`).
#[derive(Clone, Debug)]
pub(crate) struct Alternate {
    pub tree: Arc<Tree>,
    /// Where in it each root of the transfer would be.
    pub targets: Vec<RelPath>,
}

/// Where unfinished large files are kept (`--partial-dir`).
#[derive(Clone, Debug)]
pub(crate) enum PartialDir {
    /// In a folder below that of each file, which goes when it is empty.
    Beside(RelPath),
    /// All in one folder, which stays.
    Fixed(Arc<Tree>, RelPath),
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolved {
    pub alternates: Vec<Alternate>,
    pub partial: Option<PartialDir>,
    /// To be told to the user: folders that are not there.
    pub notes: Vec<String>,
}

/// The destination of a transfer.
pub(crate) struct Destination<'a> {
    pub tree: &'a Arc<Tree>,
    /// The folder that the roots go to.
    pub folder: RelPath,
    /// What a root is called there, which may be another name than its own.
    pub targets: &'a [RelPath],
    /// The folders belong to the user of this end: they may be anywhere. Else they are beneath the tree, whatever a peer says.
    pub anywhere: bool,
    /// Missing folders may be made.
    pub write: bool,
}

impl Placement {
    /// Finds the folders for these roots.
    ///
    /// # Errors
    /// One cannot be used.
    pub(crate) fn resolve(&self, d: &Destination<'_>, roots: &[Root]) -> Result<Resolved, FileError> {
        let mut out = Resolved::default();
        for dir in &self.link_dest {
            match d.open(dir) {
                Ok((tree, base)) => {
                    let own = |(t, r): (&RelPath, &Root)| match t.split() {
                        Some((folder, name)) if folder == d.folder && !r.name.is_root() => base.join(name),
                        _ => base.append(&r.name),
                    };
                    let targets = d.targets.iter().zip(roots).map(own).collect::<Result<_, PathError>>();
                    let targets = targets.map_err(|e| FileError::of_path(dir, e))?;
                    out.alternates.push(Alternate { tree, targets });
                }
                Err(e) if matches!(e.cause, Cause::Missing) => {
                    out.notes.push(format!("--link-dest {}: there is no such folder", show(dir)));
                }
                Err(e) => return Err(e),
            }
        }
        out.partial = self.partial(d)?;
        Ok(out)
    }
    fn partial(&self, d: &Destination<'_>) -> Result<Option<PartialDir>, FileError> {
        let Some(dir) = &self.partial_dir else { return Ok(None) };
        let fail = |text: String| FileError::new(dir, Cause::BadPath, text);
        if let Some(folder) = self.partial_folder() {
            return folder.map(|f| Some(PartialDir::Beside(f))).map_err(fail);
        }
        if !d.write {
            return Ok(None);
        }
        let made = match d.anywhere {
            true => match std::fs::create_dir(OsStr::from_bytes(dir)) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
                _ => Ok(()),
            },
            false => d.tree.make_dir(&beneath(&RelPath::root(), dir).map_err(fail)?).map(drop),
        };
        made.map_err(|e| FileError::io(dir, "make the folder for unfinished files", &e))?;
        d.open(dir).map(|(tree, path)| Some(PartialDir::Fixed(tree, path)))
    }
}

impl Destination<'_> {
    /// Opens a folder by its name, relative to the destination or in full.
    fn open(&self, dir: &[u8]) -> Result<(Arc<Tree>, RelPath), FileError> {
        let missing = |e: io::Error| crate::walk::unreadable(dir, &e);
        if self.anywhere {
            let at = self.tree.show(&self.folder).join(OsStr::from_bytes(dir));
            // By the names alone where the destination is not there yet.
            let tree = Tree::open(&at).or_else(|_| Tree::open(&plain(&at))).map_err(missing)?;
            return Ok((Arc::new(tree), RelPath::root()));
        }
        let path = beneath(&self.folder, dir).map_err(|t| FileError::new(dir, Cause::BadPath, t))?;
        match self.tree.info(&path).map_err(missing)?.kind {
            Kind::Dir => Ok((self.tree.clone(), path)),
            _ => Err(FileError::new(dir, Cause::NotFolder, "is no folder; name one")),
        }
    }
}

/// A path beneath the served folder from one that a client wrote: relative to `folder`, or from the top.
fn beneath(folder: &RelPath, dir: &[u8]) -> Result<RelPath, String> {
    let start: Vec<&[u8]> = if dir.starts_with(b"/") { Vec::new() } else { folder.components().collect() };
    let mut parts = start;
    for part in dir.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." if parts.pop().is_none() => {
                return Err("leads out of the served folder; name one that is below it".into());
            }
            b".." => {}
            name => parts.push(name),
        }
    }
    RelPath::parse(&parts.join(&b'/')).map_err(|e| e.to_string())
}

/// A path without `..`, by its names alone.
fn plain(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if out.file_name().is_some() => drop(out.pop()),
            Component::CurDir => {}
            part => out.push(part),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_clients_are_beneath_the_served_one() {
        let at = |folder: &str, dir: &str| {
            let folder = RelPath::parse(folder.as_bytes()).unwrap();
            beneath(&folder, dir.as_bytes()).map(|p| p.to_string())
        };
        assert_eq!(at("a/b", "../c"), Ok("a/c".into()));
        assert_eq!(
            at("a", "../../a/../b"),
            Err("leads out of the served folder; name one that is below it".into())
        );
        assert_eq!(at("a", "/x//./y/"), Ok("x/y".into()));
        assert_eq!(at("a", "/.."), Err("leads out of the served folder; name one that is below it".into()));
        assert_eq!(at("", "."), Ok(".".into()));
        assert!(at("a", "x/.y.longhaul-part").is_err());
        assert_eq!(plain(Path::new("/a/b/../../c/./d")), Path::new("/c/d"));
        assert_eq!(plain(Path::new("../x")), Path::new("../x"));
    }
}
