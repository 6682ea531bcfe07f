//! The server's stateless side: accepts new clients, sends Retry, Version Negotiation and stateless resets.

use crate::config::Config;
use crate::half_open::HalfOpen;
use crate::{ConnId, DatagramInfo, Endpoint, Transmit};
use base::{Rng, Span, Time};
use std::collections::VecDeque;
use std::net::SocketAddr;
use transport::connection::{AcceptParams, RETRY_PN};
use transport::crypto::{HandshakeError, KeyPair, ServerSetup, Side, TokenKey, TokenKind};
use transport::{Connection, Gauge};
use wire::packet::{MIN_INITIAL, VERSION, put_long, put_version_negotiation};
use wire::{LongHeader, LongType};

/// Stateless answers that wait at most; more are dropped.
const MAX_PENDING: usize = 256;
/// A Retry's token is good this long.
const TOKEN_LIFETIME: Span = Span::from_secs(30);
/// Stateless resets per second at most.
const RESETS_PER_SECOND: u32 = 1_000;
/// Clients told in a second at most that the server is full: each costs opening and sealing a packet.
const BUSY_PER_SECOND: u32 = 1_000;
/// Answers to unknown versions per second at most (RFC 9000, section 6.1, lets a server limit them): a client that gets none
/// asks again.
const VERSIONS_PER_SECOND: u32 = 1_000;

/// A limit per second.
#[derive(Default)]
struct RateLimit {
    second: u64,
    used: u32,
}

impl RateLimit {
    fn take(&mut self, now: Time, limit: u32) -> bool {
        let second = now.as_nanos() / 1_000_000_000;
        if second != self.second {
            *self = RateLimit { second, used: 0 };
        }
        let left = self.used < limit;
        self.used += u32::from(left);
        left
    }
}

/// The state of the server's stateless side.
pub(crate) struct Acceptor {
    setup: Option<ServerSetup>,
    tokens: TokenKey,
    pending: VecDeque<(Transmit, Vec<u8>)>,
    half_open: HalfOpen,
    open: usize,
    resets: RateLimit,
    refusals: RateLimit,
    versions: RateLimit,
}

impl Acceptor {
    pub fn new(config: &Config, mut rng: Rng) -> Result<Acceptor, HandshakeError> {
        let setup = match &config.server {
            Some(s) => Some(ServerSetup::new(&config.credentials, &s.auth)?),
            None => None,
        };
        let mut secret = [0; 32];
        rng.fill(&mut secret);
        Ok(Acceptor {
            setup,
            // Of this endpoint and this start: what another server of the same host has issued proves nothing here.
            tokens: TokenKey::new(&secret),
            pending: VecDeque::new(),
            half_open: HalfOpen::default(),
            open: 0,
            resets: RateLimit::default(),
            refusals: RateLimit::default(),
            versions: RateLimit::default(),
        })
    }

    /// The handshake settings of a server.
    pub fn setup(&self) -> Option<&ServerSetup> {
        self.setup.as_ref()
    }

    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Answers that wait to be sent.
    pub fn usage(&self) -> Gauge {
        Gauge::new(self.pending.len(), MAX_PENDING)
    }

    pub fn poll_transmit(&mut self, buf: &mut [u8]) -> Option<Transmit> {
        let (t, bytes) = self.pending.pop_front()?;
        buf[..bytes.len()].copy_from_slice(&bytes);
        Some(t)
    }

    fn push(&mut self, meta: DatagramInfo, bytes: Vec<u8>) {
        if self.pending.len() < MAX_PENDING {
            let len = bytes.len();
            self.pending.push_back((
                Transmit {
                    remote: meta.remote,
                    local: meta.local,
                    ecn: base::Ecn::NotEct,
                    dscp: 0,
                    segment: len,
                    len,
                    socket: 0,
                },
                bytes,
            ));
        }
    }

    /// A client's handshake is complete.
    pub fn on_established(&mut self, id: ConnId) {
        self.half_open.remove(id);
        self.open += 1;
    }

    /// A client's connection, or its handshake, is over.
    pub fn on_closed(&mut self, id: ConnId, established: bool) {
        if established {
            self.open = self.open.saturating_sub(1);
        }
        self.half_open.remove(id);
    }

    /// How many connections there are, when there is no room for another.
    pub fn full(&self, limit: usize) -> Option<String> {
        (self.open >= limit).then(|| format!("{} connections", self.open))
    }

    /// RFC 9000, section 6.1: only to datagrams that are long enough to be a first packet.
    pub fn version_negotiation(
        &mut self,
        now: Time,
        meta: DatagramInfo,
        dcid: &[u8],
        scid: &[u8],
        len: usize,
    ) {
        if self.setup.is_some() && len >= MIN_INITIAL && self.versions.take(now, VERSIONS_PER_SECOND) {
            let mut b = Vec::new();
            put_version_negotiation(&mut b, scid, dcid, &[VERSION]);
            self.push(meta, b);
        }
    }

