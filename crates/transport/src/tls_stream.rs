//! TLS 1.3 over a byte stream, as an option under MPA (RFC 5044): decrypts what arrives before iWARP sees it and
//! encrypts what iWARP sends. The RFCs of iWARP do not have it; only Longhaul speaks it (docs/protocol.md, B.6).
//!
//! Both ends authenticate as they do in the native handshake: the same credentials, the same trust, the same authority
//! with its one-time tokens. There are no early data, no tickets and no resumption. Nothing here does input or output:
//!
//! ```text
//! socket -> receive(&mut bytes) -> Established, Plain(bytes), PeerClosed      on_eof()
//! write(bytes) -> outgoing() -> socket -> on_sent(n)
//! ```
//!
//! Behind the handshake, inside TLS, each end says one thing before iWARP begins: the client whether it has a one-time
//! token, and if so the proof, bound to this very connection; the server whether the client is let in, and if not why.
//! A server's user decides last: until [`TlsStream::admit`], nothing of what the client sends is given out.
//!
//! Limits: [`MAX_HANDSHAKE`] bytes of handshake; of what is not opened yet, one record (or a handshake message, 64 KiB);
//! opened and not given out, a record more than what one turn of 4 KiB completes; [`MAX_UNSENT`] bytes to send. TLS
//! changes its keys by itself before AES-GCM's limit (RFC 8446, section 5.5). How long a handshake may take is for the
//! user to say, who has the clock.

use std::io::{BufRead as _, IoSlice, Read as _, Write as _};

use zeroize::Zeroizing;

use crate::connection::{Authority, UNAUTHORISED};
use crate::crypto::{ClientSetup, HandshakeError, OneTimeToken, PeerIdentity, ServerSetup, Side, Suite, tls};
use crate::error::{CloseReason, code, words};

/// Label of the exporter that binds one-time tokens to the stream (RFC 8446, section 7.5).
pub const TOKEN_LABEL: &[u8] = b"EXPORTER-longhaul-iwarp-token";
/// Bytes taken from the peer before the handshake is complete: as many as the native one takes at both levels.
pub const MAX_HANDSHAKE: usize = 2 * tls::MAX_READ;
/// Bytes that wait to be sent, beyond which [`TlsStream::write`] takes no more. Records' overhead, 22 bytes each, comes on
/// top.
pub const MAX_UNSENT: usize = 256 * 1024;
/// Bytes sealed in one go: few enough to stay in a processor's cache on their way to where they wait. Whole records.
const MAX_INLINE_SEAL: usize = 4 * RECORD;
/// Bytes of the stream in a record at most (RFC 8446, section 5.1).
const RECORD: usize = 16 * 1024;
/// Bytes of a server's words at most.
const MAX_WORDS: usize = 255;
/// First byte of a record with handshake messages (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 0x16;
/// First byte of MPA's start-up frames, "MPA ID Req Frame" (RFC 5044, section 7.1.1).
const MPA: u8 = b'M';
/// A client's word: it has no token.
const NO_TOKEN: u8 = 0;
/// A client's word: 32 bytes of proof follow.
const TOKEN_PROOF: u8 = 1;
/// Bytes of a client's word with a proof.
const PROOF_LEN: usize = 1 + 32;
/// A server's word: the client is let in. Any other is a code of the table in docs/protocol.md, section 14; then follow
/// the length of the reason, one byte, and the reason in UTF-8.
const WELCOME: u8 = 0;

/// Whether a stream that begins with this byte begins with TLS, and not with MPA's request ('M').
pub const fn looks_like_tls(first: u8) -> bool {
    first == HANDSHAKE_RECORD
}

/// What [`TlsStream::receive`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsEvent<'a> {
    /// The peer is authenticated ([`TlsStream::peer`]). A client may write from here on. A server has let the client in
    /// as far as [`Authority`] goes, and now says [`TlsStream::admit`] or [`TlsStream::refuse`].
    Established,
    /// The next bytes of the stream, never none.
    Plain(&'a [u8]),
    /// The peer has sent all it had, and said so. This end may still write.
    PeerClosed,
}

/// The same without the bytes.
enum Found {
    Established,
    Plain,
    PeerClosed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// TLS's handshake.
    Handshake,
    /// A server waits for the client's word.
    Word,
    /// A server waits for its user.
    Deciding,
    /// A client waits for the server's word, and writes already.
    Answer,
    Open,
    /// A server has refused: what still comes is dropped.
    Refused,
}

