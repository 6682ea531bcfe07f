//! Ed25519 identities of both ends, written as key lines and fingerprints in the manner of ssh.
//!
//! ```text
//! fingerprint   lh-SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU    (or 64 hexadecimal digits)
//! key line      longhaul-ed25519 BASE64 [comment]
//! ```
//!
//! Keys travel as raw public keys (RFC 7250). The fingerprint is SHA-256 of the key's SubjectPublicKeyInfo
//! (RFC 8410), so other tools can compute it too.

use core::fmt;
use core::str::FromStr;

use ring::rand::SecureRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use sha2::{Digest, Sha256};
use thiserror::Error;
use zeroize::Zeroizing;

use super::base64::Base64;

/// First word of a key line.
pub const KEY_TYPE: &str = "longhaul-ed25519";
/// Start of a fingerprint.
pub const FINGERPRINT_PREFIX: &str = "lh-SHA256:";
/// Bytes of a key line at most; longer ones are refused unread.
pub const MAX_KEY_LINE: usize = 1024;
/// SEQUENCE { SEQUENCE { OID 1.3.101.112 }, BIT STRING } of RFC 8410, section 4; 32 bytes of key follow.
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// PKCS#8 version 1 around an Ed25519 seed, RFC 8410, section 7; 32 bytes of seed follow.
const PKCS8_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// Why text or bytes are no key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdentityError {
    /// A line that does not start with [`KEY_TYPE`].
    #[error("not a key line: it must read \"{KEY_TYPE} BASE64 comment\"")]
    KeyType,
    /// The second word of a line is not 32 bytes of Base64.
    #[error("the key is not 44 characters of Base64: copy the line again")]
    KeyText,
    /// A line longer than [`MAX_KEY_LINE`].
    #[error("the key line is longer than {MAX_KEY_LINE} bytes: shorten its comment")]
    LineTooLong,
    /// A fingerprint of another form.
    #[error(
        "not a fingerprint: it must read \"{FINGERPRINT_PREFIX}\" and 43 Base64 characters or 64 hexadecimal digits"
    )]
    Fingerprint,
    /// A SubjectPublicKeyInfo that is not Ed25519.
    #[error("the public key is not Ed25519")]
    NotEd25519,
    /// A private key that cannot be read.
    #[error("the private key is not PKCS#8 with an Ed25519 key: make a new one with \"longhaul keygen\"")]
    PrivateKey,
    /// No randomness.
    #[error("the operating system gives no randomness")]
    NoRandomness,
}

/// An Ed25519 public key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// From its 32 bytes (RFC 8032).
    pub const fn from_bytes(bytes: [u8; 32]) -> PublicKey {
        PublicKey(bytes)
    }

    /// Its 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Its SubjectPublicKeyInfo in DER.
    pub fn spki(&self) -> [u8; 44] {
        let mut out = [0; 44];
        out[..12].copy_from_slice(&SPKI_PREFIX);
        out[12..].copy_from_slice(&self.0);
        out
    }

    /// From a SubjectPublicKeyInfo in DER, of which Ed25519 has one encoding only.
    pub fn from_spki(der: &[u8]) -> Result<PublicKey, IdentityError> {
        der.strip_prefix(&SPKI_PREFIX)
            .and_then(|key| key.try_into().ok())
            .map(PublicKey)
            .ok_or(IdentityError::NotEd25519)
    }

    /// Its fingerprint.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(Sha256::digest(self.spki()).into())
    }

    /// Reads a key line; gives the key and its comment (empty if there is none).
    pub fn parse_line(line: &str) -> Result<(PublicKey, &str), IdentityError> {
        if line.len() > MAX_KEY_LINE {
            return Err(IdentityError::LineTooLong);
        }
        let rest = line.trim().strip_prefix(KEY_TYPE).ok_or(IdentityError::KeyType)?;
        if !rest.starts_with([' ', '\t']) {
            return Err(IdentityError::KeyType);
        }
        let rest = rest.trim_start();
        let (text, comment) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
        let mut key = [0; 32];
        Base64::Padded.decode(text, &mut key).ok_or(IdentityError::KeyText)?;
        Ok((PublicKey(key), comment.trim_start()))
    }
}

