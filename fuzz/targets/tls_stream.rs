//! TLS for byte streams with a peer of any kind, in both roles: bytes that are no TLS, a handshake that is cut, changed or
//! mixed with other bytes, and a peer who is authenticated and then says what it wants, in the first word or after it.
//!
//! No panic; nobody is let in without the key or the token; what is given out is what the peer said behind its first
//! word, from the start and without a gap, whatever happens on the way; and what waits to be sent has a limit.
//!
//! Input: byte 0 chooses the victim and whom it lets in; then operations, a byte each with its arguments.

#![no_main]

mod bytes;
mod careless;

use bytes::Bytes;
use careless::Careless;
use libfuzzer_sys::fuzz_target;
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use std::io::Write as _;
use std::sync::{Arc, OnceLock};
use transport::connection::Authority;
use transport::crypto::{
    ClientAuth, ClientSetup, Credentials, Identity, OneTimeToken, PeerIdentity, ServerSetup, ServerTrust,
    Side, tls,
};
use transport::{TlsEvent, TlsStream, tls_stream};

/// Operations of one input at most.
const MAX_OPS: usize = 256;
/// Bytes that may wait to be sent: what was written, records' overhead, a flight of the handshake and alerts.
const MAX_OUT: usize = tls_stream::MAX_UNSENT + (64 << 10);
const PEER: u8 = 3;
const VICTIM: u8 = 5;

fn identity(n: u8) -> Identity {
    Identity::from_seed([n; 32])
}

fn token() -> OneTimeToken {
    OneTimeToken::new([7; 32], None)
}

/// Whom the victim lets in.
#[derive(Clone, Copy, PartialEq)]
enum Trust {
    Anybody,
    ThePeer,
    /// And, a server's, those with the token.
    Others,
    /// A server's: those with the token. A client's, which shows it: anybody.
    Token,
}

/// Settings are made once: that takes longer than a handshake.
struct Setups {
    client: [ClientSetup; 2],
    server: ServerSetup,
    peer_client: Arc<rustls::ClientConfig>,
    peer_server: Arc<rustls::ServerConfig>,
}

fn setups() -> &'static Setups {
    static SETUPS: OnceLock<Setups> = OnceLock::new();
    SETUPS.get_or_init(|| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = PrivateKeyDer::Pkcs8(identity(PEER).to_pkcs8().to_vec().into());
        let private = provider.key_provider.load_private_key(private).expect("an Ed25519 key");
        let spki = CertificateDer::from(identity(PEER).public_key().spki().to_vec());
        let certified = Arc::new(CertifiedKey::new(vec![spki], private));
        let versions = [&rustls::version::TLS13];
        let config =
            rustls::ClientConfig::builder_with_provider(provider.clone()).with_protocol_versions(&versions);
        let mut peer_client = config
            .expect("TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Careless))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified.clone())));
        peer_client.alpn_protocols = vec![tls::STREAM_ALPN.to_vec()];
        let config = rustls::ServerConfig::builder_with_provider(provider).with_protocol_versions(&versions);
        let mut peer_server = config
            .expect("TLS 1.3")
            .with_client_cert_verifier(Arc::new(Careless))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)));
        peer_server.alpn_protocols = vec![tls::STREAM_ALPN.to_vec()];
        let own = Credentials::RawKey(identity(VICTIM));
        let others = ServerTrust::Pinned(vec![identity(VICTIM).public_key()]);
        Setups {
            client: [ServerTrust::FirstUse, others]
                .map(|t| ClientSetup::new(&own, &t).expect("sound settings")),
            server: ServerSetup::new(&own, &ClientAuth::AnyKey).expect("sound settings"),
            peer_client: Arc::new(peer_client),
            peer_server: Arc::new(peer_server),
        }
    })
}

struct World {
    victim: TlsStream,
    trust: Trust,
    peer: rustls::Connection,
    /// On the way to the victim.
    wire: Vec<u8>,
    /// What the peer has said.
    said: Vec<u8>,
    /// What the victim was given.
    got: Vec<u8>,
    /// The peer has said a proof that holds.
    proven: bool,
    established: bool,
    failed: bool,
    /// What arrives is not only what the peer sent.
    tampered: bool,
    /// The victim has said its last. From then on the stream stays sound: fuzzing turns assertions on, and rustls asserts
    /// that no alert follows (see the profiles in Cargo.toml).
    closing: bool,
    /// The peer has said its last, for the same reason.
    deaf: bool,
}

