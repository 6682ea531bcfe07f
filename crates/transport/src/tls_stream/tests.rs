//! Tests of TLS streams between two ends in memory.

use super::*;
use crate::crypto::{ClientAuth, Credentials, Identity, PublicKey, ServerTrust};
use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair as CertKey};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;

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
fn anybody() -> Authority {
    Authority { keys: None, tokens: Vec::new() }
}

/// Two ends, and what they have found.
struct Pair {
    ends: [TlsStream; 2],
    got: [Vec<u8>; 2],
    established: [bool; 2],
    closed: [bool; 2],
    failed: [Option<CloseReason>; 2],
    /// Bytes under way to each end.
    wire: [Vec<u8>; 2],
    /// The server's user refuses with these words.
    refusal: Option<&'static str>,
}

const CLIENT: usize = 0;
const SERVER: usize = 1;

impl Pair {
    fn new(client: TlsStream, server: TlsStream) -> Pair {
        Pair {
            ends: [client, server],
            got: Default::default(),
            established: [false; 2],
            closed: [false; 2],
            failed: [None, None],
            wire: Default::default(),
            refusal: None,
        }
    }

    /// Client with key 1, server with key 2.
    fn raw(
        trust: &ServerTrust,
        auth: &ClientAuth,
        authority: Authority,
        token: Option<OneTimeToken>,
    ) -> Pair {
        let c = ClientSetup::new(&raw(1), trust).unwrap();
        let s = ServerSetup::new(&raw(2), auth).unwrap();
        let c = TlsStream::client(&c, "any name at all", token, NOW).unwrap();
        Pair::new(c, TlsStream::server(&s, authority, NOW).unwrap())
    }

    fn open() -> Pair {
        let mut p = Pair::raw(&ServerTrust::FirstUse, &ClientAuth::AnyKey, anybody(), None);
        p.run(1 << 20);
        assert_eq!((p.established, p.failed.clone()), ([true; 2], [None, None]));
        p
    }

    /// What an end has to send goes on the wire.
    fn flush(&mut self, from: usize, n: usize) -> bool {
        let out = self.ends[from].outgoing();
        let n = n.min(out.len());
        self.wire[1 - from].extend_from_slice(&out[..n]);
        self.ends[from].on_sent(n);
        n > 0
    }

    /// An end takes `n` bytes from the wire.
    fn take(&mut self, to: usize, n: usize) -> bool {
        let n = n.min(self.wire[to].len());
        if n == 0 {
            return false;
        }
        let bytes: Vec<u8> = self.wire[to].drain(..n).collect();
        let mut input = &bytes[..];
        loop {
            match self.ends[to].receive(&mut input) {
                Ok(Some(TlsEvent::Established)) => {
                    self.established[to] = true;
                    match self.refusal {
                        _ if to == CLIENT => {}
                        None => self.ends[to].admit(),
                        Some(words) => self.ends[to].refuse(code::UNAUTHORISED as u8, words),
                    }
                }
                Ok(Some(TlsEvent::Plain(run))) => {
                    assert!(!run.is_empty());
                    self.got[to].extend_from_slice(run);
                }
                Ok(Some(TlsEvent::PeerClosed)) => self.closed[to] = true,
                Ok(None) => break,
                Err(e) => {
                    assert!(self.failed[to].as_ref().is_none_or(|f| *f == e), "failed for good");
                    self.failed[to] = Some(e);
                    break;
                }
            }
        }
        assert!(input.is_empty() || self.failed[to].is_some(), "all is taken");
        true
    }

    /// Moves bytes both ways, `piece` at a time, until nothing moves.
    fn run(&mut self, piece: usize) {
        while (0..2).fold(false, |moved, end| moved | self.flush(end, piece) | self.take(1 - end, piece)) {}
    }

    fn reason(&self, end: usize) -> String {
        self.failed[end].as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
    }
}

