//! Packet protection and the TLS 1.3 handshake.
//!
//! TLS 1.3 (`rustls`, its QUIC interface) authenticates both ends and agrees on a secret; its messages travel
//! in our own packets. From its exporter come the keys of data packets, so that a cipher TLS does not know
//! (AEGIS) can protect them. Randomness is used in one place only, inside TLS and [`Identity::generate`],
//! where `ring` draws it from the operating system; time is passed in.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `suite` | the ciphers, their limits, their negotiation |
//! | `packet` | one key of one direction: seal, open, header protection |
//! | `keys` | the key schedule, key phases, limits counted |
//! | `train` | trains sealed and opened on other threads |
//! | `identity` | Ed25519 keys, fingerprints, lines of known-hosts and authorized-keys files |
//! | `verify` | whom to trust: pinned and listed keys, X.509 chains |
//! | `tls` | the handshake |
//! | `token` | address validation and stateless reset |
//! | `one_time_token` | one-time secrets handed over by other means (ssh) |

/// Secrets have a Debug that shows their type only.
macro_rules! opaque_debug {
    ($($t:ty),*) => {$(
        impl core::fmt::Debug for $t {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(concat!(stringify!($t), "(..)"))
            }
        }
    )*};
}
use opaque_debug;

mod base64;
pub mod identity;
pub mod keys;
pub mod one_time_token;
pub mod packet;
pub mod rank;
pub mod suite;
pub mod tls;
pub mod token;
pub mod train;
pub mod verify;

pub use identity::{Fingerprint, Identity, PublicKey};
pub use keys::{KeyError, KeyPair, OpenError, Opened, Secret, Side};
pub use one_time_token::OneTimeToken;
pub use packet::{Forged, HeaderKey, OpenKey, SealError, SealKey, TAG_LEN};
pub use suite::{NegotiateError, Offer, Suite, negotiate};
pub use tls::{ClientSetup, Handshake, HandshakeError, Level, ServerSetup};
pub use token::{ResetKey, ResetToken, TokenError, TokenKey, TokenKind};
pub use train::{OpenedTrain, TrainOpener, TrainSealer};
pub use verify::{ClientAuth, Credentials, PeerIdentity, ServerTrust};

/// Compares without telling by its duration where the first difference is. Lengths are not secret.
pub(crate) fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    // `black_box` in the loops keeps the compiler from leaving early once a bit is set.
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let differ = |x: &[u8; 8], y: &[u8; 8]| u64::from_ne_bytes(*x) ^ u64::from_ne_bytes(*y);
    let diff = a.iter().zip(b).fold(0, |d, (x, y)| core::hint::black_box(d | differ(x, y)));
    let rest = a_rest.iter().zip(b_rest).fold(0, |d, (x, y)| core::hint::black_box(d | (x ^ y)));
    diff | u64::from(rest) == 0
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn same_compares_every_byte() {
        for len in 0..=20 {
            let a = vec![0x5a; len];
            assert!(same(&a, &a));
            assert!(!same(&a, &[&a[..], &[0]].concat()), "{len} bytes and one more");
            for (first, second) in (0..len).flat_map(|i| (i..len).map(move |j| (i, j))) {
                // Also the same difference at two places, which must not cancel out.
                let mut b = a.clone();
                b[first] ^= 0x81;
                b[second] = b[first];
                assert!(!same(&a, &b), "bytes {first} and {second} of {len}");
            }
        }
    }
}
