//! One-time tokens: a secret handed over by other means (ssh), good for one connection.

use super::{IdentityError, MAX_KEY_FILE, clock, decode32, open_trusted, read_text, write_new};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD};
use core::fmt;
use std::fs;
use std::io;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// Tokens that can wait to be used at a time.
pub const MAX_TOKENS: usize = 1_024;

const ID: usize = 16;
const SECRET: usize = 32;
/// What a token's text begins with, so that one is recognised in logs and by scanners for leaked secrets.
const PREFIX: &str = "lht1-";

/// A secret for one connection. Wiped from memory when dropped.
pub struct Token {
    id: [u8; ID],
    pub(super) secret: Zeroizing<[u8; SECRET]>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.name())
    }
}

impl Token {
    /// The text to hand over. Secret.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new([0; ID + SECRET]);
        bytes[..ID].copy_from_slice(&self.id);
        bytes[ID..].copy_from_slice(&*self.secret);
        Zeroizing::new(format!("{PREFIX}{}", *Zeroizing::new(URL_SAFE_NO_PAD.encode(*bytes))))
    }

    /// Reads what [`Token::to_text`] gave.
    ///
    /// # Errors
    /// [`IdentityError::BadToken`].
    pub fn parse(text: &str) -> Result<Token, IdentityError> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(IdentityError::BadToken)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| IdentityError::BadToken)?;
        let bytes = Zeroizing::new(bytes);
        let (id, secret) = bytes.split_at_checked(ID).ok_or(IdentityError::BadToken)?;
        let id = id.try_into().map_err(|_| IdentityError::BadToken)?;
        let secret = secret.try_into().map_err(|_| IdentityError::BadToken)?;
        Ok(Token { id, secret: Zeroizing::new(secret) })
    }

    /// The part that names the token and is not secret.
    pub fn id(&self) -> &[u8; ID] {
        &self.id
    }

    /// The secret, for deriving keys from.
    pub fn secret(&self) -> &[u8; SECRET] {
        &self.secret
    }

    fn name(&self) -> String {
        self.id.iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// The tokens that wait to be used: one file each, deleted by whoever uses it first.
#[derive(Clone, Debug)]
pub struct Tokens {
    path: PathBuf,
}

impl Tokens {
    pub(super) fn new(path: PathBuf) -> Tokens {
        Tokens { path }
    }

    /// Makes a token that can be used until `expires` (seconds since 1970). Removes those that had expired
    /// at `now`.
    ///
    /// # Errors
    /// [`IdentityError::TooManyTokens`], or [`IdentityError::File`].
    pub fn issue(&self, now: u64, expires: u64) -> Result<Token, IdentityError> {
        if self.sweep(now)? >= MAX_TOKENS {
            return Err(IdentityError::TooManyTokens { path: self.path.clone() });
        }
        let fail = |e| IdentityError::file("make a token in", &self.path, e);
        let secret = Zeroizing::new(clock::seed().map_err(fail)?);
        let mut id = [0; ID];
        clock::fill_random(&mut id).map_err(fail)?;
        let token = Token { id, secret };
        let text = Zeroizing::new(format!("{expires} {}\n", *Zeroizing::new(BASE64.encode(*token.secret))));
        if !write_new(&self.path.join(token.name()), text.as_bytes())? {
            return Err(fail(io::Error::from(io::ErrorKind::AlreadyExists)));
        }
        Ok(token)
    }

    /// Uses a token up. Of any number of attempts at the same time, in any number of processes, one succeeds.
    /// A wrong secret leaves the token as it was.
    ///
    /// # Errors
    /// [`IdentityError::BadToken`] when it is unknown, used, expired or wrong, without saying which.
    pub fn redeem(&self, token: &Token, now: u64) -> Result<(), IdentityError> {
        let stored = self.lookup(token.id(), now)?.ok_or(IdentityError::BadToken)?;
        if !same(&stored, &token.secret) {
            return Err(IdentityError::BadToken);
        }
        self.take(token.id())
    }

    /// The secret of a token that can still be used at `now`: for protocols in which the peer proves that it
    /// knows the secret without sending it. Follow a good proof with [`Tokens::take`].
    ///
    /// # Errors
    /// [`IdentityError::File`] when it cannot be read.
    pub fn lookup(&self, id: &[u8; ID], now: u64) -> Result<Option<Zeroizing<[u8; SECRET]>>, IdentityError> {
        let name: String = id.iter().map(|b| format!("{b:02x}")).collect();
        let path = self.path.join(name);
        let Some(file) = open_trusted(&path, 0o077)? else { return Ok(None) };
        let text = read_text(file, &path, MAX_KEY_FILE)?;
        let mut words = text.split_ascii_whitespace();
        let expires = words.next().and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
        let secret = words.next().and_then(decode32).map(Zeroizing::new);
        Ok(secret.filter(|_| now <= expires))
    }

    /// Uses up the token of this name without looking at its secret.
    ///
    /// # Errors
    /// [`IdentityError::BadToken`] when somebody else has used it.
    pub fn take(&self, id: &[u8; ID]) -> Result<(), IdentityError> {
        let name: String = id.iter().map(|b| format!("{b:02x}")).collect();
        let path = self.path.join(name);
        // Removing a name succeeds for exactly one of those who try.
        match fs::remove_file(&path) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(IdentityError::BadToken),
            Err(e) => Err(IdentityError::file("use up", &path, e)),
        }
    }

    /// Removes what has expired; returns how many are left. Looks at 16 times the limit at most.
    fn sweep(&self, now: u64) -> Result<usize, IdentityError> {
        let fail = |e| IdentityError::file("list", &self.path, e);
        let mut left = 0;
        for entry in fs::read_dir(&self.path).map_err(fail)?.take(16 * MAX_TOKENS) {
            let path = entry.map_err(fail)?.path();
            let text = fs::read_to_string(&path).map(Zeroizing::new).unwrap_or_default();
            let expires = text.split_ascii_whitespace().next().and_then(|w| w.parse::<u64>().ok());
            match expires {
                Some(at) if at < now => drop(fs::remove_file(&path)),
                _ => left += 1,
            }
        }
        Ok(left)
    }
}

/// Compares without stopping at the first difference, so that time tells nothing about where it is.
fn same(a: &[u8; SECRET], b: &[u8; SECRET]) -> bool {
    std::hint::black_box(a.iter().zip(b).fold(0, |d, (x, y)| d | (x ^ y))) == 0
}