#[test]
fn raw_keys_both_ways_in_pieces_of_any_size() {
    for piece in [1, 5, 100, 1448, 1 << 20] {
        let keys = Authority { keys: Some(vec![key(1)]), tokens: Vec::new() };
        let auth = ClientAuth::Keys(vec![key(1), key(8)]);
        let mut p = Pair::raw(&ServerTrust::Pinned(vec![key(9), key(2)]), &auth, keys, None);
        assert_eq!(p.ends[CLIENT].write(b"too early"), 0);
        p.run(piece);
        assert_eq!((p.established, p.failed.clone()), ([true; 2], [None, None]), "{piece}");
        assert_eq!(p.ends[CLIENT].peer(), Some(&PeerIdentity::RawKey(key(2))));
        assert_eq!(p.ends[SERVER].peer(), Some(&PeerIdentity::RawKey(key(1))));
        assert!(p.ends[CLIENT].suite().is_some() && p.ends[CLIENT].suite() == p.ends[SERVER].suite());
        let data: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        for end in 0..2 {
            assert_eq!(p.ends[end].write(&data), data.len());
        }
        p.run(piece);
        assert!(p.got.iter().all(|g| *g == data), "{piece}");
        p.ends[CLIENT].close_notify();
        assert_eq!(p.ends[CLIENT].write(b"after the end"), 0);
        p.run(piece);
        assert_eq!((p.closed, p.ends[SERVER].on_eof()), ([false, true], Ok(())));
        // The other direction is open still.
        assert_eq!(p.ends[SERVER].write(b"bye"), 3);
        p.run(piece);
        assert!(p.got[CLIENT].ends_with(b"bye"));
    }
}

#[test]
fn gathered_writes_fill_records() {
    let mut p = Pair::open();
    let parts: Vec<IoSlice<'_>> = (0..3000).map(|_| IoSlice::new(b"0123456789a")).collect();
    assert_eq!(p.ends[CLIENT].write_gather(&parts), 33_000);
    assert_eq!(p.ends[CLIENT].outgoing().len(), 33_000 + 3 * 22, "three records");
    p.run(1000);
    assert_eq!(p.got[SERVER], b"0123456789a".repeat(3000));
}

#[test]
fn unsent_bytes_are_bounded() {
    let mut p = Pair::open();
    let much = vec![3; 2 * MAX_UNSENT];
    assert_eq!(p.ends[CLIENT].write(&much), MAX_UNSENT);
    assert_eq!(p.ends[CLIENT].write(&much), 0);
    assert!(p.ends[CLIENT].outgoing().len() < MAX_UNSENT + MAX_UNSENT / 500);
    assert!(p.flush(CLIENT, MAX_UNSENT / 2));
    let more = p.ends[CLIENT].write(&much);
    assert!(more > 0 && more <= MAX_UNSENT / 2);
    p.run(1 << 20);
    assert_eq!(p.got[SERVER].len(), MAX_UNSENT + more);
}

#[test]
fn client_rejects_a_wrong_server_key() {
    for trust in [ServerTrust::Pinned(vec![key(3)]), ServerTrust::Fingerprint(key(3).fingerprint())] {
        let mut p = Pair::raw(&trust, &ClientAuth::AnyKey, anybody(), None);
        p.run(1 << 20);
        assert_eq!(p.established, [false; 2]);
        assert!(p.reason(CLIENT).contains("ApplicationVerificationFailure"), "{}", p.reason(CLIENT));
        assert!(p.reason(SERVER).contains("(code 0x131)"), "access_denied: {}", p.reason(SERVER));
        assert_eq!((p.ends[CLIENT].peer(), p.ends[SERVER].peer()), (None, None));
    }
}

#[test]
fn matching_fingerprint_is_accepted() {
    let trust = ServerTrust::Fingerprint(key(2).fingerprint());
    let mut p = Pair::raw(&trust, &ClientAuth::AnyKey, anybody(), None);
    p.run(1 << 20);
    assert_eq!(p.established, [true; 2]);
}

