//! Stateless tokens of a server: address validation (RFC 9000, section 8.1) and stateless reset (section 10.3).

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use base::{Span, Time};
use hkdf::Hkdf;
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;
use sha2::Sha256;
use thiserror::Error;
use zeroize::Zeroizing;

use super::keys::expand_label;

/// Bytes of an address-validation token: nonce 12, sealed 48, tag 16.
pub const TOKEN_LEN: usize = NONCE_LEN + PLAIN_LEN + 16;
/// Bytes of a stateless reset token.
pub const RESET_LEN: usize = 16;
const NONCE_LEN: usize = 12;
/// Kind 1, address 16, port 2, time 8, identifier's length 1, identifier 20.
const PLAIN_LEN: usize = 28 + wire::packet::MAX_LONG_CID;

/// What a token proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// From a Retry packet, for the same address and port.
    Retry,
    /// From an earlier connection, for the same address; ports change with each socket and NAT.
    Earlier,
}

/// Why a token proves nothing. RFC 9000, section 8.1.3: take the packet as if it had none, except that a
/// server which has just sent a Retry may close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TokenError {
    /// Not made with this key, or changed.
    #[error("the token was not made here: send a Retry")]
    Forged,
    /// Made for another address or purpose.
    #[error("the token was made for another address or purpose: send a Retry")]
    Mismatch,
    /// Too old, or from the future.
    #[error("the token has expired: send a Retry")]
    Expired,
    /// An identifier of more than 20 bytes.
    #[error("a connection identifier is longer than 20 bytes")]
    CidTooLong,
}

/// Makes and checks address-validation tokens.
///
/// The nonce is a MAC of what is sealed (as in SIV, RFC 5297), so no randomness is needed: two equal nonces mean
/// two equal tokens, save by a chance of 2^-96 per pair. Give a new key every 2^32 tokens and with each start;
/// all servers that share an address share the key.
pub struct TokenKey {
    seal: LessSafeKey,
    nonce: hmac::Key,
}

impl TokenKey {
    /// From 32 random bytes.
    pub fn new(secret: &[u8; 32]) -> TokenKey {
        let prk = Hkdf::<Sha256>::new(None, secret);
        let (mut seal, mut nonce) = (Zeroizing::new([0u8; 16]), Zeroizing::new([0u8; 32]));
        expand_label(&prk, "lh token key", &mut *seal);
        expand_label(&prk, "lh token nonce", &mut *nonce);
        TokenKey {
            seal: LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &*seal).expect("a key of 16 bytes")),
            nonce: hmac::Key::new(hmac::HMAC_SHA256, &*nonce),
        }
    }

    /// A token for the client at `addr`, issued at `now`; `odcid` is the identifier its first packet was sent to
    /// (empty for [`TokenKind::Earlier`]).
    pub fn issue(
        &self,
        kind: TokenKind,
        addr: SocketAddr,
        now: Time,
        odcid: &[u8],
    ) -> Result<[u8; TOKEN_LEN], TokenError> {
        let mut plain = head(kind, addr);
        plain[19..27].copy_from_slice(&now.as_nanos().to_be_bytes());
        plain[27] = odcid.len() as u8;
        plain.get_mut(28..28 + odcid.len()).ok_or(TokenError::CidTooLong)?.copy_from_slice(odcid);
        let mac = hmac::sign(&self.nonce, &plain);
        let mut nonce = [0; NONCE_LEN];
        nonce.copy_from_slice(&mac.as_ref()[..NONCE_LEN]);
        let tag = self
            .seal
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut plain)
            .expect("48 bytes are not too long");
        let mut out = [0; TOKEN_LEN];
        out[..NONCE_LEN].copy_from_slice(&nonce);
        out[NONCE_LEN..NONCE_LEN + PLAIN_LEN].copy_from_slice(&plain);
        out[NONCE_LEN + PLAIN_LEN..].copy_from_slice(tag.as_ref());
        Ok(out)
    }

    /// Checks a token that came from `addr` at `now` and may be `lifetime` old; gives the `odcid`.
    pub fn check(
        &self,
        kind: TokenKind,
        addr: SocketAddr,
        now: Time,
        lifetime: Span,
        token: &[u8],
    ) -> Result<Vec<u8>, TokenError> {
        let token: &[u8; TOKEN_LEN] = token.try_into().map_err(|_| TokenError::Forged)?;
        let mut sealed = *token;
        let (nonce, sealed) = sealed.split_at_mut(NONCE_LEN);
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| TokenError::Forged)?;
        let plain = self.seal.open_in_place(nonce, Aad::empty(), sealed).map_err(|_| TokenError::Forged)?;
        if plain[..19] != head(kind, addr)[..19] {
            return Err(TokenError::Mismatch);
        }
        let mut issued = [0; 8];
        issued.copy_from_slice(&plain[19..27]);
        let age = now.as_nanos().checked_sub(u64::from_be_bytes(issued)).ok_or(TokenError::Expired)?;
        if age > lifetime.as_nanos() {
            return Err(TokenError::Expired);
        }
        let odcid = plain.get(28..28 + usize::from(plain[27])).ok_or(TokenError::Forged)?;
        Ok(odcid.to_vec())
    }
}

