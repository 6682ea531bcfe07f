//! Remedies for failures of authentication: which end has to change what. TLS reports only what is wrong.

use crate::exit::{Code, Failure};
use transport::error::code;

/// The authentication options of this end on which the remedy depends.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrustContext {
    /// It shows a certificate (`--cert`), not its key.
    pub shows_certificate: bool,
    /// It wants a certificate of the server (`--ca`), not a known key.
    pub wants_certificate: bool,
    /// It presents a one-time token.
    pub token: bool,
    /// It connects by iWARP: without TLS?
    pub plain: Option<bool>,
}

/// Adds the remedy to a failure of authentication, or of TLS at one end only; other failures are unchanged.
pub fn explain(f: Failure, m: TrustContext) -> Failure {
    if let Some(r) = m.plain.and_then(|plain| tls_at_one_end(&f, plain)) {
        return Failure { code: Code::Connect, text: format!("{}\n{r}", f.text), ..f };
    }
    match remedy(&f, m) {
        Some(r) => Failure { code: Code::Untrusted, text: format!("{}\n{r}", f.text), ..f },
        None => f,
    }
}

/// The remedy, by the peer's error code, or by the message of TLS at either end.
fn remedy(f: &Failure, m: TrustContext) -> Option<String> {
    let has = |w: &str| f.text.contains(w);
    match f.peer {
        Some(code::UNAUTHORISED) => return unauthorised_hint(m).map(str::to_owned),
        // The failure is not of TLS.
        Some(code) if !(code::TLS..code::APPLICATION).contains(&code) => return None,
        _ => {}
    }
    if has("CertificateTypeExtension") || has("RawPublicKey") {
        return Some(mismatch(m));
    }
    // The peer's words are about what this end shows; this end's, about what the server shows.
    let own = f.peer.is_some();
    let pick = |of_own: &str, of_server: &str| Some(if own { of_own } else { of_server }.to_owned());
    if has("UnknownIssuer") || has("BadSignature") {
        pick(
            "the server trusts no issuer of this end's certificate; try another one with --cert, followed by its \
             intermediate certificates, or have its root added to the server's --ca",
            "the server's certificate was issued by none of the roots in --ca; try to add its root there, or have \
             the intermediate certificates added to the server's --cert",
        )
    } else if has("ertificate expired") || has("Expired") {
        pick(
            "this end's certificate has expired; try a renewed one with --cert, or check the server's clock",
            "the server's certificate has expired; try again when it is renewed, or check this machine's clock",
        )
    } else if has("not valid yet") || has("NotValidYet") {
        pick(
            "this end's certificate is not valid yet; try again after checking both clocks",
            "the server's certificate is not valid yet; try again after checking both clocks",
        )
    } else if has("not valid for name") || has("NotValidForName") {
        let text = "the server's certificate is for other names; try a name or address that it holds \
                    (subjectAltName), or have it issued for this one";
        Some(text.to_owned())
    } else if has("NotPermittedForPurpose") || has("urpose") || has("extended key usage") {
        pick(
            "this end's certificate is not for clients; try one whose extended key usage allows clientAuth",
            "the server's certificate is not for servers; try one there whose extended key usage allows serverAuth",
        )
    } else if has("no certificates") || has("NoCertificatesPresented") || has("CertificateRequired") {
        pick(
            "the server requires an X.509 certificate; try --cert FILE and --key FILE",
            "the server presents no certificate; try without --ca",
        )
    } else if has("ApplicationVerificationFailure") && m.token && !own {
        Some("the token is for another server; try another address, or a token of this server".to_owned())
    } else {
        None
    }
}

/// By iWARP: the other end does not have what this one begins with, TLS or none. A server of ours ends such a connection at
/// once, and so do others.
fn tls_at_one_end(f: &Failure, plain: bool) -> Option<&'static str> {
    let no_tls = f.text.contains("InvalidContentType");
    let ended = f.peer.is_none()
        && f.code == Code::Connect
        && ["reset by peer", "was lost", "cut it off"].iter().any(|w| f.text.contains(w));
    match plain {
        false if no_tls || ended => Some(
            "the server may speak iWARP without TLS (--iwarp plain), or no iWARP; try --plain, which encrypts nothing",
        ),
        true if ended => {
            Some("the server may require TLS (--iwarp tls), speak no iWARP, or be full; try without --plain")
        }
        _ => None,
    }
}