#[test]
fn rejected_client_receives_a_reason() {
    let auth = ClientAuth::Keys(vec![key(5)]);
    let mut p = Pair::raw(&ServerTrust::FirstUse, &auth, anybody(), None);
    p.run(1 << 20);
    // TLS 1.3: the client was done first.
    assert_eq!(p.established, [true, false]);
    assert!(p.reason(SERVER).contains("ApplicationVerificationFailure"), "{}", p.reason(SERVER));
    assert!(p.reason(CLIENT).contains("closed by the peer") && p.reason(CLIENT).contains("0x131"));
}

#[test]
fn unlisted_client_without_a_token_receives_advice() {
    let one = OneTimeToken::new([7; 32], None);
    for tokens in [vec![], vec![one]] {
        let authority = Authority { keys: Some(vec![key(5)]), tokens };
        let mut p = Pair::raw(&ServerTrust::FirstUse, &ClientAuth::AnyKey, authority, None);
        p.run(3);
        assert_eq!(p.established, [true, false]);
        assert_eq!(p.failed[SERVER], Some(CloseReason::Handshake(UNAUTHORISED.to_owned())));
        let told = CloseReason::Peer { code: code::UNAUTHORISED, reason: UNAUTHORISED.to_owned() };
        assert_eq!(p.failed[CLIENT], Some(told));
        assert_eq!(p.ends[CLIENT].write(b"x"), 0);
    }
}

#[test]
fn one_time_tokens() {
    let token = |n| OneTimeToken::new([n; 32], None);
    let run = |listed: bool, offered: Option<OneTimeToken>| {
        let keys = Some(if listed { vec![key(1)] } else { vec![] });
        let authority = Authority { keys, tokens: vec![token(6), token(7)] };
        let mut p = Pair::raw(&ServerTrust::FirstUse, &ClientAuth::AnyKey, authority, offered);
        p.run(10);
        (p.established[SERVER], p.ends[SERVER].token_used().map(OneTimeToken::id))
    };
    assert_eq!(run(false, Some(token(7))), (true, Some(token(7).id())), "right");
    assert_eq!(run(false, Some(token(8))), (false, None), "wrong");
    assert_eq!(run(false, None), (false, None), "none");
    assert_eq!(run(true, Some(token(7))), (true, None), "not needed, so not used up");
}

#[test]
fn application_can_refuse_a_used_token() {
    let token = OneTimeToken::new([7; 32], None);
    let authority = Authority { keys: Some(vec![]), tokens: vec![token.clone()] };
    let mut p = Pair::raw(&ServerTrust::FirstUse, &ClientAuth::AnyKey, authority, Some(token));
    let long = "this one-time token was used before: ask for another. ".repeat(9) + "ä";
    p.refusal = Some(Box::leak(long.into_boxed_str()));
    p.run(7);
    let Some(CloseReason::Peer { code: 6, reason }) = &p.failed[CLIENT] else { panic!("{:?}", p.failed) };
    assert!(reason.starts_with("this one-time token was used before") && reason.len() == MAX_WORDS);
    assert_eq!(p.failed[SERVER], None);
    assert_eq!(p.ends[SERVER].write(b"x"), 0);
}

#[test]
fn token_proofs_are_bound_to_the_connection() {
    let p = [Pair::open(), Pair::open()];
    let of = |pair: usize, end: usize| *p[pair].ends[end].binding().unwrap();
    assert_eq!(of(0, CLIENT), of(0, SERVER));
    assert_ne!(of(0, CLIENT), of(1, CLIENT));
}

