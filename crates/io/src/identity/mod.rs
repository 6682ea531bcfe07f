//! This machine's keys and whom it trusts, in text files in the manner of ssh.
//!
//! | file in the state folder | holds |
//! | --- | --- |
//! | `host_key` | this machine's private key, readable by its owner only |
//! | `known_hosts` | the public keys of machines that have been met |
//! | `known_paths` | rates that paths to other machines carried lately |
//! | `authorized_keys` | the public keys that may connect |
//! | `tokens/` | the public keys of one-time tokens that have been handed out |
//!
//! Keys are Ed25519 (RFC 8032), handled here as raw bytes.

mod known_hosts;
mod known_paths;
mod permissions;
#[cfg(test)]
mod tests;
mod token;

pub use known_hosts::{AuthorizedKeys, ChangedKey, Host, HostCheck, KnownHosts};
pub use known_paths::KnownPaths;
pub use permissions::{FileRole, check_folder, check_for_root, open_strictly, read_secret};
pub use token::{MAX_TOKENS, Tokens};

use crate::clock;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// What a private key's line begins with.
const PRIVATE: &str = "longhaul-ed25519-private";
/// What a public key's line begins with.
const PUBLIC: &str = "longhaul-ed25519";
/// Bytes in a file of keys: 64 MiB hold half a million lines.
const MAX_FILE: u64 = 64 << 20;
/// Bytes in a key file: one line.
const MAX_KEY_FILE: u64 = 4 << 10;
/// Names tried for a temporary file before giving up; they are random, so one is enough.
const MAX_TRIES: usize = 8;

/// A problem with a file of the state folder.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// No place for the state folder is known.
    #[error("no home folder is known: set LONGHAUL_HOME to a folder for keys and settings")]
    NoHome,
    /// A file cannot be used.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// The operation, as a verb.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A private file that others can read or change.
    #[error(
        "{path} is open to other users (mode {mode:03o}): run `chmod 600 {}`, and if others may have read it, replace the \
         secret in it by a new one",
        permissions::shell(path)
    )]
    OpenToOthers {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file that says whom to trust, or a folder above such a file or a private one, that others can change.
    #[error(
        "{path} can be changed by other users (mode {mode:03o}), who could so become trusted here: run `chmod go-w {}`",
        permissions::shell(path)
    )]
    WritableByOthers {
        /// The file or folder.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file or a folder above it that belongs to somebody else.
    #[error(
        "{path} belongs to user {owner}, neither to you nor to root: run `chown {us} {}`, or keep the file elsewhere",
        permissions::shell(path)
    )]
    ForeignOwner {
        /// The file or folder.
        path: PathBuf,
        /// Its owner's number.
        owner: u32,
        /// Whose it should be: ours.
        us: u32,
    },
    /// A line that cannot be understood.
    #[error("{path}, line {line}: {problem}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// What is wrong, and what belongs there.
        problem: &'static str,
    },
    /// A file beyond its limit.
    #[error("{path} is larger than {limit} bytes: it cannot be what its name says")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// A name that cannot stand in `known_hosts`.
    #[error(
        "`{0}` is not a host name or address with an optional port, such as host, host:4433 or [::1]:4433"
    )]
    BadHost(String),
    /// A token that is not one, was used, or is too old.
    #[error(
        "the one-time token is not valid: it was used already, has expired, or was mistyped; ask for a new one"
    )]
    BadToken,
    /// Too many tokens handed out.
    #[error("{MAX_TOKENS} one-time tokens wait to be used in {path}: delete old files there")]
    TooManyTokens {
        /// The folder of tokens.
        path: PathBuf,
    },
}

impl IdentityError {
    fn file(what: &'static str, path: &Path, source: impl Into<io::Error>) -> IdentityError {
        IdentityError::File { what, path: path.to_owned(), source: source.into() }
    }
}

/// A public key, 32 bytes as in RFC 8032.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

impl core::fmt::Display for PublicKey {
    /// As in the files: `longhaul-ed25519 BASE64`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{PUBLIC} {}", BASE64.encode(self.0))
    }
}

impl core::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

impl PublicKey {
    /// Reads `longhaul-ed25519 BASE64`, with anything after it as comment. `None` for anything else.
    pub fn parse(line: &str) -> Option<PublicKey> {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == PUBLIC).then_some(())?;
        decode32(words.next()?).map(|key| PublicKey(*key))
    }
}