/// Kind, address (IPv4 mapped into IPv6, so that dual-stack sockets agree), port (zero if it does not matter).
fn head(kind: TokenKind, addr: SocketAddr) -> [u8; PLAIN_LEN] {
    let mut plain = [0; PLAIN_LEN];
    let ip: Ipv6Addr = match addr.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let (code, port) = match kind {
        TokenKind::Retry => (1, addr.port()),
        TokenKind::Earlier => (2, 0),
    };
    plain[0] = code;
    plain[1..17].copy_from_slice(&ip.octets());
    plain[17..19].copy_from_slice(&port.to_be_bytes());
    plain
}

/// Makes stateless reset tokens (RFC 9000, section 10.3.2): HMAC-SHA256 of the connection identifier, cut to
/// 16 bytes. The key stays the same across restarts, or resets are not understood.
pub struct ResetKey(hmac::Key);

impl ResetKey {
    /// From 32 random bytes.
    pub fn new(secret: &[u8; 32]) -> ResetKey {
        ResetKey(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The token of an identifier of ours.
    pub fn token(&self, cid: &[u8]) -> ResetToken {
        let mac = hmac::sign(&self.0, cid);
        let mut out = [0; RESET_LEN];
        out.copy_from_slice(&mac.as_ref()[..RESET_LEN]);
        ResetToken(out)
    }
}

/// A stateless reset token. Compared in constant time (RFC 9000, section 10.3.1).
#[derive(Clone, Copy, Eq)]
pub struct ResetToken([u8; RESET_LEN]);

impl ResetToken {
    /// From its bytes, as the peer gave them.
    pub const fn from_bytes(bytes: [u8; RESET_LEN]) -> ResetToken {
        ResetToken(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; RESET_LEN] {
        &self.0
    }

    /// Whether a datagram that could not be opened is this reset: its last 16 bytes are the token.
    pub fn ends(&self, datagram: &[u8]) -> bool {
        datagram.last_chunk::<RESET_LEN>().is_some_and(|end| super::same(&self.0, end))
    }
}

impl PartialEq for ResetToken {
    fn eq(&self, other: &ResetToken) -> bool {
        super::same(&self.0, &other.0)
    }
}

super::opaque_debug!(TokenKey, ResetKey, ResetToken);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key() -> TokenKey {
        TokenKey::new(&[7; 32])
    }
    fn at(s: &str) -> SocketAddr {
        s.parse().unwrap()
    }
    fn secs(n: u64) -> Time {
        Time::from_nanos(n * 1_000_000_000)
    }
    const LIFE: Span = Span::from_secs(10);

    #[test]
    fn token_is_bound_to_address_and_time() {
        let k = key();
        let a = at("192.0.2.1:4433");
        let t = k.issue(TokenKind::Retry, a, secs(100), b"original").unwrap();
        let check = |kind, addr, now| k.check(kind, addr, now, LIFE, &t);
        assert_eq!(check(TokenKind::Retry, a, secs(100)).unwrap(), b"original");
        assert_eq!(check(TokenKind::Retry, a, secs(110)).unwrap(), b"original");
        assert_eq!(check(TokenKind::Retry, a, secs(111)), Err(TokenError::Expired));
        assert_eq!(check(TokenKind::Retry, a, secs(99)), Err(TokenError::Expired));
        assert_eq!(check(TokenKind::Retry, at("192.0.2.1:4434"), secs(101)), Err(TokenError::Mismatch));
        assert_eq!(check(TokenKind::Retry, at("192.0.2.2:4433"), secs(101)), Err(TokenError::Mismatch));
        assert_eq!(check(TokenKind::Earlier, a, secs(101)), Err(TokenError::Mismatch));
        assert_eq!(check(TokenKind::Retry, at("[::ffff:192.0.2.1]:4433"), secs(101)).unwrap(), b"original");
        assert_eq!(
            TokenKey::new(&[8; 32]).check(TokenKind::Retry, a, secs(100), LIFE, &t),
            Err(TokenError::Forged)
        );
    }

    #[test]
    fn token_of_an_earlier_connection_ignores_the_port() {
        let k = key();
        let t = k.issue(TokenKind::Earlier, at("[2001:db8::1]:1"), secs(5), b"").unwrap();
        assert_eq!(k.check(TokenKind::Earlier, at("[2001:db8::1]:2"), secs(6), LIFE, &t).unwrap(), b"");
        assert_eq!(
            k.check(TokenKind::Earlier, at("[2001:db8::2]:1"), secs(6), LIFE, &t),
            Err(TokenError::Mismatch)
        );
    }

    #[test]
    fn identifiers_up_to_twenty_bytes() {
        let a = at("192.0.2.1:1");
        let t = key().issue(TokenKind::Retry, a, secs(1), &[9; 20]).unwrap();
        assert_eq!(key().check(TokenKind::Retry, a, secs(1), LIFE, &t).unwrap(), [9; 20]);
        assert_eq!(key().issue(TokenKind::Retry, a, secs(1), &[9; 21]), Err(TokenError::CidTooLong));
        assert_eq!(key().issue(TokenKind::Retry, a, secs(1), &[9; 300]), Err(TokenError::CidTooLong));
    }

    #[test]
    fn flipping_any_bit_of_a_token_is_rejected() {
        let a = at("192.0.2.1:1");
        let t = key().issue(TokenKind::Retry, a, secs(1), b"id").unwrap();
        for bit in 0..TOKEN_LEN * 8 {
            let mut bad = t;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                key().check(TokenKind::Retry, a, secs(1), LIFE, &bad),
                Err(TokenError::Forged),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn reset_tokens() {
        let k = ResetKey::new(&[1; 32]);
        let t = k.token(&[1, 2, 3, 4]);
        assert_eq!(t, ResetKey::new(&[1; 32]).token(&[1, 2, 3, 4]));
        assert_ne!(t, k.token(&[1, 2, 3, 5]));
        assert_ne!(t, ResetKey::new(&[2; 32]).token(&[1, 2, 3, 4]));
        let mut d = vec![0x40; 30];
        d.extend(t.as_bytes());
        assert!(t.ends(&d));
        d.push(0);
        assert!(!t.ends(&d));
        assert!(!t.ends(&d[..5]));
        assert_eq!(format!("{t:?}"), "ResetToken(..)");
    }

    proptest! {
        #[test]
        fn check_accepts_arbitrary_input_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
            let got = key().check(TokenKind::Retry, at("192.0.2.1:1"), secs(1), LIFE, &bytes);
            prop_assert_eq!(got, Err(TokenError::Forged));
        }
    }
}