#[test]
fn no_plaintext_is_released_before_admission() {
    let mut p = Pair::raw(&ServerTrust::FirstUse, &ClientAuth::AnyKey, anybody(), None);
    p.flush(CLIENT, 1 << 20);
    p.take(SERVER, 1 << 20);
    p.flush(SERVER, 1 << 20);
    p.take(CLIENT, 1 << 20);
    assert!(p.established[CLIENT]);
    assert_eq!(p.ends[CLIENT].write(b"right behind"), 12);
    p.flush(CLIENT, 1 << 20);
    let bytes = std::mem::take(&mut p.wire[SERVER]);
    let mut input = &bytes[..];
    let server = &mut p.ends[SERVER];
    assert_eq!(server.receive(&mut input), Ok(Some(TlsEvent::Established)));
    assert_eq!(server.receive(&mut input), Ok(None));
    assert_eq!(server.write(b"not yet"), 0);
    server.admit();
    assert_eq!(server.receive(&mut input), Ok(Some(TlsEvent::Plain(b"right behind"))));
    assert_eq!(server.receive(&mut input), Ok(None));
    assert!(input.is_empty());
}

#[test]
fn truncation_is_distinguished_from_a_clean_close() {
    let mut p = Pair::open();
    p.ends[CLIENT].write(b"half of a rec");
    p.flush(CLIENT, 20);
    p.take(SERVER, 20);
    assert_eq!(p.ends[SERVER].on_eof(), Err(CloseReason::CutOff));
    assert_eq!(p.ends[SERVER].receive(&mut &b""[..]), Err(CloseReason::CutOff));
    let mut p = Pair::open();
    p.ends[CLIENT].write(b"all");
    p.ends[CLIENT].close_notify();
    p.ends[CLIENT].close_notify();
    p.run(1);
    assert_eq!((&p.got[SERVER][..], p.closed[SERVER]), (&b"all"[..], true));
    assert!(p.ends[SERVER].is_peer_closed());
    // RFC 8446, section 6.1: what comes behind is ignored.
    p.wire[SERVER].extend_from_slice(b"garbage");
    p.take(SERVER, 100);
    assert_eq!((p.ends[SERVER].on_eof(), p.failed[SERVER].clone()), (Ok(()), None));
    let mut p = Pair::raw(&ServerTrust::FirstUse, &ClientAuth::AnyKey, anybody(), None);
    let e = p.ends[CLIENT].on_eof().unwrap_err();
    assert!(e.to_string().contains("plain iWARP"), "{e}");
}

#[test]
fn errors_are_detected_after_close_notify() {
    let mut p = Pair::open();
    p.ends[CLIENT].close_notify();
    p.ends[SERVER].write(b"sound");
    p.run(1 << 20);
    assert_eq!(p.got[CLIENT], b"sound");
    p.wire[CLIENT].extend_from_slice(b"GET / HTTP/1.1");
    p.take(CLIENT, 100);
    assert!(matches!(p.failed[CLIENT], Some(CloseReason::Violation(_))), "{:?}", p.failed);
    // Before the handshake is complete, it is all over.
    let mut p = Pair::raw(&ServerTrust::FirstUse, &ClientAuth::AnyKey, anybody(), None);
    p.ends[CLIENT].close_notify();
    p.run(1 << 20);
    assert_eq!((p.established, p.failed[CLIENT].clone()), ([false; 2], Some(CloseReason::Local)));
    assert!(p.reason(SERVER).contains("closed by the peer"), "{}", p.reason(SERVER));
}

#[test]
fn plain_iwarp_is_recognised_by_its_first_byte() {
    let mut p = Pair::raw(&ServerTrust::FirstUse, &ClientAuth::AnyKey, anybody(), None);
    assert!(looks_like_tls(p.ends[CLIENT].outgoing()[0]) && !looks_like_tls(b'M'));
    p.wire[SERVER].extend_from_slice(b"MPA ID Req Frame");
    p.take(SERVER, 3);
    assert!(p.reason(SERVER).contains("plain iWARP"), "{}", p.reason(SERVER));
}

