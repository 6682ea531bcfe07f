//! Sends and receives handshake messages in Initial and Handshake packets, with retransmission until they are
//! acknowledged.

use super::authority::Authority;
use super::cc_notifications::CcNotifications;
use super::congestion::Congestion;
use super::crypto_stream::CryptoStream;
use super::{ConnEvent, Connection, DEFAULT_PRIORITY, DatagramInfo, State};
use crate::config::TransportOptions;
use crate::crypto::{
    ClientSetup, Handshake, HandshakeError, KeyPair, Level, Offer, OneTimeToken, ServerSetup, Side, Suite,
    negotiate,
};
use crate::error::{CloseReason, Violation, code, words};
use crate::lane::Lane;
use crate::lane::mtu::{self, MtuSearch};
use crate::streams::Streams;
use base::{Rng, Span, Time};
use cc::engine::Flow;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use wire::packet::{LONG_TAG, MIN_INITIAL, put_long};
use wire::{Cid, Frame, LongHeader, LongType, Params, Put, Reader, SliceWriter};

/// First repetition of handshake messages; doubles each time.
const FIRST_REPEAT: Span = Span::from_millis(400);
/// Then after twice as long each time, but no longer than this: where light comes back late, several attempts are left.
const MAX_REPEAT: Span = Span::from_millis(1_600);
/// Levels of the handshake that have messages.
pub const CRYPTO_LEVELS: usize = 2;
/// Bytes of handshake messages in one packet.
const CHUNK: usize = 1_100;

/// The parameters of a client's connection.
#[derive(Debug)]
pub struct ConnectParams {
    /// Where the server is.
    pub remote: SocketAddr,
    /// Its name, for X.509.
    pub server_name: String,
    /// Credentials and trust.
    pub setup: ClientSetup,
    /// A one-time token to present.
    pub token: Option<OneTimeToken>,
    /// Options.
    pub options: TransportOptions,
    /// The identifier of packets for this end.
    pub local_cid: Cid,
    /// Stateless-reset token of `local_cid`.
    pub reset_token: [u8; 16],
    /// Seconds since 1970, for certificates.
    pub unix_time: u64,
}

/// The parameters of a server's connection, made for a client's first packet.
#[derive(Debug)]
pub struct AcceptParams {
    /// Where the client is.
    pub remote: SocketAddr,
    /// Which of this end's addresses the client knows: all answers leave from it.
    pub local: Option<IpAddr>,
    /// Credentials and the keys accepted.
    pub setup: ServerSetup,
    /// Which clients are admitted.
    pub authority: Authority,
    /// Options.
    pub options: TransportOptions,
    /// The identifier of packets for this end.
    pub local_cid: Cid,
    /// Stateless-reset token of `local_cid`.
    pub reset_token: [u8; 16],
    /// Destination identifier of the client's very first packet.
    pub original_dcid: Vec<u8>,
    /// Destination identifier of the packet at hand: keys of Initial packets come from it.
    pub initial_dcid: Vec<u8>,
    /// The client's identifier.
    pub client_scid: Vec<u8>,
    /// Whether a Retry was sent before, whose token validated the address.
    pub retried: bool,
    /// Seconds since 1970, for certificates.
    pub unix_time: u64,
}

/// The state of the handshake and its retransmission.
#[derive(Debug)]
pub(super) struct HandshakeState {
    /// Until both ends are known to have all of it, and the client is authorised. Its keys go with it: RFC 9001, section
    /// 4.9.2, an endpoint MUST discard them then.
    handshake: Option<Box<Handshake>>,
    levels: [CryptoStream; CRYPTO_LEVELS],
    initial_keys: Option<KeyPair>,
    handshake_keys: Option<KeyPair>,
    dcid: Vec<u8>,
    scid: Vec<u8>,
    token: Vec<u8>,
    original_dcid: Vec<u8>,
    retry_scid: Option<Vec<u8>>,
    proof: Option<OneTimeToken>,
    pub(super) authority: Authority,
    pub(super) token_used: Option<OneTimeToken>,
    has_peer_packet: bool,
    confirmed: bool,
    repeat: Span,
    repeat_at: Option<Time>,
    give_up: Time,
    first_sent: Option<Time>,
    repeated: bool,
    /// Anti-amplification of RFC 9000, section 8.1: three times what came, until the address is validated.
    validated: bool,
    bytes_in: u64,
    bytes_out: u64,
}

