//! The TLS 1.3 handshake, carried in the transport's own packets.
//!
//! TLS gives and takes messages at two levels, Initial and Handshake; packets, acknowledgement and
//! retransmission are the connection's. As in QUIC (RFC 9001), each level has its own keys:
//!
//! - Initial: from the client's first destination identifier ([`KeyPair::initial`]).
//! - Handshake: from TLS's handshake traffic secrets. `rustls` gives these as ciphers, not as secrets, so each
//!   direction's cipher seals 32 zero bytes once, under a packet number it is never used with again; the
//!   keystream is a pseudorandom function of the secret, and becomes the input of our key schedule.
//! - Data: from TLS's exporter (RFC 8446, section 7.5), with the suite and the hash of both ends'
//!   transport parameters as context.
//!
//! So all packets have one form, and the suite of data packets need not be one that TLS knows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustls::client::{AlwaysResolvesClientRawPublicKeys, ResolvesClientCert, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::quic::{self, Connection, KeyChange};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use sha2::{Digest, Sha256};
use thiserror::Error;
use zeroize::Zeroizing;

use super::keys::{KeyPair, Secret, Side};
use super::suite::Suite;
use super::verify::{ClientAuth, Credentials, PeerIdentity, ServerTrust};

/// The application protocol both ends must name (RFC 7301).
pub const ALPN: &[u8] = b"longhaul/1";
/// The application protocol of iWARP under TLS: a byte stream with TLS's own records; see [`crate::tls_stream`].
pub const STREAM_ALPN: &[u8] = b"longhaul-iwarp/1";
/// Label of the exporter of data keys.
pub const DATA_LABEL: &[u8] = b"EXPORTER-longhaul-data";
/// Label of the exporter that binds one-time tokens to the connection.
pub const TOKEN_LABEL: &[u8] = b"EXPORTER-longhaul-token";
/// Bytes of transport parameters at most.
pub const MAX_PARAMS: usize = 16 * 1024;
/// Bytes of handshake messages taken per level. TLS messages have at most 64 KiB here; the largest flight is a
/// certificate chain and small change.
pub const MAX_READ: usize = 128 * 1024;
/// Sent instead of the server's name when a raw key is expected, and to nobody: SNI is off then.
const NO_NAME: &str = "longhaul.invalid";
/// Packet number under which TLS's handshake ciphers are used, once.
const DERIVE_PN: u64 = 0;

/// Encryption level of handshake messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// ClientHello, ServerHello.
    Initial,
    /// Everything after.
    Handshake,
}

/// Why a handshake failed or cannot start.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// TLS gave up. If there is an alert, close with it; see [`HandshakeError::alert`].
    #[error("handshake failed: {reason}")]
    Tls {
        /// The alert to send (RFC 8446, section 6), if there is one.
        alert: Option<u8>,
        /// What went wrong, for people.
        reason: String,
    },
    /// Messages at a level that is over, or not reached (RFC 9001, section 4.1.3).
    #[error("the peer sent handshake messages at level {0:?}, where none are due: close the connection")]
    WrongLevel(Level),
    /// More than [`MAX_READ`] bytes.
    #[error("the peer sent more than {MAX_READ} bytes of handshake messages: close the connection")]
    TooMuch,
    /// The peer gave no transport parameters, or more than [`MAX_PARAMS`] bytes.
    #[error(
        "the peer's transport parameters are missing or longer than {MAX_PARAMS} bytes: close the connection"
    )]
    PeerParams,
    /// Asked for what only a complete handshake has.
    #[error("the handshake is not complete: wait for Handshake::is_complete")]
    Incomplete,
    /// Our own settings cannot be used.
    #[error("settings cannot be used: {0}")]
    Config(String),
}

impl HandshakeError {
    /// The TLS alert that tells the peer (RFC 8446, section 6.2). In QUIC's manner it is sent as the close
    /// code 0x100 + alert (RFC 9001, section 4.8).
    pub fn alert(&self) -> Option<u8> {
        match self {
            HandshakeError::Tls { alert, .. } => *alert,
            HandshakeError::WrongLevel(_) => Some(10), // unexpected_message
            HandshakeError::TooMuch => Some(22),       // record_overflow
            HandshakeError::PeerParams => Some(109),   // missing_extension
            HandshakeError::Incomplete | HandshakeError::Config(_) => None,
        }
    }
}

/// The time certificates are checked against: what the caller last said.
#[derive(Debug, Default)]
struct GivenTime(AtomicU64);

impl rustls::time_provider::TimeProvider for GivenTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(core::time::Duration::from_secs(self.0.load(Ordering::Relaxed))))
    }
}

