//! iWARP connections made of one or more byte streams: how they are established and closed.

use super::fair_shares::Need;
use super::hello::{self, Hello, Reply};
use super::io::Stream;
use super::stream_stats::StreamStats;
use super::tls::ClientTls;
use super::{Iwarp, MAX_STREAMS, StreamCommand, StreamId};
use crate::app::{ConnId, ConnInfo, Event};
use crate::config::{Connect, ConnectError};
use crate::conn::{CQ_ENTRIES, READS, RECV_WR, SEND_WR};
use crate::flow_policy::FlowPolicy;
use crate::qp_shares::{Party, parties};
use crate::{Endpoint, IwarpInfo};
use ::iwarp::{Connection, End};
use base::{Rate, Time};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use transport::CloseReason;
use transport::crypto::{ClientSetup, Suite};
use transport::error::code;
use verbs::{Access, Data, Kind, Memory, Mr, QpId, QpInit, SendOp, SendWr, SrqId};

/// Records to another end of Longhaul are as long as they can be, however long segments are: only receivers that take
/// segments out of order gain by records that fit them, and long ones cost less.
pub const LONG_RECORDS: usize = 65_532;
/// Bytes of the region for a farewell: code, length of the words, words.
const FAREWELL: usize = 8 + 2 + WORDS;
/// Bytes of these words at most.
const WORDS: usize = 256;
/// Work requests of our own have this number; they make no completion when they succeed.
const OWN: u64 = u64::MAX;

/// Whether an end checks what is written to it before it copies that to its place.
fn wants_short_writes(settings: &::iwarp::Config) -> bool {
    settings.placement == ::iwarp::Placement::Verified
}

/// The peer is another end of Longhaul, and may want records of writes to be short.
pub(super) fn suit(engine: &mut Connection, short_writes: bool) {
    engine.set_emss(LONG_RECORDS);
    engine.announce_writes();
    if short_writes {
        engine.shorten_writes(hello::SHORT_WRITE);
    }
}

/// An iWARP connection: one or more streams.
pub(crate) struct IwarpConn {
    pub info: ConnInfo,
    /// Its streams and their queue pairs, by index.
    pub streams: Vec<Option<(StreamId, Option<QpId>)>>,
    pub established: usize,
    /// The application knows of it.
    pub told: bool,
    /// It ends, and why.
    pub ending: Option<CloseReason>,
    /// All streams are over, and the application was told so.
    pub closed: bool,
    pub srq: Option<SrqId>,
    /// What the client calls it, if that is Longhaul.
    id: Option<[u8; hello::ID]>,
    /// Of a client: how it was asked for, and until when it must be there: connecting, TLS, MPA and further streams together.
    pub(super) wanted: Option<Iwarp>,
    until: Time,
    /// The application has named a congestion control itself.
    pub(super) asked_congestion: bool,
    tls: Option<ClientTls>,
    /// Where the peer writes why it ends the connection.
    farewell: Option<Mr>,
    /// Where this end does, at the peer.
    farewell_out: u32,
    /// What the system said of each stream last, by index.
    pub facts: Vec<StreamStats>,
    /// Words of the system in a row without anything sent, of each stream by index.
    pub quiet: Vec<u8>,
    /// Streams of which the system has not said what they go by since it was told last, with how many orders it has not had.
    pub unheard: BTreeMap<StreamId, u32>,
    /// Congestion control that the driver was told for its streams last.
    pub ordered: Option<String>,
    /// What of it was given out, while somebody watches.
    pub(super) traced: Option<Vec<StreamStats>>,
    /// What this end sends at most, as whoever made it wants.
    pub rate_limit: Option<Rate>,
    /// The share of each stream in the smallest cap that the driver was told, and of how many streams.
    pub rate_share: Option<Rate>,
    pub sharers: usize,
    /// Its part of each cap that it shares, by the node: 0 for the process, else a class's index and one.
    pub parts: Vec<(usize, Rate)>,
    /// How much it needs of them.
    pub(super) need: Need,
    /// What is known of it, and what the policy made of it.
    pub ruled: Option<FlowPolicy>,
    /// Code point that the driver was told for its streams.
    pub(super) marked: u8,
    /// Of a server's: the client by which its queue pairs are counted.
    parties: Vec<Party>,
    /// Its queue pair is one of the application's, see [`super::own_qp`].
    pub(super) own: super::own_qp::OwnQp,
}

