//! Reads X.509 certificates, private keys and roots from PEM files.

use crate::args::Certificate;
use crate::exit::{Failure, Outcome};
use lhio::clock::WallTime;
use lhio::identity::{FileRole, open_strictly, read_secret};
use rustls::client::verify_server_name;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::path::Path;
use transport::crypto::Credentials;
use zeroize::{Zeroize as _, Zeroizing};

/// Bytes of a PEM file: a system's bundle of all public roots has a quarter of a MiB.
const MAX_FILE: u64 = 16 << 20;
/// Bytes of a chain: TLS messages here have less than 64 KiB, other things included.
const MAX_CHAIN: usize = 60 << 10;
/// Roots of a file.
const MAX_ROOTS: usize = 4_096;

/// What `--cert` and `--key` name; `None` without them.
pub fn credentials(c: &Certificate) -> Outcome<Option<Credentials>> {
    let Some(cert) = &c.cert else { return Ok(None) };
    let chain = certificates(cert, "--cert")?;
    let bytes: usize = chain.iter().map(|c| c.len()).sum();
    if bytes > MAX_CHAIN {
        let text = format!(
            "cannot use the certificates in {} (--cert): they have {bytes} bytes, more than the {MAX_CHAIN} that can \
             be presented; try without the root and what does not belong to the chain",
            cert.display()
        );
        return Err(Failure::usage(text));
    }
    let file = c.key.as_deref().unwrap_or(cert);
    // These overwrite their key in the end, also when it cannot be used.
    let credentials = Credentials::X509 { chain: chain.clone(), key: private_key(file, c.key.is_some())? };
    let Credentials::X509 { key, .. } = &credentials else { return Ok(None) };
    // By reference: what rustls takes for its own it does not overwrite.
    let signer = any_supported_type(key).map_err(|e| {
        let text = format!(
            "cannot use the private key in {}: {e}; try RSA (2048 bits or more), ECDSA (P-256, P-384) or Ed25519",
            file.display()
        );
        Failure::usage(text)
    })?;
    CertifiedKey::new(chain.clone(), signer).keys_match().map_err(|e| {
        let text = format!(
            "cannot use the private key in {} with the first certificate in {}: {e}; try the key it was issued for, \
             and this machine's own certificate first",
            file.display(),
            cert.display()
        );
        Failure::usage(text)
    })?;
    if let Some(own) = chain.first() {
        warn_of_validity(own, cert, WallTime::now().secs);
    }
    Ok(Some(credentials))
}

/// The roots of `--ca`.
pub fn roots(file: &Path) -> Outcome<Vec<CertificateDer<'static>>> {
    let found = certificates(file, "--ca")?;
    if found.len() > MAX_ROOTS {
        let text = format!(
            "cannot use {} (--ca): it holds {} roots, more than {MAX_ROOTS}; try fewer",
            file.display(),
            found.len()
        );
        return Err(Failure::usage(text));
    }
    let mut store = rustls::RootCertStore::empty();
    let (usable, _) = store.add_parsable_certificates(found.iter().cloned());
    if usable < found.len() {
        let bad = found.iter().position(|c| rustls::RootCertStore::empty().add(c.clone()).is_err());
        let text = format!(
            "cannot use certificate {} in {} (--ca) as a root: it is malformed; try without it, or export it again",
            bad.map_or(0, |n| n + 1),
            file.display()
        );
        return Err(Failure::usage(text));
    }
    Ok(found)
}

/// Names that a certificate can be for.
pub fn names(list: &[String]) -> Outcome<Vec<ServerName<'static>>> {
    let parse = |n: &String| {
        ServerName::try_from(n.clone()).map_err(|_| {
            Failure::usage(format!(
                "cannot use --allow-name {n}: it is neither a DNS name nor an address; try one that the certificate has"
            ))
        })
    };
    list.iter().map(parse).collect()
}

/// Whether a certificate, whose chain was checked, is for one of `names`.
pub fn is_for(cert: &CertificateDer<'_>, names: &[ServerName<'_>]) -> bool {
    ParsedCertificate::try_from(cert)
        .is_ok_and(|parsed| names.iter().any(|n| verify_server_name(&parsed, n).is_ok()))
}

fn read(file: &Path, flag: &str, holds: FileRole) -> Outcome<Zeroizing<Vec<u8>>> {
    let fail = |e: std::io::Error| {
        Failure::usage(format!("cannot read {} ({flag}): {e}; try a file in PEM", file.display()))
    };
    // What is not there is named by its flag.
    std::fs::metadata(file).map_err(fail)?;
    let f = open_strictly(file, holds).map_err(|e| Failure::usage(format!("cannot use {flag}: {e}")))?;
    let f = f.ok_or_else(|| fail(std::io::ErrorKind::NotFound.into()))?;
    let bytes = read_secret(&f, MAX_FILE).map_err(fail)?;
    if bytes.len() as u64 > MAX_FILE {
        let text =
            format!("cannot read {} ({flag}): it is larger than 16 MiB; try a file in PEM", file.display());
        return Err(Failure::usage(text));
    }
    Ok(bytes)
}

