//! Parses locations of files: `[user@]host:path` over ssh, or the URL of a server.

use crate::url::Url;
use mover::Placement;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// Where a command connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A server that runs already.
    Url(Url),
    /// A machine that ssh reaches, where the other end is started for this transfer.
    Ssh(Remote),
}

/// A file or folder of a machine that ssh reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// What ssh is told: `[user@]host`, without brackets.
    pub target: String,
    /// Bytes, since names on Linux are bytes; relative to the home folder there unless it begins with a slash or `~`.
    pub path: Vec<u8>,
}

/// What is said of everything that is no address.
const FORMS: &str = "write [user@]host:path to go over ssh, or longhaul://host/path or iwarp://host/path for a server that runs";

impl Location {
    /// Reads an address.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &OsStr) -> Result<Location, String> {
        let bytes = text.as_bytes();
        if is_url(bytes) {
            let text = text
                .to_str()
                .ok_or("cannot read it: it has bytes that are not UTF-8; try their numbers, as in %FF")?;
            return Url::parse(text).map(Location::Url);
        }
        let Some((target, path)) = split(bytes)? else {
            return Err(format!("it names no machine: {FORMS}"));
        };
        if path.starts_with(b"//") {
            return Err(format!("it is of no kind that is known here: {FORMS}"));
        }
        if path.starts_with(b":") {
            return Err(
                "it has two colons, as for rsync's own server, which is not spoken here: write one, \
                 as in host:path (host:./:path where the path begins with a colon)"
                    .to_owned(),
            );
        }
        Ok(Location::Ssh(Remote { target: target_of(target)?, path: path.to_vec() }))
    }
}

impl Location {
    /// The path there, as written.
    pub fn path(&self) -> &[u8] {
        match self {
            Location::Url(u) => &u.path,
            Location::Ssh(r) => &r.path,
        }
    }

    /// Whether both are of one machine, reached in the same way.
    pub fn is_beside(&self, other: &Location) -> bool {
        match (self, other) {
            (Location::Url(a), Location::Url(b)) => a.server == b.server,
            (Location::Ssh(a), Location::Ssh(b)) => a.target == b.target,
            _ => false,
        }
    }

    /// The machine, for messages.
    pub fn at(&self) -> String {
        match self {
            Location::Url(u) => u.server.to_string(),
            Location::Ssh(r) => r.target.clone(),
        }
    }
}

impl Remote {
    /// The host's name or address, without the user.
    pub fn host(&self) -> &str {
        self.target.rsplit_once('@').map_or(self.target.as_str(), |(_, host)| host)
    }
}

impl core::fmt::Display for Remote {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}:{}", self.target, mover::path::show(&self.path))
    }
}

fn is_url(text: &[u8]) -> bool {
    [&b"longhaul://"[..], b"iwarp://"]
        .iter()
        .any(|s| text.get(..s.len()).is_some_and(|head| head.eq_ignore_ascii_case(s)))
}

/// Whether a local path reads as the path of another machine: a colon before any slash.
pub fn looks_remote(text: &OsStr) -> bool {
    is_url(text.as_bytes()) || matches!(split(text.as_bytes()), Ok(Some(_)) | Err(_))
}

/// The machine and the path.
type Parts<'a> = (&'a [u8], &'a [u8]);

/// Both of them; `None` of what names no machine. As by rsync and scp: a colon before the first slash, or brackets.
fn split(text: &[u8]) -> Result<Option<Parts<'_>>, String> {
    let before = |n: usize, bytes: &[u8]| text[..n].iter().any(|b| bytes.contains(b));
    let opening = text.iter().position(|b| *b == b'[').filter(|n| {
        let begins = *n == 0 || text[*n - 1] == b'@';
        begins && !before(*n, b":/")
    });
    if let Some(n) = opening {
        let Some(len) = text[n..].iter().position(|b| *b == b']') else { return Ok(None) };
        return match text.get(n + len + 1) {
            Some(b':') => Ok(Some((&text[..n + len + 1], &text[n + len + 2..]))),
            _ => Ok(None),
        };
    }
    let Some(n) = text.iter().position(|b| *b == b':') else { return Ok(None) };
    if before(n, b"/") {
        return Ok(None);
    }
    if n == 0 {
        return Err(
            "it has nothing before the colon: write host:path, or ./:path for a file of this machine"
                .to_owned(),
        );
    }
    Ok(Some((&text[..n], &text[n + 1..])))
}