const LEVELS: [Level; CRYPTO_LEVELS] = [Level::Initial, Level::Handshake];

impl HandshakeState {
    /// `ids`: the identifier that Initial keys come from, the peer's, ours.
    fn new(handshake: Handshake, side: Side, ids: (Vec<u8>, Vec<u8>, Cid), give_up: Time) -> HandshakeState {
        let (initial_dcid, dcid, local) = ids;
        HandshakeState {
            handshake: Some(Box::new(handshake)),
            levels: Default::default(),
            initial_keys: Some(KeyPair::initial(&initial_dcid, side)),
            handshake_keys: None,
            dcid,
            scid: local.0.to_be_bytes().to_vec(),
            token: Vec::new(),
            original_dcid: initial_dcid,
            retry_scid: None,
            proof: None,
            authority: Authority::default(),
            token_used: None,
            has_peer_packet: false,
            confirmed: false,
            repeat: FIRST_REPEAT,
            repeat_at: None,
            give_up,
            first_sent: None,
            repeated: false,
            validated: false,
            bytes_in: 0,
            bytes_out: 0,
        }
    }

    /// Bytes and pieces of handshake messages that wait behind a gap.
    pub(super) fn buffered(&self) -> (usize, usize) {
        self.levels.iter().fold((0, 0), |(b, n), l| (b + l.ahead_bytes, n + l.ahead.len()))
    }

