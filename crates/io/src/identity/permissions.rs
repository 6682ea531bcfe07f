//! Ownership and permission checks of secret and trusted files, and of the folders above them. As ssh's
//! `StrictModes`, with one difference: a folder that everybody may write to is accepted when it has the sticky bit
//! (`/tmp`), since there nobody can replace what belongs to others.

use super::IdentityError;
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use zeroize::Zeroizing;

/// Symbolic links that are followed on one path, as many as the kernel follows.
const MAX_LINKS: usize = 40;
/// Group and others may write.
const WRITE: u32 = 0o022;
/// Group and others may do anything.
const ANY: u32 = 0o077;
/// In such a folder nobody but their owners can replace things (the sticky bit).
const STICKY: u32 = 0o1000;

/// What a file contains, and so who else may access it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileRole {
    /// A secret that only we may read.
    Secret,
    /// A secret that root may share with a group, as the keys of certificates often are.
    SharedSecret,
    /// What everybody may read and only we may change.
    Trust,
}

/// Opens a file for reading, if it exists, that holds a secret or says whom to trust.
///
/// # Errors
/// [`IdentityError::OpenToOthers`], [`IdentityError::WritableByOthers`] and [`IdentityError::ForeignOwner`] name what is
/// wrong with it or with a folder above it, and the command that mends it.
pub fn open_strictly(path: &Path, holds: FileRole) -> Result<Option<File>, IdentityError> {
    check_above(path)?;
    let file = match File::open(path) {
        Ok(f) => f,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(IdentityError::file("open", path, e)),
    };
    // The open file, not the name, so that nothing can change in between.
    let meta = file.metadata().map_err(|e| IdentityError::file("examine", path, e))?;
    check_file(path, &meta, holds)?;
    Ok(Some(file))
}

/// Checks a file of settings or programs that a process of root is to obey: nobody else may write to it. Processes of
/// other users obey what their user gives them.
///
/// # Errors
/// As [`open_strictly`].
pub fn check_for_root(path: &Path) -> Result<(), IdentityError> {
    if rustix::process::geteuid().is_root() { open_strictly(path, FileRole::Trust).map(drop) } else { Ok(()) }
}

/// All of a file, at most `limit` bytes and one more that tells that it is longer. What was read is overwritten when it is
/// dropped, and no copy is left behind where the buffer grows.
///
/// # Errors
/// The system's.
pub fn read_secret(mut file: &File, limit: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    let most = usize::try_from(limit).unwrap_or(usize::MAX).saturating_add(1);
    let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut out = Zeroizing::new(vec![0; len.saturating_add(1).clamp(1, most)]);
    let mut have = 0;
    while have < most {
        if have == out.len() {
            let mut larger = Zeroizing::new(vec![0; (have * 2).min(most)]);
            larger[..have].copy_from_slice(&out);
            out = larger;
        }
        match file.read(&mut out[have..]) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    out.truncate(have);
    Ok(out)
}

fn check_file(path: &Path, meta: &Metadata, holds: FileRole) -> Result<(), IdentityError> {
    check_owner(path, meta)?;
    let forbidden = match holds {
        FileRole::Secret => ANY,
        FileRole::SharedSecret if meta.uid() == 0 => 0o027,
        FileRole::SharedSecret => ANY,
        FileRole::Trust => WRITE,
    };
    let mode = meta.mode() & 0o7777;
    match mode & forbidden {
        0 => Ok(()),
        _ if holds == FileRole::Trust => Err(IdentityError::WritableByOthers { path: path.to_owned(), mode }),
        _ => Err(IdentityError::OpenToOthers { path: path.to_owned(), mode }),
    }
}

fn check_owner(path: &Path, meta: &Metadata) -> Result<(), IdentityError> {
    let (owner, us) = (meta.uid(), rustix::process::geteuid().as_raw());
    if owner == 0 || owner == us {
        return Ok(());
    }
    Err(IdentityError::ForeignOwner { path: path.to_owned(), owner, us })
}

/// Checks a folder that holds such files, if it exists, and those above it.
///
/// # Errors
/// As [`open_strictly`].
pub fn check_folder(path: &Path) -> Result<(), IdentityError> {
    check_above(&path.join("x"))
}

/// Checks every folder on the way to a file, whether that exists or not: through symbolic links, as the kernel goes.
fn check_above(path: &Path) -> Result<(), IdentityError> {
    let start = std::path::absolute(path).map_err(|e| IdentityError::file("find", path, e))?;
    let mut todo: VecDeque<OsString> = names(&start);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    check_one(&at)?;
    while let Some(name) = todo.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        let meta = match fs::symlink_metadata(&next) {
            Ok(m) => m,
            // Opening it says what there is to say.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(IdentityError::file("examine", &next, e)),
        };
        if meta.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                let e = io::Error::from_raw_os_error(libc::ELOOP);
                return Err(IdentityError::file("examine", &next, e));
            }
            // In a sticky folder, anybody can have made it.
            check_owner(&next, &meta)?;
            let target = fs::read_link(&next).map_err(|e| IdentityError::file("examine", &next, e))?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            let mut new = names(&target);
            new.append(&mut todo);
            todo = new;
            continue;
        }
        if todo.is_empty() {
            return Ok(());
        }
        at = next;
        check_one(&at)?;
    }
    Ok(())
}