/// What ssh is told. Nothing that ssh or a shell could take for something else than a name.
fn target_of(text: &[u8]) -> Result<String, String> {
    let bad = |why: &str| {
        format!("cannot use `{}` as a machine's name: {why}; try [user@]host", mover::path::show(text))
    };
    let text = core::str::from_utf8(text).map_err(|_| bad("it is not UTF-8"))?;
    let (user, host) = match text.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, text),
    };
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    if host.is_empty() || user.is_some_and(str::is_empty) {
        return Err(bad("a part of it is empty"));
    }
    if host.starts_with('-') || user.is_some_and(|u| u.starts_with('-')) {
        return Err(bad("ssh would take it for an option"));
    }
    let fits = |c: char, more: &str| c.is_alphanumeric() || more.contains(c);
    if !host.chars().all(|c| fits(c, "._-:%+"))
        || !user.is_none_or(|u| u.chars().all(|c| fits(c, "._-+@\\$%=~")))
    {
        return Err(bad("it has a character that no such name has"));
    }
    Ok(user.map_or_else(|| host.to_owned(), |u| format!("{u}@{host}")))
}

/// Folders of a far end that a transfer to `dest` uses beside, as paths there: what is relative to the destination, by names alone,
/// since that may not be there yet.
pub fn beside(dest: &Location, placement: &Placement) -> Vec<Vec<u8>> {
    let Location::Ssh(remote) = dest else { return Vec::new() };
    used(placement).map(|dir| from(&remote.path, dir)).collect()
}

/// Puts the names in their place that the far end has for these folders.
pub fn set_beside(placement: &mut Placement, paths: Vec<Vec<u8>>) {
    let mut paths = paths.into_iter().map(|p| [&b"/"[..], &p].concat());
    if paths.len() == 0 {
        return;
    }
    placement.link_dest.iter_mut().zip(&mut paths).for_each(|(dir, p)| *dir = p);
    placement.partial_dir = paths.next().or(placement.partial_dir.take());
}

fn used(placement: &Placement) -> impl Iterator<Item = &Vec<u8>> {
    placement.link_dest.iter().chain(placement.partial_dir.iter().filter(|d| d.starts_with(b"/")))
}

