//! Names of files inside a transfer: bytes, checked once, that can never lead out of a folder.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// Longest path inside a transfer, in bytes (Linux's `PATH_MAX`).
pub const MAX_PATH: usize = 4096;
/// Longest component of a path, in bytes (`NAME_MAX` of every common Linux file system).
pub const MAX_NAME: usize = 255;
/// Deepest nesting of folders that is walked or accepted.
pub const MAX_DEPTH: usize = 1024;

/// Why bytes are no path of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Longer than [`MAX_PATH`].
    #[error("is longer than {MAX_PATH} bytes")]
    TooLong,
    /// A component is longer than [`MAX_NAME`].
    #[error("has a name longer than {MAX_NAME} bytes in it; shorten the name")]
    NameTooLong,
    /// Nested deeper than [`MAX_DEPTH`].
    #[error("is nested deeper than {MAX_DEPTH} folders")]
    TooDeep,
    /// `..` would leave the folder.
    #[error("contains `..`, which could leave the folder; give the path without it")]
    DotDot,
    /// `.` or an empty component: two spellings of one name.
    #[error("contains an empty or `.` component; give the plain path")]
    EmptyComponent,
    /// A NUL byte, which no file system can store.
    #[error("contains a NUL byte")]
    Nul,
    /// Begins with `/`.
    #[error("is absolute; paths are relative to the served folder")]
    Absolute,
    /// One of the names that unfinished transfers use.
    #[error("uses a name reserved for unfinished transfers (`.NAME.longhaul-...`)")]
    Reserved,
}

/// A checked relative path: components of 1 to 255 bytes joined by single slashes, none of them `.` or `..`. The
/// empty path is the root of the transfer itself.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct RelPath(Vec<u8>);

impl RelPath {
    /// The root itself.
    pub const fn root() -> RelPath {
        RelPath(Vec::new())
    }
    /// Checks bytes that came from a peer or a user.
    ///
    /// # Errors
    /// [`PathError`] names the rule that was broken.
    pub fn parse(bytes: &[u8]) -> Result<RelPath, PathError> {
        check(bytes)?;
        Ok(RelPath(bytes.to_vec()))
    }
    /// As [`parse`](Self::parse) after taking away slashes around it and `.` components: for what people type.
    ///
    /// # Errors
    /// [`PathError`] names the rule that was broken.
    pub fn parse_lenient(bytes: &[u8]) -> Result<RelPath, PathError> {
        let mut out: Vec<u8> = Vec::with_capacity(bytes.len().min(MAX_PATH));
        for c in bytes.split(|&b| b == b'/').filter(|c| !c.is_empty() && *c != b".") {
            if !out.is_empty() {
                out.push(b'/');
            }
            out.extend_from_slice(c);
            if out.len() > MAX_PATH {
                return Err(PathError::TooLong);
            }
        }
        check(&out)?;
        Ok(RelPath(out))
    }
    /// This path with one more component.
    ///
    /// # Errors
    /// [`PathError`] when the name is no single component or the whole gets too long.
    pub fn join(&self, name: &[u8]) -> Result<RelPath, PathError> {
        if name.contains(&b'/') {
            return Err(PathError::EmptyComponent);
        }
        let mut v = self.0.clone();
        if !v.is_empty() {
            v.push(b'/');
        }
        v.extend_from_slice(name);
        if name.is_empty() {
            return Err(PathError::EmptyComponent);
        }
        check(&v)?;
        Ok(RelPath(v))
    }
    /// This path followed by another one.
    ///
    /// # Errors
    /// [`PathError::TooLong`] or [`PathError::TooDeep`].
    pub fn append(&self, tail: &RelPath) -> Result<RelPath, PathError> {
        if tail.is_root() {
            return Ok(self.clone());
        }
        let mut v = self.0.clone();
        if !v.is_empty() {
            v.push(b'/');
        }
        v.extend_from_slice(&tail.0);
        check(&v)?;
        Ok(RelPath(v))
    }
    /// Folder and last component; `None` for the root.
    pub fn split(&self) -> Option<(RelPath, &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|&b| b == b'/') {
            Some(i) => Some((RelPath(self.0[..i].to_vec()), &self.0[i + 1..])),
            None => Some((RelPath::root(), &self.0)),
        }
    }
    /// Whether this lies beneath a folder.
    pub fn is_below(&self, folder: &RelPath) -> bool {
        let rest = self.0.strip_prefix(&folder.0[..]);
        rest.is_some_and(|r| !r.is_empty() && (folder.is_root() || r[0] == b'/'))
    }
    /// The components in order.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|&b| b == b'/').filter(|c| !c.is_empty())
    }
    /// The bytes, without a leading slash.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
    /// For system calls.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }
    /// Whether it is the root itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() { f.write_str(".") } else { f.write_str(&show(&self.0)) }
    }
}
impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", show(&self.0))
    }
}