fn config(e: impl core::fmt::Display) -> HandshakeError {
    HandshakeError::Config(e.to_string())
}

/// A client's settings; one serves many handshakes.
#[derive(Clone, Debug)]
pub struct ClientSetup {
    tls: Arc<rustls::ClientConfig>,
    stream: Arc<rustls::ClientConfig>,
    time: Arc<GivenTime>,
    names: bool,
}

impl ClientSetup {
    /// Who we are and whom we trust.
    pub fn new(credentials: &Credentials, trust: &ServerTrust) -> Result<ClientSetup, HandshakeError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let time = Arc::new(GivenTime::default());
        let certified = credentials.certified()?;
        let resolver: Arc<dyn ResolvesClientCert> = if credentials.is_raw_key() {
            Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified))
        } else {
            Arc::new(SingleCertAndKey::from(certified))
        };
        let names = matches!(trust, ServerTrust::X509 { .. });
        let verifier = trust.verifier(&provider)?;
        let make = |provider: Arc<CryptoProvider>, alpn: &[u8]| {
            let mut tls = rustls::ClientConfig::builder_with_details(provider, time.clone())
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(config)?
                .dangerous()
                .with_custom_certificate_verifier(verifier.clone())
                .with_client_cert_resolver(resolver.clone());
            tls.alpn_protocols = vec![alpn.to_vec()];
            tls.enable_sni = names;
            tls.resumption = Resumption::disabled();
            Ok::<_, HandshakeError>(Arc::new(tls))
        };
        let stream = make(stream_provider(&provider), STREAM_ALPN)?;
        Ok(ClientSetup { tls: make(provider, ALPN)?, stream, time, names })
    }

    /// TLS with records of its own, for a byte stream. The settings are those of [`Handshake::client`].
    pub(crate) fn stream(
        &self,
        server_name: &str,
        now: u64,
    ) -> Result<rustls::ClientConnection, HandshakeError> {
        let name = self.begin(server_name, now)?;
        rustls::ClientConnection::new(self.stream.clone(), name).map_err(config)
    }

    #[cfg(test)]
    pub(crate) fn stream_config(&self) -> Arc<rustls::ClientConfig> {
        self.stream.clone()
    }

    /// What both kinds of connection begin with: the time, and the name to check.
    fn begin(&self, server_name: &str, now: u64) -> Result<ServerName<'static>, HandshakeError> {
        self.time.0.store(now, Ordering::Relaxed);
        let name = if self.names { server_name } else { NO_NAME };
        ServerName::try_from(name.to_owned()).map_err(|_| {
            HandshakeError::Config(format!("{server_name:?} is neither a DNS name nor an address"))
        })
    }
}

/// A server's settings; one serves many handshakes.
#[derive(Clone, Debug)]
pub struct ServerSetup {
    tls: Arc<rustls::ServerConfig>,
    stream: Arc<rustls::ServerConfig>,
    time: Arc<GivenTime>,
}

impl ServerSetup {
    /// Who we are and whom we accept.
    pub fn new(credentials: &Credentials, auth: &ClientAuth) -> Result<ServerSetup, HandshakeError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let time = Arc::new(GivenTime::default());
        let resolver = server_resolver(credentials)?;
        let verifier = auth.verifier(&provider)?;
        let make = |provider: Arc<CryptoProvider>, alpn: &[u8]| {
            let mut tls = rustls::ServerConfig::builder_with_details(provider, time.clone())
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(config)?
                .with_client_cert_verifier(verifier.clone())
                .with_cert_resolver(resolver.clone());
            tls.alpn_protocols = vec![alpn.to_vec()];
            // No resumption: each connection authenticates anew, and nothing follows the handshake.
            tls.send_tls13_tickets = 0;
            Ok::<_, HandshakeError>(Arc::new(tls))
        };
        let stream = make(stream_provider(&provider), STREAM_ALPN)?;
        Ok(ServerSetup { tls: make(provider, ALPN)?, stream, time })
    }

    /// TLS with records of its own, for a byte stream. The settings are those of [`Handshake::server`].
    pub(crate) fn stream(&self, now: u64) -> Result<rustls::ServerConnection, HandshakeError> {
        self.time.0.store(now, Ordering::Relaxed);
        rustls::ServerConnection::new(self.stream.clone()).map_err(config)
    }
}

/// The suites of byte streams: those that [`Suite`] knows, of which the client prefers the one that is fast on it.
fn stream_provider(provider: &CryptoProvider) -> Arc<CryptoProvider> {
    use rustls::crypto::ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
    let mut cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256];
    if !super::suite::aes_in_hardware() {
        cipher_suites.reverse();
    }
    Arc::new(CryptoProvider { cipher_suites, ..provider.clone() })
}

