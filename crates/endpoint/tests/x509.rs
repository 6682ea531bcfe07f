//! X.509 chains over the wire: a certificate far larger than a datagram, and than what may be sent to an address
//! that is not proven.

mod pair;

use base::Span;
use longhaul_endpoint::{Event, ServerConfig};
use pair::{Pair, config};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use transport::crypto::{ClientAuth, Credentials, ServerTrust};

const NOW: u64 = 1_767_225_600;

fn authority() -> (CertificateParams, KeyPair, CertificateDer<'static>) {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("key");
    let root = params.self_signed(&key).expect("signed").der().clone();
    (params, key, root)
}

fn issue(
    ca: &(CertificateParams, KeyPair, CertificateDer<'static>),
    names: usize,
    usage: ExtendedKeyUsagePurpose,
) -> Credentials {
    let mut all = vec!["server.example".to_string()];
    all.extend((0..names).map(|n| format!("host-{n}.a-rather-long-domain.example")));
    let mut params = CertificateParams::new(all).expect("parameters");
    params.extended_key_usages = vec![usage];
    params.not_before = rcgen::date_time_ymd(2025, 6, 1);
    params.not_after = rcgen::date_time_ymd(2026, 6, 1);
    let key = KeyPair::generate().expect("key");
    let cert = params.signed_by(&key, &Issuer::from_params(&ca.0, &ca.1)).expect("signed");
    Credentials::X509 {
        chain: vec![cert.der().clone()],
        key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
    }
}

#[test]
fn certificate_of_20_kilobytes_is_delivered_despite_loss() {
    let ca = authority();
    for lose_every in [0, 7] {
        let (mut c, mut s) = (config(2), config(1));
        c.credentials = Arc::new(issue(&ca, 10, ExtendedKeyUsagePurpose::ClientAuth));
        s.credentials = Arc::new(issue(&ca, 500, ExtendedKeyUsagePurpose::ServerAuth));
        (c.unix_epoch, s.unix_epoch) = (NOW, NOW);
        s.server = Some(ServerConfig {
            auth: ClientAuth::X509 { roots: vec![ca.2.clone()] },
            ..ServerConfig::default()
        });
        let mut p = Pair::with(c, s);
        let mut n = 0;
        p.filter = Box::new(move |_| {
            n += 1;
            lose_every == 0 || n % lose_every != 0
        });
        let mut o = p.connect_options();
        o.trust = ServerTrust::X509 { roots: vec![ca.2.clone()] };
        let id = p.client.connect(p.now, o).expect("connect");
        p.run(Span::from_secs(8));
        assert!(p.client_events().contains(&Event::Connected { conn: id }));
        assert!(p.server_events().iter().any(|e| matches!(e, Event::Incoming { .. })));
        assert!(p.bytes[0] > 20_000);
    }
}
