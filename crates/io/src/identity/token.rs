//! One-time tokens that have been issued and not used.
//!
//! A token is the seed of a key that may connect once. Whoever holds it proves so by the handshake, as with any other
//! key, so this folder holds public keys only: reading it lets nobody in, and no secret is ever compared.

use super::{
    FileRole, IdentityError, MAX_KEY_FILE, PublicKey, open_strictly, read_text, sync_folder, write_new,
};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Tokens that can wait to be used at a time.
pub const MAX_TOKENS: usize = 1_024;
/// Files of the folder that are looked at.
const MAX_FILES: usize = 16 * MAX_TOKENS;

/// The tokens that wait to be used: one file each, with mode 0600, named by the public key in hexadecimal digits, that
/// says until when (seconds since 1970). Deleted by whoever uses it first.
#[derive(Clone, Debug)]
pub struct Tokens {
    path: PathBuf,
}

impl Tokens {
    pub(super) fn new(path: PathBuf) -> Tokens {
        Tokens { path }
    }

    /// Lets the owner of `key` connect once, until `expires` (seconds since 1970, that second included). Removes what
    /// had expired at `now`.
    ///
    /// # Errors
    /// [`IdentityError::TooManyTokens`], or [`IdentityError::File`].
    pub fn issue(&self, key: &PublicKey, now: u64, expires: u64) -> Result<(), IdentityError> {
        if self.list(now)?.len() >= MAX_TOKENS {
            return Err(IdentityError::TooManyTokens { path: self.path.clone() });
        }
        let path = self.file(key);
        if !write_new(&path, format!("{expires}\n").as_bytes())? {
            return Err(IdentityError::file("make a token in", &path, io::ErrorKind::AlreadyExists));
        }
        Ok(())
    }

    /// Uses a token up. Of any number of attempts, in any number of processes, before and after any crash, one succeeds:
    /// when this returns, the name is gone from the disk.
    ///
    /// # Errors
    /// [`IdentityError::BadToken`] when there is none for this key, or it was used or has expired, without saying which;
    /// others when it cannot be read or removed.
    pub fn redeem(&self, key: &PublicKey, now: u64) -> Result<(), IdentityError> {
        let path = self.file(key);
        let expires = read_expiry(&path)?.ok_or(IdentityError::BadToken)?;
        // Removing a name succeeds for exactly one of those who try.
        match fs::remove_file(&path) {
            Ok(()) => sync_folder(&path)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(IdentityError::BadToken),
            Err(e) => return Err(IdentityError::file("use up", &path, e)),
        }
        if now <= expires { Ok(()) } else { Err(IdentityError::BadToken) }
    }

    /// The tokens that can still be used at `now`, and until when, in no order; removes the others. Looks at 16,384 files
    /// at most.
    ///
    /// # Errors
    /// [`IdentityError::File`] when the folder cannot be read.
    pub fn list(&self, now: u64) -> Result<Vec<(PublicKey, u64)>, IdentityError> {
        let fail = |e| IdentityError::file("list", &self.path, e);
        let mut out = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(fail)?.take(MAX_FILES) {
            let path = entry.map_err(fail)?.path();
            let key = path.file_name().and_then(|n| n.to_str()).and_then(key_of);
            // A file that cannot be read or belongs to others is not ours to remove; it lets nobody in either.
            let (Some(key), Ok(Some(expires))) = (key, read_expiry(&path)) else { continue };
            if expires < now {
                let _ = fs::remove_file(&path); // somebody else was faster
            } else {
                out.push((key, expires));
            }
        }
        Ok(out)
    }

    fn file(&self, key: &PublicKey) -> PathBuf {
        self.path.join(key.0.iter().map(|b| format!("{b:02x}")).collect::<String>())
    }
}

/// Until when a token's file says that it can be used; never, when it does not say.
fn read_expiry(path: &Path) -> Result<Option<u64>, IdentityError> {
    let Some(file) = open_strictly(path, FileRole::Secret)? else { return Ok(None) };
    let text = read_text(file, path, MAX_KEY_FILE)?;
    Ok(Some(text.split_ascii_whitespace().next().and_then(|w| w.parse().ok()).unwrap_or(0)))
}

fn key_of(name: &str) -> Option<PublicKey> {
    let mut key = [0; 32];
    if name.len() != 64 || !name.is_ascii() {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(name.as_bytes().chunks(2)) {
        let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(PublicKey(key))
}