#[test]
fn flipped_bits_are_always_detected() {
    let clean: Vec<u8> = {
        let mut p = Pair::open();
        p.ends[CLIENT].write(&[5; 50]);
        p.ends[CLIENT].outgoing().to_vec()
    };
    for at in 0..clean.len() {
        let mut p = Pair::open();
        p.ends[CLIENT].write(&[5; 50]);
        p.flush(CLIENT, 1000);
        p.wire[SERVER][at] ^= 0x10;
        p.take(SERVER, 1000);
        if at == 2 {
            // RFC 8446, section 5.1: legacy_record_version MUST be ignored for all purposes.
            assert_eq!(p.got[SERVER], [5; 50]);
            continue;
        }
        assert!(p.got[SERVER].is_empty());
        // A length that grew is waited for.
        assert!(p.failed[SERVER].is_some() || p.ends[SERVER].on_eof().is_err(), "{at}");
    }
}

#[test]
fn oversized_records_close_the_stream() {
    for (header, established) in [([0x17, 3, 3, 0xff, 0xff], true), ([0x16, 3, 1, 0xff, 0xff], false)] {
        let mut p = Pair::raw(&ServerTrust::FirstUse, &ClientAuth::AnyKey, anybody(), None);
        if established {
            p = Pair::open();
        }
        p.wire[SERVER].extend_from_slice(&header);
        p.wire[SERVER].extend_from_slice(&[0; 40_000]);
        p.take(SERVER, 1 << 20);
        assert!(p.failed[SERVER].is_some());
        assert!(!p.ends[SERVER].outgoing().is_empty(), "an alert");
    }
}

#[test]
fn handshake_floods_close_the_stream() {
    // Records of a ClientHello that claims 16 MB, of one that claims 60,000 bytes, and of nothing but alerts.
    for (first, typ) in [([1, 0xff, 0xff, 0xff], 0x16), ([1, 0, 0xea, 0x60], 0x16), ([1, 0, 1, 0], 0x15)] {
        let mut p = Pair::raw(&ServerTrust::FirstUse, &ClientAuth::AnyKey, anybody(), None);
        let mut sent = 0;
        while p.failed[SERVER].is_none() && sent <= 2 * MAX_HANDSHAKE {
            let body = if typ == 0x15 { vec![1, 90] } else { [&first[..], &[0; 996]].concat() };
            let head = [typ, 3, 3, (body.len() >> 8) as u8, body.len() as u8];
            p.wire[SERVER].extend_from_slice(&[&head[..], &body].concat());
            sent += 5 + body.len();
            p.take(SERVER, 1 << 20);
        }
        assert!(p.failed[SERVER].is_some() && sent <= MAX_HANDSHAKE + 1005, "{typ:#x}: {sent}");
    }
}

/// An end that follows its own rules inside TLS: plain rustls with our credentials.
fn stranger_client(alpn: &[&[u8]]) -> rustls::ClientConnection {
    let setup = ClientSetup::new(&raw(1), &ServerTrust::FirstUse).unwrap();
    let mut config = (*setup.stream_config()).clone();
    config.alpn_protocols = alpn.iter().map(|a| a.to_vec()).collect();
    rustls::ClientConnection::new(Arc::new(config), "longhaul.invalid".try_into().unwrap()).unwrap()
}

