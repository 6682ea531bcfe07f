//! One-time tokens: a secret handed over by other means (printed by a server started through ssh, given to
//! a script), with which a client proves that it may connect though its key is not listed.
//!
//! ```text
//! lht1_ZZZZ...                 43 characters of URL-safe Base64: the secret
//! lht1_ZZZZ....FFFF...         and, after a dot, 43 more: the fingerprint of the server's key
//! ```
//!
//! The secret itself is never sent. The client sends [`OneTimeToken::id`] and a proof, HMAC-SHA256 keyed with
//! the secret of the connection's exporter value, so a proof is worth nothing on another connection, not even
//! to a server that received it. Whoever keeps the tokens removes one when it was used.

use core::fmt;
use core::str::FromStr;

use ring::hmac;
use thiserror::Error;
use zeroize::Zeroizing;

use super::base64::Base64;
use super::identity::Fingerprint;

/// Start of a token.
pub const PREFIX: &str = "lht1_";
/// Bytes of a proof.
pub const PROOF_LEN: usize = 32;
/// Bytes of a token's public name.
pub const ID_LEN: usize = 8;
/// Characters of 32 bytes in Base64 without padding.
const TEXT_LEN: usize = 43;

/// An invalid token text or an invalid proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OneTimeTokenError {
    /// Not of the form above. The text is not shown: it may be a secret.
    #[error("not a one-time token: it must read \"{PREFIX}\" and 43 characters; copy it again")]
    Text,
    /// The proof does not fit token and connection.
    #[error("the one-time token does not hold: ask for a new one")]
    Proof,
}

/// A secret for one use; overwritten when dropped, shown only by [`OneTimeToken::to_text`].
#[derive(Clone)]
pub struct OneTimeToken {
    secret: Zeroizing<[u8; 32]>,
    server: Option<Fingerprint>,
}

impl OneTimeToken {
    /// From 32 random bytes and, so that the client need not ask its user, the server's fingerprint.
    pub fn new(secret: [u8; 32], server: Option<Fingerprint>) -> OneTimeToken {
        OneTimeToken::of(&Zeroizing::new(secret), server)
    }

    /// The same, of bytes that the caller overwrites.
    pub fn of(secret: &[u8; 32], server: Option<Fingerprint>) -> OneTimeToken {
        let mut own = Zeroizing::new([0; 32]);
        own.copy_from_slice(secret);
        OneTimeToken { secret: own, server }
    }

    /// The text to hand over. Whoever reads it can connect.
    pub fn to_text(&self) -> Zeroizing<String> {
        let secret = Zeroizing::new(Base64::Url.encode(&*self.secret));
        let mut out = Zeroizing::new(String::with_capacity(PREFIX.len() + 2 * TEXT_LEN + 1));
        out.push_str(PREFIX);
        out.push_str(&secret);
        if let Some(server) = &self.server {
            out.push('.');
            out.push_str(&Base64::Url.encode(server.as_bytes()));
        }
        out
    }

    /// The server it is for, if it says.
    pub fn server(&self) -> Option<Fingerprint> {
        self.server
    }

    /// Its name, by which a server finds it among others; tells nothing of the secret.
    pub fn id(&self) -> [u8; ID_LEN] {
        let mut out = [0; ID_LEN];
        out.copy_from_slice(&self.mac("lh token id", &[]).as_ref()[..ID_LEN]);
        out
    }

    /// The client's proof; `binding` is [`super::Handshake::export_token_binding`].
    pub fn prove(&self, binding: &[u8; 32]) -> [u8; PROOF_LEN] {
        let mut out = [0; PROOF_LEN];
        out.copy_from_slice(self.mac("lh token proof", binding).as_ref());
        out
    }

    /// Checks a client's proof, in constant time.
    pub fn verify(&self, binding: &[u8; 32], proof: &[u8]) -> Result<(), OneTimeTokenError> {
        if super::same(&self.prove(binding), proof) { Ok(()) } else { Err(OneTimeTokenError::Proof) }
    }

    fn mac(&self, label: &str, data: &[u8]) -> hmac::Tag {
        let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &*self.secret));
        mac.update(label.as_bytes());
        mac.update(data);
        mac.sign()
    }
}

impl FromStr for OneTimeToken {
    type Err = OneTimeTokenError;
    fn from_str(s: &str) -> Result<OneTimeToken, OneTimeTokenError> {
        let rest = s.trim().strip_prefix(PREFIX).ok_or(OneTimeTokenError::Text)?;
        let (secret_text, server_text) = match rest.split_once('.') {
            Some((a, b)) => (a, Some(b)),
            None => (rest, None),
        };
        let mut secret = Zeroizing::new([0; 32]);
        Base64::Url.decode(secret_text, &mut *secret).ok_or(OneTimeTokenError::Text)?;
        let server = match server_text {
            Some(text) => {
                let mut print = [0; 32];
                Base64::Url.decode(text, &mut print).ok_or(OneTimeTokenError::Text)?;
                Some(Fingerprint::from_bytes(print))
            }
            None => None,
        };
        Ok(OneTimeToken { secret, server })
    }
}

impl fmt::Debug for OneTimeToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OneTimeToken(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_both_forms() {
        let plain = OneTimeToken::new([0xfb; 32], None);
        assert_eq!(plain.to_text().len(), PREFIX.len() + 43);
        let read: OneTimeToken = format!(" {}\n", *plain.to_text()).parse().unwrap();
        assert_eq!((*read.secret, read.server()), ([0xfb; 32], None));
        let print = Fingerprint::from_bytes([9; 32]);
        let read: OneTimeToken = OneTimeToken::new([1; 32], Some(print)).to_text().parse().unwrap();
        assert_eq!((*read.secret, read.server()), ([1; 32], Some(print)));
        for bad in ["", "lht1_", "lht2_AAAA", "lht1_AAAA.", &format!("{}.", *plain.to_text())] {
            assert_eq!(bad.parse::<OneTimeToken>().unwrap_err(), OneTimeTokenError::Text, "{bad}");
        }
        assert!(!format!("{plain:?}").contains("fb"));
    }

    #[test]
    fn proofs_hold_for_one_secret_and_one_connection() {
        let t = OneTimeToken::new([1; 32], None);
        let proof = t.prove(&[2; 32]);
        assert_eq!(t.verify(&[2; 32], &proof), Ok(()));
        assert_eq!(t.verify(&[3; 32], &proof), Err(OneTimeTokenError::Proof));
        assert_eq!(OneTimeToken::new([4; 32], None).verify(&[2; 32], &proof), Err(OneTimeTokenError::Proof));
        assert_eq!(t.verify(&[2; 32], &proof[..31]), Err(OneTimeTokenError::Proof));
        assert_eq!(t.verify(&[2; 32], &[]), Err(OneTimeTokenError::Proof));
        for bit in 0..PROOF_LEN * 8 {
            let mut bad = proof;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(t.verify(&[2; 32], &bad), Err(OneTimeTokenError::Proof));
        }
        assert_ne!(t.id(), OneTimeToken::new([4; 32], None).id());
    }

    proptest! {
        #[test]
        fn parser_accepts_arbitrary_input_without_panic(s in ".{0,120}") {
            let _ = s.parse::<OneTimeToken>();
            let _ = format!("{PREFIX}{s}").parse::<OneTimeToken>();
        }
    }
}