impl IwarpConn {
    fn new(info: ConnInfo, count: u16) -> IwarpConn {
        IwarpConn {
            info,
            streams: vec![None; usize::from(count)],
            established: 0,
            told: false,
            ending: None,
            closed: false,
            srq: None,
            id: None,
            wanted: None,
            until: Time::MAX,
            asked_congestion: false,
            tls: None,
            farewell: None,
            farewell_out: 0,
            facts: Vec::new(),
            quiet: Vec::new(),
            unheard: BTreeMap::new(),
            ordered: None,
            traced: None,
            rate_limit: None,
            rate_share: None,
            sharers: 0,
            parts: Vec::new(),
            need: Need::default(),
            ruled: None,
            marked: 0,
            parties: Vec::new(),
            own: super::own_qp::OwnQp::default(),
        }
    }

    fn is_longhaul(&self) -> bool {
        self.id.is_some()
    }
}

impl Endpoint {
    /// Starts to connect by iWARP.
    pub(crate) fn connect_iwarp(
        &mut self,
        now: Time,
        c: Connect,
        wanted: Iwarp,
    ) -> Result<ConnId, ConnectError> {
        self.check_own_qp(&wanted)?;
        let count = match (wanted.to_longhaul, c.options.as_ref().unwrap_or(&self.config.options).initial_qps)
        {
            (false, _) => 1,
            (true, _) if wanted.own_qp.is_some() => 1,
            (true, n) if n > MAX_STREAMS => {
                let text = format!(
                    "{n} queue pairs by iWARP: each is a connection by TCP, and {MAX_STREAMS} are the most"
                );
                return Err(ConnectError::Settings(text));
            }
            (true, n) => n.max(1),
        };
        let tls = match wanted.tls {
            false => None,
            true => Some(ClientTls {
                setup: ClientSetup::new(&self.config.credentials, &c.trust)
                    .map_err(|e| ConnectError::Settings(e.to_string()))?,
                server_name: c.server_name.clone(),
                token: c.token.clone(),
            }),
        };
        let options = c.options.as_ref().unwrap_or(&self.config.options);
        let (cap, (ruled, named)) = (options.rate_cap, self.apply_policy_to_tcp_conn(c.remote, options));
        let asked = wanted.congestion.is_some();
        let asks = wanted.congestion.as_deref().map(|names| self.system_congestion(names)).transpose();
        let congestion = asks.map_err(ConnectError::Settings)?.or(named);
        let wanted = Iwarp { congestion, ..wanted };
        let conn = self.new_iwarp_conn(c.remote, count, true)?;
        let mut id = [0; hello::ID];
        self.rng.fill(&mut id);
        if let Some(b) = self.iwarp_state.conns.get_mut(&conn) {
            b.id = wanted.to_longhaul.then_some(id);
            b.own.qp = wanted.own_qp;
            b.until = now + wanted.settings.startup_timeout;
            (b.wanted, b.tls) = (Some(wanted), tls);
            (b.rate_limit, b.asked_congestion) = (cap, asked);
            b.marked = super::dscp::of(&ruled);
            b.ruled = Some(ruled);
        }
        // The server lets the client in with the first one, which may use up a token; the others follow it.
        self.open_stream(conn, 0);
        Ok(conn)
    }

    /// Starts to connect a client's stream.
    fn open_stream(&mut self, conn: ConnId, index: u16) {
        let Some(b) = self.iwarp_state.conns.get_mut(&conn) else { return };
        let (remote, Some(wanted)) = (b.info.remote, &b.wanted) else { return };
        let mut s = Stream::new(remote, true, b.until);
        (s.conn, s.index) = (Some(conn), index);
        let (congestion, dscp) = (wanted.congestion.clone(), b.marked);
        let stream = self.iwarp_state.insert(s);
        if let Some(b) = self.iwarp_state.conns.get_mut(&conn) {
            b.streams[usize::from(index)] = Some((stream, None));
        }
        self.iwarp_state.schedule(stream);
        self.iwarp_state.orders.push_back(StreamCommand::Connect { stream, remote, congestion, dscp });
    }

