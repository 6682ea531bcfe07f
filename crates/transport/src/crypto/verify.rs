//! Trust settings of both ends, and the certificate verifiers that TLS calls.
//!
//! In the manner of ssh, both ends show raw Ed25519 keys (RFC 7250) and the other end compares them with those
//! it knows; or, for organisations, X.509 chains up to roots both know. An end always
//! authenticates: there are no anonymous clients.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, RootCertStore,
    SignatureScheme,
};
use sha2::{Digest as _, Sha256};

use zeroize::{Zeroize as _, Zeroizing};

use super::identity::{Fingerprint, Identity, PublicKey};
use super::tls::HandshakeError;

/// Keys that a policy may list.
pub const MAX_KEYS: usize = 65_536;

/// What an end shows of itself.
#[derive(Debug)]
pub enum Credentials {
    /// An Ed25519 key.
    RawKey(Identity),
    /// A chain, the end's own certificate first, and its private key.
    X509 {
        /// Certificates in DER. In all less than 64 KiB, the most that TLS messages may have here.
        chain: Vec<CertificateDer<'static>>,
        /// The private key in DER.
        key: PrivateKeyDer<'static>,
    },
}

/// Which servers a client trusts.
#[derive(Clone, Debug)]
pub enum ServerTrust {
    /// Those with one of these keys (known hosts).
    Pinned(Vec<PublicKey>),
    /// The one with this fingerprint (from a one-time token, or read to the user over the telephone).
    Fingerprint(Fingerprint),
    /// Any, for the moment: the application must ask the user, or compare, before it trusts
    /// [`super::Handshake::peer_identity`].
    FirstUse,
    /// Those with a chain to one of these roots, for the name connected to, valid now.
    X509 {
        /// Root certificates in DER.
        roots: Vec<CertificateDer<'static>>,
    },
}

/// Which clients a server accepts.
#[derive(Clone, Debug)]
pub enum ClientAuth {
    /// Those with one of these keys (authorized keys).
    Keys(Vec<PublicKey>),
    /// Any key: the application must decide by [`super::Handshake::peer_identity`], or demand a one-time token.
    AnyKey,
    /// Those with a chain to one of these roots, valid now.
    X509 {
        /// Root certificates in DER.
        roots: Vec<CertificateDer<'static>>,
    },
}

/// Who the peer has proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerIdentity {
    /// The owner of this key.
    RawKey(PublicKey),
    /// The owner of the first certificate of this chain.
    X509(Vec<CertificateDer<'static>>),
}

impl PeerIdentity {
    /// From what the peer has shown in TLS.
    pub(crate) fn from_shown(chain: &[CertificateDer<'static>]) -> PeerIdentity {
        // A certificate never has the form of an Ed25519 SubjectPublicKeyInfo, nor the reverse.
        match chain.first().map(|first| PublicKey::from_spki(first)) {
            Some(Ok(key)) => PeerIdentity::RawKey(key),
            _ => PeerIdentity::X509(chain.to_vec()),
        }
    }

    /// The key's fingerprint, if it is a raw key.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        match self {
            PeerIdentity::RawKey(key) => Some(key.fingerprint()),
            PeerIdentity::X509(_) => None,
        }
    }

    /// SHA-256 of the key, or of the end's own certificate: tells one peer from another.
    pub fn digest(&self) -> [u8; 32] {
        match self {
            PeerIdentity::RawKey(key) => *key.fingerprint().as_bytes(),
            PeerIdentity::X509(chain) => Sha256::digest(chain.first().map_or(&[][..], |c| c.as_ref())).into(),
        }
    }
}

/// For logs: the fingerprint of the key, or that of the end's own certificate, marked as such.
impl core::fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let print = Fingerprint::from_bytes(self.digest());
        match self {
            PeerIdentity::RawKey(_) => write!(f, "{print}"),
            PeerIdentity::X509(_) => write!(f, "certificate {print}"),
        }
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        // A raw key overwrites itself.
        if let Credentials::X509 { key, .. } = self {
            key.zeroize();
        }
    }
}

impl Credentials {
    pub(super) fn is_raw_key(&self) -> bool {
        matches!(self, Credentials::RawKey(_))
    }

    /// In the form TLS wants: a raw key stands in place of the certificate.
    pub(super) fn certified(&self) -> Result<Arc<CertifiedKey>, HandshakeError> {
        let config = |e: Error| HandshakeError::Config(format!("credentials: {e}"));
        // By reference: what rustls takes for its own it does not overwrite.
        let signer = match self {
            Credentials::RawKey(identity) => {
                let der = PrivateKeyDer::Pkcs8(identity.to_pkcs8().to_vec().into());
                any_supported_type(&Zeroizing::new(der))
            }
            Credentials::X509 { key, .. } => any_supported_type(key),
        };
        let signer = signer.map_err(config)?;
        let chain = match self {
            Credentials::RawKey(identity) => {
                vec![CertificateDer::from(identity.public_key().spki().to_vec())]
            }
            Credentials::X509 { chain, .. } => chain.clone(),
        };
        let certified = CertifiedKey::new(chain, signer);
        if !self.is_raw_key() {
            certified.keys_match().map_err(config)?;
        }
        Ok(Arc::new(certified))
    }
}