    /// Whether the peer has said anything that was sealed for this connection.
    pub(super) fn is_heard(&self) -> bool {
        self.has_peer_packet
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    pub(super) const fn give_up(&self) -> Time {
        self.give_up
    }

    /// The peer has all that it needs. Once the client is `authorised`, too, nothing of the set-up is needed any more.
    pub(super) fn confirm(&mut self, authorised: bool) {
        self.confirmed = true;
        self.repeat_at = None;
        if authorised && self.handshake.is_some() {
            (self.handshake, self.initial_keys, self.handshake_keys) = (None, None, None);
            self.levels = Default::default();
            (self.token, self.authority) = (Vec::new(), Authority::default());
        }
    }

    /// What a one-time token is proven with, while the handshake is at hand.
    pub(super) fn token_binding(&self) -> Result<[u8; 32], HandshakeError> {
        self.handshake.as_ref().ok_or(HandshakeError::Incomplete)?.export_token_binding()
    }

    /// Whether set-up packets wait to be sent.
    pub(super) fn has_pending(&self) -> bool {
        self.levels.iter().any(CryptoStream::pending)
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        Some(self.repeat_at.map_or(self.give_up, |t| t.min(self.give_up)))
    }

    /// Whether it is time to give up.
    pub(super) fn is_over(&self, now: Time) -> bool {
        now >= self.give_up
    }

    /// Repeats what is not acknowledged when it is time to; true when it did.
    pub(super) fn repeat(&mut self, now: Time) -> bool {
        if self.repeat_at.take_if(|t| *t <= now).is_none() {
            return false;
        }
        self.repeat = (self.repeat * 2).min(MAX_REPEAT.max(self.repeat));
        self.repeated = true;
        self.levels.iter_mut().for_each(|l| l.next = l.acked);
        true
    }

    /// Retransmits handshake messages that the peer may lack with each CLOSE: without them the peer could not decrypt
    /// it.
    pub(super) fn repeat_for_close(&mut self) {
        if !self.confirmed {
            self.levels.iter_mut().for_each(|l| l.next = l.acked);
        }
    }

    /// Resets the retransmission backoff when the peer responds (RFC 9002, section 6.2.2).
    fn reset_backoff(&mut self, now: Time, rtt: Option<Span>) {
        self.repeat = FIRST_REPEAT.max(rtt.unwrap_or(Span::ZERO) * 2);
        self.repeat_at = self.repeat_at.map(|t| t.min(now + self.repeat));
    }

    /// Arms the repetition anew.
    pub(super) fn rearm(&mut self, now: Time) {
        self.repeat_at = Some(now + self.repeat);
    }

    fn pull(&mut self) {
        let Some(handshake) = &mut self.handshake else { return };
        for level in LEVELS {
            let out = &mut self.levels[level as usize].out;
            handshake.write(level, out);
        }
        if let Some(k) = handshake.take_keys() {
            self.handshake_keys = Some(k);
        }
    }

    /// Writes the next set-up datagram.
    pub(super) fn poll_datagram(&mut self, now: Time, side: Side, buf: &mut [u8]) -> Option<usize> {
        for level in LEVELS {
            let i = level as usize;
            if !self.levels[i].pending() || (level == Level::Handshake && self.handshake_keys.is_none()) {
                continue;
            }
            if !self.validated && self.bytes_out + MIN_INITIAL as u64 > 3 * self.bytes_in {
                return None;
            }
            let n = self.write_packet(level, side, buf)?;
            self.bytes_out += n as u64;
            if self.levels[i].acked < self.levels[i].out.len() && self.repeat_at.is_none() {
                self.repeat_at = Some(now + self.repeat);
            }
            self.first_sent.get_or_insert(now);
            return Some(n);
        }
        None
    }

    fn write_packet(&mut self, level: Level, side: Side, buf: &mut [u8]) -> Option<usize> {
        let stream = &mut self.levels[level as usize];
        let kind = if level == Level::Initial { LongType::Initial } else { LongType::Handshake };
        let mut head = Vec::with_capacity(64);
        let pn = stream.pn;
        stream.pn += 1;
        put_long(&mut head, kind, &self.dcid, &self.scid, &self.token, pn);
        let mut body = Vec::with_capacity(MIN_INITIAL);
        if stream.ack_due {
            stream.ack_due = false;
            Frame::CryptoAck { offset: stream.received }.put(&mut body);
        }
        let end = stream.out.len().min(stream.next + CHUNK);
        if stream.next < end {
            Frame::Crypto { offset: stream.next as u64, data: &stream.out[stream.next..end] }.put(&mut body);
            stream.next = end;
        }
        // RFC 9000, section 14.1: a client's Initial fills 1200 bytes.
        let full = MIN_INITIAL.saturating_sub(head.len() + LONG_TAG);
        if side == Side::Client && level == Level::Initial && body.len() < full {
            body.resize(full, 0);
        }
        let keys = if level == Level::Initial { &mut self.initial_keys } else { &mut self.handshake_keys }
            .as_mut()?;
        let tag = keys.seal(0, pn.into(), &head, &mut body).ok()?;
        let mut w = SliceWriter::new(buf);
        w.put(&head);
        w.put(&tag);
        w.put(&body);
        Some(w.len())
    }

    /// Closing words before there are data keys.
    pub(super) fn write_close(&mut self, close: &Frame<'_>, buf: &mut [u8]) -> Option<usize> {
        let level = if self.handshake_keys.is_some() { Level::Handshake } else { Level::Initial };
        let kind = if level == Level::Initial { LongType::Initial } else { LongType::Handshake };
        let stream = &mut self.levels[level as usize];
        let pn = stream.pn;
        stream.pn += 1;
        let (mut head, mut body) = (Vec::new(), Vec::new());
        put_long(&mut head, kind, &self.dcid, &self.scid, &self.token, pn);
        close.put(&mut body);
        let keys = if level == Level::Initial { &mut self.initial_keys } else { &mut self.handshake_keys }
            .as_mut()?;
        let tag = keys.seal(0, pn.into(), &head, &mut body).ok()?;
        let mut w = SliceWriter::new(buf);
        w.put(&head);
        w.put(&tag);
        w.put(&body);
        Some(w.len())
    }
}

/// An algorithm from its specification, errors in words.
/// An algorithm, and what takes its place should it be a program that misbehaves: who leaves the default has not said.
pub(super) fn algorithm(
    spec: &str,
    fallback: &str,
    info: &cc::PathInfo,
    rng: Rng,
) -> Result<Box<dyn cc::Algorithm>, String> {
    let (def, params) = cc::registry::parse(spec).map_err(|e| e.to_string())?;
    let mut made = cc::registry::create(def.name, &params, info, rng).map_err(|e| e.to_string())?;
    if fallback != cc::registry::DEFAULT {
        made.set_fallback(fallback);
    }
    Ok(made)
}

fn local_params(o: &TransportOptions, cid: Cid, reset: [u8; 16], v6: bool) -> Result<Params, HandshakeError> {
    let (suites, suite_costs) = o.offered_suites();
    let cc_terms = crate::negotiation::terms(&o.cc, &o.negotiation).map_err(HandshakeError::Config)?;
    Ok(Params {
        cc_terms: Some(cc_terms),
        suites,
        suite_costs,
        module: o.module,
        cc: vec![o.cc.clone().into_bytes()],
        idle_ms: o.idle_timeout.as_millis(),
        max_datagram: u64::from(TransportOptions { max_packet: 65_535, ..o.clone() }.max_datagram(v6)),
        max_qps: o.max_qps.into(),
        initial_qps: o.initial_qps.into(),
        max_lanes: super::MAX_LANES as u64,
        reliable: o.reliable,
        scid: cid.0.to_be_bytes().to_vec(),
        original_dcid: None,
        retry_scid: None,
        reset_token: Some(reset),
        token: false,
        addresses: false,
        signals: true,
    })
}

impl Connection {
    /// Starts to connect.
    ///
    /// # Errors
    /// Settings that cannot be used, in words.
    pub fn open(now: Time, o: ConnectParams, mut rng: Rng) -> Result<Connection, HandshakeError> {
        let mut params = Vec::new();
        let mut ours = local_params(&o.options, o.local_cid, o.reset_token, o.remote.is_ipv6())?;
        ours.token = o.token.is_some();
        ours.addresses = o.options.discover.asks();
        ours.put(&mut params);
        let terms = ours.cc_terms.take().unwrap_or_default();
        let handshake = Handshake::client(&o.setup, &o.server_name, params, o.unix_time)?;
        let mut dcid = vec![0; 8];
        rng.fill(&mut dcid);
        let ids = (dcid.clone(), dcid, o.local_cid);
        let mut c = Connection::new(now, Side::Client, handshake, o.remote, ids, o.options, rng)?;
        c.set_cc_terms(terms);
        c.handshake.proof = o.token;
        c.handshake.validated = true;
        c.authorised = true;
        c.handshake.pull();
        Ok(c)
    }

