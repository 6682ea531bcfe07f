//! The key of a cluster: whoever has the file is in.
//!
//! Programs for verbs name their peers by addresses and know nothing of keys. So all processes of a cluster share one secret, from
//! which the Ed25519 key that each of them shows, and expects, is derived: connections are authenticated and encrypted as all
//! others are.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use hkdf::Hkdf;
use lhio::identity::IdentityError;
use ring::rand::{SecureRandom as _, SystemRandom};
use sha2::Sha256;
use std::path::Path;
use transport::crypto::Identity;
use zeroize::Zeroizing;

/// What the line of the file begins with.
const MARK: &str = "longhaul-cluster-1 ";
/// A file is no longer than this: the line, and comments.
const MAX_FILE: u64 = 64 << 10;
const SECRET_LEN: usize = 32;

/// The secret of a cluster.
pub struct ClusterKey(Zeroizing<[u8; SECRET_LEN]>);

/// Why a cluster's key cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There is no such file.
    #[error(
        "cannot read the cluster's key {0}: there is no such file; try `longhaul keys cluster new` and copy what it prints to that file on every host"
    )]
    Missing(String),
    /// Others could read it.
    #[error(transparent)]
    File(#[from] IdentityError),
    /// It cannot be read.
    #[error("cannot read the cluster's key {0}: {1}")]
    Read(String, std::io::Error),
    /// It is something else.
    #[error(
        "cannot use {0} as a cluster's key: it has no line `longhaul-cluster-1 ...`; try `longhaul keys cluster new`"
    )]
    Format(String),
    /// The system gives no randomness.
    #[error("cannot make a cluster's key: the system has no randomness")]
    NoRandomness,
}

impl core::fmt::Debug for ClusterKey {
    /// Without the secret.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ClusterKey")
    }
}

impl ClusterKey {
    /// A new one, from the system's randomness.
    ///
    /// # Errors
    /// [`ClusterError::NoRandomness`].
    pub fn generate() -> Result<ClusterKey, ClusterError> {
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        SystemRandom::new().fill(&mut *secret).map_err(|_| ClusterError::NoRandomness)?;
        Ok(ClusterKey(secret))
    }

    /// The line to keep in a file that only its owner may read.
    pub fn to_line(&self) -> Zeroizing<String> {
        let text = Zeroizing::new(STANDARD_NO_PAD.encode(*self.0));
        Zeroizing::new(format!("{MARK}{}\n", *text))
    }

    /// The key in a file's text, in which lines that are empty or begin with `#` are skipped.
    pub fn parse(text: &str) -> Option<ClusterKey> {
        let mut lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        let (line, None) = (lines.next()?, lines.next()) else { return None };
        let mut secret = Zeroizing::new([0; SECRET_LEN]);
        let n = STANDARD_NO_PAD.decode_slice(line.strip_prefix(MARK)?, &mut *secret).ok()?;
        (n == SECRET_LEN).then_some(ClusterKey(secret))
    }

    /// Reads a file, which nobody else may read.
    ///
    /// # Errors
    /// See [`ClusterError`].
    pub fn read(path: &Path) -> Result<ClusterKey, ClusterError> {
        use lhio::identity::{FileRole, open_strictly, read_secret};
        let name = || path.display().to_string();
        let file = open_strictly(path, FileRole::Secret)?.ok_or_else(|| ClusterError::Missing(name()))?;
        let bytes = read_secret(&file, MAX_FILE).map_err(|e| ClusterError::Read(name(), e))?;
        let text = core::str::from_utf8(&bytes).map_err(|_| ClusterError::Format(name()))?;
        ClusterKey::parse(text).ok_or_else(|| ClusterError::Format(name()))
    }

    /// What each member shows, and expects of the others.
    pub fn identity(&self) -> Identity {
        let mut seed = Zeroizing::new([0; 32]);
        // It fails for lengths above 8,160 bytes only.
        let _ = Hkdf::<Sha256>::new(None, &*self.0).expand(b"longhaul cluster identity 1", &mut *seed);
        Identity::from_seed(*seed)
    }

    /// The key of queries about services (`ffi/rdmacm`).
    pub fn services(&self) -> Zeroizing<[u8; 32]> {
        let mut key = Zeroizing::new([0; 32]);
        // As above.
        let _ = Hkdf::<Sha256>::new(None, &*self.0).expand(b"longhaul cluster services 1", &mut *key);
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_key_survives_its_file_and_gives_the_same_identity() {
        let (a, b) =
            (ClusterKey::generate().expect("randomness"), ClusterKey::generate().expect("randomness"));
        let text = format!("# of the tests\n\n{}", *a.to_line());
        let again = ClusterKey::parse(&text).expect("a key");
        assert_eq!(again.identity().public_key(), a.identity().public_key());
        assert_ne!(b.identity().public_key(), a.identity().public_key());
        assert_eq!(format!("{a:?}"), "ClusterKey");
    }

    #[test]
    fn the_identity_of_a_secret_never_changes() {
        let key = ClusterKey::parse("longhaul-cluster-1 AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE")
            .expect("a key");
        let fingerprint = key.identity().public_key().fingerprint().to_string();
        assert_eq!(fingerprint, "lh-SHA256:IZAicn8WN0ZWGSn3oKryUFcLO7FPNdo5XQmA9yYqgcg");
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let read = || ClusterKey::read(&path).map(drop).map_err(|e| e.to_string());
        assert!(read().is_err_and(|e| e.contains("no such file") && e.contains("keys cluster new")));
        let good = ClusterKey::generate().expect("randomness");
        let line = good.to_line();
        for bad in ["", "x", "longhaul-cluster-1 AAAA", &line[..40], &format!("{}{}", *line, *line)] {
            std::fs::write(&path, bad).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("mode");
            assert!(read().is_err_and(|e| e.contains("cannot use")), "{bad}");
        }
        std::fs::write(&path, line.as_bytes()).expect("written");
        assert_eq!(read(), Ok(()));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("mode");
        assert!(read().is_err(), "everybody could read it");
    }
}