impl fmt::Display for PublicKey {
    /// The key line without a comment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{KEY_TYPE} {}", Base64::Padded.encode(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = IdentityError;
    fn from_str(s: &str) -> Result<PublicKey, IdentityError> {
        PublicKey::parse_line(s).map(|(key, _)| key)
    }
}

/// SHA-256 of a SubjectPublicKeyInfo.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// From the 32 bytes of the hash.
    pub const fn from_bytes(bytes: [u8; 32]) -> Fingerprint {
        Fingerprint(bytes)
    }

    /// The 32 bytes of the hash.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// In lower-case hexadecimal, after the prefix.
    pub fn to_hex(&self) -> String {
        use fmt::Write as _;
        let mut out = String::from(FINGERPRINT_PREFIX);
        for b in self.0 {
            let _ = write!(out, "{b:02x}");
        }
        out
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FINGERPRINT_PREFIX}{}", Base64::Bare.encode(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = IdentityError;
    fn from_str(s: &str) -> Result<Fingerprint, IdentityError> {
        let text = s.strip_prefix(FINGERPRINT_PREFIX).ok_or(IdentityError::Fingerprint)?;
        let mut out = [0; 32];
        if text.len() == 64 {
            for (b, pair) in out.iter_mut().zip(text.as_bytes().chunks(2)) {
                let digit = |c: u8| char::from(c).to_digit(16).ok_or(IdentityError::Fingerprint);
                *b = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
            }
        } else {
            Base64::Bare.decode(text, &mut out).ok_or(IdentityError::Fingerprint)?;
        }
        Ok(Fingerprint(out))
    }
}

/// An Ed25519 private key; overwritten when dropped, never shown.
#[derive(Clone)]
pub struct Identity {
    seed: Zeroizing<[u8; 32]>,
    public: PublicKey,
}

impl Identity {
    /// From its seed (RFC 8032, the 32 bytes called the private key). The caller has a copy of its own, which nobody
    /// overwrites: for tests. Else see [`Identity::of_seed`].
    pub fn from_seed(seed: [u8; 32]) -> Identity {
        Identity::of_seed(&Zeroizing::new(seed))
    }

    /// From its seed where it lies, for callers that overwrite it.
    pub fn of_seed(seed: &[u8; 32]) -> Identity {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("a seed has 32 bytes");
        let public = pair.public_key().as_ref().try_into().expect("a public key has 32 bytes");
        let mut own = Zeroizing::new([0; 32]);
        own.copy_from_slice(seed);
        Identity { seed: own, public: PublicKey(public) }
    }

    /// A new one, by the operating system's randomness.
    pub fn generate() -> Result<Identity, IdentityError> {
        let mut seed = Zeroizing::new([0; 32]);
        ring::rand::SystemRandom::new().fill(&mut *seed).map_err(|_| IdentityError::NoRandomness)?;
        Ok(Identity::of_seed(&seed))
    }

    /// From PKCS#8 in DER, version 1 (as [`Identity::to_pkcs8`] writes and `openssl genpkey` too) or version 2
    /// (with the public key, checked to belong to it).
    pub fn from_pkcs8(der: &[u8]) -> Result<Identity, IdentityError> {
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(|_| IdentityError::PrivateKey)?;
        // ring has accepted the structure, in which the seed is the only OCTET STRING of 32 bytes inside one
        // of 34; it does not give the seed back itself.
        let at =
            der.windows(4).position(|w| w == [0x04, 0x22, 0x04, 0x20]).ok_or(IdentityError::PrivateKey)? + 4;
        let seed = der.get(at..at + 32).and_then(|s| s.first_chunk()).ok_or(IdentityError::PrivateKey)?;
        let identity = Identity::of_seed(seed);
        if identity.public.as_bytes() != pair.public_key().as_ref() {
            return Err(IdentityError::PrivateKey);
        }
        Ok(identity)
    }

