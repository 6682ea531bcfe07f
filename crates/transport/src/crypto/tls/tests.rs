//! Tests of the handshake between two ends in memory.

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair as CertKey};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::super::identity::{Identity, PublicKey};
use super::super::one_time_token::{OneTimeToken, OneTimeTokenError};
use super::*;

/// 2026-01-01, in seconds since 1970.
const NOW: u64 = 1_767_225_600;
const YEAR: u64 = 366 * 86_400;

fn id(n: u8) -> Identity {
    Identity::from_seed([n; 32])
}
fn key(n: u8) -> PublicKey {
    id(n).public_key()
}
fn raw(n: u8) -> Credentials {
    Credentials::RawKey(id(n))
}

/// Moves messages both ways, `piece` bytes at a time, until nothing moves; the first error ends it.
fn pump(a: &mut Handshake, b: &mut Handshake, piece: usize) -> Result<(), (Side, HandshakeError)> {
    loop {
        let mut moved = false;
        for to_b in [true, false] {
            let (from, to) = if to_b { (&mut *a, &mut *b) } else { (&mut *b, &mut *a) };
            for level in [Level::Initial, Level::Handshake] {
                let mut out = Vec::new();
                moved |= from.write(level, &mut out);
                for bytes in out.chunks(piece) {
                    to.read(level, bytes).map_err(|e| (to.side(), e))?;
                }
            }
        }
        if !moved {
            return Ok(());
        }
    }
}

fn ends(
    client: &Credentials,
    trust: &ServerTrust,
    server: &Credentials,
    auth: &ClientAuth,
    name: &str,
    now: u64,
) -> (Handshake, Handshake) {
    let c = ClientSetup::new(client, trust).unwrap();
    let s = ServerSetup::new(server, auth).unwrap();
    let c = Handshake::client(&c, name, b"client's parameters".to_vec(), now).unwrap();
    let s = Handshake::server(&s, b"server's parameters".to_vec(), now).unwrap();
    (c, s)
}

/// Client with key 1, server with key 2.
fn raw_ends(trust: ServerTrust, auth: ClientAuth) -> (Handshake, Handshake) {
    ends(&raw(1), &trust, &raw(2), &auth, "any name at all", NOW)
}

fn secret_bytes(s: &DataSecrets, suite: Suite) -> [[u8; 16]; 2] {
    // What the secrets seal tells them apart without showing them.
    [Side::Client, Side::Server]
        .map(|side| KeyPair::data(suite, 1472, s, side).seal(0, 0, b"", &mut [0; 32]).unwrap())
}

#[test]
fn raw_keys_both_ways() {
    for piece in [1, 100, 1200, 1 << 20] {
        let (mut c, mut s) =
            raw_ends(ServerTrust::Pinned(vec![key(9), key(2)]), ClientAuth::Keys(vec![key(1), key(8)]));
        assert_eq!(c.export_secrets(Suite::Aegis128L).unwrap_err(), HandshakeError::Incomplete);
        assert_eq!(c.peer_identity(), None);
        pump(&mut c, &mut s, piece).unwrap();
        assert!(c.is_complete() && s.is_complete());
        assert_eq!(c.peer_identity(), Some(PeerIdentity::RawKey(key(2))));
        assert_eq!(s.peer_identity(), Some(PeerIdentity::RawKey(key(1))));
        assert_eq!(c.peer_params(), Some(&b"server's parameters"[..]));
        assert_eq!(s.peer_params(), Some(&b"client's parameters"[..]));
    }
}

#[test]
fn handshake_keys_fit_each_other() {
    let (mut c, mut s) = raw_ends(ServerTrust::FirstUse, ClientAuth::AnyKey);
    assert!(c.take_keys().is_none() && s.take_keys().is_none());
    pump(&mut c, &mut s, 1200).unwrap();
    let (mut ck, mut sk) = (c.take_keys().unwrap(), s.take_keys().unwrap());
    assert!(c.take_keys().is_none(), "keys are given once");
    for (from, to) in [(0, 1), (1, 0)] {
        let ends = [&mut ck, &mut sk];
        let mut body = *b"Certificate, CertificateVerify, Finished";
        let [c, s] = ends;
        let (from_keys, to_keys) = if from < to { (c, s) } else { (s, c) };
        let tag = from_keys.seal(0, 0, b"header", &mut body).unwrap();
        to_keys.open(false, 0, 0, b"header", &tag, &mut body).unwrap();
        assert_eq!(&body, b"Certificate, CertificateVerify, Finished");
    }
    // Other connections have other keys.
    let (mut c2, mut s2) = raw_ends(ServerTrust::FirstUse, ClientAuth::AnyKey);
    pump(&mut c2, &mut s2, 1200).unwrap();
    let tag = c2.take_keys().unwrap().seal(0, 1, b"header", &mut [0; 4]).unwrap();
    assert!(sk.open(false, 0, 1, b"header", &tag, &mut [0; 4]).is_err());
}

