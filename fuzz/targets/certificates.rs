//! Certificates and raw keys of a peer's choice on their way through TLS into the verifiers: broken ones, changed ones,
//! chains in any order, and ones that the right authority has signed whatever they say. No panic, and nobody is taken
//! for somebody else.
//!
//! Input: byte 0 chooses the victim, whom it trusts, and what the peer shows and signs with; then the chain,
//! a certificate at a time: one of `Pool` with changes, or bytes.

#![no_main]

mod bytes;
mod careless;

use bytes::Bytes;
use careless::Careless;
use libfuzzer_sys::fuzz_target;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer,
    NameConstraints,
};
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::quic::{ClientConnection, Connection, KeyChange, ServerConnection, Version};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use std::sync::{Arc, OnceLock};
use transport::crypto::{
    ClientAuth, ClientSetup, Credentials, Handshake, Identity, Level, PeerIdentity, ServerSetup, ServerTrust,
    tls,
};

/// When all this happens: the beginning of 2026. Certificates are good from 2025 to 2027.
const NOW: u64 = 1_767_225_600;
/// The name that the client connects to.
const NAME: &str = "server.example";
/// Certificates of one chain at most.
const MAX_CHAIN: usize = 12;
/// Bytes of one certificate at most.
const MAX_CERTIFICATE: usize = 8 * 1024;
/// Flights of a handshake at most.
const MAX_FLIGHTS: usize = 16;
/// Identities: the authority's, an intermediate's, whom the certificates are for, somebody else, the victim.
const ROOT: u8 = 1;
const MIDDLE: u8 = 2;
const PEER: u8 = 3;
const STRANGER: u8 = 4;
const VICTIM: u8 = 5;
/// Bytes behind what is signed of a certificate with an Ed25519 signature (RFC 8410): the algorithm and the signature.
const TAIL: usize = 7 + 3 + 64;

fn identity(n: u8) -> Identity {
    Identity::from_seed([n; 32])
}

fn key(n: u8) -> rcgen::KeyPair {
    rcgen::KeyPair::try_from(&identity(n).to_pkcs8()[..]).expect("an Ed25519 key")
}

/// Genuine certificates.
struct Pool {
    root: CertificateDer<'static>,
    /// Those that TLS may show: what ends a chain first, then what stands behind it, then a raw key.
    all: Vec<CertificateDer<'static>>,
}

fn pool() -> &'static Pool {
    static POOL: OnceLock<Pool> = OnceLock::new();
    POOL.get_or_init(|| {
        let authority = |name: &str, constraints| {
            let mut params = CertificateParams::new(Vec::new()).expect("no names");
            params.distinguished_name.push(rcgen::DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
            params.name_constraints = constraints;
            params
        };
        let leaf = |names: &[&str], years: (i32, i32), usages: &[ExtendedKeyUsagePurpose]| {
            let names = names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
            let mut params = CertificateParams::new(names).expect("sound names");
            params.extended_key_usages = usages.to_vec();
            params.not_before = rcgen::date_time_ymd(years.0, 1, 1);
            params.not_after = rcgen::date_time_ymd(years.1, 1, 1);
            params
        };
        let names = |name: &str| vec![GeneralSubtree::DnsName(name.to_owned())];
        let constraints = NameConstraints {
            permitted_subtrees: names("example"),
            excluded_subtrees: names("other.example"),
        };
        let (root, middle) = (authority("Root", None), authority("Middle", Some(constraints)));
        let by_root = Issuer::from_params(&root, key(ROOT));
        let by_middle = Issuer::from_params(&middle, key(MIDDLE));
        let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let sign = |params: &CertificateParams, by: &Issuer<'_, rcgen::KeyPair>, n: u8| {
            params.signed_by(&key(n), by).expect("signed").der().clone()
        };
        let good = (2025, 2027);
        let all = vec![
            sign(&leaf(&[NAME], good, &both), &by_root, PEER),
            sign(&leaf(&[NAME, "192.0.2.1", "*.example"], good, &both[..1]), &by_root, PEER),
            sign(&leaf(&["client.example"], good, &both[1..]), &by_root, PEER),
            sign(&leaf(&[NAME], good, &both), &by_middle, PEER),
            sign(&leaf(&[NAME], (2024, 2025), &both), &by_root, PEER),
            sign(&leaf(&["host.other.example"], good, &both), &by_middle, PEER),
            sign(&middle, &by_root, MIDDLE),
            root.self_signed(&key(ROOT)).expect("signed").der().clone(),
            CertificateDer::from(identity(PEER).public_key().spki().to_vec()),
        ];
        Pool { root: all[7].clone(), all }
    })
}

