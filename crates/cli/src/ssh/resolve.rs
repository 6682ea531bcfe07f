//! Resolves requested paths at the remote server: the folder to serve, and the names below it.
//!
//! Symbolic links of the path that the user wrote are followed, since the user of this end is the one who asks; within what is
//! served none is, as everywhere.

use crate::exit::{Failure, Outcome};
use mover::path::{RelPath, show};
use mover::proto::Op;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

/// What is served.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// The folder; it exists, and its path has no links.
    pub root: PathBuf,
    /// What was asked for, below it, in the order asked. A slash at the end where what is in a folder is meant.
    pub paths: Vec<Vec<u8>>,
}

impl Request {
    /// The same as paths of a transfer.
    ///
    /// # Errors
    /// A path that no transfer can have.
    pub fn names(&self) -> Outcome<Vec<RelPath>> {
        let parse = |p: &Vec<u8>| {
            RelPath::parse_lenient(p)
                .map_err(|e| Failure::usage(format!("cannot use the path {}: it {e}; try another", show(p))))
        };
        self.paths.iter().map(parse).collect()
    }
}

/// One path: the deepest folder of it that exists, and what is below.
struct ResolvedPath {
    folder: PathBuf,
    below: Vec<u8>,
    contents: bool,
}

/// Finds what `paths` name, relative to `here`, with `home` for `~`.
///
/// # Errors
/// A path that leads nowhere, in words.
pub fn resolve(op: Op, paths: &[Vec<u8>], here: &Path, home: Option<&Path>) -> Outcome<Request> {
    let spots =
        paths.iter().map(|p| resolve_one(op, p, here, home)).collect::<Outcome<Vec<ResolvedPath>>>()?;
    let Some(first) = spots.first() else {
        return Err(Failure::usage("cannot serve: no path is named; try `longhaul put` with a path"));
    };
    let mut root = first.folder.clone();
    while !spots.iter().all(|s| s.folder.starts_with(&root)) && root.pop() {}
    let name = |s: &ResolvedPath| {
        let mut p = s.folder.strip_prefix(&root).unwrap_or(Path::new("")).as_os_str().as_bytes().to_vec();
        if !s.below.is_empty() {
            if !p.is_empty() {
                p.push(b'/');
            }
            p.extend_from_slice(&s.below);
        }
        if s.contents && !p.is_empty() && !p.ends_with(b"/") {
            p.push(b'/');
        }
        p
    };
    let paths = spots.iter().map(name).collect();
    Ok(Request { root, paths })
}

fn resolve_one(op: Op, written: &[u8], here: &Path, home: Option<&Path>) -> Outcome<ResolvedPath> {
    let full = here.join(expand_home(written, home)?);
    // rsync's rule, as in the mover.
    let contents = matches!(written.rsplit(|b| *b == b'/').next(), Some(b"" | b"." | b".."));
    // A destination that is a link to a folder is that folder, as by rsync; a source that is a link is the link.
    // What is removed or renamed is what is named, too.
    if (contents || !matches!(op, Op::Get | Op::Change))
        && let Ok(folder) = std::fs::canonicalize(&full)
        && folder.is_dir()
    {
        return Ok(ResolvedPath { folder, below: Vec::new(), contents });
    }
    let parts: Vec<Component<'_>> = full.components().collect();
    for n in (0..parts.len()).rev() {
        let above: PathBuf = parts[..n].iter().collect();
        let Ok(folder) = std::fs::canonicalize(&above) else { continue };
        if !folder.is_dir() {
            continue;
        }
        let mut below = Vec::new();
        for part in &parts[n..] {
            let Component::Normal(name) = part else {
                let text = format!(
                    "cannot find {}: it goes up from a folder that is not there; try another spelling",
                    show(written)
                );
                return Err(Failure::usage(text));
            };
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(name.as_bytes());
        }
        return Ok(ResolvedPath { folder, below, contents });
    }
    Err(Failure::usage(format!("cannot find {}: no folder of it can be entered; try another", show(written))))
}

/// With the home folder in the place of `~` and `~name` at the beginning.
fn expand_home(written: &[u8], home: Option<&Path>) -> Outcome<PathBuf> {
    let path = |b: &[u8]| PathBuf::from(OsStr::from_bytes(b));
    let Some(rest) = written.strip_prefix(b"~") else { return Ok(path(written)) };
    let (user, rest) = match rest.iter().position(|b| *b == b'/') {
        Some(n) => (&rest[..n], &rest[n + 1..]),
        None => (rest, &b""[..]),
    };
    let found = if user.is_empty() { home.map(Path::to_owned) } else { home_of(user) };
    let none = || {
        Failure::usage(format!(
            "cannot find the home folder of {}: the system does not know it; try the path in full, or ./~ for a name that begins so",
            if user.is_empty() { "this user".to_owned() } else { show(user) }
        ))
    };
    let mut out = found.ok_or_else(none)?.into_os_string().into_vec();
    out.push(b'/');
    out.extend_from_slice(rest);
    Ok(path(&out))
}