fn certificates(file: &Path, flag: &str) -> Outcome<Vec<CertificateDer<'static>>> {
    let bytes = read(file, flag, FileRole::Trust)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let found = found.map_err(|e| {
        Failure::usage(format!(
            "cannot read {} ({flag}): it is malformed PEM: {e}; try to export \
             it again",
            file.display()
        ))
    })?;
    if found.is_empty() {
        let text = format!(
            "cannot read {} ({flag}): it has no certificate in PEM (-----BEGIN CERTIFICATE-----); try `openssl x509 \
             -inform DER -in FILE -out FILE.pem` if it is DER",
            file.display()
        );
        return Err(Failure::usage(text));
    }
    for (i, c) in found.iter().enumerate() {
        if let Err(e) = ParsedCertificate::try_from(c) {
            let text = format!(
                "cannot parse certificate {} in {} ({flag}): {e}; try to export it again",
                i + 1,
                file.display()
            );
            return Err(Failure::usage(text));
        }
    }
    Ok(found)
}

fn private_key(file: &Path, named: bool) -> Outcome<PrivateKeyDer<'static>> {
    let flag = if named { "--key" } else { "--cert" };
    let bytes = read(file, flag, FileRole::Trust)?;
    let mut key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| {
        let sealed = b"ENCRYPTED";
        let way_out = if bytes.windows(sealed.len()).any(|w| w == sealed) {
            "it is protected by a passphrase; try `openssl pkey -in FILE -out NEW` for a copy without one"
        } else if named {
            "try a file with PEM (-----BEGIN PRIVATE KEY-----)"
        } else {
            "try --key with the key's file"
        };
        Failure::usage(format!("cannot read a private key from {} ({flag}): {e}; {way_out}", file.display()))
    })?;
    // Only now is it known to hold a secret.
    if let Err(e) = open_strictly(file, FileRole::SharedSecret) {
        key.zeroize();
        return Err(Failure::usage(format!("cannot use {flag}: {e}")));
    }
    Ok(key)
}

/// The peer decides, by its own clock; but nobody should have to find out there.
fn warn_of_validity(cert: &CertificateDer<'_>, file: &Path, now: i64) {
    let Some((from, until)) = validity(cert) else { return };
    let file = file.display();
    if now > until.0 {
        err_line!("WARNING: the certificate in {file} expired on {}; try a renewed one", until.1);
    } else if now < from.0 {
        err_line!(
            "WARNING: the certificate in {file} is not valid before {}; try again after checking this \
             machine's clock",
            from.1
        );
    }
}

/// A time in seconds since 1970, and its date in words.
type Date = (i64, String);

/// From when until when a certificate is valid (RFC 5280, section 4.1.2.5).
fn validity(cert: &[u8]) -> Option<(Date, Date)> {
    let (_, cert, _) = element(cert)?;
    let (_, mut rest, _) = element(cert)?;
    // The version, in a tag of its own, may be missing; serial number, algorithm and issuer stand before.
    if rest.first() == Some(&0xa0) {
        rest = element(rest)?.2;
    }
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (_, both, _) = element(rest)?;
    let (from_tag, from, both) = element(both)?;
    let (until_tag, until, _) = element(both)?;
    Some((date(from_tag, from)?, date(until_tag, until)?))
}

/// Tag, content and what follows of a DER element; lengths up to 2^32.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut len = usize::from(first);
    if first & 0x80 != 0 {
        let digits = usize::from(first & 0x7f);
        if digits > 4 {
            return None;
        }
        let (number, after) = rest.split_at_checked(digits)?;
        len = number.iter().fold(0, |n, b| n << 8 | usize::from(*b));
        rest = after;
    }
    let (content, after) = rest.split_at_checked(len)?;
    Some((tag, content, after))
}

/// UTCTime (two digits of the year, 1950 to 2049) or GeneralizedTime, both ending in Z.
fn date(tag: u8, text: &[u8]) -> Option<Date> {
    let text = std::str::from_utf8(text).ok().filter(|t| t.is_ascii())?;
    let full = match (tag, text.get(..2)?) {
        (0x17, yy) => format!("{}{text}", if yy < "50" { "20" } else { "19" }),
        _ => text.to_owned(),
    };
    let number = |from: usize, to: usize| full.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    let seconds = number(8, 10)? * 3_600 + number(10, 12)? * 60 + number(12, 14)?;
    // Days since 1970 by the Gregorian calendar, years counted from March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 719_469;
    Some((days * 86_400 + seconds, format!("{year:04}-{month:02}-{day:02}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn certificate_dates_parse() {
        let mut p = rcgen::CertificateParams::new(vec!["a.example".into()]).unwrap();
        p.not_before = rcgen::date_time_ymd(2024, 2, 29);
        p.not_after = rcgen::date_time_ymd(2050, 3, 1);
        let cert = p.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        let (from, until) = validity(cert.der()).unwrap();
        assert_eq!(from, (1_709_164_800, "2024-02-29".into()));
        assert_eq!(until, (2_529_705_600, "2050-03-01".into()));
        assert_eq!(date(0x17, b"700101000000Z"), Some((0, "1970-01-01".into())));
        assert_eq!(date(0x17, b"691231235959Z"), Some((-1, "1969-12-31".into())));
        assert_eq!(date(0x17, b"7001"), None);
    }

    #[test]
    fn certificates_match_only_their_names() {
        let p = rcgen::CertificateParams::new(vec!["a.example".into(), "192.0.2.1".into()]).unwrap();
        let cert = p.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        let check = |n: &str| is_for(cert.der(), &names(&["x.example".into(), n.into()]).unwrap());
        assert!(check("a.example") && check("192.0.2.1"));
        assert!(!check("b.example") && !check("192.0.2.2") && !check("example"));
        assert!(names(&["not a name".into()]).unwrap_err().text.contains("DNS name"));
    }

    proptest! {
        #[test]
        fn certificate_parser_accepts_any_input_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = validity(&bytes);
            let _ = date(0x18, &bytes);
        }
    }
}
