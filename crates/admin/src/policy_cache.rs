//! A copy on disk of the last good policy of a store, for the time when the store cannot be reached.

use crate::etcd::MAX_POLICY;
use lhio::identity::{FileRole, open_strictly};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The cached copy of one source's policy: one file for each source.
#[derive(Clone, Debug)]
pub struct PolicyCache {
    path: PathBuf,
}

impl PolicyCache {
    /// The copy of the policy of `source`, below the folder `state`.
    pub fn new(state: &Path, source: &str) -> PolicyCache {
        // Two sources have two files, whatever characters they are made of.
        let name = blake3::hash(source.as_bytes()).to_hex();
        PolicyCache { path: state.join("policies").join(format!("{}.toml", &name[..32])) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The copy, when there is one that nobody else could have changed.
    pub fn read(&self) -> Option<String> {
        let opened = open_strictly(&self.path, FileRole::Trust);
        let file = opened.unwrap_or_else(|e| {
            tracing::warn!("{e}; it is not used");
            None
        })?;
        let mut text = String::new();
        file.take(MAX_POLICY as u64).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Keeps `text`. A copy that is the same already is left alone.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, text: &str) -> io::Result<()> {
        if self.read().as_deref() == Some(text) {
            return Ok(());
        }
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        // Complete or not there: other processes read and write it, too.
        let hidden = self.path.with_extension(format!("new-{}", std::process::id()));
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&hidden)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&hidden, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn cached_policies_are_separate_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (PolicyCache::new(dir.path(), "etcd://a/k"), PolicyCache::new(dir.path(), "etcd://b/k"));
        assert_eq!(a.read(), None);
        a.write("one").unwrap();
        b.write("two").unwrap();
        a.write("three").unwrap();
        assert_eq!((a.read().as_deref(), b.read().as_deref()), (Some("three"), Some("two")));
        fs::set_permissions(a.path(), fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(a.read(), None);
    }
}