fn unauthorised_hint(m: TrustContext) -> Option<&'static str> {
    match m {
        TrustContext { token: true, .. } => Some(
            "the token was used already or has expired; try a new one (on the server: longhaul keys token)",
        ),
        // The server's words say it: names.
        TrustContext { shows_certificate: true, .. } => None,
        _ => Some(
            "try `longhaul keys show` here and `longhaul keys authorize FILE` on the server, or a one-time token for \
             --token (`longhaul keys token` on the server)",
        ),
    }
}

/// One end speaks of keys and the other of certificates. TLS does not tell in which direction.
fn mismatch(m: TrustContext) -> String {
    let shows = if m.shows_certificate {
        "a certificate (without --cert, its key)"
    } else {
        "its key (if the server requires an X.509 certificate, try --cert FILE)"
    };
    let wants = if m.wants_certificate {
        "a certificate (if the server presents a key, try without --ca)"
    } else {
        "a key (if the server presents an X.509 certificate, try --ca FILE with its root)"
    };
    format!(
        "one end uses keys and the other certificates: this end presents {shows}, and expects of the server {wants}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, m: TrustContext) -> Failure {
        explain(Failure::new(Code::Connect, text), m)
    }

    /// Closed by the peer.
    fn by_peer(code: u64, text: &str, m: TrustContext) -> Failure {
        explain(Failure { peer: Some(code), ..Failure::new(Code::Connect, text) }, m)
    }

    #[test]
    fn remedy_addresses_the_end_at_fault() {
        let m = TrustContext { shows_certificate: true, wants_certificate: true, ..TrustContext::default() };
        let f = of("handshake failed: invalid peer certificate: UnknownIssuer", m);
        assert_eq!(f.code, Code::Untrusted);
        assert!(f.text.contains("none of the roots in --ca"), "{f}");
        let f = by_peer(0x130, "handshake failed: invalid peer certificate: UnknownIssuer", m);
        assert!(f.text.contains("--cert"), "{f}");
    }

    #[test]
    fn failures_unrelated_to_trust_are_unchanged() {
        let f = of("nothing heard from the peer for 30 s", TrustContext::default());
        assert_eq!((f.code, f.text.as_str()), (Code::Connect, "nothing heard from the peer for 30 s"));
        for words in ["closed by the peer: no (code 0x6)", "UnknownIssuer", "CertificateRequired"] {
            let f = by_peer(code::BUSY, words, TrustContext::default());
            assert_eq!((f.code, f.text.as_str()), (Code::Connect, words), "a peer's words decide nothing");
        }
    }

    #[test]
    fn tls_mismatch_is_explained() {
        let reset = "cannot connect to h:1: the connection by iWARP to h:1 failed: Connection reset by peer";
        let m = |plain| TrustContext { plain: Some(plain), ..TrustContext::default() };
        assert!(of(reset, m(true)).text.contains("try without --plain"));
        assert!(of(reset, m(false)).text.contains("try --plain"));
        let f = of("handshake failed: received corrupt message of type InvalidContentType", m(false));
        assert!(f.code == Code::Connect && f.text.contains("try --plain"), "{f}");
        // Once it was up, it is something else.
        let f = explain(Failure::new(Code::Interrupted, "Connection reset by peer"), m(true));
        assert_eq!(f.text, "Connection reset by peer");
        assert_eq!(of(reset, TrustContext::default()).text, reset);
    }

    #[test]
    fn unauthorised_clients_learn_how_to_connect() {
        let turned_away = |m| by_peer(code::UNAUTHORISED, "no", m).text;
        assert!(turned_away(TrustContext::default()).contains("longhaul keys authorize"));
        let token = TrustContext { token: true, ..TrustContext::default() };
        assert!(turned_away(token).contains("used already"));
    }
}