impl World {
    fn new(mode: u8) -> World {
        let trust = [Trust::Anybody, Trust::ThePeer, Trust::Others, Trust::Token][usize::from(mode >> 1 & 3)];
        let all = setups();
        let (victim, peer) = if mode & 1 == 0 {
            let keys = match trust {
                Trust::Anybody => None,
                Trust::ThePeer => Some(vec![identity(PEER).public_key()]),
                Trust::Others => Some(vec![identity(VICTIM).public_key()]),
                Trust::Token => Some(Vec::new()),
            };
            let authority = Authority { keys, tokens: vec![token()] };
            let name = "longhaul.invalid".try_into().expect("a name");
            let peer = rustls::ClientConnection::new(all.peer_client.clone(), name).expect("sound settings");
            (TlsStream::server(&all.server, authority, 0), rustls::Connection::Client(peer))
        } else {
            let peer = rustls::ServerConnection::new(all.peer_server.clone()).expect("sound settings");
            let setup = &all.client[usize::from(trust == Trust::Others)];
            let victim = TlsStream::client(setup, "", (trust == Trust::Token).then(token), 0);
            (victim, rustls::Connection::Server(peer))
        };
        World {
            victim: victim.expect("sound settings"),
            trust,
            peer,
            wire: Vec::new(),
            said: Vec::new(),
            got: Vec::new(),
            proven: false,
            established: false,
            failed: false,
            tampered: false,
            closing: false,
            deaf: false,
        }
    }

    /// The victim takes bytes.
    fn arrive(&mut self, bytes: &[u8], refuse: bool) {
        let mut input = bytes;
        loop {
            match self.victim.receive(&mut input) {
                Ok(Some(TlsEvent::Established)) => {
                    assert!(!core::mem::replace(&mut self.established, true), "established once");
                    let who = PeerIdentity::RawKey(identity(PEER).public_key());
                    assert_eq!(self.victim.peer(), Some(&who));
                    self.victim.write(b"before it is let in, a server says nothing");
                    if refuse {
                        self.victim.refuse(6, "not today");
                    } else {
                        self.victim.admit();
                    }
                }
                Ok(Some(TlsEvent::Plain(run))) => {
                    assert!(self.established && !run.is_empty());
                    self.got.extend_from_slice(run);
                }
                Ok(Some(TlsEvent::PeerClosed)) => assert!(self.victim.is_peer_closed()),
                Ok(None) => {
                    assert!(input.is_empty());
                    break;
                }
                Err(_) => {
                    self.failed = true;
                    break;
                }
            }
            assert!(!self.failed, "failed for good");
        }
        self.check();
    }

    fn check(&self) {
        assert!(self.victim.outgoing().len() <= MAX_OUT);
        if !self.established {
            assert!(self.got.is_empty());
            return;
        }
        let server = self.victim.side() == Side::Server;
        match self.trust {
            Trust::Others | Trust::Token if server => {
                assert!(self.proven && self.victim.token_used().is_some());
            }
            Trust::Others => panic!("the key is another"),
            _ => assert!(self.victim.token_used().is_none()),
        }
        // The word is said first, and is not part of the stream.
        let word = if server && self.said.first() == Some(&1) { 33 } else { 1 };
        let stream = self.said.get(word..).unwrap_or_default();
        assert!(stream.starts_with(&self.got), "not what the peer said");
        assert!(server || self.got.is_empty() || self.said[0] == 0, "refused, and given out");
    }

    /// The peer says something inside TLS.
    fn say(&mut self, words: &[u8]) {
        if !self.peer.is_handshaking() && self.peer.writer().write_all(words).is_ok() {
            self.said.extend_from_slice(words);
        }
        self.pull();
    }

    /// The proof of the token, which only who has it can make.
    fn prove(&mut self) {
        let made = self.peer.export_keying_material([0; 32], tls_stream::TOKEN_LABEL, Some(&[]));
        let Ok(binding) = made else { return };
        self.proven |= self.said.is_empty() && !self.peer.is_handshaking();
        let mut word = vec![1];
        word.extend_from_slice(&token().prove(&binding));
        self.say(&word);
    }

    /// What the peer sends goes on its way.
    fn pull(&mut self) {
        while self.peer.wants_write() && matches!(self.peer.write_tls(&mut self.wire), Ok(1..)) {}
    }

    /// What the victim sends arrives at the peer. What harms the peer is none of our business.
    fn answer(&mut self, n: usize) {
        let out = self.victim.outgoing();
        let n = n.min(out.len());
        let mut input = &out[..n];
        while !self.deaf && !input.is_empty() && self.peer.read_tls(&mut input).is_ok_and(|n| n > 0) {
            self.deaf = self.peer.process_new_packets().is_err();
            let _ = std::io::Read::read_to_end(&mut self.peer.reader(), &mut Vec::new());
        }
        self.victim.on_sent(n);
        self.pull();
    }