/// One end of a stream.
pub struct TlsStream {
    tls: Box<rustls::Connection>,
    stage: Stage,
    /// A client's token, until it is proven.
    token: Option<OneTimeToken>,
    authority: Authority,
    token_used: Option<OneTimeToken>,
    peer: Option<PeerIdentity>,
    /// Bytes taken during the handshake.
    taken: usize,
    /// Opened bytes that wait in TLS, and how many of them the caller has seen.
    ready: usize,
    shown: usize,
    /// The peer's word, as far as it has come.
    word: Vec<u8>,
    peer_closed: bool,
    closed_told: bool,
    /// This end has said its last.
    closing: bool,
    /// Sealed bytes; the first `sent` are with the socket.
    out: Vec<u8>,
    sent: usize,
    failed: Option<CloseReason>,
}

impl TlsStream {
    /// A client's end. `server_name` matters for X.509 only, and is told to the server only then; `token` is presented if
    /// there is one; `unix_time` is the time in seconds since 1970. [`TlsStream::outgoing`] has something to send at once.
    ///
    /// # Errors
    /// A name that is none, in words.
    pub fn client(
        setup: &ClientSetup,
        server_name: &str,
        token: Option<OneTimeToken>,
        unix_time: u64,
    ) -> Result<TlsStream, HandshakeError> {
        let tls = rustls::Connection::Client(setup.stream(server_name, unix_time)?);
        let mut s = TlsStream::new(tls, Authority::default());
        s.token = token;
        s.collect();
        Ok(s)
    }

    /// A server's end: `setup` says which clients the handshake accepts, `authority` who of them is let in.
    ///
    /// # Errors
    /// Settings that cannot be used, in words.
    pub fn server(
        setup: &ServerSetup,
        authority: Authority,
        unix_time: u64,
    ) -> Result<TlsStream, HandshakeError> {
        Ok(TlsStream::new(rustls::Connection::Server(setup.stream(unix_time)?), authority))
    }

    fn new(mut tls: rustls::Connection, authority: Authority) -> TlsStream {
        // The limit is `write`'s.
        tls.set_buffer_limit(None);
        TlsStream {
            tls: Box::new(tls),
            stage: Stage::Handshake,
            token: None,
            authority,
            token_used: None,
            peer: None,
            taken: 0,
            ready: 0,
            shown: 0,
            word: Vec::new(),
            peer_closed: false,
            closed_told: false,
            closing: false,
            out: Vec::new(),
            sent: 0,
            failed: None,
        }
    }

