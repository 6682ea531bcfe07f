//! TLS below MPA for iWARP streams. No RFC defines it; `docs/protocol.md`, appendix B.6, does.
//!
//! The bytes of such a stream go through buffers: the driver feeds what arrives, and takes what is sealed.

use super::io::Stream;
use super::{StreamCommand, StreamId};
use crate::Endpoint;
use crate::app::ConnId;
use ::iwarp::{Connection, Piece, StreamAction};
use base::{Span, Time};
use transport::connection::Authority;
use transport::crypto::{ClientSetup, OneTimeToken};
use transport::error::code;
use transport::{CloseReason, TlsEvent, TlsStream};
use verbs::Adapter;

/// Bytes gathered and sealed at once.
const AT_ONCE: usize = 64 << 10;
/// How long the last words of a stream that failed may take to leave, and the peer to close.
const LAST_WORDS: Span = Span::from_secs(2);

/// What a client needs for TLS on each of its streams.
#[derive(Clone)]
pub(crate) struct ClientTls {
    pub setup: ClientSetup,
    pub server_name: String,
    pub token: Option<OneTimeToken>,
}

/// The TLS state of a stream.
pub(crate) struct StreamTls {
    pub tls: TlsStream,
    /// Opened bytes for which there is no receive yet.
    kept: Vec<u8>,
    /// What to do to the stream when everything sealed has left.
    then: Option<StreamCommand>,
    /// Nothing is taken in any more: the last words are to leave.
    failed: bool,
}

impl StreamTls {
    pub fn new(tls: TlsStream) -> Box<StreamTls> {
        Box::new(StreamTls { tls, kept: Vec::new(), then: None, failed: false })
    }
}

impl Endpoint {
    /// Whether the bytes of a stream are sealed: they are taken from [`Endpoint::sealed`].
    pub fn is_sealed(&self, id: StreamId) -> bool {
        self.iwarp_state.streams.get(&id).is_some_and(|s| s.sealed.is_some())
    }