/// What the peer shows.
struct Shown {
    chain: Vec<CertificateDer<'static>>,
    /// An authority has signed what was changed.
    signed_again: bool,
}

fn shown(b: &mut Bytes<'_>) -> Shown {
    let mut out = Shown { chain: Vec::new(), signed_again: false };
    while out.chain.len() < MAX_CHAIN {
        let Some(der) = certificate(b, &mut out.signed_again) else { break };
        out.chain.push(der.into());
    }
    out
}

fn certificate(b: &mut Bytes<'_>, signed_again: &mut bool) -> Option<Vec<u8>> {
    let which = b.u8()?;
    if which == 0xff {
        let n = usize::from(b.u16()?).min(MAX_CERTIFICATE);
        return Some(b.take(n).to_vec());
    }
    let all = &pool().all;
    let mut der = all[usize::from(which & 15) % all.len()].to_vec();
    let changes = which >> 4;
    if changes == 15 {
        // Other bytes in the place of some, and the lengths around them as they were.
        let (at, n) = (usize::from(b.u16()?) % der.len(), usize::from(b.u8()?));
        let new = b.take(n);
        let end = der.len().min(at + new.len());
        der[at..end].copy_from_slice(&new[..end - at]);
    } else {
        for _ in 0..changes & 7 {
            let (at, xor) = (usize::from(b.u16()?) % der.len(), b.u8()?);
            der[at] ^= xor;
        }
    }
    if changes & 8 != 0 && der.len() > 4 + TAIL {
        let signer = if b.u8()? & 1 == 0 { ROOT } else { MIDDLE };
        let end = der.len();
        let signature = rcgen::SigningKey::sign(&key(signer), &der[4..end - TAIL]).expect("signed");
        der[end - 64..].copy_from_slice(&signature);
        *signed_again = true;
    }
    Some(der)
}

/// The peer, who has the private key of identity `signer` and says that it belongs to `chain`.
fn peer(is_client: bool, raw: bool, signer: u8, chain: Vec<CertificateDer<'static>>) -> Connection {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let private = PrivateKeyDer::Pkcs8(identity(signer).to_pkcs8().to_vec().into());
    let private = provider.key_provider.load_private_key(private).expect("an Ed25519 key");
    let certified = Arc::new(CertifiedKey::new(chain, private));
    let (versions, params) = ([&rustls::version::TLS13], vec![0; 4]);
    if is_client {
        let config = rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(&versions);
        let config =
            config.expect("TLS 1.3").dangerous().with_custom_certificate_verifier(Arc::new(Careless));
        let mut config = if raw {
            config.with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified)))
        } else {
            config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        };
        config.alpn_protocols = vec![tls::ALPN.to_vec()];
        let name = ServerName::try_from(NAME).expect("a name");
        let made = ClientConnection::new(Arc::new(config), Version::V1, name, params);
        Connection::Client(made.expect("settings are sound"))
    } else {
        let config = rustls::ServerConfig::builder_with_provider(provider).with_protocol_versions(&versions);
        let config = config.expect("TLS 1.3").with_client_cert_verifier(Arc::new(Careless));
        let mut config = if raw {
            config.with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)))
        } else {
            config.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        };
        config.alpn_protocols = vec![tls::ALPN.to_vec()];
        let made = ServerConnection::new(Arc::new(config), Version::V1, params);
        Connection::Server(made.expect("settings are sound"))
    }
}

/// Whom the victim trusts.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trust {
    Authority,
    Keys,
    Any,
}