/// `dir` from `folder`, without `..` as far as there are names to take away.
fn from(folder: &[u8], dir: &[u8]) -> Vec<u8> {
    if dir.starts_with(b"/") {
        return dir.to_vec();
    }
    let full = folder.starts_with(b"/");
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in folder.split(|b| *b == b'/').chain(dir.split(|b| *b == b'/')) {
        match (part, parts.last()) {
            (b"" | b".", _) => {}
            (b"..", Some(last)) if *last != b".." && !(parts.len() == 1 && last.starts_with(b"~")) => {
                parts.pop();
            }
            (b"..", None) if full => {}
            (part, _) => parts.push(part),
        }
    }
    let joined = parts.join(&b'/');
    if full { [&b"/"[..], &joined].concat() } else { joined }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_beside_a_destination_are_found_by_names() {
        let at =
            |folder: &str, dir: &str| String::from_utf8(from(folder.as_bytes(), dir.as_bytes())).unwrap();
        for (folder, dir, want) in [
            ("backup/today/", "../yesterday", "backup/yesterday"),
            ("", "../x", "../x"),
            ("a", "../../x", "../x"),
            ("~/a", "../../x", "~/../x"),
            ("~bob/a", "../x", "~bob/x"),
            ("/srv/a", "../../../x", "/x"),
            ("/srv/a", "/x/y", "/x/y"),
            ("a", ".partial", "a/.partial"),
        ] {
            assert_eq!(at(folder, dir), want, "{folder} {dir}");
        }
    }
    use proptest::prelude::*;

    fn ssh(text: &str) -> (String, Vec<u8>) {
        match Location::parse(OsStr::new(text)) {
            Ok(Location::Ssh(r)) => (r.target, r.path),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn locations_parse_as_by_scp() {
        let is = |text: &str, target: &str, path: &str| {
            assert_eq!(ssh(text), (target.to_owned(), path.as_bytes().to_vec()), "{text}");
        };
        is("tower:", "tower", "");
        is("tower:results", "tower", "results");
        is("anna@tower:/srv/data/", "anna@tower", "/srv/data/");
        is("tower:a b/'c\":d", "tower", "a b/'c\":d");
        is("tower:-rf", "tower", "-rf");
        is("tower:~/x", "tower", "~/x");
        is("[2001:db8::1]:x", "2001:db8::1", "x");
        is("anna@[fe80::1%eth0]:/x", "anna@fe80::1%eth0", "/x");
        is("[tower]:x", "tower", "x");
        is("anna@example.org@tower:x", "anna@example.org@tower", "x");
        is("tower:a@b:c", "tower", "a@b:c");
        is("tower:[x]:y", "tower", "[x]:y");
        let r = Remote { target: "anna@fe80::1".into(), path: b"a\nb".to_vec() };
        assert_eq!((r.host(), r.to_string().as_str()), ("fe80::1", "anna@fe80::1:a\\nb"));
        let bytes = OsStr::from_bytes(b"tower:\xff");
        assert_eq!(
            Location::parse(bytes),
            Ok(Location::Ssh(Remote { target: "tower".into(), path: vec![0xff] }))
        );
    }

    #[test]
    fn server_urls_need_a_scheme() {
        for url in ["longhaul://tower/a", "iwarp://tower:5/a", "LONGHAUL://tower"] {
            assert!(matches!(Location::parse(OsStr::new(url)), Ok(Location::Url(_))), "{url}");
        }
    }

    #[test]
    fn locations_without_a_host_are_refused() {
        for bad in [
            "",
            "tower",
            "tower/x",
            "./tower:x",
            "/srv:x",
            "a/b:c",
            ":x",
            "http://tower/x",
            "rsync://tower/x",
            "tower::x",
            "-oProxyCommand=x:y",
            "-l@tower:x",
            "anna@-x:y",
            "@tower:x",
            "anna@:x",
            "a b:x",
            "a;b:x",
            "a$(b):x",
            "[::1]",
            "[::1",
            "[::1]x:y",
            "[]:x",
            "longhaul://",
            "tower\n:x",
        ] {
            assert!(Location::parse(OsStr::new(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn local_name_with_a_colon_needs_a_slash_before_it() {
        for remote in ["tower:x", "a:", ":x", "[::1]:x", "longhaul://tower/x"] {
            assert!(looks_remote(OsStr::new(remote)), "{remote}");
        }
        for local in ["x", "./a:b", "/a:b", "a/b:c", "-", "[x", ""] {
            assert!(!looks_remote(OsStr::new(local)), "{local}");
        }
    }

    proptest! {
        #[test]
        fn parser_accepts_any_input_without_panic(s in "\\PC{0,60}", bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = (Location::parse(OsStr::new(&s)), looks_remote(OsStr::new(&s)));
            let _ = (Location::parse(OsStr::from_bytes(&bytes)), looks_remote(OsStr::from_bytes(&bytes)));
        }

        #[test]
        fn address_like_text_is_parsed_or_refused(s in "[a:@/\\[\\]~.-]{0,20}") {
            if let Ok(Location::Ssh(r)) = Location::parse(OsStr::new(&s)) {
                prop_assert!(!r.target.starts_with('-') && !r.host().starts_with('-') && !r.host().is_empty());
                prop_assert!(s.as_bytes().ends_with(&r.path));
            }
        }
    }
}
