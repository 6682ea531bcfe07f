//! Keeps what a transfer replaces or removes (`--backup`).

use crate::path::RelPath;
use crate::proto::Kind;
use crate::select::Backup;
use crate::tree::{Dir, Tree};
use std::io;
use std::sync::Arc;

/// Where old versions go.
#[derive(Debug)]
pub(super) struct Backups {
    tree: Arc<Tree>,
    how: Backup,
    /// The folder that the transfer writes to.
    dest: RelPath,
}

impl Backups {
    /// `dest` is the destination as the client named it.
    pub fn new(tree: Arc<Tree>, how: Backup, dest: RelPath) -> Backups {
        Backups { tree, how, dest }
    }
    /// Gives a file or link that is about to be replaced a second name, so that it is there at any moment. What is no
    /// file or link, or is not there, needs none.
    ///
    /// # Errors
    /// The system's: then nothing may be replaced.
    pub fn keep(&self, dir: &Dir, name: &[u8], path: &RelPath) -> io::Result<()> {
        match dir.info(name) {
            Ok(i) if matches!(i.kind, Kind::File | Kind::Link) => {}
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        }
        let (folder, to) = self.place(name, path)?;
        let folder = folder.as_ref().unwrap_or(dir);
        let linked = match dir.link_to(name, folder, &to) {
            // An older one gives way.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                folder.remove(&to)?;
                dir.link_to(name, folder, &to)
            }
            r => r,
        };
        match linked {
            // A file system without hard links.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EOPNOTSUPP | libc::EMLINK)) => {
                dir.move_to(name, folder, &to)
            }
            r => r,
        }
    }
    /// Moves a file or link away that is to be removed.
    ///
    /// # Errors
    /// The system's: then it is still there.
    pub fn take(&self, dir: &Dir, name: &[u8], path: &RelPath) -> io::Result<()> {
        self.keep(dir, name, path)?;
        match dir.remove(name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()), // `keep` had to move it
            r => r,
        }
    }
    /// The folder of a backup, where it is another one, and its name there.
    fn place(&self, name: &[u8], path: &RelPath) -> io::Result<(Option<Dir>, Vec<u8>)> {
        let to = [name, &self.how.suffix].concat();
        let bad = |e: crate::path::PathError| io::Error::other(format!("its backup {e}"));
        RelPath::root().join(&to).map_err(bad)?;
        let Some(folder) = &self.how.dir else { return Ok((None, to)) };
        let below = match path.is_below(&self.dest) {
            true if self.dest.is_root() => path.as_bytes(),
            true => &path.as_bytes()[self.dest.as_bytes().len() + 1..],
            // The destination is the file itself.
            false => name,
        };
        let base = if path.is_below(&self.dest) {
            self.dest.clone()
        } else {
            self.dest.split().map(|s| s.0).unwrap_or_default()
        };
        let above = RelPath::parse(below).map_err(bad)?.split().map(|s| s.0).unwrap_or_default();
        let folder = base.append(folder).and_then(|f| f.append(&above)).map_err(bad)?;
        Ok((Some(self.tree.make_dir(&folder)?), to))
    }
}