fn victim(is_client: bool, trust: Trust) -> Handshake {
    let (roots, key) = (vec![pool().root.clone()], identity(PEER).public_key());
    let credentials = Credentials::RawKey(identity(VICTIM));
    let made = if is_client {
        let trust = match trust {
            Trust::Authority => ServerTrust::X509 { roots },
            Trust::Keys => ServerTrust::Pinned(vec![key]),
            Trust::Any => ServerTrust::FirstUse,
        };
        ClientSetup::new(&credentials, &trust).and_then(|s| Handshake::client(&s, NAME, vec![0; 4], NOW))
    } else {
        let auth = match trust {
            Trust::Authority => ClientAuth::X509 { roots },
            Trust::Keys => ClientAuth::Keys(vec![key]),
            Trust::Any => ClientAuth::AnyKey,
        };
        ServerSetup::new(&credentials, &auth).and_then(|s| Handshake::server(&s, vec![0; 4], NOW))
    };
    made.expect("settings are sound")
}

/// Carries messages to and fro until nobody has anything to say; whether the victim is satisfied.
fn run(victim: &mut Handshake, peer: &mut Connection) -> bool {
    let mut level = Level::Initial;
    let mut alive = answer(victim, peer, &mut level);
    for flight in 0..2 * MAX_FLIGHTS {
        let from = if flight % 2 == 0 { Level::Initial } else { Level::Handshake };
        let mut words = Vec::new();
        // What harms the peer is none of our business.
        alive &= !victim.write(from, &mut words) || peer.read_hs(&words).is_ok();
        alive = alive && answer(victim, peer, &mut level);
    }
    alive && victim.is_complete()
}

/// The victim hears all that the peer has to say, which begins at `level`; false when it gives up.
fn answer(victim: &mut Handshake, peer: &mut Connection, level: &mut Level) -> bool {
    loop {
        let mut words = Vec::new();
        let change = peer.write_hs(&mut words);
        if victim.read(*level, &words).is_err() {
            return false;
        }
        match change {
            Some(KeyChange::Handshake { .. }) => *level = Level::Handshake,
            Some(KeyChange::OneRtt { .. }) => {}
            None if words.is_empty() => return true,
            None => {}
        }
    }
}

fn handshake(mode: u8, shown: Shown) -> bool {
    let is_client = mode & 1 == 0;
    let trust = match mode >> 1 & 3 {
        0 | 3 => Trust::Authority,
        1 => Trust::Keys,
        _ => Trust::Any,
    };
    let (signer, raw) = (if mode & 8 == 0 { PEER } else { STRANGER }, mode & 16 != 0);
    let first = shown.chain.first().cloned();
    let mut victim = victim(is_client, trust);
    let mut peer = peer(!is_client, raw, signer, shown.chain);
    let complete = run(&mut victim, &mut peer);
    if complete {
        let first = first.expect("the victim asks for a certificate");
        let spki = |n| identity(n).public_key().spki();
        match victim.peer_identity() {
            Some(PeerIdentity::RawKey(key)) => {
                assert!(trust != Trust::Authority, "a raw key where a certificate was asked for");
                assert_eq!(first[..], spki(signer), "a key that the peer does not have");
                assert!(trust == Trust::Any || key == identity(PEER).public_key());
            }
            Some(PeerIdentity::X509(chain)) => {
                assert_eq!(trust, Trust::Authority);
                assert_eq!(chain[0], first);
                let genuine = signer == PEER && pool().all[..6].contains(&first);
                assert!(genuine || shown.signed_again, "a certificate that no authority has made");
            }
            None => panic!("complete, and nobody is there"),
        }
    }
    complete
}

/// Genuine ones are taken, or all of this would test nothing.
fn prove() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        let take = |mode, list: &[u8]| handshake(mode, shown(&mut Bytes(list)));
        assert!(take(0, &[0]) && take(1, &[0]) && take(0, &[3, 6]) && take(1, &[2]));
        assert!(!take(0, &[3]) && !take(0, &[2]) && !take(0, &[4]) && !take(8, &[0]));
        assert!(take(0x12, &[8]) && take(0x13, &[8]) && take(0x14, &[8]) && !take(0x1a, &[8]));
        // Signed again without a change, it is as good as before.
        assert!(take(0, &[0x80, 0]) && !take(0, &[0x80, 1]));
    });
}

fuzz_target!(|input: &[u8]| {
    prove();
    let mut b = Bytes(input);
    let Some(mode) = b.u8() else { return };
    handshake(mode, shown(&mut b));
});