    /// Answers a client's first packet, which the caller then passes to [`Connection::handle_long`].
    ///
    /// # Errors
    /// Settings that cannot be used, in words.
    pub fn accept(now: Time, a: AcceptParams, rng: Rng) -> Result<Connection, HandshakeError> {
        let mut p = local_params(&a.options, a.local_cid, a.reset_token, a.remote.is_ipv6())?;
        p.original_dcid = Some(a.original_dcid);
        p.retry_scid = a.retried.then(|| a.initial_dcid.clone());
        let mut params = Vec::new();
        p.put(&mut params);
        let terms = p.cc_terms.take().unwrap_or_default();
        let handshake = Handshake::server(&a.setup, params, a.unix_time)?;
        let ids = (a.initial_dcid, a.client_scid, a.local_cid);
        let mut c = Connection::new(now, Side::Server, handshake, a.remote, ids, a.options, rng)?;
        c.set_cc_terms(terms);
        c.lanes[0].local = a.local;
        c.handshake.validated = a.retried;
        c.handshake.authority = a.authority;
        Ok(c)
    }

    /// `ids`: the identifier that Initial keys come from, the peer's, ours.
    fn new(
        now: Time,
        side: Side,
        handshake: Handshake,
        remote: SocketAddr,
        ids: (Vec<u8>, Vec<u8>, Cid),
        options: TransportOptions,
        mut rng: Rng,
    ) -> Result<Connection, HandshakeError> {
        let info = cc::PathInfo {
            packet_bytes: 1_228,
            handshake_rtt: None,
            ecn: true,
            known_rate: options.known_rate,
            remembered: options.remembered,
        };
        let first =
            algorithm(&options.cc, &options.fallback, &info, rng.fork()).map_err(HandshakeError::Config)?;
        let flow = Flow::new(first, options.rate_cap);
        let overhead = if remote.is_ipv6() { 48 } else { 28 };
        let search = MtuSearch::new(mtu::BASE, options.max_datagram(remote.is_ipv6()), overhead);
        let lane = Lane::new(0, (ids.2, Cid(0)), remote, search, flow, &mut rng);
        let mut first = super::flows::FlowSetup::new("", &options.cc, &options.fallback);
        first.dscp = options.intent.dscp;
        Ok(Connection {
            side,
            state: State::Handshake,
            rate_cap: options.rate_cap,
            handshake: HandshakeState::new(handshake, side, ids, now + options.connect_timeout),
            options,
            keys: None,
            suite: Suite::Aes128Gcm,
            peer: None,
            peer_params: Params::default(),
            authorised: false,
            lanes: vec![lane],
            scheduler: Default::default(),
            frames: VecDeque::new(),
            pending_lanes: Vec::new(),
            lanes_ever: 0,
            advertised: Default::default(),
            advertised_by_peer: None,
            coupler: None,
            cids: Vec::new(),
            next_lane: 0,
            spare: 0,
            events: VecDeque::new(),
            stats: Default::default(),
            rng,
            last_received: now,
            last_eliciting_sent: now,
            discard_keys_at: None,
            settle_keys_at: None,
            update_wanted: false,
            update_ping: None,
            answer_wait: Span::ZERO,
            deferred_feedback: super::deferred_feedback::DeferredFeedback::default(),
            next_flow: 0,
            packet_telemetry: None,
            has_programs: first.is_program,
            flow_setups: vec![first],
            tree: None,
            capped: true,
            lead: Vec::new(),
            congestion: Congestion::new(side, Default::default()),
            cc_notifications: CcNotifications::new(),
            early: Vec::new(),
        })
    }