#[test]
fn data_secrets_are_equal_at_both_ends_only() {
    let (mut c, mut s) = raw_ends(ServerTrust::FirstUse, ClientAuth::AnyKey);
    pump(&mut c, &mut s, 1200).unwrap();
    let mut seen = std::collections::HashSet::new();
    for suite in Suite::ALL {
        let of_c = secret_bytes(&c.export_secrets(suite).unwrap(), Suite::Aes128Gcm);
        let of_s = secret_bytes(&s.export_secrets(suite).unwrap(), Suite::Aes128Gcm);
        assert_eq!(of_c, of_s);
        // Suites and directions have secrets of their own.
        assert!(of_c.into_iter().all(|x| seen.insert(x)), "{suite}");
    }
    for suite in Suite::ALL {
        let mut ck = KeyPair::data(suite, 1472, &c.export_secrets(suite).unwrap(), Side::Client);
        let mut sk = KeyPair::data(suite, 1472, &s.export_secrets(suite).unwrap(), Side::Server);
        let mut body = [7; 1408];
        let tag = ck.seal(1, 1, b"header", &mut body).unwrap();
        sk.open(false, 1, 1, b"header", &tag[..suite.tag_len()], &mut body).unwrap();
        assert_eq!(body, [7; 1408]);
    }
}

fn fails(trust: ServerTrust, auth: ClientAuth) -> (Side, HandshakeError) {
    let (mut c, mut s) = raw_ends(trust, auth);
    let err = pump(&mut c, &mut s, 1200).unwrap_err();
    let failed = if err.0 == Side::Client { &mut c } else { &mut s };
    assert!(!failed.is_complete() && failed.peer_identity().is_none());
    assert_eq!(failed.read(Level::Handshake, b"more"), Err(err.1.clone()), "failed for good");
    assert!(!failed.write(Level::Handshake, &mut Vec::new()));
    err
}

#[test]
fn wrong_server_key() {
    let (side, e) = fails(ServerTrust::Pinned(vec![key(3)]), ClientAuth::AnyKey);
    assert_eq!(side, Side::Client);
    assert!(e.alert().is_some(), "{e}");
    let (side, _) = fails(ServerTrust::Pinned(vec![]), ClientAuth::AnyKey);
    assert_eq!(side, Side::Client);
    let (side, _) = fails(ServerTrust::Fingerprint(key(3).fingerprint()), ClientAuth::AnyKey);
    assert_eq!(side, Side::Client);
}

#[test]
fn right_fingerprint() {
    let (mut c, mut s) = raw_ends(ServerTrust::Fingerprint(key(2).fingerprint()), ClientAuth::AnyKey);
    pump(&mut c, &mut s, 1200).unwrap();
    assert_eq!(c.peer_identity().unwrap().fingerprint(), Some(key(2).fingerprint()));
}

#[test]
fn unauthorised_client() {
    for keys in [vec![], vec![key(2), key(3)]] {
        let (side, e) = fails(ServerTrust::Pinned(vec![key(2)]), ClientAuth::Keys(keys));
        assert_eq!(side, Side::Server);
        assert_eq!(e.alert(), Some(49), "access_denied: {e}");
    }
}

#[test]
fn one_time_tokens_are_bound_to_the_connection() {
    let (mut c, mut s) = raw_ends(ServerTrust::FirstUse, ClientAuth::AnyKey);
    let (mut c2, mut s2) = raw_ends(ServerTrust::FirstUse, ClientAuth::AnyKey);
    assert_eq!(c.export_token_binding(), Err(HandshakeError::Incomplete));
    pump(&mut c, &mut s, 1200).unwrap();
    pump(&mut c2, &mut s2, 1200).unwrap();
    let token = OneTimeToken::new([5; 32], None);
    let proof = token.prove(&c.export_token_binding().unwrap());
    assert_eq!(token.verify(&s.export_token_binding().unwrap(), &proof), Ok(()));
    assert_eq!(token.verify(&s2.export_token_binding().unwrap(), &proof), Err(OneTimeTokenError::Proof));
}