impl ServerTrust {
    pub(super) fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ServerCertVerifier>, HandshakeError> {
        let accepts = match self {
            ServerTrust::X509 { roots } => {
                let roots = root_store(roots)?;
                let built = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
                return Ok(built.map_err(bad_roots)?);
            }
            ServerTrust::Pinned(keys) => Accepts::listed(keys)?,
            ServerTrust::Fingerprint(print) => Accepts::Fingerprint(*print),
            ServerTrust::FirstUse => Accepts::Any,
        };
        Ok(Arc::new(RawKeyVerifier::new(accepts, provider)))
    }
}

impl ClientAuth {
    pub(super) fn verifier(
        &self,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, HandshakeError> {
        let accepts = match self {
            ClientAuth::X509 { roots } => {
                let roots = root_store(roots)?;
                let built = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build();
                return built.map_err(bad_roots);
            }
            ClientAuth::Keys(keys) => Accepts::listed(keys)?,
            ClientAuth::AnyKey => Accepts::Any,
        };
        Ok(Arc::new(RawKeyVerifier::new(accepts, provider)))
    }
}

fn bad_roots(e: VerifierBuilderError) -> HandshakeError {
    HandshakeError::Config(format!("roots: {e}"))
}

fn root_store(roots: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, HandshakeError> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(root.clone()).map_err(|e| HandshakeError::Config(format!("root certificate: {e}")))?;
    }
    Ok(Arc::new(store))
}

#[derive(Debug)]
enum Accepts {
    Any,
    Fingerprint(Fingerprint),
    /// Sorted, for lists of thousands.
    Keys(Vec<PublicKey>),
}

impl Accepts {
    fn listed(keys: &[PublicKey]) -> Result<Accepts, HandshakeError> {
        if keys.len() > MAX_KEYS {
            return Err(HandshakeError::Config(format!("more than {MAX_KEYS} keys listed: use X.509")));
        }
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        Ok(Accepts::Keys(keys))
    }
}

/// Compares the raw key shown with those accepted; TLS then checks that the peer signs with it.
#[derive(Debug)]
struct RawKeyVerifier {
    accepts: Accepts,
    algorithms: WebPkiSupportedAlgorithms,
}

impl RawKeyVerifier {
    fn new(accepts: Accepts, provider: &CryptoProvider) -> RawKeyVerifier {
        RawKeyVerifier { accepts, algorithms: provider.signature_verification_algorithms }
    }

    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        let key = PublicKey::from_spki(shown)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let known = match &self.accepts {
            Accepts::Any => true,
            Accepts::Fingerprint(print) => key.fingerprint() == *print,
            Accepts::Keys(keys) => keys.binary_search(&key).is_ok(),
        };
        // The alert for this error is access_denied (RFC 8446, section 6.2): the key is sound, and not wanted.
        if known {
            Ok(())
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }
}

/// What rustls asks of both kinds of verifier in the same words.
macro_rules! of_either_end {
    () => {
        /// TLS 1.2 is never negotiated, so its signatures are never asked about.
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            Err(Error::PeerIncompatible(PeerIncompatible::Tls13RequiredForQuic))
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let spki = SubjectPublicKeyInfoDer::from(cert.as_ref());
            verify_tls13_signature_with_raw_key(message, &spki, dss, &self.algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for RawKeyVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    of_either_end!();
}

impl ClientCertVerifier for RawKeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    of_either_end!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_keys_than_the_limit_are_refused() {
        let key = Identity::from_seed([3; 32]).public_key();
        assert!(Accepts::listed(&vec![key; MAX_KEYS]).is_ok());
        let e = Accepts::listed(&vec![key; MAX_KEYS + 1]).unwrap_err();
        assert!(e.to_string().contains("use X.509"), "{e}");
    }

    #[test]
    fn peer_identity_differs_by_key_or_leaf_certificate() {
        let key = Identity::from_seed([3; 32]).public_key();
        let raw = PeerIdentity::RawKey(key);
        assert_eq!(raw.digest(), *key.fingerprint().as_bytes());
        assert_eq!(raw.to_string(), key.fingerprint().to_string());
        let chain =
            |own: &[u8], issuer: &[u8]| PeerIdentity::X509(vec![own.to_vec().into(), issuer.to_vec().into()]);
        let certified = chain(b"own", b"issuer");
        assert_eq!(certified.digest(), <[u8; 32]>::from(Sha256::digest(b"own")));
        assert_eq!(certified.digest(), chain(b"own", b"another issuer").digest());
        assert_ne!(certified.digest(), chain(b"other", b"issuer").digest());
        assert!(certified.to_string().starts_with("certificate lh-SHA256:"), "{certified}");
        assert_ne!(PeerIdentity::X509(Vec::new()).digest(), certified.digest());
    }
}