    /// Takes in a set-up datagram for this connection. Works in place.
    pub fn handle_long(
        &mut self,
        now: Time,
        meta: DatagramInfo,
        header: &LongHeader<'_>,
        datagram: &[u8],
        streams: &mut impl Streams,
    ) {
        if matches!(self.state, State::Closed) {
            return;
        }
        if header.kind == LongType::Retry {
            return self.handle_retry(header, datagram);
        }
        let level = if header.kind == LongType::Initial { Level::Initial } else { Level::Handshake };
        // Whoever saw the first packet can make Initial packets: with data keys they have nothing more to say (RFC
        // 9001, section 4.9.1).
        if level == Level::Initial && self.keys.is_some() {
            return;
        }
        self.handshake.bytes_in += datagram.len() as u64;
        let (head, rest) = datagram.split_at(header.clear);
        let Some((tag, sealed)) = rest.split_at_checked(LONG_TAG) else { return };
        let keys = if level == Level::Initial {
            &mut self.handshake.initial_keys
        } else {
            &mut self.handshake.handshake_keys
        };
        let Some(keys) = keys else { return };
        let mut body = sealed.to_vec();
        if keys.open(false, 0, header.pn.into(), head, tag, &mut body).is_err() {
            self.stats.packets_forged += 1;
            return;
        }
        if self.handshake.has_peer_packet && header.scid != self.handshake.dcid {
            return;
        }
        // The peer's own identifier replaces the one made up for its first packet (RFC 9000, section 7.2).
        if !self.handshake.has_peer_packet {
            self.handshake.has_peer_packet = true;
            self.handshake.dcid = header.scid.to_vec();
        }
        if level == Level::Handshake {
            // Only who received our flight has these keys: the address is real (RFC 9000, section 8.1).
            self.handshake.validated = true;
        }
        self.last_received = now;
        if let Err(v) = self.handle_setup_frames(now, meta, level, &body, streams) {
            self.fail(now, &v);
        }
    }