    /// Takes bytes from the front of `input`, which came from the socket, and says what it found; call again until it
    /// finds nothing. Then all of `input` is taken, unless a server's user has yet to decide.
    ///
    /// # Errors
    /// Why the connection must end. Every later call says the same. What [`TlsStream::outgoing`] still has, an alert or
    /// words for the peer, should be sent before the socket is closed.
    pub fn receive(&mut self, input: &mut &[u8]) -> Result<Option<TlsEvent<'_>>, CloseReason> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        match self.advance(input) {
            Ok(None) => Ok(None),
            Ok(Some(Found::Established)) => Ok(Some(TlsEvent::Established)),
            Ok(Some(Found::PeerClosed)) => Ok(Some(TlsEvent::PeerClosed)),
            Ok(Some(Found::Plain)) => {
                let run = self.tls.reader().into_first_chunk().unwrap_or_default();
                self.shown = run.len();
                Ok(Some(TlsEvent::Plain(run)))
            }
            Err(e) => {
                self.failed = Some(e.clone());
                Err(e)
            }
        }
    }

    /// Each turn takes some of `input` or goes on to another stage, so it ends.
    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Found>, CloseReason> {
        let shown = core::mem::take(&mut self.shown);
        self.tls.reader().consume(shown);
        self.ready -= shown.min(self.ready);
        loop {
            let whole = matches!(self.stage, Stage::Word | Stage::Answer) && self.read_peer_message()?;
            match self.stage {
                Stage::Handshake if !self.tls.is_handshaking() => {
                    self.complete()?;
                    if self.stage == Stage::Answer {
                        return Ok(Some(Found::Established));
                    }
                    continue;
                }
                Stage::Word if whole => {
                    self.authorise_client()?;
                    return Ok(Some(Found::Established));
                }
                Stage::Answer if whole => {
                    self.answered()?;
                    continue;
                }
                Stage::Deciding => return Ok(None),
                Stage::Refused => {
                    *input = &[];
                    return Ok(None);
                }
                Stage::Open if self.ready > 0 => return Ok(Some(Found::Plain)),
                _ => {}
            }
            if self.peer_closed {
                // RFC 8446, section 6.1: data received after a closure alert MUST be ignored.
                *input = &[];
                let first = !core::mem::replace(&mut self.closed_told, true);
                return Ok(first.then_some(Found::PeerClosed));
            }
            if input.is_empty() {
                return Ok(None);
            }
            self.read(input)?;
        }
    }

    /// Some bytes into TLS.
    fn read(&mut self, input: &mut &[u8]) -> Result<(), CloseReason> {
        let handshake = self.stage == Stage::Handshake;
        if handshake && self.taken == 0 && self.side() == Side::Server && input.first() == Some(&MPA) {
            let reason = "the peer speaks plain iWARP where TLS is expected: turn TLS on there, or have plain iWARP served here";
            return Err(failure(reason));
        }
        let before = input.len();
        let read = self.tls.read_tls(input).map_err(|e| e.to_string());
        let taken = before - input.len();
        if handshake {
            self.taken += taken;
            if self.taken > MAX_HANDSHAKE {
                return Err(CloseReason::Handshake(HandshakeError::TooMuch.to_string()));
            }
        }
        if read.is_err() || taken == 0 {
            // A message that fits no buffer.
            return Err(self.broken(&read.err().unwrap_or_else(|| "a message is too long".to_owned())));
        }
        let done = self.tls.process_new_packets();
        self.collect();
        match done {
            Ok(state) => {
                self.ready = state.plaintext_bytes_to_read();
                self.peer_closed = state.peer_has_closed();
                Ok(())
            }
            Err(rustls::Error::AlertReceived(alert)) => {
                let n = u8::from(alert);
                Err(CloseReason::Peer { code: code::TLS + u64::from(n), reason: alert_words(n) })
            }
            Err(e) => Err(self.broken(&e.to_string())),
        }
    }

    /// TLS gave up, in the words of the native handshake or, later, of a broken protocol.
    fn broken(&self, reason: &str) -> CloseReason {
        match self.stage {
            Stage::Handshake => failure(reason),
            _ => CloseReason::Violation(format!("TLS: {reason}")),
        }
    }

    /// TLS is satisfied.
    fn complete(&mut self) -> Result<(), CloseReason> {
        // RFC 7301 lets a peer leave it out, and TLS then goes on without.
        if self.tls.alpn_protocol() != Some(tls::STREAM_ALPN) {
            self.close_notify();
            let reason = "the peer does not name the protocol longhaul-iwarp/1: is it another program's TLS?";
            return Err(failure(reason));
        }
        self.peer = self.tls.peer_certificates().map(PeerIdentity::from_shown);
        if self.side() == Side::Server {
            self.stage = Stage::Word;
            return Ok(());
        }
        let word = match self.token.take() {
            Some(token) => {
                let mut word = vec![TOKEN_PROOF];
                word.extend_from_slice(&token.prove(&*self.binding()?));
                word
            }
            None => vec![NO_TOKEN],
        };
        self.stage = Stage::Answer;
        self.send_message(&word);
        Ok(())
    }

    /// The value to which one-time tokens are bound: unique to this connection, known to both ends only.
    fn binding(&self) -> Result<Zeroizing<[u8; 32]>, CloseReason> {
        let made = self.tls.export_keying_material([0; 32], TOKEN_LABEL, Some(&[]));
        made.map(Zeroizing::new).map_err(|e| failure(&e.to_string()))
    }

    /// Collects the peer's word; true when it is whole.
    fn read_peer_message(&mut self) -> Result<bool, CloseReason> {
        loop {
            let want = match (self.stage, &self.word[..]) {
                (_, []) | (Stage::Word, [NO_TOKEN, ..]) | (Stage::Answer, [WELCOME, ..]) => 1,
                (Stage::Word, [TOKEN_PROOF, ..]) => PROOF_LEN,
                (Stage::Answer, [_, len, ..]) => 2 + usize::from(*len),
                (Stage::Answer, [_]) => 2,
                (_, [other, ..]) => {
                    let reason = format!("its first word under TLS is {other:#x}, and there is none such");
                    return Err(CloseReason::Violation(reason));
                }
            };
            let have = self.word.len();
            if have >= want {
                return Ok(true);
            }
            if self.ready == 0 {
                return Ok(false);
            }
            self.word.resize(want, 0);
            let n = self.tls.reader().read(&mut self.word[have..]).unwrap_or(0);
            self.word.truncate(have + n);
            self.ready = if n == 0 { 0 } else { self.ready - n };
        }
    }

    /// The client has said whether it has a token: as in the native transport, a listed key needs none.
    fn authorise_client(&mut self) -> Result<(), CloseReason> {
        let mut let_in = self.authority.lists(self.peer.as_ref());
        if let (false, Some(Ok(proof))) = (let_in, self.word.get(1..).map(TryInto::<&[u8; 32]>::try_into)) {
            self.token_used = self.authority.token(&*self.binding()?, proof);
            let_in = self.token_used.is_some();
        }
        (self.word, self.authority) = (Vec::new(), Authority::default());
        self.stage = Stage::Deciding;
        if !let_in {
            self.refuse(code::UNAUTHORISED as u8, UNAUTHORISED);
            return Err(CloseReason::Handshake(UNAUTHORISED.to_owned()));
        }
        Ok(())
    }

    /// The server's word is there.
    fn answered(&mut self) -> Result<(), CloseReason> {
        self.stage = Stage::Open;
        match &core::mem::take(&mut self.word)[..] {
            [c, _, reason @ ..] => Err(CloseReason::Peer { code: (*c).into(), reason: words(reason) }),
            _ => Ok(()),
        }
    }

    /// A server lets the client in, after [`TlsEvent::Established`].
    pub fn admit(&mut self) {
        if self.stage == Stage::Deciding {
            self.stage = Stage::Open;
            self.send_message(&[WELCOME]);
        }
    }

    /// A server does not let the client in, after [`TlsEvent::Established`], and says why: with a code of
    /// [`code`] from 1 to 255, and at most 255 bytes of words. The stream is closed behind it; the
    /// caller sends what [`TlsStream::outgoing`] has, and closes its side of the socket before it drops it, or the client
    /// may lose these words.
    pub fn refuse(&mut self, code: u8, reason: &str) {
        if self.stage != Stage::Deciding {
            return;
        }
        let mut end = reason.len().min(MAX_WORDS);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let mut word = vec![code.max(1), end as u8];
        word.extend_from_slice(&reason.as_bytes()[..end]);
        self.stage = Stage::Refused;
        self.send_message(&word);
        self.close_notify();
    }

    /// Seals an end's word.
    fn send_message(&mut self, word: &[u8]) {
        if self.is_alive() {
            // Nothing limits what waits here but `write`, so all of it is taken.
            let _ = self.tls.writer().write_all(word);
            self.collect();
        }
    }

    /// Seals bytes of the stream; says how many of them it took. None before the handshake is over, of a server before it
    /// has let the client in, and while what waits is less than 16 KiB short of [`MAX_UNSENT`].
    pub fn write(&mut self, plain: &[u8]) -> usize {
        self.write_gather(&[IoSlice::new(plain)])
    }

    /// As [`TlsStream::write`], of pieces that belong together: records of 16 KiB are filled across them. Each call ends
    /// its last record, so many small calls cost 22 bytes and a sealing each.
    pub fn write_gather(&mut self, parts: &[IoSlice<'_>]) -> usize {
        if !matches!(self.stage, Stage::Answer | Stage::Open) || !self.is_alive() {
            return 0;
        }
        let mut parts = parts.to_vec();
        let mut rest = &mut parts[..];
        // Whole records: what is left would make a short one each time that the socket takes a little.
        let room = MAX_UNSENT.saturating_sub(self.out.len() - self.sent) / RECORD * RECORD;
        let mut taken = 0;
        while taken < room && !rest.is_empty() {
            self.tls.set_buffer_limit(Some((room - taken).min(MAX_INLINE_SEAL)));
            let n = self.tls.writer().write_vectored(rest).unwrap_or(0);
            self.tls.set_buffer_limit(None);
            self.collect();
            if n == 0 {
                break;
            }
            taken += n;
            IoSlice::advance_slices(&mut rest, n);
        }
        taken
    }

    fn is_alive(&self) -> bool {
        self.failed.is_none() && !self.closing
    }

    /// Sealed bytes for the socket.
    pub fn outgoing(&self) -> &[u8] {
        &self.out[self.sent..]
    }

    /// The socket took `n` bytes of [`TlsStream::outgoing`].
    pub fn on_sent(&mut self, n: usize) {
        self.sent = self.out.len().min(self.sent.saturating_add(n));
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
    }

    /// Moves what TLS wants to send to where the caller takes it.
    fn collect(&mut self) {
        if self.tls.wants_write() && self.sent > self.out.len() / 2 {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        while self.tls.wants_write() {
            // A vector takes everything.
            if !matches!(self.tls.write_tls(&mut self.out), Ok(1..)) {
                break;
            }
        }
    }

    /// Says that nothing more will be written. The peer may still write. Before the handshake is complete, it ends the
    /// attempt altogether.
    pub fn close_notify(&mut self) {
        if !self.is_alive() {
            return;
        }
        self.closing = true;
        self.tls.send_close_notify();
        self.collect();
        if self.stage == Stage::Handshake {
            self.failed = Some(CloseReason::Local);
        }
    }

    /// The socket has no more bytes: a clean end only if the peer has said so before.
    ///
    /// # Errors
    /// What the connection ended of.
    pub fn on_eof(&mut self) -> Result<(), CloseReason> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        if self.peer_closed || self.stage == Stage::Refused {
            return Ok(());
        }
        let e = match self.stage {
            Stage::Handshake => failure(
                "the peer closed the connection before the handshake was complete: does it expect plain iWARP there?",
            ),
            _ => CloseReason::CutOff,
        };
        self.failed = Some(e.clone());
        Err(e)
    }

    /// Whether the peer has said that it will write no more.
    pub fn is_peer_closed(&self) -> bool {
        self.peer_closed
    }

    /// Whether TLS is satisfied and, at a server, the client is let in as far as its authority goes.
    pub fn is_established(&self) -> bool {
        matches!(self.stage, Stage::Deciding | Stage::Answer | Stage::Open)
    }

    /// Who the peer is; nothing before [`TlsEvent::Established`].
    pub fn peer(&self) -> Option<&PeerIdentity> {
        self.peer.as_ref().filter(|_| self.is_established())
    }

    /// The one-time token that let the client in: it must not be used again. The user removes it from its list before it
    /// says [`TlsStream::admit`], and refuses if it is not there any more.
    pub fn token_used(&self) -> Option<&OneTimeToken> {
        self.token_used.as_ref()
    }

    /// What seals the stream, once TLS has agreed on it.
    pub fn suite(&self) -> Option<Suite> {
        use rustls::CipherSuite::{TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256};
        match self.tls.negotiated_cipher_suite()?.suite() {
            TLS13_AES_128_GCM_SHA256 => Some(Suite::Aes128Gcm),
            TLS13_CHACHA20_POLY1305_SHA256 => Some(Suite::ChaCha20Poly1305),
            _ => None,
        }
    }

    /// Which side this is.
    pub fn side(&self) -> Side {
        match &*self.tls {
            rustls::Connection::Client(_) => Side::Client,
            rustls::Connection::Server(_) => Side::Server,
        }
    }
}