    /// Sealed bytes of a stream to send next; say how many left by [`Endpoint::sealed_sent`]. Empty: none for now.
    pub fn sealed(&mut self, now: Time, id: StreamId) -> &[u8] {
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return &[] };
        let Stream { sealed: Some(sealed), engine, .. } = &mut **s else { return &[] };
        if let (Some(engine), true) = (engine, sealed.tls.outgoing().is_empty() && !sealed.failed) {
            seal(engine, &mut sealed.tls, &mut self.adapter, &mut self.iwarp_state.plain, now);
        }
        sealed.tls.outgoing()
    }

    /// The stream took `n` bytes of what [`Endpoint::sealed`] gave.
    pub fn sealed_sent(&mut self, now: Time, id: StreamId, n: usize) {
        let Some(sealed) = self.iwarp_state.streams.get_mut(&id).and_then(|s| s.sealed.as_mut()) else {
            return;
        };
        sealed.tls.on_sent(n);
        self.app_due = true;
        self.after_sealed(now, id);
    }

    /// When everything sealed has left, goes on with what was to come behind it.
    pub(super) fn after_sealed(&mut self, now: Time, id: StreamId) {
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        let Some(sealed) = s.sealed.as_mut().filter(|s| s.tls.outgoing().is_empty()) else { return };
        let Some(order) = sealed.then.take() else { return };
        let over = !matches!(order, StreamCommand::Shutdown(_));
        self.iwarp_state.orders.push_back(order);
        if over {
            self.stream_over(now, id);
        }
    }

    /// What the engine wants done to a sealed stream: TLS says its own word of the end first. True when the stream is over
    /// at once.
    pub(super) fn step_sealed(&mut self, id: StreamId, step: StreamAction) -> bool {
        let Some(sealed) = self.iwarp_state.streams.get_mut(&id).and_then(|s| s.sealed.as_mut()) else {
            return true;
        };
        if sealed.failed {
            return false;
        }
        match step {
            StreamAction::Abort => {
                self.iwarp_state.orders.push_back(StreamCommand::Abort(id));
                return true;
            }
            StreamAction::Shutdown => {
                sealed.tls.close_notify();
                sealed.then = Some(StreamCommand::Shutdown(id));
            }
            StreamAction::Close => {
                sealed.tls.close_notify();
                sealed.then = Some(StreamCommand::Close(id));
            }
        }
        self.iwarp_state.touch(id);
        false
    }

    /// Takes in sealed bytes; gives how many were taken.
    pub(super) fn feed_sealed(&mut self, now: Time, id: StreamId, bytes: &[u8]) -> usize {
        if !self.feed_kept(now, id) {
            return 0;
        }
        let mut input = bytes;
        loop {
            let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return bytes.len() };
            let Stream { sealed: Some(sealed), engine, .. } = &mut **s else { return bytes.len() };
            if sealed.failed {
                return bytes.len();
            }
            match sealed.tls.receive(&mut input) {
                Ok(None) => break,
                Ok(Some(TlsEvent::Established)) => self.on_tls_established(now, id),
                Ok(Some(TlsEvent::Plain(run))) => {
                    let Some(engine) = engine else { continue };
                    engine.borrow_scratch(&mut self.iwarp_state.spare);
                    let taken = engine.receive(&mut self.adapter, run, now);
                    if engine.is_held() {
                        sealed.kept = run[taken..].to_vec();
                        break;
                    }
                }
                Ok(Some(TlsEvent::PeerClosed)) => {
                    if let Some(engine) = engine {
                        engine.on_fin(&mut self.adapter, now);
                    }
                }
                Err(reason) => {
                    self.fail_sealed(now, id, reason);
                    return bytes.len();
                }
            }
        }
        if let Some(engine) = self.iwarp_state.streams.get_mut(&id).and_then(|s| s.engine.as_mut()) {
            engine.return_scratch(&mut self.iwarp_state.spare);
        }
        self.iwarp_state.touch(id);
        self.stream_done(now, id);
        bytes.len() - input.len()
    }

    /// Takes in what was opened and had to wait; false when it still has to.
    fn feed_kept(&mut self, now: Time, id: StreamId) -> bool {
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return true };
        let Stream { sealed: Some(sealed), engine: Some(engine), .. } = &mut **s else { return true };
        let kept = core::mem::take(&mut sealed.kept);
        let taken = engine.receive(&mut self.adapter, &kept, now);
        let held = engine.is_held();
        if held {
            sealed.kept = kept[taken..].to_vec();
        }
        self.stream_done(now, id);
        !held
    }

    /// The stream's end, as the system tells it.
    pub(super) fn end_sealed(&mut self, now: Time, id: StreamId) {
        let Some(sealed) = self.iwarp_state.streams.get_mut(&id).and_then(|s| s.sealed.as_mut()) else {
            return;
        };
        if sealed.failed {
            self.iwarp_state.orders.push_back(StreamCommand::Close(id));
            return self.stream_over(now, id);
        }
        match sealed.tls.on_eof() {
            Ok(()) => self.stream_done(now, id),
            Err(reason) => self.fail_sealed(now, id, reason),
        }
    }

    /// TLS failed, or turned somebody away: its last words leave, and the stream ends.
    fn fail_sealed(&mut self, now: Time, id: StreamId, reason: CloseReason) {
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        tracing::debug!(peer = %s.remote, %reason, "a stream under TLS ends");
        s.deadline = Some(now + LAST_WORDS);
        let conn = s.conn;
        if let Some(sealed) = &mut s.sealed {
            sealed.failed = true;
            sealed.then = Some(StreamCommand::Shutdown(id));
        }
        if let Some(b) = conn.and_then(|c| self.iwarp_state.conns.get_mut(&c)) {
            b.ending.get_or_insert(reason);
        }
        if let Some(engine) = self.iwarp_state.streams.get_mut(&id).and_then(|s| s.engine.as_mut()) {
            engine.on_error(&mut self.adapter);
        }
        self.iwarp_state.touch(id);
        self.iwarp_state.schedule(id);
        self.after_sealed(now, id);
    }

    /// A client's stream is connected.
    pub(super) fn start_tls_client(&mut self, now: Time, id: StreamId, t: &ClientTls) {
        let unix_time = self.unix_time(now);
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        let token = t.token.clone().filter(|_| s.index == 0);
        match TlsStream::client(&t.setup, &t.server_name, token, unix_time) {
            Ok(tls) => s.sealed = Some(StreamTls::new(tls)),
            Err(e) => {
                if let Some(b) = s.conn.and_then(|c| self.iwarp_state.conns.get_mut(&c)) {
                    b.ending.get_or_insert(CloseReason::Handshake(e.to_string()));
                }
                return self.stream_over(now, id);
            }
        }
        self.iwarp_state.touch(id);
    }

    /// A client speaks TLS.
    pub(super) fn start_tls_server(&mut self, now: Time, id: StreamId) -> bool {
        let unix_time = self.unix_time(now);
        let Some(server) = &self.config.server else { return false };
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return false };
        // Further streams of somebody who is let in already come from there: whose they are is seen when TLS has shown it.
        let expected = self.iwarp_state.gathering.values().any(|c| {
            self.iwarp_state
                .conns
                .get(c)
                .is_some_and(|b| b.info.remote.ip() == s.remote.ip() && b.info.peer.is_some())
        });
        let authority =
            if expected { Authority { keys: None, tokens: Vec::new() } } else { server.authority.clone() };
        let setup = self.acceptor.setup();
        match setup.map(|setup| TlsStream::server(setup, authority, unix_time)) {
            Some(Ok(tls)) => s.sealed = Some(StreamTls::new(tls)),
            Some(Err(error)) => {
                tracing::warn!(%error, "TLS cannot be served");
                return false;
            }
            None => return false,
        }
        true
    }

    /// The peer has shown who it is.
    fn on_tls_established(&mut self, now: Time, id: StreamId) {
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        let Some(sealed) = &s.sealed else { return };
        s.peer = sealed.tls.peer().cloned();
        if s.is_client {
            return self.on_server_shown(now, id);
        }
        let refusal = self.stream_refusal_reason(now, id);
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        let Some(sealed) = &mut s.sealed else { return };
        match refusal {
            Some(words) => {
                sealed.tls.refuse(code::UNAUTHORISED as u8, &words);
                self.fail_sealed(now, id, CloseReason::Local);
            }
            None => {
                sealed.tls.admit();
                self.start_engine_of_server(now, id);
            }
        }
    }

    /// Of a client: the server is whom TLS was told to trust; on further streams, the same one as on the first.
    fn on_server_shown(&mut self, now: Time, id: StreamId) {
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        let Some(b) = s.conn.and_then(|c| self.iwarp_state.conns.get_mut(&c)) else { return };
        if b.info.peer.is_some() && b.info.peer != s.peer {
            let text = "another server answered on a further stream of the connection".to_owned();
            return self.fail_sealed(now, id, CloseReason::Handshake(text));
        }
        b.info.peer.clone_from(&s.peer);
        if let Some(suite) = s.sealed.as_ref().and_then(|s| s.tls.suite()) {
            b.info.suite = suite;
        }
        if let Some(i) = &mut b.info.iwarp {
            i.tls = true;
        }
        self.start_engine_of_client(now, id);
    }

    /// Why a client that TLS lets in may not come in after all.
    fn stream_refusal_reason(&mut self, now: Time, id: StreamId) -> Option<String> {
        let s = self.iwarp_state.streams.get(&id)?;
        let peer = s.peer.clone()?;
        let of_known = |c: &ConnId| {
            let b = self.iwarp_state.conns.get(c);
            b.is_some_and(|b| b.info.remote.ip() == s.remote.ip() && b.info.peer.as_ref() == Some(&peer))
        };
        if self.iwarp_state.gathering.values().any(of_known) {
            // It was asked about with the first stream; which connection it belongs to, it says next.
            if let Some(s) = self.iwarp_state.streams.get_mut(&id) {
                s.further = true;
            }
            return None;
        }
        self.admit_stream(now, id)
    }

    /// Why the client that a stream has shown is not let in with a connection of its own.
    pub(super) fn admit_stream(&mut self, now: Time, id: StreamId) -> Option<String> {
        let s = self.iwarp_state.streams.get(&id)?;
        let peer = s.peer.clone()?;
        let used = s.sealed.as_ref().and_then(|s| s.tls.token_used().cloned());
        let server = self.config.server.as_mut()?;
        match used {
            Some(t) => {
                let before = server.authority.tokens.len();
                server.authority.tokens.retain(|x| x.id() != t.id());
                if server.authority.tokens.len() == before {
                    return Some("this one-time token was used before: ask for another".to_owned());
                }
            }
            // The list may not have been looked at.
            None if !server.authority.lists(Some(&peer)) => {
                return Some(
                    "neither this client's key is listed here nor does it present a one-time token"
                        .to_owned(),
                );
            }
            None => {}
        }
        self.client_admission.as_mut()?.admit(now, &peer).err()
    }
}

/// Seals what the engine has to send, as much as goes at once.
fn seal(engine: &mut Connection, tls: &mut TlsStream, a: &mut Adapter, plain: &mut Vec<u8>, now: Time) {
    plain.clear();
    let Some(t) = engine.transmit(a, now) else { return };
    let mut skip = t.skip;
    let mut failed = false;
    for piece in t.pieces {
        if plain.len() >= AT_ONCE {
            break;
        }
        let most = AT_ONCE - plain.len();
        match piece {
            Piece::Scratch { start, len } => {
                let past = core::mem::take(&mut skip).min(*len);
                let n = (len - past).min(most);
                plain.extend(t.scratch.get(start + past..start + past + n).unwrap_or_default());
            }
            Piece::Region(p) => {
                let past = (core::mem::take(&mut skip) as u64).min(p.len);
                let n = (p.len - past).min(most as u64);
                let part = verbs::MrRange { offset: p.offset + past, len: n, ..*p };
                failed |= a.fold_mr(part, &mut |b| plain.extend(b)).is_err();
            }
        }
    }
    if failed {
        return engine.on_error(a);
    }
    let took = tls.write(plain);
    engine.on_sent(a, took);
}