    fn new_iwarp_conn(
        &mut self,
        remote: SocketAddr,
        count: u16,
        is_client: bool,
    ) -> Result<ConnId, ConnectError> {
        let pd = self.adapter.alloc_pd()?;
        let cq = self.adapter.create_cq(CQ_ENTRIES).inspect_err(|_| {
            let _ = self.adapter.dealloc_pd(pd);
        })?;
        let id = ConnId(self.next_id);
        self.next_id += 1;
        let info = ConnInfo {
            pd,
            cq,
            qps: Vec::new(),
            remote,
            peer: None,
            is_client,
            // Without TLS there is a checksum at most.
            suite: Suite::Crc32c,
            iwarp: Some(IwarpInfo::default()),
        };
        let mut b = IwarpConn::new(info, count);
        // Without it the peer's application does not learn why this end's ended the connection, no more.
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        b.farewell = self.adapter.reg_mr(pd, Memory::zeroed(FAREWELL), rights).ok();
        b.srq = self.incoming_srq.filter(|_| !is_client);
        b.rate_limit = self.config.options.rate_cap;
        let ruled = self.apply_policy_to_tcp_conn(remote, &self.config.options).0;
        b.marked = super::dscp::of(&ruled);
        b.ruled = Some(ruled);
        self.iwarp_state.conns.insert(id, b);
        Ok(id)
    }

    /// A queue pair for a stream of a connection.
    fn stream_qp(&mut self, conn: ConnId, index: u16, stream: StreamId) -> Result<QpId, ConnectError> {
        let b = self.iwarp_state.conns.get_mut(&conn).ok_or(ConnectError::NotOpen)?;
        if let Some(qp) = b.own.qp {
            b.streams[usize::from(index)] = Some((stream, Some(qp)));
            self.iwarp_state.by_qp.insert(qp, stream);
            return Ok(qp);
        }
        let init = QpInit {
            kind: Kind::Ordered,
            max_send_wr: SEND_WR,
            max_recv_wr: RECV_WR,
            max_rd_atomic: READS,
            srq: b.srq,
            ..QpInit::new(b.info.cq, b.info.cq)
        };
        let limit = self.config.limits.qps;
        if !b.info.is_client {
            if b.parties.is_empty() {
                let peer = self.iwarp_state.streams.get(&stream).and_then(|s| s.peer.as_ref());
                b.parties = parties(peer, b.info.remote);
            }
            if !self.qp_shares.take(&b.parties, limit) {
                return Err(ConnectError::Share(limit));
            }
        }
        let qp =
            self.adapter.create_qp(b.info.pd, init).inspect_err(|_| self.qp_shares.release(&b.parties, 1))?;
        b.streams[usize::from(index)] = Some((stream, Some(qp)));
        self.iwarp_state.by_qp.insert(qp, stream);
        Ok(qp)
    }

    /// A client's stream is connected.
    pub(super) fn start_client(&mut self, now: Time, id: StreamId) {
        let Some(conn) = self.iwarp_state.streams.get(&id).and_then(|s| s.conn) else { return };
        let Some(b) = self.iwarp_state.conns.get(&conn) else { return };
        match b.tls.clone() {
            Some(tls) => self.start_tls_client(now, id, &tls),
            None => self.start_engine_of_client(now, id),
        }
    }

