//! The files `known_hosts` and `authorized_keys`.

use super::{FileRole, IdentityError, MAX_FILE, PUBLIC, PublicKey, open_strictly, read_text};
use core::fmt;
use std::fs::File;
use std::io::Write as _;
use std::net::Ipv6Addr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Bytes in a host's name (RFC 1035, section 2.3.4).
const MAX_NAME: usize = 255;

/// A host as users name it: a name or address, with or without a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// Name or address in lower case, without brackets.
    name: String,
    port: Option<u16>,
}

impl Host {
    /// Reads `host`, `host:port`, `[address]:port` or a bare IPv6 address.
    ///
    /// # Errors
    /// [`IdentityError::BadHost`] for anything else.
    pub fn parse(text: &str) -> Result<Host, IdentityError> {
        let bad = || IdentityError::BadHost(text.chars().take(MAX_NAME).collect());
        let (name, port) = if let Some(rest) = text.strip_prefix('[') {
            let (name, rest) = rest.split_once(']').ok_or_else(bad)?;
            match rest {
                "" => (name, None),
                rest => (name, Some(rest.strip_prefix(':').ok_or_else(bad)?)),
            }
        } else if text.parse::<Ipv6Addr>().is_ok() {
            (text, None)
        } else {
            match text.split_once(':') {
                Some((name, port)) => (name, Some(port)),
                None => (text, None),
            }
        };
        let port = match port {
            Some(p) if p.bytes().all(|b| b.is_ascii_digit()) => Some(p.parse().map_err(|_| bad())?),
            Some(_) => return Err(bad()),
            None => None,
        };
        // Nothing that could end a word or a line, or be taken for a comment or a pattern.
        let fits = |c: char| !c.is_whitespace() && !c.is_control() && !"#*?,!|[]\"".contains(c);
        // Letters can grow when they become lower case.
        let name = name.to_lowercase();
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(fits) {
            return Err(bad());
        }
        Ok(Host { name, port })
    }

    /// The name or address.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The port, when one was named.
    pub fn port(&self) -> Option<u16> {
        self.port
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "[{}]:{port}", self.name),
            // An address with a zone, say: without brackets, what follows a colon would be read as a port.
            None if self.name.contains(':') && self.name.parse::<Ipv6Addr>().is_err() => {
                write!(f, "[{}]", self.name)
            }
            None => f.write_str(&self.name),
        }
    }
}

/// The result of comparing a host's key with `known_hosts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostCheck {
    /// It is known, with this key.
    Known,
    /// It was never met.
    Unknown,
    /// It is known, but with another key: somebody may stand in between.
    Changed(ChangedKey),
}

/// Where a contradicting key stands. Its text tells the user what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the key of {host} is not the one in {path}, line {line}: somebody may be between you and {host}, or its \
     key was replaced. If you know that it was replaced, delete line {line} of {path} and connect again \
     (known: {known}; presented: {presented})"
)]
pub struct ChangedKey {
    /// The host.
    pub host: Host,
    /// The file of known hosts.
    pub path: PathBuf,
    /// The first line that names the host, from 1.
    pub line: usize,
    /// The key there.
    pub known: PublicKey,
    /// The key presented.
    pub presented: PublicKey,
}

/// The file of known hosts: lines of `host longhaul-ed25519 BASE64 comment`, where a host with a port is
/// written `[host]:port`. A line without a port stands for every port that has no line of its own.
#[derive(Clone, Debug)]
pub struct KnownHosts {
    path: PathBuf,
}

impl KnownHosts {
    pub(super) fn new(path: PathBuf) -> KnownHosts {
        KnownHosts { path }
    }