/// Talks until nothing moves, then the client says `word`; what the server made of it.
fn talk(alpn: &[&[u8]], word: &[u8]) -> (Result<(), CloseReason>, Vec<u8>) {
    let mut c = stranger_client(alpn);
    let setup = ServerSetup::new(&raw(2), &ClientAuth::AnyKey).unwrap();
    let mut s = TlsStream::server(&setup, anybody(), NOW).unwrap();
    let mut result = Ok(());
    for round in 0..6 {
        if round == 3 {
            let _ = c.writer().write_all(word);
        }
        let mut bytes = Vec::new();
        while c.wants_write() {
            c.write_tls(&mut bytes).unwrap();
        }
        let mut input = &bytes[..];
        loop {
            match s.receive(&mut input) {
                Ok(Some(TlsEvent::Established)) => s.admit(),
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
        let mut input = s.outgoing();
        while !input.is_empty() && c.read_tls(&mut input).unwrap() > 0 {
            let _ = c.process_new_packets();
        }
        let n = s.outgoing().len();
        s.on_sent(n);
    }
    let mut got = Vec::new();
    let _ = c.reader().read_to_end(&mut got);
    (result, got)
}

#[test]
fn missing_or_other_alpn_is_refused() {
    assert_eq!(talk(&[tls::STREAM_ALPN], &[NO_TOKEN]), (Ok(()), vec![WELCOME]));
    assert_eq!(talk(&[b"h2", tls::STREAM_ALPN], &[NO_TOKEN]), (Ok(()), vec![WELCOME]));
    for alpn in [&[b"h2" as &[u8]][..], &[tls::ALPN], &[]] {
        let (result, got) = talk(alpn, &[NO_TOKEN]);
        assert!(matches!(result, Err(CloseReason::Handshake(_))), "{result:?}");
        assert!(got.is_empty());
    }
}

#[test]
fn unknown_first_messages_are_refused() {
    for other in [2, 0x16, b'M', 255] {
        let (result, got) = talk(&[tls::STREAM_ALPN], &[other; 40]);
        assert!(matches!(result, Err(CloseReason::Violation(_))) && got.is_empty(), "{result:?}");
    }
}

#[test]
fn keys_change_during_the_stream() {
    // A peer that changes its keys, and asks us to.
    let mut p = Pair::open();
    for end in [CLIENT, SERVER, CLIENT] {
        p.ends[end].tls.refresh_traffic_keys().unwrap();
        for end in 0..2 {
            p.ends[end].write(b"before and after");
        }
        p.run(9);
    }
    assert_eq!((p.failed.clone(), p.got[SERVER].len(), p.got[CLIENT].len()), ([None, None], 48, 48));
}

#[test]
fn key_update_floods_close_the_stream() {
    let mut p = Pair::open();
    for _ in 0..1000 {
        p.ends[CLIENT].tls.refresh_traffic_keys().unwrap();
        p.ends[CLIENT].collect();
        p.flush(CLIENT, 1 << 20);
        p.take(SERVER, 1 << 20);
        assert!(p.ends[SERVER].outgoing().len() < 4096);
    }
    assert!(p.failed[SERVER].is_some());
}

/// A root, and certificates it signs, good from 2025-06-01 to 2026-06-01.
struct Root {
    params: CertificateParams,
    key: CertKey,
    der: CertificateDer<'static>,
}

impl Root {
    fn new(name: &str) -> Root {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = CertKey::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().clone();
        Root { params, key, der }
    }

    fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose) -> Credentials {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
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
}

/// Certificates of `issuer`, checked against the roots that client and server trust.
fn x509(issuer: &Root, of_client: &Root, of_server: &Root, name: &str, times: (u64, u64)) -> Pair {
    let trust = ServerTrust::X509 { roots: vec![of_client.der.clone()] };
    let auth = ClientAuth::X509 { roots: vec![of_server.der.clone()] };
    let c = issuer.issue("client.test", ExtendedKeyUsagePurpose::ClientAuth);
    let s = issuer.issue("server.test", ExtendedKeyUsagePurpose::ServerAuth);
    let c = TlsStream::client(&ClientSetup::new(&c, &trust).unwrap(), name, None, times.0).unwrap();
    let authority = Authority { keys: Some(vec![]), tokens: Vec::new() };
    let s = TlsStream::server(&ServerSetup::new(&s, &auth).unwrap(), authority, times.1).unwrap();
    let mut p = Pair::new(c, s);
    p.run(777);
    p
}

#[test]
fn certificates_good_and_bad() {
    let (ours, theirs) = (Root::new("Ours"), Root::new("Theirs"));
    let p = x509(&ours, &ours, &ours, "server.test", (NOW, NOW));
    assert_eq!((p.established, p.failed.clone()), ([true; 2], [None, None]));
    assert!(matches!(p.ends[SERVER].peer(), Some(PeerIdentity::X509(chain)) if chain.len() == 1));
    let fails = |p: Pair, end: usize, local: &str, remote: &str| {
        assert!(!p.established[SERVER]);
        let (l, r) = (p.reason(end), p.reason(1 - end));
        assert!(l.starts_with("handshake failed") && l.contains(local), "{l}");
        assert!(r.contains("closed by the peer") && r.contains(remote), "{r}");
    };
    fails(x509(&ours, &ours, &ours, "other.test", (NOW, NOW)), CLIENT, "not valid for name", "0x12a");
    fails(x509(&ours, &ours, &ours, "server.test", (NOW + YEAR, NOW)), CLIENT, "expired", "expired");
    fails(x509(&ours, &ours, &ours, "server.test", (NOW, NOW + YEAR)), SERVER, "expired", "expired");
    fails(x509(&ours, &theirs, &ours, "server.test", (NOW, NOW)), CLIENT, "UnknownIssuer", "UnknownIssuer");
    fails(x509(&ours, &ours, &theirs, "server.test", (NOW, NOW)), SERVER, "UnknownIssuer", "UnknownIssuer");
}

#[test]
fn raw_key_and_certificate_ends_do_not_connect() {
    let root = Root::new("Ours");
    let trust = ServerTrust::X509 { roots: vec![root.der.clone()] };
    // An address is a name, too.
    let c = TlsStream::client(&ClientSetup::new(&raw(1), &trust).unwrap(), "192.0.2.1", None, NOW).unwrap();
    let s = ServerSetup::new(&raw(2), &ClientAuth::AnyKey).unwrap();
    let mut p = Pair::new(c, TlsStream::server(&s, anybody(), NOW).unwrap());
    p.run(1 << 20);
    assert_eq!(p.established, [false; 2]);
    assert!(p.failed.iter().all(Option::is_some), "{:?}", p.failed);
    for end in 0..2 {
        assert!(p.reason(end).contains("CertificateTypeExtension"), "{}", p.reason(end));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn arbitrary_chunking_is_handled(steps in proptest::collection::vec((0usize..2, 0usize..4, 1usize..9000), 1..200)) {
        let mut p = Pair::raw(&ServerTrust::FirstUse, &ClientAuth::AnyKey, anybody(), None);
        let mut written = [0usize; 2];
        let byte = |at: usize| ((at * 31) >> 3) as u8;
        for (end, what, n) in steps {
            match what {
                0 => {
                    let data: Vec<u8> = (written[end]..written[end] + n).map(byte).collect();
                    written[end] += p.ends[end].write(&data);
                }
                1 | 2 => { p.flush(end, n); }
                _ => { p.take(end, n); }
            }
        }
        p.run(1 << 20);
        prop_assert_eq!(p.failed.clone(), [None, None]);
        for (end, written) in written.into_iter().enumerate() {
            let want: Vec<u8> = (0..written).map(byte).collect();
            prop_assert_eq!(&p.got[1 - end], &want);
        }
    }

    #[test]
    fn garbage_closes_the_stream_or_waits_for_more(bytes in proptest::collection::vec(any::<u8>(), 1..3000), up: bool, to in 0usize..2) {
        let mut p = if up {
            Pair::open()
        } else {
            Pair::raw(&ServerTrust::FirstUse, &ClientAuth::AnyKey, anybody(), None)
        };
        p.wire[to].extend_from_slice(&bytes);
        p.take(to, 1 << 20);
        prop_assert!(p.got[to].is_empty());
        prop_assert!(p.ends[to].on_eof().is_err());
    }
}