fn names(path: &Path) -> VecDeque<OsString> {
    let name = |c: Component<'_>| match c {
        Component::Normal(n) => Some(n.to_owned()),
        Component::ParentDir => Some(OsStr::new("..").to_owned()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

fn check_one(folder: &Path) -> Result<(), IdentityError> {
    let meta = fs::symlink_metadata(folder).map_err(|e| IdentityError::file("examine", folder, e))?;
    check_owner(folder, &meta)?;
    let mode = meta.mode() & 0o7777;
    if meta.is_dir() && mode & WRITE != 0 && mode & STICKY == 0 {
        return Err(IdentityError::WritableByOthers { path: folder.to_owned(), mode });
    }
    Ok(())
}

/// A path as a shell takes it.
pub(super) fn shell(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    /// What is said of a file, or nothing.
    fn said(path: &Path, holds: FileRole) -> Option<String> {
        open_strictly(path, holds).map(|f| f.expect("it exists")).err().map(|e| e.to_string())
    }
    fn make() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let d = tempfile::tempdir().unwrap();
        // The name as the kernel has it, where the temporary folder is a link.
        let folder = fs::canonicalize(d.path()).unwrap().join("a");
        fs::create_dir_all(folder.join("b")).unwrap();
        for f in [&folder, &folder.join("b")] {
            chmod(f, 0o755);
        }
        let file = folder.join("b/file");
        fs::write(&file, "text").unwrap();
        (d, folder, file)
    }

    #[test]
    fn files_writable_by_others_are_refused_with_a_remedy() {
        let (_d, folder, file) = make();
        for mode in [0o600, 0o644, 0o444, 0o755] {
            chmod(&file, mode);
            assert_eq!(said(&file, FileRole::Trust), None, "{mode:o}");
        }
        for mode in [0o666, 0o664, 0o602] {
            chmod(&file, mode);
            let text = said(&file, FileRole::Trust).unwrap();
            assert!(text.contains(&format!("`chmod go-w {}`", file.display())), "{text}");
        }
        chmod(&file, 0o600);
        for above in [&folder, &folder.join("b")] {
            for mode in [0o777, 0o775, 0o757] {
                chmod(above, mode);
                for holds in [FileRole::Trust, FileRole::Secret, FileRole::SharedSecret] {
                    let text = said(&file, holds).unwrap();
                    assert!(text.contains(&format!("`chmod go-w {}`", above.display())), "{text}");
                    assert!(text.contains(&format!("mode {mode:03o}")), "{text}");
                }
                // Of one that does not exist as well: others could make it.
                assert!(open_strictly(&above.join("none"), FileRole::Trust).is_err());
                assert!(check_folder(above).is_err());
            }
            // Nobody can replace what belongs to others there.
            chmod(above, 0o1777);
            assert_eq!(said(&file, FileRole::Secret), None);
            chmod(above, 0o755);
        }
        assert!(open_strictly(&folder.join("none/none"), FileRole::Trust).unwrap().is_none());
        check_folder(&folder).unwrap();
    }

    #[test]
    fn secrets_must_be_readable_by_their_owner_only() {
        let (_d, _, file) = make();
        for (mode, secret) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)] {
            chmod(&file, mode);
            let text = said(&file, FileRole::Secret);
            assert_eq!(text.is_none(), secret, "{mode:o}");
            let way_out = format!("`chmod 600 {}`", file.display());
            assert!(text.is_none_or(|t| t.contains(&way_out)), "{mode:o}");
        }
        // Root may let a group read a certificate's key.
        chmod(&file, 0o640);
        let root = rustix::process::geteuid().is_root();
        assert_eq!(said(&file, FileRole::SharedSecret).is_none(), root);
        chmod(&file, 0o644);
        assert!(said(&file, FileRole::SharedSecret).is_some());
    }

    #[test]
    fn symbolic_links_are_followed_and_every_folder_is_checked() {
        let (d, folder, file) = make();
        let other = fs::canonicalize(d.path()).unwrap().join("other");
        fs::create_dir(&other).unwrap();
        chmod(&other, 0o755);
        symlink(&file, other.join("absolute")).unwrap();
        symlink("../a/b/file", other.join("relative")).unwrap();
        symlink("../../other/relative", folder.join("b/twice")).unwrap();
        symlink("loop", other.join("loop")).unwrap();
        let all = [other.join("absolute"), other.join("relative"), folder.join("b/twice")];
        for p in &all {
            assert_eq!(said(p, FileRole::Trust), None);
        }
        for open in [&folder, &folder.join("b")] {
            chmod(open, 0o777);
            for p in &all {
                assert!(said(p, FileRole::Trust).is_some(), "{}", p.display());
            }
            chmod(open, 0o755);
        }
        // The folder that the link lies in, too: others could make it point elsewhere.
        chmod(&other, 0o777);
        for p in &all {
            assert!(said(p, FileRole::Trust).is_some(), "{}", p.display());
        }
        chmod(&other, 0o755);
        assert!(open_strictly(&other.join("loop"), FileRole::Trust).is_err());
    }

    #[test]
    fn files_of_another_user_are_refused() {
        if !rustix::process::geteuid().is_root() {
            // Nobody else can give things away. Its own files are taken, and those of root.
            assert_eq!(said(Path::new("/etc/passwd"), FileRole::Trust), None);
            return;
        }
        let (_d, folder, file) = make();
        let give = |p: &Path, to: u32| std::os::unix::fs::lchown(p, Some(to), None).unwrap();
        for p in [&file, &folder] {
            give(p, 12_345);
            let text = said(&file, FileRole::Trust).unwrap();
            assert!(
                text.contains("user 12345") && text.contains(&format!("`chown 0 {}`", p.display())),
                "{text}"
            );
            give(p, 0);
        }
        // A link in a folder where everybody may make one.
        chmod(&folder, 0o1777);
        symlink("b/file", folder.join("link")).unwrap();
        assert_eq!(said(&folder.join("link"), FileRole::Trust), None);
        give(&folder.join("link"), 12_345);
        assert!(said(&folder.join("link"), FileRole::Trust).is_some());
    }

    #[test]
    fn secrets_are_read_up_to_their_limit() {
        let (_d, _, file) = make();
        for len in [0, 1, 63, 64, 65, 1000] {
            fs::write(&file, vec![b'x'; len]).unwrap();
            let f = File::open(&file).unwrap();
            assert_eq!(read_secret(&f, 64).unwrap().len(), len.min(65));
        }
        // A file that does not say how long it is.
        let f = File::open("/proc/version").unwrap();
        assert_eq!(*read_secret(&f, 1 << 20).unwrap(), fs::read("/proc/version").unwrap()[..]);
    }

    #[test]
    fn paths_in_commands_are_shell_quoted() {
        for (path, shown) in
            [("/a/b-c_1.x", "/a/b-c_1.x"), ("/a b", "'/a b'"), ("/it's", "'/it'\\''s'"), ("/$x", "'/$x'")]
        {
            assert_eq!(shell(Path::new(path)), shown);
        }
    }
}