#[test]
fn levels_are_kept_apart() {
    let (mut c, mut s) = raw_ends(ServerTrust::FirstUse, ClientAuth::AnyKey);
    assert_eq!(s.read(Level::Handshake, b"x"), Err(HandshakeError::WrongLevel(Level::Handshake)));
    let (_, mut s) = raw_ends(ServerTrust::FirstUse, ClientAuth::AnyKey);
    let mut hello = Vec::new();
    assert!(c.write(Level::Initial, &mut hello));
    assert!(!c.write(Level::Handshake, &mut Vec::new()));
    s.read(Level::Initial, &hello).unwrap();
    // RFC 9001, section 4.1.3: nothing more may come at a level that is over.
    assert_eq!(s.read(Level::Initial, &hello), Err(HandshakeError::WrongLevel(Level::Initial)));
}

#[test]
fn handshake_floods_are_cut_off() {
    let (_, mut s) = raw_ends(ServerTrust::FirstUse, ClientAuth::AnyKey);
    // A ClientHello that claims 65,000 bytes, and bytes without end.
    s.read(Level::Initial, &[1, 0, 0xfd, 0xe8]).unwrap();
    let mut result = Ok(());
    let mut sent = 0;
    while result.is_ok() && sent < 2 * MAX_READ {
        result = s.read(Level::Initial, &[0; 1000]);
        sent += 1000;
    }
    assert!(result.is_err() && sent <= MAX_READ + 1000);
}

#[test]
fn garbage_is_an_error_with_an_alert() {
    for first in 0..=255u8 {
        let (_, mut s) = raw_ends(ServerTrust::FirstUse, ClientAuth::AnyKey);
        let e = s.read(Level::Initial, &[first, 0, 0, 4, 1, 2, 3, 4]).unwrap_err();
        assert!(matches!(e, HandshakeError::Tls { .. }), "{e:?}");
    }
}

#[test]
fn tampered_messages_never_complete() {
    // Flip one bit in each of many places of each flight: TLS must notice at one end or the other.
    for flight in 0..3 {
        for step in 0..24 {
            let (mut c, mut s) = raw_ends(ServerTrust::Pinned(vec![key(2)]), ClientAuth::Keys(vec![key(1)]));
            let tamper = |now: usize, bytes: &mut Vec<u8>| {
                if now == flight && !bytes.is_empty() {
                    let at = bytes.len() * step / 24;
                    bytes[at] ^= 1;
                }
            };
            let mut run = || -> Result<(), HandshakeError> {
                for (n, level) in
                    [(0, Level::Initial), (1, Level::Initial), (1, Level::Handshake), (2, Level::Handshake)]
                {
                    let (from, to) = if n % 2 == 0 { (&mut c, &mut s) } else { (&mut s, &mut c) };
                    let mut out = Vec::new();
                    from.write(level, &mut out);
                    tamper(n, &mut out);
                    to.read(level, &out)?;
                }
                Ok(())
            };
            let done = run();
            assert!(done.is_err() || !s.is_complete(), "flight {flight}, step {step}");
        }
    }
}

/// A root, and certificates it signs.
struct Authority {
    params: CertificateParams,
    key: CertKey,
    root: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Authority {
        Authority::named("Root of the tests")
    }

    fn named(name: &str) -> Authority {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = CertKey::generate().unwrap();
        let root = params.self_signed(&key).unwrap().der().clone();
        Authority { params, key, root }
    }

    fn issue(&self, names: Vec<String>, usage: ExtendedKeyUsagePurpose) -> Credentials {
        let mut params = CertificateParams::new(names).unwrap();
        params.extended_key_usages = vec![usage];
        params.not_before = rcgen::date_time_ymd(2025, 6, 1);
        params.not_after = rcgen::date_time_ymd(2026, 6, 1);
        let key = CertKey::generate().unwrap();
        let cert = params.signed_by(&key, &Issuer::from_params(&self.params, &self.key)).unwrap();
        Credentials::X509 {
            chain: vec![cert.der().clone()],
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        }
    }