fn server_resolver(credentials: &Credentials) -> Result<Arc<dyn ResolvesServerCert>, HandshakeError> {
    let certified: Arc<CertifiedKey> = credentials.certified()?;
    Ok(if credentials.is_raw_key() {
        Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified))
    } else {
        Arc::new(SingleCertAndKey::from(certified))
    })
}

/// The first secrets of data packets.
#[derive(Clone, Debug)]
pub struct DataSecrets {
    /// From client to server.
    pub client: Secret,
    /// From server to client.
    pub server: Secret,
}

/// One handshake, of either side. The caller carries its messages, in order, at their levels.
pub struct Handshake {
    tls: Connection,
    side: Side,
    params: Vec<u8>,
    /// Level of the messages that the peer sends next.
    reading: Level,
    /// Level of the messages that TLS gives next.
    writing: Level,
    /// Bytes read per level.
    read: [usize; 2],
    /// Messages to send, per level.
    out: [VecDeque<u8>; 2],
    keys: Option<KeyPair>,
    failed: Option<HandshakeError>,
}

impl Handshake {
    /// A client's. `server_name` (a DNS name or an address) matters for X.509 only, and is told to the
    /// server only then. `params` are our encoded transport parameters. `now` is the time in seconds since 1970.
    pub fn client(
        setup: &ClientSetup,
        server_name: &str,
        params: Vec<u8>,
        now: u64,
    ) -> Result<Handshake, HandshakeError> {
        check_params(&params)?;
        let name = setup.begin(server_name, now)?;
        let tls = quic::ClientConnection::new(setup.tls.clone(), quic::Version::V1, name, params.clone())
            .map_err(config)?;
        Handshake::start(Connection::Client(tls), Side::Client, params)
    }

    /// A server's. `params` and `now` as for [`Handshake::client`].
    pub fn server(setup: &ServerSetup, params: Vec<u8>, now: u64) -> Result<Handshake, HandshakeError> {
        check_params(&params)?;
        setup.time.0.store(now, Ordering::Relaxed);
        let tls = quic::ServerConnection::new(setup.tls.clone(), quic::Version::V1, params.clone())
            .map_err(config)?;
        Handshake::start(Connection::Server(tls), Side::Server, params)
    }

    fn start(tls: Connection, side: Side, params: Vec<u8>) -> Result<Handshake, HandshakeError> {
        let mut hs = Handshake {
            tls,
            side,
            params,
            reading: Level::Initial,
            writing: Level::Initial,
            read: [0; 2],
            out: Default::default(),
            keys: None,
            failed: None,
        };
        hs.collect()?;
        Ok(hs)
    }