    /// The lines for a host, best fit only: those with its port, else those without one.
    ///
    /// # Errors
    /// A file that cannot be read or that others may change. Lines that cannot be understood count as absent
    /// unless they name this very host, which is [`IdentityError::Line`].
    pub fn lookup(&self, host: &Host) -> Result<Vec<(usize, PublicKey)>, IdentityError> {
        let Some(file) = open_strictly(&self.path, FileRole::Trust)? else { return Ok(Vec::new()) };
        let text = read_text(file, &self.path, MAX_FILE)?;
        let (mut exact, mut general) = (Vec::new(), Vec::new());
        for (number, line) in lines(&text) {
            let (name, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
            let Ok(named) = Host::parse(name) else { continue };
            let fits_exactly = named == *host;
            let fits_all_ports = named.port.is_none() && named.name == host.name;
            if !fits_exactly && !fits_all_ports {
                continue;
            }
            let key = PublicKey::parse(rest).ok_or_else(|| IdentityError::Line {
                path: self.path.clone(),
                line: number,
                problem: "no key after the host's name; it should be `host longhaul-ed25519 BASE64`",
            })?;
            if fits_exactly { &mut exact } else { &mut general }.push((number, key));
        }
        Ok(if exact.is_empty() { general } else { exact })
    }

    /// Compares the key a host presents with what is known.
    ///
    /// # Errors
    /// As [`KnownHosts::lookup`].
    pub fn check(&self, host: &Host, presented: PublicKey) -> Result<HostCheck, IdentityError> {
        let found = self.lookup(host)?;
        let Some(&(line, known)) = found.first() else { return Ok(HostCheck::Unknown) };
        if found.iter().any(|(_, k)| *k == presented) {
            return Ok(HostCheck::Known);
        }
        let path = self.path.clone();
        Ok(HostCheck::Changed(ChangedKey { host: host.clone(), path, line, known, presented }))
    }

    /// Adds a line. The caller has checked that the host is unknown, and asked the user or a policy. One
    /// write of one line: processes that add at the same time do not disturb each other.
    ///
    /// # Errors
    /// [`IdentityError::File`] when the file cannot be written; those of a file that others may change.
    pub fn add(&self, host: &Host, key: PublicKey) -> Result<(), IdentityError> {
        open_strictly(&self.path, FileRole::Trust)?;
        let fail = |e| IdentityError::file("add a line to", &self.path, e);
        let options = File::options().read(true).append(true).create(true).mode(0o600).open(&self.path);
        let mut file = options.map_err(fail)?;
        // An editor may have left the last line without an end.
        let text = read_text(file.try_clone().map_err(fail)?, &self.path, MAX_FILE)?;
        let break_first = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        let line = format!("{break_first}{host} {key}\n");
        file.write_all(line.as_bytes()).and_then(|()| file.sync_data()).map_err(fail)
    }
}

/// Keys that may connect: lines of `[options] longhaul-ed25519 BASE64 comment`. Options are reserved; a line
/// that has any grants nothing, since an option that is not understood may be a restriction.
#[derive(Clone, Debug, Default)]
pub struct AuthorizedKeys {
    keys: Vec<(PublicKey, String)>,
    ignored: Vec<(usize, &'static str)>,
}

impl AuthorizedKeys {
    /// Reads such a file, if it is there.
    ///
    /// # Errors
    /// [`IdentityError::WritableByOthers`] and [`IdentityError::ForeignOwner`] if others may change it,
    /// [`IdentityError::File`] if it cannot be read.
    pub fn read(path: &Path) -> Result<AuthorizedKeys, IdentityError> {
        match open_strictly(path, FileRole::Trust)? {
            Some(file) => Ok(AuthorizedKeys::parse(&read_text(file, path, MAX_FILE)?)),
            None => Ok(AuthorizedKeys::default()),
        }
    }

    /// Reads the text of such a file.
    pub fn parse(text: &str) -> AuthorizedKeys {
        let mut out = AuthorizedKeys::default();
        for (number, line) in lines(text) {
            let mut words = line.split_ascii_whitespace();
            if words.next() != Some(PUBLIC) {
                let has_key = line.split_ascii_whitespace().any(|w| w == PUBLIC);
                let why = if has_key { "options are not supported" } else { "not a key of longhaul" };
                out.ignored.push((number, why));
                continue;
            }
            match PublicKey::parse(line) {
                Some(key) => out.keys.push((key, words.skip(1).collect::<Vec<_>>().join(" "))),
                None => out.ignored.push((number, "the key is not 32 bytes in base64")),
            }
        }
        out
    }

    /// Whether a key may connect.
    pub fn contains(&self, key: &PublicKey) -> bool {
        self.keys.iter().any(|(k, _)| k == key)
    }

    /// The keys with their comments, in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&PublicKey, &str)> {
        self.keys.iter().map(|(k, c)| (k, c.as_str()))
    }

    /// Lines that grant nothing, by number from 1, and why: worth a warning.
    pub fn ignored(&self) -> &[(usize, &'static str)] {
        &self.ignored
    }
}

/// Lines with something on them, numbered from 1; `#` begins a comment line.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim()));
    numbered.filter(|(_, l)| !l.is_empty() && !l.starts_with('#'))
}