/// The home folder of a user of this system (`passwd(5)`).
fn home_of(user: &[u8]) -> Option<PathBuf> {
    let all = std::fs::read("/etc/passwd").ok()?;
    all.split(|b| *b == b'\n').find_map(|line| {
        let mut fields = line.split(|b| *b == b':');
        (fields.next()? == user).then_some(())?;
        let home = fields.nth(4).filter(|h| h.starts_with(b"/"))?;
        Some(PathBuf::from(OsStr::from_bytes(home)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A home with folders, files and links; its path has no links.
    fn home() -> (tempfile::TempDir, PathBuf) {
        let d = tempfile::tempdir().unwrap();
        let home = d.path().canonicalize().unwrap();
        std::fs::create_dir_all(home.join("data/sub")).unwrap();
        std::fs::create_dir_all(home.join("other")).unwrap();
        std::fs::write(home.join("data/file"), "x").unwrap();
        symlink("data", home.join("link")).unwrap();
        symlink("data/file", home.join("to-file")).unwrap();
        symlink("nowhere", home.join("broken")).unwrap();
        (d, home)
    }

    fn of(op: Op, home: &Path, paths: &[&str]) -> (String, Vec<String>) {
        let paths: Vec<Vec<u8>> = paths.iter().map(|p| p.as_bytes().to_vec()).collect();
        let r = resolve(op, &paths, home, Some(home)).unwrap();
        let root = r.root.strip_prefix(home).map_or("/".to_owned(), |p| p.display().to_string());
        (root, r.paths.iter().map(|p| String::from_utf8(p.clone()).unwrap()).collect())
    }

    #[test]
    fn destination_resolves_to_an_existing_folder_and_a_name() {
        let (_d, home) = home();
        for (path, root, below) in [
            ("", "", ""),
            (".", "", ""),
            ("data", "data", ""),
            ("data/", "data", ""),
            ("data/new", "data", "new"),
            ("data/new/", "data", "new/"),
            ("data/new/deep/er", "data", "new/deep/er"),
            ("data/file", "data", "file"),
            ("data/file/x", "data", "file/x"),
            ("./data/../other/x", "other", "x"),
            ("link", "data", ""),
            ("link/new", "data", "new"),
            // As by rsync: the link is replaced, not what it points to.
            ("to-file", "", "to-file"),
            ("broken", "", "broken"),
            ("~", "", ""),
            ("~/data/x", "data", "x"),
            ("./~", "", "~"),
            ("-rf", "", "-rf"),
        ] {
            assert_eq!(of(Op::Put, &home, &[path]), (root.into(), vec![below.into()]), "{path}");
        }
        let absolute = home.join("data/x").display().to_string();
        assert_eq!(of(Op::Put, &home, &[&absolute]), ("data".into(), vec!["x".into()]));
    }

    #[test]
    fn sources_resolve_to_a_common_folder() {
        let (_d, home) = home();
        for (paths, root, below) in [
            (&["data"][..], "", &["data"][..]),
            (&["data/"], "data", &[""]),
            (&["data/file"], "data", &["file"]),
            (&["link"], "", &["link"]),
            (&["link/"], "data", &[""]),
            (&["link/file"], "data", &["file"]),
            (&["link/file", "other/"], "", &["data/file", "other/"]),
            (&["data/", "data/sub"], "data", &["", "sub"]),
            (&["data/sub/", "data/file"], "data", &["sub/", "file"]),
            (&["nope"], "", &["nope"]),
            (&["data/nope/x/"], "data", &["nope/x/"]),
            (&["data/sub/.."], "data", &[""]),
        ] {
            let below: Vec<String> = below.iter().map(|b| (*b).to_owned()).collect();
            assert_eq!(of(Op::Get, &home, paths), (root.into(), below), "{paths:?}");
        }
        assert_eq!(of(Op::Get, &home, &["data/file", "/"]).0, "/");
    }

    #[test]
    fn unresolvable_paths_are_refused() {
        let (_d, home) = home();
        for bad in ["nope/../x", "~nobody-of-this-name/x"] {
            let r = resolve(Op::Put, &[bad.as_bytes().to_vec()], &home, Some(&home));
            assert!(r.is_err(), "{bad}: {r:?}");
        }
        assert!(resolve(Op::Put, &[b"~/x".to_vec()], &home, None).is_err());
        assert!(resolve(Op::Put, &[], &home, None).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_path_is_resolved_or_refused(path in "[a~./ -]{0,20}|\\PC{0,20}") {
            let (_d, home) = home();
            if let Ok(r) = resolve(Op::Put, &[path.clone().into_bytes()], &home, Some(&home)) {
                proptest::prop_assert!(r.root.is_dir());
                let _ = r.names();
            }
        }
    }
}