    /// Takes bytes of the peer's messages at `level`, in order, each byte once. After an error, the handshake has
    /// failed: every later call gives the same error.
    pub fn read(&mut self, level: Level, bytes: &[u8]) -> Result<(), HandshakeError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let done = self.try_read(level, bytes);
        if let Err(e) = &done {
            self.failed = Some(e.clone());
            // What was not sent yet is of no use to the peer, except the alert, which the error carries.
            self.out = Default::default();
        }
        done
    }

    fn try_read(&mut self, level: Level, bytes: &[u8]) -> Result<(), HandshakeError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // RFC 9001, section 4.1.3: data from a previous level MUST be treated as a connection error.
        if level != self.reading {
            return Err(HandshakeError::WrongLevel(level));
        }
        let read = &mut self.read[level as usize];
        *read = read.saturating_add(bytes.len());
        if *read > MAX_READ {
            return Err(HandshakeError::TooMuch);
        }
        if let Err(e) = self.tls.read_hs(bytes) {
            let alert = self.tls.alert().map(u8::from);
            return Err(HandshakeError::Tls { alert, reason: e.to_string() });
        }
        self.collect()?;
        // RFC 9001, section 8.2: a peer without parameters is an error.
        match self.tls.quic_transport_parameters() {
            Some(p) if p.len() > MAX_PARAMS => Err(HandshakeError::PeerParams),
            None if self.is_complete() => Err(HandshakeError::PeerParams),
            _ => Ok(()),
        }
    }

    /// Moves what TLS wants to send, and the keys it has, to where the caller takes them. TLS gives at most two
    /// key changes, and its queue is bounded by our own certificates and parameters.
    fn collect(&mut self) -> Result<(), HandshakeError> {
        loop {
            let mut buf = Vec::new();
            let change = self.tls.write_hs(&mut buf);
            self.out[self.writing as usize].extend(&buf);
            match change {
                Some(KeyChange::Handshake { keys }) => {
                    self.keys = Some(self.handshake_keys(&keys)?);
                    self.writing = Level::Handshake;
                    self.reading = Level::Handshake;
                }
                // Data keys come from the exporter.
                Some(KeyChange::OneRtt { .. }) => {}
                None if buf.is_empty() => return Ok(()),
                None => {}
            }
        }
    }

    /// The keys of Handshake packets; see the top.
    fn handshake_keys(&self, keys: &quic::Keys) -> Result<KeyPair, HandshakeError> {
        let derive = |key: &dyn quic::PacketKey| {
            let mut out = Zeroizing::new([0u8; 32]);
            key.encrypt_in_place(DERIVE_PN, b"lh handshake", &mut *out).map_err(config)?;
            Ok(Secret::from_bytes(*out))
        };
        let local = derive(&*keys.local.packet)?;
        let remote = derive(&*keys.remote.packet)?;
        Ok(match self.side {
            Side::Client => KeyPair::fixed(&local, &remote, self.side),
            Side::Server => KeyPair::fixed(&remote, &local, self.side),
        })
    }

    /// Moves all messages to send at `level` to the end of `out`; says whether there were any.
    pub fn write(&mut self, level: Level, out: &mut Vec<u8>) -> bool {
        let queue = &mut self.out[level as usize];
        let any = !queue.is_empty();
        out.extend(queue.drain(..));
        any
    }

    /// The keys of Handshake packets, once, as soon as they are there. Try after each [`Handshake::read`].
    pub fn take_keys(&mut self) -> Option<KeyPair> {
        self.keys.take()
    }

    /// Whether TLS is satisfied: the peer is authenticated, and data keys can be had. The messages still to
    /// be written must be sent nevertheless.
    pub fn is_complete(&self) -> bool {
        self.failed.is_none() && !self.tls.is_handshaking()
    }

    /// The peer's transport parameters as soon as they are there. They are authenticated only when
    /// [`Handshake::is_complete`].
    pub fn peer_params(&self) -> Option<&[u8]> {
        self.tls.quic_transport_parameters()
    }

    /// Who the peer is; nothing before [`Handshake::is_complete`].
    pub fn peer_identity(&self) -> Option<PeerIdentity> {
        self.tls.peer_certificates().filter(|_| self.is_complete()).map(PeerIdentity::from_shown)
    }

    /// The first secrets of data packets under `suite`; the same on both ends if both give the same suite.
    pub fn export_secrets(&self, suite: Suite) -> Result<DataSecrets, HandshakeError> {
        let peer = self.peer_params().ok_or(HandshakeError::Incomplete)?;
        let (client, server) = match self.side {
            Side::Client => (&self.params[..], peer),
            Side::Server => (peer, &self.params[..]),
        };
        let mut hash = Sha256::new();
        for params in [client, server] {
            hash.update((params.len() as u64).to_be_bytes());
            hash.update(params);
        }
        let mut context = [suite.id(); 33];
        context[1..].copy_from_slice(&hash.finalize());
        let both: Zeroizing<[u8; 64]> = self.export(DATA_LABEL, &context)?;
        let half = |at: usize| {
            let mut out = [0; 32];
            out.copy_from_slice(&both[at..at + 32]);
            Secret::from_bytes(out)
        };
        Ok(DataSecrets { client: half(0), server: half(32) })
    }

    /// The value to which one-time tokens are bound: unique to this connection, known to both ends only.
    pub fn export_token_binding(&self) -> Result<[u8; 32], HandshakeError> {
        self.export(TOKEN_LABEL, &[]).map(|out| *out)
    }

    fn export<const N: usize>(
        &self,
        label: &[u8],
        context: &[u8],
    ) -> Result<Zeroizing<[u8; N]>, HandshakeError> {
        if !self.is_complete() {
            return Err(HandshakeError::Incomplete);
        }
        let out = self
            .tls
            .export_keying_material([0u8; N], label, Some(context))
            .map_err(|e| HandshakeError::Tls { alert: None, reason: e.to_string() })?;
        Ok(Zeroizing::new(out))
    }

    /// Which side this is.
    pub fn side(&self) -> Side {
        self.side
    }
}

fn check_params(params: &[u8]) -> Result<(), HandshakeError> {
    if params.len() > MAX_PARAMS {
        return Err(HandshakeError::Config(format!(
            "transport parameters are longer than {MAX_PARAMS} bytes"
        )));
    }
    Ok(())
}

impl core::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Handshake")
            .field("side", &self.side)
            .field("reading", &self.reading)
            .field("complete", &self.is_complete())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