    /// A client asks.
    pub(super) fn start_engine_of_client(&mut self, now: Time, id: StreamId) {
        let Some(s) = self.iwarp_state.streams.get(&id).filter(|s| s.engine.is_none()) else { return };
        let (index, emss) = (s.index, s.emss);
        let Some(conn) = s.conn else { return };
        let Some(b) = self.iwarp_state.conns.get(&conn) else { return };
        let Some(wanted) = b.wanted.clone() else { return };
        let for_own_qp = b.own.qp.is_some();
        let farewell = b.farewell.filter(|_| index == 0 && !for_own_qp).map_or(0, |mr| mr.rkey);
        let count = b.streams.len() as u16;
        let private = match b.id {
            Some(id) => {
                let short_writes = wants_short_writes(&wanted.settings);
                Hello { id, index, count, farewell, short_writes, for_own_qp }.put(&wanted.private_data)
            }
            None => wanted.private_data,
        };
        let crc = wanted.settings.crc && b.tls.is_none();
        // What TCP and TLS took is not given again.
        let startup_timeout = b.until.since(now);
        let settings =
            ::iwarp::Config { emss, crc, startup_timeout, foreign_qp: for_own_qp, ..wanted.settings };
        let engine = self
            .stream_qp(conn, index, id)
            .and_then(|qp| Ok(Connection::initiator(settings, qp, &private, now)?));
        match engine {
            Ok(engine) => {
                if let Some(s) = self.iwarp_state.streams.get_mut(&id) {
                    (s.engine, s.deadline) = (Some(engine), None);
                }
                self.iwarp_state.touch(id);
            }
            Err(e) => {
                self.note_failure(conn, true, &e.to_string());
                self.stream_over(now, id);
            }
        }
    }

    /// A client's first byte has come: it says whether TLS follows or MPA.
    pub(super) fn start_server(&mut self, now: Time, id: StreamId, first: u8) {
        let Some(server) = self.config.server.as_ref().and_then(|s| s.iwarp.as_ref()) else { return };
        let Some(s) = self.iwarp_state.streams.get(&id) else { return };
        let (remote, tls) = (s.remote, transport::looks_like_tls(first));
        let (plain_served, tls_served) = (server.plain, server.tls);
        match tls {
            true if tls_served && self.start_tls_server(now, id) => return,
            false if plain_served => return self.start_engine_of_server(now, id),
            true => {
                tracing::warn!(client = %remote, "turned away: it speaks TLS, and iWARP is served without")
            }
            false => {
                tracing::warn!(client = %remote, "turned away: it speaks no TLS, and iWARP is served with it only")
            }
        }
        self.stream_over(now, id);
    }

    /// Waits for what a client asks.
    pub(super) fn start_engine_of_server(&mut self, now: Time, id: StreamId) {
        let Some(server) = self.config.server.as_ref().and_then(|s| s.iwarp.as_ref()) else { return };
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        let crc = server.settings.crc && s.sealed.is_none();
        let settings = ::iwarp::Config { emss: s.emss, crc, ..server.settings };
        (s.engine, s.deadline) = (Some(Connection::responder(settings, now)), None);
    }

    /// What a stream's engine says.
    pub(super) fn on_stream_event(&mut self, now: Time, id: StreamId, e: ::iwarp::Event) {
        match e {
            ::iwarp::Event::Requested { private, .. } => {
                self.iwarp_state.touch(id);
                if let Err(text) = self.on_requested(now, id, &private)
                    && let Some(engine) =
                        self.iwarp_state.streams.get_mut(&id).and_then(|s| s.engine.as_mut())
                {
                    // It was asked just now: it can be refused.
                    let _ = engine.reject(text.as_bytes(), now);
                }
            }
            ::iwarp::Event::Established { private, .. } => self.on_stream_established(now, id, &private),
            ::iwarp::Event::Rejected { private, .. } => {
                let text = transport::error::words(&private);
                let conn = self.iwarp_state.streams.get(&id).and_then(|s| s.conn);
                if let Some(b) = conn.and_then(|c| self.iwarp_state.conns.get_mut(&c)) {
                    let words = if text.is_empty() { "it refused the connection".to_owned() } else { text };
                    b.ending.get_or_insert(CloseReason::Peer { code: code::BUSY, reason: words });
                }
            }
            ::iwarp::Event::PeerClosed => {}
            ::iwarp::Event::Closed { end, by_peer } => {
                let Some(conn) = self.iwarp_state.streams.get(&id).and_then(|s| s.conn) else { return };
                self.on_stream_closed(now, conn, end, by_peer);
            }
        }
    }