    fn handle_setup_frames(
        &mut self,
        now: Time,
        meta: DatagramInfo,
        level: Level,
        body: &[u8],
        streams: &mut impl Streams,
    ) -> Result<(), Violation> {
        let mut r = Reader::new(body);
        while !r.is_empty() {
            match Frame::parse(&mut r)? {
                Frame::Padding(_) | Frame::Ping => {}
                Frame::CryptoAck { offset } => {
                    let s = &mut self.handshake.levels[level as usize];
                    let acked = usize::try_from(offset).unwrap_or(usize::MAX);
                    if acked > s.out.len() {
                        return Err(Violation::new(
                            code::FALSE_FEEDBACK,
                            "handshake bytes acknowledged that were never sent",
                        ));
                    }
                    s.acked = s.acked.max(acked);
                    s.next = s.next.max(s.acked);
                    if self.keys.is_none() && self.handshake.levels.iter().all(|s| s.acked == s.out.len()) {
                        self.handshake.repeat_at = None;
                    }
                }
                Frame::Crypto { offset, data } => {
                    let ready = self.handshake.levels[level as usize].take(offset, data)?;
                    self.on_handshake_bytes(now, level, &ready)?;
                }
                Frame::Close { code, reason } => {
                    let busy = code == code::BUSY && level == Level::Initial && self.side == Side::Client;
                    self.end(if busy {
                        CloseReason::Busy { remote: self.remote().to_string(), words: words(reason) }
                    } else {
                        CloseReason::Peer { code, reason: words(reason) }
                    });
                    return Ok(());
                }
                other => {
                    return Err(Violation::protocol(format!("{other:?} is not allowed in set-up packets")));
                }
            }
        }
        if self.keys.is_some() && !self.early.is_empty() {
            self.replay_early(now, meta, streams);
        }
        Ok(())
    }

    fn on_handshake_bytes(&mut self, now: Time, level: Level, bytes: &[u8]) -> Result<(), Violation> {
        if bytes.is_empty() {
            return Ok(());
        }
        let fail = |e: HandshakeError| {
            let code = e.alert().map_or(code::PROTOCOL, |a| code::TLS + u64::from(a));
            Violation::new(code, e.to_string())
        };
        let Some(handshake) = &mut self.handshake.handshake else { return Ok(()) };
        let read = handshake.read(level, bytes);
        self.handshake.pull();
        read.map_err(fail)?;
        if !self.handshake.repeated
            && let Some(t) = self.handshake.first_sent
            && !self.lanes[0].rtt.is_known()
        {
            self.lanes[0].rtt.update(now.since(t), base::Span::ZERO);
        }
        self.handshake.reset_backoff(now, self.lanes[0].rtt.latest());
        if self.keys.is_none() && self.handshake.handshake.as_ref().is_some_and(|h| h.is_complete()) {
            self.complete(now)?;
        }
        Ok(())
    }

    /// The handshake is complete: parameters are authentic, data keys can be made.
    fn complete(&mut self, now: Time) -> Result<(), Violation> {
        let Some(hs) = &self.handshake.handshake else { return Ok(()) };
        let bytes = hs.peer_params().unwrap_or_default();
        let peer = Params::parse(bytes).map_err(|e| Violation::new(code::PARAMETERS, e.to_string()))?;
        self.check_identifiers(&peer)?;
        let (suites, costs) = self.options.offered_suites();
        let mine = Offer { suites: &suites, costs: &costs, module: self.options.module };
        let theirs = Offer { suites: &peer.suites, costs: &peer.suite_costs, module: peer.module };
        let (client, server) = if self.side == Side::Client { (mine, theirs) } else { (theirs, mine) };
        let suite =
            negotiate(client, server).map_err(|e| Violation::new(code::NO_COMMON_SUITE, e.to_string()))?;
        let internal = |e: HandshakeError| Violation::new(code::INTERNAL, e.to_string());
        let secrets = hs.export_secrets(suite).map_err(internal)?;
        let max = self.options.max_datagram(self.lanes[0].remote.is_ipv6()).min(peer.max_datagram as u16);
        self.keys = Some(KeyPair::data(suite, max.into(), &secrets, self.side));
        self.suite = suite;
        self.peer = hs.peer_identity();
        let remote_cid = peer.scid.as_slice().try_into().map(u32::from_be_bytes);
        let remote_cid = remote_cid
            .map_err(|_| Violation::new(code::PARAMETERS, "the peer's identifier is not four bytes"))?;
        self.negotiate_cc(&peer)?;
        self.peer_params = peer;
        self.state = State::Open;
        let overhead = self.lanes[0].overhead();
        self.lanes[0].remote_cid = Cid(remote_cid);
        self.lanes[0].mtu = MtuSearch::new(mtu::BASE, max, overhead);
        self.recreate_first_flow().map_err(|e| Violation::new(code::INTERNAL, e))?;
        for qpn in 0..self.initial_qps() {
            self.scheduler.insert(qpn, 0, DEFAULT_PRIORITY);
        }
        self.last_eliciting_sent = now;
        match self.side {
            Side::Client => self.complete_client().map_err(internal),
            Side::Server => self.complete_server(),
        }
    }

