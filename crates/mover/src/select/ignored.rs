//! `.longhaulignore` files: what they name is not sent. Their lines are those of gitignore(5).

use crate::error::{Cause, FileError};
use crate::path::RelPath;
use crate::tree::Tree;
use crate::walk::Start;
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Their name.
pub(super) const NAME: &[u8] = b".longhaulignore";
/// Longest such file, in bytes.
const MAX_FILE: usize = 64 << 10;

/// The folders that lead to the present place, each with what its file says.
#[derive(Debug, Default)]
pub(super) struct Ignored {
    root: Option<u32>,
    levels: Vec<(RelPath, Option<Gitignore>)>,
}

impl Ignored {
    /// Whether a name is left out, below folders that are not. Names come in the order of a walk, more or less: the files of the
    /// folders that lead to the last one are kept.
    ///
    /// # Errors
    /// The file of a folder above it cannot be used.
    pub fn excludes(
        &mut self,
        root: u32,
        start: &Start,
        path: &RelPath,
        dir: bool,
    ) -> Result<bool, FileError> {
        self.enter(root, start, path)?;
        for (folder, file) in self.levels.iter().rev() {
            let Some(file) = file else { continue };
            let skip = if folder.is_root() { 0 } else { folder.as_bytes().len() + 1 };
            let Some(below) = path.as_bytes().get(skip..) else { continue };
            match file.matched(Path::new(OsStr::from_bytes(below)), dir) {
                Match::None => {}
                Match::Ignore(_) => return Ok(true),
                Match::Whitelist(_) => return Ok(false),
            }
        }
        Ok(false)
    }
    /// Reads the files of all folders above a name that are not read yet.
    fn enter(&mut self, root: u32, start: &Start, path: &RelPath) -> Result<(), FileError> {
        if self.root != Some(root) {
            (self.root, self.levels) = (Some(root), Vec::new());
        }
        self.levels.retain(|(folder, _)| path.is_below(folder));
        let mut folder = RelPath::root();
        for name in path.components() {
            if !self.levels.iter().any(|l| l.0 == folder) {
                let full = start.path.append(&folder).unwrap_or_default();
                self.levels.push((folder.clone(), read(&start.tree, &full)?));
            }
            folder = folder.join(name).unwrap_or_default();
        }
        Ok(())
    }
}

/// What the file of a folder says; `None` where there is none.
///
/// # Errors
/// It is too long, no text, or has a line that cannot be used.
fn read(tree: &Tree, folder: &RelPath) -> Result<Option<Gitignore>, FileError> {
    let Ok(path) = folder.join(NAME) else { return Ok(None) };
    let fail = |why: String| {
        let text = format!("cannot be used: {why}; mend it, or give --no-ignore");
        FileError::new(path.as_bytes(), Cause::Other, text)
    };
    let file = match tree.read_file(&path) {
        Ok(f) => f,
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        // A folder or link of that name says nothing.
        Err(e) if matches!(Cause::of(&e), Cause::Special | Cause::Link | Cause::IsFolder) => return Ok(None),
        Err(e) => return Err(fail(e.to_string())),
    };
    let mut text = Vec::new();
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut text).map_err(|e| fail(e.to_string()))?;
    if text.len() > MAX_FILE {
        return Err(fail(format!("it is longer than {MAX_FILE} bytes")));
    }
    let text = String::from_utf8(text).map_err(|_| fail("it is not UTF-8".into()))?;
    let mut b = GitignoreBuilder::new("");
    for line in text.lines() {
        b.add_line(None, line).map_err(|e| fail(e.to_string()))?;
    }
    b.build().map(Some).map_err(|e| fail(e.to_string()))
}