    fn server(&self, name: &str) -> Credentials {
        self.issue(vec![name.to_owned()], ExtendedKeyUsagePurpose::ServerAuth)
    }

    fn client(&self) -> Credentials {
        self.issue(vec!["client.test".to_owned()], ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn roots(&self) -> Vec<CertificateDer<'static>> {
        vec![self.root.clone()]
    }
}

/// Runs a handshake with certificates of `issuer`, checked against roots of `trusted`.
fn x509(issuer: &Authority, trusted: &Authority, name: &str, now: u64) -> Result<(), (Side, HandshakeError)> {
    let (mut c, mut s) = ends(
        &issuer.client(),
        &ServerTrust::X509 { roots: trusted.roots() },
        &issuer.server("server.test"),
        &ClientAuth::X509 { roots: trusted.roots() },
        name,
        now,
    );
    pump(&mut c, &mut s, 1200)?;
    assert!(c.is_complete() && s.is_complete());
    assert!(matches!(c.peer_identity(), Some(PeerIdentity::X509(chain)) if chain.len() == 1));
    assert!(matches!(s.peer_identity(), Some(PeerIdentity::X509(chain)) if chain.len() == 1));
    Ok(())
}

#[test]
fn certificates_good_and_bad() {
    let (ours, theirs) = (Authority::new(), Authority::named("Another root"));
    x509(&ours, &ours, "server.test", NOW).unwrap();
    let alert = |name, now, trusted| x509(&ours, trusted, name, now).map_err(|(side, e)| (side, e.alert()));
    assert_eq!(alert("other.test", NOW, &ours), Err((Side::Client, Some(42))), "bad_certificate");
    assert_eq!(alert("server.test", NOW + YEAR, &ours), Err((Side::Client, Some(45))), "certificate_expired");
    assert_eq!(alert("server.test", NOW - YEAR, &ours), Err((Side::Client, Some(45))), "not valid yet");
    assert_eq!(alert("server.test", NOW, &theirs), Err((Side::Client, Some(48))), "unknown_ca");
    // A root of the same name with another key: the signature does not fit.
    let impostor = Authority::new();
    assert_eq!(alert("server.test", NOW, &impostor), Err((Side::Client, Some(51))), "decrypt_error");
}

#[test]
fn expired_client_certificate() {
    let ca = Authority::new();
    // The client does not look at certificates (raw key at the server), so only the server can object.
    let run = |now| {
        let auth = ClientAuth::X509 { roots: ca.roots() };
        let (mut c, mut s) = ends(&ca.client(), &ServerTrust::Pinned(vec![key(2)]), &raw(2), &auth, "x", now);
        pump(&mut c, &mut s, 1200)
    };
    run(NOW).unwrap();
    let (side, e) = run(NOW + YEAR).unwrap_err();
    assert_eq!((side, e.alert()), (Side::Server, Some(45)));
}

#[test]
fn a_client_certificate_is_no_server_certificate() {
    let ca = Authority::new();
    let trust = ServerTrust::X509 { roots: ca.roots() };
    let wrong = ca.issue(vec!["server.test".to_owned()], ExtendedKeyUsagePurpose::ClientAuth);
    let (mut c, mut s) = ends(&raw(1), &trust, &wrong, &ClientAuth::AnyKey, "server.test", NOW);
    assert_eq!(pump(&mut c, &mut s, 1200).unwrap_err().0, Side::Client);
}

#[test]
fn raw_key_and_certificate_modes_must_match() {
    let ca = Authority::new();
    let x509_trust = ServerTrust::X509 { roots: ca.roots() };
    // A raw key where a certificate is expected, and the reverse, at either end.
    for (client, trust, server, auth) in [
        (raw(1), x509_trust.clone(), raw(2), ClientAuth::AnyKey),
        (raw(1), ServerTrust::FirstUse, ca.server("server.test"), ClientAuth::AnyKey),
        (ca.client(), ServerTrust::FirstUse, raw(2), ClientAuth::AnyKey),
        (raw(1), ServerTrust::FirstUse, raw(2), ClientAuth::X509 { roots: ca.roots() }),
    ] {
        let (mut c, mut s) = ends(&client, &trust, &server, &auth, "server.test", NOW);
        let failed = pump(&mut c, &mut s, 1200);
        assert!(failed.is_err(), "{client:?} {trust:?} {auth:?}");
        assert!(!s.is_complete());
    }
}

#[test]
fn long_chains_within_the_limit() {
    let ca = Authority::new();
    let names = (0..500).map(|i| format!("host-{i:05}.a-rather-long-name-of-a-site.server.test")).collect();
    let issued = ca.issue(names, ExtendedKeyUsagePurpose::ServerAuth);
    let Credentials::X509 { chain, key } = &issued else { unreachable!() };
    // The certificate, some 26 KB, `n` times: the further copies are intermediates of no use, as in sloppily
    // configured servers.
    let run = |n: usize, piece| {
        let trust = ServerTrust::X509 { roots: ca.roots() };
        let name = "host-00007.a-rather-long-name-of-a-site.server.test";
        let server = Credentials::X509 { chain: vec![chain[0].clone(); n], key: key.clone_key() };
        let (mut c, mut s) = ends(&raw(1), &trust, &server, &ClientAuth::AnyKey, name, NOW);
        pump(&mut c, &mut s, piece)?;
        assert!(c.is_complete() && s.is_complete());
        let Some(PeerIdentity::X509(shown)) = c.peer_identity() else { panic!("a certificate") };
        Ok::<usize, (Side, HandshakeError)>(shown.iter().map(|c| c.len()).sum())
    };
    assert!(run(1, 1200).unwrap() > 24_000);
    assert!(run(2, 997).unwrap() > 48_000);
    assert_eq!(run(3, 1200).unwrap_err().0, Side::Client, "beyond 64 KiB");
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let ca = Authority::new();
    let (one, other) = (ca.client(), ca.client());
    let Credentials::X509 { chain, .. } = &one else { unreachable!() };
    let Credentials::X509 { key, .. } = &other else { unreachable!() };
    let mismatch = Credentials::X509 { chain: chain.clone(), key: key.clone_key() };
    let e = ClientSetup::new(&mismatch, &ServerTrust::FirstUse).unwrap_err();
    assert!(matches!(e, HandshakeError::Config(_)), "{e}");
    let e = ServerSetup::new(&raw(1), &ClientAuth::X509 { roots: vec![] }).unwrap_err();
    assert!(matches!(e, HandshakeError::Config(_)), "{e}");
    let bad = ServerTrust::X509 { roots: vec![CertificateDer::from(vec![1, 2, 3])] };
    assert!(matches!(ClientSetup::new(&raw(1), &bad).unwrap_err(), HandshakeError::Config(_)));
    let setup = ClientSetup::new(&raw(1), &ServerTrust::X509 { roots: ca.roots() }).unwrap();
    assert!(matches!(
        Handshake::client(&setup, "not a name", vec![], NOW).unwrap_err(),
        HandshakeError::Config(_)
    ));
    assert!(Handshake::client(&setup, "192.0.2.1", vec![], NOW).is_ok());
    let long = vec![0; MAX_PARAMS + 1];
    assert!(matches!(Handshake::client(&setup, "a.test", long, NOW).unwrap_err(), HandshakeError::Config(_)));
}

#[test]
fn long_parameters_of_a_peer_are_refused() {
    for (len, refused) in [(MAX_PARAMS, false), (MAX_PARAMS + 1, true)] {
        let client = ClientSetup::new(&raw(1), &ServerTrust::Pinned(vec![key(2)])).unwrap();
        let server = ServerSetup::new(&raw(2), &ClientAuth::AnyKey).unwrap();
        let name = client.begin("server.test", NOW).unwrap();
        // As `Handshake::client`, which would refuse them itself.
        let tls =
            quic::ClientConnection::new(client.tls.clone(), quic::Version::V1, name, vec![7; len]).unwrap();
        let mut c = Handshake::start(Connection::Client(tls), Side::Client, Vec::new()).unwrap();
        let mut s = Handshake::server(&server, Vec::new(), NOW).unwrap();
        let done = pump(&mut c, &mut s, 1200);
        assert_eq!(done.err(), refused.then_some((Side::Server, HandshakeError::PeerParams)), "{len} bytes");
    }
}