    /// Sends a stateless reset: shorter than the packet it answers, so that two ends that have both forgotten the
    /// connection stop (RFC 9000, section 10.3.3), and rate limited.
    pub fn stateless_reset(
        &mut self,
        now: Time,
        meta: DatagramInfo,
        trigger: usize,
        token: &[u8; 16],
        rng: &mut Rng,
    ) {
        if trigger <= 33 || !self.resets.take(now, RESETS_PER_SECOND) {
            return;
        }
        let len = (trigger - 1).min(33 + rng.below(16) as usize);
        let mut b = vec![0; len];
        rng.fill(&mut b);
        b[0] &= !wire::packet::flag::LONG;
        b[len - 16..].copy_from_slice(token);
        self.push(meta, b);
    }

    fn retry(&mut self, now: Time, meta: DatagramInfo, h: &LongHeader<'_>, rng: &mut Rng) {
        let mut scid = [0; 8];
        rng.fill(&mut scid);
        let Ok(token) = self.tokens.issue(TokenKind::Retry, meta.remote, now, h.dcid) else { return };
        let mut b = Vec::new();
        put_long(&mut b, LongType::Retry, h.scid, &scid, &token, 0);
        // RFC 9000, section 17.2.5.1, in spirit: sealed with keys that only who saw the first packet has.
        let mut keys = KeyPair::initial(h.dcid, Side::Server);
        if let Ok(tag) = keys.seal(0, RETRY_PN, &b, &mut []) {
            b.extend_from_slice(&tag);
            self.push(meta, b);
        }
    }
}

impl Endpoint {
    /// A first packet of a client nobody knows. Nothing is kept for it unless it could be one.
    pub(crate) fn accept(
        &mut self,
        now: Time,
        meta: DatagramInfo,
        h: &LongHeader<'_>,
        datagram: &[u8],
    ) -> Option<ConnId> {
        let setup = self.acceptor.setup.clone()?;
        let server = self.config.server.clone()?;
        if datagram.len() < MIN_INITIAL || h.dcid.len() < 8 || h.scid.len() != 4 {
            return None;
        }
        let full = self.acceptor.full(server.max_connections).is_some();
        let mut original = h.dcid.to_vec();
        let mut retried = false;
        if !h.token.is_empty() {
            // A token that does not hold is no proof of anything (RFC 9000, section 8.1.3).
            original = self
                .acceptor
                .tokens
                .check(TokenKind::Retry, meta.remote, now, TOKEN_LIFETIME, h.token)
                .ok()?;
            retried = true;
        } else if !full && self.acceptor.half_open.len() >= server.retry_above {
            self.acceptor.retry(now, meta, h, &mut self.rng);
            return None;
        }
        if full && !self.acceptor.refusals.take(now, BUSY_PER_SECOND) {
            return None;
        }
        // Forged first packets cost no state: the tag must fit before anything is made.
        let (head, rest) = datagram.split_at(h.clear);
        let (tag, sealed) = rest.split_at_checked(wire::packet::LONG_TAG)?;
        let mut probe = sealed.to_vec();
        KeyPair::initial(h.dcid, Side::Server).open(false, 0, h.pn.into(), head, tag, &mut probe).ok()?;
        if full {
            self.refuse(meta, h, datagram.len());
            return None;
        }
        self.evict_handshakes(now, meta.remote, server.max_half_open)?;
        let local_cid = self.new_cid();
        let mut options = self.with_remembered_path(meta.remote, now, self.config.options.clone());
        let said = options.negotiation.clone();
        let ruled = self.apply_policy_to_incoming(meta.local, meta.remote, &mut options);
        let a = AcceptParams {
            remote: meta.remote,
            local: meta.local,
            setup,
            authority: server.authority,
            options,
            local_cid,
            reset_token: self.reset_token(local_cid),
            original_dcid: original,
            initial_dcid: h.dcid.to_vec(),
            client_scid: h.scid.to_vec(),
            retried,
            unix_time: self.unix_time(now),
        };
        let made = Connection::accept(now, a, self.rng.fork());
        let connection = made.inspect_err(|_| self.forget_share(&ruled)).ok()?;
        let Ok(id) = self.insert(connection, meta.remote, false, (ruled, said)) else {
            self.refuse(meta, h, datagram.len());
            return None;
        };
        self.acceptor.half_open.insert(now, id, meta.remote);
        self.by_initial.insert((meta.remote, h.dcid.to_vec()), id);
        Some(id)
    }

    /// Gives up handshakes until there is room for another. None: the newcomer waits, by sending its first packet again.
    fn evict_handshakes(&mut self, now: Time, remote: SocketAddr, limit: usize) -> Option<()> {
        while self.acceptor.half_open.len() >= limit {
            let id = self.acceptor.half_open.eviction_candidate(now, remote)?;
            self.acceptor.half_open.remove(id);
            self.abandon(id);
        }
        Some(())
    }

    /// Tells a client that there is no room for it, and keeps nothing. Its address is not proven: the answer is at most a
    /// third of what it answers.
    fn refuse(&mut self, meta: DatagramInfo, h: &LongHeader<'_>, received: usize) {
        let words = format!("{} connections", self.acceptor.open);
        let mut b = vec![0; received / 3];
        let scid = self.new_cid();
        if let Some(n) = Connection::refuse(h, scid, &words, &mut b) {
            b.truncate(n);
            self.acceptor.push(meta, b);
        }
    }
}