/// In walking order: folder by folder, names by their bytes. Both ends list in this order, so that one pass merges
/// the lists: `a`, `a/b`, `a.txt` (comparing whole strings would put `a.txt` between).
impl Ord for RelPath {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.components().cmp(other.components())
    }
}
impl PartialOrd for RelPath {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

fn check(b: &[u8]) -> Result<(), PathError> {
    if b.len() > MAX_PATH {
        return Err(PathError::TooLong);
    }
    if b.is_empty() {
        return Ok(());
    }
    if b[0] == b'/' {
        return Err(PathError::Absolute);
    }
    if b.contains(&0) {
        return Err(PathError::Nul);
    }
    for (depth, c) in b.split(|&x| x == b'/').enumerate() {
        match c {
            b"" | b"." => return Err(PathError::EmptyComponent),
            b".." => return Err(PathError::DotDot),
            _ if c.len() > MAX_NAME => return Err(PathError::NameTooLong),
            _ if depth >= MAX_DEPTH => return Err(PathError::TooDeep),
            _ if is_reserved(c) => return Err(PathError::Reserved),
            _ => {}
        }
    }
    Ok(())
}

pub(crate) const PART: &[u8] = b".longhaul-part";
pub(crate) const JOURNAL: &[u8] = b".longhaul-journal";
pub(crate) const SESSION: &[u8] = b".longhaul-session";

/// Whether a name is one of those that unfinished transfers use. Nothing of such a name is sent, listed or accepted; where
/// a source has one, that is reported (see [`crate::walk`]).
pub fn is_reserved(name: &[u8]) -> bool {
    name.first() == Some(&b'.') && [PART, JOURNAL, SESSION].iter().any(|s| name.ends_with(s))
}
/// Where the journal beside an unfinished file would be; `None` for a name of something else.
pub(crate) fn journal_beside(part: &[u8]) -> Option<Vec<u8>> {
    Some(journal_name(part.strip_prefix(b".")?.strip_suffix(PART)?))
}
/// Where a file's data lies until it is verified: `.NAME.longhaul-part`.
pub fn part_name(name: &[u8]) -> Vec<u8> {
    temporary(name, PART)
}
/// Where verified chunks of a file are noted: `.NAME.longhaul-journal`.
pub fn journal_name(name: &[u8]) -> Vec<u8> {
    temporary(name, JOURNAL)
}
/// What marks a root that a transfer is writing to: `.NAME.longhaul-session`.
pub fn session_name(name: &[u8]) -> Vec<u8> {
    temporary(name, SESSION)
}

/// `.NAME` and the suffix; a name too long for that is replaced by its hash, so that it stays the same at the next
/// attempt.
fn temporary(name: &[u8], suffix: &[u8]) -> Vec<u8> {
    let mut v = vec![b'.'];
    if 1 + name.len() + suffix.len() <= MAX_NAME {
        v.extend_from_slice(name);
    } else {
        v.extend_from_slice(blake3::hash(name).to_hex().as_bytes());
    }
    v.extend_from_slice(suffix);
    v
}

/// A name for people, which can neither garble a terminal nor be taken for another (see [`base::text::name`]).
pub fn show(name: &[u8]) -> String {
    base::text::name(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forged_paths_are_refused() {
        for (p, e) in [
            (&b"../x"[..], PathError::DotDot),
            (b"a/../b", PathError::DotDot),
            (b"a/..", PathError::DotDot),
            (b"/etc/passwd", PathError::Absolute),
            (b"a//b", PathError::EmptyComponent),
            (b"a/", PathError::EmptyComponent),
            (b"./a", PathError::EmptyComponent),
            (b"a\0b", PathError::Nul),
            (b"d/.x.longhaul-part", PathError::Reserved),
        ] {
            assert_eq!(RelPath::parse(p), Err(e), "{}", show(p));
        }
        assert_eq!(RelPath::parse(&[b'a'; 256]), Err(PathError::NameTooLong));
        assert_eq!(RelPath::parse(&b"a/".repeat(2049)), Err(PathError::TooLong));
        assert_eq!(RelPath::parse(&b"a/".repeat(1100)[..2199]), Err(PathError::TooDeep));
    }

    #[test]
    fn ordinary_and_odd_names_pass() {
        for p in [&b"a"[..], b"...", b"a/..b/c..", b"\xff\xfe/x", b"-rf", b"new\nline", &[b'x'; 255]] {
            assert_eq!(RelPath::parse(p).unwrap().as_bytes(), p);
        }
        assert_eq!(RelPath::parse_lenient(b"//a/./b/").unwrap().as_bytes(), b"a/b");
        assert!(RelPath::parse_lenient(b"/").unwrap().is_root());
        assert_eq!(RelPath::parse_lenient(b"/a/../b"), Err(PathError::DotDot));
    }

    #[test]
    fn order_is_that_of_a_walk() {
        let p = |s: &str| RelPath::parse(s.as_bytes()).unwrap();
        assert!(p("a") < p("a/b") && p("a/b") < p("a.txt"));
        assert!(RelPath::root() < p("a"));
    }

    #[test]
    fn long_names_get_stable_temporaries() {
        let a = part_name(&[b'n'; 250]);
        assert!(a.len() <= MAX_NAME && a == part_name(&[b'n'; 250]) && a != part_name(&[b'n'; 251]));
        assert_eq!(part_name(b"x"), b".x.longhaul-part");
        assert!(is_reserved(&a) && is_reserved(&journal_name(b"x")) && is_reserved(&session_name(b"x")));
    }

    #[test]
    fn names_for_people_are_unambiguous() {
        assert_eq!(show("grüße.txt".as_bytes()), "grüße.txt");
        assert_eq!(show(b"a\xffb\x1b[0m\n"), "a\\xffb\\x1b[0m\\n");
    }

    proptest! {
        #[test]
        fn whatever_parses_stays_inside(b in proptest::collection::vec(proptest::sample::select(
            vec![b'a', b'.', b'/', 0u8, 0xff]), 0..12)) {
            if let Ok(p) = RelPath::parse(&b) {
                prop_assert_eq!(p.as_bytes(), &b[..]);
                prop_assert!(p.components().all(|c| c != b".." && c != b"." && !c.is_empty() && !c.contains(&0)));
            }
        }
    }
}
