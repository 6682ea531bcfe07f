//! What of the sources is sent, and what of the destination is replaced, kept or removed; as rsync(1) has it.
//!
//! The source decides: it walks, it knows the rules, and it has the sink's listing beside its own. So the rules travel only to a
//! server that is the source. A sink is told by name what to remove, and looks at each name once more itself.

pub mod filter;
mod ignored;
mod names;
mod picker;

pub use filter::{Filter, Rule};
pub use names::Names;
pub(crate) use picker::{ExtraneousAction, Picker, ProtectedFiles, Selection};

use crate::path::RelPath;
use crate::placement::Placement;
use crate::proto::Meta;

/// Longest pattern of a rule, in bytes.
pub const MAX_PATTERN: usize = 1024;
/// Most rules of one transfer.
pub const MAX_RULES: usize = 4096;
/// All patterns together, in bytes: they fit in one message.
pub const MAX_RULES_BYTES: usize = 128 * 1024;
/// Most names that a server takes in a list of names.
pub const MAX_NAMES: usize = 65_536;
/// All of them together, in bytes.
pub const MAX_NAMES_BYTES: usize = 2 << 20;
/// Longest suffix of a backup, in bytes.
pub const MAX_SUFFIX: usize = 64;

/// The choices. The default sends everything but what `.longhaulignore` files name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Select {
    /// Filter rules, in their order.
    pub rules: Vec<Rule>,
    /// `.longhaulignore` files are content only.
    pub no_ignore: bool,
    /// Folders that another file system is mounted at are sent empty.
    pub one_file_system: bool,
    /// Larger files are left out, in bytes.
    pub max_size: Option<u64>,
    /// Smaller files are left out, in bytes.
    pub min_size: Option<u64>,
    /// Only these names below the one source are sent.
    pub names: Option<Names>,
    /// A file that is newer at the destination stays.
    pub update: bool,
    /// Only what exists at the destination is sent.
    pub existing: bool,
    /// What exists at the destination stays, and that is no failure.
    pub ignore_existing: bool,
    /// Files of the same size are the same.
    pub size_only: bool,
    /// Times that are no further apart are the same, in seconds.
    pub modify_window: u64,
    /// Names that the source has not are removed at the destination.
    pub delete: Option<Delete>,
    /// What is replaced or removed is kept under another name.
    pub backup: Option<Backup>,
    /// How files are put in place.
    pub placement: Placement,
}

/// How what is left over at the destination is removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// Also what the rules leave out; else that stays.
    pub excluded: bool,
    /// Also when something could not be read or written.
    pub ignore_errors: bool,
    /// So many at most.
    pub max: Option<u64>,
}

/// Where a file that is replaced or removed goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backup {
    /// Appended to its name; 0 to [`MAX_SUFFIX`] bytes, without a slash or NUL.
    pub suffix: Vec<u8>,
    /// The folder, below the destination; beside the file without one.
    pub dir: Option<RelPath>,
}

impl Backup {
    /// Checks suffix and folder.
    ///
    /// # Errors
    /// In words for the user.
    pub fn new(suffix: &[u8], dir: Option<RelPath>) -> Result<Backup, String> {
        let bad = suffix.len() > MAX_SUFFIX || suffix.iter().any(|b| matches!(b, 0 | b'/'));
        match () {
            () if bad => Err(format!("a suffix has at most {MAX_SUFFIX} bytes and no slash; try ~")),
            () if dir.as_ref().is_some_and(RelPath::is_root) => {
                Err("the folder for backups is the destination itself; name one below it".into())
            }
            () if suffix.is_empty() && dir.is_none() => {
                Err("an empty suffix keeps nothing; give one, or a folder for backups".into())
            }
            () => Ok(Backup { suffix: suffix.to_vec(), dir }),
        }
    }
}

impl Select {
    /// Checks the limits above.
    ///
    /// # Errors
    /// In words for the user.
    pub fn check(&self) -> Result<(), String> {
        let bytes: usize = self.rules.iter().map(|r| r.pattern.len() + 8).sum();
        if self.rules.len() > MAX_RULES || bytes > MAX_RULES_BYTES {
            return Err(format!(
                "there are {} filter rules of {bytes} bytes; {MAX_RULES} of {MAX_RULES_BYTES} bytes together are the most",
                self.rules.len()
            ));
        }
        if self.names.is_some() && self.delete.is_some() {
            return Err(
                "a list of names does not say what is left over; leave out --delete or --files-from".into()
            );
        }
        self.placement.check()
    }
    /// What of it the other end needs: all of it where that is the source, else what it is to do with what is there.
    pub(crate) fn for_peer(&self, is_source: bool) -> Select {
        if is_source {
            return self.clone();
        }
        let placement = self.placement.clone();
        Select { delete: self.delete.clone(), backup: self.backup.clone(), placement, ..Select::default() }
    }
    /// Whether two times count as the same.
    pub(crate) fn same_time(&self, a: &Meta, b: &Meta) -> bool {
        let close = self.modify_window > 0 && a.secs.abs_diff(b.secs) <= self.modify_window;
        close || (a.secs, a.nanos) == (b.secs, b.nanos)
    }
    /// Whether so large a file is sent.
    pub(crate) fn fits_size(&self, size: u64) -> bool {
        self.max_size.is_none_or(|m| size <= m) && self.min_size.is_none_or(|m| size >= m)
    }
}

/// What was found and left out, and what became of the rest of the destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Excluded {
    /// By filter rules; a folder counts once.
    pub by_rules: u64,
    /// By `.longhaulignore` files; a folder counts once.
    pub by_ignore_files: u64,
    /// Files too large or too small.
    pub by_size: u64,
    /// Files, folders and links that exist and stay, or that do not exist and are not made.
    pub by_destination: u64,
    /// Names left over at the destination that the source could not remember, and that stay therefore.
    pub undeleted: u64,
}

#[cfg(test)]
mod tests;
