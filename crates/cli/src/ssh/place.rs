//! Where files are, as people write it: `[user@]host:path` over ssh, or an address of a server.

use crate::url::Url;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// Where a command connects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
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

impl Place {
    /// Reads an address.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &OsStr) -> Result<Place, String> {
        let bytes = text.as_bytes();
        if is_url(bytes) {
            let text = text
                .to_str()
                .ok_or("cannot read it: it has bytes that are not UTF-8; try their numbers, as in %FF")?;
            return Url::parse(text).map(Place::Url);
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
        Ok(Place::Ssh(Remote { target: target_of(target)?, path: path.to_vec() }))
    }
}

impl Place {
    /// The path there, as written.
    pub fn path(&self) -> &[u8] {
        match self {
            Place::Url(u) => &u.path,
            Place::Ssh(r) => &r.path,
        }
    }

    /// Whether both are of one machine, reached in the same way.
    pub fn is_beside(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Url(a), Place::Url(b)) => a.server == b.server,
            (Place::Ssh(a), Place::Ssh(b)) => a.target == b.target,
            _ => false,
        }
    }

    /// The machine, for messages.
    pub fn at(&self) -> String {
        match self {
            Place::Url(u) => u.server.to_string(),
            Place::Ssh(r) => r.target.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ssh(text: &str) -> (String, Vec<u8>) {
        match Place::parse(OsStr::new(text)) {
            Ok(Place::Ssh(r)) => (r.target, r.path),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn addresses_read_as_by_scp() {
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
        assert_eq!(Place::parse(bytes), Ok(Place::Ssh(Remote { target: "tower".into(), path: vec![0xff] })));
    }

    #[test]
    fn servers_have_their_scheme() {
        for url in ["longhaul://tower/a", "iwarp://tower:5/a", "LONGHAUL://tower"] {
            assert!(matches!(Place::parse(OsStr::new(url)), Ok(Place::Url(_))), "{url}");
        }
    }

    #[test]
    fn what_names_no_machine_is_refused() {
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
            assert!(Place::parse(OsStr::new(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn local_files_with_a_colon_are_written_with_a_slash_before_it() {
        for remote in ["tower:x", "a:", ":x", "[::1]:x", "longhaul://tower/x"] {
            assert!(looks_remote(OsStr::new(remote)), "{remote}");
        }
        for local in ["x", "./a:b", "/a:b", "a/b:c", "-", "[x", ""] {
            assert!(!looks_remote(OsStr::new(local)), "{local}");
        }
    }

    proptest! {
        #[test]
        fn the_parser_takes_anything(s in "\\PC{0,60}", bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = (Place::parse(OsStr::new(&s)), looks_remote(OsStr::new(&s)));
            let _ = (Place::parse(OsStr::from_bytes(&bytes)), looks_remote(OsStr::from_bytes(&bytes)));
        }

        #[test]
        fn what_is_punctuated_as_an_address_is_read_or_refused(s in "[a:@/\\[\\]~.-]{0,20}") {
            if let Ok(Place::Ssh(r)) = Place::parse(OsStr::new(&s)) {
                prop_assert!(!r.target.starts_with('-') && !r.host().starts_with('-') && !r.host().is_empty());
                prop_assert!(s.as_bytes().ends_with(&r.path));
            }
        }
    }
}