impl core::fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TlsStream")
            .field("side", &self.side())
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

/// As the native handshake says it.
fn failure(reason: &str) -> CloseReason {
    CloseReason::Handshake(HandshakeError::Tls { alert: None, reason: reason.to_owned() }.to_string())
}

/// What an alert says (RFC 8446, section 6.2), in the words in which the native transport's peers say it.
fn alert_words(n: u8) -> String {
    let said = match n {
        40 => "handshake failed: no common ground (CertificateTypeExtension, suites or versions)",
        42 => "handshake failed: the certificate is not acceptable",
        43 => "handshake failed: the kind of certificate is not acceptable (CertificateTypeExtension)",
        45 => "handshake failed: certificate expired or not yet valid by the peer's clock",
        46 => "handshake failed: the peer cannot use the certificate",
        48 => "handshake failed: UnknownIssuer: no root of the peer's vouches for the certificate",
        49 => "handshake failed: ApplicationVerificationFailure: the key is not one that the peer knows",
        51 => "handshake failed: BadSignature",
        116 => "handshake failed: CertificateRequired",
        120 => "handshake failed: the peer does not serve longhaul-iwarp/1",
        _ => return format!("TLS alert {n}"),
    };
    said.to_owned()
}

#[cfg(test)]
mod tests;