    /// PKCS#8 version 1 in DER, for a file. Overwritten when dropped.
    pub fn to_pkcs8(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(PKCS8_PREFIX.len() + 32));
        out.extend_from_slice(&PKCS8_PREFIX);
        out.extend_from_slice(&*self.seed);
        out
    }

    /// Its public key.
    pub fn public_key(&self) -> PublicKey {
        self.public
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public.fingerprint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 8032, section 7.1, test 1.
    const SEED: [u8; 32] = [
        0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c, 0xc4, 0x44,
        0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae, 0x7f, 0x60,
    ];
    const PUBLIC: [u8; 32] = [
        0xd7, 0x5a, 0x98, 0x01, 0x82, 0xb1, 0x0a, 0xb7, 0xd5, 0x4b, 0xfe, 0xd3, 0xc9, 0x64, 0x07, 0x3a, 0x0e,
        0xe1, 0x72, 0xf3, 0xda, 0xa6, 0x23, 0x25, 0xaf, 0x02, 0x1a, 0x68, 0xf7, 0x07, 0x51, 0x1a,
    ];

    #[test]
    fn public_key_of_rfc_8032() {
        assert_eq!(Identity::from_seed(SEED).public_key().as_bytes(), &PUBLIC);
    }

    #[test]
    fn pkcs8_both_versions() {
        let id = Identity::from_seed(SEED);
        assert_eq!(Identity::from_pkcs8(&id.to_pkcs8()).unwrap().public_key(), id.public_key());
        let v2 = Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(v2.as_ref()).unwrap();
        let read = Identity::from_pkcs8(v2.as_ref()).unwrap();
        assert_eq!(read.public_key().as_bytes(), pair.public_key().as_ref());
        // The public key of version 2 must be the seed's.
        let mut wrong = v2.as_ref().to_vec();
        *wrong.last_mut().unwrap() ^= 1;
        assert_eq!(Identity::from_pkcs8(&wrong).unwrap_err(), IdentityError::PrivateKey);
        assert_eq!(Identity::from_pkcs8(&id.to_pkcs8()[..47]).unwrap_err(), IdentityError::PrivateKey);
    }

    #[test]
    fn generated_keys_differ() {
        assert_ne!(Identity::generate().unwrap().public_key(), Identity::generate().unwrap().public_key());
    }

    #[test]
    fn key_lines() {
        let key = PublicKey(PUBLIC);
        let line = format!("{key} anna@tower  office");
        assert_eq!(PublicKey::parse_line(&line), Ok((key, "anna@tower  office")));
        assert_eq!(PublicKey::parse_line(&format!("  {key}\n")), Ok((key, "")));
        assert_eq!(PublicKey::parse_line("ssh-ed25519 AAAA"), Err(IdentityError::KeyType));
        assert_eq!(PublicKey::parse_line("longhaul-ed25519x AAAA"), Err(IdentityError::KeyType));
        assert_eq!(PublicKey::parse_line("longhaul-ed25519"), Err(IdentityError::KeyType));
        assert_eq!(PublicKey::parse_line("longhaul-ed25519 AAAA"), Err(IdentityError::KeyText));
        assert_eq!(PublicKey::parse_line(&" ".repeat(2000)), Err(IdentityError::LineTooLong));
    }

    #[test]
    fn fingerprints_have_two_texts() {
        let print = PublicKey(PUBLIC).fingerprint();
        assert_eq!(print.to_string().len(), FINGERPRINT_PREFIX.len() + 43);
        assert_eq!(print.to_string().parse(), Ok(print));
        assert_eq!(print.to_hex().parse(), Ok(print));
        assert_eq!(print.to_hex().to_uppercase().replace("LH-", "lh-").parse(), Ok(print));
        assert_eq!("SHA256:abc".parse::<Fingerprint>(), Err(IdentityError::Fingerprint));
        assert_eq!("lh-SHA256:abc".parse::<Fingerprint>(), Err(IdentityError::Fingerprint));
        assert_eq!(PublicKey::from_spki(&PublicKey(PUBLIC).spki()), Ok(PublicKey(PUBLIC)));
        assert_eq!(PublicKey::from_spki(&PUBLIC), Err(IdentityError::NotEd25519));
    }

    proptest! {
        #[test]
        fn parsers_accept_arbitrary_input_without_panic(s in ".{0,120}", bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = PublicKey::parse_line(&s);
            let _ = PublicKey::parse_line(&format!("{KEY_TYPE} {s}"));
            let _ = s.parse::<Fingerprint>();
            let _ = format!("{FINGERPRINT_PREFIX}{s}").parse::<Fingerprint>();
            let _ = Identity::from_pkcs8(&bytes);
            let _ = PublicKey::from_spki(&bytes);
        }
    }
}
