//! How files are put in place at the destination: permissions and owners that the client chooses, and folders beside the
//! destination; as rsync(1) has it.

pub mod chmod;
mod folders;

pub(crate) use folders::{Destination, PartialDir, Resolved};

use crate::keep::Keep;
use crate::path::{MAX_PATH, RelPath};
use chmod::{MAX_CHANGES, ModeChange};

/// Most folders of `--link-dest`, as in rsync.
pub const MAX_LINK_DESTS: usize = 20;

/// The choices. The default changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Changes of the permissions of what is sent, in their order.
    pub chmod: Vec<ModeChange>,
    /// Whom everything is to belong to.
    pub chown: Chown,
    /// Folders whose files are linked where the source has the same ones: relative to the destination, or full paths.
    pub link_dest: Vec<Vec<u8>>,
    /// Where unfinished large files are kept: a folder relative to that of each file, or a full path.
    pub partial_dir: Option<Vec<u8>>,
}

/// User and group by name, or by number in digits; `None`: as it is without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chown {
    /// The user.
    pub user: Option<Vec<u8>>,
    /// The group.
    pub group: Option<Vec<u8>>,
}

impl Placement {
    /// Checks the limits above.
    ///
    /// # Errors
    /// In words for the user.
    pub fn check(&self) -> Result<(), String> {
        if self.chmod.len() > MAX_CHANGES {
            return Err(format!(
                "there are {} changes of permissions; {MAX_CHANGES} are the most",
                self.chmod.len()
            ));
        }
        if self.link_dest.len() > MAX_LINK_DESTS {
            return Err(format!(
                "there are {} link-dest folders; {MAX_LINK_DESTS} are the most",
                self.link_dest.len()
            ));
        }
        for p in self.link_dest.iter().chain(&self.partial_dir) {
            if p.is_empty() || p.len() > MAX_PATH || p.contains(&0) {
                return Err(format!(
                    "the folder {} is empty or too long; name another",
                    crate::path::show(p)
                ));
            }
        }
        match self.partial_folder() {
            Some(Err(e)) => Err(e),
            Some(Ok(p)) if p.is_root() => {
                Err("the folder for unfinished files is the folder of the files itself; name one below it"
                    .into())
            }
            _ => Ok(()),
        }
    }
    /// What has to be kept for it.
    pub fn keep(&self) -> Keep {
        Keep::OWNER.only_if(self.chown.user.is_some()).with(Keep::GROUP.only_if(self.chown.group.is_some()))
    }
    /// The folder for unfinished files, where it is one below that of each file.
    pub(crate) fn partial_folder(&self) -> Option<Result<RelPath, String>> {
        let dir = self.partial_dir.as_ref().filter(|d| !d.starts_with(b"/"))?;
        Some(
            RelPath::parse_lenient(dir)
                .map_err(|e| format!("the folder for unfinished files, {}, {e}", crate::path::show(dir))),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_kept() {
        let dirs = |n| Placement { link_dest: vec![b"../a".to_vec(); n], ..Placement::default() };
        assert!(dirs(MAX_LINK_DESTS).check().is_ok() && dirs(MAX_LINK_DESTS + 1).check().is_err());
        for (dir, good) in
            [("", false), (".", false), ("../x", false), (".partial", true), ("a/b", true), ("/x", true)]
        {
            let p = Placement { partial_dir: Some(dir.as_bytes().to_vec()), ..Placement::default() };
            assert_eq!(p.check().is_ok(), good, "{dir}");
        }
    }
}