    /// Somebody asks for a connection, or for a further stream of one.
    fn on_requested(&mut self, now: Time, id: StreamId, private: &[u8]) -> Result<(), String> {
        let Some(s) = self.iwarp_state.streams.get(&id) else { return Ok(()) };
        let remote = s.remote;
        let hello = Hello::parse(private);
        let known = hello.and_then(|(h, _)| self.iwarp_state.gathering.get(&h.id).copied());
        if s.further && known.is_none() {
            // It is the first of another connection that the same client makes at the same time.
            self.admit_stream(now, id).map_or(Ok(()), Err)?;
        }
        let conn = match known {
            Some(conn) => conn,
            None => self.admit_connection(now, remote, hello.map(|(h, _)| h))?,
        };
        let index = hello.map_or(0, |(h, _)| h.index);
        let Some(s) = self.iwarp_state.streams.get(&id) else { return Ok(()) };
        let b = self.iwarp_state.conns.get_mut(&conn).ok_or("the connection is gone")?;
        let fits = b.info.remote.ip() == remote.ip()
            && hello.is_none_or(|(h, _)| usize::from(h.count) == b.streams.len())
            && b.streams.get(usize::from(index)).is_some_and(Option::is_none)
            && b.ending.is_none()
            && (known.is_none() || b.info.peer == s.peer);
        if !fits {
            return Err("this stream does not belong to the connection that it names".to_owned());
        }
        if let Some(info) = &mut b.info.iwarp
            && index == 0
        {
            info.tls = s.sealed.is_some();
            info.private_data = hello.map_or(private, |(_, p)| p).to_vec();
            info.longhaul = hello.is_some();
            b.farewell_out = hello.map_or(0, |(h, _)| h.farewell);
            b.info.peer.clone_from(&s.peer);
            if let Some(suite) = s.sealed.as_ref().and_then(|s| s.tls.suite()) {
                b.info.suite = suite;
            }
        }
        if let Some((hello, private)) = hello.filter(|(h, _)| h.for_own_qp) {
            return self.ask_for_own_qp(conn, id, hello, private);
        }
        let farewell = b.farewell.filter(|_| index == 0).map_or(0, |mr| mr.rkey);
        let short_writes = self.serves_short_writes();
        let reply = hello.map_or_else(Vec::new, |_| Reply { farewell, short_writes }.put());
        let qp = self.stream_qp(conn, index, id).map_err(|e| {
            if known.is_none() {
                // Nobody else would end it.
                self.on_iwarp_closed(conn);
            }
            e.to_string()
        })?;
        self.set_stream_dscp(conn, id);
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return Ok(()) };
        (s.conn, s.index) = (Some(conn), index);
        // What it goes by is to be known before the client asks for something else.
        self.iwarp_state.orders.push_back(StreamCommand::QueryStats(id));
        let Some(engine) = &mut s.engine else { return Ok(()) };
        if let Some((h, _)) = hello {
            suit(engine, h.short_writes);
        }
        engine.accept(&mut self.adapter, qp, &reply, now).map_err(|e| e.to_string())
    }

    pub(super) fn serves_short_writes(&self) -> bool {
        let server = self.config.server.as_ref().and_then(|s| s.iwarp.as_ref());
        server.is_some_and(|s| wants_short_writes(&s.settings))
    }

    /// Makes a connection of a client, if there is room.
    fn admit_connection(
        &mut self,
        now: Time,
        remote: SocketAddr,
        hello: Option<Hello>,
    ) -> Result<ConnId, String> {
        let Some(server) = &self.config.server else { return Err("no server".to_owned()) };
        let open = self.iwarp_state.open;
        if open >= server.max_connections {
            return Err(format!("the server is full ({open} connections): try again later"));
        }
        let count = hello.map_or(1, |h| h.count);
        let most = self.config.options.max_qps;
        if u32::from(count) > most {
            return Err(format!("a connection has {most} streams at most here, not {count}"));
        }
        let conn = self.new_iwarp_conn(remote, count, false).map_err(|e| e.to_string())?;
        self.iwarp_state.open += 1;
        if let (Some(h), Some(b)) = (hello, self.iwarp_state.conns.get_mut(&conn)) {
            b.id = Some(h.id);
            if h.count > 1 {
                self.iwarp_state.gathering.insert(h.id, conn);
            }
        }
        tracing::debug!(client = %remote, streams = count, at = ?now, "a client by iWARP");
        Ok(conn)
    }

    fn on_stream_established(&mut self, now: Time, id: StreamId, private: &[u8]) {
        self.iwarp_state.half_open.remove(id);
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        s.established = true;
        let (Some(conn), index) = (s.conn, s.index) else { return };
        let Some(b) = self.iwarp_state.conns.get_mut(&conn) else { return };
        b.established += 1;
        let whole = b.established == b.streams.len();
        if b.info.is_client && b.is_longhaul() {
            let Some((reply, private)) = Reply::parse(private) else {
                self.note_failure(conn, true, "the server speaks iWARP but is not Longhaul");
                return self.end_streams(now, conn, false);
            };
            if let Some(engine) = &mut s.engine {
                suit(engine, reply.short_writes);
            }
            if index == 0 {
                b.farewell_out = reply.farewell;
                if let Some(info) = &mut b.info.iwarp {
                    (info.private_data, info.longhaul) = (private.to_vec(), true);
                }
            }
        } else if let Some(info) = b.info.iwarp.as_mut().filter(|_| b.info.is_client) {
            info.private_data = private.to_vec();
        }
        if let (Some(engine), Some(info)) = (&s.engine, &mut b.info.iwarp) {
            let t = engine.terms();
            (info.crc, info.markers_in, info.markers_out) = (t.crc, t.markers_in, t.markers_out);
        }
        if whole {
            return self.on_iwarp_ready(conn);
        }
        if b.info.is_client && index == 0 {
            let count = b.streams.len() as u16;
            (1..count).for_each(|i| self.open_stream(conn, i));
        }
        // All of them come soon, or none is of use.
        let own = self.iwarp_state.conns.get(&conn).filter(|b| b.info.is_client).map(|b| b.until);
        let server = self.config.server.as_ref().and_then(|s| s.iwarp.as_ref()).map(|s| s.settings);
        let until = own.unwrap_or_else(|| now + server.unwrap_or_default().startup_timeout);
        let Some(s) = self.iwarp_state.streams.get_mut(&id) else { return };
        s.deadline = Some(until);
        self.iwarp_state.schedule(id);
    }

    /// All streams are there.
    fn on_iwarp_ready(&mut self, conn: ConnId) {
        let Some(b) = self.iwarp_state.conns.get_mut(&conn) else { return };
        if b.ending.is_some() {
            return;
        }
        b.told = true;
        b.info.qps = b.streams.iter().filter_map(|s| s.as_ref()?.1).collect();
        for (id, _) in b.streams.iter().flatten() {
            if let Some(s) = self.iwarp_state.streams.get_mut(id) {
                s.deadline = None;
            }
        }
        if let Some(id) = b.id {
            self.iwarp_state.gathering.remove(&id);
        }
        // The application may have had its turn before.
        self.app_due = true;
        let streams: Vec<_> = b.streams.iter().flatten().map(|s| s.0).collect();
        let is_client = b.info.is_client;
        self.emit(if is_client { Event::Connected { conn } } else { Event::Incoming { conn } });
        self.iwarp_state.orders.extend(streams.into_iter().map(StreamCommand::QueryStats));
        self.share_rate(conn);
        self.apply_policy_to_tcp(conn);
    }

    /// Keeps the first reason for which a connection ends.
    pub(super) fn note_failure(&mut self, conn: ConnId, connected: bool, why: &str) {
        let Some(b) = self.iwarp_state.conns.get_mut(&conn) else { return };
        let remote = b.info.remote;
        let text = match connected {
            true => format!("the connection by iWARP to {remote} failed: {why}"),
            false => format!(
                "no connection by TCP to {remote}, for iWARP: {why}; is the server running with iWARP, and is its TCP port open in the firewall?"
            ),
        };
        b.ending.get_or_insert(CloseReason::Stream(text));
    }

    /// One stream has ended: the connection does.
    fn on_stream_closed(&mut self, now: Time, conn: ConnId, end: End, by_peer: bool) {
        let said = self.farewell_of(conn);
        let Some(b) = self.iwarp_state.conns.get_mut(&conn) else { return };
        let remote = b.info.remote;
        if b.ending.is_none() {
            b.ending = Some(said.unwrap_or_else(|| match end {
                // Longhaul says why before it closes; the system alone closes the connections of a program that is gone.
                End::Closed if b.is_longhaul() && b.farewell.is_some() && !b.own.is_set() => CloseReason::Stream(format!(
                    "the connection by iWARP to {remote} was closed without a word: has the program there ended, or been killed?"
                )),
                End::Closed => {
                    CloseReason::Peer { code: code::NO_ERROR, reason: "it has ended the connection".into() }
                }
                _ => CloseReason::Stream(words_of(end, by_peer, remote)),
            }));
        }
        self.end_streams(now, conn, end == End::Closed);
    }

    /// What the peer wrote to say why it ends the connection.
    fn farewell_of(&self, conn: ConnId) -> Option<CloseReason> {
        let mr = self.iwarp_state.conns.get(&conn)?.farewell?;
        let mut b = [0; FAREWELL];
        self.adapter.read_mr(mr.id, 0, &mut b).ok()?;
        let (code, rest) = b.split_first_chunk::<8>()?;
        let (len, words) = rest.split_first_chunk::<2>()?;
        let code = u64::from_be_bytes(*code);
        let words = words.get(..usize::from(u16::from_be_bytes(*len)))?;
        // The code stands there one higher, so that nothing written is no code.
        let reason = transport::error::words(words);
        Some(CloseReason::Peer { code: code.checked_sub(1)?, reason })
    }

    /// Closes a connection: says why, where the peer listens to that, and ends the streams behind all that was posted.
    pub(crate) fn close_iwarp(&mut self, now: Time, conn: ConnId, code: u64, reason: &str) {
        let Some(b) = self.iwarp_state.conns.get_mut(&conn).filter(|b| !b.closed) else { return };
        if b.ending.is_some() {
            return;
        }
        b.ending = Some(CloseReason::Local);
        let first = b.streams.first().copied().flatten().and_then(|(_, qp)| qp).filter(|_| !b.own.is_set());
        if let Some(qp) = first.filter(|_| b.farewell_out != 0) {
            let mut end = reason.len().min(WORDS);
            while !reason.is_char_boundary(end) {
                end -= 1;
            }
            let mut bytes = code.saturating_add(1).to_be_bytes().to_vec();
            bytes.extend((end as u16).to_be_bytes());
            bytes.extend(&reason.as_bytes()[..end]);
            let op = SendOp::Write { rkey: b.farewell_out, offset: 0 };
            let wr = SendWr { signaled: false, ..SendWr::new(OWN, op, Data::Inline(bytes.into())) };
            // Without room for it the peer learns no more than that it ended.
            let _ = self.adapter.post_send(qp, wr);
        }
        self.end_streams(now, conn, true);
    }

    /// Gives up queue pairs of a connection by iWARP that is being [closed](Endpoint::close): what was posted to them, and what TCP
    /// has of it, is thrown away instead of waited for, and their streams are reset. Without effect on other connections: those
    /// throw it away anyway.
    pub fn reset_streams(&mut self, now: Time, conn: ConnId, qps: &[QpId]) {
        let Some(b) = self.iwarp_state.conns.get(&conn).filter(|b| b.ending.is_some() && !b.closed) else {
            return;
        };
        let streams: Vec<_> = b.streams.iter().flatten().filter_map(|(id, qp)| Some((*id, (*qp)?))).collect();
        for (id, qp) in streams {
            if qps.contains(&qp) && self.iwarp_state.streams.contains_key(&id) {
                // What it holds of regions is free with it. Fails only if it is gone.
                let _ = self.adapter.set_error(qp, verbs::Status::FlushError);
                self.stream_over(now, id);
            }
        }
    }

    /// Ends all streams that have not ended.
    fn end_streams(&mut self, now: Time, conn: ConnId, gently: bool) {
        let Some(b) = self.iwarp_state.conns.get(&conn) else { return };
        let (ids, told): (Vec<_>, _) = (b.streams.iter().flatten().map(|s| s.0).collect(), b.told);
        for id in ids {
            let Some(s) = self.iwarp_state.streams.get_mut(&id) else { continue };
            match &mut s.engine {
                Some(engine) if gently && told => engine.close(&mut self.adapter, now),
                Some(engine) => engine.abort(&mut self.adapter, now),
                None => {
                    self.stream_over(now, id);
                }
            }
            self.iwarp_state.touch(id);
        }
    }

    /// A stream is over, or never was: forgets it, and tells the application when it was the connection's last.
    pub(super) fn stream_over(&mut self, now: Time, id: StreamId) {
        let Some(s) = self.iwarp_state.streams.get(&id) else { return };
        let conn = s.conn;
        self.iwarp_state.forget(id);
        let Some(conn) = conn else { return };
        let Some(b) = self.iwarp_state.conns.get_mut(&conn) else { return };
        b.unheard.remove(&id);
        let before = b.ending.is_some();
        b.ending.get_or_insert_with(|| CloseReason::Stream("a stream of the connection ended".to_owned()));
        let left = b.streams.iter().flatten().any(|(s, _)| self.iwarp_state.streams.contains_key(s));
        if !left {
            self.on_iwarp_closed(conn);
        } else if !before || !b.told {
            self.end_streams(now, conn, false);
        }
    }

    pub(super) fn on_iwarp_closed(&mut self, conn: ConnId) {
        let said = self.farewell_of(conn);
        let Some(b) = self.iwarp_state.conns.get_mut(&conn).filter(|b| !b.closed) else { return };
        b.closed = true;
        if !b.info.is_client {
            self.iwarp_state.open = self.iwarp_state.open.saturating_sub(1);
        }
        if self.divides_caps() {
            self.divide_caps();
        }
        let Some(b) = self.iwarp_state.conns.get_mut(&conn) else { return };
        // What the peer wrote may have come after the first stream ended.
        if b.ending != Some(CloseReason::Local) {
            b.ending = said.or(b.ending.take());
        }
        if let Some(id) = b.id {
            self.iwarp_state.gathering.remove(&id);
        }
        let reason = b.ending.clone().unwrap_or(CloseReason::Local);
        let (told, is_client) = (b.told, b.info.is_client);
        let knows = told || is_client || b.own.is_set();
        // Queue pairs that the application never saw are to be freed, too; its own are not.
        b.info.qps = b.streams.iter().filter_map(|s| s.as_ref()?.1).filter(|_| !b.own.is_set()).collect();
        if let Some(own) = b.own.qp {
            self.iwarp_state.by_qp.remove(&own);
        }
        if knows {
            self.app_due = true;
            self.emit(Event::Closed { conn, reason });
        }
        if !told {
            let _ = self.release_iwarp(conn);
        }
    }

    /// Frees what is left of a connection that has ended.
    pub(crate) fn release_iwarp(&mut self, conn: ConnId) -> Result<(), ConnectError> {
        let Some(b) = self.iwarp_state.conns.get_mut(&conn) else { return Ok(()) };
        if !b.closed {
            return Err(ConnectError::NotOpen);
        }
        let (pd, cq) = (b.info.pd, b.info.cq);
        self.qp_shares.release(&b.parties, b.info.qps.len());
        for qp in core::mem::take(&mut b.info.qps) {
            self.iwarp_state.by_qp.remove(&qp);
            self.adapter.destroy_qp(qp)?;
        }
        if let Some(mr) = b.farewell.take() {
            self.adapter.dereg_mr(mr.id)?;
        }
        if self.adapter.cq_len(cq).is_some() {
            while self.adapter.poll_cq(cq).is_some() {}
            self.adapter.destroy_cq(cq)?;
        }
        self.adapter.dealloc_pd(pd)?;
        self.iwarp_state.conns.remove(&conn);
        Ok(())
    }
}

/// How a stream ended, for people.
fn words_of(end: End, by_peer: bool, remote: SocketAddr) -> String {
    let whom = if by_peer { "the peer" } else { "this end" };
    match end {
        End::Closed => format!("{whom} ended the connection"),
        End::Frame(e) => format!("what answers at {remote} does not speak iWARP as this program does: {e}"),
        End::Mismatch => format!(
            "the answer of {remote} does not fit what was asked: it is no iWARP server, or a broken one"
        ),
        End::Rejected => format!("{whom} refused the connection"),
        End::TimedOut => format!(
            "{remote} did not answer, finish a record or close in time: is the path up, and is the peer still running?"
        ),
        End::Lost => format!("the connection by TCP to {remote} was lost"),
        End::Terminated(cause) => format!("{whom} ended the connection: {cause}"),
        End::Aborted => "given up before it was established".to_owned(),
    }
}