    fn complete_client(&mut self) -> Result<(), HandshakeError> {
        if let Some(token) = &self.handshake.proof {
            let proof = token.prove(&self.handshake.token_binding()?);
            self.push_frame(Frame::TokenProof(proof));
        }
        // Until the server confirms, something is sent now and then (RFC 9002, section 6.2.2.1): the client may have
        // got another address meanwhile, which the server learns of by this only.
        self.handshake.repeat_at.get_or_insert(self.last_received + self.handshake.repeat);
        self.events.push_back(ConnEvent::Established);
        Ok(())
    }

    /// RFC 9000, section 7.3: identifiers that stood in clear must be those in the authenticated parameters.
    fn check_identifiers(&self, peer: &Params) -> Result<(), Violation> {
        let s = &self.handshake;
        let server_said = self.side == Side::Client;
        let original = server_said.then(|| s.original_dcid.clone());
        let retry = if server_said { s.retry_scid.clone() } else { None };
        if peer.scid != s.dcid || peer.original_dcid != original || peer.retry_scid != retry {
            return Err(Violation::new(code::PARAMETERS, "identifiers were changed on the way"));
        }
        Ok(())
    }

    /// The server wants the address proven first (RFC 9000, section 8.1.2): start again with its token.
    fn handle_retry(&mut self, header: &LongHeader<'_>, datagram: &[u8]) {
        let s = &mut self.handshake;
        if self.side == Side::Server || s.has_peer_packet || s.retry_scid.is_some() || header.token.is_empty()
        {
            return;
        }
        if !super::close::retry_is_genuine(&s.original_dcid, header, datagram) {
            self.stats.packets_forged += 1;
            return;
        }
        s.token = header.token.to_vec();
        s.retry_scid = Some(header.scid.to_vec());
        s.dcid = header.scid.to_vec();
        s.initial_keys = Some(KeyPair::initial(header.scid, Side::Client));
        s.levels[0].next = 0;
        s.repeat_at = None;
        s.repeated = true;
    }

    /// The server speaks other versions only. Believed only before anything genuine arrived (RFC 9000, section
    /// 6.2).
    pub fn handle_version_negotiation(&mut self, versions: &[u8]) {
        if self.side == Side::Server || self.handshake.has_peer_packet {
            return;
        }
        let list: Vec<u32> =
            versions.chunks_exact(4).map(|v| v.iter().fold(0, |n, b| n << 8 | u32::from(*b))).collect();
        if list.contains(&wire::packet::VERSION) {
            return;
        }
        let words: Vec<String> = list.iter().map(|v| format!("{v:#010x}")).collect();
        self.end(CloseReason::Version {
            offered: words.join(", "),
            ours: format!("{:#010x}", wire::packet::VERSION),
        });
    }

    /// Writes the only packet of a server that cannot take a client in: an Initial packet with CLOSE and code BUSY,
    /// under the keys of the client's Initial packet `header`. Nothing is kept. Gives its length, at most 640 bytes;
    /// `buf` must have as many.
    pub fn refuse(header: &LongHeader<'_>, scid: Cid, words: &str, buf: &mut [u8]) -> Option<usize> {
        let (mut head, mut body) = (Vec::new(), Vec::new());
        put_long(&mut head, LongType::Initial, header.scid, &scid.0.to_be_bytes(), &[], 0);
        let words: String = words.chars().take(wire::frame::MAX_REASON / 4).collect();
        Frame::Close { code: code::BUSY, reason: words.as_bytes() }.put(&mut body);
        let tag = KeyPair::initial(header.dcid, Side::Server).seal(0, 0, &head, &mut body).ok()?;
        let mut w = SliceWriter::new(buf.get_mut(..head.len() + tag.len() + body.len())?);
        w.put(&head);
        w.put(&tag);
        w.put(&body);
        Some(w.len())
    }

    /// The keys of Initial packets come from this identifier (server: to find the connection of a repeated
    /// first packet).
    pub fn initial_dcid(&self) -> &[u8] {
        &self.handshake.original_dcid
    }
}