/// A private key. Wiped from memory when dropped.
pub struct PrivateKey {
    seed: Zeroizing<[u8; 32]>,
    public: PublicKey,
}

impl core::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PrivateKey(of {})", self.public)
    }
}

impl PrivateKey {
    /// A new key from the system's randomness.
    ///
    /// # Errors
    /// When the system has no randomness to give.
    pub fn generate() -> io::Result<PrivateKey> {
        let mut seed = Zeroizing::new([0; 32]);
        clock::fill_random(&mut *seed)?;
        let key = PrivateKey::from_seed(&seed);
        key.ok_or_else(|| io::Error::other("the system's randomness makes no key"))
    }

    /// The key that a 32-byte seed (RFC 8032, section 5.1.5) stands for. `None` if the library refuses it,
    /// which it does for no seed of this length.
    pub fn from_seed(seed: &[u8; 32]) -> Option<PrivateKey> {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).ok()?;
        let public = PublicKey(pair.public_key().as_ref().try_into().ok()?);
        let mut own = Zeroizing::new([0; 32]);
        own.copy_from_slice(seed);
        Some(PrivateKey { seed: own, public })
    }

    /// The secret seed.
    pub fn seed(&self) -> &[u8; 32] {
        &self.seed
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        self.public
    }
}

/// The folder with this user's keys.
#[derive(Clone, Debug)]
pub struct StateFolder {
    path: PathBuf,
}

impl StateFolder {
    /// The folder the environment points to: `$LONGHAUL_HOME`, else `$XDG_CONFIG_HOME/longhaul`, else
    /// `~/.config/longhaul`. Made, for its owner only, if it is not there.
    ///
    /// # Errors
    /// [`IdentityError::NoHome`] without any of them, [`IdentityError::File`] when it cannot be made.
    pub fn open_default() -> Result<StateFolder, IdentityError> {
        let path = choose(|name| std::env::var_os(name)).ok_or(IdentityError::NoHome)?;
        StateFolder::open(path)
    }