    /// All that is under way arrives, to and fro, until nothing moves or it took too long.
    fn settle(&mut self, refuse: bool) {
        for _ in 0..4 {
            self.answer(usize::MAX);
            let bytes = core::mem::take(&mut self.wire);
            self.arrive(&bytes, refuse);
        }
    }

    fn step(&mut self, op: u8, b: &mut Bytes<'_>) -> Option<()> {
        let refuse = op & 0x80 != 0;
        match op & 15 {
            0 => self.settle(refuse),
            1 => {
                // Some of what is under way, the rest later.
                let bytes = self.first(b.u16()?);
                self.wire.drain(..bytes.len());
                self.arrive(&bytes, refuse);
            }
            2 => {
                let n = usize::from(b.u8()?);
                self.say(b.take(n));
            }
            3 => self.prove(),
            4 => {
                let (n, byte) = (usize::from(b.u16()?) * 8, b.u8()?);
                let took = self.victim.write(&vec![byte; n]);
                assert!(took <= n && (took == 0 || self.established));
            }
            5 => self.answer(usize::from(b.u16()?)),
            6 if self.tampered => {}
            6 => {
                self.victim.close_notify();
                self.closing = true;
            }
            7 => {
                self.peer.send_close_notify();
                self.deaf = true;
                self.pull();
            }
            8 => self.say(&vec![b.u8()?; 20_000]),
            9 => {
                let clean = self.victim.is_peer_closed();
                assert!(self.victim.on_eof().is_ok() || !clean || self.failed);
                self.failed |= self.victim.on_eof().is_err();
            }
            _ if self.closing => return None,
            other => self.tamper(other, b, refuse)?,
        }
        self.check();
        Some(())
    }

    /// So many bytes of what is under way to the victim.
    fn first(&self, n: u16) -> Vec<u8> {
        self.wire[..usize::from(n).min(self.wire.len())].to_vec()
    }

    /// What no sound peer does, or somebody on the path.
    fn tamper(&mut self, op: u8, b: &mut Bytes<'_>, refuse: bool) -> Option<()> {
        self.tampered = true;
        match op {
            10 => {
                let _ = self.peer.refresh_traffic_keys();
                self.pull();
            }
            11 => {
                let (at, xor) = (usize::from(b.u16()?), b.u8()?);
                if let Some(byte) = self.wire.get_mut(at) {
                    *byte ^= xor;
                }
            }
            12 => {
                let n = usize::from(b.u8()?);
                self.arrive(b.take(n), refuse);
            }
            13 => {
                let n = self.first(b.u16()?).len();
                self.wire.drain(..n);
            }
            14 => {
                // They come again later.
                let bytes = self.first(b.u16()?);
                self.arrive(&bytes, refuse);
            }
            _ => {
                let (n, byte) = (usize::from(b.u16()?), b.u8()?);
                self.arrive(&vec![byte; n], refuse);
            }
        }
        Some(())
    }
}

fn run(input: &[u8]) -> Option<World> {
    let mut b = Bytes(input);
    let mut w = World::new(b.u8()?);
    w.pull();
    for _ in 0..MAX_OPS {
        let Some(op) = b.u8() else { break };
        if w.step(op, &mut b).is_none() {
            break;
        }
    }
    Some(w)
}

/// Sound peers are let in, or all of this would test nothing.
fn prove() {
    static DONE: OnceLock<()> = OnceLock::new();
    DONE.get_or_init(|| {
        let of = |input: &[u8]| run(input).expect("a mode");
        assert_eq!(of(&[0, 0, 2, 3, 0, 4, 2, 0]).got, [4, 2]);
        assert_eq!(of(&[2, 0, 2, 2, 0, 9, 0]).got, [9]);
        assert!(!of(&[4, 0, 2, 1, 0, 0]).established && !of(&[6, 0, 2, 1, 0, 0]).established);
        assert_eq!(of(&[6, 0, 3, 2, 1, 8, 0]).got, [8]);
        assert!(!of(&[6, 0, 2, 1, 0, 3, 0]).established);
        assert_eq!(of(&[1, 0, 2, 2, 0, 9, 0]).got, [9]);
        assert!(!of(&[5, 0, 2, 2, 0, 9, 0]).established);
        assert!(of(&[7, 0, 2, 5, 6, 3, b'n', b'o', b't', 0]).failed);
    });
}

fuzz_target!(|input: &[u8]| {
    prove();
    run(input);
});