    /// A folder of the caller's choice, made if it is not there.
    ///
    /// # Errors
    /// [`IdentityError::File`] when it cannot be made, [`IdentityError::WritableByOthers`] and
    /// [`IdentityError::ForeignOwner`] when others could change what is in it.
    pub fn open(path: impl Into<PathBuf>) -> Result<StateFolder, IdentityError> {
        let path = path.into();
        make_private_folder(&path)?;
        check_folder(&path)?;
        Ok(StateFolder { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// This machine's key, made at first use. Any number of processes may start for the first time at once:
    /// all get the same key.
    ///
    /// # Errors
    /// [`IdentityError::OpenToOthers`] and [`IdentityError::ForeignOwner`] for a key that cannot be trusted,
    /// [`IdentityError::Line`] for one that cannot be read.
    pub fn host_key(&self) -> Result<PrivateKey, IdentityError> {
        let path = self.path.join("host_key");
        for _ in 0..MAX_TRIES {
            if let Some(key) = read_private(&path)? {
                return Ok(key);
            }
            let key = PrivateKey::generate().map_err(|e| IdentityError::file("make a key for", &path, e))?;
            // With room for all of it, so that no copy is left behind where the text grows.
            let (mut text, secret) = (Zeroizing::new(String::with_capacity(128)), BASE64.encode(key.seed()));
            let secret = Zeroizing::new(secret);
            [PRIVATE, " ", &secret, "\n"].iter().for_each(|t| text.push_str(t));
            // Complete before it has its name, and a name that exists is left alone: whoever is first wins,
            // and the others read the winner's.
            if write_new(&path, text.as_bytes())? {
                return Ok(key);
            }
        }
        let gone = io::Error::from(io::ErrorKind::NotFound);
        Err(IdentityError::file("keep", &path, gone))
    }

    /// The machines that have been met.
    pub fn known_hosts(&self) -> KnownHosts {
        KnownHosts::new(self.path.join("known_hosts"))
    }

    /// The remembered rates of paths to other machines.
    pub fn known_paths(&self) -> KnownPaths {
        KnownPaths::new(self.path.join("known_paths"))
    }

    /// The keys that may connect. A file that is not there lists none.
    ///
    /// # Errors
    /// [`IdentityError::OpenToOthers`] if others may change it, [`IdentityError::File`] if it cannot be read.
    pub fn authorized_keys(&self) -> Result<AuthorizedKeys, IdentityError> {
        AuthorizedKeys::read(&self.path.join("authorized_keys"))
    }

    /// The one-time tokens that have been handed out.
    ///
    /// # Errors
    /// [`IdentityError::File`] when their folder cannot be made.
    pub fn tokens(&self) -> Result<Tokens, IdentityError> {
        let path = self.path.join("tokens");
        make_private_folder(&path)?;
        Ok(Tokens::new(path))
    }
}

fn choose(var: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // The XDG specification says to ignore what is not absolute; an empty variable counts as unset.
    let set = |name| var(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    set("LONGHAUL_HOME")
        .or_else(|| set("XDG_CONFIG_HOME").filter(|p| p.is_absolute()).map(|p| p.join("longhaul")))
        .or_else(|| set("HOME").map(|p| p.join(".config").join("longhaul")))
}

fn make_private_folder(path: &Path) -> Result<(), IdentityError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| IdentityError::file("make the folder", path, e))
}

fn decode32(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let bytes = Zeroizing::new(BASE64.decode(text).ok()?);
    let mut out = Zeroizing::new([0; 32]);
    out.copy_from_slice(bytes.first_chunk::<32>().filter(|_| bytes.len() == 32)?);
    Some(out)
}

/// The whole text, which must not exceed `limit` bytes. Bytes that are not UTF-8 are replaced: they can only
/// be in comments, or make a line unreadable.
fn read_text(file: File, path: &Path, limit: u64) -> Result<Zeroizing<String>, IdentityError> {
    let bytes = read_secret(&file, limit).map_err(|e| IdentityError::file("read", path, e))?;
    if bytes.len() as u64 > limit {
        return Err(IdentityError::TooLarge { path: path.to_owned(), limit });
    }
    Ok(Zeroizing::new(String::from_utf8_lossy(&bytes).into_owned()))
}

fn read_private(path: &Path) -> Result<Option<PrivateKey>, IdentityError> {
    let Some(file) = open_strictly(path, FileRole::Secret)? else { return Ok(None) };
    let text = read_text(file, path, MAX_KEY_FILE)?;
    let mut words = text.split_ascii_whitespace();
    let seed = match (words.next(), words.next().and_then(decode32)) {
        (Some(PRIVATE), Some(seed)) => seed,
        _ => {
            return Err(IdentityError::Line {
                path: path.to_owned(),
                line: 1,
                problem: "not a private key (`longhaul-ed25519-private BASE64`); restore it from a backup, or \
                          delete it so that a new one is made and tell those who knew the old one",
            });
        }
    };
    Ok(PrivateKey::from_seed(&seed))
}

/// Writes a file of mode 0600 that appears complete or not at all. False, and nothing changed, when the name
/// exists.
fn write_new(path: &Path, content: &[u8]) -> Result<bool, IdentityError> {
    let (temp, mut file) = temp_beside(path)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    // A hard link, unlike a rename, never replaces what is there.
    let result = written.and_then(|()| match fs::hard_link(&temp, path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(e) => Err(e),
    });
    let _ = fs::remove_file(&temp);
    let made = result.map_err(|e| IdentityError::file("write", path, e))?;
    if made {
        sync_folder(path)?;
    }
    Ok(made)
}

fn temp_beside(path: &Path) -> Result<(PathBuf, File), IdentityError> {
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for _ in 0..MAX_TRIES {
        let random = clock::seed().map_err(|e| IdentityError::file("name a temporary file for", path, e))?;
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{:016x}.tmp", u64::from_le_bytes(*random.first_chunk::<8>().unwrap_or(&[0; 8]))));
        let temp = PathBuf::from(name);
        match File::options().write(true).create_new(true).mode(0o600).open(&temp) {
            Ok(f) => return Ok((temp, f)),
            Err(e) => last = e,
        }
    }
    Err(IdentityError::file("make a temporary file for", path, last))
}

/// Makes a new name in a folder survive a crash.
fn sync_folder(path: &Path) -> Result<(), IdentityError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    File::open(folder).and_then(|f| f.sync_all()).map_err(|e| IdentityError::file("write back", folder, e))
}
